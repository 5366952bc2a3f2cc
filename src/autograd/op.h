/*
 * op.h - what an op is, and how it is applied. The graph that it leaves behind is in graph.h.
 *
 * An op is a constant descriptor with its static functions in one file (src/autograd/ops/).
 * tni_apply does what every op would otherwise repeat. The engine (backward.c) does what every
 * backward would otherwise repeat: which inputs need a gradient, reduction of broadcasts, casts to
 * the input's dtype, accumulation, version checks, freeing.
 */
#pragma once

#include <tenon/autograd.h>
#include <tenon/ops.h>
#include "autograd/hook_list.h"
#include "tensor/random.h"

#define TNI_MAX_IN 12 /* fixed arity; variable-arity ops take any number */

/* What the gradient of an input reads, as a bit mask. TNI_X(k): input k. */
#define TNI_X(k) (1u << (k))
#define TNI_ALL_X 0xffffu    /* every input */
#define TNI_Y (1u << 16)     /* output 0 */
#define TNI_SAVED (1u << 17) /* what forward put into saved[] */
#define TNI_DY (1u << 18)    /* for dense_grad: the gradient of output 0 */

/* For tn_op's recompute: from so many bytes on it is worth its time; in half precision also where
 * recompute is 1 (docs/measurements.md). */
#define TNI_RECOMPUTE_LARGE ((size_t)3 << 20)
#define TNI_RECOMPUTE_CAST ((size_t)1 << 20)

/* How apply treats dtypes before the shape rule. */
typedef enum tni_dtype_rule {
    /* all present floating inputs have one dtype; at least input 0 is floating */
    TNI_SAME_FLOAT = 0,
    TNI_ONE_FLOAT, /* all present inputs have one floating dtype */
    /* input 0 is floating; other floating inputs have its dtype, or f32 beside bf16 and f16 */
    TNI_MIXED_FLOAT,
    TNI_ANY_DTYPE /* the shape rule checks dtypes */
} tni_dtype_rule;

/* What floating inputs become inside tn_set_autocast (autocast.c). f64 always stays. */
typedef enum tni_cast {
    /* f32, except where dtypes is TNI_ANY_DTYPE: unchanged */
    TNI_CAST_AUTO = 0,
    TNI_CAST_LOW, /* the region's dtype: what tensor cores do */
    TNI_CAST_F32, /* f32: too steep, or too long a sum */
    TNI_CAST_KEEP /* unchanged */
} tni_cast;

typedef struct tn_op tn_op;

/* One application, as shape and forward see it. */
typedef struct tni_call {
    const tn_op *op;
    const void *args;
    int n_in;
    tn_tensor *const *in; /* optional ones may be TN_NONE */
    int n_out;            /* set by apply from the caller; view ops with many outputs too */
    tni_spec *out_spec;   /* shape fills dtype and shape of each output */
    int n_saved;
    tni_spec *saved_spec; /* shape fills n_saved and these (tni_saves; at most 4) */
    tn_tensor **out;      /* forward fills the values */
    tn_tensor **saved;
    tn_device device; /* of the outputs: input 0's unless shape says otherwise (tn_to) */
    bool recorded;    /* a backward will follow: saved[] is worth filling */
} tni_call;

typedef struct tni_meta {
    tn_shape shape;
    tn_dtype dtype;
    bool absent; /* of an input: it was TN_NONE */
} tni_meta;

/* One backward step. */
typedef struct tni_grad {
    const tn_op *op;
    const void *args;
    size_t args_size;
    int n_in, n_out;
    tn_tensor *dy;         /* gradient of output 0: dys[0] */
    tn_tensor *const *dys; /* one per output, TN_NONE where nothing came */
    tn_tensor **x;         /* inputs that reads[] named for needed gradients, else NULL */
    tn_tensor *y;          /* output 0 if read */
    tn_tensor *const *saved;
    const tni_meta *in; /* shape and dtype of every input (rank 0 for TN_NONE) */
    const tni_meta *out;
    const bool *need; /* per input */
    /* where input 0's gradient goes; NULL once backward has added it there (tni_sum_so_far): then
     * dx[0] may be TN_NONE */
    const struct tni_edge *edge;
    bool adds; /* dx[0] is the sum of its gradients so far, to be added to */
    /* to fill where need is set; TN_NONE at first. May be dy itself, a view, or of broadcast shape:
     * the engine reduces, casts and copies, and checks for NULL */
    tn_tensor **dx;
} tni_grad;

