/*
 * diagnose.c - findings: which op made a gradient vanish, explode, 0, NaN or infinite; and that a
 * bias in front of a batch norm has no effect.
 *
 * NaN, infinities and zeros are blamed on the op where they begin: none came in, some went out. If
 * a leaf's gradient (the sum of its shares in the pass) is far too small or too large, the path
 * from the op that read the leaf is followed towards the loss, along the largest shares. The op on
 * it that shrank or grew the gradient's root mean square most is blamed. The limits are in trace.h.
 */
#include "ext/trace/record.h"

static const double vanishing = 1e-5, exploding = 1e3;
enum { MOST = 32 }; /* findings of one step */

/* back: the step of backward that shows it; NULL: none */
TN_PRINTF(5, 6)
static void say(tn_trace *tr, const char *kind, const tni_log_node *node, tni_log_back *back,
                const char *format, ...)
{
    if (tr->now.n_findings == MOST) return;
    va_list args;
    va_start(args, format);
    char *text = tni_vtext(format, args);
    va_end(args);
    tni_record_ok(tr, text ? TN_OK : TN_E_NOMEM);
    char *copy = tni_arena_text(&tr->now.arena, text);
    tni_strfree(text);
    tni_log_finding *f = TNI_NEW(&tr->now, findings);
    if (!f) return;
    *f = (tni_log_finding){ kind, node, copy };
    if (back && !back->finding) back->finding = f;
}

