/*
 * explain_rate.c - whether the learning rate is far off: copies of model and optimizer make a step
 * d, and the loss L(p + t d) says how long a step should be. Along d a loss of constant curvature
 * falls by t s - t^2 c / 2, s its slope, and rises again beyond t = s / c.
 */
#include <tenon/parallel.h>

#include "ext/diagnose/explain.h"

typedef struct trial {
    tni_run *run;
    tn_module *copy;
    tn_optim *opt;    /* of the copy; NULL: failed */
    tn_list *leaf;    /* of the copy, which the optimizer has moved */
    tn_tensor **step; /* by these */
} trial;

enum { LONG = 1000, SMALLEST = 10 }; /* losses below 1 / SMALLEST are not judged */

/* The copy's loss at p + t d; with an error pending it failed. */
static double loss_at(const trial *x, double t)
{
    double loss = NAN;
    tn_status status = tn_generator_set_state(tn_default_generator(), x->run->generator);
    TN_SCOPE
    {
        for (int i = 0; i < x->leaf->n && status == TN_OK; i++)
            TN_NO_GRAD status = tn_copy_(x->leaf->entry[i].tensor,
                                         tn_add(x->run->leaf[i], tn_mul_scalar(x->step[i], t)));
        if (status == TN_OK) loss = tn_item(x->run->loss(x->copy, x->run->user));
    }
    return loss;
}

/* Steps with the run's gradients. Returns the loss's slope along the step: below 0; NaN: failed. */
static double make_step(trial *x)
{
    double slope = 0;
    x->leaf = tn_list_filter(tn_parameters(x->copy), tni_trains, NULL);
    for (int i = 0; x->leaf && i < x->leaf->n; i++)
        if (tn_set_grad(x->leaf->entry[i].tensor, x->run->grad[i]) != TN_OK) return NAN;
    if (!x->leaf || tn_optim_step(x->opt) != TN_OK) return NAN;
    TN_NO_GRAD for (int i = 0; i < x->leaf->n; i++)
    {
        x->step[i] = tn_sub(x->leaf->entry[i].tensor, x->run->leaf[i]);
        if (!x->step[i]) return NAN;
        if (tni_none(x->run->grad[i])) continue;
        slope += tn_item(tn_sum_all(tn_mul(x->step[i], x->run->grad[i])));
    }
    return slope;
}

static void judge(const trial *x, double lr, double loss, double slope)
{
    const double next = loss_at(x, 1);
    if (tni_pending() != TN_OK) return;
    if (!(next <= loss + 3 * fabs(loss))) { /* healthy first steps may treble it */
        const double less = loss_at(x, 0.01);
        if (less < loss)
            tni_say(&x->run->mistakes,
                    "(optimizer): a step with its lr %g takes the loss from %.4g to %.4g, a "
                    "hundredth of it to %.4g: want a lower lr",
                    lr, loss, next, less);
    } else if (slope < 0 && -100 * slope < 0.01 * fabs(loss)) {
        const double far = loss_at(x, LONG);
        if (loss - far > -0.5 * LONG * slope)
            tni_say(&x->run->mistakes,
                    "(optimizer): a step with its lr %g takes the loss from %.6g to %.6g, one %d "
                    "times as long to %.6g: want a higher lr",
                    lr, loss, next, LONG, far);
    }
}

void tni_run_judge_rate(tni_run *r, tn_optim *opt, double loss)
{
    const size_t n = (size_t)r->leaves->n;
    if (!n || !(fabs(loss) * SMALLEST >= 1) || !isfinite(loss)) return;
    if (opt->type->closure || tn_parallel_size() > 1) return;
    tni_saved_error before;
    tni_error_save(&before);
    tn_error_clear();
    trial x = { .run = r, .step = tni_calloc_n(n, sizeof *x.step) };
    TN_SCOPE
    {
        if (x.step) x.copy = tn_module_clone(r->model);
        if (x.copy) x.opt = tni_optim_like(opt, r->model, x.copy);
        const double slope = x.opt && !tni_pending() ? make_step(&x) : NAN;
        if (isfinite(slope)) judge(&x, opt->group[0].lr, loss, slope);
        tn_optim_free(x.opt);
        tn_module_drop(x.copy);
    }
    tni_free(x.step, n * sizeof *x.step);
    tni_error_restore(&before); /* what cannot be copied or stepped is not judged */
}
