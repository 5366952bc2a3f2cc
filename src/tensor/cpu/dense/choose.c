/*
 * choose.c - who computes a product or a convolution: one table, asked in order.
 *
 * A provider says what it takes: products for which it is faster than all that come after it. It
 * computes one, or says that it cannot, and the next is asked. Few rows, which take as long as
 * reading B, are our own. AMX takes bf16, and f32 from some size on; without it dot products take
 * bf16 where they are twice as fast as f32. Our vectors take bf16 and f16 elsewhere, and f32 where
 * OpenBLAS is slower. OpenBLAS computes small products, f64, and what is left; conv.c computes the
 * convolutions that no other provider takes. In the environment TN_AMX=off leaves AMX out,
 * TN_AMX_F32=off AMX for f32, TN_DOTS=off dot products; TN_SIMD chooses the vectors.
 */
#include "tensor/cpu/dense/dense.h"
#include "tensor/internal.h"

static double work_of(const tni_product *p)
{
    return (double)p->m * (double)p->n * (double)p->k;
}

/* ---- squares: AMX, or dot products ----------------------------------------------------------- */

/* Rows, columns and steps below which packing an f32 takes about as long as AMX saves; and rows if
 * B is packed already. Expected, not measured (bench/results/NOTES.md). */
enum { LEAST_AMX = 64, LEAST_AMX_PACKED = 16 };

static pthread_once_t amx_once = PTHREAD_ONCE_INIT;
static bool f32_by_amx;

static void ask_for_f32(void)
{
    const char *wish = getenv("TN_AMX_F32");
    f32_by_amx = tni_has_amx() && !(wish && strcmp(wish, "off") == 0);
}

bool tni_product_amx_f32(void)
{
    pthread_once(&amx_once, ask_for_f32);
    return f32_by_amx;
}

static bool amx_multiplies(tn_dtype dtype)
{
    return dtype == TN_BF16 ? TNI_AMX && tni_has_amx() : dtype == TN_F32 && tni_product_amx_f32();
}

/* The last piece of a packed B may be smaller than the others. */
static bool amx_takes(const tni_product *p)
{
    bool large = p->m >= LEAST_AMX && p->n >= LEAST_AMX && p->k >= LEAST_AMX;
    return (p->in == TN_BF16 || large || p->packed) && amx_multiplies(p->in);
}

static bool amx_packs(const tni_product *p)
{
    bool large = p->m >= LEAST_AMX_PACKED && p->n >= LEAST_AMX && p->k >= LEAST_AMX;
    return amx_multiplies(p->in) && (p->in == TN_BF16 || large);
}

bool tni_product_by_amx(const tni_product *p)
{
    return TNI_AMX && tni_has_amx() && (p->in == TN_BF16 || p->in == TN_F32) && tni_amx_product(p);
}

#if TNI_AMX
#define SQUARES(what) tni_##what
#else
#define SQUARES(what) NULL
#endif

static bool dots_take(const tni_product *p)
{
    return p->in == TN_BF16 && tni_has_dots();
}

bool tni_product_bf16(void)
{
    return tni_has_amx() || tni_has_dots();
}

/* ---- vectors --------------------------------------------------------------------------------- */

typedef struct vectors {
    bool (*product)(const tni_product *p); /* or NULL, all three */
    void (*pack)(const tni_product *p, void *to);
    bool (*few)(const tni_product *p);
    bool (*winograd)(const tni_convolution *c, tn_status *status);
    bool (*depthwise)(const tni_convolution *c, tn_status *status);
    void (*small_f32)(const tni_gemm *g), (*small_f64)(const tni_gemm *g);
} vectors;

#define EACH(isa)                                                                                  \
    tni_winograd_##isa, tni_depthwise_##isa, tni_gemm_small_##isa##_f32, tni_gemm_small_##isa##_f64
static const vectors by_isa[] = {
#if defined TNI_PLAIN
    { tni_tile_product_baseline, tni_tile_pack_baseline, tni_few_product_baseline, EACH(baseline) },
#else
    { NULL, NULL, NULL, EACH(baseline) }, /* in the order of tni_cpu_isa() */
#endif
#if defined(__x86_64__)
    { tni_tile_product_avx2, tni_tile_pack_avx2, tni_few_product_avx2, EACH(avx2) },
    { tni_tile_product_avx512, tni_tile_pack_avx512, tni_few_product_avx512, EACH(avx512) },
#endif
};

