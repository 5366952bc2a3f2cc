/*
 * shard.h - an optimizer whose state is sharded over the ranks (shard.c, shard_state.c).
 */
#ifndef TNI_SHARD_H
#define TNI_SHARD_H

#include "optim/optim.h"
#include "ext/parallel/data_parallel.h"

/* What a rank says of itself before anything is sent: numbers that must be the same on all. */
typedef struct tni_shard_word {
    int64_t status;
    uint64_t layout;  /* over the parameters: names, sizes, holders, groups */
    uint64_t numbers; /* over rates and such, and counts of steps */
    uint64_t taking;  /* over which parameters the step updates */
} tni_shard_word;

/* A place in a rank's parameters, written one after the other. */
typedef struct tni_shard_place {
    int param;
    size_t at; /* bytes of it already done */
} tni_shard_place;

typedef struct tni_shard {
    tni_optim_shards base;  /* first */
    tn_optim *opt;          /* which drops this when it is freed */
    tn_data_parallel *p;    /* NULL: it was freed */
    struct tni_shard *next; /* of p's */
    int64_t *load;          /* of each rank: bytes of the parameters that it holds */
    tni_shard_word *word;   /* of each rank */
    tni_shard_place *place; /* of each rank, in a step */
    tn_tensor **dense;      /* of each parameter, in a step: a copy if it is not dense, or NULL */
    size_t dense_capacity;
    size_t most, piece;  /* most bytes that a rank sends in a step; bytes per message */
    char *block;         /* a piece from this rank, then one from each: (1 + size) piece */
    size_t block_nbytes; /* 0: none */
} tni_shard;

/* Call it when this rank is ready, or has failed with status: returns the same on all ranks, TN_OK
 * if all have the same words. stepping: compares gradients too. */
tn_status tni_shard_agree(const char *function, tni_shard *s, tn_status status, bool stepping);

#endif
