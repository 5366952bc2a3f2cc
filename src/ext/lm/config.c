/*
 * config.c - a config.json, read key by key.
 *
 * A key that changes results is honoured, or refused by its name where its value is none of ours.
 * Other keys are skipped. null stands for a missing key, as in Python.
 */
#include "ext/lm/config.h"

#include <limits.h>

#include "base/host.h"

/* ---- kinds of models ------------------------------------------------------------------------- */

/* What a model is where its file says nothing. */
typedef struct kind {
    const char *type;
    unsigned family;
    bool tied, qkv_bias, qk_norm;
    int64_t head_dim, interval, pad, bos, eos;
    double theta;
} kind;

static const kind kinds[] = {
    { "gpt2", TNI_LM_GPT2, true, true, false, 0, 0, -1, 50256, 50256, 0 },
    { "llama", TNI_LM_LLAMA, false, false, false, 0, 0, -1, 1, 2, 1e4 },
    { "qwen2", TNI_LM_LLAMA, false, true, false, 0, 0, -1, -1, -1, 1e4 },
    { "qwen3", TNI_LM_LLAMA, false, false, true, 128, 0, -1, -1, -1, 1e4 },
    { "smollm3", TNI_LM_LLAMA, true, false, false, 0, 4, 128004, 128000, 128001, 2e6 },
    { "bert", TNI_LM_BERT, false, true, false, 0, 0, 0, -1, -1, 0 },
};

static void begin(tni_lm_config *c, const kind *k)
{
    *c = (tni_lm_config){ .family = k->family,
                          .tied = k->tied,
                          .qkv_bias = k->qkv_bias,
                          .o_bias = k->family != TNI_LM_LLAMA,
                          .mlp_bias = k->family != TNI_LM_LLAMA,
                          .qk_norm = k->qk_norm,
                          .head_dim = k->head_dim,
                          .interval = k->interval,
                          .pad = k->pad,
                          .bos = k->bos,
                          .eos = { k->eos },
                          .n_eos = k->eos >= 0,
                          .range = 0.02,
                          .scaled = true,
                          .default_theta = k->theta,
                          .partial = 1,
                          .rope = { .truncate = true, .partial = 1 } };
    snprintf(c->type, sizeof c->type, "%s", k->type);
    c->eps = k->family == TNI_LM_GPT2 ? 1e-5 : k->family == TNI_LM_BERT ? 1e-12 : 1e-6;
    c->act = k->family == TNI_LM_GPT2 ? tn_gelu_tanh : k->family == TNI_LM_BERT ? tn_gelu : tn_silu;
    if (k->family != TNI_LM_LLAMA) c->resid_drop = c->attn_drop = c->embed_drop = 0.1;
}

/* ---- activations ----------------------------------------------------------------------------- */

static tn_tensor *gelu_quick(tn_tensor *x)
{
    return tn_mul(x, tn_sigmoid(tn_mul_scalar(x, 1.702)));
}

static const struct {
    const char *name;
    tn_tensor *(*act)(tn_tensor *x);
} acts[] = { { "gelu", tn_gelu },
             { "gelu_new", tn_gelu_tanh },
             { "gelu_pytorch_tanh", tn_gelu_tanh },
             { "gelu_fast", tn_gelu_tanh },
             { "gelu_accurate", tn_gelu_tanh },
             { "quick_gelu", gelu_quick },
             { "silu", tn_silu },
             { "swish", tn_silu },
             { "relu", tn_relu },
             { "tanh", tn_tanh } };

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
    tni_json j;
    tni_lm_config *c;
    const char *function, *path;
    char key[64]; /* where we are, for messages */
    bool in_rope;
} reader;

static tn_status bad(const reader *r, const char *want)
{
    return tni_file_error(TN_E_FORMAT, r->function, r->path, "%s: want %s", r->key, want);
}

static tn_status refuse(const reader *r, const char *what)
{
    return tni_file_error(TN_E_UNSUPPORTED, r->function, r->path, "%s %.64s is not supported",
                          r->key, what);
}

/* Any finite number. */
static bool real(tni_json *j, double *x)
{
    if (tni_json_kind(j) != '0') return false;
    TNI_C_NUMBERS;
    char *end = NULL, *from = j->at;
    const double value = strtod(from, &end);
    if (!tni_json_skip(j) || end != j->at || !isfinite(value)) return false;
    *x = value;
    return true;
}

