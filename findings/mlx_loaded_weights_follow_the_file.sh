#!/usr/bin/env bash
# Weights that were loaded become those that are saved under the same name later. (MLX 0.32.4, CPU, safetensors and npy)
#
# Guess, written down first: what mx.load and load_weights have returned is what the file held then, whatever is saved over
# it afterwards by mx.save_safetensors.
# Seen: MLX puts off reading until a value is needed, as its docs say of computing, and then reads from the place in the
# file that the old header named. A checkpoint that was loaded to be compared with, and is looked at after the next one has
# been saved, is that next one: no difference, whatever the steps did. The sum of three checkpoints of 1, 2 and 3, each
# loaded before the next is saved under its name, is 9 in place of 6. A model that load_weights has filled, and no call has
# used yet, changes, too. If the new file has another tensor in front, its header is read as numbers: of 0 1 2 3 comes
# nothing of the kind, and no error. npz and gguf are read at once, and mx.eval behind the load keeps what was loaded.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir 'mlx[cpu]==0.32.4' numpy==2.4.6
cd "$place"
"$place/venv/bin/python" - <<'PYTHON'
import mlx.core as mx, mlx.nn as nn, numpy

assert mx.__version__ == "0.32.4", mx.__version__
SAVE = {"safetensors": mx.save_safetensors, "gguf": mx.save_gguf, "npz": lambda path, w: mx.savez(path, **w),
    "npy": lambda path, w: mx.save(path, w["w"])}


def loaded(path):
    w = mx.load(path)
    return w if isinstance(w, mx.array) else w["w"]


def after(kind, at_once=False):
    """Of the weight 1: what it is after a 2 has been saved over its file."""
    path = f"w.{kind}"
    SAVE[kind](path, {"w": mx.ones(4)})
    w = loaded(path)
    if at_once:
        mx.eval(w)
    SAVE[kind](path, {"w": mx.full(4, 2.)})
    return set(numpy.array(w).tolist())


assert {kind: after(kind) for kind in SAVE} == {"safetensors": {2}, "npy": {2}, "npz": {1}, "gguf": {1}}
assert all(after(kind, at_once=True) == {1} for kind in SAVE)

total = mx.zeros(4)
for n in 1, 2, 3:
    mx.save_safetensors("c.safetensors", {"w": mx.full(4, float(n))})
    total = total + loaded("c.safetensors")
assert total.tolist() == [9] * 4, total

model, second = nn.Linear(2, 2), nn.Linear(2, 2)
model.save_weights("m.safetensors")
first = numpy.array(model.weight)
second.load_weights("m.safetensors")
model.weight = model.weight + 1
model.save_weights("m.safetensors")
assert (numpy.array(second.weight) == first + 1).all()

mx.save_safetensors("o.safetensors", {"w": mx.arange(4.)})
w = loaded("o.safetensors")
mx.save_safetensors("o.safetensors", {"a": mx.full(2, 7.), "w": mx.arange(4.)})
got = numpy.array(w)
assert got.shape == (4,) and not numpy.isin(got, [0, 1, 2, 3, 7]).any(), got
print(f"seen: three checkpoints of 1, 2 and 3 add up to {total[0].item():g}; a loaded weight becomes the one saved after it,"
    f" or {got[1]:.2g} where the file's order has changed")
PYTHON
