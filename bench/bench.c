/* bench.c - see bench.h */
#include "bench.h"

#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include <sys/resource.h>

/* ---- flags --------------------------------------------------------------------------------- */

static int64_t number(const char *text)
{
    char *end;
    int64_t v = strtoll(text, &end, 10);
    if (end == text || *end || v < 0) {
        fprintf(stderr, "bench: %s: wanted a whole number\n", text);
        exit(2);
    }
    return v;
}

bench_flags bench_parse(int argc, char **argv, bench_flags f)
{
    static const struct option table[] = {
        { "config", required_argument, NULL, 'c' }, { "weights", required_argument, NULL, 'w' },
        { "steps", required_argument, NULL, 's' },  { "warmup", required_argument, NULL, 'u' },
        { "threads", required_argument, NULL, 't' }, { 0 },
    };
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        switch (c) {
        case 'c': f.config = optarg; break;
        case 'w': f.weights = optarg; break;
        case 's': f.steps = number(optarg); break;
        case 'u': f.warmup = number(optarg); break;
        case 't': f.threads = number(optarg); break;
        default:
            fprintf(stderr, "usage: %s [--config NAME] [--weights FILE] [--steps N] [--warmup N] "
                            "[--threads N]\n", argv[0]);
            exit(2);
        }
    }
    if (f.threads > 0) TN_CHECK(tn_set_num_threads((int)f.threads));
    return f;
}

/* ---- clock and lines ----------------------------------------------------------------------- */

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_line(const char *name, const char *metric, double *v, int64_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    double median = n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
    printf("%s,%s,%.8g,%.8g,%.8g\n", name, metric, median, v[0], v[n - 1]);
    fflush(stdout);
}

void bench_one(const char *name, const char *metric, double value)
{
    bench_line(name, metric, &value, 1);
}

double bench_peak_rss(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* The value of a line of tn_info(). */
static const char *info(const char *key, char *text, size_t size)
{
    const char *at = strstr(tn_info(), key);
    snprintf(text, size, "%.*s", at ? (int)strcspn(at, "\n") : 0, at ? at : "");
    return text;
}

void bench_banner(const char *name)
{
    char blas[128], simd[128];
    fprintf(stderr, "# %s: tenon %s, %d threads, %s, %s\n", name, tn_version_string(),
            tn_num_threads(), info("BLAS: ", blas, sizeof blas), info("SIMD: ", simd, sizeof simd));
}

/* ---- data ---------------------------------------------------------------------------------- */

uint32_t bench_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

void bench_tokens(int64_t step, int64_t batch, int64_t context, int64_t vocab, int64_t *ids)
{
    for (int64_t b = 0; b < batch; b++) {
        uint32_t row = (uint32_t)(step * batch + b);
        uint32_t start = bench_mix(row), stride = 1 + bench_mix(row + 0x40000000u) % 5;
        for (int64_t t = 0; t <= context; t++) {
            uint32_t place = row * (uint32_t)(context + 1) + (uint32_t)t;
            uint32_t noise = bench_mix(place ^ 0x5bd1e995u);
            uint32_t id = (start % 65536 + (uint32_t)t * stride) % (uint32_t)vocab;
            if (noise % 8 == 0) id = noise / 8 % (uint32_t)vocab;
            ids[b * (context + 1) + t] = id;
        }
    }
}

void bench_image(int64_t n, float *pixels, int64_t *label)
{
    uint32_t luck = bench_mix((uint32_t)n + 0x30000000u);
    int64_t drawn = bench_mix((uint32_t)n + 0x20000000u) % BENCH_CLASSES;
    *label = luck % 4 ? drawn : luck / 4 % BENCH_CLASSES;
    for (int64_t p = 0; p < BENCH_PIXELS; p++) {
        uint32_t h = bench_mix((uint32_t)(n * BENCH_PIXELS + p));
        float noise = (float)(h >> 8) * 0x1p-24f;
        pixels[p] = noise + (p % BENCH_CLASSES == drawn ? 0.5f : 0.0f);
    }
}

/* ---- training steps ------------------------------------------------------------------------ */

bench_times bench_times_new(int64_t steps)
{
    bench_times t = { .room = steps };
    t.forward = calloc((size_t)(4 * steps + 1), sizeof *t.forward);
    if (!t.forward) exit(1);
    t.backward = t.forward + steps;
    t.optimizer = t.backward + steps;
    t.step = t.optimizer + steps;
    return t;
}

void bench_times_print(bench_times *t, const char *name, const char *unit, int64_t per_step)
{
    char metric[64];
    bench_line(name, "ms/step", t->step, t->n);
    bench_line(name, "ms_forward", t->forward, t->n);
    bench_line(name, "ms_backward", t->backward, t->n);
    bench_line(name, "ms_optimizer", t->optimizer, t->n);
    for (int64_t i = 0; i < t->n; i++) t->step[i] = 1e3 * (double)per_step / t->step[i];
    snprintf(metric, sizeof metric, "%s/s", unit);
    bench_line(name, metric, t->step, t->n);
    free(t->forward);
}

void bench_run(const bench_task *k, const bench_flags *f)
{
    bench_times times = bench_times_new(f->steps);
    bench_banner(k->name);
    if (f->weights) TN_CHECK(tn_save(k->model, f->weights));
    int64_t total = f->warmup + f->steps, allocations = 0;
    double losses[3] = { 0 };
    for (int64_t i = 0; i < total; i++) {
        if (i == f->warmup) allocations = tn_memory().system_allocations;
        tn_scope scope = tn_scope_begin();
        tn_tensor *x = NULL, *y = NULL;
        k->batch(i, &x, &y);
        double t0 = bench_now();
        tn_tensor *loss = k->loss(k->model, x, y);
        double t1 = bench_now();
        TN_CHECK(tn_backward(loss));
        double t2 = bench_now();
        TN_CHECK(tn_optim_step(k->optimizer));
        TN_CHECK(tn_optim_zero_grad(k->optimizer));
        double value = tn_item(loss), t3 = bench_now();
        if (i == 0) losses[0] = value;
        if (i == 9) losses[1] = value;
        losses[2] = value;
        tn_scope_end(scope);
        if (i < f->warmup) continue;
        times.forward[times.n] = 1e3 * (t1 - t0);
        times.backward[times.n] = 1e3 * (t2 - t1);
        times.optimizer[times.n] = 1e3 * (t3 - t2);
        times.step[times.n++] = 1e3 * (t3 - t0);
    }
    bench_times_print(&times, k->name, k->unit, k->per_step);
    bench_one(k->name, "loss_1", losses[0]);
    if (total >= 10) bench_one(k->name, "loss_10", losses[1]);
    bench_one(k->name, "loss_last", losses[2]);
    bench_one(k->name, "parameters", (double)tn_count_parameters(k->model, false));
    allocations = tn_memory().system_allocations - allocations;
    bench_one(k->name, "system_allocations", (double)allocations);
    bench_one(k->name, "peak_rss_MiB", bench_peak_rss());
}
