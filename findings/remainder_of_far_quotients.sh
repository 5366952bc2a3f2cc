#!/usr/bin/env bash
# torch.remainder and torch.fmod of numbers whose quotient leaves the range of the dtype give NaN in one part of a tensor
# and the exact remainder in the other. (PyTorch 2.15.0, CPU)
#
# Guess, written down first: exact everywhere, as C's fmod is for all finite numbers.
# Seen: of 37 equal pairs, -2.5 and 2^-1023 in f64 or 1e30 and 1e-30 in f32, the first 32 results are NaN and the last 5
# are C's. A single pair is right, too. So the same two numbers have two answers in one tensor.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export TMPDIR=$place
"$place/venv/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6
ATEN_CPU_CAPABILITY=avx2 "$place/venv/bin/python" - <<'PYTHON'
import math, torch

torch.set_num_threads(1)
assert torch.__version__.startswith("2.15.0"), torch.__version__
for dtype, a, b in ((torch.float64, -2.5, 2.0**-1023), (torch.float32, 1e30, 1e-30)):
    x, y = torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)
    true = math.fmod(x.item(), y.item())
    assert math.isfinite(true)
    for f in (torch.remainder, torch.fmod):
        many = f(x.repeat(37), y.repeat(37))
        assert many[:32].isnan().all(), (f, dtype, many)
        assert (many[32:] == true).all(), (f, dtype, many, true)
        assert f(x, y).item() == true, (f, dtype)
print("seen: 32 of 37 equal remainders are NaN, the last five are exact")
PYTHON
