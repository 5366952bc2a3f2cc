/*
 * text.c - an account in words: forward and backward, op by op; what the optimizer moved; and the
 * ledger: every registered tensor, what it is, who sees it and who moved it.
 *
 *     backward 3/7  linear #4  head (Linear)  net.c:41
 *       arrives: |dy| 0.125
 *       dW = dy^T x   dy [4,2], x [4,8] -> [2,8]   |dW| 0.31
 *         head.weight  parameter  grad = 0 + dW   (1 of 1)   |grad| 0.31
 *       freed x 128 B; still kept 512 B
 */
#include <ctype.h>

#include "ext/trace/words.h"

/* ---- forward --------------------------------------------------------------------------------- */

/* "  linear #4  head (Linear)  net.c:41" */
static void say_place(FILE *file, const tni_log_node *n)
{
    const tni_log_module *m = n->call ? n->call->module : NULL;
    fprintf(file, "  %s #%d", n->op->name, n->id);
    if (m) fprintf(file, m->path[0] ? "  %s (%s)" : "  %s%s", m->path, m->type);
    if (m && n->call->time > 1) fprintf(file, ", call %d", n->call->time);
    if (n->line) fprintf(file, "  %s", n->line);
    fputc('\n', file);
}

static void say_op(const tni_words *w, const tni_log_node *n)
{
    const tni_log_out *out = &n->out[0];
    const char *comma = "";
    fprintf(w->file, "forward %d/%zu", n->id + 1, w->step->n_nodes);
    say_place(w->file, n);
    fprintf(w->file, "  %s\n   ", n->op->formula);
    for (int i = 0; i < n->n_in; i++) {
        const tni_log_in *in = &n->in[i];
        if (!in->node && !in->tensor) continue;
        fprintf(w->file, "%s %s: %s %s", comma, tni_log_name(n, i).s, tni_source_phrase(in).s,
                tni_shape_text(&in->shape));
        comma = ",";
    }
    fprintf(w->file, " -> %s%s\n", tni_shape_text(&out->shape),
            tni_numbers_phrase("   ", tni_log_result(n->op, 0).s, &out->value, &out->shape).s);
}

/* ---- what arrives ---------------------------------------------------------------------------- */

/* "    hook 1 of 2: |dy| 0.5 -> |dy| 0.25" */
static void say_hooks(const tni_words *w, const tni_log_hooks *hooks, const char *name,
                      const tn_shape *shape)
{
    for (const tni_log_hook *h = hooks->hook; h && h < hooks->hook + hooks->n_hook; h++) {
        fprintf(w->file, "\n    hook %d of %d", h->number, h->of);
        if (tni_numbers_differ(&h->before, &h->after))
            fprintf(w->file, "%s%s", tni_numbers_phrase(": ", name, &h->before, NULL).s,
                    tni_numbers_phrase(" -> ", name, &h->after, shape).s);
        else
            fprintf(w->file, " leaves %s as it is", name);
    }
}

static void say_arrivals(const tni_words *w, const tni_log_back *b)
{
    const tni_log_node *n = b->node;
    for (int i = 0; i < n->n_out; i++) {
        const tn_shape *shape = &n->out[i].shape;
        const tni_log_arrival *in = &b->incoming[i];
        if (!in->value.known) continue;
        bool seed = in->n_adds == 1 && !in->adds[0];
        tni_phrase name = tni_phrase_of("d%s", tni_log_result(n->op, i).s);
        const char *how = seed ? "  begins with " : "  arrives: ";
        fprintf(w->file, "%s", tni_numbers_phrase(how, name.s, &in->value, shape).s);
        for (size_t k = 0; in->n_adds > 1 && k < in->n_adds; k++) {
            const tni_log_share *share = in->adds[k];
            const tni_log_node *of = share ? share->back->node : NULL;
            fprintf(w->file, k ? " + %s" : "\n    the sum of %s", of ? of->op->name : "the seed");
            if (of) fprintf(w->file, " #%d: %s", of->id, tni_amount_phrase(&share->value).s);
        }
        say_hooks(w, &in->hooks, name.s, shape);
        fputc('\n', w->file);
    }
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Whether a name occurs in a rule as a word. */
static bool mentions(const char *rule, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = rule; (at = strstr(at, name)); at++) {
        bool begins = at == rule || (!isalnum((unsigned char)at[-1]) && at[-1] != '_');
        if (begins && !isalnum((unsigned char)at[n])) return true;
    }
    return false;
}

