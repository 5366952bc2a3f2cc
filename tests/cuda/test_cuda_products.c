/*
 * test_cuda_products.c - the CUDA kernels of products, convolution, pooling and attention against
 * the CPU's, slot by slot, at sizes that divide by nothing and in every layout the slots allow;
 * memory that must not be written; every kernel again, which must give the same bits; and the
 * memory that attention takes.
 *
 * Seen to fail: in gemm_lt.cu a bias for sums of rows; in gemm.cu sums of columns, the bias left
 * out where there is one column, cublasLt's choice kept by m alone or made without C's alignment,
 * or one that is refused; batches given to cuBLAS in one, or the second part of them taken from the
 * first; in depthwise.cu outputs between the strides taken and the last part not summed; in
 * conv2d_columns.cu pieces of f64 that overlap; in pool2d.cu >= for > in the maximum, the padding
 * counted where it is not to be; in attention.h the key after the query seen, any of the four
 * barriers removed, rows taken for aligned; in attention.cu the shrink of earlier keys left out,
 * -inf subtracted in blocked rows; in attention_grad.cu the tile on the diagonal skipped.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "numbers.h"
#include "cpu/conv_cases.h"
#include "tensor/internal.h"

enum { CPU, GPU, SIDES };

static const tni_backend *kernels[SIDES];
static tn_dtype dtype; /* of the reals */

static void choose(int variant)
{
    dtype = variant % 2 ? TN_F64 : TN_F32;
    kernels[CPU] = tni_backend_for(tn_cpu());
    kernels[GPU] = tni_backend_for(tn_cuda(0));
    ck_assert_msg(kernels[GPU] != NULL, "%s", tn_error());
}

/* ---- arrays on both sides -------------------------------------------------------------------- */

/* One array twice, with the same values at first, gaps included. */
typedef struct twin {
    tni_array at[SIDES];
    char *block[SIDES];
    int64_t n; /* elements of the block */
} twin;

static twin twins[64]; /* of the running case, to be freed together */
static int n_twins;
static double uniform(void)
{
    return number_in(-1, 1);
}

static void put(void *data, tn_dtype of, int64_t i, double v)
{
    number_set(data, of, i, of == TN_U8 || of == TN_BOOL ? v > 0.4 : v);
}

static void upload(const twin *t)
{
    size_t nbytes = (size_t)t->n * tn_dtype_size(t->at[CPU].dtype);
    assert_ok(kernels[GPU]->upload(t->block[GPU], t->block[CPU], nbytes));
}

static void *download(const twin *t)
{
    size_t nbytes = (size_t)t->n * tn_dtype_size(t->at[CPU].dtype);
    void *copy = malloc(nbytes + 1);
    assert_ok(kernels[GPU]->download(copy, t->block[GPU], nbytes));
    return copy;
}

/* A block of `lead` elements and n more, random: a vector that begins after the lead. */
static twin *make(tn_dtype of, int64_t lead, int64_t n)
{
    twin *t = &twins[n_twins++];
    size_t each = tn_dtype_size(of);
    ck_assert_int_le(n_twins, 64);
    *t = (twin){ .n = lead + n };
    t->block[CPU] = malloc((size_t)t->n * each + 1);
    void *block;
    assert_ok(kernels[GPU]->alloc((size_t)t->n * each, &block));
    t->block[GPU] = block;
    for (int64_t i = 0; i < t->n; i++) put(t->block[CPU], of, i, uniform());
    for (int s = 0; s < SIDES; s++)
        t->at[s] = (tni_array){ t->block[s] + (size_t)lead * each, of, 1, { n }, { 1 } };
    upload(t);
    return t;
}

static twin *reals(int64_t n)
{
    return make(dtype, 0, n);
}

static void drop_all(void)
{
    for (int i = 0; i < n_twins; i++) {
        size_t nbytes = (size_t)twins[i].n * tn_dtype_size(twins[i].at[CPU].dtype);
        free(twins[i].block[CPU]);
        kernels[GPU]->free(twins[i].block[GPU], nbytes);
    }
    assert_ok(tn_cuda_synchronize());
    n_twins = 0;
}

static bool close_to(double a, double b, double tolerance)
{
    return (isnan(a) && isnan(b)) || a == b || fabs(a - b) <= tolerance * (1 + fabs(b));
}

/* Both sides hold the same numbers, up to the rounding of sums of `terms` numbers. A CPU adds parts
 * of them side by side; a GPU may add one after the other, and errors then grow with the number,
 * not its root: of 1025 products one result in 27000 is off by more than the root allows. */
static void compare(const twin *t, int64_t terms, const char *what)
{
    double unit = dtype == TN_F64 ? 1e-13 : 4e-7, n = (double)terms;
    double tolerance = terms < 0 ? 0 : unit * (4 + sqrt(n) + n / 8);
    tn_dtype of = t->at[CPU].dtype;
    void *got = download(t);
    for (int64_t i = 0; i < t->n; i++) {
        double a = number_get(got, of, i);
        double b = number_get(t->block[CPU], of, i);
        if (close_to(a, b, tolerance)) continue; /* an assertion for each takes most of the time */
        ck_abort_msg("%s, %s: element %" PRId64 " of %" PRId64 " is %.9g, not %.9g", what,
                     tn_dtype_name(dtype), i, t->n, a, b);
    }
    free(got);
}

enum { EXACTLY = -1, REPEATS = 10 };

