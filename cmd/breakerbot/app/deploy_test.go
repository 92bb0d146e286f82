package app

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// root is the repository's folder, seen from this package's.
const root = "../../.."

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

type composeFile struct {
	Services map[string]struct {
		Image string `yaml:"image"`
		Build struct {
			Context    string `yaml:"context"`
			Dockerfile string `yaml:"dockerfile"`
		} `yaml:"build"`
		Environment map[string]string `yaml:"environment"`
		Ports       []string          `yaml:"ports"`
		Volumes     []string          `yaml:"volumes"`
		DependsOn   map[string]struct {
			Condition string `yaml:"condition"`
		} `yaml:"depends_on"`
		Healthcheck struct {
			Test     []string `yaml:"test"`
			Interval string   `yaml:"interval"`
			Timeout  string   `yaml:"timeout"`
			Retries  int      `yaml:"retries"`
			Start    string   `yaml:"start_period"`
		} `yaml:"healthcheck"`
		Restart     string   `yaml:"restart"`
		StopGrace   string   `yaml:"stop_grace_period"`
		ReadOnly    bool     `yaml:"read_only"`
		CapDrop     []string `yaml:"cap_drop"`
		SecurityOpt []string `yaml:"security_opt"`
	} `yaml:"services"`
	Name    string                    `yaml:"name"`
	Volumes map[string]map[string]any `yaml:"volumes"`
}

func TestCompose(t *testing.T) {
	t.Parallel()
	text := readFile(t, "docker-compose.yml")
	var compose composeFile
	if err := yaml.UnmarshalWithOptions([]byte(text), &compose, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(compose.Services)); !slices.Equal(got, []string{"breakerbot", "postgres"}) {
		t.Fatalf("services: %v", got)
	}
	ours, db := compose.Services["breakerbot"], compose.Services["postgres"]

	if !regexp.MustCompile(`^postgres:\d+$`).MatchString(db.Image) {
		t.Errorf("postgres is not pinned to a major version: %s", db.Image)
	}
	if len(db.Ports) > 0 || len(db.Environment) == 0 {
		t.Errorf("postgres is published: %v", db.Ports)
	}
	if !slices.Equal(ours.Ports, []string{"127.0.0.1:8080:8080"}) {
		t.Errorf("published on %v, want this machine only", ours.Ports)
	}
	if ours.DependsOn["postgres"].Condition != "service_healthy" {
		t.Errorf("depends on %v", ours.DependsOn)
	}
	if _, err := os.Stat(filepath.Join(root, ours.Build.Context, ours.Build.Dockerfile)); err != nil {
		t.Error(err)
	}
	for name, service := range compose.Services {
		check := service.Healthcheck
		if len(check.Test) < 2 || check.Test[0] != "CMD" || check.Interval == "" || check.Timeout == "" || check.Retries < 2 || check.Start == "" {
			t.Errorf("%s: health check %+v", name, check)
		}
		named := 0
		for _, volume := range service.Volumes {
			if from, _, _ := strings.Cut(volume, ":"); compose.hasVolume(from) {
				named++
			}
		}
		if named != 1 {
			t.Errorf("%s keeps its data in %v, want one of the volumes %v", name, service.Volumes, compose.Volumes)
		}
		for key, value := range service.Environment {
			if regexp.MustCompile("PASSWORD|TOKEN").MatchString(key) && !strings.HasPrefix(value, "${") {
				t.Errorf("%s: %s is written into the file", name, key)
			}
		}
	}

	// The variables reach the service as ones it knows, and give a valid
	// configuration also when only the password is set.
	var environ []string
	env := imageEnvironment(t)
	given := map[string]string{"POSTGRES_PASSWORD": "pa ss'word/@:"}
	for key, value := range ours.Environment {
		environ = append(environ, key+"="+value)
		env[key] = interpolate(t, value, given)
	}
	if unknown := UnknownVariables(environ); unknown != nil {
		t.Error(unknown)
	}
	delete(env, "PGPASSWORD") // read from the process by the driver
	cfg, wrong := load(t, "", env)
	if wrong != nil {
		t.Fatal(wrong)
	}
	if cfg.Listen != "0.0.0.0:8080" || cfg.TokenFile != "/data/token" || cfg.DataDir != "/data" || cfg.Zone.String() != "UTC" ||
		cfg.Digest.Cron != "0 8 * * *" || !strings.Contains(cfg.describeDatabase(), "breakerbot at postgres port 5432, as breakerbot") {
		t.Errorf("in the container: %+v, %s", cfg, cfg.describeDatabase())
	}
}

func (c composeFile) hasVolume(name string) bool { _, ok := c.Volumes[name]; return ok }

var reference = regexp.MustCompile(`\$\{([A-Z_]+)(:[-?])([^}]*)\}`)

// interpolate fills in variables as compose does: a missing one has a default
// after :- and is an error after :?.
func interpolate(t *testing.T, value string, given map[string]string) string {
	t.Helper()
	return reference.ReplaceAllStringFunc(value, func(match string) string {
		parts := reference.FindStringSubmatch(match)
		switch v := given[parts[1]]; {
		case v != "":
			return v
		case parts[2] == ":?":
			t.Errorf("%s is needed and not given", parts[1])
		}
		return parts[3]
	})
}

