/*
 * lora.c - the layer with adapters: y = X(x) + scale B(A(dropout(x))), and which of them is active.
 *
 * The sum of a merged layer is kept beside its weight W instead of in it. So W, what is tied to it
 * and files stay right while it is merged, and unmerging is exact.
 */
#include <tenon/custom.h>

#include "ext/lm/lora.h"
#include "nn/layers/layer.h"

/* ---- the layer ------------------------------------------------------------------------------- */

tn_tensor *tni_lora_weight(const tn_module *layer)
{
    tn_module *m = (tn_module *)layer;
    if (tni_lora_of(m)) m = tni_lora_of(m)->base_layer;
    if (strcmp(m->type->name, "Linear") == 0) return tn_get_parameter(m, "weight");
    return strcmp(m->type->name, "Int8Linear") == 0 ? tn_get_buffer(m, "qweight") : NULL;
}

uint64_t tni_lora_versions(const tni_lora *m)
{
    uint64_t sum = tn_version(tni_lora_weight(m->base_layer));
    return sum + tn_version(m->now_a->weight) + tn_version(m->now_b->weight);
}

/* y + scale B(A(x)) as one op, which keeps x in its own dtype, as the base's neighbours do, however
 * wide the adapter is. */
static tn_status sum_forward(tn_custom *c, int n_in, tn_tensor *const *in, int n_out,
                             tn_tensor **out)
{
    tn_tensor *y = in[0], *a = in[2], *x = tn_to_dtype(in[1], tn_dtype_of(a));
    tn_tensor *h = tn_mul_scalar(tn_linear(x, a, TN_NONE), *(const double *)tn_custom_user(c));
    tn_status status = TN_OK;
    (void)n_out;
    out[0] = tn_to_dtype(tn_add(y, tn_linear(h, in[3], TN_NONE)), tn_dtype_of(y));
    for (int i = 1; i < n_in && status == TN_OK; i++) status = tn_custom_save(c, in[i]);
    return status;
}

static tn_status sum_backward(tn_custom *c, int n_out, tn_tensor *const *dout, int n_in,
                              tn_tensor **din)
{
    tn_tensor *x = tn_custom_saved(c, 0), *a = tn_custom_saved(c, 1), *b = tn_custom_saved(c, 2);
    const double scale = *(const double *)tn_custom_user(c);
    const tn_dtype dtype = tn_dtype_of(a);
    (void)n_out, (void)n_in;
    tn_tensor *rows = tn_to_dtype(tn_reshape(x, TN_SHAPE(-1, tn_size(a, 1))), dtype);
    tn_tensor *dy = tn_to_dtype(tn_reshape(dout[0], TN_SHAPE(-1, tn_size(b, 0))), dtype);
    tn_tensor *h = tn_mul_scalar(tn_linear(rows, a, TN_NONE), scale);
    tn_tensor *dh = tn_mul_scalar(tn_matmul(dy, b), scale);
    din[0] = dout[0];
    if (tn_custom_needs(c, 1)) din[1] = tn_reshape(tn_matmul(dh, a), tn_shape_get(x));
    if (tn_custom_needs(c, 2)) din[2] = tn_matmul(tn_transpose(dh, 0, 1), rows);
    if (tn_custom_needs(c, 3)) din[3] = tn_matmul(tn_transpose(dy, 0, 1), h);
    return TN_OK;
}

static void free_scale(void *scale)
{
    tni_free(scale, sizeof(double));
}

static const tn_custom_op sum = { .name = "lora",
                                  .formula = "y + s B(A(x))",
                                  .gradient = "dh = s dy B; dx = dh A; dA = dh^T x; dB = dy^T h",
                                  .forward = sum_forward,
                                  .backward = sum_backward,
                                  .free = free_scale };

static tn_tensor *lora_forward(tn_module *self, tn_tensor *x)
{
    tni_lora *m = (tni_lora *)self;
    const tni_factor *f = m->now_a;
    if (f && !tn_is_none(m->merged) && m->merged_of == tni_lora_versions(m))
        return tn_linear(x, m->merged, tn_get_parameter(m->base_layer, "bias"));
    tn_tensor *y = tn_forward(m->base_layer, x);
    if (!f || !y) return y;
    x = tn_dropout(x, f->dropout, tn_training(self));
    double *scale = x ? tni_alloc(sizeof *scale) : NULL;
    if (!scale) return NULL;
    *scale = f->scale;
    return tn_apply(&sum, scale, 4, (tn_tensor *[]){ y, x, f->weight, m->now_b->weight });
}

static void lora_describe(const tn_module *self, char *text, size_t size)
{
    const tni_lora *m = (const tni_lora *)self;
    const tni_factor *a = m->now_a;
    if (a)
        tni_text_add(text, size, "%s, rank %" PRId64 ", scale %g", tni_factor_name(m->a, a),
                     tn_size(a->weight, 0), a->scale);
    else
        tni_text_add(text, size, "no adapter");
    if (a && a->dropout > 0) tni_text_add(text, size, ", dropout %g", a->dropout);
}

static tn_status lora_clone(tn_module *self, tn_module *copy)
{
    tni_lora *m = (tni_lora *)copy;
    (void)self;
    if (!tn_is_none(m->merged)) m->merged_of = tni_lora_versions(m);
    return TN_OK;
}

static const tn_module_type lora_type = { .name = "LoraLinear",
                                          .size = sizeof(tni_lora),
                                          .forward = lora_forward,
                                          .describe = lora_describe,
                                          .clone = lora_clone };
static const tn_module_type factor_type = { .name = "LoraFactor", .size = sizeof(tni_factor) };

