/*
 * test_recurrent.c - RNN, GRU, LSTM and their cells against PyTorch (golden/recurrent.safetensors):
 * results, final states, gradients, initial values; and what the layers promise beside.
 * The ops below them have rows in op_rows_recurrent.def.
 *
 * Seen to fail: with z and 1 - z exchanged in a GRU's step (src/tensor/cells.h), with the states of
 * the second direction taken from the last step (src/nn/layers/recurrent.c), without the gradient
 * of c_n in recurrent.c, with the inner pass of its second derivatives over the inputs themselves,
 * with room for packed weights that are not packed into it, with z for r before the product.
 */
#include "ops/op_table.h"
#include "boxes.h"
#include "scarce.h"

static tn_list *golden;

#define rnn(in, hidden, ...) tn_rnn_new((in), (hidden), (tn_recurrent_options){ __VA_ARGS__ })
#define gru(in, hidden, ...) tn_gru_new((in), (hidden), (tn_recurrent_options){ __VA_ARGS__ })
#define lstm(in, hidden, ...) tn_lstm_new((in), (hidden), (tn_recurrent_options){ __VA_ARGS__ })

typedef tn_module *(*maker)(int64_t in, int64_t hidden, tn_recurrent_options o);
static const maker layers[] = { tn_rnn_new, tn_gru_new, tn_lstm_new };

typedef struct recurrent_case {
    const char *name;
    maker make;
    tn_recurrent_options options;
} recurrent_case;

