/*
 * config.c - a config.json, read key by key.
 *
 * A key that changes results is honoured, or refused by its name where its value is none of ours.
 * Other keys are skipped. null stands for a missing key, as in Python.
 */
#include "ext/lm/config.h"

#include <limits.h>

/* ---- kinds of models ------------------------------------------------------------------------- */

#define COMMON .range = 0.02, .scaled = true, .partial = 1, .rope = { .partial = 1 }
#define LLAMA_LIKE COMMON, .pad = -1, .family = TNI_LM_LLAMA, .eps = 1e-6, .act = tn_silu

/* What a model is where its file says nothing. */
/* clang-format off */
static const tni_lm_config kinds[] = {
    { COMMON, .pad = -1, .family = TNI_LM_GPT2, .eps = 1e-5, .act = tn_gelu_tanh,
      .tied = true, .qkv_bias = true, .o_bias = true, .mlp_bias = true,
      .resid_drop = 0.1, .attn_drop = 0.1, .embed_drop = 0.1,
      .type = "gpt2", .bos = 50256, .eos = { 50256 }, .n_eos = 1 },
    { LLAMA_LIKE, .type = "llama", .bos = 1, .eos = { 2 }, .n_eos = 1 },
    { LLAMA_LIKE, .type = "qwen2", .qkv_bias = true, .bos = -1, .eos = { -1 } },
    { LLAMA_LIKE, .type = "qwen3", .qk_norm = true, .head_dim = 128, .bos = -1, .eos = { -1 } },
    { COMMON, .family = TNI_LM_BERT, .eps = 1e-12, .act = tn_gelu, .token_types = 2,
      .qkv_bias = true, .attn_drop = 0.1, .resid_drop = 0.1, .type = "bert", .bos = -1 },
};
/* clang-format on */

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
    tni_lm_config *c;
    const char *function, *path;
    const char *key;  /* where we are, for messages */
    const char *text; /* of the file; strings are decoded in their places */
} reader;

static tn_status bad(const reader *r, const char *want)
{
    return tni_file_error(TN_E_FORMAT, r->function, r->path, "%.64s: want %s", r->key, want);
}

static tn_status refuse(const reader *r, const char *what)
{
    return tni_file_error(TN_E_UNSUPPORTED, r->function, r->path, "%.64s %.64s is not supported",
                          r->key, what);
}

/* clang-format off */
typedef enum form { SIZE, NEED, ID, IDS, REAL, PART, FLAG, ACT, ROPE, PLAIN, KIND, NEVER, ALWAYS } form;
/* clang-format on */

/* A key, and what it sets. */
typedef struct field {
    const char *key;
    unsigned families;
    form form;
    size_t at; /* in a tni_lm_config */
} field;

#define AT(member) offsetof(tni_lm_config, member)
enum { GPT = TNI_LM_GPT2, LLAMA = TNI_LM_LLAMA, BERT = TNI_LM_BERT };
enum { WIDE = LLAMA | BERT, ALL = GPT | WIDE }; /* WIDE: sizes by the same keys */

