#!/usr/bin/env python3
"""ReiserFS and the true driver of ext2 under Debian's `postmark`, by counts, in User-Mode Linux.

    sudo benches/postmark_uml.py [--seeds 1,2,3,4,5]

Kernels of today have neither: ext2 is served by the driver of ext4, and ReiserFS is gone. Debian's `user-mode-linux` is a
kernel 6.1 that is a program; it has both, and the machine's files as its root. One boot for each file system and seed makes
the file system on a device of 1 GiB and runs SS (500 files of 9 to 15 KiB, 5,000 transactions) in 64 MiB of memory. Bios (requests
and merges) and requests are read from the device's statistics, from just before the program to the end of a sync behind it.
Times mean nothing there: a system call costs ten times and more what it costs outside.

Needs user-mode-linux, postmark, e2fsprogs, reiserfsprogs; where one is missing it says which, with status 77.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MAKERS = {"ext2": "mkfs.ext2 -q -F", "ext3": "mkfs.ext3 -q -F", "reiserfs": "mkreiserfs -q -f"}
NEEDED = ("linux.uml", "postmark", "mkfs.ext2", "mkreiserfs")
BOOT_S_MAX = 300
INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc && mount -t sysfs sys /sys
{make} /dev/ubdb >/dev/null 2>&1
mount -t {file_system} /dev/ubdb {folder}/mount && sync
echo "BEFORE $(cat /sys/block/ubdb/stat)"
printf 'set location {folder}/mount\\nset number 500\\nset size 9216 15360\\nset transactions 5000\\nset seed {seed}\\nrun\\nquit\\n' \\
    | postmark >/dev/null
sync
echo "BEHIND $(cat /sys/block/ubdb/stat)"
umount {folder}/mount
halt -f
"""


def counts(output: str, mark: str) -> tuple[int, int]:
    """Bios and requests so far, of both directions."""
    lines = [line for line in output.splitlines() if line.startswith(mark)]
    if not lines:
        sys.exit(f"the guest has not said {mark}; its last lines:\n" + "\n".join(output.splitlines()[-5:]))
    fields = [int(field) for field in lines[0].split()[1:]]
    issued = fields[0] + fields[4]
    return issued + fields[1] + fields[5], issued


def measure(folder: Path, file_system: str, seed: int) -> tuple[int, int]:
    disk, init = folder / "disk", folder / "init"
    with disk.open("wb") as file:
        file.truncate(1 << 30)
    init.write_text(INIT.format(make=MAKERS[file_system], file_system=file_system, folder=folder, seed=seed))
    init.chmod(0o755)
    command = ["linux.uml", f"ubdb={disk}", "root=/dev/root", "rootfstype=hostfs", "rw", "mem=64M", f"init={init}",
               "con=null", "con0=null,fd:1", f"uml_dir={folder}"]
    guest = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOOT_S_MAX)
    before, behind = counts(guest.stdout, "BEFORE"), counts(guest.stdout, "BEHIND")
    return behind[0] - before[0], behind[1] - before[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        print(f"{', '.join(missing)}: not installed (packages user-mode-linux, postmark, e2fsprogs, reiserfsprogs)")
        return 77
    for file_system in MAKERS:
        with tempfile.TemporaryDirectory() as own:
            folder = Path(own)
            (folder / "mount").mkdir()
            runs = [measure(folder, file_system, seed) for seed in options.seeds]
        bios, issued = zip(*runs)
        print(f"{file_system}: bios {statistics.median(bios):.0f} ({min(bios)} to {max(bios)}), "
              f"requests {statistics.median(issued):.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
