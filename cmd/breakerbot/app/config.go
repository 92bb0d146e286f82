package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones also where the system has none, as in the image
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"

	"breakerbot/bot"
	"breakerbot/breaker"
	"breakerbot/digest"
	"breakerbot/ingest"
)

// DefaultConfigFile is read when no file is named; it may be missing.
const DefaultConfigFile = "breakerbot.yaml"

const maxConfigFile = 1 << 20

// Config is the configuration in force: file and environment taken together,
// checked, with defaults filled in. It prints without secrets.
type Config struct {
	File        string // the file that was read, "" when there was none
	Listen      string
	DatabaseURL Secret // "": the built-in Postgres in DataDir
	DataDir     string // absolute
	Zone        *time.Location
	Tokens      []Token
	// TokenFile holds one more token with all scopes, made by EnsureTokenFile at
	// the first start; "" is none.
	TokenFile        string
	Telegram         TelegramConfig
	Alerts           AlertsConfig
	Digest           DigestConfig
	Rules            []breaker.Rule // in order of precedence, without disabled ones
	Gates            *ingest.Gates
	Machines         map[string]breaker.Machine
	Chains           map[string]breaker.Chain // by name, as they are spelled
	Health           map[string]Secret        // by machine: the URL of its health check
	Retention        Retention
	AckTimeout       time.Duration
	StartOpen        bool // whether permits are allowed before the state is restored
	MaxAge           time.Duration
	IDsMax           int
	MetricsMaxSeries int
	// Warnings are things that are allowed and probably not meant.
	Warnings []string
}

// TelegramConfig says where messages go. Without a Token they are printed to
// standard output.
type TelegramConfig struct {
	Token     Secret
	APIURL    string // without a slash at the end
	Chats     []bot.Chat
	Operators []int64
}

// AlertsConfig says when people are told.
type AlertsConfig struct {
	GroupWait time.Duration
	LongOpen  []time.Duration // rising; empty: never told again
}

// DigestConfig says when the digest is due.
type DigestConfig struct {
	Cron      string
	QuietDays bool // a line also on days without trips
}

// Retention says how long rows are kept; 0 is for ever.
type Retention struct {
	Outcomes, Counts, Transitions time.Duration
}

// rawConfig is the configuration as it is spelled. Values of type later belong
// to keys in the table notYet.
type rawConfig struct {
	Listen      string     `yaml:"listen"`
	DatabaseURL Secret     `yaml:"database_url"`
	DataDir     string     `yaml:"data_dir"`
	Timezone    string     `yaml:"timezone"`
	Tokens      []rawToken `yaml:"tokens"`
	TokenFile   string     `yaml:"token_file"`
	Telegram    struct {
		Token     Secret    `yaml:"token"`
		APIURL    string    `yaml:"api_url"`
		Chats     []rawChat `yaml:"chats"`
		Operators []int64   `yaml:"operators"`
	} `yaml:"telegram"`
	Alerts struct {
		GroupWait time.Duration   `yaml:"group_wait"`
		LongOpen  []time.Duration `yaml:"long_open"`
		Flapping  later           `yaml:"flapping"`
		Recovery  string          `yaml:"recovery"`
	} `yaml:"alerts"`
	Digest struct {
		Cron      string `yaml:"cron"`
		QuietDays bool   `yaml:"quiet_days"`
		Chart     later  `yaml:"chart"`
		Weekly    later  `yaml:"weekly"`
		Monthly   later  `yaml:"monthly"`
	} `yaml:"digest"`
	BuiltinRules bool                     `yaml:"builtin_rules"`
	Rules        []breaker.Rule           `yaml:"rules"`
	Gates        []ingest.Gate            `yaml:"gates"`
	Chains       map[string]breaker.Chain `yaml:"chains"`
	Machines     map[string]rawMachine    `yaml:"machines"`
	Mutes        later                    `yaml:"mutes"`
	Retention    struct {
		Outcomes    time.Duration `yaml:"outcomes"`
		Counts      time.Duration `yaml:"counts"`
		Transitions time.Duration `yaml:"transitions"`
	} `yaml:"retention"`
	HeartbeatURL         later         `yaml:"heartbeat_url"`
	AckTimeout           time.Duration `yaml:"ack_timeout"`
	StartWithoutDatabase string        `yaml:"start_without_database"`
	MaxAge               time.Duration `yaml:"max_age"`
	IDsMax               int           `yaml:"ids_max"`
	MetricsMaxSeries     int           `yaml:"metrics_max_series"`
	Advertise            later         `yaml:"advertise"`
}

