/*
 * test_explain.c - tn_explain_training: every kind of finding with its exact line, silence on
 * healthy models, and nothing changed by the report. tn_module_summary: explain_summary.c.
 *
 * The lines are written by hand from how each model was broken.
 *
 * Seen to fail: without the look at `leads` (src/ext/diagnose/explain.c) a measurement beside the
 * loss is blamed (deep_in_the_tree); without handle_made nearly everything is "unregistered";
 * without putting back buffers or the generator the_next_step_is_the_same fails; with buffers
 * restored by their index among the slots a_deleted_buffer_harms_no_other fails; with a gate taken
 * for one op of all its inputs behind_a_backward_hook fails. gradients_that_are_used_twice fails
 * without any one line of use_up (src/optim/step.c), with any older gradient taken for a used one
 * (src/autograd/backward.c), and with marks that tn_set_grad leaves.
 */
#include <stddef.h>
#include <stdlib.h>

#include "nn/boxes.h"
#include "models.h"
#include "scarce.h"
#include "trace/trace_read.h"

/* ---- running it ------------------------------------------------------------------------------ */

static tn_explain_report report;

typedef tn_tensor *(*loss_function)(tn_module *m, void *user);

/* What a report must not change: values, gradients, random numbers, tensors alive. */
typedef struct still {
    uint64_t state, gradients;
    unsigned char generator[TN_GENERATOR_STATE_SIZE];
    int64_t live;
} still;

static still still_of(tn_module *m)
{
    tn_scope scope = tn_scope_begin();
    still s = { .state = state_hash(m) };
    tn_list *parameters = tn_parameters(m), *buffers = tn_buffers(m);
    for (int i = 0; i < parameters->n; i++) {
        tn_tensor *g = tn_grad(parameters->entry[i].tensor);
        s.gradients = s.gradients * 31 + (tn_is_none(g) ? 7 : tn_hash(g));
    }
    for (int i = 0; i < buffers->n; i++) /* those that no file holds too */
        s.state = s.state * 31 + tn_hash(buffers->entry[i].tensor);
    tn_generator_get_state(tn_default_generator(), s.generator);
    tn_scope_end(scope);
    s.live = tn_live_tensors();
    return s;
}

/* The findings, without the line above them; they are printed and reported alike. */
static const char *explain(tn_module *m, tn_optim *opt, loss_function loss, void *user)
{
    FILE *file = tmpfile();
    still before = still_of(m);
    assert_ok(tn_explain_training(file, m, opt, loss, user, &report));
    still after = still_of(m);
    ck_assert_uint_eq(after.state, before.state);
    ck_assert_uint_eq(after.gradients, before.gradients);
    ck_assert_mem_eq(after.generator, before.generator, sizeof before.generator);
    ck_assert_int_eq(after.live, before.live);
    const char *text = text_of(file);
    ck_assert_str_eq(text, report.text);
    ck_assert_int_eq(report.findings, report.unread + report.cut + report.unused + report.zero +
                                          report.nonfinite + report.unregistered + report.missing +
                                          report.foreign + report.reused + report.mistakes);
    const char *lines = strchr(text, '\n');
    ck_assert_ptr_nonnull(lines);
    return lines + 1;
}

#define assert_explained(m, opt, loss, user, wanted)                                               \
    ck_assert_str_eq(explain((m), (opt), (loss), (user)), (wanted))
#define HEALTHY "nothing to complain about\n"
/* Of the mean square of m's output for sample(). */
#define assert_found(m, opt, wanted)                                                               \
    assert_explained(&(m)->base, (opt), mean_square, sample(), wanted)

static tn_tensor *mean_of(tn_module *m, void *user)
{
    return tn_mean(tn_forward(m, user), NULL, 0, false);
}

static tn_tensor *mean_square(tn_module *m, void *user)
{
    return tn_mean(tn_square(tn_forward(m, user)), NULL, 0, false);
}

typedef struct batch {
    tn_tensor *x, *y;
} batch;

static tn_tensor *entropy(tn_module *m, void *user)
{
    const batch *b = user;
    return tn_cross_entropy(tn_forward(m, b->x), b->y);
}

static tn_optim *adam_of(tn_module *m)
{
    return owned(tn_adam(tn_parameters(m), (tn_adam_options){ 0 }));
}

/* Children "child" and "other", Linear(3, 3) each; forward is run. */
static box *pair(tn_tensor *(*run)(box *m, tn_tensor *x))
{
    tn_manual_seed(1);
    box *m = owned_box();
    assert_ok(tn_register_module(&m->base, "child", &m->child, linear(3, 3)));
    assert_ok(tn_register_module(&m->base, "other", &m->other, linear(3, 3)));
    m->run = run;
    return m;
}

/* What a box computes of x. */
#define FORWARD(name, y)                                                                           \
    static tn_tensor *name(box *m, tn_tensor *x)                                                   \
    {                                                                                              \
        return y;                                                                                  \
    }

FORWARD(both, tn_forward(m->other, tn_tanh(tn_forward(m->child, x))))

static tn_tensor *sample(void)
{
    return random_as(TN_SHAPE(2, 3), -1, 1, 5, TN_F32);
}

/* ---- silence --------------------------------------------------------------------------------- */

