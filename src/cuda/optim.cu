/*
 * optim.cu - one step of an optimizer over all its tensors, or one interpolation of many tensors,
 * in one launch.
 *
 * What differs between tensors and between steps (pointers, sizes, rates) lies in a block of device
 * memory that one asynchronous copy refreshes; the launch itself is the same in every step. The
 * tensors are cut into chunks of CHUNK elements, numbered through; a thread block finds its tensor
 * by the number of the tensor's first chunk. The formulas are those of optim_formulas.h. Once a
 * kernel has met a bad index, nothing is written (fault.h).
 */
#include <cstdlib>
#include <mutex>

#include "cuda/capture.h"
#include "cuda/fault.h"
#include "cuda/elements.h"
#include "cuda/half.h"

#define REAL float
#define REAL_SQRT(x) tn_sqrt_f32(x)
#include "tensor/optim_formulas.h"
#undef REAL
#undef REAL_SQRT
#define REAL double
#define REAL_SQRT(x) tn_sqrt_f64(x)
#include "tensor/optim_formulas.h"

enum { THREADS = 256, CHUNK = 4096 };

/* A tensor as the kernels see it. */
typedef struct many_item {
    void *p, *s0, *s1, *s2;
    const void *g;             /* the gradient, or what p goes towards */
    int64_t n, first;          /* first: the number of its first chunk */
    tni_optim_scalars scalars; /* of an interpolation: rate */
    tn_dtype dtype;
    int states; /* a bit per state: those of its rule */
    bool whole; /* everything at 16-byte boundaries */
} many_item;

/* The block: this, then n_items of the above. */
typedef struct many_head {
    int64_t chunks;
    int n_items;
} many_head;

/* ---- one element ----------------------------------------------------------------------------- */

/* STATES: a bit per state that the tensors have: only those are read and written; G: whether g
 * is. */
template <int NAME, int S> struct optim_rule {
    enum { STATES = S, G = 1 };
    template <typename R>
    static __device__ __forceinline__ void update(R &p, R g, R &s0, R &s1, R &s2,
                                                  const tni_optim_scalars &s)
    {
        tni_optim_update(NAME, &p, g, S & 1 ? &s0 : nullptr, S & 2 ? &s1 : nullptr,
                         S & 4 ? &s2 : nullptr, &s);
    }
};

template <bool TOWARDS> struct lerp_rule {
    enum { STATES = 0, G = TOWARDS };
    template <typename R>
    static __device__ __forceinline__ void update(R &p, R g, R &, R &, R &,
                                                  const tni_optim_scalars &s)
    {
        const R rate = static_cast<R>(s.rate);
        if (!TOWARDS)
            p *= rate;
        else
            p = rate == 1 ? g : TN_LERP(p, g, rate);
    }
};

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Four elements of type E, in the type that they compute in. */
template <typename E>
static __device__ __forceinline__ four<typename element<E>::computing>
read_four(const E *from, int64_t i, int64_t end, bool full)
{
    four<E> q = {};
    four<typename element<E>::computing> wider;
    if (full) {
        q = *reinterpret_cast<const four<E> *>(from + i);
    } else {
        TN_UNROLL
        for (int k = 0; k < 4; k++)
            if (i + k < end) q.v[k] = from[i + k];
    }
    TN_UNROLL
    for (int k = 0; k < 4; k++) wider.v[k] = wide(q.v[k]);
    return wider;
}

template <typename E>
static __device__ __forceinline__ void write_four(E *to, int64_t i, int64_t end, bool full,
                                                  const four<typename element<E>::computing> &wider)
{
    four<E> q;
    TN_UNROLL
    for (int k = 0; k < 4; k++) q.v[k] = element<E>::rounded(wider.v[k]);
    if (full) {
        *reinterpret_cast<four<E> *>(to + i) = q;
        return;
    }
    TN_UNROLL
    for (int k = 0; k < 4; k++)
        if (i + k < end) to[i + k] = q.v[k];
}

