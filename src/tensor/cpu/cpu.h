/*
 * cpu.h - how CPU kernels are built and threaded.
 *
 * Three kinds of files in src/tensor/cpu/:
 *   real/      compiled once per instruction set AND per real type: REAL is float or double, K(f)
 *              names f_avx512_f32 and so on. One source for f32 and f64.
 *   isa/       compiled once per instruction set: integers, casts, the backend table; K(f) is
 *              f_avx512.
 *   others     compiled once: the parallel driver, the choice of instruction set.
 * dense/, the room of products and convolutions, has files of each kind (dense.h).
 * Kernels contain no parallel regions: they pass chunks to tni_parallel, in which nothing is
 * allocated. Chunk borders depend only on sizes, and partial sums are combined in index order, so
 * the bits do not depend on the number of threads.
 */
#pragma once

#include "base/base.h"
#include "tensor/kernels.h"

#define TNI_CAT2_(a, b) a##_##b
#define TNI_CAT2(a, b) TNI_CAT2_(a, b)
#define TNI_CAT3(a, b, c) TNI_CAT2(TNI_CAT2(a, b), c)
#ifdef TNI_REAL_NAME /* f32 or f64, with REAL */
#define K(name) TNI_CAT3(name, TNI_ISA, TNI_REAL_NAME)
#else
#define K(name) TNI_CAT2(name, TNI_ISA)
#endif
/* From isa/ files: the two variants of a real/ kernel. */
#define K32(name) TNI_CAT3(name, TNI_ISA, f32)
#define K64(name) TNI_CAT3(name, TNI_ISA, f64)

#define TNI_INLINE static inline __attribute__((always_inline)) /* some argument is a constant */

/* Works on [begin, end) of n items; begin is a multiple of grain. */
typedef void (*tni_chunk)(void *context, int64_t begin, int64_t end);

/* Calls f for [0, grain), [grain, 2 grain) ... up to n, on several threads when there is more than
 * one chunk and no region is active. Chunk number: begin / grain. */
void tni_parallel(int64_t n, int64_t grain, tni_chunk f, void *context);
/* The same for a kernel that cannot fail, and whose chunks read its arguments: TN_OK. */
static inline tn_status tni_parallel_args(int64_t n, int64_t grain, tni_chunk f, const void *args)
{
    tni_parallel(n, grain, f, (void *)(uintptr_t)args);
    return TN_OK;
}

/*
 * The elements of n tensors, one tensor after another, cut into chunks: many small tensors share a
 * chunk, a large one spans several. Tensor k has as many elements as the number k * step bytes
 * after `size`; span works on its elements [begin, end). Fails before the first call of span.
 */
typedef void (*tni_span)(const void *context, int k, int64_t begin, int64_t end);
tn_status tni_parallel_tensors(int n, const int64_t *size, size_t step, tni_span span,
                               const void *context, int64_t *starts);

/* The table of one instruction set ("avx2") for tests; NULL if this processor lacks it. */
const tni_backend *tni_cpu_table(const char *simd);

/* Whether bf16 is multiplied without a conversion to f32. */
bool tni_product_bf16(void);
/* Whether f32 is multiplied by AMX too, as sums of three bf16. */
bool tni_product_amx_f32(void);
/* The instruction set of kernels: 0 baseline, 1 AVX2, 2 AVX-512; whether it is AVX-512. */
int tni_cpu_isa(void);
#define tni_has_avx512() (tni_cpu_isa() == 2)
/* Whether processor and system have AMX, and this process may use it: it multiplies bf16 several
 * times as fast as vectors multiply f32. */
bool tni_has_amx(void);
/* Whether AVX512-BF16's dot products are there, and faster than products of f32. */
bool tni_has_dots(void);
/* Why AMX is not used although it is there; NULL if it is used, or not there. */
const char *tni_amx_why(void);
/* Like tni_parallel, but guarantees that BLAS calls inside chunks are single-threaded, whether or
 * not a region was opened (parallel.c). At most workers = tni_workers(n, grain) chunks run at a
 * time; a chunk's worker is tni_worker(), in [0, workers). */
int tni_workers(int64_t n, int64_t grain);
int tni_worker(void);
void tni_parallel_workers(int workers, int64_t n, int64_t grain, tni_chunk f, void *context);

/* Scratch memory of a run, a part for each running chunk: `each` bytes, aligned to 64. */
typedef struct tni_scratch {
    size_t each; /* 0: none is wanted */
    bool blas;   /* chunks call BLAS, for which there must be memory, too */
    char *data;  /* while it runs; NULL if none is wanted */
} tni_scratch;
/* A run with s, which belongs to the context. Fails before the first chunk. */
tn_status tni_parallel_scratch(tni_scratch *s, int64_t n, int64_t grain, tni_chunk f,
                               void *context);
