/*
 * test_random.c - random numbers: PyTorch's stream and draw order (SEMANTICS RN-01..RN-07),
 * generators, their state.
 *
 * Golden values: tests/tensor/torch_cases.py. Bit for bit where only integers, products and one
 * rounding are involved; normals within 2.4e-7 of |x| + 1, where logarithm and sine differ between
 * libraries.
 *
 * Seen to fail: in src/tensor/random.c, the tail of a normal fill not drawn anew; fmaf split into a
 * product and a sum; in random.h, the tempering mask 0x9d2c5680 written as 0x9d2c5600.
 */
#include "files.h"

#include <stdlib.h>

#include "random_cases.h"
#include "tensor/random.h"

/* t holds exactly these values of its own dtype */
#define assert_bits(t, array)                                                                      \
    do {                                                                                           \
        tn_tensor *bits_ = (t);                                                                    \
        assert_made(bits_);                                                                        \
        ck_assert_int_eq(tn_numel(bits_), COUNT(array));                                           \
        ck_assert_msg(memcmp(tn_data(bits_), array, sizeof array) == 0, "%s is not %s", #t,        \
                      #array);                                                                     \
    } while (0)

#define assert_normals(t, array, tolerance)                                                        \
    do {                                                                                           \
        tn_tensor *normals_ = (t);                                                                 \
        assert_made(normals_);                                                                     \
        ck_assert_int_eq(tn_numel(normals_), COUNT(array));                                        \
        for (int64_t i_ = 0; i_ < COUNT(array); i_++)                                              \
            ck_assert_double_eq_tol(tn_at(normals_, &i_, 1), (array)[i_],                          \
                                    (tolerance) * (1 + fabs((double)(array)[i_])));                \
    } while (0)

static tn_tensor *made_by(tn_tensor *t, tn_status status)
{
    return status == TN_OK ? t : NULL;
}

START_TEST(mt19937_words)
{
    /* seed 5489: the 10,000th word is fixed by the C++ standard (rand.predef); the first ones of 42
     * are NumPy's and PyTorch's */
    tn_generator *g = tn_generator_new(5489);
    uint32_t word = 0;
    for (int i = 0; i < 10000; i++) word = tn_generator_u32(g);
    ck_assert_uint_eq(word, 4123659995u);
    tn_generator_seed(g, 42);
    ck_assert_uint_eq(tn_generator_u32(g), 1608637542u);
    ck_assert_uint_eq(tn_generator_u32(g), 3421126067u);
    tn_generator_free(g);
    tn_generator_free(NULL);
}
END_TEST

START_TEST(RN_01_uniform)
{
    tn_manual_seed(42);
    assert_bits(tn_rand(TN_SHAPE(7)), rand_f32);
    tn_manual_seed(42);
    tn_tensor *t = tn_rand(TN_SHAPE(2003));
    assert_bits(tn_slice(t, 0, 2000, 2003, 1), rand_after_2000);
    tn_manual_seed((UINT64_C(1) << 40) + 7);
    assert_bits(tn_rand(TN_SHAPE(3)), rand_seed_2_40);
    assert_ok(tn_set_default_dtype(TN_F64));
    tn_manual_seed(42);
    assert_bits(tn_rand(TN_SHAPE(7)), rand_f64);
    assert_ok(tn_set_default_dtype(TN_F32));
}
END_TEST

START_TEST(RN_01_ranged_uniform)
{
    tn_tensor *t = tn_zeros(TN_SHAPE(11));
    tn_manual_seed(42);
    assert_bits(made_by(t, tn_uniform_(t, -0.1, 0.3)), uniform_f32);
    t = tn_full_as(TN_SHAPE(5), 0, TN_F64, tn_cpu());
    tn_manual_seed(42);
    assert_bits(made_by(t, tn_uniform_(t, -0.1, 0.3)), uniform_f64);
    t = tn_full_as(TN_SHAPE(5), 0, TN_BF16, tn_cpu());
    tn_manual_seed(42);
    assert_normals(made_by(t, tn_uniform_(t, -1, 1)), uniform_bf16, 1e-15);
    assert_ok(tn_uniform_(t, 2, 2));
    ck_assert_double_eq(tn_at(t, TN_INDEX(4)), 2);
}
END_TEST

START_TEST(RN_02_normal_blocks)
{
    tn_manual_seed(42);
    assert_normals(tn_randn(TN_SHAPE(16)), randn_16, 2.4e-7);
    tn_manual_seed(42);
    assert_normals(tn_randn(TN_SHAPE(37)), randn_37, 2.4e-7);
    tn_tensor *t = tn_zeros(TN_SHAPE(20));
    tn_manual_seed(42);
    assert_normals(made_by(t, tn_normal_(t, 2, 3)), normal_20, 2.4e-7 * 3);
    assert_ok(tn_set_default_dtype(TN_F64));
    tn_manual_seed(42);
    assert_normals(tn_randn(TN_SHAPE(37)), randn_37_f64, 1e-15);
    assert_ok(tn_set_default_dtype(TN_F32));
}
END_TEST

/* What a draw of bf16 or f16 gave, and two numbers drawn after it, which tell how many words it
 * took. */
static void assert_drawn_and_two(tn_tensor *drawn, const double *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ck_assert_double_eq(tn_at(drawn, &i, 1), want[i]);
    tn_tensor *after = tn_rand(TN_SHAPE(2));
    for (int64_t i = 0; i < 2; i++) ck_assert_double_eq(tn_at(after, &i, 1), want[n + i]);
}

/* Where the number is no multiple of 16, bf16 and f16 draw less than f32 before the last 16. */
START_TEST(RN_02_normal_blocks_of_short_floats)
{
    tn_manual_seed(42);
    assert_drawn_and_two(tn_randn_as(TN_SHAPE(20), TN_BF16, tn_cpu()), randn_20_bf16, 20);
    tn_manual_seed(42);
    assert_drawn_and_two(tn_randn_as(TN_SHAPE(35), TN_F16, tn_cpu()), randn_35_f16, 35);
    tn_tensor *t = tn_full_as(TN_SHAPE(5, 7), 0, TN_F16, tn_cpu());
    tn_manual_seed(42);
    assert_ok(tn_normal_(t, 0, 1));
    assert_drawn_and_two(tn_reshape(t, TN_SHAPE(35)), randn_35_f16, 35);
    tn_manual_seed(42);
    assert_ok(tn_init_normal(t, 0, 1));
    assert_drawn_and_two(tn_reshape(t, TN_SHAPE(35)), randn_35_f16, 35);
}
END_TEST

/* The end of the range counts as the dtype has it, which may be above what was asked for. */
START_TEST(RN_08_uniform_reaches_the_rounded_end)
{
    tn_tensor *t = tn_full_as(TN_SHAPE(COUNT(uniform_end_f16)), 0, TN_F16, tn_cpu());
    tn_manual_seed(42);
    assert_normals(made_by(t, tn_uniform_(t, 0.1, 0.1003)), uniform_end_f16, 1e-15);
    t = tn_full_as(TN_SHAPE(64, 300), 0, TN_BF16, tn_cpu());
    tn_manual_seed(1);
    assert_ok(tn_init_kaiming_uniform(t, 0, false, TN_NL_LINEAR));
    double end = tn_item(tn_to_dtype(tn_scalar(0.1), TN_BF16)); /* sqrt(3 / 300) */
    ck_assert_double_eq(tn_item(tn_any(tn_ge_scalar(t, end), NULL, 0, false)), 0);
    ck_assert_double_eq(tn_item(tn_any(tn_le_scalar(t, -end), NULL, 0, false)), 1);
}
END_TEST

START_TEST(RN_08_uniform_numbers_stay_below_the_end)
{
    tn_dtype dtype = _i ? TN_F16 : TN_BF16;
    tn_manual_seed(1);
    tn_tensor *t = tn_rand_as(TN_SHAPE(100000), dtype, tn_cpu());
    tn_manual_seed(1);
    tn_tensor *u = tn_rand_as(TN_SHAPE(100000), TN_F32, tn_cpu());
    /* what is left of 1 - 2^-9, 1 - 2^-12 and up is 1 */
    tn_tensor *rounded = tn_to_dtype(u, dtype);
    ck_assert_double_eq(tn_item(tn_amax(rounded, NULL, 0, false)), 1);
    ck_assert_double_lt(tn_item(tn_amax(t, NULL, 0, false)), 1);
    /* such a one is 0, the others as they were */
    tn_tensor *reached = tn_eq_scalar(rounded, 1);
    ck_assert_double_eq(tn_max_abs_diff(t, tn_masked_fill(rounded, reached, 0)), 0);
    t = tn_empty_as(TN_SHAPE(100000), dtype, tn_cpu());
    assert_ok(tn_uniform_(t, -3, 3));
    ck_assert_double_lt(tn_item(tn_amax(t, NULL, 0, false)), 3);
    ck_assert_double_ge(tn_item(tn_amin(t, NULL, 0, false)), -3);
    assert_ok(tn_uniform_(t, 2, 2));
    ck_assert_double_eq(tn_item(tn_amin(t, NULL, 0, false)), 2);
}
END_TEST

/* PyTorch 2.15's drawing of truncated normals, value by value, from the same stream. */
static void truncated(double *x, int n, double mean, double deviation, double low, double high,
                      bool normal)
{
    double top = (fmax(low, fmin(mean, high)) - mean) / deviation;
    bool pending[64], any = true;
    for (int i = 0; i < n; i++) pending[i] = true;
    while (any) {
        tn_tensor *fresh = tn_empty_as(TN_SHAPE(n), TN_F64, tn_cpu());
        assert_ok(normal ? tn_normal_(fresh, mean, deviation) : tn_uniform_(fresh, low, high));
        tn_tensor *u = tn_empty_as(TN_SHAPE(n), TN_F64, tn_cpu());
        if (!normal) assert_ok(tn_uniform_(u, 0, 1));
        any = false;
        for (int64_t i = 0; i < n; i++) {
            if (!pending[i]) continue;
            x[i] = tn_at(fresh, &i, 1);
            double z = (x[i] - mean) / deviation;
            pending[i] = normal ? x[i] < low || x[i] > high
                                : log(tn_at(u, &i, 1)) > -0.5 * z * z + 0.5 * top * top;
            any |= pending[i];
        }
    }
}

START_TEST(TR_01_truncated_normals_are_drawn_by_refusing)
{
    static const struct {
        double mean, deviation, low, high;
        bool normal; /* more than 0.3 lies inside */
    } cuts[] = { { 0.5, 2, -1, 2, true },
                 { 0, 1, -2, 2, true },
                 { 0, 1, 1, 3, false },
                 { 0, 1, -50, -49, false } };
    for (int k = 0; k < COUNT(cuts); k++) {
        tn_tensor *t = tn_empty_as(TN_SHAPE(5, 8), TN_F64, tn_cpu());
        tn_manual_seed(7);
        assert_ok(tn_init_truncated_normal(t, cuts[k].mean, cuts[k].deviation, cuts[k].low,
                                           cuts[k].high));
        tn_manual_seed(7);
        double want[40];
        truncated(want, 40, cuts[k].mean, cuts[k].deviation, cuts[k].low, cuts[k].high,
                  cuts[k].normal);
        for (int64_t i = 0; i < 40; i++)
            ck_assert_double_eq_tol(tn_at(t, TN_INDEX(i / 8, i % 8)), want[i], 1e-12);
    }
    /* cuts that hardly any uniform number passes terminate too, and hold: erf(y / sqrt 2) = u */
    tn_tensor *t = tn_empty_as(TN_SHAPE(1000), TN_F64, tn_cpu()), *u = tn_empty_like(t);
    tn_manual_seed(7);
    assert_ok(tn_init_truncated_normal(t, 0, 1, 3, 1e9));
    tn_manual_seed(7);
    assert_ok(tn_uniform_(u, erf(3 * M_SQRT1_2), 1));
    for (int64_t i = 0; i < 1000; i++) {
        const double y = tn_at(t, TN_INDEX(i));
        ck_assert(y >= 3 && y < 9);
        ck_assert_double_eq_tol(erf(y * M_SQRT1_2), tn_at(u, TN_INDEX(i)), 1e-14);
    }
    assert_ok(tn_init_truncated_normal(t, 0, 1, 3, INFINITY));
    ck_assert_double_ge(tn_item(tn_amin(t, NULL, 0, false)), 3);
    assert_fails(tn_init_truncated_normal(t, NAN, 1, 3, 4), TN_E_INVALID, "mean nan");
    assert_fails(tn_init_truncated_normal(t, 0, INFINITY, 3, 4), TN_E_INVALID, "deviation inf");
}
END_TEST

START_TEST(RN_03_normal_pairs)
{
    tn_manual_seed(42);
    assert_normals(tn_randn(TN_SHAPE(4)), randn_4, 2.4e-7);
    /* an odd number leaves a sine for the next call; a new seed forgets it */
    tn_manual_seed(42);
    tn_tensor *a = tn_randn(TN_SHAPE(3));
    tn_tensor *b = tn_randn(TN_SHAPE(3));
    tn_tensor *both = tn_empty(TN_SHAPE(6));
    for (int i = 0; i < 3; i++) {
        ((float *)tn_data_mut(both))[i] = ((const float *)tn_data(a))[i];
        ((float *)tn_data_mut(both))[i + 3] = ((const float *)tn_data(b))[i];
    }
    assert_normals(both, randn_3_then_3, 2.4e-7);
    tn_randn(TN_SHAPE(1));
    tn_manual_seed(42);
    assert_normals(tn_randn(TN_SHAPE(4)), randn_4, 2.4e-7);
    tn_tensor *t = tn_zeros(TN_SHAPE(5));
    tn_manual_seed(42);
    assert_normals(made_by(t, tn_normal_(t, 2, 3)), normal_5, 2.4e-7 * 3);
}
END_TEST

START_TEST(RN_04_bernoulli)
{
    tn_manual_seed(42);
    assert_bits(tn_bernoulli(TN_SHAPE(12), 0.3), bernoulli_12);
    assert_values(tn_bernoulli(TN_SHAPE(3), 0), 0, 0, 0, 0);
    assert_values(tn_bernoulli(TN_SHAPE(3), 1), 0, 1, 1, 1);
    assert_null(tn_bernoulli(TN_SHAPE(3), 1.5), TN_E_INVALID, "tn_bernoulli: p 1.5");
    assert_null(tn_bernoulli(TN_SHAPE(3), NAN), TN_E_INVALID, "tn_bernoulli: p nan");
}
END_TEST

START_TEST(RN_05_whole_numbers)
{
    tn_manual_seed(42);
    assert_bits(tn_randperm(8), randperm_8);
    tn_manual_seed(42);
    assert_bits(tn_randint(0, 10, TN_SHAPE(8)), randint_10);
    tn_manual_seed(42);
    assert_bits(tn_randint(-5, 6, TN_SHAPE(8)), randint_signed);
    tn_manual_seed(42);
    assert_bits(tn_randint(0, INT64_C(1) << 28, TN_SHAPE(4)), randint_28);
    tn_manual_seed(42);
    assert_bits(tn_randint(-(INT64_C(1) << 62), INT64_C(1) << 62, TN_SHAPE(4)), randint_wide);
    ck_assert_int_eq(tn_numel(tn_randperm(0)), 0);
    assert_values(tn_randperm(1), 0, 0);
    assert_made(tn_randint(INT64_MIN, INT64_MAX, TN_SHAPE(9)));
    assert_null(tn_randint(3, 3, TN_SHAPE(2)), TN_E_INVALID, "tn_randint: from 3 to 3");
    assert_null(tn_randperm(-1), TN_E_INVALID, "tn_randperm: size -1");
}
END_TEST

/* The numbers of the functions that take a shape. */
START_TEST(like_another_tensor)
{
    tn_tensor *t = tn_full_as(TN_SHAPE(3, 8), 0, TN_F64, tn_cpu()), *u8 = tn_to_dtype(t, TN_U8);
    t = tn_transpose(t, 0, 1);
    tn_manual_seed(42);
    tn_tensor *y = tn_rand_like(t), *z = tn_randn_like(t), *n = tn_randint_like(u8, 5, 256);
    tn_manual_seed(42);
    assert_close(y, tn_rand_as(TN_SHAPE(8, 3), TN_F64, tn_cpu()), 0, 0);
    assert_close(z, tn_randn_as(TN_SHAPE(8, 3), TN_F64, tn_cpu()), 0, 0);
    assert_close(n, tn_randint(5, 256, TN_SHAPE(3, 8)), 0, 0);
    ck_assert_int_eq(tn_dtype_of(n), TN_U8);
    ck_assert_int_eq(tn_dtype_of(tn_randint_like(t, -2, 3)), TN_F64);
    assert_made(tn_randint_like(tn_randint(0, 2, TN_SHAPE(2)), INT64_MIN, INT64_MAX));
    assert_null(tn_rand_like(u8), TN_E_DTYPE, "tn_rand_like: u8: want a floating dtype");
    assert_null(tn_randn_like(u8), TN_E_DTYPE, "tn_randn_like: u8");
    assert_null(tn_randint_like(u8, 0, 257), TN_E_INVALID, "numbers that u8 can hold");
    assert_null(tn_randint_like(u8, 3, 3), TN_E_INVALID, "from 3 to 3: want low < high");
}
END_TEST

START_TEST(RN_05_permutation_is_one)
{
    enum { N = 1000 };
    int64_t perm[N], seen[N] = { 0 };
    tn_generator *g = tn_generator_new(3);
    tn_generator_permutation(g, N, perm);
    for (int i = 0; i < N; i++) {
        ck_assert(perm[i] >= 0 && perm[i] < N);
        seen[perm[i]]++;
    }
    for (int i = 0; i < N; i++) ck_assert_int_eq(seen[i], 1);
    tn_generator_free(g);
}
END_TEST

/* From UINT32_MAX / 20 on (checked once by hand, with n = 214,748,364, against PyTorch) each
 * element goes to a place among those before it, drawn from two words. */
START_TEST(RN_05_long_permutation)
{
    enum { N = 100 };
    int64_t perm[N], want[N];
    tn_generator *g = tn_generator_new(3), *same = tn_generator_new(3);
    tni_draw_permutation(g, N, perm, N);
    for (int64_t i = 0; i < N; i++) {
        uint64_t word = tn_generator_u32(same);
        word = word << 32 | tn_generator_u32(same);
        int64_t j = (int64_t)(word % (uint64_t)(i + 1));
        want[i] = j < i ? want[j] : i;
        want[j] = i;
    }
    ck_assert(memcmp(perm, want, sizeof perm) == 0);
    tni_draw_permutation(g, N, perm, N + 1);
    tn_generator_permutation(same, N, want);
    ck_assert(memcmp(perm, want, sizeof perm) == 0);
    tn_generator_free(g);
    tn_generator_free(same);
}
END_TEST

START_TEST(RN_06_seed_42)
{
    tn_manual_seed(42);
    assert_values(tn_rand(TN_SHAPE(4)), 5e-9, .882269263, .915003955, .38286376, .959305644);
    tn_manual_seed(42);
    assert_values(tn_randn(TN_SHAPE(4)), 2.4e-7, .336690366, .128809407, .234462366, .23033303);
    tn_manual_seed(42);
    assert_values(tn_randperm(8), 0, 6, 3, 0, 7, 2, 1, 4, 5);
    /* Linear(2,2): weight U(+-1/sqrt 2), then bias */
    double bound = 1 / sqrt(2);
    tn_tensor *weight = tn_zeros(TN_SHAPE(2, 2));
    tn_tensor *bias = tn_zeros(TN_SHAPE(2));
    tn_manual_seed(42);
    assert_ok(tn_uniform_(weight, -bound, bound));
    assert_ok(tn_uniform_(bias, -bound, bound));
    assert_values(weight, 5e-9, .540610373, .586904228, -.165655658, .649556279);
    assert_values(bias, 5e-9, -.154929623, .142687559);
}
END_TEST

START_TEST(strided_targets_draw_row_major)
{
    tn_manual_seed(9);
    tn_tensor *dense = tn_rand(TN_SHAPE(5, 7));
    tn_tensor *t = tn_transpose(tn_zeros(TN_SHAPE(7, 5)), 0, 1);
    uint64_t version = tn_version(t);
    tn_manual_seed(9);
    assert_ok(tn_uniform_(t, 0, 1));
    ck_assert(tn_version(t) == version + 1);
    ck_assert_double_eq(tn_max_abs_diff(t, dense), 0);
    tn_manual_seed(9);
    dense = tn_randn(TN_SHAPE(5, 7));
    tn_manual_seed(9);
    assert_ok(tn_normal_(t, 0, 1));
    ck_assert_double_eq(tn_max_abs_diff(t, dense), 0);
}
END_TEST

START_TEST(in_place_guards)
{
    tn_tensor *t = tn_zeros(TN_SHAPE(3));
    assert_ok(tn_set_requires_grad(t, true));
    ck_assert_int_ne(tn_uniform_(t, 0, 1), TN_OK);
    tn_error_clear();
    ck_assert_int_ne(tn_normal_(t, 0, 1), TN_OK);
    tn_error_clear();
    assert_values(t, 0, 0, 0, 0);
    TN_NO_GRAD
    {
        assert_ok(tn_uniform_(t, 1, 2));
    }
    ck_assert(tn_item(tn_select(tn_detach(t), 0, 0)) >= 1);
    t = tn_from_ints((int64_t[]){ 1, 2 }, TN_SHAPE(2));
    assert_fails(tn_uniform_(t, 0, 1), TN_E_DTYPE, "tn_uniform_: [2] is i64");
    t = tn_zeros(TN_SHAPE(2));
    assert_fails(tn_uniform_(t, 1, 0), TN_E_INVALID, "from 1 to 0");
    assert_fails(tn_uniform_(t, 0, INFINITY), TN_E_INVALID, "finite");
    assert_fails(tn_normal_(t, 0, -1), TN_E_INVALID, "deviation -1");
    assert_fails(tn_uniform_(NULL, 0, 1), TN_E_INVALID, "tn_uniform_: t is NULL");
    assert_ok(tn_uniform_(tn_zeros(TN_SHAPE(0, 4)), 0, 1));
}
END_TEST

START_TEST(moments)
{
    enum { N = 100000 };
    double sum = 0, squares = 0;
    tn_manual_seed(1);
    const float *x = tn_data(tn_randn(TN_SHAPE(N)));
    for (int i = 0; i < N; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
    }
    /* five standard errors */
    ck_assert_double_le(fabs(sum / N), 5 / sqrt(N));
    ck_assert_double_le(fabs(squares / N - 1), 5 * sqrt(2.0 / N));
}
END_TEST

START_TEST(generators_are_independent)
{
    tn_generator *g = tn_generator_new(42);
    tn_manual_seed(42);
    tn_rand(TN_SHAPE(100));
    ck_assert_uint_eq(tn_generator_u32(g), 1608637542u);
    ck_assert_ptr_eq(tn_default_generator(), tn_default_generator());
    tn_manual_seed(42);
    ck_assert_uint_eq(tn_generator_u32(tn_default_generator()), 1608637542u);
    tn_generator_free(tn_default_generator()); /* the library's own: ignored */
    tn_generator_free(g);
}
END_TEST

START_TEST(state_round_trip)
{
    tn_manual_seed(7);
    tn_randn(TN_SHAPE(3)); /* leaves half a pair */
    uint64_t seed, offset;
    tni_philox_take(10, &seed, &offset);
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), state);
    tn_tensor *a = tn_randn(TN_SHAPE(3));
    tn_tensor *b = tn_rand(TN_SHAPE(700));
    tni_philox_take(5, &seed, &offset);
    tn_manual_seed(8);
    assert_ok(tn_generator_set_state(tn_default_generator(), state));
    unsigned char again[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), again);
    ck_assert(memcmp(state, again, sizeof state) == 0);
    ck_assert_double_eq(tn_max_abs_diff(tn_randn(TN_SHAPE(3)), a), 0);
    ck_assert_double_eq(tn_max_abs_diff(tn_rand(TN_SHAPE(700)), b), 0);
    uint64_t seed2, offset2;
    tni_philox_take(5, &seed2, &offset2);
    ck_assert(seed == 7 && seed2 == 7 && offset == 10 && offset2 == 10);
}
END_TEST

