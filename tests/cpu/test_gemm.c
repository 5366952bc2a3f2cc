/*
 * test_gemm.c - the kernel of matrix products, and our own product below it: compared with the
 * plainest loops in double, over awkward sizes, layouts and dtypes.
 *
 * Seen to fail: in tile.c, sums of the first steps forgotten at the next, a strip's end not
 * packed, vectors read beyond the end of an operand, f16 taken for f32, of few columns a bias that
 * is the first square's, C not added to and sums in another order (tile_edges), a longer inner axis
 * not refused (tile_refuses); in few.c, the last steps left out (few_rows); of squares.c, the
 * last tile multiplied by its neighbour's, a later part's packed B taken for the first's and, not
 * inlined, gcc 12's assignments to a tile configuration (amx_edges), of f32 any of the six products
 * left out, parts cut off in place of rounded, sums that are not finite left so, or computed from
 * other rows or columns, or from beyond the end (amx_f32_*); in cut.c, the same of parts, and in
 * choose.c f32 packed for AMX and read by tile.c, or the other way round (packed_before, with AMX
 * emulated); in small.c, C not added to, a bias that stays, a batch's or a row's stride forgotten,
 * the last strip written where the one before ends (gemm_small).
 */
#include "numbers.h"
#include "products.h"

#include <float.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "tensor/cpu/dense/dense.h"
#include "tensor/math.h"

static const int64_t awkward[] = { 0, 1, 7, 33, 257 };
enum { N_AWKWARD = 5 };

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Random numbers at the end of memory, so that nothing beyond them can be read or written. */
static void *filled(tn_dtype dtype, int64_t n, uint64_t seed)
{
    void *p = guarded(n, tn_dtype_size(dtype));
    number_seed = seed * 7919 + 1;
    for (int64_t i = 0; i < n; i++) number_set(p, dtype, i, number_in(-0.5, 0.5));
    return p;
}

static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
enum { N_DTYPES = 4 };
/* Half a unit in the last place of a result of 1. */
static const double rounding[] = { 0, 0, 0x1p-8, 0x1p-11 };

typedef tn_status (*multiply)(const tni_gemm *g);

