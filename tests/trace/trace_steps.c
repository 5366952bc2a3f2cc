/*
 * trace_steps.c - what a trace makes of a step: several passes, hooks, optimizers, tensors that
 * come and go. Truth: graphs small enough to know.
 */
#include "trace/trace_cases.h"
#include "trace/trace_read.h"

static const tn_trace_options plain;

/* ---- steps ----------------------------------------------------------------------------------- */

START_TEST(two_backwards_accumulate)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 3, "w");
    tn_trace *tr = begin(plain);
    assert_ok(tn_backward(sum(tn_mul_scalar(w, 2))));
    assert_ok(tn_backward(sum(tn_mul(w, w))));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(tr->log.n_steps, 1);
    ck_assert_int_eq(s->n_passes, 2);
    const tni_log_back *last = s->backs[s->n_backs - 1];
    ck_assert_int_eq(last->n_shares, 2);
    ck_assert(last->shares[0].before.value[0] == 2 && last->shares[0].after.value[0] == 5);
    ck_assert(last->shares[1].before.value[0] == 5 && last->shares[1].after.value[0] == 8);
    ck_assert(last->shares[1].part == 2 && last->shares[1].of == 2);
    assert_values(tn_grad(w), 0, 8, 8);
}
END_TEST

static int hook_runs;

static tn_tensor *backward_in_hook(tn_tensor *grad, void *user)
{
    hook_runs++;
    tn_tensor *x = user;
    tn_set_grad_enabled(true);
    tn_tensor *y = sum(tn_mul(x, x));
    tn_set_grad_enabled(false);
    assert_ok(tn_backward(y));
    return grad;
}

START_TEST(a_backward_within_a_hook)
{
    tn_tensor *a = leaf(TN_SHAPE(2), 3, "a"), *b = leaf(TN_SHAPE(2), 5, "b");
    tn_tensor *y = tn_mul_scalar(a, 2);
    ck_assert(tn_register_hook(y, backward_in_hook, b) >= 0);
    tn_trace *tr = begin(plain);
    tn_tensor *loss = sum(y);
    hook_runs = 0;
    assert_ok(tn_backward(loss));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(hook_runs, 1);
    ck_assert_int_eq(s->n_passes, 2);
    ck_assert_int_eq(s->n_backs, 4);
    static const char *const order[] = { "sum", "sum", "mul", "mul_scalar" };
    static const int pass[] = { 0, 1, 1, 0 };
    for (int k = 0; k < 4; k++) {
        ck_assert_str_eq(s->backs[k]->node->op->name, order[k]);
        ck_assert_int_eq(s->backs[k]->pass->number, pass[k] + 1);
    }
    assert_values(tn_grad(b), 0, 10, 10);
}
END_TEST

/* A pass that ran already when the trace began is not told; one that it starts is. */
static tn_tensor *begin_in_hook(tn_tensor *grad, void *user)
{
    tn_trace **tr = user;
    if (!*tr) *tr = begin(plain);
    return grad;
}

START_TEST(a_trace_begun_within_a_backward)
{
    tn_trace *tr = NULL;
    tn_tensor *x = leaf(TN_SHAPE(2), 3, "x"), *b = leaf(TN_SHAPE(2), 5, "b");
    tn_tensor *y = tn_mul(x, x), *z = tn_mul(y, x);
    ck_assert(tn_register_hook(z, begin_in_hook, &tr) >= 0);
    if (_i) ck_assert(tn_register_hook(y, backward_in_hook, b) >= 0);
    assert_ok(tn_backward(sum(z)));
    assert_values(tn_grad(x), 0, 27, 27);
    assert_ok(tn_backward(sum(tn_mul_scalar(x, 2))));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(s->n_passes, 1 + _i);
    ck_assert_int_eq(s->n_backs, 2 + 2 * _i);
    ck_assert(s->backs[s->n_backs - 1]->shares[0].after.value[0] == 29);
    ck_assert(s->loss_known && s->loss == 12);
}
END_TEST

