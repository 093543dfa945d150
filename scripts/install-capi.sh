#!/bin/sh
# Builds the C library and installs it, its header and its pkg-config file under a prefix.
#
# Usage: scripts/install-capi.sh PREFIX   (as `make install-capi PREFIX=...` calls it)
# DESTDIR is prepended to the paths of the written files, CARGO names cargo, CARGO_TARGET_DIR the
# build folder, and CAPI_PROFILE the build profile: `capi`, or `dev` for tests. If CAPI_BUILT names
# a folder that contains both libraries already, nothing is built.
set -eu

prefix=${1:?"usage: $0 PREFIX"}
case $prefix in
/*) ;;
*) echo "$0: the prefix must begin with /" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
profile=${CAPI_PROFILE:-capi}
target=${CARGO_TARGET_DIR:-target}
root=${DESTDIR:-}$prefix

if [ -n "${CAPI_BUILT:-}" ]; then
    built=$CAPI_BUILT
else
    $cargo build --quiet --locked --package bimetal-capi --profile "$profile" --target-dir "$target"
    built=$target/$profile
    if [ "$profile" = dev ]; then
        built=$target/debug
    fi
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

install -d "$root/lib/pkgconfig" "$root/include"
install -m 644 crates/capi/include/bimetal_brp.h "$root/include/"
install -m 644 "$built/libbimetal_brp.a" "$root/lib/"
install -m 755 "$built/libbimetal_brp.so" "$root/lib/libbimetal_brp.so.1"
ln -sf libbimetal_brp.so.1 "$root/lib/libbimetal_brp.so"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" crates/capi/bimetal_brp.pc.in \
    > "$root/lib/pkgconfig/bimetal_brp.pc"