static bool flag(tni_json *j, bool *x)
{
    *x = tni_json_word(j, "true");
    return *x || tni_json_word(j, "false");
}

typedef enum form {
    SIZE,
    ID,
    IDS,
    REAL,
    PART,
    FLAG,
    BIAS,
    ACT,
    ROPE,
    LAYERS,
    TYPES,
    FACTORS,
    ROPE_TYPE
} form;

/* A key, and what it sets. */
typedef struct field {
    const char *key;
    unsigned families;
    form form;
    size_t at; /* in a tni_lm_config */
} field;

#define AT(member) offsetof(tni_lm_config, member)
enum { GPT = TNI_LM_GPT2, LLAMA = TNI_LM_LLAMA, BERT = TNI_LM_BERT, ALL = GPT | LLAMA | BERT };

static const field fields[] = {
    { "vocab_size", ALL, SIZE, AT(vocab) },
    { "n_embd", GPT, SIZE, AT(hidden) },
    { "n_layer", GPT, SIZE, AT(layers) },
    { "n_head", GPT, SIZE, AT(heads) },
    { "n_positions", GPT, SIZE, AT(positions) },
    { "n_inner", GPT, SIZE, AT(inner) },
    { "hidden_size", LLAMA | BERT, SIZE, AT(hidden) },
    { "num_hidden_layers", LLAMA | BERT, SIZE, AT(layers) },
    { "num_attention_heads", LLAMA | BERT, SIZE, AT(heads) },
    { "num_key_value_heads", LLAMA, SIZE, AT(kv_heads) },
    { "head_dim", LLAMA, SIZE, AT(head_dim) },
    { "max_position_embeddings", LLAMA | BERT, SIZE, AT(positions) },
    { "intermediate_size", LLAMA | BERT, SIZE, AT(inner) },
    { "type_vocab_size", BERT, SIZE, AT(token_types) },
    { "layer_norm_epsilon", GPT, REAL, AT(eps) },
    { "rms_norm_eps", LLAMA, REAL, AT(eps) },
    { "layer_norm_eps", BERT, REAL, AT(eps) },
    { "initializer_range", ALL, REAL, AT(range) },
    { "embd_pdrop", GPT, PART, AT(embed_drop) },
    { "attn_pdrop", GPT, PART, AT(attn_drop) },
    { "resid_pdrop", GPT, PART, AT(resid_drop) },
    { "attention_dropout", LLAMA, PART, AT(attn_drop) },
    { "hidden_dropout_prob", BERT, PART, AT(resid_drop) },
    { "attention_probs_dropout_prob", BERT, PART, AT(attn_drop) },
    { "activation_function", GPT, ACT, AT(act) },
    { "hidden_act", LLAMA | BERT, ACT, AT(act) },
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
    { "attention_bias", LLAMA, BIAS, 0 },
    { "layer_types", LLAMA, TYPES, 0 },
    { "no_rope_layer_interval", LLAMA, SIZE, AT(interval) },
    { "no_rope_layers", LLAMA, LAYERS, 0 },
};

static const field rope_fields[] = {
    { "rope_type", LLAMA, ROPE_TYPE, AT(rope.type) },
    { "type", LLAMA, ROPE_TYPE, AT(rope.type) },
    { "rope_theta", LLAMA, REAL, AT(rope.theta) },
    { "partial_rotary_factor", LLAMA, REAL, AT(rope.partial) },
    { "factor", LLAMA, REAL, AT(rope.factor) },
    { "original_max_position_embeddings", LLAMA, REAL, AT(rope.original) },
    { "low_freq_factor", LLAMA, REAL, AT(rope.low) },
    { "high_freq_factor", LLAMA, REAL, AT(rope.high) },
    { "beta_fast", LLAMA, REAL, AT(rope.beta_fast) },
    { "beta_slow", LLAMA, REAL, AT(rope.beta_slow) },
    { "mscale", LLAMA, REAL, AT(rope.mscale) },
    { "mscale_all_dim", LLAMA, REAL, AT(rope.mscale_all) },
    { "attention_factor", LLAMA, REAL, AT(rope.attention) },
    { "truncate", LLAMA, FLAG, AT(rope.truncate) },
    { "short_factor", LLAMA, FACTORS, 0 },
    { "long_factor", LLAMA, FACTORS, 1 },
};

