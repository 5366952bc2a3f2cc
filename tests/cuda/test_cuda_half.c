/*
 * test_cuda_half.c - products, convolutions and dropout of bf16 and f16 on the CUDA device, and of
 * f32 where TF32 is allowed.
 *
 * Truth: the CPU's f64 kernels on the same numbers. A short result must be the f32 sum rounded
 * once: within half a unit in the last place of the exact one, plus the error of an f32 sum. A
 * kernel that rounds twice, or keeps a part of the sum in the short type, is further off.
 *
 * Seen to fail: a bias added to the rounded product (gemm_lt.cu without in_sixteens), over the shim
 * and on an H100; cuBLAS allowed to keep sums in the short type, cublasLt parts of them; C rounded
 * before the product where a bias and C are added; in conv2d_columns.cu later pieces of a weight's
 * gradient written instead of added, the next image taken one channel away, a part of an image
 * taken for its beginning; f32's gradient of the image made without TF32; dropout's last elements
 * off by a hundredth.
 */
#include <stdlib.h>

#include "cpu/conv_cases.h"
#include "numbers.h"
#include "shim.h"
#include "tensor/internal.h"
#include "tensor/math.h"

static const tni_backend *cpu, *gpu;
static tn_dtype dtype;

static void choose(int variant)
{
    static const tn_dtype dtypes[] = { TN_BF16, TN_F16, TN_F32 };
    dtype = dtypes[variant];
    cpu = tni_backend_for(tn_cpu());
    gpu = tni_backend_for(tn_cuda(0));
    ck_assert_msg(gpu != NULL, "%s", tn_error());
}

/* ---- numbers on both sides ------------------------------------------------------------------- */

/* n numbers of dtype on the GPU, and the same as f64 for the CPU; on the GPU they begin `lead`
 * elements into the memory. */
typedef struct numbers {
    int64_t n, lead;
    double *exact;
    void *block, *at; /* on the GPU */
} numbers;

static numbers made[16];
static int n_made;
static double uniform(void)
{
    return number_in(-1, 1);
}

static double get(const void *data, int64_t i)
{
    return number_get(data, dtype, i);
}

/* v as dtype holds it. */
static double put(void *data, int64_t i, double v)
{
    number_set(data, dtype, i, v);
    return get(data, i);
}

static size_t bytes_of(const numbers *x)
{
    return (size_t)(x->n + x->lead) * tn_dtype_size(dtype);
}

static numbers *make(int64_t lead, int64_t n)
{
    ck_assert_int_lt(n_made, 16);
    numbers *x = &made[n_made++];
    *x = (numbers){ .n = n, .lead = lead };
    char *data = malloc(bytes_of(x) + 1);
    x->exact = malloc((size_t)(n + 1) * sizeof(double));
    for (int64_t i = 0; i < lead; i++) put(data, i, 99);
    for (int64_t i = 0; i < n; i++) x->exact[i] = put(data, lead + i, uniform());
    assert_ok(gpu->alloc(bytes_of(x), &x->block));
    assert_ok(gpu->upload(x->block, data, bytes_of(x)));
    x->at = (char *)x->block + (size_t)lead * tn_dtype_size(dtype);
    free(data);
    return x;
}

static void free_all(void)
{
    for (int i = 0; i < n_made; i++) {
        gpu->free(made[i].block, bytes_of(&made[i]));
        free(made[i].exact);
    }
    n_made = 0;
}

static void drop_all(void)
{
    free_all();
    assert_ok(tn_cuda_synchronize());
}

/* Before each test: what a failed one has left, since tests of a GPU share a process. */
static void begin(void)
{
    free_all();
    tn_set_tf32(false);
}

static char *held(const numbers *x)
{
    char *data = malloc(bytes_of(x) + 1);
    assert_ok(gpu->download(data, x->block, bytes_of(x)));
    return data;
}

/* Half a unit in the last place of v in dtype. */
static double half_unit(double v)
{
    int e = 0;
    if (v == 0) return 0;
    frexp(v, &e);
    if (dtype == TN_F32) return ldexp(1, e - 25);
    if (dtype == TN_BF16) return ldexp(1, e - 9);
    return ldexp(1, e > -13 ? e - 12 : -25);
}

