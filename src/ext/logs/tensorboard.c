/*
 * tensorboard.c - TensorBoard's event files: of each record length, checksum, Event, checksum.
 *
 * An Event is a message of Protocol Buffers: fields, each a number and a kind, then a value; a
 * message within a message is a field of bytes. Sources: TFRecord; event.proto, summary.proto and
 * tensor.proto of TensorFlow; plugin_data.proto of TensorBoard's hyperparameters; Protocol Buffers,
 * Encoding; RFC 3720, B.4 (CRC32C); ISO/IEC 15948 (PNG).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include <tenon/tensorboard.h>

#include "base/host.h"
#include "ext/pt/zip.h"
#include "io/json.h"
#include "io/safetensors.h"

#define MOST ((size_t)1 << 30) /* bytes of a text or picture: a record must stay below 2^31 */

struct tn_tensorboard {
    char *path;
    int fd;
    pid_t owner;
    off_t written; /* bytes of whole records; -1: a part of one stands behind them */
};

typedef struct record {
    const char *function;
    tn_tensorboard *log;
    tni_bytes event;
    size_t open[9]; /* where the messages begin that are not finished */
    int n_open;
} record;

/* ---- messages -------------------------------------------------------------------------------- */

static void put_varint(tni_bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7) tni_little_add(b, (value & 127) | 128, 1);
    tni_little_add(b, value, 1);
}

/* The length of a message goes in front of it when it is finished. */
static void put_length(tni_bytes *b, size_t from)
{
    char length[10];
    const size_t n = b->n - from;
    put_varint(b, n);
    if (b->failed) return;
    const size_t width = b->n - from - n;
    memcpy(length, b->data + from + n, width);
    memmove(b->data + from + width, b->data + from, n);
    memcpy(b->data + from, length, width);
}

/* Fields as the format has them, each a number and a letter: i int64_t, d double, f double that
 * becomes a float, s text; { begins a message, } ends it, perhaps in a later call. */
static void put(record *r, const char *format, ...)
{
    static const char kinds[] = "id{??f"; /* in the order of their numbers */
    tni_bytes *b = &r->event;
    va_list args;
    va_start(args, format);
    for (const char *c = format; *c; c++) {
        if (*c == '}') {
            put_length(b, r->open[--r->n_open]);
            continue;
        }
        const uint64_t field = (uint64_t)(*c++ - '0');
        put_varint(b, field << 3 | (uint64_t)(strchr(kinds, *c == 's' ? '{' : *c) - kinds));
        if (*c == '{' || *c == 's') r->open[r->n_open++] = b->n;
        if (*c == 'i') put_varint(b, (uint64_t)va_arg(args, int64_t));
        if (*c == 'd') tni_bytes_add(b, &(double){ va_arg(args, double) }, sizeof(double));
        if (*c == 'f') tni_bytes_add(b, &(float){ (float)va_arg(args, double) }, sizeof(float));
        if (*c == 's') {
            const char *text = va_arg(args, const char *);
            tni_bytes_add(b, text, strlen(text));
            put_length(b, r->open[--r->n_open]);
        }
    }
    va_end(args);
}

/* CRC32C, turned and moved as TFRecord has it. */
static void put_checksum(tni_bytes *b, const char *data, size_t n)
{
    uint32_t of_half[16], crc = UINT32_MAX; /* half a byte at a time */
    for (uint32_t i = 0; i < 16; i++) {
        of_half[i] = i;
        for (int k = 0; k < 4; k++)
            of_half[i] = of_half[i] >> 1 ^ (of_half[i] & 1 ? 0x82f63b78u : 0);
    }
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned char)data[i];
        for (int k = 0; k < 2; k++) crc = crc >> 4 ^ of_half[crc & 15];
    }
    tni_little_add(b, (~crc >> 15 | ~crc << 17) + 0xa282ead8u, 4);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Writes the record, unless something failed before, and frees it. Of one that cannot be written
 * whole nothing stays: readers would take what follows for its rest. */
static tn_status finish(record *r, tn_status status)
{
    tni_bytes *event = &r->event;
    event->failed = event->failed || status != TN_OK; /* takes nothing more */
    while (r->n_open > 0) put(r, "}");
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) b = { .failed = event->failed };
    tni_little_add(&b, event->n, 8);
    if (!b.failed) put_checksum(&b, b.data, 8);
    tni_bytes_add(&b, event->data, event->n);
    put_checksum(&b, event->data, event->n);
    if (status == TN_OK && b.failed) status = TN_E_NOMEM;
    ssize_t some = 0;
    for (size_t n = 0; status == TN_OK && n < b.n; n += (size_t)some) {
        TNI_UNINTERRUPTED(some, write(r->log->fd, b.data + n, b.n - n));
        if (some > 0) continue;
        const int error = some < 0 ? errno : ENOSPC;
        if (n > 0 && ftruncate(r->log->fd, r->log->written) != 0) r->log->written = -1;
        status = tni_file_error(tni_errno(error), r->function, r->log->path, "cannot write: %s",
                                strerror(error));
        some = 0;
    }
    if (status == TN_OK) r->log->written += (off_t)b.n;
    tni_bytes_free(event);
    return status;
}

