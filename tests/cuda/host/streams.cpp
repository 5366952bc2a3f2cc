/*
 * streams.cpp - streams and events.
 *
 * All work of the first stream, and what launches, copies and frees memory in any stream, goes into
 * the queue of runtime.cpp. A stream that waits for events, as the one of NCCL's sums does, has a
 * queue of its own beside it. Its work runs at once when all that it waits for is done: a wait that
 * is missing shows, because the numbers are not there yet. Work that has to wait runs as late as it
 * may: when another stream, or the host, waits for an event behind it. So a wait that is missing
 * there shows too. A real device goes on by itself, and other processes may depend on it: after
 * some milliseconds a thread does that here.
 */
#include "cuda_runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "internal.h"

typedef std::chrono::steady_clock now_of;

/* Work, or (event) a wait until the event's record `number` is done. */
struct step {
    std::function<void()> work;
    cudaEvent_t event;
    long long number;
};

struct cuda_host_stream {
    bool beside; /* it has steps of its own */
    std::deque<step> steps;
    now_of::time_point since; /* the last one came */
    long long seen;           /* the order of the last event of the first stream it waits for */
};

struct cuda_host_event {
    long long recorded, done; /* how often */
    cudaStream_t stream;      /* of the last record */
    long long order;          /* of that, among those in the first stream; 0: in another one */
};

namespace cuda_host {

typedef std::lock_guard<std::recursive_mutex> guard;

static const std::chrono::milliseconds PATIENCE(5);

static cudaStream_t first;
static std::vector<cudaStream_t> &beside = *new std::vector<cudaStream_t>(); /* never destroyed */
static std::atomic<bool> ending;
static long long records; /* in the first stream */

bool is_ending()
{
    return ending;
}

static bool is_beside(cudaStream_t stream)
{
    return stream && stream->beside;
}

/* Takes one step; false: it has to wait. force: what it waits for is made to happen. */
static bool take_step(cudaStream_t stream, bool force)
{
    step &front = stream->steps.front();
    cudaEvent_t event = front.event;
    long long number = front.number;
    if (event && event->done < number) {
        if (!force) return false;
        if (is_flushing()) {
            set_fault("two streams wait for each other");
            stream->steps.clear();
            return false;
        }
        flush(); /* may take steps here, too */
        if (event->done < number && !is_lost())
            set_fault("a stream waits for an event that nobody records");
        return !is_lost();
    }
    std::function<void()> work = std::move(front.work);
    stream->steps.pop_front();
    if (work && !is_lost()) open_memory(work);
    return true;
}

/* Everything up to the event's record `number`; nullptr: everything. */
static void run(cudaStream_t stream, cudaEvent_t event, long long number)
{
    while (!stream->steps.empty() && !(event && event->done >= number))
        if (!take_step(stream, true)) break;
}

static void run_all()
{
    for (cudaStream_t s : beside) run(s, nullptr, 0);
}

/* The device goes on although nobody waits for it. */
static void go_on()
{
    while (!ending) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        guard hold(lock);
        for (cudaStream_t s : beside)
            if (!ending && !s->steps.empty() && now_of::now() - s->since > PATIENCE)
                run(s, nullptr, 0);
    }
}

static void put_beside(cudaStream_t stream, step s)
{
    static bool started;
    if (!started) std::thread(go_on).detach();
    started = true;
    if (!stream->beside) beside.push_back(stream);
    stream->beside = true;
    stream->steps.push_back(std::move(s));
    stream->since = now_of::now();
    while (!stream->steps.empty() && take_step(stream, false)) {
    }
}

void enqueue_in(cudaStream_t stream, std::function<void()> work)
{
    if (!stream || stream == first)
        enqueue(std::move(work));
    else
        put_beside(stream, { std::move(work), nullptr, 0 });
}

bool is_other(cudaStream_t stream)
{
    return stream && stream != first;
}

long long recorded_so_far()
{
    return records;
}

long long has_seen(cudaStream_t stream)
{
    return stream->seen;
}

void drop_side_streams()
{
    for (cudaStream_t s : beside) s->steps.clear();
}

