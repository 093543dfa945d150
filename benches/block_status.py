#!/usr/bin/env python3
"""Block status over NBD: what asking for many extents takes, and what it does to another client.

`map`: a mirror of two files and a sparse file behind qemu-nbd, each with a block of data in every
second block, 20,000 extents in all. `qemu-img map` asks for them one by one (`REQ_ONE`); the two
servers take turns, and the medians are compared. Asked once right after the writes, when the
content is in the logs, and once when all of it is at home. The bar: at most twice the time of
qemu-nbd.

`storm`: the same mirror with 600,000 extents and `memory = "64MiB"`. A client keeps 64 requests
with `REQ_ONE` under way, from extent to extent and round again, while fio reads 4 KiB at random at
depth 1 over another connection; before that, fio reads alone. The bars: p99.9 of these reads below
5 ms, and what the server's resident memory grows by meanwhile below `memory`. Besides, one request
without `REQ_ONE` for all of the volume, and the entries of its reply. The server's own figure for
its longest turn stands beside it; what the server does while the volume is written and brought
home is in neither.

Needs fio and qemu-utils, and 3 GiB in --dir. Only the standard library is used besides.

    cargo build --release -p bimetal-cli
    benches/block_status.py [--only map|storm] [--rounds N] [--dir DIR] [--binary FILE]
"""

import argparse
import json
import pathlib
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import threading
import time

BLOCK = 4096
MAP_EXTENTS = 20_000
STORM_EXTENTS = 600_000
MEMORY_BYTES = 64 << 20
DEPTH = 64
READ, WRITE, FLUSH, BLOCK_STATUS = 0, 1, 3, 7
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

    def option(self, number, data):
        """Asks for an option and takes the replies up to the acknowledgement."""
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.file.read(20))
            self.file.read(length)
            if kind == 1:
                return
            if kind & 1 << 31:
                raise SystemExit(f"the server refuses option {number}: {kind:#x}")

    def send(self, command, offset, length, flags=0, data=b""):
        """Sends a request, of which the cookie is the offset."""
        head = (0x25609513, flags, command, offset, offset, length)
        self.socket.sendall(struct.pack(">IHHQQI", *head) + data)

    def reply(self):
        """Takes a reply of one chunk or none: its cookie and payload."""
        magic, = struct.unpack(">I", self.file.read(4))
        if magic == 0x67446698:
            error, cookie = struct.unpack(">IQ", self.file.read(12))
            payload = b""
        else:
            _, kind, cookie, length = struct.unpack(">HHQI", self.file.read(16))
            payload, error = self.file.read(length), kind & 1 << 15
        if error:
            raise SystemExit(f"a request failed: {error}")
        return cookie, payload

    def extents(self, offset, length, flags=0):
        """The lengths of the extents that one reply tells."""
        self.send(BLOCK_STATUS, offset, length, flags)
        _, payload = self.reply()
        return [length for length, _ in struct.iter_unpack(">II", payload[4:])]

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


