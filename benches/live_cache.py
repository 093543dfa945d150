#!/usr/bin/env python3
"""What the cache is worth to a database: SQLite on ext4 on an emulated SSD of 2009, served by NBD and
mounted here, without a cache, with LRU and with the default policy.

The drive is `flash-2009`, full and overwritten once at random before time begins, in two forms: mapped
by pages, and by log blocks (FAST), where the cache is told so (`granularity = "block"`, `cluster` its
erase block of 512 KiB). The data lies in memory (a tmpfs), so that only the model takes time. The file
system and the database are made once, on the bare file, and every run gets a copy of it.

The load is `bank.py`, durable when SQLite copies its log to the tables (`normal`) or after each
transaction (`full`). A memory group bounds it and the kernel's cache of its files, so that what is read
again reaches our cache. Reads and a quarter as many transactions warm the caches up before anything is
counted; figures and times end with everything on the drive.

Members take turns in rounds, and the medians are shown. After every run the file below is looked at by
itself: fsck finds nothing, SQLite finds nothing, no money and no history is missing.

Needs root, nbdfuse, loop devices and the memory controller of cgroups, version 1 or 2.

    cargo build --release -p bimetal-cli
    benches/live_cache.py [--rounds N] [--layer page|fast] [--sync normal|full] [--members A,B] [--json]
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import bank

MIB = 1 << 20
DISK_MIB = 1024
CACHE_MIB = 32
GROUP_MIB = 20
SLOW_S = 0.1
# Transactions that are measured, so that a run takes 10 to 30 s.
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
EXPORT = """
[export.vol]
device = "{device}"
protocol = "nbd"
listen = "unix:vol.sock"

