#!/bin/sh
# Everything that must pass before a change is merged, one step after the other, each with its time.
#
# Usage: scripts/test.sh   (as `make test` and CI call it)
# CARGO names cargo. All steps use one build profile (dev, which optimises a little), because builds
# take most of the time; only the sanitizer needs a separate build, of one crate.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
# Incremental state only costs time and disk space in a build from scratch.
if [ -n "${CI:-}" ]; then
    export CARGO_INCREMENTAL=0
    # No debug information: a panic has its location without it, and linking is faster.
    export CARGO_PROFILE_DEV_DEBUG=none
fi
began=$(date +%s)
# The program is built once, with everything that the kernel bench needs.
rdma="--features bimetal-cli/rdma"
case ${CARGO_TARGET_DIR:-target} in
    /*) BIMETAL_BIN=$CARGO_TARGET_DIR/debug/bimetal ;;
    *) BIMETAL_BIN=$PWD/${CARGO_TARGET_DIR:-target}/debug/bimetal ;;
esac
export BIMETAL_BIN
# The C library is built together with it, because a separate build would rebuild most of the tree
# with fewer features.
export BIMETAL_CAPI="${BIMETAL_BIN%/bimetal}"

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
step "lints" $cargo clippy --workspace --all-targets --locked $rdma -- -D warnings
step "benches" python3 -m unittest discover -q -s benches/tests -t benches
documentation() {
    RUSTDOCFLAGS="-D warnings" $cargo doc --workspace --no-deps --locked --quiet
}
step "documentation" documentation
# Without the examples, which the lints have compiled: no test runs them, and each takes as long to
# link as a program.
step "build" $cargo build --workspace --lib --bins --tests --locked $rdma
# The only crate whose code differs without the feature.
step "without RDMA" $cargo test -p bimetal-rdma --locked --lib --quiet
kernel_bench() {
    status=0
    scripts/kernel-bench --program "$BIMETAL_BIN" tests/kernel/nbd.sh \
        tests/kernel/ublk.sh tests/kernel/ublk-mirror.sh tests/kernel/rdma.sh || status=$?
    # 77: it cannot run here, and has printed the reason.
    [ "$status" = 77 ] || return "$status"
}
step "kernel bench" kernel_bench
step "address sanitizer" scripts/asan.sh
interleavings() {
    # A separate build, in which the index has other locks.
    (cd interleavings && $cargo test --locked --quiet)
}
step "interleavings" interleavings
step "examples in the documentation" $cargo test --workspace --locked $rdma --doc --quiet
threads_driver() {
    # Whole files of tests again, with the driver for systems without io_uring. The workspace is
    # named so that nothing is rebuilt.
    export BIMETAL_DRIVER=threads
    again="$cargo test --workspace --locked $rdma --quiet"
    $again --lib -- real_time:: mailbox:: &&
        $again --test ownership --test sockets --test carrier --test brp --test tls --test capi &&
        $again --test all -- contract:: log:: queue_replay:: shard:: device:: brp:: tls::
    status=$?
    unset BIMETAL_DRIVER
    return $status
}
step "tests on the threads driver" threads_driver
# No step line follows: the output ends with cargo's result lines.
echo "== tests"
exec $cargo test --workspace --locked $rdma --no-fail-fast --lib --bins --tests
