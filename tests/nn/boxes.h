/*
 * boxes.h - a module for tests to fill, and short names for common parts of module tests.
 */
#ifndef TENON_TESTS_BOXES_H
#define TENON_TESTS_BOXES_H

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

static inline tn_module *linear(int64_t in, int64_t out)
{
    return tn_linear_new(in, out, (tn_linear_options){ 0 });
}

static inline tn_module *norm2d(int64_t n)
{
    return tn_batch_norm2d_new(n, (tn_batch_norm_options){ 0 });
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

#endif
