/*
 * mma.cpp - products of a warp's fragments, matrices out of shared memory, copies into it.
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "internal.h"
#include "tensor/math.h"

namespace cuda_host {

static int thread_number()
{
    return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

/* ---- all lanes together ---------------------------------------------------------------------- */

typedef void (*together_fn)(void *const *lane);

static struct gathering { /* of a warp: what its lanes brought so far */
    void *lane[32];
    together_fn act;
    int n;
} gatherings[32];

/* The last of the 32 lanes acts for all; until then the others wait. */
static void together(void *own, together_fn act, int line)
{
    gathering *g = &gatherings[thread_number() / 32];

    if (g->n == 0) g->act = act;
    if (g->act == act) { /* else warp() finds the lanes at different lines */
        g->lane[thread_number() % 32] = own;
        if (++g->n == 32) {
            g->n = 0;
            act(g->lane);
        }
    }
    warp(WARP_TOGETHER, 0xffffffffu, 0, 0, line);
}

/* ---- products -------------------------------------------------------------------------------- */

struct product {
    float *c;
    const uint32_t *a, *b;
    bool half;
};

static float number(uint32_t pair, int which, bool half)
{
    uint16_t bits = static_cast<uint16_t>(which ? pair >> 16 : pair);
    return half ? tn_from_f16(bits) : tn_from_bf16(bits);
}

static double power_of_2(int e)
{
    uint64_t bits = static_cast<uint64_t>(e + 1023) << 52;
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static int exponent(double x)
{
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<int>(bits >> 52 & 0x7ff) - 1023;
}

/* sum += a b for one row of a and eight of b, as tensor cores add: the addends are cut off below
 * the last bit that an f32 of the largest one's size has, their sum is exact and cut off to f32.
 * (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021; later ones keep a bit or two
 * more.) */
static void add_eight(float (&sum)[8], const float *a, const float (*b)[8])
{
    double addend[9][8], largest[8], plain[8], last[8], scale[8];
    int32_t total[8] = { 0 };

    for (int j = 0; j < 8; j++) {
        addend[8][j] = plain[j] = static_cast<double>(sum[j]);
        largest[j] = std::max(std::fabs(plain[j]), 0x1p-126);
    }
    for (int k = 0; k < 8; k++) {
        for (int j = 0; j < 8; j++) {
            addend[k][j] = static_cast<double>(a[k]) * static_cast<double>(b[k][j]);
            largest[j] = std::max(std::fabs(addend[k][j]), largest[j]);
            plain[j] += addend[k][j];
        }
    }
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < 9 && !std::isfinite(plain[j]); k++) largest[j] = addend[k][j] = 1;
    for (int j = 0; j < 8; j++) {
        last[j] = power_of_2(exponent(largest[j]) - 23);
        scale[j] = power_of_2(23 - exponent(largest[j]));
    }
    for (int k = 0; k < 9; k++)
        for (int j = 0; j < 8; j++) total[j] += static_cast<int32_t>(addend[k][j] * scale[j]);
    for (int j = 0; j < 8; j++) {
        int32_t size = std::abs(total[j]); /* below 9 2^24 */
        int beyond = (size >> 24 != 0) + (size >> 25 != 0) + (size >> 26 != 0) + (size >> 27 != 0);
        double kept = (size >> beyond << beyond) * last[j];
        if (std::isfinite(plain[j]))
            sum[j] = static_cast<float>(total[j] < 0 ? -kept : kept);
        else
            sum[j] = static_cast<float>(plain[j]);
    }
}

/* PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type". */
static void multiply(void *const *lanes)
{
    float a[16][16], b[16][8], c[16][8];

    for (int l = 0; l < 32; l++) {
        const product *p = static_cast<const product *>(lanes[l]);
        int group = l >> 2, t = l & 3;
        for (int i = 0; i < 8; i++) { /* ai: row, column */
            int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
            int column = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
            a[row][column] = number(p->a[i / 2], i & 1, p->half);
        }
        for (int i = 0; i < 4; i++) {
            int row = t * 2 + (i & 1) + (i >= 2 ? 8 : 0);
            b[row][group] = number(p->b[i / 2], i & 1, p->half);
        }
        for (int i = 0; i < 4; i++) c[i < 2 ? group : group + 8][t * 2 + (i & 1)] = p->c[i];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k += 8) add_eight(c[i], a[i] + k, b + k);
    for (int l = 0; l < 32; l++) {
        const product *p = static_cast<const product *>(lanes[l]);
        int group = l >> 2, t = l & 3;
        for (int i = 0; i < 4; i++) p->c[i] = c[i < 2 ? group : group + 8][t * 2 + (i & 1)];
    }
}

void mma_16816(float *c, const uint32_t *a, const uint32_t *b, bool half, int line)
{
    product own = { c, a, b, half };
    together(&own, multiply, line);
}

/* ---- matrices -------------------------------------------------------------------------------- */

struct matrix_load {
    uint32_t *x;
    const void *row;
    bool turned;
};

static void load(void *const *lanes)
{
    uint16_t element[4][8][8];

    for (int l = 0; l < 32; l++)
        std::memcpy(element[l / 8][l % 8], static_cast<const matrix_load *>(lanes[l])->row, 16);
    for (int l = 0; l < 32; l++) {
        const matrix_load *p = static_cast<const matrix_load *>(lanes[l]);
        int group = l >> 2, t = l & 3;
        for (int i = 0; i < 4; i++) {
            uint32_t low = p->turned ? element[i][2 * t][group] : element[i][group][2 * t];
            uint32_t high = p->turned ? element[i][2 * t + 1][group] : element[i][group][2 * t + 1];
            p->x[i] = low | high << 16;
        }
    }
}

void load_matrix_4(uint32_t *x, const void *row, bool turned, int line)
{
    matrix_load own = { x, row, turned };
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
        fail_thread("loads a row of a matrix that does not begin on 16 bytes");
    if (looking) looking->access(ACCESS_READ, row, 16, __builtin_return_address(0));
    together(&own, load, line);
}

/* ---- copies ---------------------------------------------------------------------------------- */

struct copy {
    void *to;
    const void *from;
    bool read;
    const void *caller;
};

static std::vector<copy> under_way[1024]; /* of each thread of the block */

void copy_16(void *to, const void *from, bool read)
{
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
        fail_thread("copies from or to a place that is not on 16 bytes");
    if (looking) {
        looking->access(ACCESS_READ, from, read ? 16 : 0, __builtin_return_address(0));
        looking->access(COPY_BEGINS, to, 16, __builtin_return_address(0));
    }
    std::memset(to, 0xa5, 16);
    under_way[thread_number()].push_back(copy{ to, from, read, __builtin_return_address(0) });
}

void copies_done()
{
    std::vector<copy> &mine = under_way[thread_number()];

    for (const copy &c : mine) {
        char bytes[16] = { 0 };
        if (looking) {
            looking->access(ACCESS_READ, c.from, c.read ? 16 : 0, c.caller);
            looking->access(COPY_ENDS, c.to, 16, c.caller);
        }
        if (c.read) std::memcpy(bytes, c.from, sizeof bytes);
        std::memcpy(c.to, bytes, sizeof bytes);
    }
    mine.clear();
}

bool copies_under_way(int thread)
{
    return !under_way[thread].empty();
}

void instructions_begin()
{
    for (gathering &g : gatherings) g.n = 0;
    for (std::vector<copy> &c : under_way) c.clear();
}

} /* namespace cuda_host */
