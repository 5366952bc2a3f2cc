/*
 * product.c - one matrix product on one thread, by whom it is fastest, and the one file that calls
 * BLAS.
 *
 * bf16, and f32 from some size on, go to AMX where it is there (isa/amx.c). Else with AVX-512
 * oneDNN is asked first: for bf16 where the processor multiplies it, and for f32 in some layouts.
 * Then our own (isa/sgemm.c), which takes the other layouts, bf16 and f16 on other processors, and
 * with AVX2 f32 where OpenBLAS's kernels are slower. OpenBLAS takes small products, f64, and
 * whatever is left. In the environment TN_ONEDNN=off leaves oneDNN out, TN_AMX=off AMX (select.c),
 * TN_AMX_F32=off AMX for f32.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <cblas.h>

#include "tensor/cpu/cpu.h"
#include "tensor/internal.h"

/* Multiplications below which OpenBLAS's shorter calls win: over oneDNN's, and ours if B is stored
 * by columns or all are bf16 or f16; over ours in f32 else; over ours if OpenBLAS is slower. */
enum { LEAST = 1 << 17, LEAST_BY_ROWS = 1 << 20, LEAST_SLOW = 1 << 12 };
/* Rows, columns and steps below which packing an f32 for AMX takes about as long as it saves; rows
 * where B is packed before. Expected, not measured (bench/results/NOTES.md). */
enum { LEAST_AMX = 64, LEAST_AMX_PACKED = 16 };

/* ---- oneDNN ---------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tni_onednn *onednn;
static char why[512];

static void open_onednn(void)
{
    const char *wish = getenv("TN_ONEDNN");
    if (wish && strcmp(wish, "off") == 0) {
        snprintf(why, sizeof why, "TN_ONEDNN=off");
    } else if (!tni_has_avx512()) {
        snprintf(why, sizeof why, "not used below AVX-512");
    } else {
        void *symbol = tni_open_module("TN_ONEDNN_MODULE", "tensor/cpu/", TNI_ONEDNN_FILE,
                                       TNI_ONEDNN_SYMBOL, why, sizeof why);
        tni_onednn_open open = NULL;
        memcpy(&open, &symbol, sizeof open);
        if (open) onednn = open(TNI_ONEDNN_ID, why, sizeof why);
    }
}

const tni_onednn *tni_onednn_module(void)
{
    pthread_once(&once, open_onednn);
    return onednn;
}

const char *tni_onednn_why(void)
{
    pthread_once(&once, open_onednn);
    return why;
}

bool tni_product_bf16(void)
{
    if (tni_has_amx()) return true;
    const tni_onednn *module = tni_onednn_module();
    return module && module->bf16;
}

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

bool tni_product_by_amx(const tni_product *p)
{
    bool known = p->in == TN_BF16 || p->in == TN_F32;
    return TNI_AMX && known && tni_has_amx() && tni_amx_product(p);
}

/* Whether it is faster. A last piece of a B that is packed may be smaller than the others. */
static bool amx_fits(const tni_product *p)
{
    if (p->in != TN_F32) return p->in == TN_BF16;
    bool large = p->m >= LEAST_AMX && p->n >= LEAST_AMX && p->k >= LEAST_AMX;
    return (large || p->packed) && tni_product_amx_f32();
}

static bool by_onednn(const tni_product *p)
{
    double work = (double)p->m * (double)p->n * (double)p->k;
    bool is_bf16 = p->in == TN_BF16;
    if (!is_bf16 && (p->in != TN_F32 || work < LEAST)) return false;
    const tni_onednn *module = tni_onednn_module();
    return module && (module->bf16 || !is_bf16) && module->product(p);
}

/* ---- our own (isa/sgemm.c) ------------------------------------------------------------------- */

/* Memory that each thread keeps, since most products are computed inside chunks. */
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key;
static bool has_scratch_key;

static void make_scratch_key(void)
{
    has_scratch_key = pthread_key_create(&scratch_key, free) == 0;
}

