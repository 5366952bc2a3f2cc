/*
 * bench_int8 - a product with a weight of bytes (tn_linear_int8) and few rows, as when text is
 * generated: bytes of weights a second, beside the same product in f32 and bf16 and beside threads
 * that only read as many bytes.
 *
 *   --config decode  the products of GPT-2 124M and of SmolLM2-135M (the default)
 *   --config tiny    one small product: to see that it runs
 *   --batch N        rows (1)
 *
 * Each sample goes once over so many weights of a shape that no cache holds them; the four take
 * turns. Rates are of the bytes of a weight itself: q and scales, or floats.
 */
#include <pthread.h>
#include <string.h>

#include "bench.h"

enum { GROUP = 64, SAMPLES = 15, MOST = 64 };
static int64_t rows = 1, samples = SAMPLES, total = (int64_t)160 << 20;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct span {
    const uint64_t *from;
    int64_t n;
    uint64_t sum;
} span;

static void *read_span(void *user)
{
    span *s = user;
    uint64_t sum = 0;
    for (int64_t i = 0; i < s->n; i++) sum += s->from[i];
    s->sum = sum;
    return NULL;
}

/* Seconds that so many threads take to read n bytes. */
static double read_all(const void *from, int64_t n, int threads)
{
    span part[MOST];
    pthread_t id[MOST];
    double t0 = bench_now();
    int64_t each = n / 8 / threads;
    for (int t = 0; t < threads; t++) {
        part[t] = (span){ (const uint64_t *)from + t * each, each, 0 };
        if (t > 0 && pthread_create(&id[t], NULL, read_span, &part[t]) != 0) exit(1);
    }
    read_span(&part[0]);
    for (int t = 1; t < threads; t++) pthread_join(id[t], NULL);
    volatile uint64_t used = 0;
    for (int t = 0; t < threads; t++) used += part[t].sum;
    (void)used;
    return bench_now() - t0;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef enum kind { INT8, BF16, F32, KINDS } kind;
static const char *const kind_name[] = { "int8", "bf16", "f32" };

/* A weight number i of several; their memory is one block each. */
typedef struct weights {
    tn_tensor *x[KINDS], *q, *scale, *w[KINDS];
    int64_t n[KINDS], out, in, bytes;
} weights;

static tn_tensor *product(const weights *s, kind k, int64_t i)
{
    int64_t at = i * s->out;
    if (k != INT8) return tn_linear(s->x[k], tn_narrow(s->w[k], 0, at, s->out), TN_NONE);
    return tn_linear_int8(s->x[k], tn_narrow(s->q, 0, at, s->out),
                          tn_narrow(s->scale, 0, at, s->out), TN_NONE);
}

static weights make(int64_t out, int64_t in)
{
    weights s = { .out = out, .in = in };
    int64_t item[] = { 1, 2, 4 }, groups = (in - 1) / GROUP + 1;
    for (int k = 0; k < KINDS; k++) s.n[k] = (total - 1) / (out * in * item[k]) + 1;
    s.q = tn_to_dtype(tn_mul_scalar(tn_rand(TN_SHAPE(s.n[INT8] * out, in)), 256), TN_U8);
    s.scale = tn_full(TN_SHAPE(s.n[INT8] * out, groups), 0.01);
    for (int k = 0; k < KINDS; k++) {
        tn_dtype dtype = k == BF16 ? TN_BF16 : TN_F32;
        s.x[k] = tn_to_dtype(tn_rand(TN_SHAPE(rows, in)), dtype);
        if (k != INT8) s.w[k] = tn_to_dtype(tn_full(TN_SHAPE(s.n[k] * out, in), 0.01), dtype);
    }
    return s;
}

static void shape(const bench_flags *f, const char *model, int64_t out, int64_t in)
{
    double v[KINDS + 1][MOST];
    tn_scope all = tn_scope_begin();
    weights s = make(out, in);
    const void *memory = tn_data(s.q);
    for (int64_t i = -2; i < samples; i++)
        for (int k = 0; k <= KINDS; k++) {
            double bytes = (double)total, t;
            if (k == KINDS) {
                t = read_all(memory, total, (int)f->threads);
            } else {
                double groups = (double)((in - 1) / GROUP + 1) * 4;
                double row = k == INT8 ? (double)in + groups : (double)in * (k == F32 ? 4 : 2);
                bytes = (double)(s.n[k] * out) * row;
                double t0 = bench_now();
                for (int64_t j = 0; j < s.n[k]; j++) TN_SCOPE
                    {
                        product(&s, (kind)k, j);
                    }
                t = bench_now() - t0;
            }
            if (i >= 0) v[k][i] = bytes / t / 1e9;
        }
    for (int k = 0; k <= KINDS; k++) {
        char name[80];
        snprintf(name, sizeof name, "%s_%dx%d_%s", model, (int)out, (int)in,
                 k == KINDS ? "read" : kind_name[k]);
        bench_line(bench_name(f, name), "GB/s", v[k], samples);
    }
    tn_scope_end(all);
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(argc, argv, (bench_flags){ .config = "decode", .threads = 2 });
    bench_banner("bench_int8");
    if (f.batch > 0) rows = f.batch;
    if (f.threads > MOST) f.threads = MOST;
    TN_NO_GRAD
    {
        if (strcmp(f.config, "tiny") == 0) {
            samples = 2, total = 1 << 20;
            shape(&f, "tiny", 64, 100);
        } else {
            shape(&f, "gpt2", 2304, 768);
            shape(&f, "gpt2", 3072, 768);
            shape(&f, "gpt2", 768, 3072);
            shape(&f, "gpt2", 50257, 768);
            shape(&f, "smollm2", 576, 576);
            shape(&f, "smollm2", 1536, 576);
            shape(&f, "smollm2", 576, 1536);
        }
    }
    return 0;
}
