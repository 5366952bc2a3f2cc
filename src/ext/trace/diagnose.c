/*
 * diagnose.c - findings: which op made a gradient vanish, explode, 0, NaN or infinite.
 *
 * NaN, infinities and zeros are blamed on the op where they begin: none came in, some went out. If
 * a leaf's gradient (the sum of its shares in the pass) is far too small or too large, the path
 * from the op that read the leaf is followed towards the loss, along the largest shares. The op on
 * it that shrank or grew the gradient's root mean square most is blamed. The limits are in trace.h.
 */
#include <math.h>

#include "ext/trace/record.h"

static const double vanishing = 1e-5, exploding = 1e3;
enum { MOST = 32 }; /* findings of one step */

/* back: the step of backward that shows it; NULL: none */
static void say(tn_trace *tr, const char *kind, int node, tni_log_back *back, const char *format,
                ...) TN_PRINTF(5, 6);
static void say(tn_trace *tr, const char *kind, int node, tni_log_back *back, const char *format,
                ...)
{
    tni_log_step *s = &tr->now;
    if (s->n_findings == MOST) return;
    va_list args;
    va_start(args, format);
    char *text = tni_vtext(format, args);
    va_end(args);
    char *copy = tni_record_has(tr, text) ? tni_record_text(tr, &s->arena, text) : NULL;
    tni_strfree(text);
    tni_log_finding *f = TNI_MORE(tr, s, findings);
    if (!f) return;
    *f = (tni_log_finding){ kind, node, copy };
    if (back && back->finding < 0) back->finding = (int)s->n_findings - 1;
}

static tni_phrase place(const tn_trace *tr, int node)
{
    return tni_log_place(&tr->log, &tr->now, node);
}

