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
    # A panic says where it was without them, and every test binary has to be linked with them.
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
# The C library is built with it; alone, cargo would build most of the tree anew with fewer
# features.
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
# Without the examples, which the lints have compiled: nothing runs them, and each is as long to
# link as a program.
step "build" $cargo build --workspace --lib --bins --tests --locked $rdma
# The only crate that is another one without the feature.
step "without RDMA" $cargo test -p bimetal-rdma --locked --lib --quiet
kernel_bench() {
    status=0
    scripts/kernel-bench --program "$BIMETAL_BIN" tests/kernel/nbd.sh \
        tests/kernel/ublk.sh tests/kernel/ublk-mirror.sh tests/kernel/rdma.sh || status=$?
    # 77: it cannot run here, and has said why.
    [ "$status" = 77 ] || return "$status"
}
step "kernel bench" kernel_bench
step "address sanitizer" scripts/asan.sh
interleavings() {
    # A build of its own: the locks of the index are others there.
    (cd interleavings && $cargo test --locked --quiet)
}
step "interleavings" interleavings
step "examples in the documentation" $cargo test --workspace --locked $rdma --doc --quiet
threads_driver() {
    # Whole files of tests once more, on the driver for where io_uring is forbidden. The workspace
    # is named so that nothing is built anew.
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
# No step line after this one: cargo's own result lines close the output.
echo "== tests"
exec $cargo test --workspace --locked $rdma --no-fail-fast --lib --bins --tests
