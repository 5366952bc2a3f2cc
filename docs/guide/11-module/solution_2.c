/*
 * A module of two inputs and two outputs.
 */
#include <tenon/tenon.h>

typedef struct mixer {
    tn_module base;
    tn_tensor *angle;
} mixer;

static tn_status mixer_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                               tn_tensor **out)
{
    mixer *m = (mixer *)self;
    if (n_in != 2 || n_out != 2) {
        tn_fail(TN_E_INVALID, "Mixer: %d inputs, %d outputs: want 2 of each", n_in, n_out);
        return TN_E_INVALID;
    }
    tn_tensor *c = tn_cos(m->angle), *s = tn_sin(m->angle);
    out[0] = tn_add(tn_mul(c, in[0]), tn_mul(s, in[1]));
    out[1] = tn_sub(tn_mul(c, in[1]), tn_mul(s, in[0]));
    return TN_OK;
}

static const tn_module_type mixer_type = { .name = "Mixer",
                                           .size = sizeof(mixer),
                                           .forward_n = mixer_forward };

tn_module *mixer_new(double angle)
{
    mixer *m = tn_module_new(&mixer_type);
    if (!m) return NULL;
    tn_register_parameter(&m->base, "angle", &m->angle, tn_full(TN_SCALAR, angle));
    return tn_module_done(&m->base);
}
