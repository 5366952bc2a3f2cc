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


INNER = b"}(" + text("w") + W + text("b") + tensor("Char", "1", 4, [4], [1]) + b"u"
OTHERS = {
    "epoch": number(41), "loss": b"G" + struct.pack(">d", 0.1), "none": b"N", "yes": b"\x88", "list": b"](K\1K\2e",
    "one": b"]K\1a", "size": b"ctorch\nSize\n(K\2K\3t\x85R", "device": b"ctorch\ndevice\n" + text("cpu") + b"\x85R",
    "dtype": b"ctorch\nfloat32\n", "count": b"ccollections\nCounter\n}" + text("a") + b"K\1s\x85R",
    "old": b"ccollections\nOrderedDict\n]](" + b"U\1w" + W + b"ea\x85R", "set": b"c__builtin__\nset\n](K\1e\x85R",
    "q": b"ctorch._utils\n_rebuild_qtensor\n)R", "p": b"ctorch.nn.parameter\nParameter\n" + W + b"\x85\x81",
    "type": b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_parameter\nctorch.nn.parameter\nParameter\n("
            + W + b"\x88}t}tR",
    "v3": b"ctorch._utils\n_rebuild_tensor_v3\n((" + text("storage") + b"ctorch.storage\nUntypedStorage\n" + text("2")
          + text("cpu") + number(8) + b"tQ" + number(0) + numbers([4]) + numbers([1]) + b"\x89}ctorch\nuint16\ntR",
}
SEEDS["nested"] = b"\x80\x02}(" + text("model") + INNER + b"".join(text(k) + v for k, v in OTHERS.items()) + b"u."
SEEDS["optimizer"] = (b"\x80\x02}(" + text("state") + b"}K\0}" + text("step") + W + b"ss" + text("param_groups") + b"]}"
                      + text("params") + b"]K\0asau.")
SEEDS["top-list"] = b"\x80\x02](" + W + W + b"e."
OLD = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}" + text("little_endian") + b"\x88s."
for view in b"", b"N", b"(" + text("9") + b"K\1K\1t":
    w = tensor("Float", "2", 2, [1], [1]).replace(b"tQ", view + b"tQ")
    SEEDS[f"old-{len(view)}"] = (OLD + state([("w", w)]) + b"\x80\x02]" + text("2") + b"a." + struct.pack("<qff", 2, 1, 2))
SCRIPT = (b"\x80\x02c__torch__.m\nNet\nq\0)\x81}(" + text("w") + W + text("in") + b"h\0)\x81}" + text("b") + W + b"sb"
          + text("n") + b"ctorch.jit._pickle\nbuild_intlist\n](K\1e\x85Rub.")

SEEDS["script"] = b"S" + SCRIPT

for name, pickle in SEEDS.items():
    (HERE / name).write_bytes(pickle)
archive("archive", SEEDS["item"])
archive("archive-zip64", SEEDS["item"], limit=4)
archive("archive-deflated", SEEDS["item"], method=zipfile.ZIP_DEFLATED)
archive("archive-big-endian", SEEDS["item"], more=[("byteorder", b"big")])
archive("archive-script", SCRIPT, more=[("constants.pkl", b"\x80\x02).")])
archive("archive-script-deflated", SCRIPT, method=zipfile.ZIP_DEFLATED, more=[("constants.pkl", b"\x80\x02).")])


def npy(descr, shape, values):
    head = f"{{'descr': '{descr}', 'fortran_order': True, 'shape': {shape}, }}".encode()
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + values


(HERE / "array").write_bytes(b"N" + npy("<f4", "(1, 2)", bytes(8)))
(HERE / "array-widened").write_bytes(b"N" + npy(">i2", "(2,)", bytes(4)))
for name, method in ("npz", zipfile.ZIP_STORED), ("npz-deflated", zipfile.ZIP_DEFLATED):
    zipfile.ZIP64_LIMIT = 2**31
    with zipfile.ZipFile(HERE / name, "w", method) as z:
        z.writestr(zipfile.ZipInfo("a.npy"), npy("<f4", "(1, 2)", bytes(8)), method)
        z.writestr(zipfile.ZipInfo("b/c.npy"), npy(">i2", "(2,)", bytes(4)), method)
