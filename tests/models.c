/* models.c - the models of models.h. */
#include "models.h"

/* ---- the decoder-only transformer ------------------------------------------------------------ */

typedef struct transformer {
    tn_module base;
    tn_module *embed, *position, *encoder, *head;
} transformer;

static tn_tensor *transformer_forward(tn_module *self, tn_tensor *ids)
{
    transformer *m = (transformer *)self;
    tn_tensor *x = tn_forward(m->position, tn_forward(m->embed, ids));
    x = tn_encoder_forward(m->encoder, x, (tn_attention_masks){ .causal = true });
    return tn_forward(m->head, x);
}

static const tn_module_type transformer_type = { .name = "Transformer",
                                                 .size = sizeof(transformer),
                                                 .forward = transformer_forward };

tn_module *transformer_new(void)
{
    transformer *m = tn_module_new(&transformer_type);
    if (!m) return NULL;
    tn_encoder_layer_options o = { .feedforward = 4 * MODEL_WIDTH,
                                   .gelu = true,
                                   .norm_first = true };
    tn_register_module(&m->base, "embed", &m->embed,
                       tn_embedding_new(MODEL_VOCAB, MODEL_WIDTH, (tn_embedding_options){ 0 }));
    tn_register_module(&m->base, "position", &m->position,
                       tn_positional_encoding_new(MODEL_WIDTH, MODEL_CONTEXT,
                                                  (tn_positional_encoding_options){ 0 }));
    tn_register_module(
        &m->base, "encoder", &m->encoder,
        tn_encoder_new(tn_encoder_layer_new(MODEL_WIDTH, MODEL_HEADS, o), MODEL_LAYERS,
                       tn_layer_norm_new(TN_SHAPE(MODEL_WIDTH), (tn_layer_norm_options){ 0 })));
    tn_register_module(&m->base, "head", &m->head,
                       tn_linear_new(MODEL_WIDTH, MODEL_VOCAB, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base);
}

/* ---- the BatchNorm network ------------------------------------------------------------------- */

typedef struct cnn {
    tn_module base;
    tn_module *conv1, *bn1, *conv2, *bn2, *fc1, *fc2;
} cnn;

static tn_tensor *cnn_forward(tn_module *self, tn_tensor *x)
{
    cnn *m = (cnn *)self;
    tn_pool2d_spec two = { .kernel = { 2, 2 } };
    x = tn_max_pool2d(tn_relu(tn_forward(m->bn1, tn_forward(m->conv1, x))), two);
    x = tn_max_pool2d(tn_relu(tn_forward(m->bn2, tn_forward(m->conv2, x))), two);
    x = tn_relu(tn_forward(m->fc1, tn_flatten(x, 1, -1)));
    return tn_forward(m->fc2, x);
}

static const tn_module_type cnn_type = { .name = "Cnn",
                                         .size = sizeof(cnn),
                                         .forward = cnn_forward };

tn_module *cnn_new(void)
{
    cnn *m = tn_module_new(&cnn_type);
    if (!m) return NULL;
    tn_conv2d_options padded = { .padding = 1 };
    tn_register_module(&m->base, "conv1", &m->conv1, tn_conv2d_new(1, 32, 3, padded));
    tn_register_module(&m->base, "bn1", &m->bn1,
                       tn_batch_norm2d_new(32, (tn_batch_norm_options){ 0 }));
    tn_register_module(&m->base, "conv2", &m->conv2, tn_conv2d_new(32, 64, 3, padded));
    tn_register_module(&m->base, "bn2", &m->bn2,
                       tn_batch_norm2d_new(64, (tn_batch_norm_options){ 0 }));
    tn_register_module(&m->base, "fc1", &m->fc1,
                       tn_linear_new(3136, 128, (tn_linear_options){ 0 }));
    tn_register_module(&m->base, "fc2", &m->fc2, tn_linear_new(128, 10, (tn_linear_options){ 0 }));
    return tn_module_done(&m->base);
}

/* image() of make_train.py: a bar whose place is the class, under a hash of place and n */
static void image(uint32_t n, unsigned char *pixel)
{
    for (uint32_t r = 0; r < 28; r++)
        for (uint32_t c = 0; c < 28; c++) {
            uint32_t h = (n * 784 + r * 28 + c) * 2654435761u;
            h = (h ^ h >> 15) * 2246822519u;
            bool bar = (r + c) / 3 % 10 == n % 10;
            *pixel++ = (unsigned char)((h >> 25) + (bar ? 8 : 0));
        }
}

void synthetic_images(int step, tn_dtype dtype, tn_tensor **x, tn_tensor **y)
{
    unsigned char pixel[4][784];
    int64_t label[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t n = ((uint32_t)step * 4 + i) * 7;
        image(n, pixel[i]);
        label[i] = n % 10;
    }
    *x = tn_div_scalar(tn_to_dtype(tn_from_data(pixel, TN_SHAPE(4, 1, 28, 28), TN_U8), dtype), 256);
    *y = tn_from_ints(label, TN_SHAPE(4));
}

/* ---- a step ---------------------------------------------------------------------------------- */

double train_step(tn_module *model, tn_optim *optimizer, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *loss = tn_cross_entropy(tn_forward(model, x), y);
    assert_made(loss);
    assert_ok(tn_optim_zero_grad(optimizer));
    assert_ok(tn_backward(loss));
    assert_ok(tn_optim_step(optimizer));
    return tn_item(loss);
}

void random_text(int64_t n, tn_tensor **x, tn_tensor **y)
{
    tn_tensor *ids = tn_randint(0, MODEL_VOCAB, TN_SHAPE(n, MODEL_CONTEXT + 1));
    *x = tn_narrow(ids, 1, 0, MODEL_CONTEXT);
    *y = tn_narrow(ids, 1, 1, MODEL_CONTEXT);
}

uint64_t list_hash(const tn_list *list)
{
    uint64_t hash = 1;
    assert_made(list);
    for (int i = 0; i < list->n; i++) hash = hash * 31 + tn_hash(list->entry[i].tensor);
    return hash;
}

uint64_t state_hash(tn_module *model)
{
    uint64_t hash = 0;
    TN_SCOPE hash = list_hash(tn_state_dict(model, NULL));
    return hash;
}

uint64_t step_hash(tn_module *model)
{
    tn_scope scope = tn_scope_begin();
    uint64_t hash = state_hash(model);
    const tn_list *p = tn_parameters(model);
    for (int i = 0; i < p->n; i++) {
        tn_tensor *g = tn_grad(p->entry[i].tensor);
        hash = hash * 31 + (tn_is_none(g) ? 5 : tn_hash(g));
    }
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_generator_get_state(tn_default_generator(), state);
    for (size_t i = 0; i < sizeof state; i++) hash = hash * 31 + state[i];
    tn_scope_end(scope);
    return hash;
}
