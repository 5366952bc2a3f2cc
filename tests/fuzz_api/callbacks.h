/* callbacks.h - user functions and module types, well-behaved and misbehaving. */
#ifndef TENON_FUZZ_API_CALLBACKS_H
#define TENON_FUZZ_API_CALLBACKS_H

#include "world.h"

#define CHOICES(type, name)                                                                        \
    extern const type name[];                                                                      \
    extern const int n_##name; /* the first one behaves */
CHOICES(tn_grad_hook, grad_hooks)
CHOICES(tn_function, functions)
CHOICES(tn_step, steps)
CHOICES(tn_forward_pre_hook, pre_hooks)
CHOICES(tn_forward_hook, post_hooks)
CHOICES(tn_backward_hook, backward_hooks)
CHOICES(tn_state_dict_hook, state_hooks)
CHOICES(tn_load_post_hook, load_hooks)
CHOICES(visit_function, visits)
CHOICES(tn_graph_visitor, graph_visitors)
CHOICES(tn_custom_op, custom_ops)
CHOICES(tn_optim_type, optim_types)
CHOICES(tn_step_hook, step_hooks)
CHOICES(tn_recompute_function, recomputed)
CHOICES(apply_function, applies)
CHOICES(keep_function, keeps)
CHOICES(factor_function, factors)
CHOICES(batch_function, next_batches)
extern _Thread_local bool batch_given; /* the call before gave one: false before the first */
CHOICES(tn_dataset, datasets)
CHOICES(collate_function, collates)
CHOICES(loss_function_, losses)
CHOICES(tn_check_step, check_steps)
CHOICES(tn_profile_step, profile_steps)
CHOICES(tn_closure, closures)
#undef CHOICES

/* A user's own module: y = child(x) * scale. */
typedef struct own_net {
    tn_module base;
    tn_tensor *scale, *count;
    tn_module *child;
} own_net;
extern const tn_module_type own_types[];
extern const int n_own_types;
tn_module *own_net_new(const tn_module_type *type);

#endif
