"""Tables in pages, generated from records.

A table stands between the markers `<!-- bench: NAME [VARIANT] [TABLE] -->` and `<!-- end -->`. It
is replaced if the records have figures for it. All other tables, and all text outside the markers,
stay unchanged.
"""

import pathlib
import re
import textwrap

from harness import host, options, records
from harness.suite import Command, heading

MARKED = re.compile(r"^(?P<indent> *)<!-- bench: (?P<name>[^>]*?) -->\n(?P<body>.*?)"
                    r"^ *<!-- end -->\n", re.DOTALL | re.MULTILINE)
COLUMNS = 100


def replaced(text, tables):
    """Returns a page with the named tables inserted, and the names of the inserted and of the kept
    tables.

    `tables` has the lines of each table by its name.
    """
    put_in, kept = [], []

    def put(found):
        name = found["name"]
        if name not in tables:
            kept.append(name)
            return found[0]
        put_in.append(name)
        lines = [f"<!-- bench: {name} -->", *tables[name], "<!-- end -->"]
        return "".join(f"{found['indent']}{line}".rstrip() + "\n" for line in lines)

    return MARKED.sub(put, text), put_in, kept


def newest(suite, made):
    """Returns the records for one table: those of the program, host and priority of the latest run,
    and for each place in the table only those of its latest conditions."""
    def conditions(one):
        return records.cell_key(one["cell"], (*suite.axes, "turn"))

    in_time = sorted(made, key=lambda one: one["time"])
    run = records.run_key(in_time[-1])
    in_time = [one for one in in_time if records.run_key(one) == run]
    latest = {suite.place_name(one["cell"]): conditions(one) for one in in_time}
    return [one for one in in_time if conditions(one) == latest[suite.place_name(one["cell"])]]


def provenance(summary):
    """Returns the paragraph on the origin of the figures."""
    found = summary.records
    commands = "; ".join(f"`{one}`" for one in dict.fromkeys(made["command"] for made in found))
    commit = " and ".join(dict.fromkeys(
        made["commit"][:10] + (" with changes" if made["dirty"] else "") for made in found))
    machine = found[-1]["host"]
    dates = sorted({made["time"][:10] for made in found})
    text = (f"From {commands}, commit {commit}, on {machine['cpu']}, {machine['cores']} cores,"
            f" {machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']};"
            f" {heading(summary)}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.")
    return textwrap.wrap(text, COLUMNS - 4, break_long_words=False, break_on_hyphens=False)


def tables_of(suite, made):
    """Returns the lines of each table that the records of a suite give, by its name on a page."""
    by_variant = {}
    for one in made:
        by_variant.setdefault(one["cell"].get("variant", ""), []).append(one)
    found = {}
    for variant, some in by_variant.items():
        summary = suite.summary(newest(suite, some))
        for key, table in suite.all_tables(summary).items():
            name = " ".join(word for word in (suite.name, variant, key) if word)
            found[name] = [*table.markdown(), "", *provenance(summary)]
    return found


class Page(Command):
    """Inserts figures into the pages."""

    name, group = "page", "all of them"
    line = "put the figures of records into the tables of docs/"
    about = """Puts the figures of records into the tables of the pages under docs/.

A table between the markers `<!-- bench: NAME -->` and `<!-- end -->` is replaced where the records
have figures for it. All other text stays. The records are those of target/bench/ unless --from
names others.

    python3 benches page nbd
    python3 benches page --from nbd.jsonl brp.jsonl"""

    def __init__(self, suites):
        """Knows the suites by name."""
        self.suites = suites

    def add_options(self, parser):
        parser.add_argument("--from", dest="sources", nargs="+", type=pathlib.Path, default=[],
                            metavar="FILE", help="files of records")
        parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; all by default")

    def run(self, args):
        unknown = [name for name in args.names if name not in self.suites]
        if unknown:
            raise SystemExit(f"page: no benchmark is called {', '.join(unknown)}")
        usual = [options.records_file(name) for name in self.suites]
        made = [one for path in args.sources or usual for one in records.load(path)]
        found = {}
        for name in args.names or self.suites:
            if some := [one for one in made if one["bench"] == name]:
                found.update(tables_of(self.suites[name], some))
        return put_into_pages(found)


def put_into_pages(found):
    """Inserts tables into all pages and prints the changes; returns the exit status."""
    placed = set()
    for path in sorted((host.ROOT / "docs").rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        after, put_in, kept = replaced(before, found)
        if after != before:
            path.write_text(after, encoding="utf-8")
        placed.update(put_in)
        for text, names in (("put in", put_in), ("kept", kept)):
            if names:
                print(f"{path.relative_to(host.ROOT)}: {text}: {', '.join(names)}")
    if homeless := sorted(set(found) - placed):
        print(f"no page has a place for: {', '.join(homeless)}")
    return 0
