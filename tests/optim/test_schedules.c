/*
 * test_schedules.c - schedules of rates, and clipping.
 *
 * Truth: rates of PyTorch 2.15 (schedule_cases.h, made by optim_cases.py) and closed forms.
 *
 * Seen to fail: in src/optim/scheduler.c, child_at() without the inner count: the row sequential of
 * schedule_equals_pytorch fails.
 */
#include "files.h"
#include "leaves.h"

static double one_over(int64_t step, void *user)
{
    (void)user;
    return 1.0 / (double)(step + 1);
}

static tn_scheduler *sequence(tn_optim *opt)
{
    tn_scheduler *parts[3];
    parts[0] = tn_linear_lr(opt, 0.1, 1, 4);
    parts[1] = tn_cosine_lr(opt, 6, 0);
    parts[2] = tn_constant_lr(opt, 0.5, 2);
    return tn_sequential_lr(opt, parts, 3, (int64_t[]){ 4, 9 });
}

static double wavering(int64_t step, void *user)
{
    (void)user;
    return step % 3 ? 0.9 : 1.2;
}

static tn_scheduler *chain(tn_optim *opt)
{
    tn_scheduler *parts[4];
    parts[0] = tn_constant_lr(opt, 0.1, 3);
    parts[1] = tn_exponential_lr(opt, 0.9);
    parts[2] = tn_step_lr(opt, 4, 0.5);
    parts[3] = tn_multiplicative_lr(opt, wavering, NULL);
    return tn_chained_lr(opt, parts, 4);
}

static tn_scheduler *chained_cosine(tn_optim *opt)
{
    tn_scheduler *parts[] = { tn_exponential_lr(opt, 0.95), tn_cosine_lr(opt, 20, 0) };
    return tn_chained_lr(opt, parts, 2);
}

static tn_scheduler *warmed(tn_optim *opt)
{
    tn_scheduler *parts[2] = { tn_linear_lr(opt, 0.1, 0.9, 4) };
    parts[1] = plateau(opt, .factor = .5, .use_patience = true, .threshold = .1);
    return tn_sequential_lr(opt, parts, 2, (int64_t[]){ 4 });
}

#include "schedule_cases.h"

/* ---- schedules ------------------------------------------------------------------------------- */

static tn_optim *sgd_new(void)
{
    return sgd(one(leaf(TN_SHAPE(1), 1, TN_F32)), .lr = 1, .momentum = 0.9);
}

static double momentum_of(tn_optim *opt)
{
    return tn_item(tn_list_get(tn_optim_state_dict(opt), "sgd.momentum"));
}

/* LR-01 to LR-09: LR-02 milestones, LR-03 exponential, LR-04 cosine, LR-05 linear, LR-06 constant,
 * polynomial and a function, LR-07 restarts; LR-14 products and chains. */
START_TEST(schedule_equals_pytorch)
{
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *s = owned(make_schedule(_i, opt));
    for (int t = 0; t < N_RATES; t++) {
        ck_assert_int_eq(tn_scheduler_last_step(s), t);
        ck_assert_msg(fabs(tn_optim_lr(opt, 0) - schedules[_i].rate[t]) < 1e-12,
                      "%s: rate %d is %.17g, not %.17g", schedules[_i].name, t, tn_optim_lr(opt, 0),
                      schedules[_i].rate[t]);
        ck_assert_msg(fabs(momentum_of(opt) - schedules[_i].momentum[t]) < 1e-12,
                      "%s: momentum %d is %.17g", schedules[_i].name, t, momentum_of(opt));
        assert_ok(tn_optim_step(opt));
        assert_ok(tn_scheduler_step(s));
    }
}
END_TEST

