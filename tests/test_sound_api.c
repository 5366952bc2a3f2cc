/*
 * test_sound_api.c - what random calls of the public functions (fuzz_api) have found, each by its name.
 */
#include <stdlib.h>

#include "common.h"

/* ---- an allocator that refuses ----------------------------------------------------------------- */

static int64_t left = -1; /* requests that are still granted; below 0: all */

static void *some(void *user, size_t size)
{
    void *block = NULL;
    (void)user;
    if (left == 0 || (left > 0 && left-- == 0)) return NULL;
    return posix_memalign(&block, 64, size) == 0 ? block : NULL;
}
static void back(void *user, void *block, size_t size)
{
    (void)user, (void)size;
    free(block);
}

/* The library's cache would answer in its place. */
__attribute__((constructor)) static void without_cache(void)
{
    setenv("TN_CACHE", "0", 1);
}
static void may_refuse(void)
{
    static const tn_allocator allocator = { some, back, NULL };
    assert_ok(tn_set_allocator(&allocator));
}

/* ---- random numbers ---------------------------------------------------------------------------- */

/* Seen to fail with the counters taken and never given back. */
START_TEST(a_dropout_without_memory_draws_nothing)
{
    unsigned char before[TN_GENERATOR_STATE_SIZE], after[TN_GENERATOR_STATE_SIZE];
    may_refuse();
    tn_tensor *x = tn_ones(TN_SHAPE(4, 4)), *y = NULL;
    tn_manual_seed(3);
    tn_generator_get_state(tn_default_generator(), before);
    int failures = 0;
    for (int64_t k = 0; !y; k++) {
        tn_error_clear();
        left = k;
        y = tn_dropout(x, 0.5, true);
        left = -1;
        if (y) break;
        assert_error(TN_E_NOMEM, "out of memory");
        tn_generator_get_state(tn_default_generator(), after);
        ck_assert_msg(memcmp(before, after, sizeof before) == 0, "the refusal %d drew", (int)k);
        failures++;
    }
    ck_assert_int_gt(failures, 0);
    tn_manual_seed(3);
    ck_assert_uint_eq(tn_hash(y), tn_hash(tn_dropout(x, 0.5, true)));
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("sound_api");
    TCase *t = test_case(suite, "random");
    tcase_add_test(t, a_dropout_without_memory_draws_nothing);
    return suite;
}
