#!/usr/bin/env bash
# The same name, another meaning: what the tables of docs/interop.md say of numbers, measured anew.
# (PyTorch 2.15.0, Keras 3.15.1 on JAX 0.10.2, Paddle 3.3.1, flax 0.12.8 with optax 0.2.8, MLX 0.32.4, CPU)
#
# Asked: where does one name mean two things, and what is it that each package computes?
# Seen: the lines at the end, which this script compares with what it measures. tinygrad, ONNX and
# the order of a GRU's and an LSTM's gates have scripts of their own (same_name_tinygrad.sh, same_name_onnx.sh,
# order_of_gates.sh), and examples/interop/recipes.py trains 20 steps in each package and in tenon.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python=${PYTHON:-} # one that has the packages; without it they are installed
if [ -z "$python" ]; then
    python3 -m venv "$place/venv"
    export TMPDIR=$place
    "$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 keras==3.15.1 jax==0.10.2 flax==0.12.8 optax==0.2.8 \
        'mlx[cpu]==0.32.4' paddlepaddle==3.3.1 numpy==2.4.6
    python=$place/venv/bin/python
fi
cat >"$place/measure.py" <<'PYTHON'
import inspect
import os

os.environ["KERAS_BACKEND"] = "jax"
import numpy as np

PACKAGES = ["PyTorch", "Keras", "Paddle", "flax", "MLX"]
ROWS = {
    "var": "batch norm: variance kept of 1 2 3 4",
    "share": "batch norm: share of the new batch, eps",
    "far": "batch norm: variance of numbers near 1e4 (336 by hand)",
    "adam eps": "Adam: first step at g = eps, rate 1",
    "adam one": "Adam: first step at g = 1, rate 1",
    "adam decay": "Adam: weight_decay .1 at rate .1, no gradient, from 1",
    "sgd decay": "SGD, momentum .9: the same, two steps",
    "rms": "RMSprop, alpha .75, eps 1: first step at g = 1",
    "adagrad": "Adagrad: first step at g = .5, rate 1",
    "rates": "SGD, momentum .5: second step, of g = 0 and a rate of .1 after 1",
    "dampening": "SGD, momentum, dampening .5: first step at g = 1",
    "adam": "defaults: eps of Adam, decay of AdamW",
    "rmsprop": "defaults: alpha and eps of RMSprop",
    "clip": "3e-6 clipped to a norm of 1e-6",
    "gelu": "GELU of 1, leaky ReLU of -1",
    "eps": "eps of layer norm, of group norm",
    "groups": "group norm of 1 2 3 10 in two groups",
    "first": "first Linear(300, 100): largest weight, bias",
    "same": "convolution of ones, 'same', stride 2, of 0 1 2 ... 15",
    "corner": "mean of ones, window 3, at a corner",
    "half": "a line of 0 0 1 0 ... at half the size, first value",
    "shapes": "Linear of 2 to 3; convolution of 2 to 3 by 4 x 5",
    "biases": "biases of a GRU of 4; of an LSTM",
}
measured = {}
FOUR = np.array([[1], [2], [3], [4]], "f")  # mean 2.5, variance 1.25 or, unbiased, 1.667
FAR = (1e4 + np.arange(64) % 8 * 8).astype("f")[:, None]
GRID = np.arange(16, dtype="f").reshape(4, 4)
LINE = np.array([0, 0, 1, 0, 0, 0, 0, 0], "f")


def number(v):
    v = v.detach() if hasattr(v, "detach") else v
    return float(np.asarray(v).reshape(-1)[0])


def about(*values):
    return [f"{number(v):.1g}" for v in values]


def put(package, row, *values):
    text = ", ".join(v if isinstance(v, str) else f"{number(v):.4g}" for v in values)
    measured.setdefault(row, {})[package] = text


def default(function, *names):
    parameters = inspect.signature(function).parameters
    return [parameters[n].default for n in names]


def norm(package, step, eps, far):
    """step(x): running mean and variance, which were 0 and 1, after a batch x; far: the variance seen of FAR."""
    mean, var = step(FOUR)
    share = mean / 2.5
    put(package, "var", (var - (1 - share)) / share)
    put(package, "share", share, eps)
    put(package, "far", far)


