/*
 * kernels.h - the one interface between tensors and the backends that compute (CPU, CUDA).
 *
 * A backend is a struct of function pointers. It sees tni_array, never tn_tensor, so it needs
 * nothing from the core and can be a shared module. Every kernel takes one struct of arguments,
 * outputs first. TNI_KERNELS lists all kernels; opening a backend checks that it has every one.
 * Kernels return a status and set the message through tni_host.fail.
 *
 * What every kernel may rely on (the op that calls it makes sure):
 *   - dtypes and sizes fit as the comment says; outputs are allocated and overlap no input unless
 *     said
 *   - any size may be 0, and n need not be a multiple of anything
 *   - "dense" arrays are row-major without gaps; others may have any positive strides, 0 from
 *     expand, and negative ones where a comment says so
 *   - "real" is f32 or f64, and all real arrays of a call have one dtype unless said; TNI_KERNELS
 *     says which kernels take bf16 and f16 too (gemm does). Arrays marked (wide) are f32 then.
 */
#pragma once

#include <inttypes.h>

#include <tenon/ops.h>
#include <tenon/optim_type.h>

TN_BEGIN_C_

static inline bool tni_is_half(tn_dtype dtype) /* computed in f32, rounded once */
{
    return dtype == TN_BF16 || dtype == TN_F16;
}

/* A tensor as kernels see it. Strides in elements. data points at the first element. */
typedef struct tni_array {
    void *data;
    tn_dtype dtype;
    int rank;
    int64_t size[TN_MAX_RANK];
    int64_t stride[TN_MAX_RANK];
} tni_array;

static inline int64_t tni_array_numel(const tni_array *a)
{
    int64_t n = 1;
    for (int d = 0; d < a->rank; d++) n *= a->size[d];
    return n;
}

/* A constant that keeps integers exact. */
typedef struct tni_number {
    double f;
    int64_t i;
} tni_number;

/* A batch of C[m,n] (+)= op(A) op(B) (+ bias). Row-major: a's row r, column c is at a + r*a_row +
 * c*a_col; one of a_row, a_col is 1 (otherwise an op copies first), so strides express
 * transposition. c's rows are dense: c_col = 1. */
typedef struct tni_gemm {
    tn_dtype dtype;
    int64_t m, n, k, batch;
    const void *a, *b;
    void *c;
    int64_t a_row, a_col, a_batch;
    int64_t b_row, b_col, b_batch;
    int64_t c_row, c_batch;
    const void *bias;   /* n values added to every row, or NULL */
    bool accumulate;    /* C += */
    bool sums_f32;      /* of bf16 and f16: c is f32, nothing is rounded; then there is no bias */
    const void *packed; /* NULL, or what the backend's pack made of this b and sizes; b stays */
    void *a_sums;       /* NULL, or (on a GPU, half precision, batch 1) the m sums of A's rows */
} tni_gemm;

/* ---- pointwise: any strides, equal sizes (0-strides broadcast); functions are of formulas.h -- */

typedef struct tni_fill {
    tni_array y; /* any dtype */
    tni_number value;
} tni_fill;

typedef struct tni_copy {
    tni_array y, x; /* any dtypes: casts; x: negative strides too */
} tni_copy;

typedef struct tni_unary {
    int function;
    tni_array y, x;
    const double *p; /* as many parameters as formulas.h says */
} tni_unary;

typedef struct tni_binary {
    int function;
    tni_array y, a, b;
    const double *p;
} tni_binary;

typedef struct tni_ternary {
    int function;
    tni_array y, a, b, c;
    const double *p;
} tni_ternary;

/* ---- reductions: any strides; y has x's rank and size 1 (stride any) in the reduced axes ----- */

typedef struct tni_reduce {
    int function;
    tni_array y, x;
    const double *p;
    /* of logsumexp, like a dense y (wide): e to what rounding added to y; data NULL: not wanted */
    tni_array factor;
} tni_reduce;

