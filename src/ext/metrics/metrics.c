/*
 * metrics.c - metrics: a buffer of sums for each, moved by tensor ops.
 *
 * An update is one change in place of sums, after all ops that can fail: it is counted whole or not
 * at all, and nothing on the host depends on a value. A mean is sums [2], of what is averaged and
 * of its weights. The scores of an AUC move to the left, as new ones come in at the end.
 */
#include <tenon/metrics.h>
#include <tenon/parallel.h>

#include "autograd/ops/shared.h"
#include "io/file.h"
#include "nn/layers/layer.h"

typedef struct metric {
    tn_module base;
    tn_tensor *sums;
    tn_shape shape; /* of sums */
    tn_metric_kind kind;
    tn_metric_options o;
} metric;

static const char f[] = "tn_metric_update";

/* ---- updates --------------------------------------------------------------------------------- */

static tn_status add(metric *m, tn_tensor *sum, tn_tensor *n)
{
    tn_dtype dtype = m->sums->dtype;
    tn_tensor *pair[2] = { tn_to_dtype(sum, dtype), tn_to_dtype(n, dtype) };
    tn_tensor *more = tn_stack(pair, 2, 0);
    return more ? tn_add_(m->sums, more) : tni_pending();
}

/* ids as i64, 0 where they are ignored; refused outside of 0..classes-1 (0: any value). */
static tn_tensor *checked_ids(const char *what, tn_tensor *ids, tn_tensor *ignored, int64_t classes)
{
    ids = tn_masked_fill(tn_to_dtype(ids, TN_I64), ignored, 0);
    if (!ids || classes == 0) return ids;
    ids = tni_take_at(tni_iota(classes, tn_device_of(ids)), ids);
    return ids ? ids : tni_nothing(tni_error_prefix("%s: %s: ", f, what));
}

/* Targets as ids, and where they are ignored. */
static tn_tensor *targets(const metric *m, tn_tensor *y, int64_t classes, tn_tensor **ignored)
{
    y = tni_ids_arg(f, "target", y->dtype == TN_BOOL ? tn_to_dtype(y, TN_I64) : y);
    *ignored = y ? tni_ignored_rows(y, m->o.use_ignore_index ? m->o.ignore_index : -100) : NULL;
    return checked_ids("target", y, *ignored, classes);
}

/* The axis of classes in scores x, 0 for ids x; -1: not of y's form, or not k classes (0: any). */
static int class_axis(const tn_tensor *x, const tn_tensor *y, int64_t k)
{
    const bool scores = tn_dtype_is_float(x->dtype);
    const int axis = scores ? tni_class_axis(f, x, y) : 0;
    if (axis < 0 ||
        (scores ? k == 0 || x->shape.size[axis] == k : tni_shape_equal(&x->shape, &y->shape)))
        return axis;
    return tni_minus_one(tni_error(TN_E_SHAPE,
                                   "%s: prediction %s of %s, target %s: want scores of %" PRId64
                                   " classes, or ids of target's shape",
                                   f, tni_text(x), tn_dtype_name(x->dtype), tni_text(y), k));
}

static tn_status count_hits(metric *m, tn_tensor *x, tn_tensor *y)
{
    const bool scores = tn_dtype_is_float(x->dtype);
    const int axis = class_axis(x, y, 0);
    if (axis < 0) return tni_pending();
    if (!scores && m->o.top_k > 1)
        return tni_error(TN_E_DTYPE, "%s: ids and top_k %" PRId64 ": want scores", f, m->o.top_k);
    tn_tensor *ignored, *hit = NULL;
    y = targets(m, y, scores ? x->shape.size[axis] : 0, &ignored);
    if (y && m->o.top_k > 1) {
        tn_topk(x, m->o.top_k, axis, true, &hit);
        hit = tn_any(tn_eq(hit, tn_unsqueeze(y, axis)), &axis, 1, false);
    } else {
        hit = tn_eq(scores ? tn_argmax(x, axis, false) : x, y);
    }
    tn_tensor *counts = tn_logical_not(ignored);
    return add(m, tn_sum_all(tn_logical_and(hit, counts)), tn_sum_all(counts));
}

