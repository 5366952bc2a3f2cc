/*
 * test_cuda_repeats.c - what is done again and again on the device. The same program gives the same
 * bits, ten times: both models of the examples, a model with dropout, every row of the op table
 * forward and backward. Over the shim blocks and threads run first to last, last to first, and
 * alternately; on every device other tensors move the memory.
 *
 * Thousands of training steps take no more memory than a few: neither on the device nor here, by
 * the counters of the tensors, the pool, the driver and the host allocator. The driver's free
 * memory is compared over the shim alone: a GPU's is shared with other processes, and what the pool
 * holds of it is in `reserved`.
 *
 * Seen to fail: in dropout.cu a factor that depends on the order in which threads come; in optim.cu
 * a new table at every step; in device.cu small blocks not counted when freed.
 */
#include "shim.h"
#include "models.h"
#include "ops/op_table.h"

enum { REPEATS = 10 };

/* For repeat i. A real GPU ignores the order. */
static void arrange(int i)
{
    static const char *const order[] = { "forward", "backward", "" };
    setenv("TN_CUDA_ORDER", order[i % 3], 1);
    assert_made(tn_full_as(TN_SHAPE(1 + 1001 * i), i, TN_F32, tn_cuda(0)));
}

static void assert_same(uint64_t (*run)(void))
{
    uint64_t bits = 0;
    for (int i = 0; i < REPEATS; i++) {
        arrange(i);
        tn_scope scope = tn_scope_begin();
        uint64_t now = run();
        tn_scope_end(scope);
        if (i == 0) bits = now;
        ck_assert_msg(now == bits, "repeat %d has other bits", i);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

static uint64_t train(tn_module *model, tn_tensor *x, tn_tensor *y, int steps)
{
    double loss = 0, norm = 0;
    assert_made(model);
    assert_ok(tn_module_to(model, tn_cuda(0)));
    x = tn_to(x, tn_cuda(0));
    y = tn_to(y, tn_cuda(0));
    tn_optim *optimizer = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 1e-2 });
    for (int i = 0; i < steps; i++) {
        loss = train_step(model, optimizer, x, y);
        norm = tn_clip_grad_norm(tn_parameters(model), 0.5, 2, true);
    }
    uint64_t bits[3] = { state_hash(model) };
    memcpy(&bits[1], &loss, sizeof loss);
    memcpy(&bits[2], &norm, sizeof norm);
    tn_optim_free(optimizer);
    tn_module_drop(model);
    return (bits[0] * 31 + bits[1]) * 31 + bits[2];
}

static uint64_t transformer_run(void)
{
    tn_manual_seed(4);
    tn_tensor *x, *y;
    random_text(2, &x, &y);
    return train(transformer_new(), x, y, 3);
}

static uint64_t cnn_run(void)
{
    tn_manual_seed(4);
    tn_tensor *x, *y;
    synthetic_images(0, TN_F32, &x, &y);
    return train(cnn_new(), tn_narrow(x, 0, 0, 2), tn_narrow(y, 0, 0, 2), 1);
}

static uint64_t dropout_run(void)
{
    tn_manual_seed(4);
    tn_module *m =
        tn_sequential(tn_embedding_new(11, 8, (tn_embedding_options){ 0 }),
                      tn_layer_norm_new(TN_SHAPE(8), (tn_layer_norm_options){ 0 }),
                      tn_dropout_new(0.2), tn_linear_new(8, 11, (tn_linear_options){ 0 }));
    return train(m, tn_randint(0, 11, TN_SHAPE(300)), tn_randint(0, 11, TN_SHAPE(300)), 5);
}

START_TEST(training)
{
    static uint64_t (*const run[])(void) = { transformer_run, cnn_run, dropout_run };
    assert_same(run[_i]);
}
END_TEST

/* ---- every op -------------------------------------------------------------------------------- */

static const op_row *row;

static uint64_t op_run(void)
{
    op_case c = op_load(row, row->flags & ROW_FIXED ? TN_F64 : TN_F32);
    tn_manual_seed(1);
    tn_tensor *x[OP_MAX_IN];
    for (int i = 0; i < c.n; i++) x[i] = op_leaf(tn_to(c.in[i], tn_cuda(0)), c.differentiable[i]);
    tn_tensor *y = row->build(x);
    ck_assert_msg(y != NULL, "%s: %s", row->name, tn_error());
    uint64_t bits = tn_hash(y);
    if (!tn_requires_grad(y)) return bits;
    assert_ok(tn_backward_from(y, c.seed ? tn_to(c.seed, tn_device_of(y)) : tn_ones_like(y), 0));
    for (int i = 0; i < c.n; i++) bits = bits * 31 + tn_hash(tn_grad(x[i]));
    tn_error_clear(); /* some have no gradient to hash */
    return bits;
}

