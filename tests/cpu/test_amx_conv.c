/*
 * test_amx_conv.c - convolutions by AMX's tiles (amx_conv.c), compared with the plainest loops
 * in double. The kernel is compiled for processors with AVX-512; where there are no tiles they are
 * emulated (amx/amx.c).
 *
 * Seen to fail, in amx_conv.c: an odd channel's neighbour read, padding forgotten, taps not turned
 * round for dx, the end of dy's last rows left from the rows before, a frame left out, lanes 16 to
 * 31 not written; a stride taken (amx_leaves_to_others).
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"
#include "scarce.h"

#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"
#include "tensor/math.h"

bool tni_amx_convolve_emulated(const tni_convolution *c, tn_status *status);
#define tni_amx_convolve tni_amx_convolve_emulated

static const tni_conv2d_sizes taken[] = {
    /* n, groups, c, h, w, o, kh, kw, oh, ow, stride, padding, dilation; oh and ow follow */
    { 3, 1, 32, 14, 14, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 5, 1, 31, 9, 8, 61, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },   /* odd channels */
    { 9, 1, 60, 7, 7, 29, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },   /* several images a frame */
    { 1, 1, 32, 28, 27, 32, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } }, /* one image, in bands */
    { 2, 1, 64, 42, 50, 24, 2, 5, 0, 0, { 1, 1 }, { 0, 2 }, { 1, 1 } }, /* bands, the last short */
    { 4, 1, 96, 16, 16, 32, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } }, /* a plain product */
    { 2, 1, 32, 11, 13, 64, 3, 3, 0, 0, { 1, 1 }, { 2, 2 }, { 2, 2 } }, /* holes between the taps */
    { 4, 1, 29, 8, 20, 30, 3, 2, 0, 0, { 1, 1 }, { 0, 1 }, { 1, 3 } },
    { 2,
      1,
      32,
      7,
      36,
      32,
      4,
      4,
      0,
      0,
      { 1, 1 },
      { 3, 0 },
      { 1, 1 } }, /* as much padding as can be */
    { 1, 1, 26, 3, 64, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 9, 1, 29, 7, 7, 60, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },  /* a short last frame */
    { 4, 1, 32, 16, 6, 32, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } }, /* rows as short as can be */
};
static const tni_conv2d_sizes refused[] = {
    { 2, 1, 32, 14, 14, 64, 3, 3, 0, 0, { 2, 1 }, { 1, 1 }, { 1, 1 } }, /* a stride */
    { 2, 2, 64, 14, 14, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } }, /* groups */
    { 2, 1, 3, 14, 14, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },  /* few channels */
    { 4, 1, 32, 16, 5, 32, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },  /* short rows */
    /* a frame whose size does not fit in 64 bits */
    { 1,
      1,
      32,
      2,
      32,
      32,
      2,
      2,
      0,
      0,
      { 1, 1 },
      { 268435455, 268435440 },
      { 536870911, 536870880 } },
    { 0, 1, 32, 14, 14, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 2, 1, 32, 0, 14, 32, 3, 3, 0, 0, { 1, 1 }, { 0, 1 }, { 1, 1 } },
};
enum { TAKEN = sizeof taken / sizeof *taken, REFUSED = sizeof refused / sizeof *refused };

static tni_conv2d_sizes whole(tni_conv2d_sizes c)
{
    c.oh = TNI_MAX(c.h + 2 * c.padding[0] - c.dilation[0] * (c.kh - 1), 0);
    c.ow = TNI_MAX(c.w + 2 * c.padding[1] - c.dilation[1] * (c.kw - 1), 0);
    return c;
}

/* y is as large as x. */
static tni_conv2d_sizes same_3x3(int64_t n, int64_t c, int64_t h, int64_t w, int64_t o)
{
    return whole((tni_conv2d_sizes){ n, 1, c, h, w, o, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } });
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Elements between a page of zeros and the end of memory. */
typedef struct block {
    char *start, *p;
    size_t size;
} block;

static block block_new(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    block b = { .size = (bytes + page - 1) / page * page + 2 * page };
    b.start = mmap(NULL, b.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(b.start != MAP_FAILED);
    ck_assert_int_eq(mprotect(b.start + b.size - page, page, PROT_NONE), 0);
    b.p = b.start + b.size - page - bytes;
    return b;
}

static void block_free(block b)
{
    for (char *p = b.start; p < b.p; p++) ck_assert_msg(!*p, "written before the result");
    munmap(b.start, b.size);
}

static block random_bf16(int64_t n, uint64_t seed)
{
    block b = block_new((size_t)n * 2);
    uint64_t s = seed * 7919 + 1;
    for (int64_t i = 0; i < n; i++) {
        s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ((uint16_t *)b.p)[i] = tn_to_bf16((float)(s >> 40) / 16777216.0f - 0.5f);
    }
    return b;
}

static double get(block b, int64_t i)
{
    return tn_from_bf16(((const uint16_t *)b.p)[i]);
}

static tni_array array(block b, tn_dtype dtype)
{
    return (tni_array){ .data = b.p, .dtype = dtype };
}

/* ---- the plainest loops ---------------------------------------------------------------------- */

typedef struct sums {
    double *y, *dx, *dw;  /* the results */
    double *my, *mx, *mw; /* sums of the terms' sizes, to judge errors by */
} sums;

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    assert_made(x);
    return x;
}

