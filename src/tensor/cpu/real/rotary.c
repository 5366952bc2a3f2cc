/*
 * rotary.c - rows turned by angles, in pairs of elements: y = (a c - b s, b c + a s).
 *
 * Rows are visited in y's order in memory, where they are: heads may be a view. bf16 and f16 are
 * computed in f32, a piece of a row at a time, and rounded once.
 */
#include "tensor/cpu/real/rows.h"
#include "tensor/walk.h"

enum { PAIRS = 256 }; /* of a piece */

typedef struct rotary_job {
    const tni_rotary *a;
    tni_walk rows;
    int64_t d, half;
} rotary_job;

/* The arrays' first elements of a row. */
enum { Y, X, COSINE, SINE };

/* n pairs (a, b), step elements from one pair to the next. */
TNI_INLINE void turn(REAL *restrict ya, REAL *restrict yb, const REAL *a, const REAL *b,
                     const REAL *c, const REAL *s, REAL sign, int64_t n, int64_t step)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const REAL u = a[i * step], v = b[i * step], sine = sign * s[i];
        ya[i * step] = u * c[i] - v * sine;
        yb[i * step] = v * c[i] + u * sine;
    }
}

/* Pairs [i, i + n) of a row. */
static void turn_piece(const rotary_job *job, const int64_t *at, int64_t i, int64_t n)
{
    const tni_rotary *a = job->a;
    const tn_dtype dtype = a->x.dtype;
    const REAL sign = a->back ? -1 : 1;
    REAL room[6][PAIRS];
    const REAL *c = tni_get(a->cosine.data, a->cosine.dtype, at[COSINE] + i, n, room[0]);
    const REAL *s = tni_get(a->sine.data, a->sine.dtype, at[SINE] + i, n, room[1]);
    if (a->interleaved) {
        const int64_t x_at = at[X] + 2 * i, y_at = at[Y] + 2 * i;
        const REAL *x = tni_get(a->x.data, dtype, x_at, 2 * n, room[2]);
        REAL *y = tni_place(a->y.data, dtype, y_at, room[4]);
        turn(y, y + 1, x, x + 1, c, s, sign, n, 2);
        tni_put(a->y.data, dtype, y_at, 2 * n, y);
    } else {
        const int64_t x_at = at[X] + i, y_at = at[Y] + i;
        const REAL *x = tni_get(a->x.data, dtype, x_at, n, room[2]);
        const REAL *x_half = tni_get(a->x.data, dtype, x_at + job->half, n, room[3]);
        REAL *y = tni_place(a->y.data, dtype, y_at, room[4]);
        REAL *y_half = tni_place(a->y.data, dtype, y_at + job->half, room[5]);
        turn(y, y_half, x, x_half, c, s, sign, n, 1);
        tni_put(a->y.data, dtype, y_at, n, y);
        tni_put(a->y.data, dtype, y_at + job->half, n, y_half);
    }
}

static void rotary_chunk(void *context, int64_t begin, int64_t end)
{
    const rotary_job *job = context;
    const tni_rotary *a = job->a;
    const int64_t turned = 2 * job->half, item = (int64_t)tn_dtype_size(a->x.dtype);
    tni_cursor row;
    tni_cursor_seek(&row, &job->rows, begin);
    for (int64_t r = begin; r < end; r++, tni_cursor_step(&row, &job->rows, 1)) {
        for (int64_t i = 0; i < job->half; i += PAIRS)
            turn_piece(job, row.at, i, TNI_MIN(PAIRS, job->half - i));
        if (turned < job->d)
            memcpy((char *)a->y.data + (row.at[Y] + turned) * item,
                   (const char *)a->x.data + (row.at[X] + turned) * item,
                   (size_t)((job->d - turned) * item));
    }
}

tn_status K(tni_rotary)(const tni_rotary *a)
{
    tni_array first[] = { a->y, a->x, a->cosine, a->sine }; /* elements of rows */
    rotary_job job = { .a = a,
                       .d = a->x.size[a->x.rank - 1],
                       .half = a->cosine.size[a->cosine.rank - 1] };
    for (int k = 0; k < 4; k++) first[k].rank--;
    if (job.d == 0) return TN_OK;
    tni_walk_init(&job.rows, 4, (const tni_array *[]){ first, first + 1, first + 2, first + 3 });
    return tni_parallel_args(job.rows.numel, row_grain(job.d, 2), rotary_chunk, &job);
}
