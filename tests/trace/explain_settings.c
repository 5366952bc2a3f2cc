/*
 * explain_settings.c - tn_explain_training in the settings of the bundled programs: healthy runs of
 * xor, of the live page's nets and of batchnorm's network and schedule draw no finding, and each
 * mistake planted in one is named.
 *
 * Seen to fail: with rates judged by what a schedule has made of them, with a rate too low tried by
 * a step 1000 times as long, with a threshold of 3 % there, and with Adam's first steps left out.
 */
#include "models.h"
#include "trace/trace_read.h"

enum { BATCH = 32 };

typedef enum mistake {
    NONE,
    SIGMOID,
    FROM_ONE,
    NOT_SCALED,
    TOO_HIGH,
    TOO_LOW,
    SATURATED,
    IN_TRAIN_MODE,
    CONSTANT
} mistake;

static const char *const line[] = {
    [NONE] = "nothing to complain about",
    [SIGMOID] = "(loss): tn_bce_with_logits reads the result of tn_sigmoid",
    [FROM_ONE] = "(data): targets of tn_bce_with_logits from 1 to 2: want 0 to 1",
    [NOT_SCALED] = "(data): tn_linear reads [",
    [TOO_HIGH] = "want a lower lr",
    [TOO_LOW] = "want a higher lr",
    [SATURATED] = "are at their ends",
    [IN_TRAIN_MODE] = "moved 1 time under TN_NO_GRAD: if that was a test, want tn_eval before it",
    [CONSTANT] = "(loss): it is a constant",
};

/* One of two classes by one logit, as xor and the live page have them. */
typedef struct setting {
    const char *name;
    int layers, width;
    bool norms, relu;
    double sgd, adam, rmsprop; /* rates with which it learns; 0: not tried */
} setting;

static const setting settings[] = {
    { "xor", 1, 8, .adam = 0.05 },
    { "spirals", 2, 16, .norms = true, .sgd = 0.2, .adam = 0.01, .rmsprop = 0.005 },
    { "circles", 1, 8, .norms = true, .sgd = 0.2, .adam = 0.01, .rmsprop = 0.005 },
    { "circles", 2, 8, .relu = true, .sgd = 0.2, .adam = 0.02, .rmsprop = 0.005 },
};

static tn_module *net_of(const setting *s)
{
    tn_module *m = owned(tn_sequential_from(NULL, 0));
    for (int i = 0; i < s->layers; i++) {
        assert_ok(tn_module_append(
            m, tn_linear_new(i ? s->width : 2, s->width, (tn_linear_options){ 0 })));
        if (s->norms)
            assert_ok(
                tn_module_append(m, tn_batch_norm1d_new(s->width, (tn_batch_norm_options){ 0 })));
        assert_ok(tn_module_append(m, s->relu ? tn_relu_new() : tn_tanh_new()));
    }
    assert_ok(tn_module_append(m, tn_linear_new(s->width, 1, (tn_linear_options){ 0 })));
    return m;
}

typedef struct run {
    const setting *s;
    mistake planted;
    tn_tensor *x, *y;
} run;

/* A batch drawn anew, but of xor, which has four points. */
static void next(run *r)
{
    float x[BATCH][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } }, y[BATCH] = { 0, 1, 1, 0 };
    const int64_t n = strcmp(r->s->name, "xor") ? BATCH : 4;
    const float *u = tn_data(tn_rand(TN_SHAPE(BATCH, 2)));
    for (int i = 0; i < n && n > 4; i++) {
        const bool spiral = !strcmp(r->s->name, "spirals");
        const int label = i % 2;
        const double turn = 6.283185307179586, far = spiral  ? u[2 * i]
                                                     : label ? 0.5 * u[2 * i]
                                                             : 0.7 + 0.3 * u[2 * i];
        const double angle = spiral ? 1.75 * turn * far + label * turn / 2 : turn * u[2 * i + 1];
        x[i][0] = (float)(far * sin(angle)), x[i][1] = (float)(far * cos(angle));
        y[i] = (float)label;
    }
    r->x = tn_mul_scalar(tn_from_floats(x[0], TN_SHAPE(n, 2)), r->planted == NOT_SCALED ? 100 : 1);
    r->y = tn_add_scalar(tn_from_floats(y, TN_SHAPE(n, 1)), r->planted == FROM_ONE);
}

static tn_tensor *loss_of(tn_module *m, void *user)
{
    const run *r = user;
    tn_tensor *out = tn_forward(m, r->x);
    if (r->planted == SIGMOID) out = tn_sigmoid(out);
    out = tn_bce_with_logits(out, r->y, TN_NONE, TN_MEAN);
    return r->planted == CONSTANT ? tn_detach(out) : out;
}

static void step(tn_module *m, tn_optim *opt, tn_scheduler *schedule, tn_tensor *loss)
{
    assert_made(loss);
    assert_ok(tn_optim_zero_grad(opt));
    assert_ok(tn_backward(loss));
    assert_ok(tn_optim_step(opt));
    if (schedule) assert_ok(tn_scheduler_step(schedule));
    (void)m;
}

