#!/usr/bin/env python3
"""Folds the lines of run.sh's or gpu.sh's rounds into Markdown tables. On a CPU: tenon beside the best
way of running PyTorch, every way, single ops. On a GPU: medians of every side, their ratio, single ops
against what the device can do at most, and what is slower than PyTorch.

usage: summarise.py OUT.csv...

Ends with 1 when the losses of two sides differ by more than rounding explains: then the steps are not the
same work, and their times say nothing.
"""
import math
import statistics
import sys

SIDES = {"tenon": "tenon", "graph": "tenon, captured", "torch": "PyTorch", "compile": "torch.compile",
         "cudagraph": "torch.compile, CUDA graphs", "autotune": "torch.compile, max-autotune"}
OURS = ("tenon", "graph")
# The ways on a CPU, as common.py has them.
WAYS = {"eager": "eager", "eager-written": "eager, attention written out",
        "eager-pieces": "eager, logits by pieces",
        "eager-channels": "eager, channels last", "compiled": "torch.compile",
        "compiled-written": "torch.compile, attention written out",
        "compiled-channels": "torch.compile, channels last",
        "each-0": "image by image, 0 workers", "each-2": "image by image, 2 workers",
        "batch-0": "whole batches, 0 workers", "batch-2": "whole batches, 2 workers"}
# Relative differences of losses: of the first step, which has forward alone behind it, and of the tenth.
BOUNDS = {"f32": (1e-5, 1e-3), "tf32": (1e-3, 1e-2), "bf16": (1e-2, 5e-2)}
# On a CPU: of all of them.
CPU_BOUNDS = {"f32": 1e-5, "bf16": 1e-2}
SLOWER = 1.05  # times PyTorch's: below, a difference is noise
PEAK = "peak TFLOP/s: "  # a note: "peak TFLOP/s: bf16 989, tf32 495, f32 67"


def read(paths):
    """{workload: {metric: {side: [the rounds' values]}}}, and the notes."""
    values, notes = {}, []
    for path in paths:
        for text in open(path):
            part = text.strip().split(",")
            if text.startswith("#"):
                notes.append(text[1:].strip())
            elif len(part) == 5:
                side, workload = part[0].split("_", 1)
                metrics = values.setdefault(workload, {})
                metrics.setdefault(part[1], {}).setdefault(side, []).append(float(part[2]))
    return values, notes


def medians(values):
    return {workload: {metric: {side: statistics.median(rounds) for side, rounds in sides.items()}
                       for metric, sides in metrics.items()}
            for workload, metrics in values.items()}


def precision(workload):
    last = workload.rsplit("_", 1)[-1]
    return last if last in BOUNDS else "f32"


def cell(value):
    return "" if value is None else f"{value:.6g}"


def pick(sides, best, ours):
    found = [v for side, v in sides.items() if (side in OURS) == ours]
    return best(found) if found else None


def speed(metric, sides):
    """How many times as fast ours is as PyTorch's best; None where there is nothing to compare."""
    best = max if metric.endswith("/s") else min
    ours, theirs = pick(sides, best, True), pick(sides, best, False)
    if not ours or not theirs:
        return None
    return ours / theirs if metric.endswith("/s") else theirs / ours


def words(ratio):
    if ratio is None:
        return ""
    return f"{ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.2f}x slower"


def remark(metric, sides):
    ours, theirs = pick(sides, min, True), pick(sides, min, False)
    if ours is None or theirs is None:
        return ""
    if metric.startswith("loss") or metric == "parameters":
        return "equal" if ours == theirs else f"differ by {abs(ours / theirs - 1):.1e}"
    if metric.endswith("MiB") or metric == "batch":
        return f"{ours / theirs:.2f} of it" if theirs else ""
    return words(speed(metric, sides))


def peaks(notes):
    """The data sheet's rates by precision."""
    for note in notes:
        if note.startswith(PEAK):
            pairs = [p.split() for p in note[len(PEAK):].split(",")]
            return {name: float(rate) for name, rate in pairs}
    return {}


def shares(workload, sides, values, notes):
    """What a rate is of the data sheet's (MFU) and of the largest product's in the same run, in per cent."""
    kind, rows = precision(workload), []
    product = values.get(f"peak_product_{kind}", {}).get("TFLOP/s", {})
    for title, rate in (("MFU %", peaks(notes).get(kind)),
                        ("% of the product rate", max(product.values(), default=None))):
        if rate:
            rows.append((title, {side: 100 * v / rate for side, v in sides.items()}))
    return rows


def table(values, notes, sides):
    print("| workload | metric | " + " | ".join(SIDES[s] for s in sides) + " | ratio |")
    print("| --- | --- |" + " ---: |" * len(sides) + " --- |")
    for workload, metrics in values.items():
        for metric, row in metrics.items():
            if metric in ("GB", "GFLOP") or "GB" in metrics:
                continue
            rows = [(metric, row)]
            if metric == "TFLOP/s" and not workload.startswith("peak"):
                rows += shares(workload, row, values, notes)
            for title, cells in rows:
                ratio = "" if "%" in title else remark(title, cells)
                print(f"| {workload} | {title} | " +
                      " | ".join(cell(cells.get(s)) for s in sides) + f" | {ratio} |")


