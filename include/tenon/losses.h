/**
 * tenon/losses.h - loss functions.
 * What ops.h says at its head holds here.
 */
#ifndef TENON_LOSSES_H
#define TENON_LOSSES_H

#include <tenon/tensor.h>

TN_BEGIN_C_

/* ---- cross entropy --------------------------------------------------------------------------- */

/** What a loss does with its values: their mean, their sum, or nothing. */
typedef enum tn_reduction { TN_MEAN = 0, TN_SUM, TN_NO_REDUCTION } tn_reduction;

/** zero fields: no weights, no smoothing, the mean */
typedef struct tn_cross_entropy_options {
    tn_tensor *weight;      /* [C] per class; TN_NONE or a zero field: none (error.h: NULL) */
    double label_smoothing; /* in [0, 1] */
    bool use_ignore_index;  /* -100 is always ignored; with this, ignore_index too */
    int64_t ignore_index;   /* rows with this target count for nothing */
    tn_reduction reduction; /* TN_NO_REDUCTION: a value per row */
} tn_cross_entropy_options;

/**
 * Mean over rows of -log softmax(x)[target]: logits [N, C] or [N, C, d...], target [N] or [N,
 * d...], class ids of i64, i32 or u8. Also logits [..., C] with target [...] when target's shape
 * equals logits' without its LAST axis and not without axis 1 (language models): [B, T, V] with [B,
 * T]; and one row: [C] with a scalar target.
 *
 * Grad     (softmax - onehot) / rows, 0 on ignored rows             keeps logits, rows' max and sum
 * Errors   a target outside 0..C-1 and not ignored: TN_E_INDEX naming value and row, nothing is
 *          written
 * NaN      when no row is left to average (all ignored, or an empty batch)
 * Source   Goodfellow et al., Deep Learning (2016), section 6.2.2.3
 */
TN_API tn_tensor *tn_cross_entropy(tn_tensor *logits, tn_tensor *target);
/**
 * The same with options: per row (1 - e) w[t] (-log p[t]) + e / C sum_c w[c] (-log p[c]), e the
 * smoothing; the mean divides by the sum of w[t]. target may also be class probabilities of logits'
 * shape (classes on axis 1; differentiable; the mean divides by the number of rows; ignore_index is
 * then an error).
 *
 * Errors   a weight that requires grad: class weights get none
 * Source   Szegedy et al., Rethinking the Inception Architecture (2016), section 7 (smoothing)
 */
TN_API tn_tensor *tn_cross_entropy_with(tn_tensor *logits, tn_tensor *target,
                                        tn_cross_entropy_options o);
/**
 * tn_cross_entropy(tn_linear(x, weight, bias), target), some rows of the logits at a time: the
 * logits of a language model, its largest array, are never all in memory, nor is their gradient.
 * Forward computes the gradients too, so it takes longer, and backward takes next to no time.
 *
 * Shapes   x [..., in], weight [C, in], bias [C] or TN_NONE, target [...] as x without its last
 *          axis. C is the last axis of the logits, whatever the rank
 * Grad     as the two calls'                   keeps x, weight, bias and their gradients
 * Dtypes   in a region of autocast the products run in its dtype, and gradients are summed in f32;
 *          in f16 all logits are made at once. For bf16 and f16 the logits are f32, not rounded
 * Errors   as the two calls'
 * Source   Hsu et al., Liger Kernel (2024), section 3.2
 */
TN_API tn_tensor *tn_linear_cross_entropy(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                          tn_tensor *target);
/** The same with options. With TN_NO_REDUCTION, and for class probabilities as target ([..., C]),
 *  all logits are made at once. */
TN_API tn_tensor *tn_linear_cross_entropy_with(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                               tn_tensor *target, tn_cross_entropy_options o);
/** Mean over rows of -log_p[target], log_p [N, C, ...] being log-probabilities; options as above
 *  (label_smoothing must be 0). */
TN_API tn_tensor *tn_nll_loss(tn_tensor *log_p, tn_tensor *target, tn_cross_entropy_options o);

/* ---- losses over elements -------------------------------------------------------------------- */
/* x and target have one shape and one floating dtype (no broadcasting); both are differentiable.
 * TN_MEAN is over all elements. d is x - target. */

/** (x - target)^2 */
TN_API tn_tensor *tn_mse_loss(tn_tensor *x, tn_tensor *target, tn_reduction reduction);
/** |x - target|, slope 0 at 0 */
TN_API tn_tensor *tn_l1_loss(tn_tensor *x, tn_tensor *target, tn_reduction reduction);
/** 0.5 d^2 / beta below beta, |d| - 0.5 beta above; beta 0 is l1. Girshick, Fast R-CNN (2015), eq.
 *  3 */
