/*
 * test_math.c - elementary functions against long double; pointwise, copying and reducing kernels
 * of every instruction set this processor has against plain loops, and their bits for 1 to 4
 * threads.
 *
 * Seen to fail: 0x1.5550p-3f for the coefficient 0x1.555490p-3f of tn_exp_tail_f32 (the bounds of
 * exp, expm1, tanh and erf); merge_axes of isa/reduce.c looking at x's strides alone (reductions);
 * combine leaving out the last slice (long_reductions, sums_are_accurate); slices of a size that
 * depends on the number of threads (bits_for_any_threads); the upper half of a word of bf16 not
 * rounded, or the last number taken from the other operand (bf16_is_f32_rounded).
 */
#include <stdlib.h>

#include "numbers.h"
#include "tensor/cpu/cpu.h"
#include "tensor/formulas.h"

static const char *const simds[] = { "baseline", "avx2", "avx512" };
static const int64_t sizes[] = { 0, 1, 7, 33, 257, 1025 };
enum { N_SIMDS = 3, N_SIZES = 6 };

/* ---- bounds ---------------------------------------------------------------------------------- */

/* Error of got in units of the last place of a format with `bits` of precision, lowest exponent
 * low. */
static double ulps(double got, long double want, int bits, int low)
{
    if (isnan(want)) return isnan(got) ? 0.0 : 1e9;
    if (want == 0.0L) return got == 0.0 ? 0.0 : 1e9;
    if (isinf(want)) return (long double)got == want ? 0.0 : 1e9;
    if (isinf(got)) {
        long double limit = bits == 24 ? (long double)0x1.ffffffp127 : 0x1.fffffffffffff8p1023L;
        return (got > 0) == (want > 0) && fabsl(want) >= limit ? 0.0 : 1e9;
    }
    int e;
    frexpl(want, &e);
    if (e < low) e = low;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, e - bits));
}

typedef struct function {
    const char *name;
    float (*f32)(float);
    double (*f64)(double);
    long double (*truth)(long double);
    double bound32, bound64;
} function;

#define WRAP(f)                                                                                    \
    static float f##_32(float x)                                                                   \
    {                                                                                              \
        return tn_##f##_f32(x);                                                                    \
    }                                                                                              \
    static double f##_64(double x)                                                                 \
    {                                                                                              \
        return tn_##f##_f64(x);                                                                    \
    }
WRAP(exp)
WRAP(expm1)
WRAP(log)
WRAP(log1p)
WRAP(tanh)
WRAP(erf)

/* the bounds stated in math.h */
static const function functions[] = {
    { "exp", exp_32, exp_64, expl, 1.25, 1.25 },
    { "expm1", expm1_32, expm1_64, expm1l, 2.0, 2.5 },
    { "log", log_32, log_64, logl, 1.0, 1.0 },
    { "log1p", log1p_32, log1p_64, log1pl, 1.75, 1.5 },
    { "tanh", tanh_32, tanh_64, tanhl, 1.5, 1.5 },
    { "erf", erf_32, erf_64, erfl, 1.5, 1.5 },
};

static void check32(const function *f, float x)
{
    double e = ulps(f->f32(x), f->truth(x), 24, -125);
    ck_assert_msg(e <= f->bound32, "%s_f32(%.9g) = %.9g: %.3f ulp, want at most %g", f->name, x,
                  f->f32(x), e, f->bound32);
}

static void check64(const function *f, double x)
{
    double e = ulps(f->f64(x), f->truth(x), 53, -1021);
    ck_assert_msg(e <= f->bound64, "%s_f64(%.17g) = %.17g: %.3f ulp, want at most %g", f->name, x,
                  f->f64(x), e, f->bound64);
}

/* Every 4,099th float there is (denormals, infinities and NaN among them), and a fine grid around
 * 0. */
START_TEST(ulp_bounds_f32)
{
    const function *f = &functions[_i];

    for (uint64_t u = 0; u < UINT64_C(0x100000000); u += 4099)
        check32(f, tn_from_bits_f32((uint32_t)u));
    for (int i = -200000; i <= 200000; i++) check32(f, (float)i * 1e-4f);
    for (int i = -100000; i <= 100000; i++) check32(f, (float)i * 1.1e-3f);
}
END_TEST

START_TEST(ulp_bounds_f64)
{
    const function *f = &functions[_i];
    uint64_t u = 12345;

    for (int i = 0; i < 300000; i++) {
        check64(f, tn_from_bits_f64(u));
        u += UINT64_C(0x9e3779b97f4a7c15);
    }
    for (int i = -200000; i <= 200000; i++) check64(f, (double)i * 1.0000000001e-4);
    for (int i = -200000; i <= 200000; i++) check64(f, (double)i * 3.8000000001e-3);
}
END_TEST

/* Where exp is a normal number the same bound as exp's; below, 0. */
START_TEST(exp_part_f32)
{
    for (int i = -300000; i <= 264000; i++) {
        float x = (float)i * 0x1.55p-12f;
        double e = ulps(tn_exp_part_f32(x), expl(x), 24, -125);
        bool tiny = x < -87.33f;
        ck_assert_msg(tiny ? tn_exp_part_f32(x) < 0x1p-125f : e <= 1.25,
                      "exp_part_f32(%.9g) = %.9g", x, tn_exp_part_f32(x));
        if (x < -87.7f) ck_assert(tn_exp_part_f32(x) == 0.0f);
    }
    ck_assert(tn_exp_part_f32(0.0f) == 1.0f && tn_exp_part_f32(-INFINITY) == 0.0f);
    ck_assert(isnan(tn_exp_part_f32(NAN)) && tn_exp_part_f32(INFINITY) == INFINITY);
}
END_TEST

