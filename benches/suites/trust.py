"""The cost of a slow or frozen side for a mirror, and the cost of checksums with two healthy sides.

The sides have homes.

`throttle`: each mirror has two loop devices, over files on one disk, of which one is limited to 100
operations a second by the kernel's throttle (the blkio controller of cgroups, version 1). 4 KiB
random writes at depth 1, at most 12,000 of them, which is 47 MiB and therefore less than the
default bound of the exposure: ours by fio's nbd engine, btrfs raid1 by O_DIRECT to an existing
file. The requirements are 20 times the writes a second of btrfs, and a tenth of its p99.9.

`freeze`: two disks of the tests (`volatile-disk`), each operation delayed by a millisecond. 4 KiB
random writes at depth 1, each followed by a flush, for 20 s, while one of the disks does not answer
for 2 s of every 10. The requirement is a p99.9 of at most twice that of the other disk alone. A
client that waits for each answer sends nothing while it waits, so a freeze of 2 s would affect only
one operation of thousands. The judged value is therefore the p99.9 of a client that sends a request
every 5 ms (`steady`), computed from fio's histogram.

`cost`: two sides of 2,500 operations and 100 MB a second each, over files. 4 KiB random writes at
depth 32 in process, for so long that the logs of 32 MiB wrap around several times: a side alone,
the mirror without checksums, and the mirror with checksums. The requirements are 0.8 of the side
alone, and 0.8 of the mirror without checksums.

`resync`: once, 100 random writes on 8 GiB, each flushed, with one side frozen; then the power of
both sides is cut and the server killed. The requirement is that afterwards no more is copied than
the exposed data and one region of 1 MiB.

    cargo build --release -p bimetal-cli -p bimetal-tests
    sudo python3 benches trust --rounds 3 --only cost
"""

import contextlib
import pathlib
import subprocess
import threading

from harness import devices, fio, options, processes, programs, servers, tables
from harness.judging import Bar
from harness.suite import Group, Suite

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
SIDE_BYTES = 1 << 30
FILE_MIB = 256
WRITES_MAX = 12_000
SECONDS_MAX = 5
LIMIT_IOPS = 100
DISK_BYTES = 256 << 20
DISK_MIB = 128
FREEZE_EVERY_S = 10
FREEZE_S = 2
ASKED_EVERY_NS = 5_000_000
RESYNC_BYTES = 8 << 30
RESYNC_WRITES = 100
REGION_BYTES = 1 << 20

SIDES = """
[device.fast]
type = "{kind}"
{fast}

[device.slow]
type = "{kind}"
{slow}

[device.vol]
type = "mirror"
sides = ["fast", "slow"]
layout = "home"
log = "{log}"

[server]
lock_memory = false
"""
COST_SIDE = """
[device.{name}-file]
type = "file"
path = "{name}.img"
size = "512MiB"

[device.{name}]
type = "rate"
below = "{name}-file"
requests_per_s = 2500
burst_requests = 25
bytes_per_s = "100MB"
burst_bytes = "1MB"
"""
COST_MIRROR = """
[device.vol]
type = "mirror"
sides = ["fast", "slow"]
layout = "home"
log = "32MiB"
checksums = {checksums}
"""


def run_fio(options_of_fio):
    """Runs fio with 4 KiB at depth 1, and a histogram."""
    return fio.run(["--bs=4k", "--iodepth=1", "--percentile_list=50:99:99.9", *options_of_fio],
                   form="json+")


def sides_of(kind, fast, slow, log, exported="vol"):
    """Returns the configuration of a mirror, with one of its devices exported."""
    return (SIDES.format(kind=kind, fast=fast, slow=slow, log=log)
            + servers.export("vol", exported, "unix:vol.sock"))


def is_drained(figures):
    """Returns whether both sides are complete."""
    return not figures["exposed_bytes"] and not figures["degraded"]


def drain(server):
    """Waits until both sides are complete."""
    processes.wait_until("the volume has drained",
                         lambda: is_drained(server.device()["statistics"]), 300, 0.1)


class Loop:
    """A loop device, and the kernel's throttle on it."""

    def __init__(self, device):
        self.device = device
        self.number = pathlib.Path(f"/sys/block/{pathlib.Path(self.device).name}/dev").read_text(
            encoding="ascii").strip()

    def limit(self, iops):
        """Sets a limit of operations a second (0 for none) for the root group, which includes
        programs and the kernel's threads."""
        for kind in ("read", "write"):
            file = BLKIO / f"blkio.throttle.{kind}_iops_device"
            file.write_text(f"{self.number} {iops}", encoding="ascii")