static const recurrent_case cases[] = {
    { "rnn", tn_rnn_new, { 0 } },
    { "rnn_relu", tn_rnn_new, { .layers = 2, .relu = true, .sequence_first = true } },
    { "gru", tn_gru_new, { .layers = 2 } },
    { "gru_both", tn_gru_new, { .layers = 2, .bidirectional = true } },
    { "lstm", tn_lstm_new, { 0 } },
    { "lstm_both",
      tn_lstm_new,
      { .layers = 2, .no_bias = true, .bidirectional = true, .sequence_first = true } },
    { "lstm_single", tn_lstm_new, { .layers = 2 } },
    { "rnn_cell", tn_rnn_cell_new, { 0 } },
    { "rnn_cell_relu", tn_rnn_cell_new, { .relu = true, .no_bias = true } },
    { "gru_cell", tn_gru_cell_new, { 0 } },
    { "gru_cell_single", tn_gru_cell_new, { 0 } },
    { "lstm_cell", tn_lstm_cell_new, { 0 } },
    { "lstm_cell_zeros", tn_lstm_cell_new, { 0 } },
    { "rnn_packed", tn_rnn_new, { 0 } },
    { "gru_packed", tn_gru_new, { .layers = 2, .bidirectional = true } },
    { "lstm_packed", tn_lstm_new, { .layers = 2, .bidirectional = true, .sequence_first = true } },
    { "lstm_proj", tn_lstm_new, { .layers = 2, .bidirectional = true, .proj_size = 2 } },
    { "lstm_proj_zeros", tn_lstm_new, { .no_bias = true, .proj_size = 3 } },
    { "lstm_proj_packed", tn_lstm_new, { .layers = 2, .bidirectional = true, .proj_size = 2 } },
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* CASE/what, or NULL. */
static tn_tensor *find(const char *name, const char *what)
{
    char key[256];
    snprintf(key, sizeof key, "%s/%s", name, what);
    return tn_list_has(golden, key) ? tn_list_get(golden, key) : NULL;
}

static tn_tensor *leaf(tn_tensor *t)
{
    return t ? op_leaf(t, true) : NULL;
}

/* The case's module with PyTorch's parameters, which are the same ones under the same names. */
static tn_module *made(const recurrent_case *c)
{
    tn_module *m = c->make(3, 4, c->options);
    assert_made(m);
    assert_ok(tn_module_to_dtype(m, TN_F64));
    tn_list *list = tn_parameters(m);
    int there = 0;
    char key[128];
    for (int i = 0; i < list->n; i++) {
        snprintf(key, sizeof key, "param/%s", list->entry[i].name);
        tn_tensor *value = find(c->name, key);
        ck_assert_msg(value != NULL, "%s: PyTorch has no %s", c->name, key);
        TN_NO_GRAD assert_ok(tn_copy_(list->entry[i].tensor, value));
    }
    snprintf(key, sizeof key, "%s/param/", c->name);
    for (int i = 0; i < golden->n; i++)
        there += strncmp(golden->entry[i].name, key, strlen(key)) == 0;
    ck_assert_int_eq(there, list->n);
    return m;
}

static tn_tensor *against(tn_tensor *sum, const char *name, const char *what, tn_tensor *y)
{
    char seed[32];
    snprintf(seed, sizeof seed, "seed_%s", what);
    assert_close(y, find(name, what), 1e-10, 1e-12);
    tn_tensor *part = tn_sum_all(tn_mul(y, find(name, seed)));
    return sum ? tn_add(sum, part) : part;
}

START_TEST(as_in_pytorch)
{
    const recurrent_case *c = &cases[_i];
    tn_module *m = owned(made(c));
    tn_tensor *x = leaf(find(c->name, "x")), *h = leaf(find(c->name, "h"));
    tn_tensor *cell = leaf(find(c->name, "c")), *sum = NULL;
    tn_recurrent_state state = { h, cell, find(c->name, "lengths") };
    const bool packed = state.lengths;
    tn_tensor *y = tn_recurrent_forward(m, x, &state);
    assert_made(y);
    if (find(c->name, "y"))
        sum = against(sum, c->name, "y", y);
    else
        assert_close(y, state.h, 0, 0); /* a cell's result is its state */
    sum = against(sum, c->name, "h_n", state.h);
    if (find(c->name, "c_n"))
        sum = against(sum, c->name, "c_n", state.c);
    else
        ck_assert_ptr_null(state.c);
    assert_ok(tn_backward(sum));
    assert_close(tn_grad(x), find(c->name, "dx"), 1e-10, 1e-12);
    if (h) assert_close(tn_grad(h), find(c->name, "dh"), 1e-10, 1e-12);
    if (cell) assert_close(tn_grad(cell), find(c->name, "dc"), 1e-10, 1e-12);
    const tn_list *list = tn_parameters(m);
    for (int i = 0; i < list->n; i++) {
        char key[128];
        snprintf(key, sizeof key, "grad/%s", list->entry[i].name);
        assert_close(tn_grad(list->entry[i].tensor), find(c->name, key), 1e-10, 1e-12);
    }
    ck_assert_ptr_null(state.lengths);
    if (!h && !packed) assert_close(tn_forward(m, x), y, 0, 0);
}
END_TEST

START_TEST(IN_05_recurrent)
{
    static const recurrent_case kinds[] = {
        { "init/rnn", tn_rnn_new, { .layers = 2, .bidirectional = true } },
        { "init/gru", tn_gru_new, { .layers = 2, .bidirectional = true } },
        { "init/lstm", tn_lstm_new, { .layers = 2, .bidirectional = true } },
        { "init/lstm_cell", tn_lstm_cell_new, { 0 } },
        { "init/lstm_proj", tn_lstm_new, { .layers = 2, .proj_size = 2 } }
    };
    tn_manual_seed(42);
    tn_module *m = owned(kinds[_i].make(3, 5, kinds[_i].options));
    const tn_list *list = tn_parameters(m);
    for (int i = 0; i < list->n; i++)
        assert_close(list->entry[i].tensor, find(kinds[_i].name, list->entry[i].name), 0, 0);
}
END_TEST

static tn_tensor *squares(tn_module *m, void *user)
{
    tn_recurrent_state state = { 0 };
    tn_tensor *y = tn_recurrent_forward(m, user, &state);
    tn_tensor *sum = tn_add(tn_sum_all(tn_square(y)), tn_sum_all(state.h));
    return state.c ? tn_add(sum, tn_sum_all(tn_square(state.c))) : sum;
}

/* Central differences of every parameter, through layers, directions and dropout between layers. */
START_TEST(gradients_of_whole_layers)
{
    tn_manual_seed(3);
    tn_module *m = owned(layers[_i](
        3, 4, (tn_recurrent_options){ .layers = 2, .bidirectional = true, .dropout = 0.3 }));
    assert_ok(tn_module_gradcheck(m, squares, tn_randn(TN_SHAPE(2, 3, 3)),
                                  (tn_module_gradcheck_options){ 0 }));
}
END_TEST

static tn_tensor *packed_squares(tn_module *m, void *user)
{
    const int64_t lengths[] = { 2, 4, 1, 4 };
    tn_recurrent_state state = { .lengths = tn_from_ints(lengths, TN_SHAPE(4)) };
    tn_tensor *y = tn_recurrent_forward(m, user, &state);
    tn_tensor *sum = tn_add(tn_sum_all(tn_square(y)), tn_sum_all(tn_exp(state.h)));
    return state.c ? tn_add(sum, tn_sum_all(tn_square(state.c))) : sum;
}

/* The same with rows of unequal lengths, and with a projection; y is 0 where a row has ended. */
START_TEST(gradients_of_packed_layers)
{
    tn_manual_seed(3);
    const tn_recurrent_options o = {
        .layers = 2, .bidirectional = true, .proj_size = _i == 3 ? 2 : 0, .reset_before = _i == 4
    };
    tn_module *m = owned(layers[_i == 4 ? 1 : _i > 2 ? 2 : _i](3, 4, o));
    tn_tensor *x = tn_randn(TN_SHAPE(4, 5, 3));
    assert_ok(tn_module_gradcheck(m, packed_squares, x, (tn_module_gradcheck_options){ 0 }));
    const int64_t lengths[] = { 2, 4, 1, 4 };
    for (int64_t row = 0; row < 4; row++) {
        tn_recurrent_state all = { .lengths = tn_from_ints(lengths, TN_SHAPE(4)) }, one = { 0 };
        tn_tensor *y = tn_recurrent_forward(m, x, &all);
        tn_tensor *part = tn_narrow(tn_narrow(x, 0, row, 1), 1, 0, lengths[row]);
        tn_tensor *alone = tn_recurrent_forward(m, part, &one), *rest = tn_narrow(y, 0, row, 1);
        assert_close(tn_narrow(rest, 1, 0, lengths[row]), alone, 1e-6, 1e-6);
        rest = tn_narrow(rest, 1, lengths[row], 5 - lengths[row]);
        assert_close(rest, tn_zeros_like(rest), 0, 0);
        assert_close(tn_narrow(all.h, 1, row, 1), one.h, 1e-6, 1e-6);
    }
}
END_TEST

/* Row `row` of the GRU's step by loops, r before the product; h [4] before, then after. */
static void step_by_loops(tn_module *m, const double *x, double *h)
{
    double a[12], s, rh[4], z[4];
    for (int i = 0; i < 12; i++) {
        a[i] = tn_at(tn_get_parameter(m, "bias_ih_l0"), TN_INDEX(i)) +
               tn_at(tn_get_parameter(m, "bias_hh_l0"), TN_INDEX(i));
        for (int k = 0; k < 3; k++)
            a[i] += tn_at(tn_get_parameter(m, "weight_ih_l0"), TN_INDEX(i, k)) * x[k];
    }
    for (int i = 0; i < 12; i++) {
        for (int k = 0; k < 4; k++)
            a[i] +=
                tn_at(tn_get_parameter(m, "weight_hh_l0"), TN_INDEX(i, k)) * (i < 8 ? h[k] : rh[k]);
        s = 1 / (1 + exp(-a[i]));
        if (i < 4) rh[i] = s * h[i];
        if (i >= 4 && i < 8) z[i - 4] = s;
    }
    for (int i = 0; i < 4; i++) h[i] = (1 - z[i]) * tanh(a[8 + i]) + z[i] * h[i];
}

/* Cho et al. (2014), eq. 5 to 8, written out; from zeros and from a given state. */
START_TEST(reset_before_the_product)
{
    tn_manual_seed(5);
    tn_module *m = owned(gru(3, 4, .reset_before = true));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 5, 3)), *h0 = tn_randn(TN_SHAPE(1, 2, 4));
    tn_recurrent_state state = { .h = _i ? h0 : TN_NONE };
    tn_tensor *y = tn_recurrent_forward(m, x, &state);
    assert_made(y);
    for (int64_t row = 0; row < 2; row++) {
        double h[4] = { 0 }, of_x[3];
        for (int k = 0; _i && k < 4; k++) h[k] = tn_at(h0, TN_INDEX(0, row, k));
        for (int64_t t = 0; t < 5; t++) {
            for (int k = 0; k < 3; k++) of_x[k] = tn_at(x, TN_INDEX(row, t, k));
            step_by_loops(m, of_x, h);
            for (int k = 0; k < 4; k++)
                ck_assert_double_eq_tol(tn_at(y, TN_INDEX(row, t, k)), h[k], 1e-6);
        }
        for (int k = 0; k < 4; k++)
            ck_assert_double_eq_tol(tn_at(state.h, TN_INDEX(0, row, k)), h[k], 1e-6);
    }
    TN_AUTOCAST(TN_BF16) assert_close(tn_forward(m, x), tn_recurrent_forward(m, x, NULL), 0, 0);
    tn_recurrent_state given = { .h = h0 };
    TN_AUTOCAST(TN_BF16) assert_made(tn_recurrent_forward(m, x, &given));
    assert_null(tn_forward(m, tn_randn(TN_SHAPE(2, 0, 3))), TN_E_SHAPE, "at least one step");
    assert_null(rnn(3, 4, .reset_before = true), TN_E_INVALID,
                "tn_rnn_new: reset_before: want it in a GRU");
}
END_TEST

