#!/usr/bin/env python3
"""Draws what scale.sh wrote: milliseconds a step against each size, and how they would grow if they were in
proportion to the operation count (on threads: if N of them took an Nth). usage: scale.py IN.csv OUT.svg"""
import csv
import io
import statistics
import sys

NAMES = {"tenon": "tenon", "torch": "PyTorch, eager"}


def read(path):
    """{sweep: {side: {value: (ms, least, most, GFLOP)}}}, medians of the rounds; and the notes."""
    rounds, notes = {}, []
    with open(path) as f:
        lines = f.read().splitlines()
    notes = [line[1:].strip() for line in lines if line.startswith("#")]
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        place = rounds.setdefault(row["sweep"], {}).setdefault(row["side"], {})
        place.setdefault(float(row["value"]), []).append([float(row[k]) for k in ("ms", "least", "most", "GFLOP")])
    for sides in rounds.values():
        for points in sides.values():
            for value, times in points.items():
                ms, least, most, work = zip(*times)
                points[value] = (statistics.median(ms), min(least), max(most), work[0])
    return rounds, notes


def expected(sweep, points):
    """Through the point of the largest size, or of one thread: the cost of a small step is not in its sums."""
    if sweep == "threads":
        return {n: points[min(points)][0] * min(points) / n for n in points}
    ms, _, _, work = points[max(points)]
    return {value: ms * point[3] / work for value, point in points.items()}


def main():
    if len(sys.argv) != 3:
        sys.exit("scale.py: want IN.csv OUT.svg")
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none" # text stays text
    from matplotlib import pyplot, ticker

    sweeps, notes = read(sys.argv[1])
    if not sweeps:
        sys.exit(f"scale.py: {sys.argv[1]} holds no results: want what scale.sh writes")
    figure, panels = pyplot.subplots(1, len(sweeps), figsize=(4 * len(sweeps), 4), squeeze=False,
                                     layout="constrained")
    for panel, (sweep, sides) in zip(panels[0], sweeps.items()):
        for color, (side, points) in enumerate(sides.items()):
            x = sorted(points)
            ms = [points[v][0] for v in x]
            spread = [[points[v][0] - points[v][1] for v in x], [points[v][2] - points[v][0] for v in x]]
            panel.errorbar(x, ms, spread, marker="o", capsize=2, color=f"C{color}", label=NAMES.get(side, side))
            line = expected(sweep, points)
            panel.plot(x, [line[v] for v in x], "--", linewidth=1, color=f"C{color}",
                       label=f"{NAMES.get(side, side)}: " + ("divided by N" if sweep == "threads" else "operations"))
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(ticker.NullLocator())
        panel.set_xticks(x, [f"{v:g}" for v in x])
        panel.set_xlabel(sweep)
        panel.set_ylabel("ms a step")
        panel.grid(True, alpha=0.3)
        panel.legend(fontsize="small")
    figure.suptitle("\n".join(notes), fontsize="small")
    text = io.StringIO()
    figure.savefig(text, format="svg")
    with open(sys.argv[2], "w") as f: # a picture is one line of text
        f.write(" ".join(text.getvalue().split()).replace("> <", "><") + "\n")


main()
