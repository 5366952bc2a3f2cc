/* models.h - the examples' two architectures, for the suites that train: a reduced transformer,
 * the CNN. */
#ifndef TENON_TESTS_MODELS_H
#define TENON_TESTS_MODELS_H

#include "common.h"

enum { MODEL_LAYERS = 2, MODEL_WIDTH = 32, MODEL_HEADS = 2, MODEL_CONTEXT = 16, MODEL_VOCAB = 63 };

/* Embedding, positional encoding, pre-norm blocks with causal attention and GELU, LayerNorm,
 * Linear: ids [B, 16] -> [B, 16, 63]. No dropout. */
tn_module *transformer_new(void);
/* Conv-BN-ReLU-MaxPool, twice, and two Linear: [B, 1, 28, 28] -> [B, 10]. */
tn_module *cnn_new(void);

/* n windows of ids [n, 16] and targets one further, from the library's default generator. */
void random_text(int64_t n, tn_tensor **x, tn_tensor **y);
/* Four synthetic images [4, 1, 28, 28] and their classes, as image() of golden/make_train.py
 * gives them. */
void synthetic_images(int step, tn_dtype dtype, tn_tensor **x, tn_tensor **y);

/* Cross-entropy, zero_grad, backward, step: the loss before the update. Fails the test on an
 * error. */
double train_step(tn_module *model, tn_optim *optimizer, tn_tensor *x, tn_tensor *y);
/* Of the tensors of a list, a state dict for example. */
uint64_t list_hash(const tn_list *list);
/* A hash of every parameter and buffer. */
uint64_t state_hash(tn_module *model);
/* And of every gradient, and of the default generator. */
uint64_t step_hash(tn_module *model);

#endif