/* "dy [4,2], x [4,8] -> [2,8]" */
static void say_shapes(const tni_words *w, const tni_log_node *n, const char *rule, int in)
{
    const char *right = strchr(rule, '=');
    tni_phrase result = tni_log_result(n->op, 0);
    const tn_shape *out = &n->out[0].shape;
    fprintf(w->file, "   d%s %s", result.s, tni_shape_text(out));
    for (int i = 0; right && i < n->n_in; i++) {
        tni_phrase name = tni_log_name(n, i);
        if ((!n->in[i].node && !n->in[i].tensor) || !mentions(right, name.s)) continue;
        fprintf(w->file, ", %s %s", name.s, tni_shape_text(&n->in[i].shape));
    }
    if (right && mentions(right, result.s))
        fprintf(w->file, ", %s %s", result.s, tni_shape_text(out));
    fprintf(w->file, " -> %s", tni_shape_text(&n->in[in].shape));
}

/* The ranks' average of a leaf's gradient in a pass; NULL: there is none. */
static const tni_log_average *average_of(const tni_log_pass *p, const tni_log_tensor *tensor)
{
    for (size_t k = 0; k < p->n_averages; k++)
        if (p->averages[k].tensor == tensor) return &p->averages[k];
    return NULL;
}

/* "    averaged over 4 ranks: |grad| 0.31 -> |grad| 0.28" */
static void say_average(const tni_words *w, const tni_log_average *a)
{
    fprintf(w->file, "averaged over %d ranks%s%s", a->ranks,
            tni_numbers_phrase(": ", "grad", &a->before, NULL).s,
            tni_numbers_phrase(a->before.known ? " -> " : ": ", "grad", &a->after, NULL).s);
}

/* "head.weight  parameter  grad = 0 + dW   (1 of 1)" */
static void say_leaf(const tni_words *w, const tni_log_share *s, const char *name)
{
    static const char *const kind[] = { "", "parameter", "buffer", "leaf" };
    const tni_log_average *average = s->part == s->of ? average_of(s->back->pass, s->leaf) : NULL;
    fprintf(w->file, "\n    %s  %s  grad = %s + %s   (%d of %d)%s", tni_tensor_name(s->leaf),
            kind[s->leaf->kind], s->before.known ? "grad" : "0", name, s->part, s->of,
            tni_numbers_phrase("   ", "grad", average ? &average->before : &s->after, NULL).s);
    if (s->checked)
        fprintf(w->file, "   slope %.7g, finite difference %.7g", s->slope, s->difference);
    if (!average) return;
    fprintf(w->file, "\n    ");
    say_average(w, average);
}

static void say_share(const tni_words *w, const tni_log_share *s)
{
    const tni_log_node *n = s->back->node;
    const tn_shape *shape = &n->in[s->in].shape;
    tni_phrase rule = tni_log_rule(n->op, s->in);
    tni_phrase name = tni_phrase_of("d%s", tni_log_name(n, s->in).s);
    fprintf(w->file, "  %s", rule.s[0] ? rule.s : name.s);
    say_shapes(w, n, rule.s, s->in);
    fprintf(w->file, "%s", tni_numbers_phrase("   ", name.s, &s->value, shape).s);
    if (s->reduced) fprintf(w->file, "\n    summed over");
    for (int i = 0, n = 0, lead = s->from.rank - shape->rank; s->reduced && i < s->from.rank; i++)
        if (i < lead || (shape->size[i - lead] == 1 && s->from.size[i] != 1))
            fprintf(w->file, n++ ? ", %d" : " axis %d", i);
    if (s->reduced) fprintf(w->file, ": %s -> %s", tni_shape_text(&s->from), tni_shape_text(shape));
    say_hooks(w, &s->hooks, s->of > 1 ? "sum" : name.s, shape);
    if (s->leaf && s->back->pass->accumulates)
        say_leaf(w, s, name.s);
    else if (s->leaf)
        fprintf(w->file, "\n    %s  the gradient that was asked for", tni_tensor_name(s->leaf));
    fputc('\n', w->file);
}

