/*
 * hooks.c - user functions around forward, backward, saving and loading of one module.
 *
 * Hooks belong to a separate object, reference-counted by the module and by recorded calls: a graph
 * may outlive the module it went through, and then finds no hook to call.
 *
 * A module with backward hooks is called between two gates: views of its inputs and of its outputs
 * that are part of the graph. The outer gate sees the gradients of the outputs, and later the inner
 * one those of the inputs; each call has a `passage` that collects both.
 */
#include "nn/module.h"

struct tni_hooks {
    atomic_int refs;    /* the module's, and one for each passage */
    tn_module *module;  /* NULL once it is freed */
    tni_hook_list list; /* of all kinds */
};

/* ---- registering ----------------------------------------------------------------------------- */

static void hooks_drop(tni_hooks *hooks)
{
    if (!tni_last(&hooks->refs)) return;
    tni_hook_list_free(&hooks->list);
    tni_free(hooks, sizeof *hooks);
}

void tni_hooks_clear(tn_module *m)
{
    if (m->state->hooks) m->state->hooks->list.n = m->state->hooks->list.removed = 0;
}

void tni_hooks_leave(tni_hooks *hooks)
{
    if (!hooks) return;
    hooks->module = NULL;
    hooks_drop(hooks);
}

static int64_t add(const char *function, tn_module *m, tni_hook_kind kind, tni_any_hook call,
                   void *user)
{
    if (tni_module_check(function, m) != TN_OK) return -1;
    if (!call)
        return tni_minus_one(
            tni_error(TN_E_INVALID, "%s: the hook is NULL: want a function", function));
    if (!m->state->hooks) {
        m->state->hooks = tni_calloc(sizeof *m->state->hooks);
        if (!m->state->hooks) return -1;
        m->state->hooks->refs = 1;
        m->state->hooks->module = m;
    }
    return tni_hook_add(&m->state->hooks->list, (int)kind, call, user);
}

