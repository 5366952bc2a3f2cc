/*
 * pass.c - what backward does: which gradients arrive at a node, what it makes of them, where that
 * goes, and what becomes of it on the way: hooks change it, and when several processes train one
 * model, the gradients of leaves are averaged over the ranks.
 *
 * Passes can be nested, since a hook may run one. Of a pass that ran already when the account
 * began, nothing is told.
 */
#include "ext/trace/record.h"

#include "autograd/tape.h"

void tni_record_pass_end(tn_trace *tr)
{
    tni_record_pass *p = tr->pass;
    tr->pass = p->outer;
    tni_map_free(&p->incoming);
    tni_map_free(&p->leaves);
    tni_free(p, sizeof *p);
}

/* What arrives at the outputs of a node; NULL: the account ends. */
static tni_log_arrival *incoming(tn_trace *tr, const tni_node *node)
{
    const void *key = tni_sequence_key(node->sequence);
    tni_log_arrival *in = tni_map_get(&tr->pass->incoming, key);
    if (in) return in;
    in = tni_arena_alloc(&tr->now.arena, (size_t)node->n_out * sizeof *in);
    if (in) tni_record_put(tr, &tr->pass->incoming, key, in);
    return in;
}

/* Notes that a share (NULL: the seed) is added to an output of a node. */
static void add(tn_trace *tr, const tni_node *to, int output, const tni_log_share *share)
{
    tni_log_arrival *in = incoming(tr, to);
    const tni_log_share **added = in ? TNI_MORE(tr, &in[output], adds) : NULL;
    if (added) *added = share;
}

/* ---- the beginning --------------------------------------------------------------------------- */

static size_t kept_by(const tni_node *node)
{
    size_t n = tni_bytes_of(node->y.alias);
    for (int i = 0; i < node->n_in; i++) n += tni_bytes_of(node->x[i].alias);
    for (int i = 0; i < node->n_saved; i++) n += tni_bytes_of(node->saved[i]);
    return n;
}

/* Whether a recomputed op keeps input i only for who computes its result again, and nobody does. */
static bool is_idle(const tni_node *node, int i)
{
    bool need[TNI_MAX_IN];
    if (!node->op->recompute || atomic_load_explicit(&node->holds, memory_order_relaxed) > 1)
        return false;
    for (int k = 0; k < node->n_in; k++) need[k] = node->edge[k].node || node->edge[k].leaf;
    return !(tni_reads(node->op, node->n_in, need) & TNI_X(i));
}

/* Notes of a node to come its line, whether what it kept is the same. NULL: the account ends. */
static const tni_log_node *tell(tn_trace *tr, const tni_node *node)
{
    tni_log_node *n = tni_record_node(tr, node, NULL);
    const char *line = tni_call_site_line(node);
    if (!n) return NULL;
    n->known = true;
    if (!n->line && line[0]) n->line = tni_arena_text(&tr->now.arena, line);
    for (int i = 0; i < node->n_in; i++)
        if (node->x[i].alias && tn_version(node->x[i].alias) != node->x[i].version &&
            !is_idle(node, i))
            tni_diagnose_change(tr, n, i, node->x[i].alias);
    if (node->y.alias && tn_version(node->y.alias) != node->y.version)
        tni_diagnose_change(tr, n, -1, node->y.alias);
    tr->pass->kept += kept_by(node);
    tr->pass->noted->n_nodes++;
    return n;
}

/* The loss: the outermost backward's root, if of one element; until there is one, tn_gradients'. */
static void note_loss(tn_trace *tr, const tni_pass *pass)
{
    const tni_node *newest = pass->ready.n ? pass->ready.heap[0] : NULL;
    const void *key = newest ? tni_sequence_key(newest->sequence) : NULL;
    const tni_log_node *root = key ? tni_map_get(&tr->nodes, key) : NULL;
    int i = 0;
    if (!root || pass->outer || (pass->wanted && tr->now.loss_known)) return;
    if (!tr->now.loss_known) tr->now.root = root;
    while (i + 1 < newest->n_out && !newest->pending[i]) i++;
    const tni_numbers *v = &root->out[i].value;
    if (!v->known || v->n != 1) return;
    tr->now.loss = v->mean;
    tr->now.loss_known = true;
    tr->now.root = root;
}

