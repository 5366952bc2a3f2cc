#!/usr/bin/env python3
"""Makes ops.safetensors: inputs, outputs and gradients of every row of tests/ops/op_rows_*.def, by PyTorch.

usage: python3 tests/golden/make_ops.py [FILE]      runs with PyTorch 1.13 and 2.x

Keys, for a row NAME: NAME/in0, in1, ... the inputs; NAME/out the result; and, where anything is
differentiable, NAME/seed, a cotangent of out's shape, and NAME/grad0, ... the gradients of sum(out * seed)
for the inputs that have one. Everything real is f64, rounded to f32 on the way in, so that the f32 run
of the tests starts from the same numbers. Inputs are drawn from the row's name: adding a row moves no other.
"""
import json
import math
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F

INF, NAN = math.inf, math.nan
tensors = {}


# ---- the format: 8 bytes of length, a JSON header, the data ------------------------------------------

def save(path, tensors, metadata):
    dtypes = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
    header, at, blocks = {"__metadata__": metadata}, 0, []
    for key, value in tensors.items():
        block = np.asarray(value, order="C").tobytes()
        header[key] = {"dtype": dtypes[str(value.dtype)], "shape": list(value.shape),
                       "data_offsets": [at, at + len(block)]}
        at += len(block)
        blocks.append(block)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(blocks))


# ---- inputs: each is a function of the row's generator ----------------------------------------------

class Input:
    def __init__(self, draw, grad):
        self.draw, self.grad = draw, grad


def f32(a):
    return np.asarray(a, np.float64).astype(np.float32).astype(np.float64)


def real(*shape, low=-1.0, high=1.0, grad=True):
    return Input(lambda g: f32(g.uniform(low, high, shape)), grad)


def away(*shape, gap=0.2, high=2.0):
    """Away from 0: gap <= |x| <= high."""
    return Input(lambda g: f32(g.uniform(gap, high, shape) * g.choice([-1.0, 1.0], shape)), True)


def distinct(*shape):
    """No two elements closer than 0.02: extremes stay where they are under a small step."""
    def draw(g):
        n = int(np.prod(shape))
        return f32((g.permutation(n) - n / 2 + g.uniform(0.2, 0.4, n)).reshape(shape) * 0.1)
    return Input(draw, True)


def given(values, grad=True, dtype=np.float64):
    return Input(lambda g: np.asarray(values, dtype), grad)


def ints(*shape, low=-4, high=5, dtype=np.int64):
    return Input(lambda g: g.integers(low, high, shape).astype(dtype), False)


def index(*shape, n):
    return ints(*shape, low=0, high=n)


def boolean(*shape):
    return Input(lambda g: g.random(shape) < 0.5, False)


def probabilities(*shape, grad=False):
    def draw(g):
        p = g.uniform(0.1, 1.0, shape)
        return f32(p / p.sum(1, keepdims=True))
    return Input(draw, grad)


# ---- one row -------------------------------------------------------------------------------------

def row(name, function, *inputs):
    g = np.random.default_rng(zlib.crc32(name.encode()))
    arrays = [i.draw(g) for i in inputs]
    for k, a in enumerate(arrays):
        tensors[f"{name}/in{k}"] = a
    if function is None:  # inputs only: what the row gives is random
        return
    x = [torch.from_numpy(np.array(a)) for a in arrays]
    for t, i in zip(x, inputs):
        if i.grad:
            t.requires_grad_()
    y = function(*x)
    tensors[f"{name}/out"] = y.detach().numpy()
    if not y.requires_grad:
        return
    seed = f32(g.uniform(-1, 1, tuple(y.shape)))
    tensors[f"{name}/seed"] = seed
    want = [k for k, t in enumerate(x) if t.requires_grad]
    grads = torch.autograd.grad(y, [x[k] for k in want], torch.from_numpy(seed).to(y.dtype), allow_unused=True)
    for k, d in zip(want, grads):
        if d is not None:
            tensors[f"{name}/grad{k}"] = d.numpy()


# ---- views and movement -----------------------------------------------------------------------------

def scaled(parts, axis):
    return torch.cat([p * (i + 1) for i, p in enumerate(parts)], axis)


