"""NBD over a UNIX socket: 4 KiB random reads and writes on a memory device, compared with other
servers.

Measured are operations a second and the server's CPU time, by fio's nbd engine, for bimetal (a
`memory` device), nbdkit (its memory plugin) and qemu-nbd (a file on tmpfs). The depth is the sum
over one or four connections. The servers run side by side and idle while another is measured. CPU
time is that of the whole process, ended threads and children included.

`--servers bimetal,threads` compares bimetal with and without io_uring (`driver = "threads"`).

With `--file FOLDER` the device is a file in that folder, accessed by direct I/O. bimetal and
qemu-nbd each serve their own file, and fio reads and writes a third file directly, by io_uring with
registered buffers (`raw`). The depths are large enough to keep a device busy.

    python3 benches nbd --rounds 3 --seconds 1.2
    python3 benches nbd --file /var/tmp --only 1:32:randread
"""

import contextlib
import pathlib

from harness import devices, fio, options, processes, servers, tables
from harness.judging import Bar
from harness.suite import Group, Suite

SERVERS = ("bimetal", "nbdkit", "qemu-nbd")
# The driver of each of our servers.
OURS = {"bimetal": "uring", "threads": "threads"}
FILE_SERVERS = ("bimetal", "qemu-nbd", "raw")
DEPTHS, FILE_DEPTHS = (1, 16, 64, 128), (32, 64, 128)
LOADS = ("randread", "randwrite")
PROGRAMS = {"nbdkit": "nbdkit", "qemu-nbd": "qemu-nbd"}
CPU = "server_cpu_us_per_op"
BARS = [
    Bar("four connections, depth 16 and more, reads: op/s of nbdkit's", "ops_per_s",
        bases=("nbdkit",), at_least=1.7,
        applies=lambda c: c["conns"] == 4 and c["depth"] >= 16 and c["rw"] == "randread"),
    Bar("four connections, depth 16 and more, writes: op/s of nbdkit's", "ops_per_s",
        bases=("nbdkit",), at_least=1.2,
        applies=lambda c: c["conns"] == 4 and c["depth"] >= 16 and c["rw"] == "randwrite"),
    Bar("one connection, depth 1: op/s of nbdkit's", "ops_per_s", bases=("nbdkit",), at_least=1.3,
        applies=lambda c: c["conns"] == 1 and c["depth"] == 1),
    Bar("one connection, deeper: op/s of nbdkit's", "ops_per_s", bases=("nbdkit",), at_least=0.9,
        applies=lambda c: c["conns"] == 1 and c["depth"] > 1),
    Bar("one connection, deeper: server CPU of an operation, of nbdkit's", CPU, bases=("nbdkit",),
        at_most=1.0, applies=lambda c: c["conns"] == 1 and c["depth"] > 1),
    Bar("a file, depth 32 and more: op/s of raw io_uring", "ops_per_s", bases=("raw",),
        at_least=0.85, applies=lambda c: c["variant"] == "file" and c["depth"] >= 32),
]


class Target:
    """A server with its device, or a file without a server, with the same load of fio."""

    def __init__(self, engine, server=None):
        self.engine, self.server = engine, server

    def cpu_s(self):
        """Returns the server's CPU time, which is none for a bare file."""
        return self.server.cpu_s() if self.server else 0.0


def start(stack, name, args, folder, place=None):
    """Starts the server called `name` with a device of args.size_mib: memory, or a file."""
    if name == "nbdkit":
        server = servers.nbdkit(folder, args.size_mib)
    elif name in OURS and not place:
        server = servers.memory(args.binary.resolve(), folder, args.size_mib, name, OURS[name])
    else:
        image = devices.allocated(stack.enter_context(
            processes.scratch("nbd", place or args.tmpfs)) / f"{name}.img", args.size_mib << 20)
        if name == "raw":
            return Target(fio.io_uring(image))
        if name in OURS:
            server = servers.file(args.binary.resolve(), folder, image, args.size_mib, name,
                                  OURS[name])
        else:
            how = (["--cache=none", "--aio=io_uring"] if place
                   else ["--cache=writeback", "--aio=threads"])
            server = servers.qemu_nbd(folder, image, how)
    stack.enter_context(server)
    return Target(fio.nbd(server.uri()), server)


