/* array.c - blocks of several items, growing arrays, and binary search in sorted ones. */
#include "base/base.h"

void *tni_alloc_n(size_t n, size_t size)
{
    size_t nbytes;
    return tni_alloc(tni_mul_size(n, size, &nbytes) ? nbytes : SIZE_MAX); /* SIZE_MAX is refused */
}

void *tni_calloc_n(size_t n, size_t size)
{
    void *block = tni_alloc_n(n, size);
    if (block) memset(block, 0, n * size);
    return block;
}

bool tni_grow(void *items, size_t *capacity, size_t n, size_t more, size_t size)
{
    enum { FIRST_ITEMS = 4, FIRST_BYTES = 256 }; /* the first block: the larger of the two */
    size_t needed, wanted = *capacity ? 2 * *capacity : TNI_MAX(FIRST_ITEMS, FIRST_BYTES / size);
    if (!tni_add_size(n, more, &needed)) needed = SIZE_MAX;
    wanted = TNI_MAX(wanted, needed);
    void *larger = tni_alloc_n(wanted, size);
    if (!larger) return false;
    void *old;
    memcpy(&old, items, sizeof old); /* through bytes: the pointer may be of any type */
    if (n) memcpy(larger, old, n * size);
    tni_free(old, *capacity * size);
    memcpy(items, &larger, sizeof larger);
    *capacity = wanted;
    return true;
}

void tni_room_free(void *items, size_t *capacity, size_t size)
{
    void *block;
    memcpy(&block, items, sizeof block);
    tni_free(block, *capacity * size);
    memset(items, 0, sizeof block);
    *capacity = 0;
}

size_t tni_upto(const int64_t *number, size_t size, size_t n, int64_t x)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int64_t there;
        memcpy(&there, (const char *)number + middle * size, sizeof there);
        if (there <= x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
