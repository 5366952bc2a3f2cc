/*
 * parallel_faults.c - one rank of a run in which something goes wrong, for parallel_faults.sh and
 * parallel_hosts.sh: a rank that is killed, stopped, or ends too early, at a chosen point of a
 * training run; ranks that part ways; and what tn_explain_training says of the other ranks.
 *
 *     parallel_faults MODE [ARGUMENT...]
 *
 * The points in the middle of messages are reached through the table of the module for MPI: its
 * entries are replaced by ones that count and then strike.
 */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rank.h"
#include "scarce.h"

#include "ext/parallel/group.h"

enum { STEPS = 4 };

/* ---- the run --------------------------------------------------------------------------------- */

/* f64, with batch norm over all ranks: then n ranks compute what one process does. */
static tn_module *new_model(void)
{
    tn_manual_seed(3);
    tn_module *m =
        tn_sequential(tn_linear_new(WIDTH, HIDDEN, (tn_linear_options){ 0 }),
                      tn_batch_norm1d_new(HIDDEN, (tn_batch_norm_options){ 0 }), tn_tanh_new(),
                      tn_linear_new(HIDDEN, CLASSES, (tn_linear_options){ 0 }));
    TN_CHECK_PTR(m);
    TN_CHECK(tn_module_to_dtype(m, TN_F64));
    TN_CHECK(tn_batch_norm_set_sync(m, true));
    return m;
}

static tn_optim *new_optim(tn_module *m)
{
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5, .momentum = 0.9 });
    TN_CHECK_PTR(opt);
    return opt;
}

/* Of this rank's part of a batch. */
static tn_tensor *loss_of(tn_module *m, int64_t step)
{
    int64_t n = ROWS / tn_parallel_size(), first = n * tn_parallel_rank();
    return tn_cross_entropy(tn_forward(m, data_rows(first, n, step)), data_classes(first, n, step));
}

static void train_step(tn_module *m, tn_optim *opt, int64_t step)
{
    tn_scope scope = tn_scope_begin();
    TN_CHECK(tn_optim_zero_grad(opt));
    TN_CHECK(tn_backward(loss_of(m, step)));
    TN_CHECK(tn_optim_step(opt));
    tn_scope_end(scope);
}

/* ---- striking -------------------------------------------------------------------------------- */

static const char *how;   /* killed, stopped, ended */
static const char *point; /* of the run */
static int victim;

static void strike(void)
{
    if (strcmp(how, "killed") == 0) raise(SIGKILL);
    if (strcmp(how, "stopped") == 0) raise(SIGSTOP);
    exit(0);
}

static tni_mpi real; /* the module's own functions */
static int calls;    /* until the strike */

static void countdown(const char *call)
{
    if (tn_parallel_rank() == victim && strcmp(point, call) == 0 && calls && --calls == 0) strike();
}

static const char *sum(tni_mpi_group group, void *data, size_t n, tn_dtype dtype)
{
    countdown("sum");
    return real.sum(group, data, n, dtype);
}

static const char *wait_for(tni_mpi_request *request)
{
    countdown("wait");
    return real.wait(request);
}

static const char *test(tni_mpi_request *request)
{
    countdown("test");
    return real.test(request);
}

static const char *broadcast(tni_mpi_group group, void *data, size_t nbytes, int from)
{
    countdown("broadcast");
    countdown("new");
    return real.broadcast(group, data, nbytes, from);
}

static const char *gather(tni_mpi_group group, const void *data, size_t nbytes, void *all)
{
    countdown("gather");
    return real.gather(group, data, nbytes, all);
}

static void replace_calls(void)
{
    tni_mpi *table = (tni_mpi *)tni_ranks();
    real = *table;
    table->sum = sum;
    table->wait = wait_for;
    table->test = test;
    table->broadcast = broadcast;
    table->gather = gather;
}

