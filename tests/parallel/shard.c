/*
 * parallel_shard.c - one rank of a run whose optimizer state is dealt over the ranks, for
 * parallel_shard.sh: each mode is the same program in every process.
 *
 *     parallel_shard MODE [ARGUMENT...]
 *
 * A mode ends with status 0 when everything it checks holds; what does not is printed with its
 * line. Most models here are bags of parameters: the loss is a sum of squares of their distances
 * from targets, so gradients can be left out, be infinite, or differ on each rank at will.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rank.h"
#include "scarce.h"

/* ---- bags of parameters ---------------------------------------------------------------------- */

static const struct {
    const char *name;
    int64_t rows, columns;
} shapes[] = {
    { "wide", 300, 310 }, { "tail", 1, 7 },       { "square", 64, 64 }, { "one", 1, 1 },
    { "strided", 9, 5 },  { "tall", 1100, 1024 }, { "empty", 0, 3 },    { "late", 33, 2 }
};
enum { SHAPES = sizeof shapes / sizeof *shapes, TALL = 5, STRIDED = 4 };

/* The first n of them; of those of more than one row, `tall` is above a message's piece. */
static tn_module *bag(int n, tn_dtype dtype, bool tall)
{
    tn_module *m = tn_module_dict_new();
    TN_CHECK_PTR(m);
    for (int i = 0; i < n; i++) {
        if (i == TALL && !tall) continue;
        tn_tensor *t = tn_to_dtype(tn_randn(TN_SHAPE(shapes[i].rows, shapes[i].columns)), dtype);
        if (i == STRIDED) {
            t = tn_to_dtype(tn_randn(TN_SHAPE(shapes[i].columns, shapes[i].rows)), dtype);
            t = tn_detach(tn_transpose(t, 0, 1));
        }
        TN_CHECK(tn_register_parameter(m, shapes[i].name, NULL, t));
    }
    return m;
}

/* How far each parameter is from what this rank wants at this step; without those named out. */
static tn_tensor *distance(tn_module *m, int64_t step, double scale, const char *out)
{
    const tn_list *list = tn_parameters(m);
    tn_tensor *sum = tn_to_dtype(tn_zeros(TN_SCALAR), TN_F64);
    TN_CHECK_PTR(list);
    for (int i = 0; i < list->n; i++) {
        tn_tensor *t = list->entry[i].tensor;
        if ((out && strcmp(out, list->entry[i].name) == 0) || tn_numel(t) == 0) continue;
        double value = sin((double)(step * 7 + i)) * scale * (1 + tn_parallel_rank());
        tn_tensor *to = tn_full_like(t, value);
        sum = tn_add(sum, tn_to_dtype(tn_mse_loss(t, to, TN_SUM), TN_F64));
    }
    TN_CHECK_PTR(sum);
    return sum;
}

static bool same_tensor(tn_tensor *a, tn_tensor *b)
{
    size_t n = (size_t)tn_numel(a) * tn_dtype_size(tn_dtype_of(a));
    if (tn_dtype_of(a) != tn_dtype_of(b) || tn_numel(a) != tn_numel(b)) return false;
    char *x = malloc(2 * n + 1);
    EXPECT(x != NULL);
    TN_CHECK(tn_copy_out(a, x, n, tn_dtype_of(a)));
    TN_CHECK(tn_copy_out(b, x + n, n, tn_dtype_of(a)));
    bool same = memcmp(x, x + n, n) == 0;
    free(x);
    return same;
}

/* The same names and bits. */
static void expect_same(const tn_list *a, const tn_list *b)
{
    TN_CHECK_PTR(a);
    TN_CHECK_PTR(b);
    EXPECT(a->n == b->n && a->n > 0);
    for (int i = 0; i < a->n; i++) {
        EXPECT(strcmp(a->entry[i].name, b->entry[i].name) == 0);
        if (!same_tensor(a->entry[i].tensor, b->entry[i].tensor))
            fprintf(stderr, "%s has other bits\n", a->entry[i].name);
        EXPECT(same_tensor(a->entry[i].tensor, b->entry[i].tensor));
    }
}

