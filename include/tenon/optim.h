/**
 * tenon/optim.h - optimizers, schedulers, clipping. They see parameters, never buffers.
 *
 * An optimizer is made from a list (tn_parameters(model)) and keeps its state by parameter name. It
 * refuses what it must not touch, and names it: a buffer (or memory shared with one), a non-leaf, a
 * tensor twice. It skips parameters without a gradient and frozen ones: no decay, no state.
 */
#ifndef TENON_OPTIM_H
#define TENON_OPTIM_H

#include <tenon/nn.h>
#include <tenon/optim_type.h>

TN_BEGIN_C_

/* ---- optimizers ------------------------------------------------------------------------------ */
/*
 * What holds for all, so that each comment can be short:
 *   Units    lr per step; decay is added to the gradient (L2), unless decoupled: p *= 1 - lr wd
 *   maximize climbs instead of descending
 *   State    made at a parameter's first step, in its dtype, on its device; moves with the module
 *   Errors   NULL, and a message naming what is wrong: a negative or non-finite number, a beta or
 *            alpha outside [0, 1), an empty list, a buffer, memory shared with one, a non-leaf, a
 *            tensor or a name twice
 *   Owner    yours: tn_optim_free. It keeps its tensors, and the modules that registered them
 *   Dtypes   any floating one. bf16 and f16 compute in f32, and round parameter and state once per
 *            step: what is below half a unit of the parameter, or of a slow average, is lost. f16
 *            is too short for averages of squares (below 3e-8 they are 0)
 */

/** Takes the parameters to be trained, and changes them step by step. */
typedef struct tn_optim tn_optim;

/** lr is per step. zero fields: lr 1e-3 (use_lr takes 0 as given), everything else 0. nesterov:
 *  momentum > 0, no dampening. */
typedef struct tn_sgd_options {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, use_lr;
} tn_sgd_options;
/** Stochastic gradient descent: g += wd p; buf = mom buf + (1-damp) g (first step buf = g); p -= lr
 *  (nesterov ? g + mom buf : buf). Sutskever et al. (2013) */
TN_API tn_optim *tn_sgd(const tn_list *parameters, tn_sgd_options o);

/** zero fields: lr 1e-3, beta1 0.9, beta2 0.999, eps 1e-8; weight_decay 0 means none (PyTorch's
 *  AdamW: 0.01). use_betas takes beta1 and beta2 as given, zero included; use_lr and use_eps lr and
 *  eps. */
typedef struct tn_adam_options {
    double lr, beta1, beta2, eps, weight_decay;
    bool amsgrad, maximize, use_betas, use_lr, use_eps;
    bool eps_hat;            /* eps beside the root of v before v is corrected, as in Keras */
    bool no_bias_correction; /* m and v as they are, as in MLX */
} tn_adam_options;
/** The same numbers; the default of weight_decay is 0 here too. */
typedef tn_adam_options tn_adamw_options;
/** Adam: p -= lr m / (sqrt(v) + eps), m and v the averages of g and g^2, corrected for their start;
 *  weight decay is added to the gradient. Kingma and Ba (2015), algorithm 1; with eps_hat, which
 *  is eps / sqrt(1 - beta2^t) in eps's place, the end of section 2 */
TN_API tn_optim *tn_adam(const tn_list *parameters, tn_adam_options o);
/** AdamW: the same with decay decoupled, p *= 1 - lr wd. Loshchilov and Hutter (2019), algorithm
 *  2 */
TN_API tn_optim *tn_adamw(const tn_list *parameters, tn_adamw_options o);

/** zero fields: lr 1e-2, alpha 0.99, eps 1e-8; use_lr, use_alpha, use_eps take 0 as given */
typedef struct tn_rmsprop_options {
    double lr, alpha, eps, weight_decay, momentum;
    bool centered, maximize, use_lr, use_alpha, use_eps;
    bool eps_in_sqrt; /* sqrt(s + eps), as in Keras, Paddle and optax */
} tn_rmsprop_options;
/** RMSprop: s = alpha s + (1 - alpha) g^2; p -= lr g / (sqrt(s) + eps); centered subtracts the
 *  square of g's average from s; with momentum buf = mom buf + that quotient, and p -= lr buf.
 *  Hinton, Coursera lecture 6e (2012) */