/* ---- second derivatives --------------------------------------------------------------------- */

/* What goes in and out is not linear, and inputs depend on each other. */
static tn_tensor *chained(tn_tensor **in, void *user)
{
    tn_tensor *x = in[0], *w = in[1], *u = in[2], *h = tn_tanh(tn_select(x, 0, 1)), *c = NULL;
    tn_tensor *y = NULL, *z = NULL;
    switch (*(const int *)user) {
    case 0: /* one tensor as both states */
        y = tn_lstm(x, h, h, w, u, TN_NONE, TN_NONE, false, &c);
        return tn_add(tn_sum_all(tn_square(y)), tn_sum_all(tn_exp(c)));
    case 1: /* one over the other, from its last state, the other way */
        y = tn_gru(x, TN_NONE, w, u, TN_NONE, TN_NONE, false);
        z = tn_gru(tn_narrow(y, 2, 0, 2), tn_select(y, 0, 2), w, u, TN_NONE, TN_NONE, true);
        return tn_sum_all(tn_mul(z, y));
    default: /* both directions of one x, which is no leaf */
        x = tn_mul(x, x);
        y = tn_rnn(x, h, w, u, TN_NONE, TN_NONE, false, false);
        z = tn_rnn(x, h, w, u, TN_NONE, TN_NONE, false, true);
        return tn_sum_all(tn_square(tn_cat((tn_tensor *[]){ y, z }, 2, -1)));
    }
}