def optimizers(package, move, make):
    """move(optimizer, w, gradients): the weight after each; make: constructors by name, those that there are."""
    first = lambda optimizer, g: move(optimizer, 0, [g])[-1]
    put(package, "adam eps", first(make["adam"](1, eps=1e-3), 1e-3))
    put(package, "adam one", first(make["adam"](1), 1))
    put(package, "adam decay",
        move(make["adam decay"](.1, .1), 1, [0])[-1] if "adam decay" in make else "none")
    if "sgd decay" in make:
        put(package, "sgd decay", move(make["sgd decay"](.1, .1), 1, [0, 0])[-1])
    put(package, "rms", first(make["rms"](1, .75, 1), 1))
    put(package, "adagrad", first(make["adagrad"](1), .5))
    put(package, "rates", make["rates"]())
    if "dampening" in make:
        put(package, "dampening", first(make["dampening"](1), 1))


def pytorch():
    import torch
    from torch import nn
    t = torch.tensor

    def step(x):
        m = nn.BatchNorm1d(1)
        m(t(x))
        return float(m.running_mean), float(m.running_var)
    far = nn.BatchNorm1d(1, momentum=1.)
    far(t(FAR))
    norm("PyTorch", step, nn.BatchNorm1d(1).eps, far.running_var * (len(FAR) - 1) / len(FAR))

    def move(kind, w, gradients, rates=None):
        p = nn.Parameter(t([float(w)]))
        o, seen = kind([p]), []
        for i, g in enumerate(gradients):
            p.grad = t([float(g)])
            o.param_groups[0]["lr"] = rates[i] if rates else o.param_groups[0]["lr"]
            o.step()
            seen.append(p.item())
        return seen
    O = torch.optim
    with_rates = move(lambda p: O.SGD(p, 1, .5), 0, [1, 0], [1, .1])
    optimizers("PyTorch", move, {
        "adam": lambda lr, **k: lambda p: O.Adam(p, lr, **k),
        "adam decay": lambda lr, d: lambda p: O.Adam(p, lr, weight_decay=d),
        "sgd decay": lambda lr, d: lambda p: O.SGD(p, lr, .9, weight_decay=d),
        "rms": lambda lr, a, e: lambda p: O.RMSprop(p, lr, a, e), "adagrad": lambda lr: lambda p: O.Adagrad(p, lr),
        "rates": lambda: with_rates[1] - with_rates[0], "dampening": lambda lr: lambda p: O.SGD(p, lr, .5, .5)})
    put("PyTorch", "adam", *default(O.Adam, "eps"), *default(O.AdamW, "weight_decay"))
    put("PyTorch", "rmsprop", *default(O.RMSprop, "alpha", "eps"))
    p = nn.Parameter(t([0.]))
    p.grad = t([3e-6])
    nn.utils.clip_grad_norm_([p], 1e-6)
    put("PyTorch", "clip", p.grad)
    put("PyTorch", "gelu", nn.functional.gelu(t(1.)), nn.functional.leaky_relu(t(-1.)))
    put("PyTorch", "eps", nn.LayerNorm(2).eps, nn.GroupNorm(1, 2).eps)
    put("PyTorch", "groups", *nn.GroupNorm(2, 4)(t([[[1.], [2], [3], [10]]])).flatten().round().tolist())
    m = nn.Linear(300, 100)
    put("PyTorch", "first", *about(m.weight.abs().max(), m.bias.abs().max()))
    put("PyTorch", "corner", nn.functional.avg_pool2d(torch.ones(1, 1, 4, 4), 3, 1, 1)[0, 0, 0, 0])
    half = nn.functional.interpolate(t(LINE)[None, None], scale_factor=.5, mode="linear")
    put("PyTorch", "half", half[0, 0, 0])
    put("PyTorch", "shapes", shape(nn.Linear(2, 3).weight), shape(nn.Conv2d(2, 3, (4, 5)).weight))
    put("PyTorch", "biases", shape(nn.GRU(3, 4).bias_ih_l0) + " twice", shape(nn.LSTM(3, 4).bias_ih_l0) + " twice")


def shape(t):
    return "x".join(map(str, t.shape))