/* LR-15; LR-09 as PyTorch's users write it, the warm-up steps, and then the plateau. */
START_TEST(plateau_equals_pytorch)
{
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *s = owned(make_plateau(_i, opt));
    for (int t = 0; t < N_RATES; t++) {
        if (t < plateaus[_i].from) {
            assert_fails(tn_plateau_step(s, 1), TN_E_STATE,
                         "a sequential_lr takes no metric at step");
            assert_ok(tn_scheduler_step(s));
        } else {
            assert_fails(tn_scheduler_step(s), TN_E_STATE, "wants a metric: tn_plateau_step");
            assert_ok(tn_plateau_step(s, metrics[t]));
        }
        ck_assert_msg(fabs(tn_optim_lr(opt, 0) - plateaus[_i].rate[t]) < 1e-12,
                      "%s: rate %d is %.17g, not %.17g", plateaus[_i].name, t, tn_optim_lr(opt, 0),
                      plateaus[_i].rate[t]);
    }
}
END_TEST

enum { WARMUP = COUNT(schedules), PLATEAU, WARMED, DEEP, KINDS };

/* A chain of a cycle, and of a sequence that ends in a sequence; its momentum is the cycle's. */
static tn_scheduler *deep(tn_optim *opt)
{
    tn_scheduler *inner[] = { tn_multiplicative_lr(opt, wavering, NULL), chained_cosine(opt) };
    tn_scheduler *middle[] = { tn_linear_lr(opt, 0.1, 1, 3),
                               tn_sequential_lr(opt, inner, 2, (int64_t[]){ 4 }) };
    tn_scheduler *outer[2] = { tn_one_cycle_lr(
        opt, (tn_one_cycle_options){ .max_lr = 2, .total_steps = 9 }) };
    outer[1] = tn_sequential_lr(opt, middle, 2, (int64_t[]){ 3 });
    return tn_chained_lr(opt, outer, 2);
}

static tn_scheduler *any_schedule(int which, tn_optim *opt)
{
    if (which == WARMUP) return tn_warmup_cosine_lr(opt, 3, 9, 0.05);
    if (which == PLATEAU) return plateau(opt, .patience = 1, .cooldown = 1);
    if (which == WARMED) return warmed(opt);
    if (which == DEEP) return deep(opt);
    return make_schedule(which, opt);
}

static void next_rate(int which, tn_scheduler *s, int t)
{
    static const double metric[] = { 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 0.5, 2, 2, 2, 2, 2, 2 };
    bool measured = which == PLATEAU || (which == WARMED && t >= 4);
    assert_ok(measured ? tn_plateau_step(s, metric[t % COUNT(metric)]) : tn_scheduler_step(s));
}

/* Every kind of schedule, stopped after every step: all of them are closed forms of the step but
 * plateau, which is fed a metric. */
START_TEST(LR_every_schedule_resumes_after_every_step)
{
    for (int stop = 0; stop < 12; stop++) {
        tn_optim *a = sgd_new(), *b = owned(sgd_new());
        tn_scheduler *s = owned(any_schedule(_i, a)), *r = owned(any_schedule(_i, b));
        if (stop % 2) assert_ok(tn_optim_set_lr(a, 0, 0.7)); /* by hand: the base moves with it */
        for (int t = 0; t < stop; t++) next_rate(_i, s, t);
        assert_ok(tn_scheduler_load_state_dict(r, tn_scheduler_state_dict(s)));
        for (int t = stop; t < 15; t++) {
            if (_i != PLATEAU) ck_assert_int_eq(tn_scheduler_last_step(r), t);
            ck_assert_double_eq(tn_optim_lr(b, 0), tn_optim_lr(a, 0));
            ck_assert_double_eq(momentum_of(b), momentum_of(a));
            next_rate(_i, s, t);
            next_rate(_i, r, t);
        }
        ck_assert_uint_eq(hash_of(tn_scheduler_state_dict(r)), hash_of(tn_scheduler_state_dict(s)));
        tn_optim_free(a); /* the schedulers keep it */
    }
}
END_TEST

