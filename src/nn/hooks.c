/*
 * hooks.c - a user's functions around forward, backward, saving and loading of one module.
 *
 * Hooks hang on an object of their own that the module and recorded calls count: a graph may live
 * longer than the module it went through, and then finds that there is nobody to call.
 *
 * A module with backward hooks is called between two gates, views of its inputs and of its outputs
 * that the graph passes through. The outer gate sees the gradients of the outputs, the inner one,
 * later, those of the inputs; they meet in a `passage`, one for each call.
 */
#include "nn/module.h"

typedef union hook_call {
    tn_forward_pre_hook forward_pre;
    tn_forward_hook forward;
    tn_backward_hook backward;
    tn_state_dict_hook state;
    tn_load_post_hook load_post;
} hook_call;

typedef struct hook {
    int64_t id;
    tni_hook_kind kind;
    hook_call call;
    void *user;
    struct hook *next; /* registered later */
} hook;

struct tni_hooks {
    atomic_int refs;   /* the module's, and one for each passage */
    tn_module *module; /* NULL when it is gone */
    hook *first;
};

/* ---- registering ----------------------------------------------------------------------------- */

static void hooks_drop(tni_hooks *hooks)
{
    if (atomic_fetch_sub_explicit(&hooks->refs, 1, memory_order_acq_rel) != 1) return;
    while (hooks->first) {
        hook *h = hooks->first;
        hooks->first = h->next;
        tni_free(h, sizeof *h);
    }
    tni_free(hooks, sizeof *hooks);
}

void tni_hooks_leave(tni_hooks *hooks)
{
    if (!hooks) return;
    hooks->module = NULL;
    hooks_drop(hooks);
}

static int64_t add(const char *function, tn_module *m, tni_hook_kind kind, hook_call call,
                   bool given, void *user)
{
    static atomic_llong ids = 1;
    if (tni_module_check(function, m) != TN_OK) return -1;
    if (!given) {
        tni_error(TN_E_INVALID, "%s: the hook is NULL: want a function", function);
        return -1;
    }
    if (!m->state->hooks) {
        m->state->hooks = tni_calloc(sizeof *m->state->hooks);
        if (!m->state->hooks) return -1;
        m->state->hooks->refs = 1;
        m->state->hooks->module = m;
    }
    hook *h = tni_alloc(sizeof *h);
    if (!h) return -1;
    *h = (hook){ atomic_fetch_add(&ids, 1), kind, call, user, NULL };
    hook **end = &m->state->hooks->first;
    while (*end) end = &(*end)->next;
    *end = h;
    return h->id;
}

int64_t tn_register_forward_pre_hook(tn_module *m, tn_forward_pre_hook call, void *user)
{
    return add("tn_register_forward_pre_hook", m, TNI_HOOK_FORWARD_PRE,
               (hook_call){ .forward_pre = call }, call != NULL, user);
}

int64_t tn_register_forward_hook(tn_module *m, tn_forward_hook call, void *user)
{
    return add("tn_register_forward_hook", m, TNI_HOOK_FORWARD, (hook_call){ .forward = call },
               call != NULL, user);
}

int64_t tn_register_full_backward_hook(tn_module *m, tn_backward_hook call, void *user)
{
    return add("tn_register_full_backward_hook", m, TNI_HOOK_BACKWARD,
               (hook_call){ .backward = call }, call != NULL, user);
}

int64_t tn_register_state_dict_hook(tn_module *m, tn_state_dict_hook call, void *user)
{
    return add("tn_register_state_dict_hook", m, TNI_HOOK_STATE_DICT, (hook_call){ .state = call },
               call != NULL, user);
}

int64_t tn_register_load_pre_hook(tn_module *m, tn_state_dict_hook call, void *user)
{
    return add("tn_register_load_pre_hook", m, TNI_HOOK_LOAD_PRE, (hook_call){ .state = call },
               call != NULL, user);
}

int64_t tn_register_load_post_hook(tn_module *m, tn_load_post_hook call, void *user)
{
    return add("tn_register_load_post_hook", m, TNI_HOOK_LOAD_POST,
               (hook_call){ .load_post = call }, call != NULL, user);
}

void tn_remove_module_hook(tn_module *m, int64_t id)
{
    if (!m || !m->state || !m->state->hooks) return;
    for (hook **at = &m->state->hooks->first; *at; at = &(*at)->next) {
        if ((*at)->id != id) continue;
        hook *h = *at;
        *at = h->next;
        tni_free(h, sizeof *h);
        return;
    }
}

