/*
 * test_checkpoint.c - a run that stopped and resumed equals an uninterrupted one, bit for bit;
 * every part of a checkpoint is needed for that; weights that became NaN do not replace good ones.
 *
 * Truth: runs of the examples' own two models that were never interrupted.
 *
 * Seen to fail, in src/io/checkpoint.c: commit() without tni_loader_set (the cnn after every step),
 * or setting the default generator only (the transformer after every step); check_module() that
 * finds nothing (all of nonfinite_parameters_are_refused). In grads.c: tni_grads_put() that does
 * nothing (parts_of_a_batch_go_on and what_waits_and_what_fits). In parts.c: save() without
 * versions (ties_and_versions); tni_parts_load() without put_back (further_parts).
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../examples/batchnorm/net.h"
#include "../../examples/transformer/model.h"
#include "files.h"
#include "io/io.h"
#include "nn/module.h"

/* ---- two runs -------------------------------------------------------------------------------- */

enum { STEPS = 64, LAST_STOP = 60 };

/* The transformer: AdamW, warm-up and cosine, batches from a generator of its own, dropout from the
 * default one. The network with BatchNorm: SGD with momentum, one cycle, batches from a loader, 15
 * an epoch. */
typedef struct run {
    tn_module *model;
    tn_optim *optimizer;
    tn_scheduler *schedule;
    tn_loader *loader; /* NULL: the transformer */
    tn_generator *own; /* NULL: the network */
    tn_text *text;
    int64_t step;
} run;

static run transformer_run(uint64_t seed)
{
    char text[2000];
    for (int i = 0; i < (int)sizeof text; i++) text[i] = (char)('a' + i * i % 19 + i / 7 % 5);
    tn_manual_seed(seed);
    run r = { .model = gpt_new((gpt_sizes){ 23, 8, 1, 2, 16, 0.1 }),
              .own = tn_generator_new(seed),
              .text = tn_text_load(write_bytes("text", text, sizeof text), 0.1) };
    assert_made(r.model);
    ck_assert_int_le(r.text->vocab, 23);
    r.optimizer = tn_adamw(tn_parameters(r.model), (tn_adamw_options){ .weight_decay = 0.01 });
    r.schedule = tn_warmup_cosine_lr(r.optimizer, 6, STEPS, 1e-4);
    assert_made(r.schedule);
    return r;
}

static run cnn_run(uint64_t seed)
{
    tn_manual_seed(1234);
    tn_tensor *data[2] = { tn_randint(0, 256, TN_SHAPE(31, 1, 28, 28)),
                           tn_randint(0, 10, TN_SHAPE(31)) };
    data[0] = tn_to_dtype(data[0], TN_U8);
    tn_manual_seed(seed);
    run r = { .model = net_new(128, 74) };
    assert_made(r.model);
    r.loader = tn_loader_new(data, 2,
                             (tn_loader_options){ .batch_size = 2,
                                                  .shuffle = true,
                                                  .drop_last = true,
                                                  .seed = seed,
                                                  .prefetch = seed % 2 });
    r.optimizer = tn_sgd(tn_parameters(r.model),
                         (tn_sgd_options){ .lr = 0.01, .momentum = 0.9, .nesterov = true });
    r.schedule = tn_one_cycle_lr(r.optimizer,
                                 (tn_one_cycle_options){ .max_lr = 0.02, .total_steps = STEPS });
    assert_made(r.loader);
    assert_made(r.schedule);
    return r;
}

static run run_new(bool cnn, uint64_t seed)
{
    return cnn ? cnn_run(seed) : transformer_run(seed);
}

static void run_free(run *r)
{
    tn_loader_free(r->loader);
    tn_generator_free(r->own);
    tn_text_free(r->text);
    tn_scheduler_free(r->schedule);
    tn_optim_free(r->optimizer);
    tn_module_drop(r->model);
}

