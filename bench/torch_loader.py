#!/usr/bin/env python3
"""The workload of bench_loader.c with PyTorch's DataLoader."""
import gzip
import os
import sys
import time

import common

args = common.parse(steps=5, warmup=0)
torch = common.setup(args, "loader")
import numpy as np
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FOLDER, BATCH = args.data or "/usr/share/datasets/fashion-mnist", args.batch or 128
WAY = common.WAYS[args.way or "each-0"]
if "fetch" not in WAY:
    sys.exit(f"--way {args.way}: want each-0, each-2, batch-0 or batch-2")


def idx(name, header):
    with gzip.open(os.path.join(FOLDER, name + ".gz")) as f:
        return torch.from_numpy(np.frombuffer(f.read(), np.uint8, offset=header).copy())


class Images(Dataset):
    """As a training program has them in memory; an index gives an image, a list of them a batch."""

    def __init__(self):
        self.x = idx("train-images-idx3-ubyte", 16).view(-1, 1, 28, 28)
        self.y = idx("train-labels-idx1-ubyte", 8)

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
