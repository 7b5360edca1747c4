# make demo     set this machine up and run a real job under a lock
# make test     set this machine up and pass all tests, which leave nothing behind
# make test-arm64  build for arm64 in a root of Debian unstable, and pass the tests that an emulator can pass
# make sweep    have each system call of a run fail, one after the other
# make build    the release binary, at target/redlock
# make install  binary, man pages, completions, alerts and dashboard below PREFIX (and DESTDIR)
# make dist     packages of the release binary, in dist/: tarball, .deb, .rpm, image, checksums; ARCH=aarch64 for another processor
# make dist-test   the tests of packages, of those in dist/
# make dist-check  a second build, of the last commit in another directory, gives the same bytes
# make model    the states of the protocol in small, up to STATES of each scenario, and what is made wrong on purpose; ONLY="a freeze"
# make simulate HOURS of virtual time, 100 by default, in seeds of MINUTES (1), from SEED on
# make simulate-server  the same beside a real server, for SECONDS, 60 by default
# make chaos    real servers and processes that fail: SECONDS of it, 60 by default, with TOPOLOGY=single|sentinel
# make search WHAT=partition  failovers in a network that is cut, each with its expected outcome; SCENARIO=v1-reset: that one
#                     alone; ROUNDS: how often the faults of a mix come
# make fuzz-input  what reads input from outside, for SECONDS (60), by libFuzzer; INPUT=url: that alone
# make mutants-lua  each script with one mistake after the other (ONLY=lib/queue): an example or the simulation notices
# make mutants  break what decides about locks, one place at a time (FILES=...): the unit tests notice
# make mutants-named  break one promise after the other (NAMES=...): the tests named for it notice
# make bench    the tables of docs/benchmarks.md, in six minutes
# make faults   the tests of single faults, with answers cut at every byte
# make lint     formatting, warnings
# make generate rewrite what is generated: man pages, and all that names redlock's home (ci/home)
# make pictures draw docs/history.svg, docs/status.svg and docs/dashboard.svg anew, by redlock itself

PREFIX ?= /usr/local
CARGO ?= cargo

# Where cargo builds; the binary is copied to its top, so that its path doesn't depend on the target
# it was built for.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Make's own functions would split a path at its spaces.
ABSOLUTE_TARGET := $(if $(filter /%,$(firstword $(TARGET))),,$(CURDIR)/)$(TARGET)
REDLOCK = $(TARGET)/redlock$(if $(filter $(HERE),$(ARCH)),,-$(ARCH))
SOURCES := Cargo.toml Cargo.lock $(shell find src build build.rs -type f)

# A static binary starts faster than a dynamic one, and one that isn't relocated faster still. The
# musl target is used where the toolchain has it (or can get it); it needs musl-gcc for the C
# code of the TLS library. Elsewhere it is the host's own target.
HERE := $(shell uname -m)
ARCH ?= $(HERE)
MUSL := $(ARCH)-unknown-linux-musl
# Cold functions stand aside, so that a short run maps fewer pages.
STATIC := -C relocation-model=static -C symbol-mangling-version=v0 -C link-arg=-Wl,-T,build/cold.ld

# The binary doesn't tell where it was built, so that it is the same wherever that was. Cargo takes flags with spaces
# only if they are separated by another character.
CARGO_DIRECTORY := $(or $(CARGO_HOME),$(HOME)/.cargo)
FLAGS = CARGO_ENCODED_RUSTFLAGS="$$(printf %s "--remap-path-prefix=$(CURDIR)=/redlock"; printf '\037%s' \
    "--remap-path-prefix=$(ABSOLUTE_TARGET)=/target" "--remap-path-prefix=$(CARGO_DIRECTORY)=/cargo" \
    "--remap-path-prefix=$$(rustc --print sysroot)=/rust" $(1) $(RUSTFLAGS))"

# What links, and compiles C, for another processor.
CROSS := $(ARCH)-linux-gnu-gcc
UPPER = $(shell echo "$(MUSL)" | tr a-z- A-Z_)
FOREIGN = $(if $(filter $(HERE),$(ARCH)),,CC_$(subst -,_,$(MUSL))=$(CROSS) CARGO_TARGET_$(UPPER)_LINKER=$(CROSS))

# `redlock --version -v` names it.
COMMIT = REDLOCK_COMMIT="$$(git describe --always --abbrev=12 --exclude='*' --dirty=-changed 2>/dev/null)"

# Tests at a time. A test waits most of the time, but runs several processes when it doesn't.
TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))

.PHONY: build dist dist-check dist-test demo test test-arm64 sweep faults fuzz-input mutants mutants-named mutants-lua chaos search model simulate simulate-server bench install install-files lint generate pictures