/* The first extreme along an axis. */
typedef struct tni_arg_reduce {
    tni_array value, index; /* like x (data NULL: not wanted), and i64; both of size 1 along axis */
    tni_array x;
    int axis;
    bool largest;
} tni_arg_reduce;

typedef struct tni_cumsum {
    tni_array y, x;
    int axis;
    bool reverse, product; /* from the end; of products */
} tni_cumsum;

/* ---- indexing: index is i64; a bad one is TN_E_INDEX, naming it, before anything is written -- */

/* y[.., i, ..] = x[.., index[.., i, ..], ..] along axis */
typedef struct tni_gather {
    tni_array y, x, index;
    int axis;
} tni_gather;

typedef enum tni_scattering { TNI_SET, TNI_ADD } tni_scattering;
#define TNI_SCATTERED(how, a, b) ((how) == TNI_ADD ? (a) + (b) : (b))

/* y[.., index[.., i, ..], ..] += source[.., i, ..] along axis, in order: deterministic */
typedef struct tni_scatter {
    tni_array y; /* (wide) */
    tni_array index, source;
    int axis;
    tni_scattering how; /* in place of + */
} tni_scatter;

/* Rows at indices. */
typedef struct tni_take {
    tni_array y;     /* [outer, n, inner], dense */
    tni_array x;     /* [outer, V, inner], dense */
    tni_array index; /* [n], dense */
} tni_take;

/* Adds rows at indices. */
typedef struct tni_take_add {
    tni_array x;     /* [outer, V, inner], dense: what is added to (wide) */
    tni_array y;     /* [outer, n, inner], dense: what is added */
    tni_array index; /* [n], dense */
    int64_t skip;    /* rows of this index are left out; -1: none */
} tni_take_add;

/* ---- order ----------------------------------------------------------------------------------- */

/* Where the first k of each line along an axis in order are, k the output's size there: equal
 * elements as they come, NaN as the largest. Any strides, at least one axis. */
typedef struct tni_order {
    tni_array index; /* i64 */
    tni_array x;
    int axis;
    bool descending;
} tni_order;

/* ---- rows: dense [n, c] unless said ---------------------------------------------------------- */

typedef struct tni_softmax {
    tni_array y, x;
    bool log;
    bool seen; /* not of the logarithm: a row of -inf gives 0, not NaN */
} tni_softmax;

typedef struct tni_softmax_grad {
    tni_array dx, dy, y;
    bool log;
} tni_softmax_grad;

typedef struct tni_cross_entropy {
    /* [n, d] (wide): 0 on ignored rows; w[target], 1 without weights, 0 on ignored rows; the row's
     * largest logit, and the sum of exp(x - it) */
    tni_array row_loss, row_weight, top, sum;
    tni_array x;      /* [n, c, d], dense, but if d = 1 rows may be further apart */
    tni_array target; /* i64 [n, d]; a bad class is TN_E_INDEX */
    tni_array weight; /* [c], or data NULL */
    double smoothing;
    int64_t ignore; /* rows of this target, or of -100, count for nothing */
    int64_t first;  /* the number of the first row in messages */
} tni_cross_entropy;

typedef struct tni_cross_entropy_grad {
    /* [n, c, d] like x, and may be x: drow times the row's gradient; with d = 1, and an x of f32,
     * it may be bf16 or f16 */
    tni_array dx;
    tni_array drow;     /* [n, d], any strides (wide) */
    tni_array top, sum; /* (wide) */
    tni_array x, target, weight;
    double smoothing;
    int64_t ignore;
} tni_cross_entropy_grad;

typedef struct tni_nll {
    tni_array row_loss, row_weight; /* [n, d]: -w[t] x[t] and w[t]; both 0 on ignored rows */
    tni_array x, target, weight;    /* as for cross_entropy */
    int64_t ignore;
} tni_nll;

