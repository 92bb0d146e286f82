// Command breakerbot runs the circuit breakers of a pool of AI agents and tells
// people what trips. Everything it can do is in package app.
package main

import (
	"os"

	"breakerbot/cmd/breakerbot/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], app.System{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.LookupEnv,
	}))
}
