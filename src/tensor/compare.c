/*
 * compare.c - comparing tensors or runs: a hash of the bits, the largest difference of the values.
 */
#include "base/map.h"
#include "tensor/internal.h"

/* All elements as dtype in a new block of nbytes, for tni_free. NULL with a message. */
static void *values_of(const tn_tensor *t, tn_dtype dtype, size_t *nbytes)
{
    *nbytes = (size_t)tni_shape_numel(&t->shape) * tn_dtype_size(dtype); /* fits: any shape's do */
    void *values = tni_alloc(*nbytes);
    if (values && tn_copy_out(t, values, *nbytes, dtype) != TN_OK)
        return tni_free(values, *nbytes), NULL;
    return values;
}

uint64_t tn_hash(const tn_tensor *t)
{
    uint64_t hash = TNI_NO_HASH;
    if (!t) return tni_poison("tn_hash", "t"), 0;
    if (tni_none(t)) return hash;
    hash = tni_hash(hash, &(int32_t){ t->shape.rank }, sizeof(int32_t));
    hash = tni_hash(hash, t->shape.size, (size_t)t->shape.rank * sizeof *t->shape.size);
    hash = tni_hash(hash, &(int32_t){ (int32_t)t->dtype }, sizeof(int32_t));
    if (t->storage->device.type == TN_CPU && tni_is_dense(t))
        return tni_hash(hash, tni_data(t), tni_bytes_of(t));
    size_t nbytes;
    void *values = values_of(t, t->dtype, &nbytes);
    if (!values) return 0;
    hash = tni_hash(hash, values, nbytes);
    tni_free(values, nbytes);
    return hash;
}

/* |x - y| for two numbers; equal infinities or two NaNs differ by 0, one NaN gives NaN. */
static double difference(double x, double y)
{
    if (x == y || (isnan(x) && isnan(y))) return 0.0;
    return fabs(x - y);
}

double tn_max_abs_diff(const tn_tensor *a, const tn_tensor *b)
{
    TNI_HOLD_TRAPS;
    if (tni_absent(a) || tni_absent(b))
        return tni_nan(tni_poison("tn_max_abs_diff", tni_absent(a) ? "a" : "b"));
    if (!tni_shape_equal(&a->shape, &b->shape)) return NAN;
    bool whole = !tn_dtype_is_float(a->dtype) && !tn_dtype_is_float(b->dtype);
    tn_dtype dtype = whole ? TN_I64 : TN_F64;
    size_t n = (size_t)tni_shape_numel(&a->shape);
    size_t a_bytes = 0, b_bytes = 0;
    void *x = values_of(a, dtype, &a_bytes);
    void *y = x ? values_of(b, dtype, &b_bytes) : NULL;
    double largest = x && y ? 0.0 : NAN;
    for (size_t i = 0; x && y && i < n; i++) {
        double d;
        if (whole) {
            int64_t p = ((int64_t *)x)[i], q = ((int64_t *)y)[i];
            d = (double)(p > q ? (uint64_t)p - (uint64_t)q : (uint64_t)q - (uint64_t)p);
        } else {
            d = difference(((double *)x)[i], ((double *)y)[i]);
        }
        if (isnan(d) || d > largest) largest = d;
        if (isnan(d)) break;
    }
    tni_free(x, a_bytes);
    tni_free(y, b_bytes);
    return largest;
}
