/*
 * indexing.cu - reading at indices: gather, take; and the host's message about a bad one.
 *
 * A bad index is reported (fault.h) and never followed: zeros stand in its place.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "tensor/classes.h"
#include "cuda/capture.h"
#include "cuda/ids.h"

/* ---- what the host says of a fault ----------------------------------------------------------- */

enum { LAUNCH_NAMES = 4096 };
static const char *launch_names[LAUNCH_NAMES]; /* of the ops of the last launches */
static std::atomic<int64_t> launches;

/* Numbers of the launches of captured steps, which may happen again at any time: -1, -2, ... */
static std::mutex captured_lock;
static const char **captured_names;
static int64_t n_captured, captured_capacity;

/* The number of a captured launch; 0: no memory to keep its op's name. */
static int64_t captured_launch()
{
    std::lock_guard<std::mutex> hold(captured_lock);
    if (n_captured == captured_capacity) {
        int64_t capacity = 2 * captured_capacity + 64;
        void *larger =
            std::realloc(captured_names, static_cast<size_t>(capacity) * sizeof *captured_names);
        if (!larger) return 0;
        captured_names = static_cast<const char **>(larger);
        captured_capacity = capacity;
    }
    captured_names[n_captured] = tni_cuda_host->op();
    return -++n_captured;
}

static const char *name_of(int64_t launch)
{
    if (launch >= 0)
        return launches - launch < LAUNCH_NAMES ? launch_names[launch % LAUNCH_NAMES] : nullptr;
    std::lock_guard<std::mutex> hold(captured_lock);
    return captured_names[-launch - 1];
}

int64_t tni_cuda_fault_launch(void)
{
    int64_t captured = tni_cuda_capturing() ? captured_launch() : 0;
    if (captured) return captured;
    int64_t launch = ++launches;
    launch_names[launch % LAUNCH_NAMES] = tni_cuda_host->op();
    return launch;
}

tn_status tni_cuda_fault_error(const tni_cuda_fault *f)
{
    const char *name = name_of(f->launch);
    char op[80] = "";
    if (name) std::snprintf(op, sizeof op, "tn_%s: ", name);
    if (f->set == TNI_FAULT_TARGET)
        return tni_cuda_host->fail(TN_E_INDEX,
                                   "%starget value %" PRId64 " at row %" PRId64 ": want 0..%" PRId64
                                   " (or %" PRId64 " to ignore)%s",
                                   op, f->value, f->position, f->limit - 1, f->ignore,
                                   TNI_CLASS_HINT(f->value, f->limit));
    const char *place = "%sindex %" PRId64 " at position %" PRId64 ": want 0..%" PRId64;
    if (f->limit == 0) place = "%sindex %" PRId64 " at position %" PRId64 ": the axis is empty";
    return tni_cuda_host->fail(TN_E_INDEX, place, op, f->value, f->position, f->limit - 1);
}

/* ---- checks alone ---------------------------------------------------------------------------- */

template <typename D>
static __global__ void check_ids(const int64_t *index, walk<D> w, int64_t n, id_check check)
{
    EACH(typename D::index, e, n)
    {
        int64_t at[3];
        walk_to(w, e, at);
        int64_t id = index[at[0]];
        if (!id_good(check, id)) id_report(check, id, static_cast<int64_t>(e));
    }
}

/* Checks every index before anything is written. */
tn_status tni_cuda_check_ids(const tni_array *index, const id_check &check)
{
    int64_t n = tni_array_numel(index);
    return BY_DIVISOR(n, TN_LAUNCH((check_ids<D>), row_grid(n, THREADS), THREADS, 0,
                                   static_cast<const int64_t *>(index->data),
                                   walk_of<D>(index, nullptr, nullptr, -1), n, check));
}

/* ---- gather: y[..] = x[.., index[..], ..] ---------------------------------------------------- */

template <typename T, typename D>
static __global__ void gather(T *y, const T *x, const int64_t *index, walk<D> w, int64_t x_step,
                              int64_t n, id_check check)
{
    EACH(typename D::index, e, n)
    {
        int64_t at[3];
        walk_to(w, e, at);
        int64_t id = index[at[0]];
        bool good = id_good(check, id);
        y[at[2]] = good ? x[at[1] + id * x_step] : T(0);
        if (!good) id_report(check, id, static_cast<int64_t>(e));
    }
}

