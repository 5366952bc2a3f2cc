/* scarce.c - an allocator for the library's hook that fails where a test says. */
#include "scarce.h"

#include <stdlib.h>

scarce_memory scarce = { .most = SIZE_MAX };

static void *scarce_alloc(void *user, size_t size)
{
    void *block = NULL;
    (void)user;
    scarce.requests++;
    if (size > scarce.most) return NULL;
    if (scarce.failing && scarce.requests == scarce.failing) return NULL;
    if (scarce.failing && scarce.requests > scarce.failing && scarce.sticky) return NULL;
    if (posix_memalign(&block, 64, size) != 0) return NULL;
    scarce.blocks++;
    scarce.bytes += (int64_t)size;
    return block;
}

static void scarce_free(void *user, void *block, size_t size)
{
    (void)user;
    scarce.bytes -= (int64_t)size;
    if (--scarce.blocks < 0) scarce.foreign = true;
    free(block);
}

const tn_allocator scarce_allocator = { scarce_alloc, scarce_free, NULL };

void scarce_fail(int64_t k)
{
    scarce.requests = 0;
    scarce.failing = k;
}

void scarce_allow(int64_t n)
{
    scarce_fail(n == INT64_MAX ? 0 : n + 1);
    scarce.sticky = true;
}
