/*
 * block.cpp - one block at a time, its threads on stacks of their own.
 *
 * A worker is a stack that runs threads: when its thread ends it starts the next one that has not
 * begun, so kernels without barriers run as plain calls on a single stack. When its thread must
 * wait, another worker goes on: with a thread that may continue, or with one that has not begun.
 */
#include "cuda_runtime.h"

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <sys/mman.h>
#include <vector>

#include "internal.h"

#ifdef ASAN /* it looks at the kernels, not at this file (meson.build), but is told of the stacks */
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

/* Made before, and destroyed after, the queue of runtime.cpp, whose kernels run at the end, too. */
#define OUTLIVES __attribute__((init_priority(101)))

cuda_host_index threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_host {

/* ---- stacks ---------------------------------------------------------------------------------- */

#ifdef ASAN
enum { STACK = 512 << 10, GUARD = 4096 };
#else
enum { STACK = 128 << 10, GUARD = 4096 };
#endif

struct worker {
#ifdef __x86_64__
    void *sp = nullptr;
#else
    ucontext_t context;
#endif
    char *stack = nullptr; /* nullptr: the stack of the caller */
    const void *bottom = nullptr;
    size_t size = 0;
    void *fake = nullptr; /* the sanitizer's */
    int thread = -1;
};

const observer *looking;

static worker caller;
static worker *running = &caller;

static void work();

#ifdef __x86_64__
/* Saves what a call must keep, stores the stack pointer in *from, continues at to. */
extern "C" void cuda_host_switch(void **from, void *to);
asm(".text\n"
    ".hidden cuda_host_switch\n"
    ".globl cuda_host_switch\n"
    ".type cuda_host_switch, @function\n"
    "cuda_host_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size cuda_host_switch, .-cuda_host_switch\n");
#endif

static void arrived(worker *from)
{
#ifdef ASAN
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(running->fake, &bottom, &size);
    if (from == &caller) {
        caller.bottom = bottom;
        caller.size = size;
    }
#else
    (void)from;
#endif
}

static worker *came_from;

static void switch_to(worker *to)
{
    worker *from = running;

    running = to;
    came_from = from;
#ifdef ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
#ifdef __x86_64__
    cuda_host_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived(came_from);
}

static void entry()
{
    arrived(came_from);
    work(); /* never returns */
    std::abort();
}

static void prepare(worker *w)
{
    w->fake = nullptr;
    w->thread = -1;
#ifdef ASAN
    __asan_unpoison_memory_region(w->stack + GUARD, STACK);
#endif
#ifdef __x86_64__
    /* as if entry had been called: its return address ends at a multiple of 16 */
    void **top = reinterpret_cast<void **>(w->stack + GUARD + STACK);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    w->sp = top;
#else
    getcontext(&w->context);
    w->context.uc_stack.ss_sp = w->stack + GUARD;
    w->context.uc_stack.ss_size = STACK;
    w->context.uc_link = nullptr;
    makecontext(&w->context, entry, 0);
#endif
}

static std::vector<std::unique_ptr<worker>> workers OUTLIVES;
static std::vector<worker *> idle OUTLIVES;

static worker *take_worker()
{
    if (idle.empty()) {
        auto w = std::make_unique<worker>();
        void *stack = mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE) != 0) {
            std::fprintf(stderr, "cuda_host: no memory for a thread's stack\n");
            std::abort();
        }
        w->stack = static_cast<char *>(stack);
        w->bottom = w->stack + GUARD;
        w->size = STACK;
        prepare(w.get());
        idle.push_back(w.get());
        workers.push_back(std::move(w));
    }
    worker *w = idle.back();
    idle.pop_back();
    return w;
}

/* ---- the block that runs --------------------------------------------------------------------- */

struct rendezvous { /* lanes that wait for each other */
    unsigned mask, arrived;
    warp_kind kind;
    int line;
};

struct lanes {
    uint64_t value[32], result[32];
    int from[32];
    int open;
    rendezvous groups[32]; /* the first `open` */
};