START_TEST(second_derivatives_of_chains)
{
    static const int64_t gates[] = { 4, 3, 1 };
    tn_tensor *in[] = { leaf(random_as(TN_SHAPE(3, 2, 2), -1, 1, 1, TN_F64)),
                        leaf(random_as(TN_SHAPE(gates[_i] * 2, 2), -1, 1, 2, TN_F64)),
                        leaf(random_as(TN_SHAPE(gates[_i] * 2, 2), -1, 1, 3, TN_F64)) };
    assert_ok(tn_gradcheck(chained, in, 3, &_i, (tn_gradcheck_options){ .second = true }));
}
END_TEST

static tn_tensor *count_calls(tn_tensor *grad, void *user)
{
    ++*(int *)user;
    return grad;
}

/* Gradients that are recorded equal those that are not, also of what is no leaf, each time that one
 * graph is asked; and hooks of inputs run once. */
START_TEST(recorded_gradients_are_the_same)
{
    tn_module *m =
        owned(layers[_i](3, 4, (tn_recurrent_options){ .layers = 2, .bidirectional = true }));
    assert_ok(tn_module_to_dtype(m, TN_F64));
    tn_tensor *x = tn_tanh(leaf(random_as(TN_SHAPE(2, 5, 3), -1, 1, 1, TN_F64)));
    tn_tensor *wanted[] = { x, tn_get_parameter(m, "weight_ih_l0"),
                            tn_get_parameter(m, "weight_hh_l1_reverse") };
    tn_tensor *loss = squares(m, x), *plain[3], *recorded[3];
    int calls = 0;
    assert_ok(tn_gradients(1, &loss, NULL, 3, wanted, plain, TN_RETAIN_GRAPH));
    ck_assert(tn_register_hook(wanted[2], count_calls, &calls) >= 0);
    for (int k = 0; k < 3; k++) {
        assert_ok(tn_gradients(1, &loss, NULL, 3, wanted, recorded, TN_CREATE_GRAPH));
        for (int i = 0; i < 3; i++) assert_close(recorded[i], plain[i], 1e-10, 1e-12);
        ck_assert_int_eq(calls, k + 1);
    }
}
END_TEST

/* ---- the layers ------------------------------------------------------------------------------ */

