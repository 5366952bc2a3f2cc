/*
 * races.cpp - finds races: two threads of a kernel access the same byte, at least one of them
 * writing, and nothing orders them; in shared memory and in the device's.
 *
 * The units of src/cuda are compiled with -fsanitize=thread but not linked with its library: the
 * calls that the compiler puts before each access come here. Threads run one at a time, so the
 * detector checks not what happened to collide but what was ordered:
 *     threads of a block   by __syncthreads
 *     lanes of a warp      by __syncwarp of the whole warp; shuffles and votes order no memory, nor
 *                          does __syncwarp with another mask here
 *     blocks of a launch   by nothing. A lock or a count of blocks that are done is not understood:
 *                          what it guards must be volatile or atomic, which never races with its
 *                          like
 *     launches             always: there is one stream
 * A copy that does not pass through registers (cp.async) writes from its issue to its thread's
 * wait; nobody may touch the place meanwhile. Shared memory that no thread of the block has written
 * must not be read.
 *
 * The kernel fails with both places in its message; TN_CUDA_RACES=list writes each pair of places
 * once, and goes on. A race is found if both accesses are made, in whatever order, and the cell
 * still knows the first: the last write, and two of the reads since (more are not needed: below).
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <unordered_map>
#include <vector>

#include "internal.h"

extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[], __bss_start[], _end[];

namespace cuda_host {

/* ---- who and when ---------------------------------------------------------------------------- */

/*
 * An access in one number, lowest bits first: what (2), thread (10), how often its warp had met
 * since the last barrier (18), epoch (34). A new epoch begins with every block and at every
 * barrier, so that numbers of one block are in the order of its barriers, and those of launches in
 * theirs.
 */
typedef uint64_t stamp;
enum { THREAD_AT = 2, WARP_AT = 7, MEETING_AT = 12, EPOCH_AT = 30 };
/* What: of an entry of cell::seen the kind of access, of cell::write the state of the cell. */
enum { WRITTEN, COPYING, SPLIT };

struct begun {
    stamp first;
    unsigned x, y, z;
};

/* This and the cells are never destroyed: kernels that wait in the queue run when the program
 * ends. */
static struct {
    stamp grid, block, epoch; /* the first of each */
    stamp now;                /* of the running thread, what: 0 */
    int thread;
    uint32_t meetings[32]; /* of each warp, since the barrier */
    uintptr_t stack, stack_size, shared, shared_size;
    std::vector<begun> *blocks; /* of this launch */
} at;

static void stamp_now()
{
    at.now = at.epoch + (static_cast<stamp>(at.meetings[at.thread / 32]) << MEETING_AT) +
             (static_cast<stamp>(at.thread) << THREAD_AT);
}

static void new_epoch()
{
    at.epoch += static_cast<stamp>(1) << EPOCH_AT;
    std::memset(at.meetings, 0, sizeof at.meetings);
    stamp_now();
}

static void grid_begins(const void *shared, size_t nbytes)
{
    at.shared = reinterpret_cast<uintptr_t>(shared);
    at.shared_size = nbytes;
    at.blocks->clear();
    new_epoch();
    at.grid = at.epoch;
}

static void block_begins()
{
    new_epoch();
    at.block = at.epoch;
    at.blocks->push_back({ at.epoch, blockIdx.x, blockIdx.y, blockIdx.z });
}

static void thread_goes_on(int thread, const void *stack, size_t size)
{
    at.thread = thread;
    at.stack = reinterpret_cast<uintptr_t>(stack);
    at.stack_size = size;
    stamp_now();
}

/* The line of a barrier to ignore: the race that it prevents must then be found (barriers.sh). */
static const char *const line_asked = std::getenv("TN_CUDA_WITHOUT");
static const int without = line_asked ? std::atoi(line_asked) : -1;

static void block_meets(int line)
{
    if (line != without) new_epoch();
}

static void warp_meets(int first, int line)
{
    if (line == without) return;
    if (++at.meetings[first / 32] >= 1u << (EPOCH_AT - MEETING_AT)) std::abort();
    stamp_now();
}

