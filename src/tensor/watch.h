/*
 * watch.h - callbacks while a thread works: tensors made, read, written; ops; backward.
 *
 * A thread has at most one watcher: places or the checks of tn_set_anomaly (autograd/anomaly.c), a
 * report (ext/diagnose/explain_run.c), the recorder of traces (ext/trace), or a captured step
 * (ext/capture). Without one, an event costs one branch on a thread-local pointer. Types of the
 * folders above are only declared here.
 */
#pragma once

#include "base/base.h"

typedef struct tni_watcher tni_watcher;
struct tni_storage;
struct tni_call;
struct tni_node;
struct tni_grad;
struct tni_engine_pass;
struct tni_hooked;
struct tn_module;
struct tn_optim;

/* Each may be NULL. A status other than TN_OK, with its message, makes the watched call fail. */
struct tni_watcher {
    bool only_times; /* it reads no tensor, so ops may write over what nobody else reads */
    /* -- memory (tensor.c) -- */
    void (*handle_made)(tni_watcher *self, const tn_tensor *t);
    void (*storage_made)(tni_watcher *self, struct tni_storage *s);
    /* an address of t is about to be used; t was written, or is about to be */
    void (*uses)(tni_watcher *self, const tn_tensor *t);
    void (*writes)(tni_watcher *self, const tn_tensor *t);

    /* -- ops, except those of the engine and of the watcher itself (autograd/notify.h) -- */
    /* an op of this name has its operands, or an optimizer its hooks, and is about to compute */
    tn_status (*starts)(tni_watcher *self, const char *op);
    /* c->out has its values and its history */
    tn_status (*applied)(tni_watcher *self, const struct tni_call *c);
    /* `to` is `from` without its history */
    tn_status (*detached)(tni_watcher *self, tn_tensor *from, tn_tensor *to);
    /* an in-place function is about to change target; source may be TN_NONE */
    tn_status (*changes)(tni_watcher *self, const char *function, const tn_tensor *target,
                         const tn_tensor *source);

    /* -- backward -- */
    /* a pass has its seeds, and begins; it has run its hooks, or failed */
    void (*begins)(tni_watcher *self, const struct tni_engine_pass *p);
    void (*ends)(tni_watcher *self, const struct tni_engine_pass *p, tn_status status);
    /* all gradients of a node's outputs have arrived, in node->pending */
    tn_status (*arrived)(tni_watcher *self, const struct tni_node *node);
    /* a node's backward has filled g->dx */
    tn_status (*differentiated)(tni_watcher *self, const struct tni_node *node,
                                const struct tni_grad *g);
    /* of that, `given` was brought to the shape and dtype of input i and added where it goes */
    void (*delivered)(tni_watcher *self, const struct tni_node *node, int i, tn_tensor *given,
                      tn_tensor *share);
    /* a hook on a gradient has run, or the first is about to */
    void (*hooked)(tni_watcher *self, const struct tni_hooked *h, const tn_tensor *gradient);
    /* the gradient of a leaf is complete */
    tn_status (*finished)(tni_watcher *self, const tn_tensor *leaf, tn_tensor *grad);
    /* and is now the mean over the ranks of a run, whose pass is over */
    void (*averaged)(tni_watcher *self, const tn_tensor *leaf, const tn_tensor *average, int ranks);
    /* leaf's grad is about to be set, or (adding) to be added to */
    tn_status (*grad_changes)(tni_watcher *self, tn_tensor *leaf, bool adding);

    /* -- above -- */
    void (*called)(tni_watcher *self, struct tn_module *m, int n_in, tn_tensor *const *in);
    /* an optimizer is about to write n parameters: opt->part[0..n), and opt->call by a kernel */
    tn_status (*steps)(tni_watcher *self, struct tn_optim *opt, int n);
    void (*stepped)(tni_watcher *self, struct tn_optim *opt); /* and has changed them */
    /* tn_clip_grad_norm has multiplied gradients of this joint norm by the factor, if below 1 */
    void (*clipped)(tni_watcher *self, double norm, double limit, double factor);
    /* The host reads, draws or decides something that later runs of a captured step would not:
     * "tn_item" "reads a value": want "it read after tn_capture_run". Sets the message. */
    void (*refuses)(tni_watcher *self, const char *function, const char *does, const char *want);
};

/* The calling thread's. */
TNI_SHARED extern TNI_THREAD tni_watcher *tni_watching;
/* Its value in a new thread, until its first op or pass has read TN_ANOMALY; watches nothing. */
extern tni_watcher tni_unsettled;

/* Whether a step is being captured, so that its runs will repeat only the device's part of it. */
static inline bool tni_host_counts(void)
{
    return __builtin_expect(tni_watching != NULL, 0) && tni_watching->refuses;
}

/* The same, with an error for a function that cannot be part of such a step. */
static inline bool tni_host_refused(const char *function, const char *does, const char *want)
{
    if (!tni_host_counts()) return false;
    tni_watching->refuses(tni_watching, function, does, want);
    return true;
}