def measure(target, cell):
    """Returns the values of one measurement."""
    before = target.cpu_s()
    job = fio.spread_over(target.engine, cell["conns"], cell["depth"], cell["rw"],
                          cell["size_mib"], ["--time_based", f"--runtime={cell['seconds']}"])
    cpu_s = target.cpu_s() - before
    side = fio.side(job, cell["rw"])
    at = side["clat_ns"]["percentile"]
    return {"ops_per_s": side["iops"], CPU: cpu_s / side["total_ios"] * 1e6,
            "ops": side["total_ios"], "p50_us": at["50.000000"] / 1e3,
            "p99_us": at["99.000000"] / 1e3, "p999_us": at[fio.P999] / 1e3}


class Nbd(Suite):
    """NBD beside nbdkit, qemu-nbd and fio."""

    name, group = "nbd", "network"
    line = "NBD beside nbdkit and qemu-nbd, or a file beside io_uring itself"
    defaults = {"rounds": 5, "seconds": 4.0}
    quick = {"rounds": 3, "seconds": 1.0}
    axes = ("conns", "depth", "rw")
    headline = ("ops_per_s", CPU)
    bars = BARS

    def add_options(self, parser):
        parser.add_argument("--size-mib", type=int, default=1024, help="of the device")
        parser.add_argument("--tmpfs", default="/dev/shm", help="folder of qemu-nbd's file")
        parser.add_argument("--file", type=pathlib.Path, metavar="FOLDER",
                            help="measure a file in this folder, with direct I/O")
        parser.add_argument("--servers", type=options.words, help="servers, between commas")

    def servers(self, args):
        """Returns the requested servers."""
        return args.servers or list(FILE_SERVERS if args.file else SERVERS)

    def missing(self, args):
        programs = [PROGRAMS[name] for name in self.servers(args) if name in PROGRAMS]
        return processes.missing("fio", *programs)

    def groups(self, args):
        subjects = self.servers(args)
        variant = "file" if args.file else "threads" if "threads" in subjects else ""

        def make(conns, depth, rw):
            return {"conns": int(conns), "depth": int(depth), "rw": rw, "seconds": args.seconds,
                    "size_mib": args.size_mib, "variant": variant}

        cells = [make(conns, depth, rw) for conns in (1, 4)
                 for depth in (FILE_DEPTHS if args.file else DEPTHS) for rw in LOADS
                 if depth >= conns]
        cells = options.chosen(cells, args.only, self.axes,
                               lambda parts: make(*parts) if len(parts) == 3 else None)
        return [Group(cells, subjects, lambda: self.session(args, subjects))]

    @contextlib.contextmanager
    def session(self, args, subjects):
        """All servers, filled."""
        with processes.scratch("nbd") as folder, contextlib.ExitStack() as stack:
            targets = {name: start(stack, name, args, folder, args.file) for name in subjects}
            for target in targets.values():
                fio.fill(target.engine, args.size_mib)
            yield lambda cell, subject, _turn: measure(targets[subject], cell)

    def tables(self, summary):
        names = [n for n in ("bimetal", "threads", "nbdkit", "qemu-nbd", "raw")
                 if n in summary.subjects()]
        peers = [name for name in names if name != "bimetal"]
        head = ["conns", "depth", "load", *(f"{name} (CPU)" for name in names)]
        head += [title for peer in peers for title in (f"op/s : {peer}", "CPU")]
        rows = []
        for cell in summary.cells():
            row = [str(cell[axis]) for axis in self.axes]
            for name in names:
                rate, cpu_us = (summary.median(cell, name, f) for f in ("ops_per_s", CPU))
                row.append("-" if rate is None else f"{rate:,.0f} ({cpu_us:.2f})")
            for peer in peers:
                row += [tables.number(summary.ratio(cell, "bimetal", peer, figure), "{:.2f}")
                        for figure in ("ops_per_s", CPU)]
            rows.append(row)
        title = "operations a second (server CPU us an operation)"
        return {"": tables.Table(title, head, rows)}


SUITE = Nbd()
