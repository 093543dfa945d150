#!/usr/bin/env python3
"""What `bimetal sim cache --sample` is wrong by, against the full runs.

For every trace, sizes of 1, 2, 5, 10, 20 and 50 % of its distinct pages; the error is the absolute
difference of miss ratios. `plain` is the mean error without the correction for hot pages. Times are
those of whole processes, decoding included, on one thread.

    benches/sample_error.py --binary target/release/bimetal --rates 0.5,0.1,0.01 FILE...

With `--by-pages` the errors at all rates together, by the pages that stood for a cache: those of the
small cache, or all of the sample if they are fewer.
"""

import argparse
import json
import resource
import subprocess

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
PAGES = (1, 10, 30, 100, 300, 1000, 3000)
LOOK_AT_BLOCKS = ("clc", "fab", "block", "abm", "bimetal")


def run(binary, trace, policies, sizes, *options):
    """Records by policy and size, and the seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    words = [binary, "sim", "cache", "--trace", trace, "--policy", policies, "--size",
             ",".join(map(str, sizes)), "--jobs", "1", "--json", *options]
    out = subprocess.run(words, check=True, capture_output=True).stdout
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return {(r["policy"], r["size_pages"]): r for r in json.loads(out)}, seconds


def sizes_of(binary, trace):
    """The sizes to compare at, in pages."""
    words = [binary, "trace", "summary", trace, "--json"]
    summary = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return sorted({max(1, round(summary["footprint_pages"] * share)) for share in SHARES})


def errors(record, right, rate):
    """The error of a record, and what it were without the correction."""
    plain = record["misses"] * rate / record["sampled_accesses"]
    return abs(record["miss_ratio"] - right), abs(plain - right)


def show_by_pages(points):
    """Errors by ranges of pages."""
    print("pages  points  mean  nine tenths below  max")
    for low, high in zip(PAGES, (*PAGES[1:], float("inf"))):
        found = sorted(error for pages, error in points if low <= pages < high)
        if found:
            mean, most = sum(found) / len(found), found[len(found) * 9 // 10]
            print(f"{low}..{high}  {len(found)}  {mean:.4f}  {most:.4f}  {found[-1]:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--rates", default="0.5,0.1,0.01")
    parser.add_argument("--policy", default="lru,arc,lirs,s3-fifo,w-tinylfu,clc,abm-lru-clc,bimetal")
    parser.add_argument("--least-pages", type=int, default=1,
                        help="leave out points whose small cache has fewer pages")
    parser.add_argument("--by-pages", action="store_true")
    parser.add_argument("traces", nargs="+")
    args = parser.parse_args()
    full = {}
    for trace in args.traces:
        sizes = sizes_of(args.binary, trace)
        full[trace] = (sizes, *run(args.binary, trace, args.policy, sizes))
    points = []
    print("rate  policies  points  mean  max  plain  speed-up")
    for rate in args.rates.split(","):
        found = {"pages": [], "blocks": []}
        took, took_full = 0.0, 0.0
        for trace, (sizes, records, seconds) in full.items():
            sampled, sampled_seconds = run(args.binary, trace, args.policy, sizes, "--sample", rate)
            took, took_full = took + sampled_seconds, took_full + seconds
            for (policy, size), record in sampled.items():
                both = errors(record, records[policy, size]["miss_ratio"], float(rate))
                sampled_pages = record["footprint_pages"] * float(rate)
                points.append((min(record["simulated_pages"], sampled_pages), both[0]))
                if record["simulated_pages"] >= args.least_pages:
                    group = "blocks" if any(word in policy for word in LOOK_AT_BLOCKS) else "pages"
                    found[group].append(both)
        for group, both in found.items():
            if both:
                mean, plain = (sum(column) / len(both) for column in zip(*both))
                largest = max(error for error, _ in both)
                print(f"{rate}  {group}  {len(both)}  {mean:.4f}  {largest:.4f}  {plain:.4f}  {took_full / took:.1f}")
    if args.by_pages:
        show_by_pages(points)


if __name__ == "__main__":
    main()
