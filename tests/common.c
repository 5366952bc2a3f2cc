/* common.c - the fixture, comparisons and builders of common.h. */
#include "common.h"

#include <stdlib.h>
#include <time.h>

#include "scarce.h"

static int64_t live_before;
static tn_scope scope;

static struct {
    void *what;
    void (*free)(void *what);
} at_end[1024];
static int n_at_end;

void free_at_end(void *what, void (*free)(void *what))
{
    assert_made(what);
    ck_assert_int_lt(n_at_end, 1024);
    at_end[n_at_end].what = what;
    at_end[n_at_end++].free = free;
}

#define OWNED(type, free_it)                                                                       \
    static void free_##type(void *what)                                                            \
    {                                                                                              \
        free_it(what);                                                                             \
    }                                                                                              \
    tn_##type *owned_##type(tn_##type *what)                                                       \
    {                                                                                              \
        free_at_end(what, free_##type);                                                            \
        return what;                                                                               \
    }

void *owned_block(void *block)
{
    free_at_end(block, free);
    return block;
}

OWNED(module, tn_module_drop)
OWNED(optim, tn_optim_free)
OWNED(scheduler, tn_scheduler_free)
OWNED(scaler, tn_scaler_free)
OWNED(loader, tn_loader_free)
OWNED(text, tn_text_free)
OWNED(generator, tn_generator_free)
OWNED(capture, tn_capture_free)

void test_setup(void)
{
    n_at_end = 0; /* without forks a test that failed leaves some */
    live_before = tn_live_tensors();
    tn_error_clear();
    scope = tn_scope_begin();
}

void test_teardown(void)
{
    while (n_at_end) {
        n_at_end--;
        at_end[n_at_end].free(at_end[n_at_end].what);
    }
    tn_scope_end(scope);
    ck_assert_msg(tn_live_tensors() == live_before, "%" PRId64 " tensors outlived the test",
                  tn_live_tensors() - live_before);
}

tn_status test_set_allocator(const tn_allocator *allocator)
{
    tn_scope_end(scope);
    tn_status status = tn_set_allocator(allocator);
    scope = tn_scope_begin();
    return status;
}

void scarce_install(void)
{
    scarce = (scarce_memory){ .most = SIZE_MAX };
    assert_ok(test_set_allocator(&scarce_allocator));
}

static int sweep(bool warm, tn_status (*call)(void *user), void (*check)(void *user), void *user)
{
    int failed = 0;
    const char *what = scarce.what ? scarce.what : "call";
    for (int64_t k = !warm;; k++) { /* 0: none, for what is made once and kept */
        int64_t live = tn_live_tensors(), in_use = tn_memory().in_use;
        tn_memory_trim(); /* otherwise freed blocks would be used again without a request */
        tn_error_clear();
        tn_scope s = tn_scope_begin();
        scarce_fail(k);
        tn_status status = call(user);
        bool refused = k > 0 && scarce.requests >= k;
        scarce.failing = 0;
        ck_assert_msg(status == TN_OK ||
                          (refused && status == TN_E_NOMEM && strstr(tn_error(), "memory")),
                      "%s, request %d: %s: %s", what, (int)k, tn_status_name(status), tn_error());
        tn_scope_end(s);
        if (k == 0) continue;
        ck_assert_msg(tn_live_tensors() == live, "%s, request %d (%s): %d tensors more", what,
                      (int)k, tn_status_name(status), (int)(tn_live_tensors() - live));
        ck_assert_msg(!warm || tn_memory().in_use == in_use, "%s, request %d (%s): %d bytes more",
                      what, (int)k, tn_status_name(status), (int)(tn_memory().in_use - in_use));
        if (!refused) return failed;
        failed += status != TN_OK;
        if (status != TN_OK && check) check(user);
    }
}

int scarce_sweep(tn_status (*call)(void *user), void (*check)(void *user), void *user)
{
    return sweep(false, call, check, user);
}

int scarce_sweep_warm(tn_status (*call)(void *user), void (*check)(void *user), void *user)
{
    return sweep(true, call, check, user);
}

static void without_cache(void)
{
    setenv("TN_CACHE", "0", 1);
}

/* A test case; before: called before the fixture, unless NULL. */
static TCase *case_after(Suite *suite, const char *name, void (*before)(void))
{
    TCase *t = tcase_create(name);
    if (before) tcase_add_checked_fixture(t, before, NULL);
    tcase_add_checked_fixture(t, test_setup, test_teardown);
    tcase_set_timeout(t, 300);
    suite_add_tcase(suite, t);
    return t;
}

TCase *test_case(Suite *suite, const char *name)
{
    return case_after(suite, name, NULL);
}

TCase *scarce_case(Suite *suite, const char *name)
{
    TCase *t = case_after(suite, name, without_cache);
    tcase_add_checked_fixture(t, scarce_install, NULL);
    return t;
}

void add_all_tests(TCase *t, const TTest *const *tests, size_t n)
{
    for (size_t i = 0; i < n; i++) tcase_add_test(t, tests[i]);
}

/* All elements as doubles, row-major; to be freed. */
static double *values_of(const tn_tensor *t)
{
    size_t n = (size_t)tn_numel(t);
    double *v = malloc((n ? n : 1) * sizeof *v);
    if (tn_copy_out(t, v, n * sizeof *v, TN_F64) != TN_OK) {
        free(v);
        return NULL;
    }
    return v;
}

static void shape_text(const tn_tensor *t, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < tn_rank(t) && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? "," : "", tn_size(t, i));
    if (used < size) snprintf(text + used, size - used, "]");
}

