# `bimetal attach`: a volume as a block device of the machine, and all the ways in which it ends.
# kernel-bench: modules ublk_drv ext4 crc32c_generic
# kernel-bench: programs mkfs.ext4:e2fsprogs e2fsck:e2fsprogs
# kernel-bench: files common.sh
. /common.sh

cat > /tmp/vol.toml << 'END'
[server]
memory = "64MiB"
lock_memory = false

[device.vol]
type = "file"
path = "vol.img"
END
truncate -s 96M /tmp/vol.img

attach() {
    attach_volume /tmp/vol.toml "$@"
}
# count FIGURE [FILE]: one of the live figures of the block device.
count() {
    bimetal status --json "${2:-/tmp/vol.toml}" | tr ',{}' '\n\n\n' | sed -n "s/^ *\"$1\": *//p" | head -n 1
}
# within SECONDS COMMAND...: runs a command that may fail but must not hang.
within() {
    limit=$1
    shift
    "$@" > /tmp/within.log 2>&1 &
    job=$!
    wait_until "$limit" has_ended "$job" || fail "$* hangs"
    wait "$job"
}
is_gone() {
    ! [ -e "$disk" ]
}

# Without the driver, the error names the reason and the remedy.
bimetal attach /tmp/vol.toml vol > /tmp/attach.log 2>&1 && fail "attached without a driver"
grep -q 'modprobe ublk_drv' /tmp/attach.log || fail "no word about the driver"
modprobe ublk_drv || fail "no module ublk_drv"

# The same without permission.
echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd
chmod 666 /tmp/vol.img
su nobody -c 'bimetal attach /tmp/vol.toml vol' > /tmp/attach.log 2>&1 && fail "attached without rights"
grep -q 'no permission for /dev/ublk-control' /tmp/attach.log || fail "no word about rights"
echo "what is missing is said"

attach
[ "$(blockdev --getsize64 $disk)" = $((96 << 20)) ] || fail "$disk has another size"
[ "$(blockdev --getss $disk)" = 512 ] || fail "$disk has other sectors"
[ "$(cat /sys/block/${disk#/dev/}/queue/physical_block_size)" = 4096 ] || fail "$disk has other blocks"
[ "$(cat /sys/block/${disk#/dev/}/queue/fua)" = 1 ] || fail "$disk takes no FUA"
write_and_compare $disk
echo "data is what was written"

# A write of one sector in the middle of a block does not change the other sectors.
dd if=/tmp/pattern of=$disk bs=512 seek=2051 count=1 oflag=direct 2> /dev/null || fail "no sector"
dd if=/tmp/pattern of=/tmp/pattern bs=512 seek=3 count=1 conv=notrunc 2> /dev/null
dd if=$disk bs=64k skip=16 count=64 iflag=direct 2> /dev/null | cmp - /tmp/pattern ||
    fail "a sector is not what was written"
echo "a sector is written alone"

dd if=/tmp/pattern of=$disk bs=64k count=1 conv=fsync 2> /dev/null || fail "cannot sync"
[ "$(count flushes)" -gt 0 ] || fail "no flush has arrived"
blkdiscard -o $((1 << 20)) -l $((2 << 20)) $disk || fail "cannot discard"
[ "$(count discards)" -gt 0 ] || fail "no discard has arrived"
dd if=/dev/zero of=/tmp/zeroes bs=64k count=32 2> /dev/null
dd if=$disk bs=64k skip=16 count=32 iflag=direct 2> /dev/null | cmp - /tmp/zeroes ||
    fail "a discarded range does not read as zeroes"
echo "flush and discard arrive"

file_system_on $disk
[ "$(count requests_failed)" = 0 ] && [ "$(count requests_refused)" = 0 ] || fail "failed requests"
echo "a file system keeps its file"

