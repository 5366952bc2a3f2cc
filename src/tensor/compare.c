/*
 * compare.c - comparing tensors or runs: a hash of the bits, the largest difference of the values.
 */
#include "base/map.h"
#include "tensor/internal.h"

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
    const size_t nbytes = tni_bytes_of(t);
    TNI_ITEMS(char, values, nbytes);
    if (!values || tn_copy_out(t, values, nbytes, t->dtype) != TN_OK) return 0;
    return tni_hash(hash, values, nbytes);
}

typedef union either {
    double f;
    int64_t i;
} either;

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
    size_t n = (size_t)tni_shape_numel(&a->shape), nbytes = n * sizeof(either);
    TNI_ITEMS(either, x, n);
    TNI_ITEMS(either, y, n);
    if (!x || !y || tn_copy_out(a, x, nbytes, dtype) != TN_OK ||
        tn_copy_out(b, y, nbytes, dtype) != TN_OK)
        return NAN;
    double largest = 0.0;
    for (size_t i = 0; i < n && !isnan(largest); i++) {
        int64_t p = x[i].i, q = y[i].i;
        double d = !whole  ? difference(x[i].f, y[i].f)
                   : p > q ? (double)((uint64_t)p - (uint64_t)q)
                           : (double)((uint64_t)q - (uint64_t)p);
        if (isnan(d) || d > largest) largest = d;
    }
    return largest;
}
