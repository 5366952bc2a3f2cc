/*
 * frozen_batchnorm.c - BatchNorm with constants only, and the conversion of a tree to it and back.
 *
 * y = x scale + shift, scale = weight / sqrt(running_var + eps), shift = bias - running_mean scale,
 * per channel; Ioffe and Szegedy (2015), algorithm 2, lines 10-11. Where x wants a gradient these
 * are two ops that keep no x for backward; where it does not, one pass computes the same.
 *
 * Nothing is trained here, so all tensors are buffers. (A BatchNorm frozen by hand would update its
 * running statistics again after the next tn_train of a parent.)
 */
#include "nn/layers/layer.h"

typedef tni_batchnorm frozen_batchnorm;

/* ---- the layer ------------------------------------------------------------------------------- */

static tn_tensor *frozen_forward(tn_module *self, tn_tensor *x)
{
    const frozen_batchnorm *m = (const frozen_batchnorm *)self;
    tn_shape channels = { .rank = 4, .size = { 1, m->features, 1, 1 } };
    if (tni_check_channels(self, x, m->features, 4, 4) != TN_OK) return NULL;
    if (!tn_grad_enabled() || !x->requires_grad)
        return tn_batch_norm(x, m->weight, m->bias, m->running_mean, m->running_var, false, 0,
                             m->o.eps);
    tn_tensor *scale = tn_mul(m->weight, tn_rsqrt(tn_add_scalar(m->running_var, m->o.eps)));
    tn_tensor *shift = tn_sub(m->bias, tn_mul(m->running_mean, scale));
    return tn_add(tn_mul(x, tn_reshape(scale, channels)), tn_reshape(shift, channels));
}

static void frozen_describe(const tn_module *self, char *text, size_t size)
{
    const frozen_batchnorm *m = (const frozen_batchnorm *)self;
    snprintf(text, size, "%" PRId64 ", eps %g", m->features, m->o.eps);
}

static tn_status frozen_reset(tn_module *self)
{
    const frozen_batchnorm *m = (const frozen_batchnorm *)self;
    tn_tensor *const t[] = { m->weight, m->bias, m->running_mean, m->running_var };
    const double value[] = { 1, 0, 0, 1 - m->o.eps };
    for (int i = 0; i < 4; i++) TNI_TRY(tn_init_constant(t[i], value[i]));
    return TN_OK;
}

TNI_TYPE(frozen, "FrozenBatchNorm2d", frozen_batchnorm, .forward = frozen_forward,
         .describe = frozen_describe, .reset = frozen_reset, .state_version = 3)

tn_module *tn_frozen_batch_norm2d_new(int64_t features, tn_frozen_batch_norm_options o)
{
    TNI_HOLD_TRAPS;
    if (tni_at_least(__func__, "features", features, 1) != TN_OK ||
        tni_check_eps(__func__, o.eps) != TN_OK)
        return NULL;
    frozen_batchnorm *m = tn_module_new(&frozen_type);
    if (!m) return NULL;
    tn_module *base = &m->base;
    tn_shape shape = TN_SHAPE(features);
    m->features = features;
    m->o.eps = tni_given(o.eps, o.use_eps, 1e-5);
    m->o.momentum = 0.1; /* of a layer that is thawed */
    tn_register_buffer(base, "weight", &m->weight, tn_ones(shape), TN_PERSISTENT);
    tn_register_buffer(base, "bias", &m->bias, tn_zeros(shape), TN_PERSISTENT);
    tn_register_buffer(base, "running_mean", &m->running_mean, tn_zeros(shape), TN_STATISTIC);
    tn_register_buffer(base, "running_var", &m->running_var, tn_full(shape, 1 - m->o.eps),
                       TN_STATISTIC);
    tn_register_buffer(base, "num_batches_tracked", &m->num_batches_tracked, TN_NONE, TN_COUNTER);
    tni_slot_since(base, "running_mean", 2, 0);
    tni_slot_since(base, "running_var", 2, 1);
    return tn_module_done(base);
}

/* ---- conversion ------------------------------------------------------------------------------ */

/* A new layer that m will turn into; NULL without a message: m stays as it is. */
typedef tn_module *(*replacement)(const tn_module *m);

static tn_module *frozen_for(const tn_module *m)
{
    const tni_batchnorm *bn = tni_batchnorm2d_of(m);
    if (!bn) return NULL;
    tn_module *frozen =
        tn_frozen_batch_norm2d_new(bn->features, (tn_frozen_batch_norm_options){ 0 });
    if (frozen) ((frozen_batchnorm *)frozen)->o = bn->o;
    return frozen;
}

