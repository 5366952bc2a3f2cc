/* model.h - the live page's model: its layers in a row, one call at a time, so that all that passes
 * between them can be seen. */
#pragma once

#include <tenon/tenon.h>

#include "data.h"

enum { LIVE_LAYERS = 24 };

/* What a line asked for. */
typedef struct live_layer {
    char kind[16];
    double number; /* outputs, channels, heads, probability, momentum; 0: none given */
    bool no_bias;
} live_layer;

typedef struct live_model {
    tn_module *net; /* tn_sequential; NULL: none. Its last child is the output layer. */
    int n;
    live_layer layer[LIVE_LAYERS];
    tn_tensor *in, *act[LIVE_LAYERS]; /* of the last call, alive as long as the caller's scope */
} live_model;

/** Makes net for data from n layers and an output layer, which it adds to them; tied: the output
 *  layer's weight is the embedding's. Returns what was wrong, or NULL; then m is as it was. */
const char *live_model_make(live_model *m, const live_layer *layer, int n, const live_data *d,
                            bool tied);
void live_model_free(live_model *m);
/** The output for x, each layer's kept in act; retain: their gradients will be, too. */
tn_tensor *live_model_call(live_model *m, tn_tensor *x, bool retain);
/** Attention weights [T, T] of a head of block l, of the last call's first text; NULL: none. */
tn_tensor *live_attention(live_model *m, int l, int head);
