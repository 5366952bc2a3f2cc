/*
 * resize.c - images of u8 at other sizes.
 *
 * Along each axis a pixel is a weighted sum of its taps. Weights are whole numbers, times as high a
 * power of 2 as lets them fit 16 bits; sums are rounded and clipped to u8 after the rows and again
 * after the columns. That is what Pillow does, with PyTorch's order and width of the weights.
 */
#include "autograd/ops/shared.h"
#include "ext/images/images.h"

enum { MOST_SHIFT = 22 };

typedef struct taps {
    int64_t n, most; /* places; taps of each */
    int64_t *first;  /* [n] the first tap's pixel */
    int16_t *weight; /* [n, most] times 2^shift */
    int shift;
} taps;

/* Memory of the current scope; zeroed. */
static void *room(int64_t n, int64_t size)
{
    tn_tensor *t = tn_empty_as(TN_SHAPE(n, size), TN_U8, tn_cpu());
    return t ? memset(tni_data(t), 0, tni_bytes_of(t)) : NULL;
}

static bool make_taps(taps *t, const tni_axis_map *m)
{
    const int64_t bound = tni_most_taps(m);
    int64_t *at = room(bound, sizeof *at);
    double *one = room(bound, sizeof *one), *all = room(m->out, bound * (int64_t)sizeof *all),
           highest = 0;
    *t = (taps){ m->out, 1, room(m->out, sizeof *t->first), NULL, 0 };
    if (!at || !one || !all || !t->first) return false;
    for (int64_t o = 0; o < t->n; o++) {
        const int64_t n = tni_taps_of(m, false, o, at, one);
        t->first[o] = at[0];
        t->most = TNI_MAX(t->most, at[n - 1] - at[0] + 1);
        for (int64_t k = 0; k < n; k++) { /* an edge is several taps */
            double *w = all + o * bound + at[k] - at[0];
            *w += one[k];
            highest = TNI_MAX(highest, *w);
        }
    }
    while (t->shift < MOST_SHIFT && (int)(0.5 + highest * (2 << t->shift)) < 1 << 15) t->shift++;
    t->weight = room(t->n, t->most * (int64_t)sizeof *t->weight);
    for (int64_t o = 0; t->weight && o < t->n; o++) {
        const int64_t back = TNI_MAX(t->first[o] + t->most - m->in, 0); /* all taps are in x */
        for (int64_t k = 0; k < t->most - back; k++)
            t->weight[o * t->most + back + k] = (int16_t)round(ldexp(all[o * bound + k], t->shift));
        t->first[o] -= back;
    }
    return t->weight;
}

