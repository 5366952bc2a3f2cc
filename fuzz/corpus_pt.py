#!/usr/bin/env python3
"""Makes the seeds in corpus/pt: pickles (fuzz_pt.c puts an archive around them) and whole archives."""
import pathlib
import struct
import zipfile

HERE = pathlib.Path(__file__).parent / "corpus" / "pt"
HERE.mkdir(parents=True, exist_ok=True)


def text(s):
    return b"X" + struct.pack("<I", len(s.encode())) + s.encode()


def number(n):
    if n < 256:
        return b"K" + bytes([n])
    return b"M" + struct.pack("<H", n) if n < 65536 else b"J" + struct.pack("<i", n)


def numbers(values):
    values = [number(n) for n in values]
    if len(values) > 3:
        return b"(" + b"".join(values) + b"t"
    return b"".join(values) + [b")", b"\x85", b"\x86", b"\x87"][len(values)]


ORDERED = b"ccollections\nOrderedDict\n)R"


def tensor(kind, key, numel, shape, stride, offset=0, more=b""):
    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\n" + kind.encode() + b"Storage\n"
            + text(key) + text("cpu") + number(numel) + b"tQ" + number(offset) + numbers(shape) + numbers(stride)
            + b"\x89" + ORDERED + more + b"tR")


def state(items, metadata=b"", start=ORDERED):
    return b"\x80\x02" + start + b"(" + b"".join(text(k) + v for k, v in items) + b"u" + metadata + b"."


def versions(pairs):
    return (b"}" + text("_metadata") + ORDERED + b"(" + b"".join(
        text(path) + b"}" + text("version") + number(n) + b"s" for path, n in pairs) + b"usb")


W = tensor("Float", "2", 2, [2], [1])
SEEDS = {
    "empty": b"\x80\x02}.",
    "state": state([("w", W), ("b", tensor("Long", "3", 8, [], []))], versions([("", 1), ("bn", 2)])),
    "dict": state([("w", W)], start=b"}"),
    "item": b"\x80\x02}" + text("w") + W + b"s.",
    "parameter": state([("p", b"ctorch._utils\n_rebuild_parameter\n(" + W + b"\x88" + ORDERED + b"tR")]),
    "memo": b"\x80\x02}q\0(" + text("w") + b"q\1" + W + b"q\2" + text("a") + b"j\2\0\0\0ur\0\0\0\0.",
    "views": state([("t", tensor("Float", "3", 16, [3, 4], [1, 4])), ("r", tensor("Float", "3", 16, [4], [2], 1)),
                    ("e", tensor("Float", "3", 16, [3, 2], [0, 0], 5))]),
    "no-elements": state([("z", tensor("Float", "0", 0, [0, 3], [3, 1]))]),
    "axes": state([("x", tensor("Byte", "1", 4, [1] * 8, [1] * 8))]),
    "nine-axes": state([("x", tensor("Byte", "1", 4, [1] * 9, [1] * 9))]),
    "not-bool": state([("x", tensor("Bool", "3", 64, [64], [1]))]),
    "outside": state([("x", tensor("Float", "2", 2, [2], [1], 1))]),
    "expanded": state([("x", tensor("Float", "2", 2, [65536, 65536], [0, 0]))]),
    "two-dtypes": state([("w", W), ("h", tensor("Half", "2", 4, [4], [1]))]),
    "metadata-of-tensor": state([("w", tensor("Float", "2", 2, [2], [1], 0, b"}"))]),
    "long": b"\x80\x02}" + text("w") + b"\x8a\x08" + struct.pack("<q", -2**63) + b"s.",
    "attribute": b"\x80\x02" + ORDERED + b"}" + text("__reduce__") + text("x") + b"sb.",
    "itself": b"\x80\x02}q\0" + text("w") + b"h\0s.",
    "system": b"\x80\x02cos\nsystem\n(" + text("id") + b"tR.",
    "model": b"\x80\x02c__main__\nNet\nq\0)\x81q\x01}q\x02b.",
    "inst": b"\x80\x02(" + text("id") + b"ios\nsystem\n.",
    "stack-global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
}
for kind in "Float Double BFloat16 Half Long Int Byte Bool Char".split():
    size = {"Double": 8, "Long": 8, "BFloat16": 2, "Half": 2, "Byte": 1, "Bool": 1, "Char": 1}.get(kind, 4)
    SEEDS["dtype-" + kind] = state([("x", tensor(kind, "1" if size == 1 else "2", (4 if size == 1 else 8) // size,
                                                 [1], [1]))])


def archive(name, pickle, limit=2**31, method=zipfile.ZIP_STORED, more=()):
    zipfile.ZIP64_LIMIT = limit
    with zipfile.ZipFile(HERE / name, "w", method) as z:
        for entry, data in [("data.pkl", pickle), ("data/2", bytes(8)), ("version", b"3\n"), *more]:
            z.writestr(zipfile.ZipInfo("m/" + entry), data, method)


for name, pickle in SEEDS.items():
    (HERE / name).write_bytes(pickle)
archive("archive", SEEDS["item"])
archive("archive-zip64", SEEDS["item"], limit=4)
archive("archive-deflated", SEEDS["item"], method=zipfile.ZIP_DEFLATED)
archive("archive-big-endian", SEEDS["item"], more=[("byteorder", b"big")])
archive("archive-script", SEEDS["item"], more=[("constants.pkl", b"")])
