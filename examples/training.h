/*
 * training.h - shared by the programs that train: their flags, device and precision, the log and
 * the curve of the loss, where checkpoints are read and written, stopping early.
 */
#ifndef EXAMPLES_TRAINING_H
#define EXAMPLES_TRAINING_H

#include "common.h"

/* Values of the flags that every such program has, and what follows from them. */
typedef struct ex_settings {
    const char *device, *precision, *save, *load, *checkpoint, *resume, *log, *plot, *html;
    int64_t seed, threads, checkpoint_every, keep, stop_after, html_steps;
    bool capture, shard, print_hash, memory, quiet;
    const char *place; /* where checkpoints go: a file, or a folder of numbered ones; NULL: a new
                          file where the program runs, when there is one to save */
    bool in_folder;
    tn_device where;          /* from --device */
    bool chosen;              /* precision, by --precision auto */
    tn_data_parallel *dealt;  /* with --shard, of several processes; NULL: none */
    char resume_file[4096];   /* the file meant by --resume */
    char default_place[4096]; /* without --checkpoint */
} ex_settings;

#define EX_SETTINGS .device = "cpu", .precision = "f32", .seed = 1, .keep = 3, .html_steps = 3

/* Their rows, for the end of a program's table. --load is in the program's own rows. */
/* clang-format off */
#define EX_TRAINING_ROWS(s)                                                                        \
    EX_WHOLE_ROW("seed", (s).seed, 0, 1e9, EX_RUN, "of all that is random"),                       \
    EX_WHOLE_ROW("threads", (s).threads, 0, 1024, 0, "0: all cores; same bits for any"),           \
    EX_TEXT_ROW("device", (s).device, "NAME", "cpu or cuda"),                                      \
    { "precision", EX_TEXT, &(s).precision, "NAME", "f32; tf32 (cuda); mixed: bf16, f16; auto:"    \
      " bf16 where the device multiplies it, else f32", 0, 0, EX_RUN, false },                     \
    EX_TEXT_ROW("save", (s).save, "FILE", "weights and buffers at the end (safetensors)"),         \
    EX_TEXT_ROW("checkpoint", (s).checkpoint, "PATH", "whole state on the way and at the end:"     \
                " a file, or DIR/ for numbered ones"),                                             \
    EX_WHOLE_ROW("checkpoint-every", (s).checkpoint_every, 0, 1e9, 0,                              \
                 "steps between checkpoints, 0: at evaluations"),                                  \
    EX_WHOLE_ROW("keep", (s).keep, 0, 1e6, 0, "checkpoints that stay in DIR/, 0: all"),            \
    EX_TEXT_ROW("resume", (s).resume, "PATH", "goes on from a checkpoint, bit for bit;"            \
                " DIR/: from the newest that is whole"),                                           \
    EX_WHOLE_ROW("stop-after", (s).stop_after, 0, 1e9, 0,                                          \
                 "stops early, with a checkpoint; 0: no"),                                         \
    EX_TEXT_ROW("log", (s).log, "FILE", "every step as CSV"),                                      \
    EX_TEXT_ROW("plot", (s).plot, "FILE", "the curves as SVG"),                                    \
    EX_TEXT_ROW("html", (s).html, "FILE", "a page that plays the first steps, for a browser"),     \
    EX_WHOLE_ROW("html-steps", (s).html_steps, 1, 1000, 0, "steps on that page"),                  \
    EX_FLAG_ROW("capture", (s).capture, "the step recorded once as a CUDA graph, and run again"),   \
    EX_FLAG_ROW("shard", (s).shard, "of several processes each keeps a part of the optimizer's state"), \
    EX_FLAG_ROW("print-hash", (s).print_hash, "one number over all parameters and buffers"),       \
    EX_FLAG_ROW("memory", (s).memory, "says whether tensors or allocations grew while it trained"), \
    EX_FLAG_ROW("quiet", (s).quiet, "prints only what other flags ask for")
/* clang-format on */

/* After ex_parse: refuses flags that exclude each other and files that cannot be written, finds the
 * device, what --precision auto means on it, and the file that --resume DIR/ means, makes the
 * folder of --checkpoint DIR/, sets the number of threads. A new run may not begin in a folder with
 * checkpoints of this program: the newest would be mistaken for its own. Nor may two runs save to
 * one place: this one locks it until the program ends. */
/* Joins a run of several processes, of which rank 0 alone prints and writes files. */
void ex_settle(ex_settings *s, const ex_options *options);
/* Why a stopped run without a given place cannot be saved; NULL: it can. */
const char *ex_why_no_place(const ex_settings *s);
/* The dtype of products for TN_AUTOCAST, from --precision or the checkpoint; tf32 is f32 with
 * rounded operands, allowed from here on. Refuses other words, and tf32 on a CPU. */
tn_dtype ex_precision(const ex_settings *s);
/* The scaler that f16 needs (optim.h); NULL for other dtypes. Owner: the caller, tn_scaler_free. */
tn_scaler *ex_scaler(tn_dtype precision);
/* In a run of several processes (mpirun), the handle that averages the model's gradients, after
 * weights were loaded, and before a checkpoint is, so that with --shard each process reads its own
 * part; tn_parallel_share_random follows that. NULL alone. Refuses a batch that does not divide by
 * the ranks, and processes that begin after another step than process 0 or from another checkpoint,
 * or with other flags. The data are compared before, by tn_parallel_same.
 * Owner: the caller, ex_unshare. */
