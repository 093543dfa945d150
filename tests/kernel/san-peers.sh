# Compares BRP over RDMA and TCP with the block protocols of the kernel, on one device in memory:
# SRP, iSER, NVMe/RDMA and NVMe/TCP. Checks the data on each, and then prints one table for 4 KiB at
# random. The processor is emulated, and system calls take about twelve times as long as on a real
# one, so a target in user space is at a disadvantage: times are printed but not judged. Packets and
# completions for each request are counted, and BRP must have fewer than SRP. This is not a test of
# CI, because it takes some minutes. DEPTHS and REQUESTS can be changed below.
# kernel-bench: modules rdma_rxe ib_uverbs rdma_ucm dummy crc32_generic brd ublk_drv sd_mod crc32c_generic
# kernel-bench: modules target_core_mod target_core_iblock ib_srpt ib_srp iscsi_target_mod ib_isert ib_iser
# kernel-bench: modules nvmet nvmet_tcp nvmet_rdma nvme_tcp nvme_rdma
# kernel-bench: programs rdma:iproute2 fio:fio iscsid:open-iscsi iscsiadm:open-iscsi
# kernel-bench: packages librdmacm1 libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200
# kernel-bench: files common.sh
. /common.sh

DEPTHS="1 4 16 32 64 128"
REQUESTS=800
ip=10.9.0.1
config=/sys/kernel/config
tracing=/sys/kernel/tracing

for module in crc32c_generic rdma_rxe ib_uverbs rdma_ucm dummy ublk_drv sd_mod target_core_mod target_core_iblock ib_srpt ib_srp \
    iscsi_target_mod ib_isert ib_iser nvmet nvmet_tcp nvmet_rdma nvme_tcp nvme_rdma; do
    modprobe $module || fail "no module $module"
done
modprobe brd rd_nr=1 rd_size=65536 || fail "no module brd"
mount -t configfs configfs $config 2> /dev/null
mount -t tracefs tracefs $tracing || fail "no tracing"
# A message of 4 KiB and its header fit into one packet.
ip link add d0 type dummy && ip link set d0 mtu 9000 && ip addr add $ip/24 dev d0 && ip link set d0 up \
    || fail "no dummy device"
rdma link add rxe0 type rxe netdev d0 || fail "no soft RoCE"
echo 'hist:keys=cq_id:vals=rc' > $tracing/events/rdma_core/cq_poll/trigger || fail "no count of completions"

# Packets that the RDMA device or the loopback device has sent so far, for both ends of a
# connection.
packets() {
    case $1 in
        *rdma* | srp | iser) cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts ;;
        *) awk '$1 == "lo:" { print $11 }' /proc/net/dev ;;
    esac
}

# Completions of RDMA so far at both ends: those of the kernel, or those of BRP, where every message
# has one at each end.
completions() {
    case $1 in
        brp/rdma) bimetal status --json /tmp/target.toml | tr ',{}' '\n\n\n' \
            | awk -F : '/"rdma_(sends|receives)"/ { sum += $2 } END { print 2 * sum }' ;;
        */tcp) echo 0 ;;
        *) awk '/rc:/ { sum += $NF } END { print sum + 0 }' $tracing/events/rdma_core/cq_poll/hist ;;
    esac
}

# measure NAME DISK: checks the data, and adds the lines of one protocol to the table.
measure() {
    write_and_compare "$2"
    for load in randread randwrite; do
        for depth in $DEPTHS; do
            before="$(packets "$1") $(completions "$1")"
            fio --name=cell --filename="$2" --direct=1 --ioengine=libaio --iodepth="$depth" --rw=$load --bs=4k \
                --size=32M --number_ios=$REQUESTS --thread --output-format=terse --terse-version=3 \
                > /tmp/fio.log 2>&1 || fail "fio on $1"
            after="$(packets "$1") $(completions "$1")"
            grep '^3;fio' /tmp/fio.log | awk -F ';' -v load=$load '{
                at = load == "randread" ? 6 : 47
                split($(at + 18), median, "=")
                print $(at + 2), median[2]
            }' > /tmp/figures
            echo "$1 $load $depth $(cat /tmp/figures) $before $after $REQUESTS" >> /tmp/cells
        done
    done
    echo "$1: data is what was written, and measured"
}

