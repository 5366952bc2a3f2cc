#!/usr/bin/env bash
# The gradient at NaN of eight activations depends on where in the tensor the NaN lies. (PyTorch 2.15.0, CPU)
#
# Guess, written down first: one answer for the whole tensor. Our reviewers had read "the slope at NaN is 1, so dx = dy"
# for hardtanh, relu6, hardshrink and softshrink off tensors of nine elements, and we had made ours so.
# Seen: of 37 elements that are all NaN the first 32 and the last 5 differ, in f32, f64 and bf16. The body of the loop, by
# vectors, gives 0 (hardtanh, relu6, hardshrink, softshrink) or NaN (elu, celu, selu, hardswish); the rest, one by one,
# gives dy (selu: 1.0507 dy). relu, leaky_relu, hardsigmoid, threshold and clamp give one answer in all places. These are
# the kernels for AVX2, asked for below; those for AVX-512 differ likewise in f32 and f64.
# So a run that has met a NaN differs with the shape of a batch, and a small test of such a slope says nothing of a
# large tensor.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6
ATEN_CPU_CAPABILITY=avx2 "$place/venv/bin/python" - <<'PYTHON'
import math, torch
from torch.nn import functional as F

torch.set_num_threads(1)
assert torch.__version__.startswith("2.15.0"), torch.__version__


def slopes(f, dtype):
    """dx of the first and of the last elements; each part must agree within itself."""
    x = torch.full((37,), math.nan, dtype=dtype, requires_grad=True)
    g, = torch.autograd.grad(f(x), x, torch.full_like(x, 2))
    parts = [{repr(round(v, 1)) for v in part.tolist()} for part in (g[:32], g[32:])]
    assert all(len(p) == 1 for p in parts), parts
    return tuple(p.pop() for p in parts)


cut = [F.hardtanh, F.relu6, F.hardshrink, F.softshrink]
smooth = [F.elu, F.celu, F.selu, F.hardswish]
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for f in cut:
        assert slopes(f, dtype) == ("0.0", "2.0"), (f, dtype, slopes(f, dtype))
    for f in smooth:
        tail = "2.1" if f is F.selu else "2.0"
        assert slopes(f, dtype) == ("nan", tail), (f, dtype, slopes(f, dtype))
    for f in (torch.relu, F.leaky_relu, F.hardsigmoid, lambda x: F.threshold(x, 0.5, 0.0), lambda x: x.clamp(-1, 1)):
        first, last = slopes(f, dtype)
        assert first == last, (f, dtype, first, last)
print("seen: of 37 NaN elements the first 32 and the last 5 have different gradients, for eight activations")
PYTHON
