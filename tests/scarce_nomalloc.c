/* scarce_nomalloc.c - replaces scarce_malloc.c where a sanitizer has a malloc of its own. */
#include "scarce.h"

_Atomic int64_t *malloc_left;
_Atomic int64_t malloc_refused;
bool malloc_for_good;
_Atomic size_t malloc_most;