static void train(run *r, int64_t last)
{
    while (r->step < last) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *in[2];
        if (r->loader) {
            int got = tn_loader_next(r->loader, in, 2);
            if (got == 0) got = tn_loader_next(r->loader, in, 2);
            ck_assert_int_eq(got, 1);
        } else {
            assert_ok(tn_text_batch(r->text, false, r->own, 2, 8, &in[0], &in[1]));
        }
        tn_tensor *logits = tn_forward(r->model, in[0]);
        if (!r->loader) logits = tn_flatten(logits, 0, 1), in[1] = tn_flatten(in[1], 0, 1);
        assert_ok(tn_optim_zero_grad(r->optimizer));
        assert_ok(tn_backward(tn_cross_entropy(logits, in[1])));
        assert_ok(tn_optim_step(r->optimizer));
        assert_ok(tn_scheduler_step(r->schedule));
        tn_scope_end(scope);
        r->step++;
    }
}

/* Everything of it. */
static uint64_t hash_of_run(const run *r)
{
    unsigned char random[2][TN_GENERATOR_STATE_SIZE] = { 0 };
    tn_scope scope = tn_scope_begin();
    uint64_t hash = hash_of(tn_state_dict(r->model, "")) * 31;
    hash = (hash + hash_of(tn_optim_state_dict(r->optimizer))) * 31;
    hash = (hash + hash_of(tn_scheduler_state_dict(r->schedule))) * 31;
    if (r->loader)
        hash += (uint64_t)(tn_loader_epoch(r->loader) * 1000 + tn_loader_position(r->loader));
    tn_generator_get_state(tn_default_generator(), random[0]);
    if (r->own) tn_generator_get_state(r->own, random[1]);
    for (size_t i = 0; i < sizeof random; i++)
        hash = (hash ^ ((unsigned char *)random)[i]) * 1099511628211u;
    tn_scope_end(scope);
    return hash;
}

static tn_checkpoint checkpoint_of(run *r)
{
    return (tn_checkpoint){ .model = r->model,
                            .optimizer = r->optimizer,
                            .scheduler = r->schedule,
                            .loader = r->loader,
                            .generators = r->own ? &r->own : NULL,
                            .n_generators = r->own != NULL,
                            .step = r->step };
}

static const char *numbered(int64_t step)
{
    char name[32];
    snprintf(name, sizeof name, "at %d", (int)step);
    return in_folder(name);
}

static void load(run *r, const char *path)
{
    tn_checkpoint c = checkpoint_of(r);
    assert_ok(tn_checkpoint_load(&c, path));
    r->step = c.step;
}

/* ---- every stop ------------------------------------------------------------------------------ */

/* A checkpoint at each step from 1 on; each is loaded into a run of another seed, either new or one
 * step old, which then continues to the end. */
static void sweep(bool cnn)
{
    run whole = run_new(cnn, 1);
    uint64_t stopped[LAST_STOP + 1];
    for (int64_t s = 1; s <= LAST_STOP; s++) {
        train(&whole, s);
        tn_checkpoint c = checkpoint_of(&whole);
        assert_ok(tn_checkpoint_save(&c, numbered(s)));
        stopped[s] = hash_of_run(&whole);
    }
    train(&whole, STEPS);
    uint64_t wanted = hash_of_run(&whole);
    run_free(&whole);
    for (int64_t s = 1; s <= LAST_STOP; s += TEST_ASAN ? 7 : 1) {
        tn_scope scope = tn_scope_begin();
        run r = run_new(cnn, 100 + (uint64_t)s);
        if (s % 3 == 0) train(&r, 1);
        load(&r, numbered(s));
        ck_assert_int_eq(r.step, s);
        ck_assert_msg(hash_of_run(&r) == stopped[s], "stop after %d: loaded state differs", (int)s);
        train(&r, STEPS);
        ck_assert_msg(hash_of_run(&r) == wanted, "stop after %d: the last state differs", (int)s);
        run_free(&r);
        tn_scope_end(scope);
    }
}

START_TEST(transformer_resumes_after_every_step)
{
    sweep(false);
}
END_TEST