/* The block on the GPU as bytes, to compare with the next one. */
static void same_bits(const twin *t, void **first, const char *what)
{
    void *now = download(t);
    if (!*first) {
        *first = now;
        return;
    }
    ck_assert_msg(memcmp(*first, now, (size_t)t->n * tn_dtype_size(t->at[CPU].dtype)) == 0,
                  "%s: other bits than the first time", what);
    free(now);
}

/* ---- gemm ------------------------------------------------------------------------------------ */

typedef struct gemm_case {
    int64_t m, n, k, batch;
    int a, b;                            /* layouts */
    bool bias, accumulate, one_a, one_b; /* one matrix for the whole batch */
} gemm_case;

static void run_gemm(const gemm_case *c, int repeats)
{
    char what[128];
    tni_gemm g[SIDES] = { { .dtype = dtype, .m = c->m, .n = c->n, .k = c->k, .batch = c->batch } };
    int64_t size_a = lay_out(c->a, c->m, c->k, &g[CPU].a_row, &g[CPU].a_col);
    int64_t size_b = lay_out(c->b, c->k, c->n, &g[CPU].b_row, &g[CPU].b_col);
    twin *a = make(dtype, 1, size_a * (c->one_a ? 1 : c->batch));
    twin *b = make(dtype, 2, size_b * (c->one_b ? 1 : c->batch));
    twin *y = make(dtype, 3, c->batch * (c->m * (c->n + 2) + 5));
    twin *bias = reals(c->n);
    void *first = NULL;
    snprintf(what, sizeof what,
             "gemm [%" PRId64 ",%" PRId64 ",%" PRId64 "] x %" PRId64 ", layouts %d %d%s%s", c->m,
             c->n, c->k, c->batch, c->a, c->b, c->bias ? ", bias" : "",
             c->accumulate ? ", added" : "");
    g[CPU].a_batch = c->one_a ? 0 : size_a;
    g[CPU].b_batch = c->one_b ? 0 : size_b;
    g[CPU].c_row = c->n + 2;
    g[CPU].c_batch = c->m * (c->n + 2) + 5;
    g[CPU].accumulate = c->accumulate;
    g[GPU] = g[CPU];
    for (int s = 0; s < SIDES; s++) {
        g[s].a = a->at[s].data;
        g[s].b = b->at[s].data;
        g[s].c = y->at[s].data;
        g[s].bias = c->bias ? bias->at[s].data : NULL;
    }
    for (int i = 0; i < repeats; i++) {
        upload(y);
        assert_ok(kernels[GPU]->gemm(&g[GPU]));
        same_bits(y, &first, what);
    }
    assert_ok(kernels[CPU]->gemm(&g[CPU]));
    compare(y, c->k, what);
    free(first);
    drop_all();
}

START_TEST(gemm_sizes)
{
    static const int64_t sizes[] = { 0, 1, 7, 33, 257 };
    choose(_i);
    for (int m = 0; m < 5; m++) {
        for (int n = 0; n < 5; n++) {
            for (int k = 0; k < 5; k++) {
                int turn = m + 2 * n + 3 * k; /* layouts, biases and so on in turn */
                gemm_case c = { sizes[m],       sizes[n],
                                sizes[k],       1,
                                turn % LAYOUTS, (turn / 2 + 1) % LAYOUTS,
                                turn % 3 == 0,  turn % 5 < 2,
                                false,          false };
                run_gemm(&c, 1);
            }
        }
    }
    run_gemm(&(gemm_case){ 1025, 3, 1025, 1, PLAIN, TURNED, true, false, false, false }, 1);
}
END_TEST

/* Every pair of layouts, with and without a bias and old values in C. */
START_TEST(gemm_layouts)
{
    choose(_i);
    for (int i = 0; i < LAYOUTS * LAYOUTS * 4; i++) {
        gemm_case c = { 13,
                        18,
                        9,
                        1,
                        i % LAYOUTS,
                        i / LAYOUTS % LAYOUTS,
                        (i / 16 & 1) != 0,
                        (i / 32 & 1) != 0,
                        false,
                        false };
        run_gemm(&c, 1);
        c.batch = 5;
        c.one_a = i % 3 == 0;
        c.one_b = i % 3 == 1;
        run_gemm(&c, 1);
    }
}
END_TEST

/* cublasLt's choice is kept: the second call of a shape takes it, one of another size or alignment
 * must not. */
START_TEST(gemm_biases)
{
    choose(_i);
    for (int i = 0; i < 200; i++) /* more than there is room for */
        run_gemm(&(gemm_case){ 9, 4 + i % 150, 6, 1, i % 2, i % 2, true, false, false, false }, 1);
    run_gemm(&(gemm_case){ 33, 17, 21, 1, PLAIN, TURNED, true, false, false, false }, REPEATS);
    run_gemm(&(gemm_case){ 33, 17, 21, 4, PLAIN, TURNED, true, true, false, true }, REPEATS);
}
END_TEST

/* More than one cuBLAS call is given, and than the last axis of a grid holds. */
START_TEST(gemm_batches)
{
    choose(_i);
    run_gemm(&(gemm_case){ 2, 3, 2, 70001, PLAIN, TURNED, false, false, false, false }, 1);
    run_gemm(&(gemm_case){ 3, 1, 2, 65536, WIDE, PLAIN, true, true, false, true }, 1);
    run_gemm(&(gemm_case){ 1, 2, 3, 32769, PLAIN, PLAIN, true, false, true, false }, 1);
}
END_TEST

