#!/usr/bin/env python3
"""Makes ops.safetensors: inputs, outputs and gradients of every row of tests/ops/op_rows_*.def, by PyTorch. The
row says both: its last columns are Python, a function of x and what it is called with.

usage: python3 tests/golden/make_ops.py [--all] [FILE]      runs with PyTorch 1.13 and 2.x
Makes what FILE (default: ops.safetensors) lacks, rows that are new or have other inputs now, and leaves out those that
are gone; with --all everything anew: last digits depend on the processor.

Keys, for a row NAME: NAME/in0, in1, ... the inputs; NAME/out the result; and, where anything is
differentiable, NAME/seed, a cotangent of out's shape, and NAME/grad0, ... the gradients of sum(out * seed)
for the inputs that have one. Everything real is f64, rounded to f32 on the way in, so that the f32 run
of the tests starts from the same numbers. Inputs are drawn from the row's name: adding a row moves no other.
"""
import glob
import json
import math
import os
import re
import subprocess
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
INF, NAN = math.inf, math.nan
tensors, made = {}, {}  # "row/part": array; what there is already, row: {part: array}


# ---- the format: 8 bytes of length, a JSON header, the data ------------------------------------------

DTYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}


def load(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    dtypes = {theirs: ours for ours, theirs in DTYPES.items()}
    return {key: np.frombuffer(data[slice(*t["data_offsets"])], dtypes[t["dtype"]]).reshape(t["shape"])
            for key, t in header.items() if key != "__metadata__"}


def save(path, tensors, metadata):
    header, at, blocks = {"__metadata__": metadata}, 0, []
    for key, value in tensors.items():
        block = np.asarray(value, order="C").tobytes()
        header[key] = {"dtype": DTYPES[str(value.dtype)], "shape": list(value.shape),
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


def log_probabilities(*shape):
    """Their exponentials add up to 1 along the last axis."""
    def draw(g):
        x = g.uniform(-2, 2, shape)
        return f32(x - np.log(np.exp(x).sum(-1, keepdims=True)))
    return Input(draw, True)


# ---- one row -------------------------------------------------------------------------------------

def row(name, function, *inputs):
    g = np.random.default_rng(zlib.crc32(name.encode()))
    arrays = [i.draw(g) for i in inputs]
    old = made.get(name, {})
    if [a.tobytes() for a in arrays] == [value.tobytes() for part, value in old.items() if part.startswith("in")]:
        tensors.update({f"{name}/{part}": value for part, value in old.items()})
        return
    for k, a in enumerate(arrays):
        tensors[f"{name}/in{k}"] = a
    x = [torch.from_numpy(np.array(a)) for a in arrays]
    for t, i in zip(x, inputs):
        if i.grad:
            t.requires_grad_()
    y = function(*x)
    if y is None:  # inputs only: what the row gives is random
        return
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


# ---- what the rows' columns use beside these ----------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 20.0, -20.0, INF, -INF, NAN]
HALVES = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.25, -0.75, 3.0, -4.0, 2**22 + 0.5, 2**23 + 1, -2**40]
KINKS = [-3.0, 0.0, 3.0, 6.0, -6.0, 1.0, -1.0]
DIVIDENDS, DIVISORS = [5, -5, 5, -5, 6, -6, 0, 7], [3, 3, -3, -3, 3, 3, 2, -7]
FAR = [-60.0, -25.0, -12.5, -8.0, -6.0, 6.0, 8.0, 12.5, 25.0, 60.0]
TIES = given([[2, 1, 2, 1, 3, 1, 2], [0, 0, -1, 5, 0, -1, 5]], False)
STRANGE = given([[1, NAN, -INF, 0.0, INF, NAN, -0.0, -1], [NAN, 2, -0.0, 0.0, NAN, 1, -2, 7]], False)
QKV = [real(1, 2, 4, 3)] * 3
BLOCKED = given([[False, True, False, False], [True, False, True, False], [False, False, False, True],
                 [True, True, True, False]], False, bool)
STATS = real(3, grad=False), real(3, low=0.5, high=2, grad=False)
WEIGHT = real(5, low=0.5, high=2, grad=False)
def angles(*shape):
    return [real(*shape, grad=False)] * 2


CHANCE = real(3, 4, low=0.05, high=0.95)
LOG_P = real(3, 4, low=-3, high=-0.2)
TWO = given([[1.5, -2.0, 0.25], [3.0, -0.5, 1.0]]), given([[1.25, 0.5, 0.0], [0.5, -0.25, 3.0]])


def positive(*shape):
    return real(*shape, low=0.4, high=2.5)


def wide(*shape):
    return real(*shape, low=-3, high=3)


CHANCE_FIXED = real(3, 4, low=0.05, high=0.95, grad=False)
SIGNS = given([1, -1, 1, -1, 1, -1, 1, 1], False)
def inner(*shape):
    return real(*shape, low=-0.9, high=0.9)


def above(*shape):
    return real(*shape, low=1.2, high=3)


XWB = wide(4, 3), wide(5, 3), wide(5)


def ids(values):
    return given(values, False, np.int64)


CTC_ROWS = ids([[1, 2, 3], [2, 2, 1], [3, 1, 1]]), ids([6, 5, 6]), ids([3, 2, 0])
CTC_SHORT = ids([[1, 1, 1], [1, 2, 1], [2, 0, 0], [0, 0, 0]]), ids([4, 2, 0, 0]), ids([3, 3, 1, 0])


def ctc(x, targets, steps, labels, **options):
    return F.ctc_loss(F.log_softmax(x, -1), targets, steps, labels, **options)


def steps(*shape):
    """Away from clamp's bounds, -1.05 and 0.65."""
    return given(f32(np.resize([-2, -1.4, -0.9, -0.3, 0.1, 0.5, 0.9, 1.6], shape)))


def cell(gates, states=1, biases=2, steps=3, batch=2):
    """The inputs of a recurrent layer of 3, on 4: x, the states, two weights, the biases."""
    return [real(steps, batch, 4), *[real(batch, 3)] * states, real(gates * 3, 4), real(gates * 3, 3),
            *[real(gates * 3)] * biases]


def scaled(parts, axis):
    return torch.cat([p * (i + 1) for i, p in enumerate(parts)], axis)


def var(x, axes, keepdim):
    return torch.var(x, axes, correction=1, keepdim=keepdim)


def std(x, axes, keepdim):
    return torch.std(x, axes, correction=1, keepdim=keepdim)


def norm(x, axes, keepdim):
    return torch.linalg.vector_norm(x, 2.0, axes, keepdim)


def prod(x, axes, keepdim):
    for axis in sorted((i % x.dim() for i in axes), reverse=True):
        x = torch.prod(x, axis, keepdim)
    return x


def linear_cross_entropy(x, w, b, t, *class_weight, **options):
    logits = F.linear(x.reshape(-1, w.shape[1]), w, b)
    target = t.reshape(-1) if t.dtype == torch.int64 else t.reshape(logits.shape)
    return F.cross_entropy(logits, target, *class_weight, **options)


def batch_norm_running(x, w, b, m, v):
    m, v = m.clone(), v.clone()
    y = F.batch_norm(x, m, v, w, b, True, 0.3, 1e-5)
    return torch.cat([y.flatten(), m, v])


def pooled(both):
    return both[0] + 0.01 * both[1].double()


def attention(q, k, v, mask=None, causal=False, scale=0.0):
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -INF)
    if mask is not None:
        s = s.masked_fill(mask, -INF) if mask.dtype == torch.bool else s + mask
    return F.softmax(s, -1) @ v


