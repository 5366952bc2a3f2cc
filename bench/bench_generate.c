/*
 * bench_generate - a language model that reads and writes: the time of a prompt (prefill), and
 * greedy tokens per second (decoding), with a cache of keys and values. Models: lm.h.
 *
 * --int8            Linears' weights become bytes (tn_quantize_int8), the head's too
 * --weights FOLDER  where the model is written for the twin; random, in --precision's dtype
 * --context N       tokens of the prompt that is read, 512 by default; one row. ms_next: the token
 *                   behind it, which without a cache takes as long as the prompt
 * --batch N         rows that write together
 * --steps N         tokens that each of them writes, 64 by default, behind prompts of 16
 *
 * checksum: of the written ids. Twin: torch_generate.py; generate.py runs both by turns.
 */
#include "lm.h"

#include <tenon/generate.h>

enum { PROMPT = 16 };

/* Seconds until the logits behind n tokens are there, continuing the cache. */
static double read_tokens(tn_module *m, const int64_t *ids, int64_t n, const bench_flags *f)
{
    double t0 = bench_now();
    TN_SCOPE
    {
        tn_tensor *x = tn_to(tn_from_ints(ids, TN_SHAPE(1, n)), f->where);
        TN_CHECK_PTR(tn_lm_next(m, x, TN_NONE));
        bench_wait();
    }
    return bench_now() - t0;
}

/* The seconds of a prompt, and of the token behind it. */
static void read_prompt(tn_module *m, const int64_t *ids, const bench_flags *f, double took[2])
{
    TN_CHECK(tn_lm_set_cache(m, 1, f->context + 1));
    took[0] = read_tokens(m, ids, f->context, f);
    took[1] = read_tokens(m, ids + f->context, 1, f);
}

/* Seconds for all tokens; their checksum in *sum. */
static double write_tokens(tn_module *m, const tn_prompt *prompts, const bench_flags *f,
                           double *sum)
{
    int64_t rows = f->batch ? f->batch : 1;
    TN_CHECK(tn_lm_set_cache(m, rows, PROMPT + f->steps));
    double t0 = bench_now();
    tn_generated *made = tn_generate(
        m, prompts, rows, (tn_generate_options){ .max_new_tokens = f->steps, .n_eos = -1 });
    double took = bench_now() - t0;
    TN_CHECK_PTR(made);
    *sum = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t t = 0; t < f->steps; t++)
            *sum += (double)made->rows[r].ids[t] * (double)(t % 7 + 1);
    tn_generated_free(made);
    return took;
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(
        argc, argv, (bench_flags){ .config = "smollm2", .context = 512, .steps = 64, .warmup = 1 });
    const char *name = bench_name(&f, f.config);
    int64_t rows = f.batch ? f.batch : 1, *ids = malloc((size_t)(f.context + 1) * sizeof *ids);
    int64_t *starts = malloc((size_t)(rows * (PROMPT + 1)) * sizeof *starts);
    tn_prompt *prompts = malloc((size_t)rows * sizeof *prompts);
    if (!ids || !starts || !prompts || f.steps < 1 || f.context < 1) return 2;
    for (int64_t r = 0; r < rows; r++)
        prompts[r] = (tn_prompt){ starts + r * (PROMPT + 1), PROMPT };
    tn_scope program = tn_scope_begin();
    bench_banner(name);
    int64_t vocab;
    tn_module *m = bench_lm(&f, f.dtype, &vocab);
    TN_CHECK(tn_eval(m));
    if (f.int8) TN_CHECK(tn_quantize_int8(m, "*", 0));
    bench_tokens(0, 1, f.context, vocab, ids);
    bench_tokens(1, rows, PROMPT, vocab, starts);
    double sum = 0, took[2];
    for (int64_t i = 0; i < f.warmup; i++) {
        read_prompt(m, ids, &f, took);
        write_tokens(m, prompts, &f, &sum);
    }
    for (int64_t round = 0; bench_round(&f, round); round++) {
        read_prompt(m, ids, &f, took);
        bench_one(name, "ms_prefill", 1e3 * took[0]);
        bench_one(name, "ms_next", 1e3 * took[1]);
        bench_one(name, "tokens/s", (double)(rows * f.steps) / write_tokens(m, prompts, &f, &sum));
        bench_one(name, "checksum", sum);
        bench_memory(name);
    }
    tn_module_drop(m);
    tn_scope_end(program);
    free(prompts), free(starts), free(ids);
    return 0;
}
