/*
 * safetensors_write.c - writing: header and data in the reference writer's order.
 *
 * Tensors are sorted by dtype, widest alignment first, then by name, so every tensor lies aligned;
 * the header is padded with spaces to a multiple of 8.
 *
 * A tensor of several names is stored under the first of them in the order of strcmp; each other
 * name is a pair { name: stored name } of the metadata. That is what the reference's save_model
 * writes and its load_model expects.
 *
 * Source: huggingface/safetensors, tensor.rs (prepare) and torch.py (save_model).
 */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "io/io.h"
#include "nn/module.h"

typedef struct item {
    const char *name, *stored; /* stored: under which name its data is */
    tn_tensor *tensor;
    size_t nbytes;
} item;

static bool is_tie(const item *it)
{
    return it->stored != it->name;
}

/* The reference's order of dtypes, descending. */
static int rank_of(tn_dtype dtype)
{
    static const tn_dtype order[] = { TN_I64,  TN_F64, TN_F32, TN_I32,
                                      TN_BF16, TN_F16, TN_U8,  TN_BOOL };
    int i = 0;
    while (order[i] != dtype) i++;
    return i;
}

static int by_layout(const void *a, const void *b)
{
    const item *x = a;
    const item *y = b;
    int d = rank_of(x->tensor->dtype) - rank_of(y->tensor->dtype);
    return d ? d : strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const item *)a)->name, ((const item *)b)->name);
}

/* 0 for handles of one and the same tensor. */
static int compare_places(const tn_tensor *s, const tn_tensor *t)
{
    size_t axes = (size_t)s->shape.rank;
    if (s->storage != t->storage) return (uintptr_t)s->storage < (uintptr_t)t->storage ? -1 : 1;
    if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
    if (s->dtype != t->dtype) return s->dtype < t->dtype ? -1 : 1;
    if (s->shape.rank != t->shape.rank) return s->shape.rank - t->shape.rank;
    int d = memcmp(s->shape.size, t->shape.size, axes * sizeof *s->shape.size);
    return d ? d : memcmp(s->stride, t->stride, axes * sizeof *s->stride);
}

static int by_place(const void *a, const void *b)
{
    int d = compare_places(((const item *)a)->tensor, ((const item *)b)->tensor);
    return d ? d : by_name(a, b);
}

/* ---- the header ------------------------------------------------------------------------------ */

/* Appends text as a JSON string; TN_E_NAME when it is not UTF-8. */
static tn_status add_string(tni_bytes *b, const char *function, const char *text)
{
    json_t *string = text ? json_string(text) : NULL;
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (!quoted)
        return tni_error(TN_E_NAME, "%s: a name or value is %s: UTF-8 text is wanted", function,
                         text ? "not UTF-8" : "NULL");
    tni_bytes_add(b, quoted, strlen(quoted));
    free(quoted);
    return TN_OK;
}

typedef struct pairs {
    tni_bytes *text;
    const char *function;
    int n;
} pairs;

static tn_status add_pair(pairs *p, const char *key, const char *value)
{
    tni_bytes_printf(p->text, "%s", p->n++ ? "," : "\"__metadata__\":{");
    tn_status status = add_string(p->text, p->function, key);
    tni_bytes_add(p->text, ":", 1);
    return status == TN_OK ? add_string(p->text, p->function, value) : status;
}

static tn_status add_versions(pairs *p, const tn_list *list)
{
    json_t *versions = json_object();
    const char *path;
    int version;
    bool made = versions;
    for (int i = 0; made && (version = tni_list_versions(list, i, &path)) != 0; i++)
        if (version != 1) made = !json_object_set_new(versions, path, json_integer(version));
    char *text = made ? json_dumps(versions, JSON_COMPACT) : NULL;
    tn_status status =
        text ? TN_OK
             : tni_error(TN_E_NAME, "%s: a module's path is not UTF-8: UTF-8 text is wanted",
                         p->function);
    if (text && json_object_size(versions)) status = add_pair(p, TNI_VERSIONS, text);
    free(text);
    json_decref(versions);
    return status;
}

static bool own_key(const tni_writing *o, const char *key)
{
    return tn_metadata_get(o->own, key) || !strcmp(key, TNI_VERSIONS) || !strcmp(key, TNI_CHECKSUM);
}