START_TEST(healthy_models_are_healthy)
{
    tn_manual_seed(_i);
    batch b;
    tn_module *m = owned(_i & 1 ? cnn_new() : transformer_new());
    if (_i & 1)
        synthetic_images(3, TN_F32, &b.x, &b.y);
    else
        random_text(2, &b.x, &b.y);
    if (_i & 2) assert_ok(tn_eval(m));
    tn_optim *opt = adam_of(m);
    assert_explained(m, opt, entropy, &b, HEALTHY);
    ck_assert_int_eq(report.findings, 0);
    ck_assert_double_eq(report.loss, tn_item(entropy(m, &b)));
    char headline[128];
    int n = tn_parameters(m)->n;
    snprintf(headline, sizeof headline, "%s: loss %.4g, a gradient for %d of %d parameters\n",
             m->type->name, report.loss, n, n);
    ck_assert_int_eq(strncmp(report.text, headline, strlen(headline)), 0);
    train_step(m, opt, b.x, b.y); /* and in the middle of training */
    assert_explained(m, opt, entropy, &b, HEALTHY);
    TN_NO_GRAD assert_explained(m, NULL, entropy, &b, HEALTHY);
}
END_TEST

/* Dropout, masks as inputs, a ModuleList, attention with its weights as a second output. */
static tn_tensor *attend(box *m, tn_tensor *x)
{
    tn_tensor *blocked = tn_triu(tn_ones(TN_SHAPE(4, 4)), 1);
    tn_attention_masks masks = { .mask = tn_gt_scalar(blocked, 0) };
    for (int i = 0; i < tn_module_children(m->child); i++)
        x = tn_encoder_layer_forward(tn_module_child(m->child, i), x, masks);
    tn_tensor *weights;
    return tn_multihead_attention_forward(m->other, x, x, x, masks, &weights);
}

START_TEST(attention_in_a_list_is_healthy)
{
    box *m = owned_box();
    assert_ok(tn_register_module(&m->base, "blocks", &m->child, tn_module_list_new()));
    for (int i = 0; i < 2; i++)
        assert_ok(tn_module_append(
            m->child, tn_encoder_layer_new(
                          8, 2, (tn_encoder_layer_options){ .feedforward = 16, .dropout = 0.5 })));
    assert_ok(tn_register_module(
        &m->base, "attention", &m->other,
        tn_multihead_attention_new(8, 2, (tn_multihead_attention_options){ 0 })));
    m->run = attend;
    tn_optim *opt = adam_of(&m->base);
    assert_explained(&m->base, opt, mean_square, random_as(TN_SHAPE(2, 4, 8), -1, 1, 2, TN_F32),
                     HEALTHY);
}
END_TEST

/* Two models in one loss: only the one that is asked about counts. */
static tn_tensor *adversary(tn_module *m, void *user)
{
    return tn_mean(tn_square(tn_forward(m, tn_tanh(tn_forward(user, sample())))), NULL, 0, false);
}

START_TEST(another_model_in_the_loss_is_no_finding)
{
    box *m = pair(both);
    tn_module *generator = owned(linear(3, 3));
    tn_optim *opt = adam_of(&m->base);
    assert_explained(&m->base, opt, adversary, generator, HEALTHY);
    ck_assert(tn_is_none(tn_grad(tn_get_parameter(generator, "weight"))));
}
END_TEST

/* ---- no gradient ----------------------------------------------------------------------------- */

FORWARD(first_only, tn_forward(m->child, x))
FORWARD(detached, tn_forward(m->other, tn_detach(tn_forward(m->child, x))))

static tn_tensor *unrecorded(box *m, tn_tensor *x)
{
    TN_NO_GRAD x = tn_forward(m->child, x);
    return tn_forward(m->other, x);
}

static tn_tensor *compared(box *m, tn_tensor *x)
{
    tn_tensor *h = tn_tanh(tn_forward(m->child, x));
    return tn_forward(m->other, tn_to_dtype(tn_gt_scalar(h, 0), TN_F32));
}

static tn_tensor *largest(box *m, tn_tensor *x)
{
    tn_tensor *at = tn_argmax(tn_forward(m->child, x), 1, false);
    return tn_forward(m->other, tn_to_dtype(tn_one_hot(at, 3), TN_F32));
}

static tn_tensor *rounded(box *m, tn_tensor *x)
{
    tn_tensor *h = tn_to_dtype(tn_mul_scalar(tn_forward(m->child, x), 10), TN_I32);
    return tn_forward(m->other, tn_to_dtype(h, TN_F32));
}

static tn_tensor *overwritten(tn_tensor *t, tn_tensor *x)
{
    tn_status status = TN_E_STATE;
    TN_NO_GRAD status = tn_copy_(t, x);
    return status == TN_OK ? t : NULL;
}

static tn_tensor *copied(box *m, tn_tensor *x)
{
    tn_tensor *h = tn_forward(m->child, x);
    return tn_forward(m->other, overwritten(tn_zeros_like(x), h));
}

/* The values of tn_max have a derivative, the indices have none. */
static tn_tensor *places(box *m, tn_tensor *x)
{
    tn_tensor *at;
    tn_max(tn_forward(m->child, x), 1, false, &at);
    return tn_forward(m->other, tn_to_dtype(tn_one_hot(at, 3), TN_F32));
}

/* Deep in the tree, named by its whole path; the cut that counts is on the way to the loss, not in
 * the measurement beside it. */
static tn_tensor *measured(box *m, tn_tensor *x)
{
    tn_tensor *h = tn_forward(m->child, x);
    tn_argmax(h, 1, false);
    tn_item(tn_mean(tn_detach(h), NULL, 0, false));
    TN_NO_GRAD h = tn_tanh(h);
    return tn_forward(m->other, h);
}

