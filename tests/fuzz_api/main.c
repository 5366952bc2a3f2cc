/*
 * main.c - runs sequences of random calls, or the sweeps, in a child process, so that a crash is a
 * finding like any other: the parent reports where it was and continues after it.
 *
 *     fuzz_api [--seed S] [--calls N | --minutes M]   random sequences
 *     fuzz_api --sweep odd | memory | malloc          every row, every argument; every allocation
 *     fuzz_api --threads T ...                        on T threads at once, each with objects of
 *                                                     its own
 *     fuzz_api --replay SEED:SEQUENCE                 one of them again, saying every call
 *     fuzz_api --row NAME ...                         of a sweep, this row only
 *     fuzz_api --traps 1 ...                          in a host that traps floating point
 *     fuzz_api --list                                 the names of the rows
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../scarce.h"
#include "call.h"
#include "draw.h"
#include "pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0 /* a sanitizer reports more about a crash than the call's name */
#endif

enum { LENGTH = 60, BATCH = 200, SECONDS = 120 };

typedef struct options {
    uint64_t seed;
    int64_t calls;
    double minutes;
    int threads;
    const char *sweep, *row;
    bool replay, no_cache;
    uint64_t sequence;
} options;

/* Shared by parent and child: where the child is, and what it has done. */
typedef struct shared {
    _Atomic uint64_t next; /* sequence, or row of a sweep */
    _Atomic int64_t calls, failed_calls, found;
    const row *_Atomic row;
    _Atomic int64_t call;
    uint64_t digest[BATCH]; /* of the sequences of one batch */
    bool done;
} shared;
static shared *common;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static world *new_world(bool alone)
{
    world *w = calloc(1, sizeof *w);
    const char *place = getenv("TMPDIR"),
               *root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    if (place && *place) root = place;
    if (!w) abort();
    snprintf(w->folder, sizeof w->folder, "%s/fuzz_api-XXXXXX", root);
    w->sink = fopen("/dev/null", "w");
    if (!mkdtemp(w->folder) || !w->sink) abort();
    w->alone = alone;
    return w;
}

static void free_world(world *w)
{
    rmdir(w->folder);
    fclose(w->sink);
    free(w);
}

static uint64_t sequence_seed(uint64_t seed, uint64_t sequence)
{
    return mix(mix(7, seed), sequence);
}

/* ---- what a child does ----------------------------------------------------------------------- */

/* The same calls with 1, 2 and 3 threads for a kernel: the same bits. */
static void one_sequence(world *w, const options *o, uint64_t sequence)
{
    uint64_t seed = sequence_seed(o->seed, sequence), digest = 0;
    int64_t tight = memory.tight;
    w->refusing = sequence % 3 == 2;
    for (int threads = 1; threads <= 3; threads++) {
        findings.seed = o->seed;
        findings.sequence = sequence;
        tn_set_num_threads(threads);
        run_sequence(w, seed, LENGTH);
        if (threads > 1 && !w->refusing && memory.tight == tight && w->digest != digest &&
            !w->broken) {
            w->row = NULL;
            finding(w, "other results with %d threads than with one", threads);
        }
        digest = w->digest;
        if (w->broken) break;
    }
    tn_set_num_threads(1);
    common->digest[sequence % BATCH] = w->refusing || memory.tight > tight ? 0 : digest;
}

static world *watched;
static void stopped(int signal) /* tells the parent where it was */
{
    common->row = watched->row;
    common->call = watched->calls;
    _exit(128 + signal);
}

static void child_sequences(world *w, const options *o)
{
    for (uint64_t end = (common->next / BATCH + 1) * BATCH; common->next < end; common->next++) {
        alarm(SECONDS);
        int64_t calls = w->calls, failures = w->failed_calls;
        one_sequence(w, o, common->next);
        common->calls += w->calls - calls;
        common->failed_calls += w->failed_calls - failures;
    }
}

/* For each part of a row's arguments and each odd value: a sound call with this one part odd. */
static void sweep_odd(world *w, const row *r, uint64_t seed)
{
    for (int cut = 0, more = 1; more; cut++) {
        more = 0;
        for (int way = 0, ways = 1; way < ways; way++) {
            begin_sequence(w, seed);
            w->mode = SWEEP;
            w->cut = cut;
            w->way = way;
            call_row(w, r, (refusal){ -1, false, false });
            ways = w->ways;
            more |= w->drawn > cut;
            end_sequence(w);
            tn_set_num_threads(1);
            check_nothing_left(w);
        }
    }
}