static tn_status check_text(const char *f, const char *what, const char *text, size_t most)
{
    const size_t n = text ? strnlen(text, most + 1) : 0;
    if (!text) return tni_null(f, what, "a text");
    if (n > 0 && n <= most && tni_utf8(text, n) == n) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: %s of %zu bytes%s: want 1 to %zu of UTF-8", f, what, n,
                     n > most ? " and more" : "", most);
}

/* Begins a record of a Summary's one value, of tag and more; more NULL: of an Event alone. */
static tn_status begin(record *r, const char *f, tn_tensorboard *log, const char *tag,
                       const char *more, int64_t step)
{
    char whole[TNI_NAME_LIMIT + 32];
    struct timespec now;
    *r = (record){ .function = f, .log = log, .event.failed = true }; /* takes nothing */
    if (!log) return tni_null(f, "log", "one from tn_tensorboard_new");
    if (more) TNI_TRY(check_text(f, "tag", tag, TNI_NAME_LIMIT));
    const char *why = log->written < 0 ? "ends in a part of a record" : "another process made it";
    if (log->written < 0 || log->owner != getpid())
        return tni_file_error(TN_E_STATE, f, log->path, "%s: want a new log", why);
    clock_gettime(CLOCK_REALTIME, &now);
    r->event.failed = false;
    put(r, "1d2i", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, step);
    if (!more) return TN_OK;
    snprintf(whole, sizeof whole, "%s%s", tag, more);
    put(r, "5{1{1s", whole);
    return TN_OK;
}

/* ---- a log ----------------------------------------------------------------------------------- */

/* Makes the folder, those above it, and the file. Files are read in the order of their names. */
static tn_status make_file(tn_tensorboard *log, const char *f, const char *folder)
{
    char path[PATH_MAX], host[64] = "";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    int n = snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.%09ld.%s.%ld", folder,
                     (long long)now.tv_sec, now.tv_nsec, host, (long)getpid());
    if (n < PATH_MAX) tni_make_folders(path);
    const int new_file = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;
    errno = ENAMETOOLONG;
    if (n < PATH_MAX) TNI_UNINTERRUPTED(log->fd, open(path, new_file, 0666));
    if (log->fd < 0) return tni_file_error(tni_errno(errno), f, path, "%s", strerror(errno));
    log->path = tni_strdup(path);
    if (!log->path) unlink(path);
    return log->path ? TN_OK : TN_E_NOMEM;
}

tn_tensorboard *tn_tensorboard_new(const char *folder, tn_tensorboard_options o)
{
    static const char f[] = "tn_tensorboard_new";
    tn_tensorboard *log = tni_path_check(f, folder) == TN_OK ? tni_calloc(sizeof *log) : NULL;
    if (!log) return NULL;
    log->fd = -1;
    log->owner = getpid();
    tn_status status = make_file(log, f, folder);
    const bool purges = o.purge_step != 0 || o.use_purge_step;
    for (int i = 0; status == TN_OK && i <= purges; i++) {
        record r;
        status = begin(&r, f, log, NULL, NULL, o.purge_step);
        if (i == 0) put(&r, "3s", "brain.Event:2");
        if (i == 1) put(&r, "7{1i", (int64_t)1); /* SessionLog: START */
        status = finish(&r, status);
    }
    if (status == TN_OK) return log;
    if (log->path) unlink(log->path);
    tn_tensorboard_free(log);
    return NULL;
}

void tn_tensorboard_free(tn_tensorboard *log)
{
    if (!log) return;
    if (log->fd >= 0) close(log->fd);
    tni_strfree(log->path);
    tni_free(log, sizeof *log);
}

/* ---- numbers and texts ----------------------------------------------------------------------- */

tn_status tn_tensorboard_scalar(tn_tensorboard *log, const char *tag, double value, int64_t step)
{
    TNI_HOLD_TRAPS;
    record r;
    tn_status status = begin(&r, "tn_tensorboard_scalar", log, tag, "", step);
    put(&r, "2f", value);
    return finish(&r, status);
}

