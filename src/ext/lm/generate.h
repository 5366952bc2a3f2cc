/* generate.h - what generation asks of a model, so that tests can give it another; and the choice
 * of a token, row by row. */
#pragma once

#include <tenon/generate.h>
#include <tenon/lm.h>

#include "base/base.h"

/* As the functions tn_lm_... of lm.h. */
typedef struct tni_decoder {
    tn_status (*info)(const tn_module *m, tn_lm_info *info);
    tn_tensor *(*cache)(tn_module *m);
    tn_status (*set_cache)(tn_module *m, int64_t batch, int64_t capacity);
    tn_tensor *(*next)(tn_module *m, tn_tensor *ids, tn_tensor *lengths);
} tni_decoder;

tn_generated *tni_generate(const tni_decoder *decoder, tn_module *m, const tn_prompt *prompts,
                           int64_t n, const tn_generate_options *o);

/* Options, and what they may be; a function of them returns an error at the first that is not. */
#define TNI_NUMBERS(type)                                                                          \
    const struct {                                                                                 \
        const char *name;                                                                          \
        type value, low, high;                                                                     \
    } numbers[]
#define TNI_CHECK_NUMBERS(function, form)                                                          \
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)                                  \
        if (!(numbers[i].value >= numbers[i].low && numbers[i].value <= numbers[i].high))          \
    return tni_error(TN_E_INVALID, "%s: %s " form ": want " form " to " form, function,            \
                     numbers[i].name, numbers[i].value, numbers[i].low, numbers[i].high)

/* ---- the choice of a token (sample.c) -------------------------------------------------------- */

typedef struct tni_candidate {
    float w; /* exp(logit - the largest logit) */
    int32_t id;
} tni_candidate;

/* Room for one row of n logits, and what happens to it. */
typedef struct tni_sampler {
    const char *function; /* for messages */
    tn_sampling_options o;
    int64_t n;
    tni_candidate *t;    /* the block: [n] each, */
    float *x;            /* the row's logits, */
    float *w;            /* and what they weigh */
    unsigned char *seen; /* 1: in the prompt, 2: generated; 0 between rows */
} tni_sampler;

/* What a row has so far; the last n_new of the n ids were generated. */
typedef struct tni_history {
    const int64_t *ids;
    int64_t n, n_new;
} tni_history;

/* Checks the options, and makes the room. After a failure, too, tni_sampler_end may be called. */
tn_status tni_sampler_begin(tni_sampler *s, const char *function, int64_t n,
                            const tn_sampling_options *o);
void tni_sampler_end(tni_sampler *s);
/* Makes s->x, and for a draw s->w, of a row's logits. */
tn_status tni_sampler_process(tni_sampler *s, const float *logits, int64_t row, tni_history h);
/* Then the choice. */
int64_t tni_sampler_choose(const tni_sampler *s, int64_t row, int64_t step);
/* log sum exp of n numbers of which the largest is finite. */
double tni_log_sum_exp(const float *x, int64_t n);
