"""Starting programs, waiting for them, their processor time and memory, and scratch folders."""

import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

WITHIN_S = 600


def run(command, within_s=WITHIN_S, statuses=(0,), **options):
    """Runs a program to its end and returns what it printed."""
    command = [str(word) for word in command]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False,
                         **options)
    if ran.returncode not in statuses:
        raise SystemExit(f"{' '.join(command)}: status {ran.returncode}\n"
                         f"{ran.stdout[-1000:]}{ran.stderr[-2000:]}")
    return ran.stdout


@contextlib.contextmanager
def undisturbed():
    """Delays Ctrl-C until the end of a block: an interrupted cleanup would leave a mount in a
    folder that is about to be removed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_json(command, **options):
    """Runs a program and returns its JSON output, which other lines may precede."""
    text = run(command, **options)
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    return json.loads(text[min(starts, default=0):])


def run_measured(command):
    """Runs a program; returns its output, CPU seconds, elapsed seconds and peak memory in MB.

    time(1) starts the program, because the peak that the kernel reports for a child includes the
    memory of the process that has started it.
    """
    with tempfile.NamedTemporaryFile("w+") as usage:
        text = run(["/usr/bin/time", "-o", usage.name, "-f", "%U %S %e %M", *command])
        user_s, system_s, elapsed_s, peak_kb = map(float, usage.read().split()[-4:])
    return text, user_s + system_s, elapsed_s, peak_kb / 1000


def children_user_s():
    """Returns the user time of all children that have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def missing(*programs):
    """Returns which programs are not installed, as a reason, or `None`."""
    absent = [name for name in programs if not shutil.which(name)]
    return f"not installed: {', '.join(absent)}" if absent else None


def not_root():
    """Returns why devices and mounts cannot be created, or `None`."""
    return "it needs root" if os.geteuid() != 0 else None


def wait_until(what, is_so, within_s=60, step_s=0.02):
    """Waits until `is_so()` returns a true value, and returns that value."""
    end = time.monotonic() + within_s
    while not (found := is_so()):
        if time.monotonic() > end:
            raise SystemExit(f"after {within_s} s still not: {what}")
        time.sleep(step_s)
    return found


def listening_ports():
    """Returns the TCP ports that have a listener (proc(5), net/tcp: state 0A)."""
    lines = pathlib.Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    sockets = [line.split() for line in lines]
    return {int(words[1].split(":")[1], 16) for words in sockets if words[3] == "0A"}


@contextlib.contextmanager
def scratch(name, place=None):
    """A folder that is removed at the end, also after Ctrl-C, unless something is mounted in it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"bimetal-{name}-", dir=place)).resolve()
    try:
        yield folder
    finally:
        if f" {folder}/" in pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8"):
            print(f"{folder} is left behind: something is mounted in it", file=sys.stderr)
        else:
            shutil.rmtree(folder)


class Process:
    """A program that runs in the background in a folder, which also contains its log.

    It has its own process group, so that Ctrl-C reaches only this program, which then ends
    everything in order: mounts before the servers behind them.
    """

    def __init__(self, name, command, folder, stdout=None, stdin=subprocess.DEVNULL):
        """Starts the program."""
        self.name, self.log = name, pathlib.Path(folder) / f"{name}.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], cwd=folder, stdin=stdin, stdout=stdout or log,
                stderr=log, text=True, process_group=0)

    def fail(self, text):
        """Ends the program and this process, with the last lines of the log as the message."""
        self.process.kill()
        self.process.wait()
        log = self.log.read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"{self.name}: {text}\n{log[-2000:]}")

    def expect(self, line):
        """Waits for a line on the standard output."""
        found = self.process.stdout.readline().strip()
        if found != line:
            self.fail(f"printed {found!r} in place of {line!r}")

    def await_socket(self, socket, within_s=20):
        """Waits until the program has created its socket."""
        self._await(f"listens at {socket}", lambda: os.path.exists(socket), within_s)

    def await_ports(self, *ports, within_s=30):
        """Waits until each port has a listener; unlike a UNIX socket, TCP has no file to wait
        for."""
        self._await(f"listens at {ports}", lambda: set(ports) <= listening_ports(), within_s)

    def _await(self, what, is_so, within_s):
        def is_so_or_ended():
            if self.process.poll() is not None:
                self.fail("has ended")
            return is_so()
        wait_until(f"{self.name} {what}", is_so_or_ended, within_s)

    def cpu_s(self):
        """Returns the user and system time of the process so far (proc(5), fields 14 to 17).

        Threads that have ended are included, which matters because nbdkit has threads for each
        connection. The kernel scales the two so that their sum is the scheduler's exact run time;
        only the last tick (10 ms) is lost.
        """
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        ticks = stat.rsplit(")", 1)[1].split()[11:15]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def threads_s(self):
        """Returns the CPU seconds of each thread so far, by its number."""
        found = {}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread may have just ended
                stat = (task / "schedstat").read_text(encoding="utf-8")
                found[task.name] = int(stat.split()[0]) / 1e9
        return found

    def resident_bytes(self, which="VmRSS"):
        """Returns `VmRSS`, or `VmHWM` for the peak since the start or `forget_peak`."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = [line.split() for line in status.splitlines() if line.startswith(which + ":")]
        return int(found[0][1]) << 10

    def forget_peak(self):
        """Resets the peak of the resident memory."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="utf-8")

    def kill(self):
        """Kills the program."""
        self.process.kill()
        self.process.wait()

    def stop(self, within_s=120, cleanly=False):
        """Ends the program; `cleanly` requires that it exits with status 0."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            status = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            status = None
        if cleanly and status != 0:
            raise SystemExit(f"{self.name} did not end cleanly: status {status}")

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        with undisturbed():
            self.stop()
