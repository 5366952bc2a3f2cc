/* growth.c - counts the work that n and 4 n of something take. */
#include "growth.h"

#include <stdio.h>
#include <stdlib.h>

/* Basic blocks entered, and pieces of 64 bytes moved: about what each costs. */
static uint64_t work;

/* Called at the beginning of every basic block of the counted library. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    work++;
}

#if !TEST_ASAN && !TEST_TSAN
/* The linker puts these in place of the C library's (--wrap). */
void *__real_memcpy(void *to, const void *from, size_t n);
void *__real_memmove(void *to, const void *from, size_t n);
void *__real_memset(void *to, int value, size_t n);
void *__real_realloc(void *block, size_t n);
void *__wrap_memcpy(void *to, const void *from, size_t n);
void *__wrap_memmove(void *to, const void *from, size_t n);
void *__wrap_memset(void *to, int value, size_t n);
void *__wrap_realloc(void *block, size_t n);

void *__wrap_memcpy(void *to, const void *from, size_t n)
{
    work += n / 64;
    return __real_memcpy(to, from, n);
}

void *__wrap_memmove(void *to, const void *from, size_t n)
{
    work += n / 64;
    return __real_memmove(to, from, n);
}

void *__wrap_memset(void *to, int value, size_t n)
{
    work += n / 64;
    return __real_memset(to, value, n);
}

void *__wrap_realloc(void *block, size_t n)
{
    work += n / 64;
    return __real_realloc(block, n);
}
#endif

static uint64_t count(const growth_row *row, int n)
{
    tn_scope s = tn_scope_begin();
    if (row->before) row->before(n);
    uint64_t from = work;
    row->call(n);
    uint64_t done = work - from;
    if (row->after) row->after();
    tn_scope_end(s);
    return done;
}

void assert_growth(const growth_row *row)
{
    assert_ok(tn_set_num_threads(1)); /* all work is done and counted on this thread */
    if (TEST_ASAN || TEST_TSAN) {
        count(row, row->n);
        return;
    }
    uint64_t few = count(row, row->n), many = count(row, 4 * row->n);
    double times = (double)many / (double)few;
    if (getenv("TN_TEST_SHOW"))
        printf("%-28s %6d: %10" PRIu64 ", %.2f times\n", row->name, row->n, few, times);
    ck_assert_msg(few >= (uint64_t)row->n,
                  "%s: %" PRIu64 " blocks for %d: the library does not count", row->name, few,
                  row->n);
    ck_assert_msg(times <= 5, "%s: %d take %.2f times as much work as %d: want at most 5",
                  row->name, 4 * row->n, times, row->n);
}
