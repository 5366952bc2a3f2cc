#!/usr/bin/env python3
"""Adapters through files, from the peft package to tenon and back.

usage: python3 adapter.py PROGRAM [FOLDER]       PROGRAM: build/examples/interop/adapter

For several settings: peft writes an adapter; tenon reads it, computes the same output, trains it, writes it; peft reads
that, without a warning, and computes the same output as tenon, merged, too. Outputs are the same within
1e-5 of the largest value. Needs PyTorch, peft and safetensors.
"""
import copy
import subprocess
import sys
import tempfile
import warnings

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import nn

SETTINGS = {
    "plain": {},
    "rslora": {"r": 4, "lora_alpha": 16, "use_rslora": True, "lora_dropout": 0.0},
    "pattern": {"target_modules": r"(0|2)", "rank_pattern": {"2": 3}, "alpha_pattern": {"0": 5}},
    "bias": {"bias": "lora_only"},
    "all biases": {"bias": "all"},
    "head": {"modules_to_save": ["4"]},
}


def same(a, b):
    return (a - b).abs().max().item() <= 1e-5 * max(1, b.abs().max().item())


def check(program, folder, settings):
    torch.manual_seed(1)
    base = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    x = torch.randn(16, 6)
    save_file(base.state_dict(), f"{folder}/base.safetensors")
    save_file({"x": x}, f"{folder}/x.safetensors")
    model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**{"target_modules": ["0", "2"], **settings}))
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(f"{folder}/theirs")
    theirs = model(x).detach()
    subprocess.run([program, folder], check=True)
    read = load_file(f"{folder}/read.safetensors")["y"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = peft.PeftModel.from_pretrained(copy.deepcopy(base), f"{folder}/ours")
    names = [load_file(f"{folder}/{who}/adapter_model.safetensors").keys() for who in ("theirs", "ours")]
    trained = load_file(f"{folder}/trained.safetensors")["y"]
    y = ours(x).detach()
    merged = ours.merge_and_unload()(x).detach()
    return {"read": same(read, theirs), "moved": not same(trained, read), "names": names[0] == names[1],
            "written": same(y, trained), "merged": same(merged, load_file(f"{folder}/merged.safetensors")["y"])}


def main():
    failed = False
    for name, settings in SETTINGS.items():
        with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
            checks = check(sys.argv[1], folder, settings)
        wrong = [what for what, right in checks.items() if not right]
        failed = failed or bool(wrong)
        print(f"{name}: {'NOT ' + ', '.join(wrong) if wrong else ', '.join(checks)}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
