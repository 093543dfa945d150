"""The cost of the size of a volume: a mirror of two sparse files with homes, for each size in turn.

Measured are the duration of `format` and the bytes that it writes to both files together (their
allocated space), and the first open, from the start of `serve` to `ready`. Then one block is
written at the start and one at the end of the volume and flushed, and the server is killed.
Measured are the next open, the resident memory of that server with `memory = "16MiB"` and its peak,
and the duration of `scrub` and the bytes that it reports to have read from both sides.

The file system of --dir must allow files of that size: the limit of ext4 is 16 TiB, those of XFS
and btrfs are higher.

    python3 benches large --sizes 1GiB,1TiB --dir A_BTRFS_OR_XFS
"""

import contextlib
import json
import time

from harness import devices, options, processes, programs, servers, tables
from harness.suite import Group, Suite

UNITS = {"GiB": 1 << 30, "TiB": 1 << 40}
SIZES = "1GiB,100GiB,1TiB,20TiB"


def bytes_of(size):
    """Returns the bytes of a size like 20TiB."""
    return int(size[:-3]) * UNITS[size[-3:]]


def write_ends(server):
    """Writes a block at the start and one at the end of the volume, each flushed."""
    uri = server.uri()
    shown = processes.run(["qemu-img", "info", "-f", "raw", "--output", "json", uri])
    for offset in (0, json.loads(shown)["virtual-size"] - 4096):
        processes.run(["qemu-io", "-f", "raw", "-c", f"write -P 0x5a {offset} 4k", "-c", "flush",
                       uri])


def configuration(folder, size):
    """Makes the files and returns a mirror of them."""
    sides = ""
    for side in ("a", "b"):
        devices.sparse(folder / side, bytes_of(size))
        sides += f'[device.{side}]\ntype = "file"\npath = "{side}"\n'
    return (f'[server]\nmemory = "16MiB"\n{sides}'
            '[device.vol]\ntype = "mirror"\nsides = ["a", "b"]\nlayout = "home"\n'
            + servers.export("vol", "vol", f"unix:{folder}/vol.sock"))


def timed(values, name, block):
    """Records the duration of a call and returns its result."""
    began = time.monotonic()
    found = block()
    values[name] = time.monotonic() - began
    return found


def measure(folder, binary, size):
    """Returns the values of a size."""
    values, text = {}, configuration(folder, size)
    config = folder / "bimetal.toml"
    config.write_text(text, encoding="utf-8")
    timed(values, "format_s", lambda: processes.run([binary, "format", config]))
    values["written_bytes"] = sum((folder / side).stat().st_blocks * 512 for side in ("a", "b"))

    def serve():
        return servers.Bimetal(binary, folder, text, formatted=None)

    with timed(values, "first_open_s", serve) as server:
        write_ends(server)
        server.kill()
    with timed(values, "open_after_kill_s", serve) as server:
        values["memory_bytes"] = server.resident_bytes()
        values["peak_bytes"] = server.resident_bytes("VmHWM")
        scrub = json.loads(timed(values, "scrub_s",
                                 lambda: server.run("scrub", "vol", "--wait", "--json")))
        values["scrub_read_bytes"] = scrub["read_bytes"]
        server.stop(600, cleanly=True)
    return values


class Large(Suite):
    """Sizes."""

    name, group = "large", "mirrors"
    line = "what the size of a mirror's sides costs"
    defaults = {"rounds": 1, "dir": "/var/tmp"}
    quick = {"sizes": ["1GiB", "100GiB"]}
    axes = ("size",)
    headline = ("format_s", "first_open_s", "scrub_s")

    def add_options(self, parser):
        parser.add_argument("--sizes", type=options.words, help=f"of a side (default: {SIZES})")

    def missing(self, _args):
        return processes.missing("qemu-img", "qemu-io")

    def groups(self, args):
        cells = [{"size": size} for size in args.sizes or SIZES.split(",")]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, ["bimetal"], lambda: self.session(args))]

    def order(self, cell):
        return bytes_of(cell["size"])

    @contextlib.contextmanager
    def session(self, args):
        """Every measurement has its own files."""
        def one_size(cell, _subject, _turn):
            with processes.scratch("large", args.dir) as folder:
                return measure(folder, programs.server(args), cell["size"])
        yield one_size

    def tables(self, summary):
        def mega(figure):
            return lambda values: values[figure] / 1e6

        found = tables.long(
            summary, "a mirror of two sparse files", [("size of a side", lambda c: c["size"])],
            [("format s", "format_s", "{:.2f}"), ("written MB", mega("written_bytes"), "{:,.1f}"),
             ("first open s", "first_open_s", "{:.2f}"),
             ("open after a kill s", "open_after_kill_s", "{:.2f}"),
             ("memory MB", mega("memory_bytes"), "{:.0f}"),
             ("peak MB", mega("peak_bytes"), "{:.0f}"), ("scrub s", "scrub_s", "{:.2f}"),
             ("scrub read MB", mega("scrub_read_bytes"), "{:,.1f}")])
        return {"": found.without("subject")}


SUITE = Large()
