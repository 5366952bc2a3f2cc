/*
 * bench_average - what averaging the gradient of one parameter over the processes costs, by its
 * size: started by mpirun, for parallel_simulate.py.
 *
 * The loss is the parameter's sum. A backward that averages also copies the gradient into its
 * bucket, sends it, waits, divides, and exchanges the ranks' reports; one that does not
 * (tn_data_parallel_set_sync) ends before all that. The difference of the two is what a bucket
 * costs where no computation hides it. All ranks begin together (tn_parallel_barrier); a time is
 * the slowest rank's. "ms_local" is the part that every network leaves to the processor: a copy, an
 * addition and a division of as many bytes.
 */
#include "bench.h"

#include <inttypes.h>

typedef struct row {
    tn_module base;
    tn_tensor *w;
} row;

static const tn_module_type row_type = { .name = "Row", .size = sizeof(row) };

static tn_module *row_new(int64_t n)
{
    row *m = tn_module_new(&row_type);
    if (!m) return NULL;
    tn_register_parameter(&m->base, "w", &m->w, tn_zeros(TN_SHAPE(n)));
    return tn_module_done(&m->base);
}

/* Milliseconds of a backward, on the slowest rank. */
static double backward(tn_module *model, tn_optim *opt)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *loss = tn_sum(((row *)model)->w, TN_AXES(0), false);
    TN_CHECK_PTR(loss);
    TN_CHECK(tn_parallel_barrier());
    double begin = bench_now();
    TN_CHECK(tn_backward(loss));
    double ms = 1e3 * (bench_now() - begin), slowest = 0;
    TN_CHECK(tn_optim_zero_grad(opt));
    for (int from = 0; from < tn_parallel_size(); from++) {
        tn_tensor *theirs = tn_full_as(TN_SCALAR, ms, TN_F64, tn_cpu());
        TN_CHECK(tn_parallel_broadcast(theirs, from));
        if (tn_item(theirs) > slowest) slowest = tn_item(theirs);
    }
    tn_scope_end(scope);
    return slowest;
}

static double local(tn_tensor *w, tn_tensor *bucket)
{
    double begin = bench_now();
    TN_NO_GRAD
    {
        TN_CHECK(tn_copy_(bucket, w));
        TN_CHECK(tn_add_(bucket, w));
        TN_CHECK(tn_mul_scalar_(bucket, 0.5));
    }
    return 1e3 * (bench_now() - begin);
}

static void measure(int64_t nbytes, const bench_flags *f)
{
    double *on = calloc(3 * (size_t)f->steps, sizeof *on), *off = on + f->steps;
    double *own = off + f->steps;
    if (!on) exit(1);
    tn_scope scope = tn_scope_begin();
    tn_module *model = row_new(nbytes / 4);
    TN_CHECK_PTR(model);
    tn_optim *opt = tn_sgd(tn_parameters(model), (tn_sgd_options){ .lr = 1e-3 });
    TN_CHECK_PTR(opt);
    tn_data_parallel *shared =
        tn_data_parallel_new(model, (tn_data_parallel_options){ .bucket_bytes = nbytes });
    TN_CHECK_PTR(shared);
    tn_tensor *bucket = tn_zeros(TN_SHAPE(nbytes / 4));
    for (int64_t i = -f->warmup; i < f->steps; i++) {
        double ms_local = local(((row *)model)->w, bucket);
        if (i >= 0) own[i] = ms_local;
        for (int sync = 0; sync < 2; sync++) {
            tn_data_parallel_set_sync(shared, sync);
            double ms = backward(model, opt);
            if (i >= 0) (sync ? on : off)[i] = ms;
        }
    }
    char name[64];
    snprintf(name, sizeof name, "tenon_average_%" PRId64, nbytes);
    for (int64_t i = 0; i < f->steps; i++) on[i] -= off[i];
    bench_line(name, "ms", on, f->steps);
    bench_line(name, "ms_local", own, f->steps);
    tn_data_parallel_free(shared);
    tn_optim_free(opt);
    tn_module_drop(model);
    tn_scope_end(scope);
    free(on);
}

int main(int argc, char **argv)
{
    bench_flags f = bench_parse(argc, argv, (bench_flags){ .steps = 20, .warmup = 3 });
    if (tn_parallel_size() < 2 || f.steps < 1) {
        fprintf(stderr, "bench_average: alone there is nothing to average: want mpirun -n 2\n");
        return 2;
    }
    bench_banner("average");
    for (int64_t nbytes = 1 << 10; nbytes <= 1 << 26; nbytes *= 4) measure(nbytes, &f);
    return 0;
}
