/*
 * safetensors.c - reading: nothing in the file is trusted before it is checked.
 *
 * Order of the checks: regular file; header size against the file's and our limit; no NUL in the
 * header; JSON, read once from front to back: metadata strings only; every tensor dtype, shape,
 * data_offsets (other keys are passed over, as the reference does), all integers, sizes multiplied
 * with overflow checks, no name twice; ranges sorted: from 0, no hole, no overlap, to the end of
 * the file; then, for a list, the metadata about the tensors. Only then is memory for data
 * allocated, and only as much as the file holds.
 *
 * Limits: of tn_set_file_limits; names of 1 to 1,024 bytes; at most 8 axes.
 */
#include "io/io.h"
#include "io/json.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files are little-endian and are read as they lie: this host is not"
#endif

#define bad(file, ...) tni_input_bad(&(file)->in, __VA_ARGS__)

/* Error: not JSON where j stopped, or not what was wanted there. */
#define wrong(file, j, ...)                                                                        \
    ((j)->problem ? tni_json_bad(&(file)->in, "the header", j) : bad(file, __VA_ARGS__))

/* ---- one tensor's entry ---------------------------------------------------------------------- */

static tn_status read_dtype(const tni_safetensors *file, tni_json *j, tni_safetensor *e)
{
    const char *dtype = tni_json_string(j);
    if (!dtype) return wrong(file, j, "%.64s: dtype is not a string", e->name);
    for (int i = 0; (e->stored = tni_file_dtype_at(i)); i++)
        if (e->stored->safetensors && !strcmp(e->stored->safetensors, dtype)) break;
    if (!e->stored)
        return bad(file, "%.64s: dtype %.16s: want F32, F64, BF16, F16, I64, I32, U8 or BOOL",
                   e->name, dtype);
    e->dtype = (tn_dtype)e->stored->dtype;
    return TN_OK;
}

static tn_status read_shape(const tni_safetensors *file, tni_json *j, tni_safetensor *e)
{
    if (!tni_json_open(j, '[')) return wrong(file, j, "%.64s: shape is not a list", e->name);
    while (tni_json_next(j, ']')) {
        int i = e->shape.rank;
        if (i == TN_MAX_RANK)
            return bad(file, "%.64s: more than %d axes: at most so many are possible", e->name, i);
        if (!tni_json_integer(j, &e->shape.size[i]))
            return wrong(file, j, "%.64s: size %d of shape is not an integer >= 0", e->name, i);
        e->shape.rank++;
    }
    return TN_OK;
}

static tn_status read_offsets(const tni_safetensors *file, tni_json *j, tni_safetensor *e)
{
    int64_t *const place[2] = { &e->begin, &e->end };
    bool two = tni_json_open(j, '[');
    for (int i = 0; two && i < 2; i++) two = tni_json_next(j, ']') && tni_json_integer(j, place[i]);
    if (two && !tni_json_next(j, ']') && !j->problem) return TN_OK;
    return wrong(file, j, "%.64s: data_offsets is not a list of two integers >= 0", e->name);
}

static tn_status check_range(const tni_safetensors *file, const tni_safetensor *e)
{
    int64_t available = file->in.size - file->data;
    if (e->begin > e->end || e->end > available)
        return bad(file,
                   "%.64s: data_offsets [%" PRId64 ",%" PRId64 "]: want begin <= end <= %" PRId64,
                   e->name, e->begin, e->end, available);
    int64_t n = tni_shape_numel(&e->shape);
    size_t nbytes;
    if (n < 0 || !tni_mul_size((size_t)n, (size_t)e->stored->bits, &nbytes) || nbytes > INT64_MAX)
        return bad(file, "%.64s: shape %s: its size overflows", e->name, tni_shape_text(&e->shape));
    if (nbytes % 8 || e->end - e->begin != (int64_t)(nbytes / 8))
        return bad(file, "%.64s: data_offsets hold %" PRId64 " bytes: %s %s takes %zu", e->name,
                   (e->end - e->begin), e->stored->safetensors, tni_shape_text(&e->shape),
                   (nbytes + 7) / 8);
    return TN_OK;
}

static const struct {
    const char *key;
    tn_status (*read)(const tni_safetensors *file, tni_json *j, tni_safetensor *e);
} fields[] = { { "dtype", read_dtype }, { "shape", read_shape }, { "data_offsets", read_offsets } };
enum { N_FIELDS = sizeof fields / sizeof *fields };

