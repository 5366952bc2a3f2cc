/*
 * runtime.cpp - the runtime: memory, the queue, errors. TN_CUDA_MEMORY=bytes in the environment
 * sets the size of the device, TN_CUDA_CAPABILITY=75 makes it one of compute capability 7.5,
 * TN_CUDA_POOLS=0 one without memory pools, TN_CUDA_PROCESSORS=n one of n multiprocessors (4; with
 * one, loops over what a grid does not cover run in small tests too), TN_CUDA_LAUNCHES=file gets
 * the name of each kernel that runs and what its largest launch took (log_launch).
 */
#include "cuda_runtime.h"

#include <cinttypes>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>
#include <sched.h>
#include <string>
#include <vector>

#include "internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

struct cuda_host_pool {
    uint64_t threshold, used, used_high, reserved, reserved_high;
};

namespace cuda_host {

std::recursive_mutex lock;

typedef std::lock_guard<std::recursive_mutex> guard;

enum { FRESH = 0xa5, LONG_QUEUE = 64 };
static const size_t STATIC_SHARED = 48 << 10, MOST_SHARED = 227 << 10;

static long long asked(const char *variable, long long otherwise)
{
    const char *text = std::getenv(variable);
    return text && *text ? std::atoll(text) : otherwise;
}

struct item {
    std::function<void()> work;
    bool always; /* also after a fault */
};

static std::deque<item> queue;
static bool flushing;
static std::map<char *, size_t> blocks, pinned;   /* device and page-locked memory: start, size */
static std::map<char *, long long> born;          /* of device memory: recorded_so_far() */
static std::map<const void *, size_t> attributes; /* kernel: dynamic shared memory it asked for */
static cuda_host_pool pool = { 0, 0, 0, 0, 0 };
static cuda_host_pool other = { 0, 0, 0, 0,
                                0 }; /* of all other devices: nothing is taken from it */
static std::map<size_t, int> kept;   /* by the pool of what was freed: size, how many */
static size_t total = static_cast<size_t>(asked("TN_CUDA_MEMORY", 16LL << 30));
static const int capability = static_cast<int>(asked("TN_CUDA_CAPABILITY", 90));
static const int pools = static_cast<int>(asked("TN_CUDA_POOLS", 1));
static const int processors = static_cast<int>(asked("TN_CUDA_PROCESSORS", 4));
static long long launches, waits;
static std::string fault;
static thread_local cudaError_t last_error;
static const int devices = static_cast<int>(asked("TN_CUDA_DEVICES", 1));
static int home; /* the device of the streams and of all memory */
static thread_local int current_device;

void set_fault(const char *text, bool quiet)
{
    fault = text;
    if (!quiet) std::fprintf(stderr, "cuda_host: %s\n", text);
}

bool is_lost()
{
    return !fault.empty();
}

cudaError_t failed(cudaError_t error)
{
    cudaError_t wanted = forced_error();
    if (wanted != cudaSuccess) error = wanted;
    return last_error = fault.empty() ? error : cudaErrorLaunchFailure;
}

#define CALL(error)                                                                                \
    guard hold(cuda_host::lock);                                                                   \
    if (cuda_host::fails(__func__)) return cuda_host::failed(error)
/* For calls that a captured stream, or any stream during a capture (nullptr), refuses. */
#define NOT_CAPTURED(stream)                                                                       \
    if (cuda_host::captured(stream)) return cuda_host::refuse_in_capture(__func__)
#define VALID                                                                                      \
    if (cuda_host::capture_invalid()) return cuda_host::failed(cudaErrorStreamCaptureInvalidated)

void enqueue(std::function<void()> work)
{
    if (record(work)) return;
    queue.push_back({ std::move(work), false });
    if (queue.size() >= LONG_QUEUE) flush();
}

void flush()
{
    if (flushing || queue.empty()) return;
    flushing = true;
    for (auto &b : blocks) ASAN_UNPOISON_MEMORY_REGION(b.first, b.second);
    while (!queue.empty()) {
        item next = std::move(queue.front());
        queue.pop_front();
        if (fault.empty() || next.always) next.work();
    }
    for (auto &b : blocks) ASAN_POISON_MEMORY_REGION(b.first, b.second);
    flushing = false;
}

bool is_flushing()
{
    return flushing;
}

bool all_done()
{
    return queue.empty();
}

void open_memory(const std::function<void()> &work)
{
    if (!flushing)
        for (auto &b : blocks) ASAN_UNPOISON_MEMORY_REGION(b.first, b.second);
    work();
    if (!flushing)
        for (auto &b : blocks) ASAN_POISON_MEMORY_REGION(b.first, b.second);
}

cudaError_t flushed()
{
    waits++;
    flush();
    return fault.empty() ? cudaSuccess : failed(cudaErrorLaunchFailure);
}

void settle()
{
    home = current_device;
}

int device_now()
{
    return current_device;
}

/* What is still in the queue when the program ends runs too: a freed block is not a leak. */
static struct last_flush {
    ~last_flush()
    {
        end_waiting();
        guard hold(lock);
        drop_side_streams();
        flush();
    }
} at_exit;

/* ---- launches -------------------------------------------------------------------------------- */

/* "(softmax<float>)" -> softmax */
static std::string base_name(const char *name)
{
    const char *begin = name;

    while (*begin == '(' || *begin == ' ') begin++;
    const char *end;
    for (end = begin; std::isalnum(static_cast<unsigned char>(*end)) || *end == '_';) end++;
    return std::string(begin, end);
}

/* What a kernel's launches took at most: threads of a block, dynamic shared memory, and how much of
 * that without having asked for more than every kernel may have. */
struct launch_size {
    uint64_t threads;
    size_t shared, unasked;
};

/* A line for each launch that is larger than those before it: NAME THREADS SHARED UNASKED. */
static void log_launch(const char *name, launch_size now)
{
    static std::map<std::string, launch_size> largest;
    const char *path = std::getenv("TN_CUDA_LAUNCHES");

    launches++;
    if (!path) return;
    std::string base = base_name(name);
    launch_size &most = largest[base];
    if (now.threads <= most.threads && now.shared <= most.shared && now.unasked <= most.unasked)
        return;
    most = { std::max(most.threads, now.threads), std::max(most.shared, now.shared),
             std::max(most.unasked, now.unasked) };
    std::FILE *file = std::fopen(path, "a");
    if (!file) return;
    std::fprintf(file, "%s %" PRIu64 " %zu %zu\n", base.c_str(), most.threads, most.shared,
                 most.unasked);
    std::fclose(file);
}

static bool backward_now()
{
    const char *order = std::getenv("TN_CUDA_ORDER");

    if (order && std::strcmp(order, "forward") == 0) return false;
    if (order && std::strcmp(order, "backward") == 0) return true;
    return launches % 2 == 1;
}

void launch_body(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
                 std::function<void()> body)
{
    guard hold(lock);
    auto asked = attributes.find(kernel);
    size_t most = asked == attributes.end() ? STATIC_SHARED : asked->second;
    uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;

    if (fails("launch", base_name(name).c_str())) {
        failed(cudaErrorLaunchOutOfResources);
        return;
    }
    if (current_device != home) {
        last_error = cudaErrorInvalidResourceHandle;
        return;
    }
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffffu || grid.y > 65535 ||
        grid.z > 65535 || threads < 1 || threads > 1024 || block.z > 64 ||
        shared > (most > STATIC_SHARED ? most : STATIC_SHARED)) {
        std::fprintf(stderr, "cuda_host: %s: grid (%u,%u,%u), block (%u,%u,%u), %zu bytes shared\n",
                     name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        last_error = cudaErrorInvalidConfiguration;
        return;
    }
    if (capture_invalid()) {
        last_error = cudaErrorStreamCaptureInvalidated;
        return;
    }
    log_launch(name, { threads, shared, asked == attributes.end() ? shared : 0 });
    bool backward = backward_now();
    enqueue([=]() { run_grid(name, grid, block, shared, body, backward); });
}

cudaError_t set_attribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    guard hold(lock);
    if (fails("cudaFuncSetAttribute")) return failed(cudaErrorInvalidValue);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<size_t>(value) > MOST_SHARED)
        return failed(cudaErrorInvalidValue);
    attributes[kernel] = static_cast<size_t>(value);
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The range lies in one block of the map. */
static bool inside(const std::map<char *, size_t> &map, const void *at, size_t size)
{
    const char *p = static_cast<const char *>(at);
    auto next = map.upper_bound(const_cast<char *>(p));

    if (next == map.begin()) return false;
    --next;
    return static_cast<size_t>(p - next->first) + size <= next->second;
}

