/*
 * state.c - the end of a step in words: what the optimizer moved, the findings, and the ledger:
 * every registered tensor, what it is, who sees it and who moved it.
 */
#include "ext/trace/words.h"

void tni_say_updates(const tni_words *w)
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

static const char *const head[] = { "kind",  "file",    "optimizer", "gradient",
                                    "start", "forward", "step",      "moved" };
enum { COLUMNS = sizeof head / sizeof *head };

static tni_phrase cell_of(const tni_words *w, const tni_log_entry *line, int column)
{
    static const char *const held[] = { "-", "held", "not held", "refused" };
    const tni_log_tensor *t = &w->log->tensors[line->tensor];
    bool parameter = t->kind == TN_GRAPH_PARAMETER;
    switch (column) {
    case 0: return tni_phrase_of(parameter ? "parameter" : "buffer");
    case 1: return tni_phrase_of(t->persistent ? "in the file" : "not saved");
    case 2: return tni_phrase_of("%s", held[t->held]);
    case 3:
        if (line->grad.known || !parameter) return tni_amount_phrase(&line->grad);
        return tni_phrase_of(t->requires_grad ? "none" : "frozen");
    case 4: return tni_amount_phrase(&line->start);
    case 5: return tni_amount_phrase(&line->forward);
    case 6: return tni_amount_phrase(&line->step);
    default: return tni_moved_phrase(line->moved);
    }
}

void tni_say_state(const tni_words *w)
{
    const tni_log_step *s = w->step;
    size_t name = strlen("state"), width[COLUMNS];
    if (!s->n_ledger) return;
    for (size_t i = 0; i < s->n_ledger; i++)
        name = TNI_MAX(name, strlen(tni_tensor_name(w, s->ledger[i].tensor)));
    fprintf(w->file, "\n%-*s", (int)name, "state");
    for (int c = 0; c < COLUMNS; c++) {
        width[c] = strlen(head[c]);
        for (size_t i = 0; c < COLUMNS - 1 && i < s->n_ledger; i++)
            width[c] = TNI_MAX(width[c], strlen(cell_of(w, &s->ledger[i], c).s));
        fprintf(w->file, "  %-*s", (int)width[c], head[c]);
    }
    width[COLUMNS - 1] = 0;
    for (size_t i = 0; i < s->n_ledger; i++) {
        fprintf(w->file, "\n%-*s", (int)name, tni_tensor_name(w, s->ledger[i].tensor));
        for (int c = 0; c < COLUMNS; c++)
            fprintf(w->file, "  %-*s", (int)width[c], cell_of(w, &s->ledger[i], c).s);
    }
    fputc('\n', w->file);
}
