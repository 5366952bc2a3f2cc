/*
 * parallel_driver.c - one rank of a data parallel run, for parallel_ranks.sh, parallel_gpus.sh and
 * parallel_hosts.sh: each mode is a small training run or a failure, the same program in every
 * process.
 *
 *     parallel_driver [cuda] MODE [ARGUMENT...]
 *
 * cuda: models and data are on the GPU of the rank's number on its host.
 *
 * A mode ends with status 0 when everything it checks holds; what does not is printed with its
 * line. It links the library's inside, to see which buckets have left.
 */
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buffer_table.h"
#include "rank.h"
#include "scarce.h"

#include "ext/parallel/data_parallel.h"
#include "tensor/graphs.h"

/* ---- data and models ------------------------------------------------------------------------- */

static tn_device where; /* they are */

static tn_tensor *there(tn_tensor *t)
{
    t = tn_to(t, where);
    TN_CHECK_PTR(t);
    return t;
}

static tn_module *model(tn_module *m)
{
    TN_CHECK_PTR(m);
    TN_CHECK(tn_module_to(m, where));
    return m;
}

static tn_tensor *rows(int64_t first, int64_t n, int64_t step, tn_dtype dtype)
{
    return there(tn_to_dtype(data_rows(first, n, step), dtype));
}

static tn_tensor *classes(int64_t first, int64_t n, int64_t step)
{
    return there(data_classes(first, n, step));
}

/* This rank's part of a batch of ROWS. */
static int64_t part(int64_t *first)
{
    int64_t n = ROWS / tn_parallel_size();
    *first = n * tn_parallel_rank();
    return n;
}

static tn_module *mlp(int64_t hidden, bool norm)
{
    return model(tn_sequential(
        tn_linear_new(WIDTH, hidden, (tn_linear_options){ 0 }),
        norm ? tn_batch_norm1d_new(hidden, (tn_batch_norm_options){ 0 }) : tn_identity_new(),
        tn_tanh_new(), tn_linear_new(hidden, CLASSES, (tn_linear_options){ 0 })));
}

static tn_tensor *loss_of(tn_module *m, int64_t first, int64_t n, int64_t step, tn_dtype dtype)
{
    return tn_cross_entropy(tn_forward(m, rows(first, n, step, dtype)), classes(first, n, step));
}

/* Of this rank's part of a batch. */
static tn_tensor *own_loss(tn_module *m, int64_t step, tn_dtype dtype)
{
    int64_t first, n = part(&first);
    return loss_of(m, first, n, step, dtype);
}

/* A tensor's value on a rank, known to all. */
static tn_tensor *of_rank(tn_tensor *t, int rank)
{
    tn_tensor *copy = tn_clone(tn_detach(t));
    TN_CHECK(tn_parallel_broadcast(copy, rank));
    return copy;
}

/* ---- training -------------------------------------------------------------------------------- */

static bool with_norm;    /* a batch norm, whose statistics are those of all ranks */
static bool recomputes;   /* its activations */
static tn_dtype messages; /* of gradients */

/* train DTYPE BUCKET_BYTES PARTS FILE: ten steps; every rank has part of each batch, computed in
 * PARTS pieces of which only the last one sends. Rank 0 writes the weights. */
static void train(char **argument)
{
    tn_dtype dtype = strcmp(argument[0], "f64") == 0 ? TN_F64 : TN_F32;
    int64_t pieces = atoi(argument[2]), first, n = part(&first) / pieces;
    tn_manual_seed(7 + (uint64_t)tn_parallel_rank()); /* rank 0's weights must reach all */
    tn_module *m = mlp(HIDDEN, with_norm);
    TN_CHECK(tn_module_to_dtype(m, dtype));
    if (with_norm) TN_CHECK(tn_batch_norm_set_sync(m, true));
    TN_CHECK(tn_module_set_recompute(m, recomputes));
    tn_data_parallel_options o = { .bucket_bytes = atoi(argument[1]), .messages = messages };
    tn_data_parallel *p = shared(m, o);
    TN_CHECK(tn_data_parallel_check(p));
    tn_optim *opt = tn_sgd(tn_parameters(m), (tn_sgd_options){ .lr = 0.5, .momentum = 0.9 });
    TN_CHECK_PTR(opt);
    for (int64_t step = 0; step < 10; step++) {
        tn_scope scope = tn_scope_begin();
        TN_CHECK(tn_optim_zero_grad(opt));
        for (int64_t k = 0; k < pieces; k++) {
            tn_data_parallel_set_sync(p, k + 1 == pieces);
            tn_tensor *loss = loss_of(m, first + k * n, n, step, dtype);
            TN_CHECK(tn_backward(tn_div_scalar(loss, (double)pieces)));
        }
        double norm = tn_clip_grad_norm(tn_optim_parameters(opt), 0.5, 2, true);
        EXPECT(norm > 0);
        TN_CHECK(tn_optim_step(opt));
        TN_CHECK(tn_data_parallel_check(p));
        tn_scope_end(scope);
    }
    if (tn_parallel_rank() == 0) TN_CHECK(tn_save(m, argument[3]));
    tn_optim_free(opt);
    shared_free(p, m);
}

/* norm DTYPE FILE: the same with batch norm, many buckets. */
static void norm(char **argument)
{
    char bytes[] = "64", pieces[] = "1";
    with_norm = true;
    train((char *[]){ argument[0], bytes, pieces, argument[1] });
}

/* recompute DTYPE FILE: the same, with what backward needs computed again. */
static void recompute(char **argument)
{
    recomputes = true;
    norm(argument);
}

/* bf16 DTYPE BUCKET_BYTES FILE: train, with messages in bf16. */
static void train_bf16(char **argument)
{
    char pieces[] = "1";
    messages = TN_BF16;
    train((char *[]){ argument[0], argument[1], pieces, argument[2] });
}

/* wide FILE: layers so wide that each op is shared out among the threads of the process, while
 * buckets are on their way; an optimizer whose state is dealt over the ranks. f64. */
static void wide(char **argument)
{
    enum { BATCH = 128, FEATURES = 300, MIDDLE = 512 };
    int64_t n = BATCH / tn_parallel_size(), first = n * tn_parallel_rank();
    tn_manual_seed(7);
    tn_module *m = model(tn_sequential(tn_linear_new(FEATURES, MIDDLE, (tn_linear_options){ 0 }),
                                       tn_batch_norm1d_new(MIDDLE, (tn_batch_norm_options){ 0 }),
                                       tn_tanh_new(),
                                       tn_linear_new(MIDDLE, FEATURES, (tn_linear_options){ 0 })));
    TN_CHECK(tn_module_to_dtype(m, TN_F64));
    TN_CHECK(tn_batch_norm_set_sync(m, true));
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ .bucket_bytes = 100000 });
    tn_optim *opt = tn_adam(tn_parameters(m), (tn_adam_options){ .lr = 1e-3 });
    TN_CHECK_PTR(opt);
    if (tn_parallel_size() > 1) TN_CHECK(tn_data_parallel_shard(p, opt));
    tn_tensor *x = tn_to_dtype(there(tn_randn(TN_SHAPE(BATCH, FEATURES))), TN_F64);
    for (int step = 0; step < 3; step++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *mine = tn_narrow(x, 0, first, n);
        TN_CHECK(tn_optim_zero_grad(opt));
        TN_CHECK(tn_backward(tn_mse_loss(tn_forward(m, mine), mine, TN_MEAN)));
        TN_CHECK(tn_optim_step(opt));
        TN_CHECK(tn_data_parallel_check(p));
        tn_scope_end(scope);
    }
    if (tn_parallel_rank() == 0) TN_CHECK(tn_save(m, argument[0]));
    tn_data_parallel_free(p);
    tn_optim_free(opt);
    tn_module_drop(m);
}

