/*
 * explain.c - tn_explain: one backward, told in words, and checked by finite differences.
 *
 * The recorder watches tn_backward as it is. If the loss can be computed again, each leaf is then
 * moved a little along its gradient g, to both sides: the loss must change by |g| per unit. Leaf,
 * buffers, extra state and generator are put back after each run.
 */
#include <float.h>
#include <math.h>

#include "ext/diagnose/explain.h"
#include "ext/trace/words.h"

static const char f[] = "tn_explain";

typedef struct leaf {
    tn_tensor *tensor, *gradient; /* one reference each; of this pass only */
    tni_log_share *share;         /* its last one, which gets the results */
} leaf;

typedef struct check {
    leaf *leaves;
    size_t n;
    tni_arena arena;
    tni_run run; /* what a run of the model may change */
    char refused[200];
} check;

/* ---- gradients ------------------------------------------------------------------------------- */

/* Called for each leaf of the pass; again when the gradient that was there is added. */
static void note_leaf(tn_trace *tr, const tn_tensor *t, tn_tensor *grad)
{
    check *c = tr->user;
    for (size_t i = 0; i < c->n; i++)
        if (c->leaves[i].tensor == t) return;
    tni_log_share *share = tni_record_last_share(tr, t);
    if (!share) return;
    tn_scope scope = tn_scope_begin();
    tn_tensor *copy = tn_clone(grad);
    tni_record_ok(tr, copy ? TN_OK : tni_pending());
    leaf *l = tni_record_more(tr, &c->arena, &c->leaves, &c->n, sizeof *l);
    if (l) *l = (leaf){ tn_keep((tn_tensor *)(uintptr_t)t), tn_keep(copy), share };
    tn_scope_end(scope);
}

/* ---- finite differences ---------------------------------------------------------------------- */

/* The loss, computed again without recording; then everything that it changed is restored. */
static tn_status loss_again(check *c, const tn_explain_options *o, double *value)
{
    tn_scope scope = tn_scope_begin();
    bool was = tn_set_grad_enabled(false);
    tn_tensor *loss = o->again(o->model, o->user);
    tn_status status = loss ? TN_OK : tni_poison(f, "the loss of again");
    if (status == TN_OK && (tni_none(loss) || tni_shape_numel(&loss->shape) != 1))
        status = tni_error(TN_E_SHAPE, "%s: again gave %s: want one element", f, tni_text(loss));
    if (status == TN_OK) *value = tn_item(loss);
    tn_status restored = tni_run_restore(&c->run);
    tn_set_grad_enabled(was);
    tn_scope_end(scope);
    return status == TN_OK ? restored : status;
}

/* Moves the leaf to both sides, and puts it back, version included: its bits are the same. */
static tn_status difference(check *c, const tn_explain_options *o, leaf *l, double h)
{
    double loss[2] = { 0 }; /* above and below */
    uint64_t version = tn_version(l->tensor);
    bool recording = tn_set_grad_enabled(false);
    tn_scope scope = tn_scope_begin();
    tn_tensor *was = tn_clone(l->tensor), *u = tn_mul_scalar(l->gradient, 1 / l->share->slope);
    tn_status status = was && u ? TN_OK : tni_pending();
    for (int side = 0; side < 2 && status == TN_OK; side++) {
        tn_tensor *moved = tn_add(was, tn_mul_scalar(u, side ? -h : h));
        status = moved ? tn_copy_(l->tensor, moved) : tni_pending();
        if (status == TN_OK) status = loss_again(c, o, &loss[side]);
    }
    if (was && tn_version(l->tensor) != version) {
        tn_status back = tni_put_last(l->tensor, was);
        if (status == TN_OK) status = back;
        atomic_store(&l->tensor->storage->version, version);
        tni_autocast_forget(); /* casts of what it was meanwhile */
    }
    tn_scope_end(scope);
    tn_set_grad_enabled(recording);
    l->share->difference = (loss[0] - loss[1]) / (2 * h);
    l->share->checked = status == TN_OK;
    return status;
}

