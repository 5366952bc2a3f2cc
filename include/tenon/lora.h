/**
 * tenon/lora.h - low-rank adapters: a frozen model, and two thin matrices beside each chosen layer.
 *
 *     TN_CHECK(tn_lora(model, "*.q_proj,*.v_proj", (tn_lora_options){ .rank = 16, .alpha = 32 }));
 *     tn_optim *opt = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 2e-4 });
 *     ... train ...
 *     TN_CHECK(tn_lora_save(model, "adapter"));     the adapter alone; the peft package reads it
 *
 * A chosen Linear X becomes a LoraLinear in its parent's place: y = X(x) + scale B(A(dropout(x))).
 * It owns the old layer as X.base_layer; its parameters are X.lora_A.NAME.weight [rank, in] and
 * X.lora_B.NAME.weight [out, rank], NAME being the adapter's. So names are those of the peft
 * package, and saving, loading, cloning, moving and checkpoints work as for every module: a whole
 * model's file loads into a model with the same adapters (scale and dropout are not in it).
 *
 * What is trained   requires_grad is on for the parameters of the active adapter and for what the
 *                   options name, off for the rest; tn_parameters lists all, and optimizers skip
 *                   what is frozen. A tn_list_filter by tn_requires_grad gives the short list
 * Buffers           stay bit for bit: a module without children that has buffers other than
 *                   constants and caches (BatchNorm) is frozen (tn_module_freeze), so it normalises
 *                   by its running statistics in training, too. peft would let them move. A module
 *                   of yours that has children, and writes its own buffers, is left as it is
 * Dtypes            adapters are f32 beside a base of f32, bf16, f16 or int8 (quantize.h, before or
 *                   after), f64 beside f64. Of a bf16 base the sum is computed in f32 and rounded
 *                   once
 * Parents           must call the layer (tn_forward); one that reads the weight of a child Linear
 *                   itself would not see the adapter. tenon's own layers all call theirs
 * Errors            before anything is changed; what was changed when memory runs out is put back,
 *                   but for requires_grad
 * Source            Hu et al. (2022), LoRA; rslora: Kalajdzievski (2023); files: peft 0.21
 *
 * Programs that call these functions link libtenon-lm as well.
 */
#ifndef TENON_LORA_H
#define TENON_LORA_H

#include <tenon/module.h>

TN_BEGIN_C_

/** Which biases are trained beside an adapter. Such biases belong to the model: they do not change
 *  when another adapter is set. */
typedef enum tn_lora_bias {
    TN_LORA_BIAS_NONE, /* none */
    TN_LORA_BIAS_ALL,  /* every parameter called bias */
    TN_LORA_BIAS_ONLY  /* those of the chosen layers: peft's lora_only */
} tn_lora_bias;

/** zero fields: adapter "default", rank 8, alpha 8, no dropout, no bias, nothing else */
typedef struct tn_lora_options {
    const char *name; /* of the adapter: no dot */
    int64_t rank;
    double alpha;      /* the scale is alpha / rank */
    double dropout;    /* of what goes into A, in training */
    bool rslora;       /* the scale is alpha / sqrt(rank) */
    tn_lora_bias bias; /* which biases are trained */
    /* patterns of modules that are trained whole (a new head), NULL: none. Their values are in the
     * adapter's files; they, too, belong to the model */
    const char *modules_to_save;
} tn_lora_options;

/**
 * Adds an adapter to each layer below m whose name fits a pattern, makes it the active one, and
 * freezes the rest. Call it again with another name for a second adapter.
 *
 * patterns   divided by commas: * stands for any characters, dots too, ? for one
 * Values     A kaiming uniform with slope sqrt(5), B zeros, drawn in peft's order: nothing changes
 *            until a step is made
 * Shared     a layer that two parents share gets one adapter
 * Errors     TN_E_NAME: a pattern fits no module, or modules that are no Linear (all are named); a
 *            layer has an adapter of that name already, or the name has a dot. TN_E_INVALID: a
 *            negative rank; alpha not finite; dropout outside [0, 1)
 */
TN_API TN_MUST_USE tn_status tn_lora(tn_module *m, const char *patterns, tn_lora_options o);

/** Makes the adapter with that name the active one of every layer that has it; the other layers
 *  have none. NULL: none at all, the base model alone. Adapters that are not active are frozen, and
 *  lose their gradients. Errors: no layer has it (TN_E_NAME with those that there are). */
TN_API TN_MUST_USE tn_status tn_lora_set(tn_module *m, const char *name);
/** Removes an adapter from every layer, active or not. Errors: as tn_lora_set. */
TN_API TN_MUST_USE tn_status tn_lora_delete(tn_module *m, const char *name);

/**
 * For inference: each layer computes W + scale B A once (f32 sum, rounded once to the dtype of W;
 * peft's values) and from then on is one product. The sum is kept beside W, in a buffer "merged" of
 * role TN_CACHE: W and its ties stay as they are, files hold the unmerged model, and unmerging,
 * which frees the sum, gives back the model bit for bit. It costs the memory of the chosen weights
 * once more.
 *
 * tn_train(m, true) and tn_lora_set unmerge. Where W, A or B were written after merging (loaded,
 * say), the layer computes the unmerged way until it is merged again.
 *
 * Errors   TN_E_STATE: no adapter is active, or a layer is in training mode; TN_E_UNSUPPORTED: an
 *          int8 base; out of memory. Nothing is merged then
 */
TN_API TN_MUST_USE tn_status tn_lora_merge(tn_module *m);
/** Frees what tn_lora_merge made. */
TN_API TN_MUST_USE tn_status tn_lora_unmerge(tn_module *m);
/**
 * Takes all adapters out: the base layers go back into their places, with the active adapter added
 * to their weights if merge (peft's merge_and_unload), else as they were. Everything stays frozen:
 * tn_module_thaw and tn_module_set_requires_grad undo that.
 *
 * Errors   merge: those of tn_lora_merge; TN_E_STATE: a weight that has another name in m, too
 *          (an embedding tied to the head), which would change with it
 */
TN_API TN_MUST_USE tn_status tn_lora_unload(tn_module *m, bool merge);

/**
 * Writes the active adapter: folder/adapter_model.safetensors and folder/adapter_config.json, as
 * the peft package does and reads; the folder is made if it is not there. Other parameters that are
 * trained (biases, modules_to_save) are written, too, the latter with their buffers.
 *
 * Errors   TN_E_STATE: no adapter is active; TN_E_IO
 */
TN_API TN_MUST_USE tn_status tn_lora_save(tn_module *m, const char *folder);

/** zero fields: adapter "default", trainable */
typedef struct tn_lora_load_options {
    const char *name; /* of the adapter here */
    bool frozen;      /* for inference: nothing in it is trained */
} tn_lora_load_options;
/**
 * Adds the adapter of such a folder, of tenon or of peft, as tn_lora does, and makes it the active
 * one. The layers are those that adapter_model.safetensors has; rank_pattern and alpha_pattern are
 * followed where their keys are plain names. Values of biases and modules_to_save are copied into
 * the model. Safe to use on files of others: all in them is checked.
 *
 * Errors   TN_E_IO; TN_E_FORMAT: a file is not what it should be; TN_E_UNSUPPORTED with its name: a
 *          setting beyond LoRA of Linear layers (use_dora, adapters of embeddings ...); TN_E_NAME,
 *          TN_E_SHAPE: the model has no such layer, or one of another size
 */
TN_API TN_MUST_USE tn_status tn_lora_load(tn_module *m, const char *folder, tn_lora_load_options o);

TN_END_C_
#endif
