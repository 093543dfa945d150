#!/usr/bin/env python3
"""A side that comes back whole under writing clients: how fast, and what the clients see of it.

A mirror of two files is served by NBD, degraded, and written in full; then the other side comes
back, and is rebuilt while fio writes 4 KiB at random places:

`files`: both sides are plain files, and a client writes 200 times a second.
`disk`: one side is an emulated hdd-7200 over its file, with a log so short that these writes would
go round it three times and more during the rebuild.
`full`: the same disk, and a client that writes all it can, 16 requests at once.
`scattered`: files; only 4,096 blocks of 4 KiB far from each other are missing, and nobody writes.

In the same round the slower device is written in sequence past the mirror, 4 pieces of 1 MiB at
once, and the client writes to the whole mirror without a rebuild. The bars: a half of the
sequential rate on files, a quarter on the disk, the floor of 20 MiB/s (or half of what the disk
does in sequence, if that is less) under the client that writes all it can; half of the rate of the
client beside a rebuild, and its longest write no longer by more than 250 ms, where the floor
leaves it that much.

A rebuild reads one side and writes the other. Where both files are on one disk, as they are
without --fast-dir, that disk does both at once, and writes alone in sequence.

Takes ordinary priority. Uses the standard library and fio.

    cargo build --release -p bimetal-cli
    benches/rebuild.py [--only disk] [--rounds 3] [--size 957MiB] [--dir DIR]
        [--fast-dir DIR] [--json]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 1200
MIB = 1 << 20
ALONE_S = 20
CASES = {
    "files": {"type": "file", "log": None, "rate": 200, "depth": 8, "share": 0.5},
    "disk": {"type": "hdd", "log": "8MiB", "rate": 200, "depth": 8, "share": 0.25},
    "full": {"type": "hdd", "log": "64MiB", "rate": None, "depth": 16, "share": None},
    "scattered": {"type": "file", "log": None, "rate": 0, "depth": 0, "share": None},
}
SCATTERED = 4096
FLOOR_BYTES_PER_S = 20 * MIB


def bytes_of(size):
    """The bytes of a size like 957MiB."""
    for unit, factor in (("MiB", MIB), ("GiB", 1 << 30)):
        if size.endswith(unit):
            return int(size[:-3]) * factor
    raise SystemExit(f"{size} is no size like 957MiB or 4GiB")


class Volume:
    """A mirror of two sides in a folder, and a device like the slower one beside it."""

    def __init__(self, folder, fast_folder, binary, case, size):
        self.binary, self.folder, self.case = binary, folder, case
        self.config, self.process = folder / "rebuild.toml", None
        slow = "below_b" if case["type"] == "hdd" else "b"
        emulated = "".join(
            f'[device.{name}]\ntype = "hdd"\nprofile = "hdd-7200"\nbelow = "below_{name}"\n'
            for name in ("b", "alone")) if case["type"] == "hdd" else ""
        alone = "below_alone" if emulated else "alone"
        self.slow = folder / slow
        log = f'log = "{case["log"]}"\n' if case["log"] else ""
        files = "".join(
            f'[device.{name}]\ntype = "file"\npath = "{place / name}"\nsize = "{size}"\n'
            for name, place in (("a", fast_folder), (slow, folder), (alone, folder)))
        exports = "".join(
            f'[export.{name}]\ndevice = "{name}"\nprotocol = "nbd"\n'
            f'listen = "unix:{folder}/{name}.sock"\n' for name in ("vol", "alone"))
        self.config.write_text(
            f'[server]\ncontrol = "unix:{folder}/control"\n{files}{emulated}'
            f'[device.vol]\ntype = "mirror"\nsides = ["a", "b"]\n{log}{exports}',
            encoding="utf-8")

    def run(self, verb, *arguments):
        """Runs a verb of the program to its end."""
        command = [self.binary, verb, self.config, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def serve(self):
        """Starts the server and waits until it is ready."""
        self.process = subprocess.Popen([self.binary, "serve", self.config],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit("the server does not get ready")

    def stop(self):
        """Ends the server cleanly."""
        self.process.terminate()
        if self.process.wait(PATIENCE_S) != 0:
            raise SystemExit("the server does not stop cleanly")

    def side(self):
        """The figures of the side that comes back."""
        # Its exit status says whether the volume is healthy, which it is not here.
        command = [self.binary, "status", self.config, "--json"]
        shown = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        status = json.loads(shown.stdout)
        return status["devices"]["vol"]["parts"]["b"]

    def wait_whole(self):
        """Waits until the side is whole: bytes that were copied, and bytes of its log written."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            side = self.side()
            if side["health"] == "healthy":
                return side["resynced_bytes"], side["log_written_bytes"]
            time.sleep(0.1)
        raise SystemExit(f"the side is not whole after {PATIENCE_S} s")

    def fio(self, export, *arguments):
        """Starts fio on an export."""
        uri = f"nbd+unix:///{export}?socket={self.folder}/{export}.sock"
        command = ["fio", "--name=load", "--ioengine=nbd", f"--uri={uri}",
                   "--output-format=json", "--randrepeat=0", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def client(self, seconds):
        """Starts the client of the case, for at most so long."""
        rate = self.case["rate"]
        paced = [f"--rate_iops={rate}"] if rate else []
        return self.fio("vol", "--rw=randwrite", "--bs=4k", f"--iodepth={self.case['depth']}",
                        "--time_based", f"--runtime={seconds}", *paced)

    def lose(self):
        """Takes the slower side away and goes on without it."""
        self.stop()
        self.slow.rename(self.slow.with_suffix(".away"))
        self.serve()

    def give_back(self):
        """Brings it back: the rebuild begins when this returns."""
        self.stop()
        self.slow.with_suffix(".away").rename(self.slow)
        self.serve()


def ended(load):
    """What fio says of its writes, when it has ended: rate, and the longest in ms."""
    text, _ = load.communicate(timeout=PATIENCE_S)
    # It ends with 128 when it was told to stop.
    if load.returncode not in (0, 128):
        raise SystemExit(f"fio ends with {load.returncode}: {text[-500:]}")
    job = json.loads(text[text.index("{"):])["jobs"][0]["write"]
    return {"writes_per_s": job["iops"], "longest_ms": job["clat_ns"]["max"] / 1e6,
            "bytes_per_s": job["bw_bytes"]}


def fill(volume, case):
    """Writes what the side that is away will lack."""
    if case == "scattered":
        size = f"--io_size={SCATTERED * 4096}"
        load = volume.fio("vol", "--rw=randwrite", "--bs=4k", "--iodepth=16", size)
    else:
        load = volume.fio("vol", "--rw=write", "--bs=1M", "--iodepth=4")
    return ended(load)


def measure(folder, fast_folder, binary, case, size):
    """One round of a case."""
    volume = Volume(folder, fast_folder, binary, CASES[case], size)
    volume.run("format")
    volume.serve()
    sequential = ended(volume.fio("alone", "--rw=write", "--bs=1M", "--iodepth=4"))
    row = {"case": case, "sequential_bytes_per_s": sequential["bytes_per_s"]}
    if case == "scattered":
        ended(volume.fio("vol", "--rw=write", "--bs=1M", "--iodepth=4"))
    has_client = CASES[case]["rate"] != 0
    if has_client:
        row["without"] = ended(volume.client(ALONE_S))
    volume.lose()
    fill(volume, case)
    volume.give_back()
    began, copied_before = time.monotonic(), volume.side()
    client = volume.client(PATIENCE_S) if has_client else None
    copied, logged = volume.wait_whole()
    row["whole_s"] = time.monotonic() - began
    if client:
        client.terminate()
        row["beside"] = ended(client)
    log_bytes = volume.side()["log_bytes"]
    row["copied_bytes"] = copied
    # What the client writes goes to the log as content and a header of the same length.
    load = row.get("beside", {"bytes_per_s": 0})["bytes_per_s"] * row["whole_s"]
    row["load_rounds"] = 2 * load / log_bytes
    row["log_rounds"] = (logged - copied_before["log_written_bytes"]) / log_bytes
    row["rebuild_bytes_per_s"] = copied / row["whole_s"]
    volume.stop()
    return row


def show(rows):
    """The rows as the table of the page."""
    print("| case | in sequence MB/s | rebuild MB/s | share | whole after s | load, times the log | logged, times the log "
          "| client alone 1/s | beside 1/s | longest alone ms | beside ms |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        rebuild, sequential = row["rebuild_bytes_per_s"], row["sequential_bytes_per_s"]
        cells = [row["case"], f"{sequential / 1e6:.1f}", f"{rebuild / 1e6:.1f}",
                 f"{rebuild / sequential:.2f}", f'{row["whole_s"]:.1f}',
                 f'{row["load_rounds"]:.1f}', f'{row["log_rounds"]:.1f}']
        for figure, digits in (("writes_per_s", 0), ("longest_ms", 1)):
            for when in ("without", "beside"):
                cells.append(f"{row[when][figure]:.{digits}f}" if when in row else "-")
        print("| " + " | ".join(cells) + " |")


def main():
    """Measures each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--only", choices=CASES, action="append", help="a case, may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", default="957MiB", help="of each side")
    parser.add_argument("--dir", default="/var/tmp", help="where the slower sides are made")
    parser.add_argument("--fast-dir", help="where the faster sides are made, if elsewhere")
    parser.add_argument("--binary", default=root / "target/release/bimetal")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args()
    rows = []
    for _ in range(asked.rounds):
        for case in asked.only or CASES:
            fast_dir = asked.fast_dir or asked.dir
            with tempfile.TemporaryDirectory(dir=asked.dir, prefix="rebuild-") as folder, \
                    tempfile.TemporaryDirectory(dir=fast_dir, prefix="rebuild-") as fast_folder:
                folders = pathlib.Path(folder), pathlib.Path(fast_folder)
                rows.append(measure(*folders, asked.binary, case, asked.size))
            done = rows[-1]
            print(f'{case}: whole after {done["whole_s"]:.1f} s, '
                  f'{done["rebuild_bytes_per_s"] / 1e6:.1f} MB/s', file=sys.stderr)
    if asked.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
