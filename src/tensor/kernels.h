/*
 * kernels.h - the one interface between tensors and the backends that compute (CPU, CUDA).
 *
 * A backend is a struct of function pointers. It sees tni_array, never tn_tensor: it needs nothing of the
 * core and can be a shared module of its own. A NULL slot is an error naming op and backend, never a
 * silent substitute. Kernels return a status and set the message through tni_host.fail.
 *
 * What every kernel may rely on (the op above has seen to it):
 *   - dtypes and sizes fit as the comment says; outputs are allocated and overlap no input unless said
 *   - sizes may be 0 anywhere; n is never a multiple of anything
 *   - "dense" arrays are row-major without gaps; others may have any strides, 0 and negative excluded
 *     except 0 from expand, and negative ones where a comment says so
 *   - real: f32 or f64, all real arrays of one call of one dtype unless said. gemm, conv2d and its
 *     gradients, attention and its gradient, dropout: bf16 and f16 too, sums kept in f32, rounded once
 */
#ifndef TNI_KERNELS_H
#define TNI_KERNELS_H

#include <tenon/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor as kernels see it. Strides in elements. data points at the first element. */
typedef struct tni_array {
    void *data;
    tn_dtype dtype;
    int rank;
    int64_t size[TN_MAX_RANK];
    int64_t stride[TN_MAX_RANK];
} tni_array;

/* A constant that keeps integers exact. */
typedef struct tni_number {
    double f;
    int64_t i;
} tni_number;

/* C[m,n] (+)= op(A) op(B) (+ bias), a batch of them. Row-major: a's row r, column c lies at
 * a + r*a_row + c*a_col; one of a_row, a_col is 1 (an op copies first otherwise), so transposition is in
 * the strides. c is dense in its rows: c_col = 1. */
typedef struct tni_gemm {
    tn_dtype dtype;
    int64_t m, n, k, batch;
    const void *a, *b;
    void *c;
    int64_t a_row, a_col, a_batch;
    int64_t b_row, b_col, b_batch;
    int64_t c_row, c_batch;
    const void *bias; /* n values added to every row, or NULL */
    bool accumulate;  /* C += */
} tni_gemm;

typedef struct tni_conv2d {
    int64_t n, groups, c, h, w, o, kh, kw, oh, ow; /* c, o: all channels */
    int64_t stride[2], padding[2], dilation[2];
} tni_conv2d;

typedef struct tni_pool2d {
    int64_t n, c, h, w, oh, ow; /* n*c planes */
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool include_padding;
} tni_pool2d;

/* q,k,v,y as [B, H, T, D] views of any strides whose last axis has stride 1 (batch axes merged to two).
 * lse [B, H, T] dense, f64 for f64 inputs, else f32: log-sum-exp of the scaled, masked scores.
 * mask: data NULL when absent; bool (true blocks) or real, rank 4 with 0-strides where it broadcasts. */
typedef struct tni_attention {
    tni_array q, k, v, y, lse, mask;
    double scale;
    bool causal; /* query t sees keys s <= t */
} tni_attention;

/* One parameter of a multi-tensor optimizer step; all dense. State slots that a kind does not use: NULL. */
typedef struct tni_optim_tensor {
    tn_dtype dtype;
    int64_t n;
    void *p;
    const void *g;
    void *s0, *s1, *s2; /* SGD: momentum; Adam: m, v, vmax; RMSprop: v, grad average, momentum; Adagrad: sum */
    double lr, weight_decay; /* of its group */
    int64_t step;            /* of this tensor, from 1 */
} tni_optim_tensor;

/* The last two are no optimizers, but change many tensors in one pass: p = lr p; p += lr (g - p), which is g for
 * lr 1. Of args they read kind alone. */
typedef enum tni_optim_kind {
    TNI_SGD, TNI_ADAM, TNI_ADAMW, TNI_RMSPROP, TNI_ADAGRAD, TNI_SCALE, TNI_LERP
} tni_optim_kind;

typedef struct tni_optim_args {
    tni_optim_kind kind;
    double beta1, beta2, eps; /* SGD: momentum, dampening, -; RMSprop: alpha, momentum, eps; Adagrad: lr_decay, -, eps */
    bool flag;                /* SGD: nesterov; Adam: amsgrad; RMSprop: centered */
    bool maximize;
} tni_optim_args;

