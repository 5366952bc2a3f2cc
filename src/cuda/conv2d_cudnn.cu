/*
 * conv2d_cudnn.cu - convolution through cuDNN: no columns in memory. bf16 and f16, and f32 where
 * TF32 is allowed; sums in f32, a bias added to them before the one rounding.
 *
 * Tensor cores want channels innermost. Given x [n, c, h, w] cuDNN would copy it there and y back
 * in kernels of its own, into its workspace (seen in the plans' sizes); here the copies are ours
 * (tiles in copy.cu), so that no plan without them is taken. Copied are x, w and y (dy, w, dx; x,
 * dy, dw): each read once and written once. Channels of a group that are no multiple of 8 are left
 * to cuDNN as they are.
 */
#include "cuda/conv2d.h"
#include "cuda/cudnn.h"
#include "cuda/half.h"
#include "cuda/tile.h"

/* Fewer multiplications than this end sooner than a plan is made, and a launch is most of them. */
enum { LEAST = 1 << 16 };

struct described {
    dnn_pass pass;
    tn_dtype dtype;
    bool bias, inside;
    tni_conv2d_sizes sizes;
};

static void describe(dnn_graph *g, const void *of)
{
    const described *d = static_cast<const described *>(of);
    dnn_convolution(g, d->pass, d->dtype, &d->sizes, d->bias, d->inside);
}

static tn_status plan_for(const described *d, const dnn_plan **plan)
{
    const tni_conv2d_sizes *c = &d->sizes;
    dnn_key key = {};
    const int64_t numbers[] = {
        3 + d->pass, d->dtype, d->bias, d->inside, c->n,  c->groups, c->c,
        c->h,        c->w,     c->o,    c->kh,     c->kw, c->oh,     c->ow
    };
    for (int64_t v : numbers) dnn_add(&key, v);
    for (const int64_t *pair : { c->stride, c->padding, c->dilation })
        for (int i = 0; i < 2; i++) dnn_add(&key, pair[i]);
    const dnn_request want = { &key, describe, d };
    return tni_cudnn_plan(&want, plan);
}

/* Numbers of elements are ints in many of its kernels. */
static bool fits_call(const described *d)
{
    const tni_conv2d_sizes *c = &d->sizes;
    const int64_t taps = c->c / c->groups * c->kh * c->kw, pixels = c->n * c->oh * c->ow;
    const int64_t plane = c->h * c->w, most = INT32_MAX;
    if (!(d->dtype == TN_F32 ? tni_cuda_tf32() : tni_is_half(d->dtype))) return false;
    return taps > 0 && plane > 0 && c->n * c->c <= most / plane && c->o <= most / pixels &&
           c->o <= most / taps && c->o * pixels >= LEAST / taps;
}

/* Of an operand: its number, [n, c, h, w], where it lies. */
struct part {
    int64_t id, size[4];
    void *data;
};

static tni_array array_of(void *at, tn_dtype dtype, const int64_t *s, bool inside)
{
    const int64_t c = inside ? 1 : s[2] * s[3], w = inside ? s[1] : 1;
    return tni_array{
        at, dtype, 4, { s[0], s[1], s[2], s[3] }, { s[1] * s[2] * s[3], c, s[3] * w, w }
    };
}

static size_t bytes_of(const part *p, tn_dtype dtype)
{
    const size_t n = static_cast<size_t>(p->size[0] * p->size[1] * p->size[2] * p->size[3]);
    return (n * floating_size(dtype) + 255) / 256 * 256;
}

/* Through copies with channels innermost. Parts 0 and 1 are read, 2 is written. */
static tn_status run_inside(const dnn_plan *plan, tn_dtype dtype, const part *x, dnn_operand *o,
                            int n, bool *done)
{
    tni_cuda_scratch block;
    size_t at[4] = { 0 };

    for (int i = 0; i < 3; i++) at[i + 1] = at[i] + bytes_of(&x[i], dtype);
    if (tn_status failed = block.borrow(at[3])) return failed;
    tni_array own[3], given[3];
    for (int i = 0; i < 3; i++) {
        own[i] = array_of(block.as<char>() + at[i], dtype, x[i].size, true);
        given[i] = array_of(x[i].data, dtype, x[i].size, false);
        o[i].data = own[i].data;
        if (i < 2)
            if (tn_status failed = copy_to(own[i], given[i])) return failed;
    }
    if (tn_status failed = tni_cudnn_run(plan, n, o, done)) return failed;
    return *done ? copy_to(given[2], own[2]) : TN_OK;
}

static tn_status run(described *d, const part *x, const void *bias, bool *done)
{
    const tni_conv2d_sizes *c = &d->sizes;
    const dnn_plan *plan = nullptr;
    const int n = bias ? 4 : 3;
    dnn_operand o[4] = {
        { x[0].id, x[0].data }, { x[1].id, x[1].data }, { x[2].id, x[2].data }, { DNN_BIAS, bias }
    };
    int cc;

    *done = false;
    d->bias = bias;
    if (!fits_call(d)) return TN_OK;
    for (int i = 0; i < n; i++)
        if (!quads_fit(o[i].data, 0)) return TN_OK;
    if (tn_status failed = tni_cudnn_ready(&cc); failed != TN_OK || !cc) return failed;
    d->inside = c->c / c->groups % 8 == 0 && c->o / c->groups % 8 == 0;
    if (tn_status failed = plan_for(d, &plan)) return failed;
    if (!plan && d->inside) {
        d->inside = false;
        if (tn_status failed = plan_for(d, &plan)) return failed;
    }
    if (!plan) return TN_OK;
    return d->inside ? run_inside(plan, d->dtype, x, o, n, done) : tni_cudnn_run(plan, n, o, done);
}

static part image(int64_t id, const tni_conv2d_sizes *c, const tni_array *x)
{
    return part{ id, { c->n, c->c, c->h, c->w }, x->data };
}

static part weight(int64_t id, const tni_conv2d_sizes *c, const tni_array *w)
{
    return part{ id, { c->o, c->c / c->groups, c->kh, c->kw }, w->data };
}

static part result(int64_t id, const tni_conv2d_sizes *c, const tni_array *y)
{
    return part{ id, { c->n, c->o, c->oh, c->ow }, y->data };
}

tn_status tni_cudnn_conv2d(const tni_conv2d *a, bool *done)
{
    described d = { DNN_FORWARD, a->x.dtype, false, false, a->sizes };
    const part x[] = { image(DNN_X, &a->sizes, &a->x), weight(DNN_W, &a->sizes, &a->w),
                       result(DNN_Y, &a->sizes, &a->y) };
    return run(&d, x, a->bias.data, done);
}

tn_status tni_cudnn_conv2d_grad_input(const tni_conv2d_grad_input *a, bool *done)
{
    described d = { DNN_GRAD_INPUT, a->dy.dtype, false, false, a->sizes };
    const part x[] = { result(DNN_DY, &a->sizes, &a->dy), weight(DNN_W, &a->sizes, &a->w),
                       image(DNN_DX, &a->sizes, &a->dx) };
    return run(&d, x, nullptr, done);
}

tn_status tni_cudnn_conv2d_grad_weight(const tni_conv2d_grad_weight *a, bool *done)
{
    described d = { DNN_GRAD_WEIGHT, a->dy.dtype, false, false, a->sizes };
    const part x[] = { image(DNN_X, &a->sizes, &a->x), result(DNN_DY, &a->sizes, &a->dy),
                       weight(DNN_DW, &a->sizes, &a->dw) };
    return run(&d, x, nullptr, done);
}
