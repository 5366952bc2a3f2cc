#!/usr/bin/env python3
"""The workload of bench_mlp.c in PyTorch."""
import common

BATCH = 128

args = common.parse(steps=300, warmup=20)
torch = common.setup("torch_mlp", args)
import torch.nn as nn
import torch.nn.functional as F

X, Y = common.images(torch)
net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                    nn.Linear(256, 10))
if args.weights:
    common.load(torch, net, args.weights)
opt = torch.optim.Adam(net.parameters(), lr=1e-4)


def batch(i):
    k = i * BATCH % len(X)
    return X[k:k + BATCH], Y[k:k + BATCH]


common.run("torch_mlp", "images", BATCH, net, opt, lambda x, y: F.cross_entropy(net(x), y), batch,
           args)
