#!/usr/bin/env python3
"""NBD over a UNIX socket, memory device, 4 KiB random reads and writes: bimetal beside its peers.

Operations per second and server CPU seconds per million operations, by fio's nbd engine, for
bimetal (a `memory` device), nbdkit (its memory plugin) and qemu-nbd (a file on tmpfs), at depth
1, 16, 64 and 128 (the sum over all connections) over one and over four connections.

The servers run side by side and idle while another is measured. Every cell is measured in rounds,
the servers taking turns within a round, so that whatever else the machine does falls on all of
them; the figure is the median of the rounds. Server CPU is the time of the whole process from
/proc/PID/stat, ended threads and children included, between the start and the end of fio.

Results go to a JSON Lines file, one line a measurement, and a run goes on where the file ends: the
same command after an interruption measures what is missing. Only the standard library is used.

`--servers bimetal,threads` measures ours beside ours without io_uring (`driver = "threads"`).

With --file FOLDER the device is a file there, past the page cache: bimetal and qemu-nbd each serve one of their
own, and fio reads and writes a third one itself, by io_uring with registered buffers (`raw`). The depths are those
at which a device is kept busy.

    make bench                          # builds, then all cells, 5 rounds of 4 s
    make bench BENCH_ARGS=--quick       # 3 rounds of 1 s
    make bench BENCH_ARGS="--file /var/tmp"
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SERVERS = ("bimetal", "nbdkit", "qemu-nbd")
# The driver of each server that is ours.
OURS = {"bimetal": "uring", "threads": "threads"}
FILE_SERVERS = ("bimetal", "qemu-nbd", "raw")
FILE_CELLS = [(conns, depth, rw)
              for conns in (1, 4) for depth in (32, 64, 128) for rw in ("randread", "randwrite")]
CELLS = [(conns, depth, rw)
         for conns in (1, 4) for depth in (1, 16, 64, 128) for rw in ("randread", "randwrite")
         if depth >= conns]


class Server:
    """A running server: its process and the URI of its one export."""

    def __init__(self, name, command, socket, export, cwd, ready):
        self.name = name
        self.uri = f"nbd+unix:///{export}?socket={socket}"
        out = open(pathlib.Path(cwd) / f"{name}.log", "w", encoding="utf-8")
        stdout = subprocess.PIPE if ready else out
        self.process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout,
                                        stderr=out, text=True)
        if ready:
            line = self.process.stdout.readline().strip()
            if line != "ready":
                raise SystemExit(f"{name}: printed {line!r} in place of `ready`; see {out.name}")
        end = time.monotonic() + 20
        while not os.path.exists(socket):
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{name} does not listen; see {out.name}")
            time.sleep(0.02)

    def cpu_s(self):
        """User and system time of the process so far, in seconds (proc(5), fields 14 to 17).

        Threads that have ended are in it, which matters: nbdkit has its threads for each
        connection. The kernel scales the two so that their sum is the scheduler's exact run time;
        what is lost is the last tick (10 ms).
        """
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        ticks = stat.rsplit(")", 1)[1].split()[11:15]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ends the server."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Raw:
    """No server: fio does to a file what it does to the servers' devices."""

    name = "raw"

    def __init__(self, image):
        self.image = image
        self.uri = None

    def cpu_s(self):
        """Nobody's time."""
        return 0.0

    def stop(self):
        """There is nothing to end."""


def make_image(folder, name, args):
    """A file whose space is there."""
    image = pathlib.Path(folder) / f"bimetal-bench-{name}-{os.getpid()}.img"
    with open(image, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, args.size_mib << 20)
    return image


