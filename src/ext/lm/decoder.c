/*
 * decoder.c - GPT-2, Llama and their like: layers of attention and a feed-forward net, each behind
 * a norm and beside a path that passes x on; then a norm, and the logits.
 */
#include "ext/lm/model.h"

/* What the two families call their modules. */
typedef struct names {
    const char *body, *embed, *layers, *norm; /* of the model */
    const char *norm1, *attention, *norm2;    /* of a layer */
    const char *project[4];                   /* of attention */
    const char *gate, *up, *down;             /* of the feed-forward net */
} names;

/* clang-format off */
static const names gpt2_names = {
    "transformer", "wte", "h", "ln_f", "ln_1", "attn", "ln_2",
    { "c_attn", NULL, NULL, "c_proj" }, NULL, "c_fc", "c_proj"
};
static const names llama_names = {
    "model", "embed_tokens", "layers", "norm", "input_layernorm", "self_attn", "post_attention_layernorm",
    { "q_proj", "k_proj", "v_proj", "o_proj" }, "gate_proj", "up_proj", "down_proj"
};
/* clang-format on */

tn_module *tni_lm_norm_new(const tni_lm_config *c)
{
    const tn_shape shape = TN_SHAPE(c->hidden);
    if (c->family == TNI_LM_LLAMA)
        return tn_rms_norm_new(shape, (tn_rms_norm_options){ .eps = c->eps, .use_eps = true });
    return tn_layer_norm_new(shape, (tn_layer_norm_options){ .eps = c->eps, .use_eps = true });
}

/* ---- the feed-forward net: down(act(up x)), or down(act(gate x) up x) ------------------------ */

typedef struct feed {
    tn_module base;
    tn_module *gate, *up, *down; /* gate: or absent */
    tn_tensor *(*act)(tn_tensor *x);
} feed;

static tn_tensor *feed_forward(tn_module *self, tn_tensor *x)
{
    feed *m = (feed *)self;
    tn_tensor *y = tn_forward(m->up, x);
    if (m->gate == TN_NO_MODULE) return tn_forward(m->down, m->act(y));
    return tn_forward(m->down, tn_mul(m->act(tn_forward(m->gate, x)), y));
}

TNI_TYPE(feed, "FeedForward", feed, .forward = feed_forward)

static tn_module *feed_new(const tni_lm_config *c, const names *n)
{
    feed *m = tn_module_new(&feed_type);
    if (!m) return NULL;
    m->act = c->act;
    tni_lm_linear(&m->base, n->gate, &m->gate, c->hidden, c->inner, c->mlp_bias);
    tni_lm_linear(&m->base, n->up, &m->up, c->hidden, c->inner, c->mlp_bias);
    tni_lm_linear(&m->base, n->down, &m->down, c->inner, c->hidden, c->mlp_bias);
    return tn_module_done(&m->base);
}

/* ---- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    tn_module base;
    tn_module *norm1, *attention, *norm2, *feed;
    double drop;
} layer;

static tn_status layer_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                               tn_tensor **out)
{
    layer *m = (layer *)self;
    const bool training = tn_training(self);
    TNI_TRY(tni_lm_called(self, n_in, in, TNI_INPUTS, n_out));
    tn_tensor *args[TNI_INPUTS], *y, *x = in[TNI_X];
    memcpy(args, in, sizeof args);
    args[TNI_X] = tn_forward(m->norm1, x);
    TNI_TRY(tn_call(m->attention, TNI_INPUTS, args, 1, &y));
    x = tn_add(x, tn_dropout(y, m->drop, training));
    y = tn_forward(m->feed, tn_forward(m->norm2, x));
    out[0] = tn_add(x, tn_dropout(y, m->drop, training));
    return TN_OK;
}

TNI_TYPE(layer, "DecoderLayer", layer, .forward_n = layer_forward)

static tn_module *layer_new(const tni_lm_config *c, const names *n, int64_t i)
{
    layer *m = tn_module_new(&layer_type);
    if (!m) return NULL;
    m->drop = c->resid_drop;
    tn_register_module(&m->base, n->norm1, &m->norm1, tni_lm_norm_new(c));
    tn_register_module(&m->base, n->attention, &m->attention,
                       tni_lm_attention_new(c, i, n->project));
    tn_register_module(&m->base, n->norm2, &m->norm2, tni_lm_norm_new(c));
    tn_register_module(&m->base, "mlp", &m->feed, feed_new(c, n));
    return tn_module_done(&m->base);
}

/* ---- frequencies of rotary positions --------------------------------------------------------- */

/* Low frequencies are divided by factor, high ones are not, those between are interpolated. PyTorch
 * divides a number by a tensor by way of its reciprocal: so here, for the same bits. */
