/*
 * test_providers.c - whoever multiplies and convolves on this processor, each by itself and as the
 * library chooses among them, compared with the plainest loops in double over random descriptions:
 * plain kernels and vectors of every instruction set, tiles, squares, Winograd's and BLAS's, in
 * f32, f64, bf16 and f16, forward and both gradients.
 *
 * PROVIDERS=N in the environment draws N of each kind in place of a few, and prints how many each
 * has computed. A description that was wrong belongs into named_convs, unless it ends the process
 * in a library that is not ours.
 *
 * Seen to fail: the named convolutions by oneDNN 2.6.3, or by what stood here while it was written;
 * gradients of weights summed in as many parts as there are threads (bits_by_threads).
 */
#include "plain.h"
#include "products.h"

#include <stdlib.h>

#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"

enum { BRIEF = 48, MOST_WORK = 1 << 21 };

/* ---- numbers --------------------------------------------------------------------------------- */

static int64_t how_many(void)
{
    const char *wish = getenv("PROVIDERS");
    return wish ? atoll(wish) : BRIEF;
}

static bool is_near(double got, double want, double size, tn_dtype dtype)
{
    double unit = dtype == TN_BF16 ? 0x1p-8 : dtype == TN_F16 ? 0x1p-11 : 0;
    double sum = dtype == TN_F64 ? 0x1p-45 : 0x1p-19;
    return fabs(got - want) <= sum * size + unit * fabs(want) + (dtype == TN_F16 ? 0x1p-25 : 0);
}

/* Winograd's sums are of other terms than a result's: whole says to judge by the largest. */
static int64_t count_wrong(const void *got, tn_dtype dtype, const sums *s, bool whole)
{
    int64_t wrong = 0;
    double most = 0;
    for (int64_t i = 0; whole && i < s->n; i++) most = TNI_MAX(most, s->size[i]);
    for (int64_t i = 0; i < s->n; i++)
        wrong += !is_near(number_get(got, dtype, i), s->value[i], whole ? most : s->size[i], dtype);
    return wrong;
}

static int64_t failures;

