/* index.h - shared by kernels that take an index: the offsets of its elements, and their check. */
#ifndef TNI_CPU_INDEX_H
#define TNI_CPU_INDEX_H

#include "tensor/cpu/cpu.h"

/* The message starts with "index": the op puts its name before it. */
static inline tn_status bad_index(int64_t value, int64_t position, int64_t size)
{
    if (size == 0)
        return tni_error(TN_E_INDEX, "index %" PRId64 " at position %" PRId64 ": the axis is empty",
                         value, position);
    return tni_error(TN_E_INDEX, "index %" PRId64 " at position %" PRId64 ": want 0..%" PRId64,
                     value, position, size - 1);
}

/* The offset of element i (row-major) of index, in index and in other arrays of the same rank. */
static inline void locate(const tni_array *index, int64_t i, int64_t *position)
{
    for (int d = index->rank - 1; d >= 0; d--) {
        position[d] = i % index->size[d];
        i /= index->size[d];
    }
}

static inline int64_t offset_of(const tni_array *a, const int64_t *position, int skip_axis)
{
    int64_t at = 0;
    for (int d = 0; d < a->rank; d++) at += d == skip_axis ? 0 : position[d] * a->stride[d];
    return at;
}

/* Checks every index (0 to size - 1) before anything is written. */
static inline tn_status tni_check_index(const tni_array *index, int64_t size)
{
    int64_t n = tni_array_numel(index);
    const int64_t *id = index->data;
    int64_t inner = index->rank > 0 ? index->size[index->rank - 1] : 1;
    int64_t step = index->rank > 0 ? index->stride[index->rank - 1] : 1;
    int64_t position[TN_MAX_RANK] = { 0 };
    for (int64_t i = 0; i < n; i += inner) {
        locate(index, i, position);
        int64_t at = offset_of(index, position, -1);
        for (int64_t j = 0; j < inner; j++)
            if (id[at + j * step] < 0 || id[at + j * step] >= size)
                return bad_index(id[at + j * step], i + j, size);
    }
    return TN_OK;
}

#endif
