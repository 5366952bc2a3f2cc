#!/usr/bin/env python3
"""Makes the seeds in corpus/safetensors, corpus/index, corpus/idx, corpus/npy and corpus/csv: the smallest files that reach every branch."""
import gzip
import json
import pathlib
import struct
import zlib

HERE = pathlib.Path(__file__).parent / "corpus"


def write(folder, name, data):
    (HERE / folder).mkdir(parents=True, exist_ok=True)
    (HERE / folder / name).write_bytes(data)


def tensors(name, header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    write("safetensors", name, struct.pack("<Q", len(text) if size is None else size) + text + data)


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


F32 = entry("F32", [1], 0, 4)
for dtype, width in dict(F32=4, F64=8, BF16=2, F16=2, I64=8, I32=4, U8=1, BOOL=1).items():
    tensors("dtype-" + dtype, {"a": entry(dtype, [1, 2], 0, 2 * width)}, bytes(2 * width))
tensors("empty", {})
tensors("spaces", b"  {}  ")
tensors("rank-0", {"a": entry("F32", [], 0, 4)}, bytes(4))
tensors("eight-axes", {"a": entry("U8", [1] * 8, 0, 1)}, b"x")
tensors("nine-axes", {"a": entry("U8", [1] * 9, 0, 1)}, b"x")
tensors("no-elements", {"z": entry("F32", [0], 4, 4), "y": entry("F32", [3, 0], 4, 4), "a": F32}, bytes(4))
tensors("metadata", {"__metadata__": {"k": "v", "é": "\"\\\n"}, "a": F32}, bytes(4))
tensors("metadata-number", {"__metadata__": {"k": 1}})
tensors("metadata-list", {"__metadata__": []})
tensors("tie", {"__metadata__": {"tenon.ties": '{"b":"a","c":"b"}'}, "a": F32}, bytes(4))
tensors("tie-before", {"__metadata__": {"tenon.version": "0.1.0", "b": "a", "c": "b"}, "a": F32}, bytes(4))
tensors("ties-bad", {"__metadata__": {"tenon.ties": '{"b":1}'}, "a": F32}, bytes(4))
tensors("ties-twice", {"__metadata__": {"tenon.ties": '{"b":"a","b":"a"}'}, "a": F32}, bytes(4))
tensors("escapes", b'{"__metadata__":{"\\u00e9\\ud83d\\ude00":"\\"\\\\\\/\\b\\f\\n\\r\\t"}}')
tensors("versions", {"__metadata__": {"tenon.versions": '{"":2,"bn":3}'}, "a": F32}, bytes(4))
tensors("versions-bad", {"__metadata__": {"tenon.versions": '{"bn":-1}'}, "a": F32}, bytes(4))
tensors("overlap", {"a": F32, "b": entry("F32", [1], 3, 7)}, bytes(7))
tensors("hole", {"a": F32, "b": entry("F32", [1], 5, 9)}, bytes(9))
tensors("range-behind-the-end", {"a": entry("F32", [64], 0, 256)}, bytes(4))
tensors("range-too-long", {"a": entry("F32", [1], 0, 256)}, bytes(256))
tensors("range-too-short", {"a": entry("F32", [64], 0, 4)}, bytes(4))
tensors("range-backwards", {"a": entry("F32", [0], 4, 0)}, bytes(4))
tensors("overflow", {"a": entry("F32", [2**62, 2**62], 0, 4)}, bytes(4))
tensors("overflow-of-bytes", {"a": entry("F64", [2**60], 0, 0)})
tensors("overflow-without-elements", {"a": entry("F32", [0, 2**32, 2**32], 0, 0)})
tensors("negative", {"a": entry("F32", [-1], 0, 4)}, bytes(4))
tensors("real-numbers", b'{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4e0]}}', bytes(4))
tensors("too-big-number", b'{"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}}', bytes(4))
tensors("unknown-dtype", {"a": entry("F8_E5M2", [1], 0, 1)}, b"x")
tensors("unknown-key", {"a": {**F32, "x": 0}}, bytes(4))
tensors("missing-key", {"a": {"dtype": "F32", "shape": [1]}}, bytes(4))
tensors("twice", b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}')
tensors("not-bool", {"a": entry("BOOL", [2], 0, 2)}, b"\1\2")
tensors("zero-in-name", b'{"a\\u0000":{}}')
tensors("surrogate", b'{"\\ud800":{}}')
tensors("deep", b'{"a":' + b"[" * 40 + b"]" * 40 + b"}")
tensors("behind", {"a": F32}, bytes(5))
tensors("size-too-large", b"{}", size=3)
tensors("size-huge", b"{}", size=2**63)
tensors("size-int64-max", b"{}", size=2**63 - 1)
tensors("checkpoint-without-checksum", {"__metadata__": {"tenon.checkpoint": "1"}})
state = {"__metadata__": {"tenon.crc32": "00000000", "tenon.checkpoint": "1",
                          "tenon.ties": '{"model.b":"model.a"}'},
         "step": entry("I64", [], 0, 8), "model.a": entry("U8", [1], 8, 9)}
text = json.dumps(state, separators=(",", ":")).encode()
whole = struct.pack("<Q", len(text)) + text + bytes(9)
write("safetensors", "checkpoint", whole.replace(b"00000000", b"%08x" % zlib.crc32(whole), 1))


for name, map in {"two": '{"a":"100","b":"101"}', "one": '{"a":"100"}', "missing": '{"a":"99"}',
                  "not-in": '{"c":"100"}', "itself": '{"a":"3","b":"4","c":"5"}', "folder": '{"a":"../100"}',
                  "number": '{"a":1}', "none": "{}", "list": "[]", "escapes": '{"\\u0061":"10\\u0030"}'}.items():
    write("index", name, f'{{"metadata":{{"total_size":8}},"weight_map":{map}}}'.encode())
write("index", "twice", b'{"weight_map":{},"weight_map":{}}')
write("index", "no-map", b'{"metadata":null}')


def idx(kind, sizes, data):
    return bytes([0, 0, kind, len(sizes)]) + b"".join(struct.pack(">I", n) for n in sizes) + data


def packed(data, level=6):
    return gzip.compress(data, level, mtime=0)


plain = idx(8, [2, 3], b"\1\2\3\4\5\xff")
for kind, width in {8: 1, 9: 1, 11: 2, 12: 4, 13: 4, 14: 8}.items():
    write("idx", f"type-{kind:02x}", idx(kind, [2], bytes(range(2 * width))))
    write("idx", f"type-{kind:02x}.gz", packed(idx(kind, [1, 2], bytes(range(2 * width)))))
write("idx", "two-axes", plain)
write("idx", "four-axes", idx(8, [1, 2, 1, 3], bytes(6)))
write("idx", "no-values", idx(8, [0, 5], b""))
write("idx", "no-axes", idx(8, [], b"x"))
write("idx", "five-axes", idx(8, [1] * 5, b"x"))
write("idx", "type-0a", idx(10, [1], b"x"))
write("idx", "huge", idx(14, [2**32 - 1] * 4, b""))
write("idx", "overflow-without-values", idx(8, [0, 2**32 - 1, 2**32 - 1, 5], b""))
write("idx", "too-short", idx(12, [2], bytes(7)))
write("idx", "behind", plain + b"x")
write("idx", "html", b"<!DOCTYPE html>")
whole = packed(plain)
write("idx", "stored.gz", packed(plain, 0))
write("idx", "fixed-codes.gz", whole)
write("idx", "own-codes.gz", packed(idx(8, [600], bytes(i * i % 251 % 17 for i in range(600))), 9))
write("idx", "two-members.gz", packed(plain[:7]) + packed(plain[7:]))
write("idx", "behind.gz", whole + b"x")
write("idx", "checksum.gz", whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])
write("idx", "length.gz", whole[:-1] + b"\1")
write("idx", "cut.gz", whole[:-5])
write("idx", "twice.gz", packed(whole))
write("idx", "long-claim.gz", packed(idx(8, [2**16], b"x")))
write("idx", "fields.gz", b"\x1f\x8b\x08\x1c\0\0\0\0\0\3\4\0xyz\0name\0text\0" + whole[10:])


