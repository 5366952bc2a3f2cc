#!/usr/bin/env python3
"""Makes autocast.safetensors: three small networks under torch.autocast("cpu", torch.bfloat16).

usage: python3 tests/golden/make_autocast.py [FILE]      needs PyTorch 2

For each of mlp, conv, attention:
    NET/in/NAME      inputs and parameters, f32; classes i64
    NET/out/NAME     every intermediate value in the dtype that PyTorch gave it
    NET/grad/NAME    gradients of the parameters (and of x), f32
The networks are written once more, in C, in tests/autograd/test_autocast.c.

scaler: torch.amp.GradScaler over steps of SGD (lr 0.1) on one parameter of 2 elements that starts at 1, 2:
    scaler/kind      u8 [STEPS]: 0: the scaled gradient is (scale, -2 scale), 1: it holds inf, 2: it holds NaN
    scaler/scale     f64 [STEPS]: the scale after each update
    scaler/value     f64 [STEPS, 2]: the parameter after each step
"""
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

tensors = {}


def net(name, forward, **inputs):
    for key, value in inputs.items():
        tensors[f"{name}/in/{key}"] = value.clone()
        if value.is_floating_point() and key != "target":
            value.requires_grad_()

    def out(key, value):
        tensors[f"{name}/out/{key}"] = value.detach().clone().contiguous()
        return value

    with torch.autocast("cpu", torch.bfloat16):
        loss = out("loss", forward(out, **inputs))
    loss.backward()
    for key, value in inputs.items():
        if value.requires_grad:
            tensors[f"{name}/grad/{key}"] = value.grad.clone()
    print(name, loss.item(), {k.split("/")[2]: str(v.dtype)[6:] for k, v in tensors.items() if k.startswith(name + "/out/")})


def weight(*shape):
    fan_in = max(1, torch.Size(shape[1:]).numel())
    return torch.randn(shape) / fan_in ** 0.5


def mlp(out, x, w1, b1, w2, b2, w3, b3, target):
    h = out("fc1", F.linear(x, w1, b1))
    h = out("gelu", F.gelu(h))
    h = out("fc2", F.linear(h, w2, b2))
    h = out("relu", F.relu(h))
    h = out("fc3", F.linear(h, w3, b3))
    return F.cross_entropy(h, target)


def conv(out, x, w1, b1, gain, bias, w2, fc, target):
    h = out("conv1", F.conv2d(x, w1, b1, padding=1))
    h = out("norm", F.batch_norm(h, None, None, gain, bias, True))
    h = out("relu", F.relu(h))
    h = out("pool", F.max_pool2d(h, 2))
    h = out("conv2", F.conv2d(h, w2, None, stride=2))
    h = out("flat", h.flatten(1))
    h = out("fc", F.linear(h, fc))
    return F.cross_entropy(h, target)


def attention(out, x, g1, b1, qkv, proj, pb, g2, b2, up, down, target):
    B, T, C = x.shape
    h = out("norm1", F.layer_norm(x, (C,), g1, b1))
    h = out("qkv", F.linear(h, qkv))
    q, k, v = (t.view(B, T, 4, C // 4).transpose(1, 2) for t in h.split(C, 2))
    h = out("heads", F.scaled_dot_product_attention(q, k, v, is_causal=True))
    h = out("proj", F.linear(h.transpose(1, 2).reshape(B, T, C), proj, pb))
    x = out("sum1", x + h)
    h = out("norm2", F.layer_norm(x, (C,), g2, b2))
    h = out("up", F.linear(h, up))
    h = out("gelu", F.gelu(h))
    h = out("down", F.linear(h, down))
    x = out("sum2", x + h)
    return F.mse_loss(x, target)


def scaler():
    kinds = [0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)
    s = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_factor=3.1, backoff_factor=0.3, growth_interval=3)
    scales, values = [], []
    for kind in kinds:
        s.scale(torch.zeros(()))
        scale = s.get_scale()
        w.grad = torch.tensor([scale, (-2 * scale, float("inf"), float("nan"))[kind]])
        s.step(optimizer)
        s.update()
        scales.append(s.get_scale())
        values.append(w.detach().double().clone())
    tensors["scaler/kind"] = torch.tensor(kinds, dtype=torch.uint8)
    tensors["scaler/scale"] = torch.tensor(scales, dtype=torch.float64)
    tensors["scaler/value"] = torch.stack(values)


if __name__ == "__main__":
    torch.manual_seed(11)
    net("mlp", mlp, x=torch.randn(16, 24), w1=weight(32, 24), b1=torch.randn(32) * 0.1, w2=weight(40, 32),
        b2=torch.randn(40) * 0.1, w3=weight(10, 40), b3=torch.randn(10) * 0.1, target=torch.randint(10, (16,)))
    net("conv", conv, x=torch.randn(4, 3, 10, 10), w1=weight(8, 3, 3, 3), b1=torch.randn(8) * 0.1,
        gain=1 + 0.1 * torch.randn(8), bias=torch.randn(8) * 0.1, w2=weight(12, 8, 3, 3), fc=weight(10, 48),
        target=torch.randint(10, (4,)))
    net("attention", attention, x=torch.randn(2, 9, 32), g1=1 + 0.1 * torch.randn(32), b1=torch.randn(32) * 0.1,
        qkv=weight(96, 32), proj=weight(32, 32), pb=torch.randn(32) * 0.1, g2=1 + 0.1 * torch.randn(32),
        b2=torch.randn(32) * 0.1, up=weight(48, 32), down=weight(32, 48), target=torch.randn(2, 9, 32))
    scaler()
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                              "autocast.safetensors")
    save_file(tensors, path, {"torch": torch.__version__, "seed": "11", "made_by": "tests/golden/make_autocast.py"})
