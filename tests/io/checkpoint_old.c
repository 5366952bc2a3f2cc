/*
 * checkpoint_old.c - checkpoints of earlier versions load, and what is saved of the same state is
 * the same file, byte for byte, but for roles, which those versions did not write.
 *
 * Truth: tests/golden/run.checkpoint, which commit 21c7011 wrote after train() below: every kind of
 * optimizer, schedule, generator and loader, a scaler, parameters, buffers and state versions. It
 * stays as it is; what later versions add gets a file of its own.
 *
 * Seen to fail: in src/optim/serializer.c, tni_staged_put() that does nothing (both tests); in
 * src/optim/state.c, show_param() without the step; in src/optim/scheduler.c, show() without bad;
 * in src/io/parts.c, save() without versions (the_file_comes_out_again).
 */
#include <stdio.h>
#include <stdlib.h>

#include "io/cases.h"

enum { OPTIMIZERS = 5, SCHEDULES = 13, PARTS = OPTIMIZERS + SCHEDULES + 2 };

typedef struct run {
    tn_module *model, *second;
    tn_optim *optimizer[OPTIMIZERS];
    tn_scheduler *schedule[SCHEDULES];
    tn_scaler *scaler;
    tn_generator *own;
    tn_loader *loader;
    tn_checkpoint_part part[PARTS];
    tn_checkpoint c;
} run;

static double factor(int64_t step, void *user)
{
    (void)user;
    return 1.0 / (double)(step + 1);
}

/* Small enough for a file of some KiB; seed decides every number that a file must bring back. */
static tn_module *network(uint64_t seed)
{
    tn_manual_seed(seed);
    return tn_sequential(tn_linear_new(2, 2, (tn_linear_options){ 0 }),
                         tn_batch_norm1d_new(2, (tn_batch_norm_options){ 0 }));
}

static void make_optimizers(run *r, double lr)
{
    tn_list *p = tn_parameters(r->model), *q = tn_parameters(r->second);
    r->optimizer[0] = tn_sgd(p, (tn_sgd_options){ .lr = lr, .momentum = 0.9, .nesterov = true });
    r->optimizer[1] = tn_adam(p, (tn_adam_options){ .lr = lr, .amsgrad = true });
    r->optimizer[2] = tn_adamw(p, (tn_adam_options){ .lr = lr, .weight_decay = 0.01 });
    r->optimizer[3] =
        tn_rmsprop(p, (tn_rmsprop_options){ .lr = lr, .momentum = 0.5, .centered = true });
    r->optimizer[4] = tn_adagrad(p, (tn_adagrad_options){ .lr = lr, .lr_decay = 0.1 });
    tn_list *renamed = tn_list_new();
    for (int i = 0; i < q->n; i++) {
        char name[80];
        snprintf(name, sizeof name, "second.%s", q->entry[i].name);
        assert_ok(tn_list_add(renamed, name, q->entry[i].tensor));
    }
    for (int i = 0; i < OPTIMIZERS; i++) owned(r->optimizer[i]);
    assert_ok(tn_optim_add_group(r->optimizer[1], renamed, (tn_group_options){ .lr = lr / 2 }));
}

/* An optimizer for one schedule: that of the file had ten, which is refused now. */
static tn_optim *scheduled(const run *r)
{
    double lr = tn_optim_lr(r->optimizer[2], 0);
    return tn_adamw(tn_parameters(r->model), (tn_adam_options){ .lr = lr, .weight_decay = 0.01 });
}

