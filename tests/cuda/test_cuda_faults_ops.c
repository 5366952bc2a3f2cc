/*
 * test_cuda_faults_ops.c - every row of the op table, and rows large enough for the kernels' other
 * paths, forward and backward on the device, with each of their calls failing in turn, and with the
 * device breaking at some of them.
 *
 * Seen to fail: in softmax.cu a launch whose status is ignored; in index_add.cu and gemm.cu
 * borrowed memory not given back after a failure.
 */
#include "faults.h"
#include "shim.h"
#include "ops/op_table.h"

/* ---- rows too large for the kernels that serve the op table's -------------------------------- */

typedef struct large_row {
    const char *name;
    int64_t size[4][5]; /* of each input; 0: no more */
    int64_t ids;        /* above 0: the last input holds ids below it */
    tn_tensor *(*build)(tn_tensor **x);
    bool bf16; /* else f32 */
} large_row;

#define BUILD(name, ...)                                                                           \
    static tn_tensor *name(tn_tensor **x)                                                          \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
BUILD(large_softmax, tn_softmax(x[0], 1))
BUILD(large_cross_entropy, tn_cross_entropy(x[0], x[1]))
BUILD(large_layer_norm, tn_layer_norm(x[0], 1, x[1], x[2], 1e-5))
BUILD(large_group_norm, tn_group_norm(x[0], 2, x[1], x[2], 1e-5))
BUILD(large_batch_norm, tn_batch_norm(x[0], x[1], x[2], TN_NONE, TN_NONE, true, 0.1, 1e-5))
BUILD(large_conv2d, tn_conv2d(x[0], x[1], x[2], (tn_conv2d_spec){ 0 }))
BUILD(large_sum, tn_sum(x[0], NULL, 0, false))
BUILD(large_columns, tn_sum(x[0], (int[]){ 0 }, 1, false))
BUILD(large_cumsum, tn_cumsum(x[0], 1))
BUILD(large_gather, tn_gather(x[0], 0, x[1]))
BUILD(large_embedding, tn_embedding(x[0], x[1], -1))
BUILD(attention, tn_scaled_dot_product_attention(x[0], x[1], x[2], TN_NONE, true, 0))
BUILD(strided_product, tn_matmul(tn_slice(x[0], 1, 0, 40, 2), tn_slice(x[1], 1, 0, 40, 2)))

static const large_row large_rows[] = {
    { "softmax", { { 3, 3000 } }, 0, large_softmax, false },
    { "cross_entropy", { { 3, 3000 }, { 3 } }, 3000, large_cross_entropy, false },
    { "layer_norm", { { 3, 1500 }, { 1500 }, { 1500 } }, 0, large_layer_norm, false },
    { "layer_norm of many", { { 700, 20 }, { 20 }, { 20 } }, 0, large_layer_norm, false },
    { "group_norm", { { 3, 4, 100 }, { 4 }, { 4 } }, 0, large_group_norm, false },
    { "batch_norm", { { 3, 1, 100, 100 }, { 1 }, { 1 } }, 0, large_batch_norm, false },
    { "conv2d", { { 2, 3, 40, 40 }, { 4, 3, 3, 3 }, { 4 } }, 0, large_conv2d, false },
    { "conv2d of 1x1", { { 2, 3, 9, 9 }, { 4, 3, 1, 1 }, { 4 } }, 0, large_conv2d, false },
    { "sum", { { 40000 } }, 0, large_sum, false },
    { "sum of columns", { { 700, 50 } }, 0, large_columns, false },
    { "cumsum", { { 3, 5000 } }, 0, large_cumsum, false },
    { "gather", { { 9, 3 }, { 200, 3 } }, 9, large_gather, false },
    { "embedding", { { 9, 3 }, { 200 } }, 9, large_embedding, false },
    { "conv2d, bf16", { { 2, 3, 12, 12 }, { 4, 3, 3, 3 }, { 4 } }, 0, large_conv2d, true },
    { "attention, bf16", { { 2, 9, 16 }, { 2, 9, 16 }, { 2, 9, 16 } }, 0, attention, true },
    { "attention, 128 wide", { { 1, 9, 128 }, { 1, 9, 128 }, { 1, 9, 128 } }, 0, attention, true },
    { "attention, 160 wide", { { 1, 9, 160 }, { 1, 9, 160 }, { 1, 9, 160 } }, 0, attention, true },
    { "softmax, bf16", { { 3, 30 } }, 0, large_softmax, true },
    { "cross_entropy, bf16", { { 3, 30 }, { 3 } }, 30, large_cross_entropy, true },
    { "layer_norm, bf16", { { 3, 15 }, { 15 }, { 15 } }, 0, large_layer_norm, true },
    { "batch_norm, bf16", { { 3, 2, 10 }, { 2 }, { 2 } }, 0, large_batch_norm, true },
    { "embedding, bf16", { { 9, 3 }, { 20 } }, 9, large_embedding, true },
    { "matmul, strided", { { 20, 40 }, { 20, 40 } }, 0, strided_product, false },
};
enum { LARGE_ROWS = sizeof large_rows / sizeof *large_rows };