typedef struct counts {
    int64_t x, y, w;
} counts;

static counts counts_of(const tni_conv2d_sizes *z)
{
    return (counts){ z->n * z->c * z->h * z->w, z->n * z->o * z->oh * z->ow,
                     z->o * z->c * z->kh * z->kw };
}

typedef struct operands {
    block x, w, dy, bias; /* bias may be left out */
} operands;

static operands operands_new(const tni_conv2d_sizes *z)
{
    counts k = counts_of(z);
    return (operands){ random_bf16(k.x, 1), random_bf16(k.w, 2), random_bf16(k.y, 3), { 0 } };
}

static void operands_free(operands a)
{
    block_free(a.x), block_free(a.w), block_free(a.dy);
    if (a.bias.p) block_free(a.bias);
}

static sums plainly(const tni_conv2d_sizes *z, operands a)
{
    counts k = counts_of(z);
    sums s = { zeros(k.y), zeros(k.x), zeros(k.w), zeros(k.y), zeros(k.x), zeros(k.w) };
    for (int64_t i = 0; i < k.y; i++) {
        int64_t n = i / (z->o * z->oh * z->ow), o = i / (z->oh * z->ow) % z->o;
        int64_t r = i / z->ow % z->oh, q = i % z->ow;
        double b = a.bias.p ? get(a.bias, o) : 0;
        s.y[i] = b, s.my[i] = fabs(b);
        for (int64_t j = 0; j < z->c * z->kh * z->kw; j++) {
            int64_t c = j / (z->kh * z->kw);
            int64_t row = r + j / z->kw % z->kh * z->dilation[0] - z->padding[0];
            int64_t col = q + j % z->kw * z->dilation[1] - z->padding[1];
            if (row < 0 || row >= z->h || col < 0 || col >= z->w) continue;
            int64_t at = ((n * z->c + c) * z->h + row) * z->w + col;
            int64_t tap = o * z->c * z->kh * z->kw + j;
            double left = get(a.x, at), weight = get(a.w, tap), up = get(a.dy, i);
            s.y[i] += left * weight, s.my[i] += fabs(left * weight);
            s.dx[at] += up * weight, s.mx[at] += fabs(up * weight);
            s.dw[tap] += up * left, s.mw[tap] += fabs(up * left);
        }
    }
    return s;
}

static void sums_free(sums s)
{
    double *all[] = { s.y, s.dx, s.dw, s.my, s.mx, s.mw };
    for (int i = 0; i < 6; i++) free(all[i]);
}

static void assert_near(const char *what, int which, block got, tn_dtype dtype,
                        const double *wanted, const double *sizes, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double value = dtype == TN_F32 ? ((const float *)got.p)[i] : get(got, i);
        double bound = 0x1p-20 * sizes[i] + (dtype == TN_F32 ? 0 : 0x1p-8 * fabs(wanted[i]));
        ck_assert_msg(fabs(value - wanted[i]) <= bound, "case %d, %s[%lld]: %g, not %g", which,
                      what, (long long)i, value, wanted[i]);
    }
}

/* ---- the tests ------------------------------------------------------------------------------- */

