/*
 * pt_optim.c - the state of PyTorch's optimizers: training begun there goes on here, and back.
 *
 * Truth: 10 steps and 20 further ones of torch.optim 2.15 (golden/make_files.py).
 *
 * Seen to fail: in src/ext/pt/optim.c, beta2 read from place 0: adam; the step not read: every one
 * that counts; in src/ext/pt/write.c, the rate of group 0 for all: what is read back.
 */
#include <stdio.h>
#include <stdlib.h>

#include "archive.h"
#include "io/cases.h"
#include "scarce.h"

typedef struct run {
    tn_module *m;
    tn_optim *opt;
} run;

/* The options of make_files.py. */
static tn_optim *optimizer_of(const char *name, const tn_list *first)
{
    if (!strcmp(name, "sgd"))
        return tn_sgd(first, (tn_sgd_options){ .lr = 0.5, .momentum = 0.1, .dampening = 0.5 });
    if (!strcmp(name, "plain")) return tn_sgd(first, (tn_sgd_options){ .lr = 0.5 });
    if (!strcmp(name, "adam") || !strcmp(name, "ids"))
        return tn_adam(first, (tn_adam_options){ .amsgrad = true });
    if (!strcmp(name, "adamw")) return tn_adamw(first, (tn_adamw_options){ 0 });
    if (!strcmp(name, "rmsprop"))
        return tn_rmsprop(first, (tn_rmsprop_options){ .momentum = 0.25, .centered = true });
    if (!strcmp(name, "adagrad") || !strcmp(name, "fresh"))
        return tn_adagrad(first, (tn_adagrad_options){ .lr_decay = 0.5 });
    if (!strcmp(name, "adamax")) return tn_adamax(first, (tn_optim_options){ 0 });
    if (!strcmp(name, "nadam")) return tn_nadam(first, (tn_optim_options){ 0 });
    return tn_radam(first, (tn_optim_options){ .set = { { "decoupled_weight_decay", 1 } } });
}

static const char *const names[] = { "sgd",     "plain", "adam",   "ids",   "adamw", "rmsprop",
                                     "adagrad", "fresh", "adamax", "nadam", "radam" };

static run run_new(const char *name)
{
    run r = { .m = owned(tn_linear_new(3, 2, (tn_linear_options){ 0 })) };
    tn_list *first = tn_list_new(), *second = tn_list_new();
    assert_ok(tn_list_add(first, "weight", tn_get_parameter(r.m, "weight")));
    assert_ok(tn_list_add(second, "bias", tn_get_parameter(r.m, "bias")));
    r.opt = owned(optimizer_of(name, first));
    assert_made(r.opt);
    assert_ok(tn_optim_add_group(r.opt, second, (tn_group_options){ 0 }));
    return r;
}

static const char *golden_file(void)
{
    return golden_path("files/optimizers.pt");
}

static void load_run(run *r, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "%s.model", name);
    assert_ok(tn_load_with(r->m, golden_file(), (tn_load_options){ .key = key }, NULL));
    snprintf(key, sizeof key, "%s.optimizer", name);
    ck_assert_msg(tn_optim_load_pytorch(r->opt, golden_file(), key) == TN_OK, "%s", tn_error());
}

/* values() of make_interop.py, as a gradient. */
static void step(run *r, int t)
{
    static const char *const parameter[] = { "weight", "bias" };
    for (int i = 0; i < 2; i++) {
        tn_tensor *p = tn_get_parameter(r->m, parameter[i]);
        float g[6];
        for (int64_t k = 0; k < tn_numel(p); k++)
            g[k] = (float)(((double)((k * 7919 + (10 * t + i) * 104729) % 2001) - 1000) / 1000);
        assert_ok(tn_set_grad(
            p, tn_reshape(tn_from_data(g, TN_SHAPE(tn_numel(p)), TN_F32), tn_shape_get(p))));
    }
    assert_ok(tn_optim_step(r->opt));
}

