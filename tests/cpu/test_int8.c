/*
 * test_int8.c - the kernel of products with a weight of bytes, for every instruction set, against
 * loops in f64; a row's bits alone and among others, on one thread and on several.
 *
 * Seen to fail: bytes taken as unsigned, the last group's scale for all of a row, an output's tail
 * left out, the bias added for each part of the inner axis, tiles of columns with the first tile's
 * weights (all src/tensor/cpu/dense/int8.c).
 */
#include "numbers.h"
#include "tensor/cpu/cpu.h"

static const char *const isas[] = { "baseline", "avx2", "avx512" };

typedef struct problem {
    tni_linear_int8 a;
    double *truth, *size; /* [m, n], and sums of |terms| */
} problem;

static tni_array array(tn_dtype dtype, int rank, int64_t rows, int64_t columns)
{
    tni_array x = { .dtype = dtype, .rank = rank, .size = { rows, columns } };
    x.stride[0] = rank == 1 ? 1 : columns, x.stride[1] = 1;
    x.data = guarded(rank == 1 ? rows : rows * columns, tn_dtype_size(dtype));
    return x;
}

static void draw(tni_array *x, double low, double high)
{
    for (int64_t i = 0; i < tni_array_numel(x); i++)
        number_set(x->data, x->dtype, i, number_in(low, high));
}

static double weight(const problem *p, int64_t o, int64_t i)
{
    int64_t at = o * p->a.q.size[1] + i, byte = ((const uint8_t *)p->a.q.data)[at];
    const float *scale = p->a.scale.data;
    return (double)scale[o * p->a.scale.size[1] + i / p->a.group] *
           (double)(byte < 128 ? byte : byte - 256);
}

static problem problem_of(int64_t m, int64_t out, int64_t in, int64_t group, bool turned,
                          tn_dtype dtype)
{
    problem p = { .a = { .group = group, .turned = turned } };
    int64_t k = turned ? out : in, n = turned ? in : out;
    p.a.y = array(dtype, 2, m, n);
    p.a.x = array(dtype, 2, m, k);
    p.a.q = array(TN_U8, 2, out, in);
    p.a.scale = array(TN_F32, 2, out, (in - 1) / group + 1);
    draw(&p.a.x, -1, 1);
    draw(&p.a.q, 0, 255.99);
    draw(&p.a.scale, 0.001, 0.1);
    if (!turned) draw((p.a.bias = array(dtype, 1, n, 0), &p.a.bias), -1, 1);
    p.truth = guarded(m * n, sizeof(double));
    p.size = guarded(m * n, sizeof(double));
    for (int64_t r = 0; r < m; r++)
        for (int64_t s = 0; s < n; s++) {
            double sum = turned ? 0 : number_get(p.a.bias.data, dtype, s), size = fabs(sum);
            for (int64_t i = 0; i < k; i++) {
                double w = turned ? weight(&p, i, s) : weight(&p, s, i);
                sum += w * number_get(p.a.x.data, dtype, r * k + i);
                size += fabs(w * number_get(p.a.x.data, dtype, r * k + i));
            }
            p.truth[r * n + s] = sum, p.size[r * n + s] = size;
        }
    return p;
}

static void is_right(const problem *p, const char *isa)
{
    const tni_backend *table = tni_cpu_table(isa);
    assert_ok(table->linear_int8(&p->a));
    tn_dtype dtype = p->a.y.dtype;
    double unit = dtype == TN_F64 ? 0x1p-50 : 0x1p-21;
    for (int64_t i = 0; i < tni_array_numel(&p->a.y); i++) {
        double y = number_get(p->a.y.data, dtype, i);
        double most = unit * p->size[i] + (tni_is_half(dtype) ? 0x1p-8 * fabs(p->truth[i]) : 0);
        ck_assert_msg(fabs(y - p->truth[i]) <= most,
                      "%s, %s, [%d,%d] of [%d,%d]%s: element %d is %.9g, not %.9g", isa,
                      tn_dtype_name(dtype), (int)p->a.y.size[0], (int)p->a.y.size[1],
                      (int)p->a.q.size[0], (int)p->a.q.size[1], p->a.turned ? " turned" : "",
                      (int)i, y, p->truth[i]);
    }
}

/* Rows of x, outputs, inputs, group: tails of vectors, groups, four outputs and tiles. */
static const int64_t sizes[][4] = { { 1, 1, 1, 16 },     { 1, 4, 16, 16 },    { 1, 7, 33, 16 },
                                    { 2, 5, 100, 32 },   { 3, 9, 129, 64 },   { 4, 8, 64, 128 },
                                    { 5, 6, 200, 32 },   { 7, 13, 47, 16 },   { 16, 10, 96, 32 },
                                    { 17, 10, 96, 32 },  { 17, 131, 70, 16 }, { 40, 259, 513, 64 },
                                    { 516, 40, 65, 16 }, { 1, 300, 700, 64 } };