/* What the GPU holds is the exact numbers, summed in f32 (`terms` of about 1), rounded once. */
static void check(const numbers *y, int64_t terms, const char *what)
{
    /* tensor cores cut addends off at 2^-23 of the terms' sum, a quarter of their number */
    double sum = 2e-7 * (2 + sqrt((double)terms)) + 3e-8 * (double)terms;
    char *data = held(y);
    for (int64_t i = 0; i < y->n; i++) {
        double e = y->exact[i], a = get(data, y->lead + i);
        if (!(fabs(a - e) <= half_unit(e) + sum * (1 + fabs(e)))) {
            ck_abort_msg("%s, %s: element %" PRId64 " of %" PRId64 " is %.9g, not %.9g", what,
                         tn_dtype_name(dtype), i, y->n, a, e);
        }
    }
    for (int64_t i = 0; i < y->lead; i++) ck_assert(get(data, i) == put(&(uint32_t){ 0 }, 0, 99));
    free(data);
}

/* ---- gemm ------------------------------------------------------------------------------------ */

typedef struct gemm_case {
    int64_t m, n, k, batch;
    int a, b; /* layouts */
    bool bias, accumulate;
    int repeats;
    bool sixteens; /* arrays begin on 16 bytes, and so do rows of C */
} gemm_case;

static void run_gemm(const gemm_case *c)
{
    tni_gemm g = { .m = c->m, .n = c->n, .k = c->k, .batch = c->batch };
    g.a_batch = lay_out(c->a, c->m, c->k, &g.a_row, &g.a_col);
    g.b_batch = lay_out(c->b, c->k, c->n, &g.b_row, &g.b_col);
    int lead = c->sixteens ? 0 : 1;
    g.c_row = c->sixteens ? (c->n + 7) / 8 * 8 : c->n + 2;
    g.c_batch = c->m * g.c_row + 5 * lead;
    g.accumulate = c->accumulate;
    numbers *a = make(lead, g.a_batch * c->batch), *b = make(2 * lead, g.b_batch * c->batch);
    numbers *y = make(3 * lead, c->batch * g.c_batch), *bias = make(0, c->n);
    char *before = held(y), *first = NULL;
    tni_gemm f = g, e = g;
    f.dtype = dtype, f.a = a->at, f.b = b->at, f.c = y->at, f.bias = c->bias ? bias->at : NULL;
    e.dtype = TN_F64, e.a = a->exact, e.b = b->exact, e.c = y->exact;
    e.bias = c->bias ? bias->exact : NULL;
    char what[128];
    snprintf(what, sizeof what,
             "gemm [%" PRId64 ",%" PRId64 ",%" PRId64 "] x %" PRId64 ", layouts %d %d%s%s%s", c->m,
             c->n, c->k, c->batch, c->a, c->b, c->bias ? ", bias" : "",
             c->accumulate ? ", added" : "", c->sixteens ? ", aligned" : "");
    for (int i = 0; i <= c->repeats; i++) {
        assert_ok(gpu->upload(y->block, before, bytes_of(y)));
        assert_ok(gpu->gemm(&f));
        char *now = held(y);
        if (first) ck_assert_msg(!memcmp(first, now, bytes_of(y)), "%s: other bits", what);
        free(first);
        first = now;
    }
    assert_ok(cpu->gemm(&e));
    check(y, c->k, what);
    free(first);
    free(before);
    drop_all();
}

START_TEST(gemm_sizes)
{
    static const int64_t sizes[] = { 0, 1, 7, 33, 257 };
    choose(_i);
    for (int m = 0; m < 5; m++)
        for (int n = 0; n < 5; n++)
            for (int k = 0; k < 5; k++) {
                int turn = m + 2 * n + 3 * k; /* layouts, biases and so on in turn */
                run_gemm(&(gemm_case){ sizes[m], sizes[n], sizes[k], 1, turn % LAYOUTS,
                                       (turn / 2 + 1) % LAYOUTS, turn % 3 == 0, turn % 5 < 2, 0,
                                       false });
            }
    run_gemm(&(gemm_case){ 1025, 3, 1025, 1, PLAIN, TURNED, true, false, 0, false });
}
END_TEST

/* A bias is added to the f32 sum, whichever way is taken: cublasLt adds it to the rounded product
 * where an operand is not on 16 bytes, or a row is not whole sixteens. */
START_TEST(gemm_biases)
{
    static const int64_t sizes[] = { 8, 24, 64, 33, 264, 100, 1032 };
    choose(_i);
    for (int m = 0; m < 7; m++)
        for (int n = 0; n < 7; n++)
            for (int k = 0; k < 7; k++)
                run_gemm(&(gemm_case){ sizes[m] % 256, sizes[n], sizes[k], 1, (m + n) % 2, k % 2,
                                       true, false, 0, (m + n + k) % 4 != 0 });
    run_gemm(&(gemm_case){ 1025, 8, 1032, 1, PLAIN, TURNED, true, false, 0, true });
    run_gemm(&(gemm_case){ 257, 768, 3072, 1, PLAIN, TURNED, true, false, 0, true });
}
END_TEST

