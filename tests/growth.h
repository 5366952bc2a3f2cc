/*
 * growth.h - that work grows as what there is: a row does one thing with n and with 4 n of
 * something, and may take 5 times as long, not 16 as what grows with the square of n does.
 *
 * Time is the thread's CPU time, the best of several runs. A row above 5 is measured again, since
 * on a busy machine single runs say little, then with 4 n and with 16 n, each beside a walk over as
 * many tensors: where n fit a cache that 4 n do not fit, or that other programs use, the walk takes
 * more than 4 times as long, and the row is allowed as much more. What grows with the square takes
 * 16 times as long beyond that.
 */
#ifndef TENON_TESTS_GROWTH_H
#define TENON_TESTS_GROWTH_H

#include "common.h"

typedef struct growth_row {
    const char *name;
    int n;                 /* under a sanitizer a quarter of it */
    void (*before)(int n); /* not measured; may be NULL */
    void (*call)(int n);   /* both are given up to 64 n */
    void (*after)(void);   /* not measured; may be NULL: gives back what no scope ends */
} growth_row;

/* TN_TEST_SHOW=1 in the environment prints each measurement. */
void assert_growth(const growth_row *row);

#endif
