#!/bin/sh
# Runs the runtime's tests under AddressSanitizer, because this crate uses `unsafe`, and could free
# a buffer to which the kernel still writes. Needs a nightly toolchain, and prints that if there is
# none.
#
# Usage: scripts/asan.sh   (as `make asan` and scripts/test.sh call it)
set -eu
cd "$(dirname "$0")/.."

# The query for a toolchain must not install it.
export RUSTUP_AUTO_INSTALL=0
if ! rustc +nightly --version >/dev/null 2>&1; then
    echo "SKIPPED: no nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
# A separate directory, because the flags would rebuild everything in the usual one. With an
# explicit target, build scripts and macros are built without the sanitizer.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan"
export RUSTFLAGS="-Zsanitizer=address"
# A dropped runtime must not leak memory, so leaks are failures too.
export ASAN_OPTIONS="detect_leaks=1:abort_on_error=0"
for driver in uring threads; do
    echo "the driver \"$driver\":"
    BIMETAL_DRIVER=$driver cargo +nightly test --locked --target "$host" -p bimetal-rt
done