static bool near(double a, double e, double rtol, double atol)
{
    if (isnan(e)) return isnan(a);
    if (isinf(e) || isinf(a)) return a == e;
    return fabs(a - e) <= atol + rtol * fabs(e);
}

/* The first element that differs, with its index, and the largest difference. */
static const char *compare(const tn_tensor *t, const double *a, const double *e, double rtol,
                           double atol)
{
    static char text[512];
    int64_t n = tn_numel(t);
    int64_t wrong = 0;
    int64_t first = -1;
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (near(a[i], e[i], rtol, atol)) continue;
        if (first < 0) first = i;
        worst = fmax(worst, fabs(a[i] - e[i]));
        wrong++;
    }
    if (first < 0) return NULL;
    char shape[96];
    shape_text(t, shape, sizeof shape);
    snprintf(text, sizeof text,
             "%" PRId64 " of %" PRId64 " elements of %s differ by up to %.3g; the first, %" PRId64
             ", is %.17g, not %.17g",
             wrong, n, shape, worst, first, a[first], e[first]);
    return text;
}

const char *difference(const tn_tensor *actual, const tn_tensor *expected, double rtol, double atol)
{
    static char text[512];
    if (!actual || !expected || tn_is_none(actual) || tn_is_none(expected)) {
        snprintf(text, sizeof text, "%s tensor is missing: %s",
                 !actual || tn_is_none(actual) ? "the actual" : "the expected", tn_error());
        return text;
    }
    bool same = tn_rank(actual) == tn_rank(expected);
    for (int i = 0; same && i < tn_rank(actual); i++)
        same = tn_size(actual, i) == tn_size(expected, i);
    if (!same) {
        char a[96];
        shape_text(actual, a, sizeof a);
        char e[96];
        shape_text(expected, e, sizeof e);
        snprintf(text, sizeof text, "shape is %s, not %s", a, e);
        return text;
    }
    double *a = values_of(actual);
    double *e = values_of(expected);
    const char *result = a && e ? compare(actual, a, e, rtol, atol) : tn_error();
    free(a);
    free(e);
    return result;
}

