#!/usr/bin/env python3
"""The index beside other engines: LMDB, redb, SQLite, fjall, canopydb, RocksDB, and a bare log.

One process a cell (`index-bench`: one engine does one thing), the engines in turns, in rounds, so that
whatever else the machine does falls on all of them. All of it is on a loop device of its own, over a
fully written image with ext4, and bytes, reads and flushes are those that the device counts. The
durable commits are each engine's own with a full sync. Compared are the medians of a cell, round by
round; the median of the rounds is printed: for times how many times better ours is (over 1: ours is),
for bytes, reads and flushes their number. Operations a second of a mix are reckoned from the medians
of its gets and commits, because a mean is what else the machine was doing. `--before PROGRAM` is an
index-bench of earlier: what that makes of our engine is a column beside those of the others.

A round is a load, then gets and scans, then updates, mixes, and a kill with a reopening. `--beyond`
is data of ten times the cache instead: the process is in a memory cgroup (version 1) of the cache and
120 MiB, whatever it does, and the file system is mounted anew after the load. Cells that mostly wait
for the device take several short turns a round, because its speed may change between one cell and the
next.

`--state FILE` keeps what was measured, a line a cell; cells that are in it are not run again. Needs
root, loop devices, ext4, and for `--beyond` the memory controller of cgroups, version 1.

    cargo build --release --manifest-path benches/index/Cargo.toml [--features rocksdb]
    sudo benches/index.py --state index.jsonl [--keys 1000000] [--shape 8+8] [--rounds 3] [--quick]
    benches/index.py --state index.jsonl --report [--markdown] [--absolute]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

OURS, FLOOR, BEFORE = "ours", "floor", "before"
ENGINES = [FLOOR, OURS, BEFORE, "lmdb", "redb", "sqlite", "fjall", "canopydb", "rocksdb"]
# In this order: those that read come before those after which not every loaded id is there.
CELLS = ["load", "get", "get-zipf", "get-alone", "scan", "update1", "update100", "mix1", "mix100",
         "threads8", "kill", "reopen"]
# What waits for the device, whose speed may change by the minute: several short turns a round.
TURNED_CELLS = ["update1", "mix1", "threads8"]
# It has no group commit, which is all that eight threads are about.
FLOOR_CELLS = ["update1", "update100", "mix1", "mix100"]
BEYOND_CELLS = ["load", "get", "update100", "mix100"]
COUNTS = {"get": 1_000_000, "get-zipf": 1_000_000, "get-alone": 500_000, "scan": 100_000,
          "update1": 5_000, "mix1": 5_000, "threads8": 40_000, "update100": 20_000,
          "mix100": 20_000, "kill": 5_000}
BEYOND_GETS = 20_000
CGROUPS = pathlib.Path("/sys/fs/cgroup/memory")
BESIDE_CACHE_BYTES = 120 << 20
CELL_SECONDS_MAX = 3600
RECORD = {"8+8": (8, 8), "16+100": (16, 100), "8+1000": (8, 1000)}
USUAL_SHAPES = ["8+8", "16+100"]


def run(words):
    """Runs a command to its end; returns what it printed."""
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


class Disk:
    """A loop device over a fully written image, with ext4, mounted."""

    def __init__(self, folder, size_bytes):
        self.image = folder / "index-bench.img"
        self.mount = folder / "index-bench.mnt"
        self.leave()
        if not self.image.exists():
            unfinished = self.image.with_suffix(".part")
            # Blocks that were never written would be allocated while an engine is measured.
            run(["dd", "if=/dev/zero", f"of={unfinished}", "bs=1M", f"count={size_bytes >> 20}",
                 "conv=fsync", "status=none"])
            # Nothing of the file system may be left for later, when others are measured.
            run(["mkfs.ext4", "-q", "-F", "-E",
                 "lazy_itable_init=0,lazy_journal_init=0,nodiscard", unfinished])
            unfinished.rename(self.image)
        self.device = run(["losetup", "--find", "--show", "--direct-io=on", self.image]).strip()
        self.stat = pathlib.Path("/sys/block") / pathlib.Path(self.device).name / "stat"
        self.mount.mkdir(exist_ok=True)
        self.enter()

    def enter(self):
        """Mounts it."""
        run(["mount", "-o", "noatime", self.device, self.mount])

    def remount(self):
        """Takes everything of it out of the kernel's cache."""
        run(["umount", self.mount])
        self.enter()

    def leave(self):
        """Takes it down, also what a run that was killed has left."""
        if self.mount.is_mount():
            run(["umount", self.mount])
        for line in run(["losetup", "--list", "--noheadings", "--output", "NAME", "--associated",
                         self.image]).split():
            run(["losetup", "--detach", line])

    def remove(self):
        """Leaves nothing behind."""
        self.leave()
        self.image.unlink()
        self.mount.rmdir()


