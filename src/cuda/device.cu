/*
 * device.cu - the device: stream, memory, copies, libraries, faults.
 *
 * Everything is created at first use. All work goes into one stream; device memory comes from the
 * stream-ordered pool, which keeps freed memory. An upload copies the host's bytes into page-locked
 * segments and returns: the caller may change them at once. The host waits in three places only: a
 * download, a synchronisation, and an upload that meets a segment still being read.
 */
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "cuda/capture.h"
#include "cuda/gemm.h"

const tni_host *tni_cuda_host;
cudaStream_t tni_cuda_stream;

enum {
    SEGMENTS = 8,
    SEGMENT = 1 << 20, /* of the upload's page-locked memory */
    ALIGNMENT = 256,
    BOUNCE = 64 << 10, /* downloads up to this size go through page-locked memory */
    FIRST_MESSAGE = 256
};

/* Locks: of what is made at first use, of lost_why, of each direction of copies, of products. */
static std::mutex making, losing, uploading, downloading, multiplying;
static std::atomic<bool> made, lost;
static std::atomic<int> device(-1);  /* the GPU of this process; -1: none was asked for */
static char lost_why[FIRST_MESSAGE]; /* written once, before lost is set */
static cudaMemPool_t pool;
static int multiprocessors = 1;
static tni_cuda_fault *fault_word;
static cublasHandle_t blas;
static void *workspace; /* of blas */
static size_t workspace_bytes;
static std::atomic<bool> tf32;
static std::atomic<int64_t> in_use, peak, allocations;

/* ---- checked calls --------------------------------------------------------------------------- */

/* cudaError..., not in the headers of every CUDA 12 */
enum {
    CONTAINED = 226,
    TENSOR_MEMORY_LEAK = 721,
    MPS_CLIENT_TERMINATED = 810,
    EXTERNAL_DEVICE = 911
};

/* Errors after which the context returns the same error from every call, or is destroyed. */
static bool kills_context(cudaError_t error)
{
    switch (static_cast<int>(error)) {
    case CONTAINED:
    case TENSOR_MEMORY_LEAK:
    case MPS_CLIENT_TERMINATED:
    case EXTERNAL_DEVICE:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure: return true;
    default: return false;
    }
}

static tn_status say_lost()
{
    return tni_cuda_host->fail(TN_E_BACKEND,
                               "cuda: the device is lost since %s: want a new process", lost_why);
}

/* The likely cause of an error whose own text does not say it. */
static const char *hint(cudaError_t error)
{
    switch (error) {
    case cudaErrorInitializationError:
        return "; a child of a process that used the GPU cannot: want fork first, or exec";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidPtx:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorUnsupportedPtxVersion:
        return "; this build is for " TNI_CUDA_ARCHS ": want the GPU's in -Dgpu_archs";
    default: return "";
    }
}

/* "cudaMemsetAsync(at, 0, n, s)" -> its first word */
static int word(const char *what)
{
    return static_cast<int>(std::strcspn(what, "( <"));
}

static tn_status report(cudaError_t error, const char *what)
{
    const char *name = *what == '(' ? what + 1 : what; /* kernels are in parentheses */

    cudaGetLastError(); /* or the next launch would be blamed */
    if (lost) return say_lost();
    if (kills_context(error)) {
        std::lock_guard<std::mutex> hold(losing);
        if (!lost) {
            std::snprintf(lost_why, sizeof lost_why, "%.*s: %s (error %d)", word(name), name,
                          cudaGetErrorString(error), static_cast<int>(error));
            lost = true;
        }
        return say_lost();
    }
    return tni_cuda_host->fail(error == cudaErrorMemoryAllocation ? TN_E_NOMEM : TN_E_BACKEND,
                               "cuda: %.*s: %s (error %d)%s", word(name), name,
                               cudaGetErrorString(error), static_cast<int>(error), hint(error));
}

tn_status tni_cuda_check(cudaError_t error, const char *what)
{
    return error == cudaSuccess ? TN_OK : report(error, what);
}

