/*
 * parts.h - the objects of a run, between them and a checkpoint's file: model, optimizer,
 * scheduler, and further ones with names of their own.
 */
#pragma once

#include "io/io.h"
#include "nn/micro_batches.h"
#include "optim/serializer.h"

typedef struct tni_part {
    tn_checkpoint_part p; /* its name and its object */
    tn_list *file;        /* what a file holds for it; a module's values may be unread */
    tni_staged *staged;   /* from its list, unless the object is a module */
    tn_list *before;      /* a module's old values, once it has loaded */
} tni_part;

typedef struct tni_parts {
    int n;
    tni_part *part;
    size_t capacity;
    tni_map lists; /* name -> where its list is: of the parts, of gradients and of a batch */
    tn_list *grads, *batch;
    /* while loading: the parts' parameters and their new gradients; NULL: none */
    tn_list *leaves;
    tn_tensor **grad;
    size_t grad_capacity;
    tni_batch *begun; /* the batch in parts of the file; NULL: none */
    bool ends;        /* this thread's batch, whose buffers the file changes */
} tni_parts;

/* All given parts, the model first. A bad part is an error naming function. Free in every case. */
tn_status tni_parts_of(const char *function, const tn_checkpoint *c, tni_parts *parts);
/* The parameters (or buffers) of all parts, as "PART.NAME"; current scope. */
tn_list *tni_parts_tensors(const tni_parts *parts, bool buffers);
/* Adds the state of each part, with "NAME." before its names, waiting gradients and a batch. */
tn_status tni_parts_save(const char *function, const tni_parts *parts, tn_list *list);
/* Reads and compares everything, then loads the modules. On failure nothing has changed. */
tn_status tni_parts_load(tni_safetensors *file, tni_parts *parts);
/* After a load: puts the rest in place. */
void tni_parts_put(tni_parts *parts);
void tni_parts_free(tni_parts *parts);

#define TNI_BATCH ".batch"
/* What a batch in parts has so far: the same three times. (batch.c) */
tn_status tni_batch_save(const tni_parts *parts, tn_list *list);
tn_status tni_batch_read(const tni_input *in, tni_parts *parts);
void tni_batch_put(tni_parts *parts);
