/*
 * random.h - generators and the draws that PyTorch's CPU generator defines.
 */
#ifndef TNI_RANDOM_H
#define TNI_RANDOM_H

#include "tensor/internal.h"

#define TNI_MT_WORDS 624

/* MT19937: 624 words of state, and how many of them have been used since the last twist. */
typedef struct tni_mt19937 {
    uint32_t word[TNI_MT_WORDS];
    uint32_t used;
} tni_mt19937;

void tni_mt_seed(tni_mt19937 *mt, uint32_t seed);
void tni_mt_twist(tni_mt19937 *mt); /* the next 624 words */

static inline uint32_t tni_mt_next(tni_mt19937 *mt)
{
    if (TNI_UNLIKELY(mt->used >= TNI_MT_WORDS)) tni_mt_twist(mt);
    uint32_t y = mt->word[mt->used++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

typedef struct tni_generator_state {
    tni_mt19937 mt;
    uint64_t seed;
    bool has_normal; /* normal is the second half of a pair */
    double normal;
    uint64_t philox_seed, philox_offset;
} tni_generator_state;

struct tn_generator {
    pthread_mutex_t *lock, own; /* its own; the default one's: the library's */
    tni_generator_state now;
};

/* The state as it is, and another one. */
void tni_generator_get(const tn_generator *g, tni_generator_state *state);
void tni_generator_put(tn_generator *g, const tni_generator_state *state);

void tni_generator_lock(const tn_generator *g);
void tni_generator_unlock(const tn_generator *g);

/* Fills every element of t, in row-major order whatever its strides, from the default generator. t
 * is floating. The caller checks arguments and bumps the version. */
tn_status tni_random_uniform(tn_tensor *t, double low, double high);
tn_status tni_random_normal(tn_tensor *t, double mean, double deviation);
/* The CPU's kernel. */
tn_status tni_cpu_random(const tni_random *a);

/* A number below range, from one word or two, as PyTorch takes them. g is locked. */
uint64_t tni_draw_below(tn_generator *g, uint64_t range);
/* tn_generator_permutation; from n = long_from on in the order of long ones. */
void tni_draw_permutation(tn_generator *g, int64_t n, int64_t *perm, int64_t long_from);

#endif
