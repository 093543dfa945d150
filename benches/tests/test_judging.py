"""Medians, ratios and bars of records made by hand."""

import unittest

from harness import judging, tables
from harness.judging import Bar
from tests.made import record

DEEP = {"conns": 1, "depth": 64, "rw": "randread"}
# Ratios within the rounds: 2.0, 1.0, 1.5, of which 1.5 is the median. The medians themselves are
# 300 and 200, which would be 1.5 as well; at depth 64 they are 40 and 10, but the ratios 1 and 7.
RECORDS = [record("bimetal", 0, 200), record("nbdkit", 0, 100),
           record("nbdkit", 1, 400), record("bimetal", 1, 400),
           record("bimetal", 2, 300), record("nbdkit", 2, 200),
           record("bimetal", 0, 10, DEEP), record("nbdkit", 0, 10, DEEP),
           record("bimetal", 1, 70, DEEP), record("nbdkit", 1, 10, DEEP)]


def summary(made=None):
    return judging.Summary(made or RECORDS, lambda cell: cell["depth"])


def place(cell):
    return f"depth {cell['depth']}"


class Medians(unittest.TestCase):
    def test_the_median_of_the_rounds(self):
        cells = summary().cells()
        self.assertEqual([cell["depth"] for cell in cells], [1, 64])
        self.assertEqual(summary().median(cells[0], "bimetal", "ops_per_s"), 300)
        self.assertEqual(summary().median(DEEP, "bimetal", "ops_per_s"), 40)
        self.assertEqual(summary().spread(DEEP, "bimetal", "ops_per_s"), (10, 70))
        self.assertIsNone(summary().median(DEEP, "qemu-nbd", "ops_per_s"))
        self.assertEqual(summary().rounds(), [2, 3])

    def test_the_ratio_is_taken_within_the_round(self):
        cells = summary().cells()
        self.assertEqual(sorted(summary().ratios(cells[0], "bimetal", "nbdkit", "ops_per_s")),
                         [1.0, 1.5, 2.0])
        self.assertEqual(summary().ratio(cells[0], "bimetal", "nbdkit", "ops_per_s"), 1.5)
        self.assertEqual(summary().ratio(DEEP, "bimetal", "nbdkit", "ops_per_s"), 4.0)

    def test_a_round_without_the_base_is_left_out(self):
        found = summary([record("bimetal", 0, 9), record("bimetal", 1, 8), record("nbdkit", 1, 2)])
        self.assertEqual(found.ratio(found.cells()[0], "bimetal", "nbdkit", "ops_per_s"), 4.0)

    def test_turns_of_a_round_belong_to_one_cell(self):
        made = [record(subject, 0, value, {**DEEP, "turn": turn})
                for turn, (ours, theirs) in enumerate([(6, 2), (5, 1), (4, 4)])
                for subject, value in (("bimetal", ours), ("nbdkit", theirs))]
        self.assertEqual(summary(made).cells(), [DEEP])
        self.assertEqual(summary(made).ratio(DEEP, "bimetal", "nbdkit", "ops_per_s"), 3.0)

    def test_what_failed_has_no_figures(self):
        found = summary([record("bimetal", 0, 9), record("lmdb", 0, 1, values={"failed": "full"})])
        self.assertIsNone(found.median(found.cells()[0], "lmdb", "ops_per_s"))
        self.assertEqual(found.failures(), ["lmdb: full"])


class Bars(unittest.TestCase):
    def judged(self, made=None, **how):
        bar = Bar("op/s", "ops_per_s", **{"bases": ("nbdkit",), **how})
        return bar.judge(summary(made), place)

    def test_the_worst_cell_decides(self):
        self.assertEqual(self.judged(at_least=1.5), {
            "bar": "op/s", "limit": "at least 1.5", "worst": 1.5, "where": "nbdkit, depth 1",
            "met": True})
        self.assertFalse(self.judged(at_least=1.6)["met"])
        self.assertEqual(self.judged(at_most=3)["worst"], 4.0)
        self.assertFalse(self.judged(at_most=3)["met"])

    def test_a_bar_may_be_about_some_cells_and_about_the_figure_itself(self):
        found = self.judged(at_most=3, applies=lambda cell: cell["depth"] == 1)
        self.assertTrue(found["met"])
        found = self.judged(bases=(None,), at_least=40)
        self.assertEqual((found["worst"], found["where"]), (40, "depth 64"))

    def test_nine_rounds_of_ten(self):
        made = [record(subject, turn, value)
                for turn, ours in enumerate([9, 20, 20, 20, 20, 20, 20, 20, 20, 20])
                for subject, value in (("bimetal", ours), ("nbdkit", 10))]
        self.assertTrue(self.judged(made, at_least=2, in_nine_of_ten=True)["met"])
        made[2]["values"]["ops_per_s"] = 19
        self.assertFalse(self.judged(made, at_least=2, in_nine_of_ten=True)["met"])

    def test_without_figures_there_is_no_verdict(self):
        self.assertIsNone(self.judged(at_least=1, subject="threads"))
        self.assertEqual(judging.judge([Bar("x", "y", at_least=1)], summary(), place), [])


class Tables(unittest.TestCase):
    def test_text_and_markdown(self):
        table = tables.long(summary(), "t", [("depth", lambda cell: cell["depth"])],
                            [("op/s", "ops_per_s", "{:,.0f}")],
                            [("of nbdkit", "ops_per_s", "nbdkit")], ["bimetal"])
        self.assertEqual(table.markdown(), [
            "| depth | subject | op/s | of nbdkit |", "|---|---|---|---|",
            "| 1 | bimetal | 300 | 1.50 |", "| 64 | bimetal | 40 | 4.00 |"])
        self.assertEqual(table.without("subject").text(), [
            "depth  op/s  of nbdkit", "    1   300       1.50", "   64    40       4.00"])

    def test_numbers_have_the_digits_that_mean_something(self):
        self.assertEqual([tables.number(value) for value in (None, 1234.5, 12.34, 1.234)],
                         ["-", "1,234", "12.3", "1.23"])
