/*
 * lora.h - adapters, for the files that change them and those that read and write them.
 */
#ifndef TENON_EXT_LM_LORA_H
#define TENON_EXT_LM_LORA_H

#include <tenon/lora.h>

#include "base/map.h"

/* One of an adapter's two matrices, with its settings, which A's forward reads. */
typedef struct tni_factor {
    tn_module base;
    tn_tensor *weight; /* A [rank, in], B [out, rank] */
    double scale, alpha, dropout;
    bool rslora, frozen;
} tni_factor;

/* What takes the place of a Linear. */
typedef struct tni_lora {
    tn_module base;
    tn_module *base_layer, *a, *b; /* a, b: ModuleDicts of factors, by the adapters' names */
    tn_tensor *merged;             /* W + scale B A, or absent */
    tni_factor *now_a, *now_b;     /* the active adapter's, without slots; NULL: none */
    uint64_t merged_of;            /* versions of what it was made of */
} tni_lora;

/* m if it is one, else NULL (no message). */
tni_lora *tni_lora_of(const tn_module *m);
/* The weight [out, in] of a layer that an adapter can go beside, or of a LoraLinear's: of bytes in
 * an Int8Linear. NULL (no message) for other modules. */
tn_tensor *tni_lora_weight(const tn_module *layer);
/* Of an active adapter: changes with W, A and B. */
uint64_t tni_lora_versions(const tni_lora *m);
/* The factor of an adapter in a dict, NULL if it is not there; the name of one that is. */
tni_factor *tni_factor_named(const tn_module *dict, const char *name);
const char *tni_factor_name(const tn_module *dict, const tni_factor *f);

/* A child in its parent: what an adapter can be put around. */
typedef struct tni_site {
    tn_module *parent, *module;
    const char *name; /* of the child; as long as it stays */
    char *path;       /* from the root */
} tni_site;

/* All children below a root but those within a LoraLinear. Zeroed, it is empty. */
typedef struct tni_sites {
    tni_site *at;
    size_t n, capacity;
    tni_map known;
} tni_sites;
tn_status tni_sites_find(const char *function, tn_module *m, tni_sites *sites);
void tni_sites_free(tni_sites *sites);

/* A place for an adapter, and what was made there. */
typedef struct tni_graft {
    const tni_site *site;
    tni_lora *lora;
    tn_tensor *a, *b; /* values, NULL: to be drawn */
    int64_t rank;
    double alpha;
    bool added; /* the adapter is in lora */
} tni_graft;

/* Puts n adapters with the options' other settings into the model, or changes nothing. */
tn_status tni_lora_graft(const char *function, tni_graft *graft, size_t n, const tn_lora_options *o,
                         bool frozen);
void tni_lora_take_back(tni_graft *graft, size_t n, const char *name);
/* Freezes all of m but what the options name and the adapter, which becomes the active one. */
tn_status tni_lora_choose(const char *function, tn_module *m, const tn_lora_options *o);

#endif