void *tni_thread_scratch(void)
{
    pthread_once(&scratch_once, make_scratch_key);
    if (!has_scratch_key) return NULL;
    void *scratch = pthread_getspecific(scratch_key);
    if (scratch) return scratch;
    scratch = aligned_alloc(4096, TNI_PRODUCT_SCRATCH);
    if (scratch && pthread_setspecific(scratch_key, scratch) != 0) {
        free(scratch);
        scratch = NULL;
    }
    return scratch;
}

/* How fast OpenBLAS is beside ours in f32: slower where C has whole strips of columns, slow for any
 * product. */
static pthread_once_t blas_once = PTHREAD_ONCE_INIT;
static enum { BLAS_FASTER, BLAS_AS_FAST, BLAS_SLOWER, BLAS_SLOW } blas;

/* With vectors of 256 bits what it takes for Zen packs slowly, what it takes for Haswell does not
 * (docs/measurements.md). One that does not know the processor takes kernels from before AVX2. */
static void judge_blas(void)
{
    static const char *const known[] = { "Haswell", "SkylakeX", "Cooperlake", "SapphireRapids" };
    const char *core = openblas_get_corename();
    blas = BLAS_SLOW;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcasecmp(core, known[i]) == 0) blas = tni_has_avx512() ? BLAS_AS_FAST : BLAS_FASTER;
    if (strcasecmp(core, "Zen") == 0) blas = tni_has_avx512() ? BLAS_AS_FAST : BLAS_SLOWER;
}

bool tni_sgemm_fits(tn_dtype dtype, bool tb, int64_t m, int64_t n, int64_t k)
{
    double work = (double)m * (double)n * (double)k;
    bool converts = tni_is_short(dtype);
    if (!tni_has_sgemm()) return false;
    pthread_once(&blas_once, judge_blas);
    if (blas == BLAS_SLOW && !(converts && m == 1)) return work >= LEAST_SLOW; /* a row by gemv */
    if (blas == BLAS_SLOWER && n >= 32 && !converts) return work >= LEAST_SLOW;
    if (blas == BLAS_FASTER && !converts) return false;
    return m >= 16 && n >= 32 && work >= (tb || converts ? LEAST : LEAST_BY_ROWS);
}

static bool by_sgemm(const tni_product *p)
{
    if (p->in == TN_F64) return false;
    bool fits = tni_is_short(p->in) || tni_sgemm_fits(p->in, p->tb, p->m, p->n, p->k);
    return fits && tni_sgemm(p);
}

/* ---- BLAS ------------------------------------------------------------------------------------ */

#define TRANS(t) ((t) ? CblasTrans : CblasNoTrans)

/* C before the product, which is then added to it: bias in every row, zeros if `zero`. Returns
 * false when C need not be prepared, because it will be overwritten. */
bool tni_product_start(const tni_product *p, bool zero)
{
    size_t item = tn_dtype_size(p->out);
    if (!p->bias && p->accumulate) return true;
    if (!p->bias && !zero) return false;
    for (int64_t i = 0; i < p->m; i++) {
        char *row = (char *)p->c + i * p->ldc * (int64_t)item;
        if (!p->accumulate && p->bias)
            memcpy(row, p->bias, (size_t)p->n * item);
        else if (!p->accumulate)
            memset(row, 0, (size_t)p->n * item);
        else if (item == 4)
            for (int64_t j = 0; j < p->n; j++) ((float *)row)[j] += ((const float *)p->bias)[j];
        else
            for (int64_t j = 0; j < p->n; j++) ((double *)row)[j] += ((const double *)p->bias)[j];
    }
    return true;
}

/* y += M x, M [rows, k] or its transpose. */
static void matrix_vector(tn_dtype dtype, bool trans, int64_t rows, int64_t cols,
                          const void *matrix, int64_t ld, const void *x, int64_t incx, void *y,
                          int64_t incy)
{
    if (dtype == TN_F32)
        cblas_sgemv(CblasRowMajor, TRANS(trans), (blasint)rows, (blasint)cols, 1, matrix,
                    (blasint)ld, x, (blasint)incx, 1, y, (blasint)incy);
    else
        cblas_dgemv(CblasRowMajor, TRANS(trans), (blasint)rows, (blasint)cols, 1, matrix,
                    (blasint)ld, x, (blasint)incx, 1, y, (blasint)incy);
}

