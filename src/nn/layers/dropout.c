/* dropout.c - in training, zero with probability p and scale the rest by 1/(1-p); Srivastava (2014)
 */
#include "nn/layers/layer.h"

typedef struct dropout {
    tn_module base;
    double p;
} dropout;

static tn_tensor *dropout_forward(tn_module *self, tn_tensor *x)
{
    dropout *m = (dropout *)self;
    return tn_dropout(x, m->p, tn_training(self));
}

static void dropout_describe(const tn_module *self, char *text, size_t size)
{
    const dropout *m = (const dropout *)self;
    snprintf(text, size, "%g", m->p);
}

static const tn_module_type dropout_type = {
    .name = "Dropout",
    .size = sizeof(dropout),
    .forward = dropout_forward,
    .describe = dropout_describe,
};

tn_module *tn_dropout_new(double p)
{
    if (tni_probability("tn_dropout_new", p) != TN_OK) return NULL;
    dropout *m = tn_module_new(&dropout_type);
    if (!m) return NULL;
    m->p = p;
    return tn_module_done(&m->base);
}