static const field fields[] = {
    { "vocab_size", ALL, NEED, AT(vocab) },
    { "n_embd", GPT, NEED, AT(hidden) },
    { "n_layer", GPT, NEED, AT(layers) },
    { "n_head", GPT, NEED, AT(heads) },
    { "n_positions", GPT, NEED, AT(positions) },
    { "n_inner", GPT, SIZE, AT(inner) },
    { "hidden_size", WIDE, NEED, AT(hidden) },
    { "num_hidden_layers", WIDE, NEED, AT(layers) },
    { "num_attention_heads", WIDE, NEED, AT(heads) },
    { "num_key_value_heads", LLAMA, SIZE, AT(kv_heads) },
    { "head_dim", LLAMA, SIZE, AT(head_dim) },
    { "max_position_embeddings", WIDE, NEED, AT(positions) },
    { "intermediate_size", WIDE, NEED, AT(inner) },
    { "type_vocab_size", BERT, SIZE, AT(token_types) },
    { "layer_norm_epsilon", GPT, REAL, AT(eps) },
    { "rms_norm_eps", LLAMA, REAL, AT(eps) },
    { "layer_norm_eps", BERT, REAL, AT(eps) },
    { "initializer_range", ALL, REAL, AT(range) },
    { "embd_pdrop", GPT, PART, AT(embed_drop) },
    { "attn_pdrop", GPT, PART, AT(attn_drop) },
    { "resid_pdrop", GPT, PART, AT(resid_drop) },
    { "attention_dropout", LLAMA, PART, AT(attn_drop) },
    { "attention_probs_dropout_prob", BERT, PART, AT(attn_drop) },
    { "hidden_dropout_prob", BERT, PART, AT(resid_drop) },
    { "activation_function", GPT, ACT, 0 },
    { "hidden_act", WIDE, ACT, 0 },
    { "tie_word_embeddings", GPT | LLAMA, FLAG, AT(tied) },
    { "mlp_bias", LLAMA, FLAG, AT(mlp_bias) },
    { "scale_attn_by_inverse_layer_idx", GPT, FLAG, AT(by_layer) },
    { "scale_attn_weights", GPT, FLAG, AT(scaled) },
    { "pad_token_id", ALL, ID, AT(pad) },
    { "bos_token_id", ALL, ID, AT(bos) },
    { "eos_token_id", ALL, IDS, 0 },
    { "rope_scaling", LLAMA, ROPE, 0 },
    { "rope_parameters", LLAMA, ROPE, 0 },
    { "rope_theta", LLAMA, REAL, AT(theta) },
    { "partial_rotary_factor", LLAMA, REAL, AT(partial) },
    { "original_max_position_embeddings", LLAMA, REAL, AT(original) },
    { "attention_bias", LLAMA, FLAG, AT(qkv_bias) },
    { "layer_types", LLAMA, PLAIN, 0 },
    { "position_embedding_type", BERT, PLAIN, 0 },
    { "add_cross_attention", GPT | BERT, NEVER, 0 },
    { "is_decoder", BERT, NEVER, 0 },
    { "use_sliding_window", LLAMA, NEVER, 0 },
    { "quantization_config", ALL, NEVER, 0 },
    { "is_encoder_decoder", ALL, NEVER, 0 },
    { "is_causal", GPT | LLAMA, ALWAYS, 0 },
};

static const field rope_fields[] = {
    { "rope_type", LLAMA, KIND, AT(rope.type) },
    { "type", LLAMA, KIND, AT(rope.type) },
    { "rope_theta", LLAMA, REAL, AT(rope.theta) },
    { "partial_rotary_factor", LLAMA, REAL, AT(rope.partial) },
    { "factor", LLAMA, REAL, AT(rope.factor) },
    { "original_max_position_embeddings", LLAMA, REAL, AT(rope.original) },
    { "low_freq_factor", LLAMA, REAL, AT(rope.low) },
    { "high_freq_factor", LLAMA, REAL, AT(rope.high) },
    { "beta_slow", LLAMA, REAL, AT(rope.slow) },
    { "beta_fast", LLAMA, REAL, AT(rope.fast) },
    { "attention_factor", LLAMA, REAL, AT(rope.attention) },
    { "mscale", LLAMA, NEVER, 0 },
    { "truncate", LLAMA, ALWAYS, 0 },
};

/* ---- values ---------------------------------------------------------------------------------- */

static tn_status read_object(reader *r, const tni_json_node *object, const field *list, size_t n);

/* Which of these names, up to a NULL, the value is. */
static tn_status read_name(reader *r, const tni_json_node *v, const char *const *names, int64_t *to)
{
    if (v->kind != '"') return bad(r, "a name");
    for (*to = 0; names[*to] && strcmp(v->text, names[*to]) != 0;) ++*to;
    return names[*to] ? TN_OK : refuse(r, v->text);
}

static tn_status read_act(reader *r, const tni_json_node *v)
{
    static const char *const names[] = { "gelu", "gelu_new", "gelu_pytorch_tanh",
                                         "silu", "relu",     NULL };
    static tn_tensor *(*const acts[])(tn_tensor *) = { tn_gelu, tn_gelu_tanh, tn_gelu_tanh, tn_silu,
                                                       tn_relu };
    int64_t i;
    TNI_TRY(read_name(r, v, names, &i));
    r->c->act = acts[i];
    return TN_OK;
}

/* A token, or a list of them; below 0: none. */
static tn_status read_ends(reader *r, const tni_json_node *v)
{
    const bool one = v->kind == '0' || v->kind == '.';
    r->c->n_eos = 0;
    if (!one && v->kind != '[') return bad(r, "a token or a list of them");
    for (v = one ? v : tni_json_first(v); v; v = one ? NULL : tni_json_after(v)) {
        if (v->kind == '.' && v->real < 0) continue;
        if (r->c->n_eos == TNI_LM_ENDS) return bad(r, "at most 8 tokens");
        if (v->kind != '0') return bad(r, "a list of tokens");
        r->c->eos[r->c->n_eos++] = v->number;
    }
    return TN_OK;
}

