/*
 * optim.h - the inside of an optimizer, for the files of this folder and for checkpoints.
 *
 * An optimizer is a type (constant: which kernel, what its state is called), the numbers the kernel
 * takes, groups (rate and decay) and parameters (name, tensor, state). Nothing here knows a
 * particular optimizer.
 */
#ifndef TNI_OPTIM_H
#define TNI_OPTIM_H

#include "tensor/internal.h"
#include "tensor/map.h"
#include <tenon/optim.h>

#define TNI_OPTIM_SLOTS 3
/* Steps that a file may speak of: nobody takes so many, and one more does not overflow. */
#define TNI_MOST_STEPS (INT64_MAX / 2)

/* What one kind of optimizer is. */
typedef struct tni_optim_type {
    const char *name; /* "sgd": messages say tn_sgd */
    tni_optim_kind kernel;
    const char *slot[TNI_OPTIM_SLOTS]; /* state tensors s0, s1, s2 as files name them */
    const char *number[3];             /* beta1, beta2, eps as files name them; NULL: not used */
    unsigned fractions;                /* bit i: number i is in [0, 1) */
    const char *flag;                  /* the same for flag; NULL: not used */
    bool momentum_is_beta1;            /* one-cycle schedules may move args.beta1 */
} tni_optim_type;

typedef struct tni_optim_group {
    double lr;      /* used by the next step */
    double base_lr; /* what schedules multiply: the rate last set by the user */
    double weight_decay;
} tni_optim_group;

typedef struct tni_optim_param {
    char *name;        /* full name, ours */
    tn_tensor *tensor; /* one reference */
    tn_module *owner;  /* the module whose slot it is, one reference; NULL for a raw leaf */
    int group;
    int64_t step;                      /* updates so far: 0 means no state */
    tn_tensor *state[TNI_OPTIM_SLOTS]; /* one reference each; NULL until first needed */
} tni_optim_param;

struct tn_optim {
    int refs; /* the user's, and one per scheduler */
    const tni_optim_type *type;
    tni_optim_args args;
    unsigned slots; /* bit i: slot i is used with these args */
    double initial; /* value that state starts with */
    int n_groups, group_capacity;
    tni_optim_group *group;
    int n, capacity;
    tni_optim_param *param;
    tni_map names, tensors; /* of the parameters -> name */
    int call_capacity;      /* n and up */
    tni_optim_tensor *call; /* what step hands to the kernel */
    int64_t steps;
};

/* Makes an optimizer with one group; NULL and a message when the list holds what it must not touch. */
tn_optim *tni_optim_new(const tni_optim_type *type, tni_optim_args args, unsigned slots,
                        double initial, const tn_list *parameters, double lr, double weight_decay);
tn_optim *tni_optim_keep(tn_optim *opt);
/* Sets a group's rate without moving the base that schedules multiply. */
void tni_optim_rate(tn_optim *opt, int group, double lr);
/* TN_OK if value is finite and >= 0; names function and what otherwise. */
tn_status tni_optim_nonnegative(const char *type, const char *what, double value);
/* The same for a decay factor in [0, 1). */
tn_status tni_optim_fraction(const char *type, const char *what, double value);

/* Loading in two steps, so that a checkpoint can check all its parts before any of them changes. */
typedef struct tni_optim_staged tni_optim_staged;
tni_optim_staged *tni_optim_stage(tn_optim *opt, const tn_list *state); /* NULL and a message */
void tni_optim_commit(tn_optim *opt, tni_optim_staged *staged); /* consumes staged; cannot fail */
void tni_optim_discard(tni_optim_staged *staged);               /* NULL is ignored */

typedef struct tni_scheduler_staged tni_scheduler_staged;
tni_scheduler_staged *tni_scheduler_stage(tn_scheduler *s, const tn_list *state);
void tni_scheduler_commit(tn_scheduler *s, tni_scheduler_staged *staged);
void tni_scheduler_discard(tni_scheduler_staged *staged);

/* What a gradient scaler's file holds; staging compares and changes nothing but *staged. */
typedef struct tni_scaler_state {
    double scale, growth, backoff;
    int64_t interval;
    int64_t good;    /* updates in a row without a skipped step */
    int64_t skipped; /* steps, ever */
} tni_scaler_state;
tn_status tni_scaler_stage(const tn_grad_scaler *s, const tn_list *state, tni_scaler_state *staged);
void tni_scaler_commit(tn_grad_scaler *s, const tni_scaler_state *staged);

/* Names that do not fit, collected before one message is made of them (report.c). */
typedef struct tni_report {
    int n[3];
    char text[3][320];
} tni_report;
enum { TNI_MISSING, TNI_UNEXPECTED, TNI_MISMATCHED };
void tni_report_add(tni_report *r, int category, const char *format, ...) TN_PRINTF(3, 4);
/* TN_OK when nothing was added, else the message: "FUNCTION: missing a, b; unexpected c; mismatched
 * d". */
tn_status tni_report_end(const tni_report *r, const char *function);

/* The entry of that name, or NULL without a message; *used (one bool per entry) notes it. */
tn_tensor *tni_report_find(const tn_list *list, bool *used, const char *name);
/* A 0-dim number of the list into *value; adds to the report what does not fit. */
void tni_report_f64(tni_report *r, const tn_list *list, bool *used, const char *name,
                    double *value);
void tni_report_i64(tni_report *r, const tn_list *list, bool *used, const char *name,
                    int64_t *value);
/* The same for a count of steps, and for a number that is finite and >= 0. */
void tni_report_steps(tni_report *r, const tn_list *list, bool *used, const char *name,
                      int64_t *value);
void tni_report_rate(tni_report *r, const tn_list *list, bool *used, const char *name,
                     double *value);
/* Adds every entry that nobody asked for. */
void tni_report_unused(tni_report *r, const tn_list *list, const bool *used);

/* list += a new 0-dim tensor of that name. */
tn_status tni_list_f64(tn_list *list, const char *name, double value);
tn_status tni_list_i64(tn_list *list, const char *name, int64_t value);

#endif
