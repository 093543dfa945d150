"""Tables in pages."""

import unittest

from harness import page
from suites import nbd
from tests.made import record

PAGE = """# Benchmarks

Text before.

<!-- bench: nbd -->
| old | table |
|---|---|
| 1 | 2 |
<!-- end -->

- A list with a table:

  <!-- bench: index before -->
  kept
  <!-- end -->

Text behind.
"""


class Replacing(unittest.TestCase):
    def test_a_table_is_replaced_and_other_text_stays(self):
        after, put_in, kept = page.replaced(PAGE, {"nbd": ["| new |", "|---|"], "brp": ["x"]})
        self.assertEqual(after, PAGE.replace("| old | table |\n|---|---|\n| 1 | 2 |\n",
                                             "| new |\n|---|\n"))
        self.assertEqual((put_in, kept), (["nbd"], ["index before"]))

    def test_a_table_in_a_list_keeps_its_indent(self):
        after, _, _ = page.replaced(PAGE, {"index before": ["a", "", "b"]})
        self.assertEqual(after, PAGE.replace("  kept\n", "  a\n\n  b\n"))

    def test_without_figures_nothing_changes(self):
        self.assertEqual(page.replaced(PAGE, {})[0], PAGE)


class FromRecords(unittest.TestCase):
    CELL = {"conns": 1, "depth": 1, "rw": "randread", "seconds": 4.0, "variant": ""}

    def made(self, subject, turn, value, **more):
        made = record(subject, turn, value, self.CELL, **more)
        made["values"]["server_cpu_us_per_op"] = 8.0
        return made

    def test_the_table_has_the_figures_of_the_latest_program_and_says_where_from(self):
        old = self.made("bimetal", 0, 5, binary={"path": "b", "sha256": "old"})
        made = [old, self.made("bimetal", 1, 26000), self.made("nbdkit", 1, 20000)]
        found = page.tables_of(nbd.SUITE, made)
        self.assertEqual(sorted(found), ["nbd", "nbd bars"])
        self.assertEqual(found["nbd"][2], "| 1 | 1 | randread | 26,000 (8.00) | 20,000 (8.00)"
                                          " | 1.30 | 1.00 |")
        said = " ".join(found["nbd"][3:])
        for part in ("`python3 benches nbd`", "commit cccccccccc", "on x, 2 cores, 1 GiB",
                     "priority SCHED_OTHER nice 0", "2026-01-02"):
            self.assertIn(part, said)
        self.assertLessEqual(max(map(len, found["nbd"][3:])), 100)

    def test_conditions_are_not_mixed(self):
        short = self.made("bimetal", 0, 5)
        short["cell"] = {**self.CELL, "seconds": 1.0}
        made = [short, self.made("bimetal", 1, 26000)]
        self.assertEqual(page.newest(nbd.SUITE, made), made[1:])