/* A sequence in two parts, the state carried over, gives what the whole one gives. */
START_TEST(state_carries_on)
{
    tn_module *m = owned(lstm(3, 4, .layers = 2));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 6, 3)), *y = tn_forward(m, x);
    tn_recurrent_state state = { 0 };
    tn_tensor *first = tn_recurrent_forward(m, tn_narrow(x, 1, 0, 4), &state);
    tn_tensor *second = tn_recurrent_forward(m, tn_narrow(x, 1, 4, 2), &state);
    assert_close(tn_cat((tn_tensor *[]){ first, second }, 2, 1), y, 1e-6, 1e-7);
    assert_close(tn_select(state.h, 0, 1), tn_select(y, 1, 5), 1e-6, 1e-7);
}
END_TEST

/* Detached states end backward: the gradient of the second part's weights is its own alone. */
START_TEST(detached_state_ends_backward)
{
    tn_module *m = owned(gru(3, 4, 0));
    tn_tensor *x = with_grad(tn_randn(TN_SHAPE(2, 3, 3)));
    tn_recurrent_state state = { 0 };
    assert_made(tn_recurrent_forward(m, x, &state));
    state.h = tn_detach(state.h);
    tn_tensor *y = tn_recurrent_forward(m, tn_randn(TN_SHAPE(2, 3, 3)), &state);
    assert_ok(tn_backward(tn_sum_all(y)));
    ck_assert(tn_grad(x) == TN_NONE);
    ck_assert(tn_grad(tn_get_parameter(m, "weight_hh_l0")) != TN_NONE);
}
END_TEST

/* A state that is carried from scope to scope: no tensor is left over. */
START_TEST(truncated_backward)
{
    tn_module *m = owned(lstm(3, 4, 0));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 3, 3));
    tn_recurrent_state last = { 0 };
    int64_t live = 0;
    for (int step = 0; step < 4; step++) {
        TN_SCOPE
        {
            tn_recurrent_state state = last;
            tn_tensor *y = tn_recurrent_forward(m, x, &state);
            assert_ok(tn_module_zero_grad(m));
            assert_ok(tn_backward(tn_sum_all(y)));
            tn_drop(last.h), last.h = tn_keep(tn_detach(state.h));
            tn_drop(last.c), last.c = tn_keep(tn_detach(state.c));
        }
        if (step == 1) live = tn_live_tensors();
    }
    ck_assert_int_eq(tn_live_tensors(), live);
    tn_drop(last.h), tn_drop(last.c);
}
END_TEST

/* An average holds the weights as buffers. */
START_TEST(averages_run)
{
    tn_module *m = owned(gru(3, 4, .layers = 2));
    tn_module *ema = owned(tn_ema_new(m, (tn_ema_options){ 0 }));
    assert_ok(tn_ema_update(ema, m));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 3, 3));
    assert_close(tn_forward(ema, x), tn_forward(m, x), 0, 0);
    assert_ok(tn_module_delete(m, "weight_hh_l1"));
    assert_null(tn_forward(m, x), TN_E_STATE, "GRU: weight_hh_l1 is gone");
}
END_TEST

