/*
 * checkpoint_parts.c - what is in a checkpoint beside one model: generators, further modules and
 * optimizers, averages, scalers, ties, versions, gradients that wait for the rest of their batch.
 *
 * Seen to fail: in src/io/parts.c, put_grads() that does nothing (parts_of_a_batch_go_on and
 * what_waits_and_what_fits), save() without versions (ties_and_versions), tni_parts_load() without
 * put_back (further_parts_go_on_too).
 */
#include <stdio.h>

#include "io/cases.h"
#include "io/choice.h"
#include "nn/module.h"

/* ---- generators, ties, versions -------------------------------------------------------------- */

START_TEST(generators_of_ones_own)
{
    tn_generator *g[3] = { owned(tn_generator_new(1)), owned(tn_generator_new(2)),
                           owned(tn_generator_new(3)) };
    tn_checkpoint c = { .generators = g, .n_generators = 2 };
    assert_ok(tn_checkpoint_save(&c, in_folder("two")));
    uint32_t first = tn_generator_u32(g[0]), second = tn_generator_u32(g[1]);
    assert_ok(tn_checkpoint_load(&c, in_folder("two")));
    ck_assert_uint_eq(tn_generator_u32(g[0]), first);
    ck_assert_uint_eq(tn_generator_u32(g[1]), second);
    assert_ok(tn_checkpoint_load(&(tn_checkpoint){ 0 }, in_folder("two")));
    c.n_generators = 3;
    assert_fails(tn_checkpoint_load(&c, in_folder("two")), TN_E_NAME, "rng.2 is missing");
    c.n_generators = 1;
    assert_fails(tn_checkpoint_load(&c, in_folder("two")), TN_E_NAME,
                 "rng.1 is in it, but only 1 generators are given here");
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* ---- further parts --------------------------------------------------------------------------- */

/* A pair of nets with an optimizer each, a schedule on the second, an average and a scaler. */
typedef struct pair {
    tn_module *a, *b, *average;
    tn_optim *of_a, *of_b;
    tn_scheduler *schedule;
    tn_scaler *scaler;
    tn_checkpoint_part part[5];
} pair;

static pair pair_new(int64_t width)
{
    tn_module *b = tn_sequential(tn_linear_new(width, 1, (tn_linear_options){ 0 }),
                                 tn_batch_norm1d_new(1, (tn_batch_norm_options){ 0 }));
    pair p = { .a = owned(tn_linear_new(3, width, (tn_linear_options){ 0 })), .b = owned(b) };
    p.average = owned(tn_ema_new(p.b, (tn_ema_options){ 0 }));
    p.of_a = owned(tn_adam(tn_parameters(p.a), (tn_adam_options){ .lr = 0.1 }));
    p.of_b = owned(tn_sgd(tn_parameters(p.b), (tn_sgd_options){ .lr = 0.1, .momentum = 0.5 }));
    p.schedule = owned(tn_exponential_lr(p.of_b, 0.5));
    p.scaler = owned(tn_scaler_new((tn_scaler_options){ .interval = 1 }));
    p.part[0] = (tn_checkpoint_part){ .name = "b", .module = p.b };
    p.part[1] = (tn_checkpoint_part){ .name = "of_b", .optimizer = p.of_b };
    p.part[2] = (tn_checkpoint_part){ .name = "schedule", .scheduler = p.schedule };
    p.part[3] = (tn_checkpoint_part){ .name = "average", .module = p.average };
    p.part[4] = (tn_checkpoint_part){ .name = "scaler", .scaler = p.scaler };
    return p;
}

static void pair_step(pair *p)
{
    tn_scope s = tn_scope_begin();
    tn_tensor *y = tn_forward(p->b, tn_forward(p->a, tn_randn(TN_SHAPE(4, 3))));
    tn_tensor *loss = tn_mean(tn_square(tn_sub_scalar(y, 1)), NULL, 0, false);
    assert_ok(tn_optim_zero_grad(p->of_a));
    assert_ok(tn_optim_zero_grad(p->of_b));
    assert_ok(tn_backward(tn_scaler_scale(p->scaler, loss)));
    assert_ok(tn_scaler_step(p->scaler, p->of_a));
    assert_ok(tn_scaler_step(p->scaler, p->of_b));
    assert_ok(tn_scaler_update(p->scaler));
    assert_ok(tn_scheduler_step(p->schedule));
    assert_ok(tn_ema_update(p->average, p->b));
    tn_scope_end(s);
}

static uint64_t pair_hash(const pair *p)
{
    uint64_t h =
        hash_of_module(p->a) * 3 + hash_of_module(p->b) * 5 + hash_of_module(p->average) * 7;
    h += hash_of(tn_optim_state_dict(p->of_a)) * 11 + hash_of(tn_optim_state_dict(p->of_b)) * 13;
    return h + hash_of(tn_scheduler_state_dict(p->schedule)) * 17 +
           hash_of(tn_scaler_state_dict(p->scaler)) * 19;
}

static tn_checkpoint pair_checkpoint(pair *p)
{
    return (tn_checkpoint){ .model = p->a, .optimizer = p->of_a, .parts = p->part, .n_parts = 5 };
}

START_TEST(further_parts_go_on_too)
{
    pair p = pair_new(4), q = pair_new(4), other = pair_new(5);
    for (int i = 0; i < 3; i++) pair_step(&p);
    tn_checkpoint c = pair_checkpoint(&p);
    assert_ok(tn_checkpoint_save(&c, in_folder("pair")));
    for (int i = 0; i < 3; i++) pair_step(&p);
    c = pair_checkpoint(&q);
    assert_ok(tn_checkpoint_load(&c, in_folder("pair")));
    for (int i = 0; i < 3; i++) pair_step(&q);
    ck_assert_uint_eq(pair_hash(&q), pair_hash(&p));

    /* each part in turn does not fit: the parts loaded before it are restored */
    for (int bad = 0; bad < 6; bad++) {
        pair mixed = bad == 0 ? other : q; /* 0: the model, the last to load */
        memcpy(mixed.part, q.part, sizeof mixed.part);
        if (bad > 0) mixed.part[bad - 1] = other.part[bad - 1];
        if (bad == 5) mixed.part[4].name = "scalar"; /* all scalers fit: another name does not */
        if (bad == 3) continue;                      /* so do all schedules */
        uint64_t hash = pair_hash(&q), of_other = pair_hash(&other);
        c = pair_checkpoint(&mixed);
        ck_assert_msg(tn_checkpoint_load(&c, in_folder("pair")) != TN_OK, "%d", bad);
        tn_error_clear();
        ck_assert_uint_eq(pair_hash(&q), hash);
        ck_assert_uint_eq(pair_hash(&other), of_other);
    }
}
END_TEST

/* A backbone in two models, and in the average of one: each part is read by itself, so each has the
 * tensor. */
START_TEST(parts_that_share_a_tensor)
{
    tn_module *back = tn_linear_new(3, 3, (tn_linear_options){ 0 });
    tn_module *m = owned(tn_sequential(back, tn_linear_new(3, 2, (tn_linear_options){ 0 })));
    tn_module *other = owned(tn_linear_new(3, 3, (tn_linear_options){ 0 }));
    assert_ok(tn_register_parameter(other, "weight", NULL, tn_get_parameter(m, "0.weight")));
    assert_ok(tn_register_parameter(other, "again", NULL, tn_get_parameter(m, "0.weight")));
    tn_checkpoint_part part = { .name = "other", .module = other };
    tn_checkpoint c = { .model = m, .parts = &part, .n_parts = 1 };
    uint64_t hash = hash_of_module(m) * 31 + hash_of_module(other);
    assert_ok(tn_checkpoint_save(&c, in_folder("shared")));
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "0.weight"), 0));
    assert_ok(tn_checkpoint_load(&c, in_folder("shared")));
    ck_assert_uint_eq(hash_of_module(m) * 31 + hash_of_module(other), hash);
    ck_assert_ptr_eq(tn_get_parameter(other, "again"), tn_get_parameter(m, "0.weight"));
    assert_ok(tn_checkpoint_load(&(tn_checkpoint){ .model = m }, in_folder("shared")));
    assert_ok(
        tn_checkpoint_load(&(tn_checkpoint){ .parts = &part, .n_parts = 1 }, in_folder("shared")));
    ck_assert_uint_eq(hash_of_module(m) * 31 + hash_of_module(other), hash);
}
END_TEST

