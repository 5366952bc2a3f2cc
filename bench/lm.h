/*
 * lm.h - random language models for benchmarks, by --config:
 *
 *   tiny     a Llama of 2 layers, d 32: to see that it runs
 *   gpt2     GPT-2 124M: 12 layers, d 768, 12 heads, 50,257 tokens
 *   smollm2  a Llama as SmolLM2-135M: 30 layers, d 576, 9 heads and 3 of keys, 49,152 tokens, tied
 */
#ifndef BENCH_LM_H
#define BENCH_LM_H

#include "bench.h"

#include <tenon/lm.h>

/* The model, in train mode, on the chosen device; it is written to the folder --weights for the
 * twin, if there is one. *vocab: its tokens. */
tn_module *bench_lm(const bench_flags *f, tn_dtype dtype, int64_t *vocab);

#endif
