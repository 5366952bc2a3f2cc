/*
 * archive.h - builds zip archives byte by byte, with the place of every record, so that a test can
 * damage one. Source: the ZIP specification, APPNOTE 6.3.10.
 */
#ifndef TENON_TESTS_ARCHIVE_H
#define TENON_TESTS_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>

typedef struct member {
    const char *name;
    const void *data;
    size_t n;
} member;

typedef struct archive {
    unsigned char bytes[1 << 16];
    size_t n;
    size_t local[32], central[32],
        end; /* each member's header and directory entry; the end record */
} archive;

/* All members stored, without padding, comments or extra fields. Static memory. */
archive *archive_of(const member *members, int n);
/* Appends at a->n: a number of n bytes, or bytes. */
void archive_put(archive *a, uint64_t value, int n);
void archive_put_bytes(archive *a, const void *data, size_t n);

#endif
