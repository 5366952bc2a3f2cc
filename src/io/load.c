/*
 * load.c - loading weights: the first bytes decide what a file is. Which part of it is wanted, and
 * what becomes of names, is the same for all kinds; a PyTorch file picks its part itself.
 */
#include <limits.h>

#include "io/choice.h"
#include "io/json_tree.h"
#include "nn/module.h"

tn_status tni_leave_out(tni_choice *c, const tni_input *in, const char *name, const char *what,
                        const tni_file_dtype *d)
{
    if (!c->o.skip_foreign)
        return tni_input_bad(in, "%.64s is %s, which tenon has not: want the option %s", name, what,
                             d && d->dtype >= 0 ? "widen, or skip_foreign" : "skip_foreign");
    tni_bytes_printf(&c->left, "%s%s (%s)", c->n_left++ ? ", " : "", name, what);
    return c->left.failed ? TN_E_NOMEM : TN_OK;
}

/* The entries and versions whose names the function keeps, under the names that it writes. */
static tn_list *renamed(const char *function, const char *path, const tn_list *list,
                        bool (*keep)(const char *name, const tni_choice *c, char *to),
                        const tni_choice *c)
{
    tn_list *to = tn_list_new();
    char name[TNI_NAME_LIMIT + 1]; /* a module with a longer path has no tensors */
    tn_status status = to ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < list->n; i++) {
        if (!keep(list->entry[i].name, c, name)) continue;
        if (!*name || tni_list_find(to, name))
            status = tni_file_error(TN_E_NAME, function, path,
                                    "%.64s without what is cut off is \"%.64s\": want names that "
                                    "differ",
                                    list->entry[i].name, name);
        else
            status = tni_list_push(to, "", "", name, list->entry[i]);
    }
    int at = -1;
    for (int version; status == TN_OK && (version = tni_list_next_version(list, &at));)
        if (strlen(tni_list_path(list, at)) < sizeof name && keep(tni_list_path(list, at), c, name))
            status = tni_list_push_version(to, name, version);
    return status == TN_OK ? to : NULL;
}

bool tni_outside(const tni_choice *c, const char *name)
{
    const size_t n = c->o.key ? strlen(c->o.key) : 0;
    if (!c->o.key || !strcmp(c->o.key, "*")) return false;
    return strncmp(name, c->o.key, n) != 0 || (name[n] && name[n] != '.');
}

/* Of a part: "model.w" and "model" itself. */
static bool in_part(const char *name, const tni_choice *c, char *to)
{
    const size_t n = strlen(c->o.key);
    if (tni_outside(c, name)) return false;
    strcpy(to, name + n + (name[n] == '.'));
    return true;
}

/* DistributedDataParallel's and DataParallel's module., torch.compile's _orig_mod. */
static bool unwrapped(const char *name, const tni_choice *c, char *to)
{
    (void)c;
    char *at = to;
    for (const char *from = name; *from;) {
        const size_t n = strcspn(from, "."), next = n + (from[n] == '.');
        const bool wrapper = (n == 9 && !strncmp(from, "_orig_mod", n)) ||
                             (at == to && n == 6 && !strncmp(from, "module", n));
        if (!wrapper) at = (char *)memcpy(at, from, next) + next;
        from += next;
    }
    *at = 0;
    if (at > to && at[-1] == '.') at[-1] = 0; /* of a path that ended in a wrapper */
    return true;
}

static tn_list *load_safetensors(const char *function, const char *path, tni_choice *c,
                                 tn_metadata *metadata)
{
    tni_safetensors file;
    if (tni_safetensors_open(&file, function, path) != TN_OK) return NULL;
    const bool whole = !c->weights || c->o.key || !tni_safetensors_string(&file, TNI_CHECKPOINT);
    tn_list *list = whole ? tni_safetensors_list(&file, c) : NULL;
    if (!whole)
        tni_input_bad(&file.in, "a checkpoint of tenon's: want .key = \"model\" for its model, or "
                                "tn_checkpoint_load");
    if (list && metadata && tni_safetensors_metadata(&file, "", metadata) != TN_OK) list = NULL;
    tni_safetensors_close(&file);
    return list;
}

static tn_list *load(const char *function, const char *path, tni_choice *c, tn_metadata *metadata);

