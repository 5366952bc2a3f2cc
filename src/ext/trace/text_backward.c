/*
 * text_backward.c - backward in words, op by op.
 *
 *     backward 3/7  linear #4  head (Linear)  net.c:41
 *       arrives: |dy| 0.125
 *       dW = dy^T x   dy [4,2], x [4,8] -> [2,8]   |dW| 0.31
 *         head.weight  parameter  grad = 0 + dW   (1 of 1)   |grad| 0.31
 *       freed x 128 B; still kept 512 B
 */
#include <ctype.h>

#include "ext/trace/words.h"

/* ---- what arrives ---------------------------------------------------------------------------- */

/* "    sum of mul 3: 0.5, add 5: 0.25" */
static void say_sum(const tni_words *w, const tni_log_back *b, int output)
{
    bool first = true;
    fprintf(w->file, "\n    the sum of");
    for (size_t k = 0; k < b->n_adds; k++) {
        const tni_log_add *a = &b->adds[k];
        if (a->output != output) continue;
        const tni_log_share *share = tni_log_added(w->step, a);
        int node = share ? w->step->backs[a->back].node : -1;
        fprintf(w->file, first ? " %s" : " + %s",
                share ? tni_op(w, &w->step->nodes[node])->name : "the seed");
        if (share) fprintf(w->file, " #%d: %s", node, tni_amount_phrase(&share->value).s);
        first = false;
    }
}

