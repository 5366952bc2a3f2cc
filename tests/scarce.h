/*
 * scarce.h - memory that runs out where a test says.
 *
 * Two ways: an allocator for the library's hook, which counts what is asked of it (scarce.c), and
 * malloc and its like of the program's own, in front of the C library's, which also meets what zlib
 * and that library ask for (scarce_malloc.c; only for programs that link it, and none under a
 * sanitizer, which has a malloc of its own).
 */
#ifndef TENON_TESTS_SCARCE_H
#define TENON_TESTS_SCARCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the library's allocator ----------------------------------------------------------------- */

typedef struct scarce_memory {
    int64_t requests; /* since it was set to 0 */
    int64_t failing;  /* the request that fails, 1 for the first; 0: none */
    bool sticky;      /* and all after it */
    size_t most;      /* bytes that one request may want */
} scarce_memory;
extern scarce_memory scarce;

/* Makes it the library's allocator, and sets it to refuse nothing. The scope of the fixture is
 * closed and opened again for it, so what was made in that is gone. The library's cache answers
 * requests in its place: TN_CACHE=0 or tn_memory_trim() where every one counts. */
void scarce_install(void);
/* The next n requests are granted, and no other; INT64_MAX: all. */
void scarce_allow(int64_t n);

/* ---- malloc ---------------------------------------------------------------------------------- */

/* requests that are still granted, below 0: all; NULL without it */
extern _Atomic int64_t *malloc_left;
extern _Atomic int64_t malloc_refused; /* requests that were not */
extern bool malloc_for_good;           /* after the first, all are refused */

#endif
