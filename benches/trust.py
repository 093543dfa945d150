#!/usr/bin/env python3
"""What a slow or frozen side costs a mirror, and what trust costs when both are well: bimetal beside
btrfs raid1, and beside one side alone.

Four questions, each measured in rounds whose members take turns, so that whatever else the machine
does falls on all of them; the medians of the rounds are compared.

`throttle`: two loop devices a mirror, over files on one disk, and one of the two limited to 100
operations a second by the kernel's own throttle (the blkio controller of cgroups, version 1). 4 KiB
random writes at depth 1, at most 12,000 of them, which is 47 MiB and so less than the default bound
of the exposure: ours by fio's nbd engine through a server with file sides on the loop devices,
btrfs by O_DIRECT into a file written before. The bars: at least 20 times btrfs's writes a second,
at most a tenth of its p99.9.

`freeze`: two disks of the tests (`volatile-disk`), each operation delayed by a millisecond. 4 KiB
random writes at depth 1, each followed by a flush, for 20 s a round, while one of the disks answers
nothing for 2 s of every 10. The bar: p99.9 at most twice that of the disk that is not frozen,
served alone. A client that waits for each answer asks little while it is made to wait, so that a
freeze of 2 s would be one operation of thousands; what is judged is therefore p99.9 as seen by a
client that asks every 5 ms (`steady`), reckoned from fio's histogram. The plain one and the slowest
are shown too.

`cost`: two sides of 2,500 operations and 100 MB a second each, over files. 4 KiB random writes at
depth 32 in process (`bimetal bench`), for so long that the logs of 32 MiB go round several times and
what is brought home is paid for: a side alone, the mirror without checksums, and with them. The
bars: without, at least 80 % of the side; with, at least 80 % of that again.

`resync`: once, 100 random writes on 8 GiB, each flushed, with one side frozen; then the power of both
sides is cut and the server killed. The bar: what is copied afterwards is no more than what was
exposed and one region of 1 MiB.

Needs root, loop devices, fio, btrfs-progs.

    cargo build --release -p bimetal-cli -p bimetal-tests
    benches/trust.py [--only throttle|freeze|cost|resync] [--rounds N] [--dir DIR] [--json]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

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
FREEZE_RUN_S = 20
ASKED_EVERY_NS = 5_000_000
RESYNC_BYTES = 8 << 30
RESYNC_WRITES = 100
REGION_BYTES = 1 << 20
PERCENTILE = "99.900000"

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
log = "{log}"
"""
EXPORT = """
[export.vol]
device = "{device}"
protocol = "nbd"
listen = "unix:vol.sock"

[server]
lock_memory = false
"""


def run(words):
    """Runs a command to its end; returns what it printed."""
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def fio(extra):
    """Runs one fio job of 4 KiB at depth 1 and returns its JSON."""
    words = ["fio", "--name=cell", "--bs=4k", "--iodepth=1", "--randrepeat=0",
             "--percentile_list=50:99:99.9", "--output-format=json+", *extra]
    text = run(words)
    # The engine's own words stand before the JSON.
    return json.loads(text[text.index("{"):])["jobs"][0]


