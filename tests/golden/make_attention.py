#!/usr/bin/env python3
"""Makes attention.safetensors: attention, encoder and decoder layers, forward and backward, by PyTorch.

usage: python3 tests/golden/make_attention.py [FILE]      needs PyTorch 2

For each CASE below, in f64: CASE/param/NAME and CASE/grad/NAME of every parameter; CASE/x, CASE/dx and, where there
is one, CASE/memory, CASE/dmemory; masks as given; CASE/y and CASE/seed, the cotangent that the gradients are for, and
CASE/weights of attention.
init/NAME: the initial values in f32 of attention with bias_k and bias_v, after manual_seed(42).
"""
import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn

tensors = {}
future = torch.ones(3, 3, dtype=torch.bool).triu(1)
padding = torch.tensor([[False, False, True], [False, False, False]])
memory_mask = torch.tensor([[False, True, False, False], [False, False, False, True], [True, False, False, False]])
memory_padding = torch.tensor([[False, False, False, True], [False, True, False, False]])


def case(name, m, call, memory=True, **masks):
    """call(m, x, memory): y, or y and weights."""
    torch.manual_seed(sum(name.encode()))
    m = m.double().train()
    m.zero_grad()
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape) * 0.5)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    given = {"x": x}
    if memory:
        given["memory"] = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    y = call(m, x, given.get("memory"))
    if isinstance(y, tuple):
        tensors[f"{name}/weights"] = y[1].detach().contiguous()
        y = y[0]
    seed = torch.randn(y.shape, dtype=torch.float64)
    (y * seed).sum().backward()
    tensors[f"{name}/y"], tensors[f"{name}/seed"] = y.detach().contiguous(), seed
    for key, value in m.named_parameters():
        tensors[f"{name}/param/{key}"] = value.detach().clone()
        tensors[f"{name}/grad/{key}"] = value.grad.clone()
    for key, value in given.items():
        tensors[f"{name}/{key}"] = value.detach().clone()
        tensors[f"{name}/d{key}"] = value.grad.clone()
    for key, value in masks.items():
        tensors[f"{name}/{key}"] = value.clone()


def decoder(**options):
    return nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True, **options)


def causal(m, x, memory):
    return m(x, memory, tgt_mask=future)


def masked(m, x, memory):
    return m(x, memory, tgt_mask=future, memory_mask=memory_mask, tgt_key_padding_mask=padding,
             memory_key_padding_mask=memory_padding)


every = {"mask": future, "padding": padding, "memory_mask": memory_mask, "memory_padding": memory_padding}
case("layer_post", decoder(), causal, mask=future)
case("layer_pre", decoder(norm_first=True, activation="gelu"), masked, **every)
case("layer_plain", decoder(bias=False, activation=nn.GELU("tanh"), layer_norm_eps=1e-3), masked, **every)
case("decoder", nn.TransformerDecoder(decoder(), 2, nn.LayerNorm(4)), masked, **every)
case("encoder_plain", nn.TransformerEncoderLayer(4, 2, 6, 0.0, nn.GELU("tanh"), batch_first=True, bias=False),
     lambda m, x, _: m(x, src_mask=future), memory=False, mask=future)
for name, options in {"bias_kv": {"add_bias_kv": True}, "zero_attn": {"add_zero_attn": True},
                      "both": {"add_bias_kv": True, "add_zero_attn": True}}.items():
    m = nn.MultiheadAttention(4, 2, batch_first=True, **options)
    case(name, m, lambda m, x, memory: m(x, memory, memory))
    case(name + "_causal", m, lambda m, x, _: m(x, x, x, attn_mask=future), memory=False, mask=future)
    case(name + "_padded", m, lambda m, x, memory: m(x, memory, memory, memory_padding, attn_mask=memory_mask),
         memory_mask=memory_mask, memory_padding=memory_padding)

torch.manual_seed(42)
for key, value in nn.MultiheadAttention(4, 2, add_bias_kv=True).named_parameters():
    tensors[f"init/{key}"] = value.detach().clone()

path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                          "attention.safetensors")
save_file(tensors, path, {"torch": torch.__version__, "made_by": "tests/golden/make_attention.py"})
print(f"{path}: {len(tensors)} tensors, {os.path.getsize(path)} bytes")
