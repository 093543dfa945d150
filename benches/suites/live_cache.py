"""The benefit of the cache for a database: SQLite on ext4 on an emulated SSD of 2009.

It is served by NBD and mounted on this machine, without a cache, with LRU and with the default
policy. The drive is `flash-2009`, filled and overwritten once at random before the measurement, in
two forms: page-mapped, and with log blocks (FAST), for which the cache is configured (`granularity
= "block"`, `cluster` of one erase block, 512 KiB). The data is in memory (a tmpfs), so that only
the model takes time. The file system and the database are created once, on the bare file, and every
run uses a copy of it.

The load is that of suites/bank.py, durable when SQLite copies its log to the tables (`normal`) or
after each transaction (`full`). A memory group limits its memory and the kernel's cache of its
files, so that repeated reads reach our cache. Reads and a quarter as many transactions warm up the
caches before the measurement; figures and times include the final flush to the drive. After every
run, the file below the volume is checked without the cache: fsck and SQLite must find no error, and
no money and no history may be missing.

It needs root, nbdfuse, loop devices and the memory controller of control groups.

    sudo python3 benches live-cache --rounds 3 --only page:normal
"""

import contextlib
import json
import os
import pathlib
import shutil
import sys

from harness import devices, options, processes, programs, servers, tables
from harness.suite import Group, Suite
from suites import bank

MIB = 1 << 20
DISK_MIB = 1024
CACHE_MIB = 32
GROUP_MIB = 20
SLOW_S = 0.1
# Number of measured transactions, so that a run takes 10 to 30 s.
TRANSACTIONS = {("page", "normal"): 5000, ("page", "full"): 2000,
                ("fast", "normal"): 500, ("fast", "full"): 100}
MEMBERS = {"none": None,
           "lru": ("lru", "write-back"), "bimetal": ("bimetal", "write-back"),
           "lru-through": ("lru", "write-through"),
           "bimetal-through": ("bimetal", "write-through")}

DRIVE = """
[device.data]
type = "file"
path = "disk.img"

[device.ssd]
type = "flash"
profile = "flash-2009"
below = "data"
layer = "{layer}"
filled_share = 1.0
overwritten_times = 1.0
seed = 7

[device.drive]
type = "stats"
below = "ssd"

[server]
lock_memory = false
"""
CACHE = """
[device.vol]
type = "cache"
below = "drive"
size = "{size}MiB"
policy = "{policy}"
mode = "{mode}"
{suits}
"""
SUITS = {"page": 'granularity = "cluster"', "fast": 'granularity = "block"\ncluster = "512KiB"'}


@contextlib.contextmanager
def fused(folder, uri):
    """An export as a file, by nbdfuse."""
    place, pid = folder / "fuse", folder / "fuse.pid"
    place.mkdir(exist_ok=True)
    pid.unlink(missing_ok=True)
    with processes.Process("nbdfuse", ["nbdfuse", "-P", pid, place / "nbd", uri],
                           folder) as process:
        try:
            processes.wait_until("nbdfuse has mounted", pid.exists)
            yield place / "nbd"
        finally:
            with processes.undisturbed():
                if place.is_mount():
                    processes.run(["fusermount3", "-u", place])
                    process.process.wait(60)


def make_image(folder):
    """Creates the file system with the database, on a bare file."""
    image = devices.sparse(folder / "made.img", DISK_MIB * MIB)
    processes.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
                   image])
    with (devices.looped(image) as device,
          devices.mounted(device, folder / "mnt", "-o", "rw") as mount):
        bank.make(mount / "bank.db")
    return image


def figures(server):
    """Returns live figures of the drive and of the cache."""
    found = {}
    for name, device in server.status()["devices"].items():
        found[name] = dict(device["statistics"])
        for part, values in device["parts"].items():
            found[name].update({f"{part}.{figure}": value for figure, value in values.items()})
    return found


def check(image, folder, transactions):
    """Checks that the file alone is a clean file system with all money and all history."""
    processes.run(["e2fsck", "-fn", image])
    with (devices.looped(image, "--read-only") as device,
          devices.mounted(device, folder / "mnt", "-o", "ro") as mount):
        bank.check(mount / "bank.db", transactions)


def configuration(layer, member):
    """Returns the drive, with the cache of a member over it, exported."""
    text = DRIVE.format(layer=layer)
    if MEMBERS[member]:
        policy, mode = MEMBERS[member]
        text += CACHE.format(size=CACHE_MIB, policy=policy, mode=mode, suits=SUITS[layer])
    return text + servers.export("vol", "vol" if MEMBERS[member] else "drive", "unix:vol.sock")


