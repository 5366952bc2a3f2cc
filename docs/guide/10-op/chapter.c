/*
 * Chapter 10: ops of your own. One written with ops, one in plain C, one with two outputs and
 * numbers that belong to each application.
 */
#include <math.h>
#include <tenon/tenon.h>

/* ---- softsign, written with ops: y = x / (1 + |x|), dy/dx = 1 / (1 + |x|)^2 ------------------ */

static tn_status softsign_forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                                  tn_tensor **out)
{
    (void)n_in, (void)n_out;
    out[0] = tn_div(in[0], tn_add_scalar(tn_abs(in[0]), 1));
    return tn_custom_save(c, in[0]);
}

static tn_status softsign_backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                                   tn_tensor **din)
{
    (void)n_out, (void)n_in;
    tn_tensor *below = tn_add_scalar(tn_abs(tn_custom_saved(c, 0)), 1);
    din[0] = tn_div(dout[0], tn_square(below));
    return TN_OK;
}

static const tn_custom_op softsign = { .name = "softsign",
                                       .formula = "y = x / (1 + |x|)",
                                       .forward = softsign_forward,
                                       .backward = softsign_backward };

/* ---- cube, in plain C: y = x^3, dx = 3 x^2 dy, f64 ------------------------------------------- */

static tn_status cube_forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out)
{
    (void)n_in, (void)n_out;
    if (tn_dtype_of(in[0]) != TN_F64) {
        tn_fail(TN_E_DTYPE, "cube: x is %s: want f64", tn_dtype_name(tn_dtype_of(in[0])));
        return TN_E_DTYPE;
    }
    tn_tensor *x = tn_contiguous(in[0]), *y = tn_empty_like(x);
    const double *from = tn_data(x);
    double *to = tn_data_mut(y);
    if (!from || !to) return tn_error_status();
    for (int64_t i = 0; i < tn_numel(x); i++) to[i] = from[i] * from[i] * from[i];
    out[0] = y;
    return tn_custom_save(c, x);
}

static tn_status cube_backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                               tn_tensor **din)
{
    (void)n_out, (void)n_in;
    tn_tensor *x = tn_custom_saved(c, 0);
    tn_tensor *dy = tn_contiguous(dout[0]), *dx = tn_empty_like(x); /* dout may be a view */
    const double *at = tn_data(x), *from = tn_data(dy);
    double *to = tn_data_mut(dx);
    if (!at || !from || !to) return tn_error_status();
    for (int64_t i = 0; i < tn_numel(x); i++) to[i] = 3 * at[i] * at[i] * from[i];
    din[0] = dx;
    return TN_OK;
}

static const tn_custom_op cube = { .name = "cube",
                                   .formula = "y = x^3",
                                   .forward = cube_forward,
                                   .backward = cube_backward,
                                   .once_differentiable = true }; /* C is not recorded */

/* ---- wave, two outputs: s = sin(k x), c = cos(k x), k its own number ------------------------- */

typedef struct wave_numbers {
    double k;
} wave_numbers;

static tn_status wave_forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out)
{
    (void)n_in, (void)n_out;
    const wave_numbers *w = tn_custom_user(c);
    tn_tensor *angle = tn_mul_scalar(in[0], w->k);
    out[0] = tn_sin(angle), out[1] = tn_cos(angle);
    tn_custom_save(c, out[0]);
    return tn_custom_save(c, out[1]);
}

/* dx = k (ds c - dc s); of an output that the loss did not read, dout is zeros */
static tn_status wave_backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                               tn_tensor **din)
{
    (void)n_out, (void)n_in;
    const wave_numbers *w = tn_custom_user(c);
    tn_tensor *s = tn_custom_saved(c, 0), *co = tn_custom_saved(c, 1);
    din[0] = tn_mul_scalar(tn_sub(tn_mul(dout[0], co), tn_mul(dout[1], s)), w->k);
    return TN_OK;
}

static void wave_free(void *user)
{
    printf("the last graph with k = %g is gone\n", ((wave_numbers *)user)->k);
    free(user);
}

static const tn_custom_op wave = { .name = "wave",
                                   .formula = "s = sin(k x), c = cos(k x)",
                                   .forward = wave_forward,
                                   .backward = wave_backward,
                                   .free = wave_free };

static tn_status apply_wave(tn_tensor *x, double k, tn_tensor **out)
{
    wave_numbers *w = malloc(sizeof *w);
    if (!w) {
        tn_fail(TN_E_NOMEM, "wave: out of memory");
        return TN_E_NOMEM;
    }
    w->k = k;
    return tn_apply_n(&wave, w, 1, &x, 2, out); /* frees w, now or with the graph */
}

/* ---- using and checking them ----------------------------------------------------------------- */

static tn_tensor *use(tn_tensor **x, void *user)
{
    return tn_apply(user, NULL, 1, x);
}

static tn_tensor *use_transposed(tn_tensor **x, void *user)
{
    return tn_transpose(tn_apply(user, NULL, 1, x), 0, 1); /* its gradient comes as a view */
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_from_data((double[]){ -2, 0.5, 1, 3 }, TN_SHAPE(2, 2), TN_F64);
    TN_CHECK(tn_set_requires_grad(x, true));

    tn_gradcheck_options twice = { .second = true }, once = { 0 };
    TN_CHECK(tn_gradcheck(use, &x, 1, (void *)&softsign, twice));
    TN_CHECK(tn_gradcheck(use, &x, 1, (void *)&cube, once));
    TN_CHECK(tn_gradcheck(use_transposed, &x, 1, (void *)&cube, once));
    tn_tensor *y = tn_apply(&softsign, NULL, 1, &x);
    tn_print(y);
    printf("made by %s\n", tn_grad_op(y));

    tn_tensor *z[2], *dx;
    TN_SCOPE
    {
        TN_CHECK(apply_wave(x, 2, z));
        TN_CHECK(tn_backward(tn_sum_all(z[0]))); /* d sin(2 x)/dx = 2 cos(2 x) */
        tn_print(tn_grad(x));
        printf("leaving the scope\n");
    }
    y = tn_sum_all(tn_apply(&cube, NULL, 1, &x));
    if (tn_gradients(1, &y, NULL, 1, &x, &dx, TN_CREATE_GRAPH) != TN_OK) printf("%s\n", tn_error());
    tn_tensor *f32 = tn_ones(TN_SHAPE(2));
    if (!tn_apply(&cube, NULL, 1, &f32)) printf("%s\n", tn_error());
    tn_scope_end(scope);
    return 0;
}
