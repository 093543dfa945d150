"""The rebuild of a side under writing clients: its rate, and its effect on the clients.

A mirror of two files with homes is served by NBD, degraded, and written in full; then the other
side returns and is rebuilt while fio writes 4 KiB at random offsets:

    files       both sides are plain files, and a client writes 200 times a second
    disk        one side is an emulated hdd-7200 over its file, with a log so short that these
                writes go round it three times and more during the rebuild
    full        the same disk, and a client that writes all it can, 16 requests at once
    scattered   files; only 4,096 blocks of 4 KiB far from each other are missing, and nobody writes

In the same round the slower device is written sequentially without the mirror, with four requests
of 1 MiB in flight, and the client writes to the complete mirror without a rebuild. The requirements
are half of the sequential rate on files and a quarter on the disk; the floor of 20 MiB/s (or half
of the disk's sequential rate, if that is less) with the client that writes at full rate; half of
the client's rate during a rebuild, and at most 250 ms more for its longest write.

A rebuild reads one side and writes the other. Where both files are on one disk, as without
--fast-dir, that disk does both at the same time, but only writes in the sequential measurement.

    python3 benches rebuild --only files,scattered --rounds 1
"""

import contextlib
import pathlib
import time

from harness import fio, options, processes, programs, servers, tables
from harness.judging import Bar
from harness.suite import Group, Suite

PATIENCE_S = 1200
MIB = 1 << 20
ALONE_S = 20
CASES = {
    "files": {"type": "file", "log": None, "rate": 200, "depth": 8},
    "disk": {"type": "hdd", "log": "8MiB", "rate": 200, "depth": 8},
    "full": {"type": "hdd", "log": "64MiB", "rate": None, "depth": 16},
    "scattered": {"type": "file", "log": None, "rate": 0, "depth": 0},
}
SCATTERED = 4096
FLOOR_BYTES_PER_S = 20 * MIB
IN_SEQUENCE = ["--rw=write", "--bs=1M", "--iodepth=4"]


def share(values):
    """Returns the rate of the rebuild as a share of the sequential rate."""
    return values["rebuild_bytes_per_s"] / values["sequential_bytes_per_s"]


def of_the_floor(values):
    """Returns the rate of the rebuild as a share of the guaranteed minimum."""
    return values["rebuild_bytes_per_s"] / min(FLOOR_BYTES_PER_S,
                                               values["sequential_bytes_per_s"] / 2)


def configuration(folder, fast_folder, case, size):
    """Returns a mirror of two sides, and a device like the slower one beside it."""
    is_hdd = CASES[case]["type"] == "hdd"
    slow, alone = ("below_b", "below_alone") if is_hdd else ("b", "alone")
    emulated = "".join(
        f'[device.{name}]\ntype = "hdd"\nprofile = "hdd-7200"\nbelow = "below_{name}"\n'
        for name in ("b", "alone")) if is_hdd else ""
    log = f'log = "{CASES[case]["log"]}"\n' if CASES[case]["log"] else ""
    files = "".join(
        f'[device.{name}]\ntype = "file"\npath = "{place / name}"\nsize = "{size}"\n'
        for name, place in (("a", fast_folder), (slow, folder), (alone, folder)))
    exports = "".join(servers.export(name, name, f"unix:{folder}/{name}.sock")
                      for name in ("vol", "alone"))
    return (f'[server]\ncontrol = "unix:{folder}/control"\n{files}{emulated}'
            f'[device.vol]\ntype = "mirror"\nsides = ["a", "b"]\nlayout = "home"\n{log}{exports}')


class Volume:
    """The served mirror, with a side that can be removed and returned."""

    def __init__(self, stack, folder, binary, case, text):
        self.stack, self.folder, self.binary = stack, folder, binary
        self.case, self.text = CASES[case], text
        self.slow = folder / ("below_b" if self.case["type"] == "hdd" else "b")
        self.serve([])

    def serve(self, formatted=None):
        """Starts the server."""
        self.server = self.stack.enter_context(
            servers.Bimetal(self.binary, self.folder, self.text, formatted=formatted))

    def stop(self):
        """Ends the server cleanly."""
        self.server.stop(PATIENCE_S, cleanly=True)

    def side(self):
        """Returns the figures of the returned side."""
        return self.server.device()["parts"]["b"]

    def wait_whole(self):
        """Waits until the side is complete and returns its figures."""
        def whole():
            side = self.side()
            return side if side["health"] == "healthy" else None
        return processes.wait_until("the side is whole", whole, PATIENCE_S, 0.1)

    def fio(self, export, *arguments):
        """Starts fio on an export."""
        uri = servers.nbd_uri(self.folder / f"{export}.sock", export)
        return self.stack.enter_context(fio.Background([*fio.nbd(uri), *arguments]))

    def client(self, seconds):
        """Starts the client of the case, for at most this time."""
        paced = [f"--rate_iops={self.case['rate']}"] if self.case["rate"] else []
        return self.fio("vol", "--rw=randwrite", "--bs=4k", f"--iodepth={self.case['depth']}",
                        "--time_based", f"--runtime={seconds}", *paced)

    def lose(self):
        """Removes the slower side and serves without it."""
        self.stop()
        self.slow.rename(self.slow.with_suffix(".away"))
        self.serve()

    def give_back(self):
        """Returns the side to the mirror: the rebuild begins when this call returns."""
        self.stop()
        self.slow.with_suffix(".away").rename(self.slow)
        self.serve()


def client_figures(write, when):
    """Returns the figures of the client."""
    return {f"{when}_writes_per_s": write["iops"],
            f"{when}_longest_ms": write["clat_ns"]["max"] / 1e6}


