/*
 * bench.h - what the benchmark programs share: clock, the output line, deterministic data, flags.
 *
 * The data are formulas over a 32-bit mixing function, so that the PyTorch twins (torch_*.py,
 * common.py) make the very same tokens and images.
 */
#ifndef BENCH_H
#define BENCH_H

#include <tenon/tenon.h>

typedef struct bench_flags {
    const char *config;  /* "small", "medium": bench_gpt only */
    const char *weights; /* the initial weights are written here, for the twin */
    int64_t steps, warmup, threads;
} bench_flags;

/* --config, --weights, --steps, --warmup, --threads; ends the program on anything else. */
bench_flags bench_parse(int argc, char **argv, bench_flags presets);

double bench_now(void); /* seconds, monotonic */
/* "name,metric,median,min,max"; sorts the values */
void bench_line(const char *name, const char *metric, double *values, int64_t n);
void bench_one(const char *name, const char *metric, double value);
/* The highest resident size of the process so far, in MiB. */
double bench_peak_rss(void);
/* Prints the versions and threads to stderr. */
void bench_banner(const char *name);

/* murmur3's finaliser: a permutation of the 32-bit numbers that looks random. */
uint32_t bench_mix(uint32_t x);
/* [batch, context + 1] tokens below vocab: steps of a constant stride, one in eight replaced. */
void bench_tokens(int64_t step, int64_t batch, int64_t context, int64_t vocab, int64_t *ids);
enum { BENCH_IMAGES = 2048, BENCH_PIXELS = 784, BENCH_CLASSES = 10 };
/* Noise in [0, 1) with the label drawn in: every tenth pixel, from the label on, is half brighter.
 * One image in four shows another label, by lot, so that the loss stays above zero. */
void bench_image(int64_t n, float *pixels, int64_t *label);

/* Timed training steps: total and parts, one entry a step. */
typedef struct bench_times {
    int64_t n, room;
    double *forward, *backward, *optimizer, *step; /* milliseconds */
} bench_times;
bench_times bench_times_new(int64_t steps);
/* Prints ms/step, its parts, units/s; frees. */
void bench_times_print(bench_times *t, const char *name, const char *unit, int64_t per_step);

/* Trains on x, y (made by batch) and prints everything: times, losses, memory. */
typedef struct bench_task {
    const char *name, *unit;
    int64_t per_step;
    tn_module *model;
    tn_optim *optimizer;
    tn_tensor *(*loss)(tn_module *model, tn_tensor *x, tn_tensor *y);
    void (*batch)(int64_t step, tn_tensor **x, tn_tensor **y);
} bench_task;
void bench_run(const bench_task *task, const bench_flags *flags);

#endif