START_TEST(warmup_cosine)
{
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *s = owned(tn_warmup_cosine_lr(opt, 4, 12, 0.1));
    for (int t = 0; t < 15; t++) {
        double wanted = t < 4    ? (t + 1) / 4.0
                        : t < 12 ? 0.1 + 0.9 * (1 + cos(M_PI * (t - 4) / 8)) / 2
                                 : 0.1;
        ck_assert_double_eq_tol(tn_optim_lr(opt, 0), wanted, 1e-14);
        assert_ok(tn_scheduler_step(s));
    }
}
END_TEST

START_TEST(LR_08_one_cycle_ends)
{
    tn_optim *opt = owned(sgd_new());
    tn_one_cycle_options o = { .max_lr = 2, .total_steps = 5 };
    tn_scheduler *s = owned(tn_one_cycle_lr(opt, o));
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), 2.0 / 25, 1e-15);
    for (int t = 0; t < 5; t++) assert_ok(tn_scheduler_step(s));
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), 2.0 / 25 / 1e4, 1e-15);
    assert_fails(tn_scheduler_step(s), TN_E_STATE,
                 "tn_one_cycle_lr: step 6: the schedule ends at 5");
    ck_assert_int_eq(tn_scheduler_last_step(s), 5);
    tn_optim *plain = owned(sgd(one(leaf(TN_SHAPE(1), 1, TN_F32)), 0));
    assert_null(tn_one_cycle_lr(plain, o), TN_E_INVALID, "runs without momentum");
    o.fixed_momentum = true;
    owned(tn_one_cycle_lr(plain, o));
}
END_TEST

/* A momentum of 0 on the way is no optimizer without momentum; a group without one stays so. */
START_TEST(LR_08_one_cycle_through_no_momentum)
{
    tn_one_cycle_options o = { .max_lr = 1, .total_steps = 4, .pct_start = 0.5 };
    o.max_momentum = 0.9, o.use_momentum = true;
    tn_optim *opt[2];
    for (int i = 0; i < 2; i++) {
        opt[i] = owned(sgd(one(leaf(TN_SHAPE(1), 1, TN_F32)), .momentum = 0.9));
        tn_group_options none = { .set = { { "momentum", 0 } } };
        assert_ok(add_group(opt[i], "other", leaf(TN_SHAPE(1), 1, TN_F32), none));
    }
    tn_scheduler *s = owned(tn_one_cycle_lr(opt[0], o));
    assert_ok(tn_scheduler_step(s));
    ck_assert_double_eq(tn_optim_number(opt[0], 0, "momentum"), 0);
    ck_assert_double_eq(tn_optim_number(opt[0], 1, "momentum"), 0);
    assert_ok(tn_optim_set_number(opt[0], 0, "dampening", 0.1));
    assert_ok(tn_optim_load_state_dict(opt[1], tn_optim_state_dict(opt[0])));
    assert_ok(tn_scheduler_step(s));
    ck_assert(tn_optim_number(opt[0], 0, "momentum") > 0);
    ck_assert_double_eq(tn_optim_number(opt[0], 1, "momentum"), 0);
}
END_TEST

START_TEST(LR_10_plateau)
{
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *s = plateau(opt, .factor = .5, .patience = 2, .cooldown = 1, .min_lr = .2);
    /* metric and the rate after it; an improvement below one part in 10^4 is none */
    static const double metric[] = { 1, .9, .89995, .9, .95, .9, .9, .9, .9, .9, .9, .9, .1, .2 };
    static const double rate[] = { 1, 1, 1, 1, .5, .5, .5, .5, .25, .25, .25, .25, .25, .25 };
    for (int i = 0; i < COUNT(metric); i++) {
        assert_ok(tn_plateau_step(s, metric[i]));
        ck_assert_msg(fabs(tn_optim_lr(opt, 0) - rate[i]) < 1e-15, "call %d: rate %g, not %g", i,
                      tn_optim_lr(opt, 0), rate[i]);
    }
    assert_ok(tn_plateau_step(s, NAN));
    assert_ok(tn_plateau_step(s, NAN));
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), .2, 1e-15); /* the floor */
    assert_fails(tn_scheduler_step(s), TN_E_STATE, "wants a metric");
    tn_list *state = tn_scheduler_state_dict(s);
    tn_scheduler_free(s);
    tn_scheduler *r = plateau(opt, .factor = .5, .use_patience = true);
    assert_ok(tn_scheduler_load_state_dict(r, state));
    ck_assert_uint_eq(hash_of(tn_scheduler_state_dict(r)), hash_of(state));
    tn_scheduler_free(r);
    tn_scheduler *max = owned(plateau(opt, .maximize = true, .use_patience = true));
    assert_ok(tn_plateau_step(max, 1));
    assert_ok(tn_plateau_step(max, 2));
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), .2, 1e-15);
    assert_ok(tn_plateau_step(max, 1.5));
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), .02, 1e-15);
}
END_TEST

