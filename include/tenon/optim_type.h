/**
 * tenon/optim_type.h - what an optimizer is: its numbers, its states, its rule. tn_optim_new
 * (optim.h) makes one of a type of yours; ours are made so, too.
 *
 *     static void sign_f32(int64_t n, float *p, const float *g, float *const *state,
 *                          const tn_optim_numbers *o)
 *     {
 *         const float lr = (float)o->lr, keep = 1 - lr * (float)o->weight_decay;
 *         for (int64_t i = 0; i < n; i++) p[i] = keep * p[i] - lr * ((g[i] > 0) - (g[i] < 0));
 *     }
 *     ...
 *     static const tn_optim_type sign = {
 *         .name = "sign", .formula_f32 = sign_f32, .formula_f64 = sign_f64
 *     };
 *     tn_optim *opt = tn_optim_new(&sign, tn_parameters(model), (tn_optim_options){ .lr = 0.01 });
 */
#ifndef TENON_OPTIM_TYPE_H
#define TENON_OPTIM_TYPE_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/** A type has at most so many numbers and states. More may be in .user, which is in no file. */
enum { TN_OPTIM_NUMBERS = 8, TN_OPTIM_STATES = 6 };

/** A number of an optimizer, which each group has. */
typedef struct tn_number_type {
    const char *name;    /* "beta1": in messages, files, tn_optim_set_number. NULL: none */
    double initial;      /* where none is given */
    double least, below; /* finite, >= least, < below; a below of 0: no limit above */
    bool on_off;         /* a switch: 0 or 1 */
    bool settled;        /* fixed when its group is made: form reads it, or a state's `with` */
    bool optional;       /* in files only where it is not initial */
} tn_number_type;

/** A tensor that an optimizer keeps for each parameter. */
typedef struct tn_state_type {
    const char *name; /* "exp_avg": PARAMETER.exp_avg in files. NULL: none */
    const char *with; /* a number: where it is 0 there is no such state. NULL: always */
    double initial;   /* of all elements */
    /** shape and dtype come as the parameter's, and may be set here, by the group's numbers too;
     *  false: this parameter has no such state. NULL: as the parameter */
    bool (*form)(const tn_tensor *p, const double *number, tn_shape *shape, tn_dtype *dtype);
} tn_state_type;

/** What a rule reads of a parameter's group and of the step. */
typedef struct tn_optim_numbers {
    double lr, weight_decay, number[TN_OPTIM_NUMBERS]; /* in the type's order */
    int64_t step;                                      /* of this parameter, from 1 */
    double own[4]; /* 1, 0, 0, 0; the type's prepare may change it */
    void *user;    /* tn_optim_options.user */
} tn_optim_numbers;

/** A parameter in a step by tensors. */
typedef struct tn_optim_part {
    const char *name; /* the parameter's, in full */
    /** g: the gradient, without decay; state NULL: there is none. Do not write to any of them */
    tn_tensor *const p, *const g, *const state[TN_OPTIM_STATES];
    tn_optim_numbers numbers; /* of its group, in this step */
    /** to be set: tensors that come in their place, old ones too; NULL, as they begin: it stays */
    tn_tensor *new_p, *new_state[TN_OPTIM_STATES];
} tn_optim_part;

/**
 * Formulas of ours that a type may take: they use the CPU's vectors, run on GPUs, and are part of
 * captured steps. What they call b1, b2, eps and flag is number[0] to number[3]; own, by its index,
 * is what prepare put there; s0, s1, s2 are the states. First g = -g where number[4] is not 0, then
 * g += weight_decay p.
 */
typedef enum tn_optim_rule {
    TN_RULE_NONE,
    TN_RULE_SGD,     /* s0 = b1 s0 + (1 - b2) g, at step 1 g; p -= lr (flag ? g + b1 s0 : s0);
                      * without s0, p -= lr g */
    TN_RULE_ADAM,    /* s0 = b1 s0 + (1 - b1) g, s1 = b2 s1 + (1 - b2) g^2, s2 = max(s2, s1);
                      * p = own[0] p - (lr g + own[1] s0) / (own[2] sqrt(s2, or s1) + eps) */
    TN_RULE_RMSPROP, /* s0 = b1 s0 + (1 - b1) g^2, s1 = b1 s1 + (1 - b1) g;
                      * u = g / (sqrt(s0 - s1^2, or s0, + own[3]) + eps);
                      * p -= lr (s2 = b2 s2 + u, or u) */
    TN_RULE_ADAGRAD, /* s0 += g^2; p -= lr g / (sqrt(s0) + eps) */
    TN_RULE_LION,    /* p = own[0] p - lr sign(b1 s0 + (1 - b1) g); s0 = b2 s0 + (1 - b2) g */
    TN_RULE_ADAMAX,  /* s0 as Adam's, s1 = max(b2 s1, |g| + eps); p -= lr s0 / s1 */
} tn_optim_rule;

/**
 * An optimizer's type. It is copied; what it points to must live as long as its optimizers. It
 * changes p by exactly one of three, which applies decay (g + wd p, or p (1 - lr wd)), as rules do:
 *
 * rule     a formula of ours
 * formula  for n elements, a piece of one parameter, in place; several threads call it. CPU only.
 *          Both f32 and f64; bf16 and f16 come as f32. States 0 to 2 at most, all as the parameter
 * update   makes new tensors of the old ones' shape by our ops, on any device, unrecorded, without
 *          autocast; they are rounded to the dtype. All are made before one is written: if an op or
 *          update (tn_fail) failed, the step does and changes nothing. Not in captured steps
 */
typedef struct tn_optim_type {
    const char *name;     /* of letters, digits and _, not one of ours: in files and messages */
    const char *function; /* that makes one, in messages; NULL: tn_optim_new */
    tn_number_type number[TN_OPTIM_NUMBERS]; /* in any order, with gaps */
    tn_state_type state[TN_OPTIM_STATES];    /* the same */
    double lr;                               /* where none is given; 0: 1e-3 */
    const char *momentum; /* the number that tn_one_cycle_lr may move; NULL: none */
    /** NULL or what is wanted of a parameter ("want two axes"), of a group's numbers together */
    const char *(*takes)(const tn_tensor *p), *(*agree)(const double *number);
    /** for each parameter and step: fills o->own, and may change lr, weight_decay and the numbers,
     *  for these alone. It may be called again for a step, so it must give the same then. May be
     *  NULL */
    void (*prepare)(tn_optim_numbers *o);
    tn_optim_rule rule;
    void (*formula_f32)(int64_t n, float *p, const float *g, float *const *state,
                        const tn_optim_numbers *o);
    void (*formula_f64)(int64_t n, double *p, const double *g, double *const *state,
                        const tn_optim_numbers *o);
    tn_status (*update)(tn_optim_part *part, int n); /* of n parameters: 1, if not together */
    bool together; /* update is given all that a step changes; excludes shards */
    bool closure;  /* update evaluates the loss again; excludes scalers, and further groups */
} tn_optim_type;

TN_END_C_

#endif
