/*
 * zip.c - archives: read strictly, as only PyTorch's and NumPy's need be; written stored.
 *
 * Order of a reader's checks: the end record in the file's last bytes, and the zip64 record where
 * one is pointed to; the directory from there back to the data, exactly; every entry of it: stored
 * or deflated, not encrypted; the local header in front of the data saying the same; entries one
 * after the other in the file, in whatever order the directory names them, without overlap, and
 * without holes greater than a data descriptor; in a PyTorch file all in one folder; no name twice.
 * Only then is memory allocated, as much as the file holds, or tn_set_file_limits of deflated data.
 */
#include <zlib.h>

#include "ext/pt/zip.h"
#include "io/io.h"

enum { END = 22, END64 = 56, LOCATOR = 20, HEADER = 46, LOCAL_HEADER = 30, DESCRIPTOR = 24 };
enum { DEFLATE_RATIO = 1032 };               /* it never shrinks by more (zlib's technical notes) */
enum { ALIGNMENT = 64, PADDING_HEADER = 4 }; /* of what is written */

#define bad(zip, ...) tni_input_bad(&(zip)->in, __VA_ARGS__)

/* ---- the end --------------------------------------------------------------------------------- */

typedef struct end {
    uint64_t n, size, at; /* entries; the directory's bytes and place */
} end;

/* A value too large for the end record has all bits set there; others must be equal in both. */
static tn_status read_end64(const tni_zip *zip, const unsigned char *b, uint64_t at, end *e)
{
    const unsigned char *locator = b + END64;
    const end large = { tni_little(b + 32, 8), tni_little(b + 40, 8), tni_little(b + 48, 8) };
    if (tni_little(locator + 4, 4) != 0 || tni_little(locator + 8, 8) != at ||
        tni_little(locator + 16, 4) != 1)
        return bad(zip, "the zip64 locator does not point to a record right before it");
    if (tni_little(b, 4) != 0x06064b50 || tni_little(b + 4, 8) != END64 - 12 ||
        tni_little(b + 16, 8) != 0 || tni_little(b + 24, 8) != large.n)
        return bad(zip, "the zip64 end record is damaged");
    if ((e->n != UINT16_MAX && e->n != large.n) ||
        (e->size != UINT32_MAX && e->size != large.size) ||
        (e->at != UINT32_MAX && e->at != large.at))
        return bad(zip, "the two end records differ");
    *e = large;
    return TN_OK;
}

