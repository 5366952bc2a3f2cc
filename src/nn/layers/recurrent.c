/*
 * recurrent.c - RNN, GRU and LSTM: layers over sequences, and their cells, one step of one layer;
 * names, shapes and initial values as in PyTorch. The ops with the same names do the computing.
 */
#include "nn/layers/layer.h"
#include "tensor/cells.h"

typedef struct recurrent {
    tn_module base;
    int64_t in, hidden, layers; /* layers 0: a cell */
    int64_t out;                /* of h: hidden, or proj_size */
    int directions;
    double dropout;
    bool sequence_first, relu, biased, reset_before;
} recurrent;

enum { RNN, GRU, LSTM };
static const int cells[] = { TNI_TANH_CELL, TNI_GRU_CELL, TNI_LSTM_CELL };
static const tn_module_type types[2][3]; /* cells, then layers */

/* RNN, GRU or LSTM; -1: m is not one of these. */
static int kind_of(const tn_module *m)
{
    for (int i = 0; i < 6; i++)
        if (m->type == &types[i / 3][i % 3]) return i % 3;
    return -1;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void weight_name(const recurrent *m, const char *what, int64_t layer, int direction,
                        char *text, size_t size)
{
    if (m->layers == 0)
        snprintf(text, size, "%s", what);
    else
        snprintf(text, size, "%s_l%" PRId64 "%s", what, layer, direction ? "_reverse" : "");
}

/* A weight of the layer; in an average of the layer it is a buffer. */
static tn_tensor *weight_of(recurrent *m, const char *what, int64_t layer, int direction)
{
    char name[64];
    weight_name(m, what, layer, direction, name, sizeof name);
    tn_tensor *t = tni_slot_tensor(&m->base, name);
    if (t) return t;
    return tni_fail(TN_E_STATE, "%s: %s is gone: want a parameter or buffer of this name",
                    m->base.type->name, name);
}

/* The LSTM with a projection, h = m W_hr^T of m = o tanh(c). As W_hh h = (W_hh W_hr) m, m is the
 * state of an ordinary LSTM, and all h are one product. A given h is no m: the first step reads it
 * as a part of x. w: weight_ih, weight_hh and biases. */
static tn_tensor *run_projected(recurrent *m, tn_tensor *x, int64_t layer, int direction,
                                tn_tensor *state[2], tn_tensor *const w[4])
{
    tn_tensor *w_hr = weight_of(m, "weight_hr", layer, direction), *w_mm = tn_matmul(w[1], w_hr);
    tn_tensor *before = TN_NONE, *y[2] = { NULL, NULL };
    const int64_t rest = x ? x->shape.size[0] - 1 : 0;
    int parts = 0;
    if (x && rest >= 0 && state[0] && !tni_none(state[0])) {
        tn_tensor *one = tn_narrow(x, 0, direction ? rest : 0, 1);
        tn_tensor *h = tn_to_dtype(tn_unsqueeze(state[0], 0), x->dtype);
        one = tn_cat((tn_tensor *[]){ one, h }, 2, -1);
        tn_tensor *wide = tn_cat((tn_tensor *[]){ w[0], w[1] }, 2, 1);
        y[parts] = tn_lstm(one, TN_NONE, state[1], wide, w_mm, w[2], w[3], false, &state[1]);
        if (!y[parts]) return NULL;
        before = tn_select(y[parts++], 0, 0);
        x = tn_narrow(x, 0, direction ? 0 : 1, rest);
    }
    if (parts == 0 || rest > 0)
        y[parts++] = tn_lstm(x, before, state[1], w[0], w_mm, w[2], w[3], direction, &state[1]);
    if (parts == 2) y[0] = tn_cat((tn_tensor *[]){ y[direction], y[!direction] }, 2, 0);
    tn_tensor *all = tn_linear(y[0], w_hr, TN_NONE);
    if (all) state[0] = tn_select(all, 0, direction ? 0 : all->shape.size[0] - 1);
    return all;
}

/* Rows [from, from + n) of w, or of a bias, which may be absent. */
static tn_tensor *rows_of(tn_tensor *w, int64_t from, int64_t n)
{
    return tni_none(w) ? w : tn_narrow(w, 0, from, n);
}

/* The GRU with r before the product, n = tanh(W_in x + b_in + W_hn (r h) + b_hn): no op of its own,
 * since the second product of a step waits for r of the first. */
static tn_tensor *run_reset_before(const recurrent *m, tn_tensor *x, tn_tensor *h, bool reverse,
                                   tn_tensor *const w[4])
{
    const int64_t steps = x ? x->shape.size[0] : 0, two = 2 * m->hidden;
    if (!x || !w[0] || !w[1] || !w[2] || !w[3]) return NULL;
    if (steps == 0) return tni_fail(TN_E_SHAPE, "GRU: x %s: want at least one step", tni_text(x));
    tn_tensor *a = tn_linear(x, w[0], w[2]);
    TNI_ITEMS(tn_tensor *, y, steps);
    if (!y || !a) return NULL;
    if (tni_none(h))
        h = tn_full_as(TN_SHAPE(x->shape.size[1], m->hidden), 0, a->dtype, a->storage->device);
    for (int64_t k = 0; k < steps; k++) {
        const int64_t t = reverse ? steps - 1 - k : k;
        tn_tensor *from_x = tn_select(a, 0, t);
        tn_tensor *of_h = tn_linear(h, rows_of(w[1], 0, two), rows_of(w[3], 0, two));
        tn_tensor *rz = tn_sigmoid(tn_add(tn_narrow(from_x, 1, 0, two), of_h));
        tn_tensor *rh = tn_mul(tn_narrow(rz, 1, 0, m->hidden), h);
        of_h = tn_linear(rh, rows_of(w[1], two, m->hidden), rows_of(w[3], two, m->hidden));
        tn_tensor *n = tn_tanh(tn_add(tn_narrow(from_x, 1, two, m->hidden), of_h));
        y[t] = h = tn_add(n, tn_mul(tn_narrow(rz, 1, m->hidden, m->hidden), tn_sub(h, n)));
    }
    return tn_stack(y, (int)steps, 0);
}

/* One direction of one layer. x [T, B, in]; state[0..1]: h and c before, then after, [B, H]. */
static tn_tensor *run(recurrent *m, tn_tensor *x, int64_t layer, int direction, tn_tensor *state[2])
{
    int kind = kind_of(&m->base);
    tn_tensor *w_ih = weight_of(m, "weight_ih", layer, direction);
    tn_tensor *w_hh = weight_of(m, "weight_hh", layer, direction);
    tn_tensor *b_ih = m->biased ? weight_of(m, "bias_ih", layer, direction) : TN_NONE;
    tn_tensor *b_hh = m->biased ? weight_of(m, "bias_hh", layer, direction) : TN_NONE;
    tn_tensor *y, *const w[] = { w_ih, w_hh, b_ih, b_hh };
    if (m->out != m->hidden) return run_projected(m, x, layer, direction, state, w);
    if (m->reset_before)
        y = run_reset_before(m, x, state[0], direction, w);
    else if (kind == RNN)
        y = tn_rnn(x, state[0], w_ih, w_hh, b_ih, b_hh, m->relu, direction);
    else if (kind == GRU)
        y = tn_gru(x, state[0], w_ih, w_hh, b_ih, b_hh, direction);
    else
        y = tn_lstm(x, state[0], state[1], w_ih, w_hh, b_ih, b_hh, direction, &state[1]);
    if (y) state[0] = tn_select(y, 0, direction ? 0 : y->shape.size[0] - 1);
    return y;
}

/* The rows of x [T, B, in] are sorted by descending length; length[B] is 0. In a span of steps the
 * first n rows run: forward rows leave, backward they join with their first state. Steps that a row
 * lacks are not read, and 0 in y. */
static tn_tensor *run_spans(recurrent *m, tn_tensor *x, int64_t layer, int direction,
                            tn_tensor *state[2], const int64_t *length)
{
    const int64_t steps = x->shape.size[0], b = x->shape.size[1];
    TNI_ITEMS(tn_tensor *, part, b); /* the spans, in the order of steps */
    tn_tensor *y = NULL;
    const int lstm = kind_of(&m->base) == LSTM;
    int spans = 0, first = 0;
    if (!part) return NULL;
    for (int k = 0; k <= lstm; k++)
        if (tni_none(state[k]))
            state[k] =
                tn_full_as(TN_SHAPE(b, k ? m->hidden : m->out), 0, x->dtype, x->storage->device);
    for (int64_t i = 0; i < b && state[0] && state[1]; i++) {
        const int64_t n = direction ? i + 1 : b - i, from = length[n],
                      run_steps = length[n - 1] - from;
        tn_tensor *now[2] = { TN_NONE, TN_NONE };
        if (run_steps == 0) continue;
        for (int k = 0; k <= lstm; k++) now[k] = tn_narrow(state[k], 0, 0, n);
        y = run(m, tn_narrow(tn_narrow(x, 0, from, run_steps), 1, 0, n), layer, direction, now);
        if (!y) break;
        for (int k = 0; k <= lstm; k++) {
            tn_tensor *rest = tn_to_dtype(tn_narrow(state[k], 0, n, b - n), y->dtype);
            state[k] = n < b ? tn_cat((tn_tensor *[]){ now[k], rest }, 2, 0) : now[k];
        }
        first = direction ? (int)b - 1 - spans : 0;
        part[first + (direction ? 0 : spans)] =
            tn_pad(y, TN_PADS(0, 0, 0, b - n), TN_PAD_CONSTANT, 0);
        spans++;
    }
    if (y)
        y = tn_pad(tn_cat(part + first, spans, 0), TN_PADS(0, 0, 0, 0, 0, steps - length[0]),
                   TN_PAD_CONSTANT, 0);
    return state[0] && state[1] ? y : NULL;
}

/* All layers. x [T, B, in]; state[0..1] [layers directions, B, H] or TN_NONE; after: the last state
 * of every layer and direction, if wanted. length: NULL, or as run_spans wants it. */
static tn_tensor *run_layers(recurrent *m, tn_tensor *x, tn_tensor *const state[2],
                             const int64_t *length, int wanted, tn_tensor **after)
{
    int64_t layers = tni_or_int(m->layers, 1);
    int n = (int)layers * m->directions, states = kind_of(&m->base) == LSTM ? 2 : 1;
    TNI_ITEMS(tn_tensor *, last, 2 * n);
    if (!last) return NULL;
    for (int i = 0; x && i < n;) {
        tn_tensor *y[2] = { NULL };
        if (i && m->dropout > 0) x = tn_dropout(x, m->dropout, tn_training(&m->base));
        for (int d = 0; d < m->directions; d++, i++) {
            tn_tensor *now[2] = { TN_NONE, TN_NONE };
            for (int k = 0; k < states; k++)
                if (!tni_none(state[k])) now[k] = tn_select(state[k], 0, i);
            y[d] = length && x ? run_spans(m, x, i / m->directions, d, now, length)
                               : run(m, x, i / m->directions, d, now);
            for (int k = 0; k < 2; k++) last[k * n + i] = now[k];
        }
        x = m->directions == 2 ? tn_cat(y, 2, -1) : y[0];
    }
    for (int k = 0; x && k < wanted; k++) {
        after[k] = tn_stack(last + k * n, n, 0);
        if (!after[k]) return NULL;
    }
    return x;
}

/* ---- the call -------------------------------------------------------------------------------- */

static tn_status check_input(const recurrent *m, const tn_tensor *x)
{
    static const char *const wanted[2][2] = { { "T, B, ", "T, " }, { "B, ", "" } };
    bool cell = m->layers == 0;
    int rank = cell ? 2 : 3;
    if (!tni_none(x) && (x->shape.rank == rank || x->shape.rank == rank - 1) &&
        x->shape.size[x->shape.rank - 1] == m->in)
        return TN_OK;
    const char *batched = cell || m->sequence_first ? wanted[cell][0] : "B, T, ";
    return tni_error(TN_E_SHAPE, "%s: x %s: want [%s%" PRId64 "] or [%s%" PRId64 "]",
                     m->base.type->name, tni_none(x) ? "is absent" : tni_text(x), batched, m->in,
                     wanted[cell][1], m->in);
}

/* x as [T, B, in] and back: a cell's lacks T, one sequence lacks B, and B may be first. */
static tn_tensor *to_steps(const recurrent *m, tn_tensor *x, bool batched)
{
    if (!batched) x = tn_unsqueeze(x, m->layers ? 1 : 0);
    if (m->layers == 0) return tn_unsqueeze(x, 0);
    return batched && !m->sequence_first ? tn_transpose(x, 0, 1) : x;
}
/* steps: y has them on axis 0; else it is a state. */
static tn_tensor *from_steps(const recurrent *m, tn_tensor *y, bool batched, bool steps)
{
    if (m->layers == 0) y = tn_squeeze(y, 0);
    if (!batched) return tn_squeeze(y, m->layers ? 1 : 0);
    return steps && m->layers && !m->sequence_first ? tn_transpose(y, 0, 1) : y;
}

/* A state as [layers directions, B, H], checked against the shape of x. */
static tn_tensor *state_in(const recurrent *m, const char *name, tn_tensor *state,
                           const tn_tensor *steps, bool batched)
{
    if (tni_none(state)) return state;
    int64_t n = tni_or_int(m->layers, 1) * m->directions, b = steps->shape.size[1];
    int64_t size = name[0] == 'c' ? m->hidden : m->out;
    tn_shape full = TN_SHAPE(n, b, size), given = full;
    if (m->layers == 0)
        given = batched ? TN_SHAPE(b, size) : TN_SHAPE(size);
    else if (!batched)
        given = TN_SHAPE(n, size);
    if (!tn_dtype_is_float(state->dtype) ||
        (state->dtype != steps->dtype && tn_autocast() == TN_F32))
        return tni_fail(TN_E_DTYPE, "%s: state %s is %s, x is %s: want one floating dtype",
                        m->base.type->name, name, tn_dtype_name(state->dtype),
                        tn_dtype_name(steps->dtype));
    if (!tni_shape_equal(&state->shape, &given))
        return tni_fail(TN_E_SHAPE, "%s: state %s %s: want %s", m->base.type->name, name,
                        tni_text(state), tni_shape_text(&given));
    return tn_reshape(state, full);
}

/* The rows' numbers by descending length; into length these, and a 0 behind. */
static tn_tensor *sort_rows(const recurrent *m, tn_tensor *lengths, const tn_tensor *steps,
                            int64_t *length)
{
    const int64_t t = steps->shape.size[0], b = steps->shape.size[1];
    const tn_shape wanted = TN_SHAPE(b);
    if (m->layers == 0 || !tni_shape_equal(&lengths->shape, &wanted) ||
        tn_dtype_is_float(lengths->dtype) || lengths->dtype == TN_BOOL ||
        lengths->storage->device.type != TN_CPU)
        return tni_fail(TN_E_INVALID, "%s: lengths %s of %s: want %s integers on the CPU%s",
                        m->base.type->name, tni_text(lengths), tn_dtype_name(lengths->dtype),
                        tni_shape_text(&wanted), m->layers ? "" : ", in a layer, not in a cell");
    tn_tensor *order = tn_argsort(lengths, 0, true), *sorted = tn_index_select(lengths, 0, order);
    if (!sorted || tn_copy_out(sorted, length, (size_t)b * sizeof *length, TN_I64) != TN_OK)
        return NULL;
    length[b] = 0;
    if (b && (length[0] > t || length[b - 1] < 1))
        return tni_fail(TN_E_INVALID,
                        "%s: lengths from %" PRId64 " to %" PRId64 ": want 1 to %" PRId64,
                        m->base.type->name, length[b - 1], length[0], t);
    return order;
}

/* run_layers over rows of unequal lengths. */
static tn_tensor *run_packed(recurrent *m, tn_tensor *x, tn_tensor *state[2], tn_tensor *lengths,
                             int wanted, tn_tensor **after)
{
    const int64_t b = x->shape.size[1];
    TNI_ITEMS(int64_t, length, b + 1);
    tn_tensor *order = length ? sort_rows(m, lengths, x, length) : NULL, *y = NULL;
    tn_tensor *place = tn_to(tn_argsort(order, 0, false), x->storage->device);
    order = tn_to(order, x->storage->device);
    for (int k = 0; k < 2 && place; k++)
        if (!tni_none(state[k])) state[k] = tn_index_select(state[k], 1, order);
    if (place)
        y = run_layers(m, tn_index_select(x, 1, order), state, b ? length : NULL, wanted, after);
    for (int k = 0; k < wanted && y; k++) after[k] = tn_index_select(after[k], 1, place);
    return tn_index_select(y, 1, place);
}

/* in: x and, optionally, h (and c), and lengths. out: y and, optionally, h (and c) after the last
 * step. */
static tn_status recurrent_forward_n(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                     tn_tensor **out)
{
    recurrent *m = (recurrent *)self;
    int states = kind_of(self) == LSTM ? 2 : 1;
    if ((n_in != 1 && n_in != 1 + states && n_in != 2 + states) || n_out > 1 + states)
        return tni_error(TN_E_INVALID,
                         "%s: %d inputs, %d outputs: want 1, %d or, with lengths, %d, and 1 to %d",
                         self->type->name, n_in, n_out, 1 + states, 2 + states, 1 + states);
    TNI_TRY(check_input(m, in[0]));
    bool batched = in[0]->shape.rank == (m->layers ? 3 : 2);
    tn_tensor *x = to_steps(m, in[0], batched), *y = NULL;
    tn_tensor *before[2] = { TN_NONE, TN_NONE }, *after[2] = { NULL, NULL };
    tn_tensor *lengths = n_in == 2 + states ? in[1 + states] : TN_NONE;
    for (int k = 0; x && k < TNI_MIN(n_in - 1, states); k++) {
        before[k] = state_in(m, k ? "c" : "h", in[1 + k], x, batched);
        if (!before[k]) return tni_pending();
    }
    if (x)
        y = tni_none(lengths) ? run_layers(m, x, before, NULL, n_out - 1, after)
                              : run_packed(m, x, before, lengths, n_out - 1, after);
    out[0] = y ? from_steps(m, y, batched, true) : NULL;
    for (int k = 1; out[0] && k < n_out; k++) {
        out[k] = from_steps(m, after[k - 1], batched, false);
        if (!out[k]) return tni_pending();
    }
    return out[0] ? TN_OK : tni_pending();
}

static void recurrent_describe(const tn_module *self, char *text, size_t size)
{
    const recurrent *m = (const recurrent *)self;
    snprintf(text, size, "%" PRId64 ", %" PRId64, m->in, m->hidden);
    if (m->layers > 1) tni_text_add(text, size, ", %" PRId64 " layers", m->layers);
    tni_text_add(text, size, "%s%s%s",
                 m->relu           ? ", relu"
                 : m->reset_before ? ", reset before"
                                   : "",
                 m->directions == 2 ? ", bidirectional" : "", m->biased ? "" : ", no bias");
    if (m->dropout > 0) tni_text_add(text, size, ", dropout %g", m->dropout);
    if (m->out != m->hidden) tni_text_add(text, size, ", projected to %" PRId64, m->out);
}

/* All of them U(+-1/sqrt(hidden)), in the order of registration. */
static tn_status recurrent_reset(tn_module *self)
{
    double bound = 1 / sqrt((double)((recurrent *)self)->hidden);
    const tn_list *all = tn_parameters(self);
    tn_status status = all ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < all->n; i++)
        status = tn_init_uniform(all->entry[i].tensor, -bound, bound);
    return status;
}

