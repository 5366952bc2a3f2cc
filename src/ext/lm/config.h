/* config.h - what a config.json says of a language model, checked. */
#ifndef TENON_EXT_LM_CONFIG_H
#define TENON_EXT_LM_CONFIG_H

#include <tenon/lm.h>

#include "io/json.h"

enum { TNI_LM_LAYERS = 1024, TNI_LM_HEAD = 1024, TNI_LM_ENDS = 8 };

typedef enum tni_rope_type {
    TNI_ROPE_DEFAULT,
    TNI_ROPE_LINEAR,
    TNI_ROPE_DYNAMIC,
    TNI_ROPE_YARN,
    TNI_ROPE_LONGROPE,
    TNI_ROPE_LLAMA3
} tni_rope_type;

/* Rotary positions; a field that the file lacks is 0, or as rope.c says. */
typedef struct tni_rope {
    int64_t type;           /* tni_rope_type */
    int64_t dim, positions; /* elements of a head; max_position_embeddings */
    double theta, factor, original, low, high;
    double beta_fast, beta_slow, mscale, mscale_all, attention, partial;
    bool truncate;
    int n_short, n_long;
    float shorts[TNI_LM_HEAD / 2], longs[TNI_LM_HEAD / 2];
} tni_rope;

/* dim / 2 frequencies for a text of so many tokens; returns the factor of cosine and sine. */
double tni_rope_frequencies(const tni_rope *r, int64_t tokens, float *frequency);
/* Whether they depend on the number of tokens. */
static inline bool tni_rope_moves(const tni_rope *r)
{
    return r->type == TNI_ROPE_DYNAMIC || r->type == TNI_ROPE_LONGROPE;
}

typedef enum tni_lm_family { TNI_LM_GPT2 = 1, TNI_LM_LLAMA = 2, TNI_LM_BERT = 4 } tni_lm_family;

typedef struct tni_lm_config {
    unsigned family; /* tni_lm_family */
    char type[32];   /* model_type */
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, positions, token_types;
    double eps, range, embed_drop, attn_drop, resid_drop;
    double theta, default_theta, partial, original; /* of rotary positions, outside their object */
    tn_tensor *(*act)(tn_tensor *x);
    bool tied, qkv_bias, o_bias, mlp_bias, qk_norm;
    bool scaled, by_layer;      /* attention: by 1 / sqrt(head_dim); by 1 / (layer + 1) besides */
    int64_t pad, bos, interval; /* pad, bos: -1 is none; interval: of layers without rotation */
    int64_t eos[TNI_LM_ENDS];
    int n_eos, n_rotated;
    size_t dtype_at, dtype_end;  /* in the text, of the weights' dtype; both 0: it is not there */
    bool rotated[TNI_LM_LAYERS]; /* of the first n_rotated layers, if the file lists them */
    tni_rope rope;
} tni_lm_config;

/* Reads n bytes of JSON, which end in a zero. function, path: for messages. */
tn_status tni_lm_config_read(tni_lm_config *c, const char *function, const char *path,
                             const char *text, size_t n);
/* Whether the queries and keys of a layer are rotated. */
static inline bool tni_lm_rotates(const tni_lm_config *c, int64_t layer)
{
    if (c->family != TNI_LM_LLAMA) return false;
    if (c->n_rotated) return layer >= c->n_rotated || c->rotated[layer];
    return !c->interval || (layer + 1) % c->interval;
}

#endif