# SRP and iSER: the kernel's SCSI target.
core=$config/target/core/iblock_0/ram0
mkdir -p $core
echo udev_path=/dev/ram0 > $core/control
echo 1 > $core/enable || fail "no device of the SCSI target"
new_disk() {
    disk=$(ls /sys/block | grep '^sd' | head -n 1)
    [ -n "$disk" ] && [ "$(cat "/sys/block/$disk/size")" -gt 0 ] && [ -b "/dev/$disk" ]
}
no_disk() {
    ! ls /sys/block | grep -q '^sd'
}

mkdir -p $config/target/srpt
echo 5555 > $config/target/srpt/discovery_auth/rdma_cm_port || fail "no port of the SRP target"
port=0x$(tr -d : < /sys/class/infiniband/rxe0/ports/1/gids/0)
guid=$(tr -d : < /sys/class/infiniband/rxe0/node_guid)
group=$config/target/srpt/$port/$port
initiator=0x0000000000000000$guid
mkdir -p "$group" && mkdir "$group/lun/lun_0" && ln -s $core "$group/lun/lun_0/ram0" \
    && mkdir "$group/acls/$initiator" && mkdir "$group/acls/$initiator/lun_0" \
    && ln -s "$group/lun/lun_0" "$group/acls/$initiator/lun_0/m" && echo 1 > "$group/enable" || fail "no SRP target"
wait_until 20 [ -e /sys/class/infiniband_srp/srp-rxe0-1/add_target ] || fail "no SRP initiator"
echo "id_ext=$guid,ioc_guid=$guid,dest=$ip:5555,queue_size=256,max_cmd_per_lun=128" \
    > /sys/class/infiniband_srp/srp-rxe0-1/add_target || fail "no SRP login"
wait_until 30 new_disk || fail "no disk over SRP"
measure srp "/dev/$disk"
for remote in /sys/class/srp_remote_ports/port-*; do
    echo 1 > "$remote/delete"
done
wait_until 30 no_disk || fail "the disk over SRP stays"

name=iqn.2026-01.bench:ram0
portal=$config/target/iscsi/$name/tpgt_1
mkdir -p "$portal" && mkdir "$portal/np/$ip:3260" && echo 1 > "$portal/np/$ip:3260/iser" \
    && mkdir "$portal/lun/lun_0" && ln -s $core "$portal/lun/lun_0/ram0" \
    && echo 0 > "$portal/attrib/authentication" && echo 1 > "$portal/attrib/generate_node_acls" \
    && echo 0 > "$portal/attrib/demo_mode_write_protect" && echo 1 > "$portal/enable" || fail "no iSER target"
mkdir -p /etc/iscsi /run/lock/iscsi /var/lib/iscsi
echo "InitiatorName=iqn.2026-01.bench:host" > /etc/iscsi/initiatorname.iscsi
printf 'node.startup = manual\nnode.session.queue_depth = 128\nnode.session.cmds_max = 256\nnode.session.initial_login_retry_max = 1\n' > /etc/iscsi/iscsid.conf
iscsid -f > /tmp/iscsid.log 2>&1 &
over_iser() {
    iscsiadm -m node -T $name -p $ip:3260 -I iser "$@" >> /tmp/iscsiadm.log 2>&1
}
wait_until 20 over_iser -o new || fail "no iSER node"
over_iser --login || fail "no iSER login"
wait_until 30 new_disk || fail "no disk over iSER"
measure iser "/dev/$disk"
over_iser --logout || fail "no iSER logout"
wait_until 30 no_disk || fail "the disk over iSER stays"

