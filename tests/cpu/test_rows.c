/*
 * test_rows.c - the row kernels against loops that follow the formulas literally, for every
 * instruction set, f32 and f64, sizes that divide by nothing, and 1 to 4 threads. rows_ops.c tests
 * the ops on top.
 *
 * Seen to fail: in real/layer_norm.c the mean of gw was left out of dx; in real/batch_norm.c
 * running_var moved by the biased variance, and the second pass about the mean was left out; in
 * optim_formulas.h the first SGD step was damped; in real/lerp_all.c the row for rate 1 was left
 * out.
 */
#include "numbers.h"
#include "rows.h"

#include "tensor/cpu/cpu.h"
#include "tensor/optim_formulas.h"
#include "tensor/philox.h"
#include "optim/optim_rules.h"

/* ---- arrays of either type ------------------------------------------------------------------- */

static const char *const isas[] = { "baseline", "avx2", "avx512" };
enum { ISAS = 3, VARIANTS = 2 * ISAS };

/* What a loop test runs: an instruction set's kernels, and a dtype. NULL where this machine lacks
 * it. */
static const tni_backend *kernels;
static const char *isa;
static tn_dtype dtype;

static bool choose(int variant)
{
    isa = isas[variant / 2];
    kernels = tni_cpu_table(isa);
    dtype = variant % 2 ? TN_F64 : TN_F32;
    return kernels != NULL;
}

static double tolerance(void)
{
    return dtype == TN_F64 ? 1e-11 : 1e-4;
}

static double uniform(void)
{
    return number_in(-2, 2);
}

static int64_t count(const tni_array *a)
{
    int64_t n = 1;
    for (int d = 0; d < a->rank; d++) n *= a->size[d];
    return n;
}

static double get(const tni_array *a, int64_t i)
{
    return number_get(a->data, a->dtype, i);
}

static void set(const tni_array *a, int64_t i, double value)
{
    number_set(a->data, a->dtype, i, value);
}

/* Memory of the case that runs, which goes together. */
static void *blocks[64];
static int n_blocks;

static void *new_block(size_t nbytes)
{
    ck_assert_int_lt(n_blocks, 64);
    return blocks[n_blocks++] = calloc(1, nbytes > 0 ? nbytes : 1);
}

static double *zeros(int64_t n)
{
    return new_block((size_t)n * sizeof(double));
}

static void free_blocks(void)
{
    while (n_blocks > 0) free(blocks[--n_blocks]);
}

/* Exactly as large as needed, so that a sanitizer sees every access beyond. Filled with random
 * numbers. */
static tni_array make(int rank, int64_t a, int64_t b, int64_t c)
{
    tni_array array = { .dtype = dtype, .rank = rank, .size = { a, b, c } };
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        array.stride[d] = stride;
        stride *= array.size[d];
    }
    array.data = new_block((size_t)stride * tn_dtype_size(dtype));
    for (int64_t i = 0; i < stride; i++) set(&array, i, uniform());
    return array;
}

static tni_array make_ids(int rank, int64_t a, int64_t b, int64_t below)
{
    tni_array array = {
        .dtype = TN_I64, .rank = rank, .size = { a, b }, .stride = { rank == 2 ? b : 1, 1 }
    };
    int64_t n = count(&array);
    array.data = new_block((size_t)n * sizeof(int64_t));
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)array.data)[i] = (int64_t)((uniform() + 2) / 4 * (double)below);
    return array;
}

static const tni_array absent = { .data = NULL };

static void check_near(const tni_array *a, int64_t i, double want, double scale, const char *what)
{
    double got = get(a, i);
    if (fabs(got - want) <= tolerance() * (fabs(want) + scale))
        return; /* an assertion for each element would take most of the time */
    ck_abort_msg("%s[%" PRId64 "] is %.17g, not %.17g (%s, %s)", what, i, got, want, isa,
                 tn_dtype_name(dtype));
}

static void check_same(const tni_array *a, int64_t i, double want, const char *what)
{
    double got = get(a, i);
    if (got != want) {
        ck_abort_msg("%s[%" PRId64 "] is %.17g, not %.17g (%s, %s)", what, i, got, want, isa,
                     tn_dtype_name(dtype));
    }
}

static const int64_t sizes[] = { 0, 1, 7, 33, 257, 1025 };
enum { SIZES = 6 };

/* ---- softmax --------------------------------------------------------------------------------- */

static void softmax_case(int64_t n, int64_t c, bool log)
{
    tni_array x = make(2, n, c, 0), y = make(2, n, c, 0), dy = make(2, n, c, 0),
              dx = make(2, n, c, 0);
    assert_ok(kernels->softmax(&(tni_softmax){ .y = y, .x = x, .log = log }));
    ck_assert_int_eq(
        kernels->softmax_grad(&(tni_softmax_grad){ .dx = dx, .dy = dy, .y = y, .log = log }),
        TN_OK);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, dot = 0;
        for (int64_t j = 0; j < c; j++) sum += exp(get(&x, i * c + j));
        for (int64_t j = 0; j < c; j++) {
            double p = exp(get(&x, i * c + j)) / sum;
            dot += log ? get(&dy, i * c + j) : get(&dy, i * c + j) * p;
        }
        for (int64_t j = 0; j < c; j++) {
            double p = exp(get(&x, i * c + j)) / sum;
            double g = get(&dy, i * c + j);
            check_near(&y, i * c + j, log ? get(&x, i * c + j) - __builtin_log(sum) : p, 1e-3,
                       "softmax");
            check_near(&dx, i * c + j, log ? g - p * dot : p * (g - dot), 0.1, "softmax_grad");
        }
    }
    free_blocks();
}

