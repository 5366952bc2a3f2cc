/* access.c - a tensor's properties and values for the caller: sizes, names, items, copies out. */
#include "tensor/internal.h"

TNI_AFTER_ERROR(int64_t, no_size, TN_NO_SIZE)

int tn_rank(const tn_tensor *t)
{
    return t ? t->shape.rank : -1;
}

int64_t tn_size(const tn_tensor *t, int axis)
{
    if (tni_absent(t)) return no_size(tni_poison("tn_size", "t"));
    axis = tni_axis("tn_size", axis, t->shape.rank);
    return axis < 0 ? TN_NO_SIZE : t->shape.size[axis];
}

int64_t tn_numel(const tn_tensor *t)
{
    if (tni_absent(t)) return no_size(tni_poison("tn_numel", "t"));
    return tni_shape_numel(&t->shape);
}

tn_shape tn_shape_get(const tn_tensor *t)
{
    return t ? t->shape : (tn_shape){ .rank = -1 };
}

int64_t tn_stride(const tn_tensor *t, int axis)
{
    if (tni_absent(t)) return tni_minus_one(tni_poison("tn_stride", "t"));
    axis = tni_axis("tn_stride", axis, t->shape.rank);
    return axis < 0 ? -1 : t->stride[axis];
}

tn_dtype tn_dtype_of(const tn_tensor *t)
{
    return t ? t->dtype : TN_F32;
}

tn_device tn_device_of(const tn_tensor *t)
{
    return t && t->storage ? t->storage->device : tn_cpu();
}

bool tn_is_contiguous(const tn_tensor *t)
{
    return t && !tni_none(t) && tni_is_dense(t);
}

bool tn_is_none(const tn_tensor *t)
{
    return t == TN_NONE;
}

bool tn_same_storage(const tn_tensor *a, const tn_tensor *b)
{
    return a && b && a->storage && a->storage == b->storage;
}

uint64_t tn_version(const tn_tensor *t)
{
    return t && t->storage ? atomic_load_explicit(&t->storage->version, memory_order_relaxed) : 0;
}

tn_status tn_set_name(tn_tensor *t, const char *name)
{
    if (tni_absent(t) || !name) return tni_poison(__func__, tni_absent(t) ? "t" : "name");
    char cut[64];
    snprintf(cut, sizeof cut, "%s", name);
    char *copy = tni_strdup(cut);
    if (!copy) return TN_E_NOMEM;
    tni_strfree(t->name);
    t->name = copy;
    return TN_OK;
}

const char *tn_name(const tn_tensor *t)
{
    return t && t->name ? t->name : "";
}

/* ---- text for messages ----------------------------------------------------------------------- */

enum { TEXT_SIZE = sizeof((tni_texts *)NULL)->shape[0] };

static char *next_text(void)
{
    tni_texts *mine = tni_texts_mine();
    return mine ? mine->shape[mine->turn++ % (sizeof mine->shape / TEXT_SIZE)] : NULL;
}

static void write_shape(char *text, size_t size, const tn_shape *shape)
{
    snprintf(text, size, "[");
    if (shape->rank < 0 || shape->rank > TN_MAX_RANK) { /* made by hand: it has no sizes to show */
        snprintf(text, size, "[rank %d]", shape->rank);
        return;
    }
    for (int i = 0; i < shape->rank; i++)
        tni_text_add(text, size, i ? ",%" PRId64 : "%" PRId64, shape->size[i]);
    tni_text_add(text, size, "]");
}

const char *tni_shape_text(const tn_shape *shape)
{
    char *text = next_text();
    if (text) write_shape(text, TEXT_SIZE, shape);
    return text ? text : "[...]";
}

const char *tni_text(const tn_tensor *t)
{
    if (!t) return "NULL";
    if (tni_none(t)) return "TN_NONE";
    char *text = next_text();
    if (!text) return tn_name(t);
    int n = snprintf(text, TEXT_SIZE, "%s%s", tn_name(t), t->name ? " " : "");
    write_shape(text + n, TEXT_SIZE - (size_t)n, &t->shape);
    return text;
}

/* ---- values ---------------------------------------------------------------------------------- */

tn_status tni_write_host(const tn_tensor *t, const void *data, size_t nbytes, tn_dtype dtype)
{
    const tni_backend *backend = tni_backend_of(t);
    tni_array to = tni_array_of(t), from = to;
    from.dtype = dtype;
    from.data = (void *)(uintptr_t)data; /* read only: kernels do not write x */
    tni_dense_strides(&t->shape, from.stride);
    if (t->storage->device.type == TN_CPU) return backend->copy(&(tni_copy){ .y = to, .x = from });
    TNI_TRY(backend->alloc(nbytes, &from.data));
    tn_status status = backend->upload(from.data, data, nbytes);
    if (status == TN_OK) status = backend->copy(&(tni_copy){ .y = to, .x = from });
    backend->free(from.data, nbytes);
    return status;
}

tn_status tni_read_host(const tn_tensor *t, tni_array x, tni_array as, void *data, size_t nbytes)
{
    const tni_backend *backend = tni_backend_of(t);
    as.data = data;
    if (t->storage->device.type == TN_CPU) return backend->copy(&(tni_copy){ .y = as, .x = x });
    TNI_TRY(backend->alloc(nbytes, &as.data));
    tn_status status = backend->copy(&(tni_copy){ .y = as, .x = x });
    if (status == TN_OK) status = backend->download(data, as.data, nbytes);
    backend->free(as.data, nbytes);
    return status;
}

