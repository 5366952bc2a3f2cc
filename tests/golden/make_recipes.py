#!/usr/bin/env python3
"""Makes recipes.safetensors: what Keras, optax, flax, Paddle and MLX do, in f32, for tests/optim/test_recipes.c.

usage: python3 tests/golden/make_recipes.py [FILE]      (the tests need none of these packages)
    pip install keras==3.15.1 jax==0.10.2 flax==0.12.8 optax==0.2.8 paddlepaddle==3.3.1 'mlx[cpu]==0.32.4' safetensors

optim/NAME: parameters after each of 12 steps, [12, 5], from `start` along the rows of `gradients`, of which the first
are as small as eps. norm/NAME: running mean and variance after each of 3 batches, [3, 2, 4], of `batches` [3, 6, 4].
"""
import os
import pathlib
import sys

os.environ["KERAS_BACKEND"] = "jax"
import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import mlx.core as mx
import mlx.nn as mnn
import mlx.optimizers as mo
import numpy as np
import optax
import paddle
from safetensors.numpy import save_file

draw = np.random.RandomState(7)
START = np.array([1, -2, 0.5, 3, -0.25], "f")
GRADIENTS = (draw.randn(12, 5) * np.geomspace(1e-3, 1, 12)[:, None]).astype("f")
BATCHES = (draw.randn(3, 6, 4) * 2 + [0, 1, -3, 10]).astype("f")


def by_keras(optimizer):
    p = keras.Variable(START)
    optimizer.build([p])
    for g in GRADIENTS:
        optimizer.apply([jnp.asarray(g)], [p])
        yield np.asarray(p.value)


def by_optax(optimizer):
    p = jnp.asarray(START)
    state = optimizer.init(p)
    for g in GRADIENTS:
        change, state = optimizer.update(jnp.asarray(g), state, p)
        p = optax.apply_updates(p, change)
        yield np.asarray(p)


def by_paddle(make):
    p = paddle.create_parameter([5], "float32", default_initializer=paddle.nn.initializer.Assign(START))
    optimizer = make([p])
    for g in GRADIENTS:
        (p * paddle.to_tensor(g)).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        yield p.numpy()


def by_mlx(optimizer):
    p = {"p": mx.array(START)}
    for g in GRADIENTS:
        p = optimizer.apply_gradients({"p": mx.array(g)}, p)
        yield np.array(p["p"])


OPTIMIZERS = {
    "keras_adam": lambda: by_keras(keras.optimizers.Adam(0.1, epsilon=1e-3)),
    "keras_adamw_amsgrad": lambda: by_keras(keras.optimizers.AdamW(0.1, 0.05, epsilon=1e-3, amsgrad=True)),
    "keras_rmsprop": lambda: by_keras(keras.optimizers.RMSprop(0.05, rho=0.9, momentum=0.5, epsilon=1e-3,
                                                              centered=True)),
    "paddle_rmsprop": lambda: by_paddle(lambda p: paddle.optimizer.RMSProp(0.05, 0.9, 1e-3, 0.5, parameters=p)),
    "optax_rmsprop": lambda: by_optax(optax.rmsprop(0.05, decay=0.9, eps=1e-3)),
    "optax_adagrad": lambda: by_optax(optax.adagrad(0.05, initial_accumulator_value=0.1, eps=1e-2)),
    "mlx_adam": lambda: by_mlx(mo.Adam(0.02, eps=1e-3)),
    "mlx_adamw": lambda: by_mlx(mo.AdamW(0.02, betas=[0.8, 0.95], eps=1e-3, weight_decay=0.1)),
    "mlx_rmsprop": lambda: by_mlx(mo.RMSprop(0.05, alpha=0.9, eps=1e-3)),
}


def keras_norm():
    layer = keras.layers.BatchNormalization(momentum=0.7)
    for x in BATCHES:
        layer(x, training=True)
        yield layer.moving_mean.value, layer.moving_variance.value


def flax_norm():
    layer = nn.BatchNorm(use_running_average=False, momentum=0.7)
    state = layer.init(jax.random.key(0), BATCHES[0])
    for x in BATCHES:
        state = {**state, **layer.apply(state, x, mutable=["batch_stats"])[1]}
        yield state["batch_stats"]["mean"], state["batch_stats"]["var"]


def paddle_norm():
    layer = paddle.nn.BatchNorm1D(4, momentum=0.7)
    for x in BATCHES:
        layer(paddle.to_tensor(x))
        yield layer._mean.numpy(), layer._variance.numpy()


def mlx_norm():
    layer = mnn.BatchNorm(4, momentum=0.3)
    for x in BATCHES:
        layer(mx.array(x))
        yield np.array(layer.running_mean), np.array(layer.running_var)


tensors = {"start": START, "gradients": GRADIENTS, "batches": BATCHES}
for name, run in OPTIMIZERS.items():
    tensors[f"optim/{name}"] = np.stack([p.copy() for p in run()]).astype("f")
for name, run in (("keras", keras_norm), ("flax", flax_norm), ("paddle", paddle_norm), ("mlx", mlx_norm)):
    tensors[f"norm/{name}"] = np.stack([np.stack(both) for both in run()]).astype("f")
path = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).with_name("recipes.safetensors"))
save_file(tensors, path)