static tn_tensor *backward_of(tn_tensor *grad, void *user)
{
    assert_ok(tn_backward_from(user, TN_NONE, TN_RETAIN_GRAPH));
    return grad;
}

/* The loss is what the user's own backward began with, whatever else is differentiated. */
START_TEST(the_loss_is_of_the_outermost_backward)
{
    tn_tensor *w = leaf(TN_SCALAR, 2, "w"), *grad;
    static const double want[] = { 16, 16, 400 };
    tn_trace *tr = begin(plain);
    tn_tensor *y = tn_square(w), *loss = tn_square(y), *probe = tn_mul_scalar(y, 100);
    ck_assert(tn_register_hook(loss, backward_of, probe) >= 0);
    if (_i != 0) assert_ok(tn_gradients(1, &probe, NULL, 1, &w, &grad, TN_RETAIN_GRAPH));
    if (_i != 2) assert_ok(tn_backward_from(loss, TN_NONE, TN_RETAIN_GRAPH));
    if (_i != 1) assert_ok(tn_gradients(1, &probe, NULL, 1, &w, &grad, TN_RETAIN_GRAPH));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(s->n_passes, _i == 2 ? 2 : 3);
    ck_assert(s->loss_known);
    ck_assert_msg(s->loss == want[_i], "loss %g", s->loss);
}
END_TEST

static tn_tensor *ten_times(tn_tensor *grad, void *user)
{
    (void)user;
    return tn_mul_scalar(grad, 10);
}

/* What is told of a leaf's gradient is what the leaf has in the end: hooks change it, and so do
 * backwards that they run. */
START_TEST(hooks_are_in_the_gradient)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 3, "w"), *v = leaf(TN_SHAPE(2), 4, "v");
    tn_tensor *y = tn_mul(w, v), *h = tn_mul_scalar(y, 2);
    ck_assert(tn_register_hook(w, ten_times, NULL) >= 0);
    ck_assert(tn_register_hook(h, _i == 2 ? backward_in_hook : ten_times, v) >= 0);
    tn_trace *tr = begin(plain);
    if (_i == 1) assert_ok(tn_backward(sum(tn_mul(w, v))));
    assert_ok(tn_backward(sum(tn_add(h, tn_mul_scalar(w, 5)))));
    const tni_log_step *s = ended(tr);
    tn_tensor *of[] = { w, v };
    int found[2] = { 0 };
    for (size_t k = 0; k < s->n_backs; k++)
        for (size_t i = 0; i < s->backs[k]->n_shares; i++) {
            const tni_log_share *share = &s->backs[k]->shares[i];
            const tni_log_in *in = &share->back->node->in[share->in];
            if (!tni_log_is_last(share)) continue;
            if (share->back->pass->number != 1 + (_i == 1)) continue;
            int which = strcmp(in->tensor->name, "v") == 0;
            double got = share->after.value[0];
            ck_assert_msg(got == tn_item(tn_select(tn_grad(of[which]), 0, 0)), "%s: %g",
                          which ? "v" : "w", got);
            found[which]++;
        }
    ck_assert(found[0] == 1 && found[1] == 1);
}
END_TEST

START_TEST(tn_gradients_changes_no_grad)
{
    tn_tensor *a = leaf(TN_SHAPE(2), 3, "a"), *b = leaf(TN_SHAPE(2), 5, "b"), *grad;
    tn_tensor *loss = sum(tn_mul(tn_exp(b), a));
    tn_trace *tr = begin(plain);
    assert_ok(tn_gradients(1, &loss, NULL, 1, &a, &grad, TN_CREATE_GRAPH));
    assert_ok(tn_backward(sum(tn_mul(grad, grad))));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(s->n_passes, 2);
    ck_assert(!s->passes[0]->accumulates && s->passes[1]->accumulates);
    ck_assert_int_eq(s->passes[0]->n_nodes, 2); /* exp leads to b, which nobody asked for */
    assert_says(told(tr), "a  the gradient that was asked for");
}
END_TEST

