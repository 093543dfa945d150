# Functions for the tests of the kernel bench, which source this file. A failure ends the test with
# status 1.

# fail TEXT: prints the text and ends the test.
fail() {
    echo "FAILED: $1"
    for log in /tmp/*.log; do
        [ -e "$log" ] && sed "s|^|$log: |" "$log"
    done
    exit 1
}

# wait_until SECONDS COMMAND...: runs COMMAND ten times a second until it succeeds; fails after
# SECONDS.
wait_until() {
    looks=$(($1 * 10))
    shift
    until "$@" > /dev/null 2>&1; do
        looks=$((looks - 1))
        [ "$looks" -gt 0 ] || return 1
        usleep 100000
    done
}

# start_server LOG WORDS...: starts bimetal with these arguments; returns when it is ready. Its
# process is $server.
start_server() {
    log=/tmp/$1.log
    shift
    # The log is emptied here and not in the background, because otherwise output of an earlier
    # server could be read.
    : > "$log"
    bimetal "$@" >> "$log" 2>&1 &
    server=$!
    wait_until 60 grep -q '^ready$' "$log" || fail "bimetal $* is not ready"
}

# attach_volume FILE [OPTIONS]: attaches the device `vol` and sets $disk to its block device. The
# kernel reuses a number only after the last process has closed the device, so the number may differ
# each time.
attach_volume() {
    start_server attach attach "$1" vol $2 $3
    disk=$(grep '^/dev/ublkb[0-9]*$' /tmp/attach.log) || fail "attach does not print the block device"
    [ -b "$disk" ] || fail "$disk is not a block device"
}

# has_ended PID: true if the process has ended, also as a zombie that is not reaped yet.
has_ended() {
    ! grep -q '^State:[[:space:]]*[^Z]' "/proc/$1/status"
}

# stop_server: ends $server with SIGTERM; it must end with status 0.
stop_server() {
    kill -TERM "$server"
    wait_until 60 has_ended "$server" || fail "the server does not end"
    wait "$server" || fail "the server ended with status $?"
}

# write_and_compare DISK: writes 4 MiB of random bytes by direct I/O, reads them back, and
# compares.
write_and_compare() {
    dd if=/dev/urandom of=/tmp/pattern bs=64k count=64 2> /dev/null
    dd if=/tmp/pattern of="$1" bs=64k seek=16 oflag=direct 2> /dev/null || fail "cannot write to $1"
    dd if="$1" of=/tmp/back bs=64k skip=16 count=64 iflag=direct 2> /dev/null || fail "cannot read $1"
    cmp /tmp/pattern /tmp/back || fail "$1 gives other bytes than were written"
    rm /tmp/back
}

# file_system_on DISK: creates ext4, checks that a file on it survives an umount, and runs fsck.
file_system_on() {
    mkdir -p /tmp/mnt
    mkfs.ext4 -q -F "$1" > /tmp/mkfs.log 2>&1 || fail "mkfs.ext4 on $1"
    mount -t ext4 "$1" /tmp/mnt || fail "cannot mount $1"
    cp /tmp/pattern /tmp/mnt/kept || fail "cannot write a file"
    sync
    umount /tmp/mnt || fail "cannot unmount $1"
    echo 3 > /proc/sys/vm/drop_caches
    e2fsck -fn "$1" > /tmp/e2fsck.log 2>&1 || fail "e2fsck finds errors on $1"
    mount -t ext4 "$1" /tmp/mnt || fail "cannot mount $1 again"
    cmp /tmp/pattern /tmp/mnt/kept || fail "the file on $1 has changed"
    umount /tmp/mnt || fail "cannot unmount $1 again"
}
