/*
 * bench_load - seconds until a model's parameters hold every value of a file of weights: linear
 * layers of GPT-2's sizes, 124 million parameters, the file in the page cache.
 *
 *   --config KIND    safetensors or pt
 *   --data FOLDER    where the files are, load.safetensors and load.pt; made if they are not there
 *   --precision X    bf16: the model's, so that values are cast on their way
 *
 * peak_MiB: with the model's own; make the files by a run before, which takes more.
 *
 * Twin: torch_load.py
 */
#include "bench.h"

#include <stdlib.h>
#include <sys/stat.h>

static tn_module *model_new(int64_t width)
{
    const tn_linear_options o = { 0 };
    tn_module *m = tn_module_list_new();
    TN_CHECK(tn_module_append(m, tn_linear_new((int)width, 50257, o)));
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < 4; k++) {
            static const int to[] = { 3, 1, 4, 1 }, from[] = { 1, 1, 1, 4 };
            TN_CHECK(
                tn_module_append(m, tn_linear_new((int)width * from[k], (int)width * to[k], o)));
        }
    return m;
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(
        argc, argv,
        (bench_flags){
            .config = "safetensors", .data = ".", .steps = 5, .warmup = 1, .width = 768 });
    char path[4096], workload[64];
    struct stat there;
    snprintf(path, sizeof path, "%s/load.%s", f.data, f.config);
    snprintf(workload, sizeof workload, "load_%s", f.config);
    const char *name = bench_name(&f, workload);
    tn_scope program = tn_scope_begin();
    bench_banner(name);
    tn_module *m = model_new(f.width);
    if (stat(path, &there) != 0) TN_CHECK(tn_save(m, path));
    if (f.dtype != TN_F32) TN_CHECK(tn_module_to_dtype(m, f.dtype));
    double *seconds = malloc((size_t)f.steps * sizeof *seconds);
    if (!seconds) return 1;
    for (int64_t i = -f.warmup; i < f.steps; i++) {
        const double began = bench_now();
        TN_CHECK(tn_load_with(m, path, (tn_load_options){ .cast = true }, NULL));
        if (i >= 0) seconds[i] = bench_now() - began;
    }
    bench_line(name, "s", seconds, f.steps);
    bench_memory(name);
    free(seconds);
    tn_module_drop(m);
    tn_scope_end(program);
    return 0;
}
