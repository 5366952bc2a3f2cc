/*
 * thread_pool.c - threads that wait for work, take it chunk by chunk, and sleep when there is none.
 *
 * A run divides its chunks into one share per member. A member takes chunks from the front of its
 * own share, so that the next kernel finds its data in the same cache, and then from the shares of
 * the others: a preempted thread holds up only one chunk. A helper that does not wake up before the
 * run ends is not waited for. Which thread works on which chunk varies from run to run; results do
 * not, since borders and sums depend only on the chunk's number.
 *
 * Waiting: first a short spin, because the next kernel of a training step follows within
 * microseconds; then sleep (a futex), so that no thread spins between steps, or competes with
 * another program for the core. With more threads than processors nobody spins.
 *
 * One word, `state`, orders everything: the number of helpers inside, the number of free seats, and
 * the number of the run. A helper enters by taking a seat with compare-and-swap, after which the
 * caller waits for it to leave before it touches the description of the run again.
 *
 * A sleeper says that it goes to sleep and looks once more; a waker changes the word and looks for
 * sleepers. Neither look may overtake the write before it. The writes are exchanges, since qemu 7.2
 * on x86 lets a load pass a plain store of an emulated Arm program, and then nobody wakes up.
 */
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "tensor/cpu/thread_pool.h"
#include "tensor/internal.h"

/* state: helpers inside, seats, number of the run, and the end */
#define ONE_INSIDE 1u
#define INSIDE 0x3ffu
#define ONE_SEAT 0x400u
#define SEATS 0xffc00u
#define ONE_RUN 0x100000u
#define RUNS 0x7ff00000u
#define QUIT 0x80000000u

/* Measured (docs/measurements.md). The serial parts of a step are nearly always shorter than
 * SPIN_NS. Another member may still be in a chunk, so the wait lasts as long as a chunk did, and
 * SPIN_NS more: a thread that is not done by then was pushed off its processor. */
enum { SPIN_NS = 100000, MOST_SPIN_NS = 5000000 };

typedef struct thread_pool thread_pool;

/* The rest of a member's chunks: [next, end). Member 0 is the caller, the others have a thread. */
typedef struct member {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
    thread_pool *pool;
    pthread_t thread;
} member;

struct thread_pool {
    _Alignas(64) atomic_uint state;
    _Alignas(64) atomic_int sleepers; /* helpers asleep or about to sleep */
    atomic_uint waiting;              /* 1: the caller sleeps until the last helper has left */
    /* the run: written only while nobody is inside and no seat is free */
    tni_chunk f;
    void *context;
    int64_t n, grain;
    int shares;
    unsigned fp_control;
    /* the pool */
    int wanted, helpers; /* helpers requested; threads started */
    bool spins;
    member member[];
};

static TNI_THREAD struct {
    thread_pool *pool; /* this thread's own, as a caller */
    int worker;
    bool busy;
} self;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_thread_end;

int tni_worker(void)
{
    return self.worker;
}

bool tni_thread_pool_busy(void)
{
    return self.busy;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word is value; may return early. */
static void sleep_on(atomic_uint *word, unsigned value)
{
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
    if (atomic_load(word) == value) usleep(50);
#endif
}

static void wake(atomic_uint *word, int n)
{
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
#else
    (void)word, (void)n;
#endif
}

/* Spins until ready(state) or time runs out; returns the last state seen. */
static unsigned spin(thread_pool *t, bool (*ready)(unsigned state, unsigned seen), unsigned seen,
                     int64_t ns)
{
    unsigned state = atomic_load_explicit(&t->state, memory_order_acquire);
    if (ns == 0 || ready(state, seen)) return state;
    for (int64_t end = tni_nanoseconds() + ns; tni_nanoseconds() < end;)
        for (int i = 0; i < 16; i++) {
            relax();
            state = atomic_load_explicit(&t->state, memory_order_acquire);
            if (ready(state, seen)) return state;
        }
    return state;
}

static bool there_is_work(unsigned state, unsigned seen)
{
    return state & QUIT || ((state & SEATS) && (state & RUNS) != seen);
}

static bool all_have_left(unsigned state, unsigned seen)
{
    (void)seen;
    return !(state & INSIDE);
}

/* ---- working --------------------------------------------------------------------------------- */

/* Rounding mode and flush-to-zero, which are per thread; exceptions stay masked in helpers. */
static inline unsigned fp_control(void)
{
#if defined(__SSE__)
    return (__builtin_ia32_stmxcsr() & 0xe040u) | 0x1f80u;
#else
    return 0;
#endif
}

static inline void set_fp_control(unsigned control)
{
#if defined(__SSE__)
    if (fp_control() != control) __builtin_ia32_ldmxcsr(control);
#else
    (void)control;
#endif
}

/* How long to spin afterwards, in ns. */
static int64_t work(thread_pool *t, int number)
{
    int outer = self.worker;
    int64_t began = t->spins ? tni_nanoseconds() : 0, chunks = 0;
    self.busy = true;
    self.worker = number;
    for (int k = 0; k < t->shares; k++) {
        member *s = &t->member[(number + k) % t->shares];
        while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
            int64_t i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
            if (i >= s->end) break;
            int64_t begin = i * t->grain;
            t->f(t->context, begin, TNI_MIN(t->n, begin + t->grain));
            chunks++;
        }
    }
    self.worker = outer;
    self.busy = false;
    if (!t->spins) return 0;
    int64_t of_a_chunk = chunks > 0 ? (tni_nanoseconds() - began) / chunks : 0;
    return TNI_MIN(SPIN_NS + of_a_chunk, MOST_SPIN_NS);
}

