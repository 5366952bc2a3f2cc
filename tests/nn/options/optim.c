/* optim.c - options of optimizers, groups, schedules and the scaler. */
#include "nn/options/options.h"
#include "optim/leaves.h"

static tn_list *three(uint64_t seed)
{
    return one(leaf(TN_SHAPE(3), seed, TN_F64));
}

/* Steps of large and then small gradients, so that running maxima differ from running means. */
static uint64_t see_steps(tn_optim *opt)
{
    tn_list *p = opt ? tn_optim_parameters(opt) : NULL;
    for (int k = 0; opt && k < 8; k++) {
        for (int i = 0; i < p->n; i++)
            assert_ok(tn_set_grad(p->entry[i].tensor, random_f64(TN_SHAPE(3), k ? -.1 : -3,
                                                                 k ? .2 : 4, 5 + (uint64_t)k)));
        assert_ok(tn_optim_step(opt));
    }
    uint64_t h = opt ? hash_of(p) : 0;
    tn_optim_free(opt);
    return h;
}

SEE(see_sgd, tn_sgd_options, see_steps(tn_sgd(three(1), o)))
SEE(see_adam, tn_adam_options, see_steps(tn_adam(three(1), o)))
SEE(see_adamw, tn_adamw_options, see_steps(tn_adamw(three(1), o)))
SEE(see_rmsprop, tn_rmsprop_options, see_steps(tn_rmsprop(three(1), o)))
SEE(see_adagrad, tn_adagrad_options, see_steps(tn_adagrad(three(1), o)))
/* Of a type with a number and decay. */
static void pull(int64_t n, double *p, const double *g, double *const *state,
                 const tn_optim_numbers *o)
{
    (void)state;
    for (int64_t i = 0; i < n; i++) p[i] -= o->lr * (o->number[0] * g[i] + o->weight_decay * p[i]);
}

static void pull_f32(int64_t n, float *p, const float *g, float *const *state,
                     const tn_optim_numbers *o)
{
    (void)state;
    for (int64_t i = 0; i < n; i++)
        p[i] -= (float)(o->lr * (o->number[0] * g[i] + o->weight_decay * p[i]));
}

static const tn_optim_type pulling = { .name = "pull",
                                       .number = { { .name = "force", .initial = 2 } },
                                       .lr = 0.5,
                                       .formula_f32 = pull_f32,
                                       .formula_f64 = pull };
SEE(see_own, tn_optim_options, see_steps(tn_optim_new(&pulling, three(1), o)))

/* opt holds a parameter; the group is another. */
static uint64_t see_second(tn_optim *opt, tn_group_options o)
{
    tn_tensor *p = leaf(TN_SHAPE(3), 2, TN_F64);
    if (tn_optim_add_group(opt, list_of(1, (const char *[]){ "v" }, &p), o) == TN_OK)
        return see_steps(opt);
    tn_optim_free(opt);
    return 0;
}

static const tn_sgd_options with_momentum = {
    .lr = 0.25, .weight_decay = 0.5, .momentum = 0.9, .dampening = 0.25
};
static const tn_adam_options with_betas = { .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-4 };

SEE(see_group, tn_group_options, see_second(tn_sgd(three(1), with_momentum), o))
SEE(see_adam_group, tn_group_options, see_second(tn_adam(three(1), with_betas), o))
SEE(see_rmsprop_group, tn_group_options,
    see_second(tn_rmsprop(three(1), (tn_rmsprop_options){ .alpha = 0.9 }), o))
SEE(see_adagrad_group, tn_group_options,
    see_second(tn_adagrad(three(1), (tn_adagrad_options){ .lr_decay = 0.1 }), o))

static uint64_t mix_number(uint64_t h, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mix(h, bits);
}

/* Rates and momentum of the first 7 steps. */
static uint64_t see_one_cycle(const void *o)
{
    tn_optim *opt = owned(tn_sgd(three(1), (tn_sgd_options){ .lr = 1, .momentum = 0.9 }));
    tn_scheduler *s = tn_one_cycle_lr(opt, *(const tn_one_cycle_options *)o);
    uint64_t h = s ? 1 : 0;
    for (int k = 0; s && k < 7; k++) {
        h = mix_number(h, tn_optim_lr(opt, 0));
        h = mix_number(h, tn_item(tn_list_get(tn_optim_state_dict(opt), "sgd.momentum")));
        if (tn_scheduler_step(s) != TN_OK) break; /* a shorter cycle */
    }
    tn_scheduler_free(s);
    return h;
}

/* Rates under a metric that falls by one part in a hundred, then rises, then stays. */
static uint64_t see_plateau(const void *o)
{
    tn_optim *opt = owned(tn_sgd(three(1), (tn_sgd_options){ .lr = 1 }));
    tn_scheduler *s = tn_plateau_lr(opt, *(const tn_plateau_options *)o);
    uint64_t h = s ? 1 : 0;
    double metric = 1;
    for (int k = 0; s && k < 40; k++) {
        metric *= k < 3 ? 0.99 : k < 6 ? 1 - 3e-5 : k < 12 ? 1.01 : 1;
        assert_ok(tn_plateau_step(s, metric));
        h = mix_number(h, tn_optim_lr(opt, 0));
    }
    tn_scheduler_free(s);
    return h;
}

