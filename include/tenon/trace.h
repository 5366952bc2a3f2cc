/**
 * tenon/trace.h - training steps, told: what forward computed, which gradient backward sent where,
 * what the optimizer moved.
 *
 * Between tn_trace_begin and tn_trace_end everything that the calling thread does is noted, in
 * numbers: of each tensor the norm, extremes and, while it is small, the values, at the moment when
 * they were there. Nothing that is watched changes by a bit, and no tensor is kept for the account.
 *
 *     tn_trace *trace = tn_trace_begin((tn_trace_options){ .model = model, .opt = opt });
 *     for (int step = 0; step < 3; step++) train(model, opt, step);
 *     TN_CHECK(tn_trace_end(trace));
 *     TN_CHECK(tn_trace_text(stdout, trace));
 *     tn_trace_free(trace);
 *
 * Programs that call these functions link libtenon-trace as well, which needs libtenon: pkg-config
 * gives both for tenon-trace.
 */
#ifndef TENON_TRACE_H
#define TENON_TRACE_H

#include <tenon/optim.h>

TN_BEGIN_C_

/** An account of training steps. Plain numbers and names: it holds no tensor, and outlives all. */
typedef struct tn_trace tn_trace;

/** zero fields: no model, no optimizer, values of tensors of up to 64 elements */
typedef struct tn_trace_options {
    tn_module *model;  /* names its tensors and calls; held until the end */
    tn_optim *opt;     /* the ledger says which tensors it holds; held until the end */
    const char *title; /* NULL: the model's type */
    int64_t values;    /* tensors of at most this many elements keep their values, larger ones
                          a picture of some for a page; -1: neither */
    bool lines;        /* ops have the source line that called them (tn_set_lines) */
} tn_trace_options;

/**
 * Starts an account of what this thread does: forward, backward, optimizer steps.
 *
 * A step    is what forward computed since the last step of an optimizer, the backward passes over
 *           it, and the optimizers' steps after them. tn_trace_end ends an unfinished one
 * Told      ops that a backward went through. Parts that lead to no loss are left out. Of a
 *           gradient also what each hook makes of it, and its average over ranks (parallel.h)
 * Moved     what changed a parameter or buffer in the step: a module's call (forward), a backward,
 *           the optimizer, anything else (hand), or several of them. Not known: nobody was seen to
 *           do it, as when another thread wrote, or another tensor was put there
 * Threads   Only the calling one is watched. Of what other threads do it sees
 *           - an op, if a backward pass here goes through it: as far as the tape remembers it, as
 *             in tn_explain without a trace
 *           - a tensor that another thread made, as a loader's: from when an op here reads it
 *           - a write: by the new value of a parameter or buffer; who moved it is not known
 *           and nothing else: no backward pass, no optimizer step. A tensor without a name that
 *           another thread made may get the id of an earlier one of the same shape and dtype that
 *           was freed; each op still has the values that it read
 * Changes   nothing: parameters, buffers, gradients and generators keep their bits
 * Time      every result and gradient is read once, and all parameters and buffers three times a
 *           step; on a GPU every reading waits for the device
 * Memory    runs out: the account ends there, what it watches goes on, and tn_trace_end says so
 * Owner     yours: tn_trace_free
 * Errors    NULL: model is none; anomaly mode is on, a step is being captured, or this thread is
 *           watched already (another trace, tn_explain_training); out of memory
 */
TN_API tn_trace *tn_trace_begin(tn_trace_options options);

/** Ends the account, in the thread that began it. Errors: trace NULL or ended; another thread's;
 *  memory ran out on the way (the account is then cut short, and can still be written). */
TN_API tn_status tn_trace_end(tn_trace *trace);

/** Ends it if necessary, in the thread that began it. NULL is ignored. */
TN_API void tn_trace_free(tn_trace *trace);

/**
 * Writes the account as JSON: one object with modules, tensors and steps. Numbers that are not
 * finite are the strings "nan", "inf" and "-inf".
 *
 * Same     program, same names and ids
 * Errors   file or trace NULL; the trace has not ended; the file cannot be written
 */
TN_API TN_MUST_USE tn_status tn_trace_json(FILE *file, const tn_trace *trace);

/**
 * Writes the account in words: for each step forward, op by op; backward, with the gradients that
 * come and go; what the optimizer moved; and the state of every registered tensor. Numbers are
 * norms, with the values of tensors of up to 8 elements.
 *
 * Errors   as tn_trace_json
 */
