/*
 * test_cuda.c - the CUDA backend as a device: its table, properties, memory, copies, threads, a
 * lost device. test_cuda_faults.c has the calls that fail.
 *
 * Seen to fail: a slot left out of module.cu; in device.cu an upload straight from the caller's
 * memory (the shim's host memory was not page-locked, then page-locked and late), no retry after
 * the pool was trimmed, the first message of a lost device overwritten, an error of others left for
 * a launch to find, a product without its lock (threads); tn_info, tn_cuda_synchronize,
 * tn_cuda_memory_trim, tn_cuda_memory_reset_peak and tn_set_tf32 as they were: each opened the
 * module of a program that asks for no GPU.
 */
#include <pthread.h>
#include <stddef.h>

#include "tensor/cuda_module.h"
#include "models.h"
#include "shim.h"
#include "tensor/internal.h"

/* ---- the table ------------------------------------------------------------------------------- */

static void assert_full(const tni_backend *backend)
{
    ck_assert_msg(backend != NULL, "%s", tn_error());
    for (size_t at = offsetof(tni_backend, alloc); at < sizeof *backend; at += sizeof(void *)) {
        void *slot;
        memcpy(&slot, (const char *)backend + at, sizeof slot);
        if (at == offsetof(tni_backend, synchronize) && !strcmp(backend->name, "cpu")) continue;
        if (at == offsetof(tni_backend, few_bytes) && strcmp(backend->name, "cpu")) continue;
        ck_assert_msg(slot != NULL, "%s: slot %zu is empty", backend->name,
                      (at - offsetof(tni_backend, alloc)) / sizeof slot);
    }
}

START_TEST(every_slot_is_filled)
{
    assert_full(tni_backend_for(tn_cpu()));
    assert_full(tni_backend_for(tn_cuda(0)));
}
END_TEST

START_TEST(another_build_is_refused)
{
    tni_cuda_open open;
    if (!module_function(TNI_CUDA_SYMBOL, &open)) return;
    char why[256];
    ck_assert(open(&(tni_host){ .fail = tni_error }, "0.0.0 other", why, sizeof why) == NULL);
    ck_assert_msg(strstr(why, "0.0.0 other") && strstr(why, TNI_BUILD_ID), "%s", why);
}
END_TEST