/* On a fine grid: Phi within 1.5e-7, and the slope; beyond, all or nothing. */
START_TEST(gelu_f32)
{
    for (int i = -300000; i <= 300000; i++) {
        float x = (float)i * 5e-5f;
        double cdf = 0.5 * erfc(-(double)x * TNI_SQRT_HALF);
        double slope = cdf + (double)x * TNI_NORMAL_DENSITY_0 * exp(-0.5 * (double)x * (double)x);
        ck_assert_msg(fabs((double)tn_gelu_f32(x) - x * cdf) <= 1.5e-7 * fabs((double)x),
                      "gelu_f32(%.9g) = %.9g, want %.9g", x, tn_gelu_f32(x), x * cdf);
        ck_assert_msg(fabs((double)tn_gelu_slope_f32(x) - slope) <= 1.5e-7,
                      "gelu_slope_f32(%.9g) = %.9g, want %.9g", x, tn_gelu_slope_f32(x), slope);
    }
    ck_assert(tn_gelu_f32(-1e30f) == 0.0f && tn_gelu_f32(1e30f) == 1e30f);
    ck_assert(tn_gelu_f32(INFINITY) == INFINITY && isnan(tn_gelu_f32(-INFINITY)));
    ck_assert(tn_gelu_slope_f32(-INFINITY) == 0.0f && tn_gelu_slope_f32(INFINITY) == 1.0f);
    ck_assert(isnan(tn_gelu_f32(NAN)) && isnan(tn_gelu_f32(-NAN)) && isnan(tn_gelu_slope_f32(NAN)));
    ck_assert(signbit(tn_gelu_f32(-0.0f)) && tn_gelu_slope_f32(0.0f) == 0.5f);
}
END_TEST

/* The gate within 1.2e-7, and relatively as near as the exponent's rounding lets it be, down to
 * where it is no normal number; the slope within two units where it is largest. */
START_TEST(gelu_tanh_f32)
{
    for (int i = -300000; i <= 300000; i++) {
        float x = (float)i * 5e-5f;
        double v = x, u = TNI_SQRT_2_PI * (v + TNI_GELU_CUBIC * v * v * v);
        double gate = 1 / (1 + exp(-2 * u)), got = (double)tn_gelu_tanh_gate_f32(x);
        double slope =
            gate + 2 * v * gate * (1 - gate) * TNI_SQRT_2_PI * (1 + 3 * TNI_GELU_CUBIC * v * v);
        double off = fabs(got - gate), most = 2e-7 * (1 + fabs(2 * u)) * gate + 0x1p-126;
        ck_assert_msg(off <= 1.2e-7 && off <= most, "gelu_tanh_gate_f32(%.9g) = %.9g, want %.9g", x,
                      got, gate);
        ck_assert_msg(fabs((double)tn_gelu_tanh_slope_f32(x) - slope) <= 2.5e-7,
                      "gelu_tanh_slope_f32(%.9g) = %.9g, want %.9g", x, tn_gelu_tanh_slope_f32(x),
                      slope);
    }
    for (int i = -30000; i <= 30000; i++) {
        double v = i * 1e-3, u = TNI_SQRT_2_PI * (v + TNI_GELU_CUBIC * v * v * v);
        double gate = 1 / (1 + exp(-2 * u)), rest = 1 / (1 + exp(2 * u));
        double slope =
            gate + 2 * v * gate * rest * TNI_SQRT_2_PI * (1 + 3 * TNI_GELU_CUBIC * v * v);
        ck_assert_msg(fabs(tn_gelu_tanh_gate_f64(v) - gate) <= 4e-16 &&
                          fabs(tn_gelu_tanh_slope_f64(v) - slope) <= 1e-15,
                      "gelu_tanh_f64(%.17g): gate %.17g, want %.17g; slope %.17g, want %.17g", v,
                      tn_gelu_tanh_gate_f64(v), gate, tn_gelu_tanh_slope_f64(v), slope);
    }
    static const float far[] = { 10.0f, 10.06f, 12.0f, 1e30f, INFINITY };
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        ck_assert(tni_u_gelu_tanh_f32(far[i], 0, 0) == far[i]);
        ck_assert(tn_gelu_tanh_gate_f32(-far[i]) < 0x1p-125f);
        ck_assert(tn_gelu_tanh_slope_f32(far[i]) == 1.0f);
        ck_assert(fabsf(tn_gelu_tanh_slope_f32(-far[i])) < 1e-30f);
        ck_assert(tn_gelu_tanh_slope_f64(2 * (double)far[i]) == 1);
        ck_assert(fabs(tn_gelu_tanh_slope_f64(-2 * (double)far[i])) < 1e-250);
    }
    ck_assert(isnan(tni_u_gelu_tanh_f32(-INFINITY, 0, 0)) && isnan(tni_u_gelu_tanh_f32(NAN, 0, 0)));
    ck_assert(isnan(tni_u_gelu_tanh_f32(-NAN, 0, 0)) && isnan(tn_gelu_tanh_slope_f32(NAN)));
    ck_assert(signbit(tni_u_gelu_tanh_f32(-0.0f, 0, 0)) && tn_gelu_tanh_slope_f32(0.0f) == 0.5f);
}
END_TEST