def start(name, args, folder):
    """Starts the server called `name` with a device of args.size_mib: memory, or a file past the page cache."""
    socket = folder / f"{name}.sock"
    if name == "nbdkit":
        command = ["nbdkit", "-f", "-U", str(socket), "memory", f"{args.size_mib}M"]
        return Server(name, command, socket, "", folder, ready=False)
    if name in OURS and not args.file:
        return start_bimetal(name, 'type = "memory"\n', args, folder, socket)
    image = make_image(args.file or args.tmpfs, name, args)
    if name == "raw":
        return Raw(image)
    if name in OURS:
        server = start_bimetal(name, f'type = "file"\npath = "{image}"\n', args, folder, socket)
    else:
        how = (["--cache=none", "--aio=io_uring"] if args.file
               else ["--cache=writeback", "--aio=threads"])
        command = ["qemu-nbd", "-k", str(socket), "-f", "raw", "-x", "", "-t", "-e", "8", *how,
                   str(image)]
        server = Server(name, command, socket, "", folder, ready=False)
    server.image = image
    return server


def start_bimetal(name, device, args, folder, socket):
    """Starts ours with a device of these keys."""
    config = folder / f"{name}.toml"
    config.write_text(f'[device.vol]\n{device}size = "{args.size_mib}MiB"\n\n'
                      f'[export.vol]\ndevice = "vol"\nprotocol = "nbd"\n'
                      f'listen = "unix:{socket}"\n\n'
                      f'[server]\ndriver = "{OURS[name]}"\n')
    command = [str(args.binary.resolve()), "serve", str(config)]
    return Server(name, command, socket, "vol", folder, ready=True)


# What is taken of each measurement.
FIGURES = ("ops_per_s", "server_cpu_s_per_million", "p50_us", "p99_us", "p999_us")


def fio(uri, conns, depth, rw, size_mib, extra):
    """Runs fio's nbd engine and returns its JSON, summed over the connections."""
    return fio_by(["--ioengine=nbd", "--thread=0", f"--uri={uri}"], conns, depth, rw, size_mib,
                  extra)


def fio_at(server, conns, depth, rw, size_mib, extra):
    """The same at a server, or at the file of none."""
    if server.uri:
        return fio(server.uri, conns, depth, rw, size_mib, extra)
    engine = ["--ioengine=io_uring", "--direct=1", "--registerfiles=1", "--fixedbufs=1",
              f"--filename={server.image}"]
    return fio_by(engine, conns, depth, rw, size_mib, extra)


def fio_by(engine, conns, depth, rw, size_mib, extra):
    """Runs fio with an engine and returns its JSON, summed over the connections."""
    part_mib = size_mib // conns
    command = ["fio", "--name=cell", *engine, f"--rw={rw}", "--bs=4k", f"--iodepth={depth // conns}", f"--numjobs={conns}",
               f"--size={part_mib}m", f"--offset_increment={part_mib}m", "--norandommap",
               "--randrepeat=0", "--group_reporting", "--percentile_list=50:99:99.9",
               "--output-format=json", *extra]
    return run_json(command)["jobs"][0]


def run_json(command):
    """Runs a program and gives its JSON."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    # The words of fio's engine stand before the JSON.
    return json.loads(ran.stdout[ran.stdout.index("{"):])


def measure(server, cell, args):
    """One measurement of one cell."""
    conns, depth, rw = cell
    before, began = server.cpu_s(), time.monotonic()
    extra = ["--time_based", f"--runtime={args.seconds}"]
    job = fio_at(server, conns, depth, rw, args.size_mib, extra)
    after, ended = server.cpu_s(), time.monotonic()
    side = job["write" if rw == "randwrite" else "read"]
    at = side["clat_ns"]["percentile"]
    return {
        "server": server.name, "conns": conns, "depth": depth, "rw": rw,
        "ops_per_s": side["iops"], "ops": side["total_ios"],
        "server_cpu_s_per_million": (after - before) / side["total_ios"] * 1e6,
        "p50_us": at["50.000000"] / 1e3, "p99_us": at["99.000000"] / 1e3,
        "p999_us": at["99.900000"] / 1e3, "elapsed_s": ended - began,
        "seconds": args.seconds, "size_mib": args.size_mib, "file": bool(args.file),
    }


def load(path):
    """The measurements made so far; a line cut off by an interruption is left out."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                print(f"{path}: skipped a broken line", file=sys.stderr)
    return found


def key(result):
    """The cell of a measurement."""
    return (result["conns"], result["depth"], result["rw"])