TN_API tn_tensor *tn_smooth_l1_loss(tn_tensor *x, tn_tensor *target, double beta,
                                    tn_reduction reduction);
/** 0.5 d^2 below delta, delta (|d| - 0.5 delta) above. Huber (1964) */
TN_API tn_tensor *tn_huber_loss(tn_tensor *x, tn_tensor *target, double delta,
                                tn_reduction reduction);
/** t w softplus(-x) + (1 - t) softplus(x): cross entropy of sigmoid(x), stable for any x.
 *  pos_weight w (TN_NONE: 1) broadcasts to x and weighs positives. */
TN_API tn_tensor *tn_bce_with_logits(tn_tensor *x, tn_tensor *target, tn_tensor *pos_weight,
                                     tn_reduction reduction);
/** target (log target - log_p), 0 where target is 0, NaN where it is below; log_target: target is
 *  given as a log. batch_mean divides the sum by the first size (then reduction is ignored). */
TN_API tn_tensor *tn_kl_div(tn_tensor *log_p, tn_tensor *target, bool log_target, bool batch_mean,
                            tn_reduction reduction);

/* ---- losses of probabilities, counts, margins, sequences ------------------------------------- */
/* What is said above losses over elements holds here, too. */

/** (-t log p - (1 - t) log(1 - p)) weight, which broadcasts to p (TN_NONE: 1). Logarithms end at
 *  -100, slopes at 1e12. tn_bce_with_logits loses fewer digits. PyTorch: F.binary_cross_entropy;
 *  NaN for a p outside [0, 1] */
TN_API tn_tensor *tn_bce_loss(tn_tensor *p, tn_tensor *target, tn_tensor *weight,
                              tn_reduction reduction);
/** x - t log(x + eps), x the expected count; with log_input e^x - t x. full adds t log t - t +
 *  log(2 pi t) / 2 where t > 1, about log t!. PyTorch: F.poisson_nll_loss */
TN_API tn_tensor *tn_poisson_nll_loss(tn_tensor *x, tn_tensor *target, bool log_input, bool full,
                                      double eps, tn_reduction reduction);
/** (log v + (x - t)^2 / v) / 2, v = max(var, eps), whose slope is var's; var broadcasts to x. full
 *  adds log(2 pi) / 2. Errors: eps not above 0. Nix and Weigend (1994). PyTorch:
 *  F.gaussian_nll_loss; NaN for a negative var; a var for each row is [..., 1] */
TN_API tn_tensor *tn_gaussian_nll_loss(tn_tensor *x, tn_tensor *target, tn_tensor *var, bool full,
                                       double eps, tn_reduction reduction);
/** max(margin + |a - p| - |a - n|, 0), |.| the p-norm along the last axis of the difference plus
 *  eps; swap: the smaller of |a - n| and |p - n|. Errors: margin or p not above 0. Schroff et al.,
 *  FaceNet (2015), eq. 3; swap: Balntas et al. (2016). PyTorch: F.triplet_margin_loss */
TN_API tn_tensor *tn_triplet_margin_loss(tn_tensor *anchor, tn_tensor *positive,
                                         tn_tensor *negative, double margin, double p, double eps,
                                         bool swap, tn_reduction reduction);

/**
 * Connectionist temporal classification: minus the log of the probability that T steps, each a
 * class, spell the labels: equal neighbours are one, and then blanks are dropped.
 *
 * Shapes   log_p [T, N, C] or [T, C], as tn_log_softmax gives it; targets [N, S], or those of all
 *          sequences in a row; lengths [N]: how many steps and labels count. Targets and lengths
 *          i64, i32 or u8, of any device: the host reads them, so a captured step cannot
 * Range    inf where there are too few steps; with zero_infinity 0. TN_MEAN divides each by its
 *          number of labels, at least 1, before the mean
 * Grad     dloss (e^log_p - share), share the probability of the class given the labels: right only
 *          behind tn_log_softmax. 0 behind a sequence's steps. For a loss of inf NaN, with
 *          zero_infinity 0. No second derivative: an error        keeps log_p, [N, T, 2 S + 3]
 * Errors   a length below 0 or above T or S; a label outside 0..C-1
 * Source   Graves et al., Connectionist temporal classification (2006), sections 3 and 4
 * PyTorch: F.ctc_loss
 */
TN_API tn_tensor *tn_ctc_loss(tn_tensor *log_p, tn_tensor *targets, tn_tensor *input_lengths,
                              tn_tensor *target_lengths, int64_t blank, bool zero_infinity,
                              tn_reduction reduction);

TN_END_C_

#endif