TN_API tn_optim *tn_rmsprop(const tn_list *parameters, tn_rmsprop_options o);

/** zero fields: lr 1e-2, eps 1e-10; use_lr, use_eps take 0 as given */
typedef struct tn_adagrad_options {
    double lr, lr_decay, weight_decay, initial_accumulator, eps;
    bool maximize, use_lr, use_eps;
} tn_adagrad_options;
/** Adagrad: s += g^2, from initial_accumulator on; p -= lr / (1 + (step - 1) lr_decay) g / (sqrt(s)
 *  + eps). Duchi et al. (2011) */
TN_API tn_optim *tn_adagrad(const tn_list *parameters, tn_adagrad_options o);

/* ---- of any type (optim_type.h) -------------------------------------------------------------- */

/** A number by its name; a switch is 0 or 1. */
typedef struct tn_number {
    const char *name; /* as the type says */
    double value;     /* in its range */
} tn_number;
/** zero fields: lr the type's, no decay; use_lr takes lr 0 as given. set: numbers as given; the
 *  others, and those without a name, are the type's. */
typedef struct tn_optim_options {
    double lr, weight_decay;
    tn_number set[TN_OPTIM_NUMBERS];
    bool use_lr;
    void *user; /* for the type's functions; must live as long as the optimizer */
} tn_optim_options;
/** Makes an optimizer of a type of yours. Errors: as for ours, and a type without a name or a rule;
 *  a number outside its range, or that the type does not have */
TN_API tn_optim *tn_optim_new(const tn_optim_type *type, const tn_list *parameters,
                              tn_optim_options o);

/* ---- hooks of a step ------------------------------------------------------------------------- */

/** Called by tn_optim_step, without recording; what it sees are tn_optim_parameters and
 *  tn_optim_state_dict. A status other than TN_OK fails the step. */
typedef tn_status (*tn_step_hook)(tn_optim *opt, void *user);
/** Registers one to be called before steps (after false), which may change gradients and numbers,
 *  and whose failure leaves everything as it was; or after them, when all has its new values: a
 *  failure then is the step's status, and the step stays. Those of one kind run in order. Not in
 *  steps that a scaler skips. id for tn_optim_remove_hook; -1: a NULL, or out of memory. Errors of
 *  a step with hooks: a captured one. */
TN_API int64_t tn_optim_add_hook(tn_optim *opt, bool after, tn_step_hook hook, void *user);
/** Removes the hook with this id. Removing twice is harmless. */
TN_API void tn_optim_remove_hook(tn_optim *opt, int64_t id);

/* ---- groups of parameters -------------------------------------------------------------------- */

/** Another group of parameters, with its own numbers. zero fields: the first group's; weight_decay
 *  0: none. use_lr takes lr as given, 0 included; use_numbers every other number here that this
 *  kind has; set: any by name, as given, switches too. */
typedef struct tn_group_options {
    double lr, weight_decay;
    double momentum, dampening, beta1, beta2, alpha, eps, lr_decay;
    bool use_lr, use_numbers;
    tn_number set[TN_OPTIM_NUMBERS];
} tn_group_options;
/** Adds a group. Errors: as for a new optimizer, and a number that this kind does not have or that
 *  tn_optim_set_number would refuse; then no group is added. */
TN_API TN_MUST_USE tn_status tn_optim_add_group(tn_optim *opt, const tn_list *parameters,
                                                tn_group_options o);
/**
 * The entries of a list for which keep returns true, in order, as a new list. Two groups, decay on
 * matrices only:
 *
 *     tn_list *p = tn_parameters(model);
 *     tn_optim *opt = tn_adamw(tn_list_filter(p, tn_decay, NULL),
 *                              (tn_adamw_options){ .weight_decay = 0.1 });
 *     tn_optim_add_group(opt, tn_list_filter(p, tn_no_decay, NULL), (tn_group_options){ 0 });
 *
 * Owner    current scope. Errors: keep NULL
 */
