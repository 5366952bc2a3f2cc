/* nonzero.c - the indices of what is true. */
#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"

enum { PIECE = 16384 };

typedef struct nonzero_job {
    const tni_nonzero *a;
    int64_t *before; /* for each piece: how many are true in it, then in those before it */
} nonzero_job;

static void count_piece(void *context, int64_t begin, int64_t end)
{
    const nonzero_job *job = context;
    const uint8_t *x = job->a->x.data;
    int64_t n = 0;
    for (int64_t i = begin; i < end; i++) n += x[i] != 0;
    job->before[begin / PIECE] = n;
}

/* Writes every index where the next one belongs, which is a step on if this one is true. */
static void list_piece(void *context, int64_t begin, int64_t end)
{
    const nonzero_job *job = context;
    const tni_array *x = &job->a->x;
    const uint8_t *flag = x->data;
    int last = x->rank - 1;
    int64_t at = job->before[begin / PIECE], stop = job->before[begin / PIECE + 1];
    int64_t index[TN_MAX_RANK], i = begin, rest = begin;
    (void)end;
    for (int d = last; d >= 0; d--) {
        index[d] = rest % x->size[d];
        rest /= x->size[d];
    }
    while (at < stop) {
        for (int64_t j = index[last]; j < x->size[last] && at < stop; j++) {
            int64_t *to = (int64_t *)job->a->y.data + at * x->rank;
            for (int d = 0; d < last; d++) to[d] = index[d];
            to[last] = j;
            at += flag[i++] != 0;
        }
        index[last] = 0;
        for (int d = last - 1; d >= 0 && ++index[d] == x->size[d]; d--) index[d] = 0;
    }
}

tn_status K(tni_nonzero)(const tni_nonzero *a)
{
    int64_t n = tni_array_numel(&a->x), pieces = (n + PIECE - 1) / PIECE, sum = 0;
    size_t size = (size_t)(pieces + 1) * sizeof(int64_t);
    if (tni_array_numel(&a->y) == 0) return TN_OK;
    nonzero_job job = { a, tni_alloc(size) };
    if (!job.before) return TN_E_NOMEM;
    tni_parallel(n, PIECE, count_piece, &job);
    for (int64_t p = 0; p <= pieces; p++) {
        int64_t here = p < pieces ? job.before[p] : 0;
        job.before[p] = sum;
        sum += here;
    }
    tni_parallel(n, PIECE, list_piece, &job);
    tni_free(job.before, size);
    return TN_OK;
}
