"""Both sides of one sample, and the verdict on them."""
import dataclasses
import re

import torch

from tenon import DTYPES, SHORT, No, Refused, T, gradients, scope, tn, to_tenon, to_torch

from torch.testing._internal.common_device_type import toleranceOverride

TOLERANCE = {torch.float32: (1.3e-6, 1e-5), torch.float64: (1e-7, 1e-7), torch.bfloat16: (1.6e-2, 1e-5),
             torch.float16: (1e-3, 1e-5)}  # torch.testing's defaults


# ---- trees of operands and results

def walk(tree, f):
    """The tree with f of every tensor in it."""
    if isinstance(tree, (torch.Tensor, T)):
        return f(tree)
    if isinstance(tree, (list, tuple)) and type(tree) is not torch.Size:
        return type(tree)(walk(x, f) for x in tree) if type(tree) in (list, tuple) else tuple(walk(x, f) for x in tree)
    if isinstance(tree, dict):
        return {k: walk(v, f) for k, v in tree.items()}
    return tree


def leaves(tree):
    found = []
    walk(tree, lambda t: found.append(t) or t)
    return found


def seed_for(t, i):
    """A gradient to start from: random, every second one not row-major."""
    seed = torch.randn(t.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7 + i)).to(t.dtype)
    return seed.transpose(0, 1).contiguous().transpose(0, 1) if i % 2 and t.dim() > 1 else seed


# ---- both sides of one sample

def torch_side(function, tree, second, seeded=False):
    """[(what, tensor)] as PyTorch computes it."""
    if seeded:
        torch.manual_seed(42)
    made = {}
    tree = walk(tree, lambda t: made.setdefault(id(t), t.detach().requires_grad_(t.requires_grad)))
    y = leaves([function(tree)])
    result = [(f"out{i}", t.detach()) for i, t in enumerate(y)]
    wanted = [t for t in leaves(tree) if t.requires_grad]
    outs = [(i, t) for i, t in enumerate(y) if t.requires_grad]
    if not wanted or not outs:
        return result
    grads = torch.autograd.grad([t for _, t in outs], wanted, [seed_for(t, i) for i, t in outs], allow_unused=True,
                                create_graph=second)
    result += [(f"grad{i}", (torch.zeros_like(w) if g is None else g).detach())
               for i, (g, w) in enumerate(zip(grads, wanted))]
    if second:
        again = [(i, g) for i, g in enumerate(grads) if g is not None and g.requires_grad]
        twice = torch.autograd.grad([g for _, g in again], wanted, [seed_for(g, 20 + i) for i, g in again],
                                    allow_unused=True) if again else [None] * len(wanted)
        result += [(f"second{i}", torch.zeros_like(w) if g is None else g)
                   for i, (g, w) in enumerate(zip(twice, wanted))]
    return result


def tenon_side(function, tree, second, expected, seeded=False):
    """The same list as tenon computes it; expected says which gradients PyTorch has."""
    with scope():
        if seeded:
            tn.manual_seed(42)  # as op_db itself does
        made = {}  # one tensor given twice is one tensor
        twin = walk(tree, lambda t: made.setdefault(id(t), to_tenon(t)))
        y = leaves([function(twin)])
        result = [(f"out{i}", to_torch(t)) for i, t in enumerate(y)]
        wanted = [made[id(t)] for t in leaves(tree) if t.requires_grad]
        names = {name for name, _ in expected}
        if "grad0" not in names:
            return result
        outs = [(i, t) for i, t in enumerate(y) if tn.requires_grad(t)]
        grads = gradients([t for _, t in outs], [to_tenon(seed_for(to_torch(t), i)) for i, t in outs], wanted,
                          create_graph=second) if outs else [None] * len(wanted)
        zero = lambda g, w: torch.zeros(w.shape, dtype=w.dtype) if g is None else to_torch(g)
        result += [(f"grad{i}", zero(g, w)) for i, (g, w) in enumerate(zip(grads, wanted))]
        if "second0" in names:
            again = [(i, g) for i, g in enumerate(grads) if g is not None and tn.requires_grad(g)]
            twice = gradients([g for _, g in again], [to_tenon(seed_for(to_torch(g), 20 + i)) for i, g in again],
                              wanted) if again else [None] * len(wanted)
            result += [(f"second{i}", zero(g, w)) for i, (g, w) in enumerate(zip(twice, wanted))]
        return result


# ---- judging