class Ours:
    """The mirror on two loop devices."""

    def __init__(self, stack, args, folder):
        self.loops = loops_of(stack, folder)
        fast, slow = (f'path = "{loop.device}"' for loop in self.loops)
        self.server = stack.enter_context(servers.Bimetal(
            programs.server(args), folder, sides_of("file", fast, slow, "260MiB"),
            formatted=["--force"]))
        self.place = [*fio.nbd(self.server.uri()), f"--size={FILE_MIB}m"]

    def settle(self):
        """Waits for what the last run has left."""
        drain(self.server)

    def backpressured_writes(self):
        """Returns the number of writes that waited for both sides, because the exposure was at its
        bound."""
        return self.server.device()["statistics"]["backpressured_writes"]


class Btrfs:
    """btrfs with two copies of data and metadata, on two loop devices."""

    def __init__(self, stack, _args, folder):
        self.loops = loops_of(stack, folder)
        found = [loop.device for loop in self.loops]
        processes.run(["mkfs.btrfs", "-q", "-f", "-d", "raid1", "-m", "raid1", *found])
        self.mount = stack.enter_context(devices.mounted(found[0], folder / "mnt"))
        self.place = ["--ioengine=psync", "--direct=1", f"--filename={self.mount}/file",
                      f"--size={FILE_MIB}m"]

    def settle(self):
        """Waits for what the last run has left."""
        processes.run(["sync", "-f", self.mount])

    def backpressured_writes(self):
        """Always 0: btrfs has no bound of the exposure."""
        return 0


def loops_of(stack, folder):
    """Creates the two loop devices of a mirror."""
    folder.mkdir()
    found = []
    for side in ("fast", "slow"):
        image = devices.sparse(folder / f"{side}.img", SIDE_BYTES)
        found.append(Loop(stack.enter_context(devices.looped(image))))
    return found


def latencies(kinds):
    """Returns the figures of operations that were waited for one after the other; their sum is at
    least that of both."""
    return {"p999_ms": sum(kind["percentile"][fio.P999] for kind in kinds) / 1e6,
            "steady_p999_ms": sum(steady_p999_ns(kind["bins"]) for kind in kinds) / 1e6,
            "max_ms": sum(kind["max"] for kind in kinds) / 1e6}


def steady_p999_ns(bins):
    """Returns the p99.9 that a client with a request every 5 ms would see: a slower answer also
    delays the requests that are due in the meantime."""
    counts = {}
    for latency_ns, count in bins.items():
        left_ns = int(latency_ns)
        while True:
            counts[left_ns] = counts.get(left_ns, 0) + count
            left_ns -= ASKED_EVERY_NS
            if left_ns <= 0:
                break
    beyond = sum(counts.values()) / 1000
    for latency_ns in sorted(counts, reverse=True):
        beyond -= counts[latency_ns]
        if beyond < 0:
            return latency_ns
    raise SystemExit("fio measured nothing")


@contextlib.contextmanager
def throttle(args):
    """Both mirrors, filled."""
    with processes.scratch("trust", args.dir) as folder, contextlib.ExitStack() as stack:
        mirrors = {name: kind(stack, args, folder / name)
                   for name, kind in (("bimetal", Ours), ("btrfs", Btrfs))}
        for mirror in mirrors.values():
            run_fio([*mirror.place, "--rw=write", "--bs=1m", "--end_fsync=1"])
        yield lambda cell, subject, _turn: throttled(
            mirrors[subject], LIMIT_IOPS if cell["state"] == "throttled" else 0)


def throttled(mirror, iops):
    """Returns the values of one run, during which the second device is limited."""
    mirror.settle()
    before = mirror.backpressured_writes()
    mirror.loops[1].limit(iops)
    try:
        job = run_fio([*mirror.place, "--rw=randwrite", f"--number_ios={WRITES_MAX}",
                       f"--runtime={SECONDS_MAX}"])
        backpressured_writes = mirror.backpressured_writes() - before
    finally:
        mirror.loops[1].limit(0)
    write = job["write"]
    return {"ops_per_s": write["iops"], "ops": write["total_ios"],
            **latencies([write["clat_ns"]]), "backpressured_writes": backpressured_writes}


