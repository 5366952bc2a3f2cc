/*
 * one_hot.c - index [...] -> [..., n]: 1 at position index, 0 elsewhere. i64, no gradient.
 *
 * Composite: index == 0..n-1, broadcast, after every index has been checked on its device.
 */
#include "autograd/ops/shared.h"

tn_tensor *tni_iota(int64_t n, tn_device device)
{
    return tn_sub_scalar(tn_cumsum(tn_full_as(TN_SHAPE(n), 1, TN_I64, device), 0), 1);
}

/* ---- y = index, each of 0..n-1 --------------------------------------------------------------- */

/* Takes rows of width 0 from a table of n rows, so the kernel only checks the indices. */
static tn_status one_hot_forward(tni_call *c)
{
    int64_t n = *(const int64_t *)c->args;
    tn_tensor *index = c->in[0];
    int64_t count = tni_shape_numel(&index->shape);
    tni_take a = { .y = rows_array(c->out[0], 3, 1, count, 0),
                   .x = rows_array(index, 3, 1, n, 0),
                   .index = rows_array(index, 1, count, 0, 0) };
    tn_status status = tni_backend_of(index)->take(&a);
    if (status != TN_OK) return tni_name_index_error(c->op, status);
    return tni_backend_of(index)->copy(
        &(tni_copy){ .y = rows_array(c->out[0], 1, count, 0, 0), .x = a.index });
}

TNI_OP(one_hot, 1, "y = index, 0 <= index < n", NULL, tni_shape_like_first, one_hot_forward, NULL,
       .dtypes = TNI_ANY_DTYPE, .dense = TNI_X(0))

/* ---- the largest index ----------------------------------------------------------------------- */

/* Its value + 1; -1 and a message on failure. */
static int64_t number_of_classes(tn_tensor *index)
{
    if (tni_host_refused("tn_one_hot", "with n -1 reads the largest index", "n given")) return -1;
    int64_t largest = -1;
    tn_tensor *top = tn_amax(index, NULL, 0, false);
    if (!top || tn_copy_out(top, &largest, sizeof largest, TN_I64) != TN_OK) return -1;
    return TNI_MAX(largest, 0) + 1; /* one below 0 is found with the others */
}

tn_tensor *tn_one_hot(tn_tensor *index, int64_t n)
{
    tn_scope scope = tn_scope_begin();
    tn_tensor *hot = NULL;
    index = tni_ids_arg("tn_one_hot", "index", index);
    if (index && (n < -1 || (n == -1 && tn_numel(index) == 0))) {
        tni_error(TN_E_INVALID,
                  "tn_one_hot: n %" PRId64 ", index %s: want n >= 0, or -1 and at least one index",
                  n, tni_text(index));
    } else if (index && (n >= 0 || (n = number_of_classes(index)) >= 0)) {
        tn_tensor *ids = tni_apply(&op_one_hot, &n, sizeof n, 1, &index);
        tn_tensor *each = ids ? tni_iota(n, tn_device_of(ids)) : NULL;
        hot = tn_to_dtype(tn_eq(tn_unsqueeze(ids, -1), each), TN_I64);
    }
    return tni_scope_return(__func__, scope, hot);
}