def close(a, b, rtol, atol):
    return torch.isclose(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)


def differs(got, want, tolerance):
    """None, or how they differ: ("dtype" or "shape", text) or ("value", mask of elements)."""
    if got.dtype != want.dtype:
        return "dtype", f"dtype {SHORT[got.dtype]}, want {SHORT.get(want.dtype, want.dtype)}"
    if got.shape != want.shape:
        return "shape", f"shape {list(got.shape)}, want {list(want.shape)}"
    same = close(got, want, *tolerance) if want.dtype.is_floating_point else got == want
    return None if bool(same.all()) else ("value", ~same)


def upcast(tree):
    """The operands in f64, and so the dtype that an option names for sums."""
    def up(t):
        if not t.dtype.is_floating_point:
            return t
        return t.detach().double().requires_grad_(t.requires_grad)
    made = {}
    tree = walk(tree, lambda t: made.setdefault(id(t), up(t)))
    for named in [x for x in tree if isinstance(x, dict)]:
        if getattr(named.get("options"), "acc_dtype", None):
            named["options"] = dataclasses.replace(named["options"], acc_dtype=torch.float64)
    return tree


def as_near(got, want, true, tolerance, strict, depth, size):
    """Which elements are as near to the result in f64 as one may ask. Sums of 16-bit numbers, and gradients, are
    rounded on the way, depth times: they are measured by the size of the whole result."""
    true = true.to(want.dtype).double()
    error = (got.double() - true).abs()
    ok = close(got, true, *tolerance) | (error <= 2 * (want.double() - true).abs())
    if want.dtype in (torch.bfloat16, torch.float16) and not strict:
        ok |= error <= depth * tolerance[0] * torch.maximum(true.abs(), size) + tolerance[1]
    return ok


def size_of(results):
    """The root of the mean square of the largest of these results."""
    return max([t[t.isfinite()].double().square().mean().sqrt() for t in results if bool(t.isfinite().any())],
               default=torch.tensor(0.0))


def judge(got, want, exact, entry, tree):
    """(verdict, text about the first difference, its name); exact() is PyTorch's list in f64."""
    if len(got) != len(want):
        return "wrong", f"{len(got)} results, want {len(want)}", ""
    verdict = "equal", "", ""
    for (name, g), (_, w) in zip(got, want):
        tolerance = entry.tolerances.get(w.dtype, (0, 0))
        d = differs(g, w, tolerance)
        if d is None:
            continue
        bad, true = d[1], None
        if d[0] == "value" and w.dtype.is_floating_point and w.dtype != torch.float64:
            true = dict(exact()).get(name)
            if true is not None and true.shape == w.shape:
                bad = bad & ~as_near(g, w, true, tolerance, entry.strict and name.startswith("out"), entry.depth,
                                     size_of([true] if entry.depth == 2 else [t for _, t in exact()]))
                if not bool(bad.any()):
                    verdict = verdict if verdict[0] == "documented" else ("nearer", "", "")
                    continue
        reason = excuse(entry.name, name, d[0], bad, g, w, tree)
        if reason:
            verdict = "documented", reason, name
            continue
        if d[0] != "value":
            return "wrong", f"{name}: {d[1]}", name
        at = tuple(bad.nonzero()[0].tolist())
        text = f"{name}: {int(bad.sum())} of {w.numel()} elements, at {list(at)} {g[at].item()!r}"
        text += f", want {w[at].item()!r}"
        return "wrong", text + (f" (in f64 {true[at].item()!r})" if true is not None else ""), name
    return verdict


# ---- differences that are meant: (entry, result, reason, test of the differing elements)

def value_only(test):
    """An excuse for values, given where they differ, both results and PyTorch's operands."""
    return lambda kind, bad, g, w, tree: kind == "value" and bool((test(g, w, tree) | ~bad).all())


def row_axis(tree):
    """The axis that is reduced: the one named by dim=, or the last."""
    return tree[2].get("dim", -1)


def pow_twice(g, w, tree):
    """Whether g is the second gradient of x^y by y = 0: of x^(y-1) (1 + y log x) and of x^y log^2 x."""
    x, y = (t.detach() for t in leaves(tree)[:2])
    if x.shape != g.shape or y.shape != g.shape:
        return torch.zeros_like(g, dtype=torch.bool)
    dy, vx, vy = (seed_for(g, i) for i in (0, 20, 21))
    return (y == 0) & close(g, dy * (vx / x + vy * x.log().square()), 1e-7, 1e-7)


