#!/usr/bin/env python3
"""Compares this engine over BRP with fio's own nbd engine, on one volume in memory that one server
exports by both protocols.

Usage: contrib/fio/compare.py --binary target/release/bimetal --engine contrib/fio/brp.so [--rounds N] [--seconds N]

The engines take turns in every round. The output has the medians over the rounds, as a table for
docs/capi.md. fio must have been built with libnbd. Both engines have the same options, including
batches of up to 16.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

CONFIG = """
[server]
lock_memory = false
[device.vol]
type = "memory"
size = "256MiB"
[export.brp]
device = "vol"
protocol = "brp"
listen = "unix:brp.sock"
[export.nbd]
device = "vol"
protocol = "nbd"
listen = "unix:nbd.sock"
"""


def measured(engine, kind, depth, seconds):
    """Operations per second and the mean latency in microseconds of one run."""
    command = ["fio", "--name=compare", *engine, f"--rw={kind}", "--bs=4k", "--size=128m",
               f"--iodepth={depth}", f"--iodepth_batch={min(depth, 16)}",
               f"--iodepth_batch_complete_max={depth}", "--time_based", f"--runtime={seconds}",
               "--output-format=json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    # Messages may precede the report.
    job = json.loads(run.stdout[run.stdout.index("{"):])["jobs"][0]
    side = job["read" if kind == "randread" else "write"]
    # The total latency, from fio's decision on, because the nbd engine sends requests before the
    # period that fio counts as completion latency.
    return side["iops"], side["lat_ns"]["mean"] / 1000


def main():
    """Serves, measures, prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        config = os.path.join(place, "vol.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write(CONFIG)
        engines = {
            "brp": [f"--ioengine=external:{os.path.abspath(given.engine)}",
                    f"--uri=brp+unix://{place}/brp.sock?export=brp"],
            "nbd": ["--ioengine=nbd", f"--uri=nbd+unix:///nbd?socket={place}/nbd.sock"],
        }
        server = subprocess.Popen([given.binary, "serve", config], stdout=subprocess.PIPE, text=True)
        try:
            if server.stdout.readline() != "ready\n":
                sys.exit("the server is not ready")
            print("| 4 KiB | Depth | brp IOPS | nbd IOPS | brp / nbd | brp mean | nbd mean |")
            print("|---|---|---|---|---|---|---|")
            for kind in ("randread", "randwrite"):
                for depth in (1, 32, 128):
                    print(row(engines, kind, depth, given), flush=True)
        finally:
            server.terminate()
            server.wait()


def row(engines, kind, depth, given):
    """One line of the table."""
    found = {name: [] for name in engines}
    for _ in range(given.rounds):
        for name, engine in engines.items():
            found[name].append(measured(engine, kind, depth, given.seconds))
    median = {name: [statistics.median(v) for v in zip(*runs)] for name, runs in found.items()}
    brp, nbd = median["brp"], median["nbd"]
    return (f"| {kind} | {depth} | {brp[0]:,.0f} | {nbd[0]:,.0f} | {brp[0] / nbd[0]:.2f} "
            f"| {brp[1]:.0f} us | {nbd[1]:.0f} us |")


if __name__ == "__main__":
    main()
