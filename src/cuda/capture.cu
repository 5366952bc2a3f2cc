/*
 * capture.cu - a training step as a CUDA graph: captured by stream capture, launched many times.
 *
 * While a thread captures, memory comes from the graph's own arena, so that every address in the
 * graph stays valid; older blocks that are freed wait until the capture has ended, since a free
 * would become part of the graph. The numbers that change from run to run (the optimizers', the
 * generator's offset) are in one block of device memory, updated by one copy per run.
 */
#include <atomic>
#include <cstring>
#include <mutex>

#include "cuda/arena.h"
#include "cuda/capture.h"

enum { LEAST_CHUNK = 1 << 20, SECTION_ALIGNMENT = 16 };

struct tni_graph {
    cudaGraphExec_t exec;
    arena *memory;
    char *host, *device; /* the block: a tni_cuda_draw, then the optimizers' sections */
    size_t used, capacity;
    size_t *section; /* where each begins */
    int n_sections, section_capacity;
    uint64_t offset; /* of the generator when the capture began */
    bool tf32;
};

static std::mutex lock; /* of what follows */
static arena *arenas;
static void **waiting; /* blocks freed while a graph was being captured */
static size_t n_waiting, waiting_capacity;
static std::atomic<tni_graph *> captured; /* now, by any thread */
static thread_local bool here;            /* by this thread */

bool tni_cuda_capturing(void)
{
    return here;
}

tn_status tni_cuda_not_elsewhere(void)
{
    if (!captured || here) return TN_OK;
    return tni_cuda_host->fail(TN_E_STATE,
                               "cuda: another thread is capturing a step: want the device left "
                               "to it until its tn_capture_run returns");
}

tn_status tni_cuda_not_captured(const char *does, const char *want)
{
    if (!captured) return TN_OK;
    if (tn_status failed = tni_cuda_not_elsewhere()) return failed;
    const char *op = tni_cuda_host->op();
    return tni_cuda_host->fail(TN_E_STATE,
                               "%s%s: %s inside a captured step, which does so once, while "
                               "it is captured: want %s",
                               op ? "tn_" : "cuda", op ? op : "", does, want);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A block freed while a graph is being captured. */
static void wait_for_end(void *block)
{
    if (n_waiting == waiting_capacity) {
        size_t capacity = waiting_capacity ? 2 * waiting_capacity : 256;
        void *larger = std::realloc(waiting, capacity * sizeof *waiting);
        if (!larger) return; /* no memory to list it: it is never freed */
        waiting = static_cast<void **>(larger);
        waiting_capacity = capacity;
    }
    waiting[n_waiting++] = block;
}

/* A chunk while the stream is captured: from another stream, else the graph would allocate it. */
static tn_status take_beside(size_t size, void **memory)
{
    *memory = nullptr;
    cudaStream_t beside;
    if (tn_status failed = TN_CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking)))
        return failed;
    tn_status status = TN_CUDA(cudaMallocAsync(memory, size, beside));
    if (status == TN_OK) status = TN_CUDA(cudaStreamSynchronize(beside));
    tn_status destroyed = TN_CUDA(cudaStreamDestroy(beside));
    return status != TN_OK ? status : destroyed;
}

tn_status tni_cuda_keep(size_t nbytes, void **block)
{
    return here ? take_beside(nbytes, block) : tni_cuda_borrow(nbytes, block);
}

/* More than was measured is needed: a chunk that holds this block, and a quarter of what there
 * was. */
static tn_status grow(arena *a, size_t nbytes)
{
    size_t size = LEAST_CHUNK, quarter = 0;
    for (const arena_chunk *c = a->chunks; c; c = c->next) quarter += c->size / 4;
    if (size < quarter) size = quarter;
    if (size < nbytes) size = nbytes;
    size = arena_rounded(size);
    void *memory;
    tn_status status = take_beside(size, &memory);
    if (status == TN_OK && arena_add(a, memory, size)) return TN_OK;
    if (memory) wait_for_end(memory);
    return status != TN_OK ? status
                           : tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory on the host");
}

tn_status tni_cuda_graph_take(size_t nbytes, void **block)
{
    std::lock_guard<std::mutex> hold(lock);
    arena *a = captured.load()->memory;
    *block = arena_take(a, nbytes);
    if (*block) return TN_OK;
    if (tn_status failed = grow(a, nbytes)) return failed;
    *block = arena_take(a, nbytes);
    return *block ? TN_OK : tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory on the host");
}

