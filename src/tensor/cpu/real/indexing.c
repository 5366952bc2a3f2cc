/*
 * indexing.c - sums at indices: scatter_add and take_add. (gather and take only move bytes:
 * isa/indexing.c.)
 *
 * Both are parallel over the axes other than the indexed one, and every target element gets its
 * addends in index order, so the bits do not depend on threads.
 */
#include "tensor/cpu/index.h"
#include "tensor/cpu/real/rows.h"

/* ---- scatter_add: y[.., index[.., a, ..], ..] += source[.., a, ..] --------------------------- */

/* A line: all positions along the axis with the other coordinates fixed; lines number the
 * others. */
static void scatter_lines(void *context, int64_t begin, int64_t end)
{
    const tni_scatter_add *s = context;
    const tni_array *y = &s->y, *index = &s->index, *source = &s->source;
    int axis = s->axis;
    for (int64_t line = begin; line < end; line++) {
        int64_t rest = line, at_y = 0, at_index = 0, at_source = 0;
        for (int d = index->rank - 1; d >= 0; d--) {
            if (d == axis) continue;
            int64_t i = rest % index->size[d];
            rest /= index->size[d];
            at_y += i * y->stride[d];
            at_index += i * index->stride[d];
            at_source += i * source->stride[d];
        }
        const int64_t *id = (const int64_t *)index->data + at_index;
        const REAL *add = (const REAL *)source->data + at_source;
        REAL *to = (REAL *)y->data + at_y;
        for (int64_t a = 0; a < index->size[axis]; a++)
            to[id[a * index->stride[axis]] * y->stride[axis]] += add[a * source->stride[axis]];
    }
}

tn_status K(tni_scatter_add)(const tni_scatter_add *a)
{
    tn_status status = tni_check_index(&a->index, a->y.size[a->axis]);
    int64_t n = tni_array_numel(&a->index), length = a->index.size[a->axis];
    if (status != TN_OK || n == 0) return status;
    return tni_parallel_args(n / length, row_grain(length, 8), scatter_lines, a);
}

/* ---- take_add: x[o, index[r], :] += y[o, r, :] ----------------------------------------------- */

enum { COLUMNS = 32 }; /* of inner, per item: two cache lines of f32 */

static int64_t blocks_of(const tni_take_add *a)
{
    return (a->x.size[2] + COLUMNS - 1) / COLUMNS;
}

static void take_add_columns(void *context, int64_t begin, int64_t end)
{
    const tni_take_add *a = context;
    int64_t blocks = blocks_of(a), v = a->x.size[1], n = a->y.size[1], inner = a->x.size[2];
    for (int64_t item = begin; item < end; item++) {
        int64_t outer = item / blocks;
        int64_t first = item % blocks * COLUMNS;
        int64_t m = TNI_MIN(COLUMNS, inner - first);
        REAL *x = (REAL *)a->x.data + outer * v * inner + first;
        const REAL *y = (const REAL *)a->y.data + outer * n * inner + first;
        for (int64_t r = 0; r < n; r++) {
            int64_t id = ((const int64_t *)a->index.data)[r];
            if (id == a->skip) continue;
            REAL *restrict to = x + id * inner;
            const REAL *restrict add = y + r * inner;
#pragma omp simd
            for (int64_t j = 0; j < m; j++) to[j] += add[j];
        }
    }
}

tn_status K(tni_take_add)(const tni_take_add *a)
{
    tn_status status = tni_check_index(&a->index, a->x.size[1]);
    if (status != TN_OK || tni_array_numel(&a->y) == 0) return status;
    int64_t grain = row_grain(a->y.size[1] * TNI_MIN(a->x.size[2], COLUMNS), 2);
    return tni_parallel_args(a->x.size[0] * blocks_of(a), grain, take_add_columns, a);
}
