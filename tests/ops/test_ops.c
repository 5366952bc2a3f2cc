/*
 * test_ops.c - what every row of the op table must do: PyTorch's numbers in f64 and f32, gradients
 * against finite differences, any memory layout, no hidden copy, poison, fused against composed
 * gradients; and every refusal of op_refusals.def.
 *
 * Seen to fail: the gradient of sub without its minus (ops/binary.c, dx[1] = dy): 138 tests failed;
 * a function in ops.h that has no row; delta detached in ops/attention.c, composed_backward; every
 * row of attention with ROW_KINK (every_op_has_a_second_derivative); mish_slope without its clamp,
 * and hardswish_grad with 0 at NaN, in ops/functions.def (fused_and_composed_at_special_values).
 */
#include "files.h"
#include "ops/op_table.h"
#include "ops/ops.h"

/* Why a comparison failed, with the row's name in front. */
#define row_assert(row, condition, ...)                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char row_text[1024];                                                                   \
            snprintf(row_text, sizeof row_text, __VA_ARGS__);                                      \
            ck_abort_msg("%s: %s", (row)->name, row_text);                                         \
        }                                                                                          \
    } while (0)
#define row_close(row, what, actual, expected, rtol, atol)                                         \
    do {                                                                                           \
        const char *row_difference = difference((actual), (expected), (rtol), (atol));             \
        row_assert(row, !row_difference, "%s: %s", (what), row_difference);                        \
    } while (0)

enum { ALL_INPUTS = (1 << OP_MAX_IN) - 1 };

/* One application: leaves (those of subset that can, require grad), the result, and gradients. */
typedef struct applied {
    tn_tensor *x[OP_MAX_IN];
    tn_tensor *y;
    tn_tensor *grad[OP_MAX_IN]; /* NULL where none was asked for */
} applied;

static applied apply(const op_row *row, const op_case *c, unsigned subset)
{
    applied a = { 0 };
    for (int i = 0; i < c->n; i++)
        a.x[i] = op_leaf(c->in[i], c->differentiable[i] && (subset >> i & 1));
    a.y = row->build(a.x);
    row_assert(row, a.y != NULL, "failed: %s", tn_error());
    return a;
}

/* The gradient that enters at y: the case's own, or ones where it has none or, by other values, y
 * has another size. */
static tn_tensor *seed_of(const op_case *c, const applied *a)
{
    bool fits = c->seed && tn_numel(c->seed) == tn_numel(a->y);
    return fits ? c->seed : tn_ones_like(a->y);
}

static void differentiate(const op_row *row, const op_case *c, applied *a, tn_tensor *seed,
                          int flags)
{
    for (int i = 0; i < c->n; i++) {
        if (!tn_requires_grad(a->x[i])) continue;
        tn_status status =
            tn_gradients(1, &a->y, &seed, 1, &a->x[i], &a->grad[i], flags | TN_RETAIN_GRAPH);
        row_assert(row, status == TN_OK, "gradient of input %d: %s", i, tn_error());
        if (tn_is_none(a->grad[i])) a->grad[i] = tn_zeros_like(a->x[i]);
    }
}

static bool any_differentiable(const op_case *c)
{
    for (int i = 0; i < c->n; i++)
        if (c->differentiable[i]) return true;
    return false;
}

/* PyTorch's own bounds for f32 are 1.3e-6 relative, 1e-5 absolute; sums here are up to 4 times
 * as long as one rounding. */
static const double f32_rtol = 4 * 1.3e-6;
static const double f32_atol = 1e-5;

