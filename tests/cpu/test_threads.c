/*
 * test_threads.c - the thread pool under the kernels: every chunk runs once, the same bits, no
 * spinning while idle, coexistence with fork, the program's own threads, OpenMP and signals; and
 * what threads may share by tenon.h.
 *
 * Seen to fail: without the loop over other members' shares (work, thread_pool.c) chunks are
 * missing; without forget_pool, or without the locks held over fork, the child hangs; with
 * END_SPIN_NS and IDLE_SPIN_NS at one second the idle test counts the time; without set_fp_control
 * flushed numbers differ; with workers not restored after a nested run two chunks share a worker;
 * with helpers that block all signals their faults are not seen; with the buffers or the blocks of
 * layer norm's gradient chosen by threads the bits differ. Of what is shared, under
 * ThreadSanitizer: the test of modules with tn_train for tn_eval (batch norm writes to its
 * buffers), tn_module_keep without its atomic; the test of generators without their lock.
 */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cblas.h>

#include "common.h"
#include "tensor/cpu/thread_pool.h"

/* ---- runs ------------------------------------------------------------------------------------ */

enum { MOST = 4096, WORKERS = 64 };

typedef struct counts {
    int64_t n, grain;
    atomic_int seen[MOST];     /* by chunk */
    atomic_int using[WORKERS]; /* by worker: chunks at work there */
    atomic_int wrong;
    bool nest;
} counts;

static void count(void *context, int64_t begin, int64_t end);

static void count_all(counts *c, int64_t n, int64_t grain)
{
    c->n = n;
    c->grain = grain;
    for (int i = 0; i < MOST; i++) atomic_store(&c->seen[i], 0);
    tni_parallel(n, grain, count, c);
}

static void count(void *context, int64_t begin, int64_t end)
{
    counts *c = context;
    int worker = tni_worker();
    if (worker < 0 || worker >= tn_num_threads()) atomic_fetch_add(&c->wrong, 1);
    if (atomic_fetch_add(&c->using[worker], 1) != 0) atomic_fetch_add(&c->wrong, 1);
    if (begin % c->grain != 0 || end != (begin + c->grain < c->n ? begin + c->grain : c->n))
        atomic_fetch_add(&c->wrong, 1);
    if (c->nest) {
        static counts inner[WORKERS];
        count_all(&inner[worker], 40, 10); /* alone: its worker is 0 */
        for (int i = 0; i < 4; i++)
            atomic_fetch_add(&c->wrong, atomic_load(&inner[worker].seen[i]) != 1);
        if (tni_worker() != worker) atomic_fetch_add(&c->wrong, 1);
    }
    atomic_fetch_add(&c->seen[begin / c->grain], 1);
    atomic_fetch_sub(&c->using[worker], 1);
}

static void check_runs(bool nest)
{
    static const int64_t sizes[] = { 1, 2, 3, 7, 64, 1000, 4096 };
    static const int threads[] = { 1, 2, 3, 7, 2, 13 };
    static counts c;
    c.nest = nest;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        assert_ok(tn_set_num_threads(threads[t]));
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int64_t grain = 1; grain <= 100; grain = grain * 3 + 1) {
                count_all(&c, sizes[s], grain);
                int64_t chunks = (sizes[s] - 1) / grain + 1, bad = atomic_load(&c.wrong);
                for (int64_t i = 0; i < MOST; i++) bad += atomic_load(&c.seen[i]) != (i < chunks);
                ck_assert_msg(bad == 0,
                              "%d threads, n %" PRId64 ", grain %" PRId64 ": %" PRId64 " faults",
                              threads[t], sizes[s], grain, bad);
            }
    }
}

START_TEST(every_chunk_runs_once_and_alone_on_its_worker)
{
    check_runs(false);
}
END_TEST

START_TEST(a_run_inside_a_run_works_alone)
{
    check_runs(true);
}
END_TEST

