/*
 * safetensors_write.c - writing: header and data in the reference writer's order.
 *
 * Tensors are sorted by dtype, widest alignment first, then by name, so every tensor lies aligned;
 * the header is padded with spaces to a multiple of 8. Tied tensors are written under each of their
 * names. Source: huggingface/safetensors, tensor.rs (prepare).
 */
#include <stdio.h>
#include <stdlib.h>

#include "io/safetensors.h"

typedef struct item {
    const char *name;
    tn_tensor *tensor;
    size_t nbytes;
} item;

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

static tn_status add_metadata(tni_bytes *b, const char *function, const tn_metadata *m, int *n)
{
    for (int i = 0; m && i < m->n; i++) {
        for (int k = 0; k < i; k++)
            if (m->key[i] && m->key[k] && !strcmp(m->key[i], m->key[k]))
                return tni_error(TN_E_NAME, "%s: metadata key %s is given twice", function,
                                 m->key[i]);
        if ((*n)++) tni_bytes_add(b, ",", 1);
        tn_status status = add_string(b, function, m->key[i]);
        tni_bytes_add(b, ":", 1);
        if (status == TN_OK) status = add_string(b, function, m->value[i]);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status check_metadata(const char *function, const tn_metadata *own, const tn_metadata *m)
{
    for (int i = 0; own && m && i < m->n; i++)
        if (tn_metadata_get(own, m->key[i]))
            return tni_error(TN_E_NAME, "%s: metadata key %s is the library's own", function,
                             m->key[i]);
    return TN_OK;
}

static tn_status add_header(tni_bytes *b, const char *function, const item *items, int n,
                            const tn_metadata *own, const tn_metadata *metadata)
{
    int pairs = 0;
    tn_status status = check_metadata(function, own, metadata);
    tni_bytes_add(b, "{", 1);
    if ((own && own->n) || (metadata && metadata->n)) {
        tni_bytes_printf(b, "\"__metadata__\":{");
        if (status == TN_OK) status = add_metadata(b, function, own, &pairs);
        if (status == TN_OK) status = add_metadata(b, function, metadata, &pairs);
        tni_bytes_add(b, "}", 1);
    }
    size_t at = 0;
    for (int i = 0; status == TN_OK && i < n; i++) {
        const tn_tensor *t = items[i].tensor;
        if (i || pairs) tni_bytes_add(b, ",", 1);
        status = add_string(b, function, items[i].name);
        tni_bytes_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", tni_safetensors_dtype_name(t->dtype));
        for (int k = 0; k < t->shape.rank; k++)
            tni_bytes_printf(b, "%s%lld", k ? "," : "", (long long)t->shape.size[k]);
        tni_bytes_printf(b, "],\"data_offsets\":[%zu,%zu]}", at, at + items[i].nbytes);
        at += items[i].nbytes;
    }
    tni_bytes_add(b, "}", 1);
    while (b->n % 8 && !b->failed) tni_bytes_add(b, " ", 1);
    if (status == TN_OK && b->failed) status = tni_pending();
    if (status == TN_OK && (int64_t)b->n > TNI_HEADER_LIMIT)
        status =
            tni_error(TN_E_INVALID, "%s: a header of %zu bytes: at most %lld could be read back",
                      function, b->n, (long long)TNI_HEADER_LIMIT);
    return status;
}

/* Dense tensors of the CPU are written as they lie, others through a copy in row-major order. */
static tn_status write_tensor(tni_atomic_file *file, const item *it)
{
    const tn_tensor *t = it->tensor;
    if (it->nbytes == 0) return TN_OK;
    if (t->storage->device.type == TN_CPU && tni_is_dense(t))
        return tni_file_write(file, tni_data(t), it->nbytes);
    void *copy = tni_alloc(it->nbytes);
    if (!copy) return tni_pending();
    tn_status status = tn_copy_out(t, copy, it->nbytes, t->dtype);
    if (status == TN_OK) status = tni_file_write(file, copy, it->nbytes);
    tni_free(copy, it->nbytes);
    return status;
}

static tn_status write_file(const char *function, const char *path, const tni_bytes *header,
                            const item *items, int n, size_t total)
{
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)header->n >> (8 * i));
    tni_atomic_file file;
    tn_status status = tni_file_create(&file, function, path, (int64_t)(8 + header->n + total));
    if (status != TN_OK) return status;
    status = tni_file_write(&file, size, 8);
    if (status == TN_OK) status = tni_file_write(&file, header->data, header->n);
    for (int i = 0; status == TN_OK && i < n; i++) status = write_tensor(&file, &items[i]);
    if (status == TN_OK) return tni_file_finish(&file);
    tni_file_abandon(&file);
    return status;
}

/* Fills items, checks names and sizes. */
static tn_status collect(const char *function, const tn_list *list, item *items, size_t *total)
{
    *total = 0;
    for (int i = 0; i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        items[i] = (item){ e->name, e->tensor, 0 };
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
                          tn_dtype_size(e->tensor->dtype), &items[i].nbytes) ||
            !tni_add_size(*total, items[i].nbytes, total) || *total > INT64_MAX / 2)
            return tni_error(TN_E_INVALID, "%s: %s: too large for a file", function, e->name);
    }
    qsort(items, (size_t)list->n, sizeof *items, by_name);
    for (int i = 1; i < list->n; i++)
        if (!strcmp(items[i - 1].name, items[i].name))
            return tni_error(TN_E_NAME, "%s: two tensors are named %s", function, items[i].name);
    qsort(items, (size_t)list->n, sizeof *items, by_layout);
    return TN_OK;
}

tn_status tni_safetensors_write(const char *function, const char *path, const tn_list *list,
                                const tn_metadata *own, const tn_metadata *metadata)
{
    if (!path) return tni_poison(function, "path");
    if (list->n > TNI_TENSOR_LIMIT)
        return tni_error(TN_E_INVALID, "%s: %d tensors: at most %d could be read back", function,
                         list->n, TNI_TENSOR_LIMIT);
    size_t nbytes = (size_t)TNI_MAX(list->n, 1) * sizeof(item);
    item *items = tni_alloc(nbytes);
    if (!items) return tni_pending();
    size_t total;
    tni_bytes header = { 0 };
    tn_status status = collect(function, list, items, &total);
    if (status == TN_OK) status = add_header(&header, function, items, list->n, own, metadata);
    if (status == TN_OK) status = write_file(function, path, &header, items, list->n, total);
    tni_bytes_free(&header);
    tni_free(items, nbytes);
    return status;
}