START_TEST(parts_are_checked)
{
    tn_generator *g[2] = { owned(tn_generator_new(1)), NULL };
    tn_module *m = owned(tn_identity_new());
    const char *strings[] = { "lr" };
    const tn_checkpoint_part a = { .name = "a", .module = m };
    const tn_checkpoint_part twice[] = { a, a },
                             reserved[] = { a, { .name = "model", .module = m } };
    const tn_checkpoint_part dotted[] = { a, { .name = "a.b", .module = m } };
    const tn_checkpoint_part hollow[] = { a, { .name = "b" } };
    const struct {
        tn_checkpoint c;
        tn_status status;
        const char *text;
    } rows[] = {
        { { .generators = g, .n_generators = 2 }, TN_E_INVALID, "generators[1] is NULL" },
        { { .n_generators = 1 }, TN_E_INVALID, "generators[0] is NULL" },
        { { .n_generators = -1 }, TN_E_INVALID, "n_generators -1" },
        /* pointers without a number: nothing of them would be saved */
        { { .generators = g },
          TN_E_INVALID,
          "n_generators 0 with generators: want how many they are, or NULL" },
        { { .parts = &a }, TN_E_INVALID, "n_parts 0 with parts" },
        { { .metadata.key = strings },
          TN_E_INVALID,
          "metadata of 0 pairs without values: want as many keys and values" },
        { { .parts = twice, .n_parts = 2 },
          TN_E_NAME,
          "two parts are named \"a\": want a name for each" },
        { { .parts = reserved, .n_parts = 2 }, TN_E_NAME, "not model, optim" },
        { { .parts = dotted, .n_parts = 2 }, TN_E_NAME, "without a dot" },
        { { .parts = hollow, .n_parts = 2 }, TN_E_INVALID, "parts[1] holds 0 objects" },
        { { .parts = twice, .n_parts = -1 }, TN_E_INVALID, "n_parts -1" },
        { { .n_parts = 1 }, TN_E_INVALID, "without parts" },
    };
    assert_ok(tn_checkpoint_save(&(tn_checkpoint){ 0 }, in_folder("empty")));
    for (int i = 0; i < COUNT(rows); i++) {
        tn_checkpoint c = rows[i].c;
        assert_fails(tn_checkpoint_save(&c, in_folder("x")), rows[i].status, rows[i].text);
        if (c.metadata.key) continue; /* which loading replaces */
        assert_fails(tn_checkpoint_load(&c, in_folder("empty")), rows[i].status, rows[i].text);
    }
    ck_assert_int_eq(files_in_folder(), 1);
}
END_TEST