static void assert_as_there(const run *r, const char *name)
{
    tn_list *expected = tn_load_tensors(golden_path("files/expected.safetensors"), NULL);
    static const char *const parameter[] = { "weight", "bias" };
    for (int i = 0; i < 2; i++) {
        char key[64];
        snprintf(key, sizeof key, "optimizers.pt/%s.%s", name, parameter[i]);
        tn_tensor *e = tn_list_get(expected, key), *t = tn_get_parameter(r->m, parameter[i]);
        assert_made(e);
        for (int64_t k = 0; k < tn_numel(e); k++) {
            float want = ((const float *)tn_data(e))[k], got = ((const float *)tn_data(t))[k];
            ck_assert_msg(fabsf(got - want) <= 3e-7f, "%s[%d] is %.9g, not %.9g", key, (int)k,
                          (double)got, (double)want);
        }
    }
}

START_TEST(training_begun_there_goes_on_here)
{
    const char *name = names[_i];
    run r = run_new(name);
    load_run(&r, name);
    ck_assert_double_eq(tn_optim_lr(r.opt, 0), 0.01);
    ck_assert_double_eq(tn_optim_lr(r.opt, 1), 0.02);
    ck_assert_double_eq(tn_optim_weight_decay(r.opt, 1), 0.01);
    for (int t = 10; t < 30; t++) step(&r, t);
    assert_as_there(&r, name);
}
END_TEST

/* Half way, through a file of ours: the same bits as without it. */
START_TEST(what_is_written_is_read_back)
{
    const char *name = names[_i];
    run r = run_new(name), other = run_new(name);
    load_run(&r, name);
    for (int t = 10; t < 20; t++) step(&r, t);
    tn_scheduler *schedule = tn_exponential_lr(r.opt, 0.5);
    assert_ok(tn_scheduler_step(schedule)); /* a rate, and what it was at first */
    tn_scheduler_free(schedule);
    assert_ok(tn_optim_save_pytorch(r.opt, in_folder("o.pt")));
    ck_assert_msg(tn_optim_load_pytorch(other.opt, in_folder("o.pt"), NULL) == TN_OK, "%s",
                  tn_error());
    const tn_list *a = tn_optim_state_dict(r.opt), *b = tn_optim_state_dict(other.opt);
    const bool counted = _i > 1; /* PyTorch's SGD has no steps, and without momentum no state */
    ck_assert(!counted || a->n == b->n);
    for (int i = 0; i < a->n; i++) {
        const char *dot = strrchr(a->entry[i].name, '.');
        if (!strcmp(dot, ".steps") || (!counted && !strcmp(dot, ".step"))) continue;
        tn_tensor *t = tn_list_get(b, a->entry[i].name);
        assert_made(t);
        ck_assert_msg(tn_hash(t) == tn_hash(a->entry[i].tensor), "%s", a->entry[i].name);
    }
}
END_TEST