START_TEST(cnn_resumes_after_every_step)
{
    sweep(true);
}
END_TEST

/* ---- every part is needed -------------------------------------------------------------------- */

typedef enum part {
    NOTHING,
    BUFFERS,
    MOMENTS,
    OPTIMIZER_STEP,
    SCHEDULER,
    DEFAULT_GENERATOR,
    OWN_GENERATOR,
    POSITION,
    EPOCH
} part;

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* The optimizer's state again, with moments at zero or with every parameter at its first update. */
static void forget(tn_optim *optimizer, part left_out)
{
    static const char *const moments[] = { "exp_avg", "exp_avg_sq", "momentum_buffer" };
    tn_list *state = tn_optim_state_dict(optimizer), *other = tn_list_new();
    int changed = 0;
    for (int i = 0; i < state->n; i++) {
        const tn_entry *e = &state->entry[i];
        tn_tensor *t = tn_clone(e->tensor);
        bool change = left_out == OPTIMIZER_STEP && ends_with(e->name, ".step");
        for (int k = 0; k < COUNT(moments); k++)
            change = change || (left_out == MOMENTS && ends_with(e->name, moments[k]));
        if (change) assert_ok(tn_fill_(t, left_out == OPTIMIZER_STEP));
        changed += change;
        assert_ok(tn_list_add(other, e->name, t));
    }
    ck_assert_int_gt(changed, 0);
    assert_ok(tn_optim_load_state_dict(optimizer, other));
}

/* Loads all but one part, which stays as a fresh run has it. */
static void load_without(run *r, part left_out, const char *path)
{
    unsigned char random[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), random);
    tn_list *buffers = tn_buffers(r->model), *fresh = tn_list_new();
    for (int i = 0; i < buffers->n; i++)
        assert_ok(tn_list_add(fresh, buffers->entry[i].name, tn_clone(buffers->entry[i].tensor)));
    tn_checkpoint c = checkpoint_of(r);
    if (left_out == SCHEDULER) c.scheduler = NULL;
    if (left_out == OWN_GENERATOR) c.generators = NULL, c.n_generators = 0;
    assert_ok(tn_checkpoint_load(&c, path));
    r->step = c.step;
    for (int i = 0; left_out == BUFFERS && i < buffers->n; i++)
        TN_NO_GRAD assert_ok(tn_copy_(buffers->entry[i].tensor, fresh->entry[i].tensor));
    if (left_out == MOMENTS || left_out == OPTIMIZER_STEP) forget(r->optimizer, left_out);
    if (left_out == DEFAULT_GENERATOR)
        assert_ok(tn_generator_set_state(tn_default_generator(), random));
    if (left_out == POSITION) assert_ok(tn_loader_seek(r->loader, tn_loader_epoch(r->loader), 0));
    if (left_out == EPOCH) assert_ok(tn_loader_seek(r->loader, 0, tn_loader_position(r->loader)));
}

static const struct {
    const char *what;
    bool cnn;
    part left_out;
} controls[] = {
    { "transformer, nothing", false, NOTHING },
    { "cnn, nothing", true, NOTHING },
    { "cnn, model buffers", true, BUFFERS },
    { "transformer, moments", false, MOMENTS },
    { "cnn, moments", true, MOMENTS },
    { "transformer, optimizer step", false, OPTIMIZER_STEP },
    { "transformer, scheduler", false, SCHEDULER },
    { "cnn, scheduler", true, SCHEDULER },
    { "transformer, default generator", false, DEFAULT_GENERATOR },
    { "transformer, own generator", false, OWN_GENERATOR },
    { "cnn, loader position", true, POSITION },
    { "cnn, epoch", true, EPOCH },
};

