/*
 * test_cuda_mma.cpp - the tensor-core instructions of src/cuda/mma.h as tests/cuda/host emulates
 * them.
 *
 * This file states a second time, register by register, which numbers a lane holds, after the
 * tables of the PTX reference; products are compared with a plain loop over random numbers without
 * any symmetry. Then errors that must be found: a missing lane, a copy that nobody waits for,
 * addresses not on 16 bytes.
 *
 * Seen to fail: in mma.cpp a[1] and a[2] exchanged, b0 and b1 exchanged, rows and columns of C or
 * of a transposed matrix exchanged; copies made at once; the wait of the lanes left out.
 */
#include <check.h>
#include <string>

#include "cuda/mma.h"
#include "internal.h"

extern "C" Suite *test_suite(void);

static std::string fault;

namespace cuda_host {
void set_fault(const char *text, bool)
{
    fault = text;
}
} /* namespace cuda_host */

enum { WARPS = 3, THREADS = 32 * WARPS };

static void run(const std::function<void()> &body, int threads = THREADS, bool backward = false)
{
    fault.clear();
    cuda_host::run_grid("test", dim3(1), dim3(static_cast<unsigned>(threads)), 0, body, backward);
}

static uint64_t random_state = 1;

static float uniform() /* xorshift64*: [-1, 1) */
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return static_cast<float>((random_state * 2685821657736338717u) >> 40) / 8388608.0f - 1;
}

/* Matrices of each warp, rounded to E. */
static struct {
    alignas(16) uint16_t a[WARPS][16][24], b[WARPS][16][24], turned_b[WARPS][8][24];
    float c[WARPS][16][8], got[WARPS][16][8];
} m;

template <typename E> static float number(uint16_t bits)
{
    E x = { bits };
    return wide(x);
}

template <typename E> static void fill()
{
    for (int w = 0; w < WARPS; w++) {
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 16; j++) {
                m.a[w][i][j] = static_cast<uint16_t>(pack<E>(uniform(), 0));
                m.b[w][i][j] = static_cast<uint16_t>(pack<E>(uniform(), 0));
                if (j < 8) {
                    m.turned_b[w][j][i] = m.b[w][i][j];
                    m.c[w][i][j] = uniform();
                }
            }
        }
    }
}

template <typename E> static void compare(const float (*got)[16][8], const char *what)
{
    for (int w = 0; w < WARPS; w++) {
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 8; j++) {
                double sum = static_cast<double>(m.c[w][i][j]);
                for (int k = 0; k < 16; k++) {
                    sum += static_cast<double>(number<E>(m.a[w][i][k])) *
                           static_cast<double>(number<E>(m.b[w][k][j]));
                }
                ck_assert_msg(std::fabs(static_cast<double>(got[w][i][j]) - sum) < 4e-6,
                              "%s: warp %d, element [%d, %d] is %g, not %g", what, w, i, j,
                              static_cast<double>(got[w][i][j]), sum);
            }
        }
    }
}

static uint32_t joined(uint16_t low, uint16_t high)
{
    return static_cast<uint32_t>(high) << 16 | low;
}

/* The fragments of this lane, by the tables. */
static void take_a(uint32_t (&a)[4], int w, int g, int t)
{
    const uint16_t(*x)[24] = m.a[w];
    a[0] = joined(x[g][2 * t], x[g][2 * t + 1]);
    a[1] = joined(x[g + 8][2 * t], x[g + 8][2 * t + 1]);
    a[2] = joined(x[g][2 * t + 8], x[g][2 * t + 9]);
    a[3] = joined(x[g + 8][2 * t + 8], x[g + 8][2 * t + 9]);
}

static void take_b(uint32_t (&b)[2], int w, int g, int t)
{
    const uint16_t(*x)[24] = m.b[w];
    b[0] = joined(x[2 * t][g], x[2 * t + 1][g]);
    b[1] = joined(x[2 * t + 8][g], x[2 * t + 9][g]);
}

template <typename E> static void multiply_fragments()
{
    int w = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int g = lane >> 2, t = lane & 3;
    uint32_t a[4];
    float c[4] = { m.c[w][g][2 * t], m.c[w][g][2 * t + 1], m.c[w][g + 8][2 * t],
                   m.c[w][g + 8][2 * t + 1] };
    take_a(a, w, g, t);
    uint32_t b[2];
    take_b(b, w, g, t);
    mma_add<E>(c, a, b[0], b[1]);
    m.got[w][g][2 * t] = c[0];
    m.got[w][g][2 * t + 1] = c[1];
    m.got[w][g + 8][2 * t] = c[2];
    m.got[w][g + 8][2 * t + 1] = c[3];
}

template <typename E> static void product(const char *what)
{
    for (int i = 0; i < 8; i++) {
        fill<E>();
        run(multiply_fragments<E>, THREADS, i % 2 == 1);
        ck_assert_str_eq(fault.c_str(), "");
        compare<E>(m.got, what);
    }
}

