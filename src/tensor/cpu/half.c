/*
 * half.c - bf16 and f16 on the CPU through f32 kernels: those operands are copied to f32 scratch
 * memory, the f32 kernel of the same table runs, and its results are rounded to nearest even. So
 * sums are in f32 and rounded once, as on tensor cores.
 *
 * Kernels that work row by row get some rows at a time, so that the copies stay in the L1 cache;
 * others get whole copies, which cost a pass over memory for each operand.
 */
#include "tensor/cpu/dense/dense.h"

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
    if (!x->data || !tni_is_half(x->dtype)) return TN_OK;
    tn_status status = room(x, &w->nbytes);
    if (status != TN_OK || !input) return status;
    tni_copy c = { .y = *x, .x = w->was };
    for (int d = 0; d < x->rank; d++)
        if (x->stride[d] == 0 && x->size[d] > 1) c.y.size[d] = c.x.size[d] = 1;
    return copy(&c);
}

/* ---- rows, some at a time -------------------------------------------------------------------- */

/* About how many elements of an operand are in a piece, and in what a thread takes at a time. */
enum { PIECE = 1024, CHUNK = 16384 };

typedef struct rows_job {
    const tni_half *s;
    int64_t row[TNI_HALF_MOST]; /* elements in a row; -1: the array stays whole */
    int64_t piece, grain;       /* rows */
    size_t slot;                /* bytes of a worker's part for each array's copy */
    tni_scratch scratch;
} rows_job;

/* Outputs have a row for each row of x; so have inputs with further axes. */
static void find_rows(rows_job *job)
{
    const tni_half *s = job->s;
    int64_t longest = 1;
    for (int k = 0; k < s->n_out + s->n_in; k++) {
        const tni_array *x = &((const tni_array *)s->args)[k];
        job->row[k] = -1;
        if (!x->data || (k >= s->n_out && x->rank <= s->lead)) continue;
        job->row[k] = 1;
        for (int d = s->lead; d < x->rank; d++) job->row[k] *= x->size[d];
        longest = TNI_MAX(longest, job->row[k]);
    }
    job->piece = TNI_MAX(PIECE / longest, 1);
    job->grain = TNI_MAX(CHUNK / longest, 1);
    job->slot = (size_t)tni_up(job->piece * longest, 16) * sizeof(float);
    job->scratch.each = (size_t)(s->n_out + s->n_in) * job->slot;
}

/* Rows [begin, end): at most a piece of them. */
static void one_piece(const rows_job *job, int64_t begin, int64_t end)
{
    const tni_half *s = job->s;
    int n = s->n_out + s->n_in;
    union {
        tni_array array[TNI_HALF_MOST];
        char bytes[TNI_HALF_BYTES];
    } args;
    tni_array was[TNI_HALF_MOST];
    memcpy(&args, s->args, s->bytes);
    for (int k = 0; k < n; k++) {
        tni_array *x = &args.array[k];
        if (job->row[k] < 0) continue;
        x->data = (char *)x->data + begin * job->row[k] * (int64_t)tn_dtype_size(x->dtype);
        for (int d = 0; d < s->lead; d++) x->size[d] = 1;
        x->size[s->lead - 1] = end - begin;
        was[k] = *x;
        if (!tni_is_half(x->dtype)) continue;
        x->data = tni_scratch_own(&job->scratch, (size_t)k * job->slot);
        x->dtype = TN_F32;
        int64_t count = (end - begin) * job->row[k];
        if (k >= s->n_out) s->load(TN_F32, count, x->data, was[k].data, was[k].dtype, 1);
    }
    s->kernel(&args);
    for (int k = 0; k < s->n_out; k++)
        if (job->row[k] >= 0 && tni_is_half(was[k].dtype))
            s->store(TN_F32, (end - begin) * job->row[k], was[k].data, was[k].dtype, 1,
                     args.array[k].data);
}

static void rows_chunk(void *context, int64_t begin, int64_t end)
{
    const rows_job *job = context;
    for (int64_t i = begin; i < end; i += job->piece)
        one_piece(job, i, TNI_MIN(i + job->piece, end));
}