template <typename RULE, typename E>
static __device__ __forceinline__ void change_chunk(const many_item &item, int64_t begin)
{
    enum { STATES = RULE::STATES };
    const tni_optim_scalars scalars = item.scalars;
    typedef typename element<E>::computing R;
    E *p = static_cast<E *>(item.p), *s0 = static_cast<E *>(item.s0);
    E *s1 = static_cast<E *>(item.s1), *s2 = static_cast<E *>(item.s2);
    const E *g = static_cast<const E *>(item.g);
    int64_t end = min(item.n, begin + CHUNK);
    for (int64_t i = begin + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        bool full = item.whole && i + 4 <= end;
        four<R> x = read_four(p, i, end, full);
        four<R> d = {}, a = {}, b = {}, c = {};
        if (RULE::G) d = read_four(g, i, end, full);
        if (STATES & 1) a = read_four<E>(s0, i, end, full);
        if (STATES & 2) b = read_four<E>(s1, i, end, full);
        if (STATES & 4) c = read_four<E>(s2, i, end, full);
        TN_UNROLL
        for (int k = 0; k < 4; k++) RULE::update(x.v[k], d.v[k], a.v[k], b.v[k], c.v[k], scalars);
        write_four(p, i, end, full, x);
        if (STATES & 1) write_four(s0, i, end, full, a);
        if (STATES & 2) write_four(s1, i, end, full, b);
        if (STATES & 4) write_four(s2, i, end, full, c);
    }
}

template <typename RULE>
static __device__ __forceinline__ void change_all(const many_head *block,
                                                  const tni_cuda_fault *fault)
{
    const many_item *items = reinterpret_cast<const many_item *>(block + 1);
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
        const many_item &item = items[low];
        if (item.states != RULE::STATES) continue; /* of another launch */
        int64_t begin = (chunk - item.first) * CHUNK;
        switch (item.dtype) {
        case TN_F64: change_chunk<RULE, double>(item, begin); break;
        case TN_BF16: change_chunk<RULE, bf16>(item, begin); break;
        case TN_F16: change_chunk<RULE, f16>(item, begin); break;
        default: change_chunk<RULE, float>(item, begin);
        }
    }
}

template <int NAME, int STATES>
static __global__ void __launch_bounds__(THREADS)
    optim_step(const many_head *block, const tni_cuda_fault *fault)
{
    change_all<optim_rule<NAME, STATES>>(block, fault);
}

template <bool TOWARDS>
static __global__ void __launch_bounds__(THREADS)
    lerp_all(const many_head *block, const tni_cuda_fault *fault)
{
    change_all<lerp_rule<TOWARDS>>(block, fault);
}

/* ---- the block of a step --------------------------------------------------------------------- */

/* One for all optimizers: a copy into it waits, on the device, for the launch that reads it. A step
 * that is captured has a section of its graph's block instead, which the graph's runs refresh. */
static struct {
    std::mutex lock;
    many_head *host, *device;
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
        step_block.host = static_cast<many_head *>(std::calloc(1, nbytes));
        if (!step_block.host)
            return tni_cuda_host->fail(TN_E_NOMEM, "cuda: %zu bytes for an optimizer's step",
                                       nbytes);
        step_block.host_size = nbytes;
    }
    if (step_block.device_size < nbytes) {
        void *block;
        if (tn_status failed = tni_cuda_borrow(nbytes, &block)) return failed;
        tni_cuda_return(step_block.device);
        step_block.device = static_cast<many_head *>(block);
        step_block.device_size = nbytes;
    }
    return TN_OK;
}

