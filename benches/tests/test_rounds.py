"""Rounds: their order, what is missing, and how a run goes on."""

import contextlib
import io
import pathlib
import tempfile
import unittest

from harness import host, options, records, rounds, suite
from tests.made import record

CELLS = [{"depth": 1}, {"depth": 2}]


def context(sha256="aa", priority=host.ORDINARY):
    return host.Context("command", "c", False, {"path": "b", "sha256": sha256}, {"cpu": "x"},
                        priority)


class Plan(unittest.TestCase):
    def test_subjects_take_turns_in_an_order_that_rotates(self):
        planned = rounds.plan(rounds.Group([CELLS[0]], ["a", "b", "c"], None), 2, [])
        self.assertEqual([subject for _, _, subject in planned], ["a", "b", "c", "b", "c", "a"])

    def test_only_what_is_missing_is_planned(self):
        known = [record("a", 0, 1, CELLS[0]), record("b", 0, 1, CELLS[0]),
                 record("b", 1, 1, CELLS[0])]
        planned = rounds.plan(rounds.Group([CELLS[0]], ["a", "b"], None), 2, known)
        self.assertEqual(planned, [(1, CELLS[0], "a")])

    def test_a_group_may_have_its_own_rounds_and_gaps(self):
        group = rounds.Group(CELLS, ["a", "b"], None, rounds=1, applies=lambda turn, cell, subject:
                             subject == "a" or cell["depth"] == 2)
        self.assertEqual(len(rounds.plan(group, 9, [])), 3)


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.store = records.Store(pathlib.Path(self.folder.name) / "some" / "out.jsonl")
        self.measured, self.closed = [], 0

    def run_until(self, stop_after=None, **options_of_run):
        """Measures, and is interrupted after some measurements."""
        @contextlib.contextmanager
        def session():
            def measure(cell, subject, turn):
                if stop_after is not None and len(self.measured) == stop_after:
                    raise KeyboardInterrupt
                self.measured.append((turn, cell["depth"], subject))
                return {"ops_per_s": 1.0}
            try:
                yield measure
            finally:
                self.closed += 1

        def keep(turn, cell, subject, values):
            which = turn, cell, subject
            self.store.add(records.record("nbd", context(), which, values))

        rounds.run([rounds.Group(CELLS, ["a", "b"], session)], 2,
                   self.store.comparable("nbd", context()), keep, lambda *_: "", **options_of_run)

    def test_an_interrupted_run_goes_on_where_its_file_ends(self):
        with self.assertRaises(KeyboardInterrupt):
            self.run_until(3)
        self.assertEqual(self.closed, 1)
        self.run_until()
        self.run_until()
        self.assertEqual(self.measured, [(0, 1, "a"), (0, 1, "b"), (0, 2, "a"), (0, 2, "b"),
                                         (1, 1, "b"), (1, 1, "a"), (1, 2, "b"), (1, 2, "a")])
        self.assertEqual(self.closed, 2)

    def test_a_run_stops_when_its_time_is_up(self):
        with self.assertRaises(rounds.TimeIsUp):
            self.run_until(within_s=1e-9)
        self.assertEqual(self.measured, [])

    def test_a_broken_line_is_skipped_and_does_not_spoil_the_next(self):
        self.store.add(records.record("nbd", context(), (0, CELLS[0], "a"), {"x": 1}))
        with open(self.store.path, "a", encoding="utf-8") as file:
            file.write('{"form": 1, "ben')
        self.store.add(records.record("nbd", context(), (0, CELLS[0], "b"), {"x": 2}))
        with contextlib.redirect_stderr(io.StringIO()):
            found = self.store.comparable("nbd", context())
        self.assertEqual([one["subject"] for one in found], ["a", "b"])

    def test_another_program_or_priority_is_not_gone_on_with(self):
        self.store.add(records.record("nbd", context(), (0, CELLS[0], "a"), {"x": 1}))
        for other in (context(sha256="bb"), context(priority="SCHED_RR 1")):
            self.assertEqual(self.store.comparable("nbd", other), [])
        self.assertEqual(self.store.comparable("brp", context()), [])


class Progress(unittest.TestCase):
    def test_the_time_left_is_that_of_the_measurements_left(self):
        out = io.StringIO()
        progress = rounds.Progress(4, out)
        progress.step("silent in the first two seconds")
        progress.began -= 10
        progress.step("late")
        self.assertEqual(out.getvalue(), "[2/4, 10 s left] late\n")


class Only(unittest.TestCase):
    CELLS = [{"conns": c, "depth": d} for c in (1, 4) for d in (16, 64)]
    AXES = ("conns", "depth")

    def test_a_pattern_is_a_cell_or_its_start(self):
        self.assertEqual(options.chosen(self.CELLS, ["4", "1:16"], self.AXES),
                         [self.CELLS[2], self.CELLS[3], self.CELLS[0]])

    def test_an_unknown_cell_is_made_or_refused(self):
        with self.assertRaises(SystemExit):
            options.chosen(self.CELLS, ["1:32"], self.AXES)
        self.assertEqual(options.chosen(self.CELLS, ["1:32"], self.AXES, tuple), [("1", "32")])


class Command(unittest.TestCase):
    def test_the_command_in_a_record_says_what_is_measured(self):
        words = "nbd --binary a/b --rounds 3 --fresh --out=x --within 9 --only 1:1 --check".split()
        self.assertEqual(suite.command_line(words), "python3 benches nbd --rounds 3 --only 1:1")
