/*
 * state.c - an optimizer's state: made and moved, as a list of named tensors, and back.
 *
 * Names      PARAMETER.exp_avg ...   state tensors, live, of parameters that have been updated
 *            PARAMETER.step          i64, updates of that parameter
 *            group.N.lr              f64; also base_lr and weight_decay; group.1.beta1 and so on
 *                                    where it is not the first group's
 *            TYPE.steps, TYPE.beta1  i64; f64, the first group's: the type in the name makes
 *                                    another optimizer's file an error instead of a quiet mix
 * Loading changes all or nothing (serializer.h). State that another rank has is compared, not
 * copied.
 */
#include "optim/optim.h"

/* Number i of group k: a file holds it for the first group, and for others where it differs; of an
 * optional one for the first, too, only where it differs from the initial. */
static void show_number(tni_serializer *f, tn_optim *opt, int k, int i)
{
    const tn_number_type *n = &opt->type->number[i];
    tni_optim_group *group = &opt->group[k];
    const double usual = k ? opt->group[0].number[i] : n->initial;
    double *number = &group->number[i];
    const bool had = *number != 0;
    char text[64];
    if (k == 0)
        tni_field_name(f, "%s.%s", opt->type->name, n->name);
    else
        tni_field_name(f, "group.%d.%s", k, n->name);
    const bool always = k == 0 && !n->optional;
    const bool there = always || (f->from ? tn_list_has(f->from, f->name) : *number != usual);
    if (there && n->on_off)
        tni_field_switch(f, f->name, had);
    else if (there)
        tni_field_f64(f, f->name, number);
    else if (f->from)
        tni_serializer_set(f, number, &usual, sizeof usual);
    const char *wanted = f->from ? tni_number_misfit(n, *number, text) : NULL;
    if (wanted)
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%g there, %s)", f->name, *number, wanted);
    if (f->from && (*number != 0) != had &&
        (n->on_off || tni_optim_slots(opt->type, group->number) & ~group->slots))
        tni_serializer_note(f, TNI_MISMATCHED, "%s (%g there, here an optimizer %s)", f->name,
                            *number, had ? "with it" : "without");
}

static void show_numbers(tni_serializer *f, tn_optim *opt)
{
    const tn_optim_type *type = opt->type;
    tni_field_steps(f, tni_field_name(f, "%s.steps", type->name), &opt->steps);
    for (int i = 0; i < TN_OPTIM_NUMBERS; i++)
        if (type->number[i].name) show_number(f, opt, 0, i);
    for (int k = 0; k < opt->n_groups; k++) {
        tni_optim_group *group = &opt->group[k];
        tni_field_rate(f, tni_field_name(f, "group.%d.lr", k), &group->lr);
        tni_field_rate(f, tni_field_name(f, "group.%d.base_lr", k), &group->base_lr);
        tni_field_rate(f, tni_field_name(f, "group.%d.weight_decay", k), &group->weight_decay);
        for (int i = 0; k > 0 && i < TN_OPTIM_NUMBERS; i++)
            if (type->number[i].name) show_number(f, opt, k, i);
    }
}

/* Whether a parameter has state: it has been updated. */
static bool is_there(tni_serializer *f, const tn_optim *opt, const tni_optim_param *p)
{
    if (!f->from) return p->step > 0;
    bool any = tn_list_has(f->from, tni_field_name(f, "%s.step", p->name));
    for (int s = 0; s < TN_OPTIM_STATES && !any; s++)
        any = opt->group[p->group].slots >> s & 1 &&
              tn_list_has(f->from, tni_field_name(f, "%s.%s", p->name, opt->type->state[s].name));
    return any;
}

static void show_param(tni_serializer *f, const tn_optim *opt, tni_optim_param *p)
{
    if (f->status != TN_OK || (!f->from && p->step == 0)) return;
    if (strlen(p->name) > TNI_NAME_LIMIT) {
        f->status = tni_error(
            TN_E_NAME, "tn_optim_%sstate_dict: the name %.60s... takes %zu bytes: want at most %d",
            f->from ? "load_" : "", p->name, strlen(p->name), TNI_NAME_LIMIT);
        return;
    }
    if (!is_there(f, opt, p)) return;
    tni_form form;
    for (int s = 0; s < TN_OPTIM_STATES; s++)
        if (tni_optim_form(opt, p, s, &form))
            tni_field_tensor(f, tni_field_name(f, "%s.%s", p->name, opt->type->state[s].name),
                             &form, f->from && tni_optim_elsewhere(opt, p) ? NULL : &p->state[s]);
    tni_field_steps(f, tni_field_name(f, "%s.step", p->name), &p->step);
}

/* The names are those of show_param. */
bool tni_optim_reads(const tn_optim *opt, const char *name)
{
    const char *dot = strrchr(name, '.');
    intptr_t at = dot ? (intptr_t)tni_map_get_name(&opt->names, name, (size_t)(dot - name)) : 0;
    bool elsewhere = at && tni_optim_elsewhere(opt, &opt->param[at - 1]);
    for (int s = 0; elsewhere && s < TN_OPTIM_STATES; s++)
        if (opt->type->state[s].name && strcmp(dot + 1, opt->type->state[s].name) == 0)
            return false;
    return true;
}