START_TEST(properties)
{
    tn_cuda_properties p;
    ck_assert_int_ge(tn_cuda_device_count(), 1);
    assert_ok(tn_cuda_get_properties(0, &p));
    ck_assert(p.name[0] && p.memory > 0 && p.major >= 8 && p.multiprocessors > 0);
    assert_fails(tn_cuda_get_properties(99, &p), TN_E_DEVICE, "device 99: want 0..");
    assert_fails(tn_cuda_get_properties(0, NULL), TN_E_INVALID, "properties");
    assert_null(tn_empty_as(TN_SHAPE(2), TN_F32, tn_cuda(99)), TN_E_DEVICE, "CUDA_VISIBLE_DEVICES");
    assert_null(tn_empty_as(TN_SHAPE(2), TN_F32, tn_cuda(-1)), TN_E_DEVICE, "device cuda:-1: want");
    assert_ok(tn_set_tf32(true));
    assert_ok(tn_set_tf32(false));
    assert_ok(tn_cuda_synchronize());
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(memory_is_counted)
{
    tn_cuda_memory_stats before = tn_cuda_memory();
    tn_scope scope = tn_scope_begin();
    assert_made(tn_empty_as(TN_SHAPE(1000), TN_F32, tn_cuda(0)));
    tn_cuda_memory_stats now = tn_cuda_memory();
    ck_assert_int_eq(now.in_use - before.in_use, 4000);
    ck_assert_int_eq(now.allocations - before.allocations, 1);
    assert_made(tn_empty_as(TN_SHAPE(0), TN_F32, tn_cuda(0)));
    ck_assert(now.total > 0 && now.free <= now.total && now.reserved >= now.in_use);
    tn_scope_end(scope);
    now = tn_cuda_memory();
    ck_assert_int_eq(now.in_use, before.in_use);
    ck_assert_int_ge(now.peak_in_use, before.in_use + 4000);
    tn_cuda_memory_reset_peak();
    tn_cuda_memory_trim();
    now = tn_cuda_memory();
    ck_assert_int_eq(now.peak_in_use, now.in_use);
}
END_TEST

START_TEST(out_of_memory_says_sizes)
{
    tn_tensor *small = tn_full_as(TN_SHAPE(10), 3, TN_F32, tn_cuda(0));
    assert_made(small);
    host.memory((size_t)1 << 20);
    assert_null(tn_empty_as(TN_SHAPE(1 << 20), TN_F32, tn_cuda(0)), TN_E_NOMEM,
                "want 4194304 bytes");
    assert_null(tn_empty_as(TN_SHAPE(1 << 20), TN_F32, tn_cuda(0)), TN_E_NOMEM,
                "of 1048576 are free");
    assert_null(tn_empty_as(TN_SHAPE((int64_t)1 << 50), TN_U8, tn_cuda(0)), TN_E_NOMEM,
                "want 1125899906842624 bytes");
    assert_values(tn_add_scalar(small, 1), 0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4);
    host.memory((size_t)1 << 30);
    assert_made(tn_empty_as(TN_SHAPE(1 << 20), TN_F32, tn_cuda(0)));
    host.fail_call(1); /* the pool is trimmed, and it is tried again */
    assert_made(tn_empty_as(TN_SHAPE(100), TN_F32, tn_cuda(0)));
}
END_TEST

/* ---- copies ---------------------------------------------------------------------------------- */

START_TEST(an_upload_reads_at_once)
{
    static const int64_t sizes[] = { 1, 255, 65536, 1 << 20, 5000001 };
    int64_t n = sizes[_i];
    tn_tensor *t = tn_empty_as(TN_SHAPE(n), TN_I32, tn_cuda(0));
    int32_t *v = malloc((size_t)n * sizeof *v), *back = malloc((size_t)n * sizeof *v);
    for (int round = 0; round < 3; round++) {
        for (int64_t i = 0; i < n; i++) v[i] = (int32_t)(i * 7 + round);
        assert_ok(tn_copy_in(t, v, (size_t)n * sizeof *v, TN_I32));
        memset(v, 0x55, (size_t)n * sizeof *v);
    }
    assert_ok(tn_copy_out(t, back, (size_t)n * sizeof *v, TN_I32));
    int64_t right = 0; /* five million assertions would take seconds */
    while (right < n && back[right] == (int32_t)(right * 7 + 2)) right++;
    ck_assert_int_eq(right, n);
    free(v);
    free(back);
}
END_TEST

/* Many small uploads, more than page-locked memory holds, before anybody waits. */
START_TEST(many_small_uploads)
{
    enum { N = 3000 };
    tn_tensor *t[8];
    float v[1024];
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 1024; k++) v[k] = (float)(i + k);
        if (i < 8) t[i] = tn_empty_as(TN_SHAPE(1024), TN_F32, tn_cuda(0));
        assert_ok(tn_copy_in(t[i % 8], v, sizeof v, TN_F32));
    }
    for (int i = N - 8; i < N; i++)
        for (int64_t k = 0; k < 1024; k += 341)
            ck_assert_double_eq(tn_at(t[i % 8], &k, 1), (double)(i + k));
}
END_TEST

START_TEST(values_read_as_on_the_cpu)
{
    tn_tensor *x = random_as(TN_SHAPE(5, 7), -2, 2, 4, TN_F32);
    tn_tensor *y = tn_to(x, tn_cuda(0));
    char a[2048], b[2048];
    ck_assert(tn_hash(x) == tn_hash(y));
    ck_assert(tn_hash(tn_transpose(x, 0, 1)) == tn_hash(tn_transpose(y, 0, 1)));
    ck_assert_double_eq(tn_at(x, TN_INDEX(3, 4)), tn_at(y, TN_INDEX(3, 4)));
    ck_assert(tn_max_abs_diff(tn_to(tn_transpose(y, 0, 1), tn_cpu()), tn_transpose(x, 0, 1)) == 0);
    ck_assert(tn_format(x, a, sizeof a) > 0 && tn_format(y, b, sizeof b) > 0);
    ck_assert(strncmp(a, b, strlen(a)) == 0 && strstr(b, "cuda"));
    assert_null((void *)(uintptr_t)tn_data(y), TN_E_DEVICE, "on a GPU");
    assert_null(tn_add(x, y), TN_E_DEVICE, "tn_add");
}
END_TEST

