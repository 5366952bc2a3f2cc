/* text.c - an account in words: forward, op by op, and then what other files tell of a step. */
#include "ext/trace/words.h"

/* ---- forward --------------------------------------------------------------------------------- */

static void say_op(const tni_words *w, size_t k)
{
    const tni_log_node *n = &w->step->nodes[k];
    const tni_log_op *op = tni_op(w, n);
    char name[32], source[128];
    bool first = true;
    fprintf(w->file, "forward %zu/%zu", k + 1, w->step->n_nodes);
    tni_say_place(w, (int)k);
    fprintf(w->file, "  %s\n   ", op->formula);
    for (int i = 0; i < n->n_in; i++) {
        const tni_log_in *in = &n->in[i];
        if (in->node < 0 && in->tensor < 0) continue;
        tni_log_name(op, i, n->n_in, name, sizeof name);
        fprintf(w->file, "%s %s: %s ", first ? "" : ",", name,
                tni_source(w, in, source, sizeof source));
        tni_say_shape(w, &in->shape);
        first = false;
    }
    fprintf(w->file, " -> ");
    tni_say_shape(w, &n->out[0].shape);
    tni_log_result(op, 0, name, sizeof name);
    tni_say_numbers(w, "   ", name, &n->out[0].value, &n->out[0].shape);
    fputc('\n', w->file);
}

void tni_say_forward(const tni_words *w)
{
    for (size_t k = 0; k < w->step->n_nodes; k++) say_op(w, k);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void say_step(tni_words *w, size_t k)
{
    const tni_log_step *s = w->step = &w->log->steps[k];
    fprintf(w->file, "step %zu, %s", k + 1, s->training ? "training" : "evaluating");
    if (s->loss_known) fprintf(w->file, ": loss %.4g", s->loss);
    fprintf(w->file, "\n\n");
    tni_say_forward(w);
    fputc('\n', w->file);
    tni_say_backward(w);
    tni_say_updates(w);
    tni_say_state(w);
}

tn_status tn_trace_text(FILE *file, const tn_trace *trace)
{
    TNI_C_NUMBERS;
    tn_status status = tni_trace_writable("tn_trace_text", file, trace);
    if (status != TN_OK) return status;
    tni_words w = { file, &trace->log, NULL };
    size_t n = trace->log.n_steps;
    fprintf(file, "%s: %zu step%s\n", trace->log.title[0] ? trace->log.title : "trace", n,
            n == 1 ? "" : "s");
    for (size_t k = 0; k < n; k++) {
        fputc('\n', file);
        say_step(&w, k);
    }
    return tni_trace_written("tn_trace_text", file);
}