/* An output that depends on none of the inputs gets its seed all the same. */
START_TEST(an_output_that_leads_nowhere)
{
    tn_tensor *a = leaf(TN_SHAPE(2), 3, "a"), *b = leaf(TN_SHAPE(2), 5, "b"), *grad;
    tn_tensor *outputs[] = { sum(tn_exp(a)), tn_exp(sum(b)) };
    tn_trace *tr = begin(plain);
    assert_ok(tn_gradients(2, outputs, NULL, 1, &a, &grad, 0));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(s->n_backs, 3);
    for (size_t k = 0; k < 3; k++) ck_assert(s->backs[k]->node->known);
    /* exp of the sum is no way to a, but what it kept is freed all the same */
    ck_assert_int_eq(s->passes[0]->n_nodes, 3);
    ck_assert_int_eq(s->backs[2]->kept, 0);
}
END_TEST

START_TEST(steps_end_with_the_optimizer)
{
    tn_manual_seed(1);
    tn_module *m = owned(dropout_net());
    tn_list *first = tn_parameters(tn_module_child(m, 0)),
            *last = tn_parameters(tn_module_child(m, 3));
    tn_optim *a = owned(tn_sgd(first, (tn_sgd_options){ .lr = 0.1 }));
    tn_optim *b = owned(tn_sgd(last, (tn_sgd_options){ .lr = 0.1 }));
    tn_tensor *x = tn_randn(TN_SHAPE(5, 4)), *y = tn_randint(0, 3, TN_SHAPE(5));
    tn_trace *tr = begin((tn_trace_options){ .model = m, .opt = a });
    for (int k = 0; k < 3; k++) {
        if (k == 1) TN_NO_GRAD assert_made(tn_forward(m, x)); /* an evaluation between */
        assert_ok(tn_backward(tn_cross_entropy(tn_forward(m, x), y)));
        assert_ok(tn_optim_step(a));
        assert_ok(tn_optim_step(b));
        assert_ok(tn_module_zero_grad(m));
    }
    assert_ok(tn_trace_end(tr));
    ck_assert_int_eq(tr->log.n_steps, 3);
    for (size_t k = 0; k < 3; k++) {
        const tni_log_step *s = step_of(tr, k);
        ck_assert_int_eq(s->n_updates, 4); /* of both */
        for (size_t i = 0; i < 4; i++) {
            ck_assert(s->updates[i]->after.known);
            ck_assert_int_eq(s->ledger[i]->moved, TNI_MOVED_OPTIMIZER);
            ck_assert(s->ledger[i]->grad.known);
            ck_assert(!tni_numbers_differ(&s->ledger[i]->step, &s->updates[i]->after));
            if (k)
                ck_assert(!tni_numbers_differ(&s->ledger[i]->start,
                                              &step_of(tr, k - 1)->ledger[i]->step));
        }
    }
    ck_assert_int_eq(tr->log.tensors[0]->held, TNI_HELD);
    ck_assert_int_eq(tr->log.tensors[2]->held, TNI_NOT_HELD);
}
END_TEST

START_TEST(parameters_moved_by_hand)
{
    tn_manual_seed(1);
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
    tn_tensor *w = tn_get_parameter(m, "weight"), *x = tn_ones(TN_SHAPE(3, 2));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    for (int k = 0; k < 2; k++) {
        assert_ok(tn_backward(sum(tn_forward(m, x))));
        TN_NO_GRAD assert_ok(tn_sub_(w, tn_mul_scalar(tn_grad(w), 0.1)));
        assert_ok(tn_module_zero_grad(m));
    }
    assert_ok(tn_trace_end(tr));
    ck_assert_int_eq(tr->log.n_steps, 2);
    const tni_log_step *s = step_of(tr, 1);
    ck_assert_int_eq(s->ledger[0]->moved, TNI_MOVED_HAND);
    ck_assert_int_eq(s->ledger[1]->moved, TNI_MOVED_NOT);
    ck_assert(s->ledger[0]->grad.known); /* cleared before the step was closed */
    ck_assert(!s->stepped);
}
END_TEST

