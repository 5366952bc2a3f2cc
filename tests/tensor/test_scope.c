/*
 * test_scope.c - ownership, how failures propagate, where memory comes from: scopes, keep and drop,
 * poison and messages, borrowed memory, the allocator hook and its counters. scope_failures.c has
 * what must not change when memory runs out.
 *
 * Seen to fail: in src/tensor/scope.c, tn_scope_return without its tn_keep; is_open comparing the
 * depth alone; in src/tensor/tensor.c, tn_from_memory's storage not marked borrowed.
 */
#include "common.h"
#include "scarce.h"
#include "scope_cases.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- scopes ---------------------------------------------------------------------------------- */

START_TEST(results_belong_to_the_scope)
{
    int64_t before = tn_live_tensors();
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_ones(TN_SHAPE(2, 3));
    tn_reshape(x, TN_SHAPE(6));
    ck_assert_int_ge(tn_live_tensors(), before + 2);
    tn_scope_end(s);
    ck_assert_int_eq(tn_live_tensors(), before);
}
END_TEST

START_TEST(inner_scopes_left_open_end_too)
{
    int64_t before = tn_live_tensors();
    tn_scope s = tn_scope_begin();
    tn_ones(TN_SHAPE(1));
    tn_scope inner = tn_scope_begin();
    tn_ones(TN_SHAPE(1));
    tn_scope_begin();
    tn_ones(TN_SHAPE(1));
    tn_scope_end(s);
    ck_assert_int_eq(tn_live_tensors(), before);
    tn_scope_end(inner); /* not open any more: nothing */
    ck_assert_int_eq(tn_live_tensors(), before);
}
END_TEST

START_TEST(a_token_ends_once)
{
    tn_scope s = tn_scope_begin();
    tn_scope_end(s);
    tn_scope other = tn_scope_begin(); /* the same depth, another serial number */
    tn_tensor *x = tn_ones(TN_SHAPE(1));
    int64_t live = tn_live_tensors();
    tn_scope_end(s);
    ck_assert_int_eq(tn_live_tensors(), live);
    ck_assert_double_eq(tn_item(x), 1);
    ck_assert_ptr_eq(tn_scope_return(s, x), x); /* ends nothing, hands x back */
    ck_assert_int_eq(tn_live_tensors(), live);
    tn_scope_end((tn_scope){ -1, 0 });
    tn_scope_end((tn_scope){ 1000, 1 });
    ck_assert_int_eq(tn_live_tensors(), live);
    tn_scope_end(other);
}
END_TEST

START_TEST(return_hands_to_the_parent)
{
    int64_t before = tn_live_tensors();
    tn_scope outer = tn_scope_begin();
    tn_tensor *input = tn_full(TN_SHAPE(2), 3);
    tn_tensor *parameter = tn_keep(tn_full(TN_SHAPE(2), 5));
    assert_ok(tn_set_requires_grad(parameter, true));

    tn_scope s = tn_scope_begin(); /* a result of its own */
    tn_ones(TN_SHAPE(9));
    tn_tensor *y = tn_scope_return(s, tn_full(TN_SHAPE(2), 4));
    ck_assert_int_eq(tn_live_tensors(), before + 3);
    assert_values(y, 0, 4, 4);

    s = tn_scope_begin(); /* the input itself, as Dropout in eval does */
    ck_assert_ptr_eq(tn_scope_return(s, input), input);
    s = tn_scope_begin(); /* a parameter */
    ck_assert_ptr_eq(tn_scope_return(s, parameter), parameter);
    s = tn_scope_begin(); /* a view of the input */
    y = tn_scope_return(s, tn_reshape(input, TN_SHAPE(2, 1)));
    assert_values(y, 0, 3, 3);
    s = tn_scope_begin(); /* nothing, and a failure */
    ck_assert_ptr_eq(tn_scope_return(s, TN_NONE), TN_NONE);
    s = tn_scope_begin();
    ck_assert_ptr_null(tn_scope_return(s, NULL));
    ck_assert_int_eq(tn_error_status(), TN_OK);

    tn_scope_end(outer);
    ck_assert_int_eq(tn_live_tensors(), before + 1);
    ck_assert_double_eq(tn_item(tn_select(tn_detach(parameter), 0, 1)), 5);
    tn_drop(parameter);
}
END_TEST

