/*
 * test_saved.c - what the graph keeps for backward. The results of cheap activations it computes
 * again instead (src/autograd/saved.c): the gradients' bits are those with the result saved,
 * whatever happens between forward and backward, and the memory is saved. A table that stands twice
 * in a model, read by token and multiplied with, has one gradient: the embedding's is added to the
 * sum that is there (add_to_sum in autograd/ops/gather.c).
 *
 * What is kept is known by tn_data_mut: it counts as a change in place, so a result that it was
 * called on before it was read is kept.
 *
 * Seen to fail, in saved.c: let_go freed x although other inputs held it; hold did not count; x was
 * let go of twice; nothing was computed again, or whatever had been changed; x's version was not
 * looked at; the result had no history (second_derivatives); a norm's inputs were let go of one by
 * one; its bias was checked for its own gradient; small results were computed again, too. In
 * autocast.c: the first cast kept by its reader, by the region, or the second one by neither. Of a
 * table: the gradient made as a table of zeros, delivered as well as added, added to a sum that the
 * user sees, or taken from a copy without history.
 */
#include <pthread.h>
#include <stdlib.h>

#include "autograd/gradients.h"
#include "scarce.h"

enum { ROWS = 5, WIDTH = 37, OUT = 3 };

static tn_tensor *leaky_relu(tn_tensor *x)
{
    return tn_leaky_relu(x, 0.1);
}
static tn_tensor *elu(tn_tensor *x)
{
    return tn_elu(x, 0.7);
}

static const struct activation {
    const char *name;
    tn_tensor *(*f)(tn_tensor *x);
} activations[] = {
    { "gelu", tn_gelu }, { "gelu_tanh", tn_gelu_tanh }, { "silu", tn_silu },
    { "elu", elu },      { "leaky_relu", leaky_relu },
};
enum { N_ACTIVATIONS = COUNT(activations) };

static tn_tensor *random_leaf(tn_shape shape, uint64_t seed, tn_dtype dtype)
{
    return leaf(random_as(shape, -2, 2, seed, dtype));
}

static tn_tensor *input(tn_dtype dtype)
{
    return random_leaf(TN_SHAPE(ROWS, WIDTH), 1, dtype);
}
static tn_tensor *weight(int k, tn_dtype dtype)
{
    return random_leaf(TN_SHAPE(OUT, WIDTH), (uint64_t)(10 + k), dtype);
}

/* y, which the ops that read it next will keep. */
static tn_tensor *kept(tn_tensor *y)
{
    assert_made(tn_data_mut(y));
    return y;
}

static tn_tensor *linear(tn_tensor *x, tn_tensor *w)
{
    return tn_linear(x, w, TN_NONE);
}
static tn_tensor *total(tn_tensor *y)
{
    return tn_sum_all(tn_square(y));
}

static void assert_same_bits(const char *what, tn_tensor *a, tn_tensor *b)
{
    ck_assert_msg(a && b && !tn_is_none(a) && !tn_is_none(b), "%s: missing", what);
    bool alike = tn_dtype_of(a) == tn_dtype_of(b) && tn_numel(a) == tn_numel(b);
    ck_assert_msg(alike, "%s: another dtype or size", what);
    size_t nbytes = (size_t)tn_numel(a) * tn_dtype_size(tn_dtype_of(a));
    bool same = memcmp(tn_data(tn_contiguous(a)), tn_data(tn_contiguous(b)), nbytes) == 0;
    ck_assert_msg(same, "%s: other bits", what);
}

/* The gradients of one loss by n leaves, all or only some of them. */
static void gradients(tn_tensor *loss, int n, tn_tensor **leaves, tn_tensor **grads)
{
    assert_ok(tn_gradients(1, &loss, NULL, n, leaves, grads, 0));
}

static void assert_same_gradients(const char *what, tn_tensor *loss, tn_tensor *expected, int n,
                                  tn_tensor **leaves)
{
    tn_tensor *a[4], *b[4];
    gradients(loss, n, leaves, a);
    gradients(expected, n, leaves, b);
    for (int i = 0; i < n; i++) assert_same_bits(what, a[i], b[i]);
}

/* ---- the graph says it ----------------------------------------------------------------------- */

typedef struct seen {
    const char *op;
    int n, inputs_kept;
    size_t bytes;
    bool freed;
} seen;

static int look(const tn_graph_node *node, void *user)
{
    seen *s = user;
    if (node->kind != TN_GRAPH_OP) return 0;
    for (int i = 0; i < node->n_in; i++) s->bytes += node->in[i].kept_bytes;
    for (int i = 0; i < node->n_out; i++) s->bytes += node->out[i].kept_bytes;
    if (strcmp(node->name, s->op) != 0) return 0;
    s->n++;
    for (int i = 0; i < node->n_in; i++) s->inputs_kept += node->in[i].kept != NULL;
    s->freed |= node->freed;
    return 0;
}

