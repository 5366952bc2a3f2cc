/*
 * A scope and cleared gradients for each step; eval mode and no recording for the test.
 */
#include <tenon/tenon.h>

double train_and_test(tn_module *m, tn_optim *opt, tn_tensor *x, tn_tensor *y, tn_tensor *test_x,
                      tn_tensor *test_y)
{
    for (int step = 0; step < 100; step++) TN_SCOPE
        {
            TN_CHECK(tn_optim_zero_grad(opt));
            TN_CHECK(tn_backward(tn_mse_loss(tn_forward(m, x), y, TN_MEAN)));
            TN_CHECK(tn_optim_step(opt));
        }
    double loss = 0;
    TN_CHECK(tn_eval(m));
    TN_SCOPE TN_NO_GRAD loss = tn_item(tn_mse_loss(tn_forward(m, test_x), test_y, TN_MEAN));
    TN_CHECK(tn_train(m, true));
    return loss;
}
