/* bench.c - see bench.h */
#include "bench.h"

#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

/* ---- flags ----------------------------------------------------------------------------------- */

static bool waits; /* the chosen device runs asynchronously */

static int64_t number(const char *text)
{
    char *end;
    int64_t v = strtoll(text, &end, 10);
    if (end == text || *end || v < 0) {
        fprintf(stderr, "bench: %s: want a whole number\n", text);
        exit(2);
    }
    return v;
}

static void refuse(const char *flag, const char *value, const char *wanted)
{
    fprintf(stderr, "bench: --%s %s: want %s\n", flag, value, wanted);
    exit(2);
}

static tn_device device_of(const char *name)
{
    if (!strcmp(name, "cpu")) return tn_cpu();
    if (strcmp(name, "cuda")) refuse("device", name, "cpu or cuda");
    if (tn_cuda_available()) return tn_cuda(0);
    fprintf(stderr, "bench: --device cuda: %s\n", tn_cuda_why());
    exit(1);
}

static tn_dtype precision_of(const char *name, tn_device where)
{
    bool tf32 = name && !strcmp(name, "tf32");
    if (name && !strcmp(name, "bf16")) return TN_BF16;
    if (name && !tf32 && strcmp(name, "f32")) refuse("precision", name, "f32, tf32 or bf16");
    if (tf32 && where.type != TN_CUDA) refuse("precision", name, "--device cuda with it");
    if (where.type == TN_CUDA) TN_CHECK(tn_set_tf32(tf32));
    return TN_F32;
}

static double start_mib;

/* The most memory so far: VmHWM, in MiB. */
static double most_mib(void)
{
    char text[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(text, sizeof text, f))
        if (!strncmp(text, "VmHWM:", 6)) kib = strtod(text + 6, NULL);
    if (f) fclose(f);
    return kib / 1024;
}

/* Makes VmHWM what the process holds now, where the kernel lets it; with the libraries that a
 * product loads, as on the other side (common.py). */
static void memory_at_start(void)
{
    tn_scope scope = tn_scope_begin();
    TN_CHECK_PTR(tn_matmul(tn_ones(TN_SHAPE(256, 256)), tn_ones(TN_SHAPE(256, 256))));
    tn_scope_end(scope);
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) {
        fputs("5", f);
        fclose(f);
    }
    start_mib = most_mib();
}

bench_flags bench_parse(int argc, char **argv, bench_flags f)
{
    TN_CHECK(tn_parallel_begin());
    const struct {
        const char *name;
        const char **text;
        int64_t *number;
        bool *set;
    } flag[] = {
        { "config", &f.config, NULL, NULL },       { "weights", &f.weights, NULL, NULL },
        { "precision", &f.precision, NULL, NULL }, { "device", &f.device, NULL, NULL },
        { "data", &f.data, NULL, NULL },           { "layers", NULL, &f.layers, NULL },
        { "width", NULL, &f.width, NULL },         { "context", NULL, &f.context, NULL },
        { "batch", NULL, &f.batch, NULL },         { "steps", NULL, &f.steps, NULL },
        { "warmup", NULL, &f.warmup, NULL },       { "threads", NULL, &f.threads, NULL },
        { "block", NULL, &f.block, NULL },         { "find-batch", NULL, &f.find_batch, NULL },
        { "capture", NULL, NULL, &f.capture },     { "timeline", NULL, NULL, &f.timeline },
        { "rounds", NULL, &f.rounds, NULL },       { "recompute", NULL, NULL, &f.recompute },
        { "alternate", NULL, NULL, &f.alternate }, { "profile", NULL, NULL, &f.profile },
        { "only", &f.only, NULL, NULL },           { "int8", NULL, NULL, &f.int8 },
        { "lora", NULL, &f.lora, NULL },
    };
    enum { FLAGS = sizeof flag / sizeof *flag };
    struct option table[FLAGS + 1] = { 0 };
    for (int i = 0; i < FLAGS; i++)
        table[i] = (struct option){ flag[i].name, !flag[i].set, NULL, i + 1 };
    if (!f.device) f.device = "cpu";
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        if (c == '?') {
            fprintf(stderr, "usage: %s", argv[0]);
            for (int i = 0; i < FLAGS; i++)
                fprintf(stderr, " [--%s%s]", flag[i].name, flag[i].set ? "" : " X");
            fprintf(stderr, "\n");
            exit(2);
        }
        if (flag[c - 1].text) *flag[c - 1].text = optarg;
        if (flag[c - 1].number) *flag[c - 1].number = number(optarg);
        if (flag[c - 1].set) *flag[c - 1].set = true;
    }
    if (optind < argc) refuse("", argv[optind], "flags only");
    if (f.threads > 0) TN_CHECK(tn_set_num_threads((int)f.threads));
    f.where = device_of(f.device);
    waits = f.where.type == TN_CUDA;
    f.dtype = precision_of(f.precision, f.where);
    if (f.block == 0) f.block = f.where.type == TN_CUDA ? 10 : 1;
    if (f.timeline && (waits || f.capture || f.block > 1))
        refuse("timeline", "", "steps of a CPU, called and timed one by one");
    if (f.block > BENCH_BLOCK) refuse("block", "N", "64 at most");
    memory_at_start();
    return f;
}

