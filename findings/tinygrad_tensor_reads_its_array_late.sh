#!/usr/bin/env bash
# A tensor made from an array has the values that the array gets afterwards, until it is first computed with.
# (tinygrad 0.14.0, CPU; it needs clang)
#
# Guess, written down first: Tensor(array) holds the numbers of the moment it is made, as torch.tensor and mx.array do; only
# the computing is put off.
# Seen: the copy is put off, too. Three batches made from one array that is filled anew are all the third. What is derived,
# an assign to a weight, even contiguous() and clone(), reads as late. Once read, the tensor keeps what it has: so a look
# at one, by numpy() or item(), changes what a program computes, and realize() is the copy. Lists are copied at once.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place CACHEDB=$place/cache.db
"$place/venv/bin/pip" install --quiet --no-cache-dir tinygrad==0.14.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import numpy
from importlib.metadata import version
from tinygrad import Tensor, nn

assert version("tinygrad") == "0.14.0", version("tinygrad")
array = numpy.zeros(4, "f")
batches = []
for n in range(3):
    array[:] = n
    batches.append(Tensor(array))
assert [b.tolist() for b in batches] == [[2] * 4] * 3


def after(use):
    """Of an array of ones, which becomes 7: what use, applied before that, gives."""
    array = numpy.ones(4, "f")
    result = use(array)
    array[:] = 7
    values = set(result.numpy().tolist())
    assert len(values) == 1
    return values.pop()


def assigned(array):
    layer = nn.LayerNorm(4)
    layer.weight.realize()
    return layer.weight.assign(Tensor(array))


def looked_at(array):
    tensor = Tensor(array)
    tensor.sum().item()
    return tensor


assert after(Tensor) == 7 and after(lambda a: Tensor(a) + 1) == 8
assert after(lambda a: Tensor(a).clone()) == after(lambda a: Tensor(a).contiguous()) == after(assigned) == 7
assert after(lambda a: Tensor(a).realize()) == after(looked_at) == after(lambda a: Tensor(a.tolist())) == 1
print("seen: three tensors of one array, filled with 0, 1 and 2 in turn, are all 2; looked at one by one they differ")
PYTHON
