package ingest

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"breakerbot/breaker"
)

type doc = map[string]any

func description(t *testing.T) doc {
	t.Helper()
	var d doc
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		t.Fatalf("read openapi.yaml: %v", err)
	}
	return d
}

// at walks d along a path of keys.
func at(t *testing.T, d any, path ...string) any {
	t.Helper()
	for _, key := range path {
		m, ok := d.(doc)
		if !ok || m[key] == nil {
			t.Fatalf("openapi.yaml has no %s of %s", key, strings.Join(path, "/"))
		}
		d = m[key]
	}
	return d
}

func TestDescriptionHasTheRoutes(t *testing.T) {
	t.Parallel()
	d := description(t)
	var described []string
	for path, methods := range at(t, d, "paths").(doc) {
		for method, op := range methods.(doc) {
			pattern := strings.ToUpper(method) + " " + path
			described = append(described, pattern)
			i := slices.IndexFunc(routes, func(r route) bool { return r.pattern == pattern })
			if i < 0 {
				continue
			}
			var scopes []string
			for _, need := range at(t, op, "security").([]any) {
				for _, scope := range need.(doc)["token"].([]any) {
					scopes = append(scopes, scope.(string))
				}
			}
			if got := strings.Join(scopes, "+"); got != routes[i].scope.String() {
				t.Errorf("%s: described scope %q, the route needs %q", pattern, got, routes[i].scope)
			}
			var params []string
			if list, ok := op.(doc)["parameters"].([]any); ok {
				for _, p := range list {
					p := p.(doc)
					if ref, ok := p["$ref"].(string); ok {
						p = at(t, d, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(doc)
					}
					if p["in"] == "path" {
						params = append(params, p["name"].(string))
					}
				}
			}
			for _, name := range params {
				if !strings.Contains(path, "{"+name+"}") {
					t.Errorf("%s: parameter %s is not in the path", pattern, name)
				}
			}
			if want := strings.Count(path, "{"); want != len(params) {
				t.Errorf("%s: %d path parameters described, %d in the path", pattern, len(params), want)
			}
		}
	}
	var served []string
	for _, r := range routes {
		served = append(served, r.pattern)
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("described: %q\nserved: %q", described, served)
	}
}

func TestDescriptionReferencesResolve(t *testing.T) {
	t.Parallel()
	d := description(t)
	used := map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case doc:
			if ref, ok := v["$ref"].(string); ok {
				used[ref] = true
				at(t, d, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
			}
			for _, child := range v {
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		}
	}
	walk(d)
	for name := range at(t, d, "components", "schemas").(doc) {
		if !used["#/components/schemas/"+name] {
			t.Errorf("schema %s is used nowhere", name)
		}
	}
}

// jsonFields lists the names under which a struct is written, and those that
// are always there.
func jsonFields(typ reflect.Type) (all, always []string) {
	for f := range typ.Fields() {
		if !f.IsExported() {
			continue
		}
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			a, b := jsonFields(f.Type)
			all, always = append(all, a...), append(always, b...)
			continue
		}
		all = append(all, name)
		if !strings.Contains(opts, "omitempty") && !strings.Contains(opts, "omitzero") {
			always = append(always, name)
		}
	}
	slices.Sort(all)
	slices.Sort(always)
	return all, always
}

func TestDescriptionHasTheAnswers(t *testing.T) {
	t.Parallel()
	d := description(t)
	for name, typ := range map[string]reflect.Type{
		"Outcomes": reflect.TypeFor[OutcomesBody](), "Verdict": reflect.TypeFor[VerdictBody](), "Grant": reflect.TypeFor[GrantBody](),
		"Refusal": reflect.TypeFor[RefusalBody](), "Release": reflect.TypeFor[ReleaseBody](), "Extend": reflect.TypeFor[ExtendBody](),
		"Circuit": reflect.TypeFor[CircuitBody](), "Circuits": reflect.TypeFor[CircuitsBody](), "Breaker": reflect.TypeFor[BreakerBody](),
		"Breakers": reflect.TypeFor[BreakersBody](), "Override": reflect.TypeFor[OverrideBody](), "LastFailure": reflect.TypeFor[LastFailureBody](),
		"Evidence": reflect.TypeFor[EvidenceBody](), "CauseCount": reflect.TypeFor[breaker.CauseCount](), "Transition": reflect.TypeFor[TransitionBody](),
		"Transitions": reflect.TypeFor[TransitionsBody](), "Incident": reflect.TypeFor[IncidentBody](), "Incidents": reflect.TypeFor[IncidentsBody](),
		"Rules": reflect.TypeFor[RulesBody](), "Gate": reflect.TypeFor[Gate](), "Health": reflect.TypeFor[HealthBody](), "HealthLine": reflect.TypeFor[HealthLine](),
		"FieldError": reflect.TypeFor[FieldError](), "Warning": reflect.TypeFor[Warning](), "Rejected": reflect.TypeFor[Rejected](),
		"Problem": reflect.TypeFor[problem](), "Controlled": reflect.TypeFor[ControlBody](), "Route": reflect.TypeFor[RouteBody](),
		"Target": reflect.TypeFor[TargetBody](), "Skipped": reflect.TypeFor[SkippedBody](), "Write": reflect.TypeFor[WriteBody](), "Writes": reflect.TypeFor[WritesBody](),
		"ReconciledWrite": reflect.TypeFor[ReconciledBody](), "Chains": reflect.TypeFor[ChainsBody](), "Chain": reflect.TypeFor[breaker.Chain](),
		"ChainTarget": reflect.TypeFor[breaker.Target](),
	} {
		schema := at(t, d, "components", "schemas", name).(doc)
		var all, always []string
		for _, part := range append(parts(t, d, schema), schema) {
			if props, ok := part["properties"].(doc); ok {
				all = slices.AppendSeq(all, maps.Keys(props))
			}
			if required, ok := part["required"].([]any); ok {
				for _, r := range required {
					always = append(always, r.(string))
				}
			}
		}
		slices.Sort(all)
		slices.Sort(always)
		wantAll, wantAlways := jsonFields(typ)
		if name == "Circuit" { // its labels are those of the call: some may be absent
			wantAlways = []string{"breakers", "state"}
		}
		if !slices.Equal(all, wantAll) {
			t.Errorf("schema %s has %q, the struct %q", name, all, wantAll)
		}
		if !slices.Equal(always, wantAlways) {
			t.Errorf("schema %s requires %q, the struct always has %q", name, always, wantAlways)
		}
	}
}

