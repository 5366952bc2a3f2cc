/*
 * nll.c - the negative log likelihood over a dense [n, c, d] array, and its gradient: row (i, k) is
 * the c log-probabilities x[i, :, k], of which only the one of its class t counts.
 *
 *   row_loss = -w[t] x[t], dx[t] = -w[t] drow; 0 elsewhere and on ignored rows
 */
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/real/rows.h"

typedef struct nll_job {
    REAL *row_loss, *row_weight, *dx;
    const REAL *x, *w, *drow;
    const int64_t *target;
    int64_t c, d, ignore;
} nll_job;

static void nll_rows(void *context, int64_t begin, int64_t end)
{
    const nll_job *job = context;
    for (int64_t row = begin; row < end; row++) {
        int64_t t = job->target[row];
        bool counts = tni_class_of(t, job->c, job->ignore) == TNI_CLASS_GOOD;
        REAL wt = !counts ? 0 : job->w ? job->w[t] : 1;
        int64_t i = row / job->d, k = row % job->d;
        job->row_loss[row] = counts ? -(wt * job->x[(i * job->c + t) * job->d + k]) : 0;
        job->row_weight[row] = wt;
    }
}

tn_status K(tni_nll)(const tni_nll *a)
{
    nll_job job = { .row_loss = a->row_loss.data,
                    .row_weight = a->row_weight.data,
                    .x = a->x.data,
                    .w = a->weight.data,
                    .target = a->target.data,
                    .c = a->x.size[1],
                    .d = a->x.size[2],
                    .ignore = a->ignore };
    int64_t rows = a->x.size[0] * job.d;
    tn_status status = row_check_classes("tn_nll_loss", job.target, rows, job.c, a->ignore, 0);
    if (status == TN_OK) tni_parallel(rows, row_grain(1, 4), nll_rows, &job);
    return status;
}

static void nll_grad_planes(void *context, int64_t begin, int64_t end)
{
    const nll_job *job = context;
    int64_t c = job->c, d = job->d;
    memset(job->dx + begin * c * d, 0, (size_t)((end - begin) * c * d) * sizeof(REAL));
    for (int64_t row = begin * d; row < end * d; row++) {
        int64_t t = job->target[row];
        int64_t i = row / d, k = row % d;
        if (tni_class_of(t, c, job->ignore) == TNI_CLASS_GOOD)
            job->dx[(i * c + t) * d + k] = -((job->w ? job->w[t] : 1) * job->drow[row]);
    }
}

tn_status K(tni_nll_grad)(const tni_nll_grad *a)
{
    nll_job job = { .dx = a->dx.data,
                    .drow = a->drow.data,
                    .w = a->weight.data,
                    .target = a->target.data,
                    .c = a->dx.size[1],
                    .d = a->dx.size[2],
                    .ignore = a->ignore };
    int64_t n = a->dx.size[0];
    tn_status status = row_check_classes("tn_nll_loss", job.target, n * job.d, job.c, a->ignore, 0);
    if (status == TN_OK && n * job.c * job.d > 0)
        tni_parallel(n, row_grain(job.c * job.d, 1), nll_grad_planes, &job);
    return status;
}
