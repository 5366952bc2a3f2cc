/* vocab_files.c - a tokenizer from its files: tokenizer.json and tokenizer_config.json. */
#include <sys/stat.h>

#include "ext/lm/tokenizer.h"

static const char function[] = "tn_tokenizer_load";

/* FOLDER/name, or the file `name` beside a file. tni_strfree. */
static char *beside(const char *path, bool folder, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t n = folder ? strlen(path) : slash ? (size_t)(slash - path) : 0;
    tni_bytes b = { 0 };
    tni_bytes_add(&b, path, n);
    if (folder || slash) tni_bytes_add(&b, "/", 1);
    tni_bytes_add(&b, name, strlen(name) + 1);
    char *text = b.failed ? NULL : tni_copy_text(b.data);
    tni_bytes_free(&b);
    return text;
}

static bool is_there(const char *path, bool *folder)
{
    struct stat s;
    bool there = stat(path, &s) == 0;
    *folder = there && S_ISDIR(s.st_mode);
    return there;
}

/* A tokenizer_config.json's "bos_token": "<s>" or {"content": "<s>"}. */
static int64_t named(const tn_tokenizer *t, const tni_json_node *config, const char *key)
{
    const tni_json_node *m = tni_json_get(config, key);
    const char *text = m && m->kind == '"' ? m->text : tni_json_get_text(m, "content", NULL);
    return text ? tni_find(t, &t->by_text, text, strlen(text)) : TNI_NO_ID;
}

static bool read_config(tn_tokenizer *t, const char *path, bool folder)
{
    char *config = beside(path, folder, "tokenizer_config.json");
    tni_bytes file = { 0 };
    tni_json_tree tree = { 0 };
    bool is_folder, there = config && is_there(config, &is_folder) && !is_folder;
    bool ok = config && (!there || (tni_bytes_file(&file, function, config) == TN_OK &&
                                    tni_json_tree_read(&tree, file.data, file.n)));
    if (tree.problem)
        tni_file_error(TN_E_FORMAT, function, config, "at byte %zu: %s", tree.at, tree.problem);
    if (ok && there) {
        t->bos = named(t, tree.node, "bos_token");
        t->eos = named(t, tree.node, "eos_token");
        t->pad = named(t, tree.node, "pad_token");
    }
    tni_json_tree_free(&tree);
    tni_bytes_free(&file);
    tni_strfree(config);
    return ok;
}

static bool load(tn_tokenizer *t, const char *path)
{
    tni_bytes file = { 0 };
    bool ok = tni_bytes_file(&file, function, path) == TN_OK && tni_tokenizer_read(t, path, &file);
    tni_bytes_free(&file);
    return ok;
}

tn_tokenizer *tn_tokenizer_load(const char *path)
{
    bool folder;
    if (!path) return tni_poisoned(function, "path");
    is_there(path, &folder);
    char *file = folder ? beside(path, true, "tokenizer.json") : tni_copy_text(path);
    tn_tokenizer *t = file ? tni_calloc_n(1, sizeof *t) : NULL;
    if (t) {
        pthread_mutex_init(&t->lock, NULL);
        t->seed = (uint64_t)(uintptr_t)t * UINT64_C(0x9e3779b97f4a7c15);
        t->bos = t->eos = t->pad = TNI_NO_ID;
    }
    bool ok = t && load(t, file) && read_config(t, path, folder);
    tni_strfree(file);
    if (ok) return t;
    tn_tokenizer_free(t);
    return NULL;
}