static const tni_log_op *op_of(const tn_trace *tr, const tni_log_node *n)
{
    return &tr->log.ops[n->op];
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* The recorder's nodes are not yet in order: an input's op is found by its sequence. */
static const tni_numbers *input_of(const tn_trace *tr, const tni_log_in *in)
{
    int from = in->from ? tni_get(&tr->nodes, tni_sequence_key(in->from)) : -1;
    if (!in->from) return tni_log_input(&tr->now, in);
    return from < 0 ? NULL : &tr->now.nodes[from].out[in->output].value;
}

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
        const tni_numbers *v = input_of(tr, &n->in[i]);
        tni_phrase name = tni_log_name(op_of(tr, n), i, n->n_in);
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
static void judge_forward(tn_trace *tr, int node)
{
    const tni_log_step *s = &tr->now;
    const tni_log_node *n = &s->nodes[node];
    for (size_t i = 0; i < s->n_findings; i++) /* by an earlier pass */
        if (s->findings[i].node == node) return;
    bool before = strcmp(op_of(tr, n)->name, "masked_fill") == 0;
    for (int i = 0; i < n->n_in; i++) before |= bad(input_of(tr, &n->in[i]));
    for (int i = 0; n->known && !before && i < n->n_out; i++) {
        const tni_numbers *v = &n->out[i].value;
        if (!bad(v)) continue;
        say(tr, how_bad(v), node, NULL, "%s made %s of finite numbers%s", place(tr, node).s,
            how_bad(v), reason(tr, n).s);
        return;
    }
}

/* Whether the op is relu and its result is all 0. */
static bool is_dead(const tn_trace *tr, const tni_log_node *n)
{
    const tni_numbers *y = &n->out[0].value;
    return strcmp(op_of(tr, n)->name, "relu") == 0 && y->known && y->zeros == y->n;
}

static void judge_share(tn_trace *tr, tni_log_back *b, const tni_log_share *share)
{
    const tni_log_node *n = &tr->now.nodes[b->node];
    const tni_numbers *v = &share->value;
    tni_phrase name = tni_log_name(op_of(tr, n), share->in, n->n_in);
    tni_phrase op = place(tr, b->node);
    if (bad(v))
        say(tr, how_bad(v), b->node, b, "%s: its gradient of %s holds %s%s", op.s, name.s,
            how_bad(v), reason(tr, n).s);
    else if (v->norm == 0 && v->n && is_dead(tr, n))
        say(tr, "zero", b->node, b,
            "%s lets no gradient through: all %" PRId64 " inputs are negative or 0", op.s, v->n);
    else if (v->norm == 0 && v->n)
        say(tr, "zero", b->node, b, "%s: the gradient of %s is 0 everywhere%s", op.s, name.s,
            reason(tr, n).s);
}

/* Judges a step of backward whose incoming gradient is finite and not all 0. */
static void judge_back(tn_trace *tr, tni_log_back *b)
{
    double most = 0;
    for (int i = 0; i < b->n_out; i++) {
        if (bad(&b->incoming[i])) return;
        most = TNI_MAX(most, b->incoming[i].norm);
    }
    for (size_t i = 0; most > 0 && i < b->n_shares; i++) judge_share(tr, b, &b->shares[i]);
}

/* ---- leaves ---------------------------------------------------------------------------------- */

static double rms(const tni_numbers *v)
{
    return v->known && v->n ? v->norm / sqrt((double)v->n) : 0;
}

/* The largest share in what arrived at a step of backward. NULL: only the seed did. */
static const tni_log_add *largest(const tni_log_step *s, const tni_log_back *b)
{
    const tni_log_add *found = NULL;
    double most = -1;
    for (size_t i = 0; i < b->n_adds; i++) {
        const tni_log_share *share = tni_log_added(s, &b->adds[i]);
        if (!share || share->value.norm <= most) continue;
        most = share->value.norm;
        found = &b->adds[i];
    }
    return found;
}

/* Between the loss and a share, the step of backward that shrank or grew the gradient most. */
static int culprit(const tni_log_step *s, const tni_log_add *at, bool shrank)
{
    int found = at->back;
    double most = 0;
    for (; at; at = largest(s, &s->backs[at->back])) {
        const tni_log_back *b = &s->backs[at->back];
        double came = 0, made = rms(&tni_log_added(s, at)->value);
        for (int i = 0; i < b->n_out; i++) came = TNI_MAX(came, rms(&b->incoming[i]));
        double change = shrank ? came / made : made / came;
        if (!(made > 0 && came > 0 && change > most)) continue;
        most = change;
        found = at->back;
    }
    return found;
}

typedef struct verdict {
    int pass;
    double largest;        /* norm of what a leaf gets */
    unsigned char *blamed; /* per step of backward: once is enough */
} verdict;

/* Judges the whole gradient of a leaf. */
static void judge_leaf(tn_trace *tr, const tni_log_leaf *leaf, const verdict *v)
{
    tni_log_step *s = &tr->now;
    const tni_log_node *reader = &s->nodes[s->backs[leaf->last.back].node];
    const tni_numbers *value = input_of(tr, &reader->in[tni_log_last(s, leaf)->in]);
    double size = value && value->known ? value->norm : 0;
    bool small = leaf->norm > 0 && leaf->norm < vanishing * v->largest;
    bool large =
        isfinite(leaf->norm) && isfinite(size) && leaf->norm > exploding * TNI_MAX(size, 1);
    if (!small && !large) return;
    int back = culprit(s, &leaf->most, small);
    if (v->blamed[back]++) return;
    int node = s->backs[back].node;
    const char *name = tr->log.tensors[leaf->tensor].name;
    say(tr, small ? "vanishing" : "exploding", node, &s->backs[back],
        small ? "%s: its gradient is less than 1e-5 of the largest; %s shrinks it most"
              : "%s: its gradient is more than 1000 times its own size; %s enlarges it most",
        name[0] ? name : "a leaf", place(tr, node).s);
}

/* In the order of their last shares. */
static void judge_leaves(tn_trace *tr, verdict *v)
{
    const tni_log_step *s = &tr->now;
    for (size_t i = 0; i < s->n_leaves; i++)
        if (s->leaves[i].pass == v->pass && isfinite(s->leaves[i].norm))
            v->largest = TNI_MAX(v->largest, s->leaves[i].norm);
    for (size_t k = 0; k < s->n_backs; k++)
        for (size_t i = 0; s->backs[k].pass == v->pass && i < s->backs[k].n_shares; i++) {
            const tni_log_share *share = &s->backs[k].shares[i];
            if (share->part && share->part == share->of)
                judge_leaf(tr, tni_record_leaf(tr, share->leaf), v);
        }
}

/* ---- a pass ---------------------------------------------------------------------------------- */

void tni_diagnose(tn_trace *tr, int pass)
{
    tni_log_step *s = &tr->now;
    verdict v = { pass, 0, tni_record_alloc(tr, &s->arena, s->n_backs) };
    if (!v.blamed) return;
    for (size_t i = 0; i < s->n_nodes; i++) judge_forward(tr, (int)i);
    for (size_t k = 0; k < s->n_backs; k++)
        if (s->backs[k].pass == pass) judge_back(tr, &s->backs[k]);
    judge_leaves(tr, &v);
}

void tni_diagnose_change(tn_trace *tr, int node, int i, const tn_tensor *kept)
{
    const tni_log_node *n = &tr->now.nodes[node];
    const char *by = tni_map_get(&tr->changed, kept->storage);
    int tensor = i < 0 ? -1 : n->in[i].tensor;
    const char *named = tensor < 0 ? "" : tr->log.tensors[tensor].name;
    tni_phrase name = { "its result" };
    if (i >= 0) name = tni_log_name(op_of(tr, n), i, n->n_in);
    say(tr, "overwritten", node, NULL,
        "%s kept %s%s%s%s for backward, and %s changed it in place afterwards", place(tr, node).s,
        name.s, named[0] ? " (" : "", named, named[0] ? ")" : "", by ? by : "somebody");
}