#define TYPE(text)                                                                                 \
    {                                                                                              \
        .name = (text), .size = sizeof(recurrent), .forward_n = recurrent_forward_n,               \
        .describe = recurrent_describe, .reset = recurrent_reset                                   \
    }
static const tn_module_type types[2][3] = { { TYPE("RNNCell"), TYPE("GRUCell"), TYPE("LSTMCell") },
                                            { TYPE("RNN"), TYPE("GRU"), TYPE("LSTM") } };

/* ---- making one ------------------------------------------------------------------------------ */

static tn_status check_options(const char *function, int kind, bool cell, int64_t in,
                               int64_t hidden, const tn_recurrent_options *o)
{
    TNI_TRY(tni_at_least(function, "input_size", in, 1));
    TNI_TRY(tni_at_least(function, "hidden_size", hidden, 1));
    TNI_TRY(tni_at_least(function, "layers", o->layers, 0));
    TNI_TRY(tni_at_least(function, "proj_size", o->proj_size, 0));
    TNI_TRY(tni_probability(function, o->dropout));
    if (cell && (o->layers || o->dropout > 0 || o->bidirectional || o->sequence_first))
        return tni_error(TN_E_INVALID,
                         "%s: layers, dropout, bidirectional or sequence_first: a cell is one step "
                         "of one layer: want no_bias, relu or reset_before",
                         function);
    if (o->dropout > 0 && o->layers < 2)
        return tni_error(
            TN_E_INVALID,
            "%s: dropout %g in one layer: it acts between layers: want 2 layers and up", function,
            o->dropout);
    if (o->relu && kind != RNN)
        return tni_error(TN_E_INVALID, "%s: relu: want it in an RNN", function);
    if (o->reset_before && kind != GRU)
        return tni_error(TN_E_INVALID, "%s: reset_before: want it in a GRU", function);
    if (o->proj_size && (kind != LSTM || cell || o->proj_size >= hidden))
        return tni_error(TN_E_INVALID,
                         "%s: proj_size %" PRId64
                         ": want it in an LSTM, below hidden_size %" PRId64,
                         function, o->proj_size, hidden);
    if (o->layers > 1000000)
        return tni_error(TN_E_INVALID, "%s: layers is %" PRId64 ": want at most 1000000", function,
                         o->layers);
    if (hidden > INT64_MAX / 4)
        return tni_error(TN_E_INVALID, "%s: hidden_size is %" PRId64 ": want at most %" PRId64,
                         function, hidden, INT64_MAX / 4);
    return TN_OK;
}