const char *values_difference(const tn_tensor *actual, const double *expected, int64_t n,
                              double tolerance)
{
    static char text[512];
    if (!actual || tn_is_none(actual)) {
        snprintf(text, sizeof text, "the tensor is missing: %s", tn_error());
        return text;
    }
    if (tn_numel(actual) != n) {
        snprintf(text, sizeof text, "has %" PRId64 " elements, not %" PRId64, tn_numel(actual), n);
        return text;
    }
    double *a = values_of(actual);
    const char *result = a ? compare(actual, a, expected, tolerance, tolerance) : tn_error();
    free(a);
    return result;
}

/* SplitMix64, Steele, Lea and Flood (2014): the tests' numbers do not depend on the library's. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

tn_tensor *random_f64(tn_shape shape, double low, double high, uint64_t seed)
{
    size_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= (size_t)shape.size[i];
    double *v = malloc((n ? n : 1) * sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = low + (high - low) * (double)(next(&seed) >> 11) * 0x1p-53;
    tn_tensor *t = tn_from_data(v, shape, TN_F64);
    free(v);
    return t;
}

tn_tensor *random_as(tn_shape shape, double low, double high, uint64_t seed, tn_dtype dtype)
{
    return tn_to_dtype(random_f64(shape, low, high, seed), dtype);
}

tn_tensor *from_f64(const double *values, tn_shape shape)
{
    return tn_from_data(values, shape, TN_F64);
}

tn_tensor *with_grad(tn_tensor *t)
{
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

/* A leaf over larger or reordered memory with t's values. */
static tn_tensor *filled(tn_tensor *view, tn_tensor *t)
{
    if (!view || !t) return NULL;
    size_t nbytes = (size_t)tn_numel(t) * tn_dtype_size(tn_dtype_of(t));
    void *bytes = malloc(nbytes ? nbytes : 1);
    tn_status status = tn_copy_out(t, bytes, nbytes, tn_dtype_of(t));
    if (status == TN_OK) status = tn_copy_in(view, bytes, nbytes, tn_dtype_of(t));
    free(bytes);
    return status == TN_OK ? view : NULL;
}

tn_tensor *as_transposed(tn_tensor *t)
{
    tn_shape shape = tn_shape_get(t);
    if (shape.rank < 0) return NULL;
    tn_shape reversed = shape;
    int order[TN_MAX_RANK] = { 0 };
    for (int i = 0; i < shape.rank; i++) {
        reversed.size[i] = shape.size[shape.rank - 1 - i];
        order[i] = shape.rank - 1 - i;
    }
    tn_tensor *view =
        tn_permute(tn_empty_as(reversed, tn_dtype_of(t), tn_device_of(t)), order, shape.rank);
    return filled(view, t);
}

tn_tensor *as_strided(tn_tensor *t)
{
    tn_shape shape = tn_shape_get(t);
    if (shape.rank < 0) return NULL;
    if (shape.rank == 0) {
        tn_tensor *two = tn_full_as(TN_SHAPE(2), 0, tn_dtype_of(t), tn_device_of(t));
        return filled(tn_select(two, 0, 1), t);
    }
    tn_shape wide = shape;
    int last = shape.rank - 1;
    wide.size[last] = 2 * shape.size[last] + 1;
    tn_tensor *all = tn_full_as(wide, 0, tn_dtype_of(t), tn_device_of(t));
    return filled(tn_slice(all, last, 1, wide.size[last], 2), t);
}

bool child_may_start_threads(void)
{
    return !TEST_TSAN && !getenv("TN_TEST_EMULATED");
}

double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *golden_path(const char *file)
{
    static _Thread_local char path[4096];
    const char *folder = getenv("TN_GOLDEN_DIR");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : GOLDEN_DIR, file);
    return path;
}

#if TEST_TSAN
/* What packs into OpenBLAS's buffers, which go from thread to thread under a lock of its own that
 * the sanitizer does not see. */
const char *__tsan_default_suppressions(void); /* the sanitizer asks for it by this name */
const char *__tsan_default_suppressions(void)
{
    return "race:gemm_oncopy\nrace:gemm_otcopy\nrace:gemm_incopy\nrace:gemm_itcopy\n";
}
#endif
