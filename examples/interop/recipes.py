#!/usr/bin/env python3
"""Training recipes of Keras, Paddle, flax with optax, and MLX, there and in tenon with the options that mean theirs.

usage: python3 recipes.py PROGRAM                  PROGRAM: build/examples/interop/recipes
    pip install keras==3.15.1 jax==0.10.2 flax==0.12.8 optax==0.2.8 paddlepaddle==3.3.1 'mlx[cpu]==0.32.4' safetensors

A convolution with batch norm, GELU and a Linear, and a GRU with a Linear, 20 steps each from the same weights over the
same batches. Losses and running statistics must agree within 1e-5 of their largest value, weights within 1e-4; "plain"
is how far the first two are apart without the options. Packages that are not installed are left out, and said.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

os.environ["KERAS_BACKEND"] = "jax"
STEPS, BATCH, CHANNELS, SIDE, TIME, FEATURES, HIDDEN, CLASSES = 20, 16, 6, 8, 7, 5, 8, 3
RATE, EPS = 0.01, 1e-3
draw = np.random.RandomState(1)


def uniform(*shape):
    return draw.uniform(-1, 1, shape).astype("f") / np.float32(np.sqrt(np.prod(shape[1:]) or 1))


def norm_data():
    x = draw.randn(STEPS, BATCH, 1, SIDE, SIDE).astype("f") + 1
    zeros, ones = np.zeros(CHANNELS, "f"), np.ones(CHANNELS, "f")
    return {"0.weight": uniform(CHANNELS, 1, 3, 3), "1.weight": ones, "1.bias": zeros, "1.running_mean": zeros,
            "1.running_var": ones, "1.num_batches_tracked": np.zeros((), "int64"),
            "4.weight": uniform(CLASSES, CHANNELS * SIDE * SIDE),
            "4.bias": np.zeros(CLASSES, "f"), "x": x, "y": draw.randint(0, CLASSES, (STEPS, BATCH))}


def gru_data(two_biases):
    """two_biases: each gate has one of x and one of h ("all"), n alone has ("of n"), or the one of h is 0 ("none")."""
    h = 3 * HIDDEN
    b = 0.3 * draw.randn(h).astype("f") * (1 if two_biases == "all" else np.arange(h) >= 2 * HIDDEN)
    return {"rnn.weight_ih_l0": uniform(h, FEATURES), "rnn.weight_hh_l0": uniform(h, HIDDEN),
            "rnn.bias_ih_l0": uniform(h), "rnn.bias_hh_l0": (b * (two_biases != "none")).astype("f"),
            "head.weight": uniform(CLASSES, HIDDEN), "head.bias": np.zeros(CLASSES, "f"),
            "x": draw.randn(STEPS, BATCH, TIME, FEATURES).astype("f"), "y": draw.randint(0, CLASSES, (STEPS, BATCH))}


# ---- layouts: ours is out x in, and channels before rows and columns -------------------------------------------------

def last(x):
    """Channels last."""
    return np.moveaxis(x, -3, -1).copy()


def flat_last(w):
    """A Linear after a flattened image, for channels last; [out, in]."""
    return last(w.reshape(CLASSES, CHANNELS, SIDE, SIDE)).reshape(CLASSES, -1)


def flat_first(w):
    return np.moveaxis(w.reshape(CLASSES, SIDE, SIDE, CHANNELS), -1, 1).reshape(CLASSES, -1)


def gates(w, order):
    """Blocks of rows in another order; (1, 0, 2) is Keras's z, r, h, and its own inverse."""
    return np.concatenate([np.split(w, 3)[i] for i in order])


KERAS = (1, 0, 2)


# ---- each returns losses and, under our names, the state that it compares --------------------------------------------

