/*
 * zip_write.c - archives of stored entries, written front to back.
 */
#include <zlib.h>

#include "ext/pt/zip.h"

enum { ALIGNMENT = 64, LOCAL_HEADER = 30, PADDING_HEADER = 4 };

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