START_TEST(state_is_checked)
{
    unsigned char before[TN_GENERATOR_STATE_SIZE];
    tn_generator *g = tn_generator_new(1);
    tn_generator_get_state(g, before);
    struct {
        int at;
        unsigned char byte;
        const char *message;
    } wrong[] = {
        { 0, 'x', "do not begin with" },
        { 8, 2, "version 2" },
        { 12, 0xff, "words used" },
        { 16, 2, "normals" },
    };
    unsigned char state[TN_GENERATOR_STATE_SIZE], after[TN_GENERATOR_STATE_SIZE];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(state, before, sizeof state);
        state[wrong[i].at] = wrong[i].byte;
        assert_fails(tn_generator_set_state(g, state), TN_E_FORMAT, wrong[i].message);
        tn_generator_get_state(g, after);
        ck_assert(memcmp(before, after, sizeof before) == 0);
    }
    assert_fails(tn_generator_set_state(g, NULL), TN_E_INVALID, "bytes");
    assert_fails(tn_generator_set_state(NULL, state), TN_E_INVALID, "g is NULL");
    tn_generator_free(g);
}
END_TEST

START_TEST(philox_counters)
{
    tn_manual_seed(UINT64_C(0x123456789abcdef0));
    uint64_t seed, offset;
    tni_philox_take(3, &seed, &offset);
    ck_assert(seed == UINT64_C(0x123456789abcdef0) && offset == 0);
    tni_philox_take(4, &seed, &offset);
    ck_assert(offset == 3);
    tni_philox_get(&seed, &offset);
    ck_assert(offset == 7);
    tni_philox_set(1, 2);
    tni_philox_get(&seed, &offset);
    ck_assert(seed == 1 && offset == 2);
    /* values do not move the masks' counter, nor a generator of one's own */
    tn_rand(TN_SHAPE(5));
    tn_generator *g = tn_generator_new(3);
    tni_philox_get(&seed, &offset);
    ck_assert(seed == 1 && offset == 2);
    tn_generator_free(g);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("random");
    TCase *t = test_case(suite, "random");
    add_tests(t, mt19937_words, RN_01_uniform, RN_01_ranged_uniform, RN_02_normal_blocks,
              RN_02_normal_blocks_of_short_floats, RN_08_uniform_reaches_the_rounded_end);
    tcase_add_loop_test(t, RN_08_uniform_numbers_stay_below_the_end, 0, 2);
    add_tests(t, TR_01_truncated_normals_are_drawn_by_refusing, RN_03_normal_pairs, RN_04_bernoulli,
              RN_05_whole_numbers, like_another_tensor, RN_05_permutation_is_one,
              RN_05_long_permutation, RN_06_seed_42, strided_targets_draw_row_major,
              in_place_guards, moments, generators_are_independent, state_round_trip,
              state_is_checked, philox_counters);
    return suite;
}
