"""The program that runs all benchmarks: python3 benches SUBCOMMAND ..."""

import argparse
import signal
import sys

from harness import options, page
from harness.suite import Command, Suite
from suites import (block_status, brp, brp_figure, cache, cache_points, connections, demo_figure,
                    depth_one, index, large, live_cache, nbd, postmark, rebuild, sample_error,
                    stack, trust)

MODULES = (nbd, depth_one, connections, brp, brp_figure, stack, trust, rebuild, block_status, large,
           index, cache, cache_points, sample_error, live_cache, postmark, demo_figure)


class All(Command):
    """Runs every benchmark."""

    name, group = "all", "all of them"
    line = "run every benchmark that can be run here, one after the other"
    about = """Runs every benchmark, one after the other.

Those whose peers are missing are skipped, with the reason. Each of them goes on where its records
end. With --page the tables in docs/ are updated afterwards.

    python3 benches all --quick --only nbd,stack
    python3 benches all --page"""

    def __init__(self, suites):
        """Knows the suites by name."""
        self.suites = suites

    def add_options(self, parser):
        parser.add_argument("--quick", action="store_true", help="short runs")
        parser.add_argument("--only", type=options.words, default=[], metavar="NAMES",
                            help="benchmarks, separated by commas")
        parser.add_argument("--page", action="store_true", help="make the tables of docs/ anew")

    def run(self, args):
        unknown = [name for name in args.only if name not in self.suites]
        if unknown:
            raise SystemExit(f"all: no benchmark is called {', '.join(unknown)}")
        failed = [name for name in args.only or self.suites if not self.run_one(name, args.quick)]
        if failed:
            print(f"\nnot run: {', '.join(failed)}")
        if args.page:
            pages = page.Page(self.suites)
            pages.run(parsed(pages, args.only))
        return 0

    def run_one(self, name, quick):
        """Runs one suite with its defaults; returns whether it completed."""
        print(f"\n== {name}", flush=True)
        suite = self.suites[name]
        # The records contain the command that reproduces the figures.
        sys.argv[1:] = [name, *(["--quick"] if quick else [])]
        try:
            return suite.run(parsed(suite, sys.argv[2:])) == 0
        except SystemExit as error:
            print(f"skipped: {error.code}", flush=True)
            return False


def parser_of(command):
    """Returns the parser of a subcommand."""
    parser = argparse.ArgumentParser(prog=f"python3 benches {command.name}",
                                     description=command.about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_options(parser)
    if isinstance(command, Suite):
        options.add(parser, command)
    return parser


def parsed(command, words):
    """Returns the options of a subcommand."""
    return parser_of(command).parse_args(words)


def commands():
    """Returns the subcommands by name."""
    found = [module.SUITE for module in MODULES]
    suites = {command.name: command for command in found if isinstance(command, Suite)}
    return {command.name: command for command in [*found, All(suites), page.Page(suites)]}


def listed(known):
    """Returns the list of subcommands, grouped."""
    lines = ["usage: python3 benches SUBCOMMAND [OPTION...]",
             "", "Benchmarks of bimetal beside its peers. `SUBCOMMAND --help` says more."]
    for group in dict.fromkeys(command.group for command in known.values()):
        lines += ["", f"{group}:"]
        lines += [f"  {command.name:13} {command.line}" for command in known.values()
                  if command.group == group]
    return "\n".join(lines)


def main():
    """Runs the subcommand that is named; returns the exit status."""
    known = commands()
    # This signal must also end the started programs and remove the mounts.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(listed(known))
        return 0 if len(sys.argv) > 1 else 2
    if sys.argv[1] not in known:
        print(f"{listed(known)}\n\nno subcommand is called {sys.argv[1]}", file=sys.stderr)
        return 2
    command = known[sys.argv[1]]
    try:
        return command.run(parsed(command, sys.argv[2:]))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command continues from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
