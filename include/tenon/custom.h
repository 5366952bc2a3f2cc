/**
 * tenon/custom.h - ops of your own: a forward, a backward, and what to keep between them.
 *
 * An op of yours is recorded, freed, looked at (tn_graph_visit) and checked (tn_gradcheck) as ours
 * are. Its forward is written with our ops or in plain C; nothing in it is recorded. If its
 * backward is written with ops, and reads only inputs and outputs, it can be differentiated again.
 *
 *     static tn_status swish(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
 *                            tn_tensor **out)
 *     {
 *         out[0] = tn_mul(in[0], tn_sigmoid(in[0]));
 *         return tn_custom_save(c, in[0]);
 *     }
 *     static tn_status swish_grad(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
 *                                 tn_tensor **din)
 *     {
 *         tn_tensor *x = tn_custom_saved(c, 0), *s = tn_sigmoid(x);
 *         tn_tensor *slope = tn_mul(s, tn_add_scalar(tn_mul(x, tn_sub(tn_ones_like(s), s)), 1));
 *         din[0] = tn_mul(dout[0], slope);
 *         return TN_OK;
 *     }
 *     static const tn_custom_op op = { "swish", "y = x sigmoid(x)", swish, swish_grad };
 *     ...
 *     tn_tensor *y = tn_apply(&op, NULL, 1, &x);
 *
 * NULL results need no check in either function: an error that is pending when it returns becomes
 * the error of the call. For one of your own, call tn_fail(TN_E_SHAPE, "swish: ...") and return
 * TN_E_SHAPE.
 */
#ifndef TENON_CUSTOM_H
#define TENON_CUSTOM_H

#include <tenon/autograd.h>

TN_BEGIN_C_

/** One application of an op, as its forward and backward see it. Not valid after they return. */
typedef struct tn_custom tn_custom;

/** An op of yours. It must live as long as the graphs that it is part of: a static const. */
typedef struct tn_custom_op {
    const char *name;    /* for messages, tn_grad_op and the tape */
    const char *formula; /* one line, "y = x sigmoid(x)"; may be NULL */
    /** Fills out[0..n_out). Runs without recording, in a scope of its own. */
    tn_status (*forward)(tn_custom *c, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out);
    /**
     * Fills din[i], the gradient of input i, where tn_custom_needs(c, i); what it puts elsewhere is
     * ignored. din[i] begins as TN_NONE, and is left so where an input takes no gradient. dout[i]
     * is the gradient of output i: zeros if none came, TN_NONE if the output takes none. NULL: the
     * results have no history.
     *
     * din[i] has the shape of input i, or a larger one that the input broadcasts to (then it is
     * summed), and any floating dtype. It may be dout itself or a view.
     */
    tn_status (*backward)(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                          tn_tensor **din);
    void (*free)(void *user); /* for the user data of each application; may be NULL */
    /** backward is not written with ops, so TN_CREATE_GRAPH through it is an error instead of a
     *  second derivative that lacks a part. */
    bool once_differentiable;
    /** How the gradients follow, for people, as tn_graph_node.gradient; may be NULL. */
    const char *gradient;
} tn_custom_op;

/**
 * Applies an op of yours to n_in inputs (TN_NONE where your op allows it); returns its one output.
 *
 * user       anything; tn_custom_user reads it. op->free is called with it once, when the last
 *            graph that needs it is freed, or when the call ends, also by a failure
 * Autocast   inputs are not cast. forward runs in the region's mode, and backward in forward's
 * Captures   allowed; the C code of forward and backward runs when the step is captured, not later
 * Threads    an op may be used in any number of threads
 * Errors     op, its name or forward NULL; an input NULL; what forward fails with; no output;
 *            forward, while it is recorded, changed an input that requires grad in place (it
 *            stays changed)
 * Later      backward fails if what was saved has changed since (the message names the op), and if
 *            a gradient is NULL, not floating, on another device, or of a shape that does not fit
 * Source     PyTorch's torch.autograd.Function
 */
TN_API tn_tensor *tn_apply(const tn_custom_op *op, void *user, int n_in, tn_tensor *const *in);
/** The same for n_out outputs, all in the current scope; all NULL on failure. */
TN_API TN_MUST_USE tn_status tn_apply_n(const tn_custom_op *op, void *user, int n_in,
                                        tn_tensor *const *in, int n_out, tn_tensor **out);

/** In forward: keeps t for backward, as number 0, 1, ... in the order of the calls. An input or an
 *  output comes back with its history; any other tensor as a constant, so that second derivatives
 *  lack its part. TN_NONE is allowed. Errors, which also fail the call: t NULL; not in forward. */
TN_API tn_status tn_custom_save(tn_custom *c, tn_tensor *t);
/** In backward: the i-th saved tensor, borrowed. Errors: not in backward; no such number. */
TN_API tn_tensor *tn_custom_saved(const tn_custom *c, int i);
/** Whether input i takes a gradient: in forward, in any pass; in backward, in this one. */
TN_API bool tn_custom_needs(const tn_custom *c, int i);
/** In forward: output i carries no history and takes no gradient (an index, a mask, a count).
 *  Integers never do. Errors, which also fail the call: not in forward; no such output. */
TN_API tn_status tn_custom_no_gradient(tn_custom *c, int i);
/** The user data of this application. */
TN_API void *tn_custom_user(const tn_custom *c);

TN_END_C_
#endif
