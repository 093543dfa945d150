"""Block status over NBD: the time of queries for many extents, and their effect on another client.

`map`: a mirror of two files with homes, and a sparse file behind qemu-nbd, each with a block of
data in every second block, 20,000 extents in all. `qemu-img map` queries them one by one
(`REQ_ONE`). It is run directly after the writes, when the content is in the logs, and again when
all of it is destaged.
The requirement is at most twice the time of qemu-nbd.

`storm`: the same mirror with 600,000 extents and `memory = "64MiB"`. A client has 64 requests with
`REQ_ONE` in flight, from extent to extent and then from the start again, while fio reads 4 KiB at
random at depth 1 over another connection; before that, fio reads alone. The requirements are a
p99.9 of these reads below 5 ms, and that the server's resident memory grows by less than `memory`
meanwhile. One request without `REQ_ONE` for the whole volume follows.

It needs 3 GiB in --dir.

    python3 benches block-status --only map --rounds 3
"""

import contextlib
import json
import socket
import struct
import threading
import time

from harness import devices, fio, options, processes, programs, servers, tables
from harness.judging import Bar
from harness.suite import Group, Suite

BLOCK = 4096
MAP_EXTENTS = 20_000
STORM_EXTENTS = 600_000
MEMORY_BYTES = 64 << 20
DEPTH = 64
WRITE, FLUSH, BLOCK_STATUS = 1, 3, 7
REQ_ONE = 1 << 3
RANGE_BYTES_MAX = (1 << 32) - BLOCK


class Client:
    """A connection to an export, with structured replies and `base:allocation`."""

    def __init__(self, path, export="vol"):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb", buffering=1 << 20)
        assert self.file.read(18)[:16] == b"NBDMAGICIHAVEOPT"
        self.socket.sendall(struct.pack(">I", 3))
        self.option(8, b"")
        name = export.encode()
        context = b"base:allocation"
        asked = struct.pack(">II", 1, len(context)) + context
        self.option(10, struct.pack(">I", len(name)) + name + asked)
        self.option(7, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.file.close()
        self.socket.close()

    def option(self, number, data):
        """Requests an option and receives the replies up to the acknowledgement."""
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.file.read(20))
            self.file.read(length)
            if kind == 1:
                return
            if kind & 1 << 31:
                raise SystemExit(f"the server refuses option {number}: {kind:#x}")

    def send(self, command, offset, length, flags=0, data=b""):
        """Sends a request whose cookie is the offset."""
        head = (0x25609513, flags, command, offset, offset, length)
        self.socket.sendall(struct.pack(">IHHQQI", *head) + data)

    def reply(self):
        """Receives a reply of one chunk or none and returns its payload."""
        magic, = struct.unpack(">I", self.file.read(4))
        if magic == 0x67446698:
            error, _ = struct.unpack(">IQ", self.file.read(12))
            payload = b""
        else:
            _, kind, _, length = struct.unpack(">HHQI", self.file.read(16))
            payload, error = self.file.read(length), kind & 1 << 15
        if error:
            raise SystemExit(f"a request failed: {error}")
        return payload

    def extents(self, offset, length, flags=0):
        """Returns the lengths of the extents in one reply."""
        self.send(BLOCK_STATUS, offset, length, flags)
        return [length for length, _ in struct.iter_unpack(">II", self.reply()[4:])]

    def fill(self, extents):
        """Writes every second block."""
        block, sent = b"\x5a" * BLOCK, 0
        starts = range(0, extents * BLOCK, 2 * BLOCK)
        for done, start in enumerate(starts):
            self.send(WRITE, start, BLOCK, data=block)
            sent += 1
            if sent == DEPTH or done == len(starts) - 1:
                for _ in range(sent):
                    self.reply()
                sent = 0
        self.send(FLUSH, 0, 0)
        self.reply()


def size_bytes(extents):
    """Returns the size of a file with that number of extents."""
    return extents * BLOCK * 5 // 4 + (2 << 30)