/* Keys that may have one value only: a word, or a string behind a =. */
static const struct {
    const char *key, *value;
    unsigned families;
} fixed[] = {
    { "is_decoder", "false", BERT },
    { "add_cross_attention", "false", GPT | BERT },
    { "position_embedding_type", "=absolute", BERT },
    { "use_sliding_window", "false", LLAMA },
    { "quantization_config", "null", ALL },
    { "is_encoder_decoder", "false", ALL },
};

/* ---- values ---------------------------------------------------------------------------------- */

static tn_status read_object(reader *r, const field *list, size_t n);

static tn_status read_act(reader *r, void *to)
{
    const char *name = tni_json_string(&r->j);
    if (!name) return bad(r, "a name");
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        if (strcmp(name, acts[i].name) != 0) continue;
        *(tn_tensor * (**)(tn_tensor *)) to = acts[i].act;
        return TN_OK;
    }
    return refuse(r, name);
}

static tn_status read_ends(reader *r)
{
    int64_t *eos = r->c->eos;
    r->c->n_eos = 0;
    if (!tni_json_open(&r->j, '[')) {
        if (!tni_json_integer(&r->j, eos)) return bad(r, "a token or a list of them");
        r->c->n_eos = 1;
        return TN_OK;
    }
    while (tni_json_next(&r->j, ']')) {
        if (r->c->n_eos == TNI_LM_ENDS) return bad(r, "at most 8 tokens");
        if (!tni_json_integer(&r->j, &eos[r->c->n_eos++])) return bad(r, "a list of tokens");
    }
    return TN_OK;
}

static tn_status read_layers(reader *r)
{
    if (!tni_json_open(&r->j, '[')) return bad(r, "a list of 0 and 1");
    for (int64_t x = 0; tni_json_next(&r->j, ']');) {
        if (r->c->n_rotated == TNI_LM_LAYERS || !tni_json_integer(&r->j, &x) || x > 1)
            return bad(r, "a list of 0 and 1, one for each layer");
        r->c->rotated[r->c->n_rotated++] = x != 0;
    }
    return TN_OK;
}

static tn_status read_factors(reader *r, bool longs)
{
    tni_rope *rope = &r->c->rope;
    int *n = longs ? &rope->n_long : &rope->n_short;
    *n = 0;
    if (!tni_json_open(&r->j, '[')) return bad(r, "a list of numbers");
    for (double x = 0; tni_json_next(&r->j, ']');) {
        if (*n == TNI_LM_HEAD / 2 || !real(&r->j, &x) || !(x > 0))
            return bad(r, "numbers above 0, one for each pair of a head's elements");
        (longs ? rope->longs : rope->shorts)[(*n)++] = (float)x;
    }
    return TN_OK;
}

static tn_status read_rope_type(reader *r)
{
    static const char *const names[] = { "default", "linear",   "dynamic",
                                         "yarn",    "longrope", "llama3" };
    const char *name = tni_json_string(&r->j);
    if (!name) return bad(r, "a name");
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(name, names[i]) == 0) {
            r->c->rope.type = i;
            return TN_OK;
        }
    return refuse(r, name);
}

static tn_status read_types(reader *r)
{
    if (!tni_json_open(&r->j, '[')) return bad(r, "a list of names");
    while (tni_json_next(&r->j, ']')) {
        const char *name = tni_json_string(&r->j);
        if (!name) return bad(r, "a list of names");
        if (strcmp(name, "full_attention") != 0) return refuse(r, name);
    }
    return TN_OK;
}

/* Of a token; below 0: none. */
static tn_status read_id(reader *r, int64_t *id)
{
    double x = 0;
    if (!real(&r->j, &x) || x != floor(x) || x > INT_MAX) return bad(r, "a token");
    *id = x < 0 ? -1 : (int64_t)x;
    return TN_OK;
}

static tn_status read_number(reader *r, const field *f)
{
    void *to = (char *)r->c + f->at;
    if (f->form == ID) return read_id(r, to);
    if (f->form == SIZE) {
        int64_t *size = to;
        if (tni_json_integer(&r->j, size) && *size > 0 && *size <= 1 << 30) return TN_OK;
        return bad(r, "an integer from 1 to 2^30");
    }
    double *x = to;
    if (!real(&r->j, x) || *x < 0) return bad(r, "a number from 0 on");
    return f->form != PART || *x <= 1 ? TN_OK : bad(r, "a number from 0 to 1");
}

