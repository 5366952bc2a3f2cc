/* rows_custom.c - the calls that do not fit a row: they return a struct, or belong together. */
#include <string.h>

#include "callbacks.h"
#include "draw.h"
#include "pool.h"

#define CUSTOM_ROW(name) void custom_##name(world *w, slot *s)

CUSTOM_ROW(tn_fail)
{
    (void)s;
    tn_fail((tn_status)pick_enum(w, TN_E_BACKEND + 1), "tn_fail: %s: %d", "of the user's", 3);
    tn_error_clear();
}

CUSTOM_ROW(tn_shape_from)
{
    static const int64_t sizes[TN_MAX_RANK + 2] = { 2, 3, 1, 1, 1, 1, 1, 1, 1, 1 };
    (void)s;
    tn_shape shape = tn_shape_from(pick_int(w, 0, 8), pick_pointer(w, (void *)(uintptr_t)sizes));
    w->digest = mix(w->digest, (uint64_t)shape.rank);
    pool_tensor(w, tn_zeros(shape));
    tn_error_clear();
}

CUSTOM_ROW(tn_cpu)
{
    (void)s;
    w->digest = mix(w->digest, (uint64_t)tn_cpu().type);
}
CUSTOM_ROW(tn_cuda)
{
    (void)s;
    w->digest = mix(w->digest, (uint64_t)tn_cuda(pick_int(w, 0, 1)).index);
}

CUSTOM_ROW(tn_scope_begin)
{
    (void)s;
    if (w->scopes < SCOPES) w->scope[w->scopes++] = tn_scope_begin();
}

CUSTOM_ROW(tn_keep)
{
    (void)s;
    tn_tensor *t = pick_tensor(w, any_tensor(w));
    tn_tensor *kept = tn_keep(t);
    w->broken |= kept != t;
    tn_drop(kept);
    tn_error_clear();
}

CUSTOM_ROW(tn_memory)
{
    (void)s;
    tn_memory_stats stats = tn_memory();
    w->broken |= stats.in_use < 0 || stats.cached < 0 || stats.peak_in_use < stats.in_use;
}
CUSTOM_ROW(tn_get_allocator)
{
    (void)s;
    tn_allocator a = tn_get_allocator();
    w->broken |= (a.alloc == NULL) != (a.free == NULL);
}
CUSTOM_ROW(tn_get_file_limits)
{
    (void)s;
    tn_file_limits limits = tn_get_file_limits();
    w->broken |= limits.header_bytes < 1 || limits.tensors < 1 || limits.inflated_bytes < 0;
}
CUSTOM_ROW(tn_cuda_memory)
{
    (void)w, (void)s;
    tn_cuda_memory();
}

CUSTOM_ROW(tn_shape_get)
{
    (void)s;
    tn_shape shape = tn_shape_get(pick_tensor(w, any_tensor(w)));
    w->digest = mix(w->digest, (uint64_t)shape.rank);
    tn_error_clear();
}
CUSTOM_ROW(tn_device_of)
{
    (void)s;
    w->digest = mix(w->digest, (uint64_t)tn_device_of(pick_tensor(w, any_tensor(w))).type);
    tn_error_clear();
}

/* A user's own module, from a type that may be wrong, filled with members that may be wrong. */
static tn_module *own_module(world *w)
{
    static const tn_module_type odd[] = {
        { .name = NULL, .size = sizeof(own_net) },
        { .name = "Small", .size = 1 },
        { .name = "Half", .size = sizeof(own_net), .extra_state = NULL, .set_extra_state = NULL },
        { .name = "", .size = sizeof(tn_module) },
    };
    const tn_module_type *type = &own_types[below(w, n_own_types)];
    if (w->mode != SOUND && below(w, 3) == 0) type = &odd[below(w, 4)];
    own_net *m = tn_module_new(pick_pointer(w, (void *)(uintptr_t)type));
    bool whole = m && m->base.type->size >= sizeof(own_net);
    int64_t n = m ? below(w, 4) : 0;
    for (int64_t i = 0; i < n; i++) {
        tn_tensor *t = pick_tensor(w, make_tensor(w, TN_SHAPE(3), TN_F32, PLAIN));
        switch (below(w, 3)) {
        case 0:
            tn_register_parameter(&m->base, pick_text(w, "scale"), whole ? &m->scale : NULL, t);
            break;
        case 1:
            tn_register_buffer(&m->base, pick_text(w, "count"), whole ? &m->count : NULL, t,
                               TN_PERSISTENT);
            break;
        default:
            tn_register_module(&m->base, pick_text(w, "child"), whole ? &m->child : NULL,
                               tn_relu_new());
            break;
        }
    }
    return tn_module_done(m ? &m->base : NULL);
}
CUSTOM_ROW(tn_module_new)
{
    (void)s;
    w->result.module = own_module(w);
}
CUSTOM_ROW(tn_module_done)
{
    (void)s;
    w->result.module = own_module(w);
}