static tn_status read_entry(tni_safetensors *file, tni_json *j, const char *name)
{
    tni_safetensor e = { .name = name };
    size_t length = strlen(name);
    if (length == 0 || length > TNI_NAME_LIMIT)
        return bad(file, "a tensor's name has %zu bytes: want 1 to %d", length, TNI_NAME_LIMIT);
    if (!tni_json_open(j, '{')) return wrong(file, j, "%.64s: is not an object", name);
    bool seen[N_FIELDS] = { false };
    int n = 0;
    for (const char *key; tni_json_next(j, '}') && (key = tni_json_key(j));) {
        int i = 0;
        while (i < N_FIELDS && strcmp(key, fields[i].key)) i++;
        if (i == N_FIELDS) { /* of another writer's: the reference reads past it, too */
            if (!tni_json_skip(j)) break;
            continue;
        }
        n++;
        if (seen[i]) return bad(file, "%.64s: %s is there twice", name, key);
        seen[i] = true;
        TNI_TRY(fields[i].read(file, j, &e));
    }
    if (n < N_FIELDS || j->problem)
        return wrong(file, j, "%.64s: want dtype, shape and data_offsets, one is missing", name);
    TNI_TRY(check_range(file, &e));
    int added = tni_names_add(&file->entries, &file->entry, &e, sizeof e);
    return added > 0 ? TN_OK
           : added   ? tni_pending()
                     : bad(file, "two tensors are named %.64s", name);
}

/* ---- the header as a whole ------------------------------------------------------------------- */

static tn_status read_metadata(tni_safetensors *file, tni_json *j)
{
    if (tni_json_word(j, "null")) return TN_OK; /* as MLX writes it */
    if (!tni_json_open(j, '{')) return wrong(file, j, "__metadata__ is not an object");
    if (file->pairs.n) return bad(file, "__metadata__ is there twice");
    tni_pair pair;
    while (tni_json_next(j, '}') && (pair.key = tni_json_key(j))) {
        pair.value = tni_json_string(j);
        if (!pair.value) return wrong(file, j, "__metadata__: %.64s is not a string", pair.key);
        int added = tni_names_add(&file->pairs, &file->pair, &pair, sizeof pair);
        if (!added) return bad(file, "__metadata__: the key %.64s is there twice", pair.key);
        if (added < 0) return tni_pending();
    }
    return j->problem ? tni_json_bad(&file->in, "the header", j) : TN_OK;
}