START_TEST(softmax_rows)
{
    if (!choose(_i)) return;
    for (int k = 0; k < SIZES; k++) {
        for (int log = 0; log < 2; log++) {
            softmax_case(7, sizes[k], log);
            softmax_case(sizes[k], 7, log);
            softmax_case(sizes[k], 33, log);
        }
    }
}
END_TEST

/* ---- cross entropy --------------------------------------------------------------------------- */

static void cross_entropy_case(int64_t n, int64_t c, int64_t d, bool weighted, double smoothing)
{
    tni_array x = make(3, n, c, d), dx = make(3, n, c, d), w = make(1, c, 0, 0),
              target = make_ids(2, n, d, c);
    tni_array loss = make(2, n, d, 0), row_weight = make(2, n, d, 0), top = make(2, n, d, 0),
              exps = make(2, n, d, 0);
    tni_array drow = make(2, n, d, 0);
    int64_t *ids = target.data;
    for (int64_t j = 0; j < c; j++) set(&w, j, fabs(get(&w, j)) + 0.1);
    for (int64_t r = 0; r < n * d; r += 3) ids[r] = r % 2 ? -100 : -7;
    const tni_array *weight = weighted ? &w : &absent;
    assert_ok(kernels->cross_entropy(
        &(tni_cross_entropy){ loss, row_weight, top, exps, x, target, *weight, smoothing, -7, 0 }));
    assert_ok(kernels->cross_entropy_grad(
        &(tni_cross_entropy_grad){ dx, drow, top, exps, x, target, *weight, smoothing, -7 }));
    for (int64_t r = 0; r < n * d; r++) {
        int64_t at = r / d * c * d + r % d, t = ids[r];
        double sum = 0, spread = 0, total = 0;
        for (int64_t j = 0; j < c; j++) {
            sum += exp(get(&x, at + j * d));
            total += weighted ? get(&w, j) : 1;
        }
        double log_sum = log(sum);
        for (int64_t j = 0; j < c; j++)
            spread += (weighted ? get(&w, j) : 1) * (log_sum - get(&x, at + j * d));
        double wt = t < 0 ? 0 : weighted ? get(&w, t) : 1;
        double want = t < 0 ? 0
                            : (1 - smoothing) * wt * (log_sum - get(&x, at + t * d)) +
                                  smoothing / (double)c * spread;
        check_near(&loss, r, want, 1, "row_loss");
        check_near(&row_weight, r, wt, 0, "row_weight");
        check_near(&exps, r, sum / exp(get(&top, r)), 0, "sum");
        for (int64_t j = 0; j < c; j++) {
            double p = exp(get(&x, at + j * d)) / sum;
            double wj = weighted ? get(&w, j) : 1;
            double g =
                (1 - smoothing) * wt * (p - (j == t)) + smoothing / (double)c * (p * total - wj);
            check_near(&dx, at + j * d, t < 0 ? 0 : g * get(&drow, r), 0.1, "cross_entropy_grad");
        }
    }
    free_blocks();
}

START_TEST(cross_entropy_rows)
{
    if (!choose(_i)) return;
    for (int k = 1; k < SIZES; k++) {
        for (int option = 0; option < 4; option++) {
            double smoothing = option / 2 * 0.1;
            cross_entropy_case(7, sizes[k], 1, option % 2, smoothing);
            cross_entropy_case(sizes[k], 7, 1, option % 2, smoothing);
            cross_entropy_case(3, 7, sizes[k], option % 2, smoothing);
        }
    }
    cross_entropy_case(0, 7, 1, false, 0);
    cross_entropy_case(7, 7, 0, false, 0);
}
END_TEST

START_TEST(cross_entropy_checks_before_writing)
{
    choose(1);
    tni_array x = make(3, 5, 10, 1), loss = make(2, 5, 1, 0), w = make(2, 5, 1, 0),
              top = make(2, 5, 1, 0), exps = make(2, 5, 1, 0);
    tni_array target = make_ids(2, 5, 1, 10);
    double before = get(&loss, 0);
    ((int64_t *)target.data)[3] = 12;
    ck_assert_int_eq(kernels->cross_entropy(
                         &(tni_cross_entropy){ loss, w, top, exps, x, target, absent, 0, -100, 0 }),
                     TN_E_INDEX);
    ck_assert_str_eq(tn_error(),
                     "tn_cross_entropy: target value 12 at row 3: want 0..9 (or -100 to ignore)");
    ck_assert(get(&loss, 0) == before);
    free_blocks();
}
END_TEST

/* ---- negative log likelihood ----------------------------------------------------------------- */

static void nll_case(int64_t n, int64_t c, int64_t d, bool weighted)
{
    tni_array x = make(3, n, c, d), dx = make(3, n, c, d), w = make(1, c, 0, 0);
    tni_array loss = make(2, n, d, 0), row_weight = make(2, n, d, 0), drow = make(2, n, d, 0);
    tni_array target = make_ids(2, n, d, c);
    const tni_array *weight = weighted ? &w : &absent;
    int64_t *t = target.data;
    for (int64_t r = 0; r < n * d; r += 3) t[r] = r % 2 ? -100 : -7;
    assert_ok(kernels->nll(&(tni_nll){ loss, row_weight, x, target, *weight, -7 }));
    ck_assert_int_eq(
        kernels->nll_grad(&(tni_nll_grad){
            .dx = dx, .drow = drow, .target = target, .weight = *weight, .ignore = -7 }),
        TN_OK);
    for (int64_t r = 0; r < n * d; r++) {
        int64_t at = r / d * c * d + r % d;
        double wt = t[r] < 0 ? 0 : weighted ? get(&w, t[r]) : 1;
        check_near(&row_weight, r, wt, 0, "row_weight");
        check_near(&loss, r, t[r] < 0 ? 0 : -wt * get(&x, at + t[r] * d), 0, "nll");
        for (int64_t j = 0; j < c; j++)
            check_near(&dx, at + j * d, j == t[r] ? -wt * get(&drow, r) : 0, 0, "nll_grad");
    }
    free_blocks();
}