# SIGTERM while a file system is mounted flushes its data, prints a warning, and does not hang.
mount -t ext4 $disk /tmp/mnt || fail "cannot mount"
cp /tmp/pattern /tmp/mnt/unsynced
stop_server
grep -q "mounted on /tmp/mnt" /tmp/attach.log || fail "no word about the mount"
is_gone || fail "$disk is still there"
within 20 cp /tmp/pattern /tmp/mnt/late && fail "a file was written to a device that is gone"
within 20 umount /tmp/mnt || fail "cannot unmount after the end"
echo "SIGTERM under a mount is survived"

attach
mount -t ext4 $disk /tmp/mnt || fail "cannot mount after SIGTERM"
cmp /tmp/pattern /tmp/mnt/unsynced || fail "what was written before SIGTERM is lost"

# SIGKILL: requests fail, no process waits forever, and the device can be removed.
(while cp /tmp/pattern /tmp/mnt/flood && sync; do :; done) > /tmp/flood.log 2>&1 &
flood=$!
before=$(count writes)
is_written() {
    [ "$(count writes)" -gt "$((before + 20))" ]
}
wait_until 20 is_written || fail "nothing is written"
kill -KILL "$server"
wait_until 20 has_ended "$server" || fail "the killed server does not end"
wait_until 20 is_gone || fail "the kernel keeps the disk of a killed server"
wait_until 20 has_ended "$flood" || fail "who wrote hangs"
within 20 umount /tmp/mnt || fail "cannot unmount after SIGKILL"
bimetal detach $disk || fail "cannot take away what a killed server leaves"
[ -e "${disk/ublkb/ublkc}" ] && fail "something is left of a killed server"
echo "SIGKILL under a mount is survived"

attach
e2fsck -fp $disk > /tmp/e2fsck.log 2>&1
[ $? -le 1 ] || fail "e2fsck cannot repair"
mount -t ext4 $disk /tmp/mnt || fail "cannot mount after SIGKILL"
cmp /tmp/pattern /tmp/mnt/unsynced || fail "an old file is lost by SIGKILL"
umount /tmp/mnt
# If another process removes the device, the server ends by itself.
bimetal detach $disk || fail "cannot detach"
wait_until 20 has_ended "$server" || fail "the server does not end when its device is taken away"
wait "$server" || fail "the server ended with status $?"
grep -q "$disk has ended" /tmp/attach.log || fail "no word about the end"
bimetal detach $disk > /tmp/detach.log 2>&1 && fail "detached twice"
grep -q "there is no $disk" /tmp/detach.log || fail "no word about what is missing"
echo "detach takes a device away"

attach --read-only --number=7
[ "$disk" = /dev/ublkb7 ] || fail "another number than was asked for"
dd if=/tmp/pattern of=$disk bs=64k count=1 oflag=direct > /tmp/dd.log 2>&1 && fail "wrote read-only"
stop_server
echo "a read-only device takes no writes"

# A volume that does not answer: the stop is abandoned after its deadline, and no process waits
# forever.
cat > /tmp/stuck.toml << 'END'
[server]
memory = "64MiB"
lock_memory = false
stop_deadline = "2s"

[device.data]
type = "memory"
size = "16MiB"

[device.vol]
type = "delay"
below = "data"
write = "600s"
END
attach_volume /tmp/stuck.toml
dd if=/tmp/pattern of=$disk bs=64k count=1 oflag=direct > /tmp/dd.log 2>&1 &
writer=$!
has_arrived() {
    [ "$(count writes /tmp/stuck.toml)" -gt 0 ]
}
wait_until 20 has_arrived || fail "no write has arrived"
kill -TERM "$server"
wait_until 30 has_ended "$server" || fail "a server over a stuck volume does not end"
wait "$server"
[ $? = 1 ] || fail "giving up has another status than 1"
grep -q "not stopped within 2 s: requests on device vol are unanswered" /tmp/attach.log ||
    fail "no word about the stuck volume"
wait_until 20 has_ended "$writer" || fail "who wrote to a stuck volume hangs"
wait_until 20 is_gone || fail "$disk of a stuck volume is still there"
echo "a stuck volume is given up"