#define REGISTER(name, KIND, type)                                                                 \
    int64_t name(tn_module *m, type call, void *user)                                              \
    {                                                                                              \
        return add(#name, m, TNI_HOOK_##KIND, (tni_any_hook)call, user);                           \
    }
REGISTER(tn_register_forward_pre_hook, FORWARD_PRE, tn_forward_pre_hook)
REGISTER(tn_register_forward_hook, FORWARD, tn_forward_hook)
REGISTER(tn_register_full_backward_hook, BACKWARD, tn_backward_hook)
REGISTER(tn_register_state_dict_hook, STATE_DICT, tn_state_dict_hook)
REGISTER(tn_register_load_pre_hook, LOAD_PRE, tn_state_dict_hook)
REGISTER(tn_register_load_post_hook, LOAD_POST, tn_load_post_hook)

void tn_remove_module_hook(tn_module *m, int64_t id)
{
    if (m && m->state && m->state->hooks) tni_hook_remove(&m->state->hooks->list, id);
}

/* ---- calling --------------------------------------------------------------------------------- */

/* A run over the hooks of one kind that existed when it began. A hook may add and remove hooks and
 * drop the module, which the caller keeps alive. */
typedef struct hook_run {
    const tni_hook_list *list;
    tni_hook_kind kind;
    int64_t last;
    tni_hook hook; /* the one to call */
} hook_run;

static hook_run run_of(const tn_module *m, tni_hook_kind kind)
{
    const tni_hook_list *list = m->state->hooks ? &m->state->hooks->list : NULL;
    return (hook_run){ .list = list, .kind = kind, .last = list ? tni_hook_last(list) : 0 };
}

static bool next(hook_run *r)
{
    return r->list && tni_hook_next(r->list, (int)r->kind, r->last, &r->hook);
}

bool tni_has_hook(const tn_module *m, tni_hook_kind kind)
{
    hook_run r = run_of(m, kind);
    return next(&r);
}

/* Checks a hook that has run: its status, and no NULL among the tensors it may replace. */
static tn_status judge(const tn_module *m, const char *what, tn_status status, int n,
                       tn_tensor *const *tensor)
{
    if (status != TN_OK) {
        if (tni_pending() != TN_OK) return status;
        return tni_error(status, "%s: a %s hook failed without a message", m->type->name, what);
    }
    for (int i = 0; i < n; i++)
        if (!tensor[i]) return tni_poison(m->type->name, "what a hook put in a tensor's place");
    return TN_OK;
}

tn_status tni_run_list_hooks(tn_module *m, tni_hook_kind kind, tn_list *list, const char *prefix,
                             tn_list *unexpected)
{
    const bool post = kind == TNI_HOOK_LOAD_POST;
    tn_status status = TN_OK;
    tn_module_keep(m);
    for (hook_run r = run_of(m, kind); status == TN_OK && next(&r);) {
        status = post ? ((tn_load_post_hook)r.hook.call)(m, list, unexpected, r.hook.user)
                      : ((tn_state_dict_hook)r.hook.call)(m, list, prefix, r.hook.user);
        status = judge(m, post ? "load" : "state", status, 0, NULL);
    }
    tn_module_drop(m);
    return status;
}

/* ---- gates ----------------------------------------------------------------------------------- */

/* One recorded call of a module with backward hooks: room for the gradients of its n_in inputs,
 * then of its n_out outputs, one reference each, NULL when absent. */
typedef struct passage {
    atomic_int refs; /* the call's while it runs, and one for each gate's node */
    tni_hooks *hooks;
    int n_in, n_out;
    bool inner; /* has a gate at the inputs */
    tn_tensor *gradient[];
} passage;

/* A gate's gradients are gradient[first + ...], for the tensors that need one. */
typedef struct gate_args {
    passage *passage;
    bool inner;
    /* bit i: tensor i of the call goes through the gate, the next of its outputs */
    uint64_t passes;
} gate_args;

enum { MOST_TENSORS = 64 };

static passage *passage_new(tni_hooks *hooks, int n_in, int n_out)
{
    passage *p = tni_calloc(sizeof *p + ((size_t)n_in + (size_t)n_out) * sizeof(tn_tensor *));
    if (!p) return NULL;
    p->refs = 1;
    p->hooks = hooks;
    p->n_in = n_in;
    p->n_out = n_out;
    atomic_fetch_add_explicit(&hooks->refs, 1, memory_order_relaxed);
    return p;
}

static void forget(tn_tensor **slot, tn_tensor *t)
{
    tn_drop(*slot);
    *slot = t;
}

static void passage_drop(passage *p)
{
    if (!p || !tni_last(&p->refs)) return;
    for (int i = 0; i < p->n_in + p->n_out; i++) forget(&p->gradient[i], NULL);
    hooks_drop(p->hooks);
    tni_free(p, sizeof *p + (size_t)(p->n_in + p->n_out) * sizeof(tn_tensor *));
}

static void gate_keep(void *args)
{
    atomic_fetch_add_explicit(&((gate_args *)args)->passage->refs, 1, memory_order_relaxed);
}

static void gate_drop(void *args)
{
    passage_drop(((gate_args *)args)->passage);
}

static tn_status gate_shape(tni_call *c)
{
    for (int i = 0; i < c->n_in; i++) {
        const tn_tensor *t = c->in[i];
        tni_spec *spec = &c->out_spec[i];
        *spec = (tni_spec){ t->dtype, t->shape, .strided = true, .offset = t->offset };
        memcpy(spec->stride, t->stride, sizeof spec->stride);
    }
    return TN_OK;
}

/* Runs one hook with the gradients of a passage and takes those of inputs that it replaced. Absent
 * ones stay absent. */
static tn_status run_backward_hook(tn_module *m, const tni_hook *hook, int n_in, int n_out,
                                   tn_tensor **gradient)
{
    tn_tensor *now[2 * MOST_TENSORS];
    for (int i = 0; i < n_in + n_out; i++) now[i] = gradient[i] ? gradient[i] : TN_NONE;
    char who[128];
    snprintf(who, sizeof who, "%s: a backward hook", m->type->name);
    bool grad = tn_grad_enabled();
    tn_status status =
        judge(m, "backward",
              ((tn_backward_hook)hook->call)(m, n_in, now, n_out, now + n_in, hook->user), 0, NULL);
    tn_set_grad_enabled(grad);
    char of[32];
    for (int i = 0; status == TN_OK && i < n_in; i++) {
        if (!gradient[i]) continue;
        snprintf(of, sizeof of, " of input %d", i);
        status = tni_hook_check(who, of, gradient[i], now[i]);
        if (status == TN_OK && now[i] != gradient[i]) forget(&gradient[i], tn_keep(now[i]));
    }
    return status;
}

/* A freed module has no hooks to call; one that a hook drops lives until the run is over. */
static tn_status run_backward_hooks(const passage *p, tn_tensor **gradient)
{
    tn_module *m = tn_module_keep(p->hooks->module);
    tn_status status = TN_OK;
    if (!m) return TN_OK;
    for (hook_run r = run_of(m, TNI_HOOK_BACKWARD); status == TN_OK && next(&r);)
        status = run_backward_hook(m, &r.hook, p->n_in, p->n_out, gradient);
    tn_module_drop(m);
    return status;
}

/* Stores the gradients that arrive. Those of the outputs are stored without history: with
 * create_graph it would lead back to this very node. */
static tn_status put_down(const tni_grad *g, const gate_args *a)
{
    passage *p = a->passage;
    tn_tensor **slot = p->gradient + (a->inner ? 0 : p->n_in);
    int k = 0;
    for (int i = 0; i < (a->inner ? p->n_in : p->n_out); i++) {
        if (!(a->passes >> i & 1)) continue;
        tn_tensor *dy = g->dys[k++];
        if (!tni_none(dy) && !a->inner) dy = tn_detach(dy);
        if (!dy) return tni_pending();
        forget(&slot[i], tni_none(dy) ? NULL : tn_keep(dy));
    }
    return TN_OK;
}

/* At the last gate the hooks see all gradients. These are first removed from the passage, so that a
 * hook that runs another backward through this graph finds it empty. */
static tn_status gate_backward(tni_grad *g)
{
    const gate_args *a = g->args;
    passage *p = a->passage;
    int n = p->n_in + p->n_out;
    tn_status status = put_down(g, a);
    for (int i = 0; i < g->n_in; i++) g->dx[i] = g->dys[i];
    if (status != TN_OK || (!a->inner && p->inner)) return status;
    tn_tensor *now[2 * MOST_TENSORS];
    for (int i = 0; i < n; i++) {
        now[i] = p->gradient[i];
        p->gradient[i] = NULL;
    }
    status = run_backward_hooks(p, now);
    for (int i = 0, k = 0; a->inner && i < p->n_in && status == TN_OK; i++) {
        if (!(a->passes >> i & 1)) continue;
        if (now[i]) g->dx[k] = tn_scope_adopt(tn_keep(now[i]));
        k++;
    }
    for (int i = 0; i < n; i++) forget(&now[i], NULL);
    return status;
}

TNI_OP_AS(op_gate, "module_gate", -1, "y_i = x_i", "dx_i = dy_i", gate_shape, NULL, gate_backward,
          .dtypes = TNI_ANY_DTYPE, .view = true, .any_device = true, .keep = gate_keep,
          .drop = gate_drop)

/* Replaces each of n tensors that needs a gradient by its view through a gate. */
static tn_status pass_gate(passage *p, bool inner, int n, tn_tensor **tensor)
{
    tn_tensor *in[MOST_TENSORS];
    gate_args a = { .passage = p, .inner = inner };
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (!tensor[i]->requires_grad) continue;
        a.passes |= UINT64_C(1) << i;
        in[k++] = tensor[i];
    }
    if (!k) return TN_OK;
    tn_tensor *out[MOST_TENSORS];
    TNI_TRY(tni_apply_n(&op_gate, &a, sizeof a, k, in, k, out));
    p->inner |= inner;
    k = 0;
    for (int i = 0; i < n; i++)
        if (a.passes >> i & 1) tensor[i] = out[k++];
    return TN_OK;
}

