/*
 * io.h - what the files of this folder share.
 */
#ifndef TNI_IO_H
#define TNI_IO_H

#include <tenon/io.h>

#include "io/safetensors.h"

/* The pending message again, with "FUNCTION: PATH: " in front; its status. */
tn_status tni_in_file(const char *function, const char *path);

/* The tensors of an open file whose names begin with prefix, without it; CPU, current scope. */
tn_list *tni_safetensors_list(tni_safetensors *file, const char *prefix);

/* What a checkpoint keeps of a loader. */
typedef struct tni_loader_state {
    int64_t epoch, position, seed, rows, batch_size, shuffle, drop_last;
} tni_loader_state;
#define TNI_LOADER_NUMBERS 7
extern const char *const tni_loader_names[TNI_LOADER_NUMBERS]; /* of the fields, in order */

void tni_loader_get(const tn_loader *loader, tni_loader_state *state);
/* TN_OK if set would make the loader go on where the state was taken; else what differs. */
tn_status tni_loader_fits(const tn_loader *loader, const tni_loader_state *state);
void tni_loader_set(tn_loader *loader, const tni_loader_state *state);

#endif
