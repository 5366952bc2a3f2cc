/*
 * explain_ranks.c - what tn_explain_training says of the other ranks of a run.
 *
 * The watched run is this rank's alone. At the end of every averaging backward each rank has told
 * all others which parameters had a gradient (ext/parallel/reduce.c). So nothing is sent here, and
 * one rank alone may ask.
 */
#include "ext/diagnose/explain.h"
#include "ext/parallel/group.h"

enum { NAMED = 6 }; /* ranks; any more are only counted */

void tni_explain_here(char *text, size_t size)
{
    text[0] = '\0';
    if (tn_parallel_size() > 1)
        snprintf(text, size, " on rank %d of %d", tn_parallel_rank(), tn_parallel_size());
}

/* "rank 1", "ranks 1, 2 and 3", "ranks 1, 2, 3, 4, 5, 6 and 9 more": the other ranks that had no
 * gradient for a parameter; their number. */
static int list_ranks(const tn_tensor *parameter, char *text, size_t size)
{
    int rank[NAMED + 1], n = 0;
    for (int r = 0; r < tn_parallel_size(); r++) {
        if (r == tn_parallel_rank() || tni_reported_of(parameter, r) != TNI_REPORTED_MISSING)
            continue;
        if (n <= NAMED) rank[n] = r;
        n++;
    }
    int named = n > NAMED + 1 ? NAMED : n;
    size_t at = (size_t)snprintf(text, size, n == 1 ? "rank" : "ranks");
    for (int i = 0; i < named; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%d",
                               i == 0                         ? " "
                               : i + 1 == named && named == n ? " and "
                                                              : ", ",
                               rank[i]);
    if (named < n) snprintf(text + at, size - at, " and %d more", n - named);
    return n;
}

tn_status tni_explain_ranks(tni_lines *findings, tni_lines *notes, const tn_list *parameters,
                            int *count)
{
    tn_status status = TN_OK;
    char ranks[128];
    int averaged = 0, reported = 0;
    if (tn_parallel_size() == 1) return TN_OK;
    for (int i = 0; i < parameters->n && status == TN_OK; i++) {
        const tn_tensor *t = parameters->entry[i].tensor;
        tni_reported first = tni_reported_of(t, 0);
        averaged += first != TNI_REPORTED_ALONE;
        if (first == TNI_REPORTED_ALONE || first == TNI_REPORTED_NOTHING) continue;
        reported++;
        if (list_ranks(t, ranks, sizeof ranks) == 0) continue;
        ++*count;
        status = tni_say(findings,
                         "%s: no gradient on %s of %d in the last averaging backward: "
                         "tn_explain_training, called there, says why",
                         parameters->entry[i].name, ranks, tn_parallel_size());
    }
    if (status != TN_OK || reported) return status;
    return tni_say(notes, averaged ? "(ranks): before the first averaging backward nothing is "
                                     "known of the other ranks"
                                   : "(ranks): no tn_data_parallel averages the model's gradients");
}
