"""The index compared with other engines: LMDB, redb, SQLite, fjall, canopydb, RocksDB, and a bare
log.

Every measurement is a separate process (`index-bench`: one engine and one task). All data is on a
separate loop device with ext4, over a fully written image; bytes, reads and flushes are counted by
that device. Durable commits are each engine's own with a full sync. The tables show how many times
better ours is (ours is better above 1), and for bytes, reads and flushes their number. The rate of
a mix is computed from the medians of its gets and commits, because a mean would contain other
activity of the machine. `--before PROGRAM` names an earlier index-bench, whose index is an
additional subject.

A round is a load, then gets and scans, then updates, mixes, and a kill with a reopening. `--beyond`
uses data of ten times the size of the cache instead: the process is in a memory group of the cache
and 120 MiB, and the file system is remounted after the load. Cells that mostly wait for the device
are measured in several short turns in each round, because the speed of the device may change from
one cell to the next.

    cargo build --release --manifest-path benches/index/Cargo.toml --features rocksdb
    sudo python3 benches index --keys 1000000 --shape 8+8 --rounds 3
"""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess

from harness import devices, judging, options, processes, tables
from harness.judging import Bar
from harness.suite import Group, Suite

OURS, FLOOR, BEFORE = "ours", "floor", "before"
ENGINES = [FLOOR, OURS, BEFORE, "lmdb", "redb", "sqlite", "fjall", "canopydb", "rocksdb"]
PEERS = tuple(ENGINES[3:])
# In this order: cells that read come before cells that remove loaded ids.
CELLS = ["load", "get", "get-zipf", "get-alone", "scan", "update1", "update100", "mix1", "mix100",
         "threads8", "kill", "reopen"]
# Cells that wait for the device, whose speed may change within minutes: several short turns in each
# round.
TURNED_CELLS = ["update1", "mix1", "threads8"]
# It has no group commit, which is the purpose of eight threads.
FLOOR_CELLS = ["update1", "update100", "mix1", "mix100"]
BEYOND_CELLS = ["load", "get", "update100", "mix100"]
COUNTS = {"get": 1_000_000, "get-zipf": 1_000_000, "get-alone": 500_000, "scan": 100_000,
          "update1": 5_000, "mix1": 5_000, "threads8": 40_000, "update100": 20_000,
          "mix100": 20_000, "kill": 5_000}
BEYOND_GETS = 20_000
BESIDE_CACHE_BYTES = 120 << 20
CELL_SECONDS_MAX = 3600
RECORD = {"8+8": (8, 8), "16+100": (16, 100), "8+1000": (8, 1000)}
PROGRAM = "benches/index/target/release/index-bench"
HOW_TO_BUILD = "cargo build --release --manifest-path benches/index/Cargo.toml --features rocksdb"


class Disk:
    """A loop device over a fully written image, with ext4, mounted."""

    def __init__(self, folder, size_bytes):
        self.image = folder / "index-bench.img"
        self.mount = folder / "index-bench.mnt"
        self.leave()
        if not self.image.exists():
            unfinished = self.image.with_suffix(".part")
            # Blocks that were never written would be allocated while an engine is measured.
            processes.run(["dd", "if=/dev/zero", f"of={unfinished}", "bs=1M",
                           f"count={size_bytes >> 20}", "conv=fsync", "status=none"],
                          within_s=None)
            # The file system must not have pending work when other engines are measured.
            processes.run(["mkfs.ext4", "-q", "-F", "-E",
                           "lazy_itable_init=0,lazy_journal_init=0,nodiscard", unfinished])
            unfinished.rename(self.image)
        self.device = devices.attach(self.image, "--direct-io=on")
        self.stat = pathlib.Path("/sys/block") / pathlib.Path(self.device).name / "stat"
        self.mount.mkdir(exist_ok=True)
        self.enter()

    def enter(self):
        """Mounts it."""
        processes.run(["mount", "-o", "noatime", self.device, self.mount])

    def remount(self):
        """Removes its data from the kernel's cache."""
        processes.run(["umount", self.mount])
        self.enter()

    def leave(self):
        """Removes the disk, including the remains of a killed run."""
        if self.mount.is_mount():
            processes.run(["umount", self.mount])
        devices.detach(self.image)

    def remove(self):
        """Leaves nothing behind."""
        self.leave()
        self.image.unlink()
        self.mount.rmdir()


