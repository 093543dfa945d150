"""Rounds: every subject is measured in every round, and the subjects take turns.

Other load on the machine then affects all subjects alike, and ratios compare measurements that were
made close to each other.
"""

import contextlib
import dataclasses
import sys
import time
from typing import Callable, ContextManager

from harness import records

QUIET_S = 2


@dataclasses.dataclass
class Group:
    """Cells that are measured with the same servers.

    `open` returns a context manager, which starts the servers of the cells, provides the function
    `measure(cell, subject, turn)`, and ends everything. That function returns the values of one
    measurement, or `None` if there is nothing to measure. `applies(turn, cell, subject)` returns
    whether a combination exists.
    """

    cells: list[dict]
    subjects: list[str]
    open: Callable[[], ContextManager]
    rounds: int | None = None
    applies: Callable[[int, dict, str], bool] = lambda *_: True


class TimeIsUp(Exception):
    """The time that `--within` gives has passed."""


def rotated(subjects, turn):
    """Returns the subjects in the order of a round, so that none always follows the same one."""
    at = turn % len(subjects)
    return subjects[at:] + subjects[:at]


def plan(group, rounds, known):
    """Returns the measurements of a group that `known` lacks, as (round, cell, subject)."""
    done = {(made["round"], records.cell_key(made["cell"]), made["subject"]) for made in known}
    return [(turn, cell, subject)
            for turn in range(group.rounds or rounds) for cell in group.cells
            for subject in rotated(group.subjects, turn)
            if group.applies(turn, cell, subject)
            and (turn, records.cell_key(cell), subject) not in done]


class Progress:
    """Lines on stderr that show the progress of a run after its first two seconds."""

    def __init__(self, total, out=None):
        """Expects `total` measurements."""
        self.total, self.done, self.began = total, 0, time.monotonic()
        self.out = out or sys.stderr

    def step(self, text):
        """Counts one more measurement."""
        self.done += 1
        passed_s = time.monotonic() - self.began
        if passed_s < QUIET_S:
            return
        left_s = passed_s / self.done * (self.total - self.done)
        left = f"{left_s:.0f} s" if left_s < 100 else f"{left_s / 60:.0f} min"
        print(f"[{self.done}/{self.total}, {left} left] {text}", file=self.out, flush=True)


def run(groups, rounds, known, keep, described, within_s=None):
    """Makes the missing measurements and passes each result to `keep(turn, cell, subject, values)`.

    `described(cell, subject, values)` returns the text of a line of progress. Raises `TimeIsUp`
    after `within_s` seconds; earlier measurements are kept.
    """
    end = time.monotonic() + within_s if within_s else None
    planned = [(group, plan(group, rounds, known)) for group in groups]
    progress = Progress(sum(len(missing) for _, missing in planned))
    for group, missing in planned:
        if not missing:
            continue
        with contextlib.ExitStack() as stack:
            opening = time.monotonic()
            measure = stack.enter_context(group.open())
            # The time to start and fill the servers does not predict the time of the measurements.
            progress.began += time.monotonic() - opening
            for turn, cell, subject in missing:
                if end is not None and time.monotonic() > end:
                    raise TimeIsUp
                values = measure(cell, subject, turn)
                if values is not None:
                    keep(turn, cell, subject, values)
                    progress.step(f"{described(cell, subject, values)}")
