/*
 * Mistake: the points lie in the data by class, and batches are taken in that order.
 */
#include "clinic.h"

/* 20 passes over 256 points in batches of 32; what is found in the last batch. */
static void live(bool shuffle)
{
    batch all = points(256, 1);
    tn_tensor *order = tn_argsort(all.y, 0, false), *loss = NULL;
    all.x = tn_index_select(all.x, 0, order), all.y = tn_index_select(all.y, 0, order);
    tn_module *m = net_new();
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    batch b = all;
    tn_manual_seed(5);
    for (int step = 0; step < 160; step++) {
        if (shuffle && step % 8 == 0) {
            order = tn_randperm(256);
            all.x = tn_index_select(all.x, 0, order), all.y = tn_index_select(all.y, 0, order);
        }
        b.x = tn_narrow(all.x, 0, step % 8 * 32, 32), b.y = tn_narrow(all.y, 0, step % 8 * 32, 32);
        step_of(m, opt, &b);
    }
    TN_NO_GRAD loss = loss_of(m, &all);
    printf("%s: loss of all %.2f\n", shuffle ? "shuffled" : "by class", tn_item(loss));
    TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));
    tn_optim_free(opt), tn_module_drop(m);
}

int main(void)
{
    TN_SCOPE live(false);
    TN_SCOPE live(true);
    return 0;
}
