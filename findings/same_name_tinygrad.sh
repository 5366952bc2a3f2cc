#!/usr/bin/env bash
# The same name, another meaning: tinygrad in the rows of docs/interop.md. (tinygrad 0.14.0, CPU; it needs clang)
#
# Guess, written down first: PyTorch's answer in every row, but for GELU, which is tanh's if nothing is said.
# Seen: so it is (the lines at the end, which this script compares with what it measures). SGD has a switch of its own,
# classic=True, whose momentum keeps the rate of the step that gave it, as Keras's does. There is no RMSprop, no Adagrad,
# no clipping of gradients, no dampening.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place CACHEDB=$place/cache.db
"$place/venv/bin/pip" install --quiet --no-cache-dir tinygrad==0.14.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON' | tee "$place/measured"
import inspect

import numpy as np
from tinygrad import Context, Tensor, nn

FOUR = np.array([[1], [2], [3], [4]], "f")  # mean 2.5, variance 1.25 or, unbiased, 1.667
FAR = (1e4 + np.arange(64) % 8 * 8).astype("f")[:, None]
Tensor.manual_seed(0)


def show(title, *values):
    flat = [v.numpy() if isinstance(v, Tensor) else v for v in values]
    print(f"{title}: " + ", ".join(v if isinstance(v, str) else f"{np.asarray(v).reshape(-1)[0]:.4g}" for v in flat))


def default(function, *names):
    return [inspect.signature(function).parameters[n].default for n in names]


def shape(t):
    return "x".join(map(str, t.shape))


@Context(TRAINING=1)
def move(kind, w, gradients, rates=(), **options):
    """The weight after each step."""
    p, seen = Tensor([float(w)]), []
    o = kind([p], **options)
    for i, g in enumerate(gradients):
        if rates:
            o.lr.assign(Tensor([float(rates[i])])).realize()
        p.grad = Tensor([float(g)])
        o.step()
        seen.append(p.item())
    return seen


norm, statistics = nn.BatchNorm(1), nn.BatchNorm(1, momentum=1.)
with Context(TRAINING=1):
    norm(Tensor(FOUR)).realize()
    statistics(Tensor(FAR)).realize()
share = norm.running_mean.item() / 2.5
show("batch norm: variance kept of 1 2 3 4", (norm.running_var.item() - (1 - share)) / share)
show("batch norm: share of the new batch, eps", share, norm.eps)
show("batch norm: variance of numbers near 1e4 (336 by hand)", statistics.running_var.item() * (len(FAR) - 1) / len(FAR))
O = nn.optim
show("Adam: first step at g = eps, rate 1", move(O.Adam, 0, [1e-3], lr=1., eps=1e-3))
show("Adam: first step at g = 1, rate 1", move(O.Adam, 0, [1], lr=1.))
show("SGD, momentum .9, weight_decay .1 at rate .1, no gradient, from 1: two steps",
    move(O.SGD, 1, [0, 0], lr=.1, momentum=.9, weight_decay=.1)[-1])
for classic in False, True:
    first, second = move(O.SGD, 0, [1, 0], [1, .1], momentum=.5, classic=classic)
    show(f"SGD, momentum .5, classic={classic}: second step, of g = 0 and a rate of .1 after 1", second - first)
show("defaults: eps of Adam, decay of AdamW", *default(O.Adam, "eps"), *default(O.AdamW, "weight_decay"))
show("GELU of 1, leaky ReLU of -1", Tensor(1.).gelu(), Tensor(-1.).leaky_relu())
show("eps of layer norm, of group norm", nn.LayerNorm(2).eps, nn.GroupNorm(1, 2).eps)
grouped = nn.GroupNorm(2, 4)(Tensor([[[1.], [2.], [3.], [10.]]])).numpy().flatten()
show("group norm of 1 2 3 10 in two groups", *grouped.round().tolist())
linear = nn.Linear(300, 100)
show("first Linear(300, 100): largest weight, bias", *(f"{abs(p.numpy()).max():.1g}" for p in (linear.weight, linear.bias)))
show("mean of ones, window 3, at a corner", Tensor.ones(1, 1, 4, 4).avg_pool2d((3, 3), 1, padding=1).numpy())
line = Tensor(np.array([0, 0, 1, 0, 0, 0, 0, 0], "f"))
show("a line of 0 0 1 0 ... at half the size, first value", line.reshape(1, 1, 8).interpolate((4,)))
show("Linear of 2 to 3; convolution of 2 to 3 by 4 x 5; transposed",
    *(shape(m.weight) for m in (nn.Linear(2, 3), nn.Conv2d(2, 3, (4, 5)), nn.ConvTranspose2d(2, 3, (4, 5)))))
PYTHON
diff - "$place/measured" <<'SEEN'
batch norm: variance kept of 1 2 3 4: 1.667
batch norm: share of the new batch, eps: 0.1, 1e-05
batch norm: variance of numbers near 1e4 (336 by hand): 336
Adam: first step at g = eps, rate 1: -0.5
Adam: first step at g = 1, rate 1: -1
SGD, momentum .9, weight_decay .1 at rate .1, no gradient, from 1: two steps: 0.9711
SGD, momentum .5, classic=False: second step, of g = 0 and a rate of .1 after 1: -0.05
SGD, momentum .5, classic=True: second step, of g = 0 and a rate of .1 after 1: -0.5
defaults: eps of Adam, decay of AdamW: 1e-08, 0.01
GELU of 1, leaky ReLU of -1: 0.8412, -0.01
eps of layer norm, of group norm: 1e-05, 1e-05
group norm of 1 2 3 10 in two groups: -1, 1, -1, 1
first Linear(300, 100): largest weight, bias: 0.06, 0.06
mean of ones, window 3, at a corner: 0.4444
a line of 0 0 1 0 ... at half the size, first value: 0
Linear of 2 to 3; convolution of 2 to 3 by 4 x 5; transposed: 3x2, 3x2x4x5, 2x3x4x5
SEEN
echo 'seen again: 1 passed, 0 failed'