static void *compute(void *user)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_full_as(TN_SHAPE(33, 33), 1, TN_F32, tn_cuda(0));
    double *sum = user;
    for (int i = 0; i < 50; i++) {
        tn_scope step = tn_scope_begin();
        tn_tensor *y = tn_add_scalar(tn_matmul(x, x), i);
        *sum += tn_item(tn_sum(y, NULL, 0, false));
        tn_scope_end(step);
    }
    tn_scope_end(scope);
    return NULL;
}

START_TEST(threads)
{
    pthread_t thread[4];
    double sum[4] = { 0 };
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, compute, &sum[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++) ck_assert_double_eq(sum[i], 33. * 33 * (33 * 50 + 49 * 25));
}
END_TEST

static void *compute_beside(void *user)
{
    host.other_device(); /* a thread of the program that uses another GPU by itself */
    return compute(user);
}

START_TEST(a_thread_of_another_device)
{
    pthread_t thread;
    double sum = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, compute_beside, &sum), 0);
    pthread_join(thread, NULL);
    ck_assert_msg(sum == 33. * 33 * (33 * 50 + 49 * 25), "%s", tn_error());
}
END_TEST

/* ---- errors of the runtime ------------------------------------------------------------------- */

/* A launch reports failure only by the last error, which another library's call may have set. */
START_TEST(an_error_of_others)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(3), 1, TN_F32, tn_cuda(0));
    assert_made(x);
    host.stale();
    assert_values(tn_add_scalar(x, 1), 0, 2, 2, 2);
    host.stale();
    assert_values(tn_matmul(tn_reshape(x, TN_SHAPE(1, 3)), tn_reshape(x, TN_SHAPE(3, 1))), 0, 3);
}
END_TEST

static const struct {
    int error;
    bool lost; /* for good: by driver_types.h, or with the context */
    const char *says;
} errors[] = {
    { 3, false, "fork" },
    { 46, false, "(error 46)" },
    { 209, false, "this build is for sm_80" },
    { 222, false, "gpu_archs" },
    { 801, false, "(error 801)" },
    { 214, true, "(error 214)" },
    { 220, true, "(error 220)" },
    { 226, true, "(error 226)" },
    { 700, true, "(error 700)" },
    { 702, true, "(error 702)" },
    { 709, true, "(error 709)" },
    { 710, true, "(error 710)" },
    { 714, true, "(error 714)" },
    { 715, true, "(error 715)" },
    { 716, true, "(error 716)" },
    { 717, true, "(error 717)" },
    { 718, true, "(error 718)" },
    { 719, true, "(error 719)" },
    { 721, true, "(error 721)" },
    { 810, true, "(error 810)" },
    { 911, true, "(error 911)" },
};

START_TEST(errors_that_stay)
{
    assert_made(tn_full_as(TN_SHAPE(3), 1, TN_F32, tn_cuda(0)));
    host.fail_with(1, errors[_i].error);
    ck_assert(tn_empty_as(TN_SHAPE(3), TN_F32, tn_cuda(0)) == NULL);
    ck_assert_msg(strstr(tn_error(), "cudaMallocAsync: ") && strstr(tn_error(), errors[_i].says),
                  "%s", tn_error());
    tn_error_clear();
    if (errors[_i].lost) {
        assert_null(tn_full_as(TN_SHAPE(3), 1, TN_F32, tn_cuda(0)), TN_E_BACKEND,
                    "the device is lost since cudaMallocAsync");
    } else {
        assert_values(tn_full_as(TN_SHAPE(3), 1, TN_F32, tn_cuda(0)), 0, 1, 1, 1);
    }
}
END_TEST

/* ---- a lost device --------------------------------------------------------------------------- */

/* Last: the process is lost for the device. */
START_TEST(a_lost_device_stays_lost)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(3), 1, TN_F32, tn_cuda(0));
    assert_made(x);
    host.fault("kernel burnt, block (0,0,0)");
    assert_fails(tn_cuda_synchronize(), TN_E_BACKEND, "kernel burnt");
    host.fault("something else");
    assert_null(tn_add(x, x), TN_E_BACKEND, "kernel burnt");
    ck_assert(isnan(tn_item(tn_select(x, 0, 0))));
    assert_error(TN_E_BACKEND, "kernel burnt");
    assert_null(tn_full_as(TN_SHAPE(3), 1, TN_F32, tn_cuda(0)), TN_E_BACKEND, "kernel burnt");
    assert_values(tn_add_scalar(tn_ones(TN_SHAPE(2)), 1), 0, 2, 2); /* the CPU still works */
}
END_TEST

