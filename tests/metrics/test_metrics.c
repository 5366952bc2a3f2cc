/*
 * test_metrics.c - metrics against torchmetrics and scikit-learn (golden/metrics.safetensors, by
 * make_metrics.py), over several batches; what they refuse; their state in files, copies and casts.
 * On a device: cuda/test_cuda_train.c; over ranks: the mode metrics of parallel/driver.c.
 *
 * Seen to fail: in src/ext/metrics/metrics.c, macro averages over all classes; ignored rows
 * counted; pairs of equal scores counted whole; short logits not widened; a target not looked at;
 * an AUC without a look at its oldest column; sums of another shape or dtype taken; hit without a
 * value where tn_topk fails; b->failed unread.
 */
#include <locale.h>
#include <stdio.h>

#include "files.h"
#include "nn/boxes.h"
#include "scarce.h"

static tn_list *golden;

static tn_tensor *given(const char *name, const char *what)
{
    char path[64];
    if (!golden) golden = tn_load_tensors(golden_path("metrics.safetensors"), NULL);
    assert_made(golden);
    snprintf(path, sizeof path, "%s/%s", name, what);
    tn_tensor *t = tn_list_get(golden, path);
    assert_made(t);
    return t;
}

static void assert_number(double actual, double expected, double tolerance, const char *what)
{
    ck_assert_msg(isnan(expected) ? isnan(actual)
                                  : fabs(actual - expected) <= tolerance * fmax(1, fabs(expected)),
                  "%s is %.17g, not %.17g (%s)", what, actual, expected, tn_error());
}

static tn_module *metric(tn_metric_kind kind, tn_metric_options o)
{
    return owned(tn_metric_new(kind, o));
}

