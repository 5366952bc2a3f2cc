/* faults.c - the sweeps of faults.h. */
#include "faults.h"

#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

enum { MOST_CALLS = 5000 };

const char *tried_twice;

/* Memory in use here and on the device. */
typedef struct held {
    int64_t tensors, bytes, in_use;
    long long blocks;
} held;

static held held_now(void)
{
    tn_cuda_memory_stats device = tn_cuda_memory();
    return (held){ tn_live_tensors(), tn_memory().in_use, device.in_use, host.blocks() };
}

/* In a scope of its own, as run. */
static bool made(const scenario *s)
{
    tn_scope scope = tn_scope_begin();
    bool all = s->make();
    tn_scope_end(scope);
    return all;
}

static tn_status run(const scenario *s)
{
    tn_scope scope = tn_scope_begin();
    tn_status status = s->run();
    tn_scope_end(scope);
    return status;
}

/* ---- one call fails -------------------------------------------------------------------------- */

/* A run succeeds without these: what cannot be freed is lost, a request for memory is repeated. */
static bool spared(const char *call)
{
    return strcmp(call, "cudaFreeAsync") == 0 || strcmp(call, "cudaMallocAsync") == 0;
}

/* Out of memory has a message of its own. */
static bool names(const char *message, const char *call)
{
    if (strcmp(call, "cudaMallocAsync") == 0 && strstr(message, "out of memory: ")) return true;
    return strstr(message, call) != NULL;
}

static void check_failure(const scenario *s, long long k, const char *call, tn_status status,
                          uint64_t before, uint64_t after)
{
    char said[1024];
    snprintf(said, sizeof said, "%s", tn_error());
    tn_error_clear();
    uint64_t now = s->state();
    if (status == TN_OK) {
        bool again = tried_twice && strncmp(call, tried_twice, strlen(tried_twice)) == 0;
        ck_assert_msg(again || spared(call), "%s: call %lld, %s, failed in vain", s->name, k, call);
        ck_assert_msg(now == after, "%s: call %lld, %s: other bits", s->name, k, call);
        return;
    }
    ck_assert_msg(names(said, call), "%s: call %lld, %s: \"%s\" does not name it", s->name, k, call,
                  said);
    ck_assert_msg(now == before, "%s: call %lld, %s: half a run", s->name, k, call);
    assert_ok(run(s));
    ck_assert_msg(s->state() == after, "%s: call %lld, %s: the next run has other bits", s->name, k,
                  call);
}

static void check_leaks(const scenario *s, long long k, const char *call, held before)
{
    held now = held_now();
    ck_assert_msg(
        now.tensors == before.tensors && now.bytes == before.bytes && now.in_use == before.in_use &&
            now.blocks == before.blocks,
        "%s: call %lld, %s, leaks %d tensors, %d bytes here, %d bytes and %d blocks there", s->name,
        k, call, (int)(now.tensors - before.tensors), (int)(now.bytes - before.bytes),
        (int)(now.in_use - before.in_use), (int)(now.blocks - before.blocks));
}

static void make(const scenario *s)
{
    ck_assert_msg(made(s), "%s: %s", s->name, tn_error());
}

void sweep_failures(const scenario *s)
{
    uint64_t before = 0, after = 0;
    held at_rest = { 0 };
    ck_assert(shim());
    for (int i = 0; i < 2; i++) { /* the first one makes what is made once */
        at_rest = held_now();
        make(s);
        before = s->state();
        assert_ok(run(s));
        after = s->state();
        s->drop();
    }
    for (long long k = 1;; k += TEST_ASAN ? 3 : 1) {
        ck_assert_msg(k < MOST_CALLS, "%s: no end of calls", s->name);
        make(s);
        ck_assert_msg(s->state() == before, "%s: made otherwise", s->name);
        host.fail_call(k);
        tn_status status = run(s);
        char call[128];
        snprintf(call, sizeof call, "%s", host.failed());
        host.fail_call(0);
        if (call[0]) check_failure(s, k, call, status, before, after);
        s->drop();
        check_leaks(s, k, call, at_rest);
        if (call[0]) continue;
        ck_assert_msg(status == TN_OK, "%s: without a failure: %s", s->name, tn_error());
        return;
    }
}

/* ---- the device breaks ----------------------------------------------------------------------- */

static int pipe_end; /* a child's */

int bad(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= (int)sizeof text) n = sizeof text - 1;
    return write(pipe_end, text, (size_t)n) < 0 ? BAD : BAD;
}