static tn_status read_value(reader *r, const field *f)
{
    void *to = (char *)r->c + f->at;
    switch (f->form) {
    case IDS: return read_ends(r);
    case FLAG: return flag(&r->j, to) ? TN_OK : bad(r, "true or false");
    case BIAS:
        if (!flag(&r->j, &r->c->o_bias)) return bad(r, "true or false");
        r->c->qkv_bias = r->c->o_bias;
        return TN_OK;
    case ACT: return read_act(r, to);
    case ROPE:
        if (!tni_json_open(&r->j, '{')) return bad(r, "an object");
        return read_object(r, rope_fields, sizeof rope_fields / sizeof *rope_fields);
    case LAYERS: return read_layers(r);
    case TYPES: return read_types(r);
    case FACTORS: return read_factors(r, f->at != 0);
    case ROPE_TYPE: return read_rope_type(r);
    default: return read_number(r, f);
    }
}

/* null: as if the key were missing, but for tokens: there are none. */
static tn_status read_null(reader *r, const field *f)
{
    if (f->form == ID) *(int64_t *)((char *)r->c + f->at) = -1;
    if (f->form == IDS) r->c->n_eos = 0;
    return TN_OK;
}

/* A key that may have one value only. */
static tn_status read_fixed(reader *r)
{
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const char *value = fixed[i].value;
        if (!(fixed[i].families & r->c->family) || strcmp(r->key, fixed[i].key) != 0) continue;
        const char *text = *value == '=' ? tni_json_string(&r->j) : NULL;
        if (text ? strcmp(text, value + 1) == 0 : tni_json_word(&r->j, value)) return TN_OK;
        if (tni_json_word(&r->j, "null")) return TN_OK;
        return refuse(r, text ? text : "other than null or false");
    }
    /* rotary positions that differ from layer to layer */
    if (r->in_rope && tni_json_kind(&r->j) == '{') return refuse(r, "of its own");
    return tni_json_skip(&r->j) ? TN_OK : bad(r, "a value");
}

/* The weights' dtype, which saving writes anew. */
static tn_status read_dtype(reader *r)
{
    tni_json_kind(&r->j); /* what follows is no space */
    r->c->dtype_at = (size_t)(r->j.at - r->j.text);
    if (!tni_json_skip(&r->j)) return bad(r, "a name");
    r->c->dtype_end = (size_t)(r->j.at - r->j.text);
    return TN_OK;
}

/* The members of an object that is open. */
static tn_status read_object(reader *r, const field *list, size_t n)
{
    tn_status status = TN_OK;
    while (status == TN_OK && tni_json_next(&r->j, '}')) {
        const char *key = tni_json_key(&r->j);
        if (!key) break;
        snprintf(r->key, sizeof r->key, "%.63s", key);
        r->in_rope = list == rope_fields;
        size_t i = 0;
        while (i < n && (strcmp(key, list[i].key) != 0 || !(list[i].families & r->c->family))) i++;
        if (list == fields && (!strcmp(key, "dtype") || !strcmp(key, "torch_dtype")))
            status = read_dtype(r);
        else if (i == n)
            status = read_fixed(r);
        else if (tni_json_word(&r->j, "null"))
            status = read_null(r, &list[i]);
        else
            status = read_value(r, &list[i]);
    }
    return status;
}

static tn_status broken(const reader *r)
{
    return tni_file_error(TN_E_FORMAT, r->function, r->path, "no JSON object at byte %td: %s",
                          r->j.at - r->j.text, r->j.problem ? r->j.problem : "want {");
}

/* ---- what the model is, and whether it fits together ----------------------------------------- */

/* model_type, which decides what the other keys mean. */
static tn_status read_kind(reader *r)
{
    const kind *found = NULL;
    if (!tni_json_open(&r->j, '{')) return broken(r);
    while (tni_json_next(&r->j, '}')) {
        const char *key = tni_json_key(&r->j);
        const bool type = key && strcmp(key, "model_type") == 0;
        if (key && !type) tni_json_skip(&r->j);
        if (!type) continue;
        strcpy(r->key, "model_type");
        const char *name = tni_json_string(&r->j);
        if (!name) return bad(r, "a name");
        found = NULL;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (strcmp(kinds[i].type, name) == 0) found = &kinds[i];
        if (!found) return refuse(r, name);
    }
    if (r->j.problem || !tni_json_end(&r->j)) return broken(r);
    strcpy(r->key, "model_type");
    if (!found) return bad(r, "one: it is missing");
    begin(r->c, found);
    return TN_OK;
}

static tn_status wrong(reader *r, const char *key, const char *want)
{
    snprintf(r->key, sizeof r->key, "%s", key);
    return bad(r, want);
}

