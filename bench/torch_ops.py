#!/usr/bin/env python3
"""The ops of bench_ops.c in PyTorch."""
import functools
import math
import sys
import time

import common

CHAIN, TINY = 1000, 8

args = common.parse(steps=15, warmup=3)
torch = common.setup(args, "ops")
import torch.nn.functional as F

GPU, LOW = args.device == "cuda", args.precision == "bf16"
CONFIG = args.config or ("gpu" if GPU else "cpu")
LARGE = CONFIG != "cpu"


def now():
    args.wait()
    return time.perf_counter()


def there(x):
    return x.to(args.device)


def print_line(name, metric, values):
    if values:
        common.line(common.name_of(args, name), metric, values)


def size(n):
    """at_size() of bench_ops.c"""
    if CONFIG != "tiny" or n < 64:
        return n
    return n // 16 if n < 4096 else n // 256


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
    print_line(f"tiny_{name}{'_recording' if recording else ''}", "ns", forward)
    if recording:
        print_line(f"tiny_{name}_backward", "ns", backward)


def tiny_in_place(a, b):
    v = []
    for i in range(-2, args.steps):
        t0 = now()
        for _ in range(CHAIN):
            a.add_(b)
        if i >= 0:
            v.append(1e9 * (now() - t0) / CHAIN)
    print_line("tiny_add_in_place", "ns", v)


def tiny_all():
    ones = lambda: there(torch.ones(TINY))
    eye = lambda: there(torch.eye(TINY))
    b, x = there(torch.full((TINY,), 1e-6)), there(torch.ones(1, TINY))
    tiny("add", torch.add, ones(), b, False)
    tiny_in_place(ones(), b)
    tiny("matmul", torch.matmul, x, eye(), False)
    tiny("add", torch.add, ones().requires_grad_(), b, True)
    tiny("mul", torch.mul, ones().requires_grad_(), b, True)
    tiny("matmul", torch.matmul, x, eye().requires_grad_(), True)


mask = {t: torch.triu(torch.ones(t, t, dtype=torch.bool), 1) for t in (64, 256, 1024)}
POOL = lambda x: F.max_pool2d(x, 2)


def attention(q, k, v):
    if args.attention == "fused" and hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
    return F.softmax(a.masked_fill(mask[q.shape[-2]], float("-inf")), dim=-1) @ v


