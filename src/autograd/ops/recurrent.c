/*
 * recurrent.c - plain recurrent layers, GRU and LSTM over a whole sequence, in one direction.
 *
 *     a_t = W_ih x_t + b_ih                    s_t = W_hh h_(t-1) + b_hh
 *     plain    h_t = tanh or relu(a_t + s_t)
 *     GRU      r, z = sigmoid(a + s)           n = tanh(a_n + r s_n)      h_t = n + z (h_(t-1) - n)
 *     LSTM     i, f, o = sigmoid(a + s)        g = tanh(a_g + s_g)
 *              c_t = f c_(t-1) + i g           h_t = o tanh(c_t)
 * One product makes all a_t. Then each step is a product for s_t and a kernel (tensor/cells.h).
 * Backward goes the other way round: the kernel gives da_t and ds_t, a product dh_(t-1) from ds_t;
 * one product each then gives dx and the gradients of both weights, over all steps. Kept are gates
 * and states. Second derivatives run the formulas in ops. Products may be of bf16 or f16, with sums
 * in f32; everything else, states included, is f32 then.
 *
 * Sources: Elman, Finding structure in time (1990); Hochreiter and Schmidhuber (1997) with the
 * forget gate of Gers et al. (2000); Cho et al. (2014), eq. 5-8, with r after the product.
 */
#include "autograd/ops/products.h"
#include "autograd/ops/shared.h"
#include "tensor/cells.h"

enum { X, H0, W_IH, W_HH, B_IH, B_HH, C0, INPUTS };
enum { PACKING = 4, TURNING = 8 }; /* steps from which on it pays to pack W_hh, and to turn it */

typedef struct recurrent_args {
    int kind;
    bool reverse; /* from the last step to the first */
    /* The inputs of products are rounded to low (f32: not rounded) and multiplied in product: that
     * is low if the device can multiply it, else f32. */
    tn_dtype low, product;
} recurrent_args;

/* ---- checks ---------------------------------------------------------------------------------- */

