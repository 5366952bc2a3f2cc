/*
 * training.h - shared by the programs that train: options, the loop over steps with log, curves and
 * progress line, evaluations and checkpoints on the way, stopping early, resuming.
 */
#pragma once

#include "common.h"

/* The one run of a program, which defines it. */
extern struct ex_run {
    /* the options of every such program, with their defaults */
    const char *device, *precision, *save, *load, *checkpoint, *resume, *log, *plot, *html, *board;
    int seed, threads, checkpoint_every, keep, stop_after, html_steps;
    bool capture, shard, print_hash, memory, quiet;
    /* from ex_prepare */
    tn_device where;
    const char *place;    /* of checkpoints: a folder or a file */
    bool in_folder, lost; /* lost: none can be written there */
    /* from the program, before ex_start */
    tn_checkpoint state;     /* model, optimizer; scheduler, unless nothing is trained; loader */
    int total, batch, every; /* steps, rows a step, steps between evaluations (0: none) */
    int per_step;            /* units a step: the rate is in */
    const char *unit;        /* these, "tokens" */
    void (*next)(tn_tensor **in); /* the next step's two inputs, in the current scope */
    tn_step learn;                /* the step on the device: computes the loss, calls ex_learn */
    /* On process 0, not timed; mean: of the losses since the last call. The result goes to the log,
     * as value, and to the second curve, unless a signal came meanwhile. */
    double (*evaluate)(double mean);
    bool evaluate_last; /* after the last step, too */
    int uncaptured;     /* number of first steps that --capture does not record */
    const char *value, *y_label;
    tn_curve curve[2]; /* their labels; then about 200 means of losses, and the evaluations */
    /* from the rest */
    tn_dtype dtype;           /* of products; parameters stay f32 */
    tn_scaler *scaler;        /* of the loss in f16; else it passes everything through */
    tn_data_parallel *shared; /* the model, whose gradients all processes average */
    int step;                 /* steps taken */
    bool trained;
} ex;

#define EX_BIG 1e9
#define EX_DEFAULTS .device = "cpu", .precision = "f32", .seed = 1, .keep = 3, .html_steps = 3
/* Rows for the end of a program's table. --load is in the program's own rows. */
/* clang-format off */
#define EX_TRAINING_OPTIONS \
    EX_NUMBER("seed", ex.seed, 0, EX_BIG, EX_RUN, "of all that is random"), \
    EX_NUMBER("threads", ex.threads, 0, 1024, 0, "0: all cores; same bits for any"), \
    EX_TEXT("device", ex.device, "NAME", 0, "cpu or cuda"), \
    EX_TEXT("precision", ex.precision, "NAME", EX_RUN, \
            "f32; tf32 (cuda); mixed: bf16, f16; auto: bf16 where that is fast, else f32"), \
    EX_TEXT("resume", ex.resume, "PATH", EX_READ, \
            "goes on from a checkpoint, bit for bit; DIR/: from the newest that is whole"), \
    EX_TEXT("checkpoint", ex.checkpoint, "PATH", EX_REPLACED, \
            "whole state on the way and at the end: a file, or DIR/ for numbered ones"), \
    EX_NUMBER("checkpoint-every", ex.checkpoint_every, 0, EX_BIG, 0, "0: at evaluations"), \
    EX_NUMBER("keep", ex.keep, 0, 1e6, 0, "checkpoints that stay in DIR/, 0: all"), \
    EX_NUMBER("stop-after", ex.stop_after, 0, EX_BIG, 0, "steps, then a checkpoint; 0: no"), \
    EX_TEXT("save", ex.save, "FILE", EX_REPLACED, "weights and buffers at the end (safetensors)"), \
    EX_TEXT("log", ex.log, "FILE", EX_WRITTEN, "every step as CSV"), \
    EX_TEXT("tensorboard", ex.board, "DIR", 0, "curves and settings for TensorBoard"), \
    EX_TEXT("plot", ex.plot, "FILE", EX_REPLACED, "the curves as SVG"), \
    EX_TEXT("html", ex.html, "FILE", EX_WRITTEN, "a page that plays the first steps"), \
    EX_NUMBER("html-steps", ex.html_steps, 1, 1000, 0, "steps on that page"), \
    EX_FLAG("capture", ex.capture, "the step recorded once as a CUDA graph, and run again"), \
    EX_FLAG("shard", ex.shard, "of several processes each keeps a part of the optimizer's state"), \
    EX_FLAG("print-hash", ex.print_hash, "one number over all parameters and buffers"), \
    EX_FLAG("memory", ex.memory, "says whether tensors or allocations grew while it trained"), \
    EX_FLAG("quiet", ex.quiet, "prints only what other flags ask for")
/* clang-format on */

/* Called in this order. ex_prepare joins the processes of an mpirun, of which the first alone
 * prints and writes; takes options and the step from the file of --resume or --load; refuses files
 * that cannot be written; locks the place of checkpoints, so that no other run saves there. */
void ex_prepare(void);
/* Decides --precision; prints version, device, settings and the model; reads weights or the
 * checkpoint; the processes share the model. */
void ex_start(void);
/* All steps, unless a signal or --stop-after ends them; then --save. Returns units a second. */
double ex_train(void);
void ex_report(void); /* --plot, --print-hash; from here on signals end the program */
void ex_free(void);

/* After a loss: computes gradients, clips them to a total norm of at most clip (0: no limit), and
 * takes the optimizer's step. Returns the loss. */
tn_tensor *ex_learn(tn_tensor *loss, double clip);
/* Prints a line above the progress line. Nothing when quiet. */
void ex_say(const char *format, ...) TN_PRINTF(1, 2);
int ex_width(void); /* columns of the terminal; 80 where there is none */
void ex_curve_add(tn_curve *c, double x, double y);
/* FNV-1a: a hash of these bytes and all before them; begin with EX_HASH. */
#define EX_HASH 0xcbf29ce484222325u
uint64_t ex_hash(uint64_t hash, const void *bytes, size_t n);
uint64_t ex_hash_list(const tn_list *list); /* names, shapes and bits */
