/**
 * tenon/data.h - files of arrays, tables and texts, data sets of your own, a loader that makes
 * batches, and statistics of batch norms measured over batches.
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

/**
 * Rows of numbers as they lie in a file from byte `skip` on: tn_raw_map("data.bin", 0,
 * TN_SHAPE(3073), TN_U8) of records of 3,073 bytes. Nothing is read until a value is looked at, so
 * a loader takes rows of files that are larger than memory. What is written stays in memory.
 *
 * Shapes   row -> [rows, row]
 * Errors   TN_E_FORMAT: no row, or a part of one at the end; TN_E_INVALID: skip is no multiple of
 *          the dtype's size; bool, whose bytes nobody has checked
 * Limits   a file that is cut short meanwhile ends the process (SIGBUS)
 * Owner    current scope, or a loader's. Source: NumPy: numpy.memmap
 */
TN_API tn_tensor *tn_raw_map(const char *path, int64_t skip, tn_shape row, tn_dtype dtype);
/** The array of a .npy file in this way, if it is little-endian, row-major and of a dtype of
 *  tenon's but bool. NumPy: numpy.load(path, mmap_mode="c") */
TN_API tn_tensor *tn_npy_map(const char *path);

/** A column of a table. */
typedef struct tn_column {
    const char *name;           /* "" without a header */
    tn_tensor *values;          /* [rows], i64, f32 or f64; NULL: left out. The table's */
    int64_t n_classes;          /* of texts: */
    const char *const *classes; /* what their numbers stand for, ascending bytes */
} tn_column;
/** A file of comma-separated values as columns. */
typedef struct tn_csv {
    int64_t rows;            /* without the header */
    int n_columns;           /* of the header */
    const tn_column *column; /* n_columns, in the file's order */
} tn_csv;
/** zero fields: commas, a header, columns of the kinds that their values have */
typedef struct tn_csv_options {
    char separator; /* 0: ',' */
    bool no_header; /* the first line is a row */
    /* a letter for each column: i (i64), d (f64), f (f32), t (texts, as classes), - (left out), ?:
     * i if all values are integers, d if all are numbers or missing, else t. NULL: all ? */
    const char *types;
    const char *missing; /* also means missing, as an empty field does: "NA". NULL: none */
} tn_csv_options;
/**
 * Reads a table: RFC 4180, lines that end in LF, CRLF or CR, UTF-8 with or without BOM. Missing
 * numbers are NaN, missing texts -1. Numbers are read exactly, whatever the locale.
 *
 * Errors   TN_E_FORMAT, naming line and column: no number, or no integer, where one is wanted; too
 *          many fields, or few; quotes that do not match; no rows. TN_E_INVALID: types or separator
 * Owner    yours, tn_csv_free
 * Source   pandas: pandas.read_csv, which knows more signs for missing ones, and Categorical
 */
TN_API tn_csv *tn_csv_load(const char *path, tn_csv_options o);
TN_API void tn_csv_free(tn_csv *csv); /* frees it; NULL is ignored */

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
 *  current scope. Draws from g as PyTorch's randint(n - T), of n in the part. Errors: n <= T. */
TN_API TN_MUST_USE tn_status tn_text_batch(const tn_text *text, bool valid, tn_generator *g,
                                           int64_t batch, int64_t context, tn_tensor **x,
                                           tn_tensor **y);

/* ---- data sets ------------------------------------------------------------------------------- */

/** One of the tensors of a sample. */
typedef struct tn_field {
    const char *name; /* in messages; may be NULL */
    tn_dtype dtype;   /* any */
    tn_shape shape;   /* of one sample */
    bool varies;      /* the first size differs from sample to sample; the shape has the largest */
} tn_field;

/** A sample that a data set's get makes. Not valid after get returns. */
typedef struct tn_sample {
    int64_t index, epoch;    /* which one, in the loader's epoch */
    void *const *to;         /* each field's memory, for its values in row-major order */
    int64_t *size;           /* of each field: to be set where it varies. NULL: none does */
    tn_generator *generator; /* the sample's own */
    bool end;                /* a stream sets it: there is no such sample, nor one after it */
} tn_sample;

/**
 * A data set of yours, of any size: how many samples, what is in one, a function that makes it.
 *
 *     static const tn_field fields[] = { { "x", TN_F32, { 1, { 3 } } } };
 *     tn_dataset d = { .length = 100, .fields = fields, .n_fields = 1, .get = get };
 *
 * get      fills s->to, all of it, and returns TN_OK; on failure another status, after tn_fail with
 *          a message. It runs in a scope of its own, without recording
 * Threads  with workers several threads call get at once, each for another sample: it must not
 *          change what they share, without a lock of yours
 * Random   numbers from s->generator depend on nothing but the loader's seed, the epoch and the
 *          sample: its index or, drawn with replacement, its place in the epoch
 * Stream   length -1: get is called for index 0, 1, 2, ... in order, by one thread at a time, and
 *          with index 0 again when it has to begin anew
 * Owner    yours; it must live as long as its loaders
 * Source   PyTorch's torch.utils.data.Dataset, and IterableDataset for a stream
 */
