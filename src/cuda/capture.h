/* capture.h - capturing a step, for the files whose work is captured: it gives device.cu memory,
 * and optim.cu and dropout.cu the place of the numbers that change from run to run. */
#pragma once

#include "cuda/cuda.h"
#include "tensor/graphs.h"

extern const tni_graphs tni_cuda_graphs;

/* Whether this thread is capturing. */
bool tni_cuda_capturing(void);
/* TN_E_STATE while another thread is: all share one stream. */
tn_status tni_cuda_not_elsewhere(void);
/* TN_E_STATE while any thread is capturing: `does` ("reads a value") would be done once and never
 * again; `want` says what to do instead. */
tn_status tni_cuda_not_captured(const char *does, const char *want);

/* Memory from the graph that this thread captures. */
tn_status tni_cuda_graph_take(size_t nbytes, void **block);
/* Frees a block, from any thread: to its graph, or to the pool, during a capture only after it has
 * ended. */
void tni_cuda_graph_give(void *block);
/* device.cu: frees a block to the pool, now. No capture may begin meanwhile: the free would become
 * part of it. */
void tni_cuda_give_back(void *block);

/* Memory that a library or a file keeps for good: never a graph's, even while this thread is
 * capturing. */
tn_status tni_cuda_keep(size_t nbytes, void **block);

/* Dropout of a captured step: the counter it is given stands for its distance from `offset`. */
typedef struct tni_cuda_draw {
    uint64_t seed, offset;
} tni_cuda_draw;
/* Device memory while this thread is capturing, else NULL: kernels use the numbers they are
 * given. */
const tni_cuda_draw *tni_cuda_graph_draw(void);
/* The generator's counter when the capture began. */
uint64_t tni_cuda_graph_offset(void);

/* Room for an optimizer's step in the block of the graph that this thread captures: where the host
 * writes it, and where kernels read it. */
tn_status tni_cuda_graph_section(size_t nbytes, void **host, void **device);
/* optim.cu: rewrites such a section, for the same tensors. */
void tni_cuda_optim_refresh(void *section, const tni_optim_tensor *tensors, int n);
/* optim.cu: bytes of optimizers' numbers so far. */
uint64_t tni_cuda_optim_bytes(void);

/* transfers.cu: of tni_graphs; whether an upload was done by a copy that was made ahead. */
void tni_cuda_ahead(const void *host, size_t nbytes);
void tni_cuda_forget(const void *host);
bool tni_cuda_was_ahead(void *device, const void *host, size_t nbytes);
tn_status tni_cuda_fetch(const void *device, size_t nbytes, tni_transfer **way);
tn_status tni_cuda_collect(tni_transfer *way, void *host, size_t nbytes);

/* device.cu: makes stream, pool and libraries. */
tn_status tni_cuda_ready(void);