/* Appends the tensors of one file of several, once: it is then in `read`. */
static tn_status add_shard(const tni_input *in, const char *file, tni_choice *c, tni_map *read,
                           tn_list *all)
{
    if (tni_map_get(read, file)) return TN_OK;
    if (!*file || strchr(file, '/') || !strcmp(file, ".."))
        return tni_input_bad(in, "the file \"%.64s\": want the name of one beside it", file);
    if (tni_map_put(read, file, (void *)file) < 0) return tni_pending();
    char path[PATH_MAX];
    const char *slash = strrchr(in->path, '/');
    const int n = slash ? (int)(slash + 1 - in->path) : 0;
    if (snprintf(path, sizeof path, "%.*s%s", n, in->path, file) >= PATH_MAX)
        return tni_input_bad(in, "the file \"%.64s\" beside it has too long a path", file);
    const tn_list *list = load(in->function, path, c, NULL);
    tn_status status = list ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < list->n; i++) {
        const char *name = list->entry[i].name;
        status = tni_list_find(all, name)
                     ? tni_input_bad(in, "%.64s is in %.64s and in another file", name, file)
                     : tni_list_push(all, "", "", name, list->entry[i]);
    }
    return status;
}

static tn_status no_map(const tni_input *in)
{
    return tni_input_bad(in, "JSON text without one \"weight_map\" of names and files: want "
                             "weights, or the index of several files");
}

static tn_status read_map(const tni_input *in, const tni_json_node *map, tni_choice *c,
                          tn_list *all)
{
    tni_map TN_WHEN_LEFT(tni_map_free) read = { .names = true };
    for (const tni_json_node *m = tni_json_first(map); m; m = tni_json_after(m)) {
        TNI_TRY(m->kind == '"' ? add_shard(in, m->text, c, &read, all) : no_map(in));
        if (!tni_list_find(all, m->key) &&
            !(c->left.n && memmem(c->left.data, c->left.n, m->key, strlen(m->key))))
            return tni_input_bad(in, "%.64s is not in %.64s", m->key, m->text);
    }
    return TN_OK;
}

/* An index, as Hugging Face's tools write it: { "metadata": ..., "weight_map": { NAME: FILE } }. */
static tn_status read_index(const tni_input *in, tni_bytes *text, tni_choice *c, tn_list *all)
{
    const tni_json_node *map = NULL;
    int maps = 0;
    TNI_TRY(tni_bytes_file(text, in->function, in->path, tn_get_file_limits().header_bytes));
    tni_json_tree TN_WHEN_LEFT(tni_json_tree_free) tree;
    bool read = tni_json_tree_read(&tree, text->data, text->n);
    if (tree.problem)
        return tni_input_bad(in, "it is not JSON: %s at byte %zu", tree.problem, tree.at);
    if (!read) return tni_pending();
    for (const tni_json_node *m = tni_json_first(tree.node); m; m = tni_json_after(m))
        if (!strcmp(m->key, "weight_map")) map = m, maps++;
    return maps == 1 && map->kind == '{' ? read_map(in, map, c, all) : no_map(in);
}

static tn_list *load_index(const tni_input *in, tni_choice *c)
{
    if (c->shard)
        return tni_nothing(tni_input_bad(in, "JSON text, named by an index: want weights"));
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    tn_list *all = tn_list_new();
    tn_status status = all ? TN_OK : tni_pending();
    const char *key = c->o.key;
    c->o.key = NULL; /* of the whole, not of each file */
    c->shard = true;
    if (status == TN_OK) TN_SCOPE status = read_index(in, &text, c, all);
    c->o.key = key;
    c->picked = c->shard = false;
    return status == TN_OK ? all : NULL;
}

