/*
 * transfers.cu - copies that nobody waits for: batches that come in a second stream while a step
 * runs in the first, and numbers that the host reads later.
 *
 * Both go through page-locked blocks, which are kept and used again; an event stands behind a
 * block's last copy. The second stream waits for what the first was given before, since the
 * memory that is written may have been another tensor's until then; the first one waits for the
 * copy where the batch is used.
 */
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cuda/capture.h"

enum {
    MOST = 32, /* blocks, before one that is still read is waited for */
    GRAIN = 4096
};

struct tni_transfer {
    char *memory; /* page-locked */
    size_t size;
    cudaEvent_t done; /* behind the last copy */
    bool taken;
    const void *host; /* what was sent ahead; NULL: nothing */
    void *device;     /* where it is; NULL: nowhere */
    size_t nbytes;
    tni_transfer *next;
};

static std::mutex moving; /* guards what follows */
static cudaStream_t beside;
static tni_transfer *blocks;
static int n_blocks;

/* ---- blocks ---------------------------------------------------------------------------------- */

static tn_status wait_for(const tni_transfer *t)
{
    return TN_CUDA(cudaEventSynchronize(t->done));
}

/* Takes a block out of the list and frees it; its copies are over. */
static void drop(tni_transfer *t)
{
    for (tni_transfer **at = &blocks; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            n_blocks--;
            break;
        }
    if (t->memory) tni_cuda_check(cudaFreeHost(t->memory), "cudaFreeHost");
    if (t->done) tni_cuda_check(cudaEventDestroy(t->done), "cudaEventDestroy");
    std::free(t);
}

static tn_status make(size_t size, tni_transfer **to)
{
    tni_transfer *t = static_cast<tni_transfer *>(std::calloc(1, sizeof *t));
    void *memory = nullptr;
    if (!t) return tni_cuda_host->fail(TN_E_NOMEM, "cuda: out of memory on the host");
    tn_status status = TN_CUDA(cudaEventCreateWithFlags(&t->done, cudaEventDisableTiming));
    if (status == TN_OK) status = TN_CUDA(cudaHostAlloc(&memory, size, cudaHostAllocDefault));
    t->memory = static_cast<char *>(memory);
    t->size = size;
    if (status != TN_OK) {
        drop(t);
        return status;
    }
    t->next = blocks;
    blocks = t;
    n_blocks++;
    *to = t;
    return TN_OK;
}

/* One that no copy reads any more; with very many, the first that is free is waited for. */
static tn_status take(size_t nbytes, tni_transfer **to)
{
    size_t size = (nbytes + GRAIN - 1) / GRAIN * GRAIN;
    tni_transfer *busy = nullptr, *other = nullptr;
    *to = nullptr;
    for (tni_transfer *t = blocks; t && !*to; t = t->next) {
        if (t->taken) continue;
        if (t->size != size)
            other = t;
        else if (cudaEventQuery(t->done) == cudaSuccess)
            *to = t;
        else
            busy = t;
    }
    cudaGetLastError(); /* "not ready" is no failure */
    if (!*to && n_blocks >= MOST && busy) {
        if (tn_status failed = wait_for(busy)) return failed;
        *to = busy;
    }
    if (!*to && n_blocks >= MOST && other) {
        if (tn_status failed = wait_for(other)) return failed;
        drop(other);
    }
    if (!*to)
        if (tn_status failed = make(size, to)) return failed;
    (*to)->taken = true;
    return TN_OK;
}

/* What both directions begin with. */
static tn_status begin(const char *does, const char *want)
{
    if (tn_status failed = tni_cuda_ready()) return failed;
    return tni_cuda_not_captured(does, want);
}

/* ---- to the device --------------------------------------------------------------------------- */

/* In the second stream, behind all that the first was given so far. */
static tn_status copy_beside(tni_transfer *t, void *device, size_t nbytes)
{
    if (!beside)
        if (tn_status failed = TN_CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking)))
            return failed;
    if (tn_status failed = TN_CUDA(cudaEventRecord(t->done, tni_cuda_stream))) return failed;
    if (tn_status failed = TN_CUDA(cudaStreamWaitEvent(beside, t->done, 0))) return failed;
    if (tn_status failed =
            TN_CUDA(cudaMemcpyAsync(device, t->memory, nbytes, cudaMemcpyHostToDevice, beside)))
        return failed;
    tn_status status = TN_CUDA(cudaEventRecord(t->done, beside));
    if (status != TN_OK) cudaStreamSynchronize(beside); /* the memory may be freed next */
    return status;
}

