/*
 * test_amx_conv.c - convolutions by AMX's tiles (squares_conv.c), compared with the plainest loops
 * in double. The kernel is compiled for processors with AVX-512; where there are no tiles they are
 * emulated (amx/amx.c).
 *
 * Seen to fail, in squares_conv.c: an odd channel's neighbour read, padding forgotten, taps not
 * turned round for dx, the end of dy's last rows left from the rows before, a frame left out,
 * lanes 16 to 31 not written; a stride taken (amx_leaves_to_others).
 */
#include "plain.h"
#include "scarce.h"

#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"

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
    /* as much padding as can be */
    { 2, 1, 32, 7, 36, 32, 4, 4, 0, 0, { 1, 1 }, { 3, 0 }, { 1, 1 } },
    { 1, 1, 26, 3, 64, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 9, 1, 29, 7, 7, 60, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },  /* a short last frame */
    { 4, 1, 32, 16, 6, 32, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } }, /* rows as short as can be */
    /* strides: all phases; some; dx that no tap meets; holes as wide as the stride */
    { 4, 1, 32, 28, 28, 40, 3, 3, 0, 0, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 3, 1, 31, 27, 30, 32, 2, 5, 0, 0, { 4, 1 }, { 1, 2 }, { 1, 1 } },
    { 4, 1, 32, 14, 28, 32, 1, 1, 0, 0, { 2, 2 }, { 0, 0 }, { 1, 1 } },
    { 4, 1, 32, 20, 29, 32, 3, 3, 0, 0, { 3, 2 }, { 3, 2 }, { 2, 2 } },
};
enum { F = 536870911 };
static const tni_conv2d_sizes refused[] = {
    { 2, 1, 32, 14, 64, 64, 3, 3, 0, 0, { 1, 3 }, { 1, 1 }, { 1, 1 } }, /* a stride */
    { 2, 2, 64, 14, 14, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } }, /* groups */
    { 2, 1, 3, 14, 14, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },  /* few channels */
    { 4, 1, 32, 16, 5, 32, 1, 1, 0, 0, { 1, 1 }, { 0, 0 }, { 1, 1 } },  /* short rows */
    /* a frame whose size does not fit in 64 bits */
    { 1, 1, 32, 2, 32, 32, 2, 2, 0, 0, { 1, 1 }, { F / 2, F / 2 - 15 }, { F, F - 31 } },
    { 0, 1, 32, 14, 14, 64, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 2, 1, 32, 0, 14, 32, 3, 3, 0, 0, { 1, 1 }, { 0, 1 }, { 1, 1 } },
};
enum { TAKEN = sizeof taken / sizeof *taken, REFUSED = sizeof refused / sizeof *refused };

static tni_conv2d_sizes whole(tni_conv2d_sizes c)
{
    c.oh = TNI_MAX(c.h + 2 * c.padding[0] - c.dilation[0] * (c.kh - 1) + c.stride[0] - 1, 0);
    c.ow = TNI_MAX(c.w + 2 * c.padding[1] - c.dilation[1] * (c.kw - 1) + c.stride[1] - 1, 0);
    c.oh /= c.stride[0], c.ow /= c.stride[1];
    return c;
}

/* y is as large as x. */
static tni_conv2d_sizes same_3x3(int64_t n, int64_t c, int64_t h, int64_t w, int64_t o)
{
    return whole((tni_conv2d_sizes){ n, 1, c, h, w, o, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } });
}

static tni_array array(void *data, tn_dtype dtype)
{
    return (tni_array){ .data = data, .dtype = dtype };
}

typedef struct operands {
    void *x, *w, *dy, *bias; /* bias may be left out */
} operands;

static operands operands_of(const plain *p, int64_t channels)
{
    return (operands){ numbers_as(p->x, p->s[DX].n, TN_BF16), numbers_as(p->w, p->s[DW].n, TN_BF16),
                       numbers_as(p->dy, p->s[Y].n, TN_BF16),
                       p->bias ? numbers_as(p->bias, channels, TN_BF16) : NULL };
}

static void assert_near(const char *what, int which, const void *got, tn_dtype dtype,
                        const sums *want)
{
    for (int64_t i = 0; i < want->n; i++) {
        double value = number_get(got, dtype, i), wanted = want->value[i];
        double bound = 0x1p-20 * want->size[i] + (dtype == TN_F32 ? 0 : 0x1p-8 * fabs(wanted));
        ck_assert_msg(fabs(value - wanted) <= bound, "case %d, %s[%lld]: %g, not %g", which, what,
                      (long long)i, value, wanted);
    }
}

/* ---- the tests ------------------------------------------------------------------------------- */