static tn_shape shape_of(const int64_t *size)
{
    tn_shape shape = { 0 };
    while (size[shape.rank]) {
        shape.size[shape.rank] = size[shape.rank];
        shape.rank++;
    }
    return shape;
}

/* ---- the scenario ---------------------------------------------------------------------------- */

/* The function called, its inputs on the device, the hash of its results. */
static tn_tensor *(*build)(tn_tensor **x);
static op_case given;
static uint64_t result;

static void to_gpu(tn_tensor **t)
{
    if (*t) assert_made(*t = tn_to(*t, tn_cuda(0)));
}

static const char *load(int i)
{
    const op_row *row = &op_rows[i];
    build = row->build;
    given = op_load(row, row->flags & ROW_FIXED ? TN_F64 : TN_F32);
    for (int k = 0; k < given.n; k++) to_gpu(&given.in[k]);
    to_gpu(&given.seed);
    return row->name;
}

static const char *load_large(int i)
{
    const large_row *row = &large_rows[i];
    build = row->build;
    given = (op_case){ 0 };
    for (; given.n < 4 && row->size[given.n][0]; given.n++) {
        int k = given.n;
        bool ids = row->ids && (k == 3 || !row->size[k + 1][0]);
        tn_shape shape = shape_of(row->size[k]);
        given.in[k] = ids ? tn_randint(0, row->ids, shape)
                          : random_as(shape, -1, 1, 7, row->bf16 ? TN_BF16 : TN_F32);
        given.differentiable[k] = !ids;
        to_gpu(&given.in[k]);
    }
    return row->name;
}

static bool make(void)
{
    result = 0;
    return true;
}

static tn_status add(uint64_t *hash, tn_tensor *t)
{
    uint64_t h = tn_hash(t);
    *hash = *hash * 31 + h;
    return h ? TN_OK : tn_error_status();
}

static tn_status forward_and_backward(void)
{
    uint64_t hash = 0;
    tn_manual_seed(1);
    tn_tensor *x[OP_MAX_IN];
    for (int i = 0; i < given.n; i++) {
        if (!(x[i] = tn_detach(given.in[i]))) return tn_error_status();
        if (given.differentiable[i] && tn_set_requires_grad(x[i], true) != TN_OK)
            return tn_error_status();
    }
    tn_tensor *y = build(x);
    if (!y) return tn_error_status();
    tn_status status = add(&hash, y);
    if (status == TN_OK && tn_requires_grad(y)) {
        tn_tensor *seed = given.seed ? tn_to(given.seed, tn_device_of(y)) : tn_ones_like(y);
        if (!seed) return tn_error_status();
        status = tn_backward_from(y, seed, 0);
        for (int i = 0; i < given.n && status == TN_OK; i++)
            if (!tn_is_none(tn_grad(x[i]))) status = add(&hash, tn_grad(x[i]));
    }
    if (status == TN_OK) result = hash;
    return status;
}

static uint64_t state(void)
{
    return result;
}

static void drop(void) {}

static scenario loaded(const char *name)
{
    return (scenario){ name, make, forward_and_backward, state, drop, true };
}

START_TEST(a_call_fails)
{
    scenario s = loaded(load(_i));
    sweep_failures(&s);
}
END_TEST

START_TEST(a_call_of_a_large_row_fails)
{
    scenario s = loaded(load_large(_i));
    sweep_failures(&s);
}
END_TEST

START_TEST(the_device_breaks)
{
    scenario s = loaded(load(_i));
    warm_up(&s);
    sweep_breaks(&s, 1 + _i % 8, 8);
}
END_TEST

START_TEST(the_device_breaks_in_a_large_row)
{
    scenario s = loaded(load_large(_i));
    warm_up(&s);
    sweep_breaks(&s, 1 + _i % 3, 3);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_faults_ops");
    tn_set_num_threads(1); /* children are forked after ops have run here */
    if (!shim_for("cuda_faults_ops")) return suite;
    op_read_golden();
    tcase_add_loop_test(test_case(suite, "fails"), a_call_fails, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "breaks"), the_device_breaks, 0, n_op_rows);
    TCase *t = test_case(suite, "large");
    tcase_add_loop_test(t, a_call_of_a_large_row_fails, 0, LARGE_ROWS);
    tcase_add_loop_test(t, the_device_breaks_in_a_large_row, 0, LARGE_ROWS);
    return suite;
}
