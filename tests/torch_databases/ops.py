"""How each entry of PyTorch's op_db is said in tenon.

A function here takes what PyTorch's operator takes, tensors as T, and raises No for what tenon has no call for. It is
one call of the function under test, with views around it at most; nothing is computed that would hide a fault.
"""
import ctypes
import math
import numbers

import torch

from tenon import DTYPES, REDUCTIONS, No, Out, Refused, T, plain, tn

OPS = {}  # the entry's name, ".variant" added -> the function
SPECIAL = {}  # entries that also get special values -> "unary", "binary", "rows"
SHAPES = set()  # entries whose values are not defined: shape and dtype are compared
SEEDED = set()  # entries that draw random numbers: both sides are seeded alike


def op(*names, special=None, shapes=False, seeded=False):
    def add(function):
        for name in names:
            OPS[name] = function
            if special:
                SPECIAL[name] = special
            if shapes:
                SHAPES.add(name)
            if seeded:
                SEEDED.add(name)
        return function
    return add


def number(x):
    """A scalar as the double that tenon takes."""
    if isinstance(x, T):
        if x.torch is None or x.torch.dim() or x.torch.requires_grad:
            raise No("a tensor where tenon takes a number")
        x = x.torch.item()
    if isinstance(x, complex):
        raise No("a complex number")
    if isinstance(x, bool):
        raise No("a bool as a number")
    if isinstance(x, int) and abs(x) > 2**53:
        raise No("a whole number above 2^53")
    return float(x)


def scalar(x, s):
    """A scalar beside x: a whole float makes PyTorch's integers float, which a double cannot say."""
    if isinstance(s, float) and s.is_integer() and not x.dtype.is_floating_point:
        raise No("a whole number given as a float, beside integers")
    return number(s)


def whole(x, bound):
    """A bound of hardtanh: PyTorch cuts it to the integer that integers are compared with."""
    return number(int(bound)) if not x.dtype.is_floating_point else number(bound)


def is_tensor(x):
    return isinstance(x, T)


def absent(**given):
    for name, value in given.items():
        if value not in (None, False):
            raise No(f"{name}=")


def axes(dim):
    """A dim of PyTorch: None and () are all axes."""
    return None if dim is None or (isinstance(dim, (tuple, list)) and not dim) else \
        list(dim) if isinstance(dim, (tuple, list)) else [dim]


def as_dtype(x, dtype):
    if dtype not in (None, torch.int64) and not dtype.is_floating_point:
        raise No("dtype= of short integers")
    return x if dtype is None else tn.to_dtype(x, dtype)


def reduction(text):
    return REDUCTIONS[text]


def pair(x):
    x = [x] if isinstance(x, int) else list(x)
    return x * 2 if len(x) == 1 else x


# ---- one tensor in, one out

for name in ("abs neg exp expm1 log log1p sqrt rsqrt square reciprocal sin cos tanh sigmoid erf isnan isfinite tan asin acos "
             "atan sinh cosh asinh acosh atanh sign floor ceil trunc round").split():
    op(name, special="unary")(getattr(tn, name))
op("nn.functional.relu", special="unary")(lambda x, inplace=False: tn.relu(x))
op("nn.functional.silu", special="unary")(lambda x, inplace=False: tn.silu(x))
op("nn.functional.elu", special="unary")(lambda x, alpha=1.0, inplace=False: tn.elu(x, number(alpha)))
op("nn.functional.celu", special="unary")(lambda x, alpha=1.0, inplace=False: tn.celu(x, number(alpha)))
for name in "relu6 selu mish hardswish hardsigmoid".split():
    op("nn.functional." + name, special="unary")(lambda x, inplace=False, call=getattr(tn, name): call(x))
for name in "logsigmoid softsign tanhshrink".split():
    op("nn.functional." + name, special="unary")(getattr(tn, name))
op("nn.functional.hardshrink", special="unary")(lambda x, lambd=0.5: tn.hardshrink(x, number(lambd)))
op("nn.functional.softshrink", special="unary")(lambda x, lambd=0.5: tn.softshrink(x, number(lambd)))
op("nn.functional.hardtanh", special="unary")(
    lambda x, min_val=-1.0, max_val=1.0, inplace=False: tn.hardtanh(x, whole(x, min_val), whole(x, max_val)))
op("nn.functional.prelu")(lambda x, weight: tn.prelu(x, weight))
op("nn.functional.glu")(lambda x, dim=-1: tn.glu(x, dim))
op("nn.functional.leaky_relu", special="unary")(
    lambda x, negative_slope=0.01, inplace=False: tn.leaky_relu(x, number(negative_slope)))
op("nn.functional.softplus", special="unary")(
    lambda x, beta=1, threshold=20: tn.softplus(x, number(beta), number(threshold)))
op("logical_not", special="unary")(tn.logical_not)
op("positive", "conj", "conj_physical", "resolve_conj", "resolve_neg", "real")(lambda x: x)


