#!/usr/bin/env python3
"""Makes golden/lm/: small random models of transformers, saved by it, and what they compute.

usage: python3 tests/golden/make_lm_models.py [FOLDER]      needs PyTorch 2 and transformers 5

For each CASE of a decoder a folder with config.json and model.safetensors (GPT-2 in f32, the others in bf16, of weights that
bf16 holds), and CASE.safetensors: ids [2, 12]; logits; loss, the cross entropy of the next token; of the gradient
of each weight grad/NAME, its products with sin(1 i) and cos(2 i), i from 0 in row-major order, and its largest
element; greedy [64], the tokens by which generate() continues the first 6 of row 0; unequal [2, 48], how it
continues 6 of row 0 and 9 of row 1, each alone.
bert.safetensors: ids [2, 12], mask, types; hidden, pooled; gradients, as above, of the sums of both times sin(1 i).
rope.safetensors: frequencies of rotary positions by CASE.
"""
import copy
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "lm")


def fill(m, seed):
    """Weights larger than a new model's, so that everything in it counts; those that bf16 holds."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in m.named_parameters():
            x = torch.randn(p.shape, generator=g)
            if p.dim() == 1:
                x = 0.1 * x + (1 if "norm" in name.lower() or "ln_" in name else 0) * ("bias" not in name)
            else:
                x = 0.35 * x
            p.copy_(x.bfloat16().float())


def save(name, m, bf16):
    path = os.path.join(folder, name)
    shutil.rmtree(path, ignore_errors=True)
    saved = copy.deepcopy(m)  # a cast would round m's rotary frequencies for good
    (saved.bfloat16() if bf16 else saved).save_pretrained(path)
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(path, extra)):
            os.remove(os.path.join(path, extra))


def products(m, tensors):
    for name, p in m.named_parameters():
        g = p.grad.double().reshape(-1)
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            g = p.grad.double().t().reshape(-1)  # as Linear's
        i = torch.arange(g.numel(), dtype=torch.float64)
        tensors["grad/" + name] = torch.stack(
            [(g * torch.sin(i)).sum(), (g * torch.cos(2 * i)).sum(), g.abs().max()])


def greedy(m, prompt, n):
    ids, least = prompt[None], 1e9
    out = m.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, eos_token_id=None)
    with torch.no_grad():
        top = m(out).logits[0, len(prompt) - 1:-1].topk(2).values
    least = (top[:, 0] - top[:, 1]).min().item()
    return out[0, len(prompt):], least


def decoder(name, m, bf16=True):
    for seed in range(100):
        fill(m, 1000 * seed + sum(name.encode()))
        m.eval()
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, m.config.vocab_size, (2, 12), generator=g)
        runs = [greedy(m, ids[0, :6], 64), greedy(m, ids[0, :6], 48), greedy(m, ids[1, :9], 48)]
        if min(r[1] for r in runs) > 0.01 and len(set(runs[0][0].tolist())) > 8:
            break
    else:
        raise SystemExit(name + ": no seed without near ties")
    save(name, m, bf16)
    m.zero_grad()
    out = m(ids, labels=ids)
    out.loss.backward()
    tensors = {"ids": ids, "logits": out.logits.detach().contiguous(), "loss": out.loss.detach(),
               "greedy": runs[0][0].contiguous(), "unequal": torch.stack([runs[1][0], runs[2][0]])}
    products(m, tensors)
    save_file(tensors, os.path.join(folder, name + ".safetensors"))
    print(name, "seed", seed, "loss", out.loss.item(), "distinct", len(set(runs[0][0].tolist())))


os.makedirs(folder, exist_ok=True)
common = dict(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=128, bos_token_id=1, eos_token_id=2)
decoder("gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=48, n_embd=16, n_layer=2, n_head=4, n_positions=96, bos_token_id=1,
                                           eos_token_id=2, scale_attn_by_inverse_layer_idx=True)), bf16=False)
decoder("llama", LlamaForCausalLM(LlamaConfig(
    **common, num_key_value_heads=2, head_dim=8, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32})))
decoder("qwen2", Qwen2ForCausalLM(Qwen2Config(**common, num_key_value_heads=1, pad_token_id=0, rope_parameters={
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0})))
decoder("qwen3", Qwen3ForCausalLM(Qwen3Config(**common, num_key_value_heads=2, head_dim=8)))
decoder("smollm2", LlamaForCausalLM(LlamaConfig(**common, num_key_value_heads=4, tie_word_embeddings=True)))


def encoder(name, m):
    fill(m, 7)
    m.eval()
    save(name, m, True)
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(1, m.config.vocab_size, (2, 12), generator=g)
    types, mask = torch.randint(0, 2, (2, 12), generator=g), torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    hidden, pooled = m(ids, attention_mask=mask, token_type_ids=types, return_dict=False)
    sum((x * torch.sin(torch.arange(x.numel()).view_as(x))).sum() for x in (hidden, pooled)).backward()
    tensors = {"ids": ids, "mask": mask, "types": types, "hidden": hidden.detach().contiguous(),
               "pooled": pooled.detach().contiguous()}
    products(m, tensors)
    save_file(tensors, os.path.join(folder, name + ".safetensors"))


encoder("bert", BertModel(BertConfig(
    vocab_size=320, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=40)))
rope = {}
more = dict(linear=dict(factor=4.0),
            llama3=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
            yarn=dict(factor=2.0, original_max_position_embeddings=64))
for kind, values in more.items():
    c = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=128,
                    rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **values})
    rope[kind] = ROPE_INIT_FUNCTIONS[kind](c, "cpu")[0]
rope["default"] = 1.0 / (10000.0 ** (torch.arange(0, 32, 2).float() / 32))
save_file(rope, os.path.join(folder, "rope.safetensors"))