TN_API tn_list *tn_list_filter(const tn_list *list, bool (*keep)(const tn_entry *entry, void *user),
                               void *user);
/** Parameters that are commonly not decayed: of fewer than two axes (biases, gains), and all of
 *  modules whose type says no_decay (LayerNorm, BatchNorm). Weights of embeddings decay, as in
 *  GPT-2 reproductions. */
TN_API bool tn_no_decay(const tn_entry *entry, void *user);
TN_API bool tn_decay(const tn_entry *entry, void *user); /* all other parameters */
TN_API int tn_optim_groups(const tn_optim *opt);         /* number of groups; -1 for NULL */

/* ---- steps and settings ---------------------------------------------------------------------- */

/**
 * One update of every parameter: in one fused pass, unless the type has an update.
 *
 * Errors   a parameter that its module no longer holds, or that has become a buffer; parameters on
 *          several devices; a gradient of another dtype; out of memory
 * All checks and state allocation come before the first write: a failed step changes nothing. A
 * step changes the parameters in place, so backward through a graph that read them before is
 * refused.
 */
TN_API TN_MUST_USE tn_status tn_optim_step(tn_optim *opt);
/** Gradients to TN_NONE (their memory is kept for reuse by the allocator). */
TN_API TN_MUST_USE tn_status tn_optim_zero_grad(tn_optim *opt);
/** Frees the optimizer; parameters and gradients stay. NULL is ignored. */
TN_API void tn_optim_free(tn_optim *opt);

/** The group's rate; NaN and a message for a group that does not exist. */
TN_API double tn_optim_lr(const tn_optim *opt, int group);
/** Sets the rate; group -1: of all. Schedules take lr as the base rate from now on. */
TN_API TN_MUST_USE tn_status tn_optim_set_lr(tn_optim *opt, int group, double lr);
/** The group's decay; NaN and a message for a group that does not exist. */
TN_API double tn_optim_weight_decay(const tn_optim *opt, int group);
/** Sets the decay for the next steps; group -1: of all. Errors: negative or not finite. */
TN_API TN_MUST_USE tn_status tn_optim_set_weight_decay(tn_optim *opt, int group,
                                                       double weight_decay);
/** The group's other numbers, by the names of the options: "momentum", "dampening" (SGD), "beta1",
 *  "beta2", "eps" (Adam, AdamW), "alpha", "momentum", "eps" (RMSprop), "lr_decay", "eps" (Adagrad);
 *  switches, too: 0 or 1. NaN and a message for another name, and for a group that does not exist.
 */
TN_API double tn_optim_number(const tn_optim *opt, int group, const char *name);
/** Sets such a number for the next steps, as given: 0 means 0, not the default; group -1: all.
 *  Errors: what the constructor refuses; momentum, "amsgrad" or "centered" to or from 0, because
 *  which state a group has is settled when it is made. */
TN_API TN_MUST_USE tn_status tn_optim_set_number(tn_optim *opt, int group, const char *name,
                                                 double value);
TN_API int64_t tn_optim_steps(const tn_optim *opt); /* steps taken so far */
/** The optimizer's parameters, in order, with their full names. Owner: current scope. */
TN_API tn_list *tn_optim_parameters(const tn_optim *opt);
/**
 * The state as named tensors, the optimizer's own (live), in the current scope: NAME.exp_avg and so
 * on with NAME.step for every parameter that has been updated; group.0.lr, .base_lr, .weight_decay;
 * adamw.steps, .beta1 and so on, which are the first group's; group.1.beta1 where it differs.
 *
 * Names    Adam, AdamW: exp_avg, exp_avg_sq, max_exp_avg_sq; SGD: momentum_buffer; RMSprop:
 *          square_avg, grad_avg, momentum_buffer; Adagrad: sum; others: optimizers.h
 * Loading copies. It first compares names, shapes, dtypes and switches (nesterov, amsgrad, maximize
 * ...); if any differ, one message lists them all and nothing changes. Numbers come from the list;
 * a number that a group lacks there is the first group's.
 */
