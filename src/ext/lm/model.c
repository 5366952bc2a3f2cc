/* model.c - a language model as a whole: made by its config, initial values, calls, the cache. */
#include "ext/lm/model.h"

#include <sys/stat.h>

/* ---- initial values -------------------------------------------------------------------------- */

static bool is(const tn_module *m, const char *type)
{
    return m != TN_NO_MODULE && strcmp(m->type->name, type) == 0;
}

/* As transformers draws them. */
static tn_status draw(tn_module *m, const char *path, void *user)
{
    const tni_lm *lm = user;
    const char *last = strrchr(path, '.');
    double deviation = lm->c.range;
    if (lm->c.family == TNI_LM_GPT2 && last && strcmp(last, ".c_proj") == 0)
        deviation /= sqrt(2 * (double)lm->c.layers);
    if (is(m, "RMSNorm") || is(m, "LayerNorm")) return m->type->reset(m);
    if (!is(m, "Linear") && !is(m, "Embedding")) return TN_OK;
    if (m == lm->part[1] && lm->c.tied) return TN_OK; /* the embedding's */
    tn_tensor *weight = tn_get_parameter(m, "weight");
    TNI_TRY(tn_init_normal(weight, 0, deviation));
    if (is(m, "Linear")) {
        tn_tensor *bias = tn_get_parameter(m, "bias");
        return !bias || tn_is_none(bias) ? TN_OK : tn_init_constant(bias, 0);
    }
    if (m == tn_module_child(lm->part[0], 0) && lm->c.pad >= 0 && lm->c.family != TNI_LM_GPT2)
        return tn_init_constant(tn_select(weight, 0, lm->c.pad), 0);
    return TN_OK;
}

static tn_status lm_reset(tn_module *self)
{
    TNI_UNRECORDED;
    return tn_named_modules(self, draw, self);
}

/* ---- types ----------------------------------------------------------------------------------- */

static tn_status lm_forward(tn_module *self, int n_in, tn_tensor *const *in, int n_out,
                            tn_tensor **out)
{
    const tni_lm *m = (const tni_lm *)self;
    if (m->c.family == TNI_LM_BERT) return tni_lm_bert_forward(m, n_in, in, n_out, out);
    TNI_TRY(tni_lm_called(self, n_in, in, 1, n_out));
    out[0] = tn_forward(m->part[1], tn_forward(m->part[0], in[0]));
    return TN_OK;
}

static void lm_describe(const tn_module *self, char *text, size_t size)
{
    const tni_lm_config *c = &((const tni_lm *)self)->c;
    snprintf(text, size, "%s, %" PRId64 " layers of %" PRId64, c->type, c->layers, c->hidden);
}

static void lm_free(tn_module *self)
{
    tni_strfree(((tni_lm *)self)->text);
}

static tn_status lm_clone(tn_module *self, tn_module *copy)
{
    char *text = ((tni_lm *)copy)->text = tni_strdup(((tni_lm *)self)->text);
    return text ? TN_OK : tni_pending();
}

TNI_TYPE(lm, "LanguageModel", tni_lm, .forward_n = lm_forward, .describe = lm_describe,
         .reset = lm_reset, .free = lm_free, .clone = lm_clone)

tni_lm *tni_lm_of(const char *function, const tn_module *m)
{
    if (!m) return tni_poisoned(function, "the model");
    if (m->type == &lm_type) return (tni_lm *)m;
    return tni_fail(TN_E_INVALID, "%s: a %s: want a model of tn_lm_new or tn_lm_load", function,
                    m == TN_NO_MODULE ? "TN_NO_MODULE" : m->type->name);
}

/* ---- making one ------------------------------------------------------------------------------ */

tn_status tni_lm_file(const char *function, const char **path, const char *name, char *inside,
                      size_t size)
{
    struct stat st;
    TNI_TRY(tni_path_check(function, *path));
    if (stat(*path, &st) != 0 || !S_ISDIR(st.st_mode)) return TN_OK;
    TNI_TRY(tni_path_in(function, *path, name, inside, size));
    return *path = inside, TN_OK;
}

