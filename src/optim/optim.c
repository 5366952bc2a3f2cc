/*
 * optim.c - making an optimizer: groups, parameters by name, and what it refuses to touch.
 */
#include <math.h>
#include <stdio.h>

#include "autograd/op.h"
#include "nn/module.h"
#include "optim/optim.h"
#include "tensor/recorder.h"

tn_status tni_optim_nonnegative(const char *type, const char *what, double value)
{
    if (isfinite(value) && value >= 0) return TN_OK;
    return tni_error(TN_E_INVALID, "tn_%s: %s is %g: a finite number >= 0 is wanted", type, what,
                     value);
}

tn_status tni_optim_fraction(const char *type, const char *what, double value)
{
    if (value >= 0 && value < 1) return TN_OK;
    return tni_error(TN_E_INVALID, "tn_%s: %s is %g: wanted in [0, 1)", type, what, value);
}

/* Room for extra more entries; entries that exist stay valid. Each array has a capacity of its own:
 * the next one may find no memory. */
static tn_status grow(void **block, int *capacity, int n, int extra, size_t size)
{
    if (extra <= *capacity - n) return TN_OK;
    if (extra > INT32_MAX / 2 - n)
        return tni_error(TN_E_NOMEM, "tn_optim_add_group: %d parameters beside %d: too many", extra,
                         n);
    int next = TNI_MAX(n + extra, 2 * *capacity);
    size_t bytes;
    if (!tni_mul_size((size_t)next, size, &bytes)) bytes = SIZE_MAX; /* refused below */
    void *larger = tni_calloc(bytes);
    if (!larger) return tni_pending();
    if (*block) {
        memcpy(larger, *block, (size_t)n * size);
        tni_free(*block, (size_t)*capacity * size);
    }
    *block = larger;
    *capacity = next;
    return TN_OK;
}