type rawToken struct {
	Name   string   `yaml:"name"`
	Token  Secret   `yaml:"token"`
	Scopes []string `yaml:"scopes"`
}

type rawChat struct {
	ID     int64 `yaml:"id"`
	Thread int   `yaml:"thread"`
	Alerts *bool `yaml:"alerts"` // left out: true
	Digest *bool `yaml:"digest"` // left out: true
}

type rawMachine struct {
	Health   Secret   `yaml:"health"`
	Local    bool     `yaml:"local"`
	Aliases  []string `yaml:"aliases"`
	Provider string   `yaml:"provider"`
}

// notYet lists the keys of the documented configuration whose features this
// version lacks. They may be given with their defaults and are refused with
// anything else, so that nobody takes them to be in force.
var notYet = []struct {
	path       string
	byDefault  any
	isVariable bool // a single value, so it has an environment variable too
}{
	{"alerts.flapping", map[string]any{"trips": "3", "within": "30m", "quiet": "6h"}, false},
	{"digest.chart", "true", true},
	{"digest.weekly", "", true},
	{"digest.monthly", "", true},
	{"mutes", nil, false},
	{"heartbeat_url", "", true},
	{"advertise", "", true},
}

func defaults() *rawConfig {
	c := &rawConfig{
		Listen:               "127.0.0.1:8080",
		BuiltinRules:         true,
		AckTimeout:           2 * time.Second,
		StartWithoutDatabase: "open",
		MaxAge:               2 * time.Minute,
		IDsMax:               4_000_000,
		MetricsMaxSeries:     20_000,
	}
	c.Telegram.APIURL = "https://api.telegram.org"
	c.Alerts.GroupWait = 5 * time.Second
	c.Alerts.LongOpen = []time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour}
	c.Alerts.Recovery = "edit"
	c.Digest.Cron = "0 8 * * *"
	c.Digest.QuietDays = true
	c.Retention.Outcomes = 30 * 24 * time.Hour
	c.Retention.Counts = 400 * 24 * time.Hour
	return c
}

// LoadConfig reads the file at path, lays the environment over it and checks
// the whole. With path "" it reads DefaultConfigFile, which may be missing; a
// named file may not. What is wrong comes back as one *ConfigError with every
// problem, each with its place, its key and what would be right.
func LoadConfig(path string, env func(string) (string, bool)) (Config, error) {
	p := &problems{file: path, places: make(map[string]place)}
	raw := defaults()
	cfg := Config{}

	if path == "" {
		p.file = DefaultConfigFile
	}
	data, loose, err := readConfig(p.file)
	switch {
	case err == nil:
		cfg.File = p.file
		decode(data, raw, p)
	case path == "" && errors.Is(err, fs.ErrNotExist):
	default:
		return Config{}, &ConfigError{Problems: []string{err.Error()}}
	}
	fromEnvironment(raw, env, p)
	c := &checker{raw: raw, cfg: &cfg, problems: p, env: env}
	c.check()
	if loose && c.secretsInFile() {
		c.warn("%s holds secrets and others on this system may read it: chmod 600 %s", cfg.File, cfg.File)
	}
	if err := p.err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// readConfig also tells whether users other than the owner's group may read the
// file. Its errors name the file.
func readConfig(name string) (data []byte, loose bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if info.IsDir() {
		return nil, false, fmt.Errorf("%s is a folder: a YAML file is needed", name)
	}
	data, err = io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return nil, false, err
	}
	if len(data) > maxConfigFile {
		return nil, false, fmt.Errorf("%s is larger than %d bytes", name, maxConfigFile)
	}
	return data, runtime.GOOS != "windows" && info.Mode().Perm()&0o004 != 0, nil
}

// checker turns what was spelled into what is in force.
type checker struct {
	raw *rawConfig
	cfg *Config
	*problems
	env func(string) (string, bool)
}

