#!/usr/bin/env python3
"""Makes explain.safetensors: the gradients of test_trace.c's models, in f64.

usage: python3 tests/golden/make_explain.py [FILE]      needs PyTorch 2 and safetensors

Keys, for a case NAME:
    NAME/loss
    NAME/grad/LEAF      the gradient of a parameter or leaf
    NAME/arrives/PATH   of a model's child: the gradient of its output
"""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
tensors = {}


def fill(name, shape):
    """Exact in binary, never 0; test_trace.c has the same."""
    n, p = int(torch.tensor(shape).prod()), sum(map(ord, name))
    return torch.tensor([((k * 7 + p * 5) % 12 - 5.5) / 8 for k in range(n)]).reshape(shape)


def leaf(name, *shape):
    return fill(name, shape).requires_grad_()


def put(case, loss, leaves):
    loss.backward()
    tensors[f"{case}/loss"] = loss.detach().clone()
    for name, t in leaves:
        if t.grad is not None:
            tensors[f"{case}/grad/{name}"] = t.grad.clone()


def model_case(case, model, loss_of, frozen=None):
    for name, p in model.named_parameters():
        p.data = fill(name, p.shape)
    outputs = {}
    if frozen is not None:
        frozen(model).requires_grad_(False)

    def keep(path):
        def hook(_module, _input, output):
            if output.requires_grad and path not in outputs:
                output.retain_grad()
                outputs[path] = output
        return hook
    for path, child in model.named_children():
        child.register_forward_hook(keep(path))
    put(case, loss_of(model), model.named_parameters())
    for path, y in outputs.items():
        tensors[f"{case}/arrives/{path}"] = y.grad.clone()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_in = nn.Parameter(torch.zeros(3, 3))

    def forward(self, x):
        return F.linear(torch.tanh(F.linear(x, self.w_in)), self.w_in)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(torch.tanh(self.fc(x)))


def classify(x, classes):
    return lambda m: F.cross_entropy(m(x), torch.tensor(classes))


def approach(x, shape):
    return lambda m: F.mse_loss(m(x), fill("y", shape))


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def make():
    model_case("mlp", mlp(), classify(fill("x", (3, 3)), [0, 1, 0]))
    model_case("frozen", mlp(), classify(fill("x", (3, 3)), [0, 1, 0]), lambda m: m[0])
    model_case("cnn", nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(),
                                    nn.Linear(8, 3)), classify(fill("x", (2, 1, 4, 4)), [0, 2]))
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True)
    model_case("transformer", nn.Sequential(nn.Embedding(5, 4), layer, nn.Linear(4, 3)),
               approach(torch.tensor([[0, 2, 4], [1, 3, 0]]), (2, 3, 3)))
    model_case("tied", Tied(), approach(fill("x", (2, 3)), (2, 3)))
    model_case("shared", Twice(), approach(fill("x", (2, 2)), (2, 2)))

    x = leaf("x", 3)
    y = torch.exp(x)
    put("fanout", (y * y + y).sum(), [("x", x)])
    a, b, c = leaf("a", 2, 3), leaf("b", 3), leaf("c", 2, 1)
    put("broadcast", ((a + b) * c).sum(), [("a", a), ("b", b), ("c", c)])
    x = leaf("x", 4)
    put("custom", (x * torch.sigmoid(x)).sum(), [("x", x)])


make()
target = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "explain.safetensors")
save_file({k: v.contiguous() for k, v in tensors.items()}, target, metadata={"torch": torch.__version__})
