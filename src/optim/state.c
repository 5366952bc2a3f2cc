/*
 * state.c - an optimizer as a list of named tensors, and back.
 *
 * Names      PARAMETER.exp_avg ...   state tensors, live, of parameters that have been updated
 *            PARAMETER.step          i64, updates of that parameter
 *            group.N.lr              f64; also base_lr and weight_decay
 *            TYPE.steps, TYPE.beta1  i64; f64, what the kernel takes: the type in the name makes
 *                                    another optimizer's file an error instead of a quiet mix
 * Loading stages copies of everything and swaps them in at the end: it changes all or nothing.
 */
#include <math.h>
#include <stdio.h>

#include "optim/optim.h"

enum {
    LONGEST = 1024,
    NAME_BYTES = LONGEST + 64
}; /* of a parameter's name, as files allow; with what follows */

struct tni_optim_staged {
    tni_optim_args args;
    int64_t steps;
    int n_groups, n;
    tni_optim_group *group;
    struct staged_param {
        int64_t step;
        tn_tensor *state[TNI_OPTIM_SLOTS]; /* one reference each */
    } * param;
};

/* The numbers of args that files carry, by their place in tni_optim_type.number. */
static double *number_of(tni_optim_args *args, int i)
{
    double *const at[3] = { &args->beta1, &args->beta2, &args->eps };
    return at[i];
}

static tn_status list_hyper(tn_optim *opt, tn_list *list)
{
    char name[128];
    snprintf(name, sizeof name, "%s.steps", opt->type->name);
    tn_status status = tni_list_i64(list, name, opt->steps);
    for (int i = 0; status == TN_OK && i < 3; i++) {
        if (!opt->type->number[i]) continue;
        snprintf(name, sizeof name, "%s.%s", opt->type->name, opt->type->number[i]);
        status = tni_list_f64(list, name, *number_of(&opt->args, i));
    }
    if (status == TN_OK && opt->type->flag) {
        snprintf(name, sizeof name, "%s.%s", opt->type->name, opt->type->flag);
        status = tni_list_i64(list, name, opt->args.flag);
    }
    if (status == TN_OK) {
        snprintf(name, sizeof name, "%s.maximize", opt->type->name);
        status = tni_list_i64(list, name, opt->args.maximize);
    }
    for (int i = 0; status == TN_OK && i < opt->n_groups; i++) {
        snprintf(name, sizeof name, "group.%d.lr", i);
        status = tni_list_f64(list, name, opt->group[i].lr);
        snprintf(name, sizeof name, "group.%d.base_lr", i);
        if (status == TN_OK) status = tni_list_f64(list, name, opt->group[i].base_lr);
        snprintf(name, sizeof name, "group.%d.weight_decay", i);
        if (status == TN_OK) status = tni_list_f64(list, name, opt->group[i].weight_decay);
    }
    return status;
}

static tn_status check_length(const char *function, const tni_optim_param *p)
{
    size_t n = strlen(p->name);
    if (n <= LONGEST) return TN_OK;
    return tni_error(TN_E_NAME, "%s: the name %.60s... takes %zu bytes: want at most %d", function,
                     p->name, n, LONGEST);
}

static tn_status list_param(const tn_optim *opt, const tni_optim_param *p, tn_list *list)
{
    char name[NAME_BYTES];
    if (p->step == 0) return TN_OK;
    if (check_length("tn_optim_state_dict", p) != TN_OK) return TN_E_NAME;
    for (int s = 0; s < TNI_OPTIM_SLOTS; s++) {
        if (!(opt->slots & (1u << s))) continue;
        snprintf(name, sizeof name, "%s.%s", p->name, opt->type->slot[s]);
        tn_status status = tn_list_add(list, name, p->state[s]);
        if (status != TN_OK) return status;
    }
    snprintf(name, sizeof name, "%s.step", p->name);
    return tni_list_i64(list, name, p->step);
}

