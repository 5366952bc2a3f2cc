/*
 * count.c - where elements are and how many: nonzero, masked_select, unique, bincount, histc, and
 * samples, multinomial. All but nonzero are made of other ops: selection by index, sums at indices,
 * and sorts.
 *
 * Where a result's size or an error depends on values, the host reads them: then a GPU is waited
 * for, and a captured step refuses. Integers are added in f64, which holds them up to 2^53.
 */
#include "autograd/ops/rows.h"

static bool refused(const char *function)
{
    return tni_host_refused(function, "reads values on the host", "it before or after the step");
}

/* y[at[i]] += x[i], y of n zeros; all along one axis. */
static tn_tensor *put(tn_tensor *x, tn_tensor *at, int64_t n)
{
    if (!x || !at) return NULL;
    return tn_scatter_add(tn_full_as(TN_SHAPE(n), 0, x->dtype, tn_device_of(x)), 0, at, x);
}

/* A value for each element of one axis, n of them; no memory for each. */
static tn_tensor *same(double value, tn_dtype dtype, int64_t n, const tn_tensor *beside)
{
    return tn_expand(tn_full_as(TN_SHAPE(1), value, dtype, tn_device_of(beside)), TN_SHAPE(n));
}

/* ---- where a bool tensor is true ------------------------------------------------------------- */

static tn_status nonzero_shape(tni_call *c)
{
    tn_shape shape = TN_SHAPE(*(const int64_t *)c->args, c->in[0]->shape.rank);
    return tni_result(c, TN_I64, &shape);
}

static tn_status nonzero_forward(tni_call *c)
{
    tni_nonzero a = { .y = tni_array_of(c->out[0]), .x = tni_array_of(c->in[0]) };
    if (tni_array_numel(&a.y) == 0) return TN_OK; /* a single value's index has no columns */
    return tni_backend_of(c->in[0])->nonzero(&a);
}

static const tn_op nonzero_op = {
    .name = "nonzero",
    .formula = "y = the indices where x is not 0, in order",
    .arity = 1,
    .dtypes = TNI_ANY_DTYPE,
    .dense = TNI_X(0),
    .shape = nonzero_shape,
    .forward = nonzero_forward,
};

/* Its indices, [n, rank]. */
static tn_tensor *indices_of(const char *function, tn_tensor *mask)
{
    int64_t n = 0;
    if (!mask || refused(function)) return NULL;
    tn_tensor *sum = tn_sum(mask, NULL, 0, false);
    if (!sum || tn_copy_out(sum, &n, sizeof n, TN_I64) != TN_OK) return NULL;
    return tni_apply(&nonzero_op, &n, sizeof n, 1, &mask);
}

tn_tensor *tn_nonzero(tn_tensor *x)
{
    if (!tni_present("tn_nonzero", "x", x)) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *mask = x->dtype == TN_BOOL ? x : tn_ne_scalar(tn_detach(x), 0);
    return tn_scope_return(scope, indices_of("tn_nonzero", mask));
}

tn_tensor *tn_masked_select(tn_tensor *x, tn_tensor *mask)
{
    tn_shape shape;
    if (!tni_present("tn_masked_select", "x", x) || !tni_present("tn_masked_select", "mask", mask))
        return NULL;
    if (mask->dtype != TN_BOOL)
        return tni_fail(TN_E_DTYPE, "tn_masked_select: mask %s is %s: want bool", tni_text(mask),
                        tn_dtype_name(mask->dtype));
    if (!tni_broadcast(&x->shape, &mask->shape, &shape))
        return tni_fail(TN_E_SHAPE, "tn_masked_select: x %s, mask %s: do not broadcast",
                        tni_text(x), tni_text(mask));
    tn_scope scope = tn_scope_begin();
    mask = tn_flatten(tn_expand(mask, shape), 0, -1);
    tn_tensor *at = tn_squeeze(indices_of("tn_masked_select", mask), 1);
    x = at ? tn_flatten(tn_expand(x, shape), 0, -1) : NULL;
    return tn_scope_return(scope, x ? tn_index_select(x, 0, at) : NULL);
}

/* Whether each of n sorted elements is not the one before; and from where runs of equal ones begin,
 * how long each is. */
static tn_tensor *differs(tn_tensor *sorted, int64_t n)
{
    if (n == 0) return tn_to_dtype(sorted, TN_BOOL);
    tn_tensor *other = tn_ne(tn_narrow(sorted, 0, 1, n - 1), tn_narrow(sorted, 0, 0, n - 1));
    return tn_cat((tn_tensor *[]){ same(1, TN_BOOL, 1, sorted), other }, 2, 0);
}
static tn_tensor *lengths(tn_tensor *begin, int64_t n)
{
    int64_t later = TNI_MIN(tn_size(begin, 0), 1), m = tn_size(begin, 0) - later;
    tn_tensor *end = same((double)n, TN_I64, later, begin);
    return tn_sub(tn_cat((tn_tensor *[]){ tn_narrow(begin, 0, later, m), end }, 2, 0), begin);
}

