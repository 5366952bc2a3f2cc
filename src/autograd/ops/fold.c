/*
 * fold.c - the windows of an image as columns and back, and pixels as channels and back.
 *
 * unfold: one copy of a view in which a window's step is a stride. fold, its transpose: rows and
 * columns of an image are sums of those of the windows (resample.h). Both see the padded image.
 */
#include <limits.h>

#include "autograd/ops/resample.h"

/* Rows, columns: kernel, stride, dilation, sizes of the padded image, windows. */
typedef struct windows {
    int64_t kernel[2], stride[2], dilation[2], size[2], count[2];
} windows;

/* [n, c, h, w] -> [n, c kh kw, h' w'], or back. */
static tn_status columns_shape(tni_call *c)
{
    const windows *a = c->args;
    tn_shape y = c->in[0]->shape;
    y.rank = 3;
    y.size[1] *= a->kernel[0] * a->kernel[1];
    y.size[2] = a->count[0] * a->count[1];
    return tni_result(c, c->in[0]->dtype, &y);
}

static tn_status image_shape(tni_call *c)
{
    const windows *a = c->args;
    const tn_shape *x = &c->in[0]->shape;
    tn_shape y =
        TN_SHAPE(x->size[0], x->size[1] / (a->kernel[0] * a->kernel[1]), a->size[0], a->size[1]);
    return tni_result(c, c->in[0]->dtype, &y);
}

static tn_status unfold_forward(tni_call *c)
{
    const windows *a = c->args;
    tni_array x = tni_array_of(c->in[0]), y = tni_array_of(c->out[0]);
    x.rank = y.rank = 6;
    int64_t step = 1;
    for (int i = 0; i < 2; i++) {
        x.size[4 + i] = a->count[i];
        x.size[2 + i] = a->kernel[i];
        x.stride[4 + i] = x.stride[2 + i] * a->stride[i];
        x.stride[2 + i] *= a->dilation[i];
    }
    for (int d = 5; d >= 0; d--) {
        y.size[d] = x.size[d];
        y.stride[d] = step;
        step *= y.size[d];
    }
    return tni_backend_of(c->out[0])->copy(&(tni_copy){ .y = y, .x = x });
}

static tn_status fold_forward(tni_call *c)
{
    const windows *a = c->args;
    tni_axis_map map[2];
    for (int i = 0; i < 2; i++)
        map[i] = (tni_axis_map){ .kind = TNI_WINDOWS,
                                 .in = a->size[i],
                                 .out = a->kernel[i] * a->count[i],
                                 .stride = a->stride[i],
                                 .dilation = a->dilation[i],
                                 .run = a->count[i] };
    map[0].far = a->kernel[1] * a->count[0]; /* x's planes: [kh, kw, h', w'] */
    map[1].far = a->count[0] * a->count[1];
    return tni_map_planes(c, c->out[0]->shape.size[0] * c->out[0]->shape.size[1], &map[0], &map[1],
                          a->count[1], true);
}

static const tn_op op_fold;
static const tn_op op_unfold = {
    .name = "unfold",
    .formula = "y[(c, r, s), (i, j)] = x[c, i stride + r dilation, j stride + s dilation]",
    .gradient = "dx = fold dy",
    .arity = 1,
    .autocast = TNI_CAST_KEEP,
    .shape = columns_shape,
    .forward = unfold_forward,
    .backward = tni_transposed,
    .transpose = &op_fold,
};

static const tn_op op_fold = {
    .name = "fold",
    .formula = "y[c, h, w] = sum of x[(c, r, s), (i, j)] over windows i, j with h, w at r, s",
    .gradient = "dx = unfold dy",
    .arity = 1,
    .autocast = TNI_CAST_KEEP,
    .dense = TNI_X(0),
    .shape = image_shape,
    .forward = fold_forward,
    .backward = tni_transposed,
    .transpose = &op_unfold,
};

/* The windows of an image of h x w; false + message. */
static bool windows_of(const char *function, int64_t h, int64_t w, const tn_unfold_spec *s,
                       windows *a)
{
    for (int i = 0; i < 2; i++) {
        int64_t size = i ? w : h, most = INT_MAX;
        a->kernel[i] = s->kernel[i];
        a->stride[i] = s->stride[i] ? s->stride[i] : 1;
        a->dilation[i] = s->dilation[i] ? s->dilation[i] : 1;
        if (TNI_MIN(TNI_MIN(a->kernel[i], a->stride[i]), TNI_MIN(a->dilation[i], size)) < 1 ||
            TNI_MAX(TNI_MAX(a->kernel[i], a->stride[i]), TNI_MAX(a->dilation[i], size)) > most ||
            s->padding[i] < 0 || s->padding[i] > most)
            return tni_false(tni_error(TN_E_INVALID,
                                       "%s: axis of %" PRId64 ", kernel %" PRId64
                                       ", stride %" PRId64 ", dilation %" PRId64
                                       ", padding %" PRId64 ": want 1 to %d each, padding from 0",
                                       function, size, a->kernel[i], a->stride[i], a->dilation[i],
                                       s->padding[i], INT_MAX));
        a->size[i] = size + 2 * s->padding[i];
        int64_t rest = a->size[i] - a->dilation[i] * (a->kernel[i] - 1) - 1;
        if (rest < 0)
            return tni_false(
                tni_error(TN_E_SHAPE,
                          "%s: axis of %" PRId64 ", kernel %" PRId64 ", dilation %" PRId64
                          ", padding %" PRId64 ": the kernel must fit into the padded "
                          "image",
                          function, size, a->kernel[i], a->dilation[i], s->padding[i]));
        a->count[i] = rest / a->stride[i] + 1;
    }
    return true;
}

