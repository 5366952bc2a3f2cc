/*
 * Chapter 7: batch norm, from its formula to its buffers.
 */
#include <tenon/tenon.h>

/* y = w (x - mean) / sqrt(var + eps) + b, mean and variance of each column of x [N, C] */
static tn_tensor *by_formula(tn_tensor *x, tn_tensor *w, tn_tensor *b, double eps)
{
    tn_tensor *mean = tn_mean(x, TN_AXES(0), true);
    tn_tensor *var = tn_var(x, TN_AXES(0), 0, true); /* divided by N */
    tn_tensor *xh = tn_mul(tn_sub(x, mean), tn_rsqrt(tn_add_scalar(var, eps)));
    return tn_add(tn_mul(w, xh), b);
}

/* In training, forward moves the buffers; the optimizer never sees them. */
static tn_status move(tn_tensor *running_mean, tn_tensor *running_var, tn_tensor *x)
{
    tn_status status = TN_OK;
    TN_NO_GRAD
    {
        tn_tensor *mean = tn_mean(x, TN_AXES(0), false);
        tn_tensor *var = tn_var(x, TN_AXES(0), 1, false); /* divided by N - 1 */
        status = tn_lerp_(running_mean, mean, 0.1);       /* r += 0.1 (mean - r) */
        if (status == TN_OK) status = tn_lerp_(running_var, var, 0.1);
    }
    return status;
}

/* In evaluation nothing is measured: one factor and one summand for each column. */
static tn_tensor *evaluate(tn_module *m, tn_tensor *x)
{
    tn_tensor *rsqrt = tn_rsqrt(tn_add_scalar(tn_get_buffer(m, "running_var"), 1e-5));
    tn_tensor *scale = tn_mul(tn_get_parameter(m, "weight"), rsqrt);
    tn_tensor *back = tn_mul(tn_get_buffer(m, "running_mean"), scale);
    return tn_add(tn_mul(x, scale), tn_sub(tn_get_parameter(m, "bias"), back));
}

static void show(tn_module *m)
{
    tn_list *state = tn_state_dict(m, "");
    for (int i = 0; i < state->n; i++) {
        printf("%-20s %-9s ", state->entry[i].name,
               state->entry[i].kind == TN_BUFFER ? "buffer" : "parameter");
        tn_print(state->entry[i].tensor);
    }
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_from_floats((float[]){ 1, 10, 2, 10, 3, 10, 8, 14 }, TN_SHAPE(4, 2));
    tn_module *m = tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 });
    TN_CHECK_PTR(m);
    tn_tensor *mean = tn_zeros(TN_SHAPE(2)), *var = tn_ones(TN_SHAPE(2));

    show(m);
    tn_tensor *w = tn_get_parameter(m, "weight"), *b = tn_get_parameter(m, "bias");
    tn_tensor *y = tn_forward(m, x), *mine = by_formula(x, w, b, 1e-5);
    TN_CHECK(move(mean, var, x));
    tn_print(y);
    printf("formula and layer agree: %d\n", tn_max_abs_diff(y, mine) < 1e-6);
    show(m);
    printf("buffers agree: %d\n", tn_max_abs_diff(mean, tn_get_buffer(m, "running_mean")) < 1e-6 &&
                                      tn_max_abs_diff(var, tn_get_buffer(m, "running_var")) < 1e-6);

    TN_CHECK(tn_eval(m));
    tn_tensor *z = tn_forward(m, x);
    tn_print(z);
    printf("and in evaluation: %d\n", tn_max_abs_diff(z, evaluate(m, x)) < 1e-5);

    TN_CHECK(tn_train(m, true));
    if (!tn_forward(m, tn_narrow(x, 0, 0, 1))) printf("%s\n", tn_error());
    tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
