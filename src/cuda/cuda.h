/*
 * cuda.h - shared by the .cu files: the stream, checked calls, launches, dispatch over real types.
 *
 * A file holds the kernels of one family and, below them, the functions for its slots of the table
 * in module.cu. The same source is compiled by nvcc for GPUs and by a host compiler over a small
 * shim (tests/cuda/host/), which runs blocks and threads on the CPU. So a kernel may use only:
 * __shared__ arrays of constant size, TN_DYNAMIC_SHARED, __syncthreads by all threads of a block,
 * the _sync warp functions by all lanes named, atomics. Launches go through TN_LAUNCH alone.
 *
 * Formulas come from tensor/formulas.h, optim_formulas.h, philox.h: there is no second copy here.
 */
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "tensor/cuda_module.h"

/* The option gpu_archs: the architectures compiled for. */
#ifndef TN_GPU_ARCHS
/* clang-format off */
#define TN_GPU_ARCHS sm_80/compute_80
/* clang-format on */
#endif
#define TNI_CUDA_TEXT_OF(x) #x
#define TNI_CUDA_TEXT(x) TNI_CUDA_TEXT_OF(x)
#define TNI_CUDA_ARCHS TNI_CUDA_TEXT(TN_GPU_ARCHS)

/* ---- the device (device.cu) ------------------------------------------------------------------ */

extern const tni_host *tni_cuda_host;
extern cudaStream_t tni_cuda_stream; /* all work is ordered in it */

/* TN_OK, or the error with what failed. After a fault that kills the context every later call gives
 * the first message again. */
tn_status tni_cuda_check(cudaError_t error, const char *what);
tn_status tni_cuda_check_blas(cublasStatus_t error, const char *what);
/* After a library's error: whether an earlier kernel broke the device, which the library reports as
 * "execution failed" too; if so, that is the error. */
bool tni_cuda_broken(const char *what);
/* TN_E_DTYPE naming the slot (of __func__), the dtype and what is wanted instead. */
tn_status tni_cuda_refuse(const char *function, tn_dtype dtype, const char *wanted);
/* Bound to the stream, made at first use; NULL + message. */
cublasHandle_t tni_cuda_blas(void);
/* Whether f32 products may round their operands to TF32; the handle's math mode follows it. */
bool tni_cuda_tf32(void);
/* Counts a launch by its kernel's name; TN_OK unless the device is lost. */
tn_status tni_cuda_launching(const char *kernel);
/* After an error: whether memory was short, and the pool's unused memory has been released. */
bool tni_cuda_made_room(cudaError_t error);
/* Device memory, freed in stream order by tni_cuda_return. */
tn_status tni_cuda_borrow(size_t nbytes, void **block);
void tni_cuda_return(void *block);
/* The same for the call that is running, returned where the variable's block ends. */
struct tni_cuda_scratch {
    void *at = nullptr;
    tni_cuda_scratch() = default;
    tni_cuda_scratch(const tni_cuda_scratch &) = delete;
    tni_cuda_scratch &operator=(const tni_cuda_scratch &) = delete;
    ~tni_cuda_scratch() { tni_cuda_return(at); }
    tn_status borrow(size_t nbytes) { return tni_cuda_borrow(nbytes, &at); }
    template <typename T> T *as() const { return static_cast<T *>(at); }
};
int tni_cuda_multiprocessors(void);

/* The record of a bad index that kernels leave for the next point where the host waits (fault.h):
 * the first one in the first launch that met any. Kernels never read or write out of bounds. */
typedef struct tni_cuda_fault {
    int set; /* 0: none; then which message: TNI_FAULT_INDEX, TNI_FAULT_TARGET */
    int lock;
    int64_t launch;                         /* names the op: tni_cuda_fault_launch */
    int64_t value, limit, position, ignore; /* the index, how many there are, where it stood */
} tni_cuda_fault;
enum { TNI_FAULT_INDEX = 1, TNI_FAULT_TARGET };
/* Host: the error that a fault (copied to the host, set) stands for, with the CPU's message. */
tn_status tni_cuda_fault_error(const tni_cuda_fault *fault);
/* Host: a number for the next launch, under which the running op's name is kept. */
int64_t tni_cuda_fault_launch(void);
tni_cuda_fault *tni_cuda_fault_word(void); /* device memory */

#define TN_CUDA(call) tni_cuda_check((call), #call)
#define TN_BLAS(call) tni_cuda_check_blas((call), #call)

/* ---- launches -------------------------------------------------------------------------------- */

/* A kernel's code may be loaded at its first launch: if there was no memory for it, memory is
 * released and the launch repeated. */