def no(what):
    raise No(what)


@op("nn.functional.gelu", special="unary")
def gelu(x, approximate="none"):
    return tn.gelu_tanh(x) if approximate == "tanh" else tn.gelu(x)


@op("clamp", special="clamp")
def clamp(x, min=None, max=None):
    return tn.clamp(x, -math.inf if min is None else scalar(x, min), math.inf if max is None else scalar(x, max))


op("clamp_min")(lambda x, min: clamp(x, min=min))
op("clamp_max")(lambda x, max: clamp(x, max=max))


# ---- two tensors, or a tensor and a number

def binary(name, swapped=None):
    def call(a, b, *, alpha=1):
        if alpha != 1:
            raise No("alpha=")
        if not is_tensor(a):
            if not swapped or not is_tensor(b):
                raise No("a number in front")
            return getattr(tn, swapped)(b, scalar(b, a))
        if is_tensor(b):
            return getattr(tn, name)(a, b)
        return getattr(tn, name + "_scalar")(a, scalar(a, b))
    return call


for name in "add sub mul pow eq ne lt le gt ge".split():
    op(name, special="binary")(binary(name, {"add": "add_scalar", "mul": "mul_scalar", "sub": "rsub_scalar"}.get(name)))
for name in "maximum minimum logical_and logical_or logical_xor".split():
    op(name, special="binary")(getattr(tn, name))
op("remainder", special="binary")(binary("remainder"))
op("max.binary")(tn.maximum)
op("min.binary")(tn.minimum)
op("__radd__")(binary("add"))
op("__rmul__")(binary("mul"))
op("__rsub__", "rsub")(lambda x, s, alpha=1: binary("sub", "rsub_scalar")(s, x, alpha=alpha))


@op("div.no_rounding_mode", "true_divide", special="binary")
def div(a, b, rounding_mode=None):
    absent(rounding_mode=rounding_mode)
    if not is_tensor(a):
        raise No("a number in front")
    return tn.div(a, b) if is_tensor(b) else tn.div_scalar(a, number(b))


@op("lerp", special="lerp")
def lerp(a, b, weight):
    return tn.lerp_by(a, b, weight) if is_tensor(weight) else tn.lerp(a, b, number(weight))


@op("nan_to_num", special="unary")
def nan_to_num(x, nan=None, posinf=None, neginf=None):
    o = {"nan": number(nan or 0), "use_posinf": posinf is not None, "use_neginf": neginf is not None}
    return tn.nan_to_num(x, {**o, "posinf": number(posinf or 0), "neginf": number(neginf or 0)})


@op("where")
def where(a, condition, b):
    if not is_tensor(a) or not is_tensor(b):
        raise No("numbers")
    return tn.where(condition, a, b)


op("masked_fill")(lambda x, mask, value: tn.masked_fill(x, mask, number(value)))
op("fill")(lambda x, value: tn.full_like(x, number(value)))


# ---- in place: the target is the first operand

def in_place(name, numbers=True):
    def call(x, b, *more, alpha=1):
        if alpha != 1:
            raise No("alpha=")
        if is_tensor(b):
            getattr(tn, name + "_")(x, b, *map(number, more))
        elif numbers:
            getattr(tn, name + "_scalar_")(x, number(b))
        else:
            raise No("a number")
    return call


INPLACE = {
    "add": in_place("add"), "mul": in_place("mul"), "sub": in_place("sub", False), "lerp": in_place("lerp"),
    "div.no_rounding_mode": in_place("div", False), "true_divide": in_place("div", False),
    "clamp": lambda x, min=None, max=None: tn.clamp_(
        x, -math.inf if min is None else number(min), math.inf if max is None else number(max)),
    "masked_fill": lambda x, mask, value: tn.masked_fill_(x, mask, number(value)),
    "fill": lambda x, value: tn.fill_(x, number(value)),
}
op("zero_")(lambda x: no("in place only"))
INPLACE["zero_"] = tn.zero_


# ---- views and movement