/* A stream that is captured cannot be asked: the next call that looks notices a lost device. */
bool tni_cuda_broken(const char *what)
{
    cudaError_t behind = tni_cuda_capturing() ? cudaSuccess : cudaStreamQuery(tni_cuda_stream);

    cudaGetLastError(); /* also "not ready", which is not a failure */
    if (!lost && !kills_context(behind)) return false;
    report(behind, what);
    return true;
}

tn_status tni_cuda_check_blas(cublasStatus_t error, const char *what)
{
    if (error == CUBLAS_STATUS_SUCCESS) return TN_OK;
    if (tni_cuda_broken(what)) return TN_E_BACKEND;
    return tni_cuda_host->fail(error == CUBLAS_STATUS_ALLOC_FAILED ? TN_E_NOMEM : TN_E_BACKEND,
                               "cuda: %.*s: %s (status %d)", word(what), what,
                               cublasGetStatusString(error), static_cast<int>(error));
}

tn_status tni_cuda_refuse(const char *function, tn_dtype dtype, const char *wanted)
{
    static const char prefix[] = "tni_cuda_";
    size_t skip = std::strncmp(function, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;

    return tni_cuda_host->fail(TN_E_DTYPE, "%s: %s on the GPU: want %s", function + skip,
                               dtype_name(dtype), wanted);
}

int tni_cuda_device(void)
{
    int none = -1;
    device.compare_exchange_strong(none, 0);
    return device;
}

tn_status tni_cuda_use(int index)
{
    char why[256];
    int now = device;
    if (now >= 0 && index == now) return TN_OK;
    if (index != 0 && !tni_cuda_fits(index, why, sizeof why))
        return tni_cuda_host->fail(TN_E_DEVICE, "device cuda:%d: %s", index, why);
    now = -1;
    if (device.compare_exchange_strong(now, index)) return TN_OK;
    return tni_cuda_host->fail(TN_E_DEVICE,
                               "device cuda:%d: this process computes on cuda:%d: want one GPU in "
                               "a process",
                               index, now);
}

/* Each thread has its own current device in CUDA, and the program may have chosen another one
 * here. */
static tn_status choose_device()
{
    static thread_local bool chosen;
    if (chosen) return TN_OK;
    if (tn_status failed = TN_CUDA(cudaSetDevice(tni_cuda_device()))) return failed;
    chosen = true;
    return TN_OK;
}

tn_status tni_cuda_launching(const char *kernel)
{
    (void)kernel;
    if (tn_status failed = choose_device()) return failed;
    cudaGetLastError(); /* another library's error: launches report only the last one */
    return lost ? say_lost() : tni_cuda_not_elsewhere();
}

/* ---- at first use ---------------------------------------------------------------------------- */

/* The next call repeats the steps that a failure left undone. */
static tn_status make_device()
{
    uint64_t keep = UINT64_MAX;
    void *word = nullptr;

    if (!tni_cuda_stream) {
        if (tn_status failed =
                TN_CUDA(cudaStreamCreateWithFlags(&tni_cuda_stream, cudaStreamNonBlocking)))
            return failed;
    }
    if (!pool) {
        cudaMemPool_t found;
        if (tn_status failed = TN_CUDA(cudaDeviceGetDefaultMemPool(&found, device))) return failed;
        if (tn_status failed =
                TN_CUDA(cudaMemPoolSetAttribute(found, cudaMemPoolAttrReleaseThreshold, &keep)))
            return failed;
        pool = found;
    }
    if (tn_status failed = TN_CUDA(
            cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)))
        return failed;
    if (!fault_word) {
        if (tn_status failed = TN_CUDA(cudaMallocAsync(&word, sizeof *fault_word, tni_cuda_stream)))
            return failed;
        tn_status status = TN_CUDA(cudaMemsetAsync(word, 0, sizeof *fault_word, tni_cuda_stream));
        if (status != TN_OK) {
            cudaFreeAsync(word, tni_cuda_stream);
            cudaGetLastError();
            return status;
        }
        fault_word = static_cast<tni_cuda_fault *>(word);
    }
    made = true;
    return TN_OK;
}

