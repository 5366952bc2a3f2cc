/**
 * tenon/capture.h - a training step captured once and run again, as a CUDA graph.
 *
 * A step is many small kernels; on a GPU the time to launch them one by one can be longer than they
 * run. A capture launches them all at once. Put forward, backward and the optimizer's step into one
 * function of the batch, and call it through the capture:
 *
 *     static tn_tensor *step(void *user, int n, tn_tensor *const *in)
 *     {
 *         run *r = user;
 *         tn_tensor *loss = tn_cross_entropy(tn_forward(r->model, in[0]), in[1]);
 *         tn_status status = tn_optim_zero_grad(r->opt);
 *         if (status == TN_OK) status = tn_backward(loss);
 *         if (status == TN_OK) status = tn_optim_step(r->opt);
 *         return status == TN_OK ? loss : NULL;
 *     }
 *
 *     tn_capture *c = tn_capture_new(step, &r, tn_cuda(0));
 *     loss = tn_capture_run(c, 2, (tn_tensor *[]){ x, y });       - in place of step(&r, 2, ...)
 *     TN_CHECK(tn_scheduler_step(schedule));                      - between the runs, as are
 *                                                                 tn_item(loss), EMA
 *
 * On the CPU a run is a call of the function. On a GPU the first run is one too; the second
 * captures the step and runs it; every other runs what was captured, and your function is not
 * called.
 * Parameters, buffers, optimizer state, gradients and the loss are then the same bits as after
 * calls, dropout draws new masks in each run, and rates, weight decay, momentum schedules and step
 * counts are those of the time of the run.
 *
 * What your own code does in the function besides calling tenon (printing, counting, branches) it
 * does in these two runs only. What tenon would do there only once is refused when the step is
 * captured, with what to do instead: values read (tn_item, tn_clip_grad_norm: see
 * tn_clip_grad_norm_tensor), data and random numbers from the host, cuRAND's numbers, rates set,
 * tn_scaler_*, tn_ema_update, batch norm with cumulative or skip_nonfinite, tensors on the CPU, and
 * tn_one_hot with n -1, which looks for the largest index. Then nothing has changed but what your
 * code did. Modules stay in the mode (tn_train, tn_eval) that the capture found: in another one a
 * run is refused.
 */
#ifndef TENON_CAPTURE_H
#define TENON_CAPTURE_H

#include <tenon/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One training step: forward, backward, update. Returns what you want to see of it, the loss for
 *  example, or TN_NONE; NULL when it fails. It runs in a scope of its own. */
typedef tn_tensor *(*tn_step)(void *user, int n, tn_tensor *const *inputs);

typedef struct tn_capture tn_capture;

/** Owner    yours: tn_capture_free. Errors   NULL: no step, or a device that is not there */
TN_API tn_capture *tn_capture_new(tn_step step, void *user, tn_device device);

/**
 * One step over n inputs, from any device: they are copied to the capture's, where the step finds
 * them.
 *
 * Returns  what step returned, without history, in the current scope. On a GPU the captured runs
 *          return the same memory every time, so read or copy it before the next
 * Errors   NULL. Inputs of another number, shape or dtype than in the first run, or that require
 *          grad; whatever step fails with; what cannot be captured (above). On a GPU, in later
 *          runs: a parameter, buffer or optimizer state is no longer the tensor it was (moved,
 *          cast, replaced, loaded), was frozen or thawed, or gradients were left where there were
 *          none: make a new capture. A run that fails has changed no parameter, buffer, gradient,
 *          optimizer state or generator; the first may have done what a failed call of step does
 */
TN_API tn_tensor *tn_capture_run(tn_capture *c, int n, tn_tensor *const *inputs);

/** Waits for the device. Gradients and results that are still held stay valid. NULL is ignored. */
TN_API void tn_capture_free(tn_capture *c);

#ifdef __cplusplus
}
#endif
#endif