const void *device_block(const void *at)
{
    auto next = blocks.upper_bound(static_cast<char *>(const_cast<void *>(at)));
    return inside(blocks, at, 1) ? std::prev(next)->first : nullptr;
}

/* The pool serves a request from what it keeps of that very size, else from the device: so memory
 * can be short although little is in use, until the pool is trimmed. */
static bool reserve(size_t size)
{
    auto found = kept.find(size);

    if (found != kept.end()) {
        if (--found->second == 0) kept.erase(found);
        return true;
    }
    if (size > total || pool.reserved > total - size) return false;
    pool.reserved += size;
    return true;
}

static void trim(size_t keep)
{
    while (pool.reserved > keep && !kept.empty()) {
        auto largest = std::prev(kept.end());
        pool.reserved -= largest->first;
        if (--largest->second == 0) kept.erase(largest);
    }
}

static cudaError_t take(void **block, size_t size)
{
    void *memory = nullptr;

    *block = nullptr;
    if (size == 0) return cudaSuccess;
    if (size >> 47) return failed(cudaErrorInvalidValue); /* no such address */
    if (!reserve(size)) return failed(cudaErrorMemoryAllocation);
    if (posix_memalign(&memory, 256, size) != 0) { /* of the exact size: overruns are seen */
        kept[size]++;
        return failed(cudaErrorMemoryAllocation);
    }
    std::memset(memory, FRESH, size);
    blocks[static_cast<char *>(memory)] = size;
    born[static_cast<char *>(memory)] = recorded_so_far();
    ASAN_POISON_MEMORY_REGION(memory, size);
    pool.used += size;
    if (pool.used > pool.used_high) pool.used_high = pool.used;
    if (pool.reserved > pool.reserved_high) pool.reserved_high = pool.reserved;
    *block = memory;
    return cudaSuccess;
}

