/**
 * tenon/generate.h - text from language models: the choice of the next token, and the loop around
 * it.
 *
 *     tn_prompt prompt = { ids, n };
 *     tn_generate_options o = { .max_new_tokens = 50,
 *                               .sampling = { .temperature = 0.8, .top_p = 0.95, .seed = 1 } };
 *     tn_generated *made = tn_generate(model, &prompt, 1, o);
 *     for (int64_t i = 0; made && i < made->rows[0].n; i++) use(made->rows[0].ids[i]);
 *     tn_generated_free(made);
 *
 * Programs that call these functions link libtenon-lm as well: pkg-config gives all for tenon-lm.
 */
#ifndef TENON_GENERATE_H
#define TENON_GENERATE_H

#include <tenon/module.h>

TN_BEGIN_C_

/* ---- the choice of a token ------------------------------------------------------------------- */

/**
 * How the next token is chosen. zero fields: the most likely one (greedy), nothing held against it.
 *
 * They act in this order, as in transformers, each on what the one before left; a token that is
 * dropped has the logit -inf:
 *   repetition_penalty  p > 0, once for each token of the history: a logit below 0 times p, another
 *                       one divided by p. 0: 1, none. Keskar et al. (2019), sec. 4.1
 *   frequency_penalty   subtracted for each time that a token was generated. The prompt is exempt
 *   presence_penalty    subtracted from each token that was generated. The prompt is exempt
 *   no_repeat_ngram     n >= 1: drops what would end a sequence of n tokens that the history has
 *                       already. 0: off
 *   suppress            drops these tokens
 * and, if temperature > 0:
 *   temperature         divides the logits. 0 chooses the largest logit (of equal ones the first),
 *                       which is the limit of all that follows
 *   top_k               drops logits below the k-th largest; all that are equal to it stay. 0: off
 *   top_p               of the tokens from the most likely one on keeps those before which the
 *                       probabilities add up to less than p: as few as have p together. Of equally
 *                       likely ones the first stay. 0 or 1: all. Holtzman et al. (2020), eq. 2-3
 *   min_p               drops tokens less likely than min_p times the most likely one. 0: none.
 *                       Nguyen et al. (2025)
 * What stays is drawn from by its softmax.
 */
typedef struct tn_sampling_options {
    double repetition_penalty;                  /* above 0 */
    double frequency_penalty, presence_penalty; /* any sign */
    int64_t no_repeat_ngram;                    /* length of a sequence */
    const int64_t *suppress;                    /* n_suppress ids; others than 0..V-1 are ignored */
    int64_t n_suppress;                         /* how many */
    double temperature;                         /* 0: greedy; 1 is what the model was trained for */
    int64_t top_k;                              /* how many */
    double top_p, min_p;                        /* 0 to 1 */
    /** A draw depends on the seed, the number of the row and the step, and on nothing else: not on
     *  the other rows nor on how many they are. Philox 4x32-10, 53 bits. */
    uint64_t seed;
} tn_sampling_options;

/**
 * Chooses a token for each row of logits, for loops of your own.
 *
 * Shapes   logits [B, V], history [B, T] i64 or TN_NONE -> [B] i64, on the logits' device
 * History  a row's tokens so far are its entries from 0 on, in order; those below 0 are padding.
 *          The last `step` of them were generated, the others are the prompt's. Ids of V and more
 *          are no logit's, and only count in sequences
 * step     the number of tokens generated before this one: each step draws by other numbers
 * Cost     one pass over the logits for each option, on the host; top_p sorts nothing, and looks
 *          again only at tokens that could be among the kept
 * Errors   NULL: shapes; logits not floating; history not i64; step < 0; an option out of range; a
 *          row with a NaN, or where no token is left; out of memory
 */
TN_API tn_tensor *tn_sample_token(tn_tensor *logits, tn_tensor *history, int64_t step,
                                  tn_sampling_options o);

/** The logits that tn_sample_token draws from: f32 [B, V], -inf for what was dropped. tn_log_softmax of
 *  them has the log-probabilities. Errors: as tn_sample_token. */
TN_API tn_tensor *tn_process_logits(tn_tensor *logits, tn_tensor *history, int64_t step,
                                    tn_sampling_options o);

TN_END_C_
#endif
