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

static tn_status say(tn_trace *tr, const char *kind, int node, tni_log_back *back,
                     const char *format, ...) TN_PRINTF(5, 6);
static tn_status say(tn_trace *tr, const char *kind, int node, tni_log_back *back,
                     const char *format, ...)
{
    tni_log_step *s = &tr->now;
    if (s->n_findings == MOST) return TN_OK;
    if (!tni_room(&s->findings, &s->finding_room, s->n_findings, 1, sizeof *s->findings))
        return TN_E_NOMEM;
    va_list args;
    va_start(args, format);
    char *text = tni_vtext(format, args);
    va_end(args);
    if (!text) return TN_E_NOMEM;
    if (back && back->finding < 0) back->finding = (int)s->n_findings;
    s->findings[s->n_findings++] = (tni_log_finding){ kind, node, text };
    return TN_OK;
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
static const char *reason(const tn_trace *tr, const tni_log_node *n, char *text, size_t size)
{
    const tni_log_op *op = &tr->log.ops[n->op];
    text[0] = '\0';
    for (int i = 0; i < n->n_in && !text[0]; i++) {
        const tni_numbers *v = input_of(tr, &n->in[i]);
        char name[32];
        tni_log_name(op, i, n->n_in, name, sizeof name);
        if (!v || !v->known) continue;
        if (v->nan || v->inf)
            snprintf(text, size, "; %s holds %s", name, how_bad(v));
        else if (v->n && v->zeros == v->n)
            snprintf(text, size, "; %s is 0 everywhere", name);
        else if (v->zeros)
            snprintf(text, size, "; %s holds %" PRId64 " zero%s", name, v->zeros,
                     v->zeros == 1 ? "" : "s");
        else if (v->n && v->min < 0 && v->max >= 0)
            snprintf(text, size, "; %s has numbers below 0", name);
        else if (v->n && v->max < 0)
            snprintf(text, size, "; all of %s is below 0", name);
    }
    return text;
}

/* ---- where it begins ------------------------------------------------------------------------- */

/* A result that is not finite although the inputs are; masks are filled with -inf on purpose. */
static tn_status judge_forward(tn_trace *tr, int node)
{
    const tni_log_step *s = &tr->now;
    const tni_log_node *n = &s->nodes[node];
    for (size_t i = 0; i < s->n_findings; i++) /* by an earlier pass */
        if (s->findings[i].node == node) return TN_OK;
    bool before = strcmp(tr->log.ops[n->op].name, "masked_fill") == 0;
    for (int i = 0; i < n->n_in; i++) before |= bad(input_of(tr, &n->in[i]));
    char place[256], why[96];
    for (int i = 0; n->known && !before && i < n->n_out; i++)
        if (bad(&n->out[i].value))
            return say(tr, how_bad(&n->out[i].value), node, NULL, "%s made %s of finite numbers%s",
                       tni_log_place(&tr->log, &tr->now, node, place, sizeof place),
                       how_bad(&n->out[i].value), reason(tr, n, why, sizeof why));
    return TN_OK;
}

/* Whether the op is relu and its result is all 0. */
static bool is_dead(const tn_trace *tr, const tni_log_node *n)
{
    const tni_numbers *y = &n->out[0].value;
    return strcmp(tr->log.ops[n->op].name, "relu") == 0 && y->known && y->zeros == y->n;
}

static tn_status judge_share(tn_trace *tr, tni_log_back *b, const tni_log_share *share)
{
    const tni_log_node *n = &tr->now.nodes[b->node];
    const tni_numbers *v = &share->value;
    char place[256], name[32], why[96];
    tni_log_place(&tr->log, &tr->now, b->node, place, sizeof place);
    tni_log_name(&tr->log.ops[n->op], share->in, n->n_in, name, sizeof name);
    if (bad(v))
        return say(tr, how_bad(v), b->node, b, "%s: its gradient of %s holds %s%s", place, name,
                   how_bad(v), reason(tr, n, why, sizeof why));
    if (v->norm != 0 || !v->n) return TN_OK;
    if (is_dead(tr, n))
        return say(tr, "zero", b->node, b,
                   "%s lets no gradient through: all %" PRId64 " inputs are negative or 0", place,
                   v->n);
    return say(tr, "zero", b->node, b, "%s: the gradient of %s is 0 everywhere%s", place, name,
               reason(tr, n, why, sizeof why));
}

/* Judges a step of backward whose incoming gradient is finite and not all 0. */
static tn_status judge_back(tn_trace *tr, tni_log_back *b)
{
    double most = 0;
    tn_status status = TN_OK;
    for (int i = 0; i < b->n_out; i++) {
        if (bad(&b->incoming[i])) return TN_OK;
        most = TNI_MAX(most, b->incoming[i].norm);
    }
    for (size_t i = 0; most > 0 && status == TN_OK && i < b->n_shares; i++)
        status = judge_share(tr, b, &b->shares[i]);
    return status;
}

/* ---- leaves ---------------------------------------------------------------------------------- */

static double rms(const tni_numbers *v)
{
    return v->known && v->n ? v->norm / sqrt((double)v->n) : 0;
}

/* The share that an add brought. */
static const tni_log_share *share_of(const tni_log_step *s, const int *back_of,
                                     const tni_log_add *a)
{
    const tni_log_back *b =
        a->node < 0 || back_of[a->node] < 0 ? NULL : &s->backs[back_of[a->node]];
    for (size_t i = 0; b && i < b->n_shares; i++)
        if (b->shares[i].in == a->in) return &b->shares[i];
    return NULL;
}

/* The largest share in what arrived. NULL: only the seed did. */
static const tni_log_add *largest(const tni_log_step *s, const int *back_of, const tni_log_back *b)
{
    const tni_log_add *found = NULL;
    double most = -1;
    for (size_t i = 0; i < b->n_adds; i++) {
        const tni_log_share *share = share_of(s, back_of, &b->adds[i]);
        if (!share || share->value.norm <= most) continue;
        most = share->value.norm;
        found = &b->adds[i];
    }
    return found;
}

/* The op between the loss and a share that shrank or grew the gradient most. */
static int culprit(const tni_log_step *s, const int *back_of, const tni_log_back *b,
                   const tni_log_share *share, bool shrank)
{
    int found = b->node;
    double most = 0;
    while (b) {
        double came = 0, made = rms(&share->value);
        for (int i = 0; i < b->n_out; i++) came = TNI_MAX(came, rms(&b->incoming[i]));
        double change = shrank ? came / made : made / came;
        if (made > 0 && came > 0 && change > most) {
            most = change;
            found = b->node;
        }
        const tni_log_add *a = largest(s, back_of, b);
        share = a ? share_of(s, back_of, a) : NULL;
        b = share ? &s->backs[back_of[a->node]] : NULL;
    }
    return found;
}

typedef struct verdict {
    const int *back_of;
    int pass;
    double largest;        /* norm of what a leaf gets */
    unsigned char *blamed; /* per node: once is enough */
} verdict;

/* The leaf's largest share in the pass; *b: the step of backward that gave it. */
static const tni_log_share *largest_share(const tni_log_step *s, int pass, int tensor,
                                          const tni_log_back **b)
{
    const tni_log_share *found = NULL;
    for (size_t k = 0; k < s->n_backs; k++)
        for (size_t i = 0; s->backs[k].pass == pass && i < s->backs[k].n_shares; i++) {
            const tni_log_share *share = &s->backs[k].shares[i];
            if (!share->part || s->nodes[s->backs[k].node].in[share->in].tensor != tensor) continue;
            if (found && !(share->value.norm > found->value.norm)) continue;
            found = share;
            *b = &s->backs[k];
        }
    return found;
}

/* Judges the whole gradient of a leaf; last: the last of its shares. */
static tn_status judge_leaf(tn_trace *tr, const tni_log_back *b, const tni_log_share *last,
                            const verdict *v)
{
    tni_log_step *s = &tr->now;
    const tni_log_in *in = &s->nodes[b->node].in[last->in];
    const tni_numbers *value = input_of(tr, in);
    double norm = tni_record_sum(tr, in->tensor, last);
    double size = value && value->known ? value->norm : 0;
    bool small = norm > 0 && norm < vanishing * v->largest;
    bool large = isfinite(norm) && isfinite(size) && norm > exploding * TNI_MAX(size, 1);
    if (!small && !large) return TN_OK;
    const tni_log_share *most = largest_share(s, v->pass, in->tensor, &b);
    int node = culprit(s, v->back_of, b, most, small);
    if (v->blamed[node]++) return TN_OK;
    char place[256];
    const tni_log_tensor *leaf = &tr->log.tensors[in->tensor];
    tni_log_place(&tr->log, s, node, place, sizeof place);
    tni_log_back *at = &s->backs[v->back_of[node]];
    if (small)
        return say(tr, "vanishing", node, at,
                   "%s: its gradient is less than 1e-5 of the largest; %s shrinks it most",
                   leaf->name[0] ? leaf->name : "a leaf", place);
    return say(tr, "exploding", node, at,
               "%s: its gradient is more than 1000 times its own size; %s enlarges it most",
               leaf->name[0] ? leaf->name : "a leaf", place);
}

static tn_status judge_leaves(tn_trace *tr, verdict *v)
{
    tni_log_step *s = &tr->now;
    tn_status status = TN_OK;
    for (int round = 0; round < 2; round++)
        for (size_t k = 0; status == TN_OK && k < s->n_backs; k++) {
            tni_log_back *b = &s->backs[k];
            for (size_t i = 0; b->pass == v->pass && status == TN_OK && i < b->n_shares; i++) {
                const tni_log_share *share = &b->shares[i];
                if (!share->part || share->part != share->of) continue;
                double norm = tni_record_sum(tr, s->nodes[b->node].in[share->in].tensor, share);
                if (round == 1)
                    status = judge_leaf(tr, b, share, v);
                else if (isfinite(norm))
                    v->largest = TNI_MAX(v->largest, norm);
            }
        }
    return status;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

tn_status tni_diagnose(tn_trace *tr, int pass)
{
    tni_log_step *s = &tr->now;
    size_t n = s->n_nodes + 1;
    int *back_of = tni_alloc_n(n, sizeof *back_of);
    verdict v = { back_of, pass, 0, tni_calloc(n) };
    tn_status status = back_of && v.blamed ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; back_of && i < s->n_nodes; i++) back_of[i] = -1;
    for (size_t i = 0; status == TN_OK && i < s->n_nodes; i++) status = judge_forward(tr, (int)i);
    for (size_t k = 0; status == TN_OK && k < s->n_backs; k++) {
        if (s->backs[k].pass != pass) continue;
        back_of[s->backs[k].node] = (int)k;
        status = judge_back(tr, &s->backs[k]);
    }
    if (status == TN_OK) status = judge_leaves(tr, &v);
    tni_free(back_of, n * sizeof *back_of);
    tni_free(v.blamed, n);
    return status;
}

tn_status tni_diagnose_change(tn_trace *tr, int node, int i, const tn_tensor *kept)
{
    const tni_log_node *n = &tr->now.nodes[node];
    const tni_log_op *op = &tr->log.ops[n->op];
    const char *by = tni_map_get(&tr->changed, kept->storage);
    int tensor = i < 0 ? -1 : n->in[i].tensor;
    const char *named = tensor < 0 ? "" : tr->log.tensors[tensor].name;
    char place[256], name[32] = "its result";
    if (i >= 0) tni_log_name(op, i, n->n_in, name, sizeof name);
    return say(tr, "overwritten", node, NULL,
               "%s kept %s%s%s%s for backward, and %s changed it in place afterwards",
               tni_log_place(&tr->log, &tr->now, node, place, sizeof place), name,
               named[0] ? " (" : "", named, named[0] ? ")" : "", by ? by : "somebody");
}