/* A row or column shared by all: BLAS has no layout with stride 0. */
START_TEST(gemm_expanded)
{
    choose(_i);
    tni_gemm g[SIDES] = { { .dtype = dtype,
                            .m = 6,
                            .n = 5,
                            .k = 4,
                            .batch = 1,
                            .a_row = 0,
                            .a_col = 1,
                            .b_row = 1,
                            .b_col = 0,
                            .c_row = 5 } };
    twin *a = reals(4);
    twin *b = reals(4);
    twin *y = reals(30);
    g[GPU] = g[CPU];
    for (int s = 0; s < SIDES; s++) {
        g[s].a = a->at[s].data;
        g[s].b = b->at[s].data;
        g[s].c = y->at[s].data;
        assert_ok(kernels[s]->gemm(&g[s]));
    }
    compare(y, 4, "expanded");
    g[GPU].dtype = TN_I32;
    assert_fails(kernels[GPU]->gemm(&g[GPU]), TN_E_UNSUPPORTED, "gemm: i32 on the GPU");
    drop_all();
}
END_TEST

/* A function of the host shim; NULL where the module is the real one. */
static void *of_shim(const char *name)
{
    const char *path = getenv("TN_CUDA_MODULE");
    void *module = path ? dlopen(path, RTLD_NOW) : NULL;
    return module ? dlsym(module, name) : NULL;
}

/* The sums of A's rows beside the product: [m, n, k], A turned or not, and whether cublasLt makes
 * them, for rows of whole 16 bytes; else a kernel does. */
static const struct sums_case {
    int64_t m, n, k;
    bool turned, lt;
} sums_cases[] = {
    { 16, 24, 40, true, true }, { 8, 64, 200, true, true },   { 24, 16, 8, false, true },
    { 13, 18, 9, true, false }, { 16, 24, 33, false, false }, { 1, 24, 32, true, false },
    { 16, 1, 32, true, false }, { 16, 24, 0, true, false },   { 16, 0, 32, true, false },
    { 0, 16, 32, true, false }, { 16, 8, 257, true, true },
};

START_TEST(gemm_sums)
{
    const struct sums_case *c = &sums_cases[_i / 2];
    long long (*calls_of)(const char *);
    *(void **)&calls_of = of_shim("cuda_host_calls_of");
    choose(0);
    dtype = _i % 2 ? TN_F16 : TN_BF16;
    twin *a = make(dtype, 0, c->m * c->k), *b = make(dtype, 0, c->k * c->n);
    twin *y = make(dtype, 0, c->m * c->n), *sums = make(dtype, 0, c->m);
    tni_gemm g[SIDES];
    for (int s = 0; s < SIDES; s++) {
        g[s] = (tni_gemm){ .dtype = dtype, .m = c->m, .n = c->n, .k = c->k, .batch = 1 };
        g[s].a = a->at[s].data, g[s].b = b->at[s].data, g[s].c = y->at[s].data;
        g[s].a_row = c->turned ? 1 : c->k, g[s].a_col = c->turned ? c->m : 1;
        g[s].b_row = c->n, g[s].b_col = 1, g[s].c_row = c->n;
    }
    g[GPU].a_sums = sums->at[GPU].data;
    long long before = calls_of ? calls_of("cublasLtMatmul") : 0;
    assert_ok(kernels[GPU]->gemm(&g[GPU]));
    if (calls_of) ck_assert_int_eq(calls_of("cublasLtMatmul") - before, c->lt);
    assert_ok(kernels[CPU]->gemm(&g[CPU]));
    compare(y, c->k, "the product beside sums");
    for (int64_t i = 0; i < c->m; i++) {
        double sum = 0;
        for (int64_t j = 0; j < c->k; j++)
            sum += number_get(a->at[CPU].data, dtype, i * g[CPU].a_row + j * g[CPU].a_col);
        number_set(sums->at[CPU].data, dtype, i, sum);
    }
    compare(sums, c->k, "sums");
    drop_all();
}
END_TEST

/* ---- convolution ----------------------------------------------------------------------------- */

static void run_conv(const tni_conv2d_sizes *c, int i, int repeats)
{
    int64_t taps = c->c / c->groups * c->kh * c->kw;
    twin *x = reals(c->n * c->c * c->h * c->w);
    twin *w = reals(c->o * taps);
    twin *b = make(dtype, 1, c->o);
    twin *y = reals(c->n * c->o * c->oh * c->ow);
    twin *z = reals(c->n * c->o * c->oh * c->ow); /* without a bias */
    twin *dy = reals(c->n * c->o * c->oh * c->ow);
    twin *dx = reals(c->n * c->c * c->h * c->w);
    twin *dw = reals(c->o * taps);
    void *first[4] = { NULL };
    for (int r = 0; r < repeats + 1; r++) { /* at last on the CPU */
        int s = r < repeats ? GPU : CPU;
        const tni_backend *k = kernels[s];
        assert_ok(k->conv2d(&(tni_conv2d){
            .y = y->at[s], .x = x->at[s], .w = w->at[s], .bias = b->at[s], .sizes = *c }));
        assert_ok(
            k->conv2d(&(tni_conv2d){ .y = z->at[s], .x = x->at[s], .w = w->at[s], .sizes = *c }));
        assert_ok(k->conv2d_grad_input(&(tni_conv2d_grad_input){
            .dx = dx->at[s], .dy = dy->at[s], .w = w->at[s], .sizes = *c }));
        assert_ok(k->conv2d_grad_weight(&(tni_conv2d_grad_weight){
            .dw = dw->at[s], .dy = dy->at[s], .x = x->at[s], .sizes = *c }));
        same_bits(y, &first[0], "conv2d");
        same_bits(z, &first[1], "conv2d without bias");
        same_bits(dx, &first[2], "conv2d_grad_input");
        same_bits(dw, &first[3], "conv2d_grad_weight");
    }
    char what[64];
    snprintf(what, sizeof what, "convolution %d: y", i);
    compare(y, taps, what);
    compare(z, taps, what);
    snprintf(what, sizeof what, "convolution %d: dx", i);
    compare(dx, c->o / c->groups * c->kh * c->kw, what);
    snprintf(what, sizeof what, "convolution %d: dw", i);
    compare(dw, c->n * c->oh * c->ow, what);
    for (int f = 0; f < 4; f++) free(first[f]);
    drop_all();
}

