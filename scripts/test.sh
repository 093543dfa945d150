#!/bin/sh
# Everything that must pass before a change goes in, one step after another, each with its time.
#
# Usage: scripts/test.sh   (as `make test` and CI call it)
# CARGO names cargo. One build profile for all steps (dev, which optimises a little), because
# building is what costs; only the sanitizer needs a build of its own, of one crate.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
# Incremental state only costs time and disk in a build that starts from nothing.
if [ -n "${CI:-}" ]; then
    export CARGO_INCREMENTAL=0
fi
began=$(date +%s)

step() {
    name=$1
    shift
    echo "== $name"
    start=$(date +%s)
    "$@" || { echo "== $name: FAILED after $(($(date +%s) - start)) s"; exit 1; }
    now=$(date +%s)
    echo "== $name: $((now - start)) s (total $((now - began)) s)"
}

step "test dependencies" scripts/install-test-deps.sh
step "format" $cargo fmt --all --check
step "lints" $cargo clippy --workspace --all-targets --locked -- -D warnings
documentation() {
    RUSTDOCFLAGS="-D warnings" $cargo doc --workspace --no-deps --locked --quiet
}
step "documentation" documentation
step "build" $cargo build --workspace --all-targets --locked
step "address sanitizer" scripts/asan.sh
interleavings() {
    # A build of its own: the locks of the index are others there.
    (cd interleavings && $cargo test --locked --quiet)
}
step "interleavings" interleavings
step "examples in the documentation" $cargo test --workspace --locked --doc --quiet
# No step line after this one: cargo's own result lines close the output.
echo "== tests"
exec $cargo test --workspace --locked --no-fail-fast --lib --bins --tests