static seen seen_of(tn_tensor *root, const char *op)
{
    seen s = { .op = op };
    assert_ok(tn_graph_visit(root, look, &s, (tn_graph_options){ 0 }));
    ck_assert_int_gt(s.n, 0);
    return s;
}

START_TEST(the_graph_shows_that_nothing_is_kept)
{
    tn_tensor *x = input(TN_F32), *w = weight(0, TN_F32);
    tn_tensor *y = linear(activations[_i].f(x), w);
    tn_tensor *z = linear(kept(activations[_i].f(x)), w);
    size_t nbytes = ROWS * WIDTH * sizeof(float);
    ck_assert_int_eq(seen_of(y, "linear").inputs_kept, 1); /* w */
    ck_assert_int_eq(seen_of(z, "linear").inputs_kept, 2);
    ck_assert_uint_eq(seen_of(z, "linear").bytes - seen_of(y, "linear").bytes, nbytes);
    ck_assert_int_eq(seen_of(linear(tn_exp(x), w), "linear").inputs_kept, 2); /* not a cheap one */
}
END_TEST

/* Between forward and backward the memory of y is free. */
START_TEST(its_memory_is_free_until_backward)
{
    enum { N = 256 };
    int64_t nbytes = N * N * (int64_t)sizeof(float), used[2];
    for (int keep = 0; keep < 2; keep++) {
        tn_scope outer = tn_scope_begin();
        tn_tensor *x = random_leaf(TN_SHAPE(N, N), 1, TN_F32),
                  *w = random_leaf(TN_SHAPE(4, N), 2, TN_F32);
        int64_t before = tn_memory().in_use;
        tn_scope scope = tn_scope_begin();
        tn_tensor *y = activations[_i].f(x);
        tn_tensor *loss = tn_scope_return(scope, total(linear(keep ? kept(y) : y, w)));
        used[keep] = tn_memory().in_use - before;
        assert_ok(tn_backward(loss));
        tn_scope_end(outer);
    }
    ck_assert_int_lt(used[0], nbytes / 2);
    ck_assert_int_ge(used[1], nbytes);
}
END_TEST

/* ---- the same bits --------------------------------------------------------------------------- */

static const tn_dtype dtypes[] = { TN_F32, TN_F64 };

/* y is read by a product, by both sides of a multiplication, and by several more products. */
static tn_tensor *many_readers(tn_tensor *y, tn_tensor **w)
{
    tn_tensor *z = linear(y, w[0]);
    for (int k = 1; k < 3; k++) z = tn_add(z, linear(y, w[k]));
    return tn_add(total(z), tn_sum_all(tn_mul(tn_mul(y, y), y)));
}

START_TEST(gradients_have_the_bits_of_those_with_y_kept)
{
    const struct activation *a = &activations[_i % N_ACTIVATIONS];
    tn_dtype dtype = dtypes[_i / N_ACTIVATIONS];
    tn_tensor *leaves[4] = { input(dtype) };
    for (int k = 0; k < 3; k++) leaves[1 + k] = weight(k, dtype);
    /* and those of some leaves only: not by way of the activation, or only by it */
    static const int from[] = { 0, 2, 0 }, n[] = { 4, 2, 1 };
    for (int i = 0; i < 3; i++) {
        tn_tensor *y = a->f(leaves[0]), *z = kept(a->f(leaves[0]));
        assert_same_gradients(a->name, many_readers(y, leaves + 1), many_readers(z, leaves + 1),
                              n[i], leaves + from[i]);
    }
}
END_TEST

/* Other ops that read their input, other layouts of x, a view and a detached y. */
static bool keeping;
static tn_tensor *silu(tn_tensor *x)
{
    return keeping ? kept(tn_silu(x)) : tn_silu(x);
}

#define READER(name, ...)                                                                          \
    static tn_tensor *name(tn_tensor *x, tn_tensor *w)                                             \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
READER(conv, tn_conv2d(silu(tn_reshape(x, TN_SHAPE(ROWS, 1, 1, WIDTH))),
                       tn_reshape(w, TN_SHAPE(OUT, 1, 1, WIDTH)), TN_NONE, (tn_conv2d_spec){ 0 }))
READER(matmul, tn_matmul(silu(x), tn_transpose(w, 0, 1)))
READER(of_a_view,
       linear(tn_narrow(tn_reshape(silu(x), TN_SHAPE(1, ROWS, WIDTH)), 1, 1, ROWS - 2), w))
