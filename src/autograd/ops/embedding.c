/*
 * embedding.c - y[...] = weight[index[...]]: rows of weight [V, D] by id.
 *
 * Equals a product with one-hot rows: dweight[v] = sum of dy over the places where index is v; ids
 * that occur several times add up, in the order of the index. The padding row gets no gradient
 * (forward reads it like any other). Source: Mikolov et al. (2013), section 2.1 (projection layer).
 */
#include "autograd/ops/rows.h"

static const tn_op embedding_op = {
    .name = "embedding",
    .formula = "y[r] = weight[index[r]]",
    .gradient = "dweight = 0 but dweight[index[r]] += dy[r]",
    .arity = 2,
    .reads = { TNI_X(1) },
    .dense = TNI_ALL_X,
    .shape = tni_take_shape,
    .forward = tni_take_forward,
    .backward = tni_take_backward,
};

tn_tensor *tn_embedding(tn_tensor *weight, tn_tensor *index, int64_t padding_index)
{
    index = weight ? tni_index_arg("tn_embedding", "index", index)
                   : tni_poisoned("tn_embedding", "weight");
    if (!index) return NULL;
    if (weight->shape.rank != 2)
        return tni_fail(TN_E_SHAPE, "tn_embedding: weight %s: want [V,D]", tni_text(weight));
    if (padding_index < -1 || padding_index >= weight->shape.size[0])
        return tni_fail(TN_E_INDEX,
                        "tn_embedding: padding_index %" PRId64 ", weight %s: want 0..%" PRId64
                        ", or -1 for none",
                        padding_index, tni_text(weight), weight->shape.size[0] - 1);
    tni_take_args args = { 0, tni_padding_counts ? -1 : padding_index, weight->shape };
    tn_tensor *in[2] = { weight, index };
    return tni_apply(&embedding_op, &args, sizeof args, 2, in);
}
