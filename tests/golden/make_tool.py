#!/usr/bin/env python3
"""Makes tool.pt, a state dict of tensors that a tool may stumble over, and tool.json, what tenon inspect has to say of
it: by PyTorch's own dtypes and exact fractions.

usage: make_tool.py     (PyTorch 2.15.0)
"""
import collections
import decimal
import fractions
import json
import math
import pathlib

import torch

HERE = pathlib.Path(__file__).resolve().parent
NAMES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64",
         torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool"}
decimal.getcontext().prec = 60


def truth(name, t):
    values = [v for v in t.flatten().tolist()]
    finite = [fractions.Fraction(v) for v in values if math.isfinite(v)]
    n = len(finite)
    mean = sum(finite) / n if n else None
    std = None
    if n > 1:
        variance = sum((v - mean) ** 2 for v in finite) / (n - 1)
        std = float((decimal.Decimal(variance.numerator) / decimal.Decimal(variance.denominator)).sqrt())
    whole = not t.is_floating_point()
    return {"name": name, "shape": list(t.shape), "dtype": NAMES[t.dtype], "bytes": t.numel() * t.element_size(),
            "min": (int if whole else float)(min(finite)) if n else None,
            "max": (int if whole else float)(max(finite)) if n else None,
            "mean": float(mean) if n else None, "std": std,
            "nan": sum(math.isnan(v) for v in values), "inf": sum(math.isinf(v) for v in values)}


nan, inf = math.nan, math.inf
weight = torch.arange(20.0).reshape(5, 4) / 7 - 1
packed = torch.arange(24.0).reshape(4, 6)
tensors = collections.OrderedDict(
    [("layers.10.weight", weight), ("layers.2.weight", -weight), ("layers.2.bias", torch.tensor([0.1, -0.2, 1e-30])),
     ("tied", weight), ("turned", weight.t()), ("packed.q", packed[:2]), ("packed.k", packed[2:]),
     ("lost", torch.tensor([1.0, nan, inf, -inf, 2.5, nan])), ("nothing", torch.tensor([nan, inf])),
     ("none", torch.zeros(0, 3)), ("one", torch.tensor(3.25)),
     ("far", torch.tensor([1e308, -1e308, 3e307], dtype=torch.float64)),
     ("near", torch.tensor([1e15 + 1, 1e15 + 2, 1e15 + 4], dtype=torch.float64)),
     ("outlier", torch.cat([torch.tensor([1e30]), torch.ones(99)])),
     ("tiny", torch.tensor([5e-324, 1e-310], dtype=torch.float64)),
     ("half", torch.tensor([65504.0, 6e-8]).half()), ("brain", torch.tensor([1e38, -3.0, 0.5]).bfloat16()),
     ("long", torch.tensor([2**63 - 1, -(2**63), 2**53 + 1])), ("int", torch.tensor([-7, 8], dtype=torch.int32)),
     ("byte", torch.tensor([0, 255, 3], dtype=torch.uint8)), ("flag", torch.tensor([True, False, True])),
     ("control \x1b[31m\x07\n\x7f\x85.name", torch.zeros(1)), ('quoted "\\" é', torch.ones(1))])
torch.save(tensors, HERE / "tool.pt")
rows = [truth(name, t) for name, t in tensors.items()]
next(r for r in rows if r["name"] == "tied")["same_as"] = "layers.10.weight"
(HERE / "tool.json").write_text(json.dumps({"metadata": {}, "tensors": rows}, indent=0) + "\n")