def loaded(group, what, database, cell, first, count):
    """Runs a part of the load in the memory group."""
    words = [sys.executable, "-c", "import bank; bank.command()", what, database, cell["sync"],
             first, count]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(bank.__file__).parent)}
    return processes.run(words, within_s=1800, preexec_fn=group.join, env=environment)


def measure(binary, group, made, folder, cell, member):
    """Returns the values of one run of one member."""
    image = folder / "disk.img"
    shutil.copyfile(made, image)
    warming, count = cell["transactions"] // 4, cell["transactions"]
    text = configuration(cell["layer"], member)
    with servers.Bimetal(binary, folder, text, formatted=None) as server:
        with (fused(folder, server.uri()) as file,
              devices.looped(file, "--direct-io=on") as device,
              devices.mounted(device, folder / "mnt", "-o", "rw") as mount):
            loaded(group, "warm", mount / "bank.db", cell, 0, warming)
            before = figures(server)
            ran = json.loads(loaded(group, "load", mount / "bank.db", cell, warming, count))
            after = figures(server)
        server.stop(cleanly=True)
    check(image, folder, warming + count)
    return told(ran, before, after)


def told(ran, before, after):
    """Returns the figures of a run."""
    def more(device, name):
        return after.get(device, {}).get(name, 0) - before.get(device, {}).get(name, 0)

    times_s = sorted(ran["times_s"])
    reads = more("vol", "read_hits") + more("vol", "read_misses")
    return {"transactions_per_s": len(times_s) / ran["all_s"],
            "p999_ms": times_s[len(times_s) * 999 // 1000] * 1e3,
            "slow": sum(time_s > SLOW_S for time_s in times_s),
            "written_pages": more("drive", "write.bytes") // 4096,
            "read_pages": more("drive", "read.bytes") // 4096,
            "programs": more("ssd", "flash_programs"), "erases": more("ssd", "flash_erases"),
            "freezes": more("ssd", "freezes"), "frozen_ms": more("ssd", "frozen_ns") / 1e6,
            "read_hits": more("vol", "read_hits") / reads if reads else 0}


class LiveCache(Suite):
    """The cache under a database."""

    name, group = "live-cache", "devices"
    line = "the cache under a database on an emulated SSD of 2009"
    defaults = {"rounds": 3, "dir": "/dev/shm"}
    quick = {"rounds": 1, "scale": 0.05}
    axes = ("layer", "sync")
    headline = ("transactions_per_s", "p999_ms")

    def add_options(self, parser):
        parser.add_argument("--scale", type=float, help="of the number of transactions")
        parser.add_argument("--members", type=options.words, default=["none", "lru", "bimetal"],
                            help=f"caches, of {', '.join(MEMBERS)}")

    def missing(self, args):
        if unknown := set(args.members) - set(MEMBERS):
            return f"no cache is called {', '.join(sorted(unknown))}"
        return processes.not_root() or processes.missing("nbdfuse", "fusermount3", "losetup",
                                                         "mkfs.ext4", "e2fsck")

    def groups(self, args):
        scale = args.scale or 1.0
        cells = [{"layer": layer, "sync": sync, "transactions": max(2, int(count * scale))}
                 for (layer, sync), count in TRANSACTIONS.items()]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, args.members, lambda: self.session(args))]

    @contextlib.contextmanager
    def session(self, args):
        """The memory group and the file system."""
        group = devices.MemoryGroup("live-cache", GROUP_MIB * MIB)
        try:
            with processes.scratch("live-cache", args.dir) as folder:
                made = make_image(folder)
                yield lambda cell, member, _turn: measure(programs.server(args), group, made,
                                                          folder, cell, member)
        finally:
            with processes.undisturbed():
                group.remove()

    def tables(self, summary):
        return {"": tables.long(
            summary, "SQLite on an emulated SSD",
            [("drive", lambda c: c["layer"]), ("durable", lambda c: c["sync"])],
            [("trans./s", "transactions_per_s", "{:.0f}"), ("p99.9 ms", "p999_ms", "{:.0f}"),
             ("> 100 ms", "slow", "{:.0f}"), ("pages written", "written_pages", "{:,.0f}"),
             ("read", "read_pages", "{:,.0f}"), ("programs", "programs", "{:,.0f}"),
             ("erases", "erases", "{:,.0f}"), ("freezes", "freezes", "{:,.0f}"),
             ("frozen ms", "frozen_ms", "{:,.0f}"), ("read hits", "read_hits", "{:.2f}")],
            subjects=MEMBERS)}


SUITE = LiveCache()
