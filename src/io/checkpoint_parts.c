/*
 * checkpoint_parts.c - what a run has besides the one model, optimizer and scheduler of
 * tn_checkpoint: further modules, optimizers, schedulers, gradient scalers, each under its name.
 *
 * Optimizers and schedulers are staged and then put in place without fail. Modules and scalers load
 * at once, all or nothing each; what they held before is kept until everything has loaded.
 */
#include <stdio.h>

#include "io/checkpoint.h"
#include "nn/module.h"

static tn_status check_part(const char *function, const tn_checkpoint_part *p, int i)
{
    static const char *const taken[] = { "model", "optim", "sched", "loader", "rng", "step" };
    int given = !!p->module + !!p->optimizer + !!p->scheduler + !!p->scaler;
    if (given != 1)
        return tni_error(TN_E_INVALID, "%s: parts[%d] holds %d objects: one is wanted", function, i,
                         given);
    bool bad = !p->name || !p->name[0] || strlen(p->name) > 64 || strchr(p->name, '.');
    for (int k = 0; !bad && k < (int)(sizeof taken / sizeof *taken); k++)
        bad = strcmp(p->name, taken[k]) == 0;
    if (!bad) return TN_OK;
    return tni_error(
        TN_E_NAME,
        "%s: parts[%d] is named \"%.80s\": 1 to 64 bytes without a dot are wanted, and "
        "not model, optim, sched, loader, rng, step",
        function, i, p->name ? p->name : "(NULL)");
}

tn_status tni_parts_check(const char *function, const tn_checkpoint *c)
{
    if (c->n_parts < 0 || (c->n_parts && !c->parts))
        return tni_error(TN_E_INVALID, "%s: n_parts %d%s: as many parts are wanted", function,
                         c->n_parts, c->n_parts < 0 ? "" : " without parts");
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < c->n_parts; i++)
        status = check_part(function, &c->parts[i], i);
    tni_names names = { 0 };
    if (status == TN_OK) status = tni_names_make(&names, c->parts, sizeof *c->parts, c->n_parts);
    const char *twice = tni_names_twice(&names);
    if (twice)
        status = tni_error(TN_E_NAME, "%s: two parts are named \"%s\": want a name for each",
                           function, twice);
    tni_names_free(&names);
    return status;
}

static tn_list *state_of(const tn_checkpoint_part *p)
{
    if (p->module) return tn_state_dict(p->module, "");
    if (p->optimizer) return tn_optim_state_dict(p->optimizer);
    if (p->scheduler) return tn_scheduler_state_dict(p->scheduler);
    return tn_scaler_state_dict(p->scaler);
}

tn_status tni_parts_add(tn_list *list, const tn_checkpoint *c)
{
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < c->n_parts; i++) {
        const tn_checkpoint_part *p = &c->parts[i];
        status = tni_checkpoint_add(list, p->name, state_of(p));
    }
    return status;
}

/* A list whose tensors later loading does not write to; versions stay, so that it loads as it
 * was. */
static tn_list *copied(const tn_list *live)
{
    tn_list *copy = live ? tni_list_copy(live) : NULL;
    for (int i = 0; copy && i < copy->n; i++) {
        tn_tensor *t = tn_clone(tn_detach(copy->entry[i].tensor));
        if (tn_list_set(copy, copy->entry[i].name, t) != TN_OK) return NULL;
    }
    return copy;
}

static tn_status load_now(const tn_checkpoint_part *p, const tn_list *state)
{
    return p->module ? tn_load_state_dict(p->module, state, (tn_load_options){ 0 }, NULL)
                     : tn_scaler_load_state_dict(p->scaler, state);
}

tn_status tni_parts_stage(tni_safetensors *file, const tn_checkpoint *c, tni_parts_staged *s)
{
    s->n = c->n_parts;
    s->part = tni_calloc((size_t)TNI_MAX(s->n, 1) * sizeof *s->part);
    if (!s->part) return TN_E_NOMEM;
    for (int i = 0; i < s->n; i++) {
        const tn_checkpoint_part *p = &c->parts[i];
        char prefix[80];
        snprintf(prefix, sizeof prefix, "%s.", p->name);
        const tn_list *now = state_of(p);
        tn_list *list = now ? tni_checkpoint_part(file, prefix, now->n == 0) : NULL;
        if (!list) return tni_pending();
        s->part[i].list = list;
        if (p->optimizer) s->part[i].optimizer = tni_optim_stage(p->optimizer, list);
        if (p->scheduler) s->part[i].scheduler = tni_scheduler_stage(p->scheduler, list);
        if ((p->optimizer && !s->part[i].optimizer) || (p->scheduler && !s->part[i].scheduler))
            return tni_in_file(file->in.function, file->in.path);
    }
    return TN_OK;
}

static void put_back(const tn_checkpoint *c, const tni_parts_staged *s, int n)
{
    tni_saved_error was;
    tni_error_save(&was);
    for (int i = 0; i < n; i++)
        if (s->part[i].before) load_now(&c->parts[i], s->part[i].before);
    tni_error_restore(&was);
}

tn_status tni_parts_load(tni_safetensors *file, const tn_checkpoint *c, tni_parts_staged *s)
{
    for (int i = 0; i < s->n; i++) {
        const tn_checkpoint_part *p = &c->parts[i];
        tn_status status = TN_OK;
        if (p->optimizer || p->scheduler) continue;
        s->part[i].before = copied(state_of(p));
        if (!s->part[i].before) status = tni_pending();
        if (status == TN_OK && load_now(p, s->part[i].list) != TN_OK)
            status = tni_in_file(file->in.function, file->in.path);
        if (status == TN_OK) continue;
        put_back(c, s, i);
        return status;
    }
    return TN_OK;
}

void tni_parts_undo(const tn_checkpoint *c, const tni_parts_staged *s)
{
    put_back(c, s, s->n);
}

void tni_parts_end(const tn_checkpoint *c, tni_parts_staged *s, bool commit)
{
    for (int i = 0; s->part && i < s->n; i++) {
        if (commit && s->part[i].optimizer)
            tni_optim_commit(c->parts[i].optimizer, s->part[i].optimizer);
        else
            tni_optim_discard(s->part[i].optimizer);
        if (commit && s->part[i].scheduler)
            tni_scheduler_commit(c->parts[i].scheduler, s->part[i].scheduler);
        else
            tni_scheduler_discard(s->part[i].scheduler);
    }
    if (s->part) tni_free(s->part, (size_t)TNI_MAX(s->n, 1) * sizeof *s->part);
    *s = (tni_parts_staged){ 0 };
}
