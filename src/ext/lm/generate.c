/*
 * generate.c - token after token.
 *
 * All rows take every step, finished ones with their last token again: their caches have room, as
 * none began behind the longest prompt. Logits come to the host, where tokens are chosen
 * (sample.c). The step has a scope, and no other is open while the callback runs.
 */
#include "ext/lm/generate.h"

#include "autograd/op.h"
#include "io/file.h"

#include <tenon/tenon.h>

typedef struct row {
    tn_generated_row *out;
    int64_t *ids; /* the prompt's, and those of out */
    int64_t n_prompt;
    float *log_probs;
    tn_token_stream *stream;
    tni_bytes text; /* out->text, and a zero that does not count */
    size_t told;
    bool done;
} row;

/* One block: this, the rows of out, the rows of row, ids, log-probabilities. */
typedef struct made {
    tn_generated out;
    size_t size;
    row *row;
} made;

typedef struct run {
    const tni_decoder *decoder;
    tn_module *m;
    const tn_generate_options *o;
    int64_t n, most; /* rows; new tokens of each */
    made *made;
    tni_sampler sampler;
    float *logits;     /* [n, sampler.n] */
    int64_t *input;    /* [n, longest], later [n, 1]; and behind it */
    int64_t *lengths;  /* [n], */
    int64_t *suppress; /* [n_suppress + n_eos]: the options', then what ends a row */
    int64_t longest, n_suppress, n_eos;
} run;

/* ---- text ------------------------------------------------------------------------------------ */

/* Ends the text before the first stop string. Before r->told none can begin. */
static bool stopped(const run *g, row *r)
{
    char *first = NULL;
    for (int64_t i = 0; i < g->o->n_stop; i++) {
        char *at = strstr(r->text.data + r->told, g->o->stop[i]);
        if (at && (!first || at < first)) first = at;
    }
    if (!first) return false;
    *first = '\0';
    r->text.n = (size_t)(first - r->text.data);
    return true;
}

/* Where the text's longest end begins that a stop string begins with. */
static size_t certain(const run *g, const row *r)
{
    const size_t n = r->text.n;
    size_t end = n;
    for (int64_t i = 0; i < g->o->n_stop; i++) {
        size_t most = strlen(g->o->stop[i]) - 1;
        for (size_t k = TNI_MIN(most, n - r->told); k > n - end; k--)
            if (!memcmp(r->text.data + n - k, g->o->stop[i], k)) end = n - k;
    }
    return end;
}

static tn_status add_text(const run *g, row *r, const char *piece)
{
    if (!piece) return tni_pending();
    tni_bytes_add(&r->text, piece, strlen(piece) + 1);
    if (r->text.failed) return tni_pending();
    r->text.n--;
    r->out->text = r->text.data;
    if (!stopped(g, r)) return TN_OK;
    r->done = true;
    r->out->finish = TN_FINISH_STOP;
    return TN_OK;
}

