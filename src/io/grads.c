/*
 * grads.c - gradients in a checkpoint that wait for a step: of a batch computed in parts.
 *
 * Their names are ".grad.PART.NAME"; no part has an empty name, so no other names begin like this.
 * A parameter in several parts (a model, its optimizer) has a name in each, stored once. A gradient
 * that a step has used, and no backward has added to since, is not saved. Loading leaves no older
 * gradient: a parameter without one in the file has none.
 */
#include "autograd/op.h"
#include "autograd/sync.h"
#include "io/parts.h"
#include "nn/module.h"

/* The gradient that the next step would use; NULL: none. */
static tn_tensor *waiting(const tn_tensor *leaf)
{
    tn_tensor *grad = tni_grad_of(leaf);
    return grad && leaf->gm->used != 1 + tn_version(grad) ? grad : NULL;
}

tn_status tni_grads_save(const char *function, const tni_parts *parts, tn_list *list)
{
    tn_list *leaves = tni_parts_tensors(parts, false);
    tn_status status = leaves ? TN_OK : tni_pending();
    for (int i = 0; status == TN_OK && i < leaves->n; i++) {
        tn_entry e = leaves->entry[i];
        const tn_tensor *leaf = e.tensor;
        e.tensor = waiting(leaf);
        if (!e.tensor) continue;
        if (leaf->gm->sync && leaf->gm->sync->leaf[leaf->gm->sync_index].own)
            return tni_error(TN_E_STATE,
                             "%s: the gradient of %s is this rank's alone: want a backward that "
                             "averages (tn_data_parallel_set_sync), or tn_optim_zero_grad, before",
                             function, e.name);
        status = tni_list_push(list, TNI_GRADS ".", "", e.name, e);
    }
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Reads entry e of the file as leaf's gradient: everything that may fail. */
static tn_tensor *fitting(const tni_input *in, const tn_entry *e, tn_tensor *leaf)
{
    const tn_tensor *t = e->tensor;
    if (!tni_gradmeta_of(leaf)) return NULL;
    if (!tni_shape_equal(&t->shape, &leaf->shape) || t->dtype != leaf->dtype)
        return tni_fail(
            TN_E_SHAPE,
            "%s: " TNI_PATH ": the gradient of %s is %s %s there, the parameter %s %s here",
            in->function, in->path, e->name, tni_shape_text(&t->shape), tn_dtype_name(t->dtype),
            tni_shape_text(&leaf->shape), tn_dtype_name(leaf->dtype));
    return tn_to(e->tensor, leaf->storage->device);
}

tn_status tni_grads_read(const tni_input *in, tni_parts *parts)
{
    tn_list *leaves = parts->leaves = tni_parts_tensors(parts, false);
    if (!leaves) return tni_pending();
    tn_status status = TN_OK;
    if (!tni_room(&parts->grad, &parts->grad_capacity, 0, (size_t)leaves->n, sizeof *parts->grad))
        return TN_E_NOMEM;
    for (int i = 0; status == TN_OK && i < leaves->n; i++) {
        tn_tensor *leaf = leaves->entry[i].tensor;
        const tn_entry *e = tni_list_find(parts->grads.list, leaves->entry[i].name);
        parts->grad[i] = e ? fitting(in, e, leaf) : NULL;
        if (e && !parts->grad[i]) status = tni_pending();
        if (status == TN_OK && (e || (leaf->gm && leaf->gm->grad)))
            status = TNI_NOTIFY(grad_changes, leaf, false);
    }
    return status;
}

void tni_grads_put(const tni_parts *parts)
{
    for (int i = 0; i < parts->leaves->n; i++) {
        tni_gradmeta *gm = parts->leaves->entry[i].tensor->gm;
        if (gm) tni_grad_put(gm, parts->grad[i] ? tn_keep(parts->grad[i]) : NULL);
    }
}
