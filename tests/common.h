/*
 * common.h - shared by all Check suites of tenon.
 *
 * A test file defines test_suite() and gets its main from main.c. A test case made by test_case()
 * has the common fixture: a scope is open and the error is clear when a test begins; when it ends,
 * the scope is closed and no tensor may have outlived it.
 *
 * Fixtures are checked ones: they run after Check's fork, in the process of the test.
 */
#ifndef TENON_TESTS_COMMON_H
#define TENON_TESTS_COMMON_H

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <tenon/tenon.h>

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif

#if defined(__SANITIZE_ADDRESS__)
#define TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#endif
#ifndef TEST_ASAN
#define TEST_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__)
#define TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_TSAN 1
#endif
#endif
#ifndef TEST_TSAN
#define TEST_TSAN 0
#endif
/* Under node, where no test starts a thread. */
#if defined __EMSCRIPTEN__
#define TEST_NODE 1
#else
#define TEST_NODE 0
#endif

/* Check writes to a file where each assertion is that holds, which takes most of the time of loops
 * over numbers. Once of each line of a file tells as well after which a test has crashed: each has
 * a process of its own, and where it has not, nothing is said of a crash. */
static inline void holds_at(const char *file, int line)
{
    static _Thread_local bool seen[2048];
    if (seen[line % 2048]) return;
    seen[line % 2048] = true;
    _mark_point(file, line);
}
#define _mark_point(file, line) holds_at(file, line)

/* Whether a forked child may start threads: not under ThreadSanitizer, nor under qemu-user, whose
 * 7.2 aborts there; scripts/aarch64 says so with TN_TEST_EMULATED. Where another thread of the
 * parent may be starting or ending, not under AddressSanitizer either: such a thread holds its
 * allocator's lock, and the child waits for it for ever (gcc 12; clang 14, 2 of 2,234 forks). */
bool child_may_start_threads(void);

/* The suite of a test program. */
Suite *test_suite(void);

/* A test case of suite with the common fixture and timeout (300 s). */
TCase *test_case(Suite *suite, const char *name);
/* ... whose tests begin with scarce_install() (scarce.h) and without the library's cache. Only for
 * a program whose tests have a process each. */
TCase *scarce_case(Suite *suite, const char *name);
/* add_tests(t, a, b, c): tests that are no loops. */
#define add_tests(t, ...)                                                                          \
    add_all_tests((t), (const TTest *[]){ __VA_ARGS__ },                                           \
                  sizeof((const TTest *[]){ __VA_ARGS__ }) / sizeof(const TTest *))
void add_all_tests(TCase *t, const TTest *const *tests, size_t n);
/* The fixture itself, for test cases made by hand: tcase_add_checked_fixture(t, test_setup,
 * test_teardown). */
void test_setup(void);
void test_teardown(void);

/* Freed at the end of the test, the last one first: tn_module *m = owned(tn_relu_new()). Each must
 * have been made. */
/* clang-format off */
#define owned(what)                                                                                \
    _Generic((what), void *: owned_block, tn_module *: owned_module, tn_optim *: owned_optim,     \
             tn_scheduler *: owned_scheduler, tn_scaler *: owned_scaler, tn_loader *: owned_loader,\
             tn_text *: owned_text, tn_generator *: owned_generator, tn_capture *: owned_capture,  \
             char *: owned_block, unsigned char *: owned_block)                                    \
    (what)
/* clang-format on */
tn_module *owned_module(tn_module *m);
tn_optim *owned_optim(tn_optim *optimizer);
tn_scheduler *owned_scheduler(tn_scheduler *scheduler);
tn_scaler *owned_scaler(tn_scaler *scaler);
tn_loader *owned_loader(tn_loader *loader);
tn_text *owned_text(tn_text *text);
tn_generator *owned_generator(tn_generator *g);
tn_capture *owned_capture(tn_capture *c);
void *owned_block(void *block); /* of malloc() */
void free_at_end(void *what, void (*free)(void *what));

/* tn_set_allocator in a test with the fixture. It closes the fixture's scope first, since the
 * library refuses while memory is in use. Everything made in that scope is freed. */
