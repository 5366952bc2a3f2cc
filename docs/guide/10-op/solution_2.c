/*
 * differences with its backward in plain C.
 */
#include <tenon/tenon.h>

static tn_status forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out)
{
    (void)c, (void)n_in, (void)n_out;
    int64_t n = tn_size(in[0], 0);
    tn_tensor *x = tn_contiguous(in[0]), *y = tn_zeros_like(tn_narrow(x, 0, 0, n - 1));
    const double *from = tn_data(x);
    double *to = tn_data_mut(y);
    if (!from || !to) return tn_error_status();
    for (int64_t i = 0; i < n - 1; i++) to[i] = from[i + 1] - from[i];
    out[0] = y;
    return TN_OK;
}

static tn_status backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                          tn_tensor **din)
{
    (void)c, (void)n_out, (void)n_in;
    int64_t n = tn_size(dout[0], 0) + 1; /* of x */
    tn_tensor *dx = tn_full_as(TN_SHAPE(n), 0, TN_F64, tn_cpu());
    const double *from = tn_data(tn_contiguous(dout[0]));
    double *to = tn_data_mut(dx);
    if (!from || !to) return tn_error_status();
    for (int64_t i = 0; i < n - 1; i++) to[i + 1] += from[i], to[i] -= from[i];
    din[0] = dx;
    return TN_OK;
}

const tn_custom_op differences = { .name = "differences",
                                   .formula = "y_i = x_i+1 - x_i",
                                   .forward = forward,
                                   .backward = backward,
                                   .once_differentiable = true };
