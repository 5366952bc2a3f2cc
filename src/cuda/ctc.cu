/* ctc.cu - connectionist temporal classification (tensor/cpu/real/ctc.c has the formulas): a block
 * for each sequence, whose threads share its states, step by step. */
#include "cuda/rows.h"

/* A sequence: state j's class is id(j). */
struct ctc_states {
    int64_t n, steps, blank;
    const int64_t *label;
    __device__ ctc_states(const tni_ctc &a, int64_t i) : blank(a.blank)
    {
        const int64_t *row = static_cast<const int64_t *>(a.table.data) + i * a.table.size[1];
        n = 2 * row[1] + 1;
        steps = row[0];
        label = row + 2;
    }
    __device__ __forceinline__ int64_t id(int64_t j) const { return j % 2 ? label[j / 2] : blank; }
};

/* Row (i, j) of a dense array of three axes. */
template <typename R>
static __device__ __forceinline__ R *row_at(const tni_array &a, int64_t i, int64_t j)
{
    return static_cast<R *>(a.data) + (i * a.size[1] + j) * a.size[2];
}

template <typename R> static __device__ R log_sum(R a, R b, R c)
{
    R top = a > b ? a : b;
    top = c > top ? c : top;
    top = top == static_cast<R>(-ROW_INFINITY) ? 0 : top;
    return top + row_log(row_exp(a - top) + row_exp(b - top) + row_exp(c - top));
}

/* Log of the probability to enter state j from those in x, of the step before (to -1) or after
 * (to 1); NULL: there is none. */
template <typename R>
static __device__ R entered(const ctc_states &s, const R *x, int64_t j, int to)
{
    const R never = static_cast<R>(-ROW_INFINITY);
    int64_t one = j + to, two = one + to;
    if (!x) return (to < 0 ? j < 2 : j >= s.n - 2) ? 0 : never;
    bool skips = two >= 0 && two < s.n && s.id(two) != s.id(j);
    return log_sum(x[j], one >= 0 && one < s.n ? x[one] : never, skips ? x[two] : never);
}

template <typename R> static __global__ void ctc_forward(tni_ctc a)
{
    const R never = static_cast<R>(-ROW_INFINITY);
    for (int64_t i = blockIdx.x; i < a.x.size[1]; i += gridDim.x) {
        const ctc_states s(a, i);
        const R *before = nullptr;
        for (int64_t k = 0; k < s.steps; k++) {
            const R *x = row_at<R>(a.x, k, i);
            R *alpha = row_at<R>(a.alpha, i, k);
            for (int64_t j = threadIdx.x; j < s.n; j += blockDim.x)
                alpha[j] = entered(s, before, j, -1) + x[s.id(j)];
            __syncthreads();
            before = alpha;
        }
        R last = before ? before[s.n - 1] : s.n == 1 ? 0 : never;
        R label = before && s.n > 1 ? before[s.n - 2] : never;
        if (threadIdx.x == 0) static_cast<R *>(a.loss.data)[i] = -log_sum(last, label, never);
    }
}

/* dx -= g share, summed over the states of a class by the thread of the first of them. */
template <typename R>
static __device__ void subtract(const ctc_states &s, const R *share, R g, R *dx)
{
    for (int64_t j = threadIdx.x; j < s.n; j += blockDim.x) {
        int64_t id = s.id(j), first = 0;
        while (s.id(first) != id) first++;
        if (first < j) continue;
        R sum = 0;
        for (int64_t k = j; k < s.n; k++) sum += s.id(k) == id ? share[k] : 0;
        dx[id] -= g * sum;
    }
}

/* scratch: for each sequence two rows of beta, and one of share. */
template <typename R> static __global__ void ctc_backward(tni_ctc_grad a, R *scratch)
{
    const R never = static_cast<R>(-ROW_INFINITY);
    for (int64_t i = blockIdx.x; i < a.dx.size[1]; i += gridDim.x) {
        const ctc_states s(a.of, i);
        R loss = static_cast<R *>(a.of.loss.data)[i], g = static_cast<R *>(a.drow.data)[i];
        bool finite = loss - loss == 0, zero = a.zero_infinity && loss == -never;
        int64_t width = a.of.alpha.size[2];
        R *share = scratch + (3 * i + 2) * width, *after = nullptr;
        for (int64_t k = a.dx.size[0] - 1; k >= 0; k--) {
            const R *x = row_at<R>(a.of.x, k, i), *alpha = row_at<R>(a.of.alpha, i, k);
            R *dx = row_at<R>(a.dx, k, i), *beta = scratch + (3 * i + k % 2) * width;
            bool counts = k < s.steps && finite;
            for (int64_t j = threadIdx.x; j < a.dx.size[2]; j += blockDim.x)
                dx[j] = counts ? g * row_exp(x[j]) : k >= s.steps || zero ? 0 : static_cast<R>(NAN);
            if (!counts) continue;
            for (int64_t j = threadIdx.x; j < s.n; j += blockDim.x) {
                R e = x[s.id(j)];
                beta[j] = entered(s, after, j, 1) + e;
                share[j] = e == never ? 0 : row_exp(alpha[j] + beta[j] - e + loss);
            }
            R all =
                static_cast<R>(block_sum(thread_sum<R>(s.n, [=](int64_t j) { return share[j]; })));
            subtract(s, share, g / all, dx);
            __syncthreads(); /* share may be written again */
            after = beta;
        }
    }
}

template <typename R> static tn_status run_grad(const tni_ctc_grad *a)
{
    int64_t n = a->dx.size[1], room = 3 * n * a->of.alpha.size[2];
    tni_cuda_scratch scratch;
    if (n == 0) return TN_OK;
    if (tn_status failed = scratch.borrow(static_cast<size_t>(room) * sizeof(R))) return failed;
    return TN_LAUNCH((ctc_backward<R>), row_grid(n, 1), ROW_THREADS, 0, *a, scratch.as<R>());
}

tn_status tni_cuda_ctc(const tni_ctc *a)
{
    int64_t n = a->x.size[1];
    if (n == 0) return TN_OK;
    return TN_REAL(a->x.dtype, TN_LAUNCH((ctc_forward<R>), row_grid(n, 1), ROW_THREADS, 0, *a));
}

tn_status tni_cuda_ctc_grad(const tni_ctc_grad *a)
{
    return TN_REAL(a->dx.dtype, run_grad<R>(a));
}
