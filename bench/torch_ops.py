#!/usr/bin/env python3
"""The ops of bench_ops.c in PyTorch."""
import math
import time

import common

CHAIN, TINY = 1000, 8

args = common.parse(steps=15, warmup=3)
torch = common.setup("torch_ops", args)
import torch.nn.functional as F

now = time.perf_counter


def tiny(name, f, a, b, recording):
    forward, backward = [], []
    for i in range(-2, args.steps):
        with torch.set_grad_enabled(recording):
            y = a
            t0 = now()
            for _ in range(CHAIN):
                y = f(y, b)
            t1 = now()
            s = y.sum()
            t2 = now()
            if recording:
                s.backward()
            t3 = now()
        if i >= 0:
            forward.append(1e9 * (t1 - t0) / CHAIN)
            backward.append(1e9 * (t3 - t2) / CHAIN)
    common.line(f"torch_tiny_{name}{'_recording' if recording else ''}", "ns", forward)
    if recording:
        common.line(f"torch_tiny_{name}_backward", "ns", backward)


def tiny_in_place(a, b):
    v = []
    for i in range(-2, args.steps):
        t0 = now()
        for _ in range(CHAIN):
            a.add_(b)
        if i >= 0:
            v.append(1e9 * (now() - t0) / CHAIN)
    common.line("torch_tiny_add_in_place", "ns", v)


ones = lambda: torch.ones(TINY)
b, x = torch.full((TINY,), 1e-6), torch.ones(1, TINY)
tiny("add", torch.add, ones(), b, False)
tiny_in_place(ones(), b)
tiny("matmul", torch.matmul, x, torch.eye(TINY), False)
tiny("add", torch.add, ones().requires_grad_(), b, True)
tiny("mul", torch.mul, ones().requires_grad_(), b, True)
tiny("matmul", torch.matmul, x, torch.eye(TINY).requires_grad_(), True)

mask = {t: torch.triu(torch.ones(t, t, dtype=torch.bool), 1) for t in (64, 256)}


def attention(q, k, v):
    a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
    return F.softmax(a.masked_fill(mask[q.shape[-2]], float("-inf")), dim=-1) @ v


def conv(x, w, c):
    return F.conv2d(x, w, c, padding=1)


def norm(x, w, c):
    return F.layer_norm(x, (x.shape[-1],), w, c)


def batch_norm(x, w, c):
    return F.batch_norm(x, None, None, w, c, True)


gelu_tanh = lambda x: F.gelu(x, approximate="tanh")
rows = [
    ("add_1M", torch.add, [(1024, 1024), (1024, 1024)], 0),
    ("add_row_2048x512", torch.add, [(2048, 512), (512,)], 0),
    ("mul_1M", torch.mul, [(1024, 1024), (1024, 1024)], 0),
    ("relu_1M", torch.relu, [(1024, 1024)], 0),
    ("exp_1M", torch.exp, [(1024, 1024)], 0),
    ("gelu_2048x512", F.gelu, [(2048, 512)], 0),
    ("gelu_tanh_2048x512", gelu_tanh, [(2048, 512)], 0),
    ("sum_1M", torch.sum, [(1024, 1024)], 0),
    ("sum_axis0_2048x512", lambda x: x.sum(0), [(2048, 512)], 0),
    ("transpose_copy_1024", lambda x: x.t().contiguous(), [(1024, 1024)], 0),
    ("softmax_2048x512", lambda x: F.softmax(x, -1), [(2048, 512)], 0),
    ("layer_norm_2048x128", norm, [(2048, 128), (128,), (128,)], 0),
    ("layer_norm_2048x384", norm, [(2048, 384), (384,), (384,)], 0),
    ("cross_entropy_2048x96", F.cross_entropy, [(2048, 96), (2048,)], 96),
    ("embedding_96x128_2048", lambda w, i: F.embedding(i, w), [(96, 128), (2048,)], 96),
    ("matmul_512", torch.matmul, [(512, 512), (512, 512)], 0),
    ("matmul_batch_128x64x32", torch.matmul, [(128, 64, 32), (128, 32, 64)], 0),
    ("linear_2048x128x512", F.linear, [(2048, 128), (512, 128), (512,)], 0),
    ("linear_2048x384x1536", F.linear, [(2048, 384), (1536, 384), (1536,)], 0),
    ("linear_128x784x512", F.linear, [(128, 784), (512, 784), (512,)], 0),
    ("attention_32x4x64x32", attention, [(32, 4, 64, 32)] * 3, 0),
    ("attention_8x6x256x64", attention, [(8, 6, 256, 64)] * 3, 0),
    ("conv_128x1x28_32", conv, [(128, 1, 28, 28), (32, 1, 3, 3), (32,)], 0),
    ("conv_128x32x14_64", conv, [(128, 32, 14, 14), (64, 32, 3, 3), (64,)], 0),
    ("batch_norm_128x32x28", batch_norm, [(128, 32, 28, 28), (32,), (32,)], 0),
    ("max_pool_128x32x28", lambda x: F.max_pool2d(x, 2), [(128, 32, 28, 28)], 0),
]
for name, f, shapes, classes in rows:
    ins = [torch.randn(s) for s in shapes]
    if classes:
        ins[-1] = torch.randint(0, classes, shapes[-1])
    seed = torch.ones_like(f(*ins))
    for t in ins[:len(ins) - bool(classes)]:
        t.requires_grad_()
    forward, both = [], []
    for i in range(-3, args.steps):
        t0 = now()
        with torch.no_grad():
            f(*ins)
        t1 = now()
        f(*ins).backward(seed)
        t2 = now()
        for t in ins:
            t.grad = None
        if i >= 0:
            forward.append(1e6 * (t1 - t0))
            both.append(1e6 * (t2 - t1))
    common.line(f"torch_{name}", "us_forward", forward)
    common.line(f"torch_{name}", "us_forward_backward", both)

params = [torch.randn(512) if i % 2 else torch.randn(512, 200) for i in range(16)]
for p in params:
    p.requires_grad_()
    p.grad = torch.ones_like(p)
opt = torch.optim.AdamW(params, weight_decay=0.01)
v = []
for i in range(-3, args.steps):
    t0 = now()
    opt.step()
    if i >= 0:
        v.append(1e6 * (now() - t0))
common.line("torch_adamw_820k", "us_step", v)
common.line("torch_ops", "peak_rss_MiB", [common.peak_rss()])
