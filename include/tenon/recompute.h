/**
 * tenon/recompute.h - activations that are computed again in backward instead of being kept.
 *
 * A function is called through tn_recompute. Its results are recorded, but nothing of what its ops
 * would keep for backward is: only its inputs are. The first time that backward needs one of them,
 * the function runs again, and its ops keep what they need, until backward has used it. So memory
 * between forward and backward holds the inputs, and one function's activations at a time; the
 * price is one more forward.
 *
 *     static tn_status block(int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
 *                            void *user)
 *     {
 *         net *m = user;
 *         out[0] = tn_add(in[0], tn_forward(m->ff, tn_forward(m->norm, in[0])));
 *         return TN_OK;
 *     }
 *     ...
 *     x = tn_recompute(block, m, 1, &x);
 *
 * For whole modules there is tn_module_set_recompute (module.h).
 */
#ifndef TENON_RECOMPUTE_H
#define TENON_RECOMPUTE_H

#include <tenon/autograd.h>

TN_BEGIN_C_

/** Fills out[0..n_out) from in[0..n_in), as a forward does; in the second run with the same inputs
 *  (other handles on them). An error that is pending when it returns fails the call. */
typedef tn_status (*tn_recompute_function)(int n_in, tn_tensor *const *in, int n_out,
                                           tn_tensor **out, void *user);

/**
 * Calls function with n_in inputs (TN_NONE is allowed); returns its one output, in the current
 * scope. Outputs, gradients and everything below have the same bits as without tn_recompute.
 *
 * user       anything; it must be valid until backward has run or the results are freed
 * Parameters of modules, and other leaves that function reads, need not be inputs: they get their
 *            gradients, and hooks on them run once
 * Random     numbers from the default generator, and dropout's masks, are the same in both runs;
 *            afterwards the generator is where one run leaves it
 * Buffers    registered in modules find in the second run what the first one found, and are then
 *            put back: written in place or by tn_assign, they move once. What else the function
 *            changes (a count in a struct, a generator of its own) it changes twice, unless it asks
 *            tn_recomputing
 * Nested     a function may call tn_recompute
 * Threads    while backward runs function, no other thread may draw from the default generator
 * Off        under TN_NO_GRAD function is just called
 * Errors     function NULL; an input NULL; what function fails with; an output that is NULL. Then
 *            buffers and the generator are as they were before
 * Later      backward fails where an input, or a parameter or buffer that function read, was
 *            changed in place or replaced after that; and where function did not record the same
 *            ops with the same shapes again (a mode was switched), or dropout drew another mask.
 *            Numbers from a generator of its own are drawn anew, which nothing notices. After a
 *            second run that failed, another backward wants a new forward
 * Cycles     a module whose call is made again must not hold that call's results with their
 *            history (tn_assign, without tn_detach) when it is dropped: neither would be freed
 * Source     Chen et al., Training deep nets with sublinear memory cost (2016)
 */
TN_API tn_tensor *tn_recompute(tn_recompute_function function, void *user, int n_in,
                               tn_tensor *const *in);
/** The same for n_out outputs; all NULL on failure. */
TN_API TN_MUST_USE tn_status tn_recompute_n(tn_recompute_function function, void *user, int n_in,
                                            tn_tensor *const *in, int n_out, tn_tensor **out);
/** Whether this thread is in the second run of such a function. */
TN_API bool tn_recomputing(void);

TN_END_C_
#endif
