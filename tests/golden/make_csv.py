#!/usr/bin/env python3
"""Makes csv/NAME.csv by the csv module, and what pandas reads of each column: csv/NAME.txt, a line for each.

usage: make_csv.py     (pandas 3.1, NumPy 2.4)
A line: the column's name, its kind (i, d or t), then i's integers, d's numbers as the bits of a double in hexadecimal
(every NaN as one), or t's classes and codes, separated by 0x1f, with \\n for a line's end.
"""
import csv
import math
import pathlib
import struct

import numpy as np
import pandas as pd

HERE = pathlib.Path(__file__).resolve().parent / "csv"


def bits(x):
    return "nan" if math.isnan(x) else struct.pack(">d", x).hex()


def described(name, column):
    if column.dtype.kind == "i":
        return [name, "i", *map(str, column)]
    if column.dtype.kind == "f":
        return [name, "d", *map(bits, column)]
    c = pd.Categorical(column.astype(object))
    return [name, "t", str(len(c.categories)), *c.categories, *map(str, c.codes)]


def put(name, rows, separator=",", end="\r\n", **reading):
    path = HERE / f"{name}.csv"
    with open(path, "w", newline="", encoding=reading.get("encoding", "utf-8")) as file:
        csv.writer(file, delimiter=separator, lineterminator=end).writerows(rows)
    table = pd.read_csv(path, sep=separator, keep_default_na=False, na_values=["", "NaN"],
                        encoding=reading.get("encoding", "utf-8"))
    lines = ["\x1f".join(described(str(k), table[k])).replace("\n", "\\n") for k in table]
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


HERE.mkdir(exist_ok=True)
draw = np.random.default_rng(0)
reals = [repr(float(x)) for x in draw.standard_normal(60) * 10.0 ** draw.integers(-300, 300, 60)]
reals += ["1e400", "-1e-400", "4.9e-324", "2.2250738585072011e-308", "0.1", "-0", "1.7976931348623157e308", "inf", "NaN",
          "9007199254740993", "123456789012345678901234567890", "0.500000000000000166533453693773481063544750213623046875"]
put("numbers", [["real", "whole", "gaps", "large"]] +
    [[x, i * 7919 - 200, "" if i % 5 == 0 else i / 4, (1 << 62) - i] for i, x in enumerate(reals)])
words = ["plain", "with, a comma", 'with "quotes"', "two\nlines", "", "\u00e9t\u00e9", "Z", "a", '"', " blank ", "\u20ac"]
put("texts", [["text", "n", 'the "third"'], *[[words[i % 11], i, words[i * i % 7]] for i in range(40)]], end="\n")
put("semicolons", [["a;b", "c"], ["1;2", "3,5"], ["4", "-1"]], separator=";")
put("mark", [["\u00fc", "b"], ["1", "2"]], encoding="utf-8-sig")