struct tn_op {
    const char *name;    /* "softmax": messages say tn_softmax */
    const char *formula; /* one line, ASCII */
    /* NULL without backward; for each input that takes a gradient "dx = ...", "-" for one before it
     * that takes none, then "where ..." for short names; separated by "; ". dy is y's gradient */
    const char *gradient;
    /* NULL, or the names in the formula of one or two doubles in args, from constants_at on:
     * "low high"; where formulas share it, "s|slope" */
    const char *constants;
    size_t constants_at;
    int arity;         /* number of inputs, -1 any */
    unsigned optional; /* bits of inputs that may be TN_NONE */
    tni_dtype_rule dtypes;
    tni_cast autocast;
    /* outputs alias input 0 (variable arity: output i aliases input i): shape fills strided
     * specs, there is no forward */
    bool view;
    bool any_device; /* inputs may live on different devices (to, copy) */
    bool custom;     /* the user's: messages have its name without tn_ */
    bool draws;      /* args, without gaps, say which random numbers */
    /* if y has so many bytes, who reads it computes it again (saved.c); 0: never */
    size_t recompute;
    const bool *plain;          /* NULL, or which outputs carry no history in any case */
    unsigned reads[TNI_MAX_IN]; /* variable arity: reads[0] for all */
    /* bit mask of the inputs, TNI_X(k), that forward (dense) and kernel_grad (dense_grad, also
     * TNI_DY) want row-major: strided ones are copied */
    unsigned dense, dense_grad;
    tn_status (*shape)(tni_call *c);
    tn_status (*forward)(tni_call *c);
    tn_status (*backward)(tni_grad *g); /* NULL: not differentiable, outputs carry no history */
    const tn_op *transpose;             /* what tni_transposed applies */
    /* NULL, or backward by one kernel: used when nothing is recorded and a needed gradient reads
     * more than dy. The engine has allocated dx where need */
    tn_status (*kernel_grad)(tni_grad *g);
    /* a dy may be bf16 or f16 for a y of f32, too; kernel_grad adds to dx[0] if g->adds */
    bool takes_low, adds;
    void (*keep)(void *args); /* set if args own something: called once for each node's copy, */
    void (*drop)(void *args); /* and when that node is freed */
};

/* The descriptor op_NAME, by what every op has; behind it the other fields that it sets. */
#define TNI_OP(name_, ...) TNI_OP_AS(op_##name_, #name_, __VA_ARGS__)
#define TNI_OP_AS(op, ...) static const tn_op op = { TNI_OP_FIELDS(__VA_ARGS__) };
#define TNI_OP_FIELDS(name_, arity_, formula_, gradient_, shape_, forward_, backward_, ...)        \
    .name = name_, .arity = arity_, .formula = formula_, .gradient = gradient_, .shape = shape_,   \
    .forward = forward_, .backward = backward_, __VA_ARGS__

/* What the gradients of the inputs marked in need read, as a bit mask. */
static inline unsigned tni_reads(const tn_op *op, int n_in, const bool *need)
{
    unsigned reads = 0;
    for (int i = 0; i < n_in; i++)
        if (need[i]) reads |= op->reads[op->arity < 0 ? 0 : i];
    return reads;
}

/* Applies op to n_in inputs. args (args_size bytes of plain data, no pointers) are copied into the
 * node. */
tn_tensor *tni_apply(const tn_op *op, const void *args, size_t args_size, int n_in,
                     tn_tensor *const *in);
/* Several outputs: fills out[0..n_out), each in the current scope. */
tn_status tni_apply_n(const tn_op *op, const void *args, size_t args_size, int n_in,
                      tn_tensor *const *in, int n_out, tn_tensor **out);

/* The dtype of this thread's tn_set_autocast, TN_F32 when off. The engine sets it to TN_F32 for a
 * pass. */