static const char *place(tn_trace *tr, const tni_log_node *node)
{
    const char *text = tni_log_place(node, &tr->now.arena);
    return text ? text : "";
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static bool bad(const tni_numbers *v)
{
    return v && v->known && (v->nan || v->inf);
}

static const char *how_bad(const tni_numbers *v)
{
    return v->nan ? "nan" : "inf";
}

/* "; x holds 2 zeros": what in the inputs may explain it. */
static tni_phrase reason(const tn_trace *tr, const tni_log_node *n)
{
    tni_phrase why = { "" };
    for (int i = 0; i < n->n_in && !why.s[0]; i++) {
        const tni_numbers *v = tni_log_input(&tr->now, &n->in[i]);
        tni_phrase name = tni_log_name(n, i);
        if (!v || !v->known) continue;
        if (bad(v))
            why = tni_phrase_of("; %s holds %s", name.s, how_bad(v));
        else if (v->n && v->zeros == v->n)
            why = tni_phrase_of("; %s is 0 everywhere", name.s);
        else if (v->zeros)
            why = tni_phrase_of("; %s holds %" PRId64 " zero%s", name.s, v->zeros,
                                v->zeros == 1 ? "" : "s");
        else if (v->n && v->min < 0 && v->max >= 0)
            why = tni_phrase_of("; %s has numbers below 0", name.s);
        else if (v->n && v->max < 0)
            why = tni_phrase_of("; all of %s is below 0", name.s);
    }
    return why;
}

/* ---- where it begins ------------------------------------------------------------------------- */

/* A result that is not finite although the inputs are; masks are filled with -inf on purpose. */
static void judge_forward(tn_trace *tr, const tni_log_node *n)
{
    const tni_log_step *s = &tr->now;
    for (size_t i = 0; i < s->n_findings; i++) /* by an earlier pass */
        if (s->findings[i]->node == n) return;
    bool before = strcmp(n->op->name, "masked_fill") == 0;
    for (int i = 0; i < n->n_in; i++) before |= bad(tni_log_input(s, &n->in[i]));
    for (int i = 0; n->known && !before && i < n->n_out; i++) {
        const tni_numbers *v = &n->out[i].value;
        if (!bad(v)) continue;
        say(tr, how_bad(v), n, NULL, "%s made %s of finite numbers%s", place(tr, n), how_bad(v),
            reason(tr, n).s);
        return;
    }
}

/* Whether a leaf's gradient is 0 because the leaf, a bias of each channel, is added to what only a
 * batch norm in training reads; says so. */
static bool is_cancelled(tn_trace *tr, const tni_log_share *share)
{
    const tni_log_node *from = share->back->node, *norm = NULL;
    int readers = 0;
    for (size_t k = 0; k < tr->now.n_nodes; k++)
        for (int i = 0; i < tr->now.nodes[k]->n_in; i++)
            if (tr->now.nodes[k]->in[i].node == from)
                readers++, norm = i == 0 ? tr->now.nodes[k] : NULL;
    bool bias = strcmp(tni_log_name(from, share->in).s, "b") == 0 &&
                (!strncmp(from->op->name, "conv", 4) || !strcmp(from->op->name, "linear"));
    if (!bias || !share->leaf || share->of != 1 || readers != 1 || !norm ||
        strcmp(norm->op->name, "batch_norm") != 0 || (norm->n_out == 1 && norm->in[3].tensor))
        return false;
    say(tr, "no effect", from, share->back,
        "%s: its gradient is 0, but for rounding: %s subtracts the mean of each channel, so adding "
        "a constant before it changes nothing",
        share->leaf->name[0] ? share->leaf->name : "a leaf", place(tr, norm));
    return true;
}

static void judge_share(tn_trace *tr, tni_log_back *b, const tni_log_share *share)
{
    const tni_log_node *n = b->node;
    const tni_numbers *v = &share->value, *y = &n->out[0].value;
    const bool dead = strcmp(n->op->name, "relu") == 0 && y->known && y->zeros == y->n;
    tni_phrase name = tni_log_name(n, share->in);
    if (bad(v))
        say(tr, how_bad(v), n, b, "%s: its gradient of %s holds %s%s", place(tr, n), name.s,
            how_bad(v), reason(tr, n).s);
    else if (v->norm == 0 && v->n && dead)
        say(tr, "zero", n, b,
            "%s lets no gradient through: all %" PRId64 " inputs are negative or 0", place(tr, n),
            v->n);
    else if (v->norm == 0 && v->n && !is_cancelled(tr, share))
        say(tr, "zero", n, b, "%s: the gradient of %s is 0 everywhere%s", place(tr, n), name.s,
            reason(tr, n).s);
}

/* Judges a step of backward whose incoming gradient is finite and not all 0. */
static void judge_back(tn_trace *tr, tni_log_back *b)
{
    double most = 0;
    for (int i = 0; i < b->node->n_out; i++) {
        if (bad(&b->incoming[i].value)) return;
        most = TNI_MAX(most, b->incoming[i].value.norm);
    }
    for (size_t i = 0; most > 0 && i < b->n_shares; i++) judge_share(tr, b, &b->shares[i]);
}

/* ---- leaves ---------------------------------------------------------------------------------- */

static double rms(const tni_numbers *v)
{
    return v->known && v->n ? v->norm / sqrt((double)v->n) : 0;
}

/* The largest share in what arrived at a step of backward. NULL: only the seed did. */
static const tni_log_share *largest(const tni_log_back *b)
{
    const tni_log_share *found = NULL;
    for (int k = 0; k < b->node->n_out; k++)
        for (size_t i = 0; i < b->incoming[k].n_adds; i++) {
            const tni_log_share *share = b->incoming[k].adds[i];
            if (share && !(found && share->value.norm <= found->value.norm)) found = share;
        }
    return found;
}

/* Between the loss and a leaf, the step of backward that shrank or grew the gradient most. */
static tni_log_back *culprit(const tni_log_share *last, bool shrank)
{
    const tni_log_share *at = last;
    for (const tni_log_share *s = last; s; s = s->older) /* the leaf's largest share */
        if (!(at->value.norm > s->value.norm)) at = s;
    tni_log_back *found = at->back;
    double most = 0;
    for (; at; at = largest(at->back)) {
        double came = 0, made = rms(&at->value);
        for (int i = 0; i < at->back->node->n_out; i++)
            came = TNI_MAX(came, rms(&at->back->incoming[i].value));
        double change = shrank ? came / made : made / came;
        if (!(made > 0 && came > 0 && change > most)) continue;
        most = change;
        found = at->back;
    }
    return found;
}

/* Judges the whole gradient of a leaf; largest: the norm of the largest of a leaf. */
static void judge_leaf(tn_trace *tr, const tni_log_share *last, double largest)
{
    const tni_numbers *value = tni_log_input(&tr->now, &last->back->node->in[last->in]);
    double size = value && value->known ? value->norm : 0;
    bool small = last->sum > 0 && last->sum < vanishing * largest;
    bool large = isfinite(last->sum) && isfinite(size) && last->sum > exploding * TNI_MAX(size, 1);
    if (!small && !large) return;
    if (small && is_cancelled(tr, last)) return;
    tni_log_back *back = culprit(last, small);
    if (back->blamed) return; /* once is enough */
    back->blamed = true;
    const char *name = last->leaf->name;
    say(tr, small ? "vanishing" : "exploding", back->node, back,
        small ? "%s: its gradient is less than 1e-5 of the largest; %s shrinks it most"
              : "%s: its gradient is more than 1000 times its own size; %s enlarges it most",
        name[0] ? name : "a leaf", place(tr, back->node));
}

void tni_diagnose(tn_trace *tr, const tni_log_pass *pass)
{
    tni_log_step *s = &tr->now;
    double largest = 0; /* norm of what a leaf gets */
    for (size_t k = 0; k < s->n_nodes; k++) judge_forward(tr, s->nodes[k]);
    for (size_t k = 0; k < s->n_backs; k++) {
        tni_log_back *b = s->backs[k];
        if (b->pass != pass) continue;
        judge_back(tr, b);
        for (size_t i = 0; i < b->n_shares; i++)
            if (tni_log_is_last(&b->shares[i]) && isfinite(b->shares[i].sum))
                largest = TNI_MAX(largest, b->shares[i].sum);
    }
    for (size_t k = 0; k < s->n_backs; k++)
        for (size_t i = 0; s->backs[k]->pass == pass && i < s->backs[k]->n_shares; i++)
            if (tni_log_is_last(&s->backs[k]->shares[i]))
                judge_leaf(tr, &s->backs[k]->shares[i], largest);
}

void tni_diagnose_change(tn_trace *tr, const tni_log_node *n, int i, const tn_tensor *kept)
{
    const char *by = tni_map_get(&tr->changed, kept->storage);
    const tni_log_tensor *tensor = i < 0 ? NULL : n->in[i].tensor;
    const char *named = tensor ? tensor->name : "";
    tni_phrase name = { "its result" };
    if (i >= 0) name = tni_log_name(n, i);
    say(tr, "overwritten", n, NULL,
        "%s kept %s%s%s%s for backward, and %s changed it in place afterwards", place(tr, n),
        name.s, named[0] ? " (" : "", named, named[0] ? ")" : "", by ? by : "somebody");
}
