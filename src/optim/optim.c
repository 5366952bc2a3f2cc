/* optim.c - making an optimizer: groups, parameters by name, and what it refuses to touch. */
#include <ctype.h>

#include "autograd/notify.h"
#include "optim/optim.h"

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
    for (int s = 0; s < TN_OPTIM_STATES; s++) tn_drop(p->state[s]);
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
    TNI_TRY(check_entry(f, e));
    const char *wanted = opt->type->takes ? opt->type->takes(e->tensor) : NULL;
    if (wanted)
        return tni_error(TN_E_SHAPE, "%s: %s is %s: %s", f, e->name,
                         tni_shape_text(&e->tensor->shape), wanted);
    *p = (tni_optim_param){ .name = tni_strdup(e->name), .group = opt->n_groups };
    if (!p->name) return tni_pending();
    p->tensor = tn_keep(e->tensor);
    if (e->owner) p->owner = tn_module_keep(e->owner);
    tn_status status = enter_tables(opt, f, p);
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
        tni_room(&opt->part, &opt->part_capacity, n, extra, sizeof *opt->part) &&
        tni_room(&opt->call, &opt->call_capacity, n, extra, sizeof *opt->call) &&
        tni_room(&opt->starts, &opt->starts_capacity, n, extra + 1, sizeof *opt->starts);
    return fits ? TN_OK : TN_E_NOMEM;
}

/* ---- a type ---------------------------------------------------------------------------------- */

/* Whether files can have it in a name: letters, digits and _, and not one that they have. */
static bool is_word(const char *name)
{
    static const char *const taken[] = { "lr", "base_lr", "weight_decay", "steps", "step" };
    size_t n = 0;
    while (n < 32 && (isalnum((unsigned char)name[n]) || name[n] == '_')) n++;
    for (size_t k = 0; k < sizeof taken / sizeof *taken; k++)
        if (!strcmp(name, taken[k])) return false;
    return n > 0 && n < 32 && name[n] == '\0';
}

/* What is wrong with the type; NULL: nothing. */
static const char *misfit_of(const tn_optim_type *type)
{
    enum { N = TN_OPTIM_NUMBERS, ALL = N + TN_OPTIM_STATES };
    const char *name[ALL];
    bool plain = true; /* the states, as rules and formulas take them */
    if (!type->name || !is_word(type->name)) return "its name: want 1 to 31 letters, digits and _";
    for (int i = 0; i < ALL; i++) {
        const tn_state_type *state = i < N ? NULL : &type->state[i - N];
        name[i] = state ? state->name : type->number[i].name;
        if (!name[i]) continue;
        bool fits = is_word(name[i]);
        for (int k = 0; k < i; k++) fits &= !name[k] || strcmp(name[k], name[i]) != 0;
        if (!fits)
            return "want names of letters, digits and _, each once, and none of lr, base_lr, "
                   "weight_decay, step, steps";
        if (state && state->with && tni_optim_number_at(type, state->with) < 0)
            return "a state goes with no number of the type";
        plain &= !state || (i < N + 3 && !state->form);
    }
    if (!type->formula_f32 != !type->formula_f64) return "one formula: want f32 and f64";
    if (!plain && (type->rule || type->formula_f32))
        return "a formula's states: want the first three, of the parameter's form";
    const int ways = (type->rule != TN_RULE_NONE) + !!type->formula_f32 + !!type->update;
    return ways == 1 ? NULL : "want one of rule, formula and update";
}

/* ---- making one ------------------------------------------------------------------------------ */

