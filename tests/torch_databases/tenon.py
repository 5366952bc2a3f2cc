"""tenon for Python, as much of it as comparing with PyTorch needs: every function of the headers by its name.

    load("build")                        reads the headers beside this folder and opens build/src/libtenon.so
    with scope(): y = tn.softmax(x, 1)   tn_softmax; x and y are T, a failure raises Refused

Signatures and structs are read from the headers, so a new function or field needs nothing here. Arguments: a T,
or None for TN_NONE; a number; a sequence where the function takes an array and its length, or a tn_shape; a dict for
a struct; a torch.dtype for a tn_dtype; Out() for a pointer that receives a handle.
"""
import ctypes as c
import pathlib
import re

import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
          torch.bool]  # as tn_dtype numbers them
SHORT = dict(zip(DTYPES, "f32 f64 bf16 f16 i64 i32 u8 bool".split()))
REDUCTIONS = {"mean": 0, "sum": 1, "none": 2}
SIZES = {"TN_MAX_RANK": 8, "TN_OPTIM_NUMBERS": 8, "TN_OPTIM_STATES": 6}  # enums of the headers


class Refused(Exception):
    """tenon failed with this message."""


class No(Exception):
    """The sample asks for what tenon has no call for: it is counted, not run."""


class Handle:
    """A module, list or optimizer."""

    def __init__(self, handle):
        self.handle = handle


class T(Handle):
    """A tensor of the current scope; torch is what it was made from, or None."""

    def __init__(self, handle, made_from=None):
        super().__init__(handle)
        self.torch = made_from

    @property
    def shape(self):
        return tuple(tn.size(self, i) for i in range(tn.rank(self)))

    @property
    def dtype(self):
        return DTYPES[tn.dtype_of(self)]

    def dim(self):
        return tn.rank(self)


class Out:
    """The place for one handle that a function gives back beside its result."""

    def __init__(self):
        self.place = c.c_void_p()

    def get(self):
        return T(self.place.value)


SIMPLE = {"int": c.c_int, "int64_t": c.c_int64, "uint64_t": c.c_uint64, "uint32_t": c.c_uint32, "size_t": c.c_size_t,
          "double": c.c_double, "float": c.c_float, "bool": c.c_bool, "void": None, "char": c.c_char,
          "unsigned char": c.c_ubyte, "unsigned": c.c_uint}


