"""Samples of numbers at the edges, beside those of PyTorch's database."""
import torch
from torch.testing._internal.opinfo.core import SampleInput

FLOATS = [-0.0, 0.0, 1.0, -1.0, 0.5, -2.5, 20.0, -30.0, 1e4, -6e4, 3e-5, -1e-7, float("inf"), float("-inf"),
          float("nan")]


def special_numbers(dtype):
    if dtype.is_floating_point:
        i = torch.finfo(dtype)
        edges = [i.max, i.min, i.tiny, -i.tiny, i.tiny / 2, i.eps, 89.0, -104.0]
        return torch.tensor(FLOATS + edges, dtype=torch.float64).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([True, False, True])
    i = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 100, i.max, i.min, i.max - 1] + ([-1, -2, -100] if i.min else []), dtype=dtype)


def special_samples(kind, dtype, name):
    v, grad = special_numbers(dtype), dtype.is_floating_point
    n = len(v)
    if dtype == torch.float64 and kind in ("rows", "norm"):  # PyTorch squares them in f64, and then is no judge
        v = torch.where(v.isfinite() & (v != 0), v.sign() * v.abs().clamp(1e-150, 1e150), v)
    leaf = lambda t: t.clone().requires_grad_(grad)
    if kind == "unary":
        yield SampleInput(leaf(v))
        yield SampleInput(leaf(v.repeat(3)[:n * 2 + 5]))
    elif kind == "clamp":
        yield from (SampleInput(leaf(v), *bounds) for bounds in ((0, 1), (-1, None), (None, 100), (2, 2)))
    elif kind in ("binary", "lerp"):
        more = (0.25,) if kind == "lerp" else ()
        yield SampleInput(leaf(v[:, None].expand(n, n)), leaf(v[None, :].expand(n, n)), *more)
        yield SampleInput(leaf(v[:, None]), leaf(v), *more)
        if kind == "lerp":
            yield SampleInput(leaf(v[:, None]), leaf(v), 0.75)
    elif kind == "rows":
        if name in ("sum", "mean", "cumsum") and grad:  # the largest and its negative: the order would decide
            v = v[~v.isfinite() | (v.abs() < 1e5)]
            n = len(v)
        one = torch.ones((), dtype=dtype).expand(n, n)
        rows = torch.stack([v[:, None].expand(n, n), v[None, :].expand(n, n), one], -1).reshape(n * n, 3)
        wide = torch.cat([rows, torch.zeros(n * n, 20, dtype=dtype) + ("prod" in name)], 1)
        for x in (rows, wide):
            if "no_dim" in name:
                yield from (SampleInput(leaf(r)) for r in x[:: 7])
            else:
                yield SampleInput(leaf(x), **({"ord": 2} if "norm" in name else {}), dim=1)
                yield SampleInput(leaf(x.t().contiguous()), **({"ord": 2} if "norm" in name else {}), dim=0)
    elif kind == "norm":
        x = torch.stack([v[:, None].expand(n, n), v[None, :].expand(n, n)], -1).reshape(n * n, 2)
        x = torch.cat([x, torch.arange(6).to(dtype).expand(n * n, 6)], 1)
        yield SampleInput(leaf(x), (8,), leaf(torch.ones(8, dtype=dtype)), leaf(torch.zeros(8, dtype=dtype)), 1e-5)
    elif kind == "loss":
        for reduction in ("none", "mean"):
            yield SampleInput(leaf(v[:, None].expand(n, n)), leaf(v[None, :].expand(n, n)), reduction=reduction)
    elif kind == "entropy":
        for offset in (0.0, 1024.0, 1e4, 1e6, 1e8, -1e8):
            x = (torch.linspace(-2, 3, 50, dtype=torch.float64).expand(4, 50) + offset).to(dtype)
            yield SampleInput(leaf(x), torch.tensor([0, 7, 49, 3]), reduction="none")
        x = torch.cat([v[:, None], torch.ones(n, 2, dtype=dtype)], 1)
        yield SampleInput(leaf(x), torch.arange(n) % 3, reduction="none")
    elif kind == "pool":
        yield SampleInput(leaf(v.repeat(16)[:1 * 2 * 8 * 8].reshape(1, 2, 8, 8)), (2, 2))
    elif kind == "attention":
        g = torch.Generator().manual_seed(3)
        draw = lambda *s: leaf(torch.randn(*s, generator=g, dtype=torch.float64).to(dtype))
        for low in (-1e9, -1e6, torch.finfo(dtype).min, float("-inf")):
            mask = torch.zeros(6, 7, dtype=torch.float64)
            mask[2] = low if low != float("-inf") else 0  # a row that is blocked whole
            mask[4, 3:] = low
            yield SampleInput(draw(2, 6, 8), draw(2, 7, 8), draw(2, 7, 8), attn_mask=mask.to(dtype))
            yield SampleInput(draw(2, 6, 8), draw(2, 7, 8), draw(2, 7, 8), attn_mask=leaf(mask.to(dtype)))