START_TEST(deep_in_the_tree)
{
    box *m = pair(measured);
    tn_module *list = tn_module_list_new();
    assert_ok(tn_module_append(list, linear(3, 3)));
    assert_ok(tn_module_append(list, tn_module_keep(&m->base)));
    box *root = owned_box();
    assert_ok(tn_register_module(&root->base, "blocks", &root->child, list));
    assert_ok(tn_register_module(&root->base, "stack", &root->other,
                                 tn_sequential(linear(3, 3), tn_module_keep(&m->base))));
    tn_module *stack = root->other;
    assert_explained(stack, NULL, mean_square, sample(),
                     "0.weight: no gradient: tn_tanh ran inside TN_NO_GRAD (in 1: Box)\n"
                     "0.bias: no gradient: tn_tanh ran inside TN_NO_GRAD (in 1: Box)\n"
                     "1.child.weight: no gradient: tn_tanh ran inside TN_NO_GRAD (in 1: Box)\n"
                     "1.child.bias: no gradient: tn_tanh ran inside TN_NO_GRAD (in 1: Box)\n"
                     "4 findings\n");
}
END_TEST

/* The value leaves the tensors and comes back. */
static tn_tensor *through_a_number(tn_module *m, void *user)
{
    return tn_from_floats((float[]){ (float)tn_item(mean_of(m, user)) }, TN_SCALAR);
}

START_TEST(a_loss_through_a_number)
{
    box *m = pair(first_only);
    explain(&m->base, NULL, through_a_number, sample());
    ck_assert_int_eq(report.unused, 2);
    ck_assert_int_eq(report.unread, 2);
    ck_assert_int_eq(report.mistakes, 1);
    ck_assert_ptr_nonnull(strstr(report.text, "\n(loss): it is a constant: no gradient leads "));
    ck_assert_ptr_nonnull(strstr(report.text, ", a gradient for 0 of 4 parameters\n"));
    ck_assert_ptr_nonnull(strstr(report.text,
                                 "child.bias: no gradient: its results do not reach the "
                                 "loss, the last one is of tn_mean (in the loss "
                                 "function)\n"));
    assert_ok(tn_explain_training(NULL, &m->base, NULL, mean_square, sample(), NULL));
}
END_TEST

/* A module of two inputs that reads one of them. With a backward hook both pass one gate. */
static tn_status first_input(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                             tn_tensor **out)
{
    (void)self, (void)n_in, (void)n_out;
    out[0] = tn_tanh(in[0]);
    return out[0] ? TN_OK : tn_error_status();
}

static tn_status look_on(tn_module *m, int n_in, tn_tensor **grad_in, int n_out,
                         tn_tensor *const *grad_out, void *user)
{
    (void)m, (void)n_in, (void)grad_in, (void)n_out, (void)grad_out;
    ++*(int *)user;
    return TN_OK;
}

static tn_module *chooser;

/* The second input, which goes nowhere, holds a detached result. */
static tn_tensor *chosen(box *m, tn_tensor *x)
{
    tn_tensor *h = tn_forward(m->child, x), *out;
    tn_tensor *in[] = { h, tn_add(h, tn_detach(tn_forward(m->other, x))) };
    return tn_call(chooser, 2, in, 1, &out) == TN_OK ? out : NULL;
}

START_TEST(behind_a_backward_hook)
{
    static const tn_module_type type = { .name = "First",
                                         .size = sizeof(tn_module),
                                         .forward_n = first_input };
    box *m = pair(chosen);
    int seen = 0;
    chooser = tn_module_done(tn_module_new(&type));
    assert_ok(tn_register_module(&m->base, "chooser", NULL, chooser));
    ck_assert_int_gt(tn_register_full_backward_hook(chooser, look_on, &seen), 0);
    explain(&m->base, NULL, mean_square, sample());
    ck_assert_int_eq(seen, 1);
    ck_assert_int_eq(report.findings, 2);
    ck_assert_int_eq(report.unused, 2);
    ck_assert_ptr_nonnull(strstr(report.text, "other.weight: no gradient: its results do not"));
}
END_TEST

START_TEST(a_tied_weight_is_one_parameter)
{
    box *m = pair(detached);
    tn_tensor *weight = tn_get_parameter(m->child, "weight");
    assert_ok(tn_module_set(m->other, "weight", weight)); /* the gradient comes by other */
    assert_found(m, NULL,
                 "child.bias: no gradient: tn_detach cuts it off (in Box)\n"
                 "1 finding\n");
    m->run = measured;
    assert_ok(tn_module_set_requires_grad(&m->base, false));
    explain(&m->base, NULL, mean_square, sample());
    ck_assert_int_eq(report.frozen, 3);
}
END_TEST