tn_list *tn_optim_state_dict(tn_optim *opt)
{
    if (!opt) return tni_poisoned("tn_optim_state_dict", "opt");
    tn_list *list = tn_list_new();
    if (!list || list_hyper(opt, list) != TN_OK) return NULL;
    for (int i = 0; i < opt->n; i++)
        if (list_param(opt, &opt->param[i], list) != TN_OK) return NULL;
    return list;
}

void tni_optim_discard(tni_optim_staged *staged)
{
    if (!staged) return;
    for (int i = 0; staged->param && i < staged->n; i++)
        for (int s = 0; s < TNI_OPTIM_SLOTS; s++) tn_drop(staged->param[i].state[s]);
    if (staged->param) tni_free(staged->param, (size_t)staged->n * sizeof *staged->param);
    if (staged->group) tni_free(staged->group, (size_t)staged->n_groups * sizeof *staged->group);
    tni_free(staged, sizeof *staged);
}

static void stage_hyper(tn_optim *opt, const tn_list *list, bool *used, tni_optim_staged *staged,
                        tni_report *r)
{
    char name[128];
    int64_t flag = opt->args.flag;
    int64_t maximize = opt->args.maximize;
    staged->args = opt->args;
    snprintf(name, sizeof name, "%s.steps", opt->type->name);
    tni_report_steps(r, list, used, name, &staged->steps);
    for (int i = 0; i < 3; i++) {
        if (!opt->type->number[i]) continue;
        snprintf(name, sizeof name, "%s.%s", opt->type->name, opt->type->number[i]);
        double *number = number_of(&staged->args, i);
        tni_report_rate(r, list, used, name, number);
        if ((opt->type->fractions >> i & 1) && *number >= 1 && isfinite(*number))
            tni_report_add(r, TNI_MISMATCHED, "%s (%g there, wanted in [0, 1))", name, *number);
    }
    /* Switches decide which state there is and what it means: they are compared, not taken over. */
    if (opt->type->flag) {
        snprintf(name, sizeof name, "%s.%s", opt->type->name, opt->type->flag);
        tni_report_i64(r, list, used, name, &flag);
        if (flag != opt->args.flag)
            tni_report_add(r, TNI_MISMATCHED, "%s (%d there, %d here)", name, flag != 0,
                           opt->args.flag);
    }
    snprintf(name, sizeof name, "%s.maximize", opt->type->name);
    tni_report_i64(r, list, used, name, &maximize);
    if (maximize != opt->args.maximize)
        tni_report_add(r, TNI_MISMATCHED, "%s (%d there, %d here)", name, maximize != 0,
                       opt->args.maximize);
    for (int i = 0; i < opt->n_groups; i++) {
        snprintf(name, sizeof name, "group.%d.lr", i);
        tni_report_rate(r, list, used, name, &staged->group[i].lr);
        snprintf(name, sizeof name, "group.%d.base_lr", i);
        tni_report_rate(r, list, used, name, &staged->group[i].base_lr);
        snprintf(name, sizeof name, "group.%d.weight_decay", i);
        tni_report_rate(r, list, used, name, &staged->group[i].weight_decay);
    }
}

/* An own copy of a state tensor where the parameter lives; NULL when it does not fit or on failure. */
static tn_tensor *stage_tensor(const tn_tensor *p, tn_tensor *source, const char *name,
                               tni_report *r)
{
    if (!tni_shape_equal(&source->shape, &p->shape) || source->dtype != p->dtype) {
        tni_report_add(r, TNI_MISMATCHED, "%s (%s %s there, %s %s here)", name,
                       tni_shape_text(&source->shape), tn_dtype_name(source->dtype),
                       tni_shape_text(&p->shape), tn_dtype_name(p->dtype));
        return NULL;
    }
    tn_tensor *copy = tn_empty_as(p->shape, p->dtype, p->storage->device);
    if (!copy || tn_copy_(copy, source) != TN_OK) return NULL;
    return tn_keep(copy);
}

