/* log.c - freeing a log, and the names in it. */
#include "ext/trace/log.h"

static void free_text(char *text)
{
    if (text) tni_strfree(text);
}

void tni_log_node_free(tni_log_node *n)
{
    for (int i = 0; i < n->n_in && n->in; i++) tni_numbers_free(&n->in[i].value);
    for (int i = 0; i < n->n_out && n->out; i++) tni_numbers_free(&n->out[i].value);
    free_text(n->line);
    tni_free(n->in, (size_t)n->n_in * sizeof *n->in);
    tni_free(n->out, (size_t)n->n_out * sizeof *n->out);
    tni_free(n->kept, (size_t)n->n_kept * sizeof *n->kept);
}

static void back_free(tni_log_back *b)
{
    for (int i = 0; i < b->n_out && b->incoming; i++) tni_numbers_free(&b->incoming[i]);
    for (size_t i = 0; i < b->n_shares; i++) {
        tni_numbers_free(&b->shares[i].value);
        tni_numbers_free(&b->shares[i].before);
        tni_numbers_free(&b->shares[i].after);
    }
    tni_free(b->incoming, (size_t)b->n_out * sizeof *b->incoming);
    tni_room_free(&b->adds, &b->adds_room, sizeof *b->adds);
    tni_room_free(&b->shares, &b->shares_room, sizeof *b->shares);
}

static void ways_free(tni_log_step *s)
{
    for (size_t i = 0; i < s->n_hooks; i++) {
        tni_numbers_free(&s->hooks[i].before);
        tni_numbers_free(&s->hooks[i].after);
    }
    for (size_t i = 0; i < s->n_averages; i++) {
        tni_numbers_free(&s->averages[i].before);
        tni_numbers_free(&s->averages[i].after);
    }
    tni_room_free(&s->hooks, &s->hook_room, sizeof *s->hooks);
    tni_room_free(&s->averages, &s->average_room, sizeof *s->averages);
}

static void entries_free(tni_log_step *s)
{
    for (size_t i = 0; i < s->n_updates; i++) {
        tni_numbers_free(&s->updates[i].before);
        tni_numbers_free(&s->updates[i].after);
        tni_numbers_free(&s->updates[i].gradient);
    }
    for (size_t i = 0; i < s->n_ledger; i++) {
        tni_numbers_free(&s->ledger[i].start);
        tni_numbers_free(&s->ledger[i].forward);
        tni_numbers_free(&s->ledger[i].step);
        tni_numbers_free(&s->ledger[i].grad);
    }
    tni_room_free(&s->updates, &s->update_room, sizeof *s->updates);
    tni_room_free(&s->ledger, &s->ledger_room, sizeof *s->ledger);
}

void tni_log_step_free(tni_log_step *s)
{
    for (size_t i = 0; i < s->n_calls; i++)
        tni_room_free(&s->calls[i].writes, &s->calls[i].room, sizeof *s->calls[i].writes);
    for (size_t i = 0; i < s->n_nodes; i++) tni_log_node_free(&s->nodes[i]);
    for (size_t i = 0; i < s->n_passes; i++) free_text(s->passes[i].error);
    for (size_t i = 0; i < s->n_backs; i++) back_free(&s->backs[i]);
    for (size_t i = 0; i < s->n_findings; i++) free_text(s->findings[i].text);
    ways_free(s);
    entries_free(s);
    tni_room_free(&s->calls, &s->call_room, sizeof *s->calls);
    tni_room_free(&s->nodes, &s->node_room, sizeof *s->nodes);
    tni_room_free(&s->passes, &s->pass_room, sizeof *s->passes);
    tni_room_free(&s->backs, &s->back_room, sizeof *s->backs);
    tni_room_free(&s->findings, &s->finding_room, sizeof *s->findings);
    *s = (tni_log_step){ 0 };
}

void tni_log_free(tni_log *t)
{
    for (size_t i = 0; i < t->n_steps; i++) tni_log_step_free(&t->steps[i]);
    for (size_t i = 0; i < t->n_modules; i++) {
        free_text(t->modules[i].path);
        free_text(t->modules[i].type);
    }
    for (size_t i = 0; i < t->n_tensors; i++) {
        free_text(t->tensors[i].name);
        free_text(t->tensors[i].module);
    }
    for (size_t i = 0; i < t->n_ops; i++) {
        free_text(t->ops[i].name);
        free_text(t->ops[i].formula);
        free_text(t->ops[i].gradient);
    }
    free_text(t->title);
    tni_room_free(&t->steps, &t->step_room, sizeof *t->steps);
    tni_room_free(&t->modules, &t->module_room, sizeof *t->modules);
    tni_room_free(&t->tensors, &t->tensor_room, sizeof *t->tensors);
    tni_room_free(&t->ops, &t->op_room, sizeof *t->ops);
    *t = (tni_log){ 0 };
}

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

const char *tni_log_name(const tni_log_op *op, int i, int n_in, char *text, size_t size)
{
    const char *part = part_of(op, i), *first = part_of(op, 0);
    size_t n = part ? strcspn(part + 1, " =[_") : 0;
    if (n && (part[1 + n] != '_' || n_in == 1))
        snprintf(text, size, "%.*s", (int)n, part + 1);
    else if (first && strncmp(first, "dx_i", 4) == 0)
        snprintf(text, size, "x_%d", i); /* any number of inputs, one rule */
    else
        snprintf(text, size, n_in == 1 ? "x" : "input %d", i);
    return text;
}

const char *tni_log_rule(const tni_log_op *op, int i, char *text, size_t size)
{
    const char *part = part_of(op, i);
    const char *first = part_of(op, 0);
    if (!part && first && strncmp(first, "dx_i", 4) == 0) part = first; /* one rule for all */
    snprintf(text, size, "%.*s",
             part ? (int)(strstr(part, "; ") ? strstr(part, "; ") - part : (long)strlen(part)) : 0,
             part ? part : "");
    return text;
}

const char *tni_log_result(const tni_log_op *op, int i, char *text, size_t size)
{
    size_t n = strcspn(op->formula, " =[_,(");
    if (i > 0)
        snprintf(text, size, "output %d", i);
    else
        snprintf(text, size, "%.*s", n ? (int)n : 1, n ? op->formula : "y");
    return text;
}

const char *tni_log_where(const tni_log_op *op)
{
    const char *where = strstr(op->gradient, "; where ");
    return where ? where + 2 : "";
}

const char *tni_log_place(const tni_log *t, const tni_log_step *s, int node, char *text,
                          size_t size)
{
    const tni_log_node *n = &s->nodes[node];
    const tni_log_module *m = n->call < 0 ? NULL : &t->modules[s->calls[n->call].module];
    if (m)
        snprintf(text, size, "%s (%s%s%s)", t->ops[n->op].name, m->path, m->path[0] ? ": " : "",
                 m->type);
    else
        snprintf(text, size, "%s", t->ops[n->op].name);
    return text;
}

const tni_numbers *tni_log_input(const tni_log_step *s, const tni_log_in *in)
{
    if (in->value.known) return &in->value;
    if (in->node >= 0) return &s->nodes[in->node].out[in->output].value;
    size_t i = (size_t)in->tensor, n = s->n_ledger; /* lines mostly have their tensor's number */
    if (in->tensor < 0) return NULL;
    if (i >= n || s->ledger[i].tensor != in->tensor)
        for (i = 0; i < n && s->ledger[i].tensor != in->tensor;) i++;
    if (i == n) return NULL;
    return s->ledger[i].forward.known ? &s->ledger[i].forward : &s->ledger[i].start;
}