/* The matrix [rows, columns] at x, in doubles and without gaps. The caller frees it. */
static double *dense(const void *x, tn_dtype dtype, int64_t at, int64_t rows, int64_t row,
                     int64_t columns, int64_t column)
{
    double *to = malloc((size_t)(rows * columns + 1) * sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[i * columns + j] = number_get(x, dtype, at + i * row + j * column);
    return to;
}

/* Adds a row of B. It is no kernel, so a sanitizer need not look at it. */
__attribute__((no_sanitize("address", "undefined"), noinline)) static void
add_row(double *sum, double factor, const double *row, int64_t n)
{
    for (int64_t j = 0; j < n; j++) sum[j] += factor * row[j];
}

/* Runs g and compares C with the triple loop. C starts as NaN, or as numbers when it
 * accumulates. */
static void check(multiply f, tni_gemm g, int64_t a_size, int64_t b_size)
{
    int64_t c_size = g.batch * g.c_batch + g.m * g.c_row + g.n + 8;
    tn_dtype out = g.sums_f32 && tn_dtype_size(g.dtype) == 2 ? TN_F32 : g.dtype;
    void *bias = filled(g.dtype, g.n, 3);
    char *c = filled(out, c_size, 4), *before = filled(out, c_size, 4);
    size_t item = tn_dtype_size(out);
    int kind = 0;
    while (dtypes[kind] != out) kind++;
    if (!g.accumulate) {
        memset(c, 0xff, (size_t)c_size * item);
        memset(before, 0xff, (size_t)c_size * item);
    }
    g.a = filled(g.dtype, a_size, 1);
    g.b = filled(g.dtype, b_size, 2);
    g.c = c;
    g.bias = g.bias ? bias : NULL;
    assert_ok(f(&g));
    double tolerance = (g.dtype == TN_F64 ? 1e-15 : 1e-6) * (double)(g.k + 8);
    char *touched = calloc((size_t)c_size, 1);
    double *sum = malloc((size_t)(g.n + 1) * sizeof *sum);
    for (int64_t z = 0; z < g.batch; z++) {
        double *a = dense(g.a, g.dtype, z * g.a_batch, g.m, g.a_row, g.k, g.a_col);
        double *b = dense(g.b, g.dtype, z * g.b_batch, g.k, g.b_row, g.n, g.b_col);
        for (int64_t i = 0; i < g.m; i++) {
            int64_t at = z * g.c_batch + i * g.c_row;
            for (int64_t j = 0; j < g.n; j++) {
                sum[j] = g.accumulate ? number_get(before, out, at + j) : 0;
                if (g.bias) sum[j] += number_get(bias, g.dtype, j);
            }
            for (int64_t k = 0; k < g.k; k++) add_row(sum, a[i * g.k + k], b + k * g.n, g.n);
            for (int64_t j = 0; j < g.n; j++) {
                double got = number_get(c, out, at + j);
                touched[at + j] = 1;
                /* an assertion for each would take most of the time */
                if (fabs(got - sum[j]) <= tolerance + rounding[kind] * fabs(sum[j])) continue;
                ck_abort_msg("%s%s %dx%dx%d batch %d: c[%d,%d,%d] is %.9g, not %.9g",
                             tn_dtype_name(g.dtype), g.sums_f32 ? ", sums in f32," : "", (int)g.m,
                             (int)g.n, (int)g.k, (int)g.batch, (int)z, (int)i, (int)j, got, sum[j]);
            }
        }
        free(a), free(b);
    }
    for (int64_t i = 0; i < c_size; i++)
        if (!touched[i] && memcmp(c + (size_t)i * item, before + (size_t)i * item, item))
            ck_abort_msg("element %d beside C was written", (int)i);
    free(sum), free(touched);
    guarded_free(0);
}

static void check_gemm(tni_gemm g, int64_t a_size, int64_t b_size)
{
    check(tni_cpu_backend()->gemm, g, a_size, b_size);
}

/* One product with dense or transposed operands; rows of C `gap` further apart than they need
 * be. */
static void check_plain(tn_dtype dtype, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                        bool bias, bool accumulate, int64_t gap)
{
    tni_gemm g = { .dtype = dtype, .m = m, .n = n, .k = k, .batch = 1, .accumulate = accumulate };
    g.bias = bias ? "" : NULL;
    g.a_row = ta ? 1 : k;
    g.a_col = ta ? m : 1;
    g.b_row = tb ? 1 : n;
    g.b_col = tb ? k : 1;
    g.c_row = n + gap;
    check_gemm(g, m * k, k * n);
    if (bias || (dtype != TN_BF16 && dtype != TN_F16)) return;
    g.sums_f32 = true;
    check_gemm(g, m * k, k * n);
}

START_TEST(gemm_awkward_sizes)
{
    tn_dtype dtype = dtypes[_i % N_DTYPES];
    int64_t m = awkward[_i / N_DTYPES];
    for (int j = 0; j < N_AWKWARD; j++)
        for (int l = 0; l < N_AWKWARD; l++)
            for (int t = 0; t < 4; t++)
                check_plain(dtype, m, awkward[j], awkward[l], t & 1, t & 2, (j + l + t) & 1,
                            (l + t) & 2, l);
}
END_TEST

/* On both sides of the sizes that are too small for BLAS: a batch of three, layouts, and rows of C
 * with something beside them. */
START_TEST(gemm_small)
{
    static const int64_t columns[] = { 1, 7, 8, 9, 16, 23 };
    int64_t n = columns[_i / 2];
    for (int64_t m = 1; m <= 3; m++)
        for (int64_t k = 0; k <= 5; k++)
            for (int t = 0; t < 16; t++) {
                bool ta = t & 1, tb = t & 2;
                tni_gemm g = { .dtype = dtypes[_i % 2], .m = m, .n = n, .k = k, .batch = 3 };
                g.accumulate = t & 4;
                g.bias = t & 8 ? "" : NULL;
                g.a_row = ta ? 1 : k;
                g.a_col = ta ? m : 1;
                g.a_batch = m * k + 2;
                g.b_row = tb ? 1 : n;
                g.b_col = tb ? k : 1;
                g.b_batch = n * k + 1;
                g.c_row = n + 3;
                g.c_batch = m * g.c_row + 5;
                check_gemm(g, 3 * g.a_batch, 3 * g.b_batch);
            }
}
END_TEST

/* Above the sizes where C is cut into tiles, k into parts, and vectors into pieces. */
static const int64_t large[][3] = {
    { 300, 90, 130 }, { 90, 300, 130 }, { 128, 128, 130 }, { 64, 48, 2050 }, { 100, 30, 4100 },
    { 1, 700, 600 },  { 700, 1, 600 },  { 1, 1, 70000 },   { 2049, 20, 17 }, { 17, 2049, 20 },
};

START_TEST(gemm_large_sizes)
{
    const int64_t *s = large[_i / N_DTYPES];
    for (int t = 0; t < 8; t++)
        check_plain(dtypes[_i % N_DTYPES], s[0], s[1], s[2], t & 1, t & 2, t & 4, t == 3 || t == 5,
                    t == 6 ? 5 : 0);
}
END_TEST

START_TEST(gemm_strides)
{
    for (int d = 0; d < N_DTYPES; d++) {
        tn_dtype dtype = dtypes[d];
        for (int64_t size = 1; size <= 40; size += 13) {
            int64_t m = size + 2;
            int64_t n = size;
            int64_t k = 2 * size - 1;
            tni_gemm g = {
                .dtype = dtype, .m = m, .n = n, .k = k, .batch = 3, .c_row = n, .c_batch = m * n
            };
            /* no unit stride: every second column of every third row */
            g.a_row = 6 * k;
            g.a_col = 2;
            g.a_batch = 6 * k * m;
            g.b_row = 3;
            g.b_col = 3 * k;
            g.b_batch = 3 * k * n;
            check_gemm(g, 6 * k * m * 3, 3 * k * n * 3);
            /* expanded: all rows of A are one row, all columns of B one column */
            g.a_row = 0;
            g.a_col = 1;
            g.a_batch = k;
            g.b_row = 1;
            g.b_col = 0;
            g.b_batch = 0;
            check_gemm(g, 3 * k, k);
            /* overlapping rows: a leading dimension below the row's length */
            g.a_row = 1;
            g.a_col = 1;
            check_gemm(g, 3 * k + m, k);
        }
    }
}
END_TEST

START_TEST(gemm_batches)
{
    tni_gemm g = { .dtype = dtypes[_i], .m = 37, .n = 18, .k = 21, .batch = 40, .c_row = 18 };
    g.a_row = 21;
    g.a_col = 1;
    g.a_batch = 37 * 21;
    g.b_row = 1;
    g.b_col = 21;
    g.b_batch = 18 * 21;
    g.c_batch = 37 * 18;
    check_gemm(g, 40 * 37 * 21, 40 * 18 * 21);
    g.b_batch = 0;
    check_gemm(g, 40 * 37 * 21, 18 * 21);
    g.batch = 5; /* a batch of products that are themselves cut */
    g.m = 150;
    g.k = 120;
    g.a_row = 120;
    g.a_batch = 150 * 120;
    g.b_col = 120;
    g.b_batch = 18 * 120;
    g.c_batch = 150 * 18 + 7;
    check_gemm(g, 5 * 150 * 120, 5 * 18 * 120);
}
END_TEST

/* ---- our own product by itself --------------------------------------------------------------- */

/* Sizes that gemm would cut. With AVX-512 panels have 14 rows, strips 32 columns, blocks 512
 * columns and 384 steps, and from 129 rows on all of B is packed; with AVX2 6 and 16, and from 65
 * rows on, or from 13 where rows of B are a multiple of 4 KiB apart (n of 1,021). */
static const int64_t edges[][3] = {
    { 1, 1, 1 },     { 3, 31, 15 },    { 14, 32, 16 },   { 15, 33, 17 },   { 113, 65, 384 },
    { 29, 97, 385 }, { 127, 513, 40 }, { 129, 40, 40 },  { 130, 544, 20 }, { 16, 70, 1201 },
    { 7, 17, 6 },    { 64, 49, 386 },  { 33, 1021, 10 }, { 7, 9, 48 },     { 4, 28, 64 },
};
enum { N_EDGES = 15 };

/* AMX_EMULATED: the same kernel, compiled for processors without AVX512-BF16 and run over
 * amx/amx.c; of this file that is all then. */
#ifdef AMX_EMULATED
enum { EMULATED = 1 };
bool tni_amx_emulated(const tni_product *p);
void tni_amx_pack_emulated(const tni_product *p, void *to);
#define tni_product_by_amx tni_amx_emulated
#define tni_product_pack tni_amx_pack_emulated
#else
enum { EMULATED = 0 };
#endif

/* The product of a B that is packed before has the same bits; B itself is not read where sums are
 * finite, in its place is A. */
static bool by_packed(tni_product p, bool (*product)(const tni_product *),
                      void (*pack)(const tni_product *, void *), int64_t item)
{
    size_t bytes = (size_t)((p.m - 1) * p.ldc + p.n) * sizeof(float);
    void *packed = filled(TN_BF16, tni_packed_size(p.n, p.k) * item / 2, 5);
    void *plain = malloc(bytes);
    ck_assert_ptr_nonnull(plain);
    memcpy(plain, p.c, bytes);
    tni_product q = p;
    q.c = plain;
    pack(&p, packed);
    p.packed = packed;
    p.b = p.a;
    bool done = product(&p);
    /* of few columns a B that is not packed is summed up in another order */
    bool same = product != tni_tile_product || !tni_tile_few(&q);
    ck_assert(product(&q) == done && (!same || memcmp(p.c, plain, bytes) == 0));
    free(plain);
    return done;
}

static tn_status own(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return tni_tile_product(&p) ? TN_OK : TN_E_UNSUPPORTED;
}

static tn_status own_packed(const tni_gemm *g)
{
    return by_packed(product_of(g), tni_tile_product, tni_tile_pack, sizeof(float))
               ? TN_OK
               : TN_E_UNSUPPORTED;
}

static tn_status by_amx(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return tni_product_by_amx(&p) ? TN_OK : TN_E_UNSUPPORTED;
}

static int64_t amx_item(tn_dtype in)
{
    return (in == TN_F32 ? TNI_AMX_PARTS : 1) * (int64_t)sizeof(uint16_t);
}

static tn_status by_amx_packed(const tni_gemm *g)
{
    return by_packed(product_of(g), tni_product_by_amx, tni_product_pack, amx_item(g->dtype))
               ? TN_OK
               : TN_E_UNSUPPORTED;
}

/* Rows of operands have gaps of 3 between them, and C's gaps of 5. bits: of A and B stored by
 * columns, a bias, and sums added to C. */
static void check_layout(tn_status (*product)(const tni_gemm *), tni_gemm g, int bits)
{
    bool ta = bits & 1, tb = bits & 2;
    g.batch = 1;
    g.bias = bits & 4 ? "" : NULL;
    g.accumulate = bits & 8;
    g.a_row = ta ? 1 : g.k + 3;
    g.a_col = ta ? g.m + 3 : 1;
    g.b_row = tb ? 1 : g.n + 3;
    g.b_col = tb ? g.k + 3 : 1;
    g.c_row = g.n + 5;
    check(product, g, ta ? (g.m + 3) * g.k - 3 : (g.k + 3) * g.m - 3,
          tb ? (g.k + 3) * g.n - 3 : (g.n + 3) * g.k - 3);
}

START_TEST(tile_edges)
{
    static const tn_dtype in[] = { TN_F32, TN_BF16, TN_BF16, TN_F16, TN_F16 };
    const int64_t *size = edges[_i];
    if (!tni_has_tiles()) return; /* baseline has none */
    for (int d = 0; d < 5; d++)
        for (int bits = 0; bits < 16; bits++) {
            bool wide = d % 2;
            if (bits & 8 && (bits & 4 || (d && !wide))) continue;
            tni_gemm g = { in[d], size[0], size[1], size[2], .sums_f32 = wide };
            check_layout(own, g, bits);
            if (d == 0) check_layout(own_packed, g, bits);
        }
}
END_TEST

/* Few rows by a B that is stored by columns: squares of 4 rows or 2 by 4 columns, of whole vectors
 * of steps and of what is left. */
static tn_status few(const tni_gemm *g)
{
    tni_product p = product_of(g);
    ck_assert(tni_few_fits(g->dtype, p.ta, p.tb, p.m, p.n, p.k));
    return tni_product_one(&p) ? TN_OK : TN_E_UNSUPPORTED;
}

START_TEST(few_rows)
{
    static const int64_t n[] = { 16, 17, 19, 70 }, k[] = { 1030, 1041, 2064, 3071 };
    static const tn_dtype in[] = { TN_F32, TN_BF16, TN_BF16 };
    const int64_t m = _i + 1;
    if (!tni_has_tiles() || (m > 4 && tni_has_amx())) return;
    for (int i = 0; i < 12; i++)
        for (int bits = 2; bits < 16; bits += 4) {
            const int d = i % 3;
            if (bits & 8 && (bits & 4 || d == 2)) continue;
            check_layout(few, (tni_gemm){ in[d], m, n[i % 4], k[i / 3], .sums_f32 = d == 1 }, bits);
        }
}
END_TEST

START_TEST(few_rows_on_threads)
{
    enum { M = 3, N = 1001, K = 1234 };
    const tn_dtype dtype = _i ? TN_BF16 : TN_F32;
    tni_gemm g = { .dtype = dtype, .m = M, .n = N, .k = K, .batch = 1 };
    float *c[2];
    g.a = filled(dtype, M * K, 1), g.b = filled(dtype, N * K, 2);
    g.sums_f32 = _i;
    g.a_row = K, g.a_col = 1, g.b_row = 1, g.b_col = K, g.c_row = N;
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_set_num_threads(i ? 3 : 1));
        g.c = c[i] = filled(TN_F32, M * N, 3);
        assert_ok(tni_cpu_backend()->gemm(&g));
    }
    ck_assert(memcmp(c[0], c[1], M * N * sizeof(float)) == 0);
    guarded_free(0);
}
END_TEST