static tn_status stage_param(const tn_optim *opt, const tni_optim_param *p, const tn_list *list,
                             bool *used, struct staged_param *staged, tni_report *r)
{
    char name[NAME_BYTES];
    if (check_length("tn_optim_load_state_dict", p) != TN_OK) return TN_E_NAME;
    snprintf(name, sizeof name, "%s.step", p->name);
    tn_tensor *found[TNI_OPTIM_SLOTS] = { NULL };
    bool any = tn_list_has(list, name);
    for (int s = 0; s < TNI_OPTIM_SLOTS; s++) {
        if (!(opt->slots & (1u << s))) continue;
        snprintf(name, sizeof name, "%s.%s", p->name, opt->type->slot[s]);
        found[s] = tni_report_find(list, used, name);
        any = any || found[s];
    }
    if (!any) return TN_OK; /* not updated yet when it was saved */
    snprintf(name, sizeof name, "%s.step", p->name);
    tni_report_steps(r, list, used, name, &staged->step);
    for (int s = 0; s < TNI_OPTIM_SLOTS; s++) {
        if (!(opt->slots & (1u << s))) continue;
        snprintf(name, sizeof name, "%s.%s", p->name, opt->type->slot[s]);
        if (!found[s]) {
            tni_report_add(r, TNI_MISSING, "%s", name);
            continue;
        }
        int before = r->n[TNI_MISMATCHED];
        staged->state[s] = stage_tensor(p->tensor, found[s], name, r);
        if (!staged->state[s] && before == r->n[TNI_MISMATCHED]) return tni_pending();
    }
    return TN_OK;
}

static tn_status stage_all(tn_optim *opt, const tn_list *list, bool *used, tni_optim_staged *staged)
{
    tni_report r = { 0 };
    stage_hyper(opt, list, used, staged, &r);
    for (int i = 0; i < opt->n; i++) {
        tn_status status = stage_param(opt, &opt->param[i], list, used, &staged->param[i], &r);
        if (status != TN_OK) return status;
    }
    tni_report_unused(&r, list, used);
    return tni_report_end(&r, "tn_optim_load_state_dict");
}

tni_optim_staged *tni_optim_stage(tn_optim *opt, const tn_list *state)
{
    tni_optim_staged *staged = tni_calloc(sizeof *staged);
    if (!staged) return NULL;
    size_t n_used = (size_t)TNI_MAX(state->n, 1);
    bool *used = tni_calloc(n_used);
    staged->n = opt->n;
    staged->n_groups = opt->n_groups;
    staged->param = tni_calloc((size_t)opt->n * sizeof *staged->param);
    staged->group = tni_calloc((size_t)opt->n_groups * sizeof *staged->group);
    tn_status status = TN_E_NOMEM;
    if (used && staged->param && staged->group) {
        tn_scope scope = tn_scope_begin();
        bool was = tn_set_grad(false);
        status = stage_all(opt, state, used, staged);
        tn_set_grad(was);
        tn_scope_end(scope);
    }
    if (used) tni_free(used, n_used);
    if (status == TN_OK) return staged;
    tni_optim_discard(staged);
    return NULL;
}

void tni_optim_commit(tn_optim *opt, tni_optim_staged *staged)
{
    opt->args = staged->args;
    opt->steps = staged->steps;
    memcpy(opt->group, staged->group, (size_t)opt->n_groups * sizeof *opt->group);
    for (int i = 0; i < opt->n; i++) {
        opt->param[i].step = staged->param[i].step;
        for (int s = 0; s < TNI_OPTIM_SLOTS; s++) {
            tn_tensor *old = opt->param[i].state[s];
            opt->param[i].state[s] = staged->param[i].state[s];
            staged->param[i].state[s] = old; /* dropped with staged */
        }
    }
    tni_optim_discard(staged);
}

tn_status tn_optim_load_state_dict(tn_optim *opt, const tn_list *state)
{
    if (!opt) return tni_poison("tn_optim_load_state_dict", "opt");
    if (!state) return tni_poison("tn_optim_load_state_dict", "state");
    tni_optim_staged *staged = tni_optim_stage(opt, state);
    if (!staged) return tni_pending();
    tni_optim_commit(opt, staged);
    return TN_OK;
}
