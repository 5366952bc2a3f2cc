/* run.h - a training run on Fashion-MNIST: data, one step, evaluation, files. */
#ifndef BATCHNORM_RUN_H
#define BATCHNORM_RUN_H

#include "../training.h"
#include "net.h"

/* The command line's values. */
typedef struct settings {
    ex_settings shared;
    const char *data;
    int64_t epochs, steps, batch;
    double lr, momentum, weight_decay;
} settings;

typedef struct images {
    tn_tensor *x; /* [N, 1, 28, 28] u8 */
    tn_tensor *y; /* [N] i64 */
} images;

typedef struct run {
    settings *set;
    ex_options *options;  /* write into *set */
    char data_path[4096]; /* from the checkpoint if --data is not given */
    images train, test;
    double mean, deviation; /* of all pixels of the training images */
    tn_device device;
    tn_dtype precision; /* of products; parameters stay f32 */
    tn_module *model;
    tn_data_parallel *shared; /* of several processes; alone NULL */
    tn_optim *optimizer;
    tn_scheduler *schedule;
    tn_capture *capture;        /* of --capture, else NULL */
    tn_checkpoint_part scaling; /* .scaler: of --precision f16, else NULL */
    tn_loader *loader;
    int64_t step, total; /* steps taken, steps in all */
    bool watched;        /* the next step prints bn1's statistics, which waits for them */
    ex_training training;
    ex_curve test_curve;
} run;

/* Both halves of the data set of a folder with the four *-ubyte.gz files. */
void run_read_data(run *r);
/* Model, SGD with momentum, one-cycle schedule, loader. */
void run_build(run *r);
void run_free(run *r);

/* One training step on a batch from the loader; returns its loss, on the device. When watched,
 * prints bn1's statistics before and after forward and after the optimizer's step. */
tn_tensor *run_step(run *r, tn_tensor *const *batch);

typedef struct score {
    double loss, accuracy;
} score;
/* Over the first images of a set (limit of them; 0: all), in the model's current mode, without
 * recording. A signal interrupts it: then ex_signal() is set, and the result means nothing. */
score run_score(run *r, const images *set, int64_t limit);

/* Takes the settings from the checkpoint, and its data folder if --data is not given. */
void run_adopt(run *r);
/* Reads the state; the data must be what it was training on. */
void run_resume(run *r);
/* False, after a complaint, if it cannot be written. */
bool run_checkpoint(run *r);
/* Writes --save. If that fails, a trained run is saved in a checkpoint, and the program says so. */
void run_save_weights(run *r, bool trained);

#endif