/* Rank r has r + 2 rows: y, the gradients and the running buffers are those of one batch norm over
 * all rows, whose gradients every rank computes for itself. */
static void uneven_with(bool biased_var)
{
    int64_t size = tn_parallel_size(), rank = tn_parallel_rank();
    int64_t all = size * (size + 3) / 2, first = rank * (rank + 3) / 2, n = rank + 2;
    tn_module *m =
        model(tn_batch_norm1d_new(WIDTH, (tn_batch_norm_options){ .biased_var = biased_var }));
    TN_CHECK(tn_module_to_dtype(m, TN_F64));
    TN_CHECK(tn_init_uniform(tn_get_parameter(m, "weight"), 1, 2));
    tn_module *whole = tn_module_clone(m);
    TN_CHECK(tn_batch_norm_set_sync(m, true));
    EXPECT(tn_batch_norm_sync(m) && !tn_batch_norm_sync(whole));
    tn_tensor *x = rows(0, all, 0, TN_F64), *part = tn_clone(tn_narrow(x, 0, first, n));
    tn_tensor *seed = rows(0, all, 5, TN_F64);
    TN_CHECK(tn_set_requires_grad(x, true));
    TN_CHECK(tn_set_requires_grad(part, true));
    tn_tensor *y = tn_forward(whole, x), *mine = tn_forward(m, part);
    EXPECT(tensor_difference(mine, tn_narrow(y, 0, first, n)) < 1e-12);
    TN_CHECK(tn_backward_from(y, seed, 0));
    TN_CHECK(tn_backward_from(mine, tn_narrow(seed, 0, first, n), 0));
    EXPECT(tensor_difference(tn_grad(part), tn_narrow(tn_grad(x), 0, first, n)) < 1e-12);
    tn_tensor *dw = tn_clone(tn_grad(tn_get_parameter(m, "weight")));
    TN_CHECK(tn_parallel_sum_(dw));
    EXPECT(tensor_difference(dw, tn_grad(tn_get_parameter(whole, "weight"))) < 1e-12);
    static const char *const buffer[] = { "running_mean", "running_var", "num_batches_tracked" };
    for (int i = 0; i < 3; i++)
        EXPECT(tensor_difference(tn_get_buffer(m, buffer[i]), tn_get_buffer(whole, buffer[i])) <
               1e-12);
    tn_tensor *one = tn_narrow(x, 0, 0, 1); /* one row on each rank: together enough */
    TN_CHECK_PTR(tn_forward(m, one));
    TN_CHECK(tn_batch_norm_set_sync(m, false));
    EXPECT_NULL(tn_forward(m, one), "one value per channel");
    tn_module_drop(whole);
    tn_module_drop(m);
}

static void uneven(void)
{
    uneven_with(false);
    uneven_with(true);
}

/* What differs on the last rank is an error on all, and they go on. */
static void same_data(void)
{
    char text[] = "abc";
    TN_CHECK(tn_parallel_same("the text", text, 3));
    TN_CHECK(tn_parallel_same("nothing", NULL, 0));
    for (int k = 0; k < 2; k++) { /* another byte; one byte less */
        if (last_rank() && k == 0) text[1] = 'B';
        EXPECT_FAILS(tn_parallel_same("the text", text, 3 - (k && last_rank())), TN_E_STATE,
                     on_last_rank("the text is not the same as on rank 0"));
        text[1] = 'b';
    }
    TN_CHECK(tn_parallel_same("the text", text, 3));
    EXPECT(tn_parallel_same(NULL, text, 3) == TN_E_INVALID);
    tn_error_clear();
}

/* The last rank ends its program as soon as its sum has begun, the others come to it later. */
static void leave(void)
{
    tn_tensor *t = there(tn_full(TN_SHAPE(8), 1));
    TN_CHECK(tn_parallel_sum_(t)); /* connects */
    EXPECT(tn_item(tn_mean_all(t)) == tn_parallel_size());
    TN_CHECK(tn_parallel_barrier());
    if (!last_rank()) usleep(200000);
    TN_CHECK(tn_parallel_sum_(t));
    if (last_rank()) exit(0);
    EXPECT(tn_item(tn_mean_all(t)) == tn_parallel_size() * tn_parallel_size());
}

/* compare A B TOLERANCE: the largest difference of two such files. */
static void compare(char **argument)
{
    tn_list *a = tn_load_tensors(argument[0], NULL), *b = tn_load_tensors(argument[1], NULL);
    TN_CHECK_PTR(a);
    TN_CHECK_PTR(b);
    double most = 0;
    for (int i = 0; i < a->n; i++)
        most = fmax(most, tensor_difference(a->entry[i].tensor, tn_list_get(b, a->entry[i].name)));
    printf("largest difference %.2g, at most %s\n", most, argument[2]);
    EXPECT(a->n == b->n && a->n > 0);
    EXPECT(most <= atof(argument[2]));
}

static void flip_a_bit(tn_tensor *weight)
{
    uint32_t bits[HIDDEN * CLASSES];
    TN_CHECK(tn_copy_out(weight, bits, sizeof bits, TN_F32));
    bits[4] ^= 1;
    TN_NO_GRAD TN_CHECK(tn_copy_in(weight, bits, sizeof bits, TN_F32));
}

