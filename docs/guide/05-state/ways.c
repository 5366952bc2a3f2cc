/*
 * Chapter 5: one model goes through all that a training step can be, and its buffers obey their
 * roles.
 */
#include <tenon/tenon.h>

typedef struct meter {
    tn_module base;
    tn_tensor *weight; /* a parameter */
    tn_tensor *mean;   /* of the inputs seen in training: a statistic */
    tn_tensor *calls;  /* a counter */
    tn_tensor *mask;   /* a constant */
} meter;

static tn_tensor *meter_forward(tn_module *self, tn_tensor *x)
{
    meter *m = (meter *)self;
    if (tn_training(self)) TN_NO_GRAD
        {
            if (tn_lerp_(m->mean, tn_mean_all(x), 0.5)) return NULL;
            if (tn_add_scalar_(m->calls, 1)) return NULL;
        }
    return tn_mul(tn_mul(tn_sub(x, m->mean), m->mask), m->weight);
}

static const tn_module_type meter_type = { .name = "Meter",
                                           .size = sizeof(meter),
                                           .forward = meter_forward };

static tn_module *meter_new(void)
{
    meter *m = tn_module_new(&meter_type);
    if (!m) return NULL;
    tn_register_parameter(&m->base, "weight", &m->weight, tn_ones(TN_SHAPE(1)));
    tn_register_buffer(&m->base, "mean", &m->mean, tn_zeros(TN_SCALAR), TN_STATISTIC);
    tn_register_buffer(&m->base, "calls", &m->calls, tn_full_as(TN_SCALAR, 0, TN_I64, tn_cpu()),
                       TN_COUNTER);
    tn_register_buffer(&m->base, "mask", &m->mask, tn_ones(TN_SHAPE(1)),
                       TN_CONSTANT | TN_NON_PERSISTENT);
    return tn_module_done(&m->base);
}

/* Forward and loss of part `part` of `parts` of a batch of 4 rows. */
static tn_tensor *loss(tn_module *m, int part, int parts, void *batch)
{
    int64_t n = 4 / parts;
    tn_tensor *y = tn_forward(m, tn_narrow(batch, 0, part * n, n));
    return tn_div_scalar(tn_mean_all(tn_square(y)), parts);
}

static void step(tn_module *m, tn_tensor *batch, int parts)
{
    TN_MICRO_BATCHES(i, parts) TN_CHECK(tn_backward(loss(m, i, parts, batch)));
    TN_CHECK(tn_error_status());
}

static void show(const char *what, tn_module *module)
{
    meter *m = (meter *)module;
    printf("%-24s %-5g %-4s  %g\n", what, tn_item(m->mean), tn_dtype_name(tn_dtype_of(m->mean)),
           tn_item(m->calls));
}

int main(void)
{
    const float rows[] = { 1, 2, 3, 6 };
    tn_scope scope = tn_scope_begin();
    tn_tensor *batch = tn_from_floats(rows, TN_SHAPE(4, 1));
    tn_module *m = meter_new();
    TN_CHECK_PTR(m);
    tn_module *recomputed = tn_module_clone(m), *parts = tn_module_clone(m);
    tn_module *ema = tn_ema_new(m, (tn_ema_options){ .decay = 0.5, .average_buffers = true });
    TN_CHECK(tn_ema_update(ema, m));

    printf("%-24s mean        calls\n", "");
    show("new", m);
    step(m, batch, 1);
    show("a step", m);
    TN_CHECK(tn_module_set_recompute(recomputed, true)); /* backward calls forward again */
    step(recomputed, batch, 1);
    show("a step, recomputed", recomputed);
    step(parts, batch, 2);
    show("a step in 2 parts", parts);
    TN_CHECK(tn_ema_update(ema, m)); /* half of the model before the step, half of this one */
    show("average of the weights", tn_ema_module(ema));
    TN_CHECK(tn_eval(m));
    TN_NO_GRAD TN_CHECK_PTR(tn_forward(m, batch));
    show("evaluated", m);
    TN_CHECK(tn_train(m, true));
    TN_CHECK(tn_module_to_dtype(m, TN_BF16));
    show("cast to bf16", m);

    TN_CHECK(tn_check_state(stdout, parts, NULL, loss, batch));
    tn_module_drop(m), tn_module_drop(recomputed), tn_module_drop(parts), tn_module_drop(ema);
    tn_scope_end(scope);
    return 0;
}