static struct {
    const char *name;
    const std::function<void()> *body;
    int n, begun, ended, waiting;
    bool backward, failed;
    std::vector<worker *> of; /* where a waiting thread is */
    std::vector<cuda_host_index> index;
    std::vector<int> ready; /* ring */
    int ready_first, ready_count;
    int line, sum, result;
    barrier_kind kind;
    std::vector<lanes> warps;
    std::vector<char> over;
    std::unique_ptr<char[]> shared;
} block OUTLIVES;

void *dynamic_shared()
{
    return block.shared.get();
}

static int here()
{
    return running->thread;
}

int lane()
{
    return here() & 31;
}

static void enter(int thread)
{
    running->thread = thread;
    threadIdx = block.index[static_cast<size_t>(thread)];
    if (looking) looking->thread(thread, running->bottom, running->size);
}

/* Gives up the block: returns to the caller, who drops all stacks. */
[[noreturn, gnu::format(printf, 1, 2), gnu::cold]] static void fail(const char *format, ...)
{
    char what[384], text[512];
    va_list arguments;

    va_start(arguments, format);
    std::vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    std::snprintf(text, sizeof text, "kernel %s, block (%u,%u,%u), thread %d: %s", block.name,
                  blockIdx.x, blockIdx.y, blockIdx.z, here(), what);
    set_fault(text);
    block.failed = true;
    switch_to(&caller);
    std::abort();
}

void fail_thread(const char *what)
{
    fail("%s", what);
}

static void wake(int thread)
{
    int at = block.ready_first + block.ready_count++;
    block.ready[static_cast<size_t>(at < block.n ? at : at - block.n)] = thread;
}

/* The worker of the next thread to run; nullptr: none can continue. */
static worker *next_worker()
{
    if (block.ready_count > 0) {
        int thread = block.ready[static_cast<size_t>(block.ready_first)];
        if (++block.ready_first == block.n) block.ready_first = 0;
        block.ready_count--;
        return block.of[static_cast<size_t>(thread)];
    }
    return block.begun < block.n ? take_worker() : nullptr;
}

static void wait()
{
    int thread = here();

    block.of[static_cast<size_t>(thread)] = running;
    worker *next = next_worker();
    if (!next) fail("waits, and so does every other thread, not all for the same");
    switch_to(next);
    enter(thread);
}

static void work()
{
    for (;;) {
        while (block.begun < block.n) {
            int thread = block.backward ? block.n - 1 - block.begun : block.begun;
            block.begun++;
            enter(thread);
            (*block.body)();
            block.ended++;
            block.over[static_cast<size_t>(thread)] = 1;
            if (block.waiting > 0) fail("has ended, others wait at __syncthreads");
            if (copies_under_way(thread)) fail("has ended before its copies");
        }
        if (block.ended == block.n) {
            switch_to(&caller); /* keeps this stack; others are idle */
        } else {
            worker *next = next_worker();
            if (!next) fail("has ended, others wait for it");
            idle.push_back(running);
            switch_to(next);
        }
    }
}

int barrier(barrier_kind kind, int value, int line)
{
    if (block.ended > 0) fail("waits at __syncthreads, others have ended");
    if (block.waiting == 0) {
        block.kind = kind;
        block.line = line;
        block.sum = 0;
    } else if (block.line != line || block.kind != kind) {
        fail("waits at line %d, others at line %d", line, block.line);
    }
    block.sum += value;
    if (++block.waiting < block.n) {
        wait();
        return block.result;
    }
    block.waiting = 0;
    block.result = kind == BARRIER_AND  ? block.sum == block.n
                   : kind == BARRIER_OR ? block.sum != 0
                                        : block.sum;
    if (looking) looking->barrier(line);
    for (int t = 0; t < block.n; t++)
        if (t != here()) wake(t);
    return block.result;
}