template <typename T>
static tn_status run_gather(const tni_array *y, const tni_array *x, const tni_array *index,
                            int axis)
{
    int64_t n = tni_array_numel(index);
    return BY_DIVISOR(n, TN_LAUNCH((gather<T, D>), row_grid(n, THREADS), THREADS, 0,
                                   static_cast<T *>(y->data), static_cast<const T *>(x->data),
                                   static_cast<const int64_t *>(index->data),
                                   walk_of<D>(index, x, y, axis), x->stride[axis], n,
                                   id_check_of(x->size[axis])));
}

static int size_of(tn_dtype dtype)
{
    switch (dtype) {
    case TN_F64:
    case TN_I64: return 8;
    case TN_F32:
    case TN_I32: return 4;
    case TN_BF16:
    case TN_F16: return 2;
    default: return 1;
    }
}

tn_status tni_cuda_gather(const tni_gather *a)
{
    if (tni_array_numel(&a->index) == 0) return TN_OK;
    switch (size_of(a->x.dtype)) {
    case 8: return run_gather<uint64_t>(&a->y, &a->x, &a->index, a->axis);
    case 4: return run_gather<uint32_t>(&a->y, &a->x, &a->index, a->axis);
    case 2: return run_gather<uint16_t>(&a->y, &a->x, &a->index, a->axis);
    default: return run_gather<uint8_t>(&a->y, &a->x, &a->index, a->axis);
    }
}

/* ---- take: y[o, r, :] = x[o, index[r], :] ---------------------------------------------------- */

/* A row is this many units of T. */
template <typename T, typename D>
static __global__ void take(T *y, const T *x, const int64_t *index, D row, D ids, int64_t n,
                            id_check check)
{
    EACH(typename D::index, e, n)
    {
        typename D::index i = row.divide(e), outer = ids.divide(i);
        int64_t unit = row.rest(e, i), r = ids.rest(i, outer);
        int64_t id = index[r];
        T v = {};
        if (id_good(check, id))
            v = x[(static_cast<int64_t>(outer) * check.limit + id) * row.d + unit];
        else if (unit == 0 && outer == 0)
            id_report(check, id, r);
        y[e] = v;
    }
}

template <typename T>
static tn_status run_take(const tni_array *y, const tni_array *x, const tni_array *index,
                          int64_t units)
{
    int64_t ids = y->size[1], n = y->size[0] * ids * units;
    return BY_DIVISOR(n, TN_LAUNCH((take<T, D>), row_grid(n, THREADS), THREADS, 0,
                                   static_cast<T *>(y->data), static_cast<const T *>(x->data),
                                   static_cast<const int64_t *>(index->data), D(units), D(ids), n,
                                   id_check_of(x->size[1])));
}

tn_status tni_cuda_take(const tni_take *a)
{
    int64_t nbytes = a->x.size[2] * size_of(a->x.dtype);
    uint64_t mask = static_cast<uint64_t>(nbytes) | reinterpret_cast<uintptr_t>(a->x.data) |
                    reinterpret_cast<uintptr_t>(a->y.data);
    if (tni_array_numel(&a->index) == 0) return TN_OK;
    if (tni_array_numel(&a->y) == 0)
        return tni_cuda_check_ids(&a->index, id_check_of(a->x.size[1]));
    if (mask % 16 == 0) return run_take<uint4>(&a->y, &a->x, &a->index, nbytes / 16);
    if (mask % 8 == 0) return run_take<uint64_t>(&a->y, &a->x, &a->index, nbytes / 8);
    if (mask % 4 == 0) return run_take<uint32_t>(&a->y, &a->x, &a->index, nbytes / 4);
    if (mask % 2 == 0) return run_take<uint16_t>(&a->y, &a->x, &a->index, nbytes / 2);
    return run_take<uint8_t>(&a->y, &a->x, &a->index, nbytes);
}