enum { N_SIZES = sizeof sizes / sizeof *sizes, N_DTYPES = 4 };

START_TEST(int8_products_are_the_loops)
{
    static const tn_dtype dtypes[N_DTYPES] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
    const int64_t *s = sizes[_i / 2];
    for (int d = 0; d < N_DTYPES; d++) {
        problem p = problem_of(s[0], s[1], s[2], s[3], _i % 2, dtypes[d]);
        for (int i = 0; i < 3; i++)
            if (tni_cpu_table(isas[i])) is_right(&p, isas[i]);
        guarded_free(0);
    }
}
END_TEST

/* Of a product with m rows, computed by so many threads, row `row`. */
static tn_tensor *row_of(tn_tensor *x, tn_tensor *const *w, int threads, int64_t row)
{
    assert_ok(tn_set_num_threads(threads));
    tn_tensor *y = tn_linear_int8(x, w[0], w[1], TN_NONE);
    return tn_narrow(y, 0, row, 1);
}

START_TEST(int8_rows_do_not_depend_on_others_nor_on_threads)
{
    tn_tensor *q = tn_to_dtype(tn_mul_scalar(tn_rand(TN_SHAPE(203, 300)), 256), TN_U8);
    tn_tensor *w[] = { q, tn_rand(TN_SHAPE(203, 5)) };
    tn_tensor *x = tn_sub_scalar(tn_rand(TN_SHAPE(600, 300)), 0.5);
    for (int64_t m = 2; m <= 16; m++)
        for (int64_t r = 0; r < m; r++) {
            tn_tensor *alone = row_of(tn_narrow(x, 0, r, 1), w, 1, 0);
            assert_close(row_of(tn_narrow(x, 0, 0, m), w, 1 + (int)(r % 3), r), alone, 0, 0);
        }
    for (int64_t r = 0; r < 600; r += 599)
        assert_close(row_of(x, w, 3, r), row_of(x, w, 1, r), 0, 0);
}
END_TEST

static tn_tensor *checked(tn_tensor **in, void *user)
{
    tn_tensor **w = user;
    return tn_linear_int8(in[0], w[0], w[1], in[1]);
}

START_TEST(int8_gradients_are_the_differences)
{
    tn_tensor *q = tn_to_dtype(tn_mul_scalar(tn_rand(TN_SHAPE(5, 37)), 256), TN_U8);
    tn_tensor *w[] = { q, tn_mul_scalar(tn_rand(TN_SHAPE(5, 3)), 0.01) };
    tn_tensor *in[] = { tn_to_dtype(tn_rand(TN_SHAPE(2, 3, 37)), TN_F64),
                        tn_to_dtype(tn_rand(TN_SHAPE(5)), TN_F64) };
    for (int i = 0; i < 2; i++) assert_ok(tn_set_requires_grad(in[i] = tn_detach(in[i]), true));
    assert_ok(tn_gradcheck(checked, in, 2, w, (tn_gradcheck_options){ .second = true }));
    ck_assert(!tn_requires_grad(tn_linear_int8(tn_detach(in[0]), w[0], w[1], TN_NONE)));
}
END_TEST

/* Under autocast x is rounded to bf16, as tn_linear's is; the scales are not. */
START_TEST(int8_autocasts_x_alone)
{
    tn_tensor *q = tn_to_dtype(tn_mul_scalar(tn_rand(TN_SHAPE(6, 40)), 256), TN_U8);
    tn_tensor *scale = tn_rand(TN_SHAPE(6, 3)), *x = tn_rand(TN_SHAPE(3, 40)), *y = NULL;
    TN_AUTOCAST(TN_BF16) y = tn_linear_int8(x, q, scale, tn_ones(TN_SHAPE(6)));
    ck_assert_int_eq(tn_dtype_of(y), TN_BF16);
    assert_close(y, tn_linear_int8(tn_to_dtype(x, TN_BF16), q, scale, tn_ones(TN_SHAPE(6))), 0, 0);
    ck_assert(difference(y,
                         tn_linear_int8(tn_to_dtype(x, TN_BF16), q, tn_to_dtype(scale, TN_BF16),
                                        tn_ones(TN_SHAPE(6))),
                         0, 0));
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("int8");
    TCase *t = test_case(suite, "int8");
    tcase_add_loop_test(t, int8_products_are_the_loops, 0, 2 * N_SIZES);
    add_tests(t, int8_rows_do_not_depend_on_others_nor_on_threads,
              int8_gradients_are_the_differences, int8_autocasts_x_alone);
    return suite;
}
