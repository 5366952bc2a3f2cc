/*
 * conv2d_columns.cu - convolution as products of stored columns, so that cuBLAS multiplies: in
 * bf16, f16 and f32 as TF32 on the tensor cores.
 *
 *   y  [o, places]  = w [o, ch r s] columns(x) [ch r s, places]
 *   dx              = the sum over taps of w^T [ch r s, o] dy [o, places], gathered by pixel
 *   dw [o, ch r s]  = dy [o, places of all images] columns(x)^T
 *
 * Columns are made in pieces of about PIECE bytes (some images, or a part of one), which stay in a
 * large cache between the kernel that writes and the product that reads them. Sums of bf16 and f16
 * are f32: those of dx over taps and those of dw over pieces too, which are rounded at the end.
 * Rows of columns are aligned to 16 bytes and padded with zeros. Repeats give the same bits.
 * Source: Chellapilla et al., High Performance Convolutional Neural Networks for Document
 * Processing (2006).
 */
#include "cuda/conv2d.h"
#include "cuda/elements.h"
#include "cuda/gemm.h"
#include "cuda/half.h"

enum { BLOCK = 256, PIECE = 32 << 20, PADDED = 8 /* columns, to a multiple of */ };

/* The type of sums. */
static tn_dtype sums_of(tn_dtype dtype)
{
    return dtype == TN_F64 ? TN_F64 : TN_F32;
}

/* ---- an image unrolled into columns ---------------------------------------------------------- */

/* to[row, q]: row = (plane, tap), q = (image among those together in a row, place from `first`
 * on). */
template <typename U> struct unrolling {
    const U *x;
    U *to;
    int64_t items; /* of 16 bytes */
    int64_t area;  /* of a plane of x */
    int channels, h, w, ow, oh, first, columns;
    int stride[2], padding[2], dilation[2];
    divisor row_items;
    small_divisor kernel, kw, places, out_w;
};

template <typename U> using sixteen = several<U, 16 / sizeof(U)>;

template <typename U>
static __global__ void __launch_bounds__(BLOCK) conv_unroll(const __grid_constant__ unrolling<U> g)
{
    constexpr int V = 16 / sizeof(U);
    for (int64_t item = blockIdx.x * static_cast<int64_t>(BLOCK) + threadIdx.x; item < g.items;
         item += static_cast<int64_t>(gridDim.x) * BLOCK) {
        const int64_t row64 = g.row_items.divide(item);
        const uint32_t row = static_cast<uint32_t>(row64);
        const uint32_t q = static_cast<uint32_t>(item - row64 * g.row_items.d) * V;
        const uint32_t plane = g.kernel.divide(row), tap = g.kernel.rest(row, plane);
        const uint32_t r = g.kw.divide(tap), s = g.kw.rest(tap, r);
        const uint32_t image = g.places.divide(q);
        const uint32_t place = static_cast<uint32_t>(g.first) + g.places.rest(q, image);
        int i = static_cast<int>(g.out_w.divide(place));
        int j = static_cast<int>(g.out_w.rest(place, static_cast<uint32_t>(i)));
        const int top = static_cast<int>(r) * g.dilation[0] - g.padding[0];
        const int left = static_cast<int>(s) * g.dilation[1] - g.padding[1];
        const U *x = g.x + (plane + static_cast<int64_t>(image) * g.channels) * g.area;
        sixteen<U> out;
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            const int y = i * g.stride[0] + top, z = j * g.stride[1] + left;
            const bool there = static_cast<int>(q) + k < g.columns &&
                               static_cast<unsigned>(y) < static_cast<unsigned>(g.h) &&
                               static_cast<unsigned>(z) < static_cast<unsigned>(g.w);
            out.v[k] = there ? x[static_cast<int64_t>(y) * g.w + z] : static_cast<U>(0);
            if (++j < g.ow) continue;
            j = 0;
            if (++i < g.oh) continue;
            i = 0;
            x += g.channels * g.area;
        }
        reinterpret_cast<sixteen<U> *>(g.to)[item] = out;
    }
}

