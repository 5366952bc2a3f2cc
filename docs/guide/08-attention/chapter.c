/*
 * Chapter 8: attention from its formula, and the table that tells positions apart.
 */
#include <math.h>
#include <tenon/tenon.h>

/* pe[t, 2i] = sin(t f_i), pe[t, 2i + 1] = cos(t f_i), f_i = 10000^(-2i/d) */
static tn_tensor *position_table(int64_t length, int64_t d)
{
    tn_tensor *t = tn_reshape(tn_arange(0, (double)length, 1, TN_F32), TN_SHAPE(length, 1));
    tn_tensor *power = tn_mul_scalar(tn_arange(0, (double)d, 2, TN_F32), -log(10000) / (double)d);
    tn_tensor *angle = tn_mul(t, tn_exp(power)); /* [length, d / 2] */
    tn_tensor *pair[] = { tn_sin(angle), tn_cos(angle) };
    return tn_reshape(tn_stack(pair, 2, 2), TN_SHAPE(length, d)); /* sin, cos, sin, cos, ... */
}

/* softmax(q k^T / sqrt(D)) v, with -inf where a query may not look */
static tn_tensor *attend(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *blocked,
                         tn_tensor **weights)
{
    double scale = 1 / sqrt((double)tn_size(q, -1));
    tn_tensor *scores = tn_mul_scalar(tn_matmul(q, tn_transpose(k, -2, -1)), scale);
    *weights = tn_softmax(tn_masked_fill(scores, blocked, -INFINITY), -1);
    return tn_matmul(*weights, v);
}

/* True above the diagonal: query t may not look at keys after t. */
static tn_tensor *causal_mask(int64_t n)
{
    return tn_gt_scalar(tn_triu(tn_ones(TN_SHAPE(n, n)), 1), 0);
}

int main(void)
{
    tn_scope scope = tn_scope_begin();
    tn_manual_seed(1);
    tn_tensor *table = position_table(4, 6);
    tn_print(table);
    tn_module *pe = tn_positional_encoding_new(6, 4, (tn_positional_encoding_options){ 0 });
    TN_CHECK_PTR(pe);
    printf("the layer's buffer agrees: %d\n",
           tn_max_abs_diff(tn_squeeze(tn_get_buffer(pe, "pe"), 0), table) < 1e-6);

    tn_tensor *q = tn_randn(TN_SHAPE(4, 8)), *k = tn_randn(TN_SHAPE(4, 8)), *weights;
    tn_tensor *v = tn_randn(TN_SHAPE(4, 8)), *mask = causal_mask(4);
    tn_tensor *y = attend(q, k, v, mask, &weights);
    tn_print(mask);
    tn_print(weights);
    printf("the op agrees: %d\n",
           tn_max_abs_diff(y, tn_scaled_dot_product_attention(q, k, v, mask, false, 0)) < 1e-5);
    printf("and with its own causal mask: %d\n",
           tn_max_abs_diff(y, tn_scaled_dot_product_attention(q, k, v, TN_NONE, true, 0)) < 1e-5);

    /* Attention itself does not see the order: keys and values exchanged alike change nothing. */
    tn_tensor *order = tn_from_ints((int64_t[]){ 2, 0, 3, 1 }, TN_SHAPE(4));
    tn_tensor *k2 = tn_index_select(k, 0, order), *v2 = tn_index_select(v, 0, order);
    tn_tensor *plain = tn_scaled_dot_product_attention(q, k, v, TN_NONE, false, 0);
    tn_tensor *mixed = tn_scaled_dot_product_attention(q, k2, v2, TN_NONE, false, 0);
    printf("blind to the order: %d\n", tn_max_abs_diff(plain, mixed) < 1e-5);
    tn_module_drop(pe);
    tn_scope_end(scope);
    return 0;
}