/* A count of target t and prediction p goes to K t + p, those of ignored rows behind them. */
static tn_status count_pairs(metric *m, tn_tensor *x, tn_tensor *y)
{
    const int64_t k = m->o.classes;
    const bool scores = tn_dtype_is_float(x->dtype);
    const int axis = class_axis(x, y, k);
    tn_tensor *ignored, *p;
    y = axis < 0 ? NULL : targets(m, y, k, &ignored);
    if (!y) return tni_pending();
    p = scores ? tn_argmax(x, axis, false) : checked_ids("prediction", x, ignored, k);
    tn_tensor *at = tn_add(tn_mul_scalar(y, (double)k), p);
    at = tn_reshape(tn_masked_fill(at, ignored, (double)(k * k)), TN_SHAPE(tn_numel(y)));
    tn_tensor *ones = tn_full_as(TN_SHAPE(tn_numel(y)), 1, TN_F64, tn_device_of(y));
    tn_tensor *sum = tn_full_as(TN_SHAPE(k * k + 1), 0, TN_F64, tn_device_of(y));
    sum = tn_narrow(tn_to_dtype(tn_scatter_add(sum, 0, at, ones), TN_I64), 0, 0, k * k);
    sum = tn_reshape(sum, m->shape);
    return sum ? tn_add_(m->sums, sum) : tni_pending();
}

static tn_status keep_scores(metric *m, tn_tensor *x, tn_tensor *y)
{
    const int64_t n = tn_numel(x);
    if (!tn_dtype_is_float(x->dtype) || !tni_shape_equal(&x->shape, &y->shape) || n > m->o.rows)
        return tni_error(TN_E_SHAPE,
                         "%s: prediction %s of %s, target %s: want scores and ids of one shape, at "
                         "most %" PRId64 " of them",
                         f, tni_text(x), tn_dtype_name(x->dtype), tni_text(y), m->o.rows);
    tn_tensor *ignored, *parts[2], *pair[2] = { x, targets(m, y, 2, &ignored) };
    pair[1] = tn_masked_fill(tn_add_scalar(pair[1], 1), ignored, 3);
    for (int i = 0; i < 2; i++) pair[i] = tn_reshape(tn_to_dtype(pair[i], TN_F64), TN_SHAPE(n));
    parts[0] = tn_narrow(m->sums, 1, n, m->shape.size[1] - n);
    parts[1] = tn_stack(pair, 2, 0);
    tn_tensor *next = tn_cat(parts, 2, 1);
    return next ? tn_copy_(m->sums, next) : tni_pending();
}

static tn_status add_errors(metric *m, tn_tensor *x, tn_tensor *y)
{
    if (!tni_shape_equal(&x->shape, &y->shape))
        return tni_error(TN_E_SHAPE, "%s: prediction %s, target %s: want one shape", f, tni_text(x),
                         tni_text(y));
    tn_tensor *d = tn_sub(tn_to_dtype(x, TN_F64), tn_to_dtype(y, TN_F64));
    d = m->kind == TN_MEAN_ABSOLUTE_ERROR ? tn_abs(d) : tn_square(d);
    return add(m, tn_sum_all(d), tn_sum_all(tn_ones_like(d)));
}

static tn_status add_surprise(metric *m, tn_tensor *x, tn_tensor *y)
{
    tn_tensor *ignored;
    if (!targets(m, y, 0, &ignored)) return tni_pending(); /* no probabilities */
    if (tn_dtype_size(x->dtype) < sizeof(float)) x = tn_to_dtype(x, TN_F32);
    tn_cross_entropy_options o = { .weight = TN_NONE, .reduction = TN_NO_REDUCTION };
    o.use_ignore_index = m->o.use_ignore_index, o.ignore_index = m->o.ignore_index;
    tn_tensor *rows = tn_cross_entropy_with(x, tn_to_dtype(y, TN_I64), o);
    return add(m, tn_sum_all(tn_to_dtype(rows, TN_F64)), tn_sum_all(tn_logical_not(ignored)));
}

