/*
 * nccl.cpp - sums over the processes of one machine, in the order of a stream (streams.cpp),
 * through a file of shared memory that the id names: a slot for each rank, filled and read in
 * pieces.
 *
 * Like NCCL it refuses two ranks on one device, and adds bf16 with a rounding at every addition. It
 * breaks the device where NCCL would wait for ever or give wrong numbers: when the ranks' calls do
 * not fit together. It refuses a sum while one of another communicator is on its way in another
 * stream: CUDA does not promise that the two go on side by side, so two ranks that begin with
 * different ones may wait for ever. TN_NCCL_BROKEN=n in the environment: rank n learns of a failure
 * that nobody's call returned, after its third sum.
 */
#include "nccl.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "internal.h"
#include "tensor/math.h"

enum { MOST_RANKS = 64, SLOT = 1 << 20 };

/* What a rank's call says; all must say the same. */
struct call {
    size_t n;
    int type;
    long long number;
};

struct shared_part {
    std::atomic<int> joined;
    std::atomic<unsigned> arrived, round;
    int device[MOST_RANKS];
    call said[MOST_RANKS];
};

struct cuda_host_comm {
    shared_part *all;
    char *slots;
    size_t size;
    int rank, ranks;
    long long given, done; /* sums */
    cudaStream_t stream;   /* of the last one */
};

/* This rank's; never destroyed. */
static std::vector<cuda_host_comm *> &comms = *new std::vector<cuda_host_comm *>();

static thread_local char last_text[256];

static ncclResult_t refuse(ncclResult_t result, const char *text)
{
    std::snprintf(last_text, sizeof last_text, "%s", text);
    return result;
}

typedef std::lock_guard<std::recursive_mutex> guard;
#define CALL                                                                                       \
    guard hold(cuda_host::lock);                                                                   \
    if (cuda_host::fails(__func__)) return refuse(ncclSystemError, "failed on request")

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_text;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int made;
    CALL;
    std::memset(id, 0, sizeof *id);
    std::snprintf(id->internal, sizeof id->internal, "/tenon-nccl-%ld-%ld-%d",
                  static_cast<long>(getpid()), static_cast<long>(std::time(nullptr)), made++);
    return ncclSuccess;
}

/* ---- all ranks together ---------------------------------------------------------------------- */

static void nap()
{
    usleep(20);
}

/* Returns when all ranks are here; false: this one ends meanwhile. */
static bool meet(cuda_host_comm *c)
{
    unsigned round = c->all->round;
    if (c->all->arrived.fetch_add(1) + 1 == static_cast<unsigned>(c->ranks)) {
        c->all->arrived = 0;
        c->all->round++;
        return true;
    }
    while (c->all->round == round) {
        if (cuda_host::is_ending()) return false;
        nap();
    }
    return true;
}