START_TEST(many_short_runs_follow_each_other)
{
    static counts c;
    assert_ok(tn_set_num_threads(3));
    for (int i = 0; i < 20000; i++) {
        tni_parallel(6, 2, count, (c.n = 6, c.grain = 2, &c));
        if (i % 1000 == 0) usleep(1000); /* the helpers fall asleep */
    }
    for (int i = 0; i < 3; i++) ck_assert_int_eq(atomic_load(&c.seen[i]), 20000);
    ck_assert_int_eq(atomic_load(&c.wrong), 0);
}
END_TEST

START_TEST(the_number_of_threads_has_bounds)
{
    int was = tn_num_threads();
    ck_assert_int_ge(was, 1);
    static const int bad[] = { 0, -1, INT32_MIN, 1001, 100000, INT32_MAX };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(tn_set_num_threads(bad[i]), TN_E_INVALID, "tn_set_num_threads: ");
    ck_assert_int_eq(tn_num_threads(), was);
    assert_ok(tn_set_num_threads(1000));
    ck_assert_int_eq(tn_num_threads(), 1000);
}
END_TEST

/* ---- the same numbers ------------------------------------------------------------------------ */

/* A product, a convolution, a reduction and a softmax large enough for several chunks. */
static uint64_t compute(void)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *a = random_as(TN_SHAPE(300, 257), -1, 1, 1, TN_F32);
    tn_tensor *b = random_as(TN_SHAPE(257, 300), -1, 1, 2, TN_F32);
    tn_tensor *x = random_as(TN_SHAPE(4, 8, 20, 20), -1, 1, 3, TN_F32);
    tn_tensor *w = random_as(TN_SHAPE(8, 8, 3, 3), -1, 1, 4, TN_F32);
    tn_tensor *y = tn_conv2d(x, w, TN_NONE, (tn_conv2d_spec){ 0 });
    tn_tensor *z = tn_softmax(tn_matmul(a, b), 1);
    uint64_t hash =
        tn_hash(z) * 31 + tn_hash(y) * 7 + tn_hash(tn_sum(tn_mul(a, a), NULL, 0, false));
    tn_scope_end(scope);
    return hash;
}

/* Ops large enough for several chunks, forward and backward: a hash of results and gradients. */
static uint64_t differentiate(tn_dtype dtype)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(1);
    static const tn_shape shapes[] = { { 2, { 300, 257 } },     { 2, { 257, 300 } },
                                       { 4, { 4, 8, 20, 20 } }, { 4, { 8, 8, 3, 3 } },
                                       { 1, { 257 } },          { 1, { 8 } },
                                       { 4, { 4, 2, 65, 32 } }, { 2, { 40, 257 } } };
    enum { LEAVES = sizeof shapes / sizeof *shapes };
    tn_tensor *x[LEAVES];
    for (int i = 0; i < LEAVES; i++) {
        x[i] = tn_to_dtype(random_as(shapes[i], -1, 1, (uint64_t)i + 1, TN_F32), dtype);
        assert_ok(tn_set_requires_grad(x[i], true));
    }
    tn_tensor *ids = tn_randint(0, 40, TN_SHAPE(300));
    tn_tensor *norm = tn_layer_norm(x[0], 1, x[4], x[4], 1e-5);
    tn_tensor *y[] = {
        tn_softmax(tn_matmul(norm, x[1]), 1),
        tn_max_pool2d(tn_batch_norm(tn_conv2d(x[2], x[3], x[5], (tn_conv2d_spec){ 0 }), x[5], x[5],
                                    TN_NONE, TN_NONE, true, 0.1, 1e-5),
                      (tn_pool2d_spec){ .kernel = { 2, 2 } }),
        tn_scaled_dot_product_attention(x[6], x[6], x[6], TN_NONE, true, 0),
        tn_gelu(tn_mul(tn_embedding(x[7], ids, -1), x[0])),
        tn_cross_entropy(tn_matmul(x[0], x[1]), ids),
        tn_group_norm(x[2], 2, x[5], x[5], 1e-5),
        tn_rms_norm(x[0], 1, x[4], 1e-5),
        tn_linear_cross_entropy(x[0], x[7], TN_NONE, ids),
    };
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof y / sizeof *y; i++) {
        assert_made(y[i]);
        hash = hash * 31 + tn_hash(y[i]);
        assert_ok(tn_backward_from(tn_mean(tn_square(y[i]), NULL, 0, false), TN_NONE, 0));
    }
    for (int i = 0; i < LEAVES; i++) {
        assert_made(tn_grad(x[i]));
        hash = hash * 31 + tn_hash(tn_grad(x[i]));
    }
    tn_scope_end(scope);
    return hash;
}