typedef struct tni_nll_grad {
    tni_array dx;   /* [n, c, d]: -w[t] drow at the class of each row that counts, 0 elsewhere */
    tni_array drow; /* [n, d], dense */
    tni_array target, weight;
    int64_t ignore;
} tni_nll_grad;

/* Connectionist temporal classification: dense, t steps of n sequences. A row of table is a
 * sequence's number of steps, of labels, and the labels; w of the longest row's states are these
 * and blanks around them. */
typedef struct tni_ctc {
    tni_array loss;  /* [n] */
    tni_array alpha; /* [n, t, w + 2]: for the gradient; on the CPU a row begins at 2 */
    tni_array x;     /* [t, n, c]: log-probabilities */
    tni_array table; /* i64 [n, 2 + (w - 1) / 2]: all in range */
    int64_t blank;
} tni_ctc;

typedef struct tni_ctc_grad {
    tni_array dx;       /* like x */
    tni_array drow;     /* [n] */
    tni_ctc of;         /* what it is the gradient of */
    bool zero_infinity; /* a loss of inf has none; else it is NaN */
} tni_ctc_grad;

/* Which rows a norm takes, and how. groups 0: the n rows of x. Else group norm: x is [n, channels,
 * s] as [n, f], each of its n has `groups` rows of so many neighbouring channels, mean and rstd are
 * [n, groups], weight and bias [channels]. */
typedef struct tni_norm_rows {
    int64_t groups, channels;
    bool rms; /* y = x rstd w, rstd = 1 / sqrt(mean x^2 + eps); mean and bias have data NULL */
} tni_norm_rows;

/* weight, bias and their gradients may be f32 beside an x of bf16 or f16. */
typedef struct tni_layer_norm {
    tni_array y;            /* [n, f] */
    tni_array mean, rstd;   /* [n], [n] (wide) */
    tni_array x;            /* [n, f] */
    tni_array weight, bias; /* [f], or data NULL */
    double eps;
    tni_norm_rows rows;
} tni_layer_norm;

typedef struct tni_layer_norm_grad {
    tni_array dx, dweight, dbias;        /* data NULL: not wanted */
    tni_array dy, x, mean, rstd, weight; /* dy of bf16 or f16, x and dx may be f32 */
    tni_norm_rows rows;
    bool add; /* dx += */
} tni_layer_norm_grad;

/* Statistics and parameters are [c], and may be f32 beside an x of bf16 or f16. */
typedef struct tni_batch_norm {
    tni_array y; /* [n, c, s], dense */
    /* what x was normalised by: of the batch when training, else taken from running_* (wide) */
    tni_array mean, rstd;
    tni_array x;                         /* [n, c, s], dense */
    tni_array weight, bias;              /* or data NULL */
    tni_array running_mean, running_var; /* when training, if given, they move, and are (wide) */
    double momentum, eps;
    bool training;
} tni_batch_norm;

typedef struct tni_batch_norm_grad {
    tni_array dx, dweight, dbias; /* data NULL: not wanted */
    tni_array dy, x, mean, rstd, weight;
    bool training;
} tni_batch_norm_grad;

/* ---- images: dense NCHW ---------------------------------------------------------------------- */

typedef struct tni_conv2d_sizes {
    int64_t n, groups, c, h, w, o, kh, kw, oh, ow; /* c, o: all channels */
    int64_t stride[2], padding[2], dilation[2];
} tni_conv2d_sizes;

typedef struct tni_conv2d {
    tni_array y;    /* [n, o, oh, ow] */
    tni_array x;    /* [n, c, h, w] */
    tni_array w;    /* [o, c / groups, kh, kw] */
    tni_array bias; /* [o], or data NULL */
    tni_conv2d_sizes sizes;
} tni_conv2d;

typedef struct tni_conv2d_grad_input {
    tni_array dx, dy, w;
    tni_conv2d_sizes sizes;
} tni_conv2d_grad_input;

typedef struct tni_conv2d_grad_weight {
    tni_array dw, dy, x;
    tni_conv2d_sizes sizes;
} tni_conv2d_grad_weight;