/* ---- calling --------------------------------------------------------------------------------- */

/* The first hook of a kind whose id is above `after`: a hook may remove itself or others. */
static const hook *next_hook(const tni_hooks *hooks, tni_hook_kind kind, int64_t after)
{
    for (const hook *h = hooks ? hooks->first : NULL; h; h = h->next)
        if (h->kind == kind && h->id > after) return h;
    return NULL;
}

bool tni_has_hook(const tn_module *m, tni_hook_kind kind)
{
    return next_hook(m->state->hooks, kind, 0) != NULL;
}

/* The verdict on a hook that has run: its status, and no NULL among the tensors it may replace. */
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

tn_status tni_run_state_hooks(tn_module *m, tni_hook_kind kind, tn_list *state, const char *prefix)
{
    const hook *h;
    tn_status status = TN_OK;
    for (int64_t id = 0; status == TN_OK && (h = next_hook(m->state->hooks, kind, id));) {
        id = h->id;
        status = judge(m, "state", h->call.state(m, state, prefix, h->user), 0, NULL);
    }
    return status;
}

tn_status tni_run_load_post_hooks(tn_module *m, tn_list *missing, tn_list *unexpected)
{
    const hook *h;
    tn_status status = TN_OK;
    for (int64_t id = 0;
         status == TN_OK && (h = next_hook(m->state->hooks, TNI_HOOK_LOAD_POST, id));) {
        id = h->id;
        status = judge(m, "load", h->call.load_post(m, missing, unexpected, h->user), 0, NULL);
    }
    return status;
}

/* ---- gates ----------------------------------------------------------------------------------- */

/* One recorded call of a module with backward hooks: room for the gradients of its n_in inputs,
 * then of its n_out outputs, one reference each, NULL when absent. */
typedef struct passage {
    atomic_int refs; /* the call's while it runs, and one for each gate's node */
    tni_hooks *hooks;
    int n_in, n_out;
    bool inner; /* there is a gate at the inputs */
    tn_tensor *gradient[];
} passage;

/* Where gradients of a gate stand: at gradient[first + ...], for the tensors that need one. */
typedef struct gate_args {
    passage *passage;
    bool inner;
    uint64_t passes; /* bit i: tensor i of the call goes through the gate, the next of its outputs */
} gate_args;

enum { MOST_TENSORS = 64 };

static size_t passage_size(const passage *p)
{
    return sizeof *p + ((size_t)p->n_in + (size_t)p->n_out) * sizeof(tn_tensor *);
}

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
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < p->n_in + p->n_out; i++) forget(&p->gradient[i], NULL);
    hooks_drop(p->hooks);
    tni_free(p, passage_size(p));
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
        *spec = (tni_spec){
            .dtype = t->dtype, .strided = true, .shape = t->shape, .offset = t->offset
        };
        memcpy(spec->stride, t->stride, sizeof spec->stride);
    }
    return TN_OK;
}

static tn_status run_backward_hooks(passage *p)
{
    tn_tensor **in = p->gradient, **out = p->gradient + p->n_in;
    tn_module *m = p->hooks->module;
    const hook *h;
    tn_status status = TN_OK;
    for (int64_t id = 0;
         m && status == TN_OK && (h = next_hook(p->hooks, TNI_HOOK_BACKWARD, id));) {
        tn_tensor *now[MOST_TENSORS];
        id = h->id;
        for (int i = 0; i < p->n_in; i++) now[i] = in[i] ? in[i] : TN_NONE;
        tn_tensor *outer[MOST_TENSORS];
        for (int i = 0; i < p->n_out; i++) outer[i] = out[i] ? out[i] : TN_NONE;
        status = judge(m, "backward", h->call.backward(m, p->n_in, now, p->n_out, outer, h->user),
                       p->n_in, now);
        for (int i = 0; status == TN_OK && i < p->n_in; i++) {
            if (!in[i] || now[i] == in[i]) continue; /* what needs none gets none */
            if (tni_none(now[i]) || !tni_shape_equal(&now[i]->shape, &in[i]->shape))
                status = tni_error(TN_E_SHAPE,
                                   "%s: a backward hook gave %s for the gradient %s of input %d: "
                                   "want the same shape",
                                   m->type->name, tni_none(now[i]) ? "TN_NONE" : tni_text(now[i]),
                                   tni_shape_text(&in[i]->shape), i);
            else
                forget(&in[i], tn_keep(now[i]));
        }
        m = p->hooks->module;
    }
    return status;
}

