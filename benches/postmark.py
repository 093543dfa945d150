#!/usr/bin/env python3
"""What Debian's `postmark` makes of a device, beside the lab's own load of that name.

    sudo benches/postmark.py [--folder /dev/shm] [--limits 5600000,6710886,8000000] [--seeds 1,2,3,4,5,42]

The device and its settings are those of contrib/lab/native.toml (SS, mq-deadline): a loop device over a file of 2 GiB in
memory that takes 4 requests at a time, 64 MiB of memory, and each limit in turn on what may be dirty of the device. Counted are
bios (requests and merges) and requests, by the statistics of the device, from just before the program to the end of a
sync behind it. What the kernel says the limit is, just before and just behind a run, is printed as well.

Needs root, postmark, e2fsprogs, util-linux, and control groups of version 1. Everything is put back at the end.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

MEMORY_BYTES = 64 << 20
GROUP = Path("/sys/fs/cgroup/memory/bimetal-postmark")
FILE_SYSTEMS = ("ext2", "ext3", "ext4")
WHOLE = ("-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def limit_dirty(bdi: Path, limit_bytes: int) -> None:
    """Last of all, since the kernel keeps the limit as a part of what may be dirty at this moment."""
    (bdi / "strict_limit").write_text("1")
    (bdi / "min_ratio_fine").write_text("0")
    (bdi / "max_bytes").write_text(str(limit_bytes))
    (bdi / "min_ratio_fine").write_text((bdi / "max_ratio_fine").read_text())


def prepare(device: str, file_system: str, mount: Path) -> Path:
    """The device as the experiment has it, with a new file system on it; gives its folder of settings."""
    folder = Path("/sys/block") / Path(device).name
    queue = folder / "queue"
    # Without a scheduler the number of requests is the depth of the device, which it keeps.
    for name, value in (("scheduler", "none"), ("nr_requests", "4"), ("scheduler", "mq-deadline"),
                        ("wbt_lat_usec", "0"), ("write_cache", "write back"), ("read_ahead_kb", "128")):
        (queue / name).write_text(value)
    run(f"mkfs.{file_system}", *WHOLE, device)
    run("mount", "-t", file_system, device, str(mount))
    run("sync", "-f", str(mount))
    return folder


def counted(folder: Path) -> tuple[int, int]:
    """Bios and requests so far, of both directions."""
    fields = [int(field) for field in (folder / "stat").read_text().split()]
    issued = fields[0] + fields[4]
    return issued + fields[1] + fields[5], issued


def measure(backing: Path, mount: Path, file_system: str, limit_bytes: int, seed: int) -> dict[str, int]:
    device = run("losetup", "--find", "--show", "--direct-io=on", str(backing))
    try:
        folder = prepare(device, file_system, mount)
        try:
            GROUP.mkdir(exist_ok=True)
            (GROUP / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
            limit_dirty(folder / "bdi", limit_bytes)
            limit = folder / "bdi" / "max_bytes"
            before, first_limit = counted(folder), int(limit.read_text())
            orders = (f"set location {mount}\nset number 500\nset size 9216 15360\n"
                      f"set transactions 5000\nset seed {seed}\nrun\nquit\n")
            subprocess.run(["postmark"], input=orders, text=True, check=True, stdout=subprocess.DEVNULL,
                           preexec_fn=lambda: (GROUP / "cgroup.procs").write_text("0"))
            run("sync", "-f", str(mount))
            last_limit, after = int(limit.read_text()), counted(folder)
            return {"bios": after[0] - before[0], "issued": after[1] - before[1],
                    "limit": first_limit, "limit_behind": last_limit}
        finally:
            run("umount", str(mount))
            if GROUP.exists():
                GROUP.rmdir()
    finally:
        run("losetup", "--detach", device)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--limits", type=numbers, default=[5_600_000, 6_710_886, 8_000_000])
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3, 4, 5, 42])
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("devices are set up and file systems mounted, which needs root")
    with tempfile.TemporaryDirectory(dir=options.folder) as own:
        backing, mount = Path(own) / "disk", Path(own) / "mount"
        mount.mkdir()
        run("fallocate", "--length", "2GiB", str(backing))
        for file_system in FILE_SYSTEMS:
            for limit_bytes in options.limits:
                runs = [measure(backing, mount, file_system, limit_bytes, seed) for seed in options.seeds]
                middle = {name: statistics.median(of[name] for of in runs) for name in runs[0]}
                spread = [of["bios"] for of in runs]
                print(f"{file_system}, {limit_bytes} bytes dirty: bios {middle['bios']:.0f} "
                      f"({min(spread)} to {max(spread)}), requests {middle['issued']:.0f}; "
                      f"the limit was {middle['limit']:.0f}, and {middle['limit_behind']:.0f} behind the run", flush=True)


if __name__ == "__main__":
    main()
