# `make` alone lists the targets.

GO           ?= go
ARGS         ?=
# A number of inputs, not a time: at the end of a time a worker that is busy fails.
FUZZTIME     ?= 50000x
FUZZ_PKGS    ?= ./idem ./kv ./tool ./httpapi
TORTURE      ?= 60s
TEST_TIMEOUT ?= 10m
RACE_TIMEOUT ?= 20m
# cmd/ tests start the real binary, which the race detector does not see.
RACE_PKGS    ?= $$($(GO) list ./... | grep -v '/cmd/')
VERSION      ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)

# What ships has no cgo. No VCS stamp: VERSION says it, and builds must not need git.
export CGO_ENABLED := 0
export GOFLAGS := $(strip -buildvcs=false $(GOFLAGS))

LINTER := tools/bin/golangci-lint

.PHONY: help run build test race torture fault probe bench bench-compare fuzz-smoke lint clean need-cc need-scripts
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Build, then serve with the defaults; ARGS="..." is appended
	./bin/idemd serve $(ARGS)

build: ## Build every command into bin/
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/...

# -count=1: a cached result knows nothing of a binary that the test built and started.
test: need-scripts ## All tests, then again under the race detector
	$(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./...
	@$(MAKE) --no-print-directory race

race: need-cc ## The tests of RACE_PKGS under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -tags pebblegozstd -count=1 -timeout $(RACE_TIMEOUT) $(RACE_PKGS)

torture: ## The long forms: crash images, failing disks, kills; TORTURE is the time of each, seeds are printed
	IDEMD_TORTURE=$(TORTURE) $(GO) test -count=1 -timeout 60m -v -run 'TestTorture|TestTornLog|TestFlipped|TestFailingDiskWhileOpening' ./kv
	IDEMD_TORTURE=$(TORTURE) IDEMD_E2E_ROUNDS=30 $(GO) test -count=1 -timeout 60m -v ./cmd/idemd/e2e

fault: build ## Inject faults with curl and show what came of them; ARGS="--crash" takes one of them
	IDEMD=bin/idemd scripts/fault_inject.sh $(ARGS)

probe: build ## Prove it: ten scenarios, and the same faults against idemd itself; ARGS="..." is appended
	./bin/idemd probe $(ARGS)

bench: build ## Measure distinct keys and the same key, beside a control; ARGS="..." is appended
	./bin/bench run --profile distinct,distinct-300,same $(ARGS)

# What is set on make's command line is in the environment of the script, which lists it all.
bench-compare: ## Is the tree slower than BASE=COMMIT? Both in turns, on this machine; RUNS, DURATION, PROFILE, OUT
	scripts/bench_compare.sh "$$BASE"

fuzz-smoke: ## Each fuzz target of FUZZ_PKGS for FUZZTIME
	@set -e; for pkg in $(FUZZ_PKGS); do \
	  list=$$($(GO) test -list '^Fuzz' $$pkg); \
	  names=$$(echo "$$list" | grep '^Fuzz') || { echo "no fuzz target in $$pkg" >&2; exit 1; }; \
	  for name in $$names; do \
	    echo "$$pkg $$name"; \
	    $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; \
	done

lint: $(LINTER) ## gofmt, vet, golangci-lint (the import table too), go.mod
	@files=$$(gofmt -l .) && test -z "$$files" || { echo "not gofmt-ed: $$files" >&2; exit 1; }
	$(GO) vet ./...
	$(LINTER) run ./...
	$(GO) mod verify
	$(GO) mod tidy -diff

$(LINTER): tools/go.mod tools/go.sum
	$(GO) -C tools build -o bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

clean: ## Remove what make built; data directories stay
	rm -rf bin tools/bin

# What the tests of scripts/ run.
need-scripts:
	@missing() { for p in bash curl git; do command -v $$p >/dev/null || echo $$p; done; }; \
	[ -z "$$(missing)" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$(missing) >/dev/null; \
	fi; \
	[ -z "$$(missing)" ] || { echo "the tests need: $$(missing)" >&2; exit 1; }

need-cc:
	@cc=$$($(GO) env CC); \
	ok() { command -v $${cc%% *} >/dev/null && echo '#include <stdlib.h>' | $$cc -fsyntax-only -x c - 2>/dev/null; }; \
	ok && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null; \
	fi; \
	ok || { echo "the race detector needs a C compiler and libc headers (Debian: apt-get install gcc libc6-dev)" >&2; exit 1; }