func parts(t *testing.T, d, schema doc) (list []doc) {
	t.Helper()
	if all, ok := schema["allOf"].([]any); ok {
		for _, part := range all {
			part := part.(doc)
			if ref, ok := part["$ref"].(string); ok {
				part = at(t, d, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(doc)
			}
			list = append(list, part)
		}
	}
	return list
}

func TestDescriptionHasTheRequests(t *testing.T) {
	t.Parallel()
	d := description(t)
	check := func(name string, known, required []string) {
		t.Helper()
		schema := at(t, d, "components", "schemas", name).(doc)
		got := slices.Sorted(maps.Keys(schema["properties"].(doc)))
		slices.Sort(known)
		if !slices.Equal(got, known) {
			t.Errorf("schema %s has %q, the decoder knows %q", name, got, known)
		}
		var must []string
		if list, ok := schema["required"].([]any); ok {
			for _, r := range list {
				must = append(must, r.(string))
			}
		}
		if !slices.Equal(must, required) {
			t.Errorf("schema %s requires %q, the decoder %q", name, must, required)
		}
	}
	check("Outcome", slices.Clone(outcomeFields.names), outcomeFields.required())
	check("Fallback", slices.Clone(fallbackFields.names), fallbackFields.required())
	check("Ask", slices.Clone(askFields.names), askFields.required())
	check("RouteAsk", slices.Clone(routeFields.names), routeFields.required())
	check("Tried", slices.Clone(triedFields.names), triedFields.required())
	check("Reconciliation", slices.Clone(reconcileFields.names), reconcileFields.required())
	check("Extension", slices.Clone(extendFields.names), extendFields.required())
	check("Control", slices.Clone(orderFields.names), orderFields.required())
}

func (f *fields[T]) required() (names []string) {
	for _, one := range f.list {
		if one.required {
			names = append(names, one.name)
		}
	}
	return names
}

func TestDescriptionHasTheWords(t *testing.T) {
	t.Parallel()
	d := description(t)
	words := func(path ...string) (list []string) {
		for _, w := range at(t, d, append([]string{"components", "schemas"}, path...)...).([]any) {
			list = append(list, w.(string))
		}
		return list
	}
	var causes, classes, states []string
	for _, c := range breaker.Causes() {
		causes = append(causes, c.String())
		if class := c.Class().String(); !slices.Contains(classes, class) {
			classes = append(classes, class)
		}
	}
	for s := breaker.Closed; s <= breaker.Open; s++ {
		states = append(states, s.String())
	}
	if got := words("Cause", "enum"); !slices.Equal(got, causes) {
		t.Errorf("causes: described %q, known %q", got, causes)
	}
	if got := words("Class", "enum"); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(classes))) {
		t.Errorf("classes: described %q, known %q", got, classes)
	}
	if got := words("State", "enum"); !slices.Equal(got, states) {
		t.Errorf("states: described %q, known %q", got, states)
	}
	writes := []string{string(breaker.WriteInDoubt), string(breaker.WriteApplied), string(breaker.WriteNotApplied), string(breaker.WriteExpired)}
	if got := words("Write", "properties", "state", "enum"); !slices.Equal(got, writes) {
		t.Errorf("states of writes: described %q, known %q", got, writes)
	}
	skipped := []string{breaker.SkippedTried, breaker.SkippedProvider, breaker.SkippedTags, breaker.SkippedContext, breaker.SkippedHops,
		breaker.RefusedWriteInDoubt, breaker.RefusedHeldOpen, breaker.RefusedOpen, breaker.RefusedProbeInFlight}
	if got := words("Skipped", "properties", "reason", "enum"); !slices.Equal(got, skipped) {
		t.Errorf("reasons to skip: described %q, known %q", got, skipped)
	}
	if got := words("Outcome", "properties", "phase", "enum"); !slices.Equal(got, phaseNames) {
		t.Errorf("phases: described %q, known %q", got, phaseNames)
	}
	for s := breaker.ServedPrimary; s <= breaker.ServedRejected; s++ {
		if got := words("Served", "enum"); got[s] != s.String() {
			t.Errorf("served: described %q, lacks %q", got, s)
		}
	}
}