START_TEST(nll_rows)
{
    if (!choose(_i)) return;
    for (int weighted = 0; weighted < 2; weighted++) {
        for (int k = 0; k < SIZES; k++) {
            nll_case(sizes[k], 7, 1, weighted);
            nll_case(3, 7, sizes[k], weighted);
        }
    }
}
END_TEST

/* ---- layer norm ------------------------------------------------------------------------------ */

static void layer_norm_case(int64_t n, int64_t f, bool affine)
{
    tni_array x = make(2, n, f, 0), y = make(2, n, f, 0), dy = make(2, n, f, 0),
              dx = make(2, n, f, 0);
    tni_array mean = make(1, n, 0, 0), rstd = make(1, n, 0, 0), w = make(1, f, 0, 0),
              b = make(1, f, 0, 0);
    tni_array dw = make(1, f, 0, 0), db = make(1, f, 0, 0);
    double *want_dw = zeros(f), *want_db = zeros(f);
    const tni_array *weight = affine ? &w : &absent;
    assert_ok(kernels->layer_norm(
        &(tni_layer_norm){ y, mean, rstd, x, *weight, affine ? b : absent, 1e-5, { 0 } }));
    assert_ok(kernels->layer_norm_grad(
        &(tni_layer_norm_grad){ dx, dw, db, dy, x, mean, rstd, *weight, { 0 }, false }));
    for (int64_t i = 0; i < n; i++) {
        double mu = 0, var = 0, gw_mean = 0, gx_mean = 0;
        for (int64_t j = 0; j < f; j++) mu += get(&x, i * f + j) / (double)f;
        for (int64_t j = 0; j < f; j++) var += pow(get(&x, i * f + j) - mu, 2) / (double)f;
        double r = 1 / sqrt(var + 1e-5);
        for (int64_t j = 0; j < f; j++) {
            double xh = (get(&x, i * f + j) - mu) * r, g = get(&dy, i * f + j);
            double gw = affine ? g * get(&w, j) : g;
            gw_mean += gw / (double)f;
            gx_mean += gw * xh / (double)f;
            want_dw[j] += g * xh;
            want_db[j] += g;
            check_near(&y, i * f + j, affine ? xh * get(&w, j) + get(&b, j) : xh, 1, "layer_norm");
        }
        for (int64_t j = 0; j < f && f > 1; j++) {
            double xh = (get(&x, i * f + j) - mu) * r, g = get(&dy, i * f + j);
            double gw = affine ? g * get(&w, j) : g;
            check_near(&dx, i * f + j, r * (gw - gw_mean - xh * gx_mean), r, "layer_norm_grad");
        }
    }
    for (int64_t j = 0; j < f; j++) {
        check_near(&dw, j, want_dw[j], 10, "dweight");
        check_near(&db, j, want_db[j], 10, "dbias");
    }
    free_blocks();
}

START_TEST(layer_norm_rows)
{
    if (!choose(_i)) return;
    for (int k = 1; k < SIZES; k++) {
        for (int affine = 0; affine < 2; affine++) {
            layer_norm_case(7, sizes[k], affine);
            layer_norm_case(sizes[k], 33, affine);
        }
    }
    layer_norm_case(0, 7, true);
    layer_norm_case(7, 0, true);
}
END_TEST

/* RMSNorm of n rows of channels (groups 0), or group norm of [n, channels, plane]. */
static void other_norm_case(int64_t n, int64_t groups, int64_t channels, int64_t plane, bool affine)
{
    const bool rms = groups == 0;
    const int64_t rows = rms ? n : n * groups, f = n ? n * channels * plane / rows : 0;
    const tni_norm_rows how = { groups, rms ? 0 : channels, rms };
    tni_array x = make(2, n, channels * plane, 0), y = make(2, n, channels * plane, 0);
    tni_array dy = make(2, n, channels * plane, 0), dx = make(2, n, channels * plane, 0);
    tni_array mean = make(1, rows, 0, 0), rstd = make(1, rows, 0, 0), w = make(1, channels, 0, 0);
    tni_array b = make(1, channels, 0, 0), dw = make(1, channels, 0, 0),
              db = make(1, channels, 0, 0);
    double *want_dw = zeros(channels), *want_db = zeros(channels);
    const tni_array *weight = affine ? &w : &absent, *bias = affine && !rms ? &b : &absent;
    const tni_array *middle = rms ? &absent : &mean;
    assert_ok(
        kernels->layer_norm(&(tni_layer_norm){ y, *middle, rstd, x, *weight, *bias, 1e-5, how }));
    assert_ok(kernels->layer_norm_grad(&(tni_layer_norm_grad){
        dx, dw, rms ? absent : db, dy, x, *middle, rstd, *weight, how, false }));
    for (int64_t i = 0; i < rows; i++) {
        double mu = 0, var = 0, gw_mean = 0, gx_mean = 0;
        const int64_t first = rms ? 0 : i % groups * (channels / groups);
        for (int64_t j = 0; j < f && !rms; j++) mu += get(&x, i * f + j) / (double)f;
        for (int64_t j = 0; j < f; j++) var += pow(get(&x, i * f + j) - mu, 2) / (double)f;
        double r = 1 / sqrt(var + 1e-5);
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t j = 0; j < f; j++) {
                const int64_t c = first + j / plane;
                double xh = (get(&x, i * f + j) - mu) * r, g = get(&dy, i * f + j);
                double gw = affine ? g * get(&w, c) : g;
                if (pass) {
                    double want = r * (gw - gw_mean - xh * gx_mean);
                    if (f > 1) check_near(&dx, i * f + j, want, r, "norm_grad");
                    continue;
                }
                gw_mean += rms ? 0 : gw / (double)f;
                gx_mean += gw * xh / (double)f;
                want_dw[c] += g * xh;
                want_db[c] += g;
                double scaled = affine ? xh * get(&w, c) + (rms ? 0 : get(&b, c)) : xh;
                check_near(&y, i * f + j, scaled, 1, "norm");
            }
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        check_near(&dw, c, want_dw[c], 10, "dweight");
        if (!rms) check_near(&db, c, want_db[c], 10, "dbias");
    }
    free_blocks();
}

