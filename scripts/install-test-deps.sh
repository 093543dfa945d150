#!/bin/sh
# Installs the missing Debian packages that the black-box tests and the benchmarks need.
#
# Usage: scripts/install-test-deps.sh
# Runs as root, or through sudo. Does nothing, and needs no network, if all tools are installed.
set -eu

# tool:package, one for each program that a test or a benchmark starts
needed="
nbdinfo:libnbd-bin nbdcopy:libnbd-bin nbdfuse:nbdfuse fusermount3:fuse3
qemu-img:qemu-utils qemu-io:qemu-utils qemu-nbd:qemu-utils
fio:fio nbdkit:nbdkit
openssl:openssl
cc:gcc pkg-config:pkg-config
mkfs.ext4:e2fsprogs e2fsck:e2fsprogs mkfs.btrfs:btrfs-progs
losetup:mount mount:mount umount:mount
fallocate:util-linux setpriv:util-linux unshare:util-linux blockdev:util-linux
chromium:chromium chromedriver:chromium-driver promtool:prometheus
dask-worker:python3-distributed
git:git tar:tar cmp:diffutils find:findutils timeout:coreutils python3:python3
"

# The tools for system administration are not in the PATH of every user.
PATH="$PATH:/usr/sbin:/sbin"

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo"
fi

# The kernel bench and the tests in User-Mode Linux print a reason if they cannot run, so a failure
# to install their packages is not an error.
for pair in qemu-system-x86_64:qemu-system-x86 linux.uml:user-mode-linux mkreiserfs:reiserfsprogs; do
    tool=${pair%%:*}
    package=${pair#*:}
    command -v "$tool" >/dev/null 2>&1 && continue
    echo "missing: $tool (package $package)"
    { $as_root apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends \
            "$package"; } || echo "not installed: what needs $package will be skipped"
done

lacking=""
for pair in $needed; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || lacking="$lacking $pair"
done
if [ -z "$lacking" ]; then
    echo "test dependencies: all present"
    exit 0
fi

# A fresh machine has no package lists, which apt-get needs to find packages.
$as_root apt-get update -qq
packages=""
for pair in $lacking; do
    tool=${pair%%:*}
    package=${pair#*:}
    # If there is no package nbdfuse, the program is part of libnbd-bin.
    if [ "$tool" = nbdfuse ] && ! apt-cache show nbdfuse >/dev/null 2>&1; then
        package=libnbd-bin
    fi
    echo "missing: $tool (package $package)"
    case " $packages " in *" $package "*) ;; *) packages="$packages $package" ;; esac
done
echo "installing:$packages"
# shellcheck disable=SC2086 # the list is meant to be split
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $packages