static ncclResult_t map(cuda_host_comm *c, const char *name)
{
    c->size = sizeof(shared_part) + static_cast<size_t>(c->ranks) * SLOT;
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    bool sized = file >= 0 && ftruncate(file, static_cast<off_t>(c->size)) == 0;
    void *at =
        sized ? mmap(nullptr, c->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    if (at == MAP_FAILED) return refuse(ncclSystemError, "no shared memory");
    c->all = static_cast<shared_part *>(at); /* of zeros, which is how its atomics begin */
    c->slots = static_cast<char *>(at) + sizeof(shared_part);
    return ncclSuccess;
}

static bool join(cuda_host_comm *c, const char *name)
{
    c->all->device[c->rank] = cuda_host::device_now();
    c->all->joined++;
    while (c->all->joined < c->ranks) nap();
    if (c->rank == 0) shm_unlink(name);
    for (int i = 0; i < c->ranks; i++)
        for (int k = 0; k < i; k++)
            if (c->all->device[i] == c->all->device[k]) {
                std::snprintf(last_text, sizeof last_text,
                              "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d",
                              i, k, c->all->device[i]);
                return false;
            }
    return true;
}

/* Never made to fail: the other ranks would wait, as with NCCL. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    guard hold(cuda_host::lock);
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks || id.internal[0] != '/')
        return refuse(ncclInvalidArgument, "ranks, rank or id");
    cuda_host_comm *c = new cuda_host_comm();
    c->rank = rank;
    c->ranks = ranks;
    ncclResult_t result = map(c, id.internal);
    if (result == ncclSuccess && !join(c, id.internal)) {
        munmap(c->all, c->size);
        result = ncclInvalidUsage;
    }
    if (result == ncclSuccess)
        comms.push_back(*comm = c);
    else
        delete c;
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    CALL;
    if (comm->done < comm->given) {
        std::fprintf(stderr, "cuda_host: a communicator is destroyed with sums on their way\n");
        return refuse(ncclInvalidUsage, "sums are on their way");
    }
    comms.erase(std::remove(comms.begin(), comms.end(), comm), comms.end());
    munmap(comm->all, comm->size);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    CALL;
    const char *broken = std::getenv("TN_NCCL_BROKEN");
    bool here = broken && std::atoi(broken) == comm->rank && comm->given > 3;
    *error = here ? ncclRemoteError : ncclSuccess;
    if (here) refuse(ncclRemoteError, "a rank is gone");
    return ncclSuccess;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static size_t size_of(int type)
{
    return type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 8;
}

static uint16_t add(uint16_t a, uint16_t b)
{
    return tn_to_bf16(tn_from_bf16(a) + tn_from_bf16(b));
}

template <typename T> static T add(T a, T b)
{
    return a + b;
}

template <typename T> static void add_slots(const cuda_host_comm *c, void *to, size_t nbytes)
{
    T *sum = static_cast<T *>(to);
    for (size_t i = 0; i < nbytes / sizeof(T); i++) {
        for (int r = 0; r < c->ranks; r++) {
            T theirs;
            std::memcpy(&theirs, c->slots + static_cast<size_t>(r) * SLOT + i * sizeof(T),
                        sizeof(T));
            sum[i] = r == 0 ? theirs : add(sum[i], theirs);
        }
    }
}

static void add_up(const cuda_host_comm *c, void *to, size_t nbytes, int type)
{
    switch (type) {
    case ncclBfloat16: add_slots<uint16_t>(c, to, nbytes); break;
    case ncclFloat32: add_slots<float>(c, to, nbytes); break;
    case ncclFloat64: add_slots<double>(c, to, nbytes); break;
    default: add_slots<int64_t>(c, to, nbytes); break;
    }
}

static bool all_say(const cuda_host_comm *c, const call &own)
{
    for (int r = 0; r < c->ranks; r++) {
        const call &other = c->all->said[r];
        if (other.n != own.n || other.type != own.type || other.number != own.number) return false;
    }
    return true;
}

static void run(cuda_host_comm *c, const char *from, char *to, call own)
{
    c->done++;
    c->all->said[c->rank] = own;
    if (!meet(c)) return;
    if (!all_say(c, own)) {
        cuda_host::set_fault("the ranks' sums do not fit together");
        return;
    }
    if (!meet(c)) return; /* all have read what was said */
    size_t left = own.n * size_of(own.type);
    while (left) {
        size_t nbytes = left < SLOT ? left : static_cast<size_t>(SLOT);
        std::memcpy(c->slots + static_cast<size_t>(c->rank) * SLOT, from, nbytes);
        if (!meet(c)) return;
        add_up(c, to, nbytes, own.type);
        if (!meet(c)) return;
        from += nbytes;
        to += nbytes;
        left -= nbytes;
    }
}

static bool two_streams(cudaStream_t stream)
{
    for (const cuda_host_comm *c : comms)
        if (c->done < c->given && c->stream != stream) return true;
    return false;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    CALL;
    if (op != ncclSum) return refuse(ncclInvalidArgument, "only sums are here");
    if (cuda_host::captured(stream)) return refuse(ncclInvalidUsage, "inside of a capture");
    if (n && (!cuda_host::device_block(from) || !cuda_host::device_block(to)))
        return refuse(ncclInvalidArgument, "no device memory");
    if (two_streams(stream))
        return refuse(ncclInvalidUsage, "sums are on their way in two streams");
    call own = { n, type, comm->given++ };
    comm->stream = stream;
    cuda_host::enqueue_in(stream, [=]() {
        run(comm, static_cast<const char *>(from), static_cast<char *>(to), own);
    });
    return ncclSuccess;
}
