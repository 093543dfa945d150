"""Medians, ratios within the round, and bars.

A ratio is taken between two subjects in the same round, and the median of these ratios is judged.
The ratio of two medians would compare measurements that were made at different times.
"""

import dataclasses
import statistics
from typing import Callable

from harness import records

# Key of a repetition within a round; it is not an axis of a table.
TURN = "turn"


def value_of(values, figure):
    """Returns a figure of a measurement: a name of its values, or a function of all of them.

    It is `None` if a value that it needs is missing, as for some subjects.
    """
    if not callable(figure):
        return values.get(figure)
    try:
        return figure(values)
    except KeyError:
        return None


class Summary:
    """Records, sorted by cell, subject and round."""

    def __init__(self, made, order=None):
        """Takes records; `order(cell)` returns the key by which the cells are sorted."""
        self.records = list(made)
        self._found, self._cells = {}, {}
        for one in self.records:
            key = records.cell_key(one["cell"], (TURN,))
            self._cells.setdefault(key, {k: v for k, v in one["cell"].items() if k != TURN})
            by_round = self._found.setdefault(key, {}).setdefault(one["subject"], {})
            by_round[one["round"], one["cell"].get(TURN, 0)] = one["values"]
        if order:
            self._cells = dict(sorted(self._cells.items(), key=lambda item: order(item[1])))

    def cells(self):
        """Returns the cells, without their turns."""
        return list(self._cells.values())

    def subjects(self, cell=None):
        """Returns the subjects of a cell, or of all of them, in the order of the records."""
        keys = self._found if cell is None else [records.cell_key(cell, (TURN,))]
        return list(dict.fromkeys(s for key in keys for s in self._found.get(key, {})))

    def rounds(self):
        """Returns the smallest and the largest number of rounds of a subject in a cell, once if
        equal."""
        counts = {len({turn for turn, _ in found}) for by_subject in self._found.values()
                  for found in by_subject.values()}
        return sorted({min(counts, default=0), max(counts, default=0)})

    def values(self, cell, subject, figure):
        """Returns the known values of a figure by (round, turn)."""
        found = self._found.get(records.cell_key(cell, (TURN,)), {}).get(subject, {})
        known = {at: value_of(values, figure) for at, values in found.items()
                 if "failed" not in values}
        return {at: value for at, value in known.items() if value is not None}

    def median(self, cell, subject, figure):
        """Returns the median of a figure, or `None`."""
        values = self.values(cell, subject, figure)
        return statistics.median(values.values()) if values else None

    def spread(self, cell, subject, figure):
        """Returns the least and the largest value of a figure, or `None`."""
        values = self.values(cell, subject, figure).values()
        return (min(values), max(values)) if values else None

    def ratios(self, cell, subject, base, figure):
        """Returns the ratios of a subject to a base, one for each round that has both."""
        mine = self.values(cell, subject, figure)
        if base is None:
            return list(mine.values())
        theirs = self.values(cell, base, figure)
        return [value / theirs[at] for at, value in mine.items() if theirs.get(at)]

    def ratio(self, cell, subject, base, figure):
        """Returns the median of these ratios, or `None`."""
        ratios = self.ratios(cell, subject, base, figure)
        return statistics.median(ratios) if ratios else None

    def failures(self):
        """Returns the measurements that were not possible, each once."""
        return list(dict.fromkeys(f"{one['subject']}: {one['values']['failed']}"
                                  for one in self.records if "failed" in one["values"]))


@dataclasses.dataclass
class Bar:
    """A requirement: the worst ratio of some cells is at least, or at most, a limit.

    Without a base, the figure itself is judged. With `in_nine_of_ten`, the ratio that nine of ten
    rounds reach is judged instead of the median.
    """

    text: str
    figure: str | Callable
    subject: str = "bimetal"
    bases: tuple = (None,)
    at_least: float | None = None
    at_most: float | None = None
    applies: Callable[[dict], bool] = lambda cell: True
    in_nine_of_ten: bool = False

    def reached(self, summary, cell, base):
        """Returns the value that is judged in one cell, or `None`."""
        ratios = sorted(summary.ratios(cell, self.subject, base, self.figure),
                        reverse=self.at_most is not None)
        if not ratios:
            return None
        return ratios[len(ratios) // 10] if self.in_nine_of_ten else statistics.median(ratios)

    def judge(self, summary, place_name):
        """Returns the verdict, or `None` if nothing was measured."""
        found = [(value, f"{base + ', ' if base else ''}{place_name(cell)}")
                 for cell in summary.cells() if self.applies(cell) for base in self.bases
                 if (value := self.reached(summary, cell, base)) is not None]
        if not found:
            return None
        worst, where = (max if self.at_most is not None else min)(found)
        met = worst <= self.at_most if self.at_most is not None else worst >= self.at_least
        limit = (f"at most {self.at_most:,.10g}" if self.at_most is not None
                 else f"at least {self.at_least:,.10g}")
        return {"bar": self.text, "limit": limit, "worst": worst, "where": where, "met": met}


def judge(bars, summary, place_name):
    """Returns the verdicts of the bars that have figures."""
    judged = [bar.judge(summary, place_name) for bar in bars]
    return [verdict for verdict in judged if verdict]
