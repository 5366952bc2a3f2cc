/*
 * train.c - timed training steps; see bench.h.
 *
 * On a CPU every step is timed, with its parts. A GPU runs asynchronously, and a program that
 * waited for it after each step would time the waiting. So the steps of a block follow each other
 * as in training, and the clock is read when the last one is done. The parts come from extra steps
 * that do wait; a captured step has none. The batches of a block are made before its clock starts;
 * copying them to the device is included.
 *
 * Of several processes (mpirun) each takes its equal part of every batch's rows, and backward
 * averages the gradients. Every step ends when the last rank's backward does, so rank 0's clock
 * speaks for all.
 */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

/* Milliseconds, one entry a block or a step. */
typedef struct series {
    int64_t n;
    double *v;
} series;

/* A module with parameters of its own. */
typedef struct layer {
    char name[128];
    double bytes; /* of its gradients */
    double seen;  /* when backward last passed it */
    series ms;    /* after backward's start */
} layer;

typedef struct session {
    const bench_task *task;
    const bench_flags *flags;
    tn_data_parallel *shared;
    series step, forward, backward, optimizer;
    layer *layers; /* of --timeline, n_layers of them */
    int n_layers;
    bool parts;          /* wait after each part */
    tn_capture *capture; /* NULL: steps are called */
    tn_tensor *losses;   /* of the first step, the tenth, the last: [3] on the device */
    int64_t taken;       /* steps */
} session;

static void add(series *s, double value)
{
    double *v = realloc(s->v, (size_t)(s->n + 1) * sizeof *v);
    if (!v) exit(1);
    s->v = v;
    s->v[s->n++] = value;
}

static void clear(series *s)
{
    free(s->v);
    *s = (series){ 0 };
}

/* ---- when gradients are complete ------------------------------------------------------------- */

/* A module whose inputs need no gradient is told of before it is differentiated: not noted. */
static tn_status passed(tn_module *m, int n_in, tn_tensor **in, int n_out, tn_tensor *const *out,
                        void *user)
{
    (void)m, (void)n_out, (void)out;
    for (int i = 0; i < n_in; i++)
        if (in[i] != TN_NONE) ((layer *)user)->seen = bench_now();
    return TN_OK;
}

/* A layer for each module that has parameters of its own, in the order of registration. */
static void find_layers(session *s)
{
    tn_list *all = tn_parameters(s->task->model);
    TN_CHECK_PTR(all);
    s->layers = calloc((size_t)all->n, sizeof *s->layers);
    if (!s->layers) exit(1);
    const tn_module *owner = NULL;
    for (int i = 0; i < all->n; i++) {
        const tn_entry *e = &all->entry[i];
        layer *l = &s->layers[s->n_layers];
        if (i == 0 || e->owner != owner) {
            const char *dot = strrchr(e->name, '.');
            int length = dot ? (int)(dot - e->name) : 0;
            snprintf(l->name, sizeof l->name, "%.*s", length, e->name);
            if (tn_register_full_backward_hook(e->owner, passed, l) < 0)
                TN_CHECK(tn_error_status());
            owner = e->owner;
            s->n_layers++;
        }
        s->layers[s->n_layers - 1].bytes += (double)tn_numel(e->tensor) * 4;
    }
}

/* Those that backward has not told of are complete when it ends. */
static void note_layers(session *s, double begin, double end)
{
    for (int i = 0; i < s->n_layers; i++) {
        layer *l = &s->layers[i];
        add(&l->ms, 1e3 * ((l->seen > begin ? l->seen : end) - begin));
    }
}

