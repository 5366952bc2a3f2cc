/*
 * tell.c - see tell.h. A thread's first op or pass decides which watcher it has.
 */
#include "autograd/tell.h"

static TNI_THREAD int hidden;

static tni_watcher *watcher(void)
{
    if (TNI_LIKELY(!tni_watching)) return NULL;
    if (tni_watching == &tni_unsettled) tni_watching = tni_anomaly_wanted();
    return tni_watching;
}

tni_watcher *tni_watch(tni_watcher *w)
{
    tni_watcher *was = watcher();
    tni_watching = w;
    return was;
}

bool tni_watched(void)
{
    return watcher() != NULL;
}

void tni_hide(void)
{
    hidden++;
}

void tni_show(void)
{
    hidden--;
}

tn_status tni_tell_applied(const tni_call *c)
{
    tni_watcher *w = hidden ? NULL : watcher();
    return w && w->applied ? w->applied(w, c) : TN_OK;
}

tn_status tni_tell_detached(tn_tensor *from, tn_tensor *to)
{
    tni_watcher *w = hidden ? NULL : watcher();
    return w && w->detached ? w->detached(w, from, to) : TN_OK;
}

tn_status tni_tell_change(const char *function, const tn_tensor *target, const tn_tensor *source)
{
    tni_watcher *w = hidden ? NULL : watcher();
    return w && w->changes ? w->changes(w, function, target, source) : TN_OK;
}

tn_status tni_tell_arrived(const tni_node *node)
{
    tni_watcher *w = watcher();
    return w && w->arrived ? w->arrived(w, node) : TN_OK;
}

tn_status tni_tell_differentiated(const tni_node *node, const tni_grad *g)
{
    tni_watcher *w = watcher();
    return w && w->differentiated ? w->differentiated(w, node, g) : TN_OK;
}

void tni_tell_begins(const struct tni_engine_pass *p)
{
    tni_watcher *w = watcher();
    if (w && w->begins) w->begins(w, p);
}

void tni_tell_ends(const struct tni_engine_pass *p, tn_status status)
{
    tni_watcher *w = watcher();
    if (w && w->ends) w->ends(w, p, status);
}

void tni_tell_delivered(const tni_node *node, int i, tn_tensor *given, tn_tensor *share)
{
    tni_watcher *w = watcher();
    if (w && w->delivered) w->delivered(w, node, i, given, share);
}

bool tni_tells_gradients(void)
{
    const tni_watcher *w = watcher();
    return w && (w->differentiated || w->delivered);
}

tn_status tni_tell_finished(const tn_tensor *leaf, tn_tensor *grad)
{
    tni_watcher *w = watcher();
    return w && w->finished ? w->finished(w, leaf, grad) : TN_OK;
}

void tni_tell_hooked(const tni_hooked *h, const tn_tensor *gradient)
{
    tni_watcher *w = watcher();
    if (w && w->hooked) w->hooked(w, h, gradient);
}

void tni_tell_averaged(const tn_tensor *leaf, const tn_tensor *average, int ranks)
{
    tni_watcher *w = watcher();
    if (w && w->averaged) w->averaged(w, leaf, average, ranks);
}

tn_status tni_tell_grad(tn_tensor *leaf, bool adding)
{
    tni_watcher *w = watcher();
    return w && w->grad_changes ? w->grad_changes(w, leaf, adding) : TN_OK;
}