START_TEST(other_norms)
{
    if (!choose(_i)) return;
    for (int affine = 0; affine < 2; affine++) {
        for (int k = 1; k < SIZES; k++) {
            other_norm_case(7, 0, sizes[k], 1, affine);
            other_norm_case(sizes[k], 0, 33, 1, affine);
            other_norm_case(3, 2, 4, sizes[k], affine);
            other_norm_case(sizes[k], 3, 6, 5, affine);
        }
        other_norm_case(5, 7, 7, 9, affine);
        other_norm_case(5, 2, 8, 1, affine);
        other_norm_case(0, 2, 4, 3, affine);
    }
}
END_TEST

/* ---- batch norm ------------------------------------------------------------------------------ */

static void batch_norm_case(int64_t n, int64_t c, int64_t s, bool training)
{
    tni_array x = make(3, n, c, s), y = make(3, n, c, s), dy = make(3, n, c, s),
              dx = make(3, n, c, s);
    tni_array mean = make(1, c, 0, 0), rstd = make(1, c, 0, 0), w = make(1, c, 0, 0),
              b = make(1, c, 0, 0);
    tni_array rm = make(1, c, 0, 0), rv = make(1, c, 0, 0), dw = make(1, c, 0, 0),
              db = make(1, c, 0, 0);
    double m = 0.3, count_ = (double)(n * s);
    double *old = zeros(2 * c); /* running statistics before */
    for (int64_t ch = 0; ch < c; ch++) {
        set(&rv, ch, fabs(get(&rv, ch)) + 0.1);
        old[2 * ch] = get(&rm, ch);
        old[2 * ch + 1] = get(&rv, ch);
    }
    assert_ok(kernels->batch_norm(
        &(tni_batch_norm){ y, mean, rstd, x, w, b, rm, rv, m, 1e-5, training }));
    assert_ok(kernels->batch_norm_grad(
        &(tni_batch_norm_grad){ dx, dw, db, dy, x, mean, rstd, w, training }));
    for (int64_t ch = 0; ch < c; ch++) {
        double mu = 0, var = 0, sum_g = 0, sum_gx = 0, old_mean = old[2 * ch],
               old_var = old[2 * ch + 1];
        for (int64_t i = 0; i < n * s; i++) mu += get(&x, (i / s * c + ch) * s + i % s) / count_;
        for (int64_t i = 0; i < n * s; i++) {
            double off = get(&x, (i / s * c + ch) * s + i % s) - mu;
            var += off * off / count_;
        }
        if (training) {
            check_near(&rm, ch, (1 - m) * old_mean + m * mu, 1, "running_mean");
            check_near(&rv, ch, (1 - m) * old_var + m * var * count_ / (count_ - 1), 0,
                       "running_var");
        } else {
            ck_assert(get(&rm, ch) == old_mean && get(&rv, ch) == old_var);
            mu = old_mean;
            var = old_var;
        }
        double r = 1 / sqrt(var + 1e-5);
        for (int64_t i = 0; i < n * s; i++) {
            int64_t at = (i / s * c + ch) * s + i % s;
            double xh = (get(&x, at) - mu) * r;
            sum_g += get(&dy, at);
            sum_gx += get(&dy, at) * xh;
            check_near(&y, at, xh * get(&w, ch) + get(&b, ch), 1, "batch_norm");
        }
        for (int64_t i = 0; i < n * s; i++) {
            int64_t at = (i / s * c + ch) * s + i % s;
            double xh = (get(&x, at) - mu) * r;
            double g = get(&dy, at) - (training ? (sum_g + xh * sum_gx) / count_ : 0);
            check_near(&dx, at, g * r * get(&w, ch), r, "batch_norm_grad");
        }
        check_near(&dw, ch, sum_gx, 10, "dweight");
        check_near(&db, ch, sum_g, 10, "dbias");
    }
    free_blocks();
}

START_TEST(batch_norm_planes_and_columns)
{
    static const int64_t s[] = { 1, 2, 7, 8, 33, 257 };
    if (!choose(_i)) return;
    for (int k = 0; k < 6; k++) {
        for (int training = 0; training < 2; training++) {
            batch_norm_case(7, 5, s[k], training);  /* few channels: blocks of samples */
            batch_norm_case(9, 67, s[k], training); /* many */
            batch_norm_case(257, 1, s[k], training);
        }
    }
    batch_norm_case(257, 2, 33, true); /* several blocks per channel */
}
END_TEST

