/* indexing.c - gather and take, which only move bytes: any dtype. */
#include "tensor/cpu/index.h"
#include "tensor/internal.h"

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
    const tni_gather *a = context;
    const tni_array *y = &a->y, *x = &a->x, *index = &a->index;
    int last = index->rank - 1;
    int64_t inner = index->size[last], step = a->axis == last ? 0 : x->stride[last];
    size_t size = tn_dtype_size(x->dtype);
    int64_t position[TN_MAX_RANK] = { 0 };
    for (int64_t row = begin; row < end; row++) {
        locate(index, row * inner, position);
        const int64_t *id = (const int64_t *)index->data + offset_of(index, position, -1);
        int64_t at_x = offset_of(x, position, a->axis);
        int64_t at_y = offset_of(y, position, -1);
        for (int64_t j = 0; j < inner; j++) {
            int64_t from = at_x + j * step + id[j * index->stride[last]] * x->stride[a->axis];
            move((char *)y->data + (size_t)(at_y + j * y->stride[last]) * size,
                 (const char *)x->data + (size_t)from * size, size);
        }
    }
}

tn_status K(tni_gather)(const tni_gather *a)
{
    tn_status status = tni_check_index(&a->index, a->x.size[a->axis]);
    int64_t n = tni_array_numel(&a->index);
    if (status != TN_OK || n == 0) return status;
    int64_t inner = a->index.size[a->index.rank - 1];
    return tni_parallel_args(n / inner, TNI_MAX(1, 8192 / inner), gather_rows, a);
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
