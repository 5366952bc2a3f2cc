/*
 * faults.h - a scenario, with each of its runtime and library calls failing in turn.
 *
 * Two sweeps. In this process: call k fails, once; what must hold is checked, and the scenario goes
 * on in the same process. In a child for each k: the device breaks at call k, for good.
 */
#ifndef TENON_TESTS_CUDA_FAULTS_H
#define TENON_TESTS_CUDA_FAULTS_H

#include "common.h"

/* All functions work on objects that the scenario keeps in static variables; no Check assertions:
 * they may run in a child. */
typedef struct scenario {
    const char *name;
    bool (*make)(void);      /* what run needs, the same each time; false: see tn_error() */
    tn_status (*run)(void);  /* in a scope of its own; these are the calls that fail */
    uint64_t (*state)(void); /* what a failed run leaves unchanged */
    void (*drop)(void);
    bool here; /* state reads nothing from the device */
} scenario;

/* Makes call k fail, k = 1 .. until no call is left, and fails the test unless: the run fails with
 * a message that names the call, or did without it (a block that could not be freed; memory found
 * after the pool was trimmed); the state is then unchanged, or that of a run without failure;
 * nothing has leaked, on the device or here; the next run gives what it always gives. */
void sweep_failures(const scenario *s);
/* Unless NULL: launches of kernels whose names begin so are repeated, and may fail in vain. */
extern const char *tried_twice;

/* The same with the device broken at call k: the message names that call, every later use of the
 * device is refused with the same message, and the process can still drop what it holds. k = first,
 * first + stride ... Nothing runs in this process, so objects made once are made, and their making
 * fails, in each child. */
void sweep_breaks(const scenario *s, long long first, long long stride);
/* Makes and runs it once, as a warm-up. */
void warm_up(const scenario *s);

/* For tests that need a process of their own: runs f in a child, whose exit status is one of these.
 * A message given to bad() fails the test. */
enum { GOOD = 0, BAD = 1, NO_SUCH_CALL = 2 };
int in_child(const char *what, int (*f)(void *user), void *user);
int bad(const char *format, ...) TN_PRINTF(1, 2);

#endif
