#!/usr/bin/env python3
"""Makes the report on the five papers with the workers of a Dask cluster.

    papers_dask.py --out DIR [--scheduler ADDRESS] [--workers N] [--parts N]
                   [--program PATH] [-- OPTIONS OF `bimetal-lab papers`]

Each part is one run of `bimetal-lab papers --shard I/N`, which keeps its runs in DIR/parts/I. When a
worker dies, Dask gives its part to another one, which goes on with the runs that are there. In the
end `bimetal-lab papers --merge` writes the report to DIR. All workers need the program under the
same path, and DIR on storage that they share.

Without --scheduler, N workers are started on this machine. The Debian package of the engine is
python3-distributed.
"""

import argparse
import ctypes
import os
import pathlib
import signal
import subprocess
import sys

try:
    from distributed import Client, LocalCluster, as_completed
except ImportError:
    sys.exit("papers_dask.py: Dask is missing; its Debian package is python3-distributed")

PR_SET_PDEATHSIG = 1


def end_with_parent():
    """Has the kernel end this process with the worker that started it, so that a part that was
    given to another worker is not made twice at the same time."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def make_part(program, options, part, parts, out):
    """Makes a part and returns its folder. Raises the messages of the program if it fails."""
    folder = pathlib.Path(out) / "parts" / str(part)
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [program, "papers", *options, "--shard", f"{part}/{parts}", "--out", str(folder)]
    made = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=end_with_parent, check=False
    )
    if made.returncode != 0:
        raise RuntimeError(f"part {part} of {parts}: {made.stderr.strip()}")
    return str(folder)


def arguments():
    parser = argparse.ArgumentParser(
        description="Makes the report on the five papers with the workers of a Dask cluster.",
        epilog="Options of `bimetal-lab papers` follow after --, such as -- --scale full",
    )
    parser.add_argument("--out", required=True, help="folder of the report, shared by all workers")
    parser.add_argument("--scheduler", help="address of a scheduler, such as tcp://192.0.2.1:8786")
    parser.add_argument("--workers", type=int, default=2, help="workers to start on this machine")
    parser.add_argument("--parts", type=int, help="number of parts; four for each worker")
    parser.add_argument("--program", default="bimetal-lab", help="path of bimetal-lab on the workers")
    parser.add_argument("options", nargs="*", help="options of `bimetal-lab papers`")
    return parser.parse_args()


def main():
    args = arguments()
    out = str(pathlib.Path(args.out).resolve())
    if args.scheduler:
        cluster = args.scheduler
    else:
        cluster = LocalCluster(
            n_workers=args.workers, threads_per_worker=1, dashboard_address=None
        )
    with Client(cluster) as client:
        workers = client.scheduler_info()["workers"]
        if not workers:
            sys.exit(f"{args.scheduler}: the scheduler has no workers yet")
        pids = client.run(os.getpid)
        for address, pid in sorted(pids.items()):
            print(f"worker {address} is process {pid}", flush=True)
        parts = args.parts or 4 * len(workers)
        tasks = [
            client.submit(
                make_part, args.program, args.options, part, parts, out, pure=False, retries=2
            )
            for part in range(1, parts + 1)
        ]
        folders = []
        for task, folder in as_completed(tasks, with_results=True, raise_errors=True):
            folders.append(folder)
            print(f"{len(folders)} of {parts} parts are made", flush=True)
    # The order of the parts does not matter to the report.
    merge = [args.program, "papers", "--merge", *folders, "--out", out]
    sys.exit(subprocess.run(merge, check=False).returncode)


if __name__ == "__main__":
    main()
