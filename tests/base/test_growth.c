/*
 * test_growth.c - the cost of modules, lists and optimizers grows as what they hold, and that of
 * gradients and files as what theirs are (growth.h; growth_autograd.c, growth_io.c).
 *
 * Seen to fail: without tables (MANY in src/nn/module.c above n) registering took 13, 15 and 19
 * times as long; views .pt 8.8 times, metadata 12, damaged 17.
 */
#include "growth.h"

static char texts[MOST_NAMES][16];
const char *name_of(int i)
{
    if (!texts[i][0]) snprintf(texts[i], sizeof texts[i], "t%d", i);
    return texts[i];
}

/* What `before` makes and `call` uses; give_back() frees. */
static tn_module *model;
static tn_list *list;
static tn_list *state;
static tn_optim *opt;
static tn_module *average;

static tn_module *nothing(void)
{
    return tn_module_list_new();
}

/* ---- modules --------------------------------------------------------------------------------- */

static void make_parameters(int n)
{
    model = tn_module_dict_new();
    for (int i = 0; i < n; i++)
        assert_ok(tn_register_parameter(model, name_of(i), NULL, tn_zeros(TN_SHAPE(1))));
}

static void make_children(int n)
{
    model = nothing();
    for (int i = 0; i < n; i++) assert_ok(tn_module_append(model, nothing()));
}

/* The innermost first, and the outermost first. */
static void make_nested(int n)
{
    model = tn_identity_new();
    for (int i = 0; i < n; i++) model = tn_sequential(model);
}

static void nest_downwards(int n)
{
    tn_module *inner = model = nothing();
    for (int i = 0; i < n; i++) {
        tn_module *m = nothing();
        assert_ok(tn_module_append(inner, m));
        inner = m;
    }
}

typedef struct fields {
    tn_module base;
    tn_tensor *field[]; /* n */
} fields;
static tn_module_type fields_type = { .name = "Fields" };

static void make_fields(int n)
{
    fields_type.size = sizeof(fields) + (size_t)n * sizeof(tn_tensor *);
    fields *m = tn_module_new(&fields_type);
    tn_tensor *one = tn_zeros(TN_SHAPE(1));
    for (int i = 0; i < n; i++)
        tn_register_buffer(&m->base, name_of(i), &m->field[i], one, TN_PERSISTENT);
    model = tn_module_done(&m->base);
    assert_made(model);
}

static void assign_fields(int n)
{
    tn_tensor *other = tn_zeros(TN_SHAPE(1));
    for (int i = 0; i < n; i++) assert_ok(tn_assign(&((fields *)model)->field[i], other));
}

static void look_up(int n)
{
    for (int i = 0; i < n; i++) assert_made(tn_get_parameter(model, name_of(i)));
}

static void delete_all(int n)
{
    for (int i = 0; i < n; i++) assert_ok(tn_module_delete(model, name_of(i)));
}

static void free_model(int n)
{
    tn_module_drop(model);
    model = NULL;
}

static void visit_children(int n)
{
    for (int i = 0; i < n; i++) assert_made(tn_module_child(model, i));
}

static tn_status count_one(tn_module *m, void *user)
{
    (void)m;
    ++*(int *)user;
    return TN_OK;
}

static void apply(int n)
{
    int seen = 0;
    assert_ok(tn_module_apply(model, count_one, &seen));
    ck_assert_int_eq(seen, n + 1);
}

static void walks(int n)
{
    assert_ok(tn_train(model, false));
    assert_ok(tn_module_freeze(model));
    assert_ok(tn_module_thaw(model));
    assert_ok(tn_module_zero_grad(model));
    ck_assert_int_ge(tn_count_parameters(model, true), 0);
}

static void cast(int n)
{
    assert_ok(tn_module_to_dtype(model, TN_F64));
    assert_ok(tn_module_to_dtype(model, TN_F32));
}

static void clone(int n)
{
    tn_module_drop(tn_module_clone(model));
}

static void summary(int n)
{
    FILE *file = fopen("/dev/null", "w");
    assert_ok(tn_module_summary(file, model));
    fclose(file);
}

static void forward(int n)
{
    assert_made(tn_forward(model, tn_zeros(TN_SHAPE(1))));
}