static int by_begin(const void *a, const void *b)
{
    const tni_safetensor *x = *(tni_safetensor *const *)a, *y = *(tni_safetensor *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Ranges must tile the data area; empty tensors may share an offset. */
static tn_status check_ranges(const tni_safetensors *file)
{
    const int n = file->entries.n;
    TNI_ITEMS(tni_safetensor *, order, n);
    if (!order) return tni_pending();
    for (int i = 0; i < n; i++) order[i] = &file->entry[i];
    tni_sort(order, (size_t)n, sizeof *order, by_begin);
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (order[i]->begin != at)
            return tni_input_gap(&file->in, order[i]->name, order[i]->begin, at);
        at = order[i]->end;
    }
    if (at == file->in.size - file->data) return TN_OK;
    return bad(file, "%" PRId64 " bytes follow the last tensor: want none",
               (file->in.size - file->data - at));
}

static tn_status parse_header(tni_safetensors *file)
{
    const int64_t most = tn_get_file_limits().tensors;
    if (memchr(file->header, 0, file->header_bytes)) return bad(file, "a zero byte in the header");
    tni_json json = tni_json_of(file->header, file->header_bytes), *j = &json;
    if (!tni_json_open(j, '{')) return wrong(file, j, "the header is not an object");
    for (const char *name; tni_json_next(j, '}') && (name = tni_json_key(j));) {
        if (!strcmp(name, "__metadata__"))
            TNI_TRY(read_metadata(file, j));
        else if (file->entries.n < most)
            TNI_TRY(read_entry(file, j, name));
        else
            return bad(file,
                       "more than %" PRId64
                       " tensors: at most so many are read (tn_set_file_limits)",
                       most);
    }
    if (!tni_json_end(j)) return tni_json_bad(&file->in, "the header", j);
    return check_ranges(file);
}

/* The header's size is impossible: the first bytes are something else. */
static tn_status not_one(const tni_safetensors *file, uint64_t n)
{
    /* lengths of real headers have no high bytes */
    const char *what = n >> 32 ? tni_begins_as(&n) : NULL;
    if (what) return bad(file, "not a safetensors file: %s", what);
    return bad(file,
               "a header of %" PRIu64 " bytes in a file of %" PRId64 ": not a safetensors file%s",
               n, file->in.size, n >> 32 ? "" : ", or cut off");
}

static tn_status read_header(tni_safetensors *file)
{
    const int64_t size = file->in.size, most = tn_get_file_limits().header_bytes;
    uint64_t n;
    if (size < 8) return bad(file, "%" PRId64 " bytes: a safetensors file has at least 8", size);
    TNI_TRY(tni_input_read(&file->in, 0, &n, sizeof n));
    if (n < 2 || n > (uint64_t)size - 8) return not_one(file, n);
    if (n > (uint64_t)most)
        return bad(file, "a header of %" PRIu64 " bytes" TNI_MOST_READ, n, most);
    if (!(file->header = tni_alloc((size_t)n))) return tni_pending();
    file->header_bytes = (size_t)n;
    TNI_TRY(tni_input_read(&file->in, 8, file->header, (size_t)n));
    file->data = (int64_t)n + 8;
    return parse_header(file);
}

tn_status tni_safetensors_open(tni_safetensors *file, const char *function, const char *path)
{
    *file = (tni_safetensors){ 0 };
    TNI_TRY(tni_input_open(&file->in, function, path));
    tn_status status = read_header(file);
    if (status != TN_OK) tni_safetensors_close(file);
    return status;
}

void tni_safetensors_close(tni_safetensors *file)
{
    tni_names_free(&file->entries, &file->entry, sizeof *file->entry);
    tni_names_free(&file->pairs, &file->pair, sizeof *file->pair);
    if (file->header) tni_free(file->header, file->header_bytes);
    tni_input_close(&file->in);
    *file = (tni_safetensors){ .in.fd = -1 };
}

/* ---- data ------------------------------------------------------------------------------------ */

tn_tensor *tni_safetensors_tensor(tni_safetensors *file, const tni_safetensor *e)
{
    const bool kept = tni_file_dtype_kept(e->stored), as_it_is = kept && e->dtype != TN_BOOL;
    if (as_it_is) return tni_unread_tensor(&file->in, file->data + e->begin, e->shape, e->dtype);
    tn_tensor *t = tn_empty_as(e->shape, e->dtype, tn_cpu());
    if (!t) return NULL;
    const size_t nbytes = (size_t)(e->end - e->begin), n = (size_t)tni_shape_numel(&t->shape);
    unsigned char *to = tni_data(t), *data = to + n * tn_dtype_size(t->dtype) - nbytes;
    if (nbytes && tni_input_read(&file->in, file->data + e->begin, data, nbytes) != TN_OK)
        return NULL;
    if (!kept) return tni_widen(e->stored, false, data, (char *)to, n), t;
    for (size_t i = 0; i < nbytes; i++)
        if (data[i] > 1)
            return tni_nothing(
                bad(file, "%.64s: byte %zu of BOOL is %d: want 0 or 1", e->name, i, data[i]));
    return t;
}

const char *tni_safetensors_string(const tni_safetensors *file, const char *key)
{
    int i = tni_names_find(&file->pairs, key);
    return i < 0 ? NULL : file->pair[i].value;
}

/* ---- the checksum ---------------------------------------------------------------------------- */

tn_status tni_safetensors_verify(tni_safetensors *file)
{
    const char *wanted = tni_safetensors_string(file, TNI_CHECKSUM);
    if (!wanted) return TN_OK;
    const int64_t behind = TNI_CHECKSUM_AT + 8, rest = file->in.size - behind;
    uint32_t crc = 0;
    const tni_scan scan = { .crc = &crc };
    char digits[17];
    TNI_TRY(tni_input_scan(&file->in, 0, TNI_CHECKSUM_AT, scan));
    crc = tni_crc32(crc, "00000000", 8); /* in place of its digits */
    if (rest > 0) TNI_TRY(tni_input_scan(&file->in, behind, (size_t)rest, scan));
    snprintf(digits, sizeof digits, "%08x", (unsigned)crc);
    if (!strcmp(digits, wanted)) return TN_OK;
    return bad(file, "the checksum is %s, not %.16s: damaged, or changed by another program",
               digits, wanted);
}
