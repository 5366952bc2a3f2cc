/*
 * A patient that trains badly and does not survive saving. tn_explain_training names two mistakes
 * in this module: mend both.
 */
#include <tenon/tenon.h>

typedef struct patient {
    tn_module base;
    tn_module *fc1, *fc2;
    tn_tensor *centre;
} patient;

static tn_tensor *patient_forward(tn_module *self, tn_tensor *x)
{
    patient *m = (patient *)self;
    tn_tensor *h = tn_tanh(tn_forward(m->fc1, tn_sub(x, m->centre)));
    return tn_forward(m->fc2, tn_detach(h)); /* your code here ... */
}

static const tn_module_type patient_type = { .name = "Patient",
                                             .size = sizeof(patient),
                                             .forward = patient_forward };

tn_module *patient_new(tn_tensor *centre)
{
    patient *m = tn_module_new(&patient_type);
    if (!m) return NULL;
    tn_register_module(&m->base, "fc1", &m->fc1, tn_linear_new(2, 8, (tn_linear_options){ 0 }));
    tn_register_module(&m->base, "fc2", &m->fc2, tn_linear_new(8, 1, (tn_linear_options){ 0 }));
    m->centre = centre; /* ... and here */
    return tn_module_done(&m->base);
}
