/*
 * seed.c - what a pass starts from: the outputs that the caller names, and their gradients, which
 * are checked here.
 */
#include "autograd/pass.h"

tn_status tni_gradient_fits(const char *function, const char *what, const tn_tensor *g,
                            const char *role, const tn_tensor *t)
{
    if (!tni_shape_equal(&g->shape, &t->shape) || g->dtype != t->dtype)
        return tni_error(
            TN_E_SHAPE, "%s: %s %s of %s for %s%s of %s: want the same shape and dtype", function,
            what, tni_text(g), tn_dtype_name(g->dtype), role, tni_text(t), tn_dtype_name(t->dtype));
    if (tni_same_device(g->storage->device, t->storage->device)) return TN_OK;
    return tni_error(TN_E_DEVICE, "%s: %s %s and %s%s are on different devices: want one device",
                     function, what, tni_text(g), role, tni_text(t));
}

/* A seed that the graph may take: of the output's shape, dtype and device. */
static tn_tensor *seed_for(const tni_pass *p, const char *function, tn_tensor *output,
                           tn_tensor *seed)
{
    if (tni_absent(output)) return tni_poisoned(function, "the output");
    if (!output->requires_grad)
        return tni_fail(TN_E_STATE, "%s: %s has no history and does not require grad%s", function,
                        tni_text(output),
                        p->was_recording
                            ? ": want a result of recorded ops on tensors that require grad"
                            : ", and recording is off in this thread: want it computed outside of "
                              "TN_NO_GRAD, and after tn_set_grad_enabled(true)");
    if (!seed) return tni_poisoned_optional(function, "a seed");
    if (tni_none(seed)) {
        if (tni_shape_numel(&output->shape) != 1)
            return tni_fail(TN_E_SHAPE,
                            "%s: %s has %" PRId64
                            " elements and no seed was given: want one element, "
                            "or a seed of its shape (tn_backward_from)",
                            function, tni_text(output), tni_shape_numel(&output->shape));
        return tn_full_as(output->shape, 1, output->dtype, output->storage->device);
    }
    return tni_gradient_fits(function, "seed", seed, "output ", output) == TN_OK ? seed : NULL;
}

tn_status tni_pass_seed(tni_pass *p, const char *function, int n, tn_tensor *const *outputs,
                        tn_tensor *const *seeds)
{
    for (int i = 0; i < n; i++) {
        tn_tensor *seed = seed_for(p, function, outputs[i], seeds ? seeds[i] : TN_NONE);
        if (!seed) return tni_pending();
        const tni_edge to = { outputs[i]->node, outputs[i], outputs[i]->out_index };
        TNI_TRY(tni_pass_deliver(p, &to, seed, false));
    }
    return TN_OK;
}