START_TEST(special_values)
{
    ck_assert(tn_exp_f32(-INFINITY) == 0.0f && tn_exp_f32(INFINITY) == INFINITY &&
              tn_exp_f32(0.0f) == 1.0f);
    ck_assert(tn_exp_f64(-INFINITY) == 0.0 && tn_exp_f64(INFINITY) == INFINITY &&
              tn_exp_f64(0.0) == 1.0);
    ck_assert(tn_exp_f32(-103.0f) > 0.0f && tn_exp_f64(-745.0) > 0.0); /* denormal, not 0 */
    ck_assert(tn_log_f32(0.0f) == -INFINITY && isnan(tn_log_f32(-1.0f)) &&
              tn_log_f32(INFINITY) == INFINITY);
    ck_assert(tn_log_f64(0.0) == -INFINITY && isnan(tn_log_f64(-1.0)) &&
              tn_log_f64(INFINITY) == INFINITY);
    ck_assert(tn_log1p_f32(-1.0f) == -INFINITY && isnan(tn_log1p_f64(-2.0)));
    ck_assert(tn_tanh_f32(INFINITY) == 1.0f && tn_tanh_f64(-INFINITY) == -1.0 &&
              signbit(tn_tanh_f32(-0.0f)));
    ck_assert(tn_erf_f32(INFINITY) == 1.0f && tn_erf_f64(-INFINITY) == -1.0 &&
              signbit(tn_erf_f64(-0.0)));
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        ck_assert(isnan(functions[i].f32(NAN)) && isnan(functions[i].f64(NAN)));
    ck_assert(tni_b_maximum_f32(INFINITY, INFINITY, 0, 0) == INFINITY);
    ck_assert(isnan(tni_b_maximum_f32(1.0f, NAN, 0, 0)) &&
              isnan(tni_b_minimum_f64(NAN, -INFINITY, 0, 0)));
    ck_assert(tni_u_relu_f32(-1.0f, 0, 0) == 0.0f && isnan(tni_u_relu_f32(NAN, 0, 0)));
    ck_assert(tni_b_gelu_grad_f32(1.0f, -INFINITY, 0, 0) == 0.0f);
    ck_assert(tni_b_gelu_tanh_grad_f32(1.0f, 1e30f, 0, 0) == 1.0f);
    ck_assert(tn_int_of(NAN) == INT64_MIN && tn_int_of(-2.9) == -2);
}
END_TEST

