
/*
 * test_nomem_nn.c - memory runs out at each allocation of each function that makes or changes a
 * module, a list or an optimizer: the call either fails, says so and changes nothing, or succeeds.
 * Nothing leaks.
 *
 * The allocator hook counts and refuses; the cache above it is off, so that it sees every request.
 */
#include <stdio.h>
#include <stdlib.h>

#include "boxes.h"
#include "scarce.h"

/* ---- what there is before the call ----------------------------------------------------------- */

static struct {
    box *m;           /* a tree with every kind of member */
    tn_module *other; /* another of the same kind */
    tn_module *average;
    tn_list *list, *state, *optim_state, *scheduler_state, *scaler_state;
    tn_optim *opt;
    tn_scheduler *scheduler;
    tn_scaler *scaler;
    tn_tensor *x;
} w;

static box *tree(void)
{
    box *m = box_new();
    assert_ok(tn_register_parameter(&m->base, "p", &m->a, tn_ones(TN_SHAPE(2, 2))));
    assert_ok(tn_register_buffer(&m->base, "b", &m->b, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    assert_ok(tn_register_module(
        &m->base, "layers", &m->child,
        tn_sequential(linear(2, 2), tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }))));
    return m;
}

static tn_tensor *run(box *m, tn_tensor *x)
{
    if (tn_assign(&m->b, tn_mul(m->b, m->b)) != TN_OK) return NULL;
    return tn_forward(m->child, tn_matmul(x, m->a));
}

static void set_up(void)
{
    tn_manual_seed(1);
    w.m = tree();
    w.m->run = run;
    w.other = &tree()->base;
    w.x = random_as(TN_SHAPE(4, 2), -1, 1, 3, TN_F32);
    w.list = tn_parameters(&w.m->base);
    w.opt = tn_adam(w.list, (tn_adam_options){ .lr = 0.1 });
    w.scheduler = tn_cosine_lr(w.opt, 10, 0);
    w.scaler = tn_scaler_new((tn_scaler_options){ .init_scale = 2 });
    for (int i = 0; i < w.list->n; i++)
        assert_ok(tn_set_grad(w.list->entry[i].tensor, tn_ones_like(w.list->entry[i].tensor)));
    assert_ok(tn_optim_step(w.opt));
    w.optim_state = tn_optim_state_dict(w.opt);
    w.scheduler_state = tn_scheduler_state_dict(w.scheduler);
    w.scaler_state = tn_scaler_state_dict(w.scaler);
    w.state = tn_state_dict(w.other, "");
    w.average = tn_ema_new(&w.m->base, (tn_ema_options){ .equal = true });
    assert_ok(tn_ema_update(w.average, &w.m->base));
    assert_made(w.average);
}

static void clean_up(void)
{
    tn_scheduler_free(w.scheduler);
    tn_scaler_free(w.scaler);
    tn_optim_free(w.opt);
    tn_module_drop(w.average);
    tn_module_drop(w.other);
    tn_module_drop(&w.m->base);
}

static uint64_t mix(uint64_t h, uint64_t by)
{
    return (h ^ by) * UINT64_C(0x100000001b3);
}

static uint64_t of_list(uint64_t h, const tn_list *list)
{
    assert_made(list);
    for (int i = 0; i < list->n; i++) {
        const tn_entry *e = &list->entry[i];
        for (const char *c = e->name; *c; c++) h = mix(h, (unsigned char)*c);
        h = mix(h, e->kind), h = mix(h, e->persistent);
        if (tn_is_none(e->tensor)) continue;
        h = mix(h, tn_hash(e->tensor)), h = mix(h, tn_dtype_of(e->tensor));
        h = mix(h, tn_requires_grad(e->tensor)), h = mix(h, !tn_is_none(tn_grad(e->tensor)));
        h = mix(h, (uintptr_t)e->tensor);
    }
    return h;
}