/* The mean may be far above the deviation, and the first sample far below or above the others. */
START_TEST(batch_norm_offset)
{
    if (!choose(_i / 3)) return;
    enum { N = 512, S = 500, COUNT = N * S };
    tni_array x = make(3, N, 2, S), y = make(3, N, 2, S), mean = make(1, 2, 0, 0),
              rstd = make(1, 2, 0, 0);
    tni_array rm = make(1, 2, 0, 0), rv = make(1, 2, 0, 0);
    double mu = 0, var = 0;
    for (int64_t i = 0; i < count(&x); i++) {
        if (_i % 3 == 0 || i >= 2 * S) set(&x, i, get(&x, i) + 1000);
        if (_i % 3 == 2 && i < S) set(&x, i, get(&x, i) + 1e8);
        if (i / S % 2) set(&x, i, 0.1); /* the other channel does not vary at all */
    }
    for (int64_t i = 0; i < COUNT; i++) mu += get(&x, i / S * 2 * S + i % S) / COUNT;
    for (int64_t i = 0; i < COUNT; i++)
        var += pow(get(&x, i / S * 2 * S + i % S) - mu, 2) / (COUNT - 1);
    assert_ok(kernels->batch_norm(
        &(tni_batch_norm){ y, mean, rstd, x, absent, absent, rm, rv, 1, 1e-5, true }));
    /* sums of 500 squares of 1e8 in f32, one after another in a build without vectors */
    double far = _i % 3 == 2 ? 20 : 1, limit = dtype == TN_F64 ? 1e-12 : 1e-6;
    ck_assert_double_le(fabs(get(&rv, 0) / var - 1), far * limit);
    double mean_limit = far > 1 ? far * limit : dtype == TN_F64 ? 2e-14 : 1e-7;
    ck_assert_double_le(fabs(get(&rm, 0) / mu - 1), mean_limit);
    ck_assert_double_le(get(&rv, 1), dtype == TN_F64 ? 1e-30 : 1e-15);
    free_blocks();
}
END_TEST

/* ---- indexing -------------------------------------------------------------------------------- */

START_TEST(take_and_take_add)
{
    if (!choose(_i)) return;
    for (int k = 0; k < SIZES * SIZES; k++) {
        int64_t outer = k % 3 + 1, v = 5, n = sizes[k / SIZES], inner = sizes[k % SIZES];
        if (n * inner > 100000) continue;
        tni_array x = make(3, outer, v, inner), y = make(3, outer, n, inner),
                  index = make_ids(1, n, 0, v);
        tni_array sum = make(3, outer, v, inner);
        assert_ok(kernels->take(&(tni_take){ .y = y, .x = x, .index = index }));
        const int64_t *id = index.data;
        for (int64_t i = 0; i < count(&y); i++) {
            int64_t o = i / (n * inner), r = i / inner % n;
            check_same(&y, i, get(&x, (o * v + id[r]) * inner + i % inner), "take");
        }
        double *want = zeros(count(&sum));
        for (int64_t i = 0; i < count(&sum); i++) want[i] = get(&sum, i);
        for (int64_t i = 0; i < count(&y); i++) {
            int64_t o = i / (n * inner), r = i / inner % n;
            want[(o * v + id[r]) * inner + i % inner] += id[r] == 3 ? 0 : get(&y, i);
        }
        ck_assert_int_eq(
            kernels->take_add(&(tni_take_add){ .x = sum, .y = y, .index = index, .skip = 3 }),
            TN_OK);
        for (int64_t i = 0; i < count(&sum); i++) check_near(&sum, i, want[i], 1, "take_add");
        free_blocks();
    }
}
END_TEST

START_TEST(gather_and_scatter_add)
{
    if (!choose(_i)) return;
    for (int k = 0; k < 2 * SIZES; k++) {
        int axis = k % 2;
        int64_t a = axis == 0 ? sizes[k / 2] : 7, b = axis == 0 ? 7 : sizes[k / 2];
        tni_array x = make(2, axis == 0 ? 5 : 9, axis == 0 ? 9 : 5, 0), y = make(2, a, b, 0);
        tni_array index = make_ids(2, a, b, 5);
        int64_t cols = x.size[1];
        ck_assert_int_eq(
            kernels->gather(&(tni_gather){ .y = y, .x = x, .index = index, .axis = axis }), TN_OK);
        const int64_t *id = index.data;
        double *want = zeros(count(&x));
        for (int64_t i = 0; i < count(&x); i++) want[i] = get(&x, i);
        for (int64_t i = 0; i < a * b; i++) {
            int64_t at = axis == 0 ? id[i] * cols + i % b : i / b * cols + id[i];
            check_same(&y, i, get(&x, at), "gather");
            set(&y, i, uniform());
            want[at] += get(&y, i);
        }
        const tni_scatter add = {
            .y = x, .index = index, .source = y, .axis = axis, .how = TNI_ADD
        };
        assert_ok(kernels->scatter(&add));
        for (int64_t i = 0; i < count(&x); i++) check_near(&x, i, want[i], 1, "scatter");
        if (a * b > 0) {
            ((int64_t *)index.data)[a * b - 1] = 5;
            ck_assert_int_eq(
                kernels->gather(&(tni_gather){ .y = y, .x = x, .index = index, .axis = axis }),
                TN_E_INDEX);
            ck_assert_int_eq(kernels->scatter(&add), TN_E_INDEX);
            ck_assert(strstr(tn_error(), "index 5 at position"));
        }
        free_blocks();
    }
}
END_TEST

/* ---- dropout --------------------------------------------------------------------------------- */

START_TEST(philox_known_answers) /* Random123's kat_vectors, philox4x32 10 */
{
    static const uint32_t kat[3][10] = {
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
          0x94fdcceb, 0x5001e420, 0x24126ea1 },
    };
    for (int k = 0; k < 3; k++) {
        uint32_t c[4] = { kat[k][0], kat[k][1], kat[k][2], kat[k][3] };
        tni_philox4x32(&c[0], &c[1], &c[2], &c[3], kat[k][4], kat[k][5]);
        for (int w = 0; w < 4; w++) ck_assert_uint_eq(c[w], kat[k][6 + w]);
    }
    ck_assert_uint_eq(tni_philox_threshold(1), 1u << 24);
    ck_assert_uint_eq(tni_philox_threshold(0.5), 1u << 23);
    ck_assert_uint_eq(tni_philox_threshold(1e-12), 1);
}
END_TEST