READER(normed, tn_layer_norm(silu(x), 1, tn_select(w, 0, 0), tn_select(w, 0, 1), 1e-5))
READER(chain, linear(leaky_relu(tn_gelu(silu(x))), w))

static tn_tensor *detached(tn_tensor *x, tn_tensor *w)
{
    tn_tensor *y = silu(x);
    return tn_add(linear(tn_detach(y), w), linear(y, w));
}

static const struct {
    const char *name;
    tn_tensor *(*f)(tn_tensor *x, tn_tensor *w);
} readers[] = {
    { "conv", conv },         { "matmul", matmul }, { "of_a_view", of_a_view },
    { "detached", detached }, { "normed", normed }, { "chain", chain },
};

START_TEST(other_readers_and_layouts)
{
    for (int layout = 0; layout < 3; layout++) {
        tn_tensor *x = input(TN_F32), *w = weight(0, TN_F32);
        if (layout) x = leaf(tn_detach(layout == 1 ? as_transposed(x) : as_strided(x)));
        keeping = false;
        tn_tensor *loss = total(readers[_i].f(x, w));
        keeping = true;
        assert_same_gradients(readers[_i].name, loss, total(readers[_i].f(x, w)), 2,
                              (tn_tensor *[]){ x, w });
    }
}
END_TEST

/* A small result in half precision is kept, also where it is half only in a region of autocast. */
START_TEST(half_precision_is_kept)
{
    static const tn_dtype half[] = { TN_BF16, TN_F16 };
    tn_dtype dtype = half[_i / N_ACTIVATIONS];
    const struct activation *a = &activations[_i % N_ACTIVATIONS];
    tn_tensor *y = linear(a->f(input(dtype)), weight(0, dtype)), *z = NULL;
    ck_assert_int_eq(seen_of(y, "linear").inputs_kept, 2);
    tn_tensor *square = random_leaf(TN_SHAPE(WIDTH, WIDTH), 5, TN_F32);
    TN_AUTOCAST(dtype)
    z = linear(a->f(tn_matmul(input(TN_F32), square)), weight(0, TN_F32));
    ck_assert_int_eq(seen_of(z, "linear").inputs_kept, 2);
}
END_TEST

/* ---- large results --------------------------------------------------------------------------- */

enum { WIDE = 1024 };

/* x's norm (what: 0), or its activation. */
static tn_tensor *large(int what, tn_tensor **leaves, int keep)
{
    tn_tensor *y = what ? activations[what - 1].f(leaves[0])
                        : tn_layer_norm(leaves[0], 1, leaves[1], leaves[2], 1e-5);
    return linear(keep ? kept(y) : y, leaves[3]);
}

static void large_leaves(int64_t rows, tn_dtype dtype, tn_tensor **leaves)
{
    leaves[0] = random_leaf(TN_SHAPE(rows, WIDE), 1, dtype);
    leaves[1] = random_leaf(TN_SHAPE(WIDE), 2, dtype);
    leaves[2] = random_leaf(TN_SHAPE(WIDE), 3, dtype);
    leaves[3] = random_leaf(TN_SHAPE(OUT, WIDE), 4, dtype);
}

/* From 3 MiB on a norm is computed again, and an activation also in half precision; with the same
 * bits, whichever gradients are asked for. */
START_TEST(large_results_are_computed_again)
{
    tn_dtype dtype = _i / 2 ? TN_BF16 : TN_F32;
    int what = _i % 2, n = what ? 1 : 3;
    int64_t rows = (3 << 20) / (WIDE * (int64_t)tn_dtype_size(dtype));
    tn_tensor *leaves[4], *made[4], *expected[4];
    large_leaves(rows - 1, dtype, leaves);
    int least = seen_of(large(what, leaves, 0), "linear").inputs_kept;
    ck_assert_int_eq(least, what && dtype == TN_F32 ? 1 : 2);
    large_leaves(rows, dtype, leaves);
    ck_assert_int_eq(seen_of(large(what, leaves, 0), "linear").inputs_kept, 1);
    ck_assert_int_eq(seen_of(large(what, leaves, 1), "linear").inputs_kept, 2);
    leaves[n] = leaves[3];
    tn_tensor *loss = total(large(what, leaves, 0));
    gradients(total(large(what, leaves, 1)), n + 1, leaves, expected);
    assert_ok(tn_gradients(1, &loss, NULL, 1, &leaves[n], made, TN_RETAIN_GRAPH));
    assert_same_bits("of the weight alone", made[0], expected[n]);
    gradients(loss, n + 1, leaves, made);
    for (int i = 0; i <= n; i++) assert_same_bits("large", made[i], expected[i]);
}
END_TEST