tn_status tn_tensorboard_text(tn_tensorboard *log, const char *tag, const char *text, int64_t step)
{
    record r;
    tn_status status = begin(&r, __func__, log, tag, "/text_summary", step);
    if (status == TN_OK) status = check_text(__func__, "text", text, MOST);
    if (status == TN_OK) /* a TensorProto of dtype string, shape [1]; metadata of a plugin */
        put(&r, "8{1i2{2{1i}}8s}9{1{1s", (int64_t)7, (int64_t)1, text, "text");
    return finish(&r, status);
}

tn_status tn_tensorboard_hparams(tn_tensorboard *log, const tn_metadata *hparams)
{
    TNI_C_NUMBERS;
    record r;
    tn_status status = begin(&r, __func__, log, "_hparams_/session_start_info", "", 0);
    if (status == TN_OK && !hparams) status = tni_null(__func__, "hparams", "names and values");
    if (status == TN_OK) status = tni_metadata_check(__func__, hparams);
    if (status == TN_OK) put(&r, "9{1{1s2{3{", "hparams"); /* a plugin's; SessionStartInfo */
    for (int i = 0; status == TN_OK && i < hparams->n; i++) {
        const char *name = hparams->key[i], *text = hparams->value[i];
        status = check_text(__func__, "a name", name, TNI_NAME_LIMIT);
        if (status == TN_OK && *text) status = check_text(__func__, "a value", text, MOST);
        if (status != TN_OK) break;
        char *end;
        const double number = strtod(text, &end);
        if (*text && !*end && isfinite(number) && !text[strspn(text, "+-.0123456789eE")])
            put(&r, "1{1s2{2d}}", name, number);
        else
            put(&r, "1{1s2{3s}}", name, text);
    }
    return finish(&r, status);
}

/* ---- histograms ------------------------------------------------------------------------------ */

enum { POSITIVE = 774, EDGES = 2 * POSITIVE + 1, AT_ONCE = 2048 };

typedef struct histogram {
    double edge[EDGES], min, max, sum, squares, n, nonfinite;
    double count[EDGES]; /* [i]: from edge i - 1 to below edge i; the last with its right edge */
} histogram;

static void count(histogram *h, double v)
{
    if (!isfinite(v)) {
        h->nonfinite++;
        return;
    }
    int i = POSITIVE + 1; /* near it by a logarithm, then exactly */
    if (fabs(v) > 1e-12) i += (int)copysign((log(fabs(v)) - log(1e-12)) / log(1.1), v);
    i = TNI_MAX(1, TNI_MIN(i, EDGES - 1));
    while (i > 1 && v < h->edge[i - 1]) i--;
    while (i < EDGES - 1 && v >= h->edge[i]) i++;
    h->count[i]++;
    h->n++;
    if (v < h->min) h->min = v;
    if (v > h->max) h->max = v;
    h->sum += v;
    h->squares += v * v;
}

static tn_status count_all(histogram *h, const char *f, tn_tensor *x)
{
    double edge = 1e-12, values[AT_ONCE];
    const int64_t n = tn_numel(x);
    if (n == 0)
        return tni_error(TN_E_SHAPE, "%s: x %s has no elements: want one or more", f, tni_text(x));
    for (int i = 1; i <= POSITIVE; i++, edge *= 1.1) {
        h->edge[POSITIVE + i] = edge;
        h->edge[POSITIVE - i] = -edge;
    }
    tn_tensor *flat = tn_reshape(tn_to(x, tn_cpu()), TN_SHAPE(n));
    for (int64_t at = 0; at < n; at += AT_ONCE) {
        const int64_t some = TNI_MIN(n - at, AT_ONCE);
        TN_SCOPE TNI_TRY(tn_copy_out(tn_narrow(flat, 0, at, some), values,
                                     (size_t)some * sizeof *values, TN_F64));
        for (int64_t i = 0; i < some; i++) count(h, values[i]);
    }
    return TN_OK;
}

/* As torch has it: from the first bucket that holds something to the last, an empty one before. */
static void put_histogram(record *r, const histogram *h)
{
    int first = 1, last = EDGES - 1;
    while (h->count[first] == 0) first++;
    while (h->count[last] == 0) last--;
    const size_t size = (size_t)(last - first + 2) * sizeof(double);
    put(r, "5{1d2d3d4d5d6{", h->min, h->max, h->n, h->sum, h->squares);
    tni_bytes_add(&r->event, &h->edge[first - 1], size);
    put(r, "}7{");
    tni_bytes_add(&r->event, &h->count[first - 1], size);
    put(r, "}}");
}