class Library:
    def __init__(self):
        self.structs, self.prototypes, self.functions = {}, {}, {}

    def open(self, build):
        root = pathlib.Path(__file__).resolve().parent.parent.parent
        text = "".join(h.read_text() for h in sorted((root / "include" / "tenon").glob("*.h")))
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = re.sub(r"^\s*#(\\\n|.)*$", " ", text, flags=re.M)
        self.read_structs(text)
        for result, name, args in re.findall(
                r"TN_API\s+(?:TN_MUST_USE\s+)?([\w\s]+?[\s*])tn_(\w+)\(([^;]*?)\)\s*(?:TN_\w+\([^)]*\))?;", text):
            self.prototypes[name] = (result, args)
        self.lib = c.CDLL(str(pathlib.Path(build) / "src" / "libtenon.so"))
        self.none = c.addressof(c.c_char.in_dll(self.lib, "tn_none_object"))
        self.no_module = c.addressof(c.c_char.in_dll(self.lib, "tn_no_module_object"))

    def read_structs(self, text):
        bodies = dict((n, b) for b, n in re.findall(r"typedef struct \w+ \{([^{}]*)\} (\w+);", text))
        bodies.update(re.findall(r"^struct (\w+) \{([^{}]*)\};", text, flags=re.M))
        for same, name in re.findall(r"typedef (tn_\w+) (tn_\w+);", text):
            bodies[name] = bodies.get(same)
        for name, body in bodies.items():
            fields = []
            for line in (body or "").split(";"):
                line = " ".join(line.split())
                if not line:
                    continue
                if "(*" in line:
                    fields.append((re.search(r"\(\*(\w+)\)", line).group(1), c.c_void_p))
                    continue
                base, names = re.match(r"(?:const )?((?:unsigned (?=\w+ ))?\w+) ?(.*)", line).groups()
                for one in names.split(","):
                    star, field, size = re.match(r"\s*(\**)(?:const )?(\w+)\s*(?:\[(\w+)\])?", one).groups()
                    kind = c.c_void_p if star else self.kind(base)
                    fields.append((field, kind * (SIZES.get(size) or int(size)) if size else kind))
            if body:
                self.structs[name] = type(name, (c.Structure,), {"_fields_": fields})

    def kind(self, text):
        """The ctypes type of a C type's text."""
        text = re.sub(r"\bconst\b", "", text)
        if "*" in text or "(" in text:
            return c.c_char_p if re.fullmatch(r"\s*char\s*\*\s*", text) else c.c_void_p
        text = " ".join(text.split())
        return SIMPLE[text] if text in SIMPLE else self.structs.get(text, c.c_int)  # what is left are enums

    def __getattr__(self, name):
        def call(*args):  # the library may be opened later
            if name not in self.functions:
                self.functions[name] = self.make(name)
            return self.functions[name](*args)
        return call

    def make(self, name):
        result, text = self.prototypes[name]
        params = []
        for arg in [] if text.strip() == "void" else re.split(r",(?![^(]*\))", text):
            head, _ = re.match(r"\s*(.*?)(\w+)\s*(?:\[\w*\])?\s*$", arg, flags=re.S).groups()
            params.append(head if "(*" not in arg else "void *")
        function = getattr(self.lib, "tn_" + name)
        function.argtypes = [self.kind(p) for p in params]
        function.restype = self.kind(result)

        def call(*args):
            values, kept, given = [], [], list(args)
            i = 0
            while i < len(params):
                value = given.pop(0) if given else None
                params_i = params[i]
                if isinstance(value, (list, tuple)) and "*" in params_i:
                    item = c.c_void_p if "tn_" in params_i else self.kind(params_i.replace("*", ""))
                    array = (item * max(len(value), 1))(*[self.value(item, v, kept) for v in value])
                    kept.append(array)
                    values += [c.cast(array, c.c_void_p), len(value)]
                    i += 2
                    continue
                if value is None and re.search(r"\bint\s*\*", params_i):  # TN_AXES: all of them
                    values += [None, 0]
                    i += 2
                    continue
                values.append(self.value(function.argtypes[i], value, kept, "tn_tensor" in params_i))
                i += 1
            assert not given, f"tn_{name}: {len(given)} arguments too many"
            answer = function(*values)
            if result.strip().endswith("*") and "char" not in result and "void" not in result:
                if not answer:
                    raise Refused(self.error())
                return (T if "tn_tensor" in result else Handle)(answer)
            if result.strip() == "tn_status" and answer and name != "error_status":
                raise Refused(self.error())
            return answer
        return call

    def value(self, kind, value, kept, tensor=False):
        """A Python value as that ctypes type."""
        if isinstance(value, Handle):
            return value.handle
        if isinstance(value, Out):
            return c.addressof(value.place)
        if isinstance(value, c.Structure) and not (isinstance(kind, type) and issubclass(kind, c.Structure)):
            return c.addressof(value)
        if isinstance(value, torch.dtype):
            return DTYPES.index(value)
        if kind is self.structs.get("tn_shape"):
            if len(value) > 8:
                raise Refused("a shape of more than 8 axes cannot be written")
            return kind(len(value), (c.c_int64 * 8)(*value))
        if isinstance(value, dict) or (isinstance(kind, type) and issubclass(kind, c.Structure) and value is None):
            filled = kind()
            for field, v in (value or {}).items():
                of = dict(kind._fields_)[field]
                item = getattr(of, "_type_", None)
                if isinstance(v, (list, tuple)) and isinstance(item, type) and issubclass(item, c.Structure):
                    v = [tuple(x if t is not c.c_void_p else c.cast(c.c_char_p(x), t) for x, (_, t) in
                               zip(one, item._fields_)) for one in v]
                setattr(filled, field, of(*v) if isinstance(v, (list, tuple)) else
                        v.handle if isinstance(v, Handle) else v)
            return filled
        if value is None:
            return self.none if tensor else None
        if isinstance(value, str):
            return value.encode()
        return value

    def error(self):
        message = self.lib.tn_error
        message.restype = c.c_char_p
        text = message().decode(errors="replace")
        self.lib.tn_error_clear()
        return text