/* Adds bytes to `each`; where they begin, aligned to 64. */
static inline size_t tni_scratch_add(tni_scratch *s, size_t nbytes)
{
    size_t at = s->each;
    s->each += (nbytes + 63) / 64 * 64;
    return at;
}
/* This chunk's part from byte `at` on, or NULL. */
static inline void *tni_scratch_own(const tni_scratch *s, size_t at)
{
    return s->data ? s->data + (size_t)tni_worker() * s->each + at : NULL;
}

/* A kernel on bf16 and f16 through f32 (half.c). Arrays with at most `lead` axes (all, if lead is
 * 0) are copied to f32 as a whole. The others are dense, and their first `lead` axes number rows:
 * the kernel gets some rows at a time, in f32. Outputs with fewer axes have an element for each
 * row. */
enum { TNI_HALF_MOST = 11, TNI_HALF_BYTES = 1664 }; /* arrays; at least the bytes of any struct */
typedef tn_status (*tni_copy_kernel)(const tni_copy *a);
typedef struct tni_half {
    tn_status (*kernel)(const void *args); /* by rows it allocates nothing, so it cannot fail */
    void *args; /* a copy of the caller's; begins with n_out outputs and n_in inputs */
    size_t bytes;
    int n_out, n_in, lead;
    unsigned itself; /* bits of the arrays that the kernel takes as they are */
    bool adds;       /* to its outputs; without lead */
    tni_copy_kernel copy;
    void (*load)(tn_dtype type, int64_t n, void *to, const void *from, tn_dtype dtype,
                 int64_t stride);
    void (*store)(tn_dtype type, int64_t n, void *to, tn_dtype dtype, int64_t stride,
                  const void *from);
} tni_half;
tn_status tni_half_run(const tni_half *s);
tn_status tni_half_gemm(const tni_gemm *g);

/* 2x2 windows side by side: every input is in at most one of them. */
static inline bool tni_pool_halves(const tni_pool2d_sizes *p)
{
    return p->kernel[0] == 2 && p->kernel[1] == 2 && p->stride[0] == 2 && p->stride[1] == 2 &&
           p->padding[0] == 0 && p->padding[1] == 0 && p->dilation[0] == 1 && p->dilation[1] == 1 &&
           p->oh == p->h / 2 && p->ow == p->w / 2;
}

/* A kernel that is the same for all instruction sets (dense/cut.c). */
tn_status tni_cpu_gemm(const tni_gemm *g);

/* Prototypes of the others: K(tni_fill) in isa/, K(tni_softmax) in real/ (isa/ calls them as K32
 * and K64). */
#ifdef TNI_ISA
#define TNI_NO_PROTOTYPE(name)
#define TNI_ANY_PROTOTYPE(name) tn_status TNI_CAT2(tni_##name, TNI_ISA)(const tni_##name *a);
#define TNI_REAL_PROTOTYPE(name, ...)                                                              \
    tn_status K32(tni_##name)(const tni_##name *a);                                                \
    tn_status K64(tni_##name)(const tni_##name *a);
TNI_KERNELS(TNI_NO_PROTOTYPE, TNI_ANY_PROTOTYPE, TNI_REAL_PROTOTYPE, TNI_REAL_PROTOTYPE,
            TNI_REAL_PROTOTYPE)
/* On bf16 itself, where the processor multiplies it. False: the general kernel must compute. */
bool K32(tni_attention_bf16)(const tni_attention *a, tn_status *status);
bool K32(tni_attention_grad_bf16)(const tni_attention_grad *a, tn_status *status);
/* Elements [begin, end) of one tensor, for tni_parallel_tensors. */
#define TNI_SPAN_PROTOTYPES(V)                                                                     \
    void V(tni_lerp_span)(const tni_lerp_tensor *t, int64_t begin, int64_t end);                   \
    void V(tni_optim_span)(const tn_optim_type *type, const tni_optim_tensor *t, int64_t begin,    \
                           int64_t end);
TNI_SPAN_PROTOTYPES(K32)
TNI_SPAN_PROTOTYPES(K64)
/* tni_order by keys of 32 bits (not f64, i64, and lines of 2^31 and more) and of 64. */
tn_status K32(tni_order_lines)(const tni_order *a);
tn_status K64(tni_order_lines)(const tni_order *a);
extern const tni_backend TNI_CAT2(tni_cpu_table, TNI_ISA);
#endif
