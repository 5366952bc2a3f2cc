#!/usr/bin/env python3
"""What PyTorch prints, draws and counts, as C, for tests/tensor/test_print.c, test_random.c and test_tensor.c.

usage: tests/tensor/torch_cases.py print > tests/tensor/print_cases.h
       tests/tensor/torch_cases.py series > tests/tensor/series_cases.h
       tests/tensor/torch_cases.py random > tests/tensor/random_cases.h      (needs PyTorch 2; the tests do not)
"""
import math
import sys
import textwrap

import torch
from torch._tensor_str import _tensor_str

inf, nan = math.inf, math.nan
VERSION = torch.__version__.split("+")[0]
DTYPES = {
    "TN_F32": torch.float32, "TN_F64": torch.float64, "TN_F16": torch.float16, "TN_BF16": torch.bfloat16,
    "TN_I64": torch.int64, "TN_I32": torch.int32, "TN_U8": torch.uint8, "TN_BOOL": torch.bool,
}

# name, dtype, shape, values; or, instead of values, (start, step): start + i * step
PRINTS = [
    ("scalar", "TN_F32", [], [0.5]),
    ("scalar_whole", "TN_F32", [], [3]),
    ("scalar_int", "TN_I64", [], [-7]),
    ("scalar_bool", "TN_BOOL", [], [1]),
    ("scalar_tiny", "TN_F64", [], [1.25e-9]),
    ("scalar_nan", "TN_F32", [], [nan]),
    ("scalar_inf", "TN_F32", [], [-inf]),
    ("empty", "TN_F32", [0], []),
    ("empty_2d", "TN_F32", [0, 3], []),
    ("empty_int", "TN_I64", [2, 0], []),
    ("vector", "TN_F32", [3], [1.5, -2.25, 3.125]),
    ("whole", "TN_F32", [3], [1, 2, 300]),
    ("negative_whole", "TN_F32", [4], [1, -2, 0, 40]),
    ("zeros", "TN_F32", [2, 3], [0] * 6),
    ("negative_zero", "TN_F32", [3], [-0.0, 0.0, 1.0]),
    ("negative_zero_fraction", "TN_F32", [2], [-0.0, 0.5]),
    ("nans", "TN_F32", [3], [nan, nan, nan]),
    ("nan_whole", "TN_F32", [3], [nan, 1, 22]),
    ("nan_fraction", "TN_F32", [4], [nan, 1.5, inf, -inf]),
    ("inf_whole", "TN_F32", [3], [inf, 1, -inf]),
    ("inf_scientific", "TN_F32", [4], [inf, 1e-6, -inf, nan]),
    ("whole_range", "TN_F32", [2], [1, 1001]),
    ("whole_range_below", "TN_F32", [2], [1, 1000]),
    ("whole_large", "TN_F64", [2], [1e8, 2e8]),
    ("whole_large_above", "TN_F64", [2], [100000001.0, 2e8]),
    ("fraction_range", "TN_F32", [2], [0.5, 600]),
    ("fraction_small", "TN_F32", [2], [9e-5, 1e-4]),
    ("fraction_edge", "TN_F64", [2], [1e-4, 0.05]),
    ("fraction_rounding", "TN_F64", [4], [0.00005, 0.04995, 0.99995, 0.12345]),
    ("scientific_negative", "TN_F32", [3], [-1e10, 2.5, 3e-5]),
    ("scientific_three_digits", "TN_F64", [2], [1e-150, 1e150]),
    ("subnormal", "TN_F32", [2], [1e-45, 1.0]),
    ("largest_f64", "TN_F64", [2], [1.7976931348623157e308, 1.0]),
    ("third", "TN_F32", [2], [1 / 3, 2 / 3]),
    ("half", "TN_F16", [3], [0.1, 65504, -1]),
    ("bfloat", "TN_BF16", [3], [0.1, 1, -3.14]),
    ("ints", "TN_I64", [2, 3], [1, -20, 300, 4, 5, 6]),
    ("int_limits", "TN_I64", [2], [-(2 ** 62), 2 ** 62]),
    ("i32", "TN_I32", [3], [-2147483648, 0, 7]),
    ("u8", "TN_U8", [4], [0, 7, 255, 10]),
    ("bools", "TN_BOOL", [2, 2], [1, 0, 0, 1]),
    ("bools_true", "TN_BOOL", [3], [1, 1, 1]),
    ("matrix", "TN_F32", [2, 3], [0.1, -1.25, 3, 4, 5.5, -60]),
    ("cube", "TN_F32", [2, 2, 3], (0, 1)),
    ("four_axes", "TN_I64", [2, 2, 2, 2], (0, 1)),
    ("five_axes", "TN_F32", [1, 2, 1, 2, 1], (0.5, 1)),
    ("ones_axes", "TN_F32", [1, 1, 1], [2.5]),
    ("wide_row", "TN_F32", [9], (0, 0.5)),
    ("wide_scientific", "TN_F32", [2, 8], (1e-6, 1e5)),
    ("wide_negative", "TN_F64", [2, 2, 9], (-4.25, 0.5)),
    ("wide_bools", "TN_BOOL", [2, 1, 2, 13], (0, 1)),
    ("wide_ints", "TN_I64", [1, 2, 26], (-26, 1)),
    ("long_row", "TN_F32", [30], (0, 0.5)),
    ("long_ints", "TN_I64", [60], (0, 1)),
    ("wrapped_matrix", "TN_F32", [2, 20], (-5, 0.25)),
    ("wrapped_cube", "TN_F64", [2, 1, 12], (-1000.5, 100)),
    ("exactly_1000", "TN_I64", [1000], (7, 0)),
    ("summary_vector", "TN_I64", [1001], (0, 1)),
    ("summary_vector_float", "TN_F32", [2000], (-1, 0.001)),
    ("summary_matrix", "TN_F32", [100, 50], (0, 1)),
    ("summary_few_columns", "TN_F32", [400, 3], (0, 0.5)),
    ("summary_few_rows", "TN_I64", [3, 400], (0, 1)),
    ("summary_six", "TN_F32", [6, 200], (0, 1)),
    ("summary_cube", "TN_F32", [20, 10, 10], (0, 1)),
    ("summary_four", "TN_I64", [8, 2, 9, 8], (0, 1)),
    ("summary_range_hidden", "TN_F32", [2001], (-1000, 1)),
]