def npy(name, header, data, version=1):
    text = header.encode()
    write("npy", name, b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) +
          text + data)


def array(descr, shape, order=False):
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"


for descr, width in {"<f2": 2, ">f4": 4, "<f8": 8, "|i1": 1, ">i2": 2, "<u2": 2, ">u4": 4, "|b1": 1, "float32": 4}.items():
    npy(f"type-{descr[-2:]}-{descr[0].replace('<', 'l').replace('>', 'b').replace('|', 'n')}", array(descr, "(2,)"),
        bytes(range(7, 7 + 2 * width)))
npy("fortran", array("<f4", "(2, 3)", True), bytes(24))
npy("value", array("<f4", "()"), bytes(4))
npy("empty", array("<f4", "(0, 5)"), b"")
npy("version-2", array("<f4", "(2,)"), bytes(8), 2)
npy("python-2", '{"shape": (2L,), "descr": "<f4", "fortran_order": False}', bytes(8))
npy("objects", array("|O", "(2,)"), bytes(8))
npy("records", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", bytes(8))
npy("overflow", array("<f8", "(4611686018427387904, 4)"), b"")
npy("twice", "{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}", bytes(8))
npy("cut", array("<f4", "(2,)"), bytes(7))
npy("behind", array("<f4", "(2,)"), bytes(9))
write("npy", "archive", b"PK\3\4 and more")

for name, text in {
        "kinds": b"i,d,t\n1,.5,x\n-2,,y\n", "quotes": b'"a","b ""c"""\r\n"1\n2",","\r\n', "mark": b"\xef\xbb\xbfa\n1\n",
        "returns": b"a,b\r1,2\r\r3,4", "open-quote": b'a\n"1\n', "behind-quote": b'a\n"1"2\n', "short-row": b"a,b\n1\n",
        "header-alone": b"a,b\n", "zero": b"a\n1\0\n", "numbers": b"a\n1e400\n-0x1\nnan(1)\ninf\n99999999999999999999\n",
        "missing": b"a,b\nNA,\n\"\",NA\n", "blanks": b"\n\r\n\ra\n\n 1 \n"}.items():
    write("csv", name, text)
