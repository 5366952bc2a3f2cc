/*
 * notify.c - see notify.h.
 */
#include "autograd/notify.h"

static TNI_THREAD int suspended;

tni_watcher *tni_watcher_settled(void)
{
    if (tni_watching == &tni_unsettled) tni_watching = tni_anomaly_wanted();
    return tni_watching;
}

tni_watcher *tni_watch(tni_watcher *w)
{
    tni_watcher *was = tni_watcher_now();
    tni_watching = w;
    return was;
}

bool tni_watched(void)
{
    return tni_watcher_now() != NULL;
}

void tni_watch_suspend(void)
{
    suspended++;
}

void tni_watch_resume(void)
{
    suspended--;
}

bool tni_watch_suspended(void)
{
    return suspended > 0;
}
