/*
 * zip.c - archives of stored entries: read strictly, because only PyTorch's files need be read, and
 * written front to back.
 *
 * Order of a reader's checks: the end record in the file's last bytes, and the zip64 record where
 * one is pointed to; the directory from there back to the data, exactly; every entry of it: stored,
 * not encrypted, one size, a plain name in the one folder; no name twice; the local header in front
 * of the data saying the same; entries one after the other without overlap, and without holes
 * greater than a data descriptor. Only then is memory for data allocated, as much as the file
 * holds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "ext/pt/zip.h"

enum { END = 22, END64 = 56, LOCATOR = 20, HEADER = 46, LOCAL_HEADER = 30, DESCRIPTOR = 24 };
enum { ALIGNMENT = 64, PADDING_HEADER = 4 }; /* of what is written */

#define bad(zip, ...) tni_input_bad(&(zip)->in, __VA_ARGS__)

/* ---- the end --------------------------------------------------------------------------------- */

typedef struct end {
    uint64_t n, size, at; /* entries; the directory's bytes and place */
} end;

/* The zip64 record, if a locator precedes the end record. A value too large for the end record has
 * all bits set there; other values must be equal in both. */
static tn_status read_end64(const tni_zip *zip, end *e, int64_t *stop)
{
    if (*stop < LOCATOR + END64) return TN_OK;
    unsigned char b[END64];
    tn_status status = tni_input_read(&zip->in, *stop - LOCATOR, b, LOCATOR);
    if (status != TN_OK || tni_little(b, 4) != 0x07064b50) return status;
    *stop -= LOCATOR + END64;
    if (tni_little(b + 4, 4) != 0 || tni_little(b + 8, 8) != (uint64_t)*stop ||
        tni_little(b + 16, 4) != 1)
        return bad(zip, "the zip64 locator does not point to a record right before it");
    status = tni_input_read(&zip->in, *stop, b, END64);
    if (status != TN_OK) return status;
    end large = { tni_little(b + 32, 8), tni_little(b + 40, 8), tni_little(b + 48, 8) };
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

static tn_status read_end(const tni_zip *zip, end *e)
{
    int64_t stop = zip->in.size - END; /* where the directory must end */
    if (stop < 0) return bad(zip, "%" PRId64 " bytes: cut off", zip->in.size);
    unsigned char b[END];
    tn_status status = tni_input_read(&zip->in, stop, b, END);
    if (status != TN_OK) return status;
    if (tni_little(b, 4) != 0x06054b50 || tni_little(b + 20, 2) != 0)
        return bad(
            zip, "no end record in the last %d bytes: cut off, or followed by something else", END);
    *e = (end){ tni_little(b + 10, 2), tni_little(b + 12, 4), tni_little(b + 16, 4) };
    if (tni_little(b + 4, 4) != 0 || tni_little(b + 8, 2) != e->n)
        return bad(zip, "the archive is spread over several disks");
    status = read_end64(zip, e, &stop);
    if (status != TN_OK) return status;
    if (e->at > (uint64_t)stop || e->size != (uint64_t)stop - e->at)
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

/* FOLDER/NAME: printable, no "..", no empty component. */
static tn_status check_name(tni_zip *zip, const char *name, size_t length)
{
    if (strlen(name) != length) return bad(zip, "%.64s: a zero byte in an entry's name", name);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == '\\')
            return bad(zip, "an entry's name has the byte %d at %zu", (unsigned char)name[i], i);
    for (size_t at = 0, n; at <= length; at += n + 1) {
        n = strcspn(name + at, "/");
        if (n == 0 || (n <= 2 && !strncmp(name + at, "..", n)))
            return bad(zip, "%.64s: not a name inside a folder", name);
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
        return bad(zip, "an entry's name has %zu bytes: 1 to %d are possible", length,
                   TNI_ZIP_NAME_LIMIT);
    if (length + extra > left - HEADER || tni_little(h + 32, 2) != 0 || tni_little(h + 34, 2) != 0)
        return bad(zip, "the directory is damaged at entry %d", zip->n);
    entry->crc = (uint32_t)tni_little(h + 16, 4);
    char *name = memmove(h + HEADER - 1, h + HEADER, length); /* room for a zero */
    name[length] = 0;
    tn_status status = check_name(zip, name, length);
    if (status != TN_OK) return status;
    if (flags & 1) return bad(zip, "%.64s: is encrypted", name);
    if (method != 0 && memmem(zip->directory, zip->directory_size, "constants.pkl", 13))
        return bad(zip, TNI_ZIP_SCRIPT);
    if (method != 0)
        return bad(zip, "%.64s: is compressed (method %d): want stored entries", name, (int)method);
    if (flags & ~UINT64_C(0x0808))
        return bad(zip, "%.64s: unknown flags %#llx", name, (unsigned long long)flags);
    uint64_t *large[] = { &nbytes, &compressed, &header };
    status = read_extra(zip, name, h + HEADER + length, extra, large, 3);
    if (status != TN_OK) return status;
    if (nbytes != compressed)
        return bad(zip, "%.64s: %" PRIu64 " bytes stored as %" PRIu64, name, nbytes, compressed);
    if (header > e->at || nbytes > e->at || nbytes > e->at - header)
        return bad(zip, "%.64s: %" PRIu64 " bytes at %" PRIu64 ": the directory begins at %" PRIu64,
                   name, nbytes, header, e->at);
    entry->name = name;
    entry->header = (int64_t)header;
    entry->nbytes = (int64_t)nbytes;
    *at += HEADER + length + extra;
    return TN_OK;
}

/* The header before the data must agree with the directory. With flag 8, sizes and checksum may be
 * in a data descriptor instead. */
static tn_status read_local(const tni_zip *zip, const end *e, tni_zip_entry *entry)
{
    size_t length = strlen(entry->name);
    uint64_t room = e->at - (uint64_t)entry->header;
    if (room < LOCAL_HEADER + length)
        return bad(zip, "%.64s: no room for its header at %" PRId64, entry->name, entry->header);
    unsigned char b[LOCAL_HEADER + TNI_ZIP_NAME_LIMIT];
    tn_status status = tni_input_read(&zip->in, entry->header, b, LOCAL_HEADER + length);
    if (status != TN_OK) return status;
    const uint64_t crc = tni_little(b + 14, 4),
                   sizes[2] = { tni_little(b + 18, 4), tni_little(b + 22, 4) };
    const uint64_t nbytes = (uint64_t)entry->nbytes;
    bool same = tni_little(b, 4) == 0x04034b50 && tni_little(b + 26, 2) == length &&
                !memcmp(b + LOCAL_HEADER, entry->name, length) &&
                !(tni_little(b + 6, 2) & ~UINT64_C(0x0808)) && tni_little(b + 8, 2) == 0;
    bool later = tni_little(b + 6, 2) & 8;
    same = same && (crc == entry->crc || (later && crc == 0));
    for (int i = 0; i < 2; i++)
        same = same && (sizes[i] == nbytes || sizes[i] == UINT32_MAX || (later && sizes[i] == 0));
    if (!same)
        return bad(zip, "%.64s: the header at %" PRId64 " and the directory differ", entry->name,
                   entry->header);
    uint64_t skip = LOCAL_HEADER + length + tni_little(b + 28, 2);
    if (skip > room || nbytes > room - skip)
        return bad(zip, "%.64s: %" PRId64 " bytes at %" PRIu64 ": the directory begins at %" PRIu64,
                   entry->name, nbytes, entry->header + skip, e->at);
    entry->begin = entry->header + (int64_t)skip;
    return TN_OK;
}

static int by_header(const void *a, const void *b)
{
    const tni_zip_entry *x = a;
    const tni_zip_entry *y = b;
    return (x->header > y->header) - (x->header < y->header);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tni_zip_entry *)a)->name, ((const tni_zip_entry *)b)->name);
}

