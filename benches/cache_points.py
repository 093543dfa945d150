#!/usr/bin/env python3
"""Device time of replacement policies relative to LRU, over a folder of traces.

A point is a trace at a size, a share of the pages that it touches. All figures come from
`bimetal sim cache`. Printed for every device: the geometric mean and the extremes over all points,
and a row for every point. The default points were fixed before the default policy was tuned: the
nine shipped traces that tell reads from writes, at 1, 5 and 20 %.

    benches/cache_points.py --binary target/release/bimetal --traces DIR
    benches/cache_points.py --traces DIR --ftl page --policy abm-lru-clc,bimetal --markdown

`--save FILE` keeps the records and `--known FILE` uses records kept before instead of running again;
both are of one binary. `--only a,b` and `--without a,b` choose traces by parts of their names, to
choose on one half and report on the other.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys

# Parts of the names of the traces, and the names to print.
TRACES = {"w92": "w92", "pgbench": "pgbench", "varmail": "varmail", "gcc": "gcc",
          "DTRS100M": "dtrs", "postmark": "postmark", "iozone": "iozone", "tpcc": "tpcc",
          "wsrch": "wsrch"}
BASE = "lru"


def find_traces(args):
    """The files to read, by the names to print."""
    files = sorted(path for path in pathlib.Path(args.traces).iterdir() if path.is_file())
    found = {}
    for part, name in TRACES.items():
        matching = [path for path in files if part in path.name]
        if args.all:
            break
        if len(matching) != 1:
            sys.exit(f"{args.traces}: {len(matching)} files with `{part}` in their names")
        found[name] = matching[0]
    if args.all:
        found = {path.name.split(".")[0]: path for path in files}
    if args.only:
        found = {name: path for name, path in found.items() if name in args.only}
    return {name: path for name, path in found.items() if name not in args.without}


def key(name, size, ftl, policy):
    return f"{name} {size} {ftl} {policy}"


def measure(args, traces, known):
    """Runs what is not known; returns the records by [`key`]."""
    records = dict(known)
    for name, path in traces.items():
        for size in args.size:
            wanted = [(ftl, policy) for ftl in args.ftl for policy in [BASE, *args.policy]
                      if key(name, size, ftl, policy) not in records]
            for ftl in dict.fromkeys(ftl for ftl, _ in wanted):
                policies = [policy for of, policy in wanted if of == ftl]
                command = [args.binary, "sim", "cache", "--trace", str(path), "--policy",
                           ",".join(dict.fromkeys(policies)), "--size", size, "--ftl", ftl,
                           "--json", *args.extra]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                for record in json.loads(done.stdout):
                    records[key(name, size, ftl, record["policy"])] = record
    return records


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def table(head, rows, markdown):
    """Lines of a table; numbers are text already."""
    if markdown:
        yield "| " + " | ".join(head) + " |"
        yield "|" + "---|" * len(head)
        for row in rows:
            yield "| " + " | ".join(row) + " |"
        return
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    for row in [head, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def report(args, traces, records, ftl):
    """The table of one device."""
    points = [(name, size) for name in traces for size in args.size]

    def relative(name, size, policy):
        time = records[key(name, size, ftl, policy)]["device_time_us"]
        return time / records[key(name, size, ftl, BASE)]["device_time_us"]

    columns = {policy: [relative(*point, policy) for point in points] for policy in args.policy}
    rows = [[f"geometric mean of {len(points)}"], ["least"], ["most"]]
    for column in columns.values():
        for row, figure in zip(rows, (geometric_mean(column), min(column), max(column))):
            row.append(f"{figure:.3f}")
    for at, (name, size) in enumerate(points):
        rows.append([f"{name} {size}", *(f"{column[at]:.3f}" for column in columns.values())])
    yield from table([f"{ftl}, time / {BASE}", *columns], rows, args.markdown)


def names(text):
    return [name for name in text.split(",") if name]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/bimetal")
    parser.add_argument("--traces", required=True, help="the folder")
    parser.add_argument("--all", action="store_true", help="every file of the folder is a trace")
    parser.add_argument("--only", type=names, default=[])
    parser.add_argument("--without", type=names, default=[])
    parser.add_argument("--policy", type=names, default=["abm-lru-clc", "bimetal"])
    parser.add_argument("--size", type=names, default=["1%", "5%", "20%"])
    parser.add_argument("--ftl", type=names, default=["fast", "page"])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--save", type=pathlib.Path)
    parser.add_argument("--known", type=pathlib.Path, action="append", default=[])
    parser.add_argument("extra", nargs="*", help="options for `sim cache`, after --")
    args = parser.parse_args()
    args.policy = [policy for policy in args.policy if policy != BASE]

    known = {}
    for file in args.known:
        if file.exists():
            known.update(json.loads(file.read_text()))
    traces = find_traces(args)
    records = measure(args, traces, known)
    if args.save:
        args.save.write_text(json.dumps(records, indent=1) + "\n")
    for ftl in args.ftl:
        print("\n".join(report(args, traces, records, ftl)), end="\n\n")


if __name__ == "__main__":
    main()