static bool amx_is_here(void)
{
    return EMULATED ? tni_has_avx512() : tni_has_amx();
}

/* Tiles have 16 rows or columns and 32 steps, panels 256 steps; more than 2,048 are added to an f32
 * C by parts, and to a bf16 C from 4,097 on by way of f32. */
START_TEST(amx_edges)
{
    static const int64_t longer[][3] = { { 17, 33, 2049 }, { 3, 35, 4097 }, { 33, 130, 4095 } };
    const int64_t *size = _i < N_EDGES ? edges[_i] : longer[_i - N_EDGES];
    if (!amx_is_here()) return;
    for (int bits = 0; bits < 16; bits++)
        for (int wide = bits / 8; wide < 2; wide++) {
            tni_gemm g = { TN_BF16, size[0], size[1], size[2], .sums_f32 = wide };
            check_layout(by_amx, g, bits);
            if (wide) check_layout(by_amx_packed, g, bits);
        }
}
END_TEST

/* The same of f32, of which more than 512 steps are added by parts. Of a bias and sums added to C,
 * another pair for each size. */
START_TEST(amx_edges_f32)
{
    static const int64_t longer[] = { 17, 33, 1025 };
    const int64_t *size = _i < N_EDGES ? edges[_i] : longer;
    if (!amx_is_here()) return;
    for (int layout = 0; layout < 4; layout++) {
        tni_gemm g = { .dtype = TN_F32, .m = size[0], .n = size[1], .k = size[2] };
        int bits = layout | (_i < N_EDGES ? _i % 4 * 4 : 8);
        check_layout(by_amx, g, bits);
        if (EMULATED || tni_product_amx_f32()) check_layout(by_amx_packed, g, bits);
    }
}
END_TEST

