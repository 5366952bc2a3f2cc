/*
 * explain_mistakes.c - tn_explain_training on the usual mistakes of data, loss, values, learning
 * rate and testing: each is named, and the same training without it is not.
 *
 * Learning rates: of the loss (w - 1)^2 a step of rate a goes from w to w - 2 a (w - 1), so the
 * best is 0.5, above 1 the loss grows, and 100 steps of 1e-5 go a five-hundredth of the way.
 *
 * Seen to fail: with each judge of src/ext/diagnose/explain_values.c and explain.c left out,
 * and without the line in src/nn/layers/batchnorm.c that counts.
 */
#include "models.h"
#include "trace/trace_read.h"

typedef struct patient {
    tn_tensor *x, *y;
    bool softmax, nll, two; /* two: by one logit, softmax a sigmoid */
} patient;

static tn_tensor *loss_of(tn_module *m, void *user)
{
    const patient *p = user;
    tn_tensor *out = tn_forward(m, p->x);
    if (p->two)
        return tn_bce_with_logits(p->softmax ? tn_sigmoid(out) : out, p->y, TN_NONE, TN_MEAN);
    if (p->softmax) out = tn_reshape(tn_softmax(out, 1), out->shape);
    return p->nll ? tn_nll_loss(out, p->y, (tn_cross_entropy_options){ 0 })
                  : tn_cross_entropy(out, p->y);
}

static tn_explain_report report;

/* The only mistake's line is there; "": there is none. */
static void assert_told(tn_module *m, tn_optim *opt, patient *p, const char *line)
{
    assert_ok(tn_explain_training(NULL, m, opt, loss_of, p, &report));
    ck_assert_msg(report.mistakes == (line[0] != 0) && strstr(report.text, line), "want \"%s\": %s",
                  line, report.text);
}

/* 64 points of two classes. */
static patient points(void)
{
    tn_tensor *x = random_as(TN_SHAPE(64, 2), -1, 1, 3, TN_F32);
    return (patient){ .x = x,
                      .y = tn_to_dtype(tn_gt_scalar(tn_prod(x, TN_AXES(1), false), 0), TN_I64) };
}

static tn_module *mlp(int64_t classes)
{
    tn_manual_seed(7);
    return owned(tn_sequential(tn_linear_new(2, 16, (tn_linear_options){ 0 }), tn_relu_new(),
                               tn_linear_new(16, classes, (tn_linear_options){ 0 })));
}

START_TEST(a_softmax_before_the_loss)
{
    tn_module *m = mlp(2);
    patient p = points();
    assert_told(m, NULL, &p, "");
    p.softmax = true;
    assert_told(m, NULL, &p,
                "(loss): tn_cross_entropy reads the result of tn_softmax (in the loss "
                "function): want logits");
    p.nll = true;
    assert_told(m, NULL, &p, "(loss): tn_nll_loss reads the result of tn_softmax");
    tn_tensor *w = tn_get_parameter(m, "0.weight");
    p.softmax = p.nll = false;
    TN_NO_GRAD assert_ok(tn_copy_(w, tn_mul_scalar(w, 2)));
    assert_told(m, NULL, &p, "");
}
END_TEST

START_TEST(two_classes_by_one_logit)
{
    tn_module *m = mlp(1);
    patient p = points();
    p.two = true;
    p.y = tn_to_dtype(tn_unsqueeze(p.y, 1), TN_F32);
    assert_told(m, NULL, &p, "");
    p.softmax = true;
    assert_told(m, NULL, &p,
                "(loss): tn_bce_with_logits reads the result of tn_sigmoid (in the loss "
                "function): want logits, since it takes the sigmoid itself");
    p.softmax = false;
    p.y = tn_add_scalar(p.y, 1);
    assert_told(m, NULL, &p,
                "(data): targets of tn_bce_with_logits from 1 to 2: want 0 to 1, classes counted "
                "from 0");
    p.y = tn_ones_like(p.y); /* as of a GAN's real images */
    assert_told(m, NULL, &p, "");
}
END_TEST

START_TEST(targets_that_are_not_shuffled)
{
    patient p = points();
    p.y = tn_full_as(TN_SHAPE(64), 1, TN_I64, tn_cpu());
    assert_told(mlp(2), NULL, &p, "(data): all 64 targets of tn_cross_entropy are class 1: want ");
    int64_t id[64];
    for (int i = 0; i < 64; i++) id[i] = 1 + i % 4;
    p.y = tn_from_ints(id, TN_SHAPE(64));
    assert_told(mlp(5), NULL, &p,
                "(data): of 64 targets of tn_cross_entropy none is class 0, and ");
    assert_told(mlp(6), NULL, &p, "");                      /* class 5 is not there either */
    for (int i = 0; i < 64; i++) id[i] = i < 49 ? -100 : 1; /* 15 count */
    p.y = tn_from_ints(id, TN_SHAPE(64));
    assert_told(mlp(2), NULL, &p, "");
}
END_TEST