static void grid_ends()
{
    at.stack_size = 0;
}

static int thread_of(stamp s)
{
    return static_cast<int>(s >> THREAD_AT & 1023);
}

/* Whether all that the stamp's thread did until then precedes what the running thread does now.
 * Stamps older than `first` always do. */
static bool before(stamp s, stamp first)
{
    if (s < first) return true;
    if (s < at.block) return false; /* another block of this launch */
    if (s < at.epoch || thread_of(s) == at.thread) return true;
    return (s >> WARP_AT & 31) == (at.now >> WARP_AT & 31) &&
           s >> MEETING_AT < at.now >> MEETING_AT;
}

/* ---- cells ----------------------------------------------------------------------------------- */

/*
 * Four bytes, or one where threads have accessed them differently (SPLIT: the four are elsewhere).
 * seen: reads and atomic accesses since the write, of those that are ordered the last. Two of the
 * others are enough if they belong to different warps or blocks, since whoever writes is unordered
 * with one of them; and within a warp too, until it meets.
 */
struct cell {
    stamp write, seen[2];
    uint32_t write_from, seen_from[2]; /* return addresses, from the start of the module */
};

enum { PAGE = 4096 };
struct page {
    cell cells[PAGE / 4];
};

static auto &pages = *new std::unordered_map<uintptr_t, page *>();
static struct {
    uintptr_t number;
    page *p;
} recent[1024];
static std::vector<cell> &bytes = *new std::vector<cell>(); /* fours */
static std::vector<uint32_t> &free_bytes = *new std::vector<uint32_t>();

static cell *cell_of(uintptr_t word)
{
    uintptr_t number = word / PAGE;
    auto *r = &recent[number % 1024];

    if (r->number != number || !r->p) {
        page *&p = pages[number];
        if (!p) {
            void *memory = mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) std::abort();
            p = static_cast<page *>(memory);
        }
        *r = { number, p };
    }
    return &r->p->cells[word % PAGE / 4];
}

static cell *split(cell *c)
{
    if ((c->write & 3) == SPLIT) return &bytes[c->write >> 2];
    uint32_t i;
    if (free_bytes.empty()) {
        i = static_cast<uint32_t>(bytes.size());
        bytes.resize(bytes.size() + 4);
    } else {
        i = free_bytes.back();
        free_bytes.pop_back();
    }
    for (int k = 0; k < 4; k++) bytes[i + static_cast<uint32_t>(k)] = *c;
    *c = cell();
    c->write = static_cast<stamp>(i) << 2 | SPLIT;
    return &bytes[i];
}

/* ---- reports --------------------------------------------------------------------------------- */

/* "reduce.h:86 < reduce.cu:20", or module+offset without debug information. */
static std::string place(uint32_t from)
{
    Dl_info info;

    if (!dladdr(__ehdr_start, &info)) info.dli_fname = "?";
    char line[512];
    std::snprintf(line, sizeof line, "addr2line -i -e '%s' %#x 2>/dev/null", info.dli_fname,
                  from - 1);
    std::string text;
    if (std::FILE *lines = popen(line, "r")) {
        while (std::fgets(line, sizeof line, lines)) {
            char *name = std::strrchr(line, '/');
            name = name ? name + 1 : line;
            name[std::strcspn(name, " \n")] = '\0';
            if (name[0] == '?' || std::strncmp(line, "/usr/", 5) == 0 ||
                std::strncmp(name, "cuda_host", 9) == 0)
                continue;
            if (!text.empty()) text += " < ";
            text += name;
        }
        pclose(lines);
    }
    if (text.empty()) {
        const char *name = std::strrchr(info.dli_fname, '/');
        std::snprintf(line, sizeof line, "%s+%#x", name ? name + 1 : info.dli_fname, from - 1);
        text = line;
    }
    return text;
}

static std::string who(stamp s)
{
    if (s >= at.block) return "thread " + std::to_string(thread_of(s));
    auto b = std::upper_bound(at.blocks->begin(), at.blocks->end(), s,
                              [](stamp x, const begun &y) { return x < y.first; });
    if (b == at.blocks->begin()) return "?";
    --b;
    char text[64];
    std::snprintf(text, sizeof text, "block (%u,%u,%u), thread %d", b->x, b->y, b->z, thread_of(s));
    return text;
}

