/*
 * test_cuda_loader.c - batches that a second stream brings to the GPU, and numbers that the host
 * reads later: the same bits as copies that are waited for, in steps that are called and captured;
 * the shim's streams run what has to wait as late as they may, so an order that is not kept shows.
 *
 * Seen to fail: in transfers.cu the first stream that does not wait where a batch is used (stale
 * batches) or forgotten, the second one that does not wait for the first (the shim: a copy before
 * its memory was taken), a block given out while its copy reads it, tni_cuda_collect() that does
 * not wait (the number before); in batches.c a batch that is not forgotten when it is closed.
 */
#include <unistd.h>

#include "../shim.h"
#include "files.h"
#include "models.h"

enum { ROWS = 41, BATCH = 6, WIDE = 7, CLASSES = 5 };

/* ---- data ------------------------------------------------------------------------------------ */

static tn_loader *loader_new(tn_device device, tn_loader_options o)
{
    int64_t class[ROWS];
    for (int i = 0; i < ROWS; i++) class[i] = (i * 7 + i * i) % CLASSES;
    tn_tensor *data[2] = { random_as(TN_SHAPE(ROWS, WIDE), -1, 1, 9, TN_F32),
                           tn_from_ints(class, TN_SHAPE(ROWS)) };
    o.batch_size = BATCH;
    o.seed = 5;
    o.device = device;
    tn_loader *l = tn_loader_new(data, 2, o);
    assert_made(l);
    return l;
}

/* Samples of any length, which a data set of one's own makes. */
static tn_status get(const tn_dataset *d, tn_sample *s)
{
    float *x = s->to[0];
    if (d->user && s->index == 17) {
        tn_fail(TN_E_IO, "a bad disk");
        return TN_E_IO;
    }
    s->size[0] = 1 + s->index % WIDE;
    for (int64_t i = 0; i < s->size[0]; i++) x[i] = (float)(s->index * 10 + i);
    *(int64_t *)s->to[1] = s->index;
    return TN_OK;
}
static const tn_field fields[] = { { "x", TN_F32, { 1, { WIDE } }, true },
                                   { "y", TN_I64, { 0 }, false } };

/* Work in the first stream that is under way when a batch is used. */
static tn_tensor *busy(void)
{
    tn_tensor *t = tn_full_as(TN_SHAPE(64), 1, TN_F32, tn_cuda(0));
    for (int i = 0; i < 5; i++) t = tn_add_scalar(t, 1);
    assert_made(t);
    return t;
}

/* The bits of n batches, epochs' ends among them; used: what a step would do with them. */
static uint64_t bits_of(tn_loader *l, int n, int fields_of_batch)
{
    uint64_t hash = 1;
    for (int i = 0; i < n; i++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *batch[3];
        busy();
        int got = tn_loader_next(l, batch, fields_of_batch);
        ck_assert_msg(got >= 0, "%s", tn_error());
        hash = hash * 31 + (uint64_t)got;
        for (int k = 0; k < fields_of_batch && got; k++) {
            tn_tensor *used = tn_add_scalar(tn_to(batch[k], tn_cuda(0)), 1);
            hash = hash * 31 + tn_hash(used);
        }
        tn_scope_end(scope);
    }
    return hash;
}

/* ---- the same batches ------------------------------------------------------------------------ */