static void check_golden(const op_row *row, tn_dtype dtype)
{
    op_case c = op_load(row, dtype);
    applied a = apply(row, &c, ALL_INPUTS);
    row_assert(row, c.out != NULL, "no result in ops.safetensors");
    bool single = dtype == TN_F32 || tn_dtype_of(c.out) == TN_F32; /* integers give f32 */
    double loose = row->flags & ROW_LOOSE ? 100 : 1;
    double rtol = loose * (single ? f32_rtol : 1e-10);
    double atol = loose * (single ? f32_atol : 1e-12);
    row_close(row, "result", a.y, c.out, rtol, atol);
    if (dtype == TN_F64)
        row_assert(row, tn_dtype_of(a.y) == tn_dtype_of(c.out), "result is %s, not %s",
                   tn_dtype_name(tn_dtype_of(a.y)), tn_dtype_name(tn_dtype_of(c.out)));
    if (!any_differentiable(&c)) {
        row_assert(row, !tn_requires_grad(a.y), "the result has history");
        return;
    }
    tn_status status = tn_backward_from(a.y, c.seed, 0);
    row_assert(row, status == TN_OK, "backward: %s", tn_error());
    for (int i = 0; i < c.n; i++) {
        if (!c.grad[i]) continue;
        char what[32];
        snprintf(what, sizeof what, "gradient %d", i);
        row_close(row, what, tn_grad(a.x[i]), c.grad[i], rtol, atol);
        row_assert(row, tn_dtype_of(tn_grad(a.x[i])) == dtype, "%s is not %s", what,
                   tn_dtype_name(dtype));
    }
}

START_TEST(golden_numbers)
{
    const op_row *row = &op_rows[_i / 2];
    if (row->flags & (ROW_NO_GOLDEN | (_i % 2 ? ROW_FIXED : 0))) return;
    check_golden(row, _i % 2 ? TN_F32 : TN_F64);
}
END_TEST

static tn_tensor *build_for_check(tn_tensor **inputs, void *user)
{
    return ((const op_row *)user)->build(inputs);
}

/* TENON_BRIEF=yes, for sanitizers, which look at memory, and where only the kernels are others:
 * differences where all inputs require grad; of other subsets gradients are computed and not
 * compared. */
START_TEST(gradcheck_every_subset)
{
    const bool brief = getenv("TENON_BRIEF") != NULL;
    const op_row *row = &op_rows[_i];
    if (row->flags & ROW_KINK) return;
    op_case c = op_load(row, TN_F64);
    unsigned can = 0;
    for (int i = 0; i < c.n; i++) can |= (unsigned)c.differentiable[i] << i;
    for (unsigned subset = can; subset; subset = (subset - 1) & can) {
        tn_tensor *x[OP_MAX_IN];
        if (brief && subset != can) {
            applied a = apply(row, &c, subset);
            differentiate(row, &c, &a, op_leaf(seed_of(&c, &a), true), TN_CREATE_GRAPH);
            continue;
        }
        for (int i = 0; i < c.n; i++) x[i] = op_leaf(c.in[i], subset >> i & 1);
        tn_gradcheck_options o = { .second = !(row->flags & ROW_ONCE) };
        tn_status status = tn_gradcheck(build_for_check, x, c.n, (void *)row, o);
        row_assert(row, status == TN_OK, "inputs %#x: %s", subset, tn_error());
    }
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

/* The same values give the same in other layouts. */
static void check_layout(const op_row *row, const op_case *plain, const op_case *strange, int input,
                         const char *how)
{
    applied a = apply(row, plain, ALL_INPUTS), b = apply(row, strange, ALL_INPUTS);
    char what[64];
    snprintf(what, sizeof what, "input %d %s", input, how);
    row_close(row, what, b.y, a.y, 1e-9, 1e-11);
    if (!any_differentiable(plain)) return;
    differentiate(row, plain, &a, seed_of(plain, &a), 0);
    differentiate(row, strange, &b, seed_of(strange, &b), 0);
    for (int i = 0; i < plain->n; i++) {
        if (!a.grad[i]) continue;
        snprintf(what, sizeof what, "gradient %d with input %d %s", i, input, how);
        row_close(row, what, b.grad[i], a.grad[i], 1e-9, 1e-11);
    }
}

static void check_input(const op_row *row, const op_case *c, int input, tn_tensor *other,
                        const char *how)
{
    op_case plain = *c, strange = *c;
    assert_made(other);
    plain.in[input] = tn_clone(other);
    strange.in[input] = other;
    check_layout(row, &plain, &strange, input, how);
}

START_TEST(any_layout)
{
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64), strange = c;
    for (int i = 0; i < c.n; i++) {
        check_input(row, &c, i, as_transposed(c.in[i]), "transposed");
        check_input(row, &c, i, as_strided(c.in[i]), "strided");
        check_input(row, &c, i, as_expanded(c.in[i]), "expanded");
        strange.in[i] = as_transposed(c.in[i]);
    }
    /* all at once, and a seed of another layout too */
    if (c.seed) strange.seed = as_strided(c.seed);
    check_layout(row, &c, &strange, c.n, "and those before it transposed");
}
END_TEST