/* ---- f32 by AMX, as sums of three bf16 ------------------------------------------------------- */

enum { ROWS = 70, COLUMNS = 67 };

/* Numbers with all 24 bits, of both signs, the largest 2^16 times the smallest. */
static void spread(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)ldexp((double)(seed >> 40 | 1 << 23) * (seed >> 39 & 1 ? 1 : -1),
                            (int)(seed >> 33 & 15) - 32);
    }
}

/* Of dense operands, which are stored by columns if ta and tb say so: c [ROWS, COLUMNS]. */
static tni_product product_f32(const float *a, bool ta, const float *b, bool tb, int64_t k,
                               float *c)
{
    tni_gemm g = { .dtype = TN_F32, .m = ROWS, .n = COLUMNS, .k = k, .a = a, .b = b, .c = c };
    g.a_row = ta ? 1 : k, g.a_col = ta ? ROWS : 1;
    g.b_row = tb ? 1 : COLUMNS, g.b_col = tb ? k : 1;
    g.c_row = COLUMNS;
    return product_of(&g);
}

static void multiply_f32(const float *a, bool ta, const float *b, bool tb, int64_t k, float *c)
{
    tni_product p = product_f32(a, ta, b, tb, k, c);
    ck_assert(tni_product_by_amx(&p));
}

