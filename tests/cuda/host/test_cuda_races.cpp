/*
 * test_cuda_races.cpp - the detector of tests/cuda/host/races.cpp: small kernels with a known race,
 * and beside each the same kernel with the race fixed.
 *
 * This file is compiled as the kernels are, with the compiler's calls before every access.
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
const void *device_block(const void *)
{
    return nullptr;
}
} /* namespace cuda_host */

enum { THREADS = 96 };

/* "Device memory". What lies in .bss counts as shared memory, so these begin with something. */
static int *word = reinterpret_cast<int *>(16);
static unsigned char *bytes = reinterpret_cast<unsigned char *>(16);
static uint16_t *source = reinterpret_cast<uint16_t *>(16);

static void setup(void)
{
    void *memory = nullptr;
    ck_assert(posix_memalign(&memory, 256, 3 * 4096) == 0);
    word = static_cast<int *>(memory);
    bytes = static_cast<unsigned char *>(memory) + 4096;
    source = reinterpret_cast<uint16_t *>(bytes + 4096);
    std::memset(memory, 0, 3 * 4096);
}

static void teardown(void)
{
    std::free(word);
}

/* In both orders of the threads: the race found must not depend on it. NULL: there is none. */
static void expect(const char *found, const std::function<void()> &body, unsigned blocks = 1,
                   unsigned threads = THREADS)
{
    for (int backward = 0; backward < 2; backward++) {
        fault.clear();
        cuda_host::run_grid("test", dim3(blocks), dim3(threads), 1024, body, backward != 0);
        if (found) {
            ck_assert_msg(fault.find(found) != std::string::npos, "%s: '%s', expected '%s'",
                          backward ? "backward" : "forward", fault.c_str(), found);
        } else {
            ck_assert_msg(fault.empty(), "%s: '%s'", backward ? "backward" : "forward",
                          fault.c_str());
        }
    }
}

/* A value that the compiler must not drop. */
static void use(int x)
{
    if (x == 12345678) word[1000] = x;
}

/* clang-format off */ /* kernels of one line */
START_TEST(barriers)
{
    static const auto neighbour = [](bool before, bool after) {
        __shared__ int x[THREADS];
        x[threadIdx.x] = 5;
        __syncthreads();
        for (int turn = 0; turn < 2; turn++) {
            x[threadIdx.x] = turn;
            if (before) __syncthreads();
            use(x[(threadIdx.x + 40) % THREADS]);
            if (after) __syncthreads();
        }
    };
    expect(nullptr, [] { neighbour(true, true); });
    expect("unordered with the read of thread", [] { neighbour(true, false); });
    expect("unordered with the", [] { neighbour(false, true); }); /* write, or read of the turn before */
    expect("unordered with the write of thread", [] { /* the same value, too */
        __shared__ volatile int all;
        *const_cast<int *>(&all) = 7;
        use(all);
    });
    expect(nullptr, [] {
        __shared__ int all;
        if (threadIdx.x == 50) all = 7;
        __syncthreads();
        use(all);
    });
    /* two reads are enough: it is the third thread's that the write is unordered with */
    static const auto third = [](unsigned writer) {
        __shared__ int x;
        if (threadIdx.x == 0) x = 1;
        __syncthreads();
        use(x);
        if (threadIdx.x == writer) x = 2;
    };
    expect("unordered with the", [] { third(0); });
    expect("unordered with the", [] { third(1); });
    expect("unordered with the", [] { third(95); });
}
END_TEST

START_TEST(dynamic)
{
    static const auto halves = [](bool wait) {
        int *x = static_cast<int *>(cuda_host::dynamic_shared());
        x[threadIdx.x] = 5;
        __syncthreads();
        x[threadIdx.x] = 1;
        if (wait) __syncthreads();
        use(x[THREADS - 1 - threadIdx.x]);
    };
    expect(nullptr, [] { halves(true); }, 3); /* each block has its own, here at one address */
    expect("of dynamic shared memory", [] { halves(false); }, 3);
}
END_TEST

START_TEST(warps)
{
    static const auto lanes = [](int how) {
        __shared__ int x[THREADS];
        x[threadIdx.x] = 5;
        __syncthreads();
        x[threadIdx.x] = 1;
        if (how == 1) __syncwarp();
        if (how == 2) (void)__shfl_xor_sync(0xffffffffu, 1, 1);
        if (how == 3) (void)__ballot_sync(0xffffffffu, 1);
        use(x[threadIdx.x ^ 1]);
        if (how == 4) __syncwarp();
    };
    static const auto across = [] {
        __shared__ int x[THREADS];
        x[threadIdx.x] = 5;
        __syncthreads();
        x[threadIdx.x] = 1;
        __syncwarp();
        use(x[(threadIdx.x + 32) % THREADS]);
    };
    expect("unordered with the", [] { lanes(0); });
    expect(nullptr, [] { lanes(1); });
    expect("unordered with the", [] { lanes(2); }); /* CUDA: no order of memory */
    expect("unordered with the", [] { lanes(3); });
    expect("unordered with the", [] { lanes(4); });
    expect("unordered with the", [] { across(); });
}
END_TEST

