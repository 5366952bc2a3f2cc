/* leaves.h - parameters without a module, for tests of optimizers and schedules. */
#ifndef TENON_TESTS_LEAVES_H
#define TENON_TESTS_LEAVES_H

#include "nn/boxes.h"

static inline tn_tensor *leaf(tn_shape shape, uint64_t seed, tn_dtype dtype)
{
    return with_grad(random_as(shape, -1, 1, seed, dtype));
}

/* Another leaf with t's values. */
static inline tn_tensor *copy_of(tn_tensor *t)
{
    return with_grad(tn_clone(tn_detach(t)));
}

static inline tn_list *list_of(int n, const char *const *names, tn_tensor *const *tensors)
{
    tn_list *list = tn_list_new();
    for (int i = 0; i < n; i++) assert_ok(tn_list_add(list, names[i], tensors[i]));
    return list;
}

static inline tn_list *one(tn_tensor *t)
{
    return list_of(1, (const char *[]){ "w" }, &t);
}

/* a, b, c, d: n of them */
static inline tn_list *letters(int n, tn_tensor *const *tensors)
{
    return list_of(n, (const char *[]){ "a", "b", "c", "d" }, tensors);
}

static inline tn_status add_group(tn_optim *opt, const char *name, tn_tensor *t, tn_group_options o)
{
    return tn_optim_add_group(opt, list_of(1, &name, &t), o);
}

static inline void set_grad(tn_tensor *t, uint64_t seed)
{
    assert_ok(tn_set_grad(t, random_as(tn_shape_get(t), -1, 1, seed, tn_dtype_of(t))));
}

/* A module with w [2] of ones. */
static inline tn_module *one_weight(void)
{
    tn_module *m = tn_module_dict_new();
    assert_ok(tn_register_parameter(m, "w", NULL, tn_ones(TN_SHAPE(2))));
    return m;
}

#endif