tn = Library()


class scope:
    """with scope(): everything that tenon makes inside is dropped at its end."""

    def __enter__(self):
        self.token = tn.scope_begin()

    def __exit__(self, *unused):
        tn.lib.tn_scope_end.argtypes = [type(self.token)]
        tn.lib.tn_scope_end(self.token)


def plain(t, dtype=None):
    """A row-major copy of a torch tensor."""
    t = t.detach().to(dtype or t.dtype).contiguous()
    if t.dtype not in DTYPES:
        raise No(f"a tensor of {t.dtype}")
    return T(tn.from_data(t.data_ptr() or 64, tuple(t.shape), t.dtype).handle, t)


def to_tenon(t, requires_grad=None):
    """A copy with the same strides, where views can make them; what lies between its elements is junk."""
    d = t.detach()
    if d.dtype not in DTYPES:
        raise No(f"a tensor of {d.dtype}")
    made = plain(d) if d.is_contiguous() or d.numel() == 0 or t.dim() > 8 else with_strides(d)
    made.torch = t
    if t.requires_grad if requires_grad is None else requires_grad:
        tn.set_requires_grad(made, True)
    return made


def with_strides(d):
    order = sorted((i for i in range(d.dim()) if d.size(i) > 1 and d.stride(i) > 0), key=lambda i: -d.stride(i))
    widths = [d.size(order[0])] if order else []
    for before, i in zip(order, order[1:]):
        if d.stride(before) % d.stride(i) or d.stride(before) // d.stride(i) < d.size(i):
            return plain(d)  # strides that overlap: no views of a plain tensor make them
        widths.append(d.stride(before) // d.stride(i))
    if not order or len(order) > 7:
        return plain(d)
    widths.append(d.stride(order[-1]))
    junk = float("nan") if d.is_floating_point() else 1
    base = torch.full(widths, junk, dtype=d.dtype)
    view = base
    for axis, i in enumerate(order):
        view = view.narrow(axis, 0, d.size(i))
    one = d
    for i in range(d.dim()):
        if i not in order:
            one = one.narrow(i, 0, 1)
    kept = sorted(order)
    one = one.reshape([d.size(i) for i in kept]).permute([kept.index(i) for i in order])
    view.select(-1, 0).copy_(one)
    y = plain(base)
    for axis, i in enumerate(order):
        if widths[axis] != d.size(i):
            y = tn.narrow(y, axis, 0, d.size(i))
    y = tn.select(y, -1, 0)
    if order != kept:
        y = tn.permute(y, [order.index(i) for i in kept])
    for i in range(d.dim()):
        if i not in order:
            y = tn.unsqueeze(y, i)
    return y if y.shape == tuple(d.shape) else tn.expand(y, tuple(d.shape))


def to_torch(y):
    """The values of a T as a torch tensor."""
    value = torch.empty(y.shape, dtype=y.dtype)
    if value.numel():
        tn.copy_out(y, value.data_ptr(), value.numel() * value.element_size(), y.dtype)
    return value


def gradients(outputs, seeds, inputs, create_graph=False):
    """tn_gradients: a list with None where an output does not depend on the input."""
    n, m = len(outputs), len(inputs)
    array = lambda items: (c.c_void_p * max(len(items), 1))(*[i.handle for i in items])
    grads = (c.c_void_p * max(m, 1))()
    function = tn.lib.tn_gradients
    function.argtypes = [c.c_int, c.c_void_p, c.c_void_p, c.c_int, c.c_void_p, c.c_void_p, c.c_int]
    if function(n, array(outputs), array(seeds), m, array(inputs), grads, 2 if create_graph else 0):
        raise Refused(tn.error())
    return [None if g == tn.none else T(g) for g in grads[:m]]
