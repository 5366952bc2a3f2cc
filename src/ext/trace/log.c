/* log.c - the memory of a log, and the names in it. */
#include "ext/trace/log.h"

void tni_log_step_free(tni_log_step *s)
{
    tni_arena_free(&s->arena);
    *s = (tni_log_step){ 0 };
}

void tni_log_free(tni_log *t)
{
    for (size_t i = 0; i < t->n_steps; i++) tni_log_step_free(&t->steps[i]);
    tni_arena_free(&t->arena);
    *t = (tni_log){ 0 };
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The start of part i of "dx = ...; dw = ...". NULL: there is none. */
static const char *part_of(const tni_log_op *op, int i)
{
    const char *at = op->gradient;
    for (; at && i > 0; i--) {
        at = strstr(at, "; ");
        if (at) at += 2;
    }
    return at && at[0] == 'd' ? at : NULL;
}

/* Whether one rule stands for any number of inputs. */
static bool is_shared(const char *rule)
{
    return rule && strncmp(rule, "dx_i", 4) == 0;
}

tni_phrase tni_log_name(const tni_log_node *node, int i)
{
    const char *part = part_of(node->op, i);
    size_t n = part ? strcspn(part + 1, " =[_") : 0;
    bool alone = node->n_in == 1;
    if (n && (part[1 + n] != '_' || alone)) return tni_phrase_of("%.*s", (int)n, part + 1);
    if (is_shared(part_of(node->op, 0))) return tni_phrase_of("x_%d", i);
    return alone ? tni_phrase_of("x") : tni_phrase_of("input %d", i);
}

tni_phrase tni_log_rule(const tni_log_op *op, int i)
{
    const char *part = part_of(op, i), *first = part_of(op, 0);
    if (!part && is_shared(first)) part = first;
    const char *end = part ? strstr(part, "; ") : NULL;
    return end ? tni_phrase_of("%.*s", (int)(end - part), part)
               : tni_phrase_of("%s", part ? part : "");
}

tni_phrase tni_log_result(const tni_log_op *op, int i)
{
    size_t n = strcspn(op->formula, " =[_,(");
    if (i > 0) return tni_phrase_of("output %d", i);
    return n ? tni_phrase_of("%.*s", (int)n, op->formula) : tni_phrase_of("y");
}

tni_phrase tni_log_kept(const tni_log_node *n, const tni_log_saved *kept)
{
    if (kept->what == TNI_SAVED_EXTRA) return tni_phrase_of("saved %d", kept->index);
    return kept->what == TNI_SAVED_OUT ? tni_log_result(n->op, 0) : tni_log_name(n, kept->index);
}

const char *tni_log_place(const tni_log_node *n, tni_arena *a)
{
    const char *op = n->op->name;
    if (!n->call) return op;
    const tni_log_module *m = n->call->module;
    size_t size = strlen(op) + strlen(m->path) + strlen(m->type) + sizeof " (: )";
    char *place = tni_arena_alloc(a, size);
    if (place) snprintf(place, size, "%s (%s%s%s)", op, m->path, m->path[0] ? ": " : "", m->type);
    return place;
}

tni_log_entry *tni_log_line(const tni_log_step *s, const tni_log_tensor *tensor)
{
    size_t n = s->n_ledger;
    for (size_t k = 0; tensor && k < n; k++) { /* lines mostly have their tensor's number */
        tni_log_entry *line = s->ledger[((size_t)tensor->id + k) % n];
        if (line->tensor == tensor) return line;
    }
    return NULL;
}

const tni_numbers *tni_log_input(const tni_log_step *s, const tni_log_in *in)
{
    if (in->value.known) return &in->value;
    if (in->node) return &in->node->out[in->output].value;
    const tni_log_entry *line = tni_log_line(s, in->tensor);
    return !line ? NULL : line->forward.known ? &line->forward : &line->start;
}
