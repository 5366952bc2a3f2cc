/*
 * unet - a U-Net (Ronneberger et al., 2015, figure 1), which learns to find discs in noisy images:
 * for each pixel, whether it is part of one.
 * usage: unet [STEPS]     20 without STEPS
 * The seed is fixed, and so are the losses: the suite compares them with PyTorch's.
 */
#include <tenon/tenon.h>

enum {
    DEPTH = 3, /* how many times the image is halved; 4 in the paper */
    WIDTH = 8, /* channels at full size, doubled at each halving; 64 in the paper */
    BATCH = 8,
    SIDE = 32 /* of an image, in pixels: a multiple of 2^DEPTH */
};

/* ---- the model ------------------------------------------------------------------------------- */

/* Two convolutions. Padding keeps the size of the image (the paper's images lose an edge). */
static tn_module *double_conv(int in, int out)
{
    const tn_conv_options o = { .padding = 1, .no_bias = true }; /* batch norm has a bias */
    const tn_batch_norm_options norm = { 0 };
    return tn_sequential(tn_conv2d_new(in, out, 3, o), tn_batch_norm2d_new(out, norm),
                         tn_relu_new(), tn_conv2d_new(out, out, 3, o),
                         tn_batch_norm2d_new(out, norm), tn_relu_new());
}

typedef struct unet {
    tn_module base;                                /* every module's struct begins with this */
    tn_module *down[DEPTH], *bottom;               /* what is in the image */
    tn_module *up[DEPTH], *merge[DEPTH], *segment; /* where it is */
} unet;

/* x [N, 1, H, W] -> [N, 1, H, W]: for each pixel a score, above 0 for a disc */
static tn_tensor *unet_forward(tn_module *self, tn_tensor *x)
{
    const tn_pool_spec half = { .kernel = { 2, 2 } };
    unet *m = (unet *)self;
    tn_tensor *skip[DEPTH]; /* each size as it was on the way down */
    for (int i = 0; i < DEPTH; i++) {
        skip[i] = tn_forward(m->down[i], x);
        x = tn_max_pool2d(skip[i], half);
    }
    x = tn_forward(m->bottom, x);
    for (int i = DEPTH - 1; i >= 0; i--) {
        x = tn_forward(m->up[i], x); /* twice as high and wide, half as many channels */
        tn_tensor *both[] = { skip[i], x };
        x = tn_forward(m->merge[i], tn_cat(both, 2, 1)); /* 1: along the channels */
    }
    return tn_forward(m->segment, x);
}

static tn_module *unet_new(void)
{
    static const tn_module_type type = { .name = "UNet",
                                         .size = sizeof(unet),
                                         .forward = unet_forward };
    const tn_conv_options twice = { .stride = 2 }, plain = { 0 };
    unet *m = tn_module_new(&type);
    if (!m) return NULL;
    char name[16];
    int width = WIDTH;
    for (int i = 0; i < DEPTH; i++, width *= 2) {
        snprintf(name, sizeof name, "down%d", i);
        tn_register_module(&m->base, name, &m->down[i], double_conv(i ? width / 2 : 1, width));
    }
    tn_register_module(&m->base, "bottom", &m->bottom, double_conv(width / 2, width));
    for (int i = DEPTH - 1; i >= 0; i--) {
        width /= 2;
        snprintf(name, sizeof name, "up%d", i);
        tn_register_module(&m->base, name, &m->up[i],
                           tn_conv_transpose2d_new(2 * width, width, 2, twice));
        snprintf(name, sizeof name, "merge%d", i);
        tn_register_module(&m->base, name, &m->merge[i], double_conv(2 * width, width));
    }
    tn_register_module(&m->base, "segment", &m->segment, tn_conv2d_new(WIDTH, 1, 1, plain));
    return tn_module_done(&m->base); /* NULL if any line failed */
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Images [N, 1, SIDE, SIDE] of one disc each under noise, and masks of that shape: 1 in the disc,
 * else 0. */
static tn_tensor *draw_images(tn_tensor **mask)
{
    const tn_shape one_each = TN_SHAPE(BATCH, 1, 1, 1);
    tn_tensor *row = tn_arange(0, SIDE, 1, tn_default_dtype()); /* [SIDE]: the last axis */
    tn_tensor *column = tn_reshape(row, TN_SHAPE(SIDE, 1));     /* along the one before it */
    tn_tensor *dx = tn_sub(row, tn_mul_scalar(tn_rand(one_each), SIDE));
    tn_tensor *dy = tn_sub(column, tn_mul_scalar(tn_rand(one_each), SIDE));
    tn_tensor *radius = tn_add_scalar(tn_mul_scalar(tn_rand(one_each), 6), 4);
    tn_tensor *inside = tn_lt(tn_add(tn_square(dx), tn_square(dy)), tn_square(radius));
    *mask = tn_to_dtype(inside, tn_default_dtype());
    return tn_add(*mask, tn_randn(TN_SHAPE(BATCH, 1, SIDE, SIDE)));
}

/* ---- training -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    char *end = "";
    int steps = argc > 1 ? (int)strtol(argv[1], &end, 10) : 20;
    if (argc > 2 || steps < 1 || *end) return fprintf(stderr, "usage: unet [STEPS]\n"), 2;

    /* f64: in f32, which real training takes, many batch norms in a row enlarge rounding errors, so
     * that the losses of two machines would soon differ in their fourth digit */
    TN_CHECK(tn_set_default_dtype(TN_F64));
    tn_manual_seed(1);
    tn_scope program = tn_scope_begin(); /* owns what is made outside of inner scopes */
    tn_module *model = unet_new();
    tn_sgd_options options = { .lr = 0.05, .momentum = 0.9 };
    tn_optim *optimizer = tn_sgd(tn_parameters(model), options);
    TN_CHECK_PTR(optimizer); /* if it or the model failed: says why, and ends the program */

    for (int step = 1; step <= steps; step++) {
        tn_scope scope = tn_scope_begin(); /* owns what this step makes */
        tn_tensor *mask, *images = draw_images(&mask);
        tn_tensor *scores = tn_forward(model, images);
        tn_tensor *loss = tn_bce_with_logits(scores, mask, TN_NONE, TN_MEAN);
        TN_CHECK(tn_optim_zero_grad(optimizer)); /* else gradients would add up */
        TN_CHECK(tn_backward(loss));             /* a gradient for each parameter */
        TN_CHECK(tn_optim_step(optimizer));      /* changes the parameters */
        printf("step %3d  loss %.6f\n", step, tn_item(loss));
        tn_scope_end(scope); /* frees it: memory does not grow */
    }
    tn_optim_free(optimizer), tn_module_drop(model), tn_scope_end(program);
    return fflush(stdout) ? perror("unet: standard output"), 1 : 0;
}
