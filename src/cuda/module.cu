/* module.cu - the CUDA module's entry point: finds devices and returns the table of kernels.
 * Nothing is created on the device before the first tensor. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/capture.h"
#include "cuda/half.h"

static tni_cuda_module table;
static int devices;

static tn_status properties(int index, tn_cuda_properties *to)
{
    if (index < 0 || index >= devices) {
        return tni_cuda_host->fail(TN_E_DEVICE, "tn_cuda_get_properties: device %d: want 0..%d",
                                   index, devices - 1);
    }
    cudaDeviceProp from;
    if (tn_status failed = TN_CUDA(cudaGetDeviceProperties(&from, index))) return failed;
    std::snprintf(to->name, sizeof to->name, "%s", from.name);
    to->memory = static_cast<int64_t>(from.totalGlobalMem);
    to->major = from.major;
    to->minor = from.minor;
    to->multiprocessors = from.multiProcessorCount;
    return TN_OK;
}

/* ---- kernels that take bf16 and f16 through f32 copies --------------------------------------- */

/* A call begins with n_out outputs and n_in inputs. */
template <typename CALL>
static tn_status in_f32(const CALL *a, tn_status (*kernel)(const CALL *), int n_out, int n_in)
{
    enum { MOST = 8 };
    CALL f = *a;
    const tni_array *from[MOST];
    tni_array *to[MOST];
    tni_cuda_scratch block;

    for (int i = 0; i < n_in + n_out; i++) { /* inputs first */
        int at = i < n_in ? n_out + i : i - n_in;
        from[i] = reinterpret_cast<const tni_array *>(a) + at;
        to[i] = reinterpret_cast<tni_array *>(&f) + at;
    }
    if (tn_status failed = f32_copies(n_in + n_out, to, from, n_in, block)) return failed;
    tn_status status = kernel(&f);
    for (int i = n_in; i < n_in + n_out && status == TN_OK; i++)
        if (to[i]->dtype != from[i]->dtype) status = copy_to(*from[i], *to[i]);
    return status;
}

#define NOTHING(...)
#define BY_WIDE(name, array, n_out, n_in)                                                          \
    static tn_status by_wide_##name(const tni_##name *a)                                           \
    {                                                                                              \
        return tni_is_half(a->array.dtype) ? in_f32(a, tni_cuda_##name, n_out, n_in)               \
                                           : tni_cuda_##name(a);                                   \
    }
TNI_KERNELS(NOTHING, NOTHING, NOTHING, NOTHING, BY_WIDE)

#define SLOT(name) table.backend.name = tni_cuda_##name;
#define TYPED_SLOT(name, ...) SLOT(name)
#define WIDE_SLOT(name, ...) table.backend.name = by_wide_##name;

/* Products read their operands as they are. */
static int64_t pack_nothing(const tni_gemm *, void *)
{
    return 0;
}

static void fill_table()
{
    table.backend.name = "cuda";
    table.devices = devices;
    table.properties = properties;
    table.memory = tni_cuda_memory;
    table.memory_reset_peak = tni_cuda_memory_reset_peak;
    table.memory_trim = tni_cuda_memory_trim;
    table.allow_tf32 = tni_cuda_allow_tf32;
    table.graphs = &tni_cuda_graphs;
    table.use = tni_cuda_use;
    table.stream = tni_cuda_stream_for;

    SLOT(alloc)
    SLOT(free)
    SLOT(upload)
    SLOT(download)
    table.backend.pack = pack_nothing;
    SLOT(synchronize)
    TNI_KERNELS(SLOT, SLOT, TYPED_SLOT, TYPED_SLOT, WIDE_SLOT)
}

/* Whether code for "sm_80" or "compute_90" runs on a GPU of this capability: machine code (sm_) on
 * GPUs of its major number that are no older; the other, which the driver translates, on all that
 * are no older. Either runs with an f only within its major number, with an a only on that GPU. */
static bool runs_on(const char *arch, int capability)
{
    bool translated = std::strncmp(arch, "compute_", 8) == 0;
    char *end;
    long made_for = std::strtol(arch + std::strcspn(arch, "_") + 1, &end, 10);

    if (*end == 'a') return made_for == capability;
    return made_for <= capability &&
           ((translated && *end != 'f') || made_for / 10 == capability / 10);
}

bool tni_cuda_fits(int index, char *why, size_t size)
{
    int major = 0, minor = 0, pools = 0;
    bool code = false;
    if (index < 0 || index >= devices) {
        std::snprintf(why, size,
                      "want one of tn_cuda(0) to tn_cuda(%d): CUDA_VISIBLE_DEVICES says which GPUs "
                      "a process sees",
                      devices - 1);
        return false;
    }
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);

    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, index);
    if (error != cudaSuccess) {
        std::snprintf(why, size, "the CUDA device does not say what it is: %s (error %d)",
                      cudaGetErrorString(error), static_cast<int>(error));
        return false;
    }
    for (const char *arch = TNI_CUDA_ARCHS; arch; arch = std::strchr(arch, '/')) {
        arch += *arch == '/';
        code = code || runs_on(arch, 10 * major + minor);
    }
    if (!code)
        std::snprintf(
            why, size,
            "the CUDA device has compute capability %d.%d, and this build is for " TNI_CUDA_ARCHS
            ": want %s",
            major, minor, major < 8 ? "8.0 or later" : "the GPU's own in -Dgpu_archs");
    else if (!pools)
        std::snprintf(why, size,
                      "the CUDA device has no memory pools: want a GPU, or a virtual one, "
                      "with cudaDevAttrMemoryPoolsSupported");
    return code && pools;
}

extern "C" __attribute__((visibility("default"))) const tni_cuda_module *
tenon_cuda_open(const tni_host *host, const char *build_id, char *why, size_t size)
{
    if (std::strcmp(build_id, TNI_BUILD_ID) != 0) {
        std::snprintf(why, size,
                      "the CUDA module is of build \"%s\", the library of \"%s\": want one build",
                      TNI_BUILD_ID, build_id);
        return nullptr;
    }
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices < 1) {
        std::snprintf(why, size, "no CUDA device: %s (error %d)", cudaGetErrorString(error),
                      static_cast<int>(error));
        return nullptr;
    }
    if (!tni_cuda_fits(0, why, size)) return nullptr;
    tni_cuda_host = host;
    fill_table();
    return &table;
}