def mix_per_s(size):
    """Operations a second of a mix, from the medians of its gets and commits."""
    return lambda r, _: 2e9 * size / (r["commit"]["p50_ns"] + size * r["get"]["p50_ns"])


def counted(name, per, settled=False):
    """A counter of the device by operation or by record."""
    device = "device_settled" if settled else "device"
    return lambda r, _: r[device][name] / r[per]


def write_amplification(r, shape):
    """Bytes written, including those by other threads, divided by the bytes of the keys and values
    of puts and of the keys of deletes."""
    key, value = RECORD[shape]
    puts = 0.5 if "get" in r else 1.0
    return r["device_settled"]["written_bytes"] / (r["records_written"] * (key + puts * value))


def space(r, _):
    """Bytes of the files by user bytes; the recycled log and the free reserve of ours apart."""
    figures = r["statistics"] or {}
    apart = figures.get("reserve_bytes", 0) + figures.get("log_bytes", 0) \
        if r["engine"] == OURS else 0
    return (sum(r["files"].values()) - apart) / r["user_bytes"]


# For each value: its cell, its title, whether more is better (None for a count that is printed
# unchanged), and how it is computed from the output of `index-bench` and the shape.
FIGURES = {
    "get_ns": ("get", "get, in cache", False, lambda r, _: r["get"]["p50_ns"]),
    "get_zipf_ns": ("get-zipf", "get, Zipf", False, lambda r, _: r["get"]["p50_ns"]),
    "get_alone_ns": ("get-alone", "get without a snapshot", False,
                     lambda r, _: r["get"]["p50_ns"]),
    "scan_ns": ("scan", "scan of 100", False, lambda r, _: r["scan"]["p50_ns"]),
    "mix1_per_s": ("mix1", "mix of 50/25/25, each commit durable", True, mix_per_s(1)),
    "mix100_per_s": ("mix100", "the same, 100 changes a commit", True, mix_per_s(100)),
    "mix100_get_ns": ("mix100", "get in it", False, lambda r, _: r["get"]["p50_ns"]),
    "mix100_commit_ns": ("mix100", "commit in it", False, lambda r, _: r["commit"]["p50_ns"]),
    "mix100_cpu_us": ("mix100", "processor time of an operation in it", False,
                      lambda r, _: r["cpu_s"] * 1e6 / (2 * r["records_written"])),
    "threads8_per_s": ("threads8", "8 threads, each commit durable", True,
                       lambda r, _: r["operations"] / r["wall_s"]),
    "load_per_s": ("load", "random load", True, lambda r, _: r["operations"] / r["load_s"]),
    "reopen_s": ("reopen", "reopening after kill -9", False, lambda r, _: r["ready_s"]),
    "update1_bytes": ("update1", "bytes a commit of one update", None,
                      counted("written_bytes", "operations")),
    "update1_flushes": ("update1", "flushes of it", None, counted("flushes", "operations")),
    "update100_bytes": ("update100", "bytes a record, batches of 100", None,
                        counted("written_bytes", "records_written")),
    "update100_settled_bytes": ("update100", "the same, settled", None,
                                counted("written_bytes", "records_written", True)),
    "threads8_flushes": ("threads8", "flushes a commit, 8 threads", None,
                         counted("flushes", "operations")),
    "space": ("load", "space by user bytes", None, space),
    "get_reads": ("get", "device reads a get", None, counted("reads", "operations")),
    "get_read_bytes": ("get", "bytes read a get", None, counted("read_bytes", "operations")),
    "written_by_user_bytes": ("mix100", "bytes written by user bytes, batches of 100", None,
                              write_amplification),
}
# The bare log has no lookups.
NOT_OF_THE_FLOOR = ("mix100_get_ns", "get_ns")


def values_of(said, cell, engine):
    """Returns the figures of a measurement, and the whole output of `index-bench`."""
    if "failed" in said:
        return said
    found = {name: figure(said, cell["shape"]) for name, (of, _, _, figure) in FIGURES.items()
             if of == cell["cell"] and not (engine == FLOOR and name in NOT_OF_THE_FLOOR)}
    return {**found, "said": said}


