/*
 * places.c - transforms that move pixels: parts, edges, flips, turns; and what is drawn for them.
 */
#include "ext/images/images.h"

bool tni_image_ok(const char *f, const tn_tensor *x, bool no_grad)
{
    if (!tni_present(f, "x", x)) return false;
    const tn_device d = x->storage->device;
    if (x->shape.rank < 3)
        tni_error(TN_E_SHAPE, "%s: x %s: want [C, H, W], or more such", f, tni_text(x));
    else if (x->dtype != TN_U8 && x->dtype != TN_F32)
        tni_error(TN_E_DTYPE, "%s: x is %s: want u8 or f32", f, tn_dtype_name(x->dtype));
    else if (d.type != TN_CPU)
        tni_error(TN_E_DEVICE, "%s: x is on a GPU: want it on the CPU", f);
    else if (no_grad && x->requires_grad && tn_grad_enabled())
        tni_error(TN_E_STATE, "%s: x requires grad, which would end here: want tn_detach(x)", f);
    else
        return true;
    return false;
}

/* ---- draws ----------------------------------------------------------------------------------- */

bool tni_image_draws(const char *f, const tn_generator *g, tni_generator_state *was)
{
    if (!g) return tni_false(tni_poison(f, "g"));
    tni_generator_get(g, was);
    return !tni_host_refused(f, "draws on the host", "it called before tn_capture_run");
}

tn_tensor *tni_image_drawn(tn_generator *g, const tni_generator_state *was, tn_tensor *y)
{
    if (!y) tni_generator_put(g, was);
    return y;
}

float tni_image_uniform(tn_generator *g, double low, double high)
{
    const float from = (float)low;
    return fmaf((float)(tn_generator_u32(g) & 0xffffff) * 0x1p-24f, (float)high - from, from);
}

static int64_t below(tn_generator *g, int64_t n)
{
    tni_generator_lock(g);
    const uint64_t value = tni_draw_below(g, (uint64_t)n);
    tni_generator_unlock(g);
    return (int64_t)value;
}

/* Bounds, which become their defaults if both are 0. */
static bool bounds_ok(const char *f, const char *name, double *b, double low, double high)
{
    if (b[0] == 0 && b[1] == 0) b[0] = low, b[1] = high;
    if (b[0] > 0 && b[0] <= b[1] && isfinite(b[1])) return true;
    return tni_false(tni_error(TN_E_INVALID,
                               "%s: %s from %g to %g: want 0 < the first <= the second", f, name,
                               b[0], b[1]));
}

bool tni_image_crop_ok(const char *f, tn_image_crop_options *o, int64_t h, int64_t w)
{
    if (h < 1 || w < 1)
        return tni_false(
            tni_error(TN_E_SHAPE, "%s: %" PRId64 " x %" PRId64 ": want at least 1 x 1", f, h, w));
    return tni_image_filter_ok(f, o->resize.filter) && bounds_ok(f, "scale", o->scale, 0.08, 1) &&
           bounds_ok(f, "ratio", o->ratio, 3 / 4., 4 / 3.);
}

/* Up to 10 draws of sides by area and ratio, until both are from `least` to `most`. */
static bool draw_sides(tn_generator *g, const double *scale, const double *ratio, double area,
                       int64_t least, const int64_t *most, int64_t *side)
{
    for (int i = 0; i < 10; i++) {
        const double part = area * tni_image_uniform(g, scale[0], scale[1]);
        const double aspect =
            expf(tni_image_uniform(g, logf((float)ratio[0]), logf((float)ratio[1])));
        const double sides[] = { rint(sqrt(part / aspect)), rint(sqrt(part * aspect)) };
        if (sides[0] >= (double)least && sides[0] <= (double)most[0] && sides[1] >= (double)least &&
            sides[1] <= (double)most[1]) {
            side[0] = (int64_t)sides[0], side[1] = (int64_t)sides[1];
            return true;
        }
    }
    return false;
}