/* ---- what gets none -------------------------------------------------------------------------- */

/* "bn.running_mean  buffer  no gradient; forward moved 0 -> 0.05" */
static void say_buffer(const tni_words *w, const tni_log_tensor *t, bool written)
{
    const tni_log_entry *e = tni_log_line(w->step, t);
    fprintf(w->file, "    %s  buffer  no gradient", tni_tensor_name(t));
    if (e && tni_numbers_differ(&e->start, &e->forward)) {
        tni_phrase by = e->early ? tni_moved_phrase(e->early) : (tni_phrase){ "" };
        if (e->early == TNI_MOVED_FORWARD)
            fprintf(w->file, "; forward moved");
        else
            fprintf(w->file, by.s[0] ? "; moved %s" : "; moved%s", by.s);
        fprintf(w->file, " %s -> %s", tni_amount_phrase(&e->start).s,
                tni_amount_phrase(&e->forward).s);
    } else if (written && (!e || !e->start.known)) {
        fprintf(w->file, "; forward wrote it");
    }
    fputc('\n', w->file);
}

/* Inputs that take no gradient, and the buffers that the call wrote, after the last of its ops. */
static void say_others(const tni_words *w, const tni_log_node *n)
{
    const tni_log_call *c = n->call;
    for (size_t k = (size_t)n->id + 1; c && k < w->step->n_nodes; k++)
        if (w->step->nodes[k]->call == c) c = NULL;
    for (const tni_log_in *in = n->in; in < n->in + n->n_in; in++) {
        if (in->gradient || !in->tensor) continue;
        bool written = false;
        for (size_t k = 0; c && k < c->n_writes; k++) written |= c->writes[k] == in->tensor;
        tn_graph_kind kind = in->tensor->kind;
        if (kind == TN_GRAPH_BUFFER && !written)
            say_buffer(w, in->tensor, false);
        else if (kind == TN_GRAPH_PARAMETER)
            fprintf(w->file, "    %s  parameter  no gradient: it is frozen\n",
                    tni_tensor_name(in->tensor));
    }
    for (size_t k = 0; c && k < c->n_writes; k++) say_buffer(w, c->writes[k], true);
}

/* "  freed x 128 B, y 64 B; still kept 512 B" */
static void say_freed(const tni_words *w, const tni_log_back *b)
{
    const tni_log_node *n = b->node;
    const char *before = b->freed ? "  freed" : "  keeps";
    bool said = false;
    for (const tni_log_saved *kept = n->kept; kept && kept < n->kept + n->n_kept; kept++) {
        if (kept->what == TNI_SAVED_RECOMPUTED) continue;
        fprintf(w->file, "%s %s %zu B", said ? "," : before, tni_log_kept(n, kept).s, kept->bytes);
        said = true;
    }
    if (said)
        fprintf(w->file, b->freed ? "; still kept %zu B\n" : "; kept in all %zu B\n", b->kept);
}

/* ---- a step of backward ---------------------------------------------------------------------- */

static void say_findings(const tni_words *w, const tni_log_back *b)
{
    const tni_log_step *s = w->step;
    for (size_t k = 0; s->backs[k] != b; k++)
        if (s->backs[k]->node == b->node) return; /* a pass before this one said them */
    for (size_t i = 0; i < s->n_findings; i++)
        if (s->findings[i]->node == b->node)
            fprintf(w->file, "  ! %s: %s\n", s->findings[i]->kind, s->findings[i]->text);
}

