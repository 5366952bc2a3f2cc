/*
 * reduce.c - reductions over any axes of arrays of any strides.
 *
 * Axes are split into kept and reduced ones, each kind sorted by x's strides and merged. If a
 * reduced axis has the smallest stride, results are computed one by one, along rows; otherwise runs
 * of neighbouring results are accumulated together, row after row (a bias gradient: [N,C] to [C]).
 * Work is cut at fixed borders: a result over many elements gets several partial results, which are
 * combined in order. So the bits depend only on shape and strides.
 *
 * Squares and powers that leave the range of the computing type, and squares about a mean far from
 * 0, which would show its rounding, are added again in double, from elements that a power of two
 * brought below 1 (mend). So are the sums of means in f32 that left its range (widen).
 */
#include "tensor/cpu/pointwise.h"
#include "tensor/walk.h"

enum { SLICE = 32768 }; /* elements in one task, about; also in one partial result */

typedef struct job {
    const tni_reducer *reducer;
    tn_dtype type; /* TN_F32, TN_F64, TN_I64 */
    tn_dtype dtype;
    bool convert;
    const char *x;
    int64_t item;
    tni_walk kept, reduced; /* array 0: x; 1, of kept: y */
    bool by_cols;
    int64_t cols;  /* size of the last kept axis, by_cols */
    int64_t tiles; /* of TNI_BLOCK columns in them */
    int64_t units; /* results, or tiles of them: tasks of a slice */
    int64_t slice; /* reduced elements per partial result */
    int64_t slices;
    double p;
    tni_acc *partial;     /* [slices][kept.numel] */
    const tni_acc *scale; /* [kept.numel]: what elements are multiplied by, in double; or NULL */
    /* of the pass that runs */
    tni_pass pass;
    const tni_acc *center; /* [kept.numel] or NULL */
    tni_acc *acc;          /* [kept.numel] */
} job;

/* Offset in x of element i of a walk; *left: how many more follow along its last axis. */
static int64_t place(const tni_walk *w, int64_t i, int64_t *left)
{
    int64_t at = 0;
    *left = 1;
    for (int d = w->rank - 1; d >= 0; d--) {
        int64_t index = d > 0 ? i % w->size[d] : i; /* one axis: no division */
        if (d == w->rank - 1) *left = w->size[d] - index;
        at += index * w->stride[d][0];
        if (d > 0) i /= w->size[d];
    }
    return at;
}

/* Scales n elements of a buffer: for results o and on, or (step 0) all for result o */
static void scale_row(const job *j, int64_t n, void *buffer, int64_t o, int step)
{
    double *x = buffer;
    for (int64_t i = 0; j->scale && i < n; i++) x[i] *= j->scale[o + i * step].f;
}

static void one_row(const job *j, int64_t o, int64_t n, const char *x, int64_t stride, tni_acc *acc)
{
    enum { PIECE = 2048 };
    _Alignas(64) char buffer[PIECE * sizeof(double)];
    const tni_acc *center = j->center ? j->center + o : NULL;
    if (!j->convert) {
        j->reducer->row(j->pass, n, x, stride, acc, center, j->p);
        return;
    }
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = TNI_MIN(n - i, (int64_t)PIECE);
        K(tni_load)(j->type, m, buffer, x + i * stride * j->item, j->dtype, stride);
        scale_row(j, m, buffer, o, 0);
        j->reducer->row(j->pass, m, buffer, 1, acc, center, j->p);
    }
}

/* Result o, reduced elements [begin, end). */
static void row_task(const job *j, int64_t o, int64_t begin, int64_t end, tni_acc *acc)
{
    const tni_walk *r = &j->reduced;
    int64_t left;
    const char *x = j->x + place(&j->kept, o, &left) * j->item;
    int64_t stride = r->stride[r->rank - 1][0];
    *acc = j->reducer->identity(j->pass);
    while (begin < end) {
        int64_t at = place(r, begin, &left);
        int64_t n = TNI_MIN(left, end - begin);
        one_row(j, o, n, x + at * j->item, stride, acc);
        begin += n;
    }
}