/* Appends the group whole or not at all. */
static tn_status add_group(tn_optim *opt, const char *f, const tn_list *list, tni_optim_group group)
{
    if (list->n <= 0)
        return tni_error(TN_E_INVALID, "%s: the list of parameters is empty: nothing to train", f);
    group.slots = tni_optim_slots(opt->type, group.number);
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

tn_optim *tn_optim_new(const tn_optim_type *type, const tn_list *parameters, tn_optim_options o)
{
    TNI_HOLD_TRAPS;
    const char *f = type && type->function ? type->function : "tn_optim_new";
    if (!type) return tni_poisoned(f, "type");
    if (!parameters) return tni_poisoned(f, "parameters");
    const char *misfit = misfit_of(type), *name = type->name ? type->name : "a type";
    if (misfit) return tni_fail(TN_E_INVALID, "%s: %.40s: %s", f, name, misfit);
    tni_optim_group group = { .lr = tni_given(o.lr, o.use_lr, type->lr != 0 ? type->lr : 1e-3),
                              .weight_decay = o.weight_decay };
    for (int i = 0; i < TN_OPTIM_NUMBERS; i++) group.number[i] = type->number[i].initial;
    if (tni_optim_set_named(f, type, o.set, group.number) != TN_OK ||
        tni_optim_check_numbers(f, type, &group) != TN_OK)
        return NULL;
    tn_optim *opt = tni_calloc(sizeof *opt);
    if (!opt) return NULL;
    *opt = (tn_optim){ .refs = 1, .copy = *type, .type = &opt->copy, .user = o.user };
    opt->names.names = true;
    if (add_group(opt, f, parameters, group) == TN_OK) return opt;
    tn_optim_free(opt);
    return NULL;
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
    tni_room_free(&opt->part, &opt->part_capacity, sizeof *opt->part);
    tni_room_free(&opt->starts, &opt->starts_capacity, sizeof *opt->starts);
    tni_room_free(&opt->param, &opt->capacity, sizeof *opt->param);
    tni_room_free(&opt->group, &opt->group_capacity, sizeof *opt->group);
    tni_hook_list_free(&opt->hooks);
    tni_map_free(&opt->names);
    tni_map_free(&opt->tensors);
    tni_bury(opt, sizeof *opt, "an optimizer is used after its tn_optim_free");
}

int tn_optim_groups(const tn_optim *opt)
{
    return tni_no_optim(opt) ? tni_minus_one(tni_poison(__func__, "opt")) : opt->n_groups;
}

int64_t tn_optim_steps(const tn_optim *opt)
{
    return tni_no_optim(opt) ? tni_minus_one(tni_poison(__func__, "opt")) : opt->steps;
}

/* ---- another group --------------------------------------------------------------------------- */

/* The numbers of the options; number has the first group's. */
static tn_status take_numbers(const char *f, const tn_optim *opt, const tn_group_options *o,
                              double *number)
{
    tn_number given[TN_OPTIM_NUMBERS] = {
        { "momentum", o->momentum }, { "dampening", o->dampening }, { "beta1", o->beta1 },
        { "beta2", o->beta2 },       { "alpha", o->alpha },         { "eps", o->eps },
        { "lr_decay", o->lr_decay }
    };
    for (int k = 0; k < TN_OPTIM_NUMBERS; k++) {
        bool use = o->use_numbers && tni_optim_number_at(opt->type, given[k].name) >= 0;
        if (given[k].value == 0 && !use) given[k].name = NULL;
    }
    tn_status status = tni_optim_set_named(f, opt->type, given, number);
    return status == TN_OK ? tni_optim_set_named(f, opt->type, o->set, number) : status;
}

tn_status tn_optim_add_group(tn_optim *opt, const tn_list *parameters, tn_group_options o)
{
    TNI_HOLD_TRAPS;
    if (tni_no_optim(opt)) return tni_poison(__func__, "opt");
    if (!parameters) return tni_poison(__func__, "parameters");
    if (tni_host_refused(__func__, "adds parameters", "it called before tn_capture_new"))
        return TN_E_STATE;
    if (tni_optim_busy(__func__, opt)) return TN_E_STATE;
    if (opt->type->closure)
        return tni_error(TN_E_STATE, "%s: %s has one group: want all parameters when it is made",
                         __func__, tni_optim_label(opt->type));
    tni_optim_group group = opt->group[0];
    group.lr = tni_given(o.lr, o.use_lr, opt->group[0].base_lr);
    group.weight_decay = o.weight_decay;
    tn_status status = take_numbers(__func__, opt, &o, group.number);
    if (status == TN_OK) status = tni_optim_check_numbers(__func__, opt->type, &group);
    return status == TN_OK ? add_group(opt, __func__, parameters, group) : status;
}

bool tni_optim_busy(const char *f, const tn_optim *opt)
{
    if (opt->stepping)
        tni_error(TN_E_STATE, "%s: a step of %s runs: want it called after it", f,
                  tni_optim_label(opt->type));
    return opt->stepping;
}

tn_list *tn_optim_parameters(const tn_optim *opt)
{
    if (tni_no_optim(opt)) return tni_poisoned("tn_optim_parameters", "opt");
    tn_list *list = tni_list_new(__func__);
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
