/*
 * attention_cudnn.cu - attention in bf16 and f16 through cuDNN, on GPUs of 9.0 and later: there
 * its kernels use warpgroup products, which ours (mma.sync) do not; 8.x keeps ours.
 *
 * Rows are kept as ours keep them (kernels.h): cuDNN's log-sum L of exp(scores) is top = L, or L /
 * scale without a mask, and share 1, so either backward follows either forward. Masks of keys are
 * added to the scores as the lowest number of E's size; a row of which nothing is left shows in
 * its L, and is set to 0 afterwards. Other masks are for our kernels.
 *
 * Backward is for 9.x only: of the engines for 10.x, the one with the same bits in each run must
 * be picked by numbers that differ between versions.
 */
#include <type_traits>

#include "cuda/attention_call.h"
#include "cuda/cudnn.h"

enum { LEAST = 64, BLOCK = 256 };

/* What a mask adds to a score: the same in both types, but for their ranges. */
template <typename E> static __host__ __device__ __forceinline__ float lowest()
{
    return std::is_same<E, f16>::value ? -65504 : -1e30f;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* The mask [B or 1, H or 1, 1, S] as numbers. */
template <typename E>
static __global__ void __launch_bounds__(BLOCK)
    attention_bias(E *to, const uint8_t *mask, int64_t n, int64_t heads, int64_t keys,
                   int64_t batch_stride, int64_t head_stride, int64_t key_stride)
{
    for (int64_t i = blockIdx.x * static_cast<int64_t>(BLOCK) + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * BLOCK) {
        const int64_t row = i / keys;
        const bool blocked =
            mask[row / heads * batch_stride + row % heads * head_stride + i % keys * key_stride] !=
            0;
        to[i] = element<E>::rounded(blocked ? lowest<E>() : 0.0f);
    }
}

/* a.top as cuDNN left it, the log-sum, to top and share; y of rows that saw no key to 0. */
template <typename E>
static __global__ void __launch_bounds__(BLOCK) attention_rows(attention<E> a, bool masked)
{
    const int64_t rows = a.items * a.t;
    for (int64_t r = blockIdx.x * static_cast<int64_t>(BLOCK) + threadIdx.x; r < rows;
         r += static_cast<int64_t>(gridDim.x) * BLOCK) {
        const float sum = a.top[r];
        const bool empty = masked && sum < lowest<E>() / 2;
        a.top[r] = empty ? 0 : masked ? sum : sum / a.scale;
        if (a.share) a.share[r] = empty ? 0 : 1;
        if (!empty) continue;
        const int64_t item = r / a.t;
        E *y =
            a.y.data + item / a.heads * a.y.batch + item % a.heads * a.y.head + r % a.t * a.y.row;
        for (int c = 0; c < a.dv_size; c++) y[c] = element<E>::rounded(0.0f);
    }
}

/* The log-sum again: infinite for a row that saw no key, whose probabilities are then 0. */
static __global__ void __launch_bounds__(BLOCK)
    attention_log_sums(float *to, const float *top, const float *share, float scale, int64_t rows)
{
    for (int64_t r = blockIdx.x * static_cast<int64_t>(BLOCK) + threadIdx.x; r < rows;
         r += static_cast<int64_t>(gridDim.x) * BLOCK)
        to[r] = share[r] == 0 ? INFINITY : top[r] * scale - row_log(share[r]);
}

static unsigned blocks(int64_t n)
{
    return row_grid(n, BLOCK);
}

/* ---- what cuDNN takes ------------------------------------------------------------------------ */

/* Rows on 16 bytes, no element twice. */
static bool fits_array(const tni_array *x)
{
    bool ok = quads_fit(x->data, 0) && x->size[3] % 8 == 0;
    for (int i = 0; i < 3; i++)
        ok = ok && x->size[i] > 0 &&
             (x->size[i] == 1 || (x->stride[i] > 0 && x->stride[i] % 8 == 0));
    return ok;
}

static bool fits_call(const tni_attention *a)
{
    const int64_t d = a->q.size[3];
    const tni_array *m = &a->mask;
    return tni_is_half(a->q.dtype) && d == a->v.size[3] && d >= 32 && d <= 128 &&
           a->q.size[2] >= LEAST && a->k.size[2] >= LEAST && a->scale > 0 && a->scale < 1e30 &&
           fits_array(&a->q) && fits_array(&a->k) && fits_array(&a->v) && fits_array(&a->y) &&
           (!m->data || (m->dtype == TN_BOOL && (m->stride[2] == 0 || m->size[2] == 1)));
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Scratch of a call, in one block: the mask as numbers, and two rows of f32. */
struct scratch {
    tni_cuda_scratch block;
    tni_array bias; /* data NULL: no mask */
    float *sums, *delta;
};

static tni_array bias_of(const tni_attention *a)
{
    const tni_array *m = &a->mask;
    const int64_t b = m->stride[0] == 0 ? 1 : a->q.size[0];
    const int64_t h = m->stride[1] == 0 ? 1 : a->q.size[1], s = a->k.size[2];
    return tni_array{ nullptr, a->q.dtype, 4, { b, h, 1, s }, { h * s, s, s, 1 } };
}

template <typename E> static tn_status fill_bias(const tni_attention *a, const tni_array *to)
{
    const int64_t *stride = a->mask.stride, n = to->size[0] * to->size[1] * to->size[3];
    return TN_LAUNCH((attention_bias<E>), blocks(n), BLOCK, 0, static_cast<E *>(to->data),
                     static_cast<const uint8_t *>(a->mask.data), n, to->size[1], to->size[3],
                     stride[0], stride[1], stride[3]);
}

static tn_status borrow(const tni_attention *a, scratch *s)
{
    const int64_t rows = a->q.size[0] * a->q.size[1] * a->q.size[2] * 4, whole = 256;
    const int64_t each = (rows + whole - 1) / whole * whole;
    int64_t bias = 0;

    s->bias = tni_array();
    if (a->mask.data) {
        s->bias = bias_of(a);
        bias = s->bias.size[0] * s->bias.stride[0] * 2;
    }
    if (tn_status failed = s->block.borrow(static_cast<size_t>(2 * each + bias))) return failed;
    s->sums = s->block.as<float>();
    s->delta = s->sums + each / 4;
    if (!a->mask.data) return TN_OK;
    s->bias.data = s->delta + each / 4;
    return a->q.dtype == TN_BF16 ? fill_bias<bf16>(a, &s->bias) : fill_bias<f16>(a, &s->bias);
}

struct described {
    const tni_attention *forward;
    const tni_attention_grad *grad;
    tni_array bias;
};

static void describe(dnn_graph *g, const void *of)
{
    const described *d = static_cast<const described *>(of);
    const tni_array *bias = d->bias.rank ? &d->bias : nullptr;
    if (d->grad) return dnn_attention_grad(g, d->grad, bias);
    dnn_attention(g, d->forward, bias, bias || d->forward->top.data);
}

static tn_status plan_for(const tni_attention *a, const tni_attention_grad *grad,
                          const dnn_plan **plan)
{
    described d = { a, grad, tni_array() };
    dnn_key key = {};
    if (a->mask.data) d.bias = bias_of(a);
    dnn_add(&key, grad ? 2 : a->top.data ? 1 : 0);
    dnn_add(&key, a->causal);
    for (const tni_array *x : { &a->q, &a->k, &a->v, &a->y }) dnn_add(&key, x);
    if (a->mask.data) dnn_add(&key, &d.bias);
    if (grad)
        for (const tni_array *x : { &grad->dy, &grad->dq, &grad->dk, &grad->dv }) dnn_add(&key, x);
    const dnn_request want = { &key, describe, &d };
    return tni_cudnn_plan(&want, plan);
}

template <typename E> static tn_status finish(const tni_attention *g, float *sums)
{
    attention<E> a = plan<E>(g);
    a.top = sums;
    return TN_LAUNCH((attention_rows<E>), blocks(a.items * a.t), BLOCK, 0, a,
                     g->mask.data != nullptr);
}

static tn_status forward(const tni_attention *a, const dnn_plan *plan, const scratch *s, bool *done)
{
    const float scale = static_cast<float>(a->scale), least = -INFINITY;
    const bool wanted = a->top.data || a->mask.data;
    float *sums = a->top.data ? static_cast<float *>(a->top.data) : s->sums;
    dnn_operand o[8] = { { DNN_Q, a->q.data },
                         { DNN_K, a->k.data },
                         { DNN_V, a->v.data },
                         { DNN_Y, a->y.data },
                         { DNN_SCALE, &scale } };
    int n = 5;

    if (wanted) o[n++] = dnn_operand{ DNN_LOG_SUM, sums };
    if (a->mask.data) o[n++] = dnn_operand{ DNN_BIAS, s->bias.data };
    if (a->causal) o[n++] = dnn_operand{ DNN_LOWEST, &least };
    if (tn_status failed = tni_cudnn_run(plan, n, o, done)) return failed;
    if (!*done || !wanted) return TN_OK;
    return a->q.dtype == TN_BF16 ? finish<bf16>(a, sums) : finish<f16>(a, sums);
}

tn_status tni_cudnn_attention(const tni_attention *a, bool *done)
{
    const dnn_plan *plan = nullptr;
    scratch s;
    int cc;

    *done = false;
    if (!fits_call(a)) return TN_OK;
    if (tn_status failed = tni_cudnn_ready(&cc); failed != TN_OK || cc < 90) return failed;
    if (tn_status failed = plan_for(a, nullptr, &plan); failed != TN_OK || !plan) return failed;
    if (tn_status failed = borrow(a, &s)) return failed;
    return forward(a, plan, &s, done);
}

static tn_status backward(const tni_attention_grad *g, const dnn_plan *plan, const scratch *s,
                          bool *done)
{
    const tni_attention *a = &g->of;
    const int64_t rows = a->q.size[0] * a->q.size[1] * a->q.size[2];
    const float scale = static_cast<float>(a->scale), least = -INFINITY, one = 1;
    dnn_operand o[14] = { { DNN_Q, a->q.data },    { DNN_K, a->k.data },   { DNN_V, a->v.data },
                          { DNN_Y, a->y.data },    { DNN_DY, g->dy.data }, { DNN_DQ, g->dq.data },
                          { DNN_DK, g->dk.data },  { DNN_DV, g->dv.data }, { DNN_LOG_SUM, s->sums },
                          { DNN_DELTA, s->delta }, { DNN_SCALE, &scale },  { DNN_ONE, &one } };
    int n = 12;

    if (a->mask.data) o[n++] = dnn_operand{ DNN_BIAS, s->bias.data };
    if (a->causal) o[n++] = dnn_operand{ DNN_LOWEST, &least };
    if (tn_status failed =
            TN_LAUNCH((attention_log_sums), blocks(rows), BLOCK, 0, s->sums,
                      static_cast<const float *>(a->top.data),
                      static_cast<const float *>(a->share.data), a->mask.data ? 1.0f : scale, rows))
        return failed;
    return tni_cudnn_run(plan, n, o, done);
}

tn_status tni_cudnn_attention_grad(const tni_attention_grad *g, bool *done)
{
    const dnn_plan *plan = nullptr;
    scratch s;
    int cc;

    *done = false;
    if (!fits_call(&g->of)) return TN_OK;
    for (const tni_array *x : { &g->dy, &g->dq, &g->dk, &g->dv })
        if (!fits_array(x)) return TN_OK;
    if (tn_status failed = tni_cudnn_ready(&cc); failed != TN_OK || cc / 10 != 9) return failed;
    if (tn_status failed = plan_for(&g->of, g, &plan); failed != TN_OK || !plan) return failed;
    if (tn_status failed = borrow(&g->of, &s)) return failed;
    return backward(g, plan, &s, done);
}
