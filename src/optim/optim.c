/*
 * optim.c - making an optimizer: groups, parameters by name, and what it refuses to touch.
 */
#include <math.h>
#include <stdio.h>

#include "autograd/notify.h"
#include "nn/module.h"
#include "optim/optim.h"

tn_status tni_optim_nonnegative(const char *type, const char *what, double value)
{
    if (isfinite(value) && value >= 0) return TN_OK;
    return tni_error(TN_E_INVALID, "tn_%s: %s is %g: want a finite number >= 0", type, what, value);
}

tn_status tni_optim_fraction(const char *type, const char *what, double value)
{
    if (value >= 0 && value < 1) return TN_OK;
    return tni_error(TN_E_INVALID, "tn_%s: %s is %g: want in [0, 1)", type, what, value);
}

/* Refuses what an optimizer must not update, and names it. */
static tn_status check_entry(const char *f, const tn_entry *e)
{
    const tn_tensor *t = e->tensor;
    if (tni_absent(t))
        return tni_error(TN_E_INVALID, "%s: %s is absent: want a tensor", f, e->name);
    if (e->kind == TN_BUFFER)
        return tni_error(TN_E_NAME, "%s: %s is a buffer: optimizers update parameters only", f,
                         e->name);
    if (atomic_load(&t->storage->buffer_marks) > 0)
        return tni_error(TN_E_NAME,
                         "%s: %s shares memory with a buffer: optimizers update parameters only", f,
                         e->name);
    if (t->node)
        return tni_error(TN_E_STATE, "%s: %s is the result of %s%s: optimizers update leaves only",
                         f, e->name, tni_op_prefix(t->node->op), t->node->op->name);
    if (e->owner && !tni_module_holds_parameter(e->owner, t))
        return tni_error(TN_E_STATE,
                         "%s: %s is no longer a parameter of its module: list them again", f,
                         e->name);
    return TN_OK;
}

static void release_param(tni_optim_param *p)
{
    for (int s = 0; s < TNI_OPTIM_SLOTS; s++) tn_drop(p->state[s]);
    tn_drop(p->tensor);
    tn_module_drop(p->owner);
    tni_strfree(p->name);
}

/* Adds p, which is filled, to the tables; refuses a tensor or name that is there already. */
static tn_status enter_tables(tn_optim *opt, const char *f, const tni_optim_param *p)
{
    const char *other = tni_map_get(&opt->tensors, p->tensor);
    if (other)
        return tni_error(TN_E_NAME, "%s: %s is given twice (also as %s): want once", f, p->name,
                         other);
    if (tni_map_get(&opt->names, p->name))
        return tni_error(TN_E_NAME, "%s: two parameters are named %s: state is kept by name", f,
                         p->name);
    if (tni_map_put(&opt->names, p->name, (void *)(p - opt->param + 1)) < 0) return tni_pending();
    if (tni_map_put(&opt->tensors, p->tensor, p->name) >= 0) return TN_OK;
    tni_map_remove(&opt->names, p->name);
    return tni_pending();
}

static tn_status take_entry(tn_optim *opt, const char *f, const tn_entry *e, tni_optim_param *p)
{
    tn_status status = check_entry(f, e);
    if (status != TN_OK) return status;
    *p = (tni_optim_param){ .name = tni_strdup(e->name), .group = opt->n_groups };
    if (!p->name) return tni_pending();
    p->tensor = tn_keep(e->tensor);
    if (e->owner) p->owner = tn_module_keep(e->owner);
    status = enter_tables(opt, f, p);
    if (status != TN_OK) release_param(p);
    return status;
}

static tn_status make_room(tn_optim *opt, int more)
{
    const size_t n = (size_t)opt->n, extra = (size_t)more;
    if (more > INT32_MAX / 2 - opt->n)
        return tni_error(TN_E_NOMEM, "tn_optim_add_group: %d parameters beside %d: too many", more,
                         opt->n);
    bool fits =
        tni_room(&opt->group, &opt->group_capacity, (size_t)opt->n_groups, 1, sizeof *opt->group) &&
        tni_room(&opt->param, &opt->capacity, n, extra, sizeof *opt->param) &&
        tni_room(&opt->call, &opt->call_capacity, n, extra, sizeof *opt->call) &&
        tni_room(&opt->starts, &opt->starts_capacity, n, extra + 1, sizeof *opt->starts);
    return fits ? TN_OK : TN_E_NOMEM;
}