static void show(tni_serializer *f, tn_optim *opt)
{
    show_numbers(f, opt);
    for (int i = 0; i < opt->n; i++) show_param(f, opt, &opt->param[i]);
}

/* The first parameter whose state would be missing in the list; NULL: none. */
static const tni_optim_param *not_here(const tn_optim *opt)
{
    for (int i = 0; i < opt->n; i++) {
        const tni_optim_param *p = &opt->param[i];
        if (opt->group[p->group].slots && p->step > 0 && tni_optim_elsewhere(opt, p) &&
            !opt->shards->whole)
            return p;
    }
    return NULL;
}

tn_list *tn_optim_state_dict(tn_optim *opt)
{
    if (tni_no_optim(opt)) return tni_poisoned(__func__, "opt");
    const tni_optim_param *missing = not_here(opt);
    if (missing)
        return tni_fail(TN_E_STATE,
                        "%s: the state of %s is on rank %d, this is rank %d: want "
                        "tn_data_parallel_gather on all ranks before, and rank 0 to save",
                        __func__, missing->name, missing->holder, opt->shards->own);
    tni_serializer f;
    tni_serializer_save(__func__, &f);
    show(&f, opt);
    return tni_serializer_saved(&f);
}

/* ---- while it trains ------------------------------------------------------------------------- */

bool tni_optim_form(const tn_optim *opt, const tni_optim_param *p, int s, tni_form *form)
{
    const tn_tensor *t = p->tensor;
    const tn_state_type *type = &opt->type->state[s];
    if (!(opt->group[p->group].slots >> s & 1)) return false;
    *form = (tni_form){ t->shape, t->dtype, t->storage->device };
    return !type->form || type->form(t, opt->group[p->group].number, &form->shape, &form->dtype);
}

/* Makes sure that p has its state s, in its form and on p's device: makes it, or moves it when the
 * module has moved. */
static tn_status ensure_state(const tn_optim *opt, tni_optim_param *p, int s)
{
    const tn_tensor *t = p->tensor;
    tn_tensor *state = p->state[s];
    tni_form form;
    if (!tni_optim_form(opt, p, s, &form)) return TN_OK;
    if (tni_host_counts() &&
        (!state || state->dtype != form.dtype || state->storage->backend != t->storage->backend)) {
        char what[160];
        snprintf(what, sizeof what, "makes the state of %.100s", p->name);
        tni_host_refused("tn_optim_step", what,
                         "every parameter updated in the capture's first run");
        return TN_E_STATE;
    }
    bool lasting = tni_alloc_lasting(true);
    if (!state) {
        state = tn_full_as(form.shape, opt->type->state[s].initial, form.dtype, form.device);
    } else {
        if (state->dtype != form.dtype) state = tn_to_dtype(state, form.dtype);
        if (state && state->storage->backend != t->storage->backend)
            state = tn_to(state, form.device);
    }
    tni_alloc_lasting(lasting);
    return state && state == p->state[s] ? TN_OK : tni_hold(&p->state[s], state);
}

tn_status tni_optim_ready(const tn_optim *opt, tni_optim_param *p)
{
    for (int s = 0; s < TN_OPTIM_STATES; s++) TNI_TRY(ensure_state(opt, p, s));
    return TN_OK;
}

void tni_optim_release(tn_optim *opt)
{
    for (int i = 0; i < opt->n && opt->shards; i++) {
        tni_optim_param *p = &opt->param[i];
        for (int k = 0; k < TN_OPTIM_STATES && tni_optim_elsewhere(opt, p); k++) {
            tn_drop(p->state[k]);
            p->state[k] = NULL;
        }
    }
    if (opt->shards) opt->shards->whole = false;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* As before the first step: parameters that a file does not name have no state. */
static void forget(tni_serializer *f, tn_optim *opt)
{
    static const int64_t none = 0;
    static const bool whole = false;
    if (opt->shards) tni_serializer_set(f, &opt->shards->whole, &whole, sizeof whole);
    for (int i = 0; i < opt->n; i++) {
        tni_optim_param *p = &opt->param[i];
        tni_serializer_set(f, &p->step, &none, sizeof none);
        for (int k = 0; k < TN_OPTIM_STATES; k++)
            if (p->state[k]) tni_serializer_set_tensor(f, &p->state[k], NULL);
    }
}

tni_staged *tni_optim_stage(tn_optim *opt, const tn_list *state)
{
    tni_serializer f;
    if (tni_optim_busy("tn_optim_load_state_dict", opt)) return NULL;
    TNI_UNRECORDED;
    bool lasting = tni_alloc_lasting(true);
    tni_serializer_load(&f, state);
    forget(&f, opt);
    show(&f, opt);
    tni_alloc_lasting(lasting);
    tn_status status = tni_serializer_loaded(&f, "tn_optim_load_state_dict");
    return tni_serializer_staged(&f, status);
}

tn_status tn_optim_load_state_dict(tn_optim *opt, const tn_list *state)
{
    if (tni_no_optim(opt)) return tni_poison("tn_optim_load_state_dict", "opt");
    if (!state) return tni_poison("tn_optim_load_state_dict", "state");
    return tni_staged_put(tni_optim_stage(opt, state));
}
