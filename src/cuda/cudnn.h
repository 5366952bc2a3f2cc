/*
 * cudnn.h - cuDNN 9, where it is installed: opened at first use, absent without complaint. Plans
 * are made at the first call of a shape and kept for good: graphs hold their kernels. So a
 * captured step finds those of the call before it, and makes none; what has no plan uses this
 * module's own kernels.
 */
#pragma once

#include "cuda/cuda.h"
#include "cuda/cudnn_graph.h"

/* The GPU's compute capability as 10 major + minor, or 0: cuDNN is not there, or not wanted. An
 * error is one of a device that broke, or of memory. */
tn_status tni_cudnn_ready(int *capability);

/* What a plan depends on, as numbers; compared whole. */
struct dnn_key {
    int64_t number[96];
    int n;
};
void dnn_add(dnn_key *key, int64_t number);
void dnn_add(dnn_key *key, const tni_array *x); /* dtype, sizes, strides */

/* The plan of a key, made by `describe` (which adds a graph's operations) if it is new; plan NULL:
 * there is none. */
struct dnn_request {
    const dnn_key *key;
    void (*describe)(dnn_graph *g, const void *of);
    const void *of;
};
tn_status tni_cudnn_plan(const dnn_request *want, const dnn_plan **plan);

/* Runs it. done false: cuDNN refused, nothing was written, and it will not be asked again. */
struct dnn_operand {
    int64_t id;
    const void *data; /* device memory on 16 bytes; of numbers the host's */
};
tn_status tni_cudnn_run(const dnn_plan *plan, int n, const dnn_operand *operands, bool *done);

/* attention_cudnn.cu, conv2d_cudnn.cu: the same as without cudnn in their names; done false:
 * nothing was written. */
tn_status tni_cudnn_attention(const tni_attention *a, bool *done);
tn_status tni_cudnn_attention_grad(const tni_attention_grad *a, bool *done);
tn_status tni_cudnn_conv2d(const tni_conv2d *a, bool *done);
tn_status tni_cudnn_conv2d_grad_input(const tni_conv2d_grad_input *a, bool *done);
tn_status tni_cudnn_conv2d_grad_weight(const tni_conv2d_grad_weight *a, bool *done);