static std::string where(uintptr_t p, bool shared)
{
    char text[96];
    const void *start = device_block(reinterpret_cast<void *>(p));

    if (p - at.shared < at.shared_size) {
        std::snprintf(text, sizeof text, "byte %zu of dynamic shared memory", p - at.shared);
    } else if (shared) {
        std::snprintf(text, sizeof text, "%#zx in shared memory",
                      static_cast<size_t>(p - reinterpret_cast<uintptr_t>(__bss_start)));
    } else if (start) {
        std::snprintf(text, sizeof text, "byte %zu of a device block",
                      static_cast<size_t>(p - reinterpret_cast<uintptr_t>(start)));
    } else {
        std::snprintf(text, sizeof text, "%#zx in memory", static_cast<size_t>(p));
    }
    return text;
}

/* other: 0, there was none. */
static void report(const char *act, uintptr_t p, bool shared, uint32_t from, const char *did,
                   stamp other, uint32_t other_from)
{
    static auto &told = *new std::set<std::pair<uint32_t, uint32_t>>();
    const char *how = std::getenv("TN_CUDA_RACES");
    bool list = how && std::strcmp(how, "list") == 0;
    uintptr_t stack_size = at.stack_size;

    if (list && !told.insert({ from, other_from }).second) return;
    grid_ends(); /* the code that writes the message is not checked */
    std::string text =
        std::string(act) + " " + where(p, shared) + " at " + place(from) + ", " + did;
    if (other) text += " " + who(other) + " at " + place(other_from);
    if (!list) fail_thread(text.c_str());
    std::fprintf(stderr, "cuda_host: race: block (%u,%u,%u), thread %d: %s\n", blockIdx.x,
                 blockIdx.y, blockIdx.z, at.thread, text.c_str());
    at.stack_size = stack_size;
}

/* ---- accesses -------------------------------------------------------------------------------- */

static bool conflict(access_kind a, access_kind b)
{
    static const bool yes[4][4] = {
        /* read, write, atomic read, atomic */
        { false, true, false, true },
        { true, true, true, true },
        { false, true, false, false },
        { true, true, false, false },
    };
    return yes[a][b];
}

static const char *const doing[] = { "reads", "writes", "reads", "changes", "writes", "writes" };
static const char *const done[] = { "unordered with the read of", "unordered with the write of",
                                    "unordered with the read of", "unordered with the change of" };

/* Whether a new entry of this kind may replace this one. */
static bool replaced(stamp s, access_kind kind, stamp first)
{
    access_kind was = static_cast<access_kind>(s & 3);
    return s < first || (before(s, first) && (was == kind || was == ACCESS_ATOMIC_READ));
}

static void note(cell *c, access_kind kind, stamp first, uint32_t from)
{
    stamp mine = at.now | kind;
    int i = 0;

    if (!replaced(c->seen[0], kind, first)) {
        i = 1;
        if (!replaced(c->seen[1], kind, first) && c->seen[0] >= at.epoch &&
            c->seen[1] >= at.epoch && (c->seen[0] >> WARP_AT & 31) != (c->seen[1] >> WARP_AT & 31))
            return;
    } else if (replaced(c->seen[1], kind, first)) {
        c->seen[1] = 0;
    }
    c->seen[i] = mine;
    c->seen_from[i] = from;
}