def convolved(x, w, c, stride, dilation):
    return F.conv2d(x, w, c, stride, w.shape[2] // 2 * dilation, dilation, x.shape[1] // w.shape[1])


def conv(x, w, c=None):
    return convolved(x, w, c, 1, 1)


def strided(x, w):
    return convolved(x, w, None, 2, 1)


def dilated(x, w):
    return convolved(x, w, None, 1, 2)


def conv1d(x, w, c):
    return F.conv1d(x, w, c, padding=1)


def conv_transpose(x, w, c):
    return F.conv_transpose2d(x, w, c, stride=2, padding=1)


def norm(x, w, c):
    return F.layer_norm(x, (x.shape[-1],), w, c)


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def group_norm(x, w, c):
    return F.group_norm(x, 8, w, c)


def batch_norm(x, w, c):
    return F.batch_norm(x, None, None, w, c, True)


def recurrent(function, states):
    """x [T, B, in] and both weights, without biases; in bf16 of f32 tensors, under autocast."""
    def run(x, w_ih, w_hh):
        zeros = torch.zeros(1, x.shape[1], w_hh.shape[1], device=x.device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=LOW):
            return function(x, (zeros, zeros) if states == 2 else zeros, [w_ih, w_hh], False, 1, 0.0, True, False,
                            False)[0]
    return run


def cross_entropy(x, y):
    return F.cross_entropy(x, y)


def ctc(x, y):
    count = lambda k: torch.full((x.shape[1],), k)
    return F.ctc_loss(x, y, count(x.shape[0]), count(y.shape[1]))


rnn, gru, lstm = recurrent(torch.rnn_tanh, 1), recurrent(torch.gru, 1), recurrent(torch.lstm, 2)
gelu_tanh = lambda x: F.gelu(x, approximate="tanh")
cpu_rows = [
    ("add_1M", torch.add, [(1024, 1024), (1024, 1024)], 0),
    ("add_row_2048x512", torch.add, [(2048, 512), (512,)], 0),
    ("mul_1M", torch.mul, [(1024, 1024), (1024, 1024)], 0),
    ("relu_1M", torch.relu, [(1024, 1024)], 0),
    ("exp_1M", torch.exp, [(1024, 1024)], 0),
    ("gelu_2048x512", F.gelu, [(2048, 512)], 0),
    ("gelu_tanh_2048x512", gelu_tanh, [(2048, 512)], 0),
    ("mish_2048x512", F.mish, [(2048, 512)], 0),
    ("hardswish_2048x512", F.hardswish, [(2048, 512)], 0),
    ("round_1M", torch.round, [(1024, 1024)], 0),
    ("prelu_8x64x56x56", F.prelu, [(8, 64, 56, 56), (64,)], 0),
    ("glu_2048x1024", F.glu, [(2048, 1024)], 0),
    ("sum_1M", torch.sum, [(1024, 1024)], 0),
    ("sum_axis0_2048x512", lambda x: x.sum(0), [(2048, 512)], 0),
    ("transpose_copy_1024", lambda x: x.t().contiguous(), [(1024, 1024)], 0),
    ("softmax_2048x512", lambda x: F.softmax(x, -1), [(2048, 512)], 0),
    ("layer_norm_2048x128", norm, [(2048, 128), (128,), (128,)], 0),
    ("layer_norm_2048x384", norm, [(2048, 384), (384,), (384,)], 0),
    ("rms_norm_2048x384", rms_norm, [(2048, 384), (384,)], 0),
    ("rms_norm_2048x768", rms_norm, [(2048, 768), (768,)], 0),
    ("group_norm_32x64x28", group_norm, [(32, 64, 28, 28), (64,), (64,)], 0),
    ("cross_entropy_2048x96", cross_entropy, [(2048, 96), (2048,)], 96),
    ("ctc_128x32x64_24", ctc, [(128, 32, 64), (32, 24)], 64),
    ("cosine_2048x512", lambda x, y: F.cosine_similarity(x, y, -1), [(2048, 512), (2048, 512)], 0),
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
    ("conv1d_16x256x1024", conv1d, [(16, 256, 1024), (256, 256, 3), (256,)], 0),
    ("conv1d_8x80x3000_512", conv1d, [(8, 80, 3000), (512, 80, 3), (512,)], 0),
    ("conv_transpose_64x128x8_64", conv_transpose, [(64, 128, 8, 8), (128, 64, 4, 4), (64,)], 0),
    ("image_dw3_16x96x56", conv, [(16, 96, 56, 56), (96, 1, 3, 3)], 0),
    ("image_dw3_16x576x14", conv, [(16, 576, 14, 14), (576, 1, 3, 3)], 0),
    ("image_dw3_16x960x7", conv, [(16, 960, 7, 7), (960, 1, 3, 3)], 0),
    ("image_dw3_s2_16x144x56", strided, [(16, 144, 56, 56), (144, 1, 3, 3)], 0),
    ("image_dw5_16x240x28", conv, [(16, 240, 28, 28), (240, 1, 5, 5)], 0),
    ("image_dw5_s2_16x144x56", strided, [(16, 144, 56, 56), (144, 1, 5, 5)], 0),
    ("image_1x1_16x64x56_256", conv, [(16, 64, 56, 56), (256, 64, 1, 1)], 0),
    ("image_1x1_16x96x56_24", conv, [(16, 96, 56, 56), (24, 96, 1, 1)], 0),
    ("image_1x1_16x24x56_144", conv, [(16, 24, 56, 56), (144, 24, 1, 1)], 0),
    ("image_1x1_16x576x14_96", conv, [(16, 576, 14, 14), (96, 576, 1, 1)], 0),
    ("image_1x1_16x320x7_1280", conv, [(16, 320, 7, 7), (1280, 320, 1, 1)], 0),
    ("image_1x1_s2_16x256x56_512", strided, [(16, 256, 56, 56), (512, 256, 1, 1)], 0),
    ("image_3x3_16x64x56_64", conv, [(16, 64, 56, 56), (64, 64, 3, 3)], 0),
    ("image_3x3_16x512x7_512", conv, [(16, 512, 7, 7), (512, 512, 3, 3)], 0),
    ("image_3x3_s2_16x64x56_128", strided, [(16, 64, 56, 56), (128, 64, 3, 3)], 0),
    ("image_3x3_s2_16x3x224_32", strided, [(16, 3, 224, 224), (32, 3, 3, 3)], 0),
    ("image_7x7_s2_16x3x224_64", strided, [(16, 3, 224, 224), (64, 3, 7, 7)], 0),
    ("image_3x3_g32_16x128x56", conv, [(16, 128, 56, 56), (128, 4, 3, 3)], 0),
    ("image_3x3_g32_16x512x14", conv, [(16, 512, 14, 14), (512, 16, 3, 3)], 0),
    ("image_3x3_d2_16x64x28_64", dilated, [(16, 64, 28, 28), (64, 64, 3, 3)], 0),
    ("image_3x3_2x64x128_64", conv, [(2, 64, 128, 128), (64, 64, 3, 3)], 0),
    ("batch_norm_128x32x28", batch_norm, [(128, 32, 28, 28), (32,), (32,)], 0),
    ("max_pool_128x32x28", POOL, [(128, 32, 28, 28)], 0),
    ("sort_1M", lambda x: torch.sort(x)[0], [(1048576,)], 0),
    ("sort_2048x96", lambda x: torch.sort(x)[0], [(2048, 96)], 0),
    ("sort_64x50257", lambda x: torch.sort(x)[0], [(64, 50257)], 0),
    ("topk_50_64x50257", lambda x: torch.topk(x, 50)[0], [(64, 50257)], 0),
    ("topk_5_2048x96", lambda x: torch.topk(x, 5)[0], [(2048, 96)], 0),
    ("topk_5_512x1000", lambda x: torch.topk(x, 5)[0], [(512, 1000)], 0),
    ("median_64x50257", lambda x: torch.median(x, -1)[0], [(64, 50257)], 0),
    ("unique_1M", lambda x, i: x * torch.unique(i), [(1,), (1048576,)], 1000),
    ("nearest_8x64x56", lambda x: F.interpolate(x, scale_factor=2), [(8, 64, 56, 56)], 0),
    ("bilinear_8x64x56", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(8, 64, 56, 56)], 0),
    ("bicubic_8x64x56", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), [(8, 64, 56, 56)], 0),
    ("pad_8x64x56", lambda x: F.pad(x, (1, 1, 1, 1)), [(8, 64, 56, 56)], 0),
    ("reflect_8x64x56", lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), [(8, 64, 56, 56)], 0),
    ("pixel_shuffle_8x256x56", lambda x: F.pixel_shuffle(x, 2), [(8, 256, 56, 56)], 0),
    ("rnn_64x32x128_256", rnn, [(64, 32, 128), (256, 128), (256, 256)], 0),
    ("gru_64x32x128_256", gru, [(64, 32, 128), (768, 128), (768, 256)], 0),
    ("lstm_64x32x128_256", lstm, [(64, 32, 128), (1024, 128), (1024, 256)], 0),
    ("lstm_32x64x512_512", lstm, [(32, 64, 512), (2048, 512), (2048, 512)], 0),
]
sum_axis0 = lambda x: x.sum(0)
transposed = lambda x: x.t().contiguous()
gpu_rows = [
    ("add", torch.add, [(32768, 3072), (32768, 3072)], 0),
    ("add_row", torch.add, [(32768, 3072), (3072,)], 0),
    ("relu", torch.relu, [(32768, 3072)], 0),
    ("gelu_tanh", gelu_tanh, [(32768, 3072)], 0),
    ("sum", torch.sum, [(32768, 3072)], 0),
    ("sum_axis0", sum_axis0, [(32768, 3072)], 0),
    ("transpose_copy", transposed, [(8192, 8192)], 0),
    ("softmax", lambda x: F.softmax(x, -1), [(32768, 1024)], 0),
    ("layer_norm", norm, [(32768, 768), (768,), (768,)], 0),
    ("cross_entropy", cross_entropy, [(8192, 50304), (8192,)], 50304),
    ("embedding", lambda w, i: F.embedding(i, w), [(50304, 768), (32768,)], 50304),
    ("linear_768_2304", F.linear, [(32768, 768), (2304, 768), (2304,)], 0),
    ("linear_768_3072", F.linear, [(32768, 768), (3072, 768), (3072,)], 0),
    ("linear_3072_768", F.linear, [(32768, 3072), (768, 3072), (768,)], 0),
    ("matmul_4096", torch.matmul, [(4096, 4096), (4096, 4096)], 0),
    ("attention", attention, [(32, 12, 1024, 64)] * 3, 0),
    ("conv_3x3", conv, [(256, 64, 28, 28), (128, 64, 3, 3), (128,)], 0),
    ("batch_norm", batch_norm, [(256, 128, 28, 28), (128,), (128,)], 0),
    ("max_pool", POOL, [(256, 128, 28, 28)], 0),
]
# What mixed precision gives to a GPU's tensor cores in bf16, and what takes what it is given.
low = (torch.matmul, F.linear, attention, conv, torch.add, torch.relu, gelu_tanh, transposed)