static uint64_t of_module(uint64_t h, tn_module *m)
{
    h = of_list(h, tn_parameters_with(m, (tn_walk_options){ .keep_duplicates = true }));
    h = of_list(h, tn_buffers_with(m, (tn_walk_options){ .keep_duplicates = true }));
    for (int i = 0; i < tn_module_children(m); i++) h = mix(h, (uintptr_t)tn_module_child(m, i));
    return mix(mix(h, tn_training(m)), tn_module_frozen(m));
}

/* A hash of all its visible state. */
static uint64_t fingerprint(void)
{
    tn_scope s = tn_scope_begin();
    uint64_t h = of_module(1, &w.m->base);
    h = of_module(h, w.other);
    h = of_module(h, w.average);
    h = of_list(h, w.list);
    h = of_list(h, w.state);
    for (int i = 0; i < 3; i++) h = mix(h, (uintptr_t)(i == 0 ? w.m->a : i == 1 ? w.m->b : w.m->c));
    tn_list *lists[] = { tn_optim_parameters(w.opt), tn_optim_state_dict(w.opt),
                         tn_scheduler_state_dict(w.scheduler), tn_scaler_state_dict(w.scaler) };
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < lists[k]->n; i++) h = mix(h, tn_hash(lists[k]->entry[i].tensor));
    h = mix(h, (uint64_t)tn_optim_groups(w.opt)), h = mix(h, (uint64_t)tn_optim_steps(w.opt));
    tn_scope_end(s);
    return h;
}

/* ---- the calls: true when all went well. A module that is made is dropped -------------------- */

static bool made(tn_module *m)
{
    tn_module_drop(m);
    return m != NULL;
}
static bool optim(tn_optim *o)
{
    tn_optim_free(o);
    return o != NULL;
}
static bool schedule(tn_scheduler *s)
{
    tn_scheduler_free(s);
    return s != NULL;
}
static bool fine(tn_status status)
{
    return status == TN_OK;
}

#define BASE (&w.m->base)
#define CALL(NAME, EXPRESSION)                                                                     \
    static bool NAME(void)                                                                         \
    {                                                                                              \
        return EXPRESSION;                                                                         \
    }
CALL(linear_new, made(linear(3, 2)))
CALL(conv2d_new, made(tn_conv2d_new(2, 2, 3, (tn_conv2d_options){ 0 })))
CALL(batchnorm_new, made(norm2d(2)))
CALL(frozen_new, made(tn_frozen_batch_norm2d_new(2, (tn_frozen_batch_norm_options){ 0 })))
CALL(layernorm_new, made(tn_layer_norm_new(TN_SHAPE(2), (tn_layer_norm_options){ 0 })))
CALL(embedding_new,
     made(tn_embedding_new(3, 2, (tn_embedding_options){ .use_padding_index = true })))
CALL(encoding_new, made(tn_positional_encoding_new(2, 3, (tn_positional_encoding_options){ 0 })))
CALL(attention_new, made(tn_multihead_attention_new(2, 1, (tn_multihead_attention_options){ 0 })))
CALL(lstm_new,
     made(tn_lstm_new(1, 2, (tn_recurrent_options){ .layers = 2, .bidirectional = true })))
CALL(encoder_new,
     made(tn_encoder_new(tn_encoder_layer_new(2, 1, (tn_encoder_layer_options){ .feedforward = 2 }),
                         2, tn_layer_norm_new(TN_SHAPE(2), (tn_layer_norm_options){ 0 }))))
CALL(sequential_new, made(tn_sequential(linear(1, 1), tn_relu_new(), tn_dropout_new(0.5))))
CALL(dict_new, made(tn_module_dict_new()))
CALL(buffers_new, made(tn_buffer_list_new(TN_PERSISTENT)))
CALL(pool_new, made(tn_max_pool2d_new((tn_pool2d_spec){ .kernel = { 2, 2 } })))
CALL(clone, made(tn_module_clone(BASE)))
CALL(ema_new, made(tn_ema_new(BASE, (tn_ema_options){ 0 })))
CALL(ema_update, fine(tn_ema_update(w.average, w.other)))
CALL(call_module, tn_forward(BASE, w.x) != NULL)

