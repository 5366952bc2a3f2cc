/*
 * nn_calls.c - calls: who owns results, what forward may leave in the module's struct, how deep
 * calls and walks go; and the table that shows a module.
 */
#include <sys/resource.h>

#include "boxes.h"

/* ---- who owns what --------------------------------------------------------------------------- */

static tn_tensor *returns_parameter(box *m, tn_tensor *x)
{
    (void)x;
    return m->a;
}

static tn_tensor *returns_view(box *m, tn_tensor *x)
{
    return tn_select(tn_add(x, m->a), 0, 0);
}

START_TEST(outputs_that_are_inputs_parameters_or_views)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2));
    tn_module *plain[] = { owned(tn_identity_new()), owned(tn_sequential_from(NULL, 0)),
                           owned(tn_dropout_new(0.5)),
                           owned(tn_sequential(tn_identity_new(), tn_identity_new())) };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        assert_ok(tn_eval(plain[i]));
        tn_scope s = tn_scope_begin();
        int64_t live = tn_live_tensors();
        tn_tensor *y = tn_forward(plain[i], x);
        ck_assert_ptr_eq(y, x); /* LY-06: eval returns the same object */
        ck_assert_int_eq(tn_live_tensors(), live);
        y = tn_scope_return(s, y);
        ck_assert_double_eq(tn_at(y, TN_INDEX(1)), 1);
    }
    assert_values(x, 0, 1, 1);
    box *m = box_new();
    assert_ok(tn_register_parameter(&m->base, "a", &m->a, tn_full(TN_SHAPE(2), 3)));
    m->run = returns_parameter;
    tn_tensor *y = tn_forward(&m->base, x);
    ck_assert_ptr_eq(y, m->a);
    m->run = returns_view;
    tn_tensor *v = tn_forward(&m->base, x);
    ck_assert_double_eq(tn_item(v), 4);
    tn_module_drop(&m->base);
    assert_values(y, 0, 3, 3); /* the scope holds it past the module */
    ck_assert_double_eq(tn_item(v), 4);
}
END_TEST

static tn_tensor *makes_garbage(box *m, tn_tensor *x)
{
    (void)m;
    for (int i = 0; i < 10; i++) x = tn_add_scalar(x, 1);
    return x;
}

START_TEST(a_call_leaves_its_outputs_only)
{
    box *m = owned_box();
    tn_tensor *x = tn_ones(TN_SHAPE(3));
    m->run = makes_garbage;
    int64_t live = tn_live_tensors();
    tn_tensor *y = tn_forward(&m->base, x);
    assert_values(y, 0, 11, 11, 11);
    ck_assert_int_eq(tn_live_tensors(), live + 1);
}
END_TEST

static tn_tensor *assigns_directly(box *m, tn_tensor *x)
{
    m->a = tn_add_scalar(x, 1);
    return m->a;
}

START_TEST(a_field_assigned_directly_is_an_error)
{
    box *m = owned_box();
    tn_tensor *h = tn_zeros(TN_SHAPE(2));
    assert_ok(buffer(&m->base, "h", &m->a, h));
    m->run = assigns_directly;
    assert_null(tn_forward(&m->base, tn_ones(TN_SHAPE(2))), TN_E_STATE,
                "field of \"h\" directly: want tn_assign");
    ck_assert_ptr_eq(m->a, h); /* put back: the module is whole */
}
END_TEST

/* a: keys so far [1, T]; b: the first input ever seen, absent at first */
static tn_tensor *appends(box *m, tn_tensor *x)
{
    tn_tensor *old = m->a;
    if (tn_assign(&m->a, tn_cat((tn_tensor *[]){ m->a, x }, 2, 1)) != TN_OK) return NULL;
    if (tn_size(old, 1) + 1 != tn_size(m->a, 1)) return NULL; /* still readable in this call */
    return tn_sum_all(m->a);
}