START_TEST(no_hidden_copy)
{
    const op_row *row = &op_rows[_i];
    if (!(row->flags & (ROW_POINTWISE | ROW_REDUCES | ROW_VIEW))) return;
    op_case c = op_load(row, TN_F32);
    tn_tensor *x[OP_MAX_IN];
    for (int i = 0; i < c.n; i++)
        x[i] = row->flags & ROW_VIEW ? op_leaf(c.in[i], false) : as_transposed(c.in[i]);
    tn_memory_stats before = tn_memory();
    tn_tensor *y = row->build(x);
    tn_memory_stats after = tn_memory();
    row_assert(row, y != NULL, "failed: %s", tn_error());
    int64_t made = after.data_allocations - before.data_allocations;
    int64_t bytes = after.data_bytes - before.data_bytes;
    int64_t in_bytes = tn_numel(x[0]) * (int64_t)tn_dtype_size(tn_dtype_of(x[0]));
    int64_t out_bytes = tn_numel(y) * (int64_t)tn_dtype_size(tn_dtype_of(y));
    if (row->flags & ROW_VIEW) {
        row_assert(row, made == 0, "%d storages made by a view", (int)made);
        row_assert(row, tn_same_storage(x[0], y), "not a view");
    } else if (row->flags & ROW_POINTWISE) {
        row_assert(row, made <= 1, "%d storages made, not 1", (int)made);
        row_assert(row, bytes <= (out_bytes ? out_bytes : 64), "%d bytes made for a result of %d",
                   (int)bytes, (int)out_bytes);
    } else {
        row_assert(row, bytes < in_bytes || made == 1, "%d bytes made from an input of %d",
                   (int)bytes, (int)in_bytes);
    }
}
END_TEST

START_TEST(fused_equals_composed)
{
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64);
    if (!any_differentiable(&c)) return;
    applied a = apply(row, &c, ALL_INPUTS);
    applied b = a;
    differentiate(row, &c, &a, seed_of(&c, &a), 0);
    differentiate(row, &c, &b, seed_of(&c, &b), TN_CREATE_GRAPH);
    for (int i = 0; i < c.n; i++)
        if (a.grad[i]) row_close(row, "composed gradient", b.grad[i], a.grad[i], 1e-10, 1e-12);
}
END_TEST

/* An option's tensor: NULL there means none. */
static bool may_be_null(const op_row *row, int input)
{
    if (strcmp(row->op, "linear_cross_entropy_with") == 0) return input == 4;
    return input == 2 &&
           (strcmp(row->op, "cross_entropy_with") == 0 || strcmp(row->op, "nll_loss") == 0);
}

/* A NULL input gives NULL and leaves the message of the first failure. */
START_TEST(poison)
{
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64);
    for (int i = 0; i < c.n; i++) {
        tn_tensor *x[OP_MAX_IN] = { NULL };
        if (may_be_null(row, i)) continue;
        for (int k = 0; k < c.n; k++) x[k] = k == i ? NULL : c.in[k];
        tn_fail(TN_E_STATE, "planted: got poison: want none");
        row_assert(row, row->build(x) == NULL, "input %d NULL gives a result", i);
        row_assert(row, strcmp(tn_error(), "planted: got poison: want none") == 0,
                   "input %d NULL sets \"%s\"", i, tn_error());
        tn_error_clear();
    }
}
END_TEST

