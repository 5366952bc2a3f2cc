/*
 * rope.c - frequencies of rotary positions, of dim / 2 pairs of elements.
 *
 * f_i = theta^(-2i/dim), computed in f32 as the models' authors did: Su et al., RoFormer (2021),
 * section 3.4.2. For longer texts than those of the training they are made smaller: linear (Chen et
 * al., Position Interpolation, 2023), llama3 (Llama 3.1's own).
 */
#include "ext/lm/config.h"

#include <math.h>

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

void tni_rope_frequencies(const tni_rope *r, float *f)
{
    for (int64_t i = 0; i < r->dim / 2; i++)
        f[i] = 1.0F / powf((float)r->theta, (float)(2 * i) / (float)r->dim);
    if (r->type == TNI_ROPE_LINEAR)
        for (int64_t i = 0; i < r->dim / 2; i++) f[i] /= (float)r->factor;
    if (r->type == TNI_ROPE_LLAMA3) llama3(r, f);
}
