/*
 * A module that remembers its last output in a buffer.
 */
#include <tenon/tenon.h>

typedef struct memory {
    tn_module base;
    tn_tensor *last;
} memory;

static tn_tensor *memory_forward(tn_module *self, tn_tensor *x)
{
    memory *m = (memory *)self;
    tn_tensor *y = tn_add(tn_mul_scalar(x, 0.5), m->last);
    if (tn_assign(&m->last, tn_detach(y)) != TN_OK) return NULL;
    return y;
}

static const tn_module_type memory_type = { .name = "Memory",
                                            .size = sizeof(memory),
                                            .forward = memory_forward };

tn_module *memory_new(void)
{
    memory *m = tn_module_new(&memory_type);
    if (!m) return NULL;
    tn_register_buffer(&m->base, "last", &m->last, tn_zeros(TN_SHAPE(1)), TN_NON_PERSISTENT);
    return tn_module_done(&m->base);
}
