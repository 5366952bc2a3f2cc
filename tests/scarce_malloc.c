/* scarce_malloc.c - this program's own malloc and the like, which call the C library's or
 * refuse. */
#include "scarce.h"

#include <errno.h>
#include <stdlib.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static _Atomic int64_t left = -1;
_Atomic int64_t *malloc_left = &left;
_Atomic int64_t malloc_refused;
bool malloc_for_good;

static bool refuse(void)
{
    if (left < 0) return false;
    if (left > 0) {
        left--;
        return false;
    }
    if (!malloc_for_good) left = -1;
    malloc_refused++;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return refuse() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __libc_calloc(n, size);
}
void *realloc(void *block, size_t n)
{
    return refuse() ? NULL : __libc_realloc(block, n);
}
void *aligned_alloc(size_t alignment, size_t n)
{
    return refuse() ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void **block, size_t alignment, size_t n)
{
    *block = refuse() ? NULL : __libc_memalign(alignment, n);
    return *block ? 0 : ENOMEM;
}