static void begins(tni_watcher *self, const tni_pass *pass)
{
    TNI_RECORDER(tr, self);
    if (!tr) return;
    if (!tr->pass) tni_record_open(tr);
    tni_record_pass *p = tni_calloc(sizeof *p);
    if (!tni_record_ok(tr, p ? TN_OK : TN_E_NOMEM)) return;
    *p = (tni_record_pass){ .outer = tr->pass, .pass = pass, .noted = TNI_NEW(&tr->now, passes) };
    if (p->outer) p->outer->disturbed = true;
    tr->pass = p;
    if (!p->noted) return;
    *p->noted = (tni_log_pass){ .number = (int)tr->now.n_passes, .accumulates = !pass->wanted };
    tr->now.training = tr->model ? tn_training(tr->model) : tr->mode;
    /* all nodes that it may visit, each after those that made its inputs: the root is the last */
    tni_tape tape = { 0 };
    tni_record_ok(tr, tni_tape_from(&tape, pass->ready.n, pass->ready.heap));
    for (size_t k = tape.n; tr->failed == TN_OK && k-- > 0;)
        if (!pass->wanted || tape.node[k]->mark == pass->wanted)
            p->noted->root = tell(tr, tape.node[k]);
    tni_tape_free(&tape);
    for (size_t k = 0; k < pass->ready.n; k++) /* the seeds */
        for (int i = 0; i < pass->ready.heap[k]->n_out; i++)
            if (pass->ready.heap[k]->pending[i]) add(tr, pass->ready.heap[k], i, NULL);
    if (!p->outer) tni_record_registered(tr, TNI_FORWARD);
    if (tr->failed == TN_OK) note_loss(tr, pass);
}

/* ---- a node, and its shares ------------------------------------------------------------------ */

static tn_status arrived(tni_watcher *self, const tni_node *node)
{
    TNI_RECORDER(tr, self);
    const tni_log_node *n = tr && tr->pass ? tni_record_node(tr, node, NULL) : NULL;
    if (!n) return TN_OK;
    tni_record_pass *p = tr->pass;
    if (p->pass->wanted && node->mark != p->pass->wanted)
        tell(tr, node); /* an output that leads to no input of tn_gradients */
    tni_log_arrival *in = incoming(tr, node);
    size_t shares = (size_t)node->n_in * sizeof *p->back->shares;
    size_t freed = p->pass->retain ? 0 : kept_by(node);
    tni_log_back *b = in ? TNI_NEW(&tr->now, backs) : NULL;
    if (!b) return TN_OK;
    p->back = b;
    p->kept -= freed;
    *b = (tni_log_back){ .pass = p->noted, .node = n, .incoming = in, .freed = freed };
    b->shares = tni_arena_alloc(&tr->now.arena, shares);
    b->kept = p->kept;
    for (int i = 0; i < node->n_out; i++)
        if (node->pending[i]) tni_record_numbers(tr, &in[i].value, node->pending[i]);
    return TN_OK;
}

/* The leaf's gradient so far: its value before the pass plus the shares so far. */
static void note_growth(tn_trace *tr, const tn_tensor *leaf, tni_numbers *after)
{
    tn_tensor *sum = leaf->gm->pending, *before = leaf->gm->grad;
    TNI_SCOPED;
    if (before && !tr->pass->pass->wanted)
        sum = tn_add(sum, before); /* as the engine will, but into new memory */
    if (tni_record_ok(tr, sum ? TN_OK : tni_pending())) tni_record_numbers(tr, after, sum);
}

tni_log_share *tni_record_last_share(tn_trace *tr, const tn_tensor *leaf)
{
    const tni_log_tensor *tensor = tni_record_tensor(tr, leaf);
    return tensor && tr->pass ? tni_map_get(&tr->pass->leaves, tensor) : NULL;
}

/* A share of the running step of backward goes to a leaf. */
static void note_leaf(tn_trace *tr, const tn_tensor *leaf, tni_log_share *share)
{
    tni_record_pass *p = tr->pass;
    share->older = tni_map_get(&p->leaves, share->leaf);
    share->part = share->older ? share->older->part + 1 : 1;
    share->sum = share->value.norm;
    if (share->older)
        share->before = share->older->after;
    else if (leaf->gm->grad && !p->pass->wanted)
        tni_record_numbers(tr, &share->before, leaf->gm->grad);
    tni_record_put(tr, &p->leaves, share->leaf, share);
    if (leaf->gm->hooks.n) p->disturbed = true;
    note_growth(tr, leaf, &share->after);
}

static void delivered(tni_watcher *self, const tni_node *node, int i, tn_tensor *given,
                      tn_tensor *value)
{
    TNI_RECORDER(tr, self);
    if (!tr || !tr->pass) return;
    const tni_edge *edge = &node->edge[i];
    tni_log_back *b = tr->pass->back;
    tni_log_share *share = &b->shares[b->n_shares++];
    *share = (tni_log_share){ .back = b, .in = i, .from = given->shape };
    share->leaf = edge->leaf ? b->node->in[i].tensor : NULL;
    share->reduced = !tni_shape_equal(&given->shape, &value->shape);
    tni_record_numbers(tr, &share->value, value);
    if (edge->node) add(tr, edge->node, edge->index, share);
    if (share->leaf) note_leaf(tr, edge->leaf, share);
}

