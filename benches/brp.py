#!/usr/bin/env python3
"""BRP beside its floor, its peers and its own modes: 4 KiB random reads and writes on a memory device.

Operations per second, median latency and server CPU seconds per million operations over UNIX sockets and
TCP at depth 1 to 128, of

  adaptive, merge, merge-in-turn, parallel, short
              `bimetal bench` on a `brp` device in that mode, against `bimetal serve`: ours, BRP-3T with
              parallel and with serial handling of a jumbo command, BRP-2 and BRP-1
  adaptive-4  the first over four connections
  floor       a server of a hundred lines and a client that batches, both in C, over NBD (mini, nblast)
  floor-one   the same with one request to a send
  nbdkit      nbdkit's memory plugin with the same client, and with fio's libnbd: nbdkit-fio
  ping-pong   bare bytes of the same sizes with nothing behind them (pp)

The programs in C are built beforehand, from a directory that holds their sources:

    gcc -O2 -o DIR/pp pp.c -luring && gcc -O2 -o DIR/mini mini.c -luring -lpthread
    gcc -O2 -o DIR/nblast nblast.c -lpthread
    cargo build --release -p bimetal-cli
    chrt -r 1 python3 benches/brp.py --floor DIR

Without --floor only nbdkit with fio is measured beside the modes; what cannot be had is left out with a
word. The servers run side by side and idle while another is measured; every cell is measured in rounds, in
turns, and the figure is the median. Results go to a JSON Lines file, and a run goes on where the file ends;
with --within it stops after so many seconds, to be started again.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import nbd

MODES = ("adaptive", "merge", "merge-in-turn", "parallel", "short")
FOUR = "adaptive-4"
TRANSPORTS = ("unix", "tcp")
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
LOADS = ("randread", "randwrite")
PORTS = {"bimetal": 18210, "mini": 18211, "nbdkit": 18212}


def config(args, folder):
    """Writes the configurations of the server and of the clients."""
    server = [f'[device.vol]\ntype = "memory"\nsize = "{args.size_mib}MiB"\n',
              "[server]\nlock_memory = false\n"]
    client = []
    for transport in TRANSPORTS:
        address = (f"unix:{folder}/bimetal.sock" if transport == "unix"
                   else f"tcp:127.0.0.1:{PORTS['bimetal']}")
        server.append(f'[export.{transport}]\ndevice = "vol"\nprotocol = "brp"\n'
                      f'listen = "{address}"\n')
        for mode in MODES:
            client.append(f'[device.{transport}-{mode}]\ntype = "brp"\naddress = "{address}"\n'
                          f'mode = "{mode}"\nkeep = "0B"\n')
        client.append(f'[device.{transport}-{FOUR}]\ntype = "brp"\naddress = "{address}"\n'
                      f'connections = 4\nkeep = "0B"\n')
    (folder / "server.toml").write_text("\n".join(server))
    (folder / "client.toml").write_text("\n".join(client))


def start(args, folder):
    """The servers by (name, transport)."""
    size = args.size_mib << 20
    config(args, folder)
    command = [str(args.binary.resolve()), "serve", str(folder / "server.toml")]
    bimetal = nbd.Server("bimetal", command, folder / "bimetal.sock", "", folder, ready=True)
    servers = {("bimetal", transport): bimetal for transport in TRANSPORTS}
    for transport in TRANSPORTS:
        unix = transport == "unix"
        if args.floor:
            where = folder / "mini.sock"
            command = [str(args.floor.resolve() / "mini"),
                       str(where) if unix else str(PORTS["mini"]), f"mem:{size}"]
            servers["mini", transport] = nbd.Server(f"mini-{transport}", command,
                                                    where if unix else folder, "", folder, False)
        if shutil.which("nbdkit"):
            where = folder / "nbdkit.sock"
            listen = (["-U", str(where)] if unix
                      else ["-i", "127.0.0.1", "-p", str(PORTS["nbdkit"])])
            command = ["nbdkit", "-f", *listen, "memory", f"{args.size_mib}M"]
            servers["nbdkit", transport] = nbd.Server(f"nbdkit-{transport}", command,
                                                      where if unix else folder, "", folder, False)
    return servers


def listening_ports():
    """The TCP ports that somebody listens at (proc(5), net/tcp: state 0A)."""
    lines = pathlib.Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    sockets = [line.split() for line in lines]
    return {int(words[1].split(":")[1], 16) for words in sockets if words[3] == "0A"}


def wait_for_ports(ports, within_s=30):
    """Waits until somebody listens at each: TCP has no file that says so."""
    end = time.monotonic() + within_s
    while missing := ports - listening_ports():
        if time.monotonic() > end:
            raise SystemExit(f"after {within_s} s nobody listens at {sorted(missing)}")
        time.sleep(0.02)


def subjects(args):
    """What is measured, each with its server; None where there is none."""
    found = [(mode, "bimetal") for mode in (*MODES, FOUR)]
    if args.floor:
        found += [("floor", "mini"), ("floor-one", "mini"), ("ping-pong", None)]
    else:
        print("no --floor: the floor, the ping-pong and the batching client are left out")
    if shutil.which("nbdkit"):
        found += [("nbdkit", "nbdkit")] if args.floor else []
        found += [("nbdkit-fio", "nbdkit")] if shutil.which("fio") else []
    else:
        print("no nbdkit: left out")
    return found


def once(name, cell, args, folder):
    """One run: operations, operations a second and the median latency in microseconds."""
    transport, depth, load = cell
    size = args.size_mib << 20
    server = {"floor": "mini", "floor-one": "mini"}.get(name, "nbdkit")
    socket, port = folder / f"{server}.sock", PORTS[server]
    if name in MODES or name == FOUR:
        command = [str(args.binary.resolve()), "bench", str(folder / "client.toml"),
                   "--device", f"{transport}-{name}", "--rw", load, "--depth", str(depth),
                   "--time", f"{round(args.seconds * 1000)}ms", "--destroy-data", "--json"]
        found = nbd.run_json(command)
        side = found["read" if load == "randread" else "write"]
        return found["operations"], found["operations_per_s"], side["p50_ns"] / 1e3
    if name in ("floor", "floor-one", "nbdkit"):
        address = f"unix:{socket}" if transport == "unix" else f"tcp:{port}"
        batch = "1" if name == "floor-one" else "0"
        command = [str(args.floor.resolve() / "nblast"), address, load, "4096", str(depth), "1",
                   str(args.seconds), str(size), batch]
        found = nbd.run_json(command)
        return found["ios"], found["iops"], found["p50"]
    if name == "nbdkit-fio":
        uri = (f"nbd+unix:///?socket={socket}" if transport == "unix"
               else f"nbd://127.0.0.1:{port}/")
        extra = ["--time_based", f"--runtime={args.seconds}"]
        job = nbd.fio(uri, 1, depth, load, args.size_mib, extra)
        side = job["write" if load == "randwrite" else "read"]
        return side["total_ios"], side["iops"], side["clat_ns"]["percentile"]["50.000000"] / 1e3
    command = [str(args.floor.resolve() / "pp"), transport, "uring", str(depth),
               str(args.seconds), "read" if load == "randread" else "write"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    words = dict(word.split("=", 1) for word in run.stdout.split() if "=" in word)
    iops = float(words["iops"])
    return round(iops * args.seconds), iops, float(words["p50"].removesuffix("us"))


def measure(subject, cell, servers, args, folder):
    """One measurement of one cell."""
    if args.end is not None and time.monotonic() > args.end:
        raise SystemExit("the time is up; the same command goes on from here")
    name, server = subject
    running = servers.get((server, cell[0]))
    before = running.cpu_s() if running else 0
    operations, per_s, p50_us = once(name, cell, args, folder)
    cpu_s = running.cpu_s() - before if running else 0
    return {"subject": name, "transport": cell[0], "depth": cell[1], "rw": cell[2],
            "ops_per_s": per_s, "p50_us": p50_us,
            "server_cpu_s_per_million": cpu_s / operations * 1e6 if running else None,
            "seconds": args.seconds, "size_mib": args.size_mib}


def key(result):
    """The cell of a measurement."""
    return (result["transport"], result["depth"], result["rw"])


def run(args, results):
    """Measures what is missing, in turns, and appends it to the file."""
    todo = []
    found = subjects(args)
    for turn in range(args.rounds):
        for cell in args.cells:
            at = turn % len(found)
            for subject in found[at:] + found[:at]:
                done = sum(key(r) == cell and r["subject"] == subject[0] for r in results)
                if done <= turn:
                    todo.append((cell, subject))
    if not todo:
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bimetal-brp-"))
    servers = {}
    try:
        servers = start(args, folder)
        wait_for_ports({PORTS[server] for server, transport in servers if transport == "tcp"})
        for cell in (("unix", 32, "randwrite"), ("tcp", 32, "randwrite")):
            for subject in found:
                once(subject[0], cell, args, folder)  # every page is there before it counts
        results += nbd.kept(args.out, todo,
                            lambda cell, subject: measure(subject, cell, servers, args, folder),
                            lambda cell, subject, result:
                            f"{subject[0]:13} {cell[0]:4} depth {cell[1]:3} {cell[2]:9}"
                            f" {result['ops_per_s']:9.0f} op/s p50 {result['p50_us']:7.1f} us")
    finally:
        for server in set(servers.values()):
            server.stop()
        shutil.rmtree(folder)


def ratio(cell, figure, ours, other):
    """Our figure over another's, or None where one is missing. Over nobody's it is the figure itself."""
    if ours in cell and other is None:
        return cell[ours].get(figure)
    if ours not in cell or other not in cell or figure not in cell[ours]:
        return None
    return cell[ours][figure] / cell[other][figure]


def print_table(table):
    """One line a cell: thousands of operations a second and the median latency of each."""
    names = [n for n in (*MODES, FOUR, "floor", "floor-one", "nbdkit", "nbdkit-fio", "ping-pong")
             if any(n in cell for cell in table.values())]
    print("\nmedians: thousand op/s (p50 in us)")
    print(f"{'':4} {'depth':>5} {'load':9}" + "".join(f"{n:>16}" for n in names))
    for cell in sorted(table):
        line = f"{cell[0]:4} {cell[1]:5} {cell[2]:9}"
        for name in names:
            found = table[cell].get(name)
            line += (f"{found['ops_per_s'] / 1e3:8.1f} ({found['p50_us']:5.1f})" if found
                     else f"{'-':>16}")
        print(line)


# The bars: what is asked, of which cells, of which of ours, against whom, and the least ratio.
BARS = [
    ("at least 3 times nbdkit with its own client over UNIX at depth 32 and more",
     lambda c: c[0] == "unix" and c[1] >= 32, "adaptive", ("nbdkit-fio",), "ops_per_s", 3.0, True),
    ("at least 2.2 times nbdkit with the batching client over UNIX at depth 32 and more",
     lambda c: c[0] == "unix" and c[1] >= 32, "adaptive", ("nbdkit",), "ops_per_s", 2.2, True),
    ("at least 0.95 of the floor", lambda c: True, "adaptive", ("floor",), "ops_per_s", 0.95, True),
    ("depth 1: median latency at most 1.25 of a ping-pong",
     lambda c: c[1] == 1, "adaptive", ("ping-pong",), "p50_us", 1.25, False),
    ("adaptive never below 0.97 of the best mode",
     lambda c: True, "adaptive", ("merge", "merge-in-turn", "parallel", "short"), "ops_per_s",
     0.97, True),
    ("merging at least 1.3 times BRP-2 at depth 32 and more",
     lambda c: c[1] >= 32, "adaptive", ("parallel",), "ops_per_s", 1.3, True),
    ("server CPU at most 3 s for a million requests at depth 64 over four connections",
     lambda c: c[1] == 64, FOUR, (None,), "server_cpu_s_per_million", 3.0, False),
]


def verdicts(table):
    """One verdict a bar, with its worst cell. A bar without figures is not judged."""
    found = []
    for text, applies, ours, others, figure, limit, at_least in BARS:
        values = [(value, cell, other) for cell in table if applies(cell) for other in others
                  if (value := ratio(table[cell], figure, ours, other)) is not None]
        if not values:
            found.append({"bar": text, "verdict": "not measured"})
            continue
        worst = min(values) if at_least else max(values)
        good = worst[0] >= limit if at_least else worst[0] <= limit
        found.append({"bar": text, "verdict": "holds" if good else "FAILS",
                      "worst_ratio": worst[0], "cell": worst[1], "other": worst[2]})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", type=pathlib.Path, default="target/release/bimetal")
    parser.add_argument("--floor", type=pathlib.Path, help="directory of pp, mini and nblast")
    parser.add_argument("--out", type=pathlib.Path, default="target/bench-brp.jsonl")
    parser.add_argument("--seconds", type=float, default=1, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--only", help="cells as TRANSPORT:DEPTH:LOAD, separated by commas")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--within", type=float, help="stop after so many seconds")
    args = parser.parse_args()
    args.end = time.monotonic() + args.within if args.within is not None else None
    args.cells = [(t, d, rw) for t in TRANSPORTS for d in DEPTHS for rw in LOADS]
    if args.only:
        wanted = [c.split(":") for c in args.only.split(",")]
        args.cells = [(t, int(d), rw) for t, d, rw in wanted]
    if args.fresh:
        args.out.unlink(missing_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # Figures of runs of another length or size are not figures of this one.
    results = [r for r in nbd.load(args.out)
               if r["seconds"] == args.seconds and r["size_mib"] == args.size_mib]
    run(args, results)
    table = nbd.medians(results, key, "subject",
                        ("ops_per_s", "p50_us", "server_cpu_s_per_million"))
    print_table(table)
    cells = [{"transport": c[0], "depth": c[1], "rw": c[2], "subjects": table[c]}
             for c in sorted(table)]

    def where(verdict):
        transport, depth, load = verdict["cell"]
        return f"{verdict['other'] or 'itself'} at {transport}, depth {depth}, {load}"
    return nbd.conclude(args.out, cells, verdicts(table), where)


if __name__ == "__main__":
    sys.exit(main())
