/*
 * later.c - a number that the host reads later: its copy is under way while other work goes on.
 */
#include "ext/capture/capture.h"
#include "tensor/cuda_module.h"

struct tn_later {
    const tni_transfers *transfers; /* NULL: the value is there */
    tni_transfer *way;
    double value;
};

/* As f64, by way of a number on the device. */
static tn_status start(tn_later *l, const tn_tensor *t)
{
    const tni_backend *backend = tni_backend_of(t);
    tni_array x = { .data = tni_data(t), .dtype = t->dtype }, y = { .dtype = TN_F64 };
    tn_status status = backend->alloc(sizeof l->value, &y.data);
    if (status != TN_OK) return status;
    status = backend->copy(&(tni_copy){ .y = y, .x = x });
    if (status == TN_OK) status = l->transfers->fetch(y.data, sizeof l->value, &l->way);
    backend->free(y.data, sizeof l->value);
    return status;
}

tn_later *tn_later_new(const tn_tensor *t)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_later_new";
    if (tni_absent(t)) return tni_poisoned(f, "t");
    if (tni_shape_numel(&t->shape) != 1)
        return tni_fail(TN_E_SHAPE, "%s: %s has %" PRId64 " elements: want one", f, tni_text(t),
                        tni_shape_numel(&t->shape));
    if (tni_host_refused(f, "reads a value", "it after tn_capture_run")) return NULL;
    tn_later *l = tni_calloc(sizeof *l);
    if (!l) return NULL;
    l->transfers = tni_transfers_for(t->storage->device);
    if (!l->transfers) l->value = tn_item(t);
    if (!l->transfers || start(l, t) == TN_OK) return l;
    tni_free(l, sizeof *l);
    return NULL;
}

double tn_later_take(tn_later *l)
{
    if (!l) return NAN;
    if (l->way && l->transfers->collect(l->way, &l->value, sizeof l->value) != TN_OK)
        l->value = NAN;
    const double value = l->value;
    tni_free(l, sizeof *l);
    return value;
}
