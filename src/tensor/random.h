/* random.h - generators and the draws that PyTorch's CPU generator defines. */
#pragma once

#include "tensor/internal.h"

#define TNI_MT_WORDS 624

/* As the bytes of tn_generator_get_state, which are little-endian: other hosts are refused
 * (io/safetensors.c). */
typedef struct tni_generator_state {
    char magic[8];
    uint32_t version, used; /* of the words, since the last twist */
    uint32_t has_normal;    /* normal is the second half of a pair */
    uint32_t zero;
    uint64_t seed;
    double normal;
    uint64_t philox_seed, philox_offset, zeros;
    uint32_t word[TNI_MT_WORDS]; /* of MT19937 */
} tni_generator_state;

void tni_mt_seed(tni_generator_state *s, uint32_t seed);
void tni_mt_twist(tni_generator_state *s); /* the next 624 words */

static inline uint32_t tni_mt_next(tni_generator_state *s)
{
    if (TNI_UNLIKELY(s->used >= TNI_MT_WORDS)) tni_mt_twist(s);
    uint32_t y = s->word[s->used++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

struct tn_generator {
    pthread_mutex_t *lock, own; /* its own; the default one's: the library's */
    tni_generator_state now;
};

/* The state as it is, and another one. */
void tni_generator_get(const tn_generator *g, tni_generator_state *state);
void tni_generator_put(tn_generator *g, const tni_generator_state *state);

#define tni_generator_lock(g) pthread_mutex_lock((g)->lock)
#define tni_generator_unlock(g) pthread_mutex_unlock((g)->lock)

/* Fills every element of t, in row-major order whatever its strides, from the default generator. t
 * is floating. The caller checks arguments and bumps the version. */
tn_status tni_random_uniform(tn_tensor *t, double low, double high);
tn_status tni_random_normal(tn_tensor *t, double mean, double deviation);
/* The CPU's kernel. */
tn_status tni_cpu_random(const tni_random *a);

/* A number below range, from one word or two, as PyTorch takes them. g is locked. */
uint64_t tni_draw_below(tn_generator *g, uint64_t range);
double tni_draw_f64(tn_generator *g); /* uniform in [0, 1), 53 bits */
/* tn_generator_permutation; from n = long_from on in the order of long ones. */
void tni_draw_permutation(tn_generator *g, int64_t n, int64_t *perm, int64_t long_from);