def tensor_of(dtype, shape, values):
    n = math.prod(shape)
    if isinstance(values, tuple):
        values = [values[0] + i * values[1] for i in range(n)]
    wide = torch.float64 if DTYPES[dtype].is_floating_point else torch.int64
    return torch.tensor(values, dtype=wide).to(DTYPES[dtype]).reshape(shape)


def c_string(text):
    lines = text.replace("\\", "\\\\").replace('"', '\\"').split("\n")
    return "\n     ".join('"' + line + ("\\n" if i + 1 < len(lines) else "") + '"' for i, line in enumerate(lines))


def printed(tensor):
    """What print() shows, without "tensor(" and the columns below it, and without dtype."""
    return _tensor_str(tensor, 7).replace("\n" + 7 * " ", "\n")


def c_number(x):
    if isinstance(x, float):
        if math.isnan(x):
            return "NAN"
        if math.isinf(x):
            return "INFINITY" if x > 0 else "-INFINITY"
    return repr(x)


def rows(values, text):
    return ", ".join(text(v) for v in values)


def wrapped(values, text):
    return textwrap.fill(rows(values, text), 96, initial_indent="    ", subsequent_indent="    ")


def emit(name, type_, values, text=None):
    print(f"static const {type_} {name}[] = {{\n{wrapped(values, text or repr)}\n}};")


def f32(v):
    text = f"{v:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def whole(v):
    return f"INT64_C({v})"


def on_few_lines(*parts):
    """Parts of a row, each on the line before if it fits there."""
    text = parts[0]
    for part in parts[1:]:
        room = 100 - len(text.split("\n")[-1])
        text += (" " if "\n" not in part and len(part) < room else "\n     ") + part
    return text


def write_prints():
    print("/* clang-format off */")
    print("/* print_cases.h - written by tests/tensor/torch_cases.py with PyTorch", VERSION + ". */")
    print("static const print_case print_cases[] = {")
    for name, dtype, shape, values in PRINTS:
        generated = isinstance(values, tuple)
        sizes = "{" + rows(shape or [0], str) + "}"
        listed = "{0}" if generated or not values else "{" + rows(values, c_number) + "}"
        start, step = values if generated else (0, 0)
        head = f'    {{"{name}", {dtype}, {{{len(shape)}, {sizes}}}, {str(generated).lower()}, {start}, {step},'
        print(on_few_lines(head, listed + ",", c_string(printed(tensor_of(dtype, shape, values))) + "},"))
    print("};")


