/*
 * optim.cu - one step of an optimizer over all its tensors, in one launch.
 *
 * What differs between tensors and between steps (pointers, sizes, rates) lies in a block of device
 * memory that one asynchronous copy refreshes; the launch itself is the same in every step. The
 * tensors are cut into chunks of CHUNK elements, numbered through; a thread block finds its tensor
 * by the number of the tensor's first chunk. The formulas are those of optim_formulas.h. Nothing is
 * written after a bad index anywhere before (fault.h).
 */
#include <cstdlib>
#include <mutex>

#include "cuda/capture.h"
#include "cuda/fault.h"
#include "cuda/rows.h"

#define TNI_OPTIM(name) name
#define TNI_OPTIM_REAL float
#define TNI_OPTIM_SQRT(x) tn_sqrt_f32(x)
#include "tensor/optim_formulas.h"
#undef TNI_OPTIM_REAL
#undef TNI_OPTIM_SQRT
#define TNI_OPTIM_REAL double
#define TNI_OPTIM_SQRT(x) tn_sqrt_f64(x)
#include "tensor/optim_formulas.h"

enum { THREADS = 256, CHUNK = 4096 };

/* A tensor as the kernel sees it. */
typedef struct optim_item {
    void *p, *s0, *s1, *s2;
    const void *g;
    int64_t n, first; /* first: the number of its first chunk */
    tni_optim_scalars scalars;
    bool f64, whole; /* whole: everything at 16-byte boundaries */
} optim_item;

/* The block: this, then n_items of the above. */
typedef struct optim_head {
    int64_t chunks = 0;
    int n_items;
    bool maximize, flag; /* flag: Nesterov */
} optim_head;

/* ---- one element ----------------------------------------------------------------------------- */

/* A tensor's scalars in R. */
template <typename R> struct optim_rates {
    R wd, a, one_minus_a, b, one_minus_b, eps, rate, root_scale, shrink, sign;
    bool first, nesterov;
};

template <typename R>
static __device__ __forceinline__ optim_rates<R> rates_of(const tni_optim_scalars &s,
                                                          const optim_head &head)
{
    optim_rates<R> r;
    r.wd = static_cast<R>(s.wd);
    r.a = static_cast<R>(s.a);
    r.one_minus_a = static_cast<R>(s.one_minus_a);
    r.b = static_cast<R>(s.b);
    r.one_minus_b = static_cast<R>(s.one_minus_b);
    r.eps = static_cast<R>(s.eps);
    r.rate = static_cast<R>(s.rate);
    r.root_scale = static_cast<R>(s.root_scale);
    r.shrink = static_cast<R>(s.shrink);
    r.sign = head.maximize ? -1 : 1;
    r.first = s.first;
    r.nesterov = head.flag;
    return r;
}

/* HAS: a bit per state that the tensor has: only those are read and written. */
template <int KIND, int HAS, typename R>
static __device__ __forceinline__ void update(const optim_rates<R> &r, R &p, R g, R &s0, R &s1,
                                              R &s2)
{
    g = r.sign * g;
    if (r.wd != 0) g = g + r.wd * p; /* without decay an infinite parameter leaves g alone */
    switch (KIND) {
    case TNI_SGD:
        tni_sgd(&p, g, HAS & 1 ? &s0 : nullptr, r.a, r.one_minus_a, r.rate, r.first, r.nesterov);
        break;
    case TNI_ADAM: /* and AdamW, whose shrink is not 1: Loshchilov and Hutter (2019), algorithm 2 */
        p *= r.shrink;
        tni_adam(&p, g, &s0, &s1, HAS & 4 ? &s2 : nullptr, r.a, r.one_minus_a, r.b, r.one_minus_b,
                 r.eps, r.rate, r.root_scale);
        break;
    case TNI_RMSPROP:
        tni_rmsprop(&p, g, &s0, HAS & 2 ? &s1 : nullptr, HAS & 4 ? &s2 : nullptr, r.a,
                    r.one_minus_a, r.b, r.eps, r.rate);
        break;
    case TNI_ADAGRAD: tni_adagrad(&p, g, &s0, r.eps, r.rate); break;
    case TNI_SCALE: p *= r.rate; break;
    case TNI_LERP: tni_lerp(&p, g, r.rate); break;
    }
}

/* ---- chunks ---------------------------------------------------------------------------------- */

template <typename R> struct alignas(16) optim_four {
    R v[4];
};

template <typename R>
static __device__ __forceinline__ optim_four<R> read_four(const R *from, int64_t i, int64_t end,
                                                          bool full)
{
    optim_four<R> q = {};
    if (full) {
        q = *reinterpret_cast<const optim_four<R> *>(from + i);
    } else {
        TN_UNROLL
        for (int k = 0; k < 4; k++)
            if (i + k < end) q.v[k] = from[i + k];
    }
    return q;
}