class Cgroup:
    """A limit of memory for one process and what the kernel caches for it."""

    def __init__(self, limit_bytes):
        self.path = CGROUPS / f"index-bench-{os.getpid()}"
        self.path.mkdir()
        (self.path / "memory.limit_in_bytes").write_text(str(limit_bytes), encoding="ascii")

    def join(self):
        """Puts the calling process in."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def remove(self):
        """Takes it away; its process has ended."""
        (self.path / "memory.force_empty").write_text("0", encoding="ascii")
        self.path.rmdir()


def point_name(point):
    """What is printed of a point: shape, keys, and whether the data fits the cache."""
    shape, keys, beyond = point
    return f"{keys:,} records of {shape} bytes" + (", ten times the cache" if beyond else "")


def cache_bytes(point):
    """Memory that each engine is given."""
    shape, keys, beyond = point
    if beyond:
        return keys * sum(RECORD[shape]) // 10
    # Twice the records, so that all of them are in it.
    return max(256 << 20, keys * sum(RECORD[shape]) * 2)


def key_of(point, number, cell, engine, turn=0):
    """The name of a measurement."""
    shape, keys, beyond = point
    number = f"{number}.{turn}" if turn else number
    return f"{shape} {keys} {'beyond' if beyond else 'cached'} {number} {cell} {engine}"


def turns_of(args, cell):
    """The turns of a cell in a round."""
    return range(args.turns if cell in TURNED_CELLS else 1)


def seed_of(number, cell, turn):
    """What the choices of a cell are drawn from. No two cells change the same records in the same way: an
    engine that compares would have nothing to write the second time."""
    return (number + 1) * 10_000 + CELLS.index(cell) * 100 + turn


def run_cell(args, disk, point, cell, engine, seed):
    """Runs one cell; returns its record."""
    shape, keys, beyond = point
    count = BEYOND_GETS if beyond and cell == "get" else COUNTS.get(cell, 1)
    is_ours = engine in (OURS, BEFORE)
    program = args.before if engine == BEFORE else args.binary
    words = [program, OURS if is_ours else engine, cell, disk.mount / engine,
             "--shape", shape, "--keys", keys, "--cache-bytes", cache_bytes(point), "--seed", seed, "--stat", disk.stat,
             "--count", max(count // args.fewer, 100), "--seconds", args.seconds]
    words += ["--cold"] if beyond else []
    if is_ours:
        words += ["--buffer-bytes", args.buffer_bytes] if args.buffer_bytes else []
        words += ["--node-bytes", args.node_bytes] if args.node_bytes else []
    cgroup = Cgroup(cache_bytes(point) + BESIDE_CACHE_BYTES) if beyond else None
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                              check=False, timeout=CELL_SECONDS_MAX,
                              preexec_fn=cgroup.join if cgroup else None)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {CELL_SECONDS_MAX} s"}
    finally:
        if cgroup:
            cgroup.remove()
    # The one that kills itself has said everything before.
    if done.returncode == (-9 if cell == "kill" else 0):
        return json.loads(done.stdout)
    return {"failed": f"status {done.returncode}: {done.stderr.strip().splitlines()[:1]}"}


def load_again(args, disk, point, number, engine):
    """Makes the records of a round, where an interrupted run has not left them."""
    folder = disk.mount / engine
    marker = folder.with_suffix(".loaded")
    said = key_of(point, number, "load", engine)
    if marker.exists() and marker.read_text(encoding="ascii") == said:
        return None
    marker.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    record = run_cell(args, disk, point, "load", engine, number + 1)
    if "failed" not in record:
        marker.write_text(said, encoding="ascii")
    return record


def measure_cell(args, disk, point, which, records, keep):
    """One cell of one engine, unless it is known or cannot be had."""
    number, cell, engine, turn = which
    key = key_of(point, *which)
    if key in records or (engine == FLOOR and cell not in FLOOR_CELLS):
        return
    if records.get(key_of(point, number, "load", engine), {}).get("failed"):
        return
    loaded = None
    if engine == FLOOR:
        (disk.mount / engine).mkdir(exist_ok=True)
    else:
        loaded = load_again(args, disk, point, number, engine)
    if cell == "load":
        # A load that was made for a cell that had to be run again is not a second one.
        record = loaded or {"failed": "loaded before, and not taken down"}
    else:
        if point[2]:
            disk.remount()
        record = run_cell(args, disk, point, cell, engine, seed_of(number, cell, turn))
    records[key] = record
    keep(key, record)
    print(f"{key}{': ' + record['failed'] if 'failed' in record else ''}", file=sys.stderr)


def measure_round(args, disk, point, number, records, keep):
    """One round of one point: every cell, the engines in turns."""
    cells = BEYOND_CELLS if point[2] else CELLS
    engines = args.engine[number % len(args.engine):] + args.engine[:number % len(args.engine)]
    for cell in [cell for cell in cells if cell in args.cell]:
        for turn in turns_of(args, cell):
            for engine in engines:
                measure_cell(args, disk, point, (number, cell, engine, turn), records, keep)
    for folder in disk.mount.iterdir():
        # The bare log is as good as new.
        if folder.is_dir() and folder.name not in ("lost+found", FLOOR):
            shutil.rmtree(folder)


def mix_per_s(size):
    """Operations a second of a mix, from the medians of its gets and commits."""
    return lambda r, _: 2e9 * size / (r["commit"]["p50_ns"] + size * r["get"]["p50_ns"])


def counted(name, per, settled=False):
    """A counter of the device by operation or by record."""
    device = "device_settled" if settled else "device"
    return lambda r, _: r[device][name] / r[per]


def write_amplification(r, point):
    """Bytes written, with what was left to other threads, by bytes of the keys and values of puts and
    the keys of deletes."""
    key, value = RECORD[point[0]]
    puts = 0.5 if "get" in r else 1.0
    return r["device_settled"]["written_bytes"] / (r["records_written"] * (key + puts * value))


def space(r, _):
    """Bytes of the files by user bytes; the recycled log and the free reserve of ours apart."""
    figures = r["figures"] or {}
    apart = figures.get("reserve_bytes", 0) + figures.get("log_bytes", 0) \
        if r["engine"] == OURS else 0
    return (sum(r["files"].values()) - apart) / r["user_bytes"]


# Name, cell, what to print, whether more is better, or None for a count that is printed as it is.
FIGURES = {
    "get": ("get", "get, ns", False, lambda r, _: r["get"]["p50_ns"]),
    "get-zipf": ("get-zipf", "get Zipf, ns", False, lambda r, _: r["get"]["p50_ns"]),
    "get-alone": ("get-alone", "get without a snapshot, ns", False,
                  lambda r, _: r["get"]["p50_ns"]),
    "scan": ("scan", "scan of 100, ns", False, lambda r, _: r["scan"]["p50_ns"]),
    "mix1": ("mix1", "mix b=1, op/s", True, mix_per_s(1)),
    "mix100": ("mix100", "mix b=100, op/s", True, mix_per_s(100)),
    "mix100-get": ("mix100", "get in mix b=100, ns", False, lambda r, _: r["get"]["p50_ns"]),
    "mix100-commit": ("mix100", "commit in mix b=100, ns", False,
                      lambda r, _: r["commit"]["p50_ns"]),
    "mix100-cpu": ("mix100", "processor in mix b=100, us an op", False,
                   lambda r, _: r["cpu_s"] * 1e6 / (2 * r["records_written"])),
    "threads8": ("threads8", "8 threads b=1, commits/s", True,
                 lambda r, _: r["operations"] / r["wall_s"]),
    "load": ("load", "random load, records/s", True, lambda r, _: r["operations"] / r["load_s"]),
    "reopen": ("reopen", "reopening after kill -9, s", False, lambda r, _: r["ready_s"]),
    "update1-bytes": ("update1", "update b=1: bytes a commit", None,
                      counted("written_bytes", "operations")),
    "update1-flushes": ("update1", "flushes a commit", None, counted("flushes", "operations")),
    "update100-bytes": ("update100", "update b=100: bytes a record", None,
                        counted("written_bytes", "records_written")),
    "update100-settled": ("update100", "settled", None,
                          counted("written_bytes", "records_written", True)),
    "threads8-flushes": ("threads8", "8 threads: flushes a commit", None,
                         counted("flushes", "operations")),
    "space": ("load", "space by user bytes", None, space),
    "get-reads": ("get", "device reads a get", None, counted("reads", "operations")),
    "get-read-bytes": ("get", "bytes read a get", None, counted("read_bytes", "operations")),
    "mix100-wa": ("mix100", "mix b=100: bytes written by user bytes", None, write_amplification),
}


class Table:
    """All that was measured of one point."""

    def __init__(self, args, point, records):
        self.point, self.values, self.failures = point, {}, []
        self.engines = [engine for engine in ENGINES if engine in args.engine]
        for number in range(args.rounds):
            for engine in self.engines:
                self.take(args, records, number, engine)

    def take(self, args, records, number, engine):
        """Takes what one engine did in one round."""
        for name, (cell, _, _, figure) in FIGURES.items():
            for turn in turns_of(args, cell):
                record = records.get(key_of(self.point, number, cell, engine, turn))
                if record is not None:
                    self.take_record(name, engine, (number, turn), record)

    def take_record(self, name, engine, which, record):
        """Takes one figure of one turn of a cell."""
        cell, _, _, figure = FIGURES[name]
        if "failed" in record:
            failure = f"{engine} {cell}: {record['failed']}"
            if failure not in self.failures:
                self.failures.append(failure)
            return
        if engine == FLOOR and name in ("mix100-get", "get"):
            return
        self.values.setdefault((name, engine), {})[which] = figure(record, self.point)

    def rounds(self):
        """In how many rounds the figure was measured that has the fewest."""
        return min(len({number for number, _ in values}) for values in self.values.values())

    def median(self, name, engine):
        """The median of the rounds, or None."""
        values = self.values.get((name, engine))
        return statistics.median(values.values()) if values else None

    def gain(self, name, engine):
        """How many times better ours is than another in the same round; the median of the rounds."""
        more_is_better = FIGURES[name][2]
        mine = self.values.get((name, OURS), {})
        theirs = self.values.get((name, engine), {})
        ratios = [mine[n] / theirs[n] if more_is_better else theirs[n] / mine[n]
                  for n in mine if n in theirs]
        return statistics.median(ratios) if ratios else None

    def best_gain(self, name):
        """The same against the best of the others."""
        gains = [self.gain(name, engine) for engine in self.engines
                 if engine not in (OURS, BEFORE, FLOOR)]
        gains = [gain for gain in gains if gain is not None]
        return min(gains) if gains else None


def shown(value):
    """A number with as many digits as mean something."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def tables(table, absolute):
    """Two tables, each a head and rows: what is compared, and what is counted."""
    for counts in (False, True):
        rows = []
        for name, (_, text, better, _) in FIGURES.items():
            if (better is None) != counts:
                continue
            plain = counts or absolute
            cells = [table.median(name, e) if plain else table.gain(name, e)
                     for e in table.engines]
            if any(cell is not None for cell in cells):
                if not plain:
                    text = text.split(",")[0]
                rows.append([text, *map(shown, cells)])
        if rows:
            head = "counted" if counts else "medians" if absolute else "ours is better by"
            yield [[head, *table.engines], *rows]


