package app

import (
	"net/url"
	"slices"
	"strings"

	"breakerbot/breaker"
)

// checkChains puts the chains in force, after checkMachines. Their targets are
// checked by the names that the engine will know them by, so that a machine and
// its alias are not two targets.
func (c *checker) checkChains() {
	c.cfg.Chains = c.raw.Chains
	name := canonical(c.cfg.Machines)
	for _, chain := range sorted(c.raw.Chains) {
		key := join("chains", chain)
		if err := breaker.CheckLabel(chain); err != nil {
			c.at(key, "the chain's name %v", err)
		}
		if c.found(key) {
			continue // a value that could not be read makes more problems than there are
		}
		own := c.raw.Chains[chain]
		own.Targets = slices.Clone(own.Targets)
		for i := range own.Targets {
			t := &own.Targets[i]
			if t.Machine = name(t.Machine); t.Provider == "" {
				t.Provider = orWord(c.cfg.Machines[t.Machine].Provider, t.Machine)
			}
		}
		for _, line := range errorLines(own.Validate()) {
			field, text, _ := strings.Cut(line, ": ")
			c.at(key+"."+field, "%s", text)
		}
	}
	if n := len(c.raw.Chains); n > breaker.MaxChains {
		c.at("chains", "there are %d: at most %d are allowed", n, breaker.MaxChains)
	}
}

// routing is an engine that knows the chains and the machines and has no rules:
// it tells the order of trial, and picks targets before there is a state.
func (c Config) routing() (*breaker.Engine, error) {
	return breaker.New(breaker.Config{Machines: c.Machines, Chains: c.Chains})
}

// healthURL reads where a machine's health check is asked. What is wrong with
// it does not show the address, which may hold a password.
func (c *checker) healthURL(key, text string) Secret {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "" {
		c.at(key, "its value (not shown, it may hold a password) is no address that can be asked: it looks like http://gpu-box:11434/api/tags")
	}
	return Secret(text)
}

// shownURL is an address without its user, password and query.
func shownURL(text Secret) string {
	u, err := url.Parse(string(text))
	if err != nil {
		return "an address that cannot be read"
	}
	u.User = nil
	if u.RawQuery != "" {
		u.RawQuery = "…"
	}
	return u.String()
}