op("reshape", "view", "view_copy")(lambda x, *shape: tn.reshape(x, sizes(shape)))
op("reshape_as", "view_as")(lambda x, other: tn.reshape(x, other.shape))
op("flatten")(lambda x, start_dim=0, end_dim=-1: tn.flatten(x, start_dim, end_dim))
op("ravel")(lambda x: tn.flatten(x, 0, -1))
op("transpose", "transpose_copy")(lambda x, dim0, dim1: tn.transpose(x, dim0, dim1))
op("permute", "permute_copy")(lambda x, dims: tn.permute(x, list(dims)))
op("t", "t_copy")(lambda x: tn.transpose(x, 0, 1) if x.dim() == 2 else x)
op("T", "H")(lambda x: tn.permute(x, list(range(x.dim()))[::-1]))
op("mT", "mH")(lambda x: tn.transpose(x, -2, -1))
op("unsqueeze", "unsqueeze_copy")(lambda x, dim: tn.unsqueeze(x, dim))
op("broadcast_to")(lambda x, shape: tn.expand(x, sizes(shape)))
op("expand", "expand_copy")(lambda x, shape, implicit=False: tn.expand(x, sizes(shape)))
op("expand_as")(lambda x, other: tn.expand(x, other.shape))
op("select")(lambda x, dim, index: tn.select(x, dim, index))
op("slice")(lambda x, dim=0, start=None, end=None, step=1: piece(x, dim, start, end, step))
op("contiguous")(lambda x, memory_format=None: tn.contiguous(x))
op("clone", "alias_copy")(lambda x, memory_format=None: tn.clone(x))
op("flip")(lambda x, dims: tn.flip(x, list(dims)) if len(dims) else x)  # no axes are all axes in tenon
op("fliplr")(lambda x: tn.flip(x, [1]))
op("flipud")(lambda x: tn.flip(x, [0]))
op("repeat")(lambda x, *counts: tn.repeat(x, sizes(counts)))
op("tril")(lambda x, k=0, diagonal=0: tn.tril(x, k or diagonal))
op("triu")(lambda x, k=0, diagonal=0: tn.triu(x, k or diagonal))
op("cat")(lambda xs, dim=0: tn.cat(list(xs), dim))
op("stack")(lambda xs, dim=0: tn.stack(list(xs), dim))


def sizes(shape):
    shape = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape
    return tuple(int(s) for s in shape)


def piece(x, dim, start, end, step):
    return tn.slice(x, dim, 0 if start is None else start, 2**62 if end is None else end, 1 if step is None else step)


@op("squeeze", "squeeze_copy", "squeeze.multiple")
def squeeze(x, *dim):
    if not dim:
        return tn.squeeze_all(x)
    dims = dim[0] if isinstance(dim[0], (tuple, list)) else dim
    for d in sorted((d % max(x.dim(), 1) for d in dims), reverse=True):
        x = tn.squeeze(x, d)
    return x


@op("movedim")
def movedim(x, source, to):
    source, to = ([v] if isinstance(v, int) else v for v in (source, to))
    order = [None] * x.dim()
    for s, t in zip(source, to):
        order[t] = s % x.dim()
    rest = iter(i for i in range(x.dim()) if i not in order)
    return tn.permute(x, [next(rest) if o is None else o for o in order])


@op("narrow", "narrow_copy")
def narrow(x, dim, start, length):
    start = int(number(start))
    return tn.narrow(x, dim, start + x.shape[dim] if start < 0 else start, length)


@op("split", "unsafe_split")
def split(x, size, dim=0):
    return pieces(tn.split, x, size, dim) if isinstance(size, int) else no("sizes that differ")


op("chunk", "unsafe_chunk")(lambda x, n, dim=0: pieces(tn.chunk, x, n, dim))


def pieces(call, x, *where):
    out = (ctypes.c_void_p * 64)()
    count = call(x, *where, ctypes.addressof(out), 64)
    if count < 0:
        raise Refused(tn.error())
    return [T(h) for h in out[:count]]


op("unbind", "unbind_copy")(lambda x, dim=0: pieces(tn.unbind, x, dim))
op("unflatten")(lambda x, dim, shape: tn.unflatten(x, dim, sizes((shape,))))
op("diagonal", "diagonal_copy")(lambda x, offset=0, dim1=0, dim2=1: tn.diagonal(x, offset, dim1, dim2))
op("linalg.diagonal")(lambda x, *, offset=0, dim1=-2, dim2=-1: tn.diagonal(x, offset, dim1, dim2))
op("diag")(lambda x, diagonal=0: tn.diag(x, diagonal))


@op("roll")
def roll(x, shifts, dims=()):
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    by = (ctypes.c_int64 * len(shifts))(*shifts)
    along = (ctypes.c_int * max(len(dims), 1))(*dims)
    return tn.roll(x, ctypes.addressof(by), ctypes.addressof(along) if dims else 0, len(shifts))


@op("einsum")
def einsum(xs, equation):
    array = (ctypes.c_void_p * len(xs))(*[x.handle for x in xs])
    return tn.einsum(equation, len(xs), ctypes.addressof(array))


@op("meshgrid.variadic_tensors", "meshgrid.list_of_tensors")
def meshgrid(*xs, indexing="ij"):
    xs = list(xs[0]) if isinstance(xs[0], (list, tuple)) else list(xs)
    out = (ctypes.c_void_p * len(xs))()
    tn.meshgrid(xs, indexing == "xy", ctypes.addressof(out))
    return [T(h) for h in out]


@op("repeat_interleave")
def repeat_interleave(x, repeats, dim=None, output_size=None):
    if is_tensor(repeats):
        raise No("a count for each")
    return tn.repeat_interleave(x if dim is not None else tn.flatten(x, 0, -1), repeats, dim or 0)