tn_module *tni_lm_make(const char *function, const char *config, bool draws)
{
    char inside[4096];
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) text = { 0 };
    tni_lm_config c;
    if (tni_lm_file(function, &config, "config.json", inside, sizeof inside) != TN_OK ||
        tni_bytes_file(&text, function, config, TNI_LM_FILE) != TN_OK ||
        tni_lm_config_read(&c, function, config, text.data) != TN_OK)
        return NULL;
    tni_lm *m = tn_module_new(&lm_type);
    if (!m) return NULL;
    m->c = c, m->text = tni_strdup(text.data);
    tni_init_skipped = true;
    (c.family == TNI_LM_BERT ? tni_lm_bert_register : tni_lm_decoder_register)(m);
    tni_init_skipped = false;
    tn_register_buffer(&m->base, "cache_lengths", &m->lengths, TN_NONE, TN_CACHE);
    tn_module *made = tn_module_done(&m->base);
    if (!made || !draws || lm_reset(made) == TN_OK) return made;
    tn_module_drop(made);
    return NULL;
}

tn_module *tn_lm_new(const char *config)
{
    return tni_lm_make("tn_lm_new", config, true);
}

tn_status tn_lm_get_info(const tn_module *m, tn_lm_info *info)
{
    const tni_lm *lm = tni_lm_of("tn_lm_get_info", m);
    if (!lm) return tni_pending();
    if (!info) return tni_null("tn_lm_get_info", "info", "room for it");
    *info = lm->c.info;
    info->capacity = tn_is_none(lm->lengths) ? 0 : lm->capacity;
    return TN_OK;
}

/* ---- the cache ------------------------------------------------------------------------------- */

tn_tensor *tni_lm_table(tni_lm *m)
{
    return tn_get_parameter(tn_module_child(m->part[0], 0), "weight");
}

typedef struct wanted {
    int64_t batch, capacity;
    tn_dtype dtype;
} wanted;

static tn_status make_cache(tn_module *m, const char *path, void *user)
{
    (void)path;
    const wanted *w = user;
    return tni_lm_attention_cache(m, w->batch, w->capacity, w->dtype);
}

static tn_status cache_of(tni_lm *m, wanted w)
{
    TNI_TRY(tn_assign(&m->lengths, TN_NONE)); /* no cache until all of it is there */
    TNI_TRY(tn_named_modules(&m->base, make_cache, &w));
    m->capacity = w.capacity;
    if (w.batch == 0) return TN_OK;
    return tn_assign(&m->lengths, tn_full_as(TN_SHAPE(w.batch), 0, TN_I64, tn_cpu()));
}

tn_status tn_lm_set_cache(tn_module *m, int64_t batch, int64_t capacity)
{
    static const char f[] = "tn_lm_set_cache";
    tni_lm *lm = tni_lm_of(f, m);
    tn_tensor *weight = lm ? tni_lm_table(lm) : NULL;
    if (!weight) return tni_pending();
    if (batch && lm->c.family == TNI_LM_BERT)
        return tni_error(TN_E_INVALID, "%s: %s is an encoder: want a decoder", f, lm->c.type);
    if (batch < 0) return tni_error(TN_E_INVALID, "%s: batch %" PRId64 ": want 0 and up", f, batch);
    if (batch && capacity < 1)
        return tni_error(TN_E_INVALID, "%s: capacity %" PRId64 ": want 1 and up", f, capacity);
    tn_status status = TN_OK;
    TN_SCOPE status = cache_of(lm, (wanted){ batch, capacity, tn_dtype_of(weight) });
    if (status == TN_OK) return status;
    tni_saved_error TN_WHEN_LEFT(tni_error_restore) error;
    tni_error_save(&error);
    TN_SCOPE tni_disregard(cache_of(lm, (wanted){ 0 }));
    return status;
}

tn_tensor *tn_lm_cache(tn_module *m)
{
    const tni_lm *lm = tni_lm_of("tn_lm_cache", m);
    return lm ? lm->lengths : NULL;
}

static tn_status check_next(const tni_lm *m, const tn_tensor *ids, const tn_tensor *lengths)
{
    const char *const f = "tn_lm_next";
    if (tn_training(&m->base))
        return tni_error(TN_E_STATE, "%s: the model is in train mode: want tn_eval", f);
    if (tn_is_none(m->lengths))
        return tni_error(TN_E_STATE,
                         "%s: no cache: want tn_lm_set_cache (entering train mode empties it)", f);
    const int64_t batch = tn_size(m->lengths, 0);
    const tn_shape in = tn_shape_get(ids), by = tn_shape_get(lengths);
    if (tn_rank(ids) != 2 || tn_size(ids, 0) != batch || tn_size(ids, 1) < 1 ||
        tn_dtype_of(ids) != TN_I64)
        return tni_error(TN_E_SHAPE, "%s: ids are %s %s: want i64 [%" PRId64 ", T]", f,
                         tn_dtype_name(tn_dtype_of(ids)), tni_shape_text(&in), batch);
    if (tn_is_none(lengths) ||
        (tn_rank(lengths) == 1 && tn_size(lengths, 0) == batch && tn_dtype_of(lengths) == TN_I64))
        return TN_OK;
    return tni_error(TN_E_SHAPE, "%s: lengths are %s %s: want i64 [%" PRId64 "]", f,
                     tn_dtype_name(tn_dtype_of(lengths)), tni_shape_text(&by), batch);
}

