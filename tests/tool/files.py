#!/usr/bin/env python3
"""What tool_check.sh needs of Python's own library: small safetensors files, and JSON read by another reader.

usage: files.py write FILE NAME=DTYPE:NUMBERS...    DTYPE f32, f64, i64; NUMBERS with commas; NAME as Python's escapes
       files.py many FILE N                         N tensors in branches
       files.py compare GOT.json TRUTH.json         statistics to the last digits that the format has
       files.py terminal <TEXT                      1 if any character but a line end would steer a terminal
"""
import json
import math
import struct
import sys

CODES = {"f32": "f", "f64": "d", "i64": "q"}


def write(path, tensors):
    header, data = {}, b""
    for name, dtype, values in tensors:
        raw = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {"dtype": dtype.upper(), "shape": [len(values)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def parse(word):
    name, rest = word.rsplit("=", 1)
    dtype, numbers = rest.split(":")
    values = [int(x) if dtype == "i64" else float(x) for x in numbers.split(",")]
    return name.encode().decode("unicode_escape"), dtype, values


def near(dtype, key, got, want):
    if key in ("mean", "std") or dtype == "f64":
        return math.isclose(got, want, rel_tol=1e-15)
    if dtype in ("f32", "f16", "bf16"):
        return struct.pack("f", got) == struct.pack("f", want)
    return got == want


def compare(got, want):
    bad = [] if got["metadata"] == want["metadata"] and len(got["tensors"]) == len(want["tensors"]) else ["counts"]
    for a, b in zip(got["tensors"], want["tensors"]):
        if a.keys() != b.keys():
            bad.append((b["name"], sorted(a), sorted(b)))
            continue
        for key, value in b.items():
            if isinstance(value, (int, float)) and key not in ("nan", "inf", "bytes"):
                same = a[key] is not None and near(b["dtype"], key, a[key], value)
            else:
                same = a[key] == value
            if not same:
                bad.append((b["name"], key, a[key], value))
    print(*bad, sep="\n")
    return bool(bad)


command, *words = sys.argv[1:]
if command == "write":
    write(words[0], [parse(word) for word in words[1:]])
elif command == "many":
    write(words[0], [(f"layers.{i // 10}.w{i % 10}", "f32", [i, -i]) for i in range(int(words[1]))])
elif command == "compare":
    sys.exit(compare(*(json.load(open(word)) for word in words)))
elif command == "terminal":
    text = sys.stdin.buffer.read().decode()
    sys.exit(any(c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160) for c in text))
else:
    sys.exit(__doc__)
