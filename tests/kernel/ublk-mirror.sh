# A mirror as a block device of the machine, with the server's memory locked: synced files survive
# SIGKILL, and each side of a cleanly stopped mirror has all of them.
# kernel-bench: modules ublk_drv ext4 crc32c_generic
# kernel-bench: programs mkfs.ext4:e2fsprogs e2fsck:e2fsprogs
# kernel-bench: files common.sh
. /common.sh

cat > /tmp/vol.toml << 'END'
[device.fast]
type = "file"
path = "fast.img"
size = "96MiB"

[device.slow]
type = "file"
path = "slow.img"
size = "96MiB"

[device.vol]
type = "mirror"
sides = ["fast", "slow"]
layout = "home"
exposure = { bytes = "16MiB", age = "5s" }
END
modprobe ublk_drv || fail "no module ublk_drv"
bimetal format /tmp/vol.toml > /tmp/format.log 2>&1 || fail "cannot format"

attach_volume /tmp/vol.toml
grep -q warning /tmp/attach.log && fail "memory is not locked, or a side is missing"
write_and_compare $disk
file_system_on $disk
echo "a file system keeps its file"

mount -t ext4 $disk /tmp/mnt || fail "cannot mount"
cp /tmp/pattern /tmp/mnt/synced
sync
kill -KILL "$server"
wait_until 20 has_ended "$server" || fail "the killed server does not end"
umount /tmp/mnt || fail "cannot unmount after SIGKILL"
bimetal detach $disk || fail "cannot take away what a killed server leaves"

attach_volume /tmp/vol.toml
e2fsck -fp $disk > /tmp/e2fsck.log 2>&1
[ $? -le 1 ] || fail "e2fsck cannot repair"
mount -t ext4 $disk /tmp/mnt || fail "cannot mount after SIGKILL"
cmp /tmp/pattern /tmp/mnt/synced || fail "a synced file is lost by SIGKILL"
umount /tmp/mnt || fail "cannot unmount"
stop_server
echo "what was synced is there after SIGKILL"

# Each side alone.
for side in fast slow; do
    mkdir /tmp/away
    mv "/tmp/$side.img" /tmp/away/
    attach_volume /tmp/vol.toml --read-only
    mount -t ext4 -o ro,noload $disk /tmp/mnt || fail "cannot mount without $side"
    cmp /tmp/pattern /tmp/mnt/synced || fail "the file is lost without $side"
    umount /tmp/mnt || fail "cannot unmount without $side"
    stop_server
    mv "/tmp/away/$side.img" /tmp/
    rmdir /tmp/away
done
echo "each side has the file"