START_TEST(convolutions)
{
    choose(_i);
    for (int i = 0; i < CONVS; i++) {
        tni_conv2d_sizes c = conv_of(i);
        run_conv(&c, i, 1);
    }
}
END_TEST

START_TEST(convolutions_repeat)
{
    static const int which[] = { 0, 2, 6, 15, 18, 19 };
    choose(_i);
    for (int i = 0; i < 6; i++) {
        tni_conv2d_sizes c = conv_of(which[i]);
        run_conv(&c, which[i], REPEATS);
    }
    tni_conv2d_sizes parts = { 7, 1, 2, 20, 21, 5, 3, 3, 20, 21, { 1, 1 }, { 1, 1 }, { 1, 1 } };
    run_conv(&parts, 100, REPEATS);
    tni_conv2d_sizes deep = { 24, 2, 2, 30, 21, 2, 3, 3, 30, 21, { 1, 1 }, { 1, 1 }, { 1, 1 } };
    run_conv(&deep, 101, REPEATS);
}
END_TEST

START_TEST(convolution_refusals)
{
    choose(0);
    tni_conv2d_sizes c = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, { 1, 1 }, { 0, 0 }, { 1, 1 } };
    c.padding[0] = 1 << 30;
    assert_fails(kernels[GPU]->conv2d(&(tni_conv2d){ .x.dtype = TN_F32, .sizes = c }),
                 TN_E_UNSUPPORTED, "conv2d: planes of 1x1");
    c.padding[0] = 0;
    c.h = 1 << 16;
    c.w = 1 << 16;
    assert_fails(
        kernels[GPU]->conv2d_grad_input(&(tni_conv2d_grad_input){ .dy.dtype = TN_F32, .sizes = c }),
        TN_E_UNSUPPORTED, "65536x65536");
    c.h = c.w = 1;
    assert_fails(kernels[GPU]->conv2d_grad_weight(
                     &(tni_conv2d_grad_weight){ .dy.dtype = TN_I32, .sizes = c }),
                 TN_E_DTYPE, "want f32, f64, bf16 or f16");
}
END_TEST

/* ---- pooling --------------------------------------------------------------------------------- */

static const tni_pool2d_sizes pools[] = {
    /* n, c, h, w, oh, ow, kernel, stride, padding, dilation, padding counted, adaptive, divisor */
    { 2, 3, 8, 6, 4, 3, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 }, true, false, 0 },
    { 2,
      3,
      9,
      7,
      4,
      3,
      { 2, 2 },
      { 2, 2 },
      { 0, 0 },
      { 1, 1 },
      false,
      false,
      0 }, /* an odd row and column */
    { 1, 2, 7, 5, 4, 3, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 }, true, false, 0 }, /* hanging over */
    { 2,
      2,
      11,
      9,
      11,
      9,
      { 3, 3 },
      { 1, 1 },
      { 1, 1 },
      { 1, 1 },
      true,
      false,
      0 }, /* overlapping */
    { 2, 2, 11, 9, 11, 9, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, false, false, 0 },
    { 1, 2, 13, 12, 5, 4, { 5, 4 }, { 3, 3 }, { 2, 1 }, { 1, 1 }, true, false, 0 },
    { 2, 1, 33, 17, 14, 6, { 7, 7 }, { 2, 2 }, { 1, 1 }, { 1, 1 }, false, false, 0 },
    { 1,
      1,
      10,
      10,
      3,
      3,
      { 2, 2 },
      { 4, 4 },
      { 0, 0 },
      { 1, 1 },
      true,
      false,
      0 }, /* inputs in no window */
    { 3, 2, 1, 257, 1, 128, { 1, 3 }, { 1, 2 }, { 0, 0 }, { 1, 1 }, true, false, 0 },
    { 1, 1, 1025, 1, 342, 1, { 4, 1 }, { 3, 1 }, { 2, 0 }, { 1, 1 }, false, false, 0 },
    { 0, 2, 4, 4, 2, 2, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 }, true, false, 0 },
};
static const tni_pool2d_sizes dilated[] = {
    { 2, 2, 12, 11, 4, 7, { 3, 3 }, { 2, 1 }, { 0, 1 }, { 2, 3 }, true, false, 0 },
    { 1, 3, 9, 9, 5, 4, { 2, 3 }, { 1, 2 }, { 0, 1 }, { 4, 2 }, true, false, 0 },
};
static const tni_pool2d_sizes adaptives[] = {
    { 2, 3, 7, 9, 1, 1, { 0 }, { 0 }, { 0 }, { 0 }, false, true, 0 },
    { 2, 2, 12, 8, 4, 4, { 0 }, { 0 }, { 0 }, { 0 }, false, true, 0 },
    { 1, 3, 10, 7, 3, 5, { 0 }, { 0 }, { 0 }, { 0 }, false, true, 0 },
    { 1, 2, 3, 4, 7, 5, { 0 }, { 0 }, { 0 }, { 0 }, false, true, 0 },
    { 1, 1, 33, 257, 2, 3, { 0 }, { 0 }, { 0 }, { 0 }, false, true, 0 },
};