CUSTOM_ROW(tn_module_keep)
{
    (void)s;
    tn_module *m = pick_pointer(w, any_module(w, NULL));
    tn_module_drop(tn_module_keep(m));
    tn_error_clear();
}

/* A language model of a config that may be wrong. */
static tn_module *language_model(world *w, const char *caller)
{
    static const char *const types[] = { "gpt2", "llama", "qwen3" };
    char path[sizeof w->folder + 16];
    w->touched = true;
    snprintf(path, sizeof path, "%s/config.json", w->folder);
    FILE *f = fopen(path, "w");
    if (!f) return tn_fail(TN_E_NOMEM, "%s: no file", caller);
    const int64_t hidden = pick_long(w, 1, 2), layers = pick_long(w, 1, 2);
    fprintf(
        f,
        "{\"model_type\":\"%s\",\"vocab_size\":7,\"n_embd\":%d,\"hidden_size\":%d,\"n_layer\":%d,"
        "\"num_hidden_layers\":%d,\"n_head\":2,\"num_attention_heads\":2,\"n_positions\":%d,"
        "\"max_position_embeddings\":9,\"intermediate_size\":3,\"head_dim\":2,"
        "\"pad_token_id\":%d}",
        types[below(w, 3)], (int)(2 * (uint64_t)hidden), (int)(2 * (uint64_t)hidden), (int)layers,
        (int)layers, (int)pick_long(w, 1, 9), (int)pick_long(w, 0, 6));
    if (fclose(f) != 0) return tn_fail(TN_E_NOMEM, "%s: no file", caller);
    return tn_lm_new(pick_text(w, below(w, 2) ? path : w->folder));
}
/* Everything that is done with one. */
static void use_language_model(world *w)
{
    tn_module *own = below(w, 4) ? language_model(w, "") : NULL,
              *m = own ? own : any_module(w, NULL);
    tn_lm_info info;
    if (tn_lm_get_info(pick_pointer(w, m), pick_pointer(w, &info)) == TN_OK) tn_eval(m);
    tn_tensor *ids = tn_randint(0, 7, TN_SHAPE(2, 3)), *lengths = tn_randint(1, 4, TN_SHAPE(2));
    for (int i = 0; i < 2; i++) {
        if (tn_lm_set_cache(m, pick_long(w, 0, 2), pick_long(w, 1, 8)) == TN_OK)
            w->broken |= !tn_lm_cache(m);
        tn_lm_next(m, pick_tensor(w, ids), pick_tensor(w, below(w, 2) ? lengths : TN_NONE));
        tn_lm_next(m, pick_tensor(w, ids), TN_NONE);
    }
    if (own) w->broken |= tn_lm_save(m, NULL) == TN_OK;
    tn_module_drop(own);
}
CUSTOM_ROW(tn_lm_new)
{
    (void)s;
    w->result.module = language_model(w, "tn_lm_new");
}
CUSTOM_ROW(tn_lm_load)
{
    (void)s;
    tn_module *m = language_model(w, "tn_lm_load");
    const tn_lm_options o = { .use_dtype = pick_bool(w), .dtype = TN_BF16 };
    if (m && tn_lm_save(m, w->folder) == TN_OK)
        w->result.module = tn_lm_load(pick_text(w, w->folder), o);
    tn_module_drop(m);
}
CUSTOM_ROW(tn_lm_save)
{
    (void)s;
    use_language_model(w);
    tn_error_clear();
}
CUSTOM_ROW(tn_lm_next)
{
    (void)s;
    use_language_model(w);
    tn_error_clear();
}
/* Of modules that are no language models, mostly: they are refused. */
CUSTOM_ROW(tn_lm_get_info)
{
    (void)s;
    tn_lm_info info;
    if (tn_lm_get_info(pick_pointer(w, any_module(w, NULL)), pick_pointer(w, &info)) != TN_OK)
        tn_error_clear();
}
CUSTOM_ROW(tn_lm_set_cache)
{
    (void)s;
    if (tn_lm_set_cache(any_module(w, NULL), pick_long(w, 0, 2), pick_long(w, 1, 8)) != TN_OK)
        tn_error_clear();
}
CUSTOM_ROW(tn_lm_cache)
{
    (void)s;
    tn_lm_cache(pick_pointer(w, any_module(w, NULL)));
    tn_error_clear();
}