/* An arena is freed after its graph and its last block, but not while another graph is captured. */
static void drop_closed()
{
    arena **at = &arenas;
    while (*at && !captured) {
        arena *a = *at;
        if (a->closed && a->used == 0) {
            *at = a->next;
            arena_free(a, tni_cuda_give_back);
        } else {
            at = &a->next;
        }
    }
}

void tni_cuda_graph_give(void *block)
{
    if (!block) return;
    std::lock_guard<std::mutex> hold(lock);
    for (arena *a = arenas; a; a = a->next) {
        if (!arena_give(a, block)) continue;
        drop_closed();
        return;
    }
    if (captured)
        wait_for_end(block);
    else
        tni_cuda_give_back(block); /* holding the lock, so no capture can begin */
}

/* ---- the block that changes ------------------------------------------------------------------ */

const tni_cuda_draw *tni_cuda_graph_draw(void)
{
    return here ? reinterpret_cast<const tni_cuda_draw *>(captured.load()->device) : nullptr;
}

uint64_t tni_cuda_graph_offset(void)
{
    return captured.load()->offset;
}

tn_status tni_cuda_graph_section(size_t nbytes, void **host, void **device)
{
    tni_graph *g = captured;
    if (nbytes > g->capacity - g->used)
        return tni_cuda_host->fail(
            TN_E_STATE,
            "tn_optim_step: %zu bytes for an optimizer's step in a captured step, "
            "%zu of %zu are left: want the optimizers of the first run",
            nbytes, g->capacity - g->used, g->capacity);
    if (g->n_sections == g->section_capacity) {
        int capacity = 2 * g->section_capacity + 4;
        void *larger = std::realloc(g->section, static_cast<size_t>(capacity) * sizeof *g->section);
        if (!larger) return tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory on the host");
        g->section = static_cast<size_t *>(larger);
        g->section_capacity = capacity;
    }
    *host = g->host + g->used;
    *device = g->device + g->used;
    g->section[g->n_sections++] = g->used;
    g->used += (nbytes + SECTION_ALIGNMENT - 1) / SECTION_ALIGNMENT * SECTION_ALIGNMENT;
    return TN_OK;
}

static void refresh_optim(tni_graph *g, int k, const tni_optim_tensor *tensors, int n)
{
    tni_cuda_optim_refresh(g->host + g->section[k], tensors, n);
}

/* ---- capturing ------------------------------------------------------------------------------ */

/* The pool's current use, and its peak since the last reset. */
static tn_status pool_use(bool reset, uint64_t *now, uint64_t *most)
{
    uint64_t none = 0;
    if (tn_status failed = tni_cuda_ready()) return failed;
    cudaMemPool_t pool;
    if (tn_status failed = TN_CUDA(cudaDeviceGetDefaultMemPool(&pool, tni_cuda_device())))
        return failed;
    if (reset)
        if (tn_status failed =
                TN_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none)))
            return failed;
    if (tn_status failed =
            TN_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, now)))
        return failed;
    return TN_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, most));
}

static void measure_begin(tni_graph_size *size)
{
    size->block = tni_cuda_optim_bytes();
    uint64_t most;
    if (pool_use(true, &size->memory, &most) != TN_OK) size->memory = UINT64_MAX;
}

static void measure_end(tni_graph_size *size)
{
    uint64_t most = 0, before = size->memory;
    size->block = tni_cuda_optim_bytes() - size->block;
    size->memory = 0;
    uint64_t now;
    if (before != UINT64_MAX && pool_use(false, &now, &most) == TN_OK && most > before)
        size->memory = most - before;
}

/* The memory of a graph to be captured. */
static tn_status make_memory(tni_graph *g, const tni_graph_size *size)
{
    size_t chunk = static_cast<size_t>(size->memory + size->memory / 8);
    g->used = sizeof(tni_cuda_draw);
    g->capacity = static_cast<size_t>(2 * size->block) + 4096;
    g->host = static_cast<char *>(std::calloc(1, g->capacity));
    g->memory = static_cast<arena *>(std::calloc(1, sizeof *g->memory));
    if (!g->host || !g->memory)
        return tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory on the host");
    void *memory;
    if (tn_status failed = tni_cuda_borrow(g->capacity, &memory)) return failed;
    g->device = static_cast<char *>(memory);
    chunk = arena_rounded(chunk < LEAST_CHUNK ? static_cast<size_t>(LEAST_CHUNK) : chunk);
    if (tn_status failed = tni_cuda_borrow(chunk, &memory)) return failed;
    if (!arena_add(g->memory, memory, chunk)) {
        tni_cuda_return(memory);
        return tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory on the host");
    }
    return TN_OK;
}