START_TEST(what_does_not_fit_changes_nothing)
{
    run r = run_new("adam");
    load_run(&r, "adam");
    const uint64_t before = hash_of(tn_optim_state_dict(r.opt));
    char path[1024];
    snprintf(path, sizeof path, "%s", golden_file());
    assert_fails(tn_optim_load_pytorch(r.opt, path, "adamw.optimizer"), TN_E_FORMAT,
                 "the state of AdamW, this is adam");
    assert_fails(tn_optim_load_pytorch(r.opt, path, "nadam.optimizer"), TN_E_FORMAT,
                 "group 0 has no amsgrad: not the state of adam");
    assert_fails(tn_optim_load_pytorch(r.opt, golden_path("files/stored.npz"), NULL), TN_E_FORMAT,
                 "arrays, no optimizer");
    assert_fails(tn_optim_load_pytorch(r.opt, path, NULL), TN_E_FORMAT,
                 "11 optimizers: want the key of one (it has ");
    assert_fails(tn_optim_load_pytorch(r.opt, path, "adam.model"), TN_E_FORMAT,
                 "0 optimizers under adam.model: want the key of one");
    assert_fails(tn_optim_load_pytorch(r.opt, path, "x"), TN_E_FORMAT, "0 optimizers under x");
    assert_fails(tn_optim_load_pytorch(r.opt, in_folder("none.pt"), NULL), TN_E_IO, "No such");
    assert_fails(tn_optim_load_pytorch(NULL, path, NULL), TN_E_INVALID, "opt");
    /* one group in place of two; other shapes */
    tn_module *wide = owned(tn_linear_new(2, 3, (tn_linear_options){ 0 }));
    tn_optim *one = owned(tn_adam(tn_parameters(wide), (tn_adam_options){ .amsgrad = true }));
    assert_fails(tn_optim_load_pytorch(one, path, "adam.optimizer"), TN_E_FORMAT,
                 "2 groups of parameters, here 1");
    tn_list *weight = tn_list_new(), *bias = tn_list_new();
    assert_ok(tn_list_add(weight, "w", tn_get_parameter(wide, "weight")));
    assert_ok(tn_list_add(bias, "b", tn_get_parameter(wide, "bias")));
    tn_optim *two = owned(tn_adam(weight, (tn_adam_options){ .amsgrad = true }));
    assert_ok(tn_optim_add_group(two, bias, (tn_group_options){ 0 }));
    assert_fails(tn_optim_load_pytorch(two, path, "adam.optimizer"), TN_E_SHAPE,
                 "w.exp_avg ([2,3] f32 there, [3,2] f32 here)");
    assert_fails(tn_optim_save_pytorch(two, ""), TN_E_INVALID, "path is empty");
    tn_optim *lion = owned(tn_lion(weight, (tn_optim_options){ 0 }));
    assert_fails(tn_optim_save_pytorch(lion, in_folder("l.pt")), TN_E_UNSUPPORTED,
                 "lion: want sgd");
    assert_fails(tn_optim_load_pytorch(lion, path, "adam.optimizer"), TN_E_UNSUPPORTED, "lion");
    tn_optim *hat = owned(tn_adam(weight, (tn_adam_options){ .eps_hat = true }));
    assert_fails(tn_optim_save_pytorch(hat, in_folder("h.pt")), TN_E_UNSUPPORTED,
                 "eps_hat: PyTorch has none");
    ck_assert_uint_eq(hash_of(tn_optim_state_dict(r.opt)), before);
    ck_assert_int_eq(files_in_folder(), 0);
}
END_TEST

/* What is written holds what torch.save wrote, but for switches of how PyTorch computes. */
START_TEST(what_is_written_is_what_pytorch_writes)
{
    const char *name = names[_i];
    if (!strcmp(name, "ids")) return; /* ours are 0, 1 ... */
    run r = run_new(name);
    char key[64], prefix[64];
    load_run(&r, name);
    assert_ok(tn_optim_save_pytorch(r.opt, in_folder("o.pt")));
    snprintf(prefix, sizeof prefix, "%s.optimizer.", name);
    tn_metadata ours, theirs;
    const tn_load_options all = { .key = "*" };
    const tn_list *a = tn_load_tensors_with(in_folder("o.pt"), all, &ours, NULL);
    const tn_list *b = tn_load_tensors_with(golden_file(), all, &theirs, NULL);
    assert_made(a), assert_made(b);
    int n = 0;
    for (int i = 0; i < theirs.n; i++) {
        const char *of = theirs.key[i] + strlen(prefix), *last = strrchr(theirs.key[i], '.') + 1;
        if (strncmp(theirs.key[i], prefix, strlen(prefix)) != 0) continue;
        if (!strcmp(last, "foreach") || !strcmp(last, "fused") || !strcmp(last, "capturable") ||
            !strcmp(last, "differentiable") || !strcmp(last, "initial_accumulator_value"))
            continue;
        const char *value = tn_metadata_get(&ours, of);
        ck_assert_msg(value != NULL, "%s", of);
        const bool same = !strcmp(value, theirs.value[i]); /* 0 is 0.0 here */
        ck_assert_msg(same || strtod(value, NULL) == strtod(theirs.value[i], NULL),
                      "%s: %s, not %s", of, value, theirs.value[i]);
        n++;
    }
    ck_assert_int_ge(n, 10);
    n = 0;
    for (int k = 0; k < 2; k++) {
        snprintf(key, sizeof key, "param_groups.%d.initial_lr", k);
        ck_assert_ptr_nonnull(tn_metadata_get(&ours, key));
    }
    for (int i = 0; i < b->n; i++) {
        const char *of = b->entry[i].name;
        if (strncmp(of, prefix, strlen(prefix)) != 0 || !strcmp(name, "fresh")) continue;
        tn_tensor *t = tn_list_get(a, of + strlen(prefix));
        const bool product = strstr(of, "mu_product"); /* theirs is rounded to f32 in each step */
        n++;
        ck_assert_msg(t && (product ? fabs(tn_item(t) / tn_item(b->entry[i].tensor) - 1) < 1e-6
                                    : tn_hash(t) == tn_hash(b->entry[i].tensor)),
                      "%s", of);
    }
    ck_assert_int_eq(a->n, n); /* and nothing more */
}
END_TEST

