package app

import (
	"strconv"
	"strings"

	"breakerbot/breaker"
	"breakerbot/ingest"
)

// canonical maps the machines' aliases onto their names, as the engine does.
func canonical(machines map[string]breaker.Machine) func(string) string {
	names := make(map[string]string)
	for name, m := range machines {
		for _, alias := range m.Aliases {
			names[alias] = name
		}
	}
	return func(machine string) string {
		if name, ok := names[machine]; ok {
			return name
		}
		return machine
	}
}

// checkGates puts the gates in force, after checkMachines.
func (c *checker) checkGates() {
	if c.found("gates") {
		return // a value that could not be read makes more problems than there are
	}
	gates, err := ingest.NewGates(c.raw.Gates)
	for _, line := range errorLines(err) {
		path, text, placed := strings.Cut(line, ": ")
		if !placed || !strings.HasPrefix(path, "[") {
			path, text = "", line
		}
		c.at("gates"+path, "%s", text)
	}
	c.cfg.Gates = gates
	name := canonical(c.cfg.Machines)
	catchAll := -1
	for i, gate := range c.raw.Gates {
		key := "gates[" + strconv.Itoa(i) + "]"
		if own := name(gate.Machine); own != gate.Machine {
			c.at(key+".machine", "%q is an alias of the machine %s: gates go by its name", clip(gate.Machine), own)
		}
		if catchAll >= 0 {
			c.warn("%s is never reached: gates[%d] matches every machine and model, and the first that matches is the only one", key, catchAll)
		} else if (gate.Machine == "" || gate.Machine == "*") && (gate.Model == "" || gate.Model == "*") {
			catchAll = i
		}
	}
}
