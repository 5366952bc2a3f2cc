/*
 * checkpoint.h - between checkpoint.c and checkpoint_parts.c.
 */
#ifndef TNI_CHECKPOINT_H
#define TNI_CHECKPOINT_H

#include "io/io.h"
#include "optim/optim.h"

/* Adds a state under a part's name, with the versions it records; NULL passes its error on. */
tn_status tni_checkpoint_add(tn_list *list, const char *name, const tn_list *state);
/* The part of a file as a list; NULL with a message when the file has none of it. */
tn_list *tni_checkpoint_part(tni_safetensors *file, const char *prefix, bool may_be_empty);

/* The further parts of a checkpoint between reading and being in place. */
typedef struct tni_parts_staged {
    int n;
    struct {
        tn_list *list,
            *before; /* from the file; what a module or scaler held, once it has loaded */
        tni_optim_staged *optimizer;
        tni_scheduler_staged *scheduler;
    } * part;
} tni_parts_staged;

tn_status tni_parts_check(const char *function, const tn_checkpoint *c);
tn_status tni_parts_add(tn_list *list, const tn_checkpoint *c);
tn_status tni_parts_stage(tni_safetensors *file, const tn_checkpoint *c, tni_parts_staged *s);
/* Loads modules and scalers; on failure none has changed. undo takes a success back. */
tn_status tni_parts_load(tni_safetensors *file, const tn_checkpoint *c, tni_parts_staged *s);
void tni_parts_undo(const tn_checkpoint *c, const tni_parts_staged *s);
/* Puts the rest in place, or gives it up. In every case once. */
void tni_parts_end(const tn_checkpoint *c, tni_parts_staged *s, bool commit);

#endif
