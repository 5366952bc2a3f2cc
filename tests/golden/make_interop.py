#!/usr/bin/env python3
"""Makes the .pt files that test_pt.c reads: what torch.save writes, by the PyTorch that runs this.

usage: python3 tests/golden/make_interop.py [PROGRAM]       with PyTorch 1.13, then with 2.15
       PROGRAM: build/examples/interop/interop, for the files of the other direction

pt_cnn_V.pt          state dict of a small convolutional network with BatchNorm; V: 1.13 or 2.15
pt_transformer_V.pt  of an embedding, an encoder and a Linear whose weight is the embedding's
pt_mixed_V.pt        a plain dict: every dtype, shapes [] and [0], views with offset and strides, an
                     expanded tensor, two names for one storage, nn.Parameter values
and with 2.15 only:
pt_zip64.pt          pt_mixed once more, with 64-bit records where a small file needs none
pt_nocrc_2.15.pt     mixed's tie.a and dtype.int64, written with torch.serialization.set_crc32_options(False)
interop.safetensors  FILE/NAME: each of these tensors, dense; cnn/x and cnn/y, transformer/x and
                     transformer/y: inputs and outputs of both networks in eval
tenon_*.pt           what tenon writes after reading pt_*_2.15.pt, when PyTorch found in it what it had
                     written: same names, order, dtypes, bits, ties and versions. Run this with 1.13
                     once more, and it looks too

All values come from a formula, so that both versions hold the same ones.
"""
import json
import os
import struct
import subprocess
import sys
import zipfile

import torch
import torch.nn as nn

FOLDER = os.path.dirname(os.path.abspath(__file__))
VERSION = ".".join(torch.__version__.split(".")[:2])


def values(shape, seed, dtype=torch.float32):
    n = 1
    for size in shape:
        n *= size
    k = (torch.arange(n, dtype=torch.int64) * 7919 + seed * 104729) % 2001
    if dtype in (torch.int64, torch.int32):
        return (k - 1000).to(dtype).reshape(shape)
    if dtype in (torch.uint8, torch.bool):
        return (k % 2 if dtype == torch.bool else k % 256).to(dtype).reshape(shape)
    return ((k - 1000).double() / 1000).to(dtype).reshape(shape)


def fill(model):
    with torch.no_grad():
        for i, (name, t) in enumerate(model.state_dict().items()):
            if t.dtype == torch.int64:
                t.fill_(7)
            else:
                t.copy_(values(t.shape, i) * (0.5 if t.dim() > 1 else 0.2))
                if "running_var" in name or "norm" in name and name.endswith("weight"):
                    t.add_(1)
    return model.eval()


def cnn():
    return fill(nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
                              nn.Flatten(), nn.Linear(27, 4)))


def transformer():
    block = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(block, 2, nn.LayerNorm(4), enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(7, 4), encoder, nn.Linear(4, 7))
    model[2].weight = model[0].weight
    return fill(model)


def mixed():
    base = values((4, 6), 3)
    shared = values((5,), 4)
    state = {str(d).replace("torch.", "dtype."): values((2, 3), i, d) for i, d in enumerate(
        [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
         torch.bool])}
    state.update({
        "scalar": values((), 1, torch.float64),
        "empty": torch.zeros(2, 0, 3),
        "view.rows": base[1:3],
        "view.transposed": base.t(),
        "view.columns": base[:, 1::2],
        "view.expanded": base[3, :1].expand(3, 2),
        "tie.a": shared,
        "tie.b": shared,
        "parameter": nn.Parameter(values((3,), 5)),
        "parameter.frozen": nn.Parameter(values((2, 2), 6), requires_grad=False),
        "\u00e9t\u00e9": values((1,), 7),
    })
    return state


NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16",
         torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def save_tensors(path, tensors):
    """A safetensors file, without another package."""
    header, data = {"__metadata__": {"torch": torch.__version__, "made_by": "tests/golden/make_interop.py"}}, b""
    for name, t in tensors.items():
        t = t.detach().contiguous()
        b = bytes(t.reshape(-1).view(torch.uint8).tolist()) if t.numel() else b""
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(b)]}
        data += b
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def zip64(source, target):
    """The same entries, written as if everything from 64 bytes on were too large for 32 bits."""
    zipfile.ZIP64_LIMIT = 64
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name))


def check_other_direction(name, program=None):
    source, target = (os.path.join(FOLDER, f) for f in ("pt_%s_2.15.pt" % name, "tenon_%s.pt" % name))
    if program:
        subprocess.run([program, "convert", source, target], check=True)
    theirs, ours = torch.load(source, weights_only=True), torch.load(target, weights_only=True)
    assert list(theirs) == list(ours)
    for key, t in theirs.items():
        u = ours[key]
        assert t.dtype == u.dtype and t.shape == u.shape, key
        assert torch.equal(t.contiguous().reshape(-1).view(torch.uint8), u.reshape(-1).view(torch.uint8)), key
    for a in theirs:
        for b in theirs:
            tied = theirs[a].data_ptr() == theirs[b].data_ptr() and theirs[a].shape == theirs[b].shape
            assert not tied or ours[a].data_ptr() == ours[b].data_ptr(), (a, b)
    versions = [{k: v["version"] for k, v in getattr(d, "_metadata", {}).items()} for d in (theirs, ours)]
    assert versions[0] == versions[1], versions
    print("%s: PyTorch %s reads it as its own" % (os.path.basename(target), torch.__version__))


def main():
    files = {"cnn": cnn().state_dict(), "transformer": transformer().state_dict(), "mixed": mixed()}
    for name, state in files.items():
        torch.save(state, os.path.join(FOLDER, "pt_%s_%s.pt" % (name, VERSION)))
    if VERSION.startswith("1."):
        for name in files:
            if os.path.exists(os.path.join(FOLDER, "tenon_%s.pt" % name)):
                check_other_direction(name)
        return
    torch.serialization.set_crc32_options(False)
    torch.save({k: files["mixed"][k] for k in ("tie.a", "dtype.int64")},
               os.path.join(FOLDER, "pt_nocrc_%s.pt" % VERSION))
    torch.serialization.set_crc32_options(True)
    zip64(os.path.join(FOLDER, "pt_mixed_%s.pt" % VERSION), os.path.join(FOLDER, "pt_zip64.pt"))
    out = {"%s/%s" % (name, key): t for name, state in files.items() for key, t in state.items()}
    with torch.no_grad():
        out["cnn/x"], out["transformer/x"] = values((2, 1, 6, 6), 8), values((2, 5), 9, torch.int64) % 7
        out["cnn/y"] = cnn()(out["cnn/x"])
        out["transformer/y"] = transformer()(out["transformer/x"])
    save_tensors(os.path.join(FOLDER, "interop.safetensors"), out)
    for name in files:
        check_other_direction(name, sys.argv[1] if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    main()