/* What ops.h says is lost of bf16: denormal numbers, products and sums count as 0. */
START_TEST(amx_bf16_denormals)
{
    static const float a[] = { 0x1p-126f, 0x1p-127f, 0x1p-100f, 0x1p-100f };
    static const float b[] = { 1, 1, 0x1p-26f, 0x1p-27f };
    static const float want[] = { 0x1p-126f, 0, 0x1p-126f, 0 };
    if (!amx_is_here()) return;
    for (int i = 0; i < 4; i++) {
        uint16_t left = tn_to_bf16(a[i]), right = tn_to_bf16(b[i]);
        float c = NAN;
        tni_product p = { 1,     1,     1,     1,      1,    1,  TN_BF16, TN_F32, false,
                          false, false, &left, &right, NULL, &c, NULL,    0 };
        ck_assert(tni_product_by_amx(&p));
        ck_assert_msg(c == want[i], "%g times %g is %g, not %g", (double)a[i], (double)b[i],
                      (double)c, (double)want[i]);
    }
}
END_TEST

/* A packed B by itself: there is no A yet, and no step from it may be taken (UBSan). */
START_TEST(amx_packs_without_a)
{
    enum { K = 1100, N = 40 }; /* several parts of k */
    if (!amx_is_here()) return;
    tni_product p = { .m = 64, .n = N, .k = K, .ldb = N, .in = TN_F32, .out = TN_F32 };
    p.b = filled(TN_F32, K * N, 1);
    tni_product_pack(&p, filled(TN_BF16, tni_packed_size(N, K) * TNI_AMX_PARTS, 0));
    guarded_free(0);
}
END_TEST

/* The largest error of an element, in units of 2^-24 times the sum of |a| |b|, is below that of a
 * loop in f32 with a rounding for each step. The largest products of parts but one are 2^-8 of a b,
 * the smallest that count 2^-17. */
