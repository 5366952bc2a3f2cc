/* model.h - a decoder-only transformer as modules of this program's own; see model.c */
#pragma once

#include <tenon/tenon.h>

typedef struct gpt_sizes {
    int vocab, context, layers, heads, d_model;
    double dropout;
} gpt_sizes;

/**
 * Logits [B, T, vocab] for ids [B, T] (i64), T at most context: at each place, what comes next.
 *
 * Parameters  token.weight, blocks.N.{norm1,attention,norm2,up,down}..., norm.*, head.*
 * Buffers     position.pe [1, context, d_model], saved with the weights; mask [context, context]
 *             bool, not saved: it can be made again
 */
tn_module *gpt_new(gpt_sizes sizes);
