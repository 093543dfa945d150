"""Runs of fio."""

import subprocess
import sys

from harness import processes

P999 = "99.900000"
WITHIN_S = 1200


def nbd(uri):
    """Returns the options of fio's engine for NBD."""
    return ["--ioengine=nbd", "--thread=0", f"--uri={uri}"]


def io_uring(image):
    """Returns the options of fio's io_uring engine on a file, with registered buffers."""
    return ["--ioengine=io_uring", "--direct=1", "--registerfiles=1", "--fixedbufs=1",
            f"--filename={image}"]


def run(options, form="json"):
    """Runs fio and returns its report on the one job. An option given later has precedence."""
    command = ["fio", "--name=cell", "--randrepeat=0", f"--output-format={form}", *options]
    return processes.run_json(command, within_s=WITHIN_S)["jobs"][0]


def spread_over(engine, conns, depth, rw, size_mib, extra):
    """Runs 4 KiB requests over several connections, each on its own part of the device; `depth` is
    the total. Returns fio's report on all of them together."""
    part_mib = size_mib // conns
    return run([*engine, f"--rw={rw}", "--bs=4k", f"--iodepth={depth // conns}",
                f"--numjobs={conns}", f"--size={part_mib}m", f"--offset_increment={part_mib}m",
                "--norandommap", "--group_reporting", "--percentile_list=50:99:99.9", *extra])


def fill(engine, size_mib):
    """Writes the whole device, so that every page is allocated before the measurements."""
    spread_over(engine, 1, 16, "write", size_mib, ["--bs=1m"])


def side(job, rw):
    """Returns the part of a report that describes reads or writes."""
    return job["write" if rw == "randwrite" else "read"]


class Background:
    """A run of fio in the background."""

    def __init__(self, options):
        """Starts it."""
        command = ["fio", "--name=load", "--output-format=json", "--randrepeat=0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr,
                                        text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def interrupt(self):
        """Asks it to stop."""
        self.process.terminate()

    def ended(self):
        """Waits for its end and returns its report on writes."""
        text, _ = self.process.communicate(timeout=WITHIN_S)
        # Its exit status is 128 if it was asked to stop.
        if self.process.returncode not in (0, 128):
            raise SystemExit(f"fio ends with {self.process.returncode}: {text[-500:]}")
        return processes.json.loads(text[text.index("{"):])["jobs"][0]["write"]
