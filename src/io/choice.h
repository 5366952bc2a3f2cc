/* choice.h - what of a file is read, and what became of the rest (load.c). */
#pragma once

#include "io/io.h"

typedef struct tni_choice {
    tn_load_options o;
    tni_bytes taken; /* which part was chosen without being asked for */
    tni_bytes left;  /* names of what was left out, and why */
    int n_left;
    bool picked;  /* the reader has taken o.key's part; else it is taken of the list, by names */
    bool shard;   /* it is one of the files that an index names */
    bool weights; /* for a module: a checkpoint of tenon's is refused without a key */
} tni_choice;

/* The tensors of an open file, unread where that is possible, under all their names, and its state
 * versions; choice NULL: all of it. Current scope. (safetensors_list.c) */
tn_list *tni_safetensors_list(tni_safetensors *file, tni_choice *choice);
/* A tensor that tenon does not hold, being `what`: noted with skip_foreign, else an error.
 * d: its dtype, NULL: something else is the matter. */
tn_status tni_leave_out(tni_choice *c, const tni_input *in, const char *name, const char *what,
                        const tni_file_dtype *d);

/* Whether o.key is of another part than the name. */
bool tni_outside(const tni_choice *c, const char *name);
TNI_SHARED bool tni_ends_in(const char *path, const char *end);
/* The tensors of an archive of .npy entries, by their names without the ending. (ext/pt/npy.c) */
struct tni_zip;
tn_list *tni_npz_list(const struct tni_zip *zip, tni_choice *c);
/* Writes such an archive, stored, as numpy.savez does. */
tn_status tni_npz_write(const char *function, const char *path, const tn_list *list);
/* Of a PyTorch file, or an .npz; metadata may be NULL. (ext/pt/read.c) */
tn_list *tni_pt_list(const char *function, const char *path, tni_choice *c, tn_metadata *metadata);
