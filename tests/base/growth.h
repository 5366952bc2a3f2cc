/*
 * growth.h - checks that work grows linearly: a row does one thing with n and with 4 n of
 * something, and may take 5 times the work; quadratic growth would take 16 times.
 *
 * Work is counted, not timed, so that the figures are the same on every machine and every day: the
 * suites link a library in which every basic block is counted when entered (-fsanitize-coverage),
 * and the bytes that the C library moves for it are added. The CPU's vector kernels and the work of
 * other libraries are not counted. In a sanitizer build, which has no such library, the rows run
 * without a comparison.
 */
#ifndef TENON_TESTS_GROWTH_H
#define TENON_TESTS_GROWTH_H

#include "common.h"

typedef struct growth_row {
    const char *name;
    int n;
    void (*before)(int n); /* not counted; may be NULL */
    void (*call)(int n);
    void (*after)(void); /* not counted; may be NULL: frees what no scope frees */
} growth_row;

/* TN_TEST_SHOW=1 in the environment prints each count. */
void assert_growth(const growth_row *row);

#endif
