/* model.c - see model.h. */
#include "model.h"

#include <math.h>
#include <string.h>

/* ---- making ---------------------------------------------------------------------------------- */

/* What passes to the next layer: [N, features], or images [N, channels, side, side], or of a text
 * [N, T, features]. */
typedef struct flow {
    bool images, text, ids; /* ids: of characters, which only an embedding reads */
    int64_t features, channels, side;
} flow;

static bool is(const live_layer *l, const char *kind)
{
    return strcmp(l->kind, kind) == 0;
}

static tn_module *activation(const char *kind)
{
    static const struct {
        const char *name;
        tn_module *(*make)(void);
    } known[] = {
        { "relu", tn_relu_new }, { "tanh", tn_tanh_new }, { "sigmoid", tn_sigmoid_new },
        { "gelu", tn_gelu_new }, { "silu", tn_silu_new }, { "identity", tn_identity_new }
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(kind, known[i].name) == 0) return known[i].make();
    return strcmp(kind, "leaky_relu") == 0 ? tn_leaky_relu_new(0.01) : NULL;
}

static tn_module *batch_norm(const live_layer *l, const flow *f)
{
    tn_batch_norm_options o = { .momentum = l->number, .use_momentum = l->number > 0 };
    return f->images ? tn_batch_norm2d_new(f->channels, o) : tn_batch_norm1d_new(f->features, o);
}

/* One that makes numbers of other shape. wrong: why it cannot. */
static tn_module *reshaping(const live_layer *l, flow *f, const live_data *d, const char **wrong)
{
    int64_t n = (int64_t)l->number;
    if (is(l, "linear")) {
        int64_t in = f->features;
        if (f->images) *wrong = "linear: of images: want flatten before";
        if (n < 1) *wrong = "linear: want the number of outputs";
        f->features = n;
        return *wrong ? NULL : tn_linear_new(in, n, (tn_linear_options){ .no_bias = l->no_bias });
    }
    if (is(l, "conv")) {
        int64_t in = f->channels;
        if (!f->images) *wrong = "conv: want images: digits, before flatten";
        if (n < 1) *wrong = "conv: want the number of channels";
        f->channels = n;
        return *wrong ? NULL
                      : tn_conv2d_new(in, n, 3,
                                      (tn_conv_options){ .padding = 1, .no_bias = l->no_bias });
    }
    if (is(l, "pool")) {
        if (!f->images || f->side < 2) *wrong = "pool: want images of at least 2 x 2";
        f->side /= 2;
        return *wrong ? NULL : tn_max_pool2d_new((tn_pool_spec){ .kernel = { 2, 2 } });
    }
    if (is(l, "flatten")) {
        if (!f->images) *wrong = "flatten: want images: digits";
        *f = (flow){ .features = f->channels * f->side * f->side };
        return *wrong ? NULL : tn_flatten_new(1, -1);
    }
    if (!f->ids) *wrong = "embedding: want characters: text, as the first layer";
    if (n < 1) *wrong = "embedding: want how many numbers a character is";
    *f = (flow){ .text = true, .features = n };
    return *wrong ? NULL : tn_embedding_new(d->classes, n, (tn_embedding_options){ 0 });
}

static tn_module *make_layer(const live_layer *l, flow *f, const live_data *d, const char **wrong)
{
    static const char *const reshape[] = { "linear", "conv", "pool", "flatten", "embedding" };
    for (size_t i = 0; i < sizeof reshape / sizeof *reshape; i++)
        if (is(l, reshape[i])) return reshaping(l, f, d, wrong);
    if (f->ids) *wrong = "a text: want embedding as the first layer";
    if (is(l, "batch_norm") && f->text) *wrong = "batch_norm: of a text: want layer_norm";
    if (is(l, "layer_norm") && f->images) *wrong = "layer_norm: of images: want flatten before";
    if ((is(l, "table") || is(l, "block")) && !f->text) *wrong = "table and block: want a text";
    if (is(l, "block") && (l->number < 1 || f->features % (int64_t)l->number != 0))
        *wrong = "block: want a number of heads that divides the features";
    if (*wrong) return NULL;
    if (is(l, "batch_norm")) return batch_norm(l, f);
    if (is(l, "layer_norm"))
        return tn_layer_norm_new(TN_SHAPE(f->features), (tn_layer_norm_options){ 0 });
    if (is(l, "dropout")) return tn_dropout_new(l->number);
    if (is(l, "table"))
        return tn_positional_encoding_new(f->features, LIVE_LENGTH,
                                          (tn_positional_encoding_options){ 0 });
    if (is(l, "block"))
        return tn_encoder_layer_new(f->features, (int64_t)l->number,
                                    (tn_encoder_layer_options){ .feedforward = 4 * f->features,
                                                                .gelu = true,
                                                                .norm_first = true });
    tn_module *made = activation(l->kind);
    if (!made) *wrong = "layer: there is none of this kind (see live.h)";
    return made;
}

