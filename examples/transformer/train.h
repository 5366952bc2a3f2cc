/* train.h - a training run of the transformer: its state, a step, the loss, its files. */
#ifndef TRANSFORMER_TRAIN_H
#define TRANSFORMER_TRAIN_H

#include "../training.h"
#include "model.h"
#include "sample.h"

/* The command line's values. */
typedef struct settings {
    ex_settings shared;
    const char *text, *prompt;
    int64_t steps, batch, context, layers, heads, d_model, warmup, eval_every, generate, top_k;
    double dropout, lr, weight_decay, clip, temperature;
} settings;

typedef struct run {
    settings *set;
    ex_options *options; /* write into *set */
    tn_text *text;       /* NULL if a loaded model only generates */
    vocabulary vocab;
    tn_device device;
    tn_dtype precision; /* of products; parameters stay f32 */
    tn_module *model;
    tn_data_parallel *shared; /* of several processes; alone NULL */
    tn_optim *optimizer;
    tn_scheduler *schedule;
    tn_capture *capture;        /* of --capture, else NULL */
    tn_checkpoint_part scaling; /* .scaler: of --precision f16, else NULL */
    int64_t step;               /* steps taken */
    bool has_text_hash;
    char text_path[4096]; /* from the checkpoint if --text is not given */
    uint64_t text_hash;   /* of the text that the checkpoint was training on */
    ex_training training;
    ex_curve valid_curve;
} run;

/* Makes the model, its optimizer (AdamW) and its schedule (warm-up, then cosine to a tenth). */
void run_build(run *r);
void run_free(run *r);

/* One step on a random batch of the training text; returns its loss in nats per character, on the
 * device. In the current scope. */
tn_tensor *run_step(run *r);

/* The mean loss in eval mode over windows of context characters, evenly spread over n ids: always
 * the same ones. At most limit of them (0: as many as fit side by side), in whole batches. A signal
 * interrupts it: then ex_signal() is set, and the result means nothing. */
typedef struct evaluation {
    double loss;
    int64_t characters;
} evaluation;
evaluation run_evaluate(run *r, const unsigned char *ids, int64_t n, int64_t limit);

/* All training steps, with progress, log, evaluations and checkpoints. Returns the tokens per
 * second. Ends early after a signal, or after --stop-after steps, with a checkpoint written. */
double run_train(run *r);
/* Takes the settings and the vocabulary from the file that --resume or --load names; flags with
 * other values are refused. */
void run_adopt(run *r);
/* Reads --text. Its held-out part must be longer than a window; it must have the characters of an
 * adopted file, and be the very text of a checkpoint. */
void run_read_text(run *r);
/* Of several processes: refuses a text that is not process 0's. */
void run_same_text(const run *r);
/* Reads the state of the checkpoint, or the weights. */
void run_resume(run *r);
void run_load_weights(run *r);
/* Writes --save. If that fails, a trained run is saved in a checkpoint, and the program says so. */
void run_save_weights(run *r, bool trained);
void run_plot(run *r);

#endif