/* All 65,536 values of the half-precision floats come back; halfway cases round to even. */
START_TEST(half_floats)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float x = tn_from_f16((uint16_t)h);
        int e = (int)(h >> 10 & 31);
        double want = e == 0 ? ldexp(h & 1023, -24) : ldexp((h & 1023) | 1024, e - 25);

        if (e == 31) want = h & 1023 ? (double)NAN : (double)INFINITY;
        if (h & 0x8000) want = -want;
        ck_assert_msg(isnan(want) ? isnan(x) : (double)x == want, "f16 %04x is %g, want %g", h, x,
                      want);
        ck_assert_msg(isnan(x) ? (tn_to_f16(x) & 0x7e00) == 0x7e00 : tn_to_f16(x) == h, "f16 %04x",
                      h);
        x = tn_from_bf16((uint16_t)h);
        ck_assert_msg(isnan(x) ? isnan(tn_from_bf16(tn_to_bf16(x))) : tn_to_bf16(x) == h,
                      "bf16 %04x", h);
    }
    ck_assert_uint_eq(tn_to_f16(1.0f + 0x1p-11f), 0x3c00);
    ck_assert_uint_eq(tn_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);
    ck_assert_uint_eq(tn_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(tn_to_f16(65519.0f), 0x7bff);
    ck_assert_uint_eq(tn_to_f16(0x1p-25f), 0x0000);
    ck_assert_uint_eq(tn_to_f16(3 * 0x1p-25f), 0x0002);
    ck_assert_uint_eq(tn_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    ck_assert_uint_eq(tn_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
}
END_TEST

/* ---- arrays ---------------------------------------------------------------------------------- */

static void put(const tni_array *a, int64_t at, double v)
{
    number_set(a->data, a->dtype, at, v);
}

static double get(const tni_array *a, int64_t at)
{
    return number_get(a->data, a->dtype, at);
}

/* Offset of element i (row-major). */
static int64_t place(const tni_array *a, int64_t i)
{
    int64_t at = 0;

    for (int d = a->rank - 1; d >= 0; d--) {
        at += i % a->size[d] * a->stride[d];
        i /= a->size[d];
    }
    return at;
}

static int64_t count(const tni_array *a)
{
    int64_t n = 1;

    for (int d = 0; d < a->rank; d++) n *= a->size[d];
    return n;
}

/* Layouts of an array of given sizes: row-major, axes reversed in memory, every other element. */
enum { DENSE, REVERSED, GAPS, N_LAYOUTS };

/* Memory of arrays, which goes together. */
static void **blocks;
static size_t n_blocks;

static void *new_block(size_t n)
{
    void **more = realloc(blocks, (n_blocks + 1) * sizeof *more);
    void *block = calloc(n, 8);

    ck_assert(more != NULL && block != NULL);
    blocks = more;
    blocks[n_blocks++] = block;
    return block;
}

static void free_blocks(void)
{
    while (n_blocks > 0) free(blocks[--n_blocks]);
}

static tni_array array(tn_dtype dtype, int rank, const int64_t *size, int layout)
{
    tni_array a = { .dtype = dtype, .rank = rank };
    int64_t step = layout == GAPS ? 2 : 1;

    for (int i = 0; i < rank; i++) {
        int d = layout == REVERSED ? i : rank - 1 - i;
        a.size[d] = size[d];
        a.stride[d] = step;
        step *= size[d] > 0 ? size[d] : 1;
    }
    a.data = new_block((size_t)step + 16);
    return a;
}

static void randomise(const tni_array *a, double low, double high)
{
    for (int64_t i = 0, n = count(a); i < n; i++) put(a, place(a, i), number_in(low, high));
}

/* a with stride 0 where the mask has a bit. */
static tni_array stretched(tni_array a, unsigned mask)
{
    for (int d = 0; d < a.rank; d++)
        if (mask >> d & 1u) a.stride[d] = 0;
    return a;
}

static void check(const char *what, const char *simd, const tni_array *y, int64_t i, double want,
                  double tolerance)
{
    double got = get(y, place(y, i));
    bool same = isnan(want) ? isnan(got) : got == want;

    ck_assert_msg(same || fabs(got - want) <= tolerance * (1.0 + fabs(want)),
                  "%s, %s, %s, element %" PRId64 " of %" PRId64 ": %.17g, want %.17g", what, simd,
                  tn_dtype_name(y->dtype), i, count(y), got, want);
}

static double precision(tn_dtype dtype)
{
    return dtype == TN_F64    ? 1e-13
           : dtype == TN_F32  ? 1e-5
           : dtype == TN_F16  ? 1e-3
           : dtype == TN_BF16 ? 8e-3
                              : 0.0;
}

/* ---- pointwise ------------------------------------------------------------------------------- */

static const double parameters[2] = { 0.75, 1.5 };

#define U_TRUTH(name, n, cost, formula) [TNI_U_##name] = tni_u_##name##_f64,
#define U_NAME(name, n, cost, formula) [TNI_U_##name] = #name,
static double (*const unary_truth[])(double, double,
                                     double) = { TNI_UNARY_LIST(U_TRUTH)
                                                     TNI_UNARY_PREDICATE_LIST(U_TRUTH) };
static const char *const unary_name[] = { TNI_UNARY_LIST(U_NAME) TNI_UNARY_PREDICATE_LIST(U_NAME) };
#define B_TRUTH(name, n, cost, formula) [TNI_B_##name] = tni_b_##name##_f64,
#define B_NAME(name, n, cost, formula) [TNI_B_##name] = #name,
static double (*const binary_truth[])(double, double, double,
                                      double) = { TNI_BINARY_LIST(B_TRUTH)
                                                      TNI_BINARY_PREDICATE_LIST(B_TRUTH) };
static const char *const binary_name[] = { TNI_BINARY_LIST(B_NAME)
                                               TNI_BINARY_PREDICATE_LIST(B_NAME) };
#define T_TRUTH(name, n, cost, formula) [TNI_T_##name] = tni_t_##name##_f64,
#define T_NAME(name, n, cost, formula) [TNI_T_##name] = #name,
static double (*const ternary_truth[])(double, double, double, double,
                                       double) = { TNI_TERNARY_LIST(T_TRUTH) };
static const char *const ternary_name[] = { TNI_TERNARY_LIST(T_NAME) };

static const tn_dtype floats[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };

#define FOR_SIMDS(table)                                                                           \
    for (int simd_ = 0; simd_ < N_SIMDS; simd_++)                                                  \
        for (const tni_backend *table = tni_cpu_table(simds[simd_]); table; table = NULL)

START_TEST(unary_rows)
{
    FOR_SIMDS (table)
        for (int f = 0; f < TNI_U_COUNT; f++)
            for (int d = 0; d < 4; d++) {
                for (int s = 0; s < N_SIZES; s++) {
                    int layout = (f + s) % N_LAYOUTS;
                    int64_t size[] = { sizes[s], s % 2 ? 3 : 1 };
                    tni_array x = array(floats[d], 2, size, layout);
                    tni_array y = array(f < TNI_U_PREDICATES ? floats[d] : TN_BOOL, 2, size,
                                        s % 2 ? DENSE : GAPS);
                    randomise(&x, 0.1, 2.0);
                    assert_ok(table->unary(
                        &(tni_unary){ .function = f, .y = y, .x = x, .p = parameters }));
                    for (int64_t i = 0; i < count(&y); i++) {
                        double v = get(&x, place(&x, i));
                        check(unary_name[f], simds[simd_], &y, i, unary_truth[f](v, 0.75, 1.5),
                              precision(floats[d]));
                    }
                    free_blocks();
                }
            }
}
END_TEST

START_TEST(binary_rows)
{
    FOR_SIMDS (table)
        for (int f = 0; f < TNI_B_COUNT; f++)
            for (int d = 0; d < 4; d++) {
                for (int s = 0; s < N_SIZES; s++)
                    for (unsigned mask = 0; mask < 4; mask++) {
                        int64_t size[] = { s % 2 ? 3 : 1, sizes[s] };
                        tni_array a = stretched(array(floats[d], 2, size, (f + s) % N_LAYOUTS),
                                                (unsigned)s % 3 ? 0 : mask);
                        tni_array b =
                            stretched(array(floats[d], 2, size, f % N_LAYOUTS), s % 3 ? mask : 0);
                        tni_array y =
                            array(f < TNI_B_PREDICATES ? floats[d] : TN_BOOL, 2, size, DENSE);
                        randomise(&a, 0.1, 2.0);
                        randomise(&b, 0.1, 2.0);
                        assert_ok(table->binary(&(tni_binary){
                            .function = f, .y = y, .a = a, .b = b, .p = parameters }));
                        for (int64_t i = 0; i < count(&y); i++) {
                            double u = get(&a, place(&a, i));
                            double v = get(&b, place(&b, i));
                            check(binary_name[f], simds[simd_], &y, i,
                                  binary_truth[f](u, v, 0.75, 1.5), precision(floats[d]));
                        }
                        free_blocks();
                    }
            }
}
END_TEST

/* One array of n numbers, from element `from` of a block on. */
static tni_array part(tn_dtype dtype, int64_t n, int64_t from)
{
    tni_array a = array(dtype, 1, (int64_t[]){ n + from }, DENSE);
    a.data = (char *)a.data + from * (int64_t)tn_dtype_size(dtype);
    a.size[0] = n;
    return a;
}

/* Every bf16 number through every formula, and beside another one, has the bits of f32's result,
 * rounded; with one number left over, and at odd addresses, too. gelu has formulas of its own. */
START_TEST(bf16_is_f32_rounded)
{
    for (int64_t from = 0; from < 2; from++) {
        const int64_t n = 65536 - from;
        tni_array x = part(TN_BF16, n, from), x2 = part(TN_BF16, n, from);
        tni_array y = part(TN_BF16, n, from), wide = part(TN_F32, n, 0);
        tni_array wide2 = part(TN_F32, n, 0), want = part(TN_F32, n, 0);
        for (int64_t i = 0; i < n; i++) {
            uint16_t h = (uint16_t)i, h2 = (uint16_t)(i * 40503 + 12345);
            ((uint16_t *)x.data)[i] = h, ((uint16_t *)x2.data)[i] = h2;
            ((float *)wide.data)[i] = tn_from_bf16(h), ((float *)wide2.data)[i] = tn_from_bf16(h2);
        }
        FOR_SIMDS (table)
            for (int k = 0; k < TNI_U_PREDICATES + TNI_B_PREDICATES; k++) {
                int f = k < TNI_U_PREDICATES ? k : k - TNI_U_PREDICATES;
                if (k == TNI_U_gelu || k == TNI_U_PREDICATES + TNI_B_gelu_grad ||
                    k == TNI_U_gelu_tanh || k == TNI_U_PREDICATES + TNI_B_gelu_tanh_grad)
                    continue;
                const char *name = k == f ? unary_name[f] : binary_name[f];
                for (int narrow = 0; narrow < 2; narrow++) {
                    tni_array to = narrow ? y : want, a = narrow ? x : wide;
                    tni_array b = narrow ? x2 : wide2;
                    assert_ok(k == f ? table->unary(&(tni_unary){ f, to, a, parameters })
                                     : table->binary(&(tni_binary){ f, to, a, b, parameters }));
                }
                for (int64_t i = 0; i < n; i++) {
                    float v = ((float *)want.data)[i];
                    uint16_t got = ((uint16_t *)y.data)[i], rounded = tn_to_bf16(v);
                    ck_assert_msg(got == rounded || (isnan(v) && isnan(tn_from_bf16(got))),
                                  "%s of %04x and %04x, %s: %04x, want %04x", name,
                                  ((uint16_t *)x.data)[i], ((uint16_t *)x2.data)[i], simds[simd_],
                                  got, rounded);
                }
            }
    }
}
END_TEST

START_TEST(ternary_rows)
{
    FOR_SIMDS (table)
        for (int f = 0; f < TNI_T_COUNT; f++)
            for (int d = 0; d < 2; d++) {
                for (int s = 0; s < N_SIZES; s++)
                    for (unsigned mask = 0; mask < 4; mask++) {
                        int64_t size[] = { 2, sizes[s] };
                        tni_array a = array(f == TNI_T_where ? TN_BOOL : floats[d], 2, size, DENSE);
                        tni_array b = array(floats[d], 2, size, s % N_LAYOUTS);
                        tni_array c =
                            stretched(array(floats[d], 2, size, mask ? DENSE : GAPS), mask);
                        tni_array y = array(floats[d], 2, size, DENSE);
                        if (mask == 2) a = stretched(a, mask);
                        randomise(&a, 0.1, 2.0);
                        for (int64_t i = 0; f == TNI_T_where && i < count(&a); i++)
                            put(&a, place(&a, i), i % 3 == 0);
                        randomise(&b, 0.1, 2.0);
                        randomise(&c, 0.1, 2.0);
                        assert_ok(table->ternary(&(tni_ternary){
                            .function = f, .y = y, .a = a, .b = b, .c = c, .p = parameters }));
                        for (int64_t i = 0; i < count(&y); i++) {
                            double want =
                                ternary_truth[f](get(&a, place(&a, i)), get(&b, place(&b, i)),
                                                 get(&c, place(&c, i)), 0.75, 1.5);
                            check(ternary_name[f], simds[simd_], &y, i, want, precision(floats[d]));
                        }
                        free_blocks();
                    }
            }
}
END_TEST

START_TEST(integers)
{
    const int64_t size[] = { 5 };
    const int64_t a_values[] = { -3, -1, 0, 2, INT64_MAX };

    FOR_SIMDS (table) {
        tni_array a = array(TN_I64, 1, size, DENSE);
        tni_array y = array(TN_I64, 1, size, DENSE);
        tni_array small = array(TN_U8, 1, size, DENSE);
        const int64_t *out = y.data;
        memcpy(a.data, a_values, sizeof a_values);
        assert_ok(table->binary(&(tni_binary){ .function = TNI_B_add, .y = y, .a = a, .b = a }));
        ck_assert(out[0] == -6 && out[4] == -2); /* wraps around */
        assert_ok(table->unary(&(tni_unary){
            .function = TNI_U_clamp, .y = y, .x = a, .p = (double[]){ -1.0, INFINITY } }));
        ck_assert(out[0] == -1 && out[4] == INT64_MAX);
        assert_ok(table->unary(
            &(tni_unary){ .function = TNI_U_pow_scalar, .y = y, .x = a, .p = (double[]){ 3.0 } }));
        ck_assert(out[0] == -27 && out[3] == 8);
        assert_ok(table->unary(&(tni_unary){
            .function = TNI_U_mul_scalar, .y = small, .x = a, .p = (double[]){ 100.0 } }));
        ck_assert_uint_eq(((uint8_t *)small.data)[3], 200);
        ck_assert_uint_eq(((uint8_t *)small.data)[0], (uint8_t)-300);
        ck_assert(table->unary(&(tni_unary){ .function = TNI_U_exp, .y = y, .x = a }) ==
                  TN_E_DTYPE);
        tn_error_clear();
    }
}
END_TEST

/* ---- copies ---------------------------------------------------------------------------------- */

START_TEST(copies)
{
    const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64, TN_I32, TN_U8, TN_BOOL };

    FOR_SIMDS (table)
        for (int from = 0; from < 8; from++)
            for (int to = 0; to < 8; to++) {
                for (int s = 0; s < N_SIZES; s++) {
                    int layout = (from + 3 * to + s) % (N_LAYOUTS * N_LAYOUTS);
                    int64_t size[] = { s % 2 ? 3 : 2, sizes[s] < 1000 ? sizes[s] : 2,
                                       s == 1 ? 513 : 1 };
                    tni_array x = array(dtypes[from], 3, size, layout / N_LAYOUTS);
                    tni_array y = array(dtypes[to], 3, size, layout % N_LAYOUTS);
                    randomise(&x, 0.0, 100.0);
                    assert_ok(table->copy(&(tni_copy){ .y = y, .x = x }));
                    for (int64_t i = 0; i < count(&y); i++) {
                        double v = get(&x, place(&x, i));
                        if (!tn_dtype_is_float(dtypes[to]))
                            v = dtypes[to] == TN_BOOL ? v != 0.0 : trunc(v);
                        else if (dtypes[to] == TN_F32)
                            v = (float)v;
                        else if (dtypes[to] == TN_BF16)
                            v = tn_from_bf16(tn_to_bf16((float)v));
                        else if (dtypes[to] == TN_F16)
                            v = tn_from_f16(tn_to_f16((float)v));
                        check(tn_dtype_name(dtypes[from]), simds[simd_], &y, i, v, 0.0);
                    }
                    free_blocks();
                }
            }
}
END_TEST

START_TEST(transpositions)
{
    FOR_SIMDS (table)
        for (int s = 0; s < N_SIZES; s++)
            for (int item = 0; item < 3; item++) {
                int64_t size[] = { 3, sizes[s], 65 };
                tni_array x = array(item == 0   ? TN_U8
                                    : item == 1 ? TN_F32
                                                : TN_F64,
                                    3, size, DENSE);
                tni_array t = x;
                t.size[1] = size[2];
                t.size[2] = size[1];
                t.stride[1] = 1;
                t.stride[2] = x.stride[1];
                tni_array y = array(x.dtype, 3, t.size, DENSE);
                randomise(&x, 0.0, 200.0);
                assert_ok(table->copy(&(tni_copy){ .y = y, .x = t }));
                for (int64_t i = 0; i < count(&y); i++)
                    check("transpose", simds[simd_], &y, i, get(&t, place(&t, i)), 0.0);
                free_blocks();
            }
}
END_TEST

START_TEST(fills)
{
    const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16, TN_I64, TN_I32, TN_U8, TN_BOOL };
    const int64_t size[] = { 5, 7 };

    FOR_SIMDS (table)
        for (int d = 0; d < 8; d++)
            for (int layout = 0; layout < N_LAYOUTS; layout++) {
                tni_array y = array(dtypes[d], 2, size, layout);
                assert_ok(table->fill(&(tni_fill){ .y = y, .value = (tni_number){ 3.0, 3 } }));
                for (int64_t i = 0; i < 35; i++)
                    check("fill", simds[simd_], &y, i, dtypes[d] == TN_BOOL ? 1 : 3, 0.0);
                if (layout == GAPS) ck_assert(get(&y, 1) == 0.0); /* between the elements */
                free_blocks();
            }
}
END_TEST

