#!/usr/bin/env python3
"""Models through files, from tenon to PyTorch and from PyTorch to tenon, each bit for bit.

usage: python3 roundtrip.py PROGRAM [FOLDER]       PROGRAM: build/examples/interop/interop

For every model of models.c and models.py:
  1. tenon writes it as .pt and .safetensors; PyTorch loads each with strict=True (torch.load with
     weights_only=True, and mapped), finds the same names, order, dtypes, versions and bits in both,
     ties tied, and computes the same output; what it holds goes back and tenon compares the bits
  2. PyTorch writes it; tenon loads it strictly, computes the same output, and writes it in both
     formats; PyTorch compares names, order, versions and bits with its own
Outputs are the same within 1e-5 (f64: 1e-12) of the largest value, or of 1. Needs PyTorch 1.13 or
later; uses the package safetensors where it is installed.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

import torch

from models import MODELS, forward, inputs

try:
    import safetensors.torch as safetensors
except ImportError:
    safetensors = None

DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


def read_safetensors(path):
    """All names of a file, ties too, without another package."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    metadata, state = header.pop("__metadata__", {}), {}
    for name, e in header.items():
        begin, end = e["data_offsets"]
        t = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin) if end > begin else torch.empty(
            0, dtype=torch.uint8)
        state[name] = t.clone().view(DTYPES[e["dtype"]]).reshape(e["shape"])
    ties = json.loads(metadata.get("tenon.ties", "{}"))
    state.update({alias: state[name] for alias, name in ties.items()})
    return state


def load(path, **options):
    return torch.load(path, map_location="cpu", weights_only=True, **options)


def check(fact, text):
    if not fact:
        raise AssertionError(text)


def bits(t):
    return t.detach().contiguous().reshape(-1).view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8)


def same(a, b, what):
    """Same names, and under each the same dtype, shape and bits."""
    check(set(a) == set(b), "%s: names: %s" % (what, sorted(set(a) ^ set(b))))
    for name in a:
        x, y = a[name], b[name]
        check(x.dtype == y.dtype and x.shape == y.shape, "%s: %s: %s %s, %s %s" % (
            what, name, x.dtype, tuple(x.shape), y.dtype, tuple(y.shape)))
        check(torch.equal(bits(x), bits(y)), "%s: %s: other bits" % (what, name))


def versions(state):
    """Of the modules that own tensors: the dropout layers inside an encoder layer have no twin in tenon."""
    owners = {name.rpartition(".")[0] for name in state}
    return {path: m["version"] for path, m in state._metadata.items() if path in owners}


def like_pytorch(ours, theirs, what):
    """As PyTorch's own state dict, in what it does not compare: order and versions."""
    check(list(ours) == list(theirs), "%s: order of names" % what)
    check(versions(ours) == versions(theirs), "%s: versions %s, not %s" % (what, versions(ours), versions(theirs)))


def difference(a, b):
    return ((a - b).abs().max() / max(1.0, b.abs().max().item())).item()


def tolerance(dtype):
    return 1e-12 if dtype == torch.float64 else 1e-5


def make(name):
    return MODELS[name][0]().eval()


def random_state(model):
    """As after some training: nothing is 0 or 1 any more."""
    with torch.no_grad():
        for name, t in model.state_dict().items():
            if t.dtype == torch.int64 and name.endswith("num_batches_tracked"):
                t.fill_(3)
            elif t.is_floating_point() and not name.endswith("pe"):
                t.copy_(torch.rand(t.shape) + (0.5 if "running_var" in name else -0.5))
    return model


def to_pytorch(name, path):
    """tenon's files in PyTorch. Returns the largest difference of outputs."""
    model = make(name)
    state = load(path(".pt"))
    like_pytorch(state, model.state_dict(), name)
    same(state, read_safetensors(path(".safetensors")), name + ".safetensors")
    if "mmap" in torch.load.__code__.co_varnames:
        same(state, load(path(".pt"), mmap=True), name + " mapped")
    model.load_state_dict(state, strict=True)
    same(state, model.state_dict(), name)
    aliases = [n for n, t in state.items() if t.numel()]
    storages = {n: (state[n].storage() if torch.__version__ < "2" else state[n].untyped_storage()).data_ptr()
                for n in aliases}
    for a, b in zip(aliases, aliases[1:]):
        tied = model.state_dict()[a].data_ptr() == model.state_dict()[b].data_ptr()
        check((storages[a] == storages[b]) == tied, "%s: tie of %s and %s" % (name, a, b))
    if name == "tied":
        check(storages["embed.weight"] == storages["head.weight"], "tied: two storages")
    if safetensors:
        other = make(name)
        safetensors.load_model(other, path(".safetensors"), strict=True)
        same(state, other.state_dict(), name + ".safetensors in a model")
    torch.save(model.state_dict(), path(".returned.pt"))
    io = load(path(".io.pt"))
    if not io:
        return 0.0
    worst = difference(forward(model, io), io["y"])
    check(worst <= tolerance(io["y"].dtype), "%s: outputs differ by %g" % (name, worst))
    return worst


def from_pytorch(name, path):
    """PyTorch's files, for tenon."""
    model, spec = random_state(make(name)), MODELS[name][1]
    torch.save(model.state_dict(), path(".theirs.pt"))
    if spec:
        x = inputs(spec, next(iter(model.state_dict().values())).dtype)
        torch.save({**x, "y": forward(model, x)}, path(".theirs.io.pt"))


def back(name, path):
    """What tenon made of PyTorch's file."""
    theirs, ours = load(path(".theirs.pt")), load(path(".back.pt"))
    same(ours, theirs, name + " back")
    like_pytorch(ours, theirs, name + " back")
    same(read_safetensors(path(".back.safetensors")), theirs, name + " back, .safetensors")


def main():
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        print(__doc__ if len(sys.argv) < 2 or sys.argv[1].startswith("-")
              else "%s: no program there: want build/examples/interop/interop" % sys.argv[1], file=sys.stderr)
        return 2
    program = os.path.abspath(sys.argv[1])
    folder = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="tenon-interop-")
    os.makedirs(folder, exist_ok=True)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch.manual_seed(0)

    def path_of(name):
        return lambda end: os.path.join(folder, name + end)

    failed = []

    def each(what, function):
        for name in MODELS:
            try:
                result = function(name, path_of(name))
                if result is not None:
                    print("%-26s ok  outputs differ by %.1e" % (name, result))
            except Exception as error:  # the others are still of interest
                failed.append(name)
                print("%-26s FAILED %s: %s" % (name, what, error))

    print("PyTorch %s, safetensors %s, files in %s" % (
        torch.__version__, safetensors.__name__ and __import__("safetensors").__version__ if safetensors else "none",
        folder))
    subprocess.run([program, "write", folder], check=True)
    print("tenon to PyTorch")
    each("tenon to PyTorch", to_pytorch)
    each("PyTorch to tenon", from_pytorch)
    print("PyTorch to tenon")
    if subprocess.run([program, "read", folder]).returncode:
        failed.append("interop read")
    each("back in PyTorch", back)
    print("%d models in both directions, %d failed" % (len(MODELS), len(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
