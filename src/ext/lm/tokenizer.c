/* tokenizer.c - the object: its words, its working memory, its files, what stands around a text. */
#include <unistd.h>

#include "ext/lm/config.h"
#include "ext/lm/tokenizer.h"
#include "io/choice.h"

/* ---- arrays of the caller -------------------------------------------------------------------- */

bool tni_ids_add(tn_ids *ids, const int32_t *id, size_t n)
{
    size_t capacity = (size_t)ids->capacity;
    if (!tni_room(&ids->id, &capacity, (size_t)ids->n, n, sizeof *ids->id)) return false;
    ids->capacity = (int64_t)capacity;
    for (size_t i = 0; i < n; i++) ids->id[ids->n++] = id[i];
    return true;
}

#define FREE(function, type, items)                                                                \
    void function(type *a)                                                                         \
    {                                                                                              \
        if (a) tni_free(a->items, (size_t)a->capacity * sizeof *a->items);                         \
        if (a) *a = (type){ 0 };                                                                   \
    }
FREE(tn_ids_free, tn_ids, id)
FREE(tn_chars_free, tn_chars, text)

/* ---- working memory -------------------------------------------------------------------------- */

tni_work *tni_work_take(const tn_tokenizer *t)
{
    tn_tokenizer *shared = (tn_tokenizer *)t; /* the list alone changes, under its lock */
    pthread_mutex_lock(&shared->lock);
    tni_work *w = shared->idle;
    if (w) shared->idle = w->next;
    pthread_mutex_unlock(&shared->lock);
    if (!w && (w = tni_calloc_n(1, sizeof *w))) w->t = t;
    return w;
}

void tni_work_give(tni_work *w)
{
    tn_tokenizer *shared = (tn_tokenizer *)w->t;
    pthread_mutex_lock(&shared->lock);
    w->next = shared->idle;
    shared->idle = w;
    pthread_mutex_unlock(&shared->lock);
}

static void work_free(tni_work *w)
{
    tni_free(w->known, TNI_KNOWN * sizeof *w->known);
    tni_bytes_free(&w->normal);
    tni_bytes_free(&w->scratch);
    tni_room_free(&w->symbol, &w->symbol_capacity, sizeof *w->symbol);
    tni_room_free(&w->heap, &w->heap_capacity, sizeof *w->heap);
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->limits);
    pcre2_jit_stack_free(w->stack);
    tni_free(w, sizeof *w);
}

void tn_tokenizer_free(tn_tokenizer *t)
{
    if (!t) return;
    for (tni_work *w = t->idle, *next; w; w = next) next = w->next, work_free(w);
    for (size_t i = 0; i < t->n_split; i++) pcre2_code_free(t->split[i]);
    tni_free(t->by_text.slot, t->by_text.capacity * sizeof *t->by_text.slot);
    tni_free(t->by_bytes.slot, t->by_bytes.capacity * sizeof *t->by_bytes.slot);
    tni_free(t->pair, t->pair_capacity * sizeof *t->pair);
    tni_room_free(&t->token, &t->token_capacity, sizeof *t->token);
    tni_room_free(&t->raw.node, &t->raw.capacity, sizeof *t->raw.node);
    tni_room_free(&t->normalised.node, &t->normalised.capacity, sizeof *t->normalised.node);
    tni_bytes_free(&t->texts);
    tn_ids_free(&t->before);
    tn_ids_free(&t->after);
    tni_bytes_free(&t->file);
    pthread_mutex_destroy(&t->lock);
    tni_free(t, sizeof *t);
}

tn_tokenizer *tni_tokenizer_new(void)
{
    tn_tokenizer *t = tni_calloc_n(1, sizeof *t);
    if (!t) return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->seed = (uint64_t)(uintptr_t)t * UINT64_C(0x9e3779b97f4a7c15);
    t->bos = t->eos = t->pad = TNI_NO_ID;
    return t;
}

/* A tokenizer_config.json's "bos_token": "<s>" or {"content": "<s>"}. */
static void name(const tn_tokenizer *t, const tni_json_node *config, const char *key, int64_t *id)
{
    const tni_json_node *m = tni_json_get(config, key);
    const char *text = m && m->kind == '"' ? m->text : tni_json_get_text(m, "content", NULL);
    if (text) *id = tni_find(t, &t->by_text, text, strlen(text));
}

static bool read_config(tn_tokenizer *t, const char *folder, size_t n, const char *file)
{
    char path[4096];
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    tni_json_tree TN_WHEN_LEFT(tni_json_tree_free) tree = { 0 };
    snprintf(path, sizeof path, "%.*s%s", (int)n, folder, file);
    if (access(path, F_OK) != 0) return true;
    if (tni_lm_tree("tn_tokenizer_load", path, &text, &tree) != TN_OK) return false;
    name(t, tree.node, "bos_token", &t->bos);
    name(t, tree.node, "eos_token", &t->eos);
    name(t, tree.node, "pad_token", &t->pad);
    return true;
}

/* What the other files than a tokenizer.json mean without saying it. */
static void find_ends(tn_tokenizer *t, bool vocab)
{
    const int64_t end = tn_tokenizer_id(t, "<|endoftext|>");
    t->bos = tn_tokenizer_id(t, "<|begin_of_text|>");
    t->eos = tn_tokenizer_id(t, "<|end_of_text|>");
    if (t->eos < 0) t->eos = end;
    if (vocab && !t->normal) t->bos = end; /* GPT-2, not Qwen */
}

