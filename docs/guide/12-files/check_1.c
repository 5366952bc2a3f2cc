/*
 * Checks exercise 1: 20 steps at once against 7, a stop, and 13, compared after each step.
 */
#include "../check.h"

typedef struct run {
    tn_module *model;
    tn_optim *opt;
    tn_scheduler *schedule;
    tn_generator *batches;
} run;

tn_status save(run *r, const char *path, int64_t step);
tn_status load(run *r, const char *path, int64_t *step);

static run run_new(uint64_t seed)
{
    run r;
    tn_manual_seed(seed);
    r.model = tn_linear_new(2, 1, (tn_linear_options){ 0 });
    r.opt = tn_sgd(tn_parameters(r.model), (tn_sgd_options){ .lr = 0.1, .momentum = 0.9 });
    r.schedule = tn_exponential_lr(r.opt, 0.9);
    r.batches = tn_generator_new(seed);
    TN_CHECK_PTR(r.schedule);
    TN_CHECK_PTR(r.batches);
    return r;
}

static double step_of(run *r)
{
    double loss = 0;
    TN_SCOPE
    {
        float values[16];
        for (int i = 0; i < 16; i++)
            values[i] = (float)tn_generator_u32(r->batches) / 4294967296.0F;
        tn_tensor *x = tn_from_floats(values, TN_SHAPE(8, 2));
        tn_tensor *error = tn_sub(tn_forward(r->model, x), tn_sum(x, TN_AXES(1), true));
        tn_tensor *mean = tn_mean_all(tn_square(error));
        TN_CHECK(tn_optim_zero_grad(r->opt));
        TN_CHECK(tn_backward(mean));
        TN_CHECK(tn_optim_step(r->opt));
        TN_CHECK(tn_scheduler_step(r->schedule));
        loss = tn_item(mean);
    }
    return loss;
}

int main(void)
{
    TN_SCOPE
    {
        run a = run_new(1), b = run_new(2);
        double losses[20];
        int64_t step = 0;
        for (int i = 0; i < 20; i++) {
            if (i == 7) want_ok("save", save(&a, "run.safetensors", i));
            losses[i] = step_of(&a);
        }
        want_ok("load", load(&b, "run.safetensors", &step));
        want(step == 7, "it goes on at step %d, want 7", (int)step);
        want(tn_optim_lr(b.opt, 0) < 0.05, "the schedule starts again, at rate %g",
             tn_optim_lr(b.opt, 0));
        for (int i = 7; i < 20; i++) {
            double loss = step_of(&b);
            want(loss == losses[i], "the loss of step %d is %.6f, without a stop %.6f%s", i, loss,
                 losses[i], i == 7 ? ": another batch" : ": another update");
        }
    }
    return right();
}