/* A check of all ranks' bits fails when one bit of one rank differs. */
static void differ(void)
{
    tn_module *m = mlp(HIDDEN, true);
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    tn_tensor *weight = tn_get_parameter(m, "3.weight");
    if (last_rank()) flip_a_bit(weight);
    EXPECT_FAILS(tn_data_parallel_check(p), TN_E_STATE,
                 on_last_rank("parameter 3.weight has other bits"));
    if (last_rank()) flip_a_bit(weight);
    TN_CHECK(tn_data_parallel_check(p));
    TN_CHECK(tn_fill_(tn_get_buffer(m, "1.running_var"), tn_parallel_rank()));
    EXPECT_FAILS(tn_data_parallel_check(p), TN_E_STATE,
                 "on rank 1 buffer 1.running_var has other bits");
    shared_free(p, m);
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* One backward of a model with batch norm; then running_mean is what the rule says of the ranks'
 * own ones, which a twin that is not shared has computed, and the counter is an integer. */
static void one_rule(tn_buffer_rule rule, bool by_prefix)
{
    tn_manual_seed(3);
    tn_module *m = mlp(HIDDEN, true);
    tn_register_buffer(m, "note", NULL, there(tn_full(TN_SHAPE(2), 1)), TN_NON_PERSISTENT);
    tn_module *twin = tn_module_clone(m);
    TN_CHECK_PTR(twin);
    tn_data_parallel *p =
        shared(m, (tn_data_parallel_options){ .buffers = by_prefix ? TN_BUFFERS_OWN : rule });
    if (by_prefix) TN_CHECK(tn_data_parallel_set_buffers(p, "1.", rule));
    EXPECT(tn_data_parallel_buffers(p, "1.running_mean") == rule);
    tn_tensor *counter = tn_get_buffer(m, "1.num_batches_tracked"), *own = NULL;
    tn_tensor *note = tn_get_buffer(m, "note"), *mean = tn_get_buffer(m, "1.running_mean");
    TN_CHECK(tn_fill_(counter, tn_parallel_rank() == 0 ? 40 : 50)); /* no mean of integers */
    TN_CHECK(tn_fill_(note, tn_parallel_rank()));
    TN_CHECK(tn_backward(own_loss(m, 0, TN_F32)));
    TN_CHECK_PTR(own_loss(twin, 0, TN_F32));
    own = tn_get_buffer(twin, "1.running_mean");
    tn_tensor *average = tn_zeros_like(own);
    for (int r = 0; r < tn_parallel_size(); r++) TN_CHECK(tn_add_(average, of_rank(own, r)));
    TN_CHECK(tn_mul_scalar_(average, 1.0 / tn_parallel_size()));
    EXPECT(tensor_difference(of_rank(own, 0), of_rank(own, 1)) > 1e-3); /* so the rules differ */
    if (rule == TN_BUFFERS_FIRST) EXPECT(tensor_difference(mean, of_rank(own, 0)) == 0);
    if (rule == TN_BUFFERS_MEAN) EXPECT(tensor_difference(mean, average) < 1e-7);
    if (rule == TN_BUFFERS_OWN) EXPECT(tensor_difference(mean, own) == 0);
    bool kept = rule == TN_BUFFERS_OWN && tn_parallel_rank() > 0;
    EXPECT(tn_item(counter) == (kept ? 51 : 41));
    EXPECT(tn_at(note, TN_INDEX(1)) == tn_parallel_rank()); /* not persistent: not sent */
    if (rule != TN_BUFFERS_OWN) {
        TN_CHECK(tn_data_parallel_check(p));
        EXPECT(tensor_difference(of_rank(mean, 0), of_rank(mean, 1)) == 0);
    }
    tn_module_drop(twin);
    shared_free(p, m);
}

static void buffers(void)
{
    for (int k = 0; k < 2; k++) {
        one_rule(TN_BUFFERS_FIRST, k);
        one_rule(TN_BUFFERS_MEAN, k);
        one_rule(TN_BUFFERS_OWN, k);
    }
}

/* What becomes of a buffer of that role whose values are the rank's number + 1, at the start or, by
 * the mean, in a backward; in the table's words. Rank 1's values tell, on every rank. */
static const char *role_on_ranks(unsigned role, bool backward)
{
    tn_manual_seed(3);
    tn_module *m = model(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
    tn_tensor *t = there(tn_ones(TN_SHAPE(2)));
    TN_CHECK(tn_register_buffer(m, "buffer", NULL, t, role));
    if (!backward) TN_CHECK(tn_fill_(t, tn_parallel_rank() + 1));
    tn_data_parallel *p =
        tn_data_parallel_new(m, (tn_data_parallel_options){ .buffers = TN_BUFFERS_MEAN });
    if (!p) {
        EXPECT(!backward && strstr(tn_error(), "constant buffer of hash"));
        tn_error_clear();
        tn_module_drop(m);
        return "compared";
    }
    if (backward) {
        TN_CHECK(tn_fill_(t, tn_parallel_rank() + 1));
        TN_CHECK(tn_backward(tn_sum_all(tn_forward(m, there(tn_ones(TN_SHAPE(1, 2)))))));
    }
    double of_1 = tn_at(of_rank(t, 1), TN_INDEX(1));
    shared_free(p, m);
    return of_1 == 1 ? "rank 0's" : of_1 == 2 ? "own" : "mean";
}

/* One rank has another role: all fail, before any message depends on it. */
static void other_role(void)
{
    tn_module *m = model(tn_linear_new(2, 1, (tn_linear_options){ 0 }));
    TN_CHECK(tn_register_buffer(m, "buffer", NULL, there(tn_ones(TN_SHAPE(2))),
                                last_rank() ? TN_COUNTER : TN_PLAIN));
    EXPECT_NULL(tn_data_parallel_new(m, (tn_data_parallel_options){ 0 }), "counter");
    tn_module_drop(m);
}

static void roles(char **argument)
{
    other_role();
    EXPECT(!strcmp(role_on_ranks(TN_CONSTANT | TN_NON_PERSISTENT, false), "compared"));
    static const char *const rows[] = { "several ranks at the start",
                                        "several ranks, by their mean" };
    for (int i = 0; i < 2 * BUFFER_ROLES; i++) {
        const char *row = rows[i / BUFFER_ROLES];
        const char *want = buffer_cell(argument[0], row, i % BUFFER_ROLES);
        const char *seen = role_on_ranks(buffer_role[i % BUFFER_ROLES], i >= BUFFER_ROLES);
        if (strcmp(seen, want) == 0) continue;
        fprintf(stderr, "%s, role %d: %s, the table says %s\n", row, i % BUFFER_ROLES, seen, want);
        exit(1);
    }
}

/* ---- tn_check_state on all ranks ------------------------------------------------------------- */

static tn_tensor *checked_loss(tn_module *m, int part_of, int parts, void *user)
{
    (void)user, (void)part_of;
    if (parts > 1) return tn_fail(TN_E_UNSUPPORTED, "too few rows");
    return own_loss(m, 0, TN_F32);
}

/* y = table w x; writes: each forward leaves its largest input in w, which nobody sees. */
typedef struct writer {
    tn_module base;
    tn_tensor *w, *table;
    bool writes;
} writer;

static tn_tensor *writer_forward(tn_module *self, tn_tensor *x)
{
    writer *m = (writer *)self;
    float *w = (float *)(uintptr_t)tn_data(m->w);
    if (m->writes) w[0] = (float)tn_item(tn_max_all(x));
    return tn_mul(m->table, tn_mul(m->w, x));
}

static tn_module *writer_new(double table, bool writes)
{
    static const tn_module_type type = { .name = "Writer",
                                         .size = sizeof(writer),
                                         .forward = writer_forward };
    writer *m = tn_module_new(&type);
    tn_register_parameter(&m->base, "w", &m->w, tn_ones(TN_SHAPE(WIDTH)));
    tn_register_buffer(&m->base, "table", &m->table, tn_full(TN_SHAPE(1), table), TN_CONSTANT);
    m->writes = writes;
    return model(tn_sequential(tn_module_done(&m->base),
                               tn_linear_new(WIDTH, CLASSES, (tn_linear_options){ 0 })));
}

/* What tn_check_state prints of m, with an optimizer; drops m. Static memory. */
static const char *state_report(tn_status wanted, tn_module *m)
{
    static char text[1 << 14];
    tn_optim *opt = tn_adamw(tn_parameters(m), (tn_adamw_options){ 0 });
    FILE *file = tmpfile();
    tn_status status = tn_check_state(file, m, opt, checked_loss, NULL);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    if (status != wanted) fprintf(stderr, "%s", text);
    EXPECT(status == wanted);
    tn_error_clear();
    tn_optim_free(opt);
    tn_module_drop(m);
    return text;
}

static void checked(void)
{
    char on[80];
    const int rank = tn_parallel_rank(), size = tn_parallel_size();
    tn_manual_seed(3 + (uint64_t)rank); /* rank 0's weights must reach all */
    const char *text = state_report(TN_OK, mlp(HIDDEN, true));
    snprintf(on, sizeof on, "on %d ranks: 17 tensors, as each by itself", size);
    EXPECT(strstr(text, on));
    state_report(TN_OK, writer_new(1, false));
    text = state_report(TN_E_STATE, writer_new(1 + rank, false)); /* faults */
    EXPECT(strstr(text, "(step): fails on ") && strstr(text, "0.table"));
    text = state_report(TN_E_STATE, writer_new(1, true));
    snprintf(on, sizeof on, "0.w: differs on %d ranks: ", size);
    EXPECT(rank == 0 || strstr(text, on));
}

/* ---- parameters that get no gradient --------------------------------------------------------- */

static void unused(void)
{
    int64_t first, n = part(&first);
    tn_manual_seed(3);
    tn_module *m = model(branches_new());
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ .bucket_bytes = 1 });
    EXPECT_NULL(tn_data_parallel_unused(p, 0), "no averaging backward");
    tn_tensor *x = rows(first, n, 0, TN_F32), *weight = tn_get_parameter(m, "one.weight");
    TN_CHECK(tn_backward(tn_sum(branches_forward(m, x), NULL, 0, false)));

    tn_tensor *sums = tn_sum(rows(0, ROWS / tn_parallel_size(), 0, TN_F32), TN_AXES(0), true);
    tn_tensor *want = tn_mul_scalar(tn_expand(sums, TN_SHAPE(CLASSES, WIDTH)),
                                    1.0 / tn_parallel_size()); /* rank 0's, and 0 of the others */
    EXPECT(tensor_difference(tn_grad(weight), want) < 1e-6);
    EXPECT(tn_grad(tn_get_parameter(m, "none.weight")) == TN_NONE);
    tn_list *here = tn_data_parallel_unused(p, 1), *all = tn_data_parallel_unused(p, -1);
    TN_CHECK_PTR(here);
    EXPECT(here->n == 2 && tn_list_has(here, "one.weight") && tn_list_has(here, "none.weight"));
    EXPECT(all->n == 1 && tn_list_has(all, "none.weight"));
    EXPECT(tn_data_parallel_unused(p, 0)->n == 1);
    shared_free(p, m);
}

