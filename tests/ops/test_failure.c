/*
 * test_failure.c - every allocation may fail: TN_E_NOMEM, nothing leaks, nothing half changed.
 *
 * The allocator hook counts and refuses; the cache above it is off (TN_CACHE=0), so that it sees
 * them all.
 *
 * Seen to fail: record (apply.c) left its node alive on the way out of a failure: 423 tests failed.
 */
#include <stdlib.h>

#include "models.h"
#include "op_table.h"
#include "scarce.h"

/* One forward and backward of a row; what failed, or TN_OK. */
static tn_status forward_and_backward(const op_row *row, const op_case *c)
{
    tn_tensor *x[OP_MAX_IN];
    for (int i = 0; i < c->n; i++) {
        x[i] = tn_detach(c->in[i]);
        if (!x[i]) return tn_error_status();
        if (!c->differentiable[i]) continue;
        tn_status status = tn_set_requires_grad(x[i], true);
        if (status != TN_OK) return status;
    }
    tn_tensor *y = row->build(x);
    if (!y) return tn_error_status();
    if (!tn_requires_grad(y)) return TN_OK;
    return tn_backward_from(y, c->seed ? c->seed : tn_ones_like(y), 0);
}

/* f32, as training is. Rows with more allocations than the cap are cut down. */
START_TEST(op_rows_survive_allocation_failure)
{
    enum { CAP = 200 };
    const op_row *row = &op_rows[_i];
    scarce_install();
    op_case c = op_load(row, row->flags & ROW_FIXED ? TN_F64 : TN_F32);
    tn_scope warm = tn_scope_begin(); /* makes what is made once and kept */
    ck_assert_int_eq(forward_and_backward(row, &c), TN_OK);
    tn_scope_end(warm);
    int64_t live = tn_live_tensors();
    int64_t in_use = tn_memory().in_use;
    for (int64_t k = 1; k <= CAP; k++) {
        tn_error_clear();
        tn_scope scope = tn_scope_begin();
        scarce_fail(k);
        tn_status status = forward_and_backward(row, &c);
        scarce.failing = 0;
        bool failed = scarce.requests >= k;
        tn_scope_end(scope);
        ck_assert_msg(tn_live_tensors() == live, "%s: allocation %d failed: %d tensors leak",
                      row->name, (int)k, (int)(tn_live_tensors() - live));
        ck_assert_msg(tn_memory().in_use == in_use, "%s: allocation %d failed: %d bytes leak",
                      row->name, (int)k, (int)(tn_memory().in_use - in_use));
        if (!failed) {
            ck_assert_msg(status == TN_OK, "%s: without a failure: %s", row->name, tn_error());
            return;
        }
        ck_assert_msg(status == TN_E_NOMEM, "%s: allocation %d failed: status is %s (%s)",
                      row->name, (int)k, tn_status_name(status), tn_error());
    }
}
END_TEST

/* A training step of the transformer: for every 13th k allocation k fails, alone or with all after
 * it. Unless the whole step succeeded, parameters are bit for bit what they were. */
START_TEST(a_failed_step_changes_nothing)
{
    scarce_install();
    scarce.sticky = _i;
    tn_manual_seed(3);
    tn_module *model = transformer_new();
    assert_made(model);
    tn_list *parameters = tn_parameters(model);
    tn_tensor *x;
    tn_tensor *y;
    random_text(2, &x, &y);
    uint64_t hash = state_hash(model);
    int64_t live = tn_live_tensors();
    for (int64_t k = 1;; k += 13) {
        tn_optim *optimizer = tn_adamw(parameters, (tn_adamw_options){ .lr = 1e-3 });
        assert_made(optimizer);
        tn_error_clear();
        scarce_fail(k);
        tn_scope scope = tn_scope_begin();
        tn_tensor *loss = tn_cross_entropy(tn_forward(model, x), y);
        tn_status status = tn_backward(loss);
        if (status == TN_OK) status = tn_optim_step(optimizer);
        tn_scope_end(scope);
        scarce.failing = 0;
        bool failed = scarce.requests >= k;
        assert_ok(tn_optim_zero_grad(optimizer));
        tn_optim_free(optimizer);
        if (!failed) {
            ck_assert_msg(status == TN_OK, "without a failure: %s", tn_error());
            ck_assert_msg(state_hash(model) != hash, "the step changed nothing");
            break;
        }
        if (status == TN_OK && !scarce.sticky) { /* it was a name, which only messages need */
            ck_assert_msg(state_hash(model) != hash, "allocation %d failed: no step", (int)k);
            hash = state_hash(model);
            continue;
        }
        ck_assert_msg(status == TN_E_NOMEM && tn_error_status() == TN_E_NOMEM,
                      "allocation %d failed: %s, %s", (int)k, tn_status_name(status), tn_error());
        ck_assert_msg(state_hash(model) == hash, "allocation %d failed: the parameters changed",
                      (int)k);
        ck_assert_msg(tn_live_tensors() == live, "allocation %d failed: %d tensors leak", (int)k,
                      (int)(tn_live_tensors() - live));
    }
    tn_module_drop(model);
}
END_TEST

Suite *test_suite(void)
{
    setenv("TN_CACHE", "0", 1); /* read at the first allocation, which is later */
    op_read_golden();
    Suite *suite = suite_create("failure");
    TCase *t = test_case(suite, "failure");
    tcase_add_loop_test(t, op_rows_survive_allocation_failure, 0, n_op_rows);
    tcase_add_loop_test(t, a_failed_step_changes_nothing, 0, 2);
    return suite;
}
