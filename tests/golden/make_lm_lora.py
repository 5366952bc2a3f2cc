#!/usr/bin/env python3
"""Makes lm/lora.safetensors and the adapters in lm/lora/: what the peft package computes and writes.

usage: python3 tests/golden/make_lm_lora.py      made with peft 0.21.2, PyTorch 2.15, transformers 5.24

The model: y = head(relu(fc2(relu(fc1(x))))), fc1 [6, 8], fc2 [8, 8], head [8, 3]; in case conv, fc1 and fc2 are GPT-2's
Conv1D, whose weights are transposed. The base weights are base.*, the input x. Of each case NAME there is NAME/y, the
gradients of mean(y^2), NAME/grad.NAME, for everything that is trained, by the names of the adapter's file, and NAME/after,
y after a step of SGD with rate 0.5. bf16 has base weights and x of bf16. NAME/merged.fc1: the weight of fc1 once merged.
drawn.fc1.A and drawn.fc2.A: as drawn after torch.manual_seed(0).
"""
import copy
import os
import shutil

import peft
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lm")


class Net(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.fc1 = Conv1D(8, 6) if conv else nn.Linear(6, 8)
        self.fc2 = Conv1D(8, 8) if conv else nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def net(conv=False, dtype=torch.float32):
    torch.manual_seed(7)
    model = Net(False)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.5)
    if conv:
        linear, model = model, Net(True)
        with torch.no_grad():
            for name in ("fc1", "fc2", "head"):
                weight = getattr(linear, name).weight
                getattr(model, name).weight.copy_(weight if name == "head" else weight.T)
                getattr(model, name).bias.copy_(getattr(linear, name).bias)
    return model.to(dtype)


golden = {"base." + name: p.detach().clone() for name, p in net().named_parameters()}
torch.manual_seed(3)
golden["x"] = torch.randn(5, 6)


def case(name, dtype=torch.float32, write=True, **settings):
    conv = name == "conv"
    model = peft.get_peft_model(net(conv, dtype), peft.LoraConfig(target_modules=["fc1", "fc2"], **settings))
    torch.manual_seed(11)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for n, p in trained.items():
            if "lora_B" in n:
                p.normal_(std=0.3)
            elif "lora_" not in n:
                p.add_(torch.randn(p.shape) * 0.1)
    if write:
        folder = os.path.join(HERE, "lora", name)
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        os.remove(os.path.join(folder, "README.md"))
    x = golden["x"].to(dtype)
    y = model(x)
    golden[name + "/y"] = y
    (y.float() ** 2).mean().backward()
    for n, p in trained.items():
        key = n.replace(".default", "").replace(".modules_to_save", "").replace("base_model.model.", "")
        golden[name + "/grad." + key] = p.grad
    merged = copy.deepcopy(model)
    merged.merge_adapter()
    weight = merged.base_model.model.fc1.get_base_layer().weight
    golden[name + "/merged.fc1"] = weight.T.contiguous() if conv else weight
    torch.optim.SGD(trained.values(), lr=0.5).step()
    golden[name + "/after"] = model(x)


case("plain", r=4, lora_alpha=6)
case("bf16", dtype=torch.bfloat16, r=4, lora_alpha=6)
case("conv", r=2, fan_in_fan_out=True)
case("all", r=4, lora_alpha=6, use_rslora=True, rank_pattern={"fc2": 2}, alpha_pattern={"fc2": 5},
     bias="lora_only", modules_to_save=["head"])

base = net()
torch.manual_seed(0)
drawn = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["fc1", "fc2"]))
for layer in ("fc1", "fc2"):
    golden[f"drawn.{layer}.A"] = getattr(drawn.base_model.model, layer).lora_A["default"].weight

save_file({k: v.detach().contiguous() for k, v in golden.items()}, os.path.join(HERE, "lora.safetensors"))
