/**
 * tenon/micro_batches.h - one batch in several parts: gradients add up, and buffers move as they
 * would for the whole batch.
 *
 *     TN_CHECK(tn_optim_zero_grad(opt));
 *     TN_MICRO_BATCHES(i, 4)
 *     {
 *         tn_tensor *loss = tn_cross_entropy(tn_forward(model, x[i]), y[i]);
 *         TN_CHECK(tn_backward(tn_div_scalar(loss, 4)));
 *     }
 *     TN_CHECK(tn_error_status());
 *     TN_CHECK(tn_optim_step(opt));
 *
 * In each part, modules in training find their statistics, counters and directions (module.h) as
 * they were before the batch. After the last part each has moved once: counters and directions as
 * in the first part, statistics to the mean of what the parts made of them, and the running mean
 * and variance of a BatchNorm by the mean and variance of all values that it saw in the parts. What
 * it saw behind another BatchNorm was normalized part by part: that is not what the whole batch
 * would give there. Plain buffers and caches move in each part.
 */
#ifndef TENON_MICRO_BATCHES_H
#define TENON_MICRO_BATCHES_H

#include <tenon/module.h>

TN_BEGIN_C_

/**
 * Runs its block with i = 0 .. n - 1, one part of a batch each. Backward of a part belongs into its
 * block: at the end of it buffers are put back.
 *
 * Checkpoint within the block: it belongs to the batch after this part. Once it is loaded, the next
 *            TN_MICRO_BATCHES of this thread, which must have the same n, begins with the part that
 *            follows, or runs none. Loading any checkpoint with buffers that this thread's batch
 *            moves ends that batch
 * Ranks      the last part's averaging backward sees buffers that have moved; they stay so, even if
 *            an error follows
 * Errors     the block runs no more, and tn_error_status tells: n < 1; another batch is open in
 *            this thread: left by break or return (tn_micro_batches_cancel), or around this one;
 *            another n than a loaded checkpoint's; a buffer that a part gave another shape; out of
 *            memory
 */
#define TN_MICRO_BATCHES(i, n)                                                                     \
    for (int i = tn_micro_batches_begin(n); i >= 0; i = tn_micro_batches_next())
/** The first part of a batch of n parts; -1: none is left, or an error. */
TN_API int tn_micro_batches_begin(int n);
/** Ends a part: the next one's number; -1 after the last, when buffers have moved, and on errors,
 *  when all of the batch is forgotten. */
TN_API int tn_micro_batches_next(void);
/** Ends a batch that was left by break or return: its buffers are as before it. None: nothing. */
TN_API void tn_micro_batches_cancel(void);

/**
 * For the forward of a module with a running mean and variance: in TN_MICRO_BATCHES keeps mean and
 * var, which all parts together then move them by; otherwise moves them now, r += momentum (new -
 * r). Parts keep nothing again in a second run of tn_recompute.
 *
 * running_mean, running_var   buffers of equal shape, with role TN_STATISTIC
 * mean, var   of this x, of that shape: var unbiased, of n values each
 * Errors      NULL or TN_NONE; shapes that differ; running ones that are no floats; n < 2;
 *             momentum outside [0, 1]
 * Source      Chan, Golub and LeVeque (1979), eq. 2.1, for several parts at once
 */
TN_API TN_MUST_USE tn_status tn_move_statistics(tn_tensor *running_mean, tn_tensor *running_var,
                                                tn_tensor *mean, tn_tensor *var, int64_t n,
                                                double momentum);

TN_END_C_
#endif
