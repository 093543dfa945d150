"""Depth 1 at ordinary priority: NBD and BRP on a quiet machine and beside one busy process.

Measured are 4 KiB random reads from a memory device over a UNIX socket: of bimetal (`nbd`) and
nbdkit by fio's nbd engine, of bimetal by BRP, and of a bare ping-pong of the same sizes between two
processes, whose server sleeps (`pp-sleep`) or busy-polls (`pp-poll`). Each round measures all of
them first alone and then beside one process that computes. The servers run all the time, so the
server keeps what it has adapted to in earlier runs. The last measurement is the server's CPU time
without a client, with an idle client, and at 100 operations a second.

It must run at ordinary priority and refuses any other. The process that computes has the priority
of the others.

    python3 benches depth-one --rounds 10 --seconds 0.8 --idle-within 60
"""

import contextlib
import multiprocessing
import pathlib
import signal
import socket
import subprocess
import sys
import time

from harness import fio, host, options, processes, programs, tables
from harness.judging import Bar
from harness.suite import Group, Suite
from suites import brp, nbd

REQUEST_BYTES, REPLY_BYTES = 28, 4112
SUBJECTS = ["nbd", "nbdkit", "brp", "pp-sleep", "pp-poll"]
IDLE = ("no client", "silent client", "100 op/s")
CPU = "cpu_percent"


def receive(end, count, polls):
    """Receives this number of bytes, busy-polling or asleep; returns false if the peer has
    closed."""
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
    """Returns round trips a second of bare bytes between two processes; the client sleeps."""
    ours, theirs = socket.socketpair()
    child = multiprocessing.Process(target=answer, args=(theirs, ours, server_polls))
    child.start()
    theirs.close()
    count, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        ours.sendall(bytes(REQUEST_BYTES))
        receive(ours, REPLY_BYTES, False)
        count += 1
    elapsed_s = time.monotonic() - began
    ours.close()
    child.join()
    return count / elapsed_s


def idle_share(seconds=0.5):
    """Returns the share of the processors' time that is idle (proc(5), stat: words 4 and 5)."""
    def sample():
        words = pathlib.Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
        return sum(map(int, words)), int(words[3]) + int(words[4])
    before = sample()
    time.sleep(seconds)
    after = sample()
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


def wait_until_idle(within_s):
    """Waits until nothing else runs, for at most this time; prints a line if the machine stays
    busy."""
    end = time.monotonic() + within_s
    while idle_share() < 0.95:
        if time.monotonic() > end:
            print("the next round is measured beside other work", file=sys.stderr, flush=True)
            return
        time.sleep(1)


class Neighbour:
    """A process that computes during the busy half of a round."""

    def __init__(self, idle_within_s):
        self.idle_within_s, self.half, self.process = idle_within_s, None, None

    def enter(self, half, busy):
        """Begins a half of a round, unless that half is already running."""
        if half == self.half:
            return
        self.leave()
        if self.idle_within_s:
            wait_until_idle(self.idle_within_s)
        self.half = half
        if busy:
            self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])

    def leave(self):
        """Ends the process, if there is one."""
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process, self.half = None, None