void tni_image_box(tn_generator *g, const tn_image_crop_options *o, int64_t height, int64_t width,
                   int64_t *box)
{
    const int64_t size[] = { height, width };
    const double h = (double)height, w = (double)width;
    if (draw_sides(g, o->scale, o->ratio, h * w, 1, size, box + 2)) {
        for (int i = 0; i < 2; i++) box[i] = below(g, size[i] - box[i + 2] + 1);
        return;
    }
    box[2] = w / h < o->ratio[0] ? TNI_MAX((int64_t)rint(w / o->ratio[0]), 1) : height;
    box[3] = w / h > o->ratio[1] ? TNI_MAX((int64_t)rint(h * o->ratio[1]), 1) : width;
    for (int i = 0; i < 2; i++) box[i] = (size[i] - box[i + 2]) / 2;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static tn_tensor *part(tn_tensor *x, int64_t top, int64_t left, int64_t h, int64_t w)
{
    return tn_narrow(tn_narrow(x, -2, top, h), -1, left, w);
}

/* Python's round of n / 2: halves to the even number. */
static int64_t half_even(int64_t n)
{
    return n / 2 + (n % 4 == 3);
}

tn_tensor *tn_image_center_crop(tn_tensor *x, int64_t h, int64_t w)
{
    if (!tni_image_ok(__func__, x, false)) return NULL;
    if (h < 1 || w < 1)
        return tni_fail(TN_E_SHAPE, "%s: %" PRId64 " x %" PRId64 ": want at least 1 x 1", __func__,
                        h, w);
    const int64_t *size = x->shape.size + x->shape.rank - 2;
    const int64_t down = TNI_MAX(h - size[0], 0), right = TNI_MAX(w - size[1], 0);
    const int64_t top = half_even(size[0] - h + down), left = half_even(size[1] - w + right);
    tn_scope scope = tn_scope_begin();
    if (down || right)
        x = tn_pad(x, TN_PADS(right / 2, right - right / 2, down / 2, down - down / 2),
                   TN_PAD_CONSTANT, 0);
    return tni_scope_return(__func__, scope, part(x, top, left, h, w));
}

tn_tensor *tn_image_random_crop(tn_tensor *x, int64_t h, int64_t w, tn_generator *g)
{
    tni_generator_state was;
    if (!tni_image_ok(__func__, x, false) || !tni_image_draws(__func__, g, &was)) return NULL;
    const int64_t *size = x->shape.size + x->shape.rank - 2;
    if (h < 1 || w < 1 || h > size[0] || w > size[1])
        return tni_fail(TN_E_SHAPE,
                        "%s: %" PRId64 " x %" PRId64 " of x %s: want at least 1 x 1, within it",
                        __func__, h, w, tni_text(x));
    const int64_t top = size[0] > h ? below(g, size[0] - h + 1) : 0;
    const int64_t left = size[1] > w ? below(g, size[1] - w + 1) : 0;
    tn_scope scope = tn_scope_begin();
    return tni_image_drawn(g, &was, tni_scope_return(__func__, scope, part(x, top, left, h, w)));
}

tn_tensor *tn_image_random_resized_crop(tn_tensor *x, int64_t h, int64_t w, tn_image_crop_options o,
                                        tn_generator *g)
{
    TNI_HOLD_TRAPS;
    tni_generator_state was;
    if (!tni_image_ok(__func__, x, false) || !tni_image_draws(__func__, g, &was) ||
        !tni_image_crop_ok(__func__, &o, h, w))
        return NULL;
    if (tni_shape_numel(&x->shape) == 0)
        return tni_fail(TN_E_SHAPE, "%s: x %s is empty: want pixels", __func__, tni_text(x));
    int64_t box[4];
    tni_image_box(g, &o, x->shape.size[x->shape.rank - 2], x->shape.size[x->shape.rank - 1], box);
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = part(x, box[0], box[1], box[2], box[3]);
    return tni_image_drawn(g, &was,
                           tni_scope_return(__func__, scope, tn_image_resize(y, h, w, o.resize)));
}

/* ---- flips and turns ------------------------------------------------------------------------- */

tn_tensor *tni_image_turned(const char *f, tn_tensor *x, bool up, bool left, bool swap)
{
    int axes[2], n = 0;
    if (up) axes[n++] = -2;
    if (left) axes[n++] = -1;
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = n ? tn_flip(x, axes, n) : x;
    y = swap ? tn_transpose(y, -2, -1) : y;
    return tni_scope_return(f, scope, n && !swap ? y : tn_clone(y));
}

/* Whether to do it, with probability p. */
static bool wanted(tn_generator *g, double p)
{
    return tni_image_uniform(g, 0, 1) < (float)p;
}

static bool probability_ok(const char *f, double p)
{
    if (p >= 0 && p <= 1) return true;
    return tni_false(tni_error(TN_E_INVALID, "%s: p %g: want 0 to 1", f, p));
}

tn_tensor *tn_image_random_flip(tn_tensor *x, int axis, double p, tn_generator *g)
{
    TNI_HOLD_TRAPS;
    tni_generator_state was;
    if (!tni_image_ok(__func__, x, true) || !tni_image_draws(__func__, g, &was) ||
        !probability_ok(__func__, p))
        return NULL;
    if (axis != -1 && axis != -2)
        return tni_fail(TN_E_INDEX, "%s: axis %d: want -1, columns, or -2, rows", __func__, axis);
    const bool up = axis == -2, flips = wanted(g, p);
    return tni_image_drawn(g, &was,
                           flips ? tni_image_turned(__func__, x, up, !up, false) : tn_detach(x));
}

/* ---- rotations ------------------------------------------------------------------------------- */

typedef struct rotation {
    const void *x;            /* dense */
    int64_t height, width;    /* of x */
    float across[2], down[2]; /* from place to place in y, that in x: x and y, 2 the whole of it */
    tn_image_rotate_options o;
    bool bytes;
} rotation;

static float pixel(const rotation *r, int64_t plane, int64_t y, int64_t x)
{
    const int64_t at = (plane * r->height + y) * r->width + x;
    return r->bytes ? ((const unsigned char *)r->x)[at] : ((const float *)r->x)[at];
}

/* x at (px, py) of a plane: of 4 pixels, those beyond its edges being 0; then toward fill by their
 * share, as torchvision does when fill is given. */
static float sample(const rotation *r, int64_t plane, float px, float py)
{
    const float fill = (float)r->o.fill, x0 = floorf(px), y0 = floorf(py);
    if (!r->o.linear) {
        const float x = nearbyintf(px), y = nearbyintf(py);
        const bool in = x >= 0 && y >= 0 && x < (float)r->width && y < (float)r->height;
        return in ? pixel(r, plane, (int64_t)y, (int64_t)x) : fill;
    }
    const float right = px - x0, down = py - y0;
    float sum = 0, inside = 0;
    for (int k = 0; k < 4; k++) {
        const float x = x0 + (float)(k & 1), y = y0 + (float)(k >> 1);
        const float w = (k & 1 ? right : 1 - right) * (k >> 1 ? down : 1 - down);
        if (x < 0 || y < 0 || x >= (float)r->width || y >= (float)r->height) continue;
        sum += w * pixel(r, plane, (int64_t)y, (int64_t)x);
        inside += w;
    }
    return (sum - fill) * inside + fill;
}

static void rotate(tn_tensor *y, const rotation *r)
{
    const int64_t h = y->shape.size[y->shape.rank - 2], w = y->shape.size[y->shape.rank - 1];
    const int64_t planes = tni_shape_numel(&y->shape) / TNI_MAX(h * w, 1);
    unsigned char *bytes = tni_data(y);
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < w; j++) {
            const float x = (float)j - (float)(w - 1) / 2, u = (float)i - (float)(h - 1) / 2;
            const float gx = fmaf(u, r->down[0], x * r->across[0]);
            const float gy = fmaf(u, r->down[1], x * r->across[1]);
            const float px = (gx + 1) * ((float)r->width / 2) - 0.5f;
            const float py = (gy + 1) * ((float)r->height / 2) - 0.5f;
            for (int64_t k = 0; k < planes; k++) {
                const float v = sample(r, k, px, py);
                const int64_t at = (k * h + i) * w + j;
                if (r->bytes)
                    bytes[at] = (unsigned char)nearbyintf(v);
                else
                    ((float *)(void *)bytes)[at] = v;
            }
        }
}

