# The usual commands. Everything runs on one machine and leaves only the folder target/ behind.
#
#   make demo    build, and show a demo volume under load with a live table
#   make test    everything that must pass before a change is merged (the same as CI)
#   make check   the lints, rules and unit tests of changed packages (under three minutes)
#   make lint    formatting and lints only
#   make asan    the runtime's tests under AddressSanitizer (needs a nightly toolchain)
#   make install-capi PREFIX=/usr/local   the C library, its header and its pkg-config file
#   make kernel-bench   tests in a guest with its own kernel (QEMU, if available)
#   make kernel-peers   BRP compared with SRP, iSER and NVMe in the guest (four minutes)
#   make bench   NBD speed compared with nbdkit and qemu-nbd (an hour; BENCH_ARGS=--quick: minutes)

CARGO ?= cargo
BENCH_ARGS ?=
PREFIX ?= /usr/local
TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: demo test check lint asan install-capi kernel-bench kernel-peers bench

demo:
	$(CARGO) build --release -p bimetal-cli
	target/release/bimetal demo

test:
	CARGO="$(CARGO)" scripts/test.sh

check:
	CARGO="$(CARGO)" scripts/check.sh $(BASE)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

asan:
	scripts/asan.sh

install-capi:
	CARGO="$(CARGO)" scripts/install-capi.sh "$(PREFIX)"

kernel-bench:
	$(if $(BIMETAL),,$(CARGO) build --locked -p bimetal-cli --features rdma)
	scripts/kernel-bench --program $(or $(BIMETAL),$(TARGET)/debug/bimetal) tests/kernel/nbd.sh \
		tests/kernel/ublk.sh tests/kernel/ublk-mirror.sh tests/kernel/rdma.sh

kernel-peers:
	$(if $(BIMETAL),,$(CARGO) build --locked -p bimetal-cli --features rdma)
	scripts/kernel-bench --limit-s 1200 --program $(or $(BIMETAL),$(TARGET)/debug/bimetal) tests/kernel/san-peers.sh

bench:
	scripts/install-test-deps.sh
	$(CARGO) build --release -p bimetal-cli
	python3 benches nbd --binary target/release/bimetal $(BENCH_ARGS)
