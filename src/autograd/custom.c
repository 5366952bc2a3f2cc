/*
 * custom.c - ops of the user (tenon/custom.h).
 *
 * Each application has an `own`, with a descriptor (tn_op) of its own, so that the engine sees an
 * op like any other: the node counts the own as its args. Saved inputs are kept where the engine
 * looks for them (node->x), so it checks their versions and gives them their history back; all else
 * is kept in node->saved, and checked here.
 */
#include <tenon/custom.h>

#include "autograd/graph.h"
#include "autograd/notify.h"

typedef struct saved {
    tn_tensor *tensor; /* counted until forward has ended */
    uint64_t version;
    int input, output; /* which it is; -1: none */
    int other;         /* its index in node->saved; -1: it is an input or TN_NONE */
} saved;

/* What an application and its node share. */
typedef struct own {
    atomic_int refs;
    tn_op op;
    const tn_custom_op *type;
    void *user;
    tn_dtype cast; /* autocast's dtype at forward */
    saved *save;
    size_t n_save, save_room;
    tni_node *node; /* that counts this; NULL: none */
    int n_out;
    bool plain[]; /* n_out: takes no gradient */
} own;

struct tn_custom {
    own *own;
    tn_status failed; /* the first failure in a call that forward made and did not check */
    bool recorded;
    int n_in;
    tn_tensor *const *in;
    const tni_grad *grad; /* NULL in forward */
};

/* ---- life ------------------------------------------------------------------------------------ */

static own *own_of(const void *args)
{
    return *(own *const *)args;
}

static void keep(void *args)
{
    atomic_fetch_add_explicit(&own_of(args)->refs, 1, memory_order_relaxed);
}

static void own_drop(own *o)
{
    if (!tni_last(&o->refs)) return;
    if (o->type->free) o->type->free(o->user);
    tni_room_free(&o->save, &o->save_room, sizeof *o->save);
    tni_free(o, sizeof *o + (size_t)o->n_out * sizeof *o->plain);
}

static void drop(void *args)
{
    own_drop(own_of(args));
}

static tn_status backward(tni_grad *g);

static own *own_new(const tn_custom_op *type, void *user, int n_out)
{
    own *o = tni_calloc(sizeof *o + (size_t)n_out * sizeof *o->plain);
    if (!o) return NULL;
    o->refs = 1;
    o->type = type;
    o->user = user;
    o->cast = tni_autocasting;
    o->n_out = n_out;
    o->op = (tn_op){ .name = type->name,
                     .formula = type->formula,
                     .gradient = type->gradient,
                     .arity = -1,
                     .optional = ~0u,
                     .dtypes = TNI_ANY_DTYPE,
                     .any_device = true,
                     .custom = true,
                     .plain = o->plain,
                     .backward = type->backward ? backward : NULL,
                     .keep = keep,
                     .drop = drop };
    return o;
}

/* ---- forward --------------------------------------------------------------------------------- */

tn_status tni_user_status(const char *who, const char *function, tn_status status, uint64_t errors)
{
    if (tni_error_count != errors) return status == TN_OK ? tni_pending() : status;
    if (status == TN_OK) return status;
    return tni_error(status, "%s: its %s gave a status without a message: want tn_fail", who,
                     function);
}

/* Runs the user's forward unrecorded; results are in the current scope. */
static tn_status run_forward(own *o, bool recorded, int n_in, tn_tensor *const *in, tn_tensor **out)
{
    tn_custom c = { .own = o, .recorded = recorded, .n_in = n_in, .in = in };
    tn_dtype cast = tn_autocast();
    uint64_t errors = tni_error_count;
    tn_status status;
    tni_watch_suspended++; /* a watcher sees one op, not the ops inside */
    TN_NO_GRAD status = o->type->forward(&c, n_in, in, o->n_out, out);
    tni_watch_suspended--;
    if (tn_autocast() != cast) tn_set_autocast(cast);
    status = tni_user_status(o->type->name, "forward", status ? status : c.failed, errors);
    for (int i = 0; status == TN_OK && i < o->n_out; i++) {
        if (out[i] && !tni_none(out[i])) continue;
        status = tni_pending();
        if (status == TN_OK || out[i])
            status = tni_error(TN_E_INVALID, "%s: its forward gave %s for output %d: want a tensor",
                               o->type->name, out[i] ? "TN_NONE" : "NULL", i);
    }
    return status;
}