START_TEST(ops)
{
    row = &op_rows[_i];
    assert_same(op_run);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* What must not grow. */
typedef struct held {
    int64_t tensors, host_bytes, host_asked, device_bytes, reserved, free;
    long long blocks;
} held;

static bool steered; /* by the shim, which runs kernels slowly */

static held held_now(void)
{
    tn_memory_stats here = tn_memory();
    tn_cuda_memory_stats there = tn_cuda_memory();
    return (held){ tn_live_tensors(),
                   here.in_use,
                   TEST_ASAN ? 0 : here.system_allocations,
                   there.in_use,
                   there.reserved,
                   steered ? there.free : 0,
                   steered ? host.blocks() : 0 };
}

static void assert_flat(int step, held now, held then)
{
    ck_assert_msg(
        memcmp(&now, &then, sizeof now) == 0,
        "step %d: %lld tensors, %lld bytes here after %lld requests; on the device %lld bytes in "
        "tensors, %lld held, %lld free, %lld blocks; before %lld, %lld, %lld; %lld, %lld, %lld, "
        "%lld",
        step, (long long)now.tensors, (long long)now.host_bytes, (long long)now.host_asked,
        (long long)now.device_bytes, (long long)now.reserved, (long long)now.free, now.blocks,
        (long long)then.tensors, (long long)then.host_bytes, (long long)then.host_asked,
        (long long)then.device_bytes, (long long)then.reserved, (long long)then.free, then.blocks);
}

/* A step on data made anew, as a program would: uploaded, with clipped gradients. */
static void step(tn_module *model, tn_optim *optimizer, bool text)
{
    tn_tensor *x, *y;
    tn_scope scope = tn_scope_begin();
    if (text)
        random_text(1, &x, &y);
    else
        x = tn_rand(TN_SHAPE(4, 8)), y = tn_randint(0, 4, TN_SHAPE(4));
    tn_tensor *out = tn_forward(model, tn_to(x, tn_cuda(0)));
    tn_tensor *loss = tn_cross_entropy(out, tn_to(y, tn_cuda(0)));
    assert_made(loss);
    assert_ok(tn_optim_zero_grad(optimizer));
    assert_ok(tn_backward(loss));
    ck_assert(!isnan(tn_clip_grad_norm(tn_parameters(model), 0.5, 2, true)));
    assert_ok(tn_optim_step(optimizer));
    tn_scope_end(scope);
}

static void soak(tn_module *model, bool text, int steps)
{
    enum { WARM = 20 };
    held then = { 0 };
    assert_made(model);
    assert_ok(tn_module_to(model, tn_cuda(0)));
    tn_optim *optimizer = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 1e-3 });
    for (int i = 0; i < steps; i++) {
        step(model, optimizer, text);
        if (i + 1 == WARM) {
            assert_ok(tn_cuda_synchronize());
            then = held_now();
        } else if ((i + 1) % (steps / 20) == 0 && i > WARM) {
            assert_ok(tn_cuda_synchronize());
            assert_flat(i + 1, held_now(), then);
        }
    }
    tn_optim_free(optimizer);
    tn_module_drop(model);
}

START_TEST(mlp)
{
    tn_manual_seed(2);
    soak(tn_sequential(tn_linear_new(8, 16, (tn_linear_options){ 0 }), tn_gelu_new(),
                       tn_dropout_new(0.2), tn_linear_new(16, 4, (tn_linear_options){ 0 })),
         false, TEST_ASAN ? 1000 : 10000);
}
END_TEST

START_TEST(transformer)
{
    tn_manual_seed(2);
    soak(transformer_new(), true, !steered ? 10000 : TEST_ASAN ? 40 : 300);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_repeats");
    op_read_golden();
    steered = shim();
    tcase_add_loop_test(test_case(suite, "training"), training, 0, 3);
    tcase_add_loop_test(test_case(suite, "ops"), ops, 0, n_op_rows);
    TCase *t = test_case(suite, "soak");
    tcase_add_test(t, mlp);
    tcase_add_test(t, transformer);
    return suite;
}
