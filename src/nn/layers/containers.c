/* containers.c - Sequential and ModuleList: children named "0", "1", ...; ModuleDict: children with
 * names of their own; ParameterList and BufferList: tensors named "0", "1", ... */
#include "nn/layers/layer.h"

typedef struct buffer_list {
    tn_module base;
    unsigned flags; /* of its buffers */
} buffer_list;

/* Each step has its own scope, so that its input is freed as soon as nothing needs it. */
static tn_tensor *sequential_forward(tn_module *self, tn_tensor *x)
{
    tn_keep(x);
    for (int i = 0; x && i < self->state->n; i++) {
        tn_module *child = self->state->slot[i].child; /* NULL: a tensor registered by a user */
        if (!child || tni_no_module(child)) continue;
        TNI_SCOPED;
        tn_tensor *y = scope.depth < 0 ? NULL : tn_keep(tn_forward(child, x));
        tn_drop(x);
        x = y;
    }
    return tn_scope_adopt(x);
}

static void buffer_list_describe(const tn_module *self, char *text, size_t size)
{
    const buffer_list *m = (const buffer_list *)self;
    const char *role = tn_role_name(m->flags);
    snprintf(text, size, "%s%s%s", role, role[0] && m->flags & TN_NON_PERSISTENT ? ", " : "",
             m->flags & TN_NON_PERSISTENT ? "not saved" : "");
}

enum { SEQUENTIAL, MODULE_LIST, MODULE_DICT, PARAMETER_LIST, BUFFER_LIST };
static const tn_module_type types[] = {
    { .name = "Sequential", .size = sizeof(tn_module), .forward = sequential_forward },
    { .name = "ModuleList", .size = sizeof(tn_module) },
    { .name = "ModuleDict", .size = sizeof(tn_module) },
    { .name = "ParameterList", .size = sizeof(tn_module) },
    { .name = "BufferList", .size = sizeof(buffer_list), .describe = buffer_list_describe },
};

/* The first of "0", "1", ... from n, the number of members, on that is free: deletions leave
 * gaps. */
static const char *next_name(const tn_module *m, int n, char name[16])
{
    do {
        snprintf(name, 16, "%d", n++);
    } while (tni_slot_find(m, name, strlen(name)));
    return name;
}

/* ---- of modules ------------------------------------------------------------------------------ */

/* Appends in a constructor or later. */
static tn_status append(tn_module *m, tn_module *child)
{
    char name[16];
    return tn_register_module(m, next_name(m, tn_module_children(m), name), NULL, child);
}

tn_module *tn_sequential_from(tn_module *const *children, int n)
{
    if (n < 0 || (n > 0 && !children))
        return tni_fail(TN_E_INVALID,
                        "tn_sequential_from: %d children%s: want 0 and up, and their array", n,
                        children ? "" : " in NULL");
    tn_module *m = tn_module_new(&types[SEQUENTIAL]);
    for (int i = 0; i < n; i++)
        if (m)
            append(m, children[i]);
        else
            tn_module_drop(children[i]);
    return tn_module_done(m);
}

#define CONSTRUCTOR(tn_name_new, type)                                                             \
    tn_module *tn_name_new(void)                                                                   \
    {                                                                                              \
        return tn_module_done(tn_module_new(&types[type]));                                        \
    }
CONSTRUCTOR(tn_module_list_new, MODULE_LIST)
CONSTRUCTOR(tn_module_dict_new, MODULE_DICT)
CONSTRUCTOR(tn_parameter_list_new, PARAMETER_LIST)

tn_status tn_module_append(tn_module *list, tn_module *child)
{
    tn_status status =
        tni_expect_type("tn_module_append", list, &types[SEQUENTIAL], 2,
                        "ModuleList or Sequential (tn_register_module names children of others)");
    if (status == TN_OK && !child) status = tni_poison("tn_module_append", "child");
    if (status == TN_OK) return append(list, child);
    tn_module_drop(child);
    return status;
}

/* ---- of tensors ------------------------------------------------------------------------------ */

tn_module *tn_buffer_list_new(unsigned flags)
{
    buffer_list *m = tn_module_new(&types[BUFFER_LIST]);
    if (!m) return NULL;
    m->flags = flags;
    return tn_module_done(&m->base);
}

static tn_status check(const char *function, const tn_module *m)
{
    return tni_expect_type(function, m, &types[PARAMETER_LIST], 2, "ParameterList or BufferList");
}

tn_status tn_module_append_tensor(tn_module *list, tn_tensor *t)
{
    TNI_TRY(check("tn_module_append_tensor", list));
    if (!t) return tni_poison("tn_module_append_tensor", "t");
    char name[16];
    next_name(list, list->state->n, name);
    if (list->type == &types[PARAMETER_LIST]) return tn_register_parameter(list, name, NULL, t);
    return tn_register_buffer(list, name, NULL, t, ((buffer_list *)list)->flags);
}

int tn_module_tensors(const tn_module *list)
{
    return check("tn_module_tensors", list) == TN_OK ? list->state->n : -1;
}

tn_tensor *tn_module_tensor(tn_module *list, int i)
{
    if (check("tn_module_tensor", list) != TN_OK) return NULL;
    if (i < 0 || i >= list->state->n || !list->state->slot[i].tensor)
        return tni_fail(TN_E_INDEX, "tn_module_tensor: %d: the %s has %d", i, list->type->name,
                        list->state->n);
    return list->state->slot[i].tensor;
}
