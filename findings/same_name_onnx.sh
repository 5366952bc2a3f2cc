#!/usr/bin/env bash
# The same name, another meaning: ONNX in the rows of docs/interop.md. (onnx 1.23.2, its reference evaluator, CPU)
#
# Guess, written down first: batch norm keeps the biased variance; Adam's eps is added to the corrected root (-.5 at
# g = eps); without a step before it, T = 0, there is no correction (-3.16 at g = 1); a mean over the edge is without the
# zeros; SAME_UPPER pads the end alone; the rest of the rows as PyTorch, GELU exact.
# Seen: Adam's eps is added to the root as it is, as in Keras (-.031; guess missed). Its norm_coefficient_post takes its
# share of the weight after the step, whatever the rate is: .9 of 1 at a rate of .1, where a decoupled decay leaves .99 (not
# foreseen). Resize with antialias=1 repeats the edge, where PyTorch and jax.image leave out what lies beyond it, which is
# exclude_outside=1 (not foreseen). All else as guessed: the lines at the end, which this script compares with what it
# measures.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir onnx==1.23.2 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON' | tee "$place/measured"
import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

assert onnx.__version__ == "1.23.2", onnx.__version__
TRAINING = "ai.onnx.preview.training"
FOUR = np.array([[1], [2], [3], [4]], "f")  # mean 2.5, variance 1.25 or, unbiased, 1.667
FAR = (1e4 + np.arange(64) % 8 * 8).astype("f")[:, None]
GRID = np.arange(16, dtype="f").reshape(1, 1, 4, 4)
ONE = np.ones(1, "f")


def run(op, *inputs, outputs=1, domain="", **attributes):
    """Of one node; an input of None is left out."""
    given = {f"x{i}": np.asarray(v) for i, v in enumerate(inputs) if v is not None}
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    value = lambda name, v: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(TRAINING, 1)]
    model = lambda results: helper.make_model(helper.make_graph([node], "g", [value(*v) for v in given.items()], results),
        opset_imports=opsets)
    got = ReferenceEvaluator(model([helper.make_empty_tensor_value_info(n) for n in node.output])).run(None, given)
    onnx.checker.check_model(model([value(n, np.asarray(v, "f")) for n, v in zip(node.output, got)]), full_check=True)
    return got


def default(op, *names, domain=""):
    schema = onnx.defs.get_schema(op, 24 if not domain else 1, domain)
    return [round(helper.get_attribute_value(schema.attributes[n].default_value), 9) for n in names]


def show(title, *values):
    print(f"{title}: " + ", ".join(v if isinstance(v, str) else f"{np.asarray(v).reshape(-1)[0]:.4g}" for v in values))


def step(op, g, w=0., rate=1., t=0, state=(0.,), **attributes):
    """The new weight, and the new state."""
    f = lambda v: np.array([v], "f")
    return [float(v[0]) for v in run(op, np.float32(rate), np.int64(t), f(w), f(g), *map(f, state),
        outputs=1 + len(state), domain=TRAINING, **attributes)]


def norm(x, **more):
    return run("BatchNormalization", x, ONE, 0 * ONE, 0 * ONE, ONE, outputs=3, training_mode=1, **more)


y, mean, var = norm(FOUR)
share = float(mean[0]) / 2.5
show("batch norm: variance kept of 1 2 3 4", (var - (1 - share)) / share)
show("batch norm: share of the new batch, eps", share, *default("BatchNormalization", "epsilon"))
show("batch norm: variance of numbers near 1e4 (336 by hand)", norm(FAR, momentum=0.)[2])
ADAM = {"state": (0., 0.), "alpha": .9, "beta": .999}
for t in 0, 1:
    show(f"Adam, T = {t}: step at g = eps, at g = 1, rate 1",
        step("Adam", 1e-3, t=t, epsilon=1e-3, **ADAM)[0], step("Adam", 1, t=t, epsilon=1e-8, **ADAM)[0])
show("Adam: norm_coefficient .1, norm_coefficient_post .1, at rate .1, no gradient, from 1",
    *(step("Adam", 0, 1., .1, t=1, **ADAM, **{n: .1})[0] for n in ("norm_coefficient", "norm_coefficient_post")))
show("Adam: norm_coefficient_post .1 at rate .1, first step at g = 1, from 1",
    step("Adam", 1, 1., .1, t=1, epsilon=1e-8, norm_coefficient_post=.1, **ADAM)[0])
