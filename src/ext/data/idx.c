/*
 * idx.c - IDX files (the MNIST family), plain or compressed.
 *
 * Bytes 0, 0, type, rank; then rank big-endian sizes of 32 bits; then the values, big-endian, and
 * nothing after them. Types: 08 u8, 09 i8, 0B i16, 0C i32, 0D f32, 0E f64.
 *
 * The stream below is either the file itself or its inflated contents; its reader sees no
 * difference. We call inflate, not gzread: gzread returns the data of a damaged file before it
 * reports the damage, and never reports junk after the compressed data.
 */
#include <zlib.h>

#include "io/file.h"
#include "io/io.h"

#define CHUNK 65536
/* deflate never shrinks by more than this (zlib's technical notes): bounds what a file can hold */
#define DEFLATE_RATIO 1032

typedef struct stream {
    tni_input in;
    bool gz, between; /* between: the last gzip member is complete, its checksum right */
    int64_t at;       /* bytes read from the file so far */
    z_stream z;
    unsigned char buffer[CHUNK];
} stream;

#define bad(stream, ...) tni_input_bad(&(stream)->in, __VA_ARGS__)

/* Up to n inflated bytes; fewer only at the end, which may follow any gzip member. */
static tn_status inflate_some(stream *s, unsigned char *out, size_t n, size_t *got)
{
    *got = 0;
    while (*got < n) {
        if (s->z.avail_in == 0) {
            s->z.avail_in = (uInt)TNI_MIN(s->in.size - s->at, (int64_t)CHUNK);
            s->z.next_in = s->buffer;
            TNI_TRY(tni_input_read(&s->in, s->at, s->buffer, s->z.avail_in));
            s->at += s->z.avail_in;
        }
        if (s->z.avail_in == 0)
            return s->between ? TN_OK : bad(s, "the compressed data is cut off");
        if (s->between && s->z.next_in[0] != 0x1f)
            return bad(s, "bytes follow the compressed data: want none");
        if (s->between) inflateReset(&s->z);
        size_t want = TNI_MIN(n - *got, (size_t)1 << 30);
        s->z.next_out = out + *got;
        s->z.avail_out = (uInt)want;
        int code = inflate(&s->z, Z_NO_FLUSH);
        *got += want - s->z.avail_out;
        s->between = code == Z_STREAM_END;
        if (code == Z_MEM_ERROR) return tni_input_error(&s->in, TN_E_NOMEM, "out of memory");
        if (!s->between && code != Z_OK && code != Z_BUF_ERROR)
            return bad(s, "%s", s->z.msg ? s->z.msg : "the compressed data is damaged");
    }
    return TN_OK;
}

static tn_status read_some(stream *s, void *out, size_t n, size_t *got)
{
    if (s->gz) return inflate_some(s, out, n, got);
    *got = (size_t)TNI_MIN((int64_t)TNI_MIN(n, (size_t)INT64_MAX), s->in.size - s->at);
    tn_status status = tni_input_read(&s->in, s->at, out, *got);
    s->at += (int64_t)*got;
    return status;
}

static tn_status open_stream(stream *s, const char *path)
{
    memset(s, 0, sizeof *s);
    TNI_TRY(tni_input_open(&s->in, "tn_idx_load", path));
    unsigned char magic[2] = { 0 };
    if (s->in.size >= 2) TNI_TRY(tni_input_read(&s->in, 0, magic, 2));
    s->gz = magic[0] == 0x1f && magic[1] == 0x8b;
    if (s->gz && inflateInit2(&s->z, 15 + 16) != Z_OK)
        return tni_input_error(&s->in, TN_E_NOMEM, "out of memory");
    return TN_OK;
}

/* Also what could not be opened. */
static void close_stream(stream *s)
{
    inflateEnd(&s->z);
    tni_input_close(&s->in);
}

/* ---- the format ------------------------------------------------------------------------------ */

/* By the file's type. */
static const tni_file_dtype kinds[256] = {
    [0x08] = { .letter = 'u', .bits = 8, .dtype = TN_U8 },
    [0x09] = { .letter = 'i', .bits = 8, .dtype = TN_I32 },
    [0x0b] = { .letter = 'i', .bits = 16, .dtype = TN_I32 },
    [0x0c] = { .letter = 'i', .bits = 32, .dtype = TN_I32 },
    [0x0d] = { .letter = 'f', .bits = 32, .dtype = TN_F32 },
    [0x0e] = { .letter = 'f', .bits = 64, .dtype = TN_F64 },
};

