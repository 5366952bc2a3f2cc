/**
 * tenon/metrics.h - how good a model is, over all batches of an epoch.
 *
 *     tn_module *accuracy = tn_metric_new(TN_ACCURACY, (tn_metric_options){ 0 });
 *     for each batch: TN_CHECK(tn_metric_update(accuracy, logits, labels));
 *     printf("%.2f %%\n", 100 * tn_metric_value(accuracy));
 *     TN_CHECK(tn_metric_reset(accuracy));
 *
 * A metric is a module without parameters; what it has seen is in its buffer "sums", counts as i64,
 * else f64. So tn_module_to moves it to the model's device, tn_module_clone copies it, and it can
 * be a part of a checkpoint (io.h), in the middle of an epoch too. Keep it beside the model, not in
 * it: tn_module_to_dtype would cast its sums, and tn_data_parallel would make them rank 0's.
 */
#ifndef TENON_METRICS_H
#define TENON_METRICS_H

#include <tenon/module.h>

TN_BEGIN_C_

/** What is measured, of a prediction and a target. Ids are classes as i64, i32, u8 or bool; scores
 *  are floats, logits or probabilities. Targets of -100 are ignored, as in tn_cross_entropy. */
typedef enum tn_metric_kind {
    /* The share of rows whose target is among the top_k highest scores; of equal scores that of the
     * lower id is higher, NaN is highest (tn_topk). Scores [N, C, ...] or [..., C] and ids, as in
     * tn_cross_entropy; with top_k 1 also ids of any value and ids, of one shape. PyTorch:
     * torchmetrics.Accuracy(average="micro"); sklearn.metrics.top_k_accuracy_score */
    TN_ACCURACY,
    /* How often each of `classes` targets (rows of sums, [K, K]) was predicted as each class. Its
     * value is the accuracy. Scores, of K classes, or ids, as above: tn_gt_scalar(logits, 0) gives
     * ids of two classes. PyTorch: torchmetrics.ConfusionMatrix */
    TN_CONFUSION,
    /* The area under the ROC curve: the share of pairs of a positive and a negative in which the
     * positive has the higher score; equal scores count half. Exact: all scores are kept. sums [2,
     * rows + 1]: scores, and 0 nothing, 1 negative, 2 positive, 3 ignored. NaN while there is but
     * one class. Scores [...] and ids of that shape, 0 or 1. Mann and Whitney (1947): U over the
     * number of pairs. PyTorch: torchmetrics.AUROC; sklearn.metrics.roc_auc_score */
    TN_AUC,
    /* The mean of |d| or d^2, d = prediction - target, or that mean's root; d is in f64. Of one
     * shape, any dtype. PyTorch: torchmetrics.MeanAbsoluteError, MeanSquaredError */
    TN_MEAN_ABSOLUTE_ERROR,
    TN_MEAN_SQUARED_ERROR,
    TN_ROOT_MEAN_SQUARED_ERROR,
    /* exp of the mean of -log softmax(logits)[target]; logits, computed at least in f32, and ids,
     * as in tn_cross_entropy. PyTorch: torchmetrics.text.Perplexity */
    TN_PERPLEXITY,
    /* sum(w x) / sum(w): any numbers x, as losses, and instead of a target their weights w, which
     * broadcast to x, or TN_NONE for 1. PyTorch: torchmetrics.MeanMetric */
    TN_RUNNING_MEAN
} tn_metric_kind;

/** zero fields: the best class alone, -100 is ignored */
typedef struct tn_metric_options {
    int64_t classes;       /* of TN_CONFUSION: at least 2 */
    int64_t rows;          /* of TN_AUC: so many scores at most, on all ranks together */
    int64_t top_k;         /* of TN_ACCURACY; 0: 1 */
    bool use_ignore_index; /* -100 is always ignored; with this, ignore_index too */
    int64_t ignore_index;  /* rows with this target count for nothing */
} tn_metric_options;

/** Makes one. Errors: classes, rows or top_k missing, or out of range, or given to another kind.
 *  Owner: yours, tn_module_drop. */
TN_API tn_module *tn_metric_new(tn_metric_kind kind, tn_metric_options o);
/**
 * Counts a batch, on the metric's device. Nothing is recorded for backward, and the host waits for
 * no device; it can be part of a captured step.
 *
 * Errors   before anything is counted: what does not fit the kind; sums that were cast or replaced;
 *          an id out of range: TN_E_INDEX. A GPU finds that later: the next read of a value
 *          fails, and what was counted is of no use: tn_metric_reset
 */
TN_API TN_MUST_USE tn_status tn_metric_update(tn_module *metric, tn_tensor *prediction,
                                              tn_tensor *target);
/** Forgets all, as new. */
TN_API TN_MUST_USE tn_status tn_metric_reset(tn_module *metric);
/** The value over all that was counted since: waits for the device. NaN without a message: there is
 *  nothing to average, or a NaN among it. Errors: NaN and a message; of an AUC also more than
 *  `rows` scores, or one that is NaN. PyTorch: compute() of a metric */
TN_API double tn_metric_value(tn_module *metric);
/**
 * A copy that has counted what the metrics of all ranks have; all ranks call it. Counts and AUCs
 * are exact; other sums are sums in f64, the same on all ranks. For a checkpoint in the middle of
 * an epoch save it; once it is loaded, rank 0 goes on and the others reset theirs.
 *
 * Errors   NULL, on all ranks: metrics that differ in kind or options; a failure on one rank
 */
TN_API tn_module *tn_metric_total(tn_module *metric);

/** Of a class: the target of `of` rows, predicted in `as` rows, and both in `hits`; 0 / 0 is 0. */
typedef enum tn_class_score {
    TN_PRECISION, /* hits / as */
    TN_RECALL,    /* hits / of; the accuracy within the class */
    TN_F1         /* 2 hits / (as + of) */
} tn_class_score;
/** How the scores of classes become one. */
typedef enum tn_average {
    TN_MACRO,   /* the mean over classes that occur, as targets or as predictions */
    TN_MICRO,   /* of all rows together: each of the three is then the accuracy */
    TN_WEIGHTED /* the mean, weighted by `of` */
} tn_average;
/** A score of a TN_CONFUSION. NaN as in tn_metric_value. PyTorch: torchmetrics.Precision, Recall,
 *  F1Score; sklearn.metrics.precision_recall_fscore_support */
TN_API double tn_confusion_score(tn_module *metric, tn_class_score what, tn_average average);
/** Precision, recall and F1 of each class: f64 [3, K], on its device, current scope. PyTorch:
 *  average="none" */
TN_API tn_tensor *tn_confusion_scores(tn_module *metric);
/** Writes the matrix as text, a row for each target, with precision, recall and F1. names: of the K
 *  classes; NULL, or a NULL among them, for none. PyTorch: sklearn.metrics.classification_report */
TN_API tn_status tn_confusion_fprint(FILE *file, tn_module *metric, const char *const *names);
/** Draws it as an SVG, shaded by the shares within a row; the file is replaced whole, or not at
 *  all. title: NULL for none. PyTorch: sklearn.metrics.ConfusionMatrixDisplay */
TN_API TN_MUST_USE tn_status tn_confusion_svg(tn_module *metric, const char *path,
                                              const char *title, const char *const *names);

TN_END_C_
#endif