CALL(add_parameter, fine(tn_register_parameter(BASE, "new", &w.m->c, tn_ones(TN_SHAPE(1)))))
CALL(replace_parameter, fine(tn_register_parameter(BASE, "p", &w.m->a, tn_ones(TN_SHAPE(1)))))
CALL(add_buffer,
     fine(tn_register_buffer(BASE, "new", &w.m->c, tn_ones(TN_SHAPE(1)), TN_PERSISTENT)))
CALL(replace_buffer,
     fine(tn_register_buffer(BASE, "b", &w.m->c, tn_ones(TN_SHAPE(1)), TN_NON_PERSISTENT)))
CALL(add_child, fine(tn_register_module(BASE, "new", NULL, linear(1, 1))))
CALL(assign, fine(tn_assign(&w.m->b, tn_zeros(TN_SHAPE(2)))))
CALL(set, fine(tn_module_set(BASE, "layers.0.weight", tn_zeros(TN_SHAPE(2)))))
CALL(append, fine(tn_module_append(w.m->child, linear(2, 2))))

static bool add_many(void) /* into the tables of a large module */
{
    char name[8];
    tn_module *m = tn_module_dict_new();
    for (int i = 0; m && i < 40; i++) {
        snprintf(name, sizeof name, "%d", i);
        if (fine(tn_register_buffer(m, name, NULL, w.x, TN_PERSISTENT))) continue;
        tn_module_drop(m);
        return false;
    }
    tn_module_drop(m);
    return m != NULL;
}

CALL(freeze, fine(tn_module_freeze(BASE)))
CALL(no_grad, fine(tn_module_set_requires_grad(BASE, false)))
CALL(eval, fine(tn_eval(BASE)))
CALL(to_f64, fine(tn_module_to_dtype(BASE, TN_F64)))
CALL(count, tn_count_parameters(BASE, true) >= 0)
CALL(apply_count, tn_named_parameters(BASE, "x.") != NULL)
CALL(state_dict, tn_state_dict(BASE, "x.") != NULL)

static bool summary(void)
{
    FILE *file = fopen("/dev/null", "w");
    tn_status status = tn_module_summary(file, BASE);
    fclose(file);
    return status == TN_OK;
}

CALL(load, fine(tn_load_state_dict(BASE, w.state, (tn_load_options){ 0 }, NULL)))
CALL(load_assigning,
     fine(tn_load_state_dict(BASE, w.state, (tn_load_options){ .assign = true }, NULL)))

static bool as_it_is(const char *name, char *to, size_t size, void *user)
{
    (void)user;
    snprintf(to, size, "%s", name);
    return true;
}
CALL(load_renaming,
     fine(tn_load_state_dict(BASE, w.state, (tn_load_options){ .rename = as_it_is }, NULL)))

/* A module is consumed, also by a failure: it gets a reference of its own. */
static bool convert(void)
{
    tn_module *m = tn_module_clone(w.other);
    if (!m) return false;
    tn_module *frozen = tn_freeze_batch_norm(m);
    return frozen && made(tn_thaw_batch_norm(frozen));
}

CALL(list_new, tn_list_new() != NULL)
CALL(list_add, fine(tn_list_add(w.list, "new", w.x)))
CALL(list_set, fine(tn_list_set(w.list, "p", w.x)))
CALL(list_set_new, fine(tn_list_set(w.list, "new", w.x)))
CALL(list_rename, fine(tn_list_rename(w.list, "p", "q")))
CALL(list_remove, fine(tn_list_remove(w.list, "p")))
CALL(list_version, fine(tn_list_set_version(w.state, "elsewhere", 3)))
CALL(list_concat, tn_list_concat(w.list, tn_named_parameters(w.other, "other.")) != NULL)
CALL(list_filter, tn_list_filter(w.list, tn_decay, NULL) != NULL)

