/*
 * mpi_wait.h - waiting for other ranks, inside of the module libtenon-mpi.so: with a limit in time,
 * and with a message that names who has not come.
 */
#ifndef TNI_MPI_WAIT_H
#define TNI_MPI_WAIT_H

#include <mpi.h>

/* Before the functions below; all ranks. NULL, or why not: text that stays. */
const char *tni_mpi_wait_open(int rank, int size);
/* Counts an operation of all ranks, about to begin: NULL, or why this rank must not begin another
 * one. */
const char *tni_mpi_count(void);
/* Waits for an operation, "a sum". NULL, or the reason of a failure; after one that names ranks the
 * operation is still on its way, and every later call fails too. */
const char *tni_mpi_wait(const char *what, MPI_Request *request);
/* Returns when all ranks have called it. Else it ends them. */
void tni_mpi_wait_end(void);
/* MPI's words for a code; NULL for success. */
const char *tni_mpi_reason(int code);

#endif
