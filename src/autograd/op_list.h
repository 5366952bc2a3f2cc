/*
 * op_list.h - every op of ops.h by name: tn_NAME. The tests walk this list and fail on an op
 * without a row in tests/op_table.c. Kept in the order of ops.h.
 */
/* clang-format off */
#define TNI_OP_LIST(OP)                                                                            \
    /* views and movement */                                                                       \
    OP(reshape) OP(flatten) OP(transpose) OP(permute) OP(squeeze) OP(squeeze_all) OP(unsqueeze)    \
    OP(expand) OP(select) OP(slice) OP(narrow) OP(split) OP(chunk) OP(cat) OP(stack)               \
    OP(contiguous) OP(flip) OP(repeat) OP(to_dtype) OP(to) OP(tril) OP(triu) OP(clone)             \
    /* elementwise */                                                                              \
    OP(add) OP(sub) OP(mul) OP(div) OP(pow) OP(minimum) OP(maximum) OP(lerp) OP(where)             \
    OP(masked_fill) OP(eq) OP(ne) OP(lt) OP(le) OP(gt) OP(ge) OP(logical_and) OP(logical_or)       \
    OP(logical_xor) OP(logical_not) OP(isnan) OP(isfinite) OP(add_scalar) OP(sub_scalar)           \
    OP(rsub_scalar) OP(mul_scalar) OP(div_scalar) OP(pow_scalar) OP(eq_scalar) OP(ne_scalar)       \
    OP(lt_scalar) OP(le_scalar) OP(gt_scalar) OP(ge_scalar) OP(neg) OP(abs) OP(exp) OP(log) OP(log1p) OP(expm1) OP(sqrt) OP(rsqrt)           \
    OP(square) OP(reciprocal) OP(sin) OP(cos) OP(tanh) OP(sigmoid) OP(erf) OP(relu)                \
    OP(leaky_relu) OP(elu) OP(silu) OP(gelu) OP(gelu_tanh) OP(softplus) OP(clamp)                  \
    /* reductions */                                                                               \
    OP(sum) OP(mean) OP(var) OP(std) OP(prod) OP(logsumexp) OP(norm) OP(amax) OP(amin) OP(max)     \
    OP(min) OP(argmax) OP(argmin) OP(any) OP(all) OP(sum_all) OP(mean_all) OP(max_all) OP(min_all) OP(cumsum)                                       \
    /* products and indexing */                                                                    \
    OP(matmul) OP(linear) OP(gather) OP(index_select) OP(scatter_add) OP(embedding) OP(one_hot)    \
    /* softmax, losses, layers */                                                                  \
    OP(softmax) OP(log_softmax) OP(cross_entropy) OP(cross_entropy_with) OP(nll_loss)              \
    OP(mse_loss) OP(l1_loss) OP(smooth_l1_loss) OP(huber_loss) OP(bce_with_logits) OP(kl_div)      \
    OP(dropout) OP(layer_norm) OP(batch_norm) OP(conv2d) OP(max_pool2d) OP(avg_pool2d)             \
    OP(adaptive_avg_pool2d) OP(scaled_dot_product_attention)
/* clang-format on */
