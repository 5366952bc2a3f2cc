/*
 * indexing.c - what is written or added at indices: scatter and take_add. (gather and take only
 * move bytes: isa/indexing.c.)
 *
 * Both are parallel over the axes other than the indexed one, and every target element gets its
 * addends in index order, so the bits do not depend on threads.
 */
#include "tensor/cpu/index.h"
#include "tensor/cpu/real/rows.h"
#include "tensor/walk.h"

/* ---- scatter: y[.., index[.., a, ..], ..] += source[.., a, ..] ------------------------------- */

typedef struct scatter_job {
    const tni_scatter *a;
    tni_walk lines; /* of index, y and source: where lines along the axis begin */
} scatter_job;

TNI_INLINE void scatter_lines(const scatter_job *job, tni_scattering how, int64_t begin,
                              int64_t end)
{
    const tni_scatter *a = job->a;
    int axis = a->axis;
    tni_cursor c;
    tni_cursor_seek(&c, &job->lines, begin);
    for (int64_t line = begin; line < end; line++, tni_cursor_step(&c, &job->lines, 1)) {
        const int64_t *id = (const int64_t *)a->index.data + c.at[0];
        REAL *to = (REAL *)a->y.data + c.at[1];
        const REAL *from = (const REAL *)a->source.data + c.at[2];
        for (int64_t i = 0; i < a->index.size[axis]; i++) {
            REAL *y = &to[id[i * a->index.stride[axis]] * a->y.stride[axis]];
            const REAL v = from[i * a->source.stride[axis]];
            *y = TNI_SCATTERED(how, *y, v);
        }
    }
}

static void scatter_chunk(void *context, int64_t begin, int64_t end)
{
    const scatter_job *job = context;
    if (job->a->how == TNI_ADD)
        scatter_lines(job, TNI_ADD, begin, end);
    else
        scatter_lines(job, job->a->how, begin, end);
}

tn_status K(tni_scatter)(const tni_scatter *a)
{
    scatter_job job = { .a = a };
    tni_array line = a->index;
    tn_status status = tni_check_index(&a->index, a->y.size[a->axis]);
    if (status != TN_OK || tni_array_numel(&a->index) == 0) return status;
    line.size[a->axis] = 1;
    tni_walk_init(&job.lines, 3, (const tni_array *const[]){ &line, &a->y, &a->source });
    int64_t grain = row_grain(a->index.size[a->axis], 8);
    return tni_parallel_args(job.lines.numel, grain, scatter_chunk, &job);
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
        int64_t outer = item / blocks, first = item % blocks * COLUMNS;
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
