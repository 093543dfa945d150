"""Context of a measurement: commit, program, machine and priority."""

import dataclasses
import hashlib
import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
POLICIES = {os.SCHED_OTHER: "SCHED_OTHER", os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR",
            os.SCHED_BATCH: "SCHED_BATCH", os.SCHED_IDLE: "SCHED_IDLE"}
ORDINARY = "SCHED_OTHER nice 0"


@dataclasses.dataclass(frozen=True)
class Context:
    """The part of a record that is the same for all measurements of one run."""

    command: str
    commit: str
    dirty: bool
    binary: dict
    host: dict
    priority: str


def context(command, binary):
    """Returns the context of a run that measures the program at `binary`."""
    return Context(command, *commit(), described_binary(binary), described_host(), priority())


def commit():
    """Returns the commit of the tree, and whether the tree differs from it."""
    try:
        head = _git("rev-parse", "HEAD")
        return head, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        # An unpacked archive has no history, but its figures are valid.
        return "unknown", True


def _git(*words):
    run = subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def described_binary(path):
    """Returns the path of a program as given, and the hash of its content."""
    with open(path, "rb") as file:
        return {"path": str(path), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def described_host():
    """Returns a description of the machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": _processor(), "cores": os.cpu_count(), "memory_bytes": memory_bytes,
            "kernel": platform.release()}


def _processor():
    """Returns the name of the processor, which some architectures do not report."""
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def priority():
    """Returns the scheduling class and priority of this process, which its children inherit."""
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    name = POLICIES.get(policy, f"policy {policy}")
    if policy in (os.SCHED_FIFO, os.SCHED_RR):
        return f"{name} {os.sched_getparam(0).sched_priority}"
    return f"{name} nice {os.nice(0)}"