/* Of modules that are no language models: they are refused. */
CUSTOM_ROW(tn_generate)
{
    (void)s;
    const int64_t ids[] = { 1, 0, pick_long(w, 0, 2) };
    const tn_prompt prompts[] = { { pick_pointer(w, (void *)(uintptr_t)ids), (int64_t)below(w, 4) },
                                  { ids, 1 } };
    const tn_generate_options o = { .max_new_tokens = pick_long(w, 0, 3),
                                    .per_prompt = pick_long(w, 0, 2),
                                    .sampling = { .temperature = pick_real(w, 0, 2) } };
    tn_generated_free(tn_generate(pick_pointer(w, any_module(w, NULL)),
                                  pick_pointer(w, (void *)(uintptr_t)prompts), (int64_t)below(w, 3),
                                  o));
    tn_error_clear();
}
CUSTOM_ROW(tn_generated_free)
{
    (void)w, (void)s;
    tn_generated_free(NULL);
}

/* A tokenizer of a few tokens, which may be none, and all that is done with it. */
static tn_tokenizer *small_tokenizer(world *w)
{
    static const char *const split[] = { "ByteLevel", "ByteLevel", "Digits" };
    char path[sizeof w->folder + 16];
    w->touched = true;
    snprintf(path, sizeof path, "%s/tokenizer.json", w->folder);
    FILE *f = fopen(path, "w");
    if (!f) return NULL;
    fprintf(
        f,
        "{\"pre_tokenizer\":{\"type\":\"%s\"},\"added_tokens\":[{\"id\":%d,\"content\":\"<s>\","
        "\"special\":true,\"normalized\":false}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,"
        "\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}",
        split[below(w, 3)], (int)pick_long(w, 2, 4));
    if (fclose(f) != 0) return NULL;
    return tn_tokenizer_load(pick_text(w, below(w, 2) ? path : w->folder));
}
static void use_tokenizer(world *w)
{
    tn_tokenizer *t = small_tokenizer(w);
    tn_ids ids = { 0 };
    tn_chars text = { 0 };
    const tn_encode_options o = { pick_bool(w), pick_bool(w) };
    const tn_decode_options shown = { pick_bool(w) };
    tn_tokenizer_get_info(pick_pointer(w, t));
    tn_tokenizer_token(t, pick_long(w, -1, 9));
    tn_tokenizer_id(t, pick_text(w, "ab"));
    if (tn_tokenizer_encode(t, pick_text(w, "abba<s>"), -1, o, pick_pointer(w, &ids)) == TN_OK)
        w->broken |= tn_tokenizer_decode(t, ids.id, ids.n, shown, &text) != TN_OK;
    tn_tokenizer_tensor(t, pick_text(w, "ab"), -1, o);
    tn_token_stream *stream = tn_token_stream_new(pick_pointer(w, t), shown);
    tn_token_stream_add(stream, pick_long(w, -1, 9));
    tn_token_stream_end(stream);
    tn_token_stream_free(stream);
    if (tn_tokenizer_save(t, pick_text(w, NULL)) == TN_OK) w->broken = true;
    tn_tokenizer_free(tn_tokenizer_load_tiktoken(
        pick_text(w, w->folder), (tn_tiktoken_options){ .encoding = pick_text(w, "gpt2") }));
    tn_tokenizer_free(tn_tokenizer_train(
        pick_text(w, "abba"), -1,
        (tn_bpe_options){ .vocab_size = pick_long(w, -1, 300), .pattern = pick_text(w, "a+") }));
    tn_ids_free(pick_pointer(w, &ids)), tn_chars_free(pick_pointer(w, &text));
    tn_ids_free(&ids), tn_chars_free(&text);
    tn_tokenizer_free(t);
    tn_error_clear();
}
#define USES_TOKENIZER(name)                                                                       \
    CUSTOM_ROW(name)                                                                               \
    {                                                                                              \
        (void)s;                                                                                   \
        use_tokenizer(w);                                                                          \
    }
USES_TOKENIZER(tn_ids_free)
USES_TOKENIZER(tn_chars_free)
USES_TOKENIZER(tn_tokenizer_load)
USES_TOKENIZER(tn_tokenizer_load_tiktoken)
USES_TOKENIZER(tn_tokenizer_train)
USES_TOKENIZER(tn_tokenizer_free)
USES_TOKENIZER(tn_tokenizer_save)
USES_TOKENIZER(tn_tokenizer_get_info)
USES_TOKENIZER(tn_tokenizer_token)
USES_TOKENIZER(tn_tokenizer_id)
USES_TOKENIZER(tn_tokenizer_encode)
USES_TOKENIZER(tn_tokenizer_tensor)
USES_TOKENIZER(tn_tokenizer_decode)
USES_TOKENIZER(tn_token_stream_new)
USES_TOKENIZER(tn_token_stream_add)
USES_TOKENIZER(tn_token_stream_end)
USES_TOKENIZER(tn_token_stream_free)