static bool cpu_works(int n)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *sum = tn_ones(TN_SHAPE(4));
    for (int i = 0; i < n && sum; i++) sum = tn_add_scalar(sum, 1);
    bool works = sum && tn_item(tn_select(sum, 0, 3)) == n + 1;
    tn_scope_end(scope);
    return works;
}

/* Uses of the device after it broke: each is refused with the first message. So is the scenario
 * again, unless it succeeded and may have nothing left to do. */
static int check_refusals(const scenario *s, const char *call, bool again)
{
    enum { USES = 8 };
    char first[256];
    snprintf(first, sizeof first, "the device is lost since %s", call);
    for (int i = 0; i < USES; i++) {
        tn_tensor *kept = NULL;
        tn_cuda_memory_stats stats = { 0 };
        tn_status status = TN_OK;
        tn_error_clear();
        switch (i) {
        case 0: kept = tn_full_as(TN_SHAPE(3), 1, TN_F32, tn_cuda(0)); break;
        case 1: kept = tn_to(tn_ones(TN_SHAPE(3)), tn_cuda(0)); break;
        case 2: kept = tn_rand_as(TN_SHAPE(3), TN_F32, tn_cuda(0)); break;
        case 3: status = tn_cuda_synchronize(); break;
        case 4: stats = tn_cuda_memory(); break;
        case 5: tn_cuda_memory_trim(); break;
        case 6: kept = tn_empty_as(TN_SHAPE(0), TN_F64, tn_cuda(0)); break;
        default: status = again ? s->run() : tn_cuda_synchronize(); break;
        }
        if (kept || ((i == 3 || i == 7) && status == TN_OK) || stats.total)
            return bad("use %d after the break of %s was not refused", i, call);
        if (!strstr(tn_error(), first))
            return bad("use %d after \"%s\": \"%s\"", i, first, tn_error());
    }
    tn_error_clear();
    return cpu_works(3) ? GOOD : bad("after the break of %s the CPU fails too", call);
}

typedef struct
try {
    const scenario *s;
    long long k;
}
try;

static int break_at(void *user)
{
    const scenario *s = ((try *)user)->s;
    long long k = ((try *)user)->k;
    if (!cpu_works(1000))
        return bad("%s: %s", s->name, tn_error()); /* the scope's memory stays large */
    int64_t tensors = tn_live_tensors(), bytes = tn_memory().in_use;
    if (!made(s)) return bad("%s: %s", s->name, tn_error());
    uint64_t before = s->here ? s->state() : 0;
    tn_scope scope = tn_scope_begin();
    host.break_call(k);
    tn_status status = s->run();
    char call[128];
    snprintf(call, sizeof call, "%s", host.failed());
    if (!call[0]) return NO_SUCH_CALL;
    if (status == TN_OK && strcmp(call, "cudaFreeAsync") != 0)
        return bad("%s: call %lld, %s, broke in vain", s->name, k, call);
    if (status != TN_OK && !strstr(tn_error(), call))
        return bad("%s: call %lld, %s: \"%s\" does not name it", s->name, k, call, tn_error());
    if (check_refusals(s, call, status != TN_OK) != GOOD) return BAD;
    tn_scope_end(scope);
    if (s->here && status != TN_OK && s->state() != before)
        return bad("%s: call %lld, %s: half a run", s->name, k, call);
    s->drop();
    if (tn_live_tensors() != tensors || tn_memory().in_use != bytes)
        return bad("%s: call %lld, %s, leaks %d tensors, %d bytes", s->name, k, call,
                   (int)(tn_live_tensors() - tensors), (int)(tn_memory().in_use - bytes));
    return GOOD;
}

int in_child(const char *what, int (*f)(void *user), void *user)
{
    char text[1025] = "";
    int ends[2], state = 0;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        close(ends[0]);
        pipe_end = ends[1];
        alarm(60);
        _exit(f(user));
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got;
         n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert_msg(WIFEXITED(state), "%s: the process died of signal %d", what, WTERMSIG(state));
    int end = WEXITSTATUS(state);
    ck_assert_msg(end == GOOD || end == NO_SUCH_CALL, "%s: end %d: %s", what, end, text);
    return end;
}

void warm_up(const scenario *s)
{
    make(s);
    assert_ok(run(s));
    s->drop();
}

void sweep_breaks(const scenario *s, long long first, long long stride)
{
    try t = { s, first };
    char what[128];
    ck_assert(shim());
    for (;; t.k += stride) {
        snprintf(what, sizeof what, "%s: call %lld", s->name, t.k);
        ck_assert_msg(t.k < MOST_CALLS, "%s: no end of calls", s->name);
        if (in_child(what, break_at, &t) == NO_SUCH_CALL) break;
    }
}