static cudaError_t give(void *block)
{
    auto found = blocks.find(static_cast<char *>(block));

    if (!block) return cudaSuccess;
    if (found == blocks.end()) return failed(cudaErrorInvalidValue);
    size_t size = found->second;
    pool.used -= size;
    kept[size]++;
    blocks.erase(found); /* no copy may name it any more; kernels in the queue still use it */
    ASAN_UNPOISON_MEMORY_REGION(block, size);
    queue.push_back({ [block, size]() {
                         std::memset(block, FRESH, size);
                         std::free(block);
                     },
                      true });
    return cudaSuccess;
}

/* Memory of the first stream's pool may be used in another one only behind an event that was
 * recorded after it was taken; until then it is another tensor's. */
static bool in_order(cudaStream_t stream, const void *at)
{
    const void *block = device_block(at);
    if (!is_other(stream) || !block) return true;
    if (has_seen(stream) > born[static_cast<char *>(const_cast<void *>(block))]) return true;
    set_fault("a copy in another stream does not wait until its memory was taken");
    return false;
}

static cudaError_t copy(void *to, const void *from, size_t size, cudaMemcpyKind kind, bool wait,
                        cudaStream_t stream)
{
    bool to_device = inside(blocks, to, size);
    bool from_device = inside(blocks, from, size);

    if (size == 0) return cudaSuccess;
    if ((kind == cudaMemcpyHostToDevice && (!to_device || from_device)) ||
        (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)) ||
        (kind == cudaMemcpyDeviceToDevice && (!to_device || !from_device))) {
        std::fprintf(stderr, "cuda_host: a copy of %zu bytes, kind %d, from %s to %s memory\n",
                     size, static_cast<int>(kind), from_device ? "device" : "host",
                     to_device ? "device" : "host");
        return failed(cudaErrorInvalidValue);
    }
    bool pageable =
        (!from_device && !inside(pinned, from, size)) || (!to_device && !inside(pinned, to, size));
    if (!in_order(stream, to) || !in_order(stream, from)) return failed(cudaErrorLaunchFailure);
    if (captured(nullptr) && (wait || pageable)) return refuse_in_capture("a copy that waits");
    if (!from_device && !wait && !inside(pinned, from, size)) { /* pageable: read at once */
        std::vector<char> bytes(static_cast<const char *>(from),
                                static_cast<const char *>(from) + size);
        enqueue_in(stream, [to, bytes]() { std::memcpy(to, bytes.data(), bytes.size()); });
        return cudaSuccess;
    }
    enqueue_in(stream, [=]() { std::memcpy(to, from, size); });
    if (wait || (!to_device && !inside(pinned, to, size))) {
        waits++;
        flush();
    }
    return fault.empty() ? cudaSuccess : failed(cudaErrorLaunchFailure);
}

} /* namespace cuda_host */

