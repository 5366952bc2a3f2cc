#!/usr/bin/env bash
# A batch in which every target is ignored gives gradients of 0, but NaN from F.linear_cross_entropy with its options set.
# (PyTorch 2.15.0, CPU)
#
# Guess, written down first: both ways give a loss of NaN (a mean of nothing) and the same gradients.
# Seen: the loss is NaN both ways. Without options the gradients are 0, so a step by them changes nothing, and a loop that
# skips or only prints such a loss goes on. With options, whatever the size of the pieces, input, weight and bias get NaN
# in every element: one step later the model is lost. Such batches are real: padding alone, an answer that was cut off,
# one part of a batch in parts. With reduction="sum" both give 0.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn import LinearCrossEntropyOptions as Options, functional as F

assert torch.__version__.startswith("2.15.0"), torch.__version__


def seen(options, reduction="mean"):
    torch.manual_seed(1)
    given = [torch.randn(n, requires_grad=True) for n in ((12, 4), (9, 4), (9,))]
    x, w, b = given
    target = torch.full((12,), -100)
    loss = F.linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction, options=options)
    loss.backward()
    return [t.detach() for t in [loss] + [g.grad for g in given]]


def all_nan(t):
    return bool(t.isnan().all())


def all_zero(t):
    return bool((t == 0).all())


loss, *grads = seen(None)
assert all_nan(loss) and all(map(all_zero, grads)), grads
for options in (Options(), Options(batch_chunk_size=1), Options(batch_chunk_size=5)):
    loss, *grads = seen(options)
    assert all_nan(loss) and all(map(all_nan, grads)), (options, grads)
for options in (None, Options()):
    assert all(map(all_zero, seen(options, "sum")))
print("seen: no target counts: gradients of 0 without options, NaN with them")
PYTHON
