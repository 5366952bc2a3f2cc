/*
 * sync_batchnorm.c - batch norm with the statistics of all ranks; Ioffe and Szegedy (2015),
 * algorithm 1, over the union of their batches.
 *
 * N values of a channel on all ranks: mean = sum x / N, then var = sum (x - mean)^2 / N, y = w (x -
 * mean) / sqrt(var + eps) + b. The two sums over ranks are an op whose derivative is such a sum
 * again: with L = L_1 + ... + L_n and s = s_1 + ... + s_n, dL/ds_r = dL_1/ds + ... + dL_n/ds. All
 * else is ordinary ops, so backward and second derivatives need no code of their own.
 *
 * mean is subtracted before squaring: sum x^2 / N - mean^2 loses its digits when mean is large.
 */
#include <tenon/custom.h>

#include "nn/layers/layer.h"
#include "ext/parallel/group.h"

/* ---- the sum over ranks, as an op ------------------------------------------------------------ */

static tn_tensor *sum_ranks(tn_tensor *x);

static tn_status sum_forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                             tn_tensor **out)
{
    (void)c, (void)n_in, (void)n_out;
    out[0] = tn_clone(in[0]);
    return out[0] ? tn_parallel_sum_(out[0]) : tni_pending();
}

static tn_status sum_backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                              tn_tensor **din)
{
    (void)c, (void)n_out, (void)n_in;
    din[0] = sum_ranks(dout[0]);
    return din[0] ? TN_OK : tni_pending();
}

static const tn_custom_op sum_op = { .name = "sum over ranks",
                                     .formula = "y = x_0 + ... + x_(n-1)",
                                     .forward = sum_forward,
                                     .backward = sum_backward,
                                     .gradient = "dx = dy_0 + ... + dy_(n-1)" };

static tn_tensor *sum_ranks(tn_tensor *x)
{
    return tn_apply(&sum_op, NULL, 1, &x);
}

/* ---- batch norm ------------------------------------------------------------------------------ */

/* The number of values of a channel on all ranks; 0 + message. */
static int64_t count_values(const tn_tensor *x)
{
    int64_t n = x->shape.size[1] ? tni_shape_numel(&x->shape) / x->shape.size[1] : 0;
    if (TNI_MPI("BatchNorm", sum, tni_ranks_group(), &n, 1, TN_I64) != TN_OK) return 0;
    if (n >= 2) return n;
    tni_error(TN_E_SHAPE,
              "BatchNorm: x %s has %" PRId64
              " value per channel, all ranks together: want at least 2 in training",
              tni_text(x), n);
    return 0;
}

/* sum of x over all axes but the channels', and over ranks: [1, C, 1, ...]. */
static tn_tensor *sum_of(tn_tensor *x)
{
    int axes[TN_MAX_RANK], n = 0;
    for (int i = 0; i < x->shape.rank; i++)
        if (i != 1) axes[n++] = i;
    return sum_ranks(tn_sum(x, axes, n, true));
}

/* A vector of C numbers beside x. */
static tn_tensor *beside(tn_tensor *vector, const tn_tensor *x)
{
    tn_shape shape = { .rank = x->shape.rank };
    for (int i = 0; i < shape.rank; i++) shape.size[i] = i == 1 ? x->shape.size[1] : 1;
    return tn_reshape(vector, shape);
}

/* running += momentum (now - running): for both, or for none if a value cannot be made. */
static tn_status move(tn_tensor *running[2], tn_tensor *now[2], double momentum)
{
    tn_tensor *to[2];
    if (tni_none(running[0])) return TN_OK; /* both are */
    for (int i = 0; i < 2; i++)
        to[i] = tn_to_dtype(tn_reshape(tn_detach(now[i]), running[i]->shape), running[i]->dtype);
    if (!to[0] || !to[1]) return tni_pending();
    TN_NO_GRAD
    for (int i = 0; i < 2; i++) TNI_TRY(tn_lerp_(running[i], to[i], momentum));
    return TN_OK;
}

static tn_tensor *over_ranks(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                             tn_tensor *running_mean, tn_tensor *running_var, double momentum,
                             double eps, int64_t *count)
{
    if (tn_parallel_size() == 1)
        return tn_batch_norm(x, weight, bias, running_mean, running_var, true, momentum, eps);
    tn_dtype dtype = x->dtype;
    int64_t n = *count = count_values(x);
    if (n == 0) return NULL;
    if (tn_dtype_size(dtype) < sizeof(float)) x = tn_to_dtype(x, TN_F32);
    if (!x) return NULL;
    tn_tensor *mean = tn_div_scalar(sum_of(x), (double)n), *centered = tn_sub(x, mean);
    tn_tensor *squares = centered ? sum_of(tn_square(centered)) : NULL;
    tn_tensor *scale = tn_rsqrt(tn_add_scalar(tn_div_scalar(squares, (double)n), eps));
    if (scale && !tni_none(weight)) scale = tn_mul(scale, beside(weight, x));
    tn_tensor *y = tn_mul(centered, scale);
    if (y && !tni_none(bias)) y = tn_add(y, beside(bias, x));
    if (y && y->dtype != dtype) y = tn_to_dtype(y, dtype);
    if (!y) return NULL;
    tn_tensor *var = tn_div_scalar(tn_detach(squares), (double)(n - 1)); /* unbiased */
    tn_tensor *running[2] = { running_mean, running_var }, *now[2] = { mean, var };
    return var && move(running, now, momentum) == TN_OK ? y : NULL;
}

/* ---- switching it on and off ----------------------------------------------------------------- */

typedef struct setting {
    bool on;
    int layers;
} setting;

static void switch_layer(tn_module *m, void *user)
{
    setting *to = user;
    tni_batchnorm_over *over = tni_batchnorm_over_of(m);
    if (over) *over = to->on ? over_ranks : NULL;
    to->layers += over != NULL;
}

tn_status tn_batch_norm_set_sync(tn_module *m, bool on)
{
    setting to = { on, 0 };
    tn_status status = tni_change_modules(__func__, m, switch_layer, &to);
    if (status != TN_OK || to.layers) return status;
    return tni_error(TN_E_INVALID, "%s: no BatchNorm1d, 2d or 3d in %s: want one", __func__,
                     m->type->name);
}

bool tn_batch_norm_sync(const tn_module *m)
{
    if (tni_module_check(__func__, m) != TN_OK) return false;
    const tni_batchnorm_over *over = tni_batchnorm_over_of(m);
    if (!over)
        tni_error(TN_E_INVALID, "%s: the module is a %s: want a BatchNorm1d, 2d or 3d", __func__,
                  m->type->name);
    return over && *over;
}
