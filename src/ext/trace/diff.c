/*
 * diff.c - what differs between two accounts.
 *
 * Ops are matched by what they are and where they were called: the n-th "linear (0: Linear)" of one
 * step is that of the other. Tensors are matched by their full names.
 */
#include "ext/trace/words.h"

typedef struct diff {
    FILE *file;
    const tni_log_step *a, *b;
    size_t step, said; /* the step that is compared, from 1, and the last one that differs */
} diff;

/* Called before each difference; the first one in a step prints the step. */
static FILE *line(diff *d)
{
    if (d->said != d->step) fprintf(d->file, "step %zu\n", d->step);
    d->said = d->step;
    fprintf(d->file, "  ");
    return d->file;
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

static void compare_op(diff *d, size_t i, size_t j, const char *where)
{
    const tni_log_node *a = d->a->nodes[i], *b = d->b->nodes[j];
    const tni_numbers *x = &a->out[0].value, *y = &b->out[0].value;
    tni_phrase result = tni_log_result(a->op, 0);
    tni_phrase name = tni_phrase_of(x->n == 1 ? "%s" : "|%s|", result.s);
    if (differ(x, y)) say_both(d, where, name.s, x, y);
}

static const char *state_of_grad(const tni_log_entry *e)
{
    if (e->grad.known) return "a gradient";
    return e->tensor->requires_grad ? "no gradient" : "none: it is frozen";
}

static void compare_tensor(diff *d, size_t i, size_t j, const char *name)
{
    const tni_log_entry *a = d->a->ledger[i], *b = d->b->ledger[j];
    if (a->grad.known != b->grad.known)
        fprintf(line(d), "%s: %s in a, %s in b\n", name, state_of_grad(a), state_of_grad(b));
    else if (differ(&a->grad, &b->grad))
        say_both(d, name, "gradient", &a->grad, &b->grad);
    if (a->moved != b->moved)
        fprintf(line(d), "%s: moved: %s in a, %s in b\n", name, tni_moved_phrase(a->moved).s,
                tni_moved_phrase(b->moved).s);
    if (differ(&a->step, &b->step)) say_both(d, name, "after the step", &a->step, &b->step);
}

/* Of an op, else of a line of the ledger; NULL: out of memory. */
static const char *name_of(const tni_log_step *s, bool op, size_t i, tni_arena *memory)
{
    return op ? tni_log_place(s->nodes[i], memory) : s->ledger[i]->tensor->name;
}

/* Compares ops, else tensors, that have the same name: the n-th of a name in a with that in b. */
static tn_status compare_lists(diff *d, bool ops)
{
    const size_t n_a = ops ? d->a->n_nodes : d->a->n_ledger,
                 n_b = ops ? d->b->n_nodes : d->b->n_ledger;
    tni_arena TN_WHEN_LEFT(tni_arena_free) memory = { 0 };
    tni_map TN_WHEN_LEFT(tni_map_free)
        first = { .names = true }; /* name -> the first one in b that was not met, + 1 */
    const char **name = tni_arena_alloc(&memory, n_b * sizeof *name); /* in b; NULL: it was */
    void **next = tni_arena_alloc(&memory, n_b * sizeof *next);       /* in b, of the same name */
    if (!name || !next) return TN_E_NOMEM;
    for (size_t j = n_b; j-- > 0;) {
        if (!(name[j] = name_of(d->b, ops, j, &memory))) return TN_E_NOMEM;
        next[j] = tni_map_get(&first, name[j]);
        if (tni_map_put(&first, name[j], (void *)(uintptr_t)(j + 1)) < 0) return TN_E_NOMEM;
    }
    for (size_t i = 0; i < n_a; i++) {
        const char *mine = name_of(d->a, ops, i, &memory);
        if (!mine) return TN_E_NOMEM;
        const size_t j = (uintptr_t)tni_map_get(&first, mine);
        if (!j) fprintf(line(d), "%s: only in a\n", mine);
        if (!j) continue;
        tni_map_put(&first, mine, next[j - 1]);
        name[j - 1] = NULL;
        (ops ? compare_op : compare_tensor)(d, i, j - 1, mine);
    }
    for (size_t j = 0; j < n_b; j++)
        if (name[j]) fprintf(line(d), "%s: only in b\n", name[j]);
    return TN_OK;
}

tn_status tn_trace_diff(FILE *file, const tn_trace *a, const tn_trace *b)
{
    TNI_C_NUMBERS;
    TNI_TRY(tni_trace_writable(__func__, file, a));
    TNI_TRY(tni_trace_writable(__func__, file, b));
    diff d = { .file = file };
    size_t n = TNI_MIN(a->log.n_steps, b->log.n_steps);
    while (d.step < n) {
        const tni_log_step *x = d.a = &a->log.steps[d.step], *y = d.b = &b->log.steps[d.step];
        d.step++;
        if (x->training != y->training)
            fputs(x->training ? "a trains, b evaluates\n" : "a evaluates, b trains\n", line(&d));
        TNI_TRY(compare_lists(&d, true));
        TNI_TRY(compare_lists(&d, false));
    }
    if (a->log.n_steps != b->log.n_steps)
        fprintf(file, "%zu steps in a, %zu in b\n", a->log.n_steps, b->log.n_steps);
    else if (!d.said)
        fprintf(file, "no difference\n");
    return tni_stream_written(__func__, file);
}
