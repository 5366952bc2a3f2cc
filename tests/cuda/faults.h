/*
 * faults.h - a scenario, with each of its runtime and library calls failing in turn.
 *
 * Two sweeps. In this process: call k fails, once; what must hold is checked, and the scenario goes
 * on in the same process. In a child for each k: call k finds the device broken, for good.
 */
#ifndef TENON_TESTS_CUDA_FAULTS_H
#define TENON_TESTS_CUDA_FAULTS_H

#include "common.h"

/* All functions work on objects that the scenario keeps in static variables; no Check assertions:
 * they may run in a child. */
typedef struct scenario {
    const char *name;
    bool (*make)(void);      /* what run needs, the same each time; false: see tn_error() */
    tn_status (*run)(void);  /* in a scope of its own; its calls are those that fail */
    uint64_t (*state)(void); /* what a run that fails leaves as it was */
    void (*drop)(void);
    bool here; /* state reads nothing from the device */
} scenario;

/* Fails the test where call k, k = 1 .. until none is left to fail, breaks one of these: the run
 * fails with a message that names the call, or did without it (a block that could not be freed;
 * memory that was there after the pool was trimmed); the state is then unchanged, or that of a run
 * without failure; nothing has leaked, on the device or here; the next run gives what it always
 * gives. */
void sweep_failures(const scenario *s);
/* Unless NULL: launches of kernels whose names begin so are repeated, and may fail in vain. */
extern const char *tried_twice;

/* The same with the device broken at call k: that call is named, every later use of the device is
 * refused with the same message, and what the process holds can still be dropped. k = first, first
 * + stride ... Nothing is run in this process: what it has not made yet is made, and broken, by
 * each child. */
void sweep_breaks(const scenario *s, long long first, long long stride);
/* Makes and runs it once, so that it need not be the first. */
void warm_up(const scenario *s);

/* For tests that need a process of their own: f in a child, its end one of these. What it says with
 * bad() fails the test. */
enum { GOOD = 0, BAD = 1, NO_SUCH_CALL = 2 };
int in_child(const char *what, int (*f)(void *user), void *user);
int bad(const char *format, ...) TN_PRINTF(1, 2);

#endif
