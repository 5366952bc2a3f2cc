/*
 * tell.h - what the ops and the engine tell the thread's watcher (tensor/watch.h). Each function
 * returns the watcher's status, TN_OK if there is none.
 */
#ifndef TNI_TELL_H
#define TNI_TELL_H

#include "autograd/op.h"

/* Hooks are given a gradient, one after the other. */
typedef struct tni_hooked {
    const tni_node *node; /* the gradient of this node's result `output`; */
    int output;
    const tn_tensor *leaf; /* or of this leaf, and node NULL */
    int number, of;        /* how many have run, of how many; 0: they are about to */
} tni_hooked;

tn_status tni_tell_applied(const tni_call *c);
tn_status tni_tell_detached(tn_tensor *from, tn_tensor *to);
tn_status tni_tell_change(const char *function, const tn_tensor *target, const tn_tensor *source);
tn_status tni_tell_arrived(const tni_node *node);
tn_status tni_tell_differentiated(const tni_node *node, const tni_grad *g);
void tni_tell_begins(const struct tni_engine_pass *p);
void tni_tell_ends(const struct tni_engine_pass *p, tn_status status);
void tni_tell_delivered(const tni_node *node, int i, tn_tensor *given, tn_tensor *share);
/* Whether the watcher is told of each gradient that an op's backward gives. */
bool tni_tells_gradients(void);
tn_status tni_tell_finished(const tn_tensor *leaf, tn_tensor *grad);
void tni_tell_hooked(const tni_hooked *h, const tn_tensor *gradient);
void tni_tell_averaged(const tn_tensor *leaf, const tn_tensor *average, int ranks);
tn_status tni_tell_grad(tn_tensor *leaf, bool adding);

/* Hides the ops of this thread from the watcher until tni_show is called as often: for the engine's
 * own ops and the watcher's. */
void tni_hide(void);
void tni_show(void);

/* Makes w (NULL: none) the thread's watcher and returns the one it had. */
tni_watcher *tni_watch(tni_watcher *w);
bool tni_watched(void);

/* The watcher that TN_ANOMALY asks for, or NULL (anomaly.c). */
tni_watcher *tni_anomaly_wanted(void);
/* The largest |x|: NaN if x holds one, 0 for no elements. x is floating, of any dtype. */
tn_status tni_magnitude(tn_tensor *x, double *largest);

#endif