static tn_status add_weighted(metric *m, tn_tensor *x, tn_tensor *w)
{
    if (tni_none(w)) w = tn_full_as(TN_SCALAR, 1, TN_F64, tn_device_of(x));
    if (w && !tni_broadcasts_to(&w->shape, &x->shape))
        return tni_error(TN_E_SHAPE, "%s: x %s, weights %s: want weights that broadcast to x", f,
                         tni_text(x), tni_text(w));
    w = tn_expand(tn_to_dtype(w, TN_F64), x->shape);
    return add(m, tn_sum_all(tn_mul(tn_to_dtype(x, TN_F64), w)), tn_sum_all(w));
}

/* ---- values ---------------------------------------------------------------------------------- */

static const void *on_cpu(tn_tensor *t)
{
    t = tn_to(t, tn_cpu());
    return t ? tn_data(t) : NULL;
}

/* Of two numbers; NaN for 0 / 0, and with a message when it failed. */
static double ratio_of(const tn_tensor *pair)
{
    double v[2];
    return tn_copy_out(pair, v, sizeof v, TN_F64) == TN_OK && v[1] != 0 ? v[0] / v[1] : NAN;
}

/* [3, K]: precision, recall, F1. of: how often each class is a target; both: and a prediction. */
static tn_tensor *scores_of(const metric *m, tn_tensor **of, tn_tensor **both)
{
    tn_tensor *n = tn_to_dtype(m->sums, TN_F64), *as = tn_sum(n, TN_AXES(0), false);
    *of = tn_sum(n, TN_AXES(1), false);
    *both = tn_add(as, *of);
    tn_tensor *all[3] = { as, *of, tn_mul_scalar(*both, 0.5) };
    return tn_div(tn_diagonal(n, 0, 0, 1), tn_clamp(tn_stack(all, 3, 0), 0.5, INFINITY));
}

static double score_of(const metric *m, tn_class_score what, tn_average average)
{
    tn_tensor *of, *w, *score = scores_of(m, &of, &w);
    score = tn_select(score, 0, average == TN_MICRO ? TN_RECALL : (int64_t)what);
    w = average == TN_MACRO ? tn_to_dtype(tn_gt_scalar(w, 0), TN_F64) : of;
    tn_tensor *pair[2] = { tn_sum_all(tn_mul(score, w)), tn_sum_all(w) };
    return ratio_of(tn_stack(pair, 2, 0));
}

/* Up the sorted scores, twice U (metrics.h) is counted in whole numbers. */
static double area_of(const metric *m)
{
    const int64_t n = m->shape.size[1];
    tn_tensor *order = tn_argsort(tn_select(m->sums, 0, 0), 0, false);
    const double *score = on_cpu(tn_index_select(m->sums, 1, order)), *label;
    const double oldest = score ? tn_at(m->sums, TN_INDEX(1, 0)) : NAN;
    if (isnan(oldest)) return NAN;
    if (oldest != 0)
        return tni_nan(tni_error(TN_E_STATE,
                                 "tn_metric_value: more scores than an AUC of %" PRId64 " rows has",
                                 m->o.rows));
    label = score + n;
    uint64_t twice = 0, seen[3] = { 0 };
    for (int64_t i = 0, end; i < n; i = end) {
        uint64_t equal[3] = { 0 };
        for (end = i; end == i || (end < n && score[end] == score[i]); end++)
            equal[label[end] == 1 ? 1 : label[end] == 2 ? 2 : 0]++;
        if (isnan(score[i]) && equal[1] + equal[2])
            return tni_nan(tni_error(TN_E_STATE, "tn_metric_value: a score of the AUC is NaN"));
        twice += equal[2] * (2 * seen[1] + equal[1]);
        for (int k = 0; k < 3; k++) seen[k] += equal[k];
    }
    return (double)twice / 2 / ((double)seen[1] * (double)seen[2]); /* 0 / 0: NaN */
}

static double value_of(const metric *m)
{
    if (m->kind == TN_CONFUSION) return score_of(m, TN_RECALL, TN_MICRO);
    if (m->kind == TN_AUC) return area_of(m);
    const double mean = ratio_of(m->sums);
    return m->kind == TN_ROOT_MEAN_SQUARED_ERROR ? sqrt(mean)
           : m->kind == TN_PERPLEXITY            ? exp(mean)
                                                 : mean;
}

