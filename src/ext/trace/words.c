/* words.c - numbers, shapes and names as the writers of text print them. */
#include <math.h>

#include "ext/trace/words.h"

enum { FEW = 8 };

void tni_say_shape(const tni_words *w, const tn_shape *s)
{
    fputc('[', w->file);
    for (int i = 0; i < s->rank; i++) fprintf(w->file, "%s%" PRId64, i ? "," : "", s->size[i]);
    fputc(']', w->file);
}

/* Without the sign that a NaN may have: it depends on the processor. */
static double unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

void tni_amount(const tni_numbers *v, char *text, size_t size)
{
    if (v->known)
        snprintf(text, size, "%.4g", unsigned_nan(v->n == 1 ? v->mean : v->norm));
    else
        snprintf(text, size, "-");
}

/* "[[1, 2], [3, 4]]" */
static void say_values(const tni_words *w, const tni_numbers *v, const tn_shape *s)
{
    for (int64_t i = 0; i < v->n; i++) {
        int64_t row = 1;
        int open = 0, close = 0;
        for (int d = s->rank - 1; d >= 0; d--) {
            row *= s->size[d];
            open += i % row == 0;
            close += (i + 1) % row == 0;
        }
        if (i) fprintf(w->file, ", ");
        while (open-- > 0) fputc('[', w->file);
        fprintf(w->file, "%.4g", unsigned_nan(v->value[i]));
        while (close-- > 0) fputc(']', w->file);
    }
}

void tni_say_numbers(const tni_words *w, const char *before, const char *name, const tni_numbers *v,
                     const tn_shape *shape)
{
    char amount[32];
    if (!v || !v->known) return;
    tni_amount(v, amount, sizeof amount);
    fprintf(w->file, v->n == 1 ? "%s%s %s" : "%s|%s| %s", before, name, amount);
    if (v->n == 1 || !v->value || v->n > FEW || !shape) return;
    fprintf(w->file, " = ");
    say_values(w, v, shape);
}

const char *tni_tensor_name(const tni_words *w, int tensor)
{
    const tni_log_tensor *t = tensor < 0 ? NULL : &w->log->tensors[tensor];
    if (!t || t->name[0]) return t ? t->name : "a tensor";
    return t->requires_grad ? "a leaf" : "data";
}

const char *tni_source(const tni_words *w, const tni_log_in *in, char *text, size_t size)
{
    if (in->node < 0) return tni_tensor_name(w, in->tensor);
    const tni_log_op *op = &w->log->ops[w->step->nodes[in->node].op];
    snprintf(text, size, in->output ? "%s #%d.%d" : "%s #%d", op->name, in->node, in->output);
    return text;
}

void tni_say_place(const tni_words *w, int node)
{
    const tni_log_node *n = &w->step->nodes[node];
    fprintf(w->file, "  %s #%d", tni_op(w, n)->name, node);
    if (n->call >= 0) {
        const tni_log_call *c = &w->step->calls[n->call];
        const tni_log_module *m = &w->log->modules[c->module];
        fprintf(w->file, "  %s%s%s%s", m->path, m->path[0] ? " (" : "", m->type,
                m->path[0] ? ")" : "");
        if (c->time > 1) fprintf(w->file, ", call %d", c->time);
    }
    if (n->line) fprintf(w->file, "  %s", n->line);
    fputc('\n', w->file);
}