static tn_status check_unchanged(const own *o, int n_in, tn_tensor *const *in, const uint64_t *was)
{
    for (int i = 0; i < n_in; i++)
        if (in[i]->requires_grad && tn_version(in[i]) != was[i])
            return tni_error(TN_E_STATE,
                             "%s: its forward changed input %d, %s, in place, which requires grad: "
                             "want a result of its own",
                             o->type->name, i, tni_text(in[i]));
    return TN_OK;
}

/* The index of the output that is t and takes a gradient; -1: none. */
static int output_of(const own *o, tn_tensor *const *out, const tn_tensor *t)
{
    for (int i = 0; i < o->n_out; i++)
        if (out[i] == t && tn_dtype_is_float(t->dtype) && !o->plain[i]) return i;
    return -1;
}

/* Decides where each saved tensor is kept; others collects those that are not inputs. */
static int sort_saved(own *o, int n_in, tn_tensor *const *in, tn_tensor *const *out,
                      tn_tensor **others)
{
    int n = 0;
    for (size_t k = 0; k < o->n_save; k++) {
        saved *s = &o->save[k];
        if (tni_none(s->tensor)) continue;
        for (s->input = n_in - 1; s->input >= 0 && in[s->input] != s->tensor;) s->input--;
        s->output = output_of(o, out, s->tensor);
        if (s->input >= 0) continue;
        s->other = n;
        others[n++] = s->tensor;
    }
    return n;
}

static tn_status keep_inputs(const own *o)
{
    for (size_t k = 0; k < o->n_save; k++) {
        const saved *s = &o->save[k];
        if (s->input < 0) continue;
        tni_saved *kept = &o->node->x[s->input];
        if (!kept->alias && !tni_save_alias(kept, s->tensor)) return TN_E_NOMEM;
        kept->version = s->version;
    }
    return TN_OK;
}

/* Records c. Its outputs are new handles; results are what forward returned. */
static tn_status record(own *o, tni_call *c, tn_tensor *const *results)
{
    TNI_ITEMS(tn_tensor *, others, o->n_save);
    if (!others) return TN_E_NOMEM;
    TNI_SCOPED;
    c->n_saved = sort_saved(o, c->n_in, c->in, results, others);
    c->saved = others;
    o->op.reads[0] = c->n_saved ? TNI_SAVED : 0;
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK && i < c->n_saved; i++) /* the node's own */
        if (!(others[i] = tn_scope_adopt(tni_alias_raw(others[i])))) status = tni_pending();
    if (status == TN_OK) status = tni_record(c, sizeof o);
    for (int i = 0; i < c->n_out && !o->node; i++) o->node = c->out[i]->node;
    return status == TN_OK && o->node ? keep_inputs(o) : status;
}

/* out[i]: new handles, in the current scope, for what forward computes. */
static tn_status apply(own *o, int n_in, tn_tensor *const *in, tn_tensor **results, tn_tensor **out,
                       uint64_t *version)
{
    tni_call c = { &o->op, &o, .n_in = n_in, .in = in, .n_out = o->n_out, .out = out };
    c.recorded = tni_wants_recording(&c);
    for (int i = 0; i < n_in; i++) version[i] = tn_version(in[i]);
    tn_status status = TNI_NOTIFY_OP(starts, o->op.name);
    if (status == TN_OK) status = run_forward(o, c.recorded, n_in, in, results);
    if (status == TN_OK && c.recorded) status = check_unchanged(o, n_in, in, version);
    for (int i = 0; status == TN_OK && i < o->n_out; i++)
        if (!(out[i] = tn_scope_adopt(tni_alias_raw(results[i])))) status = tni_pending();
    if (status == TN_OK && c.recorded) status = record(o, &c, results);
    for (size_t k = 0; k < o->n_save; k++) tn_drop(o->save[k].tensor);
    if (status == TN_OK) status = TNI_NOTIFY_OP(applied, &c);
    return status;
}

tn_status tni_check_arrays(const char *function, int n_in, tn_tensor *const *in, int n_out,
                           tn_tensor **out)
{
    if (n_in < 0 || (n_in && !in) || n_out < 1 || !out)
        return tni_error(
            TN_E_INVALID,
            "%s: %d inputs%s and %d outputs%s: want arrays of them, and at least one output",
            function, n_in, n_in && !in ? " at NULL" : "", n_out, out ? "" : " at NULL");
    for (int i = 0; i < n_in; i++) {
        char which[24];
        if (in[i]) continue;
        snprintf(which, sizeof which, "input %d", i);
        return tni_poison(function, which);
    }
    return TN_OK;
}