static tn_status ready()
{
    if (tn_status failed = choose_device()) return failed;
    if (made) return lost ? say_lost() : TN_OK;
    std::lock_guard<std::mutex> hold(making);
    return made ? TN_OK : make_device();
}

/* For what is not captured: what it is, and what to want instead. */
static tn_status ready_outside(const char *does, const char *want)
{
    if (tn_status failed = ready()) return failed;
    return tni_cuda_not_captured(does, want);
}

tn_status tni_cuda_stream_for(void **stream)
{
    if (tn_status failed = ready_outside("ranks exchange numbers", "it outside")) return failed;
    *stream = tni_cuda_stream;
    return TN_OK;
}

tn_status tni_cuda_ready(void)
{
    return tni_cuda_blas() ? TN_OK : TN_E_BACKEND;
}

int tni_cuda_multiprocessors(void)
{
    return multiprocessors;
}

tni_cuda_fault *tni_cuda_fault_word(void)
{
    return fault_word;
}

bool tni_cuda_tf32(void)
{
    return tf32;
}

std::mutex &tni_cuda_product_lock(void)
{
    return multiplying;
}

/* Handles keep the mode they were given. Sums of half-precision floats stay in f32 to their end. */
static tn_status set_math(cublasHandle_t handle)
{
    std::lock_guard<std::mutex> hold(multiplying);
    int mode = (tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH) |
               CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    return TN_BLAS(cublasSetMathMode(handle, static_cast<cublasMath_t>(mode)));
}

/* cuBLAS would choose a workspace anew for a captured stream: with one fixed workspace, a product
 * has the same bits and addresses in a graph and outside. The sizes are cuBLAS's own. */
static tn_status set_workspace(cublasHandle_t handle)
{
    int major;
    if (tn_status failed =
            TN_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)))
        return failed;
    workspace_bytes = static_cast<size_t>(major >= 9 ? 32 : 8) << 20;
    if (!workspace)
        if (tn_status failed = tni_cuda_keep(workspace_bytes, &workspace)) return failed;
    return TN_BLAS(cublasSetWorkspace(handle, workspace, workspace_bytes));
}

void *tni_cuda_blas_workspace(size_t *nbytes)
{
    *nbytes = workspace_bytes;
    return workspace;
}

cublasHandle_t tni_cuda_blas(void)
{
    if (ready() != TN_OK || tni_cuda_not_elsewhere() != TN_OK) return nullptr;
    std::lock_guard<std::mutex> hold(making);
    if (!blas) {
        cublasHandle_t handle;
        if (TN_BLAS(cublasCreate(&handle)) != TN_OK) return nullptr;
        if (TN_BLAS(cublasSetStream(handle, tni_cuda_stream)) != TN_OK ||
            set_workspace(handle) != TN_OK || set_math(handle) != TN_OK) {
            cublasDestroy(handle);
            return nullptr;
        }
        blas = handle;
    }
    return blas;
}