/* The state stays as it was when a call fails. */
START_TEST(refusals)
{
    tn_recurrent_options o = { .layers = 2 };
    assert_null(tn_lstm_new(0, 4, o), TN_E_INVALID, "tn_lstm_new: input_size is 0");
    assert_null(tn_gru_new(3, 0, o), TN_E_INVALID, "tn_gru_new: hidden_size is 0");
    assert_null(rnn(3, 4, .dropout = 0.5), TN_E_INVALID, "tn_rnn_new: dropout 0.5 in one layer");
    assert_null(gru(3, 4, .relu = true), TN_E_INVALID, "tn_gru_new: relu");
    assert_null(tn_lstm_cell_new(3, 4, o), TN_E_INVALID, "tn_lstm_cell_new: layers");

    tn_module *m = owned(tn_lstm_new(3, 4, o)),
              *cell = owned(tn_rnn_cell_new(3, 4, (tn_recurrent_options){ 0 }));
    tn_module *fc = owned(linear(3, 4));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 5, 3)), *h = tn_zeros(TN_SHAPE(2, 2, 4));
    assert_null(tn_forward(m, tn_randn(TN_SHAPE(2, 5, 4))), TN_E_SHAPE,
                "LSTM: x [2,5,4]: want [B, T, 3] or [T, 3]");
    assert_null(tn_forward(cell, x), TN_E_SHAPE, "RNNCell: x [2,5,3]: want [B, 3] or [3]");
    assert_null(tn_forward(m, tn_randn(TN_SHAPE(2, 0, 3))), TN_E_SHAPE, "at least one step");
    tn_recurrent_state state = { .h = h, .c = tn_zeros(TN_SHAPE(1, 2, 4)) };
    tn_tensor *c = state.c;
    assert_null(tn_recurrent_forward(m, x, &state), TN_E_SHAPE,
                "LSTM: state c [1,2,4]: want [2,2,4]");
    ck_assert(state.h == h && state.c == c);
    assert_null(tn_recurrent_forward(cell, tn_randn(TN_SHAPE(2, 3)), &state), TN_E_INVALID,
                "state c for a RNNCell: only an LSTM has it");
    state = (tn_recurrent_state){ .lengths = tn_from_ints((int64_t[]){ 5, 6 }, TN_SHAPE(2)) };
    assert_null(tn_recurrent_forward(m, x, &state), TN_E_INVALID,
                "LSTM: lengths from 5 to 6: want 1 to 5");
    ck_assert_ptr_nonnull(state.lengths);
    state.lengths = tn_ones(TN_SHAPE(2));
    assert_null(tn_recurrent_forward(m, x, &state), TN_E_INVALID,
                "lengths [2] of f32: want [2] integers on the CPU");
    state.lengths = tn_from_ints((int64_t[]){ 1 }, TN_SHAPE(1));
    assert_null(tn_recurrent_forward(m, x, &state), TN_E_INVALID, "lengths [1] of i64: want [2]");
    assert_null(tn_recurrent_forward(cell, tn_randn(TN_SHAPE(1, 3)), &state), TN_E_INVALID,
                "in a layer, not in a cell");
    assert_null(gru(3, 4, .proj_size = 2), TN_E_INVALID,
                "tn_gru_new: proj_size 2: want it in an LSTM");
    assert_null(lstm(3, 4, .proj_size = 4), TN_E_INVALID, "below hidden_size 4");
    state = (tn_recurrent_state){ .h = tn_to_dtype(h, TN_I64) };
    assert_null(tn_recurrent_forward(m, x, &state), TN_E_DTYPE, "LSTM: state h is i64, x is f32");
    state.h = tn_to_dtype(h, TN_F64);
    assert_null(tn_recurrent_forward(m, x, &state), TN_E_DTYPE, "LSTM: state h is f64, x is f32");
    ck_assert(isnan(tn_dropout_p(cell)));
    assert_error(TN_E_INVALID, "a RNNCell drops nothing");
    assert_null(tn_recurrent_forward(fc, x, NULL), TN_E_INVALID, "the module is a Linear");
    assert_null(tn_recurrent_forward(m, NULL, NULL), TN_E_INVALID, "tn_recurrent_forward");
    tn_tensor *out[4];
    assert_fails(tn_call(m, 1, &x, 4, out), TN_E_INVALID, "LSTM: 1 inputs, 4 outputs");
}
END_TEST

/* Dropout between layers: in training alone, and by tn_dropout_set_p. */
START_TEST(dropout_between_layers)
{
    tn_module *m = owned(gru(3, 64, .layers = 2, .dropout = 0.5));
    ck_assert_double_eq(tn_dropout_p(m), 0.5);
    tn_tensor *x = tn_randn(TN_SHAPE(2, 5, 3));
    tn_manual_seed(1);
    tn_tensor *first = tn_forward(m, x), *second = tn_forward(m, x);
    ck_assert(tn_item(tn_sum_all(tn_abs(tn_sub(first, second)))) > 1);
    assert_ok(tn_eval(m));
    assert_close(tn_forward(m, x), tn_forward(m, x), 0, 0);
    assert_ok(tn_train(m, true));
    assert_ok(tn_dropout_set_p(m, 0));
    tn_tensor *none = tn_forward(m, x);
    assert_ok(tn_eval(m));
    assert_close(tn_forward(m, x), none, 0, 0);
}
END_TEST

/* In bf16 and f16 all is f32 inside: the result is f32's, rounded. Under autocast products read
 * rounded numbers, and the result is f32. */
