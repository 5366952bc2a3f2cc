/*
 * Mistake: the model is tested in train mode. Batch norm then measures the test batch, and moves
 * its buffers; dropout drops.
 */
#include "clinic.h"

static double test(tn_module *m, batch *b)
{
    double loss = NAN;
    TN_SCOPE TN_NO_GRAD loss = tn_item(loss_of(m, b)); /* tn_eval(m) should stand before it */
    return loss;
}

/* Runs the test, and names the first buffer that it changed. */
static void diagnose(tn_module *m, batch *b)
{
    tn_list *buffers = tn_buffers(m);
    uint64_t before[16];
    for (int i = 0; i < buffers->n; i++) before[i] = tn_version(buffers->entry[i].tensor);
    test(m, b);
    for (int i = 0; i < buffers->n; i++)
        if (tn_version(buffers->entry[i].tensor) != before[i]) {
            printf("diagnosis: eval forgotten: testing changed the buffer %s\n",
                   buffers->entry[i].name);
            return;
        }
    printf("diagnosis: testing changes no buffer\n");
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    batch b = points(64, 1), few = { tn_narrow(b.x, 0, 0, 2), tn_narrow(b.y, 0, 0, 2) };
    tn_linear_options o = { 0 };
    tn_manual_seed(7);
    tn_module *m = tn_sequential(tn_linear_new(2, 16, o),
                                 tn_batch_norm1d_new(16, (tn_batch_norm_options){ 0 }),
                                 tn_relu_new(), tn_linear_new(16, 2, o));
    TN_CHECK_PTR(m);
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5 });
    train(m, opt, &b, 100);
    printf("two of the points, tested: loss %.2f\n", test(m, &few));
    diagnose(m, &few);
    TN_CHECK(tn_explain_training(stdout, m, opt, loss_of, &b, NULL));

    /* The cure; the buffers need a few batches to recover. */
    train(m, opt, &b, 50);
    TN_CHECK(tn_eval(m));
    printf("after tn_eval: loss %.2f\n", test(m, &few));
    diagnose(m, &few);
    TN_CHECK(tn_train(m, true));
    tn_optim_free(opt), tn_module_drop(m);
    tn_scope_end(scope);
    return 0;
}
