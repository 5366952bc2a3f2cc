/*
 * test_cuda_steps.c - what a recorded step may be made of, as a table: each row's captured run has
 * the bits of its calls, over several steps, and every buffer moves once in a run. Rows that cannot
 * be captured are refused by name, and the same step works as a call.
 *
 * Seen to fail: in capture.c the numbers of a step (rates, what prepare makes) left as captured.
 */
#include "buffer_table.h"
#include "models.h"

/* ---- a row ----------------------------------------------------------------------------------- */

typedef struct row {
    const char *name;
    int optimizer;     /* optimizer_of */
    int parts;         /* TN_MICRO_BATCHES; 0: the whole batch at once */
    int recompute;     /* 1: in every layer; 2: a function of several layers */
    double clip;       /* by norm; 0: none */
    double clip_value; /* by value; 0: none */
    int schedule;      /* schedule_of */
    bool average;      /* tn_ema_update after each step, outside of it */
    bool scaled;       /* loss times 1024, gradients divided by it: a scaler that never changes */
    tn_dtype precision;
    const char *refused; /* NULL: captured */
    /* called after backward, where the row is refused for that */
    tn_status (*calls)(void *user);
} row;

typedef struct job {
    const row *row;
    tn_module *model, *average;
    tn_optim *opt;
    tn_scheduler *schedule;
    tn_scaler *scaler;
    int calls;
} job;

enum { STEPS = 7, BATCH = 12, WIDE = 6, CLASSES = 5 };

/* ---- optimizers: every formula, and one of one's own ----------------------------------------- */

/* A rate that falls by itself, and another decay: what prepare puts into a step. */
static void own_prepare(tn_optim_numbers *o)
{
    o->lr /= 1 + 0.5 * (double)(o->step - 1);
    o->own[0] = 1 - o->lr * o->weight_decay;
    o->weight_decay = 0;
}
static const tn_optim_type own_type = { .name = "own",
                                        .rule = TN_RULE_LION,
                                        .number = { { "beta1", 0.9, 0, 1, false, false, false },
                                                    { "beta2", 0.99, 0, 1, false, false, false } },
                                        .state = { { "exp_avg", NULL, 0, NULL } },
                                        .prepare = own_prepare };

enum { ADAMW, SGD, NESTEROV, AMSGRAD, RMSPROP, CENTERED, ADAGRAD, LION, ADAMAX, NADAM, RADAM, OWN };
static const char *const optimizer_name[] = { "adamw",   "sgd",      "nesterov", "amsgrad",
                                              "rmsprop", "centered", "adagrad",  "lion",
                                              "adamax",  "nadam",    "radam",    "own" };
enum { OPTIMIZERS = OWN + 1, ADAFACTOR, MUON };

static tn_optim *optimizer_of(int i, const tn_list *p)
{
    tn_optim_options o = { .lr = 0.01, .weight_decay = 0.1 };
    switch (i) {
    case ADAMW: return tn_adamw(p, (tn_adamw_options){ .lr = 0.01, .weight_decay = 0.1 });
    case SGD: return tn_sgd(p, (tn_sgd_options){ .lr = 0.1 });
    case NESTEROV:
        return tn_sgd(p, (tn_sgd_options){ .lr = 0.05, .momentum = 0.9, .nesterov = true });
    case AMSGRAD: return tn_adam(p, (tn_adam_options){ .lr = 0.01, .amsgrad = true });
    case RMSPROP: return tn_rmsprop(p, (tn_rmsprop_options){ .lr = 0.01, .momentum = 0.9 });
    case CENTERED: return tn_rmsprop(p, (tn_rmsprop_options){ .lr = 0.01, .centered = true });
    case ADAGRAD: return tn_adagrad(p, (tn_adagrad_options){ .lr = 0.01, .lr_decay = 0.1 });
    case LION: return tn_lion(p, o);
    case ADAMAX: return tn_adamax(p, o);
    case NADAM: return tn_nadam(p, o);
    case RADAM: return tn_radam(p, o);
    case OWN: return tn_optim_new(&own_type, p, o);
    case ADAFACTOR: return tn_adafactor(p, o);
    default: return tn_muon(p, o);
    }
}

/* Each kind of schedule; all move between the runs. */
enum { NO_SCHEDULE, COSINE, ONE_CYCLE, WARMUP, EXPONENTIAL, RESTARTS, POLYNOMIAL, SCHEDULES };
static tn_scheduler *schedule_of(int i, tn_optim *opt)
{
    switch (i) {
    case COSINE: return tn_cosine_lr(opt, STEPS, 1e-4);
    case ONE_CYCLE:
        return tn_one_cycle_lr(
            opt,
            (tn_one_cycle_options){ .max_lr = 0.05, .total_steps = STEPS, .fixed_momentum = true });
    case WARMUP: return tn_warmup_cosine_lr(opt, 3, STEPS, 1e-4);
    case EXPONENTIAL: return tn_exponential_lr(opt, 0.7);
    case RESTARTS: return tn_cosine_restarts_lr(opt, 3, 1, 1e-4);
    case POLYNOMIAL: return tn_polynomial_lr(opt, STEPS, 2);
    default: return NULL;
    }
}