static bool list_many(void)
{
    char name[8];
    tn_list *list = tn_list_new();
    for (int i = 0; list && i < 60; i++) {
        snprintf(name, sizeof name, "%d", i);
        if (fine(tn_list_add(list, name, w.x))) continue;
        ck_assert_int_eq(list->n, i);
        ck_assert(!tn_list_has(list, name));
        return false;
    }
    return list != NULL;
}

static const tn_list *others(void)
{
    return tn_named_parameters(w.other, "other.");
}
CALL(sgd, optim(tn_sgd(others(), (tn_sgd_options){ .lr = 1 })))
CALL(adam, optim(tn_adam(others(), (tn_adam_options){ .lr = 1 })))
CALL(adagrad, optim(tn_adagrad(others(), (tn_adagrad_options){ .lr = 1 })))
CALL(rmsprop, optim(tn_rmsprop(others(), (tn_rmsprop_options){ .lr = 1 })))
CALL(add_group, fine(tn_optim_add_group(w.opt, others(), (tn_group_options){ 0 })))
CALL(step, fine(tn_optim_step(w.opt)))
CALL(clip, !isnan(tn_clip_grad_norm(w.list, 1, 2, false)))
CALL(clip_value, fine(tn_clip_grad_value(w.list, 1)))
CALL(optim_parameters, tn_optim_parameters(w.opt) != NULL)
CALL(optim_state, tn_optim_state_dict(w.opt) != NULL)
CALL(optim_load, fine(tn_optim_load_state_dict(w.opt, w.optim_state)))
CALL(step_lr, schedule(tn_step_lr(w.opt, 1, 0.5)))
CALL(multistep_lr, schedule(tn_multistep_lr(w.opt, (int64_t[]){ 1, 2 }, 2, 0.5)))
CALL(one_cycle_lr,
     schedule(tn_one_cycle_lr(w.opt, (tn_one_cycle_options){ .max_lr = 1, .total_steps = 9 })))
CALL(plateau_lr, schedule(tn_plateau_lr(w.opt, (tn_plateau_options){ 0 })))
CALL(scheduler_state, tn_scheduler_state_dict(w.scheduler) != NULL)
CALL(scheduler_load, fine(tn_scheduler_load_state_dict(w.scheduler, w.scheduler_state)))
CALL(scaler_load, fine(tn_scaler_load_state_dict(w.scaler, w.scaler_state)))
CALL(scaler_scale, tn_scaler_scale(w.scaler, tn_sum(w.x, NULL, 0, false)) != NULL)
CALL(scaler_step, fine(tn_scaler_step(w.scaler, w.opt)))

static bool scaler_new(void)
{
    tn_scaler *s = tn_scaler_new((tn_scaler_options){ 0 });
    tn_scaler_free(s);
    return s != NULL;
}

static bool sequential_lr(void)
{
    tn_scheduler *parts[] = { tn_constant_lr(w.opt, 1, 2), tn_constant_lr(w.opt, 1, 2) };
    return schedule(tn_sequential_lr(w.opt, parts, 2, (int64_t[]){ 2 }));
}

static tn_status no_hook(tn_module *m, int n_in, tn_tensor **in, void *user)
{
    (void)m, (void)n_in, (void)in, (void)user;
    return TN_OK;
}
CALL(add_hook, tn_register_forward_pre_hook(w.other, no_hook, NULL) >= 0)

/* Each becomes f32 by itself. */
static bool bce_of_bf16(void)
{
    tn_tensor *x = tn_to_dtype(tn_ones(TN_SHAPE(3)), TN_BF16);
    return x && tn_bce_with_logits(x, x, x, TN_MEAN);
}

