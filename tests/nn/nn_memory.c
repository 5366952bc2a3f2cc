/*
 * nn_memory.c - memory runs out at each allocation of each function that makes or changes a
 * module, a list or an optimizer: the call either fails, says so and changes nothing, or succeeds.
 * Nothing leaks.
 *
 * The allocator hook counts and refuses; the cache above it is off, so that it sees every request.
 */
#include <stdio.h>

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
    assert_ok(buffer(&m->base, "b", &m->b, tn_ones(TN_SHAPE(2))));
    assert_ok(tn_register_module(&m->base, "norm", &m->other, norm2d(2)));
    assert_ok(
        tn_register_module(&m->base, "layers", &m->child, tn_sequential(linear(2, 2), norm1d(2))));
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

/* A hash of all its visible state, that of the default generator with `random`. */
static uint64_t fingerprint(bool random)
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
    unsigned char drawn[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), drawn);
    for (int i = 0; random && i < TN_GENERATOR_STATE_SIZE; i++) h = mix(h, drawn[i]);
    tn_scope_end(s);
    return h;
}

/* ---- the calls of memory_calls.def. A module that is made is dropped ------------------------- */

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
#define LAYER tn_get_submodule(w.other, "layers.0")

static bool do_add_many(void) /* into the tables of a large module */
{
    char name[8];
    tn_module *m = tn_module_dict_new();
    for (int i = 0; m && i < 40; i++) {
        snprintf(name, sizeof name, "%d", i);
        if (fine(buffer(m, name, NULL, w.x))) continue;
        tn_module_drop(m);
        return false;
    }
    tn_module_drop(m);
    return m != NULL;
}

static bool do_summary(void)
{
    FILE *file = fopen("/dev/null", "w");
    tn_status status = tn_module_summary(file, BASE);
    fclose(file);
    return status == TN_OK;
}

static bool as_it_is(const char *name, char *to, size_t size, void *user)
{
    (void)user;
    snprintf(to, size, "%s", name);
    return true;
}

/* A module is consumed, also by a failure: it gets a reference of its own. */
static bool do_convert(void)
{
    tn_module *m = tn_module_clone(w.other);
    if (!m) return false;
    tn_module *frozen = tn_freeze_batch_norm(m);
    return frozen && made(tn_thaw_batch_norm(frozen));
}

static bool do_list_many(void)
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

static bool do_scaler_new(void)
{
    tn_scaler *s = tn_scaler_new((tn_scaler_options){ 0 });
    tn_scaler_free(s);
    return s != NULL;
}

static bool do_sequential_lr(void)
{
    tn_scheduler *parts[] = { tn_constant_lr(w.opt, 1, 2), tn_constant_lr(w.opt, 1, 2) };
    return schedule(tn_sequential_lr(w.opt, parts, 2, (int64_t[]){ 2 }));
}

/* What the first call changed is put back by a further call once there is memory. */
static bool do_ema_restore(void)
{
    if (!fine(tn_ema_use(w.average, w.other))) return false;
    if (fine(tn_ema_restore(w.other))) return true;
    scarce.failing = 0;
    assert_ok(tn_ema_restore(w.other));
    return false;
}

static int next_of_two(tn_module *m, void *user)
{
    int *left = user;
    return (*left)-- == 0 ? 0 : tn_forward(m, w.x) ? 1 : -1;
}

static bool do_measure(void)
{
    int left = 2;
    tn_module *layers = tn_get_submodule(w.other, "layers");
    return fine(tn_measure_statistics(layers, next_of_two, &left));
}

static tn_status no_hook(tn_module *m, int n_in, tn_tensor **in, void *user)
{
    (void)m, (void)n_in, (void)in, (void)user;
    return TN_OK;
}

/* Each becomes f32 by itself. */
static bool do_bce_of_bf16(void)
{
    tn_tensor *x = tn_to_dtype(tn_ones(TN_SHAPE(3)), TN_BF16);
    return x && tn_bce_with_logits(x, x, x, TN_MEAN);
}

#define CALL(name, keeps, call)                                                                    \
    static bool name(void)                                                                         \
    {                                                                                              \
        return call;                                                                               \
    }
#include "memory_calls.def"
#undef CALL

enum { KEEPS, MOVES, BEARS, DRAWS = 4 }; /* flags */
static const struct {
    const char *name;
    bool (*call)(void);
    int keeps;
} rows[] = {
#define CALL(name, keeps, call) { #name, name, keeps },
#include "memory_calls.def"
};
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
        const bool draws = rows[_i % ROWS].keeps & DRAWS;
        uint64_t before = fingerprint(!draws);
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
        bool borne = ok && failed && rows[_i % ROWS].keeps & BEARS;
        ck_assert_msg(ok != failed || borne, "%s: request %d of memory %s, and the call says %s",
                      name, (int)k, failed ? "failed" : "was there",
                      ok ? "that all is well" : tn_error());
        tn_error_clear();
        if (!ok && !(rows[_i % ROWS].keeps & MOVES)) {
            ck_assert_msg(fingerprint(!draws) == before, "%s: request %d failed: half changed",
                          name, (int)k);
            assert_ok(tn_optim_step(w.opt));
            ck_assert_msg(rows[_i % ROWS].call(), "%s: not after request %d failed: %s", name,
                          (int)k, tn_error());
            assert_ok(tn_error_status());
        }
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

void nn_memory_cases(Suite *suite)
{
    tcase_add_loop_test(test_case(suite, "memory"), memory_runs_out, 0, 2 * ROWS);
}