static void llama3(const tni_rope *r, float *f)
{
    const double longest = r->original / r->low, shortest = r->original / r->high;
    for (int64_t i = 0; i < r->dim / 2; i++) {
        const float wave = 1.0F / f[i] * (float)(2 * M_PI), given = f[i];
        if ((double)wave < shortest) continue;
        f[i] = given / (float)r->factor;
        if ((double)wave > longest) continue;
        const float smooth =
            (1.0F / wave * (float)r->original - (float)r->low) / (float)(r->high - r->low);
        f[i] = (1.0F - smooth) * given / (float)r->factor + smooth * given;
    }
}

/* The pair of elements that turns so often in the original context; not a whole number. */
static double pair_of(const tni_rope *r, double turns)
{
    return (double)r->dim * log(r->original / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

/* Pairs up to that of fast turns stay, those from that of slow ones on are divided by factor, those
 * between are interpolated: Peng et al., YaRN (2023), section 3.2, by pairs as in their program. */
static void yarn(const tni_rope *r, float *f)
{
    const double first = fmax(floor(pair_of(r, r->fast)), 0);
    const double last = fmin(ceil(pair_of(r, r->slow)), (double)r->dim - 1);
    const float width = (float)(last == first ? 0.001 : last - first);
    for (int64_t i = 0; i < r->dim / 2; i++) {
        const float keep = 1.0F - fminf(fmaxf(((float)i - (float)first) / width, 0), 1);
        f[i] = f[i] / (float)r->factor * (1.0F - keep) + f[i] * keep;
    }
}

/* Of dim / 2 pairs of elements: f_i = theta^(-2i/dim), computed in f32 as the models' authors did:
 * Su et al., RoFormer (2021), section 3.4.2. For longer texts than those of the training they are
 * made smaller: linear (Chen et al., Position Interpolation, 2023), llama3 (Llama 3.1's own),
 * yarn. */
void tni_rope_frequencies(const tni_rope *r, float *f)
{
    for (int64_t i = 0; i < r->dim / 2; i++)
        f[i] = 1.0F / powf((float)r->theta, (float)(2 * i) / (float)r->dim);
    if (r->type == TNI_ROPE_LINEAR)
        for (int64_t i = 0; i < r->dim / 2; i++) f[i] /= (float)r->factor;
    if (r->type == TNI_ROPE_LLAMA3) llama3(r, f);
    if (r->type == TNI_ROPE_YARN) yarn(r, f);
}

/* ---- all layers ------------------------------------------------------------------------------ */

typedef struct body {
    tn_module base;
    tn_module *embed, *position, *layers, *norm; /* position: of GPT-2 */
    /* Frequencies of rotary positions, or absent. A direction, since like those it must stay in f32
     * when the model is cast, and no average may touch it. */
    tn_tensor *frequency;
    double drop;
    int64_t positions;
} body;

tn_tensor *tni_lm_positions(tn_tensor *ids, tn_tensor *slots, int64_t *last)
{
    const int64_t rows = tn_size(ids, 0), tokens = tn_size(ids, 1);
    const int64_t *start = tn_is_none(slots) ? NULL : tn_data(slots);
    const tn_device device = tn_device_of(ids);
    int64_t least = start ? start[0] : 0, most = least;
    for (int64_t b = 1; start && b < rows; b++)
        least = TNI_MIN(least, start[b]), most = TNI_MAX(most, start[b]);
    if (last) *last = most + tokens;
    tn_tensor *t = tn_cumsum(tn_full_as(TN_SHAPE(tokens), 1, TN_I64, device), 0);
    if (least == most) return tn_add_scalar(t, (double)least - 1);
    tn_tensor *first = tn_to(tn_from_ints(start, TN_SHAPE(rows, 1)), device);
    return tn_add(tn_sub_scalar(t, 1), first);
}

/* Of which keys each token sees: none hidden, TN_NONE, for a single one or at the begin of all
 * texts. [T, S], or [B, 1, T, S] where they differ. */
static tn_tensor *mask_of(tn_tensor *ids, tn_tensor *slots)
{
    if (tn_is_none(slots)) return TN_NONE;
    const int64_t b = tn_size(ids, 0), t = tn_size(ids, 1);
    const int64_t *start = tn_data(slots), *count = start + b;
    int64_t all = 0;
    bool none = true, same = true;
    for (int64_t i = 0; i < b; i++) {
        all = TNI_MAX(all, start[i] + count[i]);
        none = none && start[i] == 0;
        same = same && start[i] == start[0];
    }
    if (none || (same && t == 1)) return TN_NONE;
    const tn_device device = tn_device_of(ids);
    const int64_t rows = same ? 1 : b;
    tn_tensor *key = tn_arange(0, (double)all, 1, TN_I64), *from = tn_from_ints(start, TN_SHAPE(b));
    tn_tensor *at = tn_add(tn_unsqueeze(tn_narrow(from, 0, 0, rows), 1),
                           tn_arange(0, (double)t, 1, TN_I64)); /* [rows, T] */
    return tn_to(tn_unsqueeze(tn_gt(key, tn_unsqueeze(at, 2)), 1), device);
}

static void rotations(body *m, tn_tensor *at, tn_tensor **in)
{
    tn_tensor *f = m->frequency;
    in[TNI_COSINE] = in[TNI_SINE] = TN_NONE;
    if (tn_is_none(f)) return;
    const tn_dtype dtype = tn_dtype_of(in[TNI_X]) == TN_F64 ? TN_F64 : TN_F32;
    tn_tensor *angle = tn_mul(tn_unsqueeze(tn_to_dtype(at, dtype), -1), tn_to_dtype(f, dtype));
    if (tn_rank(at) == 2) angle = tn_unsqueeze(angle, 1); /* the heads */
    in[TNI_COSINE] = tn_cos(angle), in[TNI_SINE] = tn_sin(angle);
}

static tn_status embed(body *m, tn_tensor *ids, tn_tensor *slots, tn_tensor **in)
{
    int64_t last = 0;
    tn_tensor *at = tni_lm_positions(ids, slots, &last), *x = tn_forward(m->embed, ids);
    if (m->position != TN_NO_MODULE) {
        if (tn_is_none(slots) && last > m->positions)
            return tni_error(TN_E_INDEX,
                             "%" PRId64 " tokens: want at most %" PRId64 ", which have a position",
                             last, m->positions);
        /* of padding, which nobody reads, too */
        if (last > m->positions) at = tn_clamp(at, 0, (double)(m->positions - 1));
        x = tn_add(x, tn_forward(m->position, at));
    }
    in[TNI_X] = tn_dropout(x, m->drop, tn_training(&m->base));
    in[TNI_SLOTS] = slots;
    in[TNI_MASK] = mask_of(ids, slots);
    rotations(m, at, in);
    for (int i = 0; i < TNI_INPUTS; i++)
        if (!in[i]) return tni_pending();
    return TN_OK;
}

static tn_status body_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                              tn_tensor **out)
{
    body *m = (body *)self;
    TNI_TRY(tni_lm_called(self, n_in, in, n_in == 1 ? 1 : 2, n_out));
    if (tn_rank(in[0]) != 2 || tn_numel(in[0]) == 0)
        return tni_error(TN_E_SHAPE, "ids of %d axes: want [B, T], one or more", tn_rank(in[0]));
    tn_tensor *args[TNI_INPUTS];
    TNI_TRY(embed(m, in[0], n_in == 2 ? in[1] : TN_NONE, args));
    for (int i = 0; i < tn_module_children(m->layers); i++)
        TNI_TRY(tn_call(tn_module_child(m->layers, i), TNI_INPUTS, args, 1, args));
    out[0] = tn_forward(m->norm, args[TNI_X]);
    return TN_OK;
}

TNI_TYPE(body, "Decoder", body, .forward_n = body_forward)

static tn_module *body_new(const tni_lm_config *c, const names *n)
{
    const bool gpt = c->family == TNI_LM_GPT2;
    float values[TNI_LM_HEAD / 2];
    tn_embedding_options padded = { 0 };
    if (c->pad >= 0 && !gpt) padded.use_padding_index = true, padded.padding_index = c->pad;
    body *m = tn_module_new(&body_type);
    if (!m) return NULL;
    m->drop = c->embed_drop, m->positions = c->positions;
    m->position = TN_NO_MODULE;
    tn_register_module(&m->base, n->embed, &m->embed,
                       tn_embedding_new(c->vocab, c->hidden, padded));
    if (gpt)
        tn_register_module(&m->base, "wpe", &m->position,
                           tn_embedding_new(c->positions, c->hidden, (tn_embedding_options){ 0 }));
    tn_register_module(&m->base, n->layers, &m->layers, tn_module_list_new());
    for (int64_t i = 0; m->layers && i < c->layers; i++)
        if (tn_module_append(m->layers, layer_new(c, n, i)) != TN_OK) break;
    tn_register_module(&m->base, n->norm, &m->norm, tni_lm_norm_new(c));
    if (!gpt) tni_rope_frequencies(&c->rope, values);
    tn_register_buffer(&m->base, "inv_freq", &m->frequency,
                       gpt ? TN_NONE : tn_from_floats(values, TN_SHAPE(c->head_dim / 2)),
                       TN_DIRECTION | TN_NON_PERSISTENT);
    return tn_module_done(&m->base);
}

void tni_lm_decoder_register(tni_lm *m)
{
    const names *n = m->c.family == TNI_LM_GPT2 ? &gpt2_names : &llama_names;
    tn_register_module(&m->base, n->body, &m->part[0], body_new(&m->c, n));
    tni_lm_linear(&m->base, "lm_head", &m->part[1], m->c.hidden, m->c.vocab, false);
    if (m->c.tied && m->part[0] && m->part[1])
        tn_module_set(m->part[1], "weight",
                      tn_get_parameter(((body *)m->part[0])->embed, "weight"));
}