def keras_():
    import keras
    ops, O, L = keras.ops, keras.optimizers, keras.layers

    def step(x):
        m = L.BatchNormalization()
        m(x, training=True)
        return float(m.moving_mean[0]), float(m.moving_variance[0])
    norm("Keras", step, L.BatchNormalization().epsilon, ops.moments(FAR, axes=[0])[1][0])

    def move(o, w, gradients, rates=None):
        v = keras.Variable(np.array([w], "f"))
        o.build([v])
        seen = []
        for i, g in enumerate(gradients):
            if rates:
                o.learning_rate = rates[i]
            o.apply([ops.convert_to_tensor(np.array([g], "f"))], [v])
            seen.append(float(v.value[0]))
        return seen
    with_rates = move(O.SGD(1., momentum=.5), 0, [1, 0], [1., .1])
    optimizers("Keras", move, {
        "adam": lambda lr, eps=1e-7: O.Adam(float(lr), epsilon=eps),
        "adam decay": lambda lr, d: O.Adam(lr, weight_decay=d),
        "sgd decay": lambda lr, d: O.SGD(lr, momentum=.9, weight_decay=d),
        "rms": lambda lr, a, e: O.RMSprop(float(lr), a, epsilon=float(e)), "adagrad": lambda lr: O.Adagrad(float(lr)),
        "rates": lambda: with_rates[1] - with_rates[0]})
    put("Keras", "adam", *default(O.Adam, "epsilon"), *default(O.AdamW, "weight_decay"))
    put("Keras", "rmsprop", *default(O.RMSprop, "rho", "epsilon"))
    put("Keras", "clip", -move(O.SGD(1., clipnorm=1e-6), 0, [3e-6])[0])
    put("Keras", "gelu", L.Activation("gelu")(np.ones(1, "f"))[0], L.LeakyReLU()(-np.ones(1, "f"))[0])
    put("Keras", "eps", L.LayerNormalization().epsilon, L.GroupNormalization(1).epsilon)
    grouped = L.GroupNormalization(2)(np.array([[1, 2, 3, 10]], "f"))
    put("Keras", "groups", *np.array(grouped).flatten().round().tolist())
    m = L.Dense(100)
    m.build((1, 300))
    put("Keras", "first", *about(np.abs(m.kernel).max(), np.abs(m.bias).max()))
    m = L.Conv2D(1, 3, 2, "same", use_bias=False, kernel_initializer="ones")
    put("Keras", "same", m(GRID[None, :, :, None])[0, 0, 0, 0])
    put("Keras", "corner", L.AveragePooling2D(3, 1, "same")(np.ones((1, 4, 4, 1), "f"))[0, 0, 0, 0])
    line = np.repeat(LINE[None, None, :, None], 2, 1)
    put("Keras", "half", ops.image.resize(line, (2, 4), "bilinear")[0, 0, 0, 0])
    linear, conv = L.Dense(3), L.Conv2D(3, (4, 5))
    linear.build((1, 2)), conv.build((1, 9, 9, 2))
    put("Keras", "shapes", shape(linear.kernel), shape(conv.kernel))
    gru, lstm = L.GRU(4), L.LSTM(4)
    gru.build((1, 2, 3)), lstm.build((1, 2, 3))
    put("Keras", "biases", shape(gru.cell.bias), shape(lstm.cell.bias))


