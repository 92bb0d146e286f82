// Package app is the command breakerbot as functions that a test can call:
// command line, configuration, the wiring of a service out of the other
// packages, and the commands themselves. It decides nothing about breakers,
// messages or rankings; those have packages of their own.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // usage or configuration
)

// Version is what `breakerbot version` prints; builds set it by the linker.
var Version = ""

// System is what the process gives a command.
type System struct {
	In       io.Reader
	Out, Err io.Writer
	Env      func(string) (string, bool)
}

// usageError is an error that the user mends in the command line or the
// configuration: exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// commandLine is the grammar of the command line.
type commandLine struct {
	Config string `help:"Configuration file; breakerbot.yaml in this folder when it exists." short:"c" placeholder:"FILE" env:"BREAKERBOT_CONFIG"`

	Serve   struct{}   `cmd:"" help:"Run the service."`
	Demo    demoCmd    `cmd:"" help:"Live through a simulated day of a small lab with three outages, in about a minute."`
	Check   struct{}   `cmd:"" help:"Validate the configuration and print the rules in force."`
	Digest  digestCmd  `cmd:"" help:"Print the digest of a period from the database."`
	Token   tokenCmd   `cmd:"" help:"Make an access token for an agent or a person."`
	Replay  replayCmd  `cmd:"" help:"Run a script of outcomes on the real engine and virtual time."`
	Advise  adviseCmd  `cmd:"" help:"Derive window, threshold, cooldown and probes from a traffic rate and a recovery time."`
	Drill   drillCmd   `cmd:"" help:"Make a stand-in fail on loopback and measure how a running server opens and closes its breakers."`
	Migrate struct{}   `cmd:"" help:"Bring the database's schema up to date; serve does so itself."`
	Health  healthCmd  `cmd:"" help:"Ask a running server whether it is alive."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

type versionCmd struct{}

type demoCmd struct {
	Pause time.Duration `help:"Real time given to reading; 0 prints the day at once." default:"40s"`
	Color string        `help:"Use colors: auto, always or never." enum:"auto,always,never" default:"auto"`
}

type digestCmd struct {
	Period string `help:"24h, 7d, 30d, another number of hours or days, or yesterday." default:"24h"`
	Until  string `help:"End of the period, as 2006-01-02T15:04:05Z; now when left out." placeholder:"TIME"`
	Format string `help:"text, html or json." enum:"text,html,json" default:"text"`
	Out    string `help:"File to write; standard output when left out." placeholder:"FILE"`
}

type tokenCmd struct {
	Name   string   `arg:"" optional:"" help:"Who uses the token, as logs and controls tell."`
	Scopes []string `arg:"" optional:"" help:"report (the default), read, operate."`
	Show   string   `help:"Print the token of this token file instead." placeholder:"FILE"`
}

// Help describes scripts.
func (replayCmd) Help() string {
	return `A script is NDJSON. Its first line may set things up:

  {"builtin_rules": false, "rules": [...], "gates": [...], "chains": {...}, "machines": {...}}

A script without such a line runs under the configuration that --config names,
or else under the built-in rules. Each further line has t, seconds since the
start, never falling, and one of

  "outcome": {...}                    as in POST /v1/outcomes
  "permit": {...}, "as": "p1"         as in POST /v1/permits; "$p1" names it later
  "route": {...}, "as": "p2"          as in POST /v1/route
  "release": "$p1"                    "extend": "$p1", "timeout_ms": 60000
  "circuit": {"machine": "gpu-box"}   reads, and changes nothing
  "control": {"breaker": "errors{machine=gpu,model=m}", "op": "hold-open", "for_ms": 0, "actor": "me"}
  "write": {"idempotency_key": "job-7", "result": "applied"}
  "health": {"machine": "gpu", "answered": false, "boot": true}
  "restart": {}                       saves and restores the state

and may have "expect": {...}, any part of what the line prints:

  {"line": 3, "t": 2.5, "result": {...}, "transitions": [{"breaker", "from", "to", "cause", "reason", "actor", "t"}]}`
}

type replayCmd struct {
	Script string `arg:"" help:"The script, NDJSON; - is standard input."`
	Check  bool   `help:"Compare with what the lines expect; exit code 1 when any differs."`
}

type healthCmd struct {
	URL string `help:"Address of the server." default:"http://127.0.0.1:8080"`
}

// exit is what kong's own way out (--help) becomes.
type exit int

// Main runs one command and gives its exit code.
func Main(args []string, sys System) (code int) {
	defer func() {
		if v := recover(); v != nil {
			kongExit, ok := v.(exit)
			if !ok {
				panic(v)
			}
			code = int(kongExit)
		}
	}()
	var line commandLine
	parser, err := kong.New(&line, kong.Name("breakerbot"),
		kong.Description("Circuit breakers for AI agents: one place that knows which machines and models are worth calling."),
		kong.Writers(sys.Out, sys.Err), kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		panic(err) // the grammar above is wrong
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(sys.Err, "breakerbot: %v\nTry: breakerbot --help\n", err)
		return exitUsage
	}
	ctx, stop := interruptible(sys.Err)
	defer stop()
	err = line.run(ctx, strings.Fields(parsed.Command())[0], sys)
	var config *ConfigError
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errDiffers):
		return exitFailure // it has been told line by line
	case errors.As(err, &config), errors.As(err, &usage):
		fmt.Fprintln(sys.Err, "breakerbot:", err)
		return exitUsage
	}
	fmt.Fprintln(sys.Err, "breakerbot:", err)
	return exitFailure
}

// interruptible is a context that a first interrupt or termination ends; the
// second ends the process at once.
func interruptible(errOut io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-signals:
				if ctx.Err() != nil {
					fmt.Fprintln(errOut, "breakerbot: stopped at once by a second signal")
					os.Exit(exitFailure)
				}
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

func (c *commandLine) run(ctx context.Context, command string, sys System) error {
	switch command {
	case "version":
		_, err := fmt.Fprintln(sys.Out, "breakerbot", version())
		return err
	case "token":
		if c.Token.Show != "" {
			return runShowToken(sys.Out, c.Token.Show)
		}
		if err := runToken(sys.Out, c.Token.Name, c.Token.Scopes); err != nil {
			return usageError{err}
		}
		return nil
	case "health":
		return runHealth(ctx, c.Health.URL)
	case "replay":
		return c.Replay.run(c.Config, sys)
	case "advise":
		return c.Advise.run(sys.Out)
	case "drill":
		return c.Drill.run(ctx, sys.Out)
	case "demo":
		return runDemo(ctx, sys, c.Demo)
	}
	cfg, err := LoadConfig(c.Config, sys.Env)
	if err != nil {
		return err
	}
	switch command {
	case "serve":
		return runServe(ctx, cfg, sys)
	case "check":
		return runCheck(sys.Out, cfg)
	case "digest":
		return runDigest(ctx, cfg, sys, c.Digest)
	case "migrate":
		return runMigrate(ctx, cfg, sys)
	}
	return usageError{fmt.Errorf("unknown command %q", command)}
}

func (r replayCmd) run(config string, sys System) error {
	var given *Config
	if config != "" { // one that merely lies in this folder does not change a script
		cfg, err := LoadConfig(config, sys.Env)
		if err != nil {
			return err
		}
		given = &cfg
	}
	in := sys.In
	if r.Script != "-" {
		f, err := os.Open(r.Script)
		if err != nil {
			return usageError{fmt.Errorf("replay: %w", err)}
		}
		defer f.Close()
		in = f
	}
	err := runReplay(in, sys.Out, r.Check, given)
	if err != nil && !errors.Is(err, errDiffers) {
		return usageError{fmt.Errorf("replay %s: %w", r.Script, err)}
	}
	return err
}

// version is the linker's, or what the build knows of its revision.
func version() string {
	if Version != "" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if revision == "" {
		return "development"
	}
	return revision + dirty
}