TN_API tn_list *tn_optim_state_dict(tn_optim *opt);
/** Loads such a list, as described above. */
TN_API TN_MUST_USE tn_status tn_optim_load_state_dict(tn_optim *opt, const tn_list *state);

/* ---- clipping -------------------------------------------------------------------------------- */

/**
 * Scales all gradients so that their joint p-norm (INFINITY: largest magnitude) is at most
 * max_norm: factor max_norm / (norm + 1e-6), at most 1. Returns the norm before; 0 without
 * gradients; NaN on error. Norms of bf16 and f16 are taken in f32.
 *
 * Errors   max_norm < 0, p <= 0; with error_if_nonfinite a NaN or infinite norm: nothing is
 *          changed. Without it such a norm makes every gradient NaN (or 0), as in PyTorch
 * Source   Pascanu et al. (2013), algorithm 1
 */
TN_API double tn_clip_grad_norm(const tn_list *parameters, double max_norm, double p,
                                bool error_if_nonfinite);
/**
 * The same without waiting for the device, for a step that is captured (capture.h) or must not
 * wait: the norm is a tensor of one f64 on the gradients' device, in the current scope, and the
 * factor is computed there. Where tn_clip_grad_norm scales nothing, this scales by 1; a norm that
 * is not finite makes every gradient NaN (or 0).
 *
 * Errors   NULL. max_norm < 0, p <= 0; no gradients, or on several devices
 */
TN_API tn_tensor *tn_clip_grad_norm_tensor(const tn_list *parameters, double max_norm, double p);
/** Clamps every gradient to [-limit, limit]. */
TN_API TN_MUST_USE tn_status tn_clip_grad_value(const tn_list *parameters, double limit);

/* ---- loss scaling: for tn_set_autocast(TN_F16) ----------------------------------------------- */

/**
 * Small gradients round to 0 in f16. So the loss is multiplied by a scale, and the gradients are
 * divided by it before the step. When a gradient is not finite, the step is skipped and the scale
 * falls; after enough good updates it grows again:
 *
 *     TN_CHECK(tn_optim_zero_grad(opt));
 *     TN_AUTOCAST(TN_F16) loss = tn_cross_entropy(tn_forward(model, x), y);
 *     TN_CHECK(tn_backward(tn_scaler_scale(scaler, loss)));
 *     TN_CHECK(tn_scaler_unscale(scaler, opt));       - only where gradients are read or clipped
 *                                                     before the step
 *     TN_CHECK(tn_scaler_step(scaler, opt));
 *     TN_CHECK(tn_scaler_update(scaler));             - once, after the steps of all optimizers
 *
 * Owner    yours: tn_scaler_free; between step and update it keeps the optimizers
 * Source   Micikevicius et al., Mixed Precision Training (2018), 3.2; torch.amp.GradScaler
 */
typedef struct tn_scaler tn_scaler;
/** zero fields: init_scale 65536, growth 2, backoff 0.5, interval 2000 good updates. disabled:
 *  every call passes through, as if the scale were 1 */
typedef struct tn_scaler_options {
    double init_scale, growth, backoff;
    int64_t interval;
    bool disabled;
} tn_scaler_options;
/** Makes one. Errors: NULL: init_scale <= 0 or not finite, growth <= 1, backoff outside (0, 1),
 *  interval < 1 */
TN_API tn_scaler *tn_scaler_new(tn_scaler_options o);
TN_API void tn_scaler_free(tn_scaler *s); /* frees it; NULL is ignored */
/** loss times the scale, recorded; a bf16 or f16 loss becomes f32 first. Owner: current scope */
TN_API tn_tensor *tn_scaler_scale(tn_scaler *s, tn_tensor *loss);
/** Divides the gradients that opt would use, in place. Errors: twice between two updates; a
 *  gradient of f16, where small ones have already become 0: the parameter is named and nothing is
 *  changed; a scale that has fallen to 0, with which PyTorch makes every parameter NaN */
