/*
 * step.c - one update of every parameter.
 *
 * Three phases, and only the last one writes: check every parameter, make what is missing (state,
 * dense gradients; by tensors, all new values), one kernel call over all. So a failed step has
 * changed nothing that can be seen. Strided parameters, and new values that were made by tensors,
 * are written by copies that are tried twice; and where state is sharded over ranks, they agree
 * before the last phase and send new values after it.
 */
#include "autograd/notify.h"
#include "optim/optim.h"

static const char f[] = "tn_optim_step";

/* Whether the type's update makes new tensors, and no kernel writes: always, or on GPUs. */
static bool by_update(const tn_optim *opt, const tn_tensor *t)
{
    const tn_optim_type *type = opt->type;
    return !type->rule && (!type->formula_f32 || t->storage->device.type != TN_CPU);
}

/* Neither decays nor gets state. */
bool tni_optim_skips(const tni_optim_param *p)
{
    return !p->tensor->requires_grad || !tni_grad_of(p->tensor);
}

/* Whether p's module now has a buffer under that name (tn_freeze_batch_norm): nothing is trained
 * there. */
static bool is_retired(const tni_optim_param *p)
{
    const tni_slot *slot = tni_slot_of(p->owner, p->name);
    return slot && slot->kind == TNI_BUFFER;
}

/* The list was checked when the optimizer was made; what may have changed since is checked
 * again. */
static tn_status check_param(const tni_optim_param *p, const tn_tensor *first)
{
    const tn_tensor *t = p->tensor;
    if (p->owner && !tni_module_holds_parameter(p->owner, t) && !is_retired(p))
        return tni_error(TN_E_STATE,
                         "%s: %s is no longer a parameter of its module: make a new optimizer", f,
                         p->name);
    int64_t marks = atomic_load(&t->storage->buffer_marks);
    TNI_TRY(tni_may_change(f, p->name, TNI_AVERAGED(marks)));
    if (marks > 0)
        return tni_error(TN_E_STATE,
                         "%s: %s has become a buffer: optimizers update parameters only", f,
                         p->name);
    if (tni_optim_skips(p)) return TN_OK;
    const tn_tensor *g = tni_grad_of(t);
    if (!tni_shape_equal(&g->shape, &t->shape))
        return tni_error(TN_E_SHAPE, "%s: %s %s has a gradient of %s: want equal shapes", f,
                         p->name, tni_shape_text(&t->shape), tni_shape_text(&g->shape));
    if (g->dtype != t->dtype)
        return tni_error(TN_E_DTYPE, "%s: %s is %s, its gradient %s: want one dtype", f, p->name,
                         tn_dtype_name(t->dtype), tn_dtype_name(g->dtype));
    if (g->storage->backend != t->storage->backend ||
        (first && first->storage->backend != t->storage->backend))
        return tni_error(TN_E_DEVICE, "%s: %s is not on the device of %s: want one device", f,
                         p->name, first ? "the others" : "its gradient");
    return TN_OK;
}

tn_optim_numbers tni_optim_numbers_of(const tn_optim *opt, const tni_optim_param *p)
{
    const tni_optim_group *group = &opt->group[p->group];
    tn_optim_numbers o = { .lr = group->lr,
                           .weight_decay = group->weight_decay,
                           .step = p->step + 1,
                           .own = { 1 },
                           .user = opt->user };
    memcpy(o.number, group->number, sizeof o.number);
    if (opt->type->prepare) opt->type->prepare(&o);
    return o;
}

/* Fills part k with what the type's update reads, and call k with what the kernel reads: the dense
 * tensor that it updates. */
static tn_status describe(tn_optim *opt, tni_optim_param *p, int k)
{
    tn_optim_part *part = &opt->part[k];
    if (opt->group[p->group].slots) TNI_TRY(tni_optim_ready(opt, p));
    tn_tensor *const *s = p->state;
    const tn_optim_part now = { .name = p->name,
                                .p = p->tensor,
                                .g = by_update(opt, p->tensor) ? tn_grad(p->tensor)
                                                               : tni_grad_of(p->tensor),
                                .state = { s[0], s[1], s[2], s[3], s[4], s[5] },
                                .numbers = tni_optim_numbers_of(opt, p) };
    if (!now.g) return tni_pending();
    memcpy(part, &now, sizeof now); /* what update may not change is const */
    if (by_update(opt, p->tensor)) return TN_OK;
    tn_tensor *value = tni_dense(p->tensor); /* itself unless strided */
    tn_tensor *g = tni_dense(part->g);
    if (!value || !g) return tni_pending();
    opt->call[k] = (tni_optim_tensor){
        .dtype = value->dtype,
        .n = tni_shape_numel(&value->shape),
        .p = tni_data(value),
        .g = tni_data(g),
        .s0 = s[0] ? tni_data(s[0]) : NULL,
        .s1 = s[1] ? tni_data(s[1]) : NULL,
        .s2 = s[2] ? tni_data(s[2]) : NULL,
        .numbers = &part->numbers,
    };
    return TN_OK;
}

/* Copies back into strided parameters what the kernel wrote into their dense copies. */
static tn_status write_back(const tni_optim_param *p, const tni_optim_tensor *c)
{
    tn_tensor *t = p->tensor;
    if (c->p == tni_data(t)) return TN_OK;
    tni_array to = tni_array_of(t);
    tni_array from = to;
    from.data = c->p;
    tni_dense_strides(&t->shape, from.stride);
    return tni_copy_last(t->storage->backend, &to, &from);
}

