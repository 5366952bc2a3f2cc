/* io.h - what the files of this folder share. */
#pragma once

#include <tenon/io.h>

#include "io/safetensors.h"

/* Puts "FUNCTION: PATH: " before the pending message; returns its status. */
tn_status tni_in_file(const char *function, const char *path);

/* The current limits of readers. header_bytes and tensors are not zero. */
tn_file_limits tn_get_file_limits(void);
#define TNI_MOST_READ ": at most %" PRId64 " are read (tn_set_file_limits)" /* of a message */
/* The most bytes that a compressed file of that size may inflate to. */
int64_t tni_inflated_limit(int64_t file_bytes);
/* Whether a reader would accept that many tensors and state versions; safetensors files store
 * versions other than 1. (safetensors_write.c) */
tn_status tni_check_counts(const char *function, const tn_list *list, bool every_version);

/* Orders handles by their memory; 0: the same memory and, if shapes is set, the same shape and
 * strides; otherwise dense ones are compared by number of elements only. */
int tni_compare_places(const tn_tensor *s, const tn_tensor *t, bool shapes);

/* ---- tensors whose values are still in a file (unread.c) ------------------------------------- */

/* One whose values begin at byte `at`, as tenon keeps them; current scope. It keeps the file open,
 * and has shape, dtype and strides, as its views do; its elements must not be read. */
tn_tensor *tni_unread_tensor(tni_input *in, int64_t at, tn_shape shape, tn_dtype dtype);

/* tn_checkpoint_save under another function's name. */
tn_status tni_checkpoint_save(const char *function, const tn_checkpoint *c, const char *path);
/* Whether a file can be loaded; reads all of it. *error: the errno if it was not opened, or 0. */
tn_status tni_checkpoint_verify(const char *function, const char *path, int *error);

/* ---- dtypes of files (dtypes.c) -------------------------------------------------------------- */

typedef struct tni_file_dtype {
    const char *safetensors, *name, *storage; /* "I8", "int8", "Char"; NULL: not in that format */
    char letter;                              /* NumPy's, with the bytes behind it; 0: none */
    int bits;                                 /* of a value */
    int dtype; /* of the tensor that holds such values; -1: none does */
} tni_file_dtype;

/* Those that tenon has come first, in the order in which safetensors files have them; NULL from
 * their number on. */
const tni_file_dtype *tni_file_dtype_at(int i);
const tni_file_dtype *tni_file_dtype_of(tn_dtype dtype);
/* Whether a tensor holds such values as they are; the others of dtype >= 0 become wider. */
bool tni_file_dtype_kept(const tni_file_dtype *d);
/* Whether o (NULL: zeros) lets them be read. */
bool tni_file_dtype_wanted(const tni_file_dtype *d, const tn_load_options *o);
/* n values (big: the other order of bytes) to as many of d's dtype; from may be the end of to. */
void tni_widen(const tni_file_dtype *d, bool big, const unsigned char *from, char *to, size_t n);

/* ---- PyTorch's .pt files: a zip archive of a pickle and of the storages it names ------------- */

/* Ties share a storage under all their names; versions of the list are recorded. A path that ends
 * in .npz: an archive of arrays. (ext/pt/write.c) */
tn_status tni_pt_write(const char *function, const char *path, const tn_list *list);

/* A loader's state in a checkpoint. */
typedef struct tni_loader_state {
    int64_t epoch, position, seed, rows, batch_size, shuffle, drop_last;
} tni_loader_state;
#define TNI_LOADER_NUMBERS 7
extern const char *const tni_loader_names[TNI_LOADER_NUMBERS]; /* of the fields, in order */

void tni_loader_get(const tn_loader *loader, tni_loader_state *state);
/* TN_OK if set would restore the loader to that state; else an error saying what differs. */
tn_status tni_loader_fits(const tn_loader *loader, const tni_loader_state *state);
void tni_loader_set(tn_loader *loader, const tni_loader_state *state);