def time_calls(f, ins, seed=None):
    t0 = now()
    for _ in range(args.block):
        if seed is None:
            with torch.no_grad():
                f(*ins)
        else:
            f(*ins).backward(seed)
            for t in ins:
                t.grad = None
    return 1e6 * (now() - t0) / args.block


@functools.cache
def compiled(name, f):
    """torch.compile looks its results up by the code that it was given: each op has code of its own."""
    call = lambda *x: f(*x)
    call.__code__ = call.__code__.replace(co_name=name)
    return torch.compile(call, mode=args.compile, dynamic=False)


def time_row(name, f, shapes, classes):
    if args.only not in name:
        return
    shapes = [tuple(size(n) for n in shape) for shape in shapes]
    dtype = torch.bfloat16 if LOW and f not in (rnn, gru, lstm) else torch.float32
    ins = [there(torch.randn(s).to(dtype)) for s in shapes]
    if classes:
        ins[-1] = there(torch.randint(0, size(classes), shapes[-1]))
    if args.layout == "channels_last" or (GPU and LOW and f in (conv, strided, dilated)):
        ins = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in ins]
    if args.compile:
        if not args.rounds:
            torch.compiler.reset()  # gives back what the op before took
        f = compiled(name, f)
    try:
        seed = torch.ones_like(f(*ins))
    except RuntimeError as error:  # oneDNN has no recurrent layer in bf16 below AVX-512
        if "could not create a primitive" not in str(error):
            raise
        print(f"{name} left out: {error}", file=sys.stderr)
        return
    for t in ins[:len(ins) - bool(classes)]:
        t.requires_grad_()
    forward, both = [], []
    for i in range(-3, args.steps):
        times = time_calls(f, ins), time_calls(f, ins, seed)
        if i >= 0:
            forward.append(times[0])
            both.append(times[1])
    print_line(name, "us_forward", forward)
    print_line(name, "us_forward_backward", both)


