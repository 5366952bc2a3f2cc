/*
 * mt19937.c - the Mersenne Twister with 32-bit output.
 *
 * Source   Matsumoto and Nishimura, Mersenne Twister, ACM TOMACS 8(1), 1998; the seeding is the one
 *          of their 2002 revision (init_genrand), which std::mt19937, NumPy and PyTorch use.
 */
#include "tensor/random.h"

enum { N = TNI_MT_WORDS, M = 397 };

void tni_mt_seed(tni_generator_state *s, uint32_t seed)
{
    s->word[0] = seed;
    for (uint32_t i = 1; i < N; i++) {
        uint32_t before = s->word[i - 1];
        s->word[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    s->used = N;
}

/* The recurrence: high bit of one word, low 31 bits of the next, times the companion matrix. */
static uint32_t twisted(uint32_t high, uint32_t low, uint32_t far)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return far ^ (y >> 1) ^ (0x9908b0dfu & (0u - (y & 1u)));
}

void tni_mt_twist(tni_generator_state *s)
{
    uint32_t *w = s->word;
    for (int i = 0; i < N - M; i++) w[i] = twisted(w[i], w[i + 1], w[i + M]);
    for (int i = N - M; i < N - 1; i++) w[i] = twisted(w[i], w[i + 1], w[i + M - N]);
    w[N - 1] = twisted(w[N - 1], w[0], w[M - 1]);
    s->used = 0;
}
