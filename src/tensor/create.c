/*
 * create.c - new tensors: empty, filled, series, or from the caller's arrays.
 *
 * Series (arange, linspace) are computed as PyTorch does on a processor with AVX2, in i64 for an
 * integer dtype, a block at a time in a small buffer; the backend's copy rounds each value once to
 * the requested dtype.
 */
#include "tensor/internal.h"
#include "tensor/math.h"

static _Thread_local tn_dtype default_dtype = TN_F32;

tn_status tn_set_default_dtype(tn_dtype dtype)
{
    if (dtype != TN_F32 && dtype != TN_F64)
        return tni_error(TN_E_DTYPE, "tn_set_default_dtype: got %s: want f32 or f64",
                         tn_dtype_name(dtype));
    default_dtype = dtype;
    return TN_OK;
}

tn_dtype tn_default_dtype(void)
{
    return default_dtype;
}

/* ---- one value everywhere -------------------------------------------------------------------- */

/* Whether an integer dtype can hold value once its fraction is cut off; floats and bool hold
 * anything. The bounds are written as doubles on purpose: 2^63 is the first one that does not fit
 * i64. */
bool tni_fits(double value, tn_dtype dtype)
{
    switch (dtype) {
    case TN_I64: return value >= -0x1p63 && value < 0x1p63;
    case TN_I32: return value > -0x1p31 - 1.0 && value < 0x1p31;
    case TN_U8: return value > -1.0 && value < 256.0;
    default: return true;
    }
}

tn_status tni_number_in(const char *function, double value, tn_dtype dtype, tni_number *number)
{
    if (!tni_fits(value, dtype))
        return tni_error(TN_E_INVALID, "%s: value %g: want one that %s can hold", function, value,
                         tn_dtype_name(dtype));
    if (dtype == TN_BOOL)
        *number = (tni_number){ .f = value != 0.0, .i = value != 0.0 };
    else if (tn_dtype_is_float(dtype))
        *number = (tni_number){ .f = value };
    else
        *number = (tni_number){ .f = trunc(value), .i = tn_int_of(value) };
    return TN_OK;
}

double tni_rounded(double x, tn_dtype dtype)
{
    float f = (float)x;
    switch (dtype) {
    case TN_F32: return (double)f;
    case TN_BF16: return (double)tn_from_bf16(tn_to_bf16(f));
    case TN_F16: return (double)tn_from_f16(tn_to_f16(f));
    default: return x;
    }
}

static tn_tensor *full(const char *function, tn_shape shape, double value, tn_dtype dtype,
                       tn_device device)
{
    TNI_HOLD_TRAPS;
    tni_number number;
    if (tni_number_in(function, value, dtype, &number) != TN_OK) return NULL;
    tn_tensor *t = tni_create(function, shape, dtype, device);
    if (!t) return NULL;
    tni_fill a = { .y = tni_array_of(t), .value = number };
    return tni_backend_of(t)->fill(&a) == TN_OK ? t : NULL;
}

tn_tensor *tn_empty(tn_shape shape)
{
    return tni_create("tn_empty", shape, default_dtype, tn_cpu());
}

tn_tensor *tn_full(tn_shape shape, double value)
{
    return full("tn_full", shape, value, default_dtype, tn_cpu());
}

tn_tensor *tn_scalar(double value)
{
    return full("tn_scalar", TN_SCALAR, value, default_dtype, tn_cpu());
}

tn_tensor *tn_full_as(tn_shape shape, double value, tn_dtype dtype, tn_device device)
{
    return full("tn_full_as", shape, value, dtype, device);
}

bool tni_present(const char *function, const char *argument, const tn_tensor *t)
{
    if (t && !tni_none(t)) return true;
    if (!t) return tni_poisoned(function, argument);
    return tni_false(
        tni_error(TN_E_INVALID, "%s: %s is TN_NONE: want a tensor", function, argument));
}

tn_tensor *tn_empty_like(tn_tensor *t)
{
    if (!tni_present("tn_empty_like", "t", t)) return NULL;
    return tni_create("tn_empty_like", t->shape, t->dtype, t->storage->device);
}

static tn_tensor *full_like(const char *function, tn_tensor *t, double value)
{
    if (!tni_present(function, "t", t)) return NULL;
    return full(function, t->shape, value, t->dtype, t->storage->device);
}