START_TEST(frozen_is_no_fault)
{
    box *m = pair(both);
    tn_optim *opt = adam_of(&m->base);
    assert_ok(tn_module_freeze(m->child));
    assert_found(m, opt,
                 "child.weight: frozen, so the optimizer skips it\n"
                 "child.bias: frozen, so the optimizer skips it\n" HEALTHY);
    ck_assert_int_eq(report.frozen, 2);
    ck_assert_int_eq(report.findings, 0);
    ck_assert_ptr_nonnull(strstr(report.text, ", a gradient for 2 of 4 parameters\n"));
    tn_module *many =
        owned(tn_sequential(linear(3, 3), linear(3, 3), linear(3, 3), linear(3, 3), linear(3, 3)));
    for (int i = 0; i < 5; i++)
        assert_ok(tn_set_requires_grad(tn_get_parameter(tn_module_child(many, i), "bias"), false));
    for (int i = 0; i < 5; i++)
        assert_ok(
            tn_set_requires_grad(tn_get_parameter(tn_module_child(many, i), "weight"), false));
    explain(many, NULL, mean_square, sample());
    ck_assert_int_eq(report.frozen, 10);
    ck_assert_ptr_nonnull(strstr(report.text, "3.bias: frozen\nand 2 more frozen\n" HEALTHY));
}
END_TEST

/* ---- useless gradients ----------------------------------------------------------------------- */

static tn_tensor *explode(tn_tensor *g, void *user)
{
    return tn_mul_scalar(g, *(const double *)user);
}

START_TEST(infinite_gradients)
{
    box *m = pair(both);
    double factor = INFINITY;
    tn_tensor *bias = tn_get_parameter(m->other, "bias");
    int64_t hook = tn_register_hook(bias, explode, &factor);
    assert_found(m, NULL, "other.bias: its gradient holds inf\n1 finding\n");
    factor = NAN;
    assert_found(m, NULL, "other.bias: its gradient holds nan\n1 finding\n");
    ck_assert_int_eq(report.nonfinite, 1);
    tn_remove_hook(bias, hook);
}
END_TEST

START_TEST(a_loss_that_is_no_number)
{
    box *m = pair(both);
    assert_explained(
        &m->base, NULL, mean_square, tn_full(TN_SHAPE(2, 3), NAN),
        "(loss): it is nan: tn_set_anomaly names the op that made it so, TN_DEBUG=1 in "
        "the environment a tensor that was used after it was freed\n"
        "1 finding\n");
    ck_assert(isnan(report.loss));
    tn_set_anomaly(TN_ANOMALY_ALL); /* finds nothing meanwhile, and is there afterwards */
    explain(&m->base, NULL, mean_square, tn_full(TN_SHAPE(2, 3), NAN));
    ck_assert_int_eq(report.nonfinite, 1);
    ck_assert_int_eq(tn_set_anomaly(TN_ANOMALY_OFF), TN_ANOMALY_ALL);
}
END_TEST

/* ---- tensors that the model does not know ---------------------------------------------------- */

static tn_tensor *outside;

FORWARD(shifted, tn_forward(m->other, tn_add(tn_forward(m->child, x), m->a)))
FORWARD(shifted_in_child, tn_forward(m->other, tn_mul(tn_forward(m->child, x), outside)))

static tn_tensor *handed_on(box *m, tn_tensor *x)
{
    tn_tensor *y = tn_forward(m->other, tn_narrow(m->a, 1, 0, 3));
    return tn_mul(y, tn_forward(m->child, tn_mul(tn_sum(m->b, NULL, 0, false), x)));
}

FORWARD(given_to_child, tn_add(tn_forward(m->child, x), tn_forward(m->other, m->a)))
FORWARD(kept_in_place, overwritten(m->a, x) ? both(m, x) : NULL)

/* Inputs, what forward makes, and what the loss reads are all right. */
static tn_tensor *makes_its_own(box *m, tn_tensor *x)
{
    tn_tensor *ones = tn_ones_like(x);
    return tn_mul(both(m, tn_add(x, ones)), tn_from_floats((float[]){ 2 }, TN_SCALAR));
}

static tn_tensor *against_target(tn_module *m, void *user)
{
    return tn_mse_loss(tn_forward(m, user), outside, TN_MEAN);
}

START_TEST(what_is_not_unregistered)
{
    box *m = pair(makes_its_own);
    outside = sample();
    assert_explained(&m->base, NULL, against_target, outside, HEALTHY);
    tn_tensor *view = tn_transpose(tn_transpose(outside, 0, 1), 0, 1);
    assert_explained(&m->base, NULL, against_target, view, HEALTHY);
}
END_TEST

/* A module that is called but was never registered: its parameters are nobody's. */
static tn_module *teacher;

FORWARD(with_teacher, tn_add(both(m, x), tn_forward(teacher, x)))

/* ---- one fault each -------------------------------------------------------------------------- */

static tn_tensor *with_side_result(box *m, tn_tensor *x)
{
    tn_relu(tn_forward(m->other, x));
    return tn_forward(m->child, x);
}

static tn_tensor *shifted_by_name(box *m, tn_tensor *x)
{
    assert_ok(tn_set_name(m->a, "shift"));
    return shifted(m, x);
}

FORWARD(dead, tn_forward(m->other, tn_relu(tn_sub_scalar(tn_forward(m->child, x), 100))))

#define BOTH(name, why)                                                                            \
    name ".weight: no gradient: " why "\n" name ".bias: no gradient: " why "\n2 findings\n"
#define ZERO(name) name ": its gradient is zero everywhere\n"
#define LOST ": neither saved nor moved\n"
#define FIELD(reads) "(model): " reads ", a field of Box that is not registered" LOST
#define OF_TEACHER(what)                                                                           \
    "(model): tn_linear reads " what ", a parameter of a module that is not registered in the "    \
    "model" LOST
#define COUNTED(field) offsetof(tn_explain_report, field)

