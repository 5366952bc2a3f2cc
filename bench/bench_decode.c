/*
 * bench_decode - what one step of a language model that generates costs: products of a few rows,
 * which read each weight once, and attention of one query over a cache.
 *
 * read_*    GB/s at which two threads (--threads) read the same memory, adding it up
 * linear_*  GB/s of weights read by tn_linear, for 1 to 16 rows; in turn with the read above
 * attend_*  GB/s of keys and values read by attention with one query, over n of CAPACITY places;
 *           copied_MiB: memory that it takes beside its result
 * Weights lie in so many copies that no cache holds them, as the layers of a model.
 *
 *   --precision f32 or bf16    of the weights
 *   --int8                     weights of bytes (tn_quantize_int8), groups of 64
 *   --config tiny              far smaller: to see that it runs
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

enum { MOST = 400, THREADS = 64, COPIES = 64 };
static bench_flags flags;
static int64_t most_bytes = (int64_t)256 << 20;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct part {
    tn_tensor **w;
    int64_t n;
    int which, of;
    uint64_t sum;
} part;

/* Adds up this thread's part of every weight, fetching ahead into the L2 cache, without which a
 * thread reads more slowly. */
static void *read_part(void *context)
{
    enum { LINE = 8, AHEAD = 1024 }; /* words */
    part *p = context;
    uint64_t sum[2 * LINE] = { 0 };
    for (int64_t k = 0; k < p->n; k++) {
        int64_t words = tn_numel(p->w[k]) * (int64_t)tn_dtype_size(tn_dtype_of(p->w[k])) / 8;
        const uint64_t *from = tn_data(p->w[k]);
        int64_t end = words * (p->which + 1) / p->of;
        for (int64_t i = words * p->which / p->of; i + 2 * LINE <= end; i += 2 * LINE) {
            __builtin_prefetch(from + i + AHEAD, 0, 2);
            __builtin_prefetch(from + i + AHEAD + LINE, 0, 2);
            for (int j = 0; j < 2 * LINE; j++) sum[j] += from[i + j];
        }
    }
    for (int j = 0; j < 2 * LINE; j++) p->sum += sum[j];
    return NULL;
}

/* Reads n weights by all threads. */
static uint64_t read_all(tn_tensor **w, int64_t n)
{
    const int threads = tn_num_threads();
    pthread_t thread[THREADS];
    part p[THREADS];
    uint64_t sum = 0;
    for (int t = 0; t < threads; t++) {
        p[t] = (part){ w, n, t, threads, 0 };
        if (t && pthread_create(&thread[t], NULL, read_part, &p[t])) exit(1);
    }
    read_part(&p[0]);
    for (int t = 0; t < threads; t++) {
        if (t) pthread_join(thread[t], NULL);
        sum += p[t].sum;
    }
    return sum;
}

/* ---- products -------------------------------------------------------------------------------- */

static tn_tensor *weight(int64_t out, int64_t in)
{
    if (!flags.int8) return tn_full_as(TN_SHAPE(out, in), 0.01, flags.dtype, tn_cpu());
    tn_tensor *q = tn_full_as(TN_SHAPE(out, in), 2, TN_U8, tn_cpu());
    tn_tensor *s = tn_full(TN_SHAPE(out, in / 64), 0.01);
    s = tn_from_data(tn_data(s), TN_SHAPE(out, in / 64 * 4), TN_U8);
    return tn_cat((tn_tensor *[]){ q, s }, 2, 1);
}

