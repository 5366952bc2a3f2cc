/* activations.c - layers without state: one op each, and identity and flatten. */
#include "nn/layers/layer.h"

/* A layer that is exactly one op of one tensor. */
#define ACTIVATION(tn_name_new, OP, TYPE)                                                          \
    static tn_tensor *OP##_forward(tn_module *self, tn_tensor *x)                                  \
    {                                                                                              \
        (void)self;                                                                                \
        return OP(x);                                                                              \
    }                                                                                              \
    static const tn_module_type OP##_type = { .name = TYPE,                                        \
                                              .size = sizeof(tn_module),                           \
                                              .forward = OP##_forward };                           \
    tn_module *tn_name_new(void)                                                                   \
    {                                                                                              \
        return tn_module_done(tn_module_new(&OP##_type));                                          \
    }

ACTIVATION(tn_relu_new, tn_relu, "ReLU")
ACTIVATION(tn_gelu_new, tn_gelu, "GELU")
ACTIVATION(tn_tanh_new, tn_tanh, "Tanh")
ACTIVATION(tn_sigmoid_new, tn_sigmoid, "Sigmoid")
ACTIVATION(tn_silu_new, tn_silu, "SiLU")

static tn_tensor *identity(tn_tensor *x)
{
    return x;
}
ACTIVATION(tn_identity_new, identity, "Identity")

typedef struct softmax {
    tn_module base;
    int axis;
} softmax;

static tn_tensor *softmax_forward(tn_module *self, tn_tensor *x)
{
    return tn_softmax(x, ((softmax *)self)->axis);
}

static void softmax_describe(const tn_module *self, char *text, size_t size)
{
    snprintf(text, size, "axis %d", ((const softmax *)self)->axis);
}

static const tn_module_type softmax_type = {
    .name = "Softmax",
    .size = sizeof(softmax),
    .forward = softmax_forward,
    .describe = softmax_describe,
};

tn_module *tn_softmax_new(int axis)
{
    softmax *m = tn_module_new(&softmax_type);
    if (!m) return NULL;
    m->axis = axis;
    return tn_module_done(&m->base);
}

typedef struct flatten {
    tn_module base;
    int first, last;
} flatten;

static tn_tensor *flatten_forward(tn_module *self, tn_tensor *x)
{
    flatten *m = (flatten *)self;
    return tn_flatten(x, m->first, m->last);
}

static void flatten_describe(const tn_module *self, char *text, size_t size)
{
    const flatten *m = (const flatten *)self;
    snprintf(text, size, "%d, %d", m->first, m->last);
}

static const tn_module_type flatten_type = {
    .name = "Flatten",
    .size = sizeof(flatten),
    .forward = flatten_forward,
    .describe = flatten_describe,
};

tn_module *tn_flatten_new(int first, int last)
{
    flatten *m = tn_module_new(&flatten_type);
    if (!m) return NULL;
    m->first = first;
    m->last = last;
    return tn_module_done(&m->base);
}
