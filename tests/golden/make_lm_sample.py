#!/usr/bin/env python3
"""Makes lm/sample.safetensors: logits, and what transformers' processors make of them.

usage: make_lm_sample.py     (PyTorch 2.15.0, transformers 5.24.0)

KIND/logits [5, 61] f32; history [5, 24] i64, -1 behind each row's end; CASE/KIND [5, 61]: the processed logits. Kinds:
plain, all different; ties, quarters, so that many are equal; holes, with -inf among them.
"""
import pathlib

import torch
from safetensors.torch import save_file
from transformers import (LogitsProcessorList, MinNewTokensLengthLogitsProcessor, MinPLogitsWarper,
                          NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor, SuppressTokensLogitsProcessor,
                          TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

HERE = pathlib.Path(__file__).resolve().parent
ROWS, V = 5, 61
LENGTHS = [24, 1, 9, 17, 3]

torch.manual_seed(7)
plain = torch.randn(ROWS, V) * 2.5
ties = (torch.randn(ROWS, V) * 4).round() / 4
holes = plain.clone()
holes[torch.rand(ROWS, V) < 0.3] = -float("inf")
kinds = {"plain": plain, "ties": ties, "holes": holes}
# Few different ids, so that sequences repeat; 120 is beyond the vocabulary.
history = torch.randint(0, 6, (ROWS, 24))
history[0, 5] = 120
for row, n in enumerate(LENGTHS):
    history[row, n:] = -1

cases = {
    "nothing": [],
    "repetition": [RepetitionPenaltyLogitsProcessor(1.3)],
    "reward": [RepetitionPenaltyLogitsProcessor(0.7)],
    "ngram1": [NoRepeatNGramLogitsProcessor(1)],
    "ngram2": [NoRepeatNGramLogitsProcessor(2)],
    "ngram3": [NoRepeatNGramLogitsProcessor(3)],
    "suppress": [SuppressTokensLogitsProcessor([0, 3, 60])],
    "min_new": [MinNewTokensLengthLogitsProcessor(0, 1, [0, 3, 60])],
    "temperature": [TemperatureLogitsWarper(0.7)],
    "hot": [TemperatureLogitsWarper(1.9)],
    "top_k1": [TopKLogitsWarper(1)],
    "top_k5": [TopKLogitsWarper(5)],
    "top_k200": [TopKLogitsWarper(200)],
    "top_p1": [TopPLogitsWarper(0.1)],
    "top_p6": [TopPLogitsWarper(0.6)],
    "top_p95": [TopPLogitsWarper(0.95)],
    "min_p1": [MinPLogitsWarper(0.1)],
    "min_p_all": [MinPLogitsWarper(1.0)],
    "all": [RepetitionPenaltyLogitsProcessor(1.2), NoRepeatNGramLogitsProcessor(2), SuppressTokensLogitsProcessor([0, 3, 60]),
            TemperatureLogitsWarper(1.4), TopKLogitsWarper(30), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)],
}

tensors = {"history": history}
for kind, logits in kinds.items():
    tensors[f"{kind}/logits"] = logits
    for case, processors in cases.items():
        rows = []
        for row, n in enumerate(LENGTHS):
            ids, x = history[row:row + 1, :n], logits[row:row + 1].clone()
            for p in LogitsProcessorList(processors):
                # A token that no row of logits has counts in sequences only.
                if isinstance(p, RepetitionPenaltyLogitsProcessor):
                    ids_of = ids[ids < V][None]
                elif isinstance(p, MinNewTokensLengthLogitsProcessor):
                    ids_of = ids[:, :0]
                else:
                    ids_of = ids
                x = p(ids_of, x)
            rows.append(x)
        tensors[f"{case}/{kind}"] = torch.cat(rows)
save_file({k: v.contiguous() for k, v in tensors.items()}, HERE / "lm" / "sample.safetensors")
