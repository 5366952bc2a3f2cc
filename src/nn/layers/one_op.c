/*
 * one_op.c - layers without state: each is the op of the same name, with the numbers that its
 * struct holds; and identity.
 */
#include "nn/layers/layer.h"

typedef struct one {
    tn_module base;
    int64_t a, b;
    double p, q;
    tn_pool_spec pool; /* with the stride as used */
    tn_interpolate_spec sizes;
    int64_t pads[2 * TN_MAX_RANK];
    int n;
    tn_pad_mode mode;
} one;

/* A new layer of that type with the numbers of *of. */
static tn_module *one_new(const tn_module_type *type, const one *of)
{
    one *m = tn_module_new(type);
    if (!m) return NULL;
    tn_module base = m->base;
    *m = *of;
    m->base = base;
    return tn_module_done(&m->base);
}

/* The layer that is CALL, of x and *m. Its constructor takes PARAMETERS, and *m their VALUES if
 * CHECK is true; the rest is as in TNI_ONE_OP. */
#define BRACED(...)                                                                                \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define LAYER(tn_name_new, PARAMETERS, TYPE, CHECK, VALUES, CALL, ...)                             \
    TNI_ONE_OP(tn_name_new, TYPE, one, CALL, __VA_ARGS__)                                          \
    tn_module *tn_name_new PARAMETERS                                                              \
    {                                                                                              \
        return CHECK ? one_new(&tn_name_new##_type, &(one)BRACED VALUES) : NULL;                   \
    }
#define AT_LEAST_1(tn_name_new, what) (tni_at_least(#tn_name_new, #what, what, 1) == TN_OK)

/* ---- of x alone ------------------------------------------------------------------------------ */

#define OF_X(tn_name_new, OP, TYPE, text)                                                          \
    LAYER(tn_name_new, (void), TYPE, true, (.a = 0), OP(x), "%s", text)
#define identity(x) (x)
OF_X(tn_relu_new, tn_relu, "ReLU", "")
OF_X(tn_gelu_new, tn_gelu, "GELU", "")
OF_X(tn_gelu_tanh_new, tn_gelu_tanh, "GELU", "tanh")
OF_X(tn_tanh_new, tn_tanh, "Tanh", "")
OF_X(tn_sigmoid_new, tn_sigmoid, "Sigmoid", "")
OF_X(tn_silu_new, tn_silu, "SiLU", "")
OF_X(tn_selu_new, tn_selu, "SELU", "")
OF_X(tn_mish_new, tn_mish, "Mish", "")
OF_X(tn_relu6_new, tn_relu6, "ReLU6", "")
OF_X(tn_hardswish_new, tn_hardswish, "Hardswish", "")
OF_X(tn_hardsigmoid_new, tn_hardsigmoid, "Hardsigmoid", "")
OF_X(tn_logsigmoid_new, tn_logsigmoid, "LogSigmoid", "")
OF_X(tn_softsign_new, tn_softsign, "Softsign", "")
OF_X(tn_tanhshrink_new, tn_tanhshrink, "Tanhshrink", "")
OF_X(tn_identity_new, identity, "Identity", "")

/* ---- with one or two numbers ----------------------------------------------------------------- */

#define OF_AXIS(tn_name_new, OP, TYPE)                                                             \
    LAYER(tn_name_new, (int axis), TYPE, true, (.n = axis), OP(x, m->n), "axis %d", m->n)
OF_AXIS(tn_softmax_new, tn_softmax, "Softmax")
OF_AXIS(tn_log_softmax_new, tn_log_softmax, "LogSoftmax")
OF_AXIS(tn_glu_new, tn_glu, "GLU")

#define OF_NUMBER(tn_name_new, OP, TYPE, what)                                                     \
    LAYER(tn_name_new, (double what), TYPE, true, (.p = what), OP(x, m->p), #what " %g", m->p)
#define OF_NUMBERS(tn_name_new, OP, TYPE, first, second)                                           \
    LAYER(tn_name_new, (double first, double second), TYPE, true, (.p = first, .q = second),       \
          OP(x, m->p, m->q), #first " %g, " #second " %g", m->p, m->q)
OF_NUMBER(tn_leaky_relu_new, tn_leaky_relu, "LeakyReLU", slope)
OF_NUMBER(tn_elu_new, tn_elu, "ELU", alpha)
OF_NUMBER(tn_celu_new, tn_celu, "CELU", alpha)
OF_NUMBER(tn_hardshrink_new, tn_hardshrink, "Hardshrink", lambda)
OF_NUMBER(tn_softshrink_new, tn_softshrink, "Softshrink", lambda)
OF_NUMBERS(tn_hardtanh_new, tn_hardtanh, "Hardtanh", low, high)
OF_NUMBERS(tn_softplus_new, tn_softplus, "Softplus", beta, threshold)

LAYER(tn_flatten_new, (int first, int last), "Flatten", true, (.a = first, .b = last),
      tn_flatten(x, (int)m->a, (int)m->b), "%" PRId64 ", %" PRId64, m->a, m->b)

#define OF_SIZE(tn_name_new, OP, TYPE, what)                                                       \
    LAYER(tn_name_new, (int64_t what), TYPE, AT_LEAST_1(tn_name_new, what), (.a = what),           \
          OP(x, m->a), "%" PRId64, m->a)
OF_SIZE(tn_pixel_shuffle_new, tn_pixel_shuffle, "PixelShuffle", r)
OF_SIZE(tn_pixel_unshuffle_new, tn_pixel_unshuffle, "PixelUnshuffle", r)
OF_SIZE(tn_adaptive_avg_pool1d_new, tn_adaptive_avg_pool1d, "AdaptiveAvgPool1d", out)

#define OF_SIZES(tn_name_new, CALL, TYPE)                                                          \
    LAYER(tn_name_new, (int64_t out_h, int64_t out_w), TYPE,                                       \
          AT_LEAST_1(tn_name_new, out_h) && AT_LEAST_1(tn_name_new, out_w),                        \
          (.a = out_h, .b = out_w), CALL, "%" PRId64 "x%" PRId64, m->a, m->b)
OF_SIZES(tn_adaptive_avg_pool2d_new, tn_adaptive_avg_pool2d(x, m->a, m->b), "AdaptiveAvgPool2d")
OF_SIZES(tn_adaptive_max_pool2d_new, tn_adaptive_max_pool2d(x, m->a, m->b, NULL),
         "AdaptiveMaxPool2d")

/* ---- of windows ------------------------------------------------------------------------------ */

/* Also sets the strides that are to be as the kernel. */
static bool pool_fits(const char *function, int axes, tn_pool_spec *spec)
{
    if (tni_at_least(function, "divisor", spec->divisor, 0) != TN_OK) return false;
    for (int i = 0; i < axes; i++) {
        if (tni_at_least(function, i ? "kernel[1]" : "kernel[0]", spec->kernel[i], 1) != TN_OK ||
            tni_at_least(function, "stride", spec->stride[i], 0) != TN_OK ||
            tni_at_least(function, "padding", spec->padding[i], 0) != TN_OK ||
            tni_at_least(function, "dilation", spec->dilation[i], 0) != TN_OK)
            return false;
        spec->stride[i] = tni_or_int(spec->stride[i], spec->kernel[i]);
    }
    return true;
}

#define POOL(tn_name_new, OP, TYPE, axes, ...)                                                     \
    LAYER(tn_name_new, (tn_pool_spec spec), TYPE, pool_fits(#tn_name_new, axes, &spec),            \
          (.pool = spec), OP(x, m->pool), __VA_ARGS__, m->pool.ceil_mode ? ", ceil" : "")
#define LINE                                                                                       \
    "kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64 "%s", m->pool.kernel[0],            \
        m->pool.stride[0], m->pool.padding[0]
#define IMAGE                                                                                      \
    "kernel %" PRId64 "x%" PRId64 ", stride %" PRId64 "x%" PRId64 ", padding %" PRId64 "x%" PRId64 \
    "%s",                                                                                          \
        m->pool.kernel[0], m->pool.kernel[1], m->pool.stride[0], m->pool.stride[1],                \
        m->pool.padding[0], m->pool.padding[1]
POOL(tn_max_pool1d_new, tn_max_pool1d, "MaxPool1d", 1, LINE)
POOL(tn_max_pool2d_new, tn_max_pool2d, "MaxPool2d", 2, IMAGE)
POOL(tn_avg_pool1d_new, tn_avg_pool1d, "AvgPool1d", 1, LINE)
POOL(tn_avg_pool2d_new, tn_avg_pool2d, "AvgPool2d", 2, IMAGE)

/* ---- padding and resampling ------------------------------------------------------------------ */

TNI_ONE_OP(tn_pad, "Pad", one, tn_pad(x, m->pads, m->n, m->mode, m->p), "%d axes, %s", m->n / 2,
           (const char *[]){ "constant", "reflect", "replicate", "circular" }[m->mode])
tn_module *tn_pad_new(const int64_t *pads, int n, tn_pad_mode mode, double value)
{
    one of = { .n = n, .mode = mode, .p = value };
    if (!pads && n > 0) return tni_poisoned("tn_pad_new", "pads");
    if (n < 0 || n % 2 || n > 2 * TN_MAX_RANK || (int)mode < 0 || mode > TN_PAD_CIRCULAR)
        return tni_fail(TN_E_INVALID,
                        "tn_pad_new: %d numbers, mode %d: want two for each of at most %d axes, "
                        "and a tn_pad_mode",
                        n, (int)mode, TN_MAX_RANK);
    for (int i = 0; i < n; i++) of.pads[i] = pads[i];
    return one_new(&tn_pad_type, &of);
}

LAYER(tn_upsample_new, (tn_interpolate_spec spec), "Upsample", true, (.sizes = spec),
      tn_interpolate(x, m->sizes), "size %" PRId64 ", scale %g, mode %d", m->sizes.size[0],
      m->sizes.scale[0], (int)m->sizes.mode)