START_TEST(the_same_bits_for_every_number_of_threads)
{
    static const tn_dtype dtypes[] = { TN_F32, TN_BF16, TN_F16, TN_F64 };
    assert_ok(tn_set_num_threads(1));
    uint64_t one = differentiate(dtypes[_i]);
    static const int threads[] = { 2, 3, 7, 64, 2, 1 };
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        assert_ok(tn_set_num_threads(threads[i]));
        ck_assert_msg(differentiate(dtypes[_i]) == one, "%s: %d threads give other bits than one",
                      tn_dtype_name(dtypes[_i]), threads[i]);
    }
}
END_TEST

START_TEST(helpers_round_and_flush_as_the_caller_does)
{
#if defined(__SSE__)
    tn_tensor *tiny = tn_full(TN_SHAPE(1 << 20), 1e-39); /* no normal number of f32 */
    unsigned was = __builtin_ia32_stmxcsr();
    for (int flush = 0; flush <= 1; flush++)
        for (int threads = 1; threads <= 3; threads++) {
            assert_ok(tn_set_num_threads(threads));
            tn_tensor *y;
            for (int i = 0; i < 20; i++) {
                __builtin_ia32_ldmxcsr(flush ? was | 0x8040 : was);
                y = tn_mul_scalar(tiny, 0.5);
                __builtin_ia32_ldmxcsr(was);
                double low = tn_item(tn_amin(y, NULL, 0, false)),
                       high = tn_item(tn_amax(y, NULL, 0, false));
                ck_assert_msg(low == high && (high == 0) == flush, "%d threads, flush %d: %g to %g",
                              threads, flush, low, high);
            }
        }
#endif
}
END_TEST

/* ---- idle ------------------------------------------------------------------------------------ */

START_TEST(no_thread_spins_between_steps)
{
    assert_ok(tn_set_num_threads(3));
    compute();
    double before = cpu_seconds();
    for (int i = 0; i < 5; i++) usleep(100000);
    double spent = cpu_seconds() - before;
    ck_assert_msg(spent < 0.05, "an idle process used %g s of half a second", spent);
}
END_TEST

static int threads_alive(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *e; (e = readdir(tasks));) n += e->d_name[0] != '.';
    closedir(tasks);
    return n;
}

static void *compute_once(void *hash)
{
    *(uint64_t *)hash = compute();
    return NULL;
}

START_TEST(a_pool_ends_with_its_thread)
{
    assert_ok(tn_set_num_threads(3));
    uint64_t expected = compute(), hash;
    int before = threads_alive();
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, compute_once, &hash), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_uint_eq(hash, expected);
    }
    for (int i = 0; i < 100 && threads_alive() > before; i++) usleep(10000); /* /proc lags behind */
    ck_assert_int_le(threads_alive(), before);
}
END_TEST

START_TEST(threads_that_cannot_be_started_are_done_without)
{
    if (TEST_ASAN || TEST_TSAN) return; /* they need memory too */
    assert_ok(tn_set_num_threads(1));
    tn_tensor *x = tn_ones(TN_SHAPE(1 << 20)), *y = tn_add_(x, x) == TN_OK ? x : NULL;
    assert_made(y);
    struct rlimit was, none = { 1 << 20, RLIM_INFINITY }; /* less than is mapped: no stack fits */
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &was), 0);
    none.rlim_max = was.rlim_max;
    assert_ok(tn_set_num_threads(8));
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &none), 0);
    tn_status status = tn_mul_scalar_(x, 2);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &was), 0);
    assert_ok(status);
    ck_assert(tn_item(tn_amin(x, NULL, 0, false)) == 4);
    assert_ok(tn_set_num_threads(2));
    assert_ok(tn_mul_scalar_(x, 2));
    ck_assert(tn_item(tn_amin(x, NULL, 0, false)) == 8);
}
END_TEST