template <typename R>
static __device__ __forceinline__ void write_four(R *to, int64_t i, int64_t end, bool full,
                                                  const optim_four<R> &q)
{
    if (full) {
        *reinterpret_cast<optim_four<R> *>(to + i) = q;
        return;
    }
    TN_UNROLL
    for (int k = 0; k < 4; k++)
        if (i + k < end) to[i + k] = q.v[k];
}

template <int KIND, int HAS, typename R>
static __device__ __forceinline__ void step_chunk(const optim_item &item, const optim_head &head,
                                                  int64_t begin)
{
    optim_rates<R> r = rates_of<R>(item.scalars, head);
    R *p = static_cast<R *>(item.p), *s0 = static_cast<R *>(item.s0);
    R *s1 = static_cast<R *>(item.s1), *s2 = static_cast<R *>(item.s2);
    const R *g = static_cast<const R *>(item.g);
    int64_t end = min(item.n, begin + CHUNK);
    for (int64_t i = begin + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        bool full = item.whole && i + 4 <= end;
        optim_four<R> x = read_four(p, i, end, full), d = read_four(g, i, end, full);
        optim_four<R> a = {}, b = {}, c = {};
        if (HAS & 1) a = read_four<R>(s0, i, end, full);
        if (HAS & 2) b = read_four<R>(s1, i, end, full);
        if (HAS & 4) c = read_four<R>(s2, i, end, full);
        TN_UNROLL
        for (int k = 0; k < 4; k++) update<KIND, HAS>(r, x.v[k], d.v[k], a.v[k], b.v[k], c.v[k]);
        write_four(p, i, end, full, x);
        if (HAS & 1) write_four(s0, i, end, full, a);
        if (HAS & 2) write_four(s1, i, end, full, b);
        if (HAS & 4) write_four(s2, i, end, full, c);
    }
}

/* The states that a kind may have; all tensors of a step have the same. */
template <int KIND, int HAS>
static __global__ void __launch_bounds__(THREADS)
    optim_step(const optim_head *block, const tni_cuda_fault *fault)
{
    const optim_item *items = reinterpret_cast<const optim_item *>(block + 1);
    if (fault_set(fault)) return;
    for (int64_t chunk = blockIdx.x; chunk < block->chunks; chunk += gridDim.x) {
        int low = 0, high = block->n_items; /* the last tensor whose first chunk is at most this */
        while (high - low > 1) {
            int middle = low + (high - low) / 2;
            if (items[middle].first <= chunk)
                low = middle;
            else
                high = middle;
        }
        const optim_item &item = items[low];
        int64_t begin = (chunk - item.first) * CHUNK;
        if (item.f64)
            step_chunk<KIND, HAS, double>(item, *block, begin);
        else
            step_chunk<KIND, HAS, float>(item, *block, begin);
    }
}

/* ---- the block of a step --------------------------------------------------------------------- */

/* One for all optimizers: a copy into it waits, on the device, for the launch that reads it. A step
 * that is captured has a section of its graph's block instead, which the graph's runs refresh. */
static struct {
    std::mutex lock;
    optim_head *host, *device;
    size_t host_size, device_size;
    uint64_t bytes; /* of all steps so far */
} step_block;

uint64_t tni_cuda_optim_bytes(void)
{
    std::lock_guard<std::mutex> hold(step_block.lock);
    return step_block.bytes;
}

static tn_status make_room(size_t nbytes)
{
    if (step_block.host_size < nbytes) {
        std::free(step_block.host);
        step_block.host_size = 0;
        step_block.host = static_cast<optim_head *>(std::calloc(1, nbytes));
        if (!step_block.host)
            return tni_cuda_host->fail(TN_E_NOMEM, "cuda: %zu bytes for an optimizer's step",
                                       nbytes);
        step_block.host_size = nbytes;
    }
    if (step_block.device_size < nbytes) {
        void *block;
        if (tn_status failed = tni_cuda_borrow(nbytes, &block); failed != TN_OK) return failed;
        tni_cuda_return(step_block.device);
        step_block.device = static_cast<optim_head *>(block);
        step_block.device_size = nbytes;
    }
    return TN_OK;
}

static optim_item item_of(const tni_optim_args *args, const tni_optim_tensor *t, int64_t first)
{
    optim_item item = {};
    item.p = t->p;
    item.g = t->g;
    item.s0 = t->s0;
    item.s1 = t->s1;
    item.s2 = t->s2;
    item.n = t->n;
    item.first = first;
    item.scalars = tni_optim_scalars_of(args, t);
    item.f64 = t->dtype == TN_F64;
    uintptr_t all = reinterpret_cast<uintptr_t>(t->p) | reinterpret_cast<uintptr_t>(t->g) |
                    reinterpret_cast<uintptr_t>(t->s0) | reinterpret_cast<uintptr_t>(t->s1) |
                    reinterpret_cast<uintptr_t>(t->s2);
    item.whole = all % 16 == 0;
    return item;
}