START_TEST(dropout_mask)
{
    static const double ps[] = { 0.1, 0.5, 1 };
    if (!choose(_i)) return;
    for (int k = 0; k < SIZES + 1; k++) {
        int64_t n = k < SIZES ? sizes[k] : 40001;
        uint64_t seed = 0x123456789abcdefu, offset = 0xfffffff0u; /* crosses 32 bits */
        double p = ps[k % 3];
        tni_array x = make(1, n, 0, 0), y = make(1, n, 0, 0);
        assert_ok(kernels->dropout(
            &(tni_dropout){ .y = y, .x = x, .p = p, .seed = seed, .offset = offset }));
        for (int64_t i = 0; i < n; i++) {
            uint32_t w[4];
            tni_philox(seed, offset + (uint64_t)i / 4, &w[0], &w[1], &w[2], &w[3]);
            bool keep = (w[i % 4] >> 8) * 0x1p-24 >= p;
            check_near(&y, i, keep ? get(&x, i) / (1 - p) : 0, 0, "dropout");
        }
        free_blocks();
    }
}
END_TEST

/* ---- optimizers ------------------------------------------------------------------------------ */

/* One element of a step, from SEMANTICS' table of updates; s: the state slots */
static double reference_step(const rule *r, const tni_optim_tensor *t, double p, double g,
                             double *s)
{
    const tn_optim_numbers *o = t->numbers;
    const double b1 = o->number[0], b2 = o->number[1], eps = o->number[2];
    g = r->maximize ? -g : g;
    g += o->weight_decay * p;
    if (r->rule == TN_RULE_ADAM || r->rule == TN_RULE_LION) p *= o->own[0];
    switch (r->rule) {
    case TN_RULE_SGD:
        if (t->s0) {
            s[0] = o->step == 1 ? g : b1 * s[0] + (1 - b2) * g;
            g = r->flag ? g + b1 * s[0] : s[0];
        }
        return p - o->lr * g;
    case TN_RULE_ADAM: {
        s[0] = b1 * s[0] + (1 - b1) * g;
        s[1] = b2 * s[1] + (1 - b2) * g * g;
        s[2] = fmax(s[2], s[1]);
        double root = sqrt(r->flag ? s[2] : s[1]) * o->own[2] + eps;
        return p - o->lr * g / root - o->own[1] * s[0] / root;
    }
    case TN_RULE_RMSPROP: {
        s[0] = b1 * s[0] + (1 - b1) * g * g;
        s[1] = b1 * s[1] + (1 - b1) * g;
        double d = sqrt((r->flag ? s[0] - s[1] * s[1] : s[0]) + o->own[3]) + eps;
        s[2] = b2 * s[2] + g / d;
        return p - o->lr * s[2]; /* momentum 0: s[2] is g / d */
    }
    case TN_RULE_ADAGRAD: s[0] += g * g; return p - o->lr * g / (sqrt(s[0]) + eps);
    case TN_RULE_LION: {
        double c = b1 * s[0] + (1 - b1) * g;
        s[0] = b2 * s[0] + (1 - b2) * g;
        return p - o->lr * ((c > 0) - (c < 0));
    }
    case TN_RULE_ADAMAX:
        s[0] = b1 * s[0] + (1 - b1) * g;
        s[1] = fmax(b2 * s[1], fabs(g) + eps);
        return p - o->lr * s[0] / s[1];
    default: return NAN;
    }
}

START_TEST(
    optimizer_steps) /* several tensors of both dtypes, three steps, with and without decay */
{
    enum { TENSORS = 5 };
    static const int64_t n[TENSORS] = { 33, 0, 40001, 1, 1025 };
    isa = isas[_i / OPTIMIZERS];
    kernels = tni_cpu_table(isa);
    if (!kernels) return;
    const rule *o = &optimizers[_i % OPTIMIZERS];
    const tn_optim_type type = { .rule = o->rule };
    tn_optim_numbers numbers[TENSORS];
    tni_optim_tensor t[TENSORS];
    tni_array p[TENSORS], g[TENSORS], state[TENSORS][3];
    double *want[TENSORS], *slots[TENSORS];
    for (int k = 0; k < TENSORS; k++) {
        dtype = k % 2 ? TN_F64 : TN_F32;
        p[k] = make(1, n[k], 0, 0);
        g[k] = make(1, n[k], 0, 0);
        t[k] = (tni_optim_tensor){
            .dtype = dtype, .n = n[k], .p = p[k].data, .g = g[k].data, .numbers = &numbers[k]
        };
        numbers[k] = numbers_of(o, k, 3, k == 3 ? 0 : 0.1 * k);
        void **slot[3] = { &t[k].s0, &t[k].s1, &t[k].s2 };
        for (int j = 0; j < 3; j++) {
            state[k][j] = make(1, n[k], 0, 0);
            memset(state[k][j].data, 0, (size_t)n[k] * tn_dtype_size(dtype));
            *slot[j] = uses(o, j) ? state[k][j].data : NULL;
        }
        want[k] = zeros(n[k]);
        slots[k] = zeros(3 * n[k]);
        for (int64_t i = 0; i < n[k]; i++) want[k][i] = get(&p[k], i);
    }
    for (int step = 1; step <= 3; step++) {
        for (int k = 0; k < TENSORS; k++) numbers[k].step = step;
        ck_assert_int_eq(
            kernels->optim_step(&(tni_optim_step){ .type = &type, .tensors = t, .n = TENSORS }),
            TN_OK);
        for (int k = 0; k < TENSORS; k++) {
            dtype = p[k].dtype;
            for (int64_t i = 0; i < n[k]; i++) {
                want[k][i] = reference_step(o, &t[k], want[k][i], get(&g[k], i), slots[k] + 3 * i);
                check_near(&p[k], i, want[k][i], 0.1, "parameter");
            }
        }
    }
    free_blocks();
}
END_TEST