/* Every pair of layouts, with and without a bias and old values in C, and repeated. */
START_TEST(gemm_layouts)
{
    choose(_i);
    for (int i = 0; i < LAYOUTS * LAYOUTS * 4; i++)
        for (int batch = 1; batch < 7; batch += 5)
            run_gemm(&(gemm_case){ 13, 18, 40, batch, i % LAYOUTS, i / LAYOUTS % LAYOUTS,
                                   (i / 16 & 1) != 0, (i / 32 & 1) != 0, i % 5 ? 0 : 9, false });
}
END_TEST

static tni_gemm linear_of(numbers *const *x, int64_t m, int64_t n)
{
    return (tni_gemm){ .dtype = dtype,
                       .m = m,
                       .n = n,
                       .k = 16,
                       .batch = 1,
                       .a = x[0]->at,
                       .a_row = 16,
                       .a_col = 1,
                       .b = x[1]->at,
                       .b_row = n,
                       .b_col = 1,
                       .c = x[2]->at,
                       .c_row = n,
                       .bias = x[3]->at };
}

/* cublasLt is asked once for a shape, and a product with a bias takes no memory. */
START_TEST(plans_are_kept)
{
    if (!shim_for(__func__)) return; /* a real GPU counts no calls */
    long long calls[3] = { 0 };
    choose(_i);
    numbers *x[4] = { make(0, 4000), make(0, 4000), make(0, 4000), make(0, 4000) };
    tni_gemm plain = linear_of(x, 4, 8);
    plain.bias = NULL;
    assert_ok(gpu->gemm(&plain)); /* makes the handle, with the only workspace */
    for (int round = 0; round < 3; round++) {
        long long before = host.calls(), blocks = host.blocks();
        for (int i = 0; i < 30; i++) {
            tni_gemm g = linear_of(x, 4 + i % 3, 8 + 8 * i);
            assert_ok(gpu->gemm(&g));
        }
        calls[round] = host.calls() - before;
        assert_ok(tn_cuda_synchronize());
        ck_assert_int_eq(host.blocks(), blocks);
    }
    ck_assert_int_ge(calls[0] - calls[1], 8 * 30); /* what a plan takes */
    ck_assert_int_eq(calls[1], calls[2]);
    drop_all();
}
END_TEST

/* ---- convolution ----------------------------------------------------------------------------- */

typedef struct conv_numbers {
    numbers *x, *w, *b, *y, *z, *dy, *dx, *dw; /* z: without a bias */
} conv_numbers;

/* The convolution's kernels depend on sizes of their own. */
static tni_array array_of(const numbers *x, bool exact)
{
    return (tni_array){ .data = exact ? x->exact : x->at, .dtype = exact ? TN_F64 : dtype };
}

static void convolve(const tni_backend *by, const conv_numbers *t, const tni_conv2d_sizes *c)
{
    bool exact = by == cpu;
    tni_array x = array_of(t->x, exact), w = array_of(t->w, exact), dy = array_of(t->dy, exact);
    tni_array y = array_of(t->y, exact), z = array_of(t->z, exact), b = array_of(t->b, exact);
    tni_array dx = array_of(t->dx, exact), dw = array_of(t->dw, exact);
    assert_ok(by->conv2d(&(tni_conv2d){ y, x, w, b, *c }));
    assert_ok(by->conv2d(&(tni_conv2d){ z, x, w, { 0 }, *c }));
    assert_ok(by->conv2d_grad_input(&(tni_conv2d_grad_input){ dx, dy, w, *c }));
    assert_ok(by->conv2d_grad_weight(&(tni_conv2d_grad_weight){ dw, dy, x, *c }));
}

static conv_numbers conv_make(const tni_conv2d_sizes *c)
{
    int64_t taps = c->c / c->groups * c->kh * c->kw, outputs = c->n * c->o * c->oh * c->ow;
    int64_t inputs = c->n * c->c * c->h * c->w;
    return (conv_numbers){ make(1, inputs),  make(2, c->o * taps), make(1, c->o),
                           make(3, outputs), make(0, outputs),     make(1, outputs),
                           make(1, inputs),  make(3, c->o * taps) };
}

