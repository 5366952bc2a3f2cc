/*
 * mpi_module.h - what the shared module libtenon-mpi.so offers: the few calls of MPI that data
 * parallel training needs, without a type of MPI's.
 *
 * Every function returns NULL, or MPI's reason for a failure: text that lives until the thread's
 * next call. The calls on a group must be made by all ranks, in the same order.
 */
#pragma once

#include <stdint.h>

#include <tenon/tensor.h>

#define TNI_MPI_FILE "libtenon-mpi.so"
#define TNI_MPI_SYMBOL "tenon_mpi_open"
#define TNI_MPI_ID "tenon mpi 3"

/* All ranks, with a sequence of messages of its own, and another for second messages in bf16. */
typedef struct tni_mpi_group {
    uint64_t word, second;
    uint64_t begun, followed; /* sums in bf16; those whose second message has left */
} tni_mpi_group;

/* A sum on its way. */
typedef struct tni_mpi_request {
    uint64_t word;
    /* in bf16 */
    tni_mpi_group *group; /* NULL: not in bf16, or its second message has left */
    uint16_t *data, *scratch;
    size_t n;
    uint64_t number; /* of the sums in bf16 of its group */
} tni_mpi_request;

typedef struct tni_mpi {        /* mpi.c fills it in this order */
    const char *version;        /* of the MPI library, one line */
    int rank, size, local_rank; /* local: among the ranks of this host */
    const char *(*group_new)(tni_mpi_group *group);
    const char *(*group_free)(tni_mpi_group *group);
    /* data becomes the sum over ranks: n numbers of f32, f64 or i64. */
    const char *(*sum)(tni_mpi_group group, void *data, size_t n, tn_dtype dtype);
    /* Begins such a sum, also of bf16; at most INT_MAX numbers. MPI owns data until the request is
     * done. For bf16, n is a multiple of the number of ranks, scratch has room for as many numbers
     * (MPI owns it too), and each result is the sum in f32, rounded once. */
    const char *(*sum_begin)(tni_mpi_group *group, void *data, void *scratch, size_t n,
                             tn_dtype dtype, tni_mpi_request *request);
    /* Call it in the order in which sums were begun. */
    const char *(*wait)(tni_mpi_request *request);
    /* Lets messages make progress. Call it in the same order. */
    const char *(*test)(tni_mpi_request *request);
    const char *(*broadcast)(tni_mpi_group group, void *data, size_t nbytes, int from);
    /* all[r * nbytes ..] becomes the data of rank r; nbytes at most INT_MAX. */
    const char *(*gather)(tni_mpi_group group, const void *data, size_t nbytes, void *all);
    /* Sends data from rank `from` to `to`; the others call it too, do nothing, may pass NULL. */
    const char *(*move)(tni_mpi_group group, void *data, size_t nbytes, int from, int to);
    const char *(*barrier)(tni_mpi_group group);
    /* Ends MPI, unless the program has done so itself. */
    void (*finalize)(void);
    void (*end_all)(int status); /* ends all ranks; returns only if MPI has ended already */
} tni_mpi;

/* Starts MPI. NULL + the reason in why. */
typedef const tni_mpi *(*tni_mpi_open)(const char *id, char *why, size_t size);