/* The weight and the bias of a norm belong to what y is computed from; its own gradient reads no
 * bias. Either may be absent. */
START_TEST(a_norm_and_its_weights)
{
    tn_tensor *leaves[4];
    for (int absent = 0; absent < 3; absent++) {
        large_leaves(1024, TN_F32, leaves);
        if (absent) leaves[absent] = TN_NONE;
        assert_same_gradients("without a weight or a bias", total(large(0, leaves, 0)),
                              total(large(0, leaves, 1)), 1, leaves);
    }
    for (int keep = 0; keep < 2; keep++) {
        large_leaves(1024, TN_F32, leaves);
        tn_tensor *loss = total(large(0, leaves, keep));
        TN_NO_GRAD assert_ok(tn_mul_scalar_(leaves[2], 3));
        if (keep)
            assert_ok(tn_backward(loss));
        else
            assert_fails(tn_backward(loss), TN_E_STATE, "input 2 of tn_layer_norm");
    }
}
END_TEST

enum { LARGE = 512, CAST = LARGE * WIDE * 2 }; /* a weight's rows, and its bytes in bf16: 1 MiB */

/* In a region of autocast a large weight's first cast is not kept: backward casts once more. It
 * stays from the second time on that it is read. The bits are the same, also of second derivatives.
 */
static void three_casts(tn_tensor **leaves, bool large)
{
    tn_tensor *y[3], *made[3][4];
    int64_t used[4] = { tn_memory().in_use };
    TN_AUTOCAST(TN_BF16) for (int i = 0; i < 3; i++)
    {
        y[i] = linear(leaves[0], leaves[1]);
        used[i + 1] = tn_memory().in_use;
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(seen_of(y[i], "linear").inputs_kept, large && i == 0 ? 1 : 2);
        ck_assert_int_eq(used[i + 1] - used[i] > CAST / 2, i == large);
        tn_tensor *loss = total(y[i]);
        assert_ok(tn_gradients(1, &loss, NULL, 2, leaves, made[i], TN_CREATE_GRAPH));
        gradients(tn_add(total(made[i][0]), total(made[i][1])), 2, leaves, made[i] + 2);
        for (int j = 0; j < 4; j++) assert_same_bits("cast", made[i][j], made[0][j]);
    }
}

START_TEST(casts_of_large_weights)
{
    tn_tensor *leaves[2] = { random_leaf(TN_SHAPE(4, WIDE), 1, TN_F32), NULL };
    for (int64_t rows = LARGE - 1; rows <= LARGE; rows++) {
        leaves[1] = random_leaf(TN_SHAPE(rows, WIDE), 2, TN_F32);
        three_casts(leaves, rows == LARGE);
        three_casts(leaves, rows == LARGE); /* a new region */
    }
}
END_TEST

START_TEST(a_large_weight_that_changes)
{
    tn_tensor *x = random_leaf(TN_SHAPE(4, WIDE), 1, TN_F32),
              *w = random_leaf(TN_SHAPE(LARGE, WIDE), 2, TN_F32);
    tn_tensor *y[2], *dw;
    assert_ok(tn_set_name(w, "the_w"));
    TN_AUTOCAST(TN_BF16) for (int i = 0; i < 2; i++) y[i] = total(linear(x, w));
    TN_NO_GRAD assert_ok(tn_mul_scalar_(w, 2));
    assert_ok(tn_gradients(1, &y[0], NULL, 1, &w, &dw, TN_RETAIN_GRAPH)); /* it does not read w */
    assert_fails(tn_backward(y[0]), TN_E_STATE, "input 0 of tn_to_dtype, the_w");
    assert_ok(tn_backward(y[1]));
}
END_TEST

/* An explanation doesn't blame a change of the bias where nobody computes y again. */
START_TEST(a_changed_bias_explained)
{
    tn_tensor *leaves[4];
    large_leaves(1024, TN_F32, leaves);
    tn_tensor *loss = total(large(0, leaves, 1));
    TN_NO_GRAD assert_ok(tn_mul_scalar_(leaves[2], 3));
    char text[1 << 14] = "";
    FILE *file = fmemopen(text, sizeof text - 1, "w");
    ck_assert_ptr_nonnull(file);
    assert_ok(tn_explain(file, loss, (tn_explain_options){ 0 }));
    fclose(file);
    ck_assert_msg(strstr(text, "layer_norm") && !strstr(text, "overwritten"), "%s", text);
}
END_TEST

/* One graph is freed while another one still computes y from the norm's inputs; the order of the
 * two, and a graph that is dropped without a backward. */