static tn_status by_rows(const tni_half *s)
{
    const tni_array *y = s->args;
    rows_job job = { .s = s };
    int64_t rows = 1;
    for (int d = 0; d < s->lead; d++) rows *= y->size[d];
    find_rows(&job);
    return tni_parallel_scratch(&job.scratch, rows, job.grain, rows_chunk, &job);
}

/* ---- whole operands -------------------------------------------------------------------------- */

tn_status tni_half_run(const tni_half *s)
{
    tni_array *x = s->args;
    narrow w[TNI_HALF_MOST] = { 0 };
    tn_status status = TN_OK;
    int n = s->n_out + s->n_in;
    for (int i = n - 1; i >= 0 && status == TN_OK; i--)
        if (!(s->itself >> i & 1) && (s->lead == 0 || x[i].rank <= s->lead))
            status = widen(&x[i], &w[i], i >= s->n_out || s->adds, s->copy);
    if (status == TN_OK) status = s->lead > 0 ? by_rows(s) : s->kernel(x);
    for (int i = 0; i < n; i++) {
        if (!w[i].nbytes) continue;
        if (i < s->n_out && status == TN_OK) status = s->copy(&(tni_copy){ w[i].was, x[i] });
        tni_free(x[i].data, w[i].nbytes);
    }
    return status;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Whether an operand's array has its other axis last: it is read in memory order. */
static bool is_turned(int64_t row, int64_t col)
{
    return row == 1 && col != 1;
}

static tni_array matrices(const tni_gemm *g, const void *data, int64_t rows, int64_t cols,
                          int64_t batch_stride, int64_t row, int64_t col)
{
    bool turned = is_turned(row, col);
    return (tni_array){ (void *)(uintptr_t)data,
                        g->dtype,
                        3,
                        { g->batch, turned ? cols : rows, turned ? rows : cols },
                        { batch_stride, turned ? col : row, turned ? row : col } };
}

/* A product's operands as arrays, in f32 when product_f32 gets them. */
typedef struct product {
    tni_array c, a, b, bias;
    const tni_gemm *g;
} product;

static tn_status product_f32(const void *args)
{
    const product *p = args;
    tni_gemm f = *p->g;
    bool a = is_turned(f.a_row, f.a_col), b = is_turned(f.b_row, f.b_col);
    f.dtype = TN_F32;
    f.packed = NULL; /* bf16 */
    f.a = p->a.data;
    f.a_batch = p->a.stride[0], f.a_row = p->a.stride[a ? 2 : 1], f.a_col = p->a.stride[a ? 1 : 2];
    f.b = p->b.data;
    f.b_batch = p->b.stride[0], f.b_row = p->b.stride[b ? 2 : 1], f.b_col = p->b.stride[b ? 1 : 2];
    f.bias = p->bias.data;
    f.c = p->c.data;
    f.c_batch = p->c.stride[0], f.c_row = p->c.stride[1];
    return tni_gemm_cut(&f);
}

tn_status tni_half_gemm(const tni_gemm *g)
{
    product p = { .g = g };
    p.c = (tni_array){ g->c,
                       g->sums_f32 ? TN_F32 : g->dtype,
                       3,
                       { g->batch, g->m, g->n },
                       { g->batch > 1 ? g->c_batch : g->m * g->n, g->c_row, 1 } };
    p.a = matrices(g, g->a, g->m, g->k, g->a_batch, g->a_row, g->a_col);
    p.b = matrices(g, g->b, g->k, g->n, g->b_batch, g->b_row, g->b_col);
    p.bias = (tni_array){ (void *)(uintptr_t)g->bias, g->dtype, 1, { g->n }, { 1 } };
    return tni_half_run(&(tni_half){ .kernel = product_f32,
                                     .args = &p,
                                     .n_out = 1,
                                     .n_in = 3,
                                     .adds = g->accumulate,
                                     .copy = tni_cpu_backend()->copy });
}