def prod_twice(g, w, tree):
    """Whether g is the second gradient of a product, by all pairs of factors left out; or neither is a number: the
    order of the sum then chooses between infinity and NaN."""
    axis, x = row_axis(tree), leaves(tree)[0].detach()
    rows = x.movedim(axis, -1)
    n = rows.shape[-1]
    out = rows[..., 0]
    dy, v = seed_for(out, 0), seed_for(x, 20).movedim(axis, -1)
    true = torch.zeros_like(rows)
    for i in range(n):
        for j in range(n):
            if i != j:
                true[..., i] += v[..., j] * dy * rows[..., [k for k in range(n) if k not in (i, j)]].prod(-1)
    true = true.movedim(-1, axis)
    return close(g, true, 1e-6, 1e-7) | ~g.isfinite() & ~true.isfinite()


def var_order(g, w, tree):
    """Whether g differs by no more than the rounding of the mean of numbers that nearly cancel."""
    axis, x = row_axis(tree), leaves(tree)[0].detach()
    eps = torch.finfo(x.dtype).eps
    largest = x.abs().amax(axis, keepdim=True).double()
    middle = x.double().sum(axis, keepdim=True).abs() <= x.shape[axis] * eps * largest
    return middle & ((g - w).double().abs() <= x.shape[axis] * eps * largest)


def ties(bad, g, w, tree):
    """Whether results differ in nothing but which of equal elements is meant: indices, or gradients that trade places."""
    x, rest = leaves(tree)[0].detach(), [v for v in tree[1] if type(v) is int]
    named = tree[2].get("dim", rest[-1] if rest else -1)
    for axis in {named, rest[0] if rest else named, 0, x.dim() - 1}:
        if not -x.dim() <= axis < x.dim():
            continue
        if w.dtype == torch.int64:
            if w.dim() == x.dim() and all(n <= x.shape[i] for i, n in enumerate(w.shape) if i != axis % x.dim()) and int(w.max()) < x.shape[axis]:
                a, b = x.gather(axis, g), x.gather(axis, w)
                if bool(((a == b) | a.isnan() & b.isnan()).all()):
                    return True
        elif g.shape == x.shape:
            order = x.double().nan_to_num().argsort(dim=axis, stable=True)
            a = x.double().nan_to_num().gather(axis, order)
            if bool((a.narrow(axis, 1, a.shape[axis] - 1) == a.narrow(axis, 0, a.shape[axis] - 1)).any()) and \
                    close(g.double().sum(axis), w.double().sum(axis), 0.01, 0.1).all():
                return True
    return False