/* Adds what a token says, and moves r->told behind what is certain. */
static tn_status add_token(const run *g, row *r, int64_t id)
{
    TNI_TRY(add_text(g, r, tn_token_stream_add(r->stream, id)));
    if (r->done && r->out->finish != TN_FINISH_STOP)
        TNI_TRY(add_text(g, r, tn_token_stream_end(r->stream)));
    r->told = r->done ? r->text.n : certain(g, r);
    return TN_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The logits behind the input [n, t]. */
static tn_status advance(const run *g, int64_t t, const int64_t *lengths)
{
    TNI_UNRECORDED;
    tn_tensor *n = lengths ? tn_from_ints(lengths, TN_SHAPE(g->n)) : TN_NONE;
    tn_tensor *ids = tn_from_ints(g->input, TN_SHAPE(g->n, t));
    const tn_list *all = tn_parameters(g->m);
    if (all && all->n) ids = tn_to(ids, tn_device_of(all->entry[0].tensor));
    tn_tensor *y = n && ids ? g->decoder->next(g->m, ids, n) : NULL;
    size_t size = (size_t)g->n * (size_t)g->sampler.n * sizeof *g->logits;
    return y ? tn_copy_out(y, g->logits, size, TN_F32) : tni_pending();
}

/* The next token of row i. */
static tn_status choose(run *g, int64_t i)
{
    row *r = &g->made->row[i];
    int64_t step = r->out->n;
    const float *logits = g->logits + i * g->sampler.n;
    tni_history h = { r->ids, r->n_prompt + step, step };
    g->sampler.o.n_suppress = g->n_suppress + (step < g->o->min_new_tokens ? g->n_eos : 0);
    TNI_TRY(tni_sampler_process(&g->sampler, logits, i, h));
    int64_t id = tni_sampler_choose(&g->sampler, i, step);
    r->ids[r->n_prompt + step] = id;
    if (r->log_probs)
        r->log_probs[step] = (float)((double)logits[id] - tni_log_sum_exp(logits, g->sampler.n));
    r->out->n++;
    bool end = false;
    for (int64_t k = 0; k < g->n_eos; k++) end |= g->suppress[g->n_suppress + k] == id;
    r->out->finish = end ? TN_FINISH_EOS : TN_FINISH_LENGTH;
    r->done = end || r->out->n == g->most;
    return TN_OK;
}

/* Tells row i's last token; false in *go_on: the callback has enough. */
static tn_status tell(const run *g, int64_t i, bool *go_on)
{
    row *r = &g->made->row[i];
    int64_t step = r->out->n - 1, id = r->out->ids[step];
    size_t from = r->told;
    if (r->stream) TNI_TRY(add_token(g, r, id));
    if (!g->o->on_token) return TN_OK;
    char *end = r->stream ? r->text.data + r->told : NULL, held = end ? *end : '\0';
    if (end) *end = '\0';
    tn_generated_token token = { .row = i, .step = step, .id = id, .last = r->done };
    token.finish = r->out->finish;
    token.log_prob = r->log_probs ? r->log_probs[step] : NAN;
    token.text = end ? r->text.data + from : NULL;
    *go_on = g->o->on_token(&token, g->o->user);
    if (end) *end = held;
    return TN_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* One token for each row that goes on, as the next input, until none does. */
static tn_status steps(run *g)
{
    TNI_TRY(advance(g, g->longest, g->lengths));
    for (bool go_on = true, wanted = true; go_on;) {
        go_on = false;
        for (int64_t i = 0; i < g->n && wanted; i++) {
            row *r = &g->made->row[i];
            if (r->done) continue;
            TNI_TRY(choose(g, i));
            TNI_TRY(tell(g, i, &wanted));
            go_on |= !r->done;
        }
        for (int64_t i = 0; i < g->n; i++) {
            const row *r = &g->made->row[i];
            g->input[i] = r->ids[r->n_prompt + r->out->n - 1];
            if (!wanted && !r->done) r->out->finish = TN_FINISH_CALLBACK;
        }
        go_on = go_on && wanted;
        if (go_on) TNI_TRY(advance(g, 1, NULL));
    }
    return TN_OK;
}

/* In eval mode, with an empty cache. What was there comes back. */
static tn_status with_cache(run *g, const tn_lm_info *info)
{
    int64_t room = g->longest + g->most - 1;
    const tn_tensor *cache = g->decoder->cache(g->m);
    bool there = cache && !tn_is_none(cache), trained = tn_training(g->m);
    bool fits = there && tn_size(cache, 0) == g->n && info->capacity >= room;
    tn_status status = trained ? tn_eval(g->m) : TN_OK;
    if (status == TN_OK) status = g->decoder->set_cache(g->m, g->n, fits ? info->capacity : room);
    if (status == TN_OK) status = steps(g);
    if (!fits) tni_disregard(g->decoder->set_cache(g->m, 0, 0));
    if (trained) tni_disregard(tn_train(g->m, true));
    return status;
}

/* ---- before and after ------------------------------------------------------------------------ */

static tn_status check_options(const tn_generate_options *o)
{
    const int64_t most = INT32_MAX;
    TNI_NUMBERS(int64_t) = {
        { "max_new_tokens", o->max_new_tokens, 0, most },
        { "min_new_tokens", o->min_new_tokens, 0, INT64_MAX },
        { "per_prompt", o->per_prompt, 0, most },
        { "n_eos", o->n_eos, -1, o->eos ? most : 0 },
        { "n_stop", o->n_stop, 0, o->stop ? most : 0 },
    };
    TNI_CHECK_NUMBERS("tn_generate", "%" PRId64);
    if (o->n_stop > 0 && !o->tokenizer)
        return tni_error(TN_E_INVALID, "tn_generate: stop without a tokenizer: want .tokenizer");
    for (int64_t i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !*o->stop[i])
            return tni_error(TN_E_INVALID, "tn_generate: empty stop string %" PRId64, i);
    return TN_OK;
}

static tn_status check_prompts(run *g, const tn_prompt *prompts, int64_t n, int64_t vocab)
{
    if (!prompts) return tni_poison("tn_generate", "prompts");
    if (n < 1 || n > INT32_MAX)
        return tni_error(TN_E_INVALID, "tn_generate: prompts %" PRId64 ": want 1 to 2^31 - 1", n);
    for (int64_t p = 0; p < n; p++) {
        if (!prompts[p].ids || prompts[p].n < 1 || prompts[p].n > INT32_MAX)
            return tni_error(TN_E_INVALID, "tn_generate: prompt %" PRId64 " has no ids", p);
        for (int64_t i = 0; i < prompts[p].n; i++)
            if (prompts[p].ids[i] < 0 || prompts[p].ids[i] >= vocab)
                return tni_error(TN_E_INDEX,
                                 "tn_generate: id %" PRId64 " in prompt %" PRId64
                                 ": want 0 to %" PRId64,
                                 prompts[p].ids[i], p, vocab - 1);
        g->longest = TNI_MAX(g->longest, prompts[p].n);
    }
    return TN_OK;
}

/* The result, with rows that have only their prompts. */
static made *made_new(const run *g, const tn_prompt *prompts)
{
    size_t cells = (size_t)(g->longest + g->most), size;
    size_t of_row = sizeof(tn_generated_row) + sizeof(row) + cells * sizeof(int64_t) +
                    (g->o->log_probs ? (size_t)g->most * sizeof(float) : 0);
    if (!tni_mul_size((size_t)g->n, of_row, &size) || !tni_add_size(size, sizeof(made), &size))
        return tni_fail(TN_E_NOMEM, "tn_generate: %" PRId64 " rows are too many", g->n);
    made *all = tni_calloc_n(1, size);
    if (!all) return NULL;
    all->size = size;
    all->out = (tn_generated){ g->n, (tn_generated_row *)(all + 1) };
    all->row = (row *)(all->out.rows + g->n);
    int64_t *ids = (int64_t *)(all->row + g->n);
    float *log_probs = (float *)(ids + (size_t)g->n * cells);
    for (int64_t i = 0; i < g->n; i++) {
        const tn_prompt p = prompts[i / TNI_MAX(g->o->per_prompt, 1)];
        row *r = &all->row[i];
        *r = (row){ .out = &all->out.rows[i], .ids = ids + (size_t)i * cells, .n_prompt = p.n };
        memcpy(r->ids, p.ids, (size_t)p.n * sizeof *p.ids);
        r->out->ids = r->ids + p.n;
        if (g->o->log_probs) r->out->log_probs = r->log_probs = log_probs + i * g->most;
    }
    return all;
}

/* The first input and what eos is; the text of each row, empty. */
static tn_status run_begin(run *g, const tn_lm_info *info)
{
    const tn_generate_options *o = g->o;
    g->lengths = g->input + g->n * g->longest;
    g->sampler.o.suppress = g->suppress = g->lengths + g->n;
    const int64_t *eos = o->n_eos ? o->eos : info->eos;
    for (int64_t i = 0; i < g->n_suppress; i++) g->suppress[i] = o->sampling.suppress[i];
    for (int64_t i = 0; i < g->n_eos; i++) g->suppress[g->n_suppress + i] = eos[i];
    for (int64_t i = 0; i < g->n; i++) {
        row *r = &g->made->row[i];
        g->lengths[i] = r->n_prompt;
        memcpy(g->input + i * g->longest, r->ids, (size_t)r->n_prompt * sizeof *r->ids);
        if (!o->tokenizer) continue;
        if (!(r->stream = tn_token_stream_new(o->tokenizer, (tn_decode_options){ 0 })))
            return tni_pending();
        TNI_TRY(add_text(g, r, ""));
    }
    return TN_OK;
}

tn_generated *tni_generate(const tni_decoder *decoder, tn_module *m, const tn_prompt *prompts,
                           int64_t n, const tn_generate_options *o)
{
    run g = { .decoder = decoder, .m = m, .o = o };
    tn_lm_info info;
    if (check_options(o) != TN_OK || decoder->info(m, &info) != TN_OK ||
        check_prompts(&g, prompts, n, info.vocab_size) != TN_OK)
        return NULL;
    g.n = n * TNI_MAX(o->per_prompt, 1);
    g.most = o->max_new_tokens ? o->max_new_tokens : 20;
    g.n_suppress = o->sampling.n_suppress;
    g.n_eos = o->n_eos < 0 ? 0 : o->n_eos ? o->n_eos : info.n_eos;
    tn_status status = tni_sampler_begin(&g.sampler, "tn_generate", info.vocab_size, &o->sampling);
    if (status != TN_OK || !(g.made = made_new(&g, prompts)))
        return tni_sampler_end(&g.sampler), NULL;
    TNI_ZEROED(int64_t, input, g.n * (g.longest + 1) + g.n_suppress + g.n_eos);
    TNI_ZEROED(float, logits, g.n *g.sampler.n);
    g.input = input, g.logits = logits;
    tn_module_keep(m);
    status = input && logits ? run_begin(&g, &info) : tni_pending();
    if (status == TN_OK) status = with_cache(&g, &info);
    for (int64_t i = 0; i < g.n; i++) tn_token_stream_free(g.made->row[i].stream);
    tni_sampler_end(&g.sampler);
    tn_module_drop(m);
    if (status == TN_OK) return &g.made->out;
    tn_generated_free(&g.made->out);
    return NULL;
}

void tn_generated_free(tn_generated *out)
{
    if (!out) return;
    made *all = (made *)out;
    for (int64_t i = 0; i < out->n; i++) tni_bytes_free(&all->row[i].text);
    tni_free(all, all->size);
}

tn_generated *tn_generate(tn_module *m, const tn_prompt *prompts, int64_t n, tn_generate_options o)
{
    static const tni_decoder decoder = { tn_lm_get_info, tn_lm_cache, tn_lm_set_cache, tn_lm_next };
    TNI_HOLD_TRAPS;
    return m ? tni_generate(&decoder, m, prompts, n, &o) : tni_poisoned("tn_generate", "m");
}