/* Only the models are compared: leaving out any part must change what was learned. */
START_TEST(leaving_out_a_part_shows)
{
    bool cnn = controls[_i].cnn;
    run r = run_new(cnn, 1);
    train(&r, 20);
    if (cnn) ck_assert(tn_loader_epoch(r.loader) == 1 && tn_loader_position(r.loader) == 5);
    tn_checkpoint c = checkpoint_of(&r);
    assert_ok(tn_checkpoint_save(&c, in_folder("all")));
    train(&r, STEPS);
    uint64_t wanted = hash_of_module(r.model);
    run_free(&r);
    r = run_new(cnn, 1);
    load_without(&r, controls[_i].left_out, in_folder("all"));
    train(&r, STEPS);
    bool equal = hash_of_module(r.model) == wanted;
    ck_assert_msg(equal == (controls[_i].left_out == NOTHING), "%s", controls[_i].what);
    run_free(&r);
}
END_TEST

/* The file again without entry k (-1: with all); whether there was one. */
static bool write_without(const char *from, const char *to, int k)
{
    const char *keys[] = { TNI_CHECKPOINT, "tenon.version" }, *values[] = { "1", TN_VERSION };
    tn_metadata own = { 2, keys, values };
    tni_safetensors file;
    assert_ok(tni_safetensors_open(&file, "test", from));
    tn_list *list = tni_safetensors_list(&file, "", NULL), *rest = tn_list_new();
    for (int i = 0; i < list->n; i++)
        if (i != k) assert_ok(tn_list_add(rest, list->entry[i].name, list->entry[i].tensor));
    for (int i = -1, v; (v = tni_list_next_version(list, &i)) != 0;)
        assert_ok(tn_list_set_version(rest, tni_list_path(list, i), v));
    tni_safetensors_close(&file);
    assert_ok(
        tni_safetensors_write("test", to, rest, (tni_writing){ .own = &own, .checksum = true }));
    return k < list->n;
}

/* A file without any one of its tensors is refused, and nothing has changed. */
START_TEST(every_entry_is_missed)
{
    run r = run_new(_i, 1);
    train(&r, 2);
    tn_checkpoint c = checkpoint_of(&r);
    assert_ok(tn_checkpoint_save(&c, in_folder("all")));
    train(&r, 3);
    uint64_t hash = hash_of_run(&r);
    c = checkpoint_of(&r);
    int k = 0;
    for (; write_without(in_folder("all"), in_folder("less"), k); k++) {
        tn_scope scope = tn_scope_begin();
        ck_assert_msg(tn_checkpoint_load(&c, in_folder("less")) != TN_OK, "entry %d is not missed",
                      k);
        ck_assert_msg(strstr(tn_error(), "missing") || strstr(tn_error(), "nothing of"), "%s",
                      tn_error());
        tn_error_clear();
        ck_assert_uint_eq(hash_of_run(&r), hash);
        ck_assert_int_eq(c.step, 3);
        tn_scope_end(scope);
        tn_memory_trim();
    }
    ck_assert_int_gt(k, 25);
    assert_ok(tn_checkpoint_load(&c, in_folder("less"))); /* the last one lacked nothing */
    ck_assert_int_eq(c.step, 2);
    run_free(&r);
}
END_TEST

/* ---- generators, ties, versions -------------------------------------------------------------- */

