/*
 * statistics.c - measures the running statistics of batch norms again, for weights that they were
 * not made with: those of an average.
 *
 * All batches together are one batch in parts (nn/micro_batches.c): each layer gives the mean and
 * variance of what it saw. At the end running ones become those of all values, whatever the layer's
 * momentum; all else that moves once for a batch is put back.
 */
#include <limits.h>
#include <tenon/data.h>

#include "nn/micro_batches.h"

tn_status tn_measure_statistics(tn_module *model, int (*next)(tn_module *model, void *user),
                                void *user)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_measure_statistics";
    TNI_TRY(tni_module_check(f, model));
    if (!next) return tni_error(TN_E_INVALID, "%s: next is NULL: want a function", f);
    if (tni_batch_now)
        return tni_error(TN_E_STATE, "%s: a batch in parts is open or was loaded: want its end", f);
    if (tn_micro_batches_begin(INT_MAX) < 0) return tni_pending();
    tn_status status = TN_OK;
    tni_batch *b = tni_batch_now;
    tni_generator_state before; /* of masks that next has drawn for nothing */
    tni_generator_get(tn_default_generator(), &before);
    for (int more = 1; status == TN_OK && more > 0; b->at++) {
        TN_SCOPE TN_NO_GRAD more = next(model, user);
        if (tni_batch_now != b)
            return tni_error(TN_E_STATE, "%s: next has ended the batch: want it left open", f);
        if (more < 0)
            status = tni_pending() != TN_OK
                         ? tni_error_prefix("%s: ", f)
                         : tni_error(TN_E_STATE, "%s: next returned %d without a message", f, more);
        if (status == TN_OK) status = tni_batch_settle(b, true);
    }
    bool any = false; /* only running means and variances are to move, and all the way */
    for (int i = 0; status == TN_OK && i < b->n; i++) {
        b->moved[i].momentum = 1;
        if (!b->moved[i].var) b->moved[i].n = 0;
        any |= b->moved[i].n > 0;
    }
    b->parts = b->at + 1; /* the part that runs is empty */
    static const char none[] = "no batch norm in training saw a batch: want tn_train";
    if (status == TN_OK && !any) status = tni_error(TN_E_STATE, "%s: %s", f, none);
    if (status == TN_OK) status = tni_batch_end_early();
    if (status != TN_OK) tni_generator_put(tn_default_generator(), &before);
    tn_micro_batches_cancel(); /* which puts back what has not ended */
    return status;
}
