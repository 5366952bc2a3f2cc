/*
 * test_cudnn_real.cpp - the graphs of src/cuda with the real cuDNN, where it is installed; no GPU
 * is needed. Skipped (77) where there is none.
 *
 * Every number of cudnn_api.h is compared with cuDNN's header. Then descriptors, graphs, the
 * choice of an engine and its plan are made for GPUs given by their properties
 * (CUDNN_BACKEND_DEVICEPROP, as cuDNN's documentation has it for compiling ahead). Convolutions
 * come to a plan. Attention's kernels are compiled by cuDNN on the spot, and loaded by the driver,
 * for which the toolkit's stub stands: "broke" means that all went well up to there, and a graph
 * that cuDNN does not know is refused before.
 */
#include <cstdio>
#include <cstring>
#include <dlfcn.h>

#include "cuda/cudnn_graph.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define SAME(name, value)                                                                          \
    static_assert(static_cast<int>(CUDNN_##name) == DNN_##name, "CUDNN_" #name);
DNN_NAMES(SAME)
#define SAME_CONV(pass, how, w, x, y)                                                              \
    static_assert(CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_BETA ==                                \
                          DNN_ATTR_OPERATION_CONVOLUTION_##pass##_ALPHA + DNN_CONV_BETA &&         \
                      CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_CONV_DESC ==                       \
                          DNN_ATTR_OPERATION_CONVOLUTION_##pass##_ALPHA + DNN_CONV_HOW &&          \
                      CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##w ==                             \
                          DNN_ATTR_OPERATION_CONVOLUTION_##pass##_ALPHA + DNN_CONV_W &&            \
                      CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##x ==                             \
                          DNN_ATTR_OPERATION_CONVOLUTION_##pass##_ALPHA + DNN_CONV_X &&            \
                      CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##y ==                             \
                          DNN_ATTR_OPERATION_CONVOLUTION_##pass##_ALPHA + DNN_CONV_Y,              \
                  #pass);
SAME_CONV(FORWARD, CONV_DESC, W, X, Y)
SAME_CONV(BWD_DATA, CONV_DESC, W, DX, DY)
SAME_CONV(BWD_FILTER, CONV_DESC, DW, X, DY)
#endif

enum { SKIPPED = 77, TYPE_CHAR = 24, DEVICEPROP_DESCRIPTOR = 38, DEVICEPROP_JSON = 2702 };

static dnn_api api;
static int failures;

static void *open_any(const char *name)
{
    static const char *const folders[] = { "", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/",
                                           "/usr/local/cuda-13.0/lib/",
                                           "/usr/local/cuda-13.0/lib64/" };
    char path[256];
    for (const char *folder : folders) {
        std::snprintf(path, sizeof path, "%s%s", folder, name);
        if (void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL)) return library;
    }
    return nullptr;
}

static bool open_library()
{
    void *library = open_any("libcudnn.so.9");
    if (!library) return false;
    bool all = true;
#define LOAD(name, result, parameters)                                                             \
    *reinterpret_cast<void **>(&api.name) = dlsym(library, "cudnn" #name);                         \
    all = all && api.name;
    DNN_FUNCTIONS(LOAD)
    return all;
}

/* A GPU: capability times 10, multiprocessors, shared memory of a block in KiB, cache in MiB. */
struct gpu {
    int version, processors, shared, cache;
};

static dnn_descriptor properties(const gpu &of)
{
    char text[2048];
    dnn_descriptor d = nullptr;
    const int64_t n = std::snprintf(
        text, sizeof text,
        "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"smClockRateKHz\":1700000,"
        "\"memClockRateKHz\":2600000,\"l2CacheSize\":%d,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,"
        "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
        "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"deviceVer\":%d,\"driverVer\":13000,"
        "\"cudaDeviceId\":0,\"deviceName\":\"a GPU\",\"totalGlobalMem\":80000000000,"
        "\"maxSharedMemoryPerSM\":%d}",
        of.processors, of.cache << 20, of.shared << 10, of.version, (of.shared + 1) << 10);
    if (api.BackendCreateDescriptor(DEVICEPROP_DESCRIPTOR, &d) != 0 ||
        api.BackendSetAttribute(d, DEVICEPROP_JSON, TYPE_CHAR, n, text) != 0 ||
        api.BackendFinalize(d) != 0)
        return nullptr;
    return d;
}

static tni_array heads(tn_dtype dtype, int64_t b, int64_t h, int64_t n, int64_t d)
{
    return tni_array{ nullptr, dtype, 4, { b, h, n, d }, { n * h * d, d, h * d, 1 } };
}

enum wanted { REFUSED, PLANNED, COMPILED };

static void judge(dnn_graph *g, const char *what, int version, wanted want)
{
    const dnn_plan p = dnn_choose(g);
    const wanted got = p.plan ? PLANNED : g->broke ? COMPILED : REFUSED;
    const bool ok = got == want || (want == COMPILED && got == PLANNED);
    static const char *const names[] = { "refused", "a plan", "compiled, not loaded" };
    std::printf("%s %4d %-34s %s (%d), workspace %lld\n", ok ? "ok  " : "FAIL", version, what,
                names[got], g->status, static_cast<long long>(p.workspace));
    failures += !ok;
    dnn_drop(g);
    int64_t n = 0, workspace = -1; /* the plan outlives what it was made of */
    if (p.plan) {
        api.BackendGetAttribute(p.plan, DNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, DNN_TYPE_INT64, 1,
                                &n, &workspace);
        failures += workspace != p.workspace;
        api.BackendDestroyDescriptor(p.plan);
    }
}

static dnn_graph empty(dnn_descriptor device)
{
    dnn_graph g = {};
    g.api = &api;
    g.properties = device;
    g.fresh = DNN_VIRTUAL;
    return g;
}

/* h heads, of which h / keys share k and v. */
static void attention(dnn_descriptor device, int version, int64_t h, int64_t keys, int64_t d,
                      bool masked, bool backward, wanted want)
{
    const tn_dtype dtype = masked ? TN_F16 : TN_BF16;
    const int64_t b = 2, t = 320;
    tni_array bias = { nullptr, dtype, 4, { b, 1, 1, t }, { t, t, t, 1 } };
    tni_attention_grad a = {};
    a.of.q = a.of.y = a.dy = a.dq = heads(dtype, b, h, t, d);
    a.of.k = a.of.v = heads(dtype, b, keys, t, d);
    a.dk = a.dv = heads(dtype, b, h, t, d);
    a.of.causal = true;
    dnn_graph g = empty(device);
    if (backward)
        dnn_attention_grad(&g, &a, masked ? &bias : nullptr);
    else
        dnn_attention(&g, &a.of, masked ? &bias : nullptr, true);
    char what[64];
    std::snprintf(what, sizeof what, "attention%s %s, heads %d/%d of %d", backward ? "_grad" : "",
                  masked ? "f16, masked" : "bf16", static_cast<int>(h), static_cast<int>(keys),
                  static_cast<int>(d));
    judge(&g, what, version, want);
}

static void convolutions(dnn_descriptor device, int version)
{
    static const tni_conv2d_sizes cases[] = {
        { 32, 1, 64, 56, 56, 64, 3, 3, 56, 56, { 1, 1 }, { 1, 1 }, { 1, 1 } },
        { 32, 1, 64, 56, 56, 128, 3, 3, 28, 28, { 2, 2 }, { 1, 1 }, { 1, 1 } },
        { 8, 4, 64, 28, 28, 64, 3, 3, 28, 28, { 1, 1 }, { 2, 2 }, { 2, 2 } },
        { 8, 1, 3, 224, 224, 64, 7, 7, 112, 112, { 2, 2 }, { 3, 3 }, { 1, 1 } },
    };
    static const char *const names[] = { "y", "dx", "dw", "y + bias" };
    static const tn_dtype dtypes[] = { TN_BF16, TN_F16, TN_F32 };
    for (int i = 0; i < 4 * 4 * 3; i++) {
        const tni_conv2d_sizes *c = &cases[i % 4];
        const int pass = i / 4 % 4;
        const bool inside = c->c % 8 == 0;
        char what[64];
        dnn_graph g = empty(device);
        dnn_convolution(&g, pass == 3 ? DNN_FORWARD : static_cast<dnn_pass>(pass), dtypes[i / 16],
                        c, pass == 3, inside);
        std::snprintf(what, sizeof what, "convolution %d, dtype %d: %s", i % 4, dtypes[i / 16],
                      names[pass]);
        judge(&g, what, version, PLANNED);
    }
}

int main()
{
    static const gpu gpus[] = {
        { 900, 132, 227, 50 }, { 800, 108, 163, 40 }, { 1000, 148, 227, 126 }, { 1200, 170, 99, 96 }
    };
    if (!open_library() || api.GetVersion() < 91600) {
        std::puts("skipped: no libcudnn.so.9 of 9.16 or later");
        return SKIPPED;
    }
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::printf("cuDNN %zu\n", api.GetVersion());
    const bool compiles = open_any("libnvrtc.so.13") || open_any("libnvrtc.so.12");
    const bool stub = compiles && open_any("stubs/libcuda.so"); /* it is found as libcuda.so.1 */
    for (const gpu &of : gpus) {
        dnn_descriptor device = properties(of);
        if (!device) {
            std::puts("skipped: no plans for a GPU that is not there");
            return SKIPPED;
        }
        convolutions(device, of.version);
        if (!stub || of.version == 800 || of.version == 1000) continue; /* a second's work each */
        attention(device, of.version, 4, 2, 128, true, false, COMPILED);
        attention(device, of.version, 4, 4, 68, false, false, REFUSED);
        if (of.version != 900) continue;
        attention(device, of.version, 4, 4, 64, false, false, COMPILED);
        attention(device, of.version, 4, 2, 40, true, true, COMPILED);
    }
    if (!stub) std::puts("left out: attention, whose kernels want NVRTC and a driver's stub");
    return failures != 0;
}