/* KEEPS: a failed call changes nothing; MOVES: nothing but what the row's comment says */
enum { KEEPS, MOVES };
static const struct {
    const char *name;
    bool (*call)(void);
    int keeps;
} rows[] = {
/* clang-format off */
#define ROW(NAME) { #NAME, NAME, KEEPS }
#define ROW_MOVES(NAME) { #NAME, NAME, MOVES }
    ROW(linear_new), ROW(conv2d_new), ROW(batchnorm_new), ROW(frozen_new), ROW(layernorm_new),
    ROW(embedding_new), ROW(encoding_new), ROW(attention_new), ROW(lstm_new), ROW(encoder_new), ROW(sequential_new),
    ROW(dict_new), ROW(buffers_new), ROW(pool_new), ROW(clone), ROW(ema_new), ROW(ema_update),
    ROW_MOVES(call_module), /* what forward assigned before it failed stays */
    ROW(add_parameter), ROW(replace_parameter), ROW(add_buffer), ROW(replace_buffer), ROW(add_child),
    ROW(assign), ROW(set), ROW(append), ROW(add_many),
    ROW(freeze), ROW(no_grad), ROW(eval), ROW(to_f64), ROW(count), ROW(apply_count), ROW(state_dict),
    ROW(summary), ROW(load), ROW(load_assigning), ROW(load_renaming), ROW(convert),
    ROW(list_new), ROW(list_add), ROW(list_set), ROW(list_set_new), ROW(list_rename), ROW(list_remove),
    ROW(list_version), ROW(list_concat), ROW(list_filter), ROW(list_many),
    ROW(sgd), ROW(adam), ROW(adagrad), ROW(rmsprop), ROW(add_group), ROW(step), ROW(clip),
    ROW(clip_value), ROW(optim_parameters), ROW(optim_state), ROW(optim_load),
    ROW_MOVES(step_lr), ROW_MOVES(multistep_lr), ROW_MOVES(one_cycle_lr), /* the rate of its first step */
    ROW_MOVES(sequential_lr), ROW(plateau_lr), ROW(scheduler_state), ROW(scheduler_load),
    ROW(scaler_new), ROW(scaler_load), ROW(scaler_scale), ROW(scaler_step), ROW(add_hook),
    ROW(bce_of_bf16),
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };

START_TEST(memory_runs_out)
{
    const char *name = rows[_i % ROWS].name;
    scarce_install();
    test_teardown(); /* the open scope's own memory grows */
    scarce.sticky = _i >= ROWS;
    tn_scope all = tn_scope_begin();
    set_up(), rows[_i % ROWS].call(), clean_up(); /* makes what is made once */
    tn_scope_end(all);
    int64_t in_use = tn_memory().in_use;
    for (int64_t k = 1;; k++) {
        ck_assert_msg(k < 3000, "%s: no end", name);
        tn_scope s = tn_scope_begin();
        set_up();
        uint64_t before = fingerprint();
        tn_error_clear();
        scarce_fail(k);
        tn_scope inner = tn_scope_begin();
        bool ok = rows[_i % ROWS].call();
        scarce.failing = 0;
        bool failed = scarce.requests >= k;
        tn_scope_end(inner);
        if (!ok)
            ck_assert_msg(tn_error_status() == TN_E_NOMEM, "%s: request %d failed: %s (%s)", name,
                          (int)k, tn_status_name(tn_error_status()), tn_error());
        ck_assert_msg(ok || failed, "%s: fails with memory: %s", name, tn_error());
        tn_error_clear();
        if (!ok && rows[_i % ROWS].keeps == KEEPS)
            ck_assert_msg(fingerprint() == before, "%s: request %d failed: half changed", name,
                          (int)k);
        clean_up();
        tn_scope_end(s);
        ck_assert_msg(tn_live_tensors() == 0, "%s: request %d failed: %d tensors are left", name,
                      (int)k, (int)tn_live_tensors());
        ck_assert_msg(tn_memory().in_use == in_use, "%s: request %d failed: %d bytes are left",
                      name, (int)k, (int)(tn_memory().in_use - in_use));
        if (!failed) break;
    }
    test_setup();
}
END_TEST

Suite *test_suite(void)
{
    setenv("TN_CACHE", "0", 1); /* read at the first allocation, which is later */
    Suite *s = suite_create("nomem_nn");
    TCase *t = test_case(s, "nomem");
    tcase_add_loop_test(t, memory_runs_out, 0, 2 * ROWS);
    return s;
}
