/*
 * cells.h - what one step of a recurrent layer does to one element of its state, and the gradient
 * of that, for f32 and f64, on the CPU and on the GPU.
 *
 * The first part is for every includer. The second, the formulas, is for those that define REAL
 * (float or double) and REAL_OF(name), which adds _f32 or _f64; C++ includes it again for the
 * other. There i is a row, a sequence of the batch, and j the element; pointers point to that
 * element of the first gate, so that gate k is at [k * h]. The order of the gates is i, f, g, o for
 * an LSTM; for a GRU r, z, n, and then q = h W_n^T + b_n, which its gradient reads.
 */
#ifndef TNI_CELLS_H
#define TNI_CELLS_H

#include "tensor/formulas.h"
#include "tensor/kernels.h"

/* Rows of the weights over elements of the state. */
TN_FN int64_t tni_cell_gates(int kind)
{
    return kind == TNI_LSTM_CELL ? 4 : kind == TNI_GRU_CELL ? 3 : 1;
}

#endif

#ifdef REAL

#define ROW(array, gates) ((REAL *)(array).data + i * (gates)*h + j)
/* Gate k before its sigmoid or tanh. */
#define GATE(k) (g[(k)*h] + bx[(k)*h] + (s[(k)*h] + bs[(k)*h]))
#define SIGMOID(v) REAL_OF(tn_sigmoid)(v)
#define TANH(v) REAL_OF(tn_tanh)(v)
/* d times the slope of what gave y. */
#define SIGMOID_SLOPE(d, y) REAL_OF(tni_b_sigmoid_grad)(d, y, 0, 0)
#define TANH_SLOPE(d, y) REAL_OF(tni_b_tanh_grad)(d, y, 0, 0)

/*
 * LSTM   i, f, o = sigmoid, g = tanh      c = f c_before + i g      y = o tanh(c)
 * GRU    r, z = sigmoid, n = tanh(x's share + r q)      y = n + z (y_before - n)
 * plain  y = tanh or relu
 */
TN_FN void REAL_OF(tni_cell_step)(const tni_cell *a, int kind, int64_t i, int64_t j)
{
    int64_t h = a->y.size[1], n = tni_cell_gates(kind);
    const REAL *s = ROW(a->share, n);
    const REAL *bx = (const REAL *)a->bias_x.data + j, *bs = (const REAL *)a->bias_s.data + j;
    REAL *y = ROW(a->y, 1), *g = n > 1 ? ROW(a->gates, 4) : y;
    if (kind == TNI_LSTM_CELL) {
        REAL in = SIGMOID(GATE(0)), forget = SIGMOID(GATE(1));
        REAL value = TANH(GATE(2)), out = SIGMOID(GATE(3));
        REAL c = forget * *ROW(a->c_before, 1) + in * value;
        g[0] = in;
        g[h] = forget;
        g[2 * h] = value;
        g[3 * h] = out;
        *ROW(a->c, 1) = c;
        *y = out * TANH(c);
    } else if (kind == TNI_GRU_CELL) {
        REAL r = SIGMOID(GATE(0)), z = SIGMOID(GATE(1)), q = s[2 * h] + bs[2 * h];
        REAL v = TANH(g[2 * h] + bx[2 * h] + r * q);
        g[0] = r;
        g[h] = z;
        g[2 * h] = v;
        g[3 * h] = q;
        *y = v + z * (*ROW(a->y_before, 1) - v);
    } else {
        REAL v = GATE(0);
        *y = kind == TNI_TANH_CELL ? TANH(v) : REAL_OF(tni_u_relu)(v, 0, 0);
    }
}

TN_FN void REAL_OF(tni_cell_slope)(const tni_cell_grad *a, int kind, int64_t i, int64_t j)
{
    int64_t h = a->dy.size[1];
    REAL *later = ROW(a->later, 1), *dg = ROW(a->dgates, tni_cell_gates(kind));
    REAL d = *ROW(a->dy, 1) + *later;
    if (kind == TNI_LSTM_CELL) {
        const REAL *g = ROW(a->gates, 4);
        REAL *dc = ROW(a->dc, 1), t = TANH(*ROW(a->c, 1));
        REAL dcell = *dc + TANH_SLOPE(d * g[3 * h], t);
        dg[0] = SIGMOID_SLOPE(dcell * g[2 * h], g[0]);
        dg[h] = SIGMOID_SLOPE(dcell * *ROW(a->c_before, 1), g[h]);
        dg[2 * h] = TANH_SLOPE(dcell * g[0], g[2 * h]);
        dg[3 * h] = SIGMOID_SLOPE(d * t, g[3 * h]);
        *dc = dcell * g[h];
    } else if (kind == TNI_GRU_CELL) {
        const REAL *g = ROW(a->gates, 4);
        REAL *ds = ROW(a->dshare, 3), r = g[0], z = g[h], v = g[2 * h];
        REAL dv = TANH_SLOPE(d * ((REAL)1 - z), v);
        dg[0] = ds[0] = SIGMOID_SLOPE(dv * g[3 * h], r);
        dg[h] = ds[h] = SIGMOID_SLOPE(d * (*ROW(a->y_before, 1) - v), z);
        dg[2 * h] = dv;
        ds[2 * h] = dv * r;
        *later = d * z;
    } else {
        REAL y = *ROW(a->y, 1);
        *dg = kind == TNI_TANH_CELL ? TANH_SLOPE(d, y) : REAL_OF(tni_b_relu_grad)(d, y, 0, 0);
    }
}

#undef ROW
#undef GATE
#undef SIGMOID
#undef TANH
#undef SIGMOID_SLOPE
#undef TANH_SLOPE

#endif