static tn_status check_op(const tn_custom_op *op)
{
    if (!op) return tni_poison("tn_apply", "op");
    if (op->name && op->forward) return TN_OK;
    return tni_error(TN_E_INVALID, "tn_apply: an op without a %s: want both name and forward",
                     op->name ? "forward" : "name");
}

tn_status tn_apply_n(const tn_custom_op *op, void *user, int n_in, tn_tensor *const *in, int n_out,
                     tn_tensor **out)
{
    tn_status status = check_op(op);
    if (status == TN_OK) status = tni_check_arrays(op->name, n_in, in, n_out, out);
    own *o = status == TN_OK ? own_new(op, user, n_out) : NULL;
    if (!o) {
        if (op && op->free) op->free(user);
        for (int i = 0; out && i < n_out; i++) out[i] = NULL;
        return status == TN_OK ? TN_E_NOMEM : status;
    }
    TNI_ZEROED(tn_tensor *, results, n_out); /* out may overlap in */
    TNI_ZEROED(tn_tensor *, made, n_out);
    TNI_ITEMS(uint64_t, versions, n_in);
    if (!results || !made || !versions) status = TN_E_NOMEM;
    size_t guarded = tni_scope_guard();
    tn_scope scope = tn_scope_begin();
    if (status == TN_OK) status = apply(o, n_in, in, results, made, versions);
    own_drop(o);
    status = tni_scope_hand_over(scope, &guarded, status, made ? n_out : 0, made);
    for (int i = 0; i < n_out; i++) out[i] = made ? made[i] : NULL;
    return status;
}