static tn_status in_forward(tn_module *m, int n_in, tn_tensor **in, void *user)
{
    (void)m, (void)n_in, (void)in;
    if (*(bool *)user) strike();
    return TN_OK;
}

/* The next file that grows above 1,000 bytes kills: a checkpoint, half written. */
static void limit_files(void)
{
    TN_CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1000, 1000 }) == 0 ? TN_OK : TN_E_IO);
}

/* train FILE HOW POINT RANK CALL: four steps from FILE's on, with a checkpoint after each. In the
 * third (or, of "new" and "end", before the first and after the last) RANK comes to grief: of a
 * point that is a message, at the CALL-th. POINT "-": nothing happens. */
static void train(char **argument)
{
    bool now = false;
    how = argument[1], point = argument[2], victim = atoi(argument[3]);
    bool me = tn_parallel_rank() == victim;
    if (tni_ranks()) replace_calls();
    calls = strcmp(point, "new") == 0 ? atoi(argument[4]) : 0;
    tn_module *m = new_model();
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ .bucket_bytes = 64 });
    tn_optim *opt = new_optim(m);
    tn_checkpoint c = { .model = m, .optimizer = opt };
    if (access(argument[0], F_OK) == 0) TN_CHECK(tn_checkpoint_load(&c, argument[0]));
    TN_CHECK(tn_parallel_barrier());
    EXPECT(tn_register_forward_pre_hook(tn_get_submodule(m, "2"), in_forward, &now) >= 0);
    int64_t begin = c.step;
    while (c.step < begin + STEPS) {
        if (c.step == begin + 2) {
            calls = atoi(argument[4]);
            now = me && strcmp(point, "forward") == 0;
            if (me && strcmp(point, "save") == 0) limit_files();
        }
        train_step(m, opt, c.step++);
        if (tn_parallel_rank() == 0) TN_CHECK(tn_checkpoint_save(&c, argument[0]));
    }
    if (me && strcmp(point, "end") == 0) strike();
    tn_optim_free(opt);
    shared_free(p, m);
}

/* check FILE STEP: it holds what one process has after so many steps or, where rank 0 may have been
 * ended before it had saved, after one less; and training goes on from it. STEP 0: after any. */
static void check(char **argument)
{
    tn_module *loaded = new_model(), *m = new_model();
    tn_optim *loaded_opt = new_optim(loaded), *opt = new_optim(m);
    tn_checkpoint c = { .model = loaded, .optimizer = loaded_opt };
    TN_CHECK(tn_checkpoint_load(&c, argument[0]));
    int64_t want = atoi(argument[1]);
    printf("a checkpoint of step %d, for %d\n", (int)c.step, (int)want);
    EXPECT(want == 0 || c.step == want || c.step == want - 1);
    for (int64_t step = 0; step < c.step; step++) train_step(m, opt, step);
    train_step(m, opt, c.step);
    train_step(loaded, loaded_opt, c.step);
    tn_list *a = tn_state_dict(m, NULL), *b = tn_state_dict(loaded, NULL);
    for (int i = 0; i < a->n; i++)
        EXPECT(tensor_difference(a->entry[i].tensor, b->entry[i].tensor) < 1e-12);
    tn_optim_free(opt);
    tn_optim_free(loaded_opt);
    tn_module_drop(m);
    tn_module_drop(loaded);
}

/* endless FILE: trains until it is ended, with a checkpoint after each step. */
static void endless(char **argument)
{
    tn_module *m = new_model();
    shared(m, (tn_data_parallel_options){ .bucket_bytes = 64 });
    tn_optim *opt = new_optim(m);
    tn_checkpoint c = { .model = m, .optimizer = opt };
    for (;;) {
        train_step(m, opt, c.step++);
        if (tn_parallel_rank() == 0) TN_CHECK(tn_checkpoint_save(&c, argument[0]));
        usleep(20000);
    }
}

/* ---- ranks that part ways -------------------------------------------------------------------- */