[server]
lock_memory = false
"""


def run(words, within_s=600):
    """Runs a command to its end; returns what it printed."""
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=within_s, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def wait_until(what, found, within_s=60):
    """Waits for something to be so."""
    end = time.monotonic() + within_s
    while not found():
        if time.monotonic() > end:
            raise SystemExit(f"after {within_s} s still not: {what}")
        time.sleep(0.02)


class MemoryGroup:
    """A limit on the memory of the load, the kernel's cache of its files included."""

    def __init__(self, limit_mib):
        root = pathlib.Path("/sys/fs/cgroup/memory")
        limit = "memory.limit_in_bytes"
        if not (root / limit).exists():
            root, limit = pathlib.Path("/sys/fs/cgroup"), "memory.max"
            (root / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        self.folder = root / f"live-cache-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / limit).write_text(str(limit_mib * MIB), encoding="ascii")

    def run(self, words):
        """Runs a command inside; returns what it printed."""
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', self.folder / "cgroup.procs"]
        return run([*enter, *words], within_s=1800)

    def remove(self):
        """Takes the group away; what it still holds of caches goes to the root."""
        self.folder.rmdir()


@contextlib.contextmanager
def looped(file, *options):
    """A loop device over a file."""
    device = run(["losetup", "--find", "--show", *options, file]).strip()
    try:
        yield device
    finally:
        run(["losetup", "--detach", device])


@contextlib.contextmanager
def mounted(device, folder, options="rw"):
    """A mounted file system."""
    folder.mkdir(exist_ok=True)
    run(["mount", "-o", options, device, folder])
    try:
        yield folder
    finally:
        run(["umount", folder])


@contextlib.contextmanager
def served(binary, folder, text):
    """A running server, as its configuration."""
    config = folder / "vol.toml"
    config.write_text(text, encoding="ascii")
    with open(folder / "serve.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([str(binary), "serve", str(config)], text=True, stderr=log,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        line = process.stdout.readline().strip()
        if line != "ready":
            raise SystemExit(f"serve printed {line!r} in place of `ready`; see {log.name}")
        yield config
    finally:
        process.terminate()
        if process.wait(120) != 0:
            raise SystemExit(f"serve ended with status {process.returncode}; see {log.name}")


@contextlib.contextmanager
def fused(folder, uri):
    """An export as a file, by nbdfuse."""
    place, pid = folder / "fuse", folder / "fuse.pid"
    place.mkdir(exist_ok=True)
    pid.unlink(missing_ok=True)
    process = subprocess.Popen(["nbdfuse", "-P", str(pid), str(place / "nbd"), uri],
                               stdin=subprocess.DEVNULL)
    try:
        wait_until("nbdfuse has mounted", pid.exists)
        yield place / "nbd"
    finally:
        run(["fusermount3", "-u", place])
        process.wait(60)


def make_image(folder):
    """The file system with the database, on a bare file."""
    image = folder / "made.img"
    with open(image, "wb") as file:
        file.truncate(DISK_MIB * MIB)
    run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", image])
    with looped(image) as device, mounted(device, folder / "mnt") as mount:
        bank.make(mount / "bank.db")
    return image


def figures(binary, config):
    """Live figures of the drive and of the cache."""
    found = {}
    for name, device in json.loads(run([binary, "status", config, "--json"]))["devices"].items():
        found[name] = dict(device["figures"])
        for part, values in device["parts"].items():
            found[name].update({f"{part}.{figure}": value for figure, value in values.items()})
    return found


def check(image, folder, transactions):
    """The file by itself is a clean file system with all money and all history."""
    run(["e2fsck", "-fn", image])
    with looped(image, "--read-only") as device, mounted(device, folder / "mnt", "ro") as mount:
        bank.check(mount / "bank.db", transactions)


def measure(args, group, made, folder, cell):
    """One run of one member."""
    layer, sync, member = cell
    image = folder / "disk.img"
    shutil.copyfile(made, image)
    text = DRIVE.format(layer=layer)
    if MEMBERS[member]:
        policy, mode = MEMBERS[member]
        text += CACHE.format(size=CACHE_MIB, policy=policy, mode=mode, suits=SUITS[layer])
    text += EXPORT.format(device="vol" if MEMBERS[member] else "drive")
    count = max(2, int(TRANSACTIONS[layer, sync] * args.scale))
    uri = f"nbd+unix:///vol?socket={folder}/vol.sock"
    with served(args.bimetal, folder, text) as config:
        with (fused(folder, uri) as file, looped(file, "--direct-io=on") as device,
              mounted(device, folder / "mnt") as mount):
            def loaded(what, first, number):
                words = [sys.executable, bank.__file__, what, mount / "bank.db", sync, first, number]
                return json.loads(group.run(words))

            loaded("warm", 0, count // 4)
            before = figures(args.bimetal, config)
            ran = loaded("load", count // 4, count)
            after = figures(args.bimetal, config)
    check(image, folder, count // 4 + count)
    return {"layer": layer, "sync": sync, "member": member, **told(ran, before, after)}


def told(ran, before, after):
    """The figures of a run."""
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


COLUMNS = [("transactions_per_s", "trans./s", "{:.0f}"), ("p999_ms", "p99.9 ms", "{:.0f}"),
           ("slow", "> 100 ms", "{:.0f}"),
           ("written_pages", "pages written", "{:,.0f}"), ("read_pages", "read", "{:,.0f}"),
           ("programs", "programs", "{:,.0f}"), ("erases", "erases", "{:,.0f}"),
           ("freezes", "freezes", "{:,.0f}"), ("frozen_ms", "frozen ms", "{:,.0f}"),
           ("read_hits", "read hits", "{:.2f}")]


def medians(results):
    """Median of each figure by layer, sync and member, in the order of the first run of each."""
    table = {}
    for result in results:
        table.setdefault((result["layer"], result["sync"], result["member"]), []).append(result)
    return {key: {name: statistics.median(run[name] for run in runs) for name, _, _ in COLUMNS}
            for key, runs in table.items()}


def show(table):
    """The table as Markdown."""
    names = ["drive", "durable", "cache", *(title for _, title, _ in COLUMNS)]
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
    for key, row in sorted(table.items(), key=lambda item: (item[0][0], item[0][1])):
        cells = [form.format(row[name]) for name, _, form in COLUMNS]
        print("| " + " | ".join([*key, *cells]) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--bimetal", type=pathlib.Path, default="target/release/bimetal")
    parser.add_argument("--dir", default="/dev/shm", help="where the data lies, in memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of transactions")
    parser.add_argument("--layer", choices=("page", "fast"))
    parser.add_argument("--sync", choices=("normal", "full"))
    parser.add_argument("--members", default="none,lru,bimetal", help=", ".join(MEMBERS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.bimetal = args.bimetal.resolve()
    members = args.members.split(",")
    if not set(members) <= set(MEMBERS):
        parser.error(f"members are {', '.join(MEMBERS)}")
    cells = [cell for cell in TRANSACTIONS
             if args.layer in (None, cell[0]) and args.sync in (None, cell[1])]
    results, group = [], MemoryGroup(GROUP_MIB)
    try:
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="live-cache-") as name:
            folder = pathlib.Path(name)
            made = make_image(folder)
            for number in range(args.rounds):
                first = number % len(members)
                for cell in cells:
                    for member in members[first:] + members[:first]:
                        results.append(measure(args, group, made, folder, (*cell, member)))
                        print(json.dumps(results[-1]), file=sys.stderr)
    finally:
        group.remove()
    table = medians(results)
    if args.json:
        rows = [dict(zip(("layer", "sync", "member"), key), **row) for key, row in table.items()]
        print(json.dumps({"cells": rows, "results": results}))
    else:
        print(f"medians of {args.rounds} rounds")
        show(table)
    return 0


if __name__ == "__main__":
    # So that what is mounted is unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    sys.exit(main())
