/**
 * tenon/lm.h - language models from the files of Hugging Face's transformers.
 *
 * A folder with config.json and weights is all that is needed; names of modules and tensors are
 * those of the files. Link libtenon-lm (pkg-config tenon-lm). Kinds, by the file's model_type:
 *
 *     gpt2                           GPT-2: Radford et al. (2019)
 *     llama, qwen2, qwen3            rotary positions (default, linear, llama3, yarn), RMSNorm and
 *                                    gated layers: Touvron et al. (2023), grouped queries: Ainslie
 *                                    et al. (2023); SmolLM2 is a llama
 *     bert                           BERT, an encoder: Devlin et al. (2019); MiniLM is one
 *
 * Everything in config.json that changes results is honoured, or refused by the key's name
 * (TN_E_UNSUPPORTED). Dropout is the file's, in training. In bf16 a norm is rounded once, at its
 * end, where transformers rounds before it multiplies by the weight, too; and rotations are f32.
 *
 *     tn_module *m = tn_lm_load("Llama-3.2-1B", (tn_lm_options){ 0 });
 *     TN_CHECK(tn_lm_set_cache(m, 1, 256));
 *     tn_tensor *logits = tn_lm_next(m, prompt, TN_NONE);            [1, T] to [1, V]
 *     logits = tn_lm_next(m, token, TN_NONE);                        [1, 1]: T tokens are known
 *
 * forward takes ids [B, T], i64, and gives logits [B, T, V] of the whole text, for training by
 * tn_cross_entropy(logits, targets), or to score one. BERT gives hidden states [B, T, H], and by
 * tn_call the pooled first one [B, H], too. It takes ids, a mask [B, T] (0: padding, which no token
 * sees) and token types [B, T], i64; TN_NONE, or fewer inputs: all seen, type 0. It has no cache.
 */
#ifndef TENON_LM_H
#define TENON_LM_H

#include <tenon/io.h>
#include <tenon/layers.h>

TN_BEGIN_C_

/** zero fields: all as the files say */
typedef struct tn_lm_options {
    bool use_dtype;         /* weights become dtype, else they keep the file's */
    tn_dtype dtype;         /* a floating one */
    bool non_strict;        /* tensors missing in the file keep initial values, others are unused */
    tn_load_report *report; /* NULL, or filled, also on failure */
} tn_lm_options;

/**
 * A model by its config.json (or the folder with it), in train mode, with initial values as
 * transformers draws them: normal, of standard deviation initializer_range (GPT-2's c_proj: that
 * / sqrt(2 layers)); biases and the padding token's row 0; norms 1. The numbers drawn are others.
 *
 * Errors   TN_E_IO; TN_E_FORMAT: not JSON, sizes that do not fit or are beyond any model's;
 *          TN_E_UNSUPPORTED: see above. The key is named
 * PyTorch: transformers.AutoModelForCausalLM.from_config(config); BERT: AutoModel
 */
TN_API tn_module *tn_lm_new(const char *config);
/**
 * The model in a folder, in eval mode: config.json, and the first of model.safetensors,
 * model.safetensors.index.json, pytorch_model.bin, pytorch_model.bin.index.json.
 *
 * Ends     eos of generation_config.json, where that is there and says it, else config.json's
 * Dtypes   the file's: f32, bf16 or f16; all as the embedding's, if they differ
 * Names    with or without "transformer.", "model." or "bert." in front. GPT-2's weights [in, out]
 *          become those of Linear [out, in]. Masks, frequencies and BERT's heads are left out
 * Ties     tie_word_embeddings: one of the two is enough; if both are there and differ, both are
 *          kept, and not tied
 * Errors   those of tn_lm_new; of tn_load_state_dict, strict: every missing and unexpected name
 * PyTorch: AutoModelForCausalLM.from_pretrained(folder)
 */
TN_API tn_module *tn_lm_load(const char *folder, tn_lm_options o);
/** Writes config.json and model.safetensors, which tn_lm_load and from_pretrained read, and
 *  generation_config.json if eos came from such a file; makes the folder. Tied weights are stored
 *  once; the config is the one read, with the weights' dtype. Errors: TN_E_IO.
 *  PyTorch: model.save_pretrained(folder) */
TN_API TN_MUST_USE tn_status tn_lm_save(tn_module *m, const char *folder);

