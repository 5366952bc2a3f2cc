/*
 * limits.c - what readers of files accept, for the whole process.
 *
 * A legal header of 100 MB makes millions of tensors, so far less is read unless the caller
 * asks for more.
 */
#include "io/io.h"

#define DEFAULT_BYTES (16 << 20)
#define DEFAULT_TENSORS 65536
#define MOST 100000000 /* the reference reader's own limit on bytes */

static _Atomic int64_t header_bytes = DEFAULT_BYTES;
static _Atomic int64_t tensors = DEFAULT_TENSORS;

tn_file_limits tni_file_limits(void)
{
    return (tn_file_limits){ header_bytes, tensors };
}

tn_status tn_set_file_limits(tn_file_limits limits)
{
    if (limits.header_bytes < 0 || limits.header_bytes > MOST || limits.tensors < 0 ||
        limits.tensors > MOST)
        return tni_error(TN_E_INVALID,
                         "tn_set_file_limits: %lld bytes, %lld tensors: 0 to %d of each are wanted",
                         (long long)limits.header_bytes, (long long)limits.tensors, MOST);
    header_bytes = limits.header_bytes ? limits.header_bytes : DEFAULT_BYTES;
    tensors = limits.tensors ? limits.tensors : DEFAULT_TENSORS;
    return TN_OK;
}
