#!/usr/bin/env bash
# A batch norm whose activations are computed again in backward counts every batch twice. (MLX 0.32.4, CPU, checkpoint)
#
# Guess, written down first: mlx.nn.utils.checkpoint changes memory and time alone, so loss, gradients and the running
# statistics are those without it.
# Seen: loss and gradients are. The running mean and variance, which the second forward moves again, are where two steps
# over that batch would have brought them: at a momentum of .1 by .19 of the way. No error and no warning; with batches
# that differ the last ones weigh twice as much, and so does a momentum that was tuned without it.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir 'mlx[cpu]==0.32.4' numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import mlx.core as mx, mlx.nn as nn, numpy
from mlx.nn.utils import checkpoint

assert mx.__version__ == "0.32.4", mx.__version__
batch = mx.array(numpy.random.RandomState(0).randn(16, 2).astype("f")) * 3 + 5


def step(again):
    """Loss, gradient of the first weight, running mean and variance after one step."""
    mx.random.seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm(2))
    called = checkpoint(model) if again else model
    loss, gradient = nn.value_and_grad(model, lambda x: (called(x) - 1).square().mean())(batch)
    mx.eval(loss, gradient, model.state)
    norm = model.layers[1]
    return float(loss), numpy.array(gradient["layers"][1]["bias"]), numpy.array(norm.running_mean), numpy.array(
        norm.running_var)


loss, gradient, mean, variance = step(False)
loss_again, gradient_again, mean_again, variance_again = step(True)
assert abs(loss - loss_again) < 1e-6 and numpy.allclose(gradient, gradient_again, atol=1e-6)
share = 1 - (1 - .1) ** 2  # of two steps
assert numpy.allclose(mean_again, mean / .1 * share, rtol=1e-5)
assert numpy.allclose(variance_again, 1 + (variance - 1) / .1 * share, rtol=1e-5)
print(f"seen: the running mean goes to {mean_again[0]:.3f} with checkpoint, to {mean[0]:.3f} without; the loss is the same")
PYTHON
