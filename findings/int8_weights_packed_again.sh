#!/usr/bin/env bash
# Weights that were packed to int8 and unpacked are not the same when they are packed again: they drift. (torchao 0.18.0
# with PyTorch 2.15.0, CPU, Int8WeightOnlyConfig)
#
# Guess, written down first: symmetric int8 of weights has a scale of max |w| / 127 a row, so that the largest weight
# comes back as it was, and packing what was unpacked changes nothing any more.
# Seen: the scale is max |w| / 127.5, and the codes go from -128 to 127. A largest weight that is positive gets the code
# 127 and comes back as .99608 of itself; a negative one gets -127 or -128, whichever way its quotient by the rounded
# scale falls: -.3 comes back as .99608 of itself, -.7 as 1.00392. So each time that weights are unpacked and packed
# again (as when adapters are merged into a packed model, time after time) the row's scale moves: after 50 times a row
# with the largest weight 1 has .822 of it, one with -.7 has 1.151. The 255 whole numbers from -127 to 127, which a
# scale of 1 would hold exactly, come back as multiples of .99608.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6 torchao==0.18.0
"$place/venv/bin/python" -W ignore - 2>"$place/said" <<'PYTHON' || { cat "$place/said"; exit 1; }
import torch, torchao
from torchao.quantization import Int8WeightOnlyConfig, quantize_

assert torchao.__version__ == "0.18.0", torchao.__version__


def packed(weight, times=1):
    for _ in range(times):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            layer.weight.copy_(weight)
        quantize_(layer, Int8WeightOnlyConfig())
        weight = layer.weight.dequantize()
    return layer.weight, weight


def largest(value, times=1):
    row = torch.tensor([[value] + [abs(value) / 100] * 31])
    codes, back = packed(row, times)
    return int(codes.qdata[0, 0]), round(float(back[0, 0] / row[0, 0]), 4)


assert largest(1.) == largest(100.) == (127, .9961)
assert largest(-.3) == (-127, .9961) and largest(-.7) == (-128, 1.0039)
assert largest(1., 50)[1] == .8216 and largest(-.7, 50)[1] == 1.1512
whole = torch.arange(-127., 128.)[None]
codes, back = packed(whole)
assert abs(float(codes.scale) - 127 / 127.5) < 1e-6
assert float((back - whole).abs().max()) > .49
print("seen: a largest weight of 1 comes back as .9961, of -.7 as 1.0039 of itself; after 50 times as .8216 and 1.1512")
PYTHON
