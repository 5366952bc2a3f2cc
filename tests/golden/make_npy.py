#!/usr/bin/env python3
"""Makes npy/*.npy by NumPy itself: one small array in every form that tn_npy_load reads.

usage: make_npy.py     (NumPy 2.4.6)
Element i, in row-major order, is 7 i mod 50, of signed numbers and floats minus 20; a bool whether i is divisible by 3.
"""
import pathlib

import numpy as np
from numpy.lib import format as npy

HERE = pathlib.Path(__file__).resolve().parent / "npy"


def values(dtype, shape):
    i = np.arange(int(np.prod(shape)))
    v = i % 3 == 0 if dtype == np.bool_ else i * 7 % 50 - (0 if np.dtype(dtype).kind == "u" else 20)
    return v.astype(dtype).reshape(shape)


def put(name, array, version=None):
    with open(HERE / f"{name}.npy", "wb") as file:
        npy.write_array(file, array, version=version)


HERE.mkdir(exist_ok=True)
for name in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 ?".split():
    dtype = np.dtype(name)
    put(dtype.name, values(dtype, (3, 4)))
put("big_float32", values(">f4", (3, 4)))
put("big_int16", values(">i2", (3, 4)))
put("fortran", np.asfortranarray(values("f8", (2, 3, 4))))
put("value", values("f4", ()))
put("empty", values("i8", (0, 3)))
put("line", values("f4", (12,)))
put("version_2", values("f4", (3, 4)), (2, 0))
put("version_3", values("f4", (3, 4)), (3, 0))
