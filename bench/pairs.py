#!/usr/bin/env python3
"""Whether a change made a workload slower: two release builds turn about, in fresh processes for each pair.

usage: bench/pairs.py [--pairs N] [--threads N] [--workloads LIST] [--dtypes LIST] BEFORE AFTER

BEFORE and AFTER are build folders of one bench/ (the same one twice shows what the machine alone makes of it). In a pair each
takes several short turns, in the order 0110 0110, seconds apart in all (of single ops each op takes its turns by
itself), so that a neighbour who is busy for a while slows both; a side's time is the median of its turns. Where a
process's memory lies makes single ops faster or slower by up to a fifth for as long as it lives, so each pair has
processes of its own. The table has the median of the pairs' ratios, after to before, so above 1 the change is slower,
with the interval that holds the true median with 95 % (ranks of the sorted ratios; no distribution is assumed). Of
the single ops, and of decode's products and attention, it has the geometric mean of each pair, and lines of those whose
interval lies above 1.03. Ends with 1 where an interval ends above 1.03.
"""
import argparse
import math
import os
import statistics
import sys

import turns

MOST = 1.03
WORKLOADS = {  # turns of each side in a pair, and what one turn runs
    "gpt_small": (10, ["bench_gpt", "--config", "small", "--steps", "4"]),
    "gpt_medium": (20, ["bench_gpt", "--config", "medium", "--steps", "1", "--warmup", "4"]),
    "gpt2": (3, ["bench_gpt", "--config", "gpt2", "--batch", "1", "--steps", "1", "--warmup", "2"]),
    "cnn": (6, ["bench_images", "--config", "cnn", "--steps", "8"]),
    "mlp": (6, ["bench_images", "--config", "mlp", "--steps", "60", "--warmup", "20"]),
    "loader": (6, ["bench_loader", "--data", "/usr/share/datasets/fashion-mnist"]),
    "ops": (3, ["bench_ops", "--steps", "3", "--alternate"]),
    "decode": (2, ["bench_decode", "--steps", "3"]),
}


class Side(turns.Side):
    """A benchmark whose lines are numbers."""

    def __init__(self, command, rounds):
        super().__init__(command, rounds)
        self.values()

    def values(self):
        """{(workload, metric): value} until the next round may begin."""
        values, lines = {}, self.lines()
        if lines is None:
            sys.exit(f"{os.path.basename(sys.argv[0])}: failed: {self.why()}")
        for line in lines:
            if not line.startswith("#"):
                workload, metric, value = line.split(",")[:3]
                values[workload.split("_", 1)[1], metric] = float(value)
        return values

    def round(self):
        self.begin()
        return self.values()


def interval(ratios):
    """Ranks k and n + 1 - k, the innermost whose binomial probability is 95 % or more; all where n is below 6."""
    n, ordered = len(ratios), sorted(ratios)
    k = 1
    while k < n // 2 and 1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n >= 0.95:
        k += 1
    return ordered[k - 1], statistics.median(ordered), ordered[n - k]


def times(values):
    """What one round took: the step's time, and of ops the time with backward where there is one."""
    picked = {w: v for (w, m), v in values.items() if m in ("ms/step", "us_forward", "ns")}
    picked.update({w: v for (w, m), v in values.items() if m == "us_forward_backward"})
    picked.update({w: 1 / v for (w, m), v in values.items() if m in ("batches/s", "GB/s") and not w.startswith("read_")})
    return picked


def pair(sides, count, first):
    """{workload: ratio} of one pair; first is the side that begins."""
    took = [{}, {}]
    while not (sides[0].over or sides[1].over):  # once; of ops, once for each op
        for turn in range(2 * count):
            side = first ^ ((turn + 1) // 2 % 2)
            for workload, time in times(sides[side].round()).items():
                took[side].setdefault(workload, []).append(time)
    if sides[0].over != sides[1].over or took[0].keys() != took[1].keys():
        sys.exit("pairs.py: the builds time other workloads: want one bench/ in both")
    median = [{w: statistics.median(t) for w, t in took[side].items()} for side in (0, 1)]
    return {w: median[1][w] / median[0][w] for w in median[0]}


def refuse(message):
    sys.stderr.write(f"pairs.py: {message} (see --help)\n")
    sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = refuse
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("builds", nargs=2, metavar="BUILD")
    options = parser.parse_args()
    names, dtypes = options.workloads.split(","), options.dtypes.split(",")
    for one, choice in [(n, list(WORKLOADS)) for n in names] + [(d, ["f32", "bf16"]) for d in dtypes]:
        if one not in choice:
            parser.error(f"there is no \"{one}\": want some of {' '.join(choice)}")
    for build in options.builds:
        if not os.access(f"{build}/bench/bench_ops", os.X_OK):
            parser.error(f"no bench/bench_ops in {build}: want the folder of a release build")
    slower = 0
    print("| workload | pairs | after / before | 95 % of the median |\n| --- | ---: | ---: | --- |", flush=True)
    for name in names:
        for dtype in dtypes if name != "loader" else [""]:
            count, command = WORKLOADS[name]
            command = command + ["--threads", str(options.threads)] + ["--precision", dtype][:2 * bool(dtype)]
            ratios = {}
            for number in range(options.pairs):
                sides = [Side([f"{build}/bench/{command[0]}", *command[1:]], count) for build in options.builds]
                both = pair(sides, count, number % 2)
                both = {f"{name} {dtype}".strip(): math.exp(statistics.fmean(map(math.log, both.values()))),
                        **(both if len(both) > 1 else {})}
                for workload, ratio in both.items():
                    ratios.setdefault(workload, []).append(ratio)
            for at, (workload, of) in enumerate(ratios.items()):
                low, middle, high = interval(of)
                if at == 0 or low > MOST:
                    print(f"| {workload} | {len(of)} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)
                slower += at == 0 and high > MOST
    print(f"{slower} of the workloads' intervals end above {MOST}")
    return slower > 0


if __name__ == "__main__":
    sys.exit(main())