START_TEST(generators_of_ones_own)
{
    tn_generator *g[3] = { tn_generator_new(1), tn_generator_new(2), tn_generator_new(3) };
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
    tn_generator *gap[2] = { g[0], NULL };
    c = (tn_checkpoint){ .generators = gap, .n_generators = 2 };
    assert_fails(tn_checkpoint_load(&c, in_folder("two")), TN_E_INVALID, "generators[1] is NULL");
    assert_fails(tn_checkpoint_save(&c, in_folder("gap")), TN_E_INVALID, "generators[1] is NULL");
    c = (tn_checkpoint){ .n_generators = 1 };
    assert_fails(tn_checkpoint_save(&c, in_folder("gap")), TN_E_INVALID, "generators[0] is NULL");
    c = (tn_checkpoint){ .n_generators = -1 };
    assert_fails(tn_checkpoint_save(&c, in_folder("gap")), TN_E_INVALID, "n_generators -1");
    /* pointers without a number: nothing of them would be saved */
    c = (tn_checkpoint){ .generators = g };
    assert_fails(tn_checkpoint_save(&c, in_folder("gap")), TN_E_INVALID,
                 "n_generators 0 with generators: want how many they are, or NULL");
    assert_fails(tn_checkpoint_load(&c, in_folder("two")), TN_E_INVALID, "n_generators 0");
    c = (tn_checkpoint){ .parts = &(tn_checkpoint_part){ .name = "more" } };
    assert_fails(tn_checkpoint_save(&c, in_folder("gap")), TN_E_INVALID, "n_parts 0 with parts");
    c = (tn_checkpoint){ .metadata.key = (const char *[]){ "lr" } };
    assert_fails(tn_checkpoint_save(&c, in_folder("gap")), TN_E_INVALID,
                 "metadata of 0 pairs, with strings: want as many keys and values");
    ck_assert_int_eq(files_in_folder(), 1);
    for (int i = 0; i < 3; i++) tn_generator_free(g[i]);
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
    pair p = { .a = tn_linear_new(3, width, (tn_linear_options){ 0 }),
               .b = tn_sequential(tn_linear_new(width, 1, (tn_linear_options){ 0 }),
                                  tn_batch_norm1d_new(1, (tn_batch_norm_options){ 0 })) };
    p.average = tn_ema_new(p.b, (tn_ema_options){ 0 });
    p.of_a = tn_adam(tn_parameters(p.a), (tn_adam_options){ .lr = 0.1 });
    p.of_b = tn_sgd(tn_parameters(p.b), (tn_sgd_options){ .lr = 0.1, .momentum = 0.5 });
    p.schedule = tn_exponential_lr(p.of_b, 0.5);
    p.scaler = tn_scaler_new((tn_scaler_options){ .interval = 1 });
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

static void pair_free(pair *p)
{
    tn_scaler_free(p->scaler);
    tn_scheduler_free(p->schedule);
    tn_optim_free(p->of_a);
    tn_optim_free(p->of_b);
    tn_module_drop(p->average);
    tn_module_drop(p->b);
    tn_module_drop(p->a);
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
    pair_free(&p);
    pair_free(&q);
    pair_free(&other);
}
END_TEST

/* A backbone in two models, and in the average of one: each part is read by itself, so each has the
 * tensor. */
START_TEST(parts_that_share_a_tensor)
{
    tn_module *back = tn_linear_new(3, 3, (tn_linear_options){ 0 });
    tn_module *m = tn_sequential(back, tn_linear_new(3, 2, (tn_linear_options){ 0 }));
    tn_module *other = tn_linear_new(3, 3, (tn_linear_options){ 0 });
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
    tn_module_drop(m), tn_module_drop(other);
}
END_TEST

START_TEST(further_parts_are_checked)
{
    tn_module *m = tn_identity_new();
    tn_checkpoint_part part[2] = { { .name = "a", .module = m }, { .name = "a", .module = m } };
    tn_checkpoint c = { .parts = part, .n_parts = 2 };
    assert_fails(tn_checkpoint_save(&c, in_folder("x")), TN_E_NAME,
                 "two parts are named \"a\": want a name for each");
    part[1].name = "model";
    assert_fails(tn_checkpoint_save(&c, in_folder("x")), TN_E_NAME, "not model, optim");
    part[1].name = "a.b";
    assert_fails(tn_checkpoint_save(&c, in_folder("x")), TN_E_NAME, "without a dot");
    part[1] = (tn_checkpoint_part){ .name = "b" };
    assert_fails(tn_checkpoint_save(&c, in_folder("x")), TN_E_INVALID, "parts[1] holds 0 objects");
    c.n_parts = -1;
    assert_fails(tn_checkpoint_load(&c, in_folder("x")), TN_E_INVALID, "n_parts -1");
    c = (tn_checkpoint){ .n_parts = 1 };
    assert_fails(tn_checkpoint_save(&c, in_folder("x")), TN_E_INVALID, "without parts");
    ck_assert_int_eq(files_in_folder(), 0);
    tn_module_drop(m);
}
END_TEST

/* A tensor with two names is stored once; the versions of modules are those of the state dict. */
START_TEST(ties_and_versions)
{
    tn_module *one = tn_linear_new(5, 5, (tn_linear_options){ 0 });
    tn_module *m = tn_sequential(one, tn_batch_norm1d_new(5, (tn_batch_norm_options){ 0 }),
                                 tn_linear_new(5, 5, (tn_linear_options){ 0 }));
    assert_ok(tn_register_parameter(tn_module_child(m, 2), "weight", NULL,
                                    tn_get_parameter(m, "0.weight")));
    tn_checkpoint c = { .model = m };
    assert_ok(tn_checkpoint_save(&c, in_folder("tied")));
    tni_safetensors file;
    assert_ok(tni_safetensors_open(&file, "test", in_folder("tied")));
    ck_assert_ptr_nonnull(tni_safetensors_find(&file, "model.0.weight"));
    ck_assert_ptr_null(tni_safetensors_find(&file, "model.2.weight"));
    tn_list *part = tni_safetensors_list(&file, "model.", NULL);
    assert_made(part);
    ck_assert_int_eq(tn_list_version(part, "1"), tn_list_version(tn_state_dict(m, ""), "1"));
    ck_assert_int_eq(tn_list_version(part, "1"), 2);
    tni_safetensors_close(&file);
    uint64_t hash = hash_of_module(m);
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "0.weight"), 0));
    assert_ok(tn_checkpoint_load(&c, in_folder("tied")));
    ck_assert_int_eq(c.metadata.n, 0);
    ck_assert_uint_eq(hash_of_module(m), hash);
    ck_assert_ptr_eq(tn_get_parameter(m, "2.weight"), tn_get_parameter(m, "0.weight"));
    tn_module_drop(m);
}
END_TEST

