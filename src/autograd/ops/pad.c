/*
 * pad.c - more elements, or fewer, before and behind axes: of a value, or of x's own.
 *
 * A value: each border is filled once, the rest is a copy; dx is dy padded by the negative numbers.
 * x's own: maps of the axes (resample.h).
 */
#include "autograd/ops/resample.h"

typedef struct pad_args {
    int64_t before[TN_MAX_RANK], behind[TN_MAX_RANK];
    tni_number value;
} pad_args;

static tn_status pad_shape(tni_call *c)
{
    const pad_args *a = c->args;
    tni_shape_like_first(c);
    tn_shape *y = &c->out_spec[0].shape;
    for (int d = 0; d < y->rank; d++) y->size[d] += a->before[d] + a->behind[d];
    return TN_OK;
}

/* The n elements of a from `start` on along axis d. */
static tni_array part_of(tni_array a, int d, int64_t start, int64_t n)
{
    a.data = (char *)a.data + start * a.stride[d] * (int64_t)tn_dtype_size(a.dtype);
    a.size[d] = n;
    return a;
}

static tn_status pad_forward(tni_call *c)
{
    const pad_args *a = c->args;
    const tni_backend *backend = tni_backend_of(c->out[0]);
    tni_array y = tni_array_of(c->out[0]), x = tni_array_of(c->in[0]);
    tn_status status = TN_OK;
    for (int d = 0; d < y.rank && status == TN_OK; d++) {
        int64_t before = TNI_MAX(a->before[d], 0), behind = TNI_MAX(a->behind[d], 0);
        int64_t kept = y.size[d] - before - behind;
        tni_array border[] = { part_of(y, d, 0, before), part_of(y, d, before + kept, behind) };
        for (int i = 0; i < 2 && status == TN_OK; i++)
            if (border[i].size[d] > 0)
                status = backend->fill(&(tni_fill){ .y = border[i], .value = a->value });
        y = part_of(y, d, before, kept);
        x = part_of(x, d, TNI_MAX(-a->before[d], 0), kept);
    }
    return status ? status : backend->copy(&(tni_copy){ .y = y, .x = x });
}

static const tn_op op_pad;

static tn_status pad_backward(tni_grad *g)
{
    pad_args a = *(const pad_args *)g->args;
    for (int d = 0; d < TN_MAX_RANK; d++) {
        a.before[d] = -a.before[d];
        a.behind[d] = -a.behind[d];
    }
    a.value = (tni_number){ 0 };
    g->dx[0] = tni_apply(&op_pad, &a, sizeof a, 1, &g->dy);
    return TN_OK;
}

static const tn_op op_pad = {
    .name = "pad",
    .formula = "y_o = x_(o - before) where x has it, else value",
    .gradient = "dx_i = dy_(i + before)",
    .arity = 1,
    .dtypes = TNI_ANY_DTYPE,
    .shape = pad_shape,
    .forward = pad_forward,
    .backward = pad_backward,
};

TNI_MAPPED(op_pad_own, "pad", "x_i; where i is o - before, brought into x by the mode")

/* Whether PyTorch takes these numbers for an axis of `in`; sets what it becomes. */
static bool fits(tn_pad_mode mode, int64_t in, int64_t before, int64_t behind, int64_t *out)
{
    const int64_t most[] = { INT64_MAX, in - 1, INT64_MAX, in };
    int64_t least = mode != TN_PAD_CONSTANT;
    if (__builtin_add_overflow(in, before, out) || __builtin_add_overflow(*out, behind, out) ||
        before < -in || behind < -in)
        return false;
    int64_t kept = in + TNI_MIN(before, 0) + TNI_MIN(behind, 0);
    return TNI_MAX(before, behind) <= most[mode] && in >= least && *out >= least && kept >= 0 &&
           (mode != TN_PAD_CIRCULAR || kept > 0);
}

tn_tensor *tn_pad(tn_tensor *x, const int64_t *pads, int n, tn_pad_mode mode, double value)
{
    pad_args a = { .before = { 0 } };
    tni_axis_map map[TN_MAX_RANK];
    bool own = mode != TN_PAD_CONSTANT && n > 0;
    if (!tni_present("tn_pad", "x", x)) return NULL;
    if (!pads && n > 0) return tni_poisoned("tn_pad", "pads");
    if (n < 0 || n % 2 || n / 2 > x->shape.rank || (int)mode < 0 || mode > TN_PAD_CIRCULAR ||
        (own && value != 0))
        return tni_fail(TN_E_INVALID,
                        "tn_pad: x %s, %d numbers, mode %d, value %g: want two for each of the "
                        "last axes, a tn_pad_mode, a value with TN_PAD_CONSTANT alone",
                        tni_text(x), n, (int)mode, value);
    for (int k = 0; k < n / 2; k++) {
        int axis = x->shape.rank - 1 - k;
        int64_t in = x->shape.size[axis], before = pads[2 * k], behind = pads[2 * k + 1], out;
        if (!fits(mode, in, before, behind, &out))
            return tni_fail(TN_E_SHAPE,
                            "tn_pad: axis %d of %s by %" PRId64 " and %" PRId64
                            ": want not more cut off than there is, nor of reflect (circular) more "
                            "than the size - 1 (the size), nor nothing of the other modes",
                            axis, tni_text(x), before, behind);
        a.before[axis] = before;
        a.behind[axis] = behind;
        map[k] = (tni_axis_map){ .kind = TNI_PADDED,
                                 .mode = (int)mode,
                                 .in = in,
                                 .out = out,
                                 .before = before,
                                 .behind = behind };
    }
    if (own) return tni_map_axes(&op_pad_own, x, map, n / 2);
    if (tni_number_in("tn_pad", value, x->dtype, &a.value) != TN_OK) return NULL;
    return tni_apply(&op_pad, &a, sizeof a, 1, &x);
}