START_TEST(a_norm_in_two_graphs)
{
    tn_tensor *leaves[4], *other = random_leaf(TN_SHAPE(OUT, WIDE), 9, TN_F32), *g[1], *expected[1];
    for (int order = 0; order < 3; order++) {
        tn_scope scope = tn_scope_begin();
        large_leaves(1024, TN_F32, leaves);
        tn_tensor *y = tn_layer_norm(leaves[0], 1, leaves[1], leaves[2], 1e-5);
        tn_tensor *a = total(linear(y, leaves[3])), *b = total(linear(y, other));
        gradients(total(linear(kept(tn_detach(y)), other)), 1, &other, expected);
        if (order == 0) assert_ok(tn_backward(a));
        if (order != 2) gradients(b, 1, &other, g);
        if (order == 1) assert_ok(tn_backward(a));
        if (order != 2) assert_same_bits("of the other graph", g[0], expected[0]);
        tn_scope_end(scope);
    }
}
END_TEST

/* d2 of the loss by x and by w: y computed again leads to x. */
START_TEST(second_derivatives)
{
    tn_tensor *leaves[2] = { input(TN_F64), weight(0, TN_F64) }, *result[2][2];
    for (int keep = 0; keep < 2; keep++) {
        tn_tensor *y = activations[_i].f(leaves[0]), *first[2];
        tn_tensor *loss = total(linear(keep ? kept(y) : y, leaves[1]));
        assert_ok(tn_gradients(1, &loss, NULL, 2, leaves, first, TN_CREATE_GRAPH));
        gradients(tn_add(total(first[0]), total(first[1])), 2, leaves, result[keep]);
    }
    for (int i = 0; i < 2; i++) assert_same_bits(activations[_i].name, result[0][i], result[1][i]);
}
END_TEST

/* ---- changes in place ------------------------------------------------------------------------ */

START_TEST(a_result_changed_before_it_is_read_is_kept)
{
    tn_tensor *x = input(TN_F64), *w = weight(0, TN_F64), *g;
    tn_tensor *y = tn_gelu(x);
    TN_NO_GRAD assert_ok(tn_mul_scalar_(y, 3));
    tn_tensor *loss = tn_sum_all(linear(y, w));
    gradients(loss, 1, &w, &g);
    tn_tensor *row = tn_sum(tn_mul_scalar(tn_gelu(x), 3), TN_AXES(0), true);
    assert_close(g, tn_expand(row, TN_SHAPE(OUT, WIDTH)), 1e-13, 1e-13);
}
END_TEST

/* What was y at forward is still known. */
START_TEST(a_result_may_change_after_it_was_read)
{
    tn_tensor *leaves[2] = { input(TN_F32), weight(0, TN_F32) }, *y = tn_gelu(leaves[0]);
    tn_tensor *loss = total(linear(y, leaves[1]));
    TN_NO_GRAD assert_ok(tn_zero_(y));
    tn_tensor *same = total(linear(tn_gelu(leaves[0]), leaves[1]));
    assert_same_gradients("gelu", loss, same, 2, leaves);
    /* a kept one must not */
    y = kept(tn_gelu(leaves[0]));
    loss = total(linear(y, leaves[1]));
    TN_NO_GRAD assert_ok(tn_zero_(y));
    assert_fails(tn_backward(loss), TN_E_STATE, "input 0 of tn_linear");
}
END_TEST

START_TEST(a_changed_x_is_an_error)
{
    for (int late = 0; late < 2; late++) {
        tn_tensor *x = input(TN_F32), *w = weight(0, TN_F32), *g;
        assert_ok(tn_set_name(x, "the_x"));
        tn_tensor *y = tn_gelu(x);
        if (!late) TN_NO_GRAD assert_ok(tn_zero_(x));
        tn_tensor *loss = total(linear(y, w));
        if (late) TN_NO_GRAD assert_ok(tn_zero_(x));
        assert_fails(tn_gradients(1, &loss, NULL, 1, &w, &g, TN_RETAIN_GRAPH), TN_E_STATE,
                     "input 0 of tn_gelu, the_x");
        ck_assert_ptr_null(g);
        assert_fails(tn_backward(loss), TN_E_STATE, "input 0 of tn_gelu, the_x");
        ck_assert(tn_is_none(tn_grad(w)) && tn_is_none(tn_grad(x)));
    }
}
END_TEST

/* ---- freeing --------------------------------------------------------------------------------- */

