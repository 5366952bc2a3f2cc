/**
 * tenon/diagnose.h - what a model is, and what keeps it from learning: gradients against finite
 * differences, parameters that no gradient reaches, a table of all layers.
 */
#ifndef TENON_DIAGNOSE_H
#define TENON_DIAGNOSE_H

#include <tenon/autograd.h>

TN_BEGIN_C_

typedef struct tn_module tn_module; /* of module.h */
typedef struct tn_optim tn_optim;   /* of optim.h */

/* ---- when training does not learn ------------------------------------------------------------ */

/** The findings of tn_explain_training, counted. */
typedef struct tn_explain_report {
    int findings;     /* all of the following but frozen */
    int unread;       /* trainable parameters that were never read */
    int cut;          /* read, but history was lost on the way to the loss */
    int unused;       /* read, but nothing computed from them reaches the loss */
    int zero;         /* their gradient is 0 everywhere */
    int nonfinite;    /* their gradient holds NaN or an infinity, or the loss is one */
    int unregistered; /* tensors that forward read and no module registered */
    int missing;      /* trainable parameters that the optimizer does not hold */
    int foreign;      /* the optimizer's parameters that are not the model's */
    int mistakes;     /* of data, loss, values, learning rate and testing: see below */
    int reused;       /* 1: its last step used gradients that an earlier step had used */
    int elsewhere;    /* trainable parameters without a gradient on another rank of the run */
    int frozen;       /* no fault: parameters without requires_grad */
    double loss;      /* its value */
    char text[8192];  /* the printed text, cut with "..." */
} tn_explain_report;

/**
 * Runs loss(m, user) once, takes the gradients, and says what keeps m from learning: a line for
 * each finding, which begins with the full name of a parameter or module, then "N findings" or
 * "nothing to complain about". For a parameter without a gradient it names the op where its history
 * ended, the module that called that op, and why: tn_detach, TN_NO_GRAD, an op without a
 * derivative. If the optimizer's last step used gradients that an earlier step had used, because
 * nobody cleared them before backward added to them, "(optimizer)" begins a line.
 *
 * Mistakes  lines that begin with (loss): a softmax or sigmoid before a loss that takes it itself,
 *           or a constant loss; (data): targets of one class (not of tn_bce_with_logits: a GAN's
 *           are), no class 0 among all others, inputs of a root mean square above 30 read by the
 *           first layer; (values): 9 in 10 units of a relu 0 for all inputs, gates at their ends; a
 *           batch norm that was moved under TN_NO_GRAD, as a test in train mode does. And, with
 *           opt, "(optimizer)": on copies of both, a step more than quadruples the loss (Adam's:
 *           doubles) and a hundredth of it lowers it; or 100 steps of the rate that was set,
 *           schedules aside, lower it by less than 1.5 %, and one 100 times as long evenly. That
 *           runs loss up to three times more, with the copy; not for a loss below 0.1, several
 *           ranks, L-BFGS. Of the first 10 steps with state only Adam's and SGD's are judged, as
 *           too long. It knows nothing of clipping. Nothing is said of less than 16 inputs' values
 * Ranks     in a run of several, what it says of a gradient holds for this rank, whose number it
 *           gives. Parameters that had no gradient on another rank in the last averaging backward
 *           are findings too: one rank alone may ask, unless loss needs the others (a BatchNorm
 *           over all ranks)
 * file      NULL: nothing is printed
 * opt       NULL: no optimizer is checked
 * loss      computes forward and the loss, one element, without backward or step. Recording is on
 * report    NULL, or filled with the counts and the same text
 * Changes   nothing that lasts: parameters, gradients, buffers, extra state and the default
 *           generator are restored. Hooks run, and other side effects of loss remain. Checks of
 *           tn_set_anomaly are off
 * Sees      ops, tn_detach, in-place changes. Values that are read out (tn_item, tn_data) and
 *           written back can't be followed: then "its results do not reach the loss". A tensor
 *           counts as unregistered when it existed before the run, so a cache that forward fills is
 *           found in the second run
 * Errors    those of loss, and a loss of more than one element; then nothing is printed or filled
 */