EXCUSES = [
    ("all|any", "out", "the result for u8 is bool, PyTorch's is u8", lambda kind, bad, g, w, tree: kind == "dtype"),
    ("abs|nn.functional.l1_loss", "grad", "the slope at NaN is NaN; PyTorch's is 0",
     value_only(lambda g, w, tree: (w == 0) & g.isnan())),
    ("nn.functional.(elu|celu|selu)", "grad|second", "the slope at NaN is NaN; PyTorch's is 1 in some places, and its slope 0",
     value_only(lambda g, w, tree: leaves(tree)[0].isnan() & g.isnan())),
    ("nn.functional.(hardshrink|hardtanh|relu6|softshrink)", "grad",
     "the slope at NaN is 1; PyTorch's is 1 in the last elements of a tensor and 0 in those before",
     value_only(lambda g, w, tree: leaves(tree)[0].isnan() & (w == 0))),
    ("nn.functional.(mish|softsign)", "grad", "the slope at an infinity is its limit; PyTorch's is NaN",
     value_only(lambda g, w, tree: w.isnan() & g.isfinite() & leaves(tree)[0].isinf())),
    ("nn.functional.hardswish", "grad", "the slope at NaN is 1, at an infinity its limit; PyTorch's is NaN",
     value_only(lambda g, w, tree: w.isnan() & ~leaves(tree)[0].isfinite())),
    ("asinh|atanh|nn.functional.mish", "second", "where a power overflows the derivative is its limit, 0; PyTorch's is NaN",
     value_only(lambda g, w, tree: w.isnan() & (g == 0))),
    ("nn.functional.softsign", "out", "of the largest integer it is 1; PyTorch adds 1 to it as an integer",
     value_only(lambda g, w, tree: (g.abs() > 0.99) & (leaves(tree)[0].double().abs() > 254))),
    ("sign", "out", "of bool it is i64, PyTorch's bool", lambda kind, bad, g, w, tree: kind == "dtype"),
    ("remainder", "out", "of a quotient beyond the range it is exact; PyTorch's is NaN in all but a tensor's last elements",
     value_only(lambda g, w, tree: w.isnan() & g.isfinite())),
    ("remainder", "grad1|second", "of a divisor 0, and of an infinite one, it is NaN; PyTorch's is infinite, or 0, or 1",
     value_only(lambda g, w, tree: g.isnan() & ((w == 0) | w.isinf() | (w.abs() == seed_for(w, 0).abs())))),
    ("nn.functional.poisson_nll_loss", "grad1", "of a target of 0 it is finite, as its limit; PyTorch's is NaN",
     value_only(lambda g, w, tree: w.isnan() & g.isfinite())),
    ("cumprod", "second", "it divides by x: beside numbers below 1e-6, or beyond 1e100, no digits are left",
     value_only(lambda g, w, tree: ((leaves(tree)[0] != 0) & ~((leaves(tree)[0].abs() > 1e-6) & (
         leaves(tree)[0].abs() < 1e100))).any(row_axis(tree), keepdim=True).expand(g.shape))),
    ("cumprod", "grad", "after an infinity or NaN, or where the product leaves the range, it is NaN; PyTorch's may be a number",
     value_only(lambda g, w, tree: ~g.isfinite())),
    ("sort|argsort|topk|msort", "out|grad", "equal elements keep their order; PyTorch leaves it open",
     lambda kind, bad, g, w, tree: kind == "value" and ties(bad, g, w, tree)),
    ("clamp", "grad", "the slope at a bound, and at NaN, is 1; PyTorch's is 0",
     value_only(lambda g, w, tree: (w == 0) & (g != 0))),
    ("nn.functional.gelu", "grad", "the slope at an infinity is its limit; PyTorch's is NaN",
     value_only(lambda g, w, tree: w.isnan() & g.isfinite() & leaves(tree)[0].isinf())),
    ("erf|nn.functional.gelu", "second", "where a square overflows the derivative is its limit, 0; PyTorch's is NaN",
     value_only(lambda g, w, tree: w.isnan() & (g == 0) & (leaves(tree)[0].abs() > 1e150))),
    ("nn.functional.binary_cross_entropy_with_logits", "out",
     "of a huge or infinite x it is exact, or its limit; PyTorch's differences of large numbers are 0 or NaN",
     value_only(lambda g, w, tree: (leaves(tree)[0].abs() > 5e4) & ~g.isnan())),
    ("logsumexp", "grad|second",
     "of equal numbers too large to add log 2 to, each has its share; PyTorch gives all to each",
     value_only(lambda g, w, tree: (leaves(tree)[0].abs() > 1e7) & g.isfinite())),
    ("nn.functional.kl_div", "out|grad|second",
     "of a huge or infinite target it is the limit, of a target of 0 it is 0, slopes too; PyTorch's is mostly NaN",
     value_only(lambda g, w, tree: (leaves(tree)[1].abs() > 5e4) & w.isnan() | (leaves(tree)[1] == 0) & (g == 0) |
                (leaves(tree)[1].abs() < 1e-307) & w.isinf() & (g.abs() > 1e307))),  # 1 / target ends the range
    ("pow", "second0", "at base 0 terms with its logarithm are 0; PyTorch's are NaN",
     value_only(lambda g, w, tree: w.isnan() & (leaves(tree)[0].expand(g.shape) == 0))),
    ("pow", "second1",
     "at base 0 terms with its logarithm are 0; PyTorch's are NaN, and at exponent 0 it loses the mixed derivative",
     value_only(lambda g, w, tree: w.isnan() & (leaves(tree)[0].expand(g.shape) == 0) | pow_twice(g, w, tree))),
    ("prod", "second", "of rows with infinities or NaN: where none of them is a factor PyTorch's is NaN, too",
     value_only(prod_twice)),
    ("var|var.unbiased", "grad", "of huge numbers that cancel the mean depends on the order of the sum",
     value_only(var_order)),
    ("square", "grad", "2 x leaves the range (f64), its product with dy does not",
     value_only(lambda g, w, tree: w.isinf() & close(g, 2 * (seed_for(g, 0) * leaves(tree)[0]), 1e-7, 0))),
    ("nn.functional.mse_loss", "grad0", "2 x leaves the range (f64), its product with dy does not",
     value_only(lambda g, w, tree: w.isinf() & close(
         g, 2 * (seed_for(g, 0) * (leaves(tree)[0] - leaves(tree)[1])), 1e-7, 0))),
    ("nn.functional.mse_loss", "grad1", "2 x leaves the range (f64), its product with dy does not",
     value_only(lambda g, w, tree: w.isinf() & close(
         g, 2 * (seed_for(g, 0) * (leaves(tree)[1] - leaves(tree)[0])), 1e-7, 0))),
    ("nn.functional.(huber|smooth_l1)_loss", "second", "where its pieces meet it is the inner one's; PyTorch's is the outer's",
     value_only(lambda g, w, tree: (w == 0) & ((leaves(tree)[0] - leaves(tree)[1]).abs() == 1))),
    ("int", "out", "a float that i32 cannot hold has no defined value in PyTorch",
     value_only(lambda g, w, tree: ~(leaves(tree)[0].double().abs() < 2**31))),
    ("div.no_rounding_mode|true_divide", "grad|second", "one of both leaves the range on the way (f64)",
     value_only(lambda g, w, tree: (w.isinf() | (w.abs() > 1e307)) & (g.isinf() | (g.abs() > 1e307)))),
]