START_TEST(labels_from_one)
{
    patient p = points();
    p.y = tn_add_scalar(p.y, 1);
    ck_assert_int_eq(tn_explain_training(NULL, mlp(2), NULL, loss_of, &p, &report), TN_E_INDEX);
    assert_error(TN_E_INDEX,
                 ": want 0..1 (or -100 to ignore); of labels from 1, want 1 subtracted");
}
END_TEST

START_TEST(inputs_that_are_not_scaled)
{
    patient p = points();
    p.x = tn_mul_scalar(tn_add_scalar(p.x, 1), 127.5);
    assert_told(mlp(2), NULL, &p, "(data): tn_linear reads [64,2] with values from ");
    p.x = tn_mul_scalar(p.x, 1 / 127.5);
    assert_told(mlp(2), NULL, &p, "");
}
END_TEST

START_TEST(units_that_are_dead)
{
    tn_module *m = mlp(2);
    patient p = points();
    tn_tensor *bias = tn_get_parameter(m, "0.bias");
    for (int k = 0; k < 2; k++) { /* 14 of 16, and 15 */
        TN_NO_GRAD assert_ok(tn_fill_(tn_narrow(bias, 0, 0, 14 + k), -10));
        assert_told(m, NULL, &p,
                    k ? "(values): 15 of 16 units of tn_relu are 0 for all 64 inputs (in 1: ReLU)"
                      : "");
    }
}
END_TEST

START_TEST(gates_at_their_ends)
{
    tn_module *act[] = { tn_sigmoid_new(), tn_tanh_new() };
    tn_module *m = owned(tn_sequential(tn_linear_new(2, 8, (tn_linear_options){ 0 }), act[_i],
                                       tn_linear_new(8, 2, (tn_linear_options){ 0 })));
    tn_module_drop(act[!_i]);
    patient p = points();
    assert_told(m, NULL, &p, "");
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "0.bias"), 30));
    assert_told(m, NULL, &p,
                _i ? "(values): 100 % of the results of tn_tanh are at their ends (in "
                     "1: Tanh): saturated"
                   : "(values): 100 % of the results of tn_sigmoid are at their ends");
}
END_TEST

static tn_tensor *last_sigmoid(tn_module *m, void *user)
{
    return tn_mean_all(tn_sigmoid(tn_forward(m, ((patient *)user)->x)));
}

START_TEST(a_probability_at_the_end_may_be_sure)
{
    tn_module *m = mlp(2);
    patient p = points();
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "2.bias"), 30));
    assert_ok(tn_explain_training(NULL, m, NULL, last_sigmoid, &p, &report));
    ck_assert_int_eq(report.mistakes, 0);
}
END_TEST

static tn_tensor *of_cells(tn_module *m, void *user)
{
    return tn_mean_all(tn_square(tn_forward(m, user)));
}

START_TEST(cells_at_their_ends)
{
    tn_module *m = owned(_i ? tn_lstm_new(3, 4, (tn_recurrent_options){ 0 })
                            : tn_gru_new(3, 4, (tn_recurrent_options){ 0 }));
    tn_tensor *x = random_as(TN_SHAPE(5, 6, 3), -1, 1, 4, TN_F32);
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_explain_training(NULL, m, NULL, of_cells, x, &report));
        ck_assert_msg(report.mistakes == k, "%s", report.text);
        TN_NO_GRAD x = tn_full(TN_SHAPE(5, 6, 3), 500);
        tn_list *all = tn_parameters(m);
        for (int i = 0; i < all->n && !k; i++)
            TN_NO_GRAD assert_ok(tn_fill_(all->entry[i].tensor, 0.02));
    }
    ck_assert_ptr_nonnull(strstr(report.text, _i ? "of the gates of tn_lstm" : "gates of tn_gru"));
}
END_TEST

static tn_tensor *parabola(tn_module *m, void *user)
{
    return tn_square(tn_sub(tn_forward(m, tn_ones(TN_SHAPE(1))), user));
}

START_TEST(learning_rates)
{
    static const struct {
        double lr;
        const char *line;
    } rows[] = { { 50,
                   "(optimizer): a step with its lr 50 takes the loss from 1 to 9801, a hundredth "
                   "of it to 0: want a lower lr" },
                 { 1.3, "" }, /* to 2.56 */
                 { 0.9, "" },
                 { 0.005, "" },
                 { 1e-5, "(optimizer): a step with its lr 1e-05 takes the loss from 1 to 0.99996, "
                         "one 100 times as long to 0.996004: want a higher lr" } };
    tn_module *m = owned(tn_linear_new(1, 1, (tn_linear_options){ .no_bias = true }));
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "weight"), 0));
    tn_optim *opt = owned(tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = rows[_i].lr }));
    for (int k = 0; k < 2; k++) { /* it is not moved by the look */
        assert_ok(tn_explain_training(NULL, m, opt, parabola, tn_ones(TN_SHAPE(1)), &report));
        ck_assert_int_eq(report.mistakes, rows[_i].line[0] != 0);
        ck_assert_msg(strstr(report.text, rows[_i].line), "%s", report.text);
        ck_assert(tn_item(tn_get_parameter(m, "weight")) == 0 && tn_optim_steps(opt) == 0);
    }
}
END_TEST

