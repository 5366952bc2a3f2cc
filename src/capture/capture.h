/*
 * capture.h - the inside of a captured step: its parts that its optimizers know.
 */
#ifndef TNI_CAPTURE_H
#define TNI_CAPTURE_H

#include <tenon/capture.h>

#include "tensor/graphs.h"
#include "optim/optim.h"
#include "capture/notes.h"

/* A call of tn_optim_step in a captured step. */
typedef struct tni_captured_step {
    tn_optim *opt;            /* one reference */
    int64_t before;           /* its steps when it was captured */
    int n, n_params;          /* updated; all that opt had */
    tni_optim_tensor *tensor; /* n: what the kernel was told */
    int *param;               /* n: whose they are */
    /* (1 + slots) n: of each tensor and its states; the notes hold them */
    tni_storage **storage;
    bool *required; /* n_params: requires_grad */
} tni_captured_step;

struct tn_capture {
    tn_step step;
    void *user;
    tn_device device;
    const tni_graphs *graphs; /* NULL: runs are calls */
    int n;                    /* inputs; -1 before the first run */
    tni_meta *like;           /* n: of the first run's; rank -1: TN_NONE */
    /* n: what step gets, one reference each. On a GPU the capture's own */
    tn_tensor **input;
    bool warm; /* there was a run */
    tni_graph_size size;
    tni_graph *graph; /* NULL until the step is captured */
    tni_notes *notes;
    tn_tensor *result; /* one reference */
    tni_captured_step *steps;
    size_t n_steps, step_capacity;
    uint64_t draws; /* counters of the generator that a run takes */
    bool recording;
    tn_dtype autocasting;
};

/* tn_optim_step in the step that is captured: opt->call[0..n) goes to the kernel next. */
tn_status tni_capture_note(tni_notes *notes, tn_optim *opt, int n);
/* Whether the optimizers still update what they updated when the step was captured. */
tn_status tni_capture_check_steps(const tn_capture *c);
/* Counts the steps of one run, and tells the graph what they do; back: counts them back. */
void tni_capture_count(tn_capture *c, bool back);
/* Counts back what tn_optim_step counted in the capture. */
void tni_capture_uncount(tn_capture *c);
void tni_capture_drop_steps(tn_capture *c);

#endif
