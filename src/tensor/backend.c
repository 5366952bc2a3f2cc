/*
 * backend.c - the backend of each device. The CPU's is always there. The CUDA module is opened the
 * first time a CUDA device is asked for (module_file.c says where it is looked for): used, or asked
 * about. What a program on the CPU may call as well, such as tn_cuda_synchronize, does not open it.
 */
#include <dlfcn.h>

#include "tensor/cuda_module.h"
#include "tensor/internal.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tni_cuda_module *cuda;
static char why[512];
static atomic_bool asked; /* for a CUDA device: cuda and why stay as they are */

static pthread_mutex_t tf32_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool tf32; /* cuBLAS's last setting, or its first one before a device was asked for */

tn_device tn_cpu(void)
{
    return (tn_device){ TN_CPU, 0 };
}

tn_device tn_cuda(int index)
{
    return (tn_device){ TN_CUDA, index };
}

static const char *op_running(void)
{
    return tni_op_running;
}

/* The first kernel that a backend lacks; NULL: none, so ops need not check. */
static const char *missing_kernel(const tni_backend *b)
{
#define LACKS(name) !b->name ? #name:
#define LACKS_TYPED(name, ...) LACKS(name)
    return TNI_KERNELS(LACKS, LACKS, LACKS_TYPED, LACKS_TYPED, LACKS_TYPED) NULL;
}

/* Asked before the module is opened, because CUDA's libraries come with it: they would cost 150 MiB
 * and 60 ms even where there is no GPU. A module that the environment names may need no driver. */
static bool has_driver(void)
{
    return getenv("TN_CUDA_MODULE") || dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

static void open_module(void)
{
    static const tni_host host = { .fail = tni_error, .op = op_running };
    char reason[sizeof why - sizeof "the CUDA module "];
    if (!has_driver()) {
        snprintf(why, sizeof why, "no CUDA device: no NVIDIA driver: %.400s", dlerror());
        return;
    }
    void *symbol = tni_open_module("TN_CUDA_MODULE", "cuda/", TNI_CUDA_FILE, TNI_CUDA_SYMBOL,
                                   reason, sizeof reason);
    if (!symbol) {
        snprintf(why, sizeof why, "the CUDA module %s", reason);
        return;
    }
    tni_cuda_open open;
    memcpy(&open, &symbol, sizeof open);
    cuda = open(&host, TNI_BUILD_ID, why, sizeof why);
    const char *missing = cuda ? missing_kernel(&cuda->backend) : NULL;
    if (missing) {
        snprintf(why, sizeof why, "the CUDA module has no kernel %s", missing);
        cuda = NULL;
    }
}

static void open_cuda(void)
{
    open_module();
    pthread_mutex_lock(&tf32_lock);
    if (cuda && tf32) cuda->allow_tf32(true); /* cannot fail before the first product */
    atomic_store(&asked, true);
    pthread_mutex_unlock(&tf32_lock);
}

bool tni_cuda_asked(void)
{
    return atomic_load(&asked);
}

/* Whether the process asked for a device and has one: else there is no GPU work or memory. */
static bool in_use(void)
{
    return tni_cuda_asked() && cuda;
}

const char *tn_cuda_why(void)
{
    pthread_once(&once, open_cuda);
    return why;
}

bool tn_cuda_available(void)
{
    pthread_once(&once, open_cuda);
    return cuda != NULL;
}

const tni_backend *tni_backend_for(tn_device device)
{
    if (device.type == TN_CPU) return tni_cpu_backend();
    if (!tn_cuda_available())
        return tni_fail(TN_E_DEVICE,
                        "device cuda:%d: %s: want tn_cpu(), or tn_cuda_available() asked first",
                        device.index, tn_cuda_why());
    return cuda->use(device.index) == TN_OK ? &cuda->backend : NULL;
}

tn_status tni_cuda_stream_of(tn_device device, void **stream)
{
    return tni_backend_for(device) ? cuda->stream(stream) : tni_pending();
}

const struct tni_graphs *tni_graphs_for(tn_device device)
{
    return device.type == TN_CUDA && tn_cuda_available() ? cuda->graphs : NULL;
}

/* ---- what only GPUs have --------------------------------------------------------------------- */

int tn_cuda_device_count(void)
{
    return tn_cuda_available() ? cuda->devices : 0;
}

tn_status tn_cuda_get_properties(int index, tn_cuda_properties *properties)
{
    if (!properties) return tni_poison("tn_cuda_get_properties", "properties");
    if (!tn_cuda_available())
        return tni_error(TN_E_DEVICE, "tn_cuda_get_properties: device %d: %s", index,
                         tn_cuda_why());
    return cuda->properties(index, properties);
}

tn_cuda_memory_stats tn_cuda_memory(void)
{
    tn_cuda_memory_stats stats = { 0 };
    if (tn_cuda_available() && cuda->memory(&stats) != TN_OK) stats = (tn_cuda_memory_stats){ 0 };
    return stats;
}

void tn_cuda_memory_reset_peak(void)
{
    if (in_use()) cuda->memory_reset_peak();
}

void tn_cuda_memory_trim(void)
{
    if (in_use()) cuda->memory_trim();
}

tn_status tn_cuda_synchronize(void)
{
    return in_use() ? cuda->backend.synchronize() : TN_OK;
}

tn_status tn_set_tf32(bool allow)
{
    tn_status status = TN_OK;
    pthread_mutex_lock(&tf32_lock);
    if (in_use()) status = cuda->allow_tf32(allow);
    if (status == TN_OK) tf32 = allow;
    pthread_mutex_unlock(&tf32_lock);
    return status;
}

bool tn_tf32(void)
{
    return atomic_load(&tf32) && tn_cuda_available();
}