def roofline(values):
    """Ops whose least traffic and arithmetic are known, forward alone, and with backward beside PyTorch."""
    rows = [w for w in values if "GB" in values[w]]
    if not rows:
        return
    print("\nleast: the larger of GB over the measured copy rate and GFLOP over the measured product rate.\n")
    print("| op | least us | tenon us | of the least | PyTorch us | ratio | with backward: tenon us | "
          "PyTorch us | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- |")
    for op in rows:
        kind = precision(op)
        copy = max(values.get(f"peak_copy_{kind}", {}).get("GB/s", {}).values(), default=math.inf)
        rate = max(values.get(f"peak_product_{kind}", {}).get("TFLOP/s", {}).values(), default=math.inf)
        least = max(1e6 * values[op]["GB"]["tenon"] / copy,
                    1e3 * values[op].get("GFLOP", {"tenon": 0})["tenon"] / rate)
        cells = [op, f"{least:.4g}"]
        for metric in ("us_forward", "us_forward_backward"):
            sides = values[op].get(metric, {})
            ours = sides.get("tenon")
            cells.append(cell(ours))
            if metric == "us_forward":
                cells.append(f"{100 * least / ours:.0f} %" if ours else "")
            cells += [cell(sides.get("torch")), words(speed(metric, sides))]
        print("| " + " | ".join(cells) + " |")


def slower(values):
    timed = ("ms/step", "us_forward", "us_forward_backward", "us_step", "ns")
    found = [(speed(metric, sides), workload, metric) for workload, metrics in values.items()
             for metric, sides in metrics.items() if metric in timed]
    found = sorted(f for f in found if f[0] is not None)
    behind = [f"{w} {m} {1 / r:.2f}x" for r, w, m in found if r < 1]
    if found:
        print(f"\nSlower than PyTorch's best, {len(behind)} of {len(found)} times: " +
              ("; ".join(behind) or "none") + ".")


def differing_losses(values):
    """What differs, or is not a number, as lines of text."""
    bad = []
    for workload, metrics in values.items():
        for metric, bound in zip(("loss_1", "loss_10"), BOUNDS[precision(workload)]):
            sides = metrics.get(metric)
            if sides and not apart(sides) <= bound:
                bad.append(f"{workload}, {metric}: " + ", ".join(f"{s} {v:.8g}" for s, v in sides.items()))
    return bad


def say_differing(script, bad):
    """Into the tables, and for whoever waits for them."""
    for text in bad:
        print(f"**The losses differ, so the times compare nothing:** {text}\n")
        print(f"{script}: the losses differ: {text}", file=sys.stderr)


# ---- on a CPU ----------------------------------------------------------------------------------

def compare(metric, sides):
    """Of one metric's rounds: tenon's median, the best way's and which that is, tenon's time divided by
    that way's (of medians, and of the rounds one by one). None where a side is missing."""
    middle = {side: statistics.median(rounds) for side, rounds in sides.items()}
    theirs = [side for side in middle if side in WAYS]
    if "tenon" not in middle or not theirs:
        return None
    rate = metric.endswith("/s")
    way = (max if rate else min)(theirs, key=middle.get)
    times = lambda ours, other: other / ours if rate else ours / other
    return (middle["tenon"], middle[way], way, times(middle["tenon"], middle[way]),
            [times(*pair) for pair in zip(sides["tenon"], sides[way])])


def losses(metrics):
    """The losses and sums that must agree, {metric: {side: value}}: of the first step, the tenth (the
    last, where there are fewer), or a sum over the data."""
    late = "loss_10" if "loss_10" in metrics else "loss_last"
    return {metric: {side: statistics.median(rounds) for side, rounds in metrics[metric].items()}
            for metric in ("loss_1", late, "checksum") if metric in metrics}


def apart(sides):
    """The largest relative difference from tenon's, or from the first; infinite where something is no
    number."""
    if not all(map(math.isfinite, sides.values())):
        return math.inf
    ours = sides.get("tenon", next(iter(sides.values())))
    return max(abs(v - ours) for v in sides.values()) / max(abs(ours), 1e-300)


def workload_and_dtype(name):
    dtype = precision(name)
    return name.removesuffix("_" + dtype), dtype


def range_of(rounds, form):
    return f"{min(rounds):{form}} to {max(rounds):{form}}"


def memory(metrics, way):
    """Cells: tenon's MiB, the other side's and the part of it, without and with the start of both."""
    cells = []
    for parts in (("peak_MiB",), ("start_MiB", "peak_MiB")):
        if all(side in metrics.get(m, {}) for m in parts for side in ("tenon", way)):
            ours, theirs = (sum(statistics.median(metrics[m][side]) for m in parts) for side in ("tenon", way))
            cells += [f"{ours:.0f}", f"{theirs:.0f}", f"{100 * ours / max(theirs, 1):.0f} %"]
        else:
            cells += [""] * 3
    return cells