/* A pair of the caller's: neither the library's keys, nor what would be read back as a tie. */
static tn_status check_pair(const pairs *p, const char *key, const char *value, const item *items,
                            int n, const tni_writing *o)
{
    if (own_key(o, key))
        return tni_error(TN_E_NAME, "%s: metadata key %s is the library's own", p->function, key);
    const size_t each = sizeof *items;
    const item *named = bsearch(&(item){ .name = key }, items, (size_t)n, each, by_name);
    const item *other = bsearch(&(item){ .name = value }, items, (size_t)n, each, by_name);
    if (named && !is_tie(named)) return TN_OK; /* a tensor that is there is no other's tie */
    bool whole = !tn_metadata_get(o->own, TNI_CHECKPOINT);
    if (!named && (!other || !(whole || tni_same_part(key, value)))) return TN_OK;
    return tni_error(TN_E_NAME,
                     "%s: metadata %s = %.64s: it would be read as a tie of tensors: another key "
                     "or value is wanted",
                     p->function, key, value);
}

static tn_status add_metadata(pairs *p, const item *items, int n, const tni_writing *o)
{
    tn_status status = TN_OK;
    const tn_metadata *m = o->metadata;
    for (int i = 0; status == TN_OK && o->own && i < o->own->n; i++)
        status = add_pair(p, o->own->key[i], o->own->value[i]);
    /* a name that is one of these keys stays unrecorded, as in the reference */
    for (int i = 0; status == TN_OK && i < n; i++)
        if (is_tie(&items[i]) && !own_key(o, items[i].name))
            status = add_pair(p, items[i].name, items[i].stored);
    for (int i = 0; status == TN_OK && m && i < m->n; i++) {
        for (int k = 0; k < i; k++)
            if (m->key[i] && !strcmp(m->key[i], m->key[k]))
                return tni_error(TN_E_NAME, "%s: metadata key %s is given twice", p->function,
                                 m->key[i]);
        if (m->key[i] && m->value[i]) status = check_pair(p, m->key[i], m->value[i], items, n, o);
        if (status == TN_OK) status = add_pair(p, m->key[i], m->value[i]);
    }
    return status;
}

/* Items come by name and leave without ties, in the order of the data; *n, *total: of those. */
static tn_status add_header(tni_bytes *b, const char *function, const tn_list *list, item *items,
                            int *n, size_t *total, const tni_writing *o)
{
    pairs p = { b, function, 0 };
    tni_bytes_add(b, "{", 1);
    tn_status status = o->checksum ? add_pair(&p, TNI_CHECKSUM, "00000000") : TN_OK;
    if (status == TN_OK) status = add_metadata(&p, items, *n, o);
    if (status == TN_OK) status = add_versions(&p, list);
    if (p.n) tni_bytes_add(b, "}", 1);
    int stored = 0;
    for (int i = 0; i < *n; i++)
        if (!is_tie(&items[i])) items[stored++] = items[i];
    *n = stored;
    qsort(items, (size_t)stored, sizeof *items, by_layout);
    *total = 0;
    for (int i = 0; status == TN_OK && i < stored; i++) {
        const tn_tensor *t = items[i].tensor;
        if (i || p.n) tni_bytes_add(b, ",", 1);
        status = add_string(b, function, items[i].name);
        tni_bytes_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", tni_safetensors_dtype_name(t->dtype));
        for (int k = 0; k < t->shape.rank; k++)
            tni_bytes_printf(b, "%s%lld", k ? "," : "", (long long)t->shape.size[k]);
        size_t begin = *total;
        if (!tni_add_size(begin, items[i].nbytes, total) || *total > INT64_MAX / 2)
            status =
                tni_error(TN_E_INVALID, "%s: %s: too large for a file", function, items[i].name);
        tni_bytes_printf(b, "],\"data_offsets\":[%zu,%zu]}", begin, *total);
    }
    tni_bytes_add(b, "}", 1);
    while (b->n % 8 && !b->failed) tni_bytes_add(b, " ", 1);
    if (status == TN_OK && b->failed) status = tni_pending();
    if (status == TN_OK && (int64_t)b->n > tni_file_limits().header_bytes)
        status = tni_error(TN_E_INVALID,
                           "%s: a header of %zu bytes: at most %lld could be read back "
                           "(tn_set_file_limits)",
                           function, b->n, (long long)tni_file_limits().header_bytes);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct output {
    tni_atomic_file file;
    bool checksum;
    uLong crc;
} output;

static tn_status put(output *out, const void *data, size_t nbytes)
{
    if (out->checksum) out->crc = crc32_z(out->crc, data, nbytes);
    return tni_file_write(&out->file, data, nbytes);
}

/* Dense tensors of the CPU are written as they lie, others through a copy in row-major order. */
static tn_status write_tensor(output *out, const item *it)
{
    const tn_tensor *t = it->tensor;
    if (it->nbytes == 0) return TN_OK;
    if (t->storage->device.type == TN_CPU && tni_is_dense(t))
        return put(out, tni_data(t), it->nbytes);
    void *copy = tni_alloc(it->nbytes);
    if (!copy) return tni_pending();
    tn_status status = tn_copy_out(t, copy, it->nbytes, t->dtype);
    if (status == TN_OK) status = put(out, copy, it->nbytes);
    tni_free(copy, it->nbytes);
    return status;
}

static tn_status write_file(const char *function, const char *path, const tni_bytes *header,
                            const item *items, int n, size_t total, bool checksum)
{
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)header->n >> (8 * i));
    output out = { .checksum = checksum, .crc = crc32_z(0, NULL, 0) };
    tn_status status = tni_file_create(&out.file, function, path, (int64_t)(8 + header->n + total));
    if (status != TN_OK) return status;
    status = put(&out, size, 8);
    if (status == TN_OK) status = put(&out, header->data, header->n);
    for (int i = 0; status == TN_OK && i < n; i++) status = write_tensor(&out, &items[i]);
    if (status == TN_OK && checksum) {
        char digits[9];
        snprintf(digits, sizeof digits, "%08lx", out.crc);
        status = tni_file_patch(&out.file, TNI_CHECKSUM_AT, digits, 8);
    }
    if (status == TN_OK) return tni_file_finish(&out.file);
    tni_file_abandon(&out.file);
    return status;
}

