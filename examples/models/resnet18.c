/*
 * resnet18 - a residual network (resnet.c) learns a batch of random images by heart.
 * usage: resnet18 [STEPS]     20 without STEPS
 * The seed is fixed, and so are the losses: the suite compares them with PyTorch's.
 */
#include "resnet.h"

enum {
    WIDTH = 8, /* channels of the first stage; 64 in the paper */
    CLASSES = 10,
    BATCH = 8,
    SIDE = 64 /* of an image, in pixels; 224 in the paper */
};

/* ---- training -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    char *end = "";
    int steps = argc > 1 ? (int)strtol(argv[1], &end, 10) : 20;
    if (argc > 2 || steps < 1 || *end) return fprintf(stderr, "usage: resnet18 [STEPS]\n"), 2;

    /* f64: in f32, which real training takes, many batch norms in a row enlarge rounding errors, so
     * that the losses of two machines would soon differ in their fourth digit */
    TN_CHECK(tn_set_default_dtype(TN_F64));
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *model = resnet_new(WIDTH, CLASSES);
    tn_sgd_options options = { .lr = 0.001, .momentum = 0.9 };
    tn_optim *optimizer = tn_sgd(tn_parameters(model), options);
    tn_tensor *images = tn_randn(TN_SHAPE(BATCH, 3, SIDE, SIDE));
    tn_tensor *classes = tn_randint(0, CLASSES, TN_SHAPE(BATCH));
    TN_CHECK_PTR(optimizer); /* if it or the model failed: says why, and ends the program */

    for (int step = 1; step <= steps; step++) {
        tn_scope scope = tn_scope_begin(); /* owns what this step makes */
        tn_tensor *loss = tn_cross_entropy(tn_forward(model, images), classes);
        TN_CHECK(tn_optim_zero_grad(optimizer)); /* else gradients would add up */
        TN_CHECK(tn_backward(loss));             /* a gradient for each parameter */
        TN_CHECK(tn_optim_step(optimizer));      /* changes the parameters */
        printf("step %3d  loss %.6f\n", step, tn_item(loss));
        tn_scope_end(scope); /* frees it: memory does not grow */
    }
    tn_optim_free(optimizer), tn_module_drop(model), tn_scope_end(program);
    return fflush(stdout) ? perror("resnet18: standard output"), 1 : 0;
}
