/*
 * inplace.c - changes of a tensor's own memory. They record nothing; tni_may_write refuses where
 * history would be falsified; the version goes up, so that a backward that reads the old values
 * notices.
 *
 * All checks come before the first write. A source that shares the target's storage under another
 * geometry is copied first: kernels read and write element by element.
 *
 * uniform_: x_i = u_i (high - low) + low, u_i in [0, 1). normal_: x_i = z_i deviation + mean.
 * Elements are drawn in row-major order whatever the strides (random.c).
 */
#include "autograd/ops/elementwise.h"

static bool same_geometry(const tn_tensor *a, const tn_tensor *b)
{
    bool same =
        a->offset == b->offset && a->dtype == b->dtype && tni_shape_equal(&a->shape, &b->shape);
    for (int d = 0; d < a->shape.rank && same; d++) same = a->stride[d] == b->stride[d];
    return same;
}

/* Whether source may be written into x, but for its dtype; moves: from any device. */
static tn_status check(const char *function, const tn_tensor *x, const tn_tensor *source,
                       bool moves)
{
    TNI_TRY(tni_may_write(function, x, source));
    if (tni_none(source))
        return tni_error(TN_E_INVALID, "%s: the source is TN_NONE: want a tensor", function);
    if (!moves && x->storage->backend != source->storage->backend)
        return tni_error(TN_E_DEVICE, "%s: target %s, source %s: on different devices", function,
                         tni_text(x), tni_text(source));
    if (tni_broadcasts_to(&source->shape, &x->shape)) return TN_OK;
    return tni_error(TN_E_SHAPE,
                     "%s: target %s, source %s: the source must broadcast to the target", function,
                     tni_text(x), tni_text(source));
}

static tn_status fractions_fit(const char *function, const tn_tensor *x, const char *what)
{
    if (tn_dtype_is_float(x->dtype)) return TN_OK;
    return tni_error(TN_E_DTYPE, "%s: target %s is %s, %s is not integral: want a floating target",
                     function, tni_text(x), tn_dtype_name(x->dtype), what);
}

/* x = function(x, source) */
static tn_status change(const char *function, int kernel, tn_tensor *x, tn_tensor *source,
                        const double *p)
{
    TNI_HOLD_TRAPS;
    tn_status status = check(function, x, source, false);
    bool divides = kernel == TNI_B_div, between = kernel == TNI_B_lerp;
    const char *what = divides ? "a quotient" : between ? "an interpolation" : "the source";
    if (!status && (tn_dtype_is_float(source->dtype) || divides || between))
        status = fractions_fit(function, x, what);
    if (status) return status;
    bool overlap = tn_same_storage(x, source) && !same_geometry(x, source);
    tn_scope scope;
    if (overlap) {
        scope = tn_scope_begin();
        TN_NO_GRAD source = tn_clone(source);
    }
    status = source ? tni_run_binary(kernel, x, x, source, p) : tni_pending();
    if (!status) tni_bump_version(x);
    if (overlap) tn_scope_end(scope);
    return status;
}