tn_status tn_tensorboard_histogram(tn_tensorboard *log, const char *tag, tn_tensor *x, int64_t step)
{
    TNI_HOLD_TRAPS;
    histogram h = { .min = INFINITY, .max = -INFINITY };
    record r = { .n_open = 0 };
    tn_status status = tni_present(__func__, "x", x) ? TN_OK : tni_pending();
    if (status == TN_OK) TN_SCOPE TN_NO_GRAD status = count_all(&h, __func__, x);
    if (status == TN_OK && h.n > 0) {
        status = begin(&r, __func__, log, tag, "", step);
        if (status == TN_OK) put_histogram(&r, &h);
        status = finish(&r, status);
    }
    if (status != TN_OK || h.nonfinite == 0) return status;
    status = begin(&r, __func__, log, tag, "/nonfinite", step);
    put(&r, "2f", h.nonfinite);
    return finish(&r, status);
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* [H, W] or [C, H, W] as rows of bytes [H, 1 + W C], each behind a zero: PNG's "no filter". */
static tn_tensor *rows_of(tn_tensor *x)
{
    const int64_t height = x->shape.size[x->shape.rank - 2];
    tn_tensor *u = x->dtype == TN_U8 ? x : tn_to_dtype(x, TN_F32);
    if (x->dtype != TN_U8) u = tn_clamp(tn_nan_to_num(u, (tn_nan_to_num_options){ 0 }), 0, 1);
    if (x->dtype != TN_U8) u = tn_to_dtype(tn_mul_scalar(u, 255), TN_U8);
    if (x->shape.rank == 3) u = tn_permute(u, TN_AXES(1, 2, 0));
    tn_tensor *zeros = tn_full_as(TN_SHAPE(height, 1), 0, TN_U8, tn_device_of(x));
    u = tn_cat((tn_tensor *[]){ zeros, tn_reshape(u, TN_SHAPE(height, -1)) }, 2, 1);
    return tn_contiguous(tn_to(u, tn_cpu()));
}

static void put_chunk(tni_bytes *b, const char *name, const void *data, size_t n)
{
    tni_little_add(b, __builtin_bswap32((uint32_t)n), 4);
    tni_bytes_add(b, name, 4);
    tni_bytes_add(b, data, n);
    const uLong crc = b->failed ? 0 : crc32(0, (const Bytef *)b->data + b->n - n - 4, (uInt)n + 4);
    tni_little_add(b, __builtin_bswap32((uint32_t)crc), 4);
}

static tn_status put_png(tni_bytes *b, const char *f, tn_tensor *x, int64_t width, int channels)
{
    const tn_tensor *rows = rows_of(x);
    const Bytef *bytes = rows ? tn_data(rows) : NULL;
    const uLong n = bytes ? (uLong)tn_numel(rows) : 0, room = compressBound(n);
    Bytef *block = bytes ? tni_alloc(room) : NULL;
    if (!block) return tni_pending();
    uLong packed = room;
    const int done = compress(block, &packed, bytes, n);
    const uint32_t size[] = { (uint32_t)width, (uint32_t)rows->shape.size[0] };
    unsigned char head[13] = { [8] = 8, channels == 1 ? 0 : channels == 3 ? 2 : 6 };
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)(size[i / 4] >> (24 - i % 4 * 8));
    tni_bytes_add(b, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(b, "IHDR", head, sizeof head);
    put_chunk(b, "IDAT", block, packed);
    put_chunk(b, "IEND", "", 0);
    tni_free(block, room);
    return done == Z_OK ? TN_OK : tni_error(TN_E_NOMEM, "%s: zlib is out of memory", f);
}

tn_status tn_tensorboard_image(tn_tensorboard *log, const char *tag, tn_tensor *x, int64_t step)
{
    static const char f[] = "tn_tensorboard_image";
    TNI_HOLD_TRAPS;
    record r;
    tn_status status = begin(&r, f, log, tag, "", step);
    if (status == TN_OK && !tni_present(f, "x", x)) status = tni_pending();
    if (status != TN_OK) return finish(&r, status);
    const int rank = x->shape.rank;
    const int64_t *size = x->shape.size, channels = rank == 3 ? size[0] : 1;
    if (x->dtype != TN_U8 && !tn_dtype_is_float(x->dtype))
        status = tni_error(TN_E_DTYPE, "%s: x %s: want u8, or floats from 0 to 1", f, tni_text(x));
    else if (rank < 2 || rank > 3 || channels < 1 || channels == 2 || channels > 4 ||
             tn_numel(x) == 0 || tn_numel(x) > (int64_t)MOST - size[rank - 2])
        status = tni_error(TN_E_SHAPE,
                           "%s: x %s: want [H,W], or [C,H,W] with C 1, 3 or 4, of 1 to 2^30 values",
                           f, tni_text(x));
    else {
        put(&r, "4{1i2i3i4{", size[rank - 2], size[rank - 1], channels);
        TN_SCOPE TN_NO_GRAD status = put_png(&r.event, f, x, size[rank - 1], (int)channels);
    }
    return finish(&r, status);
}