START_TEST(a_cache_over_100_calls)
{
    box *m = owned_box();
    tn_scope begin = tn_scope_begin();
    assert_ok(
        tn_register_buffer(&m->base, "keys", &m->a, tn_zeros(TN_SHAPE(1, 0)), TN_NON_PERSISTENT));
    tn_scope_end(begin);
    m->run = appends;
    int64_t live = tn_live_tensors();
    for (int i = 1; i <= 100; i++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *y = tn_forward(&m->base, tn_full(TN_SHAPE(1, 1), i));
        ck_assert_double_eq(tn_item(y), i * (i + 1) / 2.0);
        tn_scope_end(s);
        ck_assert_int_eq(tn_live_tensors(), live); /* the old cache is gone */
        ck_assert_int_eq(tn_size(m->a, 1), i);
    }
    /* with history (RB-10): the graph reaches back over two calls */
    tn_tensor *leaf = with_grad(tn_full(TN_SHAPE(1, 1), 2));
    assert_ok(tn_assign(&m->a, tn_zeros(TN_SHAPE(1, 0))));
    assert_made(tn_forward(&m->base, leaf));
    tn_tensor *y = tn_forward(&m->base, tn_mul_scalar(leaf, 3));
    assert_ok(tn_backward(y));
    assert_values(tn_grad(leaf), 0, 4);
}
END_TEST

/* swaps: two in, two out */
static tn_status swap_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out)
{
    (void)self;
    if (n_in != 2 || n_out != 2) {
        tn_fail(TN_E_INVALID, "Swap: %d in, %d out: want 2 and 2", n_in, n_out);
        return TN_E_INVALID;
    }
    out[0] = in[1];
    out[1] = tn_neg(in[0]);
    return TN_OK;
}

START_TEST(several_inputs_and_outputs)
{
    static const tn_module_type swap_type = { .name = "Swap",
                                              .size = sizeof(tn_module),
                                              .forward_n = swap_forward };
    tn_module *m = owned(tn_module_done(tn_module_new(&swap_type))), *fc = owned(linear(1, 1));
    tn_tensor *in[] = { tn_ones(TN_SHAPE(1)), tn_zeros(TN_SHAPE(2)) }, *out[2];
    assert_ok(tn_call(m, 2, in, 2, out));
    ck_assert_ptr_eq(out[0], in[1]);
    assert_values(out[1], 0, -1);
    assert_fails(tn_call(m, 1, in, 2, out), TN_E_INVALID, "Swap: 1 in, 2 out");
    ck_assert_ptr_null(out[0]);
    assert_fails(tn_call(fc, 2, in, 1, out), TN_E_INVALID, "Linear: called with 2 inputs");
}
END_TEST

START_TEST(messages_say_where)
{
    tn_module *outer = owned(tn_sequential(
        tn_identity_new(), tn_sequential(tn_identity_new(), tn_sequential(linear(3, 4)))));
    tn_tensor *x = tn_ones(TN_SHAPE(2, 5));
    assert_null(tn_forward(tn_get_submodule(outer, "1"), x), TN_E_SHAPE, " (in 1.0: Linear)");
    assert_null(tn_forward(tn_get_submodule(outer, "1.1.0"), x), TN_E_SHAPE, " (in Linear)");
    assert_null(tn_matmul(x, x), TN_E_SHAPE, "matmul");
    ck_assert_ptr_null(strstr(tn_error(), "(in"));
}
END_TEST

static tn_tensor *gives_nothing(box *m, tn_tensor *x)
{
    (void)m, (void)x;
    return NULL;
}