/* Few distinct values, so that some are equal, and some NaN and infinities. */
static void tie(twin *t)
{
    for (int64_t i = 0; i < t->n; i++) {
        double v = floor(number_get(t->block[CPU], dtype, i) * 4) / 4;
        int64_t k = i % 61;
        put(t->block[CPU], dtype, i,
            k == 7 || k == 8 ? (double)NAN
            : k == 20        ? INFINITY
            : k == 31        ? -INFINITY
                             : v);
    }
    upload(t);
}

static twin *images(const tni_pool2d_sizes *p, tn_dtype of, int64_t h, int64_t w)
{
    twin *t = make(of, 0, p->n * p->c * h * w);
    for (int s = 0; s < SIDES; s++)
        t->at[s] = (tni_array){
            t->at[s].data, of, 4, { p->n, p->c, h, w }, { p->c * h * w, h * w, w, 1 }
        };
    return t;
}

static void run_max(const tni_pool2d_sizes *p, int i, bool tied, int repeats)
{
    twin *x = images(p, dtype, p->h, p->w);
    twin *y = images(p, dtype, p->oh, p->ow);
    twin *z = images(p, dtype, p->oh, p->ow);
    twin *index = images(p, TN_I32, p->oh, p->ow);
    twin *dy = images(p, dtype, p->oh, p->ow);
    twin *dx = images(p, dtype, p->h, p->w);
    void *first[2] = { NULL };
    char what[64];
    snprintf(what, sizeof what, "maximum %d", i);
    if (tied) tie(x);
    for (int r = 0; r < repeats + 1; r++) {
        int s = r < repeats ? GPU : CPU;
        const tni_backend *k = kernels[s];
        assert_ok(k->max_pool2d(
            &(tni_max_pool2d){ .y = y->at[s], .index = index->at[s], .x = x->at[s], .sizes = *p }));
        assert_ok(k->max_pool2d(&(tni_max_pool2d){ .y = z->at[s], .x = x->at[s], .sizes = *p }));
        assert_ok(k->max_pool2d_grad(&(tni_max_pool2d_grad){
            .dx = dx->at[s], .dy = dy->at[s], .index = index->at[s], .sizes = *p }));
        same_bits(y, &first[0], "max_pool2d");
        same_bits(dx, &first[1], "max_pool2d_grad");
    }
    compare(y, EXACTLY, what);
    compare(z, EXACTLY, what);
    compare(index, EXACTLY, what);
    compare(dx, EXACTLY, what);
    free(first[0]);
    free(first[1]);
    drop_all();
}

static void run_mean(const tni_pool2d_sizes *p, int i, int repeats)
{
    twin *x = images(p, dtype, p->h, p->w);
    twin *y = images(p, dtype, p->oh, p->ow);
    twin *dy = images(p, dtype, p->oh, p->ow);
    twin *dx = images(p, dtype, p->h, p->w);
    void *first[2] = { NULL };
    char what[64];
    snprintf(what, sizeof what, "%s average %d", p->adaptive ? "adaptive" : "plain", i);
    for (int r = 0; r < repeats + 1; r++) {
        int s = r < repeats ? GPU : CPU;
        const tni_backend *k = kernels[s];
        assert_ok(k->avg_pool2d(&(tni_avg_pool2d){ .y = y->at[s], .x = x->at[s], .sizes = *p }));
        assert_ok(k->avg_pool2d_grad(
            &(tni_avg_pool2d_grad){ .dx = dx->at[s], .dy = dy->at[s], .sizes = *p }));
        same_bits(y, &first[0], what);
        same_bits(dx, &first[1], what);
    }
    compare(y, 16, what);
    compare(dx, 16, what);
    free(first[0]);
    free(first[1]);
    drop_all();
}

START_TEST(pooling)
{
    int n = (int)(sizeof pools / sizeof *pools);
    choose(_i);
    for (int i = 0; i < n; i++) {
        run_max(&pools[i], i, false, 1);
        run_max(&pools[i], i, true, i == 3 ? REPEATS : 1);
        run_mean(&pools[i], i, i == 5 || i == 6 ? REPEATS : 1);
    }
    for (int i = 0; i < 2; i++) run_max(&dilated[i], 100 + i, true, 1);
    for (int i = 0; i < 5; i++) {
        tni_pool2d_sizes p = adaptives[i];
        run_mean(&p, i, i == 2 ? REPEATS : 1);
        p.dilation[0] = p.dilation[1] = 1;
        run_max(&p, 200 + i, true, 1);
    }
    tni_pool2d_sizes shared = pools[0];
    shared.divisor = 5;
    run_mean(&shared, 300, 1);
}
END_TEST