START_TEST(same_batches)
{
    static const tn_loader_options options[] = { { 0 },
                                                 { .shuffle = true },
                                                 { .shuffle = true, .drop_last = true },
                                                 { .workers = 3, .ahead = 4, .shuffle = true },
                                                 { .workers = 1, .ahead = 1 },
                                                 { .parts = 2, .part = 1 } };
    tn_loader *cpu = loader_new(tn_cpu(), options[_i]);
    tn_loader *gpu = loader_new(tn_cuda(0), options[_i]);
    ck_assert(bits_of(gpu, 20, 2) == bits_of(cpu, 20, 2));
    /* another place, seed and size */
    assert_ok(tn_loader_seek(cpu, 3, 2));
    assert_ok(tn_loader_seek(gpu, 3, 2));
    ck_assert(bits_of(gpu, 4, 2) == bits_of(cpu, 4, 2));
    assert_ok(tn_loader_seek(cpu, 4, 0));
    assert_ok(tn_loader_seek(gpu, 4, 0));
    assert_ok(tn_loader_set_batch_size(cpu, 4));
    assert_ok(tn_loader_set_batch_size(gpu, 4));
    ck_assert(bits_of(gpu, 20, 2) == bits_of(cpu, 20, 2));
    tn_scope scope = tn_scope_begin();
    tn_tensor *batch[2];
    ck_assert_int_eq(tn_loader_next(gpu, batch, 2), 1);
    ck_assert_int_eq(tn_device_of(batch[0]).type, TN_CUDA);
    uint64_t bits = tn_hash(batch[0]);
    tn_tensor *next[2];
    ck_assert(tn_loader_next(gpu, next, 2) >= 0);
    tn_loader_free(gpu); /* what was handed out stays */
    busy();
    ck_assert(tn_hash(batch[0]) == bits);
    tn_scope_end(scope);
    tn_loader_free(cpu);
}
END_TEST

START_TEST(of_ones_own)
{
    const tn_dataset d = { .length = ROWS, .fields = fields, .n_fields = 2, .get = get };
    tn_loader_options o = { .batch_size = BATCH, .shuffle = true, .pad = -1 };
    tn_loader *cpu = tn_loader_from(&d, o);
    o.device = tn_cuda(0);
    tn_loader *gpu = tn_loader_from(&d, o);
    assert_made(gpu);
    ck_assert(bits_of(gpu, 20, 3) == bits_of(cpu, 20, 3));
    tn_loader_free(cpu);
    tn_loader_free(gpu);
}
END_TEST

/* A failure of get comes when its batch is due, not before, and the next call tries again. */
START_TEST(a_failure_when_it_is_due)
{
    bool fails = true;
    const tn_dataset d = {
        .length = ROWS, .fields = fields, .n_fields = 2, .get = get, .user = &fails
    };
    tn_loader *l =
        tn_loader_from(&d, (tn_loader_options){ .batch_size = BATCH, .device = tn_cuda(0) });
    bits_of(l, 2, 3);
    tn_tensor *batch[3];
    for (int again = 0; again < 2; again++) {
        ck_assert_int_eq(tn_loader_next(l, batch, 3), -1);
        assert_error(TN_E_IO, "sample 17: a bad disk");
    }
    assert_ok(tn_loader_seek(l, 0, 3));
    bits_of(l, 3, 3);
    tn_loader_free(l);
}
END_TEST

/* ---- checkpoints: another seed at the same place --------------------------------------------- */

START_TEST(another_seed)
{
    const char *path = in_folder("checkpoint");
    tn_loader *cpu = loader_new(tn_cpu(), (tn_loader_options){ .shuffle = true });
    tn_loader *gpu = loader_new(tn_cuda(0), (tn_loader_options){ .shuffle = true });
    bits_of(cpu, 3, 2);
    bits_of(gpu, 3, 2);
    tn_loader *seeded = NULL;
    {
        tn_tensor *data[2] = { random_as(TN_SHAPE(ROWS, WIDE), -1, 1, 9, TN_F32),
                               tn_full_as(TN_SHAPE(ROWS), 0, TN_I64, tn_cpu()) };
        seeded = tn_loader_new(
            data, 2, (tn_loader_options){ .batch_size = BATCH, .shuffle = true, .seed = 8 });
    }
    bits_of(seeded, 3, 2);
    assert_ok(tn_checkpoint_save(&(tn_checkpoint){ .loader = seeded }, path));
    assert_ok(tn_checkpoint_load(&(tn_checkpoint){ .loader = cpu }, path));
    assert_ok(tn_checkpoint_load(&(tn_checkpoint){ .loader = gpu }, path));
    ck_assert(bits_of(gpu, 4, 2) == bits_of(cpu, 4, 2));
    tn_loader_free(seeded);
    tn_loader_free(cpu);
    tn_loader_free(gpu);
}
END_TEST

