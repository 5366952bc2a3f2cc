/* data_parallel.h - the inside of a tn_data_parallel. */
#pragma once

#include "autograd/sync.h"
#include "base/map.h"
#include "ext/parallel/group.h"

/* What a rank reports of a pass to all others. */
typedef struct tni_report {
    uint64_t parameters, buffers; /* tni_layout_hash */
    uint64_t failed;              /* 1: the pass has failed on this rank */
    /* of each parameter: whether it had a gradient, and requires one */
    struct {
        bool used, trained;
    } parameter[];
} tni_report;

/* Gradients that are sent together, in one row. */
typedef struct tni_bucket {
    tn_tensor *flat;    /* [elements] f32 or f64; one reference */
    tn_tensor *message; /* what is sent: flat, or as many bf16; one reference */
    int n;              /* parameters */
    int waiting;        /* those without their gradient yet in this pass */
    tni_mpi_request request;
} tni_bucket;

/* A parameter's part of its bucket. */
typedef struct tni_part {
    char *name; /* its full name */
    int bucket;
    bool there; /* its gradient is, in this pass */
} tni_part;

/* The rule for buffers whose names begin with prefix. */
typedef struct tni_prefix_rule {
    char *prefix;
    tn_buffer_rule rule;
} tni_prefix_rule;

struct tn_data_parallel {
    tni_sync sync; /* first; its leaves are the parameters */
    tni_mpi_group group;
    bool grouped;     /* group was made */
    tn_device device; /* of all parameters and persistent buffers */
    tni_wire wire;    /* of the gradients */
    tn_module *model; /* one reference */
    tni_part *part;   /* of each parameter */
    tni_bucket *bucket;
    size_t n_buckets, bucket_capacity;
    size_t next;    /* bucket to be sent */
    bool begun;     /* in this pass: the others wait for our sums and our report */
    bool broken;    /* sums are on their way and nobody waits for them */
    bool apart;     /* a pass succeeded on other ranks and failed on this one */
    size_t n_bytes; /* of a rank's report, a multiple of 8 */
    char *reports;  /* (1 + size) reports: ours, then all ranks'; NULL before the first */
    bool reported;  /* they hold those of a pass */
    char *block;    /* room for the buffers that are sent */
    size_t block_capacity, mean_bytes, first_bytes; /* of it, by their rules */
    int64_t bucket_bytes;
    tn_dtype messages; /* TN_F32, or TN_BF16 */
    tn_buffer_rule rule;
    tni_prefix_rule *rules;
    size_t n_rules, rule_capacity;
    struct tni_shard *shards; /* optimizers whose state is sharded over its ranks */
};

/* ---- compare.c ------------------------------------------------------------------------------- */

/* An error on all ranks unless all have rank 0's options and its model's names, shapes, dtypes. */
tn_status tni_same_models(const char *function, const tn_data_parallel *p);
/* The persistent buffers. Current scope. */
tn_list *tni_persistent(tn_module *model);
/* The parameters, then the persistent buffers. Current scope. */
tn_list *tni_same_on_all(tn_module *model);
/* A hash of a list's names, shapes, dtypes and buffer rules. */
uint64_t tni_layout_hash(const tn_data_parallel *p, const tn_list *list);

/* ---- shard.c --------------------------------------------------------------------------------- */

/* p is freed: detaches its optimizers. */
void tni_shards_detach(tn_data_parallel *p);

/* ---- reduce.c -------------------------------------------------------------------------------- */

/* Makes the buckets, and sets the functions of p->sync. */
tn_status tni_buckets_make(tn_data_parallel *p);
void tni_buckets_free(tn_data_parallel *p);
/* TN_E_STATE after a pass that this rank did not end as the others did: p sends nothing more. */
tn_status tni_usable(const char *function, const tn_data_parallel *p);
/* A rank's report of the last pass; -1: ours, before it is sent. */
static inline tni_report *tni_report_of(const tn_data_parallel *p, int rank)
{
    return (tni_report *)(void *)(p->reports + (size_t)(1 + rank) * p->n_bytes);
}