def seeded(f, seed=42):
    torch.manual_seed(seed)
    return f()


def write_draws():
    print("/* clang-format off */")
    print("/* random_cases.h - written by tests/tensor/torch_cases.py with PyTorch", VERSION + ". After seed 42. */")
    emit("rand_f32", "float", seeded(lambda: torch.rand(7)).tolist(), f32)
    emit("rand_f64", "double", seeded(lambda: torch.rand(7, dtype=torch.float64)).tolist())
    emit("uniform_f32", "float", seeded(lambda: torch.empty(11).uniform_(-0.1, 0.3)).tolist(), f32)
    emit("uniform_f64", "double", seeded(lambda: torch.empty(5, dtype=torch.float64).uniform_(-0.1, 0.3)).tolist())
    emit("uniform_bf16", "double", seeded(lambda: torch.empty(5, dtype=torch.bfloat16).uniform_(-1, 1)).tolist())
    # a sixth of them reach the end of the range as f16 has it, which is above 0.1003
    emit("uniform_end_f16", "double", seeded(lambda: torch.empty(24, dtype=torch.float16).uniform_(0.1, 0.1003)).tolist())
    for name, dtype, n in ("randn_20_bf16", torch.bfloat16, 20), ("randn_35_f16", torch.float16, 35):
        draw = lambda: torch.cat([torch.randn(n, dtype=dtype).float(), torch.rand(2)])
        emit(name, "double", seeded(draw).tolist())  # and two uniform ones after them
    emit("randn_4", "float", seeded(lambda: torch.randn(4)).tolist(), f32)
    emit("randn_3_then_3", "float", seeded(lambda: torch.cat([torch.randn(3), torch.randn(3)])).tolist(), f32)
    emit("randn_16", "float", seeded(lambda: torch.randn(16)).tolist(), f32)
    emit("randn_37", "float", seeded(lambda: torch.randn(37)).tolist(), f32)
    emit("randn_37_f64", "double", seeded(lambda: torch.randn(37, dtype=torch.float64)).tolist())
    emit("normal_5", "float", seeded(lambda: torch.empty(5).normal_(2, 3)).tolist(), f32)
    emit("normal_20", "float", seeded(lambda: torch.empty(20).normal_(2, 3)).tolist(), f32)
    emit("bernoulli_12", "float", seeded(lambda: torch.empty(12).bernoulli_(0.3)).tolist(), f32)
    emit("randperm_8", "int64_t", seeded(lambda: torch.randperm(8)).tolist(), whole)
    emit("randint_10", "int64_t", seeded(lambda: torch.randint(0, 10, (8,))).tolist(), whole)
    emit("randint_signed", "int64_t", seeded(lambda: torch.randint(-5, 6, (8,))).tolist(), whole)
    emit("randint_28", "int64_t", seeded(lambda: torch.randint(0, 2 ** 28, (4,))).tolist(), whole)
    emit("randint_wide", "int64_t", seeded(lambda: torch.randint(-(2 ** 62), 2 ** 62, (4,))).tolist(), whole)
    # the words after a stretch longer than the state: 2000 uniforms, then these
    emit("rand_after_2000", "float", seeded(lambda: torch.rand(2003)[2000:]).tolist(), f32)
    emit("rand_seed_2_40", "float", seeded(lambda: torch.rand(3), 2 ** 40 + 7).tolist(), f32)


def write_series():
    print("/* clang-format off */")
    print("/* series_cases.h - written by tests/tensor/torch_cases.py with PyTorch", VERSION + ". */")
    for name, type_, text, dtype in ("f32", "float", f32, torch.float32), ("f64", "double", None, torch.float64):
        emit("linspace_" + name, type_, torch.linspace(-0.7, 1.9, 24, dtype=dtype).tolist(), text)
    # so many that there are two pairs of vectors and a rest
    for name, dtype, n in ("f32", torch.float32, 37), ("f64", torch.float64, 19), ("bf16", torch.bfloat16, 69), ("f16", torch.float16, 69):
        emit("arange_" + name, "double", torch.arange(-1, -1 + (n - 0.5) / 3, 1 / 3, dtype=dtype).double().tolist())


if sys.argv[1:] == ["series"]:
    write_series()
elif sys.argv[1:] == ["print"]:
    write_prints()
elif sys.argv[1:] == ["random"]:
    write_draws()
else:
    sys.exit(__doc__)