void tni_product_thin(const tni_product *p)
{
    tni_product_start(p, true); /* gemv reads C even where it is to be overwritten */
    if (p->n == 1)              /* c = A b */
        matrix_vector(p->in, p->ta, p->ta ? p->k : p->m, p->ta ? p->m : p->k, p->a, p->lda, p->b,
                      p->tb ? 1 : p->ldb, p->c, p->m == 1 ? 1 : p->ldc);
    else /* c^T = B^T a^T */
        matrix_vector(p->in, !p->tb, p->tb ? p->n : p->k, p->tb ? p->k : p->n, p->b, p->ldb, p->a,
                      p->ta ? p->lda : 1, p->c, 1);
}

static void blas_f32(const tni_product *p, float alpha, float beta)
{
    cblas_sgemm(CblasRowMajor, TRANS(p->ta), TRANS(p->tb), (blasint)p->m, (blasint)p->n,
                (blasint)p->k, alpha, p->a, (blasint)p->lda, p->b, (blasint)p->ldb, beta, p->c,
                (blasint)p->ldc);
}

static void blas_f64(const tni_product *p, double alpha, double beta)
{
    cblas_dgemm(CblasRowMajor, TRANS(p->ta), TRANS(p->tb), (blasint)p->m, (blasint)p->n,
                (blasint)p->k, alpha, p->a, (blasint)p->lda, p->b, (blasint)p->ldb, beta, p->c,
                (blasint)p->ldc);
}

/* ---- B packed before ------------------------------------------------------------------------- */

/* In f32 without AMX, where our own is the fastest with B stored by rows: of smaller products
 * OpenBLAS's. */
bool tni_product_packs(const tni_product *p)
{
    if (p->out != TN_F32) return false;
    if (p->in == TN_BF16) return TNI_AMX && tni_has_amx();
    if (p->in != TN_F32) return false;
    bool large = p->m >= LEAST_AMX_PACKED && p->n >= LEAST_AMX && p->k >= LEAST_AMX;
    bool own = tni_sgemm_fits(p->in, false, p->m, p->n, p->k);
    return (large || own) && (tni_product_amx_f32() ? large : own);
}

int64_t tni_packed_item(tn_dtype in)
{
    if (in == TN_F32 && tni_product_amx_f32()) return TNI_AMX_PARTS * (int64_t)sizeof(uint16_t);
    return (int64_t)tn_dtype_size(in);
}

void tni_product_pack(const tni_product *p, void *to)
{
    if (p->in == TN_F32 && !tni_product_amx_f32())
        tni_sgemm_pack(p, to);
    else if (TNI_AMX)
        tni_amx_pack(p, to);
}

/* ---- one product ----------------------------------------------------------------------------- */

bool tni_product_one(const tni_product *p)
{
    bool packed = p->packed && p->in == TN_F32 && !tni_product_amx_f32();
    if ((amx_fits(p) && tni_product_by_amx(p)) || (packed && tni_sgemm(p))) return true;
    tni_product itself = *p; /* the others read B */
    itself.packed = NULL;
    if (by_onednn(&itself) || by_sgemm(&itself)) return true;
    if (tni_is_short(p->in)) return false;
    bool add = tni_product_start(p, false);
    if (p->in == TN_F32)
        blas_f32(p, 1, add);
    else
        blas_f64(p, 1, add);
    return true;
}

void tni_gemm1_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    tni_product p = {
        m, n, k, lda, ldb, ldc, TN_F32, TN_F32, ta, tb, beta != 0, a, b, NULL, c, NULL
    };
    if (alpha != 1 || !(by_onednn(&p) || by_sgemm(&p))) blas_f32(&p, alpha, beta);
}

void tni_gemm1_f64(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                   int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc)
{
    tni_product p = {
        m, n, k, lda, ldb, ldc, TN_F64, TN_F64, ta, tb, beta != 0, a, b, NULL, c, NULL
    };
    blas_f64(&p, alpha, beta);
}
