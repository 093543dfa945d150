"""The programs of this project that benchmarks run."""

# The words that name these verbs of the lab's program.
SIM_CACHE = ("sim", "cache")
TRACE = ("trace",)


def server(args):
    """Returns the absolute path of the program that serves."""
    return args.binary.resolve()


def lab(args):
    """Returns the absolute path of the program that simulates; today the same one serves."""
    return args.binary.resolve()


def volatile_disk(args):
    """Returns the absolute path of the disk of the tests, which is built beside the program."""
    return (args.disk or args.binary.with_name("volatile-disk")).resolve()