/* The gradients that arrive are put down; at the last gate the hooks see them all. Those of the
 * outputs are kept without history: with create_graph they would lead back to this very node. */
static tn_status gate_backward(tni_grad *g)
{
    const gate_args *a = g->args;
    passage *p = a->passage;
    tn_tensor **slot = p->gradient + (a->inner ? 0 : p->n_in);
    tn_status status = TN_OK;
    int k = 0;
    for (int i = 0; i < (a->inner ? p->n_in : p->n_out); i++) {
        if (!(a->passes >> i & 1)) continue;
        tn_tensor *dy = g->dys[k++];
        if (!tni_none(dy) && !a->inner) dy = tn_detach(dy);
        if (!dy) return tni_pending();
        forget(&slot[i], tni_none(dy) ? NULL : tn_keep(dy));
    }
    if (a->inner || !p->inner) status = run_backward_hooks(p);
    k = 0;
    for (int i = 0; i < (a->inner ? p->n_in : p->n_out); i++) {
        if (!(a->passes >> i & 1)) continue;
        g->dx[k] = a->inner && slot[i] ? tn_scope_adopt(tn_keep(slot[i])) : g->dys[k];
        k++;
    }
    if (a->inner || !p->inner)
        for (int i = 0; i < p->n_in + p->n_out; i++) forget(&p->gradient[i], NULL);
    return status;
}

static const tn_op op_gate = {
    .name = "module_gate",
    .formula = "y_i = x_i",
    .arity = -1,
    .dtypes = TNI_ANY_DTYPE,
    .view = true,
    .any_device = true,
    .shape = gate_shape,
    .backward = gate_backward,
    .keep = gate_keep,
    .drop = gate_drop,
};

/* Replaces those of n tensors that need a gradient by their views behind a gate. */
static tn_status pass_gate(passage *p, bool inner, int n, tn_tensor **tensor)
{
    tn_tensor *in[MOST_TENSORS], *out[MOST_TENSORS];
    gate_args a = { .passage = p, .inner = inner };
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (!tensor[i]->requires_grad) continue;
        a.passes |= UINT64_C(1) << i;
        in[k++] = tensor[i];
    }
    if (!k) return TN_OK;
    tn_status status = tni_apply_n(&op_gate, &a, sizeof a, k, in, k, out);
    if (status != TN_OK) return status;
    p->inner |= inner;
    k = 0;
    for (int i = 0; i < n; i++)
        if (a.passes >> i & 1) tensor[i] = out[k++];
    return TN_OK;
}

/* ---- a call with hooks ----------------------------------------------------------------------- */

static tn_status run_pre(tn_module *m, int n, tn_tensor **in)
{
    const hook *h;
    tn_status status = TN_OK;
    for (int64_t id = 0;
         status == TN_OK && (h = next_hook(m->state->hooks, TNI_HOOK_FORWARD_PRE, id));) {
        id = h->id;
        status = judge(m, "forward pre-", h->call.forward_pre(m, n, in, h->user), n, in);
    }
    return status;
}

static tn_status run_post(tn_module *m, int n_in, tn_tensor *const *in, int n, tn_tensor **out)
{
    const hook *h;
    tn_status status = TN_OK;
    for (int64_t id = 0;
         status == TN_OK && (h = next_hook(m->state->hooks, TNI_HOOK_FORWARD, id));) {
        id = h->id;
        status = judge(m, "forward", h->call.forward(m, n_in, in, n, out, h->user), n, out);
    }
    return status;
}

tn_status tni_hooked_call(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                          tni_forward forward)
{
    tn_tensor *seen[MOST_TENSORS];
    if (n_in > MOST_TENSORS || n_out > MOST_TENSORS)
        return tni_error(TN_E_UNSUPPORTED, "%s: %d inputs and %d outputs: with hooks at most %d",
                         m->type->name, n_in, n_out, MOST_TENSORS);
    for (int i = 0; i < n_in; i++) seen[i] = in[i];
    tn_status status = run_pre(m, n_in, seen);
    passage *p = NULL;
    if (status == TN_OK && tn_grad_enabled() && tni_has_hook(m, TNI_HOOK_BACKWARD)) {
        p = passage_new(m->state->hooks, n_in, n_out);
        status = p ? pass_gate(p, true, n_in, seen) : TN_E_NOMEM;
    }
    if (status == TN_OK) status = forward(m, n_in, seen, n_out, out);
    if (status == TN_OK) status = run_post(m, n_in, seen, n_out, out);
    if (status == TN_OK && p) status = pass_gate(p, false, n_out, out);
    passage_drop(p);
    return status;
}
