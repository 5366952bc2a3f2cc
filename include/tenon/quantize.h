/**
 * tenon/quantize.h - weights of a byte a number: a quarter of f32's memory, and of its time where
 * few rows are computed, as when text is generated; or a frozen base under adapters.
 *
 *     tn_module *model = tn_lm_load("SmolLM2-135M", (tn_lm_options){ 0 });
 *     TN_CHECK(tn_quantize_int8(model, NULL, (tn_quantize_options){ 0 }));
 *     TN_CHECK(tn_save(model, "int8.safetensors"));
 *     ... another day, into a model that was just built ...
 *     TN_CHECK(tn_load_int8(model, "int8.safetensors"));
 *
 * A chosen Linear becomes an Int8Linear in its parent's place: y = x W^T + b, W_oi = scale_og q_oi.
 * A row of the weight is cut into groups of neighbouring numbers, and in f32
 *
 *     scale_og = max |w_oi| / 127 over the group g
 *     q_oi = w_oi / scale_og, rounded to nearest, halves to even
 *
 * So |w - scale q| is at most scale / 2 but for rounding, and the bytes are the same on every
 * processor. A group whose scale would be below 1.2e-38 is 0.
 *
 * Names     NAME.qweight [out, in] (u8: the bytes of tn_linear_int8) and NAME.scales [out, groups]
 *           (f32) are buffers of role TN_CONSTANT, NAME.bias is a frozen parameter. No optimizer
 *           changes them; they are saved, loaded, cloned and moved as in any module
 * Grad      flows through to x, and so to layers before it; q, scales and bias take none
 * Casts     tn_module_to_dtype casts scales, too, and rounds them: cast first, quantize then
 * Parents   must call the layer (tn_forward); one that reads its weight itself fails
 * Adapters  tn_lora may come before or after; before, the layers are called "*.base_layer"
 * Gone      the Linear's hooks and gradients. Make optimizers afterwards
 *
 * Programs that call these functions link libtenon-lm as well.
 */
#ifndef TENON_QUANTIZE_H
#define TENON_QUANTIZE_H

#include <tenon/module.h>

TN_BEGIN_C_

/** zero fields: groups of 64 */
typedef struct tn_quantize_options {
    int64_t group; /* 32, 64 or 128; the last group of a row may be shorter */
} tn_quantize_options;

/**
 * Replaces each Linear below m whose name fits a pattern. All or nothing.
 *
 * patterns   divided by commas: * stands for any characters, dots too, ? for one. NULL: every
 *            Linear but those called lm_head and those whose weight is tied to another module's
 * Ties       where a pattern chooses a tied one, it gets bytes of its own; the other keeps the
 *            weight. A layer that two parents share stays shared
 * Errors     TN_E_NAME: no Linear fits; TN_E_INVALID: another group, or a weight that is not
 *            finite, with its name and place; TN_E_STATE: inside a forward
 * PyTorch: none; Int8WeightOnlyConfig of torchao is near
 */
TN_API TN_MUST_USE tn_status tn_quantize_int8(tn_module *m, const char *patterns,
                                              tn_quantize_options o);

/**
 * tn_load of a file that a quantized model was saved to: each Linear of m that has NAME.qweight
 * there becomes an Int8Linear, then all is loaded. m may be quantized already. All or nothing.
 *
 * Errors     those of tn_load; TN_E_SHAPE, TN_E_DTYPE: a qweight or scales that do not fit the
 *            Linear
 * PyTorch: none; such a file has names of its own
 */
TN_API TN_MUST_USE tn_status tn_load_int8(tn_module *m, const char *path);

/**
 * Makes each Int8Linear a Linear again, frozen, weight and bias in dtype (floating): scale q,
 * rounded. Without any it does nothing. All or nothing.
 *
 * PyTorch: none; its weight is scale * q
 */
TN_API TN_MUST_USE tn_status tn_dequantize(tn_module *m, tn_dtype dtype);

TN_END_C_
#endif
