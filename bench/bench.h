/*
 * bench.h - shared by the benchmark programs: flags, clock, the output line, deterministic data,
 * timed training steps.
 *
 * The data comes from formulas over a 32-bit mixing function, so that the PyTorch twins
 * (torch_*.py, common.py) make the same tokens and images.
 */
#ifndef BENCH_H
#define BENCH_H

#include <tenon/tenon.h>

typedef struct bench_flags {
    const char *config;    /* which of a program's workloads */
    const char *weights;   /* the initial weights are written here, for the twin */
    const char *precision; /* f32, tf32, bf16; NULL: f32 */
    const char *device;    /* cpu, cuda */
    const char *data;      /* a folder */
    const char *only;      /* of ops: those whose names contain this */
    int64_t batch;         /* 0: the config's own; so are the next three, of a GPT */
    int64_t layers, width, context;
    int64_t steps, warmup, threads;
    int64_t rounds; /* 0: the timed steps once; else see bench_round */
    int64_t block;  /* steps between two clock readings; a GPU waits only there */
    bool capture;   /* steps through tn_capture_run: a GPU launches each as one graph */
    bool timeline;  /* also when each layer's gradients are complete */
    bool recompute; /* backward computes a block's activations again */
    bool profile;   /* at the end a table of where a step's time goes, to stderr (tn_profile) */
    bool alternate; /* of ops: each op has its rounds before the next one begins */
    bool int8;      /* of decode and generate: weights of Linears are bytes */
    int64_t lora;   /* of finetune: the rank of adapters */
    /* above 0: instead of timing, doubles the batch up to this, until memory runs out */
    int64_t find_batch;
    tn_device where; /* what device says */
    tn_dtype dtype;  /* of products under autocast; f32: no autocast */
} bench_flags;

/* Joins the other processes of an mpirun. Reads the flags, named as the fields above; ends the
 * program with 2 on anything else, and with 1 if the device is missing. presets: values for flags
 * not given. */
bench_flags bench_parse(int argc, char **argv, bench_flags presets);

/* Whether the round'th round of timed steps, from 0, is to begin. Of --rounds N there are N: says
 * "# ready" before each, and waits until a line on standard input starts it. So the processes of
 * run.sh --keep take turns. */
bool bench_round(const bench_flags *f, int64_t round);
/* Waits for the chosen device. */
void bench_wait(void);
/* "tenon_WORKLOAD", captured "graph_WORKLOAD", then "_bBATCH" and "_PRECISION" where the flags are
 * given. Static memory. */
const char *bench_name(const bench_flags *f, const char *workload);

double bench_now(void); /* seconds, monotonic */
/* "name,metric,median,min,max", printed by rank 0 alone; sorts the values */
void bench_line(const char *name, const char *metric, double *values, int64_t n);
void bench_one(const char *name, const char *metric, double value);
/* Two lines: start_MiB, the memory that the program took up to bench_parse, libraries and all; and
 * peak_MiB, the most that it has taken since then beyond that. */
void bench_memory(const char *name);
/* Prints the versions and threads to stderr. */
void bench_banner(const char *name);

/* murmur3's finaliser: a permutation of the 32-bit numbers that looks random. */
uint32_t bench_mix(uint32_t x);
/* [batch, context + 1] tokens below vocab: steps of a constant stride, one in eight replaced. */
void bench_tokens(int64_t step, int64_t batch, int64_t context, int64_t vocab, int64_t *ids);
/* The same as tensors: x and, one further, y, i64 [batch, context] on the CPU. */
void bench_texts(int64_t step, int64_t batch, int64_t context, int64_t vocab, tn_tensor **x,
                 tn_tensor **y);
enum { BENCH_IMAGES = 2048, BENCH_PIXELS = 784, BENCH_CLASSES = 10, BENCH_BLOCK = 64 };
/* Noise in [0, 1) with the label drawn in: every tenth pixel, starting at the label, is brighter by
 * half. One image in four, at random, shows another label, so that the loss stays above zero. */
void bench_image(int64_t n, float *pixels, int64_t *label);

/* ---- training steps (train.c) ---------------------------------------------------------------- */

typedef struct bench_task {
    const char *name, *unit;
    int64_t per_step; /* units a step */
    double flop;      /* of forward and backward, a unit; 0: not counted */
    tn_module *model;
    tn_optim *optimizer;
    tn_dtype dtype; /* for autocast */
    tn_tensor *(*loss)(tn_module *model, tn_tensor *x, tn_tensor *y);
    void (*batch)(int64_t step, tn_tensor **x, tn_tensor **y); /* on the CPU */
} bench_task;

/* Trains on the batches and prints everything: times, rates, losses, memory. Of several processes
 * each takes its equal part of the rows, gradients are averaged, rates are those of all together;
 * times and memory are rank 0's. */
void bench_run(const bench_task *task, const bench_flags *flags);
/* Two steps, the first of which makes the optimizer's state. False, and a line to stderr, if they
 * fail because memory runs out. */
bool bench_fits(const bench_task *task, const bench_flags *flags);

#endif
