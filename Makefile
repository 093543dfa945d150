# The commands a person needs. Everything runs on one machine and leaves nothing behind but target/.
#
#   make demo    build, and show a demo volume under load with a live table
#   make test    everything that must pass before a change goes in (the same as CI)
#   make lint    formatting and lints alone
#   make bench   NBD speed against nbdkit and qemu-nbd (about an hour; BENCH_ARGS=--quick: minutes)

CARGO ?= cargo
# Seeds of the simulation tester that run with every test; a nightly run takes more.
SIM_SEEDS ?= 0..64
BENCH_ARGS ?=

.PHONY: demo test lint bench

demo:
	$(CARGO) build --release -p bimetal-cli
	target/release/bimetal demo

test:
	CARGO="$(CARGO)" SIM_SEEDS="$(SIM_SEEDS)" scripts/test.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

bench:
	scripts/install-test-deps.sh
	$(CARGO) build --release -p bimetal-cli
	python3 benches/nbd.py --binary target/release/bimetal $(BENCH_ARGS)
