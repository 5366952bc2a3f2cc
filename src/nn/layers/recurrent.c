/*
 * recurrent.c - RNN, GRU and LSTM: layers over sequences, and their cells, one step of one layer;
 * names, shapes and initial values as in PyTorch. The ops with the same names do the computing.
 */
#include "nn/layers/layer.h"
#include "tensor/cells.h"

typedef struct recurrent {
    tn_module base;
    int64_t in, hidden, layers; /* layers 0: a cell */
    int directions;
    double dropout;
    bool sequence_first, relu, biased;
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

/* One direction of one layer. x [T, B, in]; state[0..1]: h and c before, then after, [B, H]. */
static tn_tensor *run(recurrent *m, tn_tensor *x, int64_t layer, int direction, tn_tensor *state[2])
{
    int kind = kind_of(&m->base);
    tn_tensor *w_ih = weight_of(m, "weight_ih", layer, direction);
    tn_tensor *w_hh = weight_of(m, "weight_hh", layer, direction);
    tn_tensor *b_ih = m->biased ? weight_of(m, "bias_ih", layer, direction) : TN_NONE;
    tn_tensor *b_hh = m->biased ? weight_of(m, "bias_hh", layer, direction) : TN_NONE;
    tn_tensor *y;
    if (kind == RNN)
        y = tn_rnn(x, state[0], w_ih, w_hh, b_ih, b_hh, m->relu, direction);
    else if (kind == GRU)
        y = tn_gru(x, state[0], w_ih, w_hh, b_ih, b_hh, direction);
    else
        y = tn_lstm(x, state[0], state[1], w_ih, w_hh, b_ih, b_hh, direction, &state[1]);
    if (y) state[0] = tn_select(y, 0, direction ? 0 : y->shape.size[0] - 1);
    return y;
}

/* All layers. x [T, B, in]; state[0..1] [layers directions, B, H] or TN_NONE; after: the last state
 * of every layer and direction, if wanted. */
static tn_tensor *run_layers(recurrent *m, tn_tensor *x, tn_tensor *const state[2], int wanted,
                             tn_tensor **after)
{
    int64_t layers = tni_or_int(m->layers, 1);
    int n = (int)layers * m->directions, states = kind_of(&m->base) == LSTM ? 2 : 1;
    tn_tensor **last = tni_alloc((size_t)(2 * n) * sizeof *last);
    if (!last) return NULL;
    for (int i = 0; x && i < n;) {
        tn_tensor *y[2] = { NULL };
        if (i && m->dropout > 0) x = tn_dropout(x, m->dropout, tn_training(&m->base));
        for (int d = 0; d < m->directions; d++, i++) {
            tn_tensor *now[2] = { TN_NONE, TN_NONE };
            for (int k = 0; k < states; k++)
                if (!tni_none(state[k])) now[k] = tn_select(state[k], 0, i);
            y[d] = run(m, x, i / m->directions, d, now);
            for (int k = 0; k < 2; k++) last[k * n + i] = now[k];
        }
        x = m->directions == 2 ? tn_cat(y, 2, -1) : y[0];
    }
    for (int k = 0; x && k < wanted; k++) {
        after[k] = tn_stack(last + k * n, n, 0);
        if (!after[k]) x = NULL;
    }
    tni_free(last, (size_t)(2 * n) * sizeof *last);
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
    tn_shape full = TN_SHAPE(n, b, m->hidden), given = full;
    if (m->layers == 0)
        given = batched ? TN_SHAPE(b, m->hidden) : TN_SHAPE(m->hidden);
    else if (!batched)
        given = TN_SHAPE(n, m->hidden);
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

/* in: x and, optionally, h (and c). out: y and, optionally, h (and c) after the last step. */
static tn_status recurrent_forward_n(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                                     tn_tensor **out)
{
    recurrent *m = (recurrent *)self;
    int states = kind_of(self) == LSTM ? 2 : 1;
    if ((n_in != 1 && n_in != 1 + states) || n_out > 1 + states)
        return tni_error(TN_E_INVALID, "%s: %d inputs, %d outputs: want 1 or %d, and 1 to %d",
                         self->type->name, n_in, n_out, 1 + states, 1 + states);
    TNI_TRY(check_input(m, in[0]));
    bool batched = in[0]->shape.rank == (m->layers ? 3 : 2);
    tn_tensor *x = to_steps(m, in[0], batched);
    tn_tensor *before[2] = { TN_NONE, TN_NONE }, *after[2] = { NULL, NULL };
    for (int k = 0; x && k < n_in - 1; k++) {
        before[k] = state_in(m, k ? "c" : "h", in[1 + k], x, batched);
        if (!before[k]) return tni_pending();
    }
    tn_tensor *y = x ? run_layers(m, x, before, n_out - 1, after) : NULL;
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
    tni_text_add(text, size, "%s%s%s", m->relu ? ", relu" : "",
                 m->directions == 2 ? ", bidirectional" : "", m->biased ? "" : ", no bias");
    if (m->dropout > 0) tni_text_add(text, size, ", dropout %g", m->dropout);
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
    TNI_TRY(tni_probability(function, o->dropout));
    if (cell && (o->layers || o->dropout > 0 || o->bidirectional || o->sequence_first))
        return tni_error(TN_E_INVALID,
                         "%s: layers, dropout, bidirectional or sequence_first: a cell is one step "
                         "of one layer: want no_bias or relu",
                         function);
    if (o->dropout > 0 && o->layers < 2)
        return tni_error(
            TN_E_INVALID,
            "%s: dropout %g in one layer: it acts between layers: want 2 layers and up", function,
            o->dropout);
    if (o->relu && kind != RNN)
        return tni_error(TN_E_INVALID, "%s: relu: want it in an RNN", function);
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
    static const char *const what[] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh" };
    if (check_options(function, kind, cell, in, hidden, o) != TN_OK) return NULL;
    recurrent *m = tn_module_new(&types[!cell][kind]);
    if (!m) return NULL;
    m->in = in;
    m->hidden = hidden;
    m->layers = cell ? 0 : tni_or_int(o->layers, 1);
    m->directions = o->bidirectional ? 2 : 1;
    m->dropout = o->dropout;
    if (m->layers > 1) tni_drops(&m->base, &m->dropout);
    m->sequence_first = o->sequence_first;
    m->relu = o->relu;
    m->biased = !o->no_bias;
    int64_t rows = tni_cell_gates(cells[kind]) * hidden;
    for (int64_t i = 0; i < tni_or_int(m->layers, 1) * m->directions; i++)
        for (int k = 0; k < (m->biased ? 4 : 2); k++) {
            char name[64];
            int64_t layer = i / m->directions;
            int64_t columns = k == 1 ? hidden : layer ? hidden * m->directions : in;
            weight_name(m, what[k], layer, (int)(i % m->directions), name, sizeof name);
            tn_tensor *t = tn_empty(k < 2 ? TN_SHAPE(rows, columns) : TN_SHAPE(rows));
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
    tn_tensor *in[] = { x, TN_NONE, TN_NONE }, *out[3] = { NULL, NULL, NULL };
    if (state) in[1] = tni_option_tensor(__func__, "h", state->h);
    if (state) in[2] = tni_option_tensor(__func__, "c", state->c);
    if (state && !lstm && !tni_none(in[2]))
        return tni_fail(TN_E_INVALID, "%s: state c for a %s: only an LSTM has it", __func__,
                        m->type->name);
    if (tni_call_with(m, n, in, n, out, NULL) != TN_OK) return NULL;
    if (state) *state = (tn_recurrent_state){ .h = out[1], .c = lstm ? out[2] : NULL };
    return out[0];
}