/* A tensor with two names is stored once; the versions of modules are those of the state dict. */
START_TEST(ties_and_versions)
{
    tn_module *one = tn_linear_new(5, 5, (tn_linear_options){ 0 });
    tn_module *m = owned(tn_sequential(one, tn_batch_norm1d_new(5, (tn_batch_norm_options){ 0 }),
                                       tn_linear_new(5, 5, (tn_linear_options){ 0 })));
    assert_ok(tn_register_parameter(tn_module_child(m, 2), "weight", NULL,
                                    tn_get_parameter(m, "0.weight")));
    tn_checkpoint c = { .model = m };
    assert_ok(tn_checkpoint_save(&c, in_folder("tied")));
    tni_safetensors file;
    assert_ok(tni_safetensors_open(&file, "test", in_folder("tied")));
    ck_assert_int_ge(tni_names_find(&file.entries, "model.0.weight"), 0);
    ck_assert_int_lt(tni_names_find(&file.entries, "model.2.weight"), 0);
    tn_list *list = tni_safetensors_list(&file, NULL);
    assert_made(list);
    ck_assert_int_eq(tn_list_version(list, "model.1"), tn_list_version(tn_state_dict(m, ""), "1"));
    ck_assert_int_eq(tn_list_version(list, "model.1"), 2);
    tni_safetensors_close(&file);
    uint64_t hash = hash_of_module(m);
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "0.weight"), 0));
    assert_ok(tn_checkpoint_load(&c, in_folder("tied")));
    ck_assert_int_eq(c.metadata.n, 0);
    ck_assert_uint_eq(hash_of_module(m), hash);
    ck_assert_ptr_eq(tn_get_parameter(m, "2.weight"), tn_get_parameter(m, "0.weight"));
}
END_TEST

