/*
 * call.c - every call of a module's forward goes through here.
 *
 * tni_call_with does for every call: NULL inputs, a scope of its own, the frame that messages and
 * tn_assign read, the forward itself, the check of fields, and moving the outputs to the caller's
 * scope.
 */
#include "autograd/call_site.h"
#include "nn/micro_batches.h"

/* One running call of this thread, on the C stack of tni_call_with. */
typedef struct frame {
    tn_module *module;
    const tni_attention_options *options;
    struct frame *outer;
    int depth;           /* frames, this one included */
    tni_call_site *site; /* for the nodes recorded in it; NULL until a node needs it */
} frame;

enum { DEEPEST = 1000 }; /* nested calls: each uses some of the C stack */

static _Thread_local frame *innermost;

/* ---- where we are, for messages -------------------------------------------------------------- */

/* How deep below its caller, and in how many modules, to search for a called module. */
enum { SEARCH_DEPTH = 16, MOST_LOOKS = 4096 };

/* Writes wanted's path below m; allocates nothing, since we may be out of memory. */
static bool find_path(const tn_module *m, const tn_module *wanted, int depth, int *looks,
                      char *path, size_t size)
{
    if (--*looks < 0) return false; /* with shared children there are more paths than modules */
    for (int i = 0; i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        if (slot->kind != TNI_CHILD || slot->child != wanted) continue;
        snprintf(path, size, "%s", slot->name);
        return true;
    }
    for (int i = 0; depth < SEARCH_DEPTH && i < m->state->n; i++) {
        const tni_slot *slot = &m->state->slot[i];
        size_t n = strlen(slot->name) + 1;
        if (slot->kind != TNI_CHILD || tni_no_module(slot->child) || n >= size) continue;
        if (!find_path(slot->child, wanted, depth + 1, looks, path + n, size - n)) continue;
        memcpy(path, slot->name, n - 1);
        path[n - 1] = '.';
        return true;
    }
    return false;
}

/* Appends the path of the running call from its root; a module that its caller did not register
 * starts a path of its own. Returns the length. */
static size_t write_path(const frame *f, char *path, size_t size)
{
    if (!f->outer) return 0;
    size_t n = write_path(f->outer, path, size);
    if (n + 2 >= size) return n;
    size_t start = n;
    if (n) path[n++] = '.';
    path[n] = '\0';
    int looks = MOST_LOOKS;
    if (find_path(f->outer->module, f->module, 0, &looks, path + n, size - n))
        return n + strlen(path + n);
    path[start] = '\0';
    return start;
}

/* " (in encoder.layers.0.linear1: Linear)", or " (in Net)" for the outermost module itself. */
static void describe_place(char *buffer, size_t size)
{
    char path[512] = "";
    if (!innermost) return;
    write_path(innermost, path, sizeof path);
    snprintf(buffer, size, " (in %s%s%s)", path, path[0] ? ": " : "",
             innermost->module->type->name);
}

static tni_call_site *make_site(frame *f, tni_call_site *outer)
{
    char path[512] = "";
    write_path(f, path, sizeof path);
    return f->site = tni_call_site_new(outer, f->module, path, f->module->type->name);
}

static tni_call_site *site_of(frame *f)
{
    if (!f || f->site) return f ? f->site : NULL;
    tni_call_site *outer = site_of(f->outer);
    return f->outer && !outer ? NULL : make_site(f, outer);
}

static tni_call_site *site_here(void)
{
    return site_of(innermost);
}

/* ---- frames ---------------------------------------------------------------------------------- */

const tni_attention_options *tni_call_options(const tn_module *self)
{
    return innermost && innermost->module == self ? innermost->options : NULL;
}

tn_module *tni_calling_at(const void *address)
{
    for (const frame *f = innermost; f; f = f->outer)
        if (tni_module_contains(f->module, address)) return f->module;
    return NULL;
}

bool tni_calling(void)
{
    return innermost != NULL;
}

/* ---- the call -------------------------------------------------------------------------------- */

