/*
 * explain.h - one watched run of a loss function, from which tn_explain_training makes its report
 * and tn_module_gradcheck learns the names of ops; and more runs of it, for finite differences.
 *
 * Every tensor that took part has a number, its index among the values. A use is one op with the
 * values it read and made; uses are in the order of time. Nothing is kept alive for them.
 */
#pragma once

#include "autograd/notify.h"
#include "ext/diagnose/arena.h"
#include "ext/diagnose/stream.h"
#include "io/file.h"
#include "nn/module.h"
#include "optim/optim.h"

/* Why results have no history although an input had one. */
typedef enum tni_cut {
    TNI_CUT_DTYPE, /* an integer or bool result cannot have one */
    TNI_CUT_DETACH,
    TNI_CUT_NO_GRAD,
    TNI_CUT_NO_BACKWARD,
    TNI_CUT_IN_PLACE
} tni_cut;

typedef struct tni_use {
    const char *prefix, *op; /* "tn_" and "add", or "" and the whole name; static */
    int module;              /* the calling module's index; -1: the loss function itself */
    int end; /* the first of its values in `ends`: n_in inputs, then n_out results */
    int n_in, n_out;
    tni_cut cut;
    bool view;
    double ends; /* the share of its gates that are at their ends; 0: it is no gate */
} tni_use;

typedef struct tni_value {
    bool old;       /* existed before the run */
    bool given;     /* was an input of a call from outside the model */
    bool reported;  /* as unregistered */
    bool leads;     /* the loss was computed from it */
    bool depends;   /* on the parameter that is followed now, */
    bool recorded;  /* and a gradient would reach that through it */
    bool parameter; /* of the model, and trainable */
    size_t maker;   /* the use that made it + 1; 0: none */
    tn_dtype dtype;
} tni_value;

typedef tn_tensor *(*tni_loss)(tn_module *m, void *user);

/* A value, with or without history: 2 * number + history. */
typedef uint32_t tni_end;

typedef struct tni_part {
    tn_module *module;
    char *path;       /* "" for the model */
    tn_tensor *extra; /* its extra state before the run; NULL */
} tni_part;

typedef struct tni_lines {
    tni_bytes text;
    int n;
} tni_lines;

typedef struct tni_run {
    tni_watcher watcher;  /* first: a tni_watcher * is a tni_run * */
    tni_watcher *outer;   /* put aside */
    const char *function; /* "tn_explain_training", for messages, */
    const char *what;     /* and "the loss" */
    tn_module *model;
    tni_loss loss;
    void *user;      /* for loss */
    tni_map member;  /* registered in the model: tensor -> tensor */
    tni_map known;   /* tensor -> its number + 1, or `fresh` */
    tni_map parts;   /* module -> its index + 1 */
    tni_arena arena; /* of the arrays */
    tni_part *part;
    struct tni_batch *buffers; /* of the model, from before the run; NULL: nothing to restore */
    tni_value *value;
    tni_use *use;
    tni_end *ends;
    tn_list *leaves;          /* the parameters that require grad; current scope */
    tn_tensor **leaf, **grad; /* those, and their gradients */
    size_t n_part, n_value, n_use, n_ends;
    tni_lines unregistered, mistakes;
    bool unscaled;    /* an input that is not scaled was seen */
    tn_status failed; /* out of memory where no status could be returned */
    unsigned char generator[TN_GENERATOR_STATE_SIZE];
} tni_run;

/* Remembers what a run of r->model (NULL: none) may change, once for each r. */
TNI_SHARED tn_status tni_run_carry(tni_run *r);
/* Puts the thread's watcher aside: in r->outer, from where the caller puts it back. r is zeroed.
 * Errors: arguments; a captured step runs. */
tn_status tni_run_begin(tni_run *r, const char *function, tn_module *m, tni_loss loss, void *user);
/* Calls the loss with recording on and everything watched, after tni_run_begin. *result is one
 * element, in the current scope. Changes made by the run stay until tni_run_restore. */
tn_status tni_run_watch(tni_run *r, tn_tensor **result);
/* The loss again, and then all as before: tni_run_restore. */
TNI_SHARED tn_status tni_run_loss(tni_run *r, double *value);
/* (L(leaf + h u) - L(leaf - h u)) / 2h of the loss L. leaf gets its bits and version back. */
TNI_SHARED tn_status tni_run_slope(tni_run *r, tn_tensor *leaf, tn_tensor *u, double h,
                                   double *slope);
/* Fills leaves, leaf and grad: TN_NONE where no gradient arrived. */
tn_status tni_run_gradients(tni_run *r, const tn_list *parameters, tn_tensor *loss);
bool tni_trains(const tn_entry *entry, void *unused); /* a leaf of those, for tn_list_filter */
/* Restores buffers, extra state and the default generator; may be called several times. */
tn_status tni_run_restore(tni_run *r);
TNI_SHARED void tni_run_free(tni_run *r);

/* Looks at what an op read and made; at the end, at gates. (explain_values.c) */
void tni_run_judge(tni_run *r, tni_use *use, const tni_call *c);
void tni_run_judge_gates(tni_run *r);
/* An optimizer like model's, with its state, of the parameters of a copy. (check_state.c) */
tn_optim *tni_optim_like(tn_optim *opt, tn_module *model, tn_module *copy);

/* The number of a tensor that took part, else -1. */
int tni_run_number(const tni_run *r, const tn_tensor *t);
/* "fc1: Linear", "Net" for the model itself, "the loss function" for -1. */
tni_phrase tni_run_place(const tni_run *r, int module);

/* Adds a line; out of memory: lines->text has failed. */
#define tni_say(lines, ...)                                                                        \
    ((lines)->n++, tni_bytes_printf(&(lines)->text, __VA_ARGS__),                                  \
     tni_bytes_add(&(lines)->text, "\n", 1))
