#!/usr/bin/env bash
# F.linear_cross_entropy with its options set: in bf16 the sums over pieces of the batch stand still, so loss and weight
# gradient shrink with the number of pieces; the policy called accurate gives the worst gradient. (PyTorch 2.15.0, CPU)
#
# Guess, written down first: the weight gradient gets worse with the number of pieces, by more than 4 times, because it
# is added up in bf16; asking for acc_policy="accurate" or for acc_dtype=torch.float32 mends that. The loss is right.
# Seen, with weights of 0 and one target, where loss and gradient are known: ln 50 = 3.91 a row, and 1/50 - 1 = -.98.
# - 65,536 rows in pieces of 64 make a loss of 1.0 and a gradient of -.25. The loss is worse than the gradient: each
#   piece adds its share of the mean to a bf16 number, and from 1.0 on a share of 3.91 / 1,024 is rounded away.
# - acc_dtype=torch.float32 changes neither.
# - acc_policy="accurate" by itself, pieces of 8,192 rows: a gradient of -.031, 31 times too small, since the dtype of sums
#   is f32 only where the policy is left at "auto". There, and with acc_dtype=torch.float32, it is -.977.
# - Nothing set but the default options, 4,096 classes of 64 features (the ratio of GPT-2's last layer), is 2 % low.
# Who reads the loss, to compare runs or to stop early, reads the size of the pieces.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import math, torch
from torch.nn import LinearCrossEntropyOptions as Options, functional as F

assert torch.__version__.startswith("2.15.0"), torch.__version__


def seen(classes, options, dtype=torch.bfloat16, rows=65536, features=64):
    x = torch.ones(rows, features, dtype=dtype)
    w = torch.zeros(classes, features, dtype=dtype, requires_grad=True)
    loss = F.linear_cross_entropy(x, w, torch.zeros(rows, dtype=torch.long), options=options)
    loss.backward()
    return loss.item() / math.log(classes), w.grad[0, 0].item() / (1 / classes - 1)


def near(got, want, by):
    assert all(abs(g - w) <= by for g, w in zip(got, want)), (got, want)


f32 = torch.float32
near(seen(50, None), (1, 1), .02)
near(seen(50, Options(batch_chunk_size=64), f32), (1, 1), 1e-4)
near(seen(50, Options(batch_chunk_size=64)), (.2556, .2551), .001)
near(seen(50, Options(batch_chunk_size=64, acc_dtype=f32)), (.2556, .2551), .001)
near(seen(50, Options(batch_chunk_size=64, acc_policy="accurate", acc_dtype=f32)), (.2556, .2551), .001)
near(seen(50, Options(batch_chunk_size=8192)), (1, 1), .01)
near(seen(50, Options(batch_chunk_size=8192, acc_policy="accurate")), (.9945, .0319), .001)
near(seen(50, Options(batch_chunk_size=8192, acc_policy="accurate", acc_dtype=f32)), (1, 1), .01)
near(seen(4096, Options()), (.9768, 1), .001)
print("seen: in bf16 a loss of 1.0 for 3.91 and a gradient of -.25 for -.98, and -.031 under the policy called accurate")
PYTHON