tn_tensor *tn_apply(const tn_custom_op *op, void *user, int n_in, tn_tensor *const *in)
{
    tn_tensor *out = NULL;
    return tn_apply_n(op, user, n_in, in, 1, &out) == TN_OK ? out : NULL;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The engine has checked the versions of inputs. */
static tn_status check_others(const own *o, const tni_grad *g)
{
    for (size_t k = 0; k < o->n_save; k++) {
        const saved *s = &o->save[k];
        if (s->other < 0 || tn_version(g->saved[s->other]) == s->version) continue;
        return tni_error(TN_E_STATE,
                         "tn_backward: what %s saved as number %d, %s, was changed in place after "
                         "that: want it unchanged until backward; tn_clone it before the change",
                         o->type->name, (int)k, tni_text(g->saved[s->other]));
    }
    return TN_OK;
}

/* Whether the engine can turn what backward returned into input i's gradient. */
static tn_status check_gradient(const own *o, const tni_grad *g, int i)
{
    const char *name = o->type->name;
    const tn_tensor *dx = g->dx[i];
    const tn_shape *want = &g->in[i].shape;
    if (!dx)
        return tni_missing("tn_backward: the backward of %s gave NULL for input %d: want a tensor, "
                           "or TN_NONE for none",
                           name, i);
    if (tni_none(dx)) return TN_OK;
    if (!tn_dtype_is_float(dx->dtype))
        return tni_error(
            TN_E_DTYPE,
            "tn_backward: the backward of %s gave %s for input %d: want a floating dtype", name,
            tn_dtype_name(dx->dtype), i);
    if (!tni_none(g->dy) && !tni_same_device(dx->storage->device, g->dy->storage->device))
        return tni_error(TN_E_DEVICE,
                         "tn_backward: the backward of %s gave a gradient for input %d on another "
                         "device: want the input's",
                         name, i);
    if (!tni_broadcasts_to(want, &dx->shape))
        return tni_error(TN_E_SHAPE,
                         "tn_backward: the backward of %s gave %s for input %d: want the input's "
                         "shape, %s, or a larger one that it broadcasts to",
                         name, tni_shape_text(&dx->shape), i, tni_shape_text(want));
    return TN_OK;
}

/* Runs the user's backward in forward's mode of autocast. */
static tn_status run_backward(own *o, tni_grad *g, tn_tensor *const *dout)
{
    tn_custom c = { .own = o, .recorded = true, .n_in = g->n_in, .grad = g };
    bool was = tn_grad_enabled();
    uint64_t errors = tni_error_count;
    if (o->cast != TN_F32) tn_set_autocast(o->cast); /* a pass runs with it off */
    tn_status status = o->type->backward(&c, g->n_out, dout, g->n_in, g->dx);
    if (o->cast != TN_F32 || tn_autocast() != TN_F32) tn_set_autocast(TN_F32);
    status = tni_user_status(o->type->name, "backward", status ? status : c.failed, errors);
    tn_set_grad_enabled(was);
    for (int i = 0; i < g->n_in; i++) {
        if (!g->need[i]) g->dx[i] = TN_NONE;
        if (status == TN_OK && g->need[i]) status = check_gradient(o, g, i);
    }
    return status;
}

static tn_status backward(tni_grad *g)
{
    own *o = own_of(g->args);
    if (o->type->once_differentiable && tni_composed())
        return tni_error(TN_E_UNSUPPORTED,
                         "tn_gradients: %s is once_differentiable: want its backward written with "
                         "ops, or no TN_CREATE_GRAPH (which tn_jvp, tn_hessian and tn_hvp set)",
                         o->type->name);
    TNI_TRY(check_others(o, g));
    TNI_ITEMS(tn_tensor *, dout, g->n_out);
    if (!dout) return TN_E_NOMEM;
    for (int i = 0; i < g->n_out; i++) {
        bool takes = tn_dtype_is_float(g->out[i].dtype) && !o->plain[i];
        if (!(dout[i] = takes ? tni_dy(g, i) : TN_NONE)) return tni_pending();
    }
    return run_backward(o, g, dout);
}

/* ---- what forward and backward call ---------------------------------------------------------- */

static tn_status check_phase(const char *function, const tn_custom *c, bool forward)
{
    if (!c) return tni_poison(function, "c");
    if (forward == !c->grad) return TN_OK;
    return tni_error(TN_E_STATE, "%s: called in the %s of %s: want it in %s", function,
                     forward ? "backward" : "forward", c->own->type->name,
                     forward ? "forward" : "backward");
}

static tn_status check_number(const char *function, const tn_custom *c, const char *what, int i,
                              int n)
{
    if (i >= 0 && i < n) return TN_OK;
    return tni_error(TN_E_INDEX, "%s: %s %d of %s: it has %d", function, what, i,
                     c->own->type->name, n);
}

static tn_status fail(tn_custom *c, tn_status status)
{
    if (c && c->failed == TN_OK) c->failed = status;
    return status;
}

tn_status tn_custom_save(tn_custom *c, tn_tensor *t)
{
    tn_status status = check_phase("tn_custom_save", c, true);
    if (status == TN_OK && !t) status = tni_poison("tn_custom_save", "t");
    if (status != TN_OK || !c->recorded) return fail(c, status);
    own *o = c->own;
    if (!tni_room(&o->save, &o->save_room, o->n_save, 1, sizeof *o->save))
        return fail(c, TN_E_NOMEM);
    o->save[o->n_save++] = (saved){ tn_keep(t), tn_version(t), -1, -1, -1 };
    return TN_OK;
}

tn_tensor *tn_custom_saved(const tn_custom *c, int i)
{
    if (check_phase(__func__, c, false) != TN_OK) return NULL;
    if (check_number(__func__, c, "saved tensor", i, (int)c->own->n_save) != TN_OK) return NULL;
    const saved *s = &c->own->save[i];
    if (s->input >= 0) return c->grad->x[s->input];
    if (s->other < 0) return TN_NONE;
    tn_tensor *t = c->grad->saved[s->other];
    return s->output >= 0 && tni_composed() ? tni_with_history(t, c->own->node, s->output) : t;
}

bool tn_custom_needs(const tn_custom *c, int i)
{
    if (!c || check_number("tn_custom_needs", c, "input", i, c->n_in) != TN_OK) return false;
    return c->grad ? c->grad->need[i] : c->recorded && c->in[i]->requires_grad;
}

tn_status tn_custom_no_gradient(tn_custom *c, int i)
{
    tn_status status = check_phase(__func__, c, true);
    if (status == TN_OK) status = check_number(__func__, c, "output", i, c->own->n_out);
    if (status == TN_OK) c->own->plain[i] = true;
    return fail(c, status);
}

void *tn_custom_user(const tn_custom *c)
{
    return c ? c->own->user : NULL;
}