START_TEST(a_graph_that_is_retained_can_be_used_again)
{
    tn_tensor *x = input(TN_F32), *w = weight(0, TN_F32);
    tn_tensor *leaves[2] = { x, w }, *once[2];
    tn_tensor *loss = total(linear(tn_gelu(x), w));
    assert_ok(tn_backward_from(loss, TN_NONE, TN_RETAIN_GRAPH));
    for (int i = 0; i < 2; i++) once[i] = tn_clone(tn_grad(leaves[i]));
    assert_ok(tn_backward_from(loss, TN_NONE, TN_RETAIN_GRAPH));
    assert_ok(tn_backward(loss));
    for (int i = 0; i < 2; i++)
        assert_close(tn_grad(leaves[i]), tn_mul_scalar(once[i], 3), 1e-6, 0);
    seen s = seen_of(loss, "linear");
    ck_assert(s.freed && s.bytes == 0);
    assert_fails(tn_backward(loss), TN_E_STATE, "used by an earlier backward");
}
END_TEST

/* Two losses from one y: the backward of one frees the graph up to y, but not what the other's
 * weights need. An op that reads y after that keeps it. */
START_TEST(one_graph_is_freed_while_another_still_needs_y)
{
    tn_tensor *x = input(TN_F32);
    tn_tensor *w[3] = { weight(0, TN_F32), weight(1, TN_F32), weight(2, TN_F32) };
    tn_tensor *y = tn_gelu(x), *loss[3];
    for (int k = 0; k < 2; k++) loss[k] = total(linear(y, w[k]));
    assert_ok(tn_backward(loss[0]));
    loss[2] = total(linear(y, w[2]));
    /* a second pass that comes to y's op fails, and lets go of nothing */
    assert_fails(tn_backward(tn_sum_all(y)), TN_E_STATE, "used by an earlier backward");
    ck_assert_int_eq(seen_of(loss[1], "linear").inputs_kept, 1);
    ck_assert_int_eq(seen_of(loss[1], "gelu").inputs_kept, 1);   /* for loss[1] */
    ck_assert_int_eq(seen_of(loss[2], "linear").inputs_kept, 1); /* for loss[1], too */
    for (int k = 1; k < 3; k++)
        assert_same_gradients("gelu", loss[k], total(linear(tn_gelu(x), w[k])), 1, &w[k]);
    ck_assert_int_eq(seen_of(loss[1], "gelu").inputs_kept, 0);
    tn_tensor *last = total(linear(y, w[2]));
    ck_assert_int_eq(seen_of(last, "linear").inputs_kept, 2);
    assert_same_gradients("gelu", last, total(linear(tn_gelu(x), w[2])), 1, &w[2]);
    assert_fails(tn_backward(loss[1]), TN_E_STATE, "used by an earlier backward");
    assert_fails(tn_backward(last), TN_E_STATE, "used by an earlier backward");
}
END_TEST

/* A graph is dropped without a backward, or after that of another. */
START_TEST(dropped_graphs_leave_nothing)
{
    for (int backward = 0; backward < 2; backward++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *x = random_leaf(TN_SHAPE(256, 256), 1, TN_F32),
                  *w = random_leaf(TN_SHAPE(4, 256), 2, TN_F32);
        tn_tensor *h = tn_neg(x); /* x is its own, h only the graph's */
        tn_keep(h);
        tn_tensor *y = tn_keep(tn_gelu(h));
        tn_tensor *loss[2] = { tn_keep(total(linear(y, w))), tn_keep(total(linear(y, w))) };
        tn_scope_end(scope);
        int64_t before = tn_memory().in_use, nbytes = 256 * 256 * (int64_t)sizeof(float);
        tn_drop(y);
        tn_drop(h); /* gelu still keeps its memory */
        ck_assert_int_lt(before - tn_memory().in_use, 2 * nbytes);
        if (backward) assert_ok(tn_backward(loss[0]));
        tn_drop(loss[0]);
        tn_drop(loss[1]);
    }
}
END_TEST

/* ---- memory runs out ------------------------------------------------------------------------- */

/* Backward alone, or forward, too. */
typedef struct step {
    tn_tensor *x, *w;
    bool forward;
} step;

static tn_status a_step(void *user)
{
    step *s = user;
    int64_t k = scarce.failing;
    scarce_fail(s->forward ? k : 0);
    tn_tensor *loss = total(linear(tn_gelu(s->x), s->w));
    if (!s->forward) scarce_fail(k);
    tn_status status = loss ? tn_backward(loss) : tn_error_status();
    ck_assert_int_eq(tn_is_none(tn_grad(s->w)), status != TN_OK);
    ck_assert_int_eq(tn_is_none(tn_grad(s->x)), status != TN_OK);
    assert_ok(tn_set_grad(s->w, TN_NONE));
    assert_ok(tn_set_grad(s->x, TN_NONE));
    return status;
}

