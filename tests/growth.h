/*
 * growth.h - that work grows as what there is: a row does one thing with n and with 4 n of
 * something, and may do 5 times as much work, not 16 times as what grows with the square of n does.
 *
 * Work is counted, not timed, so that the figures are the same on every machine and every day: the
 * suites link a library whose every basic block says that it is entered (-fsanitize-coverage), and
 * the bytes that the C library moves for it are added. The CPU's vector kernels and what other
 * libraries do inside are not counted. In a sanitizer's build, which has no such library, the rows
 * run without a comparison.
 */
#ifndef TENON_TESTS_GROWTH_H
#define TENON_TESTS_GROWTH_H

#include "common.h"

typedef struct growth_row {
    const char *name;
    int n;
    void (*before)(int n); /* not counted; may be NULL */
    void (*call)(int n);
    void (*after)(void); /* not counted; may be NULL: gives back what no scope ends */
} growth_row;

/* TN_TEST_SHOW=1 in the environment prints each count. */
void assert_growth(const growth_row *row);

#endif