/* ---- the model: statistics, a counter and masks ---------------------------------------------- */

static tn_module *model_new(bool matrices)
{
    tn_module *first = tn_linear_new(WIDE, 16, (tn_linear_options){ .no_bias = matrices });
    tn_module *last = tn_linear_new(16, CLASSES, (tn_linear_options){ .no_bias = matrices });
    if (matrices) return tn_sequential(first, tn_tanh_new(), last);
    return tn_sequential(first, tn_batch_norm1d_new(16, (tn_batch_norm_options){ 0 }),
                         tn_tanh_new(), tn_dropout_new(0.3), last);
}

static job job_new(const row *r)
{
    job j = { .row = r };
    tn_manual_seed(3);
    j.model = model_new(r->optimizer == MUON);
    assert_made(j.model);
    assert_ok(tn_module_to(j.model, tn_cuda(0)));
    if (r->recompute == 1) assert_ok(tn_module_set_recompute(j.model, true));
    j.opt = optimizer_of(r->optimizer, tn_parameters(j.model));
    assert_made(j.opt);
    j.schedule = schedule_of(r->schedule, j.opt);
    if (r->average) assert_made(j.average = tn_ema_new(j.model, (tn_ema_options){ .decay = 0.9 }));
    j.scaler = tn_scaler_new((tn_scaler_options){ 0 });
    return j;
}

static void job_free(job *j)
{
    tn_scheduler_free(j->schedule);
    tn_scaler_free(j->scaler);
    tn_optim_free(j->opt);
    if (j->average) tn_module_drop(j->average);
    tn_module_drop(j->model);
}

/* ---- the step -------------------------------------------------------------------------------- */

static tn_status whole_model(int n, tn_tensor *const *in, int n_out, tn_tensor **out, void *user)
{
    (void)n, (void)n_out;
    out[0] = tn_forward(user, in[0]);
    return out[0] ? TN_OK : tn_error_status();
}

static tn_tensor *loss_of(job *j, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *loss = NULL;
    TN_AUTOCAST(j->row->precision)
    loss = tn_cross_entropy(j->row->recompute == 2 ? tn_recompute(whole_model, j->model, 1, &x)
                                                   : tn_forward(j->model, x),
                            y);
    return loss;
}

/* Forward and backward of all parts, for gradients of the mean over all. Returns the loss. */
static tn_tensor *gradients(job *j, tn_tensor *x, tn_tensor *y)
{
    const int parts = j->row->parts ? j->row->parts : 1;
    const double factor = (j->row->scaled ? 1024.0 : 1.0) / parts;
    tn_tensor *all = NULL;
    if (!j->row->parts) {
        all = loss_of(j, x, y);
        return tn_backward(tn_mul_scalar(all, factor)) == TN_OK ? tn_detach(all) : NULL;
    }
    TN_MICRO_BATCHES(i, parts)
    {
        tn_tensor *loss = loss_of(j, tn_narrow(x, 0, i * BATCH / parts, BATCH / parts),
                                  tn_narrow(y, 0, i * BATCH / parts, BATCH / parts));
        if (tn_backward(tn_mul_scalar(loss, factor)) == TN_OK)
            all = all ? tn_add(all, tn_detach(loss)) : tn_detach(loss);
    }
    return tn_error_status() == TN_OK ? all : NULL;
}

static tn_status divide_gradients(const tn_list *p)
{
    tn_status status = TN_OK;
    TN_NO_GRAD for (int i = 0; i < p->n && status == TN_OK; i++)
    {
        tn_tensor *g = tn_grad(p->entry[i].tensor);
        if (g && !tn_is_none(g)) status = tn_mul_scalar_(g, 1.0 / 1024);
    }
    return status;
}

static tn_tensor *step(int n, tn_tensor *const *in, void *user)
{
    job *j = user;
    const row *r = j->row;
    ck_assert_int_eq(n, 2);
    j->calls++;
    const tn_list *p = tn_optim_parameters(j->opt);
    tn_status status = tn_optim_zero_grad(j->opt);
    tn_tensor *loss = status == TN_OK ? gradients(j, in[0], in[1]) : NULL;
    if (!loss) return NULL;
    if (r->calls) status = r->calls(j);
    if (status == TN_OK && r->scaled) status = divide_gradients(p);
    if (status == TN_OK && r->clip > 0 && !tn_clip_grad_norm_tensor(p, r->clip, 2))
        status = tn_error_status();
    if (status == TN_OK && r->clip_value > 0) status = tn_clip_grad_value(p, r->clip_value);
    if (status == TN_OK) status = tn_optim_step(j->opt);
    return status == TN_OK ? loss : NULL;
}

