/*
 * safetensors_write.c - writing: header and data in the reference writer's order.
 *
 * Tensors are sorted by dtype, widest alignment first, then by name, so every tensor lies aligned;
 * the header is padded with spaces to a multiple of 8.
 *
 * A tensor with several names is stored under the first of them in strcmp order; the other names
 * are in one pair of the metadata, TNI_TIES, as { name: stored name }. The reference's save_model
 * keeps the same name, but writes each tie as a separate pair, which looks like any other string;
 * its load_model reads neither.
 *
 * Source: huggingface/safetensors, tensor.rs (prepare) and torch.py (save_model, load_model).
 */
#include "io/io.h"
#include "io/json.h"
#include "nn/module.h"

typedef struct item {
    const char *name, *stored; /* stored: the name its data is under */
    tn_tensor *tensor;
    size_t nbytes;
} item;

static bool is_tie(const item *it)
{
    return it->stored != it->name;
}

static int by_layout(const void *a, const void *b)
{
    const item *x = a, *y = b;
    const tni_file_dtype *d = tni_file_dtype_of(x->tensor->dtype),
                         *e = tni_file_dtype_of(y->tensor->dtype);
    return d == e ? strcmp(x->name, y->name) : d < e ? -1 : 1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const item *)a)->name, ((const item *)b)->name);
}

int tni_compare_places(const tn_tensor *s, const tn_tensor *t, bool shapes)
{
    const size_t axes = (size_t)s->shape.rank;
    const bool flat = !shapes && tni_is_dense(s);
    if (s->storage != t->storage) return (uintptr_t)s->storage < (uintptr_t)t->storage ? -1 : 1;
    if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
    if (s->dtype != t->dtype) return s->dtype < t->dtype ? -1 : 1;
    if (!shapes && flat != tni_is_dense(t)) return flat ? -1 : 1;
    if (flat) {
        int64_t n = tni_shape_numel(&s->shape), m = tni_shape_numel(&t->shape);
        return (n > m) - (n < m);
    }
    if (s->shape.rank != t->shape.rank) return s->shape.rank - t->shape.rank;
    int d = memcmp(s->shape.size, t->shape.size, axes * sizeof *s->shape.size);
    return d ? d : memcmp(s->stride, t->stride, axes * sizeof *s->stride);
}

static int by_place(const void *a, const void *b)
{
    int d = tni_compare_places(((const item *)a)->tensor, ((const item *)b)->tensor, true);
    return d ? d : by_name(a, b);
}

/* ---- the header ------------------------------------------------------------------------------ */

/* A JSON object of pairs being written. */
typedef struct pairs {
    tni_bytes *text;
    const char *function;
    int n;
    tn_status status; /* of what failed first */
} pairs;

static void add_string(pairs *p, const char *text)
{
    if (!tni_json_add(p->text, text) && p->status == TN_OK)
        p->status =
            tni_error(TN_E_NAME, "%s: a name or value is not UTF-8: want UTF-8 text", p->function);
}

static void add_key(pairs *p, const char *key)
{
    tni_bytes_add(p->text, p->n++ ? "," : "{", 1);
    add_string(p, key);
    tni_bytes_add(p->text, ":", 1);
}

static void add_pair(pairs *p, const char *key, const char *value)
{
    add_key(p, key);
    add_string(p, value);
}

/* Ends an object and makes it the value of a pair of p. Frees its text. */
static void add_object(pairs *p, const char *key, const pairs *object)
{
    tni_bytes *text = object->text;
    tni_bytes_add(text, object->n ? "}" : "{}", object->n ? 2 : 3); /* with a zero */
    if (p->status == TN_OK) p->status = text->failed ? tni_pending() : object->status;
    if (p->status == TN_OK) add_pair(p, key, text->data);
    tni_bytes_free(text);
}

static void add_versions(pairs *p, const tn_list *list)
{
    pairs object = { .text = &(tni_bytes){ 0 }, .function = p->function };
    for (int i = -1, v; (v = tni_list_next_version(list, &i)) != 0;) {
        if (v == 1) continue;
        add_key(&object, tni_list_path(list, i));
        tni_bytes_printf(object.text, "%d", v);
    }
    if (object.n) add_object(p, TNI_VERSIONS, &object);
}

static void add_roles(pairs *p, const tn_list *list)
{
    pairs object = { .text = &(tni_bytes){ 0 }, .function = p->function };
    for (int i = 0; i < list->n; i++)
        if (list->entry[i].role)
            add_pair(&object, list->entry[i].name, tn_role_name(list->entry[i].role));
    if (object.n) add_object(p, TNI_ROLES, &object);
}