TN_API tn_status tn_explain_training(FILE *file, tn_module *m, tn_optim *opt,
                                     tn_tensor *(*loss)(tn_module *m, void *user), void *user,
                                     tn_explain_report *report);

/* ---- where a step's time goes ---------------------------------------------------------------- */

/** A step that is repeated: forward, backward, update. A status other than TN_OK ends it. */
typedef tn_status (*tn_profile_step)(void *user);
/** zero fields: 3 steps, 20 rows, nothing printed */
typedef struct tn_profile_options {
    int steps;    /* that are timed */
    int rows;     /* of each table: the longest */
    FILE *file;   /* receives the tables */
    FILE *events; /* receives the last step as JSON for ui.perfetto.dev or chrome://tracing */
} tn_profile_options;

/**
 * Runs step once to warm up, once to see its memory, and then timed, and prints where the time
 * goes: by op, forward and backward apart, by optimizer and by module, and what made the tensors
 * that are there when the most memory is in use. Numbers are those of one step. No time is left
 * out: what belongs to no op, node of backward or update of an optimizer is "between the ops" (the
 * program's own work, its hooks, freeing), "the pass of backward", "hooks of gradients" or "the
 * profile itself". An op that fails works on until the next one. What backward recomputes counts
 * for the node that reads it, and all but the first forward of L-BFGS's closure for L-BFGS.
 *
 * step     runs 2 + steps times, each in a scope of its own; what it changes stays changed
 * GFLOP/s  of products, convolutions and attention (masks not regarded), by their shapes: 2 for a
 *          multiplication and an addition. Elsewhere empty
 * GB/s     of operands and results by their shapes, each once; in backward of what it reads and of
 *          all gradients, empty where dx may be dy itself. Caches make it more than memory gives
 * Memory   all that is in use; of tensors, those that another thread frees count as there
 * Modules  by their path from the outermost call's, * for numbers: blocks.*.attn is the sum over
 *          all blocks
 * GPU      waits for it at each event, so that times are right and a step is slower
 * Errors   step NULL, negative numbers, inside a captured step; those of step, and then nothing is
 *          printed; TN_E_IO. Checks of tn_set_anomaly are off
 */
TN_API TN_MUST_USE tn_status tn_profile(tn_profile_step step, void *user,
                                        tn_profile_options options);

/* ---- the model as a table -------------------------------------------------------------------- */

/** Prints a table of m: a tree with a row per module and, below it, one for each parameter and
 *  buffer (name, shape, dtype unless f32; "frozen", "not saved"; elements); then totals of elements
 *  and bytes, ties counted once. Equal numbered neighbours share a row, "0 to 5: Block, 6 times".
 *  Empty slots are left out. A module with several paths is shown under the first, and as "tied to"
 *  it under the others; of paths longer than 1,024 bytes only the end is shown, after "...". As
 *  wide as the terminal, from 60 to 120 columns; 80 in a file. */
TN_API tn_status tn_module_summary(FILE *file, tn_module *m);
/** The same, with the shapes that each module gave when a copy of m ran forward on x, in eval mode
 *  and under TN_NO_GRAD: "0: Linear(2, 16) -> [64,16]", of several calls the first. m keeps its
 *  mode and buffers, its hooks don't run. Errors, nothing printed: of tn_module_clone, forward. */
TN_API tn_status tn_module_summary_with(FILE *file, tn_module *m, tn_tensor *x);

/* ---- checking gradients ---------------------------------------------------------------------- */

/** zero fields: PyTorch's eps 1e-6, atol 1e-5, rtol 1e-3 */
typedef struct tn_gradcheck_options {
    double eps, atol, rtol; /* step; right within atol + rtol |numeric value| */
    bool second;            /* check second derivatives as well */
} tn_gradcheck_options;

/**
 * Compares backward with central differences, element by element, for every input that requires
 * grad. Here an embedding's padding row has a gradient like any other row, and not 0.
 *
 * inputs   f64 leaves, n of them; those with requires_grad are checked
 * Errors   TN_E_INVALID with the first mismatch: input, element, analytic and numeric value
 * Source   (f(x + eps) - f(x - eps)) / (2 eps); PyTorch's gradcheck defaults
 */
