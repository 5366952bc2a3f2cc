/*
 * optim.h - the inside of an optimizer, for the files of this folder and for checkpoints.
 *
 * An optimizer is a type (tn_optim_type: its numbers, its states, its rule), groups (rate, decay,
 * numbers) and parameters (name, tensor, state). Nothing here depends on a particular optimizer.
 */
#pragma once

#include "optim/serializer.h"
#include "tensor/optim_formulas.h"
#include <tenon/optim.h>

typedef struct tni_optim_group {
    double lr;      /* used by the next step */
    double base_lr; /* the rate last set by the user, which schedules multiply */
    double weight_decay;
    double number[TN_OPTIM_NUMBERS]; /* those that the type names; 0 */
    uint64_t slots;                  /* bit i: its parameters have state i */
} tni_optim_group;

typedef struct tni_optim_param {
    char *name;        /* full name, owned */
    tn_tensor *tensor; /* one reference */
    tn_module *owner;  /* the module whose slot it is, one reference; NULL for a raw leaf */
    int group;
    int holder;                        /* with shards: the rank that steps it and has its state */
    bool taken;                        /* by the step that runs */
    int64_t step;                      /* updates so far: 0 means no state */
    tn_tensor *state[TN_OPTIM_STATES]; /* one reference each; NULL until first needed */
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
    const tn_optim_type *type; /* a copy of the user's: the next */
    tn_optim_type copy;
    void *user;          /* for the type's functions */
    tni_hook_list hooks; /* of kind 0 before steps, of kind 1 after them */
    bool stepping;       /* a step runs: no other one meanwhile */
    int n_groups;
    size_t group_capacity;
    tni_optim_group *group;
    int n;
    size_t capacity;
    tni_optim_param *param;
    tni_map names;                                        /* of the parameters -> index + 1 */
    tni_map tensors;                                      /* -> name */
    size_t call_capacity, part_capacity, starts_capacity; /* n and up */
    tn_optim_part *part;    /* what step hands to the type's update; of all, their numbers */
    tni_optim_tensor *call; /* and to the kernel */
    int64_t *starts;        /* room for the kernel, so that it cannot fail */
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

/* The type in messages: the function that makes it, tn_sgd; else its name. */
static inline const char *tni_optim_label(const tn_optim_type *type)
{
    return type->function ? type->function : type->name;
}

/* The place of a name among the type's numbers; -1: none. */
int tni_optim_number_at(const tn_optim_type *type, const char *name);
/* Overwrites numbers by name. */
tn_status tni_optim_set_named(const char *function, const tn_optim_type *type, const tn_number *set,
                              double *number);
/* Whether a group's numbers are right for the type. */
tn_status tni_optim_check_numbers(const char *function, const tn_optim_type *type,
                                  const tni_optim_group *group);
/* A bit for each state that parameters with these numbers have. */
unsigned tni_optim_slots(const tn_optim_type *type, const double *number);
/* NULL: value is in the number's range; else the words for what is: "want in [0, 1)". */
const char *tni_number_misfit(const tn_number_type *number, double value, char text[64]);
/* The same as a status, with an error that names function and number. */
tn_status tni_number_check(const char *function, const tn_number_type *number, double value);
/* The same for one that is finite and >= 0. */
tn_status tni_optim_nonnegative(const char *function, const char *what, double value);
/* Whether p has state s, and its shape, dtype and device. */
bool tni_optim_form(const tn_optim *opt, const tni_optim_param *p, int s, tni_form *form);
TNI_SHARED tn_optim *tni_optim_keep(tn_optim *opt);
/* Whether a step runs, with an error: another step or group must wait. */
bool tni_optim_busy(const char *function, const tn_optim *opt);
/* Steps by tensors (update.c): the new tensors of opt->part[0..n), in the current scope; copies
 * them into the old ones. */
tn_status tni_optim_make(tn_optim *opt, int n);
tn_status tni_optim_write(tn_optim_part *part);
/* Whether a step leaves p alone: frozen, or without a gradient. */
bool tni_optim_skips(const tni_optim_param *p);
/* Makes all state of p that a step needs, or moves and casts it to p's device and dtype. */
tn_status tni_optim_ready(const tn_optim *opt, tni_optim_param *p);
/* Drops the state of parameters that are elsewhere. */
void tni_optim_release(tn_optim *opt);
/* What a rule reads in p's next step. */
tn_optim_numbers tni_optim_numbers_of(const tn_optim *opt, const tni_optim_param *p);

/* The state from a file, checked and ready to be put in place; NULL and a message on failure. */
tni_staged *tni_optim_stage(tn_optim *opt, const tn_list *state);
/* Whether loading needs that tensor's values: not those of state that another rank has. */
bool tni_optim_reads(const tn_optim *opt, const char *name);
tni_staged *tni_scheduler_stage(tn_scheduler *s, const tn_list *state);
tni_staged *tni_scaler_stage(tn_scaler *s, const tn_list *state);