/* "    hook 1 of 2: |dy| 0.5 -> |dy| 0.25" */
static void say_hooks(const tni_words *w, int pass, int node, int output, int tensor,
                      const char *name, const tn_shape *shape)
{
    for (size_t k = 0; k < w->step->n_hooks; k++) {
        const tni_log_hook *h = &w->step->hooks[k];
        if (h->pass != pass || h->node != node || h->output != output || h->tensor != tensor)
            continue;
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
    const tni_log_node *n = &w->step->nodes[b->node];
    for (int i = 0; i < b->n_out; i++) {
        const tn_shape *shape = &n->out[i].shape;
        int n_adds = 0;
        bool seed = false;
        if (!b->incoming[i].known) continue;
        for (size_t k = 0; k < b->n_adds; k++) {
            if (b->adds[k].output != i) continue;
            seed = n_adds++ == 0 && b->adds[k].back < 0;
        }
        tni_phrase name = tni_phrase_of("d%s", tni_log_result(tni_op(w, n), i).s);
        const char *how = seed ? "  begins with " : "  arrives: ";
        fprintf(w->file, "%s", tni_numbers_phrase(how, name.s, &b->incoming[i], shape).s);
        if (n_adds > 1) say_sum(w, b, i);
        say_hooks(w, b->pass, b->node, i, -1, name.s, shape);
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
    const tni_log_op *op = tni_op(w, n);
    const char *right = strchr(rule, '=');
    tni_phrase result = tni_log_result(op, 0), out = tni_shape_phrase(&n->out[0].shape);
    fprintf(w->file, "   d%s %s", result.s, out.s);
    for (int i = 0; right && i < n->n_in; i++) {
        tni_phrase name = tni_log_name(op, i, n->n_in);
        if ((n->in[i].node < 0 && n->in[i].tensor < 0) || !mentions(right, name.s)) continue;
        fprintf(w->file, ", %s %s", name.s, tni_shape_phrase(&n->in[i].shape).s);
    }
    if (right && mentions(right, result.s)) fprintf(w->file, ", %s %s", result.s, out.s);
    fprintf(w->file, " -> %s", tni_shape_phrase(&n->in[in].shape).s);
}

static void say_reduction(const tni_words *w, const tni_log_share *s, const tn_shape *to)
{
    int lead = s->from.rank - to->rank, n = 0;
    fprintf(w->file, "\n    summed over");
    for (int i = 0; i < s->from.rank; i++)
        if (i < lead || (to->size[i - lead] == 1 && s->from.size[i] != 1))
            fprintf(w->file, n++ ? ", %d" : " axis %d", i);
    fprintf(w->file, ": %s -> %s", tni_shape_phrase(&s->from).s, tni_shape_phrase(to).s);
}

/* The ranks' average of a leaf's gradient in a pass; NULL: there is none. */
static const tni_log_average *average_of(const tni_words *w, int pass, int tensor)
{
    for (size_t k = 0; k < w->step->n_averages; k++)
        if (w->step->averages[k].pass == pass && w->step->averages[k].tensor == tensor)
            return &w->step->averages[k];
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
static void say_leaf(const tni_words *w, int pass, const tni_log_share *s, const char *name)
{
    static const char *const kind[] = { "", "parameter", "buffer", "leaf" };
    const tni_log_average *average = s->part == s->of ? average_of(w, pass, s->leaf) : NULL;
    fprintf(w->file, "\n    %s  %s  grad = %s + %s   (%d of %d)%s", tni_tensor_name(w, s->leaf),
            kind[w->log->tensors[s->leaf].kind], s->before.known ? "grad" : "0", name, s->part,
            s->of,
            tni_numbers_phrase("   ", "grad", average ? &average->before : &s->after, NULL).s);
    if (s->checked)
        fprintf(w->file, "   slope %.7g, finite difference %.7g", s->slope, s->difference);
    if (!average) return;
    fprintf(w->file, "\n    ");
    say_average(w, average);
}

static void say_share(const tni_words *w, const tni_log_back *b, const tni_log_share *s)
{
    const tni_log_node *n = &w->step->nodes[b->node];
    const tni_log_op *op = tni_op(w, n);
    const tn_shape *shape = &n->in[s->in].shape;
    tni_phrase rule = tni_log_rule(op, s->in);
    tni_phrase name = tni_phrase_of("d%s", tni_log_name(op, s->in, n->n_in).s);
    fprintf(w->file, "  %s", rule.s[0] ? rule.s : name.s);
    say_shapes(w, n, rule.s, s->in);
    fprintf(w->file, "%s", tni_numbers_phrase("   ", name.s, &s->value, shape).s);
    if (s->reduced) say_reduction(w, s, shape);
    if (s->part && s->part == s->of) /* hooks of a leaf get the sum */
        say_hooks(w, b->pass, -1, 0, s->leaf, s->of > 1 ? "sum" : name.s, shape);
    if (s->part && w->step->passes[b->pass].accumulates)
        say_leaf(w, b->pass, s, name.s);
    else if (s->part)
        fprintf(w->file, "\n    %s  the gradient that was asked for", tni_tensor_name(w, s->leaf));
    fputc('\n', w->file);
}

/* ---- what gets none -------------------------------------------------------------------------- */

/* "bn.running_mean  buffer  no gradient; forward moved 0 -> 0.05" */
static void say_buffer(const tni_words *w, int tensor, bool written)
{
    const tni_log_entry *e = tni_log_line(w->step, tensor);
    fprintf(w->file, "    %s  buffer  no gradient", tni_tensor_name(w, tensor));
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
static void say_others(const tni_words *w, int node)
{
    const tni_log_node *n = &w->step->nodes[node];
    const tni_log_call *c = n->call < 0 ? NULL : &w->step->calls[n->call];
    for (size_t k = (size_t)node + 1; c && k < w->step->n_nodes; k++)
        if (w->step->nodes[k].call == n->call) c = NULL;
    for (int i = 0; i < n->n_in; i++) {
        const tni_log_in *in = &n->in[i];
        if (in->gradient || in->tensor < 0) continue;
        bool written = false;
        for (size_t k = 0; c && k < c->n_writes; k++) written |= c->writes[k] == in->tensor;
        tn_graph_kind kind = w->log->tensors[in->tensor].kind;
        if (kind == TN_GRAPH_BUFFER && !written)
            say_buffer(w, in->tensor, false);
        else if (kind == TN_GRAPH_PARAMETER)
            fprintf(w->file, "    %s  parameter  no gradient: it is frozen\n",
                    tni_tensor_name(w, in->tensor));
    }
    for (size_t k = 0; c && k < c->n_writes; k++) say_buffer(w, c->writes[k], true);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* "  x is not kept: gelu #3 computes it again where it is read" */
static void say_again(const tni_words *w, const tni_log_node *n)
{
    for (size_t k = 0; k < n->n_kept; k++)
        if (n->kept[k].what == TNI_SAVED_RECOMPUTED)
            fprintf(w->file, "  %s is not kept: %s computes it again where it is read\n",
                    tni_log_kept(tni_op(w, n), n, &n->kept[k]).s,
                    tni_source_phrase(w, &n->in[n->kept[k].index]).s);
}

/* "  freed x 128 B, y 64 B; still kept 512 B" */
static void say_freed(const tni_words *w, const tni_log_back *b)
{
    const tni_log_node *n = &w->step->nodes[b->node];
    const char *before = b->freed ? "  freed" : "  keeps";
    bool said = false;
    for (size_t k = 0; k < n->n_kept; k++) {
        const tni_log_saved *kept = &n->kept[k];
        if (kept->what == TNI_SAVED_RECOMPUTED) continue;
        fprintf(w->file, "%s %s %zu B", said ? "," : before, tni_log_kept(tni_op(w, n), n, kept).s,
                kept->bytes);
        said = true;
    }
    if (said)
        fprintf(w->file, b->freed ? "; still kept %zu B\n" : "; kept in all %zu B\n", b->kept);
}

/* ---- a step of backward ---------------------------------------------------------------------- */

static void say_findings(const tni_words *w, const tni_log_back *b)
{
    const tni_log_step *s = w->step;
    for (const tni_log_back *before = s->backs; before < b; before++)
        if (before->node == b->node) return; /* a pass before this one said them */
    for (size_t i = 0; i < s->n_findings; i++)
        if (s->findings[i].node == b->node)
            fprintf(w->file, "  ! %s: %s\n", s->findings[i].kind, s->findings[i].text);
}

static void say_back(const tni_words *w, const tni_log_back *b, size_t number)
{
    const tni_log_node *n = &w->step->nodes[b->node];
    fprintf(w->file, "backward %zu/%zu", number, w->step->passes[b->pass].n_nodes);
    tni_say_place(w, b->node);
    say_arrivals(w, b);
    say_again(w, n);
    for (size_t i = 0; i < b->n_shares; i++) say_share(w, b, &b->shares[i]);
    const char *where = tni_log_where(tni_op(w, n));
    if (where[0] && b->n_shares) fprintf(w->file, "    %s\n", where);
    say_others(w, b->node);
    say_findings(w, b);
    say_freed(w, b);
}

/* Leaves that got a gradient on other ranks only. */
static void say_received(const tni_words *w, int pass)
{
    for (size_t k = 0; k < w->step->n_averages; k++) {
        const tni_log_average *a = &w->step->averages[k];
        if (a->pass != pass || a->before.known) continue;
        fprintf(w->file, "  %s  no gradient on this rank; ", tni_tensor_name(w, a->tensor));
        say_average(w, a);
        fputc('\n', w->file);
    }
}

void tni_say_backward(const tni_words *w)
{
    const tni_log_step *s = w->step;
    for (size_t p = 0; p < s->n_passes; p++) {
        size_t number = 0;
        if (s->n_passes > 1)
            fprintf(w->file, "pass %zu of %zu%s\n", p + 1, s->n_passes,
                    s->passes[p].accumulates ? "" : ", of tn_gradients: changes no grad");
        for (size_t k = 0; k < s->n_backs; k++)
            if (s->backs[k].pass == (int)p) say_back(w, &s->backs[k], ++number);
        say_received(w, (int)p);
        if (s->passes[p].error) fprintf(w->file, "  fails: %s\n", s->passes[p].error);
    }
}