/* What the model gets after backward is in the ledger, too. */
START_TEST(a_buffer_comes_late)
{
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ .no_bias = true }));
    tn_optim *opt = owned(tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.1 }));
    tn_trace *tr = begin((tn_trace_options){ .model = m, .opt = opt });
    assert_ok(tn_backward(sum(tn_forward(m, tn_ones(TN_SHAPE(1, 2))))));
    assert_ok(tn_register_buffer(m, "late", NULL, tn_ones(TN_SHAPE(1)), TN_PERSISTENT));
    assert_ok(tn_optim_step(opt));
    const tni_log_step *s = ended(tr);
    ck_assert_int_eq(s->n_ledger, 2);
    ck_assert_str_eq(s->ledger[1]->tensor->name, "late");
    ck_assert(s->ledger[1]->step.known && !s->ledger[1]->start.known);
}
END_TEST

START_TEST(autocast_is_told)
{
    tn_manual_seed(1);
    tn_module *m = owned(tn_linear_new(4, 3, (tn_linear_options){ 0 }));
    tn_tensor *x = tn_randn(TN_SHAPE(2, 4)), *loss;
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    TN_AUTOCAST(TN_BF16) loss = sum(tn_forward(m, x));
    assert_ok(tn_backward(loss));
    const tni_log_step *s = ended(tr);
    const tni_log_node *linear = NULL;
    for (size_t k = 0; k < s->n_nodes; k++)
        if (strcmp(s->nodes[k]->op->name, "linear") == 0) linear = s->nodes[k];
    ck_assert(linear && linear->out[0].dtype == TN_BF16);
    ck_assert(s->ledger[0]->grad.known);
}
END_TEST

/* A tensor in the memory of a buffer that was replaced is not taken for that buffer. */
START_TEST(memory_is_used_again)
{
    tn_module *m = owned(tn_linear_new(2, 2, (tn_linear_options){ .no_bias = true }));
    tn_scope outer = tn_scope_begin();
    assert_ok(tn_register_buffer(m, "h", NULL, tn_zeros(TN_SHAPE(1, 2)), TN_PERSISTENT));
    tn_scope_end(outer);
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    for (int k = 0; k < 3; k++) {
        tn_scope s = tn_scope_begin();
        assert_ok(tn_module_set(m, "h", tn_full(TN_SHAPE(1, 2), k + 1))); /* the old one is freed */
        tn_tensor *x = tn_full(TN_SHAPE(1, 2), 7);
        assert_ok(tn_set_name(x, "x"));
        tn_tensor *y = tn_add(tn_forward(m, x), tn_get_buffer(m, "h"));
        assert_ok(tn_backward(sum(y)));
        tn_scope_end(s);
    }
    const tni_log_step *s = ended(tr);
    for (size_t k = 0; k < s->n_nodes; k++) {
        const char *op = s->nodes[k]->op->name;
        const tni_log_in *in = &s->nodes[k]->in[strcmp(op, "add") == 0];
        if (strcmp(op, "sum") == 0) continue;
        ck_assert_str_eq(in->tensor->name, strcmp(op, "add") == 0 ? "h" : "x");
        ck_assert_int_eq(in->tensor->registered, strcmp(op, "add") == 0);
    }
}
END_TEST

/* A leaf in a parameter's memory has a gradient of its own; and what reads that memory in another
 * order is not the parameter. */
START_TEST(aliases_are_not_the_parameter)
{
    tn_module *m = owned(tn_linear_new(2, 2, (tn_linear_options){ .no_bias = true }));
    tn_tensor *w = tn_get_parameter(m, "weight"), *alias = tn_detach(w);
    if (_i) alias = tn_transpose(alias, 0, 1);
    if (!_i) assert_ok(tn_set_requires_grad(alias, true));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    assert_ok(tn_backward(sum(tn_mul(tn_mul_scalar(w, 3), alias))));
    const tni_log_step *s = ended(tr);
    const tni_log_in *in[] = { &s->nodes[0]->in[0], &s->nodes[1]->in[1] };
    ck_assert_str_eq(in[0]->tensor->name, "weight");
    ck_assert_str_eq(in[1]->tensor->name, "weight (a view)");
    ck_assert(in[0]->tensor->registered);
    ck_assert(in[1]->value.known);
    for (size_t k = 0; k < s->n_backs; k++)
        for (size_t i = 0; i < s->backs[k]->n_shares; i++)
            ck_assert_int_le(s->backs[k]->shares[i].of, 1);
}
END_TEST

