/*
 * explain.c - tn_explain: one backward, told in words, and checked by finite differences.
 *
 * The recorder watches tn_backward as it is. If the loss can be computed again, each leaf is then
 * moved a little along its gradient g, to both sides: the loss must change by |g| per unit. Leaf,
 * buffers, extra state and generator are put back after each run.
 */
#include <float.h>

#include "ext/diagnose/explain.h"
#include "ext/trace/words.h"

static const char f[] = "tn_explain";

/* ---- finite differences ---------------------------------------------------------------------- */

typedef struct leaf {
    tn_tensor *tensor, *gradient; /* one reference each; of this pass only */
    tni_log_share *share;         /* its last one, which gets the results */
} leaf;

typedef struct check {
    leaf *leaves; /* in run's arena */
    size_t n;
    tni_run run; /* of again */
    char refused[200];
} check;

/* Called for each leaf of the pass; again when the gradient that was there is added. */
static void note_leaf(tn_trace *tr, const tn_tensor *t, tn_tensor *grad)
{
    check *c = tr->user;
    for (size_t i = 0; i < c->n; i++)
        if (c->leaves[i].tensor == t) return;
    tni_log_share *share = tni_record_last_share(tr, t);
    if (!share) return;
    TNI_SCOPED;
    tn_tensor *copy = tn_clone(grad);
    tni_record_ok(tr, copy ? TN_OK : tni_pending());
    leaf *l = tni_arena_more(&c->run.arena, &c->leaves, &c->n, sizeof *l);
    if (l) *l = (leaf){ tn_keep((tn_tensor *)(uintptr_t)t), tn_keep(copy), share };
}

/* The step is the cube root of the dtype's precision, scaled to the leaf's size. */
static tn_status check_leaf(check *c, leaf *l)
{
    tni_numbers g = { 0 }, at = { 0 };
    tn_dtype dtype = l->tensor->dtype;
    TNI_TRY(tni_numbers_note(&g, l->gradient, 0, NULL, NULL));
    TNI_TRY(tni_numbers_note(&at, l->tensor, 0, NULL, NULL));
    l->share->slope = g.norm;
    bool may = (dtype == TN_F64 || dtype == TN_F32) && g.norm >= FLT_MIN && isfinite(g.norm);
    if (!may) return TN_OK;
    double eps = dtype == TN_F64 ? DBL_EPSILON : FLT_EPSILON;
    TN_SCOPE TNI_TRY(tni_run_slope(&c->run, l->tensor, tn_mul_scalar(l->gradient, 1 / g.norm),
                                   cbrt(eps) * TNI_MAX(at.norm, 1), &l->share->difference));
    l->share->checked = true;
    return TN_OK;
}

/* Whether a second run gives the loss that was explained; then the leaves. */
static tn_status check_all(check *c, double loss)
{
    double now = 0;
    TNI_TRY(tni_run_carry(&c->run));
    TNI_TRY(tni_run_loss(&c->run, &now));
    if (!(fabs(now - loss) <= 1e-4 * TNI_MAX(fabs(loss), 1e-3)))
        snprintf(c->refused, sizeof c->refused,
                 "no finite differences: again gives a loss of %.4g, not %.4g (does it draw other "
                 "random numbers, or read buffers that have moved?)",
                 now, loss);
    for (size_t i = 0; !c->refused[0] && i < c->n; i++) TNI_TRY(check_leaf(c, &c->leaves[i]));
    return TN_OK;
}

/* ---- telling --------------------------------------------------------------------------------- */

static tn_status write_account(FILE *file, const tn_trace *tr, const check *c)
{
    tni_words w = { file, &tr->log.steps[0] };
    fprintf(file, "%s%sbackward", tr->log.title, tr->log.title[0] ? ": " : "");
    if (w.step->loss_known) fprintf(file, " of loss %.4g", w.step->loss);
    fprintf(file, ", %zu ops\n", w.step->n_nodes);
    if (c->refused[0]) fprintf(file, "%s\n", c->refused);
    fputc('\n', file);
    tni_say_backward(&w);
    tni_say_state(&w);
    return tni_stream_written(f, file);
}

/* The value of the loss: the tape does not hold it. */
static void note_loss(tn_trace *explained, const tn_tensor *loss)
{
    TNI_RECORDER(tr, &explained->watcher);
    if (!tr) return;
    tni_log_step *s = &tr->now;
    const void *key = loss->node ? tni_sequence_key(loss->node->sequence) : NULL;
    const tni_log_node *root = tni_map_get(&tr->nodes, key);
    tni_numbers v;
    if (!tni_record_ok(tr, tni_numbers_note(&v, loss, 1, &s->arena, NULL))) return;
    s->loss_known |= v.n == 1;
    if (v.n == 1) s->loss = v.mean;
    if (!root) return;
    s->root = root;
    root->out[loss->out_index].value = v;
}

tn_status tn_explain(FILE *file, tn_tensor *loss, tn_explain_options options)
{
    TNI_C_NUMBERS;
    TNI_SCOPES_STAY;
    if (!file) return tni_null(f, "the file", "an open one");
    if (!loss || tni_none(loss) || tni_is_buried(loss)) return tni_poison(f, "loss");
    TNI_TRY(tni_trace_may_begin(f, options.model));
    tn_trace *tr = tni_trace_start(
        (tn_trace_options){ .model = options.model, .opt = options.opt, .values = options.values },
        true);
    if (!tr) return tni_pending();
    check c = { .run = { .function = f, .what = "the loss of again", .model = options.model } };
    c.run.loss = options.again, c.run.user = options.user;
    tn_keep(loss);
    tr->user = &c;
    c.run.arena.failed = &tr->failed;
    tr->leaf = options.again ? note_leaf : NULL;
    tn_status status = tn_backward(loss); /* its failure is the caller's, and told */
    note_loss(tr, loss);
    tn_status failed = tni_trace_stop(tr);
    bool logged = tr->log.n_steps > 0 && failed == TN_OK;
    if (status == TN_OK && failed != TN_OK) status = tni_error(failed, "%s: out of memory", f);
    TN_NO_GRAD if (status == TN_OK && logged && options.again) status =
        check_all(&c, tr->log.steps[0].loss);
    tni_saved_error error;
    tni_error_save(&error);
    tn_status written = logged ? write_account(file, tr, &c) : TN_OK;
    if (logged && written == TN_OK && options.json) written = tn_trace_json(options.json, tr);
    if (status != TN_OK) tni_error_restore(&error);
    for (size_t i = 0; i < c.n; i++) {
        tn_drop(c.leaves[i].tensor);
        tn_drop(c.leaves[i].gradient);
    }
    tni_run_free(&c.run);
    tn_trace_free(tr);
    tn_drop(loss);
    return status == TN_OK ? written : status;
}