START_TEST(amx_f32_is_as_accurate)
{
    enum { MOST = 1100 };
    static const int64_t lengths[] = { 1, 2, 16, 31, 64, 200, 700, MOST };
    static float a[ROWS * MOST], b[MOST * COLUMNS], c[ROWS * COLUMNS];
    if (!amx_is_here()) return;
    int64_t k = lengths[_i];
    double worst = 0, worst_plain = 0;
    spread(a, ROWS * k, 1), spread(b, k * COLUMNS, 2);
    multiply_f32(a, false, b, false, k, c);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < COLUMNS; j++) {
            double sum = 0, size = 0;
            float plain = 0;
            for (int64_t s = 0; s < k; s++) {
                float x = a[i * k + s], y = b[s * COLUMNS + j];
                sum += (double)x * y, size += fabs((double)x * y);
                plain = fmaf(x, y, plain);
            }
            worst = fmax(worst, fabs(c[i * COLUMNS + j] - sum) / size * 0x1p24);
            worst_plain = fmax(worst_plain, fabs(plain - sum) / size * 0x1p24);
        }
    ck_assert_msg(worst <= (k < 16 ? 2 : worst_plain),
                  "%d steps: off by %.2f units, a loop by %.2f", (int)k, worst, worst_plain);
}
END_TEST

/* All 24 bits of a number from 2^-103 on arrive: the identity times B is B, to the last bit, and A
 * times it A. */
START_TEST(amx_f32_keeps_all_bits)
{
    enum { MOST = ROWS };
    static float x[ROWS * MOST], c[ROWS * COLUMNS], one[MOST * MOST];
    if (!amx_is_here()) return;
    bool trans = _i & 1, left = _i & 2;
    int64_t k = left ? ROWS : COLUMNS, across = left ? COLUMNS : ROWS;
    memset(one, 0, sizeof one);
    for (int64_t i = 0; i < k; i++) one[i * k + i] = 1;
    spread(x, ROWS * MOST, 3);
    for (int64_t i = 0; i < 40; i++) x[i] = ldexpf(x[i], (int)(i % 20 - 10) * 10);
    for (int64_t i = 0; i < MOST; i++) /* too small to be kept, beside others that are */
        x[20 * (trans == left ? k : across) + i] = ldexpf(1.2345678f, i % 2 ? -120 : -104);
    multiply_f32(left ? one : x, !left && trans, left ? x : one, left && trans, k, c);
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < across; j++) {
            /* x as [k, across], or its transpose: the axis of k is the one that meets `one` */
            float want = (left ? !trans : trans) ? x[i * across + j] : x[j * k + i];
            float got = left ? c[i * COLUMNS + j] : c[j * COLUMNS + i];
            bool kept = fabsf(want) < 0x1p-103f ? fabsf(got - want) < 0x1p-125f : got == want;
            ck_assert_msg(kept, "[%d,%d] is %.9g, not %.9g", (int)i, (int)j, got, want);
        }
}
END_TEST

/* Infinity, NaN and the largest numbers, of which the nearest bf16 is infinity, are multiplied as
 * in f32, and what does not meet them stays as it is. Of numbers that are too small for three parts
 * up to 2^-125 is lost. A B that is packed before gives the same. */
START_TEST(amx_f32_special_values)
{
    enum { K = 600, AT = 550 };
    static const float values[] = { INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX, 0x1.5a5a5ap-120f };
    static float c[ROWS * COLUMNS], before[ROWS * COLUMNS], again[ROWS * COLUMNS];
    if (!amx_is_here()) return;
    float *a = guarded(ROWS * K, sizeof *a), *b = guarded(K * COLUMNS, sizeof *b);
    bool in_a = _i & 1, trans = _i & 2;
    float value = values[_i / 4];
    spread(a, ROWS * K, 4), spread(b, K * COLUMNS, 5);
    multiply_f32(a, trans, b, trans, K, before);
    int64_t row = in_a ? 65 : AT, column = in_a ? AT : 33;
    int64_t rows = in_a ? ROWS : K, columns = in_a ? K : COLUMNS;
    (in_a ? a : b)[trans ? column * rows + row : row * columns + column] = value;
    for (int64_t i = 0; i < 3; i++) /* the other one: 0, 1 and bits that need all three parts */
        (in_a ? b : a)[in_a == trans ? i * K + AT : AT * (in_a ? COLUMNS : ROWS) + i] =
            (float[]){ 0, 1, 1.2345678f }[i];
    if (fabsf(value) < 1) /* alone, so that its error is seen */
        for (int64_t s = 0; s < K; s++)
            if (s != AT)
                (in_a ? a : b)[in_a ? (trans ? s * ROWS + row : row * K + s)
                                    : (trans ? column * K + s : s * COLUMNS + column)] = 0;
    tni_product p = product_f32(a, trans, b, trans, K, c);
    ck_assert(tni_product_by_amx(&p));
    if (EMULATED || tni_product_amx_f32()) {
        void *packed = guarded(tni_packed_size(p.n, p.k) * TNI_AMX_PARTS, sizeof(uint16_t));
        tni_product_pack(&p, packed);
        p.packed = packed, p.c = again;
        ck_assert(tni_product_by_amx(&p) && memcmp(again, c, sizeof c) == 0);
    }
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < COLUMNS; j++) {
            float got = c[i * COLUMNS + j];
            double sum = 0, size = 0;
            if (in_a ? i != row : j != column) {
                if (in_a ? j > 2 : i > 2) ck_assert(got == before[i * COLUMNS + j]);
                continue;
            }
            for (int64_t s = 0; s < K; s++) {
                double x = a[trans ? s * ROWS + i : i * K + s];
                double y = b[trans ? j * K + s : s * COLUMNS + j];
                sum += x * y, size += fabs(x * y);
            }
            float want = (float)sum;
            if (isnan(want))
                ck_assert_msg(isnan(got), "[%d,%d] is %g, not NaN", (int)i, (int)j, got);
            else if (isinf(want))
                ck_assert_msg(got == want, "[%d,%d] is %g, not %g", (int)i, (int)j, got, want);
            else
                ck_assert_msg(fabs(got - sum) <= 1e-6 * size + 0x1p-117, "[%d,%d] is %g, not %g",
                              (int)i, (int)j, got, sum);
        }
    guarded_free(0);
}
END_TEST

