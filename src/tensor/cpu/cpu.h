/*
 * cpu.h - how CPU kernels are built and threaded.
 *
 * Three kinds of files below src/tensor/cpu/:
 *   real/      compiled once per instruction set AND per real type: REAL is float or double, K(f)
 *              names f_avx512_f32 and so on. One source for f32 and f64.
 *   isa/       compiled once per instruction set: integers, casts, a product, 3x3 convolutions,
 *              the backend table; K(f) is f_avx512.
 *   others     compiled once: the parallel driver, the BLAS driver, the choice of instruction set.
 * Kernels contain no parallel regions: they pass chunks to tni_parallel. Chunk borders depend only
 * on sizes, and partial sums are combined in index order, so the bits do not depend on the number
 * of threads.
 */
#ifndef TNI_CPU_H
#define TNI_CPU_H

#include "tensor/cpu/onednn.h"

#define TNI_CAT3_(a, b, c) a##_##b##_##c
#define TNI_CAT2_(a, b) a##_##b
#define TNI_CAT3(a, b, c) TNI_CAT3_(a, b, c)
#define TNI_CAT2(a, b) TNI_CAT2_(a, b)
#ifdef TNI_REAL_NAME /* f32 or f64, with REAL */
#define K(name) TNI_CAT3(name, TNI_ISA, TNI_REAL_NAME)
#else
#define K(name) TNI_CAT2(name, TNI_ISA)
#endif
/* From isa/ files: the two variants of a real/ kernel. */
#define K32(name) TNI_CAT3(name, TNI_ISA, f32)
#define K64(name) TNI_CAT3(name, TNI_ISA, f64)

/* Works on [begin, end) of n items; begin is a multiple of grain. */
typedef void (*tni_chunk)(void *context, int64_t begin, int64_t end);

/* Calls f for [0, grain), [grain, 2 grain) ... up to n, on several threads when there is more than
 * one chunk and no region is active. Chunk number: begin / grain. */
void tni_parallel(int64_t n, int64_t grain, tni_chunk f, void *context);

/*
 * The elements of n tensors, numbered through, one tensor after another, and cut into chunks: many
 * small tensors share a chunk, a large one spans several. span works on elements [begin, end) of
 * tensor k, which size says how many it has of. Fails before the first.
 */
typedef int64_t (*tni_size)(const void *context, int k);
typedef void (*tni_span)(const void *context, int k, int64_t begin, int64_t end);
tn_status tni_parallel_tensors(int n, tni_size size, tni_span span, const void *context,
                               int64_t *starts);

/* The table of one instruction set ("avx2") for tests; NULL if this processor lacks it. */
const tni_backend *tni_cpu_table(const char *simd);

/* Scratch for kernels, from the library's allocator; NULL + TN_E_NOMEM. Never inside a chunk. */
void *tni_alloc(size_t size);
void tni_free(void *block, size_t size);
tn_status tni_error(tn_status status, const char *format, ...) TN_PRINTF(2, 3);

/* One product on the calling thread (product.c), for use inside chunks: C[m,n] = alpha op(A) op(B)
 * + beta C, row-major; beta is 0 or 1. The same bits wherever it is called from. */
void tni_gemm1_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void tni_gemm1_f64(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
                   int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);
/* The same as a struct, of bf16 and f16 too. False, with C untouched: this processor has no product
 * of these for these sizes (never for f32 and f64). */
bool tni_product_one(const tni_product *p);
/* Our own product, of f32, bf16 or f16 with sums in f32, which some instruction sets have
 * (isa/sgemm.c). False, with C untouched: there is none for these sizes, or no memory for it. */
bool tni_sgemm(const tni_product *p);
bool tni_has_sgemm(void);
/* B of an f32 product into `to`, as `packed`; only where tni_has_sgemm(). */
void tni_sgemm_pack(const tni_product *p, void *to);
/* Whether it is there, and the fastest for a product of these sizes and its pieces: against
 * OpenBLAS, to which bf16 and f16 go by way of f32 copies. tb: B is stored by columns. */
bool tni_sgemm_fits(tn_dtype dtype, bool tb, int64_t m, int64_t n, int64_t k);
/* It takes k up to here where C is bf16 or f16: sums rounded at their end need all of k at once. */
enum { TNI_SGEMM_ROUNDED = 4096 };
/* The same of bf16 and f32, by AMX, where it is there. */
bool tni_product_by_amx(const tni_product *p);
/* The kernel (isa/amx.c), only where tni_has_amx(). False, with C untouched: C cannot be added
 * to, or there is no memory. */
