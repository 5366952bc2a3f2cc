/*
 * bench_generate - a language model that reads and writes: the time of a prompt (prefill), and
 * greedy tokens per second (decoding), with a cache of keys and values.
 *
 *   tiny     a Llama of 2 layers, d 32: to see that it runs
 *   gpt2     GPT-2 124M: 12 layers, d 768, 12 heads, 50,257 tokens
 *   smollm2  a Llama as SmolLM2-135M: 30 layers, d 576, 9 heads and 3 of keys, 49,152 tokens, tied
 *
 * --int8            Linears' weights become bytes (tn_quantize_int8), the head's too
 * --weights FOLDER  where the model is written for the twin; random, in --precision's dtype
 * --context N       tokens of the prompt that is read, 512 by default; one row
 * --batch N         rows that write together
 * --steps N         tokens that each of them writes, 64 by default, behind prompts of 16
 *
 * checksum: of the written ids. Twin: torch_generate.py; generate.py runs both by turns.
 */
#include "bench.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include <tenon/generate.h>
#include <tenon/lm.h>

enum { PROMPT = 16 };

static const struct config {
    const char *name;
    int64_t vocab;
    const char *json;
} configs[] = {
    { "tiny", 96,
      "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, "
      "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 2, "
      "\"vocab_size\": 96, \"max_position_embeddings\": 1024, \"rms_norm_eps\": 1e-5, "
      "\"hidden_act\": \"silu\", \"tie_word_embeddings\": true}" },
    { "gpt2", 50257,
      "{\"model_type\": \"gpt2\", \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 12, "
      "\"n_positions\": 1024, \"vocab_size\": 50257}" },
    { "smollm2", 49152,
      "{\"model_type\": \"llama\", \"hidden_size\": 576, \"intermediate_size\": 1536, "
      "\"num_attention_heads\": 9, \"num_key_value_heads\": 3, \"num_hidden_layers\": 30, "
      "\"vocab_size\": 49152, \"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, "
      "\"rope_theta\": 100000, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true}" },
};

static const struct config *chosen(const char *name)
{
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (!strcmp(configs[i].name, name)) return &configs[i];
    fprintf(stderr, "bench_generate: --config %s: want tiny, gpt2 or smollm2\n", name);
    exit(2);
}

/* A random model, written to the folder for the twin if there is one. */
static tn_module *model(const struct config *c, const bench_flags *f)
{
    char folder[] = "/tmp/bench_generateXXXXXX", path[4096];
    const char *to = f->weights ? f->weights : mkdtemp(folder);
    if (!to) exit(1);
    mkdir(to, 0777);
    snprintf(path, sizeof path, "%s/config.json", to);
    FILE *file = fopen(path, "w");
    if (!file || fputs(c->json, file) < 0 || fclose(file)) exit(1);
    tn_manual_seed(1);
    tn_module *m = tn_lm_new(path);
    TN_CHECK_PTR(m);
    TN_CHECK(tn_module_to_dtype(m, f->dtype));
    TN_CHECK(tn_module_to(m, f->where));
    TN_CHECK(tn_eval(m));
    if (f->weights) TN_CHECK(tn_lm_save(m, to));
    if (f->int8) TN_CHECK(tn_quantize_int8(m, "*", 0));
    if (!f->weights && (remove(path) || remove(to))) perror(to);
    return m;
}

/* Seconds until the logits behind the whole prompt are there. */
static double read_prompt(tn_module *m, const int64_t *ids, const bench_flags *f)
{
    TN_CHECK(tn_lm_set_cache(m, 1, f->context));
    double t0 = bench_now();
    TN_SCOPE
    {
        tn_tensor *x = tn_to(tn_from_ints(ids, TN_SHAPE(1, f->context)), f->where);
        TN_CHECK_PTR(tn_lm_next(m, x, TN_NONE));
        bench_wait();
    }
    return bench_now() - t0;
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
    const struct config *c = chosen(f.config);
    const char *name = bench_name(&f, f.config);
    int64_t rows = f.batch ? f.batch : 1, *ids = malloc((size_t)(f.context + 1) * sizeof *ids);
    int64_t *starts = malloc((size_t)(rows * (PROMPT + 1)) * sizeof *starts);
    tn_prompt *prompts = malloc((size_t)rows * sizeof *prompts);
    if (!ids || !starts || !prompts || f.steps < 1 || f.context < 1) return 2;
    bench_tokens(0, 1, f.context, c->vocab, ids);
    bench_tokens(1, rows, PROMPT, c->vocab, starts);
    for (int64_t r = 0; r < rows; r++)
        prompts[r] = (tn_prompt){ starts + r * (PROMPT + 1), PROMPT };
    tn_scope program = tn_scope_begin();
    bench_banner(name);
    tn_module *m = model(c, &f);
    double sum = 0;
    for (int64_t i = 0; i < f.warmup; i++) {
        read_prompt(m, ids, &f);
        write_tokens(m, prompts, &f, &sum);
    }
    for (int64_t round = 0; bench_round(&f, round); round++) {
        bench_one(name, "ms_prefill", 1e3 * read_prompt(m, ids, &f));
        bench_one(name, "tokens/s", (double)(rows * f.steps) / write_tokens(m, prompts, &f, &sum));
        bench_one(name, "checksum", sum);
        bench_memory(name);
    }
    tn_module_drop(m);
    tn_scope_end(program);
    free(prompts), free(starts), free(ids);
    return 0;
}
