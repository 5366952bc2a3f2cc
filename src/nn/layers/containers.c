/* containers.c - Sequential and ModuleList: children named "0", "1", ...; ModuleDict: children with
 * names of their own. */
#include "nn/layers/layer.h"

/* Each step has its own scope, so that its input is freed as soon as nothing needs it. */
static tn_tensor *sequential_forward(tn_module *self, tn_tensor *x)
{
    tn_keep(x);
    for (int i = 0; x && i < self->state->n; i++) {
        tn_module *child = self->state->slot[i].child; /* NULL: a tensor registered by a user */
        if (!child || tni_no_module(child)) continue;
        tn_scope scope = tn_scope_begin();
        tn_tensor *y = scope.depth < 0 ? NULL : tn_keep(tn_forward(child, x));
        tn_scope_end(scope);
        tn_drop(x);
        x = y;
    }
    return tn_scope_adopt(x);
}

static const tn_module_type sequential_type = {
    .name = "Sequential",
    .size = sizeof(tn_module),
    .forward = sequential_forward,
};

static const tn_module_type module_list_type = {
    .name = "ModuleList",
    .size = sizeof(tn_module),
};

static const tn_module_type module_dict_type = {
    .name = "ModuleDict",
    .size = sizeof(tn_module),
};

const char *tni_next_name(const tn_module *m, int n, char name[16])
{
    do {
        snprintf(name, 16, "%d", n++);
    } while (tni_slot_find(m, name, strlen(name)));
    return name;
}

/* Appends in a constructor or later. */
static tn_status append(tn_module *m, tn_module *child)
{
    char name[16];
    return tn_register_module(m, tni_next_name(m, tn_module_children(m), name), NULL, child);
}

tn_module *tn_sequential_from(tn_module *const *children, int n)
{
    if (n < 0 || (n > 0 && !children))
        return tni_fail(TN_E_INVALID,
                        "tn_sequential_from: %d children%s: want 0 and up, and their array", n,
                        children ? "" : " in NULL");
    tn_module *m = tn_module_new(&sequential_type);
    for (int i = 0; i < n; i++)
        if (m)
            append(m, children[i]);
        else
            tn_module_drop(children[i]);
    return tn_module_done(m);
}

tn_module *tn_module_list_new(void)
{
    return tn_module_done(tn_module_new(&module_list_type));
}

tn_module *tn_module_dict_new(void)
{
    return tn_module_done(tn_module_new(&module_dict_type));
}

tn_status tn_module_append(tn_module *list, tn_module *child)
{
    tn_status status = tni_module_check("tn_module_append", list);
    if (status == TN_OK && list->type != &sequential_type && list->type != &module_list_type)
        status = tni_error(TN_E_INVALID,
                           "tn_module_append: the module is a %s: want a ModuleList or "
                           "Sequential (tn_register_module names children of others)",
                           list->type->name);
    if (status == TN_OK && !child) status = tni_poison("tn_module_append", "child");
    if (status == TN_OK) return append(list, child);
    tn_module_drop(child);
    return status;
}
