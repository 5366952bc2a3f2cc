/*
 * safetensors.c - reading: nothing in the file is believed before it is checked.
 *
 * Order of the checks: regular file; header size against the file's and our limit; no NUL in the
 * header; JSON without duplicate keys (jansson); metadata strings only; every tensor exactly dtype,
 * shape, data_offsets, all integers, sizes multiplied with overflow checks; ranges sorted: from 0,
 * no hole, no overlap, to the end of the file. Only then memory for data is asked for, and only as
 * much as is there.
 *
 * Limits: of tn_set_file_limits; names of 1 to 1,024 bytes; at most 8 axes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "io/io.h"
#include "nn/module.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files are little-endian and are read as they lie: this host is not"
#endif

static const struct {
    const char *name;
    tn_dtype dtype;
} dtypes[] = {
    { "F32", TN_F32 }, { "F64", TN_F64 }, { "BF16", TN_BF16 }, { "F16", TN_F16 },
    { "I64", TN_I64 }, { "I32", TN_I32 }, { "U8", TN_U8 },     { "BOOL", TN_BOOL },
};
#define N_DTYPES (int)(sizeof dtypes / sizeof *dtypes)

const char *tni_safetensors_dtype_name(tn_dtype dtype)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return NULL;
}

#define bad(file, ...) tni_input_bad(&(file)->in, __VA_ARGS__)

/* ---- one tensor's entry ---------------------------------------------------------------------- */

static tn_status read_shape(const tni_safetensors *file, const json_t *shape, tni_safetensor *e)
{
    if (!json_is_array(shape)) return bad(file, "%.64s: shape is not a list", e->name);
    size_t rank = json_array_size(shape);
    if (rank > TN_MAX_RANK)
        return bad(file, "%.64s: %zu axes: at most %d are possible", e->name, rank, TN_MAX_RANK);
    e->shape.rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return bad(file, "%.64s: size %zu of shape is not an integer >= 0", e->name, i);
        e->shape.size[i] = json_integer_value(size);
    }
    return TN_OK;
}

static tn_status read_range(const tni_safetensors *file, const json_t *offsets, tni_safetensor *e)
{
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return bad(file, "%.64s: data_offsets is not a list of two integers", e->name);
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    int64_t available = file->in.size - file->data;
    if (e->begin < 0 || e->begin > e->end || e->end > available)
        return bad(file, "%.64s: data_offsets [%lld,%lld]: 0 <= begin <= end <= %lld is wanted",
                   e->name, (long long)e->begin, (long long)e->end, (long long)available);
    int64_t n = tni_shape_numel(&e->shape);
    size_t nbytes;
    if (n < 0 || !tni_mul_size((size_t)n, tn_dtype_size(e->dtype), &nbytes) || nbytes > INT64_MAX)
        return bad(file, "%.64s: shape %s: its size overflows", e->name, tni_shape_text(&e->shape));
    if (e->end - e->begin != (int64_t)nbytes)
        return bad(file, "%.64s: data_offsets hold %lld bytes: %s %s takes %zu", e->name,
                   (long long)(e->end - e->begin), tni_safetensors_dtype_name(e->dtype),
                   tni_shape_text(&e->shape), nbytes);
    return TN_OK;
}

static tn_status read_entry(const tni_safetensors *file, const char *name, json_t *value,
                            tni_safetensor *e)
{
    size_t length = strlen(name);
    e->name = name;
    if (length == 0 || length > TNI_NAME_LIMIT)
        return bad(file, "a tensor's name has %zu bytes: 1 to %d are possible", length,
                   TNI_NAME_LIMIT);
    if (!json_is_object(value)) return bad(file, "%.64s: is not an object", name);
    const char *key;
    json_t *ignored;
    json_object_foreach(value, key, ignored)
    {
        if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
            return bad(file, "%.64s: unknown key %.64s: dtype, shape and data_offsets are wanted",
                       name, key);
    }
    if (json_object_size(value) != 3)
        return bad(file, "%.64s: dtype, shape and data_offsets are wanted, one is missing", name);
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!dtype) return bad(file, "%.64s: dtype is not a string", name);
    int d = 0;
    while (d < N_DTYPES && strcmp(dtypes[d].name, dtype)) d++;
    if (d == N_DTYPES)
        return bad(file, "%.64s: dtype %.16s: F32, F64, BF16, F16, I64, I32, U8 or BOOL is wanted",
                   name, dtype);
    e->dtype = dtypes[d].dtype;
    tn_status status = read_shape(file, json_object_get(value, "shape"), e);
    if (status == TN_OK) status = read_range(file, json_object_get(value, "data_offsets"), e);
    return status;
}

/* ---- the header as a whole ------------------------------------------------------------------- */

static tn_status read_metadata(const tni_safetensors *file, json_t *metadata)
{
    if (!json_is_object(metadata)) return bad(file, "__metadata__ is not an object");
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) return bad(file, "__metadata__: %.64s is not a string", key);
    }
    return TN_OK;
}