/* ---- reductions ------------------------------------------------------------------------------ */

#define R_NAME(name) [TNI_R_##name] = #name,
static const char *const reduce_name[] = { TNI_REDUCE_LIST(R_NAME) };

/* Result o of a function over the elements of x that belong to it, by the book. */
static double reduce_truth(int function, const tni_array *x, const tni_array *y, int64_t o,
                           double p)
{
    long double sum = 0, power = 0, product = 1, most = -INFINITY, least = INFINITY, squares = 0,
                exps = 0;
    long double largest_abs = 0;
    int64_t n = 0;
    int64_t nonzero = 0;
    bool nan = false;
    tni_array index = *y; /* y's element of each x: broadcast back */

    for (int d = 0; d < y->rank; d++) index.stride[d] = y->size[d] == 1 ? 0 : y->stride[d];
    memcpy(index.size, x->size, sizeof index.size);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < count(x); i++) {
            if (place(&index, i) != place(y, o)) continue;
            long double v = get(x, place(x, i));
            if (pass == 1) {
                squares += (v - sum / n) * (v - sum / n);
                exps += expl(v - most);
                continue;
            }
            n++;
            sum += v;
            product *= v;
            power += powl(fabsl(v), p);
            nonzero += v != 0;
            nan |= isnan(v);
            if (v > most) most = v;
            if (v < least) least = v;
            if (fabsl(v) > largest_abs) largest_abs = fabsl(v);
        }
    }
    switch (function) {
    case TNI_R_sum: return (double)sum;
    case TNI_R_mean: return (double)(sum / n);
    case TNI_R_prod: return (double)product;
    case TNI_R_max: return nan ? (double)NAN : (double)most;
    case TNI_R_min: return nan ? (double)NAN : (double)least;
    case TNI_R_max_abs: return nan ? (double)NAN : (double)largest_abs;
    case TNI_R_any: return nonzero > 0;
    case TNI_R_all: return nonzero == n;
    case TNI_R_var: return (double)(squares / (n > p ? n - (long double)p : 0));
    case TNI_R_std: return (double)sqrtl(squares / (n > p ? n - (long double)p : 0));
    case TNI_R_norm: return (double)powl(power, 1 / (long double)p);
    default: return n ? (double)(most + logl(exps)) : -INFINITY;
    }
}

