/*
 * trace.h - looking on while ops are applied and differentiated.
 *
 * A thread has at most one tracer: the checks of tn_set_anomaly, or a report's recorder. Without
 * one, an op pays one branch on a thread-local pointer.
 */
#ifndef TNI_TRACE_H
#define TNI_TRACE_H

#include "autograd/op.h"

typedef struct tni_tracer tni_tracer;

/* Each may be NULL. A status other than TN_OK, with its message, fails what is being looked at. */
struct tni_tracer {
    /* an op has been applied; c->out has its values and its history */
    tn_status (*applied)(tni_tracer *self, const tni_call *c);
    /* `to` is `from` without its history */
    tn_status (*detached)(tni_tracer *self, tn_tensor *from, tn_tensor *to);
    /* an in-place function is about to change target; source may be TN_NONE */
    tn_status (*writes)(tni_tracer *self, const char *function, const tn_tensor *target,
                        const tn_tensor *source);
    /* all gradients of a node's outputs are there, in node->pending */
    tn_status (*arrived)(tni_tracer *self, const tni_node *node);
    /* a node's backward has filled g->dx */
    tn_status (*differentiated)(tni_tracer *self, const tni_node *node, const tni_grad *g);
    /* the gradient of a leaf is complete */
    tn_status (*finished)(tni_tracer *self, const tn_tensor *leaf, tn_tensor *grad);
};

/* The calling thread's. initial-exec: the branch reads the pointer without a call. */
extern _Thread_local tni_tracer *tni_tracing __attribute__((tls_model("initial-exec")));
/* Sets it to NULL and returns what it was, for the caller to put back: the engine does so for a
 * whole pass, and calls the tracer itself. */
tni_tracer *tni_trace_suspend(void);

/* Whether something looks on in this thread. */
bool tni_trace_on(void);

/* The largest |x|: NaN where x holds one, 0 of no elements. x is floating, of any dtype. */
tn_status tni_magnitude(tn_tensor *x, double *largest);

#endif