# Asked in the shell and not by make, which would look before the set-up has run.
build:
	@scripts/setup build
	@if [ -d "$$(rustc --print sysroot)/lib/rustlib/$(MUSL)" ] && command -v $(if $(filter $(HERE),$(ARCH)),musl-gcc,$(CROSS)) >/dev/null; then \
	    $(MAKE) --no-print-directory build-musl; \
	elif [ "$(ARCH)" != "$(HERE)" ]; then \
	    echo "building for $(ARCH) needs Rust's target $(MUSL) and $(CROSS)" >&2; exit 69; \
	else \
	    $(MAKE) --no-print-directory build-host; \
	fi

.PHONY: build-musl build-host
build-musl:
	$(COMMIT) $(FOREIGN) $(call FLAGS,$(STATIC)) $(CARGO) build --locked --release --target $(MUSL)
	@install -m 755 "$(TARGET)/$(MUSL)/release/redlock" "$(REDLOCK)"

build-host:
	$(COMMIT) $(FLAGS) $(CARGO) build --locked --release
	@install -m 755 "$(TARGET)/release/redlock" "$(REDLOCK)"

# After `make build`, `sudo make install` only copies: root needs no toolchain.
SPACE := $(subst ,, )
BINARY = $(subst $(SPACE),\ ,$(REDLOCK))
$(BINARY): $(SOURCES)
	@$(MAKE) --no-print-directory build

# Of a static binary only: any other depends on the libraries of this host.
dist:
	@scripts/setup dist
	@$(MAKE) --no-print-directory build
	@[ "$(ARCH)" != "$(HERE)" ] || "$(REDLOCK)" --version -v | grep -q 'static musl' || { echo "the binary isn't static: it needs Rust's musl target and musl-gcc" >&2; exit 69; }
	@ARCH="$(ARCH)" scripts/dist "$(REDLOCK)" dist
	@cat dist/SHA256SUMS

dist-test:
	@scripts/setup test
	REDLOCK_DIST=dist $(CARGO) test --locked --test integration -- \
	    packages:: releases:: recipes::github

dist-check:
	@scripts/setup dist
	@scripts/dist-check dist

demo:
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@scripts/demo "$(REDLOCK)"

# Built first, as a compiler may leave something behind that isn't the tests'.
test:
	@scripts/setup test
	$(CARGO) test --locked --no-run
	CARGO=$(CARGO) scripts/leftovers scripts/test $(TEST_THREADS)

# Downloads a root, and builds redlock twice: half an hour.
test-arm64:
	@scripts/setup test-arm64
	scripts/test-arm64 "$(ABSOLUTE_TARGET)/arm64"

# Of the debug build and of the release build, whose C library makes other calls.
SWEEP := scripts/leftovers env REDLOCK_SWEEP=all $(CARGO) test --locked --test integration -- --nocapture sweep::
sweep:
	@scripts/setup test
	@$(MAKE) --no-print-directory build
	$(CARGO) test --locked --no-run
	$(SWEEP)
	REDLOCK_BIN="$(ABSOLUTE_TARGET)/redlock" $(SWEEP)

faults:
	@scripts/setup test
	FAULTS_WHOLE=1 $(CARGO) test --locked --test integration faults:: -- --nocapture

model:
	@scripts/setup test
	MODEL_STATES=$(or $(STATES),30000000) MODEL_ONLY="$(ONLY)" \
	    $(CARGO) test --locked --profile model --bin redlock model::scenarios -- --nocapture --test-threads 1

# Seeds are always the same: one that fails was broken by a change.
MINUTES ?= 1
simulate:
	@scripts/setup test
	SIMULATE_SEEDS=$$(( $(or $(HOURS),100) * 60 / $(MINUTES) )) SIMULATE_MINUTES=$(MINUTES) SIMULATE_SEED=$(SEED) \
	    $(CARGO) test --locked --profile model --bin redlock model::simulate::simulations -- --nocapture

simulate-server:
	@scripts/setup test
	SIMULATE_SECONDS=$(or $(SECONDS),60) SIMULATE_SEED=$(SEED) \
	    $(CARGO) test --locked --profile model --bin redlock model::simulate::a_real_server -- --nocapture

# A seed draws jobs and faults, but doesn't repeat a run. Its history is written below target/tmp/chaos.
chaos:
	@scripts/setup test
	$(CARGO) test --locked --test integration --no-run
	CHAOS_SECONDS="$(or $(SECONDS),60)" CHAOS_SEED="$(SEED)" CHAOS_TOPOLOGY="$(TOPOLOGY)" \
	    scripts/leftovers $(CARGO) test --locked --test integration chaos::jobs_keep -- --nocapture

