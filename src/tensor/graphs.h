/*
 * graphs.h - a training step captured once and run again: what the CUDA module offers the core for
 * it.
 *
 * Between begin and end nothing runs: what the calling thread asks of the backend goes into a
 * graph. Memory that is taken meanwhile comes from the graph's own, which lives until the graph is
 * freed and nothing uses a block of it. What changes from run to run lies in a block that launch
 * refreshes.
 */
#ifndef TNI_GRAPHS_H
#define TNI_GRAPHS_H

#include "tensor/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a step needs in bytes, measured in a run that was not captured. */
typedef struct tni_graph_size {
    uint64_t memory; /* highest use of device memory above what was in use before */
    uint64_t block;  /* what its optimizers are told */
} tni_graph_size;

typedef struct tni_graph tni_graph;

typedef struct tni_graphs {
    void (*measure_begin)(tni_graph_size *size);
    /* size as measure_begin left it; zeros when it fails */
    void (*measure_end)(tni_graph_size *size);
    /* offset: where the default generator's counter stands. TN_E_STATE when a graph is captured
     * already. A status other than TN_OK leaves nothing behind. */
    tn_status (*begin)(const tni_graph_size *size, uint64_t offset, tni_graph **graph);
    /* Ends the capture, whatever comes of it. keep: the graph is wanted. In any case free it. */
    tn_status (*end)(tni_graph *graph, bool keep);
    /* What optimizer step k of the graph, from 0, does in the next run: the tensors of its
     * capture with other numbers. */
    void (*optim)(tni_graph *graph, int k, const tni_optim_args *args,
                  const tni_optim_tensor *tensors, int n);
    /* One run. seed, offset: of the default generator now. Fails before anything runs or not at
     * all. */
    tn_status (*launch)(tni_graph *graph, uint64_t seed, uint64_t offset);
    void (*free)(tni_graph *graph); /* waits for the device; NULL is ignored */
} tni_graphs;

#ifdef __cplusplus
}
#endif
#endif
