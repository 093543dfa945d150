#!/bin/sh
# Checks the changes, in under three minutes on two cores after a build: format, the rules of the
# tree, and the lints and unit tests of the packages with changed files.
#
# Usage: scripts/check.sh [BASE]   (as `make check` calls it)
# The changes are those since BASE; without it, since this branch left `main`, or since the last
# commit. CARGO names cargo. `make test` must pass before a change is merged.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
base=${1:-$(git merge-base HEAD main 2>/dev/null || echo HEAD)}
began=$(date +%s)

step() {
    name=$1
    shift
    echo "== $name"
    "$@" || { echo "== $name: FAILED"; exit 1; }
    echo "== $name: done ($(($(date +%s) - began)) s)"
}

# The folders of packages in which a file differs from the base, or is new.
changed=$({ git diff --name-only "$base"; git ls-files --others --exclude-standard; } |
    sed -nE 's,^(crates/[^/]+|tests)/.*\.(rs|toml|c|css)$,\1,p' | sort -u)
packages=
for folder in $changed; do
    # A package that was removed has no manifest.
    [ -f "$folder/Cargo.toml" ] || continue
    packages="$packages -p $(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/Cargo.toml" | head -n 1)"
done

step "format" $cargo fmt --all --check
step "rules of the tree" $cargo test --locked --quiet -p bimetal-tests --test tidy
if [ -n "$packages" ]; then
    # shellcheck disable=SC2086 # the list is several words
    step "lints of$packages" $cargo clippy --locked $packages --all-targets -- -D warnings
    # shellcheck disable=SC2086
    step "unit tests of$packages" $cargo test --locked --quiet $packages --lib --bins
fi
echo "== everything that has changed is checked: $(($(date +%s) - began)) s"