/**
 * Makes the weight of each Linear below m that fits tn_lora's patterns bytes: a quarter of f32's
 * memory and, with AVX2, time of few rows, as when text is written. To write and score with, and as
 * a frozen base under tn_lora, before it or after; tn_lora_merge refuses it.
 *
 * group    of neighbours in a row with one scale, a multiple of 32 that divides rows; 0: 64
 * Values   in f32: s = max |w| / 127, at least 1.2e-38; q = w / s to the nearest integer, halves to
 *          even; the weight is then s q. The same bytes on every machine
 * State    parameter "weight", frozen, u8 [out, in + 4 in / group]: a row is q, as signed bytes,
 *          then s, f32 each. In PyTorch s = w[:, n:].contiguous().view(torch.float32)[..., None],
 *          (w[:, :n].view(torch.int8).unflatten(1, (-1, group)) * s).flatten(1). Casts leave it.
 *          tn_lm_load takes it from a file; other models are quantized before tn_load
 * Ties     end: the other keeps its weight
 * Errors   before any change: TN_E_NAME: no Linear fits; TN_E_SHAPE: a row that group does not
 *          divide; TN_E_INVALID: group; NaN or infinity. Later TN_E_NOMEM: some weights are done
 * PyTorch: none; Int8WeightOnlyConfig of torchao is near
 */
TN_API TN_MUST_USE tn_status tn_quantize_int8(tn_module *m, const char *patterns, int64_t group);

/** What a model is; tokens are ids. */
typedef struct tn_lm_info {
    char model_type[32];          /* "llama" */
    int64_t vocab_size;           /* V, the logits */
    int64_t hidden_size;          /* H, what layers pass on */
    int64_t n_layers, n_heads;    /* layers; heads of queries */
    int64_t n_kv_heads, head_dim; /* heads of keys and values; elements of each */
    int64_t max_positions;        /* tokens of a text in training; of GPT-2 at most */
    int64_t bos, pad;             /* begin of text, padding; -1: none */
    int n_eos;                    /* how many tokens end a text */
    int64_t eos[8];               /* their ids */
    int64_t capacity;             /* of tn_lm_set_cache; 0: no cache */
} tn_lm_info;
/** Fills info. Errors: no model of this file's functions. PyTorch: model.config */
TN_API TN_MUST_USE tn_status tn_lm_get_info(const tn_module *m, tn_lm_info *info);

/**
 * Gives the model room for the keys and values of batch texts of at most capacity tokens; all are
 * empty then, also if there was a cache before. batch 0 takes it away.
 *
 * State    buffers key_cache and value_cache [batch, kv heads, capacity, head dim] of each
 *          attention, in the weights' dtype, and cache_lengths [batch] (i64) of the model, all
 *          TN_CACHE: in no file, and emptied by tn_train(m, true), after which there is no cache
 * Errors   batch negative or capacity not above 0; TN_E_NOMEM: then there is no cache
 * PyTorch: transformers.StaticCache
 */
TN_API TN_MUST_USE tn_status tn_lm_set_cache(tn_module *m, int64_t batch, int64_t capacity);
/** How many tokens the cache holds of each text: i64 [batch], the model's own; TN_NONE: no cache.
 *  PyTorch: cache.get_seq_length(), for all rows */
TN_API tn_tensor *tn_lm_cache(tn_module *m);
/**
 * Continues the texts of the cache by these tokens, and gives the logits [B, V] behind the last of
 * each. Nothing is recorded for backward. A row gives what it gives alone, up to rounding.
 *
 * ids      [B, T], i64, B as the cache's
 * lengths  TN_NONE: each row has T tokens; else [B], i64: row b has lengths[b], 1 to T, at its
 *          left, and the rest of the row is padding, any token ids
 * Cost     a step whose rows are equally long reads the cache where it lies and writes the new keys
 *          and values only; where they differ, there is a mask [B, T, S], too
 * Errors   TN_E_STATE: train mode; no cache; more tokens than its capacity, or GPT-2's positions
 *          (both numbers are named). The cache is then as before
 * PyTorch: model(ids, past_key_values=cache).logits[:, -1]
 */
TN_API tn_tensor *tn_lm_next(tn_module *m, tn_tensor *ids, tn_tensor *lengths);

TN_END_C_
#endif