static tn_status recurrent_shape(tni_call *c)
{
    static const char *const name[] = { "x", "h0", "w_ih", "w_hh", "b_ih", "b_hh", "c0" };
    const recurrent_args *args = c->args;
    const tn_shape *x = &c->in[X]->shape, *w = &c->in[W_HH]->shape;
    int64_t gates = tni_cell_gates(args->kind);
    if (!tn_dtype_is_float(c->in[X]->dtype))
        return tni_op_error(c, TN_E_DTYPE, "x is %s: want a floating dtype",
                            tn_dtype_name(c->in[X]->dtype));
    for (int i = 1; i < c->n_in; i++)
        if (!tni_none(c->in[i]) && c->in[i]->dtype != c->in[X]->dtype)
            return tni_op_error(c, TN_E_DTYPE, "x is %s, %s is %s: want one floating dtype",
                                tn_dtype_name(c->in[X]->dtype), name[i],
                                tn_dtype_name(c->in[i]->dtype));
    if (x->rank != 3 || x->size[0] < 1)
        return tni_op_error(c, TN_E_SHAPE, "x %s: want [steps, batch, features], at least one step",
                            tni_text(c->in[X]));
    if (w->rank != 2 || w->size[1] < 1 || w->size[0] / gates != w->size[1] || w->size[0] % gates)
        return tni_op_error(c, TN_E_SHAPE, "w_hh %s: want [%s%sh, h]", tni_text(c->in[W_HH]),
                            gates > 1 ? gates > 3 ? "4" : "3" : "", gates > 1 ? " " : "");
    int64_t b = x->size[1], h = w->size[1], rows = w->size[0];
    const tn_shape want[INPUTS] = { [X] = *x,
                                    [H0] = TN_SHAPE(b, h),
                                    [W_IH] = TN_SHAPE(rows, x->size[2]),
                                    [W_HH] = *w,
                                    [B_IH] = TN_SHAPE(rows),
                                    [B_HH] = TN_SHAPE(rows),
                                    [C0] = TN_SHAPE(b, h) };
    for (int i = 0; i < c->n_in; i++)
        if (!tni_none(c->in[i]) && !tni_shape_equal(&c->in[i]->shape, &want[i]))
            return tni_op_error(c, TN_E_SHAPE, "x %s, w_hh %s, %s %s: want %s %s",
                                tni_text(c->in[X]), tni_text(c->in[W_HH]), name[i],
                                tni_text(c->in[i]), name[i], tni_shape_text(&want[i]));
    c->out_spec[0].shape = TN_SHAPE(x->size[0], b, h);
    c->saved_spec[0].shape = TN_SHAPE(x->size[0], b, 4, h); /* gates */
    c->saved_spec[1].shape = c->out_spec[0].shape;          /* LSTM: c of every step */
    c->n_saved = gates > 1 ? c->n_out : 0;
    for (int i = 0; i < 2; i++) c->saved_spec[i].dtype = c->in[X]->dtype;
    for (int i = 0; i < c->n_out; i++) c->out_spec[i].dtype = c->in[X]->dtype;
    if (c->n_out > 1) c->out_spec[1].shape = TN_SHAPE(b, h);
    return TN_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Step t of a dense [T, B, ...] as [B, width]. */
static tni_array step_of(const tn_tensor *all, int64_t t)
{
    int64_t b = all->shape.size[1];
    return rows_part(all, t * b, b, rows_count(&all->shape, 2, all->shape.rank));
}

/* The k-th step in the order of computing. */
static int64_t time_of(const recurrent_args *args, int64_t k, int64_t steps)
{
    return args->reverse ? steps - 1 - k : k;
}
/* The state before that step. */
static tni_array state_before(const recurrent_args *args, const tn_tensor *all,
                              const tn_tensor *first, int64_t k)
{
    int64_t steps = all->shape.size[0];
    return k ? step_of(all, time_of(args, k - 1, steps)) : tni_array_of(first);
}

/* x as products read it. */
static tn_tensor *for_product(const recurrent_args *args, tn_tensor *x)
{
    if (args->low == TN_F32) return x;
    tn_tensor *low = tni_copied(x, args->low);
    return !low || args->product == args->low ? low : tni_copied(low, args->product);
}

/* The same for a step's array *x, with buffers for it: low, into which x is rounded, and the one
 * that the product reads; data NULL if a buffer is not needed. */
static tn_status step_for_product(const tni_backend *backend, tni_array low, tni_array product,
                                  tni_array *x)
{
    const tni_array to[] = { low, product };
    for (int i = 0; i < 2 && to[i].data; i++) {
        TNI_TRY(backend->copy(&(tni_copy){ to[i], *x }));
        *x = to[i];
    }
    return TN_OK;
}

/* A buffer, or TN_NONE; NULL: out of memory. */
static tn_tensor *room(bool wanted, tn_shape shape, tn_dtype dtype, tn_device device)
{
    return wanted ? tn_empty_as(shape, dtype, device) : TN_NONE;
}

/* Packs w (g->b) once for the products of many steps, if the backend packs. */
static tn_status pack(const tni_backend *backend, const tn_tensor *w, int64_t steps, tni_gemm *g)
{
    int64_t n = steps >= PACKING ? backend->pack(g, NULL) : 0;
    if (n == 0) return TN_OK;
    tn_tensor *room = tn_empty_as(TN_SHAPE(n), w->dtype, w->storage->device);
    if (!room) return tni_pending();
    backend->pack(g, tni_data(room));
    g->packed = tni_data(room);
    return TN_OK;
}

/* The same for c = x w^T. On the CPU, if w is not packed, it is copied transposed: a step's product
 * then takes three quarters of the time. */
static tn_status pack_or_turn(const tni_backend *backend, const tn_tensor *w, int64_t steps,
                              tni_gemm *g)
{
    TNI_TRY(pack(backend, w, steps, g));
    if (g->packed || steps < TURNING || w->storage->device.type != TN_CPU) return TN_OK;
    tn_shape shape = TN_SHAPE(w->shape.size[1], w->shape.size[0]);
    const tn_tensor *copy = tni_new_dense(&shape, w->dtype, w->storage->device);
    if (!copy) return tni_pending();
    tni_copy c = { tni_turned(tni_array_of(copy)), tni_array_of(w) };
    g->b = c.y.data, g->b_row = c.y.stride[1], g->b_col = c.y.stride[0];
    return backend->copy(&c);
}

/* A bias, zeros if there is none. */
static tni_array bias_of(tn_tensor *bias, const tn_tensor *w)
{
    if (tni_none(bias))
        bias = tn_full_as(TN_SHAPE(w->shape.size[0]), 0, w->dtype, w->storage->device);
    return bias ? tni_array_of(bias) : tni_array_none();
}

static tn_status recurrent_forward(tni_call *c)
{
    const recurrent_args *args = c->args;
    tn_tensor *const *in = c->in;
    const tni_backend *backend = tni_backend_of(in[X]);
    tn_tensor *y = c->out[0];
    tn_tensor *gates = c->n_saved ? c->saved[0] : y, *cells = c->n_saved > 1 ? c->saved[1] : NULL;
    int64_t steps = y->shape.size[0], b = y->shape.size[1], h = y->shape.size[2];
    int64_t rows = in[W_HH]->shape.size[0];
    if (tn_numel(y) == 0) return TN_OK;
    tn_tensor *share = tn_empty_as(TN_SHAPE(b, rows), y->dtype, y->storage->device);
    tn_tensor *x = for_product(args, in[X]), *w_ih = for_product(args, in[W_IH]);
    tn_tensor *w = for_product(args, in[W_HH]);
    tni_array bias[2] = { bias_of(in[B_IH], in[W_IH]), bias_of(in[B_HH], in[W_HH]) };
    tn_device device = y->storage->device;
    tn_tensor *low = room(args->low != TN_F32, TN_SHAPE(b, h), args->low, device);
    tn_tensor *wide = room(args->low != args->product, TN_SHAPE(b, h), args->product, device);
    if (!share || !x || !w_ih || !w || !bias[0].data || !bias[1].data || !low || !wide)
        return tni_pending();
    tni_gemm all = tni_matrix_product(rows_array(gates, 2, steps * b, c->n_saved ? 4 * h : h, 0),
                                      rows_array(x, 2, steps * b, x->shape.size[2], 0),
                                      tni_turned(tni_array_of(w_ih)));
    tni_gemm step = tni_matrix_product(tni_array_of(share), rows_array(in[H0], 2, b, h, 0),
                                       tni_turned(tni_array_of(w)));
    TNI_TRY(pack_or_turn(backend, w, steps, &step));
    TNI_TRY(backend->gemm(&all));
    for (int64_t k = 0; k < steps; k++) {
        int64_t t = time_of(args, k, steps);
        tni_cell a = { .y = step_of(y, t),
                       .gates = step_of(gates, t),
                       .share = tni_array_of(share),
                       .bias_x = bias[0],
                       .bias_s = bias[1],
                       .y_before = state_before(args, y, in[H0], k),
                       .kind = args->kind };
        tni_array before = a.y_before;
        if (cells) a.c = step_of(cells, t), a.c_before = state_before(args, cells, in[C0], k);
        TNI_TRY(step_for_product(backend, rows_array(low, 2, b, h, 0), rows_array(wide, 2, b, h, 0),
                                 &before));
        step.a = before.data;
        TNI_TRY(backend->gemm(&step));
        TNI_TRY(backend->cell(&a));
    }
    if (!cells) return TN_OK;
    tni_copy last = { tni_array_of(c->out[1]), step_of(cells, time_of(args, steps - 1, steps)) };
    return backend->copy(&last);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* What a step's backward reads and writes, dense. */
typedef struct passing {
    tn_tensor *dy, *y, *gates, *cells, *w, *h0, *c0;
    tn_tensor *da, *ds; /* [T, B, rows of the weights]; ds is da but in a GRU */
    tn_tensor *low;     /* ds rounded for products; TN_NONE: ds itself */
    tn_tensor *dh, *dc; /* [B, H]: of the state before the step */
} passing;

/* Fills p->da, ds, low, dh and dc. */
static tn_status steps_backward(const recurrent_args *args, const passing *p)
{
    const tni_backend *backend = tni_backend_of(p->dy);
    int64_t steps = p->dy->shape.size[0], b = p->dy->shape.size[1];
    int64_t rows = p->w->shape.size[0];
    const tn_tensor *w = for_product(args, p->w);
    tn_tensor *wide =
        room(args->low != args->product, TN_SHAPE(b, rows), args->product, p->dy->storage->device);
    if (!w || !wide) return tni_pending();
    tni_gemm step = tni_matrix_product(tni_array_of(p->dh), step_of(p->ds, 0), tni_array_of(w));
    step.accumulate = args->kind == TNI_GRU_CELL;
    TNI_TRY(pack(backend, w, steps, &step));
    for (int64_t k = steps - 1; k >= 0; k--) {
        int64_t t = time_of(args, k, steps);
        tni_cell_grad a = { .dgates = step_of(p->da, t),
                            .dshare = step_of(p->ds, t),
                            .later = tni_array_of(p->dh),
                            .dy = step_of(p->dy, t),
                            .y = step_of(p->y, t),
                            .y_before = state_before(args, p->y, p->h0, k),
                            .kind = args->kind };
        if (p->gates) a.gates = step_of(p->gates, t);
        if (p->cells) {
            a.c = step_of(p->cells, t);
            a.c_before = state_before(args, p->cells, p->c0, k);
            a.dc = tni_array_of(p->dc);
        }
        TNI_TRY(backend->cell_grad(&a));
        tni_array ds = a.dshare;
        tni_array low = tni_none(p->low) ? tni_array_none() : step_of(p->low, t);
        TNI_TRY(step_for_product(backend, low, rows_array(wide, 2, b, rows, 0), &ds));
        step.a = ds.data;
        TNI_TRY(backend->gemm(&step));
    }
    return TN_OK;
}

static tn_tensor *lowered(const recurrent_args *args, tn_tensor *x)
{
    return args->low == TN_F32 ? x : tn_to_dtype(x, args->low);
}

/* Steps [from, from + n) of d [T, B, rows], as a transposed matrix, times those of x. */
static tn_tensor *weight_grad(tn_tensor *d, int64_t from, tn_tensor *x, int64_t x_from, int64_t n)
{
    tn_tensor *rows = tni_as_rows(tn_narrow(d, 0, from, n));
    return tn_matmul(tn_transpose(rows, 0, 1), tni_as_rows(tn_narrow(x, 0, x_from, n)));
}

/* dW_hh: the ds of every step times the state before it. */
static tn_tensor *state_weight_grad(const recurrent_args *args, const passing *p, tn_tensor *ds)
{
    int64_t n = p->y->shape.size[0] - 1, first = time_of(args, 0, n + 1);
    tn_tensor *h0 = lowered(args, tn_unsqueeze(p->h0, 0)), *y = lowered(args, p->y);
    tn_tensor *dw = tni_wide(weight_grad(ds, first, h0, 0, 1));
    if (n == 0) return dw;
    return tn_add(dw, tni_wide(weight_grad(ds, !args->reverse, y, args->reverse, n)));
}

static tn_status fused_backward(tni_grad *g)
{
    const recurrent_args *args = g->args;
    bool gru = args->kind == TNI_GRU_CELL, lstm = args->kind == TNI_LSTM_CELL;
    tn_tensor *x[INPUTS] = { NULL };
    for (int i = 0; i < g->n_in; i++)
        if (i < B_IH || i > B_HH) x[i] = tni_dense(g->x[i]);
    passing p = { .dy = tni_dense(tni_dy(g, 0)),
                  .y = g->y,
                  .gates = gru || lstm ? g->saved[0] : NULL,
                  .cells = lstm ? g->saved[1] : NULL,
                  .w = x[W_HH],
                  .h0 = x[H0],
                  .c0 = x[C0] };
    if (!p.dy || !x[X] || !p.w || !p.h0 || (lstm && !p.c0)) return tni_pending();
    tn_shape all = TN_SHAPE(p.y->shape.size[0], p.y->shape.size[1], p.w->shape.size[0]);
    tn_device device = p.dy->storage->device;
    p.da = tn_empty_as(all, p.dy->dtype, device);
    p.ds = gru ? tn_empty_as(all, p.dy->dtype, device) : p.da;
    p.dh = tn_zeros_like(p.h0);
    p.dc = lstm ? tn_clone(tni_dy(g, 1)) : NULL;
    p.low = room(args->low != TN_F32, all, args->low, device);
    if (!p.da || !p.ds || !p.dh || (lstm && !p.dc) || !p.low) return tni_pending();
    TNI_TRY(steps_backward(args, &p));
    tn_tensor *ds = tni_none(p.low) ? p.ds : p.low;
    tn_tensor *da = tni_as_rows(gru ? lowered(args, p.da) : ds);
    if (g->need[X]) g->dx[X] = tn_reshape(tn_matmul(da, lowered(args, x[W_IH])), g->in[X].shape);
    if (g->need[H0]) g->dx[H0] = p.dh;
    if (g->need[W_IH])
        g->dx[W_IH] = tn_matmul(tn_transpose(da, 0, 1), lowered(args, tni_as_rows(x[X])));
    if (g->need[W_HH]) g->dx[W_HH] = state_weight_grad(args, &p, ds);
    if (g->need[B_IH]) g->dx[B_IH] = tn_sum(tni_as_rows(p.da), (int[]){ 0 }, 1, false);
    if (g->need[B_HH]) g->dx[B_HH] = tn_sum(tni_as_rows(p.ds), (int[]){ 0 }, 1, false);
    if (lstm && g->need[C0]) g->dx[C0] = p.dc;
    return TN_OK;
}

/* ---- in ops, for second derivatives ---------------------------------------------------------- */

/* Gate k of h elements. */
static tn_tensor *gate(tn_tensor *x, int64_t k, int64_t h)
{
    return tn_narrow(x, -1, k * h, h);
}

/* One step: y, and c if the cell has one. a, s: what input and state add to the gates. */
static tn_tensor *composed_step(int kind, tn_tensor *a, tn_tensor *s, tn_tensor *y, tn_tensor **c)
{
    if (kind == TNI_TANH_CELL) return tn_tanh(tn_add(a, s));
    if (kind == TNI_RELU_CELL) return tn_relu(tn_add(a, s));
    int64_t h = y->shape.size[1];
    if (kind == TNI_GRU_CELL) {
        tn_tensor *r = tn_sigmoid(tn_add(gate(a, 0, h), gate(s, 0, h)));
        tn_tensor *z = tn_sigmoid(tn_add(gate(a, 1, h), gate(s, 1, h)));
        tn_tensor *n = tn_tanh(tn_add(gate(a, 2, h), tn_mul(r, gate(s, 2, h))));
        return tn_add(n, tn_mul(z, tn_sub(y, n)));
    }
    tn_tensor *v = tn_add(a, s);
    tn_tensor *kept = tn_mul(tn_sigmoid(gate(v, 1, h)), *c);
    *c = tn_add(kept, tn_mul(tn_sigmoid(gate(v, 0, h)), tn_tanh(gate(v, 2, h))));
    return tn_mul(tn_sigmoid(gate(v, 3, h)), tn_tanh(*c));
}

/* x w^T + b, x and w rounded as products read them. */
static tn_tensor *composed_product(const recurrent_args *args, tn_tensor *x, tn_tensor *w,
                                   tn_tensor *b)
{
    return tn_linear(tni_wide(lowered(args, x)), tni_wide(lowered(args, w)), b);
}

/* Computes y step by step; all[t] is that of step t. c: an LSTM's cell state, in and out. */
static tn_tensor *composed_forward(const tni_grad *g, tn_tensor *const *in, tn_tensor **all,
                                   tn_tensor **c)
{
    const recurrent_args *args = g->args;
    int64_t steps = g->in[X].shape.size[0];
    tn_tensor *a = composed_product(args, in[X], in[W_IH], in[B_IH]), *y = in[H0];
    for (int64_t k = 0; k < steps; k++) {
        int64_t t = time_of(args, k, steps);
        tn_tensor *s = composed_product(args, y, in[W_HH], in[B_HH]);
        y = all[t] = y ? composed_step(args->kind, tn_select(a, 0, t), s, y, c) : NULL;
    }
    return tn_stack(all, (int)steps, 0);
}

/* A nested pass over the op, run again in ops. It ends at new handles of the inputs, since the
 * given ones may depend on each other, be one tensor, or lead to dy. */
static tn_status composed_backward(tni_grad *g)
{
    tn_tensor *in[INPUTS], *wanted[INPUTS], *grad[INPUTS], *out[2] = { NULL, NULL };
    tn_tensor *const seed[] = { tni_dy(g, 0), g->n_out > 1 ? tni_dy(g, 1) : NULL };
    int n = 0;
    for (int i = 0; i < g->n_in; i++) {
        in[i] = g->in[i].absent ? TN_NONE : tn_expand(g->x[i], g->in[i].shape);
        if (!in[i]) return tni_pending();
        if (g->need[i]) wanted[n++] = in[i];
    }
    TNI_ITEMS(tn_tensor *, all, g->in[X].shape.size[0]);
    if (!all) return TN_E_NOMEM;
    out[1] = g->n_in > C0 ? in[C0] : NULL;
    out[0] = composed_forward(g, in, all, &out[1]);
    if (!out[0] || (g->n_out > 1 && !out[1])) return tni_pending();
    tn_status status = tn_gradients(g->n_out, out, seed, n, wanted, grad, TN_CREATE_GRAPH);
    for (int i = 0, k = 0; i < g->n_in && status == TN_OK; i++)
        if (g->need[i]) g->dx[i] = grad[k++];
    return status;
}

static tn_status recurrent_backward(tni_grad *g)
{
    return tni_composed() ? composed_backward(g) : fused_backward(g);
}

/* ---- the ops --------------------------------------------------------------------------------- */

#define READS ((TNI_X(INPUTS) - 1) | TNI_Y | TNI_SAVED)
#define GRADIENT                                                                                   \
    "dx = da W_ih; dh0 = ds_1 W_hh; dW_ih = sum_t da_t^T x_t; dW_hh = sum_t ds_t^T h_(t-1); "      \
    "db_ih = sum_t da_t; db_hh = sum_t ds_t; "
#define RECURRENT(name, inputs, formula, gradient)                                                 \
    TNI_OP(name, inputs, formula, GRADIENT gradient, recurrent_shape, recurrent_forward,           \
           recurrent_backward, .dtypes = TNI_ANY_DTYPE, .autocast = TNI_CAST_KEEP,                 \
           .optional = TNI_X(H0) | TNI_X(B_IH) | TNI_X(B_HH) | TNI_X(C0),                          \
           .reads = { READS, READS, READS, READS, READS, READS, READS }, .dense = TNI_ALL_X)
RECURRENT(rnn, C0, "h_t = tanh or relu(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh)",
          "where da_t = ds_t = (dy_t + ds_(t+1) W_hh) slope(h_t)")
RECURRENT(gru, C0, "h_t = n + z (h_(t-1) - n), r, z = sigmoid(a_t + s_t), n = tanh(a_t + r s_t)",
          "where a_t = W_ih x_t + b_ih, s_t = W_hh h_(t-1) + b_hh")
RECURRENT(lstm, INPUTS,
          "h_t = o tanh(c_t), c_t = f c_(t-1) + i g, i, f, o = sigmoid(a_t), g = tanh(a_t)",
          "dc0 = f_1 dc_1; where a_t = W_ih x_t + b_ih + W_hh h_(t-1) + b_hh, ds_t = da_t")

/* Zeros for a state that is not given, if its shape can be told from the others. */
static tn_tensor *first_state(tn_tensor *state, const tn_tensor *x, const tn_tensor *w_hh)
{
    if (!state || !x || !w_hh || !tni_none(state) || x->shape.rank != 3 || w_hh->shape.rank != 2)
        return state;
    tn_shape shape = TN_SHAPE(x->shape.size[1], w_hh->shape.size[1]);
    return tn_full_as(shape, 0, x->dtype, x->storage->device);
}

/* In an autocast region all floating inputs become f32, and results are f32. Outside, bf16 and f16
 * become f32 too if all have x's dtype; only the results are rounded, to that dtype. */
static tn_status apply(const tn_op *op, recurrent_args args, tn_tensor **in, int n_out,
                       tn_tensor **out)
{
    int n_in = op->arity;
    const tn_tensor *x = in[X];
    args.low = !x || tni_none(x) || x->dtype == TN_F64 ? TN_F32 : tni_autocasting;
    tn_device device = tn_device_of(x);
    bool multiplies = device.type != TN_CPU || (args.low == TN_BF16 && tn_bf16_is_fast(device));
    args.product = multiplies ? args.low : TN_F32;
    in[H0] = first_state(in[H0], x, in[W_HH]);
    if (n_in > C0) in[C0] = first_state(in[C0], x, in[W_HH]);
    bool narrow = tni_autocasting == TN_F32 && x && tni_wide_dtype(x->dtype) != x->dtype;
    for (int i = 1; i < n_in; i++)
        narrow = narrow && in[i] && (tni_none(in[i]) || in[i]->dtype == x->dtype);
    for (int i = 0; i < n_in; i++) in[i] = narrow ? tni_wide(in[i]) : tni_autocast_f32(in[i]);
    tn_status status = tni_apply_n(op, &args, sizeof args, n_in, in, n_out, out);
    for (int i = 0; i < n_out && status == TN_OK && narrow; i++)
        if (!(out[i] = tn_to_dtype(out[i], x->dtype))) status = tni_pending();
    return status;
}

tn_tensor *tn_rnn(tn_tensor *x, tn_tensor *h0, tn_tensor *w_ih, tn_tensor *w_hh, tn_tensor *b_ih,
                  tn_tensor *b_hh, bool relu, bool reverse)
{
    tn_tensor *in[] = { x, h0, w_ih, w_hh, b_ih, b_hh }, *y;
    recurrent_args args = { .kind = relu ? TNI_RELU_CELL : TNI_TANH_CELL, .reverse = reverse };
    return apply(&op_rnn, args, in, 1, &y) == TN_OK ? y : NULL;
}

tn_tensor *tn_gru(tn_tensor *x, tn_tensor *h0, tn_tensor *w_ih, tn_tensor *w_hh, tn_tensor *b_ih,
                  tn_tensor *b_hh, bool reverse)
{
    tn_tensor *in[] = { x, h0, w_ih, w_hh, b_ih, b_hh }, *y;
    recurrent_args args = { .kind = TNI_GRU_CELL, .reverse = reverse };
    return apply(&op_gru, args, in, 1, &y) == TN_OK ? y : NULL;
}

tn_tensor *tn_lstm(tn_tensor *x, tn_tensor *h0, tn_tensor *c0, tn_tensor *w_ih, tn_tensor *w_hh,
                   tn_tensor *b_ih, tn_tensor *b_hh, bool reverse, tn_tensor **c_n)
{
    tn_tensor *in[] = { x, h0, w_ih, w_hh, b_ih, b_hh, c0 }, *out[2];
    recurrent_args args = { .kind = TNI_LSTM_CELL, .reverse = reverse };
    if (c_n) *c_n = NULL;
    if (apply(&op_lstm, args, in, 2, out) != TN_OK) return NULL;
    if (c_n) *c_n = out[1];
    return out[0];
}
