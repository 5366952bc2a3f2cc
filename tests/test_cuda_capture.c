/*
 * test_cuda_capture.c - captured steps over the CUDA device: 50 runs with schedules and dropout equal 50
 * eager steps bit for bit; what a capture refuses, and that it then has changed nothing; every call of the
 * runtime failing; memory.
 */
#include <pthread.h>

#include "cuda_shim.h"
#include "models.h"

/* ---- a training job, run both ways ------------------------------------------------------------- */

typedef enum kind { MLP, TRANSFORMER, CNN } kind;

typedef struct job {
    kind kind;
    tn_module *model;
    tn_optim *opt, *second; /* second: of the first layer alone, or NULL */
    tn_scheduler *schedule;
    double clip; /* 0: none */
    bool zero_last;
    int calls;
    tn_capture *capture;
} job;

static tn_tensor *step(void *user, int n, tn_tensor *const *in)
{
    job *j = user;
    ck_assert_int_eq(n, 2);
    j->calls++;
    tn_tensor *y = tn_forward(j->model, in[0]);
    tn_tensor *loss = j->kind == MLP ? tn_mean(tn_square(tn_sub(y, in[1])), NULL, 0, false)
                                     : tn_cross_entropy(j->kind == CNN ? y : tn_flatten(y, 0, 1),
                                                        j->kind == CNN ? in[1] : tn_flatten(in[1], 0, 1));
    tn_status status = loss ? TN_OK : tn_error_status();
    if (status == TN_OK && !j->zero_last) status = tn_optim_zero_grad(j->opt);
    if (status == TN_OK && j->second && !j->zero_last) status = tn_optim_zero_grad(j->second);
    if (status == TN_OK) status = tn_backward(loss);
    if (status == TN_OK && j->clip > 0 &&
        !tn_clip_grad_norm_tensor(tn_optim_parameters(j->opt), j->clip, 2))
        status = tn_error_status();
    if (status == TN_OK) status = tn_optim_step(j->opt);
    if (status == TN_OK && j->second) status = tn_optim_step(j->second);
    if (status == TN_OK && j->zero_last) status = tn_module_zero_grad(j->model);
    return status == TN_OK ? loss : NULL;
}

static tn_optim *optimizer_of(int i, const tn_list *p)
{
    switch (i) {
    case 0: return tn_adamw(p, (tn_adamw_options){ .lr = 0.01, .weight_decay = 0.1 });
    case 1: return tn_sgd(p, (tn_sgd_options){ .lr = 0.1 });
    case 2: return tn_sgd(p, (tn_sgd_options){ .lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01 });
    case 3: return tn_adam(p, (tn_adam_options){ .lr = 0.01, .amsgrad = true });
    case 4: return tn_rmsprop(p, (tn_rmsprop_options){ .lr = 0.01, .momentum = 0.9, .centered = true });
    case 5: return tn_rmsprop(p, (tn_rmsprop_options){ .lr = 0.01 });
    default: return tn_adagrad(p, (tn_adagrad_options){ .lr = 0.01, .lr_decay = 0.1 });
    }
}
enum { OPTIMIZERS = 7, STEPS = 50 };

static tn_module *mlp_new(void)
{
    return tn_sequential(tn_linear_new(7, 33, (tn_linear_options){ 0 }), tn_dropout_new(0.3), tn_tanh_new(),
                         tn_linear_new(33, 17, (tn_linear_options){ 0 }), tn_dropout_new(0.5),
                         tn_linear_new(17, 5, (tn_linear_options){ 0 }));
}

static job job_new(kind kind, int optimizer)
{
    job j = { .kind = kind };
    tn_manual_seed(21);
    j.model = kind == MLP ? mlp_new() : kind == CNN ? cnn_new() : transformer_new();
    assert_made(j.model);
    assert_ok(tn_module_to(j.model, tn_cuda(0)));
    j.opt = optimizer_of(optimizer, tn_parameters(j.model));
    assert_made(j.opt);
    j.schedule = tn_warmup_cosine_lr(j.opt, 5, STEPS, 1e-4);
    assert_made(j.schedule);
    return j;
}

static void job_free(job *j)
{
    tn_capture_free(j->capture);
    tn_scheduler_free(j->schedule);
    tn_optim_free(j->opt);
    tn_optim_free(j->second);
    tn_module_drop(j->model);
}

