/* text.c - an account in words: forward, op by op, and then what other files tell of a step. */
#include "ext/trace/words.h"

static void say_op(const tni_words *w, size_t k)
{
    const tni_log_node *n = &w->step->nodes[k];
    const tni_log_op *op = tni_op(w, n);
    const tni_log_out *out = &n->out[0];
    const char *comma = "";
    fprintf(w->file, "forward %zu/%zu", k + 1, w->step->n_nodes);
    tni_say_place(w, (int)k);
    fprintf(w->file, "  %s\n   ", op->formula);
    for (int i = 0; i < n->n_in; i++) {
        const tni_log_in *in = &n->in[i];
        if (in->node < 0 && in->tensor < 0) continue;
        fprintf(w->file, "%s %s: %s %s", comma, tni_log_name(op, i, n->n_in).s,
                tni_source_phrase(w, in).s, tni_shape_phrase(&in->shape).s);
        comma = ",";
    }
    fprintf(w->file, " -> %s%s\n", tni_shape_phrase(&out->shape).s,
            tni_numbers_phrase("   ", tni_log_result(op, 0).s, &out->value, &out->shape).s);
}

static void say_step(tni_words *w, size_t k)
{
    const tni_log_step *s = w->step = &w->log->steps[k];
    fprintf(w->file, "\nstep %zu, %s", k + 1, s->training ? "training" : "evaluating");
    if (s->loss_known) fprintf(w->file, ": loss %.4g", s->loss);
    fprintf(w->file, "\n\n");
    for (size_t i = 0; i < s->n_nodes; i++) say_op(w, i);
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
    for (size_t k = 0; k < n; k++) say_step(&w, k);
    return tni_trace_written("tn_trace_text", file);
}