/* Closed forms: a plateau at the end of the inner one of two sequences, momentum where a cycle was
 * cut short, what each of a chain multiplies. */
START_TEST(schedules_compose)
{
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *inner[] = { tn_one_cycle_lr(
                                  opt, (tn_one_cycle_options){ .max_lr = 2, .total_steps = 10 }),
                              plateau(opt, .factor = .5, .use_patience = true) };
    tn_scheduler *outer[] = { tn_constant_lr(opt, .25, 9),
                              tn_sequential_lr(opt, inner, 2, (int64_t[]){ 2 }) };
    tn_scheduler *s = tn_sequential_lr(opt, outer, 2, (int64_t[]){ 3 });
    for (int t = 0; t < 5; t++) {
        if (t < 3) ck_assert_double_eq(tn_optim_lr(opt, 0), .25);
        assert_ok(tn_scheduler_step(s));
    }
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), 2, 1e-15); /* the cycle's peak */
    ck_assert_double_eq_tol(momentum_of(opt), .85, 1e-15);
    for (int t = 0; t < 3; t++) assert_ok(tn_plateau_step(s, 1));
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), .5, 1e-15);
    tn_list *state = tn_scheduler_state_dict(s);
    assert_ok(tn_optim_set_number(opt, 0, "momentum", .5));
    assert_ok(tn_scheduler_load_state_dict(s, state));
    ck_assert_double_eq_tol(momentum_of(opt), .85, 1e-15);
    assert_ok(tn_list_set(state, "plateau_lr.bad", tn_full_as(TN_SCALAR, -1, TN_I64, tn_cpu())));
    assert_fails(tn_scheduler_load_state_dict(s, state), TN_E_INVALID, "bad -1");
    assert_ok(tn_list_remove(state, "plateau_lr.bad"));
    assert_fails(tn_scheduler_load_state_dict(s, state), TN_E_NAME, "missing plateau_lr.bad");
    tn_scheduler_free(s);

    /* a product that goes back */
    s = tn_multiplicative_lr(opt, wavering, NULL);
    state = tn_scheduler_state_dict(s);
    for (int t = 0; t < 5; t++) assert_ok(tn_scheduler_step(s));
    assert_ok(tn_scheduler_load_state_dict(s, state));
    assert_ok(tn_scheduler_step(s));
    ck_assert_double_eq(tn_optim_lr(opt, 0), .9);
    tn_scheduler_free(s);

    /* a cycle of 2 steps up and 2 down, 1 / (t + 1), and a cosine with a floor */
    tn_optim *two = owned(sgd_new());
    tn_scheduler *parts[] = { tn_one_cycle_lr(two, (tn_one_cycle_options){ .max_lr = 2,
                                                                           .total_steps = 4,
                                                                           .pct_start = .75 }),
                              tn_lambda_lr(two, one_over, NULL), tn_cosine_lr(two, 4, .01) };
    s = owned(tn_chained_lr(two, parts, 3));
    static const double cycle[] = { .08, 1.04, 2, .08 / 1e4, .08 / 1e4, .08 / 1e4 };
    for (int t = 0; t < COUNT(cycle); t++) {
        double wanted = .01 + (cycle[t] / (t + 1) - .01) * (1 + cos(M_PI * t / 4)) / 2;
        ck_assert_double_eq_tol(tn_optim_lr(two, 0), wanted, 1e-15);
        assert_ok(tn_scheduler_step(s));
    }
}
END_TEST

