#!/usr/bin/env python3
"""The workload of bench_cnn.c in PyTorch."""
import common

BATCH = 128

args = common.parse(steps=40, warmup=5)
torch = common.setup("torch_cnn", args)
import torch.nn as nn
import torch.nn.functional as F

X, Y = common.images(torch)
X = X.view(-1, 1, 28, 28)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))
if args.weights:
    common.load(torch, net, args.weights)
opt = torch.optim.SGD(net.parameters(), lr=2e-3, momentum=0.9)


def batch(i):
    k = i * BATCH % len(X)
    return X[k:k + BATCH], Y[k:k + BATCH]


common.run("torch_cnn", "images", BATCH, net, opt, lambda x, y: F.cross_entropy(net(x), y), batch,
           args)