show("Adam, Adagrad: eps if not said", *(default(op, "epsilon", domain=TRAINING)[0] for op in ("Adam", "Adagrad")))
show("Adagrad: first step at g = .5, rate 1", step("Adagrad", .5, epsilon=0.)[0], step("Adagrad", .5, epsilon=.5)[0])
SGD = {"alpha": .5, "mode": "standard", "norm_coefficient": 0.}
w, v = step("Momentum", 1, **SGD, beta=1.)
show("Momentum .5: second step, of g = 0 and a rate of .1 after 1", step("Momentum", 0, w, .1, 1, (v,), **SGD, beta=1.)[0] - w)
show("Momentum, beta .5: first step at g = 1, T = 0 and 1", *(step("Momentum", 1, t=t, **SGD, beta=.5)[0] for t in (0, 1)))
SGD.update(alpha=.9, norm_coefficient=.1)
w, v = step("Momentum", 0, 1., .1, **SGD, beta=1.)
show("Momentum .9, norm_coefficient .1 at rate .1, no gradient, from 1: two steps",
    step("Momentum", 0, w, .1, 1, (v,), **SGD, beta=1.)[0])
show("GELU of 1, leaky ReLU of -1", run("Gelu", ONE)[0], run("LeakyRelu", -ONE)[0])
show("eps of layer norm, group norm, instance norm, RMS norm",
    *(default(op + "Normalization", "epsilon")[0] for op in ("Layer", "Group", "Instance", "RMS")))
grouped, = run("GroupNormalization", np.array([[[1], [2], [3], [10]]], "f"), np.ones(4, "f"), np.zeros(4, "f"), num_groups=2)
show("group norm of 1 2 3 10 in two groups", *grouped.flatten().round().tolist())
ones = np.ones((1, 1, 3, 3), "f")
show("convolution of ones, SAME_UPPER and SAME_LOWER, stride 2, of 0 1 2 ... 15",
    *(run("Conv", GRID, ones, auto_pad=pad, strides=[2, 2])[0] for pad in ("SAME_UPPER", "SAME_LOWER")))
pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
show("mean of ones, window 3, at a corner, count_include_pad 0 and 1",
    *(run("AveragePool", np.ones_like(GRID), **pool, **more)[0] for more in ({}, {"count_include_pad": 1})))
line = np.array([[[0, 0, 1, 0, 0, 0, 0, 0]]], "f")
half = lambda **more: run("Resize", line, None, np.array([1, 1, .5], "f"), mode="linear", **more)[0]
show("a line of 0 0 1 0 ... at half the size, first value, antialias 0, 1, and 1 with exclude_outside",
    half(), half(antialias=1), half(antialias=1, exclude_outside=1))
shape = lambda t: "x".join(map(str, t.shape))
x = np.ones((1, 2, 9, 9), "f")
show("convolution of 2 to 3 by 4 x 5; transposed", "3x2x4x5 gives " + shape(run("Conv", x, np.ones((3, 2, 4, 5), "f"))[0]),
    "2x3x4x5 gives " + shape(run("ConvTranspose", x, np.ones((2, 3, 4, 5), "f"))[0]))
PYTHON
diff - "$place/measured" <<'SEEN'
batch norm: variance kept of 1 2 3 4: 1.25
batch norm: share of the new batch, eps: 0.1, 1e-05
batch norm: variance of numbers near 1e4 (336 by hand): 336
Adam, T = 0: step at g = eps, at g = 1, rate 1: -0.09693, -3.162
Adam, T = 1: step at g = eps, at g = 1, rate 1: -0.03065, -1
Adam: norm_coefficient .1, norm_coefficient_post .1, at rate .1, no gradient, from 1: 0.9, 0.9
Adam: norm_coefficient_post .1 at rate .1, first step at g = 1, from 1: 0.81
Adam, Adagrad: eps if not said: 1e-06, 1e-06
Adagrad: first step at g = .5, rate 1: -1, -0.5
Momentum .5: second step, of g = 0 and a rate of .1 after 1: -0.05
Momentum, beta .5: first step at g = 1, T = 0 and 1: -1, -0.5
Momentum .9, norm_coefficient .1 at rate .1, no gradient, from 1: two steps: 0.9711
GELU of 1, leaky ReLU of -1: 0.8413, -0.01
eps of layer norm, group norm, instance norm, RMS norm: 1e-05, 1e-05, 1e-05, 1e-05
group norm of 1 2 3 10 in two groups: -1, 1, -1, 1
convolution of ones, SAME_UPPER and SAME_LOWER, stride 2, of 0 1 2 ... 15: 45, 10
mean of ones, window 3, at a corner, count_include_pad 0 and 1: 1, 0.4444
a line of 0 0 1 0 ... at half the size, first value, antialias 0, 1, and 1 with exclude_outside: 0, 0.125, 0.1429
convolution of 2 to 3 by 4 x 5; transposed: 3x2x4x5 gives 1x3x6x5, 2x3x4x5 gives 1x3x12x13
SEEN
echo 'seen again: 1 passed, 0 failed'
