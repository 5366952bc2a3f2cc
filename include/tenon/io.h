/**
 * tenon/io.h - files: weights (safetensors), checkpoints, data sets, loaders.
 */
#ifndef TENON_IO_H
#define TENON_IO_H

#include <tenon/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors: PyTorch and the Hugging Face tools read these files directly -------------------- */

/** Strings beside the tensors: keys and values, in order. */
typedef struct tn_metadata {
    int n;
    const char **key, **value;
} tn_metadata;

/**
 * Saves tn_state_dict(m), with format = pt in the metadata, for PyTorch's tools.
 *
 * Errors   TN_E_IO with path and reason: the old file, if any, is then unchanged and no temporary stays
 * The file appears whole or not at all: temporary in the same folder, fsync, rename, fsync of the folder.
 * A symbolic link is followed; only regular files are replaced.
 * Source   the safetensors format; Pillai et al. (2014) on replacing files
 */
TN_API tn_status tn_save(tn_module *m, const char *path);
/** Loads into m: strict, all or nothing (tn_load_state_dict). */
TN_API tn_status tn_load(tn_module *m, const char *path);
/** Any list of tensors, with metadata (NULL: none). Ties are written under every name. */
TN_API tn_status tn_save_tensors(const tn_list *list, const tn_metadata *metadata, const char *path);
/**
 * All tensors of a file, on the CPU, in the order of its header. metadata may be NULL.
 *
 * Errors   TN_E_IO; TN_E_FORMAT with path and what is wrong: nothing in the file is believed unchecked
 * Owner    list and strings: current scope. The tensors are copies: the file may be replaced at once
 * Limits   header 16 MiB, 65,536 tensors, names of 1 to 1,024 bytes, 8 axes
 */
TN_API tn_list *tn_load_tensors(const char *path, tn_metadata *metadata);
/** The value for a key, NULL (no message) when it is not there. */
TN_API const char *tn_metadata_get(const tn_metadata *metadata, const char *key);

/* ---- checkpoints: everything that training needs to go on bit for bit ------------------------------ */

/** What belongs to a run. NULL fields are left out; on loading, a part that is NULL here and present in
 *  the file is ignored, a part that is given here and missing there is an error. The library's default
 *  generator is always included. */
typedef struct tn_checkpoint {
    tn_module *model;
    tn_optim *optimizer;
    tn_scheduler *scheduler;
    struct tn_loader *loader; /* its position and generator */
    int64_t step;             /* written and read back */
    tn_metadata metadata;     /* the caller's own settings, written; on load: filled, current scope */
} tn_checkpoint;

/** One file, replaced as tn_save replaces. Metadata keys in "tenon." are the library's own. */
TN_API tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path);
/** All or nothing: nothing of c, nor the generator, changes when any part does not fit. */
TN_API tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path);
/** Only the metadata and the step, to build the model from: current scope. */
TN_API tn_status tn_checkpoint_peek(const char *path, tn_metadata *metadata, int64_t *step);

/* ---- data -------------------------------------------------------------------------------------- */

/**
 * An IDX file (the MNIST family), plain or .gz: u8 as u8, i8/i16/i32 as i32, f32, f64.
 *
 * Shapes   1 to 4 axes, as the file says
 * Errors   TN_E_FORMAT: not IDX, truncated, longer than it says, damaged (the checksum is checked)
 * Owner    current scope
 * Source   LeCun's description of the format; RFC 1952
 */
TN_API tn_tensor *tn_load_idx(const char *path);

/** A text as character ids, split in two. */
typedef struct tn_text {
    int64_t n_train, n_valid;   /* characters */
    const unsigned char *train, *valid; /* ids, 0 .. vocab-1 */
    int vocab;                  /* distinct bytes */
    unsigned char byte_of[256]; /* id -> byte, ascending bytes */
    int id_of[256];             /* byte -> id, -1 for bytes not in the text */
} tn_text;
/** Reads a file of at least one byte; the last floor(n valid_fraction) bytes (0 to 0.5) are for validation.
 *  Owner: yours, tn_text_free. */
TN_API tn_text *tn_text_load(const char *path, double valid_fraction);
TN_API void tn_text_free(tn_text *text);
/** B random windows of T + 1 characters: x [B, T], y [B, T] one further, i64, current scope. Draws from g as
 *  PyTorch's randint(n - T) does, n being the part's length. Errors: n <= T. */
TN_API tn_status tn_text_batch(const tn_text *text, bool valid, tn_generator *g, int64_t batch, int64_t context,
                               tn_tensor **x, tn_tensor **y);

/** Batches from an in-memory data set of several tensors with equal first sizes (inputs, labels). */
typedef struct tn_loader tn_loader;
typedef struct tn_loader_options {
    int64_t batch_size; /* 0: 1 */
    bool shuffle, drop_last;
    uint64_t seed; /* of the loader's own generator; an epoch's order depends on seed and epoch only */
    bool prefetch; /* a thread copies the next batch meanwhile: leave the tensors' values alone then */
} tn_loader_options;
/** Keeps its own references to the n <= 4 tensors (CPU, rank >= 1, equal first sizes). Owner: yours.
 *  Errors: no batch comes out (no rows, or fewer than batch_size with drop_last). */
TN_API tn_loader *tn_loader_new(tn_tensor *const *tensors, int n, tn_loader_options o);
TN_API void tn_loader_free(tn_loader *loader);
/** Fills out[0..n) with the next batch (current scope). Returns 1, 0 at the end of the epoch (the next
 *  call starts the next epoch), -1 on failure. */
TN_API int tn_loader_next(tn_loader *loader, tn_tensor **out);
TN_API int64_t tn_loader_batches(const tn_loader *loader); /* per epoch */
TN_API int64_t tn_loader_epoch(const tn_loader *loader);
TN_API int64_t tn_loader_position(const tn_loader *loader); /* batches consumed in this epoch */
/** Continues at a batch of an epoch, as after a resume. */
TN_API tn_status tn_loader_seek(tn_loader *loader, int64_t epoch, int64_t position);

/* ---- reports ------------------------------------------------------------------------------------ */

/** One line of a plot: n points. */
typedef struct tn_curve {
    const char *label;
    int64_t n;
    const double *x, *y;
} tn_curve;
/** Writes the curves as an SVG with axes and a legend. Points that are not finite break a line; texts may be
 *  NULL. The file is replaced as tn_save replaces. */
TN_API tn_status tn_plot_svg(const char *path, const char *title, const char *x_label, const char *y_label,
                             const tn_curve *curves, int n);

#ifdef __cplusplus
}
#endif
#endif
