"""The picture of the README: the slowest write or read of each second of `bimetal demo`.

It has one line for each stack of the demo, on a logarithmic scale, and contains its own
description, because it may be viewed without the page. The result of the run is read from a file,
and the table of the README is printed to standard error.

    bimetal demo --json > demo.json
    python3 benches demo-figure --from demo.json > docs/figures/demo.svg
"""

import json
import math
import pathlib
import sys

from harness.suite import Command

# The mirror stands out, and colour alone never distinguishes two lines: each has its name at its
# end.
LINES = {"SSD alone": ("#cc6677", 1.6), "HDD alone": ("#e69f00", 1.6), "mirror": ("#004488", 3)}
WIDTH, HEIGHT = 760, 330
LEFT, TOP, RIGHT, BOTTOM = 66, 64, 96, 44
LEAST_MS, MOST_MS = 1, 10_000
GRID_MS = (1, 10, 100, 1000, 10_000)
NAME_PX = 14


def at_x(second, seconds):
    """Returns the place of a second."""
    return LEFT + (WIDTH - LEFT - RIGHT) * second / max(seconds, 1)


def at_y(ms):
    """Returns the place of a latency."""
    part = math.log10(min(max(ms, LEAST_MS), MOST_MS) / LEAST_MS) / math.log10(MOST_MS / LEAST_MS)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def shown(ms):
    """Returns a latency in words."""
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"


def axes(seconds):
    """The frame: latencies at the left, seconds below."""
    for ms in GRID_MS:
        y = at_y(ms)
        yield (f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
               f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown(ms)}</text>')
    for second in range(0, seconds + 1, 5):
        yield (f'<text x="{at_x(second, seconds):.1f}" y="{HEIGHT - BOTTOM + 18}" '
               f'text-anchor="middle">{second}</text>')
    yield (f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle" '
           'class="note">seconds</text>')


def figure(result):
    """The whole picture, line by line."""
    seconds = max(len(target["slowest_of_second_ns"]) for target in result["targets"])
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">')
    yield ("<style>.grid{stroke:#e2e2e2}polyline{fill:none;stroke-linejoin:round}"
           ".note{fill:#555555}.name{font-weight:bold}</style>")
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield (f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">'
           "The slowest request of each second, under the same load</text>")
    yield (f'<text x="{LEFT}" y="44" class="note">{result["writes_per_s"]} writes/s of 10 to '
           "500 KB and some reads, on an SSD that freezes, a disk, and the mirror of such a pair"
           "</text>")
    yield from axes(seconds)
    ends = []
    for target in result["targets"]:
        colour, width = LINES[target["name"]]
        points = [(second + 1, ns / 1e6)
                  for second, ns in enumerate(target["slowest_of_second_ns"]) if ns is not None]
        path = " ".join(f"{at_x(second, seconds):.1f},{at_y(ms):.1f}" for second, ms in points)
        yield f'<polyline points="{path}" stroke="{colour}" stroke-width="{width}"/>'
        ends.append((at_y(points[-1][1]), target["name"], colour))
    last = -math.inf
    for y, name, colour in sorted(ends):
        last = max(y, last + NAME_PX)
        yield (f'<text x="{WIDTH - RIGHT + 8}" y="{last + 4:.1f}" fill="{colour}" '
               f'class="name">{name}</text>')
    yield "</svg>"


def table(result):
    """The table of the README, line by line."""
    yield f"    {'':9} {'writes':>8} {'p50':>8} {'p99':>8} {'p99.9':>8} {'max':>8}"
    for target in result["targets"]:
        write = target["write"]
        cells = [shown(write[name] / 1e6) for name in ("p50_ns", "p99_ns", "p999_ns", "max_ns")]
        cells = " ".join(f"{cell:>8}" for cell in cells)
        yield f"    {target['name']:9} {write['count']:>8,} {cells}"


class Figure(Command):
    """Draws the figure."""

    name, group = "demo-figure", "mirrors"
    line = "the picture of the README, as SVG, from the result of bimetal demo --json"

    def add_options(self, parser):
        parser.add_argument("--from", dest="source", type=pathlib.Path, metavar="FILE",
                            required=True, help="the result of the demo")

    def run(self, args):
        result = json.loads(args.source.read_text())
        late = max(result["host"].values())
        if late:
            print(f"the machine was late by {shown(late / 1e6)}: run the demo on another disk, or "
                  "when the machine does nothing else", file=sys.stderr)
        print("\n".join(figure(result)))
        print("\n".join(table(result)), file=sys.stderr)
        return 0


SUITE = Figure()