class Disk(processes.Process):
    """An emulated disk of the tests, which accepts commands on its standard input."""

    def __init__(self, binary, folder, name, size_bytes=DISK_BYTES):
        self.socket = folder / f"{name}.sock"
        image = devices.sparse(folder / f"{name}.img", size_bytes)
        super().__init__(f"disk-{name}", [binary, image, self.socket], folder,
                         stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        self.expect("ready")
        self.tell("delay 1")

    def tell(self, command):
        """Sends a command and waits for its answer."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.expect("ok")

    def stop(self, within_s=20, cleanly=False):
        """Ends the disk, which exits at the end of its standard input."""
        self.process.stdin.close()
        self.process.wait(within_s)


def freezing(disk, ended):
    """Freezes the disk for 2 s of every 10 until `ended`, and leaves it thawed."""
    wait_s = (FREEZE_EVERY_S - FREEZE_S) / 2
    while not ended.wait(wait_s):
        disk.tell("freeze")
        ended.wait(FREEZE_S)
        disk.tell("thaw")
        wait_s = FREEZE_EVERY_S - FREEZE_S


# The exported device of each subject, and the index of the disk that freezes.
FREEZE_SUBJECTS = {"fast alone": ("fast", None), "slow alone": ("slow", None),
                   "mirror": ("vol", None), "mirror, fast freezes": ("vol", 0),
                   "mirror, slow freezes": ("vol", 1)}


@contextlib.contextmanager
def freeze(args):
    """The two disks."""
    with processes.scratch("trust", args.dir) as folder, contextlib.ExitStack() as stack:
        disks = [stack.enter_context(Disk(programs.volatile_disk(args), folder, name))
                 for name in ("fast", "slow")]
        yield lambda cell, subject, _turn: frozen_run(
            programs.server(args), folder, disks, cell["seconds"], *FREEZE_SUBJECTS[subject])


def frozen_run(binary, folder, disks, seconds, exported, frozen):
    """Returns the values of one run."""
    fast, slow = (f'address = "unix:{disk.socket}"' for disk in disks)
    text = sides_of("remote", fast, slow, "64MiB", exported)
    formatted = ["--force"] if exported == "vol" else None
    with servers.Bimetal(binary, folder, text, formatted=formatted) as server:
        ended, thread = threading.Event(), None
        try:
            if frozen is not None:
                thread = threading.Thread(target=freezing, args=(disks[frozen], ended))
                thread.start()
            job = run_fio([*fio.nbd(server.uri()), "--rw=randwrite", f"--size={DISK_MIB}m",
                           "--norandommap", "--fsync=1", "--time_based", f"--runtime={seconds}"])
        finally:
            ended.set()
            if thread:
                thread.join()
    return {"ops_per_s": job["write"]["iops"], "ops": job["write"]["total_ios"],
            **latencies([job["write"]["clat_ns"], job["sync"]["lat_ns"]])}


COST_SUBJECTS = {"side alone": None, "no checksums": "false", "mirror": "true"}


@contextlib.contextmanager
def cost(args):
    """A folder; every run creates its own sides."""
    with processes.scratch("trust", args.dir) as folder:
        yield lambda cell, subject, _turn: cost_run(
            programs.server(args), folder, cell["seconds"], COST_SUBJECTS[subject])


def cost_run(binary, folder, seconds, checksums):
    """Returns the values of a side alone, or of a mirror of two such sides."""
    sides = "".join(COST_SIDE.format(name=name) for name in ("fast", "slow"))
    config = folder / "vol.toml"
    config.write_text(sides + (COST_MIRROR.format(checksums=checksums) if checksums else ""),
                      encoding="ascii")
    images = [folder / "fast.img", folder / "slow.img"]
    for image in images:
        # The file system writes unused space more slowly than used space.
        processes.run(["fallocate", "--length", "512MiB", image])
        processes.run(["dd", "if=/dev/zero", f"of={image}", "bs=1M", "count=512",
                       "conv=notrunc,fsync"])
    if checksums:
        processes.run([binary, "format", config])
    ran = processes.run_json([
        binary, "bench", config, "--device", "vol" if checksums else "fast", "--rw", "randwrite",
        "--depth", 32, "--size", "256MiB", "--time", f"{round(seconds * 1000)}ms",
        "--destroy-data", "--json"])
    for image in images:
        image.unlink()
    return {"ops_per_s": ran["operations_per_s"], "ops": ran["write"]["count"],
            "p999_ms": ran["write"]["p999_ns"] / 1e6, "max_ms": ran["write"]["max_ns"] / 1e6}


@contextlib.contextmanager
def resync(args):
    """A folder; the only run creates its own disks."""
    with processes.scratch("trust", args.dir) as folder:
        yield lambda *_: resync_run(args, folder)


def resync_run(args, folder):
    """Returns the bytes that are copied after a power cut while a side lags: to its log by the
    opening, and to home locations by a rebuild."""
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(Disk(programs.volatile_disk(args), folder, name, RESYNC_BYTES))
                 for name in ("fast", "slow")]
        fast, slow = (f'address = "unix:{disk.socket}"' for disk in disks)
        text = sides_of("remote", fast, slow, "260MiB")
        server = stack.enter_context(servers.Bimetal(programs.server(args), folder, text,
                                                     formatted=["--force"]))
        disks[1].tell("freeze")
        run_fio([*fio.nbd(server.uri()), "--rw=randwrite", "--fsync=1", "--size=7g",
                 f"--number_ios={RESYNC_WRITES}"])
        exposed_bytes = server.device()["statistics"]["exposed_bytes"]
        server.kill()
        for number, disk in enumerate(disks):
            disk.tell(f"cut blocks {number}")
        disks[1].tell("thaw")
        server = stack.enter_context(servers.Bimetal(programs.server(args), folder, text,
                                                     formatted=None))
        drain(server)
        sides = server.device()["parts"].values()
        copied_bytes = sum(side["log_written_bytes"] + side["resynced_bytes"] for side in sides)
    return {"exposed_bytes": exposed_bytes, "copied_bytes": copied_bytes}


def is_state(state):
    """Returns whether a cell is of this state, as a function."""
    return lambda cell: cell["state"] == state


BARS = [
    Bar("throttled: writes a second of btrfs's", "ops_per_s", bases=("btrfs",), at_least=20,
        applies=is_state("throttled")),
    Bar("throttled: p99.9 of btrfs's", "p999_ms", bases=("btrfs",), at_most=0.1,
        applies=is_state("throttled")),
    Bar("throttled: writes that waited for both sides, so that the exposure did not last",
        "backpressured_writes", at_most=0, applies=is_state("throttled")),
    Bar("fast side frozen: steady p99.9 of the slow one alone", "steady_p999_ms",
        "mirror, fast freezes", ("slow alone",), at_most=2),
    Bar("slow side frozen: steady p99.9 of the fast one alone", "steady_p999_ms",
        "mirror, slow freezes", ("fast alone",), at_most=2),
    Bar("after a power cut: bytes copied, of those exposed and a region",
        lambda v: v["copied_bytes"] / (v["exposed_bytes"] + REGION_BYTES), at_most=1,
        applies=is_state("power cut")),
    Bar("cost of the mirror: writes a second of a side alone", "ops_per_s", "no checksums",
        ("side alone",), at_least=0.8),
    Bar("cost of integrity: writes a second with checksums of those without", "ops_per_s",
        "mirror", ("no checksums",), at_least=0.8, applies=is_state("cost")),
]


class Trust(Suite):
    """Mirrors."""

    name, group = "trust", "mirrors"
    line = "a slow or frozen side, and what trust costs, beside btrfs"
    defaults = {"rounds": 5, "seconds": 20, "dir": "/var/tmp"}
    quick = {"rounds": 2, "seconds": 3}
    axes = ("part", "state")
    headline = ("ops_per_s", "p999_ms", "copied_bytes")
    bars = BARS

    def add_options(self, parser):
        parser.add_argument("--disk", type=pathlib.Path,
                            help="the disk of the tests (default: volatile-disk beside --binary)")

    def missing(self, args):
        parts = {cell["part"] for group in self.groups(args) for cell in group.cells}
        if "throttle" in parts:
            if not (BLKIO / "blkio.throttle.write_iops_device").exists():
                return f"{BLKIO} has no throttle of version 1, which `throttle` needs"
            if reason := processes.not_root() or processes.missing("mkfs.btrfs", "losetup"):
                return reason
        if parts & {"freeze", "resync"}:
            how = "cargo build --release -p bimetal-tests"
            if reason := options.program_missing(programs.volatile_disk(args), how):
                return reason
        return processes.missing("fio")

    def groups(self, args):
        timed = {"seconds": args.seconds}
        parts = [([{"part": "throttle", "state": state} for state in ("whole", "throttled")],
                  ["bimetal", "btrfs"], throttle, None),
                 ([{"part": "freeze", "state": "write+flush", **timed}], list(FREEZE_SUBJECTS),
                  freeze, None),
                 ([{"part": "cost", "state": "cost", **timed}], list(COST_SUBJECTS), cost, None),
                 ([{"part": "resync", "state": "power cut"}], ["bimetal"], resync, 1)]
        asked = options.chosen([cell for cells, *_ in parts for cell in cells], args.only,
                               self.axes)
        groups = [Group([cell for cell in cells if cell in asked], subjects,
                        lambda opened=opened: opened(args), rounds)
                  for cells, subjects, opened, rounds in parts]
        return [group for group in groups if group.cells]

    def tables(self, summary):
        columns = [("writes/s", "ops_per_s", "{:,.0f}"), ("p99.9 ms", "p999_ms", "{:.2f}"),
                   ("steady", "steady_p999_ms", "{:.2f}"), ("max ms", "max_ms", "{:.1f}"),
                   ("held back", "backpressured_writes", "{:.0f}")]
        copied = [("exposed bytes", "exposed_bytes", "{:,.0f}"),
                  ("copied bytes", "copied_bytes", "{:,.0f}")]
        found = {}
        for key, title, columns, is_it in (("", "writes", columns, lambda c: c != "resync"),
                                           ("resync", "after a power cut", copied,
                                            lambda c: c == "resync")):
            part = self.summary(one for one in summary.records if is_it(one["cell"]["part"]))
            if part.records:
                found[key] = tables.long(part, title, [("state", lambda c: c["state"])], columns)
        return found


SUITE = Trust()