/* ---- the same bits --------------------------------------------------------------------------- */

enum { KINDS = 12 };

/* A user's: state of other shapes and another dtype, which travel to rank 0. */
static bool one_number(const tn_tensor *p, const double *number, tn_shape *shape, tn_dtype *dtype)
{
    (void)p, (void)number;
    *shape = TN_SHAPE(1);
    *dtype = TN_F64;
    return true;
}

static tn_status own_update(tn_optim_part *part, int n)
{
    if (n != 1) return TN_E_INVALID;
    tn_tensor *largest = tn_to_dtype(tn_norm(part->g, INFINITY, NULL, 0, false), TN_F64);
    part->new_state[0] = tn_maximum(part->state[0], tn_reshape(largest, TN_SHAPE(1)));
    tn_tensor *scale = tn_to_dtype(part->new_state[0], tn_dtype_of(part->p));
    tn_tensor *step = tn_div(part->g, tn_add_scalar(scale, 1e-3));
    part->new_p = tn_sub(part->p, tn_mul_scalar(step, part->numbers.lr));
    return TN_OK;
}

static const tn_optim_type own = { .name = "own",
                                   .state = { { .name = "largest", .form = one_number } },
                                   .update = own_update };

static tn_optim *optimizer(int kind, const tn_list *list)
{
    tn_optim *opt = NULL;
    switch (kind) {
    case 0: opt = tn_sgd(list, (tn_sgd_options){ .lr = 0.05 }); break;
    case 1:
        opt = tn_sgd(list, (tn_sgd_options){ .lr = 0.02, .momentum = 0.9, .nesterov = true });
        break;
    case 2: opt = tn_adam(list, (tn_adam_options){ .lr = 0.01, .weight_decay = 0.1 }); break;
    case 3: opt = tn_adam(list, (tn_adam_options){ .lr = 0.01, .amsgrad = true }); break;
    case 4: opt = tn_adamw(list, (tn_adamw_options){ .lr = 0.01, .weight_decay = 0.1 }); break;
    case 5: opt = tn_rmsprop(list, (tn_rmsprop_options){ .lr = 0.01 }); break;
    case 6:
        opt =
            tn_rmsprop(list, (tn_rmsprop_options){ .lr = 0.01, .momentum = 0.5, .centered = true });
        break;
    case 7:
        opt = tn_adagrad(list, (tn_adagrad_options){ .lr = 0.05, .initial_accumulator = 0.1 });
        break;
    case 8: opt = tn_adamw(list, (tn_adamw_options){ .lr = 0.01, .amsgrad = true }); break;
    case 9:
        opt = tn_sgd(list, (tn_sgd_options){ .lr = 0.02, .momentum = 0.9, .maximize = true });
        break;
    case 10: opt = tn_adafactor(list, (tn_optim_options){ .lr = 0.01 }); break;
    case 11: opt = tn_optim_new(&own, list, (tn_optim_options){ .lr = 0.01 }); break;
    }
    TN_CHECK_PTR(opt);
    return opt;
}

/* One of two runs that differ in whether the optimizer's state is dealt. */
typedef struct twin {
    tn_module *m;
    tn_data_parallel *p;
    tn_optim *opt;
    tn_scheduler *rates;
    tn_scaler *scaler;
} twin;

static bool not_late(const tn_entry *e, void *user)
{
    (void)user;
    return strcmp(e->name, "late") != 0;
}

static bool late(const tn_entry *e, void *user)
{
    return !not_late(e, user);
}

