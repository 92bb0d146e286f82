package app

import (
	"fmt"
	"io"
	"strings"
)

// runToken makes a token and prints how the server and its users get it. With
// no scopes it may report and nothing else. Nothing is stored.
func runToken(w io.Writer, name string, scopes []string) error {
	if len(scopes) == 0 {
		scopes = []string{ScopeReport}
	}
	if err := checkTokenName(name); err != nil {
		return fmt.Errorf("make token: name %w", err)
	}
	if err := checkScopes(scopes); err != nil {
		return fmt.Errorf("make token %s: scope %w", name, err)
	}
	secret := string(newSecret())
	const asJSON = `-H 'Content-Type: application/json' `
	call := asJSON + `-d '{"agent": "` + jsonWord(name) + `", "machine": "gpu-box", "cause": "ok"}' http://SERVER:8080/v1/outcomes`
	switch scopes[0] {
	case ScopeRead:
		call = "http://SERVER:8080/v1/circuits"
	case ScopeOperate:
		call = `-g ` + asJSON + `-d '{"reason": "replaced"}' 'http://SERVER:8080/v1/breakers/reachability{machine=gpu-box}/reset'`
	}
	_, err := fmt.Fprintf(w, `A new token for %[1]s with scope %[2]s. It is shown this once and stored nowhere.

On the server, in breakerbot.yaml (with listen: 0.0.0.0:8080, so that others reach it):

tokens:
  - {name: %[3]s, token: %[4]s, scopes: [%[2]s]}

or in its environment (several tokens are separated by commas):

BREAKERBOT_TOKENS='%[1]s:%[4]s:%[5]s'

On the machine that uses it:

export BREAKERBOT_TOKEN='%[4]s'
curl -H "Authorization: Bearer $BREAKERBOT_TOKEN" %[6]s
`, name, strings.Join(scopes, ", "), yamlWord(name), secret, strings.Join(scopes, "+"), call)
	return err
}

// yamlWord quotes a name that YAML would not take as the same plain text.
func yamlWord(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz-_") == "" && !strings.HasPrefix(s, "-") && s != "true" && s != "false" && s != "null" {
		return s
	}
	return `"` + jsonWord(s) + `"`
}

func jsonWord(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\u0027`).Replace(s)
}

// runShowToken prints the token of a token file, for those who can run a
// command where the file is and have no other way to read it.
func runShowToken(w io.Writer, path string) error {
	secret, err := readTokenFile(path)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(secret))
	return err
}