class Bimetal:
    """A mirror of two files."""

    name = "bimetal"

    def __init__(self, folder, binary, extents, log):
        self.binary, self.config = binary, folder / "bimetal.toml"
        self.socket = folder / "bimetal.sock"
        size = extents * BLOCK * 5 // 4 + (2 << 30)
        sides = ""
        for side in ("a", "b"):
            with open(folder / side, "wb") as file:
                file.truncate(size)
            sides += f'[device.{side}]\ntype = "file"\npath = "{side}"\n'
        self.config.write_text(
            f'[server]\nmemory = "{MEMORY_BYTES >> 20}MiB"\n{sides}'
            '[device.vol]\ntype = "mirror"\nsides = ["a", "b"]\n'
            f'[export.vol]\ndevice = "vol"\nprotocol = "nbd"\nlisten = "unix:{self.socket}"\n',
            encoding="utf-8")
        formatting = [binary, "format", self.config, "--log", log]
        subprocess.run(formatting, check=True, stdout=subprocess.DEVNULL)
        serving = [binary, "serve", self.config]
        self.process = subprocess.Popen(serving, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit("bimetal does not serve")

    def status(self):
        """The answer of `status`."""
        asking = [self.binary, "status", "--json", self.config]
        shown = subprocess.run(asking, stdout=subprocess.PIPE, text=True)
        return json.loads(shown.stdout)

    def until_home(self, patience_s=900):
        """Waits until nothing is in the logs any more."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            parts = self.status()["devices"]["vol"]["parts"]
            if all(parts[side]["logged_bytes"] == 0 for side in ("a", "b")):
                return
            time.sleep(0.5)
        raise SystemExit("the logs are not brought home")

    def resident_bytes(self, which):
        """`VmRSS`, or `VmHWM` for the most since the last call of `measure_peak`."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith(which + ":"):
                return int(line.split()[1]) << 10
        raise SystemExit(f"no {which}")

    def measure_peak(self):
        """Forgets the peak of the resident memory."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="utf-8")

    def stop(self):
        """Ends the server."""
        self.process.terminate()
        self.process.wait(120)


class QemuNbd:
    """A sparse file behind qemu-nbd."""

    name = "qemu-nbd"

    def __init__(self, folder, extents):
        self.socket, image = folder / "qemu.sock", folder / "image"
        with open(image, "wb") as file:
            file.truncate(extents * BLOCK * 5 // 4 + (2 << 30))
        self.process = subprocess.Popen(["qemu-nbd", "-t", "-e", "8", "-f", "raw", "-x", "vol",
                                         "-k", self.socket, image])
        end = time.monotonic() + 20
        while not self.socket.exists():
            if time.monotonic() > end:
                raise SystemExit("qemu-nbd does not listen")
            time.sleep(0.02)

    def stop(self):
        """Ends the server."""
        self.process.terminate()
        self.process.wait(20)


def map_s(server):
    """How long `qemu-img map` takes, and how many parts it shows."""
    began = time.monotonic()
    uri = f"nbd+unix:///vol?socket={server.socket}"
    shown = subprocess.run(["qemu-img", "map", "-f", "raw", "--output", "json", uri], check=True,
                           stdout=subprocess.PIPE)
    return time.monotonic() - began, len(json.loads(shown.stdout))


def measure_map(folder, args):
    """The servers in turns, in the log and at home."""
    servers = [Bimetal(folder, args.binary, MAP_EXTENTS, "256MiB"), QemuNbd(folder, MAP_EXTENTS)]
    try:
        for server in servers:
            Client(server.socket).fill(MAP_EXTENTS)
        for where in ("in the log", "at home"):
            if where == "at home":
                servers[0].until_home()
            taken = {server.name: [] for server in servers}
            for _ in range(args.rounds):
                for server in servers:
                    seconds, parts = map_s(server)
                    taken[server.name].append(seconds)
                    if parts < MAP_EXTENTS:
                        raise SystemExit(f"{server.name}: {parts} parts")
            ours, theirs = (statistics.median(taken[server.name]) for server in servers)
            logged = servers[0].status()["devices"]["vol"]["parts"]["a"]["logged_bytes"] / (1 << 20)
            print(f"map, {where} ({logged:.0f} MiB logged now): bimetal {ours:.2f} s, "
                  f"qemu-nbd {theirs:.2f} s, ratio {ours / theirs:.2f} (bar 2)", flush=True)
    finally:
        for server in servers:
            server.stop()


def reads(server, seconds):
    """p50, p99.9 and longest of random reads, in ms."""
    uri = f"nbd+unix:///vol?socket={server.socket}"
    command = ["fio", "--name=reads", "--ioengine=nbd", f"--uri={uri}", "--rw=randread", "--bs=4k",
               "--iodepth=1", "--size=1g", f"--runtime={seconds}", "--time_based",
               "--output-format=json"]
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    latency = json.loads(shown.stdout[shown.stdout.index("{"):])["jobs"][0]["read"]["clat_ns"]
    percentile = latency["percentile"]
    return percentile["50.000000"] / 1e6, percentile["99.900000"] / 1e6, latency["max"] / 1e6


def ask_on(server, over, counted):
    """Keeps requests for one extent under way until it is over."""
    client, end = Client(server.socket), STORM_EXTENTS * BLOCK
    position, under_way = 0, 0
    while not over.is_set():
        while under_way < DEPTH:
            client.send(BLOCK_STATUS, position, min(RANGE_BYTES_MAX, end - position), REQ_ONE)
            position, under_way = (position + BLOCK) % end, under_way + 1
        client.reply()
        under_way, counted[0] = under_way - 1, counted[0] + 1


def measure_storm(folder, args):
    """Reads alone, and beside the storm."""
    server = Bimetal(folder, args.binary, STORM_EXTENTS, "256MiB")
    try:
        Client(server.socket).fill(STORM_EXTENTS)
        server.until_home()
        alone = reads(server, args.seconds)
        before = server.resident_bytes("VmRSS")
        server.measure_peak()
        over, counted = threading.Event(), [0]
        asking = threading.Thread(target=ask_on, args=(server, over, counted))
        asking.start()
        try:
            beside = reads(server, args.seconds)
        finally:
            over.set()
            asking.join()
        began = time.monotonic()
        entries = len(Client(server.socket).extents(0, min(RANGE_BYTES_MAX, STORM_EXTENTS * BLOCK)))
        whole_ms = (time.monotonic() - began) * 1000
        grown = server.resident_bytes("VmHWM") - before
        for what, (median, high, longest) in (("alone", alone), ("beside the storm", beside)):
            print(f"reads {what}: p50 {median:.3f} ms, p99.9 {high:.2f} ms, "
                  f"longest {longest:.1f} ms", flush=True)
        print(f"storm: {counted[0] / args.seconds:,.0f} REQ_ONE/s at depth {DEPTH}; p99.9 bar 5 ms")
        print(f"one reply without REQ_ONE: {entries} entries in {whole_ms:.1f} ms")
        print(f"memory: {before >> 20} MiB before, grown by {grown >> 20} MiB "
              f"(bar {MEMORY_BYTES >> 20})")
        print(f"longest turn since the start: {server.status()['longest_turn']}")
    finally:
        server.stop()


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=pathlib.Path, default="target/release/bimetal")
    parser.add_argument("--only", choices=("map", "storm"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--dir", type=pathlib.Path, default="/var/tmp")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    for name, measure in (("map", measure_map), ("storm", measure_storm)):
        if args.only in (None, name):
            folder = pathlib.Path(tempfile.mkdtemp(prefix="bimetal-block-status-", dir=args.dir))
            try:
                measure(folder, args)
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