static void touch(cell *c, access_kind kind, bool shared, uintptr_t p, uint32_t from)
{
    stamp first = shared ? at.block : at.grid;
    access_kind as = kind >= COPY_BEGINS ? ACCESS_WRITE : kind;

    if (as == ACCESS_READ && (c->seen[0] == at.now || c->seen[1] == at.now) &&
        (c->write & 3) == WRITTEN)
        return; /* as before, and nobody has written since */
    if (c->write >= first) {
        if ((c->write & 3) == COPYING && !(kind == COPY_ENDS && thread_of(c->write) == at.thread)) {
            report(doing[kind], p, shared, from, "where a copy is under way of", c->write,
                   c->write_from);
        } else if (!before(c->write, first)) {
            report(doing[kind], p, shared, from, done[ACCESS_WRITE], c->write, c->write_from);
        }
    } else if (shared && as != ACCESS_WRITE &&
               (c->seen[0] < first || (c->seen[0] & 3) != ACCESS_ATOMIC) &&
               (c->seen[1] < first || (c->seen[1] & 3) != ACCESS_ATOMIC)) {
        report(doing[kind], p, shared, from, "which nobody has written", 0, 0);
    }
    for (int i = 0; i < 2; i++) {
        access_kind was = static_cast<access_kind>(c->seen[i] & 3);
        if (c->seen[i] < first || !conflict(as, was) || before(c->seen[i], first)) continue;
        report(doing[kind], p, shared, from, done[was], c->seen[i], c->seen_from[i]);
    }
    if (as == ACCESS_WRITE) {
        c->write = at.now | (kind == COPY_BEGINS ? COPYING : WRITTEN);
        c->write_from = from;
        c->seen[0] = c->seen[1] = 0;
    } else {
        note(c, as, first, from);
    }
}

/* The indices of the running thread, which kernels read as they read shared memory. */
static bool is_index(uintptr_t p)
{
    return p - reinterpret_cast<uintptr_t>(&threadIdx) < sizeof threadIdx ||
           p - reinterpret_cast<uintptr_t>(&blockIdx) < sizeof blockIdx ||
           p - reinterpret_cast<uintptr_t>(&blockDim) < sizeof blockDim ||
           p - reinterpret_cast<uintptr_t>(&gridDim) < sizeof gridDim;
}

static void look(access_kind kind, const void *place, size_t size, const void *caller)
{
    uintptr_t p = reinterpret_cast<uintptr_t>(place), end = p + size;
    /* Host code, also of another thread meanwhile, is not on the stack of the kernel's thread. */
    if (reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) - at.stack >= at.stack_size) return;
    if (p - at.stack < at.stack_size) return;
    bool fixed =
        p >= reinterpret_cast<uintptr_t>(__bss_start) && p < reinterpret_cast<uintptr_t>(_end);
    if (fixed && is_index(p)) return;
    bool shared = fixed || p - at.shared < at.shared_size;
    uint32_t from = static_cast<uint32_t>(static_cast<const char *>(caller) - __ehdr_start);

    while (p < end) {
        uintptr_t word = p & ~static_cast<uintptr_t>(3);
        uintptr_t stop = std::min(end, word + 4);
        cell *c = cell_of(word);
        if (stop - p == 4 && (c->write & 3) != SPLIT) {
            touch(c, kind, shared, p, from);
        } else {
            cell *four = split(c);
            for (uintptr_t b = p; b < stop; b++) touch(four + (b - word), kind, shared, b, from);
            if (stop - p == 4 && kind == ACCESS_WRITE) { /* all alike again */
                free_bytes.push_back(static_cast<uint32_t>(c->write >> 2));
                *c = four[0];
            }
        }
        p = stop;
    }
}

static const observer detector = { grid_begins, block_begins, thread_goes_on,
                                   block_meets, warp_meets,   grid_ends,
                                   look };
static struct beginning {
    beginning()
    {
        at.blocks = new std::vector<begun>;
        looking = &detector;
    }
} from_here_on;

void atomic_access(const void *place, size_t size, const void *from)
{
    look(ACCESS_ATOMIC, place, size, from);
}

} /* namespace cuda_host */

/* ---- what the compiler calls ----------------------------------------------------------------- */

using cuda_host::look;

