#!/usr/bin/env bash
# The order of the gates of a GRU and of an LSTM, and where r acts, found by trying all of them. (PyTorch 2.15.0, Keras
# 3.15.1 on JAX 0.10.2, Paddle 3.3.1, flax 0.12.8, MLX 0.32.4, ONNX 1.23.2 (its reference evaluator), tinygrad 0.14.0, CPU)
#
# Asked: which block of rows of the weights is which gate? Five steps of each package's layer with drawn weights are compared
# with plain loops under every order of the blocks, with r before and after the product and z the share of the old and
# of the new state: 24 readings of a GRU, 24 of an LSTM. One of them must agree, and one only.
# Guess, written down first: what docs/interop.md says in its table of recurrent layers; ONNX's LSTM, where the table had
# an empty cell, i, o, f, g; tinygrad, which has an LSTMCell alone, i, f, g, o, with biases of 0 at first.
# Seen: so it is, all of it: the lines at the end, which this script compares with what it measures.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python=${PYTHON:-} # one that has the packages; without it they are installed
if [ -z "$python" ]; then
    python3 -m venv "$place/venv"
    export TMPDIR=$place
    "$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 keras==3.15.1 jax==0.10.2 flax==0.12.8 \
        'mlx[cpu]==0.32.4' paddlepaddle==3.3.1 onnx==1.23.2 tinygrad==0.14.0 numpy==2.4.6
    python=$place/venv/bin/python
fi
cat >"$place/measure.py" <<'PYTHON'
import os
from itertools import permutations, product

os.environ["KERAS_BACKEND"] = "jax"
import numpy as np

T, X, H = 5, 3, 4  # steps, inputs, hidden
rng = np.random.default_rng(0)
draw = lambda *shape: rng.normal(size=shape).astype("f")
sigmoid = lambda v: 1 / (1 + np.exp(-v))


def gru(order, reset, share, x, w, u, b, c):
    """w of inputs, u of hidden, b and c their biases: blocks of H rows in this order."""
    block = lambda m, gate: m[order.index(gate) * H:][:H]
    h = np.zeros(H, "f")
    for v in x:
        into = lambda gate: block(w, gate) @ v + block(b, gate)
        r, z = (sigmoid(into(gate) + block(u, gate) @ h + block(c, gate)) for gate in "rz")
        if reset == "after":
            n = np.tanh(into("n") + r * (block(u, "n") @ h + block(c, "n")))
        else:
            n = np.tanh(into("n") + block(u, "n") @ (r * h) + block(c, "n"))
        h = z * h + (1 - z) * n if share == "old" else (1 - z) * h + z * n
    return h


def lstm(order, x, w, u, b, c):
    h = cell = np.zeros(H, "f")
    for v in x:
        gates = w @ v + b + u @ h + c
        i, f, g, o = (gates[order.index(gate) * H:][:H] for gate in "ifgo")
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(cell)
    return h


def only(readings, h):
    near = [text for text, value in readings if np.abs(value - np.asarray(h).reshape(-1)).max() < 1e-4]
    return near[0] if len(near) == 1 else f"{len(near)} of {len(readings)} readings"


def report(package, kind, h, x, w, u, b, c, names=""):
    """names: those of the package, in the order of the blocks; without them the blocks are numbered by themselves."""
    if kind == "LSTM":
        readings = [(" ".join(o), lstm(o, x, w, u, b, c)) for o in permutations("ifgo")]
    else:
        readings = [(f"{' '.join(o)}, r {reset} the product, z of the {share} state", gru(o, reset, share, x, w, u, b, c))
                    for o, reset, share in product(permutations("rzn"), ("before", "after"), ("old", "new"))]
    print(f"{package} {kind}: {only(readings, h)}{names}", flush=True)


def pytorch():
    import torch
    for kind in "GRU", "LSTM":
        m, x = getattr(torch.nn, kind)(X, H), draw(T, X)
        parts = [draw(*p.shape) for p in m.parameters()]
        for p, v in zip(m.parameters(), parts):
            p.data.copy_(torch.tensor(v))
        report("PyTorch", kind, m(torch.tensor(x))[0][-1].detach(), x, *parts)
    first = torch.nn.LSTM(X, 64).bias_ih_l0[64:128].detach().numpy()
    forget("PyTorch", first)


def forget(package, bias):
    bias = np.asarray(bias)
    print(f"{package} LSTM, bias of f at first: {bias[0] if (bias == bias[0]).all() else 'random'}", flush=True)


def keras_():
    import keras
    x = draw(T, X)
    for kind, more in ("GRU", {}), ("GRU", {"reset_after": False}), ("LSTM", {}):
        m = getattr(keras.layers, kind)(H, **more)
        m(x[None])
        parts = [draw(*w.shape) for w in m.weights]
        m.set_weights(parts)
        w, u, b = parts[0].T, parts[1].T, parts[2].reshape(-1, parts[2].shape[-1])
        b, c = (b[0], b[1]) if len(b) == 2 else (b[0], 0 * b[0])
        report("Keras" + (", reset_after=False," if more else ""), kind, m(x[None]), x, w, u, b, c)
    m = keras.layers.LSTM(64)
    m.build((1, T, X))
    forget("Keras", m.weights[2][64:128])