static void print_layers(session *s)
{
    for (int i = 0; i < s->n_layers; i++) {
        layer *l = &s->layers[i];
        char metric[160];
        snprintf(metric, sizeof metric, "bytes of %s", l->name);
        bench_one(s->task->name, metric, l->bytes);
        snprintf(metric, sizeof metric, "ms_complete of %s", l->name);
        bench_line(s->task->name, metric, l->ms.v, l->ms.n);
        clear(&l->ms);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static double stamp(const session *s)
{
    if (s->parts) bench_wait();
    return bench_now();
}

/* One training step on x and y; the loss stays on the device. NULL when something failed. */
static tn_tensor *step(int n, tn_tensor *const *in, void *user)
{
    session *s = user;
    const bench_task *k = s->task;
    tn_tensor *x = tn_to(in[0], s->flags->where), *y = tn_to(in[1], s->flags->where), *loss = NULL;
    double t0 = stamp(s);
    TN_AUTOCAST(k->dtype) loss = k->loss(k->model, x, y);
    double t1 = stamp(s);
    if (tn_backward(loss) != TN_OK) return NULL;
    double t2 = stamp(s);
    if (tn_optim_step(k->optimizer) != TN_OK || tn_optim_zero_grad(k->optimizer) != TN_OK)
        return NULL;
    double t3 = stamp(s);
    if (s->parts) {
        add(&s->forward, 1e3 * (t1 - t0));
        add(&s->backward, 1e3 * (t2 - t1));
        add(&s->optimizer, 1e3 * (t3 - t2));
        note_layers(s, t1, t2);
    }
    (void)n;
    return loss;
}

static void keep_loss(session *s, int which, tn_tensor *loss)
{
    TN_NO_GRAD TN_CHECK(tn_copy_(tn_select(s->losses, 0, which), loss));
}

/* This rank's rows of a batch. */
static tn_tensor *own_part(tn_tensor *whole)
{
    int64_t ranks = tn_parallel_size(), rows = tn_size(whole, 0);
    if (rows % ranks) {
        fprintf(stderr, "bench: a batch of %" PRId64 ": want a multiple of %" PRId64 "\n", rows,
                ranks);
        exit(2);
    }
    return tn_narrow(whole, 0, tn_parallel_rank() * rows / ranks, rows / ranks);
}

/* This rank's part of the batch of a step. */
static void own_batch(const session *s, int64_t step, tn_tensor **in)
{
    s->task->batch(step, &in[0], &in[1]);
    for (int k = 0; k < 2; k++) in[k] = own_part(in[k]);
}

/* n steps, at most BENCH_BLOCK; their mean time goes into s->step when timed. */
static void block(session *s, int64_t n, bool timed)
{
    tn_tensor *in[BENCH_BLOCK][2];
    tn_scope scope = tn_scope_begin();
    for (int64_t i = 0; i < n; i++) own_batch(s, s->taken + i, in[i]);
    bench_wait();
    double t0 = bench_now();
    for (int64_t i = 0; i < n; i++) {
        tn_scope inner = tn_scope_begin();
        tn_tensor *loss = s->capture ? tn_capture_run(s->capture, 2, in[i]) : step(2, in[i], s);
        TN_CHECK_PTR(loss);
        if (s->taken == 0) keep_loss(s, 0, loss);
        if (s->taken == 9) keep_loss(s, 1, loss);
        if (i == n - 1) keep_loss(s, 2, loss);
        tn_scope_end(inner);
        s->taken++;
    }
    bench_wait();
    if (timed) add(&s->step, 1e3 * (bench_now() - t0) / (double)n);
    tn_scope_end(scope);
}

static void steps(session *s, int64_t n, int64_t at_once, bool timed)
{
    for (int64_t left = n; left > 0; left -= at_once)
        block(s, left < at_once ? left : at_once, timed);
}

static void print_losses(const bench_task *k, const double *loss, int64_t taken)
{
    bench_one(k->name, "loss_1", loss[0]);
    if (taken >= 10) bench_one(k->name, "loss_10", loss[1]);
    bench_one(k->name, "loss_last", loss[2]);
}

static void print_times(session *s)
{
    const bench_task *k = s->task;
    series *all[] = { &s->step, &s->forward, &s->backward, &s->optimizer };
    const char *metric[] = { "ms/step", "ms_forward", "ms_backward", "ms_optimizer" };
    for (int i = 0; i < 4; i++)
        if (all[i]->n > 0) bench_line(k->name, metric[i], all[i]->v, all[i]->n);
    for (int64_t i = 0; i < s->step.n; i++) s->step.v[i] = 1e3 * (double)k->per_step / s->step.v[i];
    char text[64];
    snprintf(text, sizeof text, "%s/s", k->unit);
    bench_line(k->name, text, s->step.v, s->step.n);
    for (int64_t i = 0; i < s->step.n; i++) s->step.v[i] *= 1e-12 * k->flop;
    if (k->flop > 0) bench_line(k->name, "TFLOP/s", s->step.v, s->step.n);
    for (int i = 0; i < 4; i++) clear(all[i]);
}

static void print_memory(const bench_task *k, const bench_flags *f, int64_t allocations)
{
    if (f->where.type == TN_CUDA) {
        tn_cuda_memory_stats gpu = tn_cuda_memory();
        bench_one(k->name, "peak_gpu_MiB", (double)gpu.peak_in_use / 1048576);
        bench_one(k->name, "reserved_gpu_MiB", (double)gpu.reserved / 1048576);
    } else {
        bench_one(k->name, "system_allocations", (double)allocations);
        bench_memory(k->name);
    }
}

/* One round of timed steps, and its lines. */
static void timed_round(session *s)
{
    const bench_task *k = s->task;
    const bench_flags *f = s->flags;
    int64_t allocations = tn_memory().system_allocations;
    s->parts = f->block == 1 && !s->capture;
    steps(s, f->steps, f->block, true);
    allocations = tn_memory().system_allocations - allocations;
    double loss[3];
    int64_t taken = s->taken;
    if (tn_parallel_size() > 1) TN_CHECK(tn_parallel_mean_(s->losses));
    TN_CHECK(tn_copy_out(s->losses, loss, sizeof loss, TN_F64));
    s->parts = true;
    if (f->block > 1 && !s->capture) steps(s, f->block, 1, false);
    print_times(s);
    print_layers(s);
    print_losses(k, loss, taken);
    bench_one(k->name, "parameters", (double)tn_count_parameters(k->model, false));
    print_memory(k, f, allocations);
}

static tn_status profiled(void *user)
{
    session *s = user;
    tn_tensor *in[2];
    own_batch(s, s->taken++, in);
    return step(2, in, s) ? TN_OK : tn_error_status();
}

void bench_run(const bench_task *k, const bench_flags *f)
{
    session s = { .task = k, .flags = f };
    tn_scope scope = tn_scope_begin();
    s.losses = tn_full_as(TN_SHAPE(3), 0, TN_F32, f->where);
    bench_banner(k->name);
    if (f->weights && tn_parallel_rank() == 0) TN_CHECK(tn_save(k->model, f->weights));
    if (tn_parallel_size() > 1) {
        s.shared = tn_data_parallel_new(k->model, (tn_data_parallel_options){ 0 });
        TN_CHECK_PTR(s.shared);
    }
    if (f->timeline) find_layers(&s);
    if (f->capture) {
        s.capture = tn_capture_new(step, &s, f->where);
        TN_CHECK_PTR(s.capture);
    }
    steps(&s, f->warmup, f->block, false);
    for (int64_t round = 0; bench_round(f, round); round++) timed_round(&s);
    s.parts = false;
    if (f->profile) TN_CHECK(tn_profile(profiled, &s, (tn_profile_options){ .file = stderr }));
    free(s.layers);
    tn_capture_free(s.capture);
    tn_data_parallel_free(s.shared);
    tn_scope_end(scope);
}

bool bench_fits(const bench_task *k, const bench_flags *f)
{
    session s = { .task = k, .flags = f };
    bool fits = true;
    for (int i = 0; i < 2 && fits; i++) {
        tn_tensor *in[2];
        tn_scope scope = tn_scope_begin();
        k->batch(i, &in[0], &in[1]);
        fits = step(2, in, &s) != NULL;
        tn_scope_end(scope);
    }
    if (!fits) fprintf(stderr, "# %s: at most half of this batch: %s\n", k->name, tn_error());
    tn_cuda_memory_trim();
    return fits;
}