extern TNI_THREAD tn_dtype tni_autocasting;
/* Whether op needs its inputs cast to other dtypes; and tni_apply_n with the inputs cast. */
bool tni_autocast_applies(const tn_op *op, int n_in, tn_tensor *const *in);
tn_status tni_autocast_apply(const tn_op *op, const void *args, size_t args_size, int n_in,
                             tn_tensor *const *in, int n_out, tn_tensor **out);
/* For a composite that runs in f32: x, but inside a region a bf16 or f16 x becomes f32. */
tn_tensor *tni_autocast_f32(tn_tensor *x);
/* tn_to_dtype, but ops that read a large result cast x again in backward, and keep nothing. */
tn_tensor *tni_cast_again(tn_tensor *x, tn_dtype dtype);
void tni_autocast_forget(void); /* drops this thread's kept casts of leaves */
/* Whether n_in inputs and n_out outputs of a user's function are there. */
tn_status tni_check_arrays(const char *function, int n_in, tn_tensor *const *in, int n_out,
                           tn_tensor **out);
/* What a user's function gave as its status: an error that it caused and ignored counts as a
 * failure, and a failure gets a message. errors: tni_error_count before the call. (custom.c) */
tn_status tni_user_status(const char *who, const char *function, tn_status status, uint64_t errors);
/* The thread's casts of parameters become others (NULL: none); returns the ones before. */
struct tni_map *tni_autocast_exchange(struct tni_map *casts);
/* *copy: the thread's casts, as they are now; false and a message: out of memory. */
bool tni_autocast_copy(struct tni_map **copy);
void tni_autocast_free(struct tni_map *casts); /* NULL is ignored */

/* The prefix of an op's name in messages. */
static inline const char *tni_op_prefix(const tn_op *op)
{
    return op->custom ? "" : "tn_";
}
/* tni_error with "tn_NAME: " in front. */
tn_status tni_op_error(const tni_call *c, tn_status status, const char *format, ...)
    TN_PRINTF(3, 4);

/* The dtype of results before they are rounded: f32 for bf16 and f16, else dtype itself. */
static inline tn_dtype tni_wide_dtype(tn_dtype dtype)
{
    return tni_is_half(dtype) ? TN_F32 : dtype;
}
tn_tensor *tni_wide(tn_tensor *x); /* x itself, but f32 instead of bf16 and f16. NULL stays */

/* softmax over the last axis of attention scores: a row of -inf gives 0, with slope 0. */
tn_tensor *tni_softmax_seen(tn_tensor *scores);
/* attention.c: all T x S of softmax(scale q k^T + mask), in ops; mask as in the public function. */
TNI_SHARED tn_tensor *tni_attention_weights(tn_tensor *q, tn_tensor *k, tn_tensor *mask,
                                            double scale, bool causal);
/* linear_int8.c: groups in a row of a weight of bytes; 0: w is none of so many inputs. */
TNI_SHARED int64_t tni_groups_of(const tn_tensor *w, int64_t in);

/* Layout for an output of spec's shape whose axes lie in memory in the order of like's: heads that
 * are a view of [B, T, H, D] give results whose heads merge back as a view. The last axis stays
 * innermost. (attention.c) */
void tni_lay_out_like(const tn_tensor *like, tni_spec *spec);
/* An axis of a public function's x, by tni_axis and tni_axis_of_any; -1 also where x is missing.
 * (view.c) */
int tni_axis_in(const char *function, const tn_tensor *x, int axis);
int tni_axis_in_any(const char *function, const tn_tensor *x, int axis);
/* x with n sizes in place of its axes first..end-1. (view.c) */
tn_shape tni_shape_with(const tn_shape *x, int first, int end, int n, const int64_t *sizes);