/* ---- a call with hooks ----------------------------------------------------------------------- */

/* The hooks before forward, or those after it. */
static tn_status run_forward_hooks(tn_module *m, bool before, int n_in, tn_tensor **in, int n_out,
                                   tn_tensor **out)
{
    tn_status status = TN_OK;
    hook_run r = run_of(m, before ? TNI_HOOK_FORWARD_PRE : TNI_HOOK_FORWARD);
    while (status == TN_OK && next(&r)) {
        status = before ? ((tn_forward_pre_hook)r.hook.call)(m, n_in, in, r.hook.user)
                        : ((tn_forward_hook)r.hook.call)(m, n_in, in, n_out, out, r.hook.user);
        status = before ? judge(m, "forward pre-", status, n_in, in)
                        : judge(m, "forward", status, n_out, out);
    }
    return status;
}

tn_status tni_hooked_call(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                          tni_forward forward)
{
    if (n_in > MOST_TENSORS || n_out > MOST_TENSORS)
        return tni_error(TN_E_UNSUPPORTED, "%s: %d inputs and %d outputs: with hooks at most %d",
                         m->type->name, n_in, n_out, MOST_TENSORS);
    tn_tensor *seen[MOST_TENSORS];
    for (int i = 0; i < n_in; i++) seen[i] = in[i];
    tn_status status = run_forward_hooks(m, true, n_in, seen, n_out, out);
    passage *p = NULL;
    if (status == TN_OK && tn_grad_enabled() && tni_has_hook(m, TNI_HOOK_BACKWARD)) {
        p = passage_new(m->state->hooks, n_in, n_out);
        status = p ? pass_gate(p, true, n_in, seen) : TN_E_NOMEM;
    }
    if (status == TN_OK) status = forward(m, n_in, seen, n_out, out);
    if (status == TN_OK) status = run_forward_hooks(m, false, n_in, seen, n_out, out);
    if (status == TN_OK && p) status = pass_gate(p, false, n_out, out);
    passage_drop(p);
    return status;
}