bool tni_amx_product(const tni_product *p);
/* B into `to`, as `packed`. */
void tni_amx_pack(const tni_product *p, void *to);
/* Both kernels pack B in squares of at most 32 steps and 32 columns: so many elements have room. */
static inline int64_t tni_packed_size(int64_t n, int64_t k)
{
    return (n + 31) / 32 * 32 * ((k + 31) / 32 * 32);
}
/* Bytes of an element that is packed: an f32 for AMX is a sum of so many bf16. */
enum { TNI_AMX_PARTS = 3 };
int64_t tni_packed_item(tn_dtype in);
/* Whether a product of these sizes and dtypes is faster with a B that is packed before. */
bool tni_product_packs(const tni_product *p);
/* B into `to`, as `packed`. */
void tni_product_pack(const tni_product *p, void *to);
/* TNI_PRODUCT_SCRATCH bytes that a thread keeps for products; NULL: there is no memory. */
enum { TNI_PRODUCT_SCRATCH = 5 << 18 };
void *tni_thread_scratch(void);
/* f32 or f64, m or n 1. */
void tni_product_thin(const tni_product *p);
/* C before a product that is then added to it: bias in every row, zeros if `zero`. False when C
 * need not be prepared, because it will be overwritten. A bf16 or f16 C never accumulates. */
bool tni_product_start(const tni_product *p, bool zero);
/* Whether bf16 is multiplied as it is. */
bool tni_product_bf16(void);
/* Whether f32 is multiplied by AMX too, as sums of three bf16. */
bool tni_product_amx_f32(void);
/* Whether kernels are AVX-512's. */
bool tni_has_avx512(void);
/* Whether processor and system have AMX, and this process may use it: it multiplies bf16 several
 * times as fast as vectors f32. */
bool tni_has_amx(void);
/* Why AMX, which is there, is not used; NULL if it is, or is not there. */
const char *tni_amx_why(void);
/* The oneDNN module, or NULL, and why it is not there. */
const tni_onednn *tni_onednn_module(void);
const char *tni_onednn_why(void);
/* Before a run of so many lanes that calls BLAS (gemm1, product_one, product_thin), with nothing
 * changed yet: whether OpenBLAS has, or can have, the memory without which it never returns. */
tn_status tni_blas_room(int lanes);
extern size_t tni_blas_most; /* bytes that it may find: for tests */
/* Like tni_parallel, but guarantees that BLAS calls inside chunks are single-threaded, whether or
 * not a region was opened (gemm.c: the rule about OpenBLAS and teams of one). */
void tni_parallel_blas(int64_t n, int64_t grain, tni_chunk f, void *context);
/* Scratch per running chunk: at most tni_lanes(n, grain) chunks run at a time; a chunk's lane is
 * tni_lane(), in [0, lanes). lanes comes from tni_lanes with the same n and grain. */
int tni_lanes(int64_t n, int64_t grain);
int tni_lane(void);
void tni_parallel_lanes(int lanes, int64_t n, int64_t grain, tni_chunk f, void *context);
/* f32 and f64. */
tn_status tni_cpu_gemm(const tni_gemm *g);
/* bf16 and f16 without whole copies in f32, where there is such a product; done says whether. */
tn_status tni_cpu_gemm_short(const tni_gemm *g, bool *done);
/* tni_backend's pack. */
int64_t tni_cpu_gemm_pack(const tni_gemm *g, void *to);

/* A convolution by AMX or oneDNN, f32 or bf16. False: the general kernel must compute it. */
bool tni_convolve_y(const tni_conv2d *a, tn_status *status);
bool tni_convolve_dx(const tni_conv2d_grad_input *a, tn_status *status);
bool tni_convolve_dw(const tni_conv2d_grad_weight *a, tn_status *status);
/* How many parts a weight gradient of so many elements is summed up in, each by itself. */
static inline int64_t tni_convolve_parts(int64_t size)
{
    int64_t parts = (1 << 20) / size;
    return parts < 4 ? 4 : parts > 16 ? 16 : parts;
}
/* The kernels by AMX (isa/amx_conv.c), only where tni_has_amx(), and for all but bf16 false. */
bool tni_amx_convolve_y(const tni_conv2d *a, tn_status *status);
bool tni_amx_convolve_dx(const tni_conv2d_grad_input *a, tn_status *status);
bool tni_amx_convolve_dw(const tni_conv2d_grad_weight *a, tn_status *status);

static inline bool tni_is_short(tn_dtype dtype)
{
    return dtype == TN_BF16 || dtype == TN_F16;
}