func (c *checker) warn(format string, args ...any) {
	c.cfg.Warnings = append(c.cfg.Warnings, fmt.Sprintf(format, args...))
}

// secretsInFile tells whether a secret in force came from the file.
func (c *checker) secretsInFile() bool {
	for key, value := range map[string]Secret{"telegram.token": c.raw.Telegram.Token, "database_url": c.raw.DatabaseURL} {
		if value != "" && c.places[key].line > 0 {
			return true
		}
	}
	return len(c.raw.Tokens) > 0 && c.places["tokens"].line > 0
}

func (c *checker) check() {
	raw, cfg := c.raw, c.cfg
	c.checkTokens()
	c.checkListen()
	c.checkDatabase()
	c.checkZone()
	c.checkTelegram()
	c.checkMachines()
	c.checkRules()
	c.checkGates()
	c.checkChains()
	c.checkLater()

	cfg.Alerts.GroupWait = c.between("alerts.group_wait", raw.Alerts.GroupWait, 0, 10*time.Minute)
	cfg.Alerts.LongOpen = raw.Alerts.LongOpen
	for i, step := range raw.Alerts.LongOpen {
		key := "alerts.long_open[" + strconv.Itoa(i) + "]"
		if c.found(key) {
			continue
		}
		c.between(key, step, time.Second, 365*24*time.Hour)
		if i > 0 && step <= raw.Alerts.LongOpen[i-1] {
			c.at(key, "%s does not follow %s: the steps must rise", days(step), days(raw.Alerts.LongOpen[i-1]))
		}
	}
	if raw.Alerts.Recovery != "edit" {
		c.at("alerts.recovery", "%q is unknown: only edit can be given", clip(raw.Alerts.Recovery))
	}

	cfg.Digest = DigestConfig{Cron: raw.Digest.Cron, QuietDays: raw.Digest.QuietDays}
	if _, err := digest.ParseSchedule(raw.Digest.Cron); err != nil {
		c.at("digest.cron", "%v", err)
	}

	cfg.Retention = Retention{
		Outcomes:    c.keep("retention.outcomes", raw.Retention.Outcomes),
		Counts:      c.keep("retention.counts", raw.Retention.Counts),
		Transitions: c.keep("retention.transitions", raw.Retention.Transitions),
	}
	cfg.AckTimeout = c.between("ack_timeout", raw.AckTimeout, 10*time.Millisecond, time.Minute)
	cfg.MaxAge = c.between("max_age", raw.MaxAge, time.Second, 24*time.Hour)
	cfg.IDsMax = c.within("ids_max", raw.IDsMax, 1000, 100_000_000)
	cfg.MetricsMaxSeries = c.within("metrics_max_series", raw.MetricsMaxSeries, 100, 1_000_000)
	switch raw.StartWithoutDatabase {
	case "open", "closed":
		cfg.StartOpen = raw.StartWithoutDatabase == "open"
	default:
		c.at("start_without_database", "%q is unknown: open (permits are allowed) or closed (they are refused) is needed",
			clip(raw.StartWithoutDatabase))
	}
}

func (c *checker) between(key string, v, low, high time.Duration) time.Duration {
	if v < low || v > high {
		c.at(key, "%s is out of range: %s to %s are allowed", days(v), days(low), days(high))
	}
	return v
}

func (c *checker) within(key string, v, low, high int) int {
	if v < low || v > high {
		c.at(key, "%d is out of range: %d to %d are allowed", v, low, high)
	}
	return v
}

// keep checks a retention: shorter than a day it would cut into the digest.
func (c *checker) keep(key string, v time.Duration) time.Duration {
	if v != 0 && v < 24*time.Hour {
		c.at(key, "%s is too short: at least 24h is needed, or 0 for ever", days(v))
	}
	return v
}