def run(args, names, results):
    """Measures what is missing, in turns, and appends it to the file."""
    missing = []
    for turn in range(args.rounds):
        for cell in args.cells:
            # The order turns too, so that no server always follows the same one.
            order = names[turn % len(names):] + names[:turn % len(names)]
            for name in order:
                done = sum(key(r) == cell and r["server"] == name for r in results)
                if done <= turn:
                    missing.append((cell, name))
    if not missing:
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bimetal-bench-"))
    servers = {}
    try:
        for name in names:
            servers[name] = start(name, args, folder)
            # Every page is there before anything is measured.
            fio_at(servers[name], 1, 16, "write", args.size_mib, ["--bs=1m"])
        results += kept(args.out, missing,
                        lambda cell, name: measure(servers[name], cell, args),
                        lambda cell, name, result:
                        f"{name:8} {cell[0]} conn, depth {cell[1]:3}, {cell[2]:9}"
                        f" {result['ops_per_s']:9.0f} op/s"
                        f" {result['server_cpu_s_per_million']:6.2f} CPU-s/M")
    finally:
        for server in servers.values():
            server.stop()
            if hasattr(server, "image"):
                server.image.unlink()
        shutil.rmtree(folder)


def kept(path, missing, measured, described):
    """Measures what is missing, adds each result to the file, tells how it goes; gives the results."""
    results, began = [], time.monotonic()
    with open(path, "a", encoding="utf-8") as out:
        if out.tell() > 0 and not path.read_bytes().endswith(b"\n"):
            out.write("\n")  # an interruption left a piece of a line
        for count, what in enumerate(missing):
            result = measured(*what)
            results.append(result)
            out.write(json.dumps(result) + "\n")
            out.flush()
            left_s = (time.monotonic() - began) / (count + 1) * (len(missing) - count - 1)
            print(f"[{count + 1}/{len(missing)}, {left_s / 60:.0f} min left]"
                  f" {described(*what, result)}", flush=True)
    return results


def medians(results, cell_of, subject, figures):
    """Median of each figure that there is by cell and what was measured."""
    table = {}
    for result in results:
        table.setdefault(cell_of(result), {}).setdefault(result[subject], []).append(result)
    return {cell: {name: {f: statistics.median(r[f] for r in runs) for f in figures
                          if runs[0][f] is not None}
                   for name, runs in by_subject.items()}
            for cell, by_subject in table.items()}


def conclude(out, cells, judged, where):
    """Prints the verdicts and keeps them beside the measurements; gives the exit status."""
    print()
    for verdict in judged:
        worst = ""
        if "worst_ratio" in verdict:
            worst = f" (worst: {verdict['worst_ratio']:.2f} of {where(verdict)})"
        print(f"{verdict['verdict']:12} {verdict['bar']}{worst}")
    summary = out.with_suffix(".summary.json")
    summary.write_text(json.dumps({"cells": cells, "verdicts": judged}, indent=1) + "\n")
    print(f"\nmeasurements: {out}\nmedians and verdicts: {summary}")
    return 1 if any(v["verdict"] == "FAILS" for v in judged) else 0


def ratio(cell, figure, peer):
    """Our figure over the peer's, or None where one is missing."""
    if "bimetal" not in cell or peer not in cell or not cell[peer][figure]:
        return None
    return cell["bimetal"][figure] / cell[peer][figure]


def print_table(table, names):
    """One line a cell: each server's figures, then our ratios to the peers."""
    peers = [n for n in names if n != "bimetal"]
    print("\nmedians: op/s (server CPU-s per million operations)")
    print(f"{'conn':>4} {'depth':>5} {'load':9}" + "".join(f"{n:>20}" for n in names)
          + "".join(f"{'op/s : ' + p:>17}{'CPU':>6}" for p in peers))
    for cell in sorted(table):
        line = f"{cell[0]:4} {cell[1]:5} {cell[2]:9}"
        for name in names:
            found = table[cell].get(name)
            line += (f"{found['ops_per_s']:12.0f} ({found['server_cpu_s_per_million']:5.2f})"
                     if found else f"{'-':>20}")
        for peer in peers:
            for figure, width in (("ops_per_s", 17), ("server_cpu_s_per_million", 6)):
                value = ratio(table[cell], figure, peer)
                line += f"{value:{width}.2f}" if value is not None else f"{'-':>{width}}"
        print(line)


