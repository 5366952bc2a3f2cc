/* index.h - shared by kernels that take an index or make one: an element moves, an index is
 * checked. */
#pragma once

#include "tensor/cpu/cpu.h"

static inline void move(char *to, const char *from, size_t size)
{
    switch (size) { /* constant sizes: a load and a store */
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    default: memcpy(to, from, size);
    }
}

/* The message starts with "index": the op puts its name before it. */
static inline tn_status bad_index(int64_t value, int64_t position, int64_t size)
{
    if (size == 0)
        return tni_error(TN_E_INDEX, "index %" PRId64 " at position %" PRId64 ": the axis is empty",
                         value, position);
    return tni_error(TN_E_INDEX, "index %" PRId64 " at position %" PRId64 ": want 0..%" PRId64,
                     value, position, size - 1);
}

/* Checks every index (0 to size - 1) before anything is written. */
static inline tn_status tni_check_index(const tni_array *index, int64_t size)
{
    int64_t n = tni_array_numel(index);
    int last = index->rank - 1;
    int64_t inner = last >= 0 ? index->size[last] : 1, step = last >= 0 ? index->stride[last] : 1;
    for (int64_t i = 0; i < n; i += inner) {
        const int64_t *id = index->data;
        int64_t row = i / inner;
        for (int d = last - 1; d >= 0; d--) {
            id += row % index->size[d] * index->stride[d];
            row /= index->size[d];
        }
        for (int64_t j = 0; j < inner; j++)
            if (id[j * step] < 0 || id[j * step] >= size)
                return bad_index(id[j * step], i + j, size);
    }
    return TN_OK;
}