static void make_sequential(int n)
{
    model = tn_sequential(tn_identity_new());
    for (int i = 1; i < n; i++) assert_ok(tn_module_append(model, tn_identity_new()));
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void make_list(int n)
{
    tn_tensor *one = tn_zeros(TN_SHAPE(1));
    list = tn_list_new();
    for (int i = 0; i < n; i++) assert_ok(tn_list_add(list, name_of(i), tn_detach(one)));
}

static void remove_first(int n)
{
    for (int i = 0; i < n; i++) assert_ok(tn_list_remove(list, name_of(i)));
    ck_assert_int_eq(list->n, 0);
}

static void remove_last(int n)
{
    for (int i = n - 1; i >= 0; i--) assert_ok(tn_list_remove(list, name_of(i)));
}

static void rename_all(int n)
{
    char to[16];
    for (int i = 0; i < n; i++) {
        snprintf(to, sizeof to, "u%d", i);
        assert_ok(tn_list_rename(list, name_of(i), to));
    }
}

static void join(int n)
{
    tn_list *other = tn_list_new();
    for (int i = n; i < 2 * n && i < MOST_NAMES; i++)
        assert_ok(tn_list_add(other, name_of(i), list->entry[0].tensor));
    assert_made(tn_list_concat(list, other));
}

static void versions(int n)
{
    for (int i = 0; i < n; i++) assert_ok(tn_list_set_version(list, name_of(i), 2));
    for (int i = 0; i < n; i++) ck_assert_int_eq(tn_list_version(list, name_of(i)), 2);
    for (int i = 0; i < n; i++) assert_ok(tn_list_set_version(list, name_of(i), 0));
}

static void make_state(int n)
{
    make_parameters(n);
    state = tn_state_dict(model, "");
}

static void nested_state(int n)
{
    state = tn_state_dict(model, "");
    ck_assert_int_eq(tn_list_version(state, ""), 1);
    ck_assert_int_eq(tn_list_version(state, "0.0"), 1);
}

static void make_nested_state(int n)
{
    make_nested(n);
    nested_state(n);
}

static void load(int n)
{
    assert_ok(tn_load_state_dict(model, state, (tn_load_options){ 0 }, NULL));
}

static void load_assigning(int n)
{
    assert_ok(tn_load_state_dict(model, state, (tn_load_options){ .assign = true }, NULL));
}

/* ---- optimizers ------------------------------------------------------------------------------ */

static const tn_adamw_options slowly = { .lr = 1e-3 };

static void make_trained(int n)
{
    make_parameters(n);
    list = tn_parameters(model);
    for (int i = 0; i < n; i++) assert_ok(tn_set_grad(list->entry[i].tensor, tn_ones(TN_SHAPE(1))));
}

static void make_optim(int n)
{
    opt = tn_adamw(list, slowly);
    assert_made(opt);
}

static void ready_to_step(int n)
{
    make_trained(n);
    make_optim(n);
    assert_ok(tn_optim_step(opt));
    state = tn_optim_state_dict(opt);
}

static void step(int n)
{
    assert_ok(tn_optim_step(opt));
}

static void zero_grad(int n)
{
    assert_ok(tn_optim_zero_grad(opt));
}

static void load_optim(int n)
{
    assert_ok(tn_optim_load_state_dict(opt, state));
}

static void groups(int n)
{
    tn_scope s = tn_scope_begin();
    for (int i = 0; i < n; i++) {
        tn_list *one = tn_list_new();
        assert_ok(tn_list_add(one, name_of(i), list->entry[i].tensor));
        if (i)
            assert_ok(tn_optim_add_group(opt, one, (tn_group_options){ 0 }));
        else
            opt = tn_sgd(one, (tn_sgd_options){ 0 });
    }
    tn_scope_end(s);
}

static void clip(int n)
{
    ck_assert(tn_clip_grad_norm(list, 1, 2, false) >= 0);
    assert_ok(tn_clip_grad_value(list, 1));
}

static void make_average(int n)
{
    average = tn_ema_new(model, (tn_ema_options){ 0 });
    assert_made(average);
}

static void have_average(int n)
{
    make_parameters(n);
    make_average(n);
    assert_ok(tn_ema_update(average, model));
}

static void update_average(int n)
{
    assert_ok(tn_ema_update(average, model));
}

static const growth_row growth_nn[] = {
    { "register", 1000, NULL, make_parameters },
    { "append", 1000, NULL, make_children },
    { "nest", 1000, NULL, make_nested },
    { "nest downwards", 1000, NULL, nest_downwards },
    { "fields", 1000, NULL, make_fields },
    { "assign", 1000, make_fields, assign_fields },
    { "look up", 2000, make_parameters, look_up },
    { "delete", 1000, make_parameters, delete_all },
    { "free", 1000, make_children, free_model },
    { "free nested", 1000, make_nested, free_model },
    { "children", 2000, make_children, visit_children },
    { "apply", 2000, make_children, apply },
    { "walks", 2000, make_children, walks },
    { "walks nested", 2000, make_nested, walks },
    { "cast", 1000, make_parameters, cast },
    { "clone", 1000, make_parameters, clone },
    { "clone nested", 1000, make_nested, clone },
    { "summary", 1000, make_parameters, summary },
    { "summary nested", 2000, make_nested, summary },
    { "forward", 1000, make_sequential, forward },
    { "list", 2000, NULL, make_list },
    { "remove first", 2000, make_list, remove_first },
    { "remove last", 2000, make_list, remove_last },
    { "rename", 2000, make_list, rename_all },
    { "concat", 2000, make_list, join },
    { "versions", 2000, make_list, versions },
    { "state dict", 1000, NULL, make_state },
    { "state dict nested", 1000, make_nested, nested_state },
    { "load nested", 1000, make_nested_state, load },
    { "load", 1000, make_state, load },
    { "load assigning", 1000, make_state, load_assigning },
    { "optimizer", 1000, make_trained, make_optim },
    { "step", 2000, ready_to_step, step },
    { "zero grad", 2000, ready_to_step, zero_grad },
    { "load optimizer", 1000, ready_to_step, load_optim },
    { "groups", 1000, make_trained, groups },
    { "clip", 2000, make_trained, clip },
    { "ema", 1000, make_parameters, make_average },
    { "ema update", 1000, have_average, update_average },
    { 0 },
};

static void give_back(void)
{
    tn_optim_free(opt);
    tn_module_drop(average);
    tn_module_drop(model);
    opt = NULL;
    average = model = NULL;
}

/* ---- how much work it is --------------------------------------------------------------------- */

/* Basic blocks entered, and pieces of 64 bytes moved: about what each costs. */
static uint64_t work;

/* Called at the beginning of every basic block of the counted library. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    work++;
}

#if !TEST_ASAN && !TEST_TSAN
/* The linker puts these in place of the C library's (--wrap). */
void *__real_memcpy(void *to, const void *from, size_t n);
void *__real_memmove(void *to, const void *from, size_t n);
void *__real_memset(void *to, int value, size_t n);
void *__real_realloc(void *block, size_t n);
void *__wrap_memcpy(void *to, const void *from, size_t n);
void *__wrap_memmove(void *to, const void *from, size_t n);
void *__wrap_memset(void *to, int value, size_t n);
void *__wrap_realloc(void *block, size_t n);

void *__wrap_memcpy(void *to, const void *from, size_t n)
{
    work += n / 64;
    return __real_memcpy(to, from, n);
}

void *__wrap_memmove(void *to, const void *from, size_t n)
{
    work += n / 64;
    return __real_memmove(to, from, n);
}

void *__wrap_memset(void *to, int value, size_t n)
{
    work += n / 64;
    return __real_memset(to, value, n);
}

void *__wrap_realloc(void *block, size_t n)
{
    work += n / 64;
    return __real_realloc(block, n);
}
#endif

static uint64_t count(const growth_row *row, int n)
{
    tn_scope s = tn_scope_begin();
    if (row->before) row->before(n);
    uint64_t from = work;
    row->call(n);
    uint64_t done = work - from;
    give_back();
    tn_scope_end(s);
    return done;
}

static void check(const growth_row *row)
{
    assert_ok(tn_set_num_threads(1)); /* all work is done and counted on this thread */
    if (TEST_ASAN || TEST_TSAN) {
        count(row, row->n);
        return;
    }
    uint64_t few = count(row, row->n), many = count(row, 4 * row->n);
    double times = (double)many / (double)few;
    if (getenv("TN_TEST_SHOW"))
        printf("%-28s %6d: %10" PRIu64 ", %.2f times\n", row->name, row->n, few, times);
    ck_assert_msg(few >= (uint64_t)row->n,
                  "%s: %" PRIu64 " blocks for %d: the library does not count", row->name, few,
                  row->n);
    ck_assert_msg(times <= 5, "%s: %d take %.2f times as much work as %d: want at most 5",
                  row->name, 4 * row->n, times, row->n);
}

START_TEST(modules_cost_what_there_is)
{
    check(&growth_nn[_i]);
}
END_TEST

START_TEST(gradients_cost_what_there_is)
{
    check(&growth_autograd[_i]);
}
END_TEST

START_TEST(files_cost_what_they_hold)
{
    check(&growth_io[_i]);
}
END_TEST

static int length(const growth_row *rows)
{
    int n = 0;
    while (rows[n].name) n++;
    return n;
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("growth");
    TCase *t = file_case(suite, "growth");
    tcase_add_loop_test(t, modules_cost_what_there_is, 0, length(growth_nn));
    tcase_add_loop_test(t, gradients_cost_what_there_is, 0, length(growth_autograd));
    tcase_add_loop_test(t, files_cost_what_they_hold, 0, length(growth_io));
    return suite;
}