bool bench_round(const bench_flags *f, int64_t round)
{
    if (round >= (f->rounds > 0 ? f->rounds : 1)) return false;
    if (f->rounds == 0 || tn_parallel_rank() > 0) return true;
    printf("# ready\n");
    fflush(stdout);
    for (int c; (c = getchar()) != '\n';) {
        if (c != EOF) continue;
        fprintf(stderr,
                "bench: --rounds %" PRId64 ": standard input ends after %" PRId64
                ": want a line for each\n",
                f->rounds, round);
        exit(1);
    }
    return true;
}

void bench_wait(void)
{
    if (waits) TN_CHECK(tn_cuda_synchronize());
}

const char *bench_name(const bench_flags *f, const char *workload)
{
    static char name[96];
    int n = snprintf(name, sizeof name, "%s_%s", f->capture ? "graph" : "tenon", workload);
    if (f->batch && !f->find_batch)
        n += snprintf(name + n, sizeof name - (size_t)n, "_b%" PRId64, f->batch);
    if (f->precision) n += snprintf(name + n, sizeof name - (size_t)n, "_%s", f->precision);
    if (f->int8) snprintf(name + n, sizeof name - (size_t)n, "_int8");
    return name;
}

/* ---- clock and lines ------------------------------------------------------------------------- */

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
    if (tn_parallel_rank() > 0) return;
    printf("%s,%s,%.8g,%.8g,%.8g\n", name, metric, median, v[0], v[n - 1]);
    fflush(stdout);
}

void bench_one(const char *name, const char *metric, double value)
{
    bench_line(name, metric, &value, 1);
}

void bench_memory(const char *name)
{
    bench_one(name, "start_MiB", start_mib);
    bench_one(name, "peak_MiB", most_mib() - start_mib);
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
    tn_cuda_properties gpu = { .name = "no GPU" };
    if (waits) TN_CHECK(tn_cuda_get_properties(0, &gpu));
    char blas[128], simd[128];
    if (tn_parallel_rank() > 0) return;
    fprintf(stderr, "# %s: tenon %s, %d processes of %d threads, %s, %s, %s\n", name,
            tn_version_string(), tn_parallel_size(), tn_num_threads(),
            info("BLAS: ", blas, sizeof blas), info("SIMD: ", simd, sizeof simd), gpu.name);
}

/* ---- data ------------------------------------------------------------------------------------ */

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

void bench_texts(int64_t step, int64_t batch, int64_t context, int64_t vocab, tn_tensor **x,
                 tn_tensor **y)
{
    tn_tensor *all = tn_empty_as(TN_SHAPE(batch, context + 1), TN_I64, tn_cpu());
    int64_t *ids = tn_data_mut(all);
    TN_CHECK_PTR(ids);
    bench_tokens(step, batch, context, vocab, ids);
    *x = tn_contiguous(tn_narrow(all, 1, 0, context));
    *y = tn_contiguous(tn_narrow(all, 1, 1, context));
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