/* A negative metric: an improvement is lower still, and PyTorch's eps. */
START_TEST(LR_12_plateau_below_zero)
{
    static const struct {
        bool maximize;
        double metric[4], rate[4];
    } run[] = { { false, { -1, -.99, -1.2, -1.2 }, { 1, .1, .1, .01 } },
                { false, { -1, -1.00005, -1.0002, -2 }, { 1, .1, .1, .1 } },
                { true, { -1, -.9, -.95, -.89999 }, { 1, 1, .1, .01 } } };
    for (int k = 0; k < COUNT(run); k++) {
        const tn_plateau_options o = { .maximize = run[k].maximize, .use_patience = true };
        tn_optim *opt = owned(sgd_new());
        tn_scheduler *s = owned(tn_plateau_lr(opt, o));
        for (int i = 0; i < 4; i++) {
            assert_ok(tn_plateau_step(s, run[k].metric[i]));
            ck_assert_msg(fabs(tn_optim_lr(opt, 0) - run[k].rate[i]) < 1e-15, "%d, call %d: %g", k,
                          i, tn_optim_lr(opt, 0));
        }
    }
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *s = owned(plateau(opt, .use_patience = true));
    for (int i = 0; i < 20; i++) assert_ok(tn_plateau_step(s, 1));
    ck_assert_double_eq_tol(tn_optim_lr(opt, 0), 1e-8, 1e-20); /* the next change would be 9e-9 */
}
END_TEST

START_TEST(LR_11_order_of_loading)
{
    tn_optim *a = owned(sgd_new());
    tn_scheduler *s = tn_exponential_lr(a, 0.5);
    for (int t = 0; t < 3; t++) assert_ok(tn_scheduler_step(s));
    /* loading the schedule alone sets the rate, and so does the optimizer alone, in either order */
    for (int order = 0; order < 4; order++) {
        tn_optim *b = owned(sgd_new());
        tn_scheduler *r = owned(tn_exponential_lr(b, 0.5));
        if (order != 1 && order != 3)
            assert_ok(tn_scheduler_load_state_dict(r, tn_scheduler_state_dict(s)));
        if (order != 0) assert_ok(tn_optim_load_state_dict(b, tn_optim_state_dict(a)));
        if (order == 3) assert_ok(tn_scheduler_load_state_dict(r, tn_scheduler_state_dict(s)));
        ck_assert_double_eq(tn_optim_lr(b, 0), 0.125);
        if (order != 1) {
            assert_ok(tn_scheduler_step(r));
            ck_assert_double_eq(tn_optim_lr(b, 0), 0.0625);
        }
    }
    tn_list *state = tn_scheduler_state_dict(s);
    tn_scheduler_free(s);
    tn_scheduler *other = owned(tn_step_lr(a, 3, 0.1));
    double lr = tn_optim_lr(a, 0);
    assert_fails(tn_scheduler_load_state_dict(other, state), TN_E_NAME, "missing step_lr.step");
    ck_assert_double_eq(tn_optim_lr(a, 0), lr);
}
END_TEST

/* Of two on one optimizer the last to step would win: neither steps while both live, and none is
 * made beside one that has stepped. */