static void say_back(const tni_words *w, const tni_log_back *b, size_t number)
{
    const tni_log_node *n = b->node;
    fprintf(w->file, "backward %zu/%zu", number, b->pass->n_nodes);
    say_place(w->file, b->node);
    say_arrivals(w, b);
    for (size_t k = 0; k < n->n_kept; k++)
        if (n->kept[k].what == TNI_SAVED_RECOMPUTED)
            fprintf(w->file, "  %s is not kept: %s computes it again where it is read\n",
                    tni_log_kept(n, &n->kept[k]).s, tni_source_phrase(&n->in[n->kept[k].index]).s);
    for (size_t i = 0; i < b->n_shares; i++) say_share(w, &b->shares[i]);
    const char *where = strstr(b->node->op->gradient, "; where "); /* what short names mean */
    if (where && b->n_shares) fprintf(w->file, "    %s\n", where + 2);
    say_others(w, b->node);
    say_findings(w, b);
    say_freed(w, b);
}

void tni_say_backward(const tni_words *w)
{
    const tni_log_step *s = w->step;
    for (size_t i = 0; i < s->n_passes; i++) {
        const tni_log_pass *p = s->passes[i];
        size_t number = 0;
        if (s->n_passes > 1)
            fprintf(w->file, "pass %d of %zu%s\n", p->number, s->n_passes,
                    p->accumulates ? "" : ", of tn_gradients: changes no grad");
        for (size_t k = 0; k < s->n_backs; k++)
            if (s->backs[k]->pass == p) say_back(w, s->backs[k], ++number);
        for (size_t k = 0; k < p->n_averages; k++) { /* of other ranks only */
            const tni_log_average *a = &p->averages[k];
            if (a->before.known) continue;
            fprintf(w->file, "  %s  no gradient on this rank; ", tni_tensor_name(a->tensor));
            say_average(w, a);
            fputc('\n', w->file);
        }
        if (p->error) fprintf(w->file, "  fails: %s\n", p->error);
    }
}

/* ---- the optimizer, and the ledger ----------------------------------------------------------- */

tni_phrase tni_ledger_cell(const tni_words *w, size_t row, int column)
{
    static const char *const head[] = { "state", "kind",    "file", "optimizer", "gradient",
                                        "start", "forward", "step", "moved" };
    static const char *const held[] = { "-", "held", "not held", "refused" };
    if (row == 0) return tni_phrase_of("%s", head[column]);
    const tni_log_entry *line = w->step->ledger[row - 1];
    const tni_log_tensor *t = line->tensor;
    bool parameter = t->kind == TN_GRAPH_PARAMETER;
    const char *role = tn_role_name(t->role);
    switch (column) {
    case 0: return tni_phrase_of("%s", tni_tensor_name(t));
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

static void say_step(const tni_words *w, size_t number)
{
    const tni_log_step *s = w->step;
    fprintf(w->file, "\nstep %zu, %s", number, s->training ? "training" : "evaluating");
    if (s->loss_known) fprintf(w->file, ": loss %.4g", s->loss);
    fprintf(w->file, "\n\n");
    for (size_t i = 0; i < s->n_nodes; i++) say_op(w, s->nodes[i]);
    fputc('\n', w->file);
    tni_say_backward(w);
    if (s->clip.known)
        fprintf(w->file,
                "\nclipping\n  all gradients times %.4g: their norm %.4g, the limit %.4g\n",
                s->clip.factor, s->clip.norm, s->clip.limit);
    if (s->stepped) fprintf(w->file, "\noptimizer\n");
    for (size_t i = 0; s->stepped && i < s->n_updates; i++) {
        const tni_log_update *u = s->updates[i];
        fprintf(w->file, "  %s  %s -> %s   gradient %s\n", tni_tensor_name(u->tensor),
                tni_amount_phrase(&u->before).s, tni_amount_phrase(&u->after).s,
                tni_amount_phrase(&u->gradient).s);
    }
    tni_say_state(w);
}

tn_status tn_trace_text(FILE *file, const tn_trace *trace)
{
    TNI_C_NUMBERS;
    TNI_TRY(tni_trace_writable("tn_trace_text", file, trace));
    size_t n = trace->log.n_steps;
    fprintf(file, "%s: %zu step%s\n", trace->log.title[0] ? trace->log.title : "trace", n,
            n == 1 ? "" : "s");
    for (size_t k = 0; k < n; k++) say_step(&(tni_words){ file, &trace->log.steps[k] }, k + 1);
    return tni_stream_written("tn_trace_text", file);
}
