/*
 * numbers.c - what a type says of its optimizers' numbers and states: ranges, names, which states
 * go with which numbers; numbers are read and set by name.
 */
#include "optim/optim.h"

/* ---- ranges ---------------------------------------------------------------------------------- */

const char *tni_number_misfit(const tn_number_type *number, double value, char text[64])
{
    const bool small = number->below == 0 || value < number->below;
    const bool inside = isfinite(value) && value >= number->least && small;
    if (number->on_off ? value == 0 || value == 1 : inside) return NULL;
    if (number->on_off)
        snprintf(text, 64, "want 0 or 1");
    else if (number->below != 0)
        snprintf(text, 64, "want in [%g, %g)", number->least, number->below);
    else
        snprintf(text, 64, "want a finite number >= %g", number->least);
    return text;
}

tn_status tni_number_check(const char *f, const tn_number_type *number, double value)
{
    char text[64];
    const char *wanted = tni_number_misfit(number, value, text);
    return wanted ? tni_error(TN_E_INVALID, "%s: %s is %g: %s", f, number->name, value, wanted)
                  : TN_OK;
}

tn_status tni_optim_nonnegative(const char *f, const char *what, double value)
{
    return tni_number_check(f, &(tn_number_type){ .name = what }, value);
}

/* ---- what a type has ------------------------------------------------------------------------- */

int tni_optim_number_at(const tn_optim_type *type, const char *name)
{
    int i = name ? TN_OPTIM_NUMBERS - 1 : -1;
    while (i >= 0 && !(type->number[i].name && !strcmp(type->number[i].name, name))) i--;
    return i;
}

unsigned tni_optim_slots(const tn_optim_type *type, const double *number)
{
    unsigned slots = 0;
    for (int s = 0; s < TN_OPTIM_STATES; s++) {
        const tn_state_type *state = &type->state[s];
        int with = tni_optim_number_at(type, state->with);
        if (state->name && (with < 0 || number[with] != 0)) slots |= 1u << s;
    }
    return slots;
}

static bool has_row(int rule, unsigned states)
{
    switch (TNI_OPTIM_CASE(rule, (int)states)) {
#define KNOWN(NAME, states) case TNI_OPTIM_CASE(TN_RULE_##NAME, states):
        TNI_OPTIM_RULES(TNI_OPTIM_SETS, KNOWN) return true;
    }
    return false;
}

/* What no number says alone. */
static tn_status check_together(const char *f, const tn_optim_type *type, const double *number)
{
    const char *wanted = type->agree ? type->agree(number) : NULL;
    unsigned slots = tni_optim_slots(type, number);
    char given[256] = "";
    for (int i = 0; wanted && i < TN_OPTIM_NUMBERS; i++)
        if (type->number[i].name)
            tni_text_add(given, sizeof given, "%s%s %g", given[0] ? ", " : "", type->number[i].name,
                         number[i]);
    if (wanted) return tni_error(TN_E_INVALID, "%s: %s: %s", f, given, wanted);
    if (!type->rule || has_row(type->rule, slots)) return TN_OK;
    return tni_error(TN_E_INVALID, "%s: states %#x: want a set of its row of TNI_OPTIM_RULES", f,
                     slots);
}

tn_status tni_optim_check_numbers(const char *f, const tn_optim_type *type,
                                  const tni_optim_group *group)
{
    tn_status status = tni_optim_nonnegative(f, "lr", group->lr);
    for (int i = 0; status == TN_OK && i < TN_OPTIM_NUMBERS; i++)
        if (type->number[i].name) status = tni_number_check(f, &type->number[i], group->number[i]);
    if (status == TN_OK) status = tni_optim_nonnegative(f, "weight_decay", group->weight_decay);
    return status == TN_OK ? check_together(f, type, group->number) : status;
}

/* ---- the numbers of a group ------------------------------------------------------------------ */

static const tni_optim_group *group_of(const char *function, const tn_optim *opt, int group)
{
    if (tni_no_optim(opt)) return tni_poisoned(function, "opt");
    if (group >= 0 && group < opt->n_groups) return &opt->group[group];
    return tni_fail(TN_E_INDEX, "%s: group %d: there are %d", function, group, opt->n_groups);
}