def paddle_():
    import paddle
    nn, F, O = paddle.nn, paddle.nn.functional, paddle.optimizer
    paddle.set_device("cpu")

    def step(x):
        m = nn.BatchNorm1D(1)
        m(paddle.to_tensor(x))
        return number(m._mean), number(m._variance)
    far = nn.BatchNorm1D(1, momentum=0.)
    far(paddle.to_tensor(FAR))
    norm("Paddle", step, nn.BatchNorm1D(1)._epsilon, far._variance)

    def move(kind, w, gradients, rates=None):
        p = paddle.create_parameter([1], "float32", default_initializer=nn.initializer.Constant(float(w)))
        o, seen = kind([p]), []
        for i, g in enumerate(gradients):
            if rates:
                o.set_lr(rates[i])
            (p * float(g)).sum().backward()
            o.step()
            o.clear_grad()
            seen.append(number(p))
        return seen
    with_rates = move(lambda p: O.Momentum(1., .5, p), 0, [1, 0], [1., .1])
    optimizers("Paddle", move, {
        "adam": lambda lr, eps=1e-8: lambda p: O.Adam(float(lr), epsilon=eps, parameters=p),
        "adam decay": lambda lr, d: lambda p: O.Adam(lr, parameters=p, weight_decay=d),
        "sgd decay": lambda lr, d: lambda p: O.Momentum(lr, .9, p, weight_decay=d),
        "rms": lambda lr, a, e: lambda p: O.RMSProp(float(lr), a, float(e), parameters=p),
        "adagrad": lambda lr: lambda p: O.Adagrad(float(lr), parameters=p),
        "rates": lambda: with_rates[1] - with_rates[0]})
    put("Paddle", "adam", *default(O.Adam.__init__, "epsilon"),
        *default(O.AdamW.__init__, "weight_decay"))
    put("Paddle", "rmsprop", *default(O.RMSProp.__init__, "rho", "epsilon"))
    clipped = move(lambda p: O.SGD(1., p, grad_clip=nn.ClipGradByGlobalNorm(1e-6)), 0, [3e-6])
    put("Paddle", "clip", -clipped[0])
    one = paddle.ones([1])
    put("Paddle", "gelu", F.gelu(one), F.leaky_relu(-one))
    put("Paddle", "eps", nn.LayerNorm(2)._epsilon, nn.GroupNorm(1, 2)._epsilon)
    grouped = nn.GroupNorm(2, 4)(paddle.to_tensor(np.array([1, 2, 3, 10], "f").reshape(1, 4, 1, 1)))
    put("Paddle", "groups", *grouped.numpy().flatten().round().tolist())
    m = nn.Linear(300, 100)
    put("Paddle", "first", *about(m.weight.abs().max(), m.bias.abs().max()))
    conv = F.conv2d(paddle.to_tensor(GRID[None, None]), paddle.ones([1, 1, 3, 3]), stride=2, padding="SAME")
    put("Paddle", "same", conv[0, 0, 0, 0])
    put("Paddle", "corner", F.avg_pool2d(paddle.ones([1, 1, 4, 4]), 3, 1, 1)[0, 0, 0, 0])
    half = F.interpolate(paddle.to_tensor(LINE[None, None]), scale_factor=.5, mode="linear", data_format="NCW")
    put("Paddle", "half", half[0, 0, 0])
    put("Paddle", "shapes", shape(nn.Linear(2, 3).weight), shape(nn.Conv2D(2, 3, (4, 5)).weight))
    put("Paddle", "biases", shape(nn.GRU(3, 4).bias_ih_l0) + " twice", shape(nn.LSTM(3, 4).bias_ih_l0) + " twice")


def flax_():
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen as nn
    key = jax.random.PRNGKey(0)

    def step(x, **options):
        m = nn.BatchNorm(use_running_average=False, **options)
        s = m.apply(m.init(key, x), x, mutable=["batch_stats"])[1]["batch_stats"]
        return float(s["mean"][0]), float(s["var"][0])
    norm("flax", step, nn.BatchNorm().epsilon, step(FAR, momentum=0.)[1])

    def move(o, w, gradients):
        w, seen = jnp.array([float(w)]), []
        state = o.init(w)
        for g in gradients:
            updates, state = o.update(jnp.array([float(g)]), state, w)
            w = optax.apply_updates(w, updates)
            seen.append(float(w[0]))
        return seen
    with_rates = move(optax.sgd(lambda count: jnp.where(count == 0, 1., .1), momentum=.5), 0, [1, 0])
    optimizers("flax", move, {
        "adam": lambda lr, **k: optax.adam(lr, **k),
        "rms": lambda lr, a, e: optax.rmsprop(lr, a, e), "adagrad": optax.adagrad,
        "rates": lambda: with_rates[1] - with_rates[0]})
    put("flax", "adam", *default(optax.adam, "eps"), *default(optax.adamw, "weight_decay"))
    put("flax", "rmsprop", *default(optax.rmsprop, "decay", "eps"))
    put("flax", "clip", move(optax.clip_by_global_norm(1e-6), 0, [3e-6])[0])
    put("flax", "gelu", nn.gelu(jnp.ones(())), nn.leaky_relu(-jnp.ones(())))
    put("flax", "eps", nn.LayerNorm().epsilon, nn.GroupNorm().epsilon)
    m, x = nn.GroupNorm(2), jnp.array([[1., 2, 3, 10]])
    put("flax", "groups", *np.array(m.apply(m.init(key, x), x)).flatten().round().tolist())
    p = nn.Dense(100).init(key, jnp.ones((1, 300)))["params"]
    put("flax", "first", f"std {float(p['kernel'].std()):.2f}", 0)
    m = nn.Conv(1, (3, 3), 2, use_bias=False, kernel_init=nn.initializers.ones)
    x = GRID[None, :, :, None]
    put("flax", "same", m.apply(m.init(key, x), x)[0, 0, 0, 0])
    put("flax", "corner", nn.avg_pool(jnp.ones((1, 4, 4, 1)), (3, 3), (1, 1), "SAME")[0, 0, 0, 0])
    put("flax", "half", jax.image.resize(jnp.array(LINE), (4,), "linear")[0])
    linear, conv = nn.Dense(3).init(key, jnp.ones((1, 2))), nn.Conv(3, (4, 5)).init(key, jnp.ones((1, 9, 9, 2)))
    put("flax", "shapes", shape(linear["params"]["kernel"]), shape(conv["params"]["kernel"]))
    counts = []
    for cell in nn.GRUCell(4), nn.LSTMCell(4):
        p = cell.init(key, cell.initialize_carry(key, (1, 3)), jnp.ones((1, 3)))["params"]
        counts.append(" ".join(sorted(n for n in p if "bias" in p[n])))
    put("flax", "biases", *counts)


