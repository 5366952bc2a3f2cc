/* call.h - one call, and the checks after it: see call.c. */
#ifndef TENON_FUZZ_API_CALL_H
#define TENON_FUZZ_API_CALL_H

#include "world.h"

/* Where findings are reported: only the first of each function and kind; the rest are counted. */
typedef struct report {
    FILE *file;
    int64_t found;
    _Atomic int64_t *total;  /* may be NULL: of all threads and processes */
    uint64_t seed, sequence; /* of the world that runs */
} report;
extern _Thread_local report findings;

/* Requests for memory that are granted during the call before one is refused; -1: all. */
typedef struct refusal {
    int64_t after;
    bool for_good, of_malloc;
} refusal;

/* Whether a call runs while the host traps floating-point exceptions. */
extern bool traps;

/* One call of the row with arguments as w->mode says. True when memory was refused. */
bool call_row(world *w, const row *r, refusal refusal);
/* A sequence of n random calls; its digest in w->digest. */
void run_sequence(world *w, uint64_t seed, int n);
/* After end_sequence: checks that nothing is left. Only without other threads. */
void check_nothing_left(world *w);
void finding(world *w, const char *format, ...) TN_PRINTF(2, 3);

#endif
