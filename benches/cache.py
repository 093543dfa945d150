#!/usr/bin/env python3
"""Trace-driven cache simulation: whole processes of bimetal beside libCacheSim, on one trace.

Requests per CPU second and resident memory, decoding included. libCacheSim comes from PyPI
(`pip install libcachesim`); its process reads the same accesses as oracleGeneral, its fastest input,
which this script writes first from `lis` text. The two take turns within a round, so that whatever
else the machine does falls on both; the figure is the median of the rounds. CPU time (user and
system) of the process is compared, not elapsed time, since both use one thread here and the machine
may be shared; elapsed time is shown beside it.

    pip install libcachesim
    benches/cache.py --binary target/release/bimetal --trace arc-P3.lis.zst --size 65536
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

POLICIES = {"lru": "LRU", "arc": "ARC", "lirs": "LIRS", "s3-fifo": "S3FIFO"}

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
    """Writes the accesses of a `lis` trace as oracleGeneral records of one unit; returns how many."""
    lines = subprocess.run(["zstd", "-dcf", trace], check=True, capture_output=True).stdout
    count = 0
    with open(out, "wb") as file:
        for line in lines.splitlines():
            first, blocks = map(int, line.split()[:2])
            for block in range(first, first + blocks):
                file.write(struct.pack("<IQIq", count & 0xFFFFFFFF, block, 1, -2))
                count += 1
    return count


def run(command):
    """Runs a command; returns its output, CPU seconds, elapsed seconds and peak memory in MB."""
    with tempfile.NamedTemporaryFile("w+") as usage:
        timed = ["/usr/bin/time", "-o", usage.name, "-f", "%U %S %e %M", *command]
        done = subprocess.run(timed, check=True, capture_output=True, text=True)
        user, system, elapsed, kilobytes = map(float, usage.read().split()[-4:])
    return done.stdout, user + system, elapsed, kilobytes / 1000


def ours(args, policy):
    """One run of bimetal: CPU seconds, elapsed seconds, MB and miss ratio."""
    out, *cost = run([args.binary, "sim", "cache", "--trace", args.trace, "--policy", policy,
                      "--size", str(args.size), "--jobs", "1", "--json"])
    return *cost, json.loads(out)[0]["miss_ratio"]


def peer(args, policy, binary_trace):
    """One run of libCacheSim: the same, without the start of its interpreter."""
    _, start_cpu, start_elapsed, _ = run([args.python, "-c", "import libcachesim"])
    out, cpu, elapsed, megabytes = run([args.python, "-c", PEER, POLICIES[policy],
                                        str(binary_trace), str(args.size)])
    return cpu - start_cpu, elapsed - start_elapsed, megabytes, float(out.split()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/bimetal")
    parser.add_argument("--trace", required=True, help="a lis trace, compressed with zstd or not")
    parser.add_argument("--size", type=int, default=65536, help="pages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="has libcachesim")
    args = parser.parse_args()
    if not os.access(args.binary, os.X_OK):
        raise SystemExit(f"{args.binary} is missing: cargo build --release -p bimetal-cli")
    with tempfile.TemporaryDirectory() as folder:
        binary_trace = pathlib.Path(folder) / "trace.oracleGeneral"
        requests = oracle_general(args.trace, binary_trace)
        print(f"{requests} requests, {args.size} pages, median of {args.rounds} rounds, "
              "M requests per CPU second (elapsed s, MB)")
        for policy in POLICIES:
            rounds = [(ours(args, policy), peer(args, policy, binary_trace))
                      for _ in range(args.rounds)]
            sides = [[statistics.median(r[side][n] for r in rounds) for n in range(4)]
                     for side in (0, 1)]
            rates = [requests / cost[0] / 1e6 for cost in sides]
            cells = [f"{rate:6.2f} ({cost[1]:.2f} s, {cost[2]:.0f} MB, miss ratio {cost[3]:.4f})"
                     for rate, cost in zip(rates, sides)]
            ratio = statistics.median(theirs[0] / own[0] for own, theirs in rounds)
            print(f"{policy:8} bimetal {cells[0]}  libCacheSim {cells[1]}  ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
