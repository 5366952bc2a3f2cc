#!/usr/bin/env python3
"""The workload of bench_gpt.c in PyTorch."""
import math

import common

# layers, d, heads, T, batch, tokens, rows of the table
SIZES = {"tiny": (2, 32, 2, 16, 2, 96, 96), "small": (4, 128, 4, 64, 32, 96, 96),
         "medium": (6, 384, 6, 256, 8, 96, 96), "gpt2": (12, 768, 12, 1024, 8, 50257, 50304)}

args = common.parse(steps=20, warmup=5, config="small")
L, D, H, T, B, TOKENS, V = SIZES[args.config]
HEAD = D // H
B, L, T, D = args.batch or B, args.layers or L, args.context or T, args.width or D
H = D // HEAD
torch = common.setup(args, f"gpt_{args.config}")
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def attention(q, k, v, mask):
    """PyTorch's fused kernels, unless --way says otherwise or it has none; on a GPU, flash attention
    needs bf16."""
    if args.attention == "fused" and hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(HEAD))
    return F.softmax(a.masked_fill(mask, float("-inf")), dim=-1) @ v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(D, dim=2)
        q, k, v = (z.view(b, t, H, D // H).transpose(1, 2) for z in (q, k, v))
        x = x + self.proj(attention(q, k, v, mask).transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Parameter(torch.empty(V, D)), nn.Parameter(torch.empty(T, D))
        self.h = nn.ModuleList(Block() for _ in range(L))
        self.lnf = nn.LayerNorm(D)
        self.register_buffer("mask", torch.triu(torch.ones(T, T, dtype=torch.bool), 1),
                             persistent=False)
        for n, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
            if n.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids):
        x = F.embedding(ids, self.wte) + self.wpe
        for block in self.h:
            x = checkpoint(block, x, self.mask, use_reentrant=False) if args.recompute else block(x, self.mask)
        x = self.lnf(x)
        return x if args.loss == "pieces" else F.linear(x, self.wte)


def batch(i):
    ids = common.tokens(torch, i, B, T, TOKENS)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(x, y):
    if args.loss == "pieces":
        return F.linear_cross_entropy(net(x).view(-1, D), table, y.view(-1), options=nn.LinearCrossEntropyOptions())
    return F.cross_entropy(net(x).view(-1, V), y.view(-1))


net = GPT()
if args.weights:
    common.load(torch, net, args.weights, (("attn.in_proj_weight", "qkv.weight"),
                                           ("attn.in_proj_bias", "qkv.bias"),
                                           ("attn.out_proj", "proj")))
net = net.to(args.device)
table = net.wte
opt = common.optimizer(torch.optim.AdamW, net.parameters(), lr=3e-4, betas=(0.9, 0.95),
                       weight_decay=0.1)
net = common.share(net, args)
if args.find_batch:
    found = 0
    while B <= args.find_batch and common.fits(args, net, opt, loss_of, batch):
        found, B = B, 2 * B
    common.line(args.name, "batch", [found])
else:
    parameters = sum(p.numel() for p in net.parameters())
    common.run(args, "tokens", B * T, net, opt, loss_of, batch, flop=6 * parameters + 12 * L * D * T)