/* Data that is freed and made again at the same address is not taken for the old one. */
START_TEST(tensors_are_not_confused)
{
    tn_tensor *w = leaf(TN_SHAPE(2), 1, "w");
    tn_trace *tr = begin(plain);
    for (int k = 0; k < 4; k++) {
        char name[16];
        tn_scope s = tn_scope_begin();
        tn_tensor *x = tn_full_as(TN_SHAPE(2), k, TN_F64, tn_cpu());
        snprintf(name, sizeof name, "x%d", k);
        assert_ok(tn_set_name(x, name));
        assert_ok(tn_backward(sum(tn_mul(w, x))));
        tn_scope_end(s);
    }
    assert_ok(tn_trace_end(tr));
    ck_assert_int_eq(tr->log.n_tensors, 5);
    for (size_t k = 0; k < 4; k++) {
        const tni_log_in *in = &step_of(tr, 0)->nodes[2 * k]->in[1];
        ck_assert_int_eq(in->tensor->id, (int)k + 1);
        ck_assert(in->value.value[0] == (double)k);
    }
}
END_TEST

START_TEST(two_signs_flip)
{
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ .no_bias = true }));
    tn_tensor *w = tn_get_parameter(m, "weight");
    TN_NO_GRAD assert_ok(tn_copy_(w, tn_from_floats((float[]){ 1, -1 }, TN_SHAPE(1, 2))));
    tn_optim *opt = owned(tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 1 }));
    tn_trace *tr = begin((tn_trace_options){ .model = m, .opt = opt });
    tn_tensor *x = tn_from_floats((float[]){ 2, -2 }, TN_SHAPE(1, 2));
    assert_ok(tn_backward(sum(tn_forward(m, x))));
    assert_ok(tn_optim_step(opt));
    assert_ok(tn_trace_end(tr));
    assert_says(told(tr), "1.414  1.414    1.414  by the optimizer");
}
END_TEST

START_TEST(a_tensor_registered_in_the_middle)
{
    tn_module *m = owned(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
    tn_trace *tr = begin((tn_trace_options){ .model = m });
    tn_tensor *loss = sum(tn_forward(m, tn_ones(TN_SHAPE(1, 2))));
    assert_ok(tn_register_buffer(m, "late", NULL, tn_ones(TN_SHAPE(2)), TN_PERSISTENT));
    assert_ok(tn_backward(loss));
    assert_ok(tn_trace_end(tr));
    FILE *page = tmpfile();
    assert_ok(tn_trace_html(page, &tr, 1));
    assert_says(text_of(page), "<td>not known</td>");
}
END_TEST

void trace_steps_cases(Suite *suite)
{
    TCase *t = test_case(suite, "steps");
    tcase_add_test(t, two_backwards_accumulate);
    tcase_add_test(t, a_backward_within_a_hook);
    tcase_add_loop_test(t, a_trace_begun_within_a_backward, 0, 2);
    tcase_add_loop_test(t, the_loss_is_of_the_outermost_backward, 0, 3);
    tcase_add_loop_test(t, hooks_are_in_the_gradient, 0, 3);
    tcase_add_test(t, tn_gradients_changes_no_grad);
    tcase_add_test(t, an_output_that_leads_nowhere);
    tcase_add_test(t, steps_end_with_the_optimizer);
    tcase_add_test(t, parameters_moved_by_hand);
    tcase_add_test(t, autocast_is_told);
    tcase_add_test(t, a_buffer_comes_late);
    tcase_add_test(t, tensors_are_not_confused);
    tcase_add_test(t, memory_is_used_again);
    tcase_add_loop_test(t, aliases_are_not_the_parameter, 0, 2);
    tcase_add_test(t, two_signs_flip);
    tcase_add_test(t, a_tensor_registered_in_the_middle);
}