START_TEST(pooling_refusals)
{
    choose(0);
    tni_pool2d_sizes p = { 1,        1,        65536,    65536, 1,     1, { 1, 1 },
                           { 1, 1 }, { 0, 0 }, { 1, 1 }, true,  false, 0 };
    assert_fails(kernels[GPU]->max_pool2d(&(tni_max_pool2d){ .x.dtype = TN_F32, .sizes = p }),
                 TN_E_UNSUPPORTED, "max_pool2d: planes of 65536x");
    p.h = 1;
    assert_fails(kernels[GPU]->avg_pool2d(&(tni_avg_pool2d){ .x.dtype = TN_U8, .sizes = p }),
                 TN_E_DTYPE, "want f32 or f64");
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------- */

enum { NO_MASK, BOOL_FULL, BOOL_KEYS, ADD_FULL, ADD_ROWS, BLOCKED, MASKS };

typedef struct attention_case {
    int64_t b, h, t, s, d, dv;
    bool causal, heads_inside; /* laid out as [B, T, H, D] */
    int mask;
} attention_case;

/* [B, H, T, D] in one of the two layouts, `apart` elements between rows beyond their length. */
static twin *heads(const attention_case *c, int64_t t, int64_t d, int64_t lead, int64_t apart)
{
    int64_t row = d + apart;
    twin *x = make(dtype, lead, c->b * c->h * t * row);
    for (int s = 0; s < SIDES; s++) {
        tni_array *a = &x->at[s];
        *a = (tni_array){
            a->data, dtype, 4, { c->b, c->h, t, d }, { c->h * t * row, t * row, row, 1 }
        };
        if (c->heads_inside) {
            a->stride[1] = row;
            a->stride[2] = c->h * row;
        }
    }
    return x;
}

static twin *mask_for(const attention_case *c)
{
    tn_dtype of = c->mask == ADD_FULL || c->mask == ADD_ROWS ? dtype : TN_BOOL;
    bool full = c->mask != BOOL_KEYS && c->mask != ADD_ROWS;
    twin *x = make(of, 0, full ? c->b * c->h * c->t * c->s : c->b * c->s);
    if (c->mask == BLOCKED) { /* some rows see nothing */
        for (int64_t i = 0; i < x->n; i++) x->block[CPU][i] = i / c->s % 3 == 1 || i % 5 == 2;
        upload(x);
    }
    for (int s = 0; s < SIDES; s++) {
        x->at[s] = (tni_array){ x->at[s].data,
                                of,
                                4,
                                { c->b, c->h, c->t, c->s },
                                { c->h * c->t * c->s, c->t * c->s, c->s, 1 } };
        if (c->mask == BOOL_KEYS) { /* [B, 1, 1, S] */
            x->at[s].stride[0] = c->s;
            x->at[s].stride[1] = x->at[s].stride[2] = 0;
        } else if (c->mask == ADD_ROWS) { /* one column for all */
            x->at[s].stride[0] = x->at[s].stride[1] = 0;
            x->at[s].stride[2] = 0;
            x->at[s].stride[3] = 1;
        }
    }
    return x;
}

static void run_attention(const attention_case *c, int i, int repeats)
{
    int64_t odd = i % 3 == 1 ? 3 : 0; /* rows that begin anywhere, or all on 16 bytes */
    twin *q = heads(c, c->t, c->d, odd, odd);
    twin *k = heads(c, c->s, c->d, 0, i % 2 ? 4 : 0);
    twin *v = heads(c, c->s, c->dv, 0, odd);
    twin *y = heads(c, c->t, c->dv, 0, 0);
    twin *dy = heads(c, c->t, c->dv, odd, 4);
    twin *dq = heads(c, c->t, c->d, 0, odd);
    twin *dk = heads(c, c->s, c->d, 0, 0);
    twin *dv = heads(c, c->s, c->dv, odd, 0);
    twin *top = reals(c->b * c->h * c->t), *share = reals(c->b * c->h * c->t);
    twin *mask = c->mask == NO_MASK ? NULL : mask_for(c);
    tni_array none = { .data = NULL };
    void *first[6] = { NULL };
    for (int r = 0; r < repeats + 1; r++) {
        int s = r < repeats ? GPU : CPU;
        tni_attention a = { .y = y->at[s],
                            .top = top->at[s],
                            .share = share->at[s],
                            .q = q->at[s],
                            .k = k->at[s],
                            .v = v->at[s],
                            .mask = mask ? mask->at[s] : none,
                            .scale = 1 / sqrt((double)c->d + 1),
                            .causal = c->causal };
        if (r == 0) {
            a.top = none;
            assert_ok(kernels[s]->attention(&a));
            a.top = top->at[s];
        }
        assert_ok(kernels[s]->attention(&a));
        assert_ok(kernels[s]->attention_grad(&(tni_attention_grad){
            .of = a, .dy = dy->at[s], .dq = dq->at[s], .dk = dk->at[s], .dv = dv->at[s] }));
        same_bits(y, &first[0], "attention: y");
        same_bits(top, &first[1], "attention: top");
        same_bits(share, &first[5], "attention: share");
        same_bits(dq, &first[2], "attention: dq");
        same_bits(dk, &first[3], "attention: dk");
        same_bits(dv, &first[4], "attention: dv");
    }
    const struct {
        twin *x;
        const char *name;
    } results[] = { { y, "y" },   { top, "top" }, { share, "share" },
                    { dq, "dq" }, { dk, "dk" },   { dv, "dv" } };
    char what[96];
    for (int f = 0; f < 6; f++) {
        snprintf(what, sizeof what,
                 "attention %d [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                 ",%" PRId64 "]: %s",
                 i, c->b, c->h, c->t, c->s, c->d, c->dv, results[f].name);
        compare(results[f].x, 64, what);
        free(first[f]);
    }
    drop_all();
}