TN_API TN_MUST_USE tn_status tn_scaler_unscale(tn_scaler *s, tn_optim *opt);
/** Unscales unless that is done, then calls tn_optim_step; skips it, with TN_OK, when a gradient is
 *  NaN or infinite (see tn_scaler_skipped). Errors: those of both; twice between two updates */
TN_API TN_MUST_USE tn_status tn_scaler_step(tn_scaler *s, tn_optim *opt);
/** Sets the scale for the next step. Errors: no step or unscale since the last update */
TN_API TN_MUST_USE tn_status tn_scaler_update(tn_scaler *s);
TN_API double tn_scaler_value(const tn_scaler *s);    /* the scale now; NaN for NULL */
TN_API int64_t tn_scaler_skipped(const tn_scaler *s); /* steps skipped so far; -1 for NULL */
/** The state as tensors, for checkpoints; call it between update and the next step: scale,
 *  growth_factor, backoff_factor, growth_interval, growth_tracker, skipped. Loading: all or
 *  nothing. A disabled scaler's list is empty. */
TN_API tn_list *tn_scaler_state_dict(tn_scaler *s);
/** Loads such a list, as described above. */
TN_API TN_MUST_USE tn_status tn_scaler_load_state_dict(tn_scaler *s, const tn_list *state);

/* ---- schedulers: call tn_scheduler_step after tn_optim_step ---------------------------------- */

/**
 * A rate as a function of the step t = 0, 1, ... and of each group's base rate (its rate when it
 * was made, or what tn_optim_set_lr set). Making a scheduler sets the rates of t = 0,
 * tn_scheduler_step those of the next t. All but plateau and multiplicative are in closed form: any
 * t can be computed directly.
 *
 * One      per optimizer at a time. While two live, a step of either is refused, and so is a new
 *          one beside one that has stepped: free it, or give both to tn_sequential_lr or
 *          tn_chained_lr
 * Owner    yours: tn_scheduler_free; it keeps its optimizer. Errors: NULL with the bad number named
 */
typedef struct tn_scheduler tn_scheduler;

/** base gamma^floor(t / step_size) */
TN_API tn_scheduler *tn_step_lr(tn_optim *opt, int64_t step_size, double gamma);
/** base gamma^(number of the n ascending milestones <= t) */
TN_API tn_scheduler *tn_multistep_lr(tn_optim *opt, const int64_t *milestones, int n, double gamma);
/** base gamma^t */
TN_API tn_scheduler *tn_exponential_lr(tn_optim *opt, double gamma);
/** eta_min + (base - eta_min) (1 + cos(pi t / t_max)) / 2, on past t_max too. Loshchilov and
 *  Hutter, SGDR (2017), eq. 5; with restarts: cycles of t0, t0 mult, t0 mult^2 ... steps */
TN_API tn_scheduler *tn_cosine_lr(tn_optim *opt, int64_t t_max, double eta_min);
/** The cosine started again after t0 steps, then after t0 mult, t0 mult^2 ... steps. */
TN_API tn_scheduler *tn_cosine_restarts_lr(tn_optim *opt, int64_t t0, int64_t mult, double eta_min);
/** base (start + (end - start) min(t, n) / n) */
TN_API tn_scheduler *tn_linear_lr(tn_optim *opt, double start, double end, int64_t n);
/** base factor for t < n, then base */
TN_API tn_scheduler *tn_constant_lr(tn_optim *opt, double factor, int64_t n);
/** base (1 - min(t, n) / n)^power */
TN_API tn_scheduler *tn_polynomial_lr(tn_optim *opt, int64_t n, double power);
/** factor(step, user) times the base rate */
TN_API tn_scheduler *tn_lambda_lr(tn_optim *opt, double (*factor)(int64_t step, void *user),
                                  void *user);
/** base factor(1, user) ... factor(t, user): each step does lr *= factor(t, user). A resumed run
 *  calls it for all steps before, so it must give the same again. */
TN_API tn_scheduler *tn_multiplicative_lr(tn_optim *opt, double (*factor)(int64_t step, void *user),
                                          void *user);
