#!/usr/bin/env python3
"""The workloads of bench_images.c in PyTorch."""
import common

args = common.parse(steps=40, warmup=5, config="cnn")
torch = common.setup(args, args.config)
import torch.nn as nn
import torch.nn.functional as F

BATCH = args.batch or 128
X, Y = common.images(torch)
if args.config == "mlp":
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                        nn.Linear(256, 10))
else:
    X = X.view(-1, 1, 28, 28)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))
if args.weights:
    common.load(torch, net, args.weights)
net = common.place(net, args)
if args.config == "mlp":
    opt = common.optimizer(torch.optim.Adam, net.parameters(), lr=1e-4)
else:
    opt = common.optimizer(torch.optim.SGD, net.parameters(), lr=2e-3, momentum=0.9)
net = common.share(net, args)


def batch(i):
    k = i % (len(X) // BATCH) * BATCH
    return X[k:k + BATCH], Y[k:k + BATCH]


common.run(args, "images", BATCH, net, opt, lambda x, y: F.cross_entropy(net(x), y), batch)