/* The scores of all ranks, those that are none before the others. */
static tn_status gather_scores(metric *m)
{
    const int64_t n = m->shape.size[1], size = tn_parallel_size();
    tn_tensor *all = tn_full_as(TN_SHAPE(size, 2, n), 0, TN_F64, tn_device_of(m->sums));
    tn_tensor *mine = tn_select(all, 0, tn_parallel_rank());
    TNI_TRY(tn_parallel_agree(mine ? tn_copy_(mine, m->sums) : tni_pending()));
    TNI_TRY(tn_parallel_sum_(all));
    all = tn_reshape(tn_transpose(all, 0, 1), TN_SHAPE(2, size * n));
    tn_tensor *order = tn_argsort(tn_gt_scalar(tn_select(all, 0, 1), 0), 0, false);
    all = tn_narrow(tn_index_select(all, 1, order), 1, (size - 1) * n, n);
    return all ? tn_copy_(m->sums, all) : tni_pending();
}

/* ---- modules --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    tn_dtype dtype; /* of sums */
    tn_status (*update)(metric *m, tn_tensor *x, tn_tensor *y);
} kinds[] = {
    { "accuracy", TN_I64, count_hits },
    { "confusion", TN_I64, count_pairs },
    { "AUC", TN_F64, keep_scores },
    { "mean absolute error", TN_F64, add_errors },
    { "mean squared error", TN_F64, add_errors },
    { "root mean squared error", TN_F64, add_errors },
    { "perplexity", TN_F64, add_surprise },
    { "running mean", TN_F64, add_weighted },
};

static void describe(const tn_module *self, char *text, size_t size)
{
    const metric *m = (const metric *)self;
    snprintf(text, size, "%s, sums %s", kinds[m->kind].name, tni_shape_text(&m->shape));
    if (m->o.top_k > 1) tni_text_add(text, size, ", top %" PRId64, m->o.top_k);
    if (m->o.use_ignore_index) tni_text_add(text, size, ", without %" PRId64, m->o.ignore_index);
}

TNI_TYPE(metric, "Metric", metric, .describe = describe)

tn_module *tn_metric_new(tn_metric_kind kind, tn_metric_options o)
{
    if ((int)kind < 0 || kind > TN_RUNNING_MEAN ||
        (kind == TN_CONFUSION ? o.classes < 2 : o.classes != 0) ||
        (kind == TN_AUC ? o.rows < 1 || o.rows == INT64_MAX : o.rows != 0) ||
        (kind == TN_ACCURACY ? o.top_k < 0 : o.top_k != 0))
        return tni_fail(TN_E_INVALID,
                        "tn_metric_new: kind %d, classes %" PRId64 ", rows %" PRId64
                        ", top_k %" PRId64 ": want 2 classes or more of TN_CONFUSION, rows of "
                        "TN_AUC, perhaps top_k of TN_ACCURACY, else 0",
                        (int)kind, o.classes, o.rows, o.top_k);
    metric *m = tn_module_new(&metric_type);
    if (!m) return NULL;
    m->kind = kind;
    m->o = o;
    m->shape = kind == TN_CONFUSION ? TN_SHAPE(o.classes, o.classes)
               : kind == TN_AUC     ? TN_SHAPE(2, o.rows + 1)
                                    : TN_SHAPE(2);
    tn_register_buffer(&m->base, "sums", &m->sums,
                       tn_full_as(m->shape, 0, kinds[kind].dtype, tn_cpu()), TN_PERSISTENT);
    return tn_module_done(&m->base);
}

/* m if it is a metric, of TN_CONFUSION if asked, whose sums are of the kind that was made. */
static metric *metric_of(const char *function, tn_module *self, bool confusion)
{
    if (tni_expect_type(function, self, &metric_type, 1, "Metric") != TN_OK) return NULL;
    metric *m = (metric *)self;
    const tn_dtype dtype = kinds[m->kind].dtype;
    if (confusion && m->kind != TN_CONFUSION)
        return tni_fail(TN_E_INVALID, "%s: a metric of %s: want TN_CONFUSION", function,
                        kinds[m->kind].name);
    if (m->sums->dtype == dtype && tni_shape_equal(&m->sums->shape, &m->shape)) return m;
    return tni_fail(TN_E_STATE, "%s: the sums became %s of %s: want %s of %s", function,
                    tni_text(m->sums), tn_dtype_name(m->sums->dtype), tni_shape_text(&m->shape),
                    tn_dtype_name(dtype));
}

