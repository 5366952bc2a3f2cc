"""tenon opened by ctypes after many other libraries, and a step of gradient descent. usage: plugin.py LIBRARY"""
import ctypes as c
import importlib
import pkgutil
import sys

for module in pkgutil.iter_modules():  # the interpreter's own extensions, each a shared library
    if module.name in ("_ssl", "_hashlib", "_sqlite3", "_decimal", "_lzma", "_bz2", "_curses", "_uuid", "readline"):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass
for name in ("libgomp.so.1", "libstdc++.so.6", "libm.so.6"):
    try:
        c.CDLL(name)
    except OSError:
        pass


class Scope(c.Structure):
    _fields_ = [("depth", c.c_int64), ("serial", c.c_uint64)]


class Shape(c.Structure):
    _fields_ = [("rank", c.c_int), ("size", c.c_int64 * 8)]


tn = c.CDLL(sys.argv[1])
tn.tn_scope_begin.restype, tn.tn_scope_end.argtypes = Scope, [Scope]
for name, arguments in {"full": [Shape, c.c_double], "mul": [c.c_void_p] * 2, "matmul": [c.c_void_p] * 2,
                        "mean_all": [c.c_void_p], "grad": [c.c_void_p], "mul_scalar": [c.c_void_p, c.c_double],
                        "sub": [c.c_void_p] * 2}.items():
    f = getattr(tn, "tn_" + name)
    f.restype, f.argtypes = c.c_void_p, arguments
tn.tn_set_requires_grad.argtypes = [c.c_void_p, c.c_bool]
tn.tn_backward.argtypes = tn.tn_item.argtypes = [c.c_void_p]
tn.tn_item.restype = c.c_double
tn.tn_error.restype = c.c_char_p

scope = tn.tn_scope_begin()
w = tn.tn_full(Shape(2, (c.c_int64 * 8)(64, 64)), 3.0)
assert tn.tn_set_requires_grad(w, True) == 0, tn.tn_error()
assert tn.tn_backward(tn.tn_mean_all(tn.tn_mul(w, w))) == 0, tn.tn_error()  # 2 w / 4096
new = tn.tn_sub(w, tn.tn_mul_scalar(tn.tn_grad(w), 1024.0))
assert tn.tn_item(tn.tn_mean_all(tn.tn_matmul(new, new))) == 64 * 1.5 * 1.5, tn.tn_error()
assert not tn.tn_matmul(new, tn.tn_mean_all(new)) and b"tn_matmul" in tn.tn_error()
tn.tn_scope_end(scope)
print("ctypes: opened, trained")