/* A weight that two layers share is one parameter: its gradient leaves once, when both uses are
 * there. */
static void tied(void)
{
    int64_t first, n = part(&first);
    tn_manual_seed(3);
    tn_linear_options o = { .no_bias = true };
    tn_module *a = model(tn_linear_new(WIDTH, WIDTH, o)),
              *b = model(tn_linear_new(WIDTH, WIDTH, o));
    TN_CHECK(tn_module_set(b, "weight", tn_get_parameter(a, "weight")));
    tn_module *m = tn_sequential(a, tn_tanh_new(), b);
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ .bucket_bytes = 1 });
    EXPECT(tn_parameters(m)->n == 1 && p->sync.n == (tni_ranks() ? 1 : 0));
    tn_tensor *w = tn_get_parameter(a, "weight"), *copy = tn_clone(tn_detach(w));
    TN_CHECK(tn_set_requires_grad(copy, true));
    tn_tensor *x = rows(0, ROWS / n * n, 0, TN_F32), *mine = rows(first, n, 0, TN_F32);
    tn_tensor *h = tn_tanh(tn_matmul(x, tn_transpose(copy, 0, 1)));
    TN_CHECK(tn_backward(tn_mean(tn_matmul(h, tn_transpose(copy, 0, 1)), NULL, 0, false)));
    TN_CHECK(tn_backward(tn_mean(tn_forward(m, mine), NULL, 0, false)));
    EXPECT(tensor_difference(tn_grad(w), tn_grad(copy)) < 1e-6);
    EXPECT(tensor_difference(tn_grad(w), of_rank(tn_grad(w), 0)) == 0);
    shared_free(p, m);
}

/* Frozen on all ranks: nothing is sent for it. Frozen on one: all ranks fail and name it. */
static void frozen(void)
{
    tn_manual_seed(3);
    tn_module *m = mlp(HIDDEN, false);
    TN_CHECK(tn_module_freeze(tn_get_submodule(m, "0")));
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    TN_CHECK(tn_backward(own_loss(m, 0, TN_F32)));
    EXPECT(tn_grad(tn_get_parameter(m, "0.weight")) == TN_NONE);
    EXPECT(tn_grad(tn_get_parameter(m, "3.weight")) != TN_NONE);
    EXPECT(tn_data_parallel_unused(p, -1)->n == 0);
    tn_tensor *before = tn_clone(tn_grad(tn_get_parameter(m, "3.weight")));
    if (tn_parallel_rank() == 1)
        TN_CHECK(tn_set_requires_grad(tn_get_parameter(m, "3.bias"), false));
    EXPECT_FAILS(tn_backward(own_loss(m, 1, TN_F32)), TN_E_STATE, "3.bias requires grad on rank 0");
    EXPECT(tensor_difference(before, tn_grad(tn_get_parameter(m, "3.weight"))) == 0);
    if (tn_parallel_rank() == 1)
        TN_CHECK(tn_set_requires_grad(tn_get_parameter(m, "3.bias"), true));
    TN_CHECK(tn_backward(own_loss(m, 1, TN_F32))); /* nothing was on its way */
    shared_free(p, m);
}

/* ---- when gradients leave -------------------------------------------------------------------- */

typedef struct watch {
    tn_data_parallel *p;
    tn_module *m;
    size_t sent;   /* buckets, when the hook ran */
    bool backward; /* the hook runs one of its own */
    tn_status nested;
} watch;

/* Runs when the gradient has reached the first layer's output. */
static tn_tensor *look(tn_tensor *gradient, void *user)
{
    watch *w = user;
    w->sent = tni_ranks() ? w->p->next : 0;
    if (w->backward) {
        bool was = tn_set_grad_enabled(true);
        w->nested = tn_backward(loss_of(w->m, 0, 2, 0, TN_F32));
        tn_set_grad_enabled(was);
    }
    return gradient;
}

static tn_tensor *watched_loss(watch *w)
{
    int64_t first, n = part(&first);
    tn_tensor *h = tn_forward(tn_get_submodule(w->m, "0"), rows(first, n, 0, TN_F32));
    EXPECT(tn_register_hook(h, look, w) >= 0);
    tn_tensor *y = tn_forward(tn_get_submodule(w->m, "3"), tn_tanh(h));
    return tn_cross_entropy(y, classes(first, n, 0));
}

static tn_tensor *double_it(tn_tensor *gradient, void *user)
{
    (void)user;
    return tn_mul_scalar(gradient, 2);
}

/* The last layer's buckets have left before the first layer is differentiated; the average is of
 * what a hook of the parameter returned; a hook's own backward is refused. */