/* Appends the group whole or not at all. */
static tn_status add_group(tn_optim *opt, const char *f, const tn_list *list, tni_optim_group group)
{
    if (list->n <= 0)
        return tni_error(TN_E_INVALID, "%s: the list of parameters is empty: nothing to train", f);
    tn_status status = make_room(opt, list->n);
    int taken = 0;
    while (status == TN_OK && taken < list->n) {
        status = take_entry(opt, f, &list->entry[taken], &opt->param[opt->n + taken]);
        taken += status == TN_OK;
    }
    if (status == TN_OK && opt->shards)
        status = opt->shards->shard(opt->shards, &opt->param[opt->n], taken);
    if (status == TN_OK) {
        group.base_lr = group.lr;
        opt->group[opt->n_groups++] = group;
        opt->n += taken;
        return TN_OK;
    }
    while (taken-- > 0) {
        tni_optim_param *p = &opt->param[opt->n + taken];
        tni_map_remove(&opt->names, p->name);
        tni_map_remove(&opt->tensors, p->tensor);
        release_param(p);
    }
    return status;
}

static bool has_row(int kind, unsigned states)
{
    switch (TNI_OPTIM_CASE(kind, (int)states)) {
#define KNOWN(NAME, states) case TNI_OPTIM_CASE(TNI_##NAME, states):
        TNI_OPTIMIZERS(TNI_OPTIM_SETS, KNOWN) return true;
    }
    return false;
}

static tn_status check_numbers(const tni_optim_type *type, const tni_optim_group *group)
{
    tn_status status = tni_optim_nonnegative(type->name, "lr", group->lr);
    for (int i = 0; status == TN_OK && i < 3; i++)
        if (type->number[i])
            status = (type->fractions >> i & 1 ? tni_optim_fraction : tni_optim_nonnegative)(
                type->name, type->number[i], group->number[i]);
    if (status != TN_OK) return status;
    return tni_optim_nonnegative(type->name, "weight_decay", group->weight_decay);
}

tn_optim *tni_optim_new(const tni_optim_type *type, tni_optim_args args, unsigned slots,
                        double initial, const tn_list *parameters, tni_optim_group group)
{
    char f[32];
    snprintf(f, sizeof f, "tn_%s", type->name);
    if (!parameters) return tni_poisoned(f, "parameters");
    if (check_numbers(type, &group) != TN_OK) return NULL;
    if (!has_row(args.kind, slots))
        return tni_fail(TN_E_INVALID, "%s: states %#x: want a set of its row of TNI_OPTIMIZERS", f,
                        slots);
    tn_optim *opt = tni_calloc(sizeof *opt);
    if (!opt) return NULL;
    *opt = (tn_optim){ .refs = 1, .type = type, .args = args, .slots = slots, .initial = initial };
    opt->names.names = true;
    if (add_group(opt, f, parameters, group) != TN_OK) {
        tn_optim_free(opt);
        return NULL;
    }
    return opt;
}

tn_optim *tni_optim_keep(tn_optim *opt)
{
    opt->refs++;
    return opt;
}

void tn_optim_free(tn_optim *opt)
{
    if (tni_no_optim(opt) || --opt->refs > 0) return;
    if (opt->shards) opt->shards->drop(opt->shards);
    for (int i = 0; i < opt->n; i++) release_param(&opt->param[i]);
    tni_room_free(&opt->call, &opt->call_capacity, sizeof *opt->call);
    tni_room_free(&opt->starts, &opt->starts_capacity, sizeof *opt->starts);
    tni_room_free(&opt->param, &opt->capacity, sizeof *opt->param);
    tni_room_free(&opt->group, &opt->group_capacity, sizeof *opt->group);
    tni_map_free(&opt->names);
    tni_map_free(&opt->tensors);
    tni_bury(opt, sizeof *opt, "an optimizer is used after its tn_optim_free");
}

