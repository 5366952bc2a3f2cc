/*
 * optim.h - the inside of an optimizer, for the files of this folder and for checkpoints.
 *
 * An optimizer is a type (constant: which kernel, what its state is called), the kernel's switches,
 * groups (rate, decay, the kernel's numbers) and parameters (name, tensor, state). Nothing here
 * depends on a particular optimizer.
 */
#ifndef TNI_OPTIM_H
#define TNI_OPTIM_H

#include "optim/serializer.h"
#include "base/map.h"
#include "tensor/optim_formulas.h"
#include <tenon/optim.h>

#define TNI_OPTIM_SLOTS 3

/* What one kind of optimizer is. */
typedef struct tni_optim_type {
    const char *name;                  /* "sgd": messages say tn_sgd */
    int kernel;                        /* TNI_SGD ...: its row of optim_formulas.h */
    const char *slot[TNI_OPTIM_SLOTS]; /* state tensors s0, s1, s2 as files name them */
    const char *number[3];             /* beta1, beta2, eps as files name them; NULL: not used */
    unsigned fractions;                /* bit i: number i is in [0, 1) */
    const char *flag;                  /* the flag as files name it; NULL: not used */
    bool momentum_is_beta1;            /* one-cycle schedules may move number 0 */
} tni_optim_type;

typedef struct tni_optim_group {
    double lr;      /* used by the next step */
    double base_lr; /* the rate last set by the user, which schedules multiply */
    double weight_decay;
    double number[3]; /* beta1, beta2, eps of the kernel: those that the type names */
} tni_optim_group;

typedef struct tni_optim_param {
    char *name;        /* full name, owned */
    tn_tensor *tensor; /* one reference */
    tn_module *owner;  /* the module whose slot it is, one reference; NULL for a raw leaf */
    int group;
    int holder;                        /* with shards: the rank that steps it and has its state */
    int64_t step;                      /* updates so far: 0 means no state */
    tn_tensor *state[TNI_OPTIM_SLOTS]; /* one reference each; NULL until first needed */
} tni_optim_param;

/*
 * What an optimizer does differently when several processes (ranks) share out its parameters: each
 * steps its own, and has only their state (ext/parallel/shard.c).
 */
typedef struct tni_optim_shards tni_optim_shards;
struct tni_optim_shards {
    int own;    /* this rank: it holds the parameters with this holder */
    bool whole; /* the state of the others is here too, until the next step */
    /* n more parameters: sets their holders. On failure they are not added. */
    tn_status (*shard)(tni_optim_shards *s, tni_optim_param *param, int n);
    /* This rank has made ready for a step, with that status; returns the same on all ranks. */
    tn_status (*begin)(tni_optim_shards *s, tn_status status);
    /* This rank's parameters have their new values: sends them and receives the others'. */
    tn_status (*end)(tni_optim_shards *s);
    /* The optimizer is freed. */
    void (*drop)(tni_optim_shards *s);
};

struct tn_optim {
    int refs;                /* the user's, and one per scheduler */
    tn_scheduler *schedules; /* those that set its rates: no children of a sequence (scheduler.c) */
    const tni_optim_type *type;
    tni_optim_args args;
    unsigned slots; /* bit i: slot i is used with these args */
    double initial; /* value that state starts with */
    int n_groups;
    size_t group_capacity;
    tni_optim_group *group;
    int n;
    size_t capacity;
    tni_optim_param *param;
    tni_map names;                         /* of the parameters -> index + 1 */
    tni_map tensors;                       /* -> name */
    size_t call_capacity, starts_capacity; /* n and up */
    tni_optim_tensor *call;                /* what step hands to the kernel */
    int64_t *starts;                       /* room for the kernel, so that it cannot fail */
    int64_t steps;
    bool reused;              /* the last step used a gradient that an earlier one had used */
    tni_optim_shards *shards; /* NULL: all parameters are stepped here */
};

/* Whether the optimizer that a user passed is NULL or (noticed with TN_DEBUG=1) freed. */
static inline bool tni_no_optim(const tn_optim *opt)
{
    return !opt || tni_gone(opt);
}

/* Whether another rank steps p and has its state. */
static inline bool tni_optim_elsewhere(const tn_optim *opt, const tni_optim_param *p)
{
    return opt->shards && p->holder != opt->shards->own;
}

/* Makes an optimizer with one group, whose base_lr is its lr; NULL and a message when the type does
 * not allow a number of the group, or the list holds a tensor that it must not touch. */
tn_optim *tni_optim_new(const tni_optim_type *type, tni_optim_args args, unsigned slots,
                        double initial, const tn_list *parameters, tni_optim_group group);
TNI_SHARED tn_optim *tni_optim_keep(tn_optim *opt);
/* Whether a step leaves p alone: frozen, or without a gradient. */
bool tni_optim_skips(const tni_optim_param *p);
/* Makes all state of p that a step needs, or moves and casts it to p's device and dtype. */
tn_status tni_optim_ready(const tn_optim *opt, tni_optim_param *p);
/* Drops the state of parameters that are elsewhere. */
void tni_optim_release(tn_optim *opt);
/* Sets what the kernel reads from a parameter's group. */
void tni_optim_group_numbers(const tni_optim_group *group, tni_optim_tensor *c);
/* TN_OK if value is finite and >= 0; else an error that names type and what. */
tn_status tni_optim_nonnegative(const char *type, const char *what, double value);
/* The same for a decay factor in [0, 1). */
tn_status tni_optim_fraction(const char *type, const char *what, double value);

/* The state from a file, checked and ready to be put in place; NULL and a message on failure. */
tni_staged *tni_optim_stage(tn_optim *opt, const tn_list *state);
/* Whether loading needs that tensor's values: not those of state that another rank has. */
bool tni_optim_reads(const tn_optim *opt, const char *name);
tni_staged *tni_scheduler_stage(tn_scheduler *s, const tn_list *state);
tni_staged *tni_scaler_stage(tn_scaler *s, const tn_list *state);

#endif