static tn_explain_report report;

/* Whether the line is found before some step: at once, and as training goes on. */
static bool named_in(run *r, tn_module *m, tn_optim *opt, const char *wanted, int steps)
{
    bool found = false;
    for (int i = 0; i <= steps; i++) TN_SCOPE
        {
            next(r);
            if (i < 3 || i == 11 || i % 40 == 0) {
                assert_ok(tn_explain_training(NULL, m, opt, loss_of, r, &report));
                found |= strstr(report.text, wanted) != NULL;
                ck_assert_msg(r->planted != NONE || report.findings == 0, "%s, step %d: %s",
                              r->s->name, i, report.text);
            }
            if (r->planted != CONSTANT) step(m, opt, NULL, loss_of(m, r));
        }
    return found;
}

static tn_optim *optimizer(tn_module *m, const setting *s, int kind, double times)
{
    const tn_list *p = tn_parameters(m);
    return kind == 0   ? owned(tn_sgd(p, (tn_sgd_options){ .lr = s->sgd * times }))
           : kind == 1 ? owned(tn_adam(p, (tn_adam_options){ .lr = s->adam * times }))
                       : owned(tn_rmsprop(p, (tn_rmsprop_options){ .lr = s->rmsprop * times }));
}

START_TEST(healthy_runs)
{
    const setting *s = &settings[_i / 3];
    if ((const double[]){ s->sgd, s->adam, s->rmsprop }[_i % 3] == 0) return;
    for (int seed = 1; seed <= 2; seed++) {
        tn_manual_seed(seed);
        run r = { .s = s };
        tn_module *m = net_of(s);
        ck_assert(named_in(&r, m, optimizer(m, s, _i % 3, 1), line[NONE], 300));
    }
}
END_TEST

START_TEST(planted_mistakes)
{
    const setting *s = &settings[_i / CONSTANT];
    run r = { .s = s, .planted = _i % CONSTANT + 1 };
    tn_manual_seed(1);
    tn_module *m = net_of(s);
    const double times = r.planted == TOO_HIGH ? 100 : r.planted == TOO_LOW ? 0.01 : 1;
    tn_optim *opt = optimizer(m, s, 1, times);
    if (r.planted == SATURATED && s->relu) return;
    if (r.planted == NOT_SCALED && !strcmp(s->name, "xor")) return; /* 8 numbers tell nothing */
    if (r.planted == IN_TRAIN_MODE && !s->norms) return;
    if (r.planted == TOO_LOW && s->norms) return; /* it learns all the same */
    if (r.planted == SATURATED)
        TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, s->norms ? "1.bias" : "0.bias"), 20));
    next(&r);
    if (r.planted == IN_TRAIN_MODE) TN_NO_GRAD assert_made(loss_of(m, &r));
    ck_assert_msg(named_in(&r, m, opt, line[r.planted], 120), "%s: want \"%s\", the last: %s",
                  s->name, line[r.planted], report.text);
}
END_TEST

/* batchnorm's network, optimizer and one-cycle schedule, whose rate ends near 0. */
static tn_tensor *images_loss(tn_module *m, void *user)
{
    const run *r = user;
    return tn_cross_entropy(tn_forward(m, r->x), r->y);
}

START_TEST(a_schedule_to_its_end)
{
    enum { STEPS = 60 };
    tn_manual_seed(1);
    tn_module *m = owned(cnn_new());
    tn_sgd_options o = { .lr = 0.01, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true };
    tn_optim *opt = owned(tn_sgd(tn_parameters(m), o));
    tn_one_cycle_options cycle = {
        .max_lr = o.lr, .pct_start = 0.2, .total_steps = STEPS, .fixed_momentum = true
    };
    tn_scheduler *schedule = owned(tn_one_cycle_lr(opt, cycle));
    for (int i = 0; i < STEPS; i++) TN_SCOPE
        {
            run r = { 0 };
            tn_tensor *x[4], *y[4];
            for (int k = 0; k < 4; k++) synthetic_images(4 * i + k, TN_F32, &x[k], &y[k]);
            r.x = tn_cat(x, 4, 0), r.y = tn_cat(y, 4, 0);
            if (i % 11 == 0 || i == STEPS - 1) {
                assert_ok(tn_explain_training(NULL, m, opt, images_loss, &r, &report));
                ck_assert_msg(report.findings == 0, "step %d, lr %g: %s", i, tn_optim_lr(opt, 0),
                              report.text);
            }
            step(m, opt, schedule, images_loss(m, &r));
        }
}
END_TEST

void explain_settings_cases(Suite *suite)
{
    TCase *t = test_case(suite, "settings");
    tcase_add_loop_test(t, healthy_runs, 0, 3 * (int)(sizeof settings / sizeof *settings));
    tcase_add_loop_test(t, planted_mistakes, 0,
                        CONSTANT * (int)(sizeof settings / sizeof *settings));
    tcase_add_test(t, a_schedule_to_its_end);
}
