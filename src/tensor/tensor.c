/*
 * tensor.c - handles and storages: making, sharing, dropping; shapes and which of them fit.
 *
 * A handle (tn_tensor) is geometry over a counted storage. Views are handles on the same storage.
 */
#include "tensor/internal.h"

tn_tensor tn_none_object;

tni_watcher tni_unsettled;
TNI_THREAD tni_watcher *tni_watching = &tni_unsettled;

static int64_t live; /* handles; guarded by the lock of memory */

int64_t tn_live_tensors(void)
{
    tni_memory_take();
    int64_t n = live;
    tni_memory_give();
    return n;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

tn_shape tn_shape_from(int rank, const int64_t *sizes)
{
    tn_shape shape = { .rank = rank };
    if (rank < 0 || rank > TN_MAX_RANK || (rank && !sizes))
        shape.rank = -1;
    else if (rank)
        memcpy(shape.size, sizes, (size_t)rank * sizeof *sizes);
    return shape;
}

int64_t tni_shape_numel(const tn_shape *shape)
{
    const uint64_t most = PTRDIFF_MAX / TNI_WIDEST;
    uint64_t n = 1;
    bool zero = false;
    if (shape->rank < 0 || shape->rank > TN_MAX_RANK) return -1;
    for (int i = 0; i < shape->rank; i++) {
        uint64_t size = (uint64_t)shape->size[i]; /* below 0: very large */
        if (size > most || __builtin_mul_overflow(n, TNI_MAX(size, 1), &n) || n > most) return -1;
        zero |= size == 0;
    }
    return zero ? 0 : (int64_t)n;
}

tn_status tni_size_failed(const char *function, const tn_shape *shape)
{
    for (int i = 0; i < TNI_MIN(shape->rank, TN_MAX_RANK); i++)
        if (shape->size[i] == TN_NO_SIZE)
            return tni_missing("%s: size %d of %s is what a failed tn_size gives: want a size",
                               function, i, tni_shape_text(shape));
    return TN_OK;
}

tn_status tni_shape_fits(const char *function, const tn_shape *shape)
{
    if (TNI_LIKELY(tni_shape_numel(shape) >= 0)) return TN_OK;
    TNI_TRY(tni_size_failed(function, shape));
    return tni_error(TN_E_SHAPE, "%s%sa tensor of shape %s: " TNI_SHAPE_WANT, function,
                     *function ? ": " : "", tni_shape_text(shape), TN_MAX_RANK);
}

void tni_dense_strides(const tn_shape *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int i = shape->rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= TNI_MAX(shape->size[i], 1);
    }
}

tn_shape tni_shape_without(const tn_shape *shape, int axis)
{
    tn_shape rest = { .rank = 0 };
    for (int i = 0; i < shape->rank; i++)
        if (i != axis) rest.size[rest.rank++] = shape->size[i];
    return rest;
}

int tni_axis(const char *function, int axis, int rank)
{
    if (rank == 0)
        return tni_minus_one(tni_error(
            TN_E_INDEX, "%s: axis %d of a single value: want a tensor with axes", function, axis));
    return tni_axis_of_any(function, axis, rank);
}

int tni_axis_of_any(const char *function, int axis, int rank)
{
    int n = rank ? rank : 1; /* a 0-d tensor has the axes -1 and 0, as in PyTorch */
    if (axis < -n || axis >= n)
        return tni_minus_one(tni_error(TN_E_INDEX,
                                       "%s: axis %d of a tensor of rank %d: want %d..%d", function,
                                       axis, rank, -n, n - 1));
    return axis < 0 ? axis + n : axis;
}

bool tni_broadcast(const tn_shape *a, const tn_shape *b, tn_shape *out)
{
    int rank = TNI_MAX(a->rank, b->rank);
    out->rank = rank;
    for (int i = 1; i <= rank; i++) {
        int64_t m = i <= a->rank ? a->size[a->rank - i] : 1;
        int64_t n = i <= b->rank ? b->size[b->rank - i] : 1;
        if (m != n && m != 1 && n != 1) return false;
        out->size[rank - i] = m == 1 ? n : m;
    }
    return true;
}

