"""Loop devices, mounts and memory groups, which are removed at the end."""

import contextlib
import os
import pathlib
import subprocess

from harness import processes

GROUPS_V1 = pathlib.Path("/sys/fs/cgroup/memory")
GROUPS_V2 = pathlib.Path("/sys/fs/cgroup")


def attach(file, *options):
    """Creates a loop device over a file and returns its path."""
    return processes.run(["losetup", "--find", "--show", *options, file]).strip()


def detach(file):
    """Removes all loop devices over a file."""
    listed = ["losetup", "--list", "--noheadings", "--output", "NAME", "--associated", file]
    for device in processes.run(listed).split():
        processes.run(["losetup", "--detach", device])


@contextlib.contextmanager
def looped(file, *options):
    """A loop device over a file."""
    device = None
    try:
        with processes.undisturbed():
            device = attach(file, *options)
        yield device
    finally:
        # Not `detach`: losetup(8) does not find a file of FUSE by its name.
        with processes.undisturbed():
            if device:
                processes.run(["losetup", "--detach", device])


@contextlib.contextmanager
def mounted(device, folder, *options):
    """A mounted file system."""
    folder.mkdir(exist_ok=True)
    try:
        with processes.undisturbed():
            processes.run(["mount", *options, device, folder])
        yield folder
    finally:
        with processes.undisturbed():
            # Programs that an interrupted load has started may need a moment to end.
            processes.wait_until(f"{folder} is not mounted", lambda: unmount(folder), step_s=0.1)


def unmount(folder):
    """Unmounts a folder, unless it is in use; returns whether it is unmounted."""
    if folder.is_mount():
        subprocess.run(["umount", folder], check=False, stderr=subprocess.DEVNULL)
    return not folder.is_mount()


def sparse(path, size_bytes):
    """Creates a sparse file and returns its path."""
    with open(path, "wb") as file:
        file.truncate(size_bytes)
    return path


def allocated(path, size_bytes):
    """Creates a file with allocated space and returns its path."""
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    return path


class MemoryGroup:
    """A limit on the memory of programs, including the kernel's cache of their files.

    It uses control groups of version 1 if the memory controller is available there, otherwise
    version 2.
    """

    def __init__(self, name, limit_bytes):
        """Creates the group."""
        root, limit = GROUPS_V1, "memory.limit_in_bytes"
        if not (root / limit).exists():
            root, limit = GROUPS_V2, "memory.max"
            (root / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        self.folder = root / f"bimetal-{name}-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / limit).write_text(str(limit_bytes), encoding="ascii")

    def join(self):
        """Moves the calling process into the group; for `preexec_fn`."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def remove(self, empty=False):
        """Removes the group after its programs have ended.

        Cached pages of the group are charged to the root group, unless `empty` drops them first.
        """
        if empty and (self.folder / "memory.force_empty").exists():
            (self.folder / "memory.force_empty").write_text("0", encoding="ascii")
        self.folder.rmdir()


def memory_groups_v1_missing():
    """Returns why a group of version 1 cannot be created, or `None`."""
    if not (GROUPS_V1 / "memory.limit_in_bytes").exists():
        return "no memory controller of control groups, version 1"
    return None
