/*
 * rope.c - frequencies of rotary positions, of dim / 2 pairs of elements.
 *
 * f_i = theta^(-2i/dim), computed in f32 as the models' authors did: Su et al., RoFormer (2021),
 * section 3.4.2. For longer texts than those of the training they are made smaller: linear (Chen et
 * al., Position Interpolation, 2023), dynamic (a larger theta), yarn (Peng et al., 2023, section
 * 3.2), longrope (Ding et al., 2024), llama3 (Llama 3.1's own).
 */
#include "ext/lm/config.h"

#include <math.h>

static float power(double theta, int64_t i, int64_t dim)
{
    return powf((float)theta, (float)(2 * i) / (float)dim);
}

static void plain(double theta, int64_t dim, float *f)
{
    for (int64_t i = 0; i < dim / 2; i++) f[i] = 1.0F / power(theta, i, dim);
}

/* Low frequencies are divided by factor, high ones are not, those between are interpolated. */
static void llama3(const tni_rope *r, float *f)
{
    const double longest = r->original / r->low, shortest = r->original / r->high;
    for (int64_t i = 0; i < r->dim / 2; i++) {
        const float wave = (float)(2 * M_PI) / f[i], given = f[i];
        if ((double)wave < shortest) continue;
        f[i] = given / (float)r->factor;
        if ((double)wave > longest) continue;
        const float smooth =
            ((float)r->original / wave - (float)r->low) / (float)(r->high - r->low);
        f[i] = (1.0F - smooth) * given / (float)r->factor + smooth * given;
    }
}

/* The pair that turns so many times within the original context. */
static double pair_of(const tni_rope *r, double turns)
{
    return (double)r->dim * log(r->original / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static void yarn(const tni_rope *r, float *f)
{
    double low = pair_of(r, r->beta_fast), high = pair_of(r, r->beta_slow);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, (double)r->dim - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < r->dim / 2; i++) {
        const float ramp = ((float)i - (float)low) / (float)(high - low);
        const float keep = 1.0F - fminf(fmaxf(ramp, 0.0F), 1.0F);
        const float shorter = 1.0F / ((float)r->factor * power(r->theta, i, r->dim));
        f[i] = shorter * (1.0F - keep) + f[i] * keep;
    }
}

static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double tni_rope_frequencies(const tni_rope *r, int64_t tokens, float *f)
{
    const double d = (double)r->dim, most = (double)r->positions;
    double theta = r->theta, scale = 1;
    if (r->type == TNI_ROPE_DYNAMIC && (double)tokens > most)
        theta *= pow(r->factor * (double)tokens / most - (r->factor - 1), d / (d - 2));
    plain(theta, r->dim, f);
    if (r->type == TNI_ROPE_LINEAR)
        for (int64_t i = 0; i < r->dim / 2; i++) f[i] /= (float)r->factor;
    if (r->type == TNI_ROPE_LLAMA3) llama3(r, f);
    if (r->type == TNI_ROPE_YARN) {
        yarn(r, f);
        scale = yarn_scale(r->factor, 1);
        if (r->mscale != 0 && r->mscale_all != 0)
            scale = yarn_scale(r->factor, r->mscale) / yarn_scale(r->factor, r->mscale_all);
    }
    if (r->type == TNI_ROPE_LONGROPE) {
        const float *extra = (double)tokens > r->original ? r->longs : r->shorts;
        for (int64_t i = 0; i < r->dim / 2; i++) f[i] = 1.0F / (extra[i] * power(theta, i, r->dim));
        if (r->factor > 1) scale = sqrt(1 + log(r->factor) / log(r->original));
    }
    return r->attention != 0 ? r->attention : scale;
}
