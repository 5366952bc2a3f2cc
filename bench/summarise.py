#!/usr/bin/env python3
"""Folds the lines of run.sh's or gpu.sh's rounds into Markdown tables: medians of every side, their ratio,
single ops against what the device can do at most, and what is slower than PyTorch.

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
# Relative differences of losses: of the first step, which has forward alone behind it, and of the tenth.
BOUNDS = {"f32": (1e-5, 1e-3), "tf32": (1e-3, 1e-2), "bf16": (1e-2, 5e-2)}
PEAK = "peak TFLOP/s: "  # a note: "peak TFLOP/s: bf16 989, tf32 495, f32 67"


def read(paths):
    """{workload: {metric: {side: [values of the rounds]}}}, and the notes."""
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
    for metrics in values.values():
        for sides in metrics.values():
            for side, rounds in sides.items():
                sides[side] = statistics.median(rounds)
    return values, notes


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
            sides = metrics.get(metric, {})
            low, high = min(sides.values(), default=0), max(sides.values(), default=0)
            if not all(map(math.isfinite, sides.values())) or high - low > bound * abs(high):
                bad.append(f"{workload}, {metric}: " + ", ".join(f"{s} {v:.8g}" for s, v in sides.items()))
    return bad


def main():
    values, notes = read(sys.argv[1:])
    present = [s for s in SIDES if any(s in row for m in values.values() for row in m.values())]
    for note in notes:
        print(note + "\n")
    bad = differing_losses(values)
    for text in bad:
        print(f"**The losses differ, so the times compare nothing:** {text}\n")
    table(values, notes, present)
    roofline(values)
    slower(values)
    return 1 if bad else 0


sys.exit(main())
