/*
 * mish with its backward in ops.
 */
#include <tenon/tenon.h>

static tn_status mish_forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out)
{
    (void)n_in, (void)n_out;
    out[0] = tn_mul(in[0], tn_tanh(tn_softplus(in[0], 1, 20)));
    return tn_custom_save(c, in[0]);
}

static tn_status mish_backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                               tn_tensor **din)
{
    (void)n_out, (void)n_in;
    tn_tensor *x = tn_custom_saved(c, 0), *t = tn_tanh(tn_softplus(x, 1, 20));
    tn_tensor *bend = tn_mul(tn_rsub_scalar(tn_square(t), 1), tn_sigmoid(x));
    din[0] = tn_mul(dout[0], tn_add(t, tn_mul(x, bend)));
    return TN_OK;
}

const tn_custom_op mish = { .name = "mish",
                            .formula = "y = x tanh(softplus x)",
                            .forward = mish_forward,
                            .backward = mish_backward };