/* Whether the type's update may be called now, for parameters on t's device. */
static tn_status may_update(const tn_optim *opt, const tn_tensor *t)
{
    if (!by_update(opt, t)) return TN_OK;
    if (!opt->type->update)
        return tni_error(TN_E_DEVICE,
                         "%s: %s has only a formula, which is for the CPU: want an update for "
                         "parameters on a GPU",
                         f, tni_optim_label(opt->type));
    char does[64];
    snprintf(does, sizeof does, "calls the update of %s", tni_optim_label(opt->type));
    return tni_host_refused(f, does, "another optimizer in it") ? TN_E_STATE : TN_OK;
}

/* Phases one and two; n receives how many parameters are updated here. */
static tn_status prepare(tn_optim *opt, const tn_tensor **first, int *n)
{
    for (int i = 0; i < opt->n; i++) {
        tni_optim_param *p = &opt->param[i];
        TNI_TRY(check_param(p, *first));
        p->taken = !tni_optim_skips(p);
        if (p->taken && !*first) *first = p->tensor;
    }
    if (!*first) return TN_OK;
    tn_status status = may_update(opt, *first);
    for (int i = 0; i < opt->n && status == TN_OK; i++) {
        if (!opt->param[i].taken || tni_optim_elsewhere(opt, &opt->param[i])) continue;
        status = describe(opt, &opt->param[i], *n);
        *n += status == TN_OK;
    }
    return status == TN_OK && by_update(opt, *first) ? tni_optim_make(opt, *n) : status;
}

/* Lets backward see that it adds to a gradient that was not cleared after a step. */
static void use_up(tn_optim *opt, tni_gradmeta *gm)
{
    if (!gm || !gm->grad) return; /* an update has cleared it */
    opt->reused |= tni_grad_reused(gm);
    gm->reused = 0;
    gm->used = 1 + tn_version(gm->grad);
}

static tn_status finish(tn_optim *opt)
{
    tn_status status = TN_OK;
    int n = 0;
    opt->reused = false;
    for (int i = 0; i < opt->n; i++) {
        tni_optim_param *p = &opt->param[i];
        if (!p->taken) continue; /* an update may have changed gradients since */
        if (!tni_optim_elsewhere(opt, p)) {
            tn_status copied = by_update(opt, p->tensor) ? tni_optim_write(&opt->part[n])
                                                         : write_back(p, &opt->call[n]);
            n++;
            if (copied != TN_OK) status = copied;
        }
        tni_bump_version(p->tensor);
        for (int s = 0; s < TN_OPTIM_STATES; s++)
            if (p->state[s]) tni_bump_version(p->state[s]);
        use_up(opt, p->tensor->gm);
        p->step++;
    }
    return status;
}

/* The phase that writes: n parameters here, then those of the other ranks if there are any. */
static tn_status update(tn_optim *opt, const tn_tensor *first, int n)
{
    tn_status status = TN_OK;
    tni_optim_step step = { opt->type, opt->call, n, opt->starts };
    if (n > 0 && !by_update(opt, first)) status = first->storage->backend->optim_step(&step);
    if (status == TN_OK && (n > 0 || opt->shards)) status = finish(opt);
    tn_status sent = opt->shards ? opt->shards->end(opt->shards) : TN_OK;
    return status == TN_OK ? sent : status;
}

int64_t tn_optim_add_hook(tn_optim *opt, bool after, tn_step_hook hook, void *user)
{
    if (tni_no_optim(opt)) return tni_minus_one(tni_poison(__func__, "opt"));
    if (!hook) return tni_minus_one(tni_poison(__func__, "hook"));
    return tni_hook_add(&opt->hooks, after, (tni_any_hook)hook, user);
}

void tn_optim_remove_hook(tn_optim *opt, int64_t id)
{
    if (!tni_no_optim(opt)) tni_hook_remove(&opt->hooks, id);
}

static tn_status run_hooks(tn_optim *opt, bool after)
{
    TNI_SCOPES_STAY;
    const int64_t last = tni_hook_last(&opt->hooks);
    tn_status status = TN_OK;
    for (tni_hook h = { 0 }; status == TN_OK && tni_hook_next(&opt->hooks, after, last, &h);) {
        if (tni_host_refused(f, "calls a hook", "it removed from the optimizer")) return TN_E_STATE;
        const uint64_t errors = tni_error_count;
        status = ((tn_step_hook)h.call)(opt, h.user);
        if (status != TN_OK && tni_error_count == errors)
            tni_error(status, "%s: a hook failed without a message", f);
    }
    return status;
}

tn_status tn_optim_step(tn_optim *opt)
{
    TNI_HOLD_TRAPS;
    if (tni_no_optim(opt)) return tni_poison(f, "opt");
    if (tni_optim_busy(f, opt)) return TN_E_STATE;
    tni_optim_keep(opt); /* an update or a hook may free it */
    opt->stepping = true;
    TNI_UNRECORDED;
    const tn_tensor *first = NULL; /* that is updated on any rank */
    int n = 0;
    tn_status status = run_hooks(opt, false);
    tni_optim_release(opt);
    if (status == TN_OK) status = TNI_NOTIFY_OP(starts, tni_optim_label(opt->type));
    if (status == TN_OK) status = prepare(opt, &first, &n);
    if (status == TN_OK && TNI_UNLIKELY(tni_watching) && tni_watching->steps)
        status = tni_watching->steps(tni_watching, opt, n);
    if (opt->shards) status = opt->shards->begin(opt->shards, status);
    if (status == TN_OK) status = update(opt, first, n);
    if (status == TN_OK) opt->steps++;
    if (status == TN_OK && TNI_UNLIKELY(tni_watching) && tni_watching->stepped)
        tni_watching->stepped(tni_watching, opt);
    if (status == TN_OK) status = run_hooks(opt, true);
    opt->stepping = false;
    tn_optim_free(opt);
    return status;
}
