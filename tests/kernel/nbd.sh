# The kernel's NBD client with `bimetal serve`: data, a file system, and an orderly stop.
# kernel-bench: modules nbd ext4 crc32c_generic
# kernel-bench: programs nbd-client:nbd-client mkfs.ext4:e2fsprogs e2fsck:e2fsprogs
# kernel-bench: files common.sh
. /common.sh

cat > /tmp/vol.toml << 'END'
[server]
memory = "64MiB"
lock_memory = false

[device.vol]
type = "memory"
size = "96MiB"

[export.vol]
device = "vol"
protocol = "nbd"
listen = "unix:vol.sock"
END
modprobe nbd nbds_max=1 || fail "no module nbd"
start_server serve serve /tmp/vol.toml

attached() {
    nbd-client -c /dev/nbd0
}
nbd-client -unix /tmp/vol.sock /dev/nbd0 -N vol -C 2 -b 4096 > /tmp/nbd-client.log 2>&1 ||
    fail "nbd-client does not attach"
wait_until 20 attached || fail "/dev/nbd0 is not attached"
size=$(blockdev --getsize64 /dev/nbd0)
[ "$size" = $((96 << 20)) ] || fail "/dev/nbd0 has $size bytes"

write_and_compare /dev/nbd0
echo "data is what was written"
file_system_on /dev/nbd0
echo "a file system keeps its file"

nbd-client -d /dev/nbd0 > /tmp/nbd-client.log 2>&1 || fail "nbd-client does not detach"
stop_server
echo "detached and stopped"
