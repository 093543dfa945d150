"""BRP compared with a minimal server, its peers and its own modes: 4 KiB at random on a memory
device.

Measured are operations a second, median latency and server CPU time over UNIX sockets and TCP at
depth 1 to 128, of these subjects:

    adaptive, merge, merge-in-turn, parallel, short
                `bimetal bench` on a `brp` device in that mode, against `bimetal serve`: ours,
                BRP-3T with parallel and with serial handling of a jumbo command, BRP-2 and BRP-1
    adaptive-4  the first over four connections
    floor       a server of a hundred lines and a client that batches, both in C, over NBD
    floor-one   the same with one request to a send
    nbdkit      nbdkit's memory plugin with the same client, and with fio's libnbd: nbdkit-fio
    ping-pong   bare bytes of the same sizes with nothing behind them

The programs in C are built beforehand, in a folder that holds their sources:

    gcc -O2 -o DIR/pp pp.c -luring && gcc -O2 -o DIR/mini mini.c -luring -lpthread
    gcc -O2 -o DIR/nblast nblast.c -lpthread
    chrt -r 1 python3 benches brp --floor DIR --rounds 3 --seconds 0.4

Without --floor, the subjects that need them are omitted.
"""

import contextlib
import pathlib

from harness import fio, options, processes, programs, servers, tables
from harness.judging import Bar
from harness.suite import Group, Suite

MODES = ("adaptive", "merge", "merge-in-turn", "parallel", "short")
FOUR = "adaptive-4"
TRANSPORTS = ("unix", "tcp")
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
LOADS = ("randread", "randwrite")
PORTS = {"bimetal": 18210, "mini": 18211, "nbdkit": 18212}
SERVED_BY = {**{mode: "bimetal" for mode in (*MODES, FOUR)}, "floor": "mini", "floor-one": "mini",
             "nbdkit": "nbdkit", "nbdkit-fio": "nbdkit", "ping-pong": None}
NEEDS_FLOOR = ("floor", "floor-one", "ping-pong", "nbdkit")
CPU = "server_cpu_us_per_op"
# The order on the page, with the titles of the columns.
SHOWN = [("adaptive", "ours"), ("floor", "floor"), ("nbdkit", "nbdkit, batching"),
         ("nbdkit-fio", "nbdkit, fio"), ("short", "BRP-1"), ("parallel", "BRP-2"),
         ("merge-in-turn", "BRP-3T, in turn"), ("merge", "BRP-3T"), (FOUR, "ours, 4 connections"),
         ("floor-one", "floor, one by one"), ("ping-pong", "ping-pong")]


def is_deep_unix(cell):
    return cell["transport"] == "unix" and cell["depth"] >= 32


BARS = [
    Bar("over UNIX at depth 32 and more: op/s of nbdkit with fio", "ops_per_s", "adaptive",
        ("nbdkit-fio",), at_least=3.0, applies=is_deep_unix),
    Bar("over UNIX at depth 32 and more: op/s of nbdkit with the batching client", "ops_per_s",
        "adaptive", ("nbdkit",), at_least=2.2, applies=is_deep_unix),
    Bar("op/s of the floor", "ops_per_s", "adaptive", ("floor",), at_least=0.95),
    Bar("depth 1: median latency of a ping-pong's", "p50_us", "adaptive", ("ping-pong",),
        at_most=1.25, applies=lambda c: c["depth"] == 1),
    Bar("op/s of the best mode", "ops_per_s", "adaptive", MODES[1:], at_least=0.97),
    Bar("depth 32 and more: op/s of BRP-2", "ops_per_s", "adaptive", ("parallel",), at_least=1.3,
        applies=lambda c: c["depth"] >= 32),
    Bar("depth 64 over four connections: server CPU us an operation", CPU, FOUR, at_most=3.0,
        applies=lambda c: c["depth"] == 64),
]