/* Rows and columns that hold all of x, turned: what is within 1e-4 of a whole number is that. */
static void expanded(const double *turn, int64_t *size)
{
    const float h = (float)size[0] / 2, w = (float)size[1] / 2;
    for (int i = 0; i < 2; i++) {
        const float half = i ? w : h, to = i ? (float)turn[0] * w : (float)turn[1] * w;
        const float other = i ? (float)turn[1] * h : (float)turn[0] * h;
        const float reach = fabsf(to) + fabsf(other);
        const float high = ceilf(truncf((reach + half) * 1e4f) * 1e-4f);
        const float low = floorf(truncf((half - reach) * 1e4f) * 1e-4f);
        size[i] = TNI_MAX((int64_t)(high - low), 1);
    }
}

tn_tensor *tn_image_rotate(tn_tensor *x, double degrees, tn_image_rotate_options o)
{
    TNI_HOLD_TRAPS;
    if (!tni_image_ok(__func__, x, true)) return NULL;
    if (!isfinite(degrees) || !isfinite(o.fill) || (x->dtype == TN_U8 && !tni_fits(o.fill, TN_U8)))
        return tni_fail(TN_E_INVALID, "%s: %g degrees, fill %g: want finite ones that %s can hold",
                        __func__, degrees, o.fill, tn_dtype_name(x->dtype));
    tn_shape shape = x->shape;
    int64_t *size = shape.size + shape.rank - 2;
    const double angle = degrees - 360 * floor(degrees / 360), a = angle * (M_PI / 180);
    const bool half = angle == 180;
    if (half || angle == 0 || tni_shape_numel(&shape) == 0)
        return tni_image_turned(__func__, x, half, half, false);
    if ((angle == 90 || angle == 270) && (o.expand || size[0] == size[1]))
        return tni_image_turned(__func__, x, angle == 270, angle == 90, true);
    rotation r = { .height = size[0], .width = size[1], .o = o, .bytes = x->dtype == TN_U8 };
    const float h = (float)size[0] / 2, w = (float)size[1] / 2;
    r.across[0] = (float)cos(a) / w, r.across[1] = (float)sin(a) / h;
    r.down[0] = (float)-sin(a) / w, r.down[1] = (float)cos(a) / h;
    if (o.expand) expanded((double[]){ cos(a), sin(a) }, size);
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_empty_as(shape, x->dtype, tn_cpu());
    const tn_tensor *dense = y ? tni_dense(x) : NULL;
    if (dense) r.x = tni_data(dense), rotate(y, &r);
    return tni_scope_return(__func__, scope, dense ? y : NULL);
}