tn_status tn_metric_update(tn_module *self, tn_tensor *prediction, tn_tensor *target)
{
    TNI_HOLD_TRAPS;
    metric *m = metric_of(f, self, false);
    const bool alone = m && m->kind == TN_RUNNING_MEAN && target == TN_NONE;
    if (!m || !tni_present(f, "prediction", prediction) ||
        (!alone && !tni_present(f, "target", target)))
        return tni_pending();
    TN_SCOPE TN_NO_GRAD TNI_TRY(kinds[m->kind].update(m, prediction, target));
    return TN_OK;
}

tn_status tn_metric_reset(tn_module *self)
{
    metric *m = metric_of("tn_metric_reset", self, false);
    TN_NO_GRAD TNI_TRY(m ? tn_zero_(m->sums) : tni_pending());
    return TN_OK;
}

double tn_metric_value(tn_module *self)
{
    TNI_HOLD_TRAPS;
    const metric *m = metric_of("tn_metric_value", self, false);
    double value = NAN;
    TN_SCOPE TN_NO_GRAD if (m) value = value_of(m);
    return value;
}

tn_module *tn_metric_total(tn_module *self)
{
    TNI_HOLD_TRAPS;
    tn_module *total = metric_of("tn_metric_total", self, false) ? tn_module_clone(self) : NULL;
    char text[512] = "";
    tn_status status = tn_parallel_agree(total ? TN_OK : tni_pending());
    if (status == TN_OK)
        status = tn_parallel_same("metric", tni_module_text(total, text, sizeof text), sizeof text);
    if (status == TN_OK) {
        metric *m = (metric *)total;
        TN_SCOPE TN_NO_GRAD status =
            m->kind == TN_AUC ? gather_scores(m) : tn_parallel_sum_(m->sums);
        status = tn_parallel_agree(status);
    }
    if (status != TN_OK) tn_module_drop(total);
    return status == TN_OK ? total : NULL;
}

/* ---- what a confusion matrix tells ----------------------------------------------------------- */

double tn_confusion_score(tn_module *self, tn_class_score what, tn_average average)
{
    TNI_HOLD_TRAPS;
    if ((int)what < 0 || what > TN_F1 || (int)average < 0 || average > TN_WEIGHTED)
        return tni_nan(tni_error(TN_E_INVALID, "%s: %d, %d: want a tn_class_score and a tn_average",
                                 __func__, (int)what, (int)average));
    const metric *m = metric_of(__func__, self, true);
    double score = NAN;
    TN_SCOPE TN_NO_GRAD if (m) score = score_of(m, what, average);
    return score;
}

tn_tensor *tn_confusion_scores(tn_module *self)
{
    TNI_HOLD_TRAPS;
    const metric *m = metric_of("tn_confusion_scores", self, true);
    tn_tensor *scores = NULL, *of, *both;
    tn_scope scope = tn_scope_begin();
    TN_NO_GRAD if (m) scores = scores_of(m, &of, &both);
    return tni_scope_return(__func__, scope, scores);
}

static const char *name_of(const char *const *names, int64_t c)
{
    return names && names[c] ? names[c] : "";
}

static void write_text(tni_bytes *b, int64_t k, const int64_t *n, const double *score,
                       const char *const *names)
{
    int wide = 4;
    for (int64_t i = 0; i < k * k; i++) wide = TNI_MAX(wide, snprintf(NULL, 0, "%" PRId64, n[i]));
    tni_bytes_printf(b, "%*s", wide, "");
    for (int64_t c = 0; c < k; c++) tni_bytes_printf(b, " %*" PRId64, wide, c);
    tni_bytes_printf(b, "  precision recall     F1\n");
    for (int64_t t = 0; t < k; t++) {
        tni_bytes_printf(b, "%*" PRId64, wide, t);
        for (int64_t c = 0; c < k; c++) tni_bytes_printf(b, " %*" PRId64, wide, n[t * k + c]);
        tni_bytes_printf(b, "  %9.4f %6.4f %6.4f%s%s\n", score[t], score[k + t], score[2 * k + t],
                         *name_of(names, t) ? "  " : "", name_of(names, t));
    }
}

