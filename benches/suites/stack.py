"""The cost of the layers: a file under stripe, passthrough and stats, compared with fio on the same
file.

`bimetal bench` drives the stack, and the file alone, in process; fio uses io_uring with direct I/O,
fixed buffers and registered files; 4 KiB at random, depth 32. Passthrough stands for the queue. The
requirement is 0.90 of fio's operations a second.

    python3 benches stack --rounds 7 --seconds 3
"""

import contextlib
import os

from harness import fio, options, processes, programs, tables
from harness.judging import Bar
from harness.suite import Group, Suite

SIZE_BYTES = 1 << 30
DEPTH = 32
SUBJECTS = ["fio", "file", "stack"]
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


def make_file(path):
    """Creates a file with allocated space, because reads of holes do not reach the device."""
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(SIZE_BYTES // len(block)):
            file.write(block)
        os.fsync(file.fileno())


def bimetal(binary, folder, cell, device):
    """Returns the values of one run in process."""
    command = [binary, "bench", folder / "stack.toml", "--device", device, "--rw", cell["rw"],
               "--depth", DEPTH, "--time", f"{round(cell['seconds'] * 1000)}ms", "--json"]
    if cell["rw"] != "randread":
        command.append("--destroy-data")
    found = processes.run_json(command)
    return {"ops_per_s": found["operations_per_s"],
            "cpu_us_per_op": found["cpu_ns_per_operation"] / 1e3}


def raw(folder, cell):
    """Returns the values of one run of fio."""
    job = fio.run([*fio.io_uring(folder / "data.img"), f"--rw={cell['rw']}", "--bs=4k",
                   f"--iodepth={DEPTH}", "--time_based", f"--runtime={cell['seconds']}",
                   "--norandommap"])
    side = fio.side(job, cell["rw"])
    busy_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return {"ops_per_s": side["iops"], "cpu_us_per_op": busy_s / max(side["total_ios"], 1) * 1e6}


class Stack(Suite):
    """The layers."""

    name, group = "stack", "devices"
    line = "what the layers cost, beside fio on the same file"
    defaults = {"rounds": 7, "seconds": 3.0, "dir": "/var/tmp"}
    quick = {"rounds": 2, "seconds": 1.0}
    axes = ("rw",)
    headline = ("ops_per_s", "cpu_us_per_op")
    bars = [Bar("op/s of fio on io_uring", "ops_per_s", "stack", ("fio",), at_least=0.90)]

    def missing(self, _args):
        return processes.missing("fio")

    def groups(self, args):
        cells = [{"rw": rw, "seconds": args.seconds} for rw in ("randread", "randwrite")]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, SUBJECTS, lambda: self.session(args))]

    @contextlib.contextmanager
    def session(self, args):
        """The file and the configuration."""
        with processes.scratch("stack", args.dir) as folder:
            make_file(folder / "data.img")
            (folder / "stack.toml").write_text(CONFIG, encoding="ascii")
            yield lambda cell, subject, _turn: (
                raw(folder, cell) if subject == "fio"
                else bimetal(programs.server(args), folder, cell, subject))

    def tables(self, summary):
        found = tables.long(summary, f"4 KiB, depth {DEPTH}", [("load", lambda c: c["rw"])],
                            [("op/s", "ops_per_s", "{:,.0f}"),
                             ("CPU us/op", "cpu_us_per_op", "{:.2f}")],
                            [("op/s of fio", "ops_per_s", "fio")], SUBJECTS)
        found.head.insert(3, "from, to")
        for row in found.rows:
            cell = next(cell for cell in summary.cells() if cell["rw"] == row[0])
            low, high = summary.spread(cell, row[1], "ops_per_s")
            row.insert(3, f"{low:,.0f} .. {high:,.0f}")
        return {"": found}


SUITE = Stack()