static const vectors *ours(void)
{
    return &by_isa[tni_cpu_isa()];
}

bool tni_has_tiles(void)
{
    return ours()->product != NULL;
}

bool tni_tile_product(const tni_product *p)
{
    return p->in != TN_F64 && ours()->product && ours()->product(p);
}

void tni_tile_pack(const tni_product *p, void *to)
{
    ours()->pack(p, to);
}

/* Multiplications below which OpenBLAS's shorter calls win: over ours if B is stored by columns or
 * all are bf16 or f16; over ours in other f32; TNI_LEAST_SLOW, where OpenBLAS is slower. */
enum { LEAST = 1 << 17, LEAST_BY_ROWS = 1 << 20 };

bool tni_tile_fits(tn_dtype dtype, bool tb, int64_t m, int64_t n, int64_t k)
{
    double work = (double)m * (double)n * (double)k;
    bool converts = tni_is_half(dtype);
    if (!tni_has_tiles()) return false;
    tni_blas_speed blas = tni_blas_beside_ours();
    if (blas == TNI_BLAS_SLOW && !(converts && m == 1)) return work >= TNI_LEAST_SLOW; /* a row */
    if (blas == TNI_BLAS_SLOWER && n >= 32 && !converts) return work >= TNI_LEAST_SLOW;
    if (blas == TNI_BLAS_FASTER && !converts) return false;
    return m >= 16 && n >= 32 && work >= (tb || converts ? LEAST : LEAST_BY_ROWS);
}

/* Whether tile.c is the fastest: few columns and long sums, as of a first convolution's weights. */
static bool tile_long(const tni_product *p)
{
    return tni_tile_few(p) && p->k >= 512 && work_of(p) >= LEAST;
}

static bool tiles_take(const tni_product *p)
{
    return tni_is_half(p->in) || p->packed || tile_long(p) ||
           (p->in == TN_F32 && tni_tile_fits(p->in, p->tb, p->m, p->n, p->k));
}

/* In f32 without AMX, where ours are the fastest with B stored by rows. */
static bool tiles_pack(const tni_product *p)
{
    return p->in == TN_F32 && tni_tile_fits(p->in, false, p->m, p->n, p->k) && !tni_tile_few(p);
}

/* Rows up to which few.c is the fastest, and multiplications from which on. (With AMX, bf16 by
 * count, not measured.) */
enum { FEW_ROWS = 16, FEW_ROWS_AMX = 4, LEAST_FEW = 1 << 14 };

bool tni_few_fits(tn_dtype dtype, bool ta, bool tb, int64_t m, int64_t n, int64_t k)
{
    if (ta || !tb || !tni_has_tiles() || (dtype != TN_F32 && dtype != TN_BF16)) return false;
    return m <= (dtype == TN_BF16 && tni_has_amx() ? FEW_ROWS_AMX : FEW_ROWS) && n >= 16 &&
           k >= (m == 1 && dtype == TN_F32 ? 256 : 32) &&
           (double)m * (double)n * (double)k >= LEAST_FEW;
}

static bool few_takes(const tni_product *p)
{
    return !p->packed && tni_few_fits(p->in, p->ta, p->tb, p->m, p->n, p->k);
}

bool tni_few_product(const tni_product *p)
{
    const bool dots = TNI_AMX && p->in == TN_BF16 && !p->groups && tni_has_dots();
    return dots ? tni_dots_few_product(p) : ours()->few(p);
}