op("tile")(lambda x, counts: tn.repeat(x, (1,) * (x.dim() - len(counts)) + tuple(counts)))
op("hstack")(lambda xs: no("a single value") if not xs[0].dim() else tn.cat(list(xs), 0 if xs[0].dim() == 1 else 1))
op("vstack")(lambda xs: no("rows to be made") if xs[0].dim() < 2 else tn.cat(list(xs), 0))


@op("broadcast_tensors")
def broadcast_tensors(*xs):
    shape = torch.broadcast_shapes(*(x.shape for x in xs))
    return [tn.expand(x, tuple(shape)) for x in xs]


@op("__getitem__")
def getitem(x, index):
    index = list(index) if isinstance(index, tuple) else [index]
    if len(index) == 1 and is_tensor(index[0]) and index[0].dtype == torch.bool and index[0].shape == x.shape:
        return tn.masked_select(x, index[0])
    if all(is_tensor(i) and i.dtype in (torch.int64, torch.int32) for i in index):
        return tn.index(x, index)
    if not all(i is Ellipsis or i is None or isinstance(i, slice) or
               (isinstance(i, numbers.Integral) and not isinstance(i, bool)) for i in index):
        raise No("an index of tensors beside something else, or a list")
    real = sum(i is not None and i is not Ellipsis for i in index)
    at = next((k for k, i in enumerate(index) if i is Ellipsis), len(index))
    index[at:at + 1] = [slice(None)] * (x.dim() - real)
    axis = 0
    for i in index:
        if i is None:
            x = tn.unsqueeze(x, axis)
        elif isinstance(i, slice):
            x = piece(x, axis, i.start, i.stop, i.step)
        else:
            x = tn.select(x, axis, int(i))
            continue
        axis += 1
    return x


CASTS = {"bfloat16": torch.bfloat16, "bool": torch.bool, "byte": torch.uint8, "double": torch.float64,
         "float": torch.float32, "half": torch.float16, "int": torch.int32, "long": torch.int64}
for name, dtype in CASTS.items():
    op(name, special="unary")(lambda x, memory_format=None, dtype=dtype: tn.to_dtype(x, dtype))


# ---- making tensors; random numbers

def made(dtype, default=torch.float32):
    dtype = dtype or default
    if dtype not in DTYPES:
        raise No(f"dtype={dtype}")
    return dtype


CPU = {"type": 0, "index": 0}
op("empty_like", shapes=True)(lambda x, dtype=None, **k: tn.empty_as(x.shape, made(dtype, x.dtype), CPU))
for name, value in {"zeros": 0, "ones": 1}.items():
    op(name + "_like")(lambda x, dtype=None, value=value, **k: tn.full_as(x.shape, value, made(dtype, x.dtype), CPU))
    op("new_" + name)(lambda x, size, dtype=None, value=value, **k:
                      tn.full_as(tuple(size), value, made(dtype, x.dtype), CPU))
    op(name)(lambda size, dtype=None, value=value, **k: tn.full_as(sizes((size,)), value, made(dtype), CPU))
op("full_like")(lambda x, value, dtype=None, **k: tn.full_as(x.shape, number(value), made(dtype, x.dtype), CPU))
op("new_full")(lambda x, size, value, dtype=None, **k:
               tn.full_as(tuple(size), number(value), made(dtype, x.dtype), CPU))
op("new_empty", shapes=True)(lambda x, size, dtype=None, **k: tn.empty_as(tuple(size), made(dtype, x.dtype), CPU))
op("empty", shapes=True)(lambda size, dtype=None, **k: tn.empty_as(sizes((size,)), made(dtype), CPU))
op("full")(lambda size, value, dtype=None, **k: tn.full_as(tuple(size), number(value), made(dtype), CPU))
op("scalar_tensor")(lambda value, dtype=None, **k: tn.full_as((), number(value), made(dtype), CPU))


@op("eye")
def eye(n, m=None, dtype=None, **k):
    if m not in (None, n):
        raise No("not square")
    return tn.to_dtype(tn.eye(n), made(dtype))


@op("arange")
def arange(start, end=None, step=1, dtype=None, **k):
    start, end = (0, start) if end is None else (start, end)
    whole = all(isinstance(b, int) for b in (start, end, step))
    return tn.arange(number(start), number(end), number(step), made(dtype, torch.int64 if whole else torch.float32))


@op("linspace")
def linspace(start, end, steps, dtype=None, **k):
    dtype = made(dtype)
    if dtype not in (torch.float32, torch.float64):
        raise No("a dtype that is no default dtype")
    tn.set_default_dtype(dtype)
    try:
        return tn.linspace(number(start), number(end), int(steps))
    finally:
        tn.set_default_dtype(torch.float32)


def floats(dtype):
    return dtype if dtype.is_floating_point else no("integers")