def configure(folder, size_mib):
    """Returns the configuration of the server, and writes that of the clients."""
    server = [f'[device.vol]\ntype = "memory"\nsize = "{size_mib}MiB"\n',
              "[server]\nlock_memory = false\n"]
    client = []
    for transport in TRANSPORTS:
        address = (f"unix:{folder}/bimetal.sock" if transport == "unix"
                   else f"tcp:127.0.0.1:{PORTS['bimetal']}")
        server.append(servers.export(transport, "vol", address, "brp"))
        kinds = [(mode, f'mode = "{mode}"') for mode in MODES] + [(FOUR, "connections = 4")]
        client += [f'[device.{transport}-{name}]\ntype = "brp"\naddress = "{address}"\n'
                   f'{line}\nkeep = "0B"\n' for name, line in kinds]
    (folder / "client.toml").write_text("\n".join(client), encoding="utf-8")
    return "\n".join(server)


def serve(args, folder):
    """Starts bimetal with a device for BRP, over both transports."""
    text = configure(folder, args.size_mib)
    return servers.Bimetal(programs.server(args), folder, text, formatted=None,
                           socket="bimetal.sock")


def bench(name, cell, binary, folder):
    """Runs our client once; returns operations, their rate and the median latency."""
    command = [binary, "bench", folder / "client.toml", "--device", f"{cell['transport']}-{name}",
               "--rw", cell["rw"], "--depth", cell["depth"],
               "--time", f"{round(cell['seconds'] * 1000)}ms", "--destroy-data", "--json"]
    found = processes.run_json(command)
    side = fio.side(found, cell["rw"])
    return {"ops": found["operations"], "ops_per_s": found["operations_per_s"],
            "p50_us": side["p50_ns"] / 1e3}


def blast(name, cell, floor, folder):
    """The same for the batching client in C."""
    server = SERVED_BY[name]
    address = (f"unix:{folder}/{server}.sock" if cell["transport"] == "unix"
               else f"tcp:{PORTS[server]}")
    found = processes.run_json([floor / "nblast", address, cell["rw"], 4096, cell["depth"], 1,
                                cell["seconds"], cell["size_mib"] << 20,
                                1 if name == "floor-one" else 0])
    return {"ops": found["ios"], "ops_per_s": found["iops"], "p50_us": found["p50"]}


def by_fio(cell, folder):
    """The same for fio with nbdkit."""
    uri = (servers.nbd_uri(folder / "nbdkit.sock") if cell["transport"] == "unix"
           else f"nbd://127.0.0.1:{PORTS['nbdkit']}/")
    extra = ["--time_based", f"--runtime={cell['seconds']}"]
    job = fio.spread_over(fio.nbd(uri), 1, cell["depth"], cell["rw"], cell["size_mib"], extra)
    side = fio.side(job, cell["rw"])
    return {"ops": side["total_ios"], "ops_per_s": side["iops"],
            "p50_us": side["clat_ns"]["percentile"]["50.000000"] / 1e3}


def ping_pong(cell, floor):
    """The same for the bare ping-pong."""
    text = processes.run([floor / "pp", cell["transport"], "uring", cell["depth"], cell["seconds"],
                          "read" if cell["rw"] == "randread" else "write"])
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    rate = float(words["iops"])
    return {"ops": round(rate * cell["seconds"]), "ops_per_s": rate,
            "p50_us": float(words["p50"].removesuffix("us"))}


def start_peers(args, folder, names, stack):
    """Starts the servers of other projects; returns them by (name, transport)."""
    found = {}
    for transport in TRANSPORTS:
        unix = transport == "unix"
        if "mini" in names:
            where = [folder / "mini.sock" if unix else PORTS["mini"]]
            found["mini", transport] = [args.floor.resolve() / "mini", *where,
                                        f"mem:{args.size_mib << 20}"]
        if "nbdkit" in names:
            where = (["-U", folder / "nbdkit.sock"] if unix
                     else ["-i", "127.0.0.1", "-p", PORTS["nbdkit"]])
            found["nbdkit", transport] = ["nbdkit", "-f", *where, "memory", f"{args.size_mib}M"]
    for (name, transport), command in list(found.items()):
        process = stack.enter_context(processes.Process(f"{name}-{transport}", command, folder))
        if transport == "unix":
            process.await_socket(folder / f"{name}.sock")
        else:
            process.await_ports(PORTS[name])
        found[name, transport] = process
    return found