static tn_module *make(const char *function, int kind, bool cell, int64_t in, int64_t hidden,
                       const tn_recurrent_options *o)
{
    TNI_HOLD_TRAPS;
    static const char *const what[] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh",
                                        "weight_hr" };
    if (check_options(function, kind, cell, in, hidden, o) != TN_OK) return NULL;
    recurrent *m = tn_module_new(&types[!cell][kind]);
    if (!m) return NULL;
    m->in = in;
    m->hidden = hidden;
    m->out = tni_or_int(o->proj_size, hidden);
    m->layers = cell ? 0 : tni_or_int(o->layers, 1);
    m->directions = o->bidirectional ? 2 : 1;
    if (m->layers > 1) tni_drops(&m->base, &m->dropout, o->dropout);
    m->sequence_first = o->sequence_first;
    m->relu = o->relu;
    m->reset_before = o->reset_before;
    m->biased = !o->no_bias;
    int64_t rows = tni_cell_gates(cells[kind]) * hidden;
    for (int64_t i = 0; i < tni_or_int(m->layers, 1) * m->directions; i++)
        for (int k = 0; k < 5; k++) {
            char name[64];
            int64_t layer = i / m->directions;
            int64_t columns = k == 1 ? m->out : layer ? m->out * m->directions : in;
            if (k == 4 ? !o->proj_size : k > 1 && !m->biased) continue;
            weight_name(m, what[k], layer, (int)(i % m->directions), name, sizeof name);
            tn_tensor *t = tn_empty(k == 4  ? TN_SHAPE(m->out, hidden)
                                    : k < 2 ? TN_SHAPE(rows, columns)
                                            : TN_SHAPE(rows));
            if (tn_register_parameter(&m->base, name, NULL, t) != TN_OK)
                return tn_module_done(&m->base);
        }
    recurrent_reset(&m->base);
    return tn_module_done(&m->base);
}