static bool at_16(const void *a, const void *b)
{
    return (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

static many_item item_of(const tni_optim_step *a, int k)
{
    const tni_optim_tensor *t = &a->tensors[k];
    many_item item = {};
    item.p = t->p;
    item.g = t->g;
    item.s0 = t->s0;
    item.s1 = t->s1;
    item.s2 = t->s2;
    item.scalars = tni_optim_scalars_of(t->numbers);
    item.states = tni_optim_states(t);
    item.whole = at_16(t->p, t->g) && at_16(t->s0, t->s1) && at_16(t->s2, nullptr);
    return item;
}

static many_item item_of(const tni_lerp_all *a, int k)
{
    const tni_lerp_tensor *t = &a->tensors[k];
    many_item item = {};
    item.p = t->x;
    item.g = t->y;
    item.scalars.rate = t->rate;
    item.whole = at_16(t->x, t->y);
    return item;
}

/* Returns how many chunks there are. CALL: an optimizer's step or an interpolation. */
template <typename CALL> static int64_t write_block(many_head *block, const CALL *a)
{
    many_item *items = reinterpret_cast<many_item *>(block + 1);
    int used = 0;
    int64_t chunks = 0;
    for (int k = 0; k < a->n; k++) {
        int64_t n = a->tensors[k].n;
        if (n == 0) continue; /* it would share its first chunk with the next */
        many_item item = item_of(a, k);
        item.n = n;
        item.first = chunks;
        item.dtype = a->tensors[k].dtype;
        items[used++] = item;
        chunks += (n + CHUNK - 1) / CHUNK;
    }
    *block = many_head{ chunks, used };
    return chunks;
}

void tni_cuda_optim_refresh(void *section, const tni_optim_tensor *tensors, int n)
{
    const tni_optim_step a = { nullptr, tensors, n, nullptr };
    write_block(static_cast<many_head *>(section), &a);
}

/* Does everything that can fail before the launch; gives the block that it reads and the number of
 * chunks. */
template <typename CALL>
static tn_status refresh(const CALL *a, const many_head **block, int64_t *chunks)
{
    size_t nbytes = sizeof(many_head) + static_cast<size_t>(a->n) * sizeof(many_item);
    if (tni_cuda_capturing()) {
        void *host, *device;
        if (tn_status failed = tni_cuda_graph_section(nbytes, &host, &device)) return failed;
        *chunks = write_block(static_cast<many_head *>(host), a);
        *block = static_cast<const many_head *>(device);
        return TN_OK;
    }
    if (tn_status failed = make_room(nbytes)) return failed;
    *chunks = write_block(step_block.host, a);
    *block = step_block.device;
    step_block.bytes += nbytes;
    return tni_cuda_upload(step_block.device, step_block.host, nbytes);
}

#define LAUNCH(kernel)                                                                             \
    TN_LAUNCH(kernel, row_grid(chunks, 1), THREADS, 0, block, tni_cuda_fault_word())

/* A launch for each set of states; others were refused when the optimizer was made. */
tn_status tni_cuda_optim_step(const tni_optim_step *a)
{
    const many_head *block = nullptr;
    int64_t chunks = 0;
    unsigned sets = 0;
    for (int k = 0; k < a->n; k++) sets |= 1u << tni_optim_states(&a->tensors[k]);
    std::lock_guard<std::mutex> hold(step_block.lock);
    tn_status status = refresh(a, &block, &chunks);
    for (int states = 0; states < 8 && chunks > 0 && status == TN_OK; states++) {
        if (!(sets >> states & 1)) continue;
        switch (TNI_OPTIM_CASE(a->type->rule, states)) {
#define STEP(NAME, states)                                                                         \
    case TNI_OPTIM_CASE(TN_RULE_##NAME, states):                                                   \
        status = LAUNCH((optim_step<TN_RULE_##NAME, states>));                                     \
        break;
            TNI_OPTIM_RULES(TNI_OPTIM_SETS, STEP)
        }
    }
    return status;
}

tn_status tni_cuda_lerp_all(const tni_lerp_all *a)
{
    const many_head *block = nullptr;
    int64_t chunks = 0;
    if (a->n == 0) return TN_OK;
    std::lock_guard<std::mutex> hold(step_block.lock);
    tn_status status = refresh(a, &block, &chunks);
    if (status != TN_OK || chunks == 0) return status;
    return a->tensors[0].y ? LAUNCH((lerp_all<true>)) : LAUNCH((lerp_all<false>));
}