/* Rank 0 goes to a barrier, the others, 2.5 s later, to a check: neither can be done. */
static void apart(void)
{
    tn_module *m = new_model();
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    if (tn_parallel_rank() > 0) usleep(2500000); /* not yet asking itself when rank 0 asks */
    TN_CHECK(tn_parallel_rank() == 0 ? tn_parallel_barrier() : tn_data_parallel_check(p));
}

/* Rank 0 sends its part and ends, while others wait for a slow rank that passes it on: no error. */
static void early(void)
{
    tn_manual_seed(9);
    double want = tn_item(tn_rand(TN_SCALAR));
    tn_manual_seed(9 + (uint64_t)tn_parallel_rank());
    if (tn_parallel_rank() == 1) sleep(1);
    TN_CHECK(tn_parallel_share_random());
    EXPECT(tn_item(tn_rand(TN_SCALAR)) == want);
}

static const char *lose(tni_mpi_group group, void *data, size_t nbytes, int from)
{
    const char *why = real.broadcast(group, data, nbytes, from);
    return why ? why : "lost";
}

static void expect_apart(tn_status status)
{
    EXPECT_FAILS(status, TN_E_STATE, "failed on this rank alone");
}

/* The last rank loses the buffers at the end of a backward that succeeds on the others: it takes no
 * further part, and steps no state that is dealt. */
static void alone(void)
{
    tn_module *m = new_model();
    TN_CHECK(tn_batch_norm_set_sync(m, false));
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    tn_optim *opt = new_optim(m);
    TN_CHECK(tn_data_parallel_shard(p, opt));
    train_step(m, opt, 0);
    bool odd = tn_parallel_rank() == tn_parallel_size() - 1;
    tni_mpi *table = (tni_mpi *)tni_ranks();
    real = *table;
    if (odd) table->broadcast = lose;
    tn_status status = tn_backward(loss_of(m, 1));
    table->broadcast = real.broadcast;
    EXPECT(status == (odd ? TN_E_BACKEND : TN_OK));
    if (!odd) TN_CHECK(tn_optim_step(opt)); /* fails: the last rank ends */
    EXPECT(odd);
    tn_error_clear();
    expect_apart(tn_optim_step(opt));
    expect_apart(tn_data_parallel_gather(p));
    expect_apart(tn_backward(loss_of(m, 1)));
    tn_optim_free(opt);
    shared_free(p, m);
}

/* ---- no memory on one rank ------------------------------------------------------------------- */

typedef struct shared_model {
    tn_module *m, *other;
    tn_data_parallel *p, *q; /* of m, of other */
    tn_tensor *large, *small, *strided, *x, *loss;
    tn_tensor *(*loss_of)(struct shared_model *s);
} shared_model;

typedef enum call { SUM, MEAN, SUM_OF_VIEW, MEAN_OF_VIEW, SEND, COMPARE, BACKWARD } call;

static tn_status run_call(call what, const shared_model *s)
{
    switch (what) {
    case SUM: return tn_parallel_sum_(s->large);
    case MEAN: return tn_parallel_mean_(s->small);
    case SUM_OF_VIEW: return tn_parallel_sum_(s->strided);
    case MEAN_OF_VIEW: return tn_parallel_mean_(s->strided);
    case SEND: return tn_parallel_broadcast(s->large, 0);
    case COMPARE: return tn_data_parallel_check(s->p);
    default: return tn_backward(s->loss);
    }
}

static tn_tensor *network_loss(shared_model *s)
{
    return loss_of(s->m, 0);
}

static tn_tensor *sum_of(tn_module *m, const char *name)
{
    return tn_sum_all(tn_get_parameter(m, name));
}

/* All ranks have a gradient of it. */
static tn_tensor *old_loss(shared_model *s)
{
    return tn_add(sum_of(s->m, "left"), sum_of(s->other, "one"));
}