static void run_conv(const tni_conv2d_sizes *c, int i, bool again)
{
    conv_numbers t = conv_make(c);
    const numbers *out[] = { t.y, t.z, t.dx, t.dw };
    int64_t terms[] = { c->c / c->groups * c->kh * c->kw, c->c / c->groups * c->kh * c->kw,
                        c->o / c->groups * c->kh * c->kw, c->n * c->oh * c->ow };
    convolve(cpu, &t, c);
    convolve(gpu, &t, c);
    char what[64];
    char *first[4];
    for (int k = 0; k < 4; k++) {
        snprintf(what, sizeof what, "convolution %d: %s", i,
                 (const char *[]){ "y", "y without bias", "dx", "dw" }[k]);
        check(out[k], terms[k], what);
        first[k] = held(out[k]);
    }
    for (int round = 0; again && round < 9; round++) {
        convolve(gpu, &t, c);
        for (int k = 0; k < 4; k++) {
            char *now = held(out[k]);
            ck_assert_msg(!memcmp(first[k], now, bytes_of(out[k])), "convolution %d: other bits",
                          i);
            free(now);
        }
    }
    for (int k = 0; k < 4; k++) free(first[k]);
    drop_all();
}

START_TEST(convolutions)
{
    choose(_i);
    for (int i = 0; i < CONVS; i++) {
        tni_conv2d_sizes c = conv_of(i);
        run_conv(&c, i, i % 7 == 2);
    }
}
END_TEST

/* More columns than are made at a time: images in several pieces; one image split by its positions,
 * and by its channels, in groups. */
START_TEST(convolutions_in_pieces)
{
    tni_conv2d_sizes images = {
        13, 1, 4, 203, 197, 3, 3, 3, 203, 197, { 1, 1 }, { 1, 1 }, { 1, 1 }
    };
    tni_conv2d_sizes parts = {
        2, 2, 32, 150, 151, 4, 6, 6, 149, 150, { 1, 1 }, { 2, 2 }, { 1, 1 }
    };
    choose(_i);
    if (TEST_ASAN && _i) return; /* minutes */
    run_conv(&images, 100, false);
    run_conv(&parts, 101, false);
}
END_TEST

/* ---- TF32 ------------------------------------------------------------------------------------ */

/* The largest distance from the exact numbers, less `share` of their size. */
static double worst(const numbers *y, double share)
{
    double most = 0;
    char *data = held(y);
    for (int64_t i = 0; i < y->n; i++) {
        double d = fabs(get(data, y->lead + i) - y->exact[i]) - share * fabs(y->exact[i]);
        if (d > most) most = d;
    }
    free(data);
    return most;
}

/* That all numbers were made with TF32's factors of ten bits where it is allowed, and exactly where
 * it is not. Tensor cores drop the other bits, and libraries need not round before: all numbers are
 * then too small by half of the last bit on average, products by 2^-10. `surely`: TF32 is more than
 * a permission, which cuBLAS does not use for small or odd sizes on a GPU. */
static void check_tf32(const numbers *y, int64_t terms, bool allowed, bool surely, const char *what)
{
    double far = worst(y, 0), beyond = worst(y, 0x1p-10);
    if (!allowed)
        check(y, terms, what);
    else
        ck_assert_msg((far > 1e-4 || !surely) && beyond < 0x1p-10 * sqrt((double)terms),
                      "%s: %g away, %g beyond TF32's rounding", what, far, beyond);
}

static void conv_with_tf32(const tni_conv2d_sizes *c, bool surely)
{
    static const char *const names[] = { "y", "y without bias", "dx", "dw" };
    int64_t terms = c->n * c->oh * c->ow, taps = c->c / c->groups * c->kh * c->kw;
    for (int allowed = 0; allowed < 2; allowed++) {
        assert_ok(tn_set_tf32(allowed));
        conv_numbers t = conv_make(c);
        const numbers *out[] = { t.y, t.z, t.dx, t.dw };
        convolve(cpu, &t, c);
        convolve(gpu, &t, c);
        for (int k = 0; k < 4; k++)
            check_tf32(out[k], allowed ? terms : taps * terms, allowed, surely, names[k]);
        drop_all();
    }
}

/* The shim uses TF32 wherever it may, so there a product that was made without is found. */
START_TEST(tf32_is_honoured)
{
    tni_conv2d_sizes c = conv_of(_i);
    choose(2);
    conv_with_tf32(&c, shim());
}
END_TEST

/* Sizes that are multiples of 8, and enough work for tensor cores: there a GPU uses it, too. (An
 * H100 does not for the dx of 8x64x16x16, 3x3.) */