/** Linear from 0 over warmup steps (step t uses (t+1)/warmup), then cosine to eta_min at total. */
TN_API tn_scheduler *tn_warmup_cosine_lr(tn_optim *opt, int64_t warmup, int64_t total,
                                         double eta_min);
/** max_lr and total_steps must be given. */
typedef struct tn_one_cycle_options {
    double max_lr;                                  /* of every group, at the top */
    int64_t total_steps;                            /* in the whole cycle */
    double pct_start, div_factor, final_div_factor; /* 0: 0.3, 25, 1e4 */
    double base_momentum, max_momentum;             /* 0: 0.85, 0.95 */
    bool fixed_momentum;                            /* leave momentum (beta1) alone */
    bool use_momentum;                              /* takes both momenta as given */
} tn_one_cycle_options;
/** Up from max_lr / div_factor to max_lr in the first pct_start of all steps, then down to 1 /
 *  final_div_factor of the start, both along a cosine: PyTorch's OneCycleLR. Smith and Topin
 *  (2018). The base rate does not count; stepping past total_steps is an error. Moves momentum
 *  (SGD's, Adam's beta1) of all groups unless fixed_momentum. */
TN_API tn_scheduler *tn_one_cycle_lr(tn_optim *opt, tn_one_cycle_options o);
/** Runs n schedulers of one optimizer one after another, each counting from its own 0; consumes
 *  them, on failure too. milestones: n - 1 of them, ascending, where the next one begins. The last
 *  may be a plateau: it goes on from the rate that the one before has at its milestone, and from
 *  there steps are tn_plateau_step's. */
TN_API tn_scheduler *tn_sequential_lr(tn_optim *opt, tn_scheduler *const *schedulers, int n,
                                      const int64_t *milestones);
/** Runs n schedulers of one optimizer at once; consumes them, on failure too. The base of each is
 *  the rate of the one before, so their factors multiply: exponential 0.9 and step (2, 0.1) give 1,
 *  .9, .081, .0729. Errors: a plateau; a one-cycle, which has no base, behind others. */
TN_API tn_scheduler *tn_chained_lr(tn_optim *opt, tn_scheduler *const *schedulers, int n);
/** What counts as an improvement, and what follows without one. */
typedef struct tn_plateau_options {
    double factor, threshold, min_lr; /* 0: 0.1, 1e-4, 0 */
    int64_t patience, cooldown;       /* 0: 10 (use_patience takes 0 as given), 0 */
    bool maximize, use_patience;      /* maximize: larger metrics are better */
    bool use_threshold;               /* takes threshold 0 as given */
    bool absolute;                    /* the threshold is a difference, no part of the best */
} tn_plateau_options;
/** Multiplies lr by factor after more than patience calls without improvement; fed by
 *  tn_plateau_step. An improvement is below best - threshold |best| (above, +, with maximize), with
 *  absolute below best - threshold. A change of 1e-8 or less is not made. */
TN_API tn_scheduler *tn_plateau_lr(tn_optim *opt, tn_plateau_options o);
/** One step with the metric: a loss, or with maximize an accuracy. Errors: it is not the turn of a
 *  plateau. */
TN_API TN_MUST_USE tn_status tn_plateau_step(tn_scheduler *s, double metric);

/** Sets the rates of the next t. Errors: the turn of a plateau (it wants a metric); a one-cycle at
 *  its end. */
TN_API TN_MUST_USE tn_status tn_scheduler_step(tn_scheduler *s);
TN_API int64_t tn_scheduler_last_step(const tn_scheduler *s); /* t, from 0; -1 for NULL */
TN_API void tn_scheduler_free(tn_scheduler *s); /* gives its optimizer back; NULL is ignored */
/** State as tensors (step, rates, base rates), for checkpoints, under the schedule's name. Loading
 *  refuses another kind's state; it sets the optimizer's rates too; all or nothing. */
TN_API tn_list *tn_scheduler_state_dict(tn_scheduler *s);
/** Loads such a list, as described above. */
TN_API TN_MUST_USE tn_status tn_scheduler_load_state_dict(tn_scheduler *s, const tn_list *state);

TN_END_C_
#endif