/* ---- in training ----------------------------------------------------------------------------- */

typedef struct job {
    tn_module *model;
    tn_optim *opt;
    bool takes; /* a batch in the step */
    tn_loader *loader;
} job;

static job job_new(void)
{
    job j = { 0 };
    tn_manual_seed(3);
    j.model = tn_sequential(tn_linear_new(WIDE, 16, (tn_linear_options){ 0 }), tn_dropout_new(0.2),
                            tn_tanh_new(), tn_linear_new(16, CLASSES, (tn_linear_options){ 0 }));
    assert_ok(tn_module_to(j.model, tn_cuda(0)));
    j.opt = tn_adamw(tn_parameters(j.model), (tn_adamw_options){ .lr = 0.01 });
    assert_made(j.opt);
    return j;
}

static void job_free(job *j)
{
    tn_optim_free(j->opt);
    tn_module_drop(j->model);
}

static tn_tensor *step(int n, tn_tensor *const *in, void *user)
{
    job *j = user;
    tn_tensor *batch[2];
    (void)n;
    if (j->takes && tn_loader_next(j->loader, batch, 2) < 0) return NULL;
    tn_tensor *loss = tn_cross_entropy(tn_forward(j->model, in[0]), in[1]);
    bool done = tn_optim_zero_grad(j->opt) == TN_OK && tn_backward(loss) == TN_OK &&
                tn_optim_step(j->opt) == TN_OK;
    return done ? loss : NULL;
}

/* Losses and final bits. late: each is read while the next step runs. */
static uint64_t train(bool sent, bool captured, bool late, double *loss)
{
    enum { STEPS = 24 };
    job j = job_new();
    tn_loader *l = loader_new(sent ? tn_cuda(0) : tn_cpu(),
                              (tn_loader_options){ .shuffle = true, .drop_last = true });
    tn_capture *c = captured ? tn_capture_new(step, &j, tn_cuda(0)) : NULL;
    tn_later *before = NULL;
    int n = 0;
    while (n < STEPS) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *in[2];
        int got = tn_loader_next(l, in, 2);
        ck_assert(got >= 0);
        if (got) {
            for (int k = 0; k < 2 && !captured; k++) in[k] = tn_to(in[k], tn_cuda(0));
            tn_tensor *y = captured ? tn_capture_run(c, 2, in) : step(2, in, &j);
            assert_made(y);
            tn_later *now = late ? tn_later_new(y) : NULL;
            if (late && n > 0) loss[n - 1] = tn_later_take(before);
            if (!late) loss[n] = tn_item(y);
            before = now;
            n++;
        }
        tn_scope_end(scope);
    }
    if (late) loss[n - 1] = tn_later_take(before);
    uint64_t bits = state_hash(j.model);
    tn_capture_free(c);
    tn_loader_free(l);
    job_free(&j);
    return bits;
}

START_TEST(training)
{
    double want[24], got[24];
    uint64_t bits = train(false, false, false, want);
    ck_assert(train(_i & 1, _i & 2, _i & 4, got) == bits);
    for (int i = 0; i < 24; i++)
        ck_assert_msg(got[i] == want[i], "step %d: %.9g, not %.9g", i, got[i], want[i]);
}
END_TEST

START_TEST(not_in_a_captured_step)
{
    job j = job_new();
    j.loader = loader_new(_i ? tn_cuda(0) : tn_cpu(), (tn_loader_options){ 0 });
    j.takes = true;
    tn_capture *c = tn_capture_new(step, &j, tn_cuda(0));
    tn_tensor *in[2] = { random_as(TN_SHAPE(4, WIDE), -1, 1, 1, TN_F32),
                         tn_full_as(TN_SHAPE(4), 0, TN_I64, tn_cpu()) };
    assert_made(tn_capture_run(c, 2, in));
    assert_null(tn_capture_run(c, 2, in), TN_E_STATE, "tn_loader_next: takes a batch");
    tn_capture_free(c);
    tn_loader_free(j.loader);
    job_free(&j);
}
END_TEST

