/*
 * short.c - bf16 and f16 on the CPU for kernels that know f32: operands become f32 in scratch
 * memory, the f32 kernel of the same table runs, what it wrote is rounded to nearest even. So sums
 * are kept in f32 and rounded once, as tensor cores do. Right first: the conversions cost a pass
 * over each operand.
 */
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"

/* An array as f32 of our own. Axes that were broadcast (stride 0) take one place and stay so. */
typedef struct wide {
    tni_array a;
    size_t nbytes;
} wide;

/* Room for x's elements, in the order of its axes; absent for an absent x. */
static tn_status room(wide *w, const tni_array *x)
{
    size_t n = 1;

    *w = (wide){ .a = *x };
    if (!x->data) return TN_OK;
    w->a.data = NULL;
    w->a.dtype = TN_F32;
    for (int d = x->rank - 1; d >= 0; d--) {
        w->a.stride[d] = x->stride[d] ? (int64_t)n : 0;
        if (x->stride[d] && !tni_mul_size(n, (size_t)TNI_MAX(x->size[d], 1), &n))
            return tni_error(TN_E_NOMEM, "an operand of %s as f32 does not fit in memory",
                             tn_dtype_name(x->dtype));
    }
    if (!tni_mul_size(n, sizeof(float), &w->nbytes))
        return tni_error(TN_E_NOMEM, "an operand of %s as f32 does not fit in memory",
                         tn_dtype_name(x->dtype));
    w->a.data = tni_alloc(w->nbytes);
    return w->a.data ? TN_OK : TN_E_NOMEM;
}

static tn_status widen(const tni_backend *b, wide *w, const tni_array *x)
{
    tn_status status = room(w, x);
    tni_array to = w->a, from = *x;

    if (status != TN_OK || !x->data) return status;
    for (int d = 0; d < x->rank; d++)
        if (x->stride[d] == 0 && x->size[d] > 1) to.size[d] = from.size[d] = 1;
    return b->copy(&to, &from);
}

/* Operands before outputs; the rest of n stays absent after a failure. */
static tn_status prepare(const tni_backend *b, wide *w, const tni_array *const *x, int n_in,
                         int n_out)
{
    tn_status status = TN_OK;

    memset(w, 0, (size_t)(n_in + n_out) * sizeof *w);
    for (int i = 0; i < n_in + n_out && status == TN_OK; i++)
        status = i < n_in ? widen(b, &w[i], x[i]) : room(&w[i], x[i]);
    return status;
}

/* Rounds the outputs, if the kernel succeeded, and gives all memory back. */
static tn_status finish(const tni_backend *b, wide *w, const tni_array *const *x, int n_in,
                        int n_out, tn_status status)
{
    for (int i = 0; i < n_in + n_out; i++) {
        if (i >= n_in && x[i]->data && status == TN_OK) status = b->copy(x[i], &w[i].a);
        if (w[i].nbytes) tni_free(w[i].a.data, w[i].nbytes);
    }
    return status;
}

/* ---- products -------------------------------------------------------------------------------- */

/* A batch of matrices with its denser axis last, so that a transposed operand is read as it lies.
 * */
static tni_array matrices(const void *data, tn_dtype dtype, int64_t batch, int64_t rows,
                          int64_t cols, int64_t batch_stride, int64_t row, int64_t col)
{
    bool turned = row == 1 && col != 1;

    return (tni_array){ (void *)(uintptr_t)data,
                        dtype,
                        3,
                        { batch, turned ? cols : rows, turned ? rows : cols },
                        { batch_stride, turned ? col : row, turned ? row : col } };
}

tn_status tni_short_gemm(const tni_backend *b, const tni_gemm *g)
{
    tni_array a = matrices(g->a, g->dtype, g->batch, g->m, g->k, g->a_batch, g->a_row, g->a_col);
    tni_array x = matrices(g->b, g->dtype, g->batch, g->k, g->n, g->b_batch, g->b_row, g->b_col);
    tni_array bias = { (void *)(uintptr_t)g->bias, g->dtype, 1, { g->n }, { 1 } };
    tni_array c = { g->c,
                    g->dtype,
                    3,
                    { g->batch, g->m, g->n },
                    { g->batch > 1 ? g->c_batch : g->m * g->n, g->c_row, 1 } };
    const tni_array *arrays[] = { &a, &x, &bias, &c };
    wide w[4];
    tni_gemm f = *g;
    tn_status status = prepare(b, w, arrays, 3, 1);
    bool turned_a = g->a_row == 1 && g->a_col != 1, turned_b = g->b_row == 1 && g->b_col != 1;

    if (status == TN_OK && g->accumulate) status = b->copy(&w[3].a, &c);
    f.dtype = TN_F32;
    f.a = w[0].a.data;
    f.a_batch = w[0].a.stride[0];
    f.a_row = w[0].a.stride[turned_a ? 2 : 1];
    f.a_col = w[0].a.stride[turned_a ? 1 : 2];
    f.b = w[1].a.data;
    f.b_batch = w[1].a.stride[0];
    f.b_row = w[1].a.stride[turned_b ? 2 : 1];
    f.b_col = w[1].a.stride[turned_b ? 1 : 2];
    f.bias = w[2].a.data;
    f.c = w[3].a.data;
    f.c_batch = w[3].a.stride[0];
    f.c_row = w[3].a.stride[1];
    if (status == TN_OK) status = b->gemm(&f);
    return finish(b, w, arrays, 3, 1, status);
}

