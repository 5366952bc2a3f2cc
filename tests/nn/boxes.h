/*
 * boxes.h - a module for tests to fill, and short names for what tests of modules often call.
 */
#ifndef TENON_TESTS_BOXES_H
#define TENON_TESTS_BOXES_H

#include <stdarg.h>

#include "common.h"

/* A module with fields of every kind, whose forward is chosen by the test. */
typedef struct box {
    tn_module base;
    tn_tensor *a, *b, *c;
    tn_module *child, *other;
    tn_tensor *(*run)(struct box *m, tn_tensor *x);
} box;

static inline tn_tensor *box_forward(tn_module *self, tn_tensor *x)
{
    box *m = (box *)self;
    return m->run ? m->run(m, x) : x;
}

static const tn_module_type box_type = { .name = "Box",
                                         .size = sizeof(box),
                                         .forward = box_forward };

static inline box *box_new(void)
{
    return (box *)tn_module_done(tn_module_new(&box_type));
}

static inline box *owned_box(void)
{
    return (box *)owned(&box_new()->base);
}

static inline tn_module *linear(int64_t in, int64_t out)
{
    return tn_linear_new(in, out, (tn_linear_options){ 0 });
}

static inline tn_module *norm1d(int64_t n)
{
    return tn_batch_norm1d_new(n, (tn_batch_norm_options){ 0 });
}

static inline tn_module *norm2d(int64_t n)
{
    return tn_batch_norm2d_new(n, (tn_batch_norm_options){ 0 });
}

static inline tn_module *layernorm(tn_shape shape)
{
    return tn_layer_norm_new(shape, (tn_layer_norm_options){ 0 });
}

static inline tn_module *attention(int64_t width, int64_t heads)
{
    return tn_multihead_attention_new(width, heads, (tn_multihead_attention_options){ 0 });
}

/* conv2d(1, 2, 3, .stride = 2): options without their type; 0 for the defaults */
#define conv2d(in, out, kernel, ...)                                                               \
    tn_conv2d_new((in), (out), (kernel), (tn_conv2d_options){ __VA_ARGS__ })
#define embedding(rows, width, ...)                                                                \
    tn_embedding_new((rows), (width), (tn_embedding_options){ __VA_ARGS__ })
#define encoding(width, most, ...)                                                                 \
    tn_positional_encoding_new((width), (most), (tn_positional_encoding_options){ __VA_ARGS__ })
#define encoder_layer(width, heads, ...)                                                           \
    tn_encoder_layer_new((width), (heads), (tn_encoder_layer_options){ __VA_ARGS__ })
#define sgd(list, ...) tn_sgd((list), (tn_sgd_options){ __VA_ARGS__ })
#define adam(list, ...) tn_adam((list), (tn_adam_options){ __VA_ARGS__ })
#define adamw(list, ...) tn_adamw((list), (tn_adamw_options){ __VA_ARGS__ })
#define rmsprop(list, ...) tn_rmsprop((list), (tn_rmsprop_options){ __VA_ARGS__ })
#define adagrad(list, ...) tn_adagrad((list), (tn_adagrad_options){ __VA_ARGS__ })
#define plateau(opt, ...) tn_plateau_lr((opt), (tn_plateau_options){ __VA_ARGS__ })
#define one_cycle(opt, ...) tn_one_cycle_lr((opt), (tn_one_cycle_options){ __VA_ARGS__ })

static inline tn_status buffer(tn_module *m, const char *name, tn_tensor **field, tn_tensor *t)
{
    return tn_register_buffer(m, name, field, t, TN_PERSISTENT);
}

#define load_with(m, state, ...)                                                                   \
    tn_load_state_dict((m), (state), (tn_load_options){ __VA_ARGS__ }, NULL)

static inline tn_status load(tn_module *m, const tn_list *state)
{
    return tn_load_state_dict(m, state, (tn_load_options){ 0 }, NULL);
}

/* The elements of a tensor against an array of golden numbers. */
#define assert_golden(t, values, tolerance)                                                        \
    do {                                                                                           \
        const char *golden_ = values_difference(                                                   \
            (t), (values), (int64_t)(sizeof(values) / sizeof *(values)), (tolerance));             \
        ck_assert_msg(!golden_, "%s: %s", #values, golden_);                                       \
    } while (0)

static inline const char *type_of(const tn_module *m)
{
    return m->type->name;
}

/* A list with copies of a model's state, but for the names in `without`. */
static inline tn_list *copied_state(tn_module *m, const char *without)
{
    tn_list *copy = tn_list_new();
    tn_list *state = tn_state_dict(m, "");
    for (int i = 0; i < state->n; i++) {
        tn_tensor *t = tn_clone(tn_detach(state->entry[i].tensor));
        if (strstr(without, state->entry[i].name)) continue;
        assert_ok(tn_list_add(copy, state->entry[i].name, t));
    }
    return copy;
}

/* A list of name, tensor, name, tensor ... NULL. */
static inline tn_list *listed(const char *name, ...)
{
    tn_list *list = tn_list_new();
    va_list more;
    va_start(more, name);
    for (; name; name = va_arg(more, const char *))
        assert_ok(tn_list_add(list, name, va_arg(more, tn_tensor *)));
    va_end(more);
    return list;
}

/* The names of a list, joined by a space. Static buffer. */
static inline const char *names(const tn_list *list)
{
    static char text[4096];
    size_t n = 0;
    assert_made(list);
    text[0] = '\0';
    for (int i = 0; i < list->n; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? " " : "", list->entry[i].name);
    return text;
}

#define assert_names(list, wanted) ck_assert_str_eq(names(list), (wanted))

static inline void use_f32(void)
{
    assert_ok(tn_set_default_dtype(TN_F32));
}

static inline void use_f64(void)
{
    assert_ok(tn_set_default_dtype(TN_F64));
}

/* Its tests may change the default dtype. */
static inline TCase *layers_case(Suite *suite, const char *name)
{
    TCase *t = test_case(suite, name);
    tcase_add_checked_fixture(t, use_f32, use_f32);
    return t;
}

/* What further files of a suite add to it. */
void nn_containers_cases(Suite *suite);
void nn_calls_cases(Suite *suite);
void nn_refusals_cases(Suite *suite);
void nn_memory_cases(Suite *suite);
void nn_options_cases(Suite *suite);
void layers_batchnorm_cases(Suite *suite);
void layers_norms_cases(Suite *suite);
void layers_attention_cases(Suite *suite);

#endif
