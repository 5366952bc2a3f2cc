/* perplexity.c - how well a model expects a text. */
#include "base/host.h"
#include "ext/lm/generate.h"

#include <tenon/tenon.h>

/* The sum of -log p of ids[from..to) in the window that begins at ids[begin]; from > begin. */
static double surprise(tn_module *m, const int64_t *ids, int64_t begin, int64_t from, int64_t to)
{
    double sum = (double)NAN;
    TN_SCOPE TN_NO_GRAD
    {
        const tn_device device = tni_device_of(m);
        tn_tensor *x = tn_from_ints(ids + begin, TN_SHAPE(1, to - 1 - begin));
        tn_tensor *y = tn_from_ints(ids + from, TN_SHAPE(to - from));
        tn_tensor *logits = tn_select(tn_forward(m, tn_to(x, device)), 0, 0);
        logits = tn_narrow(logits, 0, from - 1 - begin, to - from);
        sum = tn_item(tn_cross_entropy(logits, tn_to(y, device))) * (double)(to - from);
    }
    return sum;
}

double tn_perplexity(tn_module *m, const int64_t *ids, int64_t n, int64_t window, int64_t stride)
{
    TNI_HOLD_TRAPS;
    if (!m || !ids) return tni_nan(tni_poison("tn_perplexity", m ? "ids" : "m"));
    if (n < 2) return tni_nan(tni_error(TN_E_INVALID, "tn_perplexity: %" PRId64 " ids: want 2", n));
    if (window < 2 || stride < 1 || stride > window)
        return tni_nan(tni_error(TN_E_INVALID,
                                 "tn_perplexity: stride %" PRId64 ", window %" PRId64
                                 ": want 1 <= stride <= window, window >= 2",
                                 stride, window));
    bool trained = tn_training(m);
    if (trained && tn_eval(m) != TN_OK) return (double)NAN;
    double sum = 0;
    int64_t scored = 0;
    for (int64_t begin = 0, known = 0; known < n && !isnan(sum); begin += stride) {
        int64_t from = TNI_MAX(known, begin + 1), to = n - begin > window ? begin + window : n;
        if (from < to) sum += surprise(m, ids, begin, from, to);
        scored += TNI_MAX(to - from, 0);
        known = to;
    }
    if (trained) tni_disregard(tn_train(m, true));
    return exp(sum / (double)scored);
}
