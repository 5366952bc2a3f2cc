/*
 * limits.c - what readers of files accept, for the whole process.
 *
 * A legal header of 100 MB can hold millions of tensors, so the default limits are far lower; the
 * caller can raise them.
 */
#include "io/io.h"

#define DEFAULT_BYTES (16 << 20)
#define DEFAULT_TENSORS 65536
#define DEFAULT_INFLATED (256 << 20) /* chosen */
#define DEFAULT_RATIO 64 /* chosen: far above images, far below what deflate can do, 1032 */
#define MOST 100000000   /* the reference reader's own limit on bytes */

static _Atomic int64_t header_bytes = DEFAULT_BYTES;
static _Atomic int64_t tensors = DEFAULT_TENSORS;
static _Atomic int64_t inflated_bytes; /* 0: by the file's size */

tn_file_limits tn_get_file_limits(void)
{
    return (tn_file_limits){ header_bytes, tensors, inflated_bytes };
}

int64_t tni_inflated_limit(int64_t file_bytes)
{
    if (inflated_bytes) return inflated_bytes;
    int64_t in_proportion;
    if (__builtin_mul_overflow(file_bytes, DEFAULT_RATIO, &in_proportion)) return INT64_MAX;
    return TNI_MAX(in_proportion, (int64_t)DEFAULT_INFLATED);
}

tn_status tn_set_file_limits(tn_file_limits limits)
{
    if (limits.header_bytes < 0 || limits.header_bytes > MOST || limits.tensors < 0 ||
        limits.tensors > MOST || limits.inflated_bytes < 0)
        return tni_error(TN_E_INVALID,
                         "tn_set_file_limits: %" PRId64 " bytes, %" PRId64 " tensors, %" PRId64
                         " inflated bytes: want 0 and up, and at most %d of the first two",
                         limits.header_bytes, limits.tensors, limits.inflated_bytes, MOST);
    header_bytes = limits.header_bytes ? limits.header_bytes : DEFAULT_BYTES;
    tensors = limits.tensors ? limits.tensors : DEFAULT_TENSORS;
    inflated_bytes = limits.inflated_bytes;
    return TN_OK;
}
