# `make help` lists the targets. Each first calls scripts/setup, which installs what is missing.

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
TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))

.PHONY: help demo test build install dist dist-check search bench lint generate pictures

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

# Asked in the shell and not by make, which would look before the set-up has run.
build: ## the release binary, at target/redlock; ARCH=aarch64 for another processor
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
dist: ## packages of the release binary, in dist/: tarball, .deb, .rpm, image, checksums; ARCH=aarch64
	@scripts/setup dist
	@$(MAKE) --no-print-directory build
	@[ "$(ARCH)" != "$(HERE)" ] || "$(REDLOCK)" --version -v | grep -q 'static musl' || { echo "the binary isn't static: it needs Rust's musl target and musl-gcc" >&2; exit 69; }
	@ARCH="$(ARCH)" scripts/dist "$(REDLOCK)" dist
	@cat dist/SHA256SUMS

dist-check: ## the tests of the packages in dist/, and a second build of the last commit elsewhere: the same bytes
	@scripts/setup test
	REDLOCK_DIST=dist $(CARGO) test --locked --test integration -- \
	    packages:: releases:: recipes::github
	@scripts/setup dist
	@scripts/dist-check dist

demo: ## set this machine up and run a real job under a lock
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@scripts/demo "$(REDLOCK)"

# Built first, as a compiler may leave something behind that isn't the tests'.
test: ## set this machine up and pass all tests, which leave nothing behind; ARCH=aarch64: those for an emulator
ifeq ($(ARCH),$(HERE))
	@scripts/setup test
	$(CARGO) test --locked --no-run
	CARGO=$(CARGO) scripts/leftovers scripts/test $(TEST_THREADS)
else
	@scripts/setup test-arm64
	scripts/test-arm64 "$(ABSOLUTE_TARGET)/arm64"
endif

search: ## search for faults for longer, by WHAT=chaos or another campaign that `make search` lists
	@CARGO="$(CARGO)" scripts/search "$(WHAT)"

# Prints the tables of docs/benchmarks.md, and nothing else on standard output. All are built first: a compiler would
# warm the machine up for some of them.
BENCHES := whole_process hand_off capacity bounds
bench: ## the tables of docs/benchmarks.md, in six minutes
	@scripts/setup bench >&2
	@$(MAKE) --no-print-directory build >&2
	@$(CARGO) bench --locked --no-run $(addprefix --bench ,$(BENCHES))
	@for bench in $(BENCHES); do REDLOCK_BIN="$(ABSOLUTE_TARGET)/redlock" $(CARGO) bench -q --locked --bench $$bench || exit; done

lint: ## formatting, warnings, shellcheck
	@scripts/setup lint
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	@if command -v shellcheck >/dev/null; then shellcheck scripts/setup scripts/search scripts/busy scripts/fuzz-input scripts/mutants-named scripts/demo scripts/pictures scripts/test scripts/dist scripts/dist-check scripts/home scripts/release scripts/test-arm64 ci/install.sh .ci/run completions/redlock.bash; fi

generate: ## write the man pages, and all that names redlock's home (ci/home)
	scripts/home
	UPDATE=1 $(CARGO) test --locked --test integration generated::the_man_pages_are_those

# Their times and pids are new each time, so no test compares them.
pictures: ## draw the pictures in docs/, by redlock itself
	@scripts/setup pictures
	@$(MAKE) --no-print-directory build
	scripts/pictures "$(REDLOCK)"

install: $(BINARY) ## binary, man pages, completions, alerts and dashboard below PREFIX (and DESTDIR)
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