def in_keras(data, kind):
    import keras
    import jax
    if kind == "norm":
        layers = [keras.Input((SIDE, SIDE, 1)), keras.layers.Conv2D(CHANNELS, 3, padding="same", use_bias=False),
                  keras.layers.BatchNormalization(), keras.layers.Activation("gelu"), keras.layers.Flatten(),
                  keras.layers.Dense(CLASSES)]
        model = keras.Sequential(layers)
        w = [data["0.weight"].transpose(2, 3, 1, 0), data["1.weight"], data["1.bias"], data["1.running_mean"],
             data["1.running_var"], flat_last(data["4.weight"]).T, data["4.bias"]]
        optimizer, xs = keras.optimizers.Adam(RATE, epsilon=EPS), last(data["x"])
    else:
        after = kind == "gru"
        model = keras.Sequential([keras.Input((TIME, FEATURES)), keras.layers.GRU(HIDDEN, reset_after=after),
                                  keras.layers.Dense(CLASSES)])
        b = [gates(data[f"rnn.bias_{k}_l0"], KERAS) for k in ("ih", "hh")]
        w = [gates(data["rnn.weight_ih_l0"], KERAS).T, gates(data["rnn.weight_hh_l0"], KERAS).T,
             np.stack(b) if after else b[0], data["head.weight"].T, data["head.bias"]]
        optimizer, xs = keras.optimizers.RMSprop(RATE, rho=0.9, epsilon=EPS), data["x"]
    model.set_weights(w)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = [model.train_on_batch(x, y) for x, y in zip(xs, data["y"])]
    w = [np.asarray(x) for x in jax.tree.map(np.asarray, model.get_weights())]
    if kind == "norm":
        return losses, {"0.weight": w[0].transpose(3, 2, 0, 1), "1.weight": w[1], "1.bias": w[2],
                        "1.running_mean": w[3], "1.running_var": w[4], "4.weight": flat_first(w[5].T), "4.bias": w[6]}
    b = dict(zip(("ih", "hh"), w[2])) if kind == "gru" else {"ih": w[2]}
    return losses, {"rnn.weight_ih_l0": gates(w[0].T, KERAS), "rnn.weight_hh_l0": gates(w[1].T, KERAS),
                    **{f"rnn.bias_{k}_l0": gates(v, KERAS) for k, v in b.items()}, "head.weight": w[3].T,
                    "head.bias": w[4]}