/* With recording off, or no input that requires grad, nothing is recorded. */
START_TEST(no_grad)
{
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64);
    TN_NO_GRAD
    {
        applied a = apply(row, &c, ALL_INPUTS);
        row_assert(row, !tn_requires_grad(a.y) || a.y == a.x[0], "recorded in TN_NO_GRAD");
    }
    applied a = apply(row, &c, 0);
    row_assert(row, !tn_requires_grad(a.y), "recorded though no input requires grad");
}
END_TEST

START_TEST(refusals)
{
    const op_refusal *r = &op_refusals[_i];
    char begin[64];
    snprintf(begin, sizeof begin, "tn_%s", r->op);
    int64_t live = tn_live_tensors();
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = r->build();
    ck_assert_msg(y == NULL, "%s was not refused", r->source);
    ck_assert_msg(tn_error_status() == r->status, "%s: %s (%s), not %s", r->source,
                  tn_status_name(tn_error_status()), tn_error(), tn_status_name(r->status));
    ck_assert_msg(strncmp(tn_error(), begin, strlen(begin)) == 0,
                  "%s: \"%s\" does not begin with %s", r->source, tn_error(), begin);
    ck_assert_msg(strstr(tn_error(), r->text) != NULL, "%s: \"%s\" lacks \"%s\"", r->source,
                  tn_error(), r->text);
    tn_scope_end(scope);
    ck_assert_msg(tn_live_tensors() == live, "%s: leaks", r->source);
}
END_TEST

/* A part "dx = ..." for each input that takes a gradient; joins have one for all of theirs. */
static int parts(const char *gradient)
{
    int n = gradient && gradient[0] == 'd';
    for (const char *part = gradient; part && (part = strstr(part, "; d")); part++) n++;
    return n;
}

static int tells_its_gradient(const tn_graph_node *node, void *user)
{
    int wanted = 0;
    if (node->kind != TN_GRAPH_OP) return 0;
    for (int i = 0; i < node->n_in; i++) wanted += node->in[i].gradient;
    if (strncmp(node->name, "cat", 3) == 0) wanted = 1;
    row_assert((const op_row *)user, parts(node->gradient) >= wanted,
               "%s has gradients for %d inputs, tells \"%s\"", node->name, wanted, node->gradient);
    return 0;
}

static void told(const op_row *row, tn_tensor *root)
{
    if (tn_requires_grad(root))
        ck_assert_int_eq(tn_graph_visit(root, tells_its_gradient, (void *)(uintptr_t)row,
                                        (tn_graph_options){ 0 }),
                         TN_OK);
}

/* And so do the ops that its gradient is made of. */
START_TEST(every_op_tells_its_gradient)
{
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64);
    applied a = apply(row, &c, ALL_INPUTS);
    told(row, a.y);
    if (!any_differentiable(&c)) return;
    differentiate(row, &c, &a, op_leaf(seed_of(&c, &a), true), TN_CREATE_GRAPH);
    for (int i = 0; i < c.n; i++)
        if (a.grad[i]) told(row, a.grad[i]);
}
END_TEST

static bool has_row(const char *op)
{
    for (int i = 0; i < n_op_rows; i++)
        if (strcmp(op_rows[i].op, op) == 0) return true;
    return false;
}