/* ---- between the parts of a batch ------------------------------------------------------------ */

enum { WAITING = 4, ALL_PARTS = 5 * WAITING };

static const char *stop_of(int64_t step)
{
    char name[32];
    snprintf(name, sizeof name, "at %d", (int)step);
    return in_folder(name);
}

/* Batches of four parts each: a step after every fourth backward. Two layers share their weight. */
typedef struct accumulating {
    tn_module *model;
    tn_optim *optimizer;
    int done;
} accumulating;

static accumulating accumulating_new(uint64_t seed)
{
    tn_manual_seed(seed);
    accumulating a = { .model =
                           owned(tn_sequential(tn_linear_new(3, 3, (tn_linear_options){ 0 }),
                                               tn_linear_new(3, 3, (tn_linear_options){ 0 }))) };
    assert_ok(tn_register_parameter(tn_module_child(a.model, 1), "weight", NULL,
                                    tn_get_parameter(a.model, "0.weight")));
    a.optimizer = owned(tn_adam(tn_parameters(a.model), (tn_adam_options){ .lr = 0.05 }));
    return a;
}

/* Gradients are cleared at the end of a batch, or (late) at the beginning of the next one. */
static void accumulate(accumulating *a, int last, bool late)
{
    for (; a->done < last; a->done++) {
        tn_scope scope = tn_scope_begin();
        bool begins = a->done % WAITING == 0, ends = a->done % WAITING == WAITING - 1;
        if (late && begins) assert_ok(tn_optim_zero_grad(a->optimizer));
        tn_tensor *y = tn_forward(a->model, tn_full(TN_SHAPE(2, 3), 0.1 * (a->done % 7)));
        assert_ok(tn_backward(tn_mean(tn_square(tn_sub_scalar(y, 1)), NULL, 0, false)));
        if (ends) assert_ok(tn_optim_step(a->optimizer));
        if (ends && !late) assert_ok(tn_optim_zero_grad(a->optimizer));
        tn_scope_end(scope);
    }
}

static void save_accumulating(accumulating *a)
{
    tn_checkpoint c = { .model = a->model, .optimizer = a->optimizer, .step = a->done };
    assert_ok(tn_checkpoint_save(&c, stop_of(a->done)));
}

/* Goes back to a stop, after a loss that was NaN. */
static void return_to(accumulating *a, int stop)
{
    tn_checkpoint c = { .model = a->model, .optimizer = a->optimizer };
    tn_tensor *y = tn_forward(a->model, tn_full(TN_SHAPE(1, 3), NAN));
    assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
    assert_ok(tn_checkpoint_load(&c, stop_of(stop)));
    ck_assert_int_eq(c.step, stop);
    a->done = stop;
}

