# breakerbot: make demo, make run, make test, make check. Works with GNU make
# 3.81 and the tools of macOS.

GO      ?= go
ARGS    ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || true)
RACE    := $(shell { command -v cc || command -v gcc || command -v clang; } >/dev/null 2>&1 && echo -race)
LDFLAGS := -s -w -X breakerbot/cmd/breakerbot/app.Version=$(VERSION)

FUZZTIME ?= 1m

.PHONY: help demo run build test nightly fuzz bench bench-engine lint gofmt vet staticcheck fix tidy imports check clean go

help: ## list the targets
	@echo "make demo    a simulated day with three outages, in about a minute"
	@echo "make run     start the service (ARGS='--config breakerbot.yaml' passes flags on)"
	@echo "make build   bin/breakerbot"
	@echo "make test    all tests, with the race detector"
	@echo "make check   the gate: gofmt, vet, staticcheck, go fix, go mod tidy, import directions, tests"
	@echo "make lint    the gate without the tests"
	@echo "make nightly the engine against its model in 50,000 random sequences, and the other property tests"
	@echo "make fuzz    every fuzz target for a minute (FUZZTIME=10m for longer)"
	@echo "make bench   the benchmarks"
	@echo "make bench-engine  the engine against gobreaker and failsafe-go, with the goals, in about 5 minutes"
	@echo "make clean   remove what was built; data is left alone"

demo: build
	@sh scripts/ensure-postgres.sh --always
	bin/breakerbot demo $(ARGS)

run: build
	@sh scripts/ensure-postgres.sh
	bin/breakerbot serve $(ARGS)

build: go
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/breakerbot ./cmd/breakerbot

test: go
	@sh scripts/ensure-postgres.sh --always
	@test -n "$(RACE)" || echo "no C compiler is here: testing without the race detector, which needs one"
	$(GO) test $(RACE) ./...

nightly: go
	$(GO) test $(RACE) -timeout 6h ./breaker -rapid.checks=10000

fuzz: go
	@for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "== $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

bench: go
	@sh scripts/ensure-postgres.sh --always
	$(GO) test -short -run '^$$' -bench . -benchmem ./...

# Five passes, not -count 5: what is compared stands near each other in time, and
# a busy minute spoils one value of each and not all of one. The raw output stays
# in bin, for benchstat.
bench-engine: go
	@mkdir -p bin
	@rm -f bin/bench-engine.txt
	@for pass in 1 2 3 4 5; do echo "bench-engine: pass $$pass of 5"; \
	  $(GO) test -run '^$$' -bench '^Benchmark(Engine|Gobreaker|Failsafe)$$' -benchtime 200ms -timeout 30m ./breaker >> bin/bench-engine.txt || { cat bin/bench-engine.txt; exit 1; }; done
	@echo "bench-engine: memory and restore"; \
	  $(GO) test -run '^$$' -bench '^Benchmark(Memory|Restore)$$' -benchtime 1x -timeout 30m ./breaker >> bin/bench-engine.txt || { cat bin/bench-engine.txt; exit 1; }
	@$(GO) run ./scripts/benchtable < bin/bench-engine.txt

check: lint imports test
	@echo "check: all is well"

lint: gofmt vet staticcheck fix tidy

gofmt: go
	@echo "== gofmt"
	@files=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .) && test -z "$$files" || { echo "not formatted (gofmt -w them):"; echo "$$files"; exit 1; }

vet: go
	@echo "== go vet"
	@$(GO) vet ./...

staticcheck: go
	@echo "== staticcheck"
	@$(GO) tool staticcheck ./...

fix: go
	@echo "== go fix"
	@diff=$$($(GO) fix -diff ./... 2>&1) && test -z "$$diff" || { echo "$$diff"; echo "older ways of writing Go: run $(GO) fix ./..."; exit 1; }

tidy: go
	@echo "== go mod tidy"
	@$(GO) mod tidy -diff || { echo "go.mod or go.sum is not tidy: run $(GO) mod tidy"; exit 1; }

imports: go
	@echo "== import directions"
	@$(GO) test -count=1 -run '^TestImportDirections$$' ./cmd/breakerbot/app

clean:
	rm -rf bin

go:
	@command -v $(GO) >/dev/null 2>&1 || { echo "Go is not installed: 1.26 or newer is needed"; exit 1; }
