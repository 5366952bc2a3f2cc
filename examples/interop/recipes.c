/*
 * recipes.c - training recipes of Keras, Paddle, flax with optax, and MLX: 20 steps from given
 * weights, with the options that make tenon's mean theirs. recipes.py runs the same there, and
 * compares.
 *
 *     recipes RECIPE IN OUT           IN: the model's weights, x and y of each step
 *     recipes RECIPE IN OUT plain     without those options, as PyTorch means it
 *
 * OUT gets the losses and the model's state. Both files are .safetensors.
 */
#include <stdlib.h>
#include <string.h>

#include "../common.h"

enum { STEPS = 20, CHANNELS = 6, FEATURES = 5, HIDDEN = 8, CLASSES = 3, SIDE = 8 };

/* ---- a GRU that classifies by its last state ------------------------------------------------- */

typedef struct reader {
    tn_module base;
    tn_module *rnn, *head;
} reader;

static tn_tensor *reader_forward(tn_module *self, tn_tensor *x)
{
    reader *m = (reader *)self;
    return tn_forward(m->head, tn_select(tn_forward(m->rnn, x), 1, -1));
}

static tn_module *reader_new(bool reset_before)
{
    static const tn_module_type type = {
        .name = "Reader",
        .size = sizeof(reader),
        .forward = reader_forward,
    };
    reader *m = tn_module_new(&type);
    if (!m) return NULL;
    tn_register_module(
        &m->base, "rnn", &m->rnn,
        tn_gru_new(FEATURES, HIDDEN, (tn_recurrent_options){ .reset_before = reset_before }));
    tn_register_module(&m->base, "head", &m->head,
                       tn_linear_new(HIDDEN, CLASSES, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base);
}

/* ---- the recipes ----------------------------------------------------------------------------- */

typedef enum kind { NORM, GRU, GRU_BEFORE } kind;
typedef enum rule { ADAM, ADAMW, RMSPROP } rule;

static const struct recipe {
    const char *name;
    kind kind;
    tn_batch_norm_options norm;
    bool gelu_tanh, one_bias; /* one_bias: r and z (n, too, with r before it) have no bias_hh */
    rule rule;
    tn_adam_options adam;
    tn_rmsprop_options rmsprop;
} recipes[] = {
    { .name = "keras_norm",
      .norm = { .eps = 1e-3, .momentum = 0.01, .biased_var = true },
      .adam = { .lr = 0.01, .eps = 1e-3, .eps_hat = true } },
    { .name = "keras_gru",
      .kind = GRU,
      .rule = RMSPROP,
      .rmsprop = { .lr = 0.01, .alpha = 0.9, .eps = 1e-3, .eps_in_sqrt = true } },
    { .name = "keras_gru_before",
      .kind = GRU_BEFORE,
      .one_bias = true,
      .rule = RMSPROP,
      .rmsprop = { .lr = 0.01, .alpha = 0.9, .eps = 1e-3, .eps_in_sqrt = true } },
    { .name = "paddle_norm",
      .norm = { .biased_var = true },
      .rule = ADAMW,
      .adam = { .lr = 0.01, .eps = 1e-3, .weight_decay = 0.01 } },
    { .name = "paddle_gru",
      .kind = GRU,
      .rule = RMSPROP,
      .rmsprop = { .lr = 0.01, .alpha = 0.95, .eps = 1e-3, .eps_in_sqrt = true } },
    { .name = "flax_norm",
      .norm = { .momentum = 0.01, .biased_var = true },
      .gelu_tanh = true,
      .rule = ADAMW,
      .adam = { .lr = 0.01, .eps = 1e-3, .weight_decay = 1e-4 } },
    { .name = "flax_gru",
      .kind = GRU,
      .one_bias = true,
      .rule = RMSPROP,
      .rmsprop = { .lr = 0.01, .alpha = 0.9, .eps = 1e-3, .eps_in_sqrt = true } },
    { .name = "mlx_norm",
      .rule = ADAM,
      .adam = { .lr = 0.003, .eps = 1e-3, .no_bias_correction = true } },
    { .name = "mlx_gru",
      .kind = GRU,
      .one_bias = true,
      .rule = ADAMW,
      .adam = { .lr = 0.003, .eps = 1e-3, .weight_decay = 0.01, .no_bias_correction = true } },
};

/* The same without the options that are not PyTorch's. */
static struct recipe plain(struct recipe r)
{
    r.norm.biased_var = r.gelu_tanh = r.one_bias = false;
    r.adam.eps_hat = r.adam.no_bias_correction = r.rmsprop.eps_in_sqrt = false;
    if (r.kind == GRU_BEFORE) r.kind = GRU;
    return r;
}

static tn_module *model_of(const struct recipe *r)
{
    if (r->kind != NORM) return reader_new(r->kind == GRU_BEFORE);
    return tn_sequential(
        tn_conv2d_new(1, CHANNELS, 3, (tn_conv_options){ .padding = 1, .no_bias = true }),
        tn_batch_norm2d_new(CHANNELS, r->norm), r->gelu_tanh ? tn_gelu_tanh_new() : tn_gelu_new(),
        tn_flatten_new(1, -1),
        tn_linear_new(CHANNELS * SIDE * SIDE, CLASSES, (tn_linear_options){ 0 }));
}

static tn_optim *optimizer_of(const struct recipe *r, const tn_list *parameters)
{
    if (r->rule == RMSPROP) return tn_rmsprop(parameters, r->rmsprop);
    return r->rule == ADAM ? tn_adam(parameters, r->adam) : tn_adamw(parameters, r->adam);
}

/* ---- training -------------------------------------------------------------------------------- */

/* A hook of bias_hh: that of r and z stays 0, as where there is only one bias. A row of two
 * biases that are added would move by both of their steps. */
static tn_tensor *only_of_n(tn_tensor *grad, void *user)
{
    (void)user;
    tn_tensor *none = tn_zeros(TN_SHAPE(2 * HIDDEN));
    return tn_cat((tn_tensor *[]){ none, tn_narrow(grad, 0, 2 * HIDDEN, HIDDEN) }, 2, 0);
}

static void train(const struct recipe *r, const char *from, const char *to)
{
    tn_list *in = tn_load_tensors(from, NULL), *out = tn_list_new();
    TN_CHECK_PTR(in);
    tn_module *m = model_of(r);
    TN_CHECK_PTR(m);
    TN_CHECK(tn_load_with(m, from, (tn_load_options){ .non_strict = true }, NULL));
    tn_tensor *b_hh = r->one_bias ? tn_get_parameter(m, "rnn.bias_hh_l0") : TN_NONE;
    TN_CHECK_PTR(b_hh);
    if (r->kind == GRU_BEFORE) /* n has one bias, too */
        TN_CHECK(tn_set_requires_grad(b_hh, false));
    else if (r->one_bias && tn_register_hook(b_hh, only_of_n, NULL) < 0)
        TN_CHECK(tn_error_status());
    tn_optim *opt = optimizer_of(r, tn_parameters(m));
    TN_CHECK_PTR(opt);
    tn_tensor *losses = tn_zeros(TN_SHAPE(STEPS));
    for (int step = 0; step < STEPS; step++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *x = tn_select(tn_list_get(in, "x"), 0, step);
        tn_tensor *y = tn_select(tn_list_get(in, "y"), 0, step);
        tn_tensor *loss = tn_cross_entropy(tn_forward(m, x), y);
        TN_CHECK(tn_optim_zero_grad(opt));
        TN_CHECK(tn_backward(loss));
        TN_CHECK(tn_optim_step(opt));
        TN_CHECK(tn_copy_(tn_select(losses, 0, step), tn_detach(loss)));
        tn_scope_end(s);
    }
    TN_CHECK(tn_list_add(out, "losses", losses));
    out = tn_list_concat(out, tn_state_dict(m, ""));
    TN_CHECK_PTR(out);
    TN_CHECK(tn_save_tensors(out, NULL, to));
    tn_optim_free(opt), tn_module_drop(m);
}

int main(int argc, char **argv)
{
    const int n = (int)(sizeof recipes / sizeof *recipes);
    int first = ex_parse("RECIPE IN OUT [plain]", NULL, 0, 4, argc, argv), at = 0;
    if (argc - first < 3) ex_refuse("usage: recipes RECIPE IN OUT [plain]");
    while (at < n && strcmp(recipes[at].name, argv[first]) != 0) at++;
    if (at == n) ex_refuse("no recipe %s: want keras_norm or another of recipes.c", argv[first]);
    struct recipe r = argc - first > 3 ? plain(recipes[at]) : recipes[at];
    TN_SCOPE train(&r, argv[first + 1], argv[first + 2]);
    return ex_end();
}
