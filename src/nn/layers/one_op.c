/*
 * one_op.c - layers without state: each is the op of the same name, with the numbers that its
 * struct holds; and identity.
 */
#include "nn/layers/layer.h"

/* ---- of x alone ------------------------------------------------------------------------------ */

#define ACTIVATION(tn_name_new, OP, TYPE)                                                          \
    TNI_ONE_OP(OP, TYPE, tn_module, OP(x), "%s", "")                                               \
    tn_module *tn_name_new(void)                                                                   \
    {                                                                                              \
        return tn_module_done(tn_module_new(&OP##_type));                                          \
    }

ACTIVATION(tn_relu_new, tn_relu, "ReLU")
ACTIVATION(tn_gelu_new, tn_gelu, "GELU")
ACTIVATION(tn_tanh_new, tn_tanh, "Tanh")
ACTIVATION(tn_sigmoid_new, tn_sigmoid, "Sigmoid")
ACTIVATION(tn_silu_new, tn_silu, "SiLU")
ACTIVATION(tn_selu_new, tn_selu, "SELU")
ACTIVATION(tn_mish_new, tn_mish, "Mish")
ACTIVATION(tn_relu6_new, tn_relu6, "ReLU6")
ACTIVATION(tn_hardswish_new, tn_hardswish, "Hardswish")
ACTIVATION(tn_hardsigmoid_new, tn_hardsigmoid, "Hardsigmoid")
ACTIVATION(tn_logsigmoid_new, tn_logsigmoid, "LogSigmoid")
ACTIVATION(tn_softsign_new, tn_softsign, "Softsign")
ACTIVATION(tn_tanhshrink_new, tn_tanhshrink, "Tanhshrink")

TNI_ONE_OP(tn_gelu_tanh, "GELU", tn_module, tn_gelu_tanh(x), "tanh")
tn_module *tn_gelu_tanh_new(void)
{
    return tn_module_done(tn_module_new(&tn_gelu_tanh_type));
}

static tn_tensor *identity(tn_tensor *x)
{
    return x;
}
ACTIVATION(tn_identity_new, identity, "Identity")

/* ---- with one or two numbers ----------------------------------------------------------------- */

typedef struct numbers {
    tn_module base;
    int64_t a, b;
    double p, q;
} numbers;

static tn_module *numbers_new(const tn_module_type *type, int64_t a, int64_t b, double p, double q)
{
    numbers *m = tn_module_new(type);
    if (!m) return NULL;
    m->a = a;
    m->b = b;
    m->p = p;
    m->q = q;
    return tn_module_done(&m->base);
}

#define OF_AXIS(tn_name_new, OP, TYPE)                                                             \
    TNI_ONE_OP(OP, TYPE, numbers, OP(x, (int)m->a), "axis %" PRId64, m->a)                         \
    tn_module *tn_name_new(int axis)                                                               \
    {                                                                                              \
        return numbers_new(&OP##_type, axis, 0, 0.0, 0.0);                                         \
    }
OF_AXIS(tn_softmax_new, tn_softmax, "Softmax")
OF_AXIS(tn_log_softmax_new, tn_log_softmax, "LogSoftmax")
OF_AXIS(tn_glu_new, tn_glu, "GLU")

#define OF_NUMBER(tn_name_new, OP, TYPE, what)                                                     \
    TNI_ONE_OP(OP, TYPE, numbers, OP(x, m->p), #what " %g", m->p)                                  \
    tn_module *tn_name_new(double what)                                                            \
    {                                                                                              \
        return numbers_new(&OP##_type, 0, 0, what, 0.0);                                           \
    }
#define OF_NUMBERS(tn_name_new, OP, TYPE, first, second)                                           \
    TNI_ONE_OP(OP, TYPE, numbers, OP(x, m->p, m->q), #first " %g, " #second " %g", m->p, m->q)     \
    tn_module *tn_name_new(double first, double second)                                            \
    {                                                                                              \
        return numbers_new(&OP##_type, 0, 0, first, second);                                       \
    }
OF_NUMBER(tn_leaky_relu_new, tn_leaky_relu, "LeakyReLU", slope)
OF_NUMBER(tn_elu_new, tn_elu, "ELU", alpha)
OF_NUMBER(tn_celu_new, tn_celu, "CELU", alpha)
OF_NUMBER(tn_hardshrink_new, tn_hardshrink, "Hardshrink", lambda)
OF_NUMBER(tn_softshrink_new, tn_softshrink, "Softshrink", lambda)
OF_NUMBERS(tn_hardtanh_new, tn_hardtanh, "Hardtanh", low, high)
OF_NUMBERS(tn_softplus_new, tn_softplus, "Softplus", beta, threshold)

TNI_ONE_OP(tn_flatten, "Flatten", numbers, tn_flatten(x, (int)m->a, (int)m->b),
           "%" PRId64 ", %" PRId64, m->a, m->b)
tn_module *tn_flatten_new(int first, int last)
{
    return numbers_new(&tn_flatten_type, first, last, 0.0, 0.0);
}

static tn_module *adaptive_new(const char *function, const tn_module_type *type, int64_t out_h,
                               int64_t out_w)
{
    if (tni_at_least(function, "out_h", out_h, 1) != TN_OK ||
        tni_at_least(function, "out_w", out_w, 1) != TN_OK)
        return NULL;
    return numbers_new(type, out_h, out_w, 0.0, 0.0);
}

TNI_ONE_OP(tn_adaptive_avg_pool2d, "AdaptiveAvgPool2d", numbers,
           tn_adaptive_avg_pool2d(x, m->a, m->b), "%" PRId64 "x%" PRId64, m->a, m->b)
tn_module *tn_adaptive_avg_pool2d_new(int64_t out_h, int64_t out_w)
{
    return adaptive_new("tn_adaptive_avg_pool2d_new", &tn_adaptive_avg_pool2d_type, out_h, out_w);
}

#define PIXELS(tn_name_new, OP, TYPE)                                                              \
    TNI_ONE_OP(OP, TYPE, numbers, OP(x, m->a), "%" PRId64, m->a)                                   \
    tn_module *tn_name_new(int64_t r)                                                              \
    {                                                                                              \
        if (tni_at_least(#tn_name_new, "r", r, 1) != TN_OK) return NULL;                           \
        return numbers_new(&OP##_type, r, 0, 0.0, 0.0);                                            \
    }
PIXELS(tn_pixel_shuffle_new, tn_pixel_shuffle, "PixelShuffle")
PIXELS(tn_pixel_unshuffle_new, tn_pixel_unshuffle, "PixelUnshuffle")

TNI_ONE_OP(tn_adaptive_max_pool2d, "AdaptiveMaxPool2d", numbers,
           tn_adaptive_max_pool2d(x, m->a, m->b, NULL), "%" PRId64 "x%" PRId64, m->a, m->b)
tn_module *tn_adaptive_max_pool2d_new(int64_t out_h, int64_t out_w)
{
    return adaptive_new("tn_adaptive_max_pool2d_new", &tn_adaptive_max_pool2d_type, out_h, out_w);
}

TNI_ONE_OP(tn_adaptive_avg_pool1d, "AdaptiveAvgPool1d", numbers, tn_adaptive_avg_pool1d(x, m->a),
           "%" PRId64, m->a)
tn_module *tn_adaptive_avg_pool1d_new(int64_t out)
{
    if (tni_at_least("tn_adaptive_avg_pool1d_new", "out", out, 1) != TN_OK) return NULL;
    return numbers_new(&tn_adaptive_avg_pool1d_type, out, 0, 0.0, 0.0);
}

/* ---- of windows ------------------------------------------------------------------------------ */

typedef struct pool {
    tn_module base;
    tn_pool_spec spec; /* with the stride as used */
} pool;

static tn_module *pool_new(const char *function, const tn_module_type *type, int axes,
                           tn_pool_spec spec)
{
    if (tni_at_least(function, "divisor", spec.divisor, 0) != TN_OK) return NULL;
    for (int i = 0; i < axes; i++) {
        if (tni_at_least(function, i ? "kernel[1]" : "kernel[0]", spec.kernel[i], 1) != TN_OK ||
            tni_at_least(function, "stride", spec.stride[i], 0) != TN_OK ||
            tni_at_least(function, "padding", spec.padding[i], 0) != TN_OK ||
            tni_at_least(function, "dilation", spec.dilation[i], 0) != TN_OK)
            return NULL;
        spec.stride[i] = tni_or_int(spec.stride[i], spec.kernel[i]);
    }
    pool *m = tn_module_new(type);
    if (!m) return NULL;
    m->spec = spec;
    return tn_module_done(&m->base);
}

#define POOL(tn_name_new, OP, TYPE, axes, ...)                                                     \
    TNI_ONE_OP(OP, TYPE, pool, OP(x, m->spec), __VA_ARGS__, m->spec.ceil_mode ? ", ceil" : "")     \
    tn_module *tn_name_new(tn_pool_spec spec)                                                      \
    {                                                                                              \
        return pool_new(#tn_name_new, &OP##_type, axes, spec);                                     \
    }
#define LINE                                                                                       \
    "kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64 "%s", m->spec.kernel[0],            \
        m->spec.stride[0], m->spec.padding[0]
#define IMAGE                                                                                      \
    "kernel %" PRId64 "x%" PRId64 ", stride %" PRId64 "x%" PRId64 ", padding %" PRId64 "x%" PRId64 \
    "%s",                                                                                          \
        m->spec.kernel[0], m->spec.kernel[1], m->spec.stride[0], m->spec.stride[1],                \
        m->spec.padding[0], m->spec.padding[1]
POOL(tn_max_pool1d_new, tn_max_pool1d, "MaxPool1d", 1, LINE)
POOL(tn_max_pool2d_new, tn_max_pool2d, "MaxPool2d", 2, IMAGE)
POOL(tn_avg_pool1d_new, tn_avg_pool1d, "AvgPool1d", 1, LINE)
POOL(tn_avg_pool2d_new, tn_avg_pool2d, "AvgPool2d", 2, IMAGE)

typedef struct unfold {
    tn_module base;
    tn_unfold_spec spec;
} unfold;

TNI_ONE_OP(tn_unfold, "Unfold", unfold, tn_unfold(x, m->spec), "kernel %" PRId64 "x%" PRId64,
           m->spec.kernel[0], m->spec.kernel[1])
tn_module *tn_unfold_new(tn_unfold_spec spec)
{
    unfold *m = tn_module_new(&tn_unfold_type);
    if (!m) return NULL;
    m->spec = spec;
    return tn_module_done(&m->base);
}

/* ---- padding and resampling ------------------------------------------------------------------ */

typedef struct pad {
    tn_module base;
    int64_t pads[2 * TN_MAX_RANK];
    int n;
    tn_pad_mode mode;
    double value;
} pad;

TNI_ONE_OP(tn_pad, "Pad", pad, tn_pad(x, m->pads, m->n, m->mode, m->value), "%d axes, %s", m->n / 2,
           (const char *[]){ "constant", "reflect", "replicate", "circular" }[m->mode])
tn_module *tn_pad_new(const int64_t *pads, int n, tn_pad_mode mode, double value)
{
    if (!pads && n > 0) return tni_poisoned("tn_pad_new", "pads");
    if (n < 0 || n % 2 || n > 2 * TN_MAX_RANK || (int)mode < 0 || mode > TN_PAD_CIRCULAR)
        return tni_fail(
            TN_E_INVALID,
            "tn_pad_new: %d numbers, mode %d: want two for each of at most %d axes, and "
            "a tn_pad_mode",
            n, (int)mode, TN_MAX_RANK);
    pad *m = tn_module_new(&tn_pad_type);
    if (!m) return NULL;
    for (int i = 0; i < n; i++) m->pads[i] = pads[i];
    m->n = n;
    m->mode = mode;
    m->value = value;
    return tn_module_done(&m->base);
}

typedef struct upsample {
    tn_module base;
    tn_interpolate_spec spec;
} upsample;

TNI_ONE_OP(tn_interpolate, "Upsample", upsample, tn_interpolate(x, m->spec),
           "size %" PRId64 ", scale %g, mode %d", m->spec.size[0], m->spec.scale[0],
           (int)m->spec.mode)
tn_module *tn_upsample_new(tn_interpolate_spec spec)
{
    upsample *m = tn_module_new(&tn_interpolate_type);
    if (!m) return NULL;
    m->spec = spec;
    return tn_module_done(&m->base);
}