class Server:
    """A running `bimetal serve` in a folder of its own."""

    def __init__(self, binary, folder, text, formatted=True):
        self.binary, self.config = binary, folder / "vol.toml"
        self.uri = f"nbd+unix:///vol?socket={folder}/vol.sock"
        self.config.write_text(text, encoding="ascii")
        if formatted:
            run([binary, "format", self.config, "--force"])
        log = open(folder / "serve.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([str(binary), "serve", str(self.config)], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=log)
        line = self.process.stdout.readline().strip()
        if line != "ready":
            raise SystemExit(f"serve printed {line!r} in place of `ready`; see {log.name}")

    def mirror(self):
        """What the server says of the mirror. A degraded volume is an answer as well (status 1)."""
        words = [str(self.binary), "status", str(self.config), "--json"]
        text = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        return json.loads(text)["devices"]["vol"]

    def figures(self):
        """Live figures of the mirror."""
        return self.mirror()["figures"]

    def drained(self):
        """Waits until both sides have everything."""
        end = time.monotonic() + 300
        while True:
            figures = self.figures()
            if not figures["exposed_bytes"] and not figures["degraded"]:
                return
            if time.monotonic() > end:
                raise SystemExit(f"the volume does not drain: {figures}")
            time.sleep(0.1)

    def stop(self):
        """Ends the server."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Loop:
    """A loop device over a file, and the kernel's throttle on it."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.truncate(SIDE_BYTES)
        self.device = run(["losetup", "--find", "--show", path]).strip()
        self.number = pathlib.Path(f"/sys/block/{pathlib.Path(self.device).name}/dev").read_text(
            encoding="ascii").strip()

    def limit(self, iops):
        """At most so many operations a second, 0 for no limit, for all in the root group: programs
        and the kernel's own threads alike."""
        for kind in ("read", "write"):
            file = BLKIO / f"blkio.throttle.{kind}_iops_device"
            file.write_text(f"{self.number} {iops}", encoding="ascii")

    def detach(self):
        """Takes the device away."""
        self.limit(0)
        run(["losetup", "--detach", self.device])


class Ours:
    """The mirror on two loop devices."""

    def __init__(self, args, folder):
        folder.mkdir()
        self.loops = [Loop(folder / f"{side}.img") for side in ("fast", "slow")]
        fast, slow = (f'path = "{loop.device}"' for loop in self.loops)
        text = SIDES.format(kind="file", fast=fast, slow=slow, log="260MiB")
        text += EXPORT.format(device="vol")
        self.server = Server(args.bimetal, folder, text)
        self.place = ["--ioengine=nbd", "--thread=0", f"--uri={self.server.uri}",
                      f"--size={FILE_MIB}m"]

    def fill(self):
        """Writes the area that is measured."""
        fio([*self.place, "--rw=write", "--bs=1m", "--end_fsync=1"])

    def settle(self):
        """Waits for what the last run has left."""
        self.server.drained()

    def notes(self):
        """What the figures mean: whether the exposure lasted."""
        figures = self.server.figures()
        return {"held_back": figures["held_back"], "peak": figures["exposed_bytes_peak"]}

    def stop(self):
        """Leaves nothing behind."""
        self.server.stop()
        for loop in self.loops:
            loop.detach()


class Btrfs:
    """btrfs with two copies of data and metadata, on two loop devices."""

    def __init__(self, _args, folder):
        folder.mkdir()
        self.loops = [Loop(folder / f"{side}.img") for side in ("fast", "slow")]
        devices = [loop.device for loop in self.loops]
        run(["mkfs.btrfs", "-q", "-f", "-d", "raid1", "-m", "raid1", *devices])
        self.mount = folder / "mnt"
        self.mount.mkdir()
        run(["mount", devices[0], self.mount])
        self.place = ["--ioengine=psync", "--direct=1", f"--filename={self.mount}/file",
                      f"--size={FILE_MIB}m"]

    def fill(self):
        """Writes the file that is measured."""
        fio([*self.place, "--rw=write", "--bs=1m", "--end_fsync=1"])

    def settle(self):
        """Waits for what the last run has left."""
        run(["sync", "-f", self.mount])

    def notes(self):
        """Nothing to add."""
        return {}

    def stop(self):
        """Leaves nothing behind."""
        run(["umount", self.mount])
        for loop in self.loops:
            loop.detach()


def throttle(args, folder):
    """Both mirrors, whole and with one side throttled."""
    if not (BLKIO / "blkio.throttle.write_iops_device").exists():
        raise SystemExit(f"{BLKIO}: no throttle of version 1 there; `throttle` needs it")
    results, mirrors = [], {}
    try:
        for name, kind in (("bimetal", Ours), ("btrfs", Btrfs)):
            mirrors[name] = kind(args, folder / name)
            mirrors[name].fill()
        for number in range(args.rounds):
            names = list(mirrors)
            for name in names[number % 2:] + names[:number % 2]:
                for cell, iops in (("whole", 0), ("throttled", LIMIT_IOPS)):
                    results.append(throttled(mirrors[name], name, cell, iops))
    finally:
        for mirror in mirrors.values():
            mirror.stop()
    return results


def throttled(mirror, name, cell, iops):
    """One measurement, with the second device limited meanwhile."""
    mirror.settle()
    before = mirror.notes()
    mirror.loops[1].limit(iops)
    try:
        job = fio([*mirror.place, "--rw=randwrite", f"--number_ios={WRITES_MAX}",
                   f"--runtime={SECONDS_MAX}"])
    finally:
        notes = mirror.notes()
        mirror.loops[1].limit(0)
    write = job["write"]
    return {"cell": cell, "name": name, "ops_per_s": write["iops"], "ops": write["total_ios"],
            "p999_ms": write["clat_ns"]["percentile"][PERCENTILE] / 1e6,
            "steady_p999_ms": steady_p999_ns(write["clat_ns"]["bins"]) / 1e6,
            "max_ms": write["clat_ns"]["max"] / 1e6,
            "held_back": notes.get("held_back", 0) - before.get("held_back", 0)}


class Disk:
    """A disk of the tests, which takes commands on its standard input."""

    def __init__(self, binary, folder, name, size_bytes=DISK_BYTES):
        self.socket = folder / f"{name}.sock"
        image = folder / f"{name}.img"
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        self.process = subprocess.Popen([str(binary), str(image), str(self.socket)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"{binary} does not start")
        self.tell("delay 1")

    def tell(self, command):
        """Gives a command and waits for its answer."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if answer != "ok":
            raise SystemExit(f"volatile-disk: {command}: {answer!r}")

    def stop(self):
        """Ends the disk."""
        self.process.stdin.close()
        self.process.wait(20)


def freezing(disk, ended):
    """Freezes the disk for 2 s of every 10 until `ended`, and leaves it thawed."""
    wait_s = (FREEZE_EVERY_S - FREEZE_S) / 2
    while not ended.wait(wait_s):
        disk.tell("freeze")
        ended.wait(FREEZE_S)
        disk.tell("thaw")
        wait_s = FREEZE_EVERY_S - FREEZE_S


def freeze(args, folder):
    """A mirror with either side frozen by turns, and each side alone."""
    results, disks = [], []
    try:
        disks = [Disk(args.disk, folder, name) for name in ("fast", "slow")]
        # The member, the exported device, and the index of the disk that freezes.
        members = [("fast alone", "fast", None), ("slow alone", "slow", None),
                   ("mirror", "vol", None), ("mirror, fast freezes", "vol", 0),
                   ("mirror, slow freezes", "vol", 1)]
        for number in range(args.rounds):
            first = number % len(members)
            for name, device, frozen in members[first:] + members[:first]:
                results.append(frozen_run(args, folder, disks, (name, device, frozen)))
    finally:
        for disk in disks:
            disk.stop()
    return results


def steady_p999_ns(bins):
    """p99.9 of a histogram as seen by a client that asks every 5 ms: an answer that took longer
    kept the questions waiting that were due meanwhile."""
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


def frozen_run(args, folder, disks, member):
    """One measurement."""
    name, device, frozen = member
    fast, slow = (f'address = "unix:{disk.socket}"' for disk in disks)
    text = SIDES.format(kind="remote", fast=fast, slow=slow, log="64MiB")
    text += EXPORT.format(device=device)
    server = Server(args.bimetal, folder, text, formatted=device == "vol")
    ended = threading.Event()
    thread = None
    try:
        if frozen is not None:
            thread = threading.Thread(target=freezing, args=(disks[frozen], ended))
            thread.start()
        job = fio(["--ioengine=nbd", "--thread=0", f"--uri={server.uri}", "--rw=randwrite",
                   f"--size={DISK_MIB}m", "--norandommap", "--fsync=1", "--time_based",
                   f"--runtime={args.seconds}"])
    finally:
        ended.set()
        if thread:
            thread.join()
        server.stop()
    write, sync = job["write"]["clat_ns"], job["sync"]["lat_ns"]
    # fio tells the two apart; their sum is at least that of one write and its flush.
    both = [write["percentile"][PERCENTILE], sync["percentile"][PERCENTILE]]
    return {"cell": "write+flush", "name": name, "ops_per_s": job["write"]["iops"],
            "ops": job["write"]["total_ios"], "p999_ms": sum(both) / 1e6,
            "steady_p999_ms": sum(steady_p999_ns(kind["bins"]) for kind in (write, sync)) / 1e6,
            "max_ms": (write["max"] + sync["max"]) / 1e6, "held_back": 0}


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
log = "32MiB"
checksums = {checksums}
"""


def cost(args, folder):
    """A side alone, and a mirror of two such sides without and with checksums."""
    sides = "".join(COST_SIDE.format(name=name) for name in ("fast", "slow"))
    members = [("side alone", None), ("no checksums", "false"), ("mirror", "true")]
    results = []
    for number in range(args.rounds):
        first = number % len(members)
        for name, checksums in members[first:] + members[:first]:
            place = folder / f"cost-{number}-{name.replace(' ', '-')}"
            place.mkdir()
            config = place / "vol.toml"
            mirror = COST_MIRROR.format(checksums=checksums) if checksums else ""
            config.write_text(sides + mirror, encoding="ascii")
            device = "vol" if checksums else "fast"
            for image in ("fast.img", "slow.img"):
                # Space that was never used costs the file system more than what was.
                run(["fallocate", "--length", "512MiB", place / image])
                run(["dd", "if=/dev/zero", f"of={place / image}", "bs=1M", "count=512",
                     "conv=notrunc,fsync"])
            if checksums:
                run([args.bimetal, "format", config])
            text = run([args.bimetal, "bench", config, "--device", device, "--rw", "randwrite",
                        "--depth", 32, "--size", "256MiB", "--time", f"{args.seconds}s",
                        "--destroy-data", "--json"])
            ran = json.loads(text)
            results.append({"cell": "cost", "name": name, "ops_per_s": ran["operations_per_s"],
                            "ops": ran["write"]["count"], "p999_ms": ran["write"]["p999_ns"] / 1e6,
                            "steady_p999_ms": ran["write"]["p999_ns"] / 1e6,
                            "max_ms": ran["write"]["max_ns"] / 1e6, "held_back": 0})
            for image in ("fast.img", "slow.img"):
                (place / image).unlink()
    return results


def resync(args, folder):
    """What is copied after a power cut while a side is behind: to its log by the opening, and home by
    a rebuild."""
    folder = folder / "resync"
    folder.mkdir()
    disks = [Disk(args.disk, folder, name, RESYNC_BYTES) for name in ("fast", "slow")]
    server = None
    try:
        fast, slow = (f'address = "unix:{disk.socket}"' for disk in disks)
        text = SIDES.format(kind="remote", fast=fast, slow=slow, log="260MiB")
        text += EXPORT.format(device="vol")
        server = Server(args.bimetal, folder, text)
        disks[1].tell("freeze")
        fio(["--ioengine=nbd", "--thread=0", f"--uri={server.uri}", "--rw=randwrite", "--fsync=1",
             "--size=7g", f"--number_ios={RESYNC_WRITES}"])
        exposed = server.figures()["exposed_bytes"]
        server.process.kill()
        server.process.wait()
        for number, disk in enumerate(disks):
            disk.tell(f"cut blocks {number}")
        disks[1].tell("thaw")
        server = Server(args.bimetal, folder, text, formatted=False)
        server.drained()
        sides = server.mirror()["parts"].values()
        copied = sum(side["log_written_bytes"] + side["resynced_bytes"] for side in sides)
    finally:
        if server:
            server.stop()
        for disk in disks:
            disk.stop()
    return [{"cell": "resync", "name": "copied", "bytes": copied},
            {"cell": "resync", "name": "exposed and a region", "bytes": exposed + REGION_BYTES}]


def medians(results):
    """Median of each figure by cell and name."""
    table = {}
    for result in results:
        table.setdefault((result["cell"], result["name"]), []).append(result)
    return {key: {figure: statistics.median(run[figure] for run in runs)
                  for figure in runs[0] if figure not in ("cell", "name")}
            for key, runs in table.items()}


# The bars: cell, figure, whose, over whose, the limit, and whether it is the least.
BARS = [
    ("throttled: writes a second against btrfs", "throttled", "ops_per_s", "bimetal", "btrfs",
     20.0, True),
    ("throttled: p99.9 against btrfs", "throttled", "p999_ms", "bimetal", "btrfs", 0.1, False),
    ("fast side frozen: steady p99.9 against the slow one alone", "write+flush", "steady_p999_ms",
     "mirror, fast freezes", "slow alone", 2.0, False),
    ("slow side frozen: steady p99.9 against the fast one alone", "write+flush", "steady_p999_ms",
     "mirror, slow freezes", "fast alone", 2.0, False),
    ("after a power cut: bytes copied against those exposed and a region", "resync", "bytes",
     "copied", "exposed and a region", 1.0, False),
    ("cost of the mirror: writes a second against a side alone", "cost", "ops_per_s",
     "no checksums", "side alone", 0.8, True),
    ("cost of integrity: writes a second with checksums against without", "cost", "ops_per_s",
     "mirror", "no checksums", 0.8, True),
]


def verdicts(table):
    """One verdict a bar. A bar without figures is not judged."""
    found = []
    for text, cell, figure, ours, theirs, limit, at_least in BARS:
        if (cell, ours) not in table or (cell, theirs) not in table:
            continue
        ratio = table[cell, ours][figure] / table[cell, theirs][figure]
        good = ratio >= limit if at_least else ratio <= limit
        found.append({"bar": text, "ratio": ratio, "limit": limit,
                      "verdict": "holds" if good else "FAILS"})
    # Writes that waited for both sides were not made while the exposure lasted.
    if table.get(("throttled", "bimetal"), {}).get("held_back"):
        found.append({"bar": "throttled: the exposure lasts for the run", "ratio": None,
                      "limit": None, "verdict": "FAILS"})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--bimetal", type=pathlib.Path, default="target/release/bimetal")
    parser.add_argument("--disk", type=pathlib.Path, default="target/release/volatile-disk")
    parser.add_argument("--dir", default="/var/tmp", help="where the files lie")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=FREEZE_RUN_S,
                        help="a run of `freeze` and `cost`")
    parser.add_argument("--only", choices=("throttle", "freeze", "cost", "resync"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.bimetal, args.disk = args.bimetal.resolve(), args.disk.resolve()
    results = []
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="trust-") as folder:
        for name, measure in (("throttle", throttle), ("freeze", freeze), ("cost", cost),
                              ("resync", resync)):
            if args.only in (None, name):
                results += measure(args, pathlib.Path(folder))
    table = medians(results)
    judged = verdicts(table)
    if args.json:
        cells = [{"cell": key[0], "name": key[1], **value} for key, value in table.items()]
        print(json.dumps({"cells": cells, "verdicts": judged, "results": results}))
    else:
        print(f"medians of {args.rounds} rounds\n{'cell':12} {'who':22}"
              f"{'writes/s':>10}{'p99.9 ms':>11}{'steady':>9}{'max ms':>9}{'held back':>11}")
        for (cell, name), row in sorted(table.items()):
            if "bytes" in row:
                print(f"{cell:12} {name:22}{row['bytes']:10,.0f} bytes")
                continue
            print(f"{cell:12} {name:22}{row['ops_per_s']:10,.0f}{row['p999_ms']:11.2f}"
                  f"{row['steady_p999_ms']:9.2f}{row['max_ms']:9.1f}{row['held_back']:11.0f}")
        for verdict in judged:
            ratio = "" if verdict["ratio"] is None else (
                f": {verdict['ratio']:.3g} (bar: {verdict['limit']:g})")
            print(f"{verdict['verdict']:6} {verdict['bar']}{ratio}")
    return 1 if any(v["verdict"] == "FAILS" for v in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