class DepthOne(Suite):
    """One request at a time."""

    name, group = "depth-one", "network"
    line = "depth 1 at ordinary priority: NBD, BRP and a bare ping-pong"
    defaults = {"rounds": 10, "seconds": 2.0}
    quick = {"rounds": 2, "seconds": 0.5, "idle_seconds": 1.0}
    axes = ("beside",)
    headline = ("ops_per_s", CPU)
    bars = [
        Bar("quiet: nbd of nbdkit's op/s, in nine rounds of ten", "ops_per_s", "nbd", ("nbdkit",),
            at_least=1.3, applies=lambda c: c["beside"] == "quiet", in_nine_of_ten=True),
        Bar("beside a busy process: nbd of nbdkit's op/s, in nine rounds of ten", "ops_per_s",
            "nbd", ("nbdkit",), at_least=1.0, applies=lambda c: c["beside"] == "busy",
            in_nine_of_ten=True),
        Bar("idle: percent of one core", CPU, "nbd", at_most=0.5,
            applies=lambda c: c["beside"] in IDLE[:2]),
        Bar("at 100 operations a second: percent of one core", CPU, "nbd", at_most=3,
            applies=lambda c: c["beside"] == IDLE[2]),
    ]

    def add_options(self, parser):
        parser.add_argument("--idle-seconds", type=float,
                            help="length of a measurement of an idle server (default: 5)")
        parser.add_argument("--idle-within", type=float, default=0, metavar="SECONDS",
                            help="wait at most this long before each half for an idle machine")
        parser.add_argument("--size-mib", type=int, default=256, help="of the device")

    def missing(self, args):
        if not (priority := host.priority()).startswith("SCHED_OTHER"):
            return f"this measures at ordinary priority, not at {priority}: start it without chrt"
        return processes.missing("fio", "nbdkit")

    def order(self, cell):
        return ("quiet", "busy", *IDLE).index(cell["beside"])

    def groups(self, args):
        args.idle_seconds = args.idle_seconds or 5.0
        cells = [{"beside": beside, "seconds": args.seconds, "size_mib": args.size_mib}
                 for beside in ("quiet", "busy")]
        # In the last round only, because it measures a server that has been running for a while.
        cells += [{"beside": beside, "seconds": args.idle_seconds, "size_mib": args.size_mib}
                  for beside in IDLE]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, SUBJECTS, lambda: self.session(args), applies=lambda turn, cell, name:
                      cell["beside"] not in IDLE or turn == args.rounds - 1 and name == "nbd")]

    @contextlib.contextmanager
    def session(self, args):
        """The servers, filled, and the neighbour."""
        with processes.scratch("depth-one") as folder, contextlib.ExitStack() as stack:
            targets = {}
            for name, server in (("nbd", "bimetal"), ("nbdkit", "nbdkit")):
                targets[name] = nbd.start(stack, server, args, folder)
                fio.fill(targets[name].engine, args.size_mib)
            brp_folder = folder / "brp"
            brp_folder.mkdir()
            stack.enter_context(brp.serve(args, brp_folder))
            neighbour = Neighbour(args.idle_within)
            stack.callback(neighbour.leave)

            def measure(cell, subject, turn):
                if cell["beside"] in IDLE:
                    neighbour.leave()
                    return {CPU: idle_percent(targets["nbd"], cell)}
                neighbour.enter((turn, cell["beside"]), cell["beside"] == "busy")
                return {"ops_per_s": rate(subject, cell, targets, args, brp_folder)}
            yield measure

    def tables(self, summary):
        rows, cells = [], [c for c in summary.cells() if c["beside"] not in IDLE]
        for cell in cells:
            found = {name: summary.values(cell, name, "ops_per_s") for name in SUBJECTS}
            for at in sorted(found["nbd"]):
                rows.append(self.row(f"{at[0] + 1} {cell['beside']}", [
                    found[name].get(at) for name in SUBJECTS]))
            rows.append(self.row(f"median {cell['beside']}", [
                summary.median(cell, name, "ops_per_s") for name in SUBJECTS],
                summary.ratio(cell, "nbd", "nbdkit", "ops_per_s")))
        found = {"": tables.Table("thousand operations a second",
                                  ["round", *SUBJECTS, "nbd : nbdkit"], rows)}
        idle = [cell for cell in summary.cells() if cell["beside"] in IDLE]
        if idle:
            found["idle"] = tables.Table("the server's share of one core", ["client", "%"], [
                [cell["beside"], tables.number(summary.median(cell, "nbd", CPU), "{:.1f}")]
                for cell in idle])
        return found

    @staticmethod
    def row(title, rates, ratio=None):
        """Returns one line of the table."""
        if ratio is None and rates[0] and rates[1]:
            ratio = rates[0] / rates[1]
        return [title, *(tables.number(rate and rate / 1e3, "{:.1f}") for rate in rates),
                tables.number(ratio, "{:.2f}")]


def rate(subject, cell, targets, args, brp_folder):
    """Returns operations a second of one measurement."""
    if subject.startswith("pp"):
        return ping_pong(subject == "pp-poll", cell["seconds"])
    if subject == "brp":
        place = {"transport": "unix", "depth": 1, "rw": "randread", **cell}
        return brp.bench("adaptive", place, programs.server(args), brp_folder)["ops_per_s"]
    place = {"conns": 1, "depth": 1, "rw": "randread", **cell}
    return nbd.measure(targets[subject], place)["ops_per_s"]


def idle_percent(target, cell):
    """Returns the server's CPU time in percent of one core, at low load."""
    seconds = cell["seconds"]
    before, began = target.cpu_s(), time.monotonic()
    if cell["beside"] == "no client":
        time.sleep(seconds)
    elif cell["beside"] == "silent client":
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(target.server.socket))
            before, began = target.cpu_s(), time.monotonic()
            time.sleep(seconds)
    else:
        fio.spread_over(target.engine, 1, 1, "randread", cell["size_mib"],
                        ["--time_based", f"--runtime={seconds}", "--rate_iops=100"])
    return (target.cpu_s() - before) / (time.monotonic() - began) * 100


SUITE = DepthOne()
