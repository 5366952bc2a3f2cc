/*
 * cudnn.cu - opening cuDNN, the cache of plans, running a plan.
 *
 * What cuDNN refuses (a version, a graph, a shape) is computed by this module's own kernels,
 * without a word; what fails for another reason is an error that names the call. TN_CUDNN=off
 * leaves cuDNN out, TN_CUDNN=show says on stderr what was found, another value is the library's
 * file.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>

#include "cuda/capture.h"
#include "cuda/cudnn.h"

enum {
    OLDEST = 91600, /* before it, backward attention needs S in whole 128s */
    PLANS = 128,
    OPERANDS = 16
};
constexpr int64_t MOST_WORKSPACE = INT64_C(1) << 30;

struct kept_plan {
    dnn_key key;
    dnn_plan plan;
};

/* Locks: of opening and of plans; of runs, since a handle serves one thread at a time. */
static std::mutex planning, running;
static std::atomic<bool> asked;
static dnn_api api;
static dnn_handle handle; /* NULL: none */
static int capability;
static kept_plan plans[PLANS];
static int n_plans;

/* The library cannot do what is asked of it, as opposed to: something broke. */
static bool is_refusal(dnn_status status)
{
    return status / DNN_CAUSE < DNN_INTERNAL / DNN_CAUSE;
}

static tn_status report(dnn_status status, const char *call)
{
    if (tni_cuda_broken(call)) return TN_E_BACKEND;
    return tni_cuda_host->fail(TN_E_BACKEND,
                               "cuda: %s: %s (status %d); TN_CUDNN=off leaves cuDNN out", call,
                               api.GetErrorString(status), status);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool load(void *library)
{
    bool all = true;
#define DNN_LOAD(name, result, parameters)                                                         \
    *reinterpret_cast<void **>(&api.name) = dlsym(library, "cudnn" #name);                         \
    all = all && api.name;
    DNN_FUNCTIONS(DNN_LOAD)
#undef DNN_LOAD
    return all;
}

/* Writes why not; "": it can be used. */
static void find(const char *wish, char *why, size_t size)
{
    bool named = wish && *wish && std::strcmp(wish, "show") != 0;
    void *library = dlopen(named ? wish : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);

    *why = 0;
    if (!library)
        std::snprintf(why, size, "%s", dlerror());
    else if (!load(library))
        std::snprintf(why, size, "the library lacks a function of cuDNN 9's backend");
    else if (size_t version = api.GetVersion(); version < OLDEST)
        std::snprintf(why, size, "version %zu.%zu.%zu: want 9.16 or later", version / 10000,
                      version / 100 % 100, version % 100);
}

static tn_status connect(char *why, size_t size)
{
    int major = 0, minor = 0;
    dnn_handle made = nullptr;
    const int device = tni_cuda_device();

    if (tn_status failed =
            TN_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)))
        return failed;
    if (tn_status failed =
            TN_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device)))
        return failed;
    const char *call = "cudnnCreate";
    dnn_status status = api.Create(&made);
    if (status == 0) {
        call = "cudnnSetStream";
        status = api.SetStream(made, tni_cuda_stream);
        if (status != 0) api.Destroy(made);
    }
    if (status != 0 && !is_refusal(status)) return report(status, call);
    if (status != 0) std::snprintf(why, size, "%s: %s", call, api.GetErrorString(status));
    handle = status == 0 ? made : nullptr;
    capability = 10 * major + minor;
    return TN_OK;
}

static tn_status open_library()
{
    char why[256];
    const char *wish = std::getenv("TN_CUDNN");
    std::lock_guard<std::mutex> hold(planning);

    if (asked || (wish && std::strcmp(wish, "off") == 0)) {
        asked = true;
        return TN_OK;
    }
    find(wish, why, sizeof why);
    if (!*why)
        if (tn_status failed = connect(why, sizeof why)) return failed;
    asked = true;
    if (wish && std::strcmp(wish, "show") == 0)
        std::fprintf(stderr, "tenon: cuDNN: %s\n", *why ? why : "in use");
    return TN_OK;
}