#define NUMBER(tn_name, number)                                                                    \
    double tn_name(const tn_optim *opt, int group)                                                 \
    {                                                                                              \
        const tni_optim_group *g = group_of(#tn_name, opt, group);                                 \
        return g ? g->number : NAN;                                                                \
    }
NUMBER(tn_optim_lr, lr)
NUMBER(tn_optim_weight_decay, weight_decay)

/* Whether that number of that group (-1: all) may become value. */
static tn_status may_set(const char *f, const tn_optim *opt, int group,
                         const tn_number_type *number, double value)
{
    if (tni_no_optim(opt)) return tni_poison(f, "opt");
    if (group < -1 || group >= opt->n_groups)
        return tni_error(TN_E_INDEX, "%s: group %d: there are %d (-1: all)", f, group,
                         opt->n_groups);
    if (tni_host_refused(f, "sets rates", "it called after tn_capture_run")) return TN_E_STATE;
    return tni_number_check(f, number, value);
}

tn_status tn_optim_set_lr(tn_optim *opt, int group, double lr)
{
    TNI_HOLD_TRAPS;
    tn_status status = may_set(__func__, opt, group, &(tn_number_type){ .name = "lr" }, lr);
    for (int i = 0; status == TN_OK && i < opt->n_groups; i++)
        if (group < 0 || group == i) opt->group[i].lr = opt->group[i].base_lr = lr;
    return status;
}

tn_status tn_optim_set_weight_decay(tn_optim *opt, int group, double weight_decay)
{
    TNI_HOLD_TRAPS;
    const tn_number_type number = { .name = "weight_decay" };
    tn_status status = may_set(__func__, opt, group, &number, weight_decay);
    for (int i = 0; status == TN_OK && i < opt->n_groups; i++)
        if (group < 0 || group == i) opt->group[i].weight_decay = weight_decay;
    return status;
}

/* The place of a number; -1 with a message that names those there are. */
static int number_named(const char *f, const tn_optim_type *type, const char *name)
{
    char names[TN_OPTIM_NUMBERS * 34] = "";
    int at = tni_optim_number_at(type, name);
    if (at >= 0) return at;
    for (int i = 0; i < TN_OPTIM_NUMBERS; i++)
        if (type->number[i].name)
            tni_text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", type->number[i].name);
    tni_error(TN_E_NAME, "%s: %s has no %.40s: want %s", f, tni_optim_label(type), name,
              names[0] ? names : "no numbers");
    return -1;
}

tn_status tni_optim_set_named(const char *f, const tn_optim_type *type, const tn_number *set,
                              double *number)
{
    for (int k = 0; k < TN_OPTIM_NUMBERS; k++) {
        int i = set[k].name ? number_named(f, type, set[k].name) : 0;
        if (i < 0) return tni_pending();
        if (set[k].name) number[i] = set[k].value;
    }
    return TN_OK;
}

double tn_optim_number(const tn_optim *opt, int group, const char *name)
{
    const tni_optim_group *g = group_of(__func__, opt, group);
    if (!g) return NAN;
    if (!name) tni_poison(__func__, "name");
    int i = name ? number_named(__func__, opt->type, name) : -1;
    return i < 0 ? NAN : g->number[i];
}

/* Whether number i of a group that exists agrees with the others when it becomes value. */
static tn_status check_change(const char *f, const tn_optim_type *type,
                              const tni_optim_group *group, int i, double value)
{
    const char *name = type->number[i].name;
    double changed[TN_OPTIM_NUMBERS];
    memcpy(changed, group->number, sizeof changed);
    changed[i] = value;
    if (type->number[i].settled && value != group->number[i])
        return tni_error(TN_E_STATE, "%s: %s %g in place of %g: want an optimizer made with it", f,
                         name, value, group->number[i]);
    unsigned slots = tni_optim_slots(type, changed);
    if (slots == group->slots || slots == tni_optim_slots(type, group->number))
        return check_together(f, type, changed);
    return tni_error(TN_E_STATE, "%s: %s %g in place of %g: want an optimizer made %s%s", f, name,
                     value, group->number[i], value != 0 ? "with " : "without",
                     value != 0 ? name : "");
}

tn_status tn_optim_set_number(tn_optim *opt, int group, const char *name, double value)
{
    TNI_HOLD_TRAPS;
    if (tni_no_optim(opt)) return tni_poison(__func__, "opt");
    if (!name) return tni_poison(__func__, "name");
    int i = number_named(__func__, opt->type, name);
    if (i < 0) return tni_pending();
    tn_status status = may_set(__func__, opt, group, &opt->type->number[i], value);
    for (int k = 0; status == TN_OK && k < opt->n_groups; k++)
        if (group < 0 || group == k)
            status = check_change(__func__, opt->type, &opt->group[k], i, value);
    for (int k = 0; status == TN_OK && k < opt->n_groups; k++)
        if (group < 0 || group == k) opt->group[k].number[i] = value;
    return status;
}
