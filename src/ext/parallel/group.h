/*
 * group.h - the ranks of a run, for the files of this folder.
 */
#ifndef TNI_GROUP_H
#define TNI_GROUP_H

#include <tenon/parallel.h>

#include "nn/module.h"
#include "ext/parallel/mpi_module.h"

/* MPI's calls; NULL when the program runs alone, or before tn_parallel_begin. */
const tni_mpi *tni_ranks(void);
/* Whether this process is a rank, and not a rank's forked child. */
bool tni_ranks_here(void);
/* The group of all ranks, for calls without a handle. */
tni_mpi_group tni_ranks_group(void);
/* An error with function and the reason for a failed MPI call; TN_OK for NULL. */
tn_status tni_ranks_status(const char *function, const char *reason);
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

#endif
