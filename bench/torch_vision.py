#!/usr/bin/env python3
"""The workloads of bench_vision.c in PyTorch."""
import common

args = common.parse(steps=10, warmup=2, config="resnet18")
torch = common.setup(args, args.config)
import torch.nn as nn
import torch.nn.functional as F

BATCH, SIDE, CLASSES = args.batch or 16, 224, 1000


def conv(inp, out, kernel, stride, groups=1):
    return nn.Conv2d(inp, out, kernel, stride, kernel // 2, groups=groups, bias=False)


class Residual(nn.Module):
    """y = act(body(x) + skip(x)), as in bench_vision.c"""

    def __init__(self, body, skip, act):
        super().__init__()
        self.body, self.skip, self.act = body, skip, act

    def forward(self, x):
        y = self.body(x) + (self.skip(x) if self.skip else x)
        return self.act(y) if self.act else y


def resnet18():
    layers, inp = [conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for i in range(8):
        out, stride = 64 << i // 2, 2 if i and i % 2 == 0 else 1
        body = nn.Sequential(conv(inp, out, 3, stride), nn.BatchNorm2d(out), nn.ReLU(), conv(out, out, 3, 1),
                             nn.BatchNorm2d(out))
        same = stride == 1 and inp == out
        skip = None if same else nn.Sequential(conv(inp, out, 1, stride), nn.BatchNorm2d(out))
        layers.append(Residual(body, skip, nn.ReLU()))
        inp = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def layer(inp, out, kernel, stride, groups=1):
    return [conv(inp, out, kernel, stride, groups), nn.BatchNorm2d(out), nn.ReLU6()]


def mobilenetv2():
    layers, inp = layer(3, 32, 3, 2), 32
    for expand, out, count, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                      (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(count):
            stride, wide = 1 if i else first, inp * expand
            body = nn.Sequential(*(layer(inp, wide, 1, 1) if wide != inp else []), *layer(wide, wide, 3, stride, wide),
                                 conv(wide, out, 1, 1), nn.BatchNorm2d(out))
            layers.append(Residual(body, None, None) if stride == 1 and inp == out else body)
            inp = out
    return nn.Sequential(*layers, *layer(inp, 1280, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(1280, CLASSES))


net = mobilenetv2() if args.config == "mobilenetv2" else resnet18()
if args.weights:
    common.load(torch, net, args.weights)
net = common.place(net, args)
opt = common.optimizer(torch.optim.SGD, net.parameters(), lr=1e-3, momentum=0.9)
net = common.share(net, args)
X, Y = common.noise(torch, (BATCH, 3, SIDE, SIDE), CLASSES)
if args.layout == "channels_last":
    X = X.to(memory_format=torch.channels_last)

common.run(args, "images", BATCH, net, opt, lambda x, y: F.cross_entropy(net(x), y), lambda i: (X, Y))