static void product(int64_t out, int64_t in)
{
    static const int64_t rows[] = { 1, 2, 4, 8, 16 };
    enum { ROWS = sizeof rows / sizeof *rows };
    static double read[MOST], times[ROWS][MOST];
    const int64_t item = flags.int8 ? 1 : (int64_t)tn_dtype_size(flags.dtype);
    int64_t bytes = out * (in * item + (flags.int8 ? in / 64 * 4 : 0));
    int64_t copies = most_bytes / bytes + 1;
    tn_tensor *w[COPIES], *x[ROWS];
    uint64_t sum = 0;
    copies = copies > COPIES ? COPIES : copies;
    tn_scope scope = tn_scope_begin();
    for (int64_t i = 0; i < copies; i++) w[i] = weight(out, in);
    for (int r = 0; r < ROWS; r++)
        x[r] = tn_full_as(TN_SHAPE(rows[r], in), 1, flags.dtype, tn_cpu());
    const double gigabytes = 1e-9 * (double)(bytes * copies);
    for (int64_t step = -1; step < flags.steps; step++) {
        double t0 = bench_now();
        sum += read_all(w, copies);
        if (step >= 0) read[step] = gigabytes / (bench_now() - t0);
        for (int r = 0; r < ROWS; r++) {
            tn_scope inner = tn_scope_begin();
            t0 = bench_now();
            for (int64_t i = 0; i < copies; i++) TN_CHECK_PTR(tn_linear(x[r], w[i], TN_NONE));
            if (step >= 0) times[r][step] = gigabytes / (bench_now() - t0);
            tn_scope_end(inner);
        }
    }
    char name[96];
    snprintf(name, sizeof name, "read_%" PRId64 "x%" PRId64, out, in);
    bench_line(bench_name(&flags, name), sum == 1 ? "GB/s " : "GB/s", read, flags.steps);
    for (int r = 0; r < ROWS; r++) {
        snprintf(name, sizeof name, "linear_%" PRId64 "x%" PRId64 "_rows%" PRId64, out, in,
                 rows[r]);
        bench_line(bench_name(&flags, name), "GB/s", times[r], flags.steps);
    }
    tn_scope_end(scope);
}

/* ---- attention over a cache ------------------------------------------------------------------ */

static void attend(int64_t batch, int64_t heads, int64_t kv_heads, int64_t head, int64_t n,
                   int64_t capacity)
{
    static double times[MOST];
    tn_tensor *cache[2][COPIES];
    int64_t bytes = 2 * batch * kv_heads * n * head * (int64_t)tn_dtype_size(flags.dtype);
    int64_t copies = most_bytes / bytes + 1, copied = 0;
    copies = copies > COPIES ? COPIES : copies;
    tn_scope scope = tn_scope_begin();
    for (int64_t i = 0; i < 2 * copies; i++) {
        tn_tensor *whole =
            tn_full_as(TN_SHAPE(batch, kv_heads, capacity, head), 0.01, flags.dtype, tn_cpu());
        cache[i % 2][i / 2] = tn_narrow(whole, 2, 0, n);
    }
    tn_tensor *q = tn_full_as(TN_SHAPE(batch, heads, 1, head), 1, flags.dtype, tn_cpu());
    for (int64_t step = -1; step < flags.steps; step++) {
        tn_scope inner = tn_scope_begin();
        tn_memory_reset_peak();
        copied = tn_memory().in_use;
        TN_CHECK_PTR(
            tn_scaled_dot_product_attention(q, cache[0][0], cache[1][0], TN_NONE, false, 0));
        copied = tn_memory().peak_in_use - copied;
        double t0 = bench_now();
        for (int64_t i = 0; i < copies; i++)
            TN_CHECK_PTR(
                tn_scaled_dot_product_attention(q, cache[0][i], cache[1][i], TN_NONE, false, 0));
        double t1 = bench_now();
        if (step >= 0) times[step] = 1e-9 * (double)(bytes * copies) / (t1 - t0);
        tn_scope_end(inner);
    }
    char name[96];
    snprintf(name, sizeof name, "attend_%" PRId64 "x%" PRId64 "over%" PRId64 "_of%" PRId64, batch,
             heads, kv_heads, n);
    bench_line(bench_name(&flags, name), "GB/s", times, flags.steps);
    bench_one(bench_name(&flags, name), "copied_MiB", (double)copied / 1048576);
    tn_scope_end(scope);
}

int main(int argc, char **argv)
{
    flags = bench_parse(argc, argv, (bench_flags){ .steps = 9, .config = "cpu" });
    const bool tiny = strcmp(flags.config, "tiny") == 0;
    if (flags.steps > MOST || tn_num_threads() > THREADS) return 2;
    bench_banner("decode");
    tn_set_grad_enabled(false);
    if (tiny) most_bytes = 1 << 16;
    for (int64_t round = 0; bench_round(&flags, round); round++) {
        if (tiny) {
            product(33, 64);
            attend(1, 4, 2, 16, 5, 8);
            continue;
        }
        product(50257, 768);
        product(2048, 8192);
        product(768, 768);
        attend(1, 12, 12, 64, 1000, 1024);
        attend(1, 32, 8, 64, 1000, 2048);
        attend(8, 32, 8, 64, 1000, 1024);
    }
    return 0;
}