/* With AVX-512 always; with AVX2 if OpenBLAS is no faster. */
static bool packs_f32(const tni_gemm *g)
{
    return tni_has_avx512() || tni_tile_fits(TN_F32, false, g->m, g->n, g->k);
}

/* The backend's product of a B that it packed, of which it then reads nothing else, by 1, 2, 3 and
 * 7 threads: the same bits. */
static tn_status gemm_packed(const tni_gemm *g)
{
    const tni_backend *cpu = tni_cpu_backend();
    size_t bytes = (size_t)((g->m - 1) * g->c_row + g->n) * sizeof(float);
    int64_t n = cpu->pack(g, NULL);
    if (n == 0) {
        ck_assert(g->dtype == TN_F32 ? !packs_f32(g) : !tni_has_amx());
        return cpu->gemm(g);
    }
    void *packed = filled(g->dtype, n, 5), *before = malloc(bytes), *first = malloc(bytes);
    ck_assert(before && first);
    memcpy(before, g->c, bytes);
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_set_num_threads((const int[]){ 1, 2, 3, 7 }[i]));
        memset(packed, 0xff, (size_t)n * tn_dtype_size(g->dtype));
        ck_assert_int_eq(cpu->pack(g, packed), n);
        tni_gemm f = *g;
        f.packed = f.b = packed;
        memcpy(f.c, before, bytes);
        assert_ok(cpu->gemm(&f));
        if (i == 0) memcpy(first, f.c, bytes);
        ck_assert(memcmp(first, f.c, bytes) == 0);
    }
    free(before), free(first);
    return TN_OK;
}

/* Columns in four tiles, rows and columns in two each, and an inner axis in four parts. */
START_TEST(packed_before)
{
    static const int64_t sizes[][3] = { { 33, 1041, 131 }, { 129, 199, 203 }, { 33, 130, 2051 } };
    const int64_t *size = sizes[_i];
    for (int bits = 0; bits < 16; bits++)
        for (int d = 0; d < 2; d++) {
            tni_gemm g = { d ? TN_BF16 : TN_F32, size[0], size[1], size[2], .sums_f32 = true };
            if (bits & 4 && (d || bits & 8)) continue;
            check_layout(gemm_packed, g, bits);
        }
}
END_TEST

/* Nothing is packed for what other kernels multiply, and where it would not be read. */
START_TEST(not_packed)
{
    float x[64] = { 0 };
    tni_gemm g = { .m = 64, .n = 512, .k = 512, .batch = 1, .a = x, .b = x, .c = x };
    g.a_row = g.b_row = g.c_row = 512;
    g.a_col = g.b_col = 1;
    const tni_backend *cpu = tni_cpu_backend();
    const tn_dtype others[] = { TN_F64, TN_F16, TN_BF16 };
    for (int i = 0; i < 3; i++) {
        g.dtype = others[i];
        ck_assert_int_eq(cpu->pack(&g, NULL), 0); /* of bf16: C is rounded */
    }
    g.dtype = TN_F32;
    ck_assert((cpu->pack(&g, NULL) > 0) == packs_f32(&g));
    g.b_row = 1500, g.b_col = 2;
    ck_assert_int_eq(cpu->pack(&g, NULL), 0); /* no layout of BLAS */
    g.b_row = 512, g.b_col = 1, g.batch = 2;
    ck_assert_int_eq(cpu->pack(&g, NULL), 0);
    g.batch = 1, g.m = 1;
    ck_assert_int_eq(cpu->pack(&g, NULL), 0);
    g.m = 64, g.k = 0;
    ck_assert_int_eq(cpu->pack(&g, NULL), 0);
}
END_TEST

