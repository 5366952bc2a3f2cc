/*
 * resize.c - images of u8 at other sizes.
 *
 * Along each axis a pixel is a weighted sum of its taps: the pixels around its place, as many more
 * as the image becomes smaller. Weights are whole numbers, times as high a power of 2 as lets them fit
 * 16 bits; sums are rounded and clipped to u8 after the rows and again after the columns. That is
 * what Pillow does, with PyTorch's order and width of the weights. Eight rows are worked on at once,
 * one beside the other, so that compilers make vectors of them.
 */
#include "ext/images/images.h"
#include "io/file.h"

enum { LANES = 8, MOST_SHIFT = 22 };

typedef struct taps {
    int64_t n, most; /* places, taps of each at most */
    int64_t *first;  /* [n] the first tap's pixel */
    int64_t *count;  /* [n] */
    int16_t *weight; /* [n, most] times 2^shift */
    int shift;
    size_t nbytes;
} taps;

/* Keys' kernel; a = -1/2 with antialias, -3/4 without, as in tn_interpolate. */
static double cubic(double x, double a)
{
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double weight_at(double x, tn_image_resize_options o)
{
    if (o.filter == TN_IMAGE_CUBIC) return cubic(x, o.no_antialias ? -0.75 : -0.5);
    return fabs(x) < 1 ? 1 - fabs(x) : 0;
}

/* The weights of place i, summing to 1, into w; taps beyond the image are left out with antialias,
 * else are its edge. */
static void place(taps *t, double *w, int64_t i, int64_t size, double first, double scale,
                  tn_image_resize_options o)
{
    const double wide = o.no_antialias ? 1 : TNI_MAX(scale, 1.0),
                 center = first + scale * ((double)i + 0.5);
    const double reach = (o.filter == TN_IMAGE_CUBIC ? 2 : 1) * wide;
    const int64_t begin = (int64_t)floor(center - reach + 0.5),
                  end = (int64_t)floor(center + reach + 0.5);
    const int64_t low = TNI_MIN(TNI_MAX(begin, 0), size - 1),
                  high = TNI_MAX(TNI_MIN(end, size), low + 1);
    double sum = 0;
    for (int64_t j = low; j < high; j++) w[j - low] = 0;
    for (int64_t j = begin; j < end; j++) {
        if ((j < low || j >= high) && !o.no_antialias) continue;
        const double v = weight_at(((double)j - center + 0.5) * (1 / wide), o);
        w[TNI_MIN(TNI_MAX(j, low), high - 1) - low] += v;
        sum += v;
    }
    for (int64_t j = 0; j < high - low && sum != 0; j++) w[j] /= sum;
    t->first[i] = low;
    t->count[i] = high - low;
}

static bool make_taps(taps *t, int64_t n, int64_t size, double first, double length,
                      tn_image_resize_options o)
{
    const double scale = length / (double)n;
    const double reach =
        (o.filter == TN_IMAGE_CUBIC ? 2 : 1) * (o.no_antialias ? 1 : TNI_MAX(scale, 1.0));
    t->n = n;
    t->most = (int64_t)ceil(reach) * 2 + 1;
    size_t each = 0;
    if (!tni_mul_size((size_t)t->most, sizeof(double) + sizeof(int16_t), &each) ||
        !tni_mul_size((size_t)n, each + 2 * sizeof(int64_t), &t->nbytes) ||
        !(t->first = tni_alloc(t->nbytes)))
        return tni_false(tni_error(TN_E_NOMEM, "tn_image_resize: out of memory"));
    t->count = t->first + n;
    double *w = (double *)(t->count + n), highest = 0;
    t->weight = (int16_t *)(w + n * t->most);
    for (int64_t i = 0; i < n; i++) {
        place(t, w + i * t->most, i, size, first, scale, o);
        for (int64_t j = 0; j < t->count[i]; j++) highest = TNI_MAX(highest, w[i * t->most + j]);
    }
    for (t->shift = 0; t->shift < MOST_SHIFT; t->shift++)
        if ((int)(0.5 + highest * (double)(1 << (t->shift + 1))) >= 1 << 15) break;
    for (int64_t i = 0; i < n * t->most; i++) {
        const double v = i % t->most < t->count[i / t->most] ? w[i] * (double)(1 << t->shift) : 0;
        t->weight[i] = (int16_t)(v < 0 ? v - 0.5 : v + 0.5);
    }
    return true;
}

static inline unsigned char clipped(int32_t sum, int shift)
{
    sum >>= shift;
    return (unsigned char)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* y [rows, t->n] from rows of x, `down` apart; lanes: room for LANES * columns. */
static void resize_rows(unsigned char *y, const unsigned char *x, int64_t rows, int64_t down,
                        int64_t columns, const taps *t, int16_t *lanes)
{
    for (int64_t i = 0; i < rows; i += LANES) {
        const int64_t n = TNI_MIN(LANES, rows - i);
        for (int64_t r = 0; r < LANES; r++) {
            const unsigned char *row = x + (i + TNI_MIN(r, n - 1)) * down;
            for (int64_t k = 0; k < columns; k++) lanes[k * LANES + r] = row[k];
        }
        for (int64_t o = 0; o < t->n; o++) {
            int32_t sum[LANES];
            for (int r = 0; r < LANES; r++) sum[r] = t->shift ? 1 << (t->shift - 1) : 0;
            const int16_t *from = lanes + t->first[o] * LANES, *w = t->weight + o * t->most;
            for (int64_t k = 0; k < t->count[o]; k++, from += LANES)
                for (int r = 0; r < LANES; r++) sum[r] += (int32_t)w[k] * from[r];
            for (int64_t r = 0; r < n; r++) y[(i + r) * t->n + o] = clipped(sum[r], t->shift);
        }
    }
}

/* y [t->n, columns] from rows of x. */
static void resize_columns(unsigned char *y, const unsigned char *x, int64_t down, int64_t columns,
                           const taps *t, int32_t *sum)
{
    for (int64_t o = 0; o < t->n; o++, y += columns) {
        for (int64_t k = 0; k < columns; k++) sum[k] = t->shift ? 1 << (t->shift - 1) : 0;
        for (int64_t j = 0; j < t->count[o]; j++) {
            const unsigned char *row = x + (t->first[o] + j) * down;
            const int16_t w = t->weight[o * t->most + j];
            for (int64_t k = 0; k < columns; k++) sum[k] += (int32_t)w * row[k];
        }
        for (int64_t k = 0; k < columns; k++) y[k] = clipped(sum[k], t->shift);
    }
}

/* All planes of y from those of x; scratch: lanes and sums, then the rows that are made first. */
static void resize_planes(tn_tensor *y, tni_image_walk x, int64_t width, const taps *rows,
                          const taps *columns, unsigned char *scratch, size_t lanes)
{
    const int64_t h = columns->n, w = rows->n, from = columns->first[0];
    const int64_t to = columns->first[h - 1] + columns->count[h - 1];
    const unsigned char *in = x.x;
    unsigned char *out = tni_data(y), *made = scratch + lanes;
    for (int64_t p = tni_shape_numel(&y->shape) / (h * w); p > 0; p--) {
        resize_rows(made, in + from * x.down, to - from, x.down, width, rows, (int16_t *)scratch);
        resize_columns(out, made - from * w, w, w, columns, (int32_t *)scratch);
        out += h * w, in += x.plane;
    }
}

tn_tensor *tni_image_resized(tn_tensor *x, const double *box, int64_t h, int64_t w,
                             tn_image_resize_options o)
{
    tn_shape shape = x->shape;
    const int64_t height = shape.size[shape.rank - 2], width = shape.size[shape.rank - 1];
    shape.size[shape.rank - 2] = h, shape.size[shape.rank - 1] = w;
    tn_tensor *y = tn_empty_as(shape, TN_U8, tn_cpu());
    taps rows = { 0 }, columns = { 0 };
    size_t n = 0, nbytes = 0, lanes = (size_t)TNI_MAX(2 * LANES * width, 4 * w);
    unsigned char *scratch = NULL;
    tn_scope scope = tn_scope_begin();
    tni_image_walk planes = { 0 };
    if (y && tni_image_planes(&x, &planes) && make_taps(&rows, w, width, box[1], box[3], o) &&
        make_taps(&columns, h, height, box[0], box[2], o)) {
        if (tni_mul_size((size_t)height, (size_t)w, &n) && tni_add_size(n, lanes, &nbytes))
            scratch = tni_alloc(nbytes);
        if (scratch) resize_planes(y, planes, width, &rows, &columns, scratch, lanes);
    }
    tn_scope_end(scope);
    if (rows.first) tni_free(rows.first, rows.nbytes);
    if (columns.first) tni_free(columns.first, columns.nbytes);
    if (scratch) tni_free(scratch, nbytes);
    return scratch ? y : NULL;
}

/* Along an axis: pixel floor(i s), s = old / new in f32. */
static tn_tensor *nearest(tn_tensor *x, int axis, int64_t n)
{
    tn_tensor *index = tn_empty_as(TN_SHAPE(n), TN_I64, tn_cpu());
    if (!x || !index) return NULL;
    const int64_t size = x->shape.size[x->shape.rank + axis];
    const float scale = (float)size / (float)n;
    int64_t *at = tni_data(index);
    for (int64_t i = 0; i < n; i++) at[i] = TNI_MIN((int64_t)floorf((float)i * scale), size - 1);
    return tn_index_select(x, axis, index);
}

static tn_tensor *resize(tn_tensor *x, int64_t h, int64_t w, tn_image_resize_options o)
{
    tn_shape shape = x->shape;
    int64_t *size = shape.size + shape.rank - 2;
    const double box[] = { 0, 0, (double)size[0], (double)size[1] };
    if (x->dtype == TN_U8 && o.filter == TN_IMAGE_NEAREST) return nearest(nearest(x, -2, h), -1, w);
    if (x->dtype == TN_U8) return tni_image_resized(x, box, h, w, o);
    static const tn_interpolate_mode mode[] = { TN_LINEAR, TN_CUBIC, TN_NEAREST };
    const tn_interpolate_spec spec = { .size = { h, w },
                                       .mode = mode[o.filter],
                                       .antialias =
                                           o.filter != TN_IMAGE_NEAREST && !o.no_antialias };
    tn_tensor *y = tn_interpolate(tn_reshape(x, TN_SHAPE(1, -1, size[0], size[1])), spec);
    size[0] = h, size[1] = w;
    return tn_reshape(y, shape);
}

tn_tensor *tn_image_resize(tn_tensor *x, int64_t h, int64_t w, tn_image_resize_options o)
{
    static const char f[] = "tn_image_resize";
    if (!tni_image_ok(f, x, false)) return NULL;
    const int64_t *size = x->shape.size + x->shape.rank - 2, shorter = TNI_MIN(size[0], size[1]);
    if (h < 1 || w < 0 || shorter < 1 || tni_shape_numel(&x->shape) < 1)
        return tni_fail(TN_E_SHAPE,
                        "%s: x %s to %" PRId64 " x %" PRId64 ": want rows and columns, from and to",
                        f, tni_text(x), h, w);
    if (o.filter < TN_IMAGE_LINEAR || o.filter > TN_IMAGE_NEAREST)
        return tni_fail(TN_E_INVALID, "%s: filter %d: want a tn_image_filter", f, (int)o.filter);
    if (w == 0) {
        const double n = (double)h, most = 0x1p60;
        w = size[0] <= size[1] ? (int64_t)TNI_MIN(n * (double)size[1] / (double)size[0], most) : h;
        h = size[0] <= size[1] ? h : (int64_t)TNI_MIN(n * (double)size[0] / (double)size[1], most);
    }
    tn_scope scope = tn_scope_begin();
    return tn_scope_return(scope, resize(x, h, w, o));
}