func (c *checker) checkListen() {
	listen := c.raw.Listen
	c.cfg.Listen = listen
	host, port, err := net.SplitHostPort(listen)
	if n, convErr := strconv.Atoi(port); err != nil || convErr != nil || n < 0 || n > 65535 {
		c.at("listen", "%q is no address: host:port such as 127.0.0.1:8080 is needed, with a port up to 65535", clip(listen))
		return
	}
	if !loopback(host) && len(c.raw.Tokens) == 0 && c.raw.TokenFile == "" {
		c.at("listen", "%q can be reached from other machines: without tokens only a loopback address such as 127.0.0.1:%s is allowed; make one with: breakerbot token NAME", listen, port)
	}
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func (c *checker) checkDatabase() {
	c.cfg.DatabaseURL = c.raw.DatabaseURL
	if c.raw.DatabaseURL != "" {
		// The library's error quotes the URL, so it is not passed on.
		if _, err := pgconn.ParseConfig(string(c.raw.DatabaseURL)); err != nil {
			c.at("database_url", "its value (not shown) cannot be read: it looks like postgres://user:password@host:5432/name, with %%-escapes in the password, or host=… user=… dbname=…")
		}
	}
	dir, err := c.folder(c.raw.DataDir)
	switch {
	case err != nil && c.raw.DataDir != "":
		c.at("data_dir", "%q: %v", clip(c.raw.DataDir), err)
	case err != nil:
		c.at("data_dir", "has no default: %v; name a folder", err)
	}
	c.cfg.DataDir = dir
	if c.raw.TokenFile != "" {
		if c.cfg.TokenFile, err = c.absolute(c.raw.TokenFile); err != nil {
			c.at("token_file", "%q: %v", clip(c.raw.TokenFile), err)
		}
	}
}

// folder is the data folder: as given, or the place where the system keeps the
// state of services (as root) or of this user's programs.
func (c *checker) folder(given string) (string, error) {
	if given != "" {
		return c.absolute(given)
	}
	if runtime.GOOS == "linux" && os.Geteuid() == 0 {
		return "/var/lib/breakerbot", nil
	}
	if state, ok := c.env("XDG_STATE_HOME"); ok && filepath.IsAbs(state) {
		return filepath.Join(state, "breakerbot"), nil
	}
	if runtime.GOOS == "darwin" {
		return c.absolute("~/Library/Application Support/breakerbot")
	}
	return c.absolute("~/.local/state/breakerbot")
}

// absolute reads ~/ as the home folder and a relative path from where we run.
func (c *checker) absolute(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, ok := c.env("HOME")
		if !ok || home == "" {
			return "", errors.New("HOME is not set")
		}
		path = filepath.Join(home, rest)
	}
	return filepath.Abs(path)
}

func (c *checker) checkZone() {
	c.cfg.Zone = time.Local
	name := c.raw.Timezone
	if name == "" || name == "Local" {
		return
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		c.at("timezone", "%q is no time zone: a name such as Europe/Berlin, UTC or Local is needed", clip(name))
		return
	}
	c.cfg.Zone = zone
}

// Nobody in particular acts as these users, so they can be no operators.
var nobody = map[int64]string{
	1087968824: "stands for every anonymous administrator",
	777000:     "is Telegram itself",
}