func TestEnvExample(t *testing.T) {
	t.Parallel()
	var used, listed []string
	for _, match := range reference.FindAllStringSubmatch(readFile(t, "docker-compose.yml"), -1) {
		used = append(used, match[1])
	}
	for line := range strings.Lines(readFile(t, "deploy/env.example")) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		listed = append(listed, name)
		if regexp.MustCompile("PASSWORD|TOKEN").MatchString(name) && value != "" {
			t.Errorf("%s has a value in the example", name)
		}
	}
	slices.Sort(used)
	slices.Sort(listed)
	if used = slices.Compact(used); !slices.Equal(used, listed) {
		t.Errorf("docker-compose.yml uses %v, env.example lists %v", used, listed)
	}
	if !slices.Contains(strings.Fields(readFile(t, ".gitignore")), ".env") || !slices.Contains(strings.Fields(readFile(t, ".dockerignore")), ".env") {
		t.Error(".env can get into the repository or the image")
	}
}

var imageVariable = regexp.MustCompile(`(?m)^(?:ENV|   ) ?([A-Z_]+)=(\S+)`)

// imageEnvironment is what the Dockerfile's ENV sets.
func imageEnvironment(t *testing.T) map[string]string {
	t.Helper()
	env := make(map[string]string)
	for _, match := range imageVariable.FindAllStringSubmatch(readFile(t, "deploy/Dockerfile"), -1) {
		env[match[1]] = match[2]
	}
	return env
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := readFile(t, "deploy/Dockerfile")
	env := imageEnvironment(t)
	if env["BREAKERBOT_LISTEN"] != "0.0.0.0:8080" || env["BREAKERBOT_TOKEN_FILE"] == "" || env["HOME"] == "" {
		t.Errorf("ENV: %v", env)
	}
	var environ []string
	for key := range env {
		environ = append(environ, key+"=")
	}
	if unknown := UnknownVariables(environ); unknown != nil {
		t.Error(unknown)
	}
	for _, part := range []string{
		"\nFROM scratch\n", "CGO_ENABLED=0", "-trimpath", "ca-certificates.crt", "\nUSER 10001:10001\n",
		`CMD ["/breakerbot", "health", "--url", "http://127.0.0.1:8080"]`, `ENTRYPOINT ["/breakerbot"]`, `CMD ["serve"]`,
	} {
		if !strings.Contains(text, part) {
			t.Errorf("missing: %q", part)
		}
	}
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readFile(t, "go.mod"))[1]
	if !strings.Contains(text, "FROM golang:"+goVersion+" ") {
		t.Errorf("the image is built with another Go than go.mod's %s", goVersion)
	}
}

// The example file is the defaults, and what it shows in comments is valid.
func TestExampleConfiguration(t *testing.T) {
	t.Parallel()
	text := readFile(t, "deploy/breakerbot.example.yaml")
	byFile, wrong := load(t, text, nil)
	if wrong != nil {
		t.Fatal(strings.Join(wrong, "\n"))
	}
	byDefault, _ := load(t, "", nil)
	byFile.File = byDefault.File
	if got, want := fmt.Sprintf("%+v", byFile), fmt.Sprintf("%+v", byDefault); got != want {
		t.Errorf("the example gives\n%s, the defaults are\n%s", got, want)
	}

	shown := regexp.MustCompile(`(?m)^( *)#(  .*)$`).ReplaceAllString(text, "$1$2")
	shown = regexp.MustCompile(`(?m)(tokens|chats|rules|gates): \[\]`).ReplaceAllString(shown, "$1:")
	shown = regexp.MustCompile(`(?m)(machines|chains): \{\}`).ReplaceAllString(shown, "$1:")
	shown = strings.ReplaceAll(shown, "bb_…", "bb_0123456789abcdef")
	cfg, wrong := load(t, shown, nil)
	if wrong != nil {
		t.Fatal(strings.Join(wrong, "\n") + "\n" + shown)
	}
	if len(cfg.Tokens) != 1 || len(cfg.Telegram.Chats) != 1 || len(cfg.Machines) != 1 || len(cfg.Health) != 1 || len(cfg.Chains["code"].Targets) != 2 || len(cfg.Gates.List()) != 1 || len(cfg.Rules) != 8 || cfg.Rules[2].Match.Model == "" {
		t.Errorf("the comments give %+v", cfg)
	}

	// Every key is in the file, but for those of features to come.
	for _, s := range settings() {
		if laterVariable(s.path) {
			continue
		}
		key := s.path[strings.LastIndexByte(s.path, '.')+1:]
		if !strings.Contains(text, key+":") {
			t.Errorf("%s is not in the example", s.path)
		}
		if variables[s.path] != "" && !strings.Contains(text, s.variable) {
			t.Errorf("%s is not in the example", s.variable)
		}
	}
}