/* ---- a program that asks for no GPU ---------------------------------------------------------- */

/* It computes on the CPU, and does not open the CUDA module: with it come CUDA's libraries, 150 MiB
 * and more. TN_CUDA_SHIM names the module, and not TN_CUDA_MODULE, which main.c would open. One
 * test: what is opened stays. */
static bool opened(void)
{
    void *module = dlopen(getenv("TN_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    if (module) dlclose(module);
    return module != NULL;
}

static void closed_after(const char *what)
{
    ck_assert_msg(!opened(), "%s opened CUDA", what);
}

static void train_on_the_cpu(void)
{
    tn_tensor *x, *y;
    tn_module *model = transformer_new();
    tn_optim *optimizer = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 1e-3 });
    random_text(2, &x, &y);
    assert_ok(tn_module_to(model, tn_cpu()));
    train_step(model, optimizer, tn_to(x, tn_cpu()), y);
    ck_assert(!isnan(tn_clip_grad_norm(tn_parameters(model), 0.5, 2, true)));
    assert_ok(tn_optim_step(optimizer));
    tn_optim_free(optimizer);
    tn_module_drop(model);
}

/* 1 + 2^-12 times itself, which TF32 takes for 1. */
static double squared_on_the_gpu(void)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(64, 64), 1 + 0x1p-12, TN_F32, tn_cuda(0));
    return tn_at(tn_matmul(x, x), TN_INDEX(0, 0)) / 64;
}

START_TEST(the_cpu_alone)
{
    ck_assert(getenv("TN_CUDA_SHIM") != NULL);
    setenv("TN_CUDA_MODULE", getenv("TN_CUDA_SHIM"), 1);
    train_on_the_cpu();
    closed_after("training");
    ck_assert(strstr(tn_info(), "CUDA: not asked for") != NULL);
    closed_after("tn_info");
    assert_ok(tn_cuda_synchronize());
    closed_after("tn_cuda_synchronize");
    tn_cuda_memory_trim();
    closed_after("tn_cuda_memory_trim");
    tn_cuda_memory_reset_peak();
    closed_after("tn_cuda_memory_reset_peak");
    ck_assert(!tn_tf32());
    closed_after("tn_tf32");
    assert_ok(tn_set_tf32(false));
    assert_ok(tn_set_tf32(true));
    closed_after("tn_set_tf32");

    ck_assert(tn_tf32()); /* which is false without a device */
    ck_assert(opened());
    ck_assert_msg(strstr(tn_info(), "CUDA: available") != NULL, "%s", tn_info());
    ck_assert_double_eq(squared_on_the_gpu(), 1);
    assert_ok(tn_set_tf32(false));
    ck_assert_double_gt(squared_on_the_gpu(), 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda");
    if (getenv("TN_CUDA_SHIM")) {
        tcase_add_test(test_case(suite, "unasked"), the_cpu_alone);
        return suite;
    }
    bool steered =
        shim_for("out_of_memory_says_sizes, a_thread_of_another_device, an_error_of_others, "
                 "errors_that_stay, a_lost_device_stays_lost");
    TCase *t = test_case(suite, "device");
    add_tests(t, every_slot_is_filled, another_build_is_refused, properties);
    t = test_case(suite, "memory");
    tcase_add_test(t, memory_is_counted);
    if (steered) tcase_add_test(t, out_of_memory_says_sizes);
    t = test_case(suite, "copies");
    tcase_add_loop_test(t, an_upload_reads_at_once, 0, 5);
    add_tests(t, many_small_uploads, values_read_as_on_the_cpu, threads);
    if (!steered) return suite;
    tcase_add_test(t, a_thread_of_another_device);
    t = test_case(suite, "errors");
    tcase_add_test(t, an_error_of_others);
    tcase_add_loop_test(t, errors_that_stay, 0, (int)(sizeof errors / sizeof *errors));
    tcase_add_test(test_case(suite, "lost"), a_lost_device_stays_lost);
    return suite;
}