def lines_of(rows, markdown):
    """A table as text."""
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) if at == 0 else cell.rjust(width)
                      for at, (cell, width) in enumerate(zip(row, widths))) for row in rows]


# What must hold: text, which points, the figure, against whom (None: the number itself), the limit.
def everywhere(point):
    return not point[2]


def at_20m(point):
    return not point[2] and point[1] >= 20_000_000


BARS = [
    ("mix b=1 durable, against RocksDB", everywhere, "mix1", "rocksdb", {"8+8": 1.3, "16+100": 1.3}),
    ("mix b=1 durable, against the bare log", everywhere, "mix1", FLOOR,
     {"8+8": 0.9, "16+100": 0.9}),
    ("bytes a commit of one update", everywhere, "update1-bytes", None,
     {"8+8": 4300, "16+100": 4900}),
    ("flushes a commit of one update", everywhere, "update1-flushes", None,
     {"8+8": 1.01, "16+100": 1.01}),
    ("mix b=100 durable, against the best", everywhere, "mix100", "best",
     {"8+8": 1.5, "16+100": 1.5}),
    ("bytes a record, b=100", at_20m, "update100-settled", None, {"8+8": 100}),
    ("point search in cache, against LMDB", everywhere, "get", "lmdb", {"8+8": 1.5, "16+100": 1.5}),
    ("scan of 100, against LMDB", everywhere, "scan", "lmdb", {"8+8": 1.0, "16+100": 1.0}),
    ("space after a random load", at_20m, "space", None, {"8+8": 1.1, "16+100": 1.2}),
    ("8 writers durable, against RocksDB", everywhere, "threads8", "rocksdb",
     {"8+8": 1.0, "16+100": 1.0}),
    ("reopening after kill -9, s", at_20m, "reopen", None, {"8+8": 2.0, "16+100": 2.0}),
]


