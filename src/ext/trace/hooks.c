/*
 * hooks.c - what happens to gradients on their way: hooks change them, and when several processes
 * train one model, those of leaves are averaged over the ranks.
 */
#include "ext/trace/record.h"

/* The gradient before the next hook is known from the one before. */
static tn_status note_hook(tn_trace *tr, const tni_hooked *h, const tn_tensor *gradient)
{
    tni_log_step *s = &tr->now;
    tni_record_pass *p = tr->pass;
    if (!p) return TN_OK; /* the pass began before the account */
    if (h->number == 0) return tni_numbers_note(&p->way, gradient, tr->values);
    tni_log_hook hook = { .pass = p->number,
                          .node = h->node ? tni_record_node(tr, h->node, NULL) : -1,
                          .output = h->output,
                          .tensor = h->node ? -1 : tni_record_tensor(tr, h->leaf),
                          .number = h->number,
                          .of = h->of };
    if ((hook.node < 0 && hook.tensor < 0) ||
        !tni_room(&s->hooks, &s->hook_room, s->n_hooks, 1, sizeof *s->hooks))
        return TN_E_NOMEM;
    tni_log_hook *noted = &s->hooks[s->n_hooks++];
    *noted = hook;
    noted->before = p->way;
    p->way = (tni_numbers){ 0 };
    tn_status status = tni_numbers_note(&noted->after, gradient, tr->values);
    return status == TN_OK ? tni_numbers_copy(&p->way, &noted->after) : status;
}

static void hooked(tni_watcher *self, const tni_hooked *h, const tn_tensor *gradient)
{
    tni_note note;
    if (tni_note_begin(&note, self)) tni_note_end(&note, note_hook(note.trace, h, gradient));
}

/* The last share of a leaf in the pass that ended; NULL: the leaf got none. */
static tni_log_share *share_of(tn_trace *tr, int tensor)
{
    tni_log_step *s = &tr->now;
    for (size_t k = s->n_backs; k-- > 0;) {
        tni_log_back *b = &s->backs[k];
        for (size_t i = 0; b->pass == tr->ended && i < b->n_shares; i++)
            if (b->shares[i].part && b->shares[i].part == b->shares[i].of &&
                s->nodes[b->node].in[b->shares[i].in].tensor == tensor)
                return &b->shares[i];
    }
    return NULL;
}

static tn_status note_average(tn_trace *tr, const tn_tensor *leaf, const tn_tensor *average,
                              int ranks)
{
    tni_log_step *s = &tr->now;
    int tensor = tni_record_tensor(tr, leaf);
    if (!s->n_passes) return TN_OK;
    if (tensor < 0 ||
        !tni_room(&s->averages, &s->average_room, s->n_averages, 1, sizeof *s->averages))
        return TN_E_NOMEM;
    tni_log_average *noted = &s->averages[s->n_averages++];
    *noted = (tni_log_average){ .pass = tr->ended, .tensor = tensor, .ranks = ranks };
    tn_status status = tni_numbers_note(&noted->after, average, tr->values);
    tni_log_share *share = share_of(tr, tensor);
    if (!share || status != TN_OK) return status;
    noted->before = share->after;
    share->after = (tni_numbers){ 0 };
    return tni_numbers_copy(&share->after, &noted->after);
}

static void averaged(tni_watcher *self, const tn_tensor *leaf, const tn_tensor *average, int ranks)
{
    tni_note note;
    if (tni_note_begin(&note, self))
        tni_note_end(&note, note_average(note.trace, leaf, average, ranks));
}

void tni_record_hooks(tni_watcher *w)
{
    w->hooked = hooked;
    w->averaged = averaged;
}
