"""Cache simulation of a trace: whole processes of bimetal compared with libCacheSim.

Measured are requests per CPU second and resident memory, decoding included. libCacheSim comes from
PyPI (`pip install libcachesim`). Its process reads the same accesses as oracleGeneral, its fastest
input, which is first written from `lis` text; the start time of its interpreter is subtracted. The
comparison uses CPU time and not elapsed time, because both programs have one thread and the machine
may be shared.

    python3 benches cache --trace arc-P3.lis.zst --size 65536 --rounds 3
"""

import contextlib
import json
import pathlib
import struct
import subprocess
import sys

from harness import options, processes, programs, tables
from harness.suite import Group, Suite

POLICIES = {"lru": "LRU", "arc": "ARC", "lirs": "LIRS", "s3-fifo": "S3FIFO"}
PEER_NAME = "libCacheSim"
# Run by the interpreter that has libcachesim: one policy over one file, and its miss ratio.
PEER = """
import sys
import libcachesim as lcs
params = lcs.ReaderInitParam(ignore_obj_size=True)
reader = lcs.TraceReader(sys.argv[2], lcs.TraceType.ORACLE_GENERAL_TRACE, params)
cache = getattr(lcs, sys.argv[1])(cache_size=int(sys.argv[3]))
print(cache.process_trace(reader)[0])
"""


def oracle_general(trace, out):
    """Writes the accesses of a `lis` trace as oracleGeneral records; returns how many there are."""
    lines = subprocess.run(["zstd", "-dcf", trace], check=True, capture_output=True).stdout
    count = 0
    with open(out, "wb") as file:
        for line in lines.splitlines():
            first, blocks = map(int, line.split()[:2])
            for block in range(first, first + blocks):
                file.write(struct.pack("<IQIq", count & 0xFFFFFFFF, block, 1, -2))
                count += 1
    return count


def ours(args, cell):
    """Returns CPU seconds, elapsed seconds, MB and miss ratio of one run of bimetal."""
    out, *cost = processes.run_measured(
        [programs.lab(args), *programs.SIM_CACHE, "--trace", args.trace, "--policy",
         cell["policy"], "--size", cell["size_pages"], "--jobs", 1, "--json"])
    return *cost, json.loads(out)[0]["miss_ratio"]


def peer(args, cell, binary_trace):
    """Returns the same of libCacheSim, without the start of its interpreter."""
    _, start_cpu_s, start_s, _ = processes.run_measured([args.python, "-c", "import libcachesim"])
    out, cpu_s, elapsed_s, peak_mb = processes.run_measured(
        [args.python, "-c", PEER, POLICIES[cell["policy"]], binary_trace, cell["size_pages"]])
    return cpu_s - start_cpu_s, elapsed_s - start_s, peak_mb, float(out.split()[-1])


class Cache(Suite):
    """The simulator's speed."""

    name, group = "cache", "simulation"
    line = "the speed of the cache simulation beside libCacheSim"
    defaults = {"rounds": 5}
    quick = {"rounds": 2}
    axes = ("trace", "policy")
    headline = ("requests_per_cpu_s", "miss_ratio")

    def add_options(self, parser):
        parser.add_argument("--trace", type=pathlib.Path, help="a lis trace, plain or zstd")
        parser.add_argument("--size", type=int, default=65536, help="pages")
        parser.add_argument("--python", default=sys.executable, help="has libcachesim")

    def missing(self, args):
        if not args.trace:
            return "--trace FILE says which lis trace is read"
        if subprocess.run([args.python, "-c", "import libcachesim"], check=False,
                          capture_output=True).returncode != 0:
            return f"{args.python} has no libcachesim: pip install libcachesim"
        return processes.missing("zstd", "/usr/bin/time") or programs.lab_missing(args)

    def groups(self, args):
        if not args.trace:
            raise SystemExit("cache: --trace FILE says which lis trace is read")
        cells = [{"trace": args.trace.name, "policy": policy, "size_pages": args.size}
                 for policy in POLICIES]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, ["bimetal", PEER_NAME], lambda: self.session(args))]

    def order(self, cell):
        return cell["trace"], list(POLICIES).index(cell["policy"])

    @contextlib.contextmanager
    def session(self, args):
        """The trace in the peer's form."""
        with processes.scratch("cache") as folder:
            binary_trace = folder / "trace.oracleGeneral"
            requests = oracle_general(args.trace, binary_trace)

            def measure(cell, subject, _turn):
                found = (ours(args, cell) if subject == "bimetal"
                         else peer(args, cell, binary_trace))
                values = dict(zip(("cpu_s", "elapsed_s", "memory_mb", "miss_ratio"), found))
                return {"requests_per_cpu_s": requests / values["cpu_s"], **values}
            yield measure

    def tables(self, summary):
        rows = []
        for cell in summary.cells():
            row = [cell["trace"], cell["policy"]]
            for subject in ("bimetal", PEER_NAME):
                rate, peak_mb, ratio = (summary.median(cell, subject, figure) for figure in (
                    "requests_per_cpu_s", "memory_mb", "miss_ratio"))
                row += [tables.number(rate and rate / 1e6, "{:.2f}"),
                        tables.number(peak_mb, "{:.0f}"), tables.number(ratio, "{:.4f}")]
            rows.append([*row, tables.number(
                summary.ratio(cell, "bimetal", PEER_NAME, "requests_per_cpu_s"), "{:.1f}")])
        head = ["trace", "policy", "bimetal, M requests/s", "MB", "miss ratio",
                f"{PEER_NAME}, M requests/s", "MB", "miss ratio", "ratio"]
        return {"": tables.Table("M requests per CPU second", head, rows)}


SUITE = Cache()