/* Entries must tile the file up to the directory, data descriptors aside. */
static tn_status check_places(tni_zip *zip, const end *e)
{
    int64_t at = 0;
    tni_sort(zip->entry, (size_t)zip->n, sizeof *zip->entry, by_header);
    for (int i = 0; i <= zip->n; i++) {
        const char *name = i < zip->n ? zip->entry[i].name : "the directory";
        int64_t header = i < zip->n ? zip->entry[i].header : (int64_t)e->at;
        if (header < at || header - at > (i ? DESCRIPTOR : 0))
            return tni_input_gap(&zip->in, name, header, at);
        if (i < zip->n) at = zip->entry[i].begin + zip->entry[i].nbytes;
    }
    return TN_OK;
}

/* Names without the folder, which is the same for all; sorted; none twice. */
static tn_status check_folder(tni_zip *zip)
{
    tni_sort(zip->entry, (size_t)zip->n, sizeof *zip->entry, by_name);
    for (int i = 1; i < zip->n; i++)
        if (!strcmp(zip->entry[i - 1].name, zip->entry[i].name))
            return bad(zip, "two entries are named %.64s", zip->entry[i].name);
    const char *first = zip->n ? zip->entry[0].name : "";
    const char *slash = strchr(first, '/');
    size_t folder = slash ? (size_t)(slash + 1 - first) : 0;
    for (int i = 0; i < zip->n; i++) {
        const char *name = zip->entry[i].name;
        if (!folder || strncmp(name, first, folder))
            return bad(zip, "%.64s: want entries in one folder", name);
        zip->entry[i].name += folder;
    }
    return TN_OK;
}