/* Frees what was sent ahead, in the order of the first stream: behind the copy. In a capture that
 * waits until the next use. */
static void forget(tni_transfer *t)
{
    t->host = nullptr;
    if (tni_cuda_capturing() || !t->device) return;
    if (cudaStreamWaitEvent(tni_cuda_stream, t->done, 0) != cudaSuccess) wait_for(t);
    tni_cuda_return(t->device);
    t->device = nullptr;
    t->taken = false;
}

void tni_cuda_ahead(const void *host, size_t nbytes)
{
    if (nbytes == 0 || begin("a batch is sent", "it as an input of tn_capture_run") != TN_OK)
        return;
    std::lock_guard<std::mutex> hold(moving);
    for (tni_transfer *t = blocks; t; t = t->next)
        if (t->device && (!t->host || t->host == host)) forget(t);
    tni_transfer *t;
    if (take(nbytes, &t) != TN_OK) return;
    t->taken = false;
    if (tni_cuda_borrow(nbytes, &t->device) != TN_OK) return;
    std::memcpy(t->memory, host, nbytes);
    t->taken = true;
    t->nbytes = nbytes;
    if (copy_beside(t, t->device, nbytes) == TN_OK)
        t->host = host;
    else
        forget(t);
}

void tni_cuda_forget(const void *host)
{
    std::lock_guard<std::mutex> hold(moving);
    for (tni_transfer *t = blocks; t; t = t->next)
        if (host && t->host == host) forget(t);
}

/* If the first stream cannot be told to wait, there is the ordinary upload. */
bool tni_cuda_was_ahead(void *device, const void *host, size_t nbytes)
{
    std::lock_guard<std::mutex> hold(moving);
    for (tni_transfer *t = blocks; t; t = t->next)
        if (t->host == host && t->nbytes == nbytes)
            return cudaStreamWaitEvent(tni_cuda_stream, t->done, 0) == cudaSuccess &&
                   cudaMemcpyAsync(device, t->device, nbytes, cudaMemcpyDeviceToDevice,
                                   tni_cuda_stream) == cudaSuccess;
    return false;
}

/* ---- from the device ------------------------------------------------------------------------- */

/* The fault word comes along: the number may be that of a step that met a bad index. */
tn_status tni_cuda_fetch(const void *device, size_t nbytes, tni_transfer **way)
{
    *way = nullptr;
    if (tn_status failed = begin("a value is read", "it read after tn_capture_run")) return failed;
    std::lock_guard<std::mutex> hold(moving);
    tni_transfer *t;
    if (tn_status failed = take(sizeof(tni_cuda_fault) + nbytes, &t)) return failed;
    tn_status status =
        TN_CUDA(cudaMemcpyAsync(t->memory, tni_cuda_fault_word(), sizeof(tni_cuda_fault),
                                cudaMemcpyDeviceToHost, tni_cuda_stream));
    if (status == TN_OK)
        status = TN_CUDA(cudaMemcpyAsync(t->memory + sizeof(tni_cuda_fault), device, nbytes,
                                         cudaMemcpyDeviceToHost, tni_cuda_stream));
    if (status == TN_OK) status = TN_CUDA(cudaEventRecord(t->done, tni_cuda_stream));
    if (status != TN_OK) cudaStreamSynchronize(tni_cuda_stream); /* the block may be used again */
    t->taken = status == TN_OK;
    if (status == TN_OK) *way = t;
    return status;
}

tn_status tni_cuda_collect(tni_transfer *way, void *host, size_t nbytes)
{
    tni_cuda_fault fault = {};
    {
        std::lock_guard<std::mutex> hold(moving);
        way->taken = false;
        if (tn_status failed = wait_for(way)) return failed;
        std::memcpy(&fault, way->memory, sizeof fault);
        std::memcpy(host, way->memory + sizeof fault, nbytes);
    }
    return fault.set ? tni_cuda_synchronize() : TN_OK; /* which gives the message, once */
}