def rotary(x, c, s, interleaved=False):
    """As in transformers: Llama's way, with partial rotation as GPT-NeoX has it; interleaved: GPT-J's."""
    r = 2 * c.shape[-1]
    x, rest = x[..., :r], x[..., r:]
    if interleaved:
        c, s = c.repeat_interleave(2, -1), s.repeat_interleave(2, -1)
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        c, s = torch.cat((c, c), -1), torch.cat((s, s), -1)
        turned = torch.cat((-x[..., r // 2:], x[..., : r // 2]), -1)
    return torch.cat((x * c + turned * s, rest), -1)


def resize(*size, **how):
    return lambda x, mode, **more: F.interpolate(x, *size, mode=mode, **how, **more)


def run(function, x, states, weights, reverse):
    """torch.lstm and its like, as nn.LSTM calls them: one layer, the sequence first."""
    y, *last = function(x.flip(0) if reverse else x, states, weights, len(weights) == 4, 1, 0.0, False, False, False)
    return (y.flip(0) if reverse else y), last


def recurrent(function, x, h0, weights, reverse=False):
    state = torch.zeros(1, x.shape[1], 3, dtype=x.dtype) if h0 is None else h0[None]
    return run(function, x, state, weights, reverse)[0]


def lstm(x, h0, c0, *weights, reverse=False):
    y, last = run(torch.lstm, x, (h0[None], c0[None]), weights, reverse)
    return torch.cat([y.flatten(0, 1), last[1][0]])  # c_n below all of y


def lstm_y(x, *weights):
    return run(torch.lstm, x, (torch.zeros(1, x.shape[1], 3, dtype=x.dtype),) * 2, weights, False)[0]


# ---- the rows -------------------------------------------------------------------------------------------

def rows():
    """(name, "torch.add(x[0], x[1]), real(3, 4), real(4)") of each ROW, as a C compiler expands them."""
    expand = ["cc", "-E", "-P", "-x", "c", "-DROW(name, op, flags, call, ...)=$ #name #__VA_ARGS__"]
    for path in sorted(glob.glob(os.path.join(HERE, "..", "ops", "op_rows_*.def"))):
        text = subprocess.run([*expand, path], check=True, capture_output=True, text=True).stdout
        for name, columns in re.findall(r'\$ "(\w+)" ("(?:[^"\\]|\\.)*")', text):
            yield name, json.loads(columns)


if __name__ == "__main__":
    path = next((a for a in sys.argv[1:] if a != "--all"), os.path.join(HERE, "ops.safetensors"))
    if "--all" not in sys.argv:
        for key, value in load(path).items():
            made.setdefault(key.split("/")[0], {})[key.split("/")[1]] = value
    todo = dict(rows())
    for name in [*(n for n in made if n in todo), *(n for n in todo if n not in made)]:
        eval(f"row(name, lambda *x: {todo[name]})")
    save(path, tensors, {"torch": torch.__version__, "numpy": np.__version__, "made_by": "tests/golden/make_ops.py"})
    print(f"{path}: {len({k.split('/')[0] for k in tensors})} rows, {os.path.getsize(path)} bytes")