static tn_tensor *one_step(job *j, tn_capture *c, int i)
{
    tn_tensor *x =
        tn_to(random_as(TN_SHAPE(BATCH, WIDE), -1, 1, (uint64_t)i + 1, TN_F32), tn_cuda(0));
    int64_t class[BATCH];
    for (int k = 0; k < BATCH; k++) class[k] = (i * 7 + k * k) % CLASSES;
    tn_tensor *in[2] = { x, tn_to(tn_from_ints(class, TN_SHAPE(BATCH)), tn_cuda(0)) };
    tn_tensor *loss = c ? tn_capture_run(c, 2, in) : step(2, in, j);
    if (!loss) return NULL;
    if (j->schedule) assert_ok(tn_scheduler_step(j->schedule));
    if (j->average) assert_ok(tn_ema_update(j->average, j->model));
    return loss;
}

/* ---- what is compared ------------------------------------------------------------------------ */

/* Parameters, buffers, gradients, the optimizer, the schedule, the average, the generator. */
static uint64_t bits_of(const job *j)
{
    uint64_t hash = step_hash(j->model) * 31 + list_hash(tn_optim_state_dict(j->opt));
    if (j->average) hash = hash * 31 + state_hash(j->average);
    if (j->schedule) hash = hash * 31 + list_hash(tn_scheduler_state_dict(j->schedule));
    return hash;
}

/* The counter of the BatchNorm: one more for each batch, in whatever parts. */
static void assert_moved_once(const job *j, int steps)
{
    tn_tensor *counter = tn_get_buffer(j->model, "1.num_batches_tracked");
    assert_made(counter);
    ck_assert_msg(tn_item(counter) == steps, "%s: %g batches in %d steps", j->row->name,
                  tn_item(counter), steps);
}

static void assert_captured(const row *r)
{
    uint64_t bits[2];
    double loss[2][STEPS];
    for (int captured = 0; captured < 2; captured++) {
        tn_scope all = tn_scope_begin();
        job j = job_new(r);
        tn_manual_seed(11);
        tn_capture *c = captured ? tn_capture_new(step, &j, tn_cuda(0)) : NULL;
        for (int i = 0; i < STEPS; i++) {
            tn_scope scope = tn_scope_begin();
            tn_tensor *y = one_step(&j, c, i);
            ck_assert_msg(y, "%s, step %d: %s", r->name, i, tn_error());
            loss[captured][i] = tn_item(y);
            ck_assert(!isnan(loss[captured][i]));
            tn_scope_end(scope);
        }
        bits[captured] = bits_of(&j);
        if (r->optimizer != MUON) assert_moved_once(&j, STEPS);
        ck_assert_int_eq(j.calls, captured ? 2 : STEPS);
        tn_capture_free(c);
        job_free(&j);
        tn_scope_end(all);
    }
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(loss[0][i] == loss[1][i], "%s, step %d: loss %.9g, called %.9g", r->name, i,
                      loss[1][i], loss[0][i]);
    ck_assert_msg(bits[0] == bits[1], "%s: other bits than the calls'", r->name);
    ck_assert_msg(loss[0][0] != loss[0][STEPS - 1], "%s: nothing was learned", r->name);
}

/* ---- the table ------------------------------------------------------------------------------- */

static tn_status scales(void *user)
{
    job *j = user;
    return tn_scaler_unscale(j->scaler, j->opt);
}
static tn_status averages(void *user)
{
    job *j = user;
    if (!j->average) j->average = tn_ema_new(j->model, (tn_ema_options){ .decay = 0.9 });
    return tn_ema_update(j->average, j->model);
}
static tn_status clips(void *user)
{
    job *j = user;
    double norm = tn_clip_grad_norm(tn_optim_parameters(j->opt), 1, 2, false);
    return isnan(norm) ? tn_error_status() : TN_OK;
}
static tn_status schedules(void *user)
{
    job *j = user;
    if (!j->schedule) j->schedule = tn_exponential_lr(j->opt, 0.9);
    return tn_scheduler_step(j->schedule);
}