static void check_reduce(const tni_backend *table, const char *simd, int f, const tni_array *x,
                         unsigned mask, double p, double tolerance)
{
    int64_t size[TN_MAX_RANK];
    bool truth = f == TNI_R_any || f == TNI_R_all;

    for (int d = 0; d < x->rank; d++) size[d] = mask >> d & 1u ? 1 : x->size[d];
    tni_array y = array(truth                ? TN_BOOL
                        : x->dtype == TN_I32 ? TN_I64
                                             : x->dtype,
                        x->rank, size, mask % 2 ? DENSE : GAPS);
    assert_ok(table->reduce(&(tni_reduce){ .function = f, .y = y, .x = *x, .p = &p }));
    for (int64_t i = 0; i < count(&y); i++)
        check(reduce_name[f], simd, &y, i, reduce_truth(f, x, &y, i, p), tolerance);
}

START_TEST(reductions)
{
    const int64_t shapes[][3] = { { 4, 3, 5 }, { 2, 33, 2 }, { 1, 65, 2 },
                                  { 9, 1, 7 }, { 3, 0, 2 },  { 20, 2, 3 } };

    FOR_SIMDS (table)
        for (int f = 0; f < TNI_R_COUNT; f++)
            for (int d = 0; d < 4; d++) {
                for (int s = 0; s < 6; s++) {
                    tni_array x = array(floats[d], 3, shapes[s], (s + f) % N_LAYOUTS);
                    randomise(&x, -1.0, 2.0);
                    for (unsigned mask = 0; mask < 8; mask++) {
                        double p = f == TNI_R_var ? 1.0 : mask % 2 ? 2.0 : 3.0;
                        check_reduce(table, simds[simd_], f, &x, mask, p, 4 * precision(floats[d]));
                    }
                    free_blocks();
                }
            }
}
END_TEST