/* Fills slot: what the cache holds of each text, and how much comes. Nothing has changed yet. */
static tn_status plan(const tni_lm *m, const tn_tensor *ids, const tn_tensor *lengths,
                      int64_t *slot)
{
    const int64_t batch = tn_size(ids, 0), t = tn_size(ids, 1);
    const size_t n = (size_t)batch * sizeof *slot;
    int64_t *count = slot + batch, most = m->capacity;
    for (int64_t b = 0; b < batch; b++) count[b] = t;
    TNI_TRY(tn_copy_out(m->lengths, slot, n, TN_I64));
    if (!tn_is_none(lengths)) TNI_TRY(tn_copy_out(lengths, count, n, TN_I64));
    if (m->c.family == TNI_LM_GPT2) most = TNI_MIN(most, m->c.positions);
    for (int64_t b = 0; b < batch; b++) {
        if (count[b] < 1 || count[b] > t)
            return tni_error(TN_E_INDEX,
                             "tn_lm_next: lengths[%" PRId64 "] is %" PRId64 ": want 1 to %" PRId64,
                             b, count[b], t);
        if (count[b] > most - slot[b])
            return tni_error(TN_E_STATE,
                             "tn_lm_next: row %" PRId64 " has %" PRId64 " tokens and %" PRId64
                             " come: want at most %" PRId64 ", %s",
                             b, slot[b], count[b], most,
                             most == m->capacity ? "the capacity of tn_lm_set_cache"
                                                 : "the model's positions");
    }
    return TN_OK;
}

/* x [B, T, H] behind each row's last token: [B, H] */
static tn_tensor *last_of(tn_tensor *x, const int64_t *count)
{
    const int64_t batch = tn_size(x, 0), t = tn_size(x, 1);
    bool equal = true;
    for (int64_t b = 0; b < batch; b++) equal = equal && count[b] == t;
    if (equal) return tn_select(x, 1, -1);
    tn_tensor *flat = tn_flatten(x, 0, 1), *at = tn_from_ints(count, TN_SHAPE(batch));
    at = tn_add(tn_sub_scalar(at, 1), tn_arange(0, (double)(batch * t), (double)t, TN_I64));
    return tn_index_select(flat, 0, tn_to(at, tn_device_of(x)));
}

static tn_tensor *next(tni_lm *m, tn_tensor *ids, int64_t *slot)
{
    const int64_t batch = tn_size(ids, 0);
    tn_tensor *in[] = { ids, tn_from_ints(slot, TN_SHAPE(2, batch)) }, *x;
    if (tn_call(m->part[0], 2, in, 1, &x) != TN_OK) return NULL;
    x = tn_forward(m->part[1], last_of(x, slot + batch));
    if (!x) return NULL;
    for (int64_t b = 0; b < batch; b++) slot[b] += slot[batch + b];
    const size_t n = (size_t)batch * sizeof *slot;
    return tn_copy_in(m->lengths, slot, n, TN_I64) == TN_OK ? x : NULL;
}

tn_tensor *tn_lm_next(tn_module *m, tn_tensor *ids, tn_tensor *lengths)
{
    tni_lm *lm = tni_lm_of("tn_lm_next", m);
    if (!lm) return NULL;
    if (!ids) return tni_poisoned("tn_lm_next", "ids");
    if (!lengths) return tni_poisoned_optional("tn_lm_next", "lengths");
    if (check_next(lm, ids, lengths) != TN_OK) return NULL;
    TNI_ZEROED(int64_t, slot, 2 * tn_size(ids, 0));
    if (!slot) return NULL;
    tn_tensor *logits = NULL;
    tn_scope scope = tn_scope_begin();
    if (plan(lm, ids, lengths, slot) == TN_OK) TN_NO_GRAD logits = next(lm, ids, slot);
    return tni_scope_return(__func__, scope, logits);
}
