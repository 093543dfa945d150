#!/usr/bin/env python3
"""Depth 1 at ordinary priority: NBD and BRP on a quiet machine and beside one busy process.

Thousand operations per second of 4 KiB random reads from a memory device over a UNIX socket, of
bimetal and nbdkit by fio's nbd engine, of bimetal by BRP, and of a bare ping-pong of the same
sizes between two processes, whose server sleeps in one column and busy-polls in the other. All of
them are measured in turns in each round, first alone and then beside one process that computes,
and the ratio of NBD is taken within the round. The servers run all the time: what one run has
taught the server is there in the next one.

Then the processor time of the server, in percent of one core: without a client, with one client
that is connected and silent, and at 100 operations a second.

This must run at ordinary priority; it refuses a real-time one. The process that computes has the
priority of the others.

    cargo build --release -p bimetal-cli
    python3 benches/depth_one.py
"""

import argparse
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import brp
import nbd

CELL = (1, 1, "randread")
BRP_CELL = ("unix", 1, "randread")
REQUEST_BYTES, REPLY_BYTES = 28, 4112
# What the ratio to nbdkit must be, in nine rounds of ten.
WANTED = {"quiet": 1.3, "busy": 1.0}
COLUMNS = ("nbd", "nbdkit", "brp", "pp-sleep", "pp-poll")


def receive(end, count, polls):
    """Receives so many bytes, busy-polling or asleep; false when the other end has closed."""
    left = count
    while left:
        try:
            piece = len(end.recv(left, socket.MSG_DONTWAIT if polls else 0))
        except BlockingIOError:
            continue
        if not piece:
            return False
        left -= piece
    return True


def answer(ours, theirs, polls):
    """The server of the ping-pong: answers until its client closes."""
    theirs.close()
    while receive(ours, REQUEST_BYTES, polls):
        ours.sendall(bytes(REPLY_BYTES))


def ping_pong(server_polls, seconds):
    """Round trips a second of bare bytes between two processes, the client of which sleeps."""
    ours, theirs = socket.socketpair()
    child = multiprocessing.Process(target=answer, args=(theirs, ours, server_polls))
    child.start()
    theirs.close()
    count, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        ours.sendall(bytes(REQUEST_BYTES))
        receive(ours, REPLY_BYTES, False)
        count += 1
    elapsed = time.monotonic() - began
    ours.close()
    child.join()
    return count / elapsed


def start_brp(args, folder):
    """Starts ours with a device for BRP."""
    brp.config(args, folder)
    command = [str(args.binary.resolve()), "serve", str(folder / "server.toml")]
    return nbd.Server("brp", command, folder / "bimetal.sock", "", folder, ready=True)


def measure(what, servers, args, brp_folder):
    """One measurement, in operations a second."""
    if what.startswith("pp"):
        return ping_pong(what == "pp-poll", args.seconds)
    if what == "brp":
        return brp.once("adaptive", BRP_CELL, args, brp_folder)[1]
    name = "bimetal" if what == "nbd" else what
    return nbd.measure(servers[name], CELL, args)["ops_per_s"]


def idle_share(seconds=0.5):
    """The share of the processors' time that nobody uses (proc(5), stat: the fourth and fifth)."""
    def sample():
        words = pathlib.Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
        return sum(map(int, words)), int(words[3]) + int(words[4])
    before = sample()
    time.sleep(seconds)
    after = sample()
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


def wait_until_idle(within_s):
    """Waits until nothing else runs, no longer than this; says so where it did not come to that."""
    end = time.monotonic() + within_s
    while idle_share() < 0.95:
        if time.monotonic() > end:
            print("the next round is measured beside other work", flush=True)
            return
        time.sleep(1)


class Neighbour:
    """A process that computes while the block runs."""

    def __init__(self, wanted):
        self.wanted = wanted

    def __enter__(self):
        if self.wanted:
            self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def __exit__(self, *_error):
        if self.wanted:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def rounds(args, servers, brp_folder):
    """The measurements of each round, by quiet and busy."""
    found = {"quiet": [], "busy": []}
    print("thousand op/s" + "".join(f"{c:>10}" for c in COLUMNS) + "   nbd : nbdkit", flush=True)
    for turn in range(args.rounds):
        at = turn % len(COLUMNS)
        for kind, results in found.items():
            if args.idle_within:
                wait_until_idle(args.idle_within)
            with Neighbour(kind == "busy"):
                figures = {what: measure(what, servers, args, brp_folder)
                           for what in COLUMNS[at:] + COLUMNS[:at]}
            results.append(figures)
            print_line(f"{turn + 1} {kind}", figures, figures["nbd"] / figures["nbdkit"])
    return found


def print_line(title, figures, ratio):
    """One line of the table."""
    print(f"{title:13}" + "".join(f"{figures[c] / 1e3:10.1f}" for c in COLUMNS)
          + f"{ratio:15.2f}", flush=True)


def conclude(found):
    """Prints the medians and the verdicts; gives the exit status."""
    status = 0
    for kind, results in found.items():
        ratios = sorted(r["nbd"] / r["nbdkit"] for r in results)
        medians = {c: statistics.median(r[c] for r in results) for c in COLUMNS}
        print_line(f"median {kind}", medians, statistics.median(ratios))
        enough = sum(ratio >= WANTED[kind] for ratio in ratios)
        holds = enough * 10 >= len(ratios) * 9
        print(f"{'holds' if holds else 'FAILS'}: {enough} of {len(ratios)} {kind} rounds have"
              f" {WANTED[kind]} of nbdkit (lowest {ratios[0]:.2f}, highest {ratios[-1]:.2f})")
        status |= not holds
    return status


def processor_time(server, args):
    """Prints the server's processor time where little is asked; gives the exit status."""
    def percent(block):
        before, began = server.cpu_s(), time.monotonic()
        block()
        return (server.cpu_s() - before) / (time.monotonic() - began) * 100

    def rarely():
        extra = ["--time_based", f"--runtime={args.idle_seconds}", "--rate_iops=100"]
        nbd.fio_at(server, *CELL, args.size_mib, extra)

    alone = percent(lambda: time.sleep(args.idle_seconds))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.uri.split("socket=")[1])
        silent = percent(lambda: time.sleep(args.idle_seconds))
    rare = percent(rarely)
    print(f"server's share of one core: {alone:.1f} % without a client, {silent:.1f} % with a"
          f" silent one, {rare:.1f} % at 100 operations/s (at most 3)")
    return int(alone > 0.5 or silent > 0.5 or rare > 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", type=pathlib.Path, default="target/release/bimetal")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2, help="length of one measurement")
    parser.add_argument("--idle-seconds", type=float, default=5)
    parser.add_argument("--idle-within", type=float, default=0,
                        help="wait so many seconds before each round until nothing else runs")
    parser.add_argument("--size-mib", type=int, default=256)
    args = parser.parse_args()
    args.file, args.floor = None, None
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        raise SystemExit("this measures at ordinary priority: start it without chrt")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bimetal-depth-one-"))
    servers = {}
    try:
        for name in ("bimetal", "nbdkit"):
            servers[name] = nbd.start(name, args, folder)
            # Every page is there before anything is measured.
            nbd.fio_at(servers[name], 1, 16, "write", args.size_mib, ["--bs=1m"])
        brp_folder = folder / "brp"
        brp_folder.mkdir()
        servers["brp"] = start_brp(args, brp_folder)
        status = conclude(rounds(args, servers, brp_folder))
        return status | processor_time(servers["bimetal"], args)
    finally:
        for server in servers.values():
            server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