/* ---- between the parts of a batch ------------------------------------------------------------ */

enum { WAITING = 4, ALL_PARTS = 5 * WAITING };

/* Batches of four parts each: a step after every fourth backward. Two layers share their weight. */
typedef struct accumulating {
    tn_module *model;
    tn_optim *optimizer;
    int done;
} accumulating;

static accumulating accumulating_new(uint64_t seed)
{
    tn_manual_seed(seed);
    accumulating a = { .model = tn_sequential(tn_linear_new(3, 3, (tn_linear_options){ 0 }),
                                              tn_linear_new(3, 3, (tn_linear_options){ 0 })) };
    assert_ok(tn_register_parameter(tn_module_child(a.model, 1), "weight", NULL,
                                    tn_get_parameter(a.model, "0.weight")));
    a.optimizer = tn_adam(tn_parameters(a.model), (tn_adam_options){ .lr = 0.05 });
    return a;
}

static void accumulating_free(accumulating *a)
{
    tn_optim_free(a->optimizer);
    tn_module_drop(a->model);
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
    assert_ok(tn_checkpoint_save(&c, numbered(a->done)));
}

/* Goes back to a stop, after a loss that was NaN. */
static void return_to(accumulating *a, int stop)
{
    tn_checkpoint c = { .model = a->model, .optimizer = a->optimizer };
    tn_tensor *y = tn_forward(a->model, tn_full(TN_SHAPE(1, 3), NAN));
    assert_ok(tn_backward(tn_sum(y, NULL, 0, false)));
    assert_ok(tn_checkpoint_load(&c, numbered(stop)));
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
        accumulating_free(&fresh);
    }
    accumulating_free(&whole);
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
    tn_module *m = tn_linear_new(3, 2, (tn_linear_options){ 0 });
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 });
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
    tn_module *wide = tn_linear_new(3, 3, (tn_linear_options){ 0 });
    c.model = wide;
    assert_fails(tn_checkpoint_load(&c, in_folder("more")), TN_E_SHAPE,
                 "the gradient of model.weight is [2,3] f32 there, the parameter [3,3] f32 here");
    tn_module *bare = tn_linear_new(3, 2, (tn_linear_options){ .no_bias = true });
    c.model = bare;
    assert_fails(tn_checkpoint_load(&c, in_folder("more")), TN_E_NAME, "unexpected");
    tn_optim_free(opt);
    tn_module_drop(m), tn_module_drop(wide), tn_module_drop(bare);
}
END_TEST

