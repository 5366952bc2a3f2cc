/*
 * parts.h - what a run consists of: its model, optimizer and scheduler, and further ones under
 * names of their own; between a checkpoint's file and the objects.
 */
#ifndef TNI_PARTS_H
#define TNI_PARTS_H

#include "io/io.h"
#include "optim/form.h"

typedef struct tni_part {
    tn_checkpoint_part p; /* its name and the one object */
    tn_list *list;        /* from the file */
    tni_staged *staged;   /* of it, unless the object is a module */
    tn_list *before;      /* what a module held, once it has loaded */
} tni_part;

typedef struct tni_parts {
    int n;
    tni_part *part;
    size_t capacity;
} tni_parts;

/* All that are given, the model first. What is wrong with them is an error of function. Free in
 * every case. */
tn_status tni_parts_of(const char *function, const tn_checkpoint *c, tni_parts *parts);
/* Adds the state of each, "NAME." before its names. */
tn_status tni_parts_save(const tni_parts *parts, tn_list *list);
/* Reads all and compares, then loads the modules. On failure nothing has changed. */
tn_status tni_parts_load(tni_safetensors *file, tni_parts *parts);
/* After a load: puts the rest in place. */
void tni_parts_put(tni_parts *parts);
void tni_parts_free(tni_parts *parts);

#endif