START_TEST(LR_13_one_schedule_at_a_time)
{
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *first = tn_exponential_lr(opt, .9);
    tn_scheduler *second = any_schedule(_i, opt);
    assert_made(second);
    assert_fails(tn_scheduler_step(first), TN_E_STATE,
                 "tn_scheduler_step: beside this exponential_lr the optimizer has a ");
    if (_i == PLATEAU)
        assert_fails(tn_plateau_step(second, 1), TN_E_STATE, "beside this plateau_lr");
    else
        assert_fails(tn_scheduler_step(second), TN_E_STATE, "has a exponential_lr");
    tn_scheduler_free(second);
    assert_ok(tn_scheduler_step(first));
    double lr = tn_optim_lr(opt, 0);
    assert_null(any_schedule(_i, opt), TN_E_STATE,
                "the optimizer has a exponential_lr, at step 1: want it freed before");
    ck_assert_double_eq(tn_optim_lr(opt, 0), lr);
    tn_scheduler_free(first);
    next_rate(_i, owned(any_schedule(_i, opt)), 0);
}
END_TEST

START_TEST(bad_schedules)
{
    tn_optim *opt = owned(sgd_new());
    tn_optim *other = owned(sgd_new());
    assert_null(tn_step_lr(opt, 0, .1), TN_E_INVALID, "step_size 0");
    assert_null(tn_step_lr(opt, 1, -1), TN_E_INVALID, "gamma is -1");
    assert_null(tn_multistep_lr(opt, (int64_t[]){ 5, 2 }, 2, .1), TN_E_INVALID, "milestone 1 is 2");
    assert_null(tn_cosine_lr(opt, 0, 0), TN_E_INVALID, "t_max 0");
    assert_null(tn_cosine_restarts_lr(opt, 2, 0, 0), TN_E_INVALID, "mult 0");
    assert_null(tn_linear_lr(opt, 1, 0, 0), TN_E_INVALID, "n 0");
    assert_null(tn_lambda_lr(opt, NULL, NULL), TN_E_INVALID, "tn_lambda_lr: factor is NULL");
    assert_null(tn_multiplicative_lr(opt, NULL, NULL), TN_E_INVALID, "multiplicative_lr: factor");
    assert_null(tn_warmup_cosine_lr(opt, 5, 4, 0), TN_E_INVALID, "warmup 5, total 4");
    assert_null(one_cycle(opt, .max_lr = 1), TN_E_INVALID, "total_steps 0");
    assert_null(plateau(opt, .factor = 1), TN_E_INVALID, "factor 1");
    tn_scheduler *parts[2] = { tn_exponential_lr(opt, .5), tn_exponential_lr(other, .5) };
    assert_null(tn_sequential_lr(opt, parts, 2, (int64_t[]){ 3 }), TN_E_INVALID,
                "another optimizer's");
    parts[0] = plateau(opt, 0);
    assert_null(tn_sequential_lr(opt, parts, 1, NULL), TN_E_INVALID, "plateau_lr");
    for (int chain = 0; chain < 2; chain++) {
        parts[chain] = tn_exponential_lr(opt, .5);
        parts[!chain] = chain ? warmed(opt) : plateau(opt, 0);
        assert_null(chain ? tn_chained_lr(opt, parts, 2)
                          : tn_sequential_lr(opt, (tn_scheduler *[]){ parts[1], parts[0] }, 2,
                                             (int64_t[]){ 3 }),
                    TN_E_INVALID,
                    chain ? "tn_chained_lr: scheduler 0 is a sequential_lr, which takes metrics"
                          : "tn_sequential_lr: scheduler 0 is a plateau_lr, which takes metrics");
    }
    parts[0] = tn_exponential_lr(opt, .5);
    parts[1] = one_cycle(opt, .max_lr = 1, .total_steps = 5);
    assert_null(tn_chained_lr(opt, parts, 2), TN_E_INVALID,
                "scheduler 1 is a one_cycle_lr, which multiplies no rate: want it first");
    assert_null(tn_chained_lr(opt, parts, 0), TN_E_INVALID, "tn_chained_lr: 0 schedulers");
    parts[0] = tn_exponential_lr(opt, .5);
    parts[1] = NULL;
    assert_null(tn_sequential_lr(opt, parts, 2, (int64_t[]){ 3 }), TN_E_INVALID, "NULL");
    parts[0] = parts[1] = tn_constant_lr(opt, 1, 1); /* taken over once */
    assert_null(tn_sequential_lr(opt, parts, 2, (int64_t[]){ 1 }), TN_E_INVALID,
                "scheduler 1 is also one before it");
    assert_null(tn_sequential_lr(opt, NULL, 2, (int64_t[]){ 1 }), TN_E_INVALID,
                "2 schedulers in NULL");
}
END_TEST

