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

/* What this rank needs by itself for tensors on the device; all ranks have such a one. */
tn_status tni_wire_new(const char *function, tn_device device, tni_mpi_group *group, tni_wire *w);
/* Connects the ranks; all of them together, after tni_wire_new. All succeed, or all fail. */
tn_status tni_wire_join(const char *function, tni_wire *w);
/* Waits for its sums. NULL in line: nothing. */
void tni_wire_free(tni_wire *w);
/* Before the first sum of a pass. TN_E_STATE in a step that is captured: sums stay outside. */
tn_status tni_wire_ready(const tni_wire *w, tn_device device);
/* Begins to make data the sum: f32, f64 or bf16, dense, at most INT32_MAX numbers. It is the wire's
 * until tni_wire_wait; so is scratch, of which MPI's sums of bf16 take as much (mpi_module.h). All
 * ranks, in the same order. */
tn_status tni_wire_sum(const char *function, tni_wire *w, tn_tensor *data, tn_tensor *scratch,
                       tni_mpi_request *request);
/* Lets sums move on. In the order in which they were begun. */
tn_status tni_wire_test(const char *function, const tni_wire *w, tni_mpi_request *request);
/* Whatever computes with data from now on sees the sum. In the same order. */
tn_status tni_wire_wait(const char *function, const tni_wire *w, tni_mpi_request *request);

#endif