/* ---- weights that are not numbers ------------------------------------------------------------ */

static const struct {
    double value;
    tn_dtype dtype;
} nonfinite[] = {
    { NAN, TN_F32 },       { INFINITY, TN_F32 }, { -INFINITY, TN_F32 },
    { NAN, TN_F64 },       { INFINITY, TN_F64 }, { NAN, TN_BF16 },
    { INFINITY, TN_BF16 }, { NAN, TN_F16 },      { INFINITY, TN_F16 },
};

START_TEST(nonfinite_parameters_are_refused)
{
    tn_module *m = tn_sequential(tn_linear_new(3, 4, (tn_linear_options){ 0 }),
                                 tn_linear_new(4, 2, (tn_linear_options){ 0 }));
    tn_tensor *mask = tn_full(TN_SHAPE(4), -INFINITY);
    assert_ok(tn_register_buffer(m, "mask", NULL, mask, TN_PERSISTENT)); /* a buffer may */
    assert_ok(tn_module_to_dtype(m, nonfinite[_i].dtype));
    tn_checkpoint c = { .model = m, .step = 1 };
    assert_ok(tn_checkpoint_save(&c, in_folder("c")));
    size_t n;
    char *before = read_bytes(in_folder("c"), &n);
    TN_NO_GRAD assert_ok(
        tn_fill_(tn_narrow(tn_get_parameter(m, "1.weight"), 1, 3, 1), nonfinite[_i].value));
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "1.bias"), nonfinite[_i].value));
    c.step = 2;
    assert_fails(tn_checkpoint_save(&c, in_folder("c")), TN_E_INVALID,
                 "tn_checkpoint_save: parameter 1.weight holds NaN or infinity: nothing was "
                 "written; allow_nonfinite saves it all the same");
    assert_fails(tn_checkpoint_save_numbered(&c, folder, "net", 1), TN_E_INVALID, "1.weight holds");
    size_t again;
    char *after = read_bytes(in_folder("c"), &again);
    ck_assert(n == again && memcmp(before, after, n) == 0);
    ck_assert_int_eq(files_in_folder(), 1);
    free(before);
    free(after);
    c.allow_nonfinite = true;
    assert_ok(tn_checkpoint_save(&c, in_folder("c")));
    uint64_t hash = hash_of_module(m);
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "1.weight"), 0));
    assert_ok(tn_checkpoint_load(&c, in_folder("c")));
    ck_assert_uint_eq(hash_of_module(m), hash);
    tn_module_drop(m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *t = file_case(suite, "resume");
    tcase_add_test(t, transformer_resumes_after_every_step);
    tcase_add_test(t, cnn_resumes_after_every_step);
    tcase_add_loop_test(t, leaving_out_a_part_shows, 0, TEST_ASAN ? 3 : COUNT(controls));
    tcase_add_loop_test(t, every_entry_is_missed, 0, 2);
    tcase_add_loop_test(t, parts_of_a_batch_go_on, 0, 2);
    tcase_add_test(t, what_waits_and_what_fits);
    t = file_case(suite, "parts");
    tcase_add_test(t, generators_of_ones_own);
    tcase_add_test(t, ties_and_versions);
    tcase_add_test(t, further_parts_go_on_too);
    tcase_add_test(t, parts_that_share_a_tensor);
    tcase_add_test(t, further_parts_are_checked);
    tcase_add_loop_test(t, nonfinite_parameters_are_refused, 0, COUNT(nonfinite));
    return suite;
}
