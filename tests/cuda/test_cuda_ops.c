/*
 * test_cuda_ops.c - every row of the op table on the CUDA device, through the public API, against
 * the CPU: results, first and second gradients, in f64 and f32, and with inputs of any layout. And
 * in a captured step: a run with other inputs than the capture's gives the bits of a call, forward
 * and gradients; rows that cannot be captured say so.
 *
 * Seen to fail: the minus of sub (formulas.h compiled into the module alone); in arena.h, blocks
 * given out again while they are used (471 rows).
 */
#include "ops/op_table.h"

#define row_assert(row, condition, ...)                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char row_text[1024];                                                                   \
            snprintf(row_text, sizeof row_text, __VA_ARGS__);                                      \
            ck_abort_msg("%s: %s", (row)->name, row_text);                                         \
        }                                                                                          \
    } while (0)

/* The same numbers on both devices. */
static const double relative[] = { 1e-5, 1e-10 };
static const double absolute[] = { 1e-5, 1e-12 };

static void row_close(const op_row *row, const char *what, int i, tn_tensor *gpu, tn_tensor *cpu,
                      bool f64)
{
    double loose = row->flags & ROW_LOOSE ? 100 : 1;
    bool single = !f64 || tn_dtype_of(cpu) == TN_F32;
    const char *text = difference(gpu, cpu, loose * relative[!single], loose * absolute[!single]);
    row_assert(row, !text, "%s %d: %s", what, i, text);
    row_assert(row, tn_dtype_of(gpu) == tn_dtype_of(cpu), "%s %d is %s, not %s", what, i,
               tn_dtype_name(tn_dtype_of(gpu)), tn_dtype_name(tn_dtype_of(cpu)));
}

/* One application: leaves on a device, the result, first gradients and one second one. */
typedef struct applied {
    tn_tensor *x[OP_MAX_IN];
    tn_tensor *y, *grad[OP_MAX_IN], *second;
} applied;

typedef tn_tensor *(*layout)(tn_tensor *t);

static applied apply(const op_row *row, const op_case *c, tn_device device, layout how, bool second)
{
    applied a = { 0 };
    if (row->flags & ROW_ONCE) second = false;
    for (int i = 0; i < c->n; i++) {
        tn_tensor *x = tn_to(c->in[i], device);
        assert_made(x);
        if (how) x = how(x);
        assert_made(x);
        a.x[i] = op_leaf(x, c->differentiable[i]);
    }
    a.y = row->build(a.x);
    row_assert(row, a.y != NULL, "failed: %s", tn_error());
    row_assert(row, tn_device_of(a.y).type == device.type || strcmp(row->op, "to") == 0,
               "the result is on another device");
    if (!tn_requires_grad(a.y)) return a;
    bool fits = c->seed && tn_numel(c->seed) == tn_numel(a.y); /* sizes may depend on values */
    tn_tensor *seed = fits ? tn_to(c->seed, tn_device_of(a.y)) : tn_ones_like(a.y);
    if (second) seed = op_leaf(seed, true);
    for (int i = 0; i < c->n; i++) {
        if (!tn_requires_grad(a.x[i])) continue;
        int flags = TN_RETAIN_GRAPH | (second ? TN_CREATE_GRAPH : 0);
        tn_status status = tn_gradients(1, &a.y, &seed, 1, &a.x[i], &a.grad[i], flags);
        row_assert(row, status == TN_OK, "gradient of input %d: %s", i, tn_error());
        if (tn_is_none(a.grad[i])) a.grad[i] = NULL;
        if (!second || a.second || !a.grad[i] || !tn_requires_grad(a.grad[i])) continue;
        tn_tensor *g = tn_detach(tn_cos(a.grad[i])); /* a cotangent that is not all ones */
        status = tn_gradients(1, &a.grad[i], &g, 1, &seed, &a.second, 0);
        row_assert(row, status == TN_OK, "second gradient of input %d: %s", i, tn_error());
        if (tn_is_none(a.second)) a.second = NULL;
    }
    return a;
}

static void compare(const op_row *row, const applied *gpu, const applied *cpu, int n, bool f64)
{
    row_close(row, "result", 0, gpu->y, cpu->y, f64);
    for (int i = 0; i < n; i++) {
        row_assert(row, !gpu->grad[i] == !cpu->grad[i], "gradient %d is there once", i);
        if (cpu->grad[i]) row_close(row, "gradient", i, gpu->grad[i], cpu->grad[i], f64);
    }
    row_assert(row, !gpu->second == !cpu->second, "the second gradient is there once");
    if (cpu->second) row_close(row, "second gradient", 0, gpu->second, cpu->second, f64);
}

static void check(const op_row *row, tn_dtype dtype)
{
    bool second = dtype == TN_F64;
    op_case c = op_load(row, dtype);
    applied cpu = apply(row, &c, tn_cpu(), NULL, second);
    applied gpu = apply(row, &c, tn_cuda(0), NULL, second);
    compare(row, &gpu, &cpu, c.n, dtype == TN_F64);
}

START_TEST(f64)
{
    check(&op_rows[_i], TN_F64);
}
END_TEST

START_TEST(f32)
{
    if (op_rows[_i].flags & ROW_FIXED) return;
    check(&op_rows[_i], TN_F32);
}
END_TEST

