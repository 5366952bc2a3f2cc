/*
 * test_malloc_products.c - the C library's allocator refuses once while a product is computed:
 * either the product is right, or it says that it is out of memory.
 *
 * Seen to fail: in cut.c, a product that adds to C computed once more after a refusal.
 */
#include "common.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "scarce.h"
#include "tensor/cpu/cpu.h"
#include "tensor/math.h"

enum { M = 64, N = 48, ALLOCATIONS = 6 };

/* C [M, N] = A B or += A B, all of A and B 1. */
static void multiply(tn_dtype dtype, int64_t k, bool accumulate, int64_t allocation)
{
    uint16_t *ones = calloc((size_t)(k * M), sizeof *ones), *c = calloc(M * N, sizeof(float));
    uint16_t one = dtype == TN_BF16 ? tn_to_bf16(1) : tn_to_f16(1);
    for (int64_t i = 0; i < k * M; i++) ones[i] = one;
    tni_gemm g = { .dtype = dtype, .wide = true, .m = M, .n = N, .k = k, .batch = 1 };
    g.accumulate = accumulate;
    g.a = g.b = ones;
    g.c = c;
    g.a_row = g.b_col = k;
    g.a_col = g.b_row = 1;
    g.c_row = N;
    *malloc_left = allocation;
    tn_status status = tni_cpu_backend()->gemm(&g);
    *malloc_left = -1;
    for (int64_t i = 0; status == TN_OK && i < M * N; i++)
        ck_assert_msg(((float *)c)[i] == (float)k, "%s, inner size %d, allocation %d: %g",
                      tn_dtype_name(dtype), (int)k, (int)allocation, ((float *)c)[i]);
    if (status != TN_OK) assert_fails(status, TN_E_NOMEM, "memory");
    free(ones);
    free(c);
}

/* Each in a process of its own, whose first product it is. */
START_TEST(one_failed_malloc_is_out_of_memory)
{
    int64_t left = _i % ALLOCATIONS, which = _i / ALLOCATIONS;
    assert_ok(tn_set_num_threads(1));
    multiply(which & 1 ? TN_BF16 : TN_F16, which & 2 ? 2048 : 256, which & 4, left);
}
END_TEST

/* ---- messages of more threads than have a buffer without malloc ------------------------------ */

enum { THREADS = 12 };

static pthread_barrier_t all;

static void *fail_there(void *number)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, "thread %d", *(int *)number);
    pthread_barrier_wait(&all);
    tn_fail(TN_E_SHAPE, "%s", wanted);
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all); /* Check's own assertions want memory */
    bool own = strcmp(tn_error(), wanted) == 0;
    bool none = strcmp(tn_error(), "out of memory: there is none for this thread's message") == 0;
    ck_assert_msg(own || none, "%s", tn_error());
    ck_assert_int_eq(tn_error_status(), TN_E_SHAPE);
    tn_error_clear();
    ck_assert_str_eq(tn_error(), "");
    *(int *)number = none;
    return NULL;
}

/* Twice: the buffers of threads that have ended serve others. */
START_TEST(an_error_without_memory_for_its_message_is_an_error)
{
    for (int round = 0; round < 2; round++) {
        pthread_t thread[THREADS];
        int number[THREADS], none = 0;
        pthread_barrier_init(&all, NULL, THREADS + 1);
        for (int i = 0; i < THREADS; i++) {
            number[i] = i;
            ck_assert_int_eq(pthread_create(&thread[i], NULL, fail_there, &number[i]), 0);
        }
        *malloc_left = 0;
        malloc_for_good = true;
        pthread_barrier_wait(&all);
        pthread_barrier_wait(&all);
        *malloc_left = -1;
        malloc_for_good = false;
        pthread_barrier_wait(&all);
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL), none += number[i];
        ck_assert_msg(none > 0 && none < 8, "%d of %d threads have no message", none, THREADS);
        pthread_barrier_destroy(&all);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("malloc_products");
    TCase *t = test_case(suite, "malloc");
    setenv("TN_CACHE", "0", 1);
    tcase_add_loop_test(t, one_failed_malloc_is_out_of_memory, 0, 8 * ALLOCATIONS);
    tcase_add_test(t, an_error_without_memory_for_its_message_is_an_error);
    return suite;
}