tn_status test_set_allocator(const tn_allocator *allocator);

/* NULL when every element of actual is within atol + rtol |expected| of expected (NaN equals
 * NaN, an infinity only itself) and the shapes are equal; else what differs, in a static buffer. */
const char *difference(const tn_tensor *actual, const tn_tensor *expected, double rtol,
                       double atol);

/* Fails the test with the library's message unless status is TN_OK / the pointer is not NULL. */
#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        tn_status assert_status_ = (expr);                                                         \
        ck_assert_msg(assert_status_ == TN_OK, "%s: %s: %s", #expr,                                \
                      tn_status_name(assert_status_), tn_error());                                 \
    } while (0)
#define assert_made(expr)                                                                          \
    ck_assert_msg((expr) != NULL, "%s: %s: %s", #expr, tn_status_name(tn_error_status()),          \
                  tn_error())

/* Checks that the pending error has this status and contains this text; then clears it. */
#define assert_error(status, text)                                                                 \
    do {                                                                                           \
        ck_assert_msg(tn_error_status() == (status), "status is %s (%s), not %s",                  \
                      tn_status_name(tn_error_status()), tn_error(), tn_status_name(status));      \
        ck_assert_msg(strstr(tn_error(), (text)) != NULL, "\"%s\" lacks \"%s\"", tn_error(),       \
                      (text));                                                                     \
        tn_error_clear();                                                                          \
    } while (0)
/* expr is NULL, with that error. */
#define assert_null(expr, status, text)                                                            \
    do {                                                                                           \
        ck_assert_msg((expr) == NULL, "%s did not fail", #expr);                                   \
        assert_error(status, text);                                                                \
    } while (0)
/* expr returns that status, with that error. */
#define assert_fails(expr, status, text)                                                           \
    do {                                                                                           \
        tn_status assert_got_ = (expr);                                                            \
        ck_assert_msg(assert_got_ == (status), "%s returned %s (%s)", #expr,                       \
                      tn_status_name(assert_got_), tn_error());                                    \
        assert_error(status, text);                                                                \
    } while (0)

#define assert_close(actual, expected, rtol, atol)                                                 \
    do {                                                                                           \
        const char *assert_difference_ = difference((actual), (expected), (rtol), (atol));         \
        ck_assert_msg(!assert_difference_, "%s: %s", #actual, assert_difference_);                 \
    } while (0)
/* The elements of a tensor, row-major, against literals: assert_values(t, 1e-12, 0.5, 1.5). */
#define assert_values(actual, tolerance, ...)                                                      \
    do {                                                                                           \
        const double assert_values_[] = { __VA_ARGS__ };                                           \
        const char *assert_difference_ = values_difference(                                        \
            (actual), assert_values_, (int64_t)(sizeof assert_values_ / sizeof *assert_values_),   \
            (tolerance));                                                                          \
        ck_assert_msg(!assert_difference_, "%s: %s", #actual, assert_difference_);                 \
    } while (0)
const char *values_difference(const tn_tensor *actual, const double *expected, int64_t n,
                              double tolerance);

/* A f64 tensor with values in [low, high), from the tests' own generator: the same for the same
 * seed. */
tn_tensor *random_f64(tn_shape shape, double low, double high, uint64_t seed);
/* The same values in another floating dtype. */
tn_tensor *random_as(tn_shape shape, double low, double high, uint64_t seed, tn_dtype dtype);
/* A f64 tensor from literals; their number must match the shape. */
tn_tensor *from_f64(const double *values, tn_shape shape);

/* t, which a gradient is to be computed of. */
tn_tensor *with_grad(tn_tensor *t);

/* t's values in other memory layouts, as leaves without history. Values and shape are t's. */
tn_tensor *as_transposed(tn_tensor *t); /* axes in reverse order in memory */
tn_tensor *as_strided(tn_tensor *t);    /* every second element of a larger storage, offset 1 */

/* Of all threads of this process, since it began. */
double cpu_seconds(void);

/* The path of a file in tests/golden. Static buffer. */
const char *golden_path(const char *file);

#endif