def mlx_():
    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as O

    def step(x):
        m = nn.BatchNorm(1)
        m(mx.array(x))
        return float(m.running_mean[0]), float(m.running_var[0])
    norm("MLX", step, nn.BatchNorm(1).eps, mx.var(mx.array(FAR)))

    def move(o, w, gradients, rates=None):
        w, seen = {"w": mx.array([float(w)])}, []
        for i, g in enumerate(gradients):
            if rates:
                o.learning_rate = rates[i]
            w = o.apply_gradients({"w": mx.array([float(g)])}, w)
            seen.append(float(w["w"][0]))
        return seen
    with_rates = move(O.SGD(1., .5), 0, [1, 0], [1., .1])
    optimizers("MLX", move, {
        "adam": lambda lr, **k: O.Adam(lr, bias_correction=True, **k) if k else O.Adam(lr),
        "sgd decay": lambda lr, d: O.SGD(lr, .9, weight_decay=d), "rms": O.RMSprop, "adagrad": O.Adagrad,
        "rates": lambda: with_rates[1] - with_rates[0], "dampening": lambda lr: O.SGD(lr, .5, dampening=.5)})
    put("MLX", "adam", *default(O.Adam, "eps"), *default(O.AdamW, "weight_decay"))
    put("MLX", "rmsprop", *default(O.RMSprop, "alpha", "eps"))
    put("MLX", "clip", O.clip_grad_norm({"w": mx.array([3e-6])}, 1e-6)[0]["w"][0])
    put("MLX", "gelu", nn.gelu(mx.array(1.)), nn.leaky_relu(mx.array(-1.)))
    put("MLX", "eps", nn.LayerNorm(2).eps, nn.GroupNorm(1, 2).eps)
    grouped = nn.GroupNorm(2, 4)(mx.array([[[1., 2, 3, 10]]]))
    put("MLX", "groups", *np.array(grouped).flatten().round().tolist())
    m = nn.Linear(300, 100)
    put("MLX", "first", *about(mx.abs(m.weight).max(), mx.abs(m.bias).max()))
    put("MLX", "corner", nn.AvgPool2d(3, 1, 1)(mx.ones((1, 4, 4, 1)))[0, 0, 0, 0])
    put("MLX", "shapes", shape(nn.Linear(2, 3).weight), shape(nn.Conv2d(2, 3, (4, 5)).weight))
    gru = nn.GRU(3, 4)
    put("MLX", "biases", f"{shape(gru.b)} and {shape(gru.bhn)}", shape(nn.LSTM(3, 4).bias))


for measure in pytorch, keras_, paddle_, flax_, mlx_:
    measure()
for row, title in ROWS.items():
    print(f"{title}: " + "; ".join(f"{p} {measured[row][p]}" for p in PACKAGES if p in measured[row]))
