/*
 * Chapter 9: two optimizers as types: Lion as loops over elements, SGD with momentum by ops.
 */
#include <tenon/tenon.h>

static void lion_f32(int64_t n, float *p, const float *g, float *const *state,
                     const tn_optim_numbers *o)
{
    const float b1 = (float)o->number[0], b2 = (float)o->number[1], lr = (float)o->lr;
    const float keep = 1 - lr * (float)o->weight_decay; /* decay is the rule's to apply */
    float *m = state[0];
    for (int64_t i = 0; i < n; i++) {
        const float c = b1 * m[i] + (1 - b1) * g[i];
        p[i] = keep * p[i] - lr * (float)((c > 0) - (c < 0));
        m[i] = b2 * m[i] + (1 - b2) * g[i];
    }
}

static void lion_f64(int64_t n, double *p, const double *g, double *const *state,
                     const tn_optim_numbers *o)
{
    const double b1 = o->number[0], b2 = o->number[1], lr = o->lr;
    const double keep = 1 - lr * o->weight_decay;
    double *m = state[0];
    for (int64_t i = 0; i < n; i++) {
        const double c = b1 * m[i] + (1 - b1) * g[i];
        p[i] = keep * p[i] - lr * ((c > 0) - (c < 0));
        m[i] = b2 * m[i] + (1 - b2) * g[i];
    }
}

static const tn_optim_type my_lion = {
    .name = "my_lion",
    .number = { { .name = "beta1", .initial = 0.9, .below = 1 },
                { .name = "beta2", .initial = 0.99, .below = 1 } },
    .state = { { .name = "exp_avg" } },
    .formula_f32 = lion_f32,
    .formula_f64 = lion_f64,
};

static tn_status momentum(tn_optim_part *part, int n)
{
    for (int i = 0; i < n; i++) {
        tn_optim_part *t = &part[i];
        t->new_state[0] = tn_add(tn_mul_scalar(t->state[0], t->numbers.number[0]), t->g);
        t->new_p = tn_sub(t->p, tn_mul_scalar(t->new_state[0], t->numbers.lr));
    }
    return TN_OK;
}

static const tn_optim_type my_momentum = {
    .name = "my_momentum",
    .number = { { .name = "beta", .initial = 0.9, .below = 1 } },
    .state = { { .name = "velocity" } },
    .update = momentum,
};

/* Its loss after some steps beside that of ours, of the same rule. */
static void race(tn_tensor *x, tn_tensor *y, tn_optim *(*make)(const tn_list *list, bool ours),
                 const char *name)
{
    tn_module *net[2];
    tn_optim *opt[2];
    for (int i = 0; i < 2; i++) {
        tn_manual_seed(3);
        net[i] = tn_sequential(tn_linear_new(2, 8, (tn_linear_options){ 0 }), tn_tanh_new(),
                               tn_linear_new(8, 2, (tn_linear_options){ 0 }));
        TN_CHECK_PTR(net[i]);
        opt[i] = make(tn_parameters(net[i]), i == 1);
        TN_CHECK_PTR(opt[i]);
    }
    for (int step = 0; step <= 50; step++) TN_SCOPE
        {
            tn_tensor *loss[2];
            for (int i = 0; i < 2; i++) {
                loss[i] = tn_cross_entropy(tn_forward(net[i], x), y);
                TN_CHECK(tn_optim_zero_grad(opt[i]));
                TN_CHECK(tn_backward(loss[i]));
                TN_CHECK(tn_optim_step(opt[i]));
            }
            if (step == 50)
                printf("%-11s  mine %.4f  tenon's %.4f\n", name, tn_item(loss[0]),
                       tn_item(loss[1]));
        }
    for (int i = 0; i < 2; i++) tn_optim_free(opt[i]), tn_module_drop(net[i]);
}

static tn_optim *lion(const tn_list *list, bool ours)
{
    if (ours) return tn_lion(list, (tn_optim_options){ .lr = 0.02, .weight_decay = 0.1 });
    return tn_optim_new(&my_lion, list, (tn_optim_options){ .lr = 0.02, .weight_decay = 0.1 });
}

static tn_optim *sgd(const tn_list *list, bool ours)
{
    if (ours) return tn_sgd(list, (tn_sgd_options){ .lr = 0.1, .momentum = 0.9 });
    return tn_optim_new(&my_momentum, list, (tn_optim_options){ .lr = 0.1 });
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_from_floats((float[]){ 0, 0, 0, 1, 1, 0, 1, 1 }, TN_SHAPE(4, 2));
    tn_tensor *y = tn_from_ints((int64_t[]){ 0, 1, 1, 0 }, TN_SHAPE(4));
    race(x, y, lion, "my_lion");
    race(x, y, sgd, "my_momentum");
    tn_scope_end(scope);
    return 0;
}