static bool have_kernel(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

typedef struct results {
    void *y, *dx, *dw;
} results;

/* NaN in what this thread's kernels find in their memory. */
static void spoil_scratch(void)
{
    void *scratch = tni_thread_scratch();
    assert_made(scratch);
    memset(scratch, 0xff, TNI_PRODUCT_SCRATCH);
}

/* All three, dw in f32 or bf16; a case that is taken must be, but a dw that is not finite. */
static results compute(const tni_conv2d_sizes *z, const plain *p, operands a, tn_dtype dtype,
                       bool finite)
{
    results r = { guarded(p->s[Y].n, 2), guarded(p->s[DX].n, 2),
                  guarded(p->s[DW].n, tn_dtype_size(dtype)) };
    tni_array x = array(a.x, TN_BF16), w = array(a.w, TN_BF16), dy = array(a.dy, TN_BF16);
    const tni_convolution all[3] = {
        { TNI_CONV_Y, *z, x, w, array(r.y, TN_BF16), array(a.bias, TN_BF16) },
        { TNI_CONV_DX, *z, array(r.dx, TN_BF16), w, dy, { 0 } },
        { TNI_CONV_DW, *z, x, array(r.dw, dtype), dy, { 0 } },
    };
    tn_status status[3] = { TN_E_SHAPE, TN_E_SHAPE, TN_E_SHAPE };
    for (int i = 0; i < 3; i++) {
        spoil_scratch();
        ck_assert(tni_amx_convolve(&all[i], &status[i]) == (finite || i < 2));
    }
    for (int i = 0; i < 3; i++) ck_assert_int_eq(status[i], TN_OK);
    return r;
}

START_TEST(amx_convolves)
{
    if (!have_kernel()) return;
    tni_conv2d_sizes z = whole(taken[_i]);
    tn_dtype dtype = _i % 3 ? TN_BF16 : TN_F32;
    plain p = plain_conv(&z, _i % 2);
    assert_ok(tn_set_num_threads(1)); /* whose memory is spoilt */
    results r = compute(&z, &p, operands_of(&p, z.o), dtype, true);
    assert_near("y", _i, r.y, TN_BF16, &p.s[Y]);
    assert_near("dx", _i, r.dx, TN_BF16, &p.s[DX]);
    assert_near("dw", _i, r.dw, dtype, &p.s[DW]);
    guarded_free(0);
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
    plain p = plain_conv(&z, false);
    spread_numbers(p.x, p.s[DX].n);
    spread_numbers(p.dy, p.s[Y].n);
    operands a = operands_of(&p, z.o);
    results r[4];
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_set_num_threads(threads[i]));
        r[i] = compute(&z, &p, a, TN_F32, true);
        ck_assert_int_eq(memcmp(r[0].y, r[i].y, (size_t)p.s[Y].n * 2), 0);
        ck_assert_int_eq(memcmp(r[0].dx, r[i].dx, (size_t)p.s[DX].n * 2), 0);
        ck_assert_int_eq(memcmp(r[0].dw, r[i].dw, (size_t)p.s[DW].n * 4), 0);
    }
    guarded_free(0);
}
END_TEST

/* An infinite x reaches what it meets, and nothing else of y; a dw with it, and y and dx with such
 * a weight, which would meet zeros of the padding, are left to others. */
START_TEST(amx_keeps_infinity_in_its_place)
{
    if (!have_kernel()) return;
    tni_conv2d_sizes z = same_3x3(4, 31, 9, 9, 32);
    plain p = plain_conv(&z, false);
    for (int64_t i = 0; i < p.s[DW].n; i++) /* infinity times 0 is NaN */
        if (p.w[i] == 0) p.w[i] = 1;
    operands a = operands_of(&p, z.o);
    int64_t at =
        ((1 * z.c + z.c - 1) * z.h + 4) * z.w + z.w - 1; /* a row's end, the last channel */
    ((uint16_t *)a.x)[at] = 0x7f80;
    results r = compute(&z, &p, a, TN_BF16, false);
    for (int64_t i = 0; i < p.s[Y].n; i++) {
        int64_t n = i / (z.o * z.oh * z.ow), row = i / z.ow % z.oh, col = i % z.ow;
        bool met = n == 1 && row >= 3 && row <= 5 && col >= z.w - 2;
        double y = number_get(r.y, TN_BF16, i);
        ck_assert_msg(met ? isinf(y) : isfinite(y), "y[%lld] is %g", (long long)i, y);
    }
    ((uint16_t *)a.w)[5] = 0xff80;
    for (int kind = TNI_CONV_Y; kind <= TNI_CONV_DX; kind++) {
        tni_array x = array(kind == TNI_CONV_Y ? a.x : r.dx, TN_BF16), w = array(a.w, TN_BF16);
        tni_array y = array(kind == TNI_CONV_Y ? r.y : a.dy, TN_BF16);
        tn_status status;
        ck_assert(!tni_amx_convolve(&(tni_convolution){ kind, z, x, w, y, { 0 } }, &status));
    }
    guarded_free(0);
}
END_TEST

START_TEST(amx_out_of_memory)
{
    if (!have_kernel()) return;
    scarce_install();
    /* weights too large for the memory that the library keeps for small blocks */
    tni_conv2d_sizes z = same_3x3(1, 512, 8, 8, 512);
    plain p = plain_conv(&z, false);
    operands a = operands_of(&p, z.o);
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
    guarded_free(0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("amx_conv");
    TCase *t = test_case(s, "convolutions");
    tcase_add_loop_test(t, amx_convolves, 0, TAKEN);
    tcase_add_loop_test(t, amx_leaves_to_others, 0, REFUSED);
    add_tests(t, amx_bits_for_any_threads, amx_keeps_infinity_in_its_place, amx_out_of_memory);
    return s;
}