tn_status tni_cuda_allow_tf32(bool allow)
{
    std::lock_guard<std::mutex> hold(making);
    bool before = tf32;

    tf32 = allow;
    if (!blas) return TN_OK;
    tn_status status = set_math(blas);
    if (status != TN_OK) tf32 = before;
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static tn_status out_of_memory(size_t nbytes)
{
    size_t free = 0;
    size_t total = 0;

    cudaMemGetInfo(&free, &total);
    cudaGetLastError();
    return tni_cuda_host->fail(TN_E_NOMEM,
                               "cuda: out of memory: want %zu bytes, %" PRId64
                               " are in use, %zu of %zu are free",
                               nbytes, static_cast<long long>(in_use.load()), free, total);
}

/* Returns the pool's unused memory to the device, so that larger blocks may fit. */
static tn_status trim()
{
    if (tn_status failed = TN_CUDA(cudaStreamSynchronize(tni_cuda_stream))) return failed;
    return TN_CUDA(cudaMemPoolTrimTo(pool, 0));
}

bool tni_cuda_made_room(cudaError_t error)
{
    if (error != cudaErrorMemoryAllocation || tni_cuda_capturing()) return false;
    cudaGetLastError();
    return trim() == TN_OK;
}

/* More than can be addressed may be "an invalid value" to CUDA. */
static bool ran_out(cudaError_t error, size_t nbytes)
{
    return error == cudaErrorMemoryAllocation || (error == cudaErrorInvalidValue && nbytes >> 40);
}

tn_status tni_cuda_borrow(size_t nbytes, void **block)
{
    *block = nullptr;
    if (tn_status failed = ready()) return failed;
    if (tn_status failed = tni_cuda_not_elsewhere()) return failed;
    if (tni_cuda_capturing()) return tni_cuda_graph_take(nbytes, block);
    if (nbytes == 0) nbytes = 1; /* still gets a block of its own */
    cudaError_t error = cudaMallocAsync(block, nbytes, tni_cuda_stream);
    if (ran_out(error, nbytes)) {
        cudaGetLastError();
        if (tn_status failed = trim()) return failed;
        error = cudaMallocAsync(block, nbytes, tni_cuda_stream);
    }
    if (ran_out(error, nbytes)) {
        cudaGetLastError();
        *block = nullptr;
        return out_of_memory(nbytes);
    }
    return tni_cuda_check(error, "cudaMallocAsync");
}

/* A block that cannot be freed is lost: nothing waits for an answer, so the error only stays
 * pending. */
void tni_cuda_give_back(void *block)
{
    cudaError_t error = cudaFreeAsync(block, tni_cuda_stream);
    if (!lost) tni_cuda_check(error, "cudaFreeAsync");
}

void tni_cuda_return(void *block)
{
    tni_cuda_graph_give(block);
}

tn_status tni_cuda_alloc(size_t nbytes, void **block)
{
    if (tn_status failed = tni_cuda_borrow(nbytes, block)) return failed;
    int64_t now = in_use += static_cast<int64_t>(nbytes);
    int64_t seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    allocations++;
    return TN_OK;
}

void tni_cuda_free(void *block, size_t nbytes)
{
    if (!block) return;
    in_use -= static_cast<int64_t>(nbytes);
    tni_cuda_return(block);
}

tn_status tni_cuda_memory(tn_cuda_memory_stats *stats)
{
    if (tn_status failed = ready()) return failed;
    size_t free, total;
    if (tn_status failed = TN_CUDA(cudaMemGetInfo(&free, &total))) return failed;
    uint64_t reserved;
    if (tn_status failed =
            TN_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved)))
        return failed;
    stats->total = static_cast<int64_t>(total);
    stats->free = static_cast<int64_t>(free);
    stats->in_use = in_use;
    stats->peak_in_use = peak;
    stats->reserved = static_cast<int64_t>(reserved);
    stats->allocations = allocations;
    return TN_OK;
}

void tni_cuda_memory_reset_peak(void)
{
    peak = in_use.load();
}

tn_status tni_cuda_memory_trim(void)
{
    if (tn_status failed = ready_outside("memory is trimmed", "it done before or after"))
        return failed;
    return trim();
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Page-locked memory for uploads: segments are filled from the start and taken in turn. An event
 * behind a segment's last copy tells when it may be filled again. */
static struct {
    char *memory;
    cudaEvent_t read[SEGMENTS];
    bool waiting[SEGMENTS]; /* read[i] was recorded since the segment was filled last */
    int now;
    size_t used; /* of segment now */
} staging;

static tn_status make_staging()
{
    if (staging.memory) return TN_OK;
    for (cudaEvent_t &event : staging.read) {
        if (!event)
            if (tn_status failed =
                    TN_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)))
                return failed;
    }
    void *memory;
    if (tn_status failed = TN_CUDA(
            cudaHostAlloc(&memory, static_cast<size_t>(SEGMENTS) * SEGMENT, cudaHostAllocDefault)))
        return failed;
    staging.memory = static_cast<char *>(memory);
    return TN_OK;
}