# NVMe over both transports.
subsystem=$config/nvmet/subsystems/ram0
mkdir $subsystem && echo 1 > $subsystem/attr_allow_any_host && mkdir $subsystem/namespaces/1 \
    && echo /dev/ram0 > $subsystem/namespaces/1/device_path && echo 1 > $subsystem/namespaces/1/enable \
    || fail "no NVMe subsystem"
over_nvme() {
    port=$config/nvmet/ports/$3
    mkdir "$port" && echo "$2" > "$port/addr_traddr" && echo "$1" > "$port/addr_trtype" \
        && echo "442$3" > "$port/addr_trsvcid" && echo ipv4 > "$port/addr_adrfam" \
        && ln -s $subsystem "$port/subsystems/ram0" || fail "no NVMe port"
    host=00000000-0000-0000-0000-000000000001
    echo "traddr=$2,trsvcid=442$3,transport=$1,nqn=ram0,nr_io_queues=1,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$host,hostid=$host" \
        > /dev/nvme-fabrics || fail "no connection of NVMe/$1"
    disk_of_nvme() {
        disk=$(ls /sys/block | grep '^nvme[0-9]*n1$' | head -n 1)
        [ -n "$disk" ] && [ -b "/dev/$disk" ]
    }
    wait_until 30 disk_of_nvme || fail "no disk over NVMe/$1"
    measure "nvme/$1" "/dev/$disk"
    echo 1 > "/sys/class/nvme/${disk%n1}/delete_controller"
    gone() {
        ! ls /sys/block | grep -q '^nvme'
    }
    wait_until 30 gone || fail "the disk over NVMe/$1 stays"
}
over_nvme rdma $ip 1
over_nvme tcp 127.0.0.1 2

# BRP over both transports, as a block device of this kernel.
cat > /tmp/target.toml << END
[server]
memory = "64MiB"
lock_memory = false

[device.vol]
type = "file"
path = "/dev/ram0"

[export.rdma]
device = "vol"
protocol = "brp"
listen = "rdma:$ip:10820"
unprotected = true

[export.tcp]
device = "vol"
protocol = "brp"
listen = "tcp:127.0.0.1:10821"
END
start_server target serve /tmp/target.toml
target=$server
over_brp() {
    cat > "/tmp/$1.toml" << END
[server]
memory = "64MiB"
lock_memory = false

[device.vol]
type = "brp"
address = "$1:$2"
export = "$1"
END
    attach_volume "/tmp/$1.toml"
    measure "brp/$1" "$disk"
    stop_server
}
over_brp rdma $ip:10820
over_brp tcp 127.0.0.1:10821
server=$target
stop_server

echo
echo "4 KiB at random, emulated: operations a second, median in us, packets and RDMA completions for a request"
awk '{
    printf "%-10s %-9s %4d %8d %8d %8.2f", $1, $2, $3, $4, $5, ($8 - $6) / $10
    if ($1 ~ /tcp/) printf "        -\n"; else printf " %8.2f\n", ($9 - $7) / $10
}' /tmp/cells
# At depths at which requests queue, BRP must have fewer packets and completions than SRP.
awk '$3 >= 4 && ($1 == "srp" || $1 == "brp/rdma") {
    packets[$1, $2, $3] = $8 - $6; completions[$1, $2, $3] = $9 - $7; cells[$2, $3]
}
END {
    for (cell in cells) {
        split(cell, of, SUBSEP)
        srp = "srp" SUBSEP cell; brp = "brp/rdma" SUBSEP cell
        if (packets[brp] >= packets[srp] || completions[brp] >= completions[srp]) {
            print "more than SRP: " of[1] " at depth " of[2]; bad = 1
        }
    }
    exit bad
}' /tmp/cells || fail "BRP has as many packets or completions as SRP"