template <typename F> static inline tn_status tni_cuda_launch(const char *kernel, const F &start)
{
    if (tni_cuda_launching(kernel) != TN_OK) return TN_E_BACKEND;
    start();
    if (tni_cuda_made_room(cudaPeekAtLastError())) start();
    return tni_cuda_check(cudaPeekAtLastError(), kernel);
}

/* A tn_status: TN_LAUNCH((softmax<float>), grid, block, shared bytes, arguments ...). */
#define TN_LAUNCH(kernel, grid, block, shared, ...)                                                \
    tni_cuda_launch(#kernel, [&]() { TN_START(kernel, grid, block, shared, __VA_ARGS__); })
#ifdef __CUDACC__
#define TN_START(kernel, grid, block, shared, ...)                                                 \
    (kernel)<<<(grid), (block), (shared), tni_cuda_stream>>>(__VA_ARGS__)
/* Shared memory of the size given at launch. */
#define TN_DYNAMIC_SHARED(type, name)                                                              \
    extern __shared__ double2 tni_dynamic_shared[];                                                \
    type *name = reinterpret_cast<type *>(tni_dynamic_shared)
/* A device function not to inline: large ones in many kernels. (The host's headers use nvcc's
 * word.) */
#define TN_NOINLINE __noinline__
/* Before a loop of constant length whose index picks registers; before one that is best not
 * unrolled. */
#define TN_UNROLL _Pragma("unroll")
#define TN_ROLLED _Pragma("unroll 1")
#else
#include "cuda_host.h" /* the shim's TN_START and TN_DYNAMIC_SHARED */
#define TN_NOINLINE
#define TN_UNROLL
#define TN_ROLLED
#endif

/* Blocks of `block` threads for n items, at most `most` (kernels stride over the rest). */
static inline unsigned tni_cuda_blocks(int64_t n, int block, int64_t most)
{
    int64_t blocks = (n + block - 1) / block;
    if (blocks < 1) blocks = 1;
    return (unsigned)(blocks < most ? blocks : most);
}

static inline const char *dtype_name(tn_dtype dtype)
{
    static const char *const name[] = { "f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool" };
    return name[dtype];
}

/* Returns `call` with a C++ type R: TN_REAL's is that of a real dtype; TN_E_DTYPE for others. */
#define TN_WITH(type, call)                                                                        \
    {                                                                                              \
        typedef type R;                                                                            \
        return call;                                                                               \
    }
#define TN_REAL(dtype, call)                                                                       \
    [&, function = __func__]() -> tn_status {                                                      \
        if ((dtype) == TN_F32) TN_WITH(float, call)                                                \
        if ((dtype) == TN_F64) TN_WITH(double, call)                                               \
        return tni_cuda_refuse(function, dtype, "f32 or f64");                                     \
    }()

/* ---- slots, by file -------------------------------------------------------------------------- */

/* device.cu */
tn_status tni_cuda_alloc(size_t nbytes, void **block);
void tni_cuda_free(void *block, size_t nbytes);
tn_status tni_cuda_upload(void *device, const void *host, size_t nbytes);
tn_status tni_cuda_download(void *host, const void *device, size_t nbytes);
tn_status tni_cuda_synchronize(void);
tn_status tni_cuda_memory(tn_cuda_memory_stats *stats);
void tni_cuda_memory_reset_peak(void);
tn_status tni_cuda_memory_trim(void);
tn_status tni_cuda_allow_tf32(bool allow);
tn_status tni_cuda_use(int index);
tn_status tni_cuda_stream_for(void **stream);
int tni_cuda_device(void); /* the process's GPU; the first, if none was asked for */

/* module.cu: whether GPU `index` can be used, found out without creating anything on it. */
bool tni_cuda_fits(int index, char *why, size_t size);

/* tn_status tni_cuda_softmax(const tni_softmax *a), and so on, each in the file of its name or
 * family. */
#define TNI_CUDA_PROTOTYPE(name) tn_status tni_cuda_##name(const tni_##name *a);
#define TNI_CUDA_TYPED_PROTOTYPE(name, ...) TNI_CUDA_PROTOTYPE(name)
TNI_KERNELS(TNI_CUDA_PROTOTYPE, TNI_CUDA_PROTOTYPE, TNI_CUDA_TYPED_PROTOTYPE,
            TNI_CUDA_TYPED_PROTOTYPE, TNI_CUDA_TYPED_PROTOTYPE)

static inline tn_status copy_to(const tni_array &y, const tni_array &x)
{
    const tni_copy a = { y, x };
    return tni_cuda_copy(&a);
}