/* A stop after any part, in a new run and in the same one. */
START_TEST(parts_of_a_batch_go_on)
{
    const bool late = _i;
    accumulating whole = accumulating_new(1);
    for (int s = 0; s < ALL_PARTS; s++) {
        accumulate(&whole, s, late);
        save_accumulating(&whole);
    }
    accumulate(&whole, ALL_PARTS, late);
    uint64_t wanted = hash_of_module(whole.model);
    for (int s = 0; s < ALL_PARTS; s++) {
        accumulating fresh = accumulating_new(2), *run[] = { &fresh, &whole };
        for (int k = 0; k < 2; k++) {
            return_to(run[k], s);
            accumulate(run[k], ALL_PARTS, late);
            ck_assert_msg(hash_of_module(run[k]->model) == wanted, "stop after %d, %s run", s,
                          k ? "the same" : "a new");
        }
    }
}
END_TEST

static int waiting_in(const char *path)
{
    tn_list *list = tn_load_tensors(path, NULL);
    int n = 0;
    for (int i = 0; i < list->n; i++) n += !strncmp(list->entry[i].name, ".grad.", 6);
    return n;
}

/* Gradients that a step has used are not saved; a model of other shapes or names. */
START_TEST(what_waits_and_what_fits)
{
    tn_module *m = owned(tn_linear_new(3, 2, (tn_linear_options){ 0 }));
    tn_optim *opt = owned(tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 }));
    tn_checkpoint c = { .model = m };
    assert_ok(tn_backward(tn_sum(tn_forward(m, tn_ones(TN_SHAPE(1, 3))), NULL, 0, false)));
    assert_ok(tn_checkpoint_save(&c, in_folder("waits")));
    ck_assert_int_eq(waiting_in(in_folder("waits")), 2);
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_checkpoint_save(&c, in_folder("used")));
    ck_assert_int_eq(waiting_in(in_folder("used")), 0);
    assert_ok(tn_backward(tn_sum(tn_forward(m, tn_ones(TN_SHAPE(1, 3))), NULL, 0, false)));
    assert_ok(tn_checkpoint_save(&c, in_folder("more")));
    ck_assert_int_eq(waiting_in(in_folder("more")), 2);
    assert_ok(tn_checkpoint_load(&c, in_folder("used"))); /* and so any older file */
    ck_assert(tni_none(tn_grad(tn_get_parameter(m, "weight"))));
    assert_ok(tn_checkpoint_load(&c, in_folder("more")));
    ck_assert_double_eq(tn_item(tn_max_all(tn_grad(tn_get_parameter(m, "weight")))), 2);
    tn_checkpoint alone = { .optimizer = opt }; /* as of leaves that no module has */
    assert_ok(tn_checkpoint_save(&alone, in_folder("alone")));
    assert_ok(tn_optim_zero_grad(opt));
    assert_ok(tn_checkpoint_load(&alone, in_folder("alone")));
    ck_assert_double_eq(tn_item(tn_max_all(tn_grad(tn_get_parameter(m, "weight")))), 2);
    tn_module *wide = owned(tn_linear_new(3, 3, (tn_linear_options){ 0 }));
    c.model = wide;
    assert_fails(tn_checkpoint_load(&c, in_folder("more")), TN_E_SHAPE,
                 "the gradient of model.weight is [2,3] f32 there, the parameter [3,3] f32 here");
    tn_module *bare = owned(tn_linear_new(3, 2, (tn_linear_options){ .no_bias = true }));
    c.model = bare;
    assert_fails(tn_checkpoint_load(&c, in_folder("more")), TN_E_NAME, "unexpected");
}
END_TEST

void checkpoint_parts_cases(Suite *suite)
{
    TCase *t = file_case(suite, "parts");
    tcase_add_test(t, generators_of_ones_own);
    tcase_add_test(t, ties_and_versions);
    tcase_add_test(t, further_parts_go_on_too);
    tcase_add_test(t, parts_that_share_a_tensor);
    tcase_add_test(t, parts_are_checked);
    tcase_add_loop_test(t, parts_of_a_batch_go_on, 0, 2);
    tcase_add_test(t, what_waits_and_what_fits);
}