class Brp(Suite):
    """BRP."""

    name, group = "brp", "network"
    line = "BRP beside its floor, nbdkit and its own modes"
    defaults = {"rounds": 5, "seconds": 1.0}
    quick = {"rounds": 3, "seconds": 0.3}
    axes = ("transport", "depth", "rw")
    headline = ("ops_per_s", "p50_us")
    bars = BARS

    def add_options(self, parser):
        parser.add_argument("--floor", type=pathlib.Path, help="folder of pp, mini and nblast")
        parser.add_argument("--size-mib", type=int, default=256, help="of the device")

    def missing(self, args):
        absent = [name for name in ("pp", "mini", "nblast")
                  if args.floor and not (args.floor / name).is_file()]
        return f"{args.floor} has no {', '.join(absent)}; see --help" if absent else None

    def subjects(self, args):
        """Returns what can be measured."""
        without = set() if args.floor else set(NEEDS_FLOOR)
        if processes.missing("nbdkit"):
            without |= {"nbdkit", "nbdkit-fio"}
        if processes.missing("fio"):
            without.add("nbdkit-fio")
        return [name for name in SERVED_BY if name not in without]

    def groups(self, args):
        def make(transport, depth, rw):
            return {"transport": transport, "depth": int(depth), "rw": rw,
                    "seconds": args.seconds, "size_mib": args.size_mib}

        cells = [make(transport, depth, rw)
                 for transport in TRANSPORTS for depth in DEPTHS for rw in LOADS]
        cells = options.chosen(cells, args.only, self.axes,
                               lambda parts: make(*parts) if len(parts) == 3 else None)
        subjects = self.subjects(args)
        return [Group(cells, subjects, lambda: self.session(args, subjects))]

    def order(self, cell):
        return TRANSPORTS.index(cell["transport"]), cell["rw"], cell["depth"]

    @contextlib.contextmanager
    def session(self, args, subjects):
        """All servers, with every page allocated."""
        names = {SERVED_BY[subject] for subject in subjects}
        with processes.scratch("brp") as folder, contextlib.ExitStack() as stack:
            bimetal = stack.enter_context(serve(args, folder))
            bimetal.await_ports(PORTS["bimetal"])
            running = {("bimetal", transport): bimetal for transport in TRANSPORTS}
            running.update(start_peers(args, folder, names, stack))
            for transport in TRANSPORTS:
                filling = {"transport": transport, "depth": 32, "rw": "randwrite",
                           "seconds": args.seconds, "size_mib": args.size_mib}
                for subject in subjects:
                    self.once(subject, filling, args, folder)
            yield lambda cell, subject, _turn: self.measure(
                subject, cell, running.get((SERVED_BY[subject], cell["transport"])), args, folder)

    @staticmethod
    def once(subject, cell, args, folder):
        """Runs a client once."""
        if SERVED_BY[subject] == "bimetal":
            return bench(subject, cell, programs.server(args), folder)
        if subject == "nbdkit-fio":
            return by_fio(cell, folder)
        floor = args.floor.resolve()
        return ping_pong(cell, floor) if subject == "ping-pong" else blast(subject, cell, floor,
                                                                           folder)

    def measure(self, subject, cell, server, args, folder):
        """Returns the values of one measurement."""
        before = server.cpu_s() if server else 0
        values = self.once(subject, cell, args, folder)
        if server:
            values[CPU] = (server.cpu_s() - before) / values["ops"] * 1e6
        return values

    def tables(self, summary):
        there = summary.subjects()
        shown = [(name, title) for name, title in SHOWN if name in there]
        wide, latencies = [], []
        for cell in summary.cells():
            place = [f"{'reads' if cell['rw'] == 'randread' else 'writes'}, "
                     f"{cell['transport'].upper()}", str(cell["depth"])]
            rates = [summary.median(cell, name, "ops_per_s") for name, _ in shown]
            wide.append([*place, *(tables.number(r and r / 1e3, "{:.0f}") for r in rates)])
            latencies.append([*place, *(tables.number(summary.median(cell, name, "p50_us"))
                                        for name, _ in shown)])
        titles = [title for _, title in shown]
        return {"": tables.Table("thousand operations a second",
                                 ["thousand op/s", "depth", *titles], wide),
                "latency": tables.Table("median latency",
                                        ["p50 us", "depth", *titles], latencies)}


SUITE = Brp()
