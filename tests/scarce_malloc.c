/* scarce_malloc.c - this program's own malloc and the like, which call the C library's or
 * refuse. */
#include "scarce.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static _Atomic int64_t left = -1;
_Atomic int64_t *malloc_left = &left;
_Atomic int64_t malloc_refused;
bool malloc_for_good;
_Atomic size_t malloc_most;

/* Code of a library that does not survive a refusal, which is its own affair: OpenBLAS 0.3.21's
 * small kernels write to a NULL from malloc, C++ exceptions pass through C functions, and OpenMP's
 * runtime and the loader, at a thread's first use of them, end the process. */
static bool foreign(const void *code)
{
    static const char *const frail[] = { "libopenblas", "libstdc++", "libgomp", "libomp",
                                         "ld-linux" };
    Dl_info of;
    if (!dladdr(code, &of) || !of.dli_fname) return false;
    for (size_t i = 0; i < sizeof frail / sizeof frail[0]; i++)
        if (strstr(of.dli_fname, frail[i])) return true;
    return false;
}

static bool refuse(const void *code, size_t n)
{
    if (n > malloc_most) malloc_most = n;
    if (left < 0 || (left == 0 && foreign(code))) return false;
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
    return refuse(__builtin_return_address(0), n) ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return refuse(__builtin_return_address(0), n * size) ? NULL : __libc_calloc(n, size);
}
void *realloc(void *block, size_t n)
{
    return refuse(__builtin_return_address(0), n) ? NULL : __libc_realloc(block, n);
}
void *aligned_alloc(size_t alignment, size_t n)
{
    return refuse(__builtin_return_address(0), n) ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void **block, size_t alignment, size_t n)
{
    *block = refuse(__builtin_return_address(0), n) ? NULL : __libc_memalign(alignment, n);
    return *block ? 0 : ENOMEM;
}