static int by_begin(const void *a, const void *b)
{
    const tni_safetensor *x = *(tni_safetensor *const *)a;
    const tni_safetensor *y = *(tni_safetensor *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Ranges must tile the data area; empty tensors may share an offset. */
static tn_status check_ranges(const tni_safetensors *file)
{
    size_t nbytes = (size_t)TNI_MAX(file->n, 1) * sizeof(tni_safetensor *);
    tni_safetensor **order = tni_alloc(nbytes);
    if (!order) return tni_pending();
    for (int i = 0; i < file->n; i++) order[i] = &file->entry[i];
    qsort(order, (size_t)file->n, sizeof *order, by_begin);
    tn_status status = TN_OK;
    int64_t at = 0;
    for (int i = 0; status == TN_OK && i < file->n; i++) {
        if (order[i]->begin != at)
            status = bad(file, "%.64s begins at %lld: %s, %lld is wanted", order[i]->name,
                         (long long)order[i]->begin, order[i]->begin < at ? "overlap" : "hole",
                         (long long)at);
        at = order[i]->end;
    }
    if (status == TN_OK && at != file->in.size - file->data)
        status = bad(file, "%lld bytes follow the last tensor: none are wanted",
                     (long long)(file->in.size - file->data - at));
    tni_free(order, nbytes);
    return status;
}

static tn_status read_entries(tni_safetensors *file)
{
    size_t n = json_object_size(file->root);
    file->metadata = json_object_get(file->root, "__metadata__");
    if (file->metadata) {
        tn_status status = read_metadata(file, file->metadata);
        if (status != TN_OK) return status;
        n--;
    }
    int64_t most = tni_file_limits().tensors;
    if (n > (size_t)most)
        return bad(file, "%zu tensors: at most %lld are read (tn_set_file_limits)", n,
                   (long long)most);
    if (n == 0) return check_ranges(file);
    file->entry = tni_calloc(n * sizeof *file->entry);
    if (!file->entry) return tni_pending();
    const char *name;
    json_t *value;
    json_object_foreach(file->root, name, value)
    {
        if (value == file->metadata) continue;
        tn_status status = read_entry(file, name, value, &file->entry[file->n]);
        file->n++; /* counted also when bad: close frees by n */
        if (status != TN_OK) {
            file->n = (int)n;
            return status;
        }
    }
    return check_ranges(file);
}

static tn_status parse_header(tni_safetensors *file, const char *header, size_t n)
{
    if (memchr(header, 0, n)) return bad(file, "a zero byte in the header");
    json_error_t error;
    file->root = json_loadb(header, n, JSON_REJECT_DUPLICATES, &error);
    if (!file->root)
        return bad(file, "the header is not JSON: %s at byte %d", error.text, error.position);
    if (!json_is_object(file->root)) return bad(file, "the header is not an object");
    return read_entries(file);
}

tn_status tni_safetensors_open(tni_safetensors *file, const char *function, const char *path)
{
    *file = (tni_safetensors){ 0 };
    tn_status status = tni_input_open(&file->in, function, path);
    if (status != TN_OK) return status;
    unsigned char size[8];
    uint64_t n = 0;
    if (file->in.size < 8)
        status =
            bad(file, "%lld bytes: a safetensors file has at least 8", (long long)file->in.size);
    else
        status = tni_input_read(&file->in, 0, size, 8);
    for (int i = 0; status == TN_OK && i < 8; i++) n |= (uint64_t)size[i] << (8 * i);
    if (status == TN_OK && (n < 2 || n > (uint64_t)file->in.size - 8))
        status = bad(file, "a header of %llu bytes in a file of %lld: not a safetensors file",
                     (unsigned long long)n, (long long)file->in.size);
    int64_t most = tni_file_limits().header_bytes;
    if (status == TN_OK && n > (uint64_t)most)
        status = bad(file, "a header of %llu bytes: at most %lld are read (tn_set_file_limits)",
                     (unsigned long long)n, (long long)most);
    char *header = status == TN_OK ? tni_alloc((size_t)n) : NULL;
    if (status == TN_OK && !header) status = tni_pending();
    if (status == TN_OK) status = tni_input_read(&file->in, 8, header, (size_t)n);
    if (status == TN_OK) file->data = (int64_t)n + 8;
    if (status == TN_OK) status = parse_header(file, header, (size_t)n);
    if (header) tni_free(header, (size_t)n);
    if (status != TN_OK) tni_safetensors_close(file);
    return status;
}

void tni_safetensors_close(tni_safetensors *file)
{
    size_t n = json_object_size(file->root) - (file->metadata != NULL);
    if (file->entry) tni_free(file->entry, n * sizeof *file->entry);
    json_decref(file->root);
    tni_input_close(&file->in);
    *file = (tni_safetensors){ .in.fd = -1 };
}

/* ---- data ------------------------------------------------------------------------------------ */

tn_tensor *tni_safetensors_tensor(tni_safetensors *file, const tni_safetensor *e)
{
    tn_tensor *t = tn_empty_as(e->shape, e->dtype, tn_cpu());
    if (!t) return NULL;
    size_t nbytes = (size_t)(e->end - e->begin);
    unsigned char *data = tni_data(t);
    if (nbytes && tni_input_read(&file->in, file->data + e->begin, data, nbytes) != TN_OK)
        return NULL;
    if (e->dtype != TN_BOOL) return t;
    for (size_t i = 0; i < nbytes; i++)
        if (data[i] > 1) {
            bad(file, "%.64s: byte %zu of BOOL is %d: 0 or 1 is wanted", e->name, i, data[i]);
            return NULL;
        }
    return t;
}

const tni_safetensor *tni_safetensors_find(const tni_safetensors *file, const char *name)
{
    for (int i = 0; i < file->n; i++)
        if (!strcmp(file->entry[i].name, name)) return &file->entry[i];
    return NULL;
}

const char *tni_safetensors_string(const tni_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

/* ---- ties ------------------------------------------------------------------------------------ */

bool tni_same_part(const char *a, const char *b)
{
    size_t n = strcspn(a, ".");
    return a[n] && !strncmp(a, b, n + 1);
}

bool tni_safetensors_tie(const tni_safetensors *file, const char *key, const char *value)
{
    size_t n = strlen(key);
    if (n == 0 || n > TNI_NAME_LIMIT || json_object_get(file->root, key)) return false;
    if (!strcmp(value, "__metadata__") || !json_object_get(file->root, value)) return false;
    return !json_object_get(file->metadata, TNI_CHECKPOINT) || tni_same_part(key, value);
}

/* ---- the checksum ---------------------------------------------------------------------------- */

static tn_status crc_of(tni_safetensors *file, char *chunk, size_t size, uLong *crc)
{
    *crc = crc32_z(0, NULL, 0);
    for (int64_t at = 0; at < file->in.size; at += (int64_t)size) {
        size_t n = (size_t)TNI_MIN(file->in.size - at, (int64_t)size);
        tn_status status = tni_input_read(&file->in, at, chunk, n);
        if (status != TN_OK) return status;
        if (at == 0) memset(chunk + TNI_CHECKSUM_AT, '0', 8); /* in the header: long enough */
        *crc = crc32_z(*crc, (unsigned char *)chunk, n);
    }
    return TN_OK;
}

tn_status tni_safetensors_verify(tni_safetensors *file)
{
    const char *wanted = tni_safetensors_string(file, TNI_CHECKSUM);
    if (!wanted) return TN_OK;
    const size_t size = (size_t)1 << 16;
    char *chunk = tni_alloc(size);
    if (!chunk) return tni_pending();
    uLong crc;
    char digits[17];
    tn_status status = crc_of(file, chunk, size, &crc);
    tni_free(chunk, size);
    snprintf(digits, sizeof digits, "%08lx", crc);
    if (status == TN_OK && strcmp(digits, wanted))
        status = bad(file, "the checksum is %s, not %.16s: damaged, or changed by another program",
                     digits, wanted);
    return status;
}

/* ---- metadata: one block with the arrays in front and the texts behind ----------------------- */

typedef struct block {
    size_t nbytes;
    const char *string[]; /* n keys, n values, then the texts */
} block;

static void drop_block(void *object)
{
    tni_free(object, ((block *)object)->nbytes);
}

/* Pairs that say something of the tensors or the file have done so: they are not handed out. */
static bool handed_out(const tni_safetensors *file, const char *skip, const char *key,
                       const json_t *value)
{
    if (*skip && !strncmp(key, skip, strlen(skip))) return false;
    if (!strcmp(key, TNI_VERSIONS) || !strcmp(key, TNI_CHECKSUM)) return false;
    return !tni_safetensors_tie(file, key, json_string_value(value));
}

tn_status tni_safetensors_metadata(const tni_safetensors *file, const char *skip, tn_metadata *out)
{
    *out = (tn_metadata){ 0 };
    size_t n = 0, text = 0;
    const char *key;
    json_t *value;
    json_object_foreach(file->metadata, key, value)
    {
        if (!handed_out(file, skip, key, value)) continue;
        n++;
        text += strlen(key) + json_string_length(value) + 2; /* parts of a header: no overflow */
    }
    if (n == 0) return TN_OK;
    size_t nbytes = sizeof(block) + 2 * n * sizeof(char *) + text;
    block *b = tni_alloc(nbytes);
    if (!b) return tni_pending();
    b->nbytes = nbytes;
    char *at = (char *)(b->string + 2 * n);
    size_t i = 0;
    json_object_foreach(file->metadata, key, value)
    {
        if (!handed_out(file, skip, key, value)) continue;
        b->string[i] = strcpy(at, key);
        at += strlen(key) + 1;
        b->string[n + i] = strcpy(at, json_string_value(value));
        at += json_string_length(value) + 1;
        i++;
    }
    tn_status status = tni_scope_add(b, drop_block);
    if (status == TN_OK) *out = (tn_metadata){ (int)n, b->string, b->string + n };
    return status;
}

const char *tn_metadata_get(const tn_metadata *metadata, const char *key)
{
    for (int i = 0; metadata && key && i < metadata->n; i++)
        if (!strcmp(metadata->key[i], key)) return metadata->value[i];
    return NULL;
}