/* Fills items: by name, ties found, names checked. */
static tn_status collect(const char *function, const tn_list *list, item *items, bool every_key)
{
    for (int i = 0; i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        items[i] = (item){ e->name, e->name, e->tensor, 0 };
        if (!e->tensor || tni_none(e->tensor))
            return tni_error(TN_E_INVALID, "%s: %s is absent: a tensor is wanted", function,
                             e->name);
        size_t length = strlen(e->name);
        if (length == 0 || length > TNI_NAME_LIMIT || !strcmp(e->name, "__metadata__"))
            return tni_error(TN_E_NAME,
                             "%s: a tensor is named \"%.64s\": 1 to %d bytes other than "
                             "__metadata__ are wanted",
                             function, e->name, TNI_NAME_LIMIT);
        if (!tni_mul_size((size_t)tni_shape_numel(&e->tensor->shape),
                          tn_dtype_size(e->tensor->dtype), &items[i].nbytes))
            return tni_error(TN_E_INVALID, "%s: %s: too large for a file", function, e->name);
    }
    qsort(items, (size_t)list->n, sizeof *items, by_place);
    for (int i = 1; i < list->n && !every_key; i++)
        if (items[i].nbytes && !compare_places(items[i - 1].tensor, items[i].tensor))
            items[i].stored = items[i - 1].stored;
    qsort(items, (size_t)list->n, sizeof *items, by_name);
    for (int i = 1; i < list->n; i++)
        if (!strcmp(items[i - 1].name, items[i].name))
            return tni_error(TN_E_NAME, "%s: two tensors are named %s", function, items[i].name);
    return TN_OK;
}

tn_status tni_safetensors_write(const char *function, const char *path, const tn_list *list,
                                tni_writing o)
{
    if (!path) return tni_poison(function, "path");
    if (list->n > tni_file_limits().tensors)
        return tni_error(TN_E_INVALID,
                         "%s: %d tensors: at most %lld could be read back (tn_set_file_limits)",
                         function, list->n, (long long)tni_file_limits().tensors);
    size_t nbytes = (size_t)TNI_MAX(list->n, 1) * sizeof(item);
    item *items = tni_alloc(nbytes);
    if (!items) return tni_pending();
    int n = list->n;
    size_t total;
    tni_bytes header = { 0 };
    tn_status status = collect(function, list, items, o.every_key);
    if (status == TN_OK) status = add_header(&header, function, list, items, &n, &total, &o);
    if (status == TN_OK) status = write_file(function, path, &header, items, n, total, o.checksum);
    tni_bytes_free(&header);
    tni_free(items, nbytes);
    return status;
}