/* ---- convolution ----------------------------------------------------------------------------- */

typedef struct conv_arrays {
    tni_array x, w, bias, y;
} conv_arrays;

static tni_array dense(const void *data, tn_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (
        tni_array){ (void *)(uintptr_t)data, dtype, 4, { a, b, c, d }, { b * c * d, c * d, d, 1 } };
}

static conv_arrays conv_of(const void *x, const void *w, const void *bias, const void *y,
                           tn_dtype dtype, const tni_conv2d *c)
{
    return (conv_arrays){ dense(x, dtype, c->n, c->c, c->h, c->w),
                          dense(w, dtype, c->o, c->c / c->groups, c->kh, c->kw),
                          dense(bias, dtype, c->o, 1, 1, 1),
                          dense(y, dtype, c->n, c->o, c->oh, c->ow) };
}

tn_status tni_short_conv2d(const tni_backend *b, void *y, const void *x, const void *w,
                           const void *bias, tn_dtype dtype, const tni_conv2d *c)
{
    conv_arrays of = conv_of(x, w, bias, y, dtype, c);
    const tni_array *arrays[] = { &of.x, &of.w, &of.bias, &of.y };
    wide f[4];
    tn_status status = prepare(b, f, arrays, 3, 1);

    if (status == TN_OK)
        status = b->conv2d(f[3].a.data, f[0].a.data, f[1].a.data, f[2].a.data, TN_F32, c);
    return finish(b, f, arrays, 3, 1, status);
}

tn_status tni_short_conv2d_grad_input(const tni_backend *b, void *dx, const void *dy, const void *w,
                                      tn_dtype dtype, const tni_conv2d *c)
{
    conv_arrays of = conv_of(dx, w, NULL, dy, dtype, c);
    const tni_array *arrays[] = { &of.y, &of.w, &of.x };
    wide f[3];
    tn_status status = prepare(b, f, arrays, 2, 1);

    if (status == TN_OK)
        status = b->conv2d_grad_input(f[2].a.data, f[0].a.data, f[1].a.data, TN_F32, c);
    return finish(b, f, arrays, 2, 1, status);
}

tn_status tni_short_conv2d_grad_weight(const tni_backend *b, void *dw, const void *dy,
                                       const void *x, tn_dtype dtype, const tni_conv2d *c)
{
    conv_arrays of = conv_of(x, dw, NULL, dy, dtype, c);
    const tni_array *arrays[] = { &of.y, &of.x, &of.w };
    wide f[3];
    tn_status status = prepare(b, f, arrays, 2, 1);

    if (status == TN_OK)
        status = b->conv2d_grad_weight(f[2].a.data, f[0].a.data, f[1].a.data, TN_F32, c);
    return finish(b, f, arrays, 2, 1, status);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* A bool mask and lse, which is f32 already, stay as they are. */
tn_status tni_short_attention(const tni_backend *b, const tni_attention *a)
{
    tni_array mask = a->mask.dtype == TN_BOOL ? tni_array_none() : a->mask;
    const tni_array *arrays[] = { &a->q, &a->k, &a->v, &mask, &a->y };
    tni_attention f = *a;
    wide w[5];
    tn_status status = prepare(b, w, arrays, 4, 1);

    f.q = w[0].a;
    f.k = w[1].a;
    f.v = w[2].a;
    f.y = w[4].a;
    if (mask.data) f.mask = w[3].a;
    if (status == TN_OK) status = b->attention(&f);
    return finish(b, w, arrays, 4, 1, status);
}

tn_status tni_short_attention_grad(const tni_backend *b, const tni_attention *a,
                                   const tni_array *dy, const tni_array *dq, const tni_array *dk,
                                   const tni_array *dv)
{
    tni_array mask = a->mask.dtype == TN_BOOL ? tni_array_none() : a->mask;
    const tni_array *arrays[] = { &a->q, &a->k, &a->v, &mask, &a->y, dy, dq, dk, dv };
    tni_attention f = *a;
    wide w[9];
    tn_status status = prepare(b, w, arrays, 6, 3);

    f.q = w[0].a;
    f.k = w[1].a;
    f.v = w[2].a;
    f.y = w[4].a;
    if (mask.data) f.mask = w[3].a;
    if (status == TN_OK) status = b->attention_grad(&f, &w[5].a, &w[6].a, &w[7].a, &w[8].a);
    return finish(b, w, arrays, 6, 3, status);
}

/* ---- dropout --------------------------------------------------------------------------------- */

tn_status tni_short_dropout(const tni_backend *b, const tni_array *y, const tni_array *x, double p,
                            uint64_t seed, uint64_t offset)
{
    const tni_array *arrays[] = { x, y };
    wide w[2];
    tn_status status = prepare(b, w, arrays, 1, 1);

    if (status == TN_OK) status = b->dropout(&w[1].a, &w[0].a, p, seed, offset);
    return finish(b, w, arrays, 1, 1, status);
}