def mirror(args, folder, extents):
    """Starts bimetal with a mirror of two files."""
    sides = ""
    for side in ("a", "b"):
        devices.sparse(folder / side, size_bytes(extents))
        sides += f'[device.{side}]\ntype = "file"\npath = "{side}"\n'
    text = (f'[server]\nmemory = "{MEMORY_BYTES >> 20}MiB"\n{sides}'
            '[device.vol]\ntype = "mirror"\nsides = ["a", "b"]\nlayout = "home"\n'
            + servers.export("vol", "vol", f"unix:{folder}/vol.sock"))
    return servers.Bimetal(programs.server(args), folder, text, formatted=["--log", "256MiB"])


def logged_bytes(server):
    """Returns the number of bytes in the logs of both sides."""
    return sum(server.device()["parts"][side]["logged_bytes"] for side in ("a", "b"))


def until_home(server):
    """Waits until the logs are empty."""
    processes.wait_until("the logs are brought home", lambda: logged_bytes(server) == 0, 900, 0.5)


def fill(server, extents):
    """Writes every second block of a server's volume."""
    with Client(server.socket) as client:
        client.fill(extents)


@contextlib.contextmanager
def map_session(args, in_log):
    """Both servers, filled; the content of ours is in its logs, or destaged."""
    with processes.scratch("block-status", args.dir) as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(mirror(args, folder, MAP_EXTENTS))
        image = devices.sparse(folder / "image", size_bytes(MAP_EXTENTS))
        theirs = stack.enter_context(servers.qemu_nbd(folder, image, export_name="vol"))
        running = {"bimetal": ours, "qemu-nbd": theirs}
        for server in running.values():
            fill(server, MAP_EXTENTS)
        if not in_log:
            until_home(ours)

        def measure(_cell, subject, _turn):
            values = map_once(running[subject])
            if subject == "bimetal":
                values["logged_bytes"] = logged_bytes(ours)
            return values
        yield measure


def map_once(server):
    """Returns the duration of `qemu-img map`."""
    began = time.monotonic()
    uri = servers.nbd_uri(server.socket, "vol")
    shown = processes.run(["qemu-img", "map", "-f", "raw", "--output", "json", uri])
    elapsed_s = time.monotonic() - began
    parts = len(json.loads(shown))
    if parts < MAP_EXTENTS:
        raise SystemExit(f"{server.name}: {parts} parts")
    return {"map_s": elapsed_s, "parts": parts}


def reads(server, seconds):
    """Returns p50, p99.9 and longest of random reads, in ms."""
    job = fio.run([*fio.nbd(server.uri()), "--rw=randread", "--bs=4k", "--iodepth=1", "--size=1g",
                   f"--runtime={seconds}", "--time_based", "--randrepeat=1"])
    latency = job["read"]["clat_ns"]
    at = latency["percentile"]
    return {"p50_ms": at["50.000000"] / 1e6, "p999_ms": at[fio.P999] / 1e6,
            "max_ms": latency["max"] / 1e6}


def ask_on(server, over, counted):
    """Keeps requests for one extent in flight until the end of the measurement."""
    end, position, under_way = STORM_EXTENTS * BLOCK, 0, 0
    with Client(server.socket) as client:
        while not over.is_set():
            while under_way < DEPTH:
                client.send(BLOCK_STATUS, position, min(RANGE_BYTES_MAX, end - position), REQ_ONE)
                position, under_way = (position + BLOCK) % end, under_way + 1
            client.reply()
            under_way, counted[0] = under_way - 1, counted[0] + 1


@contextlib.contextmanager
def storm_session(args):
    """The mirror, filled and destaged."""
    with (processes.scratch("block-status", args.dir) as folder,
          mirror(args, folder, STORM_EXTENTS) as server):
        fill(server, STORM_EXTENTS)
        until_home(server)
        yield lambda cell, _subject, _turn: (
            reads(server, cell["seconds"]) if cell["state"] == "alone"
            else storm(server, cell["seconds"]))