static tn_status next_segment()
{
    int next = (staging.now + 1) % SEGMENTS;

    if (tn_status failed = TN_CUDA(cudaEventRecord(staging.read[staging.now], tni_cuda_stream)))
        return failed;
    staging.waiting[staging.now] = true;
    if (staging.waiting[next])
        if (tn_status failed = TN_CUDA(cudaEventSynchronize(staging.read[next]))) return failed;
    staging.waiting[next] = false;
    staging.now = next;
    staging.used = 0;
    return TN_OK;
}

tn_status tni_cuda_upload(void *device, const void *host, size_t nbytes)
{
    char *to = static_cast<char *>(device);
    const char *from = static_cast<const char *>(host);

    if (nbytes == 0) return TN_OK;
    if (tn_status failed =
            ready_outside("data comes from the host", "it as an input of tn_capture_run"))
        return failed;
    if (tni_cuda_was_ahead(device, host, nbytes)) return TN_OK;
    std::lock_guard<std::mutex> hold(uploading);
    if (tn_status failed = make_staging()) return failed;
    while (nbytes > 0) {
        if (staging.used == SEGMENT)
            if (tn_status failed = next_segment()) return failed;
        size_t part = SEGMENT - staging.used;
        if (part > nbytes) part = nbytes;
        char *at = staging.memory + static_cast<size_t>(staging.now) * SEGMENT + staging.used;
        std::memcpy(at, from, part);
        if (tn_status failed =
                TN_CUDA(cudaMemcpyAsync(to, at, part, cudaMemcpyHostToDevice, tni_cuda_stream)))
            return failed;
        staging.used += (part + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        to += part;
        from += part;
        nbytes -= part;
    }
    return TN_OK;
}

static struct bounce {
    tni_cuda_fault fault;
    char bytes[BOUNCE];
} * bounce;

/* What the host checks when it waits: a bad index that kernels met since the last check. */
static tn_status wait_and_look()
{
    if (tn_status failed = TN_CUDA(cudaMemcpyAsync(&bounce->fault, fault_word, sizeof *fault_word,
                                                   cudaMemcpyDeviceToHost, tni_cuda_stream)))
        return failed;
    if (tn_status failed = TN_CUDA(cudaStreamSynchronize(tni_cuda_stream))) return failed;
    tni_cuda_fault found = bounce->fault;
    if (!found.set) return TN_OK;
    if (tn_status failed =
            TN_CUDA(cudaMemsetAsync(fault_word, 0, sizeof *fault_word, tni_cuda_stream)))
        return failed;
    return tni_cuda_fault_error(&found);
}

static tn_status make_bounce()
{
    if (bounce) return TN_OK;
    void *memory;
    if (tn_status failed = TN_CUDA(cudaHostAlloc(&memory, sizeof *bounce, cudaHostAllocDefault)))
        return failed;
    bounce = static_cast<struct bounce *>(memory);
    return TN_OK;
}

tn_status tni_cuda_download(void *host, const void *device, size_t nbytes)
{
    if (nbytes == 0) return TN_OK;
    if (tn_status failed = ready_outside("a value is read", "it read after tn_capture_run"))
        return failed;
    std::lock_guard<std::mutex> hold(downloading);
    if (tn_status failed = make_bounce()) return failed;
    void *to = nbytes <= BOUNCE ? bounce->bytes : host;
    if (tn_status failed =
            TN_CUDA(cudaMemcpyAsync(to, device, nbytes, cudaMemcpyDeviceToHost, tni_cuda_stream)))
        return failed;
    if (tn_status failed = wait_and_look()) return failed;
    if (to != host) std::memcpy(host, to, nbytes);
    return TN_OK;
}

tn_status tni_cuda_synchronize(void)
{
    if (tn_status failed = ready_outside("the host waits", "it to wait after tn_capture_run"))
        return failed;
    std::lock_guard<std::mutex> hold(downloading);
    if (tn_status failed = make_bounce()) return failed;
    return wait_and_look();
}