START_TEST(keep_drop_adopt)
{
    int64_t before = tn_live_tensors();
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_keep(tn_full(TN_SHAPE(1), 8));
    tn_scope_end(s);
    ck_assert_int_eq(tn_live_tensors(), before + 1);
    ck_assert_double_eq(tn_item(x), 8);
    s = tn_scope_begin();
    ck_assert_ptr_eq(tn_scope_adopt(x), x);
    tn_scope_end(s);
    ck_assert_int_eq(tn_live_tensors(), before);
    ck_assert_ptr_null(tn_keep(NULL));
    ck_assert_ptr_eq(tn_keep(TN_NONE), TN_NONE);
    tn_drop(NULL);
    tn_drop(TN_NONE);
    ck_assert_ptr_null(tn_scope_adopt(NULL));
    ck_assert_ptr_eq(tn_scope_adopt(TN_NONE), TN_NONE);
    ck_assert_int_eq(tn_live_tensors(), before);
}
END_TEST

START_TEST(a_view_keeps_the_memory)
{
    tn_scope s = tn_scope_begin();
    tn_tensor *view = tn_keep(tn_select(tn_arange(0, 1000, 1, TN_F32), 0, 700));
    tn_scope_end(s);
    ck_assert_double_eq(tn_item(view), 700);
    tn_drop(view);
}
END_TEST

START_TEST(many_entries)
{
    int64_t before = tn_live_tensors();
    tn_scope s = tn_scope_begin();
    for (int i = 0; i < 10000; i++) assert_made(tn_scalar(i));
    ck_assert_int_eq(tn_live_tensors(), before + 10000);
    tn_scope_end(s);
    ck_assert_int_eq(tn_live_tensors(), before);
    tn_scope tokens[500];
    for (int i = 0; i < 500; i++) {
        tokens[i] = tn_scope_begin();
        tn_scalar(i);
    }
    tn_scope_end(tokens[250]);
    ck_assert_int_eq(tn_live_tensors(), before + 250);
    tn_scope_end(tokens[0]);
    ck_assert_int_eq(tn_live_tensors(), before);
}
END_TEST

/* without the fixture's scope */
START_TEST(no_scope_is_an_error)
{
    tn_error_clear();
    assert_null(tn_ones(TN_SHAPE(2)), TN_E_STATE, "tn_scope_begin");
    assert_null(tn_arange(0, 3, 1, TN_F32), TN_E_STATE, "no scope is open");
    assert_null(tn_randn(TN_SHAPE(2)), TN_E_STATE, "no scope is open");
    float block[4];
    assert_null(tn_from_memory(block, TN_SHAPE(4), TN_F32, NULL, NULL), TN_E_STATE, "no scope");
    ck_assert_int_eq(tn_live_tensors(), 0);
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_keep(tn_ones(TN_SHAPE(2)));
    assert_null(tn_scope_return(s, tn_ones(TN_SHAPE(2))), TN_E_STATE, "tn_keep");
    assert_null(tn_reshape(x, TN_SHAPE(1, 2)), TN_E_STATE, "tn_reshape: no scope");
    assert_null(tn_add(x, x), TN_E_STATE, "tn_add: no scope");
    assert_null(tn_detach(x), TN_E_STATE, "tn_detach: no scope");
    assert_null(tn_scope_adopt(tn_keep(x)), TN_E_STATE, "tn_scope_adopt: no scope");
    assert_null(tn_mse_loss(x, x, TN_MEAN), TN_E_STATE, "tn_mse_loss: no scope");
    assert_null(tn_where(x, x, x), TN_E_DTYPE, "tn_where");
    assert_null(tn_list_new(), TN_E_STATE, "tn_list_new: no scope");
    assert_null(tn_cross_entropy(x, x), TN_E_STATE, "tn_cross_entropy: no scope");
    tn_scaler *scaler = tn_scaler_new((tn_scaler_options){ 0 });
    assert_null(tn_scaler_state_dict(scaler), TN_E_STATE, "tn_scaler_state_dict: no scope");
    tn_scaler_free(scaler);
    tn_drop(x);
    ck_assert_int_eq(tn_live_tensors(), 0);
}
END_TEST

