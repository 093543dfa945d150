"""The error of the cache simulation with `--sample`, compared with full runs.

For every trace there are sizes of 1, 2, 5, 10, 20 and 50 % of its distinct pages; the error is the
absolute difference of miss ratios. `plain` is the mean error without the correction for hot pages.
Times are those of whole processes, including decoding, on one thread. The second table has the
errors at all rates together, by the number of pages that represent a cache: those of the small
cache, or all of the sample if they are fewer.

    python3 benches sample-error --rates 0.5,0.1,0.01 TRACE...
"""

import contextlib
import pathlib

from harness import options, processes, programs, tables
from harness.suite import Group, Suite

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
PAGES = (1, 10, 30, 100, 300, 1000, 3000)
LOOK_AT_BLOCKS = ("clc", "fab", "block", "abm", "bimetal")
POLICIES = "lru,arc,lirs,s3-fifo,w-tinylfu,clc,abm-lru-clc,bimetal"


class Full:
    """The full run of a trace, executed at its first use."""

    def __init__(self, args, trace):
        self.args, self.trace, self.known = args, trace, None

    def simulate(self, sizes, *words):
        """Returns records by policy and size, and the seconds of processor time."""
        before_s = processes.children_user_s()
        said = processes.run_json(
            [programs.lab(self.args), *programs.SIM_CACHE, "--trace", self.trace, "--policy",
             self.args.policy, "--size", ",".join(map(str, sizes)), "--jobs", 1, "--json", *words],
            within_s=None)
        return ({(one["policy"], one["size_pages"]): one for one in said},
                processes.children_user_s() - before_s)

    def get(self):
        """Returns the sizes, the records and the seconds of the full run."""
        if self.known is None:
            summary = processes.run_json([programs.lab(self.args), *programs.TRACE, "summary",
                                          self.trace, "--json"], within_s=None)
            sizes = sorted({max(1, round(summary["footprint_pages"] * share))
                            for share in SHARES})
            self.known = sizes, *self.simulate(sizes)
        return self.known

    def compare(self, rate):
        """Returns the values of one rate. A point has its policy, the pages of the small cache, the
        pages that represent it, its error, and the error without the correction."""
        sizes, right, full_s = self.get()
        sampled, sampled_s = self.simulate(sizes, "--sample", rate)
        points = []
        for (policy, size), one in sampled.items():
            ratio = right[policy, size]["miss_ratio"]
            plain = one["misses"] * float(rate) / one["sampled_accesses"]
            stood = min(one["simulated_pages"], one["footprint_pages"] * float(rate))
            points.append([policy, one["simulated_pages"], stood, abs(one["miss_ratio"] - ratio),
                           abs(plain - ratio)])
        return {"cpu_s": sampled_s, "full_cpu_s": full_s, "points": points}


class SampleError(Suite):
    """Samples."""

    name, group = "sample-error", "simulation"
    line = "the error of samples of traces against full runs"
    defaults = {"rounds": 1}
    quick = {"rates": ["0.1"]}
    axes = ("trace", "rate")
    headline = ("cpu_s", "full_cpu_s")

    def add_options(self, parser):
        parser.add_argument("--rates", type=options.words, help="default: 0.5,0.1,0.01")
        parser.add_argument("--policy", default=POLICIES)
        parser.add_argument("--least-pages", type=int, default=1,
                            help="leave out points whose small cache has fewer pages")
        parser.add_argument("traces", nargs="*", type=pathlib.Path, metavar="TRACE")

    def missing(self, args):
        return programs.lab_missing(args) if args.traces else "it needs the files of traces"

    def groups(self, args):
        full = {trace.name: Full(args, trace) for trace in args.traces}
        cells = [{"trace": trace.name, "rate": rate, "policies": args.policy,
                  "least_pages": args.least_pages}
                 for trace in args.traces for rate in args.rates or ["0.5", "0.1", "0.01"]]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, ["bimetal"], lambda: self.session(full), rounds=1)]

    @contextlib.contextmanager
    def session(self, full):
        """Nothing to start."""
        yield lambda cell, _subject, _turn: full[cell["trace"]].compare(cell["rate"])

    def tables(self, summary):
        by_rate = {}
        for one in summary.records:
            by_rate.setdefault(one["cell"]["rate"], []).append(one)
        rows = [row for rate in sorted(by_rate, key=float, reverse=True)
                for row in rows_of(rate, by_rate[rate])]
        head = ["rate", "policies", "points", "mean error", "largest",
                "mean without the correction", "speed-up"]
        points = [point for one in summary.records for point in one["values"]["points"]]
        return {"": tables.Table("errors of the miss ratio", head, rows),
                "pages": by_pages(points)}


def rows_of(rate, made):
    """Returns the rows of one rate: of the policies for pages and for blocks."""
    full_s, sampled_s = (sum(one["values"][name] for one in made)
                         for name in ("full_cpu_s", "cpu_s"))
    found = {"page": [], "block": []}
    for one in made:
        for policy, simulated, _, *both in one["values"]["points"]:
            if simulated >= one["cell"]["least_pages"]:
                blocks = any(word in policy for word in LOOK_AT_BLOCKS)
                found["block" if blocks else "page"].append(both)
    for kind, both in found.items():
        if both:
            mean, plain = (sum(column) / len(both) for column in zip(*both))
            # A short trace takes less processor time than the clock resolves.
            speed_up = f"{full_s / sampled_s:.1f}" if sampled_s else "-"
            yield [rate, kind, str(len(both)), f"{mean:.4f}",
                   f"{max(error for error, _ in both):.3f}", f"{plain:.4f}",
                   speed_up]


def by_pages(points):
    """Returns the errors by ranges of pages."""
    rows = []
    for low, high in zip(PAGES, (*PAGES[1:], None)):
        found = sorted(error for _, _, pages, error, _ in points
                       if low <= pages and (high is None or pages < high))
        if found:
            title = f"{low} to {high - 1}" if high else f"{low} and more"
            rows.append([title, str(len(found)), f"{sum(found) / len(found):.3f}",
                         f"{found[len(found) * 9 // 10]:.3f}", f"{found[-1]:.3f}"])
    head = ["pages", "points", "mean error", "nine tenths are below", "largest"]
    return tables.Table("errors by pages", head, rows)


SUITE = SampleError()
