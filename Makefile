# The only door: CI and the documentation call nothing else.
CARGO ?= cargo
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo --preserve-env=PATH,PODPERF_KILLS,PODPERF_SEED,PODPERF_LANDING,PODPERF_ONLY,PODPERF_TIMES,PODPERF_WRITE_GOLDEN,PODPERF_WRITE_LAYOUT)
# What cargo runs test programs through; it takes no empty one. With LONG=1, tests are as large as they get.
RUNNER = $(or $(SUDO),env) $(if $(LONG),env PODPERF_LONG=1)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER = $(RUNNER)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER = $(RUNNER)
export CARGO
CONFIG ?= config/podperf.yaml
# cargo-deny and cargo-fuzz are tools, not dependencies: they are built once and kept.
TOOLS ?= $(HOME)/.cache/podperf/tools
DENY_VERSION := 0.20.2
# Not optimized: they run for seconds, and compiling them would take minutes.
INSTALL := CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --quiet --locked --debug --root $(TOOLS)
# The stable compiler has no sanitizers; in code without `unsafe`, panics are what there is to be found.
FUZZ := $(TOOLS)/bin/cargo-fuzz
FUZZ_VERSION := 0.13.1
FUZZ_FLAGS := --fuzz-dir tests/fuzz --target-dir target/fuzz --sanitizer none
FUZZ_SECONDS ?= 600
FUZZ_TARGETS := $(basename $(notdir $(wildcard tests/fuzz/fuzz_targets/*.rs)))
SOAK_MINUTES ?= 60
# It judges workflows; a wheel of PyPI holds the program.
ZIZMOR_VERSION := 1.32.0

.DEFAULT_GOAL := help
.PHONY: help setup build image run test rings rings-build rings-check ignored test-build test-tools test-pure collector chart golden rules-mutation release-rehearsal e2e faults kube kills soak vm vm-land vm-build vm-x86 vm-arm64 fuzz fuzz-build lint deny bench clean

help: ## Show this
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## Install what building needs, where it is missing
	@./setup.sh build

build: setup ## Build the agent: target/release/podperf
	$(CARGO) build --release --locked -p podperf

image: ## Build the image, and say where it is: an archive for runtimes to import
	@./setup.sh image
	@$(SUDO) tests/image/build.sh

release-rehearsal: ## Make a release of the last commit, without signatures, in a registry of its own (PROFILE=dev for a quick one, TWICE=1)
	@./setup.sh rehearsal
	@$(SUDO) env $(if $(PROFILE),PROFILE=$(PROFILE)) $(if $(TWICE),TWICE=$(TWICE)) .ci/rehearsal

run: build ## Build the agent and run it until Ctrl-C (ARGS="--listen ADDR:PORT ...")
	$(SUDO) target/release/podperf agent --config $(CONFIG) $(ARGS)

test: test-build ## Run the tests that must pass before a change lands (ten minutes); those that the machine cannot run say so
	tests/land.sh

rings: ## Run each whole ring of tests that has no passed run of these files, and write docs/rings.md (make rings-kernel for one, ALL=1 for all)
	tests/rings.sh run

rings-%: ## The same for one ring: make rings-kernel
	tests/rings.sh run $*

rings-check: ## Print the rings of `make rings` that have no passed run of these files (ARGS=node for another, ARGS=--release for all and the kernels)
	@tests/rings.sh check $(ARGS)

ignored: ## Name what `make test | tee target/test.log` left out; fail for a reason that tests/ignored.txt does not list
	@target/debug/podperf-ignored target/test.log

test-build: ## Build what `make test` runs, and run nothing
	@./setup.sh test
	$(CARGO) build --locked --workspace --exclude podperf-bench --bins --tests

test-tools: ## Build the tools that `make test` needs and that are not of this repository, each once
	@! command -v go >/dev/null || { \
		tests/kube/build.sh && tests/collector/build.sh && tests/chart/build.sh helm helm-docs jsonnet operators && go tool pprof -h >/dev/null 2>&1 || :; }
	@tests/chart/validator.sh

rings-build: test-build test-tools
	@./setup.sh rings
	tests/other-layout.sh
	@! command -v npm >/dev/null || tests/e2e/axe.sh
	@! command -v go >/dev/null || { tests/prometheus/build.sh && tests/collector/profcheck.sh; }

test-pure: RUNNER := env
test-pure: setup ## Run the tests that need neither root nor network
	$(CARGO) test --locked -p podperf -p podperf-ebpf

chart: ## Lint the Helm chart and run its tests (ring 6) alone
	@./setup.sh chart
	$(CARGO) build --locked -p podperf -p podperf-tests --bins
	$(CARGO) test --locked -p podperf-tests --test chart

golden: ## Write again all that is generated from code: pages, tables, the chart's README and examples
	@./setup.sh chart
	$(CARGO) build --locked --workspace --bins
	PODPERF_WRITE_GOLDEN=1 $(CARGO) test --locked --workspace --lib --test programs --test chart --test rules -- generated

rules-mutation: ## Spoil each alert and recording rule, one at a time, and want the tests to notice
	@./setup.sh test
	$(CARGO) build --locked -p podperf-tests --bin podperf-rules-mutation
	target/debug/podperf-rules-mutation

.PHONY: dashboards
# Needs a network and node; the tests of `make test` check what needs neither.
dashboards: ## Hold each dashboard against the types that Grafana publishes, of its oldest version here and of its newest
	@mkdir -p target/dashboards
	cp tests/dashboards/package.json target/dashboards
	npm --prefix target/dashboards install --ignore-scripts --no-audit --no-fund
	node tests/dashboards/check.mjs target/dashboards

.PHONY: dashboard-pictures
BROWSER ?= chromium
PICTURES := target/dashboard-pictures
# Needs a network, node, go for the Prometheus, and a Chromium.
dashboard-pictures: ## Draw docs/dashboards/*.png by Grafana's published parts, from made-up series in a Prometheus (BROWSER=chromium)
	@mkdir -p $(PICTURES)
	cp tests/dashboards/draw/* $(PICTURES)
	npm --prefix $(PICTURES) install --ignore-scripts --no-audit --no-fund
	prometheus=$$(tests/prometheus/build.sh) && node $(PICTURES)/draw.mjs . "$$prometheus" $(BROWSER)

.PHONY: flamegraph-picture
# Needs Debian's PostgreSQL and a Chromium.
flamegraph-picture: build ## Draw docs/flamegraph.png: what a PostgreSQL under load waits for (BROWSER=chromium)
	$(SUDO) bench/picture.sh target/release/podperf $(BROWSER) docs/flamegraph.png

e2e: ## Install the chart on real nodes of a real cluster, in guests under QEMU (ARGS=FILTER for some tests)
	@./setup.sh e2e
	$(CARGO) test --locked -p podperf-tests --test node -- $(ARGS)

faults: ## Make each fault at its largest, and print what users see and what was lost (ARGS=FILTER for some)

kube: ## Run the tests of pods at their largest (ARGS=FILTER for some)

collector: ## Send profiles and metrics to a real Collector for ten minutes, and print what it accepted and refused

collector: ARGS := a_collector_accepts_all_that_it_is_sent
collector: RING := e2e
faults kube collector: LONG := 1
faults kube collector:
	@./setup.sh test
	$(CARGO) build --locked --workspace
	$(CARGO) test --locked -p podperf-tests --test $(or $(RING),$@) -- $(ARGS)

kills: export PODPERF_KILLS ?= 100
kills: ## Kill the agent at random moments, and hold its counts against the kernel's (PODPERF_KILLS=100, PODPERF_SEED=N to repeat)
	@./setup.sh test
	tests/other-layout.sh
	$(CARGO) build --locked --workspace
	$(CARGO) test --locked -p podperf-tests --test kernel -- kills_at_random_moments $(ARGS)

soak: build ## Keep the agent under churn, and say whether anything grows or gets lost (SOAK_MINUTES=60)
	$(CARGO) build --release --locked -p podperf-bench -p podperf-tests --bin podperf-soak --bin podperf-load
	$(SUDO) target/release/podperf-soak --minutes $(SOAK_MINUTES)

vm: ## Run the kernel tests on a row of kernels under QEMU, and renew these rows of docs/kernels.md (ROWS=6.1,6.12 for some)
	@./setup.sh vm
	$(CARGO) build --locked -p podperf-tests --bin podperf-vm
	target/debug/podperf-vm $(if $(ROWS),--rows $(ROWS)) --document docs/kernels.md $(ARGS)

# Each change must pass this test in a guest, on the oldest kernel that Debian still ships.
LAND := all_programs_together_load_and_count_exactly
vm-land: test-build ## Run one of the kernel tests on Linux 6.1 under QEMU, with the programs of a debug build
	@./setup.sh vm
	target/debug/podperf-vm --rows 6.1 --dev --only $(LAND)

vm-build: ## Build what the x86 guests run, and run nothing
	@./setup.sh vm
	tests/vm/build.sh x86_64

vm-x86: ## Kernels that are refused and the oldest one that Debian still ships, without the longest tests
	$(MAKE) vm ROWS=5.10,6.12-confidentiality,6.1 ARGS=--quick

vm-arm64: ## The arm64 kernel alone, on a CPU with hardware counters
	$(MAKE) vm ROWS=6.12-arm64

fuzz: $(FUZZ_TARGETS:%=fuzz-%) ## Feed the parsers anything, each for a while (FUZZ_SECONDS=600), with -j as many at once

# The fuzzers have the agent's versions of all crates; cargo adds those that only fuzzing needs.
tests/fuzz/Cargo.lock: Cargo.lock
	cp $< $@

# All are built at once: each run finds its own up to date.
fuzz-build: $(FUZZ) tests/fuzz/Cargo.lock
	@./setup.sh fuzz
	$< build $(FUZZ_FLAGS)

fuzz-%: fuzz-build
	@mkdir -p target/fuzz/corpus/$*
	@$(FUZZ) run $(FUZZ_FLAGS) $* target/fuzz/corpus/$* tests/fuzz/corpus/$* -- \
		-max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1

$(FUZZ):
	$(INSTALL) cargo-fuzz@$(FUZZ_VERSION)

lint: ## Check formatting, lints and documentation
	@./setup.sh lint
	@if command -v go >/dev/null; then \
		tools=$$(.ci/tools actionlint) && "$$tools/actionlint"; \
	else echo "lint: workflows NOT checked: no \`go\` in PATH to build actionlint with"; fi
	@if python3 -c 'import ensurepip' 2>/dev/null; then \
		zizmor=$$(tests/python-once.sh zizmor $(ZIZMOR_VERSION) zizmor) && "$$zizmor" --offline --no-progress --quiet .github; \
	else echo "lint: workflows NOT checked: no \`python3\` with venv to install zizmor in"; fi
	shellcheck -x .ci/release .ci/rehearsal .ci/run .ci/tools tests/kept-target.sh tests/land.sh tests/rings.sh tests/python-once.sh tests/chart/validator.sh \
		tests/e2e/axe.sh bench/picture.sh bench/programs/build-profiler.sh
	clang-format --dry-run --Werror ebpf/bpf/* ebpf/sensors/*/*.[ch] bench/programs/*.c
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path tests/fuzz/Cargo.toml --check
	$(CARGO) clippy --locked --workspace --lib --bins --tests --test node -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --locked -p podperf -p podperf-ebpf --no-deps --document-private-items

deny: $(TOOLS)/bin/cargo-deny ## Check licences, sources and, where its database is in reach, advisories (ADVISORIES=1 to fail where it is not)
	$< check bans licenses sources
	@$< check advisories || { code=$$?; \
		{ [ -n "$(ADVISORIES)" ] || $< fetch db >/dev/null 2>&1; } && exit $$code; \
		echo "deny: advisories NOT checked: the advisory database is out of reach"; }

$(TOOLS)/bin/cargo-deny:
	$(INSTALL) cargo-deny@$(DENY_VERSION)

bench: build ## Measure the price per context switch beside other tools and how it grows, the agent at rest, at scale, with profiles, with sensors, and on real servers (ARGS=growth)
	@./setup.sh bench || echo "bench: what is missing is not measured"
	$(if $(filter growth locks switches,$(ARGS))$(if $(filter profiles scale sensors servers stacks,$(ARGS)),,all),bench/programs/build-perf.sh)
	$(if $(filter stacks,$(ARGS))$(if $(filter growth locks profiles rest scale sensors servers switches,$(ARGS)),,all),\
		bench/programs/build-profiler.sh || echo "bench: the OpenTelemetry eBPF profiler is not measured")
	$(CARGO) build --release --locked -p podperf-bench -p podperf-tests
	$(SUDO) target/release/podperf-bench $(ARGS)

clean: ## Remove all that was built
	$(CARGO) clean