/* Items by name. */
static void add_ties(pairs *p, const item *items, int n)
{
    pairs object = { .text = &(tni_bytes){ 0 }, .function = p->function };
    for (int i = 0; i < n; i++)
        if (is_tie(&items[i])) add_pair(&object, items[i].name, items[i].stored);
    add_object(p, TNI_TIES, &object);
}

static bool own_key(const tni_writing *o, const char *key)
{
    if ((o->weights || o->checkpoint) && !strncmp(key, "tenon.", 6)) return true;
    return (o->weights && !strcmp(key, TNI_FORMAT)) || !strcmp(key, TNI_TIES) ||
           !strcmp(key, TNI_VERSIONS) || !strcmp(key, TNI_ROLES) || !strcmp(key, TNI_CHECKSUM);
}

/* The caller's pairs, with no keys of ours. *tie_like: one reads as a tie where none are listed. */
static tn_status check_pairs(const pairs *p, const tni_map *stored, const tni_writing *o,
                             bool *tie_like)
{
    const tn_metadata *m = o->metadata;
    tni_map TN_WHEN_LEFT(tni_map_free) keys = { .names = true };
    for (int i = 0; m && i < m->n; i++) {
        int is_new = tni_map_put(&keys, m->key[i], (void *)m);
        if (is_new < 0) return tni_pending();
        if (!is_new)
            return tni_error(TN_E_NAME, "%s: metadata key %s is given twice", p->function,
                             m->key[i]);
        if (own_key(o, m->key[i]))
            return tni_error(TN_E_NAME, "%s: metadata key %s is the library's own", p->function,
                             m->key[i]);
        *tie_like = *tie_like || tni_old_tie(stored, o->checkpoint, m->key[i], m->value[i]);
    }
    return TN_OK;
}

/* Items by name. */
static void add_metadata(pairs *p, const item *items, int n, const tni_writing *o)
{
    const tn_metadata *m = o->metadata;
    tni_map TN_WHEN_LEFT(tni_map_free) names = { .names = true };
    bool ties = false;
    for (int i = 0; m && m->n && p->status == TN_OK && i < n; i++)
        if (tni_map_put(&names, items[i].name, (void *)items) < 0) p->status = tni_pending();
    if (p->status == TN_OK) p->status = check_pairs(p, &names, o, &ties);
    if (o->weights) add_pair(p, TNI_FORMAT, "pt"); /* whose layout it is */
    if (o->checkpoint) add_pair(p, TNI_CHECKPOINT, TNI_CHECKPOINT_NOW);
    if (o->weights || o->checkpoint) add_pair(p, TNI_WRITER, TN_VERSION);
    for (int i = 0; i < n; i++) ties = ties || is_tie(&items[i]);
    if (ties) add_ties(p, items, n);
    for (int i = 0; m && i < m->n; i++) add_pair(p, m->key[i], m->value[i]);
}

static void add_tensor(pairs *p, const item *it, size_t *total)
{
    const tn_tensor *t = it->tensor;
    add_string(p, it->name);
    tni_bytes_printf(p->text, ":{\"dtype\":\"%s\",\"shape\":[",
                     tni_file_dtype_of(t->dtype)->safetensors);
    for (int k = 0; k < t->shape.rank; k++)
        tni_bytes_printf(p->text, "%s%" PRId64, k ? "," : "", t->shape.size[k]);
    size_t begin = *total;
    bool fits = tni_add_size(begin, it->nbytes, total) && *total <= INT64_MAX / 2;
    if (!fits && p->status == TN_OK)
        p->status = tni_error(TN_E_INVALID, "%s: %s: too large for a file", p->function, it->name);
    tni_bytes_printf(p->text, "],\"data_offsets\":[%zu,%zu]}", begin, *total);
}