int tn_optim_groups(const tn_optim *opt)
{
    if (tni_no_optim(opt)) tni_poison("tn_optim_groups", "opt");
    return tni_no_optim(opt) ? -1 : opt->n_groups;
}

int64_t tn_optim_steps(const tn_optim *opt)
{
    if (tni_no_optim(opt)) tni_poison("tn_optim_steps", "opt");
    return tni_no_optim(opt) ? -1 : opt->steps;
}

/* ---- the numbers of a group ------------------------------------------------------------------ */

static const tni_optim_group *group_of(const char *function, const tn_optim *opt, int group)
{
    if (tni_no_optim(opt)) return tni_poisoned(function, "opt");
    if (group >= 0 && group < opt->n_groups) return &opt->group[group];
    return tni_fail(TN_E_INDEX, "%s: group %d: there are %d", function, group, opt->n_groups);
}

double tn_optim_lr(const tn_optim *opt, int group)
{
    const tni_optim_group *g = group_of("tn_optim_lr", opt, group);
    return g ? g->lr : NAN;
}

double tn_optim_weight_decay(const tn_optim *opt, int group)
{
    const tni_optim_group *g = group_of("tn_optim_weight_decay", opt, group);
    return g ? g->weight_decay : NAN;
}

/* Whether a number of that group (-1: all) may become value; function without its "tn_". */
static tn_status may_set(const char *function, const tn_optim *opt, int group, const char *what,
                         double value)
{
    char f[40];
    snprintf(f, sizeof f, "tn_%s", function);
    if (tni_no_optim(opt)) return tni_poison(f, "opt");
    if (group < -1 || group >= opt->n_groups)
        return tni_error(TN_E_INDEX, "%s: group %d: there are %d (-1: all)", f, group,
                         opt->n_groups);
    if (tni_host_refused(f, "sets rates", "it called after tn_capture_run")) return TN_E_STATE;
    return tni_optim_nonnegative(function, what, value);
}

tn_status tn_optim_set_lr(tn_optim *opt, int group, double lr)
{
    TNI_HOLD_TRAPS;
    tn_status status = may_set("optim_set_lr", opt, group, "lr", lr);
    for (int i = 0; status == TN_OK && i < opt->n_groups; i++)
        if (group < 0 || group == i) opt->group[i].lr = opt->group[i].base_lr = lr;
    return status;
}

tn_status tn_optim_set_weight_decay(tn_optim *opt, int group, double weight_decay)
{
    TNI_HOLD_TRAPS;
    tn_status status = may_set("optim_set_weight_decay", opt, group, "weight_decay", weight_decay);
    for (int i = 0; status == TN_OK && i < opt->n_groups; i++)
        if (group < 0 || group == i) opt->group[i].weight_decay = weight_decay;
    return status;
}

/* The place of a name among the type's numbers; -1: none. */
static int number_at(const tn_optim *opt, const char *name)
{
    const char *const *number = opt->type->number;
    int i = 2;
    while (i >= 0 && !(number[i] && !strcmp(number[i], name))) i--;
    return i;
}

/* The same; -1 with a message. */
static int number_named(const char *function, const tn_optim *opt, const char *name)
{
    const char *const *number = opt->type->number;
    int at = number_at(opt, name);
    if (at >= 0) return at;
    tni_error(TN_E_NAME, "%s: tn_%s has no %.40s: want %s%s%s%s%s", function, opt->type->name, name,
              number[0], number[1] ? ", " : "", number[1] ? number[1] : "", number[2] ? ", " : "",
              number[2] ? number[2] : "");
    return -1;
}

/* Whether number i of a group may become value; function without its "tn_". */
static tn_status check_number(const char *function, const tn_optim *opt, int i, double value)
{
    const char *name = opt->type->number[i];
    double first = opt->group[0].number[i];
    tn_status status = tni_optim_nonnegative(function, name, value);
    if (status == TN_OK && (opt->type->fractions >> i & 1))
        status = tni_optim_fraction(function, name, value);
    if (status != TN_OK) return status;
    if (!strcmp(name, "momentum") && (value != 0) != (first != 0))
        return tni_error(TN_E_STATE, "tn_%s: momentum %g in place of %g: want an optimizer made %s",
                         function, value, first, value != 0 ? "with momentum" : "without");
    if (!strcmp(name, "dampening") && value != 0 && opt->args.flag)
        return tni_error(TN_E_INVALID, "tn_%s: dampening %g with nesterov: want none", function,
                         value);
    return TN_OK;
}