/* p = (1, -2), g = k (0.5, -1) at step k, lr 0.1: SEMANTICS 2.22, measured with PyTorch in f64 */
static const struct golden {
    rule rule;
    double decay, want[6];
} golden[] = {
    { { TN_RULE_SGD, 0.9, 0.1, 0, false, false, { 0 } },
      0.01,
      { .949, -1.898, .8122459, -1.6244918, .55343618869, -1.10687237738 } },
    { { TN_RULE_SGD, 0.9, 0, 0, true, false, { 0 } },
      0,
      { .905, -1.81, .6745, -1.349, .27205, -.5441 } },
    { { TN_RULE_ADAM, 0.9, 0.999, 1e-8, false, false, { 0 } },
      0.1,
      { .900000001667, -1.900000000833, .80250297032, -1.802547237358, .705695287965,
        -1.70578677043 } },
    { { TN_RULE_ADAM, 0.9, 0.999, 1e-8, false, false, { 0.01 } },
      0,
      { .890000002, -1.880000001, .784581800619, -1.764681799018, .680935861089,
        -1.651234859061 } },
};

START_TEST(optimizers_golden)
{
    kernels = tni_cpu_table(isas[_i / 4]);
    if (!kernels) return;
    double p[2] = { 1, -2 }, g[2], s[3][2] = { { 0 } };
    const struct golden *want = &golden[_i % 4];
    const rule *o = &want->rule;
    const tn_optim_type type = { .rule = o->rule };
    const bool adam = o->rule == TN_RULE_ADAM;
    for (int k = 1; k <= 3; k++) {
        g[0] = 0.5 * k;
        g[1] = -1.0 * k;
        tn_optim_numbers numbers = numbers_of(o, 0, 1, want->decay);
        numbers.lr = adam ? 0 : 0.1;
        numbers.own[0] = 1 - o->own[0];
        numbers.own[1] = 0.1 / (1 - pow(o->beta1, k));
        numbers.own[2] = 1 / sqrt(1 - pow(o->beta2, k));
        numbers.step = k;
        tni_optim_tensor t = { TN_F64, 2, p, g, s[0], adam ? s[1] : NULL, NULL, &numbers };
        ck_assert_int_eq(
            kernels->optim_step(&(tni_optim_step){ .type = &type, .tensors = &t, .n = 1 }), TN_OK);
        for (int i = 0; i < 2; i++) {
            double expected = want->want[(k - 1) * 2 + i];
            ck_assert_msg(fabs(p[i] - expected) <= 6e-13, "case %d, step %d: %.15g is not %.15g",
                          _i % 4, k, p[i], expected);
        }
    }
}
END_TEST

/* ---- many tensors ---------------------------------------------------------------------------- */

START_TEST(lerp_of_many) /* both dtypes, empty and long ones; towards y, a copy of y, and scaled */
{
    enum { TENSORS = 5, WAYS = 3 };
    static const int64_t n[TENSORS] = { 33, 0, 40001, 1, 1025 };
    isa = isas[_i / WAYS];
    kernels = tni_cpu_table(isa);
    if (!kernels) return;
    const int way = _i % WAYS;
    const double rate = way == 1 ? 1 : 0.25;
    tni_lerp_tensor t[TENSORS];
    tni_array x[TENSORS], y[TENSORS];
    double *want[TENSORS];
    for (int k = 0; k < TENSORS; k++) {
        dtype = k % 2 ? TN_F64 : TN_F32;
        x[k] = make(1, n[k], 0, 0);
        y[k] = make(1, n[k], 0, 0);
        if (k == 3 && way == 1) *(double *)x[k].data = INFINITY;
        t[k] = (tni_lerp_tensor){ dtype, n[k], x[k].data, way == 2 ? NULL : y[k].data, rate };
        want[k] = zeros(n[k]);
        for (int64_t i = 0; i < n[k]; i++) {
            double a = get(&x[k], i), b = get(&y[k], i);
            want[k][i] = way == 0 ? a + rate * (b - a) : way == 1 ? b : a * rate;
        }
    }
    assert_ok(kernels->lerp_all(&(tni_lerp_all){ t, TENSORS }));
    assert_ok(kernels->lerp_all(&(tni_lerp_all){ t, 0 }));
    for (int k = 0; k < TENSORS; k++) {
        dtype = x[k].dtype;
        for (int64_t i = 0; i < n[k]; i++) check_near(&x[k], i, want[k][i], 1, "element");
    }
    free_blocks();
}
END_TEST

/* ---- determinism ----------------------------------------------------------------------------- */

