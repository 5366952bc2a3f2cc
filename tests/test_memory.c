/*
 * test_memory.c - memory over time: nothing grows, no memory is requested from the system after
 * warm-up, and attention stays small.
 *
 * Seen to fail: tni_free (alloc.c) gave blocks of 4 KiB and more back to the system at once: both
 * stays_flat tests failed.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models.h"

/* ---- 200 steps ------------------------------------------------------------------------------- */

static bool cache_is_on(void)
{
    const char *wish = getenv("TN_CACHE");
    return wish ? wish[0] != '0' : !TEST_ASAN;
}

typedef void batch_maker(int step, tn_tensor **x, tn_tensor **y);

static void text_batch(int step, tn_tensor **x, tn_tensor **y)
{
    (void)step;
    random_text(4, x, y);
}

static void image_batch(int step, tn_tensor **x, tn_tensor **y)
{
    synthetic_images(step, TN_F32, x, y);
}

static void one_step(tn_module *model, tn_optim *optimizer, batch_maker *make, int step)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x;
    tn_tensor *y;
    make(step, &x, &y);
    train_step(model, optimizer, x, y);
    tn_scope_end(scope);
}

static void evaluate(tn_module *model, batch_maker *make)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x;
    tn_tensor *y;
    make(0, &x, &y);
    assert_ok(tn_eval(model));
    TN_NO_GRAD
    {
        assert_made(tn_cross_entropy(tn_forward(model, x), y));
    }
    assert_ok(tn_train(model, true));
    tn_scope_end(scope);
}

/* After three steps and one evaluation, 200 more leave live tensors, memory in use and the
 * number of calls to the system as they were. */
static void stays_flat(tn_module *model, batch_maker *make)
{
    assert_made(model);
    tn_optim *optimizer = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 1e-3 });
    assert_made(optimizer);
    for (int step = 0; step < 3; step++) one_step(model, optimizer, make, step);
    evaluate(model, make);
    one_step(model, optimizer, make, 3);
    int64_t live = tn_live_tensors();
    tn_memory_stats before = tn_memory();
    for (int step = 4; step < 204; step++) {
        one_step(model, optimizer, make, step);
        if (step % 50 == 0) evaluate(model, make);
        ck_assert_msg(tn_live_tensors() == live || step % 50 == 0, "step %d: %d tensors more", step,
                      (int)(tn_live_tensors() - live));
    }
    tn_memory_stats after = tn_memory();
    ck_assert_msg(after.in_use == before.in_use, "%d bytes more in use",
                  (int)(after.in_use - before.in_use));
    if (cache_is_on())
        ck_assert_msg(after.system_allocations == before.system_allocations,
                      "%d allocations from the system",
                      (int)(after.system_allocations - before.system_allocations));
    tn_optim_free(optimizer);
    tn_module_drop(model);
}

START_TEST(transformer_stays_flat)
{
    tn_manual_seed(1);
    stays_flat(transformer_new(), text_batch);
}
END_TEST

START_TEST(cnn_stays_flat)
{
    tn_manual_seed(1);
    stays_flat(cnn_new(), image_batch);
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------- */

/* Beyond what the caller sees (the inputs, y, its gradient, and the gradients of q, k and v),
 * forward and backward take less than 4 B T d floats: a T x T matrix alone would be 64 times as
 * much. */
START_TEST(attention_takes_little)
{
    const int64_t heads = 2;
    const int64_t length = 4096;
    const int64_t depth = 32;
    const int64_t one = heads * length * depth * (int64_t)sizeof(float); /* B T d floats */
    tn_tensor *x[3];
    for (uint64_t i = 0; i < 3; i++) {
        x[i] = random_as(TN_SHAPE(1, heads, length, depth), -1, 1, i, TN_F32);
        assert_ok(tn_set_requires_grad(x[i], true));
    }
    for (int causal = 0; causal <= 1; causal++) {
        tn_scope scope = tn_scope_begin();
        tn_memory_reset_peak();
        int64_t base = tn_memory().in_use;
        tn_tensor *y = tn_scaled_dot_product_attention(x[0], x[1], x[2], TN_NONE, causal, 0);
        assert_made(y);
        int64_t forward = tn_memory().peak_in_use - base - one;
        ck_assert_msg(forward < 4 * one, "forward takes %.2f B T d floats",
                      (double)forward / (double)one);
        tn_tensor *seed = tn_ones_like(y);
        tn_tensor *grads[3];
        assert_ok(tn_gradients(1, &y, &seed, 3, x, grads, 0));
        int64_t extra = tn_memory().peak_in_use - base - 5 * one;
        ck_assert_msg(extra < 4 * one, "%.2f B T d floats on top", (double)extra / (double)one);
        tn_scope_end(scope);
    }
}
END_TEST

/* ---- AddressSanitizer sees through the cache ------------------------------------------------- */

/* What a child that reads freed tensor memory prints to stderr. */
static void run_use_after_free(char *report, size_t size)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        tn_scope scope = tn_scope_begin();
        volatile const float *data = tn_data(tn_zeros(TN_SHAPE(1000)));
        tn_scope_end(scope);
        _exit(data[500] == 0 ? 0 : 1);
    }
    close(ends[1]);
    size_t used = 0;
    ssize_t got;
    while (used + 1 < size && ((got = read(ends[0], report + used, size - 1 - used)) > 0 ||
                               (got < 0 && errno == EINTR)))
        used += got > 0 ? (size_t)got : 0;
    report[used] = 0;
    close(ends[0]);
    waitpid(child, NULL, 0);
}

START_TEST(use_after_free_is_reported)
{
    if (!TEST_ASAN) {
        puts("use_after_free_is_reported: skipped: this is no AddressSanitizer build");
        return;
    }
    char report[4096];
    run_use_after_free(report, sizeof report);
    ck_assert_msg(strstr(report, "heap-use-after-free") != NULL, "no report: \"%s\"", report);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("memory");
    TCase *t = test_case(suite, "flat");
    tcase_add_test(t, transformer_stays_flat);
    tcase_add_test(t, cnn_stays_flat);
    tcase_add_test(test_case(suite, "attention"), attention_takes_little);
    tcase_add_test(test_case(suite, "sanitizer"), use_after_free_is_reported);
    return suite;
}
