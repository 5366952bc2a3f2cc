/*
 * dense.h - the room of products and convolutions. Order of reading: cut.c cuts a product into
 * pieces for the threads; choose.c has the table of who computes a piece, and a convolution; then
 * the providers: tile.c, few.c, winograd.c, depthwise.c (vectors), squares.c and squares_conv.c
 * (tiles of AMX, dot products of bf16, and convolutions by vectors), small.c (tiny products),
 * blas.c, and conv.c, which takes every convolution.
 */
#pragma once

#include "tensor/cpu/cpu.h"
#include "tensor/kernels.h"

/* C[m,n] (+)= op(A) op(B) (+ bias), row-major. packed: NULL or, where C is f32, a copy of B as
 * squares.c or tile.c packs it. That kernel reads the copy, and B itself where a sum is not finite;
 * if it has no memory, another kernel reads B. */
typedef struct tni_product {
    int64_t m, n, k, lda, ldb, ldc;
    tn_dtype in, out; /* of a, b and bias; of c: the same, or f32 for bf16 and f16 */
    bool ta, tb, accumulate;
    const void *a, *b, *bias; /* bias: n values added to every row, or NULL */
    void *c;
    const void *packed;
    int64_t groups; /* of few.c alone: not 0, and B is bytes, each column with so many scales */
} tni_product;

/* One of a convolution's three computations: y, or the gradient of x or w, is written, the other
 * two are read. For both gradients y is dy. Dense NCHW. */
typedef struct tni_convolution {
    enum { TNI_CONV_Y, TNI_CONV_DX, TNI_CONV_DW } kind;
    tni_conv2d_sizes sizes;
    tni_array x, w, y, bias; /* bias: of y alone, or data NULL */
} tni_convolution;

/* ---- cut.c ----------------------------------------------------------------------------------- */

/* tni_backend's pack. */
int64_t tni_cpu_gemm_pack(const tni_gemm *g, void *to);
/* tni_backend's few_bytes. */
bool tni_cpu_few_bytes(const tni_gemm *g, int64_t groups);
/* Of f32 and f64, larger than small.c's. */
tn_status tni_gemm_cut(const tni_gemm *g);

/* ---- choose.c: one piece, on the calling thread, so for use inside chunks -------------------- */

/* The same bits wherever it is called from. False, with C untouched: this processor has no product
 * of bf16 or f16 for these sizes, or no memory for it (never of f32 and f64). */
bool tni_product_one(const tni_product *p);
/* The same for f32 and f64, without AMX, as convolutions (conv.c) use it. */
void tni_product_plain(const tni_product *p);
/* Our own product in vectors (tile.c), where the instruction set has it. False, with C untouched:
 * there is none for these sizes, or no memory for it. */
bool tni_tile_product(const tni_product *p);
bool tni_has_tiles(void);
/* B of an f32 product into `to`, as `packed`; only where tni_has_tiles(). */
void tni_tile_pack(const tni_product *p, void *to);
/* Whether tile.c is there, and faster than OpenBLAS for a product of these sizes and its pieces.
 * For OpenBLAS, bf16 and f16 are copied to f32. tb: B is stored by columns. */
bool tni_tile_fits(tn_dtype dtype, bool tb, int64_t m, int64_t n, int64_t k);
/* Whether few.c takes a product of these sizes, and their pieces: few rows, long columns of B,
 * which is stored by columns (tb). */
bool tni_few_fits(tn_dtype dtype, bool ta, bool tb, int64_t m, int64_t n, int64_t k);
/* That product, of any sizes, A f32 or bf16 by rows, B the same or bytes by columns; only where
 * tni_has_tiles(). */
bool tni_few_product(const tni_product *p);
/* The product by AMX, where it is there. False as above, or if C cannot be added to. */
bool tni_product_by_amx(const tni_product *p);
/* Whether a product of these sizes and dtypes is faster with a packed B; packs B into `to`, as
 * `packed`; bytes of a packed element. */
bool tni_product_packs(const tni_product *p);
void tni_product_pack(const tni_product *p, void *to);
int64_t tni_packed_item(tn_dtype in);
/* Computes a product that is shorter than BLAS's call; false: it is none. */
bool tni_gemm_by_small(const tni_gemm *g);
/* A convolution, f32, bf16 or f16. False: the general kernel (conv.c) must compute it. */
bool tni_convolve(const tni_convolution *c, tn_status *status);

/* ---- what providers share -------------------------------------------------------------------- */

/* n rounded up to a multiple of step. */
static inline int64_t tni_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}
/* The room for a packed B, in elements: both providers that pack do so in squares of at most 32
 * steps and 32 columns. For AMX an f32 is a sum of TNI_AMX_PARTS bf16. */
