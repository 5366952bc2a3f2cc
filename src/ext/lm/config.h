/* config.h - what a config.json says of a language model, checked. */
#pragma once

#include <tenon/lm.h>

#include "io/json_tree.h"

enum { TNI_LM_LAYERS = 1024, TNI_LM_HEAD = 1024, TNI_LM_ENDS = 8, TNI_LM_FILE = 1 << 24 };

typedef enum tni_rope_type {
    TNI_ROPE_DEFAULT,
    TNI_ROPE_LINEAR,
    TNI_ROPE_LLAMA3,
    TNI_ROPE_YARN
} tni_rope_type;

/* Rotary positions; a field that the file lacks is 0 until config.c has checked it. */
typedef struct tni_rope {
    int64_t type; /* tni_rope_type */
    int64_t dim;  /* elements of a head */
    double theta, factor, original, low, high;
    double slow, fast; /* of yarn: turns in the original context */
    double attention;  /* queries and keys are multiplied by this */
    double partial;
} tni_rope;

void tni_rope_frequencies(const tni_rope *r, float *frequency); /* dim / 2 of them */

typedef enum tni_lm_family { TNI_LM_GPT2 = 1, TNI_LM_LLAMA = 2, TNI_LM_BERT = 4 } tni_lm_family;

typedef struct tni_lm_config {
    union {
        tn_lm_info info; /* its members by shorter names; capacity is not used */
        struct {
            char type[32];
            int64_t vocab, hidden, layers, heads, kv_heads, head_dim, positions, bos, pad;
            int n_eos;
            int64_t eos[TNI_LM_ENDS];
        };
    };
    unsigned family;            /* tni_lm_family */
    int64_t inner, token_types; /* of the feed-forward net; what a token may be in, of BERT */
    double eps, range, embed_drop, attn_drop, resid_drop;
    double theta, partial, original; /* of rotary positions, outside their object */
    tn_tensor *(*act)(tn_tensor *x);
    bool tied, qkv_bias, o_bias, mlp_bias, qk_norm;
    bool scaled, by_layer; /* attention: by 1 / sqrt(head_dim); by 1 / (layer + 1) besides */
    size_t dtype_at; /* in the text, of the weights' dtype, behind its quote; 0: it is not there */
    bool ends_apart; /* eos is that of generation_config.json */
    tni_rope rope;
} tni_lm_config;

/* Makes the folder, if it is not there. */
tn_status tni_lm_folder(const char *function, const char *folder);
/* *path, the file itself, or its folder, becomes that of the file in `inside`. */
tn_status tni_lm_file(const char *function, const char **path, const char *name, char *inside,
                      size_t size);
/* Reads a JSON object, of a file where text is empty; text is destroyed. */
tn_status tni_lm_tree(const char *function, const char *path, tni_bytes *text, tni_json_tree *tree);
/* A config.json, of a path for messages; text NULL: what ends a text in the generation_config.json
 * that path names. */
tn_status tni_lm_config_read(tni_lm_config *c, const char *f, const char *path, const char *text);
