/*
 * record.c - the gradients of leaves around a recorded step: how they were before it, and how each run
 * leaves them.
 */
#include "autograd/op.h"
#include "tensor/recorder.h"

static tn_tensor *grad_of(const tn_tensor *leaf)
{
    return leaf->gm ? leaf->gm->grad : NULL;
}

void tni_record_leaf(tn_tensor *leaf, bool adding)
{
    tni_recorder *r = tni_recording;
    void *items = r->leaf;

    if (leaf->storage->device.type == TN_CPU) return;
    for (size_t i = 0; i < r->n_leaves; i++)
        if (r->leaf[i].leaf == leaf) return;
    if (!tni_recorder_room(r, &items, r->n_leaves, &r->leaf_capacity, sizeof *r->leaf)) return;
    r->leaf = items;
    r->leaf[r->n_leaves++] = (tni_leaf){ .leaf = tn_keep(leaf),
                                         .before = tn_keep(grad_of(leaf)),
                                         .from_none = adding && !grad_of(leaf) };
}

void tni_recorder_keep_grads(tni_recorder *r)
{
    for (size_t i = 0; i < r->n_leaves; i++) r->leaf[i].after = tn_keep(grad_of(r->leaf[i].leaf));
}

/* Without a gm there is no grad to give, and none to take away. */
void tni_recorder_grads(tni_recorder *r, bool after)
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

void tni_recorder_drop_before(tni_recorder *r)
{
    for (size_t i = 0; i < r->n_leaves; i++) {
        tn_drop(r->leaf[i].before);
        r->leaf[i].before = NULL;
    }
}

tn_status tni_recorder_check_grads(const tni_recorder *r)
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

void tni_recorder_drop_leaves(tni_recorder *r)
{
    for (size_t i = 0; i < r->n_leaves; i++) {
        tn_drop(r->leaf[i].leaf);
        tn_drop(r->leaf[i].before);
        tn_drop(r->leaf[i].after);
    }
    tni_free(r->leaf, r->leaf_capacity * sizeof *r->leaf);
    r->n_leaves = r->leaf_capacity = 0;
}