/* What a backend gets from the core. */
typedef struct tni_host {
    tn_status (*fail)(tn_status status, const char *format, ...);
    const char *(*op)(void); /* name of the op whose kernels this thread calls now, or NULL */
} tni_host;

typedef struct tni_backend {
    const char *name; /* "cpu", "cuda" */

    /* -- memory; host arrays are ordinary memory -- */
    tn_status (*alloc)(size_t nbytes, void **block);
    void (*free)(void *block, size_t nbytes);
    tn_status (*upload)(void *device, const void *host, size_t nbytes);
    tn_status (*download)(void *host, const void *device, size_t nbytes);
    tn_status (*synchronize)(void);

    /* -- pointwise (formulas.h numbers the functions); any strides, equal sizes (0-strides broadcast) -- */
    tn_status (*fill)(const tni_array *y, tni_number value);
    tn_status (*copy)(const tni_array *y, const tni_array *x); /* any dtypes: casts; x: negative strides too */
    tn_status (*unary)(int function, const tni_array *y, const tni_array *x, const double *p);
    /* p: as many parameters as formulas.h says */
    tn_status (*binary)(int function, const tni_array *y, const tni_array *a, const tni_array *b, const double *p);
    tn_status (*ternary)(int function, const tni_array *y, const tni_array *a, const tni_array *b,
                         const tni_array *c, const double *p);

    /* -- reductions: y has x's rank and size 1 (stride any) in the reduced axes; any strides -- */
    tn_status (*reduce)(int function, const tni_array *y, const tni_array *x, const double *p);
    /* first extreme along an axis: value like x (data NULL: not wanted), index i64, both size 1 there */
    tn_status (*arg_reduce)(bool largest, const tni_array *value, const tni_array *index, const tni_array *x, int axis);
    tn_status (*cumsum)(const tni_array *y, const tni_array *x, int axis, bool reverse);

    /* -- products -- */
    tn_status (*gemm)(const tni_gemm *g);

    /* -- indexing; index i64; a bad index is TN_E_INDEX naming the value, before anything is written -- */
    tn_status (*gather)(const tni_array *y, const tni_array *x, const tni_array *index, int axis);
    tn_status (*scatter_add)(const tni_array *y, const tni_array *index, const tni_array *source, int axis); /* in order: deterministic */
    /* x [outer, V, inner], y [outer, n, inner], dense; index [n] dense */
    tn_status (*take)(const tni_array *y, const tni_array *x, const tni_array *index);
    /* x [outer, V, inner] += y [outer, n, inner] at index; rows of index == skip are left out (-1: none) */
    tn_status (*take_add)(const tni_array *x, const tni_array *y, const tni_array *index, int64_t skip);

    /* -- rows: x and y dense [n, c] -- */
    tn_status (*softmax)(const tni_array *y, const tni_array *x, bool log);
    tn_status (*softmax_grad)(const tni_array *dx, const tni_array *dy, const tni_array *y, bool log);
    /* x [n, c, d] dense, target i64 [n, d], weight [c] or data NULL; row_loss, row_weight, lse: [n, d] real.
     * row_loss is 0 and row_weight 0 on ignored rows (target == -100 or == ignore). Bad class: TN_E_INDEX.
     * row_weight: w[target], 1 without weights. lse: log-sum-exp of the row. */
    tn_status (*cross_entropy)(const tni_array *row_loss, const tni_array *row_weight, const tni_array *lse,
                               const tni_array *x, const tni_array *target, const tni_array *weight,
                               double smoothing, int64_t ignore);
    /* dx = dloss (per row, [n, d], any strides) times the row's gradient */
    tn_status (*cross_entropy_grad)(const tni_array *dx, const tni_array *drow, const tni_array *lse,
                                    const tni_array *x, const tni_array *target, const tni_array *weight,
                                    double smoothing, int64_t ignore);
    /* x [n, c, d], target i64 [n, d], weight [c] or data NULL; row_loss -w[t] x[t], row_weight w[t] (1 without
     * weights), both 0 on ignored rows. All dense. Bad class: TN_E_INDEX. */
    tn_status (*nll)(const tni_array *row_loss, const tni_array *row_weight, const tni_array *x,
                     const tni_array *target, const tni_array *weight, int64_t ignore);
    /* dx [n, c, d]: -w[t] drow at the class of each row that is not ignored, 0 elsewhere */
    tn_status (*nll_grad)(const tni_array *dx, const tni_array *drow, const tni_array *target,
                          const tni_array *weight, int64_t ignore);
    /* x, y [n, f]; mean, rstd [n]; weight, bias [f] or data NULL */
    tn_status (*layer_norm)(const tni_array *y, const tni_array *mean, const tni_array *rstd, const tni_array *x,
                            const tni_array *weight, const tni_array *bias, double eps);
    /* any of dx, dweight, dbias with data NULL is not wanted */
    tn_status (*layer_norm_grad)(const tni_array *dx, const tni_array *dweight, const tni_array *dbias,
                                 const tni_array *dy, const tni_array *x, const tni_array *mean,
                                 const tni_array *rstd, const tni_array *weight);
    /* x, y dense [n, c, s]; others [c], data NULL when absent. training: mean, rstd receive the batch's;
     * running_* (if given) move. else: mean, rstd are filled from running_*. */
    tn_status (*batch_norm)(const tni_array *y, const tni_array *mean, const tni_array *rstd, const tni_array *x,
                            const tni_array *weight, const tni_array *bias, const tni_array *running_mean,
                            const tni_array *running_var, bool training, double momentum, double eps);
    tn_status (*batch_norm_grad)(const tni_array *dx, const tni_array *dweight, const tni_array *dbias,
                                 const tni_array *dy, const tni_array *x, const tni_array *mean,
                                 const tni_array *rstd, const tni_array *weight, bool training);

    /* -- images: dense NCHW -- */
    tn_status (*conv2d)(void *y, const void *x, const void *w, const void *bias, tn_dtype dtype, const tni_conv2d *c);
    tn_status (*conv2d_grad_input)(void *dx, const void *dy, const void *w, tn_dtype dtype, const tni_conv2d *c);
    tn_status (*conv2d_grad_weight)(void *dw, const void *dy, const void *x, tn_dtype dtype, const tni_conv2d *c);
    tn_status (*max_pool2d)(void *y, int32_t *index, const void *x, tn_dtype dtype, const tni_pool2d *p); /* index: in the plane */
    tn_status (*max_pool2d_grad)(void *dx, const void *dy, const int32_t *index, tn_dtype dtype, const tni_pool2d *p);
    tn_status (*avg_pool2d)(void *y, const void *x, tn_dtype dtype, const tni_pool2d *p);
    tn_status (*avg_pool2d_grad)(void *dx, const void *dy, tn_dtype dtype, const tni_pool2d *p);
    tn_status (*adaptive_avg_pool2d)(void *y, const void *x, tn_dtype dtype, const tni_pool2d *p);
    tn_status (*adaptive_avg_pool2d_grad)(void *dx, const void *dy, tn_dtype dtype, const tni_pool2d *p);

    /* -- attention -- */
    tn_status (*attention)(const tni_attention *a);
    /* dq, dk, dv like q, k, v: any strides, last 1; written whole */
    tn_status (*attention_grad)(const tni_attention *a, const tni_array *dy, const tni_array *dq,
                                const tni_array *dk, const tni_array *dv);

    /* -- random: element i of the dense array uses Philox counter offset + i / 4, word i % 4 -- */
    tn_status (*dropout)(const tni_array *y, const tni_array *x, double p, uint64_t seed, uint64_t offset);
    /* y dense real, by the backend's own generator: uniform in [0, 1) or standard normal. The CPU's is the
     * default generator; others take seed and offset, and from there on n / 2 + 1 counters */
    tn_status (*random)(const tni_array *y, bool normal, uint64_t seed, uint64_t offset);

    /* -- optimizers: all tensors in one pass -- */
    tn_status (*optim_step)(const tni_optim_args *args, const tni_optim_tensor *tensors, int n);
} tni_backend;

/* The CPU backend for this processor, chosen once by cpuid (TN_SIMD=baseline|avx2|avx512 overrides). */
const tni_backend *tni_cpu_backend(void);
const char *tni_cpu_simd(void); /* "avx512" */

#ifdef __cplusplus
}
#endif
#endif