static tn_status read_directory(tni_zip *zip, int64_t max_entries, int64_t max_directory)
{
    end e;
    tn_status status = read_end(zip, &e);
    if (status != TN_OK) return status;
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
    status = tni_input_read(&zip->in, (int64_t)e.at, zip->directory, zip->directory_size);
    size_t at = 0;
    while (status == TN_OK && zip->n < zip->capacity) {
        status = read_header(zip, &e, &at, &zip->entry[zip->n]);
        if (status == TN_OK) status = read_local(zip, &e, &zip->entry[zip->n]);
        zip->checked = zip->checked || zip->entry[zip->n].crc;
        zip->n++;
    }
    if (status == TN_OK && at != zip->directory_size)
        status = bad(zip, "%zu bytes follow the directory's last entry", zip->directory_size - at);
    if (status == TN_OK) status = check_places(zip, &e);
    return status == TN_OK ? check_folder(zip) : status;
}

/* ---- what the rest of the folder calls ------------------------------------------------------- */

tn_status tni_zip_open(tni_zip *zip, const char *function, const char *path, int64_t max_entries,
                       int64_t max_directory)
{
    *zip = (tni_zip){ 0 };
    tn_status status = tni_input_open(&zip->in, function, path);
    if (status != TN_OK) return status;
    status = read_directory(zip, max_entries, max_directory);
    if (status != TN_OK) tni_zip_close(zip);
    return status;
}

const tni_zip_entry *tni_zip_find(const tni_zip *zip, const char *name)
{
    const tni_zip_entry key = { .name = name };
    if (!zip->n) return NULL;
    return bsearch(&key, zip->entry, (size_t)zip->n, sizeof key, by_name);
}

tn_status tni_zip_read(const tni_zip *zip, const tni_zip_entry *entry, void *data)
{
    tn_status status = tni_input_read(&zip->in, entry->begin, data, (size_t)entry->nbytes);
    if (status != TN_OK || !zip->checked) return status;
    uint32_t crc = (uint32_t)crc32_z(0, data, (size_t)entry->nbytes);
    return crc == entry->crc ? TN_OK
                             : bad(zip, "%.64s: is damaged: its checksum is %08x, not %08x",
                                   entry->name, (unsigned)crc, (unsigned)entry->crc);
}

