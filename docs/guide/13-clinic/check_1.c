/*
 * Checks exercise 1: what tn_explain_training says, the number of tensors, the count of batches.
 */
#include "../check.h"

double train_and_test(tn_module *m, tn_optim *opt, tn_tensor *x, tn_tensor *y, tn_tensor *test_x,
                      tn_tensor *test_y);

static tn_tensor *loss(tn_module *m, void *user)
{
    tn_tensor **xy = user;
    return tn_mse_loss(tn_forward(m, xy[0]), xy[1], TN_MEAN);
}

int main(void)
{
    TN_SCOPE
    {
        tn_manual_seed(1);
        tn_linear_options o = { 0 };
        tn_module *m = tn_sequential(tn_linear_new(2, 8, o), tn_tanh_new(),
                                     tn_batch_norm1d_new(8, (tn_batch_norm_options){ 0 }),
                                     tn_linear_new(8, 1, o));
        tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.05 });
        TN_CHECK_PTR(opt);
        tn_tensor *x = tn_randn(TN_SHAPE(32, 2)), *y = tn_sum(x, TN_AXES(1), true);
        tn_tensor *xy[] = { x, y };
        int64_t before = tn_live_tensors();
        double tested = train_and_test(m, opt, x, y, x, y);
        int64_t after = tn_live_tensors();

        tn_explain_report report;
        TN_CHECK(tn_explain_training(NULL, m, opt, loss, xy, &report));
        want(report.findings == 0, "tn_explain_training says\n%s", report.text);
        want(after - before < 40, "%d tensors more than before", (int)(after - before));
        want_values("num_batches_tracked, after 100 steps and a test",
                    tn_get_buffer(m, "2.num_batches_tracked"), TN_SCALAR, (double[]){ 100 });
        want(tn_training(m), "the model is in eval mode now: it would train wrongly");
        want(tested < 0.1, "the test's loss is %g", tested);
    }
    return right();
}