static void overlap(void)
{
    tn_manual_seed(3);
    watch w = { .m = mlp(HIDDEN, false) };
    tn_tensor *weight = tn_get_parameter(w.m, "3.weight"), *first = tn_get_parameter(w.m, "0.bias");
    w.p = shared(w.m, (tn_data_parallel_options){ .bucket_bytes = 1 });
    TN_CHECK(tn_backward(watched_loss(&w)));
    EXPECT(w.sent == 2); /* 3.bias and 3.weight, each a bucket of its own */
    tn_tensor *plain = tn_clone(tn_grad(weight)), *bias = tn_clone(tn_grad(first));

    TN_CHECK(tn_module_zero_grad(w.m));
    int64_t id = tn_register_hook(weight, double_it, NULL);
    TN_CHECK(tn_backward(watched_loss(&w)));
    EXPECT(tensor_difference(tn_grad(weight), tn_mul_scalar(plain, 2)) < 1e-7);
    EXPECT(tensor_difference(tn_grad(first), bias) == 0);
    EXPECT(w.sent == 1); /* 3.weight waits for its hook, which runs at the end */
    tn_remove_hook(weight, id);

    TN_CHECK(tn_backward(watched_loss(&w))); /* adds to the gradients, as without ranks */
    EXPECT(tensor_difference(tn_grad(weight), tn_mul_scalar(plain, 3)) < 1e-6);

    w.backward = true;
    TN_CHECK(tn_backward(watched_loss(&w)));
    EXPECT_FAILS(w.nested, TN_E_STATE, "started by a hook");
    tn_data_parallel_free(w.p);
    TN_CHECK(tn_backward(loss_of(w.m, 0, 2, 0, TN_F32))); /* nothing is averaged any more */
    tn_module_drop(w.m);
}

/* bf16 parameters: sums in f32, one rounding. Two handles in one program; a model that changed. */
static void dtypes(void)
{
    tn_manual_seed(3);
    tn_module *a = mlp(HIDDEN, false), *b = mlp(2, false);
    TN_CHECK(tn_module_to_dtype(a, TN_BF16));
    tn_data_parallel *pa = shared(a, (tn_data_parallel_options){ 0 });
    tn_data_parallel *pb = shared(b, (tn_data_parallel_options){ 0 });
    tn_tensor *half = tn_to_dtype(own_loss(a, 0, TN_BF16), TN_F32);
    TN_CHECK(tn_backward(tn_add(half, own_loss(b, 0, TN_F32))));
    tn_tensor *ga = tn_grad(tn_get_parameter(a, "0.weight"));
    tn_tensor *gb = tn_grad(tn_get_parameter(b, "0.weight"));
    EXPECT(tn_dtype_of(ga) == TN_BF16);
    for (int r = 1; r < tn_parallel_size(); r++) {
        EXPECT(tensor_difference(ga, of_rank(ga, r)) == 0);
        EXPECT(tensor_difference(gb, of_rank(gb, r)) == 0);
    }
    EXPECT(tn_item(tn_max_all(tn_abs(ga))) > 0);
    TN_CHECK(tn_module_to_dtype(b, TN_F64));
    EXPECT_FAILS(tn_backward(own_loss(b, 0, TN_F64)), TN_E_STATE, "have changed since");
    shared_free(pb, b);
    shared_free(pa, a);
}

/* The gradient of rank r for a parameter w: what the loss multiplies it with. */
static tn_tensor *slope(tn_tensor *w, int r)
{
    int64_t n = tn_numel(w);
    tn_tensor *t = rows((r + 1) * n, n, r, TN_F32); /* n rows of WIDTH: the first column */
    return tn_reshape(tn_select(t, 1, 0), w->shape);
}

/* NCCL rounds at every addition. */
static bool rounded_once(void)
{
    return where.type == TN_CPU || tn_parallel_size() == 2;
}

/* Messages in bf16 hold half as many bytes. Each gradient is rounded, the sum of the ranks' is
 * rounded, and nothing else: exactly so, for numbers of elements that the ranks do not divide. f64
 * is sent as f64. */
static void half_sums(void)
{
    int size = tn_parallel_size();
    double bound = rounded_once() ? 1e-7 : size * 0x1p-8; /* of numbers up to 1 */
    for (int64_t bytes = 1; bytes < 10000; bytes = 30 * bytes + 1) {
        tn_module *m = mlp(HIDDEN, false);
        tn_data_parallel *p =
            shared(m, (tn_data_parallel_options){ .bucket_bytes = bytes, .messages = TN_BF16 });
        tn_tensor *loss = there(tn_zeros(TN_SCALAR));
        tn_list *list = tn_parameters(m);
        for (int i = 0; i < list->n; i++) {
            tn_tensor *w = list->entry[i].tensor;
            loss = tn_add(loss, tn_sum_all(tn_mul(w, slope(w, tn_parallel_rank()))));
        }
        TN_CHECK(tn_backward(loss));
        TN_CHECK(tn_data_parallel_check(p));
        for (int i = 0; i < list->n; i++) {
            tn_tensor *w = list->entry[i].tensor, *sum = tn_zeros_like(w),
                      *exact = tn_zeros_like(w);
            for (int r = 0; r < size; r++) {
                tn_tensor *g = slope(w, r);
                sum = tn_add(sum, tn_to_dtype(tn_to_dtype(g, TN_BF16), TN_F32));
                exact = tn_add(exact, g);
            }
            sum = tn_to_dtype(tn_to_dtype(sum, TN_BF16), TN_F32);
            EXPECT(tensor_difference(tn_grad(w), tn_mul_scalar(sum, 1.0 / size)) < bound);
            EXPECT(tensor_difference(sum, exact) > 0);
            for (int r = 1; r < size; r++)
                EXPECT(tensor_difference(tn_grad(w), of_rank(tn_grad(w), r)) == 0);
        }
        for (size_t i = 0; i < p->n_buckets && tn_parallel_size() > 1; i++)
            EXPECT(tn_dtype_of(p->bucket[i].message) == TN_BF16);
        shared_free(p, m);
    }
}

/* 256 and ones, in bf16, where 256 + 1 is 256: the ones are not lost. f64 stays f64. */
static void half_edges(void)
{
    int rank = tn_parallel_rank(), size = tn_parallel_size();
    tn_module *m = model(tn_linear_new(1, 3, (tn_linear_options){ .no_bias = true }));
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ .messages = TN_BF16 });
    tn_tensor *w = tn_get_parameter(m, "weight");
    TN_CHECK(tn_backward(tn_sum_all(tn_mul_scalar(w, rank == 0 ? 256 : 1.5))));
    double sum = 256 + 1.5 * (size - 1), want = 2 * nearbyint(sum / 2); /* 2 apart, ties to even */
    double got = tn_at(tn_grad(w), TN_INDEX(2, 0)) * size;
    EXPECT(rounded_once() ? got == want : got >= 256 && got <= 256 + 2 * (size - 1));
    tn_data_parallel_free(p);
    TN_CHECK(tn_module_to_dtype(m, TN_F64));
    TN_CHECK(tn_module_zero_grad(m));
    p = shared(m, (tn_data_parallel_options){ .messages = TN_BF16 });
    w = tn_get_parameter(m, "weight");
    TN_CHECK(tn_backward(tn_sum_all(tn_mul_scalar(w, 1 + 1e-9 * rank))));
    double exact = 1 + 1e-9 * (size - 1) / 2;
    EXPECT(fabs(tn_at(tn_grad(w), TN_INDEX(1, 0)) - exact) < 1e-15);
    tn_data_parallel_free(p);
    EXPECT_NULL(tn_data_parallel_new(m, (tn_data_parallel_options){ .messages = TN_F16 }),
                "messages 3: want TN_F32 or TN_BF16");
    tn_module_drop(m);
}

/* ---- calls over all ranks -------------------------------------------------------------------- */

