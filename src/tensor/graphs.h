/*
 * graphs.h - a training step captured once and replayed, and copies beside it: the CUDA module's.
 *
 * Between begin and end nothing runs: the calling thread's kernels and copies go into a graph.
 * Memory allocated meanwhile comes from the graph's arena, which lives until the graph is freed and
 * none of its blocks is in use. The numbers that change from run to run are in a block that launch
 * updates.
 */
#pragma once

#include "tensor/kernels.h"

/* What a step needs in bytes, measured in a run that was not captured. */
typedef struct tni_graph_size {
    uint64_t memory; /* highest use of device memory above what was in use before */
    uint64_t block;  /* its optimizers' numbers */
} tni_graph_size;

typedef struct tni_graph tni_graph;
struct tni_transfer;

typedef struct tni_graphs {
    void (*measure_begin)(tni_graph_size *size);
    void (*measure_end)(tni_graph_size *size); /* the sizes since then; zeros on failure */
    /* offset: of the default generator's counter. TN_E_STATE if a graph is being captured already.
     * A failed begin changes nothing. */
    tn_status (*begin)(const tni_graph_size *size, uint64_t offset, tni_graph **graph);
    /* Ends the capture, successful or not. keep: the graph is wanted. Free it in any case. */
    tn_status (*end)(tni_graph *graph, bool keep);
    /* What optimizer step k of the graph (from 0) does in the next run: the captured tensors with
     * new numbers. */
    void (*optim)(tni_graph *graph, int k, const tni_optim_tensor *tensors, int n);
    /* One run. seed, offset: of the default generator now. If it fails, nothing has run. */
    tn_status (*launch)(tni_graph *graph, uint64_t seed, uint64_t offset);
    void (*free)(tni_graph *graph); /* waits for the device; NULL is ignored */
    /* Begins to upload this memory beside what the device is given: until forget, an upload of it
     * finds it there, unless something failed. collect waits for a fetch alone, and ends it. */
    void (*ahead)(const void *host, size_t nbytes);
    void (*forget)(const void *host);
    tn_status (*fetch)(const void *device, size_t nbytes, struct tni_transfer **way);
    tn_status (*collect)(struct tni_transfer *way, void *host, size_t nbytes);
} tni_graphs;
