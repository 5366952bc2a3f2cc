/* model.h - the modules of language models. */
#ifndef TENON_EXT_LM_MODEL_H
#define TENON_EXT_LM_MODEL_H

#include "ext/lm/config.h"

/* The inputs of attention and of a layer around it. */
enum { TNI_X, TNI_COSINE, TNI_SINE, TNI_MASK, TNI_SLOTS, TNI_INPUTS };
/* TNI_MASK: bool, true hides. TNI_SLOTS, on the CPU, [2, B] i64: how many tokens of each text the
 * cache holds, and how many come; TN_NONE: without cache. */

/* Attention, and names of its children: of query, key, value (only the first: one for all three),
 * output (NULL: none). */
tn_module *tni_lm_attention_new(const tni_lm_config *c, int64_t layer, const char *const names[4]);
/* An empty cache; batch 0: none. Does nothing to other modules. */
tn_status tni_lm_attention_cache(tn_module *m, int64_t batch, int64_t capacity, tn_dtype dtype);

/* What every model begins with. */
typedef struct tni_lm {
    tn_module base;
    /* a decoder's layers and lm_head; an encoder's embeddings, layers, pooler */
    tn_module *part[3];
    tn_tensor *lengths; /* of the cache; TN_NONE: there is none */
    int64_t capacity;
    tni_lm_config c;
    char *text; /* of config.json */
    size_t n;
} tni_lm;

/* m if it is one, else NULL and a message. */
tni_lm *tni_lm_of(const char *function, const tn_module *m);
/* The model of a config.json or its folder, with initial values drawn or not. */
tn_module *tni_lm_make(const char *function, const char *config, bool draws);
/* The children of m: "model" and "lm_head"; "embeddings", "encoder" and "pooler". */
void tni_lm_decoder_register(tni_lm *m);
void tni_lm_bert_register(tni_lm *m);
/* Of decoders: ids, and slots (TNI_SLOTS) if there is a cache, to hidden states [B, T, H]. */
tn_status tni_lm_bert_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out);
/* "FOLDER/FILE", in size bytes. */
tn_status tni_lm_path(const char *function, const char *folder, const char *file, char *path,
                      size_t size);

#endif