# Scenarios run one after the other; all take 25 minutes.
search:
	@[ "$(WHAT)" = partition ] || { echo "usage: make search WHAT=partition [SCENARIO=NAME] [ROUNDS=N]" >&2; exit 64; }
	@scripts/setup test
	$(CARGO) test --locked --test integration --no-run
	PARTITION_SCENARIO="$(or $(SCENARIO),all)" \
	    scripts/leftovers $(CARGO) test --locked --test integration partition::scenarios -- --nocapture

# By libFuzzer, which needs no other compiler: the passes that tell it what code was reached are in rustc.
# The target is named, so that build scripts aren't built like this.
FUZZED := --cfg fuzzing -C passes=sancov-module $(addprefix -C llvm-args=-sanitizer-coverage-,level=4 \
    inline-8bit-counters pc-table trace-compares)
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
fuzz-input:
	@scripts/setup fuzz-input
	RUSTFLAGS="$(FUZZED) $(RUSTFLAGS)" $(CARGO) build --locked --profile fuzz --target $(HOST) \
	    --target-dir "$(TARGET)/fuzz" --bin redlock
	$(if $(filter-out replies,$(INPUT)),,$(CARGO) test --locked --test integration --no-run)
	@CARGO="$(CARGO)" scripts/fuzz-input "$(TARGET)/fuzz/$(HOST)/fuzz/redlock" "$(TARGET)/fuzz/inputs" \
	    "$(or $(SECONDS),60)" "$(INPUT)"

# ONLY is how the names of those begin that are tried, such as lib/queue. SEEDS is how many seeds of the simulation each gets
# that the examples don't notice, 30 by default.
mutants-lua:
	@scripts/setup test
	MUTANTS_LUA="$(ONLY)" MUTANTS_SEEDS="$(SEEDS)" $(CARGO) test --locked --profile model --bin redlock \
	    model::lua_mutants::every_mutant -- --nocapture

# One place at a time, with a build and the unit tests for each: an hour and more for all of it.
mutants:
	@scripts/setup mutants
	PATH="$(ABSOLUTE_TARGET)/tools/bin:$$PATH" scripts/mutants $(FILES)

mutants-named:
	@scripts/setup test
	scripts/mutants-named $(NAMES)

# Prints the tables of docs/benchmarks.md, and nothing else on standard output. All are built first: a compiler would
# warm the machine up for some of them.
BENCHES := whole_process hand_off capacity bounds
bench:
	@scripts/setup bench >&2
	@$(MAKE) --no-print-directory build >&2
	@$(CARGO) bench --locked --no-run $(addprefix --bench ,$(BENCHES))
	@for bench in $(BENCHES); do REDLOCK_BIN="$(ABSOLUTE_TARGET)/redlock" $(CARGO) bench -q --locked --bench $$bench || exit; done

lint:
	@scripts/setup lint
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	@if command -v shellcheck >/dev/null; then shellcheck scripts/setup scripts/busy scripts/fuzz-input scripts/mutants-named scripts/demo scripts/pictures scripts/test scripts/dist scripts/dist-check scripts/home scripts/release scripts/test-arm64 ci/install.sh .ci/run completions/redlock.bash; fi

generate:
	scripts/home
	UPDATE=1 $(CARGO) test --locked --test integration generated::the_man_pages_are_those

# Their times and pids are new each time, so no test compares them.
pictures:
	@scripts/setup pictures
	@$(MAKE) --no-print-directory build
	scripts/pictures "$(REDLOCK)"

install: $(BINARY)
	@$(MAKE) --no-print-directory install-files

# The binary may be any.
install-files:
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/share/man/man1" "$(DESTDIR)$(PREFIX)/share/man/man7"
	install -d "$(DESTDIR)$(PREFIX)/share/bash-completion/completions"
	install -d "$(DESTDIR)$(PREFIX)/share/zsh/site-functions"
	install -d "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d" "$(DESTDIR)$(PREFIX)/share/doc/redlock/monitoring"
	install -m 755 "$(REDLOCK)" "$(DESTDIR)$(PREFIX)/bin/redlock"
	install -m 644 man/*.1 "$(DESTDIR)$(PREFIX)/share/man/man1"
	install -m 644 man/*.7 "$(DESTDIR)$(PREFIX)/share/man/man7"
	install -m 644 completions/redlock.bash "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/redlock"
	install -m 644 completions/_redlock "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_redlock"
	install -m 644 completions/redlock.fish "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/redlock.fish"
	install -m 644 docs/monitoring/* "$(DESTDIR)$(PREFIX)/share/doc/redlock/monitoring"