/* After the ranks have agreed, a rank must need no memory: not for the average of a gradient that
 * it lacks (one), or has from before (old), nor to part two that are one tensor (left, right). x is
 * averaged by nobody and adds to an older gradient; there is a second handle. */
static tn_tensor *branches_loss(shared_model *s)
{
    tn_tensor *both = tn_add(tn_get_parameter(s->m, "left"), tn_get_parameter(s->m, "right"));
    tn_tensor *loss = tn_add(tn_sum_all(tn_mul(both, both)), tn_sum_all(s->x));
    if (tn_parallel_rank() == 0) loss = tn_add(loss, sum_of(s->m, "one"));
    return tn_add(loss, sum_of(s->other, "one"));
}

enum { MOST = 8 };

/* References to the gradients; TN_NONE where there is none. */
static void keep_gradients(const tn_list *list, tn_tensor **gradient)
{
    EXPECT(list && list->n <= MOST);
    for (int i = 0; i < list->n; i++) gradient[i] = tn_keep(tn_grad(list->entry[i].tensor));
}

static void expect_gradients(const tn_list *list, tn_tensor **gradient, bool same)
{
    for (int i = 0; i < list->n; i++) {
        EXPECT(!same || gradient[i] == tn_grad(list->entry[i].tensor));
        tn_drop(gradient[i]);
    }
}

/* The k-th allocation of the call fails on the last rank, for every k, until none is left: all
 * ranks fail, and say on which there was no memory; no gradient has changed. Then the call succeeds
 * on all. */
static void fails_together(call what, shared_model *s)
{
    bool odd = last_rank();
    tn_status status = TN_E_NOMEM;
    int64_t k = 0;
    while (status != TN_OK) {
        tn_scope scope = tn_scope_begin();
        const tn_list *list = tn_parameters(s->m);
        tn_tensor *before[MOST];
        s->loss = what == BACKWARD ? s->loss_of(s) : NULL;
        keep_gradients(list, before);
        scarce_fail(odd ? ++k : 0);
        status = run_call(what, s);
        scarce.failing = 0;
        EXPECT(status == TN_OK || (status == TN_E_NOMEM && strstr(tn_error(), on_last_rank(""))));
        tn_error_clear();
        expect_gradients(list, before, status != TN_OK);
        if (what == BACKWARD && status != TN_OK) /* the pass before it is long gone */
            EXPECT(!tn_data_parallel_unused(s->p, -1));
        tn_error_clear();
        tn_scope_end(scope);
    }
    if (odd) printf("call %d: %d allocations\n", (int)what, (int)k - 1);
    TN_CHECK(tn_data_parallel_check(s->p));
}

/* A bag of parameters. */
static tn_module *bag(int n, const char *const *name)
{
    tn_module *m = tn_module_dict_new();
    TN_CHECK_PTR(m);
    for (int i = 0; i < n; i++)
        TN_CHECK(tn_register_parameter(m, name[i], NULL, tn_ones(TN_SHAPE(3))));
    return m;
}