#define CHANGE(tn_name, name)                                                                      \
    tn_status tn_name(tn_tensor *x, tn_tensor *b)                                                  \
    {                                                                                              \
        return change(#tn_name, TNI_B_##name, x, b, NULL);                                         \
    }
CHANGE(tn_add_, add)
CHANGE(tn_sub_, sub)
CHANGE(tn_mul_, mul)
CHANGE(tn_div_, div)

tn_status tn_lerp_(tn_tensor *x, tn_tensor *b, double weight)
{
    return change("tn_lerp_", TNI_B_lerp, x, b, &weight);
}

tn_status tn_masked_fill_(tn_tensor *x, tn_tensor *mask, double value)
{
    TNI_HOLD_TRAPS;
    tni_number v;
    TNI_TRY(tni_may_write(__func__, x, mask));
    if (tni_none(mask) || mask->dtype != TN_BOOL)
        return tni_error(TN_E_DTYPE, "%s: mask %s is %s: want bool", __func__, tni_text(mask),
                         tni_none(mask) ? "absent" : tn_dtype_name(mask->dtype));
    TNI_TRY(tni_number_in(__func__, value, x->dtype, &v));
    return change(__func__, TNI_B_masked_fill, x, mask, &v.f);
}

/* x = function(x, p, q) */
static tn_status change_alone(const char *function, int kernel, tn_tensor *x, double p, double q)
{
    TNI_HOLD_TRAPS;
    bool integral = tni_is_whole(p);
    TNI_TRY(tni_may_write(function, x, TN_NONE));
    if (kernel == TNI_U_clamp) TNI_TRY(tni_check_bounds(function, p, q, x->dtype, &integral));
    if (!integral) TNI_TRY(fractions_fit(function, x, "the scalar"));
    const tni_array y = tni_array_of(x);
    const tni_unary a = { kernel, .y = y, .x = y, .p = (double[]){ p, q } };
    TNI_TRY(tni_backend_of(x)->unary(&a));
    tni_bump_version(x);
    return TN_OK;
}

tn_status tn_add_scalar_(tn_tensor *x, double s)
{
    TNI_HOLD_TRAPS;
    if (x && !tni_none(x)) s = tni_rounded(s, x->dtype);
    return change_alone("tn_add_scalar_", TNI_U_add_scalar, x, s, 0.0);
}

tn_status tn_mul_scalar_(tn_tensor *x, double s)
{
    return change_alone("tn_mul_scalar_", TNI_U_mul_scalar, x, s, 0.0);
}

tn_status tn_clamp_(tn_tensor *x, double low, double high)
{
    return change_alone("tn_clamp_", TNI_U_clamp, x, low, high);
}

static tn_status fill(const char *function, tn_tensor *x, double value)
{
    TNI_HOLD_TRAPS;
    tni_number number;
    TNI_TRY(tni_may_write(function, x, TN_NONE));
    TNI_TRY(tni_number_in(function, value, x->dtype, &number));
    TNI_TRY(tni_backend_of(x)->fill(&(tni_fill){ .y = tni_array_of(x), .value = number }));
    tni_bump_rewritten(x);
    return TN_OK;
}

tn_status tn_fill_(tn_tensor *x, double value)
{
    return fill("tn_fill_", x, value);
}

tn_status tn_zero_(tn_tensor *x)
{
    return fill("tn_zero_", x, 0.0);
}

tn_status tn_copy_(tn_tensor *x, tn_tensor *source)
{
    TNI_HOLD_TRAPS;
    TNI_TRY(check(__func__, x, source, true));
    if (tn_dtype_is_float(source->dtype)) TNI_TRY(fractions_fit(__func__, x, "the source"));
    if (tn_same_storage(x, source) && same_geometry(x, source)) return TN_OK;
    TNI_UNRECORDED;
    if (x->storage->backend != source->storage->backend)
        source = tn_to(source, tn_device_of(x));
    else if (tn_same_storage(x, source))
        source = tn_clone(source);
    tni_copy a = { .y = tni_array_of(x) };
    if (source) a.x = tni_array_expand(source, &x->shape);
    tn_status status = source ? tni_backend_of(x)->copy(&a) : tni_pending();
    if (!status) tni_bump_rewritten(x);
    return status;
}

tn_status tn_copy_in(tn_tensor *t, const void *data, size_t nbytes, tn_dtype dtype)
{
    TNI_HOLD_TRAPS;
    if (tni_absent(t) || (!data && nbytes))
        return tni_poison(__func__, t && !tni_none(t) ? "data" : "t");
    TNI_TRY(tni_bytes_fit(__func__, t, nbytes, dtype));
    if (nbytes == 0) return TN_OK;
    if (tn_dtype_is_float(dtype) && !tn_dtype_is_float(t->dtype))
        return tni_error(TN_E_DTYPE,
                         "tn_copy_in: %s data into %s of %s: want no float cut to an integer",
                         tn_dtype_name(dtype), tni_text(t), tn_dtype_name(t->dtype));
    TNI_TRY(tni_may_write(__func__, t, TN_NONE));
    if (tni_host_refused(__func__, "takes values from the host",
                         "them as an input of tn_capture_run"))
        return TN_E_STATE;
    TNI_TRY(tni_write_host(t, data, nbytes, dtype));
    tni_bump_rewritten(t);
    return TN_OK;
}

/* ---- random values --------------------------------------------------------------------------- */

static tn_status may_fill(const char *function, tn_tensor *t)
{
    if (tni_absent(t)) return tni_poison(function, "t");
    if (!tn_dtype_is_float(t->dtype))
        return tni_error(TN_E_DTYPE, "%s: %s is %s: want a floating tensor", function, tni_text(t),
                         tn_dtype_name(t->dtype));
    return tni_may_write(function, t, TN_NONE);
}

tn_status tn_uniform_(tn_tensor *t, double low, double high)
{
    TNI_HOLD_TRAPS;
    TNI_TRY(may_fill("tn_uniform_", t));
    if (!isfinite(low) || !isfinite(high) || low > high)
        return tni_error(TN_E_INVALID, "tn_uniform_: from %g to %g: want finite bounds in order",
                         low, high);
    TNI_TRY(tni_random_uniform(t, low, high));
    tni_bump_rewritten(t);
    return TN_OK;
}

tn_status tn_normal_(tn_tensor *t, double mean, double deviation)
{
    TNI_HOLD_TRAPS;
    TNI_TRY(may_fill("tn_normal_", t));
    if (!(deviation >= 0.0))
        return tni_error(TN_E_INVALID, "tn_normal_: deviation %g: want 0 or more", deviation);
    TNI_TRY(tni_random_normal(t, mean, deviation));
    tni_bump_rewritten(t);
    return TN_OK;
}

/* ---- many tensors at once -------------------------------------------------------------------- */

/* The memory of a change's target. */
typedef struct span {
    const char *begin, *end;
    int at; /* whose */
} span;

static bool is_dense_real(const tn_tensor *x)
{
    return (x->dtype == TN_F32 || x->dtype == TN_F64) && tni_is_dense(x);
}

static int by_address(const void *a, const void *b)
{
    const span *x = a, *y = b;
    int order = (x->begin > y->begin) - (x->begin < y->begin);
    return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* Marks each of n changes if its target overlaps another target in memory: one launch cannot change
 * the same memory twice. Of equal targets all but the first are marked. */
static void mark_repeated(tni_change (*each)(const void *from, int i), const void *from, int n,
                          span *spans, bool *repeated)
{
    int spanned = 0;
    const char *end = NULL;
    for (int i = 0; i < n; i++) {
        const tn_tensor *x = each(from, i).x;
        repeated[i] = false;
        if (!x || !is_dense_real(x)) continue;
        const char *begin = tni_data(x);
        int64_t nbytes = tni_shape_numel(&x->shape) * (int64_t)tn_dtype_size(x->dtype);
        spans[spanned++] = (span){ begin, begin + nbytes, i };
    }
    tni_sort(spans, (size_t)spanned, sizeof *spans, by_address);
    for (int i = 0; i < spanned; i++) {
        if (spans[i].begin == spans[i].end) continue;
        if (end && spans[i].begin < end)
            repeated[spans[i].at] = true;
        else
            end = spans[i].end;
    }
}

/* Whether a change may be part of the one launch that begins with first (x NULL: nothing does yet):
 * dense, real, and of the same device and kind as first. */
static bool joins(const tni_change *c, const tni_change *first)
{
    if (!is_dense_real(c->x) || tni_host_counts()) return false;
    return !first->x || (tni_backend_of(first->x) == tni_backend_of(c->x) && !first->y == !c->y);
}

static tn_status change_one(tni_change c)
{
    if (!c.x) return TN_OK;
    if (!c.y) return tn_mul_scalar_(c.x, c.rate);
    return c.rate == 1.0 ? tn_copy_(c.x, c.y) : tn_lerp_(c.x, c.y, c.rate);
}

/* alone: for each of n whether it is changed by itself, in at where its target is repeated. */
static tn_status change_all(const char *function, int n,
                            tni_change (*each)(const void *from, int i), const void *from,
                            bool *alone, tni_lerp_tensor *call)
{
    tni_change first = { .x = NULL };
    tn_status status = TN_OK;
    int joint = 0;
    for (int i = 0; i < n; i++) {
        tni_change c = each(from, i);
        if (c.x) status = tni_may_write(function, c.x, TN_NONE);
        if (status) return status;
        alone[i] = !c.x || alone[i] || !joins(&c, &first);
        if (alone[i]) continue;
        const tn_tensor *y = c.y ? tni_dense(c.y) : NULL;
        if (c.y && !y) return tni_pending();
        if (joint == 0) first = c;
        call[joint++] = (tni_lerp_tensor){ .dtype = c.x->dtype,
                                           .n = tni_shape_numel(&c.x->shape),
                                           .x = tni_data(c.x),
                                           .y = y ? tni_data(y) : NULL,
                                           .rate = c.rate };
    }
    for (int i = 0; i < n && !status; i++)
        if (alone[i]) status = change_one(each(from, i));
    if (status || joint == 0) return status;
    status = tni_backend_of(first.x)->lerp_all(&(tni_lerp_all){ call, joint });
    for (int i = 0; i < n && !status; i++)
        if (!alone[i]) tni_bump_version(each(from, i).x);
    return status;
}

tn_status tni_change_all(const char *function, int n, tni_change (*each)(const void *from, int i),
                         const void *from)
{
    TNI_HOLD_TRAPS;
    if (n <= 0) return TN_OK;
    TNI_ITEMS(tni_lerp_tensor, call, n);
    TNI_ITEMS(span, spans, n);
    TNI_ITEMS(bool, alone, n);
    if (!call || !spans || !alone) return TN_E_NOMEM;
    TNI_SCOPED;
    mark_repeated(each, from, n, spans, alone);
    return change_all(function, n, each, from, alone, call);
}