/* Results o ... o + cols, reduced elements [begin, end): each of them is a row of cols elements. */
static void cols_task(const job *j, int64_t o, int64_t cols, int64_t begin, int64_t end,
                      tni_acc *acc)
{
    enum { ROWS = 8 }; /* converted at a time: as many as a sum adds up before it widens */
    const tni_walk *r = &j->reduced;
    _Alignas(64) char buffer[ROWS * TNI_BLOCK * sizeof(double)];
    int64_t left;
    const char *x = j->x + place(&j->kept, o, &left) * j->item;
    int64_t row_size = cols * (int64_t)tn_dtype_size(j->type);
    int64_t row_stride = r->stride[r->rank - 1][0];
    int64_t col_stride = j->kept.stride[j->kept.rank - 1][0];
    const tni_acc *center = j->center ? j->center + o : NULL;
    bool low = j->dtype == TN_BF16 && j->pass == TNI_SUM && !j->scale;
    const tni_acc none = j->reducer->identity(j->pass);
    for (int64_t i = 0; i < cols; i++) acc[i] = none;
    while (begin < end) {
        const char *at = x + place(r, begin, &left) * j->item;
        int64_t n = TNI_MIN(left, end - begin);
        if (low)
            j->reducer->sum_bf16(n, cols, at, row_stride, col_stride, acc);
        else if (!j->convert)
            j->reducer->cols(j->pass, n, cols, at, row_stride, col_stride, acc, center, j->p);
        for (int64_t i = 0; j->convert && !low && i < n; i += ROWS) {
            int64_t rows = TNI_MIN(n - i, (int64_t)ROWS);
            for (int64_t k = 0; k < rows; k++) {
                const char *row = at + (i + k) * row_stride * j->item;
                K(tni_load)(j->type, cols, buffer + k * row_size, row, j->dtype, col_stride);
                scale_row(j, cols, buffer + k * row_size, o, 1);
            }
            j->reducer->cols(j->pass, rows, cols, buffer, cols, 1, acc, center, j->p);
        }
        begin += n;
    }
}

/* Tasks are numbered slice by slice, and within a slice by result or by tile of results. */
static void tasks(void *context, int64_t first, int64_t last)
{
    const job *j = context;
    for (int64_t t = first; t < last; t++) {
        int64_t slice = t / j->units, unit = t % j->units;
        int64_t begin = slice * j->slice;
        int64_t end = TNI_MIN(begin + j->slice, j->reduced.numel);
        tni_acc *to = j->slices > 1 ? j->partial + slice * j->kept.numel : j->acc;
        if (j->by_cols) {
            int64_t tile = unit % j->tiles * TNI_BLOCK;
            int64_t o = unit / j->tiles * j->cols + tile;
            cols_task(j, o, TNI_MIN(j->cols - tile, (int64_t)TNI_BLOCK), begin, end, to + o);
        } else {
            row_task(j, unit, begin, end, to + unit);
        }
    }
}

static void combine(void *context, int64_t first, int64_t last)
{
    const job *j = context;
    memcpy(j->acc + first, j->partial + first, (size_t)(last - first) * sizeof(tni_acc));
    for (int64_t s = 1; s < j->slices; s++)
        j->reducer->combine(j->pass, last - first, j->acc + first,
                            j->partial + s * j->kept.numel + first);
}

static void run_pass(job *j, tni_pass pass, tni_acc *acc, const tni_acc *center)
{
    int64_t width = j->by_cols ? TNI_MIN(j->cols, (int64_t)TNI_BLOCK) : 1;
    int64_t work = TNI_MIN(j->slice, j->reduced.numel) * width; /* elements of a task */
    j->pass = pass;
    j->acc = acc;
    j->center = center;
    tni_parallel(j->units * j->slices, TNI_MAX(SLICE / TNI_MAX(work, (int64_t)1), (int64_t)1),
                 tasks, j);
    if (j->slices > 1)
        tni_parallel(j->kept.numel, TNI_MAX(SLICE / j->slices, (int64_t)64), combine, j);
}

/* acc -> y, row by row of the kept axes. */
static void write_results(const job *j, const tni_array *y, const tni_acc *acc)
{
    const tni_walk *k = &j->kept;
    int64_t item = (int64_t)tn_dtype_size(y->dtype);
    tn_dtype type = j->type == TN_I64 ? TN_I64 : TN_F64;
    tni_cursor c;
    for (int64_t o = 0; o < k->numel; o += j->cols) {
        tni_cursor_seek(&c, k, o);
        K(tni_store)
        (type, j->cols, (char *)y->data + c.at[1] * item, y->dtype, k->stride[k->rank - 1][1],
         acc + o);
    }
}

