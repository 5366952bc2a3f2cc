/*
 * colors.c - transforms of values. They are computed in f32, a few hundred pixels at a time, as
 * torchvision computes them: sums with a factor are rounded once (fused), u8 is cut after clamping.
 */
#include "ext/images/images.h"

enum { BLOCK = 256, PROPERTIES = 4 };

typedef struct change {
    tn_image_property property;
    float factor, rest; /* 1 - factor */
    float mean;         /* of its grey, for contrast */
    bool bytes;
} change;

/* a b + c, rounded once: the product of two f32 is exact in f64. */
static inline float fused(float a, float b, float c)
{
    return (float)((double)a * (double)b + (double)c);
}

static inline float grey_of(const float *p, bool bytes)
{
    const float grey = fused(p[2 * BLOCK], 0.114f, fused(p[BLOCK], 0.587f, p[0] * 0.2989f));
    return bytes ? (float)(int)grey : grey;
}

static inline float within(float v, float most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

/* The hue of one pixel turned, by way of hue, saturation and value. p: 0 to 1, BLOCK apart. */
static void turn_hue(float *p, float by)
{
    const float r = p[0], g = p[BLOCK], b = p[2 * BLOCK];
    const float most = fmaxf(fmaxf(r, g), b), range = most - fminf(fminf(r, g), b);
    const float span = range == 0 ? 1 : range, s = range / (range == 0 ? 1 : most);
    const float rc = (most - r) / span, gc = (most - g) / span, bc = (most - b) / span;
    float h = most == r ? bc - gc : most == g ? rc + 2 - bc : gc + 4 - rc;
    h = fmodf(h * (1.f / 6) + 1, 1) + by;
    h = (h - floorf(h)) * 6;
    const float sector = floorf(h), part = s * (h - sector);
    const float q = within((1 - part) * most, 1), t = within((part + (1 - s)) * most, 1);
    const float low = within((1 - s) * most, 1);
    const float of[6][3] = { { most, t, low }, { q, most, low }, { low, most, t },
                             { low, q, most }, { t, low, most }, { most, low, q } };
    for (int k = 0; k < 3; k++) p[k * BLOCK] = of[(int)sector % 6][k];
}

static void change_block(const change *c, float *p, int channels, int n)
{
    const float most = c->bytes ? 255 : 1;
    for (int i = 0; i < n; i++) {
        const float to = c->property == TN_IMAGE_SATURATION ? grey_of(p + i, c->bytes) : c->mean;
        if (c->property == TN_IMAGE_HUE) {
            turn_hue(p + i, c->factor);
            continue;
        }
        for (int k = 0; k < channels; k++)
            p[k * BLOCK + i] = within(fused(to, c->rest, p[k * BLOCK + i] * c->factor), most);
    }
}

/* n values between u8 or f32 and f32; hue is computed of 0 to 1. */
static void load(float *p, const void *x, int64_t at, int n, const change *c)
{
    const float scale = c->property == TN_IMAGE_HUE ? 1.f / 255 : 1;
    for (int i = 0; i < n; i++)
        p[i] = c->bytes ? (float)((const unsigned char *)x)[at + i] * scale
                        : ((const float *)x)[at + i];
}

static void store(void *y, const float *p, int64_t at, int n, const change *c)
{
    const float scale = c->property == TN_IMAGE_HUE ? 255.999f : 1;
    for (int i = 0; i < n; i++)
        if (c->bytes)
            ((unsigned char *)y)[at + i] = (unsigned char)(p[i] * scale);
        else
            ((float *)y)[at + i] = p[i];
}

/* One image of `plane` pixels, at element `at` of x and y. y NULL: returns the mean of its grey. */
static float change_image(const change *c, void *y, const void *x, int64_t at, int channels,
                          int64_t plane)
{
    float p[3 * BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < plane; i += BLOCK) {
        const int n = (int)TNI_MIN(BLOCK, plane - i);
        for (int k = 0; k < channels; k++) load(p + k * BLOCK, x, at + k * plane + i, n, c);
        for (int j = 0; !y && j < n; j++) sum += channels == 3 ? grey_of(p + j, c->bytes) : p[j];
        if (!y) continue;
        change_block(c, p, channels, n);
        for (int k = 0; k < channels; k++) store(y, p + k * BLOCK, at + k * plane + i, n, c);
    }
    return (float)sum / (float)plane;
}

tn_tensor *tn_image_adjust(tn_tensor *x, tn_image_property property, double factor)
{
    TNI_HOLD_TRAPS;
    if (!tni_image_ok(__func__, x, true)) return NULL;
    const int64_t channels = x->shape.size[x->shape.rank - 3], numel = tni_shape_numel(&x->shape);
    const bool hue = property == TN_IMAGE_HUE;
    if (channels != 1 && channels != 3)
        return tni_fail(TN_E_SHAPE, "%s: x %s: want 1 or 3 channels", __func__, tni_text(x));
    if (property < TN_IMAGE_BRIGHTNESS || property > TN_IMAGE_HUE || !isfinite((float)factor) ||
        factor < (hue ? -0.5 : 0) || (hue && factor > 0.5))
        return tni_fail(TN_E_INVALID,
                        "%s: property %d, factor %g: want 0 and up, of hue -0.5 to 0.5", __func__,
                        (int)property, factor);
    if (numel == 0 || (channels == 1 && property >= TN_IMAGE_SATURATION)) return tn_detach(x);
    const bool blend = property == TN_IMAGE_CONTRAST || property == TN_IMAGE_SATURATION;
    change c = { property, (float)factor, blend ? (float)(1 - factor) : 0, 0, x->dtype == TN_U8 };
    const int64_t plane = x->shape.size[x->shape.rank - 2] * x->shape.size[x->shape.rank - 1];
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_empty_as(x->shape, x->dtype, tn_cpu());
    const tn_tensor *dense = y ? tni_dense(x) : NULL;
    for (int64_t at = 0; dense && at < numel; at += channels * plane) {
        if (property == TN_IMAGE_CONTRAST)
            c.mean = change_image(&c, NULL, tni_data(dense), at, (int)channels, plane);
        change_image(&c, tni_data(y), tni_data(dense), at, (int)channels, plane);
    }
    return tni_scope_return(__func__, scope, dense ? y : NULL);
}

tn_tensor *tn_image_color_jitter(tn_tensor *x, tn_image_jitter_options o, tn_generator *g)
{
    TNI_HOLD_TRAPS;
    tni_generator_state was;
    const double range[] = { o.brightness, o.contrast, o.saturation, o.hue };
    double factor[PROPERTIES] = { 0 };
    int64_t order[PROPERTIES];
    if (!tni_image_ok(__func__, x, true) || !tni_image_draws(__func__, g, &was)) return NULL;
    for (int k = 0; k < PROPERTIES; k++)
        if (!(range[k] >= 0 && isfinite(range[k])) || (k == TN_IMAGE_HUE && range[k] > 0.5))
            return tni_fail(TN_E_INVALID, "%s: %g: want >= 0, of hue at most 0.5", __func__,
                            range[k]);
    tn_generator_permutation(g, PROPERTIES, order);
    for (int k = 0; k < PROPERTIES; k++) {
        const double middle = k == TN_IMAGE_HUE ? 0 : 1, least = k == TN_IMAGE_HUE ? -1 : 0;
        if (range[k] > 0)
            factor[k] = tni_image_uniform(g, fmax(middle - range[k], least), middle + range[k]);
    }
    tn_scope scope = tn_scope_begin();
    x = tn_detach(x);
    for (int k = 0; k < PROPERTIES; k++)
        if (range[order[k]] > 0)
            x = tn_image_adjust(x, (tn_image_property)order[k], factor[order[k]]);
    return tni_image_drawn(g, &was, tni_scope_return(__func__, scope, x));
}

tn_tensor *tn_image_normalize(tn_tensor *x, const double *mean, const double *std, int n)
{
    TNI_HOLD_TRAPS;
    if (!tni_image_ok(__func__, x, true)) return NULL;
    if (!mean || !std) return tni_poisoned(__func__, mean ? "std" : "mean");
    const int64_t channels = x->shape.size[x->shape.rank - 3], numel = tni_shape_numel(&x->shape);
    if (n != channels && n != 1)
        return tni_fail(TN_E_SHAPE, "%s: %d numbers for x %s: want 1, or as many as channels",
                        __func__, n, tni_text(x));
    for (int k = 0; k < n; k++)
        if (!isfinite(mean[k]) || !isfinite(std[k]) || (float)std[k] == 0)
            return tni_fail(TN_E_INVALID, "%s: mean %g, std %g: want finite ones, std not 0",
                            __func__, mean[k], std[k]);
    const int64_t plane = x->shape.size[x->shape.rank - 2] * x->shape.size[x->shape.rank - 1];
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_empty_as(x->shape, TN_F32, tn_cpu());
    const tn_tensor *dense = y ? tni_dense(x) : NULL;
    float *to = dense ? tni_data(y) : NULL, table[256];
    for (int64_t i = 0; dense && plane && i < numel / plane; i++, to += plane) {
        const float m = (float)mean[i % n], s = (float)std[i % n];
        const float *from = (const float *)tni_data(dense) + i * plane;
        const unsigned char *bytes = (const unsigned char *)tni_data(dense) + i * plane;
        for (int k = 0; k < 256; k++) table[k] = ((float)k * (1.f / 255) - m) / s;
        for (int64_t j = 0; j < plane; j++)
            to[j] = x->dtype == TN_U8 ? table[bytes[j]] : (from[j] - m) / s;
    }
    return tni_scope_return(__func__, scope, dense ? y : NULL);
}
