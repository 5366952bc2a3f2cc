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

typedef struct scatter_job {
    const tni_array *y, *index, *source;
    int axis;
} scatter_job;

/* A line: all positions along the axis with the other coordinates fixed; lines number the
 * others. */
static void scatter_lines(void *context, int64_t begin, int64_t end)
{
    const scatter_job *job = context;
    const tni_array *y = job->y, *index = job->index, *source = job->source;
    for (int64_t line = begin; line < end; line++) {
        int64_t rest = line, at_y = 0, at_index = 0, at_source = 0;
        for (int d = index->rank - 1; d >= 0; d--) {
            if (d == job->axis) continue;
            int64_t i = rest % index->size[d];
            rest /= index->size[d];
            at_y += i * y->stride[d];
            at_index += i * index->stride[d];
            at_source += i * source->stride[d];
        }
        const int64_t *id = (const int64_t *)index->data + at_index;
        const REAL *add = (const REAL *)source->data + at_source;
        REAL *to = (REAL *)y->data + at_y;
        for (int64_t a = 0; a < index->size[job->axis]; a++) {
            to[id[a * index->stride[job->axis]] * y->stride[job->axis]] +=
                add[a * source->stride[job->axis]];
        }
    }
}

tn_status K(tni_scatter_add)(const tni_scatter_add *a)
{
    tn_status status = tni_check_index(&a->index, a->y.size[a->axis]);
    if (status != TN_OK || count_of(&a->index) == 0) return status;
    scatter_job job = { &a->y, &a->index, &a->source, a->axis };
    int64_t lines = 1;
    for (int d = 0; d < a->index.rank; d++) lines *= d == a->axis ? 1 : a->index.size[d];
    tni_parallel(lines, row_grain(a->index.size[a->axis], 8), scatter_lines, &job);
    return TN_OK;
}

/* ---- take_add: x[o, index[r], :] += y[o, r, :] ----------------------------------------------- */

enum { COLUMNS = 32 }; /* of inner, per item: two cache lines of f32 */

typedef struct take_job {
    REAL *x;
    const REAL *y;
    const int64_t *index;
    int64_t v, n, inner, skip, blocks;
} take_job;

static void take_add_columns(void *context, int64_t begin, int64_t end)
{
    const take_job *job = context;
    for (int64_t item = begin; item < end; item++) {
        int64_t outer = item / job->blocks;
        int64_t first = item % job->blocks * COLUMNS;
        int64_t m = TNI_MIN(COLUMNS, job->inner - first);
        REAL *x = job->x + outer * job->v * job->inner + first;
        const REAL *y = job->y + outer * job->n * job->inner + first;
        for (int64_t r = 0; r < job->n; r++) {
            int64_t id = job->index[r];
            if (id == job->skip) continue;
            REAL *restrict to = x + id * job->inner;
            const REAL *restrict add = y + r * job->inner;
#pragma omp simd
            for (int64_t j = 0; j < m; j++) to[j] += add[j];
        }
    }
}

tn_status K(tni_take_add)(const tni_take_add *a)
{
    tn_status status = tni_check_index(&a->index, a->x.size[1]);
    if (status != TN_OK || count_of(&a->y) == 0) return status;
    take_job job = { .x = a->x.data,
                     .y = a->y.data,
                     .index = a->index.data,
                     .v = a->x.size[1],
                     .n = a->y.size[1],
                     .inner = a->x.size[2],
                     .skip = a->skip };
    job.blocks = (job.inner + COLUMNS - 1) / COLUMNS;
    tni_parallel(a->x.size[0] * job.blocks, row_grain(job.n * TNI_MIN(job.inner, COLUMNS), 2),
                 take_add_columns, &job);
    return TN_OK;
}
