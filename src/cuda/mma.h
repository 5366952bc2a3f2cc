/*
 * mma.h - products of small matrices on the tensor cores, and their operands: bf16 and f16,
 * fragments of a warp, loads from shared memory, copies into it that bypass registers.
 *
 * The product is PTX's mma.sync m16n8k16: C [16, 8] += A [16, 16] B [16, 8]. A warp holds the
 * matrices together. With group = lane / 4, t = lane % 4 a lane has
 *     A: a[0] (row group, columns 2t, 2t + 1), a[1] (row group + 8), a[2] (row group, columns 2t +
 *     8,
 *        2t + 9), a[3] (row group + 8, those columns)
 *     B: b0 (rows 2t, 2t + 1, column group), b1 (rows 2t + 8, 2t + 9)
 *     C: c[0], c[1] (row group, columns 2t, 2t + 1), c[2], c[3] (row group + 8)
 * two elements to a register, the first in the lower half. So C, packed, is half of an A: two
 * neighbouring results [16, 8] are the [16, 16] operand of the next product, in the same lanes.
 *
 * All lanes of a warp take part in each of these, except the copies. Over the shim the instructions
 * are emulated (cuda_host_mma.h). Source: PTX ISA 8, "Matrix multiply-accumulate operation using
 * mma instruction", "ldmatrix", "cp.async".
 */
#pragma once

#include "cuda/half.h"

/* Neighbours in one access. */
template <typename E> struct alignas(4) two {
    E v[2];
};
template <typename E> struct alignas(16) eight {
    E v[8];
};

#ifdef __CUDACC__

/* Two numbers rounded to nearest even, in one register. */
template <typename E> static __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<bf16>(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <> __device__ __forceinline__ uint32_t pack<f16>(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* c += a b */
template <typename E>
static __device__ __forceinline__ void mma_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1);
#define MMA_ADD(E, name)                                                                           \
    template <>                                                                                    \
    __device__ __forceinline__ void mma_add<E>(float(&c)[4], const uint32_t(&a)[4], uint32_t b0,   \
                                               uint32_t b1)                                        \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }
MMA_ADD(bf16, "bf16")
MMA_ADD(f16, "f16")
#undef MMA_ADD

/* A place in shared memory; counted in bytes. */
typedef uint32_t shared_place;

static __device__ __forceinline__ shared_place place_of(const void *shared)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/*
 * Four matrices [8, 8]: lane 8 i + r gives where row r of matrix i begins, on 16 bytes. x[i]
 * becomes elements (row group, columns 2t, 2t + 1) of matrix i; turned: (rows 2t, 2t + 1, column
 * group).
 */
static __device__ __forceinline__ void load_matrices(uint32_t (&x)[4], shared_place row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_turned(uint32_t (&x)[4], shared_place row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

/* Sixteen bytes to a place in shared memory: those at `from`, or zeros if read is false, whatever
 * `from` points to; both on 16 bytes. The instruction can also read fewer bytes and add zeros, but
 * compute-sanitizer takes that for a read of all 16 and stops where they are out of bounds. They
 * are there for this thread after copies_wait, for others after a later barrier. */
static __device__ __forceinline__ void copy_async(shared_place to, const void *from, bool read)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(read ? 16 : 0)
                 : "memory");
}

/* Waits until all copies of this thread are done. */
static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

/* 2^x to two units in the last place; results below the normal range are 0. */
static __device__ __forceinline__ float power2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else
#include "cuda_host_mma.h"
#endif