START_TEST(half_precision)
{
    const tn_dtype dtype = _i ? TN_F16 : TN_BF16;
    tn_module *m = owned(lstm(5, 7, 0));
    tn_tensor *x = tn_to_dtype(tn_to_dtype(tn_randn(TN_SHAPE(3, 4, 5)), dtype), TN_F32);
    tn_tensor *plain = tn_forward(m, x), *cast = NULL;
    TN_AUTOCAST(dtype) cast = tn_forward(m, x);
    ck_assert_int_eq(tn_dtype_of(cast), TN_F32);
    assert_close(cast, plain, 0, _i ? 1e-3 : 8e-3);
    ck_assert(tn_hash(cast) != tn_hash(plain)); /* it did round */
    assert_ok(tn_module_to_dtype(m, dtype));
    tn_tensor *y = tn_forward(m, tn_to_dtype(x, dtype));
    ck_assert_int_eq(tn_dtype_of(y), dtype);
    assert_ok(tn_backward(tn_sum_all(y)));
    ck_assert_int_eq(tn_dtype_of(tn_grad(tn_get_parameter(m, "weight_hh_l0"))), dtype);
    assert_ok(tn_module_to_dtype(m, TN_F32)); /* the rounded weights */
    assert_close(y, tn_to_dtype(tn_forward(m, x), dtype), 0, 0);
}
END_TEST

/* The same bits for any number of threads, forward and backward, in f32 and with bf16 products. */
START_TEST(same_bits_for_any_threads)
{
    tn_module *m = owned(gru(40, 96, .layers = 2));
    tn_tensor *x = tn_randn(TN_SHAPE(17, 9, 40)), *y[4], *dw[4];
    const int threads[] = { 1, 2, 3, 7 };
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_set_num_threads(threads[i]));
        assert_ok(tn_module_zero_grad(m));
        TN_AUTOCAST(_i ? TN_BF16 : TN_F32) y[i] = tn_forward(m, x);
        assert_ok(tn_backward(tn_sum_all(tn_square(y[i]))));
        dw[i] = tn_clone(tn_grad(tn_get_parameter(m, "weight_hh_l0")));
        assert_close(y[i], y[0], 0, 0);
        assert_close(dw[i], dw[0], 0, 0);
    }
    tn_tensor *plain = tn_forward(m, x);
    assert_close(y[0], plain, 0, _i ? 0.05 : 0);
    ck_assert((tn_hash(y[0]) != tn_hash(plain)) == _i);
}
END_TEST

static tn_tensor *layer(int gates, tn_tensor **x, tn_tensor *h, tn_tensor *c, tn_tensor **c_n)
{
    if (gates == 1) return tn_rnn(x[0], h, x[1], x[2], x[3], x[4], true, false);
    if (gates == 3) return tn_gru(x[0], h, x[1], x[2], x[3], x[4], false);
    return tn_lstm(x[0], h, c, x[1], x[2], x[3], x[4], false, c_n);
}

/* Weights are packed once for many steps: what one call makes of them all is what calls of a step
 * each make, which do not pack. */
START_TEST(all_steps_at_once_or_one_by_one)
{
    enum { STEPS = 5, B = 33, IN = 3, H = 272 };
    const int gates = (const int[]){ 1, 3, 4 }[_i / 2];
    const double tolerance = _i % 2 ? 1e-3 : 1e-5;
    const tn_shape shapes[] = { TN_SHAPE(STEPS, B, IN), TN_SHAPE(gates * H, IN),
                                TN_SHAPE(gates * H, H), TN_SHAPE(gates * H), TN_SHAPE(gates * H) };
    tn_tensor *in[5], *grad[2][5], *y[2], *step[STEPS], *h = TN_NONE, *c = TN_NONE;
    for (int i = 0; i < 5; i++)
        in[i] = leaf(random_as(shapes[i], -0.06, 0.06, (uint64_t)i + 1, TN_F32));
    tn_tensor *seed = random_as(TN_SHAPE(STEPS, B, H), -1, 1, 9, TN_F32);
    TN_AUTOCAST(_i % 2 ? TN_BF16 : TN_F32)
    {
        y[0] = layer(gates, in, h, c, &c);
        c = TN_NONE;
        for (int t = 0; t < STEPS; t++) {
            tn_tensor *x[] = { tn_narrow(in[0], 0, t, 1), in[1], in[2], in[3], in[4] };
            step[t] = layer(gates, x, h, c, &c);
            h = tn_select(step[t], 0, 0);
        }
        y[1] = tn_cat(step, STEPS, 0);
    }
    assert_close(y[0], y[1], tolerance, tolerance);
    for (int k = 0; k < 2; k++) assert_ok(tn_gradients(1, &y[k], &seed, 5, in, grad[k], 0));
    for (int i = 0; i < 5; i++)
        assert_close(grad[0][i], grad[1][i], 10 * tolerance, 10 * tolerance);
}
END_TEST