/* Every function of ops.h but those that change a tensor in place has one. */
START_TEST(every_op_has_a_row)
{
    size_t size;
    char *text = read_bytes(golden_path("../../include/tenon/ops.h"), &size), missing[1024] = "";
    int n = 0;
    for (char *line = text; (line = strstr(line, "\nTN_API ")) != NULL;) {
        char *end = strchr(++line, '('), *name = end;
        while (name[-1] != '*' && name[-1] != ' ') name--;
        if (end[-1] == '_') continue;
        *end = '\0';
        n++;
        if (!has_row(name + strlen("tn_")))
            snprintf(missing + strlen(missing), sizeof missing - strlen(missing), " %s", name);
        *end = '(';
    }
    free(text);
    ck_assert_msg(!missing[0], "ops without a row in the table:%s", missing);
    ck_assert_int_gt(n, 100);
}
END_TEST

START_TEST(every_golden_row_is_tested)
{
    for (int i = 0; i < op_golden_count(); i++) {
        const char *name = op_golden_name(i);
        size_t length = strcspn(name, "/");
        bool found = false;
        for (int k = 0; k < n_op_rows && !found; k++)
            found =
                strlen(op_rows[k].name) == length && strncmp(op_rows[k].name, name, length) == 0;
        ck_assert_msg(found, "%s is in ops.safetensors only", name);
    }
}
END_TEST

/* Whether the gradient is the same at another x, and differentiable in its seed: then there is no
 * second derivative but 0. For rows that round, where differences say nothing. */
static bool is_linear(const op_row *row, const op_case *c)
{
    op_case other = *c;
    for (int i = 0; i < c->n; i++)
        if (c->differentiable[i]) other.in[i] = tn_mul_scalar(c->in[i], 0.5);
    applied a = apply(row, c, ALL_INPUTS), b = apply(row, &other, ALL_INPUTS);
    tn_tensor *seed = op_leaf(seed_of(c, &a), true);
    differentiate(row, c, &a, seed, TN_CREATE_GRAPH);
    differentiate(row, &other, &b, seed, TN_CREATE_GRAPH);
    bool linear = true;
    for (int i = 0; i < c->n; i++)
        if (a.grad[i])
            linear &= tn_requires_grad(a.grad[i]) && !difference(a.grad[i], b.grad[i], 0, 0);
    return linear;
}

/* An op that has a gradient has a row without a kink, so that gradcheck_every_subset looks at its
 * second derivatives; or else it is linear in every row. */
static bool shows_second(const char *op, bool *gradient)
{
    bool smooth = false, linear = true;
    for (int i = 0; i < n_op_rows; i++) {
        const op_row *row = &op_rows[i];
        if (strcmp(row->op, op) != 0) continue;
        tn_scope scope = tn_scope_begin();
        op_case c = op_load(row, TN_F64);
        if (any_differentiable(&c)) {
            *gradient = true;
            smooth |= !(row->flags & ROW_KINK) && tn_numel(c.in[0]) > 0;
            linear = linear && !smooth && is_linear(row, &c);
        }
        tn_scope_end(scope);
    }
    return smooth || linear;
}

START_TEST(every_op_has_a_second_derivative)
{
    int n = 0;
    for (int i = 0; i < n_op_rows; i++) {
        if (i > 0 && strcmp(op_rows[i].op, op_rows[i - 1].op) == 0) continue;
        bool gradient = false, second = shows_second(op_rows[i].op, &gradient);
        row_assert(&op_rows[i], second, "no row shows a second derivative of tn_%s", op_rows[i].op);
        n += gradient;
    }
    ck_assert_int_gt(n, 90);
}
END_TEST

/* ---- gradients at special values ------------------------------------------------------------- */

/* t's shape, full of special values; the same numbers whatever the seed is next to them: ties. */
static tn_tensor *specials(tn_tensor *t, int seed)
{
    static const double values[] = { NAN, 0, -0.0, INFINITY, -INFINITY, 1, -1, 2, 0.5, 1, 0 };
    tn_tensor *y = tn_clone(t);
    double *x = tn_data_mut(y);
    for (int64_t i = 0, n = tn_numel(y); i < n; i++)
        x[i] = values[(i * (seed % 3 + 1) + seed) % (int64_t)(sizeof values / sizeof *values)];
    return y;
}