START_TEST(out_of_memory_changes_nothing)
{
    scarce_install();
    step s = { input(TN_F32), weight(0, TN_F32), _i };
    ck_assert_int_eq(scarce_sweep_warm(a_step, NULL, &s), scarce.requests);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct other {
    tn_tensor *y, *w, *loss;
    pthread_barrier_t *start;
} other;

static void *records(void *user)
{
    other *o = user;
    tn_scope scope = tn_scope_begin();
    pthread_barrier_wait(o->start);
    o->loss = tn_keep(total(linear(o->y, o->w)));
    tn_scope_end(scope);
    return NULL;
}

/* An activation or a large norm. */
static tn_tensor *cheap(int norm, tn_tensor *x, tn_tensor *gain)
{
    return norm ? tn_layer_norm(x, 1, gain, gain, 1e-5) : tn_gelu(x);
}

/* A thread records on y while this one's backward frees y's graph: it gets x, or keeps y. */
START_TEST(recording_beside_a_backward)
{
    enum { THREADS = 2 };
    int64_t rows = _i ? 3072 : ROWS, wide = _i ? 256 : WIDTH;
    tn_tensor *x = random_leaf(TN_SHAPE(rows, wide), 1, TN_F32),
              *gain = random_leaf(TN_SHAPE(wide), 2, TN_F32);
    tn_tensor *w = random_leaf(TN_SHAPE(OUT, wide), 3, TN_F32), *expected[THREADS], *own[THREADS];
    for (int i = 0; i < THREADS; i++) {
        own[i] = random_leaf(TN_SHAPE(OUT, wide), (uint64_t)(4 + i), TN_F32);
        gradients(total(linear(cheap(_i, x, gain), own[i])), 1, &own[i], &expected[i]);
    }
    for (int round = 0; round < (_i ? 12 : 200); round++) {
        tn_scope scope = tn_scope_begin();
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, THREADS + 1);
        tn_tensor *y = cheap(_i, x, gain), *loss = total(linear(y, w)), *g;
        pthread_t thread[THREADS];
        other o[THREADS];
        for (int i = 0; i < THREADS; i++) {
            o[i] = (other){ y, own[i], NULL, &start };
            ck_assert_int_eq(pthread_create(&thread[i], NULL, records, &o[i]), 0);
        }
        pthread_barrier_wait(&start);
        assert_ok(tn_backward(loss));
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            gradients(o[i].loss, 1, &own[i], &g);
            assert_same_bits("recorded beside", g, expected[i]);
            tn_drop(o[i].loss);
        }
        pthread_barrier_destroy(&start);
        tn_scope_end(scope);
    }
}
END_TEST

/* ---- a table that stands twice --------------------------------------------------------------- */

enum { TOKENS = 4096, FEATURES = 64 };

/* A language model in small: tokens by their rows of `in`, scores by the rows of `out`. */
static tn_tensor *scores_loss(tn_tensor *in, tn_tensor *out, tn_tensor *ids, int64_t padding)
{
    return total(linear(tn_embedding(in, ids, padding), out));
}

static tn_tensor *table(tn_dtype dtype)
{
    return leaf(random_as(TN_SHAPE(TOKENS, FEATURES), -1, 1, 3, dtype));
}

static tn_tensor *some_ids(void)
{
    static const int64_t ids[] = { 7, 4095, 7, 0, 19, 7, 4095, 2 };
    return tn_from_data(ids, TN_SHAPE(8), TN_I64);
}

/* The gradient of a table that is read by token and multiplied with is that of two tables, one for
 * each, and takes one table's memory. */
START_TEST(a_tied_table_takes_no_zeros)
{
    for (int64_t padding = -1; padding <= 7; padding += 8) {
        tn_tensor *w = table(TN_F32), *a = table(TN_F32), *b = table(TN_F32);
        tn_tensor *loss = scores_loss(w, w, some_ids(), padding);
        int64_t before = tn_memory().data_bytes;
        assert_ok(tn_backward(loss));
        ck_assert_int_lt(tn_memory().data_bytes - before, 3 * TOKENS * FEATURES * 4 / 2);
        assert_ok(tn_backward(scores_loss(a, b, some_ids(), padding)));
        assert_close(tn_grad(w), tn_add(tn_grad(a), tn_grad(b)), 1e-6, 1e-6);
    }
}
END_TEST

/* The same when it is a result, in f64; when its gradient so far is the user's; and half precision
 * rounds both sums, so it comes close. */
