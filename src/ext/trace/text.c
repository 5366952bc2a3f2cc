/*
 * text.c - an account in words: forward, op by op; backward (text_backward.c); what the optimizer
 * moved; and the ledger: every registered tensor, what it is, who sees it and who moved it.
 */
#include "ext/trace/words.h"

/* ---- forward --------------------------------------------------------------------------------- */

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

/* ---- the optimizer --------------------------------------------------------------------------- */

static void say_updates(const tni_words *w)
{
    const tni_log_step *s = w->step;
    if (s->stepped) fprintf(w->file, "\noptimizer\n");
    for (size_t i = 0; s->stepped && i < s->n_updates; i++) {
        const tni_log_update *u = &s->updates[i];
        fprintf(w->file, "  %s  %s -> %s   gradient %s\n", tni_tensor_name(w, u->tensor),
                tni_amount_phrase(&u->before).s, tni_amount_phrase(&u->after).s,
                tni_amount_phrase(&u->gradient).s);
    }
}

/* ---- the ledger ------------------------------------------------------------------------------ */

tni_phrase tni_ledger_cell(const tni_words *w, size_t row, int column)
{
    static const char *const head[] = { "state", "kind",    "file", "optimizer", "gradient",
                                        "start", "forward", "step", "moved" };
    static const char *const held[] = { "-", "held", "not held", "refused" };
    if (row == 0) return tni_phrase_of("%s", head[column]);
    const tni_log_entry *line = &w->step->ledger[row - 1];
    const tni_log_tensor *t = &w->log->tensors[line->tensor];
    bool parameter = t->kind == TN_GRAPH_PARAMETER;
    const char *role = tn_role_name(t->role);
    switch (column) {
    case 0: return tni_phrase_of("%s", tni_tensor_name(w, line->tensor));
    case 1: return tni_phrase_of("%s", parameter ? "parameter" : *role ? role : "buffer");
    case 2: return tni_phrase_of(t->persistent ? "in the file" : "not saved");
    case 3: return tni_phrase_of("%s", held[t->held]);
    case 4:
        if (line->grad.known || !parameter) return tni_amount_phrase(&line->grad);
        return tni_phrase_of(t->requires_grad ? "none" : "frozen");
    case 5: return tni_amount_phrase(&line->start);
    case 6: return tni_amount_phrase(&line->forward);
    case 7: return tni_amount_phrase(&line->step);
    default: return tni_moved_phrase(line->moved);
    }
}

void tni_say_state(const tni_words *w)
{
    size_t n = w->step->n_ledger, width[TNI_LEDGER_COLUMNS] = { 0 };
    if (!n) return;
    for (int c = 0; c < TNI_LEDGER_COLUMNS - 1; c++) /* the last one is as wide as it is */
        for (size_t i = 0; i <= n; i++)
            width[c] = TNI_MAX(width[c], strlen(tni_ledger_cell(w, i, c).s));
    for (size_t i = 0; i <= n; i++)
        for (int c = 0; c < TNI_LEDGER_COLUMNS; c++)
            fprintf(w->file, c ? "  %-*s" : "\n%-*s", (int)width[c], tni_ledger_cell(w, i, c).s);
    fputc('\n', w->file);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void say_step(tni_words *w, size_t k)
{
    const tni_log_step *s = w->step = &w->log->steps[k];
    fprintf(w->file, "\nstep %zu, %s", k + 1, s->training ? "training" : "evaluating");
    if (s->loss_known) fprintf(w->file, ": loss %.4g", s->loss);
    fprintf(w->file, "\n\n");
    for (size_t i = 0; i < s->n_nodes; i++) say_op(w, i);
    fputc('\n', w->file);
    tni_say_backward(w);
    say_updates(w);
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
