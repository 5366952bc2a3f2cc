/*
 * cells.h - what one step of a recurrent layer does to one element of its state, and the gradient
 * of that, for f32 and f64, on the CPU and on the GPU.
 *
 * Everything here is of one row, a sequence of the batch; j is the element, h the size of the
 * state. The gates of a row lie one after the other, h elements each: i, f, g, o of an LSTM; r, z,
 * n of a GRU, and then q = h W_n^T + b_n, which its gradient reads. Before the step g holds what
 * the input adds to each gate, s what the state before adds, and a and b the biases of both;
 * afterwards g holds the gates. For includers that define REAL (float or double), REAL_TANH and
 * REAL_SIGMOID; C++ includes it again for the other.
 */
#include "tensor/formulas.h" /* TN_FN */

/* ---- LSTM: i, f, o = sigmoid, g = tanh; c = f c_before + i g; y = o tanh(c) ------------------ */

/* c may be c_before. */
TN_FN void tni_lstm_step(REAL *y, REAL *c, REAL *g, const REAL *s, const REAL *a, const REAL *b,
                         const REAL *c_before, int64_t h, int64_t j)
{
    REAL in = REAL_SIGMOID(g[j] + a[j] + (s[j] + b[j]));
    REAL forget = REAL_SIGMOID(g[h + j] + a[h + j] + (s[h + j] + b[h + j]));
    REAL value = REAL_TANH(g[2 * h + j] + a[2 * h + j] + (s[2 * h + j] + b[2 * h + j]));
    REAL out = REAL_SIGMOID(g[3 * h + j] + a[3 * h + j] + (s[3 * h + j] + b[3 * h + j]));
    REAL cell = forget * c_before[j] + in * value;
    g[j] = in;
    g[h + j] = forget;
    g[2 * h + j] = value;
    g[3 * h + j] = out;
    c[j] = cell;
    y[j] = out * REAL_TANH(cell);
}

/* dg: of the gates before sigmoid and tanh. dy comes from outside, later from the step after; dc is
 * c's gradient, and becomes c_before's. */
TN_FN void tni_lstm_grad(REAL *dg, REAL *dc, const REAL *dy, const REAL *later, const REAL *g,
                         const REAL *c, const REAL *c_before, int64_t h, int64_t j)
{
    REAL in = g[j], forget = g[h + j], value = g[2 * h + j], out = g[3 * h + j];
    REAL t = REAL_TANH(c[j]), d = dy[j] + later[j];
    REAL dcell = dc[j] + d * out * ((REAL)1 - t * t);
    dg[j] = dcell * value * in * ((REAL)1 - in);
    dg[h + j] = dcell * c_before[j] * forget * ((REAL)1 - forget);
    dg[2 * h + j] = dcell * in * ((REAL)1 - value * value);
    dg[3 * h + j] = d * t * out * ((REAL)1 - out);
    dc[j] = dcell * forget;
}

/* ---- GRU: r, z = sigmoid; n = tanh(x's share + r q); y = n + z (y_before - n) ---------------- */

TN_FN void tni_gru_step(REAL *y, REAL *g, const REAL *s, const REAL *a, const REAL *b,
                        const REAL *y_before, int64_t h, int64_t j)
{
    REAL r = REAL_SIGMOID(g[j] + a[j] + (s[j] + b[j]));
    REAL z = REAL_SIGMOID(g[h + j] + a[h + j] + (s[h + j] + b[h + j]));
    REAL q = s[2 * h + j] + b[2 * h + j];
    REAL n = REAL_TANH(g[2 * h + j] + a[2 * h + j] + r * q);
    g[j] = r;
    g[h + j] = z;
    g[2 * h + j] = n;
    g[3 * h + j] = q;
    y[j] = n + z * (y_before[j] - n);
}

/* dg: of what the input adds, ds: of what the state adds. later: as above; it becomes what reaches
 * y_before without a product. */
TN_FN void tni_gru_grad(REAL *dg, REAL *ds, REAL *later, const REAL *dy, const REAL *g,
                        const REAL *y_before, int64_t h, int64_t j)
{
    REAL r = g[j], z = g[h + j], n = g[2 * h + j], q = g[3 * h + j];
    REAL d = dy[j] + later[j];
    REAL dn = d * ((REAL)1 - z) * ((REAL)1 - n * n);
    REAL dr = dn * q * r * ((REAL)1 - r);
    REAL dz = d * (y_before[j] - n) * z * ((REAL)1 - z);
    dg[j] = ds[j] = dr;
    dg[h + j] = ds[h + j] = dz;
    dg[2 * h + j] = dn;
    ds[2 * h + j] = dn * r;
    later[j] = d * z;
}

/* ---- a plain cell: y = tanh or relu ---------------------------------------------------------- */

/* y holds what the input adds. */
TN_FN void tni_rnn_step(REAL *y, const REAL *s, const REAL *a, const REAL *b, bool relu, int64_t j)
{
    REAL v = y[j] + a[j] + (s[j] + b[j]);
    y[j] = !relu ? REAL_TANH(v) : v <= (REAL)0 ? (REAL)0 : v; /* NaN stays */
}

TN_FN void tni_rnn_grad(REAL *dg, const REAL *dy, const REAL *later, const REAL *y, bool relu,
                        int64_t j)
{
    REAL d = dy[j] + later[j];
    dg[j] = !relu ? d * ((REAL)1 - y[j] * y[j]) : y[j] <= (REAL)0 ? (REAL)0 : d;
}
