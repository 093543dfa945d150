"""The paper's figure 7 from the records of `brp`: BRP-1, BRP-2, BRP-3T and ours, by depth.

Small multiples, UNIX and TCP beside each other, reads above writes, all on one scale. The figure
contains its own description, because it may be viewed without the page.

    python3 benches brp-figure > docs/figures/brp-modes.svg
"""

import math
import pathlib

from harness import options, page, records
from harness.suite import Command
from suites import brp

# Our line stands out, and colour alone never distinguishes two lines: each has its name at its end.
LINES = [
    ("short", "BRP-1", "#999999"),
    ("parallel", "BRP-2", "#56b4e9"),
    ("merge-in-turn", "BRP-3T, in turn", "#e69f00"),
    ("merge", "BRP-3T", "#cc6677"),
    ("adaptive", "ours", "#004488"),
]
PANELS = [("unix", "randread", "reads, UNIX"), ("tcp", "randread", "reads, TCP"),
          ("unix", "randwrite", "writes, UNIX"), ("tcp", "randwrite", "writes, TCP")]
WIDTH, HEIGHT = 360, 210
LEFT, TOP, RIGHT, BOTTOM, HEAD = 46, 30, 104, 30, 52
NAME_PX = 13


def series(summary, transport, load, name):
    """Returns depths and thousands of operations a second, by depth."""
    points = [(cell["depth"], rate / 1e3) for cell in summary.cells()
              if (cell["transport"], cell["rw"]) == (transport, load)
              and (rate := summary.median(cell, name, "ops_per_s")) is not None]
    return sorted(points)


def round_up(value):
    """The next round number for an axis."""
    step = 10 ** math.floor(math.log10(value))
    return next(step * part for part in (1, 2, 2.5, 4, 5, 6, 8, 10) if step * part >= value)


def apart(wanted):
    """Moves the names at the ends of lines down until none overlaps another; wanted: (y, name,
    colour)."""
    placed, last = [], -math.inf
    for y, name, colour in sorted(wanted):
        last = max(y, last + NAME_PX)
        placed.append((last, name, colour))
    return placed


def axes(depth_max, most, at_x, at_y):
    """The frame of a panel: depths below, thousands of operations at the left."""
    for part in range(5):
        y, value = at_y(most * part / 4), most * part / 4
        yield (f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
               f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    depth = 1
    while depth <= depth_max:
        yield (f'<text x="{at_x(depth):.1f}" y="{HEIGHT - BOTTOM + 16}" '
               f'text-anchor="middle">{depth}</text>')
        depth *= 2


def panel(summary, what, most):
    """One panel as SVG, at the origin."""
    transport, load, title = what
    lines = [(name, said, colour, series(summary, transport, load, name))
             for name, said, colour in LINES]
    lines = [line for line in lines if len(line[3]) > 1]
    depth_max = max(depth for *_, points in lines for depth, _ in points)
    room_x, room_y = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at_x(depth):
        return LEFT + room_x * math.log2(depth) / math.log2(depth_max)

    def at_y(value):
        return HEIGHT - BOTTOM - room_y * value / most

    yield f'<text x="{LEFT}" y="{TOP - 12}" class="title">{title}</text>'
    yield from axes(depth_max, most, at_x, at_y)
    for name, said, colour, points in lines:
        path = " ".join(f"{at_x(depth):.1f},{at_y(value):.1f}" for depth, value in points)
        width = 3 if name == "adaptive" else 1.6
        yield f'<polyline points="{path}" stroke="{colour}" stroke-width="{width}"/>'
    ends = [(at_y(points[-1][1]), said, colour) for _, said, colour, points in lines]
    for y, said, colour in apart(ends):
        yield (f'<text x="{WIDTH - RIGHT + 6}" y="{y + 4:.1f}" fill="{colour}" '
               f'class="name">{said}</text>')


def figure(summary):
    """The whole picture, line by line."""
    present = [what for what in PANELS if len(series(summary, *what[:2], "adaptive")) > 1]
    if not present:
        raise SystemExit("the records have the adaptive mode at fewer than two depths")
    most = round_up(max(value for transport, load, _ in present for name, *_ in LINES
                        for _, value in series(summary, transport, load, name)))
    rows = math.ceil(len(present) / 2)
    width, height = 2 * WIDTH, HEAD + rows * HEIGHT + 6
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">')
    yield ("<style>.grid{stroke:#e2e2e2}polyline{fill:none;stroke-linejoin:round}"
           ".title{font-size:13px;font-weight:bold}.name{font-weight:bold}</style>")
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">' \
          "What merging is worth at which depth</text>"
    yield (f'<text x="{LEFT}" y="40" fill="#555555">thousand operations of 4 KiB a second on a '
           "memory device, by requests in flight; one connection</text>")
    for number, what in enumerate(present):
        x, y = number % 2 * WIDTH, HEAD + number // 2 * HEIGHT
        yield f'<g transform="translate({x} {y})">'
        yield from panel(summary, what, most)
        yield "</g>"
    yield "</svg>"


class Figure(Command):
    """Draws the figure."""

    name, group = "brp-figure", "network"
    line = "the figure of BRP's modes, as SVG, from the records of brp"

    def add_options(self, parser):
        usual = options.records_file("brp")
        parser.add_argument("--from", dest="source", type=pathlib.Path, default=usual,
                            metavar="FILE", help=f"records of brp (default: {usual})")

    def run(self, args):
        made = [one for one in records.load(args.source) if one["bench"] == brp.SUITE.name]
        if not made:
            raise SystemExit(f"{args.source} has no records of brp")
        print("\n".join(figure(brp.SUITE.summary(page.newest(brp.SUITE, made)))))
        return 0


SUITE = Figure()
