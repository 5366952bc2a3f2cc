/* group.h - the ranks of a run, for the files of this folder. */
#pragma once

#include <tenon/parallel.h>

#include "nn/module.h"
#include "ext/parallel/mpi_module.h"
#include "ext/parallel/nccl_module.h"

/* MPI's calls; NULL when the program runs alone, or before tn_parallel_begin. */
const tni_mpi *tni_ranks(void);
/* Whether this process is a rank, and not a rank's forked child. */
bool tni_ranks_here(void);
/* The group of all ranks, for calls without a handle. */
tni_mpi_group tni_ranks_group(void);
/* An error with function and the reason for a failed MPI call; TN_OK for NULL. */
tn_status tni_ranks_status(const char *function, const char *reason);
/* The same of a call in MPI's table. */
#define TNI_MPI(function, call, ...) tni_ranks_status(function, tni_ranks()->call(__VA_ARGS__))
/* Makes t equal to rank `from`'s, writing only if bits differ. Unless status is a failure, t has
 * one shape and dtype on all ranks. All succeed, or all fail. */
tn_status tni_ranks_copy(const char *function, tni_mpi_group group, tn_status status, tn_tensor *t,
                         int from);
/* Call it after each rank has done something alone: returns the same on all, TN_OK or the first
 * failure, with its rank. Allocates nothing. (compare.c) */
tn_status tni_agree(const char *function, tni_mpi_group group, tn_status status);

/* What is known of a parameter's gradient on a rank, from the last averaging backward. */
typedef enum tni_reported {
    TNI_REPORTED_ALONE,   /* nobody averages its gradients */
    TNI_REPORTED_NOTHING, /* no averaging backward yet, or the last one failed */
    TNI_REPORTED_MISSING, /* there was none, though the parameter requires one */
    TNI_REPORTED_FINE
} tni_reported;
tni_reported tni_reported_of(const tn_tensor *parameter, int rank); /* (data_parallel.c) */

/* ---- wire.c ---------------------------------------------------------------------------------- */

/* Sums over ranks that go on while the program computes: over MPI; of numbers on a GPU, NCCL. */
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
