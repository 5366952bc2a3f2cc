/* tensor_list.c - ParameterList and BufferList: tensors under the names "0", "1", ... */
#include "nn/layers/layer.h"

typedef struct tensor_list {
    tn_module base;
    unsigned flags; /* of buffers */
} tensor_list;

static void buffer_list_describe(const tn_module *self, char *text, size_t size)
{
    const tensor_list *m = (const tensor_list *)self;
    const char *role = tn_role_name(m->flags);
    snprintf(text, size, "%s%s%s", role, role[0] && m->flags & TN_NON_PERSISTENT ? ", " : "",
             m->flags & TN_NON_PERSISTENT ? "not saved" : "");
}

static const tn_module_type parameter_list_type = {
    .name = "ParameterList",
    .size = sizeof(tensor_list),
};

static const tn_module_type buffer_list_type = {
    .name = "BufferList",
    .size = sizeof(tensor_list),
    .describe = buffer_list_describe,
};

tn_module *tn_parameter_list_new(void)
{
    return tn_module_done(tn_module_new(&parameter_list_type));
}

tn_module *tn_buffer_list_new(unsigned flags)
{
    tensor_list *m = tn_module_new(&buffer_list_type);
    if (!m) return NULL;
    m->flags = flags;
    return tn_module_done(&m->base);
}

static tn_status check_type(const char *function, const tn_module *m)
{
    tn_status status = tni_module_check(function, m);
    if (status == TN_OK && m->type != &parameter_list_type && m->type != &buffer_list_type)
        status =
            tni_error(TN_E_INVALID, "%s: the module is a %s: want a ParameterList or BufferList",
                      function, m->type->name);
    return status;
}

tn_status tn_module_append_tensor(tn_module *list, tn_tensor *t)
{
    tn_status status = check_type("tn_module_append_tensor", list);
    if (status == TN_OK && !t) status = tni_poison("tn_module_append_tensor", "t");
    if (status != TN_OK) return status;
    char name[16];
    tni_next_name(list, list->state->n, name);
    if (list->type == &parameter_list_type) return tn_register_parameter(list, name, NULL, t);
    return tn_register_buffer(list, name, NULL, t, ((tensor_list *)list)->flags);
}

int tn_module_tensors(const tn_module *list)
{
    return check_type("tn_module_tensors", list) == TN_OK ? list->state->n : -1;
}

tn_tensor *tn_module_tensor(tn_module *list, int i)
{
    if (check_type("tn_module_tensor", list) != TN_OK) return NULL;
    if (i < 0 || i >= list->state->n || !list->state->slot[i].tensor)
        return tni_fail(TN_E_INDEX, "tn_module_tensor: %d: the %s has %d", i, list->type->name,
                        list->state->n);
    return list->state->slot[i].tensor;
}