/* ---- company --------------------------------------------------------------------------------- */

START_TEST(the_programs_own_threads_compute_side_by_side)
{
    enum { N = 4 };
    assert_ok(tn_set_num_threads(2));
    uint64_t expected = compute(), hash[N];
    pthread_t thread[N];
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, compute_once, &hash[i]), 0);
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(pthread_join(thread[i], NULL), 0);
        ck_assert_uint_eq(hash[i], expected);
    }
}
END_TEST

START_TEST(an_openmp_region_of_the_program_computes)
{
#ifdef _OPENMP
    assert_ok(tn_set_num_threads(3));
    uint64_t expected = compute();
    int wrong = 0;
#pragma omp parallel num_threads(4) reduction(+ : wrong)
    wrong += compute() != expected;
    ck_assert_int_eq(wrong, 0);
    int inside = 0;
#pragma omp parallel num_threads(2) reduction(+ : inside)
    /* the region has put the processors to work: each computes alone */
    inside += tni_workers(1000, 1);
    ck_assert_int_eq(inside, 2);
    ck_assert_uint_eq(compute(), expected);
#endif
}
END_TEST

/* The exit status of a child that computes, 100 when it hangs. */
static int child_computes(uint64_t expected)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(compute() == expected ? 0 : 1);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

START_TEST(a_forked_child_computes)
{
    if (TEST_ASAN || !child_may_start_threads()) return;
    assert_ok(tn_set_num_threads(3));
    uint64_t expected = compute();
    for (int i = 0; i < 3; i++) ck_assert_int_eq(child_computes(expected), 0);
    ck_assert_uint_eq(compute(), expected);
}
END_TEST

static atomic_bool stop;

static void *use_the_library(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        tn_scope scope = tn_scope_begin();
        for (int i = 0; i < 20; i++) tn_rand(TN_SHAPE(3));
        tn_scope_end(scope);
        tn_module *m = tn_linear_new(3, 2, (tn_linear_options){ 0 });
        tn_module_drop(m);
    }
    return NULL;
}

START_TEST(a_child_forked_while_other_threads_compute_computes)
{
    if (TEST_ASAN || !child_may_start_threads()) return;
    pthread_t thread[2];
    assert_ok(tn_set_num_threads(2));
    uint64_t expected = compute();
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, use_the_library, NULL), 0);
    int worst = 0;
    for (int i = 0; i < 40 && worst == 0; i++) {
        worst = child_computes(expected);
        if (worst == 0) {
            pid_t child = fork();
            if (child == 0) { /* every lock that use_the_library takes */
                alarm(60);
                atomic_store(&stop, true);
                tn_rand(TN_SHAPE(3));
                tn_module_drop(tn_linear_new(3, 2, (tn_linear_options){ 0 }));
                _exit(0);
            }
            int status;
            ck_assert_int_eq(waitpid(child, &status, 0), child);
            worst = !WIFEXITED(status);
        }
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    ck_assert_int_eq(worst, 0);
}
END_TEST

START_TEST(helpers_take_no_signals)
{
    if (openblas_get_parallel() == 1) return; /* OpenBLAS's own threads do */
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR1);
    assert_ok(tn_set_num_threads(3));
    compute();
    sigset_t was;
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &mine, &was), 0);
    kill(getpid(), SIGUSR1); /* deadly to whoever does not block it */
    compute();
    sigset_t pending;
    sigpending(&pending);
    ck_assert(sigismember(&pending, SIGUSR1));
    signal(SIGUSR1, SIG_IGN);
    ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, &was, NULL), 0);
}
END_TEST

static atomic_int faults;

static void on_fault(int number)
{
    (void)number;
    atomic_fetch_add(&faults, 1);
}

static void fault(void *context, int64_t begin, int64_t end)
{
    (void)context;
    for (int64_t i = begin; i < end; i++) raise(SIGFPE);
}

