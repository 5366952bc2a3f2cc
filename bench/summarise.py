#!/usr/bin/env python3
"""Folds the lines of run.sh's rounds into a Markdown table: medians of both sides and their ratio.

usage: summarise.py OUT.csv...
"""
import statistics
import sys

values, order, notes = {}, [], []
for path in sys.argv[1:]:
    for text in open(path):
        if text.startswith("#"):
            notes.append(text[1:].strip())
            continue
        part = text.strip().split(",")
        if len(part) != 5:
            continue
        side, name = part[0].split("_", 1)
        key = (name, part[1])
        if key not in values:
            values[key] = {}
            order.append(key)
        values[key].setdefault(side, []).append(float(part[2]))

for note in notes:
    print(note + "\n")
print("| workload | metric | tenon | torch | ratio |")
print("| --- | --- | ---: | ---: | ---: |")
for name, metric in order:
    sides = values[name, metric]
    ours = statistics.median(sides["tenon"]) if "tenon" in sides else None
    theirs = statistics.median(sides["torch"]) if "torch" in sides else None
    cells = ["" if v is None else f"{v:.6g}" for v in (ours, theirs)]
    ratio = ""
    if ours and theirs:
        speed = ours / theirs if metric.endswith("/s") else theirs / ours
        if metric.startswith("loss") or metric == "parameters":
            ratio = "equal" if ours == theirs else f"differ by {abs(ours / theirs - 1):.1e}"
        elif metric.endswith("MiB"):
            ratio = f"{ours / theirs:.2f} of it"
        else:
            ratio = f"{speed:.2f}x faster" if speed >= 1 else f"{1 / speed:.2f}x slower"
    print(f"| {name} | {metric} | {cells[0]} | {cells[1]} | {ratio} |")
