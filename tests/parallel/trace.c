/*
 * trace.c - one rank of a run whose backward is told, for trace.sh: the account
 * has this rank's gradient, and the average that takes its place.
 *
 * Truth: gradients that are the rank's number and one, so that their mean is (ranks + 1) / 2.
 */
#include <stdio.h>
#include <stdlib.h>

#include "rank.h"

/* The text must hold the line, or must not. */
static void says(const char *text, bool wanted, const char *line)
{
    if ((strstr(text, line) != NULL) == wanted) return;
    fprintf(stderr, "rank %d: \"%s\" is %sin\n%s\n", tn_parallel_rank(), line, wanted ? "not " : "",
            text);
    exit(1);
}

static char *written(tn_status (*write)(FILE *file, const tn_trace *trace), const tn_trace *trace)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    EXPECT(file && write(file, trace) == TN_OK && fclose(file) == 0);
    return text;
}

/* Gradients: of 0.weight rank + 1, of 1.weight 1 on rank 0 and none on the others. */
static tn_tensor *loss_of(tn_module *m)
{
    tn_tensor *x = tn_full(TN_SHAPE(1, 1), tn_parallel_rank() + 1);
    tn_tensor *y = tn_forward(tn_module_child(m, 0), x);
    if (tn_parallel_rank() == 0) y = tn_add(y, tn_forward(tn_module_child(m, 1), x));
    return tn_sum(y, NULL, 0, false);
}

static tn_trace *account_of(tn_module *m)
{
    tn_trace *trace = tn_trace_begin((tn_trace_options){ .model = m });
    TN_CHECK_PTR(trace);
    TN_CHECK(tn_backward(loss_of(m)));
    TN_CHECK(tn_trace_end(trace));
    return trace;
}

/* before: what 0.weight's gradient held */
static void check(tn_module *m, const tn_trace *trace, double before)
{
    int n = tn_parallel_size(), rank = tn_parallel_rank();
    double own = before + rank + 1, mean = before + (n + 1) / 2.0;
    char line[400], *text = written(tn_trace_text, trace);
    EXPECT(tn_item(tn_grad(tn_get_parameter(m, "0.weight"))) == mean);
    snprintf(line, sizeof line,
             "    0.weight  parameter  grad = %s + dW   (1 of 1)   grad %.4g\n"
             "    averaged over %d ranks: grad %.4g -> grad %.4g\n",
             before ? "grad" : "0", own, n, own, mean);
    says(text, n > 1, line);
    snprintf(line, sizeof line,
             "  1.weight  no gradient on this rank; averaged over %d ranks: grad %.4g\n", n,
             1.0 / n);
    says(text, rank > 0 && !before, line);
    says(text, n > 1, "averaged");
    free(text);
    text = written(tn_trace_json, trace);
    snprintf(line, sizeof line, "{\"tensor\":\"t0\",\"ranks\":%d,\"before\":{\"norm\":%.9g,", n,
             own);
    says(text, n > 1, line);
    snprintf(line, sizeof line, "\"after\":{\"norm\":%.9g,", mean); /* where the leaf accumulates */
    says(text, true, line);
    free(text);
}

/* tn_explain, with finite differences: they are of this rank's own loss. */
static tn_tensor *again(tn_module *m, void *user)
{
    (void)user;
    return loss_of(m);
}

static void explain(tn_module *m)
{
    char *text = NULL, line[200];
    size_t size = 0;
    int n = tn_parallel_size();
    FILE *file = open_memstream(&text, &size);
    tn_explain_options o = { .model = m, .again = again };
    EXPECT(file && tn_explain(file, loss_of(m), o) == TN_OK && fclose(file) == 0);
    snprintf(line, sizeof line, "(1 of 1)   grad %d   slope %d, finite difference ",
             tn_parallel_rank() + 1, tn_parallel_rank() + 1);
    says(text, true, line);
    snprintf(line, sizeof line, "averaged over %d ranks: grad %d -> grad %.4g\n", n,
             tn_parallel_rank() + 1, (n + 1) / 2.0);
    says(text, n > 1, line);
    free(text);
}

static void told(void)
{
    tn_linear_options o = { .no_bias = true };
    tn_module *m = tn_sequential(tn_linear_new(1, 1, o), tn_linear_new(1, 1, o));
    TN_CHECK_PTR(m);
    TN_NO_GRAD TN_CHECK(tn_fill_(tn_get_parameter(m, "0.weight"), 0.5));
    tn_data_parallel *shared = tn_data_parallel_new(m, (tn_data_parallel_options){ 0 });
    TN_CHECK_PTR(shared);
    tn_trace *trace = account_of(m);
    check(m, trace, 0);
    tn_trace_free(trace);
    trace = account_of(m); /* again, on top of the average */
    check(m, trace, (tn_parallel_size() + 1) / 2.0);
    tn_trace_free(trace);
    TN_CHECK(tn_module_zero_grad(m));
    explain(m);
    TN_CHECK(tn_module_zero_grad(m));
    tn_data_parallel_set_sync(shared, false);
    trace = account_of(m); /* nothing is averaged */
    char *text = written(tn_trace_text, trace);
    says(text, false, "averaged");
    free(text);
    tn_trace_free(trace);
    shared_free(shared, m);
}

int main(int argc, char **argv)
{
    static const rank_mode mode[] = { MODE(told) };
    return rank_main(argc, argv, (rank_program){ mode, 1, NULL, NULL });
}