static const struct {
    tn_tensor *(*run)(box *m, tn_tensor *x);
    size_t count; /* where the report has it */
    int n;
    const char *wanted;
} faults[] = {
    { first_only, COUNTED(unread), 2, BOTH("other", "never read") },
    /* The history of what was made by child ends in an op of the model itself. */
    { detached, COUNTED(cut), 2, BOTH("child", "tn_detach cuts it off (in Box)") },
    { unrecorded, COUNTED(cut), 2,
      BOTH("child", "tn_linear ran inside TN_NO_GRAD (in child: Linear)") },
    { compared, COUNTED(cut), 2, BOTH("child", "tn_gt_scalar has no derivative (in Box)") },
    { largest, COUNTED(cut), 2, BOTH("child", "tn_argmax has no derivative (in Box)") },
    { rounded, COUNTED(cut), 2, BOTH("child", "tn_to_dtype made i32 of it (in Box)") },
    { copied, COUNTED(cut), 2, BOTH("child", "tn_copy_ records nothing (in Box)") },
    { places, COUNTED(cut), 2, BOTH("child", "tn_max made i64 of it (in Box)") },
    { with_side_result, COUNTED(unused), 2,
      BOTH("other", "its results do not reach the loss, the last one is of tn_relu (in Box)") },
    { dead, COUNTED(zero), 3,
      ZERO("child.weight") ZERO("child.bias") ZERO("other.weight") "3 findings\n" },
    { shifted, COUNTED(unregistered), 1, FIELD("tn_add reads [3]") "1 finding\n" },
    { shifted_by_name, COUNTED(unregistered), 1, FIELD("tn_add reads shift [3]") "1 finding\n" },
    { shifted_in_child, COUNTED(unregistered), 1,
      "(model): tn_mul reads [3], no input, parameter or buffer" LOST "1 finding\n" },
    /* two fields, through a view and a reduction */
    { handed_on, COUNTED(unregistered), 2,
      FIELD("tn_slice reads [2,4]") FIELD("tn_sum reads [2]") "2 findings\n" },
    { given_to_child, COUNTED(unregistered), 1, FIELD("other is given [2,3]") "1 finding\n" },
    { kept_in_place, COUNTED(unregistered), 1, FIELD("tn_copy_ reads [2,3]") "1 finding\n" },
    { with_teacher, COUNTED(unregistered), 2,
      OF_TEACHER("weight [3,3]") OF_TEACHER("bias [3]") "2 findings\n" },
};

START_TEST(a_fault_is_found)
{
    box *m = pair(faults[_i].run);
    m->a = tn_ones(m->run == handed_on                                   ? TN_SHAPE(2, 4)
                   : m->run == given_to_child || m->run == kept_in_place ? TN_SHAPE(2, 3)
                                                                         : TN_SHAPE(3));
    m->b = tn_ones(TN_SHAPE(2));
    outside = tn_full(TN_SHAPE(3), 2);
    teacher = owned(linear(3, 3));
    assert_found(m, NULL, faults[_i].wanted);
    ck_assert_int_eq(report.findings, faults[_i].n);
    ck_assert_int_eq(*(int *)((char *)&report + faults[_i].count), faults[_i].n);
}
END_TEST

START_TEST(registered_is_no_fault)
{
    box *m = pair(shifted);
    assert_ok(tn_register_buffer(&m->base, "shift", &m->a, tn_ones(TN_SHAPE(3)), TN_PERSISTENT));
    assert_found(m, NULL, HEALTHY);
}
END_TEST

/* ---- the optimizer --------------------------------------------------------------------------- */

START_TEST(an_optimizer_over_half_a_model)
{
    box *m = pair(both);
    tn_optim *half = adam_of(m->other); /* its names are those of a Linear */
    assert_found(m, half,
                 "child.weight: the optimizer does not hold it\n"
                 "child.bias: the optimizer does not hold it\n"
                 "2 findings\n");
    ck_assert_int_eq(report.missing, 2);
    assert_explained(m->child, half, mean_square, sample(),
                     "weight: the optimizer does not hold it, but another tensor of that name\n"
                     "bias: the optimizer does not hold it, but another tensor of that name\n"
                     "weight: the optimizer holds it, the model does not\n"
                     "bias: the optimizer holds it, the model does not\n"
                     "4 findings\n");
    ck_assert_int_eq(report.foreign, 2);
}
END_TEST

#define REUSED                                                                                     \
    "(optimizer): its last step used gradients that an earlier step had used: want "               \
    "tn_optim_zero_grad before each backward\n1 finding\n"

static void replace_by_hand(char how, tn_tensor *t)
{
    tn_tensor *grad = tn_grad(t);
    switch (how) {
    case 'h': assert_ok(tn_zero_(grad)); break;
    case 'f': assert_ok(tn_fill_(grad, 0)); break;
    case 'c': assert_ok(tn_copy_(grad, tn_ones_like(grad))); break;
    case 'd': memset(tn_data_mut(grad), 0, (size_t)tn_numel(grad) * sizeof(float)); break;
    case 'g': assert_ok(tn_set_grad(t, tn_ones_like(t))); break;
    case 'x': assert_ok(tn_mul_scalar_(grad, 0.5)); break;          /* they are still in it */
    case 'p': assert_ok(tn_zero_(tn_narrow(grad, 0, 0, 1))); break; /* in the rest of it */
    case 'n': assert_ok(tn_set_grad(t, TN_NONE)); break;
    default: ck_abort_msg("'%c'", how);
    }
}

