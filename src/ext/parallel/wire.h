/*
 * wire.h - sums over ranks that go on while the program computes: of numbers in memory over MPI, of
 * numbers on a GPU over NCCL.
 */
#ifndef TNI_WIRE_H
#define TNI_WIRE_H

#include "ext/parallel/group.h"
#include "ext/parallel/nccl_module.h"

typedef struct tni_wire {
    tni_mpi_group *group; /* of its owner */
    tni_nccl_line *line;  /* NULL: MPI */
} tni_wire;

/* Makes this rank's end of a wire for tensors on the device; every rank makes one. */
tn_status tni_wire_new(const char *function, tn_device device, tni_mpi_group *group, tni_wire *w);
/* Connects the ranks; all call it, after tni_wire_new. All succeed, or all fail. */
tn_status tni_wire_join(const char *function, tni_wire *w);
/* Waits for its sums. NULL in line: nothing. */
void tni_wire_free(tni_wire *w);
/* Call it before the first sum of a pass. TN_E_STATE in a captured step, which may hold no sums. */
tn_status tni_wire_ready(const tni_wire *w, tn_device device);
/* Begins a sum into data: f32, f64 or bf16, dense, at most INT32_MAX numbers. The wire owns data
 * until tni_wire_wait, and scratch too, which MPI's sums of bf16 need in the same size
 * (mpi_module.h). All ranks call it, in the same order. */
tn_status tni_wire_sum(const char *function, tni_wire *w, tn_tensor *data, tn_tensor *scratch,
                       tni_mpi_request *request);
/* Lets sums make progress. Call it in the order in which they were begun. */
tn_status tni_wire_test(const char *function, const tni_wire *w, tni_mpi_request *request);
/* Work with data that is queued from now on sees the sum. Call it in the same order. */
tn_status tni_wire_wait(const char *function, const tni_wire *w, tni_mpi_request *request);

#endif
