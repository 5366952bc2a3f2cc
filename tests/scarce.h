/*
 * scarce.h - makes memory run out where a test wants it.
 *
 * Two ways: an allocator for the library's hook, which counts requests (scarce.c), and the
 * program's own malloc and relatives, replacing the C library's, which also see the requests of
 * zlib and of the C library (scarce_malloc.c; only for programs that link it, and not under a
 * sanitizer, which has its own malloc).
 */
#ifndef TENON_TESTS_SCARCE_H
#define TENON_TESTS_SCARCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tenon/tenon.h>

/* ---- the library's allocator ----------------------------------------------------------------- */

typedef struct scarce_memory {
    int64_t requests; /* since it was set to 0 */
    int64_t failing;  /* the request that fails, 1 for the first; 0: none */
    bool sticky;      /* and all after it */
    size_t most;      /* limit of bytes for one request */
    int64_t blocks;   /* given and not yet taken back, */
    int64_t bytes;    /* and what was asked for them */
    bool foreign;     /* more were taken back than were given */
    const char *what; /* named in the messages of scarce_sweep(), unless NULL */
} scarce_memory;
extern scarce_memory scarce;
extern const tn_allocator scarce_allocator; /* refuses nothing at first */

/* In a Check suite: makes it the library's allocator, refusing nothing. The fixture's scope is
 * closed and reopened for this, so everything made in it is freed. The library's cache may answer
 * requests instead: use TN_CACHE=0 or tn_memory_trim() if every request counts. */
void scarce_install(void);
/* In a Check suite, after scarce_install(): refuses the k-th request for memory of call(user), and
 * with scarce.sticky all after it, for k = 1, 2, ... until it makes no more. It must fail with
 * TN_E_NOMEM, or do without; leave no tensor; and pass check(user) after a failure,
 * unless that is NULL. What must not be refused in a call stands between scarce_fail(0) and
 * scarce_fail(k). Returns how often it failed: scarce.requests times, if it never did without. */
int scarce_sweep(tn_status (*call)(void *user), void (*check)(void *user), void *user);
/* The same after a first call in which nothing is refused, for what is made once and kept; then no
 * byte may be left, either. */
int scarce_sweep_warm(tn_status (*call)(void *user), void (*check)(void *user), void *user);
/* The k-th request from here on fails, 1 for the first; 0: none. */
void scarce_fail(int64_t k);
/* The next n requests are granted, and no other; INT64_MAX: all. */
void scarce_allow(int64_t n);

/* ---- malloc ---------------------------------------------------------------------------------- */

/* requests still granted, below 0: all; NULL if not linked */
extern _Atomic int64_t *malloc_left;
extern _Atomic int64_t malloc_refused; /* requests refused */
extern bool malloc_for_good;           /* after the first, all are refused */
extern _Atomic size_t malloc_most;     /* bytes of the largest request since it was set to 0 */

#endif