/* A fault is the thread's own that made it; a blocked one would end the program. */
START_TEST(helpers_have_their_own_faults)
{
    struct sigaction ours = { .sa_handler = on_fault }, was;
    ck_assert_int_eq(sigaction(SIGFPE, &ours, &was), 0);
    assert_ok(tn_set_num_threads(3));
    atomic_store(&faults, 0);
    for (int i = 0; i < 50; i++) tni_parallel(30, 1, fault, NULL);
    ck_assert_int_eq(atomic_load(&faults), 50 * 30);
    ck_assert_int_eq(sigaction(SIGFPE, &was, NULL), 0);
}
END_TEST

/* ---- what threads share ---------------------------------------------------------------------- */

enum { SHARERS = 3 };

/* The test's own thread works as one of them. */
static void on_threads(void *(*work)(void *of), void *of, size_t size)
{
    pthread_t thread[SHARERS - 1];
    for (int i = 1; i < SHARERS; i++)
        ck_assert_int_eq(pthread_create(&thread[i - 1], NULL, work, (char *)of + size * i), 0);
    work(of);
    for (int i = 1; i < SHARERS; i++) ck_assert_int_eq(pthread_join(thread[i - 1], NULL), 0);
}

typedef struct caller {
    tn_module *model;
    tn_tensor *x, *kept; /* kept: of the caller's own, for the others to read and drop */
    uint64_t plain, mixed;
    bool right;
} caller;

static void *call_often(void *of)
{
    caller *c = of;
    c->right = true;
    TN_NO_GRAD for (int i = 0; i < 20; i++) TN_SCOPE
    {
        tn_tensor *y = tn_forward(c->model, c->x), *mixed = NULL;
        TN_AUTOCAST(TN_BF16) mixed = tn_forward(c->model, c->x);
        c->right &= tn_hash(y) == c->plain && tn_hash(mixed) == c->mixed;
        c->right &= tn_at(tn_get_parameter(c->model, "5.weight"), TN_INDEX(0, 9)) == 0.5;
        if (i == 19) c->kept = tn_keep(y);
    }
    return NULL;
}

START_TEST(threads_share_a_model_in_eval_mode)
{
    tn_module *model = tn_sequential(
        tn_conv2d_new(2, 8, 3, (tn_conv2d_options){ .padding = 1 }),
        tn_batch_norm2d_new(8, (tn_batch_norm_options){ 0 }), tn_relu_new(), tn_dropout_new(0.5),
        tn_flatten_new(1, -1), tn_linear_new(8 * 8 * 8, 1, (tn_linear_options){ .no_bias = true }));
    assert_made(model);
    assert_ok(tn_eval(model));
    tn_tensor *weight = tn_full(TN_SHAPE(1, 512), 0.5);
    assert_ok(tn_module_set(model, "5.weight", weight));
    caller c[SHARERS] = { { .model = model, .x = tn_randn(TN_SHAPE(4, 2, 8, 8)) } };
    TN_NO_GRAD c->plain = tn_hash(tn_forward(model, c->x));
    TN_NO_GRAD TN_AUTOCAST(TN_BF16) c->mixed = tn_hash(tn_forward(model, c->x));
    for (int i = 1; i < SHARERS; i++) c[i] = c[0];
    on_threads(call_often, c, sizeof *c);
    for (int i = 0; i < SHARERS; i++) {
        ck_assert(c[i].right);
        ck_assert_uint_eq(tn_hash(c[i].kept), c->plain); /* its thread has ended */
        tn_drop(c[i].kept);
    }
    tn_module_drop(model);
}
END_TEST

static pthread_barrier_t together;

typedef struct own {
    int which;
    bool right;
} own;

