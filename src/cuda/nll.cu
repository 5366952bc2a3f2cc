/*
 * nll.cu - the negative log likelihood over a dense [n, c, d] array, and its gradient: row (i, k)
 * is the c log-probabilities x[i, :, k], of which only that of its class t counts; a thread each.
 *
 *   row_loss = -w[t] x[t], dx[t] = -w[t] drow; 0 elsewhere and on ignored rows
 */
#include "cuda/ids.h"

template <typename R> struct nll_job {
    R *row_loss, *row_weight, *dx;
    const R *x, *w, *drow;
    const int64_t *target;
    int64_t rows, c, d, ignore;
    tni_cuda_fault *fault;
    int64_t launch;
};

template <typename R>
static __device__ __forceinline__ bool nll_counts(const nll_job<R> &job, int64_t row, int64_t t)
{
    return row_counts(t, job.c, job.ignore, row, job.fault, job.launch, true);
}

/* Where row's element of class t is, in x and dx. */
template <typename R, typename D>
static __device__ __forceinline__ int64_t nll_at(const nll_job<R> &job, const D &by_d,
                                                 typename D::index row, int64_t t)
{
    typename D::index i = by_d.divide(row);
    return (static_cast<int64_t>(i) * job.c + t) * job.d + by_d.rest(row, i);
}

template <typename R, typename D> static __global__ void nll_rows(nll_job<R> job, D by_d)
{
    EACH(typename D::index, row, job.rows)
    {
        int64_t t = job.target[row];
        R loss = 0, wt = 0;
        if (nll_counts(job, static_cast<int64_t>(row), t)) {
            wt = job.w ? job.w[t] : 1;
            loss = -(wt * job.x[nll_at(job, by_d, row, t)]);
        }
        job.row_loss[row] = loss;
        job.row_weight[row] = wt;
    }
}

/* dx holds zeros. */
template <typename R, typename D> static __global__ void nll_grad_rows(nll_job<R> job, D by_d)
{
    EACH(typename D::index, row, job.rows)
    {
        int64_t t = job.target[row];
        if (nll_counts(job, static_cast<int64_t>(row), t))
            job.dx[nll_at(job, by_d, row, t)] = -((job.w ? job.w[t] : 1) * job.drow[row]);
    }
}

/* x: [n, c, d], or dx. */
template <typename R>
static nll_job<R> nll_job_of(const tni_array *x, const tni_array *target, const tni_array *weight,
                             int64_t ignore)
{
    nll_job<R> job = {};
    job.w = static_cast<const R *>(weight->data);
    job.target = static_cast<const int64_t *>(target->data);
    job.c = x->size[1];
    job.d = x->size[2];
    job.rows = x->size[0] * job.d;
    job.ignore = ignore;
    job.fault = tni_cuda_fault_word();
    job.launch = tni_cuda_fault_launch();
    return job;
}

template <typename R> static tn_status run_nll(const tni_nll *a)
{
    nll_job<R> job = nll_job_of<R>(&a->x, &a->target, &a->weight, a->ignore);
    job.row_loss = static_cast<R *>(a->row_loss.data);
    job.row_weight = static_cast<R *>(a->row_weight.data);
    job.x = static_cast<const R *>(a->x.data);
    if (job.rows == 0) return TN_OK;
    return BY_DIVISOR(job.rows, TN_LAUNCH((nll_rows<R, D>), row_grid(job.rows, THREADS), THREADS, 0,
                                          job, D(job.d)));
}

template <typename R> static tn_status run_nll_grad(const tni_nll_grad *a)
{
    nll_job<R> job = nll_job_of<R>(&a->dx, &a->target, &a->weight, a->ignore);
    job.dx = static_cast<R *>(a->dx.data);
    job.drow = static_cast<const R *>(a->drow.data);
    if (job.rows == 0 || job.c == 0) return TN_OK;
    tni_fill zeros = { a->dx, {} };
    if (tn_status failed = tni_cuda_fill(&zeros)) return failed;
    return BY_DIVISOR(job.rows, TN_LAUNCH((nll_grad_rows<R, D>), row_grid(job.rows, THREADS),
                                          THREADS, 0, job, D(job.d)));
}

tn_status tni_cuda_nll(const tni_nll *a)
{
    return TN_REAL(a->x.dtype, run_nll<R>(a));
}

tn_status tni_cuda_nll_grad(const tni_nll_grad *a)
{
    return TN_REAL(a->dx.dtype, run_nll_grad<R>(a));
}
