/* tokenizer.c - the object: its words, its working memory, its files, what stands around a text. */
#include <unistd.h>

#include "ext/lm/config.h"
#include "ext/lm/tokenizer.h"

/* ---- arrays of the caller -------------------------------------------------------------------- */

bool tni_ids_add(tn_ids *ids, const int32_t *id, size_t n)
{
    size_t capacity = (size_t)ids->capacity;
    if (!tni_room(&ids->id, &capacity, (size_t)ids->n, n, sizeof *ids->id)) return false;
    ids->capacity = (int64_t)capacity;
    for (size_t i = 0; i < n; i++) ids->id[ids->n++] = id[i];
    return true;
}

void tn_ids_free(tn_ids *ids)
{
    if (!ids) return;
    tni_free(ids->id, (size_t)ids->capacity * sizeof *ids->id);
    *ids = (tn_ids){ 0 };
}

void tn_chars_free(tn_chars *chars)
{
    if (!chars) return;
    tni_free(chars->text, (size_t)chars->capacity);
    *chars = (tn_chars){ 0 };
}

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
    tni_trie_free(&t->raw);
    tni_trie_free(&t->normalised);
    tni_bytes_free(&t->texts);
    tn_ids_free(&t->before);
    tn_ids_free(&t->after);
    tni_free(t->file, t->n_file);
    pthread_mutex_destroy(&t->lock);
    tni_free(t, sizeof *t);
}

/* A tokenizer_config.json's "bos_token": "<s>" or {"content": "<s>"}. */
static int64_t named(const tn_tokenizer *t, const tni_json_node *config, const char *key)
{
    const tni_json_node *m = tni_json_get(config, key);
    const char *text = m && m->kind == '"' ? m->text : tni_json_get_text(m, "content", NULL);
    return text ? tni_find(t, &t->by_text, text, strlen(text)) : TNI_NO_ID;
}

static bool read_config(tn_tokenizer *t, const char *path)
{
    tni_bytes file = { 0 };
    tni_json_tree tree = { 0 };
    if (access(path, F_OK) != 0) return true;
    bool ok = tni_lm_tree("tn_tokenizer_load", path, &file, &tree) == TN_OK;
    if (ok) {
        t->bos = named(t, tree.node, "bos_token");
        t->eos = named(t, tree.node, "eos_token");
        t->pad = named(t, tree.node, "pad_token");
    }
    tni_json_tree_free(&tree);
    tni_bytes_free(&file);
    return ok;
}

/* tokenizer.json, and tokenizer_config.json beside it. */
static bool load(tn_tokenizer *t, const char *path)
{
    static const char f[] = "tn_tokenizer_load";
    char inside[4096], config[4096];
    tni_bytes file = { 0 };
    if (tni_lm_file(f, &path, "tokenizer.json", inside, sizeof inside) != TN_OK) return false;
    const char *slash = strrchr(path, '/');
    snprintf(config, sizeof config, "%.*stokenizer_config.json",
             slash ? (int)(slash - path) + 1 : 0, path);
    bool ok = tni_bytes_file(&file, f, path, TNI_LARGEST) == TN_OK &&
              tni_tokenizer_read(t, path, &file) && read_config(t, config);
    tni_bytes_free(&file);
    return ok;
}

tn_tokenizer *tn_tokenizer_load(const char *path)
{
    tn_tokenizer *t = tni_calloc_n(1, sizeof *t);
    if (!t) return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->seed = (uint64_t)(uintptr_t)t * UINT64_C(0x9e3779b97f4a7c15);
    t->bos = t->eos = t->pad = TNI_NO_ID;
    if (load(t, path)) return t;
    tn_tokenizer_free(t);
    return NULL;
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
    return tni_file_replace("tn_tokenizer_save", path, t->file, t->n_file);
}

/* ---- text to ids ----------------------------------------------------------------------------- */

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
    if (!text) return tni_poison(function, "text");
    if (!ids) return tni_poison(function, "ids");
    size_t size = n < 0 ? strlen(text) : (size_t)n, valid = tni_utf8(text, size);
    if (valid < size)
        return tni_error(TN_E_INVALID, "%s: byte %zu of the text, 0x%02X, is not UTF-8", function,
                         valid, (unsigned char)text[valid]);
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