using cuda_host::failed;
using cuda_host::guard;

/* ---- errors ---------------------------------------------------------------------------------- */

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorLaunchFailure:
        return cuda_host::fault.empty() ? "unspecified launch failure" : cuda_host::fault.c_str();
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    default: return "unknown error";
    }
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}

/* A lost device answers so every time. */
cudaError_t cudaPeekAtLastError()
{
    return cuda_host::fault.empty() ? cuda_host::last_error : cudaErrorLaunchFailure;
}

cudaError_t cudaGetLastError()
{
    cudaError_t error = cudaPeekAtLastError();
    cuda_host::last_error = cudaSuccess;
    return error;
}

/* ---- the device ------------------------------------------------------------------------------ */

cudaError_t cudaGetDeviceCount(int *count)
{
    CALL(cudaErrorNoDevice);
    *count = cuda_host::devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    CALL(cudaErrorInvalidDevice);
    if (device < 0 || device >= cuda_host::devices) return failed(cudaErrorInvalidDevice);
    cuda_host::current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    CALL(cudaErrorUnknown);
    *device = cuda_host::current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    CALL(cudaErrorInvalidDevice);
    if (device < 0 || device >= cuda_host::devices) return failed(cudaErrorInvalidDevice);
    std::memset(p, 0, sizeof *p);
    std::snprintf(p->name, sizeof p->name, "host shim");
    p->totalGlobalMem = cuda_host::total;
    p->sharedMemPerBlock = cuda_host::STATIC_SHARED;
    p->sharedMemPerBlockOptin = cuda_host::MOST_SHARED;
    p->major = cuda_host::capability / 10;
    p->minor = cuda_host::capability % 10;
    p->multiProcessorCount = cuda_host::processors;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->l2CacheSize = 1 << 20;
    p->memoryPoolsSupported = cuda_host::pools;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    CALL(cudaErrorInvalidDevice);
    if (device < 0 || device >= cuda_host::devices) return failed(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = cuda_host::STATIC_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = cuda_host::MOST_SHARED; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = cuda_host::processors; break;
    case cudaDevAttrL2CacheSize: *value = 1 << 20; break;
    case cudaDevAttrComputeCapabilityMajor: *value = cuda_host::capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = cuda_host::capability % 10; break;
    case cudaDevAttrMemoryPoolsSupported: *value = cuda_host::pools; break;
    default: return failed(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    CALL(cudaErrorUnknown);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    CALL(cudaErrorUnknown);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **block, size_t size)
{
    CALL(cudaErrorMemoryAllocation);
    NOT_CAPTURED(nullptr);
    return cuda_host::take(block, size);
}

cudaError_t cudaFree(void *block)
{
    CALL(cudaErrorInvalidValue);
    NOT_CAPTURED(nullptr);
    cuda_host::flush();
    cudaError_t error = cuda_host::give(block);
    cuda_host::flush();
    return error;
}

cudaError_t cudaMallocAsync(void **block, size_t size, cudaStream_t stream)
{
    CALL(cudaErrorMemoryAllocation);
    NOT_CAPTURED(stream);
    VALID;
    (void)stream;
    if (cuda_host::current_device != cuda_host::home)
        return cuda_host::failed(cudaErrorInvalidResourceHandle);
    return cuda_host::take(block, size);
}

/* A call that fails, on request or because the device is lost, still frees: otherwise tests would
 * see a leak that is not the caller's. */
cudaError_t cudaFreeAsync(void *block, cudaStream_t stream)
{
    sched_yield(); /* another thread may begin a capture */
    guard hold(cuda_host::lock);
    bool fails = cuda_host::fails(__func__);
    NOT_CAPTURED(stream);
    cudaError_t error = cuda_host::give(block);
    return fails ? failed(cudaErrorInvalidValue) : error;
}

cudaError_t cudaHostAlloc(void **block, size_t size, unsigned flags)
{
    CALL(cudaErrorMemoryAllocation);
    NOT_CAPTURED(nullptr);
    (void)flags;
    if (posix_memalign(block, 4096, size ? size : 1) != 0) return failed(cudaErrorMemoryAllocation);
    cuda_host::pinned[static_cast<char *>(*block)] = size;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **block, size_t size)
{
    return cudaHostAlloc(block, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *block)
{
    guard hold(cuda_host::lock);
    const bool fails =
        cuda_host::fails(__func__); /* it tells of work before it; the block is gone */
    NOT_CAPTURED(nullptr);
    cuda_host::flush();
    if (block && cuda_host::pinned.erase(static_cast<char *>(block)) == 0)
        return failed(cudaErrorInvalidValue);
    std::free(block);
    return fails ? failed(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    CALL(cudaErrorUnknown);
    *total = cuda_host::total;
    *free = cuda_host::total > cuda_host::pool.reserved
                ? cuda_host::total - cuda_host::pool.reserved
                : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    CALL(cudaErrorInvalidDevice);
    if (device < 0 || device >= cuda_host::devices) return failed(cudaErrorInvalidDevice);
    *pool = device == cuda_host::home ? &cuda_host::pool : &cuda_host::other;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    CALL(cudaErrorInvalidValue);
    uint64_t v = *static_cast<uint64_t *>(value);

    switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold: pool->threshold = v; break;
    case cudaMemPoolAttrUsedMemHigh: /* only 0 may be set: from now on */
        if (v != 0) return failed(cudaErrorInvalidValue);
        pool->used_high = pool->used;
        break;
    case cudaMemPoolAttrReservedMemHigh:
        if (v != 0) return failed(cudaErrorInvalidValue);
        pool->reserved_high = pool->reserved;
        break;
    default: return failed(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    CALL(cudaErrorInvalidValue);
    uint64_t *v = static_cast<uint64_t *>(value);

    switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold: *v = pool->threshold; break;
    case cudaMemPoolAttrReservedMemCurrent: *v = pool->reserved; break;
    case cudaMemPoolAttrReservedMemHigh: *v = pool->reserved_high; break;
    case cudaMemPoolAttrUsedMemCurrent: *v = pool->used; break;
    case cudaMemPoolAttrUsedMemHigh: *v = pool->used_high; break;
    default: return failed(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

/* Memory freed in a stream that has not yet reached the free is still in use. */
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    CALL(cudaErrorInvalidValue);
    (void)pool;
    if (cuda_host::queue.empty()) cuda_host::trim(keep);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    CALL(cudaErrorInvalidValue);
    return cuda_host::copy(to, from, size, kind, true, nullptr);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    CALL(cudaErrorInvalidValue);
    VALID;
    return cuda_host::copy(to, from, size, kind, false, stream);
}

cudaError_t cudaMemset(void *to, int value, size_t size)
{
    cudaError_t error = cudaMemsetAsync(to, value, size, nullptr);
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    CALL(cudaErrorInvalidValue);
    VALID;
    (void)stream;
    if (size == 0) return cudaSuccess;
    if (!cuda_host::inside(cuda_host::blocks, to, size)) return failed(cudaErrorInvalidValue);
    cuda_host::enqueue([=]() { std::memset(to, value, size); });
    return cudaSuccess;
}

/* ---- for tests ------------------------------------------------------------------------------- */

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void cuda_host_memory(size_t bytes)
{
    guard hold(cuda_host::lock);
    cuda_host::total = bytes;
}

EXPORTED long long cuda_host_blocks(void)
{
    guard hold(cuda_host::lock);
    return static_cast<long long>(cuda_host::blocks.size());
}

EXPORTED long long cuda_host_launches(void)
{
    return cuda_host::launches;
}

EXPORTED long long cuda_host_waits(void)
{
    return cuda_host::waits;
}

/* As if another library had left an error in this thread that nobody read. */
EXPORTED void cuda_host_stale(void)
{
    cuda_host::last_error = cudaErrorInvalidValue;
}

/* As if this thread had called cudaSetDevice(1) on a machine with two. */
EXPORTED void cuda_host_other_device(void)
{
    cuda_host::current_device = cuda_host::home + 1;
}

EXPORTED void cuda_host_fault(const char *text)
{
    guard hold(cuda_host::lock);
    cuda_host::set_fault(text);
}