/* A sound call whose k-th request for memory is refused, alone or with all later ones. */
static void sweep_memory(world *w, const row *r, uint64_t seed, bool of_malloc)
{
    for (int for_good = 0; for_good < 2; for_good++) {
        bool refused = true;
        for (int64_t k = -1; refused && k < 3000; k++) {
            int64_t failures = w->failed_calls;
            begin_sequence(w, seed);
            w->mode = SOUND;
            refused = call_row(w, r, (refusal){ k, for_good, of_malloc }) || k < 0;
            end_sequence(w);
            if (k < 0) w->ought = w->failed_calls == failures;
            check_nothing_left(w);
        }
    }
    w->ought = false;
}

static void child_sweep(world *w, const options *o)
{
    for (; common->next < (uint64_t)n_rows; common->next++) {
        const row *r = &rows[common->next];
        if (o->row && strcmp(o->row, r->name) != 0) continue;
        alarm(SECONDS);
        int64_t calls = w->calls, failures = w->failed_calls;
        findings.seed = o->seed;
        findings.sequence = common->next;
        for (uint64_t i = 0; i < 8; i++) {
            uint64_t seed = sequence_seed(o->seed, i);
            if (strcmp(o->sweep, "odd") == 0)
                sweep_odd(w, r, seed);
            else
                sweep_memory(w, r, seed, strcmp(o->sweep, "malloc") == 0);
        }
        common->calls += w->calls - calls;
        common->failed_calls += w->failed_calls - failures;
    }
}

/* Runs threads in parallel, each in its own world, until each has made its share of calls. */
typedef struct share {
    const options *o;
    int index;
} share;
static void *run_thread(void *arg)
{
    share *s = arg;
    world *w = new_world(false);
    findings.total = &common->found;
    for (uint64_t i = 0; w->calls < s->o->calls / s->o->threads; i++) {
        findings.seed = s->o->seed;
        findings.sequence = i;
        run_sequence(w, sequence_seed(s->o->seed + 1000 * (uint64_t)s->index, i), LENGTH);
    }
    common->calls += w->calls;
    common->failed_calls += w->failed_calls;
    free_world(w);
    return NULL;
}
static void child_threads(world *w, const options *o)
{
    pthread_t thread[64];
    share s[64];
    for (int i = 0; i < o->threads; i++) {
        s[i] = (share){ o, i };
        if (pthread_create(&thread[i], NULL, run_thread, &s[i]) != 0) abort();
    }
    for (int i = 0; i < o->threads; i++) pthread_join(thread[i], NULL);
    check_nothing_left(w);
    common->next = UINT64_MAX;
}

/* The OpenMP runtime below OpenBLAS ends the process if it gets no memory for its first team. */
static void warm_up(void)
{
    tn_scope s = tn_scope_begin();
    tn_tensor *a = tn_ones(TN_SHAPE(300, 300));
    tn_matmul(a, a);
    tn_scope_end(s);
}

/* Runs to the end of the batch or sweep; the exit status says whether it got there. */
static int child(const options *o)
{
    world *w = new_world(true);
    int report = dup(STDOUT_FILENO), null = open("/dev/null", O_WRONLY);
    findings.file = fdopen(report, "w");
    if (null < 0 || !findings.file) abort();
    dup2(null, STDOUT_FILENO); /* tn_print writes there */
    findings.total = &common->found;
    watched = w;
    signal(SIGALRM, stopped);
    if (!TEST_SANITIZED)
        for (int i = 0; i < 4; i++) signal((int[]){ SIGSEGV, SIGBUS, SIGFPE, SIGABRT }[i], stopped);
    tn_set_allocator(o->threads == 1 ? &limited_allocator : &modest_allocator);
    tn_set_num_threads(1);
    w->verbose = o->replay;
    if (chdir(w->folder) != 0) abort(); /* files with odd names end up there */
    warm_up();
    if (o->replay) {
        common->next = o->sequence;
        one_sequence(w, o, o->sequence);
    } else if (o->threads > 1) {
        child_threads(w, o);
    } else if (o->sweep) {
        child_sweep(w, o);
    } else {
        child_sequences(w, o);
    }
    free_world(w);
    return 0;
}