/* The rows of a golden case in pieces of n, as batches. */
static void feed(tn_module *m, const char *name, const char *target, int64_t n, tn_dtype dtype)
{
    tn_tensor *x = given(name, "x"), *y = target ? given(name, target) : TN_NONE;
    for (int64_t i = 0; i < tn_size(x, 0); i += n) {
        int64_t rows = tn_size(x, 0) - i < n ? tn_size(x, 0) - i : n;
        tn_tensor *part = tn_to_dtype(tn_narrow(x, 0, i, rows), dtype);
        assert_ok(tn_metric_update(m, part, target ? tn_narrow(y, 0, i, rows) : TN_NONE));
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int64_t classes, batch;
} cases[] = {
    { "plain", 5, 7 }, { "ignored", 5, 60 }, { "absent", 6, 1 },
    { "image", 3, 3 }, { "text", 4, 2 },
};

START_TEST(classes_as_the_others_have_them)
{
    static const char *const scores[] = { "precision", "recall", "f1" }, *const averages[] = {
        "macro", "micro", "weighted"
    };
    const char *name = cases[_i].name;
    const int64_t k = cases[_i].classes, n = cases[_i].batch;
    char what[32];
    for (int top = 1; top <= 3; top++) {
        tn_module *m = metric(TN_ACCURACY, (tn_metric_options){ .top_k = top });
        feed(m, name, "y", n, TN_F32);
        snprintf(what, sizeof what, "top_%d", top);
        double want = tn_item(given(name, top == 1 ? "accuracy" : what));
        assert_number(tn_metric_value(m), want, 1e-15, what);
    }
    tn_module *m = metric(TN_CONFUSION, (tn_metric_options){ .classes = k });
    feed(m, name, "y", n, TN_F64);
    assert_close(tn_to_dtype(tn_get_buffer(m, "sums"), TN_F64), given(name, "matrix"), 0, 0);
    assert_number(tn_metric_value(m), tn_item(given(name, "accuracy")), 1e-15, "accuracy");
    tn_tensor *each = tn_confusion_scores(m);
    for (int s = 0; s < 3; s++) {
        for (int a = 0; a < 3; a++) {
            snprintf(what, sizeof what, "%s/%s", scores[s], averages[a]);
            assert_number(tn_confusion_score(m, (tn_class_score)s, (tn_average)a),
                          tn_item(given(name, what)), 1e-14, what);
        }
        snprintf(what, sizeof what, "%s/none", scores[s]);
        assert_close(tn_select(each, 0, s), given(name, what), 1e-15, 0);
    }
    m = metric(TN_PERPLEXITY, (tn_metric_options){ 0 });
    feed(m, name, "y", n, TN_F64);
    assert_number(tn_metric_value(m), tn_item(given(name, "perplexity")), 1e-13, "perplexity");
    m = metric(TN_PERPLEXITY, (tn_metric_options){ 0 });
    feed(m, name, "y", n, TN_F32);
    assert_number(tn_metric_value(m), tn_item(given(name, "perplexity")), 1e-6,
                  "perplexity in f32");
}
END_TEST

START_TEST(areas_as_the_others_have_them)
{
    static const char *const names[] = { "auc_distinct", "auc_ties", "auc_reversed" };
    tn_module *exact = metric(TN_AUC, (tn_metric_options){ .rows = 80 });
    tn_module *roomy = metric(TN_AUC, (tn_metric_options){ .rows = 1000 });
    for (int i = 0; i < 3; i++) { /* each on its own, after a reset */
        feed(exact, names[i], "y", 9, TN_F32);
        feed(roomy, names[i], "y", 80, TN_F64);
        assert_number(tn_metric_value(exact), tn_item(given(names[i], "auc")), 1e-15, names[i]);
        assert_number(tn_metric_value(roomy), tn_metric_value(exact), 0, "with room");
        assert_ok(tn_metric_reset(exact));
        assert_ok(tn_metric_reset(roomy));
    }
}
END_TEST

START_TEST(means_as_the_others_have_them)
{
    static const char *const names[] = { "absolute", "squared", "root" };
    for (int i = 0; i < 3; i++) {
        tn_module *m =
            metric((tn_metric_kind)(TN_MEAN_ABSOLUTE_ERROR + i), (tn_metric_options){ 0 });
        feed(m, "errors", "y", 4, TN_F32);
        assert_number(tn_metric_value(m), tn_item(given("errors", names[i])), 1e-15, names[i]);
    }
    tn_module *m = metric(TN_RUNNING_MEAN, (tn_metric_options){ 0 });
    feed(m, "errors", "w", 5, TN_F32);
    assert_number(tn_metric_value(m), tn_item(given("errors", "mean")), 1e-15, "mean");
    assert_ok(tn_metric_reset(m));
    feed(m, "errors", NULL, 5, TN_F32); /* all weights 1 */
    tn_tensor *x = tn_to_dtype(given("errors", "x"), TN_F64);
    assert_number(tn_metric_value(m), tn_item(tn_mean_all(x)), 1e-15, "plain mean");
    assert_ok(tn_metric_reset(m)); /* losses of batches, weighted by their sizes */
    assert_ok(tn_metric_update(m, tn_scalar(2), tn_full_as(TN_SCALAR, 3, TN_I64, tn_cpu())));
    assert_ok(tn_metric_update(m, tn_scalar(6), tn_scalar(1)));
    assert_number(tn_metric_value(m), 3, 0, "of batches");
    tn_tensor *many = tn_ones(TN_SHAPE(2, 3)); /* a weight for each row */
    assert_ok(tn_metric_reset(m));
    assert_ok(tn_metric_update(m, many, tn_ones(TN_SHAPE(2, 1))));
    assert_values(tn_get_buffer(m, "sums"), 0, 6, 6);
}
END_TEST

/* A target 20 below the highest logit, whose probability is 0 in f16, and one whose surprise is
 * between the numbers of both. */
START_TEST(perplexity_of_short_floats)
{
    static const tn_dtype dtypes[] = { TN_F16, TN_BF16 };
    for (int i = 0; i < 2; i++) {
        tn_module *m = metric(TN_PERPLEXITY, (tn_metric_options){ 0 });
        tn_tensor *x = tn_from_floats((float[]){ 20, 0, 3, 1 }, TN_SHAPE(2, 2));
        tn_tensor *y = tn_from_ints((int64_t[]){ 1, 1 }, TN_SHAPE(2));
        assert_ok(tn_metric_update(m, tn_to_dtype(x, dtypes[i]), y));
        assert_number(tn_metric_value(m), exp((20 + 2 + log1p(exp(-2))) / 2), 1e-6, "perplexity");
    }
}
END_TEST

START_TEST(ids_in_place_of_scores)
{
    tn_tensor *p = tn_from_ints((int64_t[]){ 0, 1, 1, 2, 1 }, TN_SHAPE(5));
    tn_tensor *y = tn_from_ints((int64_t[]){ 0, 2, 1, 7, -100 }, TN_SHAPE(5));
    tn_metric_options o = { .classes = 3, .use_ignore_index = true, .ignore_index = 7 };
    tn_module *m = metric(TN_CONFUSION, o);
    assert_ok(tn_metric_update(m, p, y));
    assert_values(tn_get_buffer(m, "sums"), 0, 1, 0, 0, 0, 1, 0, 0, 1, 0);
    assert_ok(tn_metric_update(m, tn_to_dtype(p, TN_U8), tn_to_dtype(y, TN_I32)));
    assert_values(tn_get_buffer(m, "sums"), 0, 2, 0, 0, 0, 2, 0, 0, 2, 0);
    o.classes = 0;
    m = metric(TN_ACCURACY, o);
    assert_ok(tn_metric_update(m, p, y));
    assert_values(tn_get_buffer(m, "sums"), 0, 2, 3);
    m = metric(TN_CONFUSION, (tn_metric_options){ .classes = 2 }); /* by a threshold */
    tn_tensor *logits = tn_from_floats((float[]){ -1, 2, 0, 3 }, TN_SHAPE(2, 2));
    tn_tensor *yes = tn_from_ints((int64_t[]){ 0, 1, 1, 0 }, TN_SHAPE(2, 2));
    assert_ok(tn_metric_update(m, tn_gt_scalar(logits, 0), tn_to_dtype(yes, TN_BOOL)));
    assert_values(tn_get_buffer(m, "sums"), 0, 1, 1, 1, 1);
    assert_values(tn_select(tn_confusion_scores(m), 1, 1), 0, 0.5, 0.5, 0.5);
    m = metric(TN_ACCURACY, (tn_metric_options){ 0 });
    assert_ok(tn_metric_update(m, tn_gt_scalar(logits, 0), yes));
    assert_values(tn_get_buffer(m, "sums"), 0, 2, 4);
}
END_TEST

/* Of equal scores the class of the lower id is higher, by argmax and by topk. */
START_TEST(equal_scores_have_an_order)
{
    tn_tensor *x = tn_ones(TN_SHAPE(4, 4));
    tn_tensor *y = tn_from_ints((int64_t[]){ 0, 1, 2, 3 }, TN_SHAPE(4));
    for (int top = 1; top <= 4; top++) {
        tn_module *m = metric(TN_ACCURACY, (tn_metric_options){ .top_k = top });
        assert_ok(tn_metric_update(m, x, y));
        assert_number(tn_metric_value(m), top / 4.0, 0, "top");
        tn_tensor *third = tn_full_as(TN_SCALAR, 2, TN_I64, tn_cpu()); /* a row alone */
        assert_ok(tn_metric_update(m, tn_select(x, 0, 0), third));
        assert_number(tn_metric_value(m), (top + (top > 2)) / 5.0, 0, "top");
    }
    tn_module *m = metric(TN_CONFUSION, (tn_metric_options){ .classes = 4 });
    assert_ok(tn_metric_update(m, x, y));
    assert_ok(tn_metric_update(m, tn_select(x, 0, 0), tn_select(y, 0, 3)));
    assert_values(tn_select(tn_get_buffer(m, "sums"), 1, 0), 0, 1, 1, 1, 2);
}
END_TEST

START_TEST(nothing_to_average)
{
    static const tn_metric_options all[] = {
        [TN_CONFUSION] = { .classes = 2 }, [TN_AUC] = { .rows = 4 }, [TN_RUNNING_MEAN] = { 0 }
    };
    tn_tensor *none = tn_full_as(TN_SHAPE(0), 0, TN_I64, tn_cpu());
    tn_set_anomaly(TN_ANOMALY_ALL); /* which takes a NaN that an op makes for a mistake */
    for (int kind = 0; kind <= TN_RUNNING_MEAN; kind++) {
        tn_module *m = metric((tn_metric_kind)kind, all[kind]);
        assert_number(tn_metric_value(m), NAN, 0, "value");
        bool lines = kind == TN_AUC || (kind >= TN_MEAN_ABSOLUTE_ERROR && kind != TN_PERPLEXITY);
        tn_tensor *x = tn_zeros(lines ? TN_SHAPE(0) : TN_SHAPE(0, 2));
        assert_ok(tn_metric_update(m, x, kind == TN_RUNNING_MEAN ? TN_NONE : none));
        assert_number(tn_metric_value(m), NAN, 0, "value");
        ck_assert_int_eq(tn_error_status(), TN_OK);
    }
    tn_module *m = metric(TN_CONFUSION, (tn_metric_options){ .classes = 2 });
    for (int a = TN_MACRO; a <= TN_WEIGHTED; a++)
        assert_number(tn_confusion_score(m, TN_F1, (tn_average)a), NAN, 0, "F1");
    assert_values(tn_confusion_scores(m), 0, 0, 0, 0, 0, 0, 0);
    m = metric(TN_AUC, (tn_metric_options){ .rows = 4 }); /* one class alone */
    assert_ok(tn_metric_update(m, tn_ones(TN_SHAPE(2)),
                               tn_from_ints((int64_t[]){ 1, -100 }, TN_SHAPE(2))));
    assert_number(tn_metric_value(m), NAN, 0, "AUC");
    ck_assert_int_eq(tn_error_status(), TN_OK);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(options_that_do_not_fit)
{
    static const struct {
        tn_metric_kind kind;
        tn_metric_options o;
    } bad[] = {
        { TN_CONFUSION, { .classes = 1 } }, { TN_CONFUSION, { .classes = 2, .top_k = 2 } },
        { TN_ACCURACY, { .top_k = -1 } },   { TN_ACCURACY, { .classes = 3 } },
        { TN_AUC, { .rows = 0 } },          { TN_AUC, { .rows = INT64_MAX } },
        { TN_PERPLEXITY, { .rows = 1 } },   { (tn_metric_kind)8, { 0 } },
        { (tn_metric_kind)-1, { 0 } },
    };
    for (int i = 0; i < COUNT(bad); i++)
        assert_null(tn_metric_new(bad[i].kind, bad[i].o), TN_E_INVALID, "tn_metric_new: kind ");
    assert_null(tn_metric_new(TN_CONFUSION, (tn_metric_options){ .classes = INT64_MAX }),
                TN_E_SHAPE, "want at most");
}
END_TEST

static const int64_t ids[] = { 0, 1, 2, 1, 0, 2 };

START_TEST(bad_batches_change_nothing)
{
    tn_tensor *x = random_as(TN_SHAPE(6, 3), -1, 1, 1, TN_F32), *y = tn_from_ints(ids, TN_SHAPE(6));
    tn_tensor *high = tn_from_ints((int64_t[]){ 0, 1, 2, 3, 0, 0 }, TN_SHAPE(6));
    tn_tensor *low = tn_neg(y), *line = tn_zeros(TN_SHAPE(6)), *bits = tn_ge_scalar(y, 1);
    tn_module *m[] = {
        metric(TN_ACCURACY, (tn_metric_options){ .top_k = 2 }),
        metric(TN_CONFUSION, (tn_metric_options){ .classes = 3 }),
        metric(TN_AUC, (tn_metric_options){ .rows = 8 }),
        metric(TN_MEAN_SQUARED_ERROR, (tn_metric_options){ 0 }),
        metric(TN_PERPLEXITY, (tn_metric_options){ 0 }),
        metric(TN_RUNNING_MEAN, (tn_metric_options){ 0 }),
    };
    const struct {
        int of;
        tn_tensor *x, *y;
        tn_status status;
        const char *text;
    } bad[] = {
        { 0, x, high, TN_E_INDEX, "tn_metric_update: target: " },
        { 0, x, low, TN_E_INDEX, "-1" },
        { 0, x, tn_zeros(TN_SHAPE(6)), TN_E_DTYPE, "target [6] is f32: want u8, i32 or i64" },
        { 0, x, tn_narrow(y, 0, 0, 5), TN_E_SHAPE, "logits [6,3], target [5]: want target [6]" },
        { 0, y, y, TN_E_DTYPE, "ids and top_k 2: want scores" },
        { 0, tn_narrow(x, 1, 0, 1), tn_zeros_like(y), TN_E_INVALID, "tn_topk" },
        { 0, x, TN_NONE, TN_E_INVALID, "target" },
        { 0, NULL, y, TN_E_INVALID, "prediction" },
        { 1, x, high, TN_E_INDEX, "target: " },
        { 1, high, y, TN_E_INDEX, "prediction: " },
        { 1, low, y, TN_E_INDEX, "prediction: " },
        { 1, tn_narrow(x, 1, 0, 2), y, TN_E_SHAPE,
          "want scores of 3 classes, or ids of target's shape" },
        { 1, tn_narrow(y, 0, 0, 5), y, TN_E_SHAPE, "prediction [5] of i64, target [6]" },
        { 2, line, y, TN_E_INDEX, "target: " },
        { 2, y, y, TN_E_SHAPE, "prediction [6] of i64, target [6]: want scores and ids" },
        { 2, x, y, TN_E_SHAPE, "prediction [6,3]" },
        { 2, tn_zeros(TN_SHAPE(9)), tn_full_as(TN_SHAPE(9), 0, TN_I64, tn_cpu()), TN_E_SHAPE,
          "at most 8 of them" },
        { 3, x, y, TN_E_SHAPE, "prediction [6,3], target [6]: want one shape" },
        { 4, x, x, TN_E_DTYPE, "target [6,3] is f32" },
        { 4, x, high, TN_E_INDEX, "tn_cross_entropy" },
        { 4, y, y, TN_E_SHAPE, "tn_cross_entropy" },
        { 5, line, tn_zeros(TN_SHAPE(5)), TN_E_SHAPE, "x [6], weights [5]" },
        { 5, tn_scalar(1), line, TN_E_SHAPE, "x [], weights [6]" },
        { 5, TN_NONE, TN_NONE, TN_E_INVALID, "prediction" },
    };
    tn_tensor *good[][2] = {
        { x, y }, { x, y }, { line, bits }, { x, x }, { x, y }, { x, TN_NONE }
    };
    for (int i = 0; i < COUNT(m); i++) assert_ok(tn_metric_update(m[i], good[i][0], good[i][1]));
    for (int i = 0; i < COUNT(bad); i++) {
        uint64_t before = hash_of_module(m[bad[i].of]);
        tn_status status = tn_metric_update(m[bad[i].of], bad[i].x, bad[i].y);
        ck_assert_msg(status == bad[i].status && strstr(tn_error(), bad[i].text), "%d: %s: %s", i,
                      tn_status_name(status), tn_error());
        tn_error_clear();
        ck_assert_msg(hash_of_module(m[bad[i].of]) == before, "%d changed the metric", i);
    }
}
END_TEST

START_TEST(modules_that_are_no_metric)
{
    tn_module *relu = owned(tn_relu_new()), *m = metric(TN_ACCURACY, (tn_metric_options){ 0 });
    tn_tensor *x = tn_ones(TN_SHAPE(2, 2)), *y = tn_from_ints(ids, TN_SHAPE(2));
    assert_fails(tn_metric_update(relu, x, y), TN_E_INVALID, "want a Metric");
    assert_fails(tn_metric_reset(relu), TN_E_INVALID, "want a Metric");
    assert_fails(tn_metric_reset(NULL), TN_E_INVALID, "tn_metric_reset");
    ck_assert(isnan(tn_metric_value(relu)));
    assert_error(TN_E_INVALID, "want a Metric");
    assert_null(tn_metric_total(relu), TN_E_INVALID, "want a Metric");
    ck_assert(isnan(tn_confusion_score(m, TN_F1, TN_MACRO)));
    assert_error(TN_E_INVALID, "a metric of accuracy: want TN_CONFUSION");
    assert_null(tn_confusion_scores(m), TN_E_INVALID, "want TN_CONFUSION");
    assert_fails(tn_confusion_svg(m, "x.svg", NULL, NULL), TN_E_INVALID, "want TN_CONFUSION");
    assert_fails(tn_confusion_fprint(stdout, m, NULL), TN_E_INVALID, "want TN_CONFUSION");
    assert_fails(tn_confusion_fprint(NULL, m, NULL), TN_E_INVALID, "file is NULL");
    tn_module *c = metric(TN_CONFUSION, (tn_metric_options){ .classes = 2 });
    ck_assert(isnan(tn_confusion_score(c, (tn_class_score)3, TN_MACRO)));
    assert_error(TN_E_INVALID, "tn_confusion_score: 3");
    ck_assert(isnan(tn_confusion_score(c, TN_F1, (tn_average)-1)));
    assert_error(TN_E_INVALID, "tn_confusion_score: ");
}
END_TEST

START_TEST(sums_that_became_others)
{
    tn_module *m = metric(TN_RUNNING_MEAN, (tn_metric_options){ 0 });
    assert_ok(tn_module_to_dtype(m, TN_BF16));
    assert_fails(tn_metric_update(m, tn_ones(TN_SHAPE(2)), TN_NONE), TN_E_STATE,
                 "of bf16: want [2] of f64");
    m = metric(TN_CONFUSION, (tn_metric_options){ .classes = 9 });
    assert_ok(tn_module_set(m, "sums", tn_full_as(TN_SHAPE(2, 2), 0, TN_I64, tn_cpu())));
    assert_null(tn_confusion_scores(m), TN_E_STATE, "[2,2] of i64: want [9,9] of i64");
    assert_ok(tn_module_set(m, "sums", TN_NONE));
    ck_assert(isnan(tn_metric_value(m)));
    assert_error(TN_E_STATE, "tn_metric_value: ");
}
END_TEST

START_TEST(scores_that_have_no_area)
{
    tn_module *m = metric(TN_AUC, (tn_metric_options){ .rows = 3 });
    tn_tensor *x = tn_from_floats((float[]){ 1, NAN, 0 }, TN_SHAPE(3));
    assert_ok(tn_metric_update(m, x, tn_from_ints((int64_t[]){ 1, -100, 0 }, TN_SHAPE(3))));
    assert_number(tn_metric_value(m), 1, 0, "AUC"); /* NaN does not count */
    assert_ok(tn_metric_reset(m));
    assert_ok(tn_metric_update(m, x, tn_from_ints((int64_t[]){ 1, 0, 0 }, TN_SHAPE(3))));
    ck_assert(isnan(tn_metric_value(m)));
    assert_error(TN_E_STATE, "NaN");
    assert_ok(tn_metric_reset(m));
    for (int i = 0; i < 4; i++) {
        assert_number(tn_metric_value(m), i < 2 ? NAN : 1, 0, "AUC");
        ck_assert_int_eq(tn_error_status(), TN_OK);
        tn_tensor *y = tn_full_as(TN_SHAPE(1), i > 0, TN_I64, tn_cpu());
        assert_ok(tn_metric_update(m, tn_full(TN_SHAPE(1), i), y));
    }
    ck_assert(isnan(tn_metric_value(m)));
    assert_error(TN_E_STATE, "more scores than an AUC of 3 rows");
    assert_ok(tn_metric_reset(m));
    tn_tensor *ends = tn_from_floats((float[]){ -INFINITY, INFINITY, -0.0F }, TN_SHAPE(3));
    assert_ok(tn_metric_update(m, ends, tn_from_ints((int64_t[]){ 0, 1, 1 }, TN_SHAPE(3))));
    assert_number(tn_metric_value(m), 1, 0, "AUC");
}
END_TEST

/* ---- as modules ------------------------------------------------------------------------------ */

START_TEST(nothing_is_recorded)
{
    tn_tensor *x = with_grad(random_f64(TN_SHAPE(6), -1, 1, 1));
    tn_module *m = metric(TN_MEAN_SQUARED_ERROR, (tn_metric_options){ 0 });
    assert_ok(tn_metric_update(m, tn_mul_scalar(x, 2), tn_zeros_like(x)));
    ck_assert(!tn_requires_grad(tn_get_buffer(m, "sums")));
    ck_assert_int_eq(tn_parameters(m)->n, 0);
    ck_assert_int_eq(tn_buffers(m)->n, 1);
    tn_tensor *v = tn_detach(x);
    assert_number(tn_metric_value(m), 4 * tn_item(tn_mean_all(tn_square(v))), 1e-15, "in f64");
    assert_ok(tn_backward(tn_sum_all(x))); /* x is as it was */
}
END_TEST

START_TEST(autocast_changes_nothing)
{
    tn_metric_options o = { .classes = _i == TN_CONFUSION ? 5 : 0, .rows = _i == TN_AUC ? 80 : 0 };
    const bool numbers = _i == TN_RUNNING_MEAN || (_i > TN_AUC && _i < TN_PERPLEXITY);
    const char *name = _i == TN_AUC ? "auc_ties" : numbers ? "errors" : "ignored";
    tn_module *m = metric((tn_metric_kind)_i, o), *inside = metric((tn_metric_kind)_i, o);
    feed(m, name, "y", 7, TN_F32);
    TN_AUTOCAST(TN_BF16) feed(inside, name, "y", 7, TN_F32);
    ck_assert(hash_of_module(m) == hash_of_module(inside));
    ck_assert(!isnan(tn_metric_value(m)));
}
END_TEST

/* Counts and scores of an epoch's first half are saved, and the second half follows elsewhere. */
START_TEST(a_checkpoint_in_the_middle_of_an_epoch)
{
    static const tn_metric_kind kind[] = { TN_CONFUSION, TN_AUC, TN_PERPLEXITY };
    static const tn_metric_options o[] = { { .classes = 5 }, { .rows = 80 }, { 0 } };
    static const char *const data[] = { "plain", "auc_ties", "plain" };
    tn_module *whole[3], *first[3], *second[3];
    tn_checkpoint_part save[3], load[3];
    for (int i = 0; i < 3; i++) {
        tn_tensor *x = given(data[i], "x"), *y = given(data[i], "y");
        whole[i] = metric(kind[i], o[i]);
        first[i] = metric(kind[i], o[i]);
        second[i] = metric(kind[i], o[i]);
        feed(whole[i], data[i], "y", 30, TN_F32);
        assert_ok(tn_metric_update(first[i], tn_narrow(x, 0, 0, 30), tn_narrow(y, 0, 0, 30)));
        assert_ok(tn_metric_update(second[i], x, y)); /* which loading replaces */
        static const char *const names[] = { "matrix", "area", "surprise" };
        save[i] = (tn_checkpoint_part){ .name = names[i], .module = first[i] };
        load[i] = (tn_checkpoint_part){ .name = names[i], .module = second[i] };
    }
    const char *path = in_folder("half");
    assert_ok(tn_checkpoint_save(&(tn_checkpoint){ .parts = save, .n_parts = 3 }, path));
    tn_checkpoint c = { .parts = load, .n_parts = 3 };
    assert_ok(tn_checkpoint_load(&c, path));
    for (int i = 0; i < 3; i++) {
        tn_tensor *x = given(data[i], "x"), *y = given(data[i], "y");
        int64_t rest = tn_size(x, 0) - 30;
        ck_assert(hash_of_module(second[i]) == hash_of_module(first[i]));
        for (int64_t at = 30, n; rest > 0; at += n, rest -= n) {
            n = rest < 30 ? rest : 30;
            assert_ok(tn_metric_update(second[i], tn_narrow(x, 0, at, n), tn_narrow(y, 0, at, n)));
        }
        ck_assert(hash_of_module(second[i]) == hash_of_module(whole[i]));
        ck_assert(tn_metric_value(second[i]) == tn_metric_value(whole[i]));
    }
    tn_module *other = metric(TN_CONFUSION, (tn_metric_options){ .classes = 4 });
    load[0].module = other;
    assert_fails(tn_checkpoint_load(&c, path), TN_E_SHAPE, "sums");
}
END_TEST

START_TEST(copies_count_by_themselves)
{
    tn_module *m = metric(TN_AUC, (tn_metric_options){ .rows = 80 });
    feed(m, "auc_ties", "y", 80, TN_F32);
    double value = tn_metric_value(m);
    tn_module *copy = owned(tn_module_clone(m)), *total = owned(tn_metric_total(m));
    ck_assert(tn_metric_value(copy) == value && tn_metric_value(total) == value);
    ck_assert(hash_of_module(total) == hash_of_module(m)); /* one rank */
    assert_ok(tn_metric_reset(m));
    assert_number(tn_metric_value(m), NAN, 0, "after a reset");
    ck_assert(tn_metric_value(copy) == value && tn_metric_value(total) == value);
    feed(m, "auc_ties", "y", 7, TN_F32);
    ck_assert(tn_metric_value(m) == value);
    char text[256] = "";
    m->type->describe(m, text, sizeof text);
    ck_assert_str_eq(text, "AUC, sums [2,81]");
}
END_TEST

/* ---- text and drawing ------------------------------------------------------------------------ */

static tn_module *small(void)
{
    tn_module *m = metric(TN_CONFUSION, (tn_metric_options){ .classes = 3 });
    tn_tensor *y = tn_from_ints((int64_t[]){ 0, 0, 0, 0, 1, 1 }, TN_SHAPE(6));
    tn_tensor *p = tn_from_ints((int64_t[]){ 0, 0, 0, 1, 1, 1 }, TN_SHAPE(6));
    assert_ok(tn_metric_update(m, p, y));
    return m;
}

START_TEST(the_matrix_as_text)
{
    static const char *const names[] = { "T-shirt", NULL, "d\xc3\xa9j\xc3\xa0" };
    const char *path = in_folder("text");
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where there is one, its comma is not ours */
    assert_ok(tn_confusion_fprint(file, small(), names));
    assert_ok(tn_confusion_fprint(file, small(), NULL));
    fclose(file);
    size_t n;
    char *text = owned(read_bytes(path, &n));
    ck_assert_str_eq(text, "        0    1    2  precision recall     F1\n"
                           "   0    3    1    0     1.0000 0.7500 0.8571  T-shirt\n"
                           "   1    0    2    0     0.6667 1.0000 0.8000\n"
                           "   2    0    0    0     0.0000 0.0000 0.0000  d\xc3\xa9j\xc3\xa0\n"
                           "        0    1    2  precision recall     F1\n"
                           "   0    3    1    0     1.0000 0.7500 0.8571\n"
                           "   1    0    2    0     0.6667 1.0000 0.8000\n"
                           "   2    0    0    0     0.0000 0.0000 0.0000\n");
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    setvbuf(full, NULL, _IONBF, 0);
    assert_fails(tn_confusion_fprint(full, small(), NULL), TN_E_IO, "tn_confusion_fprint: ");
    fclose(full);
}
END_TEST

static int count_of(const char *text, const char *piece)
{
    int n = 0;
    for (; (text = strstr(text, piece)); text += strlen(piece)) n++;
    return n;
}

START_TEST(the_matrix_as_a_drawing)
{
    static const char *const names[] = { "a<b", "c&d\n", "plain" };
    const char *path = in_folder("matrix.svg");
    assert_ok(tn_confusion_svg(small(), path, "Epoch 3 > 2", names));
    size_t n;
    const char *text = owned(read_bytes(path, &n));
    ck_assert_int_eq(strncmp(text, "<svg xmlns='http://www.w3.org/2000/svg' ", 40), 0);
    ck_assert_str_eq(text + n - 7, "</svg>\n");
    ck_assert_int_eq(count_of(text, "<rect "), 1 + 3);         /* the ground, counts above 0 */
    ck_assert_int_eq(count_of(text, "fill='#0072b2'"), 1);     /* all of class 1 */
    ck_assert_int_eq(count_of(text, "fill='#3f95c5'"), 1);     /* 3 of 4 */
    ck_assert_int_eq(count_of(text, "<text "), 2 + 2 * 3 + 3); /* title, axes, labels, counts */
    ck_assert_int_eq(count_of(text, "</text>"), count_of(text, "<text "));
    ck_assert_ptr_nonnull(strstr(text, ">a&#60;b 0<"));
    ck_assert_ptr_nonnull(strstr(text, ">c&#38;d? 1<"));
    ck_assert_ptr_nonnull(strstr(text, ">Epoch 3 &#62; 2<"));
    tn_module *large = metric(TN_CONFUSION, (tn_metric_options){ .classes = 400 });
    assert_ok(tn_metric_update(large, tn_arange(0, 400, 1, TN_I64), tn_arange(0, 400, 1, TN_I64)));
    assert_ok(tn_confusion_svg(large, path, NULL, NULL));
    text = owned(read_bytes(path, &n));
    ck_assert_int_eq(count_of(text, "<rect "), 1 + 400);
    assert_fails(tn_confusion_svg(large, in_folder("nowhere/matrix.svg"), NULL, NULL), TN_E_IO,
                 "nowhere/matrix.svg");
    assert_fails(tn_confusion_svg(large, NULL, NULL, NULL), TN_E_INVALID, "path is NULL");
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct batch {
    tn_module *m;
    tn_tensor *x, *y;
    uint64_t before;
} batch;

static tn_status count(void *user)
{
    batch *b = user;
    tn_status status = tn_metric_update(b->m, b->x, b->y);
    const scarce_memory as_it_is = scarce;
    scarce.failing = 0;
    if (status == TN_OK) b->before = hash_of_module(b->m); /* it may do without a refused request */
    scarce.failing = as_it_is.failing, scarce.requests = as_it_is.requests;
    return status;
}

static void is_as_before(void *user)
{
    const batch *b = user;
    ck_assert(hash_of_module(b->m) == b->before);
}

static tn_status read_all(void *user)
{
    const batch *b = user;
    FILE *null = fopen("/dev/null", "w");
    tn_status status = null ? TN_OK : TN_E_IO;
    tn_module *total = tn_metric_total(b->m);
    if (!total || isnan(tn_metric_value(total))) status = tn_error_status();
    if (status == TN_OK && tn_size(tn_get_buffer(b->m, "sums"), 0) == 3) {
        if (!tn_confusion_scores(b->m)) status = tn_error_status();
        if (status == TN_OK)
            status = tn_confusion_svg(b->m, in_folder("scarce.svg"), "title", NULL);
        if (status == TN_OK) status = tn_confusion_fprint(null, b->m, NULL);
    }
    tn_module_drop(total);
    fclose(null);
    return status;
}

START_TEST(memory_runs_out)
{
    static const tn_metric_options all[] = {
        { .top_k = 2 }, { .classes = 3 }, { .rows = 200 }, { 0 }, { 0 }, { 0 }, { 0 }, { 0 }
    };
    scarce_install();
    tn_tensor *y = tn_from_ints(ids, TN_SHAPE(6)), *x = tn_to_dtype(tn_one_hot(y, 3), TN_F32);
    tn_tensor *line = tn_select(x, 1, 0), *bits = tn_ge_scalar(y, 1);
    batch b = { .m = tn_metric_new((tn_metric_kind)_i, all[_i]), .x = x, .y = y };
    if (_i == TN_AUC) b.x = line, b.y = bits;
    if (_i > TN_AUC && _i != TN_PERPLEXITY) b.y = x;
    assert_made(owned(b.m));
    assert_ok(tn_metric_update(b.m, b.x, b.y)); /* what is made once is made */
    b.before = hash_of_module(b.m);
    ck_assert_int_gt(scarce_sweep(count, is_as_before, &b), 5);
    ck_assert_int_gt(scarce_sweep(read_all, is_as_before, &b), 2);
}
END_TEST

static long whole_text;

static tn_status write_text(void *m)
{
    FILE *file = tmpfile();
    tn_status status = tn_confusion_fprint(file, m, NULL);
    if (status == TN_OK) ck_assert_int_eq(ftell(file), whole_text);
    ck_assert(ftell(file) == 0 || status == TN_OK); /* all of it, or nothing */
    fclose(file);
    return status;
}

START_TEST(memory_runs_out_in_a_text)
{
    tn_module *m = small();
    FILE *file = tmpfile();
    assert_ok(tn_confusion_fprint(file, m, NULL));
    whole_text = ftell(file);
    fclose(file);
    ck_assert_int_gt(scarce_sweep(write_text, NULL, m), 20);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("metrics");
    TCase *t = test_case(suite, "values");
    tcase_add_loop_test(t, classes_as_the_others_have_them, 0, COUNT(cases));
    add_tests(t, areas_as_the_others_have_them, means_as_the_others_have_them,
              perplexity_of_short_floats, ids_in_place_of_scores, equal_scores_have_an_order,
              nothing_to_average);
    t = test_case(suite, "refused");
    add_tests(t, options_that_do_not_fit, bad_batches_change_nothing, modules_that_are_no_metric,
              sums_that_became_others, scores_that_have_no_area);
    t = file_case(suite, "modules");
    add_tests(t, nothing_is_recorded, a_checkpoint_in_the_middle_of_an_epoch,
              copies_count_by_themselves);
    tcase_add_loop_test(t, autocast_changes_nothing, 0, TN_RUNNING_MEAN + 1);
    t = file_case(suite, "pictures");
    add_tests(t, the_matrix_as_text, the_matrix_as_a_drawing);
    t = file_case(suite, "memory");
    tcase_add_loop_test(t, memory_runs_out, 0, TN_RUNNING_MEAN + 1);
    t = scarce_case(suite, "memory of a text");
    tcase_add_test(t, memory_runs_out_in_a_text);
    return suite;
}
