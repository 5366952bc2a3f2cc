/*
 * pass.c - what backward does: which gradients arrive at a node, what it makes of them, where that
 * goes. Passes can be nested, since a hook may run one. Of a pass that ran already when the account
 * began, nothing is told.
 */
#include "ext/trace/record.h"

#include "autograd/tape.h"

void tni_record_pass_free(tni_record_pass *p)
{
    tni_map_free(&p->newest);
    tni_map_free(&p->leaves);
    tni_map_free(&p->sum_of);
    tni_numbers_free(&p->way);
    tni_room_free(&p->sums, &p->sums_room, sizeof *p->sums);
    tni_room_free(&p->adds, &p->room, sizeof *p->adds);
    tni_free(p, sizeof *p);
}

/* Notes that a share (from -1: a seed) is added to an output of a node. */
static tn_status add(tni_record_pass *p, const tni_node *to, int output, int from, int in)
{
    const void *key = tni_sequence_key(to->sequence);
    if (!tni_room(&p->adds, &p->room, p->n_adds, 1, sizeof *p->adds)) return TN_E_NOMEM;
    p->adds[p->n_adds] = (tni_record_add){ { output, from, in }, tni_get(&p->newest, key) };
    return tni_put(&p->newest, key, (int)p->n_adds++);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static tn_status add_seeds(tni_record_pass *p)
{
    tn_status status = TN_OK;
    for (size_t k = 0; k < p->pass->ready.n; k++) {
        const tni_node *node = p->pass->ready.heap[k];
        for (int i = 0; status == TN_OK && i < node->n_out; i++)
            if (node->pending[i]) status = add(p, node, i, -1, 0);
    }
    return status;
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

/* A node that the pass may visit: its source line, and whether what it kept is still the same. */
static tn_status tell(tn_trace *tr, tni_log_node *n, const tni_node *node)
{
    const char *line = tni_call_site_line(node);
    int at = (int)(n - tr->now.nodes);
    tn_status status = TN_OK;
    n->known = true;
    if (!n->line && line[0] && !(n->line = tni_strdup(line))) return TN_E_NOMEM;
    for (int i = 0; status == TN_OK && i < node->n_in; i++)
        if (node->x[i].alias && tn_version(node->x[i].alias) != node->x[i].version &&
            !is_idle(node, i))
            status = tni_diagnose_change(tr, at, i, node->x[i].alias);
    if (status == TN_OK && node->y.alias && tn_version(node->y.alias) != node->y.version)
        status = tni_diagnose_change(tr, at, -1, node->y.alias);
    return status;
}

/* Tells all nodes that the pass may visit, oldest first, so that a node comes after those that made
 * its inputs. */
static tn_status add_nodes(tn_trace *tr, tni_record_pass *p, tni_log_pass *noted)
{
    tni_tape tape = { 0 };
    tn_status status = tni_tape_from(&tape, p->pass->ready.n, p->pass->ready.heap);
    for (size_t k = tape.n; status == TN_OK && k-- > 0;) {
        const tni_node *node = tape.node[k];
        if (p->pass->wanted && node->mark != p->pass->wanted) continue;
        int at = tni_record_node(tr, node, NULL);
        if (at < 0) {
            status = TN_E_NOMEM;
            break;
        }
        status = tell(tr, &tr->now.nodes[at], node);
        p->kept += kept_by(node);
        noted->n_nodes++;
        noted->root = at;
    }
    tni_tape_free(&tape);
    return status;
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

static tn_status begin_pass(tn_trace *tr, const tni_pass *pass)
{
    tni_log_step *s = &tr->now;
    tn_status status = tr->pass ? TN_OK : tni_record_open(tr);
    if (status != TN_OK) return status;
    tni_record_pass *p = tni_calloc(sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->pass = pass;
    p->number = (int)s->n_passes;
    p->back = -1;
    p->outer = tr->pass;
    if (p->outer) p->outer->disturbed = true;
    tr->pass = p;
    if (!tni_room(&s->passes, &s->pass_room, s->n_passes, 1, sizeof *s->passes)) return TN_E_NOMEM;
    tni_log_pass *noted = &s->passes[s->n_passes++];
    *noted = (tni_log_pass){ .root = -1, .accumulates = !pass->wanted };
    s->training = tr->model ? tn_training(tr->model) : tr->mode;
    status = add_nodes(tr, p, noted);
    if (status == TN_OK) status = add_seeds(p);
    if (status == TN_OK && !p->outer) status = tni_record_after_forward(tr);
    if (status == TN_OK) note_loss(tr, pass);
    return status;
}

static void begins(tni_watcher *self, const tni_pass *pass)
{
    tni_note note;
    if (tni_note_begin(&note, self)) tni_note_end(&note, begin_pass(note.trace, pass));
}

/* ---- a node ---------------------------------------------------------------------------------- */

/* Moves what was added at a node into its step of backward, in order of arrival. */
static tn_status take_adds(tni_record_pass *p, const tni_node *node, tni_log_back *b)
{
    int last = tni_get(&p->newest, tni_sequence_key(node->sequence));
    size_t n = 0;
    for (int i = last; i >= 0; i = p->adds[i].older) n++;
    if (!tni_room(&b->adds, &b->adds_room, 0, n, sizeof *b->adds)) return TN_E_NOMEM;
    b->n_adds = n;
    for (int i = last; i >= 0; i = p->adds[i].older) b->adds[--n] = p->adds[i].add;
    return TN_OK;
}

static tn_status note_arrived(tn_trace *tr, const tni_node *node)
{
    tni_log_step *s = &tr->now;
    tni_record_pass *p = tr->pass;
    if (!p) return TN_OK;
    int at = tni_record_node(tr, node, NULL);
    if (at < 0 || !tni_room(&s->backs, &s->back_room, s->n_backs, 1, sizeof *s->backs))
        return TN_E_NOMEM;
    if (p->pass->wanted && node->mark != p->pass->wanted) {
        /* an output that leads to no input of tn_gradients */
        tn_status late = tell(tr, &s->nodes[at], node);
        if (late != TN_OK) return late;
        s->passes[p->number].n_nodes++;
        p->kept += kept_by(node);
    }
    tni_log_back *b = &s->backs[s->n_backs];
    *b = (tni_log_back){ .pass = p->number, .node = at, .finding = -1 };
    b->incoming = tni_calloc_n((size_t)node->n_out, sizeof *b->incoming);
    if (!b->incoming) return TN_E_NOMEM;
    b->n_out = node->n_out;
    p->back = (int)s->n_backs++;
    size_t kept = kept_by(node);
    b->freed = p->pass->retain ? 0 : kept;
    b->kept = p->kept -= b->freed;
    tn_status status = take_adds(p, node, b);
    for (int i = 0; status == TN_OK && i < node->n_out; i++)
        if (node->pending[i])
            status = tni_numbers_note(&b->incoming[i], node->pending[i], tr->values);
    return status;
}

static tn_status arrived(tni_watcher *self, const tni_node *node)
{
    tni_note note;
    if (tni_note_begin(&note, self)) tni_note_end(&note, note_arrived(note.trace, node));
    return TN_OK;
}

/* ---- its shares ------------------------------------------------------------------------------ */

/* The leaf's gradient so far: its value before the pass plus the shares so far. */
static tn_status note_growth(tn_trace *tr, const tn_tensor *leaf, tni_numbers *after)
{
    tn_tensor *sum = leaf->gm->pending, *before = leaf->gm->grad;
    if (!before || tr->pass->pass->wanted) return tni_numbers_note(after, sum, tr->values);
    tn_scope scope = tn_scope_begin();
    sum = tn_add(sum, before); /* as the engine will, but into new memory */
    tn_status status = sum ? tni_numbers_note(after, sum, tr->values) : tni_pending();
    tn_scope_end(scope);
    return status;
}

/* The newest share of a leaf in this pass. */
static tni_log_share *last_share(const tn_trace *tr, int tensor)
{
    const tni_log_step *s = &tr->now;
    int at = tni_get(&tr->pass->leaves, tni_index_key(tensor));
    const tni_log_back *b = at < 0 ? NULL : &s->backs[at];
    for (size_t i = b ? b->n_shares : 0; i-- > 0;)
        if (b->shares[i].part && s->nodes[b->node].in[b->shares[i].in].tensor == tensor)
            return &b->shares[i];
    return NULL;
}

static tn_status note_leaf(tn_trace *tr, const tn_tensor *leaf, int tensor, tni_log_share *share)
{
    const tni_log_share *before = last_share(tr, tensor);
    tn_status status = TN_OK;
    if (before)
        status = tni_numbers_copy(&share->before, &before->after);
    else if (leaf->gm->grad && !tr->pass->pass->wanted)
        status = tni_numbers_note(&share->before, leaf->gm->grad, tr->values);
    share->part = before ? before->part + 1 : 1;
    if (leaf->gm->hooks.n) tr->pass->disturbed = true;
    if (status == TN_OK) status = tni_put(&tr->pass->leaves, tni_index_key(tensor), tr->pass->back);
    return status == TN_OK ? note_growth(tr, leaf, &share->after) : status;
}

static tn_status note_share(tn_trace *tr, const tni_node *node, int i, const tn_tensor *given,
                            const tn_tensor *value)
{
    const tni_edge *edge = &node->edge[i];
    tni_log_back *b = &tr->now.backs[tr->pass->back];
    if (!tni_room(&b->shares, &b->shares_room, b->n_shares, 1, sizeof *b->shares))
        return TN_E_NOMEM;
    tni_log_share *share = &b->shares[b->n_shares];
    *share = (tni_log_share){ .in = i,
                              .reduced = !tni_shape_equal(&given->shape, &value->shape),
                              .from = given->shape };
    tn_status status = tni_numbers_note(&share->value, value, tr->values);
    if (status == TN_OK && edge->node) status = add(tr->pass, edge->node, edge->index, b->node, i);
    if (status == TN_OK && edge->leaf)
        status = note_leaf(tr, edge->leaf, tr->now.nodes[b->node].in[i].tensor, share);
    b->n_shares++;
    return status;
}

static void delivered(tni_watcher *self, const tni_node *node, int i, tn_tensor *given,
                      tn_tensor *share)
{
    tni_note note;
    if (((tn_trace *)self)->pass && tni_note_begin(&note, self))
        tni_note_end(&note, note_share(note.trace, node, i, given, share));
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Now it is known how many shares each leaf got: the last one says it. */
static void count_parts(tn_trace *tr)
{
    tni_log_step *s = &tr->now;
    for (size_t k = 0; k < s->n_backs; k++) {
        tni_log_back *b = &s->backs[k];
        for (size_t i = 0; b->pass == tr->pass->number && i < b->n_shares; i++)
            if (b->shares[i].part)
                b->shares[i].of =
                    last_share(tr, s->nodes[b->node].in[b->shares[i].in].tensor)->part;
    }
}

/* After the hooks: notes what a leaf gets from the pass, and what its gradient will be. */
static tn_status settle(tn_trace *tr, const tn_tensor *leaf)
{
    tni_record_pass *p = tr->pass;
    int tensor = tni_record_tensor(tr, leaf);
    if (tensor < 0) return TN_E_NOMEM;
    tni_log_share *last = last_share(tr, tensor);
    bool changed = p->disturbed || leaf->gm->hooks.n;
    if (!last || !leaf->gm->pending || (last->part == 1 && !changed)) return TN_OK;
    tn_status status = changed ? note_growth(tr, leaf, &last->after) : TN_OK;
    if (status != TN_OK) return status;
    if (!tni_room(&p->sums, &p->sums_room, p->n_sums, 1, sizeof *p->sums)) return TN_E_NOMEM;
    tni_numbers sum = { 0 };
    status = tni_numbers_note(&sum, leaf->gm->pending, -1);
    p->sums[p->n_sums] = sum.norm;
    tni_numbers_free(&sum);
    return status == TN_OK ? tni_put(&p->sum_of, tni_index_key(tensor), (int)p->n_sums++) : status;
}

double tni_record_sum(const tn_trace *tr, int tensor, const tni_log_share *last)
{
    int i = tni_get(&tr->pass->sum_of, tni_index_key(tensor));
    return i < 0 ? last->value.norm : tr->pass->sums[i];
}

static tn_status end_pass(tn_trace *tr, tn_status status)
{
    tni_record_pass *p = tr->pass;
    tni_log_pass *noted = &tr->now.passes[p->number];
    tn_status judged = TN_OK;
    count_parts(tr);
    for (size_t i = 0; judged == TN_OK && i < p->pass->n_receivers; i++)
        if (p->pass->receivers[i].leaf) judged = settle(tr, p->pass->receivers[i].leaf);
    if (judged == TN_OK) judged = tni_diagnose(tr, p->number);
    tr->pass = p->outer;
    tr->ended = p->number;
    tni_record_pass_free(p);
    if (status == TN_OK || judged != TN_OK) return judged;
    noted->error = tni_strdup(tn_error());
    return noted->error ? TN_OK : TN_E_NOMEM;
}

static void ends(tni_watcher *self, const tni_pass *pass, tn_status status)
{
    tn_trace *tr = (tn_trace *)self;
    tni_note note;
    if (tr->pass && tr->pass->pass == pass && tni_note_begin(&note, self))
        tni_note_end(&note, end_pass(tr, status));
}

static tn_status finished(tni_watcher *self, const tn_tensor *leaf, tn_tensor *grad)
{
    tn_trace *tr = (tn_trace *)self;
    tni_note note;
    if (tr->leaf && tni_note_begin(&note, self)) tni_note_end(&note, tr->leaf(tr, leaf, grad));
    return TN_OK;
}

void tni_record_backward(tni_watcher *w)
{
    w->finished = finished;
    w->begins = begins;
    w->ends = ends;
    w->arrived = arrived;
    w->delivered = delivered;
}
