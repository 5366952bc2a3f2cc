/*
 * rows.c - the slots of softmax, losses, norms, dropout and optimizers: which variant serves a
 * dtype; and gather and take, which only move bytes.
 */
#include <string.h>

#include "tensor/cpu/isa/slots.h"
#include "tensor/cpu/real/real.h"
#include "tensor/cpu/real/rows_kernels.h"
#include "tensor/internal.h"
#include "tensor/random.h"

tn_status K(tni_cpu_softmax)(const tni_array *y, const tni_array *x, bool log)
{
    return TNI_BY_REAL(y->dtype, softmax, (y, x, log));
}

tn_status K(tni_cpu_softmax_grad)(const tni_array *dx, const tni_array *dy, const tni_array *y,
                                  bool log)
{
    return TNI_BY_REAL(y->dtype, softmax_grad, (dx, dy, y, log));
}

tn_status K(tni_cpu_cross_entropy)(const tni_array *row_loss, const tni_array *row_weight,
                                   const tni_array *lse, const tni_array *x,
                                   const tni_array *target, const tni_array *weight,
                                   double smoothing, int64_t ignore)
{
    return TNI_BY_REAL(x->dtype, cross_entropy,
                       (row_loss, row_weight, lse, x, target, weight, smoothing, ignore));
}

tn_status K(tni_cpu_cross_entropy_grad)(const tni_array *dx, const tni_array *drow,
                                        const tni_array *lse, const tni_array *x,
                                        const tni_array *target, const tni_array *weight,
                                        double smoothing, int64_t ignore)
{
    return TNI_BY_REAL(x->dtype, cross_entropy_grad,
                       (dx, drow, lse, x, target, weight, smoothing, ignore));
}

tn_status K(tni_cpu_nll)(const tni_array *row_loss, const tni_array *row_weight, const tni_array *x,
                         const tni_array *target, const tni_array *weight, int64_t ignore)
{
    return TNI_BY_REAL(x->dtype, nll, (row_loss, row_weight, x, target, weight, ignore));
}

tn_status K(tni_cpu_nll_grad)(const tni_array *dx, const tni_array *drow, const tni_array *target,
                              const tni_array *weight, int64_t ignore)
{
    return TNI_BY_REAL(dx->dtype, nll_grad, (dx, drow, target, weight, ignore));
}

tn_status K(tni_cpu_layer_norm)(const tni_array *y, const tni_array *mean, const tni_array *rstd,
                                const tni_array *x, const tni_array *weight, const tni_array *bias,
                                double eps)
{
    return TNI_BY_REAL(x->dtype, layer_norm, (y, mean, rstd, x, weight, bias, eps));
}

tn_status K(tni_cpu_layer_norm_grad)(const tni_array *dx, const tni_array *dweight,
                                     const tni_array *dbias, const tni_array *dy,
                                     const tni_array *x, const tni_array *mean,
                                     const tni_array *rstd, const tni_array *weight)
{
    return TNI_BY_REAL(x->dtype, layer_norm_grad, (dx, dweight, dbias, dy, x, mean, rstd, weight));
}

tn_status K(tni_cpu_batch_norm)(const tni_array *y, const tni_array *mean, const tni_array *rstd,
                                const tni_array *x, const tni_array *weight, const tni_array *bias,
                                const tni_array *running_mean, const tni_array *running_var,
                                bool training, double momentum, double eps)
{
    return TNI_BY_REAL(
        x->dtype, batch_norm,
        (y, mean, rstd, x, weight, bias, running_mean, running_var, training, momentum, eps));
}

tn_status K(tni_cpu_batch_norm_grad)(const tni_array *dx, const tni_array *dweight,
                                     const tni_array *dbias, const tni_array *dy,
                                     const tni_array *x, const tni_array *mean,
                                     const tni_array *rstd, const tni_array *weight, bool training)
{
    return TNI_BY_REAL(x->dtype, batch_norm_grad,
                       (dx, dweight, dbias, dy, x, mean, rstd, weight, training));
}

tn_status K(tni_cpu_dropout)(const tni_array *y, const tni_array *x, double p, uint64_t seed,
                             uint64_t offset)
{
    if (tni_is_short(x->dtype)) return tni_short_dropout(&K(tni_cpu_table), y, x, p, seed, offset);
    return TNI_BY_REAL(x->dtype, dropout, (y, x, p, seed, offset));
}

tn_status K(tni_cpu_random)(const tni_array *y, bool normal, uint64_t seed, uint64_t offset)
{
    (void)seed;
    (void)offset;
    return tni_random_draw(y, normal);
}

tn_status K(tni_cpu_optim_step)(const tni_optim_args *args, const tni_optim_tensor *tensors, int n)
{
    for (int k = 0; k < n; k++) {
        if (tensors[k].dtype != TN_F32 && tensors[k].dtype != TN_F64) {
            return tni_error(TN_E_DTYPE,
                             "tn_optim_step: a %s parameter on the CPU: want f32 or f64",
                             tn_dtype_name(tensors[k].dtype));
        }
    }
    /* all that can fail comes before the first write */
    size_t nbytes = ((size_t)n + 1) * sizeof(int64_t);
    int64_t *first = tni_alloc(nbytes);
    if (!first) {
        return TN_E_NOMEM;
    }
    K32(tni_optim_step)(args, tensors, n, first);
    K64(tni_optim_step)(args, tensors, n, first);
    tni_free(first, nbytes);
    return TN_OK;
}

/* ---- indexing -------------------------------------------------------------------------------- */