TN_API TN_MUST_USE tn_status tn_trace_text(FILE *file, const tn_trace *trace);

/**
 * Says what differs between two accounts, step by step, and nothing else: modes, ops that only one
 * has, buffers that forward moved in one, parameters that are frozen or without gradient in one,
 * and norms (results, gradients, the state after the step) that differ by more than 1e-6 of the
 * larger. "no difference" if there is none.
 *
 * Errors   file, a or b NULL; one has not ended; the file cannot be written
 */
TN_API TN_MUST_USE tn_status tn_trace_diff(FILE *file, const tn_trace *a, const tn_trace *b);
TN_OLD_NAME_(tn_explain_diff, tn_trace_diff);

/** zero fields: no model, no optimizer, values of up to 64 elements, no finite differences */
typedef struct tn_explain_options {
    tn_module *model; /* as in tn_trace_options */
    tn_optim *opt;    /* likewise */
    int64_t values;   /* likewise */
    /** Computes the loss again, with the same data and the same random numbers; model is the one
     *  above. Then each leaf's gradient g is compared with (L(+h u) - L(-h u)) / 2h, u = g / |g|:
     *  its norm. NULL: no comparison. */
    tn_tensor *(*again)(tn_module *model, void *user);
    void *user; /* for again */
    FILE *json; /* NULL, or gets the account as JSON */
} tn_explain_options;

/**
 * Does what tn_backward(loss) does, bit for bit, and tells it in words: for each op what arrives,
 * the share of each input with its rule and shapes, what is summed, which leaf grows, what is
 * freed; then the state of all registered tensors.
 *
 *     TN_PLACES loss = tn_cross_entropy(tn_forward(model, x), y);
 *     TN_CHECK(tn_explain(stdout, loss, (tn_explain_options){ .model = model }));
 *
 * Forward   is known as far as the tape remembers it (tn_set_places, tn_set_lines). A trace that
 *           watched it knows more: what it computed, and what it did to buffers
 * Findings  name the op to blame for a gradient that is
 *           - nan or inf: it got none of them, and gave some; the same for results
 *           - zero: it got one that is not 0, and gave one that is 0 everywhere
 *           - vanishing: of a leaf, its norm is below 1e-5 of the largest leaf's
 *           - exploding: its norm is above 1000, and above 1000 times the leaf's own
 *           of a bias in front of a batch norm only why its gradient is 0 (no effect)
 *           and say which kept value was overwritten in place, and by which function
 * Again     leaves, buffers, extra state and the default generator are put back after each run
 * Errors    file NULL; as tn_backward (then the text says how far it came), tn_trace_begin, and
 *           again's; the files cannot be written. Where memory runs out after backward, gradients
 *           are in place and nothing is told
 */
TN_API TN_MUST_USE tn_status tn_explain(FILE *file, tn_tensor *loss, tn_explain_options options);

/**
 * Writes one page (HTML) that plays the accounts op by op, forward and backward: the graph with its
 * modules to fold, the numbers and formulas of each op, the state ledger. It needs no network, and
 * shows losses and ledgers even without scripts. Several traces (one in training mode, one in eval
 * mode, one with parts frozen) stand side by side, with what differs.
 *
 * n        traces in the page, at least 1
 * Size     the page's own 140 kB, about 0.6 kB for each op of a step with small tensors, at most
 *          1.3 MB for pictures of a trace's large ones: fewer values make a smaller page
 * Errors   file, traces or one of them NULL; n < 1; a trace that has not ended; no room in the file
 */
TN_API TN_MUST_USE tn_status tn_trace_html(FILE *file, tn_trace *const *traces, int n);
TN_OLD_NAME_(tn_graph_html, tn_trace_html);

/* ---- curves ---------------------------------------------------------------------------------- */

/** One line of a plot: n points. */
typedef struct tn_curve {
    const char *label;   /* for the legend; NULL: none */
    int64_t n;           /* how many points */
    const double *x, *y; /* n of each */
} tn_curve;
/** Writes the curves as an SVG with axes and a legend, dark where the reader's system is. A point
 *  that is not finite breaks a line; texts may be NULL. The file is replaced as by tn_save. */
TN_API TN_MUST_USE tn_status tn_plot_svg(const char *path, const char *title, const char *x_label,
                                         const char *y_label, const tn_curve *curves, int n);

TN_END_C_
#endif