START_TEST(schedules_stay_finite_and_shallow)
{
    tn_optim *opt = owned(sgd_new());
    tn_scheduler *s = tn_exponential_lr(opt, 1e300);
    assert_ok(tn_scheduler_step(s));
    assert_fails(tn_scheduler_step(s), TN_E_INVALID, "rate inf at step 2");
    ck_assert_int_eq(tn_scheduler_last_step(s), 1);
    tn_scheduler_free(s);
    s = tn_constant_lr(opt, 1, 1);
    for (int i = 0; i < 64; i++) s = tn_sequential_lr(opt, &s, 1, NULL);
    assert_made(s);
    assert_ok(tn_scheduler_step(s));
    assert_null(tn_sequential_lr(opt, &s, 1, NULL), TN_E_INVALID, "64 sequences deep");
}
END_TEST

/* ---- clipping -------------------------------------------------------------------------------- */

START_TEST(CL_01_CL_02_norm)
{
    tn_tensor *t[3] = { leaf(TN_SHAPE(2), 1, TN_F64), leaf(TN_SHAPE(2, 1), 2, TN_F64),
                        leaf(TN_SHAPE(3), 3, TN_F64) };
    tn_list *l = letters(3, t);
    ck_assert_double_eq(tn_clip_grad_norm(l, 1, 2, true), 0); /* no gradients */
    assert_ok(tn_set_grad(t[0], from_f64((double[]){ 3, -4 }, TN_SHAPE(2))));
    assert_ok(tn_set_grad(t[1], from_f64((double[]){ 0, 12 }, TN_SHAPE(2, 1))));
    ck_assert_double_eq_tol(tn_clip_grad_norm(l, 26, 2, false), 13, 1e-14);
    assert_values(tn_grad(t[0]), 0, 3, -4); /* below the limit: bit for bit */
    ck_assert_double_eq_tol(tn_clip_grad_norm(l, 6.5, 2, false), 13, 1e-14);
    double f = 6.5 / (13 + 1e-6);
    assert_values(tn_grad(t[0]), 1e-15, 3 * f, -4 * f);
    assert_values(tn_grad(t[1]), 1e-15, 0, 12 * f);
    ck_assert(tn_is_none(tn_grad(t[2])));
    /* other norms: largest magnitude, sum of magnitudes, p = 3 */
    ck_assert_double_eq_tol(tn_clip_grad_norm(l, 1e9, INFINITY, false), 12 * f, 1e-14);
    ck_assert_double_eq_tol(tn_clip_grad_norm(l, 1e9, 1, false), 19 * f, 1e-13);
    ck_assert_double_eq_tol(tn_clip_grad_norm(l, 1e9, 3, false), cbrt(27 + 64 + 1728) * f, 1e-13);
    ck_assert(isnan(tn_clip_grad_norm(l, -1, 2, false)));
    assert_error(TN_E_INVALID, "max_norm -1");
    ck_assert(isnan(tn_clip_grad_norm(l, 1, 0, false)));
    assert_error(TN_E_INVALID, "p 0");
    /* at the limit */
    tn_tensor *w = leaf(TN_SHAPE(2), 1, TN_F64);
    assert_ok(tn_set_grad(w, from_f64((double[]){ 3, 4 }, TN_SHAPE(2))));
    tn_clip_grad_norm(one(w), 5, 2, false);
    assert_values(tn_grad(w), 1e-15, 3 * (5 / (5 + 1e-6)), 4 * (5 / (5 + 1e-6)));
}
END_TEST