static bool have_kernel(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

typedef struct results {
    block y, dx, dw;
} results;

/* NaN in what this thread's kernels find in their memory. */
static void spoil_scratch(void)
{
    void *scratch = tni_thread_scratch();
    assert_made(scratch);
    memset(scratch, 0xff, TNI_PRODUCT_SCRATCH);
}

/* All three, dw in f32 or bf16; a case that is taken must be. */
static results compute(const tni_conv2d_sizes *z, operands a, tn_dtype dtype)
{
    counts k = counts_of(z);
    results r = { block_new((size_t)k.y * 2), block_new((size_t)k.x * 2),
                  block_new((size_t)k.w * tn_dtype_size(dtype)) };
    tni_array x = array(a.x, TN_BF16), w = array(a.w, TN_BF16), dy = array(a.dy, TN_BF16);
    const tni_convolution all[3] = {
        { TNI_CONV_Y, *z, x, w, array(r.y, TN_BF16), array(a.bias, TN_BF16) },
        { TNI_CONV_DX, *z, array(r.dx, TN_BF16), w, dy, { 0 } },
        { TNI_CONV_DW, *z, x, array(r.dw, dtype), dy, { 0 } },
    };
    tn_status status[3] = { TN_E_SHAPE, TN_E_SHAPE, TN_E_SHAPE };
    for (int i = 0; i < 3; i++) {
        spoil_scratch();
        ck_assert(tni_amx_convolve(&all[i], &status[i]));
    }
    for (int i = 0; i < 3; i++) ck_assert_int_eq(status[i], TN_OK);
    return r;
}

static void results_free(results r)
{
    block_free(r.y);
    block_free(r.dx);
    block_free(r.dw);
}

START_TEST(amx_convolves)
{
    if (!have_kernel()) return;
    tni_conv2d_sizes z = whole(taken[_i]);
    counts k = counts_of(&z);
    operands a = operands_new(&z);
    if (_i % 2) a.bias = random_bf16(z.o, 4);
    tn_dtype dtype = _i % 3 ? TN_BF16 : TN_F32;
    sums s = plainly(&z, a);
    assert_ok(tn_set_num_threads(1)); /* whose memory is spoilt */
    results r = compute(&z, a, dtype);
    assert_near("y", _i, r.y, TN_BF16, s.y, s.my, k.y);
    assert_near("dx", _i, r.dx, TN_BF16, s.dx, s.mx, k.x);
    assert_near("dw", _i, r.dw, dtype, s.dw, s.mw, k.w);
    results_free(r);
    sums_free(s);
    operands_free(a);
}
END_TEST

START_TEST(amx_leaves_to_others)
{
    if (!have_kernel()) return;
    tni_conv2d_sizes z = whole(refused[_i]);
    tni_array bf16 = { .dtype = TN_BF16 };
    tn_status status;
    for (int kind = TNI_CONV_Y; kind <= TNI_CONV_DW; kind++)
        ck_assert(
            !tni_amx_convolve(&(tni_convolution){ kind, z, bf16, bf16, bf16, { 0 } }, &status));
    tni_array f32 = { .dtype = TN_F32 };
    z = whole(taken[0]);
    ck_assert(
        !tni_amx_convolve(&(tni_convolution){ TNI_CONV_Y, z, f32, f32, f32, { 0 } }, &status));
}
END_TEST

START_TEST(amx_bits_for_any_threads)
{
    if (!have_kernel() || !child_may_start_threads()) return;
    tni_conv2d_sizes z = same_3x3(7, 32, 10, 9, 32);
    static const int threads[] = { 1, 2, 3, 7 };
    counts k = counts_of(&z);
    operands a = operands_new(&z);
    results r[4];
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_set_num_threads(threads[i]));
        r[i] = compute(&z, a, TN_F32);
        ck_assert_int_eq(memcmp(r[0].y.p, r[i].y.p, (size_t)k.y * 2), 0);
        ck_assert_int_eq(memcmp(r[0].dx.p, r[i].dx.p, (size_t)k.x * 2), 0);
        ck_assert_int_eq(memcmp(r[0].dw.p, r[i].dw.p, (size_t)k.w * 4), 0);
    }
    for (int i = 0; i < 4; i++) results_free(r[i]);
    operands_free(a);
}
END_TEST

/* An infinite x reaches what it meets, and nothing else of y. */
START_TEST(amx_keeps_infinity_in_its_place)
{
    if (!have_kernel()) return;
    tni_conv2d_sizes z = same_3x3(4, 31, 9, 9, 32);
    counts k = counts_of(&z);
    operands a = operands_new(&z);
    int64_t at =
        ((1 * z.c + z.c - 1) * z.h + 4) * z.w + z.w - 1; /* a row's end, the last channel */
    ((uint16_t *)a.x.p)[at] = 0x7f80;
    results r = compute(&z, a, TN_BF16);
    for (int64_t i = 0; i < k.y; i++) {
        int64_t n = i / (z.o * z.oh * z.ow), row = i / z.ow % z.oh, col = i % z.ow;
        bool met = n == 1 && row >= 3 && row <= 5 && col >= z.w - 2;
        ck_assert_msg(met ? isinf(get(r.y, i)) : isfinite(get(r.y, i)), "y[%lld] is %g",
                      (long long)i, get(r.y, i));
    }
    results_free(r);
    operands_free(a);
}
END_TEST

START_TEST(amx_out_of_memory)
{
    if (!have_kernel()) return;
    scarce_install();
    /* weights too large for the memory that the library keeps for small blocks */
    tni_conv2d_sizes z = same_3x3(1, 512, 8, 8, 512);
    operands a = operands_new(&z);
    tni_array x = array(a.x, TN_BF16), w = array(a.w, TN_BF16), y = array(a.dy, TN_BF16);
    for (int which = 0; which < 3; which++) {
        tn_status status = TN_OK;
        tn_memory_trim();
        scarce_allow(0);
        ck_assert(tni_amx_convolve(&(tni_convolution){ which, z, x, w, y, { 0 } }, &status));
        scarce_allow(INT64_MAX);
        ck_assert_int_eq(status, TN_E_NOMEM);
        tn_error_clear();
    }
    operands_free(a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("amx_conv");
    TCase *t = test_case(s, "convolutions");
    tcase_add_loop_test(t, amx_convolves, 0, TAKEN);
    tcase_add_loop_test(t, amx_leaves_to_others, 0, REFUSED);
    tcase_add_test(t, amx_bits_for_any_threads);
    tcase_add_test(t, amx_keeps_infinity_in_its_place);
    tcase_add_test(t, amx_out_of_memory);
    return s;
}
