/* archive.c - what archive.h promises. */
#include "archive.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

void archive_put(archive *a, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) a->bytes[a->n++] = (unsigned char)(value >> (8 * i));
}

void archive_put_bytes(archive *a, const void *data, size_t n)
{
    if (n > sizeof a->bytes - a->n) abort(); /* a test asks for more than fits */
    if (n) memcpy(a->bytes + a->n, data, n);
    a->n += n;
}

static void put_fields(archive *a, const member *m)
{
    archive_put(a, 0, 2 + 2); /* flags, method */
    archive_put(a, 0, 4);     /* time */
    archive_put(a, crc32_z(0, m->data, m->n), 4);
    archive_put(a, m->n, 4);
    archive_put(a, m->n, 4);
    archive_put(a, strlen(m->name), 2);
}

archive *archive_of(const member *m, int n)
{
    static archive a;
    a.n = 0;
    for (int i = 0; i < n; i++) {
        a.local[i] = a.n;
        archive_put(&a, 0x04034b50, 4);
        archive_put(&a, 10, 2);
        put_fields(&a, &m[i]);
        archive_put(&a, 0, 2);
        archive_put_bytes(&a, m[i].name, strlen(m[i].name));
        archive_put_bytes(&a, m[i].data, m[i].n);
    }
    size_t directory = a.n;
    for (int i = 0; i < n; i++) {
        a.central[i] = a.n;
        archive_put(&a, 0x02014b50, 4);
        archive_put(&a, 10 | 10 << 16, 4);
        put_fields(&a, &m[i]);
        archive_put(&a, 0, 2 + 2 + 2 + 2);
        archive_put(&a, 0, 4);
        archive_put(&a, a.local[i], 4);
        archive_put_bytes(&a, m[i].name, strlen(m[i].name));
    }
    a.end = a.n;
    archive_put(&a, 0x06054b50, 4);
    archive_put(&a, 0, 4);
    archive_put(&a, (uint64_t)n, 2);
    archive_put(&a, (uint64_t)n, 2);
    archive_put(&a, a.end - directory, 4);
    archive_put(&a, directory, 4);
    archive_put(&a, 0, 2);
    return &a;
}