/* A file by its name, or the first of these in a folder; and what is beside it. o: tiktoken's. */
static bool load(tn_tokenizer *t, const char *path, const tn_tiktoken_options *o)
{
    static const char *const files[] = { "tokenizer.json", "vocab.json", "tokenizer.model" };
    const char *f = o ? "tn_tokenizer_load_tiktoken" : "tn_tokenizer_load", *given = path;
    char inside[4096];
    int i = o ? 2 : 0;
    do {
        path = given;
        if (tni_lm_file(f, &path, files[i], inside, sizeof inside) != TN_OK) return false;
    } while (path != given && access(path, F_OK) != 0 && ++i < 3);
    if (i == 3)
        return tni_false(tni_file_error(TN_E_IO, f, given,
                                        "no tokenizer.json, vocab.json or tokenizer.model in it"));
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    const bool ranks = o || tni_ends_in(path, ".tiktoken") || tni_ends_in(path, ".model");
    const bool vocab = !ranks && strcmp(path + n, "vocab.json") == 0;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) file = { 0 };
    bool ok = ranks   ? tni_ranks_read(t, path, o ? o : &(tn_tiktoken_options){ 0 })
                : vocab ? tni_vocab_read(t, path, n)
                      : tni_bytes_file(&file, f, path, TNI_LARGEST) == TN_OK &&
                            tni_tokenizer_read(t, path, &file);
    if (ok && (ranks || vocab)) find_ends(t, vocab);
    return ok && (!vocab || read_config(t, path, n, "special_tokens_map.json")) &&
           read_config(t, path, n, "tokenizer_config.json");
}

static tn_tokenizer *make(const char *path, const tn_tiktoken_options *o)
{
    tn_tokenizer *t = tni_tokenizer_new();
    if (!t || load(t, path, o)) return t;
    tn_tokenizer_free(t);
    return NULL;
}

tn_tokenizer *tn_tokenizer_load(const char *path)
{
    return make(path, NULL);
}

tn_tokenizer *tn_tokenizer_load_tiktoken(const char *path, tn_tiktoken_options options)
{
    return make(path, &options);
}

/* ---- what it has ----------------------------------------------------------------------------- */

tn_tokenizer_info tn_tokenizer_get_info(const tn_tokenizer *t)
{
    if (!t) return (tn_tokenizer_info){ 0, -1, -1, -1 };
    return (tn_tokenizer_info){ (int64_t)t->n_token, t->bos, t->eos, t->pad };
}

const char *tn_tokenizer_token(const tn_tokenizer *t, int64_t id)
{
    if (!t) return tni_poisoned("tn_tokenizer_token", "t");
    bool there = id >= 0 && id < (int64_t)t->n_token && t->token[id].there;
    return there ? t->texts.data + t->token[id].text.at : NULL;
}

int64_t tn_tokenizer_id(const tn_tokenizer *t, const char *token)
{
    return t && token ? tni_find(t, &t->by_text, token, strlen(token)) : TNI_NO_ID;
}

tn_status tn_tokenizer_save(const tn_tokenizer *t, const char *path)
{
    if (!t) return tni_poison("tn_tokenizer_save", "t");
    return tni_file_replace("tn_tokenizer_save", path, t->file.data, t->file.n);
}

/* ---- text to ids ----------------------------------------------------------------------------- */

bool tni_text_size(const char *function, const char *text, int64_t n, size_t *size)
{
    if (!text) return tni_false(tni_poison(function, "text"));
    const size_t valid = tni_utf8(text, *size = n < 0 ? strlen(text) : (size_t)n);
    return valid == *size ||
           tni_false(tni_error(TN_E_INVALID, "%s: byte %zu of the text, 0x%02X, is not UTF-8",
                               function, valid, (unsigned char)text[valid]));
}

static bool add_ids(tn_ids *to, const tn_ids *from, bool bare)
{
    for (int64_t i = 0; i < from->n && !bare; i++)
        if (!tni_ids_add(to, &(int32_t){ (int32_t)from->id[i] }, 1)) return false;
    return true;
}

tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, int64_t n,
                              tn_encode_options o, tn_ids *ids)
{
    const char *function = "tn_tokenizer_encode";
    if (!t) return tni_poison(function, "t");
    if (!ids) return tni_poison(function, "ids");
    size_t size;
    if (!tni_text_size(function, text, n, &size)) return tni_pending();
    const int64_t before = ids->n;
    tni_work *w = add_ids(ids, &t->before, o.bare) ? tni_work_take(t) : NULL;
    if (w) w->out = ids, w->literal = o.literal;
    const bool done = w && tni_text_ids(w, text, size);
    if (w) tni_work_give(w);
    if (done && add_ids(ids, &t->after, o.bare)) return TN_OK;
    ids->n = before;
    return tni_pending();
}

tn_tensor *tn_tokenizer_tensor(const tn_tokenizer *t, const char *text, int64_t n,
                               tn_encode_options options)
{
    tn_ids ids = { 0 };
    tn_tensor *x = NULL;
    if (tn_tokenizer_encode(t, text, n, options, &ids) == TN_OK)
        x = tn_from_ints(ids.id, TN_SHAPE(ids.n));
    tn_ids_free(&ids);
    return x;
}
