/*
 * test_tied.c - a table that stands twice in a model, read by token and multiplied with: the
 * embedding's gradient is added to the sum that is there (add_to_sum in autograd/ops/gather.c).
 *
 * Seen to fail: the gradient made as a table of zeros, delivered as well as added, added to a sum
 * that the user sees, or taken from a copy without history.
 */
#include "common.h"

enum { TOKENS = 4096, WIDTH = 64 };

/* A language model in small: tokens by their rows of `in`, scores by the rows of `out`. */
static tn_tensor *scores_loss(tn_tensor *in, tn_tensor *out, tn_tensor *ids, int64_t padding)
{
    tn_tensor *x = tn_embedding(in, ids, padding);
    tn_tensor *y = tn_linear(x, out, TN_NONE);
    return tn_sum(tn_mul(y, y), NULL, 0, false);
}

static tn_tensor *table(tn_dtype dtype)
{
    tn_tensor *t = random_as(TN_SHAPE(TOKENS, WIDTH), -1, 1, 3, dtype);
    assert_ok(tn_set_requires_grad(t, true));
    return t;
}

static tn_tensor *some_ids(void)
{
    static const int64_t ids[] = { 7, 4095, 7, 0, 19, 7, 4095, 2 };
    return tn_from_data(ids, TN_SHAPE(8), TN_I64);
}

/* The gradient of a table that is read by token and multiplied with is that of two tables, one for
 * each, and takes one table's memory. */
START_TEST(a_tied_table_takes_no_zeros)
{
    for (int64_t padding = -1; padding <= 7; padding += 8) {
        tn_tensor *w = table(TN_F32), *a = table(TN_F32), *b = table(TN_F32);
        tn_tensor *loss = scores_loss(w, w, some_ids(), padding);
        int64_t before = tn_memory().data_bytes;
        assert_ok(tn_backward(loss));
        ck_assert_int_lt(tn_memory().data_bytes - before, 3 * TOKENS * WIDTH * 4 / 2);
        assert_ok(tn_backward(scores_loss(a, b, some_ids(), padding)));
        assert_close(tn_grad(w), tn_add(tn_grad(a), tn_grad(b)), 1e-6, 1e-6);
    }
}
END_TEST

/* The same when it is a result, in f64; when its gradient so far is the user's; and half precision
 * rounds both sums, so it comes close. */
START_TEST(a_tied_table_elsewhere)
{
    static const tn_dtype dtypes[] = { TN_F64, TN_F32, TN_BF16 };
    for (int i = 0; i < 3; i++) {
        tn_tensor *a = table(dtypes[i]), *b = table(dtypes[i]), *leaf = table(dtypes[i]);
        tn_tensor *w = tn_neg(tn_neg(leaf));
        double near = i == 2 ? 0.02 : 1e-6;
        assert_ok(tn_backward(scores_loss(a, b, some_ids(), -1)));
        assert_ok(tn_backward(scores_loss(w, w, some_ids(), -1)));
        assert_close(tn_grad(leaf), tn_add(tn_grad(a), tn_grad(b)), near, near);

        tn_tensor *seed = random_as(TN_SHAPE(TOKENS, WIDTH), -1, 1, 5, dtypes[i]);
        tn_tensor *was = tn_clone(seed), *rows = tn_embedding(leaf, some_ids(), -1);
        tn_tensor *outputs[] = { rows, leaf };
        tn_tensor *seeds[] = { tn_ones_like(rows), seed }, *g[1];
        assert_ok(tn_gradients(2, outputs, seeds, 1, &leaf, g, 0));
        assert_close(seed, was, 0, 0);
        tn_tensor *at = tn_expand(tn_reshape(some_ids(), TN_SHAPE(8, 1)), TN_SHAPE(8, WIDTH));
        tn_tensor *sum = tn_scatter_add(was, 0, at, tn_ones_like(rows));
        assert_close(g[0], sum, near, near);
    }
}
END_TEST

/* The gradient of y is not row-major there, and the table stands elsewhere, too. */
static tn_tensor *cubes(tn_tensor **in, void *user)
{
    static const int64_t ids[] = { 1, 2, 1, 4 };
    (void)user;
    tn_tensor *y = tn_embedding(in[0], tn_from_data(ids, TN_SHAPE(4), TN_I64), -1);
    tn_tensor *turned = tn_transpose(y, 0, 1), *all = tn_pow_scalar(in[0], 3);
    return tn_add(tn_sum(tn_mul(turned, tn_square(turned)), NULL, 0, false),
                  tn_sum(all, NULL, 0, false));
}

START_TEST(a_tied_table_twice_differentiated)
{
    tn_tensor *w = random_f64(TN_SHAPE(5, 3), -1, 1, 4);
    assert_ok(tn_set_requires_grad(w, true));
    assert_ok(tn_gradcheck(cubes, &w, 1, NULL, (tn_gradcheck_options){ .second = true }));
}
END_TEST

/* Told or not, the same bits. */
START_TEST(a_tied_table_told)
{
    tn_tensor *w = table(TN_F32), *told = table(TN_F32);
    assert_ok(tn_backward(scores_loss(w, w, some_ids(), -1)));
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    assert_ok(tn_explain(file, scores_loss(told, told, some_ids(), -1), (tn_explain_options){ 0 }));
    fclose(file);
    assert_close(tn_grad(told), tn_grad(w), 0, 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("tied");
    TCase *t = test_case(suite, "gradients");
    tcase_add_test(t, a_tied_table_takes_no_zeros);
    tcase_add_test(t, a_tied_table_elsewhere);
    tcase_add_test(t, a_tied_table_told);
    tcase_add_test(t, a_tied_table_twice_differentiated);
    return suite;
}
