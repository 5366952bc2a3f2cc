/*
 * A gated linear unit.
 */
#include <tenon/tenon.h>

typedef struct glu {
    tn_module base;
    tn_module *fc;
} glu;

static tn_tensor *glu_forward(tn_module *self, tn_tensor *x)
{
    glu *m = (glu *)self;
    tn_tensor *half[2];
    if (tn_chunk(tn_forward(m->fc, x), 2, -1, half, 2) != 2) return NULL;
    return tn_mul(half[0], tn_sigmoid(half[1]));
}

static const tn_module_type glu_type = { .name = "GLU",
                                         .size = sizeof(glu),
                                         .forward = glu_forward };

tn_module *glu_new(int64_t in, int64_t out)
{
    glu *m = tn_module_new(&glu_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "fc", &m->fc,
                       tn_linear_new(in, 2 * out, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base);
}