/* What it does not compute leaves C as it is; gemm has another way. */
START_TEST(tile_refuses)
{
    enum { M = 40, N = 32, K = TNI_TILE_ROUNDED + 1 };
    void *a = filled(TN_BF16, M * K, 1), *b = filled(TN_BF16, N * K, 2);
    void *c = filled(TN_F32, M * N, 3), *before = filled(TN_F32, M * N, 3);
    tni_gemm g = { .dtype = TN_BF16, .m = M, .n = N, .k = K, .a = a, .b = b, .c = c };
    g.a_row = g.a_batch = K;
    g.a_col = g.b_col = 1;
    g.b_row = g.c_row = N;
    ck_assert(own(&g) != TN_OK); /* too long */
    g.k = 0;
    ck_assert(own(&g) != TN_OK); /* nothing to add up */
    g.k = 100;
    g.accumulate = true;
    ck_assert(own(&g) != TN_OK); /* added to what is rounded */
    g.sums_f32 = true;
    g.bias = a;
    ck_assert(own(&g) != TN_OK); /* to two things */
    ck_assert_int_eq(memcmp(c, before, M * N * sizeof(float)), 0);
    g.bias = NULL;
    ck_assert((own(&g) == TN_OK) == tni_has_tiles());
    g.sums_f32 = g.accumulate = false;
    g.k = K - 1;
    ck_assert((own(&g) == TN_OK) == tni_has_tiles());
    guarded_free(0);
    g.k = K;
    g.batch = 2;
    g.a_batch = M * K;
    g.c_batch = M * N;
    check_gemm(g, 2 * M * K, N * K);
}
END_TEST

START_TEST(gemm_keeps_the_callers_threads)
{
#ifdef _OPENMP
    for (int n = 1; n <= 4; n++) {
        omp_set_num_threads(n);
        check_plain(TN_F32, 300, 90, 130, false, true, true, false, 0);
        check_plain(TN_F32, 7, 7, 7, false, true, true, false, 0);
        ck_assert_int_eq(omp_get_max_threads(), n);
    }
    omp_set_num_threads(2);
    /* inside another parallel region, and in a pool of one */
#pragma omp parallel num_threads(2)
    {
#pragma omp critical
        check_plain(TN_F32, 300, 90, 130, false, true, true, false, 0);
    }
#pragma omp parallel num_threads(1)
    check_plain(TN_F32, 300, 90, 130, false, true, true, false, 0);
    ck_assert_int_eq(omp_get_max_threads(), 2);
#endif
}
END_TEST

START_TEST(gemm_refuses_integers)
{
    int64_t v = 1;
    tni_gemm g = { .dtype = TN_I64, .m = 1, .n = 1, .k = 1, .batch = 1, .a = &v, .b = &v, .c = &v };
    assert_fails(tni_cpu_backend()->gemm(&g), TN_E_UNSUPPORTED, "i64");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("gemm");
    TCase *t = test_case(suite, "gemm");
    tcase_add_loop_test(t, amx_edges, 0, N_EDGES + 3);
    tcase_add_loop_test(t, amx_edges_f32, 0, N_EDGES + 1);
    tcase_add_test(t, amx_bf16_denormals);
    tcase_add_test(t, amx_packs_without_a);
    tcase_add_loop_test(t, amx_f32_is_as_accurate, 0, 8);
    tcase_add_loop_test(t, amx_f32_keeps_all_bits, 0, 4);
    tcase_add_loop_test(t, amx_f32_special_values, 0, 24);
    if (EMULATED) return suite;
    tcase_add_loop_test(t, gemm_awkward_sizes, 0, N_DTYPES * N_AWKWARD);
    tcase_add_loop_test(t, gemm_small, 0, 12);
    tcase_add_loop_test(t, tile_edges, 0, N_EDGES);
    tcase_add_loop_test(t, few_rows, 0, 16);
    tcase_add_loop_test(t, few_rows_on_threads, 0, 2);
    tcase_add_test(t, tile_refuses);
    tcase_add_test(t, gemm_strides);
    tcase_add_loop_test(t, gemm_batches, 0, N_DTYPES);
    tcase_add_test(t, gemm_keeps_the_callers_threads);
    tcase_add_test(t, gemm_refuses_integers);
    t = test_case(suite, "large"); /* once more with AMX emulated */
    tcase_add_loop_test(t, packed_before, 0, 3);
    tcase_add_test(t, not_packed);
    tcase_add_loop_test(t, gemm_large_sizes, 0, N_DTYPES * (int)(sizeof large / sizeof *large));
    return suite;
}
