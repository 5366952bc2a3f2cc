/*
 * short.c - bf16 and f16 on the CPU through f32 kernels: those operands are copied to f32 scratch
 * memory,
 * the f32 kernel of the same table runs, and its results are rounded to nearest even. So sums are
 * in f32 and rounded once, as on tensor cores. Correct, not fast: the conversions cost a pass over
 * each operand.
 */
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"

/* An array as it was before its f32 copy replaced it; nbytes 0: not replaced. */
typedef struct narrow {
    tni_array was;
    size_t nbytes;
} narrow;

/* Memory for x's elements as f32, in the order of its axes. Broadcast axes (stride 0) take one
 * element and stay broadcast. */
static tn_status room(tni_array *x, size_t *nbytes)
{
    size_t n = 1;

    x->data = NULL;
    for (int d = x->rank - 1; d >= 0; d--) {
        bool broadcast = x->stride[d] == 0;
        x->stride[d] = broadcast ? 0 : (int64_t)n;
        if (!broadcast && !tni_mul_size(n, (size_t)TNI_MAX(x->size[d], 1), &n)) n = SIZE_MAX;
    }
    if (!tni_mul_size(n, sizeof(float), nbytes))
        return tni_error(TN_E_NOMEM, "an operand of %s as f32 does not fit in memory",
                         tn_dtype_name(x->dtype));
    x->dtype = TN_F32;
    x->data = tni_alloc(*nbytes);
    return x->data ? TN_OK : TN_E_NOMEM;
}

static tn_status widen(tni_array *x, narrow *w, bool input, tni_copy_kernel copy)
{
    w->was = *x;
    if (!x->data || !tni_is_short(x->dtype)) return TN_OK;
    tn_status status = room(x, &w->nbytes);
    if (status != TN_OK || !input) return status;
    tni_copy c = { .y = *x, .x = w->was };
    for (int d = 0; d < x->rank; d++)
        if (x->stride[d] == 0 && x->size[d] > 1) c.y.size[d] = c.x.size[d] = 1;
    return copy(&c);
}

tn_status tni_short_run(tn_status (*kernel)(const void *args), void *args, int n_out, int n_in,
                        tni_copy_kernel copy)
{
    enum { MOST = 10 }; /* attention_grad's */
    tni_array *x = args;
    narrow w[MOST] = { 0 };
    tn_status status = TN_OK;

    for (int i = n_out; i < n_out + n_in && status == TN_OK; i++)
        status = widen(&x[i], &w[i], true, copy);
    for (int i = 0; i < n_out && status == TN_OK; i++) status = widen(&x[i], &w[i], false, copy);
    if (status == TN_OK) status = kernel(args);
    for (int i = 0; i < n_out + n_in; i++) {
        if (!w[i].nbytes) continue;
        if (i < n_out && status == TN_OK) status = copy(&(tni_copy){ w[i].was, x[i] });
        tni_free(x[i].data, w[i].nbytes);
    }
    return status;
}

/* ---- products -------------------------------------------------------------------------------- */

/* A product's operands as arrays. */
typedef struct product {
    tni_array c, a, b, bias;
    const tni_gemm *g;
    bool turned_a, turned_b; /* the array has the other axis last */
    tni_array was;           /* c */
    tni_copy_kernel copy;
} product;

/* A batch of matrices, the denser axis last: a transposed operand is read in memory order. */
static tni_array matrices(const void *data, tn_dtype dtype, int64_t batch, int64_t rows,
                          int64_t cols, int64_t batch_stride, int64_t row, int64_t col,
                          bool *turned)
{
    *turned = row == 1 && col != 1;
    return (tni_array){ (void *)(uintptr_t)data,
                        dtype,
                        3,
                        { batch, *turned ? cols : rows, *turned ? rows : cols },
                        { batch_stride, *turned ? col : row, *turned ? row : col } };
}

static tn_status product_f32(const void *args)
{
    const product *p = args;
    tni_gemm f = *p->g;

    if (f.accumulate) {
        tn_status status = p->copy(&(tni_copy){ p->c, p->was });
        if (status != TN_OK) return status;
    }
    f.dtype = TN_F32;
    f.a = p->a.data;
    f.a_batch = p->a.stride[0];
    f.a_row = p->a.stride[p->turned_a ? 2 : 1];
    f.a_col = p->a.stride[p->turned_a ? 1 : 2];
    f.b = p->b.data;
    f.b_batch = p->b.stride[0];
    f.b_row = p->b.stride[p->turned_b ? 2 : 1];
    f.b_col = p->b.stride[p->turned_b ? 1 : 2];
    f.bias = p->bias.data;
    f.c = p->c.data;
    f.c_batch = p->c.stride[0];
    f.c_row = p->c.stride[1];
    return tni_cpu_gemm(&f);
}

tn_status tni_short_gemm(const tni_gemm *g, tni_copy_kernel copy)
{
    product p = { .g = g, .copy = copy };

    p.c = (tni_array){ g->c,
                       g->dtype,
                       3,
                       { g->batch, g->m, g->n },
                       { g->batch > 1 ? g->c_batch : g->m * g->n, g->c_row, 1 } };
    p.a =
        matrices(g->a, g->dtype, g->batch, g->m, g->k, g->a_batch, g->a_row, g->a_col, &p.turned_a);
    p.b =
        matrices(g->b, g->dtype, g->batch, g->k, g->n, g->b_batch, g->b_row, g->b_col, &p.turned_b);
    p.bias = (tni_array){ (void *)(uintptr_t)g->bias, g->dtype, 1, { g->n }, { 1 } };
    p.was = p.c;
    return tni_short_run(product_f32, &p, 1, 3, copy);
}