double tn_optim_number(const tn_optim *opt, int group, const char *name)
{
    static const char f[] = "tn_optim_number";
    const tni_optim_group *g = group_of(f, opt, group);
    if (!g) return NAN;
    if (!name) tni_poison(f, "name");
    int i = name ? number_named(f, opt, name) : -1;
    return i < 0 ? NAN : g->number[i];
}

tn_status tn_optim_set_number(tn_optim *opt, int group, const char *name, double value)
{
    static const char f[] = "tn_optim_set_number";
    if (tni_no_optim(opt)) return tni_poison(f, "opt");
    if (!name) return tni_poison(f, "name");
    int i = number_named(f, opt, name);
    if (i < 0) return tni_pending();
    tn_status status = may_set("optim_set_number", opt, group, name, value);
    if (status == TN_OK) status = check_number("optim_set_number", opt, i, value);
    for (int k = 0; status == TN_OK && k < opt->n_groups; k++)
        if (group < 0 || group == k) opt->group[k].number[i] = value;
    return status;
}

/* ---- another group --------------------------------------------------------------------------- */

tn_status tn_optim_add_group(tn_optim *opt, const tn_list *parameters, tn_group_options o)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_optim_add_group";
    const struct {
        const char *name;
        double value;
    } given[] = { { "momentum", o.momentum }, { "dampening", o.dampening }, { "beta1", o.beta1 },
                  { "beta2", o.beta2 },       { "alpha", o.alpha },         { "eps", o.eps },
                  { "lr_decay", o.lr_decay } };
    if (tni_no_optim(opt)) return tni_poison(f, "opt");
    if (!parameters) return tni_poison(f, "parameters");
    if (tni_host_refused(f, "adds parameters", "it called before tn_capture_new"))
        return TN_E_STATE;
    tni_optim_group group = opt->group[0];
    group.lr = tni_given(o.lr, o.use_lr, opt->group[0].base_lr);
    group.weight_decay = o.weight_decay;
    tn_status status = tni_optim_nonnegative("optim_add_group", "lr", group.lr);
    if (status == TN_OK)
        status = tni_optim_nonnegative("optim_add_group", "weight_decay", o.weight_decay);
    for (size_t k = 0; status == TN_OK && k < sizeof given / sizeof *given; k++) {
        if (given[k].value == 0 && !(o.use_numbers && number_at(opt, given[k].name) >= 0)) continue;
        int i = number_named(f, opt, given[k].name);
        if (i < 0) return tni_pending();
        group.number[i] = given[k].value;
        status = check_number("optim_add_group", opt, i, group.number[i]);
    }
    return status == TN_OK ? add_group(opt, f, parameters, group) : status;
}

tn_list *tn_optim_parameters(const tn_optim *opt)
{
    if (tni_no_optim(opt)) return tni_poisoned("tn_optim_parameters", "opt");
    tn_list *list = tn_list_new();
    for (int i = 0; list && i < opt->n; i++) {
        if (tn_list_add(list, opt->param[i].name, opt->param[i].tensor) != TN_OK) return NULL;
        list->entry[list->n - 1].owner = opt->param[i].owner;
    }
    return list;
}

tn_status tn_optim_zero_grad(tn_optim *opt)
{
    if (tni_no_optim(opt)) return tni_poison("tn_optim_zero_grad", "opt");
    for (int i = 0; i < opt->n; i++) {
        tn_tensor *t = opt->param[i].tensor;
        if (TNI_NOTIFY(grad_changes, t, false) != TN_OK) return tni_pending();
        if (!t->gm || !t->gm->grad) continue;
        tn_drop(t->gm->grad);
        t->gm->grad = NULL;
    }
    return TN_OK;
}
