#!/usr/bin/env python3
"""What the layers cost: a file under stripe, passthrough (as the queue) and stats, driven in process
by `bimetal bench`, against fio with io_uring, direct I/O, fixed buffers and registered files on the
same file, at depth 32. Rounds are interleaved, so that whatever else the machine does hits both;
the medians are compared. The bar: at least 0.90 of fio's operations a second.

    benches/stack.py [--bimetal PATH] [--dir DIR] [--rounds N] [--seconds S] [--json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SIZE_BYTES = 1 << 30
DEPTH = 32
BAR = 0.90
CONFIG = """
[device.file]
type = "file"
path = "data.img"

[device.queue]
type = "passthrough"
below = "file"

[device.stripe]
type = "stripe"
devices = ["queue"]

[device.stack]
type = "stats"
below = "stripe"
"""


def run(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def make_file(path):
    """A file that is really allocated: reads of holes would measure nothing."""
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(SIZE_BYTES // len(block)):
            file.write(block)
        os.fsync(file.fileno())


def bimetal(args, directory, pattern, device):
    words = [args.bimetal, "bench", os.path.join(directory, "stack.toml"), "--device", device]
    words += ["--rw", pattern, "--depth", str(DEPTH), "--time", f"{args.seconds}s", "--json"]
    if pattern != "randread":
        words.append("--destroy-data")
    report = json.loads(run(words))
    return report["operations_per_s"], report["cpu_ns_per_operation"]


def fio(args, directory, pattern):
    words = ["fio", "--name=raw", f"--filename={directory}/data.img", f"--rw={pattern}"]
    words += ["--bs=4k", f"--iodepth={DEPTH}", "--ioengine=io_uring", "--direct=1"]
    words += ["--fixedbufs", "--registerfiles", "--time_based", f"--runtime={args.seconds}"]
    words += ["--norandommap", "--randrepeat=0", "--output-format=json"]
    job = json.loads(run(words))["jobs"][0]
    side = job["read" if pattern == "randread" else "write"]
    busy_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return side["iops"], busy_s / max(side["total_ios"], 1) * 1e9


def main():
    parser = argparse.ArgumentParser(description="the cost of the layers against raw io_uring")
    parser.add_argument("--bimetal", default="target/release/bimetal")
    parser.add_argument("--dir", help="where the file lies, on the disk to measure with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        make_file(os.path.join(directory, "data.img"))
        with open(os.path.join(directory, "stack.toml"), "w", encoding="ascii") as file:
            file.write(CONFIG)
        for pattern in ("randread", "randwrite"):
            rounds = {"fio": [], "file": [], "stack": []}
            names = list(rounds)
            for number in range(args.rounds):
                # Each of them goes first in turn: a disk may pay for what came before.
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    if name == "fio":
                        rounds[name].append(fio(args, directory, pattern))
                    else:
                        rounds[name].append(bimetal(args, directory, pattern, name))
            median = {
                name: [statistics.median(column) for column in zip(*values)]
                for name, values in rounds.items()
            }
            results.append(
                {
                    "pattern": pattern,
                    "operations_per_s": {name: value[0] for name, value in median.items()},
                    "cpu_ns_per_operation": {name: value[1] for name, value in median.items()},
                    "ratio": median["stack"][0] / median["fio"][0],
                    "spread": {
                        name: [min(v[0] for v in values), max(v[0] for v in values)]
                        for name, values in rounds.items()
                    },
                }
            )
    if args.json:
        print(json.dumps(results))
    else:
        for result in results:
            print(f"{result['pattern']}, 4 KiB, depth {DEPTH}, median of {args.rounds} rounds")
            for name in ("fio", "file", "stack"):
                low, high = result["spread"][name]
                print(
                    f"  {name:6} {result['operations_per_s'][name]:12,.0f} ops/s"
                    f"  ({low:,.0f} .. {high:,.0f})"
                    f"  CPU {result['cpu_ns_per_operation'][name] / 1000:6.2f} us/op"
                )
            print(f"  stack / fio: {result['ratio']:.3f} (bar: {BAR:.2f})")
    return 0 if all(result["ratio"] >= BAR for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
