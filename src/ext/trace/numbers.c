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
    v->min = INFINITY, v->max = -INFINITY;
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

/* A histogram is of what is finite. */
static void fill_picture(tni_picture *p, const tni_numbers *v, const double *x, int64_t h,
                         int64_t w)
{
    float *to = p->value;
    for (int64_t k = 0; k < p->slices; k++)
        for (int64_t i = 0; i < h; i += p->down)
            for (int64_t j = 0; j < w; j += p->across) *to++ = (float)x[(k * h + i) * w + j];
    for (int64_t i = 0; !p->slices && i < v->n; i++)
        if (isfinite(x[i]))
            to[TNI_MIN((int64_t)((x[i] - v->min) / (v->max - v->min) * (double)p->columns),
                       p->columns - 1)]++;
}

/* NULL: none, or no memory, which the arena says. */
static const tni_picture *picture_of(const tni_numbers *v, const double *x, const tn_shape *s,
                                     tni_pictures *p)
{
    uint64_t key = v->hash;
    for (int d = 0; d < s->rank; d++) key = (key ^ (uint64_t)s->size[d]) * 0x100000001b3u;
    const void *as = (const void *)(uintptr_t)(key | 1);
    tni_picture *made = tni_map_get(&p->known, as), like = { 0 };
    if (made) return made;
    int64_t h = s->rank > 1 ? s->size[s->rank - 2] : 1, w = s->rank ? s->size[s->rank - 1] : 1;
    const int64_t all = v->n / (h * w), side = all == 1 ? 28 : all < 4 ? 16 : 14;
    int64_t n = 0;
    if (h > 1 && w > 1 && (s->rank == 2 || s->rank == 4 || h == w)) {
        like = (tni_picture){ .down = (h + side - 1) / side, .across = (w + side - 1) / side };
        like.rows = (h + like.down - 1) / like.down;
        like.columns = (w + like.across - 1) / like.across;
        like.slices = TNI_MIN(all, TNI_MIN((int64_t)16, 784 / (like.rows * like.columns)));
        n = like.slices * like.rows * like.columns;
    }
    if (n == 0 || n > p->room) n = 0, like = (tni_picture){ .rows = 1, .columns = 24 };
    if (!n && !(isfinite(v->max - v->min) && v->max > v->min)) return NULL;
    made =
        tni_arena_alloc(p->arena, sizeof *made + (size_t)TNI_MAX(n, like.columns) * sizeof(float));
    if (!made) return NULL;
    *made = like;
    fill_picture(made, v, x, h, w);
    p->room -= n;
    tni_map_put(&p->known, as, made);
    return made;
}

tn_status tni_numbers_note(tni_numbers *v, const tn_tensor *t, int64_t most, tni_arena *a,
                           tni_pictures *p)
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
        if (p && p->arena && n && !keep) v->picture = picture_of(v, x, &t->shape, p);
    }
    if (!keep) tni_free(x, read);
    return status;
}

bool tni_numbers_differ(const tni_numbers *a, const tni_numbers *b)
{
    return a->known && b->known && (a->n != b->n || a->hash != b->hash);
}