def movement():
    row("reshape", lambda x: x.reshape(3, 8), real(4, 6))
    row("reshape_infer", lambda x: x.reshape(-1, 4), real(2, 3, 4))
    row("reshape_rank0", lambda x: x.reshape(()), real(1, 1))
    row("reshape_empty", lambda x: x.reshape(3, 0), real(0, 3))
    row("reshape_one", lambda x: x.reshape(1, 6, 1), real(2, 1, 3))
    row("flatten", lambda x: x.flatten(1, 2), real(2, 3, 4))
    row("flatten_all", lambda x: x.flatten(0, -1), real(2, 3, 2))
    row("flatten_empty", lambda x: x.flatten(0, 1), real(2, 0, 3))
    row("transpose", lambda x: x.transpose(0, 1), real(3, 4))
    row("transpose_negative", lambda x: x.transpose(-1, 0), real(2, 3, 4))
    row("transpose_same", lambda x: x.transpose(1, 1), real(2, 3))
    row("permute", lambda x: x.permute(2, 0, 1), real(2, 3, 4))
    row("permute_empty", lambda x: x.permute(1, 0), real(0, 3))
    row("squeeze", lambda x: x.squeeze(1), real(3, 1, 2))
    row("squeeze_negative", lambda x: x.squeeze(-1), real(3, 1))
    row("squeeze_other", lambda x: x.squeeze(0), real(3, 1, 2))
    row("squeeze_all", lambda x: x.squeeze(), real(1, 3, 1, 2))
    row("unsqueeze", lambda x: x.unsqueeze(0), real(3, 2))
    row("unsqueeze_middle", lambda x: x.unsqueeze(1), real(3, 2))
    row("unsqueeze_last", lambda x: x.unsqueeze(-1), real(3, 2))
    row("unsqueeze_rank0", lambda x: x.unsqueeze(0), real())
    row("expand", lambda x: x.expand(2, 3, 4), real(3, 1))
    row("expand_keep", lambda x: x.expand(-1, 4), real(3, 1))
    row("expand_rank0", lambda x: x.expand(2, 3), real())
    row("expand_empty", lambda x: x.expand(0, 2), real(1, 2))
    row("select", lambda x: x.select(1, 2), real(3, 4))
    row("select_negative", lambda x: x.select(-1, -1), real(2, 3, 4))
    row("select_first", lambda x: x.select(0, 0), real(3))
    row("slice", lambda x: x[1:3], real(4, 3))
    row("slice_step", lambda x: x[:, 1:6:2], real(2, 7))
    row("slice_negative", lambda x: x[:, -3:-1], real(3, 5))
    row("slice_clamped", lambda x: x[-100:100], real(4, 2))
    row("slice_empty", lambda x: x[2:2], real(4, 2))
    row("narrow", lambda x: x.narrow(1, 1, 2), real(3, 4))
    row("narrow_zero", lambda x: x.narrow(-1, 2, 0), real(3, 4))
    row("split", lambda x: scaled(x.split(2, 0), 0), real(5, 3))
    row("split_negative", lambda x: scaled(x.split(3, -1), -1), real(2, 6))
    row("split_partial", lambda x: x.split(2, 0)[1] * 3, real(5, 3))
    row("chunk", lambda x: scaled(x.chunk(2, 1), 1), real(2, 5))
    row("chunk_fewer", lambda x: scaled(x.chunk(4, 0), 0), real(6, 2))
    row("cat", lambda a, b: torch.cat([a, b], 0), real(2, 3), real(1, 3))
    row("cat_negative", lambda a, b, c: torch.cat([a, b, c], -1), real(2, 3), real(2, 1), real(2, 2))
    row("cat_one", lambda a: torch.cat([a], 0), real(2, 3))
    row("cat_empty", lambda a, b: torch.cat([a, b], 0), real(2, 3), real(0, 3))
    row("cat_self", lambda a: torch.cat([a, a], 1), real(2, 3))
    row("cat_promote", lambda a, b: torch.cat([a, b], 0), ints(2, 3), real(1, 3))
    row("stack", lambda a, b: torch.stack([a, b], 0), real(2, 3), real(2, 3))
    row("stack_last", lambda a, b: torch.stack([a, b], -1), real(2, 3), real(2, 3))
    row("stack_rank0", lambda a, b: torch.stack([a, b], 0), real(), real())
    row("contiguous", lambda x: 2 * x.transpose(0, 1), real(3, 4))
    row("contiguous_same", lambda x: 2 * x, real(3, 4))
    row("flip", lambda x: x.flip(0), real(3, 4))
    row("flip_two", lambda x: x.flip(0, -1), real(2, 3, 4))
    row("flip_empty", lambda x: x.flip(1), real(2, 0))
    row("repeat", lambda x: x.repeat(2, 3), real(2, 3))
    row("repeat_leading", lambda x: x.repeat(2, 1, 2), real(2, 3))
    row("repeat_zero", lambda x: x.repeat(0, 1), real(2, 3))
    row("to_dtype", lambda x: x.float().double(), real(3, 4))
    row("to_dtype_same", lambda x: 2 * x, real(3, 4))
    row("to_dtype_int", lambda x: x.long(), real(3, 4, low=-9, high=9, grad=False))
    row("to_dtype_i32", lambda x: x.int(), real(3, 4, low=-9, high=9, grad=False))
    row("to_dtype_u8", lambda x: x.to(torch.uint8), real(3, 4, low=0, high=200, grad=False))
    row("to_dtype_bool", lambda x: x.bool(), given([0, 1, -2, 0.5, NAN], grad=False))
    row("to_dtype_from_int", lambda x: x.double(), ints(3, 4))
    row("to", lambda x: 2 * x, real(3, 4))
    row("tril", lambda x: x.tril(0), real(3, 4))
    row("tril_up", lambda x: x.tril(1), real(3, 4))
    row("tril_batch", lambda x: x.tril(-1), real(2, 3, 3))
    row("tril_empty", lambda x: x.tril(0), real(2, 0))
    row("triu", lambda x: x.triu(0), real(3, 4))
    row("triu_up", lambda x: x.triu(1), real(4, 3))
    row("triu_batch", lambda x: x.triu(-1), real(2, 3, 3))
    row("clone", lambda x: x.clone(), real(3, 4))
    row("clone_rank0", lambda x: x.clone(), real())


# ---- elementwise -------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 20.0, -20.0, INF, -INF, NAN]


def unary(name, f, make=real, far=False, special=True, to_int=True):
    row(name, f, make(3, 4))
    row(name + "_one", f, make(1, 3, 1))
    row(name + "_empty", f, make(2, 0, 3))
    row(name + "_rank0", f, make())
    if special:
        row(name + "_special", f, given(SPECIAL, grad=False))
    if to_int:
        row(name + "_ints", f, ints(2, 3))


def positive(*shape):
    return real(*shape, low=0.4, high=2.5)


def wide(*shape):
    return real(*shape, low=-3, high=3)


def binary(name, f, a=real, b=real):
    row(name, f, a(3, 4), b(3, 4))
    row(name + "_row", f, a(3, 4), b(4))
    row(name + "_cross", f, a(3, 1), b(1, 4))
    row(name + "_leading", f, a(4), b(2, 3, 1))
    row(name + "_rank0", f, a(2, 3), b())
    row(name + "_rank00", f, a(), b())
    row(name + "_empty", f, a(2, 0), b(1, 1))
    row(name + "_mixed", f, a(2, 3), ints(3, low=1))