/* What a training does, a letter each; what is found meanwhile. */
static void train_by_letter(box *m, tn_optim *opt, char letter)
{
    tn_list *parameters = tn_parameters(&m->base);
    switch (letter) {
    case 'b': assert_ok(tn_backward(mean_square(&m->base, sample()))); break;
    case 'o': assert_ok(tn_backward(mean_of(&m->base, sample()))); break; /* of another loss */
    case 's': assert_ok(tn_optim_step(opt)); break;
    case 'z': assert_ok(tn_optim_zero_grad(opt)); break;
    case 'm': assert_ok(tn_module_zero_grad(&m->base)); break;
    case ':': assert_found(m, opt, HEALTHY); break;
    case '!': assert_found(m, opt, REUSED); break;
    case '?': assert_found(m, NULL, HEALTHY); break;
    case 'N': /* only one parameter is left out */
        for (int i = 1; i < parameters->n; i++) replace_by_hand('n', parameters->entry[i].tensor);
        break;
    default:
        for (int i = 0; i < parameters->n; i++)
            replace_by_hand(letter, parameters->entry[i].tensor);
    }
}

static const char *const trainings[] = {
    /* Added, but not yet used again; only one left out; what was cleared by hand since is clear. */
    "bs:b:s!bsbs!?zbs:zbsNbs!hbs:",
    /* What is no mistake: two passes for one step, zeros written by hand, the gradients of another
     * loss that are cleared before the next step, one gradient for two steps, the user's own. */
    "zbbszbbszbbs:hbs:hbs:hbs:zbsozbsozbso:mbss:gbs:",
    "bsbs!s:", /* a step more with the same gradients */
    /* Gradients that grew on used ones, and were then replaced by hand, in several ways. */
    "zbsbhbs:",
    "zbsbfbs:",
    "zbsbcbs:",
    "zbsbdbs:",
    "zbsbxbs!",
    "zbsbpbs!",
};

START_TEST(gradients_that_are_used_twice)
{
    box *m = pair(both);
    tn_optim *opt = adam_of(&m->base);
    for (const char *letter = trainings[_i]; *letter; letter++) {
        train_by_letter(m, opt, *letter);
        if (*letter == ':' || *letter == '!') ck_assert_int_eq(report.reused, *letter == '!');
    }
}
END_TEST

/* ---- nothing lasts --------------------------------------------------------------------------- */

static tn_tensor *cached(box *m, tn_tensor *x)
{
    tn_tensor *all = tn_is_none(m->a) ? x : tn_cat((tn_tensor *[]){ m->a, x }, 2, 0);
    if (tn_assign(&m->a, all) != TN_OK) return NULL;
    if (tn_assign(&m->b, tn_add_scalar(m->b, 1)) != TN_OK) return NULL; /* a new tensor */
    return tn_add(both(m, x), tn_mul_scalar(tn_mean(m->a, NULL, 0, false), tn_item(m->b)));
}

START_TEST(buffers_are_put_back)
{
    box *m = pair(cached);
    assert_ok(tn_register_buffer(&m->base, "cache", &m->a, TN_NONE, TN_NON_PERSISTENT));
    assert_ok(tn_register_buffer(&m->base, "count", &m->b, tn_zeros(TN_SCALAR), TN_PERSISTENT));
    tn_tensor *count = m->b;
    assert_found(m, NULL, HEALTHY);
    ck_assert(tn_is_none(m->a));
    ck_assert_ptr_eq(m->b, count);
    ck_assert_ptr_eq(m->b, tn_get_buffer(&m->base, "count"));
    assert_made(mean_square(&m->base, sample()));
    assert_found(m, NULL, HEALTHY);
    ck_assert_int_eq(tn_size(m->a, 0), 2);
}
END_TEST

static tn_tensor *spent(box *m, tn_tensor *x)
{
    if (tn_get_buffer(&m->base, "once")) {
        if (tn_module_delete(&m->base, "once") != TN_OK) return NULL;
        tn_tensor *seven = tn_full(TN_SCALAR, 7); /* its name lies where "once" did */
        if (tn_register_buffer(&m->base, "then", NULL, seven, TN_PERSISTENT) != TN_OK) return NULL;
    }
    tn_error_clear();
    if (tn_assign(&m->b, tn_add_scalar(m->b, 1)) != TN_OK) return NULL;
    return tn_add(both(m, x), m->b);
}

START_TEST(a_deleted_buffer_harms_no_other)
{
    box *m = pair(spent);
    assert_ok(tn_register_buffer(&m->base, "once", NULL, tn_ones(TN_SCALAR), TN_PERSISTENT));
    assert_ok(tn_register_buffer(&m->base, "count", &m->b, tn_zeros(TN_SCALAR), TN_PERSISTENT));
    tn_tensor *count = m->b;
    assert_ok(tn_explain_training(NULL, &m->base, NULL, mean_square, sample(), &report));
    ck_assert_int_eq(report.findings, 0);
    ck_assert_int_eq(tn_buffers(&m->base)->n, 2);
    ck_assert(tn_item(tn_get_buffer(&m->base, "then")) == 7);
    ck_assert_ptr_eq(m->b, count);
    ck_assert(tn_item(m->b) == 0);
}
END_TEST

typedef struct counter {
    tn_module base;
    int64_t calls;
    tn_tensor *scale;
} counter;

static tn_tensor *counter_forward(tn_module *self, tn_tensor *x)
{
    counter *m = (counter *)self;
    m->calls++;
    return tn_mul(x, m->scale);
}