static void meet(lanes *w, const rendezvous *g)
{
    unsigned ballot = 0;

    for (int i = 0; i < 32; i++)
        if (g->mask >> i & 1 && w->value[i] != 0) ballot |= 1u << i;
    for (int i = 0; i < 32; i++) {
        if (!(g->mask >> i & 1)) continue;
        if (g->kind == WARP_SHUFFLE) {
            /* a lane that does not take part has no value to give */
            w->result[i] = g->mask >> w->from[i] & 1 ? w->value[w->from[i]] : 0xa5a5a5a5a5a5a5a5u;
        } else if (g->kind == WARP_BALLOT) {
            w->result[i] = ballot;
        } else if (g->kind == WARP_MATCH) {
            w->result[i] = 0;
            for (int k = 0; k < 32; k++)
                if (g->mask >> k & 1 && w->value[k] == w->value[i]) w->result[i] |= 1u << k;
        }
    }
}

static void check_mask(unsigned mask, int first, int self, int line)
{
    if (!(mask >> self & 1)) fail("calls a warp function whose mask leaves it out");
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        if (first + i >= block.n || block.over[static_cast<size_t>(first + i)])
            fail("line %d: mask %#x names lane %d, which %s", line, mask, i,
                 first + i >= block.n ? "the block does not have" : "has ended");
    }
}

uint64_t warp(warp_kind kind, unsigned mask, uint64_t value, int from, int line)
{
    int first = here() & ~31;
    int self = here() & 31;
    lanes *w = &block.warps[static_cast<size_t>(first / 32)];
    rendezvous *g = nullptr;

    for (int i = 0; i < w->open; i++) {
        if (w->groups[i].mask == mask) {
            g = &w->groups[i];
        } else if (w->groups[i].mask >> self & 1) {
            fail("line %d: mask %#x, other lanes wait at line %d with %#x", line, mask,
                 w->groups[i].line, w->groups[i].mask);
        }
    }
    if (!g) {
        check_mask(mask, first, self, line);
        g = &w->groups[w->open++];
        *g = rendezvous{ mask, 0, kind, line };
    } else if (g->line != line || g->kind != kind || !(mask >> self & 1)) {
        fail("calls a warp function at line %d, other lanes at line %d", line, g->line);
    }
    g->arrived |= 1u << self;
    w->value[self] = value;
    w->from[self] = from;
    if (g->arrived != mask) {
        wait();
        return w->result[self];
    }
    meet(w, g);
    /* The other functions of a warp exchange values; by CUDA's documentation they order no
     * memory. */
    if (looking && kind == WARP_WAIT && mask == 0xffffffffu) looking->warp(first, line);
    *g = w->groups[--w->open];
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && i != self) wake(first + i);
    return w->result[self];
}

/* ---- the grid -------------------------------------------------------------------------------- */

bool run_grid(const char *name, dim3 grid, dim3 threads, size_t shared,
              const std::function<void()> &body, bool backward)
{
    uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    size_t n = static_cast<size_t>(threads.x) * threads.y * threads.z;

    blockDim = threads;
    gridDim = grid;
    block.name = name;
    block.body = &body;
    block.n = static_cast<int>(n);
    block.backward = backward;
    block.failed = false;
    block.of.assign(n, nullptr);
    block.index.resize(n);
    for (unsigned i = 0; i < n; i++)
        block.index[i] = { i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y };
    block.ready.assign(n, 0);
    block.warps.assign((n + 31) / 32, lanes());
    block.shared.reset(new char[shared ? shared : 1]);
    instructions_begin();
    if (looking) looking->grid(block.shared.get(), shared);
    worker *first = take_worker();
    for (uint64_t b = 0; b < blocks && !block.failed; b++) {
        uint64_t i = backward ? blocks - 1 - b : b;
        blockIdx.x = static_cast<unsigned>(i % grid.x);
        blockIdx.y = static_cast<unsigned>(i / grid.x % grid.y);
        blockIdx.z = static_cast<unsigned>(i / grid.x / grid.y);
        block.begun = block.ended = block.waiting = 0;
        block.ready_first = block.ready_count = 0;
        block.over.assign(n, 0);
        std::memset(block.shared.get(), 0xa5, shared);
        if (looking) looking->block();
        switch_to(first);
        first = came_from; /* the worker whose thread ended last */
    }
    if (looking) looking->end();
    if (!block.failed) {
        idle.push_back(first);
        return true;
    }
    idle.clear();
    for (auto &w : workers) {
        prepare(w.get());
        idle.push_back(w.get());
    }
    return false;
}

} /* namespace cuda_host */
