/*
 * diff.c - what differs between two accounts.
 *
 * Ops are matched by what they are and where they were called: the n-th "linear (0: Linear)" of one
 * step is that of the other. Tensors are matched by their full names.
 */
#include <math.h>

#include "ext/trace/words.h"

typedef struct diff {
    tni_words a, b;
    int *match; /* node of a -> node of b; -1 */
    bool *met;  /* nodes of b that have one */
    size_t step, said;
} diff;

/* Called before each difference; the first one in a step prints the step. */
static FILE *line(diff *d)
{
    if (!d->said++) fprintf(d->a.file, "step %zu\n", d->step + 1);
    fprintf(d->a.file, "  ");
    return d->a.file;
}

static bool differ(const tni_numbers *a, const tni_numbers *b)
{
    if (!a->known || !b->known) return false;
    double most = TNI_MAX(fabs(a->norm), fabs(b->norm));
    double apart = a->n == 1 ? fabs(a->mean - b->mean) : fabs(a->norm - b->norm);
    if (a->n != b->n || a->nan != b->nan || a->inf != b->inf) return true;
    return isfinite(most) && apart > 1e-6 * most;
}

static void say_both(diff *d, const char *whose, const char *what, const tni_numbers *a,
                     const tni_numbers *b)
{
    fprintf(line(d), "%s: %s %s in a, %s in b\n", whose, what, tni_amount_phrase(a).s,
            tni_amount_phrase(b).s);
}

/* ---- ops ------------------------------------------------------------------------------------- */

static tni_phrase place(const tni_words *w, size_t node)
{
    return tni_log_place(w->log, w->step, (int)node);
}

/* Both lists are in forward's order, so the search continues where the last one ended. */
static void match_ops(diff *d)
{
    size_t n = d->b.step->n_nodes, from = 0;
    for (size_t i = 0; i < d->a.step->n_nodes; i++) {
        d->match[i] = -1;
        for (size_t j = 0; j < n && d->match[i] < 0; j++) {
            size_t at = (from + j) % n;
            if (d->met[at] || strcmp(place(&d->a, i).s, place(&d->b, at).s) != 0) continue;
            d->match[i] = (int)at;
            d->met[at] = true;
            from = at + 1;
        }
    }
}

static void compare_ops(diff *d)
{
    for (size_t i = 0; i < d->a.step->n_nodes; i++) {
        const tni_log_node *n = &d->a.step->nodes[i];
        tni_phrase where = place(&d->a, i), result = tni_log_result(tni_op(&d->a, n), 0);
        const tni_numbers *x = &n->out[0].value;
        if (d->match[i] < 0) {
            fprintf(line(d), "%s: only in a\n", where.s);
            continue;
        }
        const tni_numbers *y = &d->b.step->nodes[d->match[i]].out[0].value;
        tni_phrase name = tni_phrase_of(x->n == 1 ? "%s" : "|%s|", result.s);
        if (differ(x, y)) say_both(d, where.s, name.s, x, y);
    }
    for (size_t j = 0; j < d->b.step->n_nodes; j++)
        if (!d->met[j]) fprintf(line(d), "%s: only in b\n", place(&d->b, j).s);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const tni_log_entry *find(const tni_words *w, const char *name)
{
    for (size_t i = 0; i < w->step->n_ledger; i++)
        if (strcmp(w->log->tensors[w->step->ledger[i].tensor].name, name) == 0)
            return &w->step->ledger[i];
    return NULL;
}

static const char *state_of_grad(const tni_words *w, const tni_log_entry *e)
{
    if (e->grad.known) return "a gradient";
    return w->log->tensors[e->tensor].requires_grad ? "no gradient" : "none: it is frozen";
}

static void compare_entry(diff *d, const tni_log_entry *a, const tni_log_entry *b, const char *name)
{
    if (a->grad.known != b->grad.known)
        fprintf(line(d), "%s: %s in a, %s in b\n", name, state_of_grad(&d->a, a),
                state_of_grad(&d->b, b));
    else if (differ(&a->grad, &b->grad))
        say_both(d, name, "gradient", &a->grad, &b->grad);
    if (a->moved != b->moved)
        fprintf(line(d), "%s: moved: %s in a, %s in b\n", name, tni_moved_phrase(a->moved).s,
                tni_moved_phrase(b->moved).s);
    if (differ(&a->step, &b->step)) say_both(d, name, "after the step", &a->step, &b->step);
}

static void compare_tensors(diff *d)
{
    for (size_t i = 0; i < d->a.step->n_ledger; i++) {
        const tni_log_entry *a = &d->a.step->ledger[i];
        const char *name = d->a.log->tensors[a->tensor].name;
        const tni_log_entry *b = find(&d->b, name);
        if (b)
            compare_entry(d, a, b, name);
        else
            fprintf(line(d), "%s: only in a\n", name);
    }
    for (size_t i = 0; i < d->b.step->n_ledger; i++) {
        const char *name = d->b.log->tensors[d->b.step->ledger[i].tensor].name;
        if (!find(&d->a, name)) fprintf(line(d), "%s: only in b\n", name);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static const char *mode(const tni_log_step *s)
{
    return s->training ? "trains" : "evaluates";
}

static tn_status compare_steps(diff *d)
{
    const tni_log_step *a = d->a.step, *b = d->b.step;
    tni_arena arena = { 0 };
    d->said = 0;
    d->match = tni_arena_alloc(&arena, a->n_nodes * sizeof *d->match);
    d->met = tni_arena_alloc(&arena, b->n_nodes * sizeof *d->met);
    tn_status status = d->match && d->met ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) {
        if (a->training != b->training) fprintf(line(d), "a %s, b %s\n", mode(a), mode(b));
        match_ops(d);
        compare_ops(d);
        compare_tensors(d);
    }
    tni_arena_free(&arena);
    return status;
}

tn_status tn_trace_diff(FILE *file, const tn_trace *a, const tn_trace *b)
{
    TNI_C_NUMBERS;
    static const char f[] = "tn_trace_diff";
    tn_status status = tni_trace_writable(f, file, a);
    if (status == TN_OK) status = tni_trace_writable(f, file, b);
    if (status != TN_OK) return status;
    diff d = { { file, &a->log, NULL }, { file, &b->log, NULL }, .said = 0 };
    size_t n = TNI_MIN(a->log.n_steps, b->log.n_steps), all = 0;
    for (d.step = 0; status == TN_OK && d.step < n; d.step++) {
        d.a.step = &a->log.steps[d.step];
        d.b.step = &b->log.steps[d.step];
        status = compare_steps(&d);
        all += d.said;
    }
    if (status != TN_OK) return status;
    if (a->log.n_steps != b->log.n_steps)
        fprintf(file, "%zu steps in a, %zu in b\n", a->log.n_steps, b->log.n_steps);
    else if (!all)
        fprintf(file, "no difference\n");
    return tni_trace_written(f, file);
}
