/**
 * tenon/generate.h - text from language models: the choice of a token, and the loop around it.
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
#include <tenon/tokenizer.h>

TN_BEGIN_C_

/* ---- the choice of a token ------------------------------------------------------------------- */

/**
 * How the next token is chosen. zero fields: the most likely one (greedy), nothing held against it.
 *
 * They act in this order, as in transformers, each on what the one before left; a token that is
 * dropped has the logit -inf:
 *   repetition_penalty  p > 0, once for each token of the history: a logit below 0 times p, another
 *                       one divided by p. 0: 1, none. Keskar et al. (2019), sec. 4.1
 *   frequency_penalty   subtracted for each time that a token was generated, not in the prompt;
 *   presence_penalty    once
 *   suppress            drops these tokens
 * and, if temperature > 0:
 *   temperature         divides the logits. 0 chooses the largest logit (of equal ones the first),
 *                       which is the limit of all that follows
 *   top_k               drops logits below the k-th largest; all that are equal to it stay. 0: off
 *   top_p               of the tokens from the most likely one on keeps those before which the
 *                       probabilities add up to less than p: as few as have p together. Of equally
 *                       likely ones the first stay. 0 or 1: all. Holtzman et al. (2020), eq. 2-3
 *   min_p               drops tokens less likely than min_p times the most likely one. 0: none
 * What stays is drawn from by its softmax.
 */
typedef struct tn_sampling_options {
    double repetition_penalty;                  /* above 0 */
    double frequency_penalty, presence_penalty; /* any sign */
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
 *          The last `step` of them were generated, the others are the prompt's
 * step     the number of tokens generated before this one: each step draws by other numbers
 * Errors   NULL: shapes; logits not floating; history not i64; step < 0; an option out of range; a
 *          row with a NaN, or where no token is left; out of memory
 * PyTorch: torch.multinomial(processors(history, logits).softmax(-1), 1)
 */
TN_API tn_tensor *tn_sample_token(tn_tensor *logits, tn_tensor *history, int64_t step,
                                  tn_sampling_options o);

/** The logits that tn_sample_token draws from: f32 [B, V], -inf for what was dropped.
 *  tn_log_softmax of them has the log-probabilities. Errors: as tn_sample_token.
 *  PyTorch: transformers' LogitsProcessorList(...)(history, logits) */
TN_API tn_tensor *tn_process_logits(tn_tensor *logits, tn_tensor *history, int64_t step,
                                    tn_sampling_options o);

/* ---- the loop -------------------------------------------------------------------------------- */

/** A text to go on from: n >= 1 ids. */
typedef struct tn_prompt {
    const int64_t *ids; /* of tokens */
    int64_t n;          /* how many */
} tn_prompt;

/** Why a row ended. */
typedef enum tn_finish {
    TN_FINISH_LENGTH,  /* max_new_tokens */
    TN_FINISH_EOS,     /* its last token is one of eos */
    TN_FINISH_STOP,    /* its text has one of the stop strings, which its last token completed */
    TN_FINISH_CALLBACK /* on_token said so */
} tn_finish;

/** A token that was just chosen. */
typedef struct tn_generated_token {
    int64_t row, step; /* of which row, and how many tokens that had before */
    int64_t id;        /* the token */
    double log_prob;   /* NaN unless log_probs is set */
    /** The text that is certain since the row's last call, "" for none: bytes of a character that
     *  is not complete wait, and so does what may begin a stop string. NULL without a tokenizer. */
    const char *text;
    bool last;        /* no more of this row */
    tn_finish finish; /* then why */
} tn_generated_token;

/** zero fields: 20 tokens (as transformers), greedy, ended by the model's own tokens */
typedef struct tn_generate_options {
    int64_t max_new_tokens;        /* 0: 20 */
    int64_t min_new_tokens;        /* eos is suppressed before */
    int64_t per_prompt;            /* rows of each prompt, for several draws; 0: 1 */
    tn_sampling_options sampling;  /* how tokens are chosen */
    const int64_t *eos;            /* tokens that end a row; NULL: the model's */
    int64_t n_eos;                 /* how many; -1: none does */
    const tn_tokenizer *tokenizer; /* for text: rows[i].text, the callback's, stop strings */
    const char *const *stop;       /* strings that end a row; they need the tokenizer */
    int64_t n_stop;                /* how many */
    bool log_probs;                /* rows[i].log_probs */
    /** NULL, or called with each token, row by row in each step. false ends all rows. It must not
     *  use the model. */
    bool (*on_token)(const tn_generated_token *token, void *user);
    void *user; /* what on_token is given */
} tn_generate_options;

/** What a row has got. */
typedef struct tn_generated_row {
    int64_t n;          /* new tokens, eos included */
    const int64_t *ids; /* n of them */
    /** of each what the model itself gave it, before any option; NULL unless asked for */
    const float *log_probs;
    const char *text; /* up to a stop string, without special tokens; NULL without a tokenizer */
    tn_finish finish; /* why it ended */
} tn_generated_row;

/** What tn_generate made. Yours: tn_generated_free. */
typedef struct tn_generated {
    int64_t n;              /* rows: prompts times per_prompt */
    tn_generated_row *rows; /* prompt p's begin at p * per_prompt */
} tn_generated;

/**
 * Goes on from n prompts, token by token, all together. A prompt gives what it gives alone, up to
 * rounding; a row's draws depend on its number and the step (tn_sampling_options.seed).
 *
 * m        a decoder of lm.h. In train mode it is in eval mode meanwhile, and then all of it in
 *          train mode
 * Cache    the model's, if it has one for as many rows with room for the longest prompt and
 *          max_new_tokens, less one: emptied first. Else one that is gone in the end
 * Rows     that ended are computed on until the last one ends, and leave no trace
 * Memory   flat over the steps
 * Errors   NULL: no prompts, one without ids, an id that is none of the model's; an option out of
 *          range; a stop string without a tokenizer; those of tn_lm_next and tn_sample_token. What
 *          on_token was told is then all there is
 * PyTorch: model.generate(ids, max_new_tokens=..., do_sample=temperature > 0, top_k=0)
 */
TN_API tn_generated *tn_generate(tn_module *m, const tn_prompt *prompts, int64_t n,
                                 tn_generate_options o);
TN_API void tn_generated_free(tn_generated *made); /* frees it; NULL is ignored */

TN_END_C_
#endif
