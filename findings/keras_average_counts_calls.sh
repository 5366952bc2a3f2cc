#!/usr/bin/env bash
# Gradients that are collected over 4 calls make the average of the weights follow 4 times as fast.
# (Keras 3.15.1 with JAX 0.10.2, CPU, use_ema with gradient_accumulation_steps)
#
# Guess, written down first: the average moves when the weights do, so that 4 calls with a quarter of the batch each give
# the average of one call with the whole batch.
# Seen: the weights move at every fourth call. The average moves at every call, also towards weights that have not
# changed: with 4 calls a momentum of .9 acts as .9^4 = .66. After five updates of SGD by 1 each the average of the
# weight, which is 5, is 2.87 in place of 1.90, and with the default momentum of .99 1.27 in place of 1.10.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place KERAS_BACKEND=jax
"$place/venv/bin/pip" install --quiet --no-cache-dir keras==3.15.1 jax==0.10.2 numpy==2.4.6
"$place/venv/bin/python" -W ignore - <<'PYTHON'
import keras, numpy

assert keras.__version__ == "3.15.1", keras.__version__


def average(calls, momentum):
    """Of a weight that five updates have moved from 0 to 5, the gradient of each collected over so many calls."""
    weight = keras.Variable(numpy.zeros(1, "f"))
    collect = {"gradient_accumulation_steps": calls} if calls > 1 else {}
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=momentum, **collect)
    optimizer.build([weight])
    for _ in range(5 * calls):
        optimizer.apply([keras.ops.convert_to_tensor([-1.0])], [weight])
    assert float(weight.value[0]) == 5
    optimizer.finalize_variable_values([weight])
    return float(weight.value[0])


once, four = average(1, 0.9), average(4, 0.9)
slow, slow_four = average(1, 0.99), average(4, 0.99)
assert abs(once - 1.9049) < 1e-3 and abs(four - 2.8679) < 1e-3, (once, four)
assert 1.09 < slow < 1.11 and 1.26 < slow_four < 1.28, (slow, slow_four)
print(f"seen: the average is {four:.2f} where gradients are collected over 4 calls, {once:.2f} where they come in one;"
      f" with a momentum of .99 {slow_four:.2f} and {slow:.2f}")
PYTHON