typedef struct worker {
    tn_tensor *shared;
    double sum;
    char error[64];
    tn_dtype dtype;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    ck_assert_ptr_null(tn_ones(TN_SHAPE(1))); /* the main thread's scope is not ours */
    snprintf(w->error, sizeof w->error, "%s", tn_error());
    w->dtype = tn_default_dtype();
    for (int i = 0; i < 200; i++) {
        tn_scope s = tn_scope_begin();
        tn_tensor *x = tn_full(TN_SHAPE(100), i);
        w->sum += tn_at(tn_reshape(x, TN_SHAPE(10, 10)), TN_INDEX(9, 9)) + tn_item(w->shared);
        tn_scope_end(s);
    }
    tn_drop(w->shared); /* any thread may give memory back */
    return NULL;
}

START_TEST(threads_have_their_own)
{
    pthread_t id[4];
    worker w[4] = { { 0 } };
    assert_ok(tn_set_default_dtype(TN_F64));
    for (int i = 0; i < 4; i++) {
        tn_scope s = tn_scope_begin();
        w[i].shared = tn_keep(tn_scalar(1));
        tn_scope_end(s);
        ck_assert_int_eq(pthread_create(&id[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        ck_assert_double_eq(w[i].sum, 199 * 200 / 2 + 200);
        ck_assert_msg(strstr(w[i].error, "no scope"), "%s", w[i].error);
        ck_assert_int_eq(w[i].dtype, TN_F32);
    }
    ck_assert_int_eq(tn_error_status(), TN_OK); /* their errors did not reach us */
    assert_ok(tn_set_default_dtype(TN_F32));
}
END_TEST

/* ---- errors ---------------------------------------------------------------------------------- */

START_TEST(poison_passes_and_the_origin_stays)
{
    tn_tensor *bad = tn_reshape(tn_ones(TN_SHAPE(2, 3)), TN_SHAPE(4));
    ck_assert_ptr_null(bad);
    char message[256];
    snprintf(message, sizeof message, "%s", tn_error());
    tn_tensor *y = tn_transpose(tn_expand(tn_zeros_like(bad), TN_SHAPE(2)), 0, 0);
    ck_assert_ptr_null(tn_cat((tn_tensor *[]){ tn_ones(TN_SHAPE(1)), y }, 2, 0));
    ck_assert_ptr_null(tn_repeat(tn_flip(tn_tril(y, 0), NULL, 0), TN_SHAPE(2)));
    ck_assert_str_eq(tn_error(), message);
    ck_assert_int_eq(tn_copy_in(y, NULL, 0, TN_F32), TN_E_SHAPE); /* a status: the pending one */
    snprintf(message + strlen(message), sizeof message - strlen(message),
             "; tn_copy_in: t is NULL while this error is pending");
    ck_assert_int_eq(tn_uniform_(y, 0, 1), TN_E_SHAPE);
    ck_assert_int_eq(tn_print(y), TN_E_SHAPE);
    ck_assert(isnan(tn_item(y)) && tn_size(y, 0) == TN_NO_SIZE && tn_hash(y) == 0 &&
              tn_format(y, NULL, 0) == -1);
    ck_assert_str_eq(tn_error(), message);
    ck_assert_int_eq(tn_error_status(), TN_E_SHAPE);
    tn_ones(TN_SHAPE(1)); /* success does not clear it */
    ck_assert_str_eq(tn_error(), message);
    ck_assert_ptr_null(tn_eye(-1)); /* a new origin overwrites it */
    assert_error(TN_E_INVALID, "tn_eye");
    ck_assert_str_eq(tn_error(), "");
    ck_assert_int_eq(tn_error_status(), TN_OK);
}
END_TEST

START_TEST(a_null_with_nothing_pending_names_the_argument)
{
    assert_null(tn_zeros_like(NULL), TN_E_INVALID, "tn_zeros_like: t is NULL");
    assert_null(tn_reshape(NULL, TN_SHAPE(1)), TN_E_INVALID, "tn_reshape: x is NULL");
    assert_fails(tn_set_name(NULL, "a"), TN_E_INVALID, "tn_set_name: t is NULL");
    assert_fails(tn_set_name(tn_ones(TN_SHAPE(1)), NULL), TN_E_INVALID, "name is NULL");
    assert_fails(tn_normal_(NULL, 0, 1), TN_E_INVALID, "tn_normal_: t is NULL");
}
END_TEST

START_TEST(ones_own_errors)
{
    ck_assert_ptr_null(tn_fail(TN_E_NAME, "my_layer: got %d: want %d", 3, 4));
    ck_assert_str_eq(tn_error(), "my_layer: got 3: want 4");
    ck_assert_int_eq(tn_error_status(), TN_E_NAME);
    tn_fail(TN_OK, "not a failure");
    ck_assert_int_ne(tn_error_status(), TN_OK);
    char *longer = malloc(10000);
    memset(longer, 'x', 9999);
    longer[9999] = '\0';
    tn_fail(TN_E_IO, "%s", longer); /* cut, terminated */
    ck_assert_uint_gt(strlen(tn_error()), 100);
    ck_assert_uint_lt(strlen(tn_error()), 9999);
    free(longer);
    ck_assert_str_eq(tn_status_name(TN_E_SHAPE), "TN_E_SHAPE");
    ck_assert_str_eq(tn_status_name(TN_E_BACKEND), "TN_E_BACKEND");
    ck_assert_ptr_nonnull(tn_status_name((tn_status)-3));
    ck_assert_ptr_nonnull(tn_status_name((tn_status)999));
    tn_error_clear();
}
END_TEST

/* The status of a child that fails once with TN_TRAP set to this. */
static int child_status(const char *trap)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TN_TRAP", trap, 1);
        tn_fail(TN_E_INVALID, "here");
        _exit(7);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

START_TEST(trap_stops_at_the_origin)
{
    int status = child_status("1");
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    status = child_status("0");
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
END_TEST

static void check_in_child(int which)
{
    tn_scope_begin();
    if (which == 0) TN_CHECK(tn_copy_in(tn_ones(TN_SHAPE(2)), "", 1, TN_F32));
    if (which == 1) TN_CHECK_PTR(tn_eye(-1));
    TN_CHECK(TN_OK);
    TN_CHECK_PTR(tn_eye(1));
    _exit(0);
}

START_TEST(check_macros_end_the_program)
{
    char text[512] = "";
    int out[2], status = 0;
    ck_assert_int_eq(pipe(out), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 2);
        check_in_child(_i);
    }
    close(out[1]);
    ssize_t n = read(out[0], text, sizeof text - 1);
    close(out[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), _i < 2);
    ck_assert(_i == 2 ? n == 0 : n > 0);
    if (_i < 2) {
        const char *status_name = _i ? "TN_E_INVALID: tn_eye" : "TN_E_SHAPE";
        ck_assert_msg(strstr(text, "test_scope.c:") && strstr(text, status_name), "%s", text);
    }
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static void count_release(void *user)
{
    ++*(int *)user;
}

START_TEST(borrowed_memory)
{
    int released = 0;
    float block[6] = { 0, 1, 2, 3, 4, 5 };
    int64_t bytes = tn_memory().data_bytes;
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_from_memory(block, TN_SHAPE(2, 3), TN_F32, count_release, &released);
    ck_assert_ptr_eq(tn_data(x), block);
    ck_assert(tn_memory().data_bytes == bytes); /* nothing was copied */
    block[4] = 40;
    ck_assert_double_eq(tn_at(x, TN_INDEX(1, 1)), 40);
    assert_ok(tn_copy_in(tn_select(x, 0, 0), (float[]){ 7, 8, 9 }, 12, TN_F32));
    ck_assert_double_eq(block[2], 9);
    tn_tensor *view = tn_keep(tn_transpose(x, 0, 1));
    tn_scope_end(s);
    ck_assert_int_eq(released, 0); /* a view is left */
    ck_assert_double_eq(tn_at(view, TN_INDEX(1, 1)), 40);
    tn_drop(view);
    ck_assert_int_eq(released, 1);
    tn_from_memory(block, TN_SHAPE(6), TN_F32, NULL, NULL);
    assert_null(tn_from_memory(NULL, TN_SHAPE(6), TN_F32, count_release, &released), TN_E_INVALID,
                "tn_from_memory: data is NULL");
    assert_null(tn_from_memory(block, TN_SHAPE(-6), TN_F32, count_release, &released), TN_E_SHAPE,
                "tn_from_memory");
    assert_null(tn_from_memory(block, TN_SHAPE(6), (tn_dtype)50, count_release, &released),
                TN_E_DTYPE, "tn_from_memory");
    ck_assert_int_eq(released, 1); /* a failure transfers no ownership */
}
END_TEST

/* Four of 2^61 bytes would be more than an int64_t counts. */
START_TEST(what_is_refused_is_not_counted)
{
    tn_memory_stats before = tn_memory();
    tn_scope s = tn_scope_begin();
    for (int i = 0; i < 4; i++)
        assert_null(tn_empty(TN_SHAPE(INT64_C(1) << 59)), TN_E_NOMEM, "out of memory");
    tn_scope_end(s);
    tn_memory_stats now = tn_memory();
    ck_assert_int_eq(now.data_bytes, before.data_bytes);
    ck_assert_int_eq(now.data_allocations, before.data_allocations);
    ck_assert_int_eq(now.in_use, before.in_use);
    ck_assert_int_ge(now.peak_in_use, now.in_use);
}
END_TEST

START_TEST(counters)
{
    tn_memory_stats before = tn_memory();
    tn_scope s = tn_scope_begin();
    tn_tensor *x = tn_zeros(TN_SHAPE(1000, 1000));
    tn_memory_stats now = tn_memory();
    ck_assert_int_eq(now.data_allocations, before.data_allocations + 1);
    ck_assert_int_eq(now.data_bytes, before.data_bytes + 4000000);
    ck_assert_int_ge(now.in_use, before.in_use + 4000000);
    ck_assert_int_ge(now.peak_in_use, now.in_use);
    tn_transpose(x, 0, 1); /* a view makes no storage */
    ck_assert_int_eq(tn_memory().data_allocations, now.data_allocations);
    tn_scope_end(s);
    ck_assert_int_lt(tn_memory().in_use, before.in_use + 4096); /* the scope stack may have grown */
    ck_assert_int_ge(tn_memory().peak_in_use, before.in_use + 4000000);
    tn_memory_reset_peak();
    ck_assert_int_eq(tn_memory().peak_in_use, tn_memory().in_use);
}
END_TEST

START_TEST(freed_blocks_are_used_again)
{
    if (TEST_ASAN) return; /* sanitizer builds bypass the cache */
    for (int round = 0; round < 3; round++) {
        int64_t before = tn_memory().system_allocations;
        for (int i = 0; i < 50; i++) {
            tn_scope s = tn_scope_begin();
            tn_zeros(TN_SHAPE(333));
            tn_reshape(tn_ones(TN_SHAPE(1000, 70)), TN_SHAPE(70, -1));
            tn_scope_end(s);
        }
        if (round) ck_assert_int_eq(tn_memory().system_allocations, before);
    }
    ck_assert_int_gt(tn_memory().cached, 280000);
    tn_memory_trim();
    ck_assert_int_eq(tn_memory().cached, 0);
}
END_TEST

START_TEST(data_is_aligned)
{
    for (int64_t n = 1; n < 5000; n = n * 3 + 1)
        ck_assert_uint_eq((uintptr_t)tn_data(tn_zeros(TN_SHAPE(n))) % 64, 0);
}
END_TEST

/* without the fixture's scope: no tensor may be alive */
START_TEST(allocator_stays_while_anything_is_alive)
{
    tn_error_clear();
    assert_fails(tn_set_allocator(&(tn_allocator){ scarce_allocator.alloc, NULL, NULL }),
                 TN_E_INVALID, "tn_set_allocator");
    assert_ok(tn_set_allocator(&scarce_allocator));
    assert_ok(tn_set_allocator(NULL));
    tn_scope scope = tn_scope_begin();
    assert_fails(tn_set_allocator(&scarce_allocator), TN_E_STATE,
                 "bytes in use, 0 tensors alive: want every scope closed");
    tn_scope_end(scope);
    tn_module *m = tn_relu_new(); /* no tensor at all */
    assert_fails(tn_set_allocator(&scarce_allocator), TN_E_STATE, "every object freed");
    tn_module_drop(m);
    tn_generator *g = tn_generator_new(1);
    assert_fails(tn_set_allocator(&scarce_allocator), TN_E_STATE, "every object freed");
    tn_generator_free(g);
    assert_ok(tn_set_allocator(&scarce_allocator));
    scope = tn_scope_begin();
    tn_tensor *x = tn_zeros(TN_SHAPE(100000));
    ck_assert_int_ge(scarce.bytes, 400000);
    assert_fails(tn_set_allocator(NULL), TN_E_STATE, "1 tensors alive");
    assert_made(x);
    tn_scope_end(scope);
    assert_ok(tn_set_allocator(NULL)); /* gives cached blocks back first */
    ck_assert(scarce.blocks == 0 && scarce.bytes == 0 && !scarce.foreign);
}
END_TEST

/* Some of everything that this floor makes; false if any of it failed. */
static bool scenario(void)
{
    tn_scope s = tn_scope_begin();
    if (tn_error_status() != TN_OK) return false;
    tn_tensor *x = tn_randn(TN_SHAPE(20));
    tn_tensor *y = tn_reshape(tn_transpose(tn_reshape(x, TN_SHAPE(4, 5)), 0, 1), TN_SHAPE(2, 10));
    tn_tensor *z = tn_cat((tn_tensor *[]){ y, tn_ones(TN_SHAPE(2, 1)) }, 2, 1);
    z = tn_tril(tn_repeat(tn_flip(z, NULL, 0), TN_SHAPE(2, 1)), 0);
    bool ok = z && tn_set_name(z, "z") == TN_OK && tn_format(z, NULL, 0) > 0;
    ok = ok && tn_hash(tn_transpose(z, 0, 1)) != 0;
    ok = ok && tn_uniform_(tn_transpose(z, 0, 1), 0, 1) == TN_OK && !isnan(tn_max_abs_diff(z, z));
    unsigned char out[24];
    ok = ok && tn_copy_out(tn_arange(0, 3, 1, TN_I64), out, sizeof out, TN_I64) == TN_OK;
    tn_generator *g = ok ? tn_generator_new(1) : NULL;
    ok = g != NULL;
    tn_generator_free(g);
    tn_scope_end(s);
    return ok;
}

START_TEST(every_allocation_may_fail)
{
    bool ok = false;
    for (int64_t k = 0; !ok; k++) {
        tn_error_clear();
        assert_ok(tn_set_allocator(&scarce_allocator));
        scarce_allow(k);
        ok = scenario();
        scarce_allow(INT64_MAX);
        ck_assert_msg(ok || tn_error_status() == TN_E_NOMEM, "k = %" PRId64 ": %s", k, tn_error());
        ck_assert_int_eq(tn_live_tensors(), 0);
        assert_ok(tn_set_allocator(NULL));
        ck_assert_msg(scarce.blocks == 0, "k = %" PRId64 ": %" PRId64 " blocks leaked", k,
                      scarce.blocks);
        ck_assert_int_lt(k, 5000);
    }
    tn_error_clear();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("scope");
    TCase *t = test_case(suite, "scopes");
    add_tests(t, results_belong_to_the_scope, inner_scopes_left_open_end_too, a_token_ends_once,
              return_hands_to_the_parent, keep_drop_adopt, a_view_keeps_the_memory, many_entries,
              threads_have_their_own);
    t = test_case(suite, "errors");
    add_tests(t, poison_passes_and_the_origin_stays, a_null_with_nothing_pending_names_the_argument,
              ones_own_errors, trap_stops_at_the_origin);
    tcase_add_loop_test(t, check_macros_end_the_program, 0, 3);
    t = test_case(suite, "memory");
    add_tests(t, borrowed_memory, counters, what_is_refused_is_not_counted,
              freed_blocks_are_used_again, data_is_aligned);
    scope_failures_case(suite);
    t = tcase_create("no scope");
    tcase_set_timeout(t, 300);
    suite_add_tcase(suite, t);
    add_tests(t, no_scope_is_an_error, allocator_stays_while_anything_is_alive,
              every_allocation_may_fail);
    return suite;
}
