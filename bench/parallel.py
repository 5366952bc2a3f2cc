#!/usr/bin/env python3
"""Folds what parallel.sh wrote into a Markdown table: rates of several processes against those of one.

usage: parallel.py OUT.csv...

The rates of one round are divided by that round's rate of one process; the ratio is the median of the rounds.
"apart" are programs that send nothing: their rates are added up.

Ends with 1 when losses differ by more than 1e-5: of two sides with the same processes and batch, and of a GPT also
between numbers of processes. (A CNN's batch norms see their own process's rows only.)
"""
import statistics
import sys

from summarise import CPU_BOUNDS, apart, say_differing

SIDES = {"tenon": "tenon", "tenon-apart": "tenon, apart", "torch": "PyTorch DDP", "torch-apart": "PyTorch, apart"}


def read(paths):
    """{(workload, rows, side, processes): {metric: {round: [values]}}}, and the notes."""
    values, notes = {}, []
    for number, path in enumerate(paths):
        for text in open(path):
            if text.startswith("#"):
                notes.append(text[1:].strip())
                continue
            workload, rows, side, processes, turn, metric, median, _, _ = text.strip().split(",")
            rounds = values.setdefault((workload, int(rows), side, int(processes)), {}).setdefault(metric, {})
            rounds.setdefault((number, int(turn)), []).append(float(median))
    return values, notes


def rate(metrics):
    """{round: units a second}, of all programs together."""
    name = next(m for m in metrics if m.endswith("/s") and m != "TFLOP/s")
    return {turn: sum(v) for turn, v in metrics[name].items()}, name


def one_process(values, workload, side):
    return next(((k, m) for k, m in values.items() if k[0] == workload and k[2] == side.removesuffix("-apart")
                 and k[3] == 1), (None, None))


def table(values):
    print("| workload | rows in all | scaling | side | processes | ms a step | forward | backward | optimizer | rate | "
          "times one process | in single rounds |")
    print("| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for key in sorted(values, key=lambda k: (k[0], k[3], k[1], list(SIDES).index(k[2]))):
        workload, rows, side, processes = key
        metrics = values[key]
        rates, unit = rate(metrics)
        first, base = one_process(values, workload, side)
        base = rate(base)[0] if base else {}
        ratios = [rates[t] / base[t] for t in rates if t in base] if processes > 1 else []
        scaling = "" if processes == 1 or not first else "strong" if rows == first[1] else "weak"
        ms = [f"{statistics.median(sum(metrics[m].values(), [])):.4g}"
              for m in ("ms/step", "ms_forward", "ms_backward", "ms_optimizer")]
        cells = [workload, str(rows), scaling, SIDES[side], str(processes), *ms,
                 f"{statistics.median(rates.values()):.4g} {unit}"]
        cells += [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"] if ratios else ["", ""]
        print("| " + " | ".join(cells) + " |")


def differing(values):
    """What differs, or is not a number, as lines of text; and the largest relative difference."""
    groups, bad, most = {}, [], 0.0
    for (workload, rows, side, processes), metrics in values.items():
        if side.endswith("-apart"):
            continue
        for metric in ("loss_1", "loss_10"):
            group = (workload, rows, metric) if workload.startswith("gpt") else (workload, rows, processes, metric)
            for v in sum(metrics.get(metric, {}).values(), []):
                groups.setdefault(group, []).append((f"{side} {processes}", v))
    for group, found in groups.items():
        far = apart(dict(enumerate(v for _, v in found)))
        most = max(most, far)
        if not far <= CPU_BOUNDS["f32"]:
            bad.append(" ".join(map(str, group)) + ": " + ", ".join(f"{who}: {v:.8g}" for who, v in found))
    return bad, most


def main():
    values, notes = read(sys.argv[1:])
    if not values:
        print("parallel.py: no results: want files of parallel.sh", file=sys.stderr)
        return 2
    for note in notes:
        print(note + "\n")
    bad, most = differing(values)
    say_differing("parallel.py", bad)
    table(values)
    print(f"\nLosses of the first and the tenth step: {most:.1e} apart at most, relatively.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