/* ---- on the way ------------------------------------------------------------------------------ */

/* Before the first hook and after each: the gradient before the next is known from the one before.
 * A node's run before its turn, a leaf's after its last share. No pass: it began before that. */
static void hooked(tni_watcher *self, const tni_hooked *h, const tn_tensor *gradient)
{
    TNI_RECORDER(tr, self);
    if (!tr || !tr->pass) return;
    tni_numbers *way = &tr->pass->way, before = *way;
    tni_record_numbers(tr, way, gradient);
    if (h->number == 0) return;
    tni_log_arrival *in = h->node ? incoming(tr, h->node) : NULL;
    tni_log_share *share = h->node ? NULL : tni_record_last_share(tr, h->leaf);
    tni_log_hooks *to = in ? &in[h->output].hooks : share ? &share->hooks : NULL;
    tni_log_hook *noted = to ? TNI_MORE(tr, to, hook) : NULL;
    if (noted) *noted = (tni_log_hook){ h->number, h->of, before, *way };
}

static void averaged(tni_watcher *self, const tn_tensor *leaf, const tn_tensor *average, int ranks)
{
    TNI_RECORDER(tr, self);
    const tni_log_tensor *tensor = tr ? tni_record_tensor(tr, leaf) : NULL;
    tni_log_average *noted = tensor && tr->ended ? TNI_MORE(tr, tr->ended, averages) : NULL;
    if (!noted) return;
    *noted = (tni_log_average){ .tensor = tensor, .ranks = ranks };
    tni_record_numbers(tr, &noted->after, average);
    tni_log_share *share = tni_map_get(&tr->brought, tensor);
    if (!share) return;
    noted->before = share->after;
    share->after = noted->after;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void ends(tni_watcher *self, const tni_pass *pass, tn_status status)
{
    TNI_RECORDER(tr, self);
    if (!tr || !tr->pass || tr->pass->pass != pass) return;
    tni_log_pass *noted = tr->pass->noted;
    /* now it is known which ops inputs came from, and how many shares each leaf got */
    for (size_t k = 0; k < tr->now.n_nodes; k++)
        for (int i = 0; i < tr->now.nodes[k]->n_in; i++) {
            tni_log_in *in = &tr->now.nodes[k]->in[i];
            in->node = tni_map_get(&tr->nodes, tni_sequence_key(in->from));
        }
    const tni_map *leaves = &tr->pass->leaves;
    for (size_t k = 0; k < leaves->capacity; k++) {
        const tni_log_share *last = leaves->cell[k].value;
        for (tni_log_share *s = leaves->cell[k].value; s; s = s->older) s->of = last->part;
    }
    /* after the hooks: what leaves get from the pass, and what their gradients will be */
    for (size_t i = 0; i < pass->n_receivers; i++) {
        const tn_tensor *leaf = pass->receivers[i].leaf;
        tni_log_share *last = leaf ? tni_record_last_share(tr, leaf) : NULL;
        bool changed = last && (tr->pass->disturbed || leaf->gm->hooks.n);
        if (!last || !leaf->gm->pending || (last->part == 1 && !changed)) continue;
        if (changed) note_growth(tr, leaf, &last->after);
        tni_numbers sum;
        tni_record_ok(tr, tni_numbers_note(&sum, leaf->gm->pending, -1, NULL, NULL));
        last->sum = sum.norm;
    }
    tni_diagnose(tr, noted);
    tr->ended = noted;
    tni_map_free(&tr->brought);
    tr->brought = tr->pass->leaves;
    tr->pass->leaves = (tni_map){ 0 };
    tni_record_pass_end(tr);
    if (status == TN_OK || tr->failed != TN_OK) return;
    noted->error = tni_arena_text(&tr->now.arena, tn_error());
}

static tn_status finished(tni_watcher *self, const tn_tensor *leaf, tn_tensor *grad)
{
    TNI_RECORDER(tr, self);
    if (tr && tr->leaf) tr->leaf(tr, leaf, grad);
    return TN_OK;
}

void tni_record_backward(tni_watcher *w)
{
    w->begins = begins, w->ends = ends, w->finished = finished;
    w->arrived = arrived, w->delivered = delivered;
    w->hooked = hooked, w->averaged = averaged;
}