/* Runs every kernel on sizes that make many chunks; a digest of all it wrote. */
static uint64_t digest_of_everything(void)
{
    number_seed = 7;
    tni_array x = make(3, 129, 67, 33), y = make(3, 129, 67, 33), dy = make(3, 129, 67, 33);
    tni_array dx = make(3, 129, 67, 33), a = make(1, 67 * 33, 0, 0), b = make(1, 67 * 33, 0, 0);
    tni_array c = make(1, 67 * 33, 0, 0), d = make(1, 67 * 33, 0, 0), e = make(2, 129, 33, 0);
    tni_array f = make(2, 129, 33, 0), g = make(2, 129, 33, 0), exps = make(2, 129, 33, 0);
    tni_array target = make_ids(2, 129, 33, 67);
    tni_array index = make_ids(1, 129, 0, 5), one = x, rows = x, few = x;
    tni_array *outputs[] = { &y, &dx, &a, &b, &c, &d, &e, &f, &g, &exps };
    tni_array rows_y = y, rows_dy = dy, rows_dx = dx, few_y = y, few_dy = dy, few_dx = dx;
    uint64_t h = 14695981039346656037u;

#define SHAPED(array, r, s0, s1, s2)                                                               \
    ((array).rank = (r), (array).size[0] = (s0), (array).size[1] = (s1), (array).size[2] = (s2))
#define RUN(call)                                                                                  \
    do {                                                                                           \
        ck_assert_int_eq(call, TN_OK);                                                             \
        for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++) {                            \
            const unsigned char *byte = outputs[o]->data;                                          \
            size_t bytes = (size_t)count(outputs[o]) * tn_dtype_size(dtype);                       \
            for (size_t i = 0; i < bytes; i++) h = (h ^ byte[i]) * 1099511628211u;                 \
        }                                                                                          \
    } while (0)

    SHAPED(rows, 2, 129 * 67, 33, 0);
    SHAPED(rows_y, 2, 129 * 67, 33, 0);
    SHAPED(rows_dy, 2, 129 * 67, 33, 0);
    SHAPED(rows_dx, 2, 129 * 67, 33, 0);
    SHAPED(few, 3, 129 * 67, 3, 11); /* three channels: blocks of samples */
    SHAPED(few_y, 3, 129 * 67, 3, 11);
    SHAPED(few_dy, 3, 129 * 67, 3, 11);
    SHAPED(few_dx, 3, 129 * 67, 3, 11);
    RUN(kernels->softmax(&(tni_softmax){ .y = rows_y, .x = rows, .log = false }));
    RUN(kernels->softmax_grad(
        &(tni_softmax_grad){ .dx = rows_dx, .dy = rows_dy, .y = rows_y, .log = false }));
    RUN(kernels->cross_entropy(
        &(tni_cross_entropy){ e, f, g, exps, x, target, absent, 0.1, -100, 0 }));
    RUN(kernels->cross_entropy_grad(
        &(tni_cross_entropy_grad){ dx, e, g, exps, x, target, absent, 0.1, -100 }));
    tni_array mean = make(1, 129 * 67, 0, 0), rstd = make(1, 129 * 67, 0, 0);
    RUN(kernels->layer_norm(&(tni_layer_norm){ rows_y, mean, rstd, rows, a, b, 1e-5, { 0 } }));
    RUN(kernels->layer_norm_grad(
        &(tni_layer_norm_grad){ rows_dx, c, d, rows_dy, rows, mean, rstd, a, { 0 }, false }));
    tni_batch_norm norm = { y, mean, rstd, x, a, b, c, d, 0.1, 1e-5, true };
    tni_batch_norm_grad norm_grad = { dx, c, d, dy, x, mean, rstd, a, true };
    RUN(kernels->batch_norm(&norm));
    RUN(kernels->batch_norm_grad(&norm_grad));
    norm.y = few_y;
    norm.x = norm_grad.x = few;
    norm_grad.dx = few_dx;
    norm_grad.dy = few_dy;
    RUN(kernels->batch_norm(&norm));
    RUN(kernels->batch_norm_grad(&norm_grad));
    one.data = y.data;
    SHAPED(one, 3, 1, 5, 67 * 33);
    SHAPED(rows_dy, 3, 1, 129, 67 * 33);
    RUN(kernels->take_add(&(tni_take_add){ .x = one, .y = rows_dy, .index = index, .skip = -1 }));
    SHAPED(rows_dy, 1, 129 * 67 * 33, 0, 0);
    SHAPED(rows_y, 1, 129 * 67 * 33, 0, 0);
    RUN(kernels->dropout(
        &(tni_dropout){ .y = rows_y, .x = rows_dy, .p = 0.3, .seed = 5, .offset = 6 }));
    const tn_optim_type adam = { .rule = TN_RULE_ADAM };
    const tn_optim_numbers numbers = {
        .weight_decay = 0.1, .number = { 0.9, 0.999, 1e-8 }, .step = 3, .own = { 1, 0.369, 18.3 }
    };
    tni_optim_tensor t = { dtype, count(&x), y.data, dy.data, dx.data, x.data, NULL, &numbers };
    RUN(kernels->optim_step(&(tni_optim_step){ .type = &adam, .tensors = &t, .n = 1 }));
#undef RUN
#undef SHAPED
    free_blocks();
    return h;
}

START_TEST(same_bits_for_any_thread_count)
{
    if (!choose(_i)) return;
    int before = tn_num_threads();
    assert_ok(tn_set_num_threads(1));
    uint64_t alone = digest_of_everything();
    for (int threads = 2; threads <= 4; threads++) {
        assert_ok(tn_set_num_threads(threads));
        ck_assert_uint_eq(digest_of_everything(), alone);
    }
    assert_ok(tn_set_num_threads(before));
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("rows");
    TCase *t = test_case(suite, "kernels");
    tcase_add_loop_test(t, softmax_rows, 0, VARIANTS);
    tcase_add_loop_test(t, cross_entropy_rows, 0, VARIANTS);
    tcase_add_loop_test(t, nll_rows, 0, VARIANTS);
    tcase_add_test(t, cross_entropy_checks_before_writing);
    tcase_add_loop_test(t, layer_norm_rows, 0, VARIANTS);
    tcase_add_loop_test(t, other_norms, 0, VARIANTS);
    tcase_add_loop_test(t, batch_norm_planes_and_columns, 0, VARIANTS);
    tcase_add_loop_test(t, batch_norm_offset, 0, 3 * VARIANTS);
    tcase_add_loop_test(t, take_and_take_add, 0, VARIANTS);
    tcase_add_loop_test(t, gather_and_scatter_add, 0, VARIANTS);
    tcase_add_test(t, philox_known_answers);
    tcase_add_loop_test(t, dropout_mask, 0, VARIANTS);
    tcase_add_loop_test(t, optimizer_steps, 0, ISAS * OPTIMIZERS);
    tcase_add_loop_test(t, optimizers_golden, 0, ISAS * 4);
    tcase_add_loop_test(t, lerp_of_many, 0, ISAS * 3);
    tcase_add_loop_test(t, same_bits_for_any_thread_count, 0, VARIANTS);
    rows_ops_cases(suite);
    rows_range_cases(suite);
    return suite;
}