static const row rows[] = {
    { .name = "recomputed, every layer", .recompute = 1 },
    { .name = "recomputed, a function", .recompute = 2 },
    { .name = "in two parts", .parts = 2 },
    { .name = "in four parts", .parts = 4, .optimizer = NESTEROV },
    { .name = "in parts, recomputed", .parts = 3, .recompute = 1 },
    { .name = "in parts, a function recomputed", .parts = 2, .recompute = 2 },
    { .name = "an average between the runs", .average = true },
    { .name = "an average, in parts", .average = true, .parts = 2 },
    { .name = "clipped by norm", .clip = 0.05 },
    { .name = "clipped by value", .clip_value = 0.01 },
    { .name = "clipped, in parts, recomputed", .clip = 0.05, .parts = 2, .recompute = 1 },
    { .name = "a loss scale of one's own", .scaled = true },
    { .name = "bf16, in parts", .precision = TN_BF16, .parts = 2 },
    { .name = "f16, scaled, clipped", .precision = TN_F16, .scaled = true, .clip = 0.5 },
    { .name = "bf16, recomputed", .precision = TN_BF16, .recompute = 1 },
    { .name = "all of it",
      .optimizer = OWN,
      .parts = 2,
      .recompute = 1,
      .clip = 0.5,
      .schedule = ONE_CYCLE,
      .average = true,
      .precision = TN_BF16 },
    { .name = "a scaler", .calls = scales, .refused = "tn_scaler_unscale" },
    { .name = "an average in it", .calls = averages, .refused = "tn_ema_update" },
    { .name = "a norm that is read", .calls = clips, .refused = "want tn_clip_grad_norm_tensor" },
    { .name = "a schedule in it", .calls = schedules, .refused = "tn_scheduler_step: sets rates" },
    { .name = "Adafactor",
      .optimizer = ADAFACTOR,
      .refused = "tn_optim_step: calls the update of tn_adafactor" },
    { .name = "Muon", .optimizer = MUON, .refused = "tn_optim_step: calls the update of tn_muon" },
};

/* The second run captures, is refused and has changed nothing; calls go on. */
static void assert_refused(const row *r)
{
    job j = job_new(r);
    tn_capture *c = tn_capture_new(step, &j, tn_cuda(0));
    assert_made(one_step(&j, c, 0));
    for (int again = 0; again < 2; again++) {
        uint64_t before = bits_of(&j);
        tn_tensor *y = one_step(&j, c, 1);
        ck_assert_msg(!y && strstr(tn_error(), r->refused), "%s: %s", r->name,
                      y ? "captured" : tn_error());
        ck_assert_int_eq(tn_error_status(), TN_E_STATE);
        tn_error_clear();
        ck_assert_msg(bits_of(&j) == before, "%s: a refused run changed something", r->name);
    }
    if (r->calls == scales) assert_ok(tn_scaler_update(j.scaler));
    assert_made(one_step(&j, NULL, 1));
    tn_capture_free(c);
    job_free(&j);
}

START_TEST(table)
{
    if (rows[_i].refused)
        assert_refused(&rows[_i]);
    else
        assert_captured(&rows[_i]);
}
END_TEST

/* Each optimizer that is a formula, in parts and not, under a schedule of each kind. */
START_TEST(optimizers)
{
    const row r = { .name = optimizer_name[_i],
                    .optimizer = _i,
                    .schedule = 1 + _i % (SCHEDULES - 1) };
    const row in_parts = { .name = optimizer_name[_i], .optimizer = _i, .parts = 2, .clip = 0.1 };
    assert_captured(&r);
    assert_captured(&in_parts);
}
END_TEST

/* A profile of steps that run a capture: their ops are not there to be seen. */
typedef struct profiled {
    job *j;
    tn_capture *c;
    int i;
} profiled;
static tn_status run_once(void *user)
{
    profiled *p = user;
    return one_step(p->j, p->c, p->i++) ? TN_OK : tn_error_status();
}

START_TEST(a_profile)
{
    job j = job_new(&rows[0]);
    profiled p = { &j, tn_capture_new(step, &j, tn_cuda(0)), 0 };
    for (int i = 0; i < 3; i++) assert_ok(run_once(&p));
    assert_fails(tn_profile(run_once, &p, (tn_profile_options){ .steps = 1 }), TN_E_STATE,
                 "tn_profile and traces look at every op");
    assert_ok(run_once(&p));
    p.c = (tn_capture_free(p.c), NULL);
    assert_ok(tn_profile(run_once, &p, (tn_profile_options){ .steps = 1 })); /* as calls */
    job_free(&j);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_steps");
    TCase *t = test_case(suite, "steps");
    tcase_add_loop_test(t, table, 0, (int)(sizeof rows / sizeof *rows));
    tcase_add_loop_test(t, optimizers, 0, OPTIMIZERS);
    tcase_add_test(t, a_profile);
    return suite;
}
