/**
 * tenon/lora.h - low-rank adapters: a frozen model, and two thin matrices beside chosen Linears.
 *
 *     TN_CHECK(tn_lora(model, "*.q_proj,*.v_proj", (tn_lora_options){ .rank = 16, .alpha = 32 }));
 *     tn_optim *opt = tn_adamw(tn_parameters(model), (tn_adamw_options){ .lr = 2e-4 });
 *     ... train: opt updates the adapters alone ...
 *     TN_CHECK(tn_lora_save(model, "adapter"));      the peft package reads it
 *
 * A Linear X then gives W x + b + scale B A dropout(x). The adapter is a child of X by its own
 * name: parameters X.NAME.lora_A [rank, in] and X.NAME.lora_B [out, rank]. All else keeps its name,
 * and ties stay. Saving, cloning, moving and checkpoints work as for every module, but scale and
 * dropout are in no file of a whole model; tn_lm_save writes the base model.
 *
 * Trained   requires_grad is on for the active adapter alone; optimizers skip the rest
 * Buffers   stay bit for bit: modules with buffers other than constants and caches are frozen
 *           (tn_module_freeze), so BatchNorm normalises by its running statistics in training, too;
 *           peft's move. One that has such buffers and an adapter below it is left as it is
 * Dtypes    adapters are f32, or f64 where W is; the sum is rounded to the dtype of W x once
 * Parents   must call the Linear (tn_forward), as tenon's own do: one that reads its weight would
 *           not see the adapter. One with weight or spectral norm has no weight of its own, and
 *           gets none
 * Errors    before anything is changed; when memory runs out, requires_grad may be off
 * Source    Hu et al. (2022), LoRA; rslora: Kalajdzievski (2023); the package peft 0.21
 *
 * Programs that call tn_lora_save and tn_lora_load link libtenon-lm as well.
 */
#ifndef TENON_LORA_H
#define TENON_LORA_H

#include <tenon/module.h>

TN_BEGIN_C_

/** zero fields: adapter "default", rank 8, alpha 8, no dropout */
typedef struct tn_lora_options {
    const char *name; /* of the adapter: no dot, and no other member's of a Linear */
    int64_t rank;     /* 1 and up */
    double alpha;     /* the scale is alpha / rank */
    double dropout;   /* of what goes into A, in training */
    bool rslora;      /* the scale is alpha / sqrt(rank) */
} tn_lora_options;

/**
 * Adds an adapter to each Linear below m whose name fits a pattern, makes it the active one, and
 * freezes the rest. Call it again with another name for a second adapter.
 *
 * patterns   separated by commas, as a shell's: * is any characters, dots too, ? is one. What they
 *            fit beside Linears is left alone: "*" is every Linear
 * Values     A kaiming uniform with slope sqrt(5), B zeros, drawn in peft's order
 * Errors     TN_E_NAME: a pattern that fits no Linear; a Linear has a member of that name already;
 *            TN_E_INVALID: an option out of range
 * PyTorch: peft.get_peft_model(m, LoraConfig(...)); patterns in place of ends of names
 */
TN_API TN_MUST_USE tn_status tn_lora(tn_module *m, const char *patterns, tn_lora_options o);
/** Makes another adapter the active one; NULL: none, the base model alone. Those that are not
 *  active are frozen and lose their gradients. Errors: TN_E_NAME: no Linear has it.
 *  PyTorch: m.set_adapter(name), m.disable_adapter() */
TN_API TN_MUST_USE tn_status tn_lora_set(tn_module *m, const char *name);
/**
 * For inference: each Linear with an active adapter computes W + scale B A once, rounded once to
 * the dtype of W, and is one product from then on. The sum stands beside W, in a buffer "merged" of
 * role TN_CACHE: W, its ties and files stay as they are. It costs those weights' memory again.
 *
 * Unmerging is exact, and done by tn_train(m, true) and tn_lora_set, too. Where W, A or B was
 * written after merging, and in a clone, a Linear is as unmerged.
 *
 * Errors   TN_E_STATE: m is in train mode; out of memory: nothing is merged then
 * PyTorch: m.merge_adapter(); its unmerging rounds
 */
TN_API TN_MUST_USE tn_status tn_lora_merge(tn_module *m);
/** Frees what tn_lora_merge made. PyTorch: m.unmerge_adapter() */
TN_API TN_MUST_USE tn_status tn_lora_unmerge(tn_module *m);
/** Removes an adapter; if add, it is added for good to the weights, which are tied no longer. What
 *  is frozen stays so. Errors: as tn_lora_set.
 *  PyTorch: m.delete_adapter(name), m.merge_and_unload() */
TN_API TN_MUST_USE tn_status tn_lora_remove(tn_module *m, const char *name, bool add);

/** Writes the active adapter, as peft does: adapter_model.safetensors and adapter_config.json in a
 *  folder, which it makes. Errors: TN_E_STATE: no adapter is active; TN_E_IO.
 *  PyTorch: m.save_pretrained(folder) */
TN_API TN_MUST_USE tn_status tn_lora_save(tn_module *m, const char *folder);
/**
 * Adds the adapter of such a folder, by that name (NULL: "default"), as tn_lora does.
 *
 * Errors   TN_E_IO; TN_E_FORMAT; TN_E_UNSUPPORTED: a setting beyond the options above is in use, or
 *          a value is no Linear's; it is named. Those of tn_lora and tn_load_state_dict
 * PyTorch: PeftModel.from_pretrained(m, folder), m.load_adapter(folder, name)
 */
TN_API TN_MUST_USE tn_status tn_lora_load(tn_module *m, const char *folder, const char *name);

TN_END_C_
#endif
