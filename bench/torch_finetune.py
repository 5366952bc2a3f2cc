#!/usr/bin/env python3
"""The workload of bench_finetune.c with transformers, and of --lora with peft, from the folder that it wrote (--weights)."""
import common

args = common.parse(steps=3, warmup=2, config="smollm2")
torch = common.setup(args, ("lora_" if args.lora else "lm_") + args.config)
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

rows, context = args.batch or 1, args.context or 1024
kind = torch.bfloat16 if args.lora and args.precision == "bf16" else torch.float32
net = AutoModelForCausalLM.from_pretrained(args.weights, dtype=kind).to(args.device).train()
vocab = net.config.vocab_size
if args.lora:
    from peft import LoraConfig, get_peft_model
    net = get_peft_model(net, LoraConfig(r=args.lora, lora_alpha=2 * args.lora, target_modules=["q_proj", "v_proj"]))


def batch(i):
    ids = common.tokens(torch, i, rows, context, vocab)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(x, y):
    if args.loss == "pieces":
        it = net.get_base_model() if args.lora else net
        return F.linear_cross_entropy(it.model(x, use_cache=False).last_hidden_state.flatten(0, 1), it.lm_head.weight, y.view(-1),
                                      options=torch.nn.LinearCrossEntropyOptions())
    return F.cross_entropy(net(x, use_cache=False).logits.float().view(-1, vocab), y.view(-1))


opt = common.optimizer(torch.optim.AdamW, [p for p in net.parameters() if p.requires_grad], lr=2e-4)
common.run(args, "tokens", rows * context, net, opt, loss_of, batch)