static void leave(thread_pool *t)
{
    unsigned before = atomic_fetch_sub_explicit(&t->state, ONE_INSIDE, memory_order_seq_cst);
    if ((before & INSIDE) == ONE_INSIDE && atomic_exchange(&t->waiting, 0)) wake(&t->waiting, 1);
}

static unsigned wait_for_work(thread_pool *t, unsigned seen, int64_t patience)
{
    for (;;) {
        unsigned state = spin(t, there_is_work, seen, patience);
        if (there_is_work(state, seen)) return state;
        atomic_fetch_add(&t->sleepers, 1);
        state = atomic_load(&t->state);
        if (!there_is_work(state, seen)) sleep_on(&t->state, state);
        atomic_fetch_sub(&t->sleepers, 1);
    }
}

static void *help(void *argument)
{
    const member *own = argument;
    thread_pool *t = own->pool;
    const int number = (int)(own - t->member);
    unsigned seen = 0;
    int64_t patience = 0;
    tni_blas_stay_single();
    for (;;) {
        unsigned state = wait_for_work(t, seen, patience);
        if (state & QUIT) return NULL;
        if (!atomic_compare_exchange_strong(&t->state, &state, state + ONE_INSIDE - ONE_SEAT))
            continue;
        seen = state & RUNS;
        set_fp_control(t->fp_control);
        patience = work(t, number);
        leave(t);
    }
}

static void wait_for_helpers(thread_pool *t, int64_t patience)
{
    unsigned state = spin(t, all_have_left, 0, patience);
    while (!all_have_left(state, 0)) {
        atomic_exchange(&t->waiting, 1);
        state = atomic_load(&t->state);
        if (!all_have_left(state, 0)) sleep_on(&t->waiting, 1);
        state = atomic_load(&t->state);
    }
    atomic_store_explicit(&t->waiting, 0, memory_order_relaxed);
}

static void run(thread_pool *t, int64_t chunks)
{
    int seats = (int)TNI_MIN(chunks - 1, t->helpers);
    int64_t from = 0;
    t->shares = seats + 1;
    for (int i = 0; i < t->shares; i++) {
        int64_t count = chunks / t->shares + (i < chunks % t->shares);
        atomic_store_explicit(&t->member[i].next, from, memory_order_relaxed);
        t->member[i].end = from += count;
    }
    unsigned state = atomic_load_explicit(&t->state, memory_order_relaxed); /* nobody is inside */
    atomic_exchange(&t->state, ((state + ONE_RUN) & RUNS) | (unsigned)seats * ONE_SEAT);
    if (atomic_load(&t->sleepers) > 0) wake(&t->state, seats);
    int64_t patience = work(t, 0);
    atomic_fetch_and(&t->state, ~SEATS);
    wait_for_helpers(t, patience);
}

/* ---- making and ending a pool ---------------------------------------------------------------- */

static void end_pool(void *argument)
{
    thread_pool *t = argument;
    atomic_fetch_or(&t->state, QUIT);
    wake(&t->state, t->helpers);
    for (int i = 1; i <= t->helpers; i++) pthread_join(t->member[i].thread, NULL);
    free(t);
}

/* A forked child has only the thread that called fork. */
static void forget_pool(void)
{
    thread_pool *t = self.pool;
    if (!t) return;
    self.pool = NULL;
    pthread_setspecific(at_thread_end, NULL);
    free(t);
}

static void set_up(void)
{
    pthread_key_create(&at_thread_end, end_pool);
    pthread_atfork(NULL, NULL, forget_pool);
}

static void start_helpers(thread_pool *t)
{
    for (; t->helpers < t->wanted; t->helpers++) {
        member *new = &t->member[t->helpers + 1];
        new->pool = t;
        if (tni_thread_start(&new->thread, help, new) != 0) break; /* make do with fewer */
    }
}

/* This thread's pool with that many members, or as many as could be started; NULL: out of memory.
 * Not from the library's allocator, since a pool outlives every tensor. */
static thread_pool *pool_of(int members)
{
    thread_pool *t = self.pool;
    if (t && t->wanted == members - 1) return t;
    pthread_once(&once, set_up);
    if (t) {
        self.pool = NULL;
        pthread_setspecific(at_thread_end, NULL);
        end_pool(t);
    }
    size_t nbytes = sizeof *t + (size_t)members * sizeof(member);
    t = aligned_alloc(64, (nbytes + 63) / 64 * 64);
    if (!t) return NULL;
    memset(t, 0, nbytes);
    if (pthread_setspecific(at_thread_end, t) != 0) return free(t), NULL;
    t->wanted = members - 1;
    t->spins = members <= tni_processors();
    start_helpers(t);
    self.pool = t;
    return t;
}

void tni_thread_pool_run(int members, int64_t n, int64_t grain, tni_chunk f, void *context)
{
    int64_t chunks = n > 0 ? (n - 1) / grain + 1 : 0;
    thread_pool *t = members > 1 && chunks > 1 && !self.busy ? pool_of(members) : NULL;
    if (t && t->helpers > 0) {
        t->f = f;
        t->context = context;
        t->n = n;
        t->grain = grain;
        t->fp_control = fp_control();
        run(t, chunks);
        return;
    }
    int outer = self.worker;
    self.worker = 0;
    for (int64_t i = 0; i < chunks; i++) f(context, i * grain, TNI_MIN(n, (i + 1) * grain));
    self.worker = outer;
}
