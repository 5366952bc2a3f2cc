#!/usr/bin/env python3
"""examples/batchnorm with --augment, --smooth and --blocks in PyTorch: how well and how fast it learns Fashion-MNIST.

Takes --steps N, the epochs of the schedule; --smooth X, of labels; --decay X, of weights; --layers N, residual blocks a
stage; --block N: stops after N epochs; --way, --precision, --threads as the other twins. Prints each epoch's seconds,
without the evaluation, and its test accuracy. Images are moved and mirrored a batch at a time, by one indexing each.
"""
import time

import common

args = common.parse(steps=30, warmup=0)
torch = common.setup(args, "fashion")
import torch.nn as nn
import torch.nn.functional as F

BATCH, MOVED = args.batch or 128, 2
x = common.fashion(torch, args, "train-images-idx3-ubyte")
y = common.fashion(torch, args, "train-labels-idx1-ubyte").long()
test_x = common.fashion(torch, args, "t10k-images-idx3-ubyte").unsqueeze(1)
test_y = common.fashion(torch, args, "t10k-labels-idx1-ubyte").long()
padded = F.pad(x, [MOVED] * 4)
mean, deviation = x.float().mean(), x.float().std()


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + F.relu(self.norm(self.conv(x)))


def stage(before, after):
    return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2),
            *(Block(after) for _ in range(args.layers))]


torch.manual_seed(1)
net = nn.Sequential(*stage(1, 32), *stage(32, 64), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))
run = common.place(net, args)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=args.decay, nesterov=True)
batches = len(x) // BATCH
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, args.steps * batches, pct_start=0.2, cycle_momentum=False)
layout = torch.channels_last if args.layout == "channels_last" else torch.contiguous_format
rows = torch.arange(28)


def batch(at):
    """Images [N, 1, 28, 28]: each moved by up to MOVED pixels, and half of them mirrored."""
    down, right = torch.randint(0, 2 * MOVED + 1, (2, len(at), 1))
    columns = torch.where(torch.rand(len(at), 1) < 0.5, rows, 27 - rows) + right
    moved = padded[at[:, None, None], (rows + down)[:, :, None], columns[:, None, :]]
    return ((moved.float() - mean) / deviation)[:, None].contiguous(memory_format=layout)


for epoch in range(args.block if args.block > 1 else args.steps):
    net.train()
    began, total, order = time.perf_counter(), 0.0, torch.randperm(len(x))
    for i in range(batches):
        at = order[i * BATCH:(i + 1) * BATCH]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = F.cross_entropy(run(batch(at)).float(), y[at], label_smoothing=args.smooth)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        total += loss.item()
    seconds = time.perf_counter() - began
    net.eval()
    with torch.no_grad():
        right = sum((net((part.float() - mean) / deviation).argmax(1) == want).sum().item()
                    for part, want in zip(test_x.split(1000), test_y.split(1000)))
    print(f"epoch {epoch + 1}: {seconds:.2f} s, training loss {total / batches:.4f}, test accuracy {right / 100:.2f} %",
          flush=True)