/* Long slices (several partial results), rows and columns, and a NaN that must not get lost. */
START_TEST(long_reductions)
{
    const int64_t shapes[][2] = { { 3, 40001 }, { 40001, 3 }, { 70, 1025 }, { 1, 70003 } };

    FOR_SIMDS (table)
        for (int f = 0; f < TNI_R_COUNT; f++)
            for (int d = 0; d < 2; d++) {
                if (f == TNI_R_prod) continue;
                for (int s = 0; s < 4; s++) {
                    tni_array x = array(floats[d], 2, shapes[s], DENSE);
                    int axis = s == 1 || s == 2 ? 0 : 1;
                    int64_t out[] = { axis == 0 ? 1 : x.size[0], axis == 1 ? 1 : x.size[1] };
                    tni_array y = array(f == TNI_R_any || f == TNI_R_all ? TN_BOOL : floats[d], 2,
                                        out, DENSE);
                    double p = 2.0;
                    randomise(&x, -1.0, 2.0);
                    assert_ok(
                        table->reduce(&(tni_reduce){ .function = f, .y = y, .x = x, .p = &p }));
                    for (int64_t i = 0; i<count(&y); i += count(&y)> 8 ? 300 : 1) {
                        tni_array line = x; /* the one slice, so that the truth is quick */
                        tni_array one = y;
                        line.data = (char *)x.data +
                                    i * x.stride[1 - axis] * (int64_t)tn_dtype_size(x.dtype);
                        line.size[1 - axis] = one.size[1 - axis] = 1;
                        one.data = (char *)y.data + i * (int64_t)tn_dtype_size(y.dtype);
                        check(reduce_name[f], simds[simd_], &one, 0,
                              reduce_truth(f, &line, &one, 0, p), precision(floats[d]));
                    }
                    put(&x, place(&x, 2), NAN);
                    assert_ok(
                        table->reduce(&(tni_reduce){ .function = f, .y = y, .x = x, .p = &p }));
                    if (y.dtype != TN_BOOL)
                        ck_assert_msg(isnan(get(&y, axis == 0 ? 2 % x.size[1] : 0)),
                                      "%s: NaN is lost", reduce_name[f]);
                    free_blocks();
                }
            }
}
END_TEST

START_TEST(integer_reductions)
{
    const int64_t size[] = { 3, 4 };

    FOR_SIMDS (table)
        for (int layout = 0; layout < N_LAYOUTS; layout++) {
            tni_array x = array(TN_I32, 2, size, layout);
            randomise(&x, -5.0, 9.0);
            for (unsigned mask = 0; mask < 4; mask++) {
                check_reduce(table, simds[simd_], TNI_R_sum, &x, mask, 0.0, 0.0);
                check_reduce(table, simds[simd_], TNI_R_prod, &x, mask, 0.0, 0.0);
                check_reduce(table, simds[simd_], TNI_R_max, &x, mask, 0.0, 0.0);
                check_reduce(table, simds[simd_], TNI_R_min, &x, mask, 0.0, 0.0);
                check_reduce(table, simds[simd_], TNI_R_any, &x, mask, 0.0, 0.0);
                check_reduce(table, simds[simd_], TNI_R_all, &x, mask, 0.0, 0.0);
            }
            free_blocks();
        }
}
END_TEST

/* Three million terms of one sign: f32 sums stay within a few units of the last place. */
START_TEST(sums_are_accurate)
{
    const int64_t size[] = { 3000000 };
    const int64_t one[] = { 1 };
    tni_array x = array(TN_F32, 1, size, DENSE);
    tni_array y = array(TN_F32, 1, one, DENSE);
    double sum = 0.0;

    randomise(&x, 0.0, 1.0);
    for (int64_t i = 0; i < size[0]; i++) sum += get(&x, i);
    FOR_SIMDS (table) {
        assert_ok(table->reduce(&(tni_reduce){ .function = TNI_R_sum, .y = y, .x = x }));
        ck_assert_double_le(ulps(get(&y, 0), sum, 24, -125), 2.0);
    }
    free_blocks();
}
END_TEST

