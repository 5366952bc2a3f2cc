#!/usr/bin/env python3
"""The workload of bench_generate.c with transformers, from the folder that it wrote (--weights)."""
import time

import common

args = common.parse(steps=64, warmup=1, config="smollm2")
torch = common.setup(args, args.config)
from transformers import AutoModelForCausalLM  # noqa: E402

PROMPT, rows, context = 16, args.batch or 1, args.context or 512
model = AutoModelForCausalLM.from_pretrained(args.weights).to(args.device).eval()
vocab = model.config.vocab_size
text = common.tokens(torch, 0, 1, context, vocab)[:, :context].to(args.device)
starts = common.tokens(torch, 1, rows, PROMPT, vocab)[:, :PROMPT].to(args.device)
weights = torch.arange(args.steps) % 7 + 1


def read_prompt():
    t0 = time.perf_counter()
    model(text, use_cache=True, logits_to_keep=1)
    args.wait()
    return time.perf_counter() - t0


def write_tokens():
    t0 = time.perf_counter()
    ids = model.generate(starts, attention_mask=torch.ones_like(starts), max_new_tokens=args.steps,
                         min_new_tokens=args.steps, do_sample=False, pad_token_id=0, eos_token_id=None)
    args.wait()
    return time.perf_counter() - t0, (ids[:, PROMPT:].cpu() * weights).sum().item()


with torch.inference_mode():
    for _ in range(args.warmup):
        read_prompt(), write_tokens()
    for _ in common.rounds(args):
        common.line(args.name, "ms_prefill", [1e3 * read_prompt()])
        took, checksum = write_tokens()
        common.line(args.name, "tokens/s", [rows * args.steps / took])
        common.line(args.name, "checksum", [checksum])
        common.memory(args, args.name)