#define FULL_OF(tn_name, tn_name_like, value)                                                      \
    tn_tensor *tn_name(tn_shape shape)                                                             \
    {                                                                                              \
        return full(#tn_name, shape, value, default_dtype, tn_cpu());                              \
    }                                                                                              \
    tn_tensor *tn_name_like(tn_tensor *t)                                                          \
    {                                                                                              \
        return full_like(#tn_name_like, t, value);                                                 \
    }
FULL_OF(tn_zeros, tn_zeros_like, 0.0)
FULL_OF(tn_ones, tn_ones_like, 1.0)

tn_tensor *tn_full_like(tn_tensor *t, double value)
{
    return full_like("tn_full_like", t, value);
}

/* ---- series ---------------------------------------------------------------------------------- */

enum { BLOCK = 256 };

typedef struct series {
    double start, end, step;
    int64_t n;
    bool narrow; /* computed in f32 */
} series;

static double step_from(double base, int64_t i, double step, bool narrow)
{
    return narrow ? (double)fmaf((float)i, (float)step, (float)base) : fma((double)i, step, base);
}

typedef union block {
    double f[BLOCK];
    int64_t i[BLOCK];
} block;

/* The values from begin on, which is a multiple of BLOCK. */
typedef void (*values)(block *y, int64_t begin, int64_t n, const series *s, tn_dtype dtype);

/* Fills y, a dense vector. wide: the dtype of the block that values fills. */
static tn_status put_all(tn_tensor *y, tn_dtype wide, values values, const series *s)
{
    block block;
    tni_array to = tni_array_of(y), from = { &block, wide, 1, { 0 }, { 1 } };
    for (int64_t begin = 0; begin < s->n; begin += BLOCK) {
        to.size[0] = from.size[0] = TNI_MIN(s->n - begin, BLOCK);
        values(&block, begin, to.size[0], s, y->dtype);
        TNI_TRY(tni_backend_of(y)->copy(&(tni_copy){ .y = to, .x = from }));
        to.data = (char *)to.data + (size_t)to.size[0] * tn_dtype_size(y->dtype);
    }
    return TN_OK;
}

static void integer_values(block *y, int64_t begin, int64_t n, const series *s, tn_dtype dtype)
{
    (void)dtype;
    for (int64_t i = 0; i < n; i++) y->i[i] = (int64_t)s->start + (begin + i) * (int64_t)s->step;
}

/* PyTorch takes pairs of vectors of 32 bytes as long as there are any: their first element is
 * rounded to the dtype, and element i is i steps from there; in bf16 the steps are rounded before
 * they are added. */
static void arange_values(block *y, int64_t begin, int64_t n, const series *s, tn_dtype dtype)
{
    int64_t lanes = 32 / (int64_t)tn_dtype_size(dtype);
    int64_t paired = s->n - s->n % (2 * lanes) - begin;
    double base = 0.0;
    for (int64_t i = 0; i < n; i++) {
        int64_t lane = i < paired ? i & (lanes - 1) : 0;
        if (lane == 0) base = step_from(s->start, begin + i, s->step, s->narrow);
        if (lane == 0 && i < paired) base = tni_rounded(base, dtype);
        float steps = (float)lane * (float)s->step;
        y->f[i] = dtype == TN_BF16 ? (double)((float)base + steps)
                                   : step_from(base, lane, s->step, s->narrow);
    }
}

tn_tensor *tn_arange(double start, double end, double step, tn_dtype dtype)
{
    TNI_HOLD_TRAPS;
    bool integer = !tn_dtype_is_float(dtype);
    if (tn_dtype_size(dtype) == 0 || dtype == TN_BOOL)
        return tni_fail(TN_E_DTYPE, "tn_arange: dtype %s: want a number type",
                        tn_dtype_name(dtype));
    if (!isfinite(start) || !isfinite(end) || !isfinite(step) || step == 0.0)
        return tni_fail(
            TN_E_INVALID,
            "tn_arange: from %g to %g by %g: want finite bounds and a step that is not 0", start,
            end, step);
    if ((step > 0.0 && start > end) || (step < 0.0 && start < end))
        return tni_fail(TN_E_INVALID,
                        "tn_arange: from %g to %g by %g: want a step of the other sign", start, end,
                        step);
    if (integer && (start != trunc(start) || step != trunc(step)))
        return tni_fail(TN_E_DTYPE, "tn_arange: from %g by %g in %s: want whole numbers", start,
                        step, tn_dtype_name(dtype));
    double count = ceil((end - start) / step);
    if (!(count < 0x1p53))
        return tni_fail(TN_E_SHAPE, "tn_arange: %g values: want fewer than 2^53", count);
    int64_t n = (int64_t)count;
    /* the last value bounds the others: neither start + i * step nor the cast can overflow */
    if (n > 0 && (!tni_fits(start, dtype) || !tni_fits(start + (count - 1.0) * step, dtype)))
        return tni_fail(TN_E_INVALID, "tn_arange: from %g to %g: want values that %s can hold",
                        start, end, tn_dtype_name(dtype));
    tn_tensor *t = tni_create("tn_arange", TN_SHAPE(n), dtype, tn_cpu());
    if (!t) return NULL;
    series s = { start, end, n > 1 || !integer ? step : 0, n, tn_dtype_size(dtype) == 2 };
    tn_status status =
        integer ? put_all(t, TN_I64, integer_values, &s) : put_all(t, TN_F64, arange_values, &s);
    return status == TN_OK ? t : NULL;
}

/* Computed in the dtype from the nearer end, so both ends are exact and the series is symmetric. */
static void linspace_values(block *y, int64_t begin, int64_t n, const series *s, tn_dtype dtype)
{
    (void)dtype;
    for (int64_t i = begin; i < begin + n; i++)
        y->f[i - begin] = i < s->n / 2 ? step_from(s->start, i, s->step, s->narrow)
                                       : step_from(s->end, s->n - 1 - i, -s->step, s->narrow);
}

tn_tensor *tn_linspace(double start, double end, int64_t n)
{
    TNI_HOLD_TRAPS;
    if (n < 0) return tni_fail(TN_E_INVALID, "tn_linspace: %" PRId64 " values: want 0 or more", n);
    tn_tensor *t = tni_create("tn_linspace", TN_SHAPE(n), default_dtype, tn_cpu());
    if (!t) return NULL;
    if (n == 1) end = start;
    series s = { start, end, (end - start) / (double)TNI_MAX(n - 1, 1), n, false };
    float step = ((float)end - (float)start) / (float)TNI_MAX(n - 1, 1);
    s.narrow = default_dtype == TN_F32 && isfinite(step);
    if (s.narrow) s.step = (double)step;
    return put_all(t, TN_F64, linspace_values, &s) == TN_OK ? t : NULL;
}

tn_tensor *tn_eye(int64_t n)
{
    TNI_HOLD_TRAPS;
    if (n < 0) return tni_fail(TN_E_INVALID, "tn_eye: size %" PRId64 ": want 0 or more", n);
    tn_tensor *t = full("tn_eye", TN_SHAPE(n, n), 0.0, default_dtype, tn_cpu());
    if (!t) return NULL;
    /* the diagonal: n elements, n + 1 apart */
    tni_array y = {
        .data = tni_data(t), .dtype = t->dtype, .rank = 1, .size = { n }, .stride = { n + 1 }
    };
    return tni_backend_of(t)->fill(&(tni_fill){ .y = y, .value = { 1.0, 1 } }) == TN_OK ? t : NULL;
}

/* ---- from the caller's arrays ---------------------------------------------------------------- */

static tn_tensor *from_data(const char *function, const void *data, tn_shape shape, tn_dtype dtype)
{
    tn_tensor *t = tni_create(function, shape, dtype, tn_cpu());
    if (!t) return NULL;
    size_t n = (size_t)tni_shape_numel(&t->shape);
    if (n == 0) return t;
    if (!data)
        return tni_fail(TN_E_INVALID, "%s: data is NULL: want %s elements of %s", function,
                        tni_shape_text(&shape), tn_dtype_name(dtype));
    if (dtype == TN_BOOL) { /* kernels rely on 0 and 1 */
        const unsigned char *from = data;
        unsigned char *to = tni_data(t);
        for (size_t i = 0; i < n; i++) to[i] = from[i] != 0;
        return t;
    }
    memcpy(tni_data(t), data, n * tn_dtype_size(dtype)); /* no overflow: tni_new has checked it */
    return t;
}

tn_tensor *tn_from_data(const void *data, tn_shape shape, tn_dtype dtype)
{
    return from_data("tn_from_data", data, shape, dtype);
}

#define FROM_VALUES(tn_name, type, dtype)                                                          \
    tn_tensor *tn_name(const type *values, tn_shape shape)                                         \
    {                                                                                              \
        return from_data(#tn_name, values, shape, dtype);                                          \
    }
FROM_VALUES(tn_from_floats, float, TN_F32)
FROM_VALUES(tn_from_ints, int64_t, TN_I64)
