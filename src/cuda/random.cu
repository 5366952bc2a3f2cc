/*
 * random.cu - many random numbers at once, by cuRAND's Philox 4x32-10.
 *
 * Seed and offset are set before every call, so the numbers depend only on them, and a checkpoint
 * that saves them reproduces what follows. The key differs from that of dropout masks. cuRAND's
 * uniform numbers are in (0, 1]; 1 becomes 0. Its normal ones come in pairs (Box and Muller): for
 * an odd count the last is half a pair.
 */
#include <curand.h>
#include <mutex>

#include "cuda/capture.h"
#include "cuda/rows.h"

static std::mutex lock;
static curandGenerator_t generator;

static tn_status check(curandStatus_t error, const char *what)
{
    if (error == CURAND_STATUS_SUCCESS) return TN_OK;
    if (tni_cuda_broken(what)) return TN_E_BACKEND;
    return tni_cuda_host->fail(error == CURAND_STATUS_ALLOCATION_FAILED ? TN_E_NOMEM : TN_E_BACKEND,
                               "cuda: %s: cuRAND status %d", what, static_cast<int>(error));
}

#define TN_RAND(call, ...) check(call(__VA_ARGS__), #call)

/* The generator, set to that offset of its sequence. */
static tn_status aim(uint64_t seed, uint64_t offset)
{
    if (!generator) {
        curandGenerator_t made;
        if (tn_status failed =
                TN_RAND(curandCreateGenerator, &made, CURAND_RNG_PSEUDO_PHILOX4_32_10))
            return failed;
        tn_status status = TN_RAND(curandSetStream, made, tni_cuda_stream);
        if (status != TN_OK) {
            curandDestroyGenerator(made);
            return status;
        }
        generator = made;
    }
    if (tn_status failed =
            TN_RAND(curandSetPseudoRandomGeneratorSeed, generator, seed ^ 0x6a09e667f3bcc908u))
        return failed;
    return TN_RAND(curandSetGeneratorOffset, generator, 4 * offset);
}

static tn_status generate(float *y, size_t n, bool normal)
{
    return normal ? TN_RAND(curandGenerateNormal, generator, y, n, 0.0f, 1.0f)
                  : TN_RAND(curandGenerateUniform, generator, y, n);
}

static tn_status generate(double *y, size_t n, bool normal)
{
    return normal ? TN_RAND(curandGenerateNormalDouble, generator, y, n, 0.0, 1.0)
                  : TN_RAND(curandGenerateUniformDouble, generator, y, n);
}

template <typename R> static __global__ void random_one_to_zero(R *y, int64_t n)
{
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < n; i += static_cast<int64_t>(gridDim.x) * blockDim.x)
        if (y[i] == 1) y[i] = 0;
}

/* The last of an odd count, from a pair. */
template <typename R> static tn_status last_normal(R *y)
{
    tni_cuda_scratch pair;
    if (tn_status failed = pair.borrow(2 * sizeof(R))) return failed;
    if (tn_status failed = generate(pair.as<R>(), 2, true)) return failed;
    return TN_CUDA(
        cudaMemcpyAsync(y, pair.at, sizeof(R), cudaMemcpyDeviceToDevice, tni_cuda_stream));
}

template <typename R> static tn_status fill(R *y, int64_t n, bool normal)
{
    size_t count = static_cast<size_t>(n);
    if (!normal) {
        if (tn_status failed = generate(y, count, false)) return failed;
        return TN_LAUNCH((random_one_to_zero<R>), row_grid(n, 256), 256, 0, y, n);
    }
    if (n > 1)
        if (tn_status failed = generate(y, count - count % 2, true)) return failed;
    return n % 2 ? last_normal(y + n - 1) : TN_OK;
}

tn_status tni_cuda_random(const tni_random *a)
{
    int64_t n = tni_array_numel(&a->y);
    if (n == 0) return TN_OK;
    if (tn_status failed = tni_cuda_not_captured("numbers are drawn",
                                                 "them drawn into an input of tn_capture_run"))
        return failed;
    std::lock_guard<std::mutex> hold(lock);
    if (tn_status failed = aim(a->seed, a->offset)) return failed;
    return TN_REAL(a->y.dtype, fill(static_cast<R *>(a->y.data), n, a->normal));
}