/* With TN_CACHE=0. */
static void memory_of_branches(void)
{
    static const char *const name[] = { "one", "old", "left", "right" };
    double size = tn_parallel_size();
    shared_model s = { .m = bag(4, name), .other = bag(1, name), .x = tn_ones(TN_SHAPE(3)) };
    TN_CHECK(tn_set_requires_grad(s.x, true));
    TN_CHECK(tn_backward(tn_sum_all(s.x)));
    s.p = tn_data_parallel_new(s.m, (tn_data_parallel_options){ .bucket_bytes = 12 });
    s.q = shared(s.other, (tn_data_parallel_options){ 0 });
    TN_CHECK_PTR(s.q);
    tn_data_parallel_set_sync(s.p, false);
    TN_CHECK(tn_backward(tn_mul_scalar(sum_of(s.m, "old"), tn_parallel_rank() + 1)));
    tn_data_parallel_set_sync(s.p, true);
    s.loss_of = old_loss;
    fails_together(BACKWARD, &s);
    TN_CHECK(tn_set_grad(tn_get_parameter(s.m, "left"), TN_NONE));
    TN_CHECK(tn_set_grad(tn_get_parameter(s.other, "one"), TN_NONE));
    s.loss_of = branches_loss;
    fails_together(BACKWARD, &s);
    EXPECT(tn_at(tn_grad(tn_get_parameter(s.m, "one")), TN_INDEX(2)) == 1 / size);
    EXPECT(tn_at(tn_grad(tn_get_parameter(s.m, "old")), TN_INDEX(2)) == (size + 1) / 2);
    EXPECT(tn_at(tn_grad(tn_get_parameter(s.m, "left")), TN_INDEX(2)) == 4);
    EXPECT(tn_at(tn_grad(tn_get_parameter(s.m, "right")), TN_INDEX(2)) == 4);
    EXPECT(tn_at(tn_grad(tn_get_parameter(s.other, "one")), TN_INDEX(2)) == 1);
    EXPECT(tn_at(tn_grad(s.x), TN_INDEX(2)) == 2);
    tn_data_parallel_free(s.q);
    shared_free(s.p, s.other);
    tn_module_drop(s.m);
}

/* A handle of tensors of so many elements, which all share one, on ranks that have little memory:
 * what the failure says. */
static const char *large_handle(int n, const int64_t *size, tn_dtype messages)
{
    static const char *const name[] = { "a", "b", "c" };
    tn_module *m = tn_module_dict_new();
    TN_CHECK_PTR(m);
    for (int i = 0; i < n; i++)
        TN_CHECK(tn_register_parameter(
            m, name[i], NULL, tn_detach(tn_expand(tn_ones(TN_SHAPE(1)), TN_SHAPE(size[i])))));
    scarce.most = 1 << 20;
    EXPECT(!tn_data_parallel_new(m, (tn_data_parallel_options){ INT64_MAX, .messages = messages }));
    scarce.most = SIZE_MAX;
    tn_module_drop(m);
    return tn_error();
}

/* What MPI cannot count is sent in two messages; the bytes are those of the first one's sums. A
 * tensor that is too large by itself is refused. */
static void memory_of_buckets(void)
{
    const int64_t half = 1 << 30, three[] = { half, half, half }, two[] = { half, half - 1 },
                  whole[] = { 2 * half - 1 }, more[] = { 2 * half };
    EXPECT(strstr(large_handle(3, three, TN_F32), "want 4294967296 bytes"));
    EXPECT(strstr(large_handle(2, two, TN_F32), "want 8589934588 bytes"));
    EXPECT(strstr(large_handle(2, two, TN_BF16), "want 2147483648 bytes")); /* equal pieces */
    EXPECT(strstr(large_handle(1, whole, TN_F32), "want 8589934588 bytes"));
    EXPECT(strstr(large_handle(1, whole, TN_BF16), "a takes 2147483648 numbers in a message"));
    EXPECT(strstr(large_handle(1, more, TN_F32), "a takes 2147483648 numbers in a message"));
    tn_error_clear();
}

static void memory(void)
{
    shared_model s = { .m = new_model(), .loss_of = network_loss };
    TN_CHECK(
        tn_batch_norm_set_sync(s.m, false)); /* its sums in backward are the ranks' own affair */
    s.p = shared(s.m, (tn_data_parallel_options){ .bucket_bytes = 64 });
    s.large = tn_ones(TN_SHAPE(5000));
    s.small = tn_ones(TN_SHAPE(3));
    s.strided = tn_transpose(tn_ones(TN_SHAPE(30, 100)), 0, 1);
    for (call what = SUM; what <= BACKWARD; what++) fails_together(what, &s);
    EXPECT(tn_at(s.large, TN_INDEX(4999)) == tn_parallel_size());
    shared_free(s.p, s.m);
    memory_of_branches();
    memory_of_buckets();
}

