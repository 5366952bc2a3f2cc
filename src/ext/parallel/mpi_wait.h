/*
 * mpi_wait.h - waiting for other ranks, inside the module libtenon-mpi.so: with a time limit, and a
 * message that names the missing ranks.
 */
#ifndef TNI_MPI_WAIT_H
#define TNI_MPI_WAIT_H

#include <mpi.h>

/* All ranks call it before the functions below. NULL, or why it failed: text that stays. */
const char *tni_mpi_wait_open(int rank, int size);
/* Counts an operation of all ranks, about to begin: NULL, or why this rank must not begin another
 * one. */
const char *tni_mpi_count(void);
/* Waits for an operation; what: "a sum". NULL, or the reason for a failure. If that names ranks,
 * the operation is still on its way, and every later call fails too. */
const char *tni_mpi_wait(const char *what, MPI_Request *request);
/* Returns when all ranks have called it, or ends them all. */
void tni_mpi_wait_end(void);
/* MPI's words for a code; NULL for success. */
const char *tni_mpi_reason(int code);

#endif