START_TEST(a_tied_table_elsewhere)
{
    static const tn_dtype each[] = { TN_F64, TN_F32, TN_BF16 };
    for (int i = 0; i < 3; i++) {
        tn_tensor *a = table(each[i]), *b = table(each[i]), *w = table(each[i]);
        tn_tensor *twin = tn_neg(tn_neg(w));
        double near = i == 2 ? 0.02 : 1e-6;
        assert_ok(tn_backward(scores_loss(a, b, some_ids(), -1)));
        assert_ok(tn_backward(scores_loss(twin, twin, some_ids(), -1)));
        assert_close(tn_grad(w), tn_add(tn_grad(a), tn_grad(b)), near, near);

        tn_tensor *seed = random_as(TN_SHAPE(TOKENS, FEATURES), -1, 1, 5, each[i]);
        tn_tensor *was = tn_clone(seed), *rows = tn_embedding(w, some_ids(), -1);
        tn_tensor *outputs[] = { rows, w };
        tn_tensor *seeds[] = { tn_ones_like(rows), seed }, *g[1];
        assert_ok(tn_gradients(2, outputs, seeds, 1, &w, g, 0));
        assert_close(seed, was, 0, 0);
        tn_tensor *at = tn_expand(tn_reshape(some_ids(), TN_SHAPE(8, 1)), TN_SHAPE(8, FEATURES));
        tn_tensor *sum = tn_scatter_add(was, 0, at, tn_ones_like(rows));
        assert_close(g[0], sum, near, near);
    }
}
END_TEST

/* The gradient of y is not row-major there, and the table stands elsewhere, too. */
static tn_tensor *cubes(tn_tensor **in, void *user)
{
    static const int64_t ids[] = { 1, 2, 1, 4 };
    (void)user;
    tn_tensor *y = tn_embedding(in[0], tn_from_data(ids, TN_SHAPE(4), TN_I64), -1);
    tn_tensor *turned = tn_transpose(y, 0, 1), *all = tn_pow_scalar(in[0], 3);
    return tn_add(tn_sum_all(tn_mul(turned, tn_square(turned))), tn_sum_all(all));
}

START_TEST(a_tied_table_twice_differentiated)
{
    tn_tensor *w = leaf(random_f64(TN_SHAPE(5, 3), -1, 1, 4));
    assert_ok(tn_gradcheck(cubes, &w, 1, NULL, (tn_gradcheck_options){ .second = true }));
}
END_TEST

/* Told or not, the same bits. */
START_TEST(a_tied_table_told)
{
    tn_tensor *w = table(TN_F32), *told = table(TN_F32);
    assert_ok(tn_backward(scores_loss(w, w, some_ids(), -1)));
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    assert_ok(tn_explain(file, scores_loss(told, told, some_ids(), -1), (tn_explain_options){ 0 }));
    fclose(file);
    assert_close(tn_grad(told), tn_grad(w), 0, 0);
}
END_TEST

Suite *test_suite(void)
{
    setenv("TN_CACHE", "0", 1); /* read at the first allocation: the allocator sees them all */
    Suite *s = suite_create("saved");
    TCase *t = test_case(s, "memory");
    tcase_add_loop_test(t, the_graph_shows_that_nothing_is_kept, 0, N_ACTIVATIONS);
    tcase_add_loop_test(t, its_memory_is_free_until_backward, 0, N_ACTIVATIONS);
    t = test_case(s, "bits");
    tcase_add_loop_test(t, gradients_have_the_bits_of_those_with_y_kept, 0, 2 * N_ACTIVATIONS);
    tcase_add_loop_test(t, other_readers_and_layouts, 0, COUNT(readers));
    tcase_add_loop_test(t, half_precision_is_kept, 0, 2 * N_ACTIVATIONS);
    tcase_add_loop_test(t, large_results_are_computed_again, 0, 4);
    add_tests(t, casts_of_large_weights, a_norm_and_its_weights, a_changed_bias_explained,
              a_norm_in_two_graphs);
    tcase_add_loop_test(t, second_derivatives, 0, N_ACTIVATIONS);
    t = test_case(s, "changes");
    add_tests(t, a_result_changed_before_it_is_read_is_kept, a_result_may_change_after_it_was_read,
              a_changed_x_is_an_error, a_large_weight_that_changes);
    t = test_case(s, "freeing");
    add_tests(t, a_graph_that_is_retained_can_be_used_again,
              one_graph_is_freed_while_another_still_needs_y, dropped_graphs_leave_nothing);
    tcase_add_loop_test(t, out_of_memory_changes_nothing, 0, 2);
    tcase_add_loop_test(test_case(s, "threads"), recording_beside_a_backward, 0, 2);
    add_tests(test_case(s, "tables"), a_tied_table_takes_no_zeros, a_tied_table_elsewhere,
              a_tied_table_told, a_tied_table_twice_differentiated);
    return s;
}
