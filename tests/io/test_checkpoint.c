/*
 * test_checkpoint.c - a run that stopped and resumed equals an uninterrupted one, bit for bit;
 * every part of a checkpoint is needed for that; weights that became NaN do not replace good ones.
 *
 * Truth: runs that were never interrupted: of the examples' own two models, and of a small one.
 *
 * Parts of a checkpoint: checkpoint_parts.c; numbered ones: checkpoint_folder.c; files of earlier
 * versions: checkpoint_old.c.
 *
 * Seen to fail, in src/io/checkpoint.c: commit() without tni_loader_set (the cnn after every step),
 * or setting the default generator only (the transformer after every step); check_module() that
 * finds nothing (all of nonfinite_parameters_are_refused).
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../examples/batchnorm/net.h"
#include "../../examples/transformer/model.h"
#include "io/cases.h"
#include "io/choice.h"
#include "nn/module.h"
#include "scarce.h"

/* ---- two runs -------------------------------------------------------------------------------- */

enum { STEPS = 64, LAST_STOP = 60 };

typedef enum kind { TRANSFORMER, CNN, SMALL } kind;

/* The transformer: AdamW, warm-up and cosine, batches from a generator of its own, dropout from the
 * default one. The network with BatchNorm: SGD with momentum, one cycle, batches from a loader, 15
 * an epoch. The small one: BatchNorm, dropout, AdamW and a loader, 6 batches an epoch. */
