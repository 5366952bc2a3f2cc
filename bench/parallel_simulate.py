#!/usr/bin/env python3
"""What data parallel training would reach with 8 to 1,024 processes, from what was measured with few.

usage: parallel_simulate.py TIMELINE AVERAGE OUT.svg [AVERAGE_N:N RESULTS.csv...]

TIMELINE: lines of `bench_gpt --config medium --threads 1 --timeline`: the parts of a step, and when each layer's
gradients are complete in backward. AVERAGE: lines of `mpirun -n 2 bench_average`. OUT.svg gets the efficiency against
the number of processes (-: no picture); tables go to standard output. With files of parallel.sh (--apart, --scaling weak) behind them,
the model is also compared with what was measured; AVERAGE_N:N is bench_average with N processes, for N above 2.

The model. Every process computes the same rows however many there are (weak scaling). Buckets are filled as
src/ext/parallel/reduce.c does it, from the last registered layer to the first; a bucket leaves when its last gradient is
complete and the one before it has arrived. Sending overlaps with backward; copying, adding and dividing take the
processor's time. A sum of n bytes over p processes, a being a message's latency and b the seconds a byte:

    ring      2 (p - 1) a + 2 (p - 1)/p n b     Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms (2009): the
                                                least bytes
    halving   2 log2(p) a + 2 (p - 1)/p n b     Rabenseifner's, in Thakur, Rabenseifner and Gropp, Optimization of
                                                collective communication operations in MPICH (2005), sec. 4.5; what
                                                src/ext/parallel/mpi.c asks Open MPI for
    tree      log2(p) (a + n b)                 recursive doubling, the same section: whole messages

The additions, n (p - 1)/p of them there (n log2(p) in a tree), are in the processor's part, as n. Left out: other
traffic, switches that are shared, processes that are late. So these are upper bounds.
"""
import io
import math
import re
import statistics
import sys

MIB = 1 << 20
# Assumed, not measured: seconds a message, seconds a byte.
NETWORKS = {"10 Gbit/s Ethernet": (30e-6, 8 / 10e9), "100 Gbit/s Ethernet": (10e-6, 8 / 100e9),
            "200 Gbit/s InfiniBand": (2e-6, 8 / 200e9), "NVLink-like, 300 GB/s": (3e-6, 1 / 300e9)}
SUMS = {"ring": lambda p, n, a, b: 2 * (p - 1) * a + 2 * (p - 1) / p * n * b,
        "halving": lambda p, n, a, b: 2 * math.log2(p) * a + 2 * (p - 1) / p * n * b,
        "tree": lambda p, n, a, b: math.log2(p) * (a + n * b)}
LINES = [("ring", 25), ("ring", 1), ("halving", 25), ("tree", 25)]  # and buckets in MiB
SPEEDS = (1, 100)  # of computing, times this machine's one core
PROCESSES = [2 ** k for k in range(3, 11)]


def read(path):
    """{metric: median} of a timeline; {bytes: {metric: median}} of averages."""
    metrics, averages = {}, {}
    for text in open(path):
        if text.startswith("#") or text.count(",") != 4:
            continue
        name, metric, median, _, _ = text.strip().split(",")
        if name.startswith("tenon_average_"):
            averages.setdefault(int(name.rsplit("_", 1)[1]), {})[metric] = float(median)
        else:
            metrics[metric] = float(median)
    return metrics, averages


def layers_of(metrics):
    """[(bytes, seconds after backward's start)] in the order of registration."""
    names = [m[len("bytes of "):] for m in metrics if m.startswith("bytes of ")]
    return [(metrics["bytes of " + n], 1e-3 * metrics["ms_complete of " + n]) for n in names]


def buckets_of(layers, most):
    """[(bytes, seconds when the last gradient is complete)], as add_bucket does, by layers."""
    found = []
    for size, ready in reversed(layers):
        if found and found[-1][0] + size <= most:
            found[-1] = (found[-1][0] + size, max(found[-1][1], ready))
        else:
            found.append((size, ready))
    return found


def step(metrics, p, network, algorithm, bucket_mib, speed, local):
    """Seconds of a training step of p processes. local: seconds a byte of the processor's own part."""
    forward, backward, optimizer = (1e-3 * metrics[m] / speed for m in ("ms_forward", "ms_backward", "ms_optimizer"))
    a, b = NETWORKS[network]
    busy = arrived = 0.0  # what the processor's own part has added to backward; when the last bucket was there
    for n, ready in buckets_of(layers_of(metrics), bucket_mib * MIB):
        busy += n * local / speed
        arrived = max(arrived, ready / speed + busy) + SUMS[algorithm](p, n, a, b)
    reports = math.ceil(math.log2(p)) * a
    return forward + max(backward + busy, arrived) + reports + optimizer


def efficiency(metrics, p, *how):
    alone = 1e-3 * (metrics["ms_forward"] + metrics["ms_backward"] + metrics["ms_optimizer"]) / how[3]
    return alone / step(metrics, p, *how)