void end_waiting()
{
    ending = true;
}

} /* namespace cuda_host */

using cuda_host::failed;
using cuda_host::guard;

#define CALL(error)                                                                                \
    guard hold(cuda_host::lock);                                                                   \
    if (cuda_host::fails(__func__)) return failed(error)
#define NOT_CAPTURED(stream)                                                                       \
    if (cuda_host::captured(stream)) return cuda_host::refuse_in_capture(__func__)

static cudaError_t ran(cudaStream_t stream, cudaEvent_t event, long long number)
{
    cuda_host::run(stream, event, number);
    return cuda_host::is_lost() ? failed(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    CALL(cudaErrorUnknown);
    NOT_CAPTURED(nullptr);
    cuda_host::run_all();
    return cuda_host::flushed();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CALL(cudaErrorMemoryAllocation);
    (void)flags;
    *stream = new cuda_host_stream();
    if (!cuda_host::first) {
        cuda_host::first = *stream;
        cuda_host::settle();
    }
    return cudaSuccess;
}

/* Like cudaFreeAsync, a call that fails still destroys. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard hold(cuda_host::lock);
    bool fails = cuda_host::fails(__func__);
    auto &list = cuda_host::beside;
    if (stream->beside) cuda_host::run(stream, nullptr, 0);
    list.erase(std::remove(list.begin(), list.end(), stream), list.end());
    if (stream == cuda_host::first) cuda_host::first = nullptr;
    delete stream;
    return fails ? failed(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CALL(cudaErrorUnknown);
    NOT_CAPTURED(stream);
    return cuda_host::is_beside(stream) ? ran(stream, nullptr, 0) : cuda_host::flushed();
}

/* "Not ready" is no failure, yet stays the thread's last error as one does. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CALL(cudaErrorUnknown);
    NOT_CAPTURED(stream);
    bool done = cuda_host::is_beside(stream) ? stream->steps.empty() : cuda_host::all_done();
    return done ? cudaSuccess : failed(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CALL(cudaErrorInvalidValue);
    NOT_CAPTURED(stream);
    (void)flags;
    long long number = event->recorded;
    if (stream) stream->seen = std::max(stream->seen, event->order);
    if (event->done >= number) return cudaSuccess;
    cudaStream_t of = event->stream;
    if (stream && stream != cuda_host::first)
        cuda_host::put_beside(stream, { nullptr, event, number });
    else if (cuda_host::is_beside(of))
        cuda_host::enqueue([=]() { cuda_host::run(of, event, number); });
    return cudaSuccess; /* else both are of the queue: already in order */
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    CALL(cudaErrorUnknown);
    (void)stream;
    cuda_host::enqueue([=]() { function(user); });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CALL(cudaErrorMemoryAllocation);
    (void)flags;
    *event = new cuda_host_event();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard hold(cuda_host::lock);
    const bool fails =
        cuda_host::fails(__func__); /* it tells of work before it; the event is gone */
    cuda_host::flush();
    cuda_host::run_all();
    delete event;
    return fails ? cuda_host::failed(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CALL(cudaErrorInvalidValue);
    NOT_CAPTURED(stream);
    long long number = ++event->recorded;
    auto note = [=]() { event->done = std::max(event->done, number); };
    event->stream = stream;
    event->order = cuda_host::is_other(stream) ? 0 : ++cuda_host::records;
    if (cuda_host::is_beside(stream))
        cuda_host::put_beside(stream, { note, nullptr, 0 });
    else
        cuda_host::enqueue(note);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CALL(cudaErrorInvalidValue);
    return event->done >= event->recorded ? cudaSuccess : failed(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    CALL(cudaErrorInvalidValue);
    NOT_CAPTURED(nullptr);
    if (event->done >= event->recorded) return cudaSuccess;
    if (cuda_host::is_beside(event->stream)) return ran(event->stream, event, event->recorded);
    return cuda_host::flushed();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    CALL(cudaErrorInvalidValue);
    (void)start;
    (void)end;
    *ms = 0;
    return cudaSuccess;
}