static void calls(void)
{
    int rank = tn_parallel_rank(), size = tn_parallel_size();
    double ranks = size * (size - 1) / 2.0;
    tn_tensor *f = tn_full_as(TN_SHAPE(3), rank, TN_F32, where);
    tn_tensor *i = tn_full_as(TN_SCALAR, rank, TN_I64, where);
    tn_tensor *d = tn_transpose(tn_mul_scalar(there(tn_ones(TN_SHAPE(2, 3))), rank), 0, 1);
    TN_CHECK(tn_parallel_sum_(f));
    TN_CHECK(tn_parallel_sum_(i));
    TN_CHECK(tn_parallel_mean_(d));
    EXPECT(tn_at(f, TN_INDEX(2)) == ranks && tn_item(i) == ranks);
    EXPECT(tn_at(d, TN_INDEX(2, 1)) == ranks / size);
    EXPECT(tn_parallel_mean_(i) == TN_E_DTYPE);
    EXPECT(tn_parallel_broadcast(i, size) == TN_E_INDEX);
    TN_CHECK(tn_fill_(i, rank));
    TN_CHECK(tn_parallel_broadcast(i, size - 1));
    EXPECT(tn_item(i) == size - 1);
    tn_tensor *odd = tn_full_as(TN_SHAPE(rank == 1 ? 5 : 3), rank, TN_F32, where);
    EXPECT_FAILS(tn_parallel_broadcast(odd, 0), TN_E_SHAPE,
                 "on rank 1 [5] of f32: want the shape and dtype of rank 0");
    EXPECT(tn_at(odd, TN_INDEX(0)) == rank);
    tn_error_clear();
    TN_CHECK(tn_parallel_barrier());
    TN_CHECK(tn_parallel_begin()); /* again: nothing */
    if (where.type == TN_CPU || tn_cuda_device_count() < 2) return;
    int other = (where.index + 1) % tn_cuda_device_count();
    EXPECT_NULL(tn_ones_like(tn_empty_as(TN_SHAPE(1), TN_F32, tn_cuda(other))),
                "want one GPU in a process");
}

/* The same numbers on all ranks, other masks; and rank 0's state, saved, gives the same masks. */
static void random_numbers(void)
{
    unsigned char state[TN_GENERATOR_STATE_SIZE];
    tn_manual_seed((uint64_t)tn_parallel_rank());
    TN_CHECK(tn_parallel_share_random());
    tn_tensor *x = tn_rand(TN_SHAPE(50)), *ones = there(tn_ones(TN_SHAPE(50)));
    EXPECT(tensor_difference(x, of_rank(x, 0)) == 0);
    tn_generator_get_state(tn_default_generator(), state); /* as rank 0's checkpoint has it */
    tn_tensor *mask = tn_dropout(ones, 0.5, true);
    for (int r = 0; r < tn_parallel_size(); r++) {
        double d = tensor_difference(mask, of_rank(mask, r));
        EXPECT(r == tn_parallel_rank() ? d == 0 : d > 0);
    }
    tn_manual_seed(99);
    if (tn_parallel_rank() == 0) TN_CHECK(tn_generator_set_state(tn_default_generator(), state));
    TN_CHECK(tn_parallel_share_random());
    EXPECT(tensor_difference(tn_dropout(ones, 0.5, true), mask) == 0);
}

/* ---- metrics over all ranks ------------------------------------------------------------------ */

enum { COUNTED = 41 };

/* Rows from, from + step, ... of a batch that every rank can make, for that kind of metric. */
static void count_rows(tn_module *m, tn_metric_kind kind, int64_t from, int64_t end, int64_t step)
{
    tn_generator *g = tn_generator_new(7);
    float v[COUNTED * 3];
    int64_t y[COUNTED];
    for (int i = 0; i < COUNTED * 3; i++) v[i] = (float)(tn_generator_u32(g) % 64) / 8;
    for (int i = 0; i < COUNTED; i++) y[i] = tn_generator_u32(g) % (kind == TN_AUC ? 2 : 3);
    tn_generator_free(g);
    tn_tensor *x = tn_from_floats(v, TN_SHAPE(COUNTED, 3)), *t = tn_from_ints(y, TN_SHAPE(COUNTED));
    if (kind == TN_AUC) x = tn_select(x, 1, 0);
    if (kind == TN_MEAN_SQUARED_ERROR) t = tn_neg(x);
    TN_CHECK(tn_metric_update(m, there(tn_slice(x, 0, from, end, step)),
                              there(tn_slice(t, 0, from, end, step))));
}

static void one_metric(tn_metric_kind kind, tn_metric_options o)
{
    const int rank = tn_parallel_rank(), size = tn_parallel_size();
    tn_module *whole = model(tn_metric_new(kind, o)), *m = model(tn_metric_new(kind, o));
    count_rows(whole, kind, 0, COUNTED, 1);
    count_rows(m, kind, rank, 17, size); /* as many as there are: not equally many on all ranks */
    tn_tensor *own = tn_clone(tn_get_buffer(m, "sums"));
    tn_module *half = tn_metric_total(m);
    TN_CHECK_PTR(half);
    EXPECT(tensor_difference(own, tn_get_buffer(m, "sums")) == 0); /* it stays as it is */
    /* the run ends; rank 0 goes on with what all have counted */
    if (rank == 0)
        TN_CHECK(tn_load_state_dict(m, tn_state_dict(half, ""), (tn_load_options){ 0 }, NULL));
    else
        TN_CHECK(tn_metric_reset(m));
    count_rows(m, kind, 17 + rank, COUNTED, size);
    tn_module *total = tn_metric_total(m);
    TN_CHECK_PTR(total);
    const double value = tn_metric_value(total), want = tn_metric_value(whole);
    const bool exact = kind != TN_PERPLEXITY && kind != TN_MEAN_SQUARED_ERROR;
    EXPECT(exact ? value == want : fabs(value - want) <= 1e-14 * want);
    if (exact && kind != TN_AUC)
        EXPECT(tensor_difference(tn_get_buffer(total, "sums"), tn_get_buffer(whole, "sums")) == 0);
    EXPECT(tensor_difference(of_rank(tn_get_buffer(total, "sums"), 0),
                             tn_get_buffer(total, "sums")) == 0);
    tn_module_drop(half), tn_module_drop(total), tn_module_drop(whole), tn_module_drop(m);
}