static tn_status read_rope_type(reader *r, const tni_json_node *v)
{
    static const char *const names[] = { "default", "linear", "llama3", "yarn", NULL };
    return read_name(r, v, names, &r->c->rope.type);
}

/* A value, or each of a list, that asks for nothing special. */
static tn_status read_plain(reader *r, const tni_json_node *v)
{
    const char *const names[] = { v->kind == '[' ? "full_attention" : "absolute", NULL };
    int64_t i;
    if (v->kind != '[') return read_name(r, v, names, &i);
    for (v = tni_json_first(v); v; v = tni_json_after(v)) TNI_TRY(read_name(r, v, names, &i));
    return TN_OK;
}

static tn_status read_number(reader *r, const field *f, const tni_json_node *v)
{
    void *to = (char *)r->c + f->at;
    const double x = v->kind == '0' || v->kind == '.' ? v->real : NAN;
    if (f->form == ID) { /* below 0: none */
        if (x != floor(x) || !(x <= INT_MAX)) return bad(r, "a token");
        *(int64_t *)to = x < 0 ? -1 : (int64_t)x;
    } else if (f->form == SIZE || f->form == NEED) {
        if (v->kind != '0' || !(x > 0 && x <= 1 << 30)) return bad(r, "an integer from 1 to 2^30");
        *(int64_t *)to = v->number;
    } else {
        if (!(x >= 0 && isfinite(x))) return bad(r, "a number from 0 on");
        if (f->form == PART && x > 1) return bad(r, "a number from 0 to 1");
        *(double *)to = x;
    }
    return TN_OK;
}

static tn_status read_value(reader *r, const field *f, const tni_json_node *v)
{
    void *to = (char *)r->c + f->at;
    if (v->kind == 'n') { /* as if it were missing, but for tokens: there are none */
        if (f->form == ID) *(int64_t *)to = -1;
        if (f->form == IDS) r->c->n_eos = 0;
        return TN_OK;
    }
    switch (f->form) {
    case IDS: return read_ends(r, v);
    case FLAG:
        *(bool *)to = v->kind == 't';
        return v->kind == 't' || v->kind == 'f' ? TN_OK : bad(r, "true or false");
    case ACT: return read_act(r, v);
    case ROPE:
        if (v->kind != '{') return bad(r, "an object");
        TNI_TRY(read_object(r, v, rope_fields, sizeof rope_fields / sizeof *rope_fields));
        v = tni_json_get(v, "rope_type"); /* goes before its old name, "type" */
        return v ? read_rope_type(r, v) : TN_OK;
    case PLAIN: return read_plain(r, v);
    case KIND: return read_rope_type(r, v);
    case NEVER: return v->kind == 'f' ? TN_OK : refuse(r, "other than null or false");
    case ALWAYS: return v->kind == 't' ? TN_OK : refuse(r, "other than null or true");
    default: return read_number(r, f, v);
    }
}

static tn_status read_object(reader *r, const tni_json_node *object, const field *list, size_t n)
{
    for (const tni_json_node *v = tni_json_first(object); v; v = tni_json_after(v)) {
        size_t i = 0;
        r->key = v->key;
        if (list == fields && v->kind == '"' &&
            (!strcmp(v->key, "dtype") || (!strcmp(v->key, "torch_dtype") && !r->c->dtype_at)))
            r->c->dtype_at = (size_t)(v->text - r->text);
        while (i < n && (strcmp(v->key, list[i].key) || !(list[i].families & r->c->family))) i++;
        if (i < n) TNI_TRY(read_value(r, &list[i], v));
        /* rotary positions that differ from layer to layer */
        if (i == n && list == rope_fields && v->kind == '{') return refuse(r, "of its own");
    }
    return TN_OK;
}

/* ---- what the model is, and whether it fits together ----------------------------------------- */

/* model_type, which decides what the other keys mean. */
static tn_status read_kind(reader *r, const tni_json_node *root)
{
    const char *name = tni_json_get_text(root, "model_type", NULL);
    r->key = "model_type";
    if (!name) return bad(r, tni_json_get(root, r->key) ? "a name" : "one: it is missing");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].type, name) == 0) return *r->c = kinds[i], TN_OK;
    return refuse(r, name);
}

static tn_status wrong(reader *r, const char *key, const char *want)
{
    r->key = key;
    return bad(r, want);
}