START_TEST(attention_shapes)
{
    static const attention_case cases[] = {
        { 1, 1, 1, 1, 1, 1, false, false, NO_MASK },
        { 2, 3, 7, 7, 8, 8, true, false, NO_MASK },
        { 2, 2, 33, 33, 16, 16, true, true, NO_MASK },
        { 1, 2, 64, 64, 32, 32, true, false, NO_MASK },
        { 1, 1, 65, 65, 64, 64, true, true, NO_MASK },
        { 1, 1, 130, 130, 33, 31, true, false, NO_MASK },
        { 1, 1, 257, 70, 4, 5, true, false, NO_MASK },  /* fewer keys than queries */
        { 1, 1, 40, 150, 12, 20, true, true, NO_MASK }, /* and more */
        { 1, 2, 66, 129, 20, 24, false, false, NO_MASK },
        { 1, 1, 20, 30, 80, 72, false, true, NO_MASK },
        { 1, 1, 10, 70, 128, 128, true, false, NO_MASK },
        { 1, 1, 9, 12, 130, 129, false, false, NO_MASK },
        { 1, 1, 66, 5, 256, 256, false, false, NO_MASK },
        { 1, 1, 5, 9, 300, 260, true, false, NO_MASK },
        { 1, 1, 4, 6, 7, 140, false, false, NO_MASK },
        { 1, 1, 4, 6, 140, 7, false, false, NO_MASK },
        { 2, 2, 5, 0, 4, 4, false, false, NO_MASK }, /* a sum of nothing */
        { 2, 2, 0, 5, 4, 4, true, false, NO_MASK },
        { 0, 2, 3, 5, 4, 4, false, false, NO_MASK },
    };
    choose(_i);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) run_attention(&cases[i], i, 1);
}
END_TEST

START_TEST(attention_masks)
{
    choose(_i);
    for (int i = 0; i < 4 * (MASKS - 1); i++) {
        attention_case c = { 2,        2,  i % 2 ? 9 : 70, i % 2 ? 67 : 13,
                             8,        12, (i & 1) != 0,   (i & 2) != 0,
                             1 + i / 4 };
        run_attention(&c, i, 1);
    }
    attention_case repeat = { 1, 2, 70, 70, 8, 12, true, true, BOOL_FULL };
    run_attention(&repeat, 100, REPEATS);
}
END_TEST

/* Besides inputs and results attention takes one number for each query, whatever T is. A real GPU's
 * pool grows by large steps: there on so many heads that the T x T matrices would show. */