typedef struct tn_dataset {
    const char *name; /* in messages; may be NULL */
    int64_t length;   /* samples; -1: a stream */
    const tn_field *fields;
    int n_fields;
    tn_status (*get)(const struct tn_dataset *d, tn_sample *s);
    void *user; /* yours */
} tn_dataset;

/* ---- loaders --------------------------------------------------------------------------------- */

/** Batches from a data set. */
typedef struct tn_loader tn_loader;
/** zero fields: batches of 1, in order, the last one shorter */
typedef struct tn_loader_options {
    int64_t batch_size; /* 0: 1 */
    bool shuffle, drop_last;
    /* gives only one of `parts` equal parts of each batch: for ranks, .parts = tn_parallel_size(),
     * .part = tn_parallel_rank(). batch_size stays that of the whole batch. 0 parts: 1 */
    int64_t parts, part;
    uint64_t seed; /* of the loader's own generators; an epoch depends on seed and epoch only */
    /* one worker, if none are asked for, and one batch ahead: pays for batches of 50 kB and more.
     * Don't write to the loader's tensors with workers */
    bool prefetch;
    /* threads that make samples in advance, `ahead` batches (0: 2) beyond the current one, while
     * you train on that. 0: samples are made in tn_loader_next */
    int64_t workers, ahead;
    /* integers: an epoch has these samples (PyTorch's Subset); NULL: all. Parts of tn_randperm(n)
     * are a random split of the data. Values are copied, here and below */
    tn_tensor *samples;
    /* floats, one for each of them, in proportion to which they are drawn (WeightedRandomSampler).
     * One may come several times, without_replacement at most once in an epoch */
    tn_tensor *weights;
    bool without_replacement; /* of weights */
    int64_t draws;            /* of an epoch; 0: as many as there are */
    /* integers, one for each: a batch has its share of each class, in order or with shuffle. Of a
     * class of n, the first k samples of an epoch of N have k n / N where that is a whole number */
    tn_tensor *classes;
    double pad; /* fills up a field that varies to the longest of its batch */
    /* makes other tensors of a batch, a worker ahead of time: `out`, n_out of them, on the CPU, of
     * `in`, which are what would come without it. Fails as get does (PyTorch: collate_fn) */
    tn_status (*collate)(const tn_dataset *d, tn_tensor *const *in, tn_tensor **out);
    int n_out; /* of them */
    /* where batches come. On a GPU: prefetch, two ahead, and the next one is copied there while you
     * train on this one, by a stream of its own */
    tn_device device;
} tn_loader_options;
/**
 * A loader of a data set, as tn_loader_new's is of tensors: tensor k is [rows, sizes of field k];
 * after the fields come the sizes of each that varies, i64 [rows]. Batches are the same bit for bit
 * for any number of workers and after a resume.
 *
 * Failures  of get come at tn_loader_next, when their batch is due, and name the sample. The next
 *           call tries again; tn_loader_seek passes over
 * Streams   have an unknown number of batches (-1); tn_loader_seek, and a checkpoint, read and drop
 *           what lies before
 * fork      the child starts workers of its own; get may have stopped anywhere in the parent's
 * Errors    of tn_loader_new; get NULL; a field without dtype and shape; samples, weights
 *           or classes of other forms, or of no use; of a stream another order than its own
 * Owner     yours, tn_loader_free. Source: PyTorch's torch.utils.data.DataLoader
 */
TN_API tn_loader *tn_loader_from(const tn_dataset *d, tn_loader_options o);
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
/** Fills out[0..n) with the next batch (current scope); n: its fields and, once more, those that
 *  vary, or n_out. 1; 0 at the end of an epoch (the next call starts the next one); -1: failed. */
TN_API TN_MUST_USE int tn_loader_next(tn_loader *loader, tn_tensor **out, int n);
TN_API int64_t tn_loader_batches(const tn_loader *loader); /* per epoch */
TN_API int64_t tn_loader_rows(const tn_loader *loader);    /* of an epoch; -1 for NULL */
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
 * State    counters, other statistics of our layers and what no batch reached are as before
 * Errors   next NULL; those of next, and then nothing was measured; a batch in parts is open; no
 *          batch norm in training saw a batch
 */
TN_API TN_MUST_USE tn_status tn_measure_statistics(tn_module *model,
                                                   int (*next)(tn_module *model, void *user),
                                                   void *user);

TN_END_C_
#endif
