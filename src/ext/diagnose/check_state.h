/*
 * check_state.h - a check of tn_check_state, for the files that run its ways. What fails leaves its
 * error pending, with which no step is run and no list comes out.
 */
#ifndef TNI_CHECK_STATE_H
#define TNI_CHECK_STATE_H

#include <tenon/diagnose.h>

#include "nn/module.h"
#include "optim/optim.h"
#include "tensor/random.h"

/* What is compared. */
typedef enum tni_compared {
    ALL,
    PARTS, /* all; statistics are near */
    RANKS, /* all; the mean of gradients is near */
    SAVED, /* not buffers that are in no file */
    MEANS, /* parameters, and buffers but caches: near */
    FIXED, /* and not plain buffers: what no forward out of training may write */
    WIDE   /* of f32 buffers those that a cast leaves so; no step is run */
} tni_compared;

/* A way to run a step. */
typedef struct tni_way {
    const char *name, *other; /* "recomputed", and what it is compared with */
    const char *rule;         /* where a buffer's role has none */
    tni_compared compared;
    tn_status (*prepare)(tn_module *m);
} tni_way;

typedef struct tni_check {
    FILE *report; /* NULL: none */
    tn_module *model;
    tn_optim *opt; /* the caller's; NULL: none */
    tn_check_step step;
    void *user;
    bool backward;      /* of the loss */
    tn_status status;   /* what ends the check */
    int findings, here; /* of all ways; of this one */
    char first[1024];
    tn_list *start, *plain; /* before the first step, and after it */
    tn_list *from;          /* before the step that is looked at */
    tni_generator_state generator;
} tni_check;

/* Copies that are trained. */
typedef struct tni_check_copy {
    const tni_check *c;
    tn_module *m;  /* NULL: failed */
    tn_optim *opt; /* NULL: none, or failed */
} tni_check_copy;

/* ---- check_state.c --------------------------------------------------------------------------- */

/* Copies of m and opt (NULL: none), which are the caller's or like them, with the generator where
 * it was: tni_check_drop. */
tni_check_copy tni_check_copies(const tni_check *c, tn_module *m, tn_optim *opt);
void tni_check_drop(const tni_check_copy *copy);
/* Adds a copy of an entry. */
void tni_check_push(tn_list *list, const char *prefix, tn_entry e);
/* Adds copies of all that m and opt (NULL: none) have, and of the generator. Returns list. */
tn_list *tni_check_values(tn_list *list, tn_module *m, tn_optim *opt);
/* A pass by one part, whose loss is added to losses. */
void tni_check_part(const tni_check *c, tn_module *m, int part, int parts, tn_list *losses);
/* What a batch of n parts leaves. */
tn_list *tni_check_pass(const tni_check *c, tn_module *m, int n);
tn_tensor *tni_check_closure(void *copy); /* a tn_closure */
/* Sets that all modules of m are recomputed. */
tn_status tni_check_recompute(tn_module *m);
/* Says what differs. NULL: the way failed, which is a finding, but for what the step cannot do. */
void tni_check_judge(tni_check *c, const tni_way *w, const tn_list *got, const tn_list *want);

/* ---- check_ways.c ---------------------------------------------------------------------------- */

void tni_check_parts(tni_check *c, int n, bool recomputed);
void tni_check_captured(tni_check *c, tn_device gpu);
void tni_check_ranks(tni_check *c); /* of several, all call it, even those that have failed */

#endif
