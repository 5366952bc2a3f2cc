/* trace_cases.h - small models in f64 that test_trace.c explains; see golden/make_explain.py. */
#ifndef TENON_TESTS_TRACE_CASES_H
#define TENON_TESTS_TRACE_CASES_H

#include "common.h"

typedef struct trace_case {
    const char *name;
    tn_module *(*model)(void); /* NULL: only leaves */
    tn_tensor *(*loss)(tn_module *m, void *user);
    void (*leaves)(void); /* makes them, in the current scope */
} trace_case;

extern const trace_case trace_cases[];
enum { TRACE_CASES = 10, TRACE_OVERWRITTEN = 9, TRACE_LEAVES = 4 };

/* The leaves of the case whose loss was made last, NULL after them. */
extern tn_tensor *trace_leaf[TRACE_LEAVES];

/* Linear(4, 16), ReLU, dropout, Linear(16, 3). */
tn_module *dropout_net(void);

/* A tensor by its name's values: exact in binary, never 0. */
tn_tensor *trace_fill(const char *name, tn_shape shape);

#endif