extern "C" {
#define HERE __builtin_return_address(0)
#define HOOK __attribute__((visibility("hidden"))) void

/* clang-format off */
#define CUDA_HOST_ACCESSES(n)                                                                          \
    HOOK __tsan_read##n(void *p) { look(cuda_host::ACCESS_READ, p, n, HERE); }                         \
    HOOK __tsan_write##n(void *p) { look(cuda_host::ACCESS_WRITE, p, n, HERE); }                       \
    HOOK __tsan_unaligned_read##n(void *p) { look(cuda_host::ACCESS_READ, p, n, HERE); }               \
    HOOK __tsan_unaligned_write##n(void *p) { look(cuda_host::ACCESS_WRITE, p, n, HERE); }             \
    HOOK __tsan_volatile_read##n(void *p) { look(cuda_host::ACCESS_ATOMIC_READ, p, n, HERE); }         \
    HOOK __tsan_volatile_write##n(void *p) { look(cuda_host::ACCESS_ATOMIC, p, n, HERE); }             \
    HOOK __tsan_unaligned_volatile_read##n(void *p)                                                    \
    {                                                                                                  \
        look(cuda_host::ACCESS_ATOMIC_READ, p, n, HERE);                                               \
    }                                                                                                  \
    HOOK __tsan_unaligned_volatile_write##n(void *p) { look(cuda_host::ACCESS_ATOMIC, p, n, HERE); }
CUDA_HOST_ACCESSES(1)
CUDA_HOST_ACCESSES(2)
CUDA_HOST_ACCESSES(4)
CUDA_HOST_ACCESSES(8)
CUDA_HOST_ACCESSES(16)
HOOK __tsan_read_range(void *p, size_t size) { look(cuda_host::ACCESS_READ, p, size, HERE); }
HOOK __tsan_write_range(void *p, size_t size) { look(cuda_host::ACCESS_WRITE, p, size, HERE); }
HOOK __tsan_vptr_read(void **) {}
HOOK __tsan_vptr_update(void **, void *) {}
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void *) {}
HOOK __tsan_func_exit() {}
/* clang-format on */

__attribute__((visibility("hidden"))) void *cuda_host_memcpy(void *to, const void *from,
                                                             size_t size)
{
    look(cuda_host::ACCESS_READ, from, size, HERE);
    look(cuda_host::ACCESS_WRITE, to, size, HERE);
    return std::memcpy(to, from, size);
}

/* std::atomic in the host's code: as it was. */
#define CUDA_HOST_STD_ATOMICS(bits, T)                                                             \
    T __tsan_atomic##bits##_load(const volatile T *p, int)                                         \
    {                                                                                              \
        return __atomic_load_n(p, 5);                                                              \
    }                                                                                              \
    HOOK __tsan_atomic##bits##_store(volatile T *p, T v, int)                                      \
    {                                                                                              \
        __atomic_store_n(p, v, 5);                                                                 \
    }                                                                                              \
    T __tsan_atomic##bits##_exchange(volatile T *p, T v, int)                                      \
    {                                                                                              \
        return __atomic_exchange_n(p, v, 5);                                                       \
    }                                                                                              \
    T __tsan_atomic##bits##_fetch_add(volatile T *p, T v, int)                                     \
    {                                                                                              \
        return __atomic_fetch_add(p, v, 5);                                                        \
    }                                                                                              \
    T __tsan_atomic##bits##_fetch_sub(volatile T *p, T v, int)                                     \
    {                                                                                              \
        return __atomic_fetch_sub(p, v, 5);                                                        \
    }                                                                                              \
    T __tsan_atomic##bits##_fetch_or(volatile T *p, T v, int)                                      \
    {                                                                                              \
        return __atomic_fetch_or(p, v, 5);                                                         \
    }                                                                                              \
    T __tsan_atomic##bits##_fetch_and(volatile T *p, T v, int)                                     \
    {                                                                                              \
        return __atomic_fetch_and(p, v, 5);                                                        \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *p, T *old, T v, int, int)        \
    {                                                                                              \
        return __atomic_compare_exchange_n(p, old, v, false, 5, 5);                                \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T *p, T *old, T v, int, int)          \
    {                                                                                              \
        return __atomic_compare_exchange_n(p, old, v, true, 5, 5);                                 \
    }
CUDA_HOST_STD_ATOMICS(8, uint8_t)
CUDA_HOST_STD_ATOMICS(32, uint32_t)
CUDA_HOST_STD_ATOMICS(64, uint64_t)
}