/* Shape rules that several ops share. */
tn_status tni_shape_like_first(tni_call *c); /* output 0: dtype and shape of input 0 */
/* For a rule that knows them: output 0's dtype and shape. TN_OK. */
static inline tn_status tni_result(tni_call *c, tn_dtype dtype, const tn_shape *shape)
{
    c->out_spec[0].dtype = dtype;
    c->out_spec[0].shape = *shape;
    return TN_OK;
}
/* For a rule of an op that saves: one more of c->saved. */
static inline void tni_saves(tni_call *c, tn_dtype dtype, const tn_shape *shape)
{
    c->saved_spec[c->n_saved].dtype = dtype;
    c->saved_spec[c->n_saved++].shape = *shape;
}

/* For a backward of one gradient: input 0's is dx, NULL if that failed, as the engine will say. */
static inline tn_status tni_give_dx(tni_grad *g, tn_tensor *dx)
{
    g->dx[0] = dx;
    return TN_OK;
}

/* The backward of that name, of one gradient: dx is the expression, of g. */
#define TNI_DX(name_, dx_)                                                                         \
    static tn_status name_(tni_grad *g)                                                            \
    {                                                                                              \
        return tni_give_dx(g, dx_);                                                                \
    }
/* Backwards that several ops share. */
tn_status tni_passed_on(tni_grad *g); /* every dx is dy */
/* Of a linear op of one input: dx is op->transpose of dy, with the same args. */
tn_status tni_transposed(tni_grad *g);

/* The gradient of output i, zeros when none arrived. */
tn_tensor *tni_dy(const tni_grad *g, int i);
/* The sum of input 0's gradients so far (its shape, dy's device), if backward may add to it; else
 * NULL. */
tn_tensor *tni_sum_so_far(const tni_grad *g);
/* For a backward written with ops where the kernel computes in f32: dy and all that backward reads
 * are cast from bf16 or f16 to f32, so that only the gradient is rounded (by the engine). */
tn_status tni_widen_grad(tni_grad *g);
/* The seed of row k of a Jacobian: shaped as like, 1 at element k in row-major order, else 0. */
tn_tensor *tni_basis(const tn_tensor *like, int64_t k);
/* Whether this thread is comparing gradients with differences. Then an embedding's padding row gets
 * the true gradient, not the 0 that it gets by definition. */
extern TNI_THREAD bool tni_padding_counts;
/* *held, a reference or NULL, becomes t and counts it; NULL: an error that is pending already. */
tn_status tni_hold(tn_tensor **held, tn_tensor *t);
/* Whether backward must be written with ops now (its result will be differentiated again). */
static inline bool tni_composed(void)
{
    return tn_grad_enabled();
}

/* A scope, and nothing is recorded, up to the end of the block. */
#define TNI_UNRECORDED                                                                             \
    TNI_SCOPED;                                                                                    \
    const int TN_WHEN_LEFT(tn_leave_no_grad_) tni_recorded_ = tn_set_grad_enabled(false)

/* Whether what has that name and those marks may be written now, or get another tensor: no constant
 * in a forward, no cache in a captured step, nothing with the values of an average. */
tn_status tni_may_change(const char *function, const char *name, int64_t marks);
/* TN_E_INVALID if several elements of target share memory: they can't have a value each. */
tn_status tni_own_memory(const char *function, const tn_tensor *target);
/* The only guard of in-place changes: TN_OK if every element of target may be written on its own,
 * and source (or TN_NONE) read. */
tn_status tni_may_write(const char *function, const tn_tensor *target, const tn_tensor *source);

/* A change of one tensor among many: x *= rate if y is NULL, else x += rate (y - x), for rate 1 a
 * copy (y has x's shape, dtype and device). x NULL: no change. */
typedef struct tni_change {
    tn_tensor *x, *y;
    double rate;
} tni_change;
/* Makes the changes that each(from, 0..n-1) returns in one launch: all or none. Tensors that are
 * strided, not f32 or f64, listed twice, or of another device or kind than the first are changed
 * before the launch, one by one. */
tn_status tni_change_all(const char *function, int n, tni_change (*each)(const void *from, int i),
                         const void *from);
/* A copy after writes that cannot be undone: if it fails, it is tried once more. */
tn_status tni_copy_last(const tni_backend *backend, const tni_array *y, const tni_array *x);
/* The same of one tensor's values to another one of its shape. */
tn_status tni_put_last(const tn_tensor *to, const tn_tensor *from);
