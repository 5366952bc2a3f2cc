/*
 * test_ops.c - what every row of the op table must do: PyTorch's numbers in f64 and f32, gradients
 * against finite differences, any memory layout, no hidden copy, poison, fused against composed
 * gradients; and every refusal of op_refusals.def.
 *
 * Seen to fail: the gradient of sub without its minus (ops/binary.c, dx[1] = dy): 138 tests failed;
 * a function in ops.h that has no row; delta detached in ops/attention.c, composed_backward; every
 * row of attention with ROW_KINK (every_op_has_a_second_derivative).
 */
#include "files.h"
#include "op_table.h"

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

/* The gradient that enters at y: the case's own, or ones. */
static tn_tensor *seed_of(const op_case *c, const applied *a)
{
    return c->seed ? c->seed : tn_ones_like(a->y);
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

START_TEST(golden_f64)
{
    const op_row *row = &op_rows[_i];
    if (row->flags & ROW_NO_GOLDEN) return;
    check_golden(row, TN_F64);
}
END_TEST

START_TEST(golden_f32)
{
    const op_row *row = &op_rows[_i];
    if (row->flags & (ROW_NO_GOLDEN | ROW_FIXED)) return;
    check_golden(row, TN_F32);
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
        tn_gradcheck_options o = { .second = true };
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

static void check_layout(const op_row *row, const op_case *c, int input, tn_tensor *other,
                         const char *how)
{
    op_case plain = *c;
    op_case strange = *c;
    assert_made(other);
    plain.in[input] = tn_clone(other);
    strange.in[input] = other;
    applied a = apply(row, &plain, ALL_INPUTS);
    applied b = apply(row, &strange, ALL_INPUTS);
    char what[64];
    snprintf(what, sizeof what, "input %d %s", input, how);
    row_close(row, what, b.y, a.y, 1e-9, 1e-11);
    if (!any_differentiable(c)) return;
    differentiate(row, c, &a, seed_of(c, &a), 0);
    differentiate(row, c, &b, seed_of(c, &b), 0);
    for (int i = 0; i < c->n; i++) {
        if (!a.grad[i]) continue;
        snprintf(what, sizeof what, "gradient %d with input %d %s", i, input, how);
        row_close(row, what, b.grad[i], a.grad[i], 1e-9, 1e-11);
    }
}

START_TEST(any_layout)
{
    const op_row *row = &op_rows[_i];
    op_case c = op_load(row, TN_F64);
    for (int i = 0; i < c.n; i++) {
        check_layout(row, &c, i, as_transposed(c.in[i]), "transposed");
        check_layout(row, &c, i, as_strided(c.in[i]), "strided");
        check_layout(row, &c, i, as_expanded(c.in[i]), "expanded");
    }
    /* all at once, and a seed of another layout too */
    op_case strange = c;
    for (int i = 0; i < c.n; i++) strange.in[i] = as_transposed(c.in[i]);
    if (c.seed) strange.seed = as_strided(c.seed);
    applied a = apply(row, &c, ALL_INPUTS);
    applied b = apply(row, &strange, ALL_INPUTS);
    row_close(row, "all transposed", b.y, a.y, 1e-9, 1e-11);
    if (!any_differentiable(&c)) return;
    differentiate(row, &c, &a, seed_of(&c, &a), 0);
    differentiate(row, &strange, &b, seed_of(&strange, &b), 0);
    for (int i = 0; i < c.n; i++)
        if (a.grad[i])
            row_close(row, "gradient, all transposed", b.grad[i], a.grad[i], 1e-9, 1e-11);
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

/* PyTorch's slope at the bounds was 1 and is 0 in newer versions; ours is 1, as the header says. */
START_TEST(clamp_slope_at_its_bounds)
{
    tn_tensor *x = from_f64((double[]){ -1, 1, 0, -2, 2 }, TN_SHAPE(5));
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_backward(tn_sum(tn_clamp(x, -1, 1), NULL, 0, false)));
    assert_values(tn_grad(x), 0, 1, 1, 1, 0, 0);
}
END_TEST

/* ---- C scalars beside tensors ---------------------------------------------------------------- */

typedef struct scalar_row {
    const char *name; /* of the function, for messages */
    tn_tensor *(*one)(tn_tensor *x, double s);
    tn_tensor *(*two)(tn_tensor *x, double s, double t);
    tn_dtype dtype; /* of x: 0, 1, 5 */
    double s, t;
    const char *refusal; /* NULL: the three values below, in the dtype made */
    tn_dtype made;
    double want[3];
} scalar_row;

static tn_tensor *changed(tn_tensor *x, tn_status status)
{
    return status == TN_OK ? x : NULL;
}
static tn_tensor *masked(tn_tensor *x, double s)
{
    return tn_masked_fill(x, tn_ge_scalar(x, 1), s);
}
static tn_tensor *masked_(tn_tensor *x, double s)
{
    return changed(x, tn_masked_fill_(x, tn_ge_scalar(x, 1), s));
}
static tn_tensor *fill_(tn_tensor *x, double s)
{
    return changed(x, tn_fill_(x, s));
}
static tn_tensor *add_(tn_tensor *x, double s)
{
    return changed(x, tn_add_scalar_(x, s));
}
static tn_tensor *mul_(tn_tensor *x, double s)
{
    return changed(x, tn_mul_scalar_(x, s));
}
static tn_tensor *full_as(tn_tensor *x, double s)
{
    return tn_full_as(TN_SHAPE(3), s, tn_dtype_of(x), tn_cpu());
}
static tn_tensor *clamp_(tn_tensor *x, double s, double t)
{
    return changed(x, tn_clamp_(x, s, t));
}
static tn_tensor *arange(tn_tensor *x, double s)
{
    return tn_arange(s, s + 3, 1, tn_dtype_of(x));
}
static tn_tensor *lerp(tn_tensor *x, double s)
{
    return tn_lerp(x, tn_neg(x), s);
}
static tn_tensor *lerp_(tn_tensor *x, double s)
{
    return changed(x, tn_lerp_(x, x, s));
}

#define GIVES(f, from, s, to, ...)                                                                 \
    {                                                                                              \
#f, f, NULL, TN_##from, s, 0, NULL, TN_##to,                                               \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define REFUSES(f, from, s, why)                                                                   \
    {                                                                                              \
#f, f, NULL, TN_##from, s, 0, why, TN_F32,                                                 \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
#define GIVES2(f, from, s, t, to, ...)                                                             \
    {                                                                                              \
#f, NULL, f, TN_##from, s, t, NULL, TN_##to,                                               \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define REFUSES2(f, from, s, t, why)                                                               \
    {                                                                                              \
#f, NULL, f, TN_##from, s, t, why, TN_F32,                                                 \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* Every function that takes a C scalar and a tensor of integers. The values are PyTorch's, except
 * where it wraps a scalar around that the dtype cannot hold (comparisons with u8 there, fill of u8
 * by -1: refused here). */
static const scalar_row scalar_rows[] = {
    GIVES(tn_add_scalar, I64, 2, I64, 2, 3, 7),
    GIVES(tn_add_scalar, U8, 300, U8, 44, 45, 49),
    GIVES(tn_add_scalar, I64, 0.5, F32, 0.5, 1.5, 5.5),
    GIVES(tn_add_scalar, I64, INFINITY, F32, INFINITY, INFINITY, INFINITY),
    GIVES(tn_sub_scalar, I32, 1e30, F32, -1e30, -1e30, -1e30),
    GIVES(tn_rsub_scalar, I64, -INFINITY, F32, -INFINITY, -INFINITY, -INFINITY),
    GIVES(tn_mul_scalar, U8, 0x1p63, F32, 0, 0x1p63, 5 * 0x1p63),
    GIVES(tn_mul_scalar, I64, NAN, F32, NAN, NAN, NAN),
    GIVES(tn_div_scalar, I64, INFINITY, F32, 0, 0, 0),
    GIVES(tn_pow_scalar, I64, 3, I64, 0, 1, 125),
    GIVES(tn_pow_scalar, U8, -0.5, F32, INFINITY, 1, 0.4472136),
    REFUSES(tn_pow_scalar, I64, -1, "i64 to the power -1"),
    REFUSES(tn_pow_scalar, BOOL, -2, "bool to the power -2"),
    GIVES(tn_eq_scalar, I64, INFINITY, BOOL, 0, 0, 0),
    GIVES(tn_eq_scalar, U8, 256, BOOL, 0, 0, 0),
    GIVES(tn_ne_scalar, I64, NAN, BOOL, 1, 1, 1),
    GIVES(tn_lt_scalar, I64, INFINITY, BOOL, 1, 1, 1),
    GIVES(tn_lt_scalar, I64, 0.5, BOOL, 1, 0, 0),
    GIVES(tn_le_scalar, I64, -1e30, BOOL, 0, 0, 0),
    GIVES(tn_gt_scalar, I32, -INFINITY, BOOL, 1, 1, 1),
    GIVES(tn_ge_scalar, U8, -1, BOOL, 1, 1, 1),
    GIVES(tn_ge_scalar, I64, NAN, BOOL, 0, 0, 0),
    GIVES(full_as, I64, -2.7, I64, -2, -2, -2),
    REFUSES(full_as, U8, 300, "value 300: want one that u8 can hold"),
    GIVES(tn_full_like, BOOL, 0.5, BOOL, 1, 1, 1),
    REFUSES(tn_full_like, I64, NAN, "value nan: want one that i64 can hold"),
    GIVES(fill_, I32, 2.7, I32, 2, 2, 2),
    GIVES(fill_, BOOL, 0.5, BOOL, 1, 1, 1),
    REFUSES(fill_, I64, NAN, "tn_fill_: value nan: want one that i64 can hold"),
    REFUSES(fill_, I64, 0x1p63, "i64 can hold"),
    REFUSES(fill_, U8, -1, "u8 can hold"),
    GIVES(masked, I64, -2.7, I64, 0, -2, -2),
    GIVES(masked, BOOL, 0.5, BOOL, 0, 1, 1),
    REFUSES(masked, I64, INFINITY, "tn_masked_fill: value inf: want one that i64 can hold"),
    REFUSES(masked, I32, 3e9, "i32 can hold"),
    REFUSES(masked, U8, 300, "u8 can hold"),
    GIVES(masked_, I64, -2.7, I64, 0, -2, -2),
    REFUSES(masked_, I32, -INFINITY, "tn_masked_fill_: value -inf: want one that i32 can hold"),
    REFUSES(masked_, U8, 300, "u8 can hold"),
    REFUSES(add_, I64, 0.5, "tn_add_scalar_"),
    REFUSES(add_, I64, INFINITY, "tn_add_scalar_"),
    REFUSES(mul_, I32, 1e30, "tn_mul_scalar_"),
    GIVES(mul_, U8, 100, U8, 0, 100, 244),
    GIVES2(tn_clamp, I64, 1, 4, I64, 1, 1, 4),
    GIVES2(tn_clamp, I64, 0.5, 4.5, F32, 0.5, 1, 4.5),
    GIVES2(tn_clamp, I64, -INFINITY, 2, I64, 0, 1, 2),
    GIVES2(tn_clamp, I64, 1.5, INFINITY, F32, 1.5, 1.5, 5),
    GIVES2(tn_clamp, I64, INFINITY, INFINITY, F32, INFINITY, INFINITY, INFINITY),
    GIVES2(tn_clamp, U8, -8, 300, U8, 0, 1, 5),
    GIVES2(tn_clamp, BOOL, -5, -1, I64, -1, -1, -1),
    REFUSES2(tn_clamp, U8, -8, -1, "want bounds between which u8 has a value"),
    REFUSES2(tn_clamp, U8, 300, 400, "want bounds between which u8 has a value"),
    REFUSES2(tn_clamp, I64, NAN, 1, "want low <= high"),
    GIVES2(clamp_, I64, -INFINITY, 2, I64, 0, 1, 2),
    REFUSES2(clamp_, I64, 0.5, 5.5, "tn_clamp_"),
    REFUSES2(clamp_, U8, -8, -1, "tn_clamp_: low -8, high -1"),
    REFUSES2(clamp_, I32, 1, 0, "tn_clamp_: low 1, high 0: want low <= high"),
    GIVES(tn_leaky_relu, I64, 0.5, F32, 0, 1, 5),
    GIVES(tn_elu, U8, 1, F32, 0, 1, 5),
    GIVES2(tn_softplus, I32, 1, -1, F32, 0, 1, 5),
    GIVES(lerp, I64, 0.25, F32, 0, 0.5, 2.5),
    REFUSES(lerp_, I64, 0.5, "tn_lerp_"),
    GIVES(arange, I32, 5, I32, 5, 6, 7),
    REFUSES(arange, U8, 254, "u8 can hold"),
    REFUSES(arange, I64, NAN, "finite"),
};

START_TEST(PR_02_scalars_beside_integers)
{
    const scalar_row *r = &scalar_rows[_i];
    tn_tensor *x = tn_to_dtype(tn_from_ints((int64_t[]){ 0, 1, 5 }, TN_SHAPE(3)), r->dtype);
    tn_tensor *before = tn_clone(x);
    tn_tensor *y = r->one ? r->one(x, r->s) : r->two(x, r->s, r->t);
    if (r->refusal) {
        assert_null(y, tn_error_status(), r->refusal);
        ck_assert_double_eq(tn_max_abs_diff(x, before), 0);
        return;
    }
    assert_made(y);
    ck_assert_msg(tn_dtype_of(y) == r->made, "%s of %s, %g: %s", r->name, tn_dtype_name(r->dtype),
                  r->s, tn_dtype_name(tn_dtype_of(y)));
    for (int64_t i = 0; i < 3; i++) {
        double is = tn_at(y, &i, 1), want = r->want[i];
        ck_assert_msg(is == want || fabs(is - want) <= 1e-7 * fabs(want) ||
                          (is != is && want != want),
                      "%s of %s, %g, %g: [%d] is %g, not %g", r->name, tn_dtype_name(r->dtype),
                      r->s, r->t, (int)i, is, want);
    }
}
END_TEST

/* What is added to bf16 and f16, or compared with them, is rounded to them; a factor is not. */
START_TEST(PR_03_scalars_beside_short_floats)
{
    tn_tensor *x = tn_full_as(TN_SHAPE(2), 0.1, TN_BF16, tn_cpu()); /* 0.10009765625 */
    assert_values(tn_sub_scalar(x, 0.1), 0, 0, 0);
    assert_values(tn_rsub_scalar(x, 0.1), 0, 0, 0);
    assert_values(tn_add_scalar(x, -0.1), 0, 0, 0);
    assert_values(tn_eq_scalar(x, 0.1), 0, 1, 1);
    assert_values(tn_gt_scalar(x, 0.1), 0, 0, 0);
    assert_values(tn_ge_scalar(tn_full_as(TN_SHAPE(1), INFINITY, TN_F16, tn_cpu()), 1e6), 0, 1);
    assert_ok(tn_add_scalar_(x, -0.1));
    assert_values(x, 0, 0, 0);
    x = tn_full_as(TN_SHAPE(1), 2, TN_F16, tn_cpu());
    assert_values(tn_div_scalar(x, 1e6), 0, 0x11p-23); /* 1e6 is no f16 */
}
END_TEST

/* From a weight of .5 on lerp starts at the other end. */
START_TEST(lerp_from_the_nearer_end)
{
    tn_tensor *a = from_f64((double[]){ 1e17, 1, -3 }, TN_SHAPE(3));
    tn_tensor *b = from_f64((double[]){ 0.1, 2, 4 }, TN_SHAPE(3));
    assert_ok(tn_set_requires_grad(a, true));
    assert_ok(tn_set_requires_grad(b, true));
    assert_values(tn_lerp(a, b, 1), 0, 0.1, 2, 4);
    assert_values(tn_lerp(tn_from_floats((float[]){ 1e8F }, TN_SHAPE(1)),
                          tn_from_floats((float[]){ 0.1F }, TN_SHAPE(1)), 1),
                  0, (double)0.1F);
    tn_tensor *y = tn_lerp(a, b, 0.75);
    assert_values(y, 1e-15, 2.5e16, 1.75, 2.25);
    assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
    assert_values(tn_grad(a), 0, 0.25, 0.25, 0.25);
    assert_values(tn_grad(b), 0, 0.75, 0.75, 0.75);
    TN_NO_GRAD
    {
        assert_ok(tn_lerp_(a, b, 1));
        assert_values(a, 0, 0.1, 2, 4);
    }
}
END_TEST

/* The square root where the exponent is .5, whatever pow() says of -0 and -inf. */
START_TEST(pow_of_a_half)
{
    tn_tensor *x = from_f64((double[]){ 4, -0.0, -INFINITY }, TN_SHAPE(3));
    assert_values(tn_pow_scalar(x, 0.5), 0, 2, 0, NAN);
    ck_assert(signbit(tn_at(tn_pow_scalar(x, 0.5), TN_INDEX(1))));
    assert_values(tn_pow_scalar(x, -0.5), 0, 0.5, -INFINITY, NAN);
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
    tcase_add_test(t, every_op_has_a_row);
    tcase_add_test(t, every_golden_row_is_tested);
    tcase_add_test(t, clamp_slope_at_its_bounds);
    tcase_add_test(t, PR_03_scalars_beside_short_floats);
    tcase_add_test(t, lerp_from_the_nearer_end);
    tcase_add_test(t, pow_of_a_half);
    tcase_add_loop_test(test_case(suite, "scalars"), PR_02_scalars_beside_integers, 0,
                        (int)(sizeof scalar_rows / sizeof *scalar_rows));
    tcase_add_test(t, every_op_has_a_second_derivative);
    tcase_add_loop_test(test_case(suite, "golden f64"), golden_f64, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "golden f32"), golden_f32, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "gradcheck"), gradcheck_every_subset, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "layout"), any_layout, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "no copy"), no_hidden_copy, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "fused"), fused_equals_composed, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "special"), fused_and_composed_at_special_values, 0,
                        n_op_rows);
    tcase_add_loop_test(test_case(suite, "poison"), poison, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "no grad"), no_grad, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "told"), every_op_tells_its_gradient, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "refusals"), refusals, 0, n_op_refusals);
    return suite;
}