static void batch(kind kind, int i, tn_tensor **x, tn_tensor **y)
{
    if (kind == CNN) {
        synthetic_images(i, TN_F32, x, y);
    } else if (kind == TRANSFORMER) {
        int64_t id[3 * (MODEL_CONTEXT + 1)];
        for (int k = 0; k < 3 * (MODEL_CONTEXT + 1); k++) id[k] = (i * 31 + k * k * 7 + k) % MODEL_VOCAB;
        tn_tensor *ids = tn_from_ints(id, TN_SHAPE(3, MODEL_CONTEXT + 1));
        *x = tn_narrow(ids, 1, 0, MODEL_CONTEXT);
        *y = tn_narrow(ids, 1, 1, MODEL_CONTEXT);
    } else {
        *x = random_as(TN_SHAPE(9, 7), -1, 1, (uint64_t)i + 1, TN_F32);
        *y = random_as(TN_SHAPE(9, 5), -1, 1, (uint64_t)i + 1000, TN_F32);
    }
    if (i % 2) { /* from either device */
        *x = tn_to(*x, tn_cuda(0));
        *y = tn_to(*y, tn_cuda(0));
    }
}

/* One step, eager or through the capture (made when it is not there). */
static double job_step(job *j, int i, bool captured)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *in[2], *loss;
    batch(j->kind, i, &in[0], &in[1]);
    if (captured && !j->capture) {
        j->capture = tn_capture_new(step, j, tn_cuda(0));
        assert_made(j->capture);
    }
    if (captured) {
        loss = tn_capture_run(j->capture, 2, in);
    } else {
        tn_tensor *there[2] = { tn_to(in[0], tn_cuda(0)), tn_to(in[1], tn_cuda(0)) };
        loss = step(j, 2, there);
    }
    assert_made(loss);
    assert_ok(tn_scheduler_step(j->schedule));
    double value = tn_item(loss);
    ck_assert(!isnan(value));
    tn_scope_end(scope);
    return value;
}

static uint64_t hash_list(tn_list *list)
{
    uint64_t hash = 1;
    assert_made(list);
    for (int i = 0; i < list->n; i++) hash = hash * 31 + tn_hash(list->entry[i].tensor);
    return hash;
}

/* All that a step changes: parameters, buffers, gradients, optimizers, rates, the generator. */
static uint64_t bits_of(job *j)
{
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_scope scope = tn_scope_begin();
    uint64_t hash = state_hash(j->model);
    hash = hash * 31 + hash_list(tn_optim_state_dict(j->opt));
    if (j->second) hash = hash * 31 + hash_list(tn_optim_state_dict(j->second));
    hash = hash * 31 + hash_list(tn_scheduler_state_dict(j->schedule));
    tn_list *p = tn_parameters(j->model);
    for (int i = 0; i < p->n; i++) {
        tn_tensor *g = tn_grad(p->entry[i].tensor);
        hash = hash * 31 + (tn_is_none(g) ? 5 : tn_hash(g));
    }
    tn_generator_get_state(tn_default_generator(), state);
    for (size_t i = 0; i < sizeof state; i++) hash = hash * 31 + state[i];
    tn_scope_end(scope);
    return hash;
}

/* Both from the same seeds. */
static void assert_same(job (*make)(kind kind, int i), kind kind, int which, int steps)
{
    job eager = make(kind, which), captured = make(kind, which);
    double loss[STEPS];
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), state);
    for (int i = 0; i < steps; i++) loss[i] = job_step(&eager, i, false);
    uint64_t bits = bits_of(&eager);
    assert_ok(tn_generator_set_state(tn_default_generator(), state));
    for (int i = 0; i < steps; i++) {
        double value = job_step(&captured, i, true);
        ck_assert_msg(value == loss[i], "step %d: loss %.17g, not %.17g", i, value, loss[i]);
    }
    ck_assert(bits_of(&captured) == bits);
    ck_assert_int_eq(captured.calls, 2);
    job_free(&eager);
    job_free(&captured);
}

START_TEST(transformer)
{
    assert_same(job_new, TRANSFORMER, _i, _i == 0 ? STEPS : 6);
}
END_TEST

START_TEST(cnn)
{
    assert_same(job_new, CNN, _i, 6);
}
END_TEST

START_TEST(mlp)
{
    assert_same(job_new, MLP, _i, STEPS);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_capture");
    TCase *t = test_case(suite, "the same bits");
    tcase_add_loop_test(t, mlp, 0, OPTIMIZERS);
    tcase_add_loop_test(t, transformer, 0, 3);
    tcase_add_loop_test(t, cnn, 2, 4);
    return suite;
}
