/*
 * batchnorm.c - batch normalization per channel; Ioffe and Szegedy (2015), algorithms 1 and 2.
 *
 * Training: y = w (x - mu) / sqrt(v + eps) + b with the batch's mean and biased variance; the
 * running buffers move towards mean and unbiased variance: r += m (new - r). With `cumulative`, m =
 * 1/counter makes them the plain average over batches. Evaluation: the running buffers take the
 * batch's place. The op checks before it writes, and the counter is incremented last, so a failed
 * forward changes nothing. With `skip_nonfinite` the op updates copies of the running buffers,
 * which replace them only if all values are finite, because a NaN would stay in them for good.
 */
#include <tenon/recompute.h>

#include "nn/layers/layer.h"
#include "nn/micro_batches.h"

typedef tni_batchnorm batchnorm;

tn_status tni_check_channels(const tn_module *m, const tn_tensor *x, int64_t channels, int least,
                             int most)
{
    int rank = x->shape.rank;
    if (tni_none(x) || rank < least || rank > most)
        return tni_error(TN_E_SHAPE, "%s: x %s: want %s", m->type->name,
                         tni_none(x) ? "is absent" : tni_text(x),
                         most == 4 ? "[N, C, H, W]" : "[N, C] or [N, C, L]");
    if (x->shape.size[1] != channels)
        return tni_error(TN_E_SHAPE, "%s: x %s has %" PRId64 " channels: want %" PRId64,
                         m->type->name, tni_text(x), x->shape.size[1], channels);
    return TN_OK;
}

/* The weight of the new batch in the running buffers; NaN + message on failure. */
static double share(const batchnorm *m)
{
    if (!m->o.cumulative || tni_none(m->num_batches_tracked)) return m->o.momentum;
    if (tni_host_refused(m->base.type->name, "with cumulative reads its counter", "momentum"))
        return NAN;
    return 1 / (tn_item(m->num_batches_tracked) + 1); /* counting this batch */
}

/* 1: every value is finite, 0: not, -1: failed. */
static int all_finite(tn_tensor *t)
{
    double all = tn_item(tn_all(tn_isfinite(t), NULL, 0, false));
    return isnan(all) ? -1 : all != 0;
}

/* Takes what the op made of copies of the running buffers: their next values, or, in a part of a
 * batch (n > 0), the moments of n values. 1: done, 0: skipped, since not all are finite; -1. */
static int take(batchnorm *m, tn_tensor *const next[2], int64_t n, double momentum)
{
    tn_tensor *const running[2] = { m->running_mean, m->running_var };
    for (int i = 0; m->o.skip_nonfinite && i < 2; i++) {
        int finite = all_finite(next[i]);
        if (finite == 0 && !tn_recomputing()) m->skipped++;
        if (finite != 1) return finite;
    }
    tn_status status = TN_OK;
    if (n > 0) status = tn_move_statistics(running[0], running[1], next[0], next[1], n, momentum);
    for (int i = 0; n == 0 && status == TN_OK && i < 2; i++) status = tn_copy_(running[i], next[i]);
    return status == TN_OK ? 1 : -1;
}

static tn_tensor *normalize(batchnorm *m, tn_tensor *x)
{
    bool training = tn_training(&m->base);
    bool no_mean = tni_none(m->running_mean), no_var = tni_none(m->running_var);
    bool counts = training && !tni_none(m->num_batches_tracked);
    if (no_mean != no_var)
        return tni_fail(
            TN_E_STATE, "%s: running_mean is %s, running_var is %s: want both or neither",
            m->base.type->name, no_mean ? "absent" : "there", no_var ? "absent" : "there");
    double momentum = training ? share(m) : 0;
    if (isnan(momentum)) return NULL;
    bool part = training && !no_mean && tni_in_part();
    bool guarded = m->o.skip_nonfinite && training && !no_mean;
    if (guarded && tni_host_refused(m->base.type->name, "with skip_nonfinite reads the statistics",
                                    "it without skip_nonfinite"))
        return NULL;
    int64_t n = tni_none(x) ? 0 : tni_shape_numel(&x->shape) / m->features;
    tn_tensor *moving[2] = { m->running_mean, m->running_var };
    for (int i = 0; (guarded || part) && i < 2; i++)
        moving[i] = part ? tn_zeros_like(moving[i]) : tn_clone(tn_detach(moving[i]));
    double by = part ? 1 : momentum;
    tn_tensor *y = training && m->over
                       ? m->over(x, m->weight, m->bias, moving[0], moving[1], by, m->o.eps, &n)
                       : tn_batch_norm(x, m->weight, m->bias, moving[0], moving[1],
                                       training || no_mean, by, m->o.eps);
    int taken = y && (guarded || part) ? take(m, moving, part ? n : 0, momentum) : 1;
    if (!y || taken < 0) return NULL;
    if (counts && taken && tn_add_scalar_(m->num_batches_tracked, 1) != TN_OK) return NULL;
    return y;
}

static const tn_module_type types[2]; /* of x [N, C] or [N, C, L]; of x [N, C, H, W] */

static tn_tensor *batchnorm_forward(tn_module *self, tn_tensor *x)
{
    batchnorm *m = (batchnorm *)self;
    bool images = self->type == &types[1];
    tn_status status = tni_check_channels(self, x, m->features, images ? 4 : 2, images ? 4 : 3);
    return status == TN_OK ? normalize(m, x) : NULL;
}