/* Whichever request for memory fails, the op fails with it, and works again after. */
START_TEST(no_memory_to_pack)
{
    enum { STEPS = 5, B = 32, H = 256 };
    scarce_install();
    tn_tensor *in[] = { leaf(random_as(TN_SHAPE(STEPS, B, 4), -1, 1, 1, TN_F32)),
                        leaf(random_as(TN_SHAPE(3 * H, 4), -1, 1, 2, TN_F32)),
                        leaf(random_as(TN_SHAPE(3 * H, H), -0.1, 0.1, 3, TN_F32)), TN_NONE,
                        TN_NONE };
    tn_tensor *y = layer(3, in, TN_NONE, TN_NONE, NULL), *seed = tn_ones_like(y), *dx, *again;
    assert_ok(tn_gradients(1, &y, &seed, 1, in, &dx, TN_RETAIN_GRAPH));
    int64_t live = tn_live_tensors();
    bool done = false;
    for (int64_t k = 1; !done; k++) {
        TN_SCOPE
        {
            tn_memory_trim();
            scarce_fail(k);
            tn_tensor *z = layer(3, in, TN_NONE, TN_NONE, NULL);
            done = z && tn_gradients(1, &z, &seed, 1, in, &again, 0) == TN_OK;
            scarce_fail(0);
            if (!done) assert_error(TN_E_NOMEM, "");
            if (done) assert_close(again, dx, 0, 0);
        }
        ck_assert_int_eq(tn_live_tensors(), live);
    }
}
END_TEST

/* What a recurrent layer is for: a sum of 20 steps that a state must carry. */
START_TEST(learns_to_add_up)
{
    tn_manual_seed(0);
    tn_module *m = owned(gru(1, 16, 0));
    tn_module *out = owned(linear(16, 1));
    const tn_list *all =
        tn_list_concat(tn_named_parameters(m, "rnn."), tn_named_parameters(out, "out."));
    tn_optim *opt = owned(adam(all, .lr = 0.02));
    double loss_now = 0;
    for (int step = 0; step < 800; step++) {
        TN_SCOPE
        {
            tn_tensor *x = tn_bernoulli(TN_SHAPE(64, 20, 1), 0.5);
            tn_recurrent_state state = { 0 };
            assert_made(tn_recurrent_forward(m, x, &state));
            tn_tensor *guess = tn_forward(out, tn_select(state.h, 0, 0));
            tn_tensor *loss = tn_mse_loss(guess, tn_sum(x, (int[]){ 1 }, 1, false), TN_MEAN);
            assert_ok(tn_optim_zero_grad(opt));
            assert_ok(tn_backward(loss));
            assert_ok(tn_optim_step(opt));
            loss_now = tn_item(loss);
        }
    }
    ck_assert_msg(loss_now < 1, "mean squared error %g, the variance of the sum is 5", loss_now);
}
END_TEST

static void read_golden(void)
{
    golden = tn_load_tensors(golden_path("recurrent.safetensors"), NULL);
    assert_made(golden);
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("recurrent");
    TCase *t = test_case(suite, "recurrent");
    tcase_add_checked_fixture(t, read_golden, NULL);
    tcase_add_loop_test(t, as_in_pytorch, 0, CASES);
    tcase_add_loop_test(t, IN_05_recurrent, 0, 5);
    tcase_add_loop_test(t, gradients_of_whole_layers, 0, 3);
    tcase_add_loop_test(t, gradients_of_packed_layers, 0, 5);
    tcase_add_loop_test(t, reset_before_the_product, 0, 2);
    tcase_add_loop_test(t, second_derivatives_of_chains, 0, 3);
    tcase_add_loop_test(t, recorded_gradients_are_the_same, 0, 3);
    tcase_add_test(t, state_carries_on);
    tcase_add_test(t, truncated_backward);
    tcase_add_test(t, averages_run);
    tcase_add_test(t, detached_state_ends_backward);
    tcase_add_test(t, refusals);
    tcase_add_test(t, dropout_between_layers);
    tcase_add_loop_test(t, half_precision, 0, 2);
    tcase_add_loop_test(t, same_bits_for_any_threads, 0, 2);
    tcase_add_loop_test(t, all_steps_at_once_or_one_by_one, 0, 6);
    tcase_add_test(t, no_memory_to_pack);
    tcase_add_test(t, learns_to_add_up);
    return suite;
}