/* y of x's padding, taken off again if sign is -1. */
static tn_tensor *framed(tn_tensor *x, const tn_unfold_spec *s, int sign)
{
    int64_t h = sign * s->padding[0], w = sign * s->padding[1];
    return h || w ? tn_pad(x, TN_PADS(w, w, h, h), TN_PAD_CONSTANT, 0) : x;
}

tn_tensor *tn_unfold(tn_tensor *x, tn_unfold_spec spec)
{
    windows a;
    if (!tni_present("tn_unfold", "x", x)) return NULL;
    bool single = x->shape.rank == 3;
    if (!single && x->shape.rank != 4)
        return tni_fail(TN_E_SHAPE, "tn_unfold: x %s: want [N,C,H,W] or [C,H,W]", tni_text(x));
    const int64_t *size = &x->shape.size[x->shape.rank - 2];
    if (!windows_of("tn_unfold", size[0], size[1], &spec, &a)) return NULL;
    x = framed(single ? tn_unsqueeze(x, 0) : x, &spec, 1);
    tn_tensor *y = tni_apply(&op_unfold, &a, sizeof a, 1, &x);
    return single ? tn_squeeze(y, 0) : y;
}

tn_tensor *tn_fold(tn_tensor *x, int64_t h, int64_t w, tn_unfold_spec spec)
{
    windows a;
    if (!tni_present("tn_fold", "x", x) || !windows_of("tn_fold", h, w, &spec, &a)) return NULL;
    bool single = x->shape.rank == 2;
    const int64_t *size = &x->shape.size[single ? 0 : 1];
    if ((!single && x->shape.rank != 3) || size[0] % (a.kernel[0] * a.kernel[1]) ||
        size[1] != a.count[0] * a.count[1])
        return tni_fail(TN_E_SHAPE,
                        "tn_fold: x %s, image %" PRId64 "x%" PRId64 ": want [N,C %" PRId64
                        ",%" PRId64 "] or one without N",
                        tni_text(x), h, w, a.kernel[0] * a.kernel[1], a.count[0] * a.count[1]);
    if (single) x = tn_unsqueeze(x, 0);
    tn_tensor *y = framed(tni_apply(&op_fold, &a, sizeof a, 1, &x), &spec, -1);
    return single ? tn_squeeze(y, 0) : y;
}

/* ---- pixels ---------------------------------------------------------------------------------- */

/* x's last three axes as [c, r, r, h, w] (shuffle) or [c, h, r, w, r], in the other order. */
static tn_tensor *pixels(const char *function, tn_tensor *x, int64_t r, bool shuffle)
{
    if (!tni_present(function, "x", x)) return NULL;
    int lead = x->shape.rank - 3;
    const int64_t *s = &x->shape.size[lead < 0 ? 0 : lead];
    if (lead < 0 || lead + 5 > TN_MAX_RANK || r < 1 || r > INT_MAX ||
        (shuffle ? s[0] % (r * r) : s[1] % r || s[2] % r))
        return tni_fail(
            TN_E_SHAPE, "%s: x %s, r %" PRId64 ": want [..,C,H,W] of at most %d axes, %s", function,
            tni_text(x), r, TN_MAX_RANK - 2, shuffle ? "r r a divisor of C" : "r one of H and W");
    tn_shape wide = x->shape, y = x->shape;
    int order[TN_MAX_RANK];
    static const int forth[] = { 0, 3, 1, 4, 2 }, back[] = { 0, 2, 4, 1, 3 };
    wide.rank = lead + 5;
    int64_t *v = wide.size + lead, *z = y.size + lead;
    z[0] = shuffle ? s[0] / (r * r) : s[0] * r * r;
    for (int i = 1; i < 3; i++) z[i] = shuffle ? s[i] * r : s[i] / r;
    v[0] = shuffle ? z[0] : s[0];
    v[1] = shuffle ? r : z[1];
    v[2] = r;
    v[3] = shuffle ? s[1] : z[2];
    v[4] = shuffle ? s[2] : r;
    for (int d = 0; d < wide.rank; d++)
        order[d] = d < lead ? d : lead + (shuffle ? forth : back)[d - lead];
    return tn_reshape(tn_permute(tn_reshape(x, wide), order, wide.rank), y);
}

tn_tensor *tn_pixel_shuffle(tn_tensor *x, int64_t r)
{
    return pixels("tn_pixel_shuffle", x, r, true);
}

tn_tensor *tn_pixel_unshuffle(tn_tensor *x, int64_t r)
{
    return pixels("tn_pixel_unshuffle", x, r, false);
}
