/*
 * batchnorm.c - batch normalization per channel; Ioffe and Szegedy (2015), algorithms 1 and 2.
 *
 * Training: y = w (x - mu) / sqrt(v + eps) + b with the batch's mean and biased variance; the
 * running buffers move towards mean and unbiased variance: r += m (new - r). With `cumulative`, m =
 * 1/counter makes them the plain average over batches. Evaluation: the running buffers take the
 * batch's place. The op checks before it writes, and the counter is incremented last, so a failed
 * forward changes nothing. With `skip_nonfinite` the op updates copies of the running buffers,
 * which replace them only if all values are finite, because a NaN would stay in them for good. With
 * `biased_var`, too: the variance is changed before it is taken.
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
                         least == 5   ? "[N, C, D, H, W]"
                         : least == 4 ? "[N, C, H, W]"
                         : least == 3 ? "[N, C, L]"
                         : most == 3  ? "[N, C] or [N, C, L]"
                                      : "[N, C, ...]");
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
 * batch, the moments of its n values. 1: done, 0: skipped, since not all are finite; -1. */
static int take(batchnorm *m, tn_tensor *next[2], int64_t n, bool part, double momentum)
{
    tn_tensor *const running[2] = { m->running_mean, m->running_var };
    if (m->o.biased_var && !part && n > 0) /* r + m (v n / (n - 1) - r) becomes r + m (v - r) */
        next[1] = tn_lerp(next[1], tn_mul_scalar(tn_detach(running[1]), 1 - momentum), 1.0 / n);
    if (!next[1]) return -1;
    for (int i = 0; m->o.skip_nonfinite && i < 2; i++) {
        int finite = all_finite(next[i]);
        if (finite == 0 && !tn_recomputing()) m->skipped++;
        if (finite != 1) return finite;
    }
    tn_status status = TN_OK;
    if (part) status = tni_move_statistics(running, next, n, momentum, m->o.biased_var);
    for (int i = 0; !part && status == TN_OK && i < 2; i++) status = tn_copy_(running[i], next[i]);
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
    bool copies = training && !no_mean && (part || guarded || m->o.biased_var);
    if (guarded && tni_host_refused(m->base.type->name, "with skip_nonfinite reads the statistics",
                                    "it without skip_nonfinite"))
        return NULL;
    int64_t n = tni_none(x) ? 0 : tni_shape_numel(&x->shape) / m->features;
    tn_tensor *moving[2] = { m->running_mean, m->running_var };
    for (int i = 0; copies && i < 2; i++)
        moving[i] = part ? tn_zeros_like(moving[i]) : tn_clone(tn_detach(moving[i]));
    double by = part ? 1 : momentum;
    tn_tensor *y = training && m->over
                       ? m->over(x, m->weight, m->bias, moving[0], moving[1], by, m->o.eps, &n)
                       : tn_batch_norm(x, m->weight, m->bias, moving[0], moving[1],
                                       training || no_mean, by, m->o.eps);
    int taken = y && copies ? take(m, moving, n, part, momentum) : 1;
    if (!y || taken < 0) return NULL;
    /* not a pass that only measures (ext/data/statistics.c) */
    if (training && !no_mean && !part && !tn_grad_enabled()) m->unrecorded++;
    if (counts && taken && tn_add_scalar_(m->num_batches_tracked, 1) != TN_OK) return NULL;
    return y;
}

/* By the axes of x behind its channels, of 1d 0 or 1; then instance norms. */
enum { BATCH, INSTANCE = 3, TYPES = 5 };
static const tn_module_type types[TYPES];

static tn_tensor *batchnorm_forward(tn_module *self, tn_tensor *x)
{
    batchnorm *m = (batchnorm *)self;
    int most = (int)(self->type - types) + 3, least = most == 3 ? 2 : most;
    tn_status status = tni_check_channels(self, x, m->features, least, most);
    return status == TN_OK ? normalize(m, x) : NULL;
}

/* ---- instance norm --------------------------------------------------------------------------- */

/* t of each channel for each of n samples. */
static tn_tensor *repeated(tn_tensor *t, int64_t n, int64_t c)
{
    return tni_none(t) ? t : tn_reshape(tn_expand(t, TN_SHAPE(n, c)), TN_SHAPE(n * c));
}

/* With n c channels of one sample; the running buffers move by the averages over samples. */
static tn_tensor *track_instances(batchnorm *m, tn_tensor *x, int64_t size)
{
    int64_t n = x->shape.size[0], c = m->features;
    tn_tensor *running[2] = { m->running_mean, m->running_var }, *moment[2], *next[2];
    for (int i = 0; i < 2; i++)
        moment[i] = tn_full_as(TN_SHAPE(n * c), 0, running[i]->dtype, tn_device_of(running[i]));
    tn_tensor *y = tn_batch_norm(tn_reshape(x, TN_SHAPE(1, n * c, size)), repeated(m->weight, n, c),
                                 repeated(m->bias, n, c), moment[0], moment[1], true, 1, m->o.eps);
    tn_status status = y ? TN_OK : tni_pending();
    TN_NO_GRAD
    {
        for (int i = 0; i < 2; i++) {
            tn_tensor *mean =
                tn_mean(tn_reshape(moment[i], TN_SHAPE(n, c)), (int[]){ 0 }, 1, false);
            next[i] = tn_lerp(running[i], mean, m->o.momentum);
            if (!next[i]) status = tni_pending();
        }
        for (int i = 0; !status && size && n && i < 2; i++) status = tn_copy_(running[i], next[i]);
    }
    return status == TN_OK ? tn_reshape(y, x->shape) : NULL;
}