static tn_tensor *counter_state(tn_module *self)
{
    return tn_from_ints(&((counter *)self)->calls, TN_SCALAR);
}

static tn_status counter_set(tn_module *self, tn_tensor *state)
{
    ((counter *)self)->calls = (int64_t)tn_item(state);
    return TN_OK;
}

START_TEST(extra_state_is_put_back)
{
    static const tn_module_type type = { .name = "Counter",
                                         .size = sizeof(counter),
                                         .forward = counter_forward,
                                         .extra_state = counter_state,
                                         .set_extra_state = counter_set };
    counter *m = tn_module_new(&type);
    tn_register_parameter(&m->base, "scale", &m->scale, tn_ones(TN_SHAPE(3)));
    owned(tn_module_done(&m->base));
    assert_made(tn_forward(&m->base, sample()));
    assert_found(m, NULL, HEALTHY);
    ck_assert_int_eq(m->calls, 1);
}
END_TEST

START_TEST(the_next_step_is_the_same)
{
    double loss[2];
    for (int looked = 0; looked < 2; looked++) {
        tn_manual_seed(4);
        tn_module *m =
            owned(tn_sequential(linear(3, 8), tn_batch_norm1d_new(8, (tn_batch_norm_options){ 0 }),
                                tn_dropout_new(0.5), linear(8, 3)));
        tn_optim *opt = adam_of(m);
        batch b = { random_as(TN_SHAPE(6, 3), -1, 1, 9, TN_F32),
                    tn_from_ints((int64_t[]){ 0, 1, 2, 0, 1, 2 }, TN_SHAPE(6)) };
        for (int step = 0; step < 5; step++) {
            if (looked) assert_explained(m, opt, entropy, &b, HEALTHY);
            loss[looked] = train_step(m, opt, b.x, b.y);
        }
    }
    ck_assert_double_eq(loss[0], loss[1]);
}
END_TEST

/* ---- errors ---------------------------------------------------------------------------------- */

static tn_tensor *broken(box *m, tn_tensor *x)
{
    if (tn_assign(&m->a, tn_add_scalar(m->a, 1)) != TN_OK) return NULL;
    return tn_matmul(both(m, x), tn_ones(TN_SHAPE(7)));
}

static tn_tensor *whole_output(tn_module *m, void *user)
{
    return tn_forward(m, user);
}

static tn_tensor *nothing(tn_module *m, void *user)
{
    (void)m, (void)user;
    return NULL;
}

static tn_tensor *own_backward(tn_module *m, void *user)
{
    tn_tensor *loss = mean_square(m, user);
    return tn_backward(loss) == TN_OK ? loss : NULL;
}

START_TEST(a_loss_that_fails)
{
    box *m = pair(broken);
    assert_ok(tn_register_buffer(&m->base, "count", &m->a, tn_zeros(TN_SCALAR), TN_PERSISTENT));
    tn_module *root = &m->base;
    tn_tensor *x = sample();
    still before = still_of(root);
    FILE *file = tmpfile();
    report.findings = 77;
    assert_fails(tn_explain_training(file, root, NULL, mean_square, x, &report), TN_E_SHAPE,
                 "tn_matmul: a [2,3], b [7]");
    m->run = both;
    assert_fails(tn_explain_training(file, root, NULL, whole_output, x, &report), TN_E_SHAPE,
                 "the loss is [2,3]: want one element");
    assert_fails(tn_explain_training(file, root, NULL, nothing, NULL, &report), TN_E_INVALID,
                 "the loss is NULL");
    assert_fails(tn_explain_training(file, root, NULL, NULL, NULL, &report), TN_E_INVALID,
                 "want a function");
    assert_fails(tn_explain_training(file, NULL, NULL, mean_square, NULL, &report), TN_E_INVALID,
                 "module");
    assert_fails(tn_explain_training(file, root, NULL, own_backward, x, &report), TN_E_STATE,
                 "TN_RETAIN_GRAPH");
    ck_assert_str_eq(text_of(file), "");
    ck_assert_int_eq(report.findings, 77);
    assert_ok(tn_module_zero_grad(root)); /* own_backward's */
    still after = still_of(root);
    ck_assert_uint_eq(after.state, before.state);
    ck_assert_int_eq(after.live, before.live);
    ck_assert(tn_grad_enabled());
    assert_explained(root, NULL, mean_square, sample(), HEALTHY); /* no hook was left */
}
END_TEST

/* The report's text ends with "..." where it is full; what is printed does not. */
START_TEST(a_long_report_is_cut)
{
    box *m = owned_box();
    char name[64];
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "a_parameter_with_a_long_name_%d", i);
        assert_ok(tn_register_parameter(&m->base, name, NULL, tn_ones(TN_SHAPE(1))));
    }
    FILE *file = tmpfile();
    assert_ok(tn_explain_training(file, &m->base, NULL, mean_square, sample(), &report));
    const char *text = text_of(file);
    ck_assert_int_eq(report.unread, 400);
    size_t n = strlen(report.text);
    ck_assert_uint_lt(n, sizeof report.text);
    ck_assert_str_eq(report.text + n - 5, "\n...\n");
    ck_assert_int_eq(strncmp(text, report.text, n - 4), 0);
    ck_assert_ptr_nonnull(strstr(text, "_399: no gradient: never read\n401 findings\n"));
}
END_TEST