/* The step is the cube root of the dtype's precision, scaled to the leaf's size. */
static tn_status check_leaf(check *c, const tn_explain_options *o, leaf *l)
{
    tni_numbers g = { 0 }, at = { 0 };
    tn_dtype dtype = l->tensor->dtype;
    tn_status status = tni_numbers_note(&g, l->gradient, 0, NULL);
    if (status == TN_OK) status = tni_numbers_note(&at, l->tensor, 0, NULL);
    l->share->slope = g.norm;
    bool may = (dtype == TN_F64 || dtype == TN_F32) && g.norm >= FLT_MIN && isfinite(g.norm);
    if (status != TN_OK || !may) return status;
    double eps = dtype == TN_F64 ? DBL_EPSILON : FLT_EPSILON;
    return difference(c, o, l, cbrt(eps) * TNI_MAX(at.norm, 1));
}

/* Whether a second run gives the loss that was explained. */
static tn_status compare_losses(check *c, const tn_explain_options *o, double loss)
{
    double now = 0;
    tn_status status = loss_again(c, o, &now);
    if (status == TN_OK && !(fabs(now - loss) <= 1e-4 * TNI_MAX(fabs(loss), 1e-3)))
        snprintf(c->refused, sizeof c->refused,
                 "no finite differences: again gives a loss of %.4g, not %.4g (does it draw other "
                 "random numbers, or read buffers that have moved?)",
                 now, loss);
    return status;
}

static tn_status check_all(check *c, const tn_explain_options *o, double loss)
{
    tn_status status = tni_run_carry(&c->run, o->model);
    if (status == TN_OK) status = compare_losses(c, o, loss);
    for (size_t i = 0; status == TN_OK && !c->refused[0] && i < c->n; i++)
        status = check_leaf(c, o, &c->leaves[i]);
    return status;
}

static void check_free(check *c)
{
    for (size_t i = 0; i < c->n; i++) {
        tn_drop(c->leaves[i].tensor);
        tn_drop(c->leaves[i].gradient);
    }
    tni_arena_free(&c->arena);
    tni_run_free(&c->run);
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
    return tni_trace_written(f, file);
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
    if (!tni_record_ok(tr, tni_numbers_note(&v, loss, 1, &s->arena))) return;
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
    if (!file) return tni_error(TN_E_INVALID, "%s: the file is NULL: want an open one", f);
    if (!loss || tni_none(loss) || tni_is_buried(loss)) return tni_poison(f, "loss");
    tn_status status = tni_trace_may_begin(f, options.model);
    if (status != TN_OK) return status;
    tn_trace *tr = tni_trace_start(
        (tn_trace_options){ .model = options.model, .opt = options.opt, .values = options.values },
        true);
    if (!tr) return tni_pending();
    check c = { .run.function = f };
    tn_keep(loss);
    tr->user = &c;
    tr->leaf = options.again ? note_leaf : NULL;
    status = tn_backward(loss); /* its failure is the caller's, and told */
    note_loss(tr, loss);
    tn_status failed = tni_trace_stop(tr);
    bool logged = tr->log.n_steps > 0 && failed == TN_OK;
    if (status == TN_OK && failed != TN_OK) status = tni_error(failed, "%s: out of memory", f);
    if (status == TN_OK && logged && options.again)
        status = check_all(&c, &options, tr->log.steps[0].loss);
    tni_saved_error error;
    tni_error_save(&error);
    tn_status written = logged ? write_account(file, tr, &c) : TN_OK;
    if (logged && written == TN_OK && options.json) written = tn_trace_json(options.json, tr);
    if (status != TN_OK) tni_error_restore(&error);
    check_free(&c);
    tn_trace_free(tr);
    tn_drop(loss);
    return status == TN_OK ? written : status;
}