/* The state at first, and after a step that was skipped. */
static uint64_t see_scaler(const void *o)
{
    tn_tensor *p = leaf(TN_SHAPE(3), 1, TN_F64);
    tn_optim *opt = owned(tn_sgd(one(p), (tn_sgd_options){ .lr = 1 }));
    tn_scaler *s = tn_scaler_new(*(const tn_scaler_options *)o);
    uint64_t h = s ? mix(1, hash_of(tn_scaler_state_dict(s))) : 0;
    if (s) {
        assert_ok(tn_set_grad(p, tn_mul_scalar(tn_ones_like(p), INFINITY)));
        assert_ok(tn_scaler_step(s, opt));
        assert_ok(tn_scaler_update(s));
        h = mix(h, hash_of(tn_scaler_state_dict(s)));
    }
    tn_scaler_free(s);
    return h;
}

#define ADAM(see, name)                                                                            \
    REAL(tn_adam_options, lr, 1e-3, .1, -1, name ": lr is -1", see, 0),                            \
        REAL(tn_adam_options, beta1, .9, .5, 1, name ": beta1 is 1", see, 0),                      \
        REAL(tn_adam_options, beta2, .999, .5, -1, name ": beta2 is -1", see, 0),                  \
        REAL(tn_adam_options, eps, 1e-8, .1, -1, name ": eps is -1", see, 0),                      \
        REAL(tn_adam_options, weight_decay, 0, .1, -1, name ": weight_decay is -1", see, 0),       \
        FLAG(tn_adam_options, amsgrad, see, 0), FLAG(tn_adam_options, maximize, see, 0),           \
        FLAG(tn_adam_options, use_betas, see, 0), FLAG(tn_adam_options, use_lr, see, 0),           \
        FLAG(tn_adam_options, use_eps, see, .lr = .1),                                             \
        FLAG(tn_adam_options, eps_hat, see, .eps = .1),                                            \
        FLAG(tn_adam_options, no_bias_correction, see, 0)

#define OF_SIX .max_lr = 1, .total_steps = 6

