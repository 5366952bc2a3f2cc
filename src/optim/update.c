/*
 * update.c - a step of a type that works by tensors: its function makes new values, which are
 * checked and kept until all have been made; then they are copied into parameters and states.
 */
#include "autograd/notify.h"
#include "optim/optim.h"

static const char f[] = "tn_optim_step";

/* Tensor k of a part, from 0: the parameter and its states, and what comes in their places. */
enum { TENSORS = 1 + TN_OPTIM_STATES };

static tn_tensor *old_of(const tn_optim_part *part, int k)
{
    return k ? part->state[k - 1] : part->p;
}

static tn_tensor **new_of(tn_optim_part *part, int k)
{
    return k ? &part->new_state[k - 1] : &part->new_p;
}

/* Takes a reference to what an update made in the scope, or to a copy where it is not only there.
 * NULL: the old tensor stays. */
static tn_status take(const tn_optim_type *type, tn_scope scope, tn_optim_part *part, int k)
{
    const tn_tensor *old = old_of(part, k);
    tn_tensor *t = *new_of(part, k);
    const char *state = k ? type->state[k - 1].name : "the parameter";
    const char *what = state ? state : "a state";
    *new_of(part, k) = NULL;
    if (!t || t == old) return TN_OK;
    if (!old || tni_none(t) || !tni_shape_equal(&t->shape, &old->shape))
        return tni_error(TN_E_SHAPE, "%s: %s: the update gave %s for %s: want %s", f, part->name,
                         tni_none(t) ? "TN_NONE" : tni_shape_text(&t->shape), what,
                         old ? tni_shape_text(&old->shape) : "NULL, as there is none");
    if (t->storage->backend != old->storage->backend)
        return tni_error(TN_E_DEVICE,
                         "%s: %s: the update gave %s on another device: want the parameter's", f,
                         part->name, what);
    if (!tni_scope_alone(scope, t) || atomic_load(&t->storage->refs) > 1) t = tn_clone(t);
    *new_of(part, k) = tn_keep(t);
    return t ? TN_OK : tni_pending();
}

/* Calls the type's function for n parts, and gives what it made to the scope around. */
static tn_status call(tn_optim *opt, tn_optim_part *part, int n)
{
    tn_scope scope = tn_scope_begin();
    size_t guarded = tni_scope_guard();
    const uint64_t errors = tni_error_count;
    tn_status status = opt->type->update(part, n);
    status = tni_user_status(tni_optim_label(opt->type), "update", status, errors);
    for (int i = 0; i < n * TENSORS; i++)
        if (status == TN_OK)
            status = take(opt->type, scope, &part[i / TENSORS], i % TENSORS);
        else
            *new_of(&part[i / TENSORS], i % TENSORS) = NULL;
    tni_scope_unguard(guarded);
    tn_scope_end(scope);
    for (int i = 0; i < n * TENSORS; i++) {
        tn_tensor *made = *new_of(&part[i / TENSORS], i % TENSORS);
        if (made && !tn_scope_adopt(made)) status = tni_pending();
    }
    return status;
}

tn_status tni_optim_make(tn_optim *opt, int n)
{
    const int each = opt->type->together ? n : 1;
    tn_dtype cast = tn_autocast();
    tn_status status = TN_OK;
    if (cast != TN_F32) tn_set_autocast(TN_F32);
    tni_watch_suspended++; /* a watcher sees the step, not the ops in it */
    for (int i = 0; i < n && status == TN_OK; i += each) status = call(opt, &opt->part[i], each);
    tni_watch_suspended--;
    if (tn_autocast() != cast) tn_set_autocast(cast);
    return status;
}

tn_status tni_optim_write(tn_optim_part *part)
{
    tn_status status = TN_OK;
    for (int k = 0; k < TENSORS; k++) {
        if (!*new_of(part, k)) continue;
        tn_status copied = tni_put_last(old_of(part, k), *new_of(part, k));
        if (copied != TN_OK) status = copied;
    }
    return status;
}