static void clip(unsigned char *y, const int32_t *sum, int64_t n, int shift)
{
    for (int64_t k = 0; k < n; k++) {
        const int32_t v = (sum[k] + (1 << shift >> 1)) >> shift;
        y[k] = (unsigned char)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
}

/* sum [2, t->n] of taps of two rows, which are the halves of each pixel. */
static inline __attribute__((always_inline)) void sum_taps(int32_t *sum, const int64_t *pixel,
                                                           const taps *t, const int64_t most)
{
    const int16_t *w = t->weight;
    for (int64_t o = 0; o < t->n; o++, w += most) {
        const int64_t *from = pixel + t->first[o];
        int64_t both = 0;
        for (int64_t k = 0; k < most; k++) both += w[k] * from[k];
        sum[o] = (int32_t)both;
        sum[t->n + o] = (int32_t)((both - sum[o]) >> 32);
    }
}

/* y [rows, t->n] from rows of x, `down` apart, two at once. Memory: pixel [wide], sum [2, t->n]. */
static void resize_rows(unsigned char *y, const unsigned char *x, int64_t rows, int64_t down,
                        const taps *t, int64_t *pixel, int32_t *sum)
{
    for (int64_t i = 0; i < rows; i += 2, x += 2 * down, y += 2 * t->n) {
        const int64_t next = i + 1 < rows ? down : 0;
        for (int64_t k = 0; k < down; k++) pixel[k] = x[k] | (int64_t)x[next + k] << 32;
        switch (t->most) { /* numbers that the compiler knows are twice as fast */
        case 2: sum_taps(sum, pixel, t, 2); break;
        case 3: sum_taps(sum, pixel, t, 3); break;
        case 4: sum_taps(sum, pixel, t, 4); break;
        case 5: sum_taps(sum, pixel, t, 5); break;
        case 6: sum_taps(sum, pixel, t, 6); break;
        default: sum_taps(sum, pixel, t, t->most);
        }
        clip(y, sum, next ? 2 * t->n : t->n, t->shift);
    }
}

/* y [t->n, columns] from rows of x. */
static void resize_columns(unsigned char *y, const unsigned char *x, int64_t columns, const taps *t,
                           int32_t *sum)
{
    for (int64_t o = 0; o < t->n; o++, y += columns) {
        memset(sum, 0, (size_t)columns * sizeof *sum);
        for (int64_t j = 0; j < t->most; j++) {
            const unsigned char *row = x + (t->first[o] + j) * columns;
            const int16_t w = t->weight[o * t->most + j];
            for (int64_t k = 0; k < columns; k++) sum[k] += (int32_t)w * row[k];
        }
        clip(y, sum, columns, t->shift);
    }
}

static bool resize_planes(tn_tensor *y, tn_tensor *x, const taps *rows, const taps *columns)
{
    const int64_t h = columns->n, w = rows->n;
    const int64_t from = columns->first[0], count = columns->first[h - 1] + columns->most - from;
    int32_t *sum = room(w, 2 * sizeof *sum);
    unsigned char *out = tni_data(y), *made = room(count, w);
    const int64_t wide = x->shape.size[x->shape.rank - 1], tall = x->shape.size[x->shape.rank - 2];
    int64_t *pixel = room(wide, sizeof *pixel);
    const tn_tensor *dense = tni_dense(x);
    if (!pixel || !sum || !made || !dense) return false;
    const unsigned char *plane = (const unsigned char *)tni_data(dense) + from * wide;
    for (int64_t p = tni_shape_numel(&y->shape) / (h * w); p > 0; p--, out += h * w) {
        resize_rows(made, plane, count, wide, rows, pixel, sum);
        resize_columns(out, made - from * w, w, columns, sum);
        plane += tall * wide;
    }
    return true;
}

static const tn_interpolate_mode modes[] = { TN_LINEAR, TN_CUBIC, TN_NEAREST };

tn_tensor *tni_image_resized(tn_tensor *x, const double *box, int64_t h, int64_t w,
                             tn_image_resize_options o)
{
    tn_shape shape = x->shape;
    int64_t *size = shape.size + shape.rank - 2;
    const bool antialias = o.filter != TN_IMAGE_NEAREST && !o.no_antialias;
    tni_axis_map map[2];
    for (int i = 0; i < 2; i++) {
        map[i] = (tni_axis_map){ .placed = true, .mode = modes[o.filter], .in = size[i] };
        map[i].out = i ? w : h, map[i].scale = box[i + 2] / (double)map[i].out;
        map[i].from = box[i], map[i].antialias = antialias;
    }
    size[0] = h, size[1] = w;
    taps across, down;
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_empty_as(shape, TN_U8, tn_cpu());
    const bool fine = y && make_taps(&across, &map[1]) && make_taps(&down, &map[0]) &&
                      resize_planes(y, x, &across, &down);
    return tn_scope_return(scope, fine ? y : NULL);
}

static tn_tensor *resize(tn_tensor *x, int64_t h, int64_t w, tn_image_resize_options o)
{
    tn_shape shape = x->shape;
    int64_t *size = shape.size + shape.rank - 2;
    const double box[] = { 0, 0, (double)size[0], (double)size[1] };
    if (x->dtype == TN_U8) return tni_image_resized(x, box, h, w, o);
    const tn_interpolate_spec spec = { .size = { h, w },
                                       .mode = modes[o.filter],
                                       .antialias =
                                           o.filter != TN_IMAGE_NEAREST && !o.no_antialias };
    tn_tensor *y = tn_interpolate(tn_reshape(x, TN_SHAPE(1, -1, size[0], size[1])), spec);
    size[0] = h, size[1] = w;
    return tn_reshape(y, shape);
}

bool tni_image_filter_ok(const char *f, tn_image_filter filter)
{
    const bool ok = filter >= TN_IMAGE_LINEAR && filter <= TN_IMAGE_NEAREST;
    if (!ok) tni_error(TN_E_INVALID, "%s: filter %d: want a tn_image_filter", f, (int)filter);
    return ok;
}

tn_tensor *tn_image_resize(tn_tensor *x, int64_t h, int64_t w, tn_image_resize_options o)
{
    TNI_HOLD_TRAPS;
    if (!tni_image_ok(__func__, x, false)) return NULL;
    const int64_t *size = x->shape.size + x->shape.rank - 2;
    if (h < 1 || w < 0 || tni_shape_numel(&x->shape) < 1)
        return tni_fail(TN_E_SHAPE,
                        "%s: x %s to %" PRId64 " x %" PRId64 ": want rows and columns, from and to",
                        __func__, tni_text(x), h, w);
    if (!tni_image_filter_ok(__func__, o.filter)) return NULL;
    if (w == 0) { /* h is the shorter side */
        const bool wide = size[0] <= size[1];
        const double longer = (double)h * (double)size[wide] / (double)size[!wide];
        w = wide ? (int64_t)TNI_MIN(longer, 0x1p60) : h;
        h = wide ? h : (int64_t)TNI_MIN(longer, 0x1p60);
    }
    tn_scope scope = tn_scope_begin();
    return tni_scope_return(__func__, scope, resize(x, h, w, o));
}