tni_lora *tni_lora_of(const tn_module *m)
{
    return m && m->type == &lora_type ? (tni_lora *)m : NULL;
}

/* ---- making it ------------------------------------------------------------------------------- */

/* Takes over layer. */
static tni_lora *lora_new(tn_module *layer)
{
    tni_lora *m = tn_module_new(&lora_type);
    if (!m) {
        tn_module_drop(layer);
        return NULL;
    }
    m->base.state->training = layer->state->training;
    tn_register_module(&m->base, "base_layer", &m->base_layer, layer);
    tn_register_module(&m->base, "lora_A", &m->a, tn_module_dict_new());
    tn_register_module(&m->base, "lora_B", &m->b, tn_module_dict_new());
    tn_register_buffer(&m->base, "merged", &m->merged, TN_NONE, TN_CACHE);
    return (tni_lora *)tn_module_done(&m->base);
}

/* Draws A [rank, in] and B [out, rank] as peft does: both as Linear does, then A again. */
static tn_status draw(tn_tensor *a, tn_tensor *b)
{
    tn_tensor *const order[] = { a, b, a };
    tn_status status = TN_OK;
    for (int i = 0; i < 3 && status == TN_OK; i++)
        status = tn_init_kaiming_uniform(order[i], sqrt(5), false, TN_NL_LEAKY_RELU);
    return status == TN_OK ? tn_init_constant(b, 0) : status;
}

static tn_status add_factor(tn_module *dict, const char *name, tni_factor like, tn_tensor *value,
                            bool frozen)
{
    tni_factor *f = tn_module_new(&factor_type);
    if (!f) return tni_pending();
    memcpy((char *)f + sizeof f->base, (char *)&like + sizeof f->base,
           sizeof like - sizeof f->base);
    f->weight = NULL;
    tn_register_parameter(&f->base, "weight", &f->weight, value);
    f->frozen = frozen;
    tni_drops(&f->base, &f->dropout);
    return tn_register_module(dict, name, NULL, tn_module_done(&f->base));
}

/* In the dtype and on the device of the layer's adapters. */
static tn_tensor *fitting(tn_tensor *value, int64_t rows, int64_t columns, const tn_tensor *w)
{
    tn_dtype dtype = tn_dtype_of(w) == TN_F64 ? TN_F64 : TN_F32;
    if (!value) return tn_empty_as(TN_SHAPE(rows, columns), dtype, tn_device_of(w));
    return tn_to(tn_to_dtype(value, dtype), tn_device_of(w));
}

static tn_status add_adapter(tni_graft *g, const tn_lora_options *o, bool frozen)
{
    tni_lora *m = g->lora;
    const double rank = (double)g->rank;
    tni_factor like = { .alpha = g->alpha, .dropout = o->dropout, .rslora = o->rslora };
    like.scale = g->alpha / (o->rslora ? sqrt(rank) : rank);
    const tn_tensor *w = tni_lora_weight(&m->base);
    tn_tensor *a = fitting(g->a, g->rank, tn_size(w, 1), w);
    tn_tensor *b = fitting(g->b, tn_size(w, 0), g->rank, w);
    tn_status status = a && b ? TN_OK : tni_pending();
    if (status == TN_OK && !g->a) status = draw(a, b);
    if (status == TN_OK) status = add_factor(m->a, o->name, like, a, frozen);
    if (status == TN_OK && (status = add_factor(m->b, o->name, like, b, frozen)) != TN_OK)
        tni_disregard(tn_module_delete(m->a, o->name));
    g->added = status == TN_OK;
    return status;
}

static tn_status put_in(tni_graft *g, const tn_lora_options *o, bool frozen)
{
    const tni_site *s = g->site;
    bool inside = tni_lora_of(s->module) != NULL, shared = g->lora != NULL;
    if (!shared) g->lora = inside ? tni_lora_of(s->module) : lora_new(tn_module_keep(s->module));
    if (!g->lora) return tni_pending();
    tn_status status = shared ? TN_OK : add_adapter(g, o, frozen);
    if (inside) return status;
    if (shared) tn_module_keep(&g->lora->base);
    if (status == TN_OK) return tn_register_module(s->parent, s->name, NULL, &g->lora->base);
    tn_module_drop(&g->lora->base);
    return status;
}

void tni_lora_take_back(tni_graft *graft, size_t n, const char *name)
{
    tni_saved_error first;
    tni_error_save(&first);
    while (n-- > 0) {
        tni_graft *g = &graft[n];
        if (!tni_lora_of(g->site->module)) {
            tn_module *layer = tn_module_keep(g->site->module);
            tni_disregard(tn_register_module(g->site->parent, g->site->name, NULL, layer));
        } else if (g->added) {
            g->lora->now_a = g->lora->now_b = NULL;
            tni_disregard(tn_module_delete(g->lora->a, name));
            tni_disregard(tn_module_delete(g->lora->b, name));
        }
    }
    tni_error_restore(&first);
}

tn_status tni_lora_graft(const char *function, tni_graft *graft, size_t n, const tn_lora_options *o,
                         bool frozen)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < n; i++) {
        const tni_lora *there = tni_lora_of(graft[i].site->module);
        if (there && tni_factor_named(there->a, o->name))
            return tni_error(TN_E_NAME,
                             "%s: %s has an adapter \"%s\" already: want another name, or "
                             "tn_lora_delete before",
                             function, graft[i].site->path, o->name);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i && !graft[i].lora; k++)
            if (graft[k].site->module == graft[i].site->module) graft[i].lora = graft[k].lora;
        status = put_in(&graft[i], o, frozen);
        if (status == TN_OK) continue;
        tni_lora_take_back(graft, i, o->name);
        break;
    }
    return status;
}
