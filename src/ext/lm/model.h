/* model.h - the modules of language models. */
#pragma once

#include "ext/lm/config.h"
#include "nn/module.h"

/* The inputs of attention and of a layer around it. */
enum { TNI_X, TNI_COSINE, TNI_SINE, TNI_MASK, TNI_SLOTS, TNI_INPUTS };
/* TNI_MASK: bool, true hides. TNI_SLOTS, on the CPU, [2, B] i64: how many tokens of each text the
 * cache holds, and how many come; TN_NONE: without cache. */

/* TN_OK if self is called with so many inputs, of several the last being slots, and outputs. */
static inline tn_status tni_lm_called(const tn_module *self, int n_in, tn_tensor *const *in,
                                      int want_in, int n_out)
{
    if (n_in != want_in || n_out != 1)
        return tni_error(TN_E_INVALID, "%s: %d inputs, %d outputs: want %d and 1", self->type->name,
                         n_in, n_out, want_in);
    const tn_tensor *slots = n_in > 1 ? in[n_in - 1] : TN_NONE;
    if (tn_is_none(slots) || (tn_dtype_of(slots) == TN_I64 && tn_rank(slots) == 2 &&
                              tn_size(slots, 0) == 2 && tn_size(slots, 1) == tn_size(in[0], 0) &&
                              tn_device_of(slots).type == TN_CPU && tn_is_contiguous(slots)))
        return TN_OK;
    return tni_error(TN_E_SHAPE, "%s: slots: want i64 [2, B] on the CPU", self->type->name);
}
/* A Linear as a child of m, in *field; name NULL: there is none. */
static inline void tni_lm_linear(tn_module *m, const char *name, tn_module **field, int64_t in,
                                 int64_t out, bool bias)
{
    const tn_linear_options o = { .no_bias = !bias };
    if (name)
        tn_register_module(m, name, field, tn_linear_new(in, out, o));
    else
        *field = TN_NO_MODULE;
}
tn_module *tni_lm_norm_new(const tni_lm_config *c); /* over the hidden states */
/* Attention, and names of its children: of query, key, value (only the first: one for all three)
 * and output (or none). */
tn_module *tni_lm_attention_new(const tni_lm_config *c, int64_t layer, const char *const names[4]);
/* An empty cache; batch 0: none. Does nothing to other modules. */
tn_status tni_lm_attention_cache(tn_module *m, int64_t batch, int64_t capacity, tn_dtype dtype);

/* A model. */
typedef struct tni_lm {
    tn_module base;
    /* the layers with all around them, and lm_head; of BERT embeddings, encoder, pooler */
    tn_module *part[3];
    tn_tensor *lengths; /* of the cache; TN_NONE: there is none */
    int64_t capacity;
    tni_lm_config c;
    char *text; /* of config.json */
} tni_lm;

/* The first embedding's weight: its dtype is the model's. */
tn_tensor *tni_lm_table(tni_lm *m);
/* m if it is one, else NULL and a message. */
tni_lm *tni_lm_of(const char *function, const tn_module *m);
/* The model of a config.json or its folder, with initial values drawn or not. */
tn_module *tni_lm_make(const char *function, const char *config, bool draws);
/* The children of m, "model" and "lm_head". The first takes ids, and slots (TNI_SLOTS) if there is
 * a cache, and gives hidden states [B, T, H]. */
void tni_lm_decoder_register(tni_lm *m);
/* 0, 1, ... from where each text ends: [T], or [B, T] where that differs; on ids' device. */
tn_tensor *tni_lm_positions(tn_tensor *ids, tn_tensor *slots, int64_t *last);
/* The children of m, "embeddings", "encoder" and "pooler"; and m's forward. */
void tni_lm_bert_register(tni_lm *m);
tn_status tni_lm_bert_forward(const tni_lm *m, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out);