START_TEST(extremes_and_running_sums)
{
    FOR_SIMDS (table)
        for (int s = 1; s < N_SIZES; s++)
            for (int layout = 0; layout < N_LAYOUTS; layout++) {
                for (int axis = 0; axis < 2; axis++)
                    for (int flip = 0; flip < 2; flip++) {
                        int64_t size[] = { axis ? 5 : sizes[s], axis ? sizes[s] : 5 };
                        int64_t out[] = { axis ? 5 : 1, axis ? 1 : 5 };
                        int64_t n = sizes[s];
                        tn_dtype dtype = s % 2 ? TN_F32 : TN_I32;
                        tni_array x = array(dtype, 2, size, layout);
                        tni_array value = array(dtype, 2, out, DENSE);
                        tni_array index = array(TN_I64, 2, out, DENSE);
                        tni_array y = array(dtype, 2, size, GAPS);
                        randomise(&x, -9.0, 9.0); /* integers: with ties */
                        assert_ok(table->arg_reduce(&(tni_arg_reduce){ .largest = flip,
                                                                       .value = value,
                                                                       .index = index,
                                                                       .x = x,
                                                                       .axis = axis }));
                        assert_ok(table->cumsum(
                            &(tni_cumsum){ .y = y, .x = x, .axis = axis, .reverse = flip }));
                        for (int64_t line = 0; line < 5; line++) {
                            int64_t at = line * x.stride[1 - axis];
                            int64_t best = 0;
                            double sum = 0.0;
                            for (int64_t k = 0; k < n; k++) {
                                int64_t i = flip ? n - 1 - k : k;
                                double v = get(&x, at + k * x.stride[axis]);
                                double b = get(&x, at + best * x.stride[axis]);
                                if (flip ? v > b : v < b) best = k;
                                sum += get(&x, at + i * x.stride[axis]);
                                check("cumsum", simds[simd_], &y,
                                      axis ? line * n + i : i * 5 + line, sum, 1e-5);
                            }
                            check("index", simds[simd_], &index, line, (double)best, 0.0);
                            check("value", simds[simd_], &value, line,
                                  get(&x, at + best * x.stride[axis]), 0.0);
                        }
                        free_blocks();
                    }
            }
}
END_TEST

/* ---- the same bits for any number of threads ------------------------------------------------- */

START_TEST(bits_for_any_threads)
{
    const int64_t size[] = { 301, 1027 };
    tni_array x = array(TN_F32, 2, size, DENSE);
    tni_array wide = array(TN_F64, 2, size, DENSE); /* sums of f32 would round away a difference */
    tni_array t = x;

    randomise(&x, -1.0, 1.0);
    randomise(&wide, -1.0, 1.0);
    t.size[0] = size[1];
    t.size[1] = size[0];
    t.stride[0] = 1;
    t.stride[1] = size[1];
    FOR_SIMDS (table) {
        static const int64_t outs[3][2] = { { 1, 1 }, { 1, 1027 }, { 301, 1 } };
        void *first[6] = { NULL };
        for (int threads = 1; threads <= 4; threads++) {
            tni_array y[6];
            assert_ok(tn_set_num_threads(threads));
            y[0] = array(TN_F32, 2, size, DENSE);
            assert_ok(table->unary(&(tni_unary){ .function = TNI_U_gelu, .y = y[0], .x = x }));
            y[1] = array(TN_F32, 2, t.size, DENSE);
            assert_ok(table->copy(&(tni_copy){ .y = y[1], .x = t }));
            for (int k = 0; k < 3; k++) {
                y[2 + k] = array(TN_F64, 2, outs[k], DENSE);
                assert_ok(table->reduce(&(tni_reduce){
                    .function = TNI_R_var, .y = y[2 + k], .x = wide, .p = (double[]){ 1.0 } }));
            }
            y[5] = array(TN_F32, 2, size, DENSE);
            assert_ok(
                table->cumsum(&(tni_cumsum){ .y = y[5], .x = x, .axis = 0, .reverse = false }));
            for (int k = 0; k < 6; k++) {
                size_t bytes = (size_t)count(&y[k]) * tn_dtype_size(y[k].dtype);
                if (threads == 1)
                    first[k] = y[k].data;
                else
                    ck_assert_msg(!memcmp(first[k], y[k].data, bytes), "%s, kernel %d, %d threads",
                                  simds[simd_], k, threads);
            }
        }
    }
    ck_assert_int_eq(tn_num_threads(), 4);
    ck_assert(tn_set_num_threads(0) == TN_E_INVALID);
    tn_error_clear();
}
END_TEST

START_TEST(simd_choice)
{
    ck_assert_ptr_nonnull(tni_cpu_table("baseline"));
    ck_assert_ptr_null(tni_cpu_table("abacus"));
    ck_assert_ptr_eq(tni_cpu_table(tni_cpu_simd()), tni_cpu_backend());
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("math");
    TCase *functions_case = test_case(suite, "functions");
    TCase *kernels = test_case(suite, "kernels");

    tcase_add_loop_test(functions_case, ulp_bounds_f32, 0, 6);
    tcase_add_loop_test(functions_case, ulp_bounds_f64, 0, 6);
    add_tests(functions_case, exp_part_f32, gelu_f32, gelu_tanh_f32, special_values, half_floats);
    add_tests(kernels, unary_rows, binary_rows, bf16_is_f32_rounded, ternary_rows, integers, copies,
              transpositions, fills, reductions, long_reductions, integer_reductions,
              sums_are_accurate, extremes_and_running_sums, bits_for_any_threads, simd_choice);
    return suite;
}