static void make_schedules(run *r)
{
    static const int64_t milestones[] = { 1, 4 };
    tn_optim *o[SCHEDULES];
    for (int i = 0; i < SCHEDULES; i++) o[i] = scheduled(r);
    tn_scheduler **s = r->schedule;
    s[0] = tn_step_lr(o[0], 2, 0.5);
    s[1] = tn_multistep_lr(o[1], milestones, 2, 0.5);
    s[2] = tn_exponential_lr(o[2], 0.9);
    s[3] = tn_cosine_lr(o[3], 10, 1e-4);
    s[4] = tn_cosine_restarts_lr(o[4], 2, 2, 1e-4);
    s[5] = tn_linear_lr(o[5], 0.5, 1, 5);
    s[6] = tn_constant_lr(o[6], 0.5, 5);
    s[7] = tn_polynomial_lr(o[7], 10, 2);
    s[8] = tn_lambda_lr(o[8], factor, NULL);
    s[9] = tn_warmup_cosine_lr(o[9], 4, 20, 1e-4);
    s[10] = tn_one_cycle_lr(r->optimizer[0],
                            (tn_one_cycle_options){ .max_lr = 0.1, .total_steps = 20 });
    s[11] =
        tn_plateau_lr(r->optimizer[3],
                      (tn_plateau_options){ .patience = 1, .cooldown = 3, .use_patience = true });
    tn_scheduler *stretch[] = { tn_constant_lr(o[12], 0.5, 3), tn_exponential_lr(o[12], 0.9) };
    s[12] = tn_sequential_lr(o[12], stretch, 2, (const int64_t[]){ 3 });
    for (int i = 0; i < SCHEDULES; i++) {
        tn_optim_free(o[i]); /* its schedule keeps it */
        owned(s[i]);
    }
}

/* A run of the same shape, with other numbers for another seed. */
static void run_new(run *r, uint64_t seed)
{
    *r = (run){ .model = owned(network(seed)), .second = owned(network(seed + 1)) };
    make_optimizers(r, seed == 1 ? 0.01 : 0.5);
    make_schedules(r);
    tn_tensor *rows = tn_arange(0, 7, 1, TN_F32);
    tn_loader_options o = { .batch_size = 2, .shuffle = true, .seed = seed };
    r->loader = owned(tn_loader_new(&rows, 1, o));
    r->scaler = owned(tn_scaler_new((tn_scaler_options){ .init_scale = seed == 1 ? 1024 : 16 }));
    r->own = owned(tn_generator_new(seed));
    static char name[OPTIMIZERS + SCHEDULES][16];
    int n = 0;
    for (int i = 1; i < OPTIMIZERS; i++, n++) {
        snprintf(name[n], sizeof name[n], "optim%d", i);
        r->part[n] = (tn_checkpoint_part){ .name = name[n], .optimizer = r->optimizer[i] };
    }
    for (int i = 0; i < SCHEDULES - 1; i++, n++) {
        snprintf(name[n], sizeof name[n], "sched%d", i);
        r->part[n] = (tn_checkpoint_part){ .name = name[n], .scheduler = r->schedule[i] };
    }
    r->part[n++] = (tn_checkpoint_part){ .name = "second", .module = r->second };
    r->part[n++] = (tn_checkpoint_part){ .name = "scaler", .scaler = r->scaler };
    static const char *key = "note", *value = "a \"run\"";
    r->c = (tn_checkpoint){ .model = r->model,
                            .optimizer = r->optimizer[0],
                            .scheduler = r->schedule[SCHEDULES - 1],
                            .loader = r->loader,
                            .generators = &r->own,
                            .n_generators = 1,
                            .parts = r->part,
                            .n_parts = n,
                            .step = (int64_t)seed,
                            .metadata = { 1, &key, &value } };
}

