#!/usr/bin/env bash
# F.interpolate(x, scale_factor=s, mode="bicubic") where s leaves the size as it is: the backward pass is not that of the
# forward pass, and nothing warns.
#
# With a scale factor PyTorch samples at (i + 1/2) / s - 1/2, whatever the sizes come out as. 10 rows times 1.05 are 10
# rows again, so the forward pass is no copy: it reads between the rows. Guess: forward and backward agree, either
# both sample or both copy. Seen on 2026-11-29 with PyTorch 2.15.0 on a CPU, f64: bicubic samples forward (up to half a
# pixel away from a copy) and copies backward: the gradient of the sum is 1 everywhere, a column of the Jacobian is
# off by up to 0.53, torch.autograd.gradcheck says no. Bilinear copies in both directions, and is right. A net
# that resizes by a computed factor trains with gradients of another function when the factor comes close to 1.
#
# Version: torch 2.15.0 from PyPI (5 GB with what it brings).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/v"
export TMPDIR=$folder
"$folder/v/bin/pip" install --quiet --no-cache-dir torch==2.15.0 numpy==2.4.6

"$folder/v/bin/python" - <<'PY'
import torch
import torch.nn.functional as F

expected = {"bicubic": (False, True, False), "bilinear": (True, True, True)}
for mode, want in expected.items():
    for n, s in ((6, 1.1), (10, 1.05), (20, 1.04)):
        x = torch.randn(1, 1, n, n, dtype=torch.float64, requires_grad=True)
        y = F.interpolate(x, scale_factor=s, mode=mode)
        assert y.shape == x.shape
        slope, = torch.autograd.grad(y.sum(), x)
        agrees = torch.autograd.gradcheck(lambda t: F.interpolate(t, scale_factor=s, mode=mode), x,
                                          raise_exception=False)
        got = bool((y == x).all()), bool((slope == 1).all()), agrees
        print(f"{mode:8} {n} times {s}: forward is a copy {got[0]}, backward is one {got[1]}, gradcheck {got[2]}")
        assert got == want, f"{mode} has changed: {got}"

rows = torch.eye(10, dtype=torch.float64)
resize = lambda v: F.interpolate(v.view(1, 1, 1, 10).repeat(1, 1, 10, 1), scale_factor=1.05, mode="bicubic")[0, 0, 5]
forward = torch.stack([resize(v) for v in rows], 1)
backward = torch.autograd.functional.jacobian(resize, torch.arange(10.0, dtype=torch.float64))
off = (forward - backward).abs().max().item()
print(f"bicubic 10 times 1.05: the two Jacobians differ by up to {off:.2f}")
assert 0.5 < off < 0.6, "it has changed"
PY
echo 'seen again: 1 passed, 0 failed'