tn_tensor *tn_image_random_rotate(tn_tensor *x, double low, double high, tn_image_rotate_options o,
                                  tn_generator *g)
{
    TNI_HOLD_TRAPS;
    tni_generator_state was;
    if (!tni_image_ok(__func__, x, true) || !tni_image_draws(__func__, g, &was)) return NULL;
    if (!isfinite(low) || !isfinite(high) || low > high)
        return tni_fail(TN_E_INVALID, "%s: from %g to %g: want low <= high", __func__, low, high);
    return tni_image_drawn(g, &was, tn_image_rotate(x, tni_image_uniform(g, low, high), o));
}

/* ---- erasing --------------------------------------------------------------------------------- */

tn_tensor *tn_image_random_erase(tn_tensor *x, double p, tn_image_erase_options o, tn_generator *g)
{
    TNI_HOLD_TRAPS;
    tni_generator_state was;
    if (!tni_image_ok(__func__, x, true) || !tni_image_draws(__func__, g, &was) ||
        !probability_ok(__func__, p) || !bounds_ok(__func__, "scale", o.scale, 0.02, 0.33) ||
        !bounds_ok(__func__, "ratio", o.ratio, 0.3, 3.3))
        return NULL;
    if (x->dtype == TN_U8 && !tni_fits(o.value, TN_U8))
        return tni_fail(TN_E_INVALID, "%s: value %g: want one that u8 can hold", __func__, o.value);
    const int64_t *size = x->shape.size + x->shape.rank - 2, most[] = { size[1] - 1, size[0] - 1 };
    int64_t side[2]; /* columns, rows */
    if (!wanted(g, p) ||
        !draw_sides(g, o.scale, o.ratio, (double)size[0] * (double)size[1], 0, most, side))
        return tni_image_drawn(g, &was, tn_detach(x));
    const int64_t top = below(g, size[0] - side[1] + 1), left = below(g, size[1] - side[0] + 1);
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tni_copied(x, x->dtype), *there = part(y, top, left, side[1], side[0]);
    y = there && tn_fill_(there, o.value) == TN_OK ? y : NULL;
    return tni_image_drawn(g, &was, tni_scope_return(__func__, scope, y));
}