/* Momentum's first steps are a tenth of later ones, RMSprop's ten times as long. */
START_TEST(first_steps_of_state_are_not_judged)
{
    tn_module *m = owned(tn_linear_new(1, 1, (tn_linear_options){ .no_bias = true }));
    TN_NO_GRAD assert_ok(tn_fill_(tn_get_parameter(m, "weight"), 0));
    tn_sgd_options slow = { .lr = 1e-5, .momentum = 0.9 };
    tn_optim *opt = _i ? owned(tn_rmsprop(tn_parameters(m), (tn_rmsprop_options){ .lr = 0.3 }))
                       : owned(tn_sgd(tn_parameters(m), slow));
    assert_ok(tn_explain_training(NULL, m, opt, parabola, tn_ones(TN_SHAPE(1)), &report));
    ck_assert_msg(report.mistakes == 0, "%s", report.text);
}
END_TEST

/* L-BFGS steps with a closure; no error is set on the way, at which TN_TRAP=1 would abort. */
START_TEST(a_closure_is_not_judged)
{
    tn_module *m = owned(tn_linear_new(1, 1, (tn_linear_options){ .no_bias = true }));
    tn_optim *opt = owned(tn_lbfgs(tn_parameters(m), (tn_optim_options){ .lr = 1 }));
    setenv("TN_TRAP", "1", 1);
    assert_ok(tn_explain_training(NULL, m, opt, parabola, tn_full(TN_SHAPE(1), 9), &report));
    unsetenv("TN_TRAP");
    ck_assert_int_eq(report.findings, 0);
}
END_TEST

START_TEST(a_test_in_train_mode)
{
    tn_module *m = owned(tn_sequential(tn_linear_new(2, 4, (tn_linear_options){ 0 }),
                                       tn_batch_norm1d_new(4, (tn_batch_norm_options){ 0 })));
    patient p = points();
    assert_ok(tn_eval(m));
    TN_NO_GRAD assert_made(loss_of(m, &p)); /* as it should be */
    assert_ok(tn_train(m, true));
    assert_ok(tn_module_set_recompute(m, true));
    assert_ok(tn_backward(loss_of(m, &p)));
    assert_told(m, NULL, &p, "");
    TN_NO_GRAD assert_made(loss_of(m, &p));
    assert_told(m, NULL, &p, "1.running_mean: moved 1 time under TN_NO_GRAD: if that was a ");
}
END_TEST

static tn_tensor *of_text(tn_module *m, void *user)
{
    const patient *p = user;
    return tn_cross_entropy(tn_forward(m, p->x), p->y);
}

/* In the middle of healthy trainings, by SGD and Adam, nothing is found. */
START_TEST(healthy_training)
{
    tn_manual_seed(_i);
    const int kind = _i / 2;
    patient p = points();
    tn_module *m = kind == 0 ? mlp(2) : kind == 1 ? owned(cnn_new()) : owned(transformer_new());
    tn_optim *opt =
        _i % 2 ? owned(tn_adam(tn_parameters(m), (tn_adam_options){ 0 }))
               : owned(tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = kind == 1 ? 0.01 : 0.1 }));
    for (int step = 0; step < 60; step++) TN_SCOPE
        {
            patient now = p;
            if (kind == 1) synthetic_images(step, TN_F32, &now.x, &now.y);
            if (kind == 2) random_text(4, &now.x, &now.y);
            if (step % 20 == 0) {
                assert_ok(tn_explain_training(NULL, m, opt, of_text, &now, &report));
                ck_assert_msg(report.findings == 0, "step %d: %s", step, report.text);
            }
            train_step(m, opt, now.x, now.y);
        }
}
END_TEST

void explain_mistakes_cases(Suite *suite)
{
    TCase *t = test_case(suite, "mistakes");
    tcase_add_test(t, a_softmax_before_the_loss);
    tcase_add_test(t, two_classes_by_one_logit);
    tcase_add_test(t, targets_that_are_not_shuffled);
    tcase_add_test(t, labels_from_one);
    tcase_add_test(t, inputs_that_are_not_scaled);
    tcase_add_test(t, units_that_are_dead);
    tcase_add_loop_test(t, gates_at_their_ends, 0, 2);
    tcase_add_test(t, a_probability_at_the_end_may_be_sure);
    tcase_add_loop_test(t, cells_at_their_ends, 0, 2);
    tcase_add_loop_test(t, learning_rates, 0, 5);
    tcase_add_loop_test(t, first_steps_of_state_are_not_judged, 0, 2);
    tcase_add_test(t, a_closure_is_not_judged);
    tcase_add_test(t, a_test_in_train_mode);
    tcase_add_loop_test(t, healthy_training, 0, 6);
}
