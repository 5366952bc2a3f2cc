/*
 * grads.c - the gradients of leaves around a captured step: before the capture, and as each run
 * leaves them.
 */
#include "ext/capture/notes.h"

static tn_tensor *grad_of(const tn_tensor *leaf)
{
    return leaf->gm ? leaf->gm->grad : NULL;
}

tn_status tni_notes_grad(tni_notes *r, tn_tensor *leaf, bool adding)
{
    const tn_tensor *grad = grad_of(leaf);

    if (adding && grad && !tni_notes_made(r, grad))
        return tni_notes_refuse(r, "tn_backward", "adds to a gradient from before it",
                                "tn_optim_zero_grad in the step, before tn_backward");
    if (leaf->storage->device.type == TN_CPU) return TN_OK;
    for (size_t i = 0; i < r->n_leaves; i++)
        if (r->leaf[i].leaf == leaf) return TN_OK;
    if (!tni_notes_room(r, &r->leaf, &r->leaf_capacity, r->n_leaves, sizeof *r->leaf)) return TN_OK;
    r->leaf[r->n_leaves++] = (tni_leaf){ .leaf = tn_keep(leaf),
                                         .before = tn_keep(grad_of(leaf)),
                                         .from_none = adding && !grad };
    return TN_OK;
}

void tni_notes_keep_grads(tni_notes *r)
{
    for (size_t i = 0; i < r->n_leaves; i++) r->leaf[i].after = tn_keep(grad_of(r->leaf[i].leaf));
}

/* Without a gm there is no grad to set or to remove. */
void tni_notes_put_grads(tni_notes *r, bool after)
{
    for (size_t i = 0; i < r->n_leaves; i++) {
        tni_gradmeta *gm = r->leaf[i].leaf->gm;
        tn_tensor *grad = after ? r->leaf[i].after : r->leaf[i].before;

        if (!gm || gm->grad == grad) continue;
        tn_keep(grad);
        tn_drop(gm->grad);
        gm->grad = grad;
    }
}

void tni_notes_drop_before(tni_notes *r)
{
    for (size_t i = 0; i < r->n_leaves; i++) {
        tn_drop(r->leaf[i].before);
        r->leaf[i].before = NULL;
    }
}

tn_status tni_notes_check_grads(const tni_notes *r)
{
    for (size_t i = 0; i < r->n_leaves; i++) {
        const tni_leaf *leaf = &r->leaf[i];

        if (leaf->from_none && grad_of(leaf->leaf))
            return tni_error(TN_E_STATE,
                             "tn_capture_run: %s has a gradient, had none when the step was "
                             "captured, and the step would overwrite it: want tn_optim_zero_grad "
                             "before tn_capture_run or in the step",
                             tni_text(leaf->leaf));
    }
    return TN_OK;
}

void tni_notes_drop_leaves(tni_notes *r)
{
    for (size_t i = 0; i < r->n_leaves; i++) {
        tn_drop(r->leaf[i].leaf);
        tn_drop(r->leaf[i].before);
        tn_drop(r->leaf[i].after);
    }
    tni_room_free(&r->leaf, &r->leaf_capacity, sizeof *r->leaf);
    r->n_leaves = 0;
}
