#!/usr/bin/env python3
"""Makes lm/lora.safetensors and the folders in lm/lora/: what the peft package computes and writes.

usage: python3 tests/golden/make_lm_lora.py      made with peft 0.21.2, PyTorch 2.15, transformers 5.24

Cases plain, rslora, bf16, conv: y = head(relu(fc2(relu(fc1(x))))), fc1 [6, 8], fc2 [8, 8], head [8, 3]; in conv, fc1 and
fc2 are GPT-2's Conv1D, whose weights are transposed. base.* are the weights, x the input. Case gpt2: the model in lm/gpt2
(Conv1D, tied weights), adapters of c_attn and c_proj, ids. Of each case: lm/lora/CASE, the adapter as peft writes it, B
not zero; CASE/y; CASE/after.NAME, its values by the names of the file after three steps of AdamW with rate 0.01 on
mean(y^2), and CASE/after, y then; CASE/merged, the weight of the first adapted layer [out, in] once merged, of the folder.
drawn.fc1 and drawn.fc2: A as drawn after torch.manual_seed(0).
"""
import copy
import json
import os
import shutil

import peft
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM
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
    linear, model = Net(False), Net(conv)
    torch.manual_seed(7)
    with torch.no_grad():
        for (name, p), q in zip(linear.named_parameters(), model.parameters()):
            p.normal_(std=0.5)
            q.copy_(p.T if conv and name in ("fc1.weight", "fc2.weight") else p)
    return model.to(dtype)


golden = {"base." + name: p.detach().clone() for name, p in net().named_parameters()}
torch.manual_seed(3)
golden["x"] = torch.randn(5, 6)
golden["ids"] = (torch.arange(3, 27).reshape(2, 12) * 7) % 48


def case(name, base, targets, **settings):
    gpt2 = name == "gpt2"
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=targets, **settings))
    torch.manual_seed(11)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for n, p in trained.items():
            if "lora_B" in n:
                p.normal_(std=0.3)
    folder = os.path.join(HERE, "lora", name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    config = json.load(open(path)) | {"base_model_name_or_path": None}  # it has this machine's path
    json.dump(config, open(path, "w"), indent=2)
    merged = copy.deepcopy(model)
    merged.merge_adapter()
    layer = merged.base_model.model.transformer.h[0].attn.c_attn if gpt2 else merged.base_model.model.fc1
    weight = layer.get_base_layer().weight.detach()
    golden[name + "/merged"] = weight.T if name in ("gpt2", "conv") else weight

    def run():
        return model(golden["ids"]).logits if gpt2 else model(golden["x"].to(base.fc1.weight.dtype))

    model.eval()  # GPT-2's own dropout
    golden[name + "/y"] = run()
    step = torch.optim.AdamW(trained.values(), lr=0.01, weight_decay=0.01)
    for _ in range(3):
        step.zero_grad()
        (run().float() ** 2).mean().backward()
        step.step()
    golden[name + "/after"] = run()
    for n, p in trained.items():
        golden[f"{name}/after.{n.replace('.default', '')}"] = p


linears = ["fc1", "fc2"]
case("plain", net(), linears, r=4, lora_alpha=6)
case("rslora", net(), linears, r=4, lora_alpha=6, use_rslora=True, lora_dropout=0.25)
case("bf16", net(dtype=torch.bfloat16), linears, r=4, lora_alpha=6)
case("conv", net(conv=True), linears, r=2, fan_in_fan_out=True)
case("gpt2", AutoModelForCausalLM.from_pretrained(os.path.join(HERE, "gpt2")), ["c_attn", "c_proj"], r=3, lora_alpha=4,
     fan_in_fan_out=True)

base = net()
torch.manual_seed(0)
drawn = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=linears))
for layer in linears:
    golden["drawn." + layer] = getattr(drawn.base_model.model, layer).lora_A["default"].weight

save_file({k: v.detach().contiguous() for k, v in golden.items()}, os.path.join(HERE, "lora.safetensors"))
