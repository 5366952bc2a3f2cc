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

/* ---- pictures -------------------------------------------------------------------------------- */

enum { MOST = 784, BINS = 24 };

/* Which elements of a tensor of this shape its picture has; without slices none. */
static tni_picture layout_of(const tn_shape *s)
{
    int r = s->rank;
    int64_t h = r > 1 ? s->size[r - 2] : 1, w = r > 1 ? s->size[r - 1] : 1;
    if (h < 2 || w < 2 || ((r == 3 || r > 4) && h != w)) return (tni_picture){ .columns = BINS };
    int64_t all = tni_shape_numel(s) / (h * w), side = all == 1 ? 28 : all < 4 ? 16 : 14;
    tni_picture p = { .down = (h + side - 1) / side, .across = (w + side - 1) / side };
    p.rows = (h + p.down - 1) / p.down;
    p.columns = (w + p.across - 1) / p.across;
    p.slices = TNI_MIN(TNI_MIN(all, (int64_t)16), MOST / (p.rows * p.columns));
    return p;
}

static void fill_picture(tni_picture *p, const tni_numbers *v, const double *x, const tn_shape *s)
{
    float *to = p->value;
    const int64_t w = s->rank ? s->size[s->rank - 1] : 1,
                  h = s->rank > 1 ? s->size[s->rank - 2] : 1;
    for (int64_t k = 0; k < p->slices; k++)
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->columns; j++)
                *to++ = (float)x[(k * h + i * p->down) * w + j * p->across];
    for (int64_t i = 0; !p->slices && i < v->n; i++) /* of numbers between min and max only */
        if (isfinite(x[i]))
            to[TNI_MIN((int64_t)((x[i] - v->min) / (v->max - v->min) * BINS), (int64_t)BINS - 1)]++;
}

/* NULL: no picture, or no memory, which the arena says. */
static const tni_picture *picture_of(const tni_numbers *v, const double *x, const tn_shape *s,
                                     tni_pictures *p)
{
    tni_picture like = layout_of(s);
    uint64_t key = v->hash;
    for (int d = 0; d < s->rank; d++) key = (key ^ (uint64_t)s->size[d]) * 0x100000001b3u;
    const void *as = (const void *)(uintptr_t)(key | 1);
    tni_picture *made = tni_map_get(&p->known, as);
    int64_t n = like.slices * like.rows * like.columns;
    if (made) return made;
    if (n > p->room) like = (tni_picture){ .columns = BINS }, n = 0;
    if (!like.slices && !(isfinite(v->max - v->min) && v->max > v->min)) return NULL;
    made = tni_arena_alloc(p->arena, sizeof *made + (size_t)(n ? n : BINS) * sizeof *made->value);
    if (!made) return NULL;
    *made = like;
    fill_picture(made, v, x, s);
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
        if (p && n && !keep) v->picture = picture_of(v, x, &t->shape, p);
    }
    if (!keep) tni_free(x, read);
    return status;
}

bool tni_numbers_differ(const tni_numbers *a, const tni_numbers *b)
{
    return a->known && b->known && (a->n != b->n || a->hash != b->hash);
}