typedef struct tni_pool2d_sizes {
    int64_t n, c, h, w, oh, ow; /* n*c planes */
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool include_padding; /* of averages: padding counts */
    /* window o of n goes from floor(o size / n) to ceil((o + 1) size / n); nothing else above is
     * read but dilation, which is 1 */
    bool adaptive;
    int64_t divisor; /* of averages: in place of the count; 0: none */
} tni_pool2d_sizes;

typedef struct tni_max_pool2d {
    tni_array y;     /* [n, c, oh, ow] */
    tni_array index; /* i32 like y: the maximum's place in its plane; data NULL: not wanted */
    tni_array x;     /* [n, c, h, w] */
    tni_pool2d_sizes sizes;
} tni_max_pool2d;

typedef struct tni_max_pool2d_grad {
    tni_array dx, dy, index;
    tni_pool2d_sizes sizes;
} tni_max_pool2d_grad;

typedef struct tni_avg_pool2d {
    tni_array y, x;
    tni_pool2d_sizes sizes;
} tni_avg_pool2d;

typedef struct tni_avg_pool2d_grad {
    tni_array dx, dy;
    tni_pool2d_sizes sizes;
} tni_avg_pool2d_grad;

/* What an axis is made of: element o of y is the sum, over t from first[o] to first[o + 1], of
 * weight[t] times the element of x at[t] steps away. In memory of the host. */
typedef struct tni_taps {
    int64_t n;            /* elements of y; 0: element o is the one o steps away */
    const int32_t *first; /* [n + 1] */
    const int32_t *same;  /* [n]: so many from o on have as many taps as o */
    const int32_t *at;
    const void *weight; /* (wide) */
    int64_t step;       /* elements of x */
} tni_taps;

typedef struct tni_resample {
    tni_array y;            /* [n, h, w], dense */
    tni_array x;            /* [n, elements of a plane], dense */
    tni_taps rows, columns; /* rows.n = h; taps of both are added up: a plane is any matrix */
    const void *table;      /* all that rows and columns point to */
    size_t table_bytes;
} tni_resample;

/* ---- attention ------------------------------------------------------------------------------- */

/* y, q, k, v: [B, H, T or S, D] views of any strides whose last axis has stride 1 (batch axes
 * merged to two). k and v may have a divisor G of H heads: head h of q reads head h G / H. */
typedef struct tni_attention {
    tni_array y;
    /* [B, H, T] dense, f64 for f64 inputs, else f32: a row's probabilities are share exp(s - top),
     * s the scaled, masked scores, top the largest of them (some kernels: before the scale; cuDNN:
     * the log of their sum), or 0 if no key is seen; share is 0 then. data NULL: not wanted */
    tni_array top, share;
    tni_array q, k, v;
    /* data NULL: none; bool (true blocks) or real, rank 4 with 0-strides where it broadcasts */
    tni_array mask;
    double scale;
    bool causal; /* query t sees keys s <= t */
} tni_attention;

typedef struct tni_attention_grad {
    tni_array dq, dk, dv; /* like q, k, v, but H heads: any strides, last 1; all written */
    tni_array dy;
    tni_attention of; /* what it is the gradient of */
} tni_attention_grad;

/* Rows whose first elements are turned in pairs by angles: (a, b) -> (a c - b s, b c + a s). */
typedef struct tni_rotary {
    tni_array y, x; /* [.., D]: any strides, the last axis's 1 */
    /* [.., R / 2], R <= D, otherwise x's sizes: any strides, the last axis's 1; one dtype, x's or,
     * for bf16 and f16, f32 */
    tni_array cosine, sine;
    bool interleaved; /* pairs are (2i, 2i + 1), else (i, i + R / 2) */
    bool back;        /* by the negative angles */
} tni_rotary;

/* ---- recurrent layers: one step of n sequences; h elements of state -------------------------- */

