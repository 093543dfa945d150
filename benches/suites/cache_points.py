"""Device time of replacement policies relative to LRU, over a folder of traces.

A point is a trace at a size, a share of the pages that it touches. All figures come from the cache
simulation. The tables have, for every device, the geometric mean and the extremes over all points,
and a row for every point. The usual points were fixed before the default policy was tuned: the nine
shipped traces that distinguish reads from writes, at 1, 5 and 20 %. `--only` and `--without` select
traces, so that one half can be used for tuning and the other for the report.

    python3 benches cache-points --traces DIR --ftl page --policy abm-lru-clc,bimetal
"""

import contextlib
import math
import pathlib

from harness import options, processes, programs, tables
from harness.suite import Group, Suite

# Parts of the names of the traces, and the names to print.
TRACES = {"w92": "w92", "pgbench": "pgbench", "varmail": "varmail", "gcc": "gcc",
          "DTRS100M": "dtrs", "postmark": "postmark", "iozone": "iozone", "tpcc": "tpcc",
          "wsrch": "wsrch"}
BASE = "lru"
TIME = "device_time_us"


def find_traces(args):
    """Returns the files to read, by the names to print."""
    files = sorted(path for path in args.traces.iterdir() if path.is_file())
    if args.all:
        found = {path.name.split(".")[0]: path for path in files}
    else:
        found = {}
        for part, name in TRACES.items():
            matching = [path for path in files if part in path.name]
            if len(matching) != 1:
                raise SystemExit(f"{args.traces}: {len(matching)} files are named *{part}*")
            found[name] = matching[0]
    return {name: path for name, path in found.items() if name not in args.without}


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


class CachePoints(Suite):
    """Policies."""

    name, group = "cache-points", "simulation"
    line = "device time of replacement policies relative to LRU"
    defaults = {"rounds": 1}
    quick = {"size": ["1%"], "ftl": ["page"]}
    axes = ("trace", "size", "ftl")
    headline = (TIME,)

    def add_options(self, parser):
        parser.add_argument("--traces", type=pathlib.Path, help="the folder of the traces")
        parser.add_argument("--all", action="store_true", help="every file there is a trace")
        parser.add_argument("--without", type=options.words, default=[], help="traces")
        parser.add_argument("--policy", type=options.words, default=["abm-lru-clc", "bimetal"])
        parser.add_argument("--size", type=options.words, help="default: 1%%,5%%,20%%")
        parser.add_argument("--ftl", type=options.words, help="devices (default: fast,page)")
        parser.add_argument("extra", nargs="*", help="options of the simulation, after --")

    def missing(self, args):
        if not args.traces:
            return "--traces DIR says where the traces are"
        return programs.lab_missing(args)

    def groups(self, args):
        if not args.traces:
            raise SystemExit("cache-points: --traces DIR says where the traces are")
        traces = find_traces(args)
        extra = {"extra": args.extra} if args.extra else {}
        cells = [{"trace": name, "size": size, "ftl": ftl, **extra} for name in traces
                 for size in args.size or ["1%", "5%", "20%"]
                 for ftl in args.ftl or ["fast", "page"]]
        cells = options.chosen(cells, args.only, self.axes)
        policies = list(dict.fromkeys([BASE, *args.policy]))
        return [Group(cells, policies, lambda: self.session(args, traces, policies), rounds=1)]

    def order(self, cell):
        names = list(TRACES.values())
        at = names.index(cell["trace"]) if cell["trace"] in names else len(names)
        return cell["ftl"], at, cell["trace"], float(cell["size"].rstrip("%"))

    @contextlib.contextmanager
    def session(self, args, traces, policies):
        """Nothing to start. One run, which decodes the trace once, gives all policies of a cell."""
        found, of = {}, None

        def measure(cell, policy, _turn):
            nonlocal found, of
            if of != cell:
                said = processes.run_json(
                    [programs.lab(args), *programs.SIM_CACHE, "--trace", traces[cell["trace"]],
                     "--policy", ",".join(policies), "--size", cell["size"], "--ftl", cell["ftl"],
                     "--json", *args.extra], within_s=None)
                found, of = {record["policy"]: record for record in said}, cell
            return {name: value for name, value in found[policy].items()
                    if isinstance(value, (int, float))}
        yield measure

    def tables(self, summary):
        ftls = dict.fromkeys(cell["ftl"] for cell in summary.cells())
        return {ftl: self.table(summary, ftl) for ftl in ftls}

    @staticmethod
    def table(summary, ftl):
        """Returns the table of one device."""
        points = [cell for cell in summary.cells() if cell["ftl"] == ftl]
        policies = [policy for policy in summary.subjects() if policy != BASE]
        columns = [[summary.ratio(cell, policy, BASE, TIME) for cell in points]
                   for policy in policies]
        known = [[value for value in column if value is not None] for column in columns]
        rows = [[title, *(tables.number(figure(column), "{:.3f}") for column in known)]
                for title, figure in ((f"geometric mean of {len(points)}", geometric_mean),
                                      ("least", min), ("most", max))]
        rows += [[f"{cell['trace']} {cell['size']}",
                  *(tables.number(column[at], "{:.3f}") for column in columns)]
                 for at, cell in enumerate(points)]
        return tables.Table(f"{ftl}, time / {BASE}", [f"{ftl}, time / {BASE}", *policies], rows)


SUITE = CachePoints()
