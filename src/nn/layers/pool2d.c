/* pool2d.c - the maximum or the mean of each window of an image */
#include "nn/layers/layer.h"

typedef struct pool2d {
    tn_module base;
    tn_pool2d_spec spec;
} pool2d;

static tn_tensor *max_pool2d_forward(tn_module *self, tn_tensor *x)
{
    return tn_max_pool2d(x, ((pool2d *)self)->spec);
}

static tn_tensor *avg_pool2d_forward(tn_module *self, tn_tensor *x)
{
    return tn_avg_pool2d(x, ((pool2d *)self)->spec);
}

static void pool2d_describe(const tn_module *self, char *text, size_t size)
{
    const tn_pool2d_spec *s = &((const pool2d *)self)->spec;
    snprintf(text, size,
             "kernel %" PRId64 "x%" PRId64 ", stride %" PRId64 "x%" PRId64 ", padding %" PRId64
             "x%" PRId64 "%s",
             s->kernel[0], s->kernel[1], tni_or_int(s->stride[0], s->kernel[0]),
             tni_or_int(s->stride[1], s->kernel[1]), s->padding[0], s->padding[1],
             s->ceil_mode ? ", ceil" : "");
}

static const tn_module_type max_pool2d_type = {
    .name = "MaxPool2d",
    .size = sizeof(pool2d),
    .forward = max_pool2d_forward,
    .describe = pool2d_describe,
};

static const tn_module_type avg_pool2d_type = {
    .name = "AvgPool2d",
    .size = sizeof(pool2d),
    .forward = avg_pool2d_forward,
    .describe = pool2d_describe,
};

static tn_module *pool2d_new(const char *function, const tn_module_type *type, tn_pool2d_spec spec)
{
    if (tni_at_least(function, "kernel[0]", spec.kernel[0], 1) != TN_OK ||
        tni_at_least(function, "kernel[1]", spec.kernel[1], 1) != TN_OK)
        return NULL;
    for (int i = 0; i < 2; i++)
        if (tni_at_least(function, "stride", spec.stride[i], 0) != TN_OK ||
            tni_at_least(function, "padding", spec.padding[i], 0) != TN_OK ||
            tni_at_least(function, "dilation", spec.dilation[i], 0) != TN_OK)
            return NULL;
    pool2d *m = tn_module_new(type);
    if (!m) return NULL;
    m->spec = spec;
    return tn_module_done(&m->base);
}

tn_module *tn_max_pool2d_new(tn_pool2d_spec spec)
{
    return pool2d_new("tn_max_pool2d_new", &max_pool2d_type, spec);
}

tn_module *tn_avg_pool2d_new(tn_pool2d_spec spec)
{
    return pool2d_new("tn_avg_pool2d_new", &avg_pool2d_type, spec);
}

typedef struct adaptive_avg_pool2d {
    tn_module base;
    int64_t out_h, out_w;
} adaptive_avg_pool2d;

static tn_tensor *adaptive_avg_pool2d_forward(tn_module *self, tn_tensor *x)
{
    adaptive_avg_pool2d *m = (adaptive_avg_pool2d *)self;
    return tn_adaptive_avg_pool2d(x, m->out_h, m->out_w);
}

static void adaptive_avg_pool2d_describe(const tn_module *self, char *text, size_t size)
{
    const adaptive_avg_pool2d *m = (const adaptive_avg_pool2d *)self;
    snprintf(text, size, "%" PRId64 "x%" PRId64, m->out_h, m->out_w);
}

static const tn_module_type adaptive_avg_pool2d_type = {
    .name = "AdaptiveAvgPool2d",
    .size = sizeof(adaptive_avg_pool2d),
    .forward = adaptive_avg_pool2d_forward,
    .describe = adaptive_avg_pool2d_describe,
};

tn_module *tn_adaptive_avg_pool2d_new(int64_t out_h, int64_t out_w)
{
    if (tni_at_least("tn_adaptive_avg_pool2d_new", "out_h", out_h, 1) != TN_OK ||
        tni_at_least("tn_adaptive_avg_pool2d_new", "out_w", out_w, 1) != TN_OK)
        return NULL;
    adaptive_avg_pool2d *m = tn_module_new(&adaptive_avg_pool2d_type);
    if (!m) return NULL;
    m->out_h = out_h;
    m->out_w = out_w;
    return tn_module_done(&m->base);
}