/* Infinities become NaN. */
static tn_tensor *numbers_of(tn_tensor *t)
{
    return tn_is_none(t) ? t : tn_masked_fill(t, tn_logical_not(tn_isfinite(t)), NAN);
}

static bool gradients_of(const op_row *row, const op_case *c, int seed, int flags, tn_tensor **g)
{
    tn_tensor *x[OP_MAX_IN], *wanted[OP_MAX_IN];
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        bool real = c->differentiable[i] && tn_dtype_of(c->in[i]) == TN_F64;
        x[i] = op_leaf(real ? specials(c->in[i], seed + i) : c->in[i], c->differentiable[i]);
        if (c->differentiable[i]) wanted[n++] = x[i];
    }
    tn_tensor *y = n ? row->build(x) : NULL;
    if (!y || !tn_requires_grad(y)) return false;
    tn_tensor *dy = tn_full_as(tn_shape_get(y), 1.5, tn_dtype_of(y), tn_cpu());
    assert_ok(tn_gradients(1, &y, &dy, n, wanted, g, flags));
    return true;
}

/* Where a formula in ops multiplies by 0 what the kernel leaves out: keys that are not seen, and in
 * norms of order below 1 a 0 beside an infinity. */
static bool leaves_out(const op_row *row)
{
    return strcmp(row->op, "scaled_dot_product_attention") == 0 ||
           strcmp(row->name, "norm_half") == 0;
}

/* NaN, zeros, infinities and ties: the gradient is the same whether it will be differentiated again
 * or not. Of sums it need only be no number in the same places: infinities cancel in another
 * order. */
START_TEST(fused_and_composed_at_special_values)
{
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64);
    for (int seed = 0; seed < 11; seed++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *fused[OP_MAX_IN], *composed[OP_MAX_IN];
        if (!leaves_out(row) && gradients_of(row, &c, seed, 0, fused) &&
            gradients_of(row, &c, seed, TN_CREATE_GRAPH, composed)) {
            for (int i = 0, k = 0; i < c.n; i++) {
                if (!c.differentiable[i]) continue;
                tn_tensor *a = fused[k], *b = composed[k];
                if (!(row->flags & ROW_POINTWISE)) a = numbers_of(a), b = numbers_of(b);
                const char *off = tn_is_none(a) ? NULL : difference(b, a, 1e-9, 1e-12);
                ck_assert_msg(!off, "%s, seed %d, input %d: %s", row->name, seed, i, off);
                k++;
            }
        }
        tn_scope_end(s);
    }
}
END_TEST

Suite *test_suite(void)
{
    op_read_golden();
    Suite *suite = suite_create("ops");
    TCase *t = test_case(suite, "table");
    add_tests(t, every_op_has_a_row, every_golden_row_is_tested, every_op_has_a_second_derivative);
    tcase_add_loop_test(t, golden_numbers, 0, 2 * n_op_rows);
    tcase_add_loop_test(t, gradcheck_every_subset, 0, n_op_rows);
    tcase_add_loop_test(t, any_layout, 0, n_op_rows);
    tcase_add_loop_test(t, no_hidden_copy, 0, n_op_rows);
    tcase_add_loop_test(t, fused_equals_composed, 0, n_op_rows);
    tcase_add_loop_test(t, fused_and_composed_at_special_values, 0, n_op_rows);
    tcase_add_loop_test(t, poison, 0, n_op_rows);
    tcase_add_loop_test(t, no_grad, 0, n_op_rows);
    tcase_add_loop_test(t, every_op_tells_its_gradient, 0, n_op_rows);
    tcase_add_loop_test(t, refusals, 0, n_op_refusals);
    ops_values_cases(suite);
    ops_null_cases(suite);
    ops_inplace_cases(suite);
    ops_empty_cases(suite);
    ops_sorting_cases(suite);
    return suite;
}
