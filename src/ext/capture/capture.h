/*
 * capture.h - the inside of a captured step, and how it treats its optimizers.
 */
#ifndef TNI_CAPTURE_H
#define TNI_CAPTURE_H

#include <tenon/capture.h>

#include "tensor/graphs.h"
#include "optim/optim.h"
#include "ext/capture/notes.h"

/* A parameter that it updates, and where it and its state were; the notes keep these alive. */
typedef struct tni_captured_param {
    int index; /* of the optimizer's */
    tni_storage *storage, *state[TNI_OPTIM_SLOTS];
} tni_captured_param;

/* A call of tn_optim_step in a captured step. */
typedef struct tni_captured_step {
    tn_optim *opt;             /* one reference */
    int64_t before;            /* its step count at the capture */
    int n, n_params;           /* parameters updated; parameters that opt had */
    tni_optim_tensor *tensor;  /* n: what the kernel was given */
    tni_captured_param *param; /* n: of each */
    bool *required;            /* n_params: requires_grad */
} tni_captured_step;

struct tn_capture {
    tn_step step;
    void *user;
    tn_device device;
    const tni_graphs *graphs; /* NULL: runs are calls */
    int n;                    /* inputs; -1 before the first run */
    tni_meta *like;           /* n: as in the first run; rank -1: TN_NONE */
    /* n: the step's inputs, one reference each. On a GPU the capture's own */
    tn_tensor **input;
    bool warm; /* there was a run */
    tni_graph_size size;
    tni_graph *graph; /* NULL until the step is captured */
    tni_notes *notes;
    tn_tensor *result; /* one reference */
    tni_captured_step *steps;
    size_t n_steps, step_capacity;
    uint64_t draws; /* generator counters that a run uses */
    bool recording;
    tn_dtype autocasting;
};

/* tn_optim_step inside the capture: opt->call[0..n) goes to the kernel next. */
tn_status tni_capture_note(tni_notes *notes, tn_optim *opt, int n);
/* Whether the optimizers still update what they updated when the step was captured. */
tn_status tni_capture_check_steps(const tn_capture *c);
/* Advances the step counts by one run, and tells the graph its numbers; back: undoes the count. */
void tni_capture_count(tn_capture *c, bool back);
/* Undoes what tn_optim_step counted in the capture. */
void tni_capture_uncount(tn_capture *c);
void tni_capture_drop_steps(tn_capture *c);

#endif
