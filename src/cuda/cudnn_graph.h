/*
 * cudnn_graph.h - graphs of operations for cuDNN, and the plans that it makes of them. Host code
 * without CUDA: tests make the same graphs with the real library for GPUs that are not there.
 *
 * A graph keeps the first failure: calls after it do nothing, so only its end is checked.
 */
#pragma once

#include "cuda/cudnn_api.h"
#include "tensor/kernels.h"

enum { DNN_MADE = 320, DNN_OPERATIONS = 40 };

struct dnn_graph {
    const dnn_api *api;
    dnn_handle handle;         /* of the device to plan for, or NULL: that of the properties */
    dnn_descriptor properties; /* NULL, or a finalized device descriptor */
    dnn_status status;         /* 0, or of the first call that failed, */
    const char *failed;        /* which was this */
    dnn_status broke;          /* 0, or of a call about a configuration that broke, */
    const char *broke_in;      /* this one: an error if no other configuration does */
    dnn_descriptor made[DNN_MADE], operations[DNN_OPERATIONS];
    int n_made, n_operations;
    int64_t fresh; /* the next virtual tensor's number */
};

/* A tensor of a graph: its numbers of elements and strides are those of NCHW or of heads. */
struct dnn_tensor {
    dnn_descriptor descriptor;
    int type;
    int64_t size[4], stride[4];
};

/* What pointers are given for when a plan runs. LOG_SUM: [B, H, T] f32, log of the sum of exp of a
 * row's scores; DELTA like it, scratch; SCALE, LOWEST, ONE: a float of the host each; BIAS: added
 * to attention's scores, or per channel. */
enum { DNN_Q = 1, DNN_K, DNN_V, DNN_Y, DNN_DY, DNN_DQ, DNN_DK, DNN_DV, DNN_LOG_SUM, DNN_DELTA };
enum { DNN_BIAS = 16, DNN_SCALE, DNN_LOWEST, DNN_ONE, DNN_X, DNN_W, DNN_DX, DNN_DW };
enum { DNN_VIRTUAL = 64 };

struct dnn_plan {
    dnn_descriptor plan; /* NULL: there is none */
    int64_t workspace;   /* bytes */
};

/* Frees what the graph made, but a plan that was taken from it. */
void dnn_drop(dnn_graph *g);
/* The best plan by cuDNN's own order that gives the same bits in each run and keeps sums in f32;
 * plan NULL and status 0: there is none. The caller owns it. */
dnn_plan dnn_choose(dnn_graph *g);

/* y = softmax(scale q k^T + bias) v, of heads [B, H, T or S, D]. bias: [B or 1, H or 1, 1, S] of
 * q's type, or NULL. log_sum: also that output. */
void dnn_attention(dnn_graph *g, const tni_attention *a, const tni_array *bias, bool log_sum);
/* dq, dk, dv from y, dy and the log-sum; dk and dv of all heads of q. */
void dnn_attention_grad(dnn_graph *g, const tni_attention_grad *a, const tni_array *bias);

enum dnn_pass { DNN_FORWARD, DNN_GRAD_INPUT, DNN_GRAD_WEIGHT };
/* A convolution's y, dx or dw; sums in f32. inside: channels are all three's innermost axis. */
void dnn_convolution(dnn_graph *g, dnn_pass pass, tn_dtype dtype, const tni_conv2d_sizes *c,
                     bool bias, bool inside);
