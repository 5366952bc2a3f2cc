/*
 * test_cuda_unasked.c - a program that computes on the CPU and never asks for a GPU does not open
 * the CUDA module: with it come CUDA's libraries, 150 MiB and more.
 *
 * TN_CUDA_SHIM names the module, and not TN_CUDA_MODULE, which main.c would open. One test: what
 * is opened stays.
 *
 * Seen to fail: tn_info as it was, which opened it. (So did tn_cuda_synchronize,
 * tn_cuda_memory_trim, tn_cuda_memory_reset_peak and tn_set_tf32.)
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "models.h"

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
    Suite *suite = suite_create("cuda_unasked");
    tcase_add_test(test_case(suite, "unasked"), the_cpu_alone);
    return suite;
}