static twin twin_of(tn_module *m, int kind, bool dealt)
{
    twin t = { .m = m, .p = tn_data_parallel_new(m, (tn_data_parallel_options){ 0 }) };
    TN_CHECK_PTR(t.p);
    const tn_list *all = tn_list_filter(tn_parameters(m), not_late, NULL);
    t.opt = optimizer(kind, tn_list_filter(all, tn_decay, NULL));
    if (dealt) TN_CHECK(tn_data_parallel_shard(t.p, t.opt));
    t.rates = tn_exponential_lr(t.opt, 0.9);
    TN_CHECK_PTR(t.rates);
    t.scaler = tn_scaler_new((tn_scaler_options){ .init_scale = 8 });
    TN_CHECK_PTR(t.scaler);
    return t;
}

/* A step in two pieces; a third without `square`; a frozen and a thawed parameter; a group that
 * comes late; clipping; and, with the scaler, a gradient that is infinite on the last rank. */
static void twin_step(twin *t, int64_t step, bool scaled)
{
    double scale = scaled && step == 4 && last_rank() ? INFINITY : 0.5;
    tn_scope scope = tn_scope_begin();
    if (step == 2)
        TN_CHECK(tn_optim_add_group(t->opt, tn_list_filter(tn_parameters(t->m), late, NULL),
                                    (tn_group_options){ .lr = 0.03, .weight_decay = 0.2 }));
    if (step == 3 || step == 5)
        TN_CHECK(tn_set_requires_grad(tn_get_parameter(t->m, "tail"), step == 5));
    TN_CHECK(tn_optim_zero_grad(t->opt));
    const char *out = step % 3 == 1 ? "square" : NULL;
    for (int k = 0; k < 2; k++) {
        tn_data_parallel_set_sync(t->p, k == 1);
        tn_tensor *loss = distance(t->m, 2 * step + k, scale, out);
        TN_CHECK(tn_backward(scaled ? tn_scaler_scale(t->scaler, loss) : loss));
    }
    if (scaled) {
        TN_CHECK(tn_scaler_step(t->scaler, t->opt));
        TN_CHECK(tn_scaler_update(t->scaler));
    } else {
        EXPECT(tn_clip_grad_norm(tn_optim_parameters(t->opt), 50, 2, true) > 0);
        TN_CHECK(tn_optim_step(t->opt));
    }
    TN_CHECK(tn_scheduler_step(t->rates));
    tn_scope_end(scope);
}

static void twin_free(const twin *t)
{
    tn_scaler_free(t->scaler);
    tn_scheduler_free(t->rates);
    tn_optim_free(t->opt);
    shared_free(t->p, t->m);
}

static void one_kind(int kind, tn_dtype dtype, bool scaled)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(5);
    twin plain = twin_of(bag(SHAPES, dtype, kind == 4), kind, false);
    tn_manual_seed(5); /* a clone would be dense */
    twin dealt = twin_of(bag(SHAPES, dtype, kind == 4), kind, true);
    for (int64_t step = 0; step < 7; step++) {
        twin_step(&plain, step, scaled);
        twin_step(&dealt, step, scaled);
        tn_scope inner = tn_scope_begin();
        const tn_list *a = tn_parameters(plain.m), *b = tn_parameters(dealt.m);
        expect_same(a, b);
        for (int i = 0; i < a->n; i++) /* a graph that reads them is refused */
            EXPECT(tn_version(a->entry[i].tensor) == tn_version(b->entry[i].tensor));
        TN_CHECK(tn_data_parallel_check(dealt.p));
        tn_scope_end(inner);
    }
    EXPECT(tn_scaler_skipped(dealt.scaler) == (scaled ? 1 : 0));
    if (kind != 0) EXPECT(!tn_optim_state_dict(dealt.opt));
    if (kind != 0) EXPECT(strstr(tn_error(), "want tn_data_parallel_gather on all ranks before"));
    tn_error_clear();
    TN_CHECK(tn_data_parallel_gather(dealt.p));
    if (tn_parallel_rank() == 0)
        expect_same(tn_optim_state_dict(plain.opt), tn_optim_state_dict(dealt.opt));
    else
        EXPECT(kind == 0 || !tn_optim_state_dict(dealt.opt));
    twin_step(&plain, 7, scaled); /* gives back what was gathered */
    twin_step(&dealt, 7, scaled);
    expect_same(tn_parameters(plain.m), tn_parameters(dealt.m));
    EXPECT(kind == 0 || !tn_optim_state_dict(dealt.opt));
    tn_error_clear();
    twin_free(&dealt);
    twin_free(&plain);
    tn_scope_end(scope);
}