# The bars: what is asked, of which cells, against whom, and the least (or most) ratio.
BARS = [
    ("four connections, depth 16 and up, reads: at least 1.7 of nbdkit's op/s",
     lambda c: c[0] == 4 and c[1] >= 16 and c[2] == "randread", ("nbdkit",), "ops_per_s", 1.7, True),
    ("four connections, depth 16 and up, writes: at least 1.2 of nbdkit's op/s",
     lambda c: c[0] == 4 and c[1] >= 16 and c[2] == "randwrite", ("nbdkit",), "ops_per_s", 1.2, True),
    ("one connection, depth 1: at least 1.3 of nbdkit's op/s",
     lambda c: c[0] == 1 and c[1] == 1, ("nbdkit",), "ops_per_s", 1.3, True),
    ("one connection, deeper: at least 0.9 of nbdkit's op/s",
     lambda c: c[0] == 1 and c[1] > 1, ("nbdkit",), "ops_per_s", 0.9, True),
    ("one connection, deeper: less server CPU per operation than nbdkit",
     lambda c: c[0] == 1 and c[1] > 1, ("nbdkit",), "server_cpu_s_per_million", 1.0, False),
]
FILE_BARS = [
    ("a file, depth 32 and up: at least 0.85 of raw io_uring",
     lambda c: c[1] >= 32, ("raw",), "ops_per_s", 0.85, True),
]


def verdicts(table, bars):
    """One verdict a bar, with its worst cell. A bar without figures is not judged."""
    found = []
    for text, applies, peers, figure, limit, at_least in bars:
        values = [(ratio(table[cell], figure, peer), cell, peer)
                  for cell in table if applies(cell) for peer in peers]
        if not values or any(v[0] is None for v in values):
            found.append({"bar": text, "verdict": "not measured"})
            continue
        worst = min(values) if at_least else max(values)
        good = worst[0] >= limit if at_least else worst[0] < limit
        found.append({"bar": text, "verdict": "holds" if good else "FAILS",
                      "worst_ratio": worst[0], "cell": worst[1], "peer": worst[2]})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", type=pathlib.Path, default="target/release/bimetal")
    parser.add_argument("--out", type=pathlib.Path, default="target/bench-nbd.jsonl")
    parser.add_argument("--seconds", type=float, default=4, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--tmpfs", default="/dev/shm", help="where qemu-nbd's file lies")
    parser.add_argument("--file", type=pathlib.Path,
                        help="a folder: the device is a file there, past the page cache")
    parser.add_argument("--servers")
    parser.add_argument("--only", help="cells as CONNS:DEPTH:LOAD, separated by commas")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1 s")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.rounds = 1, 3
    args.cells = FILE_CELLS if args.file else CELLS
    if args.only:
        wanted = [c.split(":") for c in args.only.split(",")]
        args.cells = [(int(c), int(d), rw) for c, d, rw in wanted]
    if args.fresh:
        args.out.unlink(missing_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    usual = FILE_SERVERS if args.file else SERVERS
    names = args.servers.split(",") if args.servers else list(usual)
    results = load(args.out)
    # Figures of runs of another length, size or medium are not figures of this one.
    same = [r for r in results if r["seconds"] == args.seconds and r["size_mib"] == args.size_mib
            and r.get("file", False) == bool(args.file)]
    run(args, names, same)
    table = medians(same, key, "server", FIGURES)
    print_table(table, names)
    cells = [{"conns": c[0], "depth": c[1], "rw": c[2], "servers": table[c]} for c in sorted(table)]

    def where(verdict):
        conns, depth, rw = verdict["cell"]
        return f"{verdict['peer']}'s at {conns} conn, depth {depth}, {rw}"
    return conclude(args.out, cells, verdicts(table, FILE_BARS if args.file else BARS), where)


if __name__ == "__main__":
    sys.exit(main())