def draw(metrics, local, out):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tenon", "font.size": 9})
    figure, panels = pyplot.subplots(len(SPEEDS), len(NETWORKS), figsize=(13, 5.6), sharex=True, sharey=True,
                                     layout="constrained")
    for row, speed in zip(panels, SPEEDS):
        for panel, network in zip(row, NETWORKS):
            for style, (algorithm, mib) in zip(("-", ":", "--", "-."), LINES):
                y = [100 * efficiency(metrics, p, network, algorithm, mib, speed, local) for p in PROCESSES]
                panel.plot(PROCESSES, y, style, label=f"{algorithm}, buckets of {mib} MiB")
            panel.set_title(network if speed == 1 else f"{network}, computing {speed} times as fast", fontsize=8)
            panel.set_xscale("log", base=2)
            panel.set_xticks(PROCESSES, [f"{p}" for p in PROCESSES])
            panel.tick_params(axis="x", labelsize=7)
            panel.set_ylim(0, 105)
            panel.grid(True, alpha=0.3)
        row[0].set_ylabel("efficiency, %")
    for panel in panels[-1]:
        panel.set_xlabel("processes")
    panels[0][0].legend(fontsize=7, loc="lower left")
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    with open(out, "w") as f:  # a picture is one line of text
        f.write(" ".join(text.getvalue().split()).replace("> <", "><") + "\n")


def table(metrics, local):
    some = [8, 64, 1024]
    print("| computing | network | sum | buckets | " + " | ".join(f"{p:,}" for p in some) + " |")
    print("| --- | --- | --- | --- |" + " ---: |" * len(some))
    for speed in SPEEDS:
        for network in NETWORKS:
            for algorithm, mib in LINES:
                cells = [f"{100 * efficiency(metrics, p, network, algorithm, mib, speed, local):.0f} %" for p in some]
                print(f"| x {speed} | {network} | {algorithm} | {mib} MiB | " + " | ".join(cells) + " |")


def cost(averages, n):
    """Milliseconds of a measured average of n bytes: between the sizes measured, in proportion."""
    sizes = sorted(averages)
    low = max((s for s in sizes if s <= n), default=sizes[0])
    high = min((s for s in sizes if s >= n), default=sizes[-1])
    if low == high:
        return averages[low]["ms"] * n / low
    share = (n - low) / (high - low)
    return (1 - share) * averages[low]["ms"] + share * averages[high]["ms"]


def compare(metrics, measured, results):
    """The model of this machine, where nothing overlaps (a process's core does both), beside what was measured: the
    step of programs that send nothing, which processes beyond the machine's cores share, and the cost of the buckets."""
    import parallel
    values, notes = parallel.read(results)
    cores = {int(n) for n in re.findall(r", (\d+) CPUs", "\n".join(notes))}
    if len(cores) != 1:
        sys.exit("parallel_simulate.py: want the results of one machine, whose notes say \"N CPUs\"")
    cores = cores.pop()
    middle = lambda key, metric: statistics.median(sum(values[key][metric].values(), []))
    print("\n| processes | rows each | computing, ms | averaging, ms | a step: model | measured | model / measured |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    buckets = buckets_of(layers_of(metrics), 25 * MIB)
    apart = {k[1] // k[3]: middle(k, "ms/step") for k in values if k[0] == "gpt_medium" and k[2] == "tenon-apart"}
    for key in sorted((k for k in values if k[0] == "gpt_medium" and k[2] == "tenon" and k[3] > 1), key=lambda k: k[3]):
        _, rows, _, p = key
        if rows // p not in apart or p not in measured:
            continue
        computing = apart[rows // p] * max(1, p / cores)
        averaging = sum(cost(measured[p], n) for n, _ in buckets)
        found = middle(key, "ms/step")
        print(f"| {p} | {rows // p} | {computing:.0f} | {averaging:.1f} | {computing + averaging:.0f} | {found:.0f} | "
              f"{(computing + averaging) / found:.2f} |")


def main():
    if len(sys.argv) < 4:
        sys.exit("parallel_simulate.py: want TIMELINE AVERAGE OUT.svg [AVERAGE_N:N RESULTS.csv...]")
    metrics, _ = read(sys.argv[1])
    _, averages = read(sys.argv[2])
    if not layers_of(metrics) or not averages:
        sys.exit("parallel_simulate.py: no lines of --timeline in the first file, or of bench_average in the second")
    largest = max(averages)
    local = 1e-3 * averages[largest]["ms_local"] / largest
    total = sum(n for n, _ in layers_of(metrics))
    print(f"Measured: forward {metrics['ms_forward']:.0f} ms, backward {metrics['ms_backward']:.0f} ms, optimizer "
          f"{metrics['ms_optimizer']:.1f} ms, {total / 1e6:.1f} MB of gradients; copying, adding and dividing "
          f"{1e-9 / local:.1f} GB/s.\n")
    if sys.argv[3] != "-":
        draw(metrics, local, sys.argv[3])
    table(metrics, local)
    measured, results = {2: averages}, []
    for word in sys.argv[4:]:
        path, colon, n = word.rpartition(":")
        if colon and n.isdigit():
            measured[int(n)] = read(path)[1]
        else:
            results.append(word)
    if results:
        compare(metrics, measured, results)


if __name__ == "__main__":
    main()
