#!/usr/bin/env python3
"""Makes derivatives.safetensors: torch.autograd.functional on the functions of test_derivatives.c, in f64.

usage: python3 tests/golden/make_derivatives.py [FILE]      needs PyTorch 2 and safetensors

Keys, for a function NAME:
    NAME/x0 ...         inputs
    NAME/y              the result
    NAME/v              a seed of y's shape, and NAME/vjp0 ... = vjp(f, x, v)
    NAME/u0 ...         a direction for each input, and NAME/jvp = jvp(f, x, u)
    NAME/jacobian0 ...  jacobian(f, x)
and for functions with one element, where a second derivative is not 0 everywhere:
    NAME/hessian00 ...  hessian(f, x)[i][j]
    NAME/hvp0 ...       hvp(f, x, u)
"""
import os
import sys

import torch
import torch.autograd.functional as A
import torch.nn.functional as F
from safetensors.torch import save_file

tensors = {}


def put(name, values):
    for i, t in enumerate(values):
        tensors[f"{name}{i}"] = t.detach().clone().contiguous()


def case(name, f, *x):
    y = f(*x)
    v, u = torch.randn_like(y), tuple(torch.randn_like(t) for t in x)
    put(f"{name}/x", x)
    put(f"{name}/u", u)
    tensors[f"{name}/y"], tensors[f"{name}/v"] = y.clone(), v
    put(f"{name}/vjp", A.vjp(f, x, v)[1])
    tensors[f"{name}/jvp"] = A.jvp(f, x, u)[1].contiguous()
    put(f"{name}/jacobian", A.jacobian(f, x))
    if y.numel() > 1:
        return
    for i, row in enumerate(A.hessian(f, x)):
        put(f"{name}/hessian{i}", row)
    put(f"{name}/hvp", A.hvp(f, x, u)[1])


def network(x, w, b, w2):
    h = F.layer_norm(torch.tanh(x @ w + b), (4,))
    return F.cross_entropy(h @ w2, torch.tensor([2, 0, 1]), label_smoothing=0.1)


def attention(q, k, v):
    """Written out: PyTorch's own on the CPU has no second derivative."""
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    y = torch.softmax((q @ k.mT / 2**0.5).masked_fill(later, -torch.inf), -1) @ v
    return (y * torch.sin(y)).sum()


def normed(x, w):
    return F.batch_norm(x, None, None, w, None, training=True).pow(3).mean()


def image(x, w):
    return F.softplus(F.conv2d(x, w, stride=2, padding=1)).prod(1)


if __name__ == "__main__":
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    r = torch.randn
    case("product", lambda a, b: torch.tanh(a @ b), r(2, 3), r(3, 2))
    case("apart", lambda a, b: torch.exp(a) * 2, r(3), r(2))  # does not depend on b
    case("network", network, r(3, 2), r(2, 4), r(4), r(4, 3))
    case("attention", attention, r(1, 3, 2), r(1, 3, 2), r(1, 3, 2))
    case("normed", normed, r(4, 3), r(3))
    case("image", image, r(1, 2, 4, 4), r(2, 2, 3, 3))
    folder = os.path.dirname(os.path.abspath(__file__))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(folder, "derivatives.safetensors")
    save_file(tensors, path, metadata={"torch": torch.__version__, "seed": "5"})
    print(f"{len(tensors)} tensors, {os.path.getsize(path)} bytes")
