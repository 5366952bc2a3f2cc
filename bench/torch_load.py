#!/usr/bin/env python3
"""The workload of bench_load.c in PyTorch, on the files that it made.

--config safetensors: load_file; pt: torch.load; mmap: torch.load with mmap=True; then load_state_dict.
"""
import os
import time

import common

args = common.parse(steps=5, warmup=1, config="safetensors")
torch = common.setup(args, "load_" + args.config)
import torch.nn as nn

width = args.width or 768
path = os.path.join(args.data or ".", "load." + args.config.replace("mmap", "pt"))
sizes = [(width, 50257)] + 12 * [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
net = nn.ModuleList(nn.Linear(*size) for size in sizes)
if args.precision == "bf16":
    net = net.bfloat16()


def load():
    if args.config == "safetensors":
        from safetensors.torch import load_file
        return load_file(path)
    return torch.load(path, weights_only=True, mmap=args.config == "mmap")


seconds = []
for i in range(args.warmup + args.steps):
    began = time.perf_counter()
    net.load_state_dict(load())
    seconds.append(time.perf_counter() - began)
common.line(args.name, "s", seconds[args.warmup:])