static void metrics(void)
{
    one_metric(TN_ACCURACY, (tn_metric_options){ .top_k = 2 });
    one_metric(TN_CONFUSION, (tn_metric_options){ .classes = 3 });
    one_metric(TN_AUC, (tn_metric_options){ .rows = COUNTED });
    one_metric(TN_AUC, (tn_metric_options){ .rows = 100 });
    one_metric(TN_MEAN_SQUARED_ERROR, (tn_metric_options){ 0 });
    one_metric(TN_PERPLEXITY, (tn_metric_options){ 0 });
    tn_module *auc = model(tn_metric_new(TN_AUC, (tn_metric_options){ .rows = COUNTED }));
    count_rows(auc, TN_AUC, 0, COUNTED, 1); /* on each rank: more than there is room for */
    tn_module *total = tn_metric_total(auc);
    EXPECT(isnan(tn_metric_value(total)) &&
           strstr(tn_error(), "more scores than an AUC of 41 rows"));
    tn_error_clear();
    tn_module_drop(total), tn_module_drop(auc);
    auc = model(tn_metric_new(TN_AUC, (tn_metric_options){ .rows = last_rank() ? 4 : 5 }));
    EXPECT_NULL(tn_metric_total(auc), "metric");
    EXPECT_NULL(tn_metric_total(last_rank() ? NULL : auc), "");
    tn_module_drop(auc);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void expect_refused(tn_module *m, const char *why)
{
    EXPECT_NULL(tn_data_parallel_new(m, (tn_data_parallel_options){ 0 }), why);
    tn_module_drop(m);
}

/* Refused on all ranks, for the options of the last one. */
static void expect_options(tn_data_parallel_options o, const char *why)
{
    tn_module *m = mlp(HIDDEN, true);
    EXPECT(tn_data_parallel_new(m, o) == NULL && strstr(tn_error(), on_last_rank("")));
    EXPECT(strstr(tn_error(), why));
    tn_error_clear();
    tn_module_drop(m);
}

/* A second handle of a parameter, under another name, is refused; the first one goes on. */
static void two(void)
{
    tn_module *m = mlp(HIDDEN, false),
              *other = tn_sequential(tn_module_keep(tn_get_submodule(m, "3")));
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    EXPECT_NULL(tn_data_parallel_new(other, (tn_data_parallel_options){ 0 }),
                "another tn_data_parallel averages 0.weight already");
    TN_CHECK(tn_backward(own_loss(m, 0, TN_F32)));
    tn_tensor *g = tn_grad(tn_get_parameter(m, "3.weight"));
    EXPECT(tensor_difference(g, of_rank(g, 0)) == 0);
    tn_data_parallel_free(p);
    shared_free(shared(other, (tn_data_parallel_options){ 0 }), other);
    tn_module_drop(m);
}

/* A cast that the buckets still hold, a rule, or one more parameter, on one rank only: all fail
 * with one message, and go on when it is undone. A loss that is no scalar is refused on all, though
 * the last layer, which it does not read, can leave at once. */
static void changed(void)
{
    bool odd = tn_parallel_rank() == 1;
    int64_t first, n = part(&first);
    tn_manual_seed(3);
    tn_module *m = mlp(HIDDEN, true);
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ .bucket_bytes = 1 });
    tn_tensor *h = tn_forward(tn_get_submodule(m, "0"), rows(first, n, 0, TN_F32));
    EXPECT(tn_backward(h) != TN_OK && strstr(tn_error(), "tn_backward: "));
    TN_CHECK(tn_backward(tn_sum(h, NULL, 0, false)));
    if (odd) TN_CHECK(tn_module_to_dtype(tn_get_submodule(m, "3"), TN_BF16));
    h = tn_forward(tn_get_submodule(m, "0"), rows(first, n, 0, TN_F32));
    EXPECT_FAILS(tn_backward(tn_sum(h, NULL, 0, false)), TN_E_STATE,
                 "the parameters of rank 1 have other shapes or dtypes");
    TN_CHECK(tn_module_to_dtype(tn_get_submodule(m, "3"), odd ? TN_F32 : TN_BF16));
    TN_CHECK(tn_module_to_dtype(tn_get_submodule(m, "3"), TN_F32));
    TN_CHECK(tn_data_parallel_set_buffers(p, "1.", odd ? TN_BUFFERS_OWN : TN_BUFFERS_MEAN));
    EXPECT_FAILS(tn_backward(own_loss(m, 0, TN_F32)), TN_E_STATE,
                 "the buffers of rank 1 have other names, shapes, dtypes or rules");
    TN_CHECK(tn_data_parallel_set_buffers(p, "1.", TN_BUFFERS_MEAN));
    TN_CHECK(tn_backward(own_loss(m, 0, TN_F32)));
    if (odd) TN_CHECK(tn_register_parameter(m, "more", NULL, there(tn_ones(TN_SHAPE(1)))));
    EXPECT_FAILS(tn_backward(own_loss(m, 0, TN_F32)), TN_E_STATE,
                 "on rank 1 the model's parameters have changed");
    shared_free(p, m);
}

/* The last rank's model differs from the others': every rank fails, and says which one. */
static void mismatch(void)
{
    bool odd = last_rank();
    const char *has = on_last_rank("the model has");
    expect_refused(mlp(odd ? HIDDEN + 1 : HIDDEN, false), has);
    tn_module *m = mlp(HIDDEN, false);
    if (odd) TN_CHECK(tn_module_to_dtype(m, TN_F64));
    expect_refused(m, has);
    expect_refused(mlp(HIDDEN, odd), has); /* more parameters, and buffers */
    m = mlp(HIDDEN, true);
    if (odd) TN_CHECK(tn_module_set(m, "1.running_var", there(tn_ones(TN_SHAPE(2)))));
    expect_refused(m, has);
    m = mlp(HIDDEN, true);
    if (odd) TN_CHECK(tn_set_requires_grad(tn_get_parameter(m, "0.bias"), false));
    expect_refused(m, has);
    expect_refused(tn_relu_new(), "has no parameters");
    expect_refused(odd ? tn_relu_new() : mlp(HIDDEN, false),
                   on_last_rank("the model has no parameters"));
    expect_options((tn_data_parallel_options){ .bucket_bytes = odd ? -1 : 0 },
                   "bucket_bytes -1: want at least 0");
    expect_options((tn_data_parallel_options){ .bucket_bytes = odd ? 4 : 0 },
                   "the call has bucket_bytes 4 and TN_BUFFERS_FIRST, where rank 0 has "
                   "bucket_bytes 26214400 and");
    tn_data_parallel_options mean = { .buffers = odd ? TN_BUFFERS_MEAN : TN_BUFFERS_FIRST };
    expect_options(mean, "TN_BUFFERS_MEAN, where rank 0 has");
    tn_data_parallel_options rounded = { .messages = odd ? TN_BF16 : TN_F32 };
    expect_options(rounded, "TN_BUFFERS_FIRST, messages bf16, where rank 0 has");
}

/* Of the last rank's allocations in tn_data_parallel_new the k-th fails, for every k: all ranks
 * refuse. With TN_CACHE=0. */
static void memory(void)
{
    bool odd = last_rank(), made = false;
    tn_manual_seed((uint64_t)tn_parallel_rank());
    for (int64_t k = 1; !made; k++) {
        tn_scope scope = tn_scope_begin();
        tn_module *m = mlp(HIDDEN, true);
        scarce_fail(odd ? k : 0);
        tn_data_parallel *p =
            tn_data_parallel_new(m, (tn_data_parallel_options){ .bucket_bytes = 64 });
        scarce.failing = 0;
        made = p != NULL;
        EXPECT(made ? k > 20
                    : tn_error_status() == TN_E_NOMEM &&
                          strstr(tn_error(), on_last_rank("")) != NULL);
        EXPECT(made || !strstr(strstr(tn_error(), "on rank ") + 1, "on rank ")); /* named once */
        if (made && odd) printf("%d allocations\n", (int)k - 1);
        tn_error_clear();
        shared_free(p, m);
        tn_scope_end(scope);
    }
}

/* The shim's controls (tests/cuda/host/forced.cpp). */
static void (*fail_call)(long long n);
static const char *(*failed_call)(void);

static void find_controls(void)
{
    void *module = dlopen(getenv("TN_CUDA_MODULE"), RTLD_NOW);
    EXPECT(module != NULL);
    void *symbol[] = { dlsym(module, "cuda_host_fail"), dlsym(module, "cuda_host_failed") };
    EXPECT(symbol[0] && symbol[1]);
    memcpy(&fail_call, &symbol[0], sizeof symbol[0]);
    memcpy(&failed_call, &symbol[1], sizeof symbol[1]);
}

