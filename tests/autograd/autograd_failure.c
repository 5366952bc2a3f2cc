/*
 * autograd_failure.c - every allocation may fail: TN_E_NOMEM, nothing leaks, nothing half changed.
 *
 * The allocator hook counts and refuses; the cache above it is off (TN_CACHE=0 in test_autograd.c),
 * so that it sees them all.
 *
 * Seen to fail: record (apply.c) left its node alive on the way out of a failure: both halves of
 * the rows failed, and six of the sweeps in autograd_depth.c.
 */
#include "autograd/autograd.h"
#include "models.h"
#include "ops/op_table.h"
#include "scarce.h"

typedef struct row_case {
    const op_row *row;
    op_case c;
} row_case;

/* One forward and backward of a row; what failed, or TN_OK. */
static tn_status forward_and_backward(void *user)
{
    const row_case *r = user;
    const op_case *c = &r->c;
    tn_tensor *x[OP_MAX_IN];
    for (int i = 0; i < c->n; i++) {
        x[i] = tn_detach(c->in[i]);
        if (!x[i]) return tn_error_status();
        if (!c->differentiable[i]) continue;
        tn_status status = tn_set_requires_grad(x[i], true);
        if (status != TN_OK) return status;
    }
    tn_tensor *y = r->row->build(x);
    if (!y) return tn_error_status();
    if (!tn_requires_grad(y)) return TN_OK;
    return tn_backward_from(y, c->seed ? c->seed : tn_ones_like(y), 0);
}

/* f32, as training is. All rows in a process or two: a fork for each would cost minutes under a
 * sanitizer. */
START_TEST(op_rows_survive_allocation_failure)
{
    scarce_install();
    for (int i = _i; i < n_op_rows; i += 2) {
        tn_scope s = tn_scope_begin();
        row_case r = { .row = &op_rows[i] };
        r.c = op_load(r.row, r.row->flags & ROW_FIXED ? TN_F64 : TN_F32);
        scarce.what = r.row->name;
        int failed = scarce_sweep_warm(forward_and_backward, NULL, &r);
        ck_assert_msg(failed == scarce.requests, "%s: %d of %d refusals failed it", scarce.what,
                      failed, (int)scarce.requests);
        tn_scope_end(s);
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
    tn_module *model = owned(transformer_new());
    tn_list *parameters = tn_parameters(model);
    tn_tensor *x, *y;
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
}
END_TEST

void autograd_failure_cases(Suite *suite)
{
    TCase *t = test_case(suite, "failure");
    tcase_add_loop_test(t, op_rows_survive_allocation_failure, 0, 2);
    tcase_add_loop_test(t, a_failed_step_changes_nothing, 0, 2);
}
