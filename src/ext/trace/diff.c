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

static tni_phrase op_place(const tni_words *w, size_t node)
{
    return tni_log_place(w->log, w->step, (int)node);
}

static void compare_op(diff *d, size_t i, size_t j, const char *where)
{
    const tni_log_node *n = &d->a.step->nodes[i];
    const tni_numbers *x = &n->out[0].value, *y = &d->b.step->nodes[j].out[0].value;
    tni_phrase result = tni_log_result(tni_op(&d->a, n), 0);
    tni_phrase name = tni_phrase_of(x->n == 1 ? "%s" : "|%s|", result.s);
    if (differ(x, y)) say_both(d, where, name.s, x, y);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Cut at 511 bytes, as all phrases are. */
static tni_phrase tensor_name(const tni_words *w, size_t line)
{
    return tni_phrase_of("%s", w->log->tensors[w->step->ledger[line].tensor].name);
}

static const char *state_of_grad(const tni_words *w, const tni_log_entry *e)
{
    if (e->grad.known) return "a gradient";
    return w->log->tensors[e->tensor].requires_grad ? "no gradient" : "none: it is frozen";
}

static void compare_tensor(diff *d, size_t i, size_t j, const char *name)
{
    const tni_log_entry *a = &d->a.step->ledger[i], *b = &d->b.step->ledger[j];
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

/* ---- steps ----------------------------------------------------------------------------------- */

static const char *mode(const tni_log_step *s)
{
    return s->training ? "trains" : "evaluates";
}

/* Compares what has the same name in both lists, in their order; the search continues where the
 * last one ended. */
static tn_status compare_lists(diff *d, size_t n_a, size_t n_b,
                               tni_phrase (*name_of)(const tni_words *w, size_t i),
                               void (*compare)(diff *d, size_t i, size_t j, const char *name))
{
    tni_arena arena = { 0 };
    bool *met = tni_arena_alloc(&arena, n_b); /* of b */
    if (!met) return TN_E_NOMEM;
    for (size_t i = 0, from = 0; i < n_a; i++) {
        tni_phrase name = name_of(&d->a, i);
        size_t k = 0;
        for (; k < n_b; k++) {
            size_t j = (from + k) % n_b;
            if (met[j] || strcmp(name.s, name_of(&d->b, j).s) != 0) continue;
            met[j] = true;
            from = j + 1;
            compare(d, i, j, name.s);
            break;
        }
        if (k == n_b) fprintf(line(d), "%s: only in a\n", name.s);
    }
    for (size_t j = 0; j < n_b; j++)
        if (!met[j]) fprintf(line(d), "%s: only in b\n", name_of(&d->b, j).s);
    tni_arena_free(&arena);
    return TN_OK;
}

static tn_status compare_steps(diff *d)
{
    const tni_log_step *a = d->a.step, *b = d->b.step;
    d->said = 0;
    if (a->training != b->training) fprintf(line(d), "a %s, b %s\n", mode(a), mode(b));
    tn_status status = compare_lists(d, a->n_nodes, b->n_nodes, op_place, compare_op);
    if (status != TN_OK) return status;
    return compare_lists(d, a->n_ledger, b->n_ledger, tensor_name, compare_tensor);
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