static tn_module *make_net(live_model *m, const live_data *d, const char **wrong)
{
    tn_module *child[LIVE_LAYERS];
    flow f = { .features = 2, .channels = 1, .side = 8 };
    f.images = d->kind == LIVE_DIGITS, f.ids = d->kind == LIVE_TEXT;
    if (f.images && m->n > 0 && !is(&m->layer[0], "conv") && !is(&m->layer[0], "flatten"))
        *wrong = "digits: want conv or flatten as the first layer";
    int made = 0;
    for (; made < m->n && !*wrong; made++)
        if (!(child[made] = make_layer(&m->layer[made], &f, d, wrong))) break;
    if (made == m->n && !*wrong) return tn_sequential_from(child, m->n);
    if (!*wrong) *wrong = tn_error();
    while (made-- > 0) tn_module_drop(child[made]);
    return NULL;
}

static tn_status tie(live_model *m)
{
    char name[32];
    snprintf(name, sizeof name, "%d.weight", m->n - 1);
    tn_tensor *weight = tn_get_parameter(m->net, "0.weight");
    return weight ? tn_module_set(m->net, name, weight) : tn_error_status();
}

const char *live_model_make(live_model *m, const live_layer *layer, int n, const live_data *d,
                            bool tied)
{
    live_model next = { .n = n + 1 };
    const char *wrong = n + 1 > LIVE_LAYERS ? "build: too many layers" : NULL;
    if (wrong) return wrong;
    memcpy(next.layer, layer, (size_t)n * sizeof *layer);
    next.layer[n] = (live_layer){ .kind = "linear", .number = d->kind ? d->classes : 1 };
    next.net = make_net(&next, d, &wrong);
    if (next.net && tied && tie(&next) != TN_OK) {
        wrong = tn_error();
        live_model_free(&next);
    }
    if (!next.net) return wrong;
    live_model_free(m);
    *m = next;
    return NULL;
}

void live_model_free(live_model *m)
{
    if (m->net) tn_module_drop(m->net);
    m->net = NULL;
}

/* ---- calling --------------------------------------------------------------------------------- */

tn_tensor *live_model_call(live_model *m, tn_tensor *x, bool retain)
{
    m->in = x;
    for (int i = 0; i < m->n && x; i++) {
        tn_module *layer = tn_module_child(m->net, i);
        x = is(&m->layer[i], "block")
                ? tn_encoder_layer_forward(layer, x, (tn_attention_masks){ .causal = true })
                : tn_forward(layer, x);
        if (x && retain && tn_requires_grad(x) && tn_retain_grad(x) != TN_OK) return NULL;
        m->act[i] = x;
    }
    return x;
}

tn_tensor *live_attention(live_model *m, int l, int head)
{
    if (!m->net || l < 1 || l >= m->n || !is(&m->layer[l], "block") || !m->act[l]) return NULL;
    int64_t heads = (int64_t)m->layer[l].number;
    tn_module *block = tn_module_child(m->net, l);
    tn_tensor *x = tn_forward(tn_get_submodule(block, "norm1"), tn_select(m->act[l - 1], 0, 0));
    tn_tensor *qkv = tn_linear(x, tn_get_parameter(block, "self_attn.in_proj_weight"),
                               tn_get_parameter(block, "self_attn.in_proj_bias"));
    if (!qkv || head < 0 || head >= heads) return NULL;
    int64_t features = tn_size(x, -1), each = features / heads;
    tn_tensor *q = tn_slice(qkv, 1, head * each, (head + 1) * each, 1);
    tn_tensor *k = tn_slice(qkv, 1, features + head * each, features + (head + 1) * each, 1);
    tn_tensor *scores = tn_mul_scalar(tn_matmul(q, tn_transpose(k, 0, 1)), 1 / sqrt((double)each));
    tn_tensor *later = tn_triu(tn_full_like(scores, -INFINITY), 1);
    return tn_softmax(tn_add(tn_tril(scores, 0), later), 1);
}
