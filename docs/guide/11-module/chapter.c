/*
 * Chapter 11: a module of your own: y = x + scale fc2(tanh(fc1(norm(x)))), a residual block.
 */
#include <tenon/tenon.h>

typedef struct block {
    tn_module base; /* first */
    tn_module *norm, *fc1, *fc2;
    tn_tensor *scale; /* parameter [1]; starts small: a new block changes little */
    int64_t width, hidden;
} block;

static tn_tensor *block_forward(tn_module *self, tn_tensor *x)
{
    block *m = (block *)self;
    if (tn_size(x, -1) != m->width)
        return tn_fail(TN_E_SHAPE, "Block: x has %d columns: want %d", (int)tn_size(x, -1),
                       (int)m->width);
    tn_tensor *h = tn_tanh(tn_forward(m->fc1, tn_forward(m->norm, x)));
    return tn_add(x, tn_mul(m->scale, tn_forward(m->fc2, h)));
}

static void block_describe(const tn_module *self, char *text, size_t size)
{
    const block *m = (const block *)self;
    snprintf(text, size, "%d, %d", (int)m->width, (int)m->hidden);
}

static const tn_module_type block_type = {
    .name = "Block", .size = sizeof(block), .forward = block_forward, .describe = block_describe
};

static tn_module *block_new(int64_t width, int64_t hidden)
{
    tn_linear_options o = { 0 };
    block *m = tn_module_new(&block_type);
    if (!m) return NULL;
    m->width = width, m->hidden = hidden;
    tn_register_parameter(&m->base, "scale", &m->scale, tn_full(TN_SHAPE(1), 0.1));
    tn_register_module(&m->base, "norm", &m->norm,
                       tn_layer_norm_new(TN_SHAPE(width), (tn_layer_norm_options){ 0 }));
    tn_register_module(&m->base, "fc1", &m->fc1, tn_linear_new(width, hidden, o));
    tn_register_module(&m->base, "fc2", &m->fc2, tn_linear_new(hidden, width, o));
    return tn_module_done(&m->base);
}

typedef struct batch {
    tn_tensor *x, *y;
} batch;

static tn_tensor *loss(tn_module *m, void *user)
{
    const batch *b = user;
    return tn_cross_entropy(tn_forward(m, b->x), b->y);
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(4);
    tn_module *model = tn_sequential(block_new(4, 16), block_new(4, 16),
                                     tn_linear_new(4, 3, (tn_linear_options){ 0 }));
    TN_CHECK_PTR(model);
    TN_CHECK(tn_module_summary(stdout, model));

    batch b = { tn_randn(TN_SHAPE(32, 4)), NULL };
    b.y = tn_argmax(tn_narrow(b.x, 1, 0, 3), 1, false); /* which of three is the largest? */
    TN_CHECK(tn_module_gradcheck(model, loss, &b, (tn_module_gradcheck_options){ .fast = true }));
    tn_optim *opt = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 0.02 });
    TN_CHECK_PTR(opt);
    TN_CHECK(tn_explain_training(stdout, model, opt, loss, &b, NULL));
    for (int step = 0; step <= 60; step++) TN_SCOPE
        {
            tn_tensor *now = loss(model, &b);
            TN_CHECK(tn_optim_zero_grad(opt));
            TN_CHECK(tn_backward(now));
            TN_CHECK(tn_optim_step(opt));
            if (step % 20 == 0) printf("%2d  %.3f\n", step, tn_item(now));
        }

    if (!tn_forward(model, tn_ones(TN_SHAPE(2, 5)))) printf("%s\n", tn_error());
    tn_optim_free(opt), tn_module_drop(model);
    tn_scope_end(scope);
    return 0;
}