START_TEST(tf32_is_used)
{
    enum { N = 512 };
    choose(2);
    for (int allowed = 0; allowed < 2; allowed++) {
        assert_ok(tn_set_tf32(allowed));
        numbers *a = make(0, N * N), *b = make(0, N * N), *y = make(0, N * N);
        tni_gemm f = { .dtype = dtype,
                       .m = N,
                       .n = N,
                       .k = N,
                       .batch = 1,
                       .a = a->at,
                       .a_row = N,
                       .a_col = 1,
                       .b = b->at,
                       .b_row = N,
                       .b_col = 1,
                       .c = y->at,
                       .c_row = N };
        tni_gemm e = f;
        e.dtype = TN_F64, e.a = a->exact, e.b = b->exact, e.c = y->exact;
        assert_ok(gpu->gemm(&f));
        assert_ok(cpu->gemm(&e));
        check_tf32(y, N, allowed, true, "gemm");
        drop_all();
    }
    assert_ok(tn_set_tf32(false));
}
END_TEST

/* With numbers that TF32 holds, convolution by columns is as exact as f32. */
START_TEST(tf32_of_exact_numbers)
{
    choose(2);
    assert_ok(tn_set_tf32(true));
    for (int i = 0; i < CONVS; i++) {
        tni_conv2d_sizes c = conv_of(i);
        conv_numbers t = conv_make(&c);
        numbers *in[] = { t.x, t.w, t.dy };
        for (int k = 0; k < 3; k++) {
            float *data = malloc(bytes_of(in[k]) + 1);
            for (int64_t j = 0; j < in[k]->n; j++) {
                in[k]->exact[j] = floor(in[k]->exact[j] * 512) / 512;
                data[in[k]->lead + j] = (float)in[k]->exact[j];
            }
            assert_ok(gpu->upload(in[k]->at, data + in[k]->lead, (size_t)in[k]->n * 4));
            free(data);
        }
        convolve(cpu, &t, &c);
        convolve(gpu, &t, &c);
        const numbers *out[] = { t.y, t.z, t.dx, t.dw };
        for (int k = 0; k < 4; k++) check(out[k], c.n * c.oh * c.ow + 999, "exact TF32");
        drop_all();
    }
    assert_ok(tn_set_tf32(false));
}
END_TEST

/* ---- dropout --------------------------------------------------------------------------------- */

/* The CPU's bits: the same mask, the product made in f32. */
START_TEST(dropout)
{
    static const int64_t sizes[] = { 0, 1, 7, 33, 257, 1025, 100003 };
    choose(_i);
    for (int s = 0; s < 7; s++)
        for (int lead = 0; lead < 2; lead++) {
            numbers *x = make(lead, sizes[s]), *y = make(lead, sizes[s]);
            char *from = held(x), *to = malloc(bytes_of(x) + 1);
            size_t skip = (size_t)lead * 2;
            tni_array a = { from + skip, dtype, 1, { sizes[s] }, { 1 } }, b = a, c = a, d = a;
            b.data = to + skip, c.data = x->at, d.data = y->at;
            assert_ok(
                cpu->dropout(&(tni_dropout){ .y = b, .x = a, .p = 0.3, .seed = 5, .offset = 77 }));
            assert_ok(
                gpu->dropout(&(tni_dropout){ .y = d, .x = c, .p = 0.3, .seed = 5, .offset = 77 }));
            char *got = held(y);
            ck_assert(!memcmp(got + skip, to + skip, (size_t)sizes[s] * 2));
            free(from);
            free(to);
            free(got);
            drop_all();
        }
}
END_TEST

static TCase *fresh_case(Suite *suite, const char *name)
{
    TCase *t = test_case(suite, name);
    tcase_add_checked_fixture(t, begin, NULL);
    return t;
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_half");
    TCase *t = fresh_case(suite, "gemm");
    tcase_add_loop_test(t, gemm_sizes, 0, 2);
    tcase_add_loop_test(t, gemm_biases, 0, 2);
    tcase_add_loop_test(t, gemm_layouts, 0, 2);
    tcase_add_loop_test(t, plans_are_kept, 0, 3);
    t = fresh_case(suite, "convolution");
    tcase_add_loop_test(t, convolutions, 0, 2);
    tcase_add_loop_test(t, convolutions_in_pieces, 0, 2);
    t = fresh_case(suite, "tf32");
    tcase_add_loop_test(t, tf32_is_honoured, 2, 6);
    tcase_add_test(t, tf32_is_used);
    tcase_add_test(t, tf32_of_exact_numbers);
    t = fresh_case(suite, "dropout");
    tcase_add_loop_test(t, dropout, 0, 2);
    return suite;
}