/* t with its first axis of more than one element made of copies of the first: of stride 0. */
static tn_tensor *as_expanded(tn_tensor *t)
{
    tn_shape shape = tn_shape_get(t);
    for (int axis = 0; axis < shape.rank; axis++)
        if (shape.size[axis] > 1) return tn_expand(tn_narrow(t, axis, 0, 1), shape);
    return t;
}

START_TEST(any_layout)
{
    static const layout layouts[] = { as_transposed, as_strided, as_expanded };
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64);
    for (int k = 0; k < 3; k++) {
        applied cpu = apply(row, &c, tn_cpu(), layouts[k], false);
        applied gpu = apply(row, &c, tn_cuda(0), layouts[k], false);
        compare(row, &gpu, &cpu, c.n, true);
    }
}
END_TEST

/* ---- captured steps -------------------------------------------------------------------------- */

/* What the step leaves: its last capture's tensors, which every run fills. */
typedef struct job {
    const op_row *row;
    const op_case *c;
    tn_tensor *made[1 + OP_MAX_IN];
} job;

static void put(job *j, int i, tn_tensor *t)
{
    tn_drop(j->made[i]);
    j->made[i] = t ? tn_keep(tn_detach(t)) : NULL;
}

static tn_tensor *step(int n, tn_tensor *const *in, void *user)
{
    job *j = user;
    tn_tensor *x[OP_MAX_IN];
    for (int i = 0; i < n; i++) x[i] = op_leaf(in[i], j->c->differentiable[i]);
    tn_tensor *y = j->row->build(x);
    if (!y) return NULL;
    put(j, 0, y);
    tn_tensor *grad;
    for (int i = 0; i < n && tn_requires_grad(y); i++) {
        put(j, 1 + i, NULL);
        if (!tn_requires_grad(x[i])) continue;
        tn_tensor *seed = tn_mul_scalar(tn_ones_like(y), 1 + i);
        if (tn_gradients(1, &y, &seed, 1, &x[i], &grad, TN_RETAIN_GRAPH) != TN_OK) return NULL;
        if (!tn_is_none(grad)) put(j, 1 + i, grad);
    }
    return TN_NONE;
}

static uint64_t bits_of(const job *j)
{
    uint64_t hash = 1;
    for (int i = 0; i < 1 + OP_MAX_IN; i++)
        hash = hash * 31 + (j->made[i] ? tn_hash(j->made[i]) : 3);
    return hash;
}

/* The same values in another order, so the op is still defined on them. */
static void other_inputs(const op_case *c, tn_tensor **in)
{
    for (int i = 0; i < c->n; i++) {
        in[i] = tn_to(c->in[i], tn_cuda(0));
        for (int d = 0; d < tn_rank(in[i]); d++) in[i] = tn_flip(in[i], &d, 1);
        assert_made(in[i]);
    }
}

/* One copies between devices, others read values on the host: how large the result is, bounds, and
 * whether there are bad ones. */
static bool needs_the_host(const op_row *row)
{
    static const char *const ops[] = { "to",       "unique",      "nonzero", "masked_select",
                                       "bincount", "multinomial", "ctc_loss" };
    static const char *const rows[] = { "one_hot_largest" };
    bool needs = false;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) needs |= strcmp(row->op, ops[i]) == 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        needs |= strcmp(row->name, rows[i]) == 0;
    return needs;
}

static void check_captured(const op_row *row, tn_dtype dtype)
{
    if (row->flags & ROW_NO_GOLDEN && strstr(row->name, "dropout"))
        return; /* seeds the generator */
    op_case c = op_load(row, dtype);
    job called = { row, &c, { NULL } }, captured = { row, &c, { NULL } };
    tn_capture *capture = tn_capture_new(step, &captured, tn_cuda(0));
    tn_manual_seed(4);
    ck_assert_msg(tn_capture_run(capture, c.n, c.in) != NULL, "%s: %s", row->name, tn_error());
    bool runs = tn_capture_run(capture, c.n, c.in) != NULL;
    ck_assert_msg(runs != needs_the_host(row), "%s (tn_%s): %s", row->name, row->op, tn_error());
    if (!runs) ck_assert_msg(tn_error_status() == TN_E_STATE, "%s: %s", row->name, tn_error());
    tn_error_clear();
    tn_tensor *in[OP_MAX_IN];
    other_inputs(&c, in);
    for (int again = 0; again < 2 && runs; again++) {
        tn_manual_seed(9);
        ck_assert_msg(tn_capture_run(capture, c.n, in) != NULL, "%s: %s", row->name, tn_error());
        tn_manual_seed(9);
        ck_assert_msg(step(c.n, in, &called) != NULL, "%s: %s", row->name, tn_error());
        ck_assert_msg(bits_of(&captured) == bits_of(&called), "%s: other bits than a call",
                      row->name);
    }
    tn_capture_free(capture);
    for (int i = 0; i < 1 + OP_MAX_IN; i++) tn_drop(called.made[i]), tn_drop(captured.made[i]);
}

START_TEST(captured)
{
    check_captured(&op_rows[_i], op_rows[_i].flags & ROW_FIXED ? TN_F64 : TN_F32);
}
END_TEST

Suite *test_suite(void)
{
    op_read_golden();
    Suite *suite = suite_create("cuda_ops");
    tcase_add_loop_test(test_case(suite, "f64"), f64, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "f32"), f32, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "layout"), any_layout, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "captured"), captured, 0, n_op_rows);
    return suite;
}
