/*
 * numbers.c - what a tensor holds at one moment, in a few numbers.
 *
 * Elements are read as f64 in row-major order and summed one after the other, so the numbers depend
 * on the elements alone, not on the processor or the number of threads.
 */
#include "tensor/internal.h"
#include "ext/trace/log.h"

static void count(tni_numbers *v, const double *x, int64_t n)
{
    double sum = 0, most = 0, squares = 0;
    v->min = INFINITY;
    v->max = -INFINITY;
    v->hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits; /* FNV-1a over words, and a shift: no product moves a high bit down */
        memcpy(&bits, &x[i], sizeof bits);
        v->hash = (v->hash ^ bits) * 0x100000001b3u;
        v->hash ^= v->hash >> 32;
        sum += x[i];
        if (isnan(x[i])) {
            v->nan++;
            continue;
        }
        v->inf += isinf(x[i]) != 0;
        v->zeros += x[i] == 0;
        v->min = TNI_MIN(v->min, x[i]);
        v->max = TNI_MAX(v->max, x[i]);
        most = TNI_MAX(most, fabs(x[i]));
    }
    for (int64_t i = 0; most > 0 && !v->nan && !v->inf && i < n; i++) /* so no square overflows */
        squares += (x[i] / most) * (x[i] / most);
    v->norm = v->nan ? NAN : v->inf ? INFINITY : most * sqrt(squares);
    v->mean = n ? sum / (double)n : 0;
    if (n == 0) v->min = v->max = 0;
    if (n && v->nan == n) v->min = v->max = NAN;
}

tn_status tni_numbers_note(tni_numbers *v, const tn_tensor *t, int64_t most, tni_arena *a)
{
    int64_t n = tni_shape_numel(&t->shape);
    size_t nbytes = (size_t)n * sizeof(double), read = nbytes ? nbytes : 1;
    bool keep = n && n <= most;
    double *x = keep ? tni_arena_alloc(a, read) : tni_alloc(read);
    *v = (tni_numbers){ 0 };
    if (!x) return TN_E_NOMEM;
    tn_status status = tn_copy_out(t, x, nbytes, TN_F64);
    if (status == TN_OK) {
        *v = (tni_numbers){ .known = true, .n = n, .value = keep ? x : NULL };
        count(v, x, n);
    }
    if (!keep) tni_free(x, read);
    return status;
}

bool tni_numbers_differ(const tni_numbers *a, const tni_numbers *b)
{
    return a->known && b->known && (a->n != b->n || a->hash != b->hash);
}