/* A bit per state that the tensor has. */
static unsigned states_of(const tni_optim_tensor *t)
{
    return (t->s0 ? 1u : 0u) | (t->s1 ? 2u : 0u) | (t->s2 ? 4u : 0u);
}

static tn_status check(const tni_optim_tensor *tensors, int n)
{
    for (int k = 0; k < n; k++) {
        if (tensors[k].dtype != TN_F32 && tensors[k].dtype != TN_F64)
            return tni_cuda_host->fail(
                TN_E_DTYPE, "tn_optim_step: a parameter of dtype %d on the GPU: want f32 or f64",
                static_cast<int>(tensors[k].dtype));
        if (states_of(&tensors[k]) != states_of(&tensors[0]))
            return tni_cuda_host->fail(
                TN_E_INVALID, "tn_optim_step: parameters with different states: want one kind");
    }
    return TN_OK;
}

/* Returns how many chunks there are. */
static int64_t write_block(optim_head *block, const tni_optim_args *args,
                           const tni_optim_tensor *tensors, int n)
{
    optim_item *items = reinterpret_cast<optim_item *>(block + 1);
    int used = 0;
    int64_t chunks = 0;
    for (int k = 0; k < n; k++) {
        if (tensors[k].n == 0) continue; /* it would share its first chunk with the next */
        items[used++] = item_of(args, &tensors[k], chunks);
        chunks += (tensors[k].n + CHUNK - 1) / CHUNK;
    }
    *block = optim_head{ chunks, used, args->maximize, args->flag };
    return chunks;
}

void tni_cuda_optim_refresh(void *section, const tni_optim_args *args,
                            const tni_optim_tensor *tensors, int n)
{
    write_block(static_cast<optim_head *>(section), args, tensors, n);
}

/* Everything that can fail before the launch; the block that it reads and how many chunks there
 * are. */
static tn_status refresh(const tni_optim_args *args, const tni_optim_tensor *tensors, int n,
                         const optim_head **block, int64_t *chunks)
{
    size_t nbytes = sizeof(optim_head) + static_cast<size_t>(n) * sizeof(optim_item);
    if (tn_status failed = check(tensors, n); failed != TN_OK) return failed;
    if (tni_cuda_capturing()) {
        void *host, *device;
        if (tn_status failed = tni_cuda_graph_section(nbytes, &host, &device); failed != TN_OK)
            return failed;
        *chunks = write_block(static_cast<optim_head *>(host), args, tensors, n);
        *block = static_cast<const optim_head *>(device);
        return TN_OK;
    }
    if (tn_status failed = make_room(nbytes); failed != TN_OK) return failed;
    *chunks = write_block(step_block.host, args, tensors, n);
    *block = step_block.device;
    step_block.bytes += nbytes;
    return tni_cuda_upload(step_block.device, step_block.host, nbytes);
}

#define LAUNCH(kind, states)                                                                       \
    TN_LAUNCH((optim_step<kind, states>), row_grid(chunks, 1), THREADS, 0, block,                  \
              tni_cuda_fault_word())

static tn_status launch(tni_optim_kind kind, unsigned states, const optim_head *block,
                        int64_t chunks)
{
    switch (kind) {
    case TNI_SGD: return states & 1 ? LAUNCH(TNI_SGD, 1) : LAUNCH(TNI_SGD, 0);
    case TNI_ADAM:
    case TNI_ADAMW: return states & 4 ? LAUNCH(TNI_ADAM, 7) : LAUNCH(TNI_ADAM, 3);
    case TNI_RMSPROP:
        switch (states) {
        case 1: return LAUNCH(TNI_RMSPROP, 1);
        case 3: return LAUNCH(TNI_RMSPROP, 3);
        case 5: return LAUNCH(TNI_RMSPROP, 5);
        default: return LAUNCH(TNI_RMSPROP, 7);
        }
    case TNI_SCALE: return LAUNCH(TNI_SCALE, 0);
    case TNI_LERP: return LAUNCH(TNI_LERP, 0);
    default: return LAUNCH(TNI_ADAGRAD, 1);
    }
}

tn_status tni_cuda_optim_step(const tni_optim_step *a)
{
    const optim_head *block = nullptr;
    int64_t chunks = 0;
    if (a->n == 0) return TN_OK;
    std::lock_guard<std::mutex> hold(step_block.lock);
    if (tn_status failed = refresh(a->args, a->tensors, a->n, &block, &chunks); failed != TN_OK)
        return failed;
    return chunks > 0 ? launch(a->args->kind, states_of(&a->tensors[0]), block, chunks) : TN_OK;
}
