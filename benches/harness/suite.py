"""Definition of a benchmark, and the code that runs it.

A module of `suites` has one class of `Suite` and the object `SUITE`. `--help` shows the docstring
of the module. The class defines the cells and subjects, how one measurement is made, and the tables
and bars of the figures; everything else is in this module.
"""

import json
import shlex
import sys

from harness import host, judging, options, records, rounds, tables
from harness.rounds import Group  # noqa: F401 - suites take both from here


class Command:
    """A subcommand: its name, its group in the list, one line about it, and its help."""

    name = ""
    group = ""
    line = ""

    @property
    def about(self):
        """Returns the text of `--help`: the docstring of the module."""
        return sys.modules[type(self).__module__].__doc__

    def add_options(self, parser):
        """Adds the suite's own options to a parser."""

    def run(self, args):
        """Runs the subcommand and returns the exit status."""
        raise NotImplementedError


class Suite(Command):
    """A benchmark. A suite overrides what differs from the defaults here."""

    # Values of the common options, by default and with --quick. A suite without a use for --seconds
    # or --dir omits it.
    defaults = {"rounds": 3, "seconds": 1.0}
    quick = {"rounds": 2, "seconds": 0.5}
    # The keys of a cell that distinguish the rows of a table; the others are conditions.
    axes = ()
    # The values that a line of progress shows.
    headline = ()
    bars = ()
    how_to_build = "cargo build --release -p bimetal-cli"

    def missing(self, _args):
        """Returns why the suite cannot be run here, or `None`."""
        return None

    def groups(self, args):
        """Returns the measurements, as a list of `Group`."""
        raise NotImplementedError

    def tables(self, summary):
        """Returns tables by their names on a page; a suite with one table calls it ""."""
        raise NotImplementedError

    def order(self, cell):
        """Returns the key by which cells are sorted in tables."""
        return tuple(cell[axis] for axis in self.axes)

    def place_name(self, cell):
        """Returns the name of a cell, as in `--only`."""
        return ":".join(str(cell[axis]) for axis in self.axes)

    def summary(self, made):
        """Returns records as a summary in the order of this suite."""
        return judging.Summary(made, self.order)

    def verdicts(self, summary):
        """Returns the verdicts of the bars."""
        return judging.judge(self.bars, summary, self.place_name)

    def all_tables(self, summary):
        """Returns the tables of the suite, and that of its bars."""
        found = self.tables(summary)
        if judged := self.verdicts(summary):
            found["bars"] = tables.verdicts(judged)
        return found

    def run(self, args):
        """Makes the missing measurements, then shows all results."""
        options.settle(args, self)
        store = records.Store(args.out)
        if args.report:
            return self.show(args, self.groups(args), store.latest(self.name))
        if reason := (options.program_missing(args.binary, self.how_to_build)
                      or self.missing(args)):
            raise SystemExit(f"{self.name}: {reason}")
        if args.fresh:
            args.out.unlink(missing_ok=True)
        context = host.context(command_line(sys.argv[1:]), args.binary)
        groups = self.groups(args)
        status = self.measure_missing(args, groups, store, context)
        return status or self.show(args, groups, store.comparable(self.name, context))

    def measure_missing(self, args, groups, store, context):
        """Makes the missing measurements; returns 3 if the time was up before the end."""
        known = store.comparable(self.name, context)

        def keep(*which_and_values):
            *which, values = which_and_values
            store.add(records.record(self.name, context, which, values))

        try:
            rounds.run(groups, args.rounds, known, keep, self.described, args.within)
        except rounds.TimeIsUp:
            print("the time is up; the same command continues from here", file=sys.stderr)
            return 3
        return 0

    def described(self, cell, subject, values):
        """Returns a line about one measurement."""
        shown = [f"{name} {tables.number(values[name])}"
                 for name in self.headline if values.get(name) is not None]
        return f"{self.place_name(cell)} {subject}: {', '.join(shown) or values.get('failed', '')}"

    def show(self, args, groups, known):
        """Prints tables and verdicts of the requested cells; returns the status."""
        asked = {records.cell_key(cell) for group in groups for cell in group.cells}
        subjects = {subject for group in groups for subject in group.subjects}
        summary = self.summary(made for made in known if made["subject"] in subjects
                               and records.cell_key(made["cell"]) in asked)
        if not summary.records:
            raise SystemExit(f"{args.out} has no such figures of this program on this host")
        judged = self.verdicts(summary)
        if args.json:
            print(json.dumps(as_json(self, summary, judged, args.out), indent=1))
        else:
            print_tables(self, summary, args.markdown)
            print_verdicts(judged, args.markdown)
            print(f"\nrecords: {args.out}")
        return 1 if args.check and not all(one["met"] for one in judged) else 0


# Options for the paths of the program and of the records and for the output, not for the
# measurement.
ASIDE = {"--binary": 1, "--out": 1, "--within": 1, "--fresh": 0, "--report": 0, "--markdown": 0,
         "--json": 0, "--check": 0}


def command_line(words):
    """Returns the command that repeats the measurement, from the arguments after `benches`."""
    kept, words = [], list(words)
    while words:
        name, equals, _ = (word := words.pop(0)).partition("=")
        if name not in ASIDE:
            kept.append(word)
        elif not equals:
            del words[:ASIDE[name]]
    return f"python3 benches {shlex.join(kept)}"


def heading(summary):
    """Returns the heading of every table: rounds and priority."""
    counts = summary.rounds()
    priorities = sorted({made["priority"] for made in summary.records})
    return (f"medians of {' to '.join(map(str, counts))} round{'' if counts == [1] else 's'},"
            f" priority {' and '.join(priorities)}")


def print_tables(suite, summary, markdown):
    """Prints the tables of a suite, then the measurements that were not possible."""
    for table in suite.tables(summary).values():
        print(f"\n{table.title}: {heading(summary)}")
        if markdown:
            print()
        print("\n".join(table.markdown() if markdown else table.text()))
    for failure in summary.failures():
        print(f"failed: {failure}")


def print_verdicts(judged, markdown):
    """Prints a line for each bar."""
    if judged and markdown:
        print("\n" + "\n".join(tables.verdicts(judged).markdown()))
        return
    print()
    for one in judged:
        print(f"{'met' if one['met'] else 'NOT MET':8} {one['bar']}: {one['limit']}, worst"
              f" {tables.number(one['worst'])} ({one['where']})")


def as_json(suite, summary, judged, path):
    """Returns the medians and verdicts as one object."""
    cells = []
    for cell in summary.cells():
        for subject in summary.subjects(cell):
            names = dict.fromkeys(name for made in summary.records if made["subject"] == subject
                                  for name, value in made["values"].items()
                                  if isinstance(value, (int, float)))
            medians = {name: summary.median(cell, subject, name) for name in names}
            cells.append({"cell": cell, "subject": subject, "medians": {
                name: value for name, value in medians.items() if value is not None}})
    return {"bench": suite.name, "records": str(path), "rounds": summary.rounds()[-1],
            "priority": sorted({made["priority"] for made in summary.records}),
            "cells": cells, "bars": judged}