typedef struct run {
    tn_module *model;
    tn_optim *optimizer;
    tn_scheduler *schedule;
    tn_loader *loader; /* NULL: the transformer */
    tn_generator *own; /* NULL: the others */
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
    run r = { .model = net_new(128, 74, 0) };
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

static run small_run(uint64_t seed)
{
    tn_manual_seed(seed);
    run r = { .model = tn_sequential(tn_linear_new(6, 8, (tn_linear_options){ 0 }),
                                     tn_batch_norm1d_new(8, (tn_batch_norm_options){ 0 }),
                                     tn_relu_new(), tn_dropout_new(0.3),
                                     tn_linear_new(8, 3, (tn_linear_options){ 0 })) };
    tn_tensor *data[2] = { random_as(TN_SHAPE(22, 6), -1, 1, 3, TN_F32),
                           tn_to_dtype(random_f64(TN_SHAPE(22), 0, 3, 4), TN_I64) };
    assert_made(r.model);
    r.optimizer =
        tn_adamw(tn_parameters(r.model), (tn_adamw_options){ .lr = 0.02, .weight_decay = 0.1 });
    r.schedule = tn_warmup_cosine_lr(r.optimizer, 3, 14, 1e-4);
    r.loader = tn_loader_new(
        data, 2,
        (tn_loader_options){
            .batch_size = 4, .shuffle = true, .seed = seed, .prefetch = seed > 1 && seed % 2 });
    assert_made(r.loader);
    return r;
}

static run run_new(kind which, uint64_t seed)
{
    return which == CNN ? cnn_run(seed) : which == SMALL ? small_run(seed) : transformer_run(seed);
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
        tn_clip_grad_norm(tn_parameters(r->model), 1, 2, true);
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

static tn_checkpoint checkpoint_of(const run *r)
{
    return (tn_checkpoint){ .model = r->model,
                            .optimizer = r->optimizer,
                            .scheduler = r->schedule,
                            .loader = r->loader,
                            .generators = r->own ? (tn_generator **)&r->own : NULL,
                            .n_generators = r->own != NULL,
                            .step = r->step };
}

static const char *numbered(int64_t step)
{
    char name[32];
    snprintf(name, sizeof name, "at %d", (int)step);
    return in_folder(name);
}

/* ---- every stop ------------------------------------------------------------------------------ */

/* A checkpoint at each step, the first before any; each is loaded into a run of another seed,
 * either new or one step old, which then continues to the end. */
START_TEST(a_run_resumes_after_every_step)
{
    static const struct {
        kind which;
        int last_stop, end;
    } rows[] = { { TRANSFORMER, LAST_STOP, STEPS }, { CNN, LAST_STOP, STEPS }, { SMALL, 13, 14 } };
    const kind which = rows[_i].which;
    const int64_t last = rows[_i].last_stop, end = rows[_i].end;
    run whole = run_new(which, 1);
    uint64_t stopped[LAST_STOP + 1];
    const char *key = "layers", *value = "2";
    for (int64_t s = 0; s <= last; s++) {
        train(&whole, s);
        tn_checkpoint c = checkpoint_of(&whole);
        c.metadata = (tn_metadata){ 1, &key, &value };
        assert_ok(tn_checkpoint_save(&c, numbered(s)));
        stopped[s] = hash_of_run(&whole);
    }
    train(&whole, end);
    uint64_t wanted = hash_of_run(&whole);
    run_free(&whole);
    for (int64_t s = 0; s <= last; s += (TEST_ASAN || TEST_TSAN) && which != SMALL ? 7 : 1) {
        tn_scope scope = tn_scope_begin();
        run r = run_new(which, 100 + (uint64_t)s);
        if (s % 3 == 0) train(&r, 1);
        tn_checkpoint c = checkpoint_of(&r);
        assert_ok(tn_checkpoint_load(&c, numbered(s)));
        r.step = c.step;
        ck_assert_int_eq(r.step, s);
        ck_assert_int_eq(c.metadata.n, 1);
        ck_assert_str_eq(tn_metadata_get(&c.metadata, "layers"), "2");
        ck_assert_msg(hash_of_run(&r) == stopped[s], "stop after %d: loaded state differs", (int)s);
        train(&r, end);
        ck_assert_msg(hash_of_run(&r) == wanted, "stop after %d: the last state differs", (int)s);
        run_free(&r);
        tn_metadata metadata;
        int64_t step;
        assert_ok(tn_checkpoint_peek(numbered(s), &metadata, &step));
        ck_assert_int_eq(step, s);
        ck_assert_str_eq(tn_metadata_get(&metadata, "layers"), "2");
        tn_scope_end(scope);
    }
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
    kind which;
    part left_out;
} controls[] = {
    { "transformer, nothing", TRANSFORMER, NOTHING },
    { "cnn, nothing", CNN, NOTHING },
    { "cnn, model buffers", CNN, BUFFERS },
    { "transformer, moments", TRANSFORMER, MOMENTS },
    { "cnn, moments", CNN, MOMENTS },
    { "transformer, optimizer step", TRANSFORMER, OPTIMIZER_STEP },
    { "transformer, scheduler", TRANSFORMER, SCHEDULER },
    { "cnn, scheduler", CNN, SCHEDULER },
    { "transformer, default generator", TRANSFORMER, DEFAULT_GENERATOR },
    { "transformer, own generator", TRANSFORMER, OWN_GENERATOR },
    { "cnn, loader position", CNN, POSITION },
    { "cnn, epoch", CNN, EPOCH },
};

/* Only the models are compared: leaving out any part must change what was learned. */
START_TEST(leaving_out_a_part_shows)
{
    kind which = controls[_i].which;
    run r = run_new(which, 1);
    train(&r, 20);
    if (which == CNN)
        ck_assert(tn_loader_epoch(r.loader) == 1 && tn_loader_position(r.loader) == 5);
    tn_checkpoint c = checkpoint_of(&r);
    assert_ok(tn_checkpoint_save(&c, in_folder("all")));
    train(&r, STEPS);
    uint64_t wanted = hash_of_module(r.model);
    run_free(&r);
    r = run_new(which, 1);
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
    tni_safetensors file;
    assert_ok(tni_safetensors_open(&file, "test", from));
    tn_list *list = tni_safetensors_list(&file, NULL), *rest = tn_list_new();
    assert_ok(tni_unread_fill(list, NULL, true));
    for (int i = 0; i < list->n; i++)
        if (i != k) assert_ok(tn_list_add(rest, list->entry[i].name, list->entry[i].tensor));
    for (int i = -1, v; (v = tni_list_next_version(list, &i)) != 0;)
        assert_ok(tn_list_set_version(rest, tni_list_path(list, i), v));
    tni_safetensors_close(&file);
    assert_ok(tni_safetensors_write("test", to, rest, (tni_writing){ .checkpoint = true }));
    return k < list->n;
}

/* A tensor beside those of a checkpoint, with a second name. A part's own name is no tensor's. */
START_TEST(names_beside_the_parts)
{
    static const char *const names[][2] = {
        { "model", "model" },    { ".grad", ".grad.x" }, /* the first three fit */
        { ".grad.", ".grad.x" }, { "model", "model.x" },
        { "model.", "model.x" }, { "model.", "model" },
    };
    run r = run_new((kind)0, 1);
    tn_checkpoint c = checkpoint_of(&r);
    assert_ok(tn_checkpoint_save(&c, in_folder("all")));
    uint64_t hash = hash_of_run(&r);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tni_safetensors file;
        assert_ok(tni_safetensors_open(&file, "test", in_folder("all")));
        tn_list *list = tni_safetensors_list(&file, NULL);
        assert_ok(tni_unread_fill(list, NULL, true));
        tni_safetensors_close(&file);
        tn_tensor *t = tn_ones(TN_SHAPE(2));
        for (int k = 0; k < 2; k++) assert_ok(tn_list_set(list, names[i][k], t));
        assert_ok(tni_safetensors_write("test", in_folder("more"), list,
                                        (tni_writing){ .checkpoint = true }));
        c = checkpoint_of(&r);
        tn_status status = tn_checkpoint_load(&c, in_folder("more"));
        ck_assert_msg((status == TN_OK) == (i < 3), "%s: %s", names[i][0], tn_error());
        tn_error_clear();
        ck_assert_uint_eq(hash_of_run(&r), hash);
    }
    run_free(&r);
}
END_TEST

/* A file without any one of its tensors is refused, and nothing has changed. */
START_TEST(every_entry_is_missed)
{
    run r = run_new((kind)_i, 1);
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

/* ---- all or nothing -------------------------------------------------------------------------- */

START_TEST(checkpoint_is_all_or_nothing)
{
    run a = run_new(SMALL, 1);
    train(&a, 3);
    const char *path = in_folder("checkpoint");
    tn_checkpoint c = checkpoint_of(&a);
    assert_ok(tn_checkpoint_save(&c, path));
    run b = run_new(SMALL, 2);
    train(&b, 1);
    uint64_t hash = hash_of_run(&b);
    /* each part in turn does not fit */
    c = checkpoint_of(&b);
    c.optimizer = tn_sgd(tn_parameters(b.model), (tn_sgd_options){ 0 });
    assert_fails(tn_checkpoint_load(&c, path), TN_E_NAME, "missing sgd.steps");
    tn_optim_free(c.optimizer);
    c = checkpoint_of(&b);
    tn_optim *another = tn_sgd(tn_parameters(b.model), (tn_sgd_options){ 0 });
    c.scheduler = tn_exponential_lr(another, 1);
    assert_fails(tn_checkpoint_load(&c, path), TN_E_NAME, "missing exponential_lr.step");
    tn_scheduler_free(c.scheduler);
    tn_optim_free(another);
    c = checkpoint_of(&b);
    tn_tensor *rows = tn_ones(TN_SHAPE(9));
    c.loader = tn_loader_new(&rows, 1, (tn_loader_options){ .batch_size = 4 });
    assert_fails(tn_checkpoint_load(&c, path), TN_E_INVALID, "22 rows in batches of 4");
    tn_loader_free(c.loader);
    c = checkpoint_of(&b);
    unsigned char random[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), random); /* making a model draws from it */
    c.model = tn_sequential(tn_linear_new(6, 8, (tn_linear_options){ 0 }));
    assert_ok(tn_generator_set_state(tn_default_generator(), random));
    uint64_t other = hash_of_module(c.model);
    ck_assert_int_ne(tn_checkpoint_load(&c, path), TN_OK);
    ck_assert_msg(strstr(tn_error(), "tn_checkpoint_load: ") == tn_error() &&
                      strstr(tn_error(), path),
                  "%s", tn_error());
    tn_error_clear();
    ck_assert_uint_eq(hash_of_module(c.model), other);
    tn_module_drop(c.model);
    ck_assert_uint_eq(hash_of_run(&b), hash); /* generator included: nothing moved it either */
    ck_assert_int_eq(c.step, 1);
    /* a part that is not in the file; a part of the file that was not asked for */
    c = (tn_checkpoint){ .model = a.model };
    assert_ok(tn_checkpoint_save(&c, in_folder("model only")));
    c = checkpoint_of(&b);
    assert_fails(tn_checkpoint_load(&c, in_folder("model only")), TN_E_NAME,
                 "loader.epoch is missing");
    c.loader = NULL;
    assert_fails(tn_checkpoint_load(&c, in_folder("model only")), TN_E_NAME,
                 "nothing of optim.* is in it");
    c = (tn_checkpoint){ .model = b.model };
    assert_ok(tn_checkpoint_load(&c, path));
    ck_assert_uint_eq(hash_of_module(a.model), hash_of_module(b.model));
    run_free(&a);
    run_free(&b);
}
END_TEST

START_TEST(checkpoints_and_other_files)
{
    run a = run_new(SMALL, 1);
    tn_checkpoint c = checkpoint_of(&a);
    assert_ok(tn_save(a.model, in_folder("weights")));
    assert_fails(tn_checkpoint_load(&c, in_folder("weights")), TN_E_FORMAT,
                 "not a checkpoint (for a file of weights: tn_load)");
    assert_fails(tn_checkpoint_peek(in_folder("weights"), NULL, NULL), TN_E_FORMAT,
                 "not a checkpoint");
    const char *key = "tenon.mine";
    c.metadata = (tn_metadata){ 1, &key, &key };
    assert_fails(tn_checkpoint_save(&c, in_folder("c")), TN_E_NAME,
                 "metadata key tenon.mine is the library's own");
    run_free(&a);
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
    tn_module *m = owned(tn_sequential(tn_linear_new(3, 4, (tn_linear_options){ 0 }),
                                       tn_linear_new(4, 2, (tn_linear_options){ 0 })));
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
}
END_TEST

/* ---- out of memory --------------------------------------------------------------------------- */

static tn_status done(const void *made)
{
    return made ? TN_OK : tn_error_status();
}

static int scenario_now;
static uint64_t run_before;

/* Everything that reads, writes or makes something here; each leaves nothing behind when it
 * fails. */
static tn_status scenario(void *user)
{
    run *r = user;
    tn_checkpoint c = checkpoint_of(r);
    tn_text *text;
    tn_loader *loader;
    tn_tensor *rows = tn_get_parameter(r->model, "0.weight");
    tn_tensor *batch[2];
    tn_file_lock *lock;
    tn_status status;
    switch (scenario_now) {
    case 0: return tn_save(r->model, in_folder("weights"));
    case 1: return tn_load(r->model, in_folder("weights"));
    case 2: return tn_checkpoint_save(&c, in_folder("checkpoint"));
    case 3: return tn_checkpoint_load(&c, in_folder("checkpoint"));
    case 4: return done(tn_idx_load(in_folder("idx.gz")));
    case 5:
        text = tn_text_load(in_folder("text"), 0.1);
        tn_text_free(text);
        return done(text);
    case 6:
        loader = tn_loader_new(&rows, 1, (tn_loader_options){ .shuffle = true, .prefetch = true });
        tn_loader_free(loader);
        return done(loader);
    case 7:
        status = tn_checkpoint_lock(in_folder("checkpoint"), &lock);
        if (status == TN_OK) tn_checkpoint_unlock(lock);
        return status;
    case 8: return tn_optim_load_state_dict(r->optimizer, tn_optim_state_dict(r->optimizer));
    case 9: return tn_scheduler_load_state_dict(r->schedule, tn_scheduler_state_dict(r->schedule));
    case 10: return tn_loader_next(r->loader, batch, 2) == 1 ? TN_OK : tn_error_status();
    default: return TN_OK;
    }
}

static void nothing_has_changed(void *user)
{
    ck_assert_uint_eq(hash_of_run(user), run_before);
    ck_assert_int_le(files_in_folder(), 4); /* no temporary stays */
}

START_TEST(every_allocation_may_fail)
{
    tn_memory_trim();
    scarce_install();
    run r = run_new(SMALL, 1);
    train(&r, 2);
    const tn_list *waiting = tn_parameters(r.model); /* saved and loaded too */
    for (int i = 0; i < waiting->n; i++)
        assert_ok(tn_set_grad(waiting->entry[i].tensor, tn_ones_like(waiting->entry[i].tensor)));
    write_bytes("idx.gz", "\0\0\x0d\1\0\0\0\1\xbf\xc0\0\0", 12);
    write_bytes("text", "some text", 9);
    for (scenario_now = 0; scenario_now <= 2; scenario_now += 2) assert_ok(scenario(&r));
    run_before = hash_of_run(&r);
    scenario_now = _i;
    scarce.sticky = true;
    ck_assert_int_gt(scarce_sweep(scenario, nothing_has_changed, &r), 0);
    run_free(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("checkpoint");
    TCase *t = file_case(suite, "resume");
    tcase_add_loop_test(t, a_run_resumes_after_every_step, 0, 3);
    tcase_add_loop_test(t, leaving_out_a_part_shows, 0,
                        TEST_ASAN || TEST_TSAN ? 3 : COUNT(controls));
    tcase_add_test(t, names_beside_the_parts);
    tcase_add_loop_test(t, every_entry_is_missed, 0, 3);
    tcase_add_test(t, checkpoint_is_all_or_nothing);
    tcase_add_test(t, checkpoints_and_other_files);
    tcase_add_loop_test(t, nonfinite_parameters_are_refused, 0, COUNT(nonfinite));
    tcase_add_loop_test(t, every_allocation_may_fail, 0, 11);
    checkpoint_parts_cases(suite);
    checkpoint_folder_cases(suite);
    checkpoint_old_cases(suite);
    return suite;
}