static void bits(char **argument)
{
    for (int kind = 0; kind < KINDS; kind += atoi(argument[0])) {
        one_kind(kind, TN_F32, kind == 4);
        one_kind(kind, TN_BF16, false);
    }
    one_kind(3, TN_F64, false);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* SMALL: 64 KiB, and for each of the state's blocks of 256 KiB the page that its header takes. */
enum { EQUAL = 8, SIDE = 256, STATE = 2 * EQUAL * SIDE * SIDE * 4 };
enum { SMALL = (1 << 16) + 2 * EQUAL * 4096 };

static tn_module *equal_parts(void)
{
    tn_module *m = tn_module_dict_new();
    char name[8];
    for (int i = 0; i < EQUAL; i++) {
        snprintf(name, sizeof name, "p%d", i);
        TN_CHECK(tn_register_parameter(m, name, NULL, tn_randn(TN_SHAPE(SIDE, SIDE))));
    }
    return m;
}

static int64_t in_use(void)
{
    return tn_memory().in_use;
}

/* memory FILE: each rank's part of Adam's state is 1/n, after a step, after a load and while it is
 * loaded; rank 0 alone has the rest while it saves. */
static void memory(char **argument)
{
    int64_t part = STATE / tn_parallel_size();
    tn_module *m = equal_parts();
    tn_data_parallel *p = shared(m, (tn_data_parallel_options){ 0 });
    tn_optim *opt = tn_adam(tn_parameters(m), (tn_adam_options){ 0 });
    TN_CHECK(tn_data_parallel_shard(p, opt));
    tn_scope scope = tn_scope_begin();
    TN_CHECK(tn_backward(distance(m, 0, 1, NULL)));
    tn_scope_end(scope);
    int64_t before = in_use();
    TN_CHECK(tn_optim_step(opt));
    int64_t state = in_use() - before;
    printf("rank %d: %" PRId64 " bytes of state, of %d in all\n", tn_parallel_rank(), state, STATE);
    EXPECT(state >= part && state < part + SMALL);

    tn_checkpoint c = { .optimizer = opt };
    TN_CHECK(tn_data_parallel_gather(p));
    state = in_use() - before;
    int64_t want = tn_parallel_rank() == 0 ? STATE : part;
    EXPECT(state >= want && state < want + SMALL);
    tn_status saved = tn_parallel_rank() == 0 ? tn_checkpoint_save(&c, argument[0]) : TN_OK;
    tn_data_parallel_release(p);
    TN_CHECK(tn_parallel_agree(saved));
    EXPECT(in_use() - before < part + SMALL);

    int64_t now = in_use();
    tn_memory_reset_peak();
    TN_CHECK(tn_checkpoint_load(&c, argument[0]));
    int64_t more = tn_memory().peak_in_use - now; /* what is read, and its copy */
    printf("rank %d: %" PRId64 " bytes more while loading\n", tn_parallel_rank(), more);
    EXPECT(more < 2 * part + SMALL);
    EXPECT(in_use() - before < part + SMALL);
    tn_optim_free(opt);
    shared_free(p, m);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static tn_status save(tn_data_parallel *p, const tn_checkpoint *c, const char *path)
{
    tn_status status = tn_data_parallel_gather(p);
    if (status != TN_OK) return status;
    if (tn_parallel_rank() == 0) status = tn_checkpoint_save(c, path);
    tn_data_parallel_release(p);
    return tn_parallel_agree(status);
}

/* A small run in f64. */
typedef struct run {
    tn_module *m;
    tn_data_parallel *p;
    tn_optim *opt;
    tn_checkpoint c;
} run;

static run run_of(bool dealt)
{
    tn_manual_seed(7 + (uint64_t)tn_parallel_rank());
    run r = { .m = tn_sequential(tn_linear_new(WIDTH, 9, (tn_linear_options){ 0 }), tn_tanh_new(),
                                 tn_linear_new(9, 4, (tn_linear_options){ 0 }), tn_tanh_new(),
                                 tn_linear_new(4, 1, (tn_linear_options){ 0 })) };
    TN_CHECK(tn_module_to_dtype(r.m, TN_F64));
    r.p = shared(r.m, (tn_data_parallel_options){ 0 });
    r.opt = tn_adamw(tn_parameters(r.m), (tn_adamw_options){ .lr = 0.02, .amsgrad = true });
    TN_CHECK_PTR(r.opt);
    if (dealt) TN_CHECK(tn_data_parallel_shard(r.p, r.opt));
    r.c = (tn_checkpoint){ .model = r.m, .optimizer = r.opt };
    return r;
}

static void run_steps(run *r, int64_t end)
{
    for (; r->c.step < end; r->c.step++) {
        tn_scope scope = tn_scope_begin();
        int64_t n = 2 * ROWS / tn_parallel_size();
        tn_tensor *y = tn_forward(r->m, data_rows(n * tn_parallel_rank(), n, r->c.step));
        TN_CHECK(tn_optim_zero_grad(r->opt));
        TN_CHECK(tn_backward(tn_mean(tn_square(tn_add_scalar(y, -1)), NULL, 0, false)));
        TN_CHECK(tn_optim_step(r->opt));
        tn_scope_end(scope);
    }
}

static void run_free(const run *r)
{
    tn_optim_free(r->opt);
    shared_free(r->p, r->m);
}

/* train FILE END: steps 0 to 5, and a checkpoint FILE; then to END, and one FILE.end. */
static void train(char **argument)
{
    char path[4096];
    run r = run_of(true);
    run_steps(&r, 5);
    TN_CHECK(save(r.p, &r.c, argument[0]));
    run_steps(&r, atoi(argument[1]));
    snprintf(path, sizeof path, "%s.end", argument[0]);
    TN_CHECK(save(r.p, &r.c, path));
    run_free(&r);
}

/* resume FROM FILE END HOW: loads FROM, before or after the state is dealt, and saves it again to
 * FILE; then goes on to END, and saves FILE.end. */
static void resume(char **argument)
{
    char path[4096];
    bool after = strcmp(argument[3], "after") == 0;
    run r = run_of(!after);
    TN_CHECK(tn_checkpoint_load(&r.c, argument[0]));
    if (after) TN_CHECK(tn_data_parallel_shard(r.p, r.opt));
    TN_CHECK(save(r.p, &r.c, argument[1]));
    run_steps(&r, atoi(argument[2]));
    snprintf(path, sizeof path, "%s.end", argument[1]);
    TN_CHECK(save(r.p, &r.c, path));
    run_free(&r);
}

/* compare A B TOLERANCE: parameters and state of two checkpoints. */
static void compare(char **argument)
{
    run a = run_of(false), b = run_of(false);
    TN_CHECK(tn_checkpoint_load(&a.c, argument[0]));
    TN_CHECK(tn_checkpoint_load(&b.c, argument[1]));
    const tn_list *list[2][2] = { { tn_state_dict(a.m, ""), tn_optim_state_dict(a.opt) },
                                  { tn_state_dict(b.m, ""), tn_optim_state_dict(b.opt) } };
    double most = 0;
    int n = 0;
    for (int k = 0; k < 2; k++) {
        EXPECT(list[0][k]->n == list[1][k]->n);
        for (int i = 0; i < list[0][k]->n; i++, n++) {
            const tn_entry *e = &list[0][k]->entry[i];
            most = fmax(most, tensor_difference(e->tensor, tn_list_get(list[1][k], e->name)));
        }
    }
    printf("%d tensors, largest difference %.2g, at most %s\n", n, most, argument[2]);
    EXPECT(n > 30 && most <= atof(argument[2]));
    run_free(&a);
    run_free(&b);
}

/* fail FILE: a checkpoint that cannot be written is an error on all ranks, as is one that was saved
 * without gathering; and training goes on. */
static void fail(char **argument)
{
    run r = run_of(true);
    run_steps(&r, 2);
    EXPECT_FAILS(save(r.p, &r.c, "/nowhere/at/all"), TN_E_IO,
                 "tn_parallel_agree: on rank 0 tn_checkpoint_save: /nowhere");
    EXPECT_FAILS(tn_checkpoint_save(&r.c, argument[0]), TN_E_STATE,
                 "want tn_data_parallel_gather on all ranks before");
    run_steps(&r, 4);
    run_free(&r);
}

/* die FILE: the last rank is killed when the others gather a second checkpoint. */
static void die(char **argument)
{
    run r = run_of(true);
    run_steps(&r, 3);
    TN_CHECK(save(r.p, &r.c, argument[0]));
    run_steps(&r, 5);
    if (last_rank()) raise(SIGKILL);
    TN_CHECK(save(r.p, &r.c, argument[0]));
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* A step of all ranks that fails with that message, changes nothing, and succeeds after the cause
 * is gone. */
static tn_status no_update(tn_optim_part *part, int n)
{
    (void)part, (void)n;
    return TN_OK;
}

static void refused(run *r, const char *text)
{
    tn_scope scope = tn_scope_begin();
    tn_module *was = tn_module_clone(r->m);
    int64_t steps = tn_optim_steps(r->opt);
    EXPECT(tn_optim_step(r->opt) != TN_OK);
    EXPECT(strstr(tn_error(), text));
    EXPECT(tn_optim_steps(r->opt) == steps);
    expect_same(tn_parameters(was), tn_parameters(r->m));
    tn_error_clear();
    tn_module_drop(was);
    tn_scope_end(scope);
}

static void refusals(void)
{
    bool odd = tn_parallel_rank() == 1;
    run r = run_of(true);
    run_steps(&r, 2); /* the gradients of the last step stay */
    EXPECT_FAILS(tn_data_parallel_shard(r.p, r.opt), TN_E_STATE, "is dealt already");

    if (odd) TN_CHECK(tn_optim_set_lr(r.opt, 0, 0.5));
    refused(&r, "tn_optim_step: on rank 1 the optimizer has other rates, numbers or steps");
    TN_CHECK(tn_optim_set_lr(r.opt, 0, 0.02));
    tn_tensor *bias = tn_get_parameter(r.m, "0.bias");
    if (odd) TN_CHECK(tn_set_requires_grad(bias, false));
    refused(&r, "tn_optim_step: on rank 1 the optimizer has gradients of other parameters");
    TN_CHECK(tn_set_requires_grad(bias, true));
    tn_data_parallel_set_sync(r.p, false);
    refused(&r, "gradients are not averaged");
    tn_data_parallel_set_sync(r.p, true);
    run_steps(&r, 3);
    if (odd) /* fails on one rank alone */
        TN_CHECK(tn_module_set(r.m, "0.bias", tn_to_dtype(tn_zeros(TN_SHAPE(9)), TN_F64)));
    refused(&r, "on rank 1 0.bias is no longer a parameter of its module");
    run_free(&r);

    r = run_of(true); /* the handle is freed, and made again */
    run_steps(&r, 2);
    tn_data_parallel_free(r.p);
    refused(&r, "tn_data_parallel was freed");
    r.p = tn_data_parallel_new(r.m, (tn_data_parallel_options){ 0 });
    TN_CHECK(tn_data_parallel_shard(r.p, r.opt));
    run_steps(&r, 4);

    tn_tensor *own = tn_to_dtype(tn_ones(TN_SHAPE(2)), TN_F64);
    TN_CHECK(tn_set_requires_grad(own, true));
    tn_list *list = tn_list_new();
    TN_CHECK(tn_list_add(list, "own", own));
    EXPECT_FAILS(tn_optim_add_group(r.opt, list, (tn_group_options){ 0 }), TN_E_STATE,
                 "tn_optim_add_group: own is no parameter of the model");
    EXPECT(tn_optim_groups(r.opt) == 1);
    run_steps(&r, 5);
    tn_optim *other = tn_sgd(list, (tn_sgd_options){ 0 });
    EXPECT_FAILS(tn_data_parallel_shard(r.p, other), TN_E_STATE,
                 "on rank 0 own is no parameter of the model");
    tn_optim_free(other);
    other = odd ? tn_adam(tn_parameters(r.m), (tn_adam_options){ 0 })
                : tn_sgd(tn_parameters(r.m), (tn_sgd_options){ .momentum = 0.9 });
    EXPECT_FAILS(tn_data_parallel_shard(r.p, other), TN_E_STATE,
                 "on rank 1 the optimizer has another type");
    tn_optim_free(other);
    static const tn_optim_type whole = { .name = "whole", .update = no_update, .together = true };
    other = tn_optim_new(&whole, tn_parameters(r.m), (tn_optim_options){ 0 });
    EXPECT_FAILS(tn_data_parallel_shard(r.p, other), TN_E_STATE, "want one that goes by parameter");
    tn_optim_free(other);
    other = tn_adam(tn_parameters(r.m), (tn_adam_options){ 0 });
    EXPECT(tn_data_parallel_shard(r.p, odd ? NULL : other) != TN_OK);
    EXPECT(strstr(tn_error(), "on rank 1"));
    tn_optim_free(other);
    tn_error_clear();
    run_free(&r);
}

/* ---- no memory ------------------------------------------------------------------------------- */

static tn_status deal_step_gather(run *r, int *done)
{
    tn_status status = TN_OK;
    if (*done == 0) status = tn_data_parallel_shard(r->p, r->opt);
    *done += *done == 0 && status == TN_OK;
    if (*done == 1) status = tn_optim_step(r->opt);
    *done += *done == 1 && status == TN_OK;
    if (*done == 2) status = tn_data_parallel_gather(r->p);
    *done += *done == 2 && status == TN_OK;
    return status;
}

/* out_of_memory RANK: of that rank's allocations the k-th fails, for every k, in dealing, a step,
 * and gathering: all ranks fail, nothing has changed, and the next try succeeds. */
static void out_of_memory(char **argument)
{
    bool odd = tn_parallel_rank() == atoi(argument[0]);
    bool whole = false;
    char text[32];
    snprintf(text, sizeof text, "on rank %s ", argument[0]);
    int at[4] = { 0 };
    for (int64_t k = 1; !whole; k++) {
        tn_scope scope = tn_scope_begin();
        run r = { .m = bag(5, TN_F32, false) };
        r.p = tn_data_parallel_new(r.m, (tn_data_parallel_options){ 0 });
        r.opt = tn_adam(tn_parameters(r.m), (tn_adam_options){ 0 });
        tn_module *was = tn_module_clone(r.m);
        TN_CHECK(tn_backward(distance(r.m, 0, 1, NULL)));
        int done = 0;
        scarce_fail(odd ? k : 0);
        tn_status status = deal_step_gather(&r, &done);
        scarce.failing = 0;
        at[done]++;
        whole = status == TN_OK;
        EXPECT(whole || (status == TN_E_NOMEM && strstr(tn_error(), text)));
        tn_error_clear();
        if (done < 2) expect_same(tn_parameters(was), tn_parameters(r.m));
        EXPECT(tn_optim_steps(r.opt) == (done >= 2));
        if (!whole) TN_CHECK(deal_step_gather(&r, &done));
        TN_CHECK(tn_data_parallel_check(r.p));
        if (tn_parallel_rank() == 0) EXPECT(tn_optim_state_dict(r.opt)->n > 10);
        tn_module_drop(was);
        run_free(&r);
        tn_scope_end(scope);
    }
    if (odd) printf("%d in dealing, %d in a step, %d in gathering\n", at[0], at[1], at[2]);
    EXPECT(at[0] > 3 && at[1] > 3 && (at[2] > 3 || !odd || tn_parallel_rank() > 0));
}

/* ---- between the parts of a batch ------------------------------------------------------------ */

static run waiting_run(uint64_t seed)
{
    tn_manual_seed(seed);
    run r = { .m = bag(4, TN_F32, false) };
    r.p = tn_data_parallel_new(r.m, (tn_data_parallel_options){ 0 });
    r.opt = tn_adam(tn_parameters(r.m), (tn_adam_options){ .lr = 0.1 });
    TN_CHECK(tn_data_parallel_shard(r.p, r.opt));
    return r;
}

/* One part, or with `ends` the last one, and the step. */
static void waiting_part(run *r, int64_t part, bool ends)
{
    tn_scope scope = tn_scope_begin();
    TN_CHECK(tn_backward(distance(r->m, part, 1, NULL)));
    if (ends) TN_CHECK(tn_optim_step(r->opt));
    if (ends) TN_CHECK(tn_optim_zero_grad(r->opt));
    tn_scope_end(scope);
}

/* What rank 0 says of saving, on all. */
static tn_status waiting_save(run *r, const char *path)
{
    TN_CHECK(tn_data_parallel_gather(r->p));
    tn_checkpoint c = { .model = r->m, .optimizer = r->opt };
    tn_status saved = tn_parallel_rank() == 0 ? tn_checkpoint_save(&c, path) : TN_OK;
    tn_data_parallel_release(r->p);
    return tn_parallel_agree(saved);
}

/* waiting FILE: a stop after two of three parts that are averaged one by one; gradients that are
 * one rank's own are refused. */
static void waiting(char **argument)
{
    run whole = waiting_run(1), again = waiting_run(2);
    for (int part = 0; part < 5; part++) waiting_part(&whole, part, part == 2);
    TN_CHECK(waiting_save(&whole, argument[0]));
    TN_CHECK(tn_backward(distance(again.m, 9, NAN, NULL)));
    TN_CHECK(tn_checkpoint_load(&(tn_checkpoint){ .model = again.m, .optimizer = again.opt },
                                argument[0]));
    waiting_part(&whole, 5, true);
    waiting_part(&again, 5, true);
    expect_same(tn_parameters(whole.m), tn_parameters(again.m));
    tn_data_parallel_set_sync(whole.p, false);
    TN_CHECK(tn_backward(distance(whole.m, 6, 1, NULL)));
    EXPECT(waiting_save(&whole, argument[0]) == TN_E_STATE &&
           strstr(tn_error(), "the gradient of model.wide is this rank's alone: want a backward "));
    tn_error_clear();
    TN_CHECK(tn_optim_zero_grad(whole.opt)); /* what is given by hand is all ranks' */
    tn_tensor *first = tn_parameters(whole.m)->entry[0].tensor;
    TN_CHECK(tn_set_grad(first, tn_ones_like(first)));
    TN_CHECK(waiting_save(&whole, argument[0]));
    TN_CHECK(tn_optim_zero_grad(whole.opt));
    tn_data_parallel_set_sync(whole.p, true);
    TN_CHECK(tn_backward(distance(whole.m, 7, 1, NULL)));
    TN_CHECK(waiting_save(&whole, argument[0]));
    run_free(&whole);
    run_free(&again);
}

/* ---- the modes ------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const rank_mode mode[] = {
        WITH(bits, 1), WITH(memory, 1), WITH(train, 2),         WITH(resume, 4),  WITH(compare, 3),
        WITH(fail, 1), WITH(die, 1),    WITH(out_of_memory, 1), WITH(waiting, 1), MODE(refusals),
    };
    return rank_main(argc, argv,
                     (rank_program){ mode, sizeof mode / sizeof *mode, "out_of_memory", NULL });
}
