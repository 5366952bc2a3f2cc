/**
 * tenon/capture.h - a training step captured once and run again, as a CUDA graph; late numbers.
 *
 * A step is many small kernels; on a GPU, launching them one by one can take longer than running
 * them. A capture launches them all at once. Put forward, backward and the optimizer's step into
 * one function of the batch, and call it through the capture:
 *
 *     tn_capture *c = tn_capture_new(step, &r, tn_cuda(0));
 *     loss = tn_capture_run(c, 2, (tn_tensor *[]){ x, y });       - in place of step(&r, 2, ...)
 *     TN_CHECK(tn_scheduler_step(schedule));           - between the runs, as tn_item(loss), EMA
 *
 * On the CPU every run calls the function. On a GPU the first run calls it, the second captures the
 * step and runs it, and all later runs replay what was captured: your function is not called again.
 * Parameters, buffers, optimizer state, gradients and the loss then have the same bits as after
 * plain calls. Dropout draws new masks in each run, and each run uses the rates, weight decay,
 * momentum schedules and step counts of its time.
 *
 * What your function does besides calling tenon (printing, counting, branches) happens in those two
 * runs only. Calls to tenon that could not be replayed are refused when the step is captured, with
 * a message that says what to do instead: reading values (tn_item, tn_clip_grad_norm: see
 * tn_clip_grad_norm_tensor), data and random numbers from the host, cuRAND's numbers, setting
 * rates, tn_scaler_*, tn_ema_*, hooks and updates of an optimizer (optim.h, optim_type.h), batch
 * norm with cumulative or skip_nonfinite, changes of a cache (module.h), CPU tensors, and what
 * looks at values: tn_one_hot with n -1, tn_unique, tn_nonzero, tn_bincount and kin. After such a
 * refusal nothing has changed except by your own code. Modules must be in the mode (tn_train,
 * tn_eval) of the capture: in another one a run is refused.
 */
#ifndef TENON_CAPTURE_H
#define TENON_CAPTURE_H

#include <tenon/optim.h>

TN_BEGIN_C_

/** One training step: forward, backward, update. Returns the tensor you want back, for example the
 *  loss, or TN_NONE; NULL when it fails. It runs in a scope of its own. */
typedef tn_tensor *(*tn_step)(int n, tn_tensor *const *inputs, void *user);

/** A step with what was captured of it. */
typedef struct tn_capture tn_capture;

/** Makes one for a device; nothing runs yet. Owner: yours, tn_capture_free. Errors: NULL: no step,
 *  or a device that does not exist. */
TN_API tn_capture *tn_capture_new(tn_step step, void *user, tn_device device);

/**
 * Runs one step over copies, on the capture's device, of n inputs from any device.
 *
 * Returns  what step returned, without history, in the current scope. On a GPU the captured runs
 *          return the same memory every time, so read or copy it before the next
 * Errors   NULL. Inputs that differ in number, shape or dtype from the first run's, or that require
 *          grad; whatever step fails with; what cannot be captured (above). On a GPU, in later
 *          runs: a parameter, buffer or optimizer state is no longer the same tensor (moved, cast,
 *          replaced, loaded), was frozen or thawed, or has a gradient where it had none: make a new
 *          capture. A failed run has changed no parameter, buffer, gradient, optimizer state or
 *          generator; only a failed first run may leave what a failed call of step leaves
 */
TN_API tn_tensor *tn_capture_run(tn_capture *c, int n, tn_tensor *const *inputs);

/** Waits for the device, then frees the capture. Gradients and results that are still held stay
 *  valid. NULL is ignored. */
TN_API void tn_capture_free(tn_capture *c);

/** A number on its way from a GPU. tn_item waits for all that the device was given, this only for
 *  what came before tn_later_new: so a loss is printed while the next step runs. */
typedef struct tn_later tn_later;
/** Begins to read t, one element, as it is now. Owner: yours, tn_later_take. Errors: NULL:
 *  t has more elements; in a captured step. */
TN_API tn_later *tn_later_new(const tn_tensor *t);
/** Waits for the number, frees later, and returns it. NULL: NaN, without an error. Errors: NaN:
 *  those of tn_item. */
TN_API double tn_later_take(tn_later *later);

TN_END_C_
#endif