/* false: no results, nothing to do. */
static bool plan(job *j, const tni_array *y, const tni_array *x)
{
    tni_walk *k = &j->kept, *r = &j->reduced;
    tni_array kept = *x, reduced = *x;
    for (int d = 0; d < x->rank; d++) (y->size[d] == x->size[d] ? &reduced : &kept)->size[d] = 1;
    tni_walk_init(k, 2, (const tni_array *const[]){ &kept, y });
    tni_walk_init(r, 1, (const tni_array *const[]){ &reduced });
    if (k->numel == 0) return false;
    j->x = x->data;
    j->dtype = x->dtype;
    j->item = (int64_t)tn_dtype_size(x->dtype);
    bool real = tn_dtype_is_float(x->dtype);
    j->type = !real ? TN_I64 : x->dtype == TN_F64 || y->dtype == TN_F64 ? TN_F64 : TN_F32;
    j->convert = x->dtype != j->type;
    j->reducer = j->type == TN_F32   ? &K32(tni_reducer)
                 : j->type == TN_F64 ? &K64(tni_reducer)
                                     : &K(tni_reducer);
    j->by_cols =
        k->numel > 1 && r->numel != 1 && k->stride[k->rank - 1][0] < r->stride[r->rank - 1][0];
    j->cols = k->size[k->rank - 1];
    j->tiles = (j->cols - 1) / TNI_BLOCK + 1;
    j->units = j->by_cols ? k->numel / j->cols * j->tiles : k->numel;
    j->slice = SLICE;
    if (j->by_cols) j->slice = TNI_MAX(SLICE / TNI_MIN(j->cols, (int64_t)TNI_BLOCK), (int64_t)64);
    j->slices = r->numel > 0 ? (r->numel - 1) / j->slice + 1 : 1;
    return true;
}

/* aside: the maximum of a logsumexp; of squares and powers, what elements were multiplied by */
static double finish(int function, double acc, double n, double p, double aside)
{
    switch (function) {
    case TNI_R_mean: return acc / n;
    case TNI_R_var: return acc / (n > p ? n - p : 0.0) / aside / aside;
    case TNI_R_std: return sqrt(acc / (n > p ? n - p : 0.0)) / aside;
    case TNI_R_norm:
        return p == 1.0 || p == INFINITY ? acc : (p == 2.0 ? sqrt(acc) : pow(acc, 1.0 / p)) / aside;
    case TNI_R_logsumexp: return log(acc) + (aside - aside == 0.0 ? aside : 0.0);
    default: return acc;
    }
}

/* y is center + log acc, rounded to its dtype: e to what rounding added; 1 where y is no number. */
static double factor_of(const tni_reduce *a, double acc, double center)
{
    char stored[sizeof(double)];
    double y = finish(a->function, acc, 0, 0, center);
    K(tni_store)(TN_F64, 1, stored, a->y.dtype, 1, &y);
    K(tni_load)(TN_F64, 1, &y, stored, a->y.dtype, 1);
    return y - y == 0.0 ? exp((y - center) - log(acc)) : 1.0;
}

static tni_pass first_pass(int function, double p)
{
    switch (function) {
    case TNI_R_prod: return TNI_PROD;
    case TNI_R_max:
    case TNI_R_logsumexp: return TNI_LARGEST;
    case TNI_R_min: return TNI_SMALLEST;
    case TNI_R_max_abs: return TNI_LARGEST_ABS;
    case TNI_R_any: return TNI_ANY;
    case TNI_R_all: return TNI_ALL;
    case TNI_R_norm: return p == INFINITY ? TNI_LARGEST_ABS : TNI_SUM_ABS_POW;
    default: return TNI_SUM;
    }
}

/* Whether a sum of squares or powers may be wrong; center: the mean they are about, or 0. */
static bool is_lost(const job *j, double sum, double center)
{
    double least = j->type == TN_F64 ? 0x1p-960 : fmax(0x1p-110, center * center * 0x1p-18);
    return !(sum >= least * (double)j->reduced.numel && sum < INFINITY);
}

/* The factor that brings the elements of a lost result below 1; 0 where nothing is lost, all
 * elements are 0, or some are not numbers. */
static double scale_of(const job *j, double sum, double center, double largest)
{
    int e;
    if (!is_lost(j, sum, center) || !(largest > 0.0 && largest < INFINITY)) return 0.0;
    frexp(largest, &e);
    return ldexp(1.0, -TNI_MAX(-1000, TNI_MIN(e, 1000)));
}

static job in_double(const job *j)
{
    job w = *j;
    w.type = TN_F64;
    w.convert = true;
    w.reducer = &K64(tni_reducer);
    return w;
}

/* Adds up again what is lost. aside: the means, or 0; becomes what the elements were multiplied
 * by, 0 where nothing was done. spare: [2][kept.numel] */