/* ---- numbers that are read later ------------------------------------------------------------- */

START_TEST(numbers_later)
{
    tn_device device = _i ? tn_cuda(0) : tn_cpu();
    ck_assert(isnan(tn_later_take(NULL)));
    assert_ok(tn_error_status());
    enum { N = 70 }; /* more than blocks are kept for */
    tn_later *on_the_way[N];
    tn_tensor *t = tn_full_as(TN_SHAPE(1), 0.5, TN_BF16, device);
    bool controls = _i && shim();
    long long waits = controls ? host.waits() : 0;
    for (int i = 0; i < N; i++) {
        on_the_way[i] = tn_later_new(t);
        assert_made(on_the_way[i]);
        assert_ok(tn_add_scalar_(t, 1)); /* what it was counts */
    }
    if (controls) ck_assert_int_eq(host.waits(), waits);
    for (int i = 0; i < N; i++) ck_assert_double_eq(tn_later_take(on_the_way[i]), i + 0.5);
    /* the same block again, at once */
    for (int i = 0; i < 5; i++) {
        tn_tensor *x = tn_full_as(TN_SCALAR, i, TN_F64, device);
        ck_assert_double_eq(tn_later_take(tn_later_new(x)), i);
    }
    assert_null(tn_later_new(tn_full_as(TN_SHAPE(2), 0, TN_F32, device)), TN_E_SHAPE,
                "tn_later_new: [2]: want one element");
    assert_null(tn_later_new(NULL), TN_E_INVALID, "t is NULL");
}
END_TEST