def verdicts(table):
    """A line a bar that the figures are there for."""
    for text, applies, name, whose, limits in BARS:
        limit = limits.get(table.point[0])
        if not applies(table.point) or limit is None:
            continue
        if whose is None:
            value = table.median(name, OURS)
            holds = value is not None and value <= limit
        else:
            value = table.best_gain(name) if whose == "best" else table.gain(name, whose)
            holds = value is not None and value >= limit
        if value is not None:
            word = "holds" if holds else "misses"
            yield [word, text, shown(value), f"{'at most' if whose is None else 'at least'} "
                   f"{limit:g}"]
    reads, written = table.median("get-reads", OURS), table.median("mix100-wa", OURS)
    if table.point[2] and reads is not None and written is not None:
        holds = (reads <= 1.1 and written <= 8) or (reads <= 2 and written <= 4)
        yield ["holds" if holds else "misses", "device reads a get, and write amplification",
               f"{shown(reads)}, {shown(written)}", "at most 1.1 and 8, or 2 and 4"]


def report(args, points, records):
    """Prints everything; returns whether a bar is missed."""
    missed = False
    for point in points:
        table = Table(args, point, records)
        if not table.values:
            continue
        print(f"\n{'### ' if args.markdown else ''}{point_name(point)}, "
              f"medians of {table.rounds()} rounds")
        for rows in tables(table, args.absolute):
            print()
            print("\n".join(lines_of(rows, args.markdown)))
        bars = list(verdicts(table))
        if bars:
            print()
            print("\n".join(lines_of([["bar", "what", "measured", "limit"], *bars],
                                     args.markdown)))
        for failure in table.failures:
            print(f"failed: {failure}")
        missed |= any(bar[0] == "misses" for bar in bars)
    return missed


