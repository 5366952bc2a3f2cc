/*
 * module.cu - the CUDA module's door. It has no kernels yet, so it counts the devices, says so, and gives
 * no table: the core then reports its reason, and CPU programs go on untouched.
 */
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

#include "cuda/module.h"

extern "C" __attribute__((visibility("default"))) const tni_backend *
tenon_cuda_open(const tni_host *host, const char *build_id, char *why, size_t size)
{
    int devices = 0;
    cudaError_t status;

    (void)host;
    if (std::strcmp(build_id, TNI_BUILD_ID) != 0) {
        std::snprintf(why, size, "the CUDA module is of build \"%s\", the library of \"%s\": want one build",
                      TNI_BUILD_ID, build_id);
        return nullptr;
    }
    status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess)
        std::snprintf(why, size, "no CUDA device: %s (error %d)", cudaGetErrorString(status), (int)status);
    else
        std::snprintf(why, size, "%d CUDA device%s found, but this version has no CUDA kernels yet", devices,
                      devices == 1 ? "" : "s");
    return nullptr;
}
