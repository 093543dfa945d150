"""The programs of this project that benchmarks run."""

from harness import options

# The command-line names of these verbs of the lab's program.
SIM_CACHE = ("cache",)
TRACE = ("trace",)


def server(args):
    """Returns the absolute path of the program that serves."""
    return args.binary.resolve()


def lab(args):
    """Returns the absolute path of `bimetal-lab`, which is built beside the program that serves."""
    return args.binary.with_name("bimetal-lab").resolve()


def lab_missing(args):
    """Returns why `bimetal-lab` cannot be run, or `None`."""
    return options.program_missing(lab(args), "cargo build --release -p bimetal-lab-cli")


def volatile_disk(args):
    """Returns the absolute path of the tests' emulated disk, which is built beside the program."""
    return (args.disk or args.binary.with_name("volatile-disk")).resolve()