def measure(volume, case, alone_s):
    """Returns the values of one round of a case."""
    sequential = volume.fio("alone", *IN_SEQUENCE).ended()
    values = {"sequential_bytes_per_s": sequential["bw_bytes"]}
    has_client = CASES[case]["rate"] != 0
    if case == "scattered":
        volume.fio("vol", *IN_SEQUENCE).ended()
    if has_client:
        values.update(client_figures(volume.client(alone_s).ended(), "alone"))
    volume.lose()
    if case == "scattered":
        volume.fio("vol", "--rw=randwrite", "--bs=4k", "--iodepth=16",
                   f"--io_size={SCATTERED * 4096}").ended()
    else:
        volume.fio("vol", *IN_SEQUENCE).ended()
    volume.give_back()
    began, before = time.monotonic(), volume.side()
    client = volume.client(PATIENCE_S) if has_client else None
    side = volume.wait_whole()
    whole_s = time.monotonic() - began
    load_bytes_per_s = 0
    if client:
        client.interrupt()
        write = client.ended()
        values.update(client_figures(write, "beside"))
        load_bytes_per_s = write["bw_bytes"]
    log_bytes = volume.side()["log_bytes"]
    values.update({
        "whole_s": whole_s, "copied_bytes": side["resynced_bytes"],
        "rebuild_bytes_per_s": side["resynced_bytes"] / whole_s,
        # A write of the client occupies the log with its content and a header of the same length.
        "load_log_rounds": 2 * load_bytes_per_s * whole_s / log_bytes,
        "log_rounds": (side["log_written_bytes"] - before["log_written_bytes"]) / log_bytes})
    volume.stop()
    return values


class Rebuild(Suite):
    """A rebuild."""

    name, group = "rebuild", "mirrors"
    line = "how fast a side is rebuilt beside clients, and what these see of it"
    defaults = {"rounds": 3, "dir": "/var/tmp"}
    quick = {"rounds": 1, "size": "128MiB", "alone_seconds": 5.0}
    axes = ("case",)
    headline = ("whole_s", "rebuild_bytes_per_s")
    bars = [
        Bar("files: rate of the rebuild, of that in sequence", share, at_least=0.5,
            applies=lambda c: c["case"] == "files"),
        Bar("disk: rate of the rebuild, of that in sequence", share, at_least=0.25,
            applies=lambda c: c["case"] == "disk"),
        Bar("full: rate of the rebuild, of the floor", of_the_floor, at_least=1,
            applies=lambda c: c["case"] == "full"),
        Bar("rate of the client, of that without a rebuild",
            lambda v: v["beside_writes_per_s"] / v["alone_writes_per_s"], at_least=0.5,
            applies=lambda c: c["case"] != "scattered"),
        Bar("longest write of the client, ms more than without a rebuild",
            lambda v: v["beside_longest_ms"] - v["alone_longest_ms"], at_most=250,
            applies=lambda c: c["case"] != "scattered"),
        Bar("scattered: s until it is whole", "whole_s", at_most=2,
            applies=lambda c: c["case"] == "scattered"),
    ]

    def add_options(self, parser):
        parser.add_argument("--size", help="size of each side, as 957MiB, which is the default")
        parser.add_argument("--alone-seconds", type=float,
                            help=f"length of the client's run without a rebuild ({ALONE_S})")
        parser.add_argument("--fast-dir", type=pathlib.Path,
                            help="folder of the faster sides, if elsewhere")

    def missing(self, _args):
        return processes.missing("fio")

    def groups(self, args):
        args.size = args.size or "957MiB"
        args.alone_seconds = args.alone_seconds or ALONE_S
        where = {"fast_dir": str(args.fast_dir)} if args.fast_dir else {}
        cells = [{"case": case, "size": args.size, "alone_s": args.alone_seconds, **where}
                 for case in CASES]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, ["bimetal"], lambda: self.session(args))]

    def order(self, cell):
        return list(CASES).index(cell["case"])

    @contextlib.contextmanager
    def session(self, args):
        """Every measurement has its own folders and its own server."""
        def one_round(cell, _subject, _turn):
            with processes.scratch("rebuild", args.dir) as folder, \
                    processes.scratch("rebuild", args.fast_dir or args.dir) as fast_folder, \
                    contextlib.ExitStack() as stack:
                text = configuration(folder, fast_folder, cell["case"], cell["size"])
                volume = Volume(stack, folder, programs.server(args), cell["case"], text)
                return measure(volume, cell["case"], cell["alone_s"])
        yield one_round

    def tables(self, summary):
        def millions(figure):
            return lambda values: values[figure] / 1e6

        found = tables.long(
            summary, "a rebuild beside clients", [("case", lambda c: c["case"])],
            [("in sequence MB/s", millions("sequential_bytes_per_s"), "{:.1f}"),
             ("rebuild MB/s", millions("rebuild_bytes_per_s"), "{:.1f}"),
             ("share", share, "{:.2f}"), ("whole after s", "whole_s", "{:.1f}"),
             ("load, times the log", "load_log_rounds", "{:.1f}"),
             ("logged, times the log", "log_rounds", "{:.1f}"),
             ("client alone 1/s", "alone_writes_per_s", "{:.0f}"),
             ("beside 1/s", "beside_writes_per_s", "{:.0f}"),
             ("longest alone ms", "alone_longest_ms", "{:,.1f}"),
             ("beside ms", "beside_longest_ms", "{:,.1f}")])
        return {"": found.without("subject")}


SUITE = Rebuild()