typedef struct scarce_report {
    box *m;
    tn_optim *opt;
    tn_tensor *x;
    still before;
    int64_t in_use;
} scarce_report;

/* Only memory for a name in messages was missing, or nothing: all is found. */
static tn_status explain_scarcely(void *user)
{
    const scarce_report *s = user;
    tn_status status = tn_explain_training(NULL, &s->m->base, s->opt, mean_square, s->x, &report);
    if (status == TN_OK) ck_assert_int_eq(report.findings, 2);
    return status;
}

static void nothing_is_left(void *user)
{
    const scarce_report *s = user;
    ck_assert_int_eq(tn_memory().in_use, s->in_use);
    ck_assert_int_eq(still_of(&s->m->base).live, s->before.live);
    ck_assert(tn_is_none(s->m->a));
}

START_TEST(memory_that_runs_out)
{
    scarce_install();
    box *m = pair(cached);
    assert_ok(tn_register_buffer(&m->base, "cache", &m->a, TN_NONE, TN_NON_PERSISTENT));
    assert_ok(tn_register_buffer(&m->base, "count", &m->b, tn_zeros(TN_SCALAR), TN_PERSISTENT));
    m->c = tn_ones(TN_SHAPE(3));
    scarce_report s = { .m = m, .opt = adam_of(m->child), .x = sample() };
    assert_ok(explain_scarcely(&s));
    s.before = still_of(&m->base), s.in_use = tn_memory().in_use;
    scarce_sweep(explain_scarcely, nothing_is_left, &s);
    nothing_is_left(&s);
}
END_TEST

/* ---- the one in docs/training.md ------------------------------------------------------------- */

typedef struct net {
    tn_module base;
    tn_module *encoder, *aux, *head;
    tn_tensor *scale;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x)
{
    net *m = (net *)self;
    tn_tensor *h = tn_tanh(tn_forward(m->encoder, tn_mul(x, m->scale)));
    return tn_forward(m->head, tn_detach(h));
}

START_TEST(what_the_docs_show)
{
    static const tn_module_type type = { .name = "Net",
                                         .size = sizeof(net),
                                         .forward = net_forward };
    tn_manual_seed(0);
    net *m = tn_module_new(&type);
    tn_register_module(&m->base, "encoder", &m->encoder, linear(2, 8));
    tn_register_module(&m->base, "aux", &m->aux, linear(8, 8));
    tn_register_module(&m->base, "head", &m->head, linear(8, 2));
    owned(tn_module_done(&m->base));
    m->scale = tn_full(TN_SHAPE(2), 0.5);
    assert_ok(tn_set_name(m->scale, "scale"));
    tn_list *held = tn_list_concat(tn_named_parameters(m->encoder, "encoder."),
                                   tn_named_parameters(m->head, "head."));
    tn_optim *opt = owned(tn_adam(held, (tn_adam_options){ 0 }));
    batch b = { random_as(TN_SHAPE(16, 2), -1, 1, 1, TN_F32), tn_randint(0, 2, TN_SHAPE(16)) };
    explain(&m->base, opt, entropy, &b);
    ck_assert_int_eq(report.findings, 7);
    const char *page = text_of(fopen(golden_path("../../docs/training.md"), "r"));
    ck_assert_msg(strstr(page, report.text) != NULL, "docs/training.md lacks:\n%s", report.text);
}
END_TEST

Suite *test_suite(void)
{
    setenv("TN_CACHE", "0", 1); /* read at the first allocation: the allocator sees them all */
    Suite *s = suite_create("explain");
    TCase *t = test_case(s, "silence");
    tcase_add_loop_test(t, healthy_models_are_healthy, 0, 4);
    tcase_add_test(t, attention_in_a_list_is_healthy);
    tcase_add_test(t, another_model_in_the_loss_is_no_finding);
    t = test_case(s, "no gradient");
    tcase_add_loop_test(t, a_fault_is_found, 0, (int)(sizeof faults / sizeof *faults));
    tcase_add_test(t, deep_in_the_tree);
    tcase_add_test(t, a_loss_through_a_number);
    tcase_add_test(t, behind_a_backward_hook);
    tcase_add_test(t, a_tied_weight_is_one_parameter);
    tcase_add_test(t, frozen_is_no_fault);
    t = test_case(s, "gradients of no use");
    tcase_add_test(t, infinite_gradients);
    tcase_add_test(t, a_loss_that_is_no_number);
    t = test_case(s, "unregistered");
    tcase_add_test(t, registered_is_no_fault);
    tcase_add_test(t, what_is_not_unregistered);
    t = test_case(s, "optimizer");
    tcase_add_test(t, an_optimizer_over_half_a_model);
    tcase_add_loop_test(t, gradients_that_are_used_twice, 0, sizeof trainings / sizeof *trainings);
    t = test_case(s, "nothing lasts");
    tcase_add_test(t, buffers_are_put_back);
    tcase_add_test(t, a_deleted_buffer_harms_no_other);
    tcase_add_test(t, extra_state_is_put_back);
    tcase_add_test(t, the_next_step_is_the_same);
    tcase_add_test(t, a_loss_that_fails);
    tcase_add_test(t, a_long_report_is_cut);
    tcase_add_test(t, memory_that_runs_out);
    t = test_case(s, "readme");
    tcase_add_test(t, what_the_docs_show);
    explain_summary_cases(s);
    explain_mistakes_cases(s);
    explain_settings_cases(s);
    return s;
}
