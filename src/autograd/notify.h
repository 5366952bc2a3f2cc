/* notify.h - how ops and engine notify the thread's watcher of events (tensor/watch.h). */
#pragma once

#include "autograd/op.h"

/* Hooks are given a gradient, one after the other. */
typedef struct tni_hooked {
    const tni_node *node; /* the gradient of this node's result `output`; */
    int output;
    const tn_tensor *leaf; /* or of this leaf, and node NULL */
    int number, of;        /* how many hooks have run, and how many there are; 0: none has yet */
} tni_hooked;

/* The thread's watcher, which its first op or pass decides; NULL: none. */
tni_watcher *tni_watcher_settled(void);
static inline tni_watcher *tni_watcher_now(void)
{
    return TNI_LIKELY(!tni_watching) ? NULL : tni_watcher_settled();
}

/* Calls it for an event of watch.h: TNI_NOTIFY(arrived, node) is its status, TN_OK if nobody
 * watches for that. TNI_NOTIFY_OF is for events without a status, TNI_NOTIFY_OP for ops (see
 * tni_watch_suspended). */
#define TNI_NOTIFY(event, ...)                                                                     \
    (tni_watcher_now() && tni_watching->event ? tni_watching->event(tni_watching, __VA_ARGS__)     \
                                              : TN_OK)
#define TNI_NOTIFY_OF(event, ...)                                                                  \
    (tni_watcher_now() && tni_watching->event ? tni_watching->event(tni_watching, __VA_ARGS__)     \
                                              : (void)0)
#define TNI_NOTIFY_OP(event, ...)                                                                  \
    (tni_watcher_now() && !tni_watch_suspended ? TNI_NOTIFY(event, __VA_ARGS__) : TN_OK)

/* Whether the watcher is notified of each gradient that an op's backward gives. */
static inline bool tni_notifies_gradients(void)
{
    const tni_watcher *w = tni_watcher_now();
    return w && !w->only_times && (w->differentiated || w->delivered);
}

/* While it is not 0, the watcher is not notified of this thread's ops: the engine and the watcher
 * count it up around their own. */
extern TNI_THREAD int tni_watch_suspended;

/* Makes w (NULL: none) the thread's watcher and returns the one it had. (anomaly.c) */
TNI_SHARED tni_watcher *tni_watch(tni_watcher *w);
TNI_SHARED bool tni_watched(void);

/* The largest |x|: NaN if x holds one, 0 for no elements. x is floating, of any dtype. */
tn_status tni_magnitude(tn_tensor *x, double *largest);
