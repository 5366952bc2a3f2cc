/*
 * A module with two buffers, one of which no file holds.
 */
#include <tenon/tenon.h>

typedef struct counter {
    tn_module base;
    tn_tensor *gain, *calls;
} counter;

static tn_tensor *counter_forward(tn_module *self, tn_tensor *x)
{
    counter *m = (counter *)self;
    TN_NO_GRAD if (tn_add_scalar_(m->calls, 1) != TN_OK) return NULL;
    return tn_mul(x, m->gain);
}

static const tn_module_type counter_type = { .name = "Counter",
                                             .size = sizeof(counter),
                                             .forward = counter_forward };

tn_module *counter_new(void)
{
    counter *m = tn_module_new(&counter_type);
    if (!m) return NULL;
    tn_tensor *gain = tn_full(TN_SCALAR, 3), *calls = tn_scalar(0);
    tn_register_buffer(&m->base, "gain", &m->gain, gain, TN_PERSISTENT);
    tn_register_buffer(&m->base, "calls", &m->calls, calls, TN_NON_PERSISTENT);
    return tn_module_done(&m->base);
}