/* Each in turn sets all thread-local state, and finds its own values when all have done so. */
static void *have_of_its_own(void *of)
{
    own *o = of;
    const tn_dtype casts[] = { TN_BF16, TN_F16, TN_F32 };
    o->right = true;
    for (int turn = 0; turn < SHARERS; turn++) {
        if (turn == o->which) {
            o->right &= tn_grad_enabled() && tn_autocast() == TN_F32 && !tn_error()[0];
            o->right &= tn_get_anomaly() == TN_ANOMALY_OFF && tn_default_dtype() == TN_F32;
            tn_set_grad_enabled(o->which == 1);
            tn_set_autocast(casts[o->which]);
            tn_set_anomaly((tn_anomaly)o->which);
            tn_set_default_dtype(o->which ? TN_F64 : TN_F32);
            TN_SCOPE tn_zeros(TN_SHAPE(-1 - o->which));
        }
        pthread_barrier_wait(&together);
    }
    char want[16];
    snprintf(want, sizeof want, "[%d]", -1 - o->which);
    o->right &= strstr(tn_error(), want) != NULL && tn_grad_enabled() == (o->which == 1);
    o->right &= tn_autocast() == casts[o->which] && (int)tn_get_anomaly() == o->which;
    o->right &= tn_default_dtype() == (o->which ? TN_F64 : TN_F32);
    return NULL;
}

START_TEST(each_thread_has_its_own_error_and_modes)
{
    own o[SHARERS] = { { 0, false }, { 1, false }, { 2, false } };
    ck_assert_int_eq(pthread_barrier_init(&together, NULL, SHARERS), 0);
    on_threads(have_of_its_own, o, sizeof *o);
    pthread_barrier_destroy(&together);
    for (int i = 0; i < SHARERS; i++) ck_assert_msg(o[i].right, "thread %d", i);
    tn_error_clear();
}
END_TEST

enum { DRAWS = 2000 };

typedef struct drawer {
    tn_generator *g;
    uint32_t drawn[DRAWS];
} drawer;

static void *draw(void *of)
{
    drawer *d = of;
    for (int i = 0; i < DRAWS; i++) d->drawn[i] = tn_generator_u32(d->g);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

START_TEST(threads_share_a_generator)
{
    static drawer d[SHARERS];
    static uint32_t all[SHARERS * DRAWS], alone[SHARERS * DRAWS];
    tn_generator *g = tn_generator_new(3), *same = tn_generator_new(3);
    for (int i = 0; i < SHARERS; i++) d[i].g = g;
    on_threads(draw, d, sizeof *d);
    for (int i = 0; i < SHARERS; i++) memcpy(all + i * DRAWS, d[i].drawn, sizeof d[i].drawn);
    for (int i = 0; i < SHARERS * DRAWS; i++) alone[i] = tn_generator_u32(same);
    qsort(all, SHARERS * DRAWS, sizeof *all, by_value);
    qsort(alone, SHARERS * DRAWS, sizeof *alone, by_value);
    ck_assert_mem_eq(all, alone, sizeof all); /* each number went to one of them */
    tn_generator_free(g), tn_generator_free(same);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("threads");
    TCase *runs = test_case(suite, "runs");
    add_tests(runs, every_chunk_runs_once_and_alone_on_its_worker, a_run_inside_a_run_works_alone,
              many_short_runs_follow_each_other, the_number_of_threads_has_bounds);
    TCase *numbers = test_case(suite, "numbers");
    tcase_add_loop_test(numbers, the_same_bits_for_every_number_of_threads, 0, 4);
    tcase_add_test(numbers, helpers_round_and_flush_as_the_caller_does);
    TCase *idle = test_case(suite, "idle");
    add_tests(idle, no_thread_spins_between_steps, a_pool_ends_with_its_thread,
              threads_that_cannot_be_started_are_done_without);
    TCase *company = test_case(suite, "company");
    add_tests(company, the_programs_own_threads_compute_side_by_side,
              an_openmp_region_of_the_program_computes, a_forked_child_computes,
              a_child_forked_while_other_threads_compute_computes, helpers_take_no_signals,
              helpers_have_their_own_faults);
    TCase *shared = test_case(suite, "shared");
    add_tests(shared, threads_share_a_model_in_eval_mode, each_thread_has_its_own_error_and_modes,
              threads_share_a_generator);
    return suite;
}
