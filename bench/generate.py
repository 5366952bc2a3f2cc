#!/usr/bin/env python3
"""bench_generate and torch_generate.py by turns: a table of medians and of their ratio.

usage: bench/generate.py [--rounds N] [--threads N] [--steps N] [--configs LIST] [--dtypes LIST] [--batches LIST] BUILD

BUILD is the folder of a release build; PYTHON in the environment has torch and transformers. Ratios are of times, tenon's
to transformers': below 1 tenon is faster. In f32 both sides must have written the same tokens, or it says that they did not.
"""
import argparse
import os
import statistics
import tempfile
from pathlib import Path

from pairs import Side

HERE = Path(__file__).resolve().parent


def compare(build, config, dtype, batch, options):
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--config", config, "--precision", dtype, "--batch", batch, "--weights", folder,
                 "--threads", str(options.threads), "--steps", str(options.steps)]
        ours = Side([f"{build}/bench/bench_generate", *flags], options.rounds)
        theirs = Side([os.environ.get("PYTHON", "python3"), str(HERE / "torch_generate.py"), *flags], options.rounds)
    rounds = {ours: [], theirs: []}
    for number in range(options.rounds):
        for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            rounds[side].append({metric: value for (_, metric), value in side.round().items()})
    a, b = [{m: statistics.median(r[m] for r in rounds[side]) for m in rounds[side][0]} for side in (ours, theirs)]
    print(f"| {config} {dtype} | {batch} | {a['tokens/s']:.1f} | {b['tokens/s']:.1f} | {b['tokens/s'] / a['tokens/s']:.2f} "
          f"| {a['ms_prefill']:.0f} | {b['ms_prefill']:.0f} | {a['ms_prefill'] / b['ms_prefill']:.2f} "
          f"| {a['peak_MiB']:.0f} | {b['peak_MiB']:.0f} |", flush=True)
    if dtype == "f32" and a["checksum"] != b["checksum"]:
        print(f"{config}, batch {batch}: the sides wrote other tokens: {a['checksum']:.0f}, {b['checksum']:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rounds": 7, "threads": 2, "steps": 64}.items():
        parser.add_argument("--" + name, type=int, default=value)
    for name, value in {"configs": "gpt2,smollm2", "dtypes": "f32,bf16", "batches": "1,16"}.items():
        parser.add_argument("--" + name, default=value)
    parser.add_argument("build", metavar="BUILD")
    options = parser.parse_args()
    print("| model | batch | tokens/s | transformers | ratio of times | ms, 512 tokens read | transformers | ratio | MiB "
          "| transformers |\n" + "| --- " + "| ---: " * 9 + "|", flush=True)
    for config in options.configs.split(","):
        for dtype in options.dtypes.split(","):
            for batch in options.batches.split(","):
                compare(options.build, config, dtype, batch, options)


if __name__ == "__main__":
    main()
