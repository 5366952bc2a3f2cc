/* rows_custom.c - the calls that do not fit a row: they return a struct, or belong together. */
#include <string.h>

#include "callbacks.h"
#include "draw.h"
#include "pool.h"

#define CUSTOM_ROW(name) void custom_##name(world *w, slot *s)

CUSTOM_ROW(tn_fail)
{
    (void)s;
    tn_fail((tn_status)pick_enum(w, TN_E_BACKEND + 1), "tn_fail: %s: %d", "of the user's", 3);
    tn_error_clear();
}

CUSTOM_ROW(tn_shape_from)
{
    static const int64_t sizes[TN_MAX_RANK + 2] = { 2, 3, 1, 1, 1, 1, 1, 1, 1, 1 };
    (void)s;
    tn_shape shape = tn_shape_from(pick_int(w, 0, 8), pick_pointer(w, (void *)(uintptr_t)sizes));
    w->digest = mix(w->digest, (uint64_t)shape.rank);
    pool_tensor(w, tn_zeros(shape));
    tn_error_clear();
}

CUSTOM_ROW(tn_cpu)
{
    (void)s;
    w->digest = mix(w->digest, (uint64_t)tn_cpu().type);
}
CUSTOM_ROW(tn_cuda)
{
    (void)s;
    w->digest = mix(w->digest, (uint64_t)tn_cuda(pick_int(w, 0, 1)).index);
}

CUSTOM_ROW(tn_scope_begin)
{
    (void)s;
    if (w->scopes < SCOPES) w->scope[w->scopes++] = tn_scope_begin();
}

CUSTOM_ROW(tn_keep)
{
    (void)s;
    tn_tensor *t = pick_tensor(w, any_tensor(w));
    tn_tensor *kept = tn_keep(t);
    w->broken |= kept != t;
    tn_drop(kept);
    tn_error_clear();
}

CUSTOM_ROW(tn_memory)
{
    (void)s;
    tn_memory_stats stats = tn_memory();
    w->broken |= stats.in_use < 0 || stats.cached < 0 || stats.peak_in_use < stats.in_use;
}
CUSTOM_ROW(tn_get_allocator)
{
    (void)s;
    tn_allocator a = tn_get_allocator();
    w->broken |= (a.alloc == NULL) != (a.free == NULL);
}
CUSTOM_ROW(tn_get_file_limits)
{
    (void)s;
    tn_file_limits limits = tn_get_file_limits();
    w->broken |= limits.header_bytes < 1 || limits.tensors < 1 || limits.inflated_bytes < 0;
}
CUSTOM_ROW(tn_cuda_memory)
{
    (void)w, (void)s;
    tn_cuda_memory();
}

CUSTOM_ROW(tn_shape_get)
{
    (void)s;
    tn_shape shape = tn_shape_get(pick_tensor(w, any_tensor(w)));
    w->digest = mix(w->digest, (uint64_t)shape.rank);
    tn_error_clear();
}
CUSTOM_ROW(tn_device_of)
{
    (void)s;
    w->digest = mix(w->digest, (uint64_t)tn_device_of(pick_tensor(w, any_tensor(w))).type);
    tn_error_clear();
}

/* A user's own module, from a type that may be wrong, filled with members that may be wrong. */
static tn_module *own_module(world *w)
{
    static const tn_module_type odd[] = {
        { .name = NULL, .size = sizeof(own_net) },
        { .name = "Small", .size = 1 },
        { .name = "Half", .size = sizeof(own_net), .extra_state = NULL, .set_extra_state = NULL },
        { .name = "", .size = sizeof(tn_module) },
    };
    const tn_module_type *type = &own_types[below(w, n_own_types)];
    if (w->mode != SOUND && below(w, 3) == 0) type = &odd[below(w, 4)];
    own_net *m = tn_module_new(pick_pointer(w, (void *)(uintptr_t)type));
    bool whole = m && m->base.type->size >= sizeof(own_net);
    int64_t n = m ? below(w, 4) : 0;
    for (int64_t i = 0; i < n; i++) {
        tn_tensor *t = pick_tensor(w, make_tensor(w, TN_SHAPE(3), TN_F32, PLAIN));
        switch (below(w, 3)) {
        case 0:
            tn_register_parameter(&m->base, pick_text(w, "scale"), whole ? &m->scale : NULL, t);
            break;
        case 1:
            tn_register_buffer(&m->base, pick_text(w, "count"), whole ? &m->count : NULL, t,
                               TN_PERSISTENT);
            break;
        default:
            tn_register_module(&m->base, pick_text(w, "child"), whole ? &m->child : NULL,
                               tn_relu_new());
            break;
        }
    }
    return tn_module_done(m ? &m->base : NULL);
}
CUSTOM_ROW(tn_module_new)
{
    (void)s;
    w->result.module = own_module(w);
}
CUSTOM_ROW(tn_module_done)
{
    (void)s;
    w->result.module = own_module(w);
}

CUSTOM_ROW(tn_module_keep)
{
    (void)s;
    tn_module *m = pick_pointer(w, any_module(w, NULL));
    tn_module_drop(tn_module_keep(m));
    tn_error_clear();
}

/* Of modules that are no language models: they are refused. */
CUSTOM_ROW(tn_generate)
{
    (void)s;
    const int64_t ids[] = { 1, 0, pick_long(w, 0, 2) };
    const tn_prompt prompts[] = { { pick_pointer(w, (void *)(uintptr_t)ids), pick_long(w, 1, 3) },
                                  { ids, 1 } };
    const tn_generate_options o = { .max_new_tokens = pick_long(w, 0, 3),
                                    .per_prompt = pick_long(w, 0, 2),
                                    .sampling = { .temperature = pick_real(w, 0, 2) } };
    tn_generated_free(tn_generate(pick_pointer(w, any_module(w, NULL)),
                                  pick_pointer(w, (void *)(uintptr_t)prompts), pick_long(w, 1, 2),
                                  o));
    tn_error_clear();
}
CUSTOM_ROW(tn_generated_free)
{
    (void)w, (void)s;
    tn_generated_free(NULL);
}
CUSTOM_ROW(tn_perplexity)
{
    (void)s;
    const int64_t ids[] = { 1, 0, 1, 1, 0, 1, 0, 0 };
    w->broken |=
        tn_perplexity(pick_pointer(w, any_module(w, NULL)), pick_pointer(w, (void *)(uintptr_t)ids),
                      pick_long(w, 2, 8), pick_long(w, 2, 4), pick_long(w, 1, 2)) < 0;
    tn_error_clear();
}
