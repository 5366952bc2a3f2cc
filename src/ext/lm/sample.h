/* sample.h - the choice of a token, row by row. */
#ifndef TENON_EXT_LM_SAMPLE_H
#define TENON_EXT_LM_SAMPLE_H

#include "base/base.h"

#include <tenon/generate.h>

typedef struct tni_candidate {
    float w; /* exp(logit - the largest logit) */
    int32_t id;
} tni_candidate;

/* Room for one row of n logits, and what happens to it. */
typedef struct tni_sampler {
    const char *function; /* for messages */
    tn_sampling_options o;
    int64_t n;
    tni_candidate *t; /* the block: [n] each, */
    float *x;         /* the row's logits, */
    float *w;         /* and what they weigh */
    bool *seen;       /* all false between rows */
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

#endif
