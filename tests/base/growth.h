/*
 * growth.h - checks that work grows linearly: a row does one thing with n and with 4 n of
 * something, and may take 5 times the work; quadratic growth would take 16 times.
 *
 * Work is counted, not timed, so that the figures are the same on every machine and every day: the
 * suite links a library in which every basic block is counted when entered (-fsanitize-coverage),
 * and the bytes that the C library moves for it are added. The CPU's vector kernels and the work of
 * other libraries are not counted. In a sanitizer build, which has no such library, the rows run
 * without a comparison. TN_TEST_SHOW=1 in the environment prints each count.
 */
#ifndef TENON_TESTS_GROWTH_H
#define TENON_TESTS_GROWTH_H

#include <stdio.h>
#include <stdlib.h>

#include "files.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* n, where what `before` made is used */

typedef struct growth_row {
    const char *name;
    int n;
    void (*before)(int n); /* not counted; may be NULL */
    void (*call)(int n);
} growth_row;

/* growth_autograd.c, growth_io.c: the end has no name. */
extern const growth_row growth_autograd[], growth_io[];

enum { MOST_NAMES = 64 * 2000 };
const char *name_of(int i); /* "t0", "t1" ... */

#endif