tn_status tni_cudnn_ready(int *cc)
{
    *cc = 0;
    if (!asked) {
        if (tni_cuda_capturing()) return TN_OK;
        if (tn_status failed = tni_cuda_ready()) return failed;
        if (tn_status failed = open_library()) return failed;
    }
    if (handle) *cc = capability;
    return handle ? tni_cuda_launching("cudnn") : TN_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

void dnn_add(dnn_key *key, int64_t number)
{
    key->number[key->n++] = number;
}

void dnn_add(dnn_key *key, const tni_array *x)
{
    dnn_add(key, x->dtype);
    for (int i = 0; i < x->rank; i++) {
        dnn_add(key, x->size[i]);
        dnn_add(key, x->stride[i]);
    }
}

static tn_status make_plan(const dnn_request *want, dnn_plan *plan)
{
    dnn_graph *g = static_cast<dnn_graph *>(std::calloc(1, sizeof *g));
    if (!g) return tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory for a graph of cuDNN");
    g->api = &api;
    g->handle = handle;
    g->fresh = DNN_VIRTUAL;
    want->describe(g, want->of);
    *plan = dnn_choose(g);
    dnn_status status = g->status;
    const char *call = g->failed;
    dnn_drop(g);
    std::free(g);
    if (status != 0 && !is_refusal(status)) return report(status, call);
    if (!plan->plan || plan->workspace <= MOST_WORKSPACE) return TN_OK;
    api.BackendDestroyDescriptor(plan->plan);
    *plan = dnn_plan();
    return TN_OK;
}

tn_status tni_cudnn_plan(const dnn_request *want, const dnn_plan **plan)
{
    const size_t nbytes = static_cast<size_t>(want->key->n) * sizeof(int64_t);
    std::lock_guard<std::mutex> hold(planning);

    *plan = nullptr;
    for (int i = 0; i < n_plans; i++) {
        if (plans[i].key.n != want->key->n ||
            std::memcmp(plans[i].key.number, want->key->number, nbytes) != 0)
            continue;
        if (plans[i].plan.plan) *plan = &plans[i].plan;
        return TN_OK;
    }
    if (n_plans == PLANS || tni_cuda_capturing()) return TN_OK;
    dnn_plan made;
    if (tn_status failed = make_plan(want, &made)) return failed;
    plans[n_plans].key = *want->key;
    plans[n_plans].plan = made;
    if (made.plan) *plan = &plans[n_plans].plan;
    n_plans++;
    return TN_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* What a plan is run with; *call: what failed. */
static dnn_status fill(dnn_descriptor pack, int n, const dnn_operand *operands, void *workspace,
                       const char **call)
{
    int64_t id[OPERANDS];
    const void *data[OPERANDS];

    for (int i = 0; i < n; i++) {
        id[i] = operands[i].id;
        data[i] = operands[i].data;
    }
    *call = "cudnnBackendSetAttribute";
    dnn_status status =
        api.BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, n, id);
    if (status == 0)
        status = api.BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                         DNN_TYPE_VOID_PTR, n, data);
    if (status == 0)
        status = api.BackendSetAttribute(pack, DNN_ATTR_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR,
                                         1, &workspace);
    if (status != 0) return status;
    *call = "cudnnBackendFinalize";
    return api.BackendFinalize(pack);
}

static void forget(const dnn_plan *plan)
{
    std::lock_guard<std::mutex> hold(planning);
    for (kept_plan &p : plans)
        if (&p.plan == plan) p.plan.plan = nullptr; /* a graph may hold its kernels: not freed */
}

tn_status tni_cudnn_run(const dnn_plan *plan, int n, const dnn_operand *operands, bool *done)
{
    tni_cuda_scratch workspace;
    dnn_descriptor pack = nullptr;
    const char *call = "cudnnBackendCreateDescriptor";

    *done = false;
    if (tn_status failed = workspace.borrow(static_cast<size_t>(plan->workspace))) return failed;
    std::unique_lock<std::mutex> hold(running);
    dnn_status status = api.BackendCreateDescriptor(DNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == 0) status = fill(pack, n, operands, workspace.at, &call);
    if (status == 0) {
        call = "cudnnBackendExecute";
        status = api.BackendExecute(handle, plan->plan, pack);
    }
    if (pack) api.BackendDestroyDescriptor(pack);
    hold.unlock();
    *done = status == 0;
    if (status == 0) return TN_OK;
    if (!is_refusal(status)) return report(status, call);
    forget(plan);
    return TN_OK;
}