#define CONSTRUCTOR(name, kind, cell)                                                              \
    tn_module *name(int64_t input_size, int64_t hidden_size, tn_recurrent_options o)               \
    {                                                                                              \
        return make(#name, kind, cell, input_size, hidden_size, &o);                               \
    }

CONSTRUCTOR(tn_rnn_new, RNN, false)
CONSTRUCTOR(tn_gru_new, GRU, false)
CONSTRUCTOR(tn_lstm_new, LSTM, false)
CONSTRUCTOR(tn_rnn_cell_new, RNN, true)
CONSTRUCTOR(tn_gru_cell_new, GRU, true)
CONSTRUCTOR(tn_lstm_cell_new, LSTM, true)

tn_tensor *tn_recurrent_forward(tn_module *m, tn_tensor *x, tn_recurrent_state *state)
{
    tn_status status = tni_module_check(__func__, m);
    if (status == TN_OK && kind_of(m) < 0)
        status = tni_error(TN_E_INVALID,
                           "%s: the module is a %s: want an RNN, GRU or LSTM, or a cell of one",
                           __func__, m->type->name);
    if (status != TN_OK) return NULL;
    if (!x) return tni_poisoned(__func__, "x");
    bool lstm = kind_of(m) == LSTM;
    int n = !state ? 1 : lstm ? 3 : 2;
    tn_tensor *in[] = { x, TN_NONE, TN_NONE, TN_NONE }, *out[3] = { NULL, NULL, NULL };
    if (state) in[1] = tni_option_tensor(__func__, "h", state->h);
    if (state) in[2] = tni_option_tensor(__func__, "c", state->c);
    if (state && !lstm && !tni_none(in[2]))
        return tni_fail(TN_E_INVALID, "%s: state c for a %s: only an LSTM has it", __func__,
                        m->type->name);
    tn_tensor *lengths = state ? tni_option_tensor(__func__, "lengths", state->lengths) : TN_NONE;
    bool packed = !lengths || !tni_none(lengths);
    if (packed) in[n] = lengths;
    if (tni_call_with(m, n + packed, in, n, out, NULL) != TN_OK) return NULL;
    if (state) *state = (tn_recurrent_state){ .h = out[1], .c = lstm ? out[2] : NULL };
    return out[0];
}