START_TEST(calls_that_cannot_work)
{
    box *m = owned_box();
    m->run = gives_nothing;
    assert_null(tn_forward(&m->base, tn_ones(TN_SHAPE(1))), TN_E_INVALID, "NULL without an error");
    assert_null(tn_forward(TN_NO_MODULE, tn_ones(TN_SHAPE(1))), TN_E_INVALID, "TN_NO_MODULE");
    tn_tensor *poison = tn_reshape(tn_ones(TN_SHAPE(2)), TN_SHAPE(3));
    ck_assert_ptr_null(tn_forward(&m->base, poison));
    assert_error(TN_E_SHAPE, "reshape"); /* passed on silently */
    poison = tn_reshape(tn_ones(TN_SHAPE(2)), TN_SHAPE(3));
    ck_assert_int_eq(tn_backward(poison), TN_E_SHAPE); /* a statement adds its name */
    assert_error(TN_E_SHAPE, "; tn_backward: loss is NULL while this error is pending");
    poison = tn_reshape(tn_ones(TN_SHAPE(2)), TN_SHAPE(3)); /* of before the call, unrelated */
    ck_assert_ptr_null(tn_forward(&m->base, tn_ones(TN_SHAPE(1))));
    ck_assert_int_eq(tn_backward(poison), TN_E_SHAPE);
    ck_assert_ptr_null(strstr(tn_error(), "tn_backward")); /* the first call is enough */
    assert_error(TN_E_SHAPE, "; Box: what its forward gave is NULL while this error is pending");
}
END_TEST

static tn_status refuse_linears(tn_module *m, void *user)
{
    (void)user;
    return strcmp(m->type->name, "Linear") == 0 ? TN_E_STATE : TN_OK;
}

/* In a constructor nobody looks at the status, without a warning; tn_module_done does. */
START_TEST(an_initialiser_that_fails)
{
    static const tn_module_type type = { .name = "Net", .size = sizeof(tn_module) };
    for (int i = 0; i < 2; i++) {
        tn_module *m = tn_module_new(&type);
        tn_register_module(m, "a", NULL,
                           i ? tn_linear_new(2, 2, (tn_linear_options){ 0 }) : tn_relu_new());
        tn_module_apply(m, refuse_linears, NULL);
        m = tn_module_done(m);
        ck_assert_int_eq(m == NULL, i);
        tn_module_drop(m);
    }
    assert_error(TN_E_STATE, "tn_module_apply: its f gave a status without a message");
}
END_TEST

static tn_status summary_of(tn_module *m, char *text, size_t size)
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    tn_status status = tn_module_summary(file, m);
    rewind(file);
    size_t n = fread(text, 1, size - 1, file);
    text[n] = '\0';
    fclose(file);
    return status;
}

START_TEST(summary)
{
    char text[4096];
    box *m = owned_box();
    assert_ok(tn_register_module(&m->base, "fc", &m->child, linear(3, 2)));
    assert_ok(tn_register_module(&m->base, "bn", &m->other, norm1d(2)));
    assert_ok(tn_register_buffer(&m->base, "mask", &m->a,
                                 tn_full_as(TN_SHAPE(2, 2), 1, TN_BOOL, tn_cpu()),
                                 TN_NON_PERSISTENT));
    assert_ok(tn_module_set_requires_grad(m->child, false));
    assert_ok(summary_of(&m->base, text, sizeof text));
    static const char wanted[] =
        "                                                         parameters      buffers\n"
        "module                                                    (trained)    (carried)\n"
        "--------------------------------------------------------------------------------\n"
        "Box\n"
        "  mask [2,2] bool, not saved                                                   4\n"
        "  fc: Linear(3, 2)\n"
        "    weight [2,3], frozen                                          6\n"
        "    bias [2], frozen                                              2\n"
        "  bn: BatchNorm1d(2, eps 1e-05, momentum 0.1)\n"
        "    weight [2]                                                    2\n"
        "    bias [2]                                                      2\n"
        "    running_mean [2], statistic                                                2\n"
        "    running_var [2], statistic                                                 2\n"
        "    num_batches_tracked [] i64, counter                                        1\n"
        "--------------------------------------------------------------------------------\n"
        "parameters 12 (trainable 4, frozen 8), 48 B\n"
        "buffers 9 (saved 5, not saved 4), 28 B\n"
        "together 76 B\n";
    ck_assert_str_eq(text, wanted);
}
END_TEST

/* ---- fields that no slot has ----------------------------------------------------------------- */

typedef struct keeper {
    tn_module base;
    int64_t calls;
    tn_tensor *cache, *held;
    tn_list *list;
    tn_tensor *array[40]; /* more than fits beside the call */
    tn_tensor *(*run)(struct keeper *m, tn_tensor *x);
} keeper;