/* ---- two handles, threads and processes ------------------------------------------------------ */

/* A pass that reaches two handles, of which one or the other fails on all ranks: both go on. */
static void handles(void)
{
    static const char *const name[] = { "a", "b" };
    tn_module *m[2];
    tn_data_parallel *p[2];
    for (int i = 0; i < 2; i++) {
        m[i] = bag(2, name);
        p[i] = shared(m[i], (tn_data_parallel_options){ 0 });
    }
    for (int i = 0; i < 2; i++) {
        tn_tensor *t = tn_get_parameter(m[i], "b");
        if (tn_parallel_rank() == 1) TN_CHECK(tn_set_requires_grad(t, false));
        EXPECT_FAILS(tn_backward(tn_add(sum_of(m[0], "a"), sum_of(m[1], "a"))), TN_E_STATE,
                     "b requires grad on rank 0");
        TN_CHECK(tn_set_requires_grad(t, true));
        TN_CHECK(tn_backward(tn_add(sum_of(m[0], "a"), sum_of(m[1], "a"))));
        for (int k = 0; k < 2; k++)
            EXPECT(tn_at(tn_grad(tn_get_parameter(m[k], "a")), TN_INDEX(0)) == i + 1);
    }
    for (int i = 0; i < 2; i++) shared_free(p[i], m[i]);
}

static void *backward_there(void *user)
{
    tn_scope scope = tn_scope_begin();
    EXPECT_FAILS(tn_backward(sum_of(user, "a")), TN_E_STATE, "in another thread");
    tn_scope_end(scope);
    return NULL;
}