tn_tensor *tn_unique(tn_tensor *x, tn_tensor **inverse, tn_tensor **counts)
{
    tn_tensor *at = NULL, *out[3] = { NULL };
    int n_out = 0;
    if (!tni_present("tn_unique", "x", x)) return NULL;
    int64_t n = tni_shape_numel(&x->shape);
    tn_scope scope = tn_scope_begin();
    tn_tensor *sorted = tn_sort(tn_flatten(tn_detach(x), 0, -1), 0, false, &at);
    tn_tensor *first = sorted ? differs(sorted, n) : NULL;
    tn_tensor *begin = tn_squeeze(indices_of("tn_unique", first), 1);
    out[n_out++] = begin ? tn_index_select(sorted, 0, begin) : NULL;
    if (begin && counts) out[n_out++] = lengths(begin, n);
    if (begin && inverse) {
        tn_tensor *number = tn_sub_scalar(tn_cumsum(tn_to_dtype(first, TN_F64), 0), 1);
        out[n_out++] = tn_to_dtype(tn_reshape(put(number, at, n), x->shape), TN_I64);
    }
    tn_status status = out[0] && out[n_out / 2] && out[n_out - 1] ? TN_OK : tni_pending();
    if (tni_scope_hand_over(scope, NULL, status, n_out, out) != TN_OK) return NULL;
    if (counts) *counts = out[1];
    if (inverse) *inverse = out[n_out - 1];
    return out[0];
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* The smallest and the largest of x, read by the host, as dtype (f64 or i64). */
static bool range_of(tn_tensor *x, tn_dtype dtype, void *least, void *most)
{
    return tn_copy_out(tn_min_all(x), least, 8, dtype) == TN_OK &&
           tn_copy_out(tn_max_all(x), most, 8, dtype) == TN_OK;
}

tn_tensor *tn_bincount(tn_tensor *x, tn_tensor *weights, int64_t minlength)
{
    int64_t least = 0, most = -1;
    if (!tni_present("tn_bincount", "x", x)) return NULL;
    if (!weights) return tni_poisoned("tn_bincount", "weights");
    if (x->shape.rank != 1 || tn_dtype_is_float(x->dtype) || x->dtype == TN_BOOL)
        return tni_fail(x->shape.rank != 1 ? TN_E_SHAPE : TN_E_DTYPE,
                        "tn_bincount: x %s is %s: want integers along one axis", tni_text(x),
                        tn_dtype_name(x->dtype));
    if (minlength < 0 || (!tni_none(weights) && !tni_shape_equal(&weights->shape, &x->shape)))
        return tni_fail(minlength < 0 ? TN_E_INVALID : TN_E_SHAPE,
                        "tn_bincount: x %s, weights %s, minlength %" PRId64
                        ": want equal shapes and a minlength of 0 or more",
                        tni_text(x), tni_text(weights), minlength);
    if (refused("tn_bincount")) return NULL;
    int64_t n = x->shape.size[0];
    bool counts = tni_none(weights);
    tn_scope scope = tn_scope_begin();
    tn_tensor *at = tn_to_dtype(x, TN_I64), *y = NULL;
    if (counts)
        weights = same(1, TN_F64, n, x);
    else if (weights->dtype != TN_F32)
        weights = tn_to_dtype(weights, TN_F64);
    bool read = n == 0 || range_of(at, TN_I64, &least, &most);
    if (read && least < 0)
        tni_error(TN_E_INDEX, "tn_bincount: x %s has a %" PRId64 ": want 0 and up", tni_text(x),
                  least);
    else if (read)
        y = put(tn_detach(weights), at, TNI_MAX(minlength, most + 1));
    return tn_scope_return(scope, y && (counts || n == 0) ? tn_to_dtype(y, TN_I64) : y);
}

/* low and high, if they are equal, from x's values; and as its dtype has them. */
static bool bounds(tn_tensor *x, double *low, double *high)
{
    if (*low == *high && tni_shape_numel(&x->shape) > 0 &&
        (refused("tn_histc") || !range_of(x, TN_F64, low, high)))
        return false;
    double apart = *low == *high; /* else all would be at both ends */
    *low = tni_rounded(*low - apart, x->dtype);
    *high = tni_rounded(*high + apart, x->dtype);
    if (isfinite(*low) && isfinite(*high)) return true;
    return tni_false(
        tni_error(TN_E_INVALID, "tn_histc: x from %g to %g: want finite values", *low, *high));
}

tn_tensor *tn_histc(tn_tensor *x, int64_t bins, double low, double high)
{
    if (!tni_present("tn_histc", "x", x)) return NULL;
    if (!tn_dtype_is_float(x->dtype))
        return tni_fail(TN_E_DTYPE, "tn_histc: %s is %s: want a floating dtype", tni_text(x),
                        tn_dtype_name(x->dtype));
    if (bins < 1 || !(low <= high))
        return tni_fail(TN_E_INVALID,
                        "tn_histc: %" PRId64 " bins from %g to %g: want 1 or more, low <= high",
                        bins, low, high);
    tn_scope scope = tn_scope_begin();
    tn_tensor *v = tni_wide(tn_flatten(tn_detach(x), 0, -1)), *y = NULL;
    if (v && bounds(v, &low, &high)) {
        tn_tensor *inside = tn_logical_and(tn_ge_scalar(v, low), tn_le_scalar(v, high));
        tn_tensor *at = tn_mul_scalar(tn_sub_scalar(v, low), (double)bins);
        at = tn_clamp(tn_div_scalar(at, high - low), 0, (double)(bins - 1));
        at = tn_to_dtype(tn_masked_fill(at, tn_logical_not(inside), (double)bins), TN_I64);
        y = put(same(1, TN_F64, tn_numel(v), v), at, bins + 1);
    }
    return tn_scope_return(scope, tn_to_dtype(tn_narrow(y, 0, 0, bins), x->dtype));
}

/* ---- samples --------------------------------------------------------------------------------- */

/* The first n of a race: number i arrives after an exponentially distributed time of mean 1/p_i. */
static tn_tensor *draw_race(tn_tensor *p, int64_t n)
{
    tn_tensor *at = NULL, *u = tn_rand_as(p->shape, TN_F64, tn_device_of(p));
    return tn_topk(tn_div(tn_neg(tn_log1p(tn_neg(u))), p), n, 1, false, &at) ? at : NULL;
}

/* u times the last of a row's running sums is in the share of the number that is drawn: how many
 * sums are no larger, found by halving for all at once. */
static tn_tensor *draw_shares(tn_tensor *sums, tn_tensor *whole, int64_t n)
{
    int64_t c = sums->shape.size[1], step = 1;
    tn_tensor *u = tn_rand_as(TN_SHAPE(sums->shape.size[0], n), TN_F64, tn_device_of(sums));
    tn_tensor *y = u ? tn_full_as(u->shape, 0, TN_I64, tn_device_of(u)) : NULL;
    u = tn_mul(u, tn_to_dtype(whole, TN_F64));
    while (step <= c / 2) step *= 2;
    for (; y && step > 0; step /= 2) {
        tn_tensor *next = tn_add_scalar(y, (double)step);
        tn_tensor *last = tn_clamp(tn_sub_scalar(next, 1), 0, (double)(c - 1));
        y = tn_where(tn_le(tn_gather(sums, 1, last), u), next, y);
    }
    return y;
}

/* Whether no number of p [rows, c] is negative or NaN, and each row's whole finite, above 0. */
static bool can_be_drawn(tn_tensor *p, tn_tensor *whole)
{
    bool fine = false;
    tn_tensor *good = tn_logical_and(tn_isfinite(whole), tn_gt_scalar(whole, 0));
    good = tn_logical_and(tn_all(good, NULL, 0, false), tn_all(tn_ge_scalar(p, 0), NULL, 0, false));
    if (!good || tn_copy_out(good, &fine, sizeof fine, TN_BOOL) != TN_OK) return false;
    return fine || tni_false(tni_error(TN_E_INVALID,
                                       "tn_multinomial: p %s: want numbers from 0 up, and a finite "
                                       "sum above 0 in each row",
                                       tni_text(p)));
}

tn_tensor *tn_multinomial(tn_tensor *p, int64_t n, bool replacement)
{
    int last = -1;
    if (!tni_present("tn_multinomial", "p", p)) return NULL;
    int rank = p->shape.rank;
    if (rank < 1 || rank > 2 || !tn_dtype_is_float(p->dtype))
        return tni_fail(rank < 1 || rank > 2 ? TN_E_SHAPE : TN_E_DTYPE,
                        "tn_multinomial: p %s is %s: want [n] or [rows, n] of a floating dtype",
                        tni_text(p), tn_dtype_name(p->dtype));
    int64_t c = p->shape.size[rank - 1];
    if (n < 1 || c < 1 || (!replacement && n > c))
        return tni_fail(TN_E_INVALID,
                        "tn_multinomial: %" PRId64 " samples of p %s: want 1 or more, and without "
                        "replacement at most as many as there are",
                        n, tni_text(p));
    if (refused("tn_multinomial")) return NULL;
    bool shares = replacement && n > 1;
    tn_scope scope = tn_scope_begin();
    tn_tensor *rows = tni_wide(tn_detach(p)), *y = NULL;
    if (rank == 1) rows = tn_unsqueeze(rows, 0);
    tn_tensor *sums = shares ? tn_cumsum(rows, 1) : tn_sum(rows, &last, 1, true);
    tn_tensor *whole = tn_narrow(sums, 1, shares ? c - 1 : 0, 1);
    if (whole && can_be_drawn(rows, whole))
        y = shares ? draw_shares(sums, whole, n) : draw_race(rows, n);
    return tn_scope_return(scope, y && rank == 1 ? tn_squeeze(y, 0) : y);
}
