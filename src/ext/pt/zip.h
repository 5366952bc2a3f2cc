/*
 * zip.h - zip archives, the outer layer of PyTorch's files and of NumPy's .npz.
 *
 * Layout: for every entry a local header, padding, the data; then the directory with a header per
 * entry; then the end record. Sizes and places that do not fit 32 bits are in a field 0x0001 after
 * their header (zip64). PyTorch's entries are named FOLDER/NAME, all in one folder, and their data
 * begins at multiples of 64 bytes, so that a file can be mapped. Source: PKWARE, .ZIP File Format
 * Specification (APPNOTE) 6.3.10; caffe2/serialize/inline_container.cc in PyTorch for the padding.
 */
#pragma once

#include "base/map.h"
#include "io/file.h"

#define TNI_ZIP_NAME_LIMIT 1024 /* bytes of an entry's name */

/* A number of n bytes, little-endian, read and written. */
static inline uint64_t tni_little(const unsigned char *at, int n)
{
    uint64_t value = 0;
    for (int i = n - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}
static inline void tni_little_add(tni_bytes *b, uint64_t value, int n)
{
    unsigned char bytes[8];
    for (int i = 0; i < n; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    tni_bytes_add(b, bytes, (size_t)n);
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct tni_zip_writer {
    tni_atomic_file *file; /* NULL: nothing is written, only counted */
    const char *folder;    /* of PyTorch's; NULL: none, and no padding */
    uint64_t limit;        /* from here on zip64; 0: 2^32 - 1 */
    uint64_t at;           /* bytes so far */
    uint64_t n;
    tni_bytes directory;
} tni_zip_writer;

/* data is read only when there is a file. */
tn_status tni_zip_add(tni_zip_writer *zip, const char *name, const void *data, size_t nbytes);
/* Writes the directory and the end. Then tni_bytes_free(&zip->directory), also on failure. */
tn_status tni_zip_end(tni_zip_writer *zip);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct tni_zip_entry {
    const char *name;      /* without the folder of a PyTorch file */
    int64_t header;        /* where the entry begins */
    int64_t begin, stored; /* its data in the file */
    int64_t nbytes;        /* of the data; more than stored if deflated */
    uint32_t crc;
    bool deflated;
} tni_zip_entry;

typedef struct tni_zip {
    tni_input in;
    unsigned char *directory; /* the names lie here */
    size_t directory_size;
    int n, capacity;
    tni_zip_entry *entry;
    tni_map names;     /* -> entry */
    bool checked;      /* the archive has checksums: a writer may leave them all 0 */
    bool pytorch;      /* there is a data.pkl */
    uint64_t inflated; /* bytes of all deflated entries */
} tni_zip;

/* Opens and checks everything but the data. Accepts at most max_entries entries and max_directory
 * bytes of directory. On failure nothing is left open. */
tn_status tni_zip_open(tni_zip *zip, const char *function, const char *path, int64_t max_entries,
                       int64_t max_directory);
/* Reads an entry's data, inflated, and checks its checksum, if any; data NULL: only that. */
tn_status tni_zip_read(const tni_zip *zip, const tni_zip_entry *entry, void *data);
void tni_zip_close(tni_zip *zip);