static tn_list *load(const char *function, const char *path, tni_choice *c, tn_metadata *metadata)
{
    char first[8] = { 0 };
    tni_input in;
    if (tni_input_open(&in, function, path) != TN_OK) return NULL;
    const size_t n = (size_t)TNI_MIN(in.size, (int64_t)sizeof first);
    tn_status status = tni_input_read(&in, 0, first, n);
    /* torch.save before 1.6 (or on request) begins with a pickle of a number of 10 bytes */
    const bool pt =
        !memcmp(first, "PK\3\4", 4) || (first[0] == '\x80' && !memcmp(first + 2, "\x8a\x0a", 2));
    /* the header's length in a safetensors file has no high bytes */
    const bool json = first[0] == '{' && (in.size < 8 || memcmp(first + 4, "\0\0\0", 4) != 0);
    tn_list *list = status == TN_OK && json ? load_index(&in, c) : NULL;
    tni_input_close(&in);
    if (status != TN_OK || json) return list;
    return pt ? tni_pt_list(function, path, c, metadata)
              : load_safetensors(function, path, c, metadata);
}

/* Says which names the list has, by their first parts. */
static void no_part(const char *function, const char *path, const tn_list *list, const char *key)
{
    char text[256] = "nothing";
    size_t n = 0;
    for (int i = 0; i < list->n && n < sizeof text - 8; i++) {
        const char *name = list->entry[i].name;
        if (i && tni_same_part(name, list->entry[i - 1].name)) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%.*s", n ? ", " : "",
                              (int)strcspn(name, "."), name);
    }
    tni_file_error(TN_E_NAME, function, path, "no part %.64s in it: it has %s", key, text);
}

/* The same, and what the options say of names. */
static tn_list *load_chosen(const char *function, const char *path, tni_choice *c,
                            tn_metadata *metadata)
{
    const char *key = c->o.key;
    if (metadata) *metadata = (tn_metadata){ 0 };
    tn_list *all = load(function, path, c, metadata), *list = all;
    if (list && key && !c->picked && strcmp(key, "*") != 0) {
        list = renamed(function, path, list, in_part, c);
        if (list && list->n == 0) no_part(function, path, all, key), list = NULL;
    }
    return list && c->o.unwrap ? renamed(function, path, list, unwrapped, c) : list;
}

/* What became of the rest, after the report's own lines. */
static void report_choice(tni_choice *c, tn_load_report *report)
{
    if (report) {
        const size_t n = strlen(report->text), room = sizeof report->text - n;
        report->left_out = c->n_left;
        snprintf(report->text + n, room, "%.*s%s%.*s%s", (int)c->taken.n,
                 c->taken.n ? c->taken.data : "", c->n_left ? "left out: " : "", (int)c->left.n,
                 c->n_left ? c->left.data : "", c->n_left ? "\n" : "");
    }
    tni_bytes_free(&c->taken);
    tni_bytes_free(&c->left);
}

static tn_list *load_list(const char *function, const char *path, tn_load_options o,
                          tn_metadata *metadata, tn_load_report *report)
{
    tni_choice c = { .o = o };
    if (report) *report = (tn_load_report){ 0 };
    tn_list *list = load_chosen(function, path, &c, metadata);
    if (list && tni_unread_fill(list, NULL, !o.no_values) != TN_OK) list = NULL;
    if (report) report->loaded = list ? list->n : 0;
    report_choice(&c, report);
    return list;
}

tn_list *tn_load_tensors_with(const char *path, tn_load_options o, tn_metadata *metadata,
                              tn_load_report *report)
{
    return load_list(__func__, path, o, metadata, report);
}

tn_list *tn_load_tensors(const char *path, tn_metadata *metadata)
{
    return load_list(__func__, path, (tn_load_options){ 0 }, metadata, NULL);
}

static tn_status load_into(const char *function, tn_module *m, const char *path, tn_load_options o,
                           tn_load_report *report)
{
    if (report) *report = (tn_load_report){ 0 };
    if (!m) return tni_null(function, "m", "a module");
    TNI_SCOPES_STAY;
    TNI_SCOPED;
    tni_choice c = { .o = o, .weights = true };
    tn_list *list = load_chosen(function, path, &c, NULL);
    tn_status status = list ? TN_OK : tni_pending();
    if (list && tn_load_state_dict(m, list, o, report) != TN_OK)
        status = tni_in_file(function, path);
    report_choice(&c, report);
    return status;
}

tn_status tn_load(tn_module *m, const char *path)
{
    return load_into("tn_load", m, path, (tn_load_options){ 0 }, NULL);
}

tn_status tn_load_with(tn_module *m, const char *path, tn_load_options o, tn_load_report *report)
{
    return load_into("tn_load_with", m, path, o, report);
}
