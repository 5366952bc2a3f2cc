#!/usr/bin/env python3
"""Makes files/: the kinds of weight files that people have, as their own writers write them.

usage: python3 tests/golden/make_files.py       with PyTorch 2.15, NumPy 2.4 and safetensors 0.8

expected.safetensors holds what is in them, as FILE/PATH; test_weight_files.c compares.
"""
import collections
import copy
import json
import pathlib
import sys

import numpy as np
import torch
import torch.nn as nn
from safetensors.torch import save_file

from make_interop import mixed, save_tensors, values

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples" / "interop"))
from published import flat

HERE = pathlib.Path(__file__).parent / "files"
expected = {}


def expect(file, tensors):
    expected.update({f"{file}/{name}": t.detach() for name, t in tensors.items()})


def save(file, tree, **options):
    torch.save(tree, HERE / file, **options)
    return tree


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        with torch.no_grad():
            for i, t in enumerate(self.state_dict().values()):
                t.copy_(values(t.shape, seed + i))

    def forward(self, x):
        return self.norm(self.body(x)) + torch.tensor([1.0, 2.0])


class Scripted(Net):
    """A module within a module, a buffer that no state dict of Python's holds, a list of numbers."""

    def __init__(self):
        super().__init__(40)
        self.inner = Net(50)
        self.register_buffer("table", values((4,), 60), persistent=False)
        self.sizes = [2, 3]


def checkpoint():
    net, other = Net(), Net(20)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.25)
    for i, p in enumerate(net.parameters()):
        p.grad = values(p.shape, 30 + i)
    optimizer.step()
    return {
        "epoch": 41, "loss": 0.1, "name": "a run", "done": True, "nothing": None, "large": 2**70, "layers": [3, 4.5],
        "config": {"size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"), 7: "seven",
                   "complex": 1 + 2j, "set": {1, 2}, "bytes": bytearray(b"ab"), "count": collections.Counter("aab"),
                   "layout": torch.strided, "nested": [[1], {"a": (2,)}]},
        "optimizer": optimizer.state_dict(),
        "model": net.state_dict(),
    }, other.state_dict()


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(momentum=0.9, dampening=0.25)),
    "plain": (torch.optim.SGD, {}),
    "adam": (torch.optim.Adam, dict(betas=(0.8, 0.95), amsgrad=True)),
    "ids": (torch.optim.Adam, dict(amsgrad=True)),  # parameters by any numbers, as before PyTorch 1.2
    "adamw": (torch.optim.AdamW, dict(weight_decay=0.1)),
    "rmsprop": (torch.optim.RMSprop, dict(momentum=0.5, centered=True)),
    "adagrad": (torch.optim.Adagrad, dict(lr_decay=0.01)),
    "fresh": (torch.optim.Adagrad, {}),  # saved before any step, with states all the same
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, dict(decoupled_weight_decay=True)),
}


def step(net, optimizer, t):
    for i, p in enumerate(net.parameters()):
        p.grad = values(p.shape, 10 * t + i)
    optimizer.step()