def steps(values):
    """Training steps and batches beside the best way, then every way."""
    timed = {w: "ms/step" if "ms/step" in m else "batches/s" for w, m in values.items()
             if "ms/step" in m or "batches/s" in m}
    if not timed:
        return
    print("Time: tenon's divided by that of PyTorch's best way, medians of the rounds; below 1 tenon is "
          "faster. MiB: the most memory beyond what the program takes at its start (of loading, that of "
          "the main process), and tenon's part of PyTorch's; in all: with its start.\n")
    print("| workload | dtype | unit | tenon | PyTorch's best | the way | time | in single rounds | "
          "losses apart | tenon MiB | PyTorch MiB | part | in all | PyTorch in all | part |")
    print("| --- | --- | --- | ---: | ---: | --- | ---: | --- | ---: |" + " ---: |" * 6)
    for name, metric in timed.items():
        found = compare(metric, values[name][metric])
        if not found:
            continue
        ours, theirs, way, ratio, rounds = found
        difference = max(map(apart, losses(values[name]).values()), default=math.nan)
        print("| " + " | ".join([*workload_and_dtype(name), metric, f"{ours:.4g}", f"{theirs:.4g}", WAYS[way],
                                 f"{ratio:.2f}", range_of(rounds, ".2f"), f"{difference:.1e}",
                                 *memory(values[name], way)]) + " |")
    print("\nEvery way: the median of the rounds, and the least and the most of them.\n")
    print("| workload | dtype | unit | way | median | in single rounds | forward | backward | optimizer | MiB |")
    print("| --- | --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for name, metric in timed.items():
        for side, rounds in sorted(values[name][metric].items(), key=lambda s: (s[0] != "tenon", s[0])):
            rest = [statistics.median(values[name][m][side]) if side in values[name].get(m, {}) else None
                    for m in ("ms_forward", "ms_backward", "ms_optimizer", "peak_MiB")]
            print("| " + " | ".join([*workload_and_dtype(name), metric, WAYS.get(side, side),
                                     f"{statistics.median(rounds):.4g}", range_of(rounds, ".4g"),
                                     *("" if v is None else f"{v:.4g}" for v in rest)]) + " |")


def single_ops(values):
    """One row an op and dtype, and how many are slower."""
    kinds = {"ns": 1e-3, "us_step": 1, "us_forward": 1, "us_forward_backward": 1}
    rows = {w: m for w, m in values.items() if any(k in m for k in kinds)}
    if not rows:
        return
    print("\n| op | dtype | tenon us | PyTorch us | the way | time | with backward: tenon us | PyTorch us | "
          "the way | time |")
    print("| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | --- | ---: |")
    measured = slow = 0
    missing = []
    for name, metrics in rows.items():
        cells, ratios = [], []
        first = next(k for k in kinds if k in metrics)
        for metric in (first, "us_forward_backward"):
            found = compare(metric, metrics.get(metric, {}))
            if found:
                ours, theirs, way, ratio, _ = found
                ratios.append(ratio)
                cells += [f"{kinds[metric] * ours:.4g}", f"{kinds[metric] * theirs:.4g}", WAYS[way], f"{ratio:.2f}"]
            else:
                cells += [""] * 4
        if not ratios:
            missing.append(name)
            continue
        measured += 1
        slow += max(ratios) > SLOWER
        print("| " + " | ".join([*workload_and_dtype(name), *cells]) + " |")
    if missing:
        print(f"\nOnly one side has {len(missing)} ops: {', '.join(missing)}.")
    print(f"\n{slow} of {measured} ops slower than {SLOWER}x of PyTorch: forward alone or with backward, "
          "an op in two dtypes counted twice.")


def cpu_report(values):
    bad = []
    for name, metrics in values.items():
        bound = CPU_BOUNDS[workload_and_dtype(name)[1]]
        bad += [f"{name}, {metric}: " + ", ".join(f"{side} {v:.8g}" for side, v in sides.items()) +
                f": want {bound:g} relative at most"
                for metric, sides in losses(metrics).items() if not apart(sides) <= bound]
    say_differing("summarise.py", bad)
    steps(values)
    single_ops(values)
    return 1 if bad else 0


def main():
    values, notes = read(sys.argv[1:])
    if not values:
        print("summarise.py: no results: want lines of run.sh or gpu.sh", file=sys.stderr)
        return 2
    if any(s in WAYS for m in values.values() for row in m.values() for s in row):
        for note in notes:
            print(note + "\n")
        return cpu_report(values)
    values = medians(values)
    present = [s for s in SIDES if any(s in row for m in values.values() for row in m.values())]
    for note in notes:
        print(note + "\n")
    bad = differing_losses(values)
    say_differing("summarise.py", bad)
    table(values, notes, present)
    roofline(values)
    slower(values)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