START_TEST(attention_memory)
{
    enum { B = 1, T = 1024, D = 8 };
    bool shim = of_shim("cuda_host_calls") != NULL;
    int64_t heads_here = shim ? 2 : 64;
    int64_t slack = shim ? 64 << 10 : 64 << 20;
    choose(0);
    attention_case c = { B, heads_here, T, T, D, D, true, false, NO_MASK };
    twin *x[8];
    for (int i = 0; i < 8; i++) x[i] = heads(&c, T, D, 0, 0);
    twin *top = reals(B * heads_here * T), *share = reals(B * heads_here * T);
    assert_ok(tn_cuda_synchronize());
    tn_cuda_memory_trim();
    int64_t before = tn_cuda_memory().reserved;
    tni_attention a = { .y = x[3]->at[GPU],
                        .top = top->at[GPU],
                        .share = share->at[GPU],
                        .q = x[0]->at[GPU],
                        .k = x[1]->at[GPU],
                        .v = x[2]->at[GPU],
                        .scale = 0.3,
                        .causal = true };
    ck_assert_int_ge(before, (8 * B * heads_here * T * D + B * heads_here * T) * 4);
    assert_ok(kernels[GPU]->attention(&a));
    assert_ok(kernels[GPU]->attention_grad(&(tni_attention_grad){ .of = a,
                                                                  .dy = x[4]->at[GPU],
                                                                  .dq = x[5]->at[GPU],
                                                                  .dk = x[6]->at[GPU],
                                                                  .dv = x[7]->at[GPU] }));
    assert_ok(tn_cuda_synchronize());
    ck_assert_int_le(tn_cuda_memory().reserved - before, B * heads_here * T * 4 + slack);
    drop_all();
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

typedef struct failing {
    tn_status (*run)(void);
    int borrows; /* blocks that it borrows, and returns at its end */
} failing;

static twin *parts[6]; /* of the running scenario */

static tn_status fail_gemm(void)
{
    tni_gemm g = { .dtype = TN_F32,
                   .m = 9,
                   .n = 8,
                   .k = 7,
                   .batch = 1,
                   .a_row = 15,
                   .a_col = 2,
                   .b_row = 17,
                   .b_col = 2,
                   .c_row = 8,
                   .a = parts[0]->at[GPU].data,
                   .b = parts[1]->at[GPU].data,
                   .c = parts[2]->at[GPU].data,
                   .bias = parts[3]->at[GPU].data };
    return kernels[GPU]->gemm(&g);
}

static tn_status fail_conv(void)
{
    tni_conv2d_sizes c = { 2, 1, 3, 20, 20, 4, 1, 1, 20, 20, { 1, 1 }, { 0, 0 }, { 1, 1 } };
    tn_status status = kernels[GPU]->conv2d(&(tni_conv2d){ .y = parts[0]->at[GPU],
                                                           .x = parts[1]->at[GPU],
                                                           .w = parts[2]->at[GPU],
                                                           .bias = parts[3]->at[GPU],
                                                           .sizes = c });
    if (status != TN_OK) return status;
    return kernels[GPU]->conv2d_grad_weight(&(tni_conv2d_grad_weight){
        .dw = parts[4]->at[GPU], .dy = parts[0]->at[GPU], .x = parts[1]->at[GPU], .sizes = c });
}

static const tni_conv2d_sizes in_columns = { 2, 1, 3, 9,        9,        4,       3,
                                             3, 9, 9, { 1, 1 }, { 1, 1 }, { 1, 1 } };

static tni_array half_part(int i)
{
    tni_array a = parts[i]->at[GPU];
    a.dtype = TN_BF16;
    return a;
}

static tn_status fail_columns(void)
{
    return kernels[GPU]->conv2d(&(tni_conv2d){ .y = half_part(0),
                                               .x = half_part(1),
                                               .w = half_part(2),
                                               .bias = half_part(3),
                                               .sizes = in_columns });
}

static tn_status fail_columns_grad(void)
{
    return kernels[GPU]->conv2d_grad_input(&(tni_conv2d_grad_input){
        .dx = half_part(0), .dy = half_part(1), .w = half_part(2), .sizes = in_columns });
}

static tn_status fail_attention(void)
{
    tni_array x[6];
    for (int i = 0; i < 6; i++)
        x[i] = (tni_array){ parts[i]->at[GPU].data, TN_F32, 4, { 1, 2, 5, 3 }, { 30, 15, 3, 1 } };
    tni_attention a = { .y = x[3],
                        .top = x[4],
                        .share = x[4],
                        .q = x[0],
                        .k = x[1],
                        .v = x[2],
                        .scale = 1,
                        .causal = true };
    tn_status status = kernels[GPU]->attention(&a);
    return status == TN_OK ? kernels[GPU]->attention_grad(&(tni_attention_grad){
                                 .of = a, .dy = x[3], .dq = x[5], .dk = x[5], .dv = x[5] })
                           : status;
}

/* Each call of the runtime and of cuBLAS fails once: the kernel reports it, and what it borrowed is
 * returned. */
START_TEST(failures)
{
    static const failing scenarios[] = { { fail_gemm, 2 },
                                         { fail_conv, 1 },
                                         { fail_columns, 1 },
                                         { fail_columns_grad, 1 },
                                         { fail_attention, 1 } };
    void (*fail_at)(long long);
    long long (*calls)(void);
    long long (*blocks)(void);
    choose(0);
    *(void **)&fail_at = of_shim("cuda_host_fail");
    *(void **)&calls = of_shim("cuda_host_calls");
    *(void **)&blocks = of_shim("cuda_host_blocks");
    if (!fail_at || !calls || !blocks) return; /* a real GPU's calls do not fail on request */
    for (int i = 0; i < 6; i++) parts[i] = reals(8000);
    assert_ok(scenarios[_i].run());
    assert_ok(tn_cuda_synchronize());
    long long before = calls();
    assert_ok(scenarios[_i].run());
    long long count = calls() - before;
    assert_ok(tn_cuda_synchronize());
    long long alive = blocks();
    int refused = 0;
    ck_assert_int_gt(count, 2);
    count -= scenarios[_i].borrows; /* nobody can repair a free that fails */
    for (long long n = 1; n <= count; n++) {
        fail_at(n);
        tn_status status = scenarios[_i].run();
        fail_at(0);
        if (status != TN_OK) {
            refused++;
            ck_assert_msg(strstr(tn_error(), "cuda: ") != NULL, "call %lld: %s", n, tn_error());
            tn_error_clear();
        }
        assert_ok(tn_cuda_synchronize());
        ck_assert_int_eq(blocks(), alive);
    }
    /* a failed request for memory is repeated after a trim */
    ck_assert_int_eq(refused, count - scenarios[_i].borrows);
    assert_ok(scenarios[_i].run());
    drop_all();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_products");
    TCase *t = test_case(suite, "gemm");
    tcase_add_loop_test(t, gemm_sizes, 0, 2);
    tcase_add_loop_test(t, gemm_layouts, 0, 2);
    tcase_add_loop_test(t, gemm_biases, 0, 2);
    tcase_add_loop_test(t, gemm_batches, 0, 2);
    tcase_add_loop_test(t, gemm_expanded, 0, 2);
    tcase_add_loop_test(t, gemm_sums, 0, (int)(2 * sizeof sums_cases / sizeof *sums_cases));
    t = test_case(suite, "convolution");
    tcase_add_loop_test(t, convolutions, 0, 2);
    tcase_add_loop_test(t, convolutions_repeat, 0, 2);
    tcase_add_test(t, convolution_refusals);
    t = test_case(suite, "pooling");
    tcase_add_loop_test(t, pooling, 0, 2);
    tcase_add_test(t, pooling_refusals);
    t = test_case(suite, "attention");
    tcase_add_loop_test(t, attention_shapes, 0, 2);
    tcase_add_loop_test(t, attention_masks, 0, 2);
    tcase_add_test(t, attention_memory);
    t = test_case(suite, "failures");
    tcase_add_loop_test(t, failures, 0, 5);
    return suite;
}