/* From items sorted by name: removes ties, sorts the rest by data order; sets *n and *total. */
static tn_status add_header(tni_bytes *b, const char *function, const tn_list *list, item *items,
                            int *n, size_t *total, const tni_writing *o)
{
    pairs p = { .text = b, .function = function };
    tni_bytes_add(b, "{\"__metadata__\":", 16);
    if (o->checkpoint) add_pair(&p, TNI_CHECKSUM, "00000000");
    add_metadata(&p, items, *n, o);
    add_versions(&p, list);
    add_roles(&p, list);
    if (p.n)
        tni_bytes_add(b, "}", 1);
    else
        b->n = TNI_MIN(b->n, 1); /* no ties: only the brace stays */
    int stored = 0;
    for (int i = 0; i < *n; i++)
        if (!is_tie(&items[i])) items[stored++] = items[i];
    *n = stored;
    tni_sort(items, (size_t)stored, sizeof *items, by_layout);
    *total = 0;
    for (int i = 0; p.status == TN_OK && i < stored; i++) {
        if (i || p.n) tni_bytes_add(b, ",", 1);
        add_tensor(&p, &items[i], total);
    }
    tni_bytes_add(b, "}", 1);
    while (b->n % 8 && !b->failed) tni_bytes_add(b, " ", 1);
    if (p.status != TN_OK || b->failed) return p.status != TN_OK ? p.status : tni_pending();
    if ((int64_t)b->n <= tn_get_file_limits().header_bytes) return TN_OK;
    return tni_error(TN_E_INVALID,
                     "%s: a header of %zu bytes: at most %" PRId64 " could be read back "
                     "(tn_set_file_limits)",
                     function, b->n, tn_get_file_limits().header_bytes);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Dense CPU tensors are written directly, others through a copy in row-major order. */
static tn_status write_tensor(tni_atomic_file *file, const item *it)
{
    tn_status status = TN_E_NOMEM;
    TN_SCOPE TN_NO_GRAD
    {
        const tn_tensor *t = tn_contiguous(tn_to(it->tensor, tn_cpu()));
        status = t ? tni_file_write(file, tni_data(t), it->nbytes) : tni_pending();
    }
    return status;
}

static tn_status write_file(const char *function, const char *path, const tni_bytes *header,
                            const item *items, int n, size_t total, bool checksum)
{
    const uint64_t size = header->n;
    tni_atomic_file file;
    TNI_TRY(tni_file_create(&file, function, path, (int64_t)(8 + header->n + total)));
    file.sums = checksum;
    tn_status status = tni_file_write(&file, &size, sizeof size);
    if (status == TN_OK) status = tni_file_write(&file, header->data, header->n);
    for (int i = 0; status == TN_OK && i < n; i++) status = write_tensor(&file, &items[i]);
    if (status == TN_OK && checksum) {
        char digits[9];
        snprintf(digits, sizeof digits, "%08" PRIx32, file.crc);
        status = tni_file_patch(&file, TNI_CHECKSUM_AT, digits, 8);
    }
    return tni_file_finish(&file, status);
}

/* Fills items: sorted by name, ties found, names checked. A part of a checkpoint can be read alone,
 * so ties are found within each part only. */
static tn_status collect(const char *function, const tn_list *list, item *items,
                         const tni_writing *o)
{
    const bool every_key = o->every_key, checkpoint = o->checkpoint;
    for (int i = 0; i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        items[i] = (item){ e->name, e->name, e->tensor, tni_bytes_of(e->tensor) };
        if (!e->tensor || tni_none(e->tensor))
            return tni_error(TN_E_INVALID, "%s: %s is absent: want a tensor", function, e->name);
        size_t length = strlen(e->name);
        if (length == 0 || length > TNI_NAME_LIMIT || !strcmp(e->name, "__metadata__"))
            return tni_error(TN_E_NAME,
                             "%s: a tensor is named \"%.64s\": want 1 to %d bytes other than "
                             "__metadata__",
                             function, e->name, TNI_NAME_LIMIT);
    }
    tni_sort(items, (size_t)list->n, sizeof *items, by_place);
    for (int i = 1; i < list->n && !every_key; i++)
        if (items[i].nbytes && !tni_compare_places(items[i - 1].tensor, items[i].tensor, true) &&
            (!checkpoint || tni_same_part(items[i - 1].stored, items[i].name)))
            items[i].stored = items[i - 1].stored;
    tni_sort(items, (size_t)list->n, sizeof *items, by_name);
    for (int i = 1; i < list->n; i++)
        if (!strcmp(items[i - 1].name, items[i].name))
            return tni_error(TN_E_NAME, "%s: two tensors are named %s", function, items[i].name);
    return TN_OK;
}

tn_status tni_check_counts(const char *function, const tn_list *list, bool every_version)
{
    const int64_t limit = tn_get_file_limits().tensors;
    int64_t n = 0;
    for (int i = -1, v; (v = tni_list_next_version(list, &i)) != 0;) n += every_version || v != 1;
    if (list->n <= limit && n <= limit) return TN_OK;
    return tni_error(TN_E_INVALID,
                     "%s: %" PRId64 " %s: at most %" PRId64
                     " could be read back (tn_set_file_limits)",
                     function, list->n > limit ? list->n : n,
                     list->n > limit ? "tensors" : "modules with state versions", limit);
}

tn_status tni_safetensors_write(const char *function, const char *path, const tn_list *list,
                                tni_writing o)
{
    TNI_TRY(tni_metadata_check(function, o.metadata));
    TNI_TRY(tni_check_counts(function, list, false));
    TNI_ITEMS(item, items, list->n);
    if (!items) return tni_pending();
    int n = list->n;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) header = { 0 };
    size_t total;
    TNI_TRY(collect(function, list, items, &o));
    TNI_TRY(add_header(&header, function, list, items, &n, &total, &o));
    return write_file(function, path, &header, items, n, total, o.checkpoint);
}