START_TEST(CL_03_CL_04_non_finite_and_by_value)
{
    tn_tensor *t[2] = { leaf(TN_SHAPE(2), 1, TN_F32), leaf(TN_SHAPE(1), 2, TN_F32) };
    tn_list *l = letters(2, t);
    assert_ok(tn_set_grad(t[0], tn_from_floats((float[]){ 1, NAN }, TN_SHAPE(2))));
    assert_ok(tn_set_grad(t[1], tn_from_floats((float[]){ 2 }, TN_SHAPE(1))));
    ck_assert(isnan(tn_clip_grad_norm(l, 1, 2, true)));
    assert_error(TN_E_INVALID, "the norm of the gradients is nan");
    assert_values(tn_grad(t[1]), 0, 2);
    ck_assert(isnan(tn_clip_grad_norm(l, 1, INFINITY, false)));
    ck_assert(isnan(tn_item(tn_grad(t[1])))); /* poisoned, as PyTorch does */
    /* by value */
    tn_tensor *w = leaf(TN_SHAPE(4), 1, TN_F32);
    assert_ok(tn_set_grad(w, tn_from_floats((float[]){ -3, -.5f, .25f, INFINITY }, TN_SHAPE(4))));
    assert_ok(tn_clip_grad_value(one(w), 0.5));
    assert_values(tn_grad(w), 0, -.5, -.5, .25, .5);
    assert_fails(tn_clip_grad_value(one(w), -1), TN_E_INVALID, "limit -1");
}
END_TEST

/* Gradients that come from one dy must not be one memory: scaling one would scale another, or what
 * the graph's owner still holds. */
START_TEST(clipping_in_place_after_shared_gradients)
{
    tn_tensor *a = leaf(TN_SHAPE(3), 1, TN_F64), *b = leaf(TN_SHAPE(3), 2, TN_F64);
    tn_tensor *x = leaf(TN_SHAPE(3), 3, TN_F64), *s = leaf(TN_SHAPE(3), 4, TN_F64);
    tn_tensor *seed = tn_ones_like(tn_detach(a));
    assert_ok(tn_backward_from(tn_add(a, b), seed, 0));
    assert_ok(tn_backward_from(tn_add(x, x), seed, 0));
    assert_ok(tn_backward(tn_sum_all(s)));
    tn_list *l = letters(4, (tn_tensor *[]){ a, b, x, s });
    double norm = sqrt(3 + 3 + 12 + 3);
    ck_assert_double_eq_tol(tn_clip_grad_norm(l, norm / 2, 2, true), norm, 1e-14);
    double f = norm / 2 / (norm + 1e-6);
    assert_values(tn_grad(a), 1e-15, f, f, f);
    assert_values(tn_grad(b), 1e-15, f, f, f);
    assert_values(tn_grad(x), 1e-15, 2 * f, 2 * f, 2 * f);
    assert_values(tn_grad(s), 1e-15, f, f, f);
    assert_values(seed, 0, 1, 1, 1);
    assert_ok(tn_clip_grad_value(l, 0.25));
    assert_values(tn_grad(x), 0, .25, .25, .25);
    assert_values(seed, 0, 1, 1, 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("schedules");
    TCase *t = test_case(suite, "schedules");
    add_tests(t, warmup_cosine, LR_08_one_cycle_ends, LR_08_one_cycle_through_no_momentum,
              LR_10_plateau, schedules_compose, LR_12_plateau_below_zero, LR_11_order_of_loading,
              bad_schedules, schedules_stay_finite_and_shallow);
    tcase_add_loop_test(t, schedule_equals_pytorch, 0, COUNT(schedules));
    tcase_add_loop_test(t, plateau_equals_pytorch, 0, COUNT(plateaus));
    tcase_add_loop_test(t, LR_every_schedule_resumes_after_every_step, 0, KINDS);
    tcase_add_loop_test(t, LR_13_one_schedule_at_a_time, 0, KINDS);
    add_tests(test_case(suite, "clipping"), CL_01_CL_02_norm, CL_03_CL_04_non_finite_and_by_value,
              clipping_in_place_after_shared_gradients);
    return suite;
}
