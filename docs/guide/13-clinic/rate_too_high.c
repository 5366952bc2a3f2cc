/*
 * Mistake: the learning rate is too high: every step jumps over the valley and lands higher up.
 */
#include "clinic.h"

/* How fast the slope changes along the gradient: g H g / g g. Below 2 / that, a step goes down. */
static double curvature(tn_module *m, batch *b)
{
    tn_list *list = tn_parameters(m);
    tn_tensor *p[16], *g[16], *hg[16], *loss = line_loss(m, b), *dot = tn_scalar(0);
    double gg = 0, ghg = 0;
    for (int i = 0; i < list->n; i++) p[i] = list->entry[i].tensor;
    TN_CHECK(tn_gradients(1, &loss, NULL, list->n, p, g, TN_CREATE_GRAPH));
    for (int i = 0; i < list->n; i++) dot = tn_add(dot, tn_sum_all(tn_mul(g[i], tn_detach(g[i]))));
    TN_CHECK(tn_gradients(1, &dot, NULL, list->n, p, hg, 0)); /* H times g */
    for (int i = 0; i < list->n; i++) {
        gg += tn_item(tn_sum_all(tn_square(g[i])));
        ghg += tn_item(tn_sum_all(tn_mul(g[i], hg[i])));
    }
    return ghg / gg;
}

static void live(double lr)
{
    batch b = line();
    tn_module *m = tn_linear_new(2, 1, (tn_linear_options){ 0 });
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = lr });
    TN_CHECK_PTR(opt);
    TN_CHECK(tn_explain_training(stdout, m, opt, line_loss, &b, NULL));
    double limit = 2 / curvature(m, &b);
    printf("learning rate %g:", lr);
    for (int i = 0; i < 20; i++) TN_SCOPE
        {
            tn_tensor *loss = line_loss(m, &b);
            if (i % 5 == 0) printf(" %.2g", tn_item(loss));
            TN_CHECK(tn_optim_zero_grad(opt));
            TN_CHECK(tn_backward(loss));
            TN_CHECK(tn_optim_step(opt));
        }
    printf("\ndiagnosis: the learning rate %g is %s 2 / curvature = %.2f\n", lr,
           lr > limit ? "too high: above" : "below", limit);
    tn_optim_free(opt), tn_module_drop(m);
}

int main(void)
{
    TN_SCOPE live(0.3);
    TN_SCOPE live(0.03);
    return 0;
}