def in_paddle(data, kind):
    import paddle

    class Reader(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = paddle.nn.GRU(FEATURES, HIDDEN), paddle.nn.Linear(HIDDEN, CLASSES)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    norm = kind == "norm"
    model = paddle.nn.Sequential(
        paddle.nn.Conv2D(1, CHANNELS, 3, padding=1, bias_attr=False), paddle.nn.BatchNorm2D(CHANNELS), paddle.nn.GELU(),
        paddle.nn.Flatten(), paddle.nn.Linear(CHANNELS * SIDE * SIDE, CLASSES)) if norm else Reader()
    name = {"_mean": "running_mean", "_variance": "running_var"}

    def ours(key):
        layer, _, leaf = key.rpartition(".")
        return f"{layer}.{name.get(leaf, leaf)}"

    def turned(key, w):  # Linear's is in x out
        return w.T if ours(key) in ("4.weight", "head.weight") else w

    keys = [k for k in model.state_dict() if ".cell." not in k]  # the GRU's, twice
    for k in keys:
        model.state_dict()[k].set_value(turned(k, data[ours(k)]))
    p = model.parameters()
    optimizer = paddle.optimizer.AdamW(RATE, epsilon=EPS, parameters=p) if norm else paddle.optimizer.RMSProp(
        RATE, epsilon=EPS, parameters=p)
    losses = []
    for x, y in zip(data["x"], data["y"]):
        loss = paddle.nn.functional.cross_entropy(model(paddle.to_tensor(x)), paddle.to_tensor(y))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses, {ours(k): turned(k, model.state_dict()[k].numpy()) for k in keys}


def in_flax(data, kind):
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.BatchNorm(use_running_average=False)(nn.Conv(CHANNELS, (3, 3), use_bias=False)(x))
            return nn.Dense(CLASSES)(nn.gelu(x).reshape(x.shape[0], -1))

    class Reader(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(CLASSES)(nn.RNN(nn.GRUCell(HIDDEN))(x)[:, -1])

    if kind == "norm":
        model, xs = Norm(), last(data["x"])
        variables = {"params": {"Conv_0": {"kernel": data["0.weight"].transpose(2, 3, 1, 0)},
                                "BatchNorm_0": {"scale": data["1.weight"], "bias": data["1.bias"]},
                                "Dense_0": {"kernel": flat_last(data["4.weight"]).T, "bias": data["4.bias"]}},
                     "batch_stats": {"BatchNorm_0": {"mean": data["1.running_mean"], "var": data["1.running_var"]}}}
        optimizer = optax.adamw(RATE, eps=EPS)
    else:
        model, xs, cell = Reader(), data["x"], {}
        for i, gate in enumerate("rzn"):
            wi, wh, bi, bh = (np.split(data[f"rnn.{k}_l0"], 3)[i]
                              for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            cell["i" + gate] = {"kernel": wi.T, "bias": bi}
            cell["h" + gate] = {"kernel": wh.T, **({"bias": bh} if gate == "n" else {})}
        head = {"kernel": data["head.weight"].T, "bias": data["head.bias"]}
        variables = {"params": {"GRUCell_0": cell, "Dense_0": head}, "batch_stats": {}}
        optimizer = optax.rmsprop(RATE, eps=EPS)
    variables = jax.tree.map(jnp.asarray, variables)
    params, rest = variables["params"], variables["batch_stats"]
    state = optimizer.init(params)

    @jax.jit
    def step(params, rest, state, x, y):
        def loss_of(params):
            z, new = model.apply({"params": params, "batch_stats": rest}, x, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(z, y).mean(), new.get("batch_stats", {})
        (loss, rest_), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        change, state_ = optimizer.update(gradient, state, params)
        return loss, optax.apply_updates(params, change), rest_, state_

    losses = []
    for x, y in zip(xs, data["y"]):
        loss, params, rest, state = step(params, rest, state, x, y)
        losses.append(float(loss))
    p, r = jax.tree.map(np.asarray, (params, rest))
    if kind == "norm":
        norm, stats = p["BatchNorm_0"], r["BatchNorm_0"]
        return losses, {"0.weight": p["Conv_0"]["kernel"].transpose(3, 2, 0, 1), "1.weight": norm["scale"],
                        "1.bias": norm["bias"], "1.running_mean": stats["mean"], "1.running_var": stats["var"],
                        "4.weight": flat_first(p["Dense_0"]["kernel"].T), "4.bias": p["Dense_0"]["bias"]}
    cell = p["GRUCell_0"]
    return losses, {"rnn.weight_ih_l0": np.concatenate([cell["i" + g]["kernel"].T for g in "rzn"]),
                    "rnn.weight_hh_l0": np.concatenate([cell["h" + g]["kernel"].T for g in "rzn"]),
                    "rnn.bias_ih_l0": np.concatenate([cell["i" + g]["bias"] for g in "rzn"]),
                    "rnn.bias_hh_l0": np.concatenate([np.zeros(2 * HIDDEN, "f"), cell["hn"]["bias"]]),
                    "head.weight": p["Dense_0"]["kernel"].T, "head.bias": p["Dense_0"]["bias"]}


def in_mlx(data, kind):
    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optimizers
    from mlx.utils import tree_flatten

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

        def __call__(self, x):
            return self.head(self.rnn(x)[:, -1])

    if kind == "norm":
        model = nn.Sequential(nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm(CHANNELS), nn.GELU(),
                              lambda x: x.reshape(x.shape[0], -1), nn.Linear(CHANNELS * SIDE * SIDE, CLASSES))
        w = {"layers.0.weight": last(data["0.weight"]), "layers.4.weight": flat_last(data["4.weight"])}
        w.update({"layers." + k: data[k] for k in data if k[0] in "14" and "num" not in k and k != "4.weight"})
        optimizer, xs = optimizers.Adam(0.003, eps=EPS), last(data["x"])
    else:
        model, b = Reader(), data["rnn.bias_hh_l0"]
        w = {"rnn.Wx": data["rnn.weight_ih_l0"], "rnn.Wh": data["rnn.weight_hh_l0"], "rnn.b": data["rnn.bias_ih_l0"],
             "rnn.bhn": b[2 * HIDDEN:], "head.weight": data["head.weight"], "head.bias": data["head.bias"]}
        optimizer, xs = optimizers.AdamW(0.003, eps=EPS), data["x"]
    model.load_weights([(k, mx.array(v)) for k, v in w.items()])
    gradient_of = nn.value_and_grad(model, lambda x, y: nn.losses.cross_entropy(model(x), y, reduction="mean"))
    losses = []
    for x, y in zip(xs, data["y"]):
        loss, gradient = gradient_of(mx.array(x), mx.array(y))
        optimizer.update(model, gradient)
        mx.eval(model.state, optimizer.state)
        losses.append(float(loss))
    w = {k: np.array(v) for k, v in tree_flatten(model.parameters())}
    if kind == "norm":
        w = {k.removeprefix("layers."): v for k, v in w.items()}
        return losses, {**w, "0.weight": np.moveaxis(w["0.weight"], -1, 1), "4.weight": flat_first(w["4.weight"])}
    return losses, {"rnn.weight_ih_l0": w["rnn.Wx"], "rnn.weight_hh_l0": w["rnn.Wh"], "rnn.bias_ih_l0": w["rnn.b"],
                    "rnn.bias_hh_l0": np.concatenate([np.zeros(2 * HIDDEN, "f"), w["rnn.bhn"]]),
                    "head.weight": w["head.weight"], "head.bias": w["head.bias"]}


# ---- the comparison --------------------------------------------------------------------------------------------------

RECIPES = [("keras_norm", "keras", in_keras, None), ("keras_gru", "keras", in_keras, "all"),
           ("keras_gru_before", "keras", in_keras, "none"), ("paddle_norm", "paddle", in_paddle, None),
           ("paddle_gru", "paddle", in_paddle, "all"), ("flax_norm", "flax", in_flax, None),
           ("flax_gru", "flax", in_flax, "of n"), ("mlx_norm", "mlx.core", in_mlx, None),
           ("mlx_gru", "mlx.core", in_mlx, "of n")]


def apart(ours, theirs):
    """The largest difference, as a part of the largest value."""
    return float(np.abs(np.asarray(ours, "d") - theirs).max() / np.abs(theirs).max())


def main():
    folder = tempfile.mkdtemp(prefix="tenon-recipes-")
    compared = failed = 0
    print(f"{'recipe':18} {'version':>9} {'losses':>9} {'mean, var':>9} {'weights':>9} {'plain: losses':>14} "
          f"{'mean, var':>9}")
    for name, package, run, biases in RECIPES:
        data = gru_data(biases) if biases else norm_data()
        try:
            version = __import__(package, fromlist=["__version__"]).__version__
        except ImportError as error:
            print(f"{name:18} left out: {error}")
            continue
        given = os.path.join(folder, name + ".safetensors")
        save_file({k: np.ascontiguousarray(v) for k, v in data.items()}, given)
        losses, state = run(data, name.partition("_")[2])
        row = []
        for plain in ((), ("plain",)):
            out = os.path.join(folder, name + ".out.safetensors")
            subprocess.run([sys.argv[1], name, given, out, *plain], check=True)
            ours = load_file(out)
            stats = [apart(ours[k], v) for k, v in state.items() if "running" in k]
            weights = [apart(ours[k], v) for k, v in state.items() if "running" not in k]
            row += [apart(ours["losses"], np.array(losses)), max(stats, default=None), max(weights)]
        same = all(d <= most for d, most in zip(row, (1e-5, 1e-5, 1e-4)) if d is not None)
        compared, failed = compared + 1, failed + (not same)
        text = ["" if d is None else f"{d:.1e}" for d in row]
        print(f"{name:18} {version:>9} {text[0]:>9} {text[1]:>9} {text[2]:>9} {text[3]:>14} {text[4]:>9}"
              + ("" if same else "  NOT THE SAME"))
    print(f"{compared} compared, {failed} failed")
    sys.exit(failed > 0 or not compared)


if __name__ == "__main__":
    main()
