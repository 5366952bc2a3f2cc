/*
 * hooks.c - what happens to gradients on their way: hooks change them, and when several processes
 * train one model, those of leaves are averaged over the ranks.
 */
#include "ext/trace/record.h"

/* The gradient before the next hook is known from the one before. */
static void note_hook(tn_trace *tr, const tni_hooked *h, const tn_tensor *gradient)
{
    tni_log_step *s = &tr->now;
    tni_numbers *way = &tr->pass->way, before = *way;
    tni_record_numbers(tr, way, gradient);
    if (h->number == 0) return;
    int node = h->node ? tni_record_node(tr, h->node, NULL) : -1;
    int leaf = h->node ? -1 : tni_record_tensor(tr, h->leaf);
    tni_log_hook *noted = TNI_MORE(tr, s, hooks);
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

static void hooked(tni_watcher *self, const tni_hooked *h, const tn_tensor *gradient)
{
    tn_trace *tr = (tn_trace *)self; /* without a pass: it began before the account */
    if (!tr->pass || !tni_record_begin(tr)) return;
    note_hook(tr, h, gradient);
    tni_record_end(tr);
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

static void note_average(tn_trace *tr, const tn_tensor *leaf, const tn_tensor *average, int ranks)
{
    tni_log_step *s = &tr->now;
    int tensor = tni_record_tensor(tr, leaf);
    if (!s->n_passes) return;
    tni_log_average *noted = TNI_MORE(tr, s, averages);
    if (!noted) return;
    *noted = (tni_log_average){ .pass = tr->ended, .tensor = tensor, .ranks = ranks };
    tni_record_numbers(tr, &noted->after, average);
    tni_log_share *share = share_of(tr, tensor);
    if (!share) return;
    noted->before = share->after;
    share->after = noted->after;
}

static void averaged(tni_watcher *self, const tn_tensor *leaf, const tn_tensor *average, int ranks)
{
    tn_trace *tr = (tn_trace *)self;
    if (!tni_record_begin(tr)) return;
    note_average(tr, leaf, average, ranks);
    tni_record_end(tr);
}

void tni_record_hooks(tni_watcher *w)
{
    w->hooked = hooked;
    w->averaged = averaged;
}