typedef struct header {
    const tni_file_dtype *kind;
    tn_dtype dtype; /* of the tensor */
    tn_shape shape;
    size_t size, nbytes; /* of a value, of all */
} header;

/* b: 4 bytes, and room for 4 more. */
static tn_status not_idx(stream *s, unsigned char *b)
{
    size_t got;
    TNI_TRY(read_some(s, b + 4, 4, &got));
    const char *what = s->gz && b[0] == 0x1f ? "its contents are compressed" : tni_begins_as(b);
    if (what) return bad(s, "%s: want an IDX file", what);
    return bad(s, "begins with %02x %02x %02x %02x: want 00 00, a type (08 to 0e) and 1 to 4 axes",
               b[0], b[1], b[2], b[3]);
}

static tn_status read_header(stream *s, header *h)
{
    unsigned char b[16] = { 0 };
    size_t got;
    TNI_TRY(read_some(s, b, 4, &got));
    if (got < 4) return bad(s, "shorter than an IDX header");
    h->kind = &kinds[b[2]];
    h->dtype = (tn_dtype)h->kind->dtype;
    h->size = (size_t)h->kind->bits / 8;
    h->shape.rank = b[3];
    if (b[0] || b[1] || !h->size || h->shape.rank < 1 || h->shape.rank > 4) return not_idx(s, b);
    size_t n = 4 * (size_t)h->shape.rank;
    TNI_TRY(read_some(s, b, n, &got));
    if (got < n) return bad(s, "shorter than an IDX header");
    for (size_t i = 0; i < n; i++) h->shape.size[i / 4] = h->shape.size[i / 4] << 8 | b[i];
    int64_t count = tni_shape_numel(&h->shape);
    if (count < 0 || !tni_mul_size((size_t)count, h->size, &h->nbytes) || h->nbytes > INT64_MAX)
        return bad(s, "the sizes overflow");
    /* Do not allocate more than the file can hold. */
    int64_t holds = s->in.size - 4 - (int64_t)n;
    if (s->gz && __builtin_mul_overflow(s->in.size, (int64_t)DEFLATE_RATIO, &holds))
        holds = INT64_MAX;
    if ((int64_t)h->nbytes > holds)
        return bad(s, "%s values of %zu bytes: the file is too short for them",
                   tni_shape_text(&h->shape), h->size);
    const int64_t most = tni_inflated_limit(s->in.size);
    size_t made; /* bytes of the tensor: more than in the file for i8 and i16 */
    if (s->gz &&
        (!tni_mul_size((size_t)count, tn_dtype_size(h->dtype), &made) || made > (uint64_t)most))
        return bad(s,
                   "%s values from a compressed file of %" PRId64 " bytes: at most %" PRId64
                   " bytes are made (inflated_bytes of tn_set_file_limits)",
                   tni_shape_text(&h->shape), s->in.size, most);
    return TN_OK;
}

/* Reads the values to the end of the tensor's memory, where those of i8 and i16 need less of it. */
static tn_status read_values(stream *s, const header *h, char *to)
{
    size_t n = h->nbytes / h->size, got;
    unsigned char *from = (unsigned char *)to + n * tn_dtype_size(h->dtype) - h->nbytes;
    TNI_TRY(read_some(s, from, h->nbytes, &got));
    if (got < h->nbytes) return bad(s, "truncated: %zu of %zu bytes of values", got, h->nbytes);
    /* Read one byte more: there must be none. This also makes inflate check length and checksum. */
    unsigned char extra;
    TNI_TRY(read_some(s, &extra, 1, &got));
    if (got) return bad(s, "bytes follow the last value: want none");
    if (h->dtype != TN_U8) tni_widen(h->kind, true, from, to, n);
    return TN_OK;
}

tn_tensor *tn_idx_load(const char *path)
{
    stream TN_WHEN_LEFT(close_stream) s;
    header h = { 0 };
    if (open_stream(&s, path) != TN_OK || read_header(&s, &h) != TN_OK) return NULL;
    tn_tensor *t = tn_empty_as(h.shape, h.dtype, tn_cpu());
    return t && read_values(&s, &h, tni_data(t)) == TN_OK ? t : NULL;
}
