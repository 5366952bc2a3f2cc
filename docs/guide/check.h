/*
 * check.h - how the checks of the exercises speak: "right", or "not yet: " and what is wrong.
 */
#ifndef GUIDE_CHECK_H
#define GUIDE_CHECK_H

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <tenon/tenon.h>

/* Unless it is right: says "not yet: ..." and ends the program with status 1. */
static inline void want(bool right, const char *format, ...)
{
    if (right) return;
    va_list args;
    va_start(args, format);
    printf("not yet: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    exit(1);
}

/* Whether a and b agree to five digits. */
static inline bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-5 * (1 + fabs(b));
}

/* A tensor of yours must have this shape and, in row-major order, these values. */
static inline void want_values(const char *what, tn_tensor *t, tn_shape shape, const double *values)
{
    want(t, "%s: an error: %s", what, tn_error());
    want(!tn_is_none(t), "%s: there is nothing yet (TN_NONE)", what);
    tn_shape is = tn_shape_get(t);
    bool same = is.rank == shape.rank;
    for (int i = 0; same && i < is.rank; i++) same = is.size[i] == shape.size[i];
    want(same, "%s: it has another shape: %d axes, %d elements", what, is.rank, (int)tn_numel(t));
    tn_tensor *row = tn_to_dtype(tn_reshape(t, TN_SHAPE(-1)), TN_F64);
    for (int i = 0; i < (int)tn_numel(row); i++) {
        double got = tn_at(row, TN_INDEX(i));
        want(close_to(got, values[i]), "%s: element %d is %g, want %g", what, i, got, values[i]);
    }
}

/* The same with the values of another tensor. */
static inline void want_same(const char *what, tn_tensor *t, tn_tensor *right)
{
    double values[256];
    TN_CHECK_PTR(right);
    want(tn_numel(right) <= 256, "%s: the check itself is too large", what);
    TN_CHECK(tn_copy_out(right, values, (size_t)tn_numel(right) * sizeof *values, TN_F64));
    want_values(what, t, tn_shape_get(right), values);
}

/* A call of yours must not have failed. */
static inline void want_ok(const char *what, tn_status status)
{
    want(status == TN_OK, "%s: %s", what, tn_error());
}

/* The gradient of sum(f(x) dy) by finite differences: x (f64) is moved element by element. */
static inline tn_tensor *moved_gradient(tn_tensor *(*f)(tn_tensor *x), tn_tensor *x, tn_tensor *dy)
{
    const double h = 1e-5;
    tn_tensor *grad = tn_zeros_like(x), *copy = tn_clone(x);
    TN_CHECK_PTR(copy);
    double *out = tn_data_mut(grad);
    for (int64_t i = 0; i < tn_numel(x); i++) {
        double sum[2];
        for (int up = 0; up < 2; up++) {
            double *at = (double *)tn_data_mut(copy) + i, was = *at;
            *at = up ? was + h : was - h;
            TN_NO_GRAD sum[up] = tn_item(tn_sum_all(tn_mul(f(copy), dy)));
            *at = was;
        }
        out[i] = (sum[1] - sum[0]) / (2 * h);
    }
    return grad;
}

static inline int right(void)
{
    printf("right\n");
    return 0;
}

#endif