START_TEST(blocks)
{
    expect("unordered with the write of block", [] { word[0] = 1; }, 2, 1);
    expect(nullptr, [] { word[blockIdx.x] = 1; }, 2, 1);
    expect(nullptr, [] { use(word[0]); }, 2);
    expect("of block", [] { if (blockIdx.x == 1) word[0] = 1; else use(word[0]); }, 2, 1);
    expect(nullptr, [] { atomicAdd(&word[0], 1); }, 3);
    expect("of block", [] { if (blockIdx.x == 1) atomicAdd(&word[0], 1); else use(word[0]); }, 2, 1);
    expect("of block", [] { if (blockIdx.x == 1) atomicAdd(&word[0], 1); else word[0] = 1; }, 2, 1);
    expect(nullptr, [] { *static_cast<volatile int *>(&word[0]) = 1; }, 2, 1);
    /* a block's barriers order nothing of another's */
    expect("of block", [] {
        if (blockIdx.x == 0) word[threadIdx.x] = 1;
        __syncthreads();
        if (blockIdx.x == 1) use(word[threadIdx.x]);
    }, 2);
    /* an atomic access is remembered behind the read that follows it */
    expect("of block", [] {
        if (blockIdx.x == 0) atomicAdd(&word[0], 1);
        if (blockIdx.x == 0) use(word[0]);
        if (blockIdx.x == 1) use(word[0]);
    }, 2, 1);
}
END_TEST

START_TEST(bytewise)
{
    expect(nullptr, [] { bytes[threadIdx.x] = 1; });
    expect("unordered with", [] { bytes[threadIdx.x / 2] = 1; });
    expect("unordered with", [] { /* in a word of which a byte is another's */
        if (threadIdx.x == 1) bytes[3] = 1;
        if (threadIdx.x == 2) *reinterpret_cast<volatile int *>(bytes) = 1;
    });
    expect(nullptr, [] { /* in pieces, whole, in pieces */
        bytes[threadIdx.x] = 1;
        __syncthreads();
        if (threadIdx.x < THREADS / 4) reinterpret_cast<int *>(bytes)[threadIdx.x] = 1;
        __syncthreads();
        bytes[THREADS - 1 - threadIdx.x] = 1;
    });
}
END_TEST

START_TEST(copies)
{
    static const auto copied = [](int how) {
        __shared__ __align__(16) uint16_t x[8 * THREADS];
        for (int i = 0; i < 8; i++) x[8 * threadIdx.x + static_cast<unsigned>(i)] = 0;
        __syncthreads();
        copy_async(place_of(x + 8 * threadIdx.x), source, true);
        if (how == 1) __syncthreads();
        if (how == 2 || how == 4) use(x[8 * threadIdx.x]);
        copies_wait();
        if (how == 5) use(x[8 * threadIdx.x]);
        if (how == 3 || how == 4) __syncthreads();
        if (how == 6) __syncwarp();
        uint32_t got[4];
        if (how < 5) load_matrices(got, place_of(x + (threadIdx.x + 32) * 8 % (8 * THREADS)));
        if (how == 6) load_matrices(got, place_of(x + threadIdx.x / 32 * 256 + (threadIdx.x + 5) % 32 * 8));
    };
    expect(nullptr, [] { copied(3); });
    expect(nullptr, [] { copied(5); });
    expect(nullptr, [] { copied(6); });
    expect("unordered with the", [] { copied(0); });
    expect("of thread", [] { copied(1); }); /* under way still, or unordered with its end */
    expect("where a copy is under way", [] { copied(2); });
    expect("where a copy is under way", [] { copied(4); });
    expect("where a copy is under way", [] { /* another's, with a barrier but no wait */
        __shared__ __align__(16) uint16_t x[8];
        if (threadIdx.x < 8) x[threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x == 0) copy_async(place_of(x), source, true);
        __syncthreads();
        if (threadIdx.x == 40) use(x[0]);
        __syncthreads();
        if (threadIdx.x == 0) copies_wait();
    });
}
END_TEST

START_TEST(unwritten)
{
    static const auto some = [](unsigned written) {
        __shared__ int x[THREADS];
        if (threadIdx.x < written) x[threadIdx.x] = 1;
        __syncthreads();
        use(x[THREADS - 1 - threadIdx.x]);
    };
    expect(nullptr, [] { some(THREADS); }, 2);
    expect("which nobody has written", [] { some(THREADS - 1); });
    expect("which nobody has written", [] { some(blockIdx.x == 0 ? THREADS : 0); }, 2); /* by this block */
}
END_TEST

START_TEST(message)
{
    expect("kernel test, block (0,0,0), thread ", [] { word[3] = 1; });
    ck_assert_msg(std::strstr(fault.c_str(), ": writes ") != nullptr, "%s", fault.c_str());
    expect(nullptr, [] { word[threadIdx.x] = 1; }); /* nothing of that is left over */
}
END_TEST
/* clang-format on */

Suite *test_suite(void)
{
    static const struct {
        const char *name;
        const TTest *test;
    } tests[] = { { "barriers", barriers },   { "dynamic", dynamic },   { "warps", warps },
                  { "blocks", blocks },       { "bytewise", bytewise }, { "copies", copies },
                  { "unwritten", unwritten }, { "message", message } };
    Suite *suite = suite_create("cuda_races");
    for (const auto &t : tests) {
        TCase *tcase = tcase_create(t.name);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, t.test);
        suite_add_tcase(suite, tcase);
    }
    return suite;
}