def storm(server, seconds):
    """Returns the figures of the reads during the storm, and the cost for the server."""
    before = server.resident_bytes()
    server.forget_peak()
    over, counted = threading.Event(), [0]
    asking = threading.Thread(target=ask_on, args=(server, over, counted))
    asking.start()
    try:
        values = reads(server, seconds)
    finally:
        over.set()
        asking.join()
    began = time.monotonic()
    with Client(server.socket) as client:
        entries = len(client.extents(0, min(RANGE_BYTES_MAX, STORM_EXTENTS * BLOCK)))
    whole_ms = (time.monotonic() - began) * 1000
    grown_bytes = server.resident_bytes("VmHWM") - before
    return {**values, "asked_per_s": counted[0] / seconds, "entries": entries,
            "whole_ms": whole_ms, "memory_bytes": before, "grown_bytes": grown_bytes,
            "longest_turn": str(server.status()["longest_turn"])}


class BlockStatus(Suite):
    """Block status."""

    name, group = "block-status", "mirrors"
    line = "asking for many extents, beside qemu-nbd and beside another client"
    defaults = {"rounds": 3, "seconds": 10, "dir": "/var/tmp"}
    quick = {"rounds": 1, "seconds": 3}
    axes = ("part", "state")
    headline = ("map_s", "p999_ms")
    bars = [
        Bar("map: time of qemu-nbd's", "map_s", bases=("qemu-nbd",), at_most=2,
            applies=lambda c: c["part"] == "map"),
        Bar("storm: p99.9 of the reads, ms", "p999_ms", at_most=5,
            applies=lambda c: c["state"] == "beside"),
        Bar("storm: bytes by which memory grows", "grown_bytes", at_most=MEMORY_BYTES,
            applies=lambda c: c["state"] == "beside"),
    ]

    def missing(self, _args):
        return processes.missing("fio", "qemu-nbd", "qemu-img")

    def groups(self, args):
        def map_cell(state):
            return {"part": "map", "state": state}

        storms = [{"part": "storm", "state": state, "seconds": args.seconds}
                  for state in ("alone", "beside")]
        asked = options.chosen([map_cell("logged"), map_cell("home"), *storms], args.only,
                               self.axes)
        groups = [Group([map_cell(state)], ["bimetal", "qemu-nbd"],
                        lambda in_log=state == "logged": map_session(args, in_log))
                  for state in ("logged", "home")]
        # The storm is measured once, because filling the volume takes long.
        groups.append(Group(storms, ["bimetal"], lambda: storm_session(args), rounds=1))
        for group in groups:
            group.cells = [cell for cell in group.cells if cell in asked]
        return [group for group in groups if group.cells]

    def order(self, cell):
        return ("logged", "home", "alone", "beside").index(cell["state"])

    def tables(self, summary):
        def part(name):
            return self.summary(one for one in summary.records if one["cell"]["part"] == name)

        state = [("state", lambda c: c["state"])]
        found = {
            "map": tables.long(part("map"), "qemu-img map of 20,000 extents", state,
                               [("s", "map_s", "{:.2f}"),
                                ("bytes logged then", "logged_bytes", "{:,.0f}")],
                               [("of qemu-nbd", "map_s", "qemu-nbd")]),
            "storm": tables.long(part("storm"), "reads beside REQ_ONE for 600,000 extents", state,
                                 [("p50 ms", "p50_ms", "{:.3f}"), ("p99.9 ms", "p999_ms", "{:.2f}"),
                                  ("longest ms", "max_ms", "{:.1f}"),
                                  ("REQ_ONE/s", "asked_per_s", "{:,.0f}"),
                                  ("memory grown, bytes", "grown_bytes", "{:,.0f}"),
                                  ("extents in one reply", "entries", "{:,.0f}"),
                                  ("its ms", "whole_ms", "{:.1f}")])}
        return {key: table for key, table in found.items() if table.rows}


SUITE = BlockStatus()