/* Relaxed: libraries may load a kernel that the first run did not need. Our own files check for
 * themselves what they must not do meanwhile. */
static tn_status start(tni_graph *g)
{
    std::lock_guard<std::mutex> hold(lock);
    if (captured)
        return tni_cuda_host->fail(TN_E_STATE, "tn_capture_run: another step is being captured: "
                                               "want one at a time");
    if (tn_status failed =
            TN_CUDA(cudaStreamBeginCapture(tni_cuda_stream, cudaStreamCaptureModeRelaxed)))
        return failed;
    g->memory->next = arenas;
    arenas = g->memory;
    captured = g;
    here = true;
    return TN_OK;
}

/* The arena of a freed graph. */
static void close_arena(arena *a)
{
    std::lock_guard<std::mutex> hold(lock);
    bool listed = false;
    for (arena *other = arenas; other; other = other->next) listed = listed || other == a;
    if (!listed) { /* it was never captured into */
        a->next = arenas;
        arenas = a;
    }
    a->closed = true;
    drop_closed();
}

static void free_graph(tni_graph *g)
{
    if (!g) return;
    if (g->exec) {
        if (!captured)
            tni_cuda_check(cudaStreamSynchronize(tni_cuda_stream), "cudaStreamSynchronize");
        tni_cuda_check(cudaGraphExecDestroy(g->exec), "cudaGraphExecDestroy");
    }
    if (g->device) tni_cuda_return(g->device);
    if (g->memory) close_arena(g->memory);
    std::free(g->host);
    std::free(g->section);
    std::free(g);
}

static tn_status begin(const tni_graph_size *size, uint64_t offset, tni_graph **graph)
{
    *graph = nullptr;
    if (tn_status failed = tni_cuda_not_captured("a capture begins", "one step captured at a time"))
        return failed;
    if (tn_status failed = tni_cuda_ready()) return failed;
    tni_graph *g = static_cast<tni_graph *>(std::calloc(1, sizeof *g));
    if (!g) return tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory on the host");
    g->offset = offset;
    g->tf32 = tni_cuda_tf32();
    tn_status status = make_memory(g, size);
    if (status == TN_OK) status = start(g);
    if (status == TN_OK)
        *graph = g;
    else
        free_graph(g);
    return status;
}

/* Frees the older blocks that were freed during the capture. */
static void give_waiting()
{
    std::lock_guard<std::mutex> hold(lock);
    captured = nullptr;
    here = false;
    while (n_waiting > 0) tni_cuda_give_back(waiting[--n_waiting]);
    drop_closed();
}

static tn_status end(tni_graph *g, bool keep)
{
    cudaGraph_t graph = nullptr;
    tn_status status = TN_CUDA(cudaStreamEndCapture(tni_cuda_stream, &graph));
    give_waiting();
    if (status == TN_OK && keep) status = TN_CUDA(cudaGraphInstantiate(&g->exec, graph, 0));
    if (status != TN_OK) g->exec = nullptr;
    if (graph) {
        tn_status destroyed = TN_CUDA(cudaGraphDestroy(graph));
        if (status == TN_OK) status = destroyed;
    }
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static tn_status launch(tni_graph *g, uint64_t seed, uint64_t offset)
{
    tni_cuda_draw draw = { seed, offset };
    if (tn_status failed = tni_cuda_launching("cudaGraphLaunch")) return failed;
    if (tn_status failed =
            tni_cuda_not_captured("a captured step runs", "its function called instead"))
        return failed;
    if (g->tf32 != tni_cuda_tf32())
        return tni_cuda_host->fail(TN_E_STATE,
                                   "tn_capture_run: tn_set_tf32 has changed since the step "
                                   "was captured: want a new capture");
    std::memcpy(g->host, &draw, sizeof draw);
    if (tn_status failed = tni_cuda_upload(g->device, g->host, g->used)) return failed;
    return TN_CUDA(cudaGraphLaunch(g->exec, tni_cuda_stream));
}

const tni_graphs tni_cuda_graphs = {
    measure_begin,   measure_end,    begin,           end,
    refresh_optim,   launch,         free_graph,      tni_cuda_ahead,
    tni_cuda_forget, tni_cuda_fetch, tni_cuda_collect
};
