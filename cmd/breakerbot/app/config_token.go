package app

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"breakerbot/breaker"
)

// Secret is a text that never prints: every way of formatting or encoding it
// gives "[secret]", or nothing when it is empty. Convert it to string where it
// is used.
type Secret string

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// Format hides the secret from every verb, %x and wrong ones included.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// MarshalText hides the secret from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides the secret from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// The scopes of tokens.
const (
	ScopeReport  = "report"  // outcomes, permits, routes, watch, writes
	ScopeRead    = "read"    // all GETs and metrics
	ScopeOperate = "operate" // controls
)

// Scopes lists them all.
func Scopes() []string { return []string{ScopeReport, ScopeRead, ScopeOperate} }

// Token lets whoever knows its secret do what its scopes say.
type Token struct {
	Name   string // who uses it, as logs and controls tell
	Secret Secret
	Scopes []string
}

// tokenFileName is the name of the token in the token file.
const tokenFileName = "token-file"

// newSecret makes a token of 256 random bits.
func newSecret() Secret {
	var random [32]byte
	rand.Read(random[:]) // never fails
	return Secret("bb_" + base64.RawURLEncoding.EncodeToString(random[:]))
}

// checkTokenName says what is wrong with a token's name: it has to be a label
// that can stand in BREAKERBOT_TOKENS.
func checkTokenName(name string) error {
	if err := breaker.CheckLabel(name); err != nil {
		return err
	}
	if strings.ContainsAny(name, ":,") || strings.ContainsFunc(name, func(r rune) bool { return r == ' ' }) {
		return fmt.Errorf("%q holds a space, colon or comma: these separate tokens in BREAKERBOT_TOKENS", clip(name))
	}
	return nil
}

func checkScopes(scopes []string) error {
	for i, scope := range scopes {
		if !slices.Contains(Scopes(), scope) {
			return fmt.Errorf("%q is no scope: known are %s", clip(scope), strings.Join(Scopes(), ", "))
		}
		if slices.Contains(scopes[:i], scope) {
			return fmt.Errorf("%s is given twice", scope)
		}
	}
	return nil
}

func checkSecret(s Secret) error {
	switch {
	case s == "":
		return errors.New("is missing: make one with: breakerbot token NAME")
	case len(s) > 512:
		return errors.New("its value (not shown) is longer than 512 characters")
	case !printable(string(s)):
		return errors.New("its value (not shown) holds a space or a character outside ASCII: no header can carry it")
	}
	return nil
}

func (c *checker) checkTokens() {
	for i, raw := range c.raw.Tokens {
		key := "tokens[" + strconv.Itoa(i) + "]"
		if c.found(key) {
			continue
		}
		if err := checkTokenName(raw.Name); err != nil {
			c.at(key+".name", "%v", err)
		} else if raw.Name == tokenFileName && c.raw.TokenFile != "" {
			c.at(key+".name", "%s is the name of the token in token_file", raw.Name)
		}
		if err := checkSecret(raw.Token); err != nil {
			c.at(key+".token", "%v", err)
		} else if len(raw.Token) < 16 {
			c.warn("%s (%s) is shorter than 16 characters and can be guessed: breakerbot token makes better ones", key, raw.Name)
		}
		if len(raw.Scopes) == 0 {
			raw.Scopes = []string{ScopeReport}
		}
		if err := checkScopes(raw.Scopes); err != nil {
			c.at(key+".scopes", "%v", err)
		}
		for j, other := range c.raw.Tokens[:i] {
			if other.Name == raw.Name && raw.Name != "" {
				c.at(key+".name", "%q is also the name of tokens[%d]", raw.Name, j)
			}
			if other.Token == raw.Token && raw.Token != "" {
				c.at(key+".token", "is the same as that of tokens[%d]: nobody could tell them apart", j)
			}
		}
		c.cfg.Tokens = append(c.cfg.Tokens, Token{Name: raw.Name, Secret: raw.Token, Scopes: raw.Scopes})
	}
}

// EnsureTokenFile reads the token in the file, or makes a new one with all
// scopes where there is no file. The file is readable by its owner alone, and
// appears whole or not at all. The error for an unusable file names it and
// never its content.
func EnsureTokenFile(path string) (token Token, created bool, err error) {
	token = Token{Name: tokenFileName, Scopes: Scopes()}
	token.Secret, err = readTokenFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Token{}, false, fmt.Errorf("make token file: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".token-*") // mode 0600
	if err != nil {
		return Token{}, false, fmt.Errorf("make token file: %w", err)
	}
	defer os.Remove(f.Name())
	token.Secret = newSecret()
	_, err = f.WriteString(string(token.Secret) + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		// A link, unlike a rename, fails where another start was faster.
		err = os.Link(f.Name(), path)
	}
	if errors.Is(err, fs.ErrExist) {
		token.Secret, err = readTokenFile(path)
		return token, false, err
	}
	if err != nil {
		return Token{}, false, fmt.Errorf("make token file %s: %w", path, err)
	}
	return token, true, nil
}

func readTokenFile(path string) (Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	secret := Secret(strings.TrimSpace(string(data)))
	if err := checkSecret(secret); err != nil {
		return "", fmt.Errorf("read token file %s: the token %w", path, err)
	}
	if len(secret) < 16 {
		return "", fmt.Errorf("read token file %s: the token is shorter than 16 characters: remove the file, and the next start makes a new one", path)
	}
	return secret, nil
}