static void add_again(job *j, bool spread, tni_acc *sum, tni_acc *aside, tni_acc *spare)
{
    int64_t n = j->kept.numel;
    tni_acc *mean = spare, *squares = spare + n;
    bool lost = false;
    job w = in_double(j);
    run_pass(j, TNI_LARGEST_ABS, mean, NULL);
    for (int64_t o = 0; o < n; o++) {
        aside[o].f = scale_of(j, sum[o].f, aside[o].f, mean[o].f);
        lost |= aside[o].f != 0.0;
    }
    if (!lost) return;
    w.scale = aside;
    if (spread) run_pass(&w, TNI_SUM, mean, NULL);
    for (int64_t o = 0; o < n; o++) mean[o].f /= (double)j->reduced.numel;
    run_pass(&w, spread ? TNI_SUM_SQUARE_DIFF : TNI_SUM_ABS_POW, squares, spread ? mean : NULL);
    for (int64_t o = 0; o < n; o++)
        if (aside[o].f != 0.0) sum[o] = squares[o];
}

static tn_status mend(job *j, bool spread, tni_acc *sum, tni_acc *aside)
{
    int64_t n = j->kept.numel;
    bool lost = false;
    for (int64_t o = 0; o < n; o++) lost |= is_lost(j, sum[o].f, aside[o].f);
    if (lost) {
        TNI_ITEMS(tni_acc, spare, 2 * n);
        if (!spare) return TN_E_NOMEM;
        add_again(j, spread, sum, aside, spare);
    }
    for (int64_t o = 0; o < n; o++)
        if (!lost || aside[o].f == 0.0) aside[o].f = 1.0;
    return TN_OK;
}

/* Adds sums in f32 that are not finite again in double, whose range they cannot leave. */
static tn_status widen(const job *j, tni_acc *sum)
{
    int64_t n = j->kept.numel;
    bool lost = false;
    for (int64_t o = 0; o < n; o++) lost |= !isfinite(sum[o].f);
    if (!lost || j->type != TN_F32) return TN_OK;
    TNI_ITEMS(tni_acc, wide, n);
    if (!wide) return TN_E_NOMEM;
    job w = in_double(j);
    run_pass(&w, TNI_SUM, wide, NULL);
    for (int64_t o = 0; o < n; o++)
        if (!isfinite(sum[o].f)) sum[o] = wide[o];
    return TN_OK;
}

tn_status K(tni_reduce)(const tni_reduce *a)
{
    job j;
    int f = a->function;
    if (!plan(&j, &a->y, &a->x)) return TN_OK;
    j.p = a->p ? a->p[0] : 0.0;
    j.scale = NULL;
    bool spread = f == TNI_R_var || f == TNI_R_std, centered = spread || f == TNI_R_logsumexp;
    bool powers = f == TNI_R_norm && j.p != 1.0 && j.p != INFINITY;
    size_t rows = (size_t)(j.slices > 1 ? j.slices : 0) + (centered || powers ? 2 : 1);
    size_t acc_bytes = (size_t)j.kept.numel * sizeof(tni_acc), bytes;
    if (!tni_mul_size(acc_bytes, rows, &bytes))
        return tni_error(TN_E_NOMEM, "reduce: partial results do not fit in memory");
    tni_acc few[8]; /* small reductions need no memory */
    tni_acc *acc = bytes <= sizeof few ? few : tni_alloc(bytes);
    if (!acc) return TN_E_NOMEM;
    tni_acc *aside = acc + (centered || powers ? j.kept.numel : 0); /* means or maxima */
    double n = (double)j.reduced.numel;
    j.partial = aside + j.kept.numel;
    if (centered) run_pass(&j, first_pass(f, j.p), aside, NULL);
    for (int64_t o = 0; spread && o < j.kept.numel; o++) aside[o].f /= n;
    if (powers) memset(aside, 0, acc_bytes);
    run_pass(&j,
             spread     ? TNI_SUM_SQUARE_DIFF
             : centered ? TNI_SUM_EXP_DIFF
                        : first_pass(f, j.p),
             acc, centered ? aside : NULL);
    tn_status status = f == TNI_R_mean ? widen(&j, acc) : TN_OK;
    if (spread || powers) status = mend(&j, spread, acc, aside);
    for (int64_t o = 0; j.type != TN_I64 && o < j.kept.numel; o++) {
        double sum = acc[o].f;
        acc[o].f = finish(f, sum, n, j.p, aside[o].f);
        if (a->factor.data) aside[o].f = factor_of(a, sum, aside[o].f);
    }
    if (a->factor.data) write_results(&j, &a->factor, aside);
    if (status == TN_OK) write_results(&j, &a->y, acc);
    if (acc != few) tni_free(acc, bytes);
    return status;
}