/* cuda only: call k of CUDA's and NCCL's fails on one rank in tn_data_parallel_new, for every k:
 * all ranks refuse, or none. */
static void faults(void)
{
    find_controls();
    for (int odd = 0; odd < tn_parallel_size(); odd += tn_parallel_size() - 1) {
        bool here = tn_parallel_rank() == odd;
        int64_t refusals = 0, more = 1;
        for (int64_t k = 1; more; k++) {
            tn_scope scope = tn_scope_begin();
            tn_manual_seed((uint64_t)tn_parallel_rank());
            tn_module *m = mlp(HIDDEN, true);
            tn_data_parallel_options o = { .bucket_bytes = 64, .messages = TN_BF16 };
            if (here) fail_call(k);
            tn_data_parallel *p = tn_data_parallel_new(m, o);
            more = here && *failed_call() != '\0';
            if (here) fail_call(0);
            char text[32];
            snprintf(text, sizeof text, "on rank %d ", odd);
            EXPECT(p || strstr(tn_error(), text));
            refusals += p == NULL;
            if (p) TN_CHECK(tn_data_parallel_check(p));
            tn_error_clear();
            tn_data_parallel_free(p);
            tn_tensor *all = tn_full_as(TN_SCALAR, (double)more, TN_I64, tn_cpu());
            TN_CHECK(tn_parallel_sum_(all));
            more = (int64_t)tn_item(all);
            tn_module_drop(m);
            tn_scope_end(scope);
        }
        EXPECT(refusals > 20);
    }
}

static tn_tensor *captured_step(int n, tn_tensor *const *in, void *user)
{
    tn_module *m = user;
    (void)n;
    tn_tensor *loss = tn_cross_entropy(tn_forward(m, in[0]), in[1]);
    tn_status status = tn_module_zero_grad(m);
    if (status == TN_OK) status = tn_backward(loss);
    return status == TN_OK ? loss : NULL;
}

/* What a captured step needs is measured on this rank's GPU, whichever it is. */
static void measure(void)
{
    enum { N = 1 << 20 };
    const tni_graphs *graphs = tni_graphs_for(where);
    tni_graph_size size;
    graphs->measure_begin(&size);
    TN_CHECK_PTR(tn_empty_as(TN_SHAPE(N), TN_F32, where));
    graphs->measure_end(&size);
    EXPECT(size.memory >= N * sizeof(float));
}

/* cuda only: a step that averages is refused when it is captured, and plain ones go on. */
static void capture(void)
{
    int64_t first, n = part(&first);
    tn_module *m = mlp(HIDDEN, false);
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    measure();
    tn_tensor *in[2] = { rows(first, n, 0, TN_F32), classes(first, n, 0) };
    tn_capture *c = tn_capture_new(captured_step, m, where);
    TN_CHECK_PTR(tn_capture_run(c, 2, in));
    EXPECT_NULL(tn_capture_run(c, 2, in), "ranks exchange numbers inside a captured step");
    tn_capture_free(c);
    TN_CHECK_PTR(captured_step(2, in, m));
    tn_tensor *g = tn_grad(tn_get_parameter(m, "0.weight"));
    EXPECT(tensor_difference(g, of_rank(g, 0)) == 0);
    shared_free(p, m);
}

/* cuda only: state is dealt where parameters are on the CPU, and a step says so when they
 * have moved since; an optimizer that was refused steps as before. */
static void dealt(void)
{
    tn_module *m = mlp(HIDDEN, false);
    tn_data_parallel *p = tn_data_parallel_new(m, (tn_data_parallel_options){ 0 });
    tn_optim *opt = tn_adam(tn_parameters(m), (tn_adam_options){ .lr = 0.1 });
    EXPECT(tn_data_parallel_shard(p, opt) == TN_E_DEVICE);
    EXPECT(strstr(tn_error(), "tn_data_parallel_shard: "));
    EXPECT(strstr(tn_error(), "0.weight is on a GPU: want all parameters on the CPU"));
    tn_error_clear();
    TN_CHECK(tn_backward(own_loss(m, 0, TN_F32)));
    TN_CHECK(tn_optim_step(opt));
    tn_optim_free(opt);
    tn_data_parallel_free(p);

    TN_CHECK(tn_module_to(m, tn_cpu()));
    p = tn_data_parallel_new(m, (tn_data_parallel_options){ 0 });
    opt = tn_adam(tn_parameters(m), (tn_adam_options){ .lr = 0.1 });
    TN_CHECK(tn_data_parallel_shard(p, opt));
    TN_CHECK(tn_module_to(m, where));
    EXPECT_FAILS(tn_optim_step(opt), TN_E_DEVICE, "0.weight is on a GPU");
    tn_optim_free(opt);
    shared_free(p, m);
}

/* die HOW: the last rank ends in the middle of a step; the others must not wait for ever. */
static void die(char **argument)
{
    tn_manual_seed(3);
    tn_module *m = mlp(HIDDEN, false);
    shared(m, (tn_data_parallel_options){ 0 });
    for (int64_t step = 0;; step++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *loss = own_loss(m, step, TN_F32);
        if (step == 3 && last_rank()) {
            if (strcmp(argument[0], "killed") == 0) raise(SIGKILL);
            fprintf(stderr, "rank %d ends\n", tn_parallel_rank()); /* as a program says why */
            exit(3);
        }
        TN_CHECK(tn_backward(loss));
        tn_scope_end(scope);
    }
}

static void gpus(void)
{
    printf("%d\n", tn_cuda_device_count());
}

/* Whether this process has mapped an MPI library. */
static void maps(char **argument)
{
    char line[4096];
    bool mapped = false;
    FILE *file = fopen("/proc/self/maps", "r");
    EXPECT(file != NULL);
    while (fgets(line, sizeof line, file)) mapped |= strstr(line, "libmpi") != NULL;
    fclose(file);
    EXPECT(mapped == (strcmp(argument[0], "mapped") == 0));
}

/* ---- the modes ------------------------------------------------------------------------------- */

static void on_the_gpu(void)
{
    EXPECT(tn_cuda_device_count() > 0);
    where = tn_cuda(tn_parallel_local_rank() % tn_cuda_device_count());
}

int main(int argc, char **argv)
{
    static const rank_mode mode[] = {
        WITH(train, 4),      WITH(norm, 2),    WITH(recompute, 2),   WITH(wide, 1),
        WITH(train_bf16, 3), WITH(compare, 3), WITH(die, 1),         WITH(maps, 1),
        WITH(roles, 1),      MODE(metrics),    MODE(differ),         MODE(buffers),
        MODE(unused),        MODE(frozen),     MODE(tied),           MODE(overlap),
        MODE(dtypes),        MODE(calls),      MODE(random_numbers), MODE(mismatch),
        MODE(memory),        MODE(faults),     MODE(capture),        MODE(two),
        MODE(changed),       MODE(gpus),       MODE(half_sums),      MODE(half_edges),
        MODE(uneven),        MODE(dealt),      MODE(leave),          MODE(same_data),
        MODE(checked),
    };
    bool cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    return rank_main(
        argc - cuda, argv + cuda,
        (rank_program){ mode, sizeof mode / sizeof *mode, "memory", cuda ? on_the_gpu : NULL });
}
