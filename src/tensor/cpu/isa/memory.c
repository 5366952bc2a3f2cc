/*
 * memory.c - memory of the CPU backend: the library's allocator; host and device are the same.
 */
#include <string.h>

#include "tensor/cpu/isa/slots.h"

tn_status K(tni_cpu_alloc)(size_t nbytes, void **block)
{
    *block = tni_alloc(nbytes);
    return *block ? TN_OK : TN_E_NOMEM;
}

void K(tni_cpu_free)(void *block, size_t nbytes)
{
    tni_free(block, nbytes);
}

tn_status K(tni_cpu_upload)(void *device, const void *host, size_t nbytes)
{
    if (nbytes > 0) memcpy(device, host, nbytes);
    return TN_OK;
}

tn_status K(tni_cpu_download)(void *host, const void *device, size_t nbytes)
{
    if (nbytes > 0) memcpy(host, device, nbytes);
    return TN_OK;
}

tn_status K(tni_cpu_synchronize)(void)
{
    return TN_OK;
}
