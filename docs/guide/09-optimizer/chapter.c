/*
 * Chapter 9: an optimizer from nothing: SGD with momentum, beside tn_sgd.
 */
#include <tenon/tenon.h>

enum { MOST = 16 };

typedef struct momentum {
    tn_list *parameters;
    tn_tensor *velocity[MOST]; /* one for each parameter, NULL until its first step */
    double lr, factor;
} momentum;

/* v = factor v + g; p -= lr v */
static tn_status momentum_step(momentum *o)
{
    tn_status status = TN_OK;
    TN_NO_GRAD
    {
        for (int i = 0; i < o->parameters->n && status == TN_OK; i++) {
            tn_tensor *p = o->parameters->entry[i].tensor, *g = tn_grad(p), **v = &o->velocity[i];
            if (tn_is_none(g)) continue; /* the loss did not read it */
            if (!*v)
                *v = tn_keep(tn_clone(g)); /* outlives the scope of the step */
            else if ((status = tn_mul_scalar_(*v, o->factor)) == TN_OK)
                status = tn_add_(*v, g);
            if (status == TN_OK) status = tn_sub_(p, tn_mul_scalar(*v, o->lr));
        }
    }
    return status;
}

static void momentum_free(momentum *o)
{
    for (int i = 0; i < MOST; i++) tn_drop(o->velocity[i]);
}

static tn_module *net(void)
{
    tn_manual_seed(3);
    tn_module *m = tn_sequential(tn_linear_new(2, 8, (tn_linear_options){ 0 }), tn_tanh_new(),
                                 tn_linear_new(8, 2, (tn_linear_options){ 0 }));
    TN_CHECK_PTR(m);
    return m;
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_from_floats((float[]){ 0, 0, 0, 1, 1, 0, 1, 1 }, TN_SHAPE(4, 2));
    tn_tensor *y = tn_from_ints((int64_t[]){ 0, 1, 1, 0 }, TN_SHAPE(4));
    tn_module *mine = net(), *theirs = net();
    momentum o = { .parameters = tn_parameters(mine), .lr = 0.1, .factor = 0.9 };
    tn_optim *opt = tn_sgd(tn_parameters(theirs), (tn_sgd_options){ .lr = 0.1, .momentum = 0.9 });
    TN_CHECK_PTR(opt);

    for (int step = 0; step <= 100; step++) TN_SCOPE
        {
            tn_tensor *a = tn_cross_entropy(tn_forward(mine, x), y);
            tn_tensor *b = tn_cross_entropy(tn_forward(theirs, x), y);
            TN_CHECK(tn_module_zero_grad(mine));
            TN_CHECK(tn_optim_zero_grad(opt));
            TN_CHECK(tn_backward(a));
            TN_CHECK(tn_backward(b));
            TN_CHECK(momentum_step(&o));
            TN_CHECK(tn_optim_step(opt));
            if (step % 25 == 0)
                printf("%3d  mine %.4f  tn_sgd %.4f\n", step, tn_item(a), tn_item(b));
        }
    momentum_free(&o);
    tn_optim_free(opt), tn_module_drop(mine), tn_module_drop(theirs);
    tn_scope_end(scope);
    return 0;
}