static void report(const char *who, tn_dtype dtype, const char *what, int64_t wrong, int64_t of)
{
    if (wrong == 0) return;
    failures++;
    printf("%s, %s: %" PRId64 " of %" PRId64 " wrong, %s\n", who, tn_dtype_name(dtype), wrong, of,
           what);
    fflush(stdout);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

typedef struct conv {
    tni_conv2d y;
    tni_conv2d_grad_input dx;
    tni_conv2d_grad_weight dw;
    tn_dtype dtype;
    tn_status status;
} conv;

/* Calls one of three by their arguments' type. */
#define BY_KIND(kind, c, f_y, f_dx, f_dw)                                                          \
    ((kind) == Y ? f_y(&(c)->y) : (kind) == DX ? f_dx(&(c)->dx) : f_dw(&(c)->dw))

/* The same for those that take them as one. */
static tni_convolution as_one(int kind, const conv *c)
{
    return (tni_convolution){ kind == Y    ? TNI_CONV_Y
                              : kind == DX ? TNI_CONV_DX
                                           : TNI_CONV_DW,
                              c->y.sizes,
                              kind == DX ? c->dx.dx : c->y.x,
                              kind == DW ? c->dw.dw : c->y.w,
                              kind == Y ? c->y.y : c->dx.dy,
                              kind == Y ? c->y.bias : (tni_array){ 0 } };
}

/* A provider's own kernels: the general ones, in f32 and f64, and Winograd's. */
#define PROVIDER(isa)                                                                              \
    tn_status tni_conv2d_##isa##_f32(const tni_conv2d *);                                          \
    tn_status tni_conv2d_##isa##_f64(const tni_conv2d *);                                          \
    tn_status tni_conv2d_grad_input_##isa##_f32(const tni_conv2d_grad_input *);                    \
    tn_status tni_conv2d_grad_input_##isa##_f64(const tni_conv2d_grad_input *);                    \
    tn_status tni_conv2d_grad_weight_##isa##_f32(const tni_conv2d_grad_weight *);                  \
    tn_status tni_conv2d_grad_weight_##isa##_f64(const tni_conv2d_grad_weight *);                  \
    static bool general_##isa(int kind, conv *c)                                                   \
    {                                                                                              \
        if (tni_is_half(c->dtype) || !tni_cpu_table(#isa)) return false;                           \
        c->status =                                                                                \
            c->dtype == TN_F32                                                                     \
                ? BY_KIND(kind, c, tni_conv2d_##isa##_f32, tni_conv2d_grad_input_##isa##_f32,      \
                          tni_conv2d_grad_weight_##isa##_f32)                                      \
                : BY_KIND(kind, c, tni_conv2d_##isa##_f64, tni_conv2d_grad_input_##isa##_f64,      \
                          tni_conv2d_grad_weight_##isa##_f64);                                     \
        return true;                                                                               \
    }                                                                                              \
    static bool winograd_##isa(int kind, conv *c)                                                  \
    {                                                                                              \
        tni_convolution one = as_one(kind, c);                                                     \
        return tni_cpu_table(#isa) && tni_winograd_##isa(&one, &c->status);                        \
    }                                                                                              \
    static bool depthwise_##isa(int kind, conv *c)                                                 \
    {                                                                                              \
        tni_convolution one = as_one(kind, c);                                                     \
        return tni_cpu_table(#isa) && tni_depthwise_##isa(&one, &c->status);                       \
    }                                                                                              \
    static bool small_##isa(const tni_gemm *g)                                                     \
    {                                                                                              \
        if (tni_is_half(g->dtype) || !tni_cpu_table(#isa)) return false;                           \
        if (g->n * g->k > TNI_SMALL_MOST) return false;                                            \
        g->dtype == TN_F32 ? tni_gemm_small_##isa##_f32(g) : tni_gemm_small_##isa##_f64(g);        \
        return true;                                                                               \
    }                                                                                              \
    static bool backend_##isa(int kind, conv *c)                                                   \
    {                                                                                              \
        const tni_backend *t = tni_cpu_table(#isa);                                                \
        if (!t) return false;                                                                      \
        c->status = BY_KIND(kind, c, t->conv2d, t->conv2d_grad_input, t->conv2d_grad_weight);      \
        return true;                                                                               \
    }
PROVIDER(baseline)
#if defined(__x86_64__)
PROVIDER(avx2)
PROVIDER(avx512)
#endif

static bool conv_by_amx(int kind, conv *c)
{
#if TNI_AMX
    tni_convolution one = as_one(kind, c);
    return c->dtype == TN_BF16 && tni_has_amx() && tni_amx_convolve(&one, &c->status);
#else
    return (void)kind, (void)c, false;
#endif
}

/* Dot products are tested where they are slow, too. */
static bool dots_are_there(void)
{
    return TNI_AMX && tni_has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static bool conv_by_dots(int kind, conv *c)
{
#if TNI_AMX
    tni_convolution one = as_one(kind, c);
    return c->dtype == TN_BF16 && dots_are_there() && tni_dots_convolve(&one, &c->status);
#else
    return (void)kind, (void)c, false;
#endif
}

static bool conv_by_fma(int kind, conv *c)
{
#if TNI_AMX
    tni_convolution one = as_one(kind, c);
    return c->dtype == TN_F32 && tni_has_avx512() && tni_fma_convolve(&one, &c->status);
#else
    return (void)kind, (void)c, false;
#endif
}

typedef struct provider {
    const char *name;
    bool (*convolve)(int kind, conv *c);
    bool is_whole; /* count_wrong */
    int64_t done[KINDS];
} provider;

static provider conv_providers[] = {
    { "plain", general_baseline, false, { 0 } },
    { "Winograd, plain", winograd_baseline, true, { 0 } },
    { "depthwise, plain", depthwise_baseline, false, { 0 } },
    { "all, plain", backend_baseline, true, { 0 } },
#if defined(__x86_64__)
    { "avx2", general_avx2, false, { 0 } },
    { "Winograd, avx2", winograd_avx2, true, { 0 } },
    { "depthwise, avx2", depthwise_avx2, false, { 0 } },
    { "all, avx2", backend_avx2, true, { 0 } },
    { "avx512", general_avx512, false, { 0 } },
    { "Winograd, avx512", winograd_avx512, true, { 0 } },
    { "depthwise, avx512", depthwise_avx512, false, { 0 } },
    { "all, avx512", backend_avx512, true, { 0 } },
#endif
    { "AMX", conv_by_amx, false, { 0 } },
    { "dots", conv_by_dots, false, { 0 } },
    { "f32 by vectors", conv_by_fma, false, { 0 } },
};
enum { CONV_PROVIDERS = sizeof conv_providers / sizeof *conv_providers };

/* Sets oh and ow; false: there is no place for the kernel. */
static bool measure(tni_conv2d_sizes *z)
{
    int64_t h = z->h + 2 * z->padding[0] - z->dilation[0] * (z->kh - 1) - 1;
    int64_t w = z->w + 2 * z->padding[1] - z->dilation[1] * (z->kw - 1) - 1;
    z->oh = h / z->stride[0] + 1, z->ow = w / z->stride[1] + 1;
    return h >= 0 && w >= 0;
}

static int64_t some_or_1(int64_t most)
{
    return draw_below(2) ? 1 : 1 + draw_below(most);
}

/* Of a fifth of them kernels of their own want more: no stride, no groups, enough of all; another
 * fifth is depthwise. */
static tni_conv2d_sizes draw_conv(void)
{
    const int64_t which = draw_below(5);
    bool usual = which == 0, depthwise = which == 1, wide = usual || draw_below(3) > 0;
    for (;;) {
        int64_t least = usual ? 6 : 1;
        tni_conv2d_sizes z = { .n = least / 2 + 1 + draw_below(8),
                               .h = least + draw_below(34),
                               .w = least + draw_below(34) };
        z.groups = usual || draw_below(4) ? 1 : 1 + draw_below(wide ? 2 : 9);
        z.c = z.groups * (wide ? 16 + draw_below(50) : some_or_1(12));
        z.o = z.groups * (wide ? 16 + draw_below(50) : some_or_1(12));
        if (depthwise) z.c = z.o = z.groups = 2 + draw_below(40);
        z.kh = draw_below(2) ? 3 : 1 + draw_below(5),
        z.kw = draw_below(2) ? z.kh : 1 + draw_below(5);
        for (int i = 0; i < 2; i++) {
            z.stride[i] = usual ? 1 : some_or_1(3);
            z.padding[i] = draw_below(4);
            z.dilation[i] = usual && draw_below(4) ? 1 : some_or_1(3);
        }
        double taps = (double)(z.c / z.groups * z.kh * z.kw);
        double work = measure(&z) ? (double)(z.n * z.o * z.oh * z.ow) * taps : INFINITY;
        if (work <= (usual ? 4 * MOST_WORK : MOST_WORK)) return z;
    }
}

static tni_array dense(void *data, tn_dtype dtype, int rank, const int64_t *size)
{
    tni_array a = { .data = data, .dtype = dtype, .rank = rank };
    for (int64_t i = rank - 1, stride = 1; i >= 0; stride *= size[i--])
        a.size[i] = size[i], a.stride[i] = stride;
    return a;
}

/* Without results. */
static conv conv_of(const tni_conv2d_sizes *z, const plain *p, tn_dtype dtype)
{
    int64_t x[] = { z->n, z->c, z->h, z->w }, y[] = { z->n, z->o, z->oh, z->ow };
    int64_t w[] = { z->o, z->c / z->groups, z->kh, z->kw };
    tni_array in_x = dense(numbers_as(p->x, p->s[DX].n, dtype), dtype, 4, x);
    tni_array in_w = dense(numbers_as(p->w, p->s[DW].n, dtype), dtype, 4, w);
    tni_array in_dy = dense(numbers_as(p->dy, p->s[Y].n, dtype), dtype, 4, y);
    tni_array bias = dense(numbers_as(p->bias, z->o, dtype), dtype, 1, &z->o);
    return (conv){ .y = { dense(NULL, dtype, 4, y), in_x, in_w, bias, *z },
                   .dx = { dense(NULL, dtype, 4, x), in_dy, in_w, *z },
                   .dw = { dense(NULL, dtype, 4, w), in_dy, in_x, *z },
                   .dtype = dtype };
}

static void check_provider(provider *by, conv c, const plain *p, const char *what)
{
    static const char *const names[] = { "y", "dx", "dw" };
    int before = guarded_made();
    tni_array *result[] = { &c.y.y, &c.dx.dx, &c.dw.dw };
    for (int kind = 0; kind < KINDS; kind++) {
        tni_array *r = result[kind];
        r->data = numbers_as(NULL, p->s[kind].n, r->dtype);
        if (!by->convolve(kind, &c)) continue;
        char text[256];
        snprintf(text, sizeof text, "%s of %s", names[kind], what);
        by->done[kind]++;
        ck_assert_msg(c.status == TN_OK, "%s: %s", by->name, text);
        report(by->name, c.dtype, text, count_wrong(r->data, r->dtype, &p->s[kind], by->is_whole),
               p->s[kind].n);
    }
    guarded_free(before);
}

static void check_conv(const tni_conv2d_sizes *z)
{
    char what[200];
    snprintf(what, sizeof what,
             "{ %d, %d, %d, %d, %d, %d, %d, %d, 0, 0, { %d, %d }, { %d, %d }, { %d, %d } }",
             (int)z->n, (int)z->groups, (int)z->c, (int)z->h, (int)z->w, (int)z->o, (int)z->kh,
             (int)z->kw, (int)z->stride[0], (int)z->stride[1], (int)z->padding[0],
             (int)z->padding[1], (int)z->dilation[0], (int)z->dilation[1]);
    plain p = plain_conv(z, true);
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
    for (int d = 0; d < 4; d++) {
        conv c = conv_of(z, &p, dtypes[d]);
        for (int i = 0; i < CONV_PROVIDERS; i++) check_provider(&conv_providers[i], c, &p, what);
    }
    guarded_free(0);
}

START_TEST(random_convolutions)
{
    assert_ok(tn_set_num_threads(1));
    number_seed = 1;
    for (int64_t i = 0; i < how_many(); i++) {
        tni_conv2d_sizes z = draw_conv();
        check_conv(&z);
        if (i % 1000 == 999) printf("%d convolutions\n", (int)i + 1), fflush(stdout);
    }
    for (int i = 0; getenv("PROVIDERS") && i < CONV_PROVIDERS; i++)
        printf("%s: y %" PRId64 ", dx %" PRId64 ", dw %" PRId64 "\n", conv_providers[i].name,
               conv_providers[i].done[Y], conv_providers[i].done[DX], conv_providers[i].done[DW]);
    ck_assert_int_eq(failures, 0);
}
END_TEST

/* n, groups, c, h, w, o, kh, kw, oh, ow, stride, padding, dilation; oh and ow follow */
static const tni_conv2d_sizes named_convs[] = {
    /* by oneDNN 2.6.3 with AMX, in bf16, which others may use: NaN in y, most of dw */
    { 4, 1, 40, 32, 32, 48, 3, 3, 0, 0, { 1, 1 }, { 2, 2 }, { 2, 2 } },
    { 4, 1, 44, 32, 32, 48, 3, 3, 0, 0, { 1, 1 }, { 2, 2 }, { 2, 2 } },
    { 4, 1, 37, 20, 17, 25, 1, 5, 0, 0, { 2, 2 }, { 0, 2 }, { 1, 1 } },
    /* and without: dw where an image is narrower than the stride */
    { 8, 1, 64, 32, 2, 64, 3, 3, 0, 0, { 1, 3 }, { 1, 1 }, { 1, 1 } },
    { 6, 1, 43, 7, 1, 23, 5, 2, 0, 0, { 2, 2 }, { 2, 1 }, { 1, 1 } },
    /* dx where no tap of a stride's remainder is */
    { 7, 1, 51, 1, 13, 62, 1, 1, 0, 0, { 3, 1 }, { 1, 3 }, { 1, 3 } },
    /* depthwise: planes in several pieces; rows of y that see no row of x */
    { 1, 2, 2, 300, 70, 2, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 1, 2, 2, 301, 71, 2, 5, 5, 0, 0, { 2, 2 }, { 2, 2 }, { 1, 1 } },
    { 4, 5, 5, 4, 6, 5, 1, 1, 0, 0, { 1, 1 }, { 3, 3 }, { 1, 1 } },
};
enum { NAMED = sizeof named_convs / sizeof *named_convs };

/* Depthwise ones, and in squares, by phases too: their bits do not depend on the number of
 * threads. */
static const tni_conv2d_sizes shared_convs[] = {
    { 3, 40, 40, 61, 30, 40, 3, 3, 0, 0, { 1, 1 }, { 1, 1 }, { 1, 1 } },
    { 3, 40, 40, 61, 30, 40, 3, 3, 0, 0, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 7, 1, 32, 20, 21, 40, 3, 3, 0, 0, { 1, 1 }, { 2, 2 }, { 2, 2 } },
    { 7, 1, 32, 28, 28, 40, 3, 3, 0, 0, { 2, 2 }, { 1, 1 }, { 1, 1 } },
};
enum { SHARED = sizeof shared_convs / sizeof *shared_convs };

START_TEST(bits_by_threads)
{
    static const int threads[] = { 1, 2, 3, 7 };
    tni_conv2d_sizes z = shared_convs[_i];
    ck_assert(measure(&z));
    plain p = plain_conv(&z, true);
    spread_numbers(p.x, p.s[DX].n);
    spread_numbers(p.dy, p.s[Y].n);
    for (int d = 0; d < 2; d++) {
        conv c = conv_of(&z, &p, d ? TN_BF16 : TN_F32);
        tni_array *result[] = { &c.y.y, &c.dx.dx, &c.dw.dw };
        for (int kind = 0; kind < KINDS; kind++) {
            const size_t size = (size_t)p.s[kind].n * tn_dtype_size(c.dtype);
            void *first = NULL;
            for (int t = 0; t < 4; t++) {
                assert_ok(tn_set_num_threads(threads[t]));
                void *y = result[kind]->data = numbers_as(NULL, p.s[kind].n, c.dtype);
                tni_convolution one = as_one(kind, &c);
                const bool done = tni_convolve(&one, &c.status); /* else by columns (conv.c) */
                ck_assert(done || z.groups == 1);
                if (!done)
                    c.status = BY_KIND(kind, &c, tni_cpu_backend()->conv2d,
                                       tni_cpu_backend()->conv2d_grad_input,
                                       tni_cpu_backend()->conv2d_grad_weight);
                ck_assert_int_eq(c.status, TN_OK);
                if (first) ck_assert_msg(memcmp(first, y, size) == 0, "%d threads", threads[t]);
                first = y;
            }
        }
    }
    guarded_free(0);
}
END_TEST

START_TEST(named_convolutions)
{
    assert_ok(tn_set_num_threads(1));
    tni_conv2d_sizes z = named_convs[_i];
    ck_assert(measure(&z));
    check_conv(&z);
    ck_assert_int_eq(failures, 0);
}
END_TEST

/* ---- products -------------------------------------------------------------------------------- */

/* Whether it is what choose.c is asked for. */
static bool is_product(const tni_gemm *g)
{
    return g->batch == 1 && (g->a_row == 1 || g->a_col == 1) && (g->b_row == 1 || g->b_col == 1);
}

static bool by_backend(const tni_gemm *g)
{
    ck_assert_int_eq(tni_cpu_backend()->gemm(g), TN_OK);
    return true;
}

static bool by_one(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_product(g) && tni_product_one(&p);
}

static bool by_thin(const tni_gemm *g)
{
    tni_product p = product_of(g);
    if (!is_product(g) || tni_is_half(g->dtype) || (g->m > 1 && g->n > 1)) return false;
    tni_product_thin(&p);
    return true;
}

#if defined(__x86_64__)

static bool by_avx2(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_product(g) && g->dtype != TN_F64 && tni_cpu_table("avx2") &&
           tni_tile_product_avx2(&p);
}

static bool by_avx512(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_product(g) && g->dtype != TN_F64 && tni_cpu_table("avx512") &&
           tni_tile_product_avx512(&p);
}

static bool is_few(const tni_gemm *g)
{
    bool known = g->dtype == TN_F32 || g->dtype == TN_BF16;
    return is_product(g) && known && !product_of(g).ta && product_of(g).tb;
}

static bool few_avx2(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_few(g) && tni_cpu_table("avx2") && tni_few_product_avx2(&p);
}

static bool few_avx512(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_few(g) && tni_cpu_table("avx512") && tni_few_product_avx512(&p);
}
#endif

static bool by_amx(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_product(g) && tni_product_by_amx(&p);
}

#if TNI_AMX
static bool by_dots(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_product(g) && g->dtype == TN_BF16 && dots_are_there() && tni_dots_product(&p);
}

static bool few_dots(const tni_gemm *g)
{
    tni_product p = product_of(g);
    return is_few(g) && g->dtype == TN_BF16 && dots_are_there() && tni_dots_few_product(&p);
}
#endif

static struct {
    const char *name;
    bool (*multiply)(const tni_gemm *g);
    int64_t done;
} gemm_providers[] = {
    { "all, cut", by_backend, 0 },
    { "all", by_one, 0 },
    { "thin", by_thin, 0 },
    { "small, plain", small_baseline, 0 },
#if defined(__x86_64__)
    { "small, avx2", small_avx2, 0 },
    { "small, avx512", small_avx512, 0 },
    { "avx2", by_avx2, 0 },
    { "avx512", by_avx512, 0 },
    { "few rows, avx2", few_avx2, 0 },
    { "few rows, avx512", few_avx512, 0 },
#endif
    { "AMX", by_amx, 0 },
#if TNI_AMX
    { "dots", by_dots, 0 },
    { "few rows, dots", few_dots, 0 },
#endif
};
enum { GEMM_PROVIDERS = sizeof gemm_providers / sizeof *gemm_providers };

static int64_t draw_size(void)
{
    static const int64_t most[] = { 9, 40, 70, 300 };
    return 1 + draw_below(draw_below(40) ? most[draw_below(4)] : 5000);
}

/* Operands by rows, by columns, or, one in eight, with a step between the elements of both; gaps
 * between rows. */
static tni_gemm draw_gemm(tn_dtype dtype)
{
    tni_gemm g = { .dtype = dtype, .batch = draw_below(6) ? 1 : 1 + draw_below(3) };
    do g.m = draw_size(), g.n = draw_size(), g.k = draw_size();
    while ((double)g.m * (double)g.n * (double)g.k > MOST_WORK);
    bool strided = draw_below(8) == 0, ta = draw_below(2), tb = draw_below(2);
    int64_t step = strided ? 2 : 1, gap = draw_below(2) * 3;
    g.a_row = ta ? step : step * g.k + gap, g.a_col = ta ? step * g.m + gap : step;
    g.b_row = tb ? step : step * g.n + gap, g.b_col = tb ? step * g.k + gap : step;
    g.c_row = g.n + gap;
    g.a_batch = g.m * g.a_row + g.k * g.a_col, g.b_batch = g.k * g.b_row + g.n * g.b_col;
    g.c_batch = g.m * g.c_row;
    g.sums_f32 = tni_is_half(dtype) && draw_below(2);
    g.accumulate = (!tni_is_half(dtype) || g.sums_f32) && draw_below(3) == 0;
    g.bias = !g.sums_f32 && !g.accumulate && draw_below(2) ? "" : NULL;
    return g;
}

static sums multiplied(const tni_gemm *g, const double *a, const double *b, const double *bias,
                       const double *c)
{
    sums s = sums_new(g->batch * g->c_batch);
    for (int64_t i = 0; i < s.n; i++) sums_add(&s, i, c[i]);
    for (int64_t i = 0; i < g->batch * g->m * g->n; i++) {
        int64_t z = i / (g->m * g->n), row = i / g->n % g->m, col = i % g->n;
        int64_t at = z * g->c_batch + row * g->c_row + col;
        if (!g->accumulate) s.value[at] = s.size[at] = 0;
        if (g->bias) sums_add(&s, at, bias[col]);
        const double *x = a + z * g->a_batch + row * g->a_row;
        const double *y = b + z * g->b_batch + col * g->b_col;
        for (int64_t k = 0; k < g->k; k++) sums_add(&s, at, x[k * g->a_col] * y[k * g->b_row]);
    }
    return s;
}

static void check_gemm(tni_gemm g)
{
    int64_t size[] = { g.batch * g.a_batch, g.batch * g.b_batch, g.n, g.batch * g.c_batch };
    double *in[4];
    for (int i = 0; i < 4; i++) in[i] = draw_numbers(size[i]);
    sums s = multiplied(&g, in[0], in[1], in[2], in[3]);
    tn_dtype out = g.sums_f32 ? TN_F32 : g.dtype;
    g.a = numbers_as(in[0], size[0], g.dtype);
    g.b = numbers_as(in[1], size[1], g.dtype);
    if (g.bias) g.bias = numbers_as(in[2], size[2], g.dtype);
    char what[200];
    snprintf(what, sizeof what,
             "%dx%dx%d of %d, A %d %d, B %d %d, C %d, bias %d, added %d, sums in f32 %d", (int)g.m,
             (int)g.n, (int)g.k, (int)g.batch, (int)g.a_row, (int)g.a_col, (int)g.b_row,
             (int)g.b_col, (int)g.c_row, g.bias != NULL, g.accumulate, g.sums_f32);
    for (int i = 0; i < GEMM_PROVIDERS; i++) {
        int before = guarded_made();
        g.c = numbers_as(in[3], size[3], out);
        if (gemm_providers[i].multiply(&g)) {
            gemm_providers[i].done++;
            report(gemm_providers[i].name, g.dtype, what, count_wrong(g.c, out, &s, false), s.n);
        }
        guarded_free(before);
    }
    guarded_free(0);
}

START_TEST(random_products)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_F64, TN_BF16, TN_F16 };
    assert_ok(tn_set_num_threads(1));
    number_seed = 2;
    for (int64_t i = 0; i < how_many(); i++)
        for (int d = 0; d < 4; d++) check_gemm(draw_gemm(dtypes[d]));
    for (int i = 0; getenv("PROVIDERS") && i < GEMM_PROVIDERS; i++)
        printf("%s: %" PRId64 "\n", gemm_providers[i].name, gemm_providers[i].done);
    ck_assert_int_eq(failures, 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("providers");
    TCase *t = test_case(suite, "products");
    if (getenv("PROVIDERS")) tcase_set_timeout(t, 0);
    tcase_add_test(t, random_products);
    t = test_case(suite, "convolutions");
    if (getenv("PROVIDERS")) tcase_set_timeout(t, 0);
    tcase_add_test(t, random_convolutions);
    tcase_add_loop_test(t, named_convolutions, 0, NAMED);
    tcase_add_loop_test(t, bits_by_threads, 0, SHARED);
    return suite;
}