def excuse(entry, name, kind, bad, g, w, tree):
    for of, result, reason, test in EXCUSES:
        if re.fullmatch(of, entry) and re.match(result, name) and test(kind, bad, g, w, tree):
            return reason
    return None


# ---- one sample

LOUD = False


def run(entry, torch_call, tenon_call, tree, twin, second):
    """(verdict, text, more) of a sample; tree holds PyTorch's operands, twin those that tenon copies."""
    copy = lambda tree: walk(tree, torch.Tensor.clone) if entry.seeded or entry.mutates else tree
    try:
        want = torch_side(torch_call, copy(tree), second, entry.seeded)
    except No as e:
        return "unsaid", str(e), ""
    except Exception as e:
        return "no answer", f"{type(e).__name__}: {str(e)[:100]}", ""
    if not want:
        return "no answer", "no tensor", ""
    if any(t.dtype not in DTYPES for _, t in want):
        return "unsaid", "a result of another dtype", ""
    try:
        got = tenon_side(tenon_call, twin, second, want, entry.seeded)
    except No as e:
        return "unsaid", str(e), ""
    except Refused as e:
        return "refused", str(e), describe_values(want)
    if entry.shapes:
        got, want = ([(n, torch.zeros_like(t)) for n, t in r] for r in (got, want))
    exact = []

    def in_f64():
        if not exact:
            try:
                exact.append([] if entry.seeded else torch_side(torch_call, upcast(copy(tree)), False))
            except Exception:
                exact.append([])
        return exact[0]
    if LOUD:
        for (n, g), (_, w) in zip(got, want):
            print(f"---- {n}\ntenon\n{g}\nPyTorch\n{w}\nPyTorch in f64\n{dict(in_f64()).get(n)}")
    return judge(got, want, in_f64, entry, tree)


def own_tolerances(decorators):
    """torch.testing's tolerances, or the wider ones that the entry has in PyTorch's tests on the CPU."""
    found = dict(TOLERANCE)
    for d in decorators:
        for one in getattr(d, "decorators", [d]):
            if isinstance(one, toleranceOverride) and getattr(d, "device_type", None) in (None, "cpu"):
                for dtype, t in one.d.items():
                    if dtype in found:
                        found[dtype] = max(found[dtype][0], t.rtol), max(found[dtype][1], t.atol)
    return found


def describe_values(want):
    name, t = want[0]
    return f"{SHORT.get(t.dtype, t.dtype)}{list(t.shape)} " + ", ".join(f"{x:.5g}" for x in t.flatten()[:3].tolist())


def describe(args, kwargs):
    """The operands of a sample in a line: dtypes, shapes, numbers."""
    def one(v):
        if isinstance(v, torch.Tensor):
            strides = "" if v.is_contiguous() else f" strides {v.stride()}"
            return f"{SHORT.get(v.dtype, v.dtype)}{list(v.shape)}{strides}"
        if isinstance(v, (list, tuple)) and type(v) is not torch.Size:
            return "(" + ", ".join(map(one, v)) + ")"
        return " ".join(repr(v).split())
    return ", ".join([one(a) for a in args] + [f"{k}={one(v)}" for k, v in kwargs.items()])[:300]