op("rand_like", seeded=True)(lambda x, dtype=None, **k: tn.rand_as(x.shape, floats(made(dtype, x.dtype)), CPU))
op("randn_like", seeded=True)(lambda x, dtype=None, **k: tn.randn_as(x.shape, floats(made(dtype, x.dtype)), CPU))
op("randn", seeded=True)(lambda *size, dtype=None, **k: tn.randn_as(sizes(size), floats(made(dtype)), CPU))


@op("randint", seeded=True)
def randint(*args, dtype=None, **k):
    low, high, size = (0, *args) if len(args) == 2 else args
    if made(dtype, torch.int64) != torch.int64:
        raise No("a dtype that is not i64")
    return tn.randint(low, high, tuple(size))


op("randint_like", seeded=True)(lambda x, *bounds, dtype=None, **k: randint(*bounds, x.shape, dtype=dtype or x.dtype))


def drawn(name):
    def call(x, a=0.0, b=1.0, generator=None):
        y = tn.clone(x)
        getattr(tn, name)(tn.detach(y), float(a), float(b))
        return y
    return call


op("uniform", seeded=True)(drawn("uniform_"))
op("normal.in_place", seeded=True)(drawn("normal_"))


# ---- reductions

def reduce(name):
    def call(x, dim=None, keepdim=False, dtype=None):
        if name in ("sum", "mean") and dim is None and not keepdim:
            return getattr(tn, name + "_all")(as_dtype(x, dtype))
        return getattr(tn, name)(as_dtype(x, dtype), axes(dim), keepdim)
    return call


for name in "sum mean prod any all amax amin logsumexp".split():
    op(name, special="rows")(reduce(name))
op("max.reduction_no_dim", special="rows")(tn.max_all)
op("min.reduction_no_dim", special="rows")(tn.min_all)
op("aminmax", special="rows")(lambda x, dim=None, keepdim=False:
                              [tn.amin(x, axes(dim), keepdim), tn.amax(x, axes(dim), keepdim)])


def with_index(call, x, *more):
    index = Out()
    return [call(x, *more, index), index.get()]


def extreme(name):
    return lambda x, dim, keepdim=False: with_index(getattr(tn, name), x, dim, keepdim)


op("max.reduction_with_dim", special="rows")(extreme("max"))
op("min.reduction_with_dim", special="rows")(extreme("min"))


@op("median", special="rows")
def median(x, dim=None, keepdim=False):
    if dim is None:
        return tn.median(tn.flatten(x, 0, -1), 0, False, None)
    return extreme("median")(x, dim, keepdim)


def place(name):
    def call(x, dim=None, keepdim=False):
        if dim is None:
            y = getattr(tn, name)(tn.flatten(x, 0, -1), 0, False)
            return tn.reshape(y, (1,) * x.dim()) if keepdim else y
        return getattr(tn, name)(x, dim, keepdim)
    return call


op("argmax", special="rows")(place("argmax"))
op("argmin", special="rows")(place("argmin"))


def spread(name, mean=False):
    def call(x, dim=None, unbiased=None, *, correction=None, keepdim=False):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        by = number(correction) if correction is not None else 1.0 if unbiased is None else float(unbiased)
        y = getattr(tn, name)(x, axes(dim), by, keepdim)
        return [y, tn.mean(x, axes(dim), keepdim)] if mean else y
    return call


for name in ("var", "std"):
    op(name, name + ".unbiased", special="rows")(spread(name))
    op(name + "_mean", name + "_mean.unbiased")(spread(name, True))


@op("linalg.vector_norm", special="rows")
def vector_norm(x, ord=2, dim=None, keepdim=False, dtype=None):
    return tn.norm(as_dtype(x, dtype), number(ord), axes(dim), keepdim)


@op("norm", "norm.inf", "norm.fro")
def norm(x, p="fro", dim=None, keepdim=False, dtype=None):
    if p == "nuc":
        raise No("the nuclear norm")
    return vector_norm(x, 2 if p in ("fro", None) else p, dim, keepdim, dtype)


@op("linalg.norm")
def linalg_norm(x, ord=None, dim=None, keepdim=False, dtype=None):
    if ord is not None and (isinstance(ord, str) or len(axes(dim) or range(x.dim())) != 1):
        raise No("a norm of matrices")
    return vector_norm(x, 2 if ord is None else ord, dim, keepdim, dtype)


op("dist")(lambda a, b, p=2: tn.norm(tn.sub(a, b), number(p), None, False))
for name in ("cumsum", "cumprod"):
    op(name, special="rows")(lambda x, dim, dtype=None, name=name: getattr(tn, name)(as_dtype(x, dtype), dim))


@op("sum_to_size")
def sum_to_size(x, *size):
    size, front = sizes(size), x.dim() - len(sizes(size))
    dims = [i for i in range(x.dim()) if i < front or (size[i - front] == 1 and x.shape[i] != 1)]
    if not dims and not x.dtype.is_floating_point:
        raise No("nothing to add")
    return tn.reshape(tn.sum(x, dims, True) if dims else x, size)


