/* later.c - a number that the host reads later: it is copied while other work goes on. */
#include "ext/capture/capture.h"

struct tn_later {
    const tni_graphs *graphs;
    struct tni_transfer *way; /* NULL: the value is there */
    double value;
};

/* As f64, by way of a number on the device. */
static tn_status start(tn_later *l, const tn_tensor *t)
{
    const tni_backend *b = tni_backend_of(t);
    tni_copy as = { .y.dtype = TN_F64, .x = { .data = tni_data(t), .dtype = t->dtype } };
    tn_status status = b->alloc(sizeof l->value, &as.y.data);
    if (status == TN_OK) status = b->copy(&as);
    if (status == TN_OK) status = l->graphs->fetch(as.y.data, sizeof l->value, &l->way);
    b->free(as.y.data, sizeof l->value);
    return status;
}

tn_later *tn_later_new(const tn_tensor *t)
{
    TNI_HOLD_TRAPS;
    if (tni_absent(t)) return tni_poisoned(__func__, "t");
    if (tni_shape_numel(&t->shape) != 1)
        return tni_fail(TN_E_SHAPE, "%s: %s: want one element", __func__, tni_text(t));
    if (tni_host_refused(__func__, "reads a value", "it after tn_capture_run")) return NULL;
    tn_later *l = tni_calloc(sizeof *l);
    if (!l) return NULL;
    l->graphs = tni_graphs_for(t->storage->device);
    if (!l->graphs) l->value = tn_item(t);
    if (!l->graphs || start(l, t) == TN_OK) return l;
    tni_free(l, sizeof *l);
    return NULL;
}

double tn_later_take(tn_later *l)
{
    double value = l ? l->value : NAN;
    if (l && l->way && l->graphs->collect(l->way, &value, sizeof value) != TN_OK) value = NAN;
    if (l) tni_free(l, sizeof *l);
    return value;
}
