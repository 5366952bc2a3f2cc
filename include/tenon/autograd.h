/**
 * tenon/autograd.h - gradients: recording, backward, hooks, checks.
 *
 * Ops record themselves when grad mode is on and an input requires grad. tn_backward fills the grad
 * of every leaf that requires it; tn_gradients returns gradients as tensors, of any order.
 */
#ifndef TENON_AUTOGRAD_H
#define TENON_AUTOGRAD_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/* ---- what is recorded ------------------------------------------------------------------------ */

/** Marks a leaf as wanting (or not wanting) a gradient. Errors: not a leaf; not floating when
 *  true. */
TN_API tn_status tn_set_requires_grad(tn_tensor *t, bool requires_grad);
/* a gradient flows to t; true also for results of recorded ops */
TN_API bool tn_requires_grad(const tn_tensor *t);
TN_API bool tn_is_leaf(const tn_tensor *t);        /* true when no recorded op made it */
TN_API const char *tn_grad_op(const tn_tensor *t); /* of the op that made t; "" for a leaf */

/** Sets the grad mode of this thread; returns the mode before. `bool was =
 *  tn_set_grad_enabled(false); ... tn_set_grad_enabled(was);` */
TN_API bool tn_set_grad_enabled(bool on);
TN_API bool tn_grad_enabled(void); /* the mode now */
/* A block with another mode: `set` returns the mode before, which `leave` is given. */
#define TN_MODE_(name, leave, set)                                                                 \
    for (int TN_OF_LINE_(name) TN_WHEN_LEFT(leave) = set, TN_OF_LINE_(name##once_) = 1;            \
         TN_OF_LINE_(name##once_);                                                                 \
         TN_OF_LINE_(name##once_) = 0, TN_AT_END(leave(&TN_OF_LINE_(name))))
/** TN_NO_GRAD { ... }: the block records nothing. The mode before is restored however the block is
 *  left, as TN_SCOPE ends (tensor.h). */
#define TN_NO_GRAD TN_MODE_(tn_grad_, tn_leave_no_grad_, tn_set_grad_enabled(false))
static inline void tn_leave_no_grad_(const int *was)
{
    tn_set_grad_enabled(*was != 0);
}

/* ---- mixed precision ------------------------------------------------------------------------- */

/**
 * Mixed precision in this thread: bf16 or f16 for ops that are fast in it, f32 for ops that need
 * the precision. Parameters and their gradients stay f32. Returns the setting before; TN_F32 is
 * off, and how threads start.
 *
 *     TN_AUTOCAST(TN_BF16) loss = tn_cross_entropy(tn_forward(model, x), y);
 *     TN_CHECK(tn_backward(loss));
 *
 * In dtype  matmul linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d
 *           scaled_dot_product_attention scaled_dot_product_attention_dropout prelu
 * In f32    exp expm1 log log1p tan asin acos sinh cosh pow pow_scalar square reciprocal rsqrt
 *           softplus, sum sum_all mean mean_all var std prod norm logsumexp normalize
 *           cosine_similarity cumsum max min softmax log_softmax, cross_entropy cross_entropy_with
 *           nll_loss mse_loss l1_loss smooth_l1_loss huber_loss bce_with_logits kl_div bce_loss
 *           poisson_nll_loss gaussian_nll_loss triplet_margin_loss ctc_loss, layer_norm rms_norm
 *           group_norm, gather index_select scatter_add scatter embedding flip masked_select
 *           unique cumprod index sort topk median masked_scatter
 * Both      linear_cross_entropy linear_cross_entropy_with rnn gru lstm: products in dtype, loss,
 *           gates and states in f32
 * As is     everything else: views, activations, dropout, batch_norm and pooling; two dtypes
 *           promote (add, cat, where); einsum, by the ops that it calls
 * Left      unchanged: f64 tensors and the other inputs of an op that has one, integers, in-place
 *           ops, optimizers. Backward runs with autocast off, in the dtypes that forward used
 * Kept      the cast of an f32 leaf that requires grad, until autocast is switched off or the leaf
 *           changes; held by the thread, not by a scope. An inner region that switches autocast off
 *           drops the casts too. A cast of 1 MiB and more is kept from the second time on that the
 *           leaf is read; backward makes the first one again, so the leaf must not change before
 * f16       ends at 65504: scale the loss with a tn_scaler (optim.h)
 * Errors    another dtype: nothing changes
 * Source    Micikevicius et al., Mixed Precision Training (2018); lists: PyTorch's for CUDA, except
 *           that selections run in f32
 */
TN_API tn_dtype tn_set_autocast(tn_dtype dtype);
TN_API tn_dtype tn_autocast(void); /* the dtype now; TN_F32: off */
/** TN_AUTOCAST(TN_BF16) { ... }: the block runs with autocast; left and restored as TN_NO_GRAD. */
#define TN_AUTOCAST(dtype) TN_MODE_(tn_cast_, tn_leave_autocast_, (int)tn_set_autocast(dtype))
static inline void tn_leave_autocast_(const int *was)
{
    tn_set_autocast((tn_dtype)*was);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/** A new handle on the same storage, without history: a constant for backward. */
TN_API tn_tensor *tn_detach(tn_tensor *t);

/** The accumulated gradient; TN_NONE before the first backward. The current scope keeps it too. */
TN_API tn_tensor *tn_grad(tn_tensor *t);
/** Makes grad the gradient of t: shares its memory, without its history (TN_NONE clears). Errors:
 *  shape, dtype or device differ from t's; grad shares t's own memory. */
TN_API TN_MUST_USE tn_status tn_set_grad(tn_tensor *t, tn_tensor *grad);
/** Every later tn_backward keeps the gradient of this non-leaf, in memory of its own: read it with
 *  tn_grad. */
TN_API tn_status tn_retain_grad(tn_tensor *t);

/** Flags of tn_backward_from and tn_gradients. */
enum {
    TN_RETAIN_GRAPH = 1, /* keep what backward reads, for another backward over the same graph */
    /* tn_gradients only: record the gradients themselves; implies RETAIN_GRAPH */
    TN_CREATE_GRAPH = 2
};

/**
 * Gradients of loss with respect to every leaf behind it, added to their grads.
 *
 * Shapes   loss has one element; use tn_backward_from otherwise
 * Errors   no history; more than one element; a second backward without TN_RETAIN_GRAPH; a value
 *          that backward reads was changed in place since (the message names op, tensor and
 *          versions)
 * After a failure parameters, buffers and optimizer state are unchanged, and no grad of this pass
 * is left.
 */
TN_API TN_MUST_USE tn_status tn_backward(tn_tensor *loss);
/** The same from any tensor: seed has its shape (TN_NONE: ones, for one element). flags as
 *  above. */
TN_API TN_MUST_USE tn_status tn_backward_from(tn_tensor *output, tn_tensor *seed, int flags);

/**
 * d(sum of outputs * seeds) / d(inputs), without touching any grad.
 *
 * outputs  n_out tensors with history; seeds one per output, or NULL for ones (one-element outputs)
 * inputs   n_in tensors that require grad, leaves or not
 * grads    n_in results, TN_NONE where an output does not depend on the input; all NULL on failure.
 *          They share no memory with a seed, nor, without TN_CREATE_GRAPH, with each other
 * Owner    current scope. With TN_CREATE_GRAPH they have history themselves.
 */
TN_API TN_MUST_USE tn_status tn_gradients(int n_out, tn_tensor *const *outputs,
                                          tn_tensor *const *seeds, int n_in,
                                          tn_tensor *const *inputs, tn_tensor **grads, int flags);

/** A function of n inputs, for derivatives.h and tn_gradcheck (diagnose.h): returns one tensor. */
typedef tn_tensor *(*tn_function)(tn_tensor **inputs, void *user);

/* ---- hooks ----------------------------------------------------------------------------------- */

/**
 * Called with the gradient that flows into a tensor; returns it, or a replacement of the same
 * shape, dtype and device. NULL or any other tensor fails the backward.
 *
 * Hooks of a tensor run in the order of registration. A hook may add hooks (they run from the next
 * pass on), remove any, itself included (a removed one is not called again), free the graph, and
 * run a backward of its own, even over the same graph: with TN_RETAIN_GRAPH, since the outer one
 * still needs the graph.
 */
typedef tn_tensor *(*tn_grad_hook)(tn_tensor *grad, void *user);
/** Registers a hook on a tensor (leaf or not); returns an id for removal, -1 on failure. */
TN_API int64_t tn_register_hook(tn_tensor *t, tn_grad_hook hook, void *user);
/** Removes the hook with this id. Removing twice is harmless. */
TN_API void tn_remove_hook(tn_tensor *t, int64_t id);

/* ---- finding a fault ------------------------------------------------------------------------- */

/** What tn_set_anomaly looks at. */
typedef enum tn_anomaly {
    TN_ANOMALY_OFF,       /* nothing: how threads start */
    TN_ANOMALY_GRADIENTS, /* gradients only */
    TN_ANOMALY_ALL        /* results of ops too */
} tn_anomaly;
/**
 * Looks for NaN and infinities in this thread: the op or backward that makes the first one fails,
 * with an error that names the op, the module that called it, the shape, the element, and whether
 * an input held it already. Returns the mode before. Use it to find a fault: it is slow, as every
 * result is read again.
 *
 * Start    TN_ANOMALY=1 in the environment sets TN_ANOMALY_ALL in every thread;
 *          TN_ANOMALY=gradients sets TN_ANOMALY_GRADIENTS
 * Masks    -inf is allowed in a result where masked_fill put it, or where an input held it already
 * Unseen   in-place changes, until an op reads them. Ops that record nothing are checked too
 * Ignored  inside tn_explain_training, tn_module_gradcheck and between tn_trace_begin and its end
 */
TN_API tn_anomaly tn_set_anomaly(tn_anomaly mode);
TN_API tn_anomaly tn_get_anomaly(void); /* the mode now */

/* ---- what nodes remember --------------------------------------------------------------------- */

/* Settings of a thread: off at its start, and then they cost nothing. Setting one returns what it
 * was before. Not in captured steps on a GPU; ignored inside tn_explain_training and
 * tn_module_gradcheck. */

/**
 * Sets whether nodes remember where they were recorded: in which call of a module, which buffers
 * that call changed, and which tensors without gradient the op read. A graph recorded with it on
 * keeps its inputs (data, targets, buffers) until it is freed.
 *
 *     TN_PLACES loss = tn_cross_entropy(tn_forward(model, x), y);
 *     TN_CHECK(tn_graph_visit(loss, visit, NULL, (tn_graph_options){ .model = model }));
 */
TN_API bool tn_set_places(bool on);
TN_API bool tn_places(void); /* the setting now */
/** TN_PLACES { ... }: the block records places; left and restored as TN_NO_GRAD. */
#define TN_PLACES TN_MODE_(tn_places_, tn_leave_places_, tn_set_places(true))
static inline void tn_leave_places_(const int *was)
{
    tn_set_places(*was != 0);
}

/**
 * Sets whether nodes remember the source line that called their op, for tn_graph_visit and what is
 * built on it: the innermost line outside of tenon, so for a layer's ops it is where your code
 * called the layer. It costs some microseconds for each op.
 *
 * Needs    a program with debug information (cc -g) and tenon's module libtenon-lines.so (built
 *          where libdw is found). Without either the place is an address: "program+0x1139". Where
 *          tenon is linked statically, both are needed for anything to be known
 */
TN_API bool tn_set_lines(bool on);
TN_API bool tn_lines(void); /* the setting now */

TN_END_C_

#include <tenon/diagnose.h> /* for one release: tn_gradcheck stood here */

#endif
