/* indexing.c - gather and take, which only move bytes: any dtype. */
#include <string.h>

#include "tensor/cpu/index.h"
#include "tensor/internal.h"

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

tn_status K(tni_gather)(const tni_gather *a)
{
    tn_status status = tni_check_index(&a->index, a->x.size[a->axis]);
    int64_t n = count_of(&a->index);
    if (status != TN_OK || n == 0) return status;
    int64_t inner = a->index.size[a->index.rank - 1];
    gather_job job = { &a->y, &a->x, &a->index, a->axis, tn_dtype_size(a->x.dtype) };
    tni_parallel(n / inner, TNI_MAX(1, 8192 / inner), gather_rows, &job);
    return TN_OK;
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

tn_status K(tni_take)(const tni_take *a)
{
    tn_status status = tni_check_index(&a->index, a->x.size[1]);
    if (status != TN_OK || count_of(&a->y) == 0) return status;
    take_job job = { a->y.data,    a->x.data,    a->index.data,
                     a->x.size[1], a->y.size[1], (size_t)a->x.size[2] * tn_dtype_size(a->x.dtype) };
    tni_parallel(a->y.size[0] * a->y.size[1], TNI_MAX(1, (int64_t)(65536 / job.row)), take_rows,
                 &job);
    return TN_OK;
}
