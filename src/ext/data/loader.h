/*
 * loader.h - what the files of a loader share: the order of an epoch's samples (sampler.c), batches
 * that threads make in advance (batches.c), and the loader around them (loader.c).
 */
#pragma once

#include <tenon/data.h>
#include <unistd.h>

#include "io/file.h"
#include "tensor/graphs.h"

#define TNI_LOADER_TENSORS 4

/* Steele et al., Fast splittable pseudorandom number generators (2014): its mix64. */
static inline uint64_t tni_mix(uint64_t seed, uint64_t number)
{
    uint64_t z = seed + (number + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Which samples an epoch has, in order. Checkpoints have the kind's number. */
typedef struct tni_sampler {
    enum { TNI_IN_ORDER, TNI_SHUFFLED, TNI_WEIGHTED, TNI_WITHOUT, TNI_CLASSES, TNI_MIXED } kind;
    int64_t rows, draws; /* of the data, of an epoch */
    tn_generator *generator;
    int64_t *order;          /* of one epoch; NULL: as they lie */
    int64_t epoch;           /* that order is of; -1: none */
    struct tni_row_key *key; /* what it is sorted by */
    double *weight;          /* or, with replacement, their running sums */
    int64_t *class, *sample; /* NULL: every row */
} tni_sampler;

tn_status tni_sampler_make(const char *f, tni_sampler *s, const tn_loader_options *o, int64_t size);
void tni_sampler_free(tni_sampler *s);
/* The order of an epoch, NULL: as they lie; by the epoch's seed. Cannot fail. */
const int64_t *tni_sampler_order(tni_sampler *s, uint64_t seed, int64_t epoch);

/* A batch that is being made, or waits. */
typedef struct tni_batch {
    int64_t epoch, position;
    int64_t first, n;  /* samples: the number in its epoch of the first one, how many */
    tn_tensor **field; /* one reference each. The block of these, in bytes: */
    size_t nbytes;
    tn_tensor **out;       /* n_out, of a batch that is ready: what is handed out */
    int64_t *index, *size; /* samples; the sizes of their fields, or NULL if none varies */
    /* under the lock: samples given to threads, finished, the first that failed (n: none) */
    int64_t taken, done, failed;
    bool ready; /* as a whole, or failed */
    tni_saved_error error;
    int64_t made; /* of a stream's last batch, or one after it: fewer than n */
} tni_batch;

/* What a thread that makes samples has for itself. */
typedef struct tni_worker {
    tn_loader *loader;
    tn_generator *generator;
    void **to; /* n_fields */
    pthread_t thread;
} tni_worker;

struct tn_loader {
    const tn_dataset *data;
    int n_in, n_out; /* tensors of a batch, before and after collate */
    /* of tn_loader_new, whose data set has no get; dense; handles that no module casts or moves */
    tn_tensor *tensor[TNI_LOADER_TENSORS];
    tn_field field[TNI_LOADER_TENSORS];
    tn_dataset tensors;
    int64_t rows, batches; /* of an epoch; a stream: -1, and more than can be */
    tn_loader_options o;   /* without its tensors */
    int64_t epoch, position;
    tni_sampler sampler;

    /* A ring of batches; [begin, end) are open. The owner opens and closes them. */
    tni_batch *batch;
    int64_t n_batches, begin, end;
    tni_worker *worker; /* without threads the first one is the owner's */
    int64_t n_workers, n_threads;
    pid_t pid; /* of the process that started the threads: a forked child has none */
    pthread_mutex_t lock;
    pthread_cond_t work, ready;
    int64_t busy; /* threads that make samples now */
    bool stopping;
    int64_t stream_epoch, stream_at; /* the stream's next sample: of the thread that is busy */
    bool stream_over;
    const tni_graphs *graphs; /* of the device; NULL: batches stay on the CPU */
};

tn_status tni_batches_make(tn_loader *l);
void tni_batches_free(tn_loader *l);
/* Returns when no thread works for the loader; drops all batches. */
void tni_batches_settle(tn_loader *l);
/* The batch at the loader's position, made. NULL: a failure. */
const tni_batch *tni_batches_get(tn_loader *l);
/* Drops the first one. */
void tni_batches_next(tn_loader *l);

/* Bytes of a field's values in a sample. */
static inline size_t tni_field_bytes(const tn_field *f)
{
    return (size_t)tni_shape_numel(&f->shape) * tn_dtype_size(f->dtype);
}
