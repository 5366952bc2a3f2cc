/*
 * backend.c - which backend serves a device. The CPU's is always there; the CUDA module is opened the
 * first time a CUDA device is asked for.
 */
#include "tensor/internal.h"

tn_device tn_cpu(void)
{
    return (tn_device){TN_CPU, 0};
}

tn_device tn_cuda(int index)
{
    return (tn_device){TN_CUDA, index};
}

const char *tn_cuda_why(void)
{
    return "this version of tenon has no CUDA backend yet";
}

bool tn_cuda_available(void)
{
    return false;
}

const tni_backend *tni_backend_for(tn_device device)
{
    if (device.type == TN_CPU)
        return tni_cpu_backend();
    return tni_fail(TN_E_DEVICE, "device cuda:%d: %s: want tn_cpu(), or tn_cuda_available() asked first",
                    device.index, tn_cuda_why());
}