START_TEST(products)
{
    product<bf16>("bf16");
    product<f16>("f16");
}
END_TEST

/* The operands as load_matrices finds them in rows, which is how kernels use it: what a lane gets
 * is compared with the tables. */
static void load_operands()
{
    int w = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int i = lane / 8, r = lane % 8;
    uint32_t a[4];
    take_a(a, w, lane >> 2, lane & 3);
    uint32_t b[2];
    take_b(b, w, lane >> 2, lane & 3);
    uint32_t loaded[4];
    load_matrices(loaded, place_of(&m.a[w][(i & 1) * 8 + r][(i >> 1) * 8]));
    uint32_t straight[4];
    load_matrices(straight, place_of(&m.turned_b[w][r][(i & 1) * 8]));
    uint32_t turned[4];
    load_matrices_turned(turned, place_of(&m.b[w][(i & 1) * 8 + r][0]));
    for (int k = 0; k < 4; k++) {
        ck_assert_msg(loaded[k] == a[k], "lane %d: a[%d]", lane, k);
        ck_assert_msg(straight[k] == b[k % 2], "lane %d: b%d from rows of b's columns", lane,
                      k % 2);
        ck_assert_msg(turned[k] == b[k % 2], "lane %d: b%d from rows of b", lane, k % 2);
    }
}

START_TEST(matrices)
{
    fill<bf16>();
    run(load_operands);
    ck_assert_str_eq(fault.c_str(), "");
    run(load_operands, THREADS, true);
    ck_assert_str_eq(fault.c_str(), "");
}
END_TEST

START_TEST(numbers)
{
    static const float x[] = { 0, -0.0f, 1, 1.00390625f, 1.01171875f, 65504, 1e-7f, -3.1415926f };
    for (float v : x) {
        ck_assert_uint_eq(pack<bf16>(v, 2), tn_to_bf16(v) | 0x40000000u);
        ck_assert_uint_eq(pack<f16>(2, v), static_cast<uint32_t>(tn_to_f16(v)) << 16 | 0x4000u);
        float y = power2(v / 1000), exact = std::pow(2.0f, v / 1000);
        ck_assert(std::fabs(y - exact) <= 1e-6f * exact);
    }
    ck_assert(power2(-INFINITY) == 0);
    ck_assert(std::isnan(power2(NAN)));
    ck_assert(number<f16>(0x3555) == tn_from_f16(0x3555));
    ck_assert(number<bf16>(0x3fc0) == 1.5f);
}
END_TEST

alignas(16) static unsigned char from[64], to[64];

/* Threads copy 16 bytes, zeros and 16 bytes; nothing is there before the wait, all of it after the
 * barrier. */
static void copy_bytes()
{
    int i = static_cast<int>(threadIdx.x);
    if (i < 3) copy_async(place_of(to + 16 * i), from + 16 * i, i != 1);
    if (i < 3) ck_assert_int_eq(to[16 * i], 0xa5);
    copies_wait();
    __syncthreads();
    for (int k = 0; k < 48; k++) ck_assert_int_eq(to[k], k / 16 != 1 ? k + 1 : 0);
    ck_assert_int_eq(to[48], 7);
}

START_TEST(copies)
{
    for (int i = 0; i < 64; i++) {
        from[i] = static_cast<unsigned char>(i + 1);
        to[i] = 7;
    }
    run(copy_bytes);
    ck_assert_str_eq(fault.c_str(), "");
}
END_TEST

static void expect_fault(const std::function<void()> &body, const char *text, int threads = THREADS)
{
    run(body, threads);
    ck_assert_msg(fault.find(text) != std::string::npos, "\"%s\" lacks \"%s\"", fault.c_str(),
                  text);
}

START_TEST(refusals)
{
    auto some = [](bool take_part) {
        float c[4] = { 0 };
        uint32_t a[4] = { 0 };
        if (take_part) mma_add<bf16>(c, a, 0, 0);
    };
    expect_fault([&] { some(threadIdx.x != 40); }, "has ended, others wait for it");
    expect_fault([&] { some(true); }, "the block does not have", 40);
    expect_fault(
        [&] {
            uint32_t x[4];
            if (threadIdx.x % 2)
                some(true);
            else
                load_matrices(x, place_of(to));
        },
        "other lanes at line");
    expect_fault(
        [] {
            uint32_t x[4];
            load_matrices(x, place_of(to + 8));
        },
        "not begin on 16 bytes");
    expect_fault([] { copy_async(place_of(to), from, true); }, "before its copies");
    expect_fault([] { copy_async(place_of(to), from + 2, false); }, "not on 16 bytes");
    run(multiply_fragments<bf16>); /* nothing of that is left over */
    ck_assert_str_eq(fault.c_str(), "");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_mma");
    TCase *t = tcase_create("instructions");
    tcase_add_test(t, products);
    tcase_add_test(t, matrices);
    tcase_add_test(t, numbers);
    tcase_add_test(t, copies);
    tcase_add_test(t, refusals);
    suite_add_tcase(suite, t);
    return suite;
}
