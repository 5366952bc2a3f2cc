/* lm.c - random language models for benchmarks; see lm.h */
#include "lm.h"

#include <string.h>
#include <sys/stat.h>

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
    fprintf(stderr, "bench: --config %s: want tiny, gpt2 or smollm2\n", name);
    exit(2);
}

tn_module *bench_lm(const bench_flags *f, tn_dtype dtype, int64_t *vocab)
{
    const struct config *c = chosen(f->config);
    char folder[] = "/tmp/bench_lmXXXXXX", path[4096];
    const char *to = f->weights ? f->weights : mkdtemp(folder);
    if (!to) exit(1);
    mkdir(to, 0777);
    snprintf(path, sizeof path, "%s/config.json", to);
    FILE *file = fopen(path, "w");
    if (!file || fputs(c->json, file) < 0 || fclose(file)) exit(1);
    tn_manual_seed(1);
    tn_module *m = tn_lm_new(path);
    TN_CHECK_PTR(m);
    TN_CHECK(tn_module_to_dtype(m, dtype));
    TN_CHECK(tn_module_to(m, f->where));
    if (f->weights) TN_CHECK(tn_lm_save(m, to));
    if (!f->weights && (remove(path) || remove(to))) perror(to);
    *vocab = c->vocab;
    return m;
}
