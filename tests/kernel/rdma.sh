# BRP over RDMA, on soft RoCE: refusals, data through the kernel's NBD client, SIGKILL of the
# target, and the number of messages for a request.
# kernel-bench: modules rdma_rxe ib_uverbs rdma_ucm dummy crc32_generic nbd
# kernel-bench: programs rdma:iproute2 nbd-client:nbd-client
# kernel-bench: packages librdmacm1 libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200
# kernel-bench: files common.sh
. /common.sh

target=10.9.0.1:10820
export_of() {
    cat > "$1" << END
[server]
memory = "64MiB"
lock_memory = false

[device.vol]
type = "file"
path = "vol.img"

[export.vol]
device = "vol"
protocol = "brp"
listen = "rdma:$target"
$2
END
}
export_of /tmp/open.toml ""
export_of /tmp/vol.toml "unprotected = true"
truncate -s 32M /tmp/vol.img

# Without a device, the error names the missing part.
bimetal serve /tmp/vol.toml > /tmp/serve.log 2>&1 && fail "served without a device"
grep -qi 'rdma' /tmp/serve.log || fail "no word about RDMA"

for module in rdma_rxe ib_uverbs rdma_ucm dummy; do
    modprobe $module || fail "no module $module"
done
ip link add d0 type dummy && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 up || fail "no dummy device"
rdma link add rxe0 type rxe netdev d0 || fail "no soft RoCE"

bimetal serve /tmp/open.toml > /tmp/serve.log 2>&1 && fail "served without protection unasked"
grep -q 'unprotected = true' /tmp/serve.log || fail "no word about what is open"
bimetal exports rdma:$target > /tmp/exports.log 2>&1 && fail "somebody answers"
grep -q 'rejected' /tmp/exports.log || fail "no word that nobody listens"
echo "what is missing and what is refused is said"

start_server serve serve /tmp/vol.toml
target_pid=$server
bimetal exports rdma:$target > /tmp/exports.log 2>&1 || fail "no list of exports"
grep -q '^vol ' /tmp/exports.log || fail "the export is not listed"
echo "exports are listed"

# count FIGURE: one of the live figures of the export.
count() {
    bimetal status --json /tmp/vol.toml | tr ',{}' '\n\n\n' | sed -n "s/^ *\"$1\": *//p" | head -n 1
}

cat > /tmp/far.toml << END
[server]
memory = "32MiB"
lock_memory = false

[device.far]
type = "brp"
address = "rdma:$target"
mode = "merge"
END

# load DEPTH OPERATIONS PATTERN: a load of 4 KiB, and the work of the target's device for it.
load() {
    before="$(count rdma_sends) $(count rdma_receives) $(count rdma_completions) $(count commands) $(count sends)"
    bimetal bench /tmp/far.toml --device far --rw "$3" --depth "$1" --ops "$2" --size 16MiB --destroy-data \
        > /tmp/bench.log 2>&1 || fail "the load fails"
    after="$(count rdma_sends) $(count rdma_receives) $(count rdma_completions) $(count commands) $(count sends)"
    echo "$before $after $2" | awk -v name="$3 at depth $1" '{
        sends = $6 - $1; receives = $7 - $2; done = $8 - $3; commands = $9 - $4; replies = $10 - $5
        printf "%s: for each request %.3f messages to the target, %.3f from it, %.3f completions\n", \
            name, receives / $11, sends / $11, done / $11
        printf "%s: for each command %.3f messages, for each send of results %.3f\n", \
            name, receives / commands, sends / replies
        # The other messages are greeting, goodbye and credits.
        exit receives <= 1.25 * commands + 6 && sends <= 1.25 * replies + 6 ? 0 : 1
    }' || fail "a command or a send takes more than one message and a quarter"
}
load 1 200 randwrite
load 32 1000 randwrite
load 32 1000 randread

# The kernel's NBD client on a proxy, and SIGKILL of the target during its writes.
modprobe nbd nbds_max=1 || fail "no module nbd"
start_server proxy proxy rdma:$target --export vol --listen unix:/tmp/far.sock
proxy=$server
attached() {
    nbd-client -c /dev/nbd0
}
nbd-client -unix /tmp/far.sock /dev/nbd0 -N vol -b 4096 > /tmp/nbd-client.log 2>&1 || fail "no attach"
wait_until 20 attached || fail "/dev/nbd0 is not attached"
write_and_compare /dev/nbd0
echo "data is what was written"

before=$(count writes)
dd if=/tmp/pattern of=/dev/nbd0 bs=4k seek=4096 oflag=direct 2> /dev/null &
writer=$!
is_written() {
    [ "$(count writes)" -gt "$((before + 10))" ]
}
wait_until 20 is_written || fail "nothing is written"
kill -KILL "$target_pid"
wait_until 20 has_ended "$target_pid" || fail "the killed target does not end"
start_server serve2 serve /tmp/vol.toml
target_pid=$server
wait_until 60 has_ended "$writer" || fail "who wrote hangs"
wait "$writer" || fail "a write failed when the target was killed"
dd if=/dev/nbd0 of=/tmp/back bs=64k skip=256 count=64 iflag=direct 2> /dev/null || fail "cannot read"
cmp /tmp/pattern /tmp/back || fail "what was written over SIGKILL is not there"
case "$(count connections)" in 1 | 1.0) ;; *) fail "there is no session: $(count connections) connections" ;; esac
echo "a session goes on over SIGKILL of the target"

bimetal exports rdma:$target > /tmp/exports.log 2>&1 || fail "no second client"
nbd-client -d /dev/nbd0 > /tmp/nbd-client.log 2>&1
server=$proxy
stop_server
server=$target_pid
stop_server
echo "everything ends in order"