static tn_status check_rope(reader *r)
{
    tni_lm_config *c = r->c;
    tni_rope *rope = &c->rope;
    rope->dim = c->head_dim;
    if (c->theta != 0 && rope->theta == 0) rope->theta = c->theta;
    if (rope->theta == 0) rope->theta = 1e4;
    if (c->original != 0) rope->original = c->original;
    if (rope->original == 0) rope->original = (double)c->positions;
    if (c->head_dim % 2) return wrong(r, "head_dim", "an even number");
    if (!(rope->theta > 1)) return wrong(r, "rope_theta", "a number above 1");
    r->key = "partial_rotary_factor";
    if (c->partial != 1 || rope->partial != 1) return refuse(r, "other than 1");
    if (rope->type != TNI_ROPE_DEFAULT && !(rope->factor > 0))
        return wrong(r, "factor", "a number above 0");
    if (rope->type == TNI_ROPE_LLAMA3 && !(rope->low > 0 && rope->high > rope->low))
        return wrong(r, "high_freq_factor", "low_freq_factor above 0, and this above it");
    if (rope->slow == 0) rope->slow = 1;
    if (rope->fast == 0) rope->fast = 32;
    if (rope->type == TNI_ROPE_YARN && !(rope->fast > rope->slow))
        return wrong(r, "beta_fast", "a number above beta_slow");
    if (rope->type != TNI_ROPE_YARN) rope->attention = 1;
    if (rope->attention == 0) /* Peng et al., section 3.3 */
        rope->attention = rope->factor > 1 ? 0.1 * log(rope->factor) + 1 : 1;
    return TN_OK;
}

static tn_status check(reader *r)
{
    tni_lm_config *c = r->c;
    const bool gpt = c->family == TNI_LM_GPT2;
    for (const field *f = fields; f < fields + sizeof fields / sizeof *fields; f++)
        if (f->form == NEED && (f->families & c->family) && !*(int64_t *)((char *)c + f->at))
            return wrong(r, f->key, "a number: it is missing");
    if (!gpt) c->o_bias = c->qkv_bias;
    if (!strcmp(c->type, "qwen2")) c->qkv_bias = true, c->o_bias = false;
    if (c->type[0] == 'q') c->mlp_bias = false; /* whatever the file says */
    if (!c->inner) c->inner = 4 * c->hidden;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->head_dim && c->hidden % c->heads)
        return wrong(r, gpt ? "n_head" : "num_attention_heads",
                     "a number that divides the hidden size");
    if (!c->head_dim) c->head_dim = c->hidden / c->heads;
    if (c->layers > TNI_LM_LAYERS)
        return wrong(r, gpt ? "n_layer" : "num_hidden_layers", "at most 1024");
    if (c->head_dim > TNI_LM_HEAD) return wrong(r, "head_dim", "at most 1024");
    if (c->heads % c->kv_heads)
        return wrong(r, "num_key_value_heads", "a number that divides num_attention_heads");
    if (c->pad >= c->vocab && !gpt) return wrong(r, "pad_token_id", "a token below vocab_size");
    return c->family == TNI_LM_LLAMA ? check_rope(r) : TN_OK;
}

/* ends_alone: of a generation_config.json. */
static tn_status read_root(reader *r, const tni_json_node *root, bool ends_alone)
{
    const tni_json_node *ends = tni_json_get(root, r->key = "eos_token_id");
    if (ends_alone) return (r->c->ends_apart = ends) ? read_ends(r, ends) : TN_OK;
    TNI_TRY(read_kind(r, root));
    TNI_TRY(read_object(r, root, fields, sizeof fields / sizeof *fields));
    return check(r);
}

tn_status tni_lm_tree(const char *function, const char *path, tni_bytes *text, tni_json_tree *tree)
{
    if (!text->data) TNI_TRY(tni_bytes_file(text, function, path, TNI_LM_FILE));
    const bool read = tni_json_tree_read(tree, text->data, text->n);
    if (read && tree->node->kind == '{') return TN_OK;
    if (!read && !tree->problem) return tni_pending();
    return tni_file_error(TN_E_FORMAT, function, path, "no JSON object at byte %zu: %s", tree->at,
                          tree->problem ? tree->problem : "want {");
}

tn_status tni_lm_config_read(tni_lm_config *c, const char *function, const char *path,
                             const char *text)
{
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) copy = { 0 }; /* reading destroys it */
    tni_json_tree TN_WHEN_LEFT(tni_json_tree_free) tree = { 0 };
    if (text) tni_bytes_add(&copy, text, strlen(text) + 1), copy.n--;
    if (copy.failed) return tni_pending();
    reader r = { .c = c, .function = function, .path = path, .text = copy.data };
    TNI_TRY(tni_lm_tree(function, path, &copy, &tree));
    return read_root(&r, tree.node, !text);
}
