/* growth.c - how long n and 4 n of something take. */
#include "growth.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of several runs and of *best, 0 for none. */
static void measure(const growth_row *row, int n, int runs, double *best)
{
    for (int i = 0; i < runs; i++) {
        tn_scope s = tn_scope_begin();
        if (row->before) row->before(n);
        double from = seconds();
        row->call(n);
        double took = seconds() - from;
        if (*best == 0 || took < *best) *best = took;
        if (row->after) row->after();
        tn_scope_end(s);
    }
}

/* Linear beyond doubt: a walk over n tensors, in no order that memory knows. */
static tn_tensor **walked;

static void make_walked(int n)
{
    uint64_t random = 1;
    walked = calloc((size_t)n, sizeof *walked);
    for (int i = 0; i < n; i++) walked[i] = tn_zeros(TN_SHAPE(1));
    for (int i = n - 1; i > 0; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int k = (int)((random >> 33) % ((uint64_t)i + 1));
        tn_tensor *t = walked[k];
        walked[k] = walked[i];
        walked[i] = t;
    }
}

static void walk(int n)
{
    for (int i = 0; i < n; i++) assert_ok(tn_fill_(walked[i], i));
}

static void free_walked(void)
{
    free(walked);
}

static double times_as_long(const growth_row *row, int n, int runs, double best[2])
{
    measure(row, n, runs, &best[0]);
    measure(row, 4 * n, (runs + 1) / 2, &best[1]);
    return best[1] / best[0];
}

void assert_growth(const growth_row *row)
{
    static const growth_row linear = { "walk", 0, make_walked, walk, free_walked };
    static const int levels[] = { 0, 0, 1, 1, 2, 2 }; /* from n, 4 n or 16 n */
    enum { TRIES = sizeof levels / sizeof *levels };
    double best[4] = { 0 }, known[4] = { 0 }, ratio = INFINITY, bound = 5;
    int n = 0;
    for (int i = 0; i < TRIES && ratio > bound; i++) {
        if (levels[i] > 0 && best[levels[i]] > 0.2) break; /* slow enough to be judged */
        int l = levels[i], runs = l < 2 ? 4 : 2;
        n = (row->n << 2 * l) / (TEST_ASAN || TEST_TSAN ? 4 : 1);
        ratio = times_as_long(row, n, runs, &best[l]);
        if (ratio > 5) bound = 5 * fmax(1, times_as_long(&linear, n, runs, &known[l]) / 4);
        if (getenv("TN_TEST_SHOW"))
            printf("%-28s %6d: %8.3f ms, %.2f of %.2f\n", row->name, 4 * n, best[l + 1] * 1e3,
                   ratio, bound);
    }
    ck_assert_msg(ratio <= bound, "%s: %d take %.2f times as long as %d: want at most %.2f",
                  row->name, 4 * n, ratio, n, bound);
}