bool tni_broadcasts_to(const tn_shape *from, const tn_shape *to)
{
    tn_shape both;
    return tni_broadcast(from, to, &both) && tni_shape_equal(&both, to);
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* order: of promotion; bf16 with f16 gives f32 */
static const struct {
    char name[6];
    unsigned char size, order;
} dtypes[] = {
    [TN_BOOL] = { "bool", 1, 0 }, [TN_U8] = { "u8", 1, 1 },   [TN_I32] = { "i32", 4, 2 },
    [TN_I64] = { "i64", 8, 3 },   [TN_F16] = { "f16", 2, 4 }, [TN_BF16] = { "bf16", 2, 4 },
    [TN_F32] = { "f32", 4, 5 },   [TN_F64] = { "f64", 8, 6 },
};

size_t tn_dtype_size(tn_dtype dtype)
{
    return (unsigned)dtype < sizeof dtypes / sizeof *dtypes ? dtypes[dtype].size : 0;
}

const char *tn_dtype_name(tn_dtype dtype)
{
    bool known = (unsigned)dtype < sizeof dtypes / sizeof *dtypes;
    return known ? dtypes[dtype].name : "unknown dtype";
}

bool tn_dtype_is_float(tn_dtype dtype)
{
    return dtype == TN_F32 || dtype == TN_F64 || dtype == TN_BF16 || dtype == TN_F16;
}

tn_dtype tni_promote(tn_dtype a, tn_dtype b)
{
    if (a == b) return a;
    if (dtypes[a].order == dtypes[b].order) return TN_F32;
    return dtypes[a].order > dtypes[b].order ? a : b;
}

/* bool, integer, float: the categories of PyTorch's rule. */
static int kind_of(tn_dtype dtype)
{
    return tn_dtype_is_float(dtype) ? 2 : dtype != TN_BOOL;
}

tn_dtype tni_result_dtype(const tn_tensor *a, const tn_tensor *b)
{
    const tn_tensor *full = a->shape.rank ? a : b, *single = a->shape.rank ? b : a;
    if (a->dtype == b->dtype || full->shape.rank == 0 || single->shape.rank > 0 ||
        kind_of(single->dtype) > kind_of(full->dtype))
        return tni_promote(a->dtype, b->dtype);
    return full->dtype;
}

/* ---- storage --------------------------------------------------------------------------------- */

/* On the CPU the elements of a small tensor follow the struct in the same block. */
enum { STRUCT_SIZE = (sizeof(tni_storage) + 63) / 64 * 64, MOST_INSIDE = 1024 - STRUCT_SIZE };

static tni_storage *storage_new(size_t nbytes, tn_device device)
{
    const tni_backend *backend = tni_backend_for(device);
    bool inside = device.type == TN_CPU && nbytes <= MOST_INSIDE;
    if (!backend) return NULL;
    void *data = NULL; /* first: what is refused is not counted */
    if (!inside && backend->alloc(TNI_MAX(nbytes, 1), &data) != TN_OK) return NULL;
    tni_storage *s = tni_alloc_counted(inside ? STRUCT_SIZE + nbytes : sizeof *s, &nbytes, NULL);
    if (!s) {
        if (data) backend->free(data, TNI_MAX(nbytes, 1));
        return NULL;
    }
    *s = (tni_storage){ .refs = 1, .device = device, .backend = backend, .nbytes = nbytes };
    s->inside = inside;
    s->data = inside ? (char *)s + STRUCT_SIZE : data;
    if (TNI_UNLIKELY(tni_watching) && tni_watching->storage_made)
        tni_watching->storage_made(tni_watching, s);
    return s;
}

void tni_storage_drop(tni_storage *s)
{
    if (!tni_last(&s->refs)) return;
    if (TNI_UNLIKELY(s->gone)) s->gone(s);
    if (s->release)
        s->release(s->user);
    else if (!s->borrowed && !s->inside)
        s->backend->free(s->data, s->nbytes ? s->nbytes : 1);
    tni_free(s, s->inside ? STRUCT_SIZE + s->nbytes : sizeof *s);
}

void tni_bump_version(tn_tensor *t)
{
    if (TNI_UNLIKELY(tni_watching) && tni_watching->writes) tni_watching->writes(tni_watching, t);
    atomic_fetch_add_explicit(&t->storage->version, 1, memory_order_relaxed);
}

/* ---- handles --------------------------------------------------------------------------------- */

/* A handle over s (whose reference it takes over), in no scope; stride NULL: dense. Releases s on
 * failure. */
static inline tn_tensor *handle_new(tni_storage *s, tn_dtype dtype, const tn_shape *shape,
                                    const int64_t *stride, int64_t offset)
{
    tn_tensor *t = tni_alloc_counted(sizeof *t, NULL, &live);
    if (!t) return tni_storage_drop(s), NULL;
    atomic_init(&t->refs, 1);
    t->dtype = dtype;
    t->storage = s;
    t->offset = offset;
    tni_shape_copy(&t->shape, shape);
    t->requires_grad = false;
    t->is_parameter = t->out_index = 0;
    t->is_buffer = 0;
    t->node = NULL, t->gm = NULL, t->name = NULL;
    if (stride)
        memcpy(t->stride, stride, sizeof t->stride);
    else
        tni_dense_strides(shape, t->stride);
    if (TNI_UNLIKELY(tni_debugging)) tni_note_born(t);
    if (TNI_UNLIKELY(tni_watching) && tni_watching->handle_made)
        tni_watching->handle_made(tni_watching, t);
    return t;
}

/* function: the public function called, or "" if the caller adds its name. strided: where the
 * elements lie; NULL: dense. */
static tn_tensor *new_for(const char *function, tn_dtype dtype, const tn_shape *shape,
                          const tni_spec *strided, tn_device device)
{
    int64_t numel = tni_shape_numel(shape);
    size_t item = tn_dtype_size(dtype);
    if (TNI_UNLIKELY(numel < 0)) return tni_nothing(tni_shape_fits(function, shape));
    if (item == 0)
        return tni_fail(TN_E_DTYPE, "%s%sa tensor of dtype %d: want one of tn_dtype", function,
                        *function ? ": " : "", (int)dtype);
    if (!tni_scope_open()) return tni_nothing(tni_scope_missing(function));
    tni_storage *s = storage_new((size_t)numel * item, device);
    if (!s) return NULL;
    tn_tensor *t = handle_new(s, dtype, shape, strided ? strided->stride : NULL,
                              strided ? strided->offset : 0);
    return t ? tn_scope_adopt(t) : NULL;
}

tn_tensor *tni_new(const tni_spec *spec, tn_device device)
{
    return new_for("", spec->dtype, &spec->shape, spec->strided ? spec : NULL, device);
}

tn_tensor *tni_create(const char *function, tn_shape shape, tn_dtype dtype, tn_device device)
{
    return new_for(function, dtype, &shape, NULL, device);
}

tn_tensor *tn_empty_as(tn_shape shape, tn_dtype dtype, tn_device device)
{
    return tni_create("tn_empty_as", shape, dtype, device);
}

tn_tensor *tn_from_memory(void *data, tn_shape shape, tn_dtype dtype, void (*release)(void *user),
                          void *user)
{
    if (!data)
        return tni_fail(TN_E_INVALID, "tn_from_memory: data is NULL: want %s elements of %s",
                        tni_shape_text(&shape), tn_dtype_name(dtype));
    if (tni_shape_fits("tn_from_memory", &shape) != TN_OK) return NULL;
    if (!tn_dtype_size(dtype))
        return tni_fail(TN_E_DTYPE, "tn_from_memory: dtype %d: want one of tn_dtype", (int)dtype);
    size_t nbytes = (size_t)tni_shape_numel(&shape) * tn_dtype_size(dtype);
    if (!tni_scope_open()) return tni_nothing(tni_scope_missing("tn_from_memory"));
    tni_storage *s = tni_alloc(sizeof *s);
    if (!s) return NULL;
    /* release is set last: if making the tensor fails, the memory must stay the caller's */
    *s = (tni_storage){ .refs = 1,
                        .device = tn_cpu(),
                        .backend = tni_cpu_backend(),
                        .data = data,
                        .nbytes = nbytes,
                        .user = user,
                        .borrowed = true };
    tn_tensor *t = handle_new(s, dtype, &shape, NULL, 0);
    t = t ? tn_scope_adopt(t) : NULL;
    if (t) t->storage->release = release;
    return t;
}

tni_storage *tni_storage_keep(tni_storage *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

tn_tensor *tni_alias(const tn_tensor *t, const tni_spec *spec)
{
    if (tni_shape_fits("", &spec->shape) != TN_OK) return NULL;
    tn_tensor *a =
        handle_new(tni_storage_keep(t->storage), spec->dtype, &spec->shape,
                   spec->strided ? spec->stride : NULL, spec->strided ? spec->offset : 0);
    return a ? tni_scope_adopt("", a) : NULL;
}

tn_tensor *tni_alias_raw(const tn_tensor *t)
{
    tn_tensor *a =
        handle_new(tni_storage_keep(t->storage), t->dtype, &t->shape, t->stride, t->offset);
    /* for messages only: none when out of memory */
    if (a && t->name) a->name = tni_strdup_or_none(t->name);
    return a;
}

tn_tensor *tni_alias_all(const tn_tensor *t)
{
    tni_spec spec = { .dtype = t->dtype, .strided = true, .shape = { .rank = 1 }, .stride = { 1 } };
    spec.shape.size[0] = (int64_t)(t->storage->nbytes / tn_dtype_size(t->dtype));
    return tni_alias(t, &spec);
}

tn_tensor *tn_keep(tn_tensor *t)
{
    if (tni_gone(t)) return NULL;
    if (t && !tni_none(t)) atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

const char *(*tni_op_of)(const tn_tensor *t);

/* What to say when t is used from now on. */
static void write_epitaph(const tn_tensor *t, char *text, size_t size)
{
    const char *op = tni_op_of ? tni_op_of(t) : "";
    tn_scope scope = tni_scope_ending();
    snprintf(text, size, "a tensor is used after its end: %s of %s%s%s, ", tni_text(t),
             tn_dtype_name(t->dtype), *op ? ", made by " : "", op);
    if (scope.depth >= 0)
        tni_text_add(text, size,
                     "ended with a scope (depth %" PRId64 ", number %" PRIu64
                     "): want tn_keep before",
                     scope.depth, scope.serial);
    else
        tni_text_add(text, size, "whose last reference was dropped: want tn_keep");
}

static void drop_held(tn_tensor *t)
{
    if (t->node || t->gm) tni_graph_drop(t->node, t->gm);
    if (t->name) tni_strfree(t->name);
    tni_storage_drop(t->storage);
}

/* For TN_DEBUG: the handle alone is kept. Inlined, its text would cost each drop a large frame. */
TNI_NOINLINE static void bury(tn_tensor *t)
{
    static tni_storage empty;
    char epitaph[512];
    write_epitaph(t, epitaph, sizeof epitaph);
    drop_held(t);
    t->storage = &empty;
    t->node = NULL, t->gm = NULL, t->name = NULL;
    t->requires_grad = false;
    tni_memory_take();
    empty.backend = tni_cpu_backend();
    live--;
    tni_memory_give();
    tni_bury(t, sizeof *t, epitaph);
}

static void destroy(tn_tensor *t)
{
    if (TNI_UNLIKELY(tni_debugging)) {
        bury(t);
        return;
    }
    drop_held(t);
    tni_free_counted(t, sizeof *t, &live);
}

/* Dropping a tensor (its history, gradient, a user's release) may drop others, and they more. Those
 * wait in a list until the first is done, so a chain of any length takes no stack. Not inlined: the
 * drops that end here are few. */
TNI_NOINLINE static void destroy_listed(tn_tensor *t)
{
    static tn_tensor end;                 /* of the list */
    static TNI_THREAD tn_tensor *waiting; /* NULL: nothing is being dropped */
    bool first = !waiting;
    t->next = first ? &end : waiting;
    waiting = t;
    if (!first) return;
    while ((t = waiting) != &end) {
        waiting = t->next;
        destroy(t);
    }
    waiting = NULL;
}

void tn_drop(tn_tensor *t)
{
    if (tni_absent(t)) return;
    if (!tni_last(&t->refs)) return;
    if (t->node || t->gm || t->storage->borrowed)
        destroy_listed(t);
    else
        destroy(t);
}

void tni_swap_bytes(void *a, void *b, size_t from, size_t to)
{
    char *x = a, *y = b;
    for (size_t i = from; i < to; i++) {
        char was = x[i];
        x[i] = y[i], y[i] = was;
    }
}

void tni_swap_storage(tn_tensor *a, tn_tensor *b)
{
    tni_swap_bytes(a, b, offsetof(tn_tensor, dtype), offsetof(tn_tensor, requires_grad));
}

/* ---- as kernels see it ----------------------------------------------------------------------- */

void *tni_data(const tn_tensor *t)
{
    if (TNI_UNLIKELY(tni_watching) && tni_watching->uses) tni_watching->uses(tni_watching, t);
    return (char *)t->storage->data + (size_t)t->offset * tn_dtype_size(t->dtype);
}

void tni_array_set(tni_array *a, const tn_tensor *t, const tn_shape *shape)
{
    int lead = shape->rank - t->shape.rank;
    a->dtype = t->dtype;
    a->rank = shape->rank;
    for (int i = 0; i < shape->rank; i++) {
        int own = i - lead;
        a->size[i] = shape->size[i];
        a->stride[i] = own >= 0 && t->shape.size[own] == shape->size[i] ? t->stride[own] : 0;
    }
    a->data = tni_data(t);
}

tni_array tni_array_of(const tn_tensor *t)
{
    return tni_array_expand(t, &t->shape);
}

tni_array tni_array_expand(const tn_tensor *t, const tn_shape *shape)
{
    tni_array a;
    tni_array_set(&a, t, shape);
    return a;
}

bool tni_is_dense(const tn_tensor *t)
{
    int64_t step = 1;
    for (int i = t->shape.rank - 1; i >= 0; i--) {
        if (t->shape.size[i] == 0) return true;
        if (t->shape.size[i] != 1 && t->stride[i] != step) return false;
        step *= t->shape.size[i];
    }
    return true;
}

tn_tensor *tni_copied(const tn_tensor *t, tn_dtype dtype)
{
    tn_tensor *y = tni_new_dense(&t->shape, dtype, t->storage->device);
    if (!y) return NULL;
    tni_copy a = { .y = tni_array_of(y), .x = tni_array_of(t) };
    return tni_backend_of(t)->copy(&a) == TN_OK ? y : NULL;
}

tn_tensor *tni_dense(tn_tensor *t)
{
    return tni_absent(t) || tni_is_dense(t) ? t : tni_copied(t, t->dtype);
}
