/*
 * test_cuda_faults_ops.c - every row of the op table, forward and backward on the device, with each of
 * its calls failing in turn, and with the device breaking at every fourth of them.
 *
 * Seen to fail: PENDING
 */
#include "cuda_faults.h"
#include "cuda_shim.h"
#include "op_table.h"

/* The row, its inputs on the device, the hash of what it gave. */
static const op_row *row;
static op_case given;
static uint64_t result;

static bool load(void)
{
    bool fixed = row->flags & ROW_FIXED;
    given = op_load(row, fixed ? TN_F64 : TN_F32);
    for (int i = 0; i < given.n; i++)
        if (!(given.in[i] = tn_to(given.in[i], tn_cuda(0)))) return false;
    if (given.seed) given.seed = tn_to(given.seed, tn_cuda(0));
    return true;
}

static bool make(void)
{
    result = 0;
    return true;
}

static tn_status add(uint64_t *hash, tn_tensor *t)
{
    uint64_t h = tn_hash(t);
    *hash = *hash * 31 + h;
    return h ? TN_OK : tn_error_status();
}

static tn_status forward_and_backward(void)
{
    tn_tensor *x[OP_MAX_IN];
    uint64_t hash = 0;
    tn_manual_seed(1);
    for (int i = 0; i < given.n; i++) {
        if (!(x[i] = tn_detach(given.in[i]))) return tn_error_status();
        if (given.differentiable[i] && tn_set_requires_grad(x[i], true) != TN_OK)
            return tn_error_status();
    }
    tn_tensor *y = row->build(x);
    if (!y) return tn_error_status();
    tn_status status = add(&hash, y);
    if (status == TN_OK && tn_requires_grad(y)) {
        tn_tensor *seed = given.seed ? given.seed : tn_ones_like(y);
        status = tn_backward_from(y, seed, 0);
        for (int i = 0; i < given.n && status == TN_OK; i++)
            if (!tn_is_none(tn_grad(x[i]))) status = add(&hash, tn_grad(x[i]));
    }
    if (status == TN_OK) result = hash;
    return status;
}

static uint64_t state(void)
{
    return result;
}

static void drop(void)
{
}

START_TEST(a_call_fails)
{
    row = &op_rows[_i];
    ck_assert_msg(load(), "%s: %s", row->name, tn_error());
    sweep_failures(&(scenario){ row->name, make, forward_and_backward, state, drop, true });
}
END_TEST

START_TEST(the_device_breaks)
{
    row = &op_rows[_i];
    ck_assert_msg(load(), "%s: %s", row->name, tn_error());
    scenario s = { row->name, make, forward_and_backward, state, drop, true };
    warm_up(&s);
    sweep_breaks(&s, 1 + _i % 4, 4);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cuda_faults_ops");
    tn_set_num_threads(1); /* children are forked after ops have run here */
    if (!shim_for("cuda_faults_ops")) return suite;
    op_read_golden();
    tcase_add_loop_test(test_case(suite, "fails"), a_call_fails, 0, n_op_rows);
    tcase_add_loop_test(test_case(suite, "breaks"), the_device_breaks, 0, n_op_rows);
    return suite;
}