tn_data_parallel *ex_share(ex_settings *s, const ex_options *options, tn_module *model,
                           tn_optim *optimizer, int64_t batch, int64_t step);
/* With --shard process 0's answer in all of them, for what they do together; else own. */
bool ex_first(const ex_settings *s, bool own);
/* At the end: waits for the other processes, then frees the handle. */
void ex_unshare(tn_data_parallel *shared);
/* This rank's part of a whole batch's rows: a view in the current scope. */
tn_tensor *ex_part(tn_tensor *rows);
/* After a loss: computes gradients, clips them to a total norm of at most clip (0: no limit), and
 * takes the optimizer's step. On a GPU only clipping and the scaler (NULL: none) wait, since they
 * read the gradients. With --capture nothing waits: non-finite gradients then show only in the
 * loss. */
void ex_learn(const ex_settings *s, tn_tensor *loss, tn_optim *optimizer, tn_scaler *scaler,
              double clip);
/* With --capture, the capture of that step (not possible with --precision f16); else NULL. Owner:
 * the caller, tn_capture_free. */
tn_capture *ex_capture(const ex_settings *s, tn_step step, void *user, const tn_scaler *scaler);
/* Runs the step, through the capture unless that is NULL. In the current scope. */
tn_tensor *ex_run(tn_capture *capture, tn_step step, void *user, int n, tn_tensor *const *in);
/* Prints version, threads, device, and the run's settings. Nothing when quiet. */
void ex_print_head(const ex_settings *s, const ex_options *options);

/* Saves to the place; in a folder under the program's name and c->step, keeping --keep of them.
 * With --shard all processes call it, and process 0 saves. False after a complaint, when the file
 * cannot be written: training goes on. */
bool ex_checkpoint(ex_settings *s, const tn_checkpoint *c);
/* "checkpoint after step 12; go on with --resume PATH" */
void ex_say_checkpoint(const ex_settings *s, int64_t step);
/* Reports the result of --save; false after a complaint. Then the weights should be saved in a
 * checkpoint, and ex_say_rescued says how to get them from there. */
bool ex_saved(const ex_settings *s, tn_status status);
void ex_say_rescued(const ex_settings *s);
/* After --resume: "going on after step 12", or how to continue a finished run; flag: the one for
 * its length. Nothing without --resume, or when quiet. */
void ex_say_resumed(const ex_settings *s, int64_t step, int64_t total, const char *flag);

/* Writes --plot; a failure is a complaint. */
void ex_plot(const ex_settings *s, const char *y_label, const tn_curve *curves, int n);

/* ---- the clockwork of a loop over steps ------------------------------------------------------ */

enum { EX_LATEST = 64 };

/* A step that was taken: its line in the log. */
typedef struct ex_taken {
    int64_t step;
    double loss, lr;
    bool progress; /* counts in the progress line */
    char more[32];
} ex_taken;

/*
 * Reading a loss waits until the GPU has finished all its work, and then the GPU is idle. So a step
 * leaves its loss on the device; the host reads the latest losses together when there is something
 * to print, when time is measured, and when there is no room for more.
 */
typedef struct ex_training {
    const ex_settings *set;
    ex_progress progress;
    ex_watch watch;
    ex_curve curve; /* of the loss: about 200 points, each a mean */
    int64_t began;  /* the step it began after */
    int64_t point, in_mean;
    double mean;
    double sum; /* of losses, and their count, since ex_training_mean */
    int64_t summed;
    tn_tensor *losses; /* [EX_LATEST] f32, on the device */
    ex_taken taken[EX_LATEST];
    int n, read;  /* steps in taken; those whose loss the host knows */
    FILE *log;    /* NULL: none, or given up */
    long log_end; /* after its last whole line; -1: of a pipe */
    bool leave;   /* a signal came, or --stop-after is reached */
    ex_page page; /* of --html: ex_page_begin after ex_training_begin; the rest is done here */
} ex_training;

/* Catches signals (ex_catch_signals): the first one sets leave at the next step, or after the
 * evaluation it interrupted. columns: the log's first line; a resumed run appends to its log. */
void ex_training_begin(ex_training *t, const ex_settings *s, int64_t step, int64_t total,
                       int64_t per_step, const char *unit, const char *columns);
/* After a step: its line of the log, "STEP,LOSS,LR"; curve; leave; and the progress line unless the
 * program prints its own. loss: one number, copied; of several processes their mean. All of them
 * leave at the same step. */
void ex_training_step(ex_training *t, int64_t step, tn_tensor *loss, double lr, bool progress);
/* Appends to the latest step's line of the log. */
void ex_training_remark(ex_training *t, const char *more);
/* The mean of the losses since the last call; 0 if there were none. */
double ex_training_mean(ex_training *t);
/* Time between these two is not training. What is alive after an evaluation must not grow. */
void ex_training_pause(ex_training *t);
void ex_training_resume(ex_training *t, bool evaluated);
/* Whether a checkpoint is due after this step, which is not the last. evaluated: the program's own
 * occasion. */
bool ex_checkpoint_due(const ex_training *t, int64_t step, bool evaluated);
/* Ends the progress line; with --memory reports memory; returns units per second. Then a checkpoint
 * is due if leave is set or --checkpoint was given. */
double ex_training_end(ex_training *t, int64_t step);
/* Closes the log; frees the curve. An incomplete log is a complaint, here or before. */
void ex_training_free(ex_training *t);

#endif