/* From the end record, and from the zip64 record where a locator precedes it. */
static tn_status read_end(const tni_zip *zip, end *e)
{
    unsigned char last[END64 + LOCATOR + END] = { 0 };
    const unsigned char *b = last + END64 + LOCATOR;
    size_t n = (size_t)TNI_MIN(zip->in.size, (int64_t)sizeof last);
    int64_t stop = zip->in.size - END; /* where the directory must end */
    if (stop < 0) return bad(zip, "%" PRId64 " bytes: cut off", zip->in.size);
    TNI_TRY(tni_input_read(&zip->in, zip->in.size - (int64_t)n, last + sizeof last - n, n));
    if (tni_little(b, 4) != 0x06054b50 || tni_little(b + 20, 2) != 0)
        return bad(zip, "no end record in the last %d bytes: cut off, or something follows", END);
    *e = (end){ tni_little(b + 10, 2), tni_little(b + 12, 4), tni_little(b + 16, 4) };
    if (tni_little(b + 4, 4) != 0 || tni_little(b + 8, 2) != e->n)
        return bad(zip, "the archive is spread over several disks");
    if (tni_little(last + END64, 4) == 0x07064b50) {
        stop -= LOCATOR + END64;
        TNI_TRY(read_end64(zip, last, (uint64_t)stop, e));
    }
    if (stop < 0 || e->at > (uint64_t)stop || e->size != (uint64_t)stop - e->at)
        return bad(zip,
                   "the directory has %" PRIu64 " bytes at %" PRIu64 ": it must end at %" PRId64,
                   e->size, e->at, stop);
    return TN_OK;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* Values that do not fit 32 bits are in the extra field 0x0001 instead, in this order. */
static tn_status read_extra(const tni_zip *zip, const char *name, const unsigned char *extra,
                            size_t n, uint64_t **value, int n_values)
{
    size_t at = 0, zip64 = 0, zip64_end = 0;
    while (n - at >= 4) {
        size_t length = (size_t)tni_little(extra + at + 2, 2);
        if (length > n - at - 4) break;
        if (tni_little(extra + at, 2) == 0x0001) {
            if (zip64) return bad(zip, "%.64s: two zip64 fields", name);
            zip64 = at + 4;
            zip64_end = at + 4 + length;
        }
        at += 4 + length;
    }
    if (at != n) return bad(zip, "%.64s: an extra field is longer than its place", name);
    for (int i = 0; i < n_values; i++) {
        if (*value[i] != UINT32_MAX) continue;
        if (zip64_end - zip64 < 8) return bad(zip, "%.64s: a zip64 value is missing", name);
        *value[i] = tni_little(extra + zip64, 8);
        zip64 += 8;
    }
    return TN_OK;
}

/* Reads the header at `at` of the directory; *at moves past it. */
static tn_status read_header(tni_zip *zip, const end *e, size_t *at, tni_zip_entry *entry)
{
    unsigned char *h = zip->directory + *at;
    size_t left = zip->directory_size - *at;
    if (left < HEADER || tni_little(h, 4) != 0x02014b50)
        return bad(zip, "the directory is damaged at entry %d", zip->n);
    uint64_t flags = tni_little(h + 8, 2), method = tni_little(h + 10, 2);
    uint64_t nbytes = tni_little(h + 24, 4), compressed = tni_little(h + 20, 4),
             header = tni_little(h + 42, 4);
    size_t length = (size_t)tni_little(h + 28, 2), extra = (size_t)tni_little(h + 30, 2);
    if (length == 0 || length > TNI_ZIP_NAME_LIMIT)
        return bad(zip, "an entry's name has %zu bytes: want 1 to %d", length, TNI_ZIP_NAME_LIMIT);
    if (length + extra > left - HEADER || tni_little(h + 32, 2) != 0 || tni_little(h + 34, 2) != 0)
        return bad(zip, "the directory is damaged at entry %d", zip->n);
    char *name = memmove(h + HEADER - 1, h + HEADER, length); /* room for a zero */
    name[length] = 0;
    if (strlen(name) != length) return bad(zip, "%.64s: a zero byte in an entry's name", name);
    if (flags & 1) return bad(zip, "%.64s: is encrypted", name);
    if (method != 0 && method != 8)
        return bad(zip, "%.64s: is compressed by method %d: want stored or deflated entries", name,
                   (int)method);
    const bool deflated = method == 8;
    if (flags & ~UINT64_C(0x0808) & ~(deflated ? UINT64_C(6) : 0))
        return bad(zip, "%.64s: unknown flags %#llx", name, (unsigned long long)flags);
    uint64_t *large[] = { &nbytes, &compressed, &header };
    TNI_TRY(read_extra(zip, name, h + HEADER + length, extra, large, 3));
    if (nbytes != compressed && !deflated)
        return bad(zip, "%.64s: %" PRIu64 " bytes stored as %" PRIu64, name, nbytes, compressed);
    if (header > e->at || compressed > e->at || compressed > e->at - header)
        return bad(zip, "%.64s: %" PRIu64 " bytes at %" PRIu64 ": the directory begins at %" PRIu64,
                   name, compressed, header, e->at);
    const uint64_t most = (uint64_t)tni_inflated_limit(zip->in.size);
    if (deflated &&
        (nbytes > most || (zip->inflated += nbytes) > most || nbytes / DEFLATE_RATIO > compressed))
        return bad(zip,
                   "%.64s: %" PRIu64 " bytes deflated to %" PRIu64 ": at most %" PRIu64
                   " are inflated in all (tn_set_file_limits), and %d from 1",
                   name, nbytes, compressed, most, DEFLATE_RATIO);
    *entry = (tni_zip_entry){ .name = name, .header = (int64_t)header, .deflated = deflated };
    entry->stored = (int64_t)compressed, entry->nbytes = (int64_t)nbytes;
    entry->crc = (uint32_t)tni_little(h + 16, 4);
    *at += HEADER + length + extra;
    return TN_OK;
}

/* The header before the data must agree with the directory, but where flag 8 has it behind them. */
static tn_status read_local(const tni_zip *zip, const end *e, tni_zip_entry *entry)
{
    size_t length = strlen(entry->name);
    uint64_t room = e->at - (uint64_t)entry->header;
    if (room < LOCAL_HEADER + length)
        return bad(zip, "%.64s: no room for its header at %" PRId64, entry->name, entry->header);
    unsigned char b[LOCAL_HEADER + TNI_ZIP_NAME_LIMIT];
    TNI_TRY(tni_input_read(&zip->in, entry->header, b, LOCAL_HEADER + length));
    const uint64_t crc = tni_little(b + 14, 4), stored = (uint64_t)entry->stored;
    const uint64_t sizes[] = { tni_little(b + 18, 4), tni_little(b + 22, 4) };
    const uint64_t wanted[] = { stored, (uint64_t)entry->nbytes };
    bool same = tni_little(b, 4) == 0x04034b50 && tni_little(b + 26, 2) == length &&
                !memcmp(b + LOCAL_HEADER, entry->name, length) &&
                !(tni_little(b + 6, 2) & ~UINT64_C(0x080e)) &&
                tni_little(b + 8, 2) == (entry->deflated ? 8 : 0);
    bool later = tni_little(b + 6, 2) & 8;
    same = same && (crc == entry->crc || (later && crc == 0));
    for (int i = 0; i < 2; i++)
        same &= sizes[i] == wanted[i] || sizes[i] == UINT32_MAX || (later && sizes[i] == 0);
    if (!same)
        return bad(zip, "%.64s: the header at %" PRId64 " and the directory differ", entry->name,
                   entry->header);
    uint64_t skip = LOCAL_HEADER + length + tni_little(b + 28, 2);
    if (skip > room || stored > room - skip)
        return bad(zip, "%.64s: %" PRId64 " bytes at %" PRIu64 ": the directory begins at %" PRIu64,
                   entry->name, stored, entry->header + skip, e->at);
    entry->begin = entry->header + (int64_t)skip;
    return TN_OK;
}

static int by_place(const void *a, const void *b)
{
    const tni_zip_entry *x = *(tni_zip_entry *const *)a, *y = *(tni_zip_entry *const *)b;
    return (x->header > y->header) - (x->header < y->header);
}

static tn_status check_place(const tni_zip *zip, const char *name, int64_t begin, int64_t end)
{
    bool fits = begin >= end && begin - end <= (end ? DESCRIPTOR : 0);
    return fits ? TN_OK : tni_input_gap(&zip->in, name, begin, end);
}

/* Entries tile the file up to the directory, data descriptors aside. */
static tn_status check_places(tni_zip *zip, const end *e)
{
    TNI_ITEMS(tni_zip_entry *, order, zip->n);
    if (!order) return tni_pending();
    for (int i = 0; i < zip->n; i++) order[i] = &zip->entry[i];
    tni_sort(order, (size_t)zip->n, sizeof *order, by_place);
    int64_t last = 0;
    for (int i = 0; i < zip->n; i++) {
        TNI_TRY(read_local(zip, e, order[i]));
        TNI_TRY(check_place(zip, order[i]->name, order[i]->header, last));
        last = order[i]->begin + order[i]->stored;
        zip->checked = zip->checked || order[i]->crc;
    }
    return check_place(zip, "the directory", (int64_t)e->at, last);
}

/* Names, in a PyTorch file without its folder, which is the same for all; none twice. */
static tn_status check_names(tni_zip *zip)
{
    const char *first = zip->entry[0].name, *slash = strchr(first, '/');
    const size_t folder = slash ? (size_t)(slash + 1 - first) : 0;
    for (int i = 0; i < zip->n; i++) {
        const char *name = zip->entry[i].name, *last = strrchr(name, '/');
        zip->pytorch |= !strcmp(last ? last + 1 : name, "data.pkl");
    }
    for (tni_zip_entry *e = zip->entry; e < zip->entry + zip->n; e++) {
        if (zip->pytorch && (!folder || strncmp(e->name, first, folder) != 0))
            return bad(zip, "%.64s: want entries in one folder", e->name);
        if (zip->pytorch) e->name += folder;
        int is_new = tni_map_put(&zip->names, e->name, e);
        if (is_new < 0) return tni_pending();
        if (!is_new)
            return bad(zip, "two entries are named %.64s", e->name - (zip->pytorch ? folder : 0));
    }
    return TN_OK;
}

static tn_status read_directory(tni_zip *zip, int64_t max_entries, int64_t max_directory)
{
    end e;
    TNI_TRY(read_end(zip, &e));
    if (e.n > (uint64_t)max_entries || e.n > INT32_MAX || e.size > (uint64_t)max_directory)
        return bad(zip,
                   "%" PRIu64 " entries in a directory of %" PRIu64 " bytes: at most %" PRId64
                   " and %" PRId64 " are read",
                   e.n, e.size, max_entries, max_directory);
    if (e.n == 0 || e.n * HEADER > e.size) return bad(zip, "the directory is damaged");
    zip->directory_size = (size_t)e.size;
    zip->directory = tni_alloc(zip->directory_size);
    zip->capacity = (int)e.n;
    zip->entry = tni_alloc_n((size_t)e.n, sizeof *zip->entry);
    if (!zip->directory || !zip->entry) return tni_pending();
    TNI_TRY(tni_input_read(&zip->in, (int64_t)e.at, zip->directory, zip->directory_size));
    size_t at = 0;
    for (; zip->n < zip->capacity; zip->n++)
        TNI_TRY(read_header(zip, &e, &at, &zip->entry[zip->n]));
    if (at != zip->directory_size)
        return bad(zip, "%zu bytes follow the directory's last entry", zip->directory_size - at);
    TNI_TRY(check_places(zip, &e));
    return check_names(zip);
}

/* ---- what the rest of the folder calls ------------------------------------------------------- */

tn_status tni_zip_open(tni_zip *zip, const char *function, const char *path, int64_t max_entries,
                       int64_t max_directory)
{
    *zip = (tni_zip){ .names.names = true };
    TNI_TRY(tni_input_open(&zip->in, function, path));
    tn_status status = read_directory(zip, max_entries, max_directory);
    if (status != TN_OK) tni_zip_close(zip);
    return status;
}

static tn_status inflate_entry(const tni_zip *zip, const tni_zip_entry *entry, void *data)
{
    const size_t n = (size_t)entry->stored;
    TNI_ITEMS(unsigned char, stored, n);
    if (!stored) return tni_pending();
    TNI_TRY(tni_input_read(&zip->in, entry->begin, stored, n));
    z_stream TN_WHEN_LEFT(inflateEnd) z = { .next_in = stored, .next_out = data };
    if (inflateInit2(&z, -15) != Z_OK)
        return tni_error(TN_E_NOMEM, "%s: %s: out of memory", zip->in.function, zip->in.path);
    size_t in = n, out = (size_t)entry->nbytes; /* not yet given to zlib, whose counts are short */
    for (int code = Z_OK; code != Z_STREAM_END;) {
        const uInt more_in = (uInt)TNI_MIN(in, (size_t)1 << 30),
                   more_out = (uInt)TNI_MIN(out, (size_t)1 << 30);
        z.avail_in = more_in;
        z.avail_out = more_out;
        code = inflate(&z, Z_NO_FLUSH);
        in -= more_in - z.avail_in;
        out -= more_out - z.avail_out;
        const bool stuck = z.avail_in == more_in && z.avail_out == more_out;
        if ((code != Z_OK && code != Z_STREAM_END) || (code == Z_OK && stuck) ||
            (code == Z_STREAM_END && (in || out)))
            return bad(zip, "%.64s: the compressed data is damaged", entry->name);
    }
    return TN_OK;
}

tn_status tni_zip_read(const tni_zip *zip, const tni_zip_entry *entry, void *data)
{
    const size_t n = (size_t)entry->nbytes;
    uint32_t crc = 0;
    const tni_scan scan = { .data = data, .crc = &crc };
    TNI_TRY(entry->deflated ? inflate_entry(zip, entry, data)
                            : tni_input_scan(&zip->in, entry->begin, n, scan));
    if (entry->deflated) crc = tni_crc32(0, data, n);
    if (crc == entry->crc || !zip->checked) return TN_OK;
    return bad(zip, "%.64s: is damaged: its checksum is %08x, not %08x", entry->name, (unsigned)crc,
               (unsigned)entry->crc);
}

void tni_zip_close(tni_zip *zip)
{
    tni_map_free(&zip->names);
    tni_free(zip->directory, zip->directory_size);
    tni_free(zip->entry, (size_t)zip->capacity * sizeof *zip->entry);
    tni_input_close(&zip->in);
    *zip = (tni_zip){ .in.fd = -1 };
}

/* ---- writing --------------------------------------------------------------------------------- */

static tn_status emit(tni_zip_writer *zip, const void *data, size_t nbytes)
{
    zip->at += nbytes; /* tensors in memory: far below 2^64 bytes in all */
    return zip->file ? tni_file_write(zip->file, data, nbytes) : TN_OK;
}

static bool is_large(const tni_zip_writer *zip, uint64_t value)
{
    return value >= (zip->limit ? zip->limit : UINT32_MAX);
}

/* A number of n bytes in a record. */
typedef struct field {
    int n;
    uint64_t value;
} field;

static void put_fields(tni_bytes *b, const field *f, size_t n)
{
    for (size_t i = 0; i < n; i++) tni_little_add(b, f[i].value, f[i].n);
}

#define PUT(b, ...)                                                                                \
    put_fields(b, (const field[]){ __VA_ARGS__ },                                                  \
               sizeof((const field[]){ __VA_ARGS__ }) / sizeof(field))

/* The fields common to both headers of an entry. */
static void put_common(tni_bytes *b, bool zip64, bool large, uint32_t crc, uint64_t nbytes,
                       size_t name)
{
    const uint64_t size = large ? UINT32_MAX : nbytes;
    const uint64_t names_are_utf8 = 0x0800, year_1980 = 0x00210000;
    PUT(b, { 2, zip64 ? 45 : 10 }, { 2, names_are_utf8 }, { 2, 0 }, { 4, year_1980 }, { 4, crc },
        { 4, size }, { 4, size }, { 2, name });
}

/* What is large in the field 0x0001. */
static void put_zip64(tni_bytes *b, bool large, bool far, uint64_t nbytes, uint64_t at)
{
    if (large || far) PUT(b, { 2, 0x0001 }, { 2, 16 * large + 8 * far });
    if (large) PUT(b, { 8, nbytes }, { 8, nbytes });
    if (far) PUT(b, { 8, at });
}

tn_status tni_zip_add(tni_zip_writer *zip, const char *name, const void *data, size_t nbytes)
{
    const char *folder = zip->folder ? zip->folder : "", *slash = zip->folder ? "/" : "";
    size_t length = strlen(folder) + strlen(slash) + strlen(name);
    bool large = is_large(zip, nbytes), far = is_large(zip, zip->at), zip64 = large || far;
    uint32_t crc = zip->file && nbytes ? tni_crc32(0, data, nbytes) : 0;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) b = { 0 };
    tni_bytes *d = &zip->directory;
    PUT(d, { 4, 0x02014b50 }, { 2, zip64 ? 45 : 10 });
    put_common(d, zip64, large, crc, nbytes, length);
    PUT(d, { 2, zip64 ? 4 + 16 * large + 8 * far : 0 }, /* then comment, disk, two attributes */
        { 2, 0 }, { 2, 0 }, { 2, 0 }, { 4, 0 }, { 4, far ? UINT32_MAX : zip->at });
    tni_bytes_printf(d, "%s%s%s", folder, slash, name);
    put_zip64(d, large, far, nbytes, zip->at);
    zip->n++;

    size_t header = zip->folder ? PADDING_HEADER : 0;
    size_t fixed = LOCAL_HEADER + length + (large ? 20 : 0) + header;
    size_t padding = header ? (size_t)(ALIGNMENT - (zip->at + fixed) % ALIGNMENT) % ALIGNMENT : 0;
    PUT(&b, { 4, 0x04034b50 });
    put_common(&b, large, large, crc, nbytes, length);
    PUT(&b, { 2, (large ? 20 : 0) + header + padding });
    tni_bytes_printf(&b, "%s%s%s", folder, slash, name);
    put_zip64(&b, large, false, nbytes, 0);
    if (header) PUT(&b, { 2, 0x4246 }, { 2, padding }); /* "FB", as PyTorch marks its padding */
    for (size_t i = 0; i < padding; i++) PUT(&b, { 1, 'Z' });
    TNI_TRY(b.failed ? tni_pending() : emit(zip, b.data, b.n));
    return nbytes ? emit(zip, data, nbytes) : TN_OK;
}

tn_status tni_zip_end(tni_zip_writer *zip)
{
    tni_bytes *b = &zip->directory;
    const uint64_t n = zip->n, at = zip->at, size = b->n;
    bool many = n >= UINT16_MAX, far = is_large(zip, at) || is_large(zip, size);
    const uint64_t few = many ? UINT16_MAX : n;
    if (many || far) {
        PUT(b, { 4, 0x06064b50 }, { 8, END64 - 12 }, { 2, 45 }, { 2, 45 }, { 4, 0 }, { 4, 0 },
            { 8, n }, { 8, n }, { 8, size }, { 8, at });
        PUT(b, { 4, 0x07064b50 }, { 4, 0 }, { 8, at + size }, { 4, 1 }); /* where that begins */
    }
    PUT(b, { 4, 0x06054b50 }, { 2, 0 }, { 2, 0 }, { 2, few }, { 2, few },
        { 4, far ? UINT32_MAX : size }, { 4, far ? UINT32_MAX : at }, { 2, 0 });
    return b->failed ? tni_pending() : emit(zip, b->data, b->n);
}
