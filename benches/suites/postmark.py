"""Requests of Debian's `postmark` on a device, compared with the lab's own load of that name.

The device and its settings are those of contrib/lab/native.toml (SS, mq-deadline): a loop device
over a file of 2 GiB in memory with a depth of 4 requests, 64 MiB of memory, and each limit in turn
on the dirty pages of the device. Bios (requests and merges) and requests are counted by the
statistics of the device, from directly before the program to the end of a sync after it. The table
also has the limit that the kernel reports directly before and after a run.

It needs root, postmark, e2fsprogs, util-linux, and control groups of version 1. All changes are
undone at the end.

    sudo python3 benches postmark --only ext4 --seeds 1,2,42
"""

import contextlib
import pathlib

from harness import devices, options, processes, programs, tables
from harness.suite import Group, Suite

MEMORY_BYTES = 64 << 20
FILE_SYSTEMS = ("ext2", "ext3", "ext4")
WHOLE = ("-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")
LIMITS = "5600000,6710886,8000000"
SEEDS = "1,2,3,4,5,42"


def limit_dirty(bdi, limit_bytes):
    """Sets the limit after all other settings, because the kernel stores it as a share of the
    present limit on dirty memory."""
    (bdi / "strict_limit").write_text("1")
    (bdi / "min_ratio_fine").write_text("0")
    (bdi / "max_bytes").write_text(str(limit_bytes))
    (bdi / "min_ratio_fine").write_text((bdi / "max_ratio_fine").read_text())


def set_up(device, file_system):
    """Applies the settings of the experiment to the device and creates a file system; returns its
    folder."""
    folder = pathlib.Path("/sys/block") / pathlib.Path(device).name
    # Without a scheduler, the number of requests is the depth of the device, which cannot be
    # changed.
    for name, value in (("scheduler", "none"), ("nr_requests", "4"), ("scheduler", "mq-deadline"),
                        ("wbt_lat_usec", "0"), ("write_cache", "write back"),
                        ("read_ahead_kb", "128")):
        (folder / "queue" / name).write_text(value)
    processes.run([f"mkfs.{file_system}", *WHOLE, device])
    return folder


def counted(folder):
    """Returns bios and requests so far, for both directions."""
    fields = [int(field) for field in (folder / "stat").read_text().split()]
    issued = fields[0] + fields[4]
    return issued + fields[1] + fields[5], issued


def measure(program, backing, mount, cell):
    """Returns the values of one run."""
    with devices.looped(backing, "--direct-io=on") as device:
        folder = set_up(device, cell["file_system"])
        with devices.mounted(device, mount, "-t", cell["file_system"]):
            processes.run(["sync", "-f", mount])
            group = devices.MemoryGroup("postmark", MEMORY_BYTES)
            try:
                return run_in(group, program, folder, mount, cell)
            finally:
                group.remove()


def run_in(group, program, folder, mount, cell):
    """Runs the program in the group and counts."""
    limit_dirty(folder / "bdi", cell["limit_bytes"])
    limit = folder / "bdi" / "max_bytes"
    before, first_limit = counted(folder), int(limit.read_text())
    orders = (f"set location {mount}\nset number 500\nset size 9216 15360\n"
              f"set transactions 5000\nset seed {cell['turn']}\nrun\nquit\n")
    processes.run([program], input=orders, preexec_fn=group.join)
    processes.run(["sync", "-f", mount])
    last_limit, after = int(limit.read_text()), counted(folder)
    return {"bios": after[0] - before[0], "issued": after[1] - before[1],
            "limit_before_bytes": first_limit, "limit_behind_bytes": last_limit}


class Postmark(Suite):
    """Postmark."""

    name, group = "postmark", "devices"
    line = "what postmark makes of a device, for the lab's load of that name"
    # The suite measures postmark itself.
    defaults = {"rounds": 1, "dir": "/dev/shm", "binary": "/usr/bin/postmark"}
    how_to_build = "apt-get install postmark"
    quick = {"seeds": ["42"], "limits": ["6710886"]}
    axes = ("file_system", "limit_bytes")
    headline = ("bios", "issued")

    def add_options(self, parser):
        parser.add_argument("--limits", type=options.words, help=f"bytes (default: {LIMITS})")
        parser.add_argument("--seeds", type=options.words, help=f"default: {SEEDS}")

    def missing(self, _args):
        return (processes.not_root() or devices.memory_groups_v1_missing()
                or processes.missing("losetup", "mkfs.ext4"))

    def groups(self, args):
        cells = [{"file_system": name, "limit_bytes": int(limit), "turn": int(seed)}
                 for name in FILE_SYSTEMS for limit in args.limits or LIMITS.split(",")
                 for seed in args.seeds or SEEDS.split(",")]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, ["postmark"], lambda: self.session(args))]

    @contextlib.contextmanager
    def session(self, args):
        """The file of the device, with allocated space."""
        with processes.scratch("postmark", args.dir) as folder:
            backing = folder / "disk"
            processes.run(["fallocate", "--length", "2GiB", backing])
            yield lambda cell, _subject, _turn: measure(
                programs.server(args), backing, folder / "mount", cell)

    def tables(self, summary):
        rows = []
        for cell in summary.cells():
            low, high = summary.spread(cell, "postmark", "bios")
            rows.append([cell["file_system"], f"{cell['limit_bytes']:,}",
                         f"{summary.median(cell, 'postmark', 'bios'):.0f} ({low} to {high})",
                         *(tables.number(summary.median(cell, "postmark", figure), "{:,.0f}")
                           for figure in ("issued", "limit_before_bytes", "limit_behind_bytes"))])
        head = ["file system", "bytes dirty", "bios", "requests", "limit before", "limit behind"]
        return {"": tables.Table("bios and requests of postmark", head, rows)}


SUITE = Postmark()