/* The message starts with "index": the op puts its name in front. */
static tn_status bad_index(int64_t value, int64_t position, int64_t size)
{
    if (size == 0) {
        return tni_error(TN_E_INDEX, "index %lld at position %lld: the axis is empty",
                         (long long)value, (long long)position);
    }
    return tni_error(TN_E_INDEX, "index %lld at position %lld: want 0..%lld", (long long)value,
                     (long long)position, (long long)size - 1);
}

static int64_t count_of(const tni_array *a)
{
    int64_t n = 1;
    for (int d = 0; d < a->rank; d++) {
        n *= a->size[d];
    }
    return n;
}

/* Where element number i (row-major) of index lies, in index and in others of the same rank. */
static void locate(const tni_array *index, int64_t i, int64_t *position)
{
    for (int d = index->rank - 1; d >= 0; d--) {
        position[d] = i % index->size[d];
        i /= index->size[d];
    }
}

static int64_t offset_of(const tni_array *a, const int64_t *position, int skip_axis)
{
    int64_t at = 0;
    for (int d = 0; d < a->rank; d++) {
        at += d == skip_axis ? 0 : position[d] * a->stride[d];
    }
    return at;
}

static tn_status check_index(const tni_array *index, int64_t size)
{
    int64_t n = count_of(index);
    const int64_t *id = index->data;
    int64_t inner = index->rank > 0 ? index->size[index->rank - 1] : 1;
    int64_t step = index->rank > 0 ? index->stride[index->rank - 1] : 1;
    int64_t position[TN_MAX_RANK] = { 0 };
    for (int64_t i = 0; i < n; i += inner) {
        locate(index, i, position);
        int64_t at = offset_of(index, position, -1);
        for (int64_t j = 0; j < inner; j++) {
            if (id[at + j * step] < 0 || id[at + j * step] >= size) {
                return bad_index(id[at + j * step], i + j, size);
            }
        }
    }
    return TN_OK;
}

typedef struct gather_job {
    const tni_array *y, *x, *index;
    int axis;
    size_t size; /* bytes of an element */
} gather_job;

static inline void move(char *to, const char *from, size_t size)
{
    switch (size) { /* constant sizes: a load and a store */
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    default: memcpy(to, from, size);
    }
}

/* rows: runs along the last axis of index */
static void gather_rows(void *context, int64_t begin, int64_t end)
{
    const gather_job *job = context;
    const tni_array *y = job->y, *x = job->x, *index = job->index;
    int last = index->rank - 1;
    int64_t inner = index->size[last];
    int64_t position[TN_MAX_RANK] = { 0 };
    for (int64_t row = begin; row < end; row++) {
        locate(index, row * inner, position);
        const int64_t *id = (const int64_t *)index->data + offset_of(index, position, -1);
        int64_t at_x = offset_of(x, position, job->axis);
        int64_t at_y = offset_of(y, position, -1);
        int64_t step = job->axis == last ? 0 : x->stride[last];
        for (int64_t j = 0; j < inner; j++) {
            int64_t from = at_x + j * step + id[j * index->stride[last]] * x->stride[job->axis];
            move((char *)y->data + (size_t)(at_y + j * y->stride[last]) * job->size,
                 (const char *)x->data + (size_t)from * job->size, job->size);
        }
    }
}

tn_status K(tni_cpu_gather)(const tni_array *y, const tni_array *x, const tni_array *index,
                            int axis)
{
    tn_status status = check_index(index, x->size[axis]);
    int64_t n = count_of(index);
    if (status != TN_OK || n == 0) {
        return status;
    }
    int64_t inner = index->size[index->rank - 1];
    gather_job job = { y, x, index, axis, tn_dtype_size(x->dtype) };
    tni_parallel(n / inner, TNI_MAX(1, 8192 / inner), gather_rows, &job);
    return TN_OK;
}

tn_status K(tni_cpu_scatter_add)(const tni_array *y, const tni_array *index,
                                 const tni_array *source, int axis)
{
    tn_status status = check_index(index, y->size[axis]);
    if (status != TN_OK || count_of(index) == 0) {
        return status;
    }
    return TNI_BY_REAL(y->dtype, scatter_add, (y, index, source, axis));
}

typedef struct take_job {
    char *y;
    const char *x;
    const int64_t *index;
    int64_t v, n;
    size_t row; /* bytes */
} take_job;

static void take_rows(void *context, int64_t begin, int64_t end)
{
    const take_job *job = context;
    for (int64_t item = begin; item < end; item++) {
        int64_t outer = item / job->n;
        int64_t from = outer * job->v + job->index[item % job->n];
        move(job->y + (size_t)item * job->row, job->x + (size_t)from * job->row, job->row);
    }
}

tn_status K(tni_cpu_take)(const tni_array *y, const tni_array *x, const tni_array *index)
{
    tn_status status = check_index(index, x->size[1]);
    if (status != TN_OK || count_of(y) == 0) {
        return status;
    }
    take_job job = { y->data,    x->data,    index->data,
                     x->size[1], y->size[1], (size_t)x->size[2] * tn_dtype_size(x->dtype) };
    tni_parallel(y->size[0] * y->size[1], TNI_MAX(1, (int64_t)(65536 / job.row)), take_rows, &job);
    return TN_OK;
}

tn_status K(tni_cpu_take_add)(const tni_array *x, const tni_array *y, const tni_array *index,
                              int64_t skip)
{
    tn_status status = check_index(index, x->size[1]);
    if (status != TN_OK || count_of(y) == 0) {
        return status;
    }
    return TNI_BY_REAL(x->dtype, take_add, (x, y, index, skip));
}