PYTHON
"$python" -W ignore "$place/measure.py" 2>"$place/log" | tee "$place/measured" || { cat "$place/log" && exit 1; }
diff - "$place/measured" <<'SEEN'
batch norm: variance kept of 1 2 3 4: PyTorch 1.667; Keras 1.25; Paddle 1.25; flax 1.25; MLX 1.667
batch norm: share of the new batch, eps: PyTorch 0.1, 1e-05; Keras 0.01, 0.001; Paddle 0.1, 1e-05; flax 0.01, 1e-05; MLX 0.1, 1e-05
batch norm: variance of numbers near 1e4 (336 by hand): PyTorch 336; Keras 336; Paddle 336; flax 312; MLX 336
Adam: first step at g = eps, rate 1: PyTorch -0.5; Keras -0.03065; Paddle -0.5; flax -0.5; MLX -0.5
Adam: first step at g = 1, rate 1: PyTorch -1; Keras -1; Paddle -1; flax -1; MLX -3.162
Adam: weight_decay .1 at rate .1, no gradient, from 1: PyTorch 0.9; Keras 0.99; Paddle 0.9; flax none; MLX none
SGD, momentum .9: the same, two steps: PyTorch 0.9711; Keras 0.9801; Paddle 0.9711; MLX 0.9711
RMSprop, alpha .75, eps 1: first step at g = 1: PyTorch -0.6667; Keras -0.8944; Paddle -0.8944; flax -0.8944; MLX -0.6667
Adagrad: first step at g = .5, rate 1: PyTorch -1; Keras -0.8452; Paddle -1; flax -0.8452; MLX -1
SGD, momentum .5: second step, of g = 0 and a rate of .1 after 1: PyTorch -0.05; Keras -0.5; Paddle -0.05; flax -0.05; MLX -0.05
SGD, momentum, dampening .5: first step at g = 1: PyTorch -1; MLX -0.5
defaults: eps of Adam, decay of AdamW: PyTorch 1e-08, 0.01; Keras 1e-07, 0.004; Paddle 1e-08, 0.01; flax 1e-08, 0.0001; MLX 1e-08, 0.01
defaults: alpha and eps of RMSprop: PyTorch 0.99, 1e-08; Keras 0.9, 1e-07; Paddle 0.95, 1e-06; flax 0.9, 1e-08; MLX 0.99, 1e-08
3e-6 clipped to a norm of 1e-6: PyTorch 7.5e-07; Keras 1e-06; Paddle 1e-06; flax 1e-06; MLX 7.5e-07
GELU of 1, leaky ReLU of -1: PyTorch 0.8413, -0.01; Keras 0.8413, -0.3; Paddle 0.8413, -0.01; flax 0.8412, -0.01; MLX 0.8413, -0.01
eps of layer norm, of group norm: PyTorch 1e-05, 1e-05; Keras 0.001, 0.001; Paddle 1e-05, 1e-05; flax 1e-06, 1e-06; MLX 1e-05, 1e-05
group norm of 1 2 3 10 in two groups: PyTorch -1, 1, -1, 1; Keras -1, 1, -1, 1; Paddle -1, 1, -1, 1; flax -1, 1, -1, 1; MLX -1, -1, 1, 1
first Linear(300, 100): largest weight, bias: PyTorch 0.06, 0.06; Keras 0.1, 0; Paddle 0.1, 0; flax std 0.06, 0; MLX 0.06, 0.06
convolution of ones, 'same', stride 2, of 0 1 2 ... 15: Keras 45; Paddle 45; flax 45
mean of ones, window 3, at a corner: PyTorch 0.4444; Keras 1; Paddle 1; flax 0.4444; MLX 0.4444
a line of 0 0 1 0 ... at half the size, first value: PyTorch 0; Keras 0; Paddle 0; flax 0.1429
Linear of 2 to 3; convolution of 2 to 3 by 4 x 5: PyTorch 3x2, 3x2x4x5; Keras 2x3, 4x5x2x3; Paddle 2x3, 3x2x4x5; flax 2x3, 4x5x2x3; MLX 3x2, 3x4x5x2
biases of a GRU of 4; of an LSTM: PyTorch 12 twice, 16 twice; Keras 2x12, 16; Paddle 12 twice, 16 twice; flax hn in ir iz, hf hg hi ho; MLX 12 and 4, 16
SEEN
