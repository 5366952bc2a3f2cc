/*
 * graph.cpp - stream capture and graphs: while the stream is captured, what would go into the queue
 * goes into a list, closures with their arguments by value; launching puts the list into the queue.
 *
 * Stricter than CUDA on purpose: a capture holds kernels, copies between device or page-locked
 * memory, fills and cuBLAS. Whatever waits, allocates, frees or records an event there makes it
 * invalid.
 */
#include "cuda_runtime.h"

#include <cstdio>
#include <vector>

#include "internal.h"

typedef std::vector<std::function<void()>> work_list;

struct cuda_host_graph {
    work_list work;
};
struct cuda_host_graph_exec {
    work_list work;
};

namespace cuda_host {

static cuda_host_graph *open; /* the capture that is recorded */
static cudaStream_t stream_of;
static bool invalid;
static long long alive; /* graphs of both kinds */

bool record(std::function<void()> &work)
{
    if (!open) return false;
    if (!invalid) open->work.push_back(std::move(work));
    return true;
}

bool captured(cudaStream_t stream)
{
    return open && (stream == stream_of || !stream);
}

cudaError_t refuse_in_capture(const char *function)
{
    std::fprintf(stderr, "cuda_host: %s while a stream is captured\n", function);
    invalid = true;
    return failed(cudaErrorStreamCaptureUnsupported);
}

bool capture_invalid()
{
    return open && invalid;
}

} /* namespace cuda_host */

using cuda_host::failed;

#define CALL(error)                                                                                \
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);                                   \
    if (cuda_host::fails(__func__)) return failed(error)

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    CALL(cudaErrorUnknown);
    (void)mode;
    if (!stream) return failed(cudaErrorStreamCaptureImplicit);
    if (cuda_host::open) return cuda_host::refuse_in_capture(__func__);
    cuda_host::open = new cuda_host_graph();
    cuda_host::alive++;
    cuda_host::stream_of = stream;
    cuda_host::invalid = false;
    return cudaSuccess;
}

/* A call made to fail ends the capture too, as an invalid one. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);
    bool fails = cuda_host::fails(__func__);
    cuda_host_graph *made = cuda_host::open;

    *graph = nullptr;
    if (!cuda_host::captured(stream)) return failed(cudaErrorInvalidValue);
    cuda_host::open = nullptr;
    if (fails || cuda_host::invalid) {
        delete made;
        cuda_host::alive--;
        return failed(cudaErrorStreamCaptureInvalidated);
    }
    *graph = made;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    CALL(cudaErrorMemoryAllocation);
    (void)flags;
    *exec = new cuda_host_graph_exec{ graph->work };
    cuda_host::alive++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    CALL(cudaErrorUnknown);
    if (cuda_host::captured(stream)) return cuda_host::refuse_in_capture(__func__);
    for (const std::function<void()> &work : exec->work) cuda_host::enqueue(work);
    return cudaSuccess;
}

/* A call that fails, on request or because the device is lost, still frees. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);
    bool fails = cuda_host::fails(__func__);

    delete exec;
    cuda_host::alive--;
    return fails ? failed(cudaErrorUnknown) : cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);
    bool fails = cuda_host::fails(__func__);

    delete graph;
    cuda_host::alive--;
    return fails ? failed(cudaErrorUnknown) : cudaSuccess;
}

/* Graphs and executable graphs that are alive. */
extern "C" __attribute__((visibility("default"))) long long cuda_host_graphs(void)
{
    std::lock_guard<std::recursive_mutex> hold(cuda_host::lock);
    return cuda_host::alive;
}