enum { TNI_TANH_CELL, TNI_RELU_CELL, TNI_GRU_CELL, TNI_LSTM_CELL };

/* All dense. tensor/cells.h says what is computed, and how gates lie in memory. */
typedef struct tni_cell {
    tni_array y;              /* [n, h]: the new state */
    tni_array c;              /* LSTM: [n, h], may be c_before */
    tni_array gates;          /* [n, 4h]; in: what the input adds. Plain cells: y itself holds it */
    tni_array share;          /* [n, 4h, 3h or h]: what the state before adds to the gates */
    tni_array bias_x, bias_s; /* [4h, 3h or h]: added to the two */
    tni_array y_before, c_before; /* [n, h]: of GRU, of LSTM */
    int kind;
} tni_cell;

typedef struct tni_cell_grad {
    tni_array dgates; /* [n, 4h, 3h or h]: of what the input adds */
    tni_array dshare; /* [n, 3h]: GRU: of what the state adds; else it is dgates */
    /* [n, h]: in: what the step after adds to y's gradient; out, GRU: what reaches y_before without
     * a product */
    tni_array later;
    tni_array dc; /* LSTM: [n, h]; in: of c; out: of c_before */
    tni_array dy; /* [n, h]: from outside */
    tni_array y, c, gates, y_before, c_before;
    int kind;
} tni_cell_grad;

/* ---- random: element i of the dense array uses Philox counter offset + i / 4, word i % 4 ----- */

typedef struct tni_dropout {
    tni_array y, x; /* dense */
    double p;
    uint64_t seed, offset;
} tni_dropout;

/* Drawn by the backend's own generator: the CPU's is the default generator; others take seed and
 * offset, and use n / 2 + 1 counters from there on. */
typedef struct tni_random {
    tni_array y;       /* dense real */
    bool normal;       /* standard normal; else uniform in [0, 1) */
    bool becomes_half; /* y's values become bf16 or f16 */
    uint64_t seed, offset;
} tni_random;

/* ---- many tensors in one pass: dense; when a call fails none has changed --------------------- */

typedef struct tni_lerp_tensor {
    tn_dtype dtype; /* f32 or f64 */
    int64_t n;
    void *x;
    const void *y; /* NULL in all tensors or in none */
    double rate;
} tni_lerp_tensor;

/* x += rate (y - x); rate 1 sets x to y, even where x is not finite. Without y: x *= rate. */
typedef struct tni_lerp_all {
    const tni_lerp_tensor *tensors;
    int n;
} tni_lerp_all;

/* One parameter of an optimizer's step. */
typedef struct tni_optim_tensor {
    tn_dtype dtype; /* of all arrays: floating; bf16 and f16 compute in f32 and round each once */
    int64_t n;
    void *p;
    const void *g;
    void *s0, *s1, *s2;              /* states; NULL where the optimizer has none */
    const tn_optim_numbers *numbers; /* prepared by the type; step: of this tensor, from 1 */
} tni_optim_tensor;

typedef struct tni_optim_step {
    const tn_optim_type *type; /* its rule; or, on the CPU, its formulas */
    const tni_optim_tensor *tensors;
    int n;
    int64_t *starts; /* room for n + 1, so that the step cannot fail; NULL: it may */
} tni_optim_step;

/* ---- the list of kernels --------------------------------------------------------------------- */

/*
 * Kernel NAME takes a tni_NAME. This list generates the struct of function pointers below, the
 * prototypes (cpu.h, cuda.h), the choice of a variant by dtype and the backends' tables.
 *   ANY(name)                         any dtypes, as the comment says
 *   ONCE(name)                        the same; on the CPU one function for all instruction sets
 *   REAL(name, array)                 f32 or f64: the dtype of that array of the struct
 *   FLOAT(name, array, n_out, n_in)   bf16 and f16 too, computed in f32 and rounded once. The
 *                                     struct begins with n_out outputs and n_in inputs: the CPU
 *                                     computes in f32 copies of those that are bf16 or f16.
 *   WIDE(name, array, n_out, n_in)    the same, and CUDA makes such copies too
 */
