"""The options that all benchmarks have, in one place."""

import pathlib


def add(parser, suite):
    """Adds the common options of a suite to a parser."""
    defaults = {**suite.defaults, "binary": suite.defaults.get("binary", "target/release/bimetal")}
    quick = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in suite.quick.items())
    quick = quick.replace("%", "%%")

    def say(text, name):
        return f"{text} (default: {defaults[name]})" if defaults.get(name) is not None else text

    parser.add_argument("--binary", type=pathlib.Path, help=say("program to measure", "binary"))
    parser.add_argument("--rounds", type=int, help=say("how often each cell is measured", "rounds"))
    if "seconds" in defaults:
        parser.add_argument("--seconds", type=float, help=say("length of a measurement", "seconds"))
    if "dir" in defaults:
        parser.add_argument("--dir", type=pathlib.Path, help=say("folder for files", "dir"))
    parser.add_argument("--only", type=words, default=[], metavar="A,B",
                        help=f"cells to measure, as {':'.join(suite.axes).upper()} or its start")
    parser.add_argument("--quick", action="store_true", help=f"a short run: {quick}")
    parser.add_argument("--within", type=float, metavar="SECONDS",
                        help="stop after this time; the same command then goes on")
    parser.add_argument("--out", type=pathlib.Path, default=records_file(suite.name),
                        help=f"file of records (default: {records_file(suite.name)})")
    parser.add_argument("--fresh", action="store_true", help="delete the file of records first")
    parser.add_argument("--report", action="store_true", help="show the records, measure nothing")
    parser.add_argument("--markdown", action="store_true", help="print tables for a page")
    parser.add_argument("--json", action="store_true", help="print medians and verdicts as JSON")
    parser.add_argument("--check", action="store_true", help="status 1 where a bar is not met")


def records_file(name):
    """Returns the default path of the records of a benchmark."""
    return pathlib.Path("target/bench") / f"{name}.jsonl"


def words(text):
    """Returns the comma-separated parts."""
    return [word for word in text.split(",") if word]


def settle(args, suite):
    """Sets the options that were not given: to the values of a short run with `--quick`, otherwise
    to the defaults."""
    values = {"binary": "target/release/bimetal", **suite.defaults}
    if args.quick:
        values.update(suite.quick)
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    args.binary = pathlib.Path(args.binary)
    if getattr(args, "dir", None) is not None:
        args.dir = pathlib.Path(args.dir)


def chosen(cells, only, axes, make=None):
    """Returns the cells that `--only` names, by the values of their axes or the first of these.

    `make(words)` makes a cell that is not among the usual ones, or returns `None`.
    """
    if not only:
        return cells
    found = []
    for pattern in only:
        parts = pattern.split(":")
        matching = [cell for cell in cells
                    if [str(cell[axis]) for axis in axes][:len(parts)] == parts]
        made = make(parts) if not matching and make else None
        if not matching and made is None:
            raise SystemExit(f"--only {pattern}: no such cell; see --help")
        found += matching or [made]
    return found


def program_missing(path, how="cargo build --release -p bimetal-cli"):
    """Returns why a program cannot be run, or `None`."""
    if not pathlib.Path(path).is_file():
        return f"{path} is missing; build it: {how}"
    return None
