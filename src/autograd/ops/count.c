/*
 * count.c - where elements are and how many: nonzero, masked_select, unique, bincount; and samples,
 * multinomial. All made of other ops: sorts, selection by index, sums at indices.
 *
 * Where a result's size or an error depends on values, the host reads them: then a GPU is waited
 * for, and a captured step refuses. Counts and places are whole numbers in f64, exact up to 2^53.
 */
#include "autograd/ops/shared.h"

static bool refused(const char *function)
{
    return tni_host_refused(function, "reads values on the host", "it before or after the step");
}

/* How often each of 0 .. n - 1 occurs in `at`, one axis. */
static tn_tensor *times(tn_tensor *at, int64_t n)
{
    if (!at) return NULL;
    tn_device device = tn_device_of(at);
    tn_tensor *ones = tn_expand(tn_full_as(TN_SHAPE(1), 1, TN_F64, device), at->shape);
    tn_tensor *zeros = tn_full_as(TN_SHAPE(n), 0, TN_F64, device);
    return tn_to_dtype(tn_scatter_add(zeros, 0, at, ones), TN_I64);
}

/* Where a bool tensor is true, counted in row-major order: true comes first in descending order. */
static tn_tensor *true_places(const char *function, tn_tensor *mask)
{
    int64_t n = 0;
    int axis = 0;
    if (!mask || refused(function)) return NULL;
    tn_tensor *sum = tn_sum(mask, NULL, 0, false);
    if (!sum || tn_copy_out(sum, &n, sizeof n, TN_I64) != TN_OK) return NULL;
    return tni_ordered(function, tn_flatten(mask, 0, -1), &n, &axis, true);
}

tn_tensor *tn_nonzero(tn_tensor *x)
{
    tn_tensor *column[TN_MAX_RANK], *y = NULL;
    if (!tni_present("tn_nonzero", "x", x)) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *mask = x->dtype == TN_BOOL ? x : tn_ne_scalar(tn_detach(x), 0);
    tn_tensor *at = true_places("tn_nonzero", mask), *rest = tn_to_dtype(at, TN_F64);
    for (int d = x->shape.rank - 1; rest && d >= 0; d--) {
        double size = (double)x->shape.size[d];
        tn_tensor *whole = d > 0 ? tn_floor(tn_div_scalar(rest, size)) : NULL;
        column[d] = d > 0 ? tn_sub(rest, tn_mul_scalar(whole, size)) : rest;
        rest = d > 0 ? whole : rest;
    }
    if (rest && x->shape.rank > 0)
        y = tn_to_dtype(tn_stack(column, x->shape.rank, 1), TN_I64);
    else if (rest)
        y = tn_full_as(TN_SHAPE(tn_size(at, 0), 0), 0, TN_I64, tn_device_of(at));
    return tni_scope_return(__func__, scope, y);
}

tn_tensor *tn_masked_select(tn_tensor *x, tn_tensor *mask)
{
    tn_shape shape;
    if (!tni_present(__func__, "x", x) || !tni_present(__func__, "mask", mask)) return NULL;
    if (mask->dtype != TN_BOOL)
        return tni_fail(TN_E_DTYPE, "tn_masked_select: mask %s is %s: want bool", tni_text(mask),
                        tn_dtype_name(mask->dtype));
    if (!tni_broadcast(&x->shape, &mask->shape, &shape))
        return tni_fail(TN_E_SHAPE, "tn_masked_select: x %s, mask %s: do not broadcast",
                        tni_text(x), tni_text(mask));
    tn_scope scope = tn_scope_begin();
    tn_tensor *at = true_places(__func__, tn_expand(mask, shape));
    x = at ? tn_flatten(tn_expand(x, shape), 0, -1) : NULL;
    return tni_scope_return(__func__, scope, x ? tn_index_select(x, 0, at) : NULL);
}