static tn_status check_scaling(reader *r)
{
    tni_rope *rope = &r->c->rope;
    const bool by_length = rope->type == TNI_ROPE_YARN || rope->type == TNI_ROPE_LONGROPE;
    if (rope->factor == 0 && by_length) rope->factor = (double)rope->positions / rope->original;
    if (rope->type != TNI_ROPE_DEFAULT && !(rope->factor > 0))
        return wrong(r, "factor", "a number above 0");
    if (rope->type == TNI_ROPE_DYNAMIC && (rope->dim < 4 || rope->factor < 1))
        return wrong(r, "factor", "a number from 1 on, and heads of 4 elements or more");
    if (rope->type == TNI_ROPE_LLAMA3 && !(rope->low > 0 && rope->high > rope->low))
        return wrong(r, "high_freq_factor", "low_freq_factor above 0, and this above it");
    if (rope->type == TNI_ROPE_LONGROPE &&
        (rope->n_short != rope->dim / 2 || rope->n_long != rope->dim / 2 || rope->original <= 1))
        return wrong(r, "long_factor", "it and short_factor: a number for each pair of elements");
    return TN_OK;
}

static tn_status check_rope(reader *r)
{
    tni_lm_config *c = r->c;
    tni_rope *rope = &c->rope;
    rope->dim = c->head_dim, rope->positions = c->positions;
    if (c->theta != 0 && rope->theta == 0) rope->theta = c->theta;
    if (rope->theta == 0) rope->theta = c->default_theta;
    if (c->original != 0) rope->original = c->original;
    if (rope->original == 0) rope->original = (double)c->positions;
    if (rope->beta_fast == 0) rope->beta_fast = 32;
    if (rope->beta_slow == 0) rope->beta_slow = 1;
    if (c->head_dim % 2) return wrong(r, "head_dim", "an even number");
    if (!(rope->theta > 1)) return wrong(r, "rope_theta", "a number above 1");
    if (c->partial != 1 || rope->partial != 1) return wrong(r, "partial_rotary_factor", "1");
    return check_scaling(r);
}

static tn_status check(reader *r)
{
    tni_lm_config *c = r->c;
    const bool gpt = c->family == TNI_LM_GPT2;
    const struct {
        const char *key;
        int64_t size;
    } needed[] = { { "vocab_size", c->vocab },
                   { gpt ? "n_embd" : "hidden_size", c->hidden },
                   { gpt ? "n_layer" : "num_hidden_layers", c->layers },
                   { gpt ? "n_head" : "num_attention_heads", c->heads },
                   { gpt ? "n_positions" : "max_position_embeddings", c->positions },
                   { "intermediate_size", c->inner || gpt } };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!needed[i].size) return wrong(r, needed[i].key, "a number: it is missing");
    if (!c->inner) c->inner = 4 * c->hidden;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->token_types) c->token_types = 2;
    if (!c->head_dim && c->hidden % c->heads)
        return wrong(r, needed[3].key, "a number that divides the hidden size");
    if (!c->head_dim) c->head_dim = c->hidden / c->heads;
    if (c->layers > TNI_LM_LAYERS) return wrong(r, needed[2].key, "at most 1024");
    if (c->head_dim > TNI_LM_HEAD) return wrong(r, "head_dim", "at most 1024");
    if (c->heads % c->kv_heads)
        return wrong(r, "num_key_value_heads", "a number that divides num_attention_heads");
    if (c->pad >= c->vocab && !gpt) return wrong(r, "pad_token_id", "a token below vocab_size");
    return c->family == TNI_LM_LLAMA ? check_rope(r) : TN_OK;
}

tn_status tni_lm_config_read(tni_lm_config *c, const char *function, const char *path,
                             const char *text, size_t n)
{
    char *copy = tni_alloc(n + 1); /* reading destroys it */
    if (!copy) return TN_E_NOMEM;
    reader r = { .c = c, .function = function, .path = path };
    memcpy(copy, text, n + 1);
    r.j = tni_json_of(copy, n);
    tn_status status = read_kind(&r);
    memcpy(copy, text, n + 1);
    r.j = tni_json_of(copy, n);
    if (status == TN_OK && tni_json_open(&r.j, '{'))
        status = read_object(&r, fields, sizeof fields / sizeof *fields);
    if (status == TN_OK && r.j.problem) status = broken(&r);
    if (status == TN_OK) status = check(&r);
    tni_free(copy, n + 1);
    return status;
}