def soft(name, negate=False):
    def call(x, dim=None, dtype=None, **k):
        return getattr(tn, name)(as_dtype(tn.neg(x) if negate else x, dtype), dim)
    return call


op("softmax", "softmax.with_dtype", special="rows")(soft("softmax"))
op("log_softmax", "log_softmax.with_dtype", special="rows")(soft("log_softmax"))
op("nn.functional.softmin", "nn.functional.softmin.with_dtype")(soft("softmax", True))


# ---- products

op("matmul", "mm", "bmm", "mv", "dot", "vdot", "linalg.vecdot.none")(tn.matmul)
op("__rmatmul__")(lambda a, b: tn.matmul(b, a))
op("outer")(tn.outer)
op("nn.functional.linear")(lambda x, weight, bias=None: tn.linear(x, weight, bias))


@op("inner")
def inner(a, b):
    if not a.dim() or not b.dim():
        return tn.mul(a, b)
    if b.dim() > 2:
        raise No("more than two axes")
    return tn.matmul(a, tn.transpose(b, -2, -1) if b.dim() == 2 else b)


# ---- indexing

op("gather")(lambda x, dim, index, sparse_grad=False: tn.gather(x, dim, index))
op("index_select")(lambda x, dim, index: tn.index_select(x, dim, index))
op("scatter_add")(lambda x, dim, index, source: tn.scatter_add(x, dim, index, source))
op("scatter_reduce.sum")(lambda x, dim, index, source, reduce, include_self=True:
                         tn.scatter_add(x, dim, index, source) if include_self else no("include_self="))


op("index_add")(lambda x, dim, index, source, alpha=1:
                tn.index_add(x, dim, index, source) if alpha == 1 else no("alpha="))
op("masked_select")(tn.masked_select)
op("masked_scatter")(tn.masked_scatter)


@op("scatter")
def scatter(x, dim, index, source, reduce=None):
    absent(reduce=reduce)
    if not is_tensor(source):
        raise No("a number")
    for axis in range(x.dim()):  # PyTorch reads as much of it as the index has
        source = tn.narrow(source, axis, 0, index.shape[axis])
    return tn.scatter(x, dim, index, source)


@op("take_along_dim")
def take_along_dim(x, index, dim=None):
    if dim is None:
        return tn.gather(tn.flatten(x, 0, -1), 0, tn.flatten(index, 0, -1))
    dim = dim % x.dim()
    others = lambda t: t.shape[:dim] + (1,) + t.shape[dim + 1:]
    shape = torch.broadcast_shapes(others(x), others(index))
    full = lambda t: tn.expand(t, tuple(t.shape[i] if i == dim else n for i, n in enumerate(shape)))
    return tn.gather(full(x), dim, full(index))