def goodness(name):
    """Returns a figure of which more is better."""
    if FIGURES[name][2]:
        return name
    return lambda values: 1 / values[name]


def cache_bytes(cell):
    """Returns the memory that each engine is given."""
    record_bytes = sum(RECORD[cell["shape"]])
    if cell["variant"] == "beyond":
        return cell["keys"] * record_bytes // 10
    # Twice the size of the records, so that all of them fit.
    return max(256 << 20, cell["keys"] * record_bytes * 2)


def seed_of(number, cell):
    """Returns the seed of the random choices of a cell.

    No two cells change the same records in the same way, because an engine that compares values
    would have nothing to write the second time.
    """
    return (number + 1) * 10_000 + CELLS.index(cell["cell"]) * 100 + cell.get("turn", 0)


def run_cell(args, disk, cell, engine, seed):
    """Runs one cell and returns the output of `index-bench`."""
    beyond, name = cell["variant"] == "beyond", cell["cell"]
    count = BEYOND_GETS if beyond and name == "get" else COUNTS.get(name, 1)
    is_ours = engine in (OURS, BEFORE)
    program = args.before if engine == BEFORE else args.binary
    words = [program, OURS if is_ours else engine, name, disk.mount / engine,
             "--shape", cell["shape"], "--keys", cell["keys"],
             "--cache-bytes", cache_bytes(cell), "--seed", seed, "--stat", disk.stat,
             "--count", max(count // args.fewer, 100), "--seconds", args.seconds]
    words += ["--cold"] if beyond else []
    if is_ours:
        words += ["--buffer-bytes", args.buffer_bytes] if args.buffer_bytes else []
        words += ["--node-bytes", args.node_bytes] if args.node_bytes else []
    group = (devices.MemoryGroup("index", cache_bytes(cell) + BESIDE_CACHE_BYTES)
             if beyond else None)
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                              check=False, timeout=CELL_SECONDS_MAX,
                              preexec_fn=group.join if group else None)
    except subprocess.TimeoutExpired:
        return {"failed": f"{name}: not done after {CELL_SECONDS_MAX} s"}
    finally:
        if group:
            group.remove(empty=True)
    # The cell that kills its own process has printed everything before that.
    if done.returncode == (-9 if name == "kill" else 0):
        return json.loads(done.stdout)
    said = done.stderr.strip().splitlines()[:1]
    return {"failed": f"{name}: status {done.returncode}: {said}"}


class Rounds:
    """Content of the disk: the records that each engine has loaded in a round of a point."""

    def __init__(self, args, disk):
        self.args, self.disk, self.at, self.unloaded = args, disk, None, set()

    def measure(self, cell, engine, number):
        """Returns the values of one cell of one engine, or `None` if the engine does not support
        it."""
        point = (number, cell["shape"], cell["keys"])
        if self.at not in (None, point):
            self.clear()
            self.unloaded.clear()
        self.at = point
        if engine in self.unloaded:
            return None
        loaded = self.load(cell, engine, number)
        if loaded and "failed" in loaded:
            self.unloaded.add(engine)
        if cell["cell"] == "load":
            # A load for a cell that is repeated is not a second load.
            said = loaded or {"failed": "load: loaded before, and not taken down"}
            return values_of(said, cell, engine)
        if engine in self.unloaded:
            return None
        if cell["variant"] == "beyond":
            self.disk.remount()
        return values_of(run_cell(self.args, self.disk, cell, engine, seed_of(number, cell)),
                         cell, engine)

    def load(self, cell, engine, number):
        """Loads the records of a round, unless an interrupted run has left them."""
        folder = self.disk.mount / engine
        if engine == FLOOR:
            folder.mkdir(exist_ok=True)
            return None
        marker = folder.with_suffix(".loaded")
        point = f"{cell['shape']} {cell['keys']} {cell['variant']} {number} {engine}"
        if marker.exists() and marker.read_text(encoding="ascii") == point:
            return None
        marker.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        said = run_cell(self.args, self.disk, {**cell, "cell": "load"}, engine, number + 1)
        if "failed" not in said:
            marker.write_text(point, encoding="ascii")
        return said

    def clear(self):
        """Removes the files of a round; the bare log needs no removal."""
        for folder in self.disk.mount.iterdir():
            if folder.is_dir() and folder.name not in ("lost+found", FLOOR):
                shutil.rmtree(folder)


def bar(text, name, bases, limits, from_keys=0):
    """Returns a bar for each shape: of a ratio at least its limit, of a count at most."""
    for shape, limit in limits.items():
        def applies(cell, shape=shape):
            return (cell["cell"] == FIGURES[name][0] and cell["shape"] == shape
                    and cell["variant"] != "beyond" and cell["keys"] >= from_keys)
        if bases:
            yield Bar(text, goodness(name), OURS, bases, at_least=limit, applies=applies)
        else:
            yield Bar(text, name, OURS, at_most=limit, applies=applies)


LARGE = 20_000_000
BARS = [
    *bar("mix, each commit durable: of RocksDB", "mix1_per_s", ("rocksdb",),
         {"8+8": 1.3, "16+100": 1.3}),
    *bar("mix, each commit durable: of the bare log", "mix1_per_s", (FLOOR,),
         {"8+8": 0.9, "16+100": 0.9}),
    *bar("bytes a commit of one update", "update1_bytes", None, {"8+8": 4300, "16+100": 4900}),
    *bar("flushes a commit of one update", "update1_flushes", None, {"8+8": 1.01, "16+100": 1.01}),
    *bar("mix, 100 changes a commit: of the best", "mix100_per_s", PEERS,
         {"8+8": 1.5, "16+100": 1.5}),
    *bar("bytes a record, batches of 100, settled", "update100_settled_bytes", None, {"8+8": 100},
         LARGE),
    *bar("get, in cache: of LMDB", "get_ns", ("lmdb",), {"8+8": 1.5, "16+100": 1.5}),
    *bar("scan of 100: of LMDB", "scan_ns", ("lmdb",), {"8+8": 1.0, "16+100": 1.0}),
    *bar("space by user bytes after a random load", "space", None, {"8+8": 1.1, "16+100": 1.2},
         LARGE),
    *bar("8 threads, each commit durable: of RocksDB", "threads8_per_s", ("rocksdb",),
         {"8+8": 1.0, "16+100": 1.0}),
    *bar("reopening after kill -9, s", "reopen_s", None, {"8+8": 2.0, "16+100": 2.0}, LARGE),
]


def engines_of(binary):
    """Returns the engines that were built in."""
    listed = re.search(r"\[possible values: (floor[^]]*)\]", processes.run([binary, "-h"]))
    if listed is None:
        raise SystemExit(f"{binary} -h lists no engines")
    return listed.group(1).split(", ")


def point_name(cell):
    """Returns the name of what was loaded."""
    keys = cell["keys"]
    count = f"{keys // 1_000_000} M" if keys % 1_000_000 == 0 else f"{keys:,}"
    return f"{count} of {cell['shape']} bytes"


class Index(Suite):
    """The index."""

    name, group = "index", "devices"
    line = "the index beside LMDB, redb, SQLite, fjall, canopydb and RocksDB"
    defaults = {"rounds": 3, "seconds": 20.0, "dir": "/var/tmp", "binary": PROGRAM}
    quick = {"rounds": 2, "seconds": 0.5, "keys": ["20000"], "fewer": 20}
    axes = ("shape", "keys", "cell")
    headline = tuple(FIGURES)
    bars = BARS
    how_to_build = HOW_TO_BUILD

    def add_options(self, parser):
        parser.add_argument("--before", type=pathlib.Path, help="an earlier index-bench")
        parser.add_argument("--engine", type=options.words, default=ENGINES, help="subjects")
        parser.add_argument("--cell", type=options.words, default=CELLS, help=", ".join(CELLS))
        parser.add_argument("--keys", type=options.words, help="records (default: 1000000)")
        parser.add_argument("--shape", type=options.words, default=["8+8", "16+100"],
                            help=f"bytes of key and value: {', '.join(RECORD)}")
        parser.add_argument("--beyond", action="store_true", help="data of ten times the cache")
        parser.add_argument("--turns", type=int, default=5,
                            help="a round, of cells that wait for the device")
        parser.add_argument("--buffer-bytes", type=int, help="ours: memory for changes")
        parser.add_argument("--node-bytes", type=int, help="ours: the longest image of a leaf")
        parser.add_argument("--image-bytes", type=int, help="size of the disk")

    def missing(self, args):
        return (processes.not_root() or processes.missing("losetup", "mkfs.ext4")
                or args.beyond and devices.memory_groups_v1_missing())

    def groups(self, args):
        args.fewer = getattr(args, "fewer", 1)
        there = (args.engine if args.report
                 else [*engines_of(args.binary), *([BEFORE] if args.before else [])])
        engines = [engine for engine in ENGINES if engine in args.engine and engine in there]
        names = [name for name in (BEYOND_CELLS if args.beyond else CELLS) if name in args.cell]
        own = {name: getattr(args, name) for name in ("buffer_bytes", "node_bytes")
               if getattr(args, name)}
        cells = [{"shape": shape, "keys": int(keys), "cell": name, "seconds": args.seconds,
                  "variant": "beyond" if args.beyond else "", **own, **turn}
                 for keys in args.keys or ["1000000"] for shape in args.shape for name in names
                 for turn in ([{"turn": turn} for turn in range(args.turns)]
                              if name in TURNED_CELLS else [{}])]
        cells = options.chosen(cells, args.only, self.axes)
        # The bare log has no group commit, which is all that eight threads are about.
        return [Group(cells, engines, lambda: self.session(args, cells),
                      applies=lambda _turn, cell, engine: engine != FLOOR
                      or cell["cell"] in FLOOR_CELLS)]

    def order(self, cell):
        return cell["keys"], list(RECORD).index(cell["shape"]), CELLS.index(cell["cell"])

    @contextlib.contextmanager
    def session(self, args, cells):
        """The disk, which is kept after an interruption, because the loaded data is still valid."""
        # LMDB and redb need up to eight times the user bytes, and all engines are on the disk
        # together.
        largest = max(cell["keys"] * sum(RECORD[cell["shape"]]) for cell in cells)
        disk = Disk(args.dir, args.image_bytes or (4 << 30) + 24 * largest)
        try:
            yield Rounds(args, disk).measure
        except BaseException:
            with processes.undisturbed():
                disk.leave()
            raise
        disk.remove()

    @staticmethod
    def gain(summary, cell, engine, name):
        """Returns how many times better ours is than another; the median of the rounds."""
        if engine == OURS:
            return None
        return summary.ratio(cell, OURS, engine, goodness(name))

    def tables(self, summary):
        engines = [engine for engine in ENGINES if engine in summary.subjects()]
        kinds = {"": ("times better than each engine", False, self.gain),
                 "counted": ("counted", True, judging.Summary.median),
                 "medians": ("medians", False, judging.Summary.median)}
        found = {}
        for key, (title, counts, figure) in kinds.items():
            rows = []
            for cell in summary.cells():
                for name, (of, text, better, _) in FIGURES.items():
                    if of == cell["cell"] and (better is None) == counts:
                        label = text if key == "" or counts else f"{text}, {unit_of(name)}"
                        rows.append([point_name(cell), label, *(
                            tables.number(figure(summary, cell, engine, name))
                            for engine in engines)])
            rows = [row for row in rows if set(row[2:]) != {"-"}]
            if rows:
                found[key] = tables.Table(title, ["records", title, *engines], rows)
        return found

    def verdicts(self, summary):
        judged = super().verdicts(summary)
        for shape, keys in dict.fromkeys((c["shape"], c["keys"]) for c in summary.cells()
                                         if c["variant"] == "beyond"):
            def median(name, shape=shape, keys=keys):
                cells = [c for c in summary.cells() if (c["shape"], c["keys"], c["cell"]) == (
                    shape, keys, FIGURES[name][0])]
                return summary.median(cells[0], OURS, name) if cells else None
            reads, written = median("get_reads"), median("written_by_user_bytes")
            if reads is not None and written is not None:
                met = reads <= 1.1 and written <= 8 or reads <= 2 and written <= 4
                judged.append({"bar": f"device reads a get ({reads:.2f}), and bytes written by"
                                      " user bytes", "limit": "at most 1.1 and 8, or 2 and 4",
                               "worst": written, "where": f"{shape}:{keys}", "met": met})
        return judged


def unit_of(name):
    """Returns the unit at the end of a name."""
    return "op/s" if name.endswith("_per_s") else name.rsplit("_", 1)[1]


SUITE = Index()
