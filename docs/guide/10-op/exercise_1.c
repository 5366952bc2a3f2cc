/*
 * mish: y = x tanh(softplus(x)), softplus(x) = log(1 + e^x). Its derivative, with t = tanh of the
 * softplus: dy/dx = t + x (1 - t^2) sigmoid(x). Write the backward with ops, so that it can be
 * differentiated again.
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
    (void)n_out, (void)n_in, (void)c;
    din[0] = dout[0]; /* your code here */
    return TN_OK;
}

const tn_custom_op mish = { .name = "mish",
                            .formula = "y = x tanh(softplus x)",
                            .forward = mish_forward,
                            .backward = mish_backward };
