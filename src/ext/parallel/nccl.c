/*
 * nccl.c - the module libtenon-nccl.so: tni_nccl over NVIDIA's library. It is a shared module of
 * its own, so that only programs that share out work on GPUs map it. The same source is compiled as
 * C++ over the shim in tests/cuda/host, which runs it on the CPU.
 *
 * Sums have a stream beside the one of all other work, so that they go on while backward computes.
 * Events order the two: a sum begins when its numbers are ready (full), and work that reads them
 * begins when it is done (summed). The host waits for neither. Each call asks for NCCL's errors.
 *
 * All lines of a GPU share that stream: a running sum holds the GPU until the other ranks join it,
 * and CUDA does not promise that two streams make progress side by side. With a stream each, one
 * rank could wait in the sum of one line and another rank in that of another, for ever. In one
 * stream sums run in the order of the calls, which is the same on all ranks. Source: NVIDIA, NCCL
 * user guide, "Communicators" and "Error handling".
 */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext/parallel/nccl_module.h"

struct tni_nccl_line {
    int device;
    cudaStream_t program, own; /* own: of all lines of this device */
    cudaEvent_t full, summed;
    ncclComm_t comm;
    bool joined;
    tni_nccl_line *next;
};

static tni_nccl_line *lines; /* all there are */

/* ---- errors ---------------------------------------------------------------------------------- */

static char text[512]; /* one thread makes these calls */

static const char *of_cuda(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) return NULL;
    snprintf(text, sizeof text, "%s: %s (error %d)", call, cudaGetErrorString(error), (int)error);
    cudaGetLastError(); /* or the next launch would be blamed */
    return text;
}

static const char *of_nccl(ncclResult_t result, const char *call, ncclComm_t comm)
{
    if (result == ncclSuccess) return NULL;
    const char *more = ncclGetLastError(comm);
    int n = (int)strcspn(more ? more : "", "\n");
    snprintf(text, sizeof text, "NCCL: %s: %s%s%.*s", call, ncclGetErrorString(result),
             n ? ": " : "", n, more ? more : "");
    return text;
}

#define CUDA_CALL(name, ...) of_cuda(name(__VA_ARGS__), #name)

/* Makes the line's GPU this thread's current one; returns failures not returned yet. */
static const char *look(const tni_nccl_line *line)
{
    ncclResult_t behind = ncclSuccess;
    const char *failed = CUDA_CALL(cudaSetDevice, line->device);
    if (!failed)
        failed = of_nccl(ncclCommGetAsyncError(line->comm, &behind), "ncclCommGetAsyncError",
                         line->comm);
    return failed ? failed : of_nccl(behind, "a sum", line->comm);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static cudaStream_t stream_of(int device)
{
    for (const tni_nccl_line *line = lines; line; line = line->next)
        if (line->device == device && line->own) return line->own;
    return NULL;
}

/* Returns when the sums of all lines of its GPU are done, or can no longer be done. */
static void settle(const tni_nccl_line *line)
{
    if (line->joined && !look(line)) cudaStreamSynchronize(line->own);
}

static void line_free(tni_nccl_line *line)
{
    tni_nccl_line **at = &lines;
    if (!line) return;
    while (*at != line) at = &(*at)->next;
    *at = line->next;
    settle(line);
    if (line->joined) ncclCommDestroy(line->comm);
    if (line->full) cudaEventDestroy(line->full);
    if (line->summed) cudaEventDestroy(line->summed);
    if (line->own && !stream_of(line->device)) cudaStreamDestroy(line->own);
    cudaGetLastError();
    free(line);
}

static const char *line_new(int device, void *stream, tni_nccl_line **made)
{
    tni_nccl_line *line = (tni_nccl_line *)calloc(1, sizeof *line);
    *made = NULL;
    if (!line) return "out of memory";
    line->device = device;
    line->program = (cudaStream_t)stream;
    line->own = stream_of(device);
    line->next = lines;
    lines = line;
    const char *failed = CUDA_CALL(cudaSetDevice, device);
    if (!failed && !line->own)
        failed = CUDA_CALL(cudaStreamCreateWithFlags, &line->own, cudaStreamNonBlocking);
    if (!failed) failed = CUDA_CALL(cudaEventCreateWithFlags, &line->full, cudaEventDisableTiming);
    if (!failed)
        failed = CUDA_CALL(cudaEventCreateWithFlags, &line->summed, cudaEventDisableTiming);
    if (failed)
        line_free(line);
    else
        *made = line;
    return failed;
}

static const char *key_new(void *key)
{
    ncclUniqueId id;
    const char *failed = of_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId", NULL);
    if (!failed) memcpy(key, &id, sizeof id);
    return failed;
}

/* In the thread and the call of line_new: its GPU is the current one. A failure before the ranks
 * have met would leave the other ranks waiting. */
static const char *line_join(tni_nccl_line *line, const void *key, int rank, int size)
{
    ncclUniqueId id;
    memcpy(&id, key, sizeof id);
    const char *failed =
        of_nccl(ncclCommInitRank(&line->comm, size, id, rank), "ncclCommInitRank", NULL);
    line->joined = !failed;
    return failed;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static ncclDataType_t type_of(tn_dtype dtype)
{
    return dtype == TN_F32    ? ncclFloat32
           : dtype == TN_F64  ? ncclFloat64
           : dtype == TN_BF16 ? ncclBfloat16
                              : ncclInt64;
}

static const char *sum_begin(tni_nccl_line *line, void *data, size_t n, tn_dtype dtype)
{
    const char *failed = look(line);
    if (!failed) failed = CUDA_CALL(cudaEventRecord, line->full, line->program);
    if (!failed) failed = CUDA_CALL(cudaStreamWaitEvent, line->own, line->full, 0);
    if (failed) return failed;
    return of_nccl(ncclAllReduce(data, data, n, type_of(dtype), ncclSum, line->comm, line->own),
                   "ncclAllReduce", line->comm);
}

static const char *wait(tni_nccl_line *line)
{
    const char *failed = look(line);
    if (!failed) failed = CUDA_CALL(cudaEventRecord, line->summed, line->own);
    return failed ? failed : CUDA_CALL(cudaStreamWaitEvent, line->program, line->summed, 0);
}

static void finish(void)
{
    for (const tni_nccl_line *line = lines; line; line = line->next) settle(line);
}

/* ---- opening --------------------------------------------------------------------------------- */

#ifdef __cplusplus
extern "C"
#endif
    TN_API const tni_nccl *
    tenon_nccl_open(const char *id, char *why, size_t size);

const tni_nccl *tenon_nccl_open(const char *id, char *why, size_t size)
{
    static const tni_nccl table = {
        line_new, key_new, line_join, line_free, sum_begin, wait, finish
    };
    if (strcmp(id, TNI_NCCL_ID) != 0) {
        snprintf(why, size, "it was built for %s: want %s", TNI_NCCL_ID, id);
        return NULL;
    }
    return &table;
}