static bool by_vectors(const tni_convolution *c, tn_status *status)
{
    return ours()->depthwise(c, status) || ours()->winograd(c, status);
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct provider {
    bool (*takes)(const tni_product *p);
    bool (*product)(const tni_product *p); /* false, with C untouched: it could not */
    bool (*packs)(const tni_product *p);   /* it is faster with a B that pack() has written */
    void (*pack)(const tni_product *p, void *to);
    unsigned convolves;                                            /* bits of dtypes */
    bool (*convolve)(const tni_convolution *c, tn_status *status); /* false: it does not */
} provider;

#define BIT(dtype) (1u << (dtype))
static bool blas_takes(const tni_product *p)
{
    return !tni_is_half(p->in);
}

/* Squares convolve bf16 at twice f32's rate, or not at all: before Winograd, and f32 after it. */
enum { BY_FEW, BY_AMX, BY_DOTS, BY_VECTORS, BY_FMA, BY_BLAS, N_PROVIDERS };
static const provider providers[N_PROVIDERS] = {
    /* clang-format off */
    [BY_FEW] = { few_takes, tni_few_product, NULL, NULL, 0, NULL },
    [BY_AMX] = { amx_takes, tni_product_by_amx, amx_packs, SQUARES(amx_pack),
                 BIT(TN_BF16), SQUARES(amx_convolve) },
    [BY_DOTS] = { dots_take, SQUARES(dots_product), dots_take, SQUARES(dots_pack),
                  BIT(TN_BF16), SQUARES(dots_convolve) },
    [BY_VECTORS] = { tiles_take, tni_tile_product, tiles_pack, tni_tile_pack,
                     BIT(TN_F32) | BIT(TN_BF16) | BIT(TN_F16), by_vectors },
    [BY_FMA] = { NULL, NULL, NULL, NULL, BIT(TN_F32), SQUARES(fma_convolve) },
    [BY_BLAS] = { blas_takes, tni_blas_product, NULL, NULL, 0, NULL },
    /* clang-format on */
};

/* ---- asking ---------------------------------------------------------------------------------- */

/* Where a provider that reads a packed B has no memory, the next ones read B itself. */
static bool multiply(const tni_product *p, int first)
{
    tni_product plain;
    for (int i = first; i < N_PROVIDERS; i++) {
        if (!providers[i].takes || !providers[i].takes(p)) continue;
        if (providers[i].product(p)) return true;
        if (p->packed) {
            plain = *p;
            plain.packed = NULL;
            p = &plain;
        }
    }
    return false;
}

bool tni_product_one(const tni_product *p)
{
    return multiply(p, BY_FEW);
}

void tni_product_plain(const tni_product *p)
{
    multiply(p, BY_AMX + 1);
}

/* The provider whose layout a packed B of this dtype has; NULL: none. */
static const provider *packer(tn_dtype in)
{
    if (amx_multiplies(in)) return &providers[BY_AMX];
    if (in == TN_BF16 && tni_has_dots()) return &providers[BY_DOTS];
    return in == TN_F32 ? &providers[BY_VECTORS] : NULL;
}

bool tni_product_packs(const tni_product *p)
{
    const provider *by = packer(p->in);
    return by && p->out == TN_F32 && by->packs(p);
}

void tni_product_pack(const tni_product *p, void *to)
{
    packer(p->in)->pack(p, to);
}

int64_t tni_packed_item(tn_dtype in)
{
    if (in == TN_F32 && tni_product_amx_f32()) return TNI_AMX_PARTS * (int64_t)sizeof(uint16_t);
    return (int64_t)tn_dtype_size(in);
}

/* Measured on Cascade Lake (bench/results/NOTES.md). Each size by itself first, so that none of
 * their products overflows. */
static bool is_small(const tni_gemm *g)
{
    if (g->dtype != TN_F32 && g->dtype != TN_F64) return false;
    const int64_t most = TNI_BLAS_IS_PLAIN || g->n >= TNI_SMALL_STRIP ? TNI_SMALL_MOST : 64;
    if (g->m > most || g->n > most || g->k > most || g->batch > most) return false;
    int64_t numbers = g->batch * g->m * g->n, products = numbers * g->k;
    return numbers <= most / 2 && products > 0 && products <= most;
}

bool tni_gemm_by_small(const tni_gemm *g)
{
    if (!is_small(g)) return false;
    (g->dtype == TN_F32 ? ours()->small_f32 : ours()->small_f64)(g);
    return true;
}

bool tni_convolve(const tni_convolution *c, tn_status *status)
{
    const bool there[N_PROVIDERS] = { [BY_AMX] = tni_has_amx(),
                                      [BY_DOTS] = tni_has_dots(),
                                      [BY_VECTORS] = true,
                                      [BY_FMA] = TNI_AMX && tni_has_avx512() };
    for (int i = 0; i < N_PROVIDERS; i++)
        if (there[i] && providers[i].convolves & BIT(c->x.dtype) &&
            providers[i].convolve(c, status))
            return true;
    return false;
}