/* Another thread's backward is refused; a forked child's end is none of the run's. */
static void beside(void)
{
    static const char *const name[] = { "a" };
    pthread_t thread;
    tn_module *m = bag(1, name);
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    EXPECT(pthread_create(&thread, NULL, backward_there, m) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    for (int how = 0; how < 2; how++) {
        int ended;
        pid_t child = fork();
        if (child == 0) exit(how);
        EXPECT(child > 0 && waitpid(child, &ended, 0) == child);
        EXPECT(WIFEXITED(ended) && WEXITSTATUS(ended) == how);
        TN_CHECK(tn_backward(sum_of(m, "a")));
    }
    EXPECT(tn_at(tn_grad(tn_get_parameter(m, "a")), TN_INDEX(0)) == 2);
    shared_free(p, m);
}

/* A program that begins and ends MPI itself (Open MPI 4 or 5, as the module). */
static void own_mpi(void)
{
    int (*begin)(int *, char ***) = NULL;
    void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    EXPECT(library != NULL);
    void *symbol = dlsym(library, "MPI_Init");
    memcpy(&begin, &symbol, sizeof begin);
    EXPECT(begin && begin(NULL, NULL) == 0);
    TN_CHECK(tn_parallel_begin());
    EXPECT(tn_parallel_size() > 1);
    TN_CHECK(tn_parallel_barrier());
    int (*end)(void) = NULL;
    symbol = dlsym(library, "MPI_Finalize");
    memcpy(&end, &symbol, sizeof end);
    EXPECT(end && end() == 0);
}

/* ---- what is said of other ranks ------------------------------------------------------------- */

static tn_tensor *branches(tn_module *m, void *user)
{
    (void)user;
    tn_tensor *y = branches_forward(m, tn_ones(TN_SHAPE(2, WIDTH)));
    return tn_mean(tn_square(y), NULL, 0, false);
}

static const char *explained(tn_module *m, tn_explain_report *report)
{
    TN_CHECK(tn_explain_training(NULL, m, NULL, branches, NULL, report));
    const char *line = strchr(report->text, ',');
    EXPECT(line);
    return line + 2; /* behind the loss */
}

static char want[2048];

static void add(const char *format, ...)
{
    va_list list;
    size_t n = strlen(want);
    va_start(list, format);
    vsnprintf(want + n, sizeof want - n, format, list);
    va_end(list);
}

/* A line for the gradient that other ranks lack. */
static void add_ranks(const char *name, const char *where)
{
    add("%s: no gradient on %s of %d in the last averaging backward: tn_explain_training, called "
        "there, says why\n",
        name, where, tn_parallel_size());
}

/* Nine ranks: of more than seven others, six are named. */
static void many(void)
{
    static tn_explain_report report;
    tn_module *m = branches_new();
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    TN_CHECK(tn_backward(branches(m, NULL)));
    const char *got = explained(m, &report);
    if (tn_parallel_rank() < 2)
        EXPECT(strstr(got,
                      tn_parallel_rank()
                          ? "one.weight: no gradient on ranks 2, 3, 4, 5, 6, 7 and 8 of 9 "
                          : "one.weight: no gradient on ranks 1, 2, 3, 4, 5, 6 and 2 more of 9 "));
    TN_CHECK(tn_parallel_barrier());
    shared_free(p, m);
}

/* Each rank in turn asks alone, while the others wait at a barrier. */
static void explain(void)
{
    static tn_explain_report report;
    char here[32];
    int rank = tn_parallel_rank(), size = tn_parallel_size();
    tn_module *m = branches_new();
    snprintf(here, sizeof here, " on rank %d of %d", rank, size);
    EXPECT(strstr(explained(m, &report), "(ranks): no tn_data_parallel averages the model's "
                                         "gradients\n"));
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    EXPECT(strstr(explained(m, &report), "(ranks): before the first averaging backward nothing "));
    EXPECT(report.elsewhere == 0);
    TN_CHECK(tn_backward(branches(m, NULL)));
    for (int r = 0; r < size; r++) {
        if (r == rank) {
            bool first = rank == 0;
            add("a gradient for %d of 3 parameters%s\n", first ? 2 : 1, here);
            if (!first) add("one.weight: no gradient%s: never read\n", here);
            add("none.weight: no gradient%s: never read\n", here);
            static const char *const others[2][4] = { { "rank 1", "", NULL, NULL },
                                                      { "ranks 1, 2 and 3", "ranks 2 and 3",
                                                        "ranks 1 and 3", "ranks 1 and 2" } };
            static const char *const all[2][4] = { { "rank 1", "rank 0", NULL, NULL },
                                                   { "ranks 1, 2 and 3", "ranks 0, 2 and 3",
                                                     "ranks 0, 1 and 3", "ranks 0, 1 and 2" } };
            const char *where = others[size == 4][rank];
            if (*where) add_ranks("one.weight", where);
            add_ranks("none.weight", all[size == 4][rank]);
            int n_elsewhere = *where ? 2 : 1, n_here = first ? 1 : 2;
            add("%d findings\n", n_elsewhere + n_here);
            const char *got = explained(m, &report);
            if (strcmp(got, want) != 0) fprintf(stderr, "got\n%swant\n%s", got, want);
            EXPECT(strcmp(got, want) == 0);
            EXPECT(report.elsewhere == n_elsewhere && report.unread == n_here);
            EXPECT(report.findings == n_elsewhere + n_here);
        }
        TN_CHECK(tn_parallel_barrier());
    }
    shared_free(p, m);
}

/* ---- the modes ------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const rank_mode mode[] = {
        WITH(train, 5), WITH(check, 2), WITH(endless, 1), MODE(apart), MODE(explain), MODE(memory),
        MODE(early),    MODE(handles),  MODE(beside),     MODE(many),  MODE(alone),
    };
    if (argc == 2 && strcmp(argv[1], "own") == 0) {
        own_mpi();
        return 0;
    }
    return rank_main(argc, argv,
                     (rank_program){ mode, sizeof mode / sizeof *mode, "memory", NULL });
}
