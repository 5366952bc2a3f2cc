/* fuzz_npy.c - any bytes as a file of NumPy's. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t sum;
    tn_scope scope = tn_scope_begin();
    tn_tensor *t = tn_npy_load(fuzz_file(data, size));
    if (t)
        sum += tn_hash(t);
    else
        fuzz_refused();
    tn_error_clear();
    tn_scope_end(scope);
    return (int)(sum & 0);
}