/* A kernel on bf16 and f16 through f32 (short.c). Of its arrays those with at most `lead` axes are
 * copied to f32 as a whole; all, if lead is 0. The others are dense, and their first `lead` axes
 * number rows: the kernel gets some rows at a time, in f32. Outputs with fewer axes have an element
 * for each row. */
enum { TNI_SHORT_MOST = 11, TNI_SHORT_BYTES = 1664 }; /* arrays; at least the bytes of any struct */
typedef tn_status (*tni_copy_kernel)(const tni_copy *a);
typedef struct tni_short {
    tn_status (*kernel)(const void *args); /* by rows it allocates nothing, so it cannot fail */
    void *args; /* a copy of the caller's; begins with n_out outputs and n_in inputs */
    size_t bytes;
    int n_out, n_in, lead;
    unsigned itself; /* bits of the arrays that the kernel takes as they are */
    tni_copy_kernel copy;
    void (*load)(tn_dtype type, int64_t n, void *to, const void *from, tn_dtype dtype,
                 int64_t stride);
    void (*store)(tn_dtype type, int64_t n, void *to, tn_dtype dtype, int64_t stride,
                  const void *from);
} tni_short;
tn_status tni_short_run(const tni_short *s);
tn_status tni_short_gemm(const tni_gemm *g, tni_copy_kernel copy);

/* Prototypes of the kernels: K(tni_fill) in isa/, K(tni_softmax) in real/ (isa/ calls them as K32
 * and K64). */
#ifdef TNI_ISA
#define TNI_ANY_PROTOTYPE(name) tn_status TNI_CAT2(tni_##name, TNI_ISA)(const tni_##name *a);
#define TNI_REAL_PROTOTYPE(name, ...)                                                              \
    tn_status K32(tni_##name)(const tni_##name *a);                                                \
    tn_status K64(tni_##name)(const tni_##name *a);
TNI_KERNELS(TNI_ANY_PROTOTYPE, TNI_REAL_PROTOTYPE, TNI_REAL_PROTOTYPE, TNI_REAL_PROTOTYPE)
/* Of bf16 as it is, where the processor multiplies it. False: the general kernel must compute. */
bool K32(tni_attention_bf16)(const tni_attention *a, tn_status *status);
bool K32(tni_attention_grad_bf16)(const tni_attention_grad *a, tn_status *status);
/* Of bf16, in windows of 2x2. */
bool K32(tni_max_pool2d_bf16)(const tni_max_pool2d *a, tn_status *status);
bool K32(tni_max_pool2d_grad_bf16)(const tni_max_pool2d_grad *a, tn_status *status);
/* Of bf16 and f16, a row at a time. */
bool K32(tni_cross_entropy_short)(const tni_cross_entropy *a, tn_status *status);
bool K32(tni_cross_entropy_grad_short)(const tni_cross_entropy_grad *a, tn_status *status);
/* Elements [begin, end) of one tensor, for tni_parallel_tensors. */
#define TNI_SPAN_PROTOTYPES(V)                                                                     \
    void V(tni_lerp_span)(const tni_lerp_tensor *t, int64_t begin, int64_t end);                   \
    void V(tni_optim_span)(const tni_optim_args *args, const tni_optim_tensor *t, int64_t begin,   \
                           int64_t end);
TNI_SPAN_PROTOTYPES(K32)
TNI_SPAN_PROTOTYPES(K64)
/* A product that is shorter than BLAS's call (real/few.c): in strips of columns, if there are so
 * many. */
enum { TNI_FEW_STRIP = 8 };
void K32(tni_gemm_few)(const tni_gemm *g);
void K64(tni_gemm_few)(const tni_gemm *g);
bool TNI_CAT2(tni_sgemm, TNI_ISA)(const tni_product *p);                /* where there is AVX2 */
void TNI_CAT2(tni_sgemm_pack, TNI_ISA)(const tni_product *p, void *to); /* the same */
/* A convolution by Winograd's algorithm, in f32 inside. False: another kernel must compute it. */
bool TNI_CAT2(tni_winograd_y, TNI_ISA)(const tni_conv2d *a, tn_status *status);
bool TNI_CAT2(tni_winograd_dx, TNI_ISA)(const tni_conv2d_grad_input *a, tn_status *status);
bool TNI_CAT2(tni_winograd_dw, TNI_ISA)(const tni_conv2d_grad_weight *a, tn_status *status);
extern const tni_backend TNI_CAT2(tni_cpu_table, TNI_ISA);
#endif

#endif