def paddle_():
    import paddle
    for kind in "GRU", "LSTM":
        m, x = getattr(paddle.nn, kind)(X, H), draw(T, X)
        parts = {}
        for name, p in m.named_parameters():
            parts[name] = draw(*p.shape)
            p.set_value(parts[name])
        w, u, b, c = (parts[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        report("Paddle", kind, m(paddle.to_tensor(x[None]))[0][0, -1].numpy(), x, w, u, b, c)
    forget("Paddle", dict(paddle.nn.LSTM(X, 64).named_parameters())["bias_ih_l0"].numpy()[64:128])


def flax_():
    import jax, jax.numpy as jnp
    from flax import linen as nn
    key, x = jax.random.PRNGKey(0), draw(T, X)
    for kind, gates in ("GRU", "rzn"), ("LSTM", "ifgo"):
        cell = getattr(nn, kind + "Cell")(H)
        carry = cell.initialize_carry(key, (X,))
        p = cell.init(key, carry, jnp.array(x[0]))["params"]
        p = {name: {part: draw(*v.shape) for part, v in m.items()} for name, m in p.items()}
        for v in x:
            carry, h = cell.apply({"params": p}, carry, jnp.array(v))
        stacked = lambda side, part: np.concatenate([p[side + gate].get(part, np.zeros(H, "f")).T for gate in gates])
        report("flax", kind, h, x, stacked("i", "kernel"), stacked("h", "kernel"), stacked("i", "bias"), stacked("h", "bias"),
            " where the names say " + " ".join(gates))
    p = nn.LSTMCell(64).init(key, nn.LSTMCell(64).initialize_carry(key, (X,)), jnp.array(x[0]))["params"]
    forget("flax", p["hf"]["bias"])


def mlx_():
    import mlx.core as mx
    import mlx.nn as nn
    x = draw(T, X)
    for kind in "GRU", "LSTM":
        m = getattr(nn, kind)(X, H)
        w, u, b, n = draw(len(m.Wx), X), draw(len(m.Wx), H), draw(len(m.Wx)), draw(H)
        given = {"Wx": w, "Wh": u, "b" if kind == "GRU" else "bias": b, **({"bhn": n} if kind == "GRU" else {})}
        m.update({name: mx.array(v) for name, v in given.items()})
        h = m(mx.array(x[None]))
        h = np.array((h if kind == "GRU" else h[0])[0, -1])
        c = np.concatenate([np.zeros(2 * H, "f"), n]) if kind == "GRU" else 0 * b
        report("MLX", kind, h, x, w, u, b, c)
    forget("MLX", np.array(nn.LSTM(X, 64).bias)[64:128])


def onnx_():
    import onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator
    for kind, blocks, more in ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("LSTM", 4, {}):
        x, w, u, b, c = draw(T, X), draw(blocks * H, X), draw(blocks * H, H), draw(blocks * H), draw(blocks * H)
        given = {"X": x[:, None], "W": w[None], "R": u[None], "B": np.concatenate([b, c])[None]}
        real = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        node = helper.make_node(kind, list(given), ["Y", "Y_h"], hidden_size=H, **more)
        graph = helper.make_graph([node], "g", [real(n) for n in given], [real("Y_h")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
        h, = ReferenceEvaluator(model).run(None, given)
        report("ONNX" + "".join(f", {k}={v}," for k, v in more.items()), kind, h, x, w, u, b, c)


def tinygrad_():
    from tinygrad import Tensor
    from tinygrad.nn import LSTMCell
    m, x = LSTMCell(X, H), draw(T, X)
    w, u, b, c = draw(4 * H, X), draw(4 * H, H), draw(4 * H), draw(4 * H)
    m.weight_ih, m.weight_hh, m.bias_ih, m.bias_hh = (Tensor(v) for v in (w, u, b, c))
    state = None
    for v in x:
        state = m(Tensor(v[None]), state)
    report("tinygrad", "LSTM", state[0].numpy(), x, w, u, b, c)
    forget("tinygrad", LSTMCell(X, 64).bias_ih.numpy()[64:128])


for measure in pytorch, keras_, paddle_, flax_, mlx_, onnx_, tinygrad_:
    measure()
PYTHON
env -u PYTHON "$python" -W ignore "$place/measure.py" 2>"$place/log" | # tinygrad takes PYTHON for the name of a device
    tee "$place/measured" || { cat "$place/log" && exit 1; }
diff - "$place/measured" <<'SEEN'
PyTorch GRU: r z n, r after the product, z of the old state
PyTorch LSTM: i f g o
PyTorch LSTM, bias of f at first: random
Keras GRU: z r n, r after the product, z of the old state
Keras, reset_after=False, GRU: z r n, r before the product, z of the old state
Keras LSTM: i f g o
Keras LSTM, bias of f at first: 1.0
Paddle GRU: r z n, r after the product, z of the old state
Paddle LSTM: i f g o
Paddle LSTM, bias of f at first: random
flax GRU: r z n, r after the product, z of the old state where the names say r z n
flax LSTM: i f g o where the names say i f g o
flax LSTM, bias of f at first: 0.0
MLX GRU: r z n, r after the product, z of the old state
MLX LSTM: i f g o
MLX LSTM, bias of f at first: random
ONNX GRU: z r n, r before the product, z of the old state
ONNX, linear_before_reset=1, GRU: z r n, r after the product, z of the old state
ONNX LSTM: i o f g
tinygrad LSTM: i f g o
tinygrad LSTM, bias of f at first: 0.0
SEEN
echo 'seen again: 1 passed, 0 failed'