/* A bad index of the work before it is told with the number, as tn_item does. */
START_TEST(a_bad_index_later)
{
    tn_tensor *table = tn_full_as(TN_SHAPE(3, 1), 1, TN_F32, tn_cuda(0));
    tn_tensor *id = tn_to(tn_from_ints((int64_t[]){ 7 }, TN_SHAPE(1)), tn_cuda(0));
    tn_later *fine = tn_later_new(tn_full_as(TN_SCALAR, 2, TN_F32, tn_cuda(0)));
    tn_later *bad = tn_later_new(tn_index_select(table, 0, id));
    ck_assert_double_eq(tn_later_take(fine), 2);
    assert_ok(tn_error_status());
    ck_assert(isnan(tn_later_take(bad)));
    assert_error(TN_E_INDEX, "index 7 at position 0: want 0..2");
    tn_later *after = tn_later_new(tn_full_as(TN_SCALAR, 3, TN_F32, tn_cuda(0)));
    ck_assert_double_eq(tn_later_take(after), 3);
    assert_ok(tn_error_status());
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* Loaders of more sizes than blocks are kept; all device memory comes back. */
START_TEST(many_sizes)
{
    int64_t before = tn_cuda_memory().in_use;
    for (int i = 1; i <= 80; i++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *x = random_as(TN_SHAPE(3, 1024 * i), -1, 1, (uint64_t)i, TN_F32), *batch;
        tn_loader *l = tn_loader_new(&x, 1, (tn_loader_options){ .device = tn_cuda(0) });
        assert_made(l);
        ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
        assert_close(tn_to(batch, tn_cpu()), tn_narrow(x, 0, 0, 1), 0, 0);
        tn_loader_free(l); /* the second one is on its way */
        tn_scope_end(scope);
    }
    ck_assert_int_eq(tn_cuda_memory().in_use, before);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

/* Every call of a batch and of a late number fails once: it says so, or does without; then all goes
 * on with the same bits. */
START_TEST(every_call_may_fail)
{
    if (!shim_for(__func__)) return;
    int failed = 0;
    for (long long k = 1;; k++) {
        tn_scope scope = tn_scope_begin();
        tn_loader *l = loader_new(tn_cuda(0), (tn_loader_options){ .workers = 1 });
        tn_loader *cpu = loader_new(tn_cpu(), (tn_loader_options){ 0 });
        tn_tensor *x[2], *want[2];
        for (int i = 0; i < 2; i++) ck_assert_int_eq(tn_loader_next(cpu, want, 2), 1);
        ck_assert_int_eq(tn_loader_next(l, x, 2), 1);
        busy();
        long long calls = host.calls();
        host.fail_call(k);
        int got = tn_loader_next(l, x, 2);
        bool told = got != 1;
        double first = NAN;
        if (got == 1) {
            tn_later *later = tn_later_new(tn_select(tn_select(x[0], 0, 0), 0, 0));
            told = told || !later;
            first = later ? tn_later_take(later) : NAN;
            told = told || isnan(first);
        }
        bool reached = host.calls() - calls >= k;
        host.fail_call(0);
        if (told) {
            failed++;
            ck_assert_msg(strstr(tn_error(), "cuda"), "call %lld: %s", k, tn_error());
        } else {
            ck_assert_double_eq(first, tn_at(want[0], TN_INDEX(0, 0)));
        }
        tn_error_clear();
        if (got != 1) ck_assert_int_eq(tn_loader_next(l, x, 2), 1);
        assert_close(tn_to(x[0], tn_cpu()), want[0], 0, 0);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(tn_loader_next(cpu, want, 2), 1);
            ck_assert_int_eq(tn_loader_next(l, x, 2), 1);
            assert_close(tn_to(x[0], tn_cpu()), want[0], 0, 0);
        }
        tn_loader_free(l);
        tn_loader_free(cpu);
        tn_scope_end(scope);
        if (!reached) break;
    }
    ck_assert_msg(failed > 0, "no call failed");
}
END_TEST

/* With as many blocks as are kept, one of another size is waited for, freed and made anew. Which
 * call is the k-th depends on how far the other thread is, so on a busy machine one round may miss
 * one: each k has its turn four times. */
START_TEST(the_pool_may_fail)
{
    if (!shim_for(__func__)) return;
    enum { FULL = 40 };
    tn_later *later[FULL];
    for (int i = 0; i < FULL; i++)
        later[i] = tn_later_new(tn_full_as(TN_SCALAR, i, TN_F32, tn_cuda(0)));
    for (int i = 0; i < FULL; i++) ck_assert_double_eq(tn_later_take(later[i]), i);
    for (long long k = 1; k < 117; k++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *x = random_as(TN_SHAPE(5, 1024 * (k + 90)), -1, 1, 4, TN_F32), *batch;
        tn_loader_options o = { .batch_size = 2, .device = tn_cuda(0), .ahead = 3 };
        tn_loader *l = tn_loader_new(&x, 1, o);
        ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
        usleep(10000); /* the others are made; the last one is of another size */
        host.fail_call(1 + k % 29);
        int got = tn_loader_next(l, &batch, 1);
        host.fail_call(0);
        tn_error_clear();
        if (got != 1) ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
        assert_close(tn_to(batch, tn_cpu()), tn_narrow(x, 0, 2, 2), 0, 0);
        ck_assert_int_eq(tn_loader_next(l, &batch, 1), 1);
        assert_close(tn_to(batch, tn_cpu()), tn_narrow(x, 0, 4, 1), 0, 0);
        tn_loader_free(l);
        tn_scope_end(scope);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_loader");
    TCase *t = test_case(suite, "batches");
    tcase_add_loop_test(t, same_batches, 0, 6);
    add_tests(t, of_ones_own, a_failure_when_it_is_due);
    tcase_add_test(file_case(suite, "checkpoints"), another_seed);
    t = test_case(suite, "training");
    tcase_add_loop_test(t, training, 0, 8);
    tcase_add_loop_test(t, not_in_a_captured_step, 0, 2);
    t = test_case(suite, "later");
    tcase_add_loop_test(t, numbers_later, 0, 2);
    tcase_add_test(t, a_bad_index_later);
    t = test_case(suite, "memory");
    tcase_add_test(t, many_sizes);
    t = test_case(suite, "failures");
    add_tests(t, every_call_may_fail, the_pool_may_fail);
    return suite;
}
