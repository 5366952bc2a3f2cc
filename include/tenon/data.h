/**
 * tenon/data.h - data sets: IDX files, texts, a loader that makes batches of tensors, and measuring
 * over batches.
 */
#ifndef TENON_DATA_H
#define TENON_DATA_H

#include <tenon/module.h>

TN_BEGIN_C_

/**
 * An IDX file (the MNIST family), plain or .gz: u8 as u8, i8/i16/i32 as i32, f32, f64.
 *
 * Shapes   1 to 4 axes, as the file says
 * Errors   TN_E_FORMAT: not IDX, truncated, longer than it says, damaged (the checksum is checked),
 *          compressed more than tn_set_file_limits allows
 * Owner    current scope
 * Source   LeCun's description of the format; RFC 1952
 */
TN_API tn_tensor *tn_idx_load(const char *path);
TN_OLD_NAME_(tn_load_idx, tn_idx_load);

/**
 * A file of NumPy's with one array (.npy, versions 1 to 3), of any order of bytes and axes: float16
 * to 64, int32, int64, uint8 and bool as they are, int8, int16 and uint16 as i32, uint32 as i64.
 * Nothing in the file is executed.
 *
 * Shapes   up to TN_MAX_RANK axes, row-major
 * Errors   TN_E_FORMAT: not such a file, other dtypes (uint64, complex, texts, records, Python
 *          objects), fewer or more bytes than the header says
 * Owner    current scope
 * Source   NumPy's NEP 1 and numpy.lib.format. NumPy: numpy.load
 */
TN_API tn_tensor *tn_npy_load(const char *path);
/** Writes t, from any device and of any strides, as numpy.save does, byte for byte. The file is
 *  replaced whole, or not at all. Errors: bf16, which NumPy has not; TN_E_IO. NumPy: numpy.save */
TN_API TN_MUST_USE tn_status tn_npy_save(tn_tensor *t, const char *path);

/** A text as character ids, split in two. */
typedef struct tn_text {
    int64_t n_train, n_valid;           /* characters */
    const unsigned char *train, *valid; /* ids, 0 .. vocab-1 */
    int vocab;                          /* distinct bytes */
    unsigned char byte_of[256];         /* id -> byte, ascending bytes */
    int id_of[256];                     /* byte -> id, -1 for bytes not in the text */
} tn_text;
/** Reads a file of at least one byte; the last floor(n valid_fraction) bytes (0 to 0.5) are for
 *  validation. Owner: yours, tn_text_free. */
TN_API tn_text *tn_text_load(const char *path, double valid_fraction);
TN_API void tn_text_free(tn_text *text); /* frees it; NULL is ignored */
/** `batch` (B) random windows of `context` (T) + 1 characters: x [B, T], y [B, T] one further, i64,
 *  current scope. Draws from g as PyTorch's randint(n - T) does, n being the part's length. Errors:
 *  n <= T. */
TN_API TN_MUST_USE tn_status tn_text_batch(const tn_text *text, bool valid, tn_generator *g,
                                           int64_t batch, int64_t context, tn_tensor **x,
                                           tn_tensor **y);

/** Batches from an in-memory data set of several tensors with equal first sizes (inputs,
 *  labels). */
typedef struct tn_loader tn_loader;
/** zero fields: batches of 1, in order, the last one shorter */
typedef struct tn_loader_options {
    int64_t batch_size; /* 0: 1 */
    bool shuffle, drop_last;
    /* gives only one of `parts` equal parts of each batch: for ranks, .parts = tn_parallel_size(),
     * .part = tn_parallel_rank(). batch_size stays that of the whole batch. 0 parts: 1 */
    int64_t parts, part;
    /* of the loader's own generator; an epoch's order depends on seed and epoch only */
    uint64_t seed;
    /* a thread copies the next batch in advance: don't write to the tensors then. It pays for
     * batches of 50 kB and more: starting a thread takes longer than copying less. The next batch
     * is made in the same call, whose errors are those of both */
    bool prefetch;
} tn_loader_options;
/** A loader of n <= 4 tensors (CPU, rank >= 1, equal first sizes). It keeps their memory, not the
 *  handles: later changes of a handle, as when a module casts a buffer, change no batch. Values
 *  written to the tensors do show in batches, except for tensors that are not dense, which it
 *  copies. Owner: yours. Errors: there would be no batch (no rows, or fewer than batch_size with
 *  drop_last); a batch_size that is no multiple of parts; part outside [0, parts). fork: the
 *  child's copy continues at the parent's position. Parts: all have equally many rows, so up to
 *  parts - 1 rows at the end of an epoch are left out. A checkpoint fits any number of parts. */
TN_API tn_loader *tn_loader_new(tn_tensor *const *tensors, int n, tn_loader_options o);
/** Frees it, once no batch is being copied. Batches handed out stay valid. NULL is ignored. */
TN_API void tn_loader_free(tn_loader *loader);
/** Fills out[0..n) with the next batch (current scope); n as for tn_loader_new. Returns 1, or 0 at
 *  the end of the epoch (the next call starts the next epoch), or -1 on failure. */
TN_API TN_MUST_USE int tn_loader_next(tn_loader *loader, tn_tensor **out, int n);
TN_API int64_t tn_loader_batches(const tn_loader *loader); /* per epoch */
TN_API int64_t tn_loader_rows(const tn_loader *loader);    /* of the data; -1 for NULL */
/** Rows of a whole batch; -1 for NULL. */
TN_API int64_t tn_loader_batch_size(const tn_loader *loader);
/** Sets another size, at the beginning of an epoch. Errors: not at the beginning (position 0); what
 *  tn_loader_new would refuse. Then nothing changes. */
TN_API TN_MUST_USE tn_status tn_loader_set_batch_size(tn_loader *loader, int64_t batch_size);
TN_API int64_t tn_loader_epoch(const tn_loader *loader);    /* its number, from 0; -1 for NULL */
TN_API int64_t tn_loader_position(const tn_loader *loader); /* batches consumed in this epoch */
/** Continues at a batch of an epoch, as after a resume. */
TN_API TN_MUST_USE tn_status tn_loader_seek(tn_loader *loader, int64_t epoch, int64_t position);

/**
 * Measures the running means and variances of the batch norms of model that are in training again,
 * as those of all values that they see, each counted once: for an average of weights (tn_train,
 * this, tn_eval). PyTorch's update_bn counts batches once, whatever their sizes.
 *
 * next     calls model with the next batch, under TN_NO_GRAD in a scope of its own: 1; 0 when there
 *          is none, without a call; -1 and a message on failure
 * State    counters, other statistics and what no batch reached are as before
 * Errors   next NULL; those of next, and then nothing was measured; a batch in parts is open; no
 *          batch norm in training saw a batch
 */
TN_API TN_MUST_USE tn_status tn_measure_statistics(tn_module *model,
                                                   int (*next)(tn_module *model, void *user),
                                                   void *user);

TN_END_C_
#endif