/* A text that ends at x, and n behind it unless that is below 0. */
static void put_label(tni_bytes *b, int x, int y, const char *more, const char *text, int64_t n)
{
    tni_bytes_printf(b, "<text x='%d' y='%d'%s>", x, y, more);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        tni_bytes_printf(b, strchr("<>&", c) ? "&#%d;" : "%c", c < ' ' ? '?' : c);
    }
    if (n >= 0) tni_bytes_printf(b, " %" PRId64, n);
    tni_bytes_printf(b, "</text>\n");
}

/* A cell is white for no row of its target, blue (#0072b2) for all. */
static void draw(tni_bytes *b, int k, const int64_t *n, const char *title, const char *const *names)
{
    const int cell = TNI_MAX(8, TNI_MIN(56, 900 / k)), every = (cell + 23) / cell, top = 72;
    size_t longest = 0;
    for (int c = 0; c < k; c++) longest = TNI_MAX(longest, strlen(name_of(names, c)));
    const int left = 144 + 7 * (int)TNI_MIN(longest, (size_t)200), end = left + cell * k;
    tni_bytes_printf(
        b,
        "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-size='12' "
        "font-family='sans-serif' text-anchor='end' fill='#333'>\n"
        "<rect width='100%%' height='100%%' fill='#fff'/>\n",
        end + 24, top + cell * k + 24);
    put_label(b, 24, 28, " font-size='16' style='text-anchor:start'", title ? title : "", -1);
    put_label(b, left - 8, top - 8, "", "target, by prediction", -1);
    for (int t = 0; t < k; t++, n += k) {
        const int y = top + cell * t, text = y + cell / 2 + 4;
        double of = 0;
        for (int c = 0; c < k; c++) of += (double)n[c];
        if (t % every == 0) put_label(b, left + cell * t + cell - 4, top - 8, "", "", t);
        if (t % every == 0) put_label(b, left - 8, text, "", name_of(names, t), t);
        for (int c = 0; c < k; c++) {
            const int x = left + cell * c;
            const double share = (double)n[c] / of;
            if (n[c] == 0) continue;
            tni_bytes_printf(b,
                             "<rect x='%d' y='%d' width='%d' height='%d' fill='#%02x%02x%02x'/>\n",
                             x, y, cell, cell, (unsigned)(255 - 255 * share),
                             (unsigned)(255 - 141 * share), (unsigned)(255 - 77 * share));
            if (snprintf(NULL, 0, "%" PRId64, n[c]) * 7 < cell)
                put_label(b, x + cell - 4, text, share > 0.5 ? " fill='#fff'" : "", "", n[c]);
        }
    }
    tni_bytes_printf(b, "</svg>\n");
}

/* One of them in b. */
static tn_status report(const char *function, tn_module *self, const char *title,
                        const char *const *names, bool drawn, tni_bytes *b)
{
    const metric *m = metric_of(function, self, true);
    if (!m) return tni_pending();
    bool read = false;
    TN_SCOPE TN_NO_GRAD
    {
        const double *score = on_cpu(tn_confusion_scores(self));
        const int64_t *n = score ? on_cpu(m->sums) : NULL;
        if (n && drawn) draw(b, (int)m->o.classes, n, title, names);
        if (n && !drawn) write_text(b, m->o.classes, n, score, names);
        read = n != NULL;
    }
    return b->failed ? tni_error(TN_E_NOMEM, "%s: out of memory", function)
           : read    ? TN_OK
                     : tni_pending();
}

tn_status tn_confusion_fprint(FILE *file, tn_module *self, const char *const *names)
{
    TNI_C_NUMBERS;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) b = { 0 };
    if (!file) return tni_null(__func__, "file", "a stream");
    TNI_TRY(report(__func__, self, NULL, names, false, &b));
    if (fwrite(b.data, 1, b.n, file) == b.n) return TN_OK;
    return tni_error(TN_E_IO, "%s: the stream takes no more", __func__);
}

tn_status tn_confusion_svg(tn_module *self, const char *path, const char *title,
                           const char *const *names)
{
    TNI_C_NUMBERS;
    tni_bytes TN_WHEN_LEFT(tni_bytes_free) b = { 0 };
    TNI_TRY(report(__func__, self, title, names, true, &b));
    return tni_file_replace(__func__, path, b.data, b.n);
}