static tn_tensor *instancenorm_forward(tn_module *self, tn_tensor *x)
{
    batchnorm *m = (batchnorm *)self;
    int rank = (int)(self->type - types) - INSTANCE + 3;
    bool tracks = !tni_none(m->running_mean), sample = !tni_none(x) && x->shape.rank == rank - 1;
    tn_tensor *y, *batch = sample ? tn_unsqueeze(x, 0) : x;
    if (!batch || tni_check_channels(self, batch, m->features, rank, rank) != TN_OK) {
        if (batch) tni_error_reword(tni_shape_text(&batch->shape), tni_shape_text(&x->shape));
        return NULL;
    }
    int64_t values = 1;
    for (int d = 2; d < rank; d++) values *= batch->shape.size[d];
    if (tracks && !tn_training(self))
        y = tn_batch_norm(batch, m->weight, m->bias, m->running_mean, m->running_var, false, 0,
                          m->o.eps);
    else if (values == 1)
        return tni_fail(TN_E_SHAPE, "%s: x %s has one value per channel: want more",
                        self->type->name, tni_text(x));
    else
        y = tracks ? track_instances(m, batch, values)
                   : tn_group_norm(batch, (int)m->features, m->weight, m->bias, m->o.eps);
    return sample ? tn_squeeze(y, 0) : y;
}

/* ---- construction ---------------------------------------------------------------------------- */

static void batchnorm_describe(const tn_module *self, char *text, size_t size)
{
    const batchnorm *m = (const batchnorm *)self;
    char momentum[40];
    snprintf(momentum, sizeof momentum, m->o.cumulative ? "cumulative" : "momentum %g",
             m->o.momentum);
    snprintf(text, size, "%" PRId64 ", eps %g, %s%s%s%s%s%s", m->features, m->o.eps, momentum,
             tni_none(m->weight) ? ", no affine"
             : tni_none(m->bias) ? ", no bias"
                                 : "",
             tni_none(m->running_mean) ? ", no tracking" : "",
             m->o.biased_var ? ", biased variance" : "",
             m->o.skip_nonfinite ? ", skip non-finite" : "", m->over ? ", over all ranks" : "");
}

static tn_status reset_statistics(batchnorm *m)
{
    tn_tensor *const buffer[] = { m->running_mean, m->running_var, m->num_batches_tracked };
    for (int i = 0; i < 3; i++) {
        if (!buffer[i]) return tni_pending();
        if (tni_none(buffer[i])) continue;
        TN_NO_GRAD TNI_TRY(tn_fill_(buffer[i], i == 1 ? 1 : 0));
    }
    m->skipped = m->unrecorded = 0;
    return TN_OK;
}

static tn_status batchnorm_reset(tn_module *self)
{
    tn_status status = reset_statistics((batchnorm *)self);
    return status == TN_OK ? tni_reset_norm(self) : status;
}

#define TYPE(text, how)                                                                            \
    {                                                                                              \
        .name = (text), .size = sizeof(batchnorm), .forward = (how),                               \
        .describe = batchnorm_describe, .reset = batchnorm_reset, .state_version = 2,              \
        .no_decay = true                                                                           \
    }
static const tn_module_type types[TYPES] = { TYPE("BatchNorm1d", batchnorm_forward),
                                             TYPE("BatchNorm2d", batchnorm_forward),
                                             TYPE("BatchNorm3d", batchnorm_forward),
                                             TYPE("InstanceNorm1d", instancenorm_forward),
                                             TYPE("InstanceNorm2d", instancenorm_forward) };

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
    tn_register_parameter(base, "bias", &m->bias,
                          o.no_affine || o.no_bias ? TN_NONE : tn_zeros(shape));
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

#define BATCH_NORM(name, axes)                                                                     \
    tn_module *name(int64_t features, tn_batch_norm_options o)                                     \
    {                                                                                              \
        return batchnorm_new(#name, &types[BATCH + (axes)-1], features, o);                        \
    }
BATCH_NORM(tn_batch_norm1d_new, 1)
BATCH_NORM(tn_batch_norm2d_new, 2)
BATCH_NORM(tn_batch_norm3d_new, 3)

#define INSTANCE_NORM(name, axes)                                                                  \
    tn_module *name(int64_t features, tn_instance_norm_options o)                                  \
    {                                                                                              \
        tn_batch_norm_options all = { .eps = o.eps,                                                \
                                      .momentum = o.momentum,                                      \
                                      .no_affine = !o.affine,                                      \
                                      .no_bias = o.no_bias,                                        \
                                      .no_tracking = !o.tracking,                                  \
                                      .use_eps = o.use_eps,                                        \
                                      .use_momentum = o.use_momentum };                            \
        return batchnorm_new(#name, &types[INSTANCE + (axes)-1], features, all);                   \
    }
INSTANCE_NORM(tn_instance_norm1d_new, 1)
INSTANCE_NORM(tn_instance_norm2d_new, 2)

static batchnorm *check_type(const char *function, const tn_module *m)
{
    tn_status status = tni_expect_type(function, m, types, INSTANCE, "BatchNorm1d, 2d or 3d");
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
    batchnorm *b = check_type(__func__, m);
    if (!b) return tni_pending();
    TNI_TRY(tni_fraction(__func__, "momentum", momentum));
    b->o.momentum = momentum;
    b->o.cumulative = false;
    return TN_OK;
}

tni_batchnorm_over *tni_batchnorm_over_of(const tn_module *m)
{
    bool is = false;
    for (int i = 0; i < INSTANCE; i++) is |= m->type == &types[i];
    return is ? &((batchnorm *)m)->over : NULL;
}

const tni_batchnorm *tni_batchnorm2d_of(const tn_module *m)
{
    return m->type == &types[1] ? (const batchnorm *)m : NULL;
}
