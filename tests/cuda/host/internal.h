/*
 * internal.h - what the shim's own files share.
 */
#ifndef CUDA_HOST_INTERNAL_H
#define CUDA_HOST_INTERNAL_H

#include "cuda_runtime.h"

#include <functional>
#include <mutex>

#pragma GCC visibility push(hidden)

namespace cuda_host {

/* One for everything: the queue, the memory, the threads of a block. */
extern std::recursive_mutex lock;

/* The kernel that runs failed: nothing works any more, and the text is the reason. */
void set_fault(const char *text, bool quiet = false);
bool is_lost();

/* Counts a call of a runtime or library function: true when it is to fail (forced, or the device is
 * lost). Launches are named after their kernel. forced.cpp */
bool fails(const char *function, const char *kernel = nullptr);

/* The error for the call that just failed on request; cudaSuccess: its own. forced.cpp */
cudaError_t forced_error();

/* block.cpp: gives up the block; `what`: what the running thread did. */
[[noreturn]] void fail_thread(const char *what);

/*
 * races.cpp, in modules that have it (else nullptr): is told what the threads of a kernel do. They
 * are ordered by block barriers, and by __syncwarp of a whole warp.
 */
enum access_kind {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_ATOMIC_READ,
    ACCESS_ATOMIC,
    COPY_BEGINS,
    COPY_ENDS
};
struct observer {
    void (*grid)(const void *shared, size_t nbytes); /* a launch begins */
    /* its next block begins: blockIdx */
    void (*block)();
    void (*thread)(int thread, const void *stack, size_t size); /* continues on this stack */
    void (*barrier)(int line);                                  /* all threads of the block met */
    void (*warp)(int first, int line);                          /* so did the lanes of a warp */
    void (*end)();                                              /* of the launch */
    void (*access)(access_kind kind, const void *at, size_t size, const void *from);
};
extern const observer *looking;
/* runtime.cpp: the block of device memory around a place; nullptr: none. */
const void *device_block(const void *at);

/* mma.cpp: drops what an earlier grid left; whether a thread has not waited for its copies. */
void instructions_begin();
bool copies_under_way(int thread);

/* Sets the thread's last error: error, or the fault when the device is lost. */
cudaError_t failed(cudaError_t error);

/* To be run in the order of the stream. */
void enqueue(std::function<void()> work);
/* Runs all that waits. */
void flush();
cudaError_t flushed(); /* a host that waits for it */
bool is_flushing();
bool all_done();
/* Runs something that uses device memory. */
void open_memory(const std::function<void()> &work);
void settle();    /* the streams are of the current device */
int device_now(); /* this thread's current one */

/* streams.cpp: a stream beside the first one has a queue of its own. Its work runs as soon as what
 * it waits for is done, if that is so when it is given; else as late as somebody waits for it, or
 * after some milliseconds. Work of the first one goes into the queue. */
void enqueue_in(cudaStream_t stream, std::function<void()> work);
/* streams.cpp: whether it is another one than the first; how often events were recorded in the
 * first so far, and at the last one that this stream waits for. */
bool is_other(cudaStream_t stream);
long long recorded_so_far();
long long has_seen(cudaStream_t stream);
void drop_side_streams();
/* The program ends: nobody may be there to wait for. Before the lock is wanted, whose holder may be
 * waiting for another process. */
void end_waiting();
bool is_ending();

/* graph.cpp: takes the work into the graph that is being captured; false: there is none. */
bool record(std::function<void()> &work);
bool captured(cudaStream_t stream);
/* A call that a graph cannot hold: the capture is invalid from here on. */
cudaError_t refuse_in_capture(const char *function);
bool capture_invalid();

} /* namespace cuda_host */

#pragma GCC visibility pop

#endif
