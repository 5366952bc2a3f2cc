/*
 * cuda_host_mma.h - the instructions of src/cuda/mma.h on the CPU.
 *
 * Products and matrix loads wait for all 32 lanes of the warp; the last to come does the work for
 * all. Each lane gives and gets what the PTX reference says that it holds; mma.cpp puts the
 * fragments together. A launch fails where a lane is missing or calls another instruction, where a
 * row of a matrix or an end of a copy does not lie on 16 bytes, and where a thread ends before its
 * copies do. A copy happens only when its thread waits for it: until then its destination holds
 * 0xA5.
 */
#ifndef CUDA_HOST_MMA_H
#define CUDA_HOST_MMA_H

#include "cuda_runtime.h"

#pragma GCC visibility push(hidden)

namespace cuda_host {

/* c += a b of this lane's fragments; half: f16, else bf16. */
void mma_16816(float *c, const uint32_t *a, const uint32_t *b, bool half, int line);
void load_matrix_4(uint32_t *x, const void *row, bool turned, int line);
void copy_16(void *to, const void *from, bool read);
void copies_done();

} /* namespace cuda_host */

#pragma GCC visibility pop

template <typename E> static inline uint32_t pack(float low, float high);
template <> inline uint32_t pack<bf16>(float low, float high)
{
    return tn_to_bf16(low) | static_cast<uint32_t>(tn_to_bf16(high)) << 16;
}
template <> inline uint32_t pack<f16>(float low, float high)
{
    return tn_to_f16(low) | static_cast<uint32_t>(tn_to_f16(high)) << 16;
}

template <typename E>
static inline void mma_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = { b0, b1 };
    cuda_host::mma_16816(c, a, b, std::is_same<E, f16>::value, __LINE__);
}

typedef uintptr_t shared_place;

static inline shared_place place_of(const void *shared)
{
    return reinterpret_cast<uintptr_t>(shared);
}

static inline void load_matrices(uint32_t (&x)[4], shared_place row)
{
    cuda_host::load_matrix_4(x, reinterpret_cast<const void *>(row), false, __LINE__);
}

static inline void load_matrices_turned(uint32_t (&x)[4], shared_place row)
{
    cuda_host::load_matrix_4(x, reinterpret_cast<const void *>(row), true, __LINE__);
}

static inline void copy_async(shared_place to, const void *from, bool read)
{
    cuda_host::copy_16(reinterpret_cast<void *>(to), from, read);
}

static inline void copies_wait()
{
    cuda_host::copies_done();
}

static inline float power2(float x)
{
    return exp2f(x);
}

#endif