/* Three steps of everything. The third one's gradients of the scaler's optimizer are infinite. */
static void train(run *r)
{
    for (int step = 0; step < 3; step++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *batch, *x = tn_randn(TN_SHAPE(4, 2));
        ck_assert_int_eq(tn_loader_next(r->loader, &batch, 1), 1);
        tn_generator_u32(r->own);
        tn_tensor *loss = tn_add(tn_sum(tn_forward(r->model, x), NULL, 0, false),
                                 tn_sum(tn_forward(r->second, x), NULL, 0, false));
        assert_ok(tn_backward(tn_mul(loss, tn_scaler_scale(r->scaler, tn_ones(TN_SCALAR)))));
        for (int i = 0; i < OPTIMIZERS - 1; i++) assert_ok(tn_optim_step(r->optimizer[i]));
        if (step == 2) {
            tn_tensor *huge = tn_mul_scalar(tn_sum(tn_forward(r->model, x), NULL, 0, false), 1e38);
            assert_ok(tn_backward(tn_mul_scalar(huge, 1e38)));
        }
        assert_ok(tn_scaler_step(r->scaler, r->optimizer[4]));
        assert_ok(tn_scaler_update(r->scaler));
        for (int i = 0; i < SCHEDULES; i++)
            assert_ok(i == 11 ? tn_plateau_step(r->schedule[i], step == 0 ? 1 : 2)
                              : tn_scheduler_step(r->schedule[i]));
        for (int i = 0; i < OPTIMIZERS; i++) assert_ok(tn_optim_zero_grad(r->optimizer[i]));
        tn_scope_end(scope);
    }
}

/* A file's header without roles, which no writer of old files knew, then its data. */
static char *without_roles(char *bytes, size_t *n)
{
    static const char key[] = ",\"tenon.roles\":\"{";
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    char *header = bytes + 8, *data = header + length, *end = data;
    char *at = memmem(header, (size_t)(data - header), key, strlen(key));
    char *after = at ? (char *)memmem(at, (size_t)(data - at), "}\"", 2) + 2 : NULL;
    while (end[-1] == ' ') end--;
    if (at) end = (char *)memmove(at, after, (size_t)(end - after)) + (end - after);
    memmove(end, data, *n - (size_t)(data - bytes));
    *n -= (size_t)(data - end);
    return bytes;
}

/* The bytes of two files, with the writer's version, the checksum and roles left out of both. */
static char *bytes_of(const char *path, size_t *n)
{
    char *bytes = without_roles(read_bytes(path, n), n);
    static const char *const keys[] = { "\"tenon.crc32\":\"", "\"tenon.version\":\"" };
    for (int k = 0; k < 2; k++) {
        char *at = memmem(bytes, *n, keys[k], strlen(keys[k]));
        ck_assert_msg(at != NULL, "%s has no %s", path, keys[k]);
        for (at += strlen(keys[k]); *at != '"'; at++) *at = '?';
    }
    return bytes;
}

static void assert_same_file(const char *path, const char *other)
{
    size_t n, m;
    char *a = bytes_of(path, &n), *b = bytes_of(other, &m);
    ck_assert_uint_eq(n, m);
    for (size_t i = 8; i < n; i++) /* after the header's length, in which roles count */
        ck_assert_msg(a[i] == b[i], "%s differs at byte %zu: %.60s", path, i, a + i);
    free(a);
    free(b);
}

static void copy_through(const char *from, const char *to)
{
    run r;
    run_new(&r, 2);
    for (int metric = 1; metric <= 2; metric++) /* the file's plateau has no bad steps */
        assert_ok(tn_plateau_step(r.schedule[11], metric));
    assert_ok(tn_checkpoint_load(&r.c, from));
    ck_assert_int_eq(r.c.step, 1);
    assert_ok(tn_checkpoint_save(&r.c, to));
}

START_TEST(the_file_comes_out_again)
{
    copy_through(golden_path("run.checkpoint"), in_folder("again"));
    assert_same_file(in_folder("again"), golden_path("run.checkpoint"));
}
END_TEST

/* The same with a run of today's, whose state may have what the old file lacks. */
START_TEST(a_run_of_today)
{
    run r;
    run_new(&r, 1);
    train(&r);
    assert_ok(tn_checkpoint_save(&r.c, in_folder("trained")));
    copy_through(in_folder("trained"), in_folder("again"));
    assert_same_file(in_folder("again"), in_folder("trained"));
}
END_TEST

void checkpoint_old_cases(Suite *suite)
{
    TCase *t = file_case(suite, "earlier versions");
    tcase_add_test(t, the_file_comes_out_again);
    tcase_add_test(t, a_run_of_today);
}
