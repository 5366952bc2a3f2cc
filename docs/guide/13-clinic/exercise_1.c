/*
 * A patient with three mistakes: its loss swings, its memory grows, and its test depends on which
 * points are tested together. Repair train_and_test: 100 steps, then the test, and train mode
 * again.
 */
#include <tenon/tenon.h>

double train_and_test(tn_module *m, tn_optim *opt, tn_tensor *x, tn_tensor *y, tn_tensor *test_x,
                      tn_tensor *test_y)
{
    /* your code here: mend what follows */
    for (int step = 0; step < 100; step++) {
        TN_CHECK(tn_backward(tn_mse_loss(tn_forward(m, x), y, TN_MEAN)));
        TN_CHECK(tn_optim_step(opt));
    }
    return tn_item(tn_mse_loss(tn_forward(m, test_x), test_y, TN_MEAN));
}