/* What an optimizer must not update is refused here, by name. */
static tn_status check_entry(const char *f, const tn_entry *e)
{
    const tn_tensor *t = e->tensor;
    if (!t || tni_none(t))
        return tni_error(TN_E_INVALID, "%s: %s is absent: a tensor is wanted", f, e->name);
    if (e->kind == TN_BUFFER)
        return tni_error(TN_E_NAME, "%s: %s is a buffer: optimizers update parameters only", f,
                         e->name);
    if (atomic_load(&t->storage->buffer_marks) > 0)
        return tni_error(TN_E_NAME,
                         "%s: %s shares memory with a buffer: optimizers update parameters only", f,
                         e->name);
    if (t->node)
        return tni_error(TN_E_STATE, "%s: %s is the result of tn_%s: optimizers update leaves only",
                         f, e->name, t->node->op->name);
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

/* Every tensor and every name once. p is filled and not yet in the tables. */
static tn_status enter_tables(tn_optim *opt, const char *f, const tni_optim_param *p)
{
    const char *other = tni_map_get(&opt->tensors, p->tensor);
    if (other)
        return tni_error(TN_E_NAME, "%s: %s is given twice (also as %s): once is wanted", f,
                         p->name, other);
    if (tni_map_get(&opt->names, p->name))
        return tni_error(TN_E_NAME, "%s: two parameters are named %s: state is kept by name", f,
                         p->name);
    if (tni_map_put(&opt->names, p->name, p->name) < 0) return tni_pending();
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
    tn_status status =
        grow((void **)&opt->group, &opt->group_capacity, opt->n_groups, 1, sizeof *opt->group);
    if (status == TN_OK)
        status = grow((void **)&opt->param, &opt->capacity, opt->n, more, sizeof *opt->param);
    if (status == TN_OK)
        status = grow((void **)&opt->call, &opt->call_capacity, opt->n, more, sizeof *opt->call);
    return status;
}

/* Appends the group whole or not at all. */
static tn_status add_group(tn_optim *opt, const char *f, const tn_list *list, double lr,
                           double decay)
{
    if (list->n <= 0)
        return tni_error(TN_E_INVALID, "%s: the list of parameters is empty: nothing to train", f);
    tn_status status = make_room(opt, list->n);
    int taken = 0;
    while (status == TN_OK && taken < list->n) {
        status = take_entry(opt, f, &list->entry[taken], &opt->param[opt->n + taken]);
        taken += status == TN_OK;
    }
    if (status == TN_OK) {
        opt->group[opt->n_groups++] = (tni_optim_group){ lr, lr, decay };
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

tn_optim *tni_optim_new(const tni_optim_type *type, tni_optim_args args, unsigned slots,
                        double initial, const tn_list *parameters, double lr, double weight_decay)
{
    char f[32];
    snprintf(f, sizeof f, "tn_%s", type->name);
    tn_optim *opt = tni_calloc(sizeof *opt);
    if (!opt) return NULL;
    opt->refs = 1;
    opt->type = type;
    opt->args = args;
    opt->slots = slots;
    opt->initial = initial;
    opt->names.names = true;
    if (add_group(opt, f, parameters, lr, weight_decay) != TN_OK) {
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
    if (!opt || --opt->refs > 0) return;
    for (int i = 0; i < opt->n; i++) release_param(&opt->param[i]);
    if (opt->call) tni_free(opt->call, (size_t)opt->call_capacity * sizeof *opt->call);
    if (opt->param) tni_free(opt->param, (size_t)opt->capacity * sizeof *opt->param);
    if (opt->group) tni_free(opt->group, (size_t)opt->group_capacity * sizeof *opt->group);
    tni_map_free(&opt->names);
    tni_map_free(&opt->tensors);
    tni_free(opt, sizeof *opt);
}

tn_status tn_optim_add_group(tn_optim *opt, const tn_list *parameters, tn_group_options o)
{
    static const char f[] = "tn_optim_add_group";
    if (!opt) return tni_poison(f, "opt");
    if (!parameters) return tni_poison(f, "parameters");
    if (TNI_UNLIKELY(tni_recording))
        return tni_record_refuse(f, "adds parameters", "it called before tn_capture_new");
    if (o.lr == 0) o.lr = opt->group[0].base_lr;
    tn_status status = tni_optim_nonnegative("optim_add_group", "lr", o.lr);
    if (status == TN_OK)
        status = tni_optim_nonnegative("optim_add_group", "weight_decay", o.weight_decay);
    if (status != TN_OK) return status;
    return add_group(opt, f, parameters, o.lr, o.weight_decay);
}

int tn_optim_groups(const tn_optim *opt)
{
    if (!opt) tni_poison("tn_optim_groups", "opt");
    return opt ? opt->n_groups : -1;
}

int64_t tn_optim_steps(const tn_optim *opt)
{
    if (!opt) tni_poison("tn_optim_steps", "opt");
    return opt ? opt->steps : -1;
}

double tn_optim_lr(const tn_optim *opt, int group)
{
    if (!opt) {
        tni_poison("tn_optim_lr", "opt");
        return NAN;
    }
    if (group >= 0 && group < opt->n_groups) return opt->group[group].lr;
    tni_error(TN_E_INDEX, "tn_optim_lr: group %d: there are %d", group, opt->n_groups);
    return NAN;
}

void tni_optim_rate(tn_optim *opt, int group, double lr)
{
    opt->group[group].lr = lr;
}

tn_status tn_optim_set_lr(tn_optim *opt, int group, double lr)
{
    if (!opt) return tni_poison("tn_optim_set_lr", "opt");
    if (group < -1 || group >= opt->n_groups)
        return tni_error(TN_E_INDEX, "tn_optim_set_lr: group %d: there are %d (-1: all)", group,
                         opt->n_groups);
    if (TNI_UNLIKELY(tni_recording))
        return tni_record_refuse("tn_optim_set_lr", "sets rates", "it called after tn_capture_run");
    tn_status status = tni_optim_nonnegative("optim_set_lr", "lr", lr);
    if (status != TN_OK) return status;
    for (int i = 0; i < opt->n_groups; i++)
        if (group < 0 || group == i) opt->group[i].lr = opt->group[i].base_lr = lr;
    return TN_OK;
}

tn_list *tn_optim_parameters(const tn_optim *opt)
{
    if (!opt) return tni_poisoned("tn_optim_parameters", "opt");
    tn_list *list = tn_list_new();
    for (int i = 0; list && i < opt->n; i++) {
        if (tn_list_add(list, opt->param[i].name, opt->param[i].tensor) != TN_OK) return NULL;
        list->entry[list->n - 1].owner = opt->param[i].owner;
    }
    return list;
}

tn_status tn_optim_zero_grad(tn_optim *opt)
{
    if (!opt) return tni_poison("tn_optim_zero_grad", "opt");
    for (int i = 0; i < opt->n; i++) {
        tn_tensor *t = opt->param[i].tensor;
        if (TNI_UNLIKELY(tni_recording)) tni_record_leaf(t, false);
        if (!t->gm || !t->gm->grad) continue;
        tn_drop(t->gm->grad);
        t->gm->grad = NULL;
    }
    return TN_OK;
}
