#!/usr/bin/env python3
"""The workload of bench_loader.c with PyTorch's DataLoader."""
import sys
import time

import common

args = common.parse(steps=5, warmup=0)
torch = common.setup(args, "loader")
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

BATCH = args.batch or 128
WAY = common.WAYS[args.way or "each-0"]
if "fetch" not in WAY:
    sys.exit(f"--way {args.way}: want each-0, each-2, batch-0 or batch-2")


class Images(Dataset):
    """As a training program has them in memory; an index gives an image, a list of them a batch."""

    def __init__(self):
        self.x = common.fashion(torch, args, "train-images-idx3-ubyte").unsqueeze(1)
        self.y = common.fashion(torch, args, "train-labels-idx1-ubyte")

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i].float() / 255, self.y[i].long()


images = Images()
how = {"num_workers": WAY["workers"], "persistent_workers": WAY["workers"] > 0}
if WAY["fetch"] == "each":
    loader = DataLoader(images, BATCH, shuffle=True, **how)
else:
    loader = DataLoader(images, None, sampler=BatchSampler(RandomSampler(images), BATCH, False), **how)
checksum = sum((x.mean((1, 2, 3)) * (y + 1)).sum().item() for x, y in loader)
for _ in common.rounds(args):
    rates = []
    for _ in range(args.steps):
        t0 = time.perf_counter()
        n = sum(1 for _ in loader)
        rates.append(n / (time.perf_counter() - t0))
    common.line(args.name, "batches/s", rates)
    common.line(args.name, "checksum", [checksum])
    common.memory(args, args.name)