/* ---- columns summed into an image ------------------------------------------------------------ */

template <typename A> struct folding {
    const A *columns;   /* [planes, taps, ld] */
    int64_t pixels, ld; /* of all planes; of a row */
    divisor area;
    small_divisor w;
    int oh, ow, kh, kw;
    int stride[2], padding[2], dilation[2];
};

template <typename R, typename A>
static __global__ void __launch_bounds__(BLOCK)
    conv_fold(R *dx, const __grid_constant__ folding<A> g)
{
    for (int64_t item = blockIdx.x * static_cast<int64_t>(BLOCK) + threadIdx.x; item < g.pixels;
         item += static_cast<int64_t>(gridDim.x) * BLOCK) {
        const int64_t plane = g.area.divide(item);
        const uint32_t pixel = static_cast<uint32_t>(item - plane * g.area.d);
        const uint32_t row = g.w.divide(pixel), column = g.w.rest(pixel, row);
        const int y = static_cast<int>(row) + g.padding[0];
        const int z = static_cast<int>(column) + g.padding[1];
        const A *from = g.columns + plane * g.kh * g.kw * g.ld;
        A sum = 0;
        for (int r = 0; r < g.kh; r++, from += g.kw * g.ld) {
            const int i = place_above(y - r * g.dilation[0], g.stride[0], g.oh);
            if (i < 0) continue;
            for (int s = 0; s < g.kw; s++) {
                const int j = place_above(z - s * g.dilation[1], g.stride[1], g.ow);
                if (j >= 0) sum += from[s * g.ld + static_cast<int64_t>(i) * g.ow + j];
            }
        }
        dx[item] = element<R>::rounded(sum);
    }
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Images, or places first .. first + places - 1 of one; the columns they make, and those of a row
 * of memory. */
struct piece {
    int64_t image, images, first, places;
};

static int64_t padded(int64_t columns)
{
    return (columns + PADDED - 1) / PADDED * PADDED;
}

/* How many images, or else places of one image, at `each` bytes for a place. */
static piece first_piece(const tni_conv2d_sizes *c, int64_t each)
{
    int64_t plane = c->oh * c->ow;
    int64_t fit = PIECE / (each > 0 ? each : 1);
    int64_t images = fit / (padded(plane) > 0 ? padded(plane) : 1);
    piece p = { 0, images < c->n ? images : c->n, 0, plane };
    if (images > 0) return p;
    p.images = 1;
    p.places = fit / 64 * 64;
    if (p.places < 64) p.places = 64;
    if (p.places > plane) p.places = plane;
    return p;
}

/* The piece after p, of `like`'s size or what is left; false: p was the last. */
static bool next_piece(const tni_conv2d_sizes *c, const piece *like, piece *p)
{
    int64_t plane = c->oh * c->ow;
    p->first += p->places;
    if (p->first >= plane) {
        p->first = 0;
        p->image += p->images;
    }
    p->images = like->images < c->n - p->image ? like->images : c->n - p->image;
    p->places = like->places < plane - p->first ? like->places : plane - p->first;
    return p->image < c->n;
}

/* Unrolls a piece of x [n, channels, h, w]. together: all its images in each row, else one after
 * the other. */
template <typename U>
static tn_status unroll(U *to, const U *x, const tni_conv2d_sizes *c, const piece *p, bool together)
{
    int64_t columns = together ? p->images * p->places : p->places;
    int64_t rows = (together ? 1 : p->images) * c->c * c->kh * c->kw;
    unrolling<U> g = {};

    g.area = c->h * c->w;
    g.x = x + p->image * c->c * g.area;
    g.to = to;
    g.row_items = divisor(padded(columns) * static_cast<int64_t>(sizeof(U)) / 16);
    g.items = rows * g.row_items.d;
    if (g.items == 0) return TN_OK;
    g.channels = static_cast<int>(c->c);
    g.h = static_cast<int>(c->h), g.w = static_cast<int>(c->w);
    g.oh = static_cast<int>(c->oh), g.ow = static_cast<int>(c->ow);
    g.first = static_cast<int>(p->first), g.columns = static_cast<int>(columns);
    for (int i = 0; i < 2; i++) {
        g.stride[i] = static_cast<int>(c->stride[i]);
        g.padding[i] = static_cast<int>(c->padding[i]);
        g.dilation[i] = static_cast<int>(c->dilation[i]);
    }
    g.kernel = small_divisor(c->kh * c->kw), g.kw = small_divisor(c->kw);
    g.places = small_divisor(p->places), g.out_w = small_divisor(c->ow);
    return TN_LAUNCH((conv_unroll<U>), row_grid(g.items, BLOCK), BLOCK, 0, g);
}

static tn_status unroll_any(void *to, const void *x, tn_dtype dtype, const tni_conv2d_sizes *c,
                            const piece *p, bool together)
{
    if (dtype == TN_F64)
        return unroll(static_cast<uint64_t *>(to), static_cast<const uint64_t *>(x), c, p,
                      together);
    if (dtype == TN_F32)
        return unroll(static_cast<uint32_t *>(to), static_cast<const uint32_t *>(x), c, p,
                      together);
    return unroll(static_cast<uint16_t *>(to), static_cast<const uint16_t *>(x), c, p, together);
}

static int64_t item_of(tn_dtype dtype)
{
    return static_cast<int64_t>(floating_size(dtype));
}

static const void *after(const void *p, int64_t elements, tn_dtype dtype)
{
    return static_cast<const char *>(p) + elements * item_of(dtype);
}

static void *after(void *p, int64_t elements, tn_dtype dtype)
{
    return static_cast<char *>(p) + elements * item_of(dtype);
}

/* ---- products of each image and group -------------------------------------------------------- */

/* The distance between the matrices of neighbouring images and groups, in elements. */
struct apart {
    int64_t a_image, a_group, b_image, b_group, c_image, c_group;
};

/* g for each of images x groups: a batch over the longer of the two, the other in a loop. */
static tn_status each(const tni_gemm *given, int64_t images, int64_t groups, const apart *by,
                      tn_dtype c_dtype)
{
    bool over_images = images >= groups;
    int64_t loop = over_images ? groups : images;
    tni_gemm g = *given;

    g.batch = over_images ? images : groups;
    g.a_batch = over_images ? by->a_image : by->a_group;
    g.b_batch = over_images ? by->b_image : by->b_group;
    g.c_batch = over_images ? by->c_image : by->c_group;
    for (int64_t i = 0; i < loop; i++) {
        g.a = after(given->a, i * (over_images ? by->a_group : by->a_image), g.dtype);
        g.b = after(given->b, i * (over_images ? by->b_group : by->b_image), g.dtype);
        g.c = after(given->c, i * (over_images ? by->c_group : by->c_image), c_dtype);
        if (tn_status failed = c_dtype == g.dtype ? tni_cuda_gemm(&g) : tni_cuda_gemm_to_f32(&g))
            return failed;
    }
    return TN_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static tn_status forward_piece(void *y, const void *x, const void *w, void *columns, bool add,
                               tn_dtype dtype, const tni_conv2d_sizes *c, const piece *p)
{
    int64_t rows = c->o / c->groups, taps = c->c / c->groups * c->kh * c->kw;
    int64_t plane = c->oh * c->ow, ld = padded(p->places);
    apart by = { 0, rows * taps, c->c * c->kh * c->kw * ld, taps * ld, c->o * plane, rows * plane };
    tni_gemm g = {};

    if (tn_status failed = unroll_any(columns, x, dtype, c, p, false)) return failed;
    g.dtype = dtype;
    g.m = rows, g.n = p->places, g.k = taps;
    g.a = w, g.a_row = taps, g.a_col = 1;
    g.b = columns, g.b_row = ld, g.b_col = 1;
    g.c = after(y, p->image * c->o * plane + p->first, dtype), g.c_row = plane;
    g.accumulate = add;
    return each(&g, p->images, c->groups, &by, dtype);
}

tn_status tni_cuda_columns(void *y, const void *x, const void *w, bool add, tn_dtype dtype,
                           const tni_conv2d_sizes *c)
{
    int64_t rows = c->c * c->kh * c->kw;
    const piece like = first_piece(c, rows * item_of(dtype));
    piece p = like;
    tni_cuda_scratch columns;

    if (tn_status failed = columns.borrow(
            static_cast<size_t>(p.images * rows * padded(p.places) * item_of(dtype))))
        return failed;
    tn_status status;
    do status = forward_piece(y, x, w, columns.at, add, dtype, c, &p);
    while (status == TN_OK && next_piece(c, &like, &p));
    return status;
}

/* ---- the gradient of the image --------------------------------------------------------------- */

template <typename R>
static tn_status fold(R *dx, const void *columns, int64_t planes, const tni_conv2d_sizes *c)
{
    typedef typename element<R>::computing A;
    folding<A> g = {};

    g.columns = static_cast<const A *>(columns);
    g.pixels = planes * c->h * c->w;
    g.ld = padded(c->oh * c->ow);
    g.area = divisor(c->h * c->w);
    g.w = small_divisor(c->w);
    g.oh = static_cast<int>(c->oh), g.ow = static_cast<int>(c->ow);
    g.kh = static_cast<int>(c->kh), g.kw = static_cast<int>(c->kw);
    for (int i = 0; i < 2; i++) {
        g.stride[i] = static_cast<int>(c->stride[i]);
        g.padding[i] = static_cast<int>(c->padding[i]);
        g.dilation[i] = static_cast<int>(c->dilation[i]);
    }
    return TN_LAUNCH((conv_fold<R, A>), row_grid(g.pixels, BLOCK), BLOCK, 0, dx, g);
}

/* Images, or of one image `channels` channels of one group from `channel` on. */
struct slab {
    int64_t image, images, group, groups, channel, channels;
};

static tn_status grad_slab(void *dx, const void *dy, const void *w, void *columns, tn_dtype dtype,
                           const tni_conv2d_sizes *c, const slab *s)
{
    int64_t kernel = c->kh * c->kw, inputs = c->c / c->groups, outputs = c->o / c->groups;
    int64_t plane = c->oh * c->ow, ld = padded(plane), taps = inputs * kernel;
    apart by = { 0, outputs * taps, c->o * plane, outputs * plane, c->c * kernel * ld, taps * ld };
    tni_gemm g = {};

    g.dtype = dtype;
    g.m = s->channels * kernel, g.n = plane, g.k = outputs;
    g.a = after(w, s->group * outputs * taps + s->channel * kernel, dtype);
    g.a_row = 1, g.a_col = taps;
    g.b = after(dy, (s->image * c->o + s->group * outputs) * plane, dtype);
    g.b_row = plane, g.b_col = 1;
    g.c = columns, g.c_row = ld;
    if (tn_status failed = each(&g, s->images, s->groups, &by, sums_of(dtype))) return failed;
    int64_t first = s->image * c->c + s->group * inputs + s->channel;
    void *to = after(dx, first * c->h * c->w, dtype);
    return TN_FLOATING(dtype,
                       fold(static_cast<R *>(to), columns, s->images * s->groups * s->channels, c));
}

tn_status tni_cuda_columns_grad_input(void *dx, const void *dy, const void *w, tn_dtype dtype,
                                      const tni_conv2d_sizes *c)
{
    int64_t inputs = c->c / c->groups;
    int64_t each_plane = c->kh * c->kw * padded(c->oh * c->ow) * item_of(sums_of(dtype));
    int64_t planes = PIECE / (each_plane > 0 ? each_plane : 1);
    bool whole = planes >= c->c; /* images */
    int64_t images = whole ? planes / c->c : 1;
    int64_t channels = whole ? inputs : planes < 1 ? 1 : planes < inputs ? planes : inputs;
    tni_cuda_scratch columns;

    if (images > c->n) images = c->n;
    tn_status status =
        columns.borrow(static_cast<size_t>(each_plane * (whole ? images * c->c : channels)));
    for (int64_t n = 0; n < c->n && status == TN_OK; n += images) {
        int64_t count = images < c->n - n ? images : c->n - n;
        if (whole) {
            slab s = { n, count, 0, c->groups, 0, inputs };
            status = grad_slab(dx, dy, w, columns.at, dtype, c, &s);
            continue;
        }
        for (int64_t ch = 0; ch < c->c && status == TN_OK;) {
            int64_t rest = inputs - ch % inputs;
            slab s = { n, 1, ch / inputs, 1, ch % inputs, channels < rest ? channels : rest };
            status = grad_slab(dx, dy, w, columns.at, dtype, c, &s);
            ch += s.channels;
        }
    }
    return status;
}

/* ---- the gradient of the weight -------------------------------------------------------------- */

/* The images of a piece side by side: one long inner axis. */
static tn_status weigh_piece(void *dw, const void *dy, const void *x, void *columns, void *outputs,
                             tn_dtype dtype, const tni_conv2d_sizes *c, const piece *p)
{
    int64_t rows = c->o / c->groups, taps = c->c / c->groups * c->kh * c->kw;
    int64_t ld = padded(p->images * p->places);
    tni_conv2d_sizes as_is = { c->n, 1,     c->o,  c->oh,    c->ow,    c->o,    1,
                               1,    c->oh, c->ow, { 1, 1 }, { 0, 0 }, { 1, 1 } };
    tni_gemm g = {};

    if (tn_status failed = unroll_any(columns, x, dtype, c, p, true)) return failed;
    if (tn_status failed = unroll_any(outputs, dy, dtype, &as_is, p, true)) return failed;
    g.dtype = dtype;
    g.m = rows, g.n = taps, g.k = ld, g.batch = c->groups; /* both end in zeros */
    g.a = outputs, g.a_row = ld, g.a_col = 1, g.a_batch = rows * ld;
    g.b = columns, g.b_row = 1, g.b_col = ld, g.b_batch = taps * ld;
    g.c = dw, g.c_row = taps, g.c_batch = rows * taps;
    g.accumulate = p->image > 0 || p->first > 0;
    return tni_is_half(dtype) ? tni_cuda_gemm_to_f32(&g) : tni_cuda_gemm(&g);
}

/* Into sums [o, taps], f32 for half-precision floats. */
static tn_status weigh(void *sums, const void *dy, const void *x, tn_dtype dtype,
                       const tni_conv2d_sizes *c)
{
    int64_t each_place = (c->c * c->kh * c->kw + c->o) * item_of(dtype);
    const piece like = first_piece(c, each_place);
    piece p = like;
    int64_t ld = padded(p.images * p.places);
    tni_cuda_scratch columns;

    if (tn_status failed = columns.borrow(static_cast<size_t>(each_place * ld))) return failed;
    void *outputs = after(columns.at, c->c * c->kh * c->kw * ld, dtype);
    tn_status status;
    do status = weigh_piece(sums, dy, x, columns.at, outputs, dtype, c, &p);
    while (status == TN_OK && next_piece(c, &like, &p));
    return status;
}

tn_status tni_cuda_columns_grad_weight(void *dw, const void *dy, const void *x, tn_dtype dtype,
                                       const tni_conv2d_sizes *c)
{
    int64_t size = c->o * (c->c / c->groups) * c->kh * c->kw;

    if (!tni_is_half(dtype)) return weigh(dw, dy, x, dtype, c);
    tni_cuda_scratch sums;
    if (tn_status failed = sums.borrow(static_cast<size_t>(4 * size))) return failed;
    if (tn_status failed = weigh(sums.at, dy, x, dtype, c)) return failed;
    return copy_to({ dw, dtype, 1, { size }, { 1 } }, { sums.at, TN_F32, 1, { size }, { 1 } });
}