static tn_tensor *keeper_forward(tn_module *self, tn_tensor *x)
{
    keeper *m = (keeper *)self;
    m->calls += 8; /* a value that looks like an address is not one */
    return m->run(m, x);
}

static const tn_module_type keeper_type = { .name = "Keeper",
                                            .size = sizeof(keeper),
                                            .forward = keeper_forward };

static tn_tensor *caches(keeper *m, tn_tensor *x)
{
    if (!m->cache) m->cache = tn_relu(x);
    return tn_add(m->cache, x);
}
static tn_tensor *caches_output(keeper *m, tn_tensor *x)
{
    return m->cache = tn_relu(x);
}
static tn_tensor *caches_input(keeper *m, tn_tensor *x)
{
    return tn_relu(m->cache = x);
}
static tn_tensor *caches_far(keeper *m, tn_tensor *x)
{
    return tn_relu(m->array[39] = tn_relu(x));
}
static tn_tensor *caches_list(keeper *m, tn_tensor *x)
{
    m->list = tn_list_new();
    return tn_relu(x);
}
static tn_tensor *caches_and_fails(keeper *m, tn_tensor *x)
{
    m->cache = tn_relu(x);
    return tn_reshape(x, TN_SHAPE(77));
}
/* Here the module keeps the tensor itself. */
static tn_tensor *keeps(keeper *m, tn_tensor *x)
{
    tn_drop(m->held);
    m->held = tn_keep(tn_relu(x));
    m->cache = m->held;
    return tn_add(m->held, x);
}
static tn_tensor *assigns(keeper *m, tn_tensor *x)
{
    return tn_assign(&m->cache, tn_relu(x)) == TN_OK ? tn_add(m->cache, x) : NULL;
}

static keeper *keeper_new(tn_tensor *(*run)(keeper *m, tn_tensor *x))
{
    keeper *m = (keeper *)tn_module_done(tn_module_new(&keeper_type));
    owned(&m->base);
    m->run = run;
    return m;
}

/* Seen to fail: 2, then 4, then 2 came out, read from freed memory. */
START_TEST(a_field_without_a_slot_keeps_nothing)
{
    tn_tensor *(*const wrong[])(keeper *, tn_tensor *) = { caches, caches_output, caches_input,
                                                           caches_far, caches_list };
    tn_tensor *x = tn_ones(TN_SHAPE(2));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        keeper *m = keeper_new(wrong[i]);
        for (int again = 0; again < 3; again++) {
            assert_null(tn_forward(&m->base, x), TN_E_STATE,
                        "Keeper: forward put what goes with the call");
            ck_assert(!m->cache && !m->list && !m->array[39]); /* what was there before */
        }
    }
    keeper *m = keeper_new(caches_and_fails);
    assert_null(tn_forward(&m->base, x), TN_E_SHAPE, "[77]");
    ck_assert_ptr_null(m->cache);
}
END_TEST

START_TEST(a_field_without_a_slot_may_show_what_is_kept)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2));
    keeper *m = keeper_new(keeps);
    for (int i = 0; i < 3; i++) assert_values(tn_forward(&m->base, x), 0, 2, 2);
    tn_drop(m->held);
    m->held = NULL;
    m = keeper_new(assigns);
    assert_ok(tn_register_buffer(&m->base, "cache", &m->cache, TN_NONE, TN_NON_PERSISTENT));
    for (int i = 0; i < 3; i++) assert_values(tn_forward(&m->base, x), 0, 2, 2);
}
END_TEST

START_TEST(a_constructor_leaves_nothing_in_a_field_without_a_slot)
{
    keeper *m = tn_module_new(&keeper_type);
    m->cache = tn_ones(TN_SHAPE(2));
    assert_null(tn_module_done(&m->base), TN_E_STATE, "Keeper: its constructor made");
    m = tn_module_new(&keeper_type);
    m->held = tn_keep(tn_ones(TN_SHAPE(2)));
    owned(tn_module_done(&m->base));
    tn_drop(m->held);
    tn_tensor *given = tn_ones(TN_SHAPE(2)); /* its owner lives on */
    m = tn_module_new(&keeper_type);
    m->cache = given;
    owned(tn_module_done(&m->base));
}
END_TEST