func (c *checker) checkTelegram() {
	raw, t := &c.raw.Telegram, &c.cfg.Telegram
	t.Token = raw.Token
	if strings.ContainsFunc(string(raw.Token), func(r rune) bool { return r <= ' ' || r == '/' || r > '~' }) {
		c.at("telegram.token", "its value (not shown) holds a character that no token has: it looks like 123456:ABC-def, as BotFather wrote it")
	} else if id, key, ok := strings.Cut(string(raw.Token), ":"); raw.Token != "" && (!ok || key == "" || strings.Trim(id, "0123456789") != "") {
		c.warn("telegram.token does not look like 123456:ABC-def, as BotFather writes it")
	}

	t.APIURL = strings.TrimRight(raw.APIURL, "/")
	switch u, err := url.Parse(t.APIURL); {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		c.at("telegram.api_url", "its value (not shown, it may hold a token) is no base address: it looks like https://api.telegram.org")
	case strings.Contains(u.Path, "/bot"):
		c.at("telegram.api_url", "must end before /bot: the token has its own key, telegram.token")
	}

	seen := make(map[[2]int64]int)
	for i, chat := range raw.Chats {
		key := "telegram.chats[" + strconv.Itoa(i) + "]"
		if chat.ID == 0 && !c.found(key+".id") {
			c.at(key+".id", "is missing: a chat's number is needed, negative for groups (the bot tells it to strangers who write to it)")
		}
		if chat.Thread < 0 {
			c.at(key+".thread", "%d is no topic: its number is needed, or 0 for none", chat.Thread)
		}
		if chat.Thread == 1 {
			chat.Thread = 0 // the General topic is the group itself
		}
		if first, twice := seen[[2]int64{chat.ID, int64(chat.Thread)}]; twice && chat.ID != 0 {
			c.at(key, "is the same chat and thread as telegram.chats[%d]", first)
		}
		seen[[2]int64{chat.ID, int64(chat.Thread)}] = i
		t.Chats = append(t.Chats, bot.Chat{
			ID: chat.ID, Thread: chat.Thread,
			Alerts: chat.Alerts == nil || *chat.Alerts, Digest: chat.Digest == nil || *chat.Digest,
		})
	}
	for i, id := range raw.Operators {
		key := "telegram.operators[" + strconv.Itoa(i) + "]"
		switch why, isNobody := nobody[id]; {
		case c.found(key):
		case isNobody:
			c.at(key, "%d %s and can be no operator", id, why)
		case id <= 0:
			c.at(key, "%d is no user's number: those are positive", id)
		case slices.Contains(raw.Operators[:i], id):
			c.at(key, "%d is given twice", id)
		}
	}
	t.Operators = raw.Operators
	if t.Token != "" && len(t.Chats) == 0 {
		c.warn("telegram.token is set and telegram.chats is empty: nobody will be told anything; write to the bot, it answers with the chat's number")
	}
}

func (c *checker) checkMachines() {
	owner := make(map[string]string, len(c.raw.Machines)) // name or alias → machine
	for name := range c.raw.Machines {
		owner[name] = name
	}
	c.cfg.Machines = make(map[string]breaker.Machine, len(c.raw.Machines))
	c.cfg.Health = make(map[string]Secret)
	for _, name := range sorted(c.raw.Machines) {
		m, key := c.raw.Machines[name], join("machines", name)
		if err := breaker.CheckLabel(name); err != nil {
			c.at(key, "the machine's name %v", err)
		}
		if m.Provider != "" {
			if err := breaker.CheckLabel(m.Provider); err != nil {
				c.at(key+".provider", "%v", err)
			}
		}
		for i, alias := range m.Aliases {
			key := key + ".aliases[" + strconv.Itoa(i) + "]"
			if err := breaker.CheckLabel(alias); err != nil {
				c.at(key, "%v", err)
				continue
			}
			if other, taken := owner[alias]; taken {
				c.at(key, "%q already means the machine %s", alias, other)
				continue
			}
			owner[alias] = name
		}
		if m.Health != "" {
			c.cfg.Health[name] = c.healthURL(key+".health", string(m.Health))
		}
		c.cfg.Machines[name] = breaker.Machine{Provider: m.Provider, Aliases: m.Aliases, Local: m.Local}
	}
}

func (c *checker) checkLater() {
	for _, key := range notYet {
		v := reflect.ValueOf(c.raw).Elem()
		for part := range strings.SplitSeq(key.path, ".") {
			v = v.Field(fieldsOf(v.Type())[part])
		}
		c.refuseLater(key.path, v.Interface().(later).value, key.byDefault)
	}
}

func (c *checker) refuseLater(path string, value, byDefault any) {
	if !isDefault(value, byDefault) {
		c.at(path, "is not available in this version: leave it out")
	}
}

// isDefault tells whether the value asks for nothing beyond the default. A
// feature that is on by default and does not exist yet may be turned off.
func isDefault(value, byDefault any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == "" || v == byDefault || v == "false" && byDefault == "true"
	case []any:
		return len(v) == 0
	case map[string]any:
		known, _ := byDefault.(map[string]any)
		for key, part := range v {
			if known[key] == nil || !reflect.DeepEqual(part, known[key]) {
				return false
			}
		}
		return true
	}
	return false
}

// printable tells whether every character of the text is one that can stand in
// a header and in a shell's quotes.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) || unicode.IsSpace(r) })
}
