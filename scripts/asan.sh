#!/bin/sh
# Runs the runtime's tests under AddressSanitizer: the one crate with `unsafe`, where a buffer that
# the kernel still writes to could be freed. Needs a nightly toolchain, and says so when there is
# none.
#
# Usage: scripts/asan.sh   (as `make asan` and scripts/test.sh call it)
set -eu
cd "$(dirname "$0")/.."

# Asking for a toolchain must not install it.
export RUSTUP_AUTO_INSTALL=0
if ! rustc +nightly --version >/dev/null 2>&1; then
    echo "SKIPPED: no nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
# A directory of its own, because the flags would rebuild everything in the usual one. With a target
# named, build scripts and macros are built without the sanitizer.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan"
export RUSTFLAGS="-Zsanitizer=address"
# What a runtime leaves behind when it is dropped is part of the contract, so leaks count too.
export ASAN_OPTIONS="detect_leaks=1:abort_on_error=0"
for driver in uring threads; do
    echo "the driver \"$driver\":"
    BIMETAL_DRIVER=$driver cargo +nightly test --locked --target "$host" -p bimetal-rt
done
