/*
 * A module that counts its calls and scales by a fixed gain. Register the two tensors so that
 *   - "gain", 3, is moved and saved with the module, and no optimizer touches it;
 *   - "calls", 0, is moved with the module, and in no file.
 * As they stand, they are plain fields.
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
    m->gain = gain, m->calls = calls; /* your code here, in place of this line */
    return tn_module_done(&m->base);
}