def optimizers():
    """10 steps, what is saved then, and the parameters 20 steps later: of two groups."""
    tree = {}
    for name, (kind, options) in OPTIMIZERS.items():
        net = nn.Linear(3, 2)
        with torch.no_grad():
            for i, p in enumerate(net.parameters()):
                p.copy_(values(p.shape, i))
        optimizer = kind([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.02, "weight_decay": 0.01}],
                         lr=0.01, **options)
        for t in range(0 if name == "fresh" else 10):
            step(net, optimizer, t)
        tree[name] = copy.deepcopy({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
        if name == "ids":
            state = tree[name]["optimizer"]
            state["state"] = {7001: state["state"][1], 7000: state["state"][0]}
            for k, group in enumerate(state["param_groups"]):
                group["params"] = [7000 + k]
        for t in range(10, 30):
            step(net, optimizer, t)
        expect("optimizers.pt", {f"{name}.{k}": v for k, v in net.state_dict().items()})
    save("optimizers.pt", tree)


def main():
    (HERE / "protocol_3").mkdir(parents=True, exist_ok=True)
    optimizers()
    tree, other = checkpoint()
    save("checkpoint.pt", tree)
    expect("checkpoint.pt", tree["model"])
    expect("all.checkpoint.pt", flat(tree))
    save("old_checkpoint.pt", tree, _use_new_zipfile_serialization=False)
    expect("old_checkpoint.pt", tree["model"])
    parts = save("parts.pt", {"model": tree["model"], "ema": {"module": other, "decay": 0.5}, "loss": values((), 1)})
    expect("parts.pt", parts["ema"]["module"])
    expect("old_mixed.pt", save("old_mixed.pt", mixed(), _use_new_zipfile_serialization=False))
    expect("list.pt", flat(save("list.pt", [values((2,), 1), (values((3,), 2), values((1,), 3))])))
    expect("protocol_3/archive.pt", save("protocol_3/archive.pt", {"w": values((2, 3), 1)}, pickle_protocol=3))
    expect("protocol_3/old.pt", save("protocol_3/old.pt", {"w": values((3,), 2)}, pickle_protocol=3,
                                     _use_new_zipfile_serialization=False))
    wrapped = {f"module.{k.replace('norm.', 'norm._orig_mod.')}": v for k, v in other.items()}
    save("wrapped.pt", wrapped)
    expect("wrapped.pt", other)

    # what tenon has no tensors for, beside what it has
    kept = {"f32": values((2, 2), 1)}
    wide = {"i8": torch.int8, "i16": torch.int16, "u16": torch.uint16, "u32": torch.uint32}
    wide = {k: (torch.arange(6).reshape(2, 3) * 11 - (30 if k[0] == "i" else 0)).to(d) for k, d in wide.items()}
    wide["i8view"] = wide["i8"].t()[1:]
    rest = {"u64": torch.arange(3).to(torch.uint64), "c64": torch.tensor([1 + 2j]), "f8": torch.ones(2).to(torch.float8_e4m3fn)}
    other_kinds = {"quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
                   "sparse": torch.eye(2).to_sparse(), "conj": torch.tensor([1 + 2j]).conj()}
    save("foreign.pt", {**kept, **wide, **rest, **other_kinds})
    save_file({**kept, **{k: v.contiguous() for k, v in wide.items()}, **rest}, HERE / "foreign.safetensors")
    as_wide = {k: v.to(torch.int64 if k == "u32" else torch.int32) for k, v in wide.items()}
    expect("foreign.pt", {**kept, **as_wide})
    expect("foreign.safetensors", {**kept, **as_wide})

    torch.jit.save(torch.jit.script(Scripted().eval()), HERE / "scripted.pt")
    expect("scripted.pt", torch.jit.load(HERE / "scripted.pt").state_dict())
    torch.jit.save(torch.jit.trace(Net().eval(), torch.ones(1, 3)), HERE / "traced.pt")
    expect("traced.pt", torch.jit.load(HERE / "traced.pt").state_dict())
    expect("constants.traced.pt", {"0": torch.tensor([1.0, 2.0])})

    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b/c": np.arange(4, dtype=">i2"),
              "d": np.asfortranarray(np.arange(6.0).reshape(3, 2)), "e": np.array(True)}
    np.savez(HERE / "stored.npz", **arrays)
    np.savez_compressed(HERE / "deflated.npz", **arrays)
    tensors = {k: torch.from_numpy(np.ascontiguousarray(v.astype(v.dtype.newbyteorder("=")))) for k, v in arrays.items()}
    tensors["b/c"] = tensors["b/c"].to(torch.int32)
    tensors["e"] = tensors["e"].reshape(())
    expect("stored.npz", tensors)
    expect("deflated.npz", tensors)

    # in two files and an index, as save_pretrained writes them
    names = list(other)
    for kind, ending in ("safetensors", "safetensors"), ("pytorch", "bin"):
        files = [f"{kind}-0000{i}-of-00002.{ending}" for i in (1, 2)]
        split = {name: files[i > 2] for i, name in enumerate(names)}
        for file in files:
            shard = {k: v.contiguous() for k, v in other.items() if split[k] == file}
            save_file(shard, HERE / file, metadata={"format": "pt"}) if ending == "safetensors" else save(file, shard)
        (HERE / f"{kind}.index.json").write_text(json.dumps(
            {"metadata": {"total_size": sum(t.nbytes for t in other.values())}, "weight_map": split}, indent=2) + "\n")
        expect(f"{kind}.index.json", other)
    save_tensors(HERE / "expected.safetensors", expected)


if __name__ == "__main__":
    main()
