/* indexing.c - gather and take, which only move bytes, and sort: any dtype. */
#include "tensor/cpu/index.h"
#include "tensor/walk.h"

typedef struct gather_job {
    const tni_gather *a;
    tni_walk walk; /* y, index, and x where it begins along the axis */
} gather_job;

static void gather_elements(void *context, int64_t begin, int64_t end)
{
    const gather_job *job = context;
    const tni_gather *a = job->a;
    const tni_walk *w = &job->walk;
    int last = w->rank - 1;
    const int64_t *s = w->stride[last], along = a->x.stride[a->axis];
    const int64_t y_step = s[0], id_step = s[1], x_step = s[2];
    size_t size = tn_dtype_size(a->x.dtype);
    tni_cursor c;
    tni_cursor_seek(&c, w, begin);
    for (int64_t n; begin < end; begin += n, tni_cursor_step(&c, w, n)) {
        n = TNI_MIN(w->size[last] - c.index[last], end - begin);
        const int64_t *id = (const int64_t *)a->index.data + c.at[1];
        const int64_t at_y = c.at[0], at_x = c.at[2];
        for (int64_t j = 0; j < n; j++) {
            int64_t from = at_x + j * x_step + id[j * id_step] * along;
            move((char *)a->y.data + (size_t)(at_y + j * y_step) * size,
                 (const char *)a->x.data + (size_t)from * size, size);
        }
    }
}

tn_status K(tni_gather)(const tni_gather *a)
{
    gather_job job = { .a = a };
    tni_array x = a->x;
    TNI_TRY(tni_check_index(&a->index, a->x.size[a->axis]));
    x.stride[a->axis] = 0;
    tni_walk_init(&job.walk, 3, (const tni_array *const[]){ &a->y, &a->index, &x });
    return tni_parallel_args(job.walk.numel, 8192, gather_elements, &job);
}

static size_t row_bytes(const tni_take *a)
{
    return (size_t)a->x.size[2] * tn_dtype_size(a->x.dtype);
}

static void take_rows(void *context, int64_t begin, int64_t end)
{
    const tni_take *a = context;
    int64_t v = a->x.size[1], n = a->y.size[1];
    size_t row = row_bytes(a);
    for (int64_t item = begin; item < end; item++) {
        int64_t from = item / n * v + ((const int64_t *)a->index.data)[item % n];
        move((char *)a->y.data + (size_t)item * row, (const char *)a->x.data + (size_t)from * row,
             row);
    }
}

tn_status K(tni_take)(const tni_take *a)
{
    tn_status status = tni_check_index(&a->index, a->x.size[1]);
    if (status != TN_OK || tni_array_numel(&a->y) == 0) return status;
    int64_t grain = TNI_MAX(1, (int64_t)(65536 / row_bytes(a)));
    return tni_parallel_args(a->y.size[0] * a->y.size[1], grain, take_rows, a);
}

tn_status K(tni_order)(const tni_order *a)
{
    bool wide = tn_dtype_size(a->x.dtype) == 8 || a->x.size[a->axis] > INT32_MAX;
    return (wide ? K64(tni_order_lines) : K32(tni_order_lines))(a);
}
