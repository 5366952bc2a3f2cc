#!/usr/bin/env python3
"""Whether two logs of training (--log of the examples) tell of the same losses.

usage: bench/curves.py A.csv B.csv [BOUND]

Compares the losses of the steps that both have; the relative difference of each must be at most BOUND, 1e-3 where
none is given. Prints every tenth step, and the largest difference. Ends with 1 where one is larger, or where they have
no step in common.
"""
import csv
import sys


def losses(path):
    """{step: loss}"""
    with open(path, newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {int(row["step"]): float(row["loss"]) for row in rows if row.get("loss")}


def main():
    if len(sys.argv) not in (3, 4):
        sys.stderr.write(__doc__ if sys.argv[1:2] == ["--help"] else "curves.py: want two logs (see --help)\n")
        sys.exit(2)
    a, b = losses(sys.argv[1]), losses(sys.argv[2])
    bound = float(sys.argv[3]) if len(sys.argv) == 4 else 1e-3
    steps = sorted(a.keys() & b.keys())
    apart = {step: abs(a[step] - b[step]) / abs(a[step]) for step in steps}
    for step in steps[::10]:
        print(f"step {step}: {a[step]:.6f} and {b[step]:.6f}, {apart[step]:.1e} apart")
    most = max(apart.values(), default=float("inf"))
    print(f"{len(steps)} steps, {most:.1e} apart at most: want {bound:g}")
    sys.exit(not most <= bound)


if __name__ == "__main__":
    main()