def elementwise():
    binary("add", torch.add)
    binary("sub", torch.sub)
    binary("mul", torch.mul)
    binary("div", torch.div, real, away)
    binary("pow", torch.pow, positive, wide)
    binary("minimum", torch.minimum)
    binary("maximum", torch.maximum)
    row("add_self", lambda x: x + x, real(3, 4))
    row("mul_self", lambda x: x * x, real(3, 4))
    row("div_self", lambda x: x / x, positive(3, 4))
    row("sub_transposed", lambda x: x - x.t(), real(3, 3))
    for name, f in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div),
                    ("minimum", torch.minimum), ("maximum", torch.maximum)]:
        row(name + "_ints", f, ints(2, 3), ints(3, low=1, high=6))
    row("add_i32", torch.add, ints(2, 3, dtype=np.int32), ints(3, dtype=np.int64))
    row("add_u8", torch.add, ints(2, 3, low=0, high=9, dtype=np.uint8), ints(3, dtype=np.int32))
    row("mul_bool", torch.mul, boolean(2, 3), real(2, 3))
    row("add_bool", torch.add, boolean(2, 3), ints(2, 3, low=0, high=9, dtype=np.uint8))
    row("pow_zero", torch.pow, given([0, 0, 0, 0]), given([0, 1, 2, 3]))
    row("pow_special", torch.pow, given([0, 0, 1, NAN, 2, -2, INF, -1], grad=False),
        given([-1, 0, NAN, 0, INF, 3, -1, INF], grad=False))
    row("div_special", torch.div, given([1, -1, 0, INF, NAN], grad=False), given([0, 0, 0, INF, 1], grad=False))
    ties = given([1, 2, 3, 2]), given([1, 3, 2, 2])
    row("minimum_ties", torch.minimum, *ties)
    row("maximum_ties", torch.maximum, *ties)
    special = given([NAN, 1, INF, -INF, NAN], grad=False), given([1, NAN, 0, 0, NAN], grad=False)
    row("minimum_special", torch.minimum, *special)
    row("maximum_special", torch.maximum, *special)
    row("lerp", lambda a, b: torch.lerp(a, b, 0.3), real(3, 4), real(3, 4))
    row("lerp_broadcast", lambda a, b: torch.lerp(a, b, 0.7), real(3, 1), real(4))
    row("where", torch.where, boolean(3, 4), real(3, 4), real(3, 4))
    row("where_broadcast", torch.where, boolean(4), real(3, 1), real(1))
    row("where_empty", torch.where, boolean(0), real(3, 0), real(1))
    row("where_nan", torch.where, given([True, False, True], False, bool), given([1, NAN, 2]), given([NAN, 3, INF]))
    row("masked_fill", lambda x, m: x.masked_fill(m, -2.5), real(3, 4), boolean(3, 4))
    row("masked_fill_row", lambda x, m: x.masked_fill(m, -INF), real(3, 4), boolean(4))
    row("masked_fill_empty", lambda x, m: x.masked_fill(m, 1.0), real(0, 4), boolean(4))
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        f = getattr(torch, name)
        row(name, f, given([[1, 2, 3], [3, 2, 1]], False), given([[1, 3, 2], [3, 1, 2]], False))
        row(name + "_broadcast", f, given([[1], [2], [3]], False), given([1, 2, 3, 4], False))
        row(name + "_ints", f, ints(3, 4, low=0, high=3), ints(4, low=0, high=3))
        row(name + "_mixed", f, ints(3, 4, low=0, high=3), given([0, 1, 2, 0.5], False))
        row(name + "_special", f, given([NAN, INF, -INF, 0.0, NAN], False), given([NAN, INF, INF, -0.0, 1], False))
        row(name + "_empty", f, real(0, 3, grad=False), real(3, grad=False))
    for name in ["logical_and", "logical_or", "logical_xor"]:
        row(name, getattr(torch, name), boolean(3, 4), boolean(3, 4))
        row(name + "_broadcast", getattr(torch, name), boolean(3, 1), boolean(4))
    row("logical_not", torch.logical_not, boolean(3, 4))
    row("isnan", torch.isnan, given(SPECIAL, False))
    row("isfinite", torch.isfinite, given(SPECIAL, False))

    def scalar(name, f, make=real, **o):
        unary(name, f, make, to_int=False, **o)
    scalar("add_scalar", lambda x: x + 1.5)
    scalar("sub_scalar", lambda x: x - 1.5)
    scalar("rsub_scalar", lambda x: 1.5 - x)
    scalar("mul_scalar", lambda x: x * -2.5)
    scalar("div_scalar", lambda x: x / 4.5)
    scalar("pow_scalar", lambda x: x ** 3)
    row("pow_scalar_half", lambda x: x ** 0.5, positive(3, 4))
    scalar("pow_scalar_two", lambda x: x ** 2)
    scalar("pow_scalar_negative", lambda x: x ** -2, away)
    scalar("pow_scalar_fraction", lambda x: x ** 1.7, positive)
    row("pow_scalar_zero", lambda x: x ** 0, real(3, 4))
    row("pow_scalar_at_zero", lambda x: x ** 1, given([0.0, -0.0, 1.0]))
    for name in ["eq", "ne", "lt", "le", "gt", "ge"]:
        f = getattr(torch, name)
        row(name + "_scalar", lambda x: f(x, 2), given([1, 2, 3, NAN], False))
        row(name + "_scalar_ints", lambda x: f(x, 2), ints(3, 4))
        row(name + "_scalar_fraction", lambda x: f(x, 0.5), ints(3, 4))

    unary("neg", torch.neg)
    unary("abs", torch.abs, away)
    unary("exp", torch.exp)
    unary("log", torch.log, positive)
    unary("log1p", torch.log1p, positive)
    unary("expm1", torch.expm1)
    unary("sqrt", torch.sqrt, positive)
    unary("rsqrt", torch.rsqrt, positive)
    unary("square", torch.square)
    unary("reciprocal", torch.reciprocal, away)
    unary("sin", torch.sin, wide)
    unary("cos", torch.cos, wide)
    unary("tanh", torch.tanh, wide)
    unary("sigmoid", torch.sigmoid, wide)
    unary("erf", torch.erf, wide)
    unary("relu", torch.relu, away)
    unary("leaky_relu", lambda x: F.leaky_relu(x, 0.1), away, to_int=False)
    unary("elu", lambda x: F.elu(x, 1.3), away, to_int=False)
    unary("silu", F.silu, wide, to_int=False)
    unary("gelu", F.gelu, wide, to_int=False)
    unary("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), wide, to_int=False)
    unary("softplus", lambda x: F.softplus(x, 1.5, 20.0), wide, to_int=False)
    unary("clamp", lambda x: x.clamp(-1.05, 0.65), lambda *s: given(f32(np.resize(
        [-2, -1.4, -0.9, -0.3, 0.1, 0.5, 0.9, 1.6], s))), to_int=False)
    row("clamp_ints", lambda x: x.clamp(-2, 3), ints(3, 4))
    row("clamp_low", lambda x: x.clamp(min=-0.5), given([-1.0, -0.75, 0.25, 3.0]))
    row("clamp_high", lambda x: x.clamp(max=0.5), given([-1.0, -0.75, 0.25, 3.0]))
    # no gradient: PyTorch's slope at the bounds was 1 in 1.13 and is 0 in 2.15; ours is 1 (test_ops.c)
    row("clamp_bounds", lambda x: x.clamp(-1, 1), given([-1.0, 1.0, 0.0, -2.0, 2.0], False))
    row("abs_zero", torch.abs, given([0.0, 1.0, -1.0]))
    row("relu_zero", torch.relu, given([0.0, 1.0, -1.0]))
    row("leaky_relu_zero", lambda x: F.leaky_relu(x, 0.1), given([0.0, 1.0, -1.0]))
    row("elu_zero", lambda x: F.elu(x, 1.3), given([0.0, 1.0, -1.0]))
    row("sqrt_zero", torch.sqrt, given([0.0, 1.0, 4.0]))
    row("softplus_threshold", lambda x: F.softplus(x, 2.0, 1.0), given([-3.0, 0.25, 0.75, 3.0]))
    far = [-60.0, -25.0, -12.5, -8.0, -6.0, 6.0, 8.0, 12.5, 25.0, 60.0]
    for name, f in [("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("erf", torch.erf), ("silu", F.silu),
                    ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
                    ("softplus", lambda x: F.softplus(x, 1.0, 20.0)), ("elu", lambda x: F.elu(x, 1.0)),
                    ("expm1", lambda x: torch.expm1(x / 4)), ("sin", torch.sin), ("cos", torch.cos)]:
        row(name + "_far", f, given(far))
    row("expm1_small", torch.expm1, given(f32([1e-8, -1e-6, 1e-4, 0.0])))
    row("log1p_small", torch.log1p, given(f32([1e-8, -1e-6, 1e-4, 0.0])))


# ---- reductions ----------------------------------------------------------------------------------------

def reductions():
    def reduction(name, f, make=real):
        """f(x, axes or None, keepdim)"""
        row(name, lambda x: f(x, None, False), make(3, 4))
        row(name + "_axis", lambda x: f(x, [1], False), make(3, 4, 5))
        row(name + "_first", lambda x: f(x, [0], False), make(4, 3))
        row(name + "_keepdim", lambda x: f(x, [-1], True), make(3, 4))
        row(name + "_two", lambda x: f(x, [0, 2], False), make(3, 2, 4))
        row(name + "_two_keepdim", lambda x: f(x, [-1, 0], True), make(3, 2, 4))
        row(name + "_empty_other", lambda x: f(x, [0], False), make(2, 0, 3))
        row(name + "_axis_one", lambda x: f(x, [1], False), make(3, 1, 2))

    def all_axes(x, axes):
        return list(range(x.dim())) if axes is None else axes

    reduction("sum", lambda x, a, k: torch.sum(x, all_axes(x, a), k))
    reduction("mean", lambda x, a, k: torch.mean(x, all_axes(x, a), k))
    reduction("var", lambda x, a, k: torch.var(x, all_axes(x, a), correction=1, keepdim=k))
    reduction("std", lambda x, a, k: torch.std(x, all_axes(x, a), correction=1, keepdim=k))

    def prod(x, a, k):
        for axis in sorted((i % x.dim() for i in all_axes(x, a)), reverse=True):
            x = torch.prod(x, axis, k)
        return x
    reduction("prod", prod, away)
    reduction("logsumexp", lambda x, a, k: torch.logsumexp(x, all_axes(x, a), k))

    def norm(p):
        return lambda x, a, k: torch.linalg.vector_norm(x, p, all_axes(x, a), k)
    reduction("norm", norm(2.0), away)
    row("norm_p1", lambda x: norm(1.0)(x, [1], False), away(3, 4))
    row("norm_p3", lambda x: norm(3.0)(x, [1], False), away(3, 4))
    row("norm_half", lambda x: norm(0.5)(x, [0], False), away(3, 4))
    row("norm_inf", lambda x: norm(INF)(x, [1], False), distinct(3, 4))
    row("norm_zero", lambda x: norm(2.0)(x, [1], False), given([[0.0, 0.0], [3.0, 4.0]]))
    for name, f in [("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin)]:
        row(name + "_all", f, distinct(2, 3, 2))
        row(name + "_all_rank0", f, real())
    row("sum_all_ints", torch.sum, ints(3, 4))
    reduction("amax", lambda x, a, k: torch.amax(x, all_axes(x, a), k), distinct)
    reduction("amin", lambda x, a, k: torch.amin(x, all_axes(x, a), k), distinct)
    row("amax_ties", lambda x: x.amax(1), given([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]))
    row("amin_ties", lambda x: x.amin(1), given([[1.0, 1.0, 3.0], [2.0, 2.0, 2.0]]))
    row("amax_special", lambda x: x.amax(1), given([[1, NAN, 3], [INF, 0, 1], [-INF, -INF, -INF]], False))
    row("amin_special", lambda x: x.amin(1), given([[1, NAN, 3], [INF, 0, 1], [-INF, -INF, -INF]], False))
    for name, f in [("sum", torch.sum), ("mean", torch.mean), ("prod", prod_all)]:
        row(name + "_rank0", f, real())
        row(name + "_empty", lambda x: prod(x, [1], False) if f is prod_all else f(x, [1]),
            real(2, 0, 3, grad=f is not torch.mean))
    row("logsumexp_empty", lambda x: torch.logsumexp(x, [1]), real(2, 0, 3, grad=False))
    row("logsumexp_rank0", lambda x: torch.logsumexp(x, ()) if x.dim() else x.clone(), real())
    row("logsumexp_inf", lambda x: torch.logsumexp(x, [1]),
        given([[-INF, -INF], [INF, 1], [-INF, 2], [NAN, 1], [700, 701]], False))
    row("logsumexp_far", lambda x: torch.logsumexp(x, [1]), given([[500.0, 501.0], [-800.0, -801.0]]))
    row("norm_empty", lambda x: norm(2.0)(x, [1], False), real(2, 0, 3))
    row("var_population", lambda x: torch.var(x, [1], correction=0), real(3, 4))
    row("std_population", lambda x: torch.std(x, [0, 1], correction=0, keepdim=True), real(3, 4))
    row("var_shifted", lambda x: torch.var(x, [1], correction=1), real(3, 4, low=1000, high=1001))
    row("prod_zero", lambda x: x.prod(1), given([[2.0, 0.0, 3.0], [1.5, 2.0, -1.0]]))
    row("prod_two_zeros", lambda x: x.prod(1), given([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    row("prod_ints", lambda x: x.prod(1), ints(3, 4))
    row("sum_ints", lambda x: x.sum(0), ints(3, 4))
    row("sum_i32", lambda x: x.sum(0), ints(3, 4, dtype=np.int32))
    row("sum_bool", lambda x: x.sum(1), boolean(3, 4))
    for name in ["max", "min"]:
        f = getattr(torch, name)
        row(name, lambda x: f(x, 1)[0], distinct(3, 4))
        row(name + "_first", lambda x: f(x, 0)[0], distinct(8, 3))
        row(name + "_keepdim", lambda x: f(x, -1, True)[0], distinct(2, 3, 4))
        row(name + "_index", lambda x: f(x, 1)[1], distinct(3, 4))
        row(name + "_both", lambda x: f(x, 1)[0] * f(x, 1)[1], distinct(3, 4))
        row(name + "_empty_other", lambda x: f(x, 0)[0], real(2, 0))
        row(name + "_axis_one", lambda x: f(x, 1)[0], distinct(3, 1, 2))
        row(name + "_ints", lambda x: f(x, 1)[0], given([[3, -1, 2], [0, 7, -7]], False, np.int64))
        row("arg" + name, lambda x: getattr(torch, "arg" + name)(x, 1), distinct(3, 4))
        row("arg" + name + "_keepdim", lambda x: getattr(torch, "arg" + name)(x, 0, True), distinct(3, 4))
        row("arg" + name + "_negative", lambda x: getattr(torch, "arg" + name)(x, -2), distinct(2, 3, 4))
        row("arg" + name + "_nan", lambda x: getattr(torch, "arg" + name)(x, 1),
            given([[1, NAN, 3], [NAN, NAN, 1]], False))
        row("arg" + name + "_ints", lambda x: getattr(torch, "arg" + name)(x, 1),
            given([[3, -1, 2], [0, 7, -7]], False, np.int64))
    for name in ["any", "all"]:
        f = getattr(torch, name)
        row(name, lambda x: f(x), boolean(3, 4))
        row(name + "_axis", lambda x: f(x, 1), boolean(3, 4, 5))
        row(name + "_keepdim", lambda x: f(x, 0, True), boolean(3, 4))
        row(name + "_empty", lambda x: f(x, 1), boolean(2, 0))
    row("cumsum", lambda x: x.cumsum(1), real(3, 4))
    row("cumsum_first", lambda x: x.cumsum(0), real(3, 4))
    row("cumsum_middle", lambda x: x.cumsum(-2), real(2, 3, 4))
    row("cumsum_empty", lambda x: x.cumsum(1), real(2, 0))
    row("cumsum_one", lambda x: x.cumsum(1), real(2, 1))
    row("cumsum_ints", lambda x: x.cumsum(0), ints(3, 4))


def prod_all(x):
    return x.prod()


# ---- products and indexing --------------------------------------------------------------------------

def products():
    for name, a, b in [("", (3, 4), (4, 2)), ("_dot", (4,), (4,)), ("_matrix_vector", (3, 4), (4,)),
                       ("_vector_matrix", (4,), (4, 3)), ("_batch", (2, 3, 4), (2, 4, 2)),
                       ("_broadcast", (2, 1, 3, 2), (3, 2, 2)), ("_matrix_batch", (3, 4), (2, 4, 2)),
                       ("_batch_matrix", (2, 3, 4), (4, 2)), ("_batch_vector", (2, 3, 4), (4,)),
                       ("_vector_batch", (3,), (2, 3, 4)), ("_empty_inner", (3, 0), (0, 2)),
                       ("_empty_rows", (0, 3), (3, 2)), ("_empty_batch", (0, 2, 3), (3, 2)),
                       ("_one", (1, 1), (1, 3)), ("_column", (3, 1), (1, 4)), ("_odd", (7, 5), (5, 9))]:
        row("matmul" + name, torch.matmul, real(*a), real(*b))
    row("matmul_self", lambda x: x @ x, real(3, 3))
    row("matmul_gram", lambda x: x @ x.t(), real(3, 4))
    row("linear", F.linear, real(3, 4), real(2, 4), real(2))
    row("linear_no_bias", F.linear, real(3, 4), real(2, 4))
    row("linear_vector", F.linear, real(4), real(2, 4), real(2))
    row("linear_batch", F.linear, real(2, 3, 4), real(5, 4), real(5))
    row("linear_empty", F.linear, real(0, 4), real(2, 4), real(2))
    row("linear_one", F.linear, real(3, 1), real(1, 1), real(1))
    row("gather", lambda x, i: x.gather(0, i), real(4, 3), index(5, 3, n=4))
    row("gather_last", lambda x, i: x.gather(-1, i), real(3, 4), index(3, 2, n=4))
    row("gather_smaller", lambda x, i: x.gather(1, i), real(3, 4), index(2, 6, n=4))
    row("gather_middle", lambda x, i: x.gather(1, i), real(2, 3, 4), index(2, 5, 4, n=3))
    row("gather_empty", lambda x, i: x.gather(0, i), real(4, 3), index(0, 3, n=4))
    row("index_select", lambda x, i: x.index_select(0, i), real(4, 3), given([2, 0, 2, 3], False, np.int64))
    row("index_select_last", lambda x, i: x.index_select(-1, i), real(2, 3, 4), index(5, n=4))
    row("index_select_middle", lambda x, i: x.index_select(1, i), real(2, 3, 4), index(4, n=3))
    row("index_select_empty", lambda x, i: x.index_select(0, i), real(4, 3), index(0, n=4))
    row("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), real(4, 3), index(5, 3, n=4), real(5, 3))
    row("scatter_add_last", lambda x, i, s: x.scatter_add(-1, i, s), real(3, 4), index(3, 6, n=4), real(3, 6))
    row("scatter_add_empty", lambda x, i, s: x.scatter_add(0, i, s), real(4, 3), index(0, 3, n=4), real(0, 3))
    row("embedding", lambda w, i: F.embedding(i, w), real(5, 3), given([1, 4, 1, 0], False, np.int64))
    row("embedding_batch", lambda w, i: F.embedding(i, w), real(5, 3), index(2, 4, n=5))
    row("embedding_padding", lambda w, i: F.embedding(i, w, padding_idx=1), real(5, 3),
        given([[1, 4, 1], [0, 4, 2]], False, np.int64))
    row("embedding_rank0", lambda w, i: F.embedding(i, w), real(5, 3), index(n=5))
    row("embedding_empty", lambda w, i: F.embedding(i, w), real(5, 3), index(0, n=5))
    row("one_hot", lambda i: F.one_hot(i, 6), index(2, 3, n=5))
    row("one_hot_largest", lambda i: F.one_hot(i, -1), given([0, 3, 1], False, np.int64))
    row("one_hot_empty", lambda i: F.one_hot(i, 4), index(0, n=4))


# ---- softmax and losses -------------------------------------------------------------------------------

def losses():
    for name, f in [("softmax", F.softmax), ("log_softmax", F.log_softmax)]:
        row(name, lambda x: f(x, -1), wide(3, 4))
        row(name + "_first", lambda x: f(x, 0), wide(3, 4))
        row(name + "_middle", lambda x: f(x, 1), wide(2, 3, 4))
        row(name + "_one", lambda x: f(x, 1), wide(3, 1))
        row(name + "_empty", lambda x: f(x, 1), wide(0, 3))
        row(name + "_vector", lambda x: f(x, 0), wide(5))
        row(name + "_far", lambda x: f(x, 1), given([[500.0, 499.0, 400.0], [-700.0, -701.0, -702.5]]))
        row(name + "_special", lambda x: f(x, 1), given([[-INF, 1, 2], [NAN, 1, 2]], False))
    ce, i64 = F.cross_entropy, np.int64
    row("cross_entropy", ce, wide(4, 5), index(4, n=5))
    row("cross_entropy_spatial", ce, wide(2, 3, 4), index(2, 4, n=3))
    row("cross_entropy_images", ce, wide(2, 3, 2, 3), index(2, 2, 3, n=3))
    row("cross_entropy_language", lambda x, t: ce(x.flatten(0, 1), t.flatten()), wide(2, 3, 5), index(2, 3, n=5))
    row("cross_entropy_ignored", ce, wide(4, 5), given([0, -100, 3, -100], False, i64))
    row("cross_entropy_one", ce, wide(1, 1), index(1, n=1))
    row("cross_entropy_far", ce, given([[500.0, 499.0, 400.0], [-700.0, -701.0, -702.5]]), given([1, 0], False, i64))
    weight = real(5, low=0.5, high=2.0, grad=False)
    row("cross_entropy_sum", lambda x, t: ce(x, t, reduction="sum"), wide(4, 5), index(4, n=5))
    row("cross_entropy_rows", lambda x, t: ce(x, t, reduction="none"), wide(4, 5), index(4, n=5))
    row("cross_entropy_rows_spatial", lambda x, t: ce(x, t, reduction="none"), wide(2, 3, 2), index(2, 2, n=3))
    row("cross_entropy_smoothing", lambda x, t: ce(x, t, label_smoothing=0.1), wide(4, 5), index(4, n=5))
    row("cross_entropy_weight", lambda x, t, w: ce(x, t, w), wide(4, 5), index(4, n=5), weight)
    row("cross_entropy_weight_smoothing", lambda x, t, w: ce(x, t, w, label_smoothing=0.2), wide(4, 5),
        index(4, n=5), weight)
    row("cross_entropy_weight_spatial", lambda x, t, w: ce(x, t, w), wide(2, 5, 3), index(2, 3, n=5), weight)
    row("cross_entropy_weight_sum", lambda x, t, w: ce(x, t, w, reduction="sum", label_smoothing=0.2),
        wide(4, 5), index(4, n=5), weight)
    row("cross_entropy_weight_rows", lambda x, t, w: ce(x, t, w, reduction="none"), wide(4, 5),
        given([0, -100, 3, 4], False, i64), weight)
    row("cross_entropy_ignore_index", lambda x, t: ce(x, t, ignore_index=2), wide(4, 5),
        given([0, 2, 3, 2], False, i64))
    row("cross_entropy_ignore_smoothing", lambda x, t: ce(x, t, ignore_index=2, label_smoothing=0.1), wide(4, 5),
        given([0, 2, 3, 2], False, i64))
    row("cross_entropy_probabilities", ce, wide(4, 5), probabilities(4, 5))
    row("cross_entropy_probabilities_spatial", ce, wide(2, 3, 4), probabilities(2, 3, 4))
    row("cross_entropy_probabilities_all", lambda x, t, w: ce(x, t, w, reduction="sum", label_smoothing=0.1),
        wide(4, 5), probabilities(4, 5), weight)

    def lce(name, *inputs, **options):
        def of(x, w, b, t, *class_weight):
            logits = F.linear(x.reshape(-1, w.shape[1]), w, b)
            target = t.reshape(-1) if t.dtype == torch.int64 else t.reshape(logits.shape)
            return ce(logits, target, *class_weight, **options)
        row("linear_cross_entropy" + name, of, *inputs)
    xwb = wide(4, 3), wide(5, 3), wide(5)
    lce("", *xwb, index(4, n=5))
    row("linear_cross_entropy_no_bias", lambda x, w, t: ce(F.linear(x, w), t), wide(4, 3), wide(5, 3), index(4, n=5))
    lce("_language", wide(2, 3, 4), wide(5, 4), wide(5), index(2, 3, n=5))
    lce("_vector", wide(3), wide(5, 3), wide(5), index(n=5))
    lce("_sum", *xwb, index(4, n=5), reduction="sum")
    row("linear_cross_entropy_rows", lambda x, w, b, t: ce(F.linear(x, w, b).flatten(0, 1), t.flatten(),
                                                           reduction="none").reshape(t.shape),
        wide(2, 3, 4), wide(5, 4), wide(5), index(2, 3, n=5))
    lce("_ignored", *xwb, given([0, 2, 3, 2], False, i64), ignore_index=2)
    lce("_weight_smoothing", *xwb, index(4, n=5), weight, label_smoothing=0.2)
    lce("_probabilities", wide(2, 3, 4), wide(5, 4), wide(5), probabilities(2, 3, 5), label_smoothing=0.1)
    nll = F.nll_loss
    row("nll_loss", nll, real(4, 5, low=-3, high=-0.1), index(4, n=5))
    row("nll_loss_sum", lambda x, t: nll(x, t, reduction="sum"), real(4, 5), index(4, n=5))
    row("nll_loss_rows", lambda x, t: nll(x, t, reduction="none"), real(4, 5), given([0, -100, 3, 4], False, i64))
    row("nll_loss_weight", lambda x, t, w: nll(x, t, w), real(4, 5), index(4, n=5), weight)
    row("nll_loss_spatial", nll, real(2, 5, 3), index(2, 3, n=5))
    row("nll_loss_ignore", lambda x, t: nll(x, t, ignore_index=1), real(4, 5), given([0, 1, 1, 4], False, i64))
    shifted = real(3, 4, low=2.2, high=2.8)  # |x - target| in (1.2, 3.8)
    pairs = {"mse_loss": F.mse_loss, "l1_loss": F.l1_loss,
             "smooth_l1_loss": lambda x, t, reduction="mean": F.smooth_l1_loss(x, t, reduction=reduction, beta=0.7),
             "huber_loss": lambda x, t, reduction="mean": F.huber_loss(x, t, reduction=reduction, delta=0.7)}
    for name, f in pairs.items():
        x, t = given(f32([[1.5, -2.0, 0.25], [3.0, -0.5, 1.0]])), given(f32([[1.25, 0.5, 0.0], [0.5, -0.25, 3.0]]))
        row(name, f, x, t)
        row(name + "_sum", lambda a, b: f(a, b, reduction="sum"), x, t)
        row(name + "_rows", lambda a, b: f(a, b, reduction="none"), x, t)
        row(name + "_far", f, shifted, real(3, 4))
    bce = F.binary_cross_entropy_with_logits
    p = real(3, 4, low=0.05, high=0.95)
    row("bce_with_logits", bce, wide(3, 4), p)
    row("bce_with_logits_sum", lambda x, t: bce(x, t, reduction="sum"), wide(3, 4), p)
    row("bce_with_logits_rows", lambda x, t: bce(x, t, reduction="none"), wide(3, 4), p)
    row("bce_with_logits_weight", lambda x, t, w: bce(x, t, pos_weight=w), wide(3, 4), p,
        real(4, low=0.5, high=3.0, grad=False))
    row("bce_with_logits_far", bce, given([-100.0, -30.0, 30.0, 100.0]), given([1.0, 0.0, 1.0, 0.0], False))
    kl = F.kl_div
    log_p = real(3, 4, low=-3, high=-0.2)
    row("kl_div", lambda x, t: kl(x, t, reduction="none").mean(), log_p, probabilities(3, 4, grad=True))
    row("kl_div_sum", lambda x, t: kl(x, t, reduction="sum"), log_p, probabilities(3, 4, grad=True))
    row("kl_div_rows", lambda x, t: kl(x, t, reduction="none"), log_p, probabilities(3, 4, grad=True))
    row("kl_div_batch_mean", lambda x, t: kl(x, t, reduction="batchmean"), log_p, probabilities(3, 4, grad=True))
    row("kl_div_log_target", lambda x, t: kl(x, t, reduction="sum", log_target=True), log_p, log_p)
    row("kl_div_zero", lambda x, t: kl(x, t, reduction="none"), log_p,
        given([[0, 0.5, 0.5, 0], [1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]], False))


# ---- layers as functions ------------------------------------------------------------------------------

def batch_norm_running(x, w, b, m, v):
    m, v = m.clone(), v.clone()
    y = F.batch_norm(x, m, v, w, b, True, 0.3, 1e-5)
    return torch.cat([y.flatten(), m, v])


def attention(q, k, v, mask=None, causal=False, scale=0.0):
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -INF)
    if mask is not None:
        s = s.masked_fill(mask, -INF) if mask.dtype == torch.bool else s + mask
    return F.softmax(s, -1) @ v


def layers():
    row("dropout", None, real(4, 5))
    row("dropout_eval", lambda x: 2 * x, real(3, 4))
    row("dropout_none", lambda x: 2 * x, real(3, 4))
    row("dropout_all", lambda x: x * 0, real(3, 4))
    ln = F.layer_norm
    row("layer_norm", lambda x, w, b: ln(x, [4], w, b, 1e-5), real(3, 4), real(4), real(4))
    row("layer_norm_batch", lambda x, w, b: ln(x, [5], w, b, 1e-5), real(2, 3, 5), real(5), real(5))
    row("layer_norm_two", lambda x, w, b: ln(x, [2, 3], w, b, 1e-5), real(3, 2, 3), real(2, 3), real(2, 3))
    row("layer_norm_plain", lambda x: ln(x, [4], None, None, 1e-5), real(3, 4))
    row("layer_norm_no_bias", lambda x, w: ln(x, [4], w, None, 1e-5), real(3, 4), real(4))
    row("layer_norm_vector", lambda x, w, b: ln(x, [6], w, b, 1e-2), real(6), real(6), real(6))
    row("layer_norm_one", lambda x, w, b: ln(x, [1], w, b, 1e-5), real(3, 1), real(1), real(1))
    row("layer_norm_empty", lambda x, w, b: ln(x, [4], w, b, 1e-5), real(0, 4), real(4), real(4))
    row("layer_norm_shifted", lambda x: ln(x, [4], None, None, 1e-5), real(3, 4, low=1000, high=1002))
    bn = F.batch_norm
    row("batch_norm", lambda x, w, b: bn(x, None, None, w, b, True, 0.1, 1e-5), real(4, 3), real(3), real(3))
    row("batch_norm_lines", lambda x, w, b: bn(x, None, None, w, b, True, 0.1, 1e-5), real(3, 2, 4), real(2), real(2))
    row("batch_norm_images", lambda x, w, b: bn(x, None, None, w, b, True, 0.1, 1e-3), real(2, 3, 2, 2), real(3),
        real(3))
    row("batch_norm_plain", lambda x: bn(x, None, None, None, None, True, 0.1, 1e-5), real(4, 3))
    row("batch_norm_running", batch_norm_running, real(2, 3, 2, 2), real(3), real(3), real(3, grad=False),
        real(3, low=0.5, high=2, grad=False))
    stats = real(3, grad=False), real(3, low=0.5, high=2, grad=False)
    row("batch_norm_eval", lambda x, w, b, m, v: bn(x, m, v, w, b, False, 0.1, 1e-5), real(2, 3, 2, 2), real(3),
        real(3), *stats)
    row("batch_norm_eval_plain", lambda x, m, v: bn(x, m, v, None, None, False, 0.1, 1e-5), real(4, 3), *stats)
    row("batch_norm_eval_one", lambda x, w, b, m, v: bn(x, m, v, w, b, False, 0.1, 1e-5), real(1, 3), real(3),
        real(3), *stats)
    conv = F.conv2d
    for name, x, w, o in [
            ("", (2, 2, 4, 5), (3, 2, 3, 3), {}), ("_padding", (1, 2, 3, 4), (2, 2, 3, 3), {"padding": 1}),
            ("_same", (2, 2, 4, 5), (2, 2, 3, 3), {"padding": "same"}),
            ("_same_even", (1, 2, 4, 5), (3, 2, 2, 4), {"padding": "same"}),
            ("_same_dilated", (1, 2, 5, 4), (2, 1, 2, 3), {"padding": "same", "dilation": (3, 2), "groups": 2}),
            ("_same_unbatched", (2, 4, 4), (2, 2, 4, 3), {"padding": "same"}),
            ("_stride", (1, 2, 5, 5), (2, 2, 2, 2), {"stride": 2}),
            ("_uneven", (1, 1, 5, 6), (2, 1, 3, 2), {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)}),
            ("_dilation", (1, 1, 5, 5), (2, 1, 2, 2), {"dilation": 2, "padding": 1}),
            ("_groups", (2, 4, 3, 3), (4, 2, 2, 2), {"groups": 2}),
            ("_depthwise", (1, 3, 3, 3), (3, 1, 2, 2), {"groups": 3, "padding": 1}),
            ("_depthwise_two", (1, 2, 4, 4), (4, 1, 3, 3), {"groups": 2, "padding": 1, "stride": 2}),
            ("_pointwise", (2, 3, 2, 2), (2, 3, 1, 1), {}), ("_unbatched", (2, 4, 4), (2, 2, 3, 3), {}),
            ("_empty", (0, 2, 4, 4), (3, 2, 3, 3), {}), ("_one", (1, 1, 1, 1), (1, 1, 1, 1), {}),
            ("_whole", (2, 2, 3, 3), (3, 2, 3, 3), {}),
            ("_skipped", (1, 1, 6, 6), (1, 1, 2, 2), {"stride": 3})]:
        row("conv2d" + name, lambda x, w, b: conv(x, w, b, **o), real(*x), real(*w), real(w[0]))
    row("conv2d_no_bias", lambda x, w: conv(x, w), real(1, 2, 3, 3), real(2, 2, 2, 2))
    for name, shape, o in [("", (2, 2, 4, 4), {"kernel_size": 2}), ("_overlap", (1, 2, 5, 5), {"kernel_size": 3, "stride": 2, "padding": 1}),
                           ("_uneven", (1, 1, 5, 6), {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 0)}),
                           ("_ceil", (1, 1, 5, 5), {"kernel_size": 2, "ceil_mode": True}),
                           ("_unbatched", (2, 4, 4), {"kernel_size": 2}), ("_empty", (0, 2, 4, 4), {"kernel_size": 2}),
                           ("_one", (1, 1, 1, 1), {"kernel_size": 1})]:
        row("max_pool2d" + name, lambda x: F.max_pool2d(x, **o), distinct(*shape))
        row("avg_pool2d" + name, lambda x: F.avg_pool2d(x, **o), real(*shape))
    row("max_pool2d_dilation", lambda x: F.max_pool2d(x, 2, 1, 1, 2), distinct(1, 1, 5, 5))
    row("avg_pool2d_exclude", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), real(1, 2, 5, 5))
    row("avg_pool2d_ceil_padding", lambda x: F.avg_pool2d(x, 3, 2, 1, True), real(1, 1, 6, 6))
    row("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 2)), real(2, 2, 4, 4))
    row("adaptive_avg_pool2d_uneven", lambda x: F.adaptive_avg_pool2d(x, (3, 2)), real(1, 2, 5, 7))
    row("adaptive_avg_pool2d_one", lambda x: F.adaptive_avg_pool2d(x, (1, 1)), real(2, 2, 3, 5))
    row("adaptive_avg_pool2d_larger", lambda x: F.adaptive_avg_pool2d(x, (3, 5)), real(1, 1, 2, 3))
    row("adaptive_avg_pool2d_unbatched", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), real(2, 4, 5))
    row("adaptive_avg_pool2d_empty", lambda x: F.adaptive_avg_pool2d(x, (2, 2)), real(0, 2, 4, 4))
    a = "scaled_dot_product_attention"
    qkv = real(1, 2, 4, 3), real(1, 2, 4, 3), real(1, 2, 4, 3)
    row(a, attention, *qkv)
    row(a + "_causal", lambda q, k, v: attention(q, k, v, None, True), *qkv)
    row(a + "_scale", lambda q, k, v: attention(q, k, v, None, False, 0.25), *qkv)
    row(a + "_cross", attention, real(2, 1, 2, 3), real(2, 1, 5, 3), real(2, 1, 5, 2))
    row(a + "_matrix", attention, real(3, 4), real(5, 4), real(5, 4))
    row(a + "_rank3", lambda q, k, v: attention(q, k, v, None, True), real(2, 5, 3), real(2, 5, 3), real(2, 5, 3))
    blocked = given([[False, True, False, False], [True, False, True, False], [False, False, False, True],
                     [True, True, True, False]], False, bool)
    row(a + "_bool_mask", attention, *qkv, blocked)
    row(a + "_float_mask", attention, *qkv, real(4, 4, grad=False))
    row(a + "_batch_mask", attention, real(2, 2, 3, 2), real(2, 2, 3, 2), real(2, 2, 3, 2),
        real(2, 1, 1, 3, grad=False))
    row(a + "_causal_mask", lambda q, k, v, m: attention(q, k, v, m, True), *qkv, real(2, 4, 4, grad=False))
    row(a + "_long", lambda q, k, v: attention(q, k, v, None, True), real(1, 70, 2), real(1, 70, 2), real(1, 70, 2))
    row(a + "_one", attention, real(1, 1, 1, 1), real(1, 1, 1, 1), real(1, 1, 1, 1))
    row(a + "_self", lambda x: attention(x, x, x, None, True), real(2, 4, 3))
    row(a + "_empty", attention, real(0, 4, 3), real(0, 4, 3), real(0, 4, 3))


def recurrent():
    """torch.lstm and its like, as nn.LSTM calls them: one layer, the sequence first."""
    def run(function, x, states, weights, reverse=False):
        biases = len(weights) == 4
        if reverse:
            x = x.flip(0)
        y, *last = function(x, states, weights, biases, 1, 0.0, False, False, False)
        return (y.flip(0) if reverse else y), last

    def rows(name, function, gates):
        x, h0, w_ih, w_hh, b = real(3, 2, 4), real(2, 3), real(gates * 3, 4), real(gates * 3, 3), real(gates * 3)

        def forwards(x, h0, *w):
            return run(function, x, h0[None], w)[0]
        row(name, forwards, x, h0, w_ih, w_hh, b, b)
        row(name + "_no_bias", forwards, x, h0, w_ih, w_hh)
        row(name + "_plain", lambda x, *w: run(function, x, torch.zeros(1, 2, 3, dtype=x.dtype), w)[0],
            x, w_ih, w_hh, b, b)
        row(name + "_reverse", lambda x, h0, *w: run(function, x, h0[None], w, True)[0], x, h0, w_ih, w_hh, b, b)
        row(name + "_step", forwards, real(1, 2, 4), h0, w_ih, w_hh, b, b)
        row(name + "_empty", forwards, real(3, 0, 4), real(0, 3), w_ih, w_hh, b, b)

    rows("rnn", torch.rnn_tanh, 1)
    rows("rnn_relu", torch.rnn_relu, 1)
    rows("gru", torch.gru, 3)
    both = real(3, 2, 4), real(2, 3), real(2, 3), real(12, 4), real(12, 3), real(12), real(12)

    def lstm(x, h0, c0, *w, reverse=False):
        y, last = run(torch.lstm, x, (h0[None], c0[None]), w, reverse)
        return torch.cat([y.flatten(0, 1), last[1][0]])  # c_n below all of y
    row("lstm", lstm, *both)
    row("lstm_no_bias", lstm, *both[:5])
    row("lstm_reverse", lambda *x: lstm(*x, reverse=True), *both)
    row("lstm_step", lstm, real(1, 2, 4), *both[1:])
    row("lstm_y", lambda x, *w: run(torch.lstm, x, (torch.zeros(1, 2, 3, dtype=x.dtype),) * 2, w)[0],
        both[0], *both[3:])
    row("lstm_c", lambda *x: lstm(*x)[6:], *both)
    row("lstm_empty", lstm, real(3, 0, 4), real(0, 3), real(0, 3), *both[3:])


if __name__ == "__main__":
    movement()
    elementwise()
    reductions()
    products()
    losses()
    layers()
    recurrent()
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                              "ops.safetensors")
    save(path, tensors, {"torch": torch.__version__, "numpy": np.__version__, "made_by": "tests/golden/make_ops.py"})
    print(f"{path}: {len({k.split('/')[0] for k in tensors})} rows, {os.path.getsize(path)} bytes")