void tni_zip_close(tni_zip *zip)
{
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

/* The fields common to both headers of an entry: version needed, flags (names are UTF-8), method 0,
 * the first of January 1980, checksum, sizes, length of the name. */
static void put_common(tni_bytes *b, bool zip64, bool large, uint32_t crc, uint64_t nbytes,
                       size_t name)
{
    tni_little_add(b, zip64 ? 45 : 10, 2);
    tni_little_add(b, 0x0800, 2);
    tni_little_add(b, 0, 2);
    tni_little_add(b, 0x00210000, 4);
    tni_little_add(b, crc, 4);
    tni_little_add(b, large ? UINT32_MAX : nbytes, 4);
    tni_little_add(b, large ? UINT32_MAX : nbytes, 4);
    tni_little_add(b, name, 2);
}

tn_status tni_zip_add(tni_zip_writer *zip, const char *name, const void *data, size_t nbytes)
{
    size_t length = strlen(zip->folder) + 1 + strlen(name);
    bool large = is_large(zip, nbytes);
    bool far = is_large(zip, zip->at);
    uint32_t crc = zip->file && nbytes ? (uint32_t)crc32_z(0, data, nbytes) : 0;

    tni_bytes *d = &zip->directory;
    tni_little_add(d, 0x02014b50, 4);
    tni_little_add(d, large || far ? 45 : 10, 2);
    put_common(d, large || far, large, crc, nbytes, length);
    tni_little_add(d, large || far ? 4 + 16 * large + 8 * far : 0, 2);
    tni_little_add(d, 0, 2 + 2 + 2); /* comment, disk, internal attributes */
    tni_little_add(d, 0, 4);         /* external attributes */
    tni_little_add(d, far ? UINT32_MAX : zip->at, 4);
    tni_bytes_printf(d, "%s/%s", zip->folder, name);
    if (large || far) tni_little_add(d, 0x0001 | (uint64_t)(16 * large + 8 * far) << 16, 4);
    if (large) tni_little_add(d, nbytes, 8);
    if (large) tni_little_add(d, nbytes, 8);
    if (far) tni_little_add(d, zip->at, 8);
    zip->n++;

    tni_bytes b = { 0 };
    size_t fixed = LOCAL_HEADER + length + (large ? 20 : 0) + PADDING_HEADER;
    size_t padding = (size_t)(ALIGNMENT - (zip->at + fixed) % ALIGNMENT) % ALIGNMENT;
    tni_little_add(&b, 0x04034b50, 4);
    put_common(&b, large, large, crc, nbytes, length);
    tni_little_add(&b, (large ? 20 : 0) + PADDING_HEADER + padding, 2);
    tni_bytes_printf(&b, "%s/%s", zip->folder, name);
    if (large) tni_little_add(&b, 0x0001 | 16 << 16, 4);
    if (large) tni_little_add(&b, nbytes, 8);
    if (large) tni_little_add(&b, nbytes, 8);
    tni_little_add(&b, 0x4246 | (uint64_t)padding << 16,
                   4); /* "FB", as PyTorch marks its padding */
    for (size_t i = 0; i < padding; i++) tni_little_add(&b, 'Z', 1);
    tn_status status = b.failed ? tni_pending() : emit(zip, b.data, b.n);
    tni_bytes_free(&b);
    return status == TN_OK && nbytes ? emit(zip, data, nbytes) : status;
}

tn_status tni_zip_end(tni_zip_writer *zip)
{
    uint64_t at = zip->at;
    size_t size = zip->directory.n;
    bool many = zip->n >= UINT16_MAX;
    bool far = is_large(zip, at) || is_large(zip, size);
    tni_bytes *b = &zip->directory;
    if (many || far) {
        tni_little_add(b, 0x06064b50, 4);
        tni_little_add(b, 44, 8); /* bytes that follow */
        tni_little_add(b, 45 | 45 << 16, 4);
        tni_little_add(b, 0, 8); /* disks */
        tni_little_add(b, zip->n, 8);
        tni_little_add(b, zip->n, 8);
        tni_little_add(b, size, 8);
        tni_little_add(b, at, 8);
        tni_little_add(b, 0x07064b50, 4); /* where the record just written begins */
        tni_little_add(b, 0, 4);
        tni_little_add(b, at + size, 8);
        tni_little_add(b, 1, 4);
    }
    tni_little_add(b, 0x06054b50, 4);
    tni_little_add(b, 0, 4); /* disks */
    tni_little_add(b, many ? UINT16_MAX : zip->n, 2);
    tni_little_add(b, many ? UINT16_MAX : zip->n, 2);
    tni_little_add(b, far ? UINT32_MAX : size, 4);
    tni_little_add(b, far ? UINT32_MAX : at, 4);
    tni_little_add(b, 0, 2); /* comment */
    return b->failed ? tni_pending() : emit(zip, b->data, b->n);
}
