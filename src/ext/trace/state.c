/*
 * state.c - the end of a step in words: what the optimizer moved, the findings, and the ledger:
 * every registered tensor, what it is, who sees it and who moved it.
 */
#include "ext/trace/words.h"

enum { CELL = 16, COLUMNS = 7 };

/* ---- the optimizer --------------------------------------------------------------------------- */

void tni_say_updates(const tni_words *w)
{
    const tni_log_step *s = w->step;
    char before[32], after[32], gradient[32];
    if (!s->stepped) return;
    fprintf(w->file, "\noptimizer\n");
    for (size_t i = 0; i < s->n_updates; i++) {
        const tni_log_update *u = &s->updates[i];
        tni_amount(&u->before, before, sizeof before);
        tni_amount(&u->after, after, sizeof after);
        tni_amount(&u->gradient, gradient, sizeof gradient);
        fprintf(w->file, "  %s  %s -> %s   gradient %s\n", tni_tensor_name(w, u->tensor), before,
                after, gradient);
    }
}

/* ---- the ledger ------------------------------------------------------------------------------ */

typedef struct row {
    char cell[COLUMNS][CELL];
} row;

const char *tni_moved_text(unsigned moved, char *text, size_t size)
{
    static const char *const by[] = { "by hand", "by forward", "by backward", "by the optimizer" };
    snprintf(text, size, "%s", moved & TNI_MOVED_UNKNOWN ? "not known" : moved ? "" : "no");
    for (unsigned i = 0; i < 4 && !(moved & TNI_MOVED_UNKNOWN); i++) {
        size_t n = strlen(text);
        if (moved & 1u << i) snprintf(text + n, size - n, "%s%s", n ? " and " : "", by[i]);
    }
    return text;
}

static row row_of(const tni_words *w, const tni_log_entry *e)
{
    static const char *const held[] = { "-", "held", "not held", "refused" };
    const tni_log_tensor *t = &w->log->tensors[e->tensor];
    row r;
    snprintf(r.cell[0], CELL, "%s", t->kind == TN_GRAPH_PARAMETER ? "parameter" : "buffer");
    snprintf(r.cell[1], CELL, "%s", t->persistent ? "in the file" : "not saved");
    snprintf(r.cell[2], CELL, "%s", held[t->held]);
    tni_amount(&e->grad, r.cell[3], CELL);
    if (!e->grad.known && t->kind == TN_GRAPH_PARAMETER)
        snprintf(r.cell[3], CELL, "%s", t->requires_grad ? "none" : "frozen");
    tni_amount(&e->start, r.cell[4], CELL);
    tni_amount(&e->forward, r.cell[5], CELL);
    tni_amount(&e->step, r.cell[6], CELL);
    return r;
}

void tni_say_state(const tni_words *w)
{
    static const row head = { { "kind", "file", "optimizer", "gradient", "start", "forward",
                                "step" } };
    const tni_log_step *s = w->step;
    size_t name = 5, width[COLUMNS];
    if (!s->n_ledger) return;
    for (int c = 0; c < COLUMNS; c++) width[c] = strlen(head.cell[c]);
    for (size_t i = 0; i < s->n_ledger; i++) {
        row r = row_of(w, &s->ledger[i]);
        name = TNI_MAX(name, strlen(tni_tensor_name(w, s->ledger[i].tensor)));
        for (int c = 0; c < COLUMNS; c++) width[c] = TNI_MAX(width[c], strlen(r.cell[c]));
    }
    fprintf(w->file, "\n%-*s", (int)name, "state");
    for (int c = 0; c < COLUMNS; c++) fprintf(w->file, "  %-*s", (int)width[c], head.cell[c]);
    fprintf(w->file, "  moved\n");
    for (size_t i = 0; i < s->n_ledger; i++) {
        row r = row_of(w, &s->ledger[i]);
        fprintf(w->file, "%-*s", (int)name, tni_tensor_name(w, s->ledger[i].tensor));
        for (int c = 0; c < COLUMNS; c++) fprintf(w->file, "  %-*s", (int)width[c], r.cell[c]);
        char moved[TNI_MOVED_TEXT];
        fprintf(w->file, "  %s\n", tni_moved_text(s->ledger[i].moved, moved, sizeof moved));
    }
}