static inline int64_t tni_packed_size(int64_t n, int64_t k)
{
    return tni_up(n, 32) * tni_up(k, 32);
}
enum { TNI_AMX_PARTS = 3 };
/* tile.c takes k up to here where C is bf16 or f16: sums rounded at their end need all of k. */
enum { TNI_TILE_ROUNDED = 4096 };
/* Whether tile.c reads A and B where they are, since strips would be wider than C. */
static inline bool tni_tile_few(const tni_product *p)
{
    bool along = !p->ta && p->tb && p->k % 16 == 0;
    return along && p->in == TN_F32 && p->n <= 28 && !p->packed && tni_has_avx512();
}
/* TNI_PRODUCT_SCRATCH bytes that a thread keeps for products; NULL: there is no memory. */
enum { TNI_PRODUCT_SCRATCH = 5 << 18 };
void *tni_thread_scratch(void);
/* How many parts a weight gradient of `size` elements is summed in, each by itself. */
static inline int64_t tni_convolve_parts(int64_t size)
{
    int64_t parts = (1 << 20) / size;
    return parts < 4 ? 4 : parts > 16 ? 16 : parts;
}
/* How many items of `work` multiplications make a chunk large enough for a thread. */
static inline int64_t tni_grain_of(double work)
{
    return work >= 65536 ? 1 : (int64_t)(65536 / (work + 1)) + 1;
}

/* ---- squares.c, squares_conv.c: only where tni_has_amx(), tni_has_dots(), tni_has_avx512() --- */
bool tni_amx_product(const tni_product *p), tni_dots_product(const tni_product *p);
bool tni_dots_few_product(const tni_product *p); /* few.c, of bf16 */
void tni_amx_pack(const tni_product *p, void *to), tni_dots_pack(const tni_product *p, void *to);
bool tni_amx_convolve(const tni_convolution *c, tn_status *status);
bool tni_dots_convolve(const tni_convolution *c, tn_status *status);
bool tni_fma_convolve(const tni_convolution *c, tn_status *status);

/* ---- BLAS (blas.c), which takes every product of f32 and f64 --------------------------------- */

bool tni_blas_product(const tni_product *p);
/* m or n 1. */
void tni_product_thin(const tni_product *p);
/* C before a product that is then added to it: bias in every row, zeros if `zero`. False when C
 * need not be prepared, because it will be overwritten. A bf16 or f16 C never accumulates. */
bool tni_product_start(const tni_product *p, bool zero);
/* Whether plain loops stand in for it (plain/plain.c). */
#if defined TNI_PLAIN
enum { TNI_BLAS_IS_PLAIN = 1 };
#else
enum { TNI_BLAS_IS_PLAIN = 0 };
#endif
/* To be asked before a run of this many lanes that calls BLAS, while nothing has changed: whether
 * OpenBLAS has, or can get, the memory without which it never returns. */
tn_status tni_blas_room(int lanes);
extern size_t tni_blas_most; /* bytes that it may find: for tests */
/* How fast OpenBLAS's products of f32 are beside tile.c's. SLOWER: where C has whole strips of
 * columns; SLOW: for any product. */
typedef enum tni_blas_speed {
    TNI_BLAS_FASTER,
    TNI_BLAS_AS_FAST,
    TNI_BLAS_SLOWER,
    TNI_BLAS_SLOW
} tni_blas_speed;
tni_blas_speed tni_blas_beside_ours(void);

/* ---- vectors: compiled for each instruction set ---------------------------------------------- */

/* tile.c and few.c, where there is AVX2; a product in strips of columns, if there are so many
 * (small.c), where n k is at most TNI_SMALL_MOST; a convolution by Winograd's algorithm, in f32
 * inside; depthwise. */
enum { TNI_SMALL_STRIP = 8, TNI_LEAST_SLOW = 1 << 12 }; /* the latter: choose.c */
enum { TNI_SMALL_MOST = TNI_BLAS_IS_PLAIN ? TNI_LEAST_SLOW - 1 : 512 };
#define TNI_DENSE_PROTOTYPES(isa)                                                                  \
    bool tni_tile_product_##isa(const tni_product *p);                                             \
    void tni_tile_pack_##isa(const tni_product *p, void *to);                                      \
    bool tni_few_product_##isa(const tni_product *p);                                              \
    bool tni_winograd_##isa(const tni_convolution *c, tn_status *status);                          \
    bool tni_depthwise_##isa(const tni_convolution *c, tn_status *status);                         \
    void tni_gemm_small_##isa##_f32(const tni_gemm *g);                                            \
    void tni_gemm_small_##isa##_f64(const tni_gemm *g);
TNI_DENSE_PROTOTYPES(baseline)
TNI_DENSE_PROTOTYPES(avx2)
TNI_DENSE_PROTOTYPES(avx512)
