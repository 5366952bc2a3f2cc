/*
 * dcgan - two networks that train each other (Radford et al., DCGAN, 2015): a generator makes
 * images from noise, a discriminator learns to tell them from real ones. The real ones are bright
 * spots here.
 * usage: dcgan [STEPS]     20 without STEPS
 * The seed is fixed, and so are the losses: the suite compares them with PyTorch's.
 */
#include <tenon/tenon.h>

enum {
    NOISE = 16, /* numbers that an image is made of; 100 in the paper */
    WIDTH = 8,  /* channels at half size, doubled at each halving; 128 in the paper */
    BATCH = 16,
    SIDE = 32 /* of an image, in pixels; 64 in the paper */
};

/* ---- the models ------------------------------------------------------------------------------ */

static tn_module *norm(int channels)
{
    return tn_batch_norm2d_new(channels, (tn_batch_norm_options){ 0 });
}

/* noise [N, NOISE, 1, 1] -> images [N, 1, 32, 32] in -1..1 */
static tn_module *generator_new(void)
{
    const tn_conv_options first = { .no_bias = true };
    const tn_conv_options twice = { .stride = 2, .padding = 1, .no_bias = true };
    return tn_sequential(
        tn_conv_transpose2d_new(NOISE, 4 * WIDTH, 4, first), norm(4 * WIDTH), tn_relu_new(), /* 4 */
        tn_conv_transpose2d_new(4 * WIDTH, 2 * WIDTH, 4, twice), norm(2 * WIDTH), tn_relu_new(),
        tn_conv_transpose2d_new(2 * WIDTH, WIDTH, 4, twice), norm(WIDTH), tn_relu_new(), /* 16 */
        tn_conv_transpose2d_new(WIDTH, 1, 4, twice), tn_tanh_new());                     /* 32 */
}

/* images [N, 1, 32, 32] -> [N, 1, 1, 1]: a score, above 0 for "real" */
static tn_module *discriminator_new(void)
{
    const tn_conv_options half = { .stride = 2, .padding = 1, .no_bias = true };
    const tn_conv_options last = { .no_bias = true };
    return tn_sequential(tn_conv2d_new(1, WIDTH, 4, half), tn_leaky_relu_new(0.2), /* 16 */
                         tn_conv2d_new(WIDTH, 2 * WIDTH, 4, half), norm(2 * WIDTH),
                         tn_leaky_relu_new(0.2), tn_conv2d_new(2 * WIDTH, 4 * WIDTH, 4, half),
                         norm(4 * WIDTH), tn_leaky_relu_new(0.2),
                         tn_conv2d_new(4 * WIDTH, 1, 4, last)); /* 4 to 1 */
}

/* The paper's initial weights of convolutions: N(0, 0.02). What has one axis belongs to a norm. */
static void initialise(tn_module *model)
{
    tn_list *parameters = tn_parameters(model);
    TN_CHECK_PTR(parameters);
    for (int i = 0; i < parameters->n; i++) {
        tn_tensor *weight = parameters->entry[i].tensor;
        if (tn_rank(weight) > 1) TN_CHECK(tn_init_normal(weight, 0, 0.02));
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* [N, 1, SIDE, SIDE]: -1, and a round spot of 1 somewhere near the middle */
static tn_tensor *real_images(void)
{
    const tn_shape one_each = TN_SHAPE(BATCH, 1, 1, 1);
    tn_tensor *row = tn_linspace(-2, 2, SIDE);              /* [SIDE]: the last axis */
    tn_tensor *column = tn_reshape(row, TN_SHAPE(SIDE, 1)); /* along the one before it */
    tn_tensor *dx = tn_sub(row, tn_rand(one_each)), *dy = tn_sub(column, tn_rand(one_each));
    tn_tensor *spot = tn_exp(tn_mul_scalar(tn_add(tn_square(dx), tn_square(dy)), -2));
    return tn_sub_scalar(tn_mul_scalar(spot, 2), 1);
}

/* How far the scores are from saying "real" (1) or "made" (0) of all images. */
static tn_tensor *verdict(tn_module *discriminator, tn_tensor *images, double wanted)
{
    tn_tensor *scores = tn_forward(discriminator, images);
    return tn_bce_with_logits(scores, tn_full_like(scores, wanted), TN_NONE, TN_MEAN);
}

/* One step of an optimizer down a loss. */
static void descend(tn_optim *optimizer, tn_tensor *loss)
{
    TN_CHECK(tn_optim_zero_grad(optimizer));
    TN_CHECK(tn_backward(loss));
    TN_CHECK(tn_optim_step(optimizer));
}

int main(int argc, char **argv)
{
    char *end = "";
    int steps = argc > 1 ? (int)strtol(argv[1], &end, 10) : 20;
    if (argc > 2 || steps < 1 || *end) return fprintf(stderr, "usage: dcgan [STEPS]\n"), 2;

    /* f64: in f32, which real training takes, Adam enlarges rounding errors of small gradients, so
     * that the losses of two machines would soon differ in their fourth digit */
    TN_CHECK(tn_set_default_dtype(TN_F64));
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *generator = generator_new(), *discriminator = discriminator_new();
    initialise(generator), initialise(discriminator);
    tn_adam_options options = { .lr = 2e-4, .beta1 = 0.5 };
    tn_optim *generator_optimizer = tn_adam(tn_parameters(generator), options);
    tn_optim *discriminator_optimizer = tn_adam(tn_parameters(discriminator), options);
    TN_CHECK_PTR(generator_optimizer), TN_CHECK_PTR(discriminator_optimizer);

    for (int step = 1; step <= steps; step++) {
        tn_scope scope = tn_scope_begin(); /* owns what this step makes */
        tn_tensor *made = tn_forward(generator, tn_randn(TN_SHAPE(BATCH, NOISE, 1, 1)));
        /* detached: what the discriminator learns does not reach the generator */
        tn_tensor *of_real = verdict(discriminator, real_images(), 1);
        tn_tensor *of_made = verdict(discriminator, tn_detach(made), 0);
        tn_tensor *d_loss = tn_add(of_real, of_made);
        descend(discriminator_optimizer, d_loss);
        tn_tensor *g_loss = verdict(discriminator, made, 1); /* the generator wants to pass */
        descend(generator_optimizer, g_loss);
        printf("step %3d  discriminator %.6f  generator %.6f\n", step, tn_item(d_loss),
               tn_item(g_loss));
        tn_scope_end(scope); /* frees it: memory does not grow */
    }
    tn_optim_free(generator_optimizer), tn_optim_free(discriminator_optimizer);
    tn_module_drop(generator), tn_module_drop(discriminator), tn_scope_end(program);
    return fflush(stdout) ? perror("dcgan: standard output"), 1 : 0;
}
