"""Format of stored measurements: JSON Lines, with one object for each measurement.

A record has the keys `form`, `bench`, `command`, `commit`, `dirty`, `binary`, `host`, `priority`,
`time`, `round`, `cell`, `subject` and `values`. The cell describes the measurement and its
conditions; the name of each value ends with its unit.
"""

import dataclasses
import datetime
import json
import pathlib
import sys

FORM = 1


def record(bench, context, which, values):
    """Returns a record with the current time; `which` is (round, cell, subject)."""
    turn, cell, subject = which
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"form": FORM, "bench": bench, **dataclasses.asdict(context), "time": now,
            "round": turn, "cell": cell, "subject": subject, "values": values}


def load(path):
    """Returns the records of a file, or none if the file does not exist.

    Lines that an interruption has truncated, and records of another format, are ignored.
    """
    path, found = pathlib.Path(path), []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            made = json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}: skipped a broken line", file=sys.stderr)
            continue
        if isinstance(made, dict) and made.get("form") == FORM:
            found.append(made)
    return found


class Store:
    """The file of one benchmark, to which records are added."""

    def __init__(self, path):
        """Creates the folder of the file, but does not open the file."""
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, made):
        """Appends a record, on its own line even after a truncated line."""
        with open(self.path, "a+b") as file:
            if file.seek(0, 2) > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(made).encode() + b"\n")

    def comparable(self, bench, context):
        """Returns the records of this benchmark that the same program produced on the same host.

        A record of another priority is not comparable either: a median over both would describe
        neither.
        """
        this = run_key(dataclasses.asdict(context))
        return [made for made in load(self.path)
                if made["bench"] == bench and run_key(made) == this]

    def latest(self, bench):
        """Returns the records of this benchmark that are comparable with the last of them."""
        made = [one for one in load(self.path) if one["bench"] == bench]
        return [one for one in made if run_key(one) == run_key(made[-1])]


def run_key(made):
    """Returns a text that is equal for records of the same program, host and priority."""
    return json.dumps([made["binary"]["sha256"], made["host"], made["priority"]], sort_keys=True)


def cell_key(cell, without=()):
    """Returns a text that is equal for equal cells."""
    return json.dumps({k: v for k, v in cell.items() if k not in without}, sort_keys=True)