def time_peaks():
    side = size(8192)
    x = there(torch.randn(side, side).to(torch.bfloat16 if LOW else torch.float32))
    y, copies, products = torch.empty_like(x), [], []
    for i in range(-3, args.steps):
        t0 = now()
        for _ in range(args.block):
            y.copy_(x)
        if i >= 0:
            copies.append(1e-9 * args.block * 2 * x.numel() * x.element_size() / (now() - t0))
    for i in range(-3, args.steps):
        us = time_calls(torch.matmul, (x, y))
        if i >= 0:
            products.append(1e-6 * 2 * side ** 3 / us)
    print_line("peak_copy", "GB/s", copies)
    print_line("peak_product", "TFLOP/s", products)


def time_adamw(name, each):
    params = [there(torch.randn(each) if i % 2 else torch.randn(each, 200)) for i in range(16)]
    for p in params:
        p.requires_grad_()
        p.grad = torch.ones_like(p)
    opt = common.optimizer(torch.optim.AdamW, params, weight_decay=0.01)
    v = []
    for i in range(-3, args.steps):
        t0 = now()
        for _ in range(args.block):
            opt.step()
        if i >= 0:
            v.append(1e6 * (now() - t0) / args.block)
    print_line(name, "us_step", v)


# A way measures what it can change.
changed = {"eager-written": (attention,), "eager-channels": (conv, strided, dilated, batch_norm, POOL)}.get(args.way)
whole = args.way in (None, "eager")


def time_all():
    if whole and not LOW and not args.only:
        tiny_all()
    if whole and LARGE:
        time_peaks()
    for row in gpu_rows if LARGE else cpu_rows:
        if (row[1] in changed) if changed else (not (LOW and GPU) or row[1] in low):
            time_row(*row)
    if whole and not LOW and not args.only:
        time_adamw("adamw_124M" if LARGE else "adamw_820k", size(77000) if LARGE else 512)


if args.rounds:  # compiles, and prints nothing
    steps, args.steps = args.steps, 0
    time_all()
    args.steps = steps
for _ in common.rounds(args):
    time_all()
    if not GPU:
        common.memory(args, args.name)