/* A state of one parameter, updated -1 times. */
START_TEST(steps_are_counted_from_one)
{
    static const char bad[] = "\x80\2}(U\5state}K\0}U\4stepJ\xff\xff\xff\xffssU\x0cparam_groups]}("
                              "U\2lrG?\xb9\x99\x99\x99\x99\x99\x9aU\7amsgrad\x89U\6params]K\0auau.";
    const archive *a = archive_of(
        (const member[]){ { "m/data.pkl", bad, sizeof bad - 1 }, { "m/version", "3\n", 2 } }, 2);
    tn_list *one = tn_list_new();
    tn_module *m = owned(tn_linear_new(3, 2, (tn_linear_options){ 0 }));
    assert_ok(tn_list_add(one, "weight", tn_get_parameter(m, "weight")));
    tn_optim *opt = owned(tn_adam(one, (tn_adam_options){ .amsgrad = true }));
    assert_fails(tn_optim_load_pytorch(opt, write_bytes("o.pt", a->bytes, a->n), NULL), TN_E_FORMAT,
                 "weight: -1 steps: want 1 and up");
}
END_TEST

static tn_status load_again(void *user)
{
    return tn_optim_load_pytorch(user, golden_file(), "adam.optimizer");
}

static tn_status save_again(void *user)
{
    return tn_optim_save_pytorch(user, in_folder("o.pt"));
}

static uint64_t state_before;

static void state_stays(void *user)
{
    tn_scope scope = tn_scope_begin();
    ck_assert_uint_eq(hash_of(tn_optim_state_dict(user)), state_before);
    tn_scope_end(scope);
}

START_TEST(out_of_memory_with_an_optimizer)
{
    scarce_install();
    run r = run_new("adam");
    load_run(&r, "adam");
    TN_SCOPE state_before = hash_of(tn_optim_state_dict(r.opt));
    ck_assert_int_gt(scarce_sweep(load_again, state_stays, r.opt), 2);
    ck_assert_int_gt(scarce_sweep(save_again, state_stays, r.opt), 2);
}
END_TEST

void pt_optim_cases(Suite *suite)
{
    TCase *t = file_case(suite, "optimizers");
    tcase_add_loop_test(t, training_begun_there_goes_on_here, 0, COUNT(names));
    tcase_add_loop_test(t, what_is_written_is_read_back, 0, COUNT(names));
    tcase_add_loop_test(t, what_is_written_is_what_pytorch_writes, 0, COUNT(names));
    tcase_add_test(t, steps_are_counted_from_one);
    tcase_add_test(t, what_does_not_fit_changes_nothing);
    tcase_add_test(t, out_of_memory_with_an_optimizer);
}