/* clang-format off */
#define TNI_KERNELS(ONCE, ANY, REAL, FLOAT, WIDE)                                                  \
    ANY(fill) ANY(copy) ANY(unary) ANY(binary) ANY(ternary)                                        \
    ANY(reduce) ANY(arg_reduce) ANY(cumsum)                                                        \
    ANY(gather) WIDE(scatter, source, 1, 2) ANY(take) WIDE(take_add, y, 1, 2) ANY(order)           \
    WIDE(softmax, x, 1, 1) WIDE(softmax_grad, y, 1, 2)                                             \
    FLOAT(cross_entropy, x, 4, 3) FLOAT(cross_entropy_grad, x, 1, 6)                               \
    REAL(nll, x) REAL(nll_grad, dx) REAL(ctc, x) REAL(ctc_grad, dx)                                \
    FLOAT(layer_norm, x, 3, 3) FLOAT(layer_norm_grad, dy, 3, 5)                                      \
    WIDE(batch_norm, x, 3, 5) WIDE(batch_norm_grad, x, 3, 5)                                       \
    FLOAT(conv2d, x, 1, 3) FLOAT(conv2d_grad_input, dy, 1, 2) FLOAT(conv2d_grad_weight, dy, 1, 2)  \
    WIDE(max_pool2d, x, 2, 1) WIDE(max_pool2d_grad, dy, 1, 2)                                      \
    WIDE(avg_pool2d, x, 1, 1) WIDE(avg_pool2d_grad, dy, 1, 1) WIDE(resample, x, 1, 1)              \
    FLOAT(attention, q, 3, 4) FLOAT(attention_grad, of.q, 3, 8)                                    \
    FLOAT(rotary, x, 1, 3)                                                                         \
    REAL(cell, y) REAL(cell_grad, dy)                                                              \
    FLOAT(dropout, x, 1, 1)                                                                        \
    ANY(lerp_all) ANY(optim_step) ONCE(gemm) ONCE(random)
/* clang-format on */

/* What a backend gets from the core. */
typedef struct tni_host {
    tn_status (*fail)(tn_status status, const char *format, ...);
    const char *(*op)(void); /* name of the op that is calling kernels on this thread, or NULL */
} tni_host;

typedef struct tni_backend {
    const char *name; /* "cpu", "cuda" */

    /* -- memory; host arrays are ordinary memory -- */
    tn_status (*alloc)(size_t nbytes, void **block);
    void (*free)(void *block, size_t nbytes);
    tn_status (*upload)(void *device, const void *host, size_t nbytes);
    tn_status (*download)(void *host, const void *device, size_t nbytes);
    tn_status (*synchronize)(void); /* NULL: there is nothing to wait for */

    /* For many products that differ only in a and c: writes b in the order in which they read it.
     * Returns how many elements that takes; to may be NULL. 0: b is best read as it is. */
    int64_t (*pack)(const tni_gemm *g, void *to);
    /* NULL, or whether it computed g, of few rows: b is bytes with scales (ops/linear_int8.c). */
    bool (*few_bytes)(const tni_gemm *g, int64_t groups);

    /* tn_status (*softmax)(const tni_softmax *a), and so on */
#define TNI_SLOT(name) tn_status (*name)(const tni_##name *a);
#define TNI_TYPED_SLOT(name, ...) TNI_SLOT(name)
    TNI_KERNELS(TNI_SLOT, TNI_SLOT, TNI_TYPED_SLOT, TNI_TYPED_SLOT, TNI_TYPED_SLOT)
} tni_backend;

/* The CPU backend for this processor, chosen once by cpuid (TN_SIMD=baseline|avx2|avx512
 * overrides). */
const tni_backend *tni_cpu_backend(void);
const char *tni_cpu_simd(void); /* "avx512" */

TN_END_C_
