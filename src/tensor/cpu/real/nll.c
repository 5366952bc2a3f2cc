/*
 * nll.c - the negative log likelihood over a dense [n, c, d] array, and its gradient: row (i, k) is
 * the c log-probabilities x[i, :, k], of which only the one of its class t counts.
 *
 *   row_loss = -w[t] x[t], dx[t] = -w[t] drow; 0 elsewhere and on ignored rows
 */
#include "tensor/cpu/real/rows.h"

static void nll_rows(void *context, int64_t begin, int64_t end)
{
    const tni_nll *a = context;
    const REAL *x = a->x.data, *w = a->weight.data;
    int64_t c = a->x.size[1], d = a->x.size[2];
    for (int64_t row = begin; row < end; row++) {
        int64_t t = ((const int64_t *)a->target.data)[row];
        bool counts = tni_class_of(t, c, a->ignore) == TNI_CLASS_GOOD;
        REAL wt = !counts ? 0 : w ? w[t] : 1;
        int64_t i = row / d, k = row % d;
        ((REAL *)a->row_loss.data)[row] = counts ? -(wt * x[(i * c + t) * d + k]) : 0;
        ((REAL *)a->row_weight.data)[row] = wt;
    }
}

tn_status K(tni_nll)(const tni_nll *a)
{
    int64_t rows = a->x.size[0] * a->x.size[2];
    TNI_TRY(row_check_classes("tn_nll_loss", a->target.data, rows, a->x.size[1], a->ignore, 0));
    return tni_parallel_args(rows, row_grain(1, 4), nll_rows, a);
}

static void nll_grad_planes(void *context, int64_t begin, int64_t end)
{
    const tni_nll_grad *a = context;
    const REAL *drow = a->drow.data, *w = a->weight.data;
    REAL *dx = a->dx.data;
    int64_t c = a->dx.size[1], d = a->dx.size[2];
    memset(dx + begin * c * d, 0, (size_t)((end - begin) * c * d) * sizeof(REAL));
    for (int64_t row = begin * d; row < end * d; row++) {
        int64_t t = ((const int64_t *)a->target.data)[row];
        int64_t i = row / d, k = row % d;
        if (tni_class_of(t, c, a->ignore) == TNI_CLASS_GOOD)
            dx[(i * c + t) * d + k] = -((w ? w[t] : 1) * drow[row]);
    }
}

tn_status K(tni_nll_grad)(const tni_nll_grad *a)
{
    int64_t n = a->dx.size[0], c = a->dx.size[1], d = a->dx.size[2];
    tn_status status = row_check_classes("tn_nll_loss", a->target.data, n * d, c, a->ignore, 0);
    if (status != TN_OK || n * c * d == 0) return status;
    return tni_parallel_args(n, row_grain(c * d, 1), nll_grad_planes, a);
}