@op("nn.functional.embedding")
def embedding(weight, index, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    absent(max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return tn.embedding(weight, index, padding)


# ---- sorting, counting, sampling

op("sort", special="rows")(lambda x, dim=-1, descending=False, stable=False: with_index(tn.sort, x, dim, descending))
op("argsort", special="rows")(lambda x, dim=-1, descending=False, stable=False: tn.argsort(x, dim, descending))
op("msort")(lambda x: tn.sort(x, 0, False, None))
op("topk")(lambda x, k, dim=-1, largest=True, sorted=True: with_index(tn.topk, x, k, dim, largest))
op("nonzero", "argwhere", special="unary")(lambda x, as_tuple=False: no("as_tuple=") if as_tuple else tn.nonzero(x))


@op("unique")
def unique(x, sorted=True, return_inverse=False, return_counts=False, dim=None):
    if dim is not None:
        raise No("dim=")
    inverse, counts = (Out() if wanted else None for wanted in (return_inverse, return_counts))
    y = [tn.unique(x, inverse, counts)]
    return y + [o.get() for o in (inverse, counts) if o] if inverse or counts else y[0]


@op("bincount")
def bincount(x, weights=None, minlength=0):
    return tn.bincount(x, minlength) if weights is None else no("weights=")


op("multinomial", shapes=True)(lambda p, n, replacement=False: tn.multinomial(p, n, replacement))
op("nn.functional.one_hot")(lambda index, num_classes=-1: tn.one_hot(index, num_classes))


# ---- layers as functions

@op("nn.functional.layer_norm", special="norm")
def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    return tn.layer_norm(x, len(shape), weight, bias, eps)


@op("nn.functional.rms_norm")
def rms_norm(x, shape, weight=None, eps=None):
    return tn.rms_norm(x, len(shape), weight, -1.0 if eps is None else no("eps below 0") if eps < 0 else eps)


@op("nn.functional.group_norm")
def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    return tn.group_norm(x, groups, weight, bias, eps)


@op("nn.functional.batch_norm", "nn.functional.batch_norm.without_cudnn")
def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    return tn.batch_norm(x, weight, bias, mean, var, training, momentum, eps)


@op("nn.functional.dropout")
def dropout(x, p=0.5, training=True, inplace=False):
    return tn.dropout(x, p, training) if not training or p in (0.0, 1.0) else no("random masks, which differ by design")


def three(x):
    """One number for each of three axes; a single one, in a list or not, is for all."""
    x = list(x) if isinstance(x, (tuple, list)) else [x]
    return (x * 3)[:3] if len(x) == 1 else x + [0] * (3 - len(x))


def conv_spec(stride, padding, dilation, groups, output_padding=0):
    where = {"same": padding == "same"} if isinstance(padding, str) else {"padding": three(padding)}
    return {"stride": three(stride), "dilation": three(dilation), "groups": groups,
            "output_padding": three(output_padding), **where}


for name in ("conv1d", "conv2d", "conv3d"):
    op("nn.functional." + name)(
        lambda x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, name=name: getattr(tn, name)(
            x, weight, bias, conv_spec(stride, padding, dilation, groups)))
for name in ("conv_transpose1d", "conv_transpose2d"):
    op("nn.functional." + name)(
        lambda x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, name=name:
        getattr(tn, name)(x, weight, bias, conv_spec(stride, padding, dilation, groups, output_padding)))


def pool_spec(kernel, stride, padding, dilation=1, ceil_mode=False, exclude=False, divisor=None):
    return {"kernel": pair(kernel), "stride": [0, 0] if stride is None or stride == () else pair(stride),
            "padding": pair(padding), "dilation": pair(dilation), "ceil_mode": ceil_mode, "exclude_padding": exclude,
            "divisor": divisor or 0}


def max_pool(name, special=None):
    @op("nn.functional." + name, special=special)
    def run(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        spec = pool_spec(kernel_size, stride, padding, dilation, ceil_mode)
        return with_index(getattr(tn, name + "_with_indices"), x, spec) if return_indices else getattr(tn, name)(x, spec)


def avg_pool(name, special=None):
    @op("nn.functional." + name, special=special)
    def run(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        return getattr(tn, name)(x, pool_spec(kernel_size, stride, padding, 1, ceil_mode, not count_include_pad,
                                              divisor_override))


max_pool("max_pool2d", "pool")
avg_pool("avg_pool2d", "pool")


def both(x, size):
    size = list(size) if isinstance(size, (tuple, list)) else [size, size]
    return [x.shape[i - 2] if s is None else s for i, s in enumerate(size)]


op("nn.functional.adaptive_avg_pool2d")(lambda x, size: tn.adaptive_avg_pool2d(x, *both(x, size)))
op("nn.functional.adaptive_max_pool2d")(
    lambda x, size, return_indices=False: with_index(tn.adaptive_max_pool2d, x, *both(x, size)) if return_indices else
    tn.adaptive_max_pool2d(x, *both(x, size), None))
op("nn.functional.adaptive_max_pool1d")(
    lambda x, size, return_indices=False: with_index(tn.adaptive_max_pool1d, x, pair(size)[0]) if return_indices else
    tn.adaptive_max_pool1d(x, pair(size)[0], None))


max_pool("max_pool1d")
avg_pool("avg_pool1d")
op("nn.functional.adaptive_avg_pool1d")(lambda x, size: tn.adaptive_avg_pool1d(x, pair(size)[0]))


PAD_MODES = {name: i for i, name in enumerate(("constant", "reflect", "replicate", "circular"))}


def pad(x, pad, mode="constant", value=None):
    return tn.pad(x, list(pad), PAD_MODES[mode], float(number(value)) if value is not None else 0.0)


op(*(f"nn.functional.pad.{mode}" for mode in PAD_MODES))(pad)
op("nn.functional.pad.replicate_negative")(pad)
op("constant_pad_nd")(lambda x, by, value=0: pad(x, by, "constant", value))


def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None,
                antialias=False):
    modes = {"nearest": 0, "nearest-exact": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 3}
    if mode not in modes:
        raise No(f"mode={mode}")
    many = lambda v: [] if v is None else list(v) if isinstance(v, (tuple, list)) else [v] * (x.dim() - 2)
    three = lambda v: v + [0] * (3 - len(v))
    if recompute_scale_factor:
        size, scale_factor = [int(n * s) for n, s in zip(x.shape[2:], many(scale_factor))], None
    return tn.interpolate(x, {"size": three(many(size)), "scale": three([float(v) for v in many(scale_factor)]),
                              "mode": modes[mode], "align_corners": bool(align_corners), "antialias": antialias})


op(*(f"nn.functional.interpolate.{mode}" for mode in
     ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic")))(interpolate)
for mode in "nearest", "bilinear":
    op(f"nn.functional.upsample_{mode}")(
        lambda x, size=None, scale_factor=None, mode=mode: interpolate(
            x, size, scale_factor, mode, True if mode == "bilinear" else None))


op("nn.functional.pixel_shuffle")(lambda x, upscale_factor: tn.pixel_shuffle(x, upscale_factor))
op("nn.functional.pixel_unshuffle")(lambda x, downscale_factor: tn.pixel_unshuffle(x, downscale_factor))


@op("nn.functional.scaled_dot_product_attention", special="attention")
def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if dropout_p:
        raise No("random masks, which differ by design")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = tn.logical_not(attn_mask)
    return tn.scaled_dot_product_attention(q, k, v, attn_mask, is_causal, 0.0 if scale is None else scale)


# ---- losses

def old(size_average, reduce):
    absent(size_average=size_average, reduce=reduce)


def entropy_options(weight, ignore_index, text, label_smoothing=0.0):
    use = ignore_index != -100
    return {"use_ignore_index": use, "ignore_index": ignore_index if use else 0, "reduction": reduction(text),
            "label_smoothing": label_smoothing, **({"weight": weight} if weight is not None else {})}


@op("nn.functional.cross_entropy", special="entropy")
def cross_entropy(x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                  label_smoothing=0.0):
    old(size_average, reduce)
    return tn.cross_entropy_with(x, target, entropy_options(weight, ignore_index, reduction, label_smoothing))


@op("nn.functional.nll_loss", special="entropy")
def nll_loss(x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    old(size_average, reduce)
    return tn.nll_loss(x, target, entropy_options(weight, ignore_index, reduction))


@op("nn.functional.linear_cross_entropy", "nn.functional.linear_cross_entropy.chunked",
    "nn.functional.linear_cross_entropy.chunked_none")
def linear_cross_entropy(x, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean",
                         ignore_index=None, label_smoothing=0.0, options=None):  # options: how PyTorch goes by pieces
    if linear_weight.dim() != 2:
        raise No("classes of several axes")
    ignore_index = -100 if ignore_index is None else ignore_index
    return tn.linear_cross_entropy_with(x, linear_weight, linear_bias, target,
                                        entropy_options(weight, ignore_index, reduction, label_smoothing))


def loss(name, extra=None):
    def call(x, target, size_average=None, reduce=None, reduction="mean", weight=None, **k):
        old(size_average, reduce)
        absent(weight=weight)
        more = [float(k.pop(*extra))] if extra else []
        absent(**k)
        return getattr(tn, name)(x, target, *more, REDUCTIONS[reduction])
    return call


op("nn.functional.mse_loss", special="loss")(loss("mse_loss"))
op("nn.functional.l1_loss", special="loss")(loss("l1_loss"))
op("nn.functional.smooth_l1_loss", special="loss")(loss("smooth_l1_loss", ("beta", 1.0)))
op("nn.functional.huber_loss", special="loss")(loss("huber_loss", ("delta", 1.0)))


@op("nn.functional.binary_cross_entropy_with_logits", special="loss")
def bce_with_logits(x, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
    old(size_average, reduce)
    absent(weight=weight)
    return tn.bce_with_logits(x, target, pos_weight, REDUCTIONS[reduction])


@op("nn.functional.binary_cross_entropy")
def bce_loss(x, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    old(size_average, reduce)
    return tn.bce_loss(x, target, weight, REDUCTIONS[reduction])


@op("nn.functional.poisson_nll_loss", special="loss")
def poisson_nll_loss(x, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None,
                     reduction="mean"):
    old(size_average, reduce)
    return tn.poisson_nll_loss(x, target, log_input, full, eps, REDUCTIONS[reduction])


@op("nn.functional.gaussian_nll_loss")
def gaussian_nll_loss(x, target, var, full=False, eps=1e-6, reduction="mean"):
    if not isinstance(var, T):
        raise No("var= as a number")
    if var.dim() == x.dim() - 1:
        var = tn.unsqueeze(var, -1)
    return tn.gaussian_nll_loss(x, target, var, full, eps, REDUCTIONS[reduction])


@op("nn.functional.triplet_margin_loss")
def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None,
                        reduce=None, reduction="mean"):
    old(size_average, reduce)
    return tn.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, REDUCTIONS[reduction])


@op("nn.functional.ctc_loss")
def ctc_loss(log_p, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    steps, labels = (x if isinstance(x, T) else plain(torch.tensor(x)) for x in (input_lengths, target_lengths))
    return tn.ctc_loss(log_p, targets, steps, labels, blank, zero_infinity, REDUCTIONS[reduction])


@op("nn.functional.normalize")
def normalize(x, p=2.0, dim=1, eps=1e-12, out=None):
    return tn.normalize(x, p, dim, eps)


@op("nn.functional.cosine_similarity")
def cosine_similarity(a, b, dim=1, eps=1e-8):
    return tn.cosine_similarity(a, b, dim, eps)


@op("nn.functional.kl_div", special="loss")
def kl_div(x, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    old(size_average, reduce)
    return tn.kl_div(x, target, log_target, reduction == "batchmean", REDUCTIONS.get(reduction, 0))