static tn_module *thawed_for(const tn_module *m)
{
    const frozen_batchnorm *frozen = (const frozen_batchnorm *)m;
    if (m->type != &frozen_type) return NULL;
    tn_batch_norm_options o = frozen->o;
    o.no_affine = o.no_bias = o.no_tracking = false;
    o.use_eps = o.use_momentum = true;
    return tn_batch_norm2d_new(frozen->features, o);
}

static const char *const member[] = { "weight", "bias", "running_mean", "running_var",
                                      "num_batches_tracked" };
enum { MEMBERS = 5, RUNNING_VAR = 3 };

typedef struct conversion {
    const char *function;
    replacement make;
    tni_map modules; /* each layer to convert -> what it will be; one reference each */
    tni_stage stage; /* copies of these layers' tensors */
} conversion;

static tn_status prepare(tn_module *m, const char *path, void *user)
{
    conversion *c = user;
    uint64_t errors = tni_error_count;
    tn_module *fresh = c->make(m);
    if (!fresh) return tni_error_count != errors ? tni_pending() : TN_OK;
    if (tni_map_put(&c->modules, m, fresh) < 0) {
        tn_module_drop(fresh);
        return TN_E_NOMEM;
    }
    tn_module_keep(m);
    for (int i = 0; i < MEMBERS; i++) {
        tn_tensor *t = tni_member(m, member[i]);
        if (tni_none(t) && (i == RUNNING_VAR || i == RUNNING_VAR - 1))
            return tni_error(TN_E_STATE, "%s: %s%s%s has no %s: want one with running statistics",
                             c->function, path, path[0] ? ": " : "", m->type->name, member[i]);
        TNI_TRY(tni_may_change(c->function, member[i], TNI_AVERAGED(t->is_buffer)));
        TNI_TRY(tni_stage_add(&c->stage, t));
    }
    return TN_OK;
}

/* Gives fresh the tensors of m. Tensors that m lacks stay new, with m's dtype and device. */
static tn_status take_over(const conversion *c, const tn_module *m, tn_module *fresh)
{
    const tn_tensor *var = tni_member(m, member[RUNNING_VAR]);
    tn_status status = tn_module_to_dtype(fresh, var->dtype);
    if (status == TN_OK) status = tn_module_to(fresh, tn_device_of(var));
    for (int i = 0; status == TN_OK && i < MEMBERS; i++) {
        const tn_tensor *t = tni_member(m, member[i]);
        if (tni_none(t)) continue;
        status = tn_module_set(fresh, member[i], tni_stage_get(&c->stage, t));
    }
    if (status == TN_OK && m->state->frozen) status = tn_module_freeze(fresh);
    fresh->state->training = m->state->training;
    fresh->state->recompute = m->state->recompute;
    return status;
}

static tn_module *convert(const char *function, replacement make, tn_module *m)
{
    conversion c = { .function = function, .make = make, .stage = { .copy = true } };
    TNI_UNRECORDED;
    tn_status status = scope.depth < 0 ? tni_pending() : tni_module_check(function, m);
    if (status == TN_OK) status = tni_walk(m, TNI_ONCE, prepare, NULL, &c);
    if (status == TN_OK) status = tni_stage_convert(&c.stage);
    for (size_t i = 0; status == TN_OK && i < c.modules.capacity; i++) {
        const tni_map_cell *cell = &c.modules.cell[i];
        if (cell->key) status = take_over(&c, cell->key, cell->value);
    }
    for (size_t i = 0; i < c.modules.capacity; i++) {
        tn_module *layer = (tn_module *)c.modules.cell[i].key, *fresh = c.modules.cell[i].value;
        if (layer && status == TN_OK) { /* m keeps its address, so pointers to it stay valid */
            tni_module_exchange(layer, fresh);
            tni_hooks_clear(layer);
        }
        tn_module_drop(layer);
        tn_module_drop(fresh);
    }
    tni_map_free(&c.modules);
    tni_stage_free(&c.stage);
    if (status == TN_OK) return m;
    tn_module_drop(m); /* the caller's reference */
    return NULL;
}

#define CONVERSION(tn_name, make)                                                                  \
    tn_module *tn_name(tn_module *m)                                                               \
    {                                                                                              \
        return convert(#tn_name, make, m);                                                         \
    }
CONVERSION(tn_freeze_batch_norm, frozen_for)
CONVERSION(tn_thaw_batch_norm, thawed_for)
