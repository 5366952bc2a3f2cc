/*
 * init.c - initial values, drawn in PyTorch's order from its stream; bounds are computed in double
 * by the expressions PyTorch uses, so that uniform draws agree bit for bit.
 */
#include "nn/module.h"

double tn_init_gain(tn_nonlinearity nonlinearity, double slope)
{
    TNI_HOLD_TRAPS;
    switch (nonlinearity) {
    case TN_NL_LINEAR:
    case TN_NL_SIGMOID: return 1.0;
    case TN_NL_TANH: return 5.0 / 3;
    case TN_NL_RELU: return sqrt(2.0);
    case TN_NL_LEAKY_RELU: return sqrt(2.0 / (1 + slope * slope));
    case TN_NL_SELU: return 3.0 / 4;
    }
    tni_error(TN_E_INVALID, "tn_init_gain: nonlinearity %d: want one of tn_nonlinearity",
              (int)nonlinearity);
    return NAN;
}

tn_status tn_init_fans(const tn_tensor *t, int64_t *fan_in, int64_t *fan_out)
{
    if (tni_absent(t)) return tni_poison("tn_init_fans", "t");
    if (!fan_in || !fan_out)
        return tni_error(TN_E_INVALID, "tn_init_fans: %s is NULL: want room for an int64_t",
                         fan_in ? "fan_out" : "fan_in");
    if (t->shape.rank < 2)
        return tni_error(TN_E_SHAPE, "tn_init_fans: %s: want at least 2 axes, [out, in, ...]",
                         tni_text(t));
    int64_t field = 1; /* positions of a kernel: below the tensor's numel, so it cannot overflow */
    for (int i = 2; i < t->shape.rank; i++) field *= t->shape.size[i];
    *fan_in = t->shape.size[1] * field;
    *fan_out = t->shape.size[0] * field;
    return TN_OK;
}

static tn_status check(const char *function, const tn_tensor *t)
{
    if (tni_absent(t)) return tni_poison(function, "t");
    if (!tn_dtype_is_float(t->dtype))
        return tni_error(TN_E_DTYPE, "%s: %s is %s: want a floating dtype", function, tni_text(t),
                         tn_dtype_name(t->dtype));
    return TN_OK;
}

