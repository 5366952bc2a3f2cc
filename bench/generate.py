#!/usr/bin/env python3
"""bench_generate, torch_generate.py and llama_generate.py by turns: a table of medians and of their ratios.

usage: bench/generate.py [--rounds N] [--threads N] [--steps N] [--configs LIST] [--dtypes LIST] [--batches LIST] BUILD

BUILD is the folder of a release build. PYTHON in the environment has torch and transformers, LLAMA llama-cpp-python and
gguf; a side without its variable is left out. Dtypes: f32, bf16, int8 (beside Q8_0, without transformers). "times": how many
times as fast tenon is. In f32 all sides must have written the same tokens, or it says that they did not.
"""
import argparse
import math
import os
import statistics
import tempfile
from pathlib import Path

from pairs import Side

HERE = Path(__file__).resolve().parent
PEERS = [("transformers", "PYTHON", "torch_generate.py"), ("llama.cpp", "LLAMA", "llama_generate.py")]


def compare(build, config, dtype, batch, options):
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--config", config, "--precision", "f32" if dtype == "int8" else dtype, "--batch", batch, "--weights",
                 folder, "--threads", str(options.threads), "--steps", str(options.steps)]
        flags += ["--int8"] if dtype == "int8" else []
        sides = {"tenon": Side([f"{build}/bench/bench_generate", *flags], options.rounds)}
        for name, variable, program in PEERS:
            if variable in os.environ and not (dtype == "int8" and name == "transformers"):
                sides[name] = Side([os.environ[variable], str(HERE / program), *flags], options.rounds)
    rounds = {name: [] for name in sides}
    for number in range(options.rounds):
        for name in list(sides)[::1 if number % 2 == 0 else -1]:
            rounds[name].append({metric: value for (_, metric), value in sides[name].round().items()})
    medians = {name: {m: statistics.median(r[m] for r in of) for m in of[0]} for name, of in rounds.items()}
    ours, cells = medians["tenon"], [f"{config} {dtype}", batch]
    for metric, digits, faster in ("tokens/s", 1, 1), ("ms_prefill", 0, -1), ("peak_MiB", 0, 0):
        cells.append(f"{ours[metric]:.{digits}f}")
        for name, _, _ in PEERS:
            it = medians[name][metric] if name in medians else math.nan
            cells.append(f"{it:.{digits}f}")
            cells += [f"{(ours[metric] / it) ** faster:.2f}"] if faster else []
    print("| " + " | ".join(cells).replace("nan", "-") + " |", flush=True)
    sums = {name: m["checksum"] for name, m in medians.items()}
    if dtype == "f32" and len(set(sums.values())) > 1:
        print(f"{config}, batch {batch}: the sides wrote other tokens: {sums}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rounds": 7, "threads": 2, "steps": 64}.items():
        parser.add_argument("--" + name, type=int, default=value)
    for name, value in {"configs": "gpt2,smollm2", "dtypes": "f32,bf16", "batches": "1,16"}.items():
        parser.add_argument("--" + name, default=value)
    parser.add_argument("build", metavar="BUILD")
    options = parser.parse_args()
    peers = [name for name, _, _ in PEERS]
    heads = ["model", "batch"]
    for what in "tokens/s", "ms, 512 tokens read":
        heads += [what] + [cell for name in peers for cell in (name, "times")]
    heads += ["MiB", *peers]
    print("| " + " | ".join(heads) + " |\n" + "| --- " + "| ---: " * (len(heads) - 1) + "|", flush=True)
    for config in options.configs.split(","):
        for dtype in options.dtypes.split(","):
            for batch in options.batches.split(","):
                compare(options.build, config, dtype, batch, options)


if __name__ == "__main__":
    main()
