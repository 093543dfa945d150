#!/usr/bin/env python3
"""What the size of a volume costs: a mirror of two sparse files, of each size in turn.

`format`: how long it takes, and what it writes on both files together (the space that the file
system has given them). `first open`: from the start of `serve` to `ready`. Then one block is
written at the start and one at the end of the volume and flushed, and the server is killed.
`open after a kill`: the next start. `memory`: the resident memory of that server, with
`memory = "16MiB"`; `peak` is the highest until then. `scrub`: how long it takes, and what it reads
of both sides by its own account.

The files are made in --dir, whose file system must allow files of that size (ext4 stops at 16 TiB,
XFS and btrfs do not), and removed. Uses the standard library and qemu-utils.

    cargo build --release -p bimetal-cli
    benches/large.py [--sizes 1GiB,1TiB,20TiB] [--dir DIR] [--binary FILE] [--json]
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

UNITS = {"GiB": 1 << 30, "TiB": 1 << 40}
PATIENCE_S = 600


def bytes_of(size):
    """The bytes of a size like 20TiB."""
    return int(size[:-3]) * UNITS[size[-3:]]


class Volume:
    """A mirror of two sparse files in a folder."""

    def __init__(self, folder, binary, size):
        self.binary, self.config = binary, folder / "large.toml"
        self.socket, self.process = folder / "large.sock", None
        self.files = [folder / side for side in ("a", "b")]
        sides = ""
        for file in self.files:
            with open(file, "wb") as made:
                made.truncate(size)
            sides += f'[device.{file.name}]\ntype = "file"\npath = "{file.name}"\n'
        self.config.write_text(
            f'[server]\nmemory = "16MiB"\n{sides}'
            '[device.vol]\ntype = "mirror"\nsides = ["a", "b"]\n'
            f'[export.vol]\ndevice = "vol"\nprotocol = "nbd"\nlisten = "unix:{self.socket}"\n',
            encoding="utf-8")

    def run(self, verb, *arguments):
        """Runs a verb of the program to its end."""
        command = [self.binary, verb, self.config, *arguments]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    def written_bytes(self):
        """What the file system has given the files."""
        return sum(file.stat().st_blocks * 512 for file in self.files)

    def serve(self):
        """Starts the server, and says after how many seconds it was ready."""
        began = time.monotonic()
        command = [self.binary, "serve", self.config]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit("the server does not get ready")
        return time.monotonic() - began

    def kill(self):
        """Ends the server without letting it do anything."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self):
        """Ends the server cleanly."""
        self.process.terminate()
        if self.process.wait(PATIENCE_S) != 0:
            raise SystemExit("the server does not stop cleanly")

    def write(self, offset):
        """Writes a block and flushes."""
        uri = f"nbd+unix:///vol?socket={self.socket}"
        commands = [f"write -P 0x5a {offset} 4k", "flush"]
        asked = [part for command in commands for part in ("-c", command)]
        subprocess.run(["qemu-io", "-f", "raw", *asked, uri], check=True,
                       stdout=subprocess.DEVNULL)

    def size_bytes(self):
        """The size of the volume."""
        uri = f"nbd+unix:///vol?socket={self.socket}"
        shown = subprocess.run(["qemu-img", "info", "-f", "raw", "--output", "json", uri],
                               check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(shown.stdout)["virtual-size"]

    def resident_bytes(self, which):
        """`VmRSS`, or `VmHWM` for the highest so far."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith(which + ":"):
                return int(line.split()[1]) << 10
        raise SystemExit(f"no {which}")


def measure(folder, binary, size):
    """The row of a size."""
    volume = Volume(folder, binary, bytes_of(size))
    began = time.monotonic()
    volume.run("format")
    row = {"size": size, "format_s": time.monotonic() - began}
    row["written_bytes"] = volume.written_bytes()
    row["first_open_s"] = volume.serve()
    volume.write(0)
    volume.write(volume.size_bytes() - 4096)
    volume.kill()
    row["open_after_kill_s"] = volume.serve()
    row["memory_bytes"] = volume.resident_bytes("VmRSS")
    row["peak_bytes"] = volume.resident_bytes("VmHWM")
    began = time.monotonic()
    scrub = json.loads(volume.run("scrub", "vol", "--wait", "--json"))
    row["scrub_s"] = time.monotonic() - began
    row["scrub_read_bytes"] = scrub["read_bytes"]
    volume.stop()
    for file in volume.files:
        file.unlink()
    return row


def show(rows):
    """The rows as the table of the page."""
    print("| size of a side | format s | written MB | first open s | open after a kill s "
          "| memory MB | peak MB | scrub s | scrub read MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [row["size"], f'{row["format_s"]:.2f}', f'{row["written_bytes"] / 1e6:.1f}',
                 f'{row["first_open_s"]:.2f}', f'{row["open_after_kill_s"]:.2f}',
                 f'{row["memory_bytes"] / 1e6:.0f}', f'{row["peak_bytes"] / 1e6:.0f}',
                 f'{row["scrub_s"]:.2f}', f'{row["scrub_read_bytes"] / 1e6:.1f}']
        print("| " + " | ".join(cells) + " |")


def main():
    """Measures each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--sizes", default="1GiB,100GiB,1TiB,20TiB")
    parser.add_argument("--dir", default="/var/tmp", help="where the files are made")
    parser.add_argument("--binary", default=root / "target/release/bimetal")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=asked.dir, prefix="large-") as folder:
        for size in asked.sizes.split(","):
            rows.append(measure(pathlib.Path(folder), asked.binary, size))
    if asked.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