#define DRAWS(tn_init_name, tn_name_, first, second)                                               \
    tn_status tn_init_name(tn_tensor *t, double first, double second)                              \
    {                                                                                              \
        tn_status status = check(#tn_init_name, t);                                                \
        TN_NO_GRAD if (status == TN_OK && !tni_init_skipped) status = tn_name_(t, first, second);  \
        return status;                                                                             \
    }
DRAWS(tn_init_uniform, tn_uniform_, low, high)
DRAWS(tn_init_normal, tn_normal_, mean, deviation)

tn_status tn_init_constant(tn_tensor *t, double value)
{
    tn_status status = check("tn_init_constant", t);
    TN_NO_GRAD if (status == TN_OK) status = tn_fill_(t, value);
    return status;
}

/* draw(t, p), without grad; if it fails, the numbers are drawn again by the next one. */
static tn_status drawn(tn_tensor *t, tn_status (*draw)(tn_tensor *t, const double *p),
                       const double *p)
{
    tni_generator_state before;
    tn_status status = TN_OK;
    if (tn_numel(t) == 0) return TN_OK;
    tni_generator_get(tn_default_generator(), &before);
    TN_SCOPE TN_NO_GRAD status = draw(t, p);
    if (status != TN_OK) tni_generator_put(tn_default_generator(), &before);
    return status;
}

/* ---- the truncated normal distribution, as PyTorch draws it from 2.15 on --------------------- */

typedef struct cut_normal {
    double mean, deviation, low, high;
} cut_normal;

/* The distribution function of the normal without cuts. */
static double below(const cut_normal *d, double x)
{
    return 0.5 * erfc(-(x - d->mean) / d->deviation * M_SQRT1_2);
}

/* Where that function is p, between the cuts: by halving; nothing lies beyond 40 deviations. */
static double quantile(const cut_normal *d, double p)
{
    double low = fmax(d->low, d->mean - 40 * d->deviation);
    double high = fmin(d->high, d->mean + 40 * d->deviation);
    for (int i = 0; i < 64; i++) {
        double middle = low + (high - low) / 2;
        if (below(d, middle) < p)
            low = middle;
        else
            high = middle;
    }
    return fmin(fmax(high, d->low), d->high);
}

static tn_status draw_candidates(tn_tensor *x, const cut_normal *d, bool uniform)
{
    return uniform ? tn_uniform_(x, d->low, d->high) : tn_normal_(x, d->mean, d->deviation);
}

/* Which candidates are rejected: normal ones outside the cuts; uniform ones between them with ln u
 * > ln of the density relative to its largest value. */
static tn_tensor *refused(tn_tensor *candidates, const cut_normal *d, bool uniform)
{
    if (!uniform)
        return tn_logical_or(tn_lt_scalar(candidates, d->low), tn_gt_scalar(candidates, d->high));
    double top = (fmax(d->low, fmin(d->mean, d->high)) - d->mean) / d->deviation;
    tn_tensor *z = tn_div_scalar(tn_sub_scalar(candidates, d->mean), d->deviation);
    tn_tensor *density = tn_sub_scalar(tn_mul_scalar(tn_square(z), -0.5), -0.5 * top * top);
    tn_tensor *u = density ? tn_empty_like(candidates) : NULL;
    if (!u || tn_uniform_(u, 0, 1) != TN_OK) return NULL;
    return tn_gt(tn_log(u), density);
}

/* What is rejected is drawn again, a whole tensor at a time. */
static tn_status draw_accepted(tn_tensor *x, const cut_normal *d, bool uniform)
{
    tn_status status = draw_candidates(x, d, uniform);
    tn_tensor *pending = status == TN_OK ? refused(x, d, uniform) : NULL;
    double left = 0; /* whether any is; NaN: failed */
    while (status == TN_OK && (left = tn_item(tn_any(pending, NULL, 0, false))) == 1) {
        TNI_SCOPED;
        tn_tensor *more = tn_empty_like(x);
        status = more ? draw_candidates(more, d, uniform) : tni_pending();
        if (status == TN_OK) status = tn_copy_(x, tn_where(pending, more, x));
        if (status == TN_OK)
            status = tn_copy_(pending, tn_logical_and(pending, refused(more, d, uniform)));
    }
    return isnan(left) ? tni_pending() : status;
}

/* u uniform between the distribution's values at the two cuts: its quantile has the cut density. */
static tn_status draw_quantiles(tn_tensor *x, const cut_normal *d)
{
    size_t n = (size_t)tn_numel(x), nbytes = n * sizeof(double); /* a shape's bytes as f64 fit */
    TNI_ITEMS(double, v, n);
    if (!v) return TN_E_NOMEM;
    TNI_TRY(tn_uniform_(x, 2 * below(d, d->low) - 1, 2 * below(d, d->high) - 1));
    TNI_TRY(tn_copy_out(x, v, nbytes, TN_F64));
    for (size_t i = 0; i < n; i++) v[i] = quantile(d, (v[i] + 1) / 2);
    return tn_copy_in(x, v, nbytes, TN_F64);
}

/* The share of accepted candidates is about the width of the density's peak divided by that of the
 * cuts, in deviations. Below a thousandth PyTorch draws for very long, or for ever. */
static bool is_worth_refusing(const cut_normal *d)
{
    double low = (d->low - d->mean) / d->deviation, high = (d->high - d->mean) / d->deviation;
    double nearest = low > 0 ? low : high < 0 ? -high : 0;
    return 1 / fmax(nearest, 0.4) / (high - low) >= 1e-3;
}

static tn_status draw_truncated(tn_tensor *t, const double *p)
{
    const cut_normal d = { p[0], p[1], p[2], p[3] };
    tn_tensor *x = tn_empty_like(t);
    tn_status status = !x                                           ? tni_pending()
                       : below(&d, d.high) - below(&d, d.low) > 0.3 ? draw_accepted(x, &d, false)
                       : is_worth_refusing(&d)                      ? draw_accepted(x, &d, true)
                                                                    : draw_quantiles(x, &d);
    return status == TN_OK ? tn_copy_(t, x) : status;
}

tn_status tn_init_truncated_normal(tn_tensor *t, double mean, double deviation, double low,
                                   double high)
{
    TNI_HOLD_TRAPS;
    TNI_TRY(check("tn_init_truncated_normal", t));
    if (!isfinite(mean) || !(deviation > 0 && isfinite(deviation)) || !(low < high))
        return tni_error(TN_E_INVALID,
                         "tn_init_truncated_normal: mean %g, deviation %g, cuts %g and %g: want a "
                         "finite mean, a positive deviation and ascending cuts",
                         mean, deviation, low, high);
    return drawn(t, draw_truncated, (double[]){ mean, deviation, low, high });
}

enum { FAN_IN, FAN_OUT, FAN_BOTH };

/* t becomes uniform or normal, of mean 0 and deviation gain / sqrt(fan) or, of both fans, gain
 * sqrt(2 / (fan_in + fan_out)); of U(-b, b) the variance is b^2 / 3. */
static tn_status scaled(const char *function, tn_tensor *t, double gain, int fan, bool uniform)
{
    TNI_HOLD_TRAPS;
    int64_t in = 0, out = 0;
    TNI_TRY(check(function, t));
    TNI_TRY(tn_init_fans(t, &in, &out));
    if (!isfinite(gain))
        return tni_error(TN_E_INVALID, "%s: gain %g: want a finite number", function, gain);
    double deviation = fan == FAN_BOTH ? gain * sqrt(2.0 / (double)(in + out))
                                       : gain / sqrt((double)(fan == FAN_OUT ? out : in));
    double bound = sqrt(3.0) * deviation;
    if (tn_numel(t) == 0) return TN_OK;
    return uniform ? tn_init_uniform(t, -bound, bound) : tn_init_normal(t, 0, deviation);
}

#define XAVIER(tn_name, uniform)                                                                   \
    tn_status tn_name(tn_tensor *t, double gain)                                                   \
    {                                                                                              \
        return scaled(#tn_name, t, gain, FAN_BOTH, uniform);                                       \
    }
XAVIER(tn_init_xavier_uniform, true)
XAVIER(tn_init_xavier_normal, false)

static tn_status kaiming(const char *function, tn_tensor *t, double slope, bool fan_out,
                         tn_nonlinearity nl, bool uniform)
{
    if (tni_absent(t)) return tni_poison(function, "t");
    double gain = tn_init_gain(nl, slope);
    if (isnan(gain))
        return isnan(slope) ? tni_error(TN_E_INVALID, "%s: slope is NaN: want a number", function)
                            : tni_pending();
    return scaled(function, t, gain, fan_out ? FAN_OUT : FAN_IN, uniform);
}

#define KAIMING(tn_name, uniform)                                                                  \
    tn_status tn_name(tn_tensor *t, double slope, bool fan_out, tn_nonlinearity nl)                \
    {                                                                                              \
        return kaiming(#tn_name, t, slope, fan_out, nl, uniform);                                  \
    }
KAIMING(tn_init_kaiming_uniform, true)
KAIMING(tn_init_kaiming_normal, false)

/* ---- orthogonal ------------------------------------------------------------------------------ */

/* Makes the rows of v, dense f64 [n, size], orthonormal: each is what those before it leave of it.
 * So they are the columns of Q where v's transpose is Q R and R's diagonal is positive. Twice, as
 * rounding leaves something the first time: Giraud et al. (2005). By blocks, for products. */
static tn_status make_orthonormal(tn_tensor *v)
{
    enum { ROWS = 32 };
    int64_t n = v->shape.size[0], size = v->shape.size[1];
    tn_status status = TN_OK;
    for (int64_t from = 0; from < n && status == TN_OK; from += ROWS) {
        TNI_SCOPED;
        tn_tensor *done = tn_narrow(v, 0, 0, from);
        tn_tensor *rows = tn_narrow(v, 0, from, TNI_MIN(ROWS, n - from));
        double *row = rows ? tni_data(rows) : NULL;
        for (int pass = 0; pass < 2 && status == TN_OK; pass++) {
            tn_tensor *shares = tn_matmul(rows, tn_transpose(done, 0, 1));
            status = tn_sub_(rows, tn_matmul(shares, done));
            for (int64_t i = 0; i < TNI_MIN(ROWS, n - from) && status == TN_OK; i++) {
                double *x = row + i * size, sum = 0;
                for (const double *unit = row; unit < x; unit += size) {
                    double share = 0;
                    for (int64_t k = 0; k < size; k++) share += x[k] * unit[k];
                    for (int64_t k = 0; k < size; k++) x[k] -= share * unit[k];
                }
                for (int64_t k = 0; k < size; k++) sum += x[k] * x[k];
                for (int64_t k = 0; k < size; k++) x[k] *= sum > 0 ? 1 / sqrt(sum) : 0;
            }
        }
    }
    return status;
}

static tn_status draw_orthogonal(tn_tensor *t, const double *gain)
{
    int64_t rows = t->shape.size[0], columns = tn_numel(t) / rows;
    tn_tensor *x = tn_empty_as(TN_SHAPE(rows, columns), t->dtype, tn_cpu());
    TNI_TRY(x ? tn_normal_(x, 0, 1) : tni_pending());
    tn_tensor *q = tn_to_dtype(x, TN_F64);
    if (rows >= columns) q = tn_contiguous(tn_transpose(q, 0, 1));
    TNI_TRY(q ? make_orthonormal(q) : tni_pending());
    if (rows >= columns) q = tn_transpose(q, 0, 1);
    return tn_copy_(t, tn_reshape(tn_mul_scalar(q, *gain), t->shape));
}

tn_status tn_init_orthogonal(tn_tensor *t, double gain)
{
    TNI_HOLD_TRAPS;
    if (check(__func__, t) != TN_OK) return tni_pending();
    if (t->shape.rank < 2)
        return tni_error(TN_E_SHAPE, "%s: %s: want at least 2 axes", __func__, tni_text(t));
    if (!isfinite(gain))
        return tni_error(TN_E_INVALID, "%s: gain %g: want a finite number", __func__, gain);
    return drawn(t, draw_orthogonal, &gain);
}