/* Whether each of n sorted elements is not the one before. */
static tn_tensor *differs(tn_tensor *sorted, int64_t n)
{
    if (!sorted || n == 0) return tn_to_dtype(sorted, TN_BOOL);
    tn_tensor *yes = tn_full_as(TN_SHAPE(1), 1, TN_BOOL, tn_device_of(sorted));
    tn_tensor *other = tn_ne(tn_narrow(sorted, 0, 1, n - 1), tn_narrow(sorted, 0, 0, n - 1));
    return tn_cat((tn_tensor *[]){ yes, other }, 2, 0);
}

tn_tensor *tn_unique(tn_tensor *x, tn_tensor **inverse, tn_tensor **counts)
{
    tn_tensor *at = NULL, *out[3] = { NULL };
    int n_out = 1;
    if (!tni_present("tn_unique", "x", x)) return NULL;
    int64_t n = tni_shape_numel(&x->shape);
    tn_scope scope = tn_scope_begin();
    tn_tensor *sorted = tn_sort(tn_flatten(tn_detach(x), 0, -1), 0, false, &at);
    tn_tensor *first = differs(sorted, n), *begin = true_places("tn_unique", first);
    if (begin) {
        tn_tensor *number = inverse || counts ? tn_sub_scalar(tn_cumsum(first, 0), 1) : NULL;
        out[0] = tn_index_select(sorted, 0, begin);
        if (counts) out[n_out++] = times(number, tn_size(begin, 0));
        if (inverse) out[n_out++] = tn_reshape(tn_scatter(at, 0, at, number), x->shape);
    }
    tn_status status = out[0] && out[n_out / 2] && out[n_out - 1] ? TN_OK : tni_pending();
    if (tni_scope_hand_over(scope, NULL, status, n_out, out) != TN_OK) return NULL;
    if (counts) *counts = out[1];
    if (inverse) *inverse = out[n_out - 1];
    return out[0];
}

tn_tensor *tn_bincount(tn_tensor *x, int64_t minlength)
{
    int64_t least = 0, most = -1;
    if (!tni_present("tn_bincount", "x", x)) return NULL;
    if (x->shape.rank != 1 || tn_dtype_is_float(x->dtype) || x->dtype == TN_BOOL)
        return tni_fail(x->shape.rank != 1 ? TN_E_SHAPE : TN_E_DTYPE,
                        "tn_bincount: x %s is %s: want integers along one axis", tni_text(x),
                        tn_dtype_name(x->dtype));
    if (minlength < 0)
        return tni_fail(TN_E_INVALID, "tn_bincount: minlength %" PRId64 ": want 0 or more",
                        minlength);
    if (refused("tn_bincount")) return NULL;
    tn_scope scope = tn_scope_begin();
    tn_tensor *at = tn_to_dtype(x, TN_I64), *y = NULL;
    bool read = x->shape.size[0] == 0 ||
                (tn_copy_out(tn_min_all(at), &least, sizeof least, TN_I64) == TN_OK &&
                 tn_copy_out(tn_max_all(at), &most, sizeof most, TN_I64) == TN_OK);
    if (read && (least < 0 || most >= INT64_C(1) << 60))
        tni_error(TN_E_INDEX, "tn_bincount: x %s has a %" PRId64 ": want 0 and up, below 2^60",
                  tni_text(x), least < 0 ? least : most);
    else if (read)
        y = times(at, TNI_MAX(minlength, most + 1));
    return tni_scope_return(__func__, scope, y);
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
    tn_tensor *sums = shares ? tn_cumsum(rows, 1) : tn_sum(rows, TN_AXES(-1), true);
    tn_tensor *whole = tn_narrow(sums, 1, shares ? c - 1 : 0, 1);
    tni_generator_state before; /* a failure draws nothing */
    tni_generator_get(tn_default_generator(), &before);
    if (whole && can_be_drawn(rows, whole))
        y = shares ? draw_shares(sums, whole, n) : draw_race(rows, n);
    if (y && rank == 1) y = tn_squeeze(y, 0);
    if (!y) tni_generator_put(tn_default_generator(), &before);
    return tni_scope_return(__func__, scope, y);
}
