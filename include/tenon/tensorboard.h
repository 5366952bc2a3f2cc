/**
 * tenon/tensorboard.h - curves, histograms, pictures, texts, settings of a run, for TensorBoard.
 *
 * Each function writes its record to the end of the file before it returns: a program that ends in
 * any way loses nothing, and TensorBoard shows a point at once. Of a record that cannot be written
 * (TN_E_IO, naming the file: the disk is full) nothing stays there, and later calls may succeed.
 * Threads and processes may have a log each; a log is for one thread at a time, and after fork for
 * the process that made it. Of several ranks the first alone should log.
 */
#ifndef TENON_TENSORBOARD_H
#define TENON_TENSORBOARD_H

#include <tenon/io.h>

TN_BEGIN_C_

/** A file that is being written. PyTorch: torch.utils.tensorboard.SummaryWriter */
typedef struct tn_tensorboard tn_tensorboard;
/** zero fields: the points of older files in the folder stay visible */
typedef struct tn_tensorboard_options {
    /* the first step after a resume: TensorBoard hides older points from there on. PyTorch:
     * purge_step */
    int64_t purge_step;
    bool use_purge_step; /* takes purge_step 0 as given: hides all older points */
} tn_tensorboard_options;

/** A new file in folder, which is made with those above it. A folder is a run: its files are read
 *  as one, by the time when they were made. Owner: yours, tn_tensorboard_free. Source: TensorFlow's
 *  TFRecord (length, CRC32C, data, CRC32C) and event.proto. Errors: TN_E_IO */
TN_API tn_tensorboard *tn_tensorboard_new(const char *folder, tn_tensorboard_options o);
TN_API void tn_tensorboard_free(tn_tensorboard *log); /* closes the file; NULL is ignored */

/** A point of the curve tag: "loss", "train/loss" in the group "train". Kept as f32, also NaN and
 *  infinity. Errors, here and below: log NULL; tag NULL, empty, above 1,024 bytes or not UTF-8;
 *  TN_E_STATE: another process made the log; TN_E_IO. PyTorch: SummaryWriter.add_scalar */
TN_API TN_MUST_USE tn_status tn_tensorboard_scalar(tn_tensorboard *log, const char *tag,
                                                   double value, int64_t step);
/**
 * How the values of x, of any shape, dtype and device, are distributed.
 *
 * Range    buckets between 0 and +-1e-12 1.1^k up to 9.9e19, TensorFlow's; the outermost hold what
 *          lies beyond. NaN and infinity are in no bucket and no sum: if there are any, the curve
 *          TAG/nonfinite has their number, and a histogram is written only if there are others
 * Errors   TN_E_SHAPE: no elements
 * Source   PyTorch: SummaryWriter.add_histogram with its default buckets
 */
TN_API TN_MUST_USE tn_status tn_tensorboard_histogram(tn_tensorboard *log, const char *tag,
                                                      tn_tensor *x, int64_t step);
/**
 * A picture, as PNG.
 *
 * Shapes   x [H, W] or [C, H, W], C 1 (grey), 3 (RGB) or 4 (RGB, opacity); 1 to 2^30 values
 * Range    u8 as it is; floating trunc(255 x), x clipped to 0..1, NaN as 0
 * Errors   TN_E_SHAPE; TN_E_DTYPE: neither u8 nor floating
 * Source   ISO/IEC 15948 (PNG). PyTorch: SummaryWriter.add_image
 */
TN_API TN_MUST_USE tn_status tn_tensorboard_image(tn_tensorboard *log, const char *tag,
                                                  tn_tensor *x, int64_t step);
/** A text, shown as Markdown. Errors: text NULL, empty, above 2^30 bytes, not UTF-8. PyTorch:
 *  SummaryWriter.add_text */
TN_API TN_MUST_USE tn_status tn_tensorboard_text(tn_tensorboard *log, const char *tag,
                                                 const char *text, int64_t step);
/** The settings of a run, once: values that are finite decimal numbers become numbers. The tab
 *  HPARAMS shows them beside the last values of the run's curves. Errors: hparams NULL; names as
 *  tags; values NULL, above 2^30 bytes, not UTF-8. PyTorch: add_hparams, which makes its own run */
TN_API TN_MUST_USE tn_status tn_tensorboard_hparams(tn_tensorboard *log,
                                                    const tn_metadata *hparams);

TN_END_C_
#endif