TN_API TN_MUST_USE tn_status tn_gradcheck(tn_function f, tn_tensor **inputs, int n, void *user,
                                          tn_gradcheck_options options);

/** zero fields: eps 1e-6, atol 1e-7, rtol 1e-5 */
typedef struct tn_module_gradcheck_options {
    double eps, atol, rtol; /* step; absolute and relative tolerance */
    bool fast;              /* one random direction for each parameter, instead of every element */
} tn_module_gradcheck_options;

/**
 * Compares the gradient of every trainable parameter of m with central differences of a loss, on a
 * copy of m in f64. A parameter is right where the two differ by at most atol + rtol |differences|;
 * a kink (relu, max) between the two points, and the loss's own rounding, are allowed for.
 *
 * loss      computes forward and the loss, one element, from the module that it is given: the copy.
 *           Inputs of modules become f64; a floating target must be cast by loss. Called once, and
 *           twice for each element, or in fast mode for each parameter; buffers, extra state and
 *           the default generator are the same each time, so dropout drops the same elements
 * Padding   an embedding's padding row, whose gradient is 0 by definition, is checked as any other
 *           row: with the gradient that it would have
 * Tied      a tensor with several names is one parameter; of two that are views of the same memory,
 *           each moves the other, which looks like a wrong gradient
 * Changes   nothing: neither m nor the default generator. m's hooks do not run, and the checks of
 *           tn_set_anomaly are off
 * Errors    TN_E_INVALID with the worst parameter, the op that reads it first, an element (in fast
 *           mode found by halving the direction), both values, and of several wrong parameters the
 *           one that forward reads last: what is wrong comes after it. The loss differs from call
 *           to call, or reads no parameter of the copy; m cannot be cloned; errors of loss
 * Source    PyTorch's gradcheck, with fast_mode
 */
TN_API TN_MUST_USE tn_status tn_module_gradcheck(tn_module *m,
                                                 tn_tensor *(*loss)(tn_module *m, void *user),
                                                 void *user, tn_module_gradcheck_options options);

/* ---- checking state -------------------------------------------------------------------------- */

/** Forward and loss, one element, of part `part` of a batch in `parts` (0 of 1: all of it) by the
 *  model that it is given, a copy. Random numbers are the default generator's. NULL with
 *  TN_E_UNSUPPORTED: this batch cannot be cut so. */
typedef tn_tensor *(*tn_check_step)(tn_module *model, int part, int parts, void *user);

/**
 * Runs a training step, with its backward, on copies of model in each way that there is, and names
 * what breaks the rule of a buffer's role: twice; recomputed, every module; in 2 and 4 parts
 * (TN_MICRO_BATCHES); in eval mode and frozen; cast; averaged; a second step of a clone, and of
 * what a checkpoint brings back; on a GPU captured, and replayed; in a run of several ranks, all of
 * which call this, on all of them.
 *
 * opt      NULL, or an optimizer of model's parameters: one like it, with its state, makes the
 *          steps that are resumed, cloned and captured, and its state is compared, too
 * report   NULL, or gets a line for each way, and before it up to 8 findings: "bn1.running_mean:
 *          moved twice in 2 parts: 0.1 where each by itself gives 0.05 at element 0; a statistic,
 *          counter or direction moves once for a batch, and only in training"
 * Equal    bit for bit; statistics in parts, and averages, within 1e-5 of the largest element of
 *          the same computed in double
 * Changes  nothing: neither model, opt nor the default generator. Their hooks do not run; a
 *          temporary file in TMPDIR is removed; a pending error is cleared
 * Errors   TN_E_STATE with the number of findings and the first one; those of step in the plain
 *          way and of tn_module_clone; TN_E_IO: of the temporary file; step NULL
 */
TN_API TN_MUST_USE tn_status tn_check_state(FILE *report, tn_module *model, tn_optim *opt,
                                            tn_check_step step, void *user);

TN_END_C_
#endif