/* One element as a double. */
static double element(const tn_tensor *t, int64_t index)
{
    double value;
    if (tni_host_refused("tn_item", "reads a value", "it read after tn_capture_run")) return NAN;
    tni_array x = { .data = (char *)tni_data(t) + index * (int64_t)tn_dtype_size(t->dtype),
                    .dtype = t->dtype };
    return tni_read_host(t, x, (tni_array){ .dtype = TN_F64 }, &value, sizeof value) == TN_OK
               ? value
               : NAN;
}

double tn_item(const tn_tensor *t)
{
    TNI_HOLD_TRAPS;
    if (tni_absent(t)) return tni_nan(tni_poison("tn_item", "t"));
    if (tni_shape_numel(&t->shape) != 1)
        return tni_nan(tni_error(TN_E_SHAPE, "tn_item: %s has %" PRId64 " elements: want one",
                                 tni_text(t), tni_shape_numel(&t->shape)));
    return element(t, 0);
}

double tn_at(const tn_tensor *t, const int64_t *index, int n_index)
{
    TNI_HOLD_TRAPS;
    int64_t at = 0;
    if (tni_absent(t) || (!index && n_index > 0))
        return tni_nan(tni_poison("tn_at", t && !tni_none(t) ? "index" : "t"));
    if (n_index != t->shape.rank)
        return tni_nan(tni_error(TN_E_SHAPE,
                                 "tn_at: an index of %d numbers into %s: want %d, one per axis",
                                 n_index, tni_text(t), t->shape.rank));
    for (int i = 0; i < t->shape.rank; i++) {
        if (index[i] < 0 || index[i] >= t->shape.size[i])
            return tni_nan(tni_error(TN_E_INDEX,
                                     "tn_at: index %" PRId64 " of axis %d of %s: want 0..%" PRId64,
                                     index[i], i, tni_text(t), t->shape.size[i] - 1));
        at += index[i] * t->stride[i];
    }
    return element(t, at);
}

void tni_bump_rewritten(tn_tensor *t)
{
    tni_storage *s = t->storage;
    tni_bump_version(t);
    if (tni_bytes_of(t) != s->nbytes) return;
    atomic_store_explicit(&s->rewritten, atomic_load_explicit(&s->version, memory_order_relaxed),
                          memory_order_relaxed);
}

static bool readable(const char *function, const tn_tensor *t)
{
    if (tni_absent(t)) return tni_false(tni_poison(function, "t"));
    if (t->storage->device.type != TN_CPU)
        return tni_false(tni_error(
            TN_E_DEVICE, "%s: %s is on a GPU: want tn_copy_out, or tn_to(t, tn_cpu()) first",
            function, tni_text(t)));
    if (!tni_is_dense(t))
        return tni_false(tni_error(
            TN_E_SHAPE,
            "%s: %s is a view with gaps or another order: want tn_copy_out, or tn_contiguous first",
            function, tni_text(t)));
    return true;
}

const void *tn_data(const tn_tensor *t)
{
    return readable("tn_data", t) ? tni_data(t) : NULL;
}

void *tn_data_mut(tn_tensor *t)
{
    if (!readable("tn_data_mut", t)) return NULL;
    tni_bump_rewritten(t);
    return tni_data(t);
}

size_t tni_bytes_of(const tn_tensor *t)
{
    return t ? (size_t)tni_shape_numel(&t->shape) * tn_dtype_size(t->dtype) : 0;
}

tn_status tni_bytes_fit(const char *function, const tn_tensor *t, size_t nbytes, tn_dtype dtype)
{
    if (tn_dtype_size(dtype) == 0)
        return tni_error(TN_E_DTYPE, "%s: dtype %d: want one of tn_dtype", function, (int)dtype);
    size_t wanted = (size_t)tni_shape_numel(&t->shape) * tn_dtype_size(dtype);
    if (nbytes != wanted)
        return tni_error(TN_E_SHAPE, "%s: %zu bytes for %s as %s: want %zu", function, nbytes,
                         tni_text(t), tn_dtype_name(dtype), wanted);
    return TN_OK;
}

tn_status tn_copy_out(const tn_tensor *t, void *out, size_t nbytes, tn_dtype dtype)
{
    TNI_HOLD_TRAPS;
    if (tni_absent(t) || (!out && nbytes))
        return tni_poison(__func__, t && !tni_none(t) ? "out" : "t");
    tn_status status;
    if ((status = tni_bytes_fit(__func__, t, nbytes, dtype)) != TN_OK || nbytes == 0) return status;
    if (tni_host_refused(__func__, "reads values", "them read after tn_capture_run"))
        return TN_E_STATE;
    tni_array from = tni_array_of(t), to = from;
    to.dtype = dtype;
    tni_dense_strides(&t->shape, to.stride);
    if (t->storage->device.type != TN_CPU && t->dtype == dtype && tni_is_dense(t))
        return tni_backend_of(t)->download(out, from.data, nbytes); /* also when it is full */
    return tni_read_host(t, from, to, out, nbytes);
}