static void batchnorm_describe(const tn_module *self, char *text, size_t size)
{
    const batchnorm *m = (const batchnorm *)self;
    char momentum[40];
    snprintf(momentum, sizeof momentum, m->o.cumulative ? "cumulative" : "momentum %g",
             m->o.momentum);
    snprintf(text, size, "%" PRId64 ", eps %g, %s%s%s%s%s", m->features, m->o.eps, momentum,
             tni_none(m->weight) ? ", no affine" : "",
             tni_none(m->running_mean) ? ", no tracking" : "",
             m->o.skip_nonfinite ? ", skip non-finite" : "", m->over ? ", over all ranks" : "");
}

static tn_status reset_statistics(batchnorm *m)
{
    tn_tensor *const buffer[] = { m->running_mean, m->running_var, m->num_batches_tracked };
    for (int i = 0; i < 3; i++) {
        if (!buffer[i]) return tni_pending();
        if (tni_none(buffer[i])) continue;
        tn_status status;
        TN_NO_GRAD status = tn_fill_(buffer[i], i == 1 ? 1 : 0);
        if (status != TN_OK) return status;
    }
    m->skipped = 0;
    return TN_OK;
}

static tn_status batchnorm_reset(tn_module *self)
{
    tn_status status = reset_statistics((batchnorm *)self);
    return status == TN_OK ? tni_reset_norm(self) : status;
}

#define TYPE(text)                                                                                 \
    {                                                                                              \
        .name = (text), .size = sizeof(batchnorm), .forward = batchnorm_forward,                   \
        .describe = batchnorm_describe, .reset = batchnorm_reset, .state_version = 2,              \
        .no_decay = true                                                                           \
    }
static const tn_module_type types[2] = { TYPE("BatchNorm1d"), TYPE("BatchNorm2d") };

static tn_module *batchnorm_new(const char *function, const tn_module_type *type, int64_t features,
                                tn_batch_norm_options o)
{
    TNI_HOLD_TRAPS;
    if (tni_at_least(function, "features", features, 1) != TN_OK ||
        tni_check_eps(function, o.eps) != TN_OK ||
        tni_fraction(function, "momentum", o.momentum) != TN_OK)
        return NULL;
    batchnorm *m = tn_module_new(type);
    if (!m) return NULL;
    tn_module *base = &m->base;
    tn_shape shape = TN_SHAPE(features);
    m->features = features;
    m->o = o;
    m->o.eps = tni_given(o.eps, o.use_eps, 1e-5);
    m->o.momentum = tni_given(o.momentum, o.use_momentum, 0.1);
    tn_register_parameter(base, "weight", &m->weight, o.no_affine ? TN_NONE : tn_ones(shape));
    tn_register_parameter(base, "bias", &m->bias, o.no_affine ? TN_NONE : tn_zeros(shape));
    tn_register_buffer(base, "running_mean", &m->running_mean,
                       o.no_tracking ? TN_NONE : tn_zeros(shape), TN_STATISTIC);
    tn_register_buffer(base, "running_var", &m->running_var,
                       o.no_tracking ? TN_NONE : tn_ones(shape), TN_STATISTIC);
    tn_register_buffer(base, "num_batches_tracked", &m->num_batches_tracked,
                       o.no_tracking ? TN_NONE : tn_full_as(TN_SCALAR, 0, TN_I64, tn_cpu()),
                       TN_COUNTER);
    tni_slot_since(base, "num_batches_tracked", 2, 0);
    return tn_module_done(base);
}

tn_module *tn_batch_norm2d_new(int64_t features, tn_batch_norm_options o)
{
    return batchnorm_new("tn_batch_norm2d_new", &types[1], features, o);
}

tn_module *tn_batch_norm1d_new(int64_t features, tn_batch_norm_options o)
{
    return batchnorm_new("tn_batch_norm1d_new", &types[0], features, o);
}

static batchnorm *check_type(const char *function, const tn_module *m)
{
    tn_status status = tni_expect_type(function, m, types, 2, "BatchNorm1d or BatchNorm2d");
    return status == TN_OK ? (batchnorm *)m : NULL;
}

tn_status tn_batch_norm_reset_running_stats(tn_module *m)
{
    batchnorm *b = check_type("tn_batch_norm_reset_running_stats", m);
    return b ? reset_statistics(b) : tni_pending();
}

int64_t tn_batch_norm_skipped(const tn_module *m)
{
    const batchnorm *b = check_type("tn_batch_norm_skipped", m);
    return b ? b->skipped : -1;
}

double tn_batch_norm_momentum(const tn_module *m)
{
    const batchnorm *b = check_type("tn_batch_norm_momentum", m);
    return b ? b->o.momentum : NAN;
}

tn_status tn_batch_norm_set_momentum(tn_module *m, double momentum)
{
    TNI_HOLD_TRAPS;
    static const char f[] = "tn_batch_norm_set_momentum";
    batchnorm *b = check_type(f, m);
    if (!b) return tni_pending();
    tn_status status = tni_fraction(f, "momentum", momentum);
    if (status != TN_OK) return status;
    b->o.momentum = momentum;
    b->o.cumulative = false;
    return TN_OK;
}

tni_batchnorm_over *tni_batchnorm_over_of(const tn_module *m)
{
    bool is = m->type == &types[0] || m->type == &types[1];
    return is ? &((batchnorm *)m)->over : NULL;
}

const tni_batchnorm *tni_batchnorm2d_of(const tn_module *m)
{
    return m->type == &types[1] ? (const batchnorm *)m : NULL;
}
