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
    tni_map_free(&p->newest);
    tni_map_free(&p->leaves);
    tni_room_free(&p->adds, &p->room, sizeof *p->adds);
    tni_free(p, sizeof *p);
}

/* Notes that a share of a step of backward (-1: a seed) is added to an output of a node. */
static void add(tn_trace *tr, const tni_node *to, int output, int back, size_t share)
{
    tni_record_pass *p = tr->pass;
    const void *key = tni_sequence_key(to->sequence);
    bool room = tni_room(&p->adds, &p->room, p->n_adds, 1, sizeof *p->adds);
    if (!tni_record_ok(tr, room ? TN_OK : TN_E_NOMEM)) return;
    p->adds[p->n_adds] = (tni_record_add){ { output, back, share }, tni_get(&p->newest, key) };
    tni_record_put(tr, &p->newest, key, (int)p->n_adds++);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static void add_seeds(tn_trace *tr, const tni_pass *pass)
{
    for (size_t k = 0; k < pass->ready.n; k++) {
        const tni_node *node = pass->ready.heap[k];
        for (int i = 0; i < node->n_out; i++)
            if (node->pending[i]) add(tr, node, i, -1, 0);
    }
}

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

/* Notes of a node that the pass may visit its source line, and whether what it kept is still the
 * same. Gives its index; -1: the account ends. */
static int tell(tn_trace *tr, const tni_node *node)
{
    int at = tni_record_node(tr, node, NULL);
    const char *line = tni_call_site_line(node);
    if (at < 0) return -1;
    tni_log_node *n = &tr->now.nodes[at];
    n->known = true;
    if (!n->line && line[0]) n->line = tni_record_text(tr, &tr->now.arena, line);
    for (int i = 0; i < node->n_in; i++)
        if (node->x[i].alias && tn_version(node->x[i].alias) != node->x[i].version &&
            !is_idle(node, i))
            tni_diagnose_change(tr, at, i, node->x[i].alias);
    if (node->y.alias && tn_version(node->y.alias) != node->y.version)
        tni_diagnose_change(tr, at, -1, node->y.alias);
    tr->pass->kept += kept_by(node);
    tr->now.passes[tr->pass->number].n_nodes++;
    return at;
}

/* Tells all nodes that the pass may visit, oldest first, so that a node comes after those that made
 * its inputs. The last one is the root. */
static void add_nodes(tn_trace *tr, const tni_pass *pass)
{
    tni_tape tape = { 0 };
    tni_record_ok(tr, tni_tape_from(&tape, pass->ready.n, pass->ready.heap));
    for (size_t k = tape.n; tr->failed == TN_OK && k-- > 0;)
        if (!pass->wanted || tape.node[k]->mark == pass->wanted)
            tr->now.passes[tr->pass->number].root = tell(tr, tape.node[k]);
    tni_tape_free(&tape);
}

/* The loss: the root of the outermost backward, if it has one element; until there is one, that of
 * tn_gradients. */
static void note_loss(tn_trace *tr, const tni_pass *pass)
{
    const tni_node *newest = pass->ready.n ? pass->ready.heap[0] : NULL;
    int root = newest ? tni_get(&tr->nodes, tni_sequence_key(newest->sequence)) : -1, i = 0;
    if (root < 0 || pass->outer || (pass->wanted && tr->now.loss_known)) return;
    if (!tr->now.loss_known) tr->now.root = root;
    while (i + 1 < newest->n_out && !newest->pending[i]) i++;
    const tni_numbers *v = &tr->now.nodes[root].out[i].value;
    if (!v->known || v->n != 1) return;
    tr->now.loss = v->mean;
    tr->now.loss_known = true;
    tr->now.root = root;
}

static void begins(tni_watcher *self, const tni_pass *pass)
{
    TNI_RECORDER(tr, self);
    if (!tr) return;
    tni_log_step *s = &tr->now;
    if (!tr->pass) tni_record_open(tr);
    tni_record_pass *p = tni_calloc(sizeof *p);
    if (!tni_record_has(tr, p)) return;
    *p = (tni_record_pass){ .outer = tr->pass, .pass = pass, .number = (int)s->n_passes };
    if (p->outer) p->outer->disturbed = true;
    tr->pass = p;
    tni_log_pass *noted = TNI_MORE(tr, s, passes);
    if (!noted) return;
    *noted = (tni_log_pass){ .root = -1, .accumulates = !pass->wanted };
    s->training = tr->model ? tn_training(tr->model) : tr->mode;
    add_nodes(tr, pass);
    add_seeds(tr, pass);
    if (!p->outer) tni_record_after_forward(tr);
    if (tr->failed == TN_OK) note_loss(tr, pass);
}

/* ---- a node ---------------------------------------------------------------------------------- */

/* Moves what was added at a node into its step of backward, in order of arrival. */
static void take_adds(tn_trace *tr, const tni_node *node, tni_log_back *b)
{
    const tni_record_pass *p = tr->pass;
    int last = tni_get(&p->newest, tni_sequence_key(node->sequence));
    for (int i = last; i >= 0; i = p->adds[i].older) b->n_adds++;
    size_t n = b->n_adds;
    b->adds = tni_record_alloc(tr, &tr->now.arena, n * sizeof *b->adds);
    for (int i = last; b->adds && i >= 0; i = p->adds[i].older) b->adds[--n] = p->adds[i].add;
}

static tn_status arrived(tni_watcher *self, const tni_node *node)
{
    TNI_RECORDER(tr, self);
    int at = tr && tr->pass ? tni_record_node(tr, node, NULL) : -1;
    if (at < 0) return TN_OK;
    tni_log_step *s = &tr->now;
    tni_record_pass *p = tr->pass;
    if (p->pass->wanted && node->mark != p->pass->wanted)
        tell(tr, node); /* an output that leads to no input of tn_gradients */
    tni_log_back *b = TNI_MORE(tr, s, backs);
    if (!b) return TN_OK;
    p->back = (int)s->n_backs - 1;
    size_t freed = p->pass->retain ? 0 : kept_by(node);
    p->kept -= freed;
    *b = (tni_log_back){ .pass = p->number,
                         .node = at,
                         .n_out = node->n_out,
                         .freed = freed,
                         .kept = p->kept,
                         .finding = -1 };
    b->incoming = tni_record_alloc(tr, &s->arena, (size_t)node->n_out * sizeof *b->incoming);
    take_adds(tr, node, b);
    for (int i = 0; b->incoming && i < node->n_out; i++)
        if (node->pending[i]) tni_record_numbers(tr, &b->incoming[i], node->pending[i]);
    return TN_OK;
}

/* ---- its shares ------------------------------------------------------------------------------ */

/* The leaf's gradient so far: its value before the pass plus the shares so far. */
static void note_growth(tn_trace *tr, const tn_tensor *leaf, tni_numbers *after)
{
    tn_tensor *sum = leaf->gm->pending, *before = leaf->gm->grad;
    tn_scope scope = tn_scope_begin();
    if (before && !tr->pass->pass->wanted)
        sum = tn_add(sum, before); /* as the engine will, but into new memory */
    if (tni_record_ok(tr, sum ? TN_OK : tni_pending())) tni_record_numbers(tr, after, sum);
    tn_scope_end(scope);
}

tni_log_leaf *tni_record_leaf(const tn_trace *tr, int tensor)
{
    int at = tensor < 0 ? -1 : tni_get(&tr->pass->leaves, tni_index_key(tensor));
    return at < 0 ? NULL : &tr->now.leaves[at];
}

/* Share i of the running step of backward goes to a leaf. */
static void note_leaf(tn_trace *tr, const tn_tensor *tensor, size_t i)
{
    tni_log_step *s = &tr->now;
    tni_record_pass *p = tr->pass;
    tni_log_share *share = &s->backs[p->back].shares[i];
    tni_log_add this = { .back = p->back, .share = i }, most = this;
    tni_log_leaf *leaf = tni_record_leaf(tr, share->leaf);
    if (leaf) {
        if (!(share->value.norm > tni_log_added(s, &leaf->most)->value.norm)) most = leaf->most;
        share->before = tni_log_last(s, leaf)->after;
        share->part = tni_log_last(s, leaf)->part + 1;
    } else {
        share->part = 1;
        if (tensor->gm->grad && !p->pass->wanted)
            tni_record_numbers(tr, &share->before, tensor->gm->grad);
        leaf = TNI_MORE(tr, s, leaves);
        if (!leaf) return;
        tni_record_put(tr, &p->leaves, tni_index_key(share->leaf), (int)s->n_leaves - 1);
    }
    *leaf = (tni_log_leaf){ p->number, share->leaf, this, most, share->value.norm };
    if (tensor->gm->hooks.n) p->disturbed = true;
    note_growth(tr, tensor, &share->after);
}

static void delivered(tni_watcher *self, const tni_node *node, int i, tn_tensor *given,
                      tn_tensor *value)
{
    TNI_RECORDER(tr, self);
    if (!tr || !tr->pass) return;
    const tni_edge *edge = &node->edge[i];
    tni_log_step *s = &tr->now;
    tni_log_back *b = &s->backs[tr->pass->back];
    tni_log_share *share = tni_record_more(tr, &s->arena, &b->shares, &b->n_shares, sizeof *share);
    if (!share) return;
    *share = (tni_log_share){ .in = i,
                              .leaf = edge->leaf ? s->nodes[b->node].in[i].tensor : -1,
                              .reduced = !tni_shape_equal(&given->shape, &value->shape),
                              .from = given->shape };
    tni_record_numbers(tr, &share->value, value);
    if (edge->node) add(tr, edge->node, edge->index, tr->pass->back, b->n_shares - 1);
    if (edge->leaf) note_leaf(tr, edge->leaf, b->n_shares - 1);
}

/* ---- on the way ------------------------------------------------------------------------------ */

/* Before the first hook and after each: the gradient before the next is known from the one before.
 * Without a pass: it began before the account. */
static void hooked(tni_watcher *self, const tni_hooked *h, const tn_tensor *gradient)
{
    TNI_RECORDER(tr, self);
    if (!tr || !tr->pass) return;
    tni_numbers *way = &tr->pass->way, before = *way;
    tni_record_numbers(tr, way, gradient);
    if (h->number == 0) return;
    int node = h->node ? tni_record_node(tr, h->node, NULL) : -1;
    int leaf = h->node ? -1 : tni_record_tensor(tr, h->leaf);
    tni_log_hook *noted = TNI_MORE(tr, &tr->now, hooks);
    if (noted)
        *noted = (tni_log_hook){ .pass = tr->pass->number,
                                 .node = node,
                                 .output = h->output,
                                 .tensor = leaf,
                                 .number = h->number,
                                 .of = h->of,
                                 .before = before,
                                 .after = *way };
}

/* The last share of a leaf in the pass that ended; NULL: the leaf got none. */
static tni_log_share *share_of(const tn_trace *tr, int tensor)
{
    const tni_log_step *s = &tr->now;
    for (size_t i = s->n_leaves; i-- > 0;)
        if (s->leaves[i].pass == tr->ended && s->leaves[i].tensor == tensor)
            return tni_log_last(s, &s->leaves[i]);
    return NULL;
}

static void averaged(tni_watcher *self, const tn_tensor *leaf, const tn_tensor *average, int ranks)
{
    TNI_RECORDER(tr, self);
    int tensor = tr ? tni_record_tensor(tr, leaf) : -1;
    if (!tr || !tr->now.n_passes) return;
    tni_log_average *noted = TNI_MORE(tr, &tr->now, averages);
    if (!noted) return;
    *noted = (tni_log_average){ .pass = tr->ended, .tensor = tensor, .ranks = ranks };
    tni_record_numbers(tr, &noted->after, average);
    tni_log_share *share = share_of(tr, tensor);
    if (!share) return;
    noted->before = share->after;
    share->after = noted->after;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Now it is known how many shares each leaf got. */
static void count_parts(tn_trace *tr)
{
    tni_log_step *s = &tr->now;
    for (size_t k = 0; k < s->n_backs; k++) {
        tni_log_back *b = &s->backs[k];
        for (size_t i = 0; b->pass == tr->pass->number && i < b->n_shares; i++)
            if (b->shares[i].part)
                b->shares[i].of = tni_log_last(s, tni_record_leaf(tr, b->shares[i].leaf))->part;
    }
}

/* After the hooks: notes what a leaf gets from the pass, and what its gradient will be. */
static void settle(tn_trace *tr, const tn_tensor *tensor)
{
    tni_log_leaf *leaf = tni_record_leaf(tr, tni_record_tensor(tr, tensor));
    tni_log_share *last = leaf ? tni_log_last(&tr->now, leaf) : NULL;
    bool changed = tr->pass->disturbed || tensor->gm->hooks.n;
    if (!last || !tensor->gm->pending || (last->part == 1 && !changed)) return;
    if (changed) note_growth(tr, tensor, &last->after);
    tni_numbers sum;
    tni_record_ok(tr, tni_numbers_note(&sum, tensor->gm->pending, -1, NULL));
    leaf->norm = sum.norm;
}

static void ends(tni_watcher *self, const tni_pass *pass, tn_status status)
{
    TNI_RECORDER(tr, self);
    if (!tr || !tr->pass || tr->pass->pass != pass) return;
    tni_log_pass *noted = &tr->now.passes[tr->pass->number];
    count_parts(tr);
    for (size_t i = 0; i < pass->n_receivers; i++)
        if (pass->receivers[i].leaf) settle(tr, pass->receivers[i].leaf);
    tni_diagnose(tr, tr->pass->number);
    tr->ended = tr->pass->number;
    tni_record_pass_end(tr);
    if (status == TN_OK || tr->failed != TN_OK) return;
    noted->error = tni_record_text(tr, &tr->now.arena, tn_error());
}

static tn_status finished(tni_watcher *self, const tn_tensor *leaf, tn_tensor *grad)
{
    TNI_RECORDER(tr, self);
    if (tr && tr->leaf) tr->leaf(tr, leaf, grad);
    return TN_OK;
}

void tni_record_backward(tni_watcher *w)
{
    w->finished = finished;
    w->begins = begins;
    w->ends = ends;
    w->arrived = arrived;
    w->delivered = delivered;
    w->hooked = hooked;
    w->averaged = averaged;
}