static const option_row rows[] = {
    REAL(tn_sgd_options, lr, 1e-3, .1, -1, "tn_sgd: lr is -1", see_sgd, 0),
    REAL(tn_sgd_options, momentum, 0, .9, -1, "tn_sgd: momentum is -1", see_sgd, 0),
    REAL(tn_sgd_options, dampening, 0, .5, -1, "tn_sgd: dampening is -1", see_sgd, .momentum = .9),
    REAL(tn_sgd_options, weight_decay, 0, .1, -1, "tn_sgd: weight_decay is -1", see_sgd, 0),
    FLAG(tn_sgd_options, nesterov, see_sgd, .momentum = .9),
    FLAG(tn_sgd_options, maximize, see_sgd, 0),
    FLAG(tn_sgd_options, use_lr, see_sgd, 0),
    ADAM(see_adam, "tn_adam"),
    ADAM(see_adamw, "tn_adamw"),
    REAL(tn_rmsprop_options, lr, 1e-2, .1, -1, "tn_rmsprop: lr is -1", see_rmsprop, 0),
    REAL(tn_rmsprop_options, alpha, .99, .5, 1, "tn_rmsprop: alpha is 1", see_rmsprop, 0),
    REAL(tn_rmsprop_options, eps, 1e-8, .1, -1, "tn_rmsprop: eps is -1", see_rmsprop, 0),
    REAL(tn_rmsprop_options, weight_decay, 0, .1, -1, "tn_rmsprop: weight_decay is -1", see_rmsprop,
         0),
    REAL(tn_rmsprop_options, momentum, 0, .5, -1, "tn_rmsprop: momentum is -1", see_rmsprop, 0),
    FLAG(tn_rmsprop_options, centered, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, maximize, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, use_lr, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, use_alpha, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, use_eps, see_rmsprop, 0),
    FLAG(tn_rmsprop_options, eps_in_sqrt, see_rmsprop, 0),
    REAL(tn_adagrad_options, lr, 1e-2, .1, -1, "tn_adagrad: lr is -1", see_adagrad, 0),
    REAL(tn_adagrad_options, lr_decay, 0, .1, -1, "tn_adagrad: lr_decay is -1", see_adagrad, 0),
    REAL(tn_adagrad_options, weight_decay, 0, .1, -1, "tn_adagrad: weight_decay is -1", see_adagrad,
         0),
    REAL(tn_adagrad_options, initial_accumulator, 0, .5, -1,
         "tn_adagrad: initial_accumulator is -1", see_adagrad, 0),
    REAL(tn_adagrad_options, eps, 1e-10, .1, -1, "tn_adagrad: eps is -1", see_adagrad, 0),
    FLAG(tn_adagrad_options, maximize, see_adagrad, 0),
    FLAG(tn_adagrad_options, use_lr, see_adagrad, 0),
    FLAG(tn_adagrad_options, use_eps, see_adagrad, 0),
    SHOWN_BY(tn_group_options, set, "optim/test_optim.c", "numbers_of_groups_equal_pytorch"),
    SHOWN_BY(tn_optim_options, set, "optim/test_optim_types.c", "formula_equals_ours"),
    SHOWN_BY(tn_optim_options, user, "optim/test_optim_types.c", "all_parameters_together"),
    REAL(tn_optim_options, lr, .5, .1, -1, "tn_optim_new: lr is -1", see_own, 0),
    REAL(tn_optim_options, weight_decay, 0, .1, -1, "tn_optim_new: weight_decay is -1", see_own, 0),
    FLAG(tn_optim_options, use_lr, see_own, 0),
    REAL(tn_group_options, lr, .25, .1, -1, "lr is -1", see_group, 0),
    REAL(tn_group_options, weight_decay, 0, .1, -1, "weight_decay is -1", see_group, 0),
    REAL(tn_group_options, momentum, .9, .5, -1, "momentum is -1", see_group, 0),
    REAL(tn_group_options, dampening, .25, .5, -1, "dampening is -1", see_group, .momentum = .9),
    REAL(tn_group_options, beta1, .8, .5, 1, "beta1 is 1", see_adam_group, 0),
    REAL(tn_group_options, beta2, .9, .5, 1, "beta2 is 1", see_adam_group, 0),
    REAL(tn_group_options, eps, 1e-4, .1, -1, "eps is -1", see_adam_group, 0),
    REAL(tn_group_options, alpha, .9, .5, 1, "alpha is 1", see_rmsprop_group, 0),
    REAL(tn_group_options, lr_decay, .1, .2, -1, "lr_decay is -1", see_adagrad_group, 0),
    FLAG(tn_group_options, use_lr, see_group, 0),
    FLAG(tn_group_options, use_numbers, see_group, .momentum = .9),
    REAL(tn_one_cycle_options, max_lr, NAN, 2, -1, "max_lr", see_one_cycle, .total_steps = 6),
    INT(tn_one_cycle_options, total_steps, NAN, 5, -1, "total_steps", see_one_cycle, .max_lr = 1),
    REAL(tn_one_cycle_options, pct_start, .3, .5, 1.5, "pct_start 1.5", see_one_cycle, OF_SIX),
    REAL(tn_one_cycle_options, div_factor, 25, 10, -1, "div_factor -1", see_one_cycle, OF_SIX),
    REAL(tn_one_cycle_options, final_div_factor, 1e4, 10, -1, "final_div_factor -1", see_one_cycle,
         OF_SIX),
    REAL(tn_one_cycle_options, base_momentum, .85, .5, 1.5, "base_momentum is 1.5", see_one_cycle,
         OF_SIX),
    REAL(tn_one_cycle_options, max_momentum, .95, .99, 1.5, "max_momentum is 1.5", see_one_cycle,
         OF_SIX),
    FLAG(tn_one_cycle_options, fixed_momentum, see_one_cycle, OF_SIX),
    FLAG(tn_one_cycle_options, use_momentum, see_one_cycle, OF_SIX),
    REAL(tn_plateau_options, factor, .1, .5, 1.5, "factor 1.5", see_plateau, 0),
    REAL(tn_plateau_options, threshold, 1e-4, .5, -1, "threshold is -1", see_plateau, 0),
    REAL(tn_plateau_options, min_lr, 0, .5, -1, "min_lr is -1", see_plateau, 0),
    INT(tn_plateau_options, patience, 10, 2, -1, "patience -1", see_plateau, 0),
    INT(tn_plateau_options, cooldown, 0, 3, -1, "cooldown -1", see_plateau, .patience = 2),
    FLAG(tn_plateau_options, maximize, see_plateau, 0),
    FLAG(tn_plateau_options, use_patience, see_plateau, 0),
    FLAG(tn_plateau_options, use_threshold, see_plateau, .patience = 1),
    FLAG(tn_plateau_options, absolute, see_plateau, .patience = 1, .threshold = .00985),
    REAL(tn_scaler_options, init_scale, 65536, 8, -1, "scale -1", see_scaler, 0),
    REAL(tn_scaler_options, growth, 2, 3, .5, "growth 0.5", see_scaler, 0),
    REAL(tn_scaler_options, backoff, .5, .25, 1.5, "backoff 1.5", see_scaler, 0),
    INT(tn_scaler_options, interval, 2000, 3, -1, "interval -1", see_scaler, 0),
    FLAG(tn_scaler_options, disabled, see_scaler, 0),
};
const option_rows options_of_optimizers = { rows, COUNT(rows) };
