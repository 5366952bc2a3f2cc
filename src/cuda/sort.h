/*
 * sort.h - sorts the words of an array by some of their bits: brings additions at equal indices
 * together, in index order and without atomic additions of floats.
 *
 * Radix sort from the lowest digit, a digit of RADIX values at a time; every pass is stable. A
 * block owns a part of the array: sort_count counts how often each digit occurs in it; from that
 * sort_pass knows where each digit of its part begins, and moves the words.
 * Source: Knuth, The Art of Computer Programming, volume 3, section 5.2.5; Merrill and Grimshaw,
 * High performance and scalable radix sorting (2011), section 3 (counts, prefix sums, scatter).
 */
#pragma once

#include "cuda/rows.h"

enum { RADIX_BITS = 8, RADIX = 1 << RADIX_BITS, SORT_BLOCKS = 256, SORT_STRETCH = 2048 };
static_assert(RADIX == 256, "a block has a thread for each value of a digit");

typedef struct sort_plan {
    int64_t n, stretch; /* words; words of a block: a multiple of RADIX */
    unsigned blocks;
} sort_plan;

static inline sort_plan sort_plan_of(int64_t n)
{
    sort_plan plan = { n, 0, tni_cuda_blocks(n, SORT_STRETCH, SORT_BLOCKS) };
    int64_t each = (n + plan.blocks - 1) / plan.blocks;
    plan.stretch = (each + RADIX - 1) / RADIX * RADIX;
    plan.blocks =
        tni_cuda_blocks(n, static_cast<int>(min(plan.stretch, INT64_C(1) << 30)), SORT_BLOCKS);
    return plan;
}

/* Words of scratch beside the two arrays of n. */
static inline size_t sort_scratch(const sort_plan &plan)
{
    return static_cast<size_t>(plan.blocks) * RADIX;
}

/* count[block][digit] */
static __global__ void sort_count(const uint64_t *word, uint64_t *count, sort_plan plan, int shift)
{
    __shared__ unsigned long long seen[RADIX];
    int64_t from = blockIdx.x * plan.stretch, end = min(plan.n, from + plan.stretch);
    seen[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = from + threadIdx.x; i < end; i += RADIX)
        atomicAdd(&seen[(word[i] >> shift) % RADIX], 1ull);
    __syncthreads();
    count[blockIdx.x * RADIX + threadIdx.x] = seen[threadIdx.x];
}

/* Sum of v over the threads before this one in a block of RADIX. */
static __device__ inline uint64_t sort_before(uint64_t v)
{
    __shared__ unsigned long long total[RADIX / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long sum = v;
    for (int apart = 1; apart < 32; apart *= 2) {
        unsigned long long below = __shfl_up_sync(WARP_ALL, sum, apart);
        if (lane >= apart) sum += below;
    }
    if (lane == 31) total[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) sum += total[w];
    return sum - v;
}

static __global__ void sort_pass(uint64_t *to, const uint64_t *word, const uint64_t *count,
                                 sort_plan plan, int shift)
{
    __shared__ unsigned long long next[RADIX];   /* where the next word of a digit goes */
    __shared__ unsigned here[RADIX / 32][RADIX]; /* of a digit in a warp; then in those before */
    int digit = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t all = 0, mine = 0;
    for (unsigned b = 0; b < gridDim.x; b++) {
        uint64_t times = count[b * RADIX + digit];
        if (b < blockIdx.x) mine += times;
        all += times;
    }
    next[digit] = sort_before(all) + mine;
    int64_t from = blockIdx.x * plan.stretch, end = min(plan.n, from + plan.stretch);
    for (int64_t tile = from; tile < end; tile += RADIX) {
        int64_t i = tile + threadIdx.x;
        uint64_t w = i < end ? word[i] : 0;
        int d = i < end ? static_cast<int>((w >> shift) % RADIX) : RADIX; /* RADIX: no word */
        for (int k = 0; k < RADIX / 32; k++) here[k][digit] = 0;
        __syncthreads();
        unsigned same = __match_any_sync(WARP_ALL, d);
        int rank = __popc(same & ((1u << lane) - 1));
        if (i < end && rank == 0) here[warp][d] = __popc(same);
        __syncthreads();
        unsigned sum = 0;
        for (int k = 0; k < RADIX / 32; k++) {
            unsigned times = here[k][digit];
            here[k][digit] = sum;
            sum += times;
        }
        __syncthreads();
        if (i < end) to[next[d] + here[warp][d] + rank] = w;
        __syncthreads();
        next[digit] += sum;
    }
}

/* Sorts words by bits shift .. shift + bits - 1; equal ones keep their order. *word and *other are
 * exchanged as often as needed: *word has the result. */
static inline tn_status sort_words(uint64_t **word, uint64_t **other, uint64_t *scratch,
                                   const sort_plan &plan, int shift, int bits)
{
    for (int done = 0; done < bits; done += RADIX_BITS) {
        uint64_t *from = *word, *to = *other;
        if (tn_status failed =
                TN_LAUNCH((sort_count), plan.blocks, RADIX, 0, from, scratch, plan, shift + done))
            return failed;
        if (tn_status failed = TN_LAUNCH((sort_pass), plan.blocks, RADIX, 0, to, from, scratch,
                                         plan, shift + done))
            return failed;
        *word = to;
        *other = from;
    }
    return TN_OK;
}