def known_records(path):
    """What earlier runs have kept; a line that a kill has cut is as if it had not been."""
    records = {}
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else []:
        try:
            kept = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[kept["key"]] = kept["record"]
    return records


def measure(args, points, records):
    """Runs what is not known yet."""
    def keep(key, record):
        with open(args.state, "a", encoding="ascii") as file:
            file.write(json.dumps({"key": key, "record": record}) + "\n")

    # LMDB and redb take up to eight times the user bytes, and all engines are there at once.
    largest = max(keys * sum(RECORD[shape]) for shape, keys, _ in points)
    disk = Disk(args.dir, args.image_bytes or (4 << 30) + 24 * largest)
    try:
        for number in range(args.rounds):
            for point in points:
                measure_round(args, disk, point, number, records, keep)
    except BaseException:
        # What was loaded is still good when the run is taken up again.
        disk.leave()
        raise
    disk.remove()


def engines_of(binary):
    """The engines that were built in."""
    said = run([binary, "-h"])
    listed = re.search(r"\[possible values: (floor[^]]*)\]", said)
    if listed is None:
        raise SystemExit(f"{binary} -h lists no engines")
    return listed.group(1).split(", ")


def words_of(text):
    return [word for word in text.split(",") if word]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    built = pathlib.Path(__file__).resolve().parent / "index/target/release/index-bench"
    parser.add_argument("--binary", type=pathlib.Path, default=built)
    parser.add_argument("--before", type=pathlib.Path, help="an index-bench of earlier")
    parser.add_argument("--dir", type=pathlib.Path, default="/var/tmp", help="where the image lies")
    parser.add_argument("--state", type=pathlib.Path, required=True)
    parser.add_argument("--engine", type=words_of, default=ENGINES)
    parser.add_argument("--cell", type=words_of, default=CELLS)
    parser.add_argument("--keys", type=words_of, default=["1000000"])
    parser.add_argument("--shape", type=words_of, default=USUAL_SHAPES)
    parser.add_argument("--beyond", action="store_true", help="data of ten times the cache")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5,
                        help="a round, of cells that wait for the device")
    parser.add_argument("--seconds", type=float, default=20, help="a cell, at most")
    parser.add_argument("--quick", action="store_true", help="seconds in all, to see that it works")
    parser.add_argument("--buffer-bytes", type=int, help="ours: memory for changes")
    parser.add_argument("--node-bytes", type=int, help="ours: the longest image of a leaf")
    parser.add_argument("--image-bytes", type=int)
    parser.add_argument("--report", action="store_true", help="only print what was measured")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--absolute", action="store_true", help="times, not ratios of times")
    args = parser.parse_args()
    args.engine = [engine for engine in ENGINES if engine in args.engine]
    args.fewer = 1
    if args.quick:
        args.keys, args.seconds, args.rounds, args.fewer = ["20000"], 0.5, 2, 20
    points = [(shape, int(keys), args.beyond) for keys in args.keys for shape in args.shape]
    records = known_records(args.state)
    if not args.report:
        built_in = engines_of(args.binary)
        built_in += [BEFORE] if args.before else []
        args.engine = [engine for engine in args.engine if engine in built_in]
        measure(args, points, records)
    return 1 if report(args, points, records) else 0


if __name__ == "__main__":
    sys.exit(main())