/* ---- the parent ------------------------------------------------------------------------------ */

/* Runs a child from common->next on. True if it reached the end; else reports why it died. */
static bool run_child(const options *o)
{
    fflush(NULL);
    common->row = NULL;
    pid_t pid = fork();
    if (pid == 0) exit(child(o));
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
    const row *r = common->row;
    printf("%" PRIu64 ":%" PRIu64 " call %" PRId64 ": died of %s in %s\n", o->seed, common->next,
           common->call, signal > 0 ? strsignal(signal) : "a sanitizer's finding",
           r ? r->name : "?");
    common->found++;
    return false;
}

static void run_sweep(const options *o)
{
    /* it would answer in the hook's place */
    if (strcmp(o->sweep, "odd") != 0) setenv("TN_CACHE", "0", 1);
    while (common->next < (uint64_t)n_rows)
        if (!run_child(o)) common->next++;
}

/* Batch after batch; every fourth a second time without the allocator's cache: the same bits. */
static void run_random(const options *o)
{
    double start = now();
    while (o->minutes > 0 ? now() - start < 60 * o->minutes : common->calls < o->calls) {
        static uint64_t digest[BATCH];
        uint64_t first = common->next;
        bool whole = run_child(o);
        if (!whole) {
            common->next++;
            continue;
        }
        if (first % BATCH || first / BATCH % 4) continue;
        memcpy(digest, common->digest, sizeof digest);
        common->next = first;
        setenv("TN_CACHE", "0", 1);
        whole = run_child(o);
        unsetenv("TN_CACHE");
        for (int i = 0; whole && i < BATCH; i++)
            if (digest[i] && common->digest[i] && digest[i] != common->digest[i]) {
                printf("%" PRIu64 ":%" PRIu64 ": other results without the cache\n", o->seed,
                       first + (uint64_t)i);
                common->found++;
            }
        common->next = first + BATCH;
    }
}

static options read_options(int argc, char **argv)
{
    options o = { .seed = 1, .calls = 20000, .threads = 1 };
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--list") == 0) {
            for (int j = 0; j < n_rows; j++) puts(rows[j].name);
            exit(0);
        }
        if (strcmp(argv[i], "--seed") == 0)
            o.seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--calls") == 0)
            o.calls = strtoll(value, NULL, 10);
        else if (strcmp(argv[i], "--minutes") == 0)
            o.minutes = strtod(value, NULL);
        else if (strcmp(argv[i], "--threads") == 0)
            o.threads = atoi(value);
        else if (strcmp(argv[i], "--traps") == 0)
            traps = atoi(value) != 0;
        else if (strcmp(argv[i], "--sweep") == 0)
            o.sweep = value;
        else if (strcmp(argv[i], "--row") == 0)
            o.row = value;
        else if (strcmp(argv[i], "--replay") == 0 &&
                 sscanf(value, "%lu:%lu", &o.seed, &o.sequence) == 2)
            o.replay = true;
        else {
            fprintf(stderr, "usage: fuzz_api [--seed S] [--calls N | --minutes M] [--threads T]\n"
                            "                [--sweep odd|memory|malloc [--row NAME]] [--replay "
                            "SEED:SEQUENCE] [--traps 0|1] [--list]\n");
            exit(2);
        }
    }
    if (o.threads < 1 || o.threads > 64) o.threads = 1;
    return o;
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv);
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (o.sweep && strcmp(o.sweep, "malloc") == 0 && !malloc_left) {
        puts("skipped: a sanitizer's malloc cannot refuse");
        return 77;
    }
    double start = now();
    if (o.replay || o.threads > 1)
        run_child(&o);
    else if (o.sweep)
        run_sweep(&o);
    else
        run_random(&o);
    printf("seed %" PRIu64 ", %" PRId64 " calls of %d functions, %" PRId64
           " of them refused, %.1f s\n",
           o.seed, common->calls, n_rows, common->failed_calls, now() - start);
    printf("%" PRId64 " passed, %" PRId64 " failed\n", common->calls, common->found);
    return common->found ? 1 : 0;
}