tn_status tni_call_check(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out)
{
    TNI_TRY(tni_module_check("tn_call", m));
    TNI_TRY(tni_check_arrays("tn_call", n_in, in, n_out, out));
    if (!tni_scope_open()) {
        char who[256];
        snprintf(who, sizeof who, "tn_%s of %s", n_in == 1 && n_out == 1 ? "forward" : "call",
                 m->type->name);
        return tni_scope_missing(who);
    }
    if (innermost && innermost->depth >= DEEPEST)
        return tni_error(TN_E_STATE,
                         "%s: called within %d calls: want modules nested less deep, or none that "
                         "calls itself",
                         m->type->name, DEEPEST);
    if (!m->type->forward_n && !m->type->forward)
        return tni_error(TN_E_UNSUPPORTED, "%s: has no forward: call its children", m->type->name);
    if (!m->type->forward_n && (n_in != 1 || n_out != 1))
        return tni_error(TN_E_INVALID, "%s: called with %d inputs and %d outputs: want 1 and 1",
                         m->type->name, n_in, n_out);
    return TN_OK;
}

static tn_status dispatch(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out)
{
    tn_status status = TN_OK;
    const uint64_t errors = tni_error_count;
    if (m->type->forward_n)
        status = m->type->forward_n(m, n_in, in, n_out, out);
    else
        out[0] = m->type->forward(m, in[0]);
    for (int i = 0; status == TN_OK && i < n_out; i++) {
        if (out[i]) continue;
        if (tni_pending() == TN_OK)
            return tni_error(TN_E_INVALID,
                             "%s: its forward gave NULL without an error: want a tensor",
                             m->type->name);
        const bool older = tni_error_count == errors; /* an error of before the call */
        return older ? tni_poison(m->type->name, "what its forward gave") : tni_pending();
    }
    return status;
}

tn_status tni_call_once(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out,
                        const tni_attention_options *options)
{
    tn_tensor *single =
        NULL; /* so that a call with one output may overwrite its input's variable */
    tn_tensor **result = n_out == 1 ? &single : out;
    tn_status status = tni_call_check(m, n_in, in, n_out, out);
    for (int i = 0; status == TN_OK && i < n_out; i++) result[i] = NULL;
    if (status == TN_OK) {
        if (TNI_UNLIKELY(tni_watching) && tni_watching->called)
            tni_watching->called(tni_watching, m, n_in, in);
        frame f = { m, options, innermost, innermost ? innermost->depth + 1 : 1, NULL };
        innermost = &f;
        tn_module_keep(m); /* a hook may drop it or its parent */
        tni_error_context = describe_place;
        tni_call_site_here = site_here;
        tn_scope scope = tn_scope_begin();
        if (scope.depth < 0) status = tni_pending();
        size_t guarded = tni_scope_guard();
        tni_fields fields;
        tn_tensor *was = NULL; /* in the field of a parameter that is made now */
        if (TNI_UNLIKELY(tni_batch_now) && status == TN_OK) status = tni_batch_meet(m, !f.outer);
        if (TNI_UNLIKELY(m->state->made) && status == TN_OK && !(was = tni_made(m)))
            status = tni_pending();
        if (status == TN_OK) status = tni_fields_before(&fields, m, n_in, in);
        bool looked = status == TN_OK;
        if (status == TN_OK)
            status = m->state->hooks ? tni_hooked_call(m, n_in, in, n_out, result, dispatch)
                                     : dispatch(m, n_in, in, n_out, result);
        if (looked) status = tni_fields_after(&fields, m, n_in, in, status);
        if (was) tni_made_end(m, was);
        innermost = f.outer;
        if (!f.outer) tni_call_site_here = NULL;
        tni_call_site_drop(f.site);
        status = tni_scope_hand_over(scope, &guarded, status, n_out, result);
        tn_module_drop(m);
    }
    for (int i = 0; out && i < n_out; i++) out[i] = status == TN_OK ? result[i] : NULL;
    return status;
}

tn_status tn_call(tn_module *m, int n_in, tn_tensor *const *in, int n_out, tn_tensor **out)
{
    return tni_call_with(m, n_in, in, n_out, out, NULL);
}

tn_tensor *tn_forward(tn_module *m, tn_tensor *x)
{
    if (tni_module_check("tn_forward", m) != TN_OK) return NULL;
    if (!x) return tni_poisoned("tn_forward", "the input x");
    tn_tensor *y;
    return tni_call_with(m, 1, &x, 1, &y, NULL) == TN_OK ? y : NULL;
}