/* ---- depth ----------------------------------------------------------------------------------- */

static tn_tensor *calls_itself(keeper *m, tn_tensor *x)
{
    return tn_forward(&m->base, x);
}

static tn_module *called;
static tn_tensor *calls_held(keeper *m, tn_tensor *x)
{
    (void)m;
    return tn_forward(called, x);
}

START_TEST(calls_end_before_the_stack_does)
{
    tn_tensor *x = tn_ones(TN_SHAPE(2));
    keeper *m = keeper_new(calls_itself);
    assert_null(tn_forward(&m->base, x), TN_E_STATE, "called within 1000 calls");
    tn_module *deep = tn_identity_new();
    for (int i = 0; i < 999; i++) deep = tn_sequential(deep);
    assert_made(tn_forward(deep, x));
    deep = tn_sequential(deep);
    assert_null(tn_forward(owned(deep), x), TN_E_STATE, "called within 1000 calls");
}
END_TEST

/* Walks keep a stack of their own: the program's has room for 26 bytes a module. */
START_TEST(walks_go_as_deep_as_modules_do)
{
    const int depth = 10000;
    struct rlimit limit, before;
    FILE *file = fopen("/dev/null", "w");
    ck_assert_int_eq(getrlimit(RLIMIT_STACK, &before), 0);
    limit = (struct rlimit){ .rlim_cur = 256 << 10, .rlim_max = before.rlim_max };
    ck_assert_int_eq(setrlimit(RLIMIT_STACK, &limit), 0);
    tn_module *m = linear(1, 1);
    for (int i = 0; i < depth; i++) m = tn_sequential(tn_relu_new(), m);
    assert_ok(tn_eval(m));
    assert_ok(tn_module_freeze(m));
    assert_ok(tn_module_thaw(m));
    assert_ok(tn_module_zero_grad(m));
    assert_ok(tn_module_to_dtype(m, TN_F64));
    ck_assert_int_eq(tn_count_parameters(m, false), 2);
    ck_assert_int_eq(tn_parameters(m)->n, 2);
    owned(tn_module_clone(m));
    assert_ok(tn_module_summary(file, owned(m)));
    setrlimit(RLIMIT_STACK, &before);
    fclose(file);
}
END_TEST

/* Two ways down at each of 40 levels are 2^40 paths. */
START_TEST(a_message_looks_at_some_of_the_paths_only)
{
    keeper *inner = keeper_new(caches_and_fails);
    tn_module *m = tn_module_list_new();
    for (int i = 0; i < 40; i++) {
        tn_module *both = tn_module_list_new();
        assert_ok(tn_module_append(both, tn_module_keep(m)));
        assert_ok(tn_module_append(both, m));
        m = both;
    }
    keeper *outer = keeper_new(calls_held);
    assert_ok(tn_register_module(&outer->base, "many", NULL, m));
    called = &inner->base;
    assert_null(tn_forward(&outer->base, tn_ones(TN_SHAPE(2))), TN_E_SHAPE, "Keeper");
}
END_TEST

void nn_calls_cases(Suite *suite)
{
    add_tests(test_case(suite, "calls"), outputs_that_are_inputs_parameters_or_views,
              a_call_leaves_its_outputs_only, a_field_assigned_directly_is_an_error,
              a_cache_over_100_calls, several_inputs_and_outputs, messages_say_where,
              calls_that_cannot_work, an_initialiser_that_fails, summary);
    add_tests(test_case(suite, "fields"), a_field_without_a_slot_keeps_nothing,
              a_field_without_a_slot_may_show_what_is_kept,
              a_constructor_leaves_nothing_in_a_field_without_a_slot);
    add_tests(test_case(suite, "depth"), calls_end_before_the_stack_does,
              walks_go_as_deep_as_modules_do, a_message_looks_at_some_of_the_paths_only);
}
